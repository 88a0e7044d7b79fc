//! What clients do, and the board on which it is written down.

pub mod appends;
pub mod attributes;
pub mod files;
pub mod listing;
pub mod locks;
pub mod moving;
pub mod rights;
pub mod shared;

use crate::bytes::Bytes;
use crate::cluster::Cluster;
use crate::linear::Event;
use crate::plan::{Mix, Plan};
use crate::tree::{Id, Op, Ret};
use aze_client::Client;
use aze_client::lane::OnLane;
use aze_io::Io;
use aze_io::sim::SimRng;
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure, Identity, Ino};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How many deadlines one call may take. Some calls are several requests one after the other (find the way, open, ask),
/// and each may wait for its own.
const DEADLINES_PER_CALL_MAX: u32 = 4;

/// Violations that are kept; the first says most.
const VIOLATIONS_MAX: usize = 20;

/// What the tasks of one run share.
pub struct Board {
    mix: Mix,
    exchanges: bool,
    large_chunks: bool,
    deadline: Duration,
    ticks: AtomicU64,
    calls: AtomicU64,
    over: AtomicBool,
    settled: AtomicBool,
    violations: Mutex<Vec<String>>,
    story: Mutex<Option<Vec<String>>>,
    areas: Mutex<[Area; 2]>,
    /// Directories that a client has seen in the shared area.
    dirs: Mutex<Vec<Id>>,
    /// Files that a client has seen there.
    inodes: Mutex<Vec<Id>>,
    files: Mutex<Vec<FileSlot>>,
    listings: Mutex<Vec<listing::Slot>>,
    /// Appends to the file that all tasks share, and its truncations.
    pub appends: appends::SharedLog,
    /// The locks of all clients.
    pub held_locks: locks::SharedHeldLocks,
}

/// A part of the tree with a history of its own.
#[derive(Clone, Debug, Default)]
pub struct Area {
    /// The directory in which it begins; 0 if it is not used.
    pub base: Id,
    /// Operations with their answers.
    pub events: Vec<Event>,
}

/// The area of names that are fought over.
pub const SHARED: usize = 0;
/// The area in which something moves.
pub const MOVING: usize = 1;

/// One file with its model.
#[derive(Clone)]
pub struct FileSlot {
    /// Where it is.
    pub path: Vec<u8>,
    /// What may be in it.
    pub bytes: Arc<Mutex<Bytes>>,
}

/// One task's means.
pub struct Worker {
    /// For messages.
    pub who: String,
    /// Its client.
    pub client: Arc<Client>,
    /// The world of its client's node.
    pub io: Io,
    /// Where everything is written down.
    pub board: Arc<Board>,
    /// Its random numbers.
    pub rng: SimRng,
    /// Longest pause between two operations, in microseconds.
    pub think_us_max: u64,
    /// Through which of its client's lanes it asks; the first one if the client has none of this number.
    pub lane: usize,
}

/// Root, to whom rights do not apply.
pub static ROOT: Identity = Identity { uid: 0, gid: 0, groups: Vec::new() };

impl Board {
    /// An empty board; `verbose` keeps the story of the run.
    pub fn new(plan: &Plan, cluster: &Cluster, verbose: bool) -> Arc<Board> {
        Arc::new(Board {
            mix: plan.mix,
            exchanges: plan.exchanges,
            large_chunks: plan.large_chunks,
            deadline: cluster.layout().deadline,
            ticks: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            over: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            violations: Mutex::default(),
            story: Mutex::new(verbose.then(Vec::new)),
            areas: Mutex::default(),
            dirs: Mutex::default(),
            inodes: Mutex::default(),
            files: Mutex::default(),
            listings: Mutex::default(),
            appends: Mutex::default(),
            held_locks: Mutex::default(),
        })
    }

    /// What goes wrong in the run.
    pub fn mix(&self) -> Mix {
        self.mix
    }

    /// Whether names are exchanged.
    pub fn exchanges(&self) -> bool {
        self.exchanges
    }

    /// Whether files have large chunks and are written to in large pieces.
    pub fn large_chunks(&self) -> bool {
        self.large_chunks
    }

    /// A moment of the run; no two are equal.
    pub fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The work is done: faults end.
    pub fn set_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether the work is done.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Everything is healed: from now on no answer may be missing.
    pub fn set_settled(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// Records a violation.
    pub fn violation(&self, text: String) {
        self.tell(|| format!("VIOLATION {text}"));
        let mut violations = self.violations.lock();
        if violations.len() < VIOLATIONS_MAX {
            violations.push(text);
        }
    }

    /// The violations recorded so far.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().clone()
    }

    /// Adds to the story, if it is to be printed.
    pub fn tell(&self, text: impl FnOnce() -> String) {
        if let Some(story) = self.story.lock().as_mut() {
            story.push(text());
        }
    }

