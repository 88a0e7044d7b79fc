//! The shards that live on this server, each under two locks: one for names and inodes, one for
//! data. Lock order: data, then names, then directories.
//!
//! All parts meet here: a shard has names and chunks, and its changes (`logged`) reach the journal, the published index, leases
//! and watches.

pub(crate) mod logged;

use crate::coherence::state::leases::{LeaseTable, Leases};
use crate::coherence::state::published::PublishedIndex;
use crate::coherence::state::watch::Watches;
use crate::names::state::held::{Opens, Running};
use crate::names::state::lock_table::FileLocks;
use crate::names::state::turns::Queue;
use crate::sabotage::{Sabotage, Switches};
use crate::shards::logged::{Log, LoggedChunks, LoggedShard, Poisoned, Records};
use aze_io::sync::Mutex;
use aze_meta::{EntryKey, Op, Shard, Stamp};
use aze_proto::{Incarnation, Ino, Life, ServerIndex, ShardId, ShardMap};
use aze_store::{ChunkShard, Store};
use futures_channel::oneshot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// One shard.
pub(crate) struct ShardCell {
    pub(crate) id: ShardId,
    pub(crate) data: Mutex<LoggedChunks>,
    pub(crate) names: Mutex<Names>,
}

/// Names and inodes of one shard, with the soft state around them.
pub(crate) struct Names {
    pub(crate) shard: LoggedShard,
    /// Changes being worked on: a second copy of such a request is dropped, its sender will ask again.
    pub(crate) running: Running,
    /// Open files, by session.
    pub(crate) opens: Opens,
    /// Requests that wait for a locked entry.
    pub(crate) entry_waiters: BTreeMap<EntryKey, Vec<oneshot::Sender<()>>>,
    /// Holders of the stubs of directories that have their home here.
    pub(crate) holders: BTreeMap<Ino, Holders>,
    /// Files to which something is being appended, and who waits for the turn.
    pub(crate) turns: BTreeMap<Ino, Queue>,
    /// Files here that were made without a name and have had none yet.
    pub(crate) unnamed: BTreeSet<Ino>,
    /// Locks of files that have their home here.
    pub(crate) locks: BTreeMap<Ino, FileLocks>,
}

/// Who serves entries of a directory.
#[derive(Default)]
pub(crate) struct Holders {
    pub(crate) servers: BTreeMap<ServerIndex, Incarnation>,
    /// Version of the stub.
    pub(crate) version: u64,
    /// The directory is being closed: no stub is given out.
    pub(crate) closing: bool,
    /// Requests for a stub that wait until it is decided.
    pub(crate) waiters: Vec<oneshot::Sender<()>>,
}

impl Names {
    /// Wakes the requests that wait for an entry.
    pub(crate) fn wake_entry(&mut self, key: &EntryKey) {
        for waiter in self.entry_waiters.remove(key).into_iter().flatten() {
            // A waiter that has given up is no concern.
            let _ = waiter.send(());
        }
    }
}

/// All shards of this server, made when the first map arrives.
pub(crate) struct ShardSet {
    cells: OnceLock<Vec<Option<ShardCell>>>,
    /// Their names and inodes.
    pub(crate) records: Records,
    /// Who looks through the volume, and wants to know what changes.
    pub(crate) watches: Watches,
    /// Why none of them serves any more.
    pub(crate) poisoned: Poisoned,
}

impl ShardSet {
    pub(crate) fn new() -> ShardSet {
        ShardSet {
            cells: OnceLock::new(),
            records: Records::default(),
            watches: Watches::default(),
            poisoned: Poisoned::shared(),
        }
    }

    /// Makes the shards that `map` gives to `me`. A second call changes nothing: shards do not move yet.
    pub(crate) fn make(
        &self,
        map: &ShardMap,
        me: ServerIndex,
        store: &Arc<Store>,
        published: &PublishedIndex,
        leases: &Arc<Leases>,
        switches: Switches,
    ) {
        self.cells.get_or_init(|| {
            (0..map.shards())
                .map(ShardId)
                .map(|id| {
                    map.slots.keeps(id).filter(|slot| slot.primary == me).map(|slot| {
                        let life = if switches.is(Sabotage::KeepLife) { Life(0) } else { slot.life };
                        let cell = ShardCell::new(id, life, map.shards(), store);
                        {
                            let mut names = cell.names.lock();
                            names.shard.published = published.clone();
                            names.shard.lease_table = LeaseTable::of(leases);
                            names.shard.count_in(&self.records);
                            names.shard.watches = self.watches.clone();
                            names.shard.poisoned = self.poisoned.clone();
                        }
                        cell
                    })
                })
                .collect()
        });
    }

    /// Takes shards that were there before the server started again.
    pub(crate) fn take(&self, cells: Vec<Option<ShardCell>>, log: &Log) {
        for cell in cells.iter().flatten() {
            cell.data.lock().log = log.clone();
            let mut names = cell.names.lock();
            names.shard.log = log.clone();
            names.shard.count_in(&self.records);
            names.shard.watches = self.watches.clone();
            names.shard.poisoned = self.poisoned.clone();
        }
        assert!(self.cells.set(cells).is_ok(), "shards are taken before the first map arrives");
    }

    pub(crate) fn get(&self, shard: ShardId) -> Option<&ShardCell> {
        self.cells.get()?.get(shard.0 as usize)?.as_ref()
    }

    /// The shard that keeps an inode, if it is here.
    pub(crate) fn home(&self, ino: Ino) -> Option<&ShardCell> {
        let cells = self.cells.get()?;
        cells[ino.home(cells.len() as u32).0 as usize].as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ShardCell> {
        self.cells.get().into_iter().flatten().flatten()
    }
}

impl ShardCell {
    fn new(id: ShardId, life: Life, shards: u32, store: &Arc<Store>) -> ShardCell {
        let cell = ShardCell::restored(Shard::new(id, shards), ChunkShard::new(store.clone()));
        if life > Life(0) {
            let begun = cell.names.lock().shard.apply(&Op::BeginLife { life }, &Stamp::default());
            begun.reply.expect("a new shard is in its first life");
        }
        cell
    }

    /// A shard with its earlier contents.
    pub(crate) fn restored(shard: Shard, data: ChunkShard) -> ShardCell {
        let id = shard.id();
        let names = Names {
            shard: LoggedShard::new(shard),
            running: Running::default(),
            opens: Opens::default(),
            entry_waiters: BTreeMap::new(),
            holders: BTreeMap::new(),
            turns: BTreeMap::new(),
            unnamed: BTreeSet::new(),
            locks: BTreeMap::new(),
        };
        ShardCell { id, data: Mutex::new(LoggedChunks::new(id, data)), names: Mutex::new(names) }
    }
}
