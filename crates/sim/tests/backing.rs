//! Volumes over a backing that is slow, gives errors and changes underneath, while clients read, write and remove, and
//! servers are killed. No seed may find a byte that is neither of the version of the file that the volume has taken over
//! nor of a later write, nor a name that was removed.
//!
//! Each file has one writer, which writes ever larger marks to a part of each chunk. The rest of a file is one byte, over
//! and over, in each version another one, so that two versions show in any two bytes.

#[allow(dead_code, reason = "this file makes its clusters itself")]
mod support;

use aze_client::{Access, Client};
use aze_io::Io;
use aze_io::sim::{DRIVER, Faults, Sim};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, Ino};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::backing::{Moods, SimBacking};
use aze_sim::cluster::{CHUNK_BITS, Layout};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use support::{ROOT, name};

const CHUNK: u64 = 1 << CHUNK_BITS;
const CLIENTS: usize = 3;
const FILES: usize = 3;
const CHUNKS: u64 = 3;
/// Names that are removed.
const DOOMED: usize = 12;
/// What each client does before a run ends.
const STEPS: u32 = 60;
/// Marks are bytes from here on, versions below.
const MARK_MIN: u8 = 128;
/// Where in each chunk marks are, and how many bytes they have.
const MARK_AT: u64 = 1000;
const MARK_BYTES: usize = 50;
const BOTH: Access = Access { read: true, write: true };

#[derive(Clone, Default)]
struct Known {
    /// The version that the volume has taken over, once a byte of it was seen.
    version: Option<u8>,
    /// Of each chunk: the last mark that was tried, and the last that was answered.
    marks: [(u8, u8); CHUNKS as usize],
}

#[derive(Default)]
struct Model {
    files: Vec<Known>,
    removed: BTreeSet<usize>,
    wrong: Vec<String>,
    /// What went well, so that a run is known to have tried something.
    reads: u64,
    writes: u64,
    done: usize,
}

type Shared = Arc<Mutex<Model>>;

fn file_bytes(version: u8) -> Vec<u8> {
    vec![version; (CHUNKS * CHUNK) as usize]
}

async fn open(client: &Client, file: usize) -> Result<Arc<aze_client::File>, Failure> {
    let dir = client.lookup(&ROOT, Ino::ROOT, &name("d")).await?.ino;
    let ino = client.lookup(&ROOT, dir, &name(&format!("f{file}"))).await?.ino;
    client.open(&ROOT, ino, BOTH).await
}

/// Reads around the marks of a chunk, and compares.
async fn read(client: &Client, file: usize, chunk: u64, model: &Shared) -> Result<(), Failure> {
    let opened = open(client, file).await?;
    let before = model.lock().files[file].marks[chunk as usize].1;
    let start = chunk * CHUNK + MARK_AT - 100;
    let bytes = opened.read(start, MARK_BYTES + 200).await;
    let after = model.lock().files[file].marks[chunk as usize].0;
    opened.close().await?;
    let bytes = bytes?;
    let mut model = model.lock();
    model.reads += 1;
    let (marks, rest): (Vec<_>, Vec<_>) =
        bytes.iter().copied().enumerate().partition(|(at, _)| (100..100 + MARK_BYTES).contains(at));
    let version = *model.files[file].version.get_or_insert(rest.first().map_or(0, |(_, byte)| *byte));
    let is_version = |byte: u8| byte == version && (1..MARK_MIN).contains(&version);
    let is_mark = |byte: u8| byte >= before.max(MARK_MIN) && byte <= after;
    let is_right = bytes.len() == MARK_BYTES + 200
        && rest.iter().all(|(_, byte)| is_version(*byte))
        && marks.iter().all(|(_, byte)| is_mark(*byte) || before == 0 && is_version(*byte));
    if !is_right {
        let text = format!(
            "file {file}, chunk {chunk}: version {version}, marks {before} to {after}: {:?} and {:?}",
            rest.iter().map(|(_, byte)| *byte).collect::<BTreeSet<u8>>(),
            marks.iter().map(|(_, byte)| *byte).collect::<BTreeSet<u8>>()
        );
        model.wrong.push(text);
    }
    Ok(())
}

/// Writes the next mark to a chunk.
async fn write(client: &Client, file: usize, chunk: u64, model: &Shared) -> Result<(), Failure> {
    let opened = open(client, file).await?;
    let mark = {
        let marks = &mut model.lock().files[file].marks[chunk as usize];
        marks.0 = marks.0.max(MARK_MIN - 1) + 1;
        marks.0
    };
    let written = opened.write(chunk * CHUNK + MARK_AT, &[mark; MARK_BYTES]).await;
    if written.is_ok() {
        let mut model = model.lock();
        model.files[file].marks[chunk as usize].1 = mark;
        model.writes += 1;
    }
    opened.close().await?;
    written
}

/// Removes a name, or looks whether one that was removed has come back.
async fn names(client: &Client, io: &Io, model: &Shared) -> Result<(), Failure> {
    let dir = client.lookup(&ROOT, Ino::ROOT, &name("d")).await?.ino;
    let number = (io.random_u64() % DOOMED as u64) as usize;
    let text = name(&format!("n{number}"));
    let was_removed = model.lock().removed.contains(&number);
    if !was_removed {
        client.unlink(&ROOT, dir, &text).await?;
        model.lock().removed.insert(number);
        return Ok(());
    }
    match client.lookup(&ROOT, dir, &text).await {
        Err(failure) if failure.code == Code::NotFound => Ok(()),
        Err(failure) => Err(failure),
        Ok(_) => {
            model.lock().wrong.push(format!("name n{number} has come back"));
            Ok(())
        }
    }
}

