//! One epoll instance, the sources registered with it, and the queue of work that is ready to run.
//!
//! It alone knows how a thread that drives a runtime goes to sleep and how it is woken. Which
//! threads drive, and for how long, it does not know: see [`super::drive`].

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use crate::sync::{Mutex, RwLock};

use super::attend::Attendants;
use super::conn::Conn;
use super::drive::ALONE_MS;
use super::net::{Dial, ListenSocket};
use super::shm::shared_payload::SharedSlab;
use super::shm::wakeups::Wakeups;
use super::sys;
use super::task::TaskCell;
use super::timers::Timers;
use crate::slab::Slab;

/// Events that one wait takes: few, so that one worker does not carry off what others could do.
const EVENTS_PER_WAIT: usize = 8;

/// Queued items that run before the sockets are looked at again.
const RUNS_PER_TURN: usize = 64;

/// How long a wait lasts at most while connections through shared memory are open here, before
/// they are looked at: a server that is well sends a wakeup, so that this is for one that is not.
const RINGS_RECHECK_MS: i32 = 1000;

const TOKEN_WAKEUP: u64 = 0;
const TOKEN_TIMER: u64 = 1;
const TOKEN_FIRST_SOURCE: u64 = 2;

/// Something ready to run.
pub(super) enum Work {
    /// A task that was woken.
    Run(Arc<TaskCell>),
    /// A connection to go on reading; its read claim passes on with it.
    Read(Arc<Conn>),
    /// A listener to go on accepting from.
    Accept(Arc<ListenSocket>),
}

/// Something that epoll tells events of.
#[derive(Clone)]
pub(super) enum Source {
    Conn(Arc<Conn>),
    /// The eventfd by which a server wakes the client of a connection through shared memory.
    Ring(Arc<Conn>),
    Listen(Arc<ListenSocket>),
    Dial(Arc<Dial>),
}

/// What all threads of one runtime share.
pub(super) struct Reactor {
    epoll: OwnedFd,
    /// An eventfd: written to end one thread's wait.
    wakeup: OwnedFd,
    /// A wakeup was sent and no thread has seen it yet, so that sending another one is pointless.
    is_woken: AtomicBool,
    /// Threads that wait for events, or have announced it and will look at the queue first.
    sleepers: AtomicUsize,
    /// Ready work. Its number is bounded by tasks, connections and listeners: each is in it once.
    queue: Mutex<VecDeque<Work>>,
    sources: RwLock<HashMap<u64, Source>>,
    tokens: AtomicU64,
    /// Connections through shared memory that were opened here: the thread that drives looks at them.
    rings: RwLock<Vec<Arc<Conn>>>,
    /// Their number, to be looked at without the lock.
    rings_count: AtomicUsize,
    /// This runtime has workers and may accept such connections.
    pub(super) serves: AtomicBool,
    /// The workers that serve accepted ones, from the first on.
    wakeups: Mutex<Option<Arc<Wakeups>>>,
    /// Threads that wait for one connection each.
    pub(super) attendants: Attendants,
    /// What clients that share memory copy from.
    shared_slab: Mutex<Option<Arc<SharedSlab>>>,
    pub(super) timers: Timers,
    /// Threads that the runtime started itself shall end.
    pub(super) stopping: AtomicBool,
    /// It was cleared: tasks come to nothing from now on.
    is_over: AtomicBool,
    /// Present in a program of others, which goes on when a defect has ended this runtime.
    defect: Option<Defect>,
}

