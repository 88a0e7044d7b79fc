//! What clients believe when servers come back: an earlier life has told them, and the new one does not
//! know whom.

use crate::support::{ROOT, create, name, opened_file, with_cluster, with_layout};
use aze_client::{Client, NewFile};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Attr, Change, Code, Failure, FileKind, Ino, XattrHow};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const FILES: u64 = 60;
const SERVERS: u16 = 3;

fn file_name(number: u64) -> aze_proto::Name {
    name(&format!("f{number}"))
}

/// One change of each kind.
async fn change(client: &Client, number: u64, attr: &Attr) -> Result<(), Failure> {
    let here = file_name(number);
    match number % 5 {
        0 => {
            let change = Change { mode: Some(0o600), ..Change::default() };
            client.setattr(&ROOT, attr.ino, &change).await.map(drop)
        }
        1 => client.truncate(&ROOT, attr.ino, 7, None).await.map(drop),
        2 => client.unlink(&ROOT, Ino::ROOT, &here).await,
        3 => client.rename(&ROOT, Ino::ROOT, &here, Ino::ROOT, &name(&format!("new{number}")), false).await,
        _ => {
            // Where the name is lost it may be had again.
            let kind = FileKind::File;
            let new = NewFile {
                kind,
                mode: 0o644,
                rdev: 0,
                target: Vec::new(),
                exclusive: true,
                open: None,
                chunk_bits: 0,
                private: false,
            };
            match client.create(&ROOT, Ino::ROOT, &here, &new).await {
                Err(failure) if failure.code == Code::Exists => client.unlink(&ROOT, Ino::ROOT, &here).await,
                made => made.map(drop),
            }
        }
    }
}

/// How the changes after a comeback ended.
#[derive(Debug, Default)]
struct Ends {
    /// Leases that were believed when the servers were back.
    believed: usize,
    /// Changes that were done and are not in `wrong`, and those that failed.
    done: usize,
    failed: BTreeMap<String, usize>,
    /// Files that the reader still believed after their change was done.
    wrong: Vec<u64>,
}

/// A client believes files, servers end and come back at once, and another client changes all the files.
async fn come_back(cluster: &Arc<Cluster>, one: &Client) -> Ends {
    for number in 0..FILES {
        create(one, Ino::ROOT, &format!("f{number}")).await;
    }
    let reader = cluster.connect(1).await.expect("a client connects");
    reader.listen(Box::new(|_| Box::pin(async {})));
    let mut known = Vec::new();
    for _ in 0..2 {
        known.clear();
        for number in 0..FILES {
            let aged = reader.lookup_within(&ROOT, Ino::ROOT, &file_name(number), Duration::ZERO).await;
            known.push(aged.expect("it is there"));
        }
        // By now it listens, and has been told so.
        cluster.sim.sleep(Duration::from_millis(10)).await;
    }
    if cluster.layout().durability.is_some() {
        (0..SERVERS).for_each(|server| cluster.kill_server(server, false));
        cluster.begin_another_start();
        cluster.start().await.expect("it starts again");
    } else {
        cluster.kill_server(1, false);
        cluster.start_server(1).await.expect("it starts again");
    }
    // A change that meets a new start ends with an unknown outcome.
    let _ = one.lookup(&ROOT, Ino::ROOT, &file_name(0)).await;
    let is_believed = |number: usize| !reader.lease_left(known[number].lease, known[number].attr.ino).is_zero();
    let believed = (0..FILES as usize).filter(|number| is_believed(*number)).count();
    let ends = Mutex::new(Ends { believed, ..Ends::default() });
    let changes = (0..FILES).map(|number| {
        let (ends, attr) = (&ends, &known[number as usize].attr);
        async move {
            let outcome = change(one, number, attr).await;
            let mut ends = ends.lock();
            match outcome {
                Ok(()) if is_believed(number as usize) => ends.wrong.push(number),
                Ok(()) => ends.done += 1,
                Err(failure) => *ends.failed.entry(format!("{:?}", failure.code)).or_default() += 1,
            }
        }
    });
    join_all(changes).await;
    ends.into_inner()
}

fn persistent(switches: Switches) -> Layout {
    Layout { durability: Some(Durability::Fsync), switches, ..Layout::of(SERVERS) }
}

/// The new life waits for as long as what the earlier one has said may be believed.
#[test]
fn what_servers_said_before_they_were_started_again_is_not_believed_after_a_change() {
    with_layout(persistent(Switches::default()), |cluster, one| async move {
        let ends = come_back(&cluster, &one).await;
        assert_eq!((ends.believed, ends.done), (FILES as usize, FILES as usize), "{ends:?}");
    });
}

#[test]
fn a_server_that_does_not_wait_for_its_earlier_life_is_noticed() {
    with_layout(persistent(Switches::without(Sabotage::SkipComebackWait)), |cluster, one| async move {
        let ends = come_back(&cluster, &one).await;
        assert!(!ends.wrong.is_empty(), "{ends:?}");
    });
}

/// What a server in memory has said is lost with it: no request can change it any more.
#[test]
fn what_a_server_that_comes_back_empty_has_said_is_changed_by_nobody() {
    with_cluster(SERVERS, |cluster, one| async move {
        let ends = come_back(&cluster, &one).await;
        assert!(ends.believed > FILES as usize / 2 && ends.wrong.is_empty(), "{ends:?}");
        assert!(ends.failed.keys().all(|code| code == "Lost") && !ends.failed.is_empty(), "{ends:?}");
    });
}

