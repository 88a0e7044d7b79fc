//! A volume that is larger than memory: data that have not been used for a while go to the disk, and come
//! back when they are wanted. Neither holds up other requests: no lock is held while the disk works.

use super::state::image::UNITS_AT_ONCE;
use super::state::room::reserve_bytes;
use crate::state::Server;
use crate::work::READERS_PAUSE;
use aze_io::disk::DiskResult;
use aze_io::slab::BASE_BYTES;
use aze_proto::{Code, Failure, Ino, Request, ShardId};
use aze_store::{Cold, Warmed};
use futures_util::future::join_all;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Chunks that are looked at under one hold of a shard's lock.
const SWEEP_CHUNKS: usize = 256;

/// How often a unit is read that does not match its checksums before that is believed.
const READS_MAX: usize = 3;

/// Checkpoints that are waited for at most, to make room once: one may have begun before its places were given up.
const CHECKPOINTS_MAX: usize = 2;

impl Server {
    /// After memory was taken: lets go of some if it gets scarce.
    pub(crate) fn keep_room(self: &Arc<Self>) {
        if self.persistence.is_some() && self.store.is_memory_scarce() {
            self.begin_to_make_room();
        }
        self.evict_ahead();
    }

    fn begin_to_make_room(self: &Arc<Self>) {
        let Some(persistence) = &self.persistence else { return };
        if !persistence.room.begin() {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            let Some(persistence) = &server.persistence else { return };
            let before = server.store.memory_used_bytes();
            let made = server.make_room().await;
            let is_hopeful = match made {
                Ok(is_full) => !is_full || server.store.memory_used_bytes() < before,
                Err(error) => {
                    persistence.journal.fail(error);
                    false
                }
            };
            persistence.room.end(is_hopeful);
        });
    }

    /// Looks through all shards: first for data that were not used lately, then for the rest, and again when a
    /// checkpoint has freed places. Gives whether units stay in memory since the disk has no place for them.
    async fn make_room(self: &Arc<Self>) -> DiskResult<bool> {
        let (mut all, mut checkpoints) = (false, 0);
        loop {
            let is_full = self.let_go(all).await?;
            if self.store.room_wanted_bytes() == 0 {
                return Ok(false);
            }
            if is_full && self.store.waits_for_checkpoint() && checkpoints < CHECKPOINTS_MAX {
                // Places that only the last checkpoint names are free after the next.
                self.checkpoint_at_once().await;
                checkpoints += 1;
            } else if all {
                return Ok(is_full);
            }
            all = true;
        }
    }

    /// Looks through all shards once, until enough memory is free. Gives whether the disk had no place for some.
    async fn let_go(&self, all: bool) -> DiskResult<bool> {
        let mut is_full = false;
        for cell in self.shards.iter() {
            let mut from = Some((Ino(0), 0));
            while let Some(start) = from {
                let wanted = self.store.room_wanted_bytes();
                if wanted == 0 {
                    return Ok(is_full);
                }
                let limit = wanted.min((UNITS_AT_ONCE * BASE_BYTES) as u64);
                let swept = cell.data.lock().sweep(start, SWEEP_CHUNKS, limit, all);
                from = swept.next;
                if swept.dirty.is_empty() {
                    continue;
                }
                let (placed, left) = self.store.write_out(swept.dirty).await?;
                is_full |= !left.is_empty();
                let mut data = cell.data.lock();
                for (unit, place) in placed {
                    data.settle(unit, place, false);
                }
            }
        }
        Ok(is_full)
    }

    /// Waits until some memory has been let go of.
    pub(crate) async fn await_room(self: &Arc<Self>, deadline_ns: u64, full: Failure) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Err(full) };
        let made = persistence.room.wait();
        self.begin_to_make_room();
        let left = std::time::Duration::from_nanos(deadline_ns.saturating_sub(self.io.mono_ns()));
        match self.io.timeout(left, made).await {
            Some(Ok(false)) => self.await_eviction(deadline_ns, full).await,
            Some(_) if self.io.mono_ns() < deadline_ns => {
                // A reader may still hold dropped frames.
                self.io.sleep(READERS_PAUSE).await;
                Ok(())
            }
            _ => Err(Failure::new(Code::TimedOut, format!("{}: memory is full, and its disk is slow", self.who()))),
        }
    }

    /// Units of file data that had to be read from the disk.
    pub fn units_brought_back(&self) -> u64 {
        self.persistence.as_ref().map_or(0, |persistence| persistence.room.brought_back())
    }

    /// Brings units of a chunk back from the disk.
    pub(crate) async fn bring_back(
        self: &Arc<Self>,
        shard: ShardId,
        (ino, chunk): (Ino, u64),
        units: &Range<usize>,
        deadline_ns: u64,
    ) -> Result<(), Failure> {
        let Some(cell) = self.shards.get(shard) else { return Ok(()) };
        let cold = cell.data.lock().cold(ino, chunk, units);
        let back = cold.iter().map(|cold| self.bring_one_back(shard, cold, deadline_ns));
        join_all(back).await.into_iter().collect::<Result<(), Failure>>()?;
        self.keep_room();
        Ok(())
    }

    async fn bring_one_back(self: &Arc<Self>, shard: ShardId, cold: &Cold, deadline_ns: u64) -> Result<(), Failure> {
        let Some(cell) = self.shards.get(shard) else { return Ok(()) };
        let mut reads = 0;
        loop {
            let fetched = self.store.fetch(cold).await;
            let bytes = fetched.map_err(|why| {
                let place = self.store.describe(cold);
                let what = format!("chunk {} of inode {}, {place}", cold.chunk, cold.ino);
                Failure::new(Code::Corrupt, format!("{what}, on {}: {why}", self.who()))
            })?;
            reads += 1;
            if let Some(persistence) = &self.persistence {
                persistence.room.brings_back();
            }
            loop {
                let warmed = cell.data.lock().warm(cold, &bytes, reads >= READS_MAX);
                match warmed {
                    Warmed::Done => return Ok(()),
                    Warmed::Differs => break,
                    Warmed::NoRoom => {
                        let detail = format!("{}: memory is full, and so is the disk: remove files", self.who());
                        self.await_room(deadline_ns, Failure::new(Code::NoSpace, detail)).await?;
                    }
                }
            }
        }
    }

    /// Looks now and then whether the disk has room for more journal.
    pub(crate) fn look_at_disk_now_and_then(&self) {
        let Some(persistence) = &self.persistence else { return };
        if !persistence.room.is_look_due(self.io.mono_ns()) {
            return;
        }
        let Some(server) = self.me.upgrade() else { return };
        self.io.spawn(async move {
            let Some(persistence) = &server.persistence else { return };
            // A failed look at the disk stops no request; a failed write does.
            if let Ok(free) = persistence.dir.free_bytes().await {
                let last = persistence.checkpoint_bytes.load(Ordering::Relaxed);
                let reserve = reserve_bytes(&persistence.storage, last).saturating_sub(persistence.journal.bytes());
                persistence.room.set_low(free < reserve);
                if let Some(disk) = server.store.disk() {
                    disk.segments().keep_free(reserve);
                }
            }
        });
    }

    /// Why nothing is taken that only makes the journal longer, if that is so: removals still are.
    pub(crate) fn disk_is_low(&self, request: &Request) -> Option<Failure> {
        let persistence =
            self.persistence.as_ref().filter(|persistence| request.takes_room() && persistence.room.is_low())?;
        let detail = format!(
            "{}: the file system of {} is nearly full, and what is left is for removals: make room there",
            self.who(),
            persistence.path
        );
        Some(Failure::new(Code::NoSpace, detail))
    }
}
