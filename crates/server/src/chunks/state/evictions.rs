//! Which copies of the backing went, and who waits until some have.

use crate::chunks::state::backed::Flights;
use aze_io::sync::Mutex;
use aze_proto::{Ino, ShardId};
use std::sync::atomic::{AtomicU64, Ordering};

/// A place in a server's chunks.
pub(crate) type Hand = (ShardId, (Ino, u64));

/// What a server knows of evictions.
#[derive(Default)]
pub(crate) struct Evictions {
    /// Looks for copies that may go, and requests that wait for them: whether there must be room, or only should.
    pub(crate) looks: Flights<bool>,
    /// Where the next look begins.
    hand: Mutex<Hand>,
    bytes: AtomicU64,
    chunks: AtomicU64,
    drained_bytes: AtomicU64,
}

impl Evictions {
    pub(crate) fn hand(&self) -> Hand {
        *self.hand.lock()
    }

    pub(crate) fn set_hand(&self, hand: Hand) {
        *self.hand.lock() = hand;
    }

    pub(crate) fn count(&self, chunks: usize, bytes: u64) {
        self.chunks.fetch_add(chunks as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Chunks of so many bytes have become copies, since a stage has put them into the backing.
    pub(crate) fn count_drained(&self, bytes: u64) {
        self.drained_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of all of them since the server started.
    pub(crate) fn drained_bytes(&self) -> u64 {
        self.drained_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were freed since the server started.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Chunks that went since then.
    pub(crate) fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }
}
