//! Volumes over a backing that is slow, gives errors and changes underneath, while clients read, write and remove, and
//! servers are killed. No seed may find a byte that is neither of the version of the file that the volume has taken over
//! nor of a later write, nor a name that was removed. Some volumes have less room than the backing has bytes: chunks that were read
//! and not changed have to go, and no others.
//!
//! Each file has one writer, which writes ever larger marks to a part of each chunk. The rest of a file is one byte, over
//! and over, in each version another one, so that two versions show in any two bytes. Holes in the places of marks count as
//! marks; a chunk may become a hole as a whole, and has zeros besides its marks then. `AZE_SIM_SEEDS` sets how many seeds,
//! `AZE_SIM_FROM` the first.

use crate::many::number;
use crate::support::{ROOT, name};
use aze_client::{Access, Client, NewFile, Room};
use aze_io::Io;
use aze_io::sim::{DRIVER, Faults, Sim};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, FileKind, Gone, Ino};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::backing::{Moods, SimBacking};
use aze_sim::cluster::{CHUNK_BITS, Layout};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const CHUNK: u64 = 1 << CHUNK_BITS;
const CLIENTS: usize = 3;
/// Files that are read, in a volume with room for all of them: each client writes to one.
const FILES: usize = 3;
/// The same in a volume without.
const FILES_TIGHT: usize = 24;
/// Room of each server then: 8 of its chunks of 64 KiB, while it has 24 on average, 3 of them written.
const TIGHT_BYTES: u64 = 8 << 16;
const CHUNKS: u64 = 3;
/// Names that are removed.
const DOOMED: usize = 12;
/// Names that are removed, renamed, replaced and given back, by all clients: files and directories by turns.
const MOVED: usize = 6;
/// What each client does before a run ends.
const STEPS: u32 = 60;
/// Bytes of the files among them.
const MOVED_BYTE: u8 = 77;
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
    /// Marks that are holes, by chunk.
    holes: BTreeSet<(u64, u8)>,
    /// Of each chunk: whether it was to become a hole, and whether that was answered.
    emptied: [(bool, bool); CHUNKS as usize],
}

#[derive(Default)]
struct Model {
    files: Vec<Known>,
    removed: BTreeSet<usize>,
    wrong: Vec<String>,
    /// Chunks that went since room was short, on servers that live.
    evicted: u64,
    /// Files that the backing has lost and that still have an inode.
    outlived: u64,
    /// What went well, so that a run is known to have tried something.
    reads: u64,
    writes: u64,
    /// Names that led elsewhere at the end.
    went: usize,
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
    let Known { marks, emptied, .. } = model.lock().files[file].clone();
    let (before, is_empty) = (marks[chunk as usize].1, emptied[chunk as usize].1);
    let start = chunk * CHUNK + MARK_AT - 100;
    // Before the chunk has to be read.
    let data = opened.seek(chunk * CHUNK, false).await;
    let hole = opened.seek(chunk * CHUNK, true).await;
    let bytes = opened.read(start, MARK_BYTES + 200).await;
    let Known { marks, emptied, holes, .. } = model.lock().files[file].clone();
    let (after, may_be_empty) = (marks[chunk as usize].0, emptied[chunk as usize].0);
    opened.close().await?;
    let bytes = bytes?;
    if !may_be_empty
        && [data, hole].iter().zip([chunk * CHUNK, (chunk + 1) * CHUNK]).any(|(found, end)| match found {
            // Versions and marks are no zeros, and a hole in the place of a mark is smaller than a block.
            Ok(at) if end == chunk * CHUNK => *at > end,
            Ok(at) => *at < end,
            Err(_) => false,
        })
    {
        model.lock().wrong.push(format!("file {file}, chunk {chunk}: a hole where data are"));
    }
    let mut model = model.lock();
    model.reads += 1;
    let (marks, rest): (Vec<_>, Vec<_>) =
        bytes.iter().copied().enumerate().partition(|(at, _)| (100..100 + MARK_BYTES).contains(at));
    let first = rest.first().map_or(0, |(_, byte)| *byte);
    let version = match first {
        // Nothing is said of the version.
        0 if may_be_empty => model.files[file].version.unwrap_or(0),
        first => *model.files[file].version.get_or_insert(first),
    };
    let is_version = |byte: u8| match byte {
        0 => may_be_empty,
        byte => !is_empty && byte == version && (1..MARK_MIN).contains(&version),
    };
    let shown = |mark: u8| if holes.contains(&(chunk, mark)) { 0 } else { mark };
    let is_mark = |byte: u8| (before.max(MARK_MIN)..=after).any(|mark| shown(mark) == byte);
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

/// What the writer of a file does with a chunk.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Mark,
    /// In the place of the mark.
    Make(Room),
    /// All of the chunk.
    Empty(Room),
}

