//! The keeper of a volume in directories dies, comes back, or ends with everybody: what the group has decided stays decided.

use crate::many::{caught, number};
use crate::support::{ROOT, with_layout};
use aze_client::Client;
use aze_io::sim::{Faults, Link, Sim};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, FileKind, Ino, Name, NameHash, ServerIndex, ShardId, SlotIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use aze_sim::keepers::run_durable;
use aze_sim::work::shared::new_file;
use futures_util::future::join;
use std::sync::Arc;
use std::time::Duration;

/// Until a rename of a directory is done that was asked for when the keeper had died.
const TAKEOVER_TIME_MAX: Duration = Duration::from_secs(3);

fn layout(servers: u16, switches: Switches) -> Layout {
    Layout { durability: Some(Durability::Fsync), switches, ..Layout::of(servers) }
}

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
    made.expect("all servers run").attr.ino
}

/// A directory whose name and home are on a server.
async fn dir_at(client: &Client, server: u16, from: usize) -> Ino {
    for number in from..from + 64 {
        let dir = make_dir(client, Ino::ROOT, &name_at(client, Ino::ROOT, server, number)).await;
        if client.map().home_of(dir) == Some(ServerIndex(server)) {
            return dir;
        }
    }
    panic!("of so many directories none has its home on server {server}");
}

async fn rename(client: &Client, dir: Ino, from: &Name, to: &Name) -> Result<(), Failure> {
    client.rename(&ROOT, dir, from, dir, to, false).await
}

/// Each of three dies in turn, server 0 first: directories are renamed as if it had not, and it comes back.
#[test]
fn each_server_may_die_and_comes_back() {
    with_layout(layout(3, Switches::default()), |cluster, client| async move {
        let mut last = Vec::new();
        for dies in [0, 1, 2, 0] {
            let stays = (dies + 1) % 3;
            let dir = dir_at(&client, stays, 64 * last.len()).await;
            let [old, new, next] = [0, 1, 2].map(|number| name_at(&client, dir, stays, number));
            let inner = make_dir(&client, dir, &old).await;
            if client.map().home_of(inner) == Some(ServerIndex(dies)) {
                // Its parent is written down at its home.
                continue;
            }
            client.status().await;
            cluster.kill_server(dies, false);
            let began_ns = cluster.sim.now_ns();
            assert_eq!(rename(&client, dir, &old, &new).await, Ok(()), "server {dies} is away");
            let took = Duration::from_nanos(cluster.sim.now_ns() - began_ns);
            assert!(took < TAKEOVER_TIME_MAX, "{took:?}");
            // The rename need not have asked it.
            cluster.sim.sleep(TAKEOVER_TIME_MAX).await;
            let map = cluster.newest_map().expect("two run");
            assert!(map.keeper != ServerIndex(dies) && map.is_gone(ServerIndex(dies)), "{map:?}");
            assert_eq!(cluster.bring_back(dies).await, Ok(()));
            let map = cluster.newest_map().expect("all run");
            assert_eq!((map.group.members.len(), map.is_gone(ServerIndex(dies))), (3, false), "{map:?}");
            assert_eq!(rename(&client, dir, &new, &next).await, Ok(()));
            last.push((dir, next, inner));
        }
        assert!(last.len() >= 2, "{last:?}");
        client.sync(&ROOT).await.expect("all run");
        cluster.kill_all(1, true);
        cluster.start().await.expect("all are there");
        let client = cluster.connect(1).await.expect("it is open");
        for (dir, name, inner) in last {
            let found = client.lookup(&ROOT, dir, &name).await.map(|attr| attr.ino);
            assert_eq!(found, Ok(inner));
        }
        assert_eq!(cluster.newest_map().map(|map| map.keeper), Some(ServerIndex(0)));
    });
}

