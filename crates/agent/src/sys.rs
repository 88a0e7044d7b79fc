//! The system calls of the agent that the standard library does not wrap, each with its proof.

use aze_calls::indexes::{ResolvedDirectory, SharedIndexes};
use aze_calls::mailbox::{MAILBOX_BYTES, WORD_AT};
use aze_calls::shared::{BYTES, WORDS};
use aze_calls::{CHANNEL_BYTES, Hello, Kept, Reply, Request, Stat, WINDOW_BYTES, Welcome};
use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Longest path of a local socket, in bytes, without the NUL at its end (unix(7)).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Channels that may wait to be taken.
const BACKLOG: i32 = 128;

/// Bytes of a description's pipe: the least that the system gives. No data pass through it, and its room counts against
/// what the user's pipes may have together (pipe(7)).
const PIPE_BYTES: i32 = 4096;

/// Structures of numbers without gaps: every combination of bytes is a value.
pub trait Plain: Copy {}

impl Plain for Hello {}
impl Plain for Welcome {}
impl Plain for Request {}
impl Plain for Reply {}
impl Plain for Kept {}
impl Plain for Stat {}
impl Plain for SharedIndexes {}
impl Plain for ResolvedDirectory {}
impl Plain for u32 {}
impl Plain for u16 {}
impl Plain for libc::flock {}
impl Plain for libc::statfs {}
impl Plain for [libc::timespec; 2] {}

/// The first bytes as a structure; `None` if there are too few.
pub fn take<T: Plain>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    // SAFETY: there are as many bytes, which need no alignment, and every combination of them is a value (`Plain`).
    Some((unsafe { head.as_ptr().cast::<T>().read_unaligned() }, rest))
}

/// The bytes of a structure.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the structure has no gaps (those of flock(2) and statfs(2) were filled with zeros when it was made), so that all
    // of its bytes have a value; it is borrowed for as long as they are.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// A structure of zeros.
pub fn zeros<T: Plain>() -> T {
    // SAFETY: every combination of bytes is a value (`Plain`).
    unsafe { zeroed() }
}

fn done(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: i32) -> io::Result<OwnedFd> {
    let number = done(result)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Listens at a path, which must not be there.
///
/// # Errors
/// What the system said; a path longer than [`SOCKET_PATH_BYTES_MAX`].
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > SOCKET_PATH_BYTES_MAX {
        let text = format!("a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes, and this one {}", bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, text));
    }
    // SAFETY: socket(2) takes numbers.
    let socket = owned(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: an address is a family and bytes, for which zeros are a value.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` lives until the call returns and has `len` bytes.
    done(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    // SAFETY: listen(2) takes numbers.
    done(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// Makes a named pipe for this user alone (mkfifo(3)).
pub fn make_named_pipe(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` ends with a NUL and lives until the call returns.
    done(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).map(drop)
}

/// Takes the next channel; blocks until there is one.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the address of the other side is not asked for.
    owned(unsafe { libc::accept4(listener.as_raw_fd(), null_mut(), null_mut(), libc::SOCK_CLOEXEC) })
}

/// Process and user at the other end of a channel, as they were when it connected (`SO_PEERCRED` of unix(7)).
pub fn peer(channel: &OwnedFd) -> io::Result<(u32, u32)> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `who` and `len` live until the call returns, and `len` is the size of `who`.
    done(unsafe { libc::getsockopt(channel.as_raw_fd(), level, name, (&raw mut who).cast(), &raw mut len) })?;
    Ok((u32::try_from(who.pid).unwrap_or(0), who.uid))
}

