//! The data of one shard: which chunks there are, which generation of each file has been seen,
//! and which requests were done already.

mod copies;
mod space;

pub use copies::Evicted;
pub use space::{InChunk, SeekFrom};

use crate::chunk::{Chunk, Part, Trouble};
use crate::{Data, Staged, Store, StoreError};
use aze_io::slab::Frame;
use aze_proto::ids::{Generation, Ino, Sequence, SessionId};
use aze_proto::limits::CHUNK_BITS_MAX;
use aze_proto::retry::{Remembered, RetryTable, Verdict};
use aze_proto::{Failure, Reply, sum};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// What a read found, pointing into the store's memory.
pub struct ReadOut<'a> {
    /// Where in the chunk it starts: the block border at or before the offset asked for.
    pub start: u32,
    /// The bytes, in order; together they end where the chunk's stored bytes end or at the
    /// block border at or after the end asked for. Empty where nothing is stored.
    pub parts: &'a [&'a [u8]],
    /// The checksum of each block, a last partial one padded with zeros. The reader compares.
    pub sums: Vec<u32>,
}

/// The result of a read, held as it was at that moment: later writes do not change it, and no lock
/// is needed to look at it.
pub struct Held {
    /// As in [`ReadOut`].
    pub start: u32,
    /// As in [`ReadOut`].
    pub sums: Vec<u32>,
    parts: Vec<Part>,
}

impl Held {
    /// The bytes, in order.
    pub fn parts(&self) -> Vec<&[u8]> {
        self.parts.iter().map(Part::bytes).collect()
    }

    /// The frames that the bytes lie in, in order; nothing if some are holes, which lie in none.
    pub fn frames(&self) -> Vec<(Arc<Frame>, Range<usize>)> {
        let frames: Option<Vec<_>> = self.parts.iter().map(Part::frame).collect();
        frames.unwrap_or_default()
    }
}

/// What a shard knows of a file that has data in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) generation: Generation,
    /// Changes of its data since the server started, modulo 2^32.
    changes: u32,
}

/// How often data have changed since the server started. None of the numbers ever shrinks, while the file is there,
/// without `wraps` growing: two equal counts mean that nothing has changed in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCount {
    /// How often a counter of the shard has begun anew.
    pub wraps: u64,
    /// Changes, of one file.
    pub changes: u64,
}

/// The data of one shard. The caller brings its own lock: one for each shard.
pub struct ChunkShard {
    pub(crate) store: Arc<Store>,
    retries: RetryTable<Result<Reply, Failure>>,
    /// Files that have, or had and might get again, data here.
    pub(crate) generations: BTreeMap<Ino, Seen>,
    /// How often a counter in `generations` has begun anew.
    wraps: u64,
    pub(crate) chunks: BTreeMap<(Ino, u64), Chunk>,
    /// Those chunks that are no more than copies of what lies elsewhere ([`ChunkShard::fill`]).
    copies: BTreeSet<(Ino, u64)>,
    pub(crate) bytes: u64,
}

impl ChunkShard {
    /// A shard without data.
    pub fn new(store: Arc<Store>) -> ChunkShard {
        ChunkShard {
            store,
            retries: RetryTable::default(),
            generations: BTreeMap::new(),
            wraps: 0,
            chunks: BTreeMap::new(),
            copies: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// The store that it shares with other shards.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Whether a write is new, and if not, how it ended.
    pub fn check(&self, session: SessionId, sequence: Sequence, floor: Sequence) -> Verdict<Result<Reply, Failure>> {
        self.retries.check(session, sequence, floor)
    }

    /// Remembers how a write ended. To be called under the same lock as the write.
    pub fn record(&mut self, session: SessionId, sequence: Sequence, floor: Sequence, outcome: Result<Reply, Failure>) {
        self.retries.record(session, sequence, floor, outcome);
    }

    /// Drops outcomes that no client can ask for any more.
    pub fn expire_outcomes(&mut self) {
        self.retries.expire();
    }

    /// Drops the outcomes of a session that has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.retries.forget(session);
    }

    /// Outcomes remembered, session by session.
    pub fn outcomes(&self) -> &RetryTable<Result<Reply, Failure>> {
        &self.retries
    }

    /// Puts back the outcomes of one session, from a checkpoint.
    pub fn put_back(&mut self, known: Remembered<Result<Reply, Failure>>) {
        self.retries.restore(known);
    }

    /// Writes `data` at `offset` of a chunk: [`Store::stage`] and [`ChunkShard::put`] at once.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub fn write(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        offset: u32,
        data: &[u8],
        sums: &[u32],
    ) -> Result<(), StoreError> {
        let store = self.store.clone();
        self.put(ino, generation, chunk, &mut store.stage(ino, chunk, offset, data, sums)?)
    }

