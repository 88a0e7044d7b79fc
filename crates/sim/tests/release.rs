//! Files are released while programs write them: what a program has written and closed is in the volume, or in the copy that
//! the releasing command had proven before. No seed may find a byte that is in neither.
//!
//! Each file has one writer, which writes ever larger marks to two chunks of it, and makes the file anew where it has gone.
//! A stager copies files that are at rest by their counts of changes, and releases those that are still as they were copied.
//! Writers and stager are killed and come again; in some runs servers are, too.

use crate::support::{ROOT, name, opened_file};
use aze_client::{Access, Client, NewFile};
use aze_io::Io;
use aze_io::sim::{Faults, Sim};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, Generation, Ino, Time};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{CHUNK_BITS, Layout};
use std::sync::Arc;
use std::time::Duration;

const CHUNK: u64 = 1 << CHUNK_BITS;
const FILES: usize = 3;
/// Marks that each writer writes before a run ends.
const MARKS: u64 = 60;
const BOTH: Access = Access { read: true, write: true };
const READ: Access = Access { read: true, write: false };

/// The test's own record of a file.
#[derive(Clone, Default)]
struct Known {
    /// The last mark that its writer has tried to write, and the last one that was there when it closed the file.
    tried: u64,
    closed: u64,
    /// The copies that a release was tried with, each by its smaller mark.
    copies: Vec<u64>,
    released: u64,
}

#[derive(Default)]
struct Model {
    files: Vec<Known>,
    wrong: Vec<String>,
}

type Shared = Arc<Mutex<Model>>;

fn file_name(file: usize) -> aze_proto::Name {
    name(&format!("f{file}"))
}

/// One open of a file, with one mark or two; gives up on the first failure, as a program does.
async fn write(client: &Client, io: &Io, file: usize, model: &Shared) -> Result<(), Failure> {
    let there = match client.lookup(&ROOT, Ino::ROOT, &file_name(file)).await {
        Err(failure) if failure.code == Code::NotFound => None,
        there => Some(there?.ino),
    };
    // A new one is made under another name, so that most files live at another server than their names.
    let unfinished = name(&format!("unfinished-{file}"));
    let open = match there {
        Some(ino) => client.open(&ROOT, ino, BOTH).await?,
        None => {
            let new = NewFile { exclusive: false, ..opened_file() };
            client.create(&ROOT, Ino::ROOT, &unfinished, &new).await?.file.expect("an open was asked for")
        }
    };
    if there.is_none() {
        let mut model = model.lock();
        let known = model.files[file].clone();
        if known.closed > 0 && !known.copies.iter().any(|copy| *copy >= known.closed) {
            model.wrong.push(format!("file {file}: mark {} is nowhere, copies have {:?}", known.closed, known.copies));
        }
    }
    for _ in 0..1 + io.random_u64() % 2 {
        let mark = {
            let known = &mut model.lock().files[file];
            known.tried += 1;
            known.tried
        };
        open.write(0, &mark.to_le_bytes()).await?;
        open.write(3 * CHUNK, &mark.to_le_bytes()).await?;
        io.sleep(Duration::from_millis(io.random_u64() % 20)).await;
    }
    let mark = model.lock().files[file].tried;
    open.close().await?;
    if there.is_none() {
        client.rename(&ROOT, Ino::ROOT, &unfinished, Ino::ROOT, &file_name(file), false).await?;
    }
    model.lock().files[file].closed = mark;
    Ok(())
}

async fn writer(client: Arc<Client>, io: Io, file: usize, model: Shared) {
    while model.lock().files[file].tried < MARKS {
        // Its caller tries again.
        let _ = write(&client, &io, file, &model).await;
        io.sleep(Duration::from_millis(io.random_u64() % 800)).await;
    }
}

/// Version of a file, as the ledger of a stage has it, and the marks in it.
type Copy = (Ino, Vec<u64>, Generation, Time, u64);

async fn mark_at(file: &aze_client::File, at: u64) -> Result<u64, Failure> {
    let bytes = file.read(at, 8).await?;
    let mut mark = [0; 8];
    mark[..bytes.len()].copy_from_slice(&bytes);
    Ok(u64::from_le_bytes(mark))
}

/// Copies a file if it is of one moment.
async fn copy(client: &Client, file: usize) -> Result<Option<Copy>, Failure> {
    let ino = client.lookup(&ROOT, Ino::ROOT, &file_name(file)).await?.ino;
    let open = client.open(&ROOT, ino, READ).await?;
    let before = open.count_changes().await?;
    let marks = mark_at(&open, 0).await?.min(mark_at(&open, 3 * CHUNK).await?);
    let attr = client.getattr(&ROOT, ino).await?;
    let after = open.count_changes().await?;
    open.close().await?;
    Ok((before == after).then(|| (ino, after.numbers(), attr.generation, attr.ctime, marks)))
}

