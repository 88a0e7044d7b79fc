//! Checkpoints of a server that goes on serving: each shard is looked at under its locks for a
//! moment, and written down with the place in the journal at which it was so.

use super::state::image::{Snapshot, UNITS_AT_ONCE, add_left, add_server};
use super::state::persistence::{Persistence, disk_failure};
use super::state::record::Changed;
use crate::membership::state::moving::{Arriving, Refused, Sending};
use crate::sabotage::Sabotage;
use crate::state::Server;
use aze_io::disk::{DiskError, DiskResult};
use aze_io::slab::BASE_BYTES;
use aze_proto::{Configuration, Failure, Ino, ShardId, SlotIndex};
use aze_store::disk::checkpoint::Writer;
use aze_store::disk::journal::Stage;
use aze_store::{Dirty, Placed};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause between two looks whether a checkpoint is there.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(2);

impl Server {
    /// Begins a checkpoint if the journal has grown long enough.
    pub(crate) fn checkpoint_now_and_then(self: &Arc<Self>, persistence: &Persistence) {
        let limit = persistence.storage.checkpoint_bytes.max(persistence.checkpoint_bytes.load(Ordering::Relaxed));
        if persistence.journal.bytes() < limit || persistence.is_checkpointing.swap(true, Ordering::SeqCst) {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move { server.checkpoint_here().await });
    }

    /// Makes a checkpoint, or waits until the one that is being made is there.
    pub(super) async fn checkpoint_at_once(self: &Arc<Self>) {
        let Some(persistence) = &self.persistence else { return };
        if !persistence.is_checkpointing.swap(true, Ordering::SeqCst) {
            return self.checkpoint_here().await;
        }
        while persistence.is_checkpointing.load(Ordering::SeqCst) {
            self.io.sleep(CHECKPOINT_PAUSE).await;
        }
    }

    async fn checkpoint_here(self: &Arc<Self>) {
        let Some(persistence) = &self.persistence else { return };
        // The journals stay, and the next one is tried when this one is long.
        drop(self.checkpoint_or_clear(persistence, None).await);
        persistence.is_checkpointing.store(false, Ordering::SeqCst);
    }