    /// Writes staged data; all of them or, with an error, nothing, and they can be put again. The caller
    /// lets go of them before it releases the shard's lock. The checksum of a whole
    /// block, or of a piece that replaces all stored bytes of a block, is kept as it is; otherwise
    /// the stored block is verified, changed and summed up anew.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Damaged` and `OutOfRange`.
    pub fn put(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        staged: &mut Staged<'_>,
    ) -> Result<(), StoreError> {
        self.admit(ino, generation)?;
        if staged.is_empty() {
            return Ok(());
        }
        self.keep(ino, chunk);
        let stored = self.chunks.get_mut(&(ino, chunk));
        let mut fresh = Chunk::default();
        let is_new = stored.is_none();
        let target = stored.unwrap_or(&mut fresh);
        let before = target.end();
        if staged.range().end > before {
            self.store.room_to_grow()?;
        }
        target.write(&self.store.slab, staged).map_err(|trouble| self.store.explain(ino, chunk, trouble))?;
        self.bytes += (target.end() - before) as u64;
        if is_new {
            self.chunks.insert((ino, chunk), fresh);
        }
        self.seen(ino, generation);
        Ok(())
    }

    /// The data of a file have changed, or may have, in this generation.
    pub(crate) fn seen(&mut self, ino: Ino, generation: Generation) {
        let seen = self.generations.entry(ino).or_insert(Seen { generation, changes: 0 });
        seen.generation = generation;
        seen.changes = seen.changes.wrapping_add(1);
        if seen.changes == 0 {
            self.wraps += 1;
        }
    }

    /// The data of a file may have changed, if it has any here.
    pub fn touched(&mut self, ino: Ino) {
        if let Some(generation) = self.generation_of(ino) {
            self.seen(ino, generation);
        }
    }

    /// The count of changes of a file's data, for [`ChunkShard::set_changes`].
    pub fn changes_of(&self, ino: Ino) -> ChangeCount {
        let changes = self.generations.get(&ino).map_or(0, |seen| u64::from(seen.changes));
        ChangeCount { wraps: self.wraps, changes }
    }

    /// Takes back the count of a change just made under the same lock that has changed no byte of the file.
    pub fn set_changes(&mut self, ino: Ino, before: ChangeCount) {
        self.wraps = before.wraps;
        if let Some(seen) = self.generations.get_mut(&ino) {
            // It came from there.
            seen.changes = u32::try_from(before.changes).unwrap_or(seen.changes);
        }
    }

    /// How often data of a file have changed here since the server started.
    ///
    /// # Errors
    /// `GenerationStale`, `MissedTruncation` or `Deleted`.
    pub fn count_changes(&self, ino: Ino, generation: Generation) -> Result<ChangeCount, StoreError> {
        self.admit(ino, generation)?;
        let changes = self.generations.get(&ino).map_or(0, |seen| u64::from(seen.changes));
        Ok(ChangeCount { wraps: self.wraps, changes })
    }

