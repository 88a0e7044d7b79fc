//! Threads that block: for rooms whose work is easiest to read as a thread that waits.
//!
//! They are the standard library's, but for the threads of a simulated process ([`crate::sim::Process`]): those run one at
//! a time, in an order that is drawn from the seed, and what they wait for is simulated, too. A room that waits by these
//! words alone runs in both worlds (docs/decisions/0104-blocking-threads-in-the-simulation.md).

use crate::real::{self, Runtime};
use crate::sim::threads::{Place, here};
use crate::sync::{self, Condvar};
use std::future::Future;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A started thread.
pub struct Thread {
    inner: JoinHandle<()>,
    place: Option<Place>,
}

/// Starts a thread.
///
/// # Errors
/// The system has no room for it.
pub fn start(name: &str, life: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let place = here().map(|place| place.fork());
    let inner = Builder::new().name(name.into());
    let inner = match place.clone() {
        None => inner.spawn(life)?,
        Some(place) => inner.spawn(move || place.live(life))?,
    };
    Ok(Thread { inner, place })
}

impl Thread {
    /// Waits for its end.
    ///
    /// # Errors
    /// It has panicked.
    pub fn join(self) -> std::thread::Result<()> {
        if let (Some(here), Some(place)) = (here(), &self.place) {
            here.wait_until(|| place.has_ended().then_some(()));
        }
        self.inner.join()
    }
}

/// Has `count` threads do the same, this one among them, and waits until all are done.
pub fn together(count: usize, work: impl Fn() + Sync) {
    if count == 0 {
        return;
    }
    std::thread::scope(|scope| {
        let (work, here) = (&work, here());
        let mut others = Vec::new();
        for _ in 1..count {
            match here.as_ref().map(Place::fork) {
                None => drop(scope.spawn(work)),
                Some(place) => {
                    others.push(place.clone());
                    scope.spawn(move || place.live(work));
                }
            }
        }
        work();
        if let Some(here) = here {
            here.wait_until(|| others.iter().all(Place::has_ended).then_some(()));
        }
    });
}

/// Puts items into a queue.
pub struct Sender<T>(Option<SyncSender<T>>);

/// Takes items out of a queue; several threads may share it.
pub struct Receiver<T>(Mutex<mpsc::Receiver<T>>);

/// A queue that holds so many items at most.
pub fn queue<T>(items_max: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::sync_channel(items_max);
    (Sender(Some(sender)), Receiver(Mutex::new(receiver)))
}

impl<T> Sender<T> {
    /// Waits until there is room, and puts an item in; gives it back if all receivers are gone.
    pub fn send(&self, item: T) -> Result<(), T> {
        let Some(sender) = &self.0 else { return Err(item) };
        let Some(here) = here() else { return sender.send(item).map_err(|error| error.0) };
        let mut item = Some(item);
        let sent = here.wait_until(|| match sender.try_send(item.take()?) {
            Ok(()) => Some(Ok(())),
            Err(TrySendError::Disconnected(back)) => Some(Err(back)),
            Err(TrySendError::Full(back)) => {
                item = Some(back);
                None
            }
        });
        here.tell();
        sent
    }
}

impl<T> Sender<T> {
    /// Puts an item in if there is room for it now; else gives it back.
    pub fn try_send(&self, item: T) -> Result<(), T> {
        let Some(sender) = &self.0 else { return Err(item) };
        sender.try_send(item).map_err(|error| match error {
            TrySendError::Full(back) | TrySendError::Disconnected(back) => back,
        })?;
        if let Some(here) = here() {
            here.tell();
        }
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0 = None;
        if let Some(here) = here() {
            here.tell();
        }
    }
}

impl<T> Receiver<T> {
    /// Waits for an item; `None` when the queue is empty and all senders are gone.
    pub fn recv(&self) -> Option<T> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(here) = here() else { return lock().recv().ok() };
        let received = here.wait_until(|| match lock().try_recv() {
            Ok(item) => Some(Some(item)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        });
        here.tell();
        received
    }
}

/// No item came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late;

