//! The library's side of a channel's mailbox ([`aze_calls::mailbox`]). It alone knows how a thread waits for the agent there.

use crate::host::{self, call, error, raw};
use aze_calls::Request;
use aze_calls::mailbox::{ANSWERED, ASKED, ENDED, FREE, LOOK_MS, REPLY_AT, REQUEST_AT, SENT, WORD_AT};
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The agent serves the channel no longer.
pub struct Ended;

/// A mailbox, by its address.
#[derive(Clone, Copy)]
pub struct Mailbox(pub u64);

impl Mailbox {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the channel's memory is mapped while its session lasts, and the word lies at the beginning of a page. The agent
        // reaches it by atomic instructions.
        unsafe { AtomicU32::from_ptr((self.0 + WORD_AT as u64) as *mut u32) }
    }

    /// Puts a request here, whose length the caller has compared, and wakes the agent.
    pub fn ask(&self, request: &Request, parts: &[&[u8]]) -> Result<(), Ended> {
        let mut at = self.0 + REQUEST_AT as u64;
        host::write(at, *request);
        at += size_of::<Request>() as u64;
        for part in parts {
            host::copy(at, part.as_ptr() as u64, part.len());
            at += part.len() as u64;
        }
        self.tell(ASKED)
    }

    /// Tells the agent that a packet was sent.
    pub fn sent(&self) -> Result<(), Ended> {
        self.tell(SENT)
    }

    fn tell(&self, what: u32) -> Result<(), Ended> {
        let before = self.word().swap(what, SeqCst);
        let woken = i32::MAX as u64;
        call(libc::SYS_futex, self.0 + WORD_AT as u64, libc::FUTEX_WAKE as u64, woken);
        if before == ENDED { Err(Ended) } else { Ok(()) }
    }

    /// Waits for the reply; gives the address at which it lies. `None` if it was sent as a packet.
    pub fn reply(&self, socket: i32) -> Result<Option<u64>, Ended> {
        let limit = libc::timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
        let args = [self.0 + WORD_AT as u64, libc::FUTEX_WAIT as u64, u64::from(ASKED), &raw const limit as u64, 0, 0];
        let mut is_last_look = false;
        loop {
            match self.word().load(SeqCst) {
                ANSWERED => return Ok(Some(self.0 + REPLY_AT as u64)),
                FREE => return Ok(None),
                ASKED if is_last_look => return Err(Ended),
                ASKED => {}
                _ => return Err(Ended),
            }
            // The agent may have answered before it ended.
            is_last_look = raw(libc::SYS_futex, args) == error(libc::ETIMEDOUT) && has_hung_up(socket);
        }
    }
}

/// Whether the other side of a socket has closed it.
fn has_hung_up(socket: i32) -> bool {
    let mut asked = libc::pollfd { fd: socket, events: libc::POLLRDHUP, revents: 0 };
    call(libc::SYS_poll, &raw mut asked as u64, 1, 0) > 0
}
