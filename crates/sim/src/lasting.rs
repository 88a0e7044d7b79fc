//! Volumes that last: clients work, then everything ends at once, by a power cut that every server
//! meets at a place of its own in its journal, or as `kill -9` of all of them; then all of it starts
//! again, and every file that was promised must be there, whole, under its name.
//!
//! After a power cut the synced changes are promised; later ones may be there or not. After
//! `kill -9` all acknowledged changes are promised.

mod again;
mod trouble;
mod wide;

use crate::audit;
use crate::bytes::data_of;
use crate::cluster::{CHUNK_BITS, Cluster, Layout};
use crate::plan::{Mix, Plan, slow_payloads};
use crate::work::{Board, ROOT};
use aze_client::{Access, CheckOptions, Client, File, NewFile};
use aze_io::sim::{Faults, Sim, SimRng};
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, FileKind, Ino, Name};
use aze_server::sabotage::Switches;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use trouble::Trouble;

/// How often everything ends and starts again in one run.
const LIVES: usize = 3;

/// Longest file, in chunks.
const CHUNKS_MAX: u64 = 4;

/// Longest write, in bytes.
const WRITE_BYTES_MAX: u64 = 90_000;

/// How much is in a journal before a checkpoint, at least and at most, as powers of two.
const CHECKPOINT_BITS: (u64, u64) = (14, 20);

/// Tasks of a crowd.
const CROWD: usize = 12;

/// Longest run in virtual time.
const TIME_MAX: Duration = Duration::from_secs(600);

const READ_WRITE: Access = Access { read: true, write: true };

/// Makes a plan of a seed.
pub type PlanOf = fn(u64) -> LastingPlan;

/// What can be made of a seed.
pub const KINDS: [(&str, PlanOf); 5] = [
    ("ending", LastingPlan::of),
    ("staying", LastingPlan::staying),
    ("failing", LastingPlan::failing),
    ("troubled", LastingPlan::troubled),
    ("renaming", LastingPlan::renaming),
];

/// What a seed means here.
#[derive(Clone, Debug)]
pub struct LastingPlan {
    /// The seed.
    pub seed: u64,
    /// Number of servers.
    pub servers: u16,
    /// Tasks that work.
    pub tasks: usize,
    /// Directories of each server.
    pub directories: u16,
    /// What the volume promises.
    pub durability: Durability,
    /// Whether the power is cut, or only the processes die.
    pub power_cut: bool,
    /// Clients stay: one server dies, by a power cut or alone, and the volume is started again
    /// under them.
    pub clients_stay: bool,
    /// Each time they do so at the second try only.
    pub starts_fail: bool,
    /// Whether some renames are exchanges.
    pub exchanges: bool,
    /// What goes wrong besides, and with it one more client that does what the others do not.
    pub trouble: Option<Trouble>,
    /// Protections removed.
    pub switches: Switches,
}

impl LastingPlan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> LastingPlan {
        let mut rng = SimRng::new(seed, "lasting plan");
        let durability = *rng.pick(&[Durability::Fsync, Durability::Fsync, Durability::Close, Durability::None]);
        let power_cut = durability != Durability::None && rng.chance(700_000);
        let (servers, tasks) = (rng.between(1, 4) as u16, rng.between(1, 3) as usize);
        let exchanges = SimRng::new(seed, "exchanges").chance(500_000);
        let directories = *SimRng::new(seed, "directories").pick(&[1, 1, 2, 3]);
        let (clients_stay, starts_fail, trouble, switches) = (false, false, None, Switches::default());
        LastingPlan {
            seed,
            servers,
            tasks,
            directories,
            durability,
            power_cut,
            clients_stay,
            starts_fail,
            exchanges,
            trouble,
            switches,
        }
    }

    /// The plan of a seed for a volume that is started again under its clients.
    pub fn staying(seed: u64) -> LastingPlan {
        LastingPlan { clients_stay: true, ..LastingPlan::of(seed) }
    }

    /// The plan of a seed for a volume whose first start fails, each time, under its clients.
    pub fn failing(seed: u64) -> LastingPlan {
        LastingPlan { starts_fail: true, ..LastingPlan::staying(seed) }
    }

    /// The plan of a seed under trouble.
    pub fn troubled(seed: u64) -> LastingPlan {
        LastingPlan { trouble: Some(Trouble::of(seed)), ..LastingPlan::of(seed) }
    }

    /// The plan of a seed for a crowd that renames until the power is cut.
    pub fn renaming(seed: u64) -> LastingPlan {
        let servers = SimRng::new(seed, "renaming plan").between(1, 3) as u16;
        let (durability, trouble) = (Durability::Fsync, Some(Trouble::renaming(seed)));
        LastingPlan { servers, tasks: CROWD, durability, power_cut: true, trouble, ..LastingPlan::of(seed) }
    }
}

