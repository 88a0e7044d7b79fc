//! The system calls of the real world, each behind a safe function.
//!
//! It alone knows how the kernel's structures are laid out and which calls need `unsafe`.
//! When to make which call it does not know. No function here blocks, except [`epoll_wait`],
//! [`await_bytes`] and, if it is told to, [`receive`].

use std::ffi::c_int;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use crate::Credentials;

/// Most slices one `sendmsg` takes (`IOV_MAX`, limits.h); more are sent by further calls.
pub(super) const SLICES_MAX: usize = 1024;

/// What one `epoll_wait` tells of one source.
pub(super) type Event = libc::epoll_event;

/// An event that says nothing, to make room for those that do.
pub(super) const NO_EVENT: Event = libc::epoll_event { events: 0, u64: 0 };

fn check(returned: c_int) -> Result<c_int> {
    if returned < 0 { Err(Error::last_os_error()) } else { Ok(returned) }
}

fn check_len(returned: isize) -> Result<usize> {
    usize::try_from(returned).map_err(|_| Error::last_os_error())
}

fn owned(returned: c_int) -> Result<OwnedFd> {
    let fd = check(returned)?;
    // SAFETY: the kernel just made `fd` for us, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("kernel structures are small")
}

/// Makes an epoll instance.
pub(super) fn epoll_create() -> Result<OwnedFd> {
    // SAFETY: takes no pointer.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

/// Adds (`EPOLL_CTL_ADD`), changes (`_MOD`) or removes (`_DEL`) `fd`.
pub(super) fn epoll_control(epoll: &OwnedFd, op: c_int, fd: &OwnedFd, events: c_int, token: u64) -> Result<()> {
    let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: token };
    // SAFETY: `event` is a live epoll_event, which the kernel only reads.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) }).map(drop)
}

/// Waits for events; returns how many of `events` were filled. A `timeout_ms` of -1 has no end.
pub(super) fn epoll_wait(epoll: &OwnedFd, events: &mut [Event], timeout_ms: c_int) -> usize {
    let room = c_int::try_from(events.len()).expect("a handful of events");
    // SAFETY: the kernel writes at most `room` events, which is the length of the slice.
    let filled = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), room, timeout_ms) };
    match check_len(filled as isize) {
        Ok(filled) => filled,
        Err(error) if error.kind() == ErrorKind::Interrupted => 0,
        Err(error) => panic!("epoll_wait: {error}"),
    }
}

/// Makes an eventfd.
pub(super) fn eventfd() -> Result<OwnedFd> {
    // SAFETY: takes no pointer.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes an eventfd readable anew. Its counter is never read, since edge-triggered polling
/// reports each write; once it is full (after 2^64 - 2 writes) that would end.
pub(super) fn eventfd_wake(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: the eight bytes written are those of `one`.
    let written = unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    assert!(written == 8, "an eventfd always takes one more");
}

/// Makes a timer on the monotonic clock that is polled like a socket.
pub(super) fn timerfd() -> Result<OwnedFd> {
    // SAFETY: takes no pointer.
    owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })
}

