//! Room for data of one shard: reserved, given back, and looked for.

use super::{ChunkShard, check_range};
use crate::StoreError;
use crate::chunk::Chunk;
use aze_proto::ids::{Generation, Ino};
use aze_proto::limits::CHUNK_BITS_MAX;
use aze_proto::sum::ZERO_BLOCK_SUM;
use std::ops::Range;

/// From where on [`ChunkShard::seek`] looks, and at which chunks.
#[derive(Clone, Copy, Debug)]
pub struct SeekFrom {
    /// The first chunk.
    pub chunk: u64,
    /// Where to begin in it.
    pub offset: u32,
    /// How far apart the chunks are that belong to the shard.
    pub step: u64,
    /// Base-2 logarithm of the chunk size.
    pub chunk_bits: u8,
}

impl ChunkShard {
    /// Stores zeros in the range of a chunk wherever nothing is stored, or with `zero` everywhere:
    /// later writes to it need no more memory, except where readers hold the frames that they replace.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Damaged`; with `zero` nothing has changed then, otherwise the bytes
    /// have not.
    pub fn reserve(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        range: Range<u32>,
        zero: bool,
    ) -> Result<(), StoreError> {
        let range = range.start as usize..range.end as usize;
        check_range(range.start as u32, range.len())?;
        self.admit(ino, generation)?;
        if range.is_empty() {
            return Ok(());
        }
        self.store.room_to_grow()?;
        // Room that was promised does not go.
        self.keep(ino, chunk);
        let (store, mut target) = (self.store.clone(), self.chunks.remove(&(ino, chunk)).unwrap_or_default());
        let before = target.end();
        let done = match zero {
            true => target.zero(&store.slab, range),
            false => target.reserve(&store.slab, range),
        };
        self.bytes += (target.end() - before) as u64;
        if target.end() > 0 {
            self.chunks.insert((ino, chunk), target);
            self.seen(ino, generation);
        }
        done.map_err(|trouble| store.explain(ino, chunk, trouble))
    }

    /// Makes a hole of bytes `range` of a file, in all of its chunks that are here.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Damaged` and `OutOfRange`; all is done then that could be.
    pub fn punch(
        &mut self,
        ino: Ino,
        generation: Generation,
        range: Range<u64>,
        chunk_bits: u8,
    ) -> Result<(), StoreError> {
        self.admit(ino, generation)?;
        if range.is_empty() {
            return Ok(());
        }
        self.touched(ino);
        let bits = chunk_bits.min(CHUNK_BITS_MAX);
        let store = self.store.clone();
        let (first, last) = (range.start >> bits, (range.end - 1) >> bits);
        self.keep_in(ino, first..=last);
        let (mut empty, mut failed) = (Vec::new(), None);
        for ((_, number), chunk) in self.chunks.range_mut((ino, first)..=(ino, last)) {
            let base = number << bits;
            let within = |at: u64| at.saturating_sub(base).min(1 << bits) as usize;
            // What may be in a backing and is not here would be read from there.
            let punched = chunk.punch(&store.slab, within(range.start)..within(range.end), ino.is_backed());
            if let Err(trouble) = punched {
                failed.get_or_insert(store.explain(ino, *number, trouble));
            }
            if chunk.is_hole() && !ino.is_backed() {
                empty.push(*number);
            }
        }
        for number in empty {
            let chunk = self.chunks.remove(&(ino, number));
            self.bytes -= chunk.map_or(0, |chunk| chunk.end() as u64);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Chunks that store only zeros, as after a reservation.
    pub fn reserved(&self) -> impl Iterator<Item = (Ino, u64)> {
        let only_zeros = |chunk: &Chunk| {
            let sums = chunk.units.iter().flatten().flat_map(|unit| unit.sums.known());
            sums.into_iter().all(|sum| *sum == ZERO_BLOCK_SUM)
        };
        self.chunks.iter().filter(move |(_, chunk)| only_zeros(chunk)).map(|(key, _)| *key)
    }

    /// Where in a file the first byte is that is stored here or, with `hole`, that is not, though it
    /// belongs here. In a file that may be in a backing stored blocks of zeros count as not stored.
    ///
    /// # Errors
    /// `GenerationStale`, `MissedTruncation`, `Deleted` or `Cold`.
    pub fn seek(
        &self,
        ino: Ino,
        generation: Generation,
        from: SeekFrom,
        hole: bool,
    ) -> Result<Option<u64>, StoreError> {
        self.admit(ino, generation)?;
        let bits = from.chunk_bits.min(CHUNK_BITS_MAX);
        let offset = |number: u64| if number == from.chunk { from.offset as usize } else { 0 };
        let place = |number: u64, at: usize| (number << bits) + at as u64;
        let mut expected = from.chunk;
        for ((_, number), chunk) in self.chunks.range((ino, from.chunk)..=(ino, u64::MAX)) {
            if hole && *number > expected {
                break;
            }
            if let Some(at) = seek_in(chunk, (ino, *number), offset(*number), bits, hole)? {
                return Ok(Some(place(*number, at)));
            }
            expected = number.saturating_add(from.step);
        }
        Ok(hole.then(|| place(expected, offset(expected))))
    }

    /// The same within one chunk.
    ///
    /// # Errors
    /// As [`ChunkShard::seek`].
    pub fn look_in_chunk(
        &self,
        ino: Ino,
        generation: Generation,
        from: SeekFrom,
        hole: bool,
    ) -> Result<InChunk, StoreError> {
        self.admit(ino, generation)?;
        let bits = from.chunk_bits.min(CHUNK_BITS_MAX);
        let Some(chunk) = self.chunks.get(&(ino, from.chunk)) else { return Ok(InChunk::NotStored) };
        let at = seek_in(chunk, (ino, from.chunk), from.offset as usize, bits, hole)?;
        Ok(at.map_or(InChunk::Nothing, |at| InChunk::At((from.chunk << bits) + at as u64)))
    }
}

/// What [`ChunkShard::look_in_chunk`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InChunk {
    /// The chunk is not there.
    NotStored,
    /// It has nothing of the kind from there on.
    Nothing,
    /// Where in the file it is.
    At(u64),
}

fn seek_in(
    chunk: &Chunk,
    (ino, number): (Ino, u64),
    offset: usize,
    bits: u8,
    hole: bool,
) -> Result<Option<usize>, StoreError> {
    let found = match (ino.is_backed(), hole) {
        (false, false) => Ok(chunk.next_data(offset)),
        (false, true) => Ok(chunk.next_hole(offset, 1 << bits)),
        (true, false) => chunk.next_other_than_zeros(offset),
        (true, true) => chunk.next_zeros(offset, 1 << bits),
    };
    found.map_err(|units| StoreError::Cold { ino, chunk: number, units })
}