/// A file as a task knows it.
struct Known {
    id: u32,
    /// The bytes it holds now, if every operation begun has happened.
    content: Vec<u8>,
    /// The bytes it must hold up to `low`, if not those of `content`; beyond it any of the bytes written, or zeros.
    kept: Vec<u8>,
    low: usize,
    high: usize,
    /// Where it may be.
    places: BTreeSet<(Ino, Vec<u8>)>,
    /// Where it is, if everything that was begun has happened; `None`: nowhere.
    place: Option<(Ino, Vec<u8>)>,
    may_be_gone: bool,
    /// An operation on it has failed: its state is unknown.
    in_doubt: bool,
}

/// All files.
#[derive(Default)]
struct Book {
    files: BTreeMap<Ino, Known>,
    /// Every inode number that a client was ever told.
    given: BTreeSet<Ino>,
}

impl Book {
    /// A client is told the number of the inode that it has made.
    fn give(&mut self, ino: Ino) -> Result<(), Failure> {
        match self.given.insert(ino) {
            true => Ok(()),
            false => Err(Failure::new(Code::Internal, format!("inode number {ino} is given out for the second time"))),
        }
    }
}

impl Known {
    /// Whether it is, for sure, as it is believed to be.
    fn is_settled(&self) -> bool {
        let places: BTreeSet<_> = self.place.iter().cloned().collect();
        let (len, is_gone) = (self.content.len(), self.place.is_none());
        self.kept == self.content
            && self.low == len
            && self.high == len
            && self.places == places
            && self.may_be_gone == is_gone
    }

    /// From now on it must be as it is.
    fn settle(&mut self) {
        if self.in_doubt {
            return;
        }
        self.kept = self.content.clone();
        (self.low, self.high) = (self.content.len(), self.content.len());
        self.places = self.place.iter().cloned().collect();
        self.may_be_gone = self.place.is_none();
    }
}

/// Runs a seed; returns the violations found.
///
/// # Panics
/// When a task of the cluster panics, spins, or waits for ever.
pub fn run(plan: &LastingPlan, verbose: bool) -> Vec<String> {
    run_counting(plan, verbose).0
}

/// As [`run`]; also gives how many units of data came back from disks.
///
/// # Panics
/// As there.
pub fn run_counting(plan: &LastingPlan, verbose: bool) -> (Vec<String>, u64) {
    let back = AtomicU64::new(0);
    let sim = Sim::new(plan.seed, Faults::default());
    sim.set_time_limit(TIME_MAX);
    sim.set_lending(*sim.rng("lending").pick(&[None, Some(1), Some(10_000)]));
    let checkpoint_bits = plan.trouble.as_ref().map_or(CHECKPOINT_BITS, Trouble::checkpoint_bits);
    sim.set_slow_payloads(slow_payloads(&mut sim.rng("pauses")));
    let layout = Layout {
        durability: Some(plan.durability),
        storage_dirs: plan.directories,
        switches: plan.switches,
        checkpoint_bytes: 1 << sim.rng("checkpoints").between(checkpoint_bits.0, checkpoint_bits.1),
        // Mostly less than clients write.
        memory_bytes: 1 << sim.rng("memory").between(20, 24).min(23),
        ..Layout::of(plan.servers)
    };
    let cluster = Cluster::new(sim.clone(), layout);
    let general = Plan { mix: Mix::Quiet, ..Plan::of(plan.seed) };
    let board = Board::new(&general, &cluster, verbose);
    sim.block_on(lives(&cluster, plan, &board, &back));
    if verbose {
        board.story().iter().for_each(|line| eprintln!("{line}"));
    }
    let violations = board.violations();
    cluster.end();
    (violations, back.into_inner())
}

