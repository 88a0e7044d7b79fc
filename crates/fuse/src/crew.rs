//! The workers of the queues ([`crate::queue`]), and which of them reads which queue.
//!
//! A worker reads a queue, on the queue's processor, and does the request that comes. One reads each queue at a time,
//! two where requests take long: all that read one queue are woken by each request. When the one that reads begins
//! with what takes long, or waits for a server for longer than a server needs, another one is called to read in its
//! place: a spare one, whichever queue it has read before, or a new one. No worker ends before the mount does.

use crate::THREADS_MAX;
use crate::queue;
use crate::worker_pool::{Kind, Pool, READS, belongs_to};
use aze_io::real::{keep_on, processors};
use aze_io::sync::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// Workers that read a queue whose requests take long.
const READERS_OF_SLOW: usize = 2;

/// Requests for which a slow one is remembered.
const SLOW_REQUESTS: u32 = 64;

thread_local! {
    /// The queue that this worker reads, or has read last.
    static QUEUE: Cell<usize> = const { Cell::new(0) };
}

/// The workers of all queues of one mount.
pub struct Crew {
    workers_max: usize,
    queues: Vec<Mutex<Reading>>,
    /// Is told, on a queue's processor, that a request of it may take long.
    slows: Box<dyn Fn(usize) + Send + Sync>,
    state: Mutex<State>,
    /// A queue is to be read, or the mount has ended.
    called: Condvar,
    left: Condvar,
    has_ended: AtomicBool,
    /// Starts a worker that has been counted already, for this queue.
    start: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
    /// The processors that this process may use.
    allowed: Vec<usize>,
}

/// Who reads a queue.
#[derive(Default)]
struct Reading {
    /// Workers that wait for a request of it or do a quick one.
    readers: usize,
    /// A worker is on its way to it, or will be as soon as one has nothing to do.
    is_called: bool,
    /// Requests until none of the recent ones was slow.
    slow: u32,
}

impl Reading {
    fn wanted(&self) -> usize {
        if self.slow > 0 { READERS_OF_SLOW } else { 1 }
    }
}

#[derive(Default)]
struct State {
    workers: usize,
    /// Of these, those that sleep until they are called.
    spare: usize,
    /// Queues that wait for a reader.
    calls: VecDeque<usize>,
    /// What ended it, if it was not its unmounting.
    failure: Option<io::Error>,
}

impl Crew {
    /// For so many queues; `more` workers at most beside one for each. `slows` is called by a worker whose request of
    /// a queue may take long.
    pub fn new(queues: usize, more: usize, slows: impl Fn(usize) + Send + Sync + 'static) -> Crew {
        Crew {
            workers_max: queues + more.clamp(1, THREADS_MAX),
            queues: std::iter::repeat_with(Mutex::default).take(queues).collect(),
            slows: Box::new(slows),
            state: Mutex::default(),
            called: Condvar::new(),
            left: Condvar::new(),
            has_ended: AtomicBool::new(false),
            start: OnceLock::new(),
            allowed: processors(),
        }
    }

    /// Starts one worker for each queue. `start` starts one; where it cannot it calls [`Crew::not_started`].
    pub fn begin(&self, start: impl Fn(usize) + Send + Sync + 'static) {
        let start = self.start.get_or_init(|| Box::new(start));
        self.state.lock().workers += self.queues.len();
        (0..self.queues.len()).for_each(start);
    }

    /// A worker that was to be started for this queue could not be.
    pub fn not_started(&self, number: usize) {
        let mut state = self.state.lock();
        state.workers -= 1;
        // A worker that has nothing to do comes later.
        if !self.has_ended.load(SeqCst) && self.queues[number].lock().is_called {
            state.calls.push_back(number);
        }
        self.left.notify_all();
    }

