//! Files whose data are, were, or may come to be in the volume's backing: what their homes have said of them, and which reads are under
//! way. All of it can be asked for again.

use aze_io::sync::Mutex;
use aze_proto::{Backing, Code, Failure, Generation, Ino, ShardId};
use futures_channel::oneshot;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files whose homes' words a server remembers, about 300 bytes each; when there are more it begins anew, and asks
/// again.
const KNOWN_MAX: usize = 1 << 16;

/// Files that stages have claimed, 24 bytes each; when there are more it begins anew, and those have to be claimed again.
const CLAIMED_MAX: usize = 1 << 16;

/// Runs of data in the backing for which one request asks.
const RUNS_MAX: usize = 256;

/// Files that a server reports once as changed in the backing; when there are more it begins anew.
const REPORTED_MAX: usize = 1 << 12;

/// What a request lacks of a file that came from the backing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lack {
    pub(crate) shard: ShardId,
    pub(crate) ino: Ino,
    /// The generation that the asker knows.
    pub(crate) generation: Generation,
    /// The chunk that has to be here; `None`: only what the home says.
    pub(crate) chunk: Option<u64>,
    /// The request changes data.
    pub(crate) changes: bool,
    /// The chunk is wanted before anybody uses it: nothing goes for it.
    pub(crate) is_ahead: bool,
}

impl Lack {
    /// Of a request that changes data: what the home says.
    pub(crate) fn of_change(shard: ShardId, ino: Ino, generation: Generation) -> Lack {
        Lack { shard, ino, generation, chunk: None, changes: true, is_ahead: false }
    }
}

/// What a request has learnt of where a file's data and holes are in the backing.
#[derive(Debug, Default)]
pub(crate) struct Runs(Vec<Run>);

/// A run of data of an object, and the hole before it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Which object: the number of the file's origin.
    pub(crate) origin: u32,
    /// Where the hole begins, or the data where there is none.
    pub(crate) from: u64,
    /// The data.
    pub(crate) data: Range<u64>,
}

impl Runs {
    /// Whether there are data at a place, and where that ends; `None` if it is not known. Who has asked too often is told of data:
    /// these are read to find out.
    pub(crate) fn at(&self, backing: &Backing, at: u64) -> Option<(bool, u64)> {
        let mut here = self.0.iter().filter(|run| run.origin == backing.origin && run.from <= at && at < run.data.end);
        let found = here.next_back().map(|run| match at < run.data.start {
            true => (false, run.data.start.min(backing.length)),
            false => (true, run.data.end),
        });
        found.or((self.0.len() >= RUNS_MAX).then_some((true, u64::MAX)))
    }

    pub(crate) fn learn(&mut self, run: Run) {
        self.0.push(run);
    }
}

/// What a request is told that states a wrong chunk size.
pub(crate) fn other_chunk_size() -> Failure {
    Failure::new(Code::Malformed, "another chunk size than the file's")
}

/// What a file's home has said.
#[derive(Debug)]
pub(crate) struct Known {
    /// The generation in which that was so.
    pub(crate) generation: Generation,
    /// Where it came from, and how much of that counts.
    pub(crate) backing: Backing,
    /// Base-2 logarithm of its chunk size.
    pub(crate) chunk_bits: u8,
    /// The home knows that its data change.
    pub(crate) may_change: bool,
}

impl Known {
    /// The chunk size that a request states has to be the file's.
    pub(crate) fn check_chunk_bits(&self, chunk_bits: u8) -> Result<(), Failure> {
        if chunk_bits == self.chunk_bits { Ok(()) } else { Err(other_chunk_size()) }
    }

    /// Whether a chunk has bytes of the backing, unless they were written in the volume.
    pub(crate) fn has_part_in(&self, chunk: u64) -> bool {
        self.start_of(chunk).is_some_and(|start| start < self.backing.length)
    }

    /// How many bytes of a chunk are the backing's, unless they were written in the volume.
    pub(crate) fn bytes_of(&self, chunk: u64) -> usize {
        let left = self.start_of(chunk).map_or(0, |start| self.backing.length.saturating_sub(start));
        left.min(1 << self.chunk_bits) as usize
    }

