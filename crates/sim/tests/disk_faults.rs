//! One call to a disk fails, whichever it is, of a small workload and of a start: an error that says so,
//! nothing lost that was acknowledged as durable, and a start that works afterwards. A sync that failed is
//! never made good by a later one (the simulated disk loses the bytes that it was to make durable).
//!
//! `AZE_TEST_LONG` looks at every call; without it at every third, which is another one for each trouble.

use aze_client::{Access, Client, File, NewFile};
use aze_io::sim::{DiskFault, DiskTrouble, Faults, Sim};
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, FileKind, Identity, Ino, Name};
use aze_sim::cluster::{CHUNK_BITS, Cluster, Layout, server_node};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

static ROOT: Identity = Identity { uid: 0, gid: 0, groups: Vec::new() };

const TROUBLES: [DiskTrouble; 4] =
    [DiskTrouble::Full, DiskTrouble::Failed, DiskTrouble::TooManyFiles, DiskTrouble::Short];

/// The server whose disk fails.
const SICK: u16 = 0;

/// Rounds of the workload.
const ROUNDS: u8 = 24;

/// More calls than any run makes.
const CALLS_MAX: u64 = 5_000;

/// The rounds that a file's bytes may come from: at least the last one synced, and at most the last one tried.
#[derive(Clone, Copy, Default)]
struct Known {
    sure: u8,
    tried: u8,
}

type Book = BTreeMap<String, Known>;

fn long() -> bool {
    std::env::var_os("AZE_TEST_LONG").is_some()
}

fn cluster(seed: u64) -> Arc<Cluster> {
    let sim = Sim::new(seed, Faults::default());
    sim.set_time_limit(Duration::from_secs(600));
    let layout = Layout {
        durability: Some(Durability::Fsync),
        checkpoint_bytes: 300 << 10,
        memory_bytes: 1 << 20,
        deadline: Duration::from_secs(2),
        ..Layout::of(2)
    };
    Cluster::new(sim, layout)
}

/// Whether a client may be told this when a disk does not work.
fn is_clean(failure: &Failure) -> bool {
    let code = matches!(
        failure.code,
        Code::Lost | Code::NoSpace | Code::UnknownOutcome | Code::TimedOut | Code::Unreachable | Code::Corrupt
    );
    code && !failure.to_string().is_empty()
}

async fn make(client: &Arc<Client>, name: &str) -> Result<Arc<File>, Failure> {
    let name = Name::new(name.as_bytes()).expect("a name");
    match client.lookup(&ROOT, Ino::ROOT, &name).await {
        Ok(attr) => client.open(&ROOT, attr.ino, Access { read: true, write: true }).await,
        Err(failure) if failure.code != Code::NotFound => Err(failure),
        Err(_) => {
            let new = NewFile {
                kind: FileKind::File,
                mode: 0o644,
                rdev: 0,
                target: Vec::new(),
                exclusive: true,
                open: Some(Access { read: true, write: true }),
                chunk_bits: 0,
                private: false,
            };
            let made = client.create(&ROOT, Ino::ROOT, &name, &new).await?;
            Ok(made.file.expect("an open was asked for"))
        }
    }
}

fn bytes(round: u8, file: usize) -> Vec<u8> {
    vec![round; (file * 47_001 + 3000) % (3 << CHUNK_BITS)]
}

/// Writes files whole, syncs them, and keeps a book of it.
async fn work(client: &Arc<Client>, book: &mut Book) -> Result<(), Failure> {
    let mut first = Ok(());
    for round in 1..=ROUNDS {
        let number = usize::from(round) * 5 % 7;
        let name = format!("f{number}");
        let known = book.entry(name.clone()).or_default();
        known.tried = round;
        let done = async {
            let file = make(client, &name).await?;
            file.write(0, &bytes(round, number)).await?;
            file.sync().await
        };
        match done.await {
            Ok(()) => known.sure = round,
            Err(failure) => first = first.and(Err(failure)),
        }
    }
    first
}

async fn look(client: &Arc<Client>, book: &Book) -> Result<(), String> {
    for (name, known) in book {
        let number: usize = name[1..].parse().expect("a number");
        let there = match client.lookup(&ROOT, Ino::ROOT, &Name::new(name.as_bytes()).expect("a name")).await {
            Ok(attr) => attr,
            Err(failure) if failure.code == Code::NotFound && known.sure == 0 => continue,
            Err(failure) => return Err(format!("{name}: {failure}")),
        };
        let file = client.open(&ROOT, there.ino, Access { read: true, write: false }).await;
        let file = file.map_err(|failure| format!("{name}: {failure}"))?;
        let data = file.read(0, 4 << CHUNK_BITS).await.map_err(|failure| format!("{name}: {failure}"))?;
        let len = bytes(0, number).len();
        if data.len() > len || known.sure > 0 && data.len() < len {
            return Err(format!("{name}: {} bytes of {len}", data.len()));
        }
        if let Some(wrong) = data.iter().find(|byte| **byte > known.tried || **byte < known.sure) {
            return Err(format!("{name}: a byte of round {wrong}, between {} and {}", known.sure, known.tried));
        }
    }
    Ok(())
}

