//! The program that stages, from one seed: every line of a receipt was true at its moment, and nothing dirty is ever dropped, while
//! programs write, everybody is killed, and the destination fails.

use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::staging::{Counts, Missing, StagingPlan, run};

/// Seeds of the short form; `aze-sim --staging --seeds N` runs more.
const SEEDS: u64 = 40;

/// The same of stages into a volume; `aze-sim --staging --in --seeds N` runs more.
const SEEDS_IN: u64 = 30;

/// The same of stages in rounds; `aze-sim --staging --rounds --seeds N` runs more.
const SEEDS_IN_ROUNDS: u64 = 40;

/// The same by several nodes; `aze-sim --staging --nodes --seeds N` runs more.
const SEEDS_BY_NODES: u64 = 60;

/// The same by several nodes in rounds; `aze-sim --staging --rounds --nodes --seeds N` runs more.
const SEEDS_BY_NODES_IN_ROUNDS: u64 = 20;

/// The same by several nodes into a volume; `aze-sim --staging --in --nodes --seeds N` runs more.
const SEEDS_BY_NODES_IN: u64 = 20;

#[test]
fn lines_of_receipts_were_true_and_nothing_dirty_is_dropped() {
    let mut all = Counts::default();
    let mut with_links = [0; 2];
    for seed in 0..SEEDS {
        let plan = StagingPlan::of(seed);
        with_links[usize::from(plan.is_over_directory)] += u64::from(plan.links);
        let outcome = run(&plan, false);
        assert_eq!(outcome.wrong, [""; 0], "seed {seed}: aze-sim --staging --seed {seed} --trace");
        all += outcome.counts;
    }
    let counts = [all.changes, all.kills, all.receipts, all.lines, all.removals, all.released, all.drained];
    let least = [2000, 40, 100, 500, 5, 5, 20];
    assert!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{all:?}");
    assert!(with_links.iter().all(|runs| *runs >= 3), "{with_links:?}");
    assert!(all.conflicts <= 4, "{all:?}");
    assert!(all.power_cuts > 5 && all.servers_killed > 5 && all.staged > 20, "{all:?}");
    assert!(all.warmed > 500, "names are taken over before they are used: {all:?}");
}

/// A program gives a file, which has not changed since its place below got it, a further name: it is one file there. A program
/// gives the name of a link to a file right when the stage has read the link back: the receipt has no line for it.
#[test]
fn seeds_that_found_defects_pass() {
    let outcome = run(&StagingPlan::of(1135), false);
    assert_eq!(outcome.wrong, [""; 0], "aze-sim --staging --seed 1135 --trace");
    let outcome = run(&StagingPlan::inward(9_110_099), false);
    assert_eq!(outcome.wrong, [""; 0], "aze-sim --staging --in --seed 9110099 --trace");
}

#[test]
fn what_is_staged_in_is_whole_and_dirty_once_a_program_changes_it() {
    let mut all = Counts::default();
    let mut plans = [0; 3];
    for seed in 0..SEEDS_IN {
        let plan = StagingPlan::inward(seed);
        let kinds = [plan.atomic, plan.links, plan.durability.is_none()];
        plans.iter_mut().zip(kinds).for_each(|(count, is_so)| *count += u64::from(is_so));
        let outcome = run(&plan, false);
        assert_eq!(outcome.wrong, [""; 0], "seed {seed}: aze-sim --staging --in --seed {seed} --trace");
        all += outcome.counts;
    }
    let counts = [all.changes, all.underneath, all.kills, all.receipts, all.lines, all.found, all.dirty, all.staged];
    let least = [1000, 1000, 30, 80, 800, 800, 150, 200];
    assert!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{all:?}");
    assert!(all.removals > 5 && all.servers_killed > 20, "{all:?}");
    assert!(plans.iter().all(|runs| *runs >= 3), "{plans:?}");
}

#[test]
fn rounds_leave_open_files_to_the_last_one_and_that_is_in_time() {
    let mut all = Counts::default();
    for seed in 0..SEEDS_IN_ROUNDS {
        let outcome = run(&StagingPlan::in_rounds(seed), false);
        assert_eq!(outcome.wrong, [""; 0], "seed {seed}: aze-sim --staging --rounds --seed {seed} --trace");
        all += outcome.counts;
    }
    let counts = [all.changes, all.kills, all.receipts, all.lines, all.rounds, all.broken_off, all.open];
    let least = [2000, 30, 150, 500, 200, 10, 20];
    assert!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{all:?}");
    assert!(all.in_time > 4 * all.late, "{all:?}");
}

#[test]
fn rounds_that_take_open_files_are_noticed() {
    let is_noticed = |plan: StagingPlan| !run(&plan, false).wrong.is_empty();
    let switches = Switches::without(Sabotage::ForgetWriters);
    let forgetful = |seed| StagingPlan { switches, ..StagingPlan::in_rounds(seed) };
    assert!((0..60).map(forgetful).any(is_noticed));
}

