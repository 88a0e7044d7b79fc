//! Checkpoints of a server that goes on serving: each shard is looked at under its locks for a
//! moment, and written down with the place in the journal at which it was so.

use super::state::image::{Snapshot, add_left, add_server};
use super::state::persistence::Persistence;
use super::state::record::Changed;
use crate::sabotage::Sabotage;
use crate::state::Server;
use aze_io::disk::{DiskError, DiskResult};
use aze_proto::slots::slots_of;
use aze_store::disk::checkpoint::Writer;
use aze_store::disk::journal::Stage;
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
        match self.checkpoint(persistence).await {
            Ok(bytes) => persistence.checkpoint_bytes.store(bytes, Ordering::Relaxed),
            // The journals stay, and the next one is tried when this one is long. What cannot be removed
            // is removed with the next.
            Err(_) => drop(aze_store::disk::remove_unfinished(&*persistence.dir).await),
        }
        persistence.is_checkpointing.store(false, Ordering::SeqCst);
    }

    async fn checkpoint(&self, persistence: &Persistence) -> DiskResult<u64> {
        let (number, position) = persistence.journal.rotate().await?;
        let begun = self.store.begin_checkpoint();
        let writer = Writer::begin(persistence.dir.clone(), number, position, self.order.now()).await?;
        // One checkpoint is made at a time, so the journal's current file is still that of its number.
        let mut writer = writer.with_slots(persistence.journal.slots_before());
        let slots = slots_of(self.config.servers);
        let mut left = Vec::new();
        let switches = &self.config.switches;
        let early = switches.is(Sabotage::ListRenamesFirst).then(|| self.transactions.committed());
        for cell in self.shards.iter() {
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
