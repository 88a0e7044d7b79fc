//! Shards whose changes are written down: what changes them is also a record of the journal, added
//! under the same lock. Everything else goes through to the shard.

use super::record::Step;
use crate::leases::{self, Told};
use crate::slate::Slate;
use crate::watch::Watches;
use aze_meta::{Applied, EntryKey, Op, Shard, Stamp};
use aze_proto::limits::BYTES_PER_RECORD;
use aze_proto::wire::Wire;
use aze_proto::{Attr, Code, Failure, Generation, Ino, MapEpoch, ShardId, Time};
use aze_store::disk::journal::Journal;
use aze_store::{ChunkShard, Staged, StoreError};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where changes are written down; nowhere in a volume in memory.
#[derive(Clone, Default)]
pub(crate) struct Log(pub(crate) Option<Arc<Journal>>);

impl Log {
    fn add(&self, step: impl FnOnce() -> Step, payload: &[&[u8]]) {
        if let Some(journal) = &self.0 {
            journal.append_parts(&step().to_bytes(), payload);
        }
    }
}

/// Names and inodes of one shard.
pub(crate) struct LoggedShard {
    shard: Shard,
    pub(crate) log: Log,
    /// The published index of this shard.
    pub(crate) slate: Slate,
    /// Who was told what of it, and has to hear of changes.
    pub(crate) told: Told,
    records: Records,
    /// Who wants to know which inodes change.
    pub(crate) watches: Watches,
}

/// How many entries and inodes all shards of a server have, with the bytes that count as some. Each change of a
/// counted shard adds its difference, under the lock of that shard.
#[derive(Clone, Default)]
pub(crate) struct Records(Arc<AtomicU64>);

impl Records {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// There were `before` of them in a shard, and are `now`.
    fn changed(&self, before: u64, now: u64) {
        if now != before {
            // The difference wraps where it is negative, as the sum does.
            self.0.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }
}

impl LoggedShard {
    pub(crate) fn new(shard: Shard) -> LoggedShard {
        let (log, slate, told, records, watches) = Default::default();
        LoggedShard { shard, log, slate, told, records, watches }
    }

    /// From now on this shard is counted here.
    pub(crate) fn count_in(&mut self, records: &Records) {
        self.records = records.clone();
        self.records.changed(0, self.count());
    }

    /// Parts of any length count as so many records as would take their bytes.
    fn count(&self) -> u64 {
        self.shard.entries() + self.shard.inodes() + self.shard.rare_bytes() / BYTES_PER_RECORD
    }

    /// As [`Shard::apply`]. Outcomes alone are not written down: a client that could ask again is gone
    /// when they would be needed. Leases of the changed rows are recalled.
    pub(crate) fn apply(&mut self, op: &Op, stamp: &Stamp) -> Applied {
        let key = op.key().filter(|_| self.slate.is_there());
        let was_taken = key.is_some_and(|key| self.is_taken(key));
        // Also where no client has a lease yet: one may be claimed until the slate has changed.
        let may_tell = self.slate.is_there() || !self.told.is_empty();
        let lost = if may_tell { leases::loses_name(&self.shard, op) } else { None };
        if self.watches.is_used() {
            self.watches.note(&self.shard, op);
        }
        let before = self.count();
        let applied = self.shard.apply(op, stamp);
        self.records.changed(before, self.count());
        if let Some(key) = key {
            match (was_taken, self.is_taken(key)) {
                (false, true) => self.slate.count_name(key),
                (true, false) => self.slate.uncount_name(key, stamp.time),
                _ => {}
            }
        }
        self.slate.applied(op, &applied);
        if applied.reply.is_ok() && !self.told.is_empty() {
            leases::recall_changed(&mut self.told, self.shard.id(), op, lost, stamp.session);
        }
        if applied.reply.is_ok() && !matches!(op, Op::Record { .. }) {
            self.log.add(|| Step::Names { shard: self.shard.id(), time: stamp.time, op: op.clone() }, &[]);
        }
        applied
    }

    /// The tables, and the parts that are told of their changes.
    pub(crate) fn parts(&mut self) -> (&Shard, &mut Told) {
        (&self.shard, &mut self.told)
    }

    /// Whether a name is there or held.
    fn is_taken(&self, key: &EntryKey) -> bool {
        self.shard.lock_of(key).is_some() || self.shard.entry(key).is_some()
    }

