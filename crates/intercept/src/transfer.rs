//! Copies between descriptors that the kernel would make.

use crate::channel::{self, Session};
use crate::descriptors::{ask, stat_of};
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
        (_, Err(failed)) => return failed,
        (out, Ok(from)) => (out, from),
    };
    let (position, count) = (args[2], args[3].min(TRANSFER_BYTES_MAX));
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    if let Err(failed) = session.connect() {
        return failed;
    }
    let checked = offset_before(position, args[3])
        .and_then(|at| out.and_then(|out| may_be_target(&mut session, out, at).map(|()| (at, out))));
    let (mut at, out) = match checked {
        Ok(checked) if count > 0 => checked,
        checked => {
            // The kernel looks at the source first, which reading does here.
            let checked = may_be_source(&mut session, from, position).and(checked);
            return checked.and_then(|(at, _)| send_nothing(from, at)).map_or_else(|failed| failed, |()| 0);
        }
    };
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

/// The same, for a call of so many bytes: EINVAL if it would end where no offset can be.
fn offset_before(at: u64, count: u64) -> Result<u64, i64> {
    let begin = offset(at)?;
    let from = if begin == POSITION { 0 } else { begin };
    let end = i64::try_from(count).ok().and_then(|count| count.checked_add(from as i64));
    if end.is_none() { Err(error(libc::EINVAL)) } else { Ok(begin) }
}

fn end(fd: u64) -> Result<End, i64> {
    match fds::of_open(argument(fd)) {
        Fd::Kernels => Ok(End::Kernels(argument(fd))),
        Fd::Ours(desc) => Ok(End::Ours(desc)),
        Fd::Failed(failed) => Err(failed),
    }
}

/// Whether sendfile(2) may read there: EBADF if it is not open for reading, ESPIPE of a pipe at an offset.
fn may_be_source(session: &mut Session, from: End, position: u64) -> Result<(), i64> {
    let flags = flags_of_end(session, from)?;
    if flags & libc::O_PATH != 0 || !matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR) {
        return Err(error(libc::EBADF));
    }
    match from {
        End::Kernels(fd) if host::is_memory(position) => {
            let place = position_in(fd);
            if place < 0 { Err(place) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// What sendfile(2) says of no bytes at an offset: it is beyond all files, or the source has no position.
fn send_nothing(from: End, at: u64) -> Result<(), i64> {
    match from {
        _ if at == i64::MAX as u64 => Err(error(libc::EOVERFLOW)),
        End::Kernels(fd) if position_in(fd) < 0 => Err(error(libc::EINVAL)),
        _ => Ok(()),
    }
}

fn position_in(fd: i32) -> i64 {
    call(libc::SYS_lseek, fd as u64, 0, libc::SEEK_CUR as u64)
}

/// Whether sendfile(2) may write bytes from the source's offset `at` there: EBADF if it is not open for writing, EINVAL if each write
/// goes to its end.
fn may_be_target(session: &mut Session, out: End, at: u64) -> Result<(), i64> {
    match flags_of_end(session, out)? {
        flags if flags & libc::O_PATH != 0 => Err(error(libc::EBADF)),
        flags if !matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR) => Err(error(libc::EBADF)),
        flags if flags & libc::O_APPEND != 0 && at != i64::MAX as u64 => Err(error(libc::EINVAL)),
        _ => Ok(()),
    }
}

/// The flags of an end; EBADF if it is closed.
fn flags_of_end(session: &mut Session, end: End) -> Result<i32, i64> {
    let flags = match end {
        End::Kernels(fd) => flags_of(fd),
        End::Ours(desc) => session.ask(Request { op: Op::GetFlags as u32, desc, ..Request::default() }, &[])?.result,
    };
    if flags < 0 { Err(flags) } else { Ok(flags as i32) }
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
        (Ok(End::Ours(desc)), Ok(End::Kernels(fd))) | (Ok(End::Kernels(fd)), Ok(End::Ours(desc))) => {
            return over_the_border(desc, fd);
        }
    };
    if args[5] as u32 != 0 {
        return error(libc::EINVAL);
    }
    let (source, target) = match (offset(args[1]), offset(args[3])) {
        (Ok(source), Ok(target)) => (source, target),
        (Err(failed), _) | (_, Err(failed)) => {
            // The kernel looks at the files first, then whether an end is beyond all numbers.
            let nothing = Request { op: Op::Copy as u32, desc: from, a: to, ..Request::default() };
            let wraps = |at: u64| host::is_memory(at) && host::read::<u64>(at).checked_add(args[4]).is_none();
            let refused = ask(nothing);
            return match () {
                () if refused < 0 => refused,
                () if wraps(args[1]) || wraps(args[3]) => error(libc::EOVERFLOW),
                () => failed,
            };
        }
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

/// Why a copy between the volume and another file system is refused: EXDEV, if both are files.
fn over_the_border(desc: u64, fd: i32) -> i64 {
    let flags = flags_of(fd);
    if flags < 0 {
        return flags;
    }
    let mut about = core::mem::MaybeUninit::<libc::stat>::zeroed();
    if call(libc::SYS_fstat, fd as u64, about.as_mut_ptr() as u64, 0) < 0 {
        return error(libc::EBADF);
    }
    // SAFETY: zeros are a valid stat, and fstat(2) has put one over them.
    let kind = unsafe { about.assume_init() }.st_mode & libc::S_IFMT;
    match kind {
        libc::S_IFREG => error(libc::EXDEV),
        libc::S_IFDIR => error(libc::EISDIR),
        _ => {
            let ours = Session::begin().and_then(|mut session| stat_of(&mut session, desc));
            let is_dir = ours.is_ok_and(|ours| ours.mode & libc::S_IFMT == libc::S_IFDIR);
            error(if is_dir { libc::EISDIR } else { libc::EINVAL })
        }
    }
}
