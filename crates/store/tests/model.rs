//! A shard of chunks against a plain byte vector for each chunk: random writes, reads, truncations and
//! deletions around the borders of blocks, frames, units and chunks.

use aze_io::slab::Slab;
use aze_proto::ids::{Generation, Ino};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::{block_sum, piece_sums};
use aze_store::{ChunkShard, Held, Store, StoreError};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const CHUNK_BITS: u8 = 18;
const CHUNK_BYTES: usize = 1 << CHUNK_BITS;
const CHUNKS: u64 = 2;
const INOS: u64 = 2;

#[derive(Clone, Debug)]
enum Step {
    /// Writes, in the newest generation or the one before.
    Write {
        ino: Ino,
        chunk: u64,
        offset: usize,
        len: usize,
        seed: u8,
        age: Age,
    },
    Read {
        ino: Ino,
        chunk: u64,
        offset: usize,
        len: usize,
        age: Age,
    },
    TruncateData {
        ino: Ino,
        length: u64,
    },
    /// The truncation does not arrive here.
    MissTruncation {
        ino: Ino,
        length: u64,
    },
    Delete {
        ino: Ino,
    },
    /// A reader goes on holding the data it has found.
    Hold {
        ino: Ino,
        chunk: u64,
        offset: usize,
        len: usize,
    },
    /// The reader that held the longest has done.
    LetGo,
}

#[derive(Clone, Copy, Debug)]
enum Age {
    Now,
    Old,
}

#[derive(Default)]
struct File {
    generation: u32,
    /// What the shard has seen: absent before its first data.
    seen: Option<u32>,
    /// Least length of the truncations that the shard has missed.
    missed: Option<u64>,
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Newest generation that any shard of the store was told of.
    fence: u32,
    is_deleted: bool,
}

impl File {
    /// What a request of generation `asked` has to be told.
    fn admit(&self, ino: Ino, asked: u32) -> Result<(), StoreError> {
        match self.seen {
            None if self.is_deleted => Err(StoreError::Deleted { ino }),
            None if asked < self.fence => Err(StoreError::GenerationStale(Generation(self.fence))),
            None => Ok(()),
            Some(seen) if asked < seen => Err(StoreError::GenerationStale(Generation(seen))),
            Some(seen) if asked > seen && !self.chunks.is_empty() => {
                Err(StoreError::MissedTruncation { have: Generation(seen) })
            }
            Some(_) => Ok(()),
        }
    }

    fn truncate(&mut self, length: u64) {
        self.chunks.retain(|chunk, bytes| {
            let keep = length.saturating_sub(chunk * CHUNK_BYTES as u64).min(CHUNK_BYTES as u64) as usize;
            bytes.truncate(keep);
            keep > 0
        });
    }
}

struct Bench {
    store: Arc<Store>,
    shard: ChunkShard,
    files: BTreeMap<Ino, File>,
    /// Held data, with the bytes they had at first.
    held: VecDeque<(Held, Vec<u8>)>,
}

