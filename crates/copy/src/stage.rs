//! Staging: a tree is copied with proof, and a signed receipt names each proven object.
//!
//! It alone knows the order of the steps: everything in the way is found before the first byte is copied; each file is proven
//! before it gets its name ([`prove`]) and noted in a journal ([`state`]), from which a later attempt goes on; directories get
//! their attributes last; every name is looked at once more; then the receipt is signed and gets its name. What a line of a
//! receipt means is with room `receipt`.
//!
//! Bounded: objects in the queue by the queue of the workers, files and parts of files at work by [`How::jobs`], bytes by
//! these times twice a block of 4 MiB. The list of objects is held in memory, about 1 KiB for each.

mod conflict;
pub(crate) mod follow;
mod kinds;
pub mod ledger;
pub mod nodes;
pub(crate) mod prove;
mod receipt;
pub mod release;
pub mod rounds;
mod sparse;
pub mod standing;
pub mod state;
pub mod survey;
pub mod team;
pub mod verify;

use crate::Watch;
use crate::stripes::{self, Stripes};
use crate::tree::{Spot, Traits, join, parent};
use crate::workers::{Job, Plan, Transfer, Workers, warn};
use aze_io::sync::Mutex;
use aze_io::threads;
use aze_proto::attr::FileKind;
use aze_receipt::line::What;
use aze_receipt::{End, Key, Line, Object, Removed, when};
use aze_words::exit::{Exit, Outcome, Trouble};
use ledger::{Ledger, Pace, Route};
use nodes::{Crew, Nodes, Share};
use prove::{OWN_NUMBERS, Proof, hidden_prefix, identity, now, version, xattrs_hash};
use receipt::unfinished;
use state::{Done, Journal};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use survey::{Filter, Survey, above, at, stat_within};

/// How often a file is copied at most that changes while it is copied.
pub const ROUNDS_MAX: u32 = 4;

/// Where the destination of a stage out is, seen from the directory over which the volume lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// Outside of it, or the volume lies over none. Files and links that are there are replaced.
    #[default]
    Outside,
    /// In it, at another place than the source has there. Only what the volume has taken from there or put there is replaced.
    Inside,
    /// At the place that the source has there: names that went go there, too, or are counted.
    Own,
}

/// The arguments of a stage.
pub struct Order {
    /// `out` or `in`.
    pub direction: &'static str,
    /// The source, as it is named in the receipt.
    pub source: String,
    /// The file or directory to copy.
    pub from: Spot,
    /// The place of the copy: a directory's contents go into the directory of this name.
    pub to: Spot,
    /// The same as it is named in the receipt: a place that a later check can open.
    pub destination: Vec<u8>,
    /// Which objects are meant.
    pub filter: Filter,
    /// Where the destination is.
    pub side: Side,
    /// Names at the destination that the source does not have are removed.
    pub delete: bool,
    /// The destination gets its name, or all of its new contents, in one step at the end.
    pub atomic: bool,
    /// Files that a program has open for writing are left out.
    pub closed_only: bool,
    /// Files and parts of files that are copied at the same time.
    pub jobs: usize,
    /// The nodes that copy and read back; none if this process does it.
    pub nodes: Option<Arc<dyn Nodes>>,
    /// Where the state of unfinished attempts lies.
    pub state: PathBuf,
    /// What finished attempts have proven, and where that is kept; none if the volume keeps no account.
    pub ledger: Option<(ledger::Hold, Route)>,
    /// The receipt to write, and who signs it; none without.
    pub receipt: Option<(PathBuf, Key)>,
    /// Version of the program, for the receipt.
    pub program: String,
}

impl Order {
    /// The entries of attempts before this one. None counts for a tree that is put in the place of another one: it is copied
    /// as a whole.
    fn ledger_before(&self) -> Outcome<Ledger> {
        let Some((hold, route)) = &self.ledger else { return Ok(Ledger::default()) };
        let before = if self.atomic { None } else { Ledger::read(hold.path())? };
        let new = || Ledger { route: route.clone(), ..Ledger::default() };
        Ok(before.filter(|before| before.route == *route).unwrap_or_else(new))
    }

    /// Paths below the destination whose files the volume has given up: no other ledger's stage takes them away either.
    fn released(&self) -> Outcome<BTreeSet<Vec<u8>>> {
        let ledgers = self.ledgers()?;
        let outside = |ledger: &Ledger| ledger.released_outside().collect::<Vec<_>>();
        let all = ledgers.iter().filter(|ledger| ledger.route.is_out()).flat_map(outside);
        let to = self.to.path.strip_suffix(b"/").unwrap_or(&self.to.path);
        let below = |path: Vec<u8>| Some(path.strip_prefix(to)?.strip_prefix(b"/")?.to_vec());
        Ok(all.filter_map(below).collect())
    }
}

fn parent_dir(path: &std::path::Path) -> PathBuf {
    path.parent().unwrap_or(std::path::Path::new(".")).to_owned()
}

