//! Shared memory between two processes of one node: what a connection's two rings lie in.
//!
//! It alone knows where in the memory file which word stands, and who rings whom. A connection
//! begins as a local socket, which stays open and tells when the other end is gone
//! ([`upgrade`]). Requests and replies then flow through two rings ([`ring`]); what the other
//! process writes into them is never trusted. A sleeping end is rung ([`wake`]): the
//! client's thread in its epoll instance by an eventfd, the server's workers, one for each
//! core, by a futex ([`bells`]). Large data for a client are lent to it instead of copied ([`loan`]).

pub(super) mod bells;
pub(super) mod loan;
mod region;
mod returns;
pub(super) mod ring;
pub(super) mod shared;
pub(super) mod upgrade;
mod wake;

#[cfg(test)]
mod lending_tests;
#[cfg(test)]
mod tests;

use crate::claims::{CLAIM_WORDS, Claims};
use crate::slate::{SharedWords, Words};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use loan::Lender;
use region::Region;
pub(super) use region::is_held;
use ring::{Consumer, Lane, Producer};

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
/// Not zero: the client sleeps, or is about to, and wants to be rung when a reply comes.
const CLIENT_WAITS: usize = 384;
/// The value that says that it sleeps at this word, and not in its epoll instance.
const AT_FUTEX: u32 = 2;
/// A bit for each slot of a loan that the client has given back ([`returns`]).
const RETURNED: usize = 448;
/// Not zero: the server keeps none of the lent frames any more.
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
enum Bell {
    /// The client's: an eventfd in its epoll instance.
    Client(OwnedFd),
    /// The server's workers, and this connection's place in their page.
    Workers(bells::Ringer),
}

/// One end of a connection through shared memory.
pub(super) struct Shm {
    region: Region,
    bell: Bell,
    /// Up to where this end has taken what came; the word in shared memory is for the other.
    taken: AtomicU64,
    /// The server's: its loans to this client.
    lender: Option<Lender>,
    /// The client's: the memory from which it reads loans.
    lent: Option<Region>,
}

impl Shm {
    fn new(region: Region, bell: Bell, lender: Option<Lender>, lent: Option<Region>) -> Arc<Self> {
        Arc::new(Shm { region, bell, taken: AtomicU64::new(0), lender, lent })
    }

    fn is_client(&self) -> bool {
        matches!(self.bell, Bell::Workers(_))
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
    /// nothing has within `limit_ms`. It is still announced then, to be rung from now on.
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
        match &self.bell {
            Bell::Client(eventfd) => match wake::claim_how(self.word32(CLIENT_WAITS)) {
                0 => {}
                AT_FUTEX => region::futex_wake(self.word32(CLIENT_WAITS)),
                _ => region::ring_eventfd(eventfd),
            },
            Bell::Workers(ringer) => ringer.ring(),
        }
    }

    /// Tells the other end that there is room, if it waits for some.
    fn tell_room(&self) {
        if !wake::claim(self.word32(self.inward().room)) {
            return;
        }
        match &self.bell {
            Bell::Client(eventfd) => region::ring_eventfd(eventfd),
            Bell::Workers(ringer) => ringer.ring(),
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