async fn lives(cluster: &Arc<Cluster>, plan: &LastingPlan, board: &Arc<Board>, back: &AtomicU64) {
    if plan.clients_stay {
        return again::lives(cluster, plan, board).await;
    }
    let (book, wide) = (Arc::new(Mutex::new(Book::default())), Arc::new(Mutex::new(wide::WideBook::default())));
    let mut clean_ends = cluster.sim.rng("clean ends");
    for life in 0..=LIVES {
        let ends_cleanly = clean_ends.chance(250_000);
        if let Err(failure) = cluster.start().await {
            return board.violation(format!("life {life}: the volume does not start: {failure}"));
        }
        let client = match cluster.connect(0).await {
            Ok(client) => client,
            Err(failure) => return board.violation(format!("life {life}: no client connects: {failure}")),
        };
        trouble::end(cluster);
        // All servers soon drop the data and inodes that a start drops.
        cluster.sim.sleep(Duration::from_secs(3)).await;
        look(cluster, plan, board, &client, &book, life).await;
        if let Err(why) = wide::look(cluster, &client, &wide).await {
            board.violation(format!("start {life}: {why}"));
        }
        let units = cluster.servers().iter().map(|server| server.units_brought_back()).sum();
        back.fetch_add(units, Ordering::Relaxed);
        if !board.violations().is_empty() || life == LIVES {
            return;
        }
        let mut ends = Vec::new();
        if let Some(trouble) = &plan.trouble {
            if life == 0
                && let Err(failure) = wide::begin(&client, &wide).await
            {
                return board.violation(format!("the first files: {failure}"));
            }
            let rng = cluster.sim.rng(&format!("wide of life {life}"));
            let lasts = !plan.power_cut || ends_cleanly;
            ends.push(
                cluster
                    .on_client(0, wide::work(lasts, trouble.clone(), rng, client.clone(), wide.clone(), board.clone())),
            );
            trouble.begin(cluster, life);
        }
        for task in 0..plan.tasks {
            let worker = Worker {
                life,
                task,
                rng: cluster.sim.rng(&format!("task {task} of life {life}")),
                client: client.clone(),
                book: book.clone(),
                board: board.clone(),
                acknowledged_lasts: !plan.power_cut || ends_cleanly,
                closes_sync: plan.durability == Durability::Close,
                exchanges: plan.exchanges,
                trouble: plan.trouble.clone(),
                dirs: vec![Ino::ROOT],
                next: 0,
                concerned: Vec::new(),
                again: None,
            };
            ends.push(cluster.on_client(0, worker.work()));
        }
        let us_max = plan.trouble.as_ref().map_or(400_000, Trouble::life_us_max);
        let until = Duration::from_micros(cluster.sim.rng(&format!("life {life}")).between(2_000, us_max));
        cluster.sim.sleep(until / 2).await;
        if let Some(trouble) = &plan.trouble {
            trouble.go_on(cluster, life);
        }
        match &plan.trouble {
            Some(trouble) => trouble.last_moments(cluster, until - until / 2).await,
            None => cluster.sim.sleep(until - until / 2).await,
        }
        board.note(cluster, format!("everything ends, cleanly: {ends_cleanly}, power cut: {}", plan.power_cut));
        if ends_cleanly {
            cluster.kill_client(0);
            for server in cluster.servers() {
                if let Err(failure) = server.rest().await {
                    return board.violation(format!("life {life}: no clean end: {failure}"));
                }
            }
        }
        cluster.kill_all(1, plan.power_cut);
        // They have ended with their node.
        join_all(ends).await;
    }
}

