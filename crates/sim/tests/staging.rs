//! The program that stages, from one seed: every line of a receipt was true at its moment, and nothing dirty is ever dropped, while
//! programs write, everybody is killed, and the destination fails.

use aze_sim::staging::{Counts, Missing, StagingPlan, run};

/// Seeds of the short form; `aze-sim --staging --seeds N` runs more.
const SEEDS: u64 = 40;

#[test]
fn lines_of_receipts_were_true_and_nothing_dirty_is_dropped() {
    let mut all = Counts::default();
    let mut with_links = [0; 2];
    for seed in 0..SEEDS {
        let plan = StagingPlan::of(seed);
        with_links[usize::from(plan.is_over_directory)] += u64::from(plan.links);
        let outcome = run(&plan, false);
        assert_eq!(outcome.wrong, [""; 0], "seed {seed}: aze-sim --staging --seed {seed} --trace");
        let one = outcome.counts;
        all.changes += one.changes;
        all.kills += one.kills;
        all.receipts += one.receipts;
        all.lines += one.lines;
        all.removals += one.removals;
        all.released += one.released;
        all.drained += one.drained;
        all.power_cuts += one.power_cuts;
        all.servers_killed += one.servers_killed;
        all.staged += one.staged;
        all.conflicts += one.conflicts;
    }
    let counts = [all.changes, all.kills, all.receipts, all.lines, all.removals, all.released, all.drained];
    let least = [2000, 40, 100, 500, 5, 5, 20];
    assert!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{all:?}");
    assert!(with_links.iter().all(|runs| *runs >= 3), "{with_links:?}");
    assert!(all.conflicts <= 4, "{all:?}");
    assert!(all.power_cuts > 5 && all.servers_killed > 5 && all.staged > 20, "{all:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [2, 3, 11] {
        let [one, other] = [(); 2].map(|()| run(&StagingPlan::of(seed), false).trace_hash);
        assert_eq!(one, other, "seed {seed}");
    }
}

#[test]
fn a_place_without_what_a_stage_relies_on_is_noticed() {
    for left_out in [Missing::SyncOfFiles, Missing::SyncOfNames, Missing::OwnNames] {
        let plan = |seed| StagingPlan { without: Some(left_out), ..StagingPlan::of(seed) };
        let found = (0..60).find(|seed| !run(&plan(*seed), false).wrong.is_empty());
        assert!(found.is_some(), "{left_out:?} is not noticed");
    }
}
