//! Notes and beliefs, in one order: either the writer of a record sees the note of the process that goes on believing
//! it, or that process sees the change.
//!
//! Each side writes, and reads after a fence (Dekker's way). `loom/` runs this very file through every order
//! of its steps.

use super::sync::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// The upper half of a word is the period, the lower one counts within it.
pub(super) const PERIOD_AT: u32 = 32;

/// Makes a note. Later reads happen after it is visible.
pub(super) fn note(word: &AtomicU64, period: u64) {
    let mut old = word.load(Relaxed);
    while let Err(other) =
        word.compare_exchange_weak(old, old.saturating_add(1).max(period << PERIOD_AT), Relaxed, Relaxed)
    {
        old = other;
    }
    fence(SeqCst);
}

/// Reads a note, after all earlier writes of this thread.
pub(super) fn noted(word: &AtomicU64) -> u64 {
    fence(SeqCst);
    word.load(Relaxed)
}