struct Worker {
    life: usize,
    task: usize,
    rng: SimRng,
    client: Arc<Client>,
    book: Arc<Mutex<Book>>,
    board: Arc<Board>,
    acknowledged_lasts: bool,
    closes_sync: bool,
    exchanges: bool,
    trouble: Option<Trouble>,
    dirs: Vec<Ino>,
    next: u64,
    /// Files that the operation under way changes.
    concerned: Vec<Ino>,
    /// How far the life has got, where clients stay.
    again: Option<Arc<again::Progress>>,
}

impl Worker {
    fn fresh(&mut self) -> Name {
        self.next += 1;
        let text = format!("l{}t{}n{}", self.life, self.task, self.next);
        Name::new(text.as_bytes()).expect("letters and digits are a name")
    }

    async fn work(mut self) {
        let mut files: Vec<(Ino, Arc<File>)> = Vec::new();
        while !self.again.as_ref().is_some_and(|again| again.is_over()) {
            self.concerned.clear();
            let began = self.again.as_ref().map(|again| again.phase());
            let step = self.rng.below(100);
            let step = self.trouble.as_ref().map_or(step, |trouble| trouble.step(step));
            let what = match step {
                0..=14 => self.make_dir().await,
                15..=34 => self.make_file(&mut files).await,
                35..=50 => self.write(&files).await,
                51..=54 => self.append(&files).await,
                55..=59 => self.truncate(&files).await,
                60..=79 => self.rename(&files).await,
                80..=84 => self.move_dir().await,
                85..=89 => self.unlink(&files).await,
                90..=91 => self.close(&mut files).await,
                _ => self.sync(&files).await,
            };
            if let Err(failure) = what {
                if failure.code == Code::NoSpace {
                    return;
                }
                let who = format!("life {} task {}", self.life, self.task);
                if let (Some(again), Some(began)) = (&self.again, began) {
                    self.tell(|| format!("step {step} failed: {failure}"));
                    for ino in &self.concerned {
                        if let Some(known) = self.book.lock().files.get_mut(ino) {
                            known.in_doubt = true;
                        }
                    }
                    if let Err(why) = again.judge(began, step, &failure) {
                        return self.board.violation(format!("{who}: step {step}: {why}: {failure}"));
                    }
                    continue;
                }
                self.board
                    .violation(format!("{who}: in a quiet cluster step {step} gave {:?}: {failure}", failure.code));
                return;
            }
        }
    }

    /// Longest file, in bytes.
    fn bytes_max(&self) -> u64 {
        self.trouble.as_ref().map_or(CHUNKS_MAX << CHUNK_BITS, Trouble::file_bytes_max)
    }

    async fn make_dir(&mut self) -> Result<(), Failure> {
        let (parent, name) = (*self.rng.pick(&self.dirs), self.fresh());
        let new = crate::work::shared::new_file(FileKind::Directory, true);
        let made = self.client.create(&ROOT, parent, &name, &new).await?;
        self.book.lock().give(made.attr.ino)?;
        self.tell(|| format!("mkdir {name} in {parent} -> {}", made.attr.ino));
        self.dirs.push(made.attr.ino);
        Ok(())
    }

    async fn make_file(&mut self, files: &mut Vec<(Ino, Arc<File>)>) -> Result<(), Failure> {
        let (parent, name) = (*self.rng.pick(&self.dirs), self.fresh());
        let new = NewFile {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
            target: Vec::new(),
            exclusive: true,
            open: Some(READ_WRITE),
            chunk_bits: 0,
        };
        let made = self.client.create(&ROOT, parent, &name, &new).await?;
        let (ino, file) = (made.attr.ino, made.file.expect("an open was asked for"));
        self.tell(|| format!("create {name} in {parent} -> {ino}"));
        let place = Some((parent, name.as_bytes().to_vec()));
        let known = Known {
            id: (ino.0 % 1_000_003) as u32,
            content: Vec::new(),
            kept: Vec::new(),
            low: 0,
            high: 0,
            places: place.iter().cloned().collect(),
            place,
            may_be_gone: true,
            in_doubt: false,
        };
        {
            let mut book = self.book.lock();
            book.give(ino)?;
            book.files.insert(ino, known);
        }
        self.acknowledged(ino);
        files.push((ino, file));
        Ok(())
    }

