//! Remove one protection from the servers, and named seeds of the simulation fail; with all
//! protections they pass. A seed notices this only as long as nothing changes the order of
//! events, so each protection has several seeds, and one that fails is enough. To find new ones:
//! `cargo run -p aze-sim -- --seeds 100 --without PROTECTION`.

use aze_proto::slots::Placement;
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::{Plan, run_plan};

fn fails(plan: &Plan) -> Option<String> {
    let outcome = std::panic::catch_unwind(|| run_plan(plan.clone(), false));
    match outcome {
        Ok(outcome) => outcome.violations.first().cloned(),
        // A server that loses a protection may also break one of its own assertions.
        Err(_) => Some("a panic".into()),
    }
}

fn is_noticed(sabotage: Sabotage, seeds: &[u64]) {
    is_noticed_with(sabotage, 0, seeds);
}

fn is_noticed_with(sabotage: Sabotage, published_bytes: u64, seeds: &[u64]) {
    let plan = |seed: &u64| Plan {
        placement: Placement::Modular,
        published_bytes,
        share_bytes_min: None,
        large_chunks: false,
        slow_payloads: None,
        exchanges: false,
        checks: false,
        ..Plan::of(*seed)
    };
    for seed in seeds {
        assert_eq!(fails(&plan(seed)), None, "seed {seed} with all protections");
    }
    let noticed = seeds.iter().filter_map(|seed| fails(&plan(seed).with(Switches::without(sabotage)))).count();
    assert!(noticed > 0, "none of the seeds {seeds:?} notices {sabotage:?}");
    println!("{sabotage:?}: noticed by {noticed} of {} seeds", seeds.len());
}

#[test]
fn changes_done_twice_are_noticed() {
    is_noticed(Sabotage::SkipDuplicateCheck, &[2, 24, 37, 47]);
}

#[test]
fn paths_that_are_no_longer_are_noticed() {
    is_noticed(Sabotage::SkipNamespaceEpochCheck, &[14, 32, 49, 53]);
}

#[test]
fn directories_removed_with_entries_in_them_are_noticed() {
    is_noticed(Sabotage::SkipDirectoryClose, &[0, 6, 13, 31]);
}

#[test]
fn zeros_from_a_server_that_lost_its_data_are_noticed() {
    is_noticed(Sabotage::SkipBornCheck, &[3, 17, 23, 42]);
}

#[test]
fn data_that_outlive_a_truncation_are_noticed() {
    is_noticed(Sabotage::SkipTruncation, &[123, 265, 271, 364, 374, 397]);
}

/// Servers of a file's later chunks are told, too.
#[test]
fn data_beyond_a_short_reach_are_noticed() {
    is_noticed(Sabotage::ShortReach, &[0, 1, 2, 5, 8, 9]);
}

#[test]
fn half_a_rename_is_noticed() {
    is_noticed(Sabotage::SkipEntryLock, &[175, 368, 377, 491, 658]);
}

#[test]
fn old_news_on_a_published_index_are_noticed() {
    is_noticed_with(Sabotage::SkipPublishedClear, 1 << 20, &[0, 1, 2, 3, 4, 5]);
}

#[test]
fn names_that_are_not_counted_are_noticed() {
    is_noticed_with(Sabotage::SkipPublishedCount, 1 << 20, &[0, 1, 2, 3, 4, 5]);
}
