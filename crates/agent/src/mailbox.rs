//! What a channel consists of: a socket, and memory for requests and replies. It alone knows how the agent waits at both.
//!
//! The channel's thread sleeps at the word of its mailbox ([`aze_calls::mailbox`]), also where a packet is to come: the library sets the word
//! when it has sent one. The process on the other side may write anything there at any time, and harms only its own channel by that.

use crate::named_pipes::NamedPipe;
use crate::sys::{self, Mailbox};
use aze_calls::mailbox::{ANSWERED, ASKED, ENDED, FREE, REPLY_AT, REQUEST_AT, SENT};
use aze_calls::{MESSAGE_BYTES_MAX, Op, Reply, Request};
use aze_io::sync::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// One channel, once its process has said who it is.
pub struct Channel {
    /// By which the agent knows it.
    pub number: u64,
    /// Where packets come and go; the channel ends with it.
    pub socket: OwnedFd,
    mailbox: Mailbox,
    has_ended: AtomicBool,
    /// The named pipe that the library opens before it asks for its next open.
    reserved: Mutex<Option<Arc<NamedPipe>>>,
}

/// The next request, header and bytes.
pub struct Asked<'p> {
    /// Its bytes: they may be no request.
    pub packet: &'p [u8],
    /// It lay in the mailbox.
    pub is_in_mailbox: bool,
}

impl Channel {
    /// From its two parts.
    pub fn new(number: u64, socket: OwnedFd, mailbox: Mailbox) -> Channel {
        Channel { number, socket, mailbox, has_ended: AtomicBool::new(false), reserved: Mutex::default() }
    }

    /// Reserves a named pipe; gives the one that was reserved before.
    pub fn reserve(&self, pipe: Arc<NamedPipe>) -> Option<Arc<NamedPipe>> {
        self.reserved.lock().replace(pipe)
    }

    /// Takes the reserved one if `said` is 1 + its number.
    pub fn take_reserved(&self, said: u64) -> Option<Arc<NamedPipe>> {
        self.reserved.lock().take_if(|pipe| said == 1 + u64::from(pipe.number))
    }

    /// Takes the reserved one, whichever it is.
    pub fn reserved(&self) -> Option<Arc<NamedPipe>> {
        self.reserved.lock().take()
    }

