//! How a server that comes back alone ends the work that was under way between it and the others, which go on.
//!
//! Before it serves clients it learns which servers have stubs of its directories, and which sessions are refused. All
//! else is brought to an end while it serves: the names concerned are locked, and requests for them wait. A rename that
//! it coordinated is done where the new name is in place; else the server of the new name gives it up for good. What
//! others coordinate they are asked about.

use super::resolve::{AGAIN_PAUSE, RESOLVE_TIME_MAX, ROWS_MAX};
use super::state::image::{Image, Leftovers};
use crate::names::state::directories::Left;
use crate::names::state::transactions::InDoubt;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_meta::{EntryValue, LinkInDoubt, LostLink, Op, Role, Stamp};
use aze_proto::message::HeldStub;
use aze_proto::{Code, Failure, FileKind, Ino, Reply, Request, ServerIndex, ShardId, TxId};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause before what could not be brought to an end is tried again.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

/// When data without a file are looked for once more: a write that waited for this server may be of a file that was
/// deleted while it was away, which only the earlier life remembered. Longer than a client waits.
const STRAYS_PAUSE: Duration = Duration::from_secs(15);

impl Server {
    /// Before the first request of another server: what of directories is here, and which names are in doubt.
    pub(crate) fn remember_doubts(&self, image: &mut Image, leftovers: &Leftovers) {
        let mut left: BTreeMap<Ino, Left> = BTreeMap::new();
        for (names, _) in image.shards() {
            let shard = names.id();
            for (key, entry) in names.all_entries() {
                let here = left.entry(key.parent).or_default();
                here.entries += 1;
                here.subdirs += u64::from(entry.kind == FileKind::Directory);
                here.shards.insert(shard);
            }
            for (key, lock) in names.locks() {
                match lock.role {
                    Role::Source | Role::ExchangeSource { .. } => {
                        let doubt = InDoubt { shard, key: key.clone(), lock: lock.clone() };
                        self.transactions.left_in_doubt(lock.tx, doubt);
                    }
                    // The place for a new name is counted as long as it is locked for that.
                    Role::Destination if names.entry(key).is_none() => left.entry(key.parent).or_default().entries += 1,
                    Role::Destination | Role::ExchangeDestination => {}
                }
            }
        }
        for (dir, time) in leftovers.changed() {
            left.entry(*dir).or_default().changed = *time;
        }
        self.directories.take_left(left);
    }

    /// Learns what the other servers know, begins to bring unfinished work to an end, and serves clients.
    pub(crate) async fn settle(self: &Arc<Self>) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        if self.map().home_of(Ino::ROOT).is_some_and(|home| self.map().is_gone(home)) {
            self.recall_root_rights().await;
        }
        self.hold_own_directories();
        let others: Vec<ServerIndex> = self.map().members().filter(|other| *other != self.slot()).collect();
        let learnt = join_all(others.iter().map(|other| self.learn_from(*other))).await;
        learnt.into_iter().collect::<Result<(), Failure>>()?;
        self.take_up();
        persistence.is_resolved.store(true, Ordering::SeqCst);
        persistence.is_done.store(true, Ordering::SeqCst);
        persistence.is_open.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// This server holds its own directories if it has entries of them.
    fn hold_own_directories(&self) {
        let map = self.map();
        for dir in self.directories.held(Ino(0), |dir| map.home_of(dir) == Some(self.slot())).into_keys() {
            self.note_holder(dir, self.slot());
        }
    }

    /// Notes at a directory's home, which is here, that a server has its stub; `false` if the directory is gone. Stubs
    /// of this life are newer than those of earlier ones.
    fn note_holder(&self, dir: Ino, holder: ServerIndex) -> bool {
        let Some(cell) = self.shards.home(dir) else { return false };
        let mut names = cell.names.lock();
        if names.shard.inode(dir).is_none_or(|inode| inode.attr.kind != FileKind::Directory) {
            return false;
        }
        if self.config.switches.is(Sabotage::ForgetHolders) && holder != self.slot() {
            return true;
        }
        let (incarnation, first) = {
            let map = self.map();
            let began = map.server(self.slot()).map_or(0, |info| info.began.0);
            (map.server(holder).map(|info| info.incarnation).unwrap_or_default(), u64::from(began) << 32)
        };
        let holders = names.holders.entry(dir).or_default();
        holders.version = holders.version.max(first);
        holders.servers.insert(holder, incarnation);
        holders.parts.changes(holder);
        true
    }

