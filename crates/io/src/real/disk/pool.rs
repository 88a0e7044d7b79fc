//! Threads for the files of a directory. They take jobs one after another, and whole tasks, which do
//! their operations on these files right there; they end with the last handle on the pool.

use crate::Task;
use crate::disk::{DiskError, DiskResult};
use crate::sync::{Condvar, Mutex};
use futures_channel::oneshot;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

type Job = Box<dyn FnOnce() + Send>;

/// The number of the newest pool.
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The pool that this thread belongs to; 0: none.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

pub(in crate::real) struct Pool {
    number: u64,
    queue: Arc<Queue>,
}

/// What the threads have still to do.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Rung once for each job.
    wakeup: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// No job comes any more.
    has_ended: bool,
}

impl Queue {
    fn give(&self, job: Job) {
        self.state.lock().jobs.push_back(job);
        self.wakeup.notify_one();
    }

    fn end(&self) {
        self.state.lock().has_ended = true;
        self.wakeup.notify_all();
    }

    /// The life of a thread.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            match state.jobs.pop_front() {
                Some(job) => {
                    drop(state);
                    job();
                    state = self.state.lock();
                }
                None if state.has_ended => return,
                None => state = self.wakeup.wait(state),
            }
        }
    }
}

impl Pool {
    pub(in crate::real) fn start(name: &str, threads: usize) -> io::Result<Arc<Pool>> {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let pool = Arc::new(Pool { number, queue: Arc::default() });
        for thread in 0..threads {
            let queue = pool.queue.clone();
            let work = move || {
                OWN.set(number);
                queue.work();
            };
            std::thread::Builder::new().name(format!("aze-{name}-{thread}")).spawn(work)?;
        }
        Ok(pool)
    }

    /// Runs `job` on one of the threads; on this one if it is one of them.
    pub(in crate::real) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> DiskResult<T> + Send + 'static,
    ) -> DiskResult<T> {
        if OWN.get() == self.number {
            return job();
        }
        let (done, result) = oneshot::channel();
        self.queue.give(Box::new(move || {
            // An error means that the caller has given up.
            let _ = done.send(job());
        }));
        result.await.map_err(|_| DiskError::Failed("the thread for files has ended".into()))?
    }

    /// Does `job` on one of the threads; on this one if it is one of them.
    pub(super) fn post(&self, job: Job) {
        if OWN.get() == self.number {
            return job();
        }
        self.queue.give(job);
    }

    /// Runs a task on one of the threads, which does nothing else until it has ended.
    pub(super) fn spawn(&self, task: Task) {
        self.queue.give(Box::new(move || block_on(task)));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The threads finish the queued jobs first.
        self.queue.end();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on(mut task: Task) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    while task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        std::thread::park();
    }
}
