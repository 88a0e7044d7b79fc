//! Servers leave under work, with faults: nothing acknowledged is lost, retries are recognised where the slots have gone, opens
//! and locks go along, and the processes of those that have left end. `AZE_SIM_SEEDS` sets how many seeds, `AZE_SIM_FROM` the
//! first.

use crate::many::{caught, number};
use crate::support::{ROOT, create, with_cluster, with_layout};
use aze_io::sim::{Faults, Link, Sim};
use aze_proto::{Change, Code, Failure, FileKind, Ino, Name, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::cluster::{Layout, client_node, server_node};
use aze_sim::work::shared::new_file;
use aze_sim::{Cluster, Plan, run_plan};
use futures_util::future::{Either, join, join_all, select};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Orders of messages in which a directory's attributes are asked for.
const ORDERS: u64 = 4;

/// Seeds on every change.
const SEEDS: u64 = 100;

#[test]
fn servers_leave_under_work_and_nothing_is_lost() {
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", SEEDS));
    let (mut failures, mut left, mut runs) = (Vec::new(), 0, 0);
    for seed in from..from + count {
        let first = match caught(|| run_plan(Plan::with_leaving(seed), false)) {
            Ok(outcome) => {
                (left, runs) = (left + outcome.servers_left, runs + 1);
                outcome.violations.into_iter().next()
            }
            Err(panic) => Some(panic),
        };
        let again =
            |first| format!("seed {seed}: {first}\n  again: cargo run -p aze-sim -- --leaving --seed {seed} --trace");
        failures.extend(first.map(again));
    }
    assert!(failures.is_empty(), "{} of {count} seeds failed\n{}", failures.len(), failures.join("\n"));
    println!("{left} servers have left in {runs} runs");
    assert_eq!(runs, count);
    assert!(runs < 5 || left >= runs / 2, "{left} servers have left in {runs} runs: they prove nothing");
}

/// While servers were cut off, another member of the group has got further than the keeper: it brings the keeper up to date, which
/// then finds out how the move has ended that it had proposed.
#[test]
fn a_keeper_that_is_behind_leads_again() {
    for seed in [1536, 1743] {
        assert_eq!(run_plan(Plan::with_leaving(seed), false).violations, Vec::<String>::new(), "seed {seed}");
    }
}

/// A giver that is told something else than that all is taken goes on with the slot, and sends it anew: the entries that have come
/// since count, too, and a server that has said before that it has everything is not taken by its word.
#[test]
fn a_slot_that_is_sent_anew_is_counted_anew() {
    let outcome = run_plan(Plan::with_leaving(1365), false);
    assert_eq!((outcome.violations, outcome.servers_left), (Vec::new(), 1));
}

#[test]
fn a_slot_left_behind_is_noticed() {
    let fails = |seed: u64, switches| match caught(|| run_plan(Plan::with_leaving(seed).with(switches), false)) {
        Ok(outcome) => outcome.violations.first().cloned(),
        // A server that loses a protection may also break one of its own assertions.
        Err(panic) => Some(panic),
    };
    let seeds = [2, 15, 29, 36];
    for seed in seeds {
        assert_eq!(fails(seed, Switches::default()), None, "seed {seed} with all protections");
    }
    let without = |seed| fails(seed, Switches::without(Sabotage::LeaveSlotBehind));
    let noticed: Vec<String> = seeds.into_iter().filter_map(without).collect();
    assert!(!noticed.is_empty(), "none of the seeds {seeds:?} notices it");
    println!("noticed by {} of {} seeds: {}", noticed.len(), seeds.len(), noticed[0]);
}

/// Has servers leave, however often the keeper says that something is under way.
async fn leave(client: &aze_client::Client, cluster: &Cluster, servers: &[ServerIndex]) {
    loop {
        match client.leave(servers).await {
            Ok((_, staying)) if staying.is_empty() => return,
            Ok(_) => {}
            Err(failure) => {
                assert_eq!(failure.code, Code::Busy, "{failure}");
                cluster.sim.sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A name in the root directory whose entry is on a server.
fn name_at(client: &aze_client::Client, server: u16) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards())) == Some(ServerIndex(server));
    (0..64).map(|index| crate::support::name(&format!("n{index}"))).find(is_there).expect("of 64 names one is there")
}

/// A change is done, its answer gets lost, the server leaves and its process is killed: the client repeats the change, under its
/// number, where the slot has gone, and is told how it ended.
fn change_with_lost_answer(switches: Switches) -> Result<bool, Failure> {
    let (result, told) = std::sync::mpsc::channel();
    with_layout(Layout { switches, ..Layout::of(3) }, |cluster, client| async move {
        let mover = cluster.connect(1).await.expect("a quiet cluster connects");
        let name = name_at(&client, 2);
        // The connection stands before the answers get lost.
        let absent = client.lookup(&ROOT, Ino::ROOT, &name).await;
        assert_eq!(absent.map(|_| ()).map_err(|failure| failure.code), Err(Code::NotFound));
        cluster.sim.set_link(&server_node(2), &client_node(0), Link::Down);
        let (asked, wanted) = (client.clone(), name.clone());
        let made = cluster.on_client(0, async move {
            // Exclusive: done twice, it says that the name is there.
            asked.create(&ROOT, Ino::ROOT, &wanted, &new_file(FileKind::File, true)).await
        });
        cluster.sim.sleep(Duration::from_millis(200)).await;
        assert!(mover.lookup(&ROOT, Ino::ROOT, &name).await.is_ok(), "it has been done, and the client does not know");
        leave(&mover, &cluster, &[ServerIndex(2)]).await;
        cluster.kill_server(2, false);
        cluster.sim.heal();
        let made = made.await.expect("the client lives");
        result.send(made.map(|entry| entry.created)).expect("the test waits");
    });
    told.recv().expect("the run has ended")
}

#[test]
fn a_change_whose_answer_was_lost_is_known_where_its_slot_has_gone() {
    assert_eq!(change_with_lost_answer(Switches::default()), Ok(true));
    let twice = change_with_lost_answer(Switches::without(Sabotage::ForgetBroughtOutcomes));
    assert_eq!(twice.map_err(|failure| failure.code), Err(Code::Exists), "without the outcomes it is done twice");
}

/// A session that has a file open and asks nothing is connected to the server that leaves only; it comes to those that have its
/// files now, and keeps them. Those of a client that dies meanwhile go.
#[test]
fn idle_sessions_keep_what_they_have_open() {
    with_cluster(4, |cluster, client| async move {
        let idle = cluster.connect(1).await.expect("a quiet cluster connects");
        let dies = cluster.connect(2).await.expect("a quiet cluster connects");
        let mut kept = Vec::new();
        // Both are connected to the server that leaves only, and come to the keeper when they ask who has left.
        let map = client.map();
        let is_there =
            |name: &Name| map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards())) == Some(ServerIndex(1));
        let names = (0..).map(|at| crate::support::name(&format!("f{at}"))).filter(is_there).take(12);
        for (at, name) in names.enumerate() {
            let of = if at % 2 == 0 { &idle } else { &dies };
            kept.push(create(of, Ino::ROOT, &name.to_string()).await);
            client.unlink(&ROOT, Ino::ROOT, &name).await.expect("a name goes");
        }
        leave(&client, &cluster, &[ServerIndex(1)]).await;
        cluster.kill_client(2);
        cluster.server(1).expect("it runs until it has told what it owes").stopped().await;
        cluster.kill_server(1, false);
        cluster.sim.sleep(Duration::from_secs(40)).await;
        for file in kept.iter().step_by(2) {
            let written = file.write(0, b"still here").await;
            assert!(written.is_ok(), "{written:?}");
        }
        let opens: usize = cluster.servers().iter().map(|server| server.contents().opens.len()).sum();
        assert_eq!(opens, 6, "those of the session that lives");
    });
}

