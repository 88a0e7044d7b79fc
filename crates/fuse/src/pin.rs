//! On which core a thread runs. A worker that reads alone stays where it is: a server of this node
//! answers on the core that it was asked from, and the system would move whom it wakes to another one, which
//! sleeps, and back again with the next request.

use std::io::Read;

/// Bytes of `/proc/thread-self/schedstat` at most: three numbers.
const SCHEDSTAT_BYTES: usize = 128;

/// Processors that a thread may run on.
#[derive(Clone, Copy)]
pub struct Cores(libc::cpu_set_t);

impl Cores {
    /// Keeps the calling thread where it is now; gives where it might run before. `None` if that was only one, or
    /// if the system does not want it.
    pub fn keep_here() -> Option<Cores> {
        let before = Cores::own()?;
        // SAFETY: both only look, one at a live set.
        let (here, count) = unsafe { (libc::sched_getcpu(), libc::CPU_COUNT(&before.0)) };
        let core = usize::try_from(here).ok().filter(|core| *core < libc::CPU_SETSIZE as usize && count > 1)?;
        let mut only = Cores::none();
        // SAFETY: the number lies within the live set.
        unsafe { libc::CPU_SET(core, &mut only.0) };
        only.allow().then_some(before)
    }

    /// Lets the calling thread run there.
    pub fn allow(&self) -> bool {
        // SAFETY: the set is live and as large as stated.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) == 0 }
    }

    /// Those that the calling thread may run on.
    fn own() -> Option<Cores> {
        let mut cores = Cores::none();
        // SAFETY: the set is live and as large as stated.
        let got = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut cores.0) };
        (got == 0).then_some(cores)
    }

    fn none() -> Cores {
        // SAFETY: all-zero bytes are an empty set.
        Cores(unsafe { std::mem::zeroed() })
    }
}

/// How long the calling thread has waited for a core in its life, in nanoseconds. Unknown where the system does
/// not count it.
pub fn delayed_ns() -> Option<u64> {
    let mut text = [0; SCHEDSTAT_BYTES];
    let count = std::fs::File::open("/proc/thread-self/schedstat").and_then(|mut file| file.read(&mut text)).ok()?;
    let text = std::str::from_utf8(&text[..count]).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_is_kept() {
        // Other tests of this program run on other threads.
        // SAFETY: it only looks at a live set.
        let count = || Cores::own().map(|cores| unsafe { libc::CPU_COUNT(&cores.0) });
        let before = count().expect("the system says where this thread may run");
        match Cores::keep_here() {
            Some(all) => {
                assert_eq!(count(), Some(1));
                assert!(Cores::keep_here().is_none(), "there is only one already");
                assert!(all.allow());
            }
            None => assert_eq!(before, 1),
        }
        assert_eq!(count(), Some(before));
    }

    #[test]
    fn a_thread_knows_how_long_it_has_waited() {
        let first = delayed_ns().expect("this system counts it");
        assert!(delayed_ns() >= Some(first));
    }
}
