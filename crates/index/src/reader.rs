//! How a record is read whole while the server may be writing it.
//!
//! Each record has a count that is odd while it is written and higher afterwards (a sequence lock, Boehm 2012): a reader
//! looks at the count before and after, and takes the words it has read only if that was even and stayed. Readers
//! never wait and never try again: a record that cannot be read at once counts as missing.

use crate::layout::{Layout, NOTES, NOTES_AT};
use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, fence};

/// The end that reads.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// All words, at least as many as the layout takes.
    pub words: &'a [AtomicU64],
    /// Their layout, as it was found when they were mapped.
    pub layout: Layout,
}

/// A record as it was when it was read. Its count moves whenever it is written or taken away, also where its words stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which word is its count.
    pub at: usize,
    /// What the count was.
    pub count: u64,
}

impl Reader<'_> {
    /// One of the words that stand for themselves, as it is not before everything that was read before.
    pub fn note(&self, note: usize) -> u64 {
        fence(Acquire);
        self.words[NOTES_AT + note % NOTES].load(Relaxed)
    }

    /// Reads the record of this key into `value`, if it is there and not being written.
    ///
    /// # Panics
    /// If the words are not those of the table's shape.
    pub fn find(&self, table: usize, place: u64, key: &[u64], value: &mut [u64]) -> Option<Seen> {
        let table = self.layout.table(table);
        assert!(key.len() == table.shape.key_words && value.len() == table.shape.value_words);
        for at in table.ways(place) {
            let record = &self.words[at..at + table.shape.record_words()];
            // Loads of memory that cannot be written have to be relaxed; fences order them.
            if record[1].load(Relaxed) != key[0] {
                continue;
            }
            let count = record[0].load(Relaxed);
            fence(Acquire);
            let is_it = key.iter().zip(&record[1..]).all(|(part, word)| word.load(Relaxed) == *part);
            for (into, word) in value.iter_mut().zip(&record[1 + key.len()..]) {
                *into = word.load(Relaxed);
            }
            let seen = Seen { at, count };
            if is_it {
                return (count.is_multiple_of(2) && self.is_unchanged(&seen)).then_some(seen);
            }
        }
        None
    }

    /// Whether nothing falls on this place.
    pub fn has_none(&self, place: u64) -> bool {
        let (at, shift) = self.layout.counter(place);
        let word = self.words[at].load(Relaxed);
        fence(Acquire);
        word >> shift & u64::from(u8::MAX) == 0
    }

    /// Whether a record has not been written since it was read.
    pub fn is_unchanged(&self, seen: &Seen) -> bool {
        fence(Acquire);
        self.words.get(seen.at).is_some_and(|count| count.load(Relaxed) == seen.count)
    }
}
