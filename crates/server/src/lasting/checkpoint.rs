//! Checkpoints of a server that goes on serving: each shard is looked at under its locks for a
//! moment, and written down with the place in the journal at which it was so.

use super::Lasting;
use super::image::{Snapshot, add_server};
use super::record::Changed;
use crate::state::Server;
use aze_io::disk::DiskResult;
use aze_store::disk::checkpoint::Writer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Server {
    /// Begins a checkpoint if the journal has grown long enough.
    pub(crate) fn checkpoint_now_and_then(self: &Arc<Self>, lasting: &Lasting) {
        let limit = lasting.storage.checkpoint_bytes.max(lasting.checkpoint_bytes.load(Ordering::Relaxed));
        if lasting.journal.bytes() < limit || lasting.is_checkpointing.swap(true, Ordering::SeqCst) {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            let Some(lasting) = &server.lasting else { return };
            // After an error the journals stay, and the next one is tried when this one is long.
            if let Ok(bytes) = server.checkpoint(lasting).await {
                lasting.checkpoint_bytes.store(bytes, Ordering::Relaxed);
            }
            lasting.is_checkpointing.store(false, Ordering::SeqCst);
        });
    }

    async fn checkpoint(&self, lasting: &Lasting) -> DiskResult<u64> {
        let (number, _) = lasting.journal.rotate().await?;
        let mut writer = Writer::begin(lasting.dir.clone(), number).await?;
        let changed = self.directories.changes();
        let changed = changed.into_iter().map(|(dir, time)| Changed { dir, time });
        add_server(&mut writer, self.clock.latest(), &self.transactions.committed(), changed).await?;
        for cell in self.shards.iter() {
            let snapshot = {
                let data = cell.data.lock();
                let names = cell.names.lock();
                Snapshot::of(&names.shard, &data, lasting.journal.end())
            };
            snapshot.add_to(&mut writer).await?;
        }
        let bytes = writer.finish().await?;
        aze_store::disk::remove_older(&*lasting.dir, number).await?;
        Ok(bytes)
    }
}
