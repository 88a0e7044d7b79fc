//! Records that one process writes and others of its node read without asking it.
//!
//! It alone knows how a record is read whole while the server may be writing it. Each has a count that is odd while it
//! is written and higher afterwards (a sequence lock, Boehm 2012): a reader looks at the count before and after, and
//! takes the words it has read only if that was even and stayed. Readers never wait and never try again: a record that
//! cannot be read at once counts as missing. Nothing is ever certain to be there: a bucket that is full loses a record
//! for each new one. *Counters* say how many things fall on a place, so that a thing is certainly not there if its
//! place has none. It does not know what the words mean, nor what a reader has proven to whom.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

use crate::sync::Mutex;

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

const MAGIC: u64 = u64::from_le_bytes(*b"azslate2");
/// Where the bits of the tables' buckets stand.
const BITS_AT: usize = 1;
/// Where the bits of the counters stand.
const COUNTER_BITS_AT: usize = BITS_AT + TABLES_MAX;
const NOTES_AT: usize = 8;
const RECORDS_AT: usize = NOTES_AT + NOTES;

/// Locks among which a writer's buckets are divided.
const STRIPES: usize = 64;

/// Words that several processes of a node see; the readers' are read-only.
pub(crate) trait Words: Send + Sync {
    fn words(&self) -> &[AtomicU64];

    /// The memory file, to be handed on to a reader.
    fn file(&self) -> Option<&OwnedFd> {
        None
    }
}

/// Memory for a published index: of the writer, or as a reader sees it.
#[derive(Clone)]
pub struct SharedWords(pub(crate) Arc<dyn Words>);

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWords({})", self.0.words().len())
    }
}

/// What one record of a table consists of, its count aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Words by which it is found; the first is never zero.
    pub key_words: usize,
    /// Words that it tells.
    pub value_words: usize,
}

impl Shape {
    fn record_words(self) -> usize {
        1 + self.key_words + self.value_words
    }
}

#[derive(Debug)]
struct Table {
    at: usize,
    bucket_bits: u32,
    shape: Shape,
}

impl Table {
    /// Where the records of a bucket begin. `place` is any number that tells keys apart well.
    fn bucket(&self, place: u64) -> usize {
        self.at + spread(place, self.bucket_bits) * WAYS * self.shape.record_words()
    }

    fn ways(&self, place: u64) -> impl Iterator<Item = usize> {
        let (first, step) = (self.bucket(place), self.shape.record_words());
        (0..WAYS).map(move |way| first + way * step)
    }
}

/// Counters of a byte each, eight to a word. One that is full stays so.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at: usize,
    bits: u32,
}

impl Counters {
    /// Word and shift of the counter of a place.
    fn find(self, place: u64) -> (usize, u32) {
        let counter = spread(place, self.bits);
        (self.at + counter / 8, counter as u32 % 8 * 8)
    }
}

/// One of 2^bits by a number that tells things apart well.
fn spread(place: u64, bits: u32) -> usize {
    // Fibonacci hashing: the high bits of a product depend on all bits below.
    place.wrapping_mul(0x9E37_79B9_7F4A_7C15).checked_shr(64 - bits).unwrap_or(0) as usize
}

/// Where tables and counters lie; gives how many words there are altogether, too.
fn lay_out(shapes: &[Shape], bucket_bits: &[u32], counter_bits: u32) -> (Vec<Table>, Counters, usize) {
    let mut at = RECORDS_AT;
    let table = |(shape, bits): (&Shape, &u32)| {
        let table = Table { at, bucket_bits: *bits, shape: *shape };
        at += (WAYS << bits) * shape.record_words();
        table
    };
    let tables = shapes.iter().zip(bucket_bits).map(table).collect();
    (tables, Counters { at, bits: counter_bits }, at + (1 << (counter_bits - COUNTER_BITS_MIN)))
}

/// How many words a published index of these tables takes; each has [`WAYS`] records in every one of its
/// 2^bits buckets. There are 2^`counter_bits` counters.
pub fn words_needed(shapes: &[Shape], bucket_bits: &[u32], counter_bits: u32) -> usize {
    lay_out(shapes, bucket_bits, counter_bits).2
}

/// The end that writes.
pub struct Writer {
    memory: SharedWords,
    tables: Vec<Table>,
    counters: Counters,
    stripes: Vec<Mutex<()>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({:?})", self.memory)
    }
}

