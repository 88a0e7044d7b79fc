//! mmap(2) of files of the volume.
//!
//! A private mapping, and a shared one of a file that is open for reading only, is one of a copy of the part as it is at the
//! call. A shared one of a file that is open for reading and writing is one of memory that the agent gives to all processes alike; what
//! they store there comes to the file through the agent. This library only tells it when: at msync(2), and when a mapping may
//! have ended.

use crate::channel::Session;
use crate::descriptors::ask;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, call, error, raw};
use aze_calls::{Op, Request};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Shared mappings whose places are noted. With more, each munmap(2) and msync(2) is taken for one of theirs.
const NOTED_MAX: usize = 64;

/// How often a mapping is asked for whose memory the agent gives up at the same moment.
const TRIES_MAX: u32 = 16;

const PAGE_BYTES: u64 = 4096;

/// A shared mapping. A forked child inherits the notes with the mappings.
struct Noted {
    start: AtomicU64,
    /// 0 if there is none here.
    end: AtomicU64,
    /// Where in the file it begins.
    offset: AtomicU64,
    /// The agent's number of the file; 0 if it is not known any more.
    file: AtomicU64,
}

static NOTED: [Noted; NOTED_MAX] = [const {
    Noted { start: AtomicU64::new(0), end: AtomicU64::new(0), offset: AtomicU64::new(0), file: AtomicU64::new(0) }
}; NOTED_MAX];

/// This process has, or has had, shared mappings.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// There were more mappings than can be noted.
static ARE_TOO_MANY: AtomicBool = AtomicBool::new(false);

/// mmap(2).
pub fn mmap(args: Args) -> i64 {
    let [_, length, protection, flags, fd, offset] = args;
    if flags as i32 & libc::MAP_ANONYMOUS != 0 {
        return raw(libc::SYS_mmap, args);
    }
    let desc = match fds::of_open(argument(fd)) {
        Fd::Kernels => return raw(libc::SYS_mmap, args),
        Fd::Failed(failed) => return failed,
        Fd::Ours(desc) => desc,
    };
    if offset & (PAGE_BYTES - 1) != 0 || length == 0 {
        return error(libc::EINVAL);
    }
    if flags as i32 & libc::MAP_TYPE == libc::MAP_PRIVATE {
        return copied(args, desc, false);
    }
    if fds::is_writable(argument(fd)) || protection as i32 & libc::PROT_WRITE != 0 {
        let mapped = shared(args, desc);
        // Without the right to write it may be a copy.
        let is_copy_enough = mapped == error(libc::EACCES) || mapped == error(libc::ENOMEM);
        if mapped == error(libc::ENODEV) && protection as i32 & libc::PROT_WRITE != 0 {
            // A directory is open for reading only, which the kernel sees first.
            return error(libc::EACCES);
        }
        if !is_copy_enough || protection as i32 & libc::PROT_WRITE != 0 {
            return mapped;
        }
    }
    copied(args, desc, true)
}

/// A mapping of a part as it is now.
fn copied(args: Args, desc: u64, is_shared: bool) -> i64 {
    let [at, length, protection, flags, _, offset] = args;
    let copy = match contents(desc, offset, length) {
        Ok(copy) => copy,
        // It is open, but not for reading; or a directory.
        Err(failed) if failed == error(libc::EBADF) => return error(libc::EACCES),
        Err(failed) if failed == error(libc::EISDIR) => return error(libc::ENODEV),
        Err(failed) => return failed,
    };
    // A copy that is opened for reading only cannot be made writable by mprotect(2), which would be lost.
    let source = if is_shared { reopened(copy) } else { copy };
    let mapped = if source < 0 {
        i64::from(source)
    } else {
        raw(libc::SYS_mmap, [at, length, protection, flags, source as u64, 0])
    };
    if is_shared && source >= 0 {
        host::close(source);
    }
    host::close(copy);
    mapped
}

/// A mapping of the memory that all processes of the agent share.
fn shared(args: Args, desc: u64) -> i64 {
    let mut mapped = error(libc::EPERM);
    for _ in 0..TRIES_MAX {
        let (memory, file) = match memory_of(desc) {
            Ok(given) => given,
            Err(failed) => return failed,
        };
        // From now on its end is told, also if a thread ends the process at the next instruction.
        IS_USED.store(true, SeqCst);
        mapped = raw(libc::SYS_mmap, [args[0], args[1], args[2], args[3], memory as u64, args[5]]);
        host::close(memory);
        if mapped >= 0 {
            note(mapped as u64, args[1], args[5], file);
        }
        // The agent has given it up meanwhile, because no process had mapped it.
        if mapped != error(libc::EPERM) {
            break;
        }
    }
    mapped
}