    /// The calling thread is a worker for as long as it keeps this, and begins with this queue.
    pub fn join(self: &Arc<Self>, number: usize) -> Place<'_> {
        queue::lasts();
        belongs_to(self.clone());
        self.turn_to(number);
        Place(self)
    }

    /// Moves the calling worker to a queue, which was called for it.
    fn turn_to(&self, number: usize) {
        self.queues[number].lock().is_called = false;
        QUEUE.set(number);
        let one = [number];
        // A processor that this process may not use has programs of others: any will do for them. On the wrong
        // processor a request takes a little longer.
        let _ = keep_on(if self.allowed.contains(&number) { &one } else { &self.allowed });
    }

    /// Returns the queue that the calling worker is to read, when there is one; `None` if it is to end.
    pub fn may_read(&self) -> Option<usize> {
        loop {
            let number = QUEUE.get();
            if self.reads(number) {
                return (!self.has_ended.load(SeqCst)).then_some(number);
            }
            let called = self.wait_for_a_call()?;
            self.turn_to(called);
        }
    }

    fn reads(&self, number: usize) -> bool {
        let mut reading = self.queues[number].lock();
        let wanted = reading.wanted();
        if READS.get() {
            if reading.readers <= wanted {
                return true;
            }
            reading.readers -= 1;
            READS.set(false);
        }
        if reading.readers < wanted {
            reading.readers += 1;
            READS.set(true);
        }
        READS.get()
    }

    fn wait_for_a_call(&self) -> Option<usize> {
        let mut state = self.state.lock();
        loop {
            if self.has_ended.load(SeqCst) {
                return None;
            }
            if let Some(number) = state.calls.pop_front() {
                return Some(number);
            }
            state.spare += 1;
            state = self.called.wait(state);
            state.spare -= 1;
        }
    }

    /// The calling worker begins with a request. Another one reads meanwhile, if need be.
    pub fn begins(&self, kind: Kind) {
        let number = QUEUE.get();
        let mut reading = self.queues[number].lock();
        if kind == Kind::Quick {
            reading.slow = reading.slow.saturating_sub(1);
            return;
        }
        reading.slow = SLOW_REQUESTS;
        self.leaves(number, reading);
        (self.slows)(number);
    }

    /// The calling worker reads no longer, if it has done so; another one is called if too few do.
    fn leaves(&self, number: usize, mut reading: MutexGuard<'_, Reading>) {
        if READS.replace(false) {
            reading.readers -= 1;
        }
        let is_missing = reading.readers < reading.wanted();
        drop(reading);
        if is_missing {
            self.call(number);
        }
    }

    /// Has one more worker read a queue, unless one is called already.
    fn call(&self, number: usize) {
        let mut state = self.state.lock();
        if self.has_ended.load(SeqCst) || std::mem::replace(&mut self.queues[number].lock().is_called, true) {
            return;
        }
        if state.spare <= state.calls.len() && state.workers < self.workers_max {
            state.workers += 1;
            drop(state);
            return self.start.get().expect("the crew has begun")(number);
        }
        state.calls.push_back(number);
        self.called.notify_one();
    }

    /// The mount is no more: workers that do not read end.
    pub fn end(&self) {
        {
            // A worker looks with the lock before it sleeps.
            let _state = self.state.lock();
            self.has_ended.store(true, SeqCst);
        }
        self.called.notify_all();
    }

    /// The calling worker cannot read any more.
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
}

impl Pool for Crew {
    fn waits_long(&self) {
        if !READS.get() {
            return;
        }
        let number = QUEUE.get();
        self.leaves(number, self.queues[number].lock());
        (self.slows)(number);
    }
}

/// A worker's place in the crew, given up however it ends.
pub struct Place<'a>(&'a Crew);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let number = QUEUE.get();
        self.0.state.lock().workers -= 1;
        self.0.leaves(number, self.0.queues[number].lock());
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A crew whose workers are no threads: the receiver gets the numbers of those it would start.
    fn crew(queues: usize, more: usize) -> (Arc<Crew>, mpsc::Receiver<usize>) {
        let crew = Arc::new(Crew::new(queues, more, |_| ()));
        let (tell, started) = mpsc::channel();
        crew.begin(move |number| tell.send(number).expect("the test listens"));
        assert_eq!(started.try_iter().collect::<Vec<_>>(), (0..queues).collect::<Vec<_>>());
        (crew, started)
    }

    #[test]
    fn another_worker_reads_while_one_is_slow_or_waits() {
        let (crew, started) = crew(2, 8);
        let _place = crew.join(1);
        for _ in 0..100 {
            assert_eq!(crew.may_read(), Some(1));
            crew.begins(Kind::Quick);
        }
        assert!(started.try_recv().is_err(), "one is enough");
        crew.waits_long();
        crew.waits_long();
        assert_eq!(started.try_iter().collect::<Vec<_>>(), [1], "one for this queue");
        assert_eq!(crew.may_read(), Some(1), "the new one has not come yet");
        crew.begins(Kind::Slow);
        assert!(started.try_recv().is_err(), "it is on its way");
        // It has come, and is slow itself.
        crew.queues[1].lock().is_called = false;
        assert_eq!(crew.may_read(), Some(1));
        crew.begins(Kind::Slow);
        assert_eq!(started.try_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_queue_waits_for_a_worker_when_there_are_no_more_and_gets_the_next_one() {
        let (crew, started) = crew(2, 1);
        let place = crew.join(0);
        assert_eq!(crew.may_read(), Some(0));
        crew.begins(Kind::Slow);
        assert_eq!(started.try_recv(), Ok(0));
        // The one that was started reads its queue; all are at work.
        *crew.queues[0].lock() = Reading { is_called: false, readers: 2, slow: 9 };
        crew.call(1);
        assert!(started.try_recv().is_err() && crew.state.lock().calls == [1]);
        assert_eq!(crew.may_read(), Some(1), "its own queue has readers");
        assert!(!crew.queues[1].lock().is_called);
        crew.end();
        assert_eq!(crew.may_read(), None);
        drop(place);
        assert_eq!(crew.state.lock().workers, 2);
    }

    #[test]
    fn a_spare_worker_comes_and_all_end_with_the_mount() {
        let crew = Arc::new(Crew::new(2, 2, |_| ()));
        let fresh = Arc::downgrade(&crew);
        let (tell, told) = mpsc::channel();
        crew.begin(move |number| {
            let (crew, tell) = (fresh.upgrade().expect("it lives"), tell.clone());
            std::thread::spawn(move || {
                let _place = crew.join(number);
                while let Some(number) = crew.may_read() {
                    crew.begins(Kind::Slow);
                    if tell.send(number).is_err() {
                        crew.end();
                    }
                }
            });
        });
        for _ in 0..1000 {
            told.recv().expect("somebody reads");
        }
        drop(told);
        assert!(crew.wait().is_none());
        assert!(crew.has_ended.load(SeqCst));
    }
}