/// Of three members two die: one of them is enough for decisions, with its promises from before.
#[test]
fn two_that_died_at_once_come_back_one_by_one() {
    for (first, second) in [(1, 0), (0, 1), (2, 0)] {
        with_layout(layout(3, Switches::default()), move |cluster, client| async move {
            client.status().await;
            cluster.kill_server(first, false);
            cluster.kill_server(second, false);
            cluster.sim.sleep(Duration::from_secs(3)).await;
            assert_eq!(cluster.bring_back(first).await, Ok(()), "{first}");
            let map = cluster.newest_map().expect("two run");
            assert!(map.is_gone(ServerIndex(second)) && !map.is_gone(map.keeper), "{map:?}");
            assert_eq!(cluster.bring_back(second).await, Ok(()), "{second}");
            let dir = dir_at(&client, first, 0).await;
            let [old, new] = [0, 1].map(|number| name_at(&client, dir, first, number));
            make_dir(&client, dir, &old).await;
            assert_eq!(rename(&client, dir, &old, &new).await, Ok(()));
        });
    }
}

/// Whether two servers come back that were put into the map before either had its answer: another one is slow to confirm, and then the answers
/// are lost. Most seeds lose other messages besides.
fn two_come_back_at_once(seed: u64, switches: Switches) -> Result<Duration, String> {
    let sim = Sim::new(seed, Faults::default());
    // Servers 0 to 2 decide.
    let cluster = Cluster::new(sim.clone(), layout(6, switches));
    let took = sim.block_on(async {
        cluster.start().await.expect("a quiet cluster starts");
        let client = cluster.connect(0).await.expect("a client of a quiet cluster connects");
        client.status().await;
        let [slow, first, second] = [[5, 3, 4], [3, 4, 5], [4, 5, 3]][seed as usize % 3];
        cluster.kill_server(first, false);
        cluster.kill_server(second, false);
        cluster.sim.set_link("s0", &format!("s{slow}"), Link::Down);
        if seed >= 3 {
            let (loss_ppm, duplicate_ppm) = (20_000, 20_000);
            cluster.sim.set_faults(Faults { loss_ppm, duplicate_ppm, ..Faults::default() });
        }
        let began_ns = cluster.sim.now_ns();
        let heals = async {
            cluster.sim.sleep(Duration::from_secs(2)).await;
            cluster.sim.heal();
            // The first answers to both are lost: they ask again, and by then the map has both.
            for server in [first, second] {
                cluster.sim.set_link("s0", &format!("s{server}"), Link::Down);
            }
            cluster.sim.sleep(Duration::from_millis(1500)).await;
            cluster.sim.heal();
        };
        let back = join(join(cluster.bring_back(first), cluster.bring_back(second)), heals).await.0;
        match back {
            (Ok(()), Ok(())) => Ok(Duration::from_nanos(cluster.sim.now_ns() - began_ns)),
            failed => Err(format!("seed {seed}: {failed:?}")),
        }
    });
    cluster.end();
    took
}

/// Neither waits for the other one to confirm that it is back.
#[test]
fn two_that_come_back_at_once_do_not_wait_for_each_other() {
    for seed in 0..number("AZE_SIM_SEEDS", 24) {
        let took = two_come_back_at_once(seed, Switches::default());
        assert!(took.as_ref().is_ok_and(|took| *took < Duration::from_secs(40)), "seed {seed}: {took:?}");
    }
    let waited = two_come_back_at_once(0, Switches::without(Sabotage::AwaitComing));
    assert!(waited.is_err(), "it is noticed: {waited:?}");
}

fn cut_off(cluster: &Cluster, server: &str, others: &[&str]) {
    for other in others {
        cluster.sim.set_link(server, other, Link::Down);
        cluster.sim.set_link(other, server, Link::Down);
    }
}

async fn hand_over(cluster: &Arc<Cluster>, from: u16, to: u16) -> Option<Result<(), Failure>> {
    cluster.at_server(ServerIndex(from), move |keeper| async move { keeper.hand_over_to(ServerIndex(to)).await }).await
}

/// A slot that a server has.
fn slot_of(cluster: &Cluster, server: u16) -> SlotIndex {
    let map = cluster.newest_map().expect("servers run");
    let (slot, _) = map.slots.served_by(ServerIndex(server)).last().expect("it has some");
    slot
}