/// Lets the timer fire once, when the monotonic clock reaches `deadline_ns`, or now if it has.
pub(super) fn timerfd_set(fd: &OwnedFd, deadline_ns: u64) {
    // Zero would disarm the timer instead; i64::MAX seconds are refused by no kernel.
    let deadline_ns = deadline_ns.max(1);
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let when = libc::timespec {
        tv_sec: (deadline_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (deadline_ns % 1_000_000_000).cast_signed(),
    };
    let setting = libc::itimerspec { it_interval: zero, it_value: when };
    let flags = libc::TFD_TIMER_ABSTIME;
    // SAFETY: `setting` is live and only read; the kernel accepts null for the old setting.
    let set = unsafe { libc::timerfd_settime(fd.as_raw_fd(), flags, &raw const setting, std::ptr::null_mut()) };
    assert!(set == 0, "the timer is ours and the time is valid");
}

/// What `clock` shows, in nanoseconds.
pub(super) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a live timespec for the kernel to fill.
    let read = unsafe { libc::clock_gettime(clock, &raw mut now) };
    assert!(read == 0, "this clock exists on every Linux");
    // A clock set before 1970 shows as 1970.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Fills `bytes` from the kernel's generator; blocks only before the machine has gathered
/// its first entropy, at boot.
pub(super) fn random(mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        // By its number, since glibc 2.17 has no function for it.
        // SAFETY: the kernel writes at most `bytes.len()` bytes to the slice.
        let got = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
        match check_len(got as isize) {
            Ok(got) => bytes = &mut bytes[got..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("getrandom: {error}; without it no secret is safe"),
        }
    }
}

/// Effective user id of this process.
pub(super) fn user_id() -> u32 {
    // SAFETY: geteuid(2) takes nothing and always succeeds.
    unsafe { libc::geteuid() }
}

/// Effective group id of this process.
pub(super) fn group_id() -> u32 {
    // SAFETY: getegid(2) takes nothing and always succeeds.
    unsafe { libc::getegid() }
}

/// Supplementary groups of this process; none if another thread changes them over and over.
pub(super) fn groups() -> Vec<u32> {
    const TRIES_MAX: usize = 4;
    for _ in 0..TRIES_MAX {
        // SAFETY: with a length of 0 the kernel writes nothing and tells the number.
        let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        let mut groups = vec![0u32; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the kernel writes at most `count` numbers, which is the length of the vector.
        let filled = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
        if let Ok(filled) = usize::try_from(filled) {
            groups.truncate(filled);
            return groups;
        }
    }
    Vec::new()
}

/// A number in a page of memory that a forked process finds filled with zeros; `None` where the kernel has no such
/// pages. It stays for as long as the process.
pub(super) fn page_wiped_on_fork() -> Option<&'static AtomicU64> {
    const BYTES: usize = 4096;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place that the kernel chooses touches no memory that is in use.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped above, in this length, and is used by no other code yet.
    if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; no reference to it exists.
        unsafe { libc::munmap(page, BYTES) };
        return None;
    }
    // SAFETY: the page is aligned, filled with zeros, which is a valid number, and never unmapped.
    Some(unsafe { &*page.cast::<AtomicU64>() })
}

