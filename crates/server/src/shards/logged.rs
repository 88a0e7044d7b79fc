//! Shards whose changes are written down: each change is also a record of the journal, added under the same lock. A
//! handler reads the shard itself, and changes it by the methods here only.

use crate::coherence::state::leases::{self, LeaseTable};
use crate::coherence::state::published::PublishedIndex;
use crate::coherence::state::watch::Watches;
use crate::persistence::state::record::Step;
use aze_meta::{Applied, Effects, EntryKey, Op, Outcome, Shard, Stamp};
use aze_proto::limits::{BLOCK_BYTES, BYTES_PER_RECORD};
use aze_proto::retry::Verdict;
use aze_proto::slots::slot_of;
use aze_proto::sum::piece_sums;
use aze_proto::wire::Wire;
use aze_proto::{Attr, Code, Failure, Generation, Ino, MapEpoch, Reply, Sequence, SessionId, ShardId, Time};
use aze_store::disk::journal::Journal;
use aze_store::{ChunkShard, Cold, Dirty, Evicted, Placed, Staged, StoreError, Swept, Warmed};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Where changes are written down; nowhere in a volume in memory.
#[derive(Clone, Default)]
pub(crate) struct Log {
    pub(crate) journal: Option<Arc<Journal>>,
    /// Number of slots of the volume.
    pub(crate) slots: u32,
}

impl Log {
    fn add(&self, step: impl FnOnce() -> Step, payload: &[&[u8]]) {
        if let Some(journal) = &self.journal {
            let step = step();
            let slot = step.shard().map(|shard| slot_of(shard, self.slots));
            journal.append_parts(slot, &step.to_bytes(), payload);
        }
    }
}

/// Names and inodes of one shard.
pub(crate) struct LoggedShard {
    shard: Shard,
    pub(crate) log: Log,
    /// The published index of this shard.
    pub(crate) published: PublishedIndex,
    /// Who was told what of it, and has to hear of changes.
    pub(crate) lease_table: LeaseTable,
    records: Records,
    /// Who wants to know which inodes change.
    pub(crate) watches: Watches,
    pub(crate) poisoned: Poisoned,
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

/// Why a server serves nothing more, once an operation has contradicted one of its shards ([`Applied::is_poison`]).
/// All shards of a server share it.
#[derive(Clone, Default)]
pub(crate) struct Poisoned(Option<Arc<OnceLock<String>>>);

impl Poisoned {
    /// For all shards of a server; the default is for a shard that is in none yet.
    pub(crate) fn shared() -> Poisoned {
        Poisoned(Some(Arc::default()))
    }

    /// The operation, and the state that it contradicts.
    pub(crate) fn why(&self) -> Option<&str> {
        self.0.as_ref()?.get().map(String::as_str)
    }
}

impl LoggedShard {
    pub(crate) fn new(shard: Shard) -> LoggedShard {
        let (log, published, lease_table, records, watches, poisoned) = Default::default();
        LoggedShard { shard, log, published, lease_table, records, watches, poisoned }
    }

    /// From now on this shard is counted here.
    pub(crate) fn count_in(&mut self, records: &Records) {
        self.records = records.clone();
        self.records.changed(0, self.count());
    }

    /// The shard has gone: it is counted nowhere any more.
    pub(crate) fn leave(&mut self) {
        self.records.changed(self.count(), 0);
        self.records = Records::default();
        self.unpublish_names();
    }

    /// Counts all names of a shard that has come where clients see which are not there.
    pub(crate) fn publish_names(&self) {
        self.each_taken(|key| self.published.count_name(key));
    }

    /// Takes away what clients read of a shard that has gone. To be called when they do not read it any more.
    fn unpublish_names(&self) {
        self.each_taken(|key| {
            self.published.withdraw_entry(key);
            self.published.uncount_name(key, Time(0));
        });
        if self.published.is_there() {
            self.shard.all_inodes().for_each(|inode| self.published.withdraw_inode(inode.attr.ino));
        }
    }

    fn each_taken(&self, each: impl Fn(&EntryKey)) {
        if self.published.is_there() {
            self.shard.all_entries().for_each(|(key, _)| each(key));
            let free = self.shard.locks().map(|(key, _)| key).filter(|key| self.shard.entry(key).is_none());
            free.for_each(each);
        }
    }

