//! The server's workers for shared memory, one for each core, and how they are woken.
//!
//! It alone knows the page that a server shares with all its local clients: for each worker a
//! futex, and a bit for each connection that has something for it. A client wakes the worker of
//! the core that it runs on itself, since waking another core costs more than a request; any
//! worker serves any connection. A client that spoils the page can only make others be served
//! late: nothing is believed of it but where to look, and a worker looks everywhere once in
//! [`RECHECK`] anyway.

use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sync::{Mutex, RwLock};

use super::super::conn::Conn;
use super::super::processors;
use super::super::reactor::{AbortOnPanic, Driving, Reactor};
use super::SHM_CONNECTIONS_MAX;
use super::region::{self, Region};
use super::wake::Post;

/// Most workers for shared memory that a server starts.
pub(super) const SHM_WORKERS_MAX: usize = 256;

/// How long a worker sleeps at most while there are connections, before it looks at all of them.
const RECHECK: Duration = Duration::from_secs(1);

/// The same while there are none.
const RECHECK_IDLE: Duration = Duration::from_secs(60);

/// Processors that the page tells apart.
const CPUS: usize = 1024;

/// Words with a bit for each connection.
const READY_WORDS: usize = SHM_CONNECTIONS_MAX / 64;

/// For each processor the number of its worker, four bytes each.
const WORKER_OF_CPU: usize = 0;
const POSTS: usize = WORKER_OF_CPU + CPUS * 4;
/// Within a worker's post: the futex, whether it waits, and on lines of their own the bits.
const WAKEUP: usize = 0;
const WAITS: usize = 4;
const READY: usize = 64;
const POST_BYTES: usize = READY + READY_WORDS * 8;

const PAGE_BYTES: usize = POSTS + SHM_WORKERS_MAX * POST_BYTES;

struct Page {
    region: Region,
    workers: usize,
}

impl Page {
    fn post(&self, worker: usize) -> Post<'_> {
        let at = POSTS + worker * POST_BYTES;
        Post { wakeup: self.region.word32(at + WAKEUP), waits: self.region.word32(at + WAITS) }
    }

    fn ready(&self, worker: usize, word: usize) -> &AtomicU64 {
        self.region.word64(POSTS + worker * POST_BYTES + READY + word * 8)
    }

    fn has_ready(&self, worker: usize) -> bool {
        (0..READY_WORDS).any(|word| self.ready(worker, word).load(SeqCst) != 0)
    }
}

/// A client's means to wake a server's worker for one connection.
pub(super) struct WorkerWaker {
    page: Page,
    slot: usize,
}

impl WorkerWaker {
    /// Takes over what a server gave, if it can be.
    pub(super) fn open(file: &OwnedFd, workers: usize, slot: usize) -> Result<Self> {
        if !(1..=SHM_WORKERS_MAX).contains(&workers) || slot >= SHM_CONNECTIONS_MAX {
            return Err(Error::other("the server offers a place that cannot be"));
        }
        Ok(WorkerWaker { page: Page { region: Region::open(file, PAGE_BYTES)?, workers }, slot })
    }

    /// Has the worker of this core look at the connection.
    pub(super) fn wake(&self) {
        let cpu = processors::current() % CPUS;
        let worker = self.page.region.word32(WORKER_OF_CPU + cpu * 4).load(Relaxed) as usize % self.page.workers;
        let post = self.page.post(worker);
        if post.wake(self.page.ready(worker, self.slot / 64), 1 << (self.slot % 64)) {
            region::futex_wake(post.wakeup);
        }
    }
}

#[cfg(test)]
impl WorkerWaker {
    /// What a client could do to others: takes away every sign that a worker is asleep or a connection ready.
    pub(super) fn spoil(&self) {
        for worker in 0..self.page.workers {
            self.page.post(worker).waits.store(0, SeqCst);
            (0..READY_WORDS).for_each(|word| self.page.ready(worker, word).store(0, SeqCst));
        }
    }
}

/// The connections, each in the slot of its bit.
#[derive(Default)]
struct Slots {
    taken: Vec<Option<Arc<Conn>>>,
    free: Vec<usize>,
}