/// Runs `look` in a forked process; whether it gave true there.
#[cfg(test)]
pub(super) fn fork_for_test(look: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `look`, which takes no lock that another thread of the tests may hold, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).unwrap_or(false);
            // SAFETY: _exit(2) ends the process and runs nothing of ours.
            unsafe { libc::_exit(i32::from(!held)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` lives until the call returns.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            waited == child && status == 0
        }
    }
}

/// Runs `work` in so many threads and waits for their ends. A forked process may call it at any moment of its parent's
/// threads: those of the standard library take a lock when they begin, in programs whose `main` is Rust's, which a thread of the
/// parent may have held. Libraries of ours that other programs load have no such `main`.
#[cfg(test)]
pub(super) fn in_threads_for_test<F: Fn() + Sync>(threads: usize, work: &F) {
    extern "C" fn run<F: Fn() + Sync>(work: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: it is the `work` of the caller, who borrows it until this thread has ended.
        let work = unsafe { &*work.cast_const().cast::<F>() };
        let has_ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
        std::ptr::without_provenance_mut(usize::from(!has_ended))
    }
    let started: Vec<libc::pthread_t> = std::iter::repeat_with(|| {
        let (mut thread, work) = (0, std::ptr::from_ref(work).cast_mut().cast());
        // SAFETY: `thread` lives until the call returns; `work` until the thread has ended, since it is joined below.
        let error = unsafe { libc::pthread_create(&mut thread, std::ptr::null(), run::<F>, work) };
        assert_eq!(error, 0, "pthread_create");
        thread
    })
    .take(threads)
    .collect();
    for thread in started {
        let mut panicked = std::ptr::null_mut();
        // SAFETY: it was started above and is joined once; `panicked` lives until the call returns.
        assert_eq!(unsafe { libc::pthread_join(thread, &mut panicked) }, 0, "pthread_join");
        assert!(panicked.is_null(), "a thread has panicked");
    }
}

/// Has SIGALRM end this process after so many seconds, should it wait for ever.
#[cfg(test)]
pub(super) fn end_in(seconds: u32) {
    // SAFETY: alarm(2) takes a number.
    unsafe { libc::alarm(seconds) };
}

/// Process group of this process.
pub(super) fn process_group() -> i32 {
    // SAFETY: getpgrp(2) takes nothing and always succeeds.
    unsafe { libc::getpgrp() }
}

/// Sends `signal` to process `pid`.
pub(super) fn kill(pid: i32, signal: c_int) -> Result<()> {
    // SAFETY: kill(2) takes two numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

fn stream_socket(domain: c_int) -> Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointer.
    owned(unsafe { libc::socket(domain, kind, 0) })
}

/// Sets a socket option of type `T`.
fn set_option<T>(fd: &OwnedFd, level: c_int, name: c_int, value: &T) -> Result<()> {
    let len = size_of_u32::<T>();
    // SAFETY: `value` is live and `len` bytes long; the kernel only reads it.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) }).map(drop)
}

/// Reads a socket option into `value`, which is left alone on failure.
fn get_option<T: Copy>(fd: &OwnedFd, level: c_int, name: c_int, value: &mut T) -> Result<()> {
    let mut len = size_of_u32::<T>();
    let into = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `len` bytes, the size of `T`; the callers' `T` are integers or structs of
    // integers, valid for any bytes.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, into, &raw mut len) }).map(drop)
}

/// Starts a TCP connection; the flag says whether it stands already.
pub(super) fn connect_tcp(to: &SocketAddr) -> Result<(OwnedFd, bool)> {
    match to {
        SocketAddr::V4(to) => {
            let addr = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
                sin_zero: [0; 8],
            };
            let fd = stream_socket(libc::AF_INET)?;
            set_nodelay(&fd)?;
            end_unanswered(&fd)?;
            start_connect(fd, &addr, size_of_u32::<libc::sockaddr_in>())
        }
        SocketAddr::V6(to) => {
            let addr = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: to.port().to_be(),
                sin6_flowinfo: to.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
                sin6_scope_id: to.scope_id(),
            };
            let fd = stream_socket(libc::AF_INET6)?;
            set_nodelay(&fd)?;
            end_unanswered(&fd)?;
            start_connect(fd, &addr, size_of_u32::<libc::sockaddr_in6>())
        }
    }
}

/// Connects to a local socket. `WouldBlock` means that the listener's backlog is full.
pub(super) fn connect_unix(path: &str) -> Result<OwnedFd> {
    let mut addr = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    if path.len() >= addr.sun_path.len() || path.contains('\0') {
        return Err(Error::new(ErrorKind::InvalidInput, "a socket's path has at most 107 bytes, none of them zero"));
    }
    for (to, from) in addr.sun_path.iter_mut().zip(path.bytes()) {
        *to = from.cast_signed();
    }
    let fd = stream_socket(libc::AF_UNIX)?;
    start_connect(fd, &addr, size_of_u32::<libc::sockaddr_un>()).map(|(fd, _)| fd)
}

fn start_connect<T>(fd: OwnedFd, addr: &T, len: u32) -> Result<(OwnedFd, bool)> {
    assert!(len as usize == size_of::<T>(), "the whole address is passed");
    // SAFETY: `addr` is a live sockaddr of `len` bytes, which the kernel only reads.
    let started = unsafe { libc::connect(fd.as_raw_fd(), std::ptr::from_ref(addr).cast(), len) };
    match check(started) {
        Ok(_) => Ok((fd, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok((fd, false)),
        Err(error) => Err(error),
    }
}

/// The error that a connection attempt ended with, if any (`SO_ERROR`, socket(7)).
pub(super) fn pending_error(fd: &OwnedFd) -> Result<()> {
    let mut code: c_int = 0;
    get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut code)?;
    if code == 0 { Ok(()) } else { Err(Error::from_raw_os_error(code)) }
}

/// Sends small frames at once instead of waiting for more (`TCP_NODELAY`, tcp(7)).
pub(super) fn set_nodelay(fd: &OwnedFd) -> Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1 as &c_int)
}

/// How long the other end of a connection may leave data without an answer. The system repeats them after pauses that double: when a line has
/// been cut for a minute, it would be silent for up to a minute more.
const UNANSWERED_MS_MAX: c_int = 8_000;

/// Ends the connection with an error when data were sent and not acknowledged for some time (`TCP_USER_TIMEOUT`,
/// tcp(7)). The process that had connected connects again then.
fn end_unanswered(fd: &OwnedFd) -> Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &UNANSWERED_MS_MAX)
}

/// Asks for a send buffer of `bytes`; the system may give less.
pub(super) fn set_send_buffer(fd: &OwnedFd, bytes: c_int) {
    if set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
        // Only an administrator may pass the system's limit; up to it anyone may ask, and a
        // smaller buffer is only slower.
        drop(set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes));
    }
}

/// Sets how many connections may wait to be accepted; the system may allow fewer.
pub(super) fn listen(fd: &OwnedFd, backlog: c_int) -> Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Who connected to, or listens on, the other end of a local socket.
pub(super) fn credentials(fd: &OwnedFd) -> Result<Credentials> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    get_option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut who)?;
    Ok(Credentials { uid: who.uid, gid: who.gid, pid: who.pid })
}

/// A descriptor of the process of this number (pidfd_open(2)).
///
/// # Errors
/// ESRCH if there is none; what else the system said.
pub fn open_process(pid: u32) -> Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes two numbers.
    let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let number = check(c_int::try_from(number).unwrap_or(-1))?;
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether a process has ended: all its threads, after their descriptors were closed (pidfd_open(2)).
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `asked` is live, and the one that is announced.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 && asked.revents & libc::POLLIN != 0 }
}

/// Ends both directions; fails only when there is nothing left to end.
pub(super) fn shutdown(fd: &OwnedFd) {
    // SAFETY: takes no pointer.
    let _already_ended = unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Sends from the slices (at most [`SLICES_MAX`] of them) what the socket takes at once.
pub(super) fn send(fd: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<usize> {
    assert!(slices.len() <= SLICES_MAX, "the kernel refuses more");
    // SAFETY: all-zero bytes are a msghdr without address, data and control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // `IoSlice` is documented to have the layout of iovec.
    message.msg_iov = slices.as_ptr().cast_mut().cast();
    message.msg_iovlen = slices.len();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    #[cfg(test)]
    SENDS.set(SENDS.get() + 1);
    // SAFETY: `message` points at `msg_iovlen` live slices, which sendmsg only reads.
    check_len(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) })
}

#[cfg(test)]
thread_local! {
    /// Calls of [`send`] on this thread.
    pub(super) static SENDS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Where one read puts its bytes: behind the end of `vec`, at most `bytes_max` of them.
pub(super) struct Room<'a> {
    /// Grown by the bytes read; never reallocated.
    pub(super) vec: &'a mut Vec<u8>,
    /// Must fit the spare capacity of `vec`.
    pub(super) bytes_max: usize,
}

impl Room<'_> {
    fn iovec(&mut self) -> libc::iovec {
        let spare = &mut self.vec.spare_capacity_mut()[..self.bytes_max];
        libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() }
    }

    /// Counts the first of `bytes` read bytes as its own and returns the rest.
    fn grow(&mut self, bytes: usize) -> usize {
        let own = bytes.min(self.bytes_max);
        let len = self.vec.len() + own;
        // SAFETY: the kernel filled `own` bytes of the spare capacity that `iovec` gave it, from
        // its beginning, so that the first `len` bytes are initialized and within capacity.
        unsafe { self.vec.set_len(len) };
        bytes - own
    }
}

/// Reads once, into `first`, then `second`, then `rest`; returns the bytes read altogether.
/// Nothing is zeroed beforehand. With `wait` it blocks, where the socket may ([`let_wait`]), until something
/// comes or for as long as that allows.
pub(super) fn receive(
    fd: &OwnedFd,
    mut first: Room<'_>,
    mut second: Room<'_>,
    rest: &mut [u8],
    wait: bool,
) -> Result<usize> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    if first.bytes_max == 0 && second.bytes_max == 0 {
        // SAFETY: the kernel writes at most `rest.len()` bytes to the slice.
        return check_len(unsafe { libc::recv(fd.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), flags) });
    }
    let rest = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
    let mut parts = [first.iovec(), second.iovec(), rest];
    // SAFETY: all-zero bytes are a msghdr without address, data and control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    // SAFETY: the three parts are disjoint, exclusively borrowed and as long as they say.
    let bytes = check_len(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) })?;
    let bytes_after_first = first.grow(bytes);
    second.grow(bytes_after_first);
    Ok(bytes)
}

/// Reads once into the slices (at most [`SLICES_MAX`] of them), without waiting.
pub(super) fn receive_slices(fd: &OwnedFd, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
    assert!(slices.len() <= SLICES_MAX, "the kernel refuses more");
    // SAFETY: all-zero bytes are a msghdr without address, data and control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // `IoSliceMut` is documented to have the layout of iovec.
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = slices.len();
    // SAFETY: `message` points at `msg_iovlen` live slices that are disjoint and exclusively borrowed.
    check_len(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) })
}

/// Waits as [`receive`] does, and leaves what comes there.
pub(super) fn await_bytes(fd: &OwnedFd) -> Result<()> {
    let mut byte = 0u8;
    // SAFETY: the kernel writes at most the one byte.
    check_len(unsafe { libc::recv(fd.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) }).map(drop)
}

/// Has [`receive`] wait on this socket for at most `limit_ms`.
pub(super) fn let_wait(fd: &OwnedFd, limit_ms: u32) -> Result<()> {
    let (seconds, micros) = (limit_ms / 1000, limit_ms % 1000 * 1000);
    let limit = libc::timeval { tv_sec: seconds.into(), tv_usec: micros.into() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit)?;
    // SAFETY: takes no pointer.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) }).map(drop)
}

/// The process's limit of descriptors (RLIMIT_NOFILE).
pub(super) fn descriptors_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and written to only.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}
