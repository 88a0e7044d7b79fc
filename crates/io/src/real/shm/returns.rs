//! How shared payloads come back, and how a reader knows that one was left alone until then.
//!
//! Two words. In one a client sets a slot's bit when it has read all it wants of it; the server lets go of the frames
//! of the slots that it finds there. In the other the server says that the connection has ended and nothing is kept any
//! more, before it lets go of the shared payloads still out; a client looks there after each copy. Each step stands
//! between the reading or writing of data that must not pass it.
//! `loom/` runs this very file through every order of its steps.

use super::sync::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// The client has read all it wants of a slot.
pub(super) fn give_back(returned: &AtomicU64, slot: u64) {
    // Earlier reads stay before it.
    returned.fetch_or(1 << slot, SeqCst);
}

/// The slots that have come back since the last time, a bit for each: the server may write to their frames.
pub(super) fn take_back(returned: &AtomicU64) -> u64 {
    // Looked at first, since a swap costs more and mostly there is nothing.
    if returned.load(Relaxed) == 0 { 0 } else { returned.swap(0, SeqCst) }
}

/// Nothing is kept from now on: the server may write to the frames of shared payloads still out.
pub(super) fn end(ended: &AtomicU64) {
    ended.store(1, SeqCst);
    // Later writes stay after it.
    fence(SeqCst);
}

/// Whether the bytes copied before are the shared ones.
pub(super) fn was_kept(ended: &AtomicU64) -> bool {
    // Earlier reads stay before it.
    fence(SeqCst);
    ended.load(SeqCst) == 0
}