/// What a panic in a program of others comes to: the runtime answers no call any more.
#[derive(Default)]
struct Defect {
    is_found: AtomicBool,
    /// Called once, on the thread that has panicked.
    told: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

thread_local! {
    /// The address of the reactor that this thread drives now, or 0.
    static DRIVEN: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, its thread drives a reactor: work that this thread queues needs no wakeup, since the same thread
/// looks at the queue before it sleeps.
pub(super) struct Driving {
    before: usize,
}

impl Driving {
    pub(super) fn begin(reactor: &Reactor) -> Self {
        Driving { before: DRIVEN.replace(std::ptr::from_ref(reactor).addr()) }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVEN.set(self.before);
    }
}

/// Ends the process if a handler or task panics: state that a panic left half-changed must
/// not answer another request. The panic's own message has been printed by then.
pub(super) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("unnamed");
            eprintln!("azekura: a task or handler panicked on thread '{name}'; its state cannot be trusted: aborting");
            std::process::abort();
        }
    }
}

/// Deals with a panic of what a thread does for a runtime: see [`Runtime::library`](super::Runtime::library).
pub(super) struct Guard<'a> {
    reactor: &'a Reactor,
    /// The thread was unwinding before, as when a host's own panic drops its values of this library.
    was_panicking: bool,
}

impl<'a> Guard<'a> {
    pub(super) fn new(reactor: &'a Reactor) -> Self {
        Guard { reactor, was_panicking: std::thread::panicking() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.was_panicking || !std::thread::panicking() {
            return;
        }
        match &self.reactor.defect {
            Some(_) => self.reactor.break_off(),
            None => drop(AbortOnPanic),
        }
    }
}

/// A thread's own reason to end a wait; see [`super::drive::Parker`].
pub(super) trait Sleeper {
    /// It may wait for its one connection alone, if there is only one: see [`Reactor::alone`].
    const MAY_BE_ALONE: bool;
    /// Announces the wait; `false` if there is a reason not to block.
    fn before_wait(&self) -> bool;
    fn after_wait(&self);
    /// How long it may wait at most, in milliseconds.
    fn limit_ms(&self) -> Option<u32>;
}

/// A worker has no reason but the queue.
impl Sleeper for () {
    const MAY_BE_ALONE: bool = false;

    fn before_wait(&self) -> bool {
        true
    }

    fn after_wait(&self) {}

    fn limit_ms(&self) -> Option<u32> {
        None
    }
}

impl Reactor {
    /// `is_guest`: a defect ends the runtime, and not the process.
    pub(super) fn new(is_guest: bool) -> Result<Arc<Self>> {
        let reactor = Reactor {
            epoll: sys::epoll_create()?,
            wakeup: sys::eventfd()?,
            is_woken: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            queue: Mutex::default(),
            sources: RwLock::default(),
            tokens: AtomicU64::new(TOKEN_FIRST_SOURCE),
            rings: RwLock::default(),
            rings_count: AtomicUsize::new(0),
            serves: AtomicBool::new(false),
            wakeups: Mutex::default(),
            attendants: Attendants::new(),
            shared_slab: Mutex::default(),
            timers: Timers::new()?,
            stopping: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            defect: is_guest.then(Defect::default),
        };
        let edge_in = libc::EPOLLIN | libc::EPOLLET;
        sys::epoll_control(&reactor.epoll, libc::EPOLL_CTL_ADD, &reactor.wakeup, edge_in, TOKEN_WAKEUP)?;
        sys::epoll_control(&reactor.epoll, libc::EPOLL_CTL_ADD, reactor.timers.fd(), edge_in, TOKEN_TIMER)?;
        Ok(Arc::new(reactor))
    }

    /// Whether a panic ends this runtime, and not the process.
    pub(super) fn is_guest(&self) -> bool {
        self.defect.is_some()
    }

    /// Whether a panic has ended this runtime.
    pub(super) fn is_broken(&self) -> bool {
        self.defect.as_ref().is_some_and(|defect| defect.is_found.load(SeqCst))
    }

    /// Has `tell` called once when a panic ends this runtime; at once if that has happened.
    pub(super) fn when_broken(&self, tell: Box<dyn FnOnce() + Send>) {
        let Some(defect) = &self.defect else { return };
        defect.told.lock().push(tell);
        if self.is_broken() {
            self.break_off();
        }
    }

