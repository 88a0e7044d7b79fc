//! Slots move between servers under work, with faults: nothing acknowledged is lost, retries are recognised, opens and locks
//! go along, and at the end each shard is served by one server. `AZE_SIM_SEEDS` sets how many seeds, `AZE_SIM_FROM` the first.

use crate::many::{caught, number};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::{Plan, run_plan};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds on every change.
const SEEDS: u64 = 120;

#[test]
fn slots_move_under_work_and_nothing_is_lost() {
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", SEEDS));
    let next = AtomicU64::new(from);
    let (failures, moved) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<String, (u64, u64)>::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        return;
                    }
                    let first = match caught(|| run_plan(Plan::with_moves(seed), false)) {
                        Ok(outcome) => {
                            let mut moved = moved.lock().expect("no test thread panics with it");
                            let (runs, moves) = moved.entry(format!("{:?}", outcome.plan.mix)).or_default();
                            (*runs, *moves) = (*runs + 1, *moves + outcome.slot_moves);
                            outcome.violations.into_iter().next()
                        }
                        Err(panic) => Some(panic),
                    };
                    if let Some(first) = first {
                        let again = format!(
                            "seed {seed}: {first}\n  again: cargo run -p aze-sim -- --moves --seed {seed} --trace"
                        );
                        failures.lock().expect("no test thread panics with it").push(again);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no test thread panicked with it");
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
    let moved = moved.into_inner().expect("no test thread panicked with it");
    println!("{moved:?}");
    assert_eq!(moved.values().map(|(runs, _)| runs).sum::<u64>(), count);
    for (mix, (runs, moves)) in moved.iter().filter(|(_, (runs, _))| *runs >= 5) {
        assert!(moves >= runs, "{moves} slots moved in {runs} runs of {mix}: they prove nothing");
    }
}

fn is_noticed(sabotage: Sabotage, seeds: &[u64]) {
    let fails = |plan: Plan| match caught(|| run_plan(plan, false)) {
        Ok(outcome) => outcome.violations.first().cloned(),
        // A server that loses a protection may also break one of its own assertions.
        Err(panic) => Some(panic),
    };
    for seed in seeds {
        assert_eq!(fails(Plan::with_moves(*seed)), None, "seed {seed} with all protections");
    }
    let without = |seed: &u64| fails(Plan::with_moves(*seed).with(Switches::without(sabotage)));
    let noticed: Vec<String> = seeds.iter().filter_map(without).collect();
    assert!(!noticed.is_empty(), "none of the seeds {seeds:?} notices {sabotage:?}");
    println!("{sabotage:?}: noticed by {} of {} seeds: {}", noticed.len(), seeds.len(), noticed[0]);
}

#[test]
fn a_move_may_be_over_before_its_map_was_put_into_effect() {
    for seed in 0..12 {
        let outcome = run_plan(Plan::with_moves(seed).with(Switches::without(Sabotage::HearEndFirst)), false);
        assert_eq!(outcome.violations.first(), None, "seed {seed}");
    }
}

#[test]
fn requests_done_twice_after_a_move_are_noticed() {
    is_noticed(Sabotage::ForgetGivenOutcomes, &[22, 163]);
}

#[test]
fn a_slot_served_by_two_servers_is_noticed() {
    is_noticed(Sabotage::KeepGivenSlot, &[0, 1, 2, 6]);
}

#[test]
fn entries_that_the_home_of_their_directory_does_not_know_are_noticed() {
    is_noticed(Sabotage::ForgetNewHolder, &[19, 26, 32, 33]);
}

#[test]
fn opens_left_behind_are_noticed() {
    is_noticed(Sabotage::KeepOpens, &[20, 36, 55, 102]);
}

#[test]
fn a_slot_given_under_work_is_noticed() {
    is_noticed(Sabotage::SkipDrain, &[9, 68, 70, 87]);
}

#[test]
fn sessions_that_end_at_the_giver_only_are_noticed() {
    is_noticed(Sabotage::ForgetHeirs, &[562]);
}
