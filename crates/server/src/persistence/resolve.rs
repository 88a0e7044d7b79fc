//! After all servers have joined again, and before the first client: the operations under way when they
//! ended are completed or undone, and data and inodes without an owner are dropped.
//!
//! Each server first gets the stubs of the directories whose entries it has; then it resolves the
//! names that were locked. A rename is done where the new name's server has done it, else it has not
//! happened. When all have resolved their names, link counts are set to the names there are, orphans
//! go, and so do data without a file or beyond the end of it.

use super::state::roots::Roots;
use super::state::starts::Counted;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::{Attempt, Stop};
use aze_meta::{EntryKey, EntryValue, Lock, Op, Role, Stamp};
use aze_proto::message::FileNow;
use aze_proto::{Code, Failure, FileKind, Ino, Reply, Request, ServerIndex, ShardId, Time, TxId};
use futures_util::future::try_join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the servers may take to find each other and to resolve everything.
pub(super) const RESOLVE_TIME_MAX: Duration = Duration::from_secs(100);

/// Pause before a server that is not ready yet is asked again.
pub(crate) const AGAIN_PAUSE: Duration = Duration::from_millis(50);

/// Questions to other servers under way at once.
const AT_ONCE: usize = 64;

/// Rows in one answer to another server.
pub(super) const ROWS_MAX: usize = 16_384;

/// What this server has of one directory.
#[derive(Default)]
struct Here {
    entries: u64,
    subdirs: u64,
    shards: BTreeSet<ShardId>,
}