/// How it went.
#[derive(Debug, Default)]
pub struct Report {
    /// The end of the receipt, if one was written.
    pub end: Option<End>,
    /// Objects that are proven.
    pub proven: u64,
    /// Those of them that an earlier attempt had copied.
    pub resumed: u64,
    /// Objects of the source that are not.
    pub missing: u64,
    /// Those of them that were left out, since a program had them open for writing.
    pub open: u64,
    /// Files that the volume need not hold any more, since it lies over the place where they are now.
    pub drained: u64,
    /// Names removed.
    pub removed: u64,
    /// Names that the volume has not any more, and that are still at their places in the directory over which it lies.
    pub left: u64,
    /// The first of them, for people, if they were not to be removed.
    pub left_named: Vec<String>,
    /// Where the tree is that was at the destination before, if it was replaced and not removed.
    pub replaced: Option<String>,
    /// What nodes have done, if they were to do it.
    pub nodes: Vec<Share>,
}

/// Stages. What fails for one object is told to the watch, and the others go on; then the state stays, so that the same order
/// goes on later. The receipt has a line for each object that is proven, and for no other.
///
/// # Errors
/// Nothing was copied, or the end was not reached; the state stays.
pub fn stage(order: &Order, watch: &Arc<dyn Watch>) -> Outcome<Report> {
    let survey = Survey::of(&order.from, &order.filter, &|| watch.is_over())?;
    let mut staged = Stage::prepare(order, watch, survey).and_then(Stage::run);
    // However it ended.
    let shares = order.nodes.as_ref().map(|nodes| nodes.end()).unwrap_or_default();
    if let Ok(report) = &mut staged {
        report.nodes = shares;
    }
    staged
}

/// Where a tree is until it is published: the same for all attempts of an order, so that a later one goes on in it.
fn hidden_tree(to: &Spot, order: &str) -> Spot {
    let key = aze_receipt::Hash::of(order.as_bytes()).to_string();
    let hidden = format!(".aze-stage-tree-{}", &key[..16]);
    Spot { tree: to.tree.clone(), path: crate::tree::beside(&to.path, hidden.as_bytes()) }
}

/// A stage under way.
struct Stage<'a> {
    order: &'a Order,
    watch: Arc<dyn Watch>,
    survey: Survey,
    proof: Arc<Proof>,
    /// Where the objects are copied to: the destination, or a hidden name beside it.
    to: Spot,
    started: String,
    began: Instant,
    report: Report,
    removed: Vec<Removed>,
    /// Files at the destination that are nowhere else, and the directories that lead to them.
    kept: BTreeSet<Vec<u8>>,
    /// Places of objects that get them when objects of another kind have gone from there.
    turned: BTreeSet<Vec<u8>>,
    /// Files that were left out, since they are open for writing.
    open: Mutex<BTreeSet<Vec<u8>>>,
    /// Names that went, with places at the destination.
    gone: follow::Gone,
    /// Files that had places at the destination before.
    former: follow::Former,
    /// Of inodes at the destination: under how many names the volume has put them there.
    put_names: BTreeMap<u64, u64>,
    /// All of the source could be looked at.
    is_surveyed: bool,
    /// How new files lie at the destination, if it tells.
    stripes: Option<Stripes>,
    /// Paths that the stage must not touch.
    left_alone: BTreeSet<Vec<u8>>,
    /// Paths that went at the destination, too, by another process.
    vanished: Vec<Vec<u8>>,
    /// Names that went at the destination, too.
    followed: Vec<crate::tree::GoneName>,
    /// Directories whose names are not durable: objects in them get no line.
    unsynced: BTreeSet<Vec<u8>>,
    /// A temporary name may be left for which only the state has the attempt's number.
    has_left_names: bool,
}

