//! Which descriptors are the volume's.
//!
//! The reading end of a pipe with two flags that hardly any other pipe has is asked of the agent, once; the answer is noted.
//! A note is good only as long as the descriptor is not closed: each close makes the note a new number, and an answer is
//! noted only if the number has stayed.

use crate::channel::{self, Session};
use crate::host::{self, call, error};
use crate::process::{may_note, wiped};
use aze_calls::{Op, PIPE_FLAGS, Request};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};

/// Descriptors below this number have a note; others are asked about each time.
pub const CACHED: u32 = 65_536;

/// The note of a descriptor that is not the volume's. Odd notes are known: a description's number from bit 3, and
/// [`WRITABLE`] or [`PLACE`]; even ones are unknown.
pub const NOT_OURS: u64 = 1;

/// The note's bit for a description that may be written.
const WRITABLE: u64 = 2;

/// The note's bit for a description that is only a place in the file system: `O_PATH` (open(2)).
const PLACE: u64 = 4;

/// Number of the next unknown note.
static NEXT_UNKNOWN: AtomicU64 = AtomicU64::new(1);

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fd {
    /// Not the volume's: the call goes to the kernel.
    Kernels,
    /// An open file description of the volume.
    Ours(u64),
    /// It may be the volume's, but the agent does not answer: the call fails with this.
    Failed(i64),
}

fn note_of(fd: i32) -> Option<&'static AtomicU64> {
    wiped().fds.get(usize::try_from(fd).ok()?)
}

/// Says what a descriptor is.
pub fn of(fd: i32) -> Fd {
    found(fd).map_or_else(Fd::Failed, of_note)
}

/// Says what a descriptor is, for a call that needs an open file: EBADF for a place.
pub fn of_open(fd: i32) -> Fd {
    found(fd).map_or_else(Fd::Failed, of_open_note)
}

/// The note of a descriptor: the known one, or what is found out now.
fn found(fd: i32) -> Result<u64, i64> {
    if fd < 0 {
        return Ok(0);
    }
    if !may_note() {
        return ask(fd);
    }
    let Some(note) = note_of(fd) else { return ask(fd) };
    let known = note.load(SeqCst);
    if known & 1 == 1 {
        return Ok(known);
    }
    let answer = ask(fd)?;
    if answer & 1 == 1 {
        let _ = note.compare_exchange(known, answer, SeqCst, SeqCst);
    }
    Ok(answer)
}

fn of_open_note(note: u64) -> Fd {
    match of_note(note) {
        Fd::Ours(_) if note & PLACE != 0 => Fd::Failed(error(libc::EBADF)),
        fd => fd,
    }
}

/// What a note says; an unknown one is left to the kernel.
fn of_note(note: u64) -> Fd {
    if note & 1 == 1 && note != NOT_OURS { Fd::Ours(note >> 3) } else { Fd::Kernels }
}

/// Asks the kernel and then the agent; gives a note.
fn ask(fd: i32) -> Result<u64, i64> {
    if channel::is_hidden(fd) {
        return Ok(0);
    }
    let flags = call(libc::SYS_fcntl, fd as u64, libc::F_GETFL as u64, 0);
    if flags < 0 {
        return Ok(0);
    }
    if flags as i32 & PIPE_FLAGS != PIPE_FLAGS || flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
        return Ok(NOT_OURS);
    }
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    if call(libc::SYS_fstat, fd as u64, stat.as_mut_ptr() as u64, 0) < 0 {
        return Ok(0);
    }
    // SAFETY: zeros are a valid stat, and fstat(2) has put one over them.
    let stat = unsafe { stat.assume_init() };
    if stat.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Ok(NOT_OURS);
    }
    let mut session = Session::begin()?;
    let reply =
        session.ask(Request { op: Op::Identify as u32, a: stat.st_ino, c: stat.st_dev, ..Request::default() }, &[])?;
    match reply.result {
        0 => Ok(reply.desc << 3 | WRITABLE | 1),
        1 => Ok(reply.desc << 3 | PLACE | 1),
        failed if failed == error(libc::ENOENT) => Ok(NOT_OURS),
        failed => Err(failed),
    }
}

