//! Which end has to be woken, decided so that no wake-up is ever lost.
//!
//! Every rule here is the same one: an end that goes to sleep first *announces* it and then looks
//! once more; an end that has news first makes them visible and then looks for an announcement. A full
//! fence stands between the two steps on both sides, so that one of the two sees the other. `loom/` runs this
//! very file through every order of its steps. How a thread sleeps it does not know.

use super::sync::{AtomicU32, AtomicU64, Ordering::Release, Ordering::SeqCst, fence};

/// Announces a sleep, or a wish for room. The look for news has to follow.
pub(super) fn announce(waits: &AtomicU32) {
    announce_as(waits, 1);
}

/// The same, saying by which number (not 0) how it wants to be woken.
pub(super) fn announce_as(waits: &AtomicU32, how: u32) {
    // Exchanged, not stored: several may write this word, and so it has one order of values.
    waits.swap(how, SeqCst);
    fence(SeqCst);
}

/// Whether the caller, who has made its news visible before, is the one to wake the end that announced a sleep.
pub(super) fn claim(waits: &AtomicU32) -> bool {
    claim_how(waits) != 0
}

/// The same: how it was announced, or 0 if the caller need not wake the other end.
pub(super) fn claim_how(waits: &AtomicU32) -> u32 {
    // Looked at first, since a swap costs more and nearly always no end waits for room.
    if waits.load(SeqCst) == 0 { 0 } else { waits.swap(0, SeqCst) }
}

/// Makes news visible: the position up to which a ring is filled, or has been taken.
pub(super) fn publish(word: &AtomicU64, position: u64) {
    word.store(position, Release);
    fence(SeqCst);
}

/// The words of one worker of a server.
pub(super) struct Post<'a> {
    /// The futex: a number that changes with each wake-up.
    pub(super) wakeup: &'a AtomicU32,
    /// Not zero while the worker sleeps or is about to.
    pub(super) waits: &'a AtomicU32,
}

impl Post<'_> {
    /// Notes that there is something for the connection whose bit `mask` is; `true` if the
    /// futex has to be woken.
    pub(super) fn wake(&self, ready: &AtomicU64, mask: u64) -> bool {
        ready.fetch_or(mask, SeqCst);
        fence(SeqCst);
        let asleep = claim(self.waits);
        if asleep {
            self.wakeup.fetch_add(1, SeqCst);
        }
        asleep
    }

    /// Ends the worker's sleep, or the next that begins, without a look at `waits`. The futex has to be woken
    /// afterwards.
    pub(super) fn rouse(&self) {
        self.wakeup.fetch_add(1, SeqCst);
    }

    /// Announces the worker's sleep. Unless `has_news` says otherwise afterwards, it may wait on
    /// the futex for as long as that has the value returned.
    pub(super) fn before_sleep(&self, has_news: impl FnOnce() -> bool) -> Option<u32> {
        let seen = self.wakeup.load(SeqCst);
        announce(self.waits);
        if has_news() {
            self.after_sleep();
            return None;
        }
        Some(seen)
    }

    /// The worker is awake, and need not be woken.
    pub(super) fn after_sleep(&self) {
        self.waits.swap(0, SeqCst);
    }
}