/// Attributes of directories are those of all servers that have entries: while some of these leave, no client is told
/// that one cannot be reached.
#[test]
fn attributes_of_directories_are_told_while_servers_leave() {
    for seed in 0..ORDERS {
        attributes_are_told(seed);
    }
}

fn attributes_are_told(seed: u64) {
    let sim = Sim::new(seed, Faults::default());
    let cluster = Cluster::new(sim.clone(), Layout::of(5));
    sim.block_on(async {
        cluster.start().await.expect("a quiet cluster starts");
        let client = cluster.connect(0).await.expect("a client of a quiet cluster connects");
        let dirs = (0..12).map(|at| {
            let client = &client;
            async move {
                let new = new_file(FileKind::Directory, true);
                let made = client.create(&ROOT, Ino::ROOT, &crate::support::name(&format!("d{at}")), &new).await;
                let dir = made.expect("made").attr.ino;
                for file in 0..10 {
                    create(client, dir, &format!("f{file}")).await.close().await.expect("closed");
                }
                dir
            }
        });
        let dirs: Vec<Ino> = join_all(dirs).await;
        let (mover, over) = (cluster.connect(1).await.expect("a quiet cluster connects"), AtomicBool::new(false));
        let asked = dirs.iter().enumerate().map(|(at, dir)| {
            let (client, over) = (&client, &over);
            async move {
                let mut times = 0;
                while !over.load(Ordering::Relaxed) {
                    let set = Change { mode: Some(0o700 + times % 8), ..Change::default() };
                    let told = client.setattr(&ROOT, *dir, &set).await;
                    assert!(told.is_ok(), "d{at}, {times}: {told:?}");
                    let told = client.getattr(&ROOT, *dir).await;
                    assert!(told.as_ref().is_ok_and(|attr| attr.size == 10), "d{at}, {times}: {told:?}");
                    times += 1;
                }
                times
            }
        });
        let leaving = async {
            leave(&mover, &cluster, &[ServerIndex(4), ServerIndex(3)]).await;
            leave(&mover, &cluster, &[ServerIndex(2), ServerIndex(1)]).await;
            over.store(true, Ordering::Relaxed);
        };
        let (times, ()) = join(join_all(asked), leaving).await;
        assert!(times.len() == 12 && times.iter().all(|times| *times > 0), "{times:?}");
    });
    cluster.end();
}

