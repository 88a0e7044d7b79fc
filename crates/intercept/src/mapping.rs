//! mmap(2) of files of the volume.
//!
//! The agent gives a copy of the part in memory. A private mapping is one of the copy; a shared one that cannot be written
//! shows the file as it was at the call. A shared one that can be written would have to come back to the file: refused.

use crate::channel::Session;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, call, error, raw};
use aze_calls::{Op, Request};

/// mmap(2).
pub fn mmap(args: Args) -> i64 {
    let [_, length, protection, flags, fd, offset] = args;
    if flags as i32 & libc::MAP_ANONYMOUS != 0 {
        return raw(libc::SYS_mmap, args);
    }
    let desc = match fds::of(argument(fd)) {
        Fd::Kernels => return raw(libc::SYS_mmap, args),
        Fd::Failed(failed) => return failed,
        Fd::Ours(desc) => desc,
    };
    let is_shared = flags as i32 & libc::MAP_TYPE != libc::MAP_PRIVATE;
    if is_shared && protection as i32 & libc::PROT_WRITE != 0 {
        return error(libc::ENODEV);
    }
    if offset & 4095 != 0 || length == 0 {
        return error(libc::EINVAL);
    }
    let copy = match contents(desc, offset, length) {
        Ok(copy) => copy,
        Err(failed) => return failed,
    };
    // A copy that is opened for reading only cannot be made writable by mprotect(2), which would be lost.
    let source = if is_shared { reopened(copy) } else { copy };
    let flags = if is_shared { flags } else { flags & !(libc::MAP_TYPE as u64) | libc::MAP_PRIVATE as u64 };
    let mapped = if source < 0 {
        i64::from(source)
    } else {
        raw(libc::SYS_mmap, [args[0], length, protection, flags, source as u64, 0])
    };
    if is_shared && source >= 0 {
        host::close(source);
    }
    host::close(copy);
    mapped
}

/// A part of a file as a sealed memfd, which the caller closes.
pub fn contents(desc: u64, offset: u64, len: u64) -> Result<i32, i64> {
    let mut session = Session::begin()?;
    let request = Request { op: Op::Contents as u32, desc, offset, len, ..Request::default() };
    match session.ask_with_fd(request, &[])? {
        (reply, Some(fd)) if reply.result >= 0 => Ok(fd),
        (reply, fd) => {
            if let Some(fd) = fd {
                host::close(fd);
            }
            Err(if reply.result < 0 { reply.result } else { error(libc::EMFILE) })
        }
    }
}

/// The same file for reading only, or a negative errno.
fn reopened(fd: i32) -> i32 {
    let path = host::descriptor_link(fd);
    call(libc::SYS_open, path.as_ptr() as u64, (libc::O_RDONLY | libc::O_CLOEXEC) as u64, 0) as i32
}
