//! The hybrid clock: every operation gets a time that is later than any this server gave before
//! and not before the largest that the asker has seen. So cause precedes effect in time stamps,
//! also between nodes whose clocks disagree.

use aze_io::Io;
use aze_proto::Time;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a stated time may be ahead of this node's clock before it is ignored, in nanoseconds.
/// Without the limit one node with a clock in the next century would carry all others with it.
const AHEAD_NS_MAX: u64 = 60_000_000_000;

pub(crate) struct HybridClock {
    last: AtomicU64,
}

impl HybridClock {
    pub(crate) fn new() -> HybridClock {
        HybridClock { last: AtomicU64::new(0) }
    }

    /// The time of an operation that a client asks for which has seen `seen`.
    pub(crate) fn next(&self, io: &Io, seen: Time) -> Time {
        let wall = io.wall_ns();
        let seen = if seen.0 > wall.saturating_add(AHEAD_NS_MAX) { 0 } else { seen.0 };
        let least = wall.max(seen);
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(least.max(last + 1)));
        Time(least.max(before.unwrap_or_else(|last| last) + 1))
    }

    /// Times given from now on are later than this one.
    pub(crate) fn begin_after(&self, time: Time) {
        self.last.fetch_max(time.0, Ordering::Relaxed);
    }

    /// The largest time given so far.
    pub(crate) fn latest(&self) -> Time {
        Time(self.last.load(Ordering::Relaxed))
    }
}
