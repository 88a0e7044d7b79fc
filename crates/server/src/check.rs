//! Answers to a client that checks a volume in use: rows of the tables, and data that do not match their
//! checksums. Each answer is a small step, so that other requests do not wait for long: no lock
//! is held over more than some thousand rows or one MiB, and between two steps everybody else has a turn.

use crate::shards::ShardCell;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_meta::{EntryKey, EntryValue, Inode, LinkInDoubt, Role};
use aze_proto::check::{
    CHECK_INODES_MAX, CheckedEntry, CheckedInode, ChunkPlace, DamagedData, DataPlace, EntryPlace, EntrySpot,
};
use aze_proto::{Code, Failure, FileKind, Ino, NameHash, Reply, Request, ServerIndex, ShardId};
use aze_store::{Look, Looked};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Rows that are looked at under one hold of a shard's lock: some hundred microseconds.
const ROWS_AT_ONCE: usize = 4096;

/// Rows that one step looks at, or tells. A shard counts as one.
const STEP_ROWS: usize = 16_384;

/// Bytes of data that one step compares, and the most that is looked at under one hold of a lock.
const STEP_BYTES: u64 = 4 << 20;
const BYTES_AT_ONCE: u64 = 1 << 20;

/// Chunks that are looked at under one hold of a lock.
const CHUNKS_AT_ONCE: usize = 1024;

/// Longest names of one step in bytes.
const NAME_BYTES_MAX: usize = aze_proto::limits::PAGE_BYTES_MAX / 3;

/// How often a unit is read that does not match its checksums before that is believed.
const READS_MAX: usize = 3;

/// Damage that one step tells; the next one goes on behind it.
const DAMAGED_MAX: usize = 256;

/// Which inodes are meant.
struct Wanted<'a> {
    shards: u32,
    homes: Range<u32>,
    /// Those alone, in their order; all, if there are none.
    only: &'a BTreeSet<Ino>,
}

impl Wanted<'_> {
    fn has(&self, ino: Ino) -> bool {
        if self.only.is_empty() { self.homes.contains(&ino.home(self.shards).0) } else { self.only.contains(&ino) }
    }
}

fn few(only: &[Ino]) -> Result<BTreeSet<Ino>, Failure> {
    if only.len() > CHECK_INODES_MAX {
        let detail = format!("{} inodes are singled out: at most {CHECK_INODES_MAX}", only.len());
        return Err(Failure::new(Code::Limit, detail));
    }
    Ok(only.iter().copied().collect())
}

impl Server {
    /// What only the owner of the volume, and root, may ask.
    pub(crate) fn owner_only(&self, work: &Work) -> Result<(), Failure> {
        let (owner, uid) = (self.config.owner_uid, work.identity.uid);
        if work.identity.is_root() || uid == owner {
            return Ok(());
        }
        Err(Failure::new(Code::NotPermitted, format!("the volume belongs to user {owner}, not to user {uid}")))
    }

    pub(crate) fn check_watch(&self, work: &Work, number: u64, begin: Option<&[Ino]>) -> Attempt<Output> {
        let (watches, now_ns) = (&self.shards.watches, self.io.mono_ns());
        match begin {
            Some(inos) => {
                watches.begin(work.session, number, inos, now_ns)?;
                Ok(Reply::Done.into())
            }
            None => Ok(Reply::WatchTold { changed: watches.told(work.session, number, now_ns)? }.into()),
        }
    }

    pub(crate) fn check_inodes(&self, from: Ino, end_home: u32, directories: bool, only: &[Ino]) -> Attempt<Output> {
        let only = few(only)?;
        if !only.is_empty() {
            let untold: BTreeSet<Ino> = self.untold().into_iter().collect();
            let found = only.iter().filter_map(|ino| {
                let names = self.shards.home(*ino)?.names.lock();
                let inode = names.shard.inode(*ino).map(|inode| checked(inode, names.opens.has(*ino)));
                inode.or_else(|| untold.contains(ino).then(|| going(*ino)))
            });
            return Ok(Reply::InodesChecked { inodes: found.collect(), next: None }.into());
        }
        let mut inodes = Vec::new();
        let mut rows = 0;
        let from_home = self.home(from);
        let here = self.shards.iter().filter(|cell| cell.id >= from_home && cell.id.0 < end_home);
        for cell in here {
            let first = Ino::least_of(cell.id, self.config.shards);
            let mut next = Some(if cell.id == from_home { from } else { first });
            rows += 1;
            while let Some(from) = next {
                if rows >= STEP_ROWS {
                    return Ok(Reply::InodesChecked { inodes, next: Some(from) }.into());
                }
                let names = cell.names.lock();
                let mut rest = names.shard.inodes_from(from);
                for inode in rest.by_ref().take(ROWS_AT_ONCE) {
                    rows += 1;
                    if !directories || inode.attr.kind == FileKind::Directory {
                        inodes.push(checked(inode, names.opens.has(inode.attr.ino)));
                    }
                }
                next = rest.next().map(|inode| inode.attr.ino);
            }
        }
        Ok(Reply::InodesChecked { inodes, next: None }.into())
    }