/// A server's side: the workers and the connections they serve.
pub(in super::super) struct Wakeups {
    page: Page,
    file: OwnedFd,
    slots: RwLock<Slots>,
    live: AtomicUsize,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Wakeups {
    /// Starts the workers, each kept on its core where the system allows it.
    pub(in super::super) fn start(reactor: &Arc<Reactor>) -> Result<Arc<Self>> {
        let mut cpus = processors::processors();
        cpus.truncate(SHM_WORKERS_MAX);
        let (region, file) = Region::create(c"aze-bells", PAGE_BYTES)?;
        for cpu in 0..CPUS {
            let worker = cpus.iter().position(|own| own % CPUS == cpu).unwrap_or(cpu % cpus.len());
            region.word32(WORKER_OF_CPU + cpu * 4).store(worker as u32, Relaxed);
        }
        let page = Page { region, workers: cpus.len() };
        let wakeups = Arc::new(Wakeups {
            page,
            file,
            slots: RwLock::default(),
            live: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        for (worker, cpu) in cpus.into_iter().enumerate() {
            let (wakeups_of_thread, reactor) = (wakeups.clone(), reactor.clone());
            let life = move || {
                // Where the system does not want it, the scheduler places the thread: only slower.
                let _kept = processors::keep_on(&[cpu]);
                wakeups_of_thread.work(&reactor, worker);
            };
            match std::thread::Builder::new().name(format!("aze-shm-{worker}")).spawn(life) {
                Ok(thread) => wakeups.threads.lock().push(thread),
                Err(error) => {
                    wakeups.stop();
                    return Err(error);
                }
            }
        }
        Ok(wakeups)
    }

    /// The page, for clients.
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(super) fn workers(&self) -> usize {
        self.page.workers
    }

    /// Reserves a place for one more connection, if there is any.
    pub(super) fn reserve(&self) -> Option<usize> {
        let mut slots = self.slots.write();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None if slots.taken.len() == SHM_CONNECTIONS_MAX => return None,
            None => {
                slots.taken.push(None);
                slots.taken.len() - 1
            }
        };
        drop(slots);
        if self.live.fetch_add(1, SeqCst) == 0 {
            // They may sleep for long.
            self.rouse_all();
        }
        Some(slot)
    }

    /// Puts the connection into its place.
    pub(in super::super) fn enter(&self, slot: usize, conn: Arc<Conn>) {
        self.slots.write().taken[slot] = Some(conn);
    }

    /// Gives a place back.
    pub(in super::super) fn leave(&self, slot: usize) {
        let mut slots = self.slots.write();
        let conn = slots.taken[slot].take();
        slots.free.push(slot);
        drop(slots);
        self.live.fetch_sub(1, SeqCst);
        drop(conn);
    }

    fn conn(&self, slot: usize) -> Option<Arc<Conn>> {
        self.slots.read().taken.get(slot)?.clone()
    }

    /// The life of one worker: serves until the runtime stops.
    fn work(&self, reactor: &Arc<Reactor>, worker: usize) {
        let _driving = Driving::begin(reactor);
        let _guard = AbortOnPanic;
        let post = self.page.post(worker);
        while !self.stopping.load(SeqCst) {
            let served = self.serve_ready(worker);
            reactor.run_queue();
            if served {
                continue;
            }
            let news = || self.page.has_ready(worker) || reactor.has_work() || self.stopping.load(SeqCst);
            let Some(seen) = post.before_sleep(news) else { continue };
            let limit = if self.live.load(SeqCst) > 0 { RECHECK } else { RECHECK_IDLE };
            let slept_out = !region::futex_wait(post.wakeup, seen, limit);
            post.after_sleep();
            if slept_out {
                self.look_at_all();
            }
        }
    }

    /// Serves the connections that have sent a wakeup; `false` if there were none.
    fn serve_ready(&self, worker: usize) -> bool {
        let mut served = false;
        for word in 0..READY_WORDS {
            let ready = self.page.ready(worker, word);
            if ready.load(Relaxed) == 0 {
                continue;
            }
            let mut bits = ready.swap(0, SeqCst);
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                served = true;
                if let Some(conn) = self.conn(slot) {
                    conn.on_wakeup();
                }
            }
        }
        served
    }

    /// Takes back from all clients what they have done with.
    pub(in super::super) fn reclaim(&self) {
        let slots = self.slots.read().taken.len();
        (0..slots).filter_map(|slot| self.conn(slot)).for_each(|conn| conn.reclaim());
    }

    fn look_at_all(&self) {
        let slots = self.slots.read().taken.len();
        (0..slots).filter_map(|slot| self.conn(slot)).for_each(|conn| conn.on_wakeup());
    }

    fn rouse_all(&self) {
        for worker in 0..self.page.workers {
            let post = self.page.post(worker);
            post.rouse();
            region::futex_wake(post.wakeup);
        }
    }

    /// Ends the workers and waits for them. Called by one of them it does not wait for that one.
    pub(in super::super) fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.rouse_all();
        let here = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != here) {
            // A panic of such a thread has aborted the process before.
            thread.join().expect("a worker does not panic");
        }
    }
}