async fn move_slot(cluster: &Arc<Cluster>, keeper: u16, slot: SlotIndex, to: u16) {
    let moved = cluster
        .at_server(ServerIndex(keeper), move |keeper| async move { keeper.move_slot(slot, ServerIndex(to)).await });
    assert_eq!(moved.await, Some(Ok(())));
}

/// The error after a whole start: a slot has moved while server 0 was cut off, to a server that has only just joined
/// (`joins`) or another one; then the power of all was cut.
fn start_after_a_move(switches: Switches, is_cut_off: bool, joins: bool) -> Option<String> {
    let wrong = Arc::new(Mutex::new(None));
    let noted = wrong.clone();
    with_layout(layout(3, switches), move |cluster, client| async move {
        assert_eq!(hand_over(&cluster, 0, 1).await, Some(Ok(())));
        // It hears from all what server 0 knew.
        cluster.sim.sleep(Duration::from_secs(1)).await;
        drop(client);
        if is_cut_off {
            cut_off(&cluster, "s0", &["s1", "s2", "s3"]);
        }
        let to = if joins { 3 } else { 2 };
        if joins {
            // Its orders name server 0, which does not keep the map and says so.
            cluster.sim.heal();
            cluster.add_server(3).await.expect("it joins");
            cut_off(&cluster, "s0", &["s1", "s2", "s3"]);
        }
        let slot = slot_of(&cluster, 1);
        move_slot(&cluster, 1, slot, to).await;
        cluster.kill_all(1, true);
        cluster.sim.heal();
        let started = cluster.start().await;
        let map = cluster.newest_map();
        let has = map.and_then(|map| map.slots.get(slot).map(|slot| slot.primary));
        if started.is_err() || has != Some(ServerIndex(to)) {
            *noted.lock() = Some(format!("{started:?}, slot {slot} is on server {has:?}"));
        }
    });
    wrong.lock().clone()
}

#[test]
fn a_start_goes_by_the_newest_that_was_decided() {
    for joins in [false, true] {
        assert_eq!(start_after_a_move(Switches::default(), true, joins), None, "joins: {joins}");
        let wrong = start_after_a_move(Switches::without(Sabotage::StartByFirst), true, joins);
        assert!(wrong.is_some(), "it is noticed");
    }
}

#[test]
fn a_promise_is_on_the_disk_before_another_member_hears_of_it() {
    assert_eq!(start_after_a_move(Switches::default(), false, false), None);
    assert!(start_after_a_move(Switches::without(Sabotage::PromiseUnsaved), false, false).is_some(), "it is noticed");
}

/// A whole start asks servers with slots for the decisions. Server 0 has all of them, and does not know by its own disk
/// that another one has some: a server without slots, which alone would have decided that, is handed no map.
#[test]
fn a_start_misses_nothing_that_a_server_without_slots_would_have_decided() {
    with_layout(layout(2, Switches::default()), |cluster, client| async move {
        cluster.add_server(2).await.expect("it joins");
        let map = cluster.newest_map().expect("all run");
        for (slot, _) in map.slots.served_by(ServerIndex(1)) {
            move_slot(&cluster, 0, slot, 0).await;
        }
        let left = cluster.at_server(ServerIndex(0), |keeper| async move { keeper.leave(&[ServerIndex(1)]).await });
        assert_eq!(left.await, Some(Ok((0, Vec::new()))));
        let handed = hand_over(&cluster, 0, 2).await;
        let keeper = cluster.newest_map().expect("they run").keeper;
        move_slot(&cluster, keeper.0, SlotIndex(0), 2).await;
        drop(client);
        cluster.kill_all(1, true);
        assert_eq!(cluster.start().await, Ok(()));
        let map = cluster.newest_map().expect("both run");
        assert_eq!(map.server_of(ShardId(0)), Some(ServerIndex(2)), "{map:?}");
        assert_eq!(handed.map(|handed| handed.map_err(|failure| failure.code)), Some(Err(Code::Busy)));
    });
}