    /// A panic ends this runtime, or one that ends with it.
    pub(super) fn break_off(&self) {
        let Some(defect) = &self.defect else { return };
        defect.is_found.store(true, SeqCst);
        // The thread that leads looks, and passes it on.
        self.wake();
        let told = std::mem::take(&mut *defect.told.lock());
        told.into_iter().for_each(|tell| tell());
    }

    /// # Panics
    /// If a panic has ended this runtime: state that it left half-changed must not answer.
    pub(super) fn check_sound(&self) {
        assert!(!self.is_broken(), "azekura: a defect has ended this connection: see the message before");
    }

    /// Whether the calling thread drives this reactor.
    pub(super) fn is_driven_here(&self) -> bool {
        DRIVEN.get() == std::ptr::from_ref(self).addr()
    }

    /// One round: runs the work that is ready, waits for events unless there is more, handles them.
    /// Returns at least whenever `sleeper` has a reason.
    pub(super) fn turn<S: Sleeper>(self: &Arc<Self>, sleeper: &S) {
        let _guard = Guard::new(self);
        self.run_queue();
        let has_rings = self.rings_count.load(SeqCst) > 0;
        if has_rings {
            // Nearly always there are none, and nothing is allocated.
            let due: Vec<Arc<Conn>> = self.rings.read().iter().filter(|conn| conn.is_due()).cloned().collect();
            due.iter().for_each(Conn::on_wakeup);
            self.run_queue();
        }
        let announced = sleeper.before_wait();
        let block = announced && self.may_sleep(has_rings);
        if block
            && S::MAY_BE_ALONE
            && let Some(only) = self.alone()
            && only.read_alone(sleeper.limit_ms().map_or(ALONE_MS, |limit_ms| limit_ms.min(ALONE_MS)))
        {
            self.sleepers.fetch_sub(1, SeqCst);
            sleeper.after_wait();
            return self.run_queue();
        }
        self.wait_for_events(sleeper, block, has_rings);
    }

    fn wait_for_events(self: &Arc<Self>, sleeper: &impl Sleeper, block: bool, has_rings: bool) {
        let own_ms = sleeper.limit_ms().map_or(-1, |limit_ms| i32::try_from(limit_ms).unwrap_or(i32::MAX));
        let limit_ms = match (has_rings, own_ms) {
            (true, -1) => RINGS_RECHECK_MS,
            (true, own_ms) => own_ms.min(RINGS_RECHECK_MS),
            (false, own_ms) => own_ms,
        };
        let mut events = [sys::NO_EVENT; EVENTS_PER_WAIT];
        let filled = sys::epoll_wait(&self.epoll, &mut events, if block { limit_ms } else { 0 });
        if block {
            self.sleepers.fetch_sub(1, SeqCst);
        }
        sleeper.after_wait();
        for event in &events[..filled] {
            self.handle(event.u64, event.events);
            self.run_queue();
        }
    }

    /// The only connection that there is, if nothing else can happen soon that this thread would have to
    /// hear of: no other source, no wakeup, no timer. What another thread does after this look is heard
    /// [`ALONE_MS`] later at most.
    fn alone(&self) -> Option<Arc<Conn>> {
        let only = {
            let sources = self.sources.read();
            // One through shared memory is two: its socket and its eventfd.
            if sources.len() > 2 {
                return None;
            }
            let mut conns = sources.values().filter_map(|source| match source {
                Source::Conn(conn) => Some(conn),
                Source::Ring(_) | Source::Listen(_) | Source::Dial(_) => None,
            });
            let only = conns.next()?.clone();
            let others = (sources.len() - 1).saturating_sub(self.rings_count.load(SeqCst));
            if others > 0 || conns.next().is_some() {
                return None;
            }
            only
        };
        let soon_ns = sys::clock_ns(libc::CLOCK_MONOTONIC) + u64::from(ALONE_MS) * 1_000_000;
        let is_quiet = !self.is_woken.load(SeqCst) && self.timers.next_ns() > soon_ns;
        (is_quiet && only.may_read_alone()).then_some(only)
    }

