//! Servers join under work, with faults: nothing acknowledged is lost, slots are balanced afterwards, and a server that dies before it
//! has any takes nothing along. `AZE_SIM_SEEDS` sets how many seeds, `AZE_SIM_FROM` the first.

use crate::many::{caught, number};
use crate::support::{ROOT, create, with_cluster, with_layout};
use aze_client::{Client, Locked};
use aze_io::sim::Link;
use aze_proto::limits::SESSION_GRACE_MS;
use aze_proto::message::{LockMode, LockSpace, LockSpec};
use aze_proto::{Code, FileKind, Ino, Name, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::cluster::{Layout, client_node, server_node};
use aze_sim::work::shared::new_file;
use aze_sim::{Cluster, Plan, run_plan};
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::time::Duration;

/// Seeds on every change.
const SEEDS: u64 = 100;

/// Moments, a millisecond apart, at which a server dies that takes slots.
const MOMENTS: u64 = 24;

#[test]
fn servers_join_under_work_and_nothing_is_lost() {
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", SEEDS));
    let (mut failures, mut joined, mut left, mut runs) = (Vec::new(), 0, 0, 0);
    for seed in from..from + count {
        let first = match caught(|| run_plan(Plan::with_joining(seed), false)) {
            Ok(outcome) => {
                (joined, left, runs) = (joined + outcome.servers_joined, left + outcome.servers_left, runs + 1);
                outcome.violations.into_iter().next()
            }
            Err(panic) => Some(panic),
        };
        let again =
            |first| format!("seed {seed}: {first}\n  again: cargo run -p aze-sim -- --joining --seed {seed} --trace");
        failures.extend(first.map(again));
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
    println!("{joined} servers have joined and {left} have left in {runs} runs");
    assert_eq!(runs, count);
    assert!(runs < 5 || joined >= runs, "{joined} servers have joined in {runs} runs: they prove nothing");
}

#[test]
fn a_slot_that_is_served_twice_is_noticed() {
    let fails = |seed: u64, switches| match caught(|| run_plan(Plan::with_joining(seed).with(switches), false)) {
        Ok(outcome) => outcome.violations.first().cloned(),
        // A server that loses a protection may also break one of its own assertions.
        Err(panic) => Some(panic),
    };
    for what in [Sabotage::KeepGivenSlot, Sabotage::ForgetNewHolder] {
        let without = |seed| fails(seed, Switches::without(what)).map(|first| (seed, first));
        let noticed = (0..NOTICED_WITHIN).find_map(without);
        let Some((seed, first)) = noticed else { panic!("none of {NOTICED_WITHIN} seeds notices {what:?}") };
        assert_eq!(fails(seed, Switches::default()), None, "seed {seed} with all protections");
        println!("{what:?} is noticed by seed {seed}: {first}");
    }
}

/// At least one of so many seeds notices the missing protection.
const NOTICED_WITHIN: u64 = 60;

/// Has slots moved until all servers have as many, but for one, however often the keeper says that something is under way.
async fn balance(client: &Client, cluster: &Cluster) -> Result<(), Code> {
    loop {
        match client.balance().await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(failure) if failure.code == Code::Busy || failure.is_silence() => {
                cluster.sim.sleep(Duration::from_millis(20)).await;
            }
            Err(failure) => return Err(failure.code),
        }
    }
}

fn counts(cluster: &Cluster) -> Vec<usize> {
    let map = cluster.server(0).expect("the keeper runs").map();
    map.indexes().map(|server| map.slots.served_by(server).count()).collect()
}

async fn files(client: &Client) -> Vec<Ino> {
    let mut files = Vec::new();
    for at in 0..24 {
        let file = create(client, Ino::ROOT, &format!("f{at}")).await;
        file.write(0, &[7; 400_000]).await.expect("written");
        file.close().await.expect("closed");
        files.push(file.ino());
    }
    files
}

async fn read_all(client: &Client, files: &[Ino]) -> usize {
    let mut read = 0;
    for ino in files {
        let opened = client.open(&ROOT, *ino, aze_client::Access { read: true, write: false }).await;
        if let Ok(file) = opened
            && file.read(0, 400_000).await.is_ok_and(|bytes| bytes[..] == [7; 400_000])
        {
            read += 1;
        }
    }
    read
}

/// The simulation must know every server that runs: it would call the data on another one lost.
#[test]
fn a_server_that_is_being_started_is_not_started_once_more() {
    with_cluster(2, |cluster, _client| async move {
        let other = cluster.clone();
        let first = cluster.on_driver(async move { other.add_server(2).await });
        let _ = select(first, Box::pin(cluster.sim.sleep(Duration::from_micros(100)))).await;
        let again = cluster.add_server(2).await.expect_err("it is being started");
        assert_eq!(again.code, Code::Busy, "{again}");
        while cluster.server(0).expect("it runs").map().servers.len() < 3 {
            cluster.sim.sleep(Duration::from_millis(1)).await;
        }
        cluster.sim.sleep(Duration::from_secs(1)).await;
        assert!(cluster.server(2).is_some(), "it has joined, and nobody would look at it");
    });
}

/// Two become four, then two of these leave, and one more joins: a client that was connected before finds all of them.
#[test]
fn slots_are_balanced_and_numbers_are_given_out_once() {
    with_cluster(2, |cluster, client| async move {
        let files = files(&client).await;
        let before = client.statfs().await.expect("all answer").capacity_bytes;
        for index in [2, 3] {
            cluster.add_server(index).await.expect("it joins");
        }
        assert_eq!(cluster.server(0).expect("it runs").map().joining().count(), 2);
        assert_eq!(counts(&cluster), [8, 8, 0, 0]);
        balance(&client, &cluster).await.expect("nothing is in the way");
        assert_eq!(counts(&cluster), [4, 4, 4, 4]);
        assert_eq!(cluster.server(0).expect("it runs").map().joining().count(), 0);
        assert_eq!(read_all(&client, &files).await, files.len());
        assert_eq!(client.statfs().await.expect("all answer").capacity_bytes, 2 * before);
        while !client.leave(&[ServerIndex(1), ServerIndex(2)]).await.expect("nothing is in the way").1.is_empty() {}
        assert_eq!(counts(&cluster), [8, 0, 0, 8]);
        for gone in [1, 2] {
            cluster.server(gone).expect("it runs").stopped().await;
            cluster.kill_server(gone, false);
        }
        let taken = cluster.add_server(2).await.expect_err("a number is given out once");
        assert!(taken.detail.contains("has a server 2 already"), "{taken}");
        let far = cluster.add_server(7).await.expect_err("numbers follow one another");
        assert!(far.detail.contains("the next one of the volume is number 4"), "{far}");
        cluster.add_server(4).await.expect("it joins");
        balance(&client, &cluster).await.expect("nothing is in the way");
        assert_eq!(counts(&cluster), [5, 0, 0, 6, 5]);
        assert_eq!(read_all(&client, &files).await, files.len());
    });
}

/// A client that asks nothing hears of each server that leaves from that server, and so of those that have come.
#[test]
fn an_idle_client_finds_servers_that_have_all_come_later() {
    with_cluster(2, |cluster, client| async move {
        let idle = cluster.connect(1).await.expect("a quiet cluster connects");
        let files = files(&client).await;
        assert!(idle.getattr(&ROOT, files[0]).await.is_ok());
        for (leaving, joining) in [([0, 1], [2, 3]), ([2, 3], [4, 5])] {
            for index in joining {
                cluster.add_server(index).await.expect("it joins");
            }
            balance(&client, &cluster).await.expect("nothing is in the way");
            while !client.leave(&leaving.map(ServerIndex)).await.expect("nothing is in the way").1.is_empty() {}
            for gone in leaving {
                cluster.server(gone).expect("it runs").stopped().await;
                cluster.kill_server(gone, false);
            }
        }
        assert_eq!(read_all(&idle, &files).await, files.len());
    });
}

/// A server that takes its first slots dies, at many moments: either it had none, and has left, and the volume works as a whole; or what
/// it had is lost, and the rest is there.
#[test]
fn a_server_that_dies_while_it_takes_slots_takes_only_these_along() {
    let (mut had_none, mut had_some) = (0, 0);
    for moment in 0..MOMENTS {
        let (result, told) = std::sync::mpsc::channel();
        with_cluster(2, |cluster, client| async move {
            let files = files(&client).await;
            cluster.add_server(2).await.expect("it joins");
            let (asked, world) = (client.clone(), cluster.clone());
            let balanced = cluster.on_client(0, async move { balance(&asked, &world).await });
            cluster.sim.sleep(Duration::from_millis(moment)).await;
            cluster.kill_server(2, false);
            // A server that has a slot is asked for ever: no process on its node has seen its end.
            let late = Box::pin(cluster.sim.sleep(Duration::from_secs(60)));
            let balanced = match select(balanced, late).await {
                Either::Left((balanced, _)) => balanced.expect("the client lives"),
                Either::Right(_) => Err(Code::TimedOut),
            };
            let map = cluster.server(0).expect("the keeper runs").map();
            let has_slots = map.slots.served_by(ServerIndex(2)).next().is_some();
            assert_eq!(balanced.is_ok() && map.has_left(ServerIndex(2)), !has_slots, "killed after {moment} ms");
            if !has_slots {
                assert_eq!(read_all(&client, &files).await, files.len(), "killed after {moment} ms");
                cluster.add_server(3).await.expect("the next one joins");
                balance(&client, &cluster).await.expect("slots move");
                let counts = counts(&cluster);
                assert!(counts[2] == 0 && [0, 1, 3].iter().all(|at| (5..=6).contains(&counts[*at])), "{counts:?}");
                assert_eq!(read_all(&client, &files).await, files.len());
                assert!(client.check(&ROOT, aze_client::CheckOptions::default()).await.is_ok());
            }
            result.send(map.has_left(ServerIndex(2))).expect("the test waits");
        });
        match told.recv().expect("the run has ended") {
            true => had_none += 1,
            false => had_some += 1,
        }
    }
    println!("killed before it had a slot: {had_none} times, afterwards: {had_some} times");
    assert!(had_none > 0 && had_some > 0);
}

/// A change is done and its answer gets lost, and then its slot goes to a server that has joined: the client repeats the change, under
/// its number, where it was done, and is told how it ended.
fn change_with_lost_answer(switches: Switches) -> Result<bool, Code> {
    let (result, told) = std::sync::mpsc::channel();
    with_layout(Layout { switches, ..Layout::of(2) }, |cluster, client: Arc<Client>| async move {
        let mover = cluster.connect(1).await.expect("a quiet cluster connects");
        let map = client.map();
        // The first one that moves.
        let (slot, _) =
            map.slots.next_to_balance(&[0, 1, 2].map(ServerIndex)).expect("a server without slots gets some");
        let slot_of = |name: &Name| map.slots.slot_of(NameHash::of(Ino::ROOT, name).shard(map.shards()));
        let name = (0..)
            .map(|at| crate::support::name(&format!("n{at}")))
            .find(|name| slot_of(name) == slot)
            .expect("one is there");
        // The connection stands before the answers get lost.
        let absent = client.lookup(&ROOT, Ino::ROOT, &name).await;
        assert_eq!(absent.map(|_| ()).map_err(|failure| failure.code), Err(Code::NotFound));
        let giver = map.slots.get(slot).expect("it is there").primary;
        cluster.sim.set_link(&server_node(giver.0), &client_node(0), Link::Down);
        let (asked, wanted) = (client.clone(), name.clone());
        let made = cluster.on_client(0, async move {
            // Exclusive: done twice, it says that the name is there.
            asked.create(&ROOT, Ino::ROOT, &wanted, &new_file(FileKind::File, true)).await
        });
        cluster.sim.sleep(Duration::from_millis(200)).await;
        assert!(mover.lookup(&ROOT, Ino::ROOT, &name).await.is_ok(), "it has been done, and the client does not know");
        cluster.add_server(2).await.expect("it joins");
        balance(&mover, &cluster).await.expect("slots move");
        let map = cluster.server(0).expect("the keeper runs").map();
        assert_eq!(map.slots.get(slot).map(|slot| slot.primary), Some(ServerIndex(2)));
        cluster.sim.heal();
        let made = made.await.expect("the client lives");
        result.send(made.map(|entry| entry.created).map_err(|failure| failure.code)).expect("the test waits");
    });
    told.recv().expect("the run has ended")
}

#[test]
fn a_change_whose_answer_was_lost_is_known_where_it_was_done() {
    assert_eq!(change_with_lost_answer(Switches::default()), Ok(true));
    let twice = change_with_lost_answer(Switches::without(Sabotage::ForgetGivenOutcomes));
    assert_eq!(twice, Err(Code::Exists), "without the outcomes it is done twice");
}

/// A name in the root directory whose entry, and the home of whose file, are on a server.
fn name_at(client: &Client, server: u16) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards())) == Some(ServerIndex(server));
    (0..64).map(|index| crate::support::name(&format!("n{index}"))).find(is_there).expect("of 64 names one is there")
}

