//! Unlink and rmdir, and what follows: orphans that live until their last close, directories that
//! every holder must find empty before they die.

use crate::sabotage::Sabotage;
use crate::shards::{Names, ShardCell};
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, Work, then};
use aze_meta::access::{self, Want};
use aze_meta::{EntryKey, EntryValue, Lock, Op, Role, Stamp};
use aze_proto::{Code, Failure, FileKind, Ino, MapEpoch, Name, Reply, Request, ServerIndex, ShardId, Stub, TxId};
use futures_channel::oneshot;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a directory's home is asked again whether it has closed it.
pub(crate) const CLOSE_PAUSE: Duration = Duration::from_secs(1);

/// The removal of a directory, in progress at its entry's shard.
struct Removal {
    shard: ShardId,
    key: EntryKey,
    dir: Ino,
    tx: TxId,
    stamp: Stamp,
}

impl Server {
    /// The stamp of a step that is never repeated: the server's own.
    pub(crate) fn own_stamp(&self, like: &Stamp) -> Stamp {
        Stamp { session: like.session, ..Stamp::at(self.clock.next(&self.io, like.time)) }
    }

    /// Whether the asker may remove the entry, given that it may write the directory: in a sticky
    /// directory only the owner of the file or of the directory may.
    pub(crate) fn may_remove(&self, work: &Work, names: &Names, stub: &Stub, entry: &EntryValue) -> Attempt<()> {
        const STICKY: u32 = 0o1000;
        if stub.mode & STICKY == 0 || work.identity.is_root() || work.identity.uid == stub.uid {
            return Ok(());
        }
        let local = names.shard.inode(entry.ino).map(|inode| inode.attr.uid);
        let owner = local.or_else(|| work.owners.get(&entry.ino).copied()).ok_or(Stop::Wait(Wait::Owner(entry.ino)))?;
        if access::sticky_forbids(&work.identity, stub, owner) {
            return Err(Failure::new(Code::NotPermitted, "a sticky directory: only the owner may remove this").into());
        }
        Ok(())
    }