fn memory_of(desc: u64) -> Result<(i32, u64), i64> {
    let mut session = Session::begin()?;
    let request = Request { op: Op::Map as u32, desc, ..Request::default() };
    given(session.ask_with_fd(request, &[])?).map(|fd| (fd, session.last().desc))
}

/// The descriptor that came with a reply.
fn given((reply, fd): (aze_calls::Reply, Option<i32>)) -> Result<i32, i64> {
    match fd {
        Some(fd) if reply.result >= 0 => Ok(fd),
        fd => {
            if let Some(fd) = fd {
                host::close(fd);
            }
            Err(if reply.result < 0 { reply.result } else { error(libc::EMFILE) })
        }
    }
}

fn pages(length: u64) -> u64 {
    length.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1)
}

fn note(start: u64, length: u64, offset: u64, file: u64) {
    let end = start.saturating_add(pages(length));
    forget(start, end);
    for noted in &NOTED {
        if noted.end.compare_exchange(0, end, SeqCst, SeqCst).is_ok() {
            noted.start.store(start, SeqCst);
            noted.offset.store(offset, SeqCst);
            noted.file.store(file, SeqCst);
            return;
        }
    }
    ARE_TOO_MANY.store(true, SeqCst);
}

/// The notes of mappings that have a part of a range.
fn within(start: u64, end: u64) -> impl Iterator<Item = &'static Noted> {
    NOTED.iter().filter(move |noted| noted.start.load(SeqCst) < end && start < noted.end.load(SeqCst))
}

/// Forgets those that lie in a range as a whole.
fn forget(start: u64, end: u64) {
    for noted in within(start, end) {
        if start <= noted.start.load(SeqCst) && noted.end.load(SeqCst) <= end {
            noted.file.store(0, SeqCst);
            noted.end.store(0, SeqCst);
        }
    }
}

/// True if a range may have shared mappings.
fn is_noted(start: u64, length: u64) -> bool {
    IS_USED.load(SeqCst)
        && (ARE_TOO_MANY.load(SeqCst) || within(start, start.saturating_add(pages(length))).next().is_some())
}

/// The agent writes the stored bytes, and mappings that have ended are given up.
pub fn settle() {
    if IS_USED.load(SeqCst) {
        ask(Request { op: Op::Settle as u32, ..Request::default() });
    }
}

/// munmap(2).
pub fn munmap(args: Args) -> i64 {
    let is_noted = is_noted(args[0], args[1]);
    let result = raw(libc::SYS_munmap, args);
    if is_noted && result >= 0 {
        forget(args[0], args[0].saturating_add(pages(args[1])));
        settle();
    }
    result
}

/// mremap(2).
pub fn mremap(args: Args) -> i64 {
    let [old, old_length, new_length, ..] = args;
    if !is_noted(old, old_length) {
        return raw(libc::SYS_mremap, args);
    }
    let found = within(old, old.saturating_add(1)).next();
    let place =
        found.map(|noted| (noted.file.load(SeqCst), noted.offset.load(SeqCst) + (old - noted.start.load(SeqCst))));
    let result = raw(libc::SYS_mremap, args);
    if result >= 0 {
        forget(old, old.saturating_add(pages(old_length)));
        match place {
            Some((file, offset)) => note(result as u64, new_length, offset, file),
            None => ARE_TOO_MANY.store(true, SeqCst),
        }
    }
    result
}

/// msync(2).
pub fn msync(args: Args) -> i64 {
    let [start, length, flags, ..] = args;
    let result = raw(libc::SYS_msync, args);
    if result < 0 || !is_noted(start, length) {
        return result;
    }
    let a = u64::from(flags as i32 & libc::MS_SYNC != 0);
    let request = Request { op: Op::Settle as u32, a, ..Request::default() };
    let end = start.saturating_add(pages(length));
    let mut result = if ARE_TOO_MANY.load(SeqCst) { ask(request) } else { 0 };
    for noted in within(start, end) {
        let (begin, file) = (noted.start.load(SeqCst), noted.file.load(SeqCst));
        let (from, to) = (start.max(begin), end.min(noted.end.load(SeqCst)));
        let offset = noted.offset.load(SeqCst) + (from - begin);
        let written = ask(Request { offset, len: to.saturating_sub(from), b: file, ..request });
        result = result.min(written);
    }
    result
}

/// A part of a file as a sealed memfd, which the caller closes.
pub fn contents(desc: u64, offset: u64, len: u64) -> Result<i32, i64> {
    let mut session = Session::begin()?;
    let request = Request { op: Op::Contents as u32, desc, offset, len, ..Request::default() };
    given(session.ask_with_fd(request, &[])?)
}

/// The same file for reading only, or a negative errno.
fn reopened(fd: i32) -> i32 {
    let path = host::descriptor_link(fd);
    call(libc::SYS_open, path.as_ptr() as u64, (libc::O_RDONLY | libc::O_CLOEXEC) as u64, 0) as i32
}