    /// Has every session let go of its leases of this shard.
    pub(crate) fn recall_all(&mut self) {
        let mut known: Vec<Ino> = self.lease_table.inodes().collect();
        if !self.lease_table.is_empty() && self.published.is_there() {
            known.extend(self.shard.all_inodes().map(|inode| inode.attr.ino));
            known.extend(self.shard.all_entries().map(|(_, entry)| entry.ino));
        }
        known.sort_unstable();
        known.dedup();
        known.into_iter().for_each(|ino| leases::recall_names(&mut self.lease_table, self.shard.id(), ino));
    }

    /// Parts of any length count as so many records as would take their bytes.
    fn count(&self) -> u64 {
        self.shard.entries() + self.shard.inodes() + self.shard.rare_bytes() / BYTES_PER_RECORD
    }

    /// As [`Shard::apply`]: the one way in which names and inodes change. In this order it tells the watchers of the
    /// inodes, the published index, the holders of leases and the journal.
    pub(crate) fn apply(&mut self, op: &Op, stamp: &Stamp) -> Applied {
        if let Some(why) = self.poisoned.why() {
            return Applied {
                reply: Err(Failure::new(Code::Lost, why)),
                effects: Effects::default(),
                is_poison: false,
            };
        }
        let key = op.key().filter(|_| self.published.is_there());
        let was_taken = key.is_some_and(|key| self.is_taken(key));
        // Also where no client has a lease yet: one may be claimed until the published index has changed.
        let may_tell = self.published.is_there() || !self.lease_table.is_empty();
        let lost = if may_tell { leases::loses_name(&self.shard, op) } else { None };
        if self.watches.is_used() {
            self.watches.note(&self.shard, op);
        }
        let before = self.count();
        let applied = self.shard.apply(op, stamp);
        if applied.is_poison {
            self.poison(op, &applied);
            return applied;
        }
        self.records.changed(before, self.count());
        if let Some(key) = key {
            match (was_taken, self.is_taken(key)) {
                (false, true) => self.published.count_name(key),
                (true, false) => self.published.uncount_name(key, stamp.time),
                _ => {}
            }
        }
        self.published.applied(op, &applied);
        if applied.reply.is_ok() && !self.lease_table.is_empty() {
            leases::recall_changed(&mut self.lease_table, self.shard.id(), op, lost, stamp.session);
        }
        self.write_down(op, stamp, &applied);
        applied
    }

    /// Adds an operation that has taken effect to the journal, with the request that it decides. Of one that failed only
    /// the outcome is added, if it decides a request.
    fn write_down(&self, op: &Op, stamp: &Stamp, applied: &Applied) {
        let (shard, stamp) = (self.shard.id(), *stamp);
        match &applied.reply {
            Ok(_) => self.log.add(|| Step::Names { shard, stamp, op: op.clone() }, &[]),
            Err(failure) if stamp.sequence != Sequence(0) && applied.decides() => {
                let op = Op::Record { outcome: Outcome::Failed { failure: failure.clone() } };
                self.log.add(|| Step::Names { shard, stamp, op }, &[]);
            }
            Err(_) => {}
        }
    }

    fn poison(&self, op: &Op, applied: &Applied) {
        let why = applied.reply.as_ref().err().map_or(String::new(), |failure| failure.detail.clone());
        // What clients read without a request is not served any more, either.
        self.published.close();
        if let Some(poisoned) = &self.poisoned.0 {
            // Only the first one is kept.
            let _ = poisoned.set(format!("shard {} and {} contradict each other: {why}", self.shard.id(), op.name()));
        }
    }

    /// Decides a request with its outcome alone, unless a later step of it has done so.
    pub(crate) fn decide(&mut self, stamp: &Stamp, outcome: &Result<Reply, Failure>) {
        let known = self.shard.check(stamp.session, stamp.sequence, stamp.floor);
        if !matches!(known, Verdict::Done(_)) {
            self.apply(&Op::Record { outcome: outcome.clone().into() }, stamp);
        }
    }

    /// As [`Shard::remember`]: not in the journal, since what the session holds is not.
    pub(crate) fn remember(&mut self, stamp: &Stamp, outcome: Result<Reply, Failure>) {
        self.shard.remember(stamp, outcome);
    }

    /// Forgets the outcomes of a session that has ended. Only the journal is told of it: names and inodes stay, and each end
    /// of a session concerns thousands of shards.
    pub(crate) fn end_session(&mut self, session: SessionId, time: Time) {
        if self.shard.outcomes().knows(session) {
            self.shard.end_session(session);
            self.write_at(Op::EndSession { session }, time);
        }
    }

