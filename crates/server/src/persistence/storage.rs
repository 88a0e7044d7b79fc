//! What a server tells of its storage, and how it brings everything to the disk at its end.

use super::state::persistence::storage_failed;
use crate::state::{Config, Server};
use aze_proto::message::Durability;
use aze_proto::slots::slots_of;
use aze_proto::{Code, Failure, Reply};
use aze_store::disk::manifest::Manifest;
use aze_store::disk::starts::Starts;
use std::sync::atomic::Ordering;

impl Server {
    /// The manifest that this server would write.
    pub(crate) fn manifest(config: &Config, volume: u64) -> Manifest {
        Manifest {
            volume,
            server: config.slot.0,
            servers: config.servers,
            shards: config.shards,
            slots: slots_of(config.servers),
            chunk_bits: config.chunk_bits,
            owner_uid: config.owner_uid,
            directory: 0,
            directories: config.storage.as_ref().map_or(1, |storage| storage.directories),
        }
    }

    pub(crate) fn persistent_is(&self) -> Result<Reply, Failure> {
        let persistence = self.persistence.as_ref().ok_or_else(|| {
            Failure::new(Code::Invalid, format!("{} keeps its part in memory, not on disk", self.who()))
        })?;
        if !persistence.is_counted.load(Ordering::SeqCst) {
            return Err(Failure::new(Code::Busy, format!("{} is still starting", self.who())));
        }
        let Starts { begun, complete, .. } = persistence.starts.now();
        Ok(Reply::PersistentIs { volume: persistence.volume(), is_new: persistence.is_new, start: begun, complete })
    }

    pub(crate) fn synced(&self) -> Reply {
        let durability =
            self.persistence.as_ref().map_or(Durability::None, |persistence| persistence.storage.durability);
        Reply::Synced { durability }
    }

    /// Brings everything to the disk, before the process ends.
    ///
    /// # Errors
    /// Why the disk has not got it.
    pub async fn rest(&self) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let ended = persistence.journal.finish().await.map_err(|why| storage_failed(&self.who(), &why))?;
        self.note_clean_end(persistence, ended).await
    }

    /// For people: the file or device that keeps its part, if no directory does, and remarks on it.
    pub fn storage_medium(&self) -> Option<(String, Vec<String>)> {
        let dir = &self.persistence.as_ref()?.dir;
        Some((dir.medium()?, dir.remarks()))
    }

    /// For people: the format of the storage, its directories and its durability.
    pub fn storage_text(&self) -> Option<String> {
        let storage = &self.persistence.as_ref()?.storage;
        let format = Server::manifest(&self.config, 0).format();
        Some(format!("{} (format {format}, {:?})", storage.place(), storage.durability))
    }
}
