//! The one thread: which task takes the next step, which event comes next, and
//! when virtual time moves.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::Mutex;

use super::rng::SimRng;
use super::state::{Core, Event, Life, State};
use super::trace::Kind;
use super::{DRIVER, STEPS_PER_INSTANT_MAX};
use crate::Task;

/// Events printed when a run panics with the trace on; the rest is there for `trace_dump`.
const PANIC_TRACE_LINES: usize = 200;

/// The tasks that can run. Its lock is the innermost one, so that wakers may be used anywhere.
pub(super) struct Ready(Mutex<ReadyTasks>);

struct ReadyTasks {
    tasks: Vec<u64>,
    rng: SimRng,
}

enum Choice {
    Task(u64),
    Event,
    Neither,
}

impl Ready {
    pub(super) fn new(seed: u64) -> Arc<Ready> {
        Arc::new(Ready(Mutex::new(ReadyTasks { tasks: Vec::new(), rng: SimRng::new(seed, "schedule") })))
    }

    fn push(&self, task: u64) {
        self.0.lock().tasks.push(task);
    }

    /// Draws from the tasks that can run and, if one is due, the next event.
    fn choose(&self, event_is_due: bool) -> Choice {
        let ready = &mut *self.0.lock();
        let count = ready.tasks.len();
        match (count, event_is_due) {
            (0, false) => Choice::Neither,
            (0, true) => Choice::Event,
            (_, true) if ready.rng.chance(500_000) => Choice::Event,
            (1, _) => Choice::Task(ready.tasks.remove(0)),
            _ => Choice::Task(ready.tasks.swap_remove(ready.rng.index(count))),
        }
    }
}

/// Puts its task among those that can run. It holds no task, so one that outlives its task is harmless.
pub(super) struct TaskWaker {
    task: u64,
    ready: Arc<Ready>,
    queued: AtomicBool,
}

impl TaskWaker {
    /// A waker whose task can run at once.
    fn new_queued(task: u64, ready: &Arc<Ready>) -> Arc<TaskWaker> {
        ready.push(task);
        Arc::new(TaskWaker { task, ready: ready.clone(), queued: AtomicBool::new(true) })
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.push(self.task);
        }
    }
}

/// A spawned task.
pub(super) struct TaskSlot {
    pub(super) life: Life,
    /// Away while it takes a step.
    pub(super) future: Option<Task>,
    waker: Arc<TaskWaker>,
}

impl Core {
    /// Starts a task, or drops it if its node is dead.
    pub(super) fn spawn(&self, life: Life, task: Task) {
        let refused = {
            let mut state = self.state.lock();
            if state.is_alive(life) {
                let id = state.next_task();
                let waker = TaskWaker::new_queued(id, &self.ready);
                state.tasks.insert(id, TaskSlot { life, future: Some(task), waker });
                None
            } else {
                Some(task)
            }
        };
        drop(refused);
    }
}

enum Next {
    Driver,
    Step { id: u64, future: Task, waker: Arc<TaskWaker> },
    Event(Event),
}

/// Runs the world until `future` resolves.
pub(super) fn block_on<T>(core: &Arc<Core>, future: impl Future<Output = T>) -> T {
    let run = Run::begin(core);
    let mut future = pin!(future);
    let waker = Waker::from(run.waker.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        match core.next(run.driver, run.driver_node) {
            Next::Driver => {
                run.waker.queued.store(false, Ordering::Relaxed);
                if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                    return value;
                }
            }
            Next::Step { id, future, waker } => core.step(id, future, &waker),
            Next::Event(event) => core.handle(event),
        }
    }
}

/// One call of `block_on`; its end, by a panic too, makes room for the next.
struct Run<'a> {
    core: &'a Core,
    driver: u64,
    driver_node: u32,
    waker: Arc<TaskWaker>,
}

