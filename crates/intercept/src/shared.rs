//! What needs no question: the memory that the agent shares with its programs ([`aze_calls::shared`]).
//!
//! It alone moves a position without the agent, and shows contents that came with an open: those that lie in the window of the
//! channel of that open, until something else is asked there. The memory is mapped when it is wanted first; a forked child inherits it.

use crate::channel::Session;
use crate::host::{self, call, raw};
use crate::lookup;
use crate::process;
use crate::vectors::Vectors;
use aze_calls::shared::{ASK, BYTES, counter_at, position_at, position_in, word_of};
use aze_calls::{Op, POSITION, Request};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Where the memory is mapped, or one of the following.
static AT: AtomicU64 = AtomicU64::new(NOT_ASKED);
/// The agent was not asked for it.
const NOT_ASKED: u64 = 0;
/// The agent or the kernel has none.
const REFUSED: u64 = 1;

/// Contents could have been shown if it had been mapped.
static IS_MISSED: AtomicBool = AtomicBool::new(false);

/// A word of the memory, if it is mapped.
pub fn word(index: Option<usize>) -> Option<&'static AtomicU64> {
    let (at, index) = (AT.load(SeqCst), index?);
    if at <= REFUSED || index * 8 >= BYTES {
        return None;
    }
    // SAFETY: the mapping has as many bytes and is never taken away; its words are atomic.
    Some(unsafe { &*(at as *const AtomicU64).add(index) })
}

/// Maps the memory, unless that was done or refused.
pub fn map(session: &mut Session) {
    if AT.load(SeqCst) != NOT_ASKED {
        return;
    }
    let Ok((_, Some(fd))) = session.ask_with_fd(Request { op: Op::Shared as u32, ..Request::default() }, &[]) else {
        return AT.store(REFUSED, SeqCst);
    };
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let mapped = raw(libc::SYS_mmap, [0, BYTES as u64, protection, libc::MAP_SHARED as u64, fd as u64, 0]);
    host::close(fd);
    let at = if mapped < 0 { REFUSED } else { mapped as u64 };
    if AT.compare_exchange(NOT_ASKED, at, SeqCst, SeqCst).is_err() && at != REFUSED {
        // Another thread was first.
        host::unmap(at, BYTES);
    }
}

/// To be called before an open: maps the memory if it was missed.
pub fn before_open(session: &mut Session) {
    if IS_MISSED.load(SeqCst) {
        map(session);
    }
}

/// lseek(2) to a place that is known here; `None` if the agent has to be asked.
pub fn seek(desc: u64, offset: i64, whence: i32) -> Option<i64> {
    position_at(desc)?;
    if process::is_broken() || !matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
        return None;
    }
    if AT.load(SeqCst) == NOT_ASKED {
        map(&mut Session::begin().ok()?);
    }
    moved(word(position_at(desc))?, desc, |position| {
        let to = if whence == libc::SEEK_SET { offset } else { offset.checked_add_unsigned(position)? };
        // A wrong one is the agent's to refuse.
        u64::try_from(to).ok().filter(|to| *to < ASK)
    })
    .and_then(|(_, to)| i64::try_from(to).ok())
}

/// Moves a position; gives it before and after. `None` if the agent has to be asked.
fn moved(word: &AtomicU64, desc: u64, to: impl Fn(u64) -> Option<u64>) -> Option<(u64, u64)> {
    loop {
        let found = word.load(SeqCst);
        let position = position_in(found, desc)?;
        let next = to(position)?;
        if next == position || word.compare_exchange(found, word_of(desc, next), SeqCst, SeqCst).is_ok() {
            return Some((position, next));
        }
    }
}

/// Reads from contents that came with the open; the bytes. `None` if the agent has to be asked.
pub fn read(session: &mut Session, desc: u64, at: u64, vectors: &mut Vectors) -> Option<i64> {
    let (kept, witness) = session.kept(desc)?;
    if process::is_broken() {
        return None;
    }
    let Some(counter) = word(counter_at(kept.counter)) else {
        IS_MISSED.store(true, SeqCst);
        return None;
    };
    let is_current = match witness {
        // Opened for writing, too: what others have changed is to be seen.
        Some(witness) => lookup::is_unchanged(session, witness),
        None => now_ns() < kept.until_ns,
    };
    if !is_current || counter.load(SeqCst) != kept.seen {
        session.drop_kept();
        return None;
    }
    let (wanted, len) = (vectors.left(), u64::from(kept.len));
    if at != POSITION && at.saturating_add(wanted) > i64::MAX as u64 {
        return None;
    }
    let end = |from: u64| from.saturating_add(wanted).min(len.max(from));
    let (from, to) = if at == POSITION {
        moved(word(position_at(desc))?, desc, |position| Some(end(position)))?
    } else {
        (at, end(at))
    };
    vectors.put(session.kept_window() + from.min(len), to - from);
    if to - from < wanted {
        // The end was seen: what comes behind it later is asked for.
        session.drop_kept();
    }
    Some((to - from) as i64)
}

/// This node's clock, by which the agent has said until when.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let told = call(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC as u64, &raw mut now as u64, 0);
    if told < 0 { u64::MAX } else { now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use aze_calls::shared::with_place;

    #[test]
    fn a_position_moves_only_where_the_agent_does_not_hold_it() {
        let desc = with_place(77, 3);
        let word = AtomicU64::new(word_of(desc, 10));
        assert_eq!(moved(&word, desc, |position| Some(position + 5)), Some((10, 15)));
        assert_eq!(moved(&word, desc, |_| None), None);
        assert_eq!(moved(&word, with_place(78, 3), Some), None, "another description's");
        assert_eq!(position_in(word.load(SeqCst), desc), Some(15));
        word.store(word_of(desc, ASK), SeqCst);
        assert_eq!(moved(&word, desc, |_| Some(0)), None);
    }

    #[test]
    fn threads_that_move_one_position_take_turns() {
        let desc = with_place(77, 3);
        let word = AtomicU64::new(word_of(desc, 0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..10_000).for_each(|_| assert!(moved(&word, desc, |position| Some(position + 1)).is_some()))
                });
            }
        });
        assert_eq!(position_in(word.load(SeqCst), desc), Some(40_000));
    }
}
