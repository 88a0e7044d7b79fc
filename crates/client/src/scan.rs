//! Going through a tree inside the servers: the engine of searches and sums.
//!
//! It alone knows how the directories of a tree are handed out in batches, each batch to all
//! servers at once, how pages follow each other, and what becomes of directories that vanish or
//! are closed and of servers that do not answer. The meaning of the predicate it does not know.
//!
//! Breadth first while that fits, so that batches fill quickly; once [`FRONTIER_MAX`] directories
//! wait, depth first, so that memory is bounded by the depth of the tree times its fan-out.

use crate::client::{Client, Core};
use crate::data::in_window;
use crate::route::is_replanned;
use aze_proto::fields;
use aze_proto::limits::{LIST_ENTRIES_MAX, SCAN_DIRS_MAX};
use aze_proto::message::{Found, ScanPlace, SubDir, Usage};
use aze_proto::predicate::Predicate;
use aze_proto::{Attr, Code, Failure, Identity, Ino, Name, Reply, Request, ServerIndex, ShardMap, SlotIndex};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Directories in one request, for each server: a request that keeps a server busy for milliseconds, since each server has a part of their
/// entries. So all requests are two for each server and one for each so many directories, of a tree with two levels.
const BATCH_DIRS: usize = 256;
/// Directories that wait from which on the tree is gone through depth first.
const FRONTIER_MAX: usize = 65_536;
/// Attributes of inodes elsewhere that are fetched at once.
const ATTRS_AT_ONCE: usize = 64;

/// A directory with its path from the root of the scan.
pub(crate) type Dir = (Ino, Vec<u8>);

/// What to look for.
pub(crate) struct Wanted<'a> {
    pub(crate) predicate: &'a Predicate,
    pub(crate) find: bool,
    pub(crate) usage: bool,
}

/// What one server said of some directories.
pub(crate) struct ScanPage {
    dirs: Arc<Vec<Dir>>,
    first: usize,
    /// Entries that match.
    pub(crate) found: Vec<Found>,
    /// Entries whose attributes the server did not have or does not judge, with them.
    pub(crate) elsewhere: Vec<(Found, Attr)>,
    /// Directories come across.
    pub(crate) subdirs: Vec<SubDir>,
    /// Sums by directory.
    pub(crate) usage: Vec<Usage>,
}

impl ScanPage {
    /// Path of a directory that the page speaks of.
    pub(crate) fn dir_path(&self, dir: u32) -> &[u8] {
        &self.dirs[self.first + dir as usize].1
    }

    /// Path of an entry in it.
    pub(crate) fn path(&self, dir: u32, name: &Name) -> Vec<u8> {
        let dir = self.dir_path(dir);
        let separator: &[u8] = if dir.is_empty() { b"" } else { b"/" };
        [dir, separator, name.as_bytes()].concat()
    }
}

/// Some directories of a batch, to be asked of one server.
#[derive(Clone)]
struct Job {
    server: ServerIndex,
    /// The map by which it was chosen.
    map: Arc<ShardMap>,
    /// The slots in which to look, if they are not all of the server's.
    slots: Vec<SlotIndex>,
    dirs: Arc<Vec<Dir>>,
    first: usize,
    last: usize,
    /// Where to go on in the first of them.
    after: u64,
}

struct Scan<'a> {
    core: &'a Core,
    who: &'a Identity,
    wanted: Wanted<'a>,
    /// Directories not yet asked about.
    frontier: VecDeque<Dir>,
    jobs: VecDeque<Job>,
    /// Servers that did not answer: they are not asked again.
    silent: BTreeSet<ServerIndex>,
    /// Directories that could not be read, each told of once.
    unreadable: BTreeSet<Ino>,
    failure: Option<Failure>,
    failures: usize,
}

impl Client {
    /// Goes through the tree below `root`, handing each page to `each`.
    ///
    /// # Errors
    /// At the end, the first failure; all reachable directories have been looked at.
    pub(crate) async fn scan(
        &self,
        who: &Identity,
        root: Ino,
        wanted: Wanted<'_>,
        each: &mut (dyn FnMut(&ScanPage) + Send),
    ) -> Result<(), Failure> {
        let scan = Scan {
            core: &self.core,
            who,
            wanted,
            frontier: VecDeque::from([(root, Vec::new())]),
            jobs: VecDeque::new(),
            silent: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            failure: None,
            failures: 0,
        };
        scan.run(each).await
    }
}