impl<T> Receiver<T> {
    /// As [`Receiver::recv`], for `limit` at most.
    ///
    /// # Errors
    /// [`Late`] if there was no item so long.
    pub fn recv_in(&self, limit: Duration) -> Result<Option<T>, Late> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(here) = here() else {
            return match lock().recv_timeout(limit) {
                Ok(item) => Ok(Some(item)),
                Err(RecvTimeoutError::Disconnected) => Ok(None),
                Err(RecvTimeoutError::Timeout) => Err(Late),
            };
        };
        let received = here.wait_until_or(limit, || match lock().try_recv() {
            Ok(item) => Some(Some(item)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        });
        here.tell();
        match received {
            Some(received) => received.map_err(|()| Late),
            None => Ok(None),
        }
    }
}

/// A value under a lock; threads can wait for its changes.
#[derive(Debug, Default)]
pub struct Watched<T> {
    value: sync::Mutex<T>,
    changed: Condvar,
}

impl<T> Watched<T> {
    /// With this value.
    pub const fn new(value: T) -> Watched<T> {
        Watched { value: sync::Mutex::new(value), changed: Condvar::new() }
    }

    /// Locks the value. Nothing is waited for with the lock held, but by [`Watched::wait`].
    pub fn lock(&self) -> sync::MutexGuard<'_, T> {
        self.value.lock()
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Wakes all threads that wait.
    pub fn tell(&self) {
        match here() {
            Some(here) => here.tell(),
            None => self.changed.notify_all(),
        }
    }

    /// Unlocks, waits until another thread tells of a change, or for `limit`, and locks again. It may wake without either. `None` if
    /// the simulated process was killed.
    pub fn wait<'a>(&'a self, guard: sync::MutexGuard<'a, T>, limit: Duration) -> Option<sync::MutexGuard<'a, T>> {
        let Some(here) = here() else { return Some(self.changed.wait_for(guard, limit)) };
        drop(guard);
        let mut is_told = false;
        // Whether in time or not.
        let _ = here.wait_until_or(limit, || std::mem::replace(&mut is_told, true).then_some(()))?;
        Some(self.lock())
    }
}

/// The time since a moment of this process, by a clock that is never set.
pub fn now() -> Duration {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    match here() {
        Some(here) => Duration::from_nanos(here.io().mono_ns()),
        None => BEGINNING.elapsed(),
    }
}

/// Waits for so long; `false` if the simulated process was killed.
pub fn sleep(time: Duration) -> bool {
    match here() {
        Some(here) => here.block_on(here.io().sleep(time)).is_some(),
        None => {
            std::thread::sleep(time);
            true
        }
    }
}

/// Where blocking code waits for futures.
#[derive(Clone)]
pub enum Waiter {
    /// On a runtime.
    Real(Arc<Runtime>),
    /// In the process that the calling thread belongs to.
    Simulated,
}

impl Waiter {
    /// Runs a future to its end; `None` if the simulated process was killed.
    ///
    /// # Panics
    /// If it is simulated, and the thread belongs to no simulated process.
    pub fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        match self {
            Waiter::Real(runtime) => Some(runtime.block_on(future)),
            Waiter::Simulated => here().expect("a thread of a simulated process").block_on(future),
        }
    }
}