impl<'a> Stage<'a> {
    fn prepare(order: &'a Order, watch: &Arc<dyn Watch>, survey: Survey) -> Outcome<Stage<'a>> {
        let mut number = [0; 8];
        threads::fill_random(&mut number);
        let (attempt, started, began) = (aze_words::hex::write(&number), when(now()), Instant::now());
        let is_dir = survey.objects.get(&b""[..]).is_some_and(|meta| meta.kind == FileKind::Directory);
        if order.atomic && !is_dir {
            return Err(Trouble::usage("--atomic is for directories: a file always gets its name in one step"));
        }
        let words = format!(
            "{} {} to {}{}",
            order.direction,
            order.source,
            order.to.shown(),
            if order.atomic { ", atomic" } else { "" }
        );
        let mut kept = BTreeSet::new();
        if order.direction == "out" && (order.delete || order.atomic || order.side == Side::Own) {
            let released = order.released()?;
            if order.atomic && !released.is_empty() {
                let text = format!(
                    "{}: {} files there were released from the volume: --atomic would put a tree without them in their place",
                    order.to.shown(),
                    released.len()
                );
                return Err(Trouble::new(Exit::Caller, text));
            }
            for path in released {
                kept.extend(above(&path).map(<[u8]>::to_vec));
                kept.insert(path);
            }
        }
        let ledger = order.ledger_before()?;
        let gone = order.gone(watch.as_ref())?;
        let mut journal = Journal::open(&order.state, &words, &attempt)?;
        let nodes = order.nodes.as_ref().map(|nodes| nodes.names()).unwrap_or_default();
        journal.found(survey.objects.len() as u64, survey.bytes(), &nodes)?;
        ledger.entries.into_values().for_each(|done| journal.recall(done));
        let former = order.former(&journal.known().done)?;
        let put_names = follow::names_of_inodes(&former);
        let known = order.known(&survey, journal.known(), &gone)?;
        let objects = survey.origins.keys().filter_map(|path| survey.objects.get_key_value(path));
        let sources = objects.map(|(path, meta)| (path.clone(), meta.identity)).collect();
        let to = if order.atomic { hidden_tree(&order.to, &words) } else { order.to.clone() };
        let root_len = to.path.strip_suffix(b"/").map_or(to.path.len(), <[u8]>::len);
        let crew = order.nodes.clone().map(|nodes| Arc::new(Crew::new(nodes)));
        let proof = Arc::new(Proof::new(attempt, root_len, journal, known, sources, crew));
        let (watch, report, removed, open) = (watch.clone(), Report::default(), Vec::new(), Mutex::default());
        let (left_alone, vanished, followed, unsynced) = Default::default();
        let is_surveyed = survey.troubles.is_empty();
        let mut stage = Stage {
            order,
            watch,
            survey,
            proof,
            to,
            started,
            began,
            report,
            removed,
            kept,
            turned: BTreeSet::new(),
            open,
            gone,
            former,
            put_names,
            is_surveyed,
            stripes: None,
            left_alone,
            vanished,
            followed,
            unsynced,
            has_left_names: false,
        };
        if order.atomic {
            stage.after_publishing()?;
        }
        if let Err(trouble) = stage.look_ahead().and_then(|()| stage.start_nodes()) {
            return Err(stage.give_up(trouble));
        }
        Ok(stage)
    }

    /// An earlier attempt may have been broken off after its tree got its name: then the hidden name is free, or has what
    /// was there before.
    fn after_publishing(&mut self) -> Outcome<()> {
        let Some(root) = self.proof.journal.lock().known().done.get(&b""[..]).cloned() else { return Ok(()) };
        let is_root = |found: Option<crate::tree::Meta>| found.is_some_and(|meta| identity(&meta)[..2] == root.to[..2]);
        let hidden = self.to.stat(false)?;
        if is_root(hidden.clone()) || !is_root(self.order.to.stat(false)?) {
            return Ok(());
        }
        if hidden.is_some() {
            self.clear_replaced()?;
        }
        self.to = self.order.to.clone();
        let root_len = self.to.path.strip_suffix(b"/").map_or(self.to.path.len(), <[u8]>::len);
        self.proof.root_len.store(root_len, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// A state in which nothing is noted is not kept, unless a temporary name may be left.
    fn give_up(self, trouble: Trouble) -> Trouble {
        let Some(proof) = Arc::into_inner(self.proof) else { return trouble };
        let journal = proof.journal.into_inner();
        if !journal.has_notes() && !self.has_left_names {
            // The story of the first failure is told; a second one would not help.
            let _ = journal.remove();
        }
        trouble
    }

    /// Refuses what cannot succeed, each thing by its name, before anything is copied.
    fn look_ahead(&mut self) -> Outcome<()> {
        let order = self.order;
        let mut above = parent(&self.to.path);
        if self.to.stat(false)?.is_some_and(|meta| meta.kind == FileKind::Directory) {
            above = self.to.path.clone();
        }
        let traits: Traits = self.to.tree.traits(&above, &self.proof.hidden())?;
        self.stripes = traits.stripes;
        let advice = |stripes| stripes::advice(&order.to.shown(), stripes, self.survey.objects.values());
        if let Some(advice) = traits.stripes.and_then(advice) {
            self.watch.lacks(&Trouble::new(Exit::Caller, advice));
        }
        let mut known_bytes = 0;
        let known = self.proof.journal.lock();
        for done in known.known().done.values() {
            known_bytes += if let What::File { size, same_as: None, .. } = &done.object.what { *size } else { 0 };
        }
        let known_files = known.known().done.len() as u64;
        let attempts = known.known().attempts.clone();
        drop(known);
        // Of a file with holes nothing says how much it takes.
        let solid = |meta: &&crate::tree::Meta| meta.kind == FileKind::File && !meta.is_sparse && meta.links == 1;
        let solid_bytes: u64 = self.survey.objects.values().filter(solid).map(|meta| meta.size).sum();
        let needed_bytes = solid_bytes.saturating_sub(known_bytes);
        let needed_files = (self.survey.objects.len() as u64).saturating_sub(known_files);
        let mut obstacles = Vec::new();
        obstacles.extend(self.receipt_in_the_way(&attempts));
        if order.atomic
            && let Some(there) = order.to.stat(false)?
            && there.kind != FileKind::Directory
        {
            obstacles.push(Trouble::new(Exit::Caller, format!("{}: it is there, and no directory", order.to.shown())));
        }
        let replaced = self.replaced_files(&mut obstacles)?;
        let needed_files = needed_files.saturating_sub(replaced);
        obstacles.extend(self.survey.obstacles(&order.to, &traits, needed_bytes, needed_files));
        if obstacles.is_empty() {
            return Ok(());
        }
        for obstacle in &obstacles {
            self.watch.failed(obstacle);
        }
        let text = match obstacles.len() {
            1 => "nothing was copied: what is in the way is named above".into(),
            count => format!("nothing was copied: {count} obstacles, each named above"),
        };
        Err(Trouble::new(Exit::Caller, text))
    }

    fn run(mut self) -> Outcome<Report> {
        for trouble in std::mem::take(&mut self.survey.troubles) {
            self.watch.failed(&trouble);
            self.report.missing += 1;
        }
        if let Err(trouble) = self.steps() {
            let copied = self.proof.copied.0.load(Ordering::Relaxed);
            return Err(unfinished(copied, trouble));
        }
        self.finish()
    }

    /// All that comes before the last look.
    fn steps(&mut self) -> Outcome<()> {
        self.take_over_replaced()?;
        self.make_dirs(false)?;
        self.sweep()?;
        self.copy_all(false)?;
        self.check_end()?;
        self.copy_late()?;
        self.further_names();
        self.proof.journal.lock().sync()?;
        let is_whole = self.report.missing == 0 && self.missing().is_empty();
        match self.order.side {
            Side::Own => self.follow(is_whole)?,
            Side::Outside if self.order.delete && is_whole => self.delete_others(&self.to.clone())?,
            _ => {}
        }
        self.finish_dirs()?;
        self.check_end()?;
        if self.order.side == Side::Own && self.unsynced.is_empty() {
            self.forget_followed()?;
        }
        Ok(())
    }

    /// An attempt that was asked to end goes no further.
    fn check_end(&self) -> Outcome<()> {
        if self.watch.is_over() {
            self.proof.journal.lock().sync()?;
            return Err(Trouble::new(Exit::Again, "the command was asked to end: the same command goes on from here"));
        }
        Ok(())
    }

    fn dirs(&self) -> impl DoubleEndedIterator<Item = &Vec<u8>> {
        self.survey.objects.iter().filter(|(_, meta)| meta.kind == FileKind::Directory).map(|(path, _)| path)
    }

    /// Makes the directories, those that are late or the others.
    fn make_dirs(&self, late: bool) -> Outcome<()> {
        for path in self.dirs().filter(|path| self.is_late(path) == late) {
            let dir = at(&self.to, path);
            dir.tree.make_dir(&dir.path)?;
            self.watch.dir();
        }
        Ok(())
    }

    /// Removes what earlier attempts of this order have left under temporary names: the lock says that they live no more.
    fn sweep(&self) -> Outcome<()> {
        let attempts = self.proof.journal.lock().known().attempts.clone();
        if attempts.is_empty() { Ok(()) } else { self.sweep_those(&attempts) }
    }

    fn sweep_those(&self, attempts: &[String]) -> Outcome<()> {
        let prefixes: Vec<String> = attempts.iter().map(|attempt| hidden_prefix(attempt)).collect();
        // Also those in which nothing is to be staged any more.
        let (touched, clean) = (self.survey.touched_dirs(), &self.survey.clean_dirs);
        let is_dir = |there: Option<crate::tree::Meta>| there.is_some_and(|there| there.kind == FileKind::Directory);
        let mut dirs = BTreeSet::from([parent(&self.to.path)]);
        // The probe of the nodes was in the root.
        for path in touched.iter().chain(clean).chain([&Vec::new()]) {
            if is_dir(stat_within(&self.to, path)?) {
                dirs.insert(at(&self.to, path).path);
            }
        }
        for dir in dirs {
            let mut removed = false;
            for entry in self.to.tree.list(&dir)?.all()? {
                if prefixes.iter().any(|prefix| entry.name.starts_with(prefix.as_bytes())) {
                    self.to.tree.remove(&join(&dir, &entry.name), entry.kind)?;
                    removed = true;
                }
            }
            if removed {
                self.to.tree.sync_dir(&dir)?;
            }
        }
        Ok(())
    }

    /// Copies files and symbolic links, those that are late or the others, in rounds: a file that has changed while it was copied
    /// is copied again in the next.
    fn copy_all(&mut self, late: bool) -> Outcome<()> {
        let further = self.survey.further_names();
        let mut doubtful = Vec::new();
        let mut todo = Vec::new();
        for (path, meta) in &self.survey.objects {
            if self.is_late(path) != late {
                continue;
            }
            if further.contains_key(path) {
                // Its file may have other bytes by now. Its first name's copy notes it anew.
                self.proof.journal.lock().forget(path);
            }
            if meta.kind == FileKind::Directory || further.contains_key(path) {
                continue;
            }
            let (from, to) = (at(&self.order.from, path), at(&self.to, path));
            match self.done_before(path, &from, &to) {
                Before::Done => self.report.resumed += self.tell_resumed(meta, &from, &to),
                Before::Uncounted(done) => doubtful.push((from, to, meta.clone(), done)),
                Before::Other if self.left_alone.contains(path) => self.proof.journal.lock().forget(path),
                Before::Other => {
                    match self.conflict(path, &from, &to) {
                        Some(trouble) => self.watch.failed(&trouble),
                        None => todo.push((from, to)),
                    }
                    self.proof.journal.lock().forget(path);
                }
            }
        }
        todo.extend(self.compare_all(&doubtful));
        self.take_over_own(&mut todo)?;
        for round in 1..=ROUNDS_MAX {
            self.copy(&todo, round)?;
            loop {
                let lost = std::mem::take(&mut *self.proof.lost.lock());
                if lost.is_empty() || self.watch.is_over() {
                    break;
                }
                if self.are_nodes_gone() {
                    self.proof.journal.lock().sync()?;
                    let text = "no node is left to copy: the same command goes on from here";
                    return Err(Trouble::new(Exit::Again, text));
                }
                // Each time takes a node, so this ends.
                self.copy(&lost, ROUNDS_MAX)?;
            }
            todo = std::mem::take(&mut *self.proof.again.lock());
            if todo.is_empty() || self.watch.is_over() {
                // A copy that was given up, or the probe of the nodes, may have stayed, if its place has failed just then.
                return if round > 1 || self.order.nodes.is_some() {
                    self.sweep_those(slice::from_ref(&self.proof.attempt))
                } else {
                    Ok(())
                };
            }
        }
        for (from, _) in todo {
            let text =
                format!("{}: it changed while it was copied, {ROUNDS_MAX} times: nothing is said of it", from.shown());
            self.watch.failed(&Trouble::new(Exit::Again, text));
        }
        Ok(())
    }

    fn copy(&self, todo: &[(Spot, Spot)], round: u32) -> Outcome<()> {
        let plan = Plan { preserve: true, verify: false, watch: self.watch.clone(), proof: Some(self.proof.clone()) };
        let plan = Arc::new(plan);
        // Threads that give nodes work wait for them.
        let jobs = self.proof.crew.as_ref().map_or(self.order.jobs, |crew| crew.nodes.jobs());
        let threads = stripes::threads(jobs, self.stripes);
        let workers = Workers::start(threads, &plan)?;
        for (from, to) in todo {
            if self.watch.is_over() {
                break;
            }
            if self.are_nodes_gone() {
                self.proof.lost.lock().push((from.clone(), to.clone()));
                continue;
            }
            // The attributes of the survey will do: the copy takes length and attributes from the file when it has opened it.
            let surveyed = || self.survey.objects.get(&self.proof.relative(&to.path)).filter(|_| round == 1).cloned();
            let meta = match surveyed().map_or_else(|| from.must_stat(false), Ok) {
                Ok(meta) => meta,
                Err(trouble) => {
                    self.watch.failed(&trouble);
                    continue;
                }
            };
            if self.order.closed_only && meta.kind == FileKind::File && self.is_open_for_writing(from) {
                self.open.lock().insert(from.path.clone());
                continue;
            }
            if meta.kind == FileKind::Symlink {
                workers.put(Job::Link { from: from.clone(), to: to.clone(), meta })?;
                continue;
            }
            if round == 1 {
                self.watch.expect(meta.size);
            }
            let transfer = Arc::new(Transfer::new(from.clone(), to.clone(), meta));
            for part in 0..transfer.parts() {
                workers.put(Job::Part { transfer: transfer.clone(), part })?;
            }
        }
        workers.finish()
    }

    /// The copy tells of an error.
    fn is_open_for_writing(&self, from: &Spot) -> bool {
        let writers = from.tree.open_fresh(&from.path).and_then(|source| source.writers());
        writers.is_ok_and(|writers| writers.is_some_and(|count| count > 0))
    }

    /// Compares files with their copies, several at a time; gives those that are to be copied.
    fn compare_all(&mut self, doubtful: &[Doubtful]) -> Vec<(Spot, Spot)> {
        let next = AtomicUsize::new(0);
        let (same, other) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let this = &*self;
        let work = || {
            while let Some((from, to, meta, done)) = doubtful.get(next.fetch_add(1, Ordering::Relaxed)) {
                match this.proof.compare(from, done, this.watch.as_ref()) {
                    Ok(true) => drop(same.fetch_add(this.tell_resumed(meta, from, to), Ordering::Relaxed)),
                    // An error is told by the copy.
                    Ok(false) | Err(_) => {
                        this.proof.journal.lock().forget(&done.object.path);
                        other.lock().push((from.clone(), to.clone()));
                    }
                }
                this.watch.turn();
            }
        };
        threads::together(this.order.jobs.min(doubtful.len()), work);
        self.report.resumed += same.into_inner();
        other.into_inner()
    }

    /// Tells of an object that need not be copied. Gives 1.
    fn tell_resumed(&self, meta: &crate::tree::Meta, from: &Spot, to: &Spot) -> u64 {
        self.watch.expect(meta.size);
        self.watch.copied(meta.size);
        self.watch.file(from, to);
        1
    }

    /// Whether the journal has this object, and neither source nor destination has changed since.
    fn done_before(&self, path: &[u8], from: &Spot, to: &Spot) -> Before {
        let Some(done) = self.proof.journal.lock().known().done.get(path).cloned() else { return Before::Other };
        if !matches!(done.object.what, What::File { same_as: None, .. } | What::Link { .. }) {
            return Before::Other;
        }
        // An object that cannot be looked at is copied again, and its error is told then.
        let there = to.stat(false).ok().flatten().map(|meta| identity(&meta));
        let Some(now) = self.version_now(from).ok().filter(|_| there.as_ref() == Some(&done.to)) else {
            return Before::Other;
        };
        match now == done.from {
            // Its further names rely on what servers count, who count anew when they were started again.
            true if self.survey.objects.get(path).is_some_and(|meta| meta.links > 1) && !is_held(&done, to) => {
                Before::Other
            }
            true => Before::Done,
            false if from.tree.is_volume() && now.get(..OWN_NUMBERS) == done.from.get(..OWN_NUMBERS) => {
                Before::Uncounted(Box::new(done))
            }
            false => Before::Other,
        }
    }

    fn version_now(&self, from: &Spot) -> Outcome<state::Version> {
        let meta = from.must_stat(false)?;
        if meta.kind == FileKind::Symlink {
            return Ok(version(&meta, &[]));
        }
        let source = from.tree.open_fresh(&from.path)?;
        let (meta, mark) = source.marked()?;
        Ok(version(&meta, &mark))
    }

    /// Removes what the source does not have. Nothing that staging makes for itself is in these directories any more.
    fn delete_others(&mut self, root: &Spot) -> Outcome<()> {
        let mut waiting: Vec<Vec<u8>> = self.dirs().cloned().collect();
        let mut doomed = Vec::new();
        while let Some(path) = waiting.pop() {
            let dir = at(root, &path);
            for entry in dir.tree.list(&dir.path)?.all()? {
                let below = join(&path, &entry.name);
                if self.survey.names.contains(&below) {
                    continue;
                }
                if self.kept.contains(&below) {
                    if entry.kind == FileKind::Directory {
                        waiting.push(below);
                    }
                    continue;
                }
                if entry.kind == FileKind::Directory {
                    waiting.push(below.clone());
                }
                doomed.push((below, entry.kind));
            }
        }
        // A directory goes after all that is in it.
        doomed.sort_by(|one, other| other.0.cmp(&one.0));
        let mut others = BTreeSet::new();
        for (path, kind) in doomed {
            self.check_end()?;
            let spot = at(root, &path);
            spot.tree.remove(&spot.path, kind)?;
            let above = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |end| &path[..end]);
            others.remove(&path);
            if !self.survey.objects.contains_key(above) {
                others.insert(above.to_vec());
            }
            self.removed.push(Removed { path, when: when(now()) });
        }
        // Directories of the source are synced at the end; these are there for released files alone.
        for path in others {
            let dir = at(root, &path);
            dir.tree.sync_dir(&dir.path)?;
        }
        Ok(())
    }

    /// Directories get their attributes when nothing is put into them any more, deepest first; all of it is made durable.
    fn finish_dirs(&mut self) -> Outcome<()> {
        let mut unsynced = BTreeSet::new();
        let plan = Plan { preserve: true, verify: false, watch: self.watch.clone(), proof: None };
        for path in self.dirs().rev() {
            let (from, dir) = (at(&self.order.from, path), at(&self.to, path));
            let given = from.tree.stat_dir(&from.path).and_then(|meta| {
                for xattr in from.tree.dir_xattrs(&from.path)? {
                    warn(&plan, &xattr, dir.tree.set_dir_xattr(&dir.path, &xattr));
                }
                dir.tree.set_dir(&dir.path, &meta, true).map(|()| meta)
            });
            // Its names must be durable, whether it has its attributes or not: lines of its objects say so.
            let synced = dir.tree.sync_dir(&dir.path);
            if synced.is_err() {
                unsynced.insert(path.clone());
            }
            let finished = synced.and(given).and_then(|meta| {
                let found = dir.tree.stat_dir(&dir.path)?;
                let xattrs = xattrs_hash(dir.tree.dir_xattrs(&dir.path)?);
                let object = self.proof.object(&dir.path, &found, xattrs, when(now()), What::Directory);
                let held = if dir.tree.is_volume() { version(&found, &[]) } else { Vec::new() };
                self.proof.journal.lock().note(Done { object, from: version(&meta, &[]), to: identity(&found), held })
            });
            if let Err(trouble) = finished {
                self.watch.failed(&trouble);
            }
        }
        for path in self.survey.touched_dirs().intersection(&self.survey.clean_dirs) {
            let dir = at(&self.to, path);
            dir.tree.sync_dir(&dir.path)?;
        }
        self.unsynced = unsynced;
        self.to.tree.sync_dir(&parent(&self.to.path))
    }

    /// Paths of the source that are not proven.
    fn missing(&self) -> Vec<Vec<u8>> {
        let journal = self.proof.journal.lock();
        let is_missing = |(path, meta): &(&Vec<u8>, &crate::tree::Meta)| {
            meta.kind != FileKind::Directory && !journal.known().done.contains_key(*path)
        };
        self.survey.objects.iter().filter(is_missing).map(|(path, _)| path.clone()).collect()
    }

    /// The last look at every name, the step that publishes a tree, and the receipt.
    fn finish(mut self) -> Outcome<Report> {
        let mut lines = self.last_look()?;
        self.report.proven = lines.len() as u64;
        self.report.missing += self.survey.objects.len() as u64 - self.report.proven;
        self.report.open = self.open.lock().len() as u64;
        if self.order.atomic && self.to.path != self.order.to.path {
            if self.report.missing > 0 {
                let missing = self.report.missing;
                let text = format!("{}: not published, since {missing} objects are missing", self.order.to.shown());
                return Err(Trouble::new(Exit::Some, text));
            }
            self.publish(&mut lines)?;
        }
        self.report.removed = self.removed.len() as u64;
        let proven: BTreeSet<Vec<u8>> = lines.keys().cloned().collect();
        let failed = |trouble| unfinished(proven.len() as u64, trouble);
        if let Some((path, key)) = &self.order.receipt {
            self.report.end = Some(self.write(path, key, lines).map_err(failed)?);
        }
        self.watch.step();
        self.enter(&proven).map_err(failed)?;
        self.watch.step();
        self.let_go(&proven);
        let Stage { proof, report, .. } = self;
        let proof =
            Arc::into_inner(proof).ok_or_else(|| Trouble::new(Exit::Fatal, "a copy still runs: a defect in aze"))?;
        if report.missing == 0 {
            proof.journal.into_inner().remove().map_err(failed)?;
        }
        Ok(report)
    }

    /// Enters all objects with a line in the receipt in the ledger. Its entries of other objects stay, but for names that
    /// were removed from the destination.
    fn enter(&self, proven: &BTreeSet<Vec<u8>>) -> Outcome<()> {
        let Some((hold, route)) = &self.order.ledger else { return Ok(()) };
        Ledger::update(hold.path(), |ledger| {
            if self.order.atomic || ledger.route != *route {
                *ledger = Ledger { route: route.clone(), pace: ledger.pace, ..Ledger::default() };
            }
            for path in self.removed.iter().map(|removed| &removed.path).chain(&self.vanished) {
                ledger.entries.remove(path);
                ledger.released.remove(path);
            }
            let journal = self.proof.journal.lock();
            self.follow_lost_names(ledger, proven)?;
            for path in proven {
                let Some(done) = journal.known().done.get(path) else { continue };
                let before = ledger.entries.insert(path.clone(), done.clone());
                // Another version is not the one that the volume may have given up meanwhile.
                if before.is_none_or(|before| before.from != done.from) {
                    ledger.released.remove(path);
                }
            }
            let copied = (self.proof.copied.0.load(Ordering::Relaxed), self.proof.copied.1.load(Ordering::Relaxed));
            if let (objects @ 1.., bytes) = copied {
                let time_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                ledger.pace = Some(Pace { objects, bytes, time_ns });
            }
            Ok(())
        })
    }

    /// Lines of all objects whose names still lead to the proven inodes.
    fn last_look(&self) -> Outcome<BTreeMap<Vec<u8>, Object>> {
        let done: Vec<Done> = self.proof.journal.lock().known().done.values().cloned().collect();
        let (next, lines, failed) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), Mutex::new(None));
        let work = || {
            while let Some(done) = done.get(next.fetch_add(1, Ordering::Relaxed)) {
                match self.look_once_more(done) {
                    Ok(Some(object)) => drop(lines.lock().insert(object.path.clone(), object)),
                    Ok(None) => {}
                    Err(trouble) => {
                        failed.lock().get_or_insert(trouble);
                        return;
                    }
                }
                self.watch.turn();
            }
        };
        threads::together(self.order.jobs.min(done.len()), work);
        failed.into_inner().map_or_else(|| Ok(lines.into_inner()), Err)
    }