impl Scan<'_> {
    async fn run(mut self, each: &mut (dyn FnMut(&ScanPage) + Send)) -> Result<(), Failure> {
        let mut running = FuturesUnordered::new();
        loop {
            if self.frontier.len() >= self.batch_dirs() || running.is_empty() && self.jobs.is_empty() {
                self.next_batch();
            }
            // Two pages under way for each server: one is being made while another travels.
            let width = self.core.routes.read().map.servers.len() * 2;
            while running.len() < width
                && let Some(job) = self.jobs.pop_front()
            {
                running.push(ask_page(self.core, self.who, self.request(&job), job));
            }
            let Some((job, answer)) = running.next().await else {
                return self.end();
            };
            match answer {
                Ok(reply) => self.take(job, reply, each).await,
                Err(failure) if is_replanned(&failure) => self.plan_again(job),
                Err(failure) => self.failed(job, failure),
            }
        }
    }

    /// Directories that are asked about at once.
    fn batch_dirs(&self) -> usize {
        (BATCH_DIRS * self.core.routes.read().map.members().count()).clamp(BATCH_DIRS, SCAN_DIRS_MAX)
    }

    fn next_batch(&mut self) {
        let count = self.frontier.len().min(self.batch_dirs());
        let batch = match self.frontier.len() > FRONTIER_MAX {
            true => self.frontier.split_off(self.frontier.len() - count),
            false => self.frontier.drain(..count).collect(),
        };
        if batch.is_empty() {
            return;
        }
        let dirs = Arc::new(Vec::from(batch));
        let map = self.core.routes.read().map.clone();
        let asked = map.members().filter(|server| !self.silent.contains(server));
        let job = |server| Job {
            server,
            map: map.clone(),
            slots: Vec::new(),
            dirs: dirs.clone(),
            first: 0,
            last: dirs.len(),
            after: 0,
        };
        self.jobs.extend(asked.map(job));
    }

    /// Slots have moved: the rest of a job goes to the servers that have its slots now. Each goes on where the job was,
    /// since that has looked through all of its slots up to there.
    fn plan_again(&mut self, job: Job) {
        let now = self.core.routes.read().map.clone();
        let slots = match job.slots.is_empty() {
            true => job.map.slots.served_by(job.server).map(|(slot, _)| slot).collect(),
            false => job.slots.clone(),
        };
        let mut by_server: BTreeMap<ServerIndex, Vec<SlotIndex>> = BTreeMap::new();
        for slot in slots {
            let server = now.slots.get(slot).map(|slot| slot.primary);
            server.into_iter().for_each(|server| by_server.entry(server).or_default().push(slot));
        }
        for (server, slots) in by_server.into_iter().filter(|(server, _)| !self.silent.contains(server)) {
            self.jobs.push_front(Job { server, map: now.clone(), slots, ..job.clone() });
        }
    }

    fn request(&self, job: &Job) -> Request {
        let scan = fields::Scan {
            dirs: job.dirs[job.first..job.last].iter().map(|(ino, _)| *ino).collect(),
            predicate: self.wanted.predicate.clone(),
            find: self.wanted.find,
            usage: self.wanted.usage,
            after_dir: 0,
            after: job.after,
            limit: LIST_ENTRIES_MAX as u32,
            slots: job.slots.clone(),
        };
        Request::Scan { scan: Box::new(scan) }
    }

    /// Takes in a page, and has the next one asked for.
    async fn take(&mut self, job: Job, reply: Reply, each: &mut (dyn FnMut(&ScanPage) + Send)) {
        let Some((page, elsewhere, next)) = page_of(&job, reply) else {
            return self.failed(job, Failure::new(Code::Malformed, "Scan was answered with something else"));
        };
        if let Some(next) = next {
            self.jobs.push_front(Job { first: job.first + next.dir as usize, after: next.after, ..job });
        }
        let elsewhere = self.with_attributes(elsewhere).await;
        let page = ScanPage { elsewhere, ..page };
        for SubDir { dir, name, ino } in &page.subdirs {
            self.frontier.push_back((*ino, page.path(*dir, name)));
        }
        each(&page);
    }

    /// Fetches the attributes that are missing. A file that has vanished is no answer any more.
    async fn with_attributes(&mut self, entries: Vec<Found>) -> Vec<(Found, Attr)> {
        let (core, who) = (self.core, self.who);
        let fetches = entries.into_iter().map(|found| async move {
            match &found.attr {
                Some(attr) => Ok((Ok(attr.clone()), found)),
                None => Ok((core.fetch_attr(who, found.ino, true).await, found)),
            }
        });
        let mut complete = Vec::new();
        let mut failures = Vec::new();
        let sort = |(attr, found): (Result<Attr, Failure>, Found)| match attr {
            Ok(attr) => complete.push((found, attr)),
            Err(failure) if is_gone(&failure) => {}
            Err(failure) => failures.push(failure.during(format!("'{}', inode {}", found.name, found.ino))),
        };
        let fetched: Result<(), Failure> = in_window(ATTRS_AT_ONCE, fetches, sort).await;
        failures.extend(fetched.err());
        failures.into_iter().for_each(|failure| self.note(failure));
        complete
    }

    /// A request failed: because of one of its directories, which is then singled out, or because
    /// of the server.
    fn failed(&mut self, job: Job, failure: Failure) {
        if !is_about_directory(&failure) {
            self.silent.insert(job.server);
            self.jobs.retain(|other| other.server != job.server);
            return self.note(failure);
        }
        if job.last - job.first > 1 {
            let middle = job.first.midpoint(job.last);
            let second = Job { first: middle, after: 0, ..job.clone() };
            self.jobs.push_front(second);
            self.jobs.push_front(Job { last: middle, ..job });
            return;
        }
        let (ino, path) = &job.dirs[job.first];
        // A directory that vanished after it was come across has no entries; the root has to be there.
        if is_gone(&failure) && !path.is_empty() || !self.unreadable.insert(*ino) {
            return;
        }
        self.note(failure.during(format!("directory '{}'", String::from_utf8_lossy(path))));
    }

    fn note(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.failures += 1;
    }

    fn end(self) -> Result<(), Failure> {
        match self.failure {
            None => Ok(()),
            Some(first) if self.failures == 1 => Err(first),
            Some(first) => {
                Err(Failure { detail: format!("{} (and {} more)", first.detail, self.failures - 1), ..first })
            }
        }
    }
}

