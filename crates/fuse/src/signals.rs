//! Signals that ask a mount to end.

use std::io;

/// Keeps SIGTERM, SIGINT and SIGHUP for [`wait`]. To be called before the process starts its first
/// thread, since every thread inherits the mask.
pub fn hold() -> io::Result<()> {
    let set = ending();
    // SAFETY: `set` is initialised; the old mask is not asked for.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Blocks until one of the held signals comes; gives its number.
pub fn wait() -> io::Result<i32> {
    let set = ending();
    let mut number = 0;
    // SAFETY: both arguments point to values that live until the call returns.
    let error = unsafe { libc::sigwait(&set, &mut number) };
    if error == 0 { Ok(number) } else { Err(io::Error::from_raw_os_error(error)) }
}

fn ending() -> libc::sigset_t {
    // SAFETY: a signal set is a plain array of bits, for which zero is a valid value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a value of ours.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: `set` was initialised above and the signal exists.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}
