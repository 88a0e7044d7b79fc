//! Hard links: the count at the inode's home goes up before the entry is inserted, so that a crash
//! in between leaks a count and never leaves a name without a file.

use crate::dispatch::{Output, Work, then};
use crate::state::Server;
use crate::wait::Attempt;
use aze_meta::access::Want;
use aze_meta::{EntryKey, Op, Stamp};
use aze_proto::{Attr, Code, Failure, FileKind, Ino, Reply, Request, ShardId};
use std::sync::Arc;

impl Server {
    pub(crate) fn link(self: &Arc<Self>, work: &mut Work) -> Attempt<Output> {
        let Request::Link { parent, name, ino } = work.request.clone() else { unreachable!("dispatched by its kind") };
        let (cell, key) = self.entry_place(work, parent, &name)?;
        let names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.directories.enter(parent, &work.identity, Want::CHANGE_NAMES, self.whole_since())?;
        if names.shard.entry(&key).is_some() {
            return Err(Code::Exists.into());
        }
        drop(names);
        let (server, identity, stamp, shard) = (self.clone(), work.identity.clone(), work.stamp, cell.id);
        then(async move {
            let Reply::Attributes { attr } = server.ask_shard(ino.home(), Request::AddLink { ino }).await? else {
                return Err(Failure::new(Code::Malformed, "AddLink was answered with something else"));
            };
            let inserted = server.insert_link(shard, &key, &attr, &identity, &stamp);
            if inserted.is_err() {
                server.lower_links(ino).await;
            }
            inserted.map_err(|failure| failure.during(Server::entry_text(parent, &name)))?;
            Ok(Reply::Attributes { attr })
        })
    }

    /// The second half: what was found free may have been taken, locked or removed meanwhile; then
    /// the link fails as if it had come later.
    fn insert_link(
        &self,
        shard: ShardId,
        key: &EntryKey,
        attr: &Attr,
        identity: &aze_proto::Identity,
        stamp: &Stamp,
    ) -> Result<(), Failure> {
        let cell = self.shards.get(shard).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        if names.shard.lock_of(key).is_some() {
            return Err(Failure::new(Code::Busy, "the new name is being renamed or removed; try again"));
        }
        if names.shard.entry(key).is_some() {
            return Err(Code::Exists.into());
        }
        let parent = key.parent;
        self.directories.enter_to_add(parent, identity, self.whole_since()).map_err(|stop| match stop {
            crate::wait::Stop::Fail(failure) => failure,
            crate::wait::Stop::Wait(_) => Failure::new(Code::Busy, "the directory is changing; try again"),
        })?;
        let stamp = self.own_stamp(stamp);
        let op =
            Op::Insert { key: key.clone(), ino: attr.ino, kind: attr.kind, replace: false, under: None, attr: None };
        match names.shard.apply(&op, &stamp).reply {
            Ok(_) => {
                self.directories.added(parent, cell.id, false, stamp.time);
                Ok(())
            }
            Err(failure) => {
                self.directories.not_added(parent);
                Err(failure)
            }
        }
    }

    pub(crate) fn add_link(self: &Arc<Self>, work: &mut Work) -> Attempt<Output> {
        let Request::AddLink { ino } = work.request else { unreachable!("dispatched by its kind") };
        let mut names = self.cell(ino.home())?.names.lock();
        match names.shard.inode(ino) {
            None => return Err(self.gone(ino).into()),
            Some(inode) if inode.attr.kind == FileKind::Directory => {
                return Err(Failure::new(Code::NotPermitted, "directories cannot have hard links").into());
            }
            Some(_) => {}
        }
        work.recorded = true;
        Ok(names.shard.apply(&Op::AddLink { ino }, &work.stamp).reply?.into())
    }

    pub(crate) fn drop_link(self: &Arc<Self>, work: &mut Work) -> Attempt<Output> {
        let Request::DropLink { ino } = work.request else { unreachable!("dispatched by its kind") };
        let mut names = self.cell(ino.home())?.names.lock();
        work.recorded = true;
        let applied = names.shard.apply(&Op::DropLink { ino }, &work.stamp);
        drop(names);
        if let Some(orphan) = applied.effects.orphan {
            self.delete_if_orphan(orphan);
        }
        Ok(applied.reply?.into())
    }

    pub(crate) fn set_parent(self: &Arc<Self>, work: &mut Work, ino: Ino, parent: Ino) -> Attempt<Output> {
        let mut names = self.cell(ino.home())?.names.lock();
        work.recorded = true;
        Ok(names.shard.apply(&Op::SetParent { ino, parent }, &work.stamp).reply?.into())
    }

    pub(crate) fn parent_of(&self, ino: Ino) -> Attempt<Output> {
        let names = self.cell(ino.home())?.names.lock();
        let parent = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr.parent;
        Ok(Reply::ParentIs { parent }.into())
    }
}