    /// Takes a name away; with `only` if it leads to that inode.
    pub(crate) fn unlink(
        self: &Arc<Self>,
        work: &mut Work,
        parent: Ino,
        name: &Name,
        only: Option<Ino>,
    ) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.resolved(&key)?;
        let stub = self.directories.enter(parent, &work.identity, Want::CHANGE_NAMES, self.whole_since())?;
        let entry = names.shard.entry(&key).ok_or(Code::NotFound)?;
        if only.is_some_and(|only| only != entry.ino) {
            return Err(Failure::new(Code::Stale, "the name leads to another file now").into());
        }
        if entry.kind == FileKind::Directory {
            return Err(Code::IsDirectory.into());
        }
        self.may_remove(work, &names, &stub, &entry)?;
        let op = Op::Remove { key, only: Some(entry.ino), moved: false, under: None };
        let applied = names.shard.apply(&op, &work.stamp);
        work.recorded = true;
        applied.reply?;
        let reply = Reply::DoneAt { time: work.stamp.time };
        self.directories.removed(parent, cell.id, false, names.shard.has_entries(parent), work.stamp.time);
        drop(names);
        if let Some(orphan) = applied.effects.orphan {
            self.delete_if_orphan(orphan);
        }
        match applied.effects.drop_link {
            None => Ok(reply.into()),
            Some(lost) => {
                let (server, shard) = (self.clone(), cell.id);
                then(async move {
                    server.lower_links(shard, lost).await;
                    Ok(reply)
                })
            }
        }
    }

    /// Deletes an inode that no name and no open leads to any more, then its data.
    pub(crate) fn delete_if_orphan(self: &Arc<Self>, ino: Ino) {
        let Some(cell) = self.shards.home(ino) else { return };
        let mut data = cell.data.lock();
        let mut names = cell.names.lock();
        if names.opens.has(ino) {
            return;
        }
        let Some(attr) = names.shard.inode(ino).map(|inode| inode.attr.clone()) else { return };
        if attr.links > 0 || attr.kind == FileKind::Directory {
            return;
        }
        let stamp = Stamp::at(self.clock.next(&self.io, attr.ctime));
        // The inode is there and has no names: deleting it cannot fail.
        let _ = names.shard.apply(&Op::Delete { ino }, &stamp).reply;
        names.unnamed.remove(&ino);
        names.opens.forget(ino);
        drop(names);
        data.delete(ino);
        drop(data);
        if attr.spread.is_wide() && !self.config.switches.is(Sabotage::SkipDataDelete) {
            self.persist_to_data(attr, Request::DeleteData { ino }, |_| {});
        }
    }

    pub(crate) fn delete_data_here(&self, ino: Ino) -> Reply {
        for cell in self.shards.iter() {
            cell.data.lock().delete(ino);
        }
        Reply::Done
    }

    pub(crate) fn rmdir(self: &Arc<Self>, work: &Work, parent: Ino, name: &Name) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.resolved(&key)?;
        let stub = self.directories.enter(parent, &work.identity, Want::CHANGE_NAMES, self.whole_since())?;
        let entry = names.shard.entry(&key).ok_or(Code::NotFound)?;
        if entry.kind != FileKind::Directory {
            return Err(Code::NotDirectory.into());
        }
        self.may_remove(work, &names, &stub, &entry)?;
        let tx = TxId(self.io.random_u64());
        self.lock_entry(&mut names, &key, tx, Role::Source, &entry, &work.stamp)?;
        drop(names);
        let removal = Removal { shard: cell.id, key, dir: entry.ino, tx, stamp: work.stamp };
        let server = self.clone();
        then(async move {
            let closed = server.close_at_home(entry.ino).await;
            if let Err(failure) = &closed
                && matches!(failure.code, Code::UnknownOutcome | Code::TimedOut)
            {
                let later = server.clone();
                server.io.spawn(async move { later.rmdir_later(&removal).await });
                return closed;
            }
            server.finish_rmdir(&removal, closed)
        })
    }

    /// Has a directory closed by its home. One that is dead already was closed by an earlier request
    /// whose answer was lost. The outcome is unknown if a life of the home that has ended may have closed it, and the
    /// next one does not say so.
    pub(crate) async fn close_at_home(self: &Arc<Self>, dir: Ino) -> Result<Reply, Failure> {
        let (request, mut was_refused) = (Request::CloseDir { dir }, false);
        let deadline = self.config.deadline;
        match self.ask_shard_noting(self.home(dir), request, &[], deadline, &mut was_refused).await {
            Err(failure) if failure.code == Code::Stale => Ok(Reply::Done),
            Err(failure) if was_refused && (failure.is_silence() || failure.code == Code::Busy) => {
                Err(Failure { code: Code::UnknownOutcome, ..failure })
            }
            answer => answer,
        }
    }

    /// The home may have closed the directory without that its answer arrived. The entry stays
    /// locked until that is known, or the home has lost the directory anyway.
    async fn rmdir_later(self: &Arc<Self>, removal: &Removal) {
        while !self.is_stopping() {
            self.io.sleep(CLOSE_PAUSE).await;
            match self.close_at_home(removal.dir).await {
                Err(failure)
                    if matches!(
                        failure.code,
                        Code::UnknownOutcome | Code::TimedOut | Code::Unreachable | Code::Busy
                    ) => {}
                outcome => {
                    // No request waits for the outcome any more.
                    let _ = self.finish_rmdir(removal, outcome);
                    return;
                }
            }
        }
    }

    fn finish_rmdir(&self, removal: &Removal, closed: Result<Reply, Failure>) -> Result<Reply, Failure> {
        let Removal { shard, key, dir, tx, stamp } = removal;
        // A server that ends does not know how it was answered: its next life finds the name locked, and asks.
        if closed.is_err() && self.is_stopping() {
            return closed;
        }
        let cell = self.shards.get(*shard).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        let removed = closed.and_then(|_| self.remove_closed(cell, &mut names, key, *dir, *tx, stamp));
        self.unlock_entry(&mut names, key, *tx, stamp);
        removed
    }

    /// Removes the entry of a directory that is dead.
    fn remove_closed(
        &self,
        cell: &ShardCell,
        names: &mut Names,
        key: &EntryKey,
        ino: Ino,
        tx: TxId,
        stamp: &Stamp,
    ) -> Result<Reply, Failure> {
        let stamp = self.own_stamp(stamp);
        let op = Op::Remove { key: key.clone(), only: Some(ino), moved: false, under: Some(tx) };
        names.shard.apply(&op, &stamp).reply?;
        self.directories.removed(key.parent, cell.id, true, names.shard.has_entries(key.parent), stamp.time);
        Ok(Reply::Done)
    }

    pub(crate) fn lock_entry(
        &self,
        names: &mut Names,
        key: &EntryKey,
        tx: TxId,
        role: Role,
        entry: &EntryValue,
        stamp: &Stamp,
    ) -> Result<(), Failure> {
        let incarnation = self.incarnation();
        let lock = Lock { tx, role, coordinator: self.slot(), incarnation, ino: entry.ino, kind: entry.kind };
        names.shard.apply(&Op::Lock { key: key.clone(), lock }, &self.own_stamp(stamp)).reply.map(|_| ())
    }

    pub(crate) fn unlock_entry(&self, names: &mut Names, key: &EntryKey, tx: TxId, stamp: &Stamp) {
        // An entry that is not locked by this transaction stays as it is.
        let _ = names.shard.apply(&Op::Unlock { key: key.clone(), tx }, &self.own_stamp(stamp)).reply;
        names.wake_entry(key);
    }

    /// At a directory's home: closes it at every holder; if it is empty everywhere, it dies.
    pub(crate) fn close_dir(self: &Arc<Self>, dir: Ino) -> Attempt<Output> {
        if dir == Ino::ROOT {
            return Err(Failure::new(Code::Busy, "the root directory cannot be removed").into());
        }
        let cell = self.cell(self.home(dir))?;
        let mut names = cell.names.lock();
        if names.shard.inode(dir).is_none() {
            return Err(self.gone(dir).into());
        }
        self.imported(&names, dir)?;
        let holders = names.holders.entry(dir).or_default();
        if holders.closing {
            let (sender, decided) = oneshot::channel();
            holders.waiters.push(sender);
            let server = self.clone();
            return then(async move {
                // Whichever way it was decided, and also if the sender is gone: look again.
                let _ = decided.await;
                server.ask_shard(server.home(dir), Request::CloseDir { dir }).await
            });
        }
        holders.closing = true;
        let servers: Vec<ServerIndex> = if self.config.switches.is(Sabotage::SkipDirectoryClose) {
            Vec::new()
        } else {
            holders.servers.keys().copied().collect()
        };
        drop(names);
        let server = self.clone();
        then(async move {
            // Rounds of one directory grow, also if its home's clock jumps: times are never given twice.
            let round = server.clock.next(&server.io, aze_proto::Time(0)).0;
            let answers = server.ask_each(&servers, &Request::StubClose { dir, round }).await;
            // A server that has restarted empty answers under the map that says so.
            let result = server.keep_up_with_map().await.and_then(|()| server.decide_closing(dir, answers));
            let after = if result.is_ok() { Request::StubDrop { dir } } else { Request::StubReopen { dir, round } };
            // The request does not wait for a silent holder: that is told in the background.
            join_all(servers.iter().map(|holder| server.tell(*holder, after.clone()))).await;
            server.closing_decided(dir);
            result
        })
    }

    /// Fails if a holder has restarted empty since the directory was made: it knows of no entries,
    /// which does not mean that there are none.
    fn check_whole(&self, dir: Ino, born: MapEpoch, holder: ServerIndex) -> Result<(), Failure> {
        let lost = self.map().server(holder).is_some_and(|info| born < info.since);
        if !lost || self.config.switches.is(Sabotage::SkipBornCheck) {
            return Ok(());
        }
        let detail = format!("directory {dir}: its entries on server {holder} were lost when that restarted empty");
        Err(Failure::new(Code::Lost, detail))
    }

    /// Tells a server once and, if it does not answer, goes on in the background.
    async fn tell(self: &Arc<Self>, server: ServerIndex, request: Request) {
        if self.ask(server, aze_proto::ShardId(0), request.clone()).await.is_err() {
            self.persist(server, aze_proto::ShardId(0), request);
        }
    }

    fn decide_closing(&self, dir: Ino, answers: Vec<(ServerIndex, Result<Reply, Failure>)>) -> Result<Reply, Failure> {
        let cell = self.shards.home(dir).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        let born = names.shard.inode(dir).ok_or_else(|| self.gone(dir))?.attr.born;
        for (holder, answer) in answers {
            match answer {
                Ok(Reply::StubClosed { empty: true }) => self.check_whole(dir, born, holder)?,
                Ok(_) => return Err(Code::NotEmpty.into()),
                // Who has its entries now was noted as a holder before.
                Err(_) if self.map().has_left(holder) => {}
                Err(failure) => {
                    return Err(failure.during(format!("whether directory {dir} is empty on server {holder}")));
                }
            }
        }
        let stamp = self.own_stamp(&Stamp::default());
        names.shard.apply(&Op::Delete { ino: dir }, &stamp).reply
    }

    fn closing_decided(&self, dir: Ino) {
        let Some(cell) = self.shards.home(dir) else { return };
        let mut names = cell.names.lock();
        let gone = names.shard.inode(dir).is_none();
        let Some(holders) = names.holders.get_mut(&dir) else { return };
        holders.closing = false;
        let waiters = std::mem::take(&mut holders.waiters);
        if gone {
            names.holders.remove(&dir);
        }
        for waiter in waiters {
            // A waiter that has given up is no concern.
            let _ = waiter.send(());
        }
    }

    /// Why an inode is not here: deleted, or lost with an earlier life of this server.
    pub(crate) fn gone(&self, ino: Ino) -> Failure {
        let map = self.map.read();
        if map.slots.keeps(self.home(ino)).is_some_and(|slot| ino.life() < slot.life) {
            Failure::new(Code::Lost, format!("inode {ino} was on {}, which has restarted empty", self.who()))
        } else {
            Failure::new(Code::Stale, format!("inode {ino}"))
        }
    }

    /// For messages: an entry by its place.
    pub(crate) fn entry_text(parent: Ino, name: &Name) -> String {
        format!("'{name}' in directory {parent}")
    }
}
