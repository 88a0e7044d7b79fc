//! A member of the keeper group writes its promises down (`state/promises.rs`).

use super::state::persistence::{Persistence, disk_failure};
use super::state::promises::no_promise;
use crate::sabotage::Sabotage;
use crate::state::Server;
use aze_proto::place::{Agreed, ShardMap};
use aze_proto::{Failure, MapEpoch};
use aze_store::disk::group::GroupFile;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// In the simulation alone: how late a promise gets to the disk for which its member does not wait.
const LATE: Duration = Duration::from_millis(200);

impl Persistence {
    /// Whether this server has begun its start, or its life in that.
    pub(crate) fn has_begun(&self) -> bool {
        self.is_counted.load(Ordering::SeqCst)
    }

    /// The promises of this server in this start of the volume, as they were when it began its life.
    pub(crate) fn promises_of_this_start(&self) -> Option<&GroupFile> {
        self.promises.of_start(self.starts.now().begun)
    }
}

impl Server {
    /// Writes down the promises of this server as a member of the group that was formed by this map; `false`: it is a member of a later
    /// group by now.
    ///
    /// # Errors
    /// The disk's: then this server promises nothing more.
    pub(crate) async fn keep_promise(self: &Arc<Self>, formed: MapEpoch, log: Vec<u8>) -> Result<bool, Failure> {
        let Some(persistence) = &self.persistence else { return Ok(true) };
        let file = GroupFile { volume: persistence.volume(), start: persistence.starts.now().begun, formed, log };
        if self.config.switches.is(Sabotage::PromiseUnsaved) {
            let server = self.clone();
            self.io.spawn(async move {
                server.io.sleep(LATE).await;
                drop(server.write_promise(&file).await);
            });
            return Ok(true);
        }
        self.write_promise(&file).await
    }

    /// Writes down, once in each start, that this server has promised nothing in it so far: if it dies before it has written that it is a member
    /// of a later group, its next process knows that it has promised nothing as that.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn keep_no_promise(&self, map: &ShardMap) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let start = persistence.starts.now().begun;
        if self.config.switches.is(Sabotage::NoPromiseUnsaid) || persistence.promises.has_of(start).await {
            return Ok(());
        }
        self.write_promise(&no_promise(persistence.volume(), start, map)).await.map(drop)
    }

    async fn write_promise(&self, file: &GroupFile) -> Result<bool, Failure> {
        let Some(persistence) = &self.persistence else { return Ok(true) };
        persistence.promises.write(&*persistence.dir, file).await.map_err(|error| {
            let failure = disk_failure(&persistence.path, &error);
            persistence.journal.fail(error);
            failure
        })
    }

    /// At the first server, when all start: writes down the map of another server, to which that has agreed later.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn take_over_agreed(&self, agreed: &Agreed) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        // This start is not counted yet.
        let start = persistence.starts.now().begun + 1;
        self.write_promise(&no_promise(persistence.volume(), start, &agreed.map)).await.map(drop)
    }
}
