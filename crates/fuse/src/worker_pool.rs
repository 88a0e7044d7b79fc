//! The workers of a mount, and how many of them read the kernel's requests at a time.
//!
//! Every request wakes one of the reading workers. So as few read as can do the work: one for each program that asks
//! and one more; several where requests take long. A worker that waits for a server for longer than a server needs
//! ([`PATIENCE`]) lets another one read in its place, so that a silent server delays its own callers only. The
//! contents of requests are not known here.

use crate::THREADS_MAX;
use aze_io::sync::{Condvar, Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a worker waits for servers before another one reads in its place: much longer than
/// servers take, since waking another thread costs more than most requests.
pub const PATIENCE: Duration = Duration::from_millis(1);

/// Workers for each core that read where requests take long, and that stay though there is nothing to do.
const FOR_EACH_CORE: usize = 4;

/// Requests from which it is told how many threads ask at the same time: those that have asked among the older
/// and among the newer half of them. One after the other, as in a script, they count for one.
const RECENT: usize = 256;

/// Requests after which this is counted anew.
const COUNTED_REQUESTS: usize = 32;

/// Requests for which a slow one is remembered.
const SLOW_REQUESTS: u32 = 64;

/// Workers that read beside one for each caller: there are requests that no program waits for, and the next request
/// comes before they are done.
const BESIDE: usize = 1;

thread_local! {
    /// This thread is a worker and is counted among those that read.
    pub(crate) static READS: Cell<bool> = const { Cell::new(false) };

    /// The pool to be told that this thread waits, if it is a worker.
    static POOL: RefCell<Option<Arc<dyn Pool>>> = const { RefCell::new(None) };
}

/// Workers of one kind.
pub trait Pool {
    /// The calling worker has waited for servers for long: another one reads instead.
    fn waits_long(&self);
}

/// The calling thread is a worker of this pool.
pub(crate) fn belongs_to(pool: Arc<dyn Pool>) {
    POOL.set(Some(pool));
}

/// The calling thread has waited for servers for long, or is about to wait for another thread: if it is a worker, another
/// one reads instead.
pub fn waits_long() {
    POOL.with_borrow(|pool| pool.iter().for_each(|pool| pool.waits_long()));
}

/// How long a request takes the worker that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It takes little more than the answer of a server that is well.
    Quick,
    /// It moves much data, or waits for disks or for another worker.
    Slow,
}

/// The workers of one mount.
pub struct WorkerPool {
    workers_max: usize,
    /// That many read where requests take long, and that many stay.
    readers_usual: usize,
    state: Mutex<State>,
    /// A spare one is to read, or the mount has ended.
    called: Condvar,
    left: Condvar,
    /// Starts a worker that has been counted already.
    start: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    workers: usize,
    /// Of these, those that wait for a request or do a quick one.
    readers: usize,
    /// Of these, those that sleep until they are called.
    spare: usize,
    /// Spare ones that were called and have not woken yet.
    calls: usize,
    recent: Recent,
    /// The mount has ended.
    has_ended: bool,
    /// What ended it, if it was not its unmounting.
    failure: Option<io::Error>,
}

/// The threads that have asked of late.
struct Recent {
    callers: [u32; RECENT],
    /// Where the next one is noted; the oldest is there.
    next: usize,
    /// So many ask at the same time.
    count: usize,
    /// Requests until none of the recent ones was slow.
    slow: u32,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { callers: [0; RECENT], next: 0, count: 1, slow: 0 }
    }
}

impl Recent {
    /// A thread asks; 0 is the kernel itself, which waits for nothing.
    fn note(&mut self, caller: u32, kind: Kind) {
        self.slow = if kind == Kind::Slow { SLOW_REQUESTS } else { self.slow.saturating_sub(1) };
        if caller == 0 {
            return;
        }
        self.callers[self.next] = caller;
        self.next = (self.next + 1) % RECENT;
        if self.next.is_multiple_of(COUNTED_REQUESTS) {
            self.count = self.count_those_at_once().max(1);
        }
    }

    fn count_those_at_once(&self) -> usize {
        let mut ordered = self.callers;
        ordered.rotate_left(self.next);
        let (older, newer) = ordered.split_at_mut(RECENT / 2);
        older.sort_unstable();
        newer.sort_unstable();
        let is_first = |at: usize| at == 0 || newer[at] != newer[at - 1];
        // Places that were never used count for no caller.
        let callers = (0..newer.len()).filter(|at| is_first(*at) && newer[*at] != 0);
        callers.filter(|at| older.binary_search(&newer[*at]).is_ok()).count()
    }
}

