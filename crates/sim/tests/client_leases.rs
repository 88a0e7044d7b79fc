//! Answers that clients believe without asking again are true, even if the network loses, delays or repeats
//! recalls, and also where servers let their clients read without a request.

use crate::rough::{rough, seeds};
use crate::support::{ROOT, create, name, with_cluster, with_layout};
use aze_client::{Aged, Client, NewFile};
use aze_io::sim::{Faults, Link, Sim, SimRng};
use aze_io::sync::Mutex;
use aze_proto::limits::{LEASE_MS, SESSION_GRACE_MS};
use aze_proto::{Change, Code, FileKind, Ino, Time};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{Layout, client_node, server_node};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const FILES: u64 = 4;
const SERVERS: u16 = 3;

/// What a client believes: names of the root directory.
#[derive(Default)]
struct Believed {
    names: Mutex<BTreeMap<u64, Aged>>,
    hits: Mutex<u64>,
}

fn file_name(number: u64) -> aze_proto::Name {
    name(&format!("f{number}"))
}

fn plain_file() -> NewFile {
    let kind = FileKind::File;
    NewFile {
        kind,
        mode: 0o644,
        rdev: 0,
        target: Vec::new(),
        exclusive: false,
        open: None,
        chunk_bits: 0,
        private: false,
    }
}

/// Makes a client believe answers that it has leases for, and let go of recalled ones, slowly.
fn believe(client: &Arc<Client>, sim: &Sim) -> Arc<Believed> {
    let believed = Arc::new(Believed::default());
    let (here, sim) = (believed.clone(), sim.clone());
    client.listen(Box::new(move |recalls| {
        let (here, sim) = (here.clone(), sim.clone());
        Box::pin(async move {
            sim.sleep(Duration::from_millis(5)).await;
            here.names.lock().retain(|_, aged| recalls.iter().all(|recall| recall.ino != aged.attr.ino));
        })
    }));
    believed
}

impl Believed {
    /// What a name leads to: believed, or asked for.
    async fn look(&self, client: &Client, number: u64) -> Option<(Ino, Time)> {
        let known = self.names.lock().get(&number).cloned();
        if let Some(aged) = known
            && !client.lease_left(aged.lease, aged.attr.ino).is_zero()
        {
            *self.hits.lock() += 1;
            return Some((aged.attr.ino, aged.attr.ctime));
        }
        let asked = client.lookup_within(&ROOT, Ino::ROOT, &file_name(number), Duration::ZERO).await;
        match asked {
            Ok(aged) => {
                let found = (aged.attr.ino, aged.attr.ctime);
                self.names.lock().insert(number, aged);
                Some(found)
            }
            Err(failure) => {
                self.names.lock().remove(&number);
                // It took longer than the answer would be worth.
                if failure.code == Code::NotFound { Some((Ino(0), Time(u64::MAX))) } else { None }
            }
        }
    }
}

/// The last change of each name, and the last acknowledged change time of each inode: a later look must not
/// see an older state.
#[derive(Default)]
struct Done {
    changes: u64,
    /// The number of the change, and what the name led to after it; unknown after a failure.
    names: BTreeMap<u64, (u64, Option<Ino>)>,
    times: BTreeMap<Ino, Time>,
}

/// One random change of a name that only this task changes; notes it when it has returned.
async fn change(client: &Client, rng: &mut SimRng, number: u64, done: &Mutex<Done>) {
    let here = file_name(number);
    {
        // From here on it may or may not have happened.
        let mut done = done.lock();
        done.changes += 1;
        let changes = done.changes;
        done.names.insert(number, (changes, None));
    }
    let found = client.lookup(&ROOT, Ino::ROOT, &here).await;
    let outcome = match (found, rng.below(6)) {
        (Err(failure), _) if failure.code == Code::NotFound => {
            client.create(&ROOT, Ino::ROOT, &here, &plain_file()).await.map(|made| Some(made.attr))
        }
        (Err(_), _) => return,
        (Ok(attr), 0) => {
            let change = Change { mode: Some(0o600 + rng.below(64) as u32), ..Change::default() };
            client.setattr(&ROOT, attr.ino, &change).await.map(Some)
        }
        (Ok(attr), 1) => client.truncate(&ROOT, attr.ino, rng.below(300_000), None).await.map(Some),
        (Ok(_), 2) => client.unlink(&ROOT, Ino::ROOT, &here).await.map(|()| None),
        (Ok(_), way @ (3 | 4)) => {
            let temporary = name(&format!("new{number}"));
            match client.create(&ROOT, Ino::ROOT, &temporary, &plain_file()).await {
                Ok(made) => {
                    let moved = match way {
                        3 => client.rename(&ROOT, Ino::ROOT, &temporary, Ino::ROOT, &here, false).await,
                        _ => client.exchange(&ROOT, Ino::ROOT, &temporary, Ino::ROOT, &here).await,
                    };
                    moved.map(|()| Some(made.attr))
                }
                Err(failure) => Err(failure),
            }
        }
        (Ok(_), _) => {
            let away = name(&format!("old{number}"));
            client.rename(&ROOT, Ino::ROOT, &here, Ino::ROOT, &away, false).await.map(|()| None)
        }
    };
    let mut done = done.lock();
    done.changes += 1;
    let changes = done.changes;
    if let Ok(attr) = outcome {
        done.names.insert(number, (changes, Some(attr.as_ref().map_or(Ino(0), |attr| attr.ino))));
        if let Some(attr) = attr {
            let time = done.times.entry(attr.ino).or_default();
            *time = (*time).max(attr.ctime);
        }
    }
}

