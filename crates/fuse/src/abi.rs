//! The kernel's words: operation numbers, flags and layouts of `linux/fuse.h`, as far as they are used.
//!
//! Nothing of it is laid over memory: requests are read field by field with [`Args`], replies are
//! written field by field into an [`Out`], all in the byte order of the machine (fuse(4)).

use crate::kernel_cache::Version;
use crate::nodes;
use std::ptr::NonNull;

/// Major version of the protocol.
pub const MAJOR: u32 = 7;

/// The oldest minor version spoken: Linux 5.4, the first with everything a mount relies on.
pub const MINOR_MIN: u32 = 31;

/// The newest minor version whose layouts are known here: Linux 6.18.
pub const MINOR_MAX: u32 = 45;

/// Bytes before every request.
pub const IN_HEADER_BYTES: usize = 40;

/// Bytes before every reply.
pub const OUT_HEADER_BYTES: usize = 16;

/// Operation numbers.
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const TMPFILE: u32 = 51;
}

/// Features that both ends agree on at the start: bits of `fuse_init_in` and `fuse_init_out`, `flags2` above `flags`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come by queues of io_uring(7), too: Linux 6.14, where root has switched it on.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Which attributes `SETATTR` sets.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// What a `GETATTR` says of itself.
pub mod getattr {
    /// It comes with the handle of an open file.
    pub const FH: u32 = 1 << 0;
}

/// Flags of a write.
pub mod write {
    /// The server is to take set-user-id and set-group-id from the file.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// How an open file is treated by the kernel.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What a request for a lock is about.
pub mod lk {
    /// The whole file, for flock(2).
    pub const FLOCK: u32 = 1 << 0;
    /// Last byte of a lock that reaches to the end of the file.
    pub const END: u64 = i64::MAX as u64;
}

/// Messages that answer no request; they stand where a reply has its error.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
}

/// What stands before every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole request.
    pub len: u32,
    /// Which operation.
    pub opcode: u32,
    /// Number that the reply repeats.
    pub unique: u64,
    /// Inode it is about, by its own number.
    pub node: u64,
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Process of the caller; 0 where it has no number here.
    pub pid: u32,
}

/// A request that does not have the layout it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The unread rest of a request; every step is checked against its end.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a>(pub &'a [u8]);

impl<'a> Args<'a> {
    /// The next bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Skips bytes.
    pub fn skip(&mut self, count: usize) -> Result<(), Malformed> {
        self.bytes(count).map(drop)
    }

    /// The next number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_ne_bytes(self.bytes(4)?.try_into().map_err(|_| Malformed)?))
    }

    /// The next number of 64 bits.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_ne_bytes(self.bytes(8)?.try_into().map_err(|_| Malformed)?))
    }

    /// The next inode: its own number, not the kernel's.
    pub fn node(&mut self) -> Result<u64, Malformed> {
        self.u64().map(nodes::ino)
    }

    /// The next string, without the NUL that ends it.
    pub fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let text = self.bytes(end)?;
        self.skip(1)?;
        Ok(text)
    }
}

/// Takes a request apart: what stands before it, and the rest of it.
pub fn split(message: &[u8]) -> Result<(Header, Args<'_>), Malformed> {
    let mut args = Args(message);
    let header = Header {
        len: args.u32()?,
        opcode: args.u32()?,
        unique: args.u64()?,
        node: args.node()?,
        uid: args.u32()?,
        gid: args.u32()?,
        pid: args.u32()?,
    };
    let extension_words = args.u32()? & 0xffff;
    if header.len as usize != message.len() {
        return Err(Malformed);
    }
    // Extensions stand behind the arguments; none is asked for at the start, so there should be none.
    let extension = 8 * extension_words as usize;
    let length = args.0.len().checked_sub(extension).ok_or(Malformed)?;
    Ok((header, Args(&args.0[..length])))
}