    /// Learns which stubs of this server's directories another server has, and which sessions it refuses. One that has
    /// ended may have any of them.
    async fn learn_from(self: &Arc<Self>, other: ServerIndex) -> Result<(), Failure> {
        let deadline_ns = self.io.mono_ns() + RESOLVE_TIME_MAX.as_nanos() as u64;
        let mut from = Ino(0);
        loop {
            if self.map().is_gone(other) {
                self.suppose_holder(other);
                return Ok(());
            }
            let known = Request::Known { of: self.slot(), from };
            let (stubs, fenced, next) = match self.ask(other, ShardId(0), known).await {
                Ok(Reply::KnownIs { stubs, fenced, next }) => (stubs, fenced, next),
                Ok(_) => return Err(Failure::new(Code::Malformed, "Known was answered with something else")),
                Err(failure) if failure.is_silence() || failure.code == Code::Busy => {
                    if self.io.mono_ns() >= deadline_ns {
                        return Err(
                            failure.during(format!("what server {other} knows of directories of {}", self.who()))
                        );
                    }
                    self.io.sleep(AGAIN_PAUSE).await;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            fenced.into_iter().for_each(|session| {
                self.sessions.fence(session);
                self.sessions.end(session);
            });
            for stub in stubs {
                self.take_holder(other, stub);
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// A server that has ended comes back with entries of directories, and no other server knows them.
    pub(super) fn suppose_holder(&self, holder: ServerIndex) {
        for cell in self.shards.iter() {
            let inodes = |inode: &aze_meta::Inode| (inode.attr.kind == FileKind::Directory).then_some(inode.attr.ino);
            let dirs: Vec<Ino> = cell.names.lock().shard.all_inodes().filter_map(inodes).collect();
            for dir in dirs {
                self.note_holder(dir, holder);
            }
        }
    }

    /// Notes a holder, and tells it what an earlier life of this server may have left untold.
    fn take_holder(self: &Arc<Self>, holder: ServerIndex, held: HeldStub) {
        let HeldStub { dir, rights, round } = held;
        if !self.note_holder(dir, holder) {
            return self.persist(holder, ShardId(0), Request::StubDrop { dir });
        }
        if round > 0 {
            self.persist(holder, ShardId(0), Request::StubReopen { dir, round });
        }
        let Some(stub) = self.stub_now(dir).filter(|stub| stub.rights() != rights) else { return };
        let server = self.clone();
        self.io.spawn(async move {
            server.ask_in_the_end(holder, Request::StubUpdate { stub }).await;
            if rights > 0 {
                // A client may have looked a name up there by the old rights.
                server.ask_keeper_in_the_end(Request::RaiseEpoch { dir }).await;
            }
        });
    }

    /// At another server: tells one that has come back what this one knows of its part.
    pub(crate) fn known_of(&self, of: ServerIndex, from: Ino) -> Attempt<Output> {
        let map = self.map();
        let mut held = self.directories.held(from, |dir| map.home_of(dir) == Some(of));
        let next = held.keys().nth(ROWS_MAX).copied();
        if let Some(next) = next {
            held.split_off(&next);
        }
        let stubs = held.into_iter().map(|(dir, (rights, round))| HeldStub { dir, rights, round }).collect();
        let fenced = if from == Ino(0) { self.sessions.fenced() } else { Vec::new() };
        Ok(Reply::KnownIs { stubs, fenced, next }.into())
    }

    /// Begins to bring the transactions to an end that are in doubt in the shards here.
    fn take_up(self: &Arc<Self>) {
        let server = self.clone();
        self.io.spawn(async move {
            let all = server.transactions.all_in_doubt();
            join_all(all.iter().map(|tx| server.settle_source(*tx))).await;
            // No move of a directory is under way here: other ones need not wait until the keeper takes the token away.
            server.ask_keeper_in_the_end(Request::DropToken { tx: TxId(0) }).await;
            for tx in all {
                // A keeper that has begun meanwhile may have heard of it.
                server.ask_keeper_in_the_end(Request::DropToken { tx }).await;
            }
        });
        for cell in self.shards.iter() {
            let names = cell.names.lock();
            for (key, lock) in names.shard.locks() {
                if matches!(lock.role, Role::Destination | Role::ExchangeDestination) {
                    self.watch_transaction(cell.id, key.clone(), lock.tx, lock.coordinator, lock.incarnation);
                }
            }
            for (tx, in_doubt) in names.shard.in_doubt() {
                if let LinkInDoubt::Dropped { ino } = in_doubt {
                    let (server, shard) = (self.clone(), cell.id);
                    self.io.spawn(async move { server.lower_links(shard, LostLink { ino, tx }).await });
                }
            }
            let (mut orphans, mut truncated) = (Vec::new(), Vec::new());
            for inode in names.shard.all_inodes() {
                let (attr, rare) = (&inode.attr, inode.rare.get());
                rare.links.iter().for_each(|link| self.watch_link(attr.ino, link.tx, link.shard));
                truncated.extend(rare.truncations.last().map(|last| (attr.clone(), last.length)));
                if attr.links == 0 && attr.kind != FileKind::Directory {
                    orphans.push(attr.ino);
                }
            }
            drop(names);
            orphans.into_iter().for_each(|ino| self.delete_if_orphan(ino));
            for (attr, length) in truncated {
                let server = self.clone();
                // Who does not answer is told in the background.
                self.io.spawn(async move { drop(server.truncate_data(&attr, length).await) });
            }
        }
        let server = self.clone();
        self.io.spawn(async move {
            for pause in [Duration::ZERO, STRAYS_PAUSE] {
                server.io.sleep(pause).await;
                server.map().members().for_each(|other| server.drop_strays_of(other));
            }
        });
    }

    /// Brings a rename, exchange or removal to its end that an earlier life of this server coordinated.
    pub(super) async fn settle_source(self: &Arc<Self>, tx: TxId) {
        while !self.is_stopping() {
            let Some(doubt) = self.transactions.in_doubt(tx) else { return };
            let settled = match self.is_committed_anywhere(tx).await {
                Some(is_committed) => self.settle_as(&doubt, is_committed).await.is_ok(),
                None => false,
            };
            if settled {
                return;
            }
            self.io.sleep(SETTLE_PAUSE).await;
        }
    }

    /// Whether the new name is in place; `None` as long as a server that may have it does not answer.
    async fn is_committed_anywhere(self: &Arc<Self>, tx: TxId) -> Option<bool> {
        let servers: Vec<ServerIndex> = self.map().members().collect();
        let answers = self.ask_each(&servers, &Request::TxDone { tx }).await;
        let said = answers.into_iter().map(|(_, answer)| match answer {
            Ok(Reply::TxIs { committed }) => committed,
            _ => None,
        });
        let said: Vec<Option<bool>> = said.collect();
        let is_sure = said.contains(&Some(true))
            || said.iter().all(Option::is_some)
            || self.config.switches.is(Sabotage::GuessWithout) && said.contains(&Some(false));
        is_sure.then(|| said.contains(&Some(true)))
    }

    /// Removes or keeps the old name, and unlocks it. May be done twice at the same time.
    async fn settle_as(self: &Arc<Self>, doubt: &InDoubt, is_committed: bool) -> Result<(), Failure> {
        let InDoubt { shard, key, lock } = doubt;
        let is_dir = lock.kind == FileKind::Directory;
        let mut gone = is_committed;
        match lock.role {
            Role::ExchangeSource { ino, kind, parent } => {
                let (of_first, of_back) = if is_committed { (parent, key.parent) } else { (key.parent, parent) };
                for (ino, kind, parent) in [(lock.ino, lock.kind, of_first), (ino, kind, of_back)] {
                    if kind == FileKind::Directory {
                        self.set_parent_at_home(ino, parent).await?;
                    }
                }
            }
            _ if is_dir && !is_committed => {
                // It was being removed, and its home has done that.
                gone = !self.lives(lock.ino).await?;
                if !gone {
                    self.set_parent_at_home(lock.ino, key.parent).await?;
                }
            }
            _ => {}
        }
        let Some(cell) = self.shards.get(*shard) else { return Ok(()) };
        let mut names = cell.names.lock();
        if names.shard.lock_of(key).is_some_and(|held| held.tx == lock.tx) {
            let stamp = self.own_stamp(&Stamp::default());
            let op = match lock.role {
                Role::ExchangeSource { ino, kind, .. } => Op::Exchange { key: key.clone(), ino, kind, under: lock.tx },
                _ => Op::Remove { key: key.clone(), only: Some(lock.ino), moved: true, under: Some(lock.tx) },
            };
            if gone && names.shard.apply(&op, &stamp).reply.is_ok() {
                match lock.role {
                    Role::ExchangeSource { kind, .. } => {
                        let becomes_dir = kind == FileKind::Directory;
                        self.directories.replaced(key.parent, is_dir, becomes_dir, stamp.time);
                    }
                    _ => {
                        let more = names.shard.has_entries(key.parent);
                        self.directories.removed(key.parent, cell.id, is_dir, more, stamp.time);
                    }
                }
            }
            self.unlock_entry(&mut names, key, lock.tx, &stamp);
        }
        self.transactions.settled(lock.tx);
        Ok(())
    }

    /// As [`Server::settle_as`], of renames whose new names are known to be in place.
    pub(crate) async fn settle_committed(self: &Arc<Self>, txs: Vec<TxId>) -> Result<(), Failure> {
        for doubt in txs.into_iter().filter_map(|tx| self.transactions.in_doubt(tx)) {
            self.settle_as(&doubt, true).await?;
        }
        Ok(())
    }

    async fn set_parent_at_home(self: &Arc<Self>, ino: Ino, parent: Ino) -> Result<(), Failure> {
        match self.ask_shard(self.home(ino), Request::SetParent { ino, parent }).await {
            Err(failure) if !matches!(failure.code, Code::NotFound | Code::Stale) => Err(failure),
            _ => Ok(()),
        }
    }

    async fn lives(self: &Arc<Self>, ino: Ino) -> Result<bool, Failure> {
        match self.ask_shard(self.home(ino), Request::GetAttr { ino, exact: false }).await {
            Ok(_) => Ok(true),
            Err(failure) if matches!(failure.code, Code::Stale | Code::NotFound) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// At the server of a rename's new name: whether it was committed. If not, it is given up here.
    pub(crate) fn tx_done(self: &Arc<Self>, tx: TxId) -> Attempt<Output> {
        if !self.transactions.is_committed(tx)
            && !self.config.switches.is(Sabotage::CommitAfterAbort)
            && self.transactions.give_up(tx)
        {
            // One that is being committed at this moment has the lock of its shard.
            let given_up = self.shards.iter().find_map(|cell| self.give_up_in(cell, tx));
            if !self.transactions.is_committed(tx)
                && let Some((shard, entry)) = given_up
            {
                let server = self.clone();
                return then(async move {
                    server.drop_dead_directory(shard, entry).await?;
                    Ok(Reply::TxIs { committed: Some(false) })
                });
            }
        }
        let committed = Some(self.transactions.is_committed(tx));
        let moved = self.unresolved.name_of(tx).filter(|_| committed == Some(true));
        let Some(key) = moved else { return Ok(Reply::TxIs { committed }.into()) };
        let server = self.clone();
        then(async move {
            let shard = key.hash.shard(server.config.shards);
            let entry = server.shards.get(shard).and_then(|cell| cell.names.lock().shard.entry(&key));
            if let Some(EntryValue { ino, kind: FileKind::Directory }) = entry {
                // Its coordinator may have died before it could say so.
                server.set_parent_at_home(ino, key.parent).await?;
            }
            Ok(Reply::TxIs { committed })
        })
    }

    /// Unlocks the new name of a transaction in a shard; gives the name.
    fn give_up_in(&self, cell: &crate::shards::ShardCell, tx: TxId) -> Option<(ShardId, aze_meta::EntryKey)> {
        let mut names = cell.names.lock();
        let is_it =
            |lock: &aze_meta::Lock| lock.tx == tx && matches!(lock.role, Role::Destination | Role::ExchangeDestination);
        let key = names.shard.locks().find(|(_, lock)| is_it(lock)).map(|(key, _)| key.clone())?;
        let is_new = names.shard.lock_of(&key).is_some_and(|lock| lock.role == Role::Destination);
        if is_new && names.shard.entry(&key).is_none() {
            self.directories.not_added(key.parent);
        }
        self.unlock_entry(&mut names, &key, tx, &Stamp::default());
        Some((cell.id, key))
    }

    /// A rename was about to replace a directory by this name, and may have had it removed already.
    pub(crate) async fn drop_dead_directory(
        self: &Arc<Self>,
        shard: ShardId,
        key: aze_meta::EntryKey,
    ) -> Result<(), Failure> {
        let entry = self.shards.get(shard).and_then(|cell| cell.names.lock().shard.entry(&key));
        if let Some(entry) = entry.filter(|entry| entry.kind == FileKind::Directory)
            && !self.lives(entry.ino).await?
        {
            self.remove_entry(shard, &key, entry.ino, None);
        }
        Ok(())
    }

    /// Another server has come back: data here of files that it has deleted without telling are dropped. A later end of
    /// it is seen from here, if it is near.
    pub(crate) fn has_come_back(self: &Arc<Self>, other: ServerIndex) {
        self.drop_strays_of(other);
        if self.map().server(other).is_some_and(|info| info.host == self.config.host) {
            let server = self.clone();
            self.io.spawn(async move {
                // One that cannot be asked now is connected to when it first is.
                drop(server.ask_once(other, ShardId(0), &Request::GetMap, server.config.deadline).await);
            });
        }
    }

    /// Drops data here of files that their home does not know any more, in the background.
    fn drop_strays_of(self: &Arc<Self>, home: ServerIndex) {
        let server = self.clone();
        self.io.spawn(async move {
            let map = server.map();
            let mut inos = BTreeSet::new();
            for cell in server.shards.iter() {
                let data = cell.data.lock();
                let stored = data.stored().map(|(ino, _)| ino);
                inos.extend(stored.filter(|ino| map.home_of(*ino) == Some(home)));
            }
            let inos: Vec<Ino> = inos.into_iter().collect();
            let mut moved = BTreeSet::new();
            for some in inos.chunks(ROWS_MAX) {
                let (asked, there): (Vec<Ino>, BTreeSet<Ino>) = loop {
                    // Of files in slots that have moved away from that server the next one is asked.
                    let map = server.map();
                    moved.extend(some.iter().filter_map(|ino| map.home_of(*ino)).filter(|now| *now != home));
                    let inos: Vec<Ino> = some.iter().copied().filter(|ino| map.home_of(*ino) == Some(home)).collect();
                    if inos.is_empty() || map.has_left(home) || server.is_stopping() {
                        break Default::default();
                    }
                    match server.ask(home, ShardId(0), Request::FilesNow { inos: inos.clone() }).await {
                        Ok(Reply::FilesAre { files }) => {
                            break (inos, files.into_iter().map(|file| file.ino).collect());
                        }
                        _ => server.io.sleep(SETTLE_PAUSE).await,
                    }
                };
                for gone in asked.iter().filter(|ino| !there.contains(ino)) {
                    server.delete_data_here(*gone);
                }
            }
            moved.into_iter().for_each(|home| server.drop_strays_of(home));
        });
    }
}
