//! The mailbox of a channel: one request or its reply, in memory behind the window, and a word (futex(2)) that says which.
//!
//! The library puts a request there, sets the word to [`ASKED`] and wakes the agent; the agent puts the reply there, sets [`ANSWERED`] and wakes
//! the library. The agent sets [`ENDED`] when it serves the channel no longer.
//!
//! A futex does not tell its sleepers that the other side has died. The library looks at the socket every [`LOOK_MS`] while it waits; the
//! agent hears by epoll(7) of the socket's end, and of the process's.

use crate::{MESSAGE_BYTES_MAX, Op};

/// Where the word lies, in bytes from the mailbox's beginning.
pub const WORD_AT: usize = 0;
/// Where the request lies: at most [`MESSAGE_BYTES_MAX`] bytes.
pub const REQUEST_AT: usize = 64;
/// Where the reply lies: at most [`MESSAGE_BYTES_MAX`] bytes.
pub const REPLY_AT: usize = 20 << 10;
/// Bytes of the mailbox.
pub const MAILBOX_BYTES: usize = REPLY_AT + MESSAGE_BYTES_MAX;

// The parts lie behind each other, in whole pages.
const _: () = assert!(WORD_AT + 4 <= REQUEST_AT && REQUEST_AT + MESSAGE_BYTES_MAX <= REPLY_AT);
const _: () = assert!(MAILBOX_BYTES.is_multiple_of(4096));

/// Nothing is asked.
pub const FREE: u32 = 0;
/// A packet was sent, which the agent is to receive.
pub const SENT: u32 = 1;
/// A request lies here.
pub const ASKED: u32 = 2;
/// A reply lies here.
pub const ANSWERED: u32 = 3;
/// The agent serves the channel no longer.
pub const ENDED: u32 = 4;

/// How long the library waits for a reply before it looks whether the agent lives, in milliseconds.
pub const LOOK_MS: i64 = 500;

/// Which way request and reply of an operation take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Both lie in the mailbox.
    Mailbox,
    /// The request lies in the mailbox, and the reply is a packet, since a descriptor comes with it.
    Descriptor,
    /// The request lies in the mailbox, and the reply, too, unless a descriptor comes with it: then it is a packet, and the word is [`FREE`]
    /// once that was sent.
    Either,
    /// Both are packets: the request can be cancelled, or is taken back if the program has not got the reply.
    Packets,
}

impl Op {
    /// Which way request and reply take.
    pub fn way(self) -> Way {
        match self {
            Op::Contents | Op::Map | Op::Shared | Op::Indexes => Way::Descriptor,
            Op::Open | Op::Pipes => Way::Either,
            Op::Lock | Op::Flock | Op::Cancel => Way::Packets,
            _ => Way::Mailbox,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_operations_need_no_packet() {
        let with = |way| Op::ALL.iter().filter(|op| op.way() == way).count();
        assert_eq!([Way::Mailbox, Way::Descriptor, Way::Either, Way::Packets].map(with), [36, 4, 2, 3]);
    }
}