/// The next packet of a channel; blocks until there is one. 0 when the other side has closed it, and for a packet that is
/// longer than `buffer`.
pub fn receive(channel: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the pointer and the length are those of `buffer`.
        let count =
            unsafe { libc::recv(channel.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC) };
        match usize::try_from(count) {
            Ok(count) => return Ok(if count > buffer.len() { 0 } else { count }),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
}

/// Sends one packet of two parts, and a descriptor with it. Blocks while the other side's buffer is full.
pub fn send(channel: &OwnedFd, parts: [&[u8]; 2], passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut vectors = parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // Room for one descriptor with its header, aligned as the header has to be.
    let mut control = [0u64; 4];
    // SAFETY: a message is pointers and lengths, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len());
    if let Some(passed) = passed {
        let bytes = size_of::<i32>() as u32;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: a computation with numbers.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: the message's room for control data is `control`, which is longer than a header.
        let header = unsafe { &mut *libc::CMSG_FIRSTHDR(&raw const message) };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: a computation with numbers.
        header.cmsg_len = unsafe { libc::CMSG_LEN(bytes) } as usize;
        // SAFETY: the data of the header lie within `control`.
        let data = unsafe { libc::CMSG_DATA(header) }.cast::<i32>();
        // SAFETY: there is room for one number; no alignment is needed.
        unsafe { data.write_unaligned(passed.as_raw_fd()) };
    }
    loop {
        // SAFETY: everything that the message points to lives until the call returns.
        let sent = unsafe { libc::sendmsg(channel.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        match sent {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ => return Ok(()),
        }
    }
}

/// Whether a process has ended, by its descriptor (pidfd_open(2)): no further descriptor is needed for it.
pub fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `asked` lives until the call returns.
    unsafe { libc::poll(&raw mut asked, 1, 0) > 0 }
}

/// Ends a channel, also where another process has a copy of it.
pub fn shut(channel: &OwnedFd) {
    // SAFETY: shutdown(2) takes numbers. One that has ended already is no matter.
    unsafe { libc::shutdown(channel.as_raw_fd(), libc::SHUT_RDWR) };
}

/// The memory that a channel's two sides share.
struct ChannelMemory(*mut u8);

// SAFETY: the memory belongs to no thread.
unsafe impl Send for ChannelMemory {}
// SAFETY: the window is reached through `&mut Window`, of which there is one; the mailbox by whole copies and an atomic word.
unsafe impl Sync for ChannelMemory {}

impl Drop for ChannelMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is of this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast(), CHANNEL_BYTES) };
    }
}

/// The part of a channel's memory in which data lie.
pub struct Window(Arc<ChannelMemory>);

/// The part in which requests and replies lie ([`aze_calls::mailbox`]).
#[derive(Clone)]
pub struct Mailbox(Arc<ChannelMemory>);

/// Makes the memory of a channel; gives also the descriptor by which the other side maps it.
///
/// # Errors
/// What the system said: EMFILE, ENOMEM.
pub fn channel_memory() -> io::Result<(Window, Mailbox, OwnedFd)> {
    let (at, descriptor) = mapped_file(c"aze-window", CHANNEL_BYTES)?;
    let memory = Arc::new(ChannelMemory(at));
    Ok((Window(memory.clone()), Mailbox(memory), descriptor))
}