impl Writer {
    /// Begins a published index in memory that holds zeros.
    ///
    /// # Panics
    /// If there are too many tables, buckets or counters that are too many, or too few words for them.
    pub fn begin(memory: SharedWords, shapes: &[Shape], bucket_bits: &[u32], counter_bits: u32) -> Writer {
        assert!(shapes.len() == bucket_bits.len() && shapes.len() <= TABLES_MAX, "each table has a size");
        assert!(bucket_bits.iter().all(|bits| *bits <= BUCKET_BITS_MAX), "no table has too many buckets");
        assert!((COUNTER_BITS_MIN..=COUNTER_BITS_MAX).contains(&counter_bits), "there are so many counters");
        let (tables, counters, needed) = lay_out(shapes, bucket_bits, counter_bits);
        let words = memory.0.words();
        assert!(words.len() >= needed, "the tables fit");
        for (table, bits) in bucket_bits.iter().enumerate() {
            words[BITS_AT + table].store(u64::from(*bits), Relaxed);
        }
        words[COUNTER_BITS_AT].store(u64::from(counter_bits), Relaxed);
        words[0].store(MAGIC, Release);
        let stripes = (0..STRIPES).map(|_| Mutex::new(())).collect();
        Writer { memory, tables, counters, stripes }
    }

    /// For handing it on.
    pub(crate) fn memory(&self) -> &SharedWords {
        &self.memory
    }

    /// Sets one of the words that stand for themselves.
    pub fn set_note(&self, note: usize, value: u64) {
        assert!(note < NOTES, "there is such a note");
        self.memory.0.words()[NOTES_AT + note].store(value, Release);
    }

    /// Sets one of the words that stand for themselves, unless it is larger already.
    pub fn raise_note(&self, note: usize, value: u64) {
        assert!(note < NOTES, "there is such a note");
        self.memory.0.words()[NOTES_AT + note].fetch_max(value, Release);
    }

    /// One more thing falls on this place.
    pub fn count(&self, place: u64) {
        self.change_counter(place, |count| count + 1);
    }

    /// One thing less falls on this place. A reader that finds nothing there any more sees every note that was set
    /// before.
    pub fn uncount(&self, place: u64) {
        self.change_counter(place, |count| count.saturating_sub(1));
    }

    fn change_counter(&self, place: u64, change: impl Fn(u64) -> u64) {
        const FULL: u64 = u8::MAX as u64;
        let (at, shift) = self.counters.find(place);
        let changed = |word: u64| match word >> shift & FULL {
            FULL => None,
            count => Some(word & !(FULL << shift) | change(count) << shift),
        };
        // A full counter has lost its count: it stays full.
        let _ = self.memory.0.words()[at].fetch_update(Release, Relaxed, changed);
    }

    /// Puts a record where readers find it by `key`, in place of the one of this key, or else of any.
    ///
    /// # Panics
    /// If the words are not those of the table's shape.
    pub fn put(&self, table: usize, place: u64, key: &[u64], value: &[u64]) {
        let table = &self.tables[table];
        assert!(key.len() == table.shape.key_words && value.len() == table.shape.value_words && key[0] != 0);
        let _alone = self.stripe(table, place).lock();
        let words = self.memory.0.words();
        let free = || table.ways(place).find(|at| words[at + 1].load(Relaxed) == 0);
        let at = self.find(table, place, key).or_else(free).unwrap_or_else(|| {
            // Any will do; the counts go on in turns, so they choose well enough.
            let counts = table.ways(place).map(|at| words[at].load(Relaxed)).sum::<u64>();
            table.bucket(place) + (counts / 2) as usize % WAYS * table.shape.record_words()
        });
        let record = &words[at..at + table.shape.record_words()];
        let count = record[0].load(Relaxed);
        record[0].store(count + 1, Relaxed);
        // A reader that sees one of the words that follow sees that count, too.
        fence(Release);
        for (word, value) in record[1..].iter().zip(key.iter().chain(value)) {
            word.store(*value, Relaxed);
        }
        record[0].store(count + 2, Release);
    }

    /// Takes the record of this key away, if there is one.
    pub fn clear(&self, table: usize, place: u64, key: &[u64]) {
        let table = &self.tables[table];
        let _alone = self.stripe(table, place).lock();
        let Some(at) = self.find(table, place, key) else { return };
        let words = self.memory.0.words();
        let count = words[at].load(Relaxed);
        words[at].store(count + 1, Relaxed);
        fence(Release);
        words[at + 1].store(0, Relaxed);
        words[at].store(count + 2, Release);
    }

    fn stripe(&self, table: &Table, place: u64) -> &Mutex<()> {
        &self.stripes[table.bucket(place) / (WAYS * table.shape.record_words()) % STRIPES]
    }

    /// Only the writer writes: under the bucket's lock nothing changes.
    fn find(&self, table: &Table, place: u64, key: &[u64]) -> Option<usize> {
        let words = self.memory.0.words();
        let is_it = |at: &usize| key.iter().zip(&words[at + 1..]).all(|(part, word)| word.load(Relaxed) == *part);
        table.ways(place).find(is_it)
    }
}