/// A server that leaves has told the others which chunks to drop.
#[test]
fn no_data_stay_of_a_file_that_was_removed_before() {
    with_cluster(3, |cluster, client| async move {
        for at in 0..8 {
            let name = crate::support::name(&format!("f{at}"));
            let file = create(&client, Ino::ROOT, &name.to_string()).await;
            file.write(0, &[7; 400_000]).await.expect("written");
            file.close().await.expect("closed");
            client.unlink(&ROOT, Ino::ROOT, &name).await.expect("a name goes");
        }
        leave(&client, &cluster, &[ServerIndex(1), ServerIndex(2)]).await;
        for server in [1, 2] {
            cluster.server(server).expect("it runs").stopped().await;
            cluster.kill_server(server, false);
        }
        cluster.sim.sleep(Duration::from_secs(5)).await;
        let chunks = cluster.server(0).expect("it runs").contents().chunks;
        assert_eq!(chunks, [], "of no file");
        let gone = client.status().await;
        assert_eq!(gone.len(), 1, "who has left is not asked");
    });
}

/// A home waited, until the next truncation, for one that a server had confirmed late, and the slot of the file did not
/// move.
#[test]
fn a_truncation_that_was_confirmed_late_holds_nothing_up() {
    with_layout(Layout { deadline: Duration::from_secs(2), ..Layout::of(3) }, |cluster, client| async move {
        let mut files = Vec::new();
        for at in 0..8 {
            let file = create(&client, Ino::ROOT, &format!("f{at}")).await;
            file.write(0, &[7; 400_000]).await.expect("written");
            files.push(file);
        }
        let (one, other) = (server_node(1), server_node(2));
        cluster.sim.set_link(&one, &other, Link::Down);
        let mut failed = 0;
        for file in &files {
            failed += usize::from(client.truncate(&ROOT, file.ino(), 10, None).await.is_err());
        }
        assert!(failed > 0, "a home at server 1 has not heard of server 2");
        cluster.sim.heal();
        cluster.sim.sleep(Duration::from_secs(20)).await;
        let left = Box::pin(leave(&client, &cluster, &[ServerIndex(1)]));
        let late = Box::pin(cluster.sim.sleep(Duration::from_secs(30)));
        assert!(matches!(select(left, late).await, Either::Left(_)), "no slot waits for it");
    });
}

