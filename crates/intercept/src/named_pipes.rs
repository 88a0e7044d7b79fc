//! Named pipes of the agent, which this process opens itself: then no descriptor has to come with the reply to an open.
//!
//! The agent reserves one for each channel. Its reading end is opened before an open is asked for; if that succeeds, it is the file's
//! descriptor, and the reply names the channel's next one. Else it is closed, and opened again for the next open.

use crate::channel::{self, Session};
use crate::host::{self, call, error};
use aze_calls::{Op, PIPE_FLAGS, Request};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// Opens over a channel before it asks for named pipes: most programs of a shell script open no more.
const OPENS_BEFORE: u32 = 2;
/// Opens after which a channel for which there was no named pipe asks again.
const OPENS_BETWEEN: u32 = 1024;

/// The directory, at a high number; -1 if it is not open. Forked children inherit it.
static DIRECTORY: AtomicI32 = AtomicI32::new(-1);

/// What of a channel belongs to this room.
pub struct Next {
    opens: AtomicU32,
    /// 1 + the number of the pipe that is reserved for the channel; 0 if there is none.
    reserved: AtomicU32,
}

impl Next {
    /// None is reserved.
    pub const fn new() -> Next {
        Next { opens: AtomicU32::new(0), reserved: AtomicU32::new(0) }
    }

    /// The channel is another one: nothing is reserved for it.
    pub fn forget(&self) {
        self.reserved.store(0, SeqCst);
        self.opens.store(0, SeqCst);
    }

    /// As a reply says, 1 + the number of the next one.
    pub fn follows(&self, said: i64) {
        self.reserved.store(u32::try_from(said).unwrap_or(0), SeqCst);
    }
}

/// The reading end of a reserved pipe.
pub struct Opened {
    /// The descriptor, which is close-on-exec.
    pub fd: i32,
    /// 1 + the pipe's number.
    pub said: u64,
}

/// The descriptor of this room.
pub fn descriptors() -> impl Iterator<Item = i32> {
    core::iter::once(DIRECTORY.load(SeqCst))
}

/// Opens the pipe that is reserved for the session's channel; `None` if there is none.
///
/// # Errors
/// EMFILE, ENFILE: the open that was to come fails with it, before it makes or cuts a file.
pub fn open(session: &mut Session) -> Result<Option<Opened>, i64> {
    let opened = open_reserved(session)?;
    if opened.is_none()
        && let Some(socket) = session.socket()
    {
        // Whether there is room for the descriptor that comes with the reply.
        let copy = call(libc::SYS_fcntl, socket as u64, libc::F_DUPFD_CLOEXEC as u64, 0);
        if copy < 0 {
            return Err(copy);
        }
        host::close(copy as i32);
    }
    Ok(opened)
}

fn open_reserved(session: &mut Session) -> Result<Option<Opened>, i64> {
    let Some(next) = session.next_pipe() else { return Ok(None) };
    let opens = next.opens.fetch_add(1, Relaxed);
    if next.reserved.load(SeqCst) == 0 && opens % OPENS_BETWEEN == OPENS_BEFORE {
        reserve(session, next);
    }
    let said = next.reserved.load(SeqCst);
    let Some(number) = said.checked_sub(1) else { return Ok(None) };
    let name = name(number);
    let flags = (libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
    let directory = DIRECTORY.load(SeqCst);
    let opened = host::raw(libc::SYS_openat, [directory as u64, name.as_ptr() as u64, flags, 0, 0, 0]);
    if opened == error(libc::EMFILE) || opened == error(libc::ENFILE) {
        return Err(opened);
    }
    if opened < 0 {
        next.reserved.store(0, SeqCst);
        return Ok(None);
    }
    // open(2) refuses O_DIRECT for it.
    call(libc::SYS_fcntl, opened as u64, libc::F_SETFL as u64, PIPE_FLAGS as u64);
    Ok(Some(Opened { fd: opened as i32, said: u64::from(said) }))
}

/// Has a pipe reserved for the channel, and gets the directory, if this process has not got it.
fn reserve(session: &mut Session, next: &Next) {
    let has_directory = u64::from(DIRECTORY.load(SeqCst) >= 0);
    let request = Request { op: Op::Pipes as u32, a: has_directory, ..Request::default() };
    let Ok((reply, fd)) = session.ask_with_fd(request, &[]) else { return };
    if let Some(fd) = fd {
        let hidden = channel::hide(fd);
        if DIRECTORY.compare_exchange(-1, hidden, SeqCst, SeqCst).is_err() {
            // Another thread was faster.
            host::close(hidden);
        }
    }
    if DIRECTORY.load(SeqCst) >= 0 {
        next.follows(reply.result);
    }
}

/// The name of a pipe, with a NUL at its end.
fn name(number: u32) -> [u8; 11] {
    let mut name = [0; 11];
    let digits = number.checked_ilog10().map_or(1, |digits| digits as usize + 1);
    let mut left = number;
    for digit in name.iter_mut().take(digits).rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_number_with_a_nul() {
        assert_eq!(&name(0), b"0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&name(10), b"10\0\0\0\0\0\0\0\0\0");
        assert_eq!(&name(999), b"999\0\0\0\0\0\0\0\0");
        assert_eq!(&name(u32::MAX), b"4294967295\0");
    }
}
