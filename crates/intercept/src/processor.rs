//! The processor on which a call is made.
//!
//! A thread that is woken on another processor costs more than most calls: that processor may rest, and both need a message to
//! each other. So a thread stays where it is while it waits for the agent, and tells the agent's thread to come there
//! (docs/decisions/0141-a-call-stays-on-its-processor.md). Another process that looks at the thread in the middle of a call sees it.

use crate::host::call;
use aze_calls::NO_PROCESSOR;

/// Words of a set of processors: 1,024 of them. On a machine with more, threads do not stay.
const WORDS: usize = 16;

type Set = [u64; WORDS];

/// Of so many calls one does not stay. The kernel moves only threads that are not bound, and those that call all the time are bound nearly
/// always: two that have come to one processor would stay there for ever, with another one at rest.
const CALLS_PER_MOVE: u32 = 512;

/// Whether a call stays that comes after so many others of its thread.
pub fn stays(calls_before: u32) -> bool {
    calls_before % CALLS_PER_MOVE != CALLS_PER_MOVE - 1
}

/// What a thread gets back when it has its answer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stay {
    /// The processors that it may run on, and the length of that set in bytes; 0 if there is nothing to give back.
    bytes: u64,
    allowed: Set,
    /// Where it stays.
    at: Set,
}

impl Stay {
    /// The thread is not bound.
    pub const NONE: Stay = Stay { bytes: 0, allowed: [0; WORDS], at: [0; WORDS] };

    /// Keeps the calling thread on the processor on which it is, whose number this returns; [`NO_PROCESSOR`] if that is not known.
    pub fn begin(&mut self) -> u16 {
        let mut number = 0u32;
        if call(libc::SYS_getcpu, &raw mut number as u64, 0, 0) < 0 || number as usize >= WORDS * 64 {
            return NO_PROCESSOR;
        }
        *self = Stay::NONE;
        let bytes = affinity(&mut self.allowed);
        self.at[number as usize / 64] = 1 << (number % 64);
        // A thread that its host has bound to one processor stays by itself.
        if bytes > 0 && self.allowed != self.at && set_affinity(bytes, &self.at) {
            self.bytes = bytes;
        }
        number as u16
    }

    /// Gives the thread its processors back, unless another process or thread has set them since.
    pub fn end(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut now = [0; WORDS];
        affinity(&mut now);
        if now == self.at && !set_affinity(self.bytes, &self.allowed) {
            // The thread's cpuset has none of these processors any more: the kernel takes those that it has.
            set_affinity(self.bytes, &[u64::MAX; WORDS]);
        }
        self.bytes = 0;
    }
}

/// Where the calling thread may run, and the bytes of the kernel's set; 0 if that is not known.
fn affinity(set: &mut Set) -> u64 {
    u64::try_from(call(libc::SYS_sched_getaffinity, 0, size_of::<Set>() as u64, set.as_mut_ptr() as u64)).unwrap_or(0)
}

fn set_affinity(bytes: u64, set: &Set) -> bool {
    call(libc::SYS_sched_setaffinity, 0, bytes, set.as_ptr() as u64) >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_and_then_the_kernel_may_move_a_thread() {
        let moves: Vec<u32> = (0..3 * CALLS_PER_MOVE).filter(|calls| !stays(*calls)).collect();
        assert_eq!(moves, [511, 1023, 1535]);
        assert!(stays(u32::MAX - 1) && !stays(u32::MAX) && stays(0), "also when the count begins anew");
    }

    fn now() -> Set {
        let mut set = [0; WORDS];
        assert!(affinity(&mut set) > 0);
        set
    }

    #[test]
    fn a_thread_stays_and_may_go_again() {
        let before = now();
        let mut stay = Stay::NONE;
        let number = usize::from(stay.begin());
        assert!(before[number / 64] & 1 << (number % 64) != 0);
        assert_eq!(now(), stay.at);
        stay.end();
        assert_eq!(now(), before);
        stay.end();
        assert_eq!(now(), before);
    }

    #[test]
    fn a_set_that_was_given_in_the_middle_of_a_call_stays() {
        let before = now();
        if before.iter().map(|word| word.count_ones()).sum::<u32>() < 2 {
            // There is no other set.
            return;
        }
        let mut stay = Stay::NONE;
        let number = usize::from(stay.begin());
        let mut other = before;
        other[number / 64] &= !(1 << (number % 64));
        assert!(set_affinity(stay.bytes, &other));
        stay.end();
        assert_eq!(now(), other);
    }

    #[test]
    fn a_bound_thread_stays_bound() {
        let mut first = Stay::NONE;
        first.begin();
        let (bound, mut second) = (now(), Stay::NONE);
        second.begin();
        second.end();
        assert_eq!(now(), bound);
        first.end();
    }
}
