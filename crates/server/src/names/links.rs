//! Hard links, and the counts of names that live apart from their inodes.
//!
//! The count at the home goes up before the entry is inserted, so that there is never a name without
//! a file. Each step is repeated until it is answered, and each side remembers what the other
//! may ask, so that in the end the count is exact: see `aze_meta::links`.

use crate::names::rename::DECISION_PATIENCE;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::{Attempt, Stop};
use crate::work::{Output, Work, then};
use aze_meta::access::Want;
use aze_meta::{EntryKey, LostLink, Op};
use aze_proto::error::Class;
use aze_proto::{Attr, Code, Failure, FileKind, Ino, Name, Reply, Request, ShardId, TxId};
use std::sync::Arc;

/// A name being made for an inode, at the shard of the name.
struct NewLink {
    shard: ShardId,
    key: EntryKey,
    ino: Ino,
    tx: TxId,
    /// The request, as far as waiting needs it.
    work: Work,
}

impl Server {
    pub(crate) fn link(self: &Arc<Self>, work: &Work, parent: Ino, name: &Name, ino: Ino) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.directories.enter(parent, &work.identity, Want::CHANGE_NAMES, self.whole_since())?;
        if names.shard.entry(&key).is_some() {
            return Err(Code::Exists.into());
        }
        self.check_room()?;
        drop(names);
        let tx = TxId(self.io.random_u64());
        let link = NewLink { shard: cell.id, key, ino, tx, work: work.to_wait(self) };
        let server = self.clone();
        then(async move { server.link_announced(link).await })
    }

    async fn link_announced(self: &Arc<Self>, mut link: NewLink) -> Result<Reply, Failure> {
        let NewLink { shard, ino, tx, .. } = link;
        self.transactions.begin(tx);
        let attr = match self.ask_shard(self.home(ino), Request::LinkBegin { ino, tx, shard }).await {
            Ok(Reply::Attributes { attr }) => attr,
            Ok(_) => {
                self.end_link(&link, false);
                return Err(Failure::new(Code::Malformed, "LinkBegin was answered with something else"));
            }
            Err(failure) if failure.code.class() == Class::Caller => {
                self.transactions.end(tx);
                return Err(failure);
            }
            Err(failure) => {
                self.end_link(&link, false);
                return Err(failure);
            }
        };
        let inserted = self.insert_when_free(&mut link, &attr).await;
        self.end_link(&link, inserted.is_ok());
        inserted.map_err(|failure| failure.during(Server::entry_text(link.key.parent, &link.key.name)))?;
        Ok(Reply::Attributes { attr })
    }

    /// The second half: another request may have taken the free name meanwhile; it waits for one that renames
    /// or removes the name.
    async fn insert_when_free(self: &Arc<Self>, link: &mut NewLink, attr: &Attr) -> Result<(), Failure> {
        loop {
            match self.insert_link(link, attr) {
                Ok(()) => return Ok(()),
                Err(Stop::Fail(failure)) => return Err(failure),
                Err(Stop::Wait(wait)) => self.wait_for(&mut link.work, wait).await?,
            }
        }
    }

    fn insert_link(&self, link: &NewLink, attr: &Attr) -> Attempt<()> {
        let (cell, key, parent) = (self.cell(link.shard)?, &link.key, link.key.parent);
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, key)?;
        if names.shard.entry(key).is_some() {
            return Err(Code::Exists.into());
        }
        self.directories.enter_to_add(parent, &link.work.identity, self.whole_since())?;
        let stamp = self.own_stamp(&link.work.stamp);
        let op = Op::LinkInsert { key: key.clone(), ino: attr.ino, kind: attr.kind, tx: link.tx };
        match names.shard.apply(&op, &stamp).reply {
            Ok(_) => {
                self.directories.added(parent, cell.id, false, stamp.time);
                Ok(())
            }
            Err(failure) => {
                self.directories.not_added(parent);
                Err(failure.into())
            }
        }
    }

    /// Tells the inode's home whether the name was made, in the background, until it knows.
    fn end_link(self: &Arc<Self>, link: &NewLink, kept: bool) {
        let (server, NewLink { shard, ino, tx, .. }) = (self.clone(), link);
        let (shard, ino, tx) = (*shard, *ino, *tx);
        self.io.spawn(async move {
            // A home that refuses for good, or is empty, has nothing to resolve.
            drop(server.until_answered(server.home(ino), Request::LinkEnd { ino, tx, kept }).await);
            // A server that ends was not answered: its next life must still know what the home will ask.
            if server.is_stopping() {
                return;
            }
            server.link_resolved(shard, tx);
            server.transactions.end(tx);
        });
    }

    fn link_resolved(&self, shard: ShardId, tx: TxId) {
        if let Some(cell) = self.shards.get(shard) {
            // Forgetting an unknown link is no error.
            let _ = cell.names.lock().shard.apply(&Op::LinkResolved { tx }, &self.own_stamp(&Default::default())).reply;
        }
    }

    /// At the inode's home: a name is about to be made elsewhere.
    pub(crate) fn link_begin(self: &Arc<Self>, work: &mut Work, ino: Ino, tx: TxId, shard: ShardId) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        self.unfrozen(&names, ino)?;
        match names.shard.inode(ino) {
            None => return Err(self.gone(ino).into()),
            Some(inode) if inode.attr.kind == FileKind::Directory => {
                return Err(Failure::new(Code::NotPermitted, "directories cannot have hard links").into());
            }
            Some(_) => {}
        }
        let reply = match self.name_unnamed(&mut names, work, ino, tx, shard)? {
            Some(reply) => reply,
            None => {
                work.recorded = true;
                names.shard.apply(&Op::LinkBegin { ino, tx, shard }, &work.stamp).reply?
            }
        };
        drop(names);
        self.watch_link(ino, tx, shard);
        Ok(reply.into())
    }

    pub(crate) fn link_end(self: &Arc<Self>, work: &mut Work, ino: Ino, tx: TxId, kept: bool) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        work.recorded = true;
        let applied = names.shard.apply(&Op::LinkEnd { ino, tx, kept }, &work.stamp);
        if kept {
            names.unnamed.remove(&ino);
        }
        drop(names);
        if let Some(orphan) = applied.effects.orphan {
            self.delete_if_orphan(orphan);
        }
        Ok(applied.reply?.into())
    }

    /// Asks what became of a link whose end is not told: its coordinator may have died.
    pub(crate) fn watch_link(self: &Arc<Self>, ino: Ino, tx: TxId, shard: ShardId) {
        let server = self.clone();
        self.io.spawn(async move {
            loop {
                server.io.sleep(DECISION_PATIENCE).await;
                let pending = server.shards.home(ino).is_some_and(|cell| {
                    let names = cell.names.lock();
                    names.shard.inode(ino).is_some_and(|inode| inode.rare.get().links.iter().any(|link| link.tx == tx))
                });
                if !pending || server.is_stopping() {
                    return;
                }
                if let Ok(Reply::TxIs { committed: Some(kept) }) =
                    server.ask_shard(shard, Request::LinkOutcome { tx }).await
                {
                    // It is this server's own table: that cannot fail for long.
                    let _ = server.ask_shard(server.home(ino), Request::LinkEnd { ino, tx, kept }).await;
                }
            }
        });
    }

    /// At the shard of a new name: one that is neither made nor being made was given up.
    pub(crate) fn link_outcome(&self, shard: ShardId, tx: TxId) -> Attempt<Output> {
        let made = self.cell(shard)?.names.lock().shard.has_made(tx);
        let committed = if made { Some(true) } else { self.transactions.outcome(tx) };
        Ok(Reply::TxIs { committed }.into())
    }

    /// Takes a name that went in `shard` off the count of an inode elsewhere; goes on in the
    /// background if its home is silent.
    pub(crate) async fn lower_links(self: &Arc<Self>, shard: ShardId, lost: LostLink) {
        if self.config.switches.is(Sabotage::SkipLinkDrop) {
            return self.link_resolved(shard, lost.tx);
        }
        let request = Request::LinkDrop { ino: lost.ino, tx: lost.tx };
        match self.ask_shard(self.home(lost.ino), request.clone()).await {
            Err(failure) if failure.is_silence() => {
                let server = self.clone();
                self.io.spawn(async move {
                    let answer = server.until_answered(server.home(lost.ino), request).await;
                    server.link_dropped(shard, lost, answer);
                });
            }
            answer => self.link_dropped(shard, lost, answer),
        }
    }

    /// The home has taken the name off. This side forgets first, and its journal has that before the home is told
    /// (`aze_proto::rules::First::Written`): otherwise, started again in between, it would ask once more when the home does not
    /// remember any more, and a name that is there would be taken off.
    fn link_dropped(self: &Arc<Self>, shard: ShardId, lost: LostLink, answer: Result<Reply, Failure>) {
        // A server that ends was not answered: its next life asks once more.
        if answer.is_err() && self.is_stopping() {
            return;
        }
        self.link_resolved(shard, lost.tx);
        if matches!(answer, Ok(Reply::Attributes { attr }) if attr.links > 0) {
            self.persist_shard(self.home(lost.ino), Request::LinkForget { ino: lost.ino, tx: lost.tx });
        }
    }

    pub(crate) fn link_drop(self: &Arc<Self>, work: &mut Work, ino: Ino, tx: TxId) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        work.recorded = true;
        let applied = names.shard.apply(&Op::LinkDrop { ino, tx }, &work.stamp);
        drop(names);
        if let Some(orphan) = applied.effects.orphan {
            self.delete_if_orphan(orphan);
        }
        Ok(applied.reply?.into())
    }

    pub(crate) fn link_forget(&self, ino: Ino, tx: TxId) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        Ok(names.shard.apply(&Op::LinkForget { ino, tx }, &self.own_stamp(&Default::default())).reply?.into())
    }

    pub(crate) fn set_parent(self: &Arc<Self>, work: &mut Work, ino: Ino, parent: Ino) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        work.recorded = true;
        self.transactions.parent_told(work.session, self.io.mono_ns());
        Ok(names.shard.apply(&Op::SetParent { ino, parent }, &work.stamp).reply?.into())
    }

    pub(crate) fn parent_of(&self, ino: Ino) -> Attempt<Output> {
        if self.transactions.is_move_in_doubt(ino) {
            let detail = format!("directory {ino} was being moved when {} ended, and that is not over", self.who());
            return Err(Failure::new(Code::Busy, detail).into());
        }
        let names = self.cell(self.home(ino))?.names.lock();
        let parent = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr.parent;
        Ok(Reply::ParentIs { parent }.into())
    }
}
