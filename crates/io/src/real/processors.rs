//! The processors that threads run on (sched_setaffinity(2)).

use std::io;

/// The processor that this thread runs on now.
pub(super) fn current() -> usize {
    // SAFETY: takes no pointer.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// The processors that this thread may run on, in order.
pub fn processors() -> Vec<usize> {
    let mut set = empty();
    // SAFETY: the set is live and as large as stated.
    let got = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if got != 0 {
        // More processors than a set has room for.
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    }
    // SAFETY: each number lies within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Keeps the calling thread, and those that it starts from now on, on these processors.
///
/// # Errors
/// What the system said; `InvalidInput` for a number that no set has room for.
pub fn keep_on(processors: &[usize]) -> io::Result<()> {
    let mut set = empty();
    for cpu in processors {
        if *cpu >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the number lies within the set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: the set is live and as large as stated.
    let kept = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if kept == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn empty() -> libc::cpu_set_t {
    // SAFETY: all-zero bytes are an empty set.
    unsafe { std::mem::zeroed() }
}