    fn tell(&self, text: impl FnOnce() -> String) {
        self.board.tell(|| format!("life {} task {}: {}", self.life, self.task, text()));
    }

    fn acknowledged(&self, ino: Ino) {
        if self.acknowledged_lasts
            && let Some(known) = self.book.lock().files.get_mut(&ino)
        {
            known.settle();
        }
    }

    /// Picks one of the files and changes its record in the book.
    fn begin(&mut self, files: &[(Ino, Arc<File>)], change: impl FnOnce(&mut Known)) -> Option<(Ino, Arc<File>)> {
        if files.is_empty() {
            return None;
        }
        let (ino, file) = self.rng.pick(files).clone();
        self.concerned.push(ino);
        change(self.book.lock().files.get_mut(&ino)?);
        Some((ino, file))
    }

    async fn write(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let len_max = self.trouble.as_ref().map_or(WRITE_BYTES_MAX, Trouble::write_bytes_max);
        let (far, len) = (self.rng.chance(300_000), self.rng.between(1, len_max));
        let (draw, bytes_max) = (self.rng.u64(), self.bytes_max());
        let mut data = (0, Vec::new());
        let chosen = self.begin(files, |known| {
            let size = known.content.len() as u64;
            let offset = if far { draw % bytes_max } else { draw % (size + 1) };
            let end = (offset + len).min(bytes_max);
            data = (offset, data_of(known.id, offset, (end - offset) as usize));
            if known.content.len() < end as usize {
                known.content.resize(end as usize, 0);
            }
            known.content[offset as usize..end as usize].copy_from_slice(&data.1);
            known.high = known.high.max(known.content.len());
        });
        let Some((ino, file)) = chosen else { return Ok(()) };
        file.write(data.0, &data.1).await?;
        self.tell(|| format!("write {ino} at {} of {}", data.0, data.1.len()));
        self.acknowledged(ino);
        Ok(())
    }

    async fn append(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        if self.again.is_some() {
            // A failed operation may have moved the end.
            return self.write(files).await;
        }
        let (len, bytes_max) = (self.rng.between(1, WRITE_BYTES_MAX), self.bytes_max());
        let mut data = Vec::new();
        // Where an append goes is known only with its answer: tasks append to files of their own.
        let chosen = self.begin(files, |known| {
            let size = known.content.len() as u64;
            let len = len.min(bytes_max - size);
            data = data_of(known.id, size, len as usize);
            known.content.extend_from_slice(&data);
            known.high = known.high.max(known.content.len());
        });
        let Some((ino, file)) = chosen else { return Ok(()) };
        file.append(&data).await?;
        self.tell(|| format!("append {ino} of {}", data.len()));
        self.acknowledged(ino);
        Ok(())
    }

    async fn truncate(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let (draw, bytes_max) = (self.rng.u64(), self.bytes_max());
        let mut size = 0;
        let chosen = self.begin(files, |known| {
            size = (draw % (known.content.len() as u64 * 5 / 4 + 1)).min(bytes_max);
            known.content.resize(size as usize, 0);
            known.low = known.low.min(size as usize);
            known.high = known.high.max(size as usize);
        });
        let Some((ino, file)) = chosen else { return Ok(()) };
        self.client.truncate(&ROOT, ino, size, Some(&file)).await?;
        self.tell(|| format!("truncate {ino} to {size}"));
        self.acknowledged(ino);
        Ok(())
    }

