//! Slots of volumes in directories move, and servers join and leave, while everything ends at any moment, or servers
//! die and come back: every promised change is there, once, and served by one server. `AZE_SIM_SEEDS` sets how many
//! seeds, `AZE_SIM_FROM` the first, `AZE_SIM_TRACE=1` tells what happened.

use crate::many::{caught, number};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::persistence::{PersistentPlan, PlanOf, run, run_counting};

/// Seeds on every change.
const SEEDS: u64 = 40;

/// Gives how many runs there were, and in them how many servers have left that counted the starts.
fn all_pass(plan_of: PlanOf) -> (u64, u64) {
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", SEEDS));
    let verbose = number("AZE_SIM_TRACE", 0) == 1;
    let (mut failures, mut moved, mut firsts, mut runs) = (Vec::new(), 0, 0, 0);
    for seed in from..from + count {
        let plan = plan_of(seed);
        let first = match caught(|| run_counting(&plan, verbose)) {
            Ok((violations, counts)) => {
                (moved, runs) = (moved + counts.moved.into_inner(), runs + 1);
                firsts += counts.firsts.into_inner();
                violations.into_iter().next()
            }
            Err(panic) => Some(panic),
        };
        failures.extend(first.map(|first| format!("{plan:?}: {first}")));
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
    println!("{moved} slots have moved in {runs} runs, and {firsts} servers have left that counted the starts");
    assert_eq!(runs, count);
    assert!(runs < 5 || moved >= 2 * runs, "{moved} slots have moved in {runs} runs: they prove nothing");
    (runs, firsts)
}

#[test]
fn what_was_promised_is_there_after_every_end_of_a_move() {
    let _ = all_pass(PersistentPlan::moving);
}

#[test]
fn servers_that_die_in_a_move_come_back_alone() {
    let _ = all_pass(PersistentPlan::moving_alone);
}

/// In this seed a server refuses a close, since slots have moved, and dies before it can tell the client the newer map: another one has the
/// slot of the file, which is open there and has no name.
#[test]
fn a_close_reaches_whoever_has_the_slot_of_a_server_that_has_died() {
    assert_eq!(run(&PersistentPlan::moving_alone(220), false), Vec::<String>::new());
}

/// In this seed a server dies before it has answered a close, and only later it is decided that another one has the slot.
#[test]
fn a_close_reaches_whoever_gets_the_slot_of_a_server_that_has_died() {
    assert_eq!(run(&PersistentPlan::moving_alone(25), false), Vec::<String>::new());
}

/// In this seed the taker of a slot gets parts of a file several times, and the file is cut before it gets the rest.
#[test]
fn what_a_taker_has_got_of_a_file_is_forgotten_before_it_gets_that_again() {
    assert_eq!(run(&PersistentPlan::moving_alone(7), false), Vec::<String>::new());
}

/// In this seed a server that comes back, and has no map yet, is told of a truncation.
#[test]
fn who_comes_back_hears_of_truncations_whenever_it_is_told() {
    assert_eq!(run(&PersistentPlan::moving_alone(194), false), Vec::<String>::new());
}

/// Servers that count the starts leave, one after the other, and everything ends at any moment of that: the next start finds who counts.
#[test]
fn whoever_counts_the_starts_may_leave_at_any_moment() {
    let (runs, firsts) = all_pass(PersistentPlan::first_leaving);
    assert!(runs < 5 || firsts >= runs, "{firsts} have left in {runs} runs: they prove nothing");
}

fn fails(plan: &PersistentPlan) -> Option<String> {
    match caught(|| run(plan, false)) {
        Ok(violations) => violations.first().cloned(),
        // A server that loses a protection may also break one of its own assertions.
        Err(panic) => Some(panic),
    }
}

/// Seeds that are looked through when no named one notices.
const SEARCHED: u64 = 400;

fn is_noticed(removed: Sabotage, plan_of: PlanOf, seeds: &[u64]) {
    let notices = |seed: u64| fails(&PersistentPlan { switches: Switches::without(removed), ..plan_of(seed) });
    for seed in seeds.iter().copied().chain((0..SEARCHED).filter(|seed| !seeds.contains(seed))) {
        let Some(how) = notices(seed) else { continue };
        println!("{removed:?}: seed {seed} notices: {how}");
        assert_eq!(fails(&plan_of(seed)), None, "seed {seed} with all protections");
        if !seeds.contains(&seed) {
            println!("none of the seeds {seeds:?} notices any more: name this one");
        }
        return;
    }
    panic!("no seed notices {removed:?}");
}

#[test]
fn a_move_that_is_told_before_it_is_on_disks_is_noticed() {
    is_noticed(Sabotage::PromiseUnsaved, PersistentPlan::moving, &[0]);
}

#[test]
fn a_slot_that_its_taker_has_in_memory_only_is_noticed() {
    is_noticed(Sabotage::TakeUnsaved, PersistentPlan::moving, &[0]);
}

#[test]
fn a_slot_that_its_giver_lets_go_of_before_the_decision_is_noticed() {
    is_noticed(Sabotage::FreeUndecided, PersistentPlan::moving, &[74]);
}

#[test]
fn a_server_that_is_to_count_the_starts_and_has_not_heard_of_it_is_noticed() {
    is_noticed(Sabotage::LeaveUncounted, PersistentPlan::first_leaving, &[7]);
}

#[test]
fn a_slot_that_is_served_from_an_old_directory_is_noticed() {
    is_noticed(Sabotage::ServeOld, PersistentPlan::moving, &[0]);
}
