//! Notes and what is believed, in one order: either whoever changes something sees the note of who goes on
//! believing it, or that one sees the change.
//!
//! Each side writes, and reads after a fence (Dekker's way). `loom/` runs this very file through every order
//! of its steps.

use super::sync::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// The upper half of a word is the period, the lower one counts within it.
pub(super) const PERIOD_AT: u32 = 32;

/// Notes something. What is read afterwards is read when that can be seen.
pub(super) fn note(word: &AtomicU64, period: u64) {
    let mut old = word.load(Relaxed);
    while let Err(other) =
        word.compare_exchange_weak(old, old.saturating_add(1).max(period << PERIOD_AT), Relaxed, Relaxed)
    {
        old = other;
    }
    fence(SeqCst);
}

/// What is noted, after all that this thread has written before.
pub(super) fn noted(word: &AtomicU64) -> u64 {
    fence(SeqCst);
    word.load(Relaxed)
}