    async fn rename(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let (to_parent, fresh) = (*self.rng.pick(&self.dirs), self.fresh());
        let onto = self.rng.chance(300_000) && files.len() > 1;
        let victim = onto.then(|| self.rng.pick(files).0);
        let mut places = None;
        // Names in doubt are left alone: something else may be under them.
        let certain = |known: &Known| (!known.in_doubt).then(|| known.place.clone()).flatten();
        let victim_place = victim.and_then(|ino| self.book.lock().files.get(&ino).and_then(certain));
        let chosen = self.begin(files, |known| {
            let Some(from) = certain(known) else { return };
            let to = match &victim_place {
                Some(place) if *place != from => place.clone(),
                _ => (to_parent, fresh.as_bytes().to_vec()),
            };
            known.places.insert(to.clone());
            known.place = Some(to.clone());
            places = Some((from, to));
        });
        let (Some((ino, _)), Some((from, to))) = (chosen, places) else { return Ok(()) };
        let victim = victim.filter(|victim| *victim != ino && victim_place.as_ref() == Some(&to));
        let exchanges = victim.is_some() && self.exchanges && self.rng.chance(500_000);
        if let Some(victim) = victim
            && let Some(known) = self.book.lock().files.get_mut(&victim)
        {
            if exchanges {
                known.places.insert(from.clone());
                known.place = Some(from.clone());
            } else {
                (known.may_be_gone, known.place) = (true, None);
            }
            self.concerned.push(victim);
        }
        let name = |bytes: &[u8]| Name::new(bytes).expect("it was made as a name");
        let (name, to_name) = (name(&from.1), name(&to.1));
        match exchanges {
            true => self.client.exchange(&ROOT, from.0, &name, to.0, &to_name).await?,
            false => self.client.rename(&ROOT, from.0, &name, to.0, &to_name, false).await?,
        }
        let how = if exchanges { "with" } else { "over" };
        self.tell(|| format!("rename {ino} to {to_name} in {}, {how} {victim:?}", to.0));
        self.acknowledged(ino);
        victim.into_iter().for_each(|victim| self.acknowledged(victim));
        Ok(())
    }

    /// Moves a directory of this task into another one that is not below it: a fresh one in the root.
    async fn move_dir(&mut self) -> Result<(), Failure> {
        let new = crate::work::shared::new_file(FileKind::Directory, true);
        let (first, second, third) = (self.fresh(), self.fresh(), self.fresh());
        let moved = self.client.create(&ROOT, Ino::ROOT, &first, &new).await?.attr.ino;
        let into = self.client.create(&ROOT, *self.rng.pick(&self.dirs), &second, &new).await?.attr.ino;
        for made in [moved, into] {
            self.book.lock().give(made)?;
        }
        self.dirs.push(moved);
        self.client.rename(&ROOT, Ino::ROOT, &first, into, &third, false).await?;
        self.tell(|| format!("directory {moved} goes into {into}"));
        if self.rng.chance(500_000) {
            let empty = self.fresh();
            let parent = *self.rng.pick(&self.dirs);
            self.client.create(&ROOT, parent, &empty, &new).await?;
            self.client.rmdir(&ROOT, parent, &empty).await?;
        }
        Ok(())
    }

    async fn unlink(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let mut place = None;
        let chosen = self.begin(files, |known| {
            if !known.in_doubt {
                place = known.place.take();
                known.may_be_gone = true;
            }
        });
        let (Some((ino, _)), Some((parent, name))) = (chosen, place) else { return Ok(()) };
        let name = Name::new(&name).expect("it was made as a name");
        self.client.unlink(&ROOT, parent, &name).await?;
        self.tell(|| format!("unlink {ino}"));
        self.acknowledged(ino);
        Ok(())
    }

    async fn close(&mut self, files: &mut Vec<(Ino, Arc<File>)>) -> Result<(), Failure> {
        if files.is_empty() {
            return Ok(());
        }
        let (ino, file) = files.swap_remove(self.rng.below(files.len() as u64) as usize);
        self.concerned.push(ino);
        file.close().await?;
        self.tell(|| format!("close {ino}"));
        if self.closes_sync
            && let Some(known) = self.book.lock().files.get_mut(&ino)
        {
            known.settle();
        }
        Ok(())
    }

    async fn sync(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        if !self.rng.chance(self.trouble.as_ref().map_or(1_000_000, Trouble::sync_ppm)) {
            return self.write(files).await;
        }
        let Some((ino, file)) = self.begin(files, |_| {}) else { return Ok(()) };
        file.sync().await?;
        self.tell(|| format!("fsync {ino}"));
        if let Some(known) = self.book.lock().files.get_mut(&ino) {
            known.settle();
        }
        Ok(())
    }
}

