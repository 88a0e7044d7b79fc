//! The home of a directory counts on what holders have said of their parts, until they tell it of a change: answered
//! changes show, and directories that are looked at under work are at the end as they say, with faults, while slots
//! move, and while servers leave and join.

use crate::support::{ROOT, name, with_cluster};
use aze_client::Client;
use aze_proto::{FileKind, Ino, Name, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::work::shared::new_file;
use aze_sim::{Cluster, Plan, run_plan};
use std::sync::Arc;
use std::time::Duration;

const SERVERS: u16 = 3;

fn fails(plan: Plan) -> Option<String> {
    match std::panic::catch_unwind(|| run_plan(plan, false)) {
        Ok(outcome) => outcome.violations.first().cloned(),
        Err(_) => Some("a panic".into()),
    }
}

/// A new directory whose home is a server.
async fn dir_of(client: &Client, home: u16) -> Ino {
    for index in 0..64 {
        let path = format!("/d{index}");
        let dir = client.mkdir_all(&ROOT, path.as_bytes(), 0o755).await.expect("directories can be made").ino;
        if client.map().home_of(dir) == Some(ServerIndex(home)) {
            return dir;
        }
    }
    panic!("none of 64 directories has its home there");
}

/// A name of a directory whose entry is on a server.
fn name_at(client: &Client, dir: Ino, server: u16, prefix: &str) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(dir, name).shard(map.shards())) == Some(ServerIndex(server));
    (0..256).map(|index| name(&format!("{prefix}{index}"))).find(is_there).expect("of 256 names one is there")
}

/// Makes a file; gives how long that took.
async fn make(cluster: &Cluster, client: &Client, dir: Ino, name: &Name) -> Duration {
    let began_ns = cluster.sim.now_ns();
    client.create(&ROOT, dir, name, &new_file(FileKind::File, true)).await.expect("a new name can be made");
    Duration::from_nanos(cluster.sim.now_ns() - began_ns)
}

async fn entries(client: &Client, dir: Ino) -> u64 {
    client.getattr(&ROOT, dir).await.expect("it is there").size
}

#[test]
fn directories_that_are_looked_at_under_work_are_as_they_say() {
    let plans = [Plan::of, Plan::with_moves, Plan::with_leaving, Plan::with_joining];
    for (seed, plan) in (0..40).zip(plans.into_iter().cycle()) {
        assert_eq!(fails(plan(seed).with_looks()), None, "seed {seed}");
    }
}

/// Runs with looks pass with all protections, and without this one some fail.
fn is_noticed(removed: Sabotage, plan: fn(u64) -> Plan, seeds: &[u64]) {
    for seed in seeds {
        assert_eq!(fails(plan(*seed).with_looks()), None, "seed {seed} with all protections");
    }
    let without = |seed: &u64| fails(plan(*seed).with_looks().with(Switches::without(removed)));
    let noticed: Vec<String> = seeds.iter().filter_map(without).collect();
    assert!(!noticed.is_empty(), "none of the seeds {seeds:?} notices it");
    println!("noticed by {} of {} seeds: {noticed:#?}", noticed.len(), seeds.len());
}

#[test]
fn changes_that_a_home_is_not_told_of_are_noticed() {
    is_noticed(Sabotage::ForgetParts, Plan::of, &[34, 36, 40, 47, 71, 82]);
}

/// A keeper that kept the map again decided a move that another one had given up in between: the giver served the slot again by then, and the
/// taker, too.
#[test]
fn moves_that_another_keeper_has_given_up_are_noticed() {
    is_noticed(Sabotage::DecideGivenUp, Plan::with_leaving, &[121, 234, 506]);
}

/// No client can look at the directory while its home is silent, so that an answer waits for a second, and only the
/// first.
#[test]
fn names_are_made_while_the_home_of_their_directory_is_silent() {
    with_cluster(SERVERS, |cluster: Arc<Cluster>, client: Arc<Client>| async move {
        let dir = dir_of(&client, 2).await;
        make(&cluster, &client, dir, &name_at(&client, dir, 1, "before")).await;
        assert_eq!(entries(&client, dir).await, 1, "its home counts on what server 1 has said");
        cluster.kill_server(2, true);
        let took = make(&cluster, &client, dir, &name_at(&client, dir, 1, "first")).await;
        assert!(took < Duration::from_millis(1_100), "{took:?}");
        let took = make(&cluster, &client, dir, &name_at(&client, dir, 1, "second")).await;
        assert!(took < Duration::from_millis(20), "{took:?}");
    });
}
