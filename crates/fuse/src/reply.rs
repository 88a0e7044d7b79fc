//! The duty to answer: the worker that takes a request off the device holds one [`Reply`], and a program
//! waits until it is used. One that is dropped unused answers with an error, so none is ever lost.

use crate::abi::{self, Out};
use crate::device::{Device, Sent};
use crate::queue::Held;
use std::sync::Arc;

/// An error number, positive as in errno(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<abi::Malformed> for Errno {
    fn from(_: abi::Malformed) -> Errno {
        Errno(libc::EPROTO)
    }
}

/// Where a request has come from and its answer goes to.
enum Way {
    Device(Arc<Device>),
    /// A buffer of a queue; absent when it was answered.
    Queue(Option<Held>),
}

/// The answer that is owed to one request.
pub struct Reply {
    way: Way,
    unique: u64,
    is_owed: bool,
    watch: Option<Box<Watch>>,
}

/// Is told an answer: its bytes, or its error number.
pub type Watch = dyn FnOnce(Result<&[u8], i32>) + Send;

impl Reply {
    /// For the request `unique`, which was read from `device`.
    pub fn new(device: Arc<Device>, unique: u64) -> Reply {
        Reply { way: Way::Device(device), unique, is_owed: true, watch: None }
    }

    /// For the request `unique`, which came by a queue.
    pub fn of_queue(held: Held, unique: u64) -> Reply {
        Reply { way: Way::Queue(Some(held)), unique, is_owed: true, watch: None }
    }

    /// Whether the answer may wait without bound for the deeds of other programs: requests by which these do them must
    /// be able to come.
    pub fn may_wait(&self) -> bool {
        match &self.way {
            Way::Queue(Some(held)) => held.may_wait(),
            _ => true,
        }
    }

    /// Whether the kernel may have left out an interruption of the request, if it came before the request was read:
    /// Linux up to 6.18 at least does so for requests that come by queues.
    pub fn may_miss_interruptions(&self) -> bool {
        matches!(self.way, Way::Queue(_))
    }

    /// Has `watch` told the answer, before the kernel gets it: then what the kernel asks because of the answer comes later.
    pub fn watched(mut self, watch: Option<Box<Watch>>) -> Reply {
        self.watch = watch;
        self
    }

    /// Answers with bytes. Returns whether the kernel has taken them.
    pub fn send(mut self, out: &mut Out) -> bool {
        self.is_owed = false;
        self.tell(Ok(out.written()));
        let sent = match &mut self.way {
            Way::Device(device) => device.send(out.reply(self.unique)),
            Way::Queue(held) => held.take().map_or(Sent::Unwanted, |held| held.send(self.unique, out)),
        };
        self.is_taken(sent)
    }

    /// Answers that it is done, or why not. Returns whether the kernel has taken it.
    pub fn send_outcome(mut self, outcome: Result<(), Errno>) -> bool {
        self.is_owed = false;
        self.tell(outcome.map(|()| &[][..]).map_err(|errno| errno.0));
        let sent = self.write(outcome.map_or_else(|errno| errno.0, |()| 0));
        self.is_taken(sent)
    }

    fn tell(&mut self, answer: Result<&[u8], i32>) {
        if let Some(watch) = self.watch.take() {
            watch(answer);
        }
    }

    fn is_taken(&mut self, sent: Sent) -> bool {
        match sent {
            Sent::Taken => true,
            Sent::Unwanted => false,
            Sent::Refused => {
                // The caller still waits. It must not do so for ever.
                self.write(libc::EIO);
                false
            }
        }
    }

    /// No answer is expected.
    pub fn not_owed(mut self) {
        self.is_owed = false;
        // A buffer goes back in any case.
        if matches!(self.way, Way::Queue(_)) {
            self.write(0);
        }
    }

    fn write(&mut self, errno: i32) -> Sent {
        match &mut self.way {
            Way::Device(device) => device.send(&abi::out_header(self.unique, -errno, 0)),
            Way::Queue(held) => held.take().map_or(Sent::Unwanted, |held| held.answer(self.unique, -errno, 0)),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.is_owed {
            self.tell(Err(libc::EIO));
            self.write(libc::EIO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    /// A device whose other end the test reads.
    fn device() -> (Arc<Device>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        (Arc::new(Device::adopt(OwnedFd::from(ours))), theirs)
    }

    fn read(mut from: UnixStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("it can be read");
        bytes
    }

    #[test]
    fn a_request_is_answered_once_even_if_its_reply_is_dropped() {
        let (one, read_one) = device();
        drop(Reply::new(one, 9));
        assert_eq!(read(read_one), abi::out_header(9, -libc::EIO, 0));
        let (two, read_two) = device();
        let mut out = Out::new(3);
        out.put(b"abc");
        assert!(Reply::new(two, 10).send(&mut out));
        assert_eq!(read(read_two), [&abi::out_header(10, 0, 3)[..], b"abc"].concat());
        let (three, read_three) = device();
        Reply::new(three, 11).not_owed();
        assert_eq!(read(read_three), b"");
    }
}