impl Server {
    /// Makes sure that all servers have parts of one volume, and writes down that this one has, too.
    pub(crate) async fn found_volume(self: &Arc<Self>) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let dir = &persistence.storage.place();
        let mut volume = persistence.volume();
        let mut counted = None;
        if !self.is_first() {
            let first = self.config.first;
            let Reply::PersistentIs { volume: kept, is_new, start, complete, away } =
                self.ask_until_ready(first, Request::PersistentId).await?
            else {
                return Err(Failure::new(Code::Malformed, "PersistentId was answered with something else"));
            };
            let own = away.iter().find(|away| away.server == self.slot());
            let last = own.map_or(complete, |away| away.start);
            counted = Some((Counted { by: first, start, complete, last }, away));
            match (persistence.is_new, is_new) {
                (true, true) => {
                    volume = kept;
                    persistence.volume.store(kept, Ordering::SeqCst);
                }
                (false, false) if kept == volume => {}
                (true, false) => {
                    let detail = format!(
                        "storage {dir}: it is empty, but server {first} has a part of a volume that was used: give the directory that server {} had, or begin with empty ones everywhere",
                        self.slot()
                    );
                    return Err(Failure::new(Code::Lost, detail));
                }
                _ => {
                    let detail = format!("storage {dir}: it holds a part of another volume than server {first} has");
                    return Err(Failure::new(Code::Invalid, detail));
                }
            }
        }
        // Written before the manifest, so that a directory with a manifest has this file, too.
        self.begin_start(persistence, counted).await?;
        if persistence.is_new {
            if let Some(disk) = self.store.disk() {
                disk.segments().set_volume(volume);
            }
            let written = Roots::found(&persistence.dirs, Server::manifest(&self.config, volume)).await;
            written.map_err(|error| super::state::persistence::disk_failure(dir, &error))?;
        }
        self.take_part_durably().await
    }

    /// A server that joins a volume in use writes down that it has a part of it: before it takes any, and as of the start that is in
    /// force.
    pub(crate) async fn found_part(self: &Arc<Self>) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let place = &persistence.storage.place();
        if !persistence.is_new {
            let detail = format!(
                "storage {place}: it holds a part of a volume: a server that joins one begins with an empty directory"
            );
            return Err(Failure::new(Code::Invalid, detail));
        }
        let known = self.ask_until_ready(self.map().keeper, Request::PersistentId).await?;
        let Reply::PersistentIs { volume, start, complete, away, .. } = known else {
            return Err(Failure::new(Code::Malformed, "PersistentId was answered with something else"));
        };
        persistence.volume.store(volume, Ordering::SeqCst);
        self.begin_in_start(persistence, (start, complete), &away).await?;
        if let Some(disk) = self.store.disk() {
            disk.segments().set_volume(volume);
        }
        let written = Roots::found(&persistence.dirs, Server::manifest(&self.config, volume)).await;
        written.map_err(|error| super::state::persistence::disk_failure(place, &error))?;
        for is_so in [&persistence.is_resolved, &persistence.is_done, &persistence.is_open] {
            is_so.store(true, Ordering::SeqCst);
        }
        self.take_part_durably().await
    }

    /// Completes or undoes the interrupted operations, with the other servers.
    pub(crate) async fn resolve(self: &Arc<Self>) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let leftovers = std::mem::take(&mut *persistence.leftovers.lock());
        let left_out = self.left_out();
        if !left_out.is_empty() {
            return self.resolve_without(persistence, leftovers, &left_out).await;
        }
        if !persistence.is_new {
            self.take_stubs(&leftovers.changed).await?;
            self.resolve_sources().await?;
            for (shard, key) in leftovers.doubtful {
                self.drop_if_dead(shard, &key).await?;
            }
        }
        persistence.is_resolved.store(true, Ordering::SeqCst);
        if !persistence.is_new {
            self.clean_up().await?;
        }
        Ok(())
    }

    /// What all servers together do when each has brought its names to an end.
    pub(super) async fn clean_up(self: &Arc<Self>) -> Result<(), Failure> {
        self.count_links().await?;
        self.finish_truncations().await?;
        if !self.config.switches.is(Sabotage::KeepStrays) {
            self.drop_strays().await?;
        }
        Ok(())
    }

    /// Asks until the other one has joined, and has got so far itself.
    pub(super) async fn ask_until_ready(
        self: &Arc<Self>,
        server: ServerIndex,
        request: Request,
    ) -> Result<Reply, Failure> {
        let deadline_ns = self.io.mono_ns() + RESOLVE_TIME_MAX.as_nanos() as u64;
        loop {
            match self.ask(server, ShardId(0), request.clone()).await {
                Err(failure)
                    if matches!(failure.code, Code::Unreachable | Code::TimedOut | Code::Busy)
                        && self.io.mono_ns() < deadline_ns =>
                {
                    self.io.sleep(AGAIN_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    async fn ask_home(self: &Arc<Self>, ino: Ino, request: Request) -> Result<Reply, Failure> {
        let deadline_ns = self.io.mono_ns() + RESOLVE_TIME_MAX.as_nanos() as u64;
        loop {
            match self.ask_shard(self.home(ino), request.clone()).await {
                Err(failure)
                    if matches!(failure.code, Code::Unreachable | Code::TimedOut | Code::Busy)
                        && self.io.mono_ns() < deadline_ns =>
                {
                    self.io.sleep(AGAIN_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// Gets the stub of every directory with entries here, so that its home knows.
    pub(super) async fn take_stubs(self: &Arc<Self>, changed: &BTreeMap<Ino, Time>) -> Result<(), Failure> {
        let mut dirs: BTreeMap<Ino, Here> = BTreeMap::new();
        for cell in self.shards.iter() {
            let names = cell.names.lock();
            for (key, entry) in names.shard.all_entries() {
                let here = dirs.entry(key.parent).or_default();
                here.entries += 1;
                here.subdirs += u64::from(entry.kind == FileKind::Directory);
                here.shards.insert(cell.id);
            }
        }
        // The homes of others were left out: entries here of their directories are kept for them.
        let map = self.map();
        let is_there = |dir: &Ino| map.home_of(*dir).is_none_or(|home| !map.is_gone(home));
        let dirs: Vec<(Ino, Here)> = dirs.into_iter().filter(|(dir, _)| is_there(dir)).collect();
        for some in dirs.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|(dir, here)| self.take_stub(*dir, here, changed.get(dir)))).await?;
        }
        Ok(())
    }

    async fn take_stub(self: &Arc<Self>, dir: Ino, here: &Here, changed: Option<&Time>) -> Result<(), Failure> {
        let deadline_ns = self.io.mono_ns() + RESOLVE_TIME_MAX.as_nanos() as u64;
        loop {
            match self.fetch_stub(dir, deadline_ns).await {
                Ok(()) => {
                    let time = changed.copied().unwrap_or_default();
                    self.directories.restore(dir, here.entries, here.subdirs, time, &here.shards);
                    return Ok(());
                }
                // A directory that is gone: no path leads to its entries.
                Err(failure) if matches!(failure.code, Code::NotFound | Code::Stale) => return Ok(()),
                Err(failure) if self.io.mono_ns() >= deadline_ns => return Err(failure),
                Err(_) => self.io.sleep(AGAIN_PAUSE).await,
            }
        }
    }

    /// Old names that renames or removals had locked.
    async fn resolve_sources(self: &Arc<Self>) -> Result<(), Failure> {
        let mut locked: Vec<(ShardId, EntryKey, Lock)> = Vec::new();
        for cell in self.shards.iter() {
            let names = cell.names.lock();
            let sources =
                names.shard.locks().filter(|(_, lock)| matches!(lock.role, Role::Source | Role::ExchangeSource { .. }));
            locked.extend(sources.map(|(key, lock)| (cell.id, key.clone(), lock.clone())));
        }
        for (shard, key, lock) in locked {
            if let Role::ExchangeSource { ino, kind, parent } = lock.role {
                self.resolve_exchange(shard, &key, &lock, (EntryValue { ino, kind }, parent)).await?;
                continue;
            }
            let is_dir = lock.kind == FileKind::Directory;
            let was_committed = self.was_committed(lock.tx).await? && !self.config.switches.is(Sabotage::ForgetOldName);
            let goes = was_committed || (is_dir && !self.is_alive(lock.ino).await?);
            if goes {
                self.remove_entry(shard, &key, lock.ino, Some(lock.tx));
            } else if is_dir {
                // The move may have got as far as telling the directory.
                self.ask_home(lock.ino, Request::SetParent { ino: lock.ino, parent: key.parent }).await?;
            }
            if let Some(cell) = self.shards.get(shard) {
                self.unlock_entry(&mut cell.names.lock(), &key, lock.tx, &Stamp::default());
            }
        }
        Ok(())
    }

    /// Resolves the first name of an exchange with the inode that has, or had, its second name in `parent`.
    async fn resolve_exchange(
        self: &Arc<Self>,
        shard: ShardId,
        key: &EntryKey,
        lock: &Lock,
        (back, parent): (EntryValue, Ino),
    ) -> Result<(), Failure> {
        let is_done = self.was_committed(lock.tx).await?;
        let (parent_of_first, parent_of_back) = if is_done { (parent, key.parent) } else { (key.parent, parent) };
        for (ino, kind, parent) in [(lock.ino, lock.kind, parent_of_first), (back.ino, back.kind, parent_of_back)] {
            if kind == FileKind::Directory {
                self.ask_home(ino, Request::SetParent { ino, parent }).await?;
            }
        }
        let Some(cell) = self.shards.get(shard) else { return Ok(()) };
        let (mut names, stamp) = (cell.names.lock(), self.own_stamp(&Stamp::default()));
        if is_done {
            let op = Op::Exchange { key: key.clone(), ino: back.ino, kind: back.kind, under: lock.tx };
            names.shard.apply(&op, &stamp).reply?;
            let [was_dir, is_dir] = [lock.kind, back.kind].map(|kind| kind == FileKind::Directory);
            self.directories.replaced(key.parent, was_dir, is_dir, stamp.time);
        }
        self.unlock_entry(&mut names, key, lock.tx, &stamp);
        Ok(())
    }

    async fn was_committed(self: &Arc<Self>, tx: TxId) -> Result<bool, Failure> {
        let servers: Vec<ServerIndex> = self.map().members().collect();
        let asked = servers.into_iter().map(|server| self.ask_until_ready(server, Request::TxDone { tx }));
        let answers = try_join_all(asked).await?;
        Ok(answers.into_iter().any(|answer| answer == Reply::TxIs { committed: Some(true) }))
    }

    async fn is_alive(self: &Arc<Self>, ino: Ino) -> Result<bool, Failure> {
        match self.ask_home(ino, Request::GetAttr { ino, exact: false }).await {
            Ok(_) => Ok(true),
            Err(failure) if matches!(failure.code, Code::Stale | Code::NotFound) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Removes a name, and leaves its inode alone.
    pub(super) fn remove_entry(&self, shard: ShardId, key: &EntryKey, ino: Ino, under: Option<TxId>) {
        let Some(cell) = self.shards.get(shard) else { return };
        let mut names = cell.names.lock();
        let Some(entry) = names.shard.entry(key).filter(|entry| entry.ino == ino) else { return };
        let stamp = self.own_stamp(&Stamp::default());
        let op = Op::Remove { key: key.clone(), only: Some(ino), moved: true, under };
        if names.shard.apply(&op, &stamp).reply.is_ok() && self.directories.is_known(key.parent) {
            let (more, is_dir) = (names.shard.has_entries(key.parent), entry.kind == FileKind::Directory);
            self.directories.removed(key.parent, cell.id, is_dir, more, stamp.time);
        }
    }

    /// A name of a directory that a rename was about to replace: if that was removed already, the
    /// name goes, too.
    pub(super) async fn drop_if_dead(self: &Arc<Self>, shard: ShardId, key: &EntryKey) -> Result<(), Failure> {
        let entry = self.shards.get(shard).and_then(|cell| cell.names.lock().shard.entry(key));
        if let Some(entry) = entry
            && !self.is_alive(entry.ino).await?
        {
            self.remove_entry(shard, key, entry.ino, None);
        }
        Ok(())
    }

    /// Sets the link counts of files here to the number of their names.
    async fn count_links(self: &Arc<Self>) -> Result<(), Failure> {
        let left_out = self.left_out();
        let servers: Vec<ServerIndex> = self.map().members().filter(|server| !left_out.contains(server)).collect();
        let counted = try_join_all(servers.into_iter().map(|server| self.links_from(server))).await?;
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        for ino in counted.into_iter().flatten() {
            *names.entry(ino).or_default() += 1;
        }
        for cell in self.shards.iter() {
            let mut orphans = Vec::new();
            {
                let mut here = cell.names.lock();
                let files: Vec<(Ino, u32, FileKind)> =
                    here.shard.all_inodes().map(|inode| (inode.attr.ino, inode.attr.links, inode.attr.kind)).collect();
                for (ino, links, kind) in files {
                    let count = names.get(&ino).copied().unwrap_or(0);
                    if kind == FileKind::Directory {
                        let is_empty = here.holders.get(&ino).is_none_or(|holders| holders.servers.is_empty());
                        if count == 0 && is_empty && ino != Ino::ROOT {
                            // A directory without name and entries: it was on its way out.
                            let _ = here.shard.apply(&Op::Delete { ino }, &self.own_stamp(&Stamp::default())).reply;
                        }
                        continue;
                    }
                    if count != links && !self.config.switches.is(Sabotage::SkipLinkCount) {
                        // The inode is here: so its count can be set.
                        let set = Op::SetLinks { ino, links: count };
                        let _ = here.shard.apply(&set, &self.own_stamp(&Stamp::default())).reply;
                    }
                    if count == 0 {
                        orphans.push(ino);
                    }
                }
            }
            orphans.into_iter().for_each(|ino| self.delete_if_orphan(ino));
        }
        Ok(())
    }

    async fn links_from(self: &Arc<Self>, server: ServerIndex) -> Result<Vec<Ino>, Failure> {
        let mut all = Vec::new();
        let mut from = 0;
        loop {
            let request = Request::LinksTo { home: self.slot(), from };
            match self.ask_until_ready(server, request).await? {
                Reply::LinksAre { inos, next } => {
                    all.extend(inos);
                    match next {
                        Some(next) => from = next,
                        None => return Ok(all),
                    }
                }
                _ => return Err(Failure::new(Code::Malformed, "LinksTo was answered with something else")),
            }
        }
    }

    /// Truncations that not every server had heard of.
    async fn finish_truncations(self: &Arc<Self>) -> Result<(), Failure> {
        for cell in self.shards.iter() {
            let open: Vec<(aze_proto::Attr, u64)> = {
                let names = cell.names.lock();
                let truncation = names
                    .shard
                    .all_inodes()
                    .filter_map(|inode| Some((inode.attr.clone(), inode.rare.get().truncations.last()?.length)));
                truncation.collect()
            };
            for (attr, length) in open {
                self.truncate_data(&attr, length).await?;
            }
        }
        Ok(())
    }

    /// Data here without a file, or beyond its end.
    async fn drop_strays(self: &Arc<Self>) -> Result<(), Failure> {
        let mut by_home: BTreeMap<ServerIndex, BTreeSet<Ino>> = BTreeMap::new();
        let map = self.map();
        for cell in self.shards.iter() {
            for (ino, _) in cell.data.lock().stored() {
                if let Some(home) = map.home_of(ino) {
                    by_home.entry(home).or_default().insert(ino);
                }
            }
        }
        by_home.retain(|home, _| !map.is_gone(*home));
        for (home, inos) in by_home {
            let inos: Vec<Ino> = inos.into_iter().collect();
            for some in inos.chunks(ROWS_MAX) {
                let request = Request::FilesNow { inos: some.to_vec() };
                let Reply::FilesAre { files } = self.ask_until_ready(home, request).await? else {
                    return Err(Failure::new(Code::Malformed, "FilesNow was answered with something else"));
                };
                let files: BTreeMap<Ino, FileNow> = files.into_iter().map(|file| (file.ino, file)).collect();
                some.iter().for_each(|ino| self.drop_stray(*ino, files.get(ino)));
            }
        }
        Ok(())
    }

    fn drop_stray(&self, ino: Ino, file: Option<&FileNow>) {
        for cell in self.shards.iter() {
            let mut data = cell.data.lock();
            match (file, data.generation_of(ino)) {
                (_, None) => {}
                (None, Some(_)) => data.delete(ino),
                // Of another generation it will be truncated when it is next asked for.
                (Some(file), Some(have)) if have == file.generation => {
                    data.trim(ino, file.size, file.chunk_bits);
                }
                (Some(_), Some(_)) => {}
            }
        }
    }

    pub(crate) fn links_to(&self, home: ServerIndex, from: u32) -> Attempt<Reply> {
        let is_resolved =
            self.persistence.as_ref().is_some_and(|persistence| persistence.is_resolved.load(Ordering::SeqCst));
        if !is_resolved {
            return Err(Stop::Fail(Failure::new(Code::Busy, format!("{} is still starting", self.who()))));
        }
        let map = self.map();
        let mut inos = Vec::new();
        for cell in self.shards.iter().filter(|cell| cell.id.0 >= from) {
            if inos.len() >= ROWS_MAX {
                return Ok(Reply::LinksAre { inos, next: Some(cell.id.0) });
            }
            let names = cell.names.lock();
            let entries = names.shard.all_entries().map(|(_, entry)| entry.ino);
            inos.extend(entries.filter(|ino| map.home_of(*ino) == Some(home)));
        }
        Ok(Reply::LinksAre { inos, next: None })
    }

    /// Which of these files exist. A server that does not serve the homes of all of them refuses: the asker takes a file that is left out of the
    /// answer for deleted.
    pub(crate) fn files_now(&self, inos: &[Ino]) -> Result<Reply, Failure> {
        if inos.iter().any(|ino| self.shards.home(*ino).is_none()) {
            return Err(Failure::new(Code::Busy, format!("{} does not have all of these files now", self.who())));
        }
        let now = |ino: &Ino| {
            let names = self.shards.home(*ino)?.names.lock();
            let attr = &names.shard.inode(*ino)?.attr;
            Some(FileNow { ino: *ino, size: attr.size, generation: attr.generation, chunk_bits: attr.chunk_bits })
        };
        Ok(Reply::FilesAre { files: inos.iter().filter_map(now).collect() })
    }
}
