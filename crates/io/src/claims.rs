//! Notes that a process makes for another of its node, in memory that both see, of the records it is about to go on
//! believing.
//!
//! It alone knows in which order notes and records become visible: a client that notes
//! something and then finds a record of a published index unchanged has noted it before the server that changes the
//! record afterwards looks (each side writes, and reads after a fence: Dekker's way). Numbers share places,
//! so that more may seem to be noted than is. It does not know what the numbers and periods mean.

mod note;

use crate::published::SharedWords;
use note::PERIOD_AT;
use std::sync::atomic::AtomicU64;

mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Base-2 logarithm of the places.
const PLACE_BITS: u32 = 15;

/// Words of the notes of one connection.
pub const CLAIM_WORDS: usize = 1 << PLACE_BITS;

/// The notes of one connection, of either end.
#[derive(Clone, Debug)]
pub struct Claims(SharedWords);

/// The word at a number's place. A note changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim(u64);

impl Claim {
    /// The latest period in which something was noted.
    pub fn period(self) -> u64 {
        self.0 >> PERIOD_AT
    }
}

impl Claims {
    /// Notes in these words, at least [`CLAIM_WORDS`] of them and zero at first; `None` if they are fewer.
    pub(crate) fn new(words: SharedWords) -> Option<Claims> {
        (words.0.words().len() >= CLAIM_WORDS).then_some(Claims(words))
    }

    /// Notes that only this process sees.
    pub fn own() -> Claims {
        Claims(SharedWords::own(CLAIM_WORDS))
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        // Fibonacci hashing: the high bits of a product depend on all bits below.
        let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - PLACE_BITS);
        &self.0.0.words()[place as usize]
    }

    /// Notes a number. Later reads happen after the note is visible.
    pub fn claim(&self, number: u64, period: u64) {
        note::note(self.word(number), period);
    }

    /// Reads the note of a number, after all earlier writes of this thread.
    pub fn look(&self, number: u64) -> Claim {
        Claim(note::noted(self.word(number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::{COUNTER_BITS_MIN, Reader, Shape, Writer, words_needed};
    use std::sync::Barrier;

    #[test]
    fn each_note_is_another_one_and_periods_only_grow() {
        let claims = Claims::own();
        assert_eq!(claims.look(5).period(), 0);
        claims.claim(5, 7);
        let first = claims.look(5);
        assert_eq!(first.period(), 7);
        claims.claim(5, 6);
        assert_eq!(claims.look(5).period(), 7, "whoever is late takes nothing away");
        assert_ne!(claims.look(5), first);
        claims.claim(5, 8);
        assert_eq!(claims.look(5).period(), 8);
    }

    /// One thread believes a record that the other one changes: at least one of the two notices, every time.
    #[test]
    fn either_the_change_or_the_note_is_seen() {
        const ROUNDS: u64 = 20_000;
        let shapes = [Shape { key_words: 1, value_words: 1 }];
        let memory = SharedWords::own(words_needed(&shapes, &[0], COUNTER_BITS_MIN));
        let writer = Writer::begin(memory.clone(), &shapes, &[0], COUNTER_BITS_MIN);
        let reader = Reader::open(memory, &shapes).expect("a published index was begun");
        let (claims, start, end) = (Claims::own(), Barrier::new(2), Barrier::new(2));
        writer.put(0, 1, &[1], &[0]);
        std::thread::scope(|scope| {
            let changer = scope.spawn(|| {
                let mut seen = Vec::new();
                for round in 1..=ROUNDS {
                    start.wait();
                    writer.put(0, 1, &[1], &[round]);
                    seen.push(claims.look(1).period() == round);
                    end.wait();
                }
                seen
            });
            let mut believes = Vec::new();
            for round in 1..=ROUNDS {
                let mut value = [0];
                let record = reader.read().find(0, 1, &[1], &mut value).expect("nobody writes");
                start.wait();
                claims.claim(1, round);
                believes.push(reader.read().is_unchanged(&record));
                end.wait();
            }
            let seen = changer.join().expect("it ends");
            for (seen, believes) in seen.iter().zip(&believes) {
                assert!(*seen || !believes, "the old value is believed, and nobody knows");
            }
        });
    }
}
