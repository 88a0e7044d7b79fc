//! How many bytes of file data one client has under way.
//!
//! A large call sends all its parts at once, and many calls may do so at the same time. What they
//! have under way together is bounded here: beyond it, parts wait for others to be answered, in
//! the order in which they came.

use crate::client::Core;
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure};
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of file data that one client has under way at most, all calls together. Enough to keep
/// many servers busy; beyond, the memory of receivers fills up for nothing.
pub const FLIGHT_BYTES_MAX: usize = 64 << 20;

/// Bytes that one call has under way where all servers are on the caller's node: there is no network to fill, and more
/// would leave the processor's cache before they are copied, and be more than a server shares (decision 0027).
pub const NEAR_BYTES_MAX: usize = 8 << 20;

pub(crate) struct Flight {
    state: Arc<Mutex<State>>,
}

struct State {
    free_bytes: usize,
    /// Who waits, the longest first.
    waiting: VecDeque<(usize, oneshot::Sender<Permit>)>,
    /// Most bytes that were under way at one time.
    peak_bytes: usize,
}

/// Leave to have some bytes under way, given back when dropped.
pub(crate) struct Permit {
    state: Arc<Mutex<State>>,
    bytes: usize,
}

impl Default for Flight {
    fn default() -> Flight {
        let state = State { free_bytes: FLIGHT_BYTES_MAX, waiting: VecDeque::new(), peak_bytes: 0 };
        Flight { state: Arc::new(Mutex::new(state)) }
    }
}

impl Flight {
    /// A permit, or what will give one.
    fn enter(&self, bytes: usize) -> Result<Permit, oneshot::Receiver<Permit>> {
        let bytes = bytes.min(FLIGHT_BYTES_MAX);
        let mut state = self.state.lock();
        if state.waiting.is_empty() && state.take(bytes) {
            return Ok(Permit { state: self.state.clone(), bytes });
        }
        let (sender, receiver) = oneshot::channel();
        state.waiting.push_back((bytes, sender));
        Err(receiver)
    }

    /// Most bytes that were under way at one time.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.state.lock().peak_bytes
    }
}

impl State {
    fn take(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.free_bytes;
        if fits {
            self.free_bytes -= bytes;
            self.peak_bytes = self.peak_bytes.max(FLIGHT_BYTES_MAX - self.free_bytes);
        }
        fits
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut next = Vec::new();
        let mut state = self.state.lock();
        state.free_bytes += self.bytes;
        while let Some((bytes, _)) = state.waiting.front() {
            let bytes = *bytes;
            if !state.take(bytes) {
                break;
            }
            let Some((bytes, sender)) = state.waiting.pop_front() else { break };
            next.push((Permit { state: self.state.clone(), bytes }, sender));
        }
        drop(state);
        // A caller that has given up does not take the permit: it is dropped, and the next caller has it.
        for (permit, sender) in next {
            drop(sender.send(permit));
        }
    }
}

impl Core {
    /// Waits until `bytes` more may be under way.
    ///
    /// # Errors
    /// [`Code::TimedOut`] when so much waits for answers for as long as a request may take.
    pub(crate) async fn fly(&self, bytes: usize) -> Result<Permit, Failure> {
        let mut waiting = match self.flight.enter(bytes) {
            Ok(permit) => return Ok(permit),
            Err(waiting) => waiting,
        };
        let until = self.patience();
        while !until.is_over(self) {
            if let Some(Ok(permit)) = self.io.timeout(until.left(self), &mut waiting).await {
                return Ok(permit);
            }
        }
        let seconds = self.deadline.as_secs_f64();
        let detail = format!("{FLIGHT_BYTES_MAX} bytes of this client have waited for answers for {seconds:.1} s");
        Err(Failure::new(Code::TimedOut, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(waiting: &mut Result<Permit, oneshot::Receiver<Permit>>) -> bool {
        match waiting {
            Ok(_) => true,
            Err(receiver) => {
                receiver.try_recv().expect("nobody has given up").map(|permit| *waiting = Ok(permit)).is_some()
            }
        }
    }

    #[test]
    fn beyond_the_limit_parts_wait_in_their_order() {
        let flight = Flight::default();
        let half = flight.enter(FLIGHT_BYTES_MAX / 2);
        let mut large = flight.enter(FLIGHT_BYTES_MAX);
        let mut small = flight.enter(1);
        assert!(!now(&mut large) && !now(&mut small), "a small one does not overtake a large one for ever");
        drop(half);
        assert!(now(&mut large) && !now(&mut small));
        drop(large);
        assert!(now(&mut small));
        assert_eq!(flight.peak_bytes(), FLIGHT_BYTES_MAX);
    }

    #[test]
    fn whoever_gives_up_takes_nothing_along() {
        let flight = Flight::default();
        let first = flight.enter(FLIGHT_BYTES_MAX);
        let (given_up, given_up_late) = (flight.enter(10), flight.enter(FLIGHT_BYTES_MAX));
        let mut last = flight.enter(FLIGHT_BYTES_MAX);
        drop(given_up);
        drop(first);
        // It was given a permit that it never took.
        drop(given_up_late);
        assert!(now(&mut last));
        drop(last);
        assert_eq!(flight.state.lock().free_bytes, FLIGHT_BYTES_MAX);
    }

    #[test]
    fn more_than_there_can_be_is_all_there_can_be() {
        let flight = Flight::default();
        assert!(flight.enter(usize::MAX).is_ok());
        assert_eq!(flight.state.lock().free_bytes, FLIGHT_BYTES_MAX);
    }
}