    /// Counts this thread among the sleepers unless there is work. A thread that queues work after
    /// the look at the queue sees the count, because both go through the queue's lock.
    fn may_sleep(&self, has_rings: bool) -> bool {
        self.sleepers.fetch_add(1, SeqCst);
        let idle = !self.has_work() && !self.stopping.load(SeqCst);
        let idle = idle && (!has_rings || self.rings.read().iter().all(|conn| conn.may_sleep()));
        if !idle {
            self.sleepers.fetch_sub(1, SeqCst);
        }
        idle
    }

    /// Whether something is ready to run.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// Looks at a connection through shared memory from now on, whenever a thread drives.
    pub(super) fn add_ring(&self, conn: Arc<Conn>) {
        let mut rings = self.rings.write();
        rings.push(conn);
        self.rings_count.store(rings.len(), SeqCst);
    }

    /// Looks at it no more.
    pub(super) fn remove_ring(&self, conn: &Conn) {
        let mut rings = self.rings.write();
        let at = rings.iter().position(|ring| std::ptr::eq(&raw const **ring, conn));
        let removed = at.map(|at| rings.swap_remove(at));
        self.rings_count.store(rings.len(), SeqCst);
        drop(rings);
        drop(removed);
    }

    /// The workers for shared memory; started when first asked for.
    pub(super) fn wakeups(self: &Arc<Self>) -> Result<Arc<Wakeups>> {
        let mut wakeups = self.wakeups.lock();
        if self.stopping.load(SeqCst) || !self.serves.load(SeqCst) {
            return Err(Error::other("it has no workers"));
        }
        if let Some(wakeups) = &*wakeups {
            return Ok(wakeups.clone());
        }
        let started = Wakeups::start(self)?;
        *wakeups = Some(started.clone());
        Ok(started)
    }

    /// Lets clients that come from now on copy from this slab. Where that cannot be, all is copied.
    pub(super) fn share_slab(self: &Arc<Self>, slab: &Arc<Slab>) {
        match SharedSlab::new(slab) {
            Ok(shared_slab) => {
                *self.shared_slab.lock() = Some(shared_slab);
                let reactor = Arc::downgrade(self);
                slab.when_short(Box::new(move || {
                    let wakeups = reactor.upgrade().and_then(|reactor| reactor.wakeups.lock().clone());
                    if let Some(wakeups) = wakeups {
                        wakeups.reclaim();
                    }
                }));
            }
            Err(error) => eprintln!("azekura: data are copied to local clients, since they cannot be shared: {error}"),
        }
    }

    /// See [`Reactor::share_slab`].
    pub(super) fn shared_slab(&self) -> Option<Arc<SharedSlab>> {
        self.shared_slab.lock().clone()
    }

    /// Ends the workers for shared memory, once `stopping` is set.
    pub(super) fn stop_wakeups(&self) {
        let wakeups = self.wakeups.lock().take();
        if let Some(wakeups) = wakeups {
            wakeups.stop();
        }
    }

    fn handle(self: &Arc<Self>, token: u64, events: u32) {
        match token {
            TOKEN_WAKEUP => self.is_woken.store(false, SeqCst),
            TOKEN_TIMER => self.timers.fire(sys::clock_ns(libc::CLOCK_MONOTONIC)),
            _ => {
                let source = self.sources.read().get(&token).cloned();
                match source {
                    Some(Source::Conn(conn)) => conn.on_event(events),
                    Some(Source::Ring(conn)) => conn.on_wakeup(),
                    Some(Source::Listen(listener)) => listener.accept_all(),
                    Some(Source::Dial(dial)) => dial.on_event(),
                    // Deregistered after the kernel had told the event.
                    None => {}
                }
            }
        }
    }