    /// Notes what the world did, in story and trace.
    pub fn note(&self, cluster: &Cluster, text: String) {
        self.tell(|| format!("{:>12} us  {text}", cluster.sim.now_ns() / 1000));
        cluster.sim.log(aze_io::sim::DRIVER, text);
    }

    /// The story so far.
    pub fn story(&self) -> Vec<String> {
        self.story.lock().clone().unwrap_or_default()
    }

    /// Makes an area known.
    pub fn begin_area(&self, area: usize, base: Ino) {
        self.areas.lock()[area].base = base.0;
    }

    /// The areas that are used.
    pub fn areas(&self) -> Vec<Area> {
        self.areas.lock().iter().filter(|area| area.base != 0).cloned().collect()
    }

    /// The files with their models.
    pub fn files(&self) -> Vec<FileSlot> {
        self.files.lock().clone()
    }

    /// The directories with their models.
    pub fn listings(&self) -> Vec<listing::Slot> {
        self.listings.lock().clone()
    }

    fn begin(&self, area: usize, who: &str, op: &Op) -> usize {
        let events = &mut self.areas.lock()[area].events;
        events.push(Event {
            who: who.into(),
            op: op.clone(),
            ret: Ret::Unknown,
            invoked: self.tick(),
            returned: u64::MAX,
        });
        events.len() - 1
    }

    fn end(&self, area: usize, index: usize, ret: Ret) {
        let returned = self.tick();
        let event = &mut self.areas.lock()[area].events[index];
        (event.ret, event.returned) = (ret, returned);
        self.tell(|| {
            format!("    [{}, {}] {}: {:?} -> {:?}", event.invoked, event.returned, event.who, event.op, event.ret)
        });
    }

    /// Whether an error is one that this run may give at all.
    fn judge(&self, who: &str, what: &str, failure: &Failure) {
        let faulty = self.mix.loses_answers() && !self.settled.load(Ordering::Relaxed);
        let fine = match failure.code {
            Code::TimedOut
            | Code::Unreachable
            | Code::UnknownOutcome
            | Code::Stopping
            | Code::Refused
            | Code::Expired => faulty,
            Code::Lost => self.mix == Mix::Restarts,
            Code::Internal | Code::Malformed | Code::Corrupt | Code::Replayed | Code::Version | Code::NotAuthentic => {
                false
            }
            Code::Limit
            | Code::NoSpace
            | Code::TooLarge
            | Code::TooManyLinks
            | Code::Unsupported
            | Code::CrossVolume => false,
            _ => true,
        };
        if !fine {
            self.violation(format!("{who}: {what} failed with {:?}, which cannot be: {failure}", failure.code));
        }
    }
}

impl Worker {
    /// A worker of a run.
    pub fn new(
        cluster: &Cluster,
        board: &Arc<Board>,
        client: (usize, Arc<Client>),
        label: &str,
        think_us_max: u64,
    ) -> Worker {
        Worker {
            who: format!("client {} {label}", client.0),
            io: cluster.client_io(client.0),
            rng: cluster.sim.rng(&format!("{label} of client {}", client.0)),
            client: client.1,
            board: board.clone(),
            think_us_max,
            lane: cluster.sim.rng(&format!("lane of {label} of client {}", client.0)).below(4) as usize,
        }
    }

    /// A pause between two operations.
    pub async fn think(&mut self) {
        let us = self.rng.below(self.think_us_max + 1);
        self.io.sleep(Duration::from_micros(us)).await;
    }

    /// Makes a call: counts it, tells of it, checks how long it took and which error it gave.
    pub async fn call<T>(
        &self,
        what: impl FnOnce() -> String,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.board.calls.fetch_add(1, Ordering::Relaxed);
        let what = what();
        let began_ns = self.io.mono_ns();
        let result = OnLane::new(self.lane, pin!(call)).await;
        let now_ns = self.io.mono_ns();
        self.board.tell(|| {
            let end = match &result {
                Ok(_) => "ok".to_string(),
                Err(failure) => format!("{:?}: {failure}", failure.code),
            };
            format!("{:>12} us  {} {what} -> {end} ({} us)", now_ns / 1000, self.who, (now_ns - began_ns) / 1000)
        });
        if now_ns - began_ns > (self.board.deadline * DEADLINES_PER_CALL_MAX).as_nanos() as u64 {
            self.board.violation(format!("{}: {what} took {} ms", self.who, (now_ns - began_ns) / 1_000_000));
        }
        if let Err(failure) = &result {
            self.board.judge(&self.who, &what, failure);
        }
        result
    }
}

/// Whether an error says that nothing has happened, for a reason of the tree.
pub fn is_plain(code: Code) -> bool {
    matches!(
        code,
        Code::NotFound
            | Code::Exists
            | Code::NotDirectory
            | Code::IsDirectory
            | Code::NotEmpty
            | Code::Invalid
            | Code::NotPermitted
            | Code::Busy
            | Code::Stale
    )
}