#[test]
fn other_nodes_copy_and_read_back_while_they_are_killed_and_stand_still() {
    let mut all = Counts::default();
    // The last two have found that the file by which nodes know the destination was left there; so has 21.
    for seed in (0..SEEDS_BY_NODES).chain([105, 110]) {
        let outcome = run(&StagingPlan::by_nodes(seed), false);
        assert_eq!(outcome.wrong, [""; 0], "seed {seed}: aze-sim --staging --nodes --seed {seed} --trace");
        all += outcome.counts;
    }
    let counts =
        [all.kills, all.lines, all.workers_killed, all.workers_stopped, all.refused, all.by_others, all.staged];
    let least = [30, 500, 10, 5, 5, 100, 20];
    assert!(all.lines_cut > 5 && all.commands_stopped > 5, "{all:?}");
    assert!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{all:?}");
}

#[test]
fn other_nodes_copy_in_rounds_and_into_a_volume_too() {
    let in_rounds = |seed| (StagingPlan::in_rounds(seed).with_nodes(), "--rounds");
    let inward = |seed| (StagingPlan::inward(seed).with_nodes(), "--in");
    let all = [
        (0..SEEDS_BY_NODES_IN_ROUNDS).map(in_rounds).collect::<Vec<_>>(),
        (0..SEEDS_BY_NODES_IN).map(inward).collect(),
    ];
    let sums = all.map(|plans| {
        plans.into_iter().fold(Counts::default(), |mut all, (plan, how)| {
            let outcome = run(&plan, false);
            let seed = plan.seed;
            assert_eq!(outcome.wrong, [""; 0], "seed {seed}: aze-sim --staging {how} --nodes --seed {seed} --trace");
            all += outcome.counts;
            all
        })
    });
    for all in &sums {
        let counts =
            [all.kills, all.lines, all.workers_killed, all.workers_stopped, all.lines_cut, all.commands_stopped];
        let least = [5, 200, 5, 1, 5, 5];
        assert!(counts.iter().zip(least).all(|(count, least)| *count >= least), "{all:?}");
    }
    let [in_rounds, inward] = sums;
    assert!(in_rounds.rounds > 100 && in_rounds.by_others > 20, "{in_rounds:?}");
    assert!(inward.found > 100 && inward.dirty > 20, "{inward:?}");
}

/// A command that was stopped for longer than it waits for workers has not read yet what they have said meanwhile.
#[test]
fn a_command_that_was_stopped_gives_no_worker_up() {
    // The first was told that workers had not started in time, since the command was stopped meanwhile. The others notice a command that
    // does not know that it was stopped when it looks how long workers have been silent.
    let inward = [10, 28, 65].map(|seed| StagingPlan::inward(seed).with_nodes());
    for plan in inward.into_iter().chain([26, 48].map(StagingPlan::by_nodes)) {
        let outcome = run(&plan, false);
        assert_eq!(outcome.wrong, [""; 0], "{plan:?}");
        assert!(outcome.counts.commands_stopped > 0, "{plan:?}: {:?}", outcome.counts);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let plans = [2, 3, 11].map(StagingPlan::of).into_iter().chain([1, 2].map(StagingPlan::inward));
    // In seeds 3 and 5 workers were woken by the threads of a command that was killed, in the order in which the machine ran these.
    let by_nodes = [3, 4, 5].map(StagingPlan::inward).into_iter().chain([StagingPlan::in_rounds(3)]);
    let by_nodes = by_nodes.map(StagingPlan::with_nodes);
    let plans = plans.chain([1, 2].map(StagingPlan::in_rounds)).chain(by_nodes);
    for plan in plans.chain([1, 2].map(StagingPlan::by_nodes)) {
        let [one, other] = [(); 2].map(|()| run(&plan, false).trace_hash);
        assert_eq!(one, other, "{plan:?}");
    }
}

#[test]
fn a_source_whose_times_stand_still_is_noticed() {
    let plan = |seed| StagingPlan { without: Some(Missing::ChangeTimes), ..StagingPlan::inward(seed) };
    assert!((0..20).any(|seed| !run(&plan(seed), false).wrong.is_empty()));
}

#[test]
fn rounds_that_are_not_broken_off_when_the_last_one_is_due_are_noticed() {
    let plan = StagingPlan { without: Some(Missing::BreakingOff), ..StagingPlan::in_rounds(42) };
    assert!(!run(&plan, false).wrong.is_empty());
}

/// A program writes to one server after the other while a file is copied: the copy would be of no moment.
#[test]
fn counts_of_changes_that_do_not_move_are_noticed() {
    let switches = Switches::without(Sabotage::CountNoChanges);
    assert!(!run(&StagingPlan { switches, ..StagingPlan::of(14) }, false).wrong.is_empty());
}

#[test]
fn reading_back_from_the_page_cache_of_the_node_that_wrote_is_noticed() {
    // One run of about eighty shows it; the first that does is the 101st here.
    let plan = |seed| StagingPlan { without: Some(Missing::ReadFromStorage), ..StagingPlan::of(seed) };
    let found = (100..400).find(|seed| !run(&plan(*seed), false).wrong.is_empty());
    assert!(found.is_some(), "it is not noticed");
}

#[test]
fn a_place_without_what_a_stage_relies_on_is_noticed() {
    for left_out in [Missing::SyncOfFiles, Missing::SyncOfNames, Missing::OwnNames] {
        let plan = |seed| StagingPlan { without: Some(left_out), ..StagingPlan::of(seed) };
        let found = (0..60).find(|seed| !run(&plan(*seed), false).wrong.is_empty());
        assert!(found.is_some(), "{left_out:?} is not noticed");
    }
}
