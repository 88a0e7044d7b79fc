//! Remove one protection from the servers of a persistent volume, and a named seed of the simulation
//! fails; with all protections it passes. A seed notices this only as long as nothing changes the
//! order of events: where none of the named ones notices any more, the first that does is looked for, and
//! its name is printed. To find more of them:
//! `cargo run --release -p aze-sim -- --persistent KIND --seeds 300 --without PROTECTION`.

use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::persistence::{KINDS, PersistentPlan, run};

/// Seeds that are looked through when no named one notices.
const SEARCHED: u64 = 600;

fn fails(plan: &PersistentPlan) -> Option<String> {
    match std::panic::catch_unwind(|| run(plan, false)) {
        Ok(violations) => violations.first().cloned(),
        // A server that loses a protection may also break one of its own assertions.
        Err(_) => Some("a panic".into()),
    }
}

fn is_noticed(removed: Sabotage, kind: &str, seeds: &[u64]) {
    let (_, plan_of) = KINDS.into_iter().find(|(name, _)| *name == kind).expect("a kind of plans");
    let notices = |seed: u64| fails(&PersistentPlan { switches: Switches::without(removed), ..plan_of(seed) });
    for seed in seeds.iter().copied().chain((0..SEARCHED).filter(|seed| !seeds.contains(seed))) {
        let Some(how) = notices(seed) else { continue };
        println!("{removed:?}: seed {seed} of '{kind}' notices: {how}");
        assert_eq!(fails(&plan_of(seed)), None, "seed {seed} of '{kind}' with all protections");
        if !seeds.contains(&seed) {
            println!("none of the seeds {seeds:?} notices any more: name this one");
        }
        return;
    }
    panic!("no seed of '{kind}' notices {removed:?}");
}

#[test]
fn a_sync_that_does_not_wait_for_the_disk_is_noticed() {
    is_noticed(Sabotage::SkipSync, "ending", &[55, 7, 15]);
}

#[test]
fn answers_that_do_not_wait_for_the_journal_are_noticed() {
    is_noticed(Sabotage::SkipJournalWait, "ending", &[4, 5, 6]);
}

#[test]
fn a_server_that_builds_on_what_another_may_lose_is_noticed() {
    is_noticed(Sabotage::SkipDurableAnswers, "ending", &[6, 12, 21]);
}

#[test]
fn a_server_that_is_told_what_its_teller_may_lose_is_noticed() {
    is_noticed(Sabotage::SkipDurableBefore, "ending", &[12, 0, 4]);
}

#[test]
fn a_checkpoint_that_is_there_before_its_segments_is_noticed() {
    is_noticed(Sabotage::SkipSegmentSync, "ending", &[4, 5, 6]);
}

#[test]
fn a_checkpoint_that_is_there_before_its_journal_is_noticed() {
    is_noticed(Sabotage::SkipCheckpointWait, "renaming", &[6]);
}

#[test]
fn a_checkpoint_that_lists_renames_before_it_looks_is_noticed() {
    is_noticed(Sabotage::ListRenamesFirst, "renaming", &[228, 741, 988]);
}

#[test]
fn places_that_are_given_out_again_too_early_are_noticed() {
    is_noticed(Sabotage::FreePlacesEarly, "ending", &[2, 3, 7]);
}

#[test]
fn an_old_name_that_stays_after_its_rename_is_noticed() {
    is_noticed(Sabotage::ForgetOldName, "ending", &[0, 2, 6, 13]);
}

#[test]
fn a_journal_that_is_done_again_from_before_the_checkpoint_is_noticed() {
    is_noticed(Sabotage::ReplayAll, "ending", &[2, 3, 4]);
}

#[test]
fn truncations_that_a_start_forgets_are_noticed() {
    is_noticed(Sabotage::ForgetTruncations, "ending", &[0, 2, 3]);
}

#[test]
fn inode_numbers_that_are_given_out_twice_are_noticed() {
    is_noticed(Sabotage::ReuseInos, "ending", &[6, 8, 16]);
}

#[test]
fn link_counts_that_a_start_does_not_set_are_noticed() {
    is_noticed(Sabotage::SkipLinkCount, "ending", &[13, 6, 19, 21]);
}

#[test]
fn data_that_a_start_leaves_without_a_file_are_noticed() {
    is_noticed(Sabotage::KeepStrays, "ending", &[45, 12, 41]);
}
