//! Memory files, futexes, and what else the kernel gives for shared memory.
//!
//! It alone knows how memory is shared with another process and the system calls for it, each
//! behind a safe function. What lies in the memory it does not know.

use std::ffi::{CStr, c_int, c_long};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use crate::memory_file;

/// The file system that memory files are on (linux/magic.h); huge pages have another, on which
/// a page that cannot be had kills the process that touches it.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// With these no process can make the file shorter, and with it take memory away that another
/// has mapped.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// With this one, too, no process can map the file for writing anew, or write to it.
const READERS_ONLY: c_int = libc::F_SEAL_FUTURE_WRITE;

/// A memory file mapped into this process and others; unmapped when dropped.
pub(super) struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: words are reached as atomics only, bytes by copying in and out; see `copy_in`.
unsafe impl Sync for Region {}

const WRITABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the memory file {what}"))
}

fn check(returned: c_int) -> Result<c_int> {
    if returned < 0 { Err(Error::last_os_error()) } else { Ok(returned) }
}

impl Region {
    /// Makes a memory file whose size is fixed for good, full of zeros.
    pub(super) fn create(name: &CStr, bytes: usize) -> Result<(Self, OwnedFd)> {
        Self::create_sealed(name, bytes, SEALS)
    }

    /// The same; this region is the only one through which it can ever be written.
    pub(super) fn create_for_readers(name: &CStr, bytes: usize) -> Result<(Self, OwnedFd)> {
        Self::create_sealed(name, bytes, SEALS | READERS_ONLY)
    }

    fn create_sealed(name: &CStr, bytes: usize, seals: c_int) -> Result<(Self, OwnedFd)> {
        let file = memory_file::create(name)?;
        let fd = file.as_raw_fd();
        let length = libc::off_t::try_from(bytes).map_err(|_| Error::from_raw_os_error(libc::EFBIG))?;
        // SAFETY: takes no pointer.
        check(unsafe { libc::ftruncate(fd, length) })?;
        // Mapped first: afterwards it may be too late.
        let region = Self::map(&file, bytes, WRITABLE)?;
        // SAFETY: takes no pointer.
        check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) })?;
        Ok((region, file))
    }

    /// Maps a memory file that another process made, if it is one that can be touched without
    /// danger: sealed, of the size that is expected, and of ordinary pages.
    pub(super) fn open(file: &OwnedFd, bytes: usize) -> Result<Self> {
        if Self::checked_bytes(file)? != bytes {
            return Err(refused("has another size than was agreed on"));
        }
        Self::map(file, bytes, WRITABLE)
    }

    /// The same to read only, of any size up to `bytes_max`. Nothing may be stored in it.
    pub(super) fn open_to_read(file: &OwnedFd, bytes_max: usize) -> Result<Self> {
        let bytes = Self::checked_bytes(file)?;
        if bytes == 0 || bytes > bytes_max {
            return Err(refused("has an impossible size"));
        }
        Self::map(file, bytes, libc::PROT_READ)
    }

    /// The size of a file that can be touched without danger.
    fn checked_bytes(file: &OwnedFd) -> Result<usize> {
        let fd = file.as_raw_fd();
        // SAFETY: takes no pointer.
        let seals = check(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) })?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(refused("is not sealed against shrinking"));
        }
        // SAFETY: all-zero bytes are a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is live and as large as the kernel expects.
        check(unsafe { libc::fstat(fd, &raw mut stat) })?;
        // SAFETY: all-zero bytes are a valid statfs.
        let mut place: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: `place` is live and as large as the kernel expects.
        check(unsafe { libc::fstatfs(fd, &raw mut place) })?;
        if place.f_type != TMPFS_MAGIC {
            return Err(refused("does not lie in ordinary memory"));
        }
        usize::try_from(stat.st_size).map_err(|_| refused("has an impossible size"))
    }

    fn map(file: &OwnedFd, bytes: usize, access: c_int) -> Result<Self> {
        let kind = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: without MAP_FIXED the kernel picks addresses that nothing uses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address zero unasked");
        Ok(Region { start, bytes })
    }

    /// Its size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "the range lies in the region");
        // SAFETY: just checked that the result is within the mapping, which is one object.
        unsafe { self.start.add(offset) }.as_ptr()
    }

    pub(super) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "words are aligned");
        // SAFETY: aligned (a mapping begins at a page), mapped for as long as `self` lives, and
        // every process reaches the word as an atomic only.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    pub(super) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "words are aligned");
        // SAFETY: as for `word32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// `count` words from `offset` on.
    pub(super) fn words64(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8), "words are aligned");
        let bytes = count.checked_mul(8).expect("a region is not that large");
        let start: *const AtomicU64 = self.at(offset, bytes).cast();
        // SAFETY: as for `word32`: aligned, mapped for as long as `self` lives, and atomics only.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Copies `bytes` into the region. The protocol of the ring leaves the range to this process;
    /// if the other does not keep to it, the range holds a mixture and nothing else happens.
    pub(super) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the target is mapped and no Rust object; the source cannot overlap it, since
        // nothing gives out references into a region.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Appends `bytes` of the region to `vec`, which must have the room. The other process may have put any values
    /// there.
    pub(super) fn copy_out(&self, offset: usize, vec: &mut Vec<u8>, bytes: usize) {
        let from = self.at(offset, bytes);
        let room = &mut vec.spare_capacity_mut()[..bytes];
        // SAFETY: the source is mapped, the target is exclusively borrowed and as long.
        unsafe { std::ptr::copy_nonoverlapping(from, room.as_mut_ptr().cast(), bytes) };
        let len = vec.len() + bytes;
        // SAFETY: the `bytes` behind the old end were just filled, within capacity.
        unsafe { vec.set_len(len) };
    }

    /// Copies from the region into `to`.
    pub(super) fn copy_to(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: the source is mapped, the target is exclusively borrowed and as long.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and references into it do not outlive `self`.
        let unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        assert!(unmapped == 0, "a mapping can be unmapped");
    }
}

