//! Copies of descriptors, and fcntl(2) and ioctl(2).

use crate::channel::{self, Session};
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::{locks, open};
use aze_calls::{Op, POSITION, Request, Stat};

/// dup(2), dup2(2), dup3(2).
pub fn dup(number: i64, args: Args) -> i64 {
    if channel::is_hidden(argument(args[0])) {
        return error(libc::EBADF);
    }
    if number == libc::SYS_dup {
        return copied(args[0], raw(number, args));
    }
    let to = argument(args[1]);
    if channel::is_hidden(to) {
        return error(libc::EBADF);
    }
    if to == argument(args[0]) {
        return raw(number, args);
    }
    // The kernel tells no error of the implied close either.
    open::before_close(to);
    copied(args[0], fds::forgetting(to, || raw(number, args)))
}

fn copied(from: u64, result: i64) -> i64 {
    if result >= 0 {
        fds::copied(argument(from), result as i32);
    }
    result
}

/// fcntl(2).
pub fn fcntl(args: Args) -> i64 {
    let (fd, command) = (argument(args[0]), argument(args[1]));
    if channel::is_hidden(fd) {
        return error(libc::EBADF);
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return copied(args[0], raw(libc::SYS_fcntl, args)),
        libc::F_GETFD | libc::F_SETFD => return raw(libc::SYS_fcntl, args),
        _ => {}
    }
    let looked = if command == libc::F_GETFL { fds::of(fd) } else { fds::of_open(fd) };
    let desc = match looked {
        Fd::Kernels => return raw(libc::SYS_fcntl, args),
        Fd::Failed(failed) => return failed,
        Fd::Ours(desc) => desc,
    };
    match command {
        libc::F_GETFL => ask(Request { op: Op::GetFlags as u32, desc, ..Request::default() }),
        libc::F_SETFL => ask(Request { op: Op::SetFlags as u32, desc, a: args[2], ..Request::default() }),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            locks::fcntl(desc, command, args[2])
        }
        libc::F_SETPIPE_SZ | libc::F_GETPIPE_SZ => error(libc::EBADF),
        libc::F_GETLEASE => i64::from(libc::F_UNLCK),
        _ => error(libc::EINVAL),
    }
}

/// A request without bytes; the result of the call.
pub fn ask(request: Request) -> i64 {
    let answer = Session::begin().and_then(|mut session| session.ask(request, &[]));
    answer.map_or_else(|failed| failed, |reply| reply.result)
}

/// What stat(2) would say of a description.
pub fn stat_of(session: &mut Session, desc: u64) -> Result<Stat, i64> {
    let reply = session.ask(Request { op: Op::StatOpen as u32, desc, ..Request::default() }, &[])?;
    let bytes = session.bytes(&reply);
    match reply.result {
        failed if failed < 0 => Err(failed),
        _ if bytes.len() < size_of::<Stat>() => Err(error(libc::EIO)),
        _ => Ok(host::read(bytes.as_ptr() as u64)),
    }
}

/// The position of a description.
pub fn position_of(session: &mut Session, desc: u64) -> Result<i64, i64> {
    let request = Request { op: Op::Seek as u32, desc, a: libc::SEEK_CUR as u64, ..Request::default() };
    let result = session.ask(request, &[])?.result;
    if result < 0 { Err(result) } else { Ok(result) }
}

/// ioctl(2): files of the volume know those of every file, and no others.
pub fn ioctl(args: Args) -> i64 {
    let fd = argument(args[0]);
    let desc = match fds::of_open(fd) {
        Fd::Kernels => return raw(libc::SYS_ioctl, args),
        Fd::Failed(failed) => return failed,
        Fd::Ours(desc) => desc,
    };
    match args[1] as u32 as libc::Ioctl {
        libc::FIOCLEX | libc::FIONCLEX => raw(libc::SYS_ioctl, args),
        libc::FIONBIO => 0,
        libc::FIONREAD if host::is_memory(args[2]) => {
            let answer = Session::begin().and_then(|mut session| {
                let size = stat_of(&mut session, desc)?.size;
                Ok(size.saturating_sub(position_of(&mut session, desc)? as u64))
            });
            match answer {
                Ok(left) => {
                    host::write(args[2], left.min(i32::MAX as u64) as i32);
                    0
                }
                Err(failed) => failed,
            }
        }
        _ => error(libc::ENOTTY),
    }
}

/// The offset of a call that names one; negative ones are refused as the kernel does.
pub fn offset(offset: u64) -> Result<u64, i64> {
    if offset > i64::MAX as u64 || offset == POSITION { Err(error(libc::EINVAL)) } else { Ok(offset) }
}
