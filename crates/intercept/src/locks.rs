//! flock(2) and the locks of fcntl(2).
//!
//! While a lock is waited for, the host's signals are let in. A handler ends the wait, which the agent is told; the call
//! begins again if every handler of the process asks for that (SA_RESTART), because the library cannot know which one ran.

use crate::channel::Session;
use crate::descriptors::{position_of, stat_of};
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::process;
use aze_calls::{Op, Request};

/// Signals that a process can have handlers for.
const SIGNALS: u64 = 64;

/// struct sigaction as the kernel reads it: handler, flags, restorer, mask.
type Action = [u64; 4];

/// flock(2).
pub fn flock(args: Args) -> i64 {
    let desc = match fds::of_open(argument(args[0])) {
        Fd::Kernels => return raw(libc::SYS_flock, args),
        Fd::Failed(failed) => return failed,
        Fd::Ours(desc) => desc,
    };
    let operation = args[1] & 0xffff_ffff;
    let request = Request { op: Op::Flock as u32, desc, a: operation, ..Request::default() };
    if operation as i32 & (libc::LOCK_NB | libc::LOCK_UN) != 0 {
        return crate::descriptors::ask(request);
    }
    wait(request, &[])
}

/// The commands of fcntl(2) for locks; `at` is a struct flock.
pub fn fcntl(desc: u64, command: i32, at: u64) -> i64 {
    if !host::is_memory(at) {
        return error(libc::EFAULT);
    }
    let mut lock: libc::flock = host::read(at);
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    if let Err(failed) = make_absolute(&mut session, desc, &mut lock) {
        return failed;
    }
    let request = Request { op: Op::Lock as u32, desc, a: command as u64, ..Request::default() };
    let bytes = host::bytes(&raw const lock as u64, size_of::<libc::flock>());
    if !matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW) {
        process::note_lock();
    }
    match command {
        libc::F_SETLKW | libc::F_OFD_SETLKW => {
            drop(session);
            wait(request, &[bytes])
        }
        _ => {
            let reply = match session.ask(request, &[bytes]) {
                Ok(reply) => reply,
                Err(failed) => return failed,
            };
            let found = session.bytes(&reply);
            let asks = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
            if reply.result >= 0 && asks && found.len() >= size_of::<libc::flock>() {
                host::write(at, host::read::<libc::flock>(found.as_ptr() as u64));
            }
            reply.result
        }
    }
}

/// The beginning from the file's, the length not negative.
fn make_absolute(session: &mut Session, desc: u64, lock: &mut libc::flock) -> Result<(), i64> {
    let from = match i32::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => position_of(session, desc)?,
        libc::SEEK_END => stat_of(session, desc)?.size as i64,
        _ => return Err(error(libc::EINVAL)),
    };
    (lock.l_start, lock.l_len) = range(from, lock.l_start, lock.l_len).ok_or(error(libc::EINVAL))?;
    lock.l_whence = libc::SEEK_SET as i16;
    Ok(())
}

/// Start and length of a lock that is counted from `from`; `None` if it begins before the file.
fn range(from: i64, start: i64, length: i64) -> Option<(i64, i64)> {
    let start = from.checked_add(start)?;
    let (start, length) =
        if length < 0 { (start.checked_add(length)?, length.checked_neg()?) } else { (start, length) };
    (start >= 0).then_some((start, length))
}

/// Asks for a lock and waits with the host's signals.
fn wait(request: Request, parts: &[&[u8]]) -> i64 {
    loop {
        let result = wait_once(request, parts);
        if result != error(libc::EINTR) || !handlers_restart() {
            return result;
        }
    }
}

fn wait_once(request: Request, parts: &[&[u8]]) -> i64 {
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    if let Err(failed) = session.send(request, parts) {
        return failed;
    }
    let (socket, mask) = session.waiting();
    let mut ready = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    let args = [&raw mut ready as u64, 1, 0, &raw const mask as u64, 8, 0];
    if raw(libc::SYS_ppoll, args) == error(libc::EINTR) {
        session.cancel();
    }
    // One reply in all: the lock, if it came first, or EINTR.
    session.reply().map_or_else(|failed| failed, |(reply, _)| reply.result)
}

/// True if each handler of this process restarts the call that it has interrupted.
fn handlers_restart() -> bool {
    let mut handlers = 0;
    for signal in 1..=SIGNALS {
        let mut action: Action = [0; 4];
        let asked = raw(libc::SYS_rt_sigaction, [signal, 0, action.as_mut_ptr() as u64, 8, 0, 0]);
        if asked < 0 || action[0] <= libc::SIG_IGN as u64 {
            continue;
        }
        handlers += 1;
        if action[1] & libc::SA_RESTART as u64 == 0 {
            return false;
        }
    }
    handlers > 0
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn ranges_count_from_the_files_beginning() {
        assert_eq!(range(0, 5, 0), Some((5, 0)));
        assert_eq!(range(10, -4, 2), Some((6, 2)));
        assert_eq!(range(0, 10, -4), Some((6, 4)));
        assert_eq!(range(0, 3, -4), None);
        assert_eq!(range(0, -1, 0), None);
        assert_eq!(range(i64::MAX, 1, 0), None);
        assert_eq!(range(0, 0, i64::MIN), None);
    }
}