    pub(super) fn run_queue(self: &Arc<Self>) {
        for _ in 0..RUNS_PER_TURN {
            let (work, more) = {
                let mut queue = self.queue.lock();
                (queue.pop_front(), !queue.is_empty())
            };
            let Some(work) = work else { return };
            if more && self.sleepers.load(SeqCst) > 0 {
                self.wake();
            }
            match work {
                Work::Run(task) => task.run(),
                Work::Read(conn) => conn.read(),
                Work::Accept(listener) => listener.accept_all(),
            }
        }
    }

    /// Queues work, and wakes a sleeping thread for it unless this one will look itself.
    pub(super) fn enqueue(&self, work: Work) {
        let mut queue = self.queue.lock();
        if self.is_over.load(SeqCst) && !matches!(work, Work::Read(_)) {
            // No thread would run it, and it would keep this reactor, which keeps it.
            drop(queue);
            return drop(work);
        }
        queue.push_back(work);
        drop(queue);
        if !self.is_driven_here() && self.sleepers.load(SeqCst) > 0 {
            self.wake();
        }
    }

    /// Ends the wait of one thread, or the next one that begins.
    pub(super) fn wake(&self) {
        if !self.is_woken.swap(true, SeqCst) {
            sys::eventfd_wake(&self.wakeup);
        }
    }

    /// Tells the threads that the runtime started to end; each that hears it calls this again
    /// for the next.
    pub(super) fn ring_stop(&self) {
        self.stopping.store(true, SeqCst);
        // Threads that announced their sleep before this lock are woken by the wakeup; later ones see the flag.
        drop(self.queue.lock());
        sys::eventfd_wake(&self.wakeup);
    }

    /// A number that no other source of this reactor has or had.
    pub(super) fn new_token(&self) -> u64 {
        self.tokens.fetch_add(1, SeqCst)
    }

    /// Starts telling `source` of `events` on `fd`, edge-triggered.
    pub(super) fn register(&self, token: u64, fd: &OwnedFd, events: i32, source: Source) -> Result<()> {
        self.sources.write().insert(token, source);
        let added = sys::epoll_control(&self.epoll, libc::EPOLL_CTL_ADD, fd, events | libc::EPOLLET, token);
        if added.is_err() {
            self.sources.write().remove(&token);
        }
        added
    }

    /// Changes the events of a registered `fd`; those that hold now are told again.
    pub(super) fn reregister(&self, token: u64, fd: &OwnedFd, events: i32) {
        let changed = sys::epoll_control(&self.epoll, libc::EPOLL_CTL_MOD, fd, events | libc::EPOLLET, token);
        assert!(changed.is_ok(), "a registered socket can be changed: {changed:?}");
    }

    /// Stops telling of a source; events already taken by a thread may still be told.
    pub(super) fn deregister(&self, token: u64, fd: &OwnedFd) {
        let source = self.sources.write().remove(&token);
        if source.is_some() {
            let removed = sys::epoll_control(&self.epoll, libc::EPOLL_CTL_DEL, fd, 0, token);
            assert!(removed.is_ok(), "a registered socket can be removed: {removed:?}");
        }
    }

    /// Closes every source and drops all work and timers; called once no thread drives.
    pub(super) fn clear(self: &Arc<Self>) {
        self.is_over.store(true, SeqCst);
        let sources: Vec<Source> = self.sources.read().values().cloned().collect();
        for source in sources {
            match source {
                Source::Conn(conn) => conn.close_now(),
                // Its socket's turn comes, or has come.
                Source::Ring(_) => {}
                Source::Listen(listener) => listener.close(),
                Source::Dial(dial) => dial.on_event(),
            }
        }
        // Dropped work may wake other tasks, which are queued then and would keep this reactor for ever.
        loop {
            let work = self.queue.lock().pop_front();
            match work {
                Some(Work::Read(conn)) => conn.read(),
                Some(Work::Run(_) | Work::Accept(_)) => {}
                None => {
                    drop(self.timers.clear());
                    if !self.has_work() {
                        break;
                    }
                }
            }
        }
    }
}