/// Servers 0 and 1 decide that a server has joined, while server 2 is cut off; both die, and server 1 comes back to server 2. Gives how many
/// numbers of servers are given out then.
fn numbers_after_a_comeback(switches: Switches) -> usize {
    let numbers = Arc::new(Mutex::new(0));
    let noted = numbers.clone();
    with_layout(layout(3, switches), move |cluster, client| async move {
        client.status().await;
        cut_off(&cluster, "s2", &["s0", "s1", "s3"]);
        cluster.add_server(3).await.expect("two of three decide");
        for server in [0, 1, 3] {
            cluster.kill_server(server, false);
        }
        cluster.sim.heal();
        assert_eq!(cluster.server(2).expect("it runs").map().servers.len(), 3, "it has not heard of it");
        // It may wait for server 3, whose end no server has noted.
        drop(cluster.bring_back(1).await);
        *noted.lock() = cluster.newest_map().expect("it runs").servers.len();
    });
    *numbers.lock()
}

#[test]
fn a_member_that_has_forgotten_its_promises_is_noticed() {
    assert_eq!(numbers_after_a_comeback(Switches::default()), 4);
    assert_eq!(numbers_after_a_comeback(Switches::without(Sabotage::ForgetPromises)), 3, "it is noticed");
}

/// Server 2 moves a directory into another one, both of server 1, which dies when the way up has been looked at, and comes back. The other one
/// is then moved into the first, before server 1 has heard of the parent. Gives how both moves end.
fn moves_while_the_home_is_away(switches: Switches) -> (Result<(), Failure>, Result<(), Failure>) {
    let ended = Arc::new(Mutex::new(None));
    let noted = ended.clone();
    with_layout(layout(3, switches), move |cluster, client| async move {
        client.status().await;
        let (base, mut dirs) = (dir_at(&client, 0, 0).await, Vec::new());
        for (number, server) in [(0, 2), (1, 1)] {
            let (old, name) = (name_at(&client, base, 1, number), name_at(&client, base, server, 8));
            let dir = make_dir(&client, base, &old).await;
            assert_eq!(client.map().home_of(dir), Some(ServerIndex(1)));
            // Its name comes to the server that is to move it.
            assert_eq!(rename(&client, base, &old, &name).await, Ok(()));
            dirs.push((dir, name));
        }
        let [(first, first_name), (second, second_name)] = &dirs[..] else { panic!("two are made") };
        // The keeper waits for server 1 to confirm that paths change.
        cluster.sim.set_link("s0", "s1", Link::Down);
        let (into_second, into_first) = (name_at(&client, *second, 2, 0), name_at(&client, *first, 1, 0));
        let moved = client.rename(&ROOT, base, first_name, *second, &into_second, false);
        let comes_back = async {
            cluster.sim.sleep(Duration::from_millis(500)).await;
            cluster.kill_server(1, false);
            cluster.sim.heal();
            // It is back before it is told of the parent once more.
            cluster.sim.sleep(Duration::from_millis(2500)).await;
            assert_eq!(cluster.bring_back(1).await, Ok(()));
            cluster.sim.set_link("s2", "s1", Link::Down);
            let hears_late = async {
                cluster.sim.sleep(Duration::from_secs(1)).await;
                cluster.sim.heal();
            };
            join(client.rename(&ROOT, base, second_name, *first, &into_first, false), hears_late).await.0
        };
        *noted.lock() = Some(join(moved, comes_back).await);
    });
    ended.lock().take().expect("both have ended")
}

#[test]
fn a_move_is_not_over_before_the_home_has_heard_of_the_parent() {
    let (first, second) = moves_while_the_home_is_away(Switches::default());
    assert_eq!((first, second.map_err(|failure| failure.code)), (Ok(()), Err(Code::Invalid)));
    let both = moves_while_the_home_is_away(Switches::without(Sabotage::TellParentLater));
    assert_eq!(both, (Ok(()), Ok(())), "it is noticed");
}