const LOCK: LockSpec =
    LockSpec { space: LockSpace::Whole, owner: 1, pid: 7, start: 0, end: u64::MAX, mode: LockMode::Exclusive };

/// A client with a lock dies. Servers that join before and while all others are told to refuse it, refuse it, too.
fn fences(switches: Switches) -> (usize, usize) {
    let (result, told) = std::sync::mpsc::channel();
    with_layout(Layout { switches, ..Layout::of(3) }, |cluster, client: Arc<Client>| async move {
        let name = name_at(&client, 1);
        lock_and_die(&cluster, &client, 1, &name).await;
        cluster.sim.sleep(Duration::from_millis(SESSION_GRACE_MS + 5_000)).await;
        cluster.add_server(3).await.expect("it joins");
        let before = cluster.server(3).expect("it runs").contents().fenced.len();
        // Its home cannot tell the keeper yet when the next one joins.
        cluster.sim.set_link(&server_node(1), &server_node(0), Link::Down);
        lock_and_die(&cluster, &client, 2, &name).await;
        cluster.sim.sleep(Duration::from_millis(SESSION_GRACE_MS + 1_000)).await;
        cluster.add_server(4).await.expect("it joins");
        cluster.sim.heal();
        cluster.sim.sleep(Duration::from_secs(15)).await;
        let fenced = |server| cluster.server(server).expect("it runs").contents().fenced.len();
        assert_eq!(fenced(0), 2, "the keeper knows both");
        result.send((before, fenced(4))).expect("the test waits");
    });
    told.recv().expect("the run has ended")
}

