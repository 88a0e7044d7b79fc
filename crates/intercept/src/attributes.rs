//! Changes of attributes: length, permissions, owners, times.

use crate::channel::Session;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::limits;
use crate::place::{self, PathCall, Target};
use crate::stat::{NO_FOLLOW, is_itself, of_itself};
use crate::table::SYS_FCHMODAT2;
use aze_calls::{Op, Request};
use libc::AT_SYMLINK_NOFOLLOW;

/// Nanoseconds that mean the present time.
const NOW: i64 = libc::UTIME_NOW;

/// Two times: seconds and nanoseconds of the last access and of the last change.
type Times = [i64; 4];

/// Handles these calls.
pub fn handle(number: i64, args: Args) -> i64 {
    let chmod = |mode: u64| Request { op: Op::Chmod as u32, b: mode & 0o7777, ..Request::default() };
    let chown = |uid: u64, gid: u64| Request {
        op: Op::Chown as u32,
        b: uid & 0xffff_ffff,
        c: gid & 0xffff_ffff,
        ..Request::default()
    };
    match number {
        libc::SYS_truncate if args[1] > i64::MAX as u64 => error(libc::EINVAL),
        libc::SYS_truncate => {
            let request = Request { op: Op::Truncate as u32, len: args[1], ..Request::default() };
            let call = PathCall { number, args, dir: None, path: 0, follows: true };
            place::run(&call, |session, target| match limits::may_be(session, target, args[1]) {
                Ok(()) => ask(session, target, request, &[]),
                Err(failed) => failed,
            })
        }
        libc::SYS_chmod => by_path(number, args, None, 0, chmod(args[1]), &[]),
        libc::SYS_fchmod => by_fd(number, args, chmod(args[1])),
        libc::SYS_fchmodat => at(number, args, chmod(args[2]), 0, &[]),
        SYS_FCHMODAT2 => at(number, args, chmod(args[2]), args[3], &[]),
        libc::SYS_chown => by_path(number, args, None, 0, chown(args[1], args[2]), &[]),
        libc::SYS_lchown => {
            let request = Request { a: NO_FOLLOW, ..chown(args[1], args[2]) };
            by_path(number, args, None, 0, request, &[])
        }
        libc::SYS_fchown => by_fd(number, args, chown(args[1], args[2])),
        libc::SYS_fchownat => at(number, args, chown(args[2], args[3]), args[4], &[]),
        libc::SYS_utime => times(seconds(args[1]), |times| by_path(number, args, None, 0, set_times(), times)),
        libc::SYS_utimes => times(microseconds(args[1]), |times| by_path(number, args, None, 0, set_times(), times)),
        libc::SYS_futimesat if !host::is_memory(args[1]) => {
            times(microseconds(args[2]), |times| of_open(number, args, set_times(), times))
        }
        libc::SYS_futimesat => {
            times(microseconds(args[2]), |times| by_path(number, args, Some(0), 1, set_times(), times))
        }
        _ if !host::is_memory(args[1]) && args[3] as u32 != 0 => error(libc::EINVAL),
        _ if !host::is_memory(args[1]) => {
            times(nanoseconds(args[2]), |times| of_open(number, args, set_times(), times))
        }
        _ => times(nanoseconds(args[2]), |times| at(number, args, set_times(), args[3], times)),
    }
}

fn set_times() -> Request {
    Request { op: Op::SetTimes as u32, ..Request::default() }
}

fn times(times: Result<Times, i64>, act: impl FnOnce(&[u8]) -> i64) -> i64 {
    match times {
        Ok(times) => act(host::bytes(times.as_ptr() as u64, size_of::<Times>())),
        Err(failed) => failed,
    }
}

/// The times of utime(2): seconds of both; now if there are none.
fn seconds(at: u64) -> Result<Times, i64> {
    if at == 0 {
        return Ok([0, NOW, 0, NOW]);
    }
    if !host::is_memory(at) {
        return Err(error(libc::EFAULT));
    }
    let [access, change]: [i64; 2] = host::read(at);
    Ok([access, 0, change, 0])
}

/// The times of utimes(2).
fn microseconds(at: u64) -> Result<Times, i64> {
    if at == 0 {
        return Ok([0, NOW, 0, NOW]);
    }
    if !host::is_memory(at) {
        return Err(error(libc::EFAULT));
    }
    let times: Times = host::read(at);
    let whole = |micro: i64| (0..1_000_000).contains(&micro);
    if !whole(times[1]) || !whole(times[3]) {
        return Err(error(libc::EINVAL));
    }
    Ok([times[0], times[1] * 1000, times[2], times[3] * 1000])
}

/// The times of utimensat(2). Whether they are some, the agent says, when it has found the file.
fn nanoseconds(at: u64) -> Result<Times, i64> {
    if at == 0 {
        return Ok([0, NOW, 0, NOW]);
    }
    if !host::is_memory(at) {
        return Err(error(libc::EFAULT));
    }
    Ok(host::read(at))
}

/// A call with a path, whose request begins with `before`.
fn by_path(number: i64, args: Args, dir: Option<usize>, path: usize, request: Request, before: &[u8]) -> i64 {
    let call = PathCall { number, args, dir, path, follows: request.a & NO_FOLLOW == 0 };
    place::run(&call, |session, target| ask(session, target, request, before))
}

/// A call with a directory, a path, and flags.
fn at(number: i64, args: Args, request: Request, flags: u64, before: &[u8]) -> i64 {
    if is_itself(args[1], flags) {
        return of_descriptor(number, args, request, before);
    }
    let a = if flags as i32 & AT_SYMLINK_NOFOLLOW != 0 { NO_FOLLOW } else { 0 };
    by_path(number, args, Some(0), 1, Request { a, ..request }, before)
}

/// A call whose path is null: on an open file.
fn of_open(number: i64, args: Args, request: Request, before: &[u8]) -> i64 {
    match fds::of_open(argument(args[0])) {
        Fd::Failed(failed) => failed,
        _ => of_descriptor(number, args, request, before),
    }
}

fn of_descriptor(number: i64, args: Args, request: Request, before: &[u8]) -> i64 {
    of_itself(number, args, |session, target| ask(session, target, request, before))
}

fn ask(session: &mut Session, target: Target, request: Request, before: &[u8]) -> i64 {
    // Truncation of a description is an operation of its own.
    let truncates = request.op == Op::Truncate as u32 && target.path.is_empty();
    let op = if truncates { Op::TruncateOpen as u32 } else { request.op };
    let request = Request { op, desc: target.desc, ..request };
    session.ask(request, &[before, target.path]).map_or_else(|failed| failed, |reply| reply.result)
}

fn by_fd(number: i64, args: Args, request: Request) -> i64 {
    match fds::of_open(argument(args[0])) {
        Fd::Kernels => raw(number, args),
        Fd::Failed(failed) => failed,
        Fd::Ours(desc) => crate::descriptors::ask(Request { desc, ..request }),
    }
}
