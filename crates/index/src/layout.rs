//! Where tables, counters and notes lie.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

/// Records of one bucket: a search looks at all of them.
pub const WAYS: usize = 4;

/// Most tables of a published index.
pub const TABLES_MAX: usize = 4;

/// Words that stand for themselves.
pub const NOTES: usize = 8;

/// Most buckets of one table, as a power of two.
pub const BUCKET_BITS_MAX: u32 = 24;

/// Fewest counters, as a power of two.
pub const COUNTER_BITS_MIN: u32 = 3;

/// Most counters, likewise.
pub const COUNTER_BITS_MAX: u32 = 28;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"azslate3");
/// Where the bits of the tables' buckets stand.
pub(crate) const BITS_AT: usize = 1;
/// Where the bits of the counters stand.
pub(crate) const COUNTER_BITS_AT: usize = BITS_AT + TABLES_MAX;
pub(crate) const NOTES_AT: usize = 8;
pub(crate) const RECORDS_AT: usize = NOTES_AT + NOTES;

/// What one record of a table consists of, its count aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Words by which it is found; the first is never zero.
    pub key_words: usize,
    /// Words that it tells.
    pub value_words: usize,
}

impl Shape {
    /// Words of one record, with its count.
    pub const fn record_words(self) -> usize {
        1 + self.key_words + self.value_words
    }
}

/// One table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Table {
    at: usize,
    bucket_bits: u32,
    /// What its records consist of.
    pub shape: Shape,
}

impl Table {
    /// Where the records of a bucket begin. `place` is any number that tells keys apart well.
    pub fn bucket(&self, place: u64) -> usize {
        self.at + spread(place, self.bucket_bits) * WAYS * self.shape.record_words()
    }

    /// Where each record of a bucket begins.
    pub fn ways(&self, place: u64) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = (self.bucket(place), self.shape.record_words());
        (0..WAYS).map(move |way| first + way * step)
    }
}

/// One of 2^bits by a number that tells things apart well.
fn spread(place: u64, bits: u32) -> usize {
    // Fibonacci hashing: the high bits of a product depend on all bits below.
    place.wrapping_mul(0x9E37_79B9_7F4A_7C15).checked_shr(64 - bits).unwrap_or(0) as usize
}

/// Where everything lies. Behind the tables come counters of a byte each, eight to a word; one that is full stays so.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    tables: [Table; TABLES_MAX],
    counters_at: usize,
    counter_bits: u32,
    words: usize,
}

impl Layout {
    /// The layout of tables of these shapes with [`WAYS`] records in each of 2^bits buckets, and 2^`counter_bits` counters.
    /// There are at most [`TABLES_MAX`] shapes.
    pub fn new(shapes: &[Shape], bucket_bits: &[u32], counter_bits: u32) -> Layout {
        let (mut tables, mut at) = ([Table::default(); TABLES_MAX], RECORDS_AT);
        for (table, (shape, bits)) in tables.iter_mut().zip(shapes.iter().zip(bucket_bits)) {
            *table = Table { at, bucket_bits: *bits, shape: *shape };
            at += (WAYS << bits) * shape.record_words();
        }
        let words = at + (1 << (counter_bits - COUNTER_BITS_MIN));
        Layout { tables, counters_at: at, counter_bits, words }
    }

    /// How many words it takes.
    pub fn words(&self) -> usize {
        self.words
    }

    /// The table of this number.
    ///
    /// # Panics
    /// If there cannot be one.
    pub fn table(&self, table: usize) -> &Table {
        &self.tables[table]
    }

    /// Word and shift of the counter of a place.
    pub fn counter(&self, place: u64) -> (usize, u32) {
        let counter = spread(place, self.counter_bits);
        (self.counters_at + counter / 8, counter as u32 % 8 * 8)
    }

    /// What a writer has begun in these words; `None` if these are not its tables, or not all of them are there.
    pub fn of(words: &[AtomicU64], shapes: &[Shape]) -> Option<Layout> {
        if words.len() < RECORDS_AT || shapes.len() > TABLES_MAX || words[0].load(Relaxed) != MAGIC {
            return None;
        }
        core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
        // Read once, checked, and believed from here on.
        let mut bits = [0; TABLES_MAX];
        for (bits, word) in bits.iter_mut().zip(&words[BITS_AT..]).take(shapes.len()) {
            *bits = u32::try_from(word.load(Relaxed)).ok().filter(|bits| *bits <= BUCKET_BITS_MAX)?;
        }
        let counter_bits = u32::try_from(words[COUNTER_BITS_AT].load(Relaxed)).ok()?;
        if !(COUNTER_BITS_MIN..=COUNTER_BITS_MAX).contains(&counter_bits) {
            return None;
        }
        let layout = Layout::new(shapes, &bits, counter_bits);
        (layout.words <= words.len()).then_some(layout)
    }
}

/// Begins a published index in words that are zero.
///
/// # Panics
/// If there are too many tables, buckets or counters that are too many, or too few words for them.
pub fn begin(words: &[AtomicU64], shapes: &[Shape], bucket_bits: &[u32], counter_bits: u32) -> Layout {
    assert!(shapes.len() == bucket_bits.len() && shapes.len() <= TABLES_MAX, "each table has a size");
    assert!(bucket_bits.iter().all(|bits| *bits <= BUCKET_BITS_MAX), "no table has too many buckets");
    assert!((COUNTER_BITS_MIN..=COUNTER_BITS_MAX).contains(&counter_bits), "there are so many counters");
    let layout = Layout::new(shapes, bucket_bits, counter_bits);
    assert!(words.len() >= layout.words, "the tables fit");
    for (word, bits) in words[BITS_AT..].iter().zip(bucket_bits) {
        word.store(u64::from(*bits), Relaxed);
    }
    words[COUNTER_BITS_AT].store(u64::from(counter_bits), Relaxed);
    words[0].store(MAGIC, Release);
    layout
}

/// Sets one of the words that stand for themselves.
///
/// # Panics
/// If there is no such note.
pub fn set_note(words: &[AtomicU64], note: usize, value: u64) {
    assert!(note < NOTES, "there is such a note");
    words[NOTES_AT + note].store(value, Release);
}

/// Sets one of the words that stand for themselves, unless it is larger already.
///
/// # Panics
/// If there is no such note.
pub fn raise_note(words: &[AtomicU64], note: usize, value: u64) {
    assert!(note < NOTES, "there is such a note");
    words[NOTES_AT + note].fetch_max(value, Release);
}
