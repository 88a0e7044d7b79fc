//! How many requests of each kind a server was asked, counted where they are dispatched, and how many connections it had.

use aze_proto::Request;
use aze_proto::message::Counter;
use std::sync::atomic::{AtomicU64, Ordering};

/// One counter for each kind of request.
pub(crate) struct Counters {
    by_kind: Vec<(&'static str, AtomicU64)>,
    /// Place of a kind, by its tag.
    places: Vec<u16>,
    /// Connections closed because of a malformed or forged frame.
    refused: AtomicU64,
    /// Connections that were opened, by the way they take.
    opened: [AtomicU64; 3],
}

/// Under which names [`Counters::count_opened`] is told, and how the name of the peer begins.
const OPENED: [(&str, &str); 3] = [
    ("(connections through shared memory)", "shm:"),
    ("(connections over a local socket)", "unix:"),
    ("(connections over TCP)", "tcp:"),
];

/// Under which name [`Counters::count_refused`] is told, among the requests.
const REFUSED: &str = "(connections refused)";

/// Units of file data that were in no memory.
const FROM_DISK: &str = "(units of 64 KiB read from disk)";

impl Counters {
    pub(crate) fn new() -> Counters {
        let tags = Request::NAMES.iter().map(|(tag, _)| usize::from(*tag)).max().unwrap_or(0);
        let mut places = vec![0; tags + 1];
        for (place, (tag, _)) in Request::NAMES.iter().enumerate() {
            places[usize::from(*tag)] = place as u16;
        }
        Counters {
            by_kind: Request::NAMES.iter().map(|(_, name)| (*name, AtomicU64::new(0))).collect(),
            places,
            refused: AtomicU64::new(0),
            opened: Default::default(),
        }
    }

    pub(crate) fn count_opened(&self, peer: &str) {
        for ((_, way), count) in OPENED.iter().zip(&self.opened) {
            if peer.starts_with(way) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts a request; gives how many of its kind there were before.
    pub(crate) fn count(&self, request: &Request) -> u64 {
        let place = self.places[usize::from(request.tag())];
        self.by_kind[usize::from(place)].1.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// All that are not zero, with the units that were read from disk.
    pub(crate) fn counts(&self, from_disk: u64) -> Vec<Counter> {
        let counts = self
            .by_kind
            .iter()
            .map(|(name, count)| Counter { name: (*name).into(), count: count.load(Ordering::Relaxed) });
        let refused = Counter { name: REFUSED.into(), count: self.refused.load(Ordering::Relaxed) };
        let opened = OPENED
            .iter()
            .zip(&self.opened)
            .map(|((name, _), count)| Counter { name: (*name).into(), count: count.load(Ordering::Relaxed) });
        let from_disk = Counter { name: FROM_DISK.into(), count: from_disk };
        counts.chain(opened).chain([refused, from_disk]).filter(|counter| counter.count > 0).collect()
    }
}