/// What stands before a reply of `payload` bytes; `error` is 0 or a negative error number.
pub fn out_header(unique: u64, error: i32, payload: usize) -> [u8; OUT_HEADER_BYTES] {
    let mut header = [0; OUT_HEADER_BYTES];
    let len = u32::try_from(OUT_HEADER_BYTES + payload).expect("a reply is no longer than a request may ask for");
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Bytes of a page of memory.
pub const PAGE_BYTES: usize = 4096;

/// What stands before the data of a write: its headers.
const BEFORE_DATA_BYTES: usize = 80;

/// Memory in which one byte stands at the beginning of a page: the kernel copies page by page, and does
/// half the work where its pages meet ours.
struct Paged {
    bytes: Box<[u8]>,
    /// Where there are the bytes before that one, and from there on those that were asked for.
    start: usize,
}

impl Paged {
    fn new(before: usize, capacity: usize) -> Paged {
        let bytes = vec![0; capacity + PAGE_BYTES].into_boxed_slice();
        let unaligned = (bytes.as_ptr().addr() + before) % PAGE_BYTES;
        Paged { bytes, start: (PAGE_BYTES - unaligned) % PAGE_BYTES }
    }
}

/// Memory for requests.
pub struct Room {
    memory: Paged,
    capacity: usize,
}

impl Room {
    /// For requests of up to `capacity` bytes.
    pub fn new(capacity: usize) -> Room {
        Room { memory: Paged::new(BEFORE_DATA_BYTES, capacity), capacity }
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.memory.start..][..self.capacity]
    }
}

/// A reply in the making, in memory that is used again for the next one.
pub struct Out {
    memory: Paged,
    /// Other memory in which the bytes behind the header are made, and how many it has room for.
    lent: Option<(NonNull<u8>, usize)>,
    capacity: usize,
    len: usize,
    /// Files whose attributes are in it.
    pub versions: Vec<Version>,
}

impl Out {
    /// Room for `capacity` bytes behind the header.
    pub fn new(capacity: usize) -> Out {
        let memory = Paged::new(OUT_HEADER_BYTES, OUT_HEADER_BYTES + capacity);
        Out { memory, lent: None, capacity, len: 0, versions: Vec::new() }
    }

    /// Begins anew, in its own memory.
    pub fn clear(&mut self) {
        self.lent = None;
        self.len = 0;
        self.versions.clear();
    }

    /// Begins anew, in other memory until [`Out::clear`].
    ///
    /// # Safety
    /// Until then no other reference reaches the `capacity` bytes from `memory` on, which stay where they are, except
    /// after the reply was sent: from then on this must not be read or written.
    pub unsafe fn lend(&mut self, memory: NonNull<u8>, capacity: usize) {
        self.clear();
        self.lent = Some((memory, capacity));
    }

    /// Whether it is made in memory that was lent.
    pub fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// The bytes written so far.
    pub fn written(&self) -> &[u8] {
        match self.lent {
            // SAFETY: the lender vouches for the memory; no more than its capacity was written.
            Some((memory, _)) => unsafe { std::slice::from_raw_parts(memory.as_ptr(), self.len) },
            None => &self.memory.bytes[self.memory.start + OUT_HEADER_BYTES..][..self.len],
        }
    }

    /// The same as the answer to request `unique`, with what stands before it.
    ///
    /// # Panics
    /// If it is made in memory that was lent, where nothing can stand before it.
    pub fn reply(&mut self, unique: u64) -> &[u8] {
        assert!(!self.is_lent(), "what is sent in one piece is made in one piece");
        let reply = &mut self.memory.bytes[self.memory.start..][..OUT_HEADER_BYTES + self.len];
        reply[..OUT_HEADER_BYTES].copy_from_slice(&out_header(unique, 0, self.len));
        reply
    }