    /// The line of an object whose name still leads to the proven inode.
    fn look_once_more(&self, done: &Done) -> Outcome<Option<Object>> {
        let path = &done.object.path;
        let is_unsynced = above(path).any(|dir| self.unsynced.contains(dir));
        if !self.survey.objects.contains_key(path)
            || is_unsynced
            || !path.is_empty() && self.unsynced.contains(&b""[..])
        {
            return Ok(None);
        }
        let spot = at(&self.to, path);
        match spot.stat(path.is_empty())? {
            Some(meta) if identity(&meta) == done.to => Ok(Some(done.object.clone())),
            Some(meta) if self.has_lost_a_name(path, &meta) => {
                let mut moved = Done { to: identity(&meta), ..done.clone() };
                moved.object.ctime = when(meta.ctime.0);
                let object = moved.object.clone();
                self.proof.journal.lock().note(moved)?;
                Ok(Some(object))
            }
            found => {
                let how = if found.is_some() { "changed" } else { "removed" };
                let text = format!("{}: another process has {how} it since it was verified", spot.shown());
                self.watch.failed(&Trouble::new(Exit::Again, text));
                Ok(None)
            }
        }
    }

    /// Gives a whole tree its name.
    fn publish(&mut self, lines: &mut BTreeMap<Vec<u8>, Object>) -> Outcome<()> {
        let (from, to) = (self.to.clone(), self.order.to.clone());
        let is_taken = to.stat(false)?.is_some();
        to.tree.put_in_place(&from.path, &to.path, is_taken)?;
        to.tree.sync_dir(&parent(&to.path))?;
        let published = to.tree.stat_dir(&to.path)?;
        if let Some(root) = lines.get_mut(&b""[..]) {
            if root.inode != published.identity.1 {
                let text = format!("{}: another process has replaced it since it was published", to.shown());
                return Err(Trouble::new(Exit::Again, text));
            }
            root.ctime = when(published.ctime.0);
            let mut journal = self.proof.journal.lock();
            if let Some(mut done) = journal.known().done.get(&b""[..]).cloned() {
                done.to = identity(&published);
                if to.tree.is_volume() {
                    done.held = version(&published, &[]);
                }
                journal.note(done)?;
            }
        }
        if !is_taken {
            return Ok(());
        }
        self.clear_replaced()
    }