    pub(crate) fn check_entries(&self, from: &EntryPlace, homes: Range<u32>, only: &[Ino]) -> Attempt<Output> {
        let only = few(only)?;
        let wanted = Wanted { shards: self.config.shards, homes, only: &only };
        let (mut entries, mut under_way) = (Vec::new(), Vec::new());
        let (mut rows, mut bytes) = (0, 0);
        if *from == EntryPlace::default() {
            under_way.extend(self.untold().into_iter().filter(|ino| only.contains(ino)));
        }
        for cell in self.shards.iter().filter(|cell| cell.id >= from.shard) {
            let spot = from.after.as_ref().filter(|_| cell.id == from.shard);
            let mut after = spot.map(|spot| EntryKey { parent: spot.parent, hash: spot.hash, name: spot.name.clone() });
            rows += 1;
            loop {
                let names = cell.names.lock();
                if after.is_none() {
                    under_way.extend(held(&names.shard).into_iter().filter(|ino| only.contains(ino)));
                }
                let mut last = None;
                let mut rest = names.shard.entries_behind(after.as_ref());
                for (key, value) in rest.by_ref().take(ROWS_AT_ONCE) {
                    rows += 1;
                    if wanted.has(value.ino) {
                        let entry = self.checked_entry(cell, key, value, !only.is_empty());
                        bytes += entry.name.as_ref().map_or(0, |name| name.as_bytes().len());
                        entries.push(entry);
                    }
                    last = Some(key);
                }
                let is_over = rest.next().is_none();
                drop(rest);
                let Some(last) = last.filter(|_| !is_over).cloned() else { break };
                if rows >= STEP_ROWS || bytes >= NAME_BYTES_MAX {
                    let EntryKey { parent, hash, name } = last;
                    let next = EntryPlace { shard: cell.id, after: Some(EntrySpot { parent, hash, name }) };
                    return Ok(Reply::EntriesChecked { entries, under_way, next: Some(next) }.into());
                }
                after = Some(last);
            }
            if rows >= STEP_ROWS || bytes >= NAME_BYTES_MAX {
                let next = EntryPlace { shard: ShardId(cell.id.0 + 1), after: None };
                return Ok(Reply::EntriesChecked { entries, under_way, next: Some(next) }.into());
            }
        }
        Ok(Reply::EntriesChecked { entries, under_way, next: None }.into())
    }

    fn checked_entry(&self, cell: &ShardCell, key: &EntryKey, value: EntryValue, named: bool) -> CheckedEntry {
        let is_misplaced =
            key.hash != NameHash::of(key.parent, &key.name) || key.hash.shard(self.config.shards) != cell.id;
        let name = named.then(|| key.name.clone());
        CheckedEntry { ino: value.ino, kind: value.kind, parent: key.parent, is_misplaced, name }
    }

    pub(crate) fn check_data(self: &Arc<Self>, from: DataPlace, only: Option<ChunkPlace>) -> Attempt<Output> {
        let server = self.clone();
        then(async move {
            match only {
                Some(place) => server.check_chunk(place).await,
                None => server.check_data_from(from).await,
            }
        })
    }

    /// One chunk, all of it.
    async fn check_chunk(self: &Arc<Self>, place: ChunkPlace) -> Result<Reply, Failure> {
        let ChunkPlace { ino, chunk } = place;
        let mut step = Step::default();
        if let Some(cell) = self.shards.iter().find(|cell| cell.data.lock().has(ino, chunk)) {
            let mut next = Some((ino, chunk, 0));
            while let Some(from) = next.filter(|(of, number, _)| (*of, *number) == (ino, chunk)) {
                let look = cell.data.lock().look(from, 1, BYTES_AT_ONCE);
                if look.files.first().is_some_and(|(of, number)| (*of, *number) != (ino, chunk)) {
                    break;
                }
                next = look.next;
                self.compare(cell, look, &mut step).await;
            }
        }
        self.finish_step(step, None).await
    }

    async fn check_data_from(self: &Arc<Self>, from: DataPlace) -> Result<Reply, Failure> {
        let mut step = Step::default();
        let mut shards = 0;
        for cell in self.shards.iter().filter(|cell| cell.id >= from.shard) {
            let start = (from.ino, from.chunk, usize::from(from.unit));
            let mut next = Some(if cell.id == from.shard { start } else { (Ino(0), 0, 0) });
            shards += 1;
            while let Some(from) = next {
                if step.is_full() || shards >= STEP_ROWS {
                    let (ino, chunk, unit) = from;
                    let place = DataPlace { shard: cell.id, ino, chunk, unit: unit as u16 };
                    return self.finish_step(step, Some(place)).await;
                }
                let look = cell.data.lock().look(from, CHUNKS_AT_ONCE, BYTES_AT_ONCE);
                next = look.next;
                self.compare(cell, look, &mut step).await;
            }
        }
        self.finish_step(step, None).await
    }