/// A client locks a file of that name, which goes, and dies.
async fn lock_and_die(cluster: &Arc<Cluster>, client: &Client, number: usize, name: &Name) {
    let dies = cluster.connect(number).await.expect("a quiet cluster connects");
    let file = create(&dies, Ino::ROOT, &format!("{name}")).await;
    assert_eq!(file.try_lock(&LOCK).await, Ok(Locked::Granted));
    client.unlink(&ROOT, Ino::ROOT, name).await.expect("the name goes");
    cluster.kill_client(number);
}

#[test]
fn sessions_that_are_refused_are_refused_by_servers_that_join() {
    assert_eq!(fences(Switches::default()), (1, 2));
    assert_eq!(fences(Switches::without(Sabotage::ForgetFences)), (0, 1), "it does not hear of the first one");
    assert_eq!(fences(Switches::without(Sabotage::FenceOnce)), (1, 1), "nor is it told of the second one");
}

#[test]
fn there_are_no_more_servers_than_slots() {
    with_cluster(1, |cluster, _| async move {
        for server in 1..8 {
            assert_eq!(cluster.add_server(server).await, Ok(()), "server {server} may have one of eight slots");
        }
        let refused = cluster.add_server(8).await.expect_err("there are eight slots");
        assert!(refused.code == Code::Limit && refused.detail.contains("8 of the slots"), "{refused}");
    });
}