/// Checks the tables, compares all files with the book, and records their state as the start of the next life.
async fn look(
    cluster: &Arc<Cluster>,
    plan: &LastingPlan,
    board: &Arc<Board>,
    client: &Arc<Client>,
    book: &Arc<Mutex<Book>>,
    life: usize,
) {
    let wrong = |text: String| board.violation(format!("start {life}: {text}"));
    let general = Plan { mix: Mix::Quiet, ..Plan::of(plan.seed) };
    audit::tables(cluster, &general, board);
    audit::looked_through(&general, board, "at rest", client.check(&ROOT, CheckOptions::default()).await);
    let mut places: BTreeMap<Ino, Vec<(Ino, Vec<u8>)>> = BTreeMap::new();
    let mut open = vec![Ino::ROOT];
    while let Some(dir) = open.pop() {
        for (name, ino, kind) in cluster.servers().iter().flat_map(|server| server.entries_of(dir)) {
            if kind == FileKind::Directory {
                open.push(ino);
            } else {
                places.entry(ino).or_default().push((dir, name.as_bytes().to_vec()));
            }
        }
        if let Err(failure) = client.getattr(&ROOT, dir).await {
            wrong(format!("directory {dir}: {failure}"));
        }
    }
    let inos: Vec<Ino> = book.lock().files.keys().copied().collect();
    for ino in inos {
        let data = match places.get(&ino) {
            Some(_) => match read(client, ino).await {
                Ok(data) => Some(data),
                Err(failure) => {
                    wrong(format!("file {ino} cannot be read: {failure}"));
                    None
                }
            },
            None => None,
        };
        let mut book = book.lock();
        let Some(known) = book.files.get_mut(&ino) else { continue };
        let here = places.get(&ino).cloned().unwrap_or_default();
        match (&here[..], data) {
            ([], _) if known.may_be_gone => {
                book.files.remove(&ino);
            }
            ([], _) => wrong(format!("file {ino} has no name; it must be at one of {:?}", known.places)),
            ([place], Some(data)) => {
                if !known.places.contains(place) {
                    wrong(format!("file {ino} is at {place:?}, and may be at {:?}", known.places));
                }
                if let Err(why) = known.check(&data) {
                    wrong(format!("file {ino}: {why}"));
                }
                (known.content, known.place, known.in_doubt) = (data, Some(place.clone()), false);
                known.settle();
            }
            ([_], None) => {}
            (many, _) => wrong(format!("file {ino} has several names: {many:?}")),
        }
    }
}

impl Known {
    fn check(&self, data: &[u8]) -> Result<(), String> {
        let sure = self.low.min(self.kept.len());
        if data.len() < sure || data.len() > self.high.max(self.kept.len()) {
            return Err(format!("{} bytes, where {sure} to {} are possible", data.len(), self.high));
        }
        if let Some(at) = (0..sure).find(|at| data[*at] != self.kept[*at] && Some(&data[*at]) != self.content.get(*at))
        {
            return Err(format!("byte {at} of {sure} that were kept is wrong"));
        }
        let written = data_of(self.id, 0, data.len());
        if let Some(at) = (sure..data.len()).find(|at| data[*at] != written[*at] && data[*at] != 0) {
            return Err(format!("byte {at} was never written"));
        }
        Ok(())
    }
}

async fn read(client: &Arc<Client>, ino: Ino) -> Result<Vec<u8>, Failure> {
    let file = client.open(&ROOT, ino, Access { read: true, write: false }).await?;
    let data = file.read(0, ((CHUNKS_MAX + 2) << CHUNK_BITS) as usize).await?;
    let size = client.getattr(&ROOT, ino).await?.size;
    if size != data.len() as u64 {
        return Err(Failure::new(Code::Internal, format!("size {size} and {} bytes", data.len())));
    }
    file.close().await?;
    Ok(data)
}