/// Writes the next mark to a chunk, or makes a hole.
async fn write(client: &Client, file: usize, chunk: u64, step: Step, model: &Shared) -> Result<(), Failure> {
    let opened = open(client, file).await?;
    let mark = {
        let known = &mut model.lock().files[file];
        let marks = &mut known.marks[chunk as usize];
        marks.0 = marks.0.max(MARK_MIN - 1) + 1;
        if step != Step::Mark {
            known.holes.insert((chunk, marks.0));
        }
        known.emptied[chunk as usize].0 |= matches!(step, Step::Empty(_));
        marks.0
    };
    let at = chunk * CHUNK + MARK_AT;
    let written = match step {
        Step::Mark => opened.write(at, &[mark; MARK_BYTES]).await,
        Step::Make(room) => opened.make_room(room, at, MARK_BYTES as u64, true).await,
        Step::Empty(room) => opened.make_room(room, chunk * CHUNK, CHUNK, true).await,
    };
    if written.is_ok() {
        let mut model = model.lock();
        model.files[file].marks[chunk as usize].1 = mark;
        model.files[file].emptied[chunk as usize].1 |= matches!(step, Step::Empty(_));
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

/// Moves names about: the records have to tell those that went.
async fn move_names(client: &Client, io: &Io) -> Result<(), Failure> {
    let dir = client.lookup(&ROOT, Ino::ROOT, &name("d")).await?.ino;
    let number = || io.random_u64() % MOVED as u64;
    let (one, other) = (number(), number());
    let (here, there) = (name(&format!("m{one}")), name(&format!("m{other}")));
    let away = name(&format!("away{other}"));
    match io.random_u64() % 7 {
        0 => client.unlink(&ROOT, dir, &here).await,
        1 => client.rmdir(&ROOT, dir, &here).await,
        2 => client.rename(&ROOT, dir, &here, Ino::ROOT, &away, true).await,
        3 => client.rename(&ROOT, Ino::ROOT, &away, dir, &here, false).await,
        4 => client.rename(&ROOT, dir, &here, dir, &there, false).await,
        5 => client.exchange(&ROOT, dir, &here, dir, &there).await,
        _ => client.create(&ROOT, dir, &here, &NewFile { open: None, ..crate::support::opened_file() }).await.map(drop),
    }
}

/// Each name of the backing that leads elsewhere or nowhere has a record, and no other has.
async fn check_gone(client: &Client, model: &Shared) -> Result<usize, Failure> {
    let dir = client.lookup(&ROOT, Ino::ROOT, &name("d")).await?.ino;
    let mut gone = BTreeSet::new();
    for record in client.gone_names(&ROOT).await? {
        let path = String::from_utf8_lossy(&record.path.0).into_owned();
        let is_right = record.parent == dir && path == format!("d/{}", record.name) && record.identity.inode > 0;
        if !is_right || !gone.insert(path) {
            model.lock().wrong.push(format!("{record:?} is wrong"));
        }
    }
    let mut went = 0;
    for text in (0..MOVED).map(|number| format!("m{number}")).chain((0..DOOMED).map(|number| format!("n{number}"))) {
        let path = format!("d/{text}");
        let is_there = match client.lookup(&ROOT, dir, &name(&text)).await {
            Ok(attr) => {
                client.backing_of(&ROOT, attr.ino).await?.is_some_and(|backing| backing.path.0 == path.as_bytes())
            }
            Err(failure) if failure.code == Code::NotFound => false,
            Err(failure) => return Err(failure),
        };
        went += usize::from(!is_there);
        if gone.remove(&path) == is_there {
            model.lock().wrong.push(format!("{path}: it is there: {is_there}, and its record says otherwise"));
        }
    }
    if !gone.is_empty() {
        model.lock().wrong.push(format!("records of other names: {gone:?}"));
    }
    Ok(went)
}

/// Has the volume take over all of a file that the backing is about to lose, as a stage does; `None` if it is gone, no file, or
/// there is no room for it.
async fn take_over(client: &Client, gone: &Gone) -> Result<Option<Arc<aze_client::File>>, Failure> {
    if gone.kind != FileKind::File {
        return Ok(None);
    }
    let file = match client.open_nameless(&ROOT, gone.ino, Access { read: true, write: false }).await {
        Err(failure) if failure.code == Code::Stale => return Ok(None),
        file => file?,
    };
    match client.take_over(&ROOT, &file).await {
        Err(failure) if failure.code == Code::NoSpace => file.close().await.map(|()| None),
        taken => taken.map(|()| Some(file)),
    }
}

/// The backing follows: inodes whose origin it loses are dirty under any name, have all their bytes, and no record is left.
async fn follow_gone(
    cluster: &Arc<Cluster>,
    client: &Client,
    backing: &SimBacking,
    model: &Shared,
) -> Result<(), Failure> {
    let mut outlived = Vec::new();
    for gone in client.gone_names(&ROOT).await? {
        if let Some(file) = take_over(client, &gone).await? {
            outlived.push(file);
            backing.remove(&String::from_utf8_lossy(&gone.path.0));
        }
        match client.leave_backing(&ROOT, gone.ino).await {
            Ok(()) => {
                let backing = client.backing_of(&ROOT, gone.ino).await?;
                if backing.is_none_or(|backing| backing.is_clean()) {
                    model.lock().wrong.push(format!("{}: the backing has lost it, and it is clean", gone.name));
                }
            }
            Err(failure) if failure.code == Code::Stale => {}
            Err(failure) => return Err(failure),
        }
        client.forget_gone(&ROOT, gone.parent, &gone.name, gone.since).await?;
    }
    if cluster.layout().durability.is_some() {
        client.sync(&ROOT).await?;
        cluster.kill_server(2, false);
        cluster.bring_back(2).await?;
    }
    // All chunks that may go do so for these.
    let files = model.lock().files.len();
    for file in 0..files {
        for chunk in 0..CHUNKS {
            // At the end of the run all of them are looked at.
            let _ = read(client, file, chunk, model).await;
        }
    }
    model.lock().outlived += outlived.len() as u64;
    for file in outlived {
        let read = file.read(0, 2 * CHUNK as usize).await;
        let size = file.attr().size as usize;
        if !read.as_ref().is_ok_and(|bytes| bytes.len() == size && bytes.iter().all(|byte| *byte == MOVED_BYTE)) {
            let text = match &read {
                Ok(bytes) => format!("{} bytes, not all of them right", bytes.len()),
                Err(failure) => failure.to_string(),
            };
            model.lock().wrong.push(format!("inode {}, which the backing has lost: {text}", file.attr().ino));
        }
        file.close().await?;
    }
    let left = client.gone_names(&ROOT).await?;
    if !left.is_empty() {
        model.lock().wrong.push(format!("the backing has followed, and is not believed: {left:?}"));
    }
    Ok(())
}

async fn work(client: Arc<Client>, io: Io, me: usize, model: Shared) {
    let files = model.lock().files.len();
    for _ in 0..STEPS {
        let chunk = io.random_u64() % CHUNKS;
        // What fails is tried again, or not: errors are what this backing gives.
        let _ = match io.random_u64() % 6 {
            0 => {
                let room = if io.random_u64().is_multiple_of(3) { Room::Zeroed } else { Room::Hole };
                let step = match io.random_u64() % 12 {
                    0 | 1 => Step::Make(room),
                    2 | 3 => Step::Empty(room),
                    _ => Step::Mark,
                };
                write(&client, me % files, chunk, step, &model).await
            }
            1 => names(&client, &io, &model).await,
            2 | 3 => move_names(&client, &io).await,
            _ => read(&client, (io.random_u64() % files as u64) as usize, chunk, &model).await,
        };
        io.sleep(Duration::from_millis(io.random_u64() % 40)).await;
    }
    model.lock().done += 1;
}

/// Changes files underneath, each to a version that it never had, until all clients are done; kills servers that come back.
async fn disturb(cluster: &Arc<Cluster>, backing: &SimBacking, model: &Shared) {
    let mut rng = cluster.sim.rng("changes");
    let mut versions = vec![1u8; model.lock().files.len()];
    while model.lock().done < CLIENTS {
        cluster.sim.sleep(Duration::from_millis(1 + rng.below(150))).await;
        let file = rng.below(versions.len() as u64) as usize;
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

/// What became of a run.
struct Ran {
    wrong: Vec<String>,
    /// Reads and writes that went well, names of the backing that led elsewhere at the end, chunks that went for others, and
    /// files that the backing had lost.
    counts: [u64; 5],
}

/// One run; with `is_tight` the servers have less room than the files need.
fn run(seed: u64, switches: Switches, durability: Option<Durability>, is_tight: bool) -> Ran {
    let files = if is_tight { FILES_TIGHT } else { FILES };
    let sim = Sim::new(seed, Faults::default());
    let backing = SimBacking::new(sim.node(DRIVER));
    backing.make_dir("d");
    (0..files).for_each(|file| backing.make_file(&format!("d/f{file}"), file_bytes(1)));
    (0..DOOMED).for_each(|number| backing.make_file(&format!("d/n{number}"), Vec::new()));
    for number in 0..MOVED {
        let path = format!("d/m{number}");
        if number % 2 == 0 {
            backing.make_file(&path, vec![MOVED_BYTE; 2 * CHUNK as usize])
        } else {
            backing.make_dir(&path)
        }
    }
    let mut layout = Layout { durability, switches, backing: Some(backing.clone().into()), ..Layout::of(3) };
    match durability {
        _ if !is_tight => {}
        None => layout.memory_bytes = TIGHT_BYTES,
        Some(_) => layout.disk_bytes = TIGHT_BYTES,
    }
    let cluster = Cluster::new(sim.clone(), layout);
    let model: Shared = Arc::default();
    model.lock().files = vec![Known::default(); files];
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
        // So long takes what hangs.
        cluster.sim.sleep(Duration::from_secs(31)).await;
        let client = cluster.connect(1000).await.expect("a client connects");
        // All removed names stay removed, and all marks are there.
        let dir = client.lookup(&ROOT, Ino::ROOT, &name("d")).await.expect("it is there").ino;
        let removed = model.lock().removed.clone();
        for number in removed {
            if client.lookup(&ROOT, dir, &name(&format!("n{number}"))).await.is_ok() {
                model.lock().wrong.push(format!("name n{number} has come back at the end"));
            }
        }
        match check_gone(&client, &model).await {
            Ok(went) => model.lock().went = went,
            Err(failure) => model.lock().wrong.push(format!("names that went: {failure}")),
        }
        if let Err(failure) = follow_gone(&cluster, &client, &backing, &model).await {
            model.lock().wrong.push(format!("names that went below, too: {failure}"));
        }
        for file in 0..files {
            for chunk in 0..CHUNKS {
                match read(&client, file, chunk, &model).await {
                    Err(failure) if failure.code != Code::Changed => {
                        model.lock().wrong.push(format!("file {file}, chunk {chunk}: {failure}"));
                    }
                    // No client has read the chunk in time.
                    Err(failure) if model.lock().files[file].marks[chunk as usize].1 > 0 => {
                        model.lock().wrong.push(format!("file {file}, chunk {chunk}, was written: {failure}"));
                    }
                    _ => {}
                }
            }
        }
        model.lock().evicted = cluster.servers().iter().map(|server| server.status().evicted_chunks).sum();
    });
    cluster.end();
    let model = model.lock();
    let counts = [model.reads, model.writes, model.went as u64, model.evicted, model.outlived];
    Ran { wrong: model.wrong.clone(), counts }
}

#[test]
fn a_byte_is_of_the_version_taken_over_and_names_that_went_are_known() {
    let mut sums = [0; 5];
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", 100));
    for seed in from..from + count {
        let durability = (seed % 3 == 2).then_some(Durability::Fsync);
        let Ran { wrong, counts } = run(seed, Switches::default(), durability, false);
        assert_eq!(wrong, [""; 0], "seed {seed}");
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [reads, writes, went, evicted, outlived] = sums;
    assert!(
        reads > 500 && writes > 100 && went > 300 && outlived > 10,
        "{reads} reads and {writes} writes went well, {went} names went, {outlived} files outlived theirs"
    );
    assert_eq!(evicted, 0, "there was room for all");
}

/// On disks: each with whether the servers have less room than the files need.
#[test]
fn seeds_that_found_defects_pass() {
    for (seed, is_tight) in [(100_052, false), (100_783, true)] {
        let Ran { wrong, .. } = run(seed, Switches::default(), Some(Durability::Fsync), is_tight);
        assert_eq!(wrong, [""; 0], "seed {seed}");
    }
}

#[test]
fn a_volume_smaller_than_its_backing_drops_clean_chunks_and_nothing_else() {
    let (mut in_memory, mut on_disks) = ([0; 5], [0; 5]);
    let (from, count) = (number("AZE_SIM_FROM", 0), number("AZE_SIM_SEEDS", 60));
    for seed in from..from + count {
        let durability = (seed % 2 == 1).then_some(Durability::Fsync);
        let Ran { wrong, counts } = run(seed, Switches::default(), durability, true);
        assert_eq!(wrong, [""; 0], "seed {seed}");
        let sums = if durability.is_some() { &mut on_disks } else { &mut in_memory };
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    for [reads, writes, _, evicted, outlived] in [in_memory, on_disks] {
        assert!(
            reads > 500 && writes > 50 && evicted > 200 && outlived > 5,
            "{reads} reads and {writes} writes went well, {evicted} chunks went, {outlived} files outlived theirs"
        );
    }
}

#[test]
fn a_volume_that_drops_what_it_must_keep_is_noticed() {
    let in_memory = [Sabotage::CallChangedACopy, Sabotage::SkipKeep, Sabotage::EvictToZeros, Sabotage::AnyBackingFile];
    let all = in_memory.map(|removed| (removed, None)).into_iter().chain([
        (Sabotage::CallChangedACopy, Some(Durability::Fsync)),
        (Sabotage::ForgetKept, Some(Durability::Fsync)),
    ]);
    for (removed, durability) in all {
        let found = (0..60).find(|seed| !run(*seed, Switches::without(removed), durability, true).wrong.is_empty());
        assert!(found.is_some(), "{removed:?} is not noticed, {durability:?}");
    }
}

#[test]
fn a_volume_that_mixes_versions_or_forgets_removals_is_noticed() {
    for removed in [
        Sabotage::AnyBackingFile,
        Sabotage::ImportAgain,
        Sabotage::WriteWithoutRest,
        Sabotage::PunchNothing,
        Sabotage::UnreadAreHoles,
    ] {
        let found = (0..60).find(|seed| !run(*seed, Switches::without(removed), None, false).wrong.is_empty());
        assert!(found.is_some(), "{removed:?} is not noticed");
    }
}