impl WorkerPool {
    /// At most `workers_max` requests are served at the same time.
    pub fn new(workers_max: usize) -> WorkerPool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers_max = workers_max.clamp(1, THREADS_MAX);
        WorkerPool {
            workers_max,
            readers_usual: (FOR_EACH_CORE * cores).min(workers_max),
            state: Mutex::default(),
            called: Condvar::new(),
            left: Condvar::new(),
            start: OnceLock::new(),
        }
    }

    /// Begins with one worker. `start` starts one; where it cannot it calls [`WorkerPool::not_started`].
    pub fn begin(&self, start: impl Fn() + Send + Sync + 'static) {
        // A worker that began before has started one.
        let _ = self.start.set(Box::new(start));
        self.add_reader(self.state.lock());
    }

    /// A worker that was to be started could not be. Those that are there go on.
    pub fn not_started(&self, error: io::Error) {
        let mut state = self.state.lock();
        state.workers -= 1;
        state.readers -= 1;
        if state.workers == 0 {
            state.failure.get_or_insert(error);
        }
        self.left.notify_all();
    }

    /// The calling thread is a worker for as long as it keeps this.
    pub fn join(self: &Arc<Self>) -> Place<'_> {
        READS.set(true);
        belongs_to(self.clone());
        Place(self)
    }

    /// Returns when the calling worker is to read a request; `false` if it is to end.
    pub fn may_read(&self) -> bool {
        let mut state = self.state.lock();
        let wanted = self.wanted(&state);
        if state.has_ended {
            return false;
        }
        if READS.get() {
            if state.readers <= wanted {
                return true;
            }
            state.readers -= 1;
            READS.set(false);
        }
        if state.readers < wanted {
            state.readers += 1;
            READS.set(true);
            return true;
        }
        self.wait_for_a_call(state)
    }

    /// The calling worker begins with a request of this thread. Further workers read meanwhile, if need be.
    pub fn begins(&self, caller: u32, kind: Kind) {
        let mut state = self.state.lock();
        state.recent.note(caller, kind);
        if kind == Kind::Slow && READS.replace(false) {
            state.readers -= 1;
        }
        if state.readers < self.wanted(&state) {
            self.add_reader(state);
        }
    }

    /// The mount is no more: workers that do not read end.
    pub fn end(&self) {
        self.state.lock().has_ended = true;
        self.called.notify_all();
    }

    /// The calling worker cannot read any more. The other workers go on; when the last one is gone the kernel ends the
    /// mount.
    pub fn fail(&self, error: io::Error) {
        self.state.lock().failure.get_or_insert(error);
    }

    /// Blocks until every worker is gone; gives what ended the mount if it was not its unmounting.
    pub fn wait(&self) -> Option<io::Error> {
        let mut state = self.state.lock();
        while state.workers > 0 {
            state = self.left.wait(state);
        }
        state.failure.take()
    }

    /// How many are to read.
    fn wanted(&self, state: &State) -> usize {
        let callers = state.recent.count + BESIDE;
        if state.recent.slow > 0 { self.readers_usual.max(callers) } else { callers }
    }

    /// One more reads, unless as many work as may.
    fn add_reader(&self, mut state: MutexGuard<'_, State>) {
        if state.has_ended {
            return;
        }
        let is_spare = state.spare > state.calls;
        if is_spare {
            state.calls += 1;
        } else if state.workers < self.workers_max {
            state.workers += 1;
        } else {
            return;
        }
        state.readers += 1;
        drop(state);
        if is_spare {
            self.called.notify_one();
        } else if let Some(start) = self.start.get() {
            start();
        }
    }

    /// Sleeps until the calling worker is called to read; `false` if it is to end.
    fn wait_for_a_call(&self, mut state: MutexGuard<'_, State>) -> bool {
        if state.spare >= self.readers_usual {
            return false;
        }
        state.spare += 1;
        while state.calls == 0 && !state.has_ended {
            state = self.called.wait(state);
        }
        state.spare -= 1;
        if state.calls == 0 {
            return false;
        }
        // The caller has counted it among the readers.
        state.calls -= 1;
        READS.set(true);
        true
    }
}