async fn work(client: Arc<Client>, io: Io, me: usize, model: Shared) {
    for _ in 0..STEPS {
        let chunk = io.random_u64() % CHUNKS;
        // What fails is tried again, or not: errors are what this backing gives.
        let _ = match io.random_u64() % 4 {
            0 => write(&client, me % FILES, chunk, &model).await,
            1 => names(&client, &io, &model).await,
            _ => read(&client, (io.random_u64() % FILES as u64) as usize, chunk, &model).await,
        };
        io.sleep(Duration::from_millis(io.random_u64() % 40)).await;
    }
    model.lock().done += 1;
}

/// Changes files underneath, each to a version that it never had, until all clients are done; kills servers that come back.
async fn disturb(cluster: &Arc<Cluster>, backing: &SimBacking, model: &Shared) {
    let mut rng = cluster.sim.rng("changes");
    let mut versions = [1u8; FILES];
    while model.lock().done < CLIENTS {
        cluster.sim.sleep(Duration::from_millis(1 + rng.below(150))).await;
        let file = rng.below(FILES as u64) as usize;
        if versions[file] < MARK_MIN - 1 && rng.chance(300_000) {
            versions[file] += 1;
            let (path, bytes) = (format!("d/f{file}"), file_bytes(versions[file]));
            if rng.chance(500_000) { backing.change(&path, bytes) } else { backing.make_file(&path, bytes) }
        }
        if cluster.layout().durability.is_some() && rng.chance(30_000) {
            let server = rng.below(u64::from(cluster.layout().servers)) as u16;
            cluster.kill_server(server, false);
            cluster.sim.sleep(Duration::from_millis(rng.below(100))).await;
            cluster.bring_back(server).await.expect("it comes back");
        }
    }
}

/// One run; gives what went wrong, and how many reads and writes went well.
fn run(seed: u64, switches: Switches, durability: Option<Durability>) -> (Vec<String>, u64, u64) {
    let sim = Sim::new(seed, Faults::default());
    let backing = SimBacking::new(sim.node(DRIVER));
    backing.make_dir("d");
    (0..FILES).for_each(|file| backing.make_file(&format!("d/f{file}"), file_bytes(1)));
    (0..DOOMED).for_each(|number| backing.make_file(&format!("d/n{number}"), Vec::new()));
    let layout = Layout { durability, switches, backing: Some(backing.clone()), ..Layout::of(3) };
    let cluster = Cluster::new(sim.clone(), layout);
    let model: Shared = Arc::default();
    model.lock().files = vec![Known::default(); FILES];
    sim.block_on(async {
        cluster.start().await.expect("a quiet cluster starts");
        let moods = Moods { slow_ms: 30, error_ppm: 20_000, denied_ppm: 5_000, hung_ppm: 2_000 };
        backing.set_moods(moods);
        cluster.sim.set_faults(Faults { duplicate_ppm: 20_000, loss_ppm: 5_000, ..Faults::default() });
        let mut tasks = Vec::new();
        for me in 0..CLIENTS {
            let client = cluster.connect(me).await.expect("a client connects");
            let io = cluster.client_io(me);
            tasks.push(cluster.on_client(me, work(client, io, me, model.clone())));
        }
        disturb(&cluster, &backing, &model).await;
        cluster.sim.set_faults(Faults::default());
        backing.set_moods(Moods::default());
        let client = cluster.connect(1000).await.expect("a client connects");
        // All removed names stay removed, and all marks are there.
        let dir = client.lookup(&ROOT, Ino::ROOT, &name("d")).await.expect("it is there").ino;
        let removed = model.lock().removed.clone();
        for number in removed {
            if client.lookup(&ROOT, dir, &name(&format!("n{number}"))).await.is_ok() {
                model.lock().wrong.push(format!("name n{number} has come back at the end"));
            }
        }
        for file in 0..FILES {
            for chunk in 0..CHUNKS {
                match read(&client, file, chunk, &model).await {
                    Err(failure) if failure.code != Code::Changed => {
                        model.lock().wrong.push(format!("file {file}, chunk {chunk}: {failure}"));
                    }
                    // Nobody has read it in time.
                    Err(failure) if model.lock().files[file].marks[chunk as usize].1 > 0 => {
                        model.lock().wrong.push(format!("file {file}, chunk {chunk}, was written: {failure}"));
                    }
                    _ => {}
                }
            }
        }
    });
    cluster.end();
    let model = model.lock();
    (model.wrong.clone(), model.reads, model.writes)
}

#[test]
fn a_byte_is_of_the_version_taken_over_or_of_a_later_write() {
    let (mut reads, mut writes) = (0, 0);
    for seed in 0..100 {
        let durability = (seed % 3 == 2).then_some(Durability::Fsync);
        let (wrong, read, written) = run(seed, Switches::default(), durability);
        assert_eq!(wrong, [""; 0], "seed {seed}");
        reads += read;
        writes += written;
    }
    assert!(reads > 500 && writes > 100, "{reads} reads and {writes} writes went well");
}

#[test]
fn a_volume_that_mixes_versions_or_forgets_removals_is_noticed() {
    for removed in [Sabotage::AnyBackingFile, Sabotage::ImportAgain, Sabotage::WriteWithoutRest] {
        let found = (0..60).find(|seed| !run(*seed, Switches::without(removed), None).0.is_empty());
        assert!(found.is_some(), "{removed:?} is not noticed");
    }
}
