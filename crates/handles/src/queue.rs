//! Operations that go on while their caller does something else, and where their outcomes are picked up.
//!
//! The operations are tasks of the connection's runtime, driven by one background thread or by callers that wait: none has
//! a thread of its own. A file descriptor (eventfd(2)) is readable while there are outcomes, for event loops.

use crate::connected::Connected;
use crate::error::{Error, Result};
use aze_io::real::{OfProcess, event};
use aze_io::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// Operations of one queue that may be under way, or whose outcomes were not picked up: further ones are refused.
const OPERATIONS_MAX: usize = 65_536;

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion<T> {
    /// What its caller named it by.
    pub tag: u64,
    /// Its result.
    pub result: Result<T>,
}

/// A queue of this process. In a forked process every call fails with EBADF.
pub struct Queue<T: Send + 'static = i64>(OfProcess<Inner<T>>);

struct Inner<T> {
    connected: Arc<Connected>,
    shared: Arc<Shared<T>>,
}

/// What a queue shares with its operations.
pub(crate) struct Shared<T> {
    state: Mutex<State<T>>,
    event: File,
}

struct State<T> {
    next: u64,
    /// Tags of operations under way.
    pending: BTreeMap<u64, u64>,
    done: VecDeque<Completion<T>>,
    /// Callers that wait for a change.
    waiting: Vec<Waker>,
}

/// A queue of any outcomes, as its connection knows it.
pub(crate) trait Ends: Send + Sync {
    /// Gives every operation under way this outcome. None of them may run any more.
    fn fail_all(&self, error: &Error);
    /// Whether nothing is under way; else `waker` is told of the next change.
    fn is_idle(&self, waker: &Waker) -> bool;
}

impl<T> Shared<T> {
    fn complete(&self, serial: u64, result: Result<T>) {
        let mut state = self.state.lock();
        let Some(tag) = state.pending.remove(&serial) else { return };
        self.push(&mut state, Completion { tag, result });
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn push(&self, state: &mut State<T>, completion: Completion<T>) {
        state.done.push_back(completion);
        if state.done.len() == 1 {
            // It cannot be full: it is 1 at most.
            let _ = (&self.event).write(&1u64.to_ne_bytes());
        }
    }

    fn take(&self, state: &mut State<T>, most: usize) -> Vec<Completion<T>> {
        let count = most.min(state.done.len());
        let taken: Vec<Completion<T>> = state.done.drain(..count).collect();
        if count > 0 && state.done.is_empty() {
            let _ = (&self.event).read(&mut [0; 8]);
        }
        taken
    }
}

impl<T: Send> Ends for Shared<T> {
    fn fail_all(&self, error: &Error) {
        let mut state = self.state.lock();
        for (_, tag) in std::mem::take(&mut state.pending) {
            self.push(&mut state, Completion { tag, result: Err(error.clone()) });
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn is_idle(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if state.pending.is_empty() {
            return true;
        }
        state.waiting.push(waker.clone());
        false
    }
}

/// An operation under way: has an outcome also if its task is dropped.
struct Ticket<T> {
    shared: Arc<Shared<T>>,
    serial: u64,
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.shared.complete(self.serial, Err(Error::new(libc::EIO, "the connection ended before the operation did")));
    }
}

impl<T: Send + 'static> Queue<T> {
    /// A queue for operations of this connection. Starts the connection's background thread, if it has none yet.
    ///
    /// # Errors
    /// What the system said: EMFILE, EAGAIN.
    pub fn new(connected: &Arc<Connected>) -> Result<Queue<T>> {
        connected.check()?;
        let failed = |error: std::io::Error| Error::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string());
        let event = event().map_err(failed)?;
        connected.go_on_without_callers()?;
        let state = State { next: 0, pending: BTreeMap::new(), done: VecDeque::new(), waiting: Vec::new() };
        let shared = Arc::new(Shared { state: Mutex::new(state), event });
        connected.know(&shared);
        Ok(Queue(OfProcess::new(Inner { connected: connected.clone(), shared })))
    }

    fn inner(&self) -> Result<&Inner<T>> {
        self.0.get().ok_or_else(|| Error::of_parent("the queue"))
    }

    /// The connection that its operations go through.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn connected(&self) -> Result<Arc<Connected>> {
        Ok(self.inner()?.connected.clone())
    }

    /// Begins an operation, and does not wait for it.
    ///
    /// # Errors
    /// EAGAIN if 65,536 are under way or not picked up; EIO or EBADF if the connection has ended.
    pub fn submit(&self, tag: u64, operation: impl Future<Output = Result<T>> + Send + 'static) -> Result<()> {
        let Inner { connected, shared } = self.inner()?;
        connected.check()?;
        let serial = {
            let mut state = shared.state.lock();
            if state.pending.len() + state.done.len() >= OPERATIONS_MAX {
                let text = format!("a queue holds at most {OPERATIONS_MAX} operations: pick up outcomes first");
                return Err(Error::new(libc::EAGAIN, text));
            }
            state.next += 1;
            let serial = state.next;
            state.pending.insert(serial, tag);
            serial
        };
        let ticket = Ticket { shared: shared.clone(), serial };
        connected.runtime().io().spawn(async move {
            let result = operation.await;
            ticket.shared.complete(serial, result);
        });
        // A defect that was found meanwhile has not seen this operation.
        if let Err(error) = connected.check() {
            shared.fail_all(&error);
        }
        Ok(())
    }

    /// Outcomes that are there, at most so many. Does not block.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn poll(&self, most: usize) -> Result<Vec<Completion<T>>> {
        let Inner { shared, .. } = self.inner()?;
        Ok(shared.take(&mut shared.state.lock(), most))
    }

    /// Outcomes, at most so many: blocks until there is one, nothing is under way, or `timeout` is over.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn wait(&self, most: usize, timeout: Option<Duration>) -> Result<Vec<Completion<T>>> {
        let Inner { connected, shared } = self.inner()?;
        let has_some = poll_fn(|context| {
            let mut state = shared.state.lock();
            if !state.done.is_empty() || state.pending.is_empty() {
                return Poll::Ready(());
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        });
        let io = connected.runtime().io();
        let waited = connected.wait(async {
            match timeout {
                Some(timeout) => drop(io.timeout(timeout, has_some).await),
                None => has_some.await,
            }
            Ok(())
        });
        let taken = self.poll(most)?;
        if taken.is_empty() { waited.map(|()| taken) } else { Ok(taken) }
    }

    /// Operations that are under way.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn pending(&self) -> Result<usize> {
        Ok(self.inner()?.shared.state.lock().pending.len())
    }

    /// A descriptor that is readable while outcomes can be picked up: for poll(2) and event loops, which must neither read
    /// nor close it.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn event(&self) -> Result<RawFd> {
        Ok(self.inner()?.shared.event.as_raw_fd())
    }

    /// Blocks until nothing is under way: then no operation uses memory of its caller any more.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn drain(&self) -> Result<()> {
        let Inner { connected, shared } = self.inner()?;
        let idle = poll_fn(|context| match shared.is_idle(context.waker()) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        });
        // Where the connection has ended, nothing is under way.
        let _ = connected.wait(idle);
        Ok(())
    }
}