/// Runs believers, changers and an enemy; returns the wrong beliefs, and how many answers were believed.
fn run(seed: u64, faults: Faults, switches: Switches, enemy: bool) -> (Vec<String>, u64) {
    let sim = Sim::new(seed, faults);
    let published_bytes = if seed.is_multiple_of(2) { 0 } else { 1 << 20 };
    let cluster = Cluster::new(sim.clone(), Layout { switches, published_bytes, ..Layout::of(SERVERS) });
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let mut hits = 0;
    sim.set_time_limit(Duration::from_secs(3600));
    sim.block_on(async {
        cluster.start().await.expect("a cluster starts");
        let done = Arc::new(Mutex::new(Done::default()));
        let mut tasks = Vec::new();
        let mut all = Vec::new();
        for reader in 0..2 {
            let client = cluster.connect(reader).await.expect("a client connects");
            let believed = believe(&client, &sim);
            all.push(believed.clone());
            let (done, wrong, sim) = (done.clone(), wrong.clone(), sim.clone());
            let mut rng = sim.rng(&format!("reader {reader}"));
            tasks.push(cluster.on_client(reader, async move {
                for _ in 0..600 {
                    let number = rng.below(FILES);
                    let (name_before, times_before) = {
                        let done = done.lock();
                        (done.names.get(&number).copied(), done.times.clone())
                    };
                    let began_ns = sim.now_ns();
                    let Some((ino, ctime)) = believed.look(&client, number).await else { continue };
                    let name_after = done.lock().names.get(&number).copied();
                    // The name was at rest, and its target is known.
                    if name_before == name_after
                        && let Some((_, Some(expected))) = name_before
                        && expected != ino
                    {
                        wrong.lock().push(format!("at {began_ns}: f{number} is {expected}, was believed {ino}"));
                    }
                    if let Some(time) = times_before.get(&ino)
                        && ctime < *time
                    {
                        wrong.lock().push(format!("at {began_ns}: inode {ino} of {time:?}, was believed {ctime:?}"));
                    }
                    sim.sleep(Duration::from_micros(rng.below(20_000))).await;
                }
            }));
        }
        for changer in 0..2u64 {
            let client = cluster.connect(2 + changer as usize).await.expect("a client connects");
            // A changer that listens, too: servers send it no recalls for its own changes.
            let _believed = (changer == 0).then(|| believe(&client, &sim));
            let (done, sim) = (done.clone(), sim.clone());
            let mut rng = sim.rng(&format!("changer {changer}"));
            tasks.push(cluster.on_client(2 + changer as usize, async move {
                for _ in 0..60 {
                    let number = rng.below(FILES / 2) * 2 + changer;
                    change(&client, &mut rng, number, &done).await;
                    sim.sleep(Duration::from_micros(rng.below(150_000))).await;
                }
            }));
        }
        if enemy {
            let mut rng = sim.rng("enemy");
            for _ in 0..6 {
                sim.sleep(Duration::from_millis(rng.below(700))).await;
                let (client, server) = (client_node(rng.below(2) as usize), server_node(rng.below(3) as u16));
                let ways = [(&client, &server), (&server, &client)];
                for (from, to) in &ways[rng.below(2) as usize..] {
                    sim.set_link(from, to, Link::Down);
                }
                sim.sleep(Duration::from_millis(rng.below(3000))).await;
                sim.heal();
            }
            cluster.kill_client(1);
        }
        for task in tasks {
            // One of the believers may have been killed.
            let _ = task.await;
        }
        hits = all.iter().map(|believed| *believed.hits.lock()).sum();
    });
    cluster.end();
    let wrong = wrong.lock().clone();
    (wrong, hits)
}

