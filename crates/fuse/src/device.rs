//! The device `/dev/fuse` of one mount: requests come out of it, replies go into it.

use crate::abi::{self, OUT_HEADER_BYTES, notify};
use crate::nodes;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// The device's path.
pub const PATH: &str = "/dev/fuse";

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`.
const IOC_CLONE: libc::c_ulong = 0x8004_e500;

/// One descriptor of a mount's device. A mount may have several: a request is answered through the
/// one from which it was read.
pub struct Device(File);

/// What reading came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing that lasted: to be tried again.
    Nothing,
    /// The mount is no more.
    End,
}

/// What became of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel has it.
    Taken,
    /// No program waits for it any more: the caller was killed, or the mount is gone.
    Unwanted,
    /// The kernel does not understand it.
    Refused,
}

impl Device {
    /// Opens the device; nothing is mounted yet.
    ///
    /// # Errors
    /// What the system said.
    pub fn open() -> io::Result<Device> {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(PATH).map(Device)
    }

    /// Takes over the device of a mount that fusermount3(1) has made.
    pub fn adopt(device: OwnedFd) -> Device {
        Device(File::from(device))
    }

    /// Another descriptor of the same mount, with a list of its own of requests that wait for a reply.
    ///
    /// # Errors
    /// What the system said.
    pub fn clone_of(other: &Device) -> io::Result<Device> {
        let fresh = Device::open()?;
        let number = other.descriptor() as u32;
        // SAFETY: the call reads one u32 through the pointer, which lives until it returns.
        let done = unsafe { libc::ioctl(fresh.descriptor(), IOC_CLONE, &number) };
        if done == 0 { Ok(fresh) } else { Err(io::Error::last_os_error()) }
    }

    /// The descriptor's number, as mount(2) wants it.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Blocks until the kernel has a request, and reads it.
    ///
    /// # Errors
    /// What the system said and is neither a reason to try again nor the end of the mount.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Came> {
        match (&self.0).read(buffer) {
            Ok(0) => Ok(Came::Nothing),
            Ok(count) => Ok(Came::Request(count)),
            Err(error) => match error.raw_os_error() {
                // ENOENT: its caller was interrupted before it was read.
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => Ok(Came::Nothing),
                // ECONNABORTED: an administrator has ended the connection by way of /sys/fs/fuse.
                Some(libc::ENODEV | libc::ECONNABORTED) => Ok(Came::End),
                _ => Err(error),
            },
        }
    }

    /// Sends one reply or notification, header and payload in one piece: several pieces cost the kernel more.
    pub fn send(&self, message: &[u8]) -> Sent {
        loop {
            match (&self.0).write(message) {
                Ok(count) if count == message.len() => return Sent::Taken,
                // The kernel takes a reply whole or not at all.
                Ok(_) => return Sent::Refused,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM) => return Sent::Unwanted,
                    _ => return Sent::Refused,
                },
            }
        }
    }

    /// Another descriptor of the same open file description (dup(2)).
    ///
    /// # Errors
    /// What the system said.
    pub fn duplicate(&self) -> io::Result<Device> {
        self.0.try_clone().map(Device)
    }

    /// Has the kernel forget the attributes of an inode, and nothing else. It neither waits nor sends
    /// a request, provided that the kernel does not drop the inode meanwhile: a program that waits
    /// for an open of it prevents that, for one.
    pub fn forget_attrs(&self, ino: u64) -> Sent {
        // A negative offset leaves the pages alone.
        self.forget(ino, -1)
    }

    /// Has the kernel forget the attributes and all pages of an inode. Blocks until all of these pages are unlocked; no
    /// signal ends that wait.
    pub fn forget_pages(&self, ino: u64) -> Sent {
        self.forget(ino, 0)
    }

    fn forget(&self, ino: u64, from: i64) -> Sent {
        let mut message = [0; OUT_HEADER_BYTES + 24];
        message[..OUT_HEADER_BYTES].copy_from_slice(&abi::out_header(0, notify::INVAL_INODE, 24));
        let (node, offset) = message[OUT_HEADER_BYTES..].split_at_mut(8);
        node.copy_from_slice(&nodes::node(ino).to_ne_bytes());
        // A length of 0 reaches to the end.
        offset[..8].copy_from_slice(&from.to_ne_bytes());
        // The kernel may not know the inode (any more): then there is nothing to forget.
        self.send(&message)
    }

    /// Has the kernel send a request to this process, on behalf of the calling thread: its answer when it is asked for
    /// 0 bytes of the pages that it has of this inode, which must be a regular file (Linux 6.18 refuses others).
    /// `unique` becomes the request's number. Does not wait.
    pub fn ask_for_request(&self, unique: u64, ino: u64) -> Sent {
        let mut message = [0; OUT_HEADER_BYTES + 32];
        message[..OUT_HEADER_BYTES].copy_from_slice(&abi::out_header(0, notify::RETRIEVE, 32));
        let fields = [unique, nodes::node(ino), 0, 0].map(u64::to_ne_bytes);
        message[OUT_HEADER_BYTES..].copy_from_slice(&fields.concat());
        self.send(&message)
    }

    /// Puts one byte of a file into the kernel's page of it, so that the kernel takes the file for at least `offset + 1`
    /// bytes long. Blocks until that page is unlocked; no signal ends that wait.
    pub fn store(&self, ino: u64, offset: u64, byte: u8) -> Sent {
        const HEAD_BYTES: usize = OUT_HEADER_BYTES + 24;
        let mut message = [0; HEAD_BYTES + 1];
        message[..OUT_HEADER_BYTES].copy_from_slice(&abi::out_header(0, notify::STORE, 25));
        let fields =
            [&nodes::node(ino).to_ne_bytes()[..], &offset.to_ne_bytes(), &1u32.to_ne_bytes(), &[0; 4], &[byte]];
        message[OUT_HEADER_BYTES..].copy_from_slice(&fields.concat());
        self.send(&message)
    }
}

/// Makes an owned descriptor of a number that was received.
///
/// # Safety
/// `number` must be an open descriptor that no other value owns.
pub unsafe fn own(number: RawFd) -> OwnedFd {
    // SAFETY: the caller vouches for it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// A device, and the socket that stands for its kernel.
    fn device() -> (Device, UnixDatagram) {
        let (ours, kernel) = UnixDatagram::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("a socket of ours");
        (Device::adopt(OwnedFd::from(ours)), kernel)
    }

    #[test]
    fn the_kernel_is_told_to_forget_attributes_without_pages_or_with_them() {
        let (device, kernel) = device();
        for (forget, offset) in [(Device::forget_attrs as fn(&Device, u64) -> Sent, -1i64), (Device::forget_pages, 0)] {
            assert_eq!(forget(&device, 5), Sent::Taken);
            let mut message = [0; 64];
            let count = kernel.recv(&mut message).expect("it was told");
            let expected = [
                &(OUT_HEADER_BYTES as u32 + 24).to_ne_bytes()[..],
                &notify::INVAL_INODE.to_ne_bytes(),
                &0u64.to_ne_bytes(),
                &nodes::node(5).to_ne_bytes(),
                &offset.to_ne_bytes(),
                &0u64.to_ne_bytes(),
            ];
            assert_eq!(message[..count], expected.concat(), "offset {offset}");
        }
    }

    #[test]
    fn the_kernel_is_given_one_byte_of_a_file() {
        let (device, kernel) = device();
        assert_eq!(device.store(5, 4097, b'x'), Sent::Taken);
        let mut message = [0; 64];
        let count = kernel.recv(&mut message).expect("it was told");
        let expected = [
            &(OUT_HEADER_BYTES as u32 + 25).to_ne_bytes()[..],
            &notify::STORE.to_ne_bytes(),
            &0u64.to_ne_bytes(),
            &nodes::node(5).to_ne_bytes(),
            &4097u64.to_ne_bytes(),
            &1u64.to_ne_bytes(),
            b"x",
        ];
        assert_eq!(message[..count], expected.concat());
    }

    #[test]
    fn the_kernel_is_asked_for_a_request() {
        let (device, kernel) = device();
        assert_eq!(device.ask_for_request(1 << 63, 5), Sent::Taken);
        let mut message = [0; 64];
        let count = kernel.recv(&mut message).expect("it was asked");
        let expected = [
            &(OUT_HEADER_BYTES as u32 + 32).to_ne_bytes()[..],
            &notify::RETRIEVE.to_ne_bytes(),
            &0u64.to_ne_bytes(),
            &(1u64 << 63).to_ne_bytes(),
            &nodes::node(5).to_ne_bytes(),
            &[0; 16],
        ];
        assert_eq!(message[..count], expected.concat());
    }

    #[test]
    fn a_read_that_brings_no_request_is_tried_again() {
        let (device, kernel) = device();
        let mut buffer = [0; 16];
        assert_eq!(device.receive(&mut buffer).expect("EAGAIN is no failure"), Came::Nothing);
        kernel.send(b"").expect("it is taken");
        assert_eq!(device.receive(&mut buffer).expect("it was read"), Came::Nothing);
        kernel.send(b"request").expect("it is taken");
        assert_eq!(device.receive(&mut buffer).expect("it was read"), Came::Request(7));
    }

    #[test]
    fn a_reply_that_the_kernel_does_not_take_is_refused() {
        let (device, kernel) = device();
        drop(kernel);
        assert_eq!(device.send(b"reply"), Sent::Refused);
    }
}
