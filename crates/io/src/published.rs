//! Records that one process writes and others of its node read without asking it.
//!
//! It alone knows how records are written while others read them (how they are read: room `index`). Each has a count that
//! is odd while it is written and higher afterwards. Nothing is ever certain to be there: a bucket that is full loses a record
//! for each new one. *Counters* say how many things fall on a place, so that a thing is certainly not there if its
//! place has none. It does not know what the words mean, nor what a reader has proven to whom.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use crate::sync::Mutex;
pub use aze_index::{BUCKET_BITS_MAX, COUNTER_BITS_MAX, COUNTER_BITS_MIN, NOTES, Seen, Shape, TABLES_MAX, WAYS};
use aze_index::{Layout, Table};

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

/// How many words a published index of these tables takes; each has [`WAYS`] records in every one of its
/// 2^bits buckets. There are 2^`counter_bits` counters.
pub fn words_needed(shapes: &[Shape], bucket_bits: &[u32], counter_bits: u32) -> usize {
    Layout::new(shapes, bucket_bits, counter_bits).words()
}

/// The end that writes.
pub struct Writer {
    memory: SharedWords,
    layout: Layout,
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
        let layout = aze_index::begin(memory.0.words(), shapes, bucket_bits, counter_bits);
        let stripes = (0..STRIPES).map(|_| Mutex::new(())).collect();
        Writer { memory, layout, stripes }
    }

    /// For handing it on.
    pub(crate) fn memory(&self) -> &SharedWords {
        &self.memory
    }

    /// Sets one of the words that stand for themselves.
    pub fn set_note(&self, note: usize, value: u64) {
        aze_index::set_note(self.memory.0.words(), note, value);
    }

    /// Sets one of the words that stand for themselves, unless it is larger already.
    pub fn raise_note(&self, note: usize, value: u64) {
        aze_index::raise_note(self.memory.0.words(), note, value);
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
        let (at, shift) = self.layout.counter(place);
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
        self.put_unless(table, place, key, value, |_| false);
    }

    /// As [`Writer::put`]; a record that says the same already stays as it is: for who remembers it nothing has changed.
    ///
    /// # Panics
    /// As [`Writer::put`].
    pub fn show(&self, table: usize, place: u64, key: &[u64], value: &[u64]) {
        let is_same = |words: &[AtomicU64]| words.iter().zip(value).all(|(word, value)| word.load(Relaxed) == *value);
        self.put_unless(table, place, key, value, is_same);
    }

    fn put_unless(&self, table: usize, place: u64, key: &[u64], value: &[u64], stays: impl Fn(&[AtomicU64]) -> bool) {
        let table = self.layout.table(table);
        assert!(key.len() == table.shape.key_words && value.len() == table.shape.value_words && key[0] != 0);
        let _alone = self.stripe(table, place).lock();
        let words = self.memory.0.words();
        let free = || table.ways(place).find(|at| words[at + 1].load(Relaxed) == 0);
        let found = self.find(table, place, key);
        if found.is_some_and(|at| stays(&words[at + 1 + key.len()..at + table.shape.record_words()])) {
            return;
        }
        let at = found.or_else(free).unwrap_or_else(|| {
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
        let table = self.layout.table(table);
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

/// The end that reads.
pub struct Reader {
    memory: SharedWords,
    layout: Layout,
}

impl Reader {
    /// Opens what a writer has begun; `None` if these are not its tables, or not all of them are there.
    pub fn open(memory: SharedWords, shapes: &[Shape]) -> Option<Reader> {
        let layout = Layout::of(memory.0.words(), shapes)?;
        Some(Reader { memory, layout })
    }

    /// By which it is read.
    pub fn read(&self) -> aze_index::Reader<'_> {
        aze_index::Reader { words: self.memory.0.words(), layout: self.layout }
    }

    /// The memory file, for other processes of the user that may read it; none in the simulation.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.memory.0.file()
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
    use std::sync::atomic::{AtomicUsize, Ordering::Acquire};

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
        assert!(reader.read().find(0, 5, &[5, 1], &mut value).is_none());
        writer.put(0, 5, &[5, 1], &[1, 2, 3, 4, 5, 6]);
        writer.put(1, 5, &[5], &[9]);
        let seen = reader.read().find(0, 5, &[5, 1], &mut value).expect("put");
        assert_eq!(value, [1, 2, 3, 4, 5, 6]);
        assert!(reader.read().find(0, 5, &[5, 2], &mut value).is_none(), "the whole key counts");
        writer.put(0, 5, &[5, 2], &[0; 6]);
        assert!(reader.read().is_unchanged(&seen), "another record of the bucket");
        writer.put(0, 5, &[5, 1], &[7; 6]);
        assert!(!reader.read().is_unchanged(&seen));
        let seen = reader.read().find(0, 5, &[5, 1], &mut value).expect("put");
        assert_eq!(value, [7; 6]);
        writer.clear(0, 5, &[5, 1]);
        assert!(!reader.read().is_unchanged(&seen));
        assert!(reader.read().find(0, 5, &[5, 1], &mut value).is_none());
        assert!(reader.read().find(1, 5, &[5], &mut value[..1]).is_some(), "another table");
    }

    #[test]
    fn what_says_the_same_already_stays_as_it_is() {
        let (writer, reader) = published([3, 0]);
        let mut value = [0; 6];
        writer.show(0, 5, &[5, 1], &[1; 6]);
        let seen = reader.read().find(0, 5, &[5, 1], &mut value).expect("shown");
        writer.show(0, 5, &[5, 1], &[1; 6]);
        assert!(reader.read().is_unchanged(&seen));
        writer.put(0, 5, &[5, 1], &[1; 6]);
        assert!(!reader.read().is_unchanged(&seen), "a change may be one that the words do not show");
        let seen = reader.read().find(0, 5, &[5, 1], &mut value).expect("put");
        writer.show(0, 5, &[5, 1], &[2, 1, 1, 1, 1, 1]);
        assert!(!reader.read().is_unchanged(&seen));
        reader.read().find(0, 5, &[5, 1], &mut value).expect("shown");
        assert_eq!(value, [2, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_full_bucket_forgets_and_never_holds_a_key_twice() {
        let (writer, reader) = published([0, 0]);
        let mut value = [0; 6];
        for key in 1..=20 {
            writer.put(0, key, &[key, 0], &[key; 6]);
            writer.put(0, key, &[key, 0], &[key + 1; 6]);
            assert!(reader.read().find(0, key, &[key, 0], &mut value).is_some(), "the newest is there");
            assert_eq!(value, [key + 1; 6]);
        }
        let there = |key: &u64| reader.read().find(0, *key, &[*key, 0], &mut [0; 6]).is_some();
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
        // Where the sizes of the tables and of the counters stand.
        for (at, right) in [(1, 1), (5, 3)] {
            for wrong in [4, 64, u64::MAX] {
                memory.0.words()[at].store(wrong, Relaxed);
                assert!(Reader::open(memory.clone(), &SHAPES).is_none(), "{wrong} bits do not fit");
            }
            memory.0.words()[at].store(right, Relaxed);
            assert!(Reader::open(memory.clone(), &SHAPES).is_some());
        }
        memory.0.words()[5].store(0, Relaxed);
        assert!(Reader::open(memory, &SHAPES).is_none(), "there are some counters always");
        assert!(Reader::open(SharedWords::own(3), &SHAPES).is_none());
    }

    #[test]
    fn what_was_counted_is_there_until_it_is_taken_away_as_often() {
        let (writer, reader) = published([0, 0]);
        assert!((0..100).all(|place| reader.read().has_none(place)));
        for place in 0..100 {
            writer.count(place);
            writer.count(place);
            assert!(!reader.read().has_none(place));
        }
        writer.raise_note(3, 7);
        writer.raise_note(3, 5);
        for place in 0..100 {
            writer.uncount(place);
            assert!(!reader.read().has_none(place), "one is left");
        }
        (0..100).for_each(|place| writer.uncount(place));
        assert!((0..100).all(|place| reader.read().has_none(place)), "counters do not disturb each other");
        assert_eq!(reader.read().note(3), 7);
        // One that was ever full is not believed any more, and another one is.
        (0..300).for_each(|_| writer.count(1));
        (0..300).for_each(|_| writer.uncount(1));
        assert!(!reader.read().has_none(1));
        assert!((0..100).any(|place| reader.read().has_none(place)));
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
                        if reader.read().find(0, 2, &[2, 2], &mut second).is_some()
                            && reader.read().find(0, 1, &[1, 1], &mut first).is_some()
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