    /// Takes the next request; blocks until there is one. `None` when the channel has ended.
    pub fn next<'p>(&self, packet: &'p mut [u8; MESSAGE_BYTES_MAX]) -> Option<Asked<'p>> {
        let word = self.mailbox.word();
        loop {
            let seen = word.load(SeqCst);
            if self.has_ended.load(SeqCst) {
                return None;
            }
            match seen {
                ASKED => {
                    let len = self.copy_request(packet);
                    return Some(Asked { packet: &packet[..len], is_in_mailbox: true });
                }
                SENT => {
                    if word.compare_exchange(SENT, FREE, SeqCst, SeqCst).is_ok() {
                        let len = self.receive(packet)?;
                        return Some(Asked { packet: &packet[..len], is_in_mailbox: false });
                    }
                }
                ENDED => return None,
                other => self.mailbox.sleep_while(other),
            }
        }
    }

    /// Copies the header, and as many bytes as it says; none if these are too many.
    fn copy_request(&self, packet: &mut [u8; MESSAGE_BYTES_MAX]) -> usize {
        let head = size_of::<Request>();
        self.mailbox.copy_out(REQUEST_AT, &mut packet[..head]);
        let said = sys::take::<Request>(&packet[..head]).map_or(0, |(request, _)| request.bytes as usize);
        let Some(bytes) = packet.get_mut(head..head.saturating_add(said)) else { return 0 };
        self.mailbox.copy_out(REQUEST_AT + head, bytes);
        head + said
    }

    /// Receives the next packet that asks for something. One that was to end a wait comes too late if the wait has ended by itself.
    fn receive(&self, packet: &mut [u8; MESSAGE_BYTES_MAX]) -> Option<usize> {
        loop {
            let count = sys::receive(&self.socket, packet).ok().filter(|count| *count > 0)?;
            let request = sys::take::<Request>(&packet[..count]).map(|(request, _)| request);
            if request.is_none_or(|request| Op::of_number(request.op) != Some(Op::Cancel)) {
                return Some(count);
            }
        }
    }

    /// Says that the request in the mailbox was taken: its reply is a packet.
    pub fn has_taken(&self) {
        let _ = self.mailbox.word().compare_exchange(ASKED, FREE, SeqCst, SeqCst);
    }

    /// Says that the reply to the request in the mailbox was sent as a packet, and wakes the program's thread.
    pub fn has_sent(&self) {
        self.has_taken();
        self.mailbox.wake();
    }

    /// Puts a reply into the mailbox, and wakes the program's thread.
    pub fn answer(&self, reply: &Reply, bytes: &[u8]) {
        let head = sys::bytes_of(reply);
        self.mailbox.copy_in(REPLY_AT, head);
        self.mailbox.copy_in(REPLY_AT + head.len(), bytes);
        if self.mailbox.word().compare_exchange(ASKED, ANSWERED, SeqCst, SeqCst).is_ok() {
            self.mailbox.wake();
        }
    }

    /// Ends it: the threads of both sides wake, also where another process has a copy of the socket.
    pub fn end(&self) {
        self.has_ended.store(true, SeqCst);
        self.mailbox.word().store(ENDED, SeqCst);
        self.mailbox.wake();
        sys::shut(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A channel, and its memory as the other side has it.
    fn channel() -> (Arc<Channel>, Mailbox, UnixStream) {
        let (here, there) = UnixStream::pair().expect("two sockets");
        let (_, mailbox, descriptor) = sys::channel_memory().expect("memory");
        let theirs = mailbox.clone();
        drop(descriptor);
        (Arc::new(Channel::new(1, here.into(), mailbox)), theirs, there)
    }

    fn ask(theirs: &Mailbox, bytes: u32) {
        theirs.copy_in(REQUEST_AT, sys::bytes_of(&Request { op: 7, bytes, ..Request::default() }));
        theirs.word().store(ASKED, SeqCst);
        theirs.wake();
    }

    #[test]
    fn a_request_is_taken_and_answered() {
        let (channel, theirs, _socket) = channel();
        let server = channel.clone();
        let thread = std::thread::spawn(move || {
            let mut packet = [0; MESSAGE_BYTES_MAX];
            let asked = server.next(&mut packet).expect("a request");
            let len = asked.packet.len();
            assert!(asked.is_in_mailbox);
            server.answer(&Reply { result: 9, ..Reply::default() }, b"bytes");
            len
        });
        ask(&theirs, 5);
        while theirs.word().load(SeqCst) == ASKED {
            theirs.sleep_while(ASKED);
        }
        assert_eq!(theirs.word().load(SeqCst), ANSWERED);
        let mut reply = [0; size_of::<Reply>() + 5];
        theirs.copy_out(REPLY_AT, &mut reply);
        let (head, bytes) = sys::take::<Reply>(&reply).expect("a reply");
        assert_eq!((head.result, bytes), (9, &b"bytes"[..]));
        assert_eq!(thread.join().expect("no panic"), size_of::<Request>() + 5);
    }

    #[test]
    fn a_request_that_says_more_bytes_than_there_are_is_none() {
        let (channel, theirs, _socket) = channel();
        let most = (MESSAGE_BYTES_MAX - size_of::<Request>()) as u32;
        for (said, taken) in [(most, MESSAGE_BYTES_MAX), (most + 1, 0), (u32::MAX, 0)] {
            ask(&theirs, said);
            let mut packet = [0; MESSAGE_BYTES_MAX];
            assert_eq!(channel.next(&mut packet).expect("something").packet.len(), taken, "{said}");
        }
    }

    #[test]
    fn threads_of_both_sides_wake_at_the_end() {
        let (channel, theirs, _socket) = channel();
        let server = channel.clone();
        let serving = std::thread::spawn(move || server.next(&mut [0; MESSAGE_BYTES_MAX]).is_none());
        let asking = std::thread::spawn(move || {
            while theirs.word().load(SeqCst) != ENDED {
                theirs.sleep_while(FREE);
            }
        });
        channel.end();
        assert!(serving.join().expect("no panic"));
        asking.join().expect("no panic");
        assert!(channel.next(&mut [0; MESSAGE_BYTES_MAX]).is_none(), "it stays ended");
    }
}
