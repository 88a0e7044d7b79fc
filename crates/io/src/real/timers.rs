//! The timers of one runtime.
//!
//! It alone knows how a deadline becomes an event: one timerfd, polled like a socket, so that exactly one thread wakes
//! for it and no wait needs a timeout of its own. It does not know which tasks it wakes.

use std::collections::BTreeMap;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::task::Waker;

use crate::sync::Mutex;

use super::sys;
use crate::TimerId;

/// The timers not yet due. Their number is that of the sleeping tasks: a bound for those
/// bounds it.
pub(super) struct Timers {
    timerfd: OwnedFd,
    state: Mutex<State>,
}

struct State {
    waiting: BTreeMap<TimerId, Waker>,
    serial: u64,
    /// When the timerfd fires. Never later than the first waiting timer; it may be earlier,
    /// since cancelling does not set it back: firing for nothing once costs less than a
    /// system call for each request that set a time limit and then ended in time.
    armed_ns: u64,
}

const NEVER_NS: u64 = u64::MAX;

impl Timers {
    pub(super) fn new() -> Result<Self> {
        let state = State { waiting: BTreeMap::new(), serial: 0, armed_ns: NEVER_NS };
        Ok(Timers { timerfd: sys::timerfd()?, state: Mutex::new(state) })
    }

    /// What to poll; [`Timers::fire`] is due when it is readable.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.timerfd
    }

    pub(super) fn add(&self, deadline_ns: u64, waker: Waker) -> TimerId {
        let mut state = self.state.lock();
        state.serial += 1;
        let timer = TimerId { deadline_ns, serial: state.serial };
        state.waiting.insert(timer, waker);
        if deadline_ns < state.armed_ns {
            state.armed_ns = deadline_ns;
            sys::timerfd_set(&self.timerfd, deadline_ns);
        }
        timer
    }

    /// When the timerfd fires next.
    pub(super) fn next_ns(&self) -> u64 {
        self.state.lock().armed_ns
    }

    pub(super) fn cancel(&self, timer: TimerId) {
        let waker = self.state.lock().waiting.remove(&timer);
        // Dropped after the lock: it may be the last handle of a task, whose end runs anything.
        drop(waker);
    }

    /// Fires every timer that is due at `now_ns`.
    pub(super) fn fire(&self, now_ns: u64) {
        let due = {
            let mut state = self.state.lock();
            let mut due = Vec::new();
            while let Some(first) = state.waiting.first_entry().filter(|first| first.key().deadline_ns <= now_ns) {
                due.push(first.remove());
            }
            let next_ns = state.waiting.first_key_value().map_or(NEVER_NS, |(timer, _)| timer.deadline_ns);
            state.armed_ns = next_ns;
            if next_ns != NEVER_NS {
                sys::timerfd_set(&self.timerfd, next_ns);
            }
            due
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Forgets all timers; the caller drops their wakers.
    pub(super) fn clear(&self) -> BTreeMap<TimerId, Waker> {
        std::mem::take(&mut self.state.lock().waiting)
    }
}
