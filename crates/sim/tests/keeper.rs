//! The keeper of the map dies, or is cut off, and another server keeps it.

use crate::many::{caught, number};
use crate::support::{ROOT, create, with_cluster};
use aze_client::Client;
use aze_io::sim::Link;
use aze_proto::{Code, FileKind, Ino, Name, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use aze_sim::keepers::run as keepers_run;
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::time::Duration;

/// Until a rename of a directory is done that was asked for when the keeper had died.
const TAKEOVER_TIME_MAX: Duration = Duration::from_secs(2);

/// The `number`-th name in a directory whose entry is on a server.
fn name_at(client: &Client, dir: Ino, server: u16, number: usize) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(dir, name).shard(map.shards())) == Some(ServerIndex(server));
    let mut names = (0..4096).map(|index| crate::support::name(&format!("n{index}"))).filter(is_there);
    names.nth(number).expect("of so many names some are there")
}

async fn make_dir(client: &Client, parent: Ino, name: &Name) -> Ino {
    let made = client.create(&ROOT, parent, name, &new_file(FileKind::Directory, true)).await;
    made.expect("a quiet cluster makes names").attr.ino
}

/// A directory whose home is one of these servers.
async fn dir_at(client: &Client, servers: &[u16], from: usize) -> Ino {
    for number in from..from + 64 {
        let dir = make_dir(client, Ino::ROOT, &name_at(client, Ino::ROOT, servers[0], number)).await;
        if client.map().home_of(dir).is_some_and(|home| servers.contains(&home.0)) {
            return dir;
        }
    }
    panic!("of so many directories none has its home on one of the servers {servers:?}");
}

/// Moves a directory between two others that have nothing to do with server 0.
async fn move_dir(client: &Client, from: (Ino, &Name), to: (Ino, &Name)) -> Result<(), aze_proto::Failure> {
    client.rename(&ROOT, from.0, from.1, to.0, to.1, false).await
}

#[test]
fn directories_are_renamed_and_moved_when_the_keeper_has_ended() {
    with_cluster(3, |cluster, client| async move {
        let (one, two) = (dir_at(&client, &[1, 2], 0).await, dir_at(&client, &[1, 2], 64).await);
        let (old, new) = (name_at(&client, one, 1, 0), name_at(&client, two, 2, 0));
        let next = name_at(&client, two, 1, 1);
        make_dir(&client, one, &old).await;
        // Who is connected to a server sees its end.
        client.status().await;
        cluster.kill_server(0, false);
        let began_ns = cluster.sim.now_ns();
        assert_eq!(move_dir(&client, (one, &old), (two, &new)).await, Ok(()));
        let took = Duration::from_nanos(cluster.sim.now_ns() - began_ns);
        assert!(took < TAKEOVER_TIME_MAX, "{took:?}");
        assert_eq!(move_dir(&client, (two, &new), (two, &next)).await, Ok(()));
        let map = cluster.server(1).expect("it runs").map();
        assert!(map.keeper == ServerIndex(1) && map.is_gone(ServerIndex(0)), "{map:?}");
        assert_eq!(map.group.members.len(), 1, "of two servers one decides");
    });
}

/// No process has seen its end: it may still serve. So nothing is renamed, but everything else is decided.
#[test]
fn a_keeper_that_is_silent_is_replaced_and_named() {
    with_cluster(4, |cluster, client| async move {
        let (one, two) = (dir_at(&client, &[1, 2], 0).await, dir_at(&client, &[1, 2], 64).await);
        let (old, new) = (name_at(&client, one, 1, 0), name_at(&client, two, 2, 0));
        make_dir(&client, one, &old).await;
        cluster.kill_server(0, true);
        let failure = move_dir(&client, (one, &old), (two, &new)).await.expect_err("server 0 may serve clients");
        assert!(failure.detail.contains("server 0"), "{failure}");
        let map = cluster.server(1).expect("it runs").map();
        assert!(map.keeper != ServerIndex(0) && !map.is_gone(ServerIndex(0)), "{map:?}");
        client.status().await;
        cluster.kill_server(3, false);
        cluster.sim.sleep(Duration::from_secs(3)).await;
        assert!(cluster.server(1).expect("it runs").map().is_gone(ServerIndex(3)), "its end is noted");
    });
}

fn keepers(cluster: &Cluster) -> Vec<ServerIndex> {
    cluster.servers().iter().map(|server| server.map().keeper).collect()
}