impl<'a> Run<'a> {
    fn begin(core: &'a Core) -> Run<'a> {
        let mut state = core.state.lock();
        assert!(!state.running, "block_on was called from inside block_on, seed {}", core.seed);
        state.running = true;
        let driver = state.next_task();
        let driver_node = state.node_index(DRIVER);
        drop(state);
        Run { core, driver, driver_node, waker: TaskWaker::new_queued(driver, &core.ready) }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.running = false;
        if std::thread::panicking() {
            eprintln!("sim: the run panicked: seed {}, virtual time {} ns", self.core.seed, state.now_ns);
            let lines = state.trace_dump();
            for line in &lines[lines.len().saturating_sub(PANIC_TRACE_LINES)..] {
                eprintln!("{line}");
            }
        }
    }
}

impl Core {
    /// Decides what happens next, moving time if nothing can happen now.
    fn next(&self, driver: u64, driver_node: u32) -> Next {
        let state = &mut *self.state.lock();
        loop {
            let due_ns = state.events.first_key_value().map(|(key, _)| key.deadline_ns);
            match (self.ready.choose(due_ns.is_some_and(|due_ns| due_ns <= state.now_ns)), due_ns) {
                (Choice::Task(id), _) if id == driver => {
                    self.count_step(state);
                    state.note(Kind::Step, driver_node, id, 0);
                    return Next::Driver;
                }
                (Choice::Task(id), _) => {
                    // The waker of a task that ended or was killed may still be used.
                    // The count comes first: its panic must not drop a future under the lock.
                    self.count_step(state);
                    let Some(slot) = state.tasks.get_mut(&id) else { continue };
                    let Some(future) = slot.future.take() else { continue };
                    let (waker, node) = (slot.waker.clone(), slot.life.node);
                    state.note(Kind::Step, node, id, 0);
                    return Next::Step { id, future, waker };
                }
                (Choice::Event, _) => {
                    self.count_step(state);
                    let Some((_, event)) = state.events.pop_first() else { continue };
                    return Next::Event(*event);
                }
                (Choice::Neither, Some(due_ns)) => self.advance(state, due_ns),
                (Choice::Neither, None) => panic!(
                    "deadlock: nothing can run and nothing is pending: seed {}, virtual time {} ns, tasks waiting: {}",
                    self.seed,
                    state.now_ns,
                    state.tasks_by_node(),
                ),
            }
        }
    }

    fn count_step(&self, state: &mut State) {
        state.counters.steps += 1;
        state.steps_this_instant += 1;
        assert!(
            state.steps_this_instant <= STEPS_PER_INSTANT_MAX,
            "livelock: more than {STEPS_PER_INSTANT_MAX} steps without time moving: seed {}, virtual time {} ns",
            self.seed,
            state.now_ns,
        );
    }

    fn advance(&self, state: &mut State, due_ns: u64) {
        assert!(
            due_ns <= state.time_limit_ns,
            "time limit: virtual time would pass {} ns, the next event is due at {due_ns} ns: seed {}, virtual time {} ns, \
             tasks waiting: {}",
            state.time_limit_ns,
            self.seed,
            state.now_ns,
            state.tasks_by_node(),
        );
        state.now_ns = due_ns;
        state.steps_this_instant = 0;
    }

    /// Lets a task run until it waits or ends.
    fn step(&self, id: u64, mut future: Task, waker: &Arc<TaskWaker>) {
        waker.queued.store(false, Ordering::Relaxed);
        let poll = future.as_mut().poll(&mut Context::from_waker(&Waker::from(waker.clone())));
        let _ended_slot = {
            let mut state = self.state.lock();
            match (poll, state.tasks.get_mut(&id)) {
                (Poll::Pending, Some(slot)) => {
                    slot.future = Some(future);
                    return;
                }
                (Poll::Ready(()), Some(_)) => state.tasks.remove(&id),
                // The task has killed its own node meanwhile: the future is dropped now.
                (_, None) => None,
            }
        };
        drop(future);
    }
}