    /// Compares units, in memory and on the disk.
    async fn compare(&self, cell: &ShardCell, look: Look, step: &mut Step) {
        step.bytes += look.bytes;
        step.files.extend(look.files);
        let mut on_disk = Vec::new();
        for mut looked in look.units {
            if let Some(byte) = looked.rotten_in_memory() {
                step.note(&looked, byte, None, format!("memory of {}", self.who()));
            }
            looked.let_go();
            if looked.is_on_disk() {
                on_disk.push(looked);
            }
        }
        let read = on_disk.iter().map(|looked| self.compare_on_disk(cell, looked));
        for (looked, damaged) in on_disk.iter().zip(join_all(read).await) {
            if let Some((byte, why)) = damaged {
                let stored = format!("{} of {}", self.store.describe_looked(looked), self.who());
                step.note(looked, byte, why, stored);
            }
        }
    }

    /// The first wrong byte of a unit on the disk, and why it cannot be read, if that is so. A place that was given
    /// up meanwhile may have been written to: a unit that has changed since is no finding.
    async fn compare_on_disk(&self, cell: &ShardCell, looked: &Looked) -> Option<(u64, Option<String>)> {
        let mut wrong = None;
        for _ in 0..READS_MAX {
            wrong = match self.store.rotten_on_disk(looked).await {
                Ok(None) => return None,
                Ok(Some(byte)) => Some((byte, None)),
                Err(error) => Some((0, Some(error.to_string()))),
            };
            if !cell.data.lock().is_as_looked(looked) {
                return None;
            }
        }
        wrong
    }

    /// Asks whether the files of the stored data exist, and gives the answer.
    async fn finish_step(self: &Arc<Self>, step: Step, next: Option<DataPlace>) -> Result<Reply, Failure> {
        let Step { bytes, damaged, files } = step;
        let mut by_home: BTreeMap<ServerIndex, Vec<Ino>> = BTreeMap::new();
        let map = self.map();
        for ino in files.keys() {
            if let Some(home) = map.home_of(*ino) {
                by_home.entry(home).or_default().push(*ino);
            }
        }
        let mut strays = files;
        for (home, inos) in by_home {
            for some in inos.chunks(STEP_ROWS) {
                let answer = self.ask(home, ShardId(0), Request::FilesNow { inos: some.to_vec() }).await;
                match answer.map_err(|failure| failure.during(format!("server {home}, asked which files there are")))? {
                    Reply::FilesAre { files } => {
                        files.iter().for_each(|file| {
                            strays.remove(&file.ino);
                        });
                    }
                    _ => return Err(Failure::new(Code::Malformed, "FilesNow was answered with something else")),
                }
            }
        }
        let strays = strays.into_iter().map(|(ino, chunk)| ChunkPlace { ino, chunk }).collect();
        Ok(Reply::DataChecked { bytes, damaged, strays, next })
    }
}

/// What one step has come to.
#[derive(Default)]
struct Step {
    bytes: u64,
    damaged: Vec<DamagedData>,
    /// Files that have data here, and one chunk of each.
    files: BTreeMap<Ino, u64>,
}

impl Step {
    fn is_full(&self) -> bool {
        self.bytes >= STEP_BYTES || self.files.len() >= STEP_ROWS || self.damaged.len() >= DAMAGED_MAX
    }

    fn note(&mut self, looked: &Looked, byte: u64, unreadable: Option<String>, stored: String) {
        let (ino, chunk, _) = looked.spot;
        let place = ChunkPlace { ino, chunk };
        // One word for a chunk.
        if self.damaged.last().is_none_or(|last| last.place != place) {
            self.damaged.push(DamagedData { place, byte, unreadable, stored });
        }
    }
}

fn checked(inode: &Inode, is_open: bool) -> CheckedInode {
    let attr = &inode.attr;
    let is_under_way = !inode.rare.get().links.is_empty();
    CheckedInode { ino: attr.ino, kind: attr.kind, links: attr.links, parent: attr.parent, is_open, is_under_way }
}

/// A file that is gone, and whose data may still be somewhere.
fn going(ino: Ino) -> CheckedInode {
    let (kind, links, parent) = (FileKind::File, 0, Ino(0));
    CheckedInode { ino, kind, links, parent, is_open: false, is_under_way: true }
}

/// Inodes with whose names something is under way in a shard.
fn held(shard: &aze_meta::Shard) -> Vec<Ino> {
    let mut held = Vec::new();
    for (key, lock) in shard.locks() {
        held.push(lock.ino);
        held.extend(shard.entry(key).map(|entry| entry.ino));
        if let Role::ExchangeSource { ino, .. } = lock.role {
            held.push(ino);
        }
    }
    held.extend(shard.in_doubt().filter_map(|(_, in_doubt)| match in_doubt {
        LinkInDoubt::Dropped { ino } => Some(ino),
        LinkInDoubt::Made => None,
    }));
    held
}