/// Operations wait for a start that is under way, however long it takes: server 0 is there at once, and waits for the
/// others, which come after four times what a request may take.
#[test]
fn operations_wait_for_a_start_under_way() {
    with_layout(persistent(Switches::default()), |cluster, one| async move {
        for number in 0..FILES {
            create(&one, Ino::ROOT, &format!("f{number}")).await;
        }
        (0..SERVERS).for_each(|server| cluster.kill_server(server, false));
        cluster.begin_another_start();
        let late = cluster.layout().deadline * 4;
        let starts = (0..SERVERS).map(|server| {
            let cluster = cluster.clone();
            cluster.clone().on_driver(async move {
                cluster.sim.sleep(if server == 0 { Duration::ZERO } else { late }).await;
                cluster.start_server(server).await
            })
        });
        let starts: Vec<_> = starts.collect();
        let looks = (0..FILES).map(|number| {
            let one = one.clone();
            cluster.on_client(0, async move { one.lookup(&ROOT, Ino::ROOT, &file_name(number)).await.map(drop) })
        });
        let looks: Vec<_> = looks.collect();
        let other = cluster.clone();
        let connects = cluster.on_driver(async move { other.connect(2).await.map(drop) });
        let found = join_all(looks).await;
        assert_eq!(found.len(), FILES as usize);
        assert!(found.iter().all(|found| *found == Ok(Ok(()))), "{found:?}");
        assert_eq!(connects.await, Ok(Ok(())));
        for started in starts {
            assert_eq!(started.await, Ok(Ok(())));
        }
    });
}

/// Changes whose second execution would show, each by a task of its own, while all servers are killed and started again.
/// Gives what went wrong.
async fn changes_under_a_start(cluster: &Arc<Cluster>, one: &Client, pause: Duration) -> Vec<String> {
    let mut files = Vec::new();
    for number in 0..FILES {
        files.push(create(one, Ino::ROOT, &format!("f{number}")).await);
    }
    let changes = files.iter().zip(0..).map(|(file, number)| async move {
        match number % 4 {
            0 => one.unlink(&ROOT, Ino::ROOT, &file_name(number)).await.map(|()| 0),
            1 => file.append(b"once").await,
            2 => one.set_xattr(&ROOT, file.ino(), b"user.a", b"b", XattrHow::Create).await.map(|()| 0),
            _ => {
                let new = NewFile { exclusive: true, ..opened_file() };
                one.create(&ROOT, Ino::ROOT, &name(&format!("made{number}")), &new).await.map(|_| 0)
            }
        }
    });
    let end = async {
        cluster.sim.sleep(pause).await;
        (0..SERVERS).for_each(|server| cluster.kill_server(server, false));
        cluster.begin_another_start();
        cluster.start().await.expect("it starts again");
    };
    let (outcomes, ()) = futures_util::future::join(join_all(changes), end).await;
    assert_eq!(outcomes.len(), FILES as usize);
    let wrong = outcomes.into_iter().zip(0u64..).filter_map(|(outcome, number)| match outcome {
        Ok(0) => None,
        other => Some(format!("{number}: {other:?}")),
    });
    wrong.collect()
}

fn pauses() -> impl Iterator<Item = Duration> {
    (0..12).map(|step| Duration::from_micros(50 * step))
}

/// A server that starts again knows how requests ended whose answers were lost: a client that repeats one gets its
/// outcome, and none is done twice.
#[test]
fn a_change_whose_answer_was_lost_has_its_outcome_after_a_start() {
    for pause in pauses() {
        with_layout(persistent(Switches::default()), move |cluster, one| async move {
            let wrong = changes_under_a_start(&cluster, &one, pause).await;
            assert_eq!(wrong, [] as [String; 0], "{pause:?}");
        });
    }
}

#[test]
fn a_server_that_forgets_outcomes_is_noticed() {
    let count = Arc::new(Mutex::new(0));
    for pause in pauses() {
        let count = count.clone();
        with_layout(persistent(Switches::without(Sabotage::ForgetOutcomes)), move |cluster, one| async move {
            *count.lock() += changes_under_a_start(&cluster, &one, pause).await.len();
        });
    }
    assert!(*count.lock() > 0);
}

/// An operation that contradicts its shard ends the service of its server, which says why; a start heals it.
#[test]
fn a_server_whose_shard_is_contradicted_serves_nothing_more() {
    with_layout(persistent(Switches::default()), |cluster, one| async move {
        let made = create(&one, Ino::ROOT, "before").await;
        made.write(0, b"kept").await.expect("it can be written");
        let server = cluster.servers().into_iter().last().expect("there are servers");
        assert_eq!(server.status().failure, "");
        server.contradict();
        let why = server.status().failure;
        assert!(why.contains("contradict") && why.contains("Unlock") && why.contains("aze restart"), "{why}");
        let mut codes = std::collections::BTreeSet::new();
        for number in 0..FILES {
            if let Err(failure) = one.lookup(&ROOT, Ino::ROOT, &file_name(number)).await {
                codes.insert(failure.code);
            }
        }
        assert_eq!(codes.into_iter().collect::<Vec<_>>(), [Code::NotFound, Code::Lost], "the other servers serve");
        let status = one.status().await.into_iter().last().expect("an answer of each").1.expect("it is answered");
        assert_eq!(status.failure, why);
        (0..SERVERS).for_each(|server| cluster.kill_server(server, false));
        cluster.begin_another_start();
        cluster.start().await.expect("it starts again");
        assert_eq!(made.read(0, 16).await, Ok(b"kept".to_vec()));
        assert_eq!(cluster.servers().into_iter().last().expect("there are servers").status().failure, "");
    });
}