    /// As [`Shard::make_root`].
    pub(crate) fn make_root(
        &mut self,
        uid: u32,
        gid: u32,
        mode: u32,
        born: MapEpoch,
        chunk_bits: u8,
        time: Time,
    ) -> Result<Attr, Failure> {
        let applied = self.apply(&Op::MakeRoot { uid, gid, mode, born, chunk_bits }, &Stamp::at(time));
        applied.reply?;
        applied.effects.attr.ok_or_else(|| Code::Internal.into())
    }
}

impl Deref for LoggedShard {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl DerefMut for LoggedShard {
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }
}

/// Data of one shard.
pub(crate) struct LoggedChunks {
    id: ShardId,
    chunks: ChunkShard,
    pub(crate) log: Log,
}

impl LoggedChunks {
    pub(crate) fn new(id: ShardId, chunks: ChunkShard) -> LoggedChunks {
        LoggedChunks { id, chunks, log: Log::default() }
    }

    /// As [`ChunkShard::put`].
    pub(crate) fn put(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        staged: &mut Staged<'_>,
    ) -> Result<(), StoreError> {
        self.chunks.put(ino, generation, chunk, staged)?;
        if self.log.0.is_some() && !staged.is_empty() {
            let (shard, offset, sums) = (self.id, staged.offset(), || staged.sums().to_vec());
            self.log.add(|| Step::Data { shard, ino, generation, chunk, offset, sums: sums() }, &staged.data());
        }
        staged.let_go();
        Ok(())
    }

    /// As [`ChunkShard::write`].
    pub(crate) fn write(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        offset: u32,
        data: &[u8],
        sums: &[u32],
    ) -> Result<(), StoreError> {
        let store = self.chunks.store().clone();
        self.put(ino, generation, chunk, &mut store.stage(ino, chunk, offset, data, sums)?)
    }

    /// As [`ChunkShard::reserve`]; with a chunk size it zeroes. Only what changes bytes is written down:
    /// the reservation is memory of this process.
    pub(crate) fn reserve(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        range: Range<u32>,
        zero: Option<u8>,
    ) -> Result<(), StoreError> {
        self.chunks.reserve(ino, generation, chunk, range.clone(), zero.is_some())?;
        if let Some(chunk_bits) = zero {
            let at = |within: u32| (chunk << chunk_bits) + u64::from(within);
            let (start, end) = (at(range.start), at(range.end));
            self.log.add(|| Step::Punch { shard: self.id, ino, start, end, chunk_bits }, &[]);
        }
        Ok(())
    }

    /// As [`ChunkShard::punch`].
    pub(crate) fn punch(
        &mut self,
        ino: Ino,
        generation: Generation,
        range: Range<u64>,
        chunk_bits: u8,
    ) -> Result<(), StoreError> {
        self.chunks.punch(ino, generation, range.clone(), chunk_bits)?;
        self.log.add(|| Step::Punch { shard: self.id, ino, start: range.start, end: range.end, chunk_bits }, &[]);
        Ok(())
    }

    /// As [`ChunkShard::cut`].
    pub(crate) fn cut(&mut self, ino: Ino, generation: Generation, length: u64, chunk_bits: u8) {
        let is_news = self.chunks.generation_of(ino).is_some_and(|have| have < generation);
        self.chunks.cut(ino, generation, length, chunk_bits);
        if is_news {
            self.log.add(|| Step::Cut { shard: self.id, ino, generation, length, chunk_bits }, &[]);
        }
    }

    /// As [`ChunkShard::delete`].
    pub(crate) fn delete(&mut self, ino: Ino) {
        let is_news = self.chunks.generation_of(ino).is_some();
        self.chunks.delete(ino);
        if is_news {
            self.log.add(|| Step::Drop { shard: self.id, ino }, &[]);
        }
    }

    /// As [`ChunkShard::trim`].
    pub(crate) fn trim(&mut self, ino: Ino, length: u64, chunk_bits: u8) {
        self.chunks.trim(ino, length, chunk_bits);
        self.log.add(|| Step::Trim { shard: self.id, ino, length, chunk_bits }, &[]);
    }
}

impl Deref for LoggedChunks {
    type Target = ChunkShard;

    fn deref(&self) -> &ChunkShard {
        &self.chunks
    }
}

impl DerefMut for LoggedChunks {
    fn deref_mut(&mut self) -> &mut ChunkShard {
        &mut self.chunks
    }
}
