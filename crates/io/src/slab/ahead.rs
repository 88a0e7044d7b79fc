//! Faulting memory in before it is needed.
//!
//! It alone knows how far memory has been touched and when the thread that goes ahead works
//! or sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::sync::{Condvar, Mutex};

use super::SlabError;
use super::region::Region;

/// Bytes faulted in at a time: about half a millisecond's work, after which the thread looks whether it shall stop. It
/// also wakes only once this much is missing.
const STEP_BYTES: u64 = 2 << 20;

/// Priority of the thread (setpriority(2)): a quarter of what other threads get. With the lowest one, or that of an idle machine, it may wait for
/// seconds while it has the lock of the process's memory, or is the last thread of a process that ends.
const NICE: i32 = 6;

/// How far the region was used and faulted in.
pub(super) struct Ahead {
    region: Arc<Region>,
    /// Nothing is faulted in from here on.
    end: u64,
    /// The end of all memory ever allocated, in bytes from the region's beginning.
    used_end: AtomicU64,
    /// The end of the memory that is faulted in, at least by the thread.
    faulted_end: AtomicU64,
    /// When `used_end` passes this, the thread has work. `u64::MAX` while it works, or is not there.
    wake_at: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    window_bytes: u64,
    is_started: bool,
    is_stopping: bool,
    /// The system had no memory: the thread ended, and memory is faulted in when touched.
    gave_up: bool,
}

impl Ahead {
    pub(super) fn new(region: Arc<Region>, end: u64) -> Self {
        Ahead {
            region,
            end,
            used_end: AtomicU64::new(0),
            faulted_end: AtomicU64::new(0),
            wake_at: AtomicU64::new(u64::MAX),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn touched_bytes(&self) -> u64 {
        self.used_end.load(SeqCst).max(self.faulted_end.load(SeqCst))
    }

    /// Notes that memory up to `end` is allocated now.
    pub(super) fn advance(&self, end: u64) {
        let before = self.used_end.fetch_max(end, SeqCst);
        if before.max(end) > self.wake_at.load(SeqCst) {
            // The lock is held so that the thread is either before its own look at `used_end`
            // or asleep.
            let _state = self.state.lock();
            self.wake_at.store(u64::MAX, SeqCst);
            self.changed.notify_one();
        }
    }

    /// Starts the thread, or changes its window.
    pub(super) fn start(this: &Arc<Self>, window_bytes: u64) -> Result<(), SlabError> {
        let mut state = this.state.lock();
        state.window_bytes = window_bytes;
        this.changed.notify_one();
        if state.is_started {
            return Ok(());
        }
        let ahead = this.clone();
        let thread = std::thread::Builder::new().name("aze-fault-ahead".into());
        thread.spawn(move || ahead.work()).map_err(|error| SlabError::System("clone", error))?;
        state.is_started = true;
        Ok(())
    }

    /// Ends the thread after the step it is at; does not wait for it, since a thread of low
    /// priority may take its time on a busy machine. The region lives until it has ended.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.changed.notify_one();
    }

    fn work(&self) {
        yield_to_others();
        let mut state = self.state.lock();
        while !state.is_stopping && !state.gave_up {
            let Some((from, len)) = self.missing(state.window_bytes) else {
                state = self.changed.wait(state);
                continue;
            };
            drop(state);
            let done = self.region.populate(from, len);
            state = self.state.lock();
            if done {
                self.faulted_end.store((from + len) as u64, SeqCst);
            }
            state.gave_up = !done;
        }
        self.wake_at.store(u64::MAX, SeqCst);
    }

    /// The next range to fault in, as offset and length; if none, arranges to be woken when
    /// there is.
    fn missing(&self, window_bytes: u64) -> Option<(usize, usize)> {
        let capacity = self.end;
        // One step more than asked for, so that the window still stands when the thread wakes.
        let reach = window_bytes.saturating_add(STEP_BYTES);
        loop {
            self.wake_at.store(u64::MAX, SeqCst);
            let used_end = self.used_end.load(SeqCst);
            let faulted_end = self.faulted_end.load(SeqCst);
            let wanted_end = used_end.saturating_add(reach).min(capacity);
            let from = used_end.max(faulted_end);
            if window_bytes == 0 || from >= capacity {
                return None;
            }
            if from < wanted_end {
                let len = STEP_BYTES.min(wanted_end - from);
                return Some((usize::try_from(from).ok()?, usize::try_from(len).ok()?));
            }
            // Now `faulted_end` is at least `used_end + reach`.
            let wake_at = faulted_end - window_bytes;
            self.wake_at.store(wake_at, SeqCst);
            // An allocation that went further before it could see `wake_at` is seen here.
            if self.used_end.load(SeqCst) <= wake_at {
                return None;
            }
        }
    }
}

/// Gives the calling thread a low priority, so that others go first. Where the system refuses it keeps the one it has.
fn yield_to_others() {
    // Zero names the calling thread: Linux keeps this for each (setpriority(2), "C library/kernel differences").
    // SAFETY: takes no pointer.
    let _may_be_refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}
