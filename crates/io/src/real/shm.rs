//! Shared memory between two processes of one node: what a connection's two rings lie in.
//!
//! It alone knows where in the memory file which word stands, and who wakes whom. A connection
//! begins as a local socket, which stays open and tells when the other end is gone
//! ([`upgrade`]). Requests and replies then flow through two rings ([`ring`]); what the other
//! process writes into them is never trusted. A sleeping end is woken ([`wake`]): the
//! client's thread in its epoll instance by an eventfd, the server's workers, one for each
//! core, by a futex ([`wakeups`]). Large data for a client are shared with it instead of copied ([`shared_payload`]).

mod region;
mod returns;
pub(super) mod ring;
pub(super) mod shared;
pub(super) mod shared_payload;
pub(super) mod upgrade;
mod wake;
pub(super) mod wakeups;

#[cfg(test)]
mod shared_payload_tests;
#[cfg(test)]
mod tests;

use crate::claims::{CLAIM_WORDS, Claims};
use crate::published::{SharedWords, Words};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use region::Region;
pub(super) use region::is_held;
use ring::{Consumer, Lane, Producer};
use shared_payload::SharedFrames;

/// What the protocol uses of the standard library: `loom/` puts its own in this place.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

/// Bytes of one ring. A frame with a chunk of the default size goes into the half of it in one
/// piece; larger ones go through bit by bit. Only pages that were used take memory, and
/// while frames are small and taken at once these are the first [`ring::HOT_BYTES`].
pub const RING_BYTES: usize = 4 << 20;

/// Connections through shared memory that one server's runtime has at most, each with two rings:
/// 8 GiB at the very worst, if all of them were filled. Further ones stay on their socket.
pub const SHM_CONNECTIONS_MAX: usize = 1024;

/// Words of the control page, each on a cache line of its own.
const REQUESTS: Lane = Lane { head: 0, tail: 64, room: 128, data: CONTROL_BYTES };
const REPLIES: Lane = Lane { head: 192, tail: 256, room: 320, data: CONTROL_BYTES + RING_BYTES };
/// Not zero: the client sleeps, or is about to, and wants to be woken when a reply comes.
const CLIENT_WAITS: usize = 384;
/// The value that says that it sleeps at this word, and not in its epoll instance.
const AT_FUTEX: u32 = 2;
/// A bit for each slot of a shared payload that the client has given back ([`returns`]).
const RETURNED: usize = 448;
/// Not zero: the server keeps none of the shared frames any more.
const ENDED: usize = 512;
const CONTROL_BYTES: usize = 4096;

/// Bytes of a connection's memory file.
const FILE_BYTES: usize = CLAIMS_AT + CLAIM_WORDS * 8;

/// Where the client's notes are; see [`Claims`].
const CLAIMS_AT: usize = CONTROL_BYTES + 2 * RING_BYTES;

/// As words, a connection's memory is the place of its notes.
impl Words for Shm {
    fn words(&self) -> &[AtomicU64] {
        self.region.words64(CLAIMS_AT, CLAIM_WORDS)
    }
}

/// How to wake the other end.
enum Wakeup {
    /// The client's: an eventfd in its epoll instance.
    Client(OwnedFd),
    /// The server's workers, and this connection's place in their page.
    Workers(wakeups::WorkerWaker),
}

/// One end of a connection through shared memory.
pub(super) struct Shm {
    region: Region,
    wakeup: Wakeup,
    /// Up to where this end has taken what came; the word in shared memory is for the other.
    taken: AtomicU64,
    /// The server's: the frames it shares with this client.
    shared_frames: Option<SharedFrames>,
    /// The client's: the memory from which it reads shared payloads.
    shared: Option<Region>,
}

impl Shm {
    fn new(region: Region, wakeup: Wakeup, shared_frames: Option<SharedFrames>, shared: Option<Region>) -> Arc<Self> {
        Arc::new(Shm { region, wakeup, taken: AtomicU64::new(0), shared_frames, shared })
    }

    fn is_client(&self) -> bool {
        matches!(self.wakeup, Wakeup::Workers(_))
    }

    /// What comes in.
    fn inward(&self) -> Lane {
        if self.is_client() { REPLIES } else { REQUESTS }
    }

    /// What goes out.
    fn outward(&self) -> Lane {
        if self.is_client() { REQUESTS } else { REPLIES }
    }

    /// The two ends of the rings that belong here; to be asked for once.
    pub(super) fn ends(self: &Arc<Self>) -> (Producer, Consumer) {
        (Producer::new(self.clone(), self.outward()), Consumer::new(self.clone(), self.inward()))
    }

    /// Whether something has come that was not taken yet.
    pub(super) fn has_news(&self) -> bool {
        self.word64(self.inward().head).load(SeqCst) != self.taken.load(SeqCst)
    }

    /// Says that this client's thread is about to sleep; the check for news has to follow.
    pub(super) fn announce_sleep(&self) {
        wake::announce(self.word32(CLIENT_WAITS));
    }

    /// Sleeps until something comes, which this client's thread has nothing beside to wait for; `false` if
    /// nothing has within `limit_ms`. It is still announced then, to be woken through the eventfd from now on.
    pub(super) fn sleep(&self, limit_ms: u32) -> bool {
        let word = self.word32(CLIENT_WAITS);
        wake::announce_as(word, AT_FUTEX);
        if !self.has_news() {
            // However it ends, there is a look.
            let _woken = region::futex_wait(word, AT_FUTEX, Duration::from_millis(limit_ms.into()));
        }
        if self.has_news() {
            return true;
        }
        self.announce_sleep();
        self.has_news()
    }

    /// Tells the other end that there is something to take.
    fn tell_data(&self) {
        match &self.wakeup {
            Wakeup::Client(eventfd) => match wake::claim_how(self.word32(CLIENT_WAITS)) {
                0 => {}
                AT_FUTEX => region::futex_wake(self.word32(CLIENT_WAITS)),
                _ => region::wake_eventfd(eventfd),
            },
            Wakeup::Workers(worker_waker) => worker_waker.wake(),
        }
    }

    /// Tells the other end that there is room, if it waits for some.
    fn tell_room(&self) {
        if !wake::claim(self.word32(self.inward().room)) {
            return;
        }
        match &self.wakeup {
            Wakeup::Client(eventfd) => region::wake_eventfd(eventfd),
            Wakeup::Workers(worker_waker) => worker_waker.wake(),
        }
    }

    /// What the client notes for the server.
    pub(super) fn claims(self: &Arc<Self>) -> Option<Claims> {
        Claims::new(SharedWords(self.clone()))
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        self.region.word32(offset)
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        self.region.word64(offset)
    }
}