/// Ends everything by a power cut, starts the volume again, and compares its files with the book.
async fn end_and_look(cluster: &Arc<Cluster>, book: &Book, who: &str) {
    cluster.kill_all(1, true);
    cluster.sim.set_disk_fault(&server_node(SICK), DiskFault::None);
    match cluster.start().await {
        Ok(()) => {}
        // Its first start has failed at one server when another had its part already: nothing was ever in it.
        Err(failure) if book.is_empty() && failure.detail.contains("or begin with empty ones everywhere") => return,
        Err(failure) => panic!("{who}: the volume does not start again: {failure}"),
    }
    let client = cluster.connect(0).await.unwrap_or_else(|failure| panic!("{who}: {failure}"));
    look(&client, book).await.unwrap_or_else(|why| panic!("{who}: {why}"));
}

/// One run; tells whether the call was there, and whether the failure was noticed.
fn under_work(trouble: DiskTrouble, number: u64) -> (bool, bool) {
    let who = format!("call {number} of those that {trouble:?} can happen to");
    let cluster = cluster(number);
    let told = cluster.sim.clone().block_on(async {
        let mut book = Book::new();
        cluster.sim.set_disk_fault(&server_node(SICK), DiskFault::Once(number, trouble));
        let result = match cluster.start().await {
            Ok(()) => match cluster.connect(0).await {
                Ok(client) => work(&client, &mut book).await,
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        let happened = cluster.sim.disk_fault(&server_node(SICK)) == DiskFault::None;
        let noticed = result.is_err();
        if let Err(failure) = result {
            assert!(happened, "{who}: without any trouble: {failure}");
            assert!(is_clean(&failure), "{who}: {:?}: {failure}", failure.code);
        }
        end_and_look(&cluster, &book, &who).await;
        (happened, noticed)
    });
    cluster.end();
    told
}

/// As [`under_work`], but that a start meets the trouble, after a power cut.
fn at_a_start(trouble: DiskTrouble, number: u64) -> (bool, bool) {
    let who = format!("at a start, call {number} of those that {trouble:?} can happen to");
    let cluster = cluster(number);
    let told = cluster.sim.clone().block_on(async {
        let mut book = Book::new();
        cluster.start().await.expect("nothing is wrong");
        let client = cluster.connect(0).await.expect("nothing is wrong");
        work(&client, &mut book).await.expect("nothing is wrong");
        cluster.kill_all(1, true);
        cluster.sim.set_disk_fault(&server_node(SICK), DiskFault::Once(number, trouble));
        let started = cluster.start().await;
        if let Err(failure) = &started {
            assert!(is_clean(failure), "{who}: {:?}: {failure}", failure.code);
        }
        let happened = cluster.sim.disk_fault(&server_node(SICK)) == DiskFault::None;
        end_and_look(&cluster, &book, &who).await;
        (happened, started.is_err())
    });
    cluster.end();
    told
}

fn each_call(run: impl Fn(DiskTrouble, u64) -> (bool, bool), calls_min: u64) {
    let mut noticed = 0;
    for (offset, trouble) in (0..).zip(TROUBLES) {
        let step = if long() { 1 } else { 3 };
        let mut number = if long() { 0 } else { offset % step };
        loop {
            assert!(number < CALLS_MAX, "{trouble:?}: so many calls were not expected");
            let (happened, told) = run(trouble, number);
            if !happened {
                break;
            }
            noticed += u64::from(told);
            number += step;
        }
        println!("{trouble:?}: {number} calls");
        assert!(number >= calls_min, "{trouble:?}: only {number} calls");
    }
    assert!(noticed > 0, "nobody noticed anything");
}

#[test]
fn a_call_that_fails_under_work_costs_nothing_that_was_durable() {
    each_call(under_work, 5);
}

#[test]
fn a_call_that_fails_at_a_start_costs_nothing_that_was_durable() {
    each_call(at_a_start, 2);
}

#[test]
fn a_slow_disk_costs_time_only() {
    let cluster = cluster(1);
    cluster.sim.clone().block_on(async {
        let mut book = Book::new();
        cluster.sim.set_disk_fault(&server_node(SICK), DiskFault::Slow);
        cluster.start().await.expect("nothing is wrong");
        let client = cluster.connect(0).await.expect("nothing is wrong");
        work(&client, &mut book).await.expect("nothing is wrong");
        end_and_look(&cluster, &book, "a slow disk").await;
    });
    cluster.end();
}
