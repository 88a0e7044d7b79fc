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
use crate::names::state::parts::Parts;
use crate::names::state::turns::Queue;
use crate::sabotage::{Sabotage, Switches};
pub(crate) use crate::shards::logged::LoggedChunks;
use crate::shards::logged::{Log, LoggedShard, Poisoned, Records};
use aze_io::sync::Mutex;
use aze_meta::{EntryKey, Op, Shard, Stamp};
use aze_proto::{Incarnation, Ino, Life, ServerIndex, ShardId, ShardMap};
use aze_store::{ChunkShard, Store};
use futures_channel::oneshot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU8, Ordering};
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
    /// What they have said of their parts.
    pub(crate) parts: Parts,
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

/// Where a shard of the volume is, if it is or was here. One that has gone leaves an empty one, which may be used again.
#[derive(Default)]
struct Place {
    cell: OnceLock<Box<ShardCell>>,
    state: AtomicU8,
}

/// States of a place: another server has the shard; this one serves it; this one gives it.
const ELSEWHERE: u8 = 0;
const HERE: u8 = 1;
const SEALED: u8 = 2;

impl Place {
    fn in_state(&self, state: u8) -> Option<&ShardCell> {
        if self.state.load(Ordering::Acquire) == state { self.cell.get().map(Box::as_ref) } else { None }
    }
}

/// Places of a page: few enough that a page for each shard of a server of thousands costs little.
const PAGE: usize = 64;

/// The places of all shards of the volume. Pages without a shard that is or was here are not made: a server has few of many.
struct Places {
    shards: u32,
    pages: Vec<OnceLock<Box<[Place; PAGE]>>>,
}

