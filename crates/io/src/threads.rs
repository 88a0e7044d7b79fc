//! Threads that block: for rooms whose work is easiest to read as a thread that waits.
//!
//! They are the standard library's, but for the threads of a simulated process ([`crate::sim::Process`]): those run one at
//! a time, in an order that is drawn from the seed, and what they wait for is simulated, too. A room that waits by these
//! words alone runs in both worlds (docs/decisions/0104-blocking-threads-in-the-simulation.md).

use crate::real::{self, Runtime};
use crate::sim::threads::{Place, here};
use std::future::Future;
use std::io;
use std::sync::mpsc::{self, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

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
        let mut item = Some(item);
        if let Some(here) = here() {
            let sent = here.wait_until(|| match sender.try_send(item.take()?) {
                Ok(()) => Some(Ok(())),
                Err(TrySendError::Disconnected(back)) => Some(Err(back)),
                Err(TrySendError::Full(back)) => {
                    item = Some(back);
                    None
                }
            });
            if let Some(sent) = sent {
                here.tell();
                return sent;
            }
        }
        item.map_or(Ok(()), |item| sender.send(item).map_err(|error| error.0))
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
        received.unwrap_or_else(|| lock().recv().ok())
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
            // What it notes itself after that is without effect in the world: the last note says so.
            let before: Vec<u32> = notes.iter().copied().filter(|note| *note < 100).collect();
            assert!(before.len() < 20 && notes.last() == Some(&100), "{notes:?}");
            assert_eq!(noted(seed, Some(Duration::from_millis(7))).2, hash);
        }
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