/// A directory came below itself: its home was away when it was told of the parent.
#[test]
fn seed_264_moves_directories_below_no_own_ones() {
    assert_eq!(run_durable(264, Switches::default()).violations, Vec::<String>::new());
}

/// A map that only the keeper has decided on, and that gives its place to another one, is told when it comes back.
#[test]
fn who_has_handed_over_and_died_tells_so() {
    for servers in [2, 3] {
        with_layout(layout(servers, Switches::default()), move |cluster, client| async move {
            client.status().await;
            cut_off(&cluster, "s0", &["s1", "s2", "c0"]);
            // With two servers it decides alone; with three it does not.
            let handed = hand_over(&cluster, 0, 1).await;
            assert_eq!(handed == Some(Ok(())), servers == 2, "{handed:?}");
            cluster.kill_server(0, false);
            cluster.sim.heal();
            cluster.sim.sleep(Duration::from_secs(1)).await;
            assert_eq!(cluster.bring_back(0).await, Ok(()));
            let map = cluster.newest_map().expect("all run");
            assert_eq!((map.keeper, map.group.members.len()), (ServerIndex(1), if servers == 3 { 3 } else { 1 }));
        });
    }
}

/// Of two servers the keeper hands over to the other one, which dies before it has heard of that: whether it comes back, as the keeper, and
/// decides.
fn comes_back_as_the_heir(switches: Switches) -> Result<(), Failure> {
    let ended = Arc::new(Mutex::new(None));
    let noted = ended.clone();
    with_layout(layout(2, switches), move |cluster, client| async move {
        client.status().await;
        cut_off(&cluster, "s0", &["s1"]);
        assert_eq!(hand_over(&cluster, 0, 1).await, Some(Ok(())), "it decides alone");
        assert_eq!(cluster.server(1).expect("it runs").map().keeper, ServerIndex(0), "it has not heard of it");
        cluster.kill_server(1, false);
        cluster.sim.heal();
        cluster.sim.sleep(Duration::from_secs(1)).await;
        let back = cluster.bring_back(1).await;
        if back.is_ok() {
            let map = cluster.newest_map().expect("both run");
            assert_eq!((map.keeper, map.group.members.len()), (ServerIndex(1), 1));
            let dir = dir_at(&client, 1, 0).await;
            let [old, new] = [0, 1].map(|number| name_at(&client, dir, 1, number));
            make_dir(&client, dir, &old).await;
            assert_eq!(rename(&client, dir, &old, &new).await, Ok(()));
            // All servers start by its decisions.
            cluster.kill_all(1, true);
            cluster.start().await.expect("both are there");
        }
        *noted.lock() = Some(back);
    });
    ended.lock().take().expect("it has ended")
}

#[test]
fn a_server_that_is_handed_the_map_and_dies_comes_back_alone() {
    assert_eq!(comes_back_as_the_heir(Switches::default()), Ok(()));
    let back = comes_back_as_the_heir(Switches::without(Sabotage::NoPromiseUnsaid));
    assert_eq!(back.map_err(|failure| failure.code), Err(Code::Lost), "it is noticed");
}

/// Seeds on every change.
const SEEDS: u64 = 40;

/// A crowd, and servers that die, come back, are cut off, hand over, and lose their power all at once. `AZE_SIM_SEEDS` sets how many seeds,
/// `AZE_SIM_FROM` the first.
#[test]
fn directories_move_while_servers_die_and_come_back() {
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", SEEDS));
    let (mut failures, mut moves, mut keepers) = (Vec::new(), 0, 0);
    for seed in from..from + count {
        match caught(|| run_durable(seed, Switches::default())) {
            Ok(crowd) => {
                (moves, keepers) = (moves + crowd.moves, keepers + crowd.keepers);
                failures.extend(crowd.violations.first().map(|first| format!("seed {seed}: {first}")));
            }
            Err(panic) => failures.push(format!("seed {seed}: {panic}")),
        }
    }
    println!("{moves} moves, {keepers} times another keeper in {count} runs");
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
    assert!(moves > 10 * count && keepers > count, "{moves} moves, {keepers} keepers: they prove nothing");
}