    /// Forgets outcomes that no client asks for any more.
    pub(crate) fn expire_outcomes(&mut self, time: Time) {
        if self.shard.outcomes().has_recent_or_kept() {
            self.shard.expire_outcomes();
            self.write_at(Op::ExpireOutcomes, time);
        }
    }

    fn write_at(&self, op: Op, time: Time) {
        self.log.add(|| Step::Names { shard: self.shard.id(), stamp: Stamp::at(time), op }, &[]);
    }

    /// The tables, and the parts that are told of their changes.
    pub(crate) fn parts(&mut self) -> (&Shard, &mut LeaseTable) {
        (&self.shard, &mut self.lease_table)
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

    /// As [`ChunkShard::put`], and decides the request of the stamp, if it has one.
    pub(crate) fn put(
        &mut self,
        stamp: &Stamp,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        staged: &mut Staged<'_>,
    ) -> Result<(), StoreError> {
        self.chunks.put(ino, generation, chunk, staged)?;
        self.remember(stamp, Ok(Reply::Written { attr: None }));
        if self.log.journal.is_some() && !staged.is_empty() {
            let (shard, stamp, offset, sums) = (self.id, *stamp, staged.offset(), staged.sums().to_vec());
            self.log.add(|| Step::Data { shard, stamp, ino, generation, chunk, offset, sums }, &staged.data());
        } else {
            self.write_outcome(stamp, || Ok(Reply::Written { attr: None }));
        }
        staged.let_go();
        Ok(())
    }

    /// As [`ChunkShard::fill`].
    pub(crate) fn fill(
        &mut self,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        data: &[u8],
        sums: &[u32],
    ) -> Result<(), StoreError> {
        self.chunks.fill(ino, generation, chunk, data, sums)?;
        let shard = self.id;
        self.log.add(|| Step::Fill { shard, ino, generation, chunk, sums: sums.to_vec() }, &[data]);
        Ok(())
    }

    /// As [`ChunkShard::keep`].
    pub(crate) fn keep(&mut self, ino: Ino, chunk: u64) {
        if self.chunks.keep(ino, chunk) {
            self.log.add(|| Step::Keep { shard: self.id, ino, chunk }, &[]);
        }
    }

    /// As [`ChunkShard::touched`]: counts are of this start, and not written down.
    pub(crate) fn touched(&mut self, ino: Ino) {
        self.chunks.touched(ino);
    }

    /// As [`ChunkShard::note_copies`].
    pub(crate) fn note_copies(&mut self, ino: Ino, length: u64, chunk_bits: u8) -> u64 {
        let bytes = self.chunks.note_copies(ino, length, chunk_bits);
        if bytes > 0 {
            self.log.add(|| Step::Copies { shard: self.id, ino, length, chunk_bits }, &[]);
        }
        bytes
    }

    /// As [`ChunkShard::evict`].
    pub(crate) fn evict(&mut self, from: (Ino, u64), chunks_max: usize, bytes_max: u64, all: bool) -> Evicted {
        let evicted = self.chunks.evict(from, chunks_max, bytes_max, all);
        for &(ino, chunk) in &evicted.chunks {
            self.log.add(|| Step::Evict { shard: self.id, ino, chunk }, &[]);
        }
        evicted
    }

    /// As [`ChunkShard::note_copy`], for the simulation alone.
    pub(crate) fn note_copy(&mut self, ino: Ino, chunk: u64) {
        self.chunks.note_copy(ino, chunk);
    }

    /// As [`ChunkShard::write`]: a part of a request that another operation decides.
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
        self.put(&Stamp::default(), ino, generation, chunk, &mut store.stage(ino, chunk, offset, data, sums)?)
    }

    /// As [`ChunkShard::reserve`], and decides the request; with a chunk size it zeroes. Only a change of bytes is
    /// written down: the reservation is memory of this process. But a chunk of a file that may be in a backing is there in the
    /// next life, too: one that is not would be read from what a stage has put there.
    pub(crate) fn reserve(
        &mut self,
        stamp: &Stamp,
        ino: Ino,
        generation: Generation,
        chunk: u64,
        range: Range<u32>,
        zero: Option<u8>,
    ) -> Result<(), StoreError> {
        if ino.is_backed() && !range.is_empty() && !self.chunks.has(ino, chunk) {
            let zeros = &[0; BLOCK_BYTES][..range.len().min(BLOCK_BYTES)];
            let offset = range.end - zeros.len() as u32;
            self.write(ino, generation, chunk, offset, zeros, &piece_sums(offset.into(), zeros))?;
        }
        self.keep(ino, chunk);
        self.chunks.reserve(ino, generation, chunk, range.clone(), zero.is_some())?;
        self.remember(stamp, Ok(Reply::Done));
        match zero {
            Some(chunk_bits) => {
                let at = |within: u32| (chunk << chunk_bits) + u64::from(within);
                let (shard, stamp, start, end) = (self.id, *stamp, at(range.start), at(range.end));
                self.log.add(|| Step::Punch { shard, stamp, ino, start, end, chunk_bits }, &[]);
            }
            None => self.write_outcome(stamp, || Ok(Reply::Done)),
        }
        Ok(())
    }

