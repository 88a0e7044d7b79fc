//! What a server tells of its storage, and how it brings everything to the disk at its end.

use super::state::persistence::{OURS, Persistence, disk_failure, storage_failed};
use super::state::promises::{self, agreed_in};
use super::state::starts::away_of;
use crate::state::{Config, Server};
use aze_io::Io;
use aze_io::disk::DiskError;
use aze_proto::message::Durability;
use aze_proto::place::Agreed;
use aze_proto::slots::slots_of;
use aze_proto::{Code, Failure, MapEpoch, Reply, ServerIndex};
use aze_store::disk::group::{self, GroupFile};
use aze_store::disk::manifest::{self, Manifest};
use aze_store::disk::placement::Placement;
use aze_store::disk::root;
use aze_store::disk::starts::Starts;
use std::sync::atomic::Ordering;

/// The servers that have parts of a volume in directories, as far as one of them knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The number of the volume.
    pub volume: u64,
    /// The server that knows this.
    pub server: ServerIndex,
    /// With how many servers it was made.
    pub made_with: u16,
    /// How many shards it has.
    pub shards: u32,
    /// The servers that have parts of it.
    pub members: Vec<ServerIndex>,
    /// They are as when the volume was made: no slot has moved, and no server has joined.
    pub is_as_made: bool,
    /// How new this is: of several servers the greatest is the newest.
    pub order: (u64, MapEpoch, u64, u64),
}

impl Parts {
    /// Whether the server that knows this is the first one: of those that have parts the one with the lowest number.
    pub fn is_of_first(&self) -> bool {
        self.members.first() == Some(&self.server)
    }
}

/// Reads which servers have parts of a volume, from the directories of one of them, in any order. `None` if those hold no part.
///
/// What the first server says of itself is so: its directory knows when it became that, at the latest by the decision.
///
/// # Errors
/// A directory that is in use or damaged.
pub async fn parts_of(io: &Io, dirs: &[String]) -> Result<Option<Parts>, Failure> {
    for path in dirs {
        let failed = |error: DiskError| disk_failure(path, &error);
        let dir = io.open_dir(path).await.map_err(failed)?;
        let Some(manifest) = Manifest::read(&*dir).await.map_err(failed)? else { continue };
        let file = Placement::read(&*dir).await.map_err(failed)?;
        let promised = GroupFile::read(&*dir).await.map_err(failed)?;
        let agreed = promised.as_ref().map(agreed_in).transpose().map_err(|why| failed(DiskError::Failed(why)))?;
        let Manifest { volume, server, servers: made_with, shards, directory, .. } = manifest;
        if directory > 0 {
            // Its first directory says more.
            continue;
        }
        let placement = promises::placement(agreed.as_ref(), file.as_ref(), made_with);
        let is_as_made = placement.is_none();
        let members = placement.map_or_else(
            || (0..made_with).map(ServerIndex).collect(),
            |placement| placement.members().into_iter().collect(),
        );
        let order = agreed.as_ref().map_or((0, MapEpoch(0), 0, 0), Agreed::order);
        return Ok(Some(Parts { volume, server: ServerIndex(server), made_with, shards, members, is_as_made, order }));
    }
    Ok(None)
}

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
        let starts = persistence.starts.now();
        let (volume, is_new, away) = (persistence.volume(), persistence.is_new, away_of(&starts));
        let Starts { begun: start, complete, .. } = starts;
        Ok(Reply::PersistentIs { volume, is_new, start, complete, away })
    }

    /// What the first server is told when all start.
    pub(crate) fn group_kept(&self) -> Result<Reply, Failure> {
        let persistence = self.persistence.as_ref().ok_or_else(|| {
            Failure::new(Code::Invalid, format!("{} keeps its part in memory, not on disk", self.who()))
        })?;
        let volume = (!persistence.is_new).then(|| persistence.volume());
        let starts = persistence.starts.now();
        let (agreed, away) = (persistence.promises.agreed().cloned().map(Box::new), away_of(&starts));
        let Starts { begun, complete, .. } = starts;
        Ok(Reply::GroupKeptIs { volume, agreed, begun, complete, away })
    }

    /// Writes down the rights of the root, as this server was told them last.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn keep_root_rights(&self) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let mut kept = persistence.root_rights.lock().await;
        let Some(stub) = self.directories.root().filter(|stub| kept.as_ref() != Some(stub)) else { return Ok(()) };
        root::write(&*persistence.dir, &stub).await.map_err(|error| disk_failure(&persistence.path, &error))?;
        *kept = Some(stub);
        Ok(())
    }

    /// Takes the rights of the root that this server has written down: its home is left out.
    pub(crate) async fn recall_root_rights(&self) {
        let Some(persistence) = &self.persistence else { return };
        if let Some(stub) = persistence.root_rights.lock().await.clone() {
            self.directories.update(stub);
        }
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
        if self.has_left() {
            return self.leave_storage(persistence).await;
        }
        let ended = persistence.journal.finish().await.map_err(|why| storage_failed(&self.who(), &why))?;
        self.note_clean_end(persistence, ended).await
    }

    /// Marks the directories of a server that has left, then removes journals, checkpoints and segments: other servers have the slots.
    async fn leave_storage(&self, persistence: &Persistence) -> Result<(), Failure> {
        let failed = |error: DiskError| disk_failure(&persistence.storage.place(), &error);
        for dir in &persistence.dirs {
            manifest::leave(&**dir).await.map_err(failed)?;
        }
        for dir in &persistence.dirs {
            for name in dir.list().await.map_err(failed)? {
                if OURS.iter().any(|start| name.starts_with(start)) || name == group::NAME || name == root::NAME {
                    dir.remove(&name).await.map_err(failed)?;
                }
            }
            dir.sync().await.map_err(failed)?;
        }
        Ok(())
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
