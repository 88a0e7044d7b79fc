//! The real machine as a [`World`]: sockets, clocks, randomness, and threads that drive them.
//!
//! [`Runtime`] is a small epoll runtime made for one thing: a request answered with as few
//! thread switches as can be, since waking an idle core costs more than the request (29 µs
//! against 15 µs, measured on the reference machine). A client's thread reads its own reply; a server's
//! workers share one epoll instance, and the worker that reads a request answers it.

mod attend;
mod backing;
mod conn;
mod decode;
mod disk;
mod drive;
pub mod files;
mod fork;
mod net;
mod own;
mod processors;
mod reactor;
mod shm;
mod sys;
mod task;
mod timers;
mod until;

#[cfg(test)]
mod receive_buffer_tests;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sync::Mutex;

pub use backing::open_backing;
pub use conn::READ_PAUSE_BYTES;
pub use disk::open_no_more_dirs;
pub use fork::{OfProcess, PerProcess, process_token};
pub use own::{own_ids, process_group, send_signal, user_id};
pub use processors::{keep_on, processors};
pub(crate) use shm::shared_payload::ShmPayload;
pub use shm::{RING_BYTES, SHM_CONNECTIONS_MAX};
pub use sys::open_process;
pub use until::until;

use crate::disk::{Dir, DiskResult};
use crate::published::SharedWords;
use crate::slab::Slab;
use crate::{Acceptor, Addr, Boxed, Connection, Handler, Io, Listener, NetError, Task, TimerId, World};
use drive::Lead;
use reactor::{Driving, Reactor};
use task::TaskCell;

/// Most threads that one runtime starts.
pub const WORKERS_MAX: usize = 1024;

/// An epoll runtime; see the module's description. Dropping it shuts it down, but a task that
/// still waits and holds an [`Io`] of it keeps it: call [`Runtime::shutdown`].
pub struct Runtime {
    reactor: Arc<Reactor>,
    lead: Arc<Lead>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    has_background: bool,
    is_shut_down: bool,
}

impl Runtime {
    /// A runtime without threads of its own. Nothing happens in it (no frame is read or
    /// flushed, no timer fires, no task runs) but while some thread is inside
    /// [`Runtime::block_on`], or after [`Runtime::background`].
    ///
    /// # Panics
    /// If the system has no file descriptor left for it.
    pub fn client() -> Arc<Runtime> {
        Self::new(false, false)
    }

    /// As [`Runtime::client`], for a library in a program of others: a panic in a task, a handler or a caller's future
    /// ends this runtime instead of the process. The panic goes on to the caller on whose thread it happened, and every
    /// other and later [`Runtime::block_on`] panics, too: functions that another language calls catch that.
    ///
    /// # Panics
    /// As [`Runtime::client`].
    pub fn library() -> Arc<Runtime> {
        Self::new(false, true)
    }

    /// One more runtime beside one of [`Runtime::library`]: a panic that ends one of both ends both.
    ///
    /// # Errors
    /// What the system said: EMFILE, ENFILE, ENOMEM.
    pub fn one_more(&self) -> io::Result<Arc<Runtime>> {
        let other = Self::on(Reactor::new(self.reactor.is_guest())?, false);
        for (one, another) in [(&self.reactor, &other.reactor), (&other.reactor, &self.reactor)] {
            let another = Arc::downgrade(another);
            one.when_broken(Box::new(move || another.upgrade().iter().for_each(|reactor| reactor.break_off())));
        }
        Ok(other)
    }

    /// A runtime driven by `workers` threads of its own, named `aze-worker-N`.
    ///
    /// # Panics
    /// If `workers` is 0 or more than [`WORKERS_MAX`], or if the system has no file descriptor
    /// or thread left for it.
    pub fn server(workers: usize) -> Arc<Runtime> {
        assert!((1..=WORKERS_MAX).contains(&workers), "a server has 1 to {WORKERS_MAX} workers, not {workers}");
        let runtime = Self::new(true, false);
        runtime.reactor.serves.store(true, SeqCst);
        for worker in 0..workers {
            let lead = runtime.lead.clone();
            let started = runtime.start_thread(&format!("aze-worker-{worker}"), move || lead.work());
            started.unwrap_or_else(|error| panic!("cannot start worker {worker} of {workers}: {error}"));
        }
        runtime
    }

    fn new(has_workers: bool, is_guest: bool) -> Arc<Runtime> {
        let reactor = Reactor::new(is_guest).unwrap_or_else(|error| panic!("cannot make an epoll instance: {error}"));
        Self::on(reactor, has_workers)
    }

    fn on(reactor: Arc<Reactor>, has_workers: bool) -> Arc<Runtime> {
        let lead = Arc::new(Lead::new(reactor.clone(), has_workers));
        let threads = Threads { has_background: has_workers, ..Threads::default() };
        Arc::new(Runtime { reactor, lead, threads: Mutex::new(threads) })
    }

    fn start_thread(&self, name: &str, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(life)?;
        self.threads.lock().running.push(thread);
        Ok(())
    }

    /// Starts the one thread (`aze-background`) that drives a client's runtime while no caller
    /// does: for mounts and other users of timers. Callers take the lead back from it as they come.
    /// Does nothing on a server's runtime or when called again.
    ///
    /// # Errors
    /// What the system said when it could not start the thread.
    pub fn background(&self) -> io::Result<()> {
        if std::mem::replace(&mut self.threads.lock().has_background, true) {
            return Ok(());
        }
        let lead = self.lead.clone();
        self.start_thread("aze-background", move || lead.work_in_background())
    }

