//! One spawned task and its waker.
//!
//! It alone knows the states a task goes through, which keep it from running on two threads
//! at once and from missing a wake while it runs. When it runs next it does not know: it only
//! puts itself into the runtime's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::Mutex;

use super::reactor::{Reactor, Work};
use crate::Task;

/// Waits for its waker.
const IDLE: u8 = 0;
/// In the queue.
const QUEUED: u8 = 1;
/// Being polled.
const RUNNING: u8 = 2;
/// Being polled, and woken meanwhile: goes back into the queue.
const WOKEN: u8 = 3;
/// Ended; wakes are ignored.
const DONE: u8 = 4;

/// A task together with where it runs.
pub(super) struct TaskCell {
    state: AtomicU8,
    /// Locked only by the thread that moved the state to `RUNNING`, hence never contended.
    future: Mutex<Option<Task>>,
    reactor: Arc<Reactor>,
}

impl TaskCell {
    /// Makes a task and queues it.
    pub(super) fn start(reactor: &Arc<Reactor>, task: Task) {
        let cell = TaskCell { state: AtomicU8::new(QUEUED), future: Mutex::new(Some(task)), reactor: reactor.clone() };
        reactor.enqueue(Work::Run(Arc::new(cell)));
    }

    /// Polls the task once; called by the thread that took it from the queue.
    pub(super) fn run(self: Arc<Self>) {
        let before = self.state.swap(RUNNING, SeqCst);
        assert!(before == QUEUED, "only a queued task runs");
        let waker = Waker::from(self.clone());
        let mut future = self.future.lock();
        let task = future.as_mut().expect("a task that has not ended keeps its future");
        if let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.state.store(DONE, SeqCst);
            *future = None;
            return;
        }
        drop(future);
        if self.state.compare_exchange(RUNNING, IDLE, SeqCst, SeqCst).is_err() {
            self.state.store(QUEUED, SeqCst);
            self.reactor.clone().enqueue(Work::Run(self));
        }
    }

    /// Whether this wake has to queue the task.
    fn claim(&self) -> bool {
        let next = |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        self.state.fetch_update(SeqCst, SeqCst, next) == Ok(IDLE)
    }
}

impl Wake for TaskCell {
    fn wake(self: Arc<Self>) {
        if self.claim() {
            self.reactor.clone().enqueue(Work::Run(self));
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.claim() {
            self.reactor.enqueue(Work::Run(self.clone()));
        }
    }
}