/// Sleeps while the word has the value `seen`, until it is woken; `false` if `limit` has passed.
pub(super) fn futex_wait(word: &AtomicU32, seen: u32, limit: Duration) -> bool {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: c_long::from(limit.subsec_nanos().cast_signed()),
    };
    // SAFETY: the word and the timespec are live. However else the call ends, it is a reason to
    // look again.
    let ended = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
    ended == 0 || Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes the threads that sleep at the word.
pub(super) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is live.
    let _woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// Makes a readable event of an eventfd that another process holds too. What that process has done
/// to its counter is its own affair: if it is full, there is an event to be had already.
pub(super) fn wake_eventfd(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: the eight bytes written are those of `one`.
    let _written = unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
}

/// File descriptors that one message carries at most.
const FDS_MAX: usize = 5;

/// Room for the control part of a message with [`FDS_MAX`] descriptors, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn message(slice: &mut libc::iovec, control: &mut Control, control_bytes: usize) -> libc::msghdr {
    assert!(control_bytes <= control.0.len(), "there is room for the descriptors");
    // SAFETY: all-zero bytes are a msghdr without address, data and control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = slice;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control_bytes as _;
    message
}

/// Sends `bytes` and, unless there are none, descriptors over a local socket, at once or not at all.
pub(super) fn send_fds(socket: &OwnedFd, bytes: &[u8], fds: &[&OwnedFd]) -> Result<()> {
    assert!(fds.len() <= FDS_MAX, "a message carries no more");
    let fds_bytes = (fds.len() * size_of::<c_int>()) as u32;
    let mut slice = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: computes a length.
    let control_bytes = if fds.is_empty() { 0 } else { unsafe { libc::CMSG_SPACE(fds_bytes) as usize } };
    let message = message(&mut slice, &mut control, control_bytes);
    if !fds.is_empty() {
        // SAFETY: the control part has room for one header with the descriptors, as just computed.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(fds_bytes) as _;
            let data: *mut c_int = libc::CMSG_DATA(header).cast();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message points at live parts of the stated lengths, which sendmsg only reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::WriteZero, "the socket took a part of a short message")),
        Err(_) => Err(Error::last_os_error()),
    }
}

/// Receives once, with what descriptors come along.
pub(super) fn receive_fds(socket: &OwnedFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut slice = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    let control_bytes = control.0.len();
    let mut message = message(&mut slice, &mut control, control_bytes);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points at live, exclusively borrowed parts of the stated lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| Error::last_os_error())?;
    let mut fds = Vec::new();
    // SAFETY: the kernel filled in the control part, whose headers these macros walk along; each
    // descriptor in it was just made for this process, so that no other code owns it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data: *const c_int = libc::CMSG_DATA(header).cast();
                for index in 0..bytes / size_of::<c_int>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok((got, fds))
}

/// Looks at what waits on a socket without taking it: how many bytes were put into `bytes`.
pub(super) fn peek(socket: &OwnedFd, bytes: &mut [u8]) -> Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the slice is live, exclusively borrowed and as long as stated.
    let got = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    usize::try_from(got).map_err(|_| Error::last_os_error())
}

/// Whether the other end of a connected socket, over which nothing is sent any more, is still there.
pub(in super::super) fn is_held(socket: &OwnedFd) -> bool {
    let mut asked = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
    // SAFETY: `asked` is live, and the one that is announced.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 0 }
}

/// The effective user of this process.
pub(super) fn effective_user() -> u32 {
    // SAFETY: takes no pointer and never fails.
    unsafe { libc::geteuid() }
}