/// Maps a new memory file; gives also the descriptor by which programs map it.
fn mapped_file(name: &CStr, bytes: usize) -> io::Result<(*mut u8, OwnedFd)> {
    let file = memory_file(name, 0)?;
    file.set_len(bytes as u64)?;
    // No program can take the memory away from under the others.
    seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
    let (rights, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe { libc::mmap(null_mut(), bytes, rights, how, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok((at.cast(), file.into())) }
}

impl Window {
    /// The first `len` bytes, at most [`WINDOW_BYTES`].
    pub fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: the mapping has that many bytes and lives as long as `self`, which is borrowed. The other side leaves them
        // alone between its request and the reply; a program that breaks this rule gets other bytes of its own making: they are
        // data of a file, by which nothing here is decided, and a server refuses those that do not match their checksums.
        unsafe { std::slice::from_raw_parts_mut(self.0.0, len.min(WINDOW_BYTES)) }
    }
}

impl Mailbox {
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= MAILBOX_BYTES && len <= MAILBOX_BYTES - at, "{len} bytes at {at} of a mailbox");
        // SAFETY: the mapping has as many bytes behind the window, as was just compared.
        unsafe { self.0.0.add(WINDOW_BYTES + at) }
    }

    /// Copies bytes out. The other side may change them meanwhile: what was copied is to be checked, and stays as it is.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        // SAFETY: `place` has compared the length; `to` is memory of this process alone.
        unsafe { std::ptr::copy_nonoverlapping(self.place(at, to.len()), to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes in.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        // SAFETY: as of `copy_out`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.place(at, from.len()), from.len()) }
    }

    /// The word.
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: it lies in the mapping, which lives as long as `self`, at the beginning of a page. The other side is in another
        // process, and reaches it by atomic instructions.
        unsafe { AtomicU32::from_ptr(self.place(WORD_AT, 4).cast()) }
    }

    /// Sleeps until a thread of either side wakes this one, unless the word is another one. It may wake for no reason.
    pub fn sleep_while(&self, word: u32) {
        let (at, wait) = (self.word().as_ptr(), libc::FUTEX_WAIT);
        // SAFETY: the word lives as long as `self`; without a limit the call reads nothing else.
        unsafe { libc::syscall(libc::SYS_futex, at, wait, word, null_mut::<libc::timespec>()) };
    }

    /// Wakes the threads of both sides that sleep here.
    pub fn wake(&self) {
        // SAFETY: the call takes an address and numbers.
        unsafe { libc::syscall(libc::SYS_futex, self.word().as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// The words that an agent shares with its programs ([`aze_calls::shared`]).
pub struct Words(*const AtomicU64);

// SAFETY: the memory belongs to no thread, and its words are atomic.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// New ones, all zero; gives also the descriptor by which programs map them.
    ///
    /// # Errors
    /// What the system said: EMFILE, ENOMEM.
    pub fn new() -> io::Result<(Words, OwnedFd)> {
        let (at, descriptor) = mapped_file(c"aze-shared", BYTES)?;
        Ok((Words(at.cast()), descriptor))
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "word {index} of {WORDS}");
        // SAFETY: the mapping has that many words and lives as long as `self`.
        unsafe { &*self.0.add(index) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is of this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast_mut().cast(), BYTES) };
    }
}

/// Older kernels do not know this flag, and need none (memfd_create(2)).
const MFD_EXEC: u32 = 0x10;

fn memory_file(name: &CStr, flags: u32) -> io::Result<File> {
    let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // By its number, since glibc 2.17 has no function for it.
    // SAFETY: the name ends in NUL and lives until the call returns.
    let made = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
    owned(made as i32).map(File::from)
}

/// A file in memory that may be executed.
pub fn executable_memory_file() -> io::Result<File> {
    match memory_file(c"aze", MFD_EXEC) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => memory_file(c"aze", 0),
        made => made,
    }
}

/// A file in memory for data, which can be sealed.
pub fn data_memory_file() -> io::Result<File> {
    memory_file(c"aze-mapped", 0)
}

/// The parts of a range of a file in memory that take memory: the others are zeros.
pub fn data_parts(file: &File, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let (mut parts, mut at) = (Vec::new(), range.start);
    let seek = |at: u64, whence| {
        let at = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: lseek(2) takes numbers.
        match u64::try_from(unsafe { libc::lseek(file.as_raw_fd(), at, whence) }) {
            Ok(found) => Ok(Some(found)),
            // ENXIO: nothing comes behind.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => Ok(None),
            Err(_) => Err(io::Error::last_os_error()),
        }
    };
    while at < range.end {
        let Some(begin) = seek(at, libc::SEEK_DATA)?.filter(|begin| *begin < range.end) else { break };
        at = seek(begin, libc::SEEK_HOLE)?.unwrap_or(range.end).min(range.end);
        parts.push(begin..at);
    }
    Ok(parts)
}

/// Forbids changes of a file in memory for good.
pub fn seal(file: &File, seals: i32) -> io::Result<()> {
    // SAFETY: fcntl(2) takes numbers here.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// The pipe of a description: its reading end, its writing end, and its inode number.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd, FileId)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two numbers.
    done(unsafe { libc::pipe2(ends.as_mut_ptr(), aze_calls::PIPE_FLAGS | libc::O_CLOEXEC) })?;
    let [reading, writing] = ends.map(|number| owned(number).expect("a number that pipe2(2) gave"));
    // By both flags the library knows which pipes may be files of ours: pipe2(2) gives O_DIRECT to the writing end only.
    // SAFETY: fcntl(2) takes numbers here.
    done(unsafe { libc::fcntl(reading.as_raw_fd(), libc::F_SETFL, aze_calls::PIPE_FLAGS) })?;
    let file = small_pipe(&writing)?;
    Ok((reading, writing, file))
}

