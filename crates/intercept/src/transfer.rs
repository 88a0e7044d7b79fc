//! Copies between descriptors that the kernel would make.

use crate::channel::{self, Session};
use crate::descriptors::ask;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, call, error, raw};
use crate::limits;
use aze_calls::{Op, POSITION, Request, WINDOW_BYTES};

/// Largest length of one call, as in the kernel.
const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;

/// One end of a copy.
#[derive(Clone, Copy)]
enum End {
    Kernels(i32),
    Ours(u64),
}

/// sendfile(2), from or to the volume, through the window.
pub fn sendfile(args: Args) -> i64 {
    let (out, from) = match (end(args[0]), end(args[1])) {
        (Ok(End::Kernels(_)), Ok(End::Kernels(_))) => return raw(libc::SYS_sendfile, args),
        (Ok(out), Ok(from)) => (out, from),
        (Err(failed), _) | (_, Err(failed)) => return failed,
    };
    let (position, count) = (args[2], args[3].min(TRANSFER_BYTES_MAX));
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    if let Err(failed) = session.connect() {
        return failed;
    }
    let mut at = match offset(position) {
        Ok(at) => at,
        Err(failed) => return failed,
    };
    if let Err(failed) = may_be_target(&mut session, out) {
        return failed;
    }
    let mut done = 0u64;
    while done < count {
        let len = (count - done).min(WINDOW_BYTES as u64);
        let read = read(&mut session, from, at, len);
        if read <= 0 {
            if done == 0 && read < 0 {
                // A directory is no source of bytes.
                return if read == error(libc::EISDIR) { error(libc::EINVAL) } else { read };
            }
            break;
        }
        let written = write(&mut session, out, read as u64);
        let moved = written.max(0) as u64;
        if at != POSITION {
            at += moved;
        } else if moved < read as u64 {
            step_back(&mut session, from, read as u64 - moved);
        }
        done += moved;
        if moved < read as u64 {
            if done == 0 && written < 0 {
                return written;
            }
            if let End::Ours(desc) = out {
                // The kernel tries the rest, too, which is beyond a limit.
                let _ = limits::room(&mut session, desc, POSITION, 1);
            }
            break;
        }
    }
    if at != POSITION {
        host::write(position, at);
    }
    done as i64
}

/// The offset that lies at an address, or the position if there is none.
fn offset(at: u64) -> Result<u64, i64> {
    if !host::is_memory(at) {
        return Ok(POSITION);
    }
    let offset = host::read::<u64>(at);
    if offset > i64::MAX as u64 { Err(error(libc::EINVAL)) } else { Ok(offset) }
}

fn end(fd: u64) -> Result<End, i64> {
    match fds::of_open(argument(fd)) {
        Fd::Kernels => Ok(End::Kernels(argument(fd))),
        Fd::Ours(desc) => Ok(End::Ours(desc)),
        Fd::Failed(failed) => Err(failed),
    }
}

/// Whether sendfile(2) may write there: EBADF if it is not open for writing, EINVAL if each write goes to its end.
fn may_be_target(session: &mut Session, out: End) -> Result<(), i64> {
    let flags = match out {
        End::Kernels(fd) => flags_of(fd),
        End::Ours(desc) => session.ask(Request { op: Op::GetFlags as u32, desc, ..Request::default() }, &[])?.result,
    };
    match flags as i32 {
        _ if flags < 0 => Err(flags),
        flags if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == libc::O_RDONLY => Err(error(libc::EBADF)),
        flags if flags & libc::O_APPEND != 0 => Err(error(libc::EINVAL)),
        _ => Ok(()),
    }
}

/// The flags of a descriptor of the kernel's; EBADF if it is closed, or this library's.
fn flags_of(fd: i32) -> i64 {
    if channel::is_hidden(fd) { error(libc::EBADF) } else { call(libc::SYS_fcntl, fd as u64, libc::F_GETFL as u64, 0) }
}

/// Reads into the window.
fn read(session: &mut Session, from: End, at: u64, len: u64) -> i64 {
    match from {
        End::Ours(desc) => {
            let request = Request { op: Op::Read as u32, desc, offset: at, len, ..Request::default() };
            session.ask(request, &[]).map_or_else(|failed| failed, |reply| reply.result)
        }
        End::Kernels(fd) => {
            let window = session.window();
            session.with_signals(|| match at {
                POSITION => call(libc::SYS_read, fd as u64, window, len),
                _ => raw(libc::SYS_pread64, [fd as u64, window, len, at, 0, 0]),
            })
        }
    }
}

/// Writes from the window; the bytes written, or the error of the first part.
fn write(session: &mut Session, out: End, len: u64) -> i64 {
    let mut done = 0;
    while done < len {
        let result = match out {
            End::Ours(desc) => limits::room(session, desc, POSITION, len)
                .and_then(|len| {
                    let request = Request { op: Op::Write as u32, desc, offset: POSITION, len, ..Request::default() };
                    session.ask(request, &[])
                })
                .map_or_else(|failed| failed, |reply| reply.result),
            End::Kernels(fd) => {
                let from = session.window() + done;
                session.with_signals(|| call(libc::SYS_write, fd as u64, from, len - done))
            }
        };
        if result <= 0 {
            return if done > 0 { done as i64 } else { result };
        }
        done += result as u64;
        if matches!(out, End::Ours(_)) {
            break;
        }
    }
    done as i64
}

/// Bytes that were read and could not be written stay to be read.
fn step_back(session: &mut Session, from: End, bytes: u64) {
    let (back, whence) = ((bytes as i64).wrapping_neg() as u64, libc::SEEK_CUR as u64);
    match from {
        End::Ours(desc) => {
            let request = Request { op: Op::Seek as u32, desc, offset: back, a: whence, ..Request::default() };
            let _ = session.ask(request, &[]);
        }
        End::Kernels(fd) => {
            call(libc::SYS_lseek, fd as u64, back, whence);
        }
    }
}

/// copy_file_range(2): within the volume by the servers; over its border refused, so that programs read and write.
pub fn copy_file_range(args: Args) -> i64 {
    let (from, to) = match (end(args[0]), end(args[2])) {
        (Ok(End::Kernels(_)), Ok(End::Kernels(_))) => return raw(libc::SYS_copy_file_range, args),
        (Ok(End::Ours(from)), Ok(End::Ours(to))) => (from, to),
        (Err(failed), _) | (_, Err(failed)) => return failed,
        (_, Ok(End::Kernels(fd))) | (Ok(End::Kernels(fd)), _) => {
            let flags = flags_of(fd);
            return if flags < 0 { flags } else { error(libc::EXDEV) };
        }
    };
    if args[5] as u32 != 0 {
        return error(libc::EINVAL);
    }
    let (source, target) = match (offset(args[1]), offset(args[3])) {
        (Ok(source), Ok(target)) => (source, target),
        (Err(failed), _) | (_, Err(failed)) => return failed,
    };
    let len = args[4].min(TRANSFER_BYTES_MAX);
    let room = Session::begin().and_then(|mut session| limits::room(&mut session, to, target, len));
    let len = match room {
        Ok(room) => room,
        Err(failed) => return failed,
    };
    let request =
        Request { op: Op::Copy as u32, desc: from, offset: source, len, a: to, b: target, ..Request::default() };
    let copied = ask(request);
    if copied > 0 {
        for (at, before) in [(args[1], source), (args[3], target)] {
            if host::is_memory(at) {
                host::write(at, before + copied as u64);
            }
        }
    }
    copied
}