/// The other two decide; the one that was cut off decides nothing, and learns of that.
#[test]
fn a_keeper_that_is_cut_off_decides_nothing_more() {
    with_cluster(3, |cluster, client| async move {
        for other in ["s1", "s2", "c0"] {
            cluster.sim.set_link("s0", other, Link::Down);
            cluster.sim.set_link(other, "s0", Link::Down);
        }
        let one = ServerIndex(1);
        let stale = cluster.server(0).expect("it runs");
        let moving = stale.clone();
        let alone = cluster.sim.node("s0");
        let (done, result) = futures_channel::oneshot::channel();
        alone.spawn(async move {
            // An error means that the run is over.
            let _ = done.send(moving.leave(&[ServerIndex(2)]).await);
        });
        let failure = client.balance().await;
        assert_eq!(failure, Ok(0), "another keeper has answered");
        assert!(result.await.expect("it runs").is_err());
        assert_eq!(keepers(&cluster), [ServerIndex(0), one, one]);
        cluster.sim.heal();
        cluster.sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(keepers(&cluster), [one, one, one]);
        let root = name_at(&client, Ino::ROOT, 0, 0);
        make_dir(&client, Ino::ROOT, &root).await;
        let other = name_at(&client, Ino::ROOT, 1, 0);
        assert_eq!(move_dir(&client, (Ino::ROOT, &root), (Ino::ROOT, &other)).await, Ok(()));
    });
}

/// Of three members one is left: then nothing is decided, and all else goes on.
#[test]
fn without_a_majority_nothing_is_decided_and_all_else_goes_on() {
    with_cluster(3, |cluster, client| async move {
        let dir = dir_at(&client, &[2], 0).await;
        let (old, new) = (name_at(&client, dir, 2, 0), name_at(&client, dir, 2, 1));
        make_dir(&client, dir, &old).await;
        cluster.kill_server(1, true);
        cluster.kill_server(0, true);
        let failure = move_dir(&client, (dir, &old), (dir, &new)).await.expect_err("nobody decides");
        assert!(failure.detail.contains("2 of its 3 members (servers 0, 1, 2) have to answer"), "{failure}");
        let failure = client.balance().await.expect_err("nobody decides");
        assert!(failure.is_silence(), "{failure}");
        let file = name_at(&client, dir, 2, 2);
        create(&client, dir, &file.to_string()).await.close().await.expect("it is served");
        assert_eq!(client.rename(&ROOT, dir, &file, dir, &name_at(&client, dir, 2, 3), false).await, Ok(()));
    });
}

/// Nothing is sent by servers that wait for a keeper which is gone.
#[test]
fn a_group_without_a_majority_is_silent_when_nobody_asks() {
    with_cluster(3, |cluster, _client| async move {
        cluster.kill_server(1, true);
        cluster.kill_server(0, false);
        cluster.sim.sleep(Duration::from_secs(120)).await;
        let before = cluster.sim.counters().frames_sent;
        cluster.sim.sleep(Duration::from_secs(600)).await;
        assert_eq!(cluster.sim.counters().frames_sent, before);
    });
}

/// Who keeps the map leaves like any other, and hands that over first.
#[test]
fn the_keeper_leaves() {
    for servers in [2, 3, 5] {
        with_cluster(servers, move |cluster, client| async move {
            let dir = make_dir(&client, Ino::ROOT, &name_at(&client, Ino::ROOT, 0, 0)).await;
            let leaver = ServerIndex(0);
            let left = leave(&cluster, &client, leaver).await;
            assert_eq!(left, Ok(()));
            cluster.sim.sleep(Duration::from_secs(20)).await;
            cluster.kill_server(0, false);
            let map = cluster.server(1).expect("it runs").map();
            assert!(map.has_left(leaver) && map.keeper == ServerIndex(1), "{map:?}");
            let (old, new) = (name_at(&client, dir, 1, 0), name_at(&client, Ino::ROOT, 1, 1));
            make_dir(&client, dir, &old).await;
            assert_eq!(move_dir(&client, (dir, &old), (Ino::ROOT, &new)).await, Ok(()));
        });
    }
}

async fn leave(cluster: &Arc<Cluster>, client: &Client, server: ServerIndex) -> Result<(), aze_proto::Failure> {
    loop {
        match client.leave(&[server]).await {
            Ok((_, staying)) if staying.is_empty() => return Ok(()),
            Ok(_) => {}
            Err(failure) if failure.code == Code::Busy => cluster.sim.sleep(Duration::from_millis(20)).await,
            Err(failure) => return Err(failure),
        }
    }
}

/// Seeds on every change.
const SEEDS: u64 = 60;

/// A crowd, and keepers that die, are cut off and hand over. `AZE_SIM_SEEDS` sets how many seeds, `AZE_SIM_FROM` the first.
#[test]
fn directories_move_while_keepers_come_and_go() {
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", SEEDS));
    let (mut failures, mut moves, mut keepers, mut unseen) = (Vec::new(), 0, 0, 0);
    for seed in from..from + count {
        match caught(|| keepers_run(seed, Switches::default())) {
            Ok(crowd) => {
                moves += crowd.moves;
                keepers += crowd.keepers;
                unseen += u64::from(crowd.unseen);
                failures.extend(crowd.violations.first().map(|first| format!("seed {seed}: {first}")));
            }
            Err(panic) => failures.push(format!("seed {seed}: {panic}")),
        }
    }
    println!("{moves} moves, {keepers} times another keeper, {unseen} deaths unseen in {count} runs");
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
    assert!(moves > 20 * count && keepers > 2 * count, "{moves} moves, {keepers} keepers: they prove nothing");
    assert!(unseen <= count / 5, "{unseen} of {count}: renames did not go on");
}

