//! Persistent storage of one server: its directories, its journal, and how far a start has come.

use super::image::{Image, Leftovers};
use super::promises::Promises;
use super::roots::{Roots, StorageDir};
use super::{room, starts};
use aze_io::Io;
use aze_io::disk::{Dir, DiskError};
use aze_io::logical::LogicalClock;
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, Stub};
use aze_store::Store;
use aze_store::disk::group::GroupFile;
use aze_store::disk::journal::Journal;
use aze_store::disk::manifest::Manifest;
use aze_store::disk::placement::Placement;
use aze_store::disk::starts::Starts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where a server keeps its part of a volume, and its durability.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The server's own directories, in any order, or its file.
    pub dirs: Vec<StorageDir>,
    /// How many directories the server is to have.
    pub directories: u16,
    /// What a power cut leaves.
    pub durability: Durability,
    /// Bytes of journal after which a checkpoint is made, if the last one was not larger.
    pub checkpoint_bytes: u64,
    /// Length of a segment, in bytes; existing segments must have the same.
    pub segment_bytes: u64,
    /// Bytes of file data that may be kept; what fits on the disk if not given.
    pub capacity_bytes: Option<u64>,
}

impl Storage {
    /// For people: where it is.
    pub fn place(&self) -> String {
        let paths: Vec<&str> = self.dirs.iter().map(|dir| dir.path.as_str()).collect();
        paths.join(", ")
    }
}

/// Journal that is read again at a start, if the last checkpoint was not larger, in bytes.
pub const CHECKPOINT_BYTES_DEFAULT: u64 = 256 << 20;

/// How the names of a server's files begin.
pub(in crate::persistence) const OURS: [&str; 3] = ["log-", "state-", "data-"];

/// The persistent storage of a running server.
pub(crate) struct Persistence {
    pub(crate) storage: Storage,
    /// Of the journal and checkpoints: the first of `dirs`.
    pub(crate) dir: Arc<dyn Dir>,
    pub(in crate::persistence) dirs: Vec<Arc<dyn Dir>>,
    /// For people: where the first one is.
    pub(in crate::persistence) path: String,
    pub(crate) journal: Arc<Journal>,
    /// The volume's number.
    pub(in crate::persistence) volume: AtomicU64,
    /// How many slots it has.
    pub(crate) slots: u32,
    /// Which server has which slot, as the file `placement` says that an earlier build has written.
    pub(crate) placement: Option<Placement>,
    /// What this server has promised as a member of a keeper group.
    pub(crate) promises: Promises,
    /// The rights of the root that are on the disk. Held while a task writes them.
    pub(in crate::persistence) root_rights: futures_util::lock::Mutex<Option<Stub>>,
    /// The shards that the directory has, until the first map says which of them this server serves.
    pub(crate) kept: Mutex<Option<Image>>,
    /// The changes in doubt among them.
    pub(crate) leftovers: Mutex<Leftovers>,
    /// Whether the directory was empty at the start.
    pub(crate) is_new: bool,
    /// Entries here are final: other servers may count them.
    pub(crate) is_resolved: AtomicBool,
    /// The operations that the end of the servers interrupted are completed or undone here.
    pub(crate) is_done: AtomicBool,
    /// And everywhere else: clients are served.
    pub(crate) is_open: AtomicBool,
    /// The starts of the volume, and the file with them.
    pub(in crate::persistence) starts: starts::Kept,
    /// The first server has counted this start, and answers requests for its number.
    pub(in crate::persistence) is_counted: AtomicBool,
    /// Held while a slot that has arrived is taken into use, so that a checkpoint finds it in one place.
    pub(crate) taking: Mutex<()>,
    pub(in crate::persistence) is_checkpointing: AtomicBool,
    pub(in crate::persistence) checkpoint_bytes: AtomicU64,
    pub(in crate::persistence) room: room::Room,
}

/// A failure of storage as others are told of it.
pub(crate) fn storage_failed(who: &str, why: &str) -> Failure {
    Failure::new(
        Code::Lost,
        format!(
            "{who}: its storage failed, so that it can promise nothing more ({why}): end the volume, repair the storage, and start the volume again"
        ),
    )
}

