//! What a server tells of its storage, and how it brings everything to the disk at its end.

use super::state::lasting::storage_failed;
use crate::state::{Config, Server};
use aze_proto::message::Durability;
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
            chunk_bits: config.chunk_bits,
            owner_uid: config.owner_uid,
            directory: 0,
            directories: config.storage.as_ref().map_or(1, |storage| storage.directories),
        }
    }

    pub(crate) fn lasting_is(&self) -> Result<Reply, Failure> {
        let lasting = self.lasting.as_ref().ok_or_else(|| {
            Failure::new(Code::Invalid, format!("{} keeps its part in memory, not on disk", self.who()))
        })?;
        if !lasting.is_counted.load(Ordering::SeqCst) {
            return Err(Failure::new(Code::Busy, format!("{} is still starting", self.who())));
        }
        let Starts { begun, complete, .. } = lasting.starts.now();
        Ok(Reply::LastingIs { volume: lasting.volume, is_new: lasting.is_new, start: begun, complete })
    }

    pub(crate) fn synced(&self) -> Reply {
        let durability = self.lasting.as_ref().map_or(Durability::None, |lasting| lasting.storage.durability);
        Reply::Synced { durability }
    }

    /// Brings everything to the disk, before the process ends.
    ///
    /// # Errors
    /// Why the disk has not got it.
    pub async fn rest(&self) -> Result<(), Failure> {
        let Some(lasting) = &self.lasting else { return Ok(()) };
        let ended = lasting.journal.finish().await.map_err(|why| storage_failed(&self.who(), &why))?;
        self.note_clean_end(lasting, ended).await
    }

    /// For people: the file or device that keeps its part, if no directory does, and remarks on it.
    pub fn storage_medium(&self) -> Option<(String, Vec<String>)> {
        let dir = &self.lasting.as_ref()?.dir;
        Some((dir.medium()?, dir.remarks()))
    }

    /// For people: the format of the storage, its directories and its durability.
    pub fn storage_text(&self) -> Option<String> {
        let storage = &self.lasting.as_ref()?.storage;
        let format = Server::manifest(&self.config, 0).format();
        Some(format!("{} (format {format}, {:?})", storage.place(), storage.durability))
    }
}