    async fn checkpoint_or_clear(
        &self,
        persistence: &Persistence,
        taken: Option<(SlotIndex, Configuration)>,
    ) -> DiskResult<()> {
        match self.checkpoint(persistence, taken).await {
            Ok(bytes) => persistence.checkpoint_bytes.store(bytes, Ordering::Relaxed),
            Err(error) => {
                // What cannot be removed is removed with the next.
                drop(aze_store::disk::remove_unfinished(&*persistence.dir).await);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Brings a slot that has arrived to the disk, in the configuration that it will have here: with a checkpoint, which has it apart from
    /// the records that this server made when it served the slot before. Then the giver may be told that all of it is here.
    ///
    /// # Errors
    /// The slot was put off meanwhile; what the disk says.
    pub(crate) async fn keep_arriving(
        &self,
        sending: Sending,
        slot: SlotIndex,
        as_of: Configuration,
    ) -> Result<(), Result<Refused, Failure>> {
        let Some(persistence) = &self.persistence else {
            return if self.moving.is_ready(sending) { Ok(()) } else { Err(Ok(Refused::Other)) };
        };
        while persistence.is_checkpointing.swap(true, Ordering::SeqCst) {
            self.io.sleep(CHECKPOINT_PAUSE).await;
        }
        let kept = match self.moving.begin_to_keep(sending, as_of) {
            Err(refused) => Err(Ok(refused)),
            // A checkpoint has it. Another one would number its records anew, and the slot may have some by then.
            Ok(false) => Ok(()),
            Ok(true) if self.config.switches.is(Sabotage::TakeUnsaved) => Ok(()),
            Ok(true) => {
                let written = self.checkpoint_or_clear(persistence, Some((slot, as_of))).await;
                written.map_err(|error| Err(disk_failure(&persistence.storage.place(), &error)))
            }
        };
        // Before another checkpoint can begin.
        let kept = kept.and_then(|()| if self.moving.is_ready(sending) { Ok(()) } else { Err(Ok(Refused::Other)) });
        persistence.is_checkpointing.store(false, Ordering::SeqCst);
        kept
    }

    /// A unit of a shard, which may have been taken into use meanwhile, has got a place.
    fn settle_unit(&self, persistence: &Persistence, shard: ShardId, dirty: Dirty, place: Placed, named: bool) {
        let _taking = persistence.taking.lock();
        let mut unit = Some((dirty, place));
        self.moving.with_arriving(shard, |part| {
            if let Some((dirty, place)) = unit.take() {
                part.data.settle(dirty, place, named);
            }
        });
        if let (Some((dirty, place)), Some(cell)) = (unit, self.shards.get(shard)) {
            cell.data.lock().settle(dirty, place, named);
        }
    }

    /// Lets go of memory of a slot that arrives.
    ///
    /// # Errors
    /// What the disk says.
    pub(crate) async fn let_go_of_arriving(&self, persistence: &Persistence) -> DiskResult<()> {
        for shard in self.moving.arriving_shards() {
            let mut from = Some((Ino(0), 0));
            while let Some(start) = from {
                let wanted = self.store.room_wanted_bytes().min((UNITS_AT_ONCE * BASE_BYTES) as u64);
                if wanted == 0 {
                    return Ok(());
                }
                let sweep = |part: &mut Arriving| part.data.sweep(start, usize::MAX, wanted, true);
                let Some(swept) = self.moving.with_arriving(shard, sweep) else { break };
                from = swept.next;
                let (placed, _) = self.store.write_out(swept.dirty).await?;
                placed.into_iter().for_each(|(unit, place)| self.settle_unit(persistence, shard, unit, place, false));
            }
        }
        Ok(())
    }

    async fn checkpoint(
        &self,
        persistence: &Persistence,
        taken: Option<(SlotIndex, Configuration)>,
    ) -> DiskResult<u64> {
        let (number, position) = persistence.journal.rotate_taking(taken).await?;
        let begun = self.store.begin_checkpoint();
        let writer = Writer::begin(persistence.dir.clone(), number, position, self.order.now()).await?;
        // One checkpoint is made at a time, so the journal's current file is still that of its number.
        let mut writer = writer.with_slots(persistence.journal.slots_before());
        let slots = persistence.slots;
        let mut left = Vec::new();
        let switches = &self.config.switches;
        let early = switches.is(Sabotage::ListRenamesFirst).then(|| self.transactions.committed());
        let mut arriving = BTreeSet::new();
        for shard in self.moving.kept_shards() {
            let snapshot = {
                let _taking = persistence.taking.lock();
                let of = |part: &mut Arriving| Snapshot::of(&part.names, &part.data, persistence.journal.end(), slots);
                self.moving.with_arriving(shard, of)
            };
            // One that is in use by now is among those below.
            let Some(snapshot) = snapshot else { break };
            arriving.insert(shard);
            let settle = |dirty, place| self.settle_unit(persistence, shard, dirty, place, true);
            left.extend(snapshot.add_to(&mut writer, &self.store, settle).await?);
        }
        for cell in self.shards.kept().filter(|cell| !arriving.contains(&cell.id)) {
            let snapshot = {
                let data = cell.data.lock();
                let names = cell.names.lock();
                Snapshot::of(&names.shard, &data, persistence.journal.end(), slots)
            };
            let settle = |dirty, place| cell.data.lock().settle(dirty, place, true);
            left.extend(snapshot.add_to(&mut writer, &self.store, settle).await?);
        }
        add_left(&mut writer, slots, left).await?;
        // After the shards: a transaction committed before a shard was looked at is in its tables, and only
        // this list says so to the other side, since the journal before that look is not read again.
        let changed = self.directories.changes();
        let changed = changed.into_iter().map(|(dir, time)| Changed { dir, time });
        let finished = early.unwrap_or_else(|| self.transactions.committed());
        add_server(&mut writer, self.clock.latest(), &finished, changed).await?;
        if let Some(disk) = self.store.disk().filter(|_| !switches.is(Sabotage::SkipSegmentSync)) {
            let synced = disk.segments().sync().await;
            // What the disk has of them is not known any more.
            synced.inspect_err(|error| persistence.journal.fail(error.clone()))?;
        }
        // Shards were looked at one after the other: what happened in between is in the journal, and
        // without it one of them would be ahead of the others.
        if !switches.is(Sabotage::SkipCheckpointWait) {
            let reached = persistence.journal.reach(persistence.journal.end(), Stage::Durable).await;
            reached.map_err(DiskError::Failed)?;
        }
        let bytes = writer.finish().await?;
        self.store.checkpoint_durable(begun + u64::from(switches.is(Sabotage::FreePlacesEarly)));
        aze_store::disk::remove_older(&*persistence.dir, number).await?;
        Ok(bytes)
    }
}