/// All servers, one that there is not and the last one do not leave; a server that has left does not come back.
#[test]
fn who_cannot_leave_is_told_so() {
    with_cluster(2, |cluster, client: Arc<aze_client::Client>| async move {
        let why = async |servers: &[ServerIndex]| client.leave(servers).await.expect_err("it is refused").to_string();
        assert!(why(&[ServerIndex(0), ServerIndex(1)]).await.contains("no server would stay"));
        assert!(why(&[ServerIndex(5)]).await.contains("the volume has no server 5"));
        leave(&client, &cluster, &[ServerIndex(1)]).await;
        assert!(why(&[ServerIndex(0)]).await.contains("server 0 is the only one of the volume"));
        cluster.kill_server(1, false);
        let back = cluster.start_server(1).await.expect_err("it is refused");
        assert!(back.detail.contains("server 1 has left the volume"), "{back}");
    });
}

/// How a server ends that keeps the map and is told to leave by itself, while another one is silent for some time: `from` a moment after the
/// beginning, or since that one keeps the map.
fn leaves_beside_a_silent_server(silent: u16, from: Option<Duration>, time: Duration) -> Result<(), String> {
    let (result, told) = std::sync::mpsc::channel();
    // As long as servers of the real program have for one answer.
    let layout = Layout { deadline: Duration::from_secs(5), ..Layout::of(3) };
    with_layout(layout, move |cluster, client| async move {
        for index in 0..40 {
            create(&client, Ino::ROOT, &format!("f{index}")).await;
        }
        let (tell, left) = futures_channel::oneshot::channel();
        let keeper = cluster.server(0).expect("it runs");
        keeper.leave_by_itself(Duration::from_secs(150), move |how| drop(tell.send(how)));
        let others: Vec<String> =
            (0..3).filter(|other| *other != silent).map(server_node).chain([client_node(0)]).collect();
        let is_silent = async {
            while from.is_none() && cluster.newest_map().is_none_or(|map| map.keeper != ServerIndex(silent)) {
                cluster.sim.sleep(Duration::from_micros(100)).await;
            }
            cluster.sim.sleep(from.unwrap_or_default()).await;
            for other in &others {
                cluster.sim.set_link(&server_node(silent), other, Link::Down);
                cluster.sim.set_link(other, &server_node(silent), Link::Down);
            }
            cluster.sim.sleep(time).await;
            cluster.sim.heal();
        };
        let how = join(left, is_silent).await.0.expect("it is told");
        result.send(how.map_err(|failure| failure.to_string())).expect("somebody waits");
    });
    told.recv().expect("it was told")
}

/// While another server does not answer, it may be unclear for seconds who keeps the map: who leaves by itself asks again.
#[test]
fn who_leaves_by_itself_waits_for_servers_that_are_silent() {
    let mut failed = Vec::new();
    let moments = (0..20).map(|at| Some(Duration::from_millis(at * 2)));
    for (silent, from) in [(1, None)].into_iter().chain(moments.flat_map(|from| [(1, from), (2, from)])) {
        for seconds in [3, 9, 20, 60] {
            let left = leaves_beside_a_silent_server(silent, from, Duration::from_secs(seconds));
            failed.extend(left.err().map(|why| format!("server {silent}, {from:?}, for {seconds} s: {why}")));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