    /// Runs `future` to its end on the calling thread; blocks until then. Any number of threads
    /// may do so at once. On a client's runtime one of them drives it for all.
    ///
    /// # Panics
    /// When called inside a task or handler of this runtime, which would wait for itself.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.lead.block_on(future, None::<(Duration, fn())>)
    }

    /// As [`Runtime::block_on`]; calls `late` on this thread, once, if there has been nothing but waiting for
    /// `patience` (a few milliseconds more over a socket), and goes on waiting.
    ///
    /// # Panics
    /// As [`Runtime::block_on`].
    pub fn block_on_patiently<F: Future>(&self, future: F, patience: Duration, late: impl FnOnce()) -> F::Output {
        self.lead.block_on(future, Some((patience, late)))
    }

    /// Whether a thread inside [`Runtime::block_on`] drives this runtime now, so that another one would have to be woken by it: for
    /// callers that may choose among several.
    pub fn is_busy(&self) -> bool {
        self.lead.is_busy()
    }

    /// Whether a panic has ended this runtime: see [`Runtime::library`].
    pub fn is_broken(&self) -> bool {
        self.reactor.is_broken()
    }

    /// Has `tell` called once when a panic ends this runtime, on the thread where that happened; at once if it has
    /// happened. Never called for runtimes other than [`Runtime::library`].
    pub fn when_broken(&self, tell: impl FnOnce() + Send + 'static) {
        self.reactor.when_broken(Box::new(tell));
    }

    /// A handle on this runtime as a [`World`].
    pub fn io(self: &Arc<Self>) -> Io {
        Io::new(self.clone())
    }

    /// Ends the runtime: stops and joins the threads it started, closes its connections (each
    /// handler hears it, on this thread or on the one that waits for it) and listeners, and drops
    /// queued tasks and all timers. Blocks until handlers and tasks that run now return. Idempotent.
    /// Called from one of the runtime's own threads it cannot wait for that thread, which ends by itself.
    pub fn shutdown(&self) {
        let threads = {
            let mut threads = self.threads.lock();
            if std::mem::replace(&mut threads.is_shut_down, true) {
                return;
            }
            std::mem::take(&mut threads.running)
        };
        self.reactor.ring_stop();
        self.lead.wake_background();
        let here = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != here) {
            // A panic of such a thread has aborted the process before, or has ended the runtime.
            let joined = thread.join();
            assert!(joined.is_ok() || self.reactor.is_broken(), "a runtime's thread does not panic");
        }
        self.reactor.attendants.stop();
        self.reactor.stop_wakeups();
        let _driving = Driving::begin(&self.reactor);
        self.reactor.clear();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl World for Runtime {
    fn mono_ns(&self) -> u64 {
        sys::clock_ns(libc::CLOCK_MONOTONIC)
    }

    fn wall_ns(&self) -> u64 {
        sys::clock_ns(libc::CLOCK_REALTIME)
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        fill_random(bytes);
    }

    fn spawn(&self, task: Task) {
        TaskCell::start(&self.reactor, task);
    }

    fn wake_at(&self, deadline_ns: u64, waker: Waker) -> TimerId {
        self.reactor.timers.add(deadline_ns, waker)
    }

    fn cancel_timer(&self, timer: TimerId) {
        self.reactor.timers.cancel(timer);
    }

    fn connect<'a>(
        &'a self,
        addr: &'a Addr,
        handler: Arc<dyn Handler>,
    ) -> Boxed<'a, Result<Arc<dyn Connection>, NetError>> {
        Box::pin(net::connect(&self.reactor, addr, handler))
    }

    fn listen(&self, addr: &Addr, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, NetError> {
        net::listen(&self.reactor, addr, acceptor)
    }

    fn share(&self, words: usize) -> Option<SharedWords> {
        shm::shared::share(words)
    }

    fn share_slab(&self, slab: &Arc<Slab>) {
        self.reactor.share_slab(slab);
    }

    fn open_dir<'a>(&'a self, path: &'a str) -> Boxed<'a, DiskResult<Arc<dyn Dir>>> {
        Box::pin(disk::open_dir(path))
    }
}

/// An event that another thread may wait for with poll(2): an eventfd(2), readable once eight bytes that make a number
/// other than 0 were written to it, until eight bytes are read. Neither blocks.
///
/// # Errors
/// What the system said.
pub fn event() -> io::Result<std::fs::File> {
    sys::eventfd().map(std::fs::File::from)
}

/// Random bytes that each thread fetches ahead, since a system call costs more than a few of them.
const RANDOM_BUFFER_BYTES: usize = 256;

thread_local! {
    /// Bytes not yet given out; those given out are removed, so that none is given twice. With the process that has
    /// fetched them: one forked since fetches others.
    static RANDOM: RefCell<(u64, Vec<u8>)> = const { RefCell::new((0, Vec::new())) };
}

/// Fills `bytes` from the kernel's generator: good enough for keys.
pub fn fill_random(bytes: &mut [u8]) {
    if bytes.len() > RANDOM_BUFFER_BYTES / 4 {
        return sys::random(bytes);
    }
    let process = process_token();
    RANDOM.with_borrow_mut(|(of_process, buffer)| {
        if *of_process != process || buffer.len() < bytes.len() {
            *of_process = process;
            buffer.resize(RANDOM_BUFFER_BYTES, 0);
            sys::random(buffer);
        }
        let from = buffer.len() - bytes.len();
        bytes.copy_from_slice(&buffer[from..]);
        buffer[from..].fill(0);
        buffer.truncate(from);
    });
}