    /// Reads as [`ChunkShard::hold`] does, and hands the result to `then`.
    ///
    /// # Errors
    /// As [`ChunkShard::hold`].
    pub fn read<R>(
        &self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        offset: u32,
        len: u32,
        then: impl FnOnce(ReadOut<'_>) -> R,
    ) -> Result<R, StoreError> {
        let mut held = self.hold(ino, generation, chunk, offset, len)?;
        let sums = std::mem::take(&mut held.sums);
        Ok(then(ReadOut { start: held.start, parts: &held.parts(), sums }))
    }

    /// Holds `len` bytes at `offset` of a chunk, widened to whole blocks, without copying. They
    /// are not verified here: their receiver does that.
    ///
    /// # Errors
    /// `GenerationStale`, `MissedTruncation`, `Deleted`, `OutOfRange` or `Cold`.
    pub fn hold(
        &self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        offset: u32,
        len: u32,
    ) -> Result<Held, StoreError> {
        check_range(offset, len as usize)?;
        self.admit(ino, generation)?;
        let (start, parts, sums) = match self.chunks.get(&(ino, chunk)) {
            Some(stored) => {
                let found = stored.read(offset as usize, len as usize);
                found.map_err(|units| StoreError::Cold { ino, chunk, units })?
            }
            None => Chunk::read_nothing(offset as usize),
        };
        Ok(Held { start: start as u32, sums, parts })
    }

    /// Whether a request of this generation may be served here.
    fn admit(&self, ino: Ino, generation: Generation) -> Result<(), StoreError> {
        match self.generation_of(ino) {
            None => self.store.fences.lock().check(ino, generation),
            Some(have) if generation < have => Err(StoreError::GenerationStale(have)),
            // Where nothing is stored, nothing can have been left by a truncation that was missed.
            Some(have) if generation > have && self.has_chunks(ino) => Err(StoreError::MissedTruncation { have }),
            Some(_) => Ok(()),
        }
    }

    fn has_chunks(&self, ino: Ino) -> bool {
        self.chunks.range((ino, 0)..=(ino, u64::MAX)).next().is_some()
    }

    /// A truncation: drops the file's bytes from `length` on and refuses older generations from
    /// now on, also in shards of the same store that hold nothing of the file. `length` is the
    /// least length of all truncations up to `generation` that the shard has not seen; if they
    /// are sent one by one, the older comes first. One that has been seen is ignored.
    pub fn truncate(&mut self, ino: Ino, generation: Generation, length: u64, chunk_bits: u8) {
        self.store.fences.lock().truncate(ino, generation);
        if self.generation_of(ino).is_none_or(|have| have >= generation) {
            return;
        }
        self.seen(ino, generation);
        self.trim(ino, length, chunk_bits);
    }

    /// Drops all data of a file and refuses requests for it from now on, also in shards of the
    /// same store that hold nothing of it.
    pub fn delete(&mut self, ino: Ino) {
        self.store.fences.lock().deleted(ino);
        self.drop_chunks(ino, 0);
        self.generations.remove(&ino);
    }

    fn drop_chunks(&mut self, ino: Ino, from: u64) {
        self.keep_in(ino, from..=u64::MAX);
        for (_, chunk) in self.chunks.extract_if((ino, from)..=(ino, u64::MAX), |_, _| true) {
            self.bytes -= chunk.end() as u64;
        }
    }

    /// The generations that have been seen here.
    pub fn generations(&self) -> impl Iterator<Item = (Ino, Generation)> {
        self.generations.iter().map(|(ino, seen)| (*ino, seen.generation))
    }

    /// Sets the generation of a file, as it was before the server started again.
    pub fn set_generation(&mut self, ino: Ino, generation: Generation) {
        self.seen(ino, generation);
    }

    /// Writes data that come from a disk. Pieces that do not match their checksums stay known for that.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Damaged`.
    pub fn restore(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        offset: u32,
        data: &[u8],
        sums: &[u32],
    ) -> Result<(), StoreError> {
        match self.write(ino, generation, chunk, offset, data, sums) {
            Err(StoreError::Damaged { .. }) => {}
            other => return other,
        }
        let found = sum::piece_sums(u64::from(offset), data);
        self.write(ino, generation, chunk, offset, data, &found)?;
        let pieces = sum::pieces(u64::from(offset), data.len());
        for (index, ((start, _), now)) in pieces.zip(&found).enumerate() {
            if sums.get(index) != Some(now) {
                // The reader must notice the change.
                self.flip_bit(ino, chunk, (u64::from(offset) + start as u64) * 8);
            }
        }
        Ok(())
    }

    /// Forgets a file that was brought here ([`Self::bring`]): it may be brought anew, or not.
    pub fn forget(&mut self, ino: Ino) {
        self.drop_chunks(ino, 0);
        self.generations.remove(&ino);
    }

    /// Writes data that come from another server which has served them until now, in the generation that they had there.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Damaged`.
    pub fn bring(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        offset: u32,
        data: &[u8],
        sums: &[u32],
    ) -> Result<(), StoreError> {
        if self.generation_of(ino) != Some(generation) {
            // Whatever other shards have heard of the file: the home is asked before it is served in a newer generation.
            self.set_generation(ino, generation);
        }
        self.restore(ino, generation, chunk, offset, data, sums)
    }

    /// Drops what lies beyond the end of a file, in its present generation.
    pub fn trim(&mut self, ino: Ino, length: u64, chunk_bits: u8) {
        self.touched(ino);
        let last = length >> chunk_bits.min(CHUNK_BITS_MAX);
        let within = (length - (last << chunk_bits.min(CHUNK_BITS_MAX))) as usize;
        self.drop_chunks(ino, if within == 0 { last } else { last + 1 });
        self.keep(ino, last);
        if let Some(chunk) = self.chunks.get_mut(&(ino, last)) {
            let before = chunk.end();
            chunk.truncate(within);
            self.bytes -= (before - chunk.end()) as u64;
        }
    }

    /// The generation of a file that has been seen here; `None` if it never had data here, or
    /// has been deleted.
    pub fn generation_of(&self, ino: Ino) -> Option<Generation> {
        self.generations.get(&ino).map(|seen| seen.generation)
    }

    /// Whether a chunk is stored here.
    pub fn has(&self, ino: Ino, chunk: u64) -> bool {
        self.chunks.contains_key(&(ino, chunk))
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// Bytes from the beginning of each chunk to its last stored byte, summed up.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Files with data here, and their chunks: for the search for data without a file.
    pub fn stored(&self) -> impl Iterator<Item = (Ino, u64)> {
        self.chunks.keys().copied()
    }

    /// Flips one stored bit of a chunk, as failing memory would: for tests and the injection of
    /// faults in them only. `bit` counts from the lowest of the chunk's first byte; `false` if no
    /// such bit is kept.
    pub fn flip_bit(&mut self, ino: Ino, chunk: u64, bit: u64) -> bool {
        self.chunks.get_mut(&(ino, chunk)).is_some_and(|chunk| chunk.flip_bit(bit))
    }
}

fn check_range(offset: u32, len: usize) -> Result<(), StoreError> {
    let end = u64::from(offset) + len as u64;
    if end <= 1 << CHUNK_BITS_MAX { Ok(()) } else { Err(StoreError::OutOfRange { end }) }
}

impl Store {
    /// Checks data that are to be written at `offset` of a chunk, and copies what fills whole
    /// units of it, unless it came in frames for that ([`Store::receive_buffer`]). Takes no lock of a shard: it is called before that. `sums` has one checksum
    /// for each piece within a block (`sum::piece_sums`).
    ///
    /// # Errors
    /// `Damaged` or `OutOfRange`.
    pub fn stage<'a>(
        &self,
        ino: Ino,
        chunk: u64,
        offset: u32,
        data: impl Into<Data<'a>>,
        sums: &'a [u32],
    ) -> Result<Staged<'a>, StoreError> {
        let data = data.into();
        check_range(offset, data.len())?;
        let staged = Staged::new(&self.slab, offset as usize, data, sums);
        staged.map_err(|piece| StoreError::Damaged { ino, chunk, piece })
    }

    fn explain(&self, ino: Ino, chunk: u64, trouble: Trouble) -> StoreError {
        match trouble {
            Trouble::NoSpace => {
                StoreError::NoSpace { used_bytes: self.used_bytes(), capacity_bytes: self.capacity_bytes() }
            }
            Trouble::BeingRead => StoreError::BeingRead,
            Trouble::Rotten { block } => StoreError::Corrupt { ino, chunk, block },
            Trouble::Cold { units } => StoreError::Cold { ino, chunk, units },
        }
    }
}