/// Device and inode number (fstat(2)).
pub type FileId = (u64, u64);

/// Takes from a pipe the room that it does not need.
fn small_pipe(writing: &OwnedFd) -> io::Result<FileId> {
    // SAFETY: fcntl(2) takes numbers here. A pipe that stays larger works as well.
    unsafe { libc::fcntl(writing.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
    // SAFETY: a structure of numbers.
    let mut stat: libc::stat = unsafe { zeroed() };
    // SAFETY: `stat` lives until the call returns.
    done(unsafe { libc::fstat(writing.as_raw_fd(), &raw mut stat) })?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens the writing end of a named pipe that no process has open.
///
/// # Errors
/// What the system said.
pub fn open_named_pipe(path: &Path) -> io::Result<(OwnedFd, FileId)> {
    let open = |options: &mut OpenOptions| options.custom_flags(libc::O_NONBLOCK).open(path);
    // Without a reader it would be refused (fifo(7)).
    let _reading = open(OpenOptions::new().read(true))?;
    let writing = OwnedFd::from(open(OpenOptions::new().write(true))?);
    let file = small_pipe(&writing)?;
    Ok((writing, file))
}

/// Whether a process has the other end of a pipe.
pub fn has_reader(writing: &OwnedFd) -> bool {
    let mut asked = libc::pollfd { fd: writing.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: `asked` lives until the call returns.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 0 }
}

/// An epoll(7) instance, which reports each descriptor by a number.
pub struct Epoll(OwnedFd);

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Epoll {
    /// An empty one.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: epoll_create1(2) takes a number.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    /// Reports `number` when `events` come, or an error or a hang-up, which always are.
    ///
    /// # Errors
    /// ENOSPC beyond `/proc/sys/fs/epoll/max_user_watches`.
    pub fn add(&self, fd: &impl AsRawFd, events: i32, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: number };
        // SAFETY: `event` lives until the call returns.
        done(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })
            .map(drop)
    }

    /// Reports nothing more of it.
    pub fn remove(&self, fd: &impl AsRawFd) {
        // SAFETY: no event is passed. One that is not there is no matter.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), null_mut()) };
    }

    /// Reports a descriptor once more that was added with EPOLLONESHOT and has been reported: at once if it has events.
    ///
    /// # Errors
    /// What the system said.
    pub fn rearm(&self, fd: &impl AsRawFd, events: i32, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: number };
        // SAFETY: `event` lives until the call returns.
        done(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_MOD, fd.as_raw_fd(), &raw mut event) })
            .map(drop)
    }

    /// The numbers of descriptors with events; blocks until there is one, or for `limit` at most, in whole milliseconds.
    ///
    /// # Errors
    /// What the system said.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<Vec<u64>> {
        let limit_ms = limit.map_or(-1, |limit| i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the pointer and the length are those of `events`.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, limit_ms) };
        match done(count) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            count => Ok(events[..count? as usize].iter().map(|event| event.u64).collect()),
        }
    }
}

/// Allows this process as many open files as the system lets it have; gives how many (getrlimit(2)).
pub fn open_as_many_files_as_allowed() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives until the call returns.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 0;
    }
    let before = std::mem::replace(&mut limit.rlim_cur, limit.rlim_max);
    // SAFETY: as above.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0 { limit.rlim_max } else { before }
}

/// Bytes of memory that are free or can be freed, as proc_meminfo(5) estimates; `u64::MAX` if the system does not say.
pub fn memory_available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.map_or(u64::MAX, |kilobytes| kilobytes << 10)
}

/// A file system's number of two halves.
pub fn fsid(dev: u64) -> libc::fsid_t {
    // SAFETY: `fsid_t` is two numbers of 32 bits: every combination of bytes is a value.
    unsafe { std::mem::transmute::<u64, libc::fsid_t>(dev) }
}
