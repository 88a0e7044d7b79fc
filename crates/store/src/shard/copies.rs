//! Chunks that are copies of what lies elsewhere: they may go when room is short, and come again from there.
//!
//! [`ChunkShard::fill`] makes one, and [`ChunkShard::note_copies`] makes them of chunks whose bytes were written there. A change of
//! it, or a promise of room in it, ends that before it happens: a chunk that was changed since is never among them.

use super::ChunkShard;
use crate::chunk::Chunk;
use crate::{Store, StoreError};
use aze_proto::ids::{Generation, Ino};
use aze_proto::limits::CHUNK_BITS_MAX;
use std::ops::{Bound, RangeInclusive};
use std::sync::atomic::Ordering;

/// What [`ChunkShard::evict`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// The chunks that went.
    pub chunks: Vec<(Ino, u64)>,
    /// Bytes of memory and of places on disks that they had.
    pub freed_bytes: u64,
    /// Copies that readers hold at this moment, which stay.
    pub held: u64,
    /// Where to go on; `None` at the end of the shard.
    pub next: Option<(Ino, u64)>,
}

impl ChunkShard {
    /// Stores a copy of a chunk, which is not there: no change of its file.
    ///
    /// # Errors
    /// As [`ChunkShard::write`].
    pub fn fill(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        data: &[u8],
        sums: &[u32],
    ) -> Result<(), StoreError> {
        let changes = self.changes_of(ino);
        self.write(ino, generation, chunk, 0, data, sums)?;
        self.set_changes(ino, changes);
        self.note_copy(ino, chunk);
        Ok(())
    }

    /// A chunk that was written just now, or has come from a disk, is a copy.
    pub fn note_copy(&mut self, ino: Ino, chunk: u64) {
        let Some(stored) = self.chunks.get(&(ino, chunk)) else { return };
        if self.copies.insert((ino, chunk)) {
            self.store.copies_changed(0, stored.end() as u64);
        }
    }

    /// The chunks of a file are copies from now on: its first `length` bytes are elsewhere, too. A chunk with bytes behind them is
    /// none: a writer may have stored these before the home of the file hears that it is longer. Gives the bytes of those that were
    /// none before.
    pub fn note_copies(&mut self, ino: Ino, length: u64, chunk_bits: u8) -> u64 {
        let bits = chunk_bits.min(CHUNK_BITS_MAX);
        let of_file = self.chunks.range((ino, 0)..(ino, length.div_ceil(1 << bits)));
        let of_file = of_file.map(|((_, chunk), stored)| (*chunk, stored.end() as u64));
        let all: Vec<(u64, u64)> = of_file.filter(|(chunk, end)| (chunk << bits) + end <= length).collect();
        let fresh = all.into_iter().filter(|(chunk, _)| !self.is_copy(ino, *chunk)).collect::<Vec<_>>();
        fresh.iter().for_each(|(chunk, _)| self.note_copy(ino, *chunk));
        fresh.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Whether a chunk is a copy.
    pub fn is_copy(&self, ino: Ino, chunk: u64) -> bool {
        // Most files have none.
        !self.copies.is_empty() && self.copies.contains(&(ino, chunk))
    }

    /// A chunk stays from now on; gives whether it was a copy.
    pub fn keep(&mut self, ino: Ino, chunk: u64) -> bool {
        let was_copy = !self.copies.is_empty() && self.copies.remove(&(ino, chunk));
        if was_copy {
            let bytes = self.chunks.get(&(ino, chunk)).map_or(0, Chunk::end);
            self.store.copies_changed(bytes as u64, 0);
        }
        was_copy
    }

    /// The same of some chunks of a file.
    pub(super) fn keep_in(&mut self, ino: Ino, chunks: RangeInclusive<u64>) {
        let all: Vec<(Ino, u64)> = self.copies.range((ino, *chunks.start())..=(ino, *chunks.end())).copied().collect();
        for (ino, chunk) in all {
            self.keep(ino, chunk);
        }
    }

    /// Drops copies from one on, until they have freed so many bytes, and looks at no more than `chunks_max`. Those that were
    /// read since the last look stay unless `all`: they go at the next look. What readers hold stays.
    pub fn evict(&mut self, from: (Ino, u64), chunks_max: usize, bytes_max: u64, all: bool) -> Evicted {
        let mut evicted = Evicted::default();
        let looked: Vec<(Ino, u64)> = self.copies.range(from..).take(chunks_max).copied().collect();
        evicted.next = looked
            .last()
            .and_then(|last| self.copies.range((Bound::Excluded(*last), Bound::Unbounded)).next().copied());
        for key in looked {
            if evicted.freed_bytes >= bytes_max {
                evicted.next = Some(key);
                return evicted;
            }
            let Some(chunk) = self.chunks.get_mut(&key) else { continue };
            let was_touched = chunk.take_touched();
            if chunk.is_held() {
                evicted.held += 1;
            } else if all || !was_touched {
                evicted.freed_bytes += self.drop_copy(key);
                evicted.chunks.push(key);
            }
        }
        evicted
    }

    /// Drops one chunk that is a copy; gives the bytes that it has freed.
    pub fn drop_copy(&mut self, key: (Ino, u64)) -> u64 {
        if !self.keep(key.0, key.1) {
            return 0;
        }
        let Some(chunk) = self.chunks.remove(&key) else { return 0 };
        self.bytes -= chunk.end() as u64;
        chunk.taken_bytes()
    }
}

impl Store {
    /// Bytes of chunks that are copies, in all shards.
    pub fn copies_bytes(&self) -> u64 {
        self.copies_bytes.load(Ordering::Relaxed)
    }

    fn copies_changed(&self, before: u64, now: u64) {
        self.copies_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}