/// A record as it was when it was read.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    at: usize,
    count: u64,
}

/// The end that reads.
pub struct Reader {
    memory: SharedWords,
    tables: Vec<Table>,
    counters: Counters,
}

impl Reader {
    /// Opens what a writer has begun; `None` if these are not its tables, or not all of them are there.
    pub fn open(memory: SharedWords, shapes: &[Shape]) -> Option<Reader> {
        let words = memory.0.words();
        if words.len() < RECORDS_AT || shapes.len() > TABLES_MAX || words[0].load(Relaxed) != MAGIC {
            return None;
        }
        fence(Acquire);
        let bits = words[BITS_AT..].iter().take(shapes.len()).map(|word| u32::try_from(word.load(Relaxed)).ok());
        // Read once, checked, and believed from here on.
        let bits: Vec<u32> = bits.map(|bits| bits.filter(|bits| *bits <= BUCKET_BITS_MAX)).collect::<Option<_>>()?;
        let counter_bits = u32::try_from(words[COUNTER_BITS_AT].load(Relaxed)).ok()?;
        if !(COUNTER_BITS_MIN..=COUNTER_BITS_MAX).contains(&counter_bits) {
            return None;
        }
        let (tables, counters, needed) = lay_out(shapes, &bits, counter_bits);
        (needed <= words.len()).then_some(Reader { memory, tables, counters })
    }

    /// One of the words that stand for themselves, as it is not before everything that was read before.
    pub fn note(&self, note: usize) -> u64 {
        fence(Acquire);
        self.memory.0.words()[NOTES_AT + note % NOTES].load(Relaxed)
    }