pub(crate) fn disk_failure(dir: &str, error: &DiskError) -> Failure {
    let code = match error {
        DiskError::Full(_) => Code::NoSpace,
        DiskError::InUse(_) => Code::Busy,
        DiskError::Unfit(_) => Code::Invalid,
        DiskError::NotFound(_) | DiskError::Failed(_) => Code::Lost,
    };
    Failure::new(code, format!("storage {dir}: {error}"))
}

impl Persistence {
    /// The volume's number.
    pub(crate) fn volume(&self) -> u64 {
        self.volume.load(Ordering::SeqCst)
    }

    /// Opens the directories, reads their records, writes them down as one checkpoint and begins a new
    /// journal after it.
    pub(crate) async fn open(
        io: &Io,
        storage: &Storage,
        expected: Manifest,
        image: &mut Image,
        store: &Arc<Store>,
        order: &Arc<LogicalClock>,
    ) -> Result<Persistence, Failure> {
        let roots = Roots::open(io, storage, &expected).await?;
        let (place, first, manifest) = (storage.place(), roots.first(), roots.manifest);
        let failed = |error: DiskError| disk_failure(&place, &error);
        let dir = first.dir.clone();
        let checkpoint_bytes = room::checkpoint_bytes(storage, &*dir).await.map_err(failed)?;
        let storage = &Storage { checkpoint_bytes, ..storage.clone() };
        if manifest.is_none() {
            // What a start has left that was cut off.
            for root in &roots.all {
                for name in root.dir.list().await.map_err(failed)?.iter().filter(|name| name.starts_with("data-")) {
                    root.dir.remove(name).await.map_err(failed)?;
                }
            }
        }
        let disk = room::open_disk(storage, &roots, manifest.unwrap_or(expected)).await.map_err(failed)?;
        store.use_disk(disk.clone());
        let mut found = aze_store::disk::recover::Found { next: 1, ..Default::default() };
        let mut starts = Starts::default();
        if manifest.is_some() {
            image.has_slots(manifest.map_or(expected.slots, |found| found.slots));
            starts = Starts::read(&*dir).await.map_err(failed)?;
            found = aze_store::disk::recover::read_for(&*dir, image).await.map_err(failed)?;
            starts::reaches_its_end(&starts, &found).map_err(failed)?;
            image.note_logs(&found.slots);
        }
        let placement = Placement::read(&*dir).await.map_err(failed)?;
        let promised = match manifest {
            Some(Manifest { volume, .. }) => GroupFile::read(&*dir).await.map_err(failed)?.map(|file| (file, volume)),
            None => None,
        };
        let promises = Promises::new(promised).map_err(|why| {
            failed(DiskError::Failed(format!("the file '{}': {why}: put it back", aze_store::disk::group::NAME)))
        })?;
        let root_rights = match manifest {
            // Of another build they may be in another form: then they are told anew.
            Some(_) => aze_store::disk::root::read(&*dir).await.unwrap_or_default(),
            None => None,
        };
        let mut checkpoint_bytes = 0;
        if manifest.is_some() {
            image.begin_new_life();
            checkpoint_bytes = image.write_down(&dir, &found).await.map_err(failed)?;
        }
        let syncs = storage.durability != Durability::None;
        order.witness(found.order);
        let journal = Journal::begin(dir.clone(), syncs, found.next, found.position, order.clone());
        let journal = journal.await.map_err(failed)?;
        journal.resume(found.slots);
        aze_store::disk::remove_older(&*dir, found.next).await.map_err(failed)?;
        disk.begin_limit();
        Ok(Persistence {
            storage: storage.clone(),
            dir,
            dirs: roots.all.iter().map(|root| root.dir.clone()).collect(),
            path: first.path.clone(),
            journal,
            volume: AtomicU64::new(manifest.map_or(expected.volume, |found| found.volume)),
            slots: manifest.map_or(expected.slots, |found| found.slots),
            placement,
            promises,
            root_rights: futures_util::lock::Mutex::new(root_rights),
            kept: Mutex::default(),
            leftovers: Mutex::default(),
            is_new: manifest.is_none(),
            is_resolved: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            starts: starts::Kept::new(starts),
            is_counted: AtomicBool::new(false),
            taking: Mutex::default(),
            is_checkpointing: AtomicBool::new(false),
            checkpoint_bytes: AtomicU64::new(checkpoint_bytes),
            room: room::Room::default(),
        })
    }
}
