//! Threads for the files of a directory. They take jobs one after another, and whole tasks, which do
//! their operations on these files right there; they end with the last handle on the pool.

use crate::Task;
use crate::disk::{DiskError, DiskResult};
use futures_channel::oneshot;
use parking_lot::Mutex;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

type Job = Box<dyn FnOnce() + Send>;

/// The number of the newest pool.
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The pool that this thread belongs to; 0: none.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

pub(super) struct Pool {
    number: u64,
    jobs: Mutex<Sender<Job>>,
}

impl Pool {
    pub(super) fn start(name: &str, threads: usize) -> io::Result<Arc<Pool>> {
        let (give, take) = channel::<Job>();
        let take = Arc::new(Mutex::new(take));
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        for thread in 0..threads {
            let take = take.clone();
            let work = move || {
                OWN.set(number);
                work(&take);
            };
            std::thread::Builder::new().name(format!("aze-{name}-{thread}")).spawn(work)?;
        }
        Ok(Arc::new(Pool { number, jobs: Mutex::new(give) }))
    }

    /// Runs `job` on one of the threads; on this one if it is one of them.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> DiskResult<T> + Send + 'static,
    ) -> DiskResult<T> {
        if OWN.get() == self.number {
            return job();
        }
        let (done, result) = oneshot::channel();
        let sent = self.jobs.lock().send(Box::new(move || {
            // Whoever asked may have given up.
            let _ = done.send(job());
        }));
        let ended = || DiskError::Failed("the thread for files has ended".into());
        sent.map_err(|_| ended())?;
        result.await.map_err(|_| ended())?
    }

    /// Does `job` on one of the threads; on this one if it is one of them.
    pub(super) fn post(&self, job: Job) {
        if OWN.get() == self.number {
            return job();
        }
        // Threads end after the last handle only, and this is one.
        let _ = self.jobs.lock().send(job);
    }

    /// Runs a task on one of the threads, which does nothing else until it has ended.
    pub(super) fn spawn(&self, task: Task) {
        // Threads end after the last handle only, and this is one.
        let _ = self.jobs.lock().send(Box::new(move || block_on(task)));
    }
}

fn work(take: &Mutex<Receiver<Job>>) {
    loop {
        let job = take.lock().recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
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