    /// As [`ChunkShard::punch`], and decides the request.
    pub(crate) fn punch(
        &mut self,
        stamp: &Stamp,
        ino: Ino,
        generation: Generation,
        range: Range<u64>,
        chunk_bits: u8,
    ) -> Result<(), StoreError> {
        self.chunks.punch(ino, generation, range.clone(), chunk_bits)?;
        self.remember(stamp, Ok(Reply::Done));
        let (shard, stamp, start, end) = (self.id, *stamp, range.start, range.end);
        self.log.add(|| Step::Punch { shard, stamp, ino, start, end, chunk_bits }, &[]);
        Ok(())
    }

    /// Decides a request that has changed no data, or failed.
    pub(crate) fn decide(&mut self, stamp: &Stamp, outcome: Result<Reply, Failure>) {
        self.remember(stamp, outcome.clone());
        self.write_outcome(stamp, || outcome);
    }

    fn remember(&mut self, stamp: &Stamp, outcome: Result<Reply, Failure>) {
        self.chunks.record(stamp.session, stamp.sequence, stamp.floor, outcome);
    }

    fn write_outcome(&self, stamp: &Stamp, outcome: impl FnOnce() -> Result<Reply, Failure>) {
        if stamp.sequence != Sequence(0) {
            self.log.add(|| Step::Outcome { shard: self.id, stamp: *stamp, outcome: outcome().into() }, &[]);
        }
    }

    /// Forgets the outcomes of a session that has ended.
    pub(crate) fn end_session(&mut self, session: SessionId) {
        if self.chunks.outcomes().knows(session) {
            self.chunks.end_session(session);
            self.log.add(|| Step::EndSession { shard: self.id, session }, &[]);
        }
    }

    /// Forgets outcomes that no client asks for any more.
    pub(crate) fn expire_outcomes(&mut self) {
        if self.chunks.outcomes().has_recent_or_kept() {
            self.chunks.expire_outcomes();
            self.log.add(|| Step::ExpireOutcomes { shard: self.id }, &[]);
        }
    }

    /// As [`ChunkShard::truncate`].
    pub(crate) fn truncate(&mut self, ino: Ino, generation: Generation, length: u64, chunk_bits: u8) {
        let is_news = self.chunks.generation_of(ino).is_some_and(|have| have < generation);
        self.chunks.truncate(ino, generation, length, chunk_bits);
        if is_news {
            self.log.add(|| Step::TruncateData { shard: self.id, ino, generation, length, chunk_bits }, &[]);
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

/// Where the bytes lie changes, and the bytes do not: these are not written down.
impl LoggedChunks {
    /// As [`ChunkShard::sweep`].
    pub(crate) fn sweep(&mut self, from: (Ino, u64), chunks_max: usize, bytes_max: u64, all: bool) -> Swept {
        self.chunks.sweep(from, chunks_max, bytes_max, all)
    }

    /// As [`ChunkShard::settle`].
    pub(crate) fn settle(&mut self, dirty: Dirty, place: Placed, named: bool) {
        self.chunks.settle(dirty, place, named);
    }

    /// As [`ChunkShard::warm`].
    pub(crate) fn warm(&mut self, cold: &Cold, bytes: &[u8], anyway: bool) -> Warmed {
        self.chunks.warm(cold, bytes, anyway)
    }

    /// As [`ChunkShard::flip_bit`].
    pub(crate) fn flip_bit(&mut self, ino: Ino, chunk: u64, bit: u64) -> bool {
        self.chunks.flip_bit(ino, chunk, bit)
    }
}

impl Deref for LoggedChunks {
    type Target = ChunkShard;

    fn deref(&self) -> &ChunkShard {
        &self.chunks
    }
}