async fn ask_page(core: &Core, who: &Identity, request: Request, job: Job) -> (Job, Result<Reply, Failure>) {
    let answer = core.ask_planned(who, &job.map, job.server, &request).await;
    (job, answer)
}

/// Takes a page apart; `None` if it does not fit the request.
fn page_of(job: &Job, reply: Reply) -> Option<(ScanPage, Vec<Found>, Option<ScanPlace>)> {
    let Reply::Scanned { found, subdirs, elsewhere, usage, next } = reply else { return None };
    let count = (job.last - job.first) as u32;
    let moves_on = |next: &ScanPlace| next.dir > 0 || next.after > job.after;
    let fits = found.iter().chain(&elsewhere).map(|found| found.dir).all(|dir| dir < count)
        && subdirs.iter().all(|subdir| subdir.dir < count)
        && usage.iter().all(|usage| usage.dir < count)
        && next.as_ref().is_none_or(|next| next.dir < count && moves_on(next));
    let page = ScanPage { dirs: job.dirs.clone(), first: job.first, found, elsewhere: Vec::new(), subdirs, usage };
    fits.then_some((page, elsewhere, next))
}

fn is_gone(failure: &Failure) -> bool {
    matches!(failure.code, Code::NotFound | Code::Stale)
}

fn is_about_directory(failure: &Failure) -> bool {
    is_gone(failure) || matches!(failure.code, Code::AccessDenied | Code::NotDirectory | Code::Lost)
}