    /// Reads the record of this key into `value`, if it is there and not being written.
    ///
    /// # Panics
    /// If the words are not those of the table's shape.
    pub fn find(&self, table: usize, place: u64, key: &[u64], value: &mut [u64]) -> Option<Seen> {
        let table = &self.tables[table];
        assert!(key.len() == table.shape.key_words && value.len() == table.shape.value_words);
        let words = self.memory.0.words();
        for at in table.ways(place) {
            let record = &words[at..at + table.shape.record_words()];
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
        let (at, shift) = self.counters.find(place);
        let word = self.memory.0.words()[at].load(Relaxed);
        fence(Acquire);
        word >> shift & u64::from(u8::MAX) == 0
    }

    /// Whether a record has not been written since it was read.
    pub fn is_unchanged(&self, seen: &Seen) -> bool {
        fence(Acquire);
        self.memory.0.words()[seen.at].load(Relaxed) == seen.count
    }
}

/// Words of this process alone: what the simulated nodes share, and tests.
pub(crate) struct OwnWords(Vec<AtomicU64>);

impl Words for OwnWords {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl SharedWords {
    /// Words that only this process sees.
    pub(crate) fn own(words: usize) -> SharedWords {
        SharedWords(Arc::new(OwnWords((0..words).map(|_| AtomicU64::new(0)).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const SHAPES: [Shape; 2] = [Shape { key_words: 2, value_words: 6 }, Shape { key_words: 1, value_words: 1 }];

    fn published(bits: [u32; 2]) -> (Writer, Reader) {
        let memory = SharedWords::own(words_needed(&SHAPES, &bits, 5));
        let writer = Writer::begin(memory.clone(), &SHAPES, &bits, 5);
        (writer, Reader::open(memory, &SHAPES).expect("a published index was begun"))
    }

    #[test]
    fn what_was_put_is_found_until_it_is_cleared_or_put_again() {
        let (writer, reader) = published([3, 0]);
        let mut value = [0; 6];
        assert!(reader.find(0, 5, &[5, 1], &mut value).is_none());
        writer.put(0, 5, &[5, 1], &[1, 2, 3, 4, 5, 6]);
        writer.put(1, 5, &[5], &[9]);
        let seen = reader.find(0, 5, &[5, 1], &mut value).expect("put");
        assert_eq!(value, [1, 2, 3, 4, 5, 6]);
        assert!(reader.find(0, 5, &[5, 2], &mut value).is_none(), "the whole key counts");
        writer.put(0, 5, &[5, 2], &[0; 6]);
        assert!(reader.is_unchanged(&seen), "another record of the bucket");
        writer.put(0, 5, &[5, 1], &[7; 6]);
        assert!(!reader.is_unchanged(&seen));
        let seen = reader.find(0, 5, &[5, 1], &mut value).expect("put");
        assert_eq!(value, [7; 6]);
        writer.clear(0, 5, &[5, 1]);
        assert!(!reader.is_unchanged(&seen));
        assert!(reader.find(0, 5, &[5, 1], &mut value).is_none());
        assert!(reader.find(1, 5, &[5], &mut value[..1]).is_some(), "another table");
    }

    #[test]
    fn a_full_bucket_forgets_and_never_holds_a_key_twice() {
        let (writer, reader) = published([0, 0]);
        let mut value = [0; 6];
        for key in 1..=20 {
            writer.put(0, key, &[key, 0], &[key; 6]);
            writer.put(0, key, &[key, 0], &[key + 1; 6]);
            assert!(reader.find(0, key, &[key, 0], &mut value).is_some(), "the newest is there");
            assert_eq!(value, [key + 1; 6]);
        }
        let there = |key: &u64| reader.find(0, *key, &[*key, 0], &mut [0; 6]).is_some();
        assert_eq!((1..=20).filter(there).count(), WAYS);
        for key in 1..=20 {
            writer.clear(0, key, &[key, 0]);
        }
        assert_eq!((1..=20).filter(there).count(), 0);
    }

    #[test]
    fn a_published_index_that_cannot_be_is_not_opened() {
        let bits = [1, 1];
        let words = words_needed(&SHAPES, &bits, 3);
        assert!(Reader::open(SharedWords::own(words), &SHAPES).is_none(), "nobody has begun it");
        let memory = SharedWords::own(words);
        Writer::begin(memory.clone(), &SHAPES, &bits, 3);
        for (at, right) in [(BITS_AT, 1), (COUNTER_BITS_AT, 3)] {
            for wrong in [4, 64, u64::MAX] {
                memory.0.words()[at].store(wrong, Relaxed);
                assert!(Reader::open(memory.clone(), &SHAPES).is_none(), "{wrong} bits do not fit");
            }
            memory.0.words()[at].store(right, Relaxed);
            assert!(Reader::open(memory.clone(), &SHAPES).is_some());
        }
        memory.0.words()[COUNTER_BITS_AT].store(0, Relaxed);
        assert!(Reader::open(memory, &SHAPES).is_none(), "there are some counters always");
        assert!(Reader::open(SharedWords::own(3), &SHAPES).is_none());
    }

    #[test]
    fn what_was_counted_is_there_until_it_is_taken_away_as_often() {
        let (writer, reader) = published([0, 0]);
        assert!((0..100).all(|place| reader.has_none(place)));
        for place in 0..100 {
            writer.count(place);
            writer.count(place);
            assert!(!reader.has_none(place));
        }
        writer.raise_note(3, 7);
        writer.raise_note(3, 5);
        for place in 0..100 {
            writer.uncount(place);
            assert!(!reader.has_none(place), "one is left");
        }
        (0..100).for_each(|place| writer.uncount(place));
        assert!((0..100).all(|place| reader.has_none(place)), "counters do not disturb each other");
        assert_eq!(reader.note(3), 7);
        // One that was ever full is not believed any more, and another one is.
        (0..300).for_each(|_| writer.count(1));
        (0..300).for_each(|_| writer.uncount(1));
        assert!(!reader.has_none(1));
        assert!((0..100).any(|place| reader.has_none(place)));
    }

    /// Counts a reader out, however it ends.
    struct Left<'a>(&'a AtomicUsize);

    impl Drop for Left<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Release);
        }
    }

    /// A reader that sees the new state of one record never sees the old one of another that was changed
    /// before it, and no record is ever a mixture.
    #[test]
    fn readers_see_whole_records_in_their_order() {
        const FOUND: u64 = 20_000;
        let (writer, reader) = published([0, 0]);
        let readers = AtomicUsize::new(2);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut round = 0;
                while readers.load(Acquire) > 0 {
                    round += 1;
                    writer.put(0, 1, &[1, 1], &[round; 6]);
                    writer.put(0, 2, &[2, 2], &[round; 6]);
                    match round % 16 {
                        // Takes the place of another one.
                        3 => writer.put(0, 3, &[3, round], &[round; 6]),
                        9 => writer.clear(0, 1, &[1, 1]),
                        _ => {}
                    }
                }
            });
            let reading = [(); 2].map(|()| {
                scope.spawn(|| {
                    let _left = Left(&readers);
                    let mut found = 0;
                    while found < FOUND {
                        let (mut first, mut second) = ([0; 6], [0; 6]);
                        if reader.find(0, 2, &[2, 2], &mut second).is_some()
                            && reader.find(0, 1, &[1, 1], &mut first).is_some()
                        {
                            assert!([first, second].iter().all(|words| words.iter().all(|word| *word == words[0])));
                            assert!(first[0] >= second[0], "{} after {}", first[0], second[0]);
                            found += 1;
                        }
                    }
                })
            });
            // A race detector sees these ends of threads, and not the one of the scope.
            reading.into_iter().for_each(|thread| thread.join().unwrap());
            writing.join().unwrap();
        });
    }
}