    /// The tree that was at the destination before is under the hidden name now: it goes with --delete, else it is the user's.
    fn clear_replaced(&mut self) -> Outcome<()> {
        let (hidden, to) = (self.to.clone(), &self.order.to);
        if self.order.delete {
            return self.remove_replaced(&hidden);
        }
        let name = to.path.strip_suffix(b"/").unwrap_or(&to.path);
        let aside = [name, b".before-", self.proof.attempt.as_bytes()].concat();
        to.tree.put_in_place(&hidden.path, &aside, false)?;
        to.tree.sync_dir(&parent(&to.path))?;
        self.report.replaced = Some(to.tree.shown(&aside));
        Ok(())
    }

    /// Removes the tree that has been replaced. What the new one does not have was removed from the destination.
    fn remove_replaced(&mut self, old: &Spot) -> Outcome<()> {
        let mut waiting = vec![Vec::new()];
        let mut doomed = Vec::new();
        while let Some(path) = waiting.pop() {
            let dir = at(old, &path);
            for entry in dir.tree.list(&dir.path)?.all()? {
                let below = join(&path, &entry.name);
                if entry.kind == FileKind::Directory {
                    waiting.push(below.clone());
                }
                doomed.push((below, entry.kind));
            }
            doomed.push((path, FileKind::Directory));
        }
        doomed.sort_by(|one, other| other.0.cmp(&one.0));
        doomed.dedup();
        for (path, kind) in doomed {
            let spot = at(old, &path);
            spot.tree.remove(&spot.path, kind)?;
            if !self.survey.names.contains(&path) {
                self.removed.push(Removed { path, when: when(now()) });
            }
        }
        old.tree.sync_dir(&parent(&old.path))
    }
}

