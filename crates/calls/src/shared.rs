//! Memory that an agent shares with all of its programs, so that they need not ask it.
//!
//! It is an array of words of 64 bits: first the *positions* of descriptions, one word for each *place*, then *counters of changes*.
//! A description with a place has the place in its number. Its word is the low 16 bits of the number and the position, so that a word of
//! a description that has gone is not taken for that of the next one in the same place. While the agent moves a position, and where
//! the position is too large for a word, the word says [`ASK`]. Programs change a word only by compare-and-swap from one position to another.
//!
//! Behind them lie words for looking names up ([`crate::indexes`]). Two *versions*, of the shared indexes and of the directories
//! that the agent has resolved: each moves when those of before count no more. The largest *time* in nanoseconds that a program has
//! seen without the agent. *Counts of open files*: the agent may know more of an open file than its server does.
//!
//! A counter moves before a change of a file by this agent is sent, and again before its caller is told of its end. Files share
//! counters.

use core::ops::Range;

/// Places for positions. Place 0 is none; a description that finds no free place has none, and its position is asked for.
pub const PLACES: usize = 1 << 16;
/// Counters of changes.
pub const COUNTERS: usize = 256;
/// Where the version of shared indexes lies.
pub const SERVERS_VERSION_AT: usize = PLACES + COUNTERS;
/// Where the version of resolved directories lies.
pub const NAMES_VERSION_AT: usize = SERVERS_VERSION_AT + 1;
/// Where the time lies that programs have seen.
pub const TIME_AT: usize = NAMES_VERSION_AT + 1;
/// Counts of open files; files share them.
const OPEN_BITS: u32 = 12;
/// Where they begin.
const OPENS_AT: usize = TIME_AT + 1;
/// The words of the memory.
pub const WORDS: usize = OPENS_AT + (1 << OPEN_BITS);
/// Bytes of the memory.
pub const BYTES: usize = WORDS * 8;

/// Bits of a position in its word.
const POSITION_BITS: u32 = 48;
/// In place of a position: the agent knows it.
pub const ASK: u64 = (1 << POSITION_BITS) - 1;

/// Where the place lies in a description's number.
const PLACE_SHIFT: u32 = 44;
/// Numbers that descriptions, owners and waits have without a place: at 100,000 opens a second enough for five years.
pub const NUMBERS: Range<u64> = 1..1 << PLACE_SHIFT;

/// The number of a description with a place.
pub fn with_place(number: u64, place: u16) -> u64 {
    number | u64::from(place) << PLACE_SHIFT
}

/// The index of the word of a description's position, if it has one.
pub fn position_at(desc: u64) -> Option<usize> {
    let place = (desc >> PLACE_SHIFT) as u16;
    (place > 0).then_some(usize::from(place))
}

/// The index of a counter's word; `None` if there is no such counter.
pub fn counter_at(counter: u32) -> Option<usize> {
    let counter = counter as usize;
    (counter < COUNTERS).then_some(PLACES + counter)
}

/// The index of the count of open files that an inode falls on.
pub fn opens_at(ino: u64) -> usize {
    // Fibonacci hashing: the high bits of a product depend on all bits below.
    OPENS_AT + (ino.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - OPEN_BITS)) as usize
}

/// The word of a description's position.
pub fn word_of(desc: u64, position: u64) -> u64 {
    let position = if position < ASK { position } else { ASK };
    desc << POSITION_BITS | position
}

/// The position that a word gives for this description; `None` if the agent has to be asked.
pub fn position_in(word: u64, desc: u64) -> Option<u64> {
    let position = word & ASK;
    (word >> POSITION_BITS == desc & 0xffff && position != ASK).then_some(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_of_one_description_and_has_a_position_or_none() {
        let (desc, next) = (with_place(0x1_2345, 9), with_place(0x1_2346, 9));
        assert_eq!((position_at(desc), position_at(next), position_at(0x1_2345)), (Some(9), Some(9), None));
        assert_eq!(position_at(with_place(NUMBERS.end - 1, u16::MAX)), Some(PLACES - 1));
        assert_eq!(position_in(word_of(desc, 700), desc), Some(700));
        assert_eq!(position_in(word_of(desc, 700), next), None);
        for far in [ASK, ASK + 1, u64::MAX] {
            assert_eq!(position_in(word_of(desc, far), desc), None, "{far}");
        }
        assert_eq!(position_in(0, desc), None);
    }

    #[test]
    fn counters_lie_behind_positions() {
        assert_eq!(
            (counter_at(0), counter_at(255), counter_at(256)),
            (Some(PLACES), Some(SERVERS_VERSION_AT - 1), None)
        );
        assert!((0..10_000).all(|ino| (OPENS_AT..WORDS).contains(&opens_at(ino))));
        // A number with a place fits into a library's note, which takes three bits more, and two for its kind in the agent.
        assert!(with_place(NUMBERS.end - 1, u16::MAX) < 1 << 60);
    }
}