impl Places {
    /// The places of a volume of so many shards; these shards are here.
    fn new(shards: u32, cells: impl Iterator<Item = ShardCell>) -> Places {
        let pages = (0..(shards as usize).div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        let places = Places { shards, pages };
        for cell in cells {
            let place = places.made(cell.id).expect("a shard of the volume");
            assert!(place.cell.set(Box::new(cell)).is_ok(), "a shard is here once");
            place.state.store(HERE, Ordering::Release);
        }
        places
    }

    fn get(&self, shard: ShardId) -> Option<&Place> {
        self.pages.get(shard.0 as usize / PAGE)?.get().map(|page| &page[shard.0 as usize % PAGE])
    }

    /// The place of a shard, with its page, which is made if there is none; `None` if the volume has no such shard.
    fn made(&self, shard: ShardId) -> Option<&Place> {
        let page = self.pages.get(shard.0 as usize / PAGE).filter(|_| shard.0 < self.shards)?;
        let page = page.get_or_init(|| Box::new(std::array::from_fn(|_| Place::default())));
        Some(&page[shard.0 as usize % PAGE])
    }

    fn iter(&self) -> impl Iterator<Item = &Place> {
        self.pages.iter().filter_map(OnceLock::get).flat_map(|page| page.iter())
    }
}

/// All shards of this server, made when the first map arrives.
pub(crate) struct ShardSet {
    places: OnceLock<Places>,
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
            places: OnceLock::new(),
            records: Records::default(),
            watches: Watches::default(),
            poisoned: Poisoned::shared(),
        }
    }

    /// Makes the shards that the first map gives to `me`. A second call changes nothing: later ones are taken.
    pub(crate) fn make(
        &self,
        map: &ShardMap,
        me: ServerIndex,
        store: &Arc<Store>,
        published: &PublishedIndex,
        leases: &Arc<Leases>,
        switches: Switches,
    ) {
        self.places.get_or_init(|| {
            let mine = map.slots.shards_of(me).into_iter().filter_map(|id| {
                let life = map.slots.keeps(id).map(|slot| slot.life)?;
                let life = if switches.is(Sabotage::KeepLife) { Life(0) } else { life };
                let mut cell = ShardCell::new(id, life, map.shards(), store);
                self.join(&mut cell, published, leases);
                Some(cell)
            });
            Places::new(map.shards(), mine)
        });
    }

    /// The parts of the server that hear of changes of a shard are those of this one.
    fn join(&self, cell: &mut ShardCell, published: &PublishedIndex, leases: &Arc<Leases>) {
        let names = cell.names.get_mut();
        names.shard.published = published.clone();
        names.shard.lease_table = LeaseTable::of(leases);
        names.shard.count_in(&self.records);
        names.shard.watches = self.watches.clone();
        names.shard.poisoned = self.poisoned.clone();
    }

    /// Serves a shard that has come from another server.
    pub(crate) fn put(&self, mut cell: ShardCell, log: &Log, published: &PublishedIndex, leases: &Arc<Leases>) {
        self.join(&mut cell, published, leases);
        cell.data.get_mut().log = log.clone();
        let shard = &mut cell.names.get_mut().shard;
        shard.log = log.clone();
        shard.publish_names();
        let Some(place) = self.places.get().and_then(|places| places.made(cell.id)) else { return };
        if let Err(cell) = place.cell.set(Box::new(cell))
            && let Some(empty) = place.cell.get()
        {
            let ShardCell { id: _, data, names } = *cell;
            *empty.data.lock() = data.into_inner();
            *empty.names.lock() = names.into_inner();
        }
        place.state.store(HERE, Ordering::Release);
    }

    /// A shard is being given: only [`Self::sealed`] finds it.
    pub(crate) fn seal(&self, shard: ShardId) {
        self.turn(shard, HERE, SEALED);
    }

    /// It is served all the same.
    pub(crate) fn unseal(&self, shard: ShardId) {
        self.turn(shard, SEALED, HERE);
    }

    fn turn(&self, shard: ShardId, from: u8, to: u8) {
        if let Some(place) = self.places.get().and_then(|places| places.get(shard)) {
            // In another state it stays as it is.
            let _ = place.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// A shard that is being given.
    pub(crate) fn sealed(&self, shard: ShardId) -> Option<&ShardCell> {
        self.places.get()?.get(shard)?.in_state(SEALED)
    }

    /// A shard has been given: its memory is free again. Gives its contents.
    pub(crate) fn free(&self, shard: ShardId, shards: u32, store: &Arc<Store>) -> Option<(Names, LoggedChunks)> {
        let (mut names, data) = self.forget_sealed(self.sealed(shard)?, shards, store);
        self.turn(shard, SEALED, ELSEWHERE);
        names.shard.leave();
        Some((names, data))
    }

    /// Leaves an empty shard in the place of one that is being given.
    pub(crate) fn forget_sealed(&self, cell: &ShardCell, shards: u32, store: &Arc<Store>) -> (Names, LoggedChunks) {
        let ShardCell { id: _, data, names } = ShardCell::new(cell.id, Life(0), shards, store);
        let names = std::mem::replace(&mut *cell.names.lock(), names.into_inner());
        (names, std::mem::replace(&mut *cell.data.lock(), data.into_inner()))
    }

    /// Takes shards that were there before the server started again.
    pub(crate) fn take(&self, shards: u32, mut cells: Vec<ShardCell>, log: &Log) {
        for cell in &mut cells {
            cell.data.get_mut().log = log.clone();
            let names = cell.names.get_mut();
            names.shard.log = log.clone();
            names.shard.count_in(&self.records);
            names.shard.watches = self.watches.clone();
            names.shard.poisoned = self.poisoned.clone();
        }
        let places = Places::new(shards, cells.into_iter());
        assert!(self.places.set(places).is_ok(), "shards are taken before the first map arrives");
    }

    pub(crate) fn get(&self, shard: ShardId) -> Option<&ShardCell> {
        self.places.get()?.get(shard)?.in_state(HERE)
    }

    /// The shard that keeps an inode, if it is here.
    pub(crate) fn home(&self, ino: Ino) -> Option<&ShardCell> {
        let places = self.places.get()?;
        places.get(ino.home(places.shards))?.in_state(HERE)
    }

    /// Those that are served here, and those that are being given and may stay.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &ShardCell> {
        let state = |place: &Place| place.state.load(Ordering::Acquire);
        let places = self.places.get().into_iter().flat_map(Places::iter);
        places.filter(move |place| state(place) != ELSEWHERE).filter_map(|place| place.cell.get().map(Box::as_ref))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ShardCell> {
        self.places.get().into_iter().flat_map(Places::iter).filter_map(|place| place.in_state(HERE))
    }
}

impl ShardCell {
    fn new(id: ShardId, life: Life, shards: u32, store: &Arc<Store>) -> ShardCell {
        let mut cell = ShardCell::restored(Shard::new(id, shards), ChunkShard::new(store.clone()));
        if life > Life(0) {
            let begun = cell.names.get_mut().shard.apply(&Op::BeginLife { life }, &Stamp::default());
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