/// Whether a copy in a volume has the data that were read back there, as far as servers know.
fn is_held(done: &Done, to: &Spot) -> bool {
    let mark = done.held.get(OWN_NUMBERS..).unwrap_or_default();
    mark.is_empty() || to.tree.open_fresh(&to.path).and_then(|copy| copy.mark()).is_ok_and(|now| now == mark)
}

/// Source, destination, attributes, and what the ledger has of a file.
type Doubtful = (Spot, Spot, crate::tree::Meta, Box<Done>);

/// What an earlier attempt has left of an object.
enum Before {
    /// A proof that is still good.
    Done,
    /// Its counts of changes are others, and nothing else is: servers may have been started again, and count from 0.
    Uncounted(Box<Done>),
    /// Nothing that is of use.
    Other,
}

/// Whether the lines of a receipt are these, but for the times at which directories got their attributes.
fn says_the_same(signed: &aze_receipt::Signed, lines: &BTreeMap<Vec<u8>, Object>) -> Outcome<bool> {
    let timeless = |object: &Object| Object { checked: String::new(), ctime: String::new(), ..object.clone() };
    let mut ours = lines.values().map(timeless);
    for line in signed.lines()? {
        if let Line::Object(object) = line?
            && ours.next() != Some(timeless(&object))
        {
            return Ok(false);
        }
    }
    Ok(ours.next().is_none())
}
