//! Processes of blocking threads in a simulated world.
//!
//! A task stands for each thread. When the task takes its step it hands the baton to its thread, which runs until it has to
//! wait, gives the baton back, and lets the task sleep until what the thread waits for has woken it. So one thread of the
//! whole world runs at a time, and the seed draws which.

use super::{Sim, WALL_BASE_NS};
use crate::Io;
use crate::sync::{Condvar, Mutex};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// If threads of a killed process have not all ended when each had its turn so often, they wait for each other.
const LAST_TURNS_MAX: u32 = 10_000;

/// A thread that has the baton for longer waits for something that is not simulated: the run ends, and says so.
const BATON_TIME_MAX: Duration = Duration::from_secs(60);

thread_local! {
    static HERE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// The place of the calling thread in a simulated process; `None` outside of all.
pub(crate) fn here() -> Option<Place> {
    HERE.with_borrow(Clone::clone)
}

/// A simulated process of blocking threads. It is killed when it is dropped.
pub struct Process {
    shared: Arc<Shared>,
    main: Mutex<Option<std::thread::JoinHandle<()>>>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

struct Shared {
    io: Io,
    is_dead: AtomicBool,
    /// No thread of it takes a step.
    is_stopped: AtomicBool,
    /// Of tasks whose threads are to go on with the process.
    stopped: Mutex<Vec<Waker>>,
    turns: Mutex<Vec<Arc<Turn>>>,
    /// Of threads that wait for each other.
    waiting: Mutex<Vec<Waker>>,
}

/// Who runs: a thread, or the world.
#[derive(Default)]
struct Turn {
    baton: Mutex<Baton>,
    changed: Condvar,
}

#[derive(Default)]
enum Baton {
    #[default]
    World,
    Thread(Waker),
    Ended(Option<Box<dyn Any + Send>>),
}

/// Where a thread of a process is.
#[derive(Clone)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    turn: Arc<Turn>,
}

impl Process {
    /// Starts a process on a node. `main` runs on a thread of its own, and may start others by [`crate::threads`].
    ///
    /// # Panics
    /// If the system has no room for a thread.
    pub fn start(sim: &Sim, node: &str, main: impl FnOnce() + Send + 'static) -> Process {
        let shared = Arc::new(Shared {
            io: sim.node(node),
            is_dead: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            stopped: Mutex::default(),
            turns: Mutex::default(),
            waiting: Mutex::default(),
        });
        let (done, ended) = oneshot::channel();
        let place = Place::new(&shared, Some(done));
        let main = std::thread::Builder::new().name("sim-process".into()).spawn(move || place.live(main));
        let main = main.expect("room for a thread");
        Process { shared, main: Mutex::new(Some(main)), ended: Mutex::new(Some(ended)) }
    }

    /// Waits for its end; `false` if it was killed. To be called once.
    pub async fn ended(&self) -> bool {
        let ended = self.ended.lock().take();
        match ended {
            Some(ended) => ended.await.is_ok(),
            None => false,
        }
    }

    /// Stops it, as SIGSTOP does: none of its threads takes another step until it goes on. What its client has asked of servers is answered
    /// meanwhile, and found then.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Stops the process of the calling thread, which goes on until it waits.
    ///
    /// # Panics
    /// If the thread belongs to none.
    pub fn stop_own() {
        here().expect("a thread of a simulated process").shared.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Has it go on.
    pub fn go_on(&self) {
        self.shared.is_stopped.store(false, Ordering::SeqCst);
        let stopped = std::mem::take(&mut *self.shared.stopped.lock());
        stopped.into_iter().for_each(Waker::wake);
    }

    /// Ends it: its threads run out, one at a time and always in the same order. All that they wait for or call is without effect, but what
    /// they do for each other. Returns when they are gone. What they do meanwhile by other means than this world is for the caller to undo.
    ///
    /// # Panics
    /// When called by one of its threads, or if its threads wait for each other for ever.
    pub fn kill(&self) {
        if std::thread::panicking() {
            // The run is over: its threads stay where they are, since one of them may have failed it.
            return;
        }
        self.shared.is_dead.store(true, Ordering::SeqCst);
        self.go_on();
        let is_over = (0..LAST_TURNS_MAX).any(|_| self.shared.give_all_a_turn());
        assert!(is_over, "threads of a killed process wait for each other");
        if let Some(main) = self.main.lock().take() {
            // Its panic was told.
            let _ = main.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Shared {
    /// Lets each thread run until it waits, in the order in which they were started; whether all have ended.
    fn give_all_a_turn(&self) -> bool {
        let (mut at, mut is_over) = (0, true);
        // A thread may start others.
        while let Some(turn) = self.turn(at) {
            is_over &= turn.give(Waker::noop());
            at += 1;
        }
        is_over
    }

    fn turn(&self, at: usize) -> Option<Arc<Turn>> {
        self.turns.lock().get(at).cloned()
    }
}

impl Turn {
    /// Lets the thread run until it waits; whether it has ended.
    fn give(&self, waker: &Waker) -> bool {
        let mut baton = self.baton.lock();
        if let Baton::World = *baton {
            *baton = Baton::Thread(waker.clone());
            self.changed.notify_all();
        }
        let mut waited = Duration::ZERO;
        while let Baton::Thread(_) = *baton {
            assert!(
                waited < BATON_TIME_MAX,
                "a thread of a simulated process waits for something that is not simulated"
            );
            let before = std::time::Instant::now();
            baton = self.changed.wait_for(baton, BATON_TIME_MAX);
            waited += before.elapsed();
        }
        matches!(*baton, Baton::Ended(_))
    }

    /// The panic by which the thread has ended, once.
    fn panic(&self) -> Option<Box<dyn Any + Send>> {
        match &mut *self.baton.lock() {
            Baton::Ended(panic) => panic.take(),
            _ => None,
        }
    }

    fn change(&self, baton: Baton) {
        *self.baton.lock() = baton;
        self.changed.notify_all();
    }
}

impl Place {
    fn new(shared: &Arc<Shared>, done: Option<oneshot::Sender<()>>) -> Place {
        let turn = Arc::new(Turn::default());
        shared.turns.lock().push(turn.clone());
        let (given, process) = (turn.clone(), Arc::downgrade(shared));
        shared.io.spawn(async move {
            poll_fn(|context| match process.upgrade().filter(|process| process.is_stopped.load(Ordering::SeqCst)) {
                Some(process) => {
                    process.stopped.lock().push(context.waker().clone());
                    Poll::Pending
                }
                None if given.give(context.waker()) => Poll::Ready(()),
                None => Poll::Pending,
            })
            .await;
            if let Some(panic) = given.panic() {
                resume_unwind(panic);
            }
            if let Some(done) = done {
                // Perhaps no thread waits for it.
                let _ = done.send(());
            }
        });
        Place { shared: shared.clone(), turn }
    }

    /// A place for one more thread of the process.
    pub(crate) fn fork(&self) -> Place {
        Place::new(&self.shared, None)
    }

    /// Runs the life of a thread at this place.
    pub(crate) fn live(&self, life: impl FnOnce()) {
        HERE.set(Some(self.clone()));
        self.wait_for_baton();
        let panic = catch_unwind(AssertUnwindSafe(life)).err();
        HERE.set(None);
        let has_panicked = panic.is_some();
        self.tell();
        self.turn.change(Baton::Ended(panic));
        if has_panicked {
            // The world tells the story; a thread that joins this one is to know that it did not end well.
            std::panic::panic_any("a thread of a simulated process has panicked");
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(*self.turn.baton.lock(), Baton::Ended(_))
    }

    fn is_dead(&self) -> bool {
        self.shared.is_dead.load(Ordering::SeqCst)
    }

    /// Waits until this thread may run. The waker is that of its task.
    fn wait_for_baton(&self) -> Waker {
        let mut baton = self.turn.baton.lock();
        loop {
            if let Baton::Thread(waker) = &*baton {
                return waker.clone();
            }
            baton = self.turn.changed.wait(baton);
        }
    }

    /// Runs a future to its end; `None` if it is not to go on any more when the thread has the baton.
    fn run<F: Future>(&self, future: F, goes_on: impl Fn() -> bool) -> Option<F::Output> {
        let mut future = pin!(future);
        loop {
            let waker = self.wait_for_baton();
            if !goes_on() {
                return None;
            }
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(value);
            }
            self.turn.change(Baton::World);
        }
    }

    /// Runs a future to its end; `None` if the process was killed.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        self.run(future, || !self.is_dead())
    }

    /// Waits until `look` finds something that another thread of the process does: those of a killed one do it, too, as they run out.
    pub(crate) fn wait_until<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        self.run(self.found(look), || true).expect("it always goes on")
    }

    /// The same for `limit` at most: an error if nothing is found in that time, `None` if the process was killed.
    pub(crate) fn wait_until_or<T>(&self, limit: Duration, look: impl FnMut() -> Option<T>) -> Option<Result<T, ()>> {
        let (found, late) = (pin!(self.found(look)), pin!(self.shared.io.sleep(limit)));
        Some(match self.block_on(select(found, late))? {
            Either::Left((found, _)) => Ok(found),
            Either::Right(_) => Err(()),
        })
    }

    /// Until `look` finds something. It looks again when another thread of the process tells.
    fn found<T>(&self, mut look: impl FnMut() -> Option<T>) -> impl Future<Output = T> {
        poll_fn(move |context| match look() {
            Some(found) => Poll::Ready(found),
            None => {
                self.shared.waiting.lock().push(context.waker().clone());
                Poll::Pending
            }
        })
    }

    /// Has all threads of the process look again that wait for each other.
    pub(crate) fn tell(&self) {
        let waiting = std::mem::take(&mut *self.shared.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn io(&self) -> &Io {
        &self.shared.io
    }

    /// The date without the errors of a node's clock, so that it can be compared with what happened when.
    pub(crate) fn date_ns(&self) -> u64 {
        WALL_BASE_NS.unsigned_abs() + self.shared.io.mono_ns()
    }
}
