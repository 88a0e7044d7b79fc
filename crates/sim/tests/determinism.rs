//! The same seed twice is the same run, to the last event: else no failure could be replayed.

use aze_sim::run;

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..12 {
        let (one, other) = (run(seed, false), run(seed, true));
        assert_eq!(one.trace_hash, other.trace_hash, "seed {seed}");
        assert_eq!((one.calls, one.steps, one.virtual_ns), (other.calls, other.steps, other.virtual_ns), "seed {seed}");
        assert_eq!(one.violations, other.violations, "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_traces() {
    assert_ne!(run(1, false).trace_hash, run(2, false).trace_hash);
}
