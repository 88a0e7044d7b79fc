//! Opening and closing.

use crate::channel::{self, Session};
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, call, error, raw};
use crate::lookup::{self, Key, Looked};
use crate::named_pipes::{self, Opened};
use crate::place::{self, PathCall, Target};
use crate::{process, shared};
use aze_calls::{Op, Reply, Request};

/// struct open_how of openat2(2): flags, mode, resolve.
const HOW_BYTES: u64 = 24;
/// The kernel takes no longer one: a page.
const HOW_BYTES_MAX: u64 = 4096;
/// All flags of open(2), with O_LARGEFILE and FASYNC.
const OPEN_FLAGS: u64 = 0o37_777_703;
/// All rules of openat2(2) for the walk.
const RULES: u64 = 0x3f;

/// What of [`libc::RESOLVE_BENEATH`] and the like the volume can promise: nothing, but a refusal of links is a flag of open(2).
const RESOLVE_NONE: u64 = 0;

/// open(2), openat(2): `dir` and `path` say which arguments these are.
pub fn open(number: i64, args: Args, dir: Option<usize>, path: usize, flags: u64, mode: u64) -> i64 {
    let follows = flags as i32 & libc::O_NOFOLLOW == 0;
    let call = PathCall { number, args, dir, path, follows };
    place::run(&call, |session, target| open_ours(session, target, flags as u32, mode as u32))
}

/// creat(2).
pub fn creat(args: Args) -> i64 {
    let flags = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64;
    open(libc::SYS_creat, args, None, 0, flags, args[1])
}

/// Whether openat2(2), which refuses what open(2) leaves unseen, takes these flags, mode, and rules.
fn is_how([flags, mode, rules]: [u64; 3]) -> bool {
    let with_path = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let makes = flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64 != 0;
    flags & !OPEN_FLAGS == 0
        && (flags & libc::O_PATH as u64 == 0 || flags & !(with_path as u64) == 0)
        && mode & !(if makes { 0o7777 } else { 0 }) == 0
        && rules & !RULES == 0
}

/// openat2(2): in the volume without rules for the walk, which the agent does not know.
pub fn openat2(args: Args) -> i64 {
    if !host::is_memory(args[2]) || !(HOW_BYTES..=HOW_BYTES_MAX).contains(&args[3]) {
        return raw(libc::SYS_openat2, args);
    }
    let how: [u64; 3] = host::read(args[2]);
    let later = host::bytes(args[2] + HOW_BYTES, (args[3] - HOW_BYTES) as usize);
    if later.iter().any(|byte| *byte != 0) || !is_how(how) {
        // It refuses both, and takes no effect.
        return raw(libc::SYS_openat2, args);
    }
    let follows = how[0] as i32 & libc::O_NOFOLLOW == 0;
    let call = PathCall { number: libc::SYS_openat2, args, dir: Some(0), path: 1, follows };
    place::run(&call, |session, target| {
        if how[2] != RESOLVE_NONE {
            return error(libc::EOPNOTSUPP);
        }
        open_ours(session, target, how[0] as u32, how[1] as u32)
    })
}

/// Opens a place in the volume; the new descriptor. A description (of `/proc/self/fd/N`), whose path is empty, is opened anew.
pub fn open_ours(session: &mut Session, target: Target, flags: u32, mode: u32) -> i64 {
    // What makes no file, and has flags that the agent takes, can say that there is none.
    let makes = flags as i32 & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) != 0;
    let key = Key::of(&target).filter(|_| !makes && flags as i32 & libc::O_ACCMODE != libc::O_ACCMODE);
    let looked = key.as_ref().and_then(|key| lookup::look(session, key));
    if matches!(looked, Some(Looked::Missing)) {
        return error(libc::ENOENT);
    }
    shared::before_open(session);
    let pipe = match named_pipes::open(session) {
        Ok(pipe) => pipe,
        Err(failed) => return failed,
    };
    let request = Request {
        op: Op::Open as u32,
        desc: target.desc,
        a: u64::from(flags),
        b: u64::from(mode),
        c: pipe.as_ref().map_or(0, |pipe| pipe.said),
        ..Request::default()
    };
    let asked = lookup::ask(session, request, key.as_ref(), target.path);
    match with_pipe(session, asked, pipe) {
        Err(failed) => failed,
        Ok((reply, Some(fd))) if reply.result >= 0 => {
            match (flags as i32 & libc::O_ACCMODE, looked) {
                (libc::O_RDONLY, _) => session.keep(&reply, None),
                // Contents that came are of a moment after the look, and perhaps of another file, which has the name by now.
                (_, Some(Looked::File(stat, witness))) if lookup::is_of(session, &reply, stat.ino) => {
                    session.keep(&reply, Some(witness));
                }
                _ => {}
            }
            if flags as i32 & libc::O_CLOEXEC == 0 {
                fds::keep_over_exec(fd);
            }
            fds::note(fd, reply.desc, flags as i32);
            i64::from(fd)
        }
        Ok((reply, fd)) => {
            if let Some(fd) = fd {
                host::close(fd);
            }
            // The agent opens it, but this process has no room for another descriptor.
            if reply.result >= 0 { error(libc::EMFILE) } else { reply.result }
        }
    }
}