/// Notes a descriptor that the agent has just given, opened with these flags.
pub fn note(fd: i32, desc: u64, flags: i32) {
    if may_note()
        && let Some(note) = note_of(fd)
    {
        let of_flags = match () {
            () if flags & libc::O_PATH != 0 => PLACE,
            () if flags & libc::O_ACCMODE != libc::O_RDONLY => WRITABLE,
            () => 0,
        };
        note.store(desc << 3 | of_flags | 1, SeqCst);
    }
}

/// Notes that nothing is known about a descriptor.
pub fn forget(fd: i32) {
    if may_note()
        && let Some(note) = note_of(fd)
    {
        note.store(NEXT_UNKNOWN.fetch_add(1, Relaxed) << 1, Release);
    }
}

/// Makes a call that closes or replaces a descriptor. Nothing is known about it before, so that a thread to which the kernel
/// gives the number at once asks about it; and nothing after, even if a thread has found something out in between.
pub fn forgetting(fd: i32, close: impl FnOnce() -> i64) -> i64 {
    let note = if may_note() { note_of(fd) } else { None };
    let Some(note) = note else { return close() };
    let number = NEXT_UNKNOWN.fetch_add(2, Relaxed) << 1;
    note.store(number, Release);
    let result = close();
    note.store(number + 2, Release);
    result
}

/// Forgets a range of descriptors, both ends of it.
pub fn forget_range(first: u32, last: u32) {
    if !may_note() {
        return;
    }
    let unknown = NEXT_UNKNOWN.fetch_add(1, SeqCst) << 1;
    let range = wiped().fds.get(first as usize..=last.min(CACHED - 1) as usize);
    for note in range.unwrap_or(&[]) {
        // Notes that were never made are not written: their memory stays unused.
        if note.load(SeqCst) != 0 {
            note.store(unknown, SeqCst);
        }
    }
}

/// A descriptor has become a copy of another one.
pub fn copied(from: i32, to: i32) {
    forget(to);
    if may_note()
        && let (Some(from), Some(to)) = (note_of(from), note_of(to))
    {
        let known = from.load(SeqCst);
        if known & 1 == 1 {
            to.store(known, SeqCst);
        }
    }
}

/// True if the descriptor's description may have been written by way of it.
pub fn is_writable(fd: i32) -> bool {
    !may_note() || note_of(fd).is_none_or(|note| note.load(SeqCst) & 3 != 1)
}

/// The note of the descriptor if it is known, without asking.
pub fn known(fd: i32) -> Option<Fd> {
    if !may_note() {
        return None;
    }
    let note = note_of(fd)?.load(SeqCst);
    (note & 1 == 1).then(|| of_note(note))
}

/// The descriptor in an argument of a system call.
pub fn argument(argument: u64) -> i32 {
    argument as u32 as i32
}

/// Takes the close-on-exec flag from a descriptor.
pub fn keep_over_exec(fd: i32) {
    host::call(libc::SYS_fcntl, fd as u64, libc::F_SETFD as u64, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_no_open_file() {
        for (note, is, is_open) in [
            (NOT_OURS, Fd::Kernels, Fd::Kernels),
            (0, Fd::Kernels, Fd::Kernels),
            (7 << 3 | 1, Fd::Ours(7), Fd::Ours(7)),
            (7 << 3 | WRITABLE | 1, Fd::Ours(7), Fd::Ours(7)),
            (7 << 3 | PLACE | 1, Fd::Ours(7), Fd::Failed(error(libc::EBADF))),
        ] {
            assert_eq!((of_note(note), of_open_note(note)), (is, is_open));
        }
    }
}