/// Releases a file that is still as it was copied.
async fn release(client: &Client, file: usize, copy: &Copy, model: &Shared) -> Result<(), Failure> {
    let (ino, counts, generation, ctime, marks) = copy;
    let open = client.open(&ROOT, *ino, READ).await?;
    let now = open.count_changes().await?.numbers();
    let attr = client.getattr(&ROOT, *ino).await?;
    if now == *counts && (attr.generation, attr.ctime) == (*generation, *ctime) {
        model.lock().files[file].copies.push(*marks);
        open.release(Ino::ROOT, &file_name(file), (*generation, *ctime), false).await?;
        model.lock().files[file].released += 1;
    }
    open.close().await
}

async fn stager(client: Arc<Client>, io: Io, model: Shared) {
    loop {
        let file = (io.random_u64() % FILES as u64) as usize;
        if let Ok(Some(copied)) = copy(&client, file).await {
            io.sleep(Duration::from_millis(io.random_u64() % 10)).await;
            // What cannot be released stays.
            let _ = release(&client, file, &copied, &model).await;
        }
        io.sleep(Duration::from_millis(io.random_u64() % 5)).await;
    }
}

/// Kills clients, and servers where the layout keeps them in directories, until all writers are done.
async fn disturb(cluster: &Arc<Cluster>, model: &Shared) {
    let mut rng = cluster.sim.rng("kills");
    let mut tasks: Vec<_> = (0..=FILES).map(|_| None).collect();
    let mut node = 0;
    while model.lock().files.iter().any(|known| known.tried < MARKS) {
        for (role, task) in tasks.iter_mut().enumerate().filter(|(_, task)| task.is_none()) {
            node += 1;
            let client = cluster.connect(node).await.expect("a client connects");
            let (io, shared) = (cluster.client_io(node), model.clone());
            let done = match role {
                FILES => cluster.on_client(node, stager(client, io, shared)),
                file => cluster.on_client(node, writer(client, io, file, shared)),
            };
            *task = Some((node, done));
        }
        cluster.sim.sleep(Duration::from_millis(50 + rng.below(300))).await;
        let role = rng.below(2 * FILES as u64) as usize;
        if let Some((node, _)) = tasks.get_mut(role).and_then(Option::take) {
            cluster.kill_client(node);
        }
        if cluster.layout().durability.is_some() && rng.chance(200_000) {
            let server = rng.below(u64::from(cluster.layout().servers)) as u16;
            cluster.kill_server(server, false);
            cluster.sim.sleep(Duration::from_millis(rng.below(100))).await;
            cluster.bring_back(server).await.expect("it comes back");
        }
    }
}

/// One run; gives what went wrong, and how many files were released.
fn run(seed: u64, switches: Switches, durability: Option<Durability>) -> (Vec<String>, u64) {
    let sim = Sim::new(seed, Faults::default());
    let cluster = Cluster::new(sim.clone(), Layout { durability, switches, ..Layout::of(3) });
    let model: Shared = Arc::default();
    model.lock().files = vec![Known::default(); FILES];
    sim.block_on(async {
        cluster.start().await.expect("a quiet cluster starts");
        cluster.sim.set_faults(Faults { duplicate_ppm: 20_000, loss_ppm: 5_000, ..Faults::default() });
        disturb(&cluster, &model).await;
        cluster.sim.set_faults(Faults::default());
        let client = cluster.connect(1000).await.expect("a client connects");
        for file in 0..FILES {
            let known = model.lock().files[file].clone();
            // Its stager may live on, and release it now.
            let found = match client.lookup(&ROOT, Ino::ROOT, &file_name(file)).await {
                Ok(attr) => {
                    let open = client.open(&ROOT, attr.ino, READ).await.expect("it is open to root");
                    mark_at(&open, 0).await.expect("a read").min(mark_at(&open, 3 * CHUNK).await.expect("a read"))
                }
                Err(failure) => {
                    assert_eq!(failure.code, Code::NotFound, "seed {seed}: {failure}");
                    model.lock().files[file].copies.iter().copied().max().unwrap_or(0)
                }
            };
            if found < known.closed {
                let text = format!("file {file}: mark {} was closed, and {found} is what there is", known.closed);
                model.lock().wrong.push(text);
            }
        }
    });
    cluster.end();
    let model = model.lock();
    (model.wrong.clone(), model.files.iter().map(|known| known.released).sum())
}

#[test]
fn what_was_written_and_closed_is_in_the_volume_or_in_a_copy() {
    let mut released = 0;
    for seed in 0..24 {
        let durability = (seed % 3 == 2).then_some(Durability::Fsync);
        let (wrong, count) = run(seed, Switches::default(), durability);
        assert_eq!(wrong, [""; 0], "seed {seed}");
        released += count;
    }
    assert!(released > 100, "{released} files were released");
}

#[test]
fn a_volume_that_lets_files_change_while_they_are_released_is_noticed() {
    for removed in [Sabotage::SkipFreeze, Sabotage::ForgetWriters] {
        let found = (0..60).find(|seed| !run(*seed, Switches::without(removed), None).0.is_empty());
        assert!(found.is_some(), "{removed:?} is not noticed");
    }
}