impl Pool for WorkerPool {
    fn waits_long(&self) {
        if !READS.replace(false) {
            return;
        }
        let mut state = self.state.lock();
        state.readers -= 1;
        if state.readers < self.wanted(&state) {
            self.add_reader(state);
        }
    }
}

/// A worker's place in the worker pool, given up however it ends.
pub struct Place<'a>(&'a WorkerPool);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.workers -= 1;
        if READS.replace(false) {
            state.readers -= 1;
        }
        // Of those that sleep one has to go on reading; those that work will.
        if state.readers == 0 && state.spare > state.calls && !state.has_ended {
            state.calls += 1;
            state.readers += 1;
            self.0.called.notify_one();
        }
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn count(callers: impl Iterator<Item = u32>) -> usize {
        let mut recent = Recent::default();
        callers.for_each(|caller| recent.note(caller, Kind::Quick));
        recent.count
    }

    #[test]
    fn threads_that_take_turns_are_told_from_those_that_follow_each_other() {
        let many = 4 * RECENT as u32;
        assert_eq!(count(std::iter::repeat_n(7, many as usize)), 1);
        assert_eq!(count((0..many).map(|at| 1 + at % 5)), 5);
        assert_eq!(count((0..many).map(|at| if at % 2 == 0 { 7 } else { 0 })), 1, "what nobody waits for");
        // A script: each of its programs asks ten times, and it only starts them.
        assert_eq!(count((0..many).map(|at| 100 + at / 10)), 1);
        assert_eq!(count(1..many), 1);
    }

    #[test]
    fn one_reads_for_one_caller_and_several_where_requests_are_slow() {
        let pool = Arc::new(WorkerPool::new(8));
        let started = Arc::new(AtomicUsize::new(0));
        let counts = started.clone();
        pool.begin(move || {
            counts.fetch_add(1, SeqCst);
        });
        let _place = pool.join();
        for _ in 0..1000 {
            assert!(pool.may_read());
            pool.begins(7, Kind::Quick);
        }
        assert_eq!(started.load(SeqCst), 2, "it is always there again, and one beside it");
        pool.waits_long();
        assert_eq!(started.load(SeqCst), 3);
        pool.waits_long();
        assert_eq!(started.load(SeqCst), 3, "others read already");
        pool.begins(7, Kind::Slow);
        assert_eq!(started.load(SeqCst), 4, "and beside what is slow one more");
    }

    #[test]
    fn no_more_work_than_may() {
        let pool = Arc::new(WorkerPool::new(2));
        pool.begin(|| ());
        let _place = pool.join();
        for _ in 0..10 {
            assert!(pool.may_read());
            pool.begins(7, Kind::Slow);
        }
        assert_eq!(pool.state.lock().workers, 2);
    }

    #[test]
    fn a_spare_one_is_called_and_the_last_one_ends_the_wait() {
        let pool = Arc::new(WorkerPool::new(8));
        let fresh = Arc::downgrade(&pool);
        let (tell, told) = std::sync::mpsc::channel();
        pool.begin(move || {
            let (pool, tell) = (fresh.upgrade().expect("it lives"), tell.clone());
            std::thread::spawn(move || {
                let _place = pool.join();
                while pool.may_read() {
                    tell.send(()).expect("somebody listens");
                    pool.begins(1, Kind::Quick);
                    if pool.state.lock().workers < 3 {
                        pool.waits_long();
                    }
                }
            });
        });
        for _ in 0..1000 {
            told.recv().expect("somebody reads");
        }
        pool.end();
        assert!(pool.wait().is_none());
    }

    #[test]
    fn workers_that_cannot_be_started_end_a_mount_only_if_none_is_left() {
        let refused = || io::Error::from_raw_os_error(libc::EAGAIN);
        let pool = Arc::new(WorkerPool::new(8));
        pool.begin(|| ());
        let place = pool.join();
        pool.begins(7, Kind::Quick);
        assert_eq!(pool.state.lock().workers, 2);
        pool.not_started(refused());
        assert!(pool.may_read(), "the first one goes on");
        drop(place);
        assert!(pool.wait().is_none(), "it has ended by itself");
        let pool = Arc::new(WorkerPool::new(8));
        pool.begin(|| ());
        pool.not_started(refused());
        assert_eq!(pool.wait().and_then(|error| error.raw_os_error()), Some(libc::EAGAIN));
    }
}