#[test]
fn a_seed_is_one_run() {
    let [one, other] = [(); 2].map(|()| keepers_run(3, Switches::default()).trace_hash);
    assert_eq!(one, other);
}

/// A client that has been through a directory goes the old way no more after its rename, under any keeper.
fn old_ways(switches: Switches) -> Vec<String> {
    let found = Arc::new(aze_io::sync::Mutex::new(Vec::new()));
    let noted = found.clone();
    crate::support::with_layout(Layout { switches, ..Layout::of(3) }, |cluster, client| async move {
        let other = cluster.connect(1).await.expect("a quiet cluster connects");
        let (old, new) = (name_at(&client, Ino::ROOT, 0, 0), name_at(&client, Ino::ROOT, 1, 0));
        let dir = make_dir(&client, Ino::ROOT, &old).await;
        make_dir(&client, dir, &crate::support::name("inner")).await;
        for keeper in [ServerIndex(1), ServerIndex(2), ServerIndex(0)] {
            let path = format!("/{old}/inner").into_bytes();
            other.resolve(&ROOT, &path, true).await.expect("it is there");
            assert_eq!(move_dir(&client, (Ino::ROOT, &old), (Ino::ROOT, &new)).await, Ok(()));
            if other.resolve(&ROOT, &path, true).await.is_ok() {
                noted.lock().push(format!("before server {keeper}: the old way leads there"));
            }
            assert_eq!(move_dir(&client, (Ino::ROOT, &new), (Ino::ROOT, &old)).await, Ok(()));
            let before = keepers(&cluster)[0];
            let running = cluster.server(before.0).expect("it runs");
            let (done, result) = futures_channel::oneshot::channel();
            cluster.sim.node(&format!("s{before}")).spawn(async move {
                // An error means that the run is over.
                let _ = done.send(running.hand_over_to(keeper).await);
            });
            assert_eq!(result.await, Ok(Ok(())));
            cluster.sim.sleep(Duration::from_secs(1)).await;
            assert_eq!(keepers(&cluster), [keeper; 3]);
        }
    });
    found.lock().clone()
}

#[test]
fn nobody_goes_the_old_way_under_another_keeper() {
    assert_eq!(old_ways(Switches::default()), [] as [String; 0]);
    assert!(!old_ways(Switches::without(Sabotage::TakeOverEpoch)).is_empty(), "it is noticed");
}

/// One of these seeds fails without a protection.
fn is_noticed(sabotage: Sabotage, seeds: &[u64]) {
    let fails = |seed: &u64, switches| match caught(|| keepers_run(*seed, switches)) {
        Ok(crowd) => crowd.violations.first().cloned(),
        Err(panic) => Some(panic),
    };
    let noticed: Vec<&u64> = seeds.iter().filter(|seed| fails(seed, Switches::without(sabotage)).is_some()).collect();
    assert!(!noticed.is_empty(), "{sabotage:?} is not noticed by any of {seeds:?}");
    for seed in noticed {
        assert_eq!(fails(seed, Switches::default()), None, "seed {seed} fails in any case");
    }
}

#[test]
fn tokens_that_are_not_asked_for_are_noticed() {
    is_noticed(Sabotage::TakeOverTokens, &[85, 113, 232, 246]);
}

/// Whether a keeper that reaches no other member decides.
fn decides_alone(switches: Switches) -> bool {
    let has_decided = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let noted = has_decided.clone();
    crate::support::with_layout(Layout { switches, ..Layout::of(3) }, |cluster, _client| async move {
        let hand_over = async |heir| {
            let (done, result) = futures_channel::oneshot::channel();
            let keeper = cluster.server(0).expect("it runs");
            cluster.sim.node("s0").spawn(async move {
                // An error means that the run is over.
                let _ = done.send(keeper.hand_over_to(heir).await);
            });
            result.await.expect("it runs")
        };
        // From here on it leads the group.
        assert_eq!(hand_over(ServerIndex(0)).await, Ok(()));
        for other in ["s1", "s2"] {
            cluster.sim.set_link("s0", other, Link::Down);
        }
        let answer = hand_over(ServerIndex(2)).await;
        noted.store(answer.is_ok() || keepers(&cluster)[0] != ServerIndex(0), std::sync::atomic::Ordering::Relaxed);
    });
    has_decided.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn decisions_of_one_alone_are_noticed() {
    assert!(!decides_alone(Switches::default()));
    assert!(decides_alone(Switches::without(Sabotage::DecideAlone)), "it is noticed");
}
