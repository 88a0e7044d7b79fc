//! Many seeds, each a cluster of its own with faults of its own. `AZE_SIM_SEEDS` sets how many,
//! `AZE_SIM_FROM` the first.

use crate::many::{caught, number};
use aze_server::sabotage::Switches;
use aze_sim::persistence::PersistentPlan;
use aze_sim::{Plan, run, run_plan};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds on every change.
const SEEDS: u64 = 200;

/// A search that is given up proves nothing: at most one in so many may be.
const UNDECIDED_ONE_IN: u64 = 20;

#[test]
fn no_seed_finds_a_violation() {
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", SEEDS));
    let next = AtomicU64::new(from);
    let (failures, undecided) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let (published_indexes, unasked) = (AtomicU64::new(0), AtomicU64::new(0));
    let (sharing_runs, shared) = (AtomicU64::new(0), AtomicU64::new(0));
    let (in_frames, paused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    let violations = match caught(|| run(seed, false)) {
                        Ok(outcome) => {
                            published_indexes.fetch_add(u64::from(outcome.plan.published_bytes > 0), Ordering::Relaxed);
                            unasked.fetch_add(outcome.unasked, Ordering::Relaxed);
                            sharing_runs
                                .fetch_add(u64::from(outcome.plan.share_bytes_min.is_some()), Ordering::Relaxed);
                            shared.fetch_add(outcome.shared, Ordering::Relaxed);
                            in_frames.fetch_add(outcome.in_frames.0, Ordering::Relaxed);
                            paused.fetch_add(outcome.in_frames.1, Ordering::Relaxed);
                            undecided.fetch_add(u64::from(!outcome.decided), Ordering::Relaxed);
                            outcome.violations
                        }
                        Err(panic) => vec![panic],
                    };
                    if let Some(first) = violations.first() {
                        let again =
                            format!("seed {seed}: {first}\n  again: cargo run -p aze-sim -- --seed {seed} --trace");
                        failures.lock().expect("no test thread panics with it").push(again);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no test thread panicked with it");
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
    let (published_indexes, unasked) = (published_indexes.into_inner(), unasked.into_inner());
    assert!(
        unasked >= published_indexes,
        "{unasked} answers were read in {published_indexes} runs with published indexes: they prove nothing"
    );
    let (sharing_runs, shared) = (sharing_runs.into_inner(), shared.into_inner());
    assert!(
        shared >= 10 * sharing_runs,
        "{shared} reads were shared in {sharing_runs} runs that share data: they prove little"
    );
    let (in_frames, paused) = (in_frames.into_inner(), paused.into_inner());
    assert!(
        in_frames >= 5 * count && paused >= count,
        "{in_frames} writes came into frames, {paused} of them in parts"
    );
    let undecided = undecided.into_inner();
    assert!(undecided <= count / UNDECIDED_ONE_IN, "{undecided} of {count} searches for an order were given up");
}

/// Layouts may place the data of a file apart from its inode: nothing takes for granted that its first chunk is there.
#[test]
fn files_whose_data_lie_apart_from_their_inodes_keep_every_promise() {
    const SEEDS: u64 = 30;
    let mut calls = 0;
    for seed in 0..SEEDS {
        let outcome = run_plan(Plan::of(seed).with(Switches::apart()), false);
        assert_eq!(outcome.violations, [] as [String; 0], "seed {seed}");
        calls += outcome.calls;
    }
    assert!(calls > 1000);
    for seed in 0..SEEDS / 3 {
        for plan_of in [PersistentPlan::of, PersistentPlan::staying] {
            let plan = PersistentPlan { switches: Switches::apart(), ..plan_of(seed) };
            assert_eq!(aze_sim::persistence::run(&plan, false), [] as [String; 0], "{plan:?}");
        }
    }
}