/// The date, in nanoseconds since 1970.
pub fn date_ns() -> u64 {
    if let Some(here) = here() {
        return here.date_ns();
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Fills `bytes` with random ones.
pub fn fill_random(bytes: &mut [u8]) {
    match here() {
        Some(here) => here.io().fill_random(bytes),
        None => real::fill_random(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Faults, Process, Sim};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// A process whose threads take items out of a queue, each after a nap, and note them in the order in which they do.
    fn noted(seed: u64, kill_after: Option<Duration>) -> (Vec<u32>, bool, u64) {
        let sim = Sim::new(seed, Faults::default());
        let notes = Arc::new(crate::sync::Mutex::new(Vec::new()));
        let (shared, io) = (notes.clone(), sim.node("n"));
        let process = Process::start(&sim, "n", move || {
            let (sender, receiver) = queue(2);
            let receiver = Arc::new(receiver);
            let work = {
                let (io, shared) = (io.clone(), shared.clone());
                move |receiver: &Receiver<u32>| {
                    while let Some(item) = receiver.recv() {
                        let nap = Duration::from_millis(io.random_u64() % 5);
                        if Waiter::Simulated.block_on(io.sleep(nap)).is_some() {
                            shared.lock().push(item);
                        }
                    }
                }
            };
            let threads: Vec<Thread> = (0..3)
                .map(|_| {
                    let (work, receiver) = (work.clone(), receiver.clone());
                    start("takes", move || work(&receiver)).expect("room for a thread")
                })
                .collect();
            (0..20).for_each(|item| sender.send(item).expect("there are receivers"));
            drop(sender);
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            let count = AtomicU32::new(0);
            together(3, || {
                if Waiter::Simulated.block_on(io.sleep(Duration::from_millis(1))).is_some() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            shared.lock().push(100 + count.into_inner());
        });
        let is_whole = sim.block_on(async {
            match kill_after {
                None => process.ended().await,
                Some(after) => {
                    sim.sleep(after).await;
                    process.kill();
                    false
                }
            }
        });
        let found = notes.lock().clone();
        (found, is_whole, sim.trace_hash())
    }

    #[test]
    fn threads_of_a_simulated_process_run_in_an_order_that_the_seed_draws() {
        let mut orders = std::collections::BTreeSet::new();
        for seed in 0..8 {
            let (notes, is_whole, hash) = noted(seed, None);
            assert!(is_whole);
            assert_eq!((notes.len(), notes.last()), (21, Some(&103)), "{notes:?}");
            assert_eq!(noted(seed, None), (notes.clone(), true, hash), "seed {seed} is another run the second time");
            orders.insert(notes);
        }
        assert!(orders.len() > 4, "{} orders of 8", orders.len());
    }

    #[test]
    fn a_killed_process_does_nothing_more() {
        for seed in 0..8 {
            let (notes, _, hash) = noted(seed, Some(Duration::from_millis(7)));
            // Its own notes after that are without effect in the world: the last note says so.
            let before: Vec<u32> = notes.iter().copied().filter(|note| *note < 100).collect();
            assert!(before.len() < 20 && notes.last() == Some(&100), "{notes:?}");
            assert_eq!(noted(seed, Some(Duration::from_millis(7))).2, hash);
        }
    }

    /// The order in which threads of a killed process note that they run out. The first one takes what the last one sends, and `main`, which
    /// notes 5, joins all.
    fn order_of_ends() -> Vec<u32> {
        let sim = Sim::new(1, Faults::default());
        let notes = Arc::new(Watched::new(Vec::new()));
        let shared = notes.clone();
        let process = Process::start(&sim, "n", move || {
            // Another one would come in between, if it ran.
            let note = move |number| {
                for _ in 0..50 {
                    shared.lock().push(number);
                    std::thread::yield_now();
                }
            };
            let (sender, receiver) = queue(1);
            let take = move || while receiver.recv().is_some() {};
            let send = move || (0..3).for_each(|item| sender.send(item).expect("there is a receiver"));
            let works: [Box<dyn FnOnce() + Send>; 4] =
                [Box::new(take), Box::new(|| {}), Box::new(|| {}), Box::new(send)];
            let starts = |(number, work): (u32, Box<dyn FnOnce() + Send>)| {
                let note = note.clone();
                let life = move || {
                    assert!(number == 1 || !sleep(Duration::from_secs(3600)), "it is killed first");
                    work();
                    note(number);
                };
                start("ends", life).expect("room for a thread")
            };
            let threads: Vec<Thread> = (1..).zip(works).map(starts).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            note(5);
        });
        sim.block_on(sim.sleep(Duration::from_secs(1)));
        process.kill();
        let mut order = std::mem::take(&mut *notes.lock());
        order.dedup();
        order
    }

    #[test]
    fn threads_of_a_killed_process_run_out_one_at_a_time_and_may_wait_for_each_other() {
        for _ in 0..20 {
            assert_eq!(order_of_ends(), [2, 3, 4, 1, 5]);
        }
    }

    #[test]
    #[should_panic(expected = "threads of a killed process wait for each other")]
    fn threads_of_a_killed_process_that_wait_for_each_other_for_ever_are_told_of() {
        let sim = Sim::new(1, Faults::default());
        let process = Process::start(&sim, "n", || {
            let (sender, receiver) = queue::<()>(1);
            let thread = start("takes", move || while receiver.recv().is_some() {}).expect("room for a thread");
            thread.join().expect("no panic");
            drop(sender);
        });
        sim.block_on(sim.sleep(Duration::from_secs(1)));
        process.kill();
    }

    /// A process counts up every millisecond, and is stopped between two moments; its end.
    fn counted(stopped: Option<[u64; 2]>) -> (Vec<u64>, Duration) {
        let sim = Sim::new(1, Faults::default());
        let counts = Arc::new(Watched::new(Vec::new()));
        let shared = counts.clone();
        let process = Process::start(&sim, "n", move || {
            for _ in 0..10 {
                assert!(sleep(Duration::from_millis(1)));
                shared.lock().push(now().as_millis() as u64);
            }
        });
        sim.block_on(async {
            if let Some([from, to]) = stopped {
                sim.sleep(Duration::from_micros(from * 1000 + 500)).await;
                process.stop();
                sim.sleep(Duration::from_millis(to - from)).await;
                process.go_on();
            }
            assert!(process.ended().await);
        });
        let found = counts.lock().clone();
        (found, Duration::from_nanos(sim.now_ns()))
    }

    #[test]
    fn a_stopped_process_takes_no_step_until_it_goes_on() {
        let (counts, _) = counted(None);
        assert_eq!(counts, (1..=10).collect::<Vec<_>>());
        let (counts, end) = counted(Some([3, 103]));
        assert_eq!((counts.len(), counts[2], counts[3]), (10, 3, 103), "{counts:?}");
        assert!(end >= Duration::from_millis(109), "{end:?}");
    }

    /// A thread waits for an item and a change, in time and too late.
    fn waits() {
        let (sender, receiver) = queue(1);
        let value = Arc::new(Watched::new(0));
        assert_eq!(receiver.recv_in(Duration::from_millis(1)), Err(Late));
        assert_eq!((sender.try_send(1), sender.try_send(2)), (Ok(()), Err(2)));
        assert_eq!(receiver.recv_in(Duration::from_secs(60)), Ok(Some(1)));
        drop(value.wait(value.lock(), Duration::from_millis(1)).expect("nobody is killed"));
        let (begun, changed) = (now(), value.clone());
        let thread = start("changes", move || {
            *changed.lock() += 1;
            changed.tell();
            sender.send(3).expect("it waits");
        });
        let mut guard = value.lock();
        while *guard == 0 {
            guard = value.wait(guard, Duration::from_secs(60)).expect("nobody is killed");
        }
        drop(guard);
        assert_eq!(receiver.recv_in(Duration::from_secs(60)), Ok(Some(3)));
        assert_eq!(receiver.recv_in(Duration::from_secs(60)), Ok(None), "all senders are gone");
        thread.expect("room for a thread").join().expect("no panic");
        assert!(now() - begun < Duration::from_secs(60), "it was woken");
    }

    #[test]
    fn waits_end_with_what_they_wait_for_or_with_their_time() {
        waits();
        let sim = Sim::new(1, Faults::default());
        let process = Process::start(&sim, "n", waits);
        assert!(sim.block_on(process.ended()));
    }

    #[test]
    fn outside_of_the_simulation_they_are_ordinary_threads() {
        let (sender, receiver) = queue(1);
        let sum = Arc::new(AtomicU32::new(0));
        let added = sum.clone();
        let thread = start("adds", move || {
            while let Some(item) = receiver.recv() {
                added.fetch_add(item, Ordering::Relaxed);
            }
        });
        (1..=4).for_each(|item| sender.send(item).expect("it is there"));
        drop(sender);
        thread.expect("room for a thread").join().expect("no panic");
        together(5, || {
            sum.fetch_add(100, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 510);
        assert!(date_ns() > 1_700_000_000_000_000_000);
    }
}
