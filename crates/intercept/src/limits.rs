//! The limit of the process on the length of files: RLIMIT_FSIZE (getrlimit(2)).
//!
//! A write that begins below it is cut to it. One that begins there fails, and the thread gets SIGXFSZ.

use crate::channel::Session;
use crate::descriptors::{position_of, stat_of};
use crate::host::{self, call, error, raw};
use crate::place::Target;
use crate::stat;
use aze_calls::{Op, POSITION, Request};

/// The limit, if there is one.
fn file_bytes_max() -> Option<u64> {
    let mut limits = [libc::RLIM_INFINITY; 2];
    raw(libc::SYS_prlimit64, [0, u64::from(libc::RLIMIT_FSIZE), 0, limits.as_mut_ptr() as u64, 0, 0]);
    (limits[0] != libc::RLIM_INFINITY).then_some(limits[0])
}

/// How many of these bytes may be written through a description, at an offset or [`POSITION`].
pub fn room(session: &mut Session, desc: u64, at: u64, bytes: u64) -> Result<u64, i64> {
    let Some(max) = file_bytes_max().filter(|_| bytes > 0) else { return Ok(bytes) };
    let flags = flags_of(session, desc)?;
    if !is_writable(flags) {
        // The agent refuses it.
        return Ok(bytes);
    }
    let at = match at {
        _ if flags & libc::O_APPEND != 0 => stat_of(session, desc)?.size,
        POSITION => position_of(session, desc)? as u64,
        at => at,
    };
    if at >= max { Err(exceeded()) } else { Ok(bytes.min(max - at)) }
}

/// Whether a file that is open for writing may get this length: not if that is beyond the limit and makes it longer.
pub fn may_be_open(desc: u64, len: u64) -> Result<(), i64> {
    if file_bytes_max().is_none_or(|max| len <= max) {
        return Ok(());
    }
    let mut session = Session::begin()?;
    if is_writable(flags_of(&mut session, desc)?) && stat_of(&mut session, desc)?.size < len {
        return Err(exceeded());
    }
    Ok(())
}

/// As [`may_be_open`], for a file at the end of a path. The agent says what else is wrong with it.
pub fn may_be(session: &mut Session, target: Target, len: u64) -> Result<(), i64> {
    if file_bytes_max().is_none_or(|max| len <= max) {
        return Ok(());
    }
    match stat::fetch(session, target, true) {
        Ok(stat) if stat.mode & libc::S_IFMT == libc::S_IFREG && stat.size < len => Err(exceeded()),
        _ => Ok(()),
    }
}

fn flags_of(session: &mut Session, desc: u64) -> Result<i32, i64> {
    let flags = session.ask(Request { op: Op::GetFlags as u32, desc, ..Request::default() }, &[])?.result;
    if flags < 0 { Err(flags) } else { Ok(flags as i32) }
}

fn is_writable(flags: i32) -> bool {
    matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

/// Sends this thread SIGXFSZ, which comes when the call has its result.
fn exceeded() -> i64 {
    let thread = call(libc::SYS_gettid, 0, 0, 0) as u64;
    call(libc::SYS_tgkill, u64::from(host::pid()), thread, libc::SIGXFSZ as u64);
    error(libc::EFBIG)
}
