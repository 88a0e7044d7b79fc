//! The home of a directory counts on what holders have said of their parts, until they tell it of a change: directories that are looked at
//! under work are at the end as they say, with faults, while slots move, and while servers leave and join.

use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::{Plan, run_plan};

fn fails(plan: Plan) -> Option<String> {
    match std::panic::catch_unwind(|| run_plan(plan, false)) {
        Ok(outcome) => outcome.violations.first().cloned(),
        Err(_) => Some("a panic".into()),
    }
}

#[test]
fn directories_that_are_looked_at_under_work_are_as_they_say() {
    let plans = [Plan::of, Plan::with_moves, Plan::with_leaving, Plan::with_joining];
    for (seed, plan) in (0..40).zip(plans.into_iter().cycle()) {
        assert_eq!(fails(plan(seed).with_looks()), None, "seed {seed}");
    }
}

#[test]
fn changes_that_a_home_is_not_told_of_are_noticed() {
    const SEEDS: [u64; 6] = [34, 36, 40, 47, 71, 82];
    let without = |seed: &u64| fails(Plan::of(*seed).with_looks().with(Switches::without(Sabotage::ForgetParts)));
    for seed in SEEDS {
        assert_eq!(fails(Plan::of(seed).with_looks()), None, "seed {seed} with all protections");
    }
    let noticed = SEEDS.iter().filter_map(without).count();
    assert!(noticed > 0, "none of the seeds {SEEDS:?} notices it");
    println!("noticed by {noticed} of {} seeds", SEEDS.len());
}