impl Bench {
    fn new() -> Bench {
        let store = Store::new(Slab::new(64 << 20).expect("address space"));
        let files = (1..=INOS).map(|number| (Ino(number), File::default())).collect();
        Bench { shard: ChunkShard::new(store.clone()), store, files, held: VecDeque::new() }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Write { ino, chunk, offset, len, seed, age } => {
                let data: Vec<u8> = (0..*len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(*seed)).collect();
                let asked = self.asked(*ino, *age);
                let first = self.write(*ino, asked, *chunk, *offset, &data);
                if let Err(StoreError::MissedTruncation { have }) = first {
                    self.catch_up(*ino, have);
                    let second = self.write(*ino, asked, *chunk, *offset, &data);
                    assert_eq!(second.is_ok(), asked == self.files[ino].generation);
                }
            }
            Step::Read { ino, chunk, offset, len, age } => {
                let asked = self.asked(*ino, *age);
                self.read(*ino, asked, *chunk, *offset, *len);
            }
            Step::Hold { ino, chunk, offset, len } => {
                let asked = Generation(self.asked(*ino, Age::Now));
                if let Ok(held) = self.shard.hold(*ino, asked, *chunk, *offset as u32, *len as u32) {
                    let bytes = held.parts().concat();
                    self.held.push_back((held, bytes));
                }
            }
            Step::LetGo => drop(self.held.pop_front()),
            Step::TruncateData { ino, length } => {
                let file = self.files.get_mut(ino).expect("known");
                file.generation += 1;
                // The server sends the truncations missed before, too.
                let least = file.missed.take().map_or(*length, |missed| missed.min(*length));
                self.shard.truncate(*ino, Generation(file.generation), least, CHUNK_BITS);
                file.fence = file.generation;
                if file.seen.is_some() {
                    file.seen = Some(file.generation);
                    file.truncate(least);
                }
            }
            Step::MissTruncation { ino, length } => {
                let file = self.files.get_mut(ino).expect("known");
                file.generation += 1;
                file.missed = Some(file.missed.map_or(*length, |missed| missed.min(*length)));
            }
            Step::Delete { ino } => {
                self.shard.delete(*ino);
                let file = self.files.get_mut(ino).expect("known");
                file.chunks.clear();
                file.seen = None;
                file.is_deleted = true;
            }
        }
    }

    fn asked(&self, ino: Ino, age: Age) -> u32 {
        match age {
            Age::Now => self.files[&ino].generation,
            Age::Old => self.files[&ino].generation.saturating_sub(1),
        }
    }

    fn write(&mut self, ino: Ino, asked: u32, chunk: u64, offset: usize, data: &[u8]) -> Result<(), StoreError> {
        let sums = piece_sums(offset as u64, data);
        let result = self.shard.write(ino, Generation(asked), chunk, offset as u32, data, &sums);
        let file = self.files.get_mut(&ino).expect("known");
        assert_eq!(result, file.admit(ino, asked));
        if result.is_ok() && !data.is_empty() {
            if asked == file.generation {
                file.missed = None;
            }
            file.seen = Some(asked);
            let bytes = file.chunks.entry(chunk).or_default();
            if bytes.len() < offset + data.len() {
                bytes.resize(offset + data.len(), 0);
            }
            bytes[offset..offset + data.len()].copy_from_slice(data);
        }
        result
    }

    /// What the server does when a shard has missed truncations: it asks the home what to drop.
    fn catch_up(&mut self, ino: Ino, have: Generation) {
        let file = self.files.get_mut(&ino).expect("known");
        assert_eq!(file.seen, Some(have.0));
        let length = file.missed.take().unwrap_or(u64::MAX);
        self.shard.truncate(ino, Generation(file.generation), length, CHUNK_BITS);
        file.seen = Some(file.generation);
        file.fence = file.generation;
        file.truncate(length);
    }

    fn read(&self, ino: Ino, asked: u32, chunk: u64, offset: usize, len: usize) {
        let file = &self.files[&ino];
        let empty = Vec::new();
        let bytes = file.chunks.get(&chunk).unwrap_or(&empty);
        let found = self.shard.read(ino, Generation(asked), chunk, offset as u32, len as u32, |out| {
            let payload = out.parts.concat();
            let blocks: Vec<u32> = payload.chunks(BLOCK_BYTES).map(block_sum).collect();
            assert_eq!(blocks, out.sums, "checksums of chunk {chunk}, {offset}+{len}");
            (out.start as usize, payload)
        });
        assert_eq!(found.as_ref().map(|_| ()).map_err(Clone::clone), file.admit(ino, asked));
        let Ok((start, payload)) = found else { return };
        assert_eq!(start, offset / BLOCK_BYTES * BLOCK_BYTES);
        let stop = (offset + len).next_multiple_of(BLOCK_BYTES).min(bytes.len());
        let expected = if len == 0 || start >= stop { &[][..] } else { &bytes[start..stop] };
        assert!(
            payload == expected,
            "chunk {chunk}, {offset}+{len}: {} bytes found, {} expected",
            payload.len(),
            expected.len()
        );
    }

    fn check(&self) {
        let mut total = (0, 0);
        for (ino, file) in &self.files {
            assert_eq!(self.shard.generation_of(*ino), file.seen.map(Generation));
            for (chunk, bytes) in &file.chunks {
                total = (total.0 + 1, total.1 + bytes.len() as u64);
                self.read(*ino, file.seen.expect("has data"), *chunk, 0, CHUNK_BYTES);
            }
        }
        assert_eq!((self.shard.chunks(), self.shard.bytes()), total);
        for (held, bytes) in &self.held {
            assert!(held.parts().concat() == *bytes, "what a reader holds has changed");
        }
    }
}

/// Offsets where something ends and something else begins, and their neighbours; and any other.
fn offsets() -> impl Strategy<Value = usize> {
    let borders: Vec<usize> = vec![0, 4096, 8192, 16_384, 20_480, 65_536, 69_632, 131_072, CHUNK_BYTES];
    prop_oneof![
        3 => (prop::sample::select(borders), -2..3isize)
            .prop_map(|(border, by)| border.saturating_add_signed(by).min(CHUNK_BYTES)),
        1 => 0..CHUNK_BYTES,
    ]
}

fn ranges() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        (offsets(), offsets()).prop_map(|(a, b)| (a.min(b), a.abs_diff(b))),
        (offsets(), 0..600usize).prop_map(|(offset, len)| (offset, len.min(CHUNK_BYTES - offset))),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let ino = || (1..=INOS).prop_map(Ino);
    let age = || prop_oneof![9 => Just(Age::Now), 1 => Just(Age::Old)];
    let length = || (0..CHUNKS, offsets()).prop_map(|(chunk, offset)| chunk * CHUNK_BYTES as u64 + offset as u64);
    prop_oneof![
        8 => (ino(), 0..CHUNKS, ranges(), any::<u8>(), age())
            .prop_map(|(ino, chunk, (offset, len), seed, age)| Step::Write { ino, chunk, offset, len, seed, age }),
        4 => (ino(), 0..CHUNKS, ranges(), age())
            .prop_map(|(ino, chunk, (offset, len), age)| Step::Read { ino, chunk, offset, len, age }),
        3 => (ino(), length()).prop_map(|(ino, length)| Step::TruncateData { ino, length }),
        1 => (ino(), length()).prop_map(|(ino, length)| Step::MissTruncation { ino, length }),
        1 => ino().prop_map(|ino| Step::Delete { ino }),
        2 => (ino(), 0..CHUNKS, ranges())
            .prop_map(|(ino, chunk, (offset, len))| Step::Hold { ino, chunk, offset, len }),
        1 => Just(Step::LetGo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 150 } else { 2_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn chunks_are_what_was_written(steps in prop::collection::vec(steps(), 1..40)) {
        let mut bench = Bench::new();
        for step in &steps {
            bench.step(step);
            bench.check();
        }
        bench.held.clear();
        for number in 1..=INOS {
            bench.step(&Step::Delete { ino: Ino(number) });
        }
        prop_assert_eq!(bench.store.used_bytes(), 0, "frames leaked");
        prop_assert_eq!((bench.shard.chunks(), bench.shard.bytes()), (0, 0));
    }
}