/// The descriptor of an open: that of the named pipe, if it stands for the description, or that which came with the reply.
fn with_pipe(
    session: &Session,
    asked: Result<(Reply, Option<i32>), i64>,
    pipe: Option<Opened>,
) -> Result<(Reply, Option<i32>), i64> {
    let Some(pipe) = pipe else { return asked };
    match asked {
        Ok((reply, None)) if reply.result >= 0 => {
            session.next_pipe().into_iter().for_each(|next| next.follows(reply.result));
            Ok((reply, Some(pipe.fd)))
        }
        other => {
            host::close(pipe.fd);
            // The agent does not know of it.
            if matches!(other, Ok((_, Some(_)))) {
                session.next_pipe().into_iter().for_each(|next| next.follows(0));
            }
            other
        }
    }
}

/// close(2).
pub fn close(args: Args) -> i64 {
    let fd = argument(args[0]);
    if channel::is_hidden(fd) {
        return error(libc::EBADF);
    }
    let flushed = before_close(fd);
    let closed = fds::forgetting(fd, || call(libc::SYS_close, args[0], 0, 0));
    if closed == 0 { flushed } else { closed }
}

/// What the agent must know before a descriptor is closed: 0, or the error of writes that are still under way.
pub fn before_close(fd: i32) -> i64 {
    let flushes = channel::flushes_at_close();
    let locks = process::may_have_locks();
    // A channel that is not there yet has not said whether it wants a flush: then nothing was written by this process, and
    // the process that wrote has asked.
    if !flushes && !locks {
        return 0;
    }
    let Fd::Ours(desc) = fds::of(fd) else { return 0 };
    let flushes = flushes && fds::is_writable(fd);
    if !flushes && !locks {
        return 0;
    }
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let mut ask = |op: Op| {
        let answer = session.ask(Request { op: op as u32, desc, ..Request::default() }, &[]);
        answer.map_or_else(|failed| failed, |reply| reply.result.min(0))
    };
    let flushed = if flushes { ask(Op::Flush) } else { 0 };
    if locks {
        ask(Op::Unlock);
    }
    flushed
}

/// close_range(2): around the descriptors of this library.
pub fn close_range(args: Args) -> i64 {
    let (first, last, mut flags) = (args[0] as u32, args[1] as u32, args[2]);
    if flags & u64::from(libc::CLOSE_RANGE_CLOEXEC) != 0 || first > last {
        return raw(libc::SYS_close_range, args);
    }
    if flags & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0 {
        process::stop_noting();
    }
    if channel::flushes_at_close() || process::may_have_locks() {
        for fd in first..=last.min(fds::CACHED - 1) {
            if let Some(Fd::Ours(_)) = fds::known(fd as i32) {
                before_close(fd as i32);
            }
        }
    }
    fds::forget_range(first, last);
    let mut from = first;
    loop {
        let hidden = channel::next_hidden(from).filter(|hidden| *hidden <= last);
        let to = hidden.map_or(Some(last), |hidden| hidden.checked_sub(1).filter(|to| *to >= from));
        if let Some(to) = to {
            let closed = call(libc::SYS_close_range, u64::from(from), u64::from(to), flags);
            if closed < 0 {
                return closed;
            }
            flags &= !u64::from(libc::CLOSE_RANGE_UNSHARE);
        }
        match hidden.and_then(|hidden| hidden.checked_add(1)) {
            Some(next) if next <= last => from = next,
            _ => break,
        }
    }
    fds::forget_range(first, last);
    0
}