#[test]
fn what_is_believed_is_true_on_a_quiet_network() {
    for seed in seeds(10) {
        let (wrong, hits) = run(seed, Faults::default(), Switches::default(), false);
        assert_eq!(wrong, Vec::<String>::new(), "seed {seed}");
        assert!(hits > 100, "seed {seed}: {hits} answers were believed");
    }
}

#[test]
fn what_is_believed_is_true_on_a_rough_network_with_dead_believers() {
    for seed in seeds(30) {
        let (wrong, _) = run(seed, rough(), Switches::default(), true);
        assert_eq!(wrong, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn changes_that_do_not_wait_are_noticed() {
    let switches = Switches::without(Sabotage::SkipRecallWait);
    assert!((0..20).any(|seed| !run(seed, Faults::default(), switches, false).0.is_empty()));
}

#[test]
fn changes_that_overlook_claims_are_noticed() {
    let switches = Switches::without(Sabotage::SkipClaims);
    assert!((0..20).any(|seed| !run(seed, Faults::default(), switches, false).0.is_empty()));
}

/// Leases at all servers, and sessions that listen.
fn counts(cluster: &Cluster) -> (usize, usize) {
    let counts = cluster.servers().into_iter().map(|server| server.lease_counts());
    counts.fold((0, 0), |sum, (leases, listeners)| (sum.0 + leases, sum.1 + listeners))
}

#[test]
fn leases_are_freed_when_a_client_ends_dies_or_asks_no_more() {
    with_cluster(SERVERS, |cluster, one| async move {
        for number in 0..50 {
            create(&one, Ino::ROOT, &format!("f{number}")).await;
        }
        for end in 0..3 {
            let client = cluster.connect(1).await.expect("a client connects");
            let believed = believe(&client, &cluster.sim);
            for _ in 0..2 {
                for number in 0..50 {
                    assert!(believed.look(&client, number).await.is_some());
                }
                // By now it listens, and has been told so.
                believed.names.lock().clear();
                cluster.sim.sleep(Duration::from_millis(10)).await;
            }
            let (leases, listeners) = counts(&cluster);
            assert!(leases >= 40 && listeners >= 1, "{leases} leases, {listeners} listeners");
            match end {
                0 => client.close().await.expect("the servers answer"),
                1 => cluster.kill_client(1),
                _ => {}
            }
            // A change does not wait for a session that has ended; for one that is dead as long as leases last.
            let before_ns = cluster.sim.now_ns();
            one.unlink(&ROOT, Ino::ROOT, &file_name(end)).await.expect("it is there");
            create(&one, Ino::ROOT, &format!("f{end}")).await;
            let took = Duration::from_nanos(cluster.sim.now_ns() - before_ns);
            let longest = [100, u64::from(LEASE_MS) * 3 / 2 + 100, 100][end as usize];
            assert!(took < Duration::from_millis(longest), "end {end}: a change took {took:?}");
            cluster.sim.sleep(Duration::from_millis(SESSION_GRACE_MS)).await;
            assert_eq!(counts(&cluster), (0, 0), "end {end}");
        }
    });
}

#[test]
fn what_is_read_without_a_request_is_claimed_and_recalled() {
    with_layout(Layout { published_bytes: 1 << 20, ..Layout::of(SERVERS) }, |cluster, one| async move {
        for number in 0..50 {
            create(&one, Ino::ROOT, &format!("f{number}")).await;
        }
        let wants = cluster.connect(1).await.expect("a client connects");
        let wants_none = cluster.connect(2).await.expect("a client connects");
        let _believed = believe(&wants, &cluster.sim);
        for round in 0..3 {
            for number in 0..50 {
                for client in [&wants, &wants_none] {
                    let unasked = client.answers_without_request();
                    let looked = client.lookup_within(&ROOT, Ino::ROOT, &file_name(number), Duration::ZERO).await;
                    let looked = looked.expect("it is there");
                    let asked = client.getattr_within(&ROOT, looked.attr.ino, Duration::ZERO).await;
                    let leases = [looked.lease, asked.expect("it is there").lease];
                    // A server is listened to from the first question on, and then gives leases.
                    let expected = Arc::ptr_eq(client, &wants);
                    if round > 0 {
                        assert_eq!(leases.map(|lease| lease.is_some()), [expected; 2], "round {round}, f{number}");
                        assert_eq!(client.answers_without_request(), unasked + 2, "round {round}, f{number}");
                    }
                }
            }
            cluster.sim.sleep(Duration::from_millis(10)).await;
        }
        // A client lets go of claimed answers before a change returns, and is recalled again only after a new
        // claim: also when the name is removed, and when periods have passed meanwhile.
        let mut lease = None;
        for round in 0..8u32 {
            if round % 2 == 0 {
                let aged = wants.lookup_within(&ROOT, Ino::ROOT, &file_name(7), Duration::ZERO).await;
                let aged = aged.expect("it is there");
                assert!(round == 0 || aged.attr.mode == 0o600 + round - 1, "round {round}");
                assert!(!wants.lease_left(aged.lease, aged.attr.ino).is_zero(), "round {round}");
                lease = Some(aged);
            }
            let aged = lease.as_ref().expect("looked at first");
            let change = Change { mode: Some(0o600 + round), ..Change::default() };
            wants_none.setattr(&ROOT, aged.attr.ino, &change).await.expect("changed");
            assert!(wants.lease_left(aged.lease, aged.attr.ino).is_zero(), "round {round}");
            cluster.sim.sleep(Duration::from_millis(u64::from(round % 3) * 1_400)).await;
        }
        let aged = wants.lookup_within(&ROOT, Ino::ROOT, &file_name(9), Duration::ZERO).await.expect("it is there");
        assert!(!wants.lease_left(aged.lease, aged.attr.ino).is_zero());
        wants_none.unlink(&ROOT, Ino::ROOT, &file_name(9)).await.expect("it is there");
        assert!(wants.lease_left(aged.lease, aged.attr.ino).is_zero());
        // A change waits for a dead client with claims for as long as leases last, and not at all once they
        // have expired.
        for number in [11, 12, 13] {
            let aged = wants.lookup_within(&ROOT, Ino::ROOT, &file_name(number), Duration::ZERO).await;
            assert!(aged.expect("it is there").lease.is_some(), "f{number}");
        }
        cluster.kill_client(1);
        for (number, pause_ms, longest_ms) in [(11, 0, u64::from(LEASE_MS) * 3 / 2 + 100), (12, 6_000, 100)] {
            cluster.sim.sleep(Duration::from_millis(pause_ms)).await;
            let before_ns = cluster.sim.now_ns();
            one.unlink(&ROOT, Ino::ROOT, &file_name(number)).await.expect("it is there");
            let took = Duration::from_nanos(cluster.sim.now_ns() - before_ns);
            assert!(took < Duration::from_millis(longest_ms), "f{number}: a change took {took:?}");
        }
    });
}

/// No recall says that: the answer to the rename does.
#[test]
fn who_renames_lets_go_before_it_returns() {
    with_cluster(SERVERS, |cluster, one| async move {
        let mut inos = Vec::new();
        for number in 0..20 {
            inos.push(create(&one, Ino::ROOT, &format!("f{number}")).await.ino());
        }
        let client = cluster.connect(1).await.expect("a client connects");
        let let_go = Arc::new(Mutex::new(Vec::new()));
        let told = let_go.clone();
        client.listen(Box::new(move |recalls| {
            told.lock().extend(recalls.iter().map(|recall| (recall.ino, recall.names)));
            Box::pin(async {})
        }));
        for round in 0..2 {
            for number in 0..20 {
                let aged = client.lookup_within(&ROOT, Ino::ROOT, &file_name(number), Duration::ZERO).await;
                let aged = aged.expect("it is there");
                assert!(round == 0 || !client.lease_left(aged.lease, aged.attr.ino).is_zero(), "f{number}");
            }
            cluster.sim.sleep(Duration::from_millis(10)).await;
        }
        for number in 0..10 {
            let (here, there) = (file_name(number), name(&format!("g{number}")));
            let aged = client.lookup_within(&ROOT, Ino::ROOT, &here, Duration::ZERO).await.expect("it is there");
            client.rename(&ROOT, Ino::ROOT, &here, Ino::ROOT, &there, false).await.expect("renamed");
            assert_eq!(std::mem::take(&mut *let_go.lock()), [(inos[number as usize], true)], "f{number}");
            assert!(client.lease_left(aged.lease, aged.attr.ino).is_zero(), "f{number}");
        }
        // Both of an exchange; one may be recalled as well.
        for number in (10..20).step_by(2) {
            let (first, second) = (file_name(number), file_name(number + 1));
            client.exchange(&ROOT, Ino::ROOT, &first, Ino::ROOT, &second).await.expect("exchanged");
            let let_go = std::mem::take(&mut *let_go.lock());
            for ino in &inos[number as usize..number as usize + 2] {
                assert!(let_go.contains(&(*ino, true)), "f{number}: {let_go:?}");
            }
        }
    });
}