    /// Where in the file a chunk begins.
    pub(crate) fn start_of(&self, chunk: u64) -> Option<u64> {
        chunk.checked_mul(1 << self.chunk_bits)
    }
}

/// How work ended that several requests wait for.
pub(crate) type Ended = Result<(), Failure>;

/// Work that is done once for all who ask for it meanwhile.
pub(crate) struct Flights<K>(Mutex<BTreeMap<K, Vec<oneshot::Sender<Ended>>>>);

impl<K: Ord> Default for Flights<K> {
    fn default() -> Self {
        Flights(Mutex::default())
    }
}

impl<K: Ord> Flights<K> {
    /// Waits for the work; gives whether the caller has to begin it.
    pub(crate) fn join(&self, key: K) -> (bool, oneshot::Receiver<Ended>) {
        let (sender, receiver) = oneshot::channel();
        let mut flights = self.0.lock();
        let waiters = flights.entry(key).or_default();
        let is_first = waiters.is_empty();
        waiters.push(sender);
        (is_first, receiver)
    }

    /// It has ended: all who wait are told.
    pub(crate) fn end(&self, key: &K, ended: &Ended) {
        let waiters = self.0.lock().remove(key);
        for waiter in waiters.into_iter().flatten() {
            // A waiter that has given up is no concern.
            let _ = waiter.send(ended.clone());
        }
    }
}

/// All that is known.
#[derive(Default)]
pub(crate) struct BackedFiles {
    known: Mutex<BTreeMap<Ino, Arc<Known>>>,
    /// How often the server has forgotten an entry: an answer of before may be older than that entry.
    forgotten: AtomicU64,
    /// Chunks that are being read from the backing.
    pub(crate) reads: Flights<(Ino, u64)>,
    /// Bytes of them.
    pub(crate) being_read: AtomicU64,
    reported: Mutex<BTreeSet<Ino>>,
    /// Files that have their home here and that a stage is at, each with its latest claim.
    claims: Mutex<BTreeMap<Ino, u64>>,
}

impl BackedFiles {
    pub(crate) fn known(&self, ino: Ino) -> Option<Arc<Known>> {
        self.known.lock().get(&ino).cloned()
    }

    /// To be asked for before a home is asked, for [`BackedFiles::learn`].
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// A home has answered; an answer that says less than an earlier one came late, and so may one that was asked for before
    /// something was forgotten.
    pub(crate) fn learn(&self, ino: Ino, news: Known, forgotten: u64) {
        let mut known = self.known.lock();
        if self.forgotten() != forgotten {
            return;
        }
        if known.len() >= KNOWN_MAX {
            known.clear();
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        let state = |known: &Known| (known.generation, known.backing.origin, known.may_change);
        if known.get(&ino).is_none_or(|old| state(old) <= state(&news)) {
            known.insert(ino, Arc::new(news));
        }
    }

    pub(crate) fn forget(&self, ino: Ino) {
        let mut known = self.known.lock();
        if known.remove(&ino).is_some() {
            self.forgotten.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// No earlier claim to this file counts any more.
    pub(crate) fn claim(&self, ino: Ino, claim: u64) {
        let mut claims = self.claims.lock();
        if claims.len() >= CLAIMED_MAX {
            claims.clear();
        }
        claims.insert(ino, claim);
    }

    /// Whether a claim is the latest.
    pub(crate) fn is_claim(&self, ino: Ino, claim: u64) -> bool {
        self.claims.lock().get(&ino) == Some(&claim)
    }

    /// The stage that has this claim has ended.
    pub(crate) fn end_claim(&self, ino: Ino, claim: u64) {
        let mut claims = self.claims.lock();
        if claims.get(&ino) == Some(&claim) {
            claims.remove(&ino);
        }
    }

    /// Whether a change of this file is to be reported: the first time.
    pub(crate) fn is_news(&self, ino: Ino) -> bool {
        let mut reported = self.reported.lock();
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        reported.insert(ino)
    }
}