    /// How many bytes were written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If they do not fit: a caller with an unknown number of bytes asks for [`Out::room`] first.
    pub fn put(&mut self, bytes: &[u8]) {
        self.left()[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends a number of 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    /// Appends a number of 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_ne_bytes());
    }

    /// Appends zeros.
    pub fn zeros(&mut self, count: usize) {
        self.left()[..count].fill(0);
        self.len += count;
    }

    fn left(&mut self) -> &mut [u8] {
        let all = match self.lent {
            // SAFETY: the lender vouches for the memory.
            Some((memory, capacity)) => unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), capacity) },
            None => &mut self.memory.bytes[self.memory.start + OUT_HEADER_BYTES..][..self.capacity],
        };
        &mut all[self.len..]
    }

    /// Memory for up to `count` bytes that another function fills in; [`Out::filled`] follows.
    pub fn room(&mut self, count: usize) -> Option<&mut [u8]> {
        self.left().get_mut(..count)
    }

    /// So many bytes of [`Out::room`] are to be sent.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.left().len(), "no more is sent than there is room for");
        self.len += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as the kernel lays it out.
    fn message(opcode: u32, extension_words: u32, rest: &[u8]) -> Vec<u8> {
        let mut out = Out::new(IN_HEADER_BYTES + rest.len());
        out.u32((IN_HEADER_BYTES + rest.len()) as u32);
        out.u32(opcode);
        out.u64(77);
        out.u64(1);
        for value in [1000, 100, 42, extension_words] {
            out.u32(value);
        }
        out.put(rest);
        out.written().to_vec()
    }

    #[test]
    fn a_request_is_taken_apart() {
        let bytes = message(op::LOOKUP, 0, b"name\0");
        let (header, mut args) = split(&bytes).expect("well formed");
        assert_eq!((header.opcode, header.unique, header.node), (op::LOOKUP, 77, 1));
        assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 42));
        assert_eq!((args.text(), args.0), (Ok(&b"name"[..]), &b""[..]));
    }

    #[test]
    fn no_request_is_read_beyond_its_end() {
        let whole = message(op::RENAME, 0, b"12345678old\0new\0");
        for end in 0..whole.len() {
            assert_eq!(split(&whole[..end]).map(drop), Err(Malformed), "{end} bytes of a longer request");
        }
        let bytes = message(op::LOOKUP, 0, b"no end");
        assert_eq!(split(&bytes).expect("a header").1.text(), Err(Malformed));
        let bytes = message(op::GETATTR, 0, b"1234567");
        assert_eq!(split(&bytes).expect("a header").1.u64(), Err(Malformed));
        assert!(split(&message(op::LOOKUP, 2, b"12345678")).is_err(), "an extension longer than the request");
    }

    #[test]
    fn extensions_are_no_arguments() {
        let bytes = message(op::LOOKUP, 1, b"name\0\0\0\0extended");
        assert_eq!(split(&bytes).expect("well formed").1.0, b"name\0\0\0\0");
    }

    #[test]
    fn a_reply_tells_its_length() {
        assert_eq!(out_header(5, -2, 8)[..4], 24u32.to_ne_bytes());
        let mut out = Out::new(16);
        out.u64(1);
        assert!(out.room(9).is_none());
        out.room(8).expect("room")[..3].copy_from_slice(b"abc");
        out.filled(3);
        assert_eq!(out.written()[8..], *b"abc");
        assert_eq!(out.reply(5), [&out_header(5, 0, 11)[..], &1u64.to_ne_bytes(), b"abc"].concat());
    }

    #[test]
    fn a_reply_is_made_in_memory_that_was_lent_until_the_next_one() {
        let mut page = [0u8; 8];
        let mut out = Out::new(16);
        out.u32(7);
        // SAFETY: nothing else uses the array until the reply is cleared.
        unsafe { out.lend(NonNull::from(&mut page).cast(), 8) };
        out.u32(5);
        assert!(out.room(5).is_none() && out.is_lent());
        out.room(4).expect("room")[..2].copy_from_slice(b"ab");
        out.filled(2);
        assert_eq!(out.written(), [&5u32.to_ne_bytes()[..], b"ab"].concat());
        out.clear();
        out.u32(9);
        assert_eq!(out.written(), 9u32.to_ne_bytes());
        assert_eq!(page[..4], 5u32.to_ne_bytes());
    }

    #[test]
    fn data_stand_at_the_beginning_of_a_page() {
        for capacity in [100, 5000, 1 << 20] {
            assert_eq!(Out::new(capacity).written().as_ptr().addr() % PAGE_BYTES, 0);
            let mut room = Room::new(capacity);
            assert_eq!((room.bytes().as_ptr().addr() + BEFORE_DATA_BYTES) % PAGE_BYTES, 0);
            assert_eq!(room.bytes().len(), capacity);
        }
    }
}
