//! The decision of a rename and what follows at its coordinator, until both names are unlocked.

use super::DECISION_PATIENCE;
use crate::names::state::moves::{Move, Moved};
use crate::sabotage::Sabotage;
use crate::state::Server;
use aze_meta::{EntryValue, Op};
use aze_proto::{Code, Failure, FileKind, Ino, Reply, Request};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a home that is silent is told once more of a directory's new parent.
const HOME_PAUSE: Duration = Duration::from_millis(200);

impl Server {
    /// Decides, and brings it to its end: the new name first, then the old one.
    pub(crate) async fn decide(self: &Arc<Self>, plan: &Arc<Move>, moved: Moved) -> Result<Reply, Failure> {
        if plan.changes_parent() {
            self.tell_parent_first(plan, &moved.entry, plan.to_parent).await?;
            if let Some(back) = &moved.back {
                self.tell_parent_first(plan, back, plan.from.parent).await?;
            }
        }
        self.transactions.decide(plan, moved);
        match self.ask_shard(plan.new_shard(self.config.shards), plan.commit()).await {
            Ok(_) => {
                self.resolve_source(plan, &moved);
                Ok(moved.done())
            }
            // The new name's server has said so in another way, before it was asked to rename or remove it.
            Err(_) if self.transactions.decided(plan.tx).is_none() => Ok(moved.done()),
            Err(failure) => {
                let (server, plan) = (self.clone(), plan.clone());
                self.io.spawn(async move { server.complete_later(&plan, &moved).await });
                Err(Failure::new(
                    Code::UnknownOutcome,
                    failure.during("the new name's server did not confirm the rename").detail,
                ))
            }
        }
    }

    /// Tells a directory's home of the parent that it is about to get, until the home has answered. While it does not answer, the names stay
    /// locked and the token stays taken: the next who moves a directory walks by what homes say.
    ///
    /// # Errors
    /// This server stops: [`Code::Stopping`]. Its next life undoes the rename, and gives the token back.
    async fn tell_parent_first(self: &Arc<Self>, plan: &Move, entry: &EntryValue, parent: Ino) -> Result<(), Failure> {
        if entry.kind != FileKind::Directory {
            return Ok(());
        }
        if self.config.switches.is(Sabotage::TellParentLater) {
            self.tell_parent(entry.ino, parent).await;
            return Ok(());
        }
        let home = self.home(entry.ino);
        loop {
            match self.ask_shard(home, Request::SetParent { ino: entry.ino, parent }).await {
                // A directory that its home does not know is gone.
                Err(failure) if !matches!(failure.code, Code::NotFound | Code::Stale | Code::Lost) => {
                    if self.is_stopping() {
                        return Err(Failure { code: Code::Stopping, ..failure });
                    }
                }
                _ => return Ok(()),
            }
            let map = self.map();
            if self.persistence.is_none() && map.server_of(home).is_some_and(|server| map.is_gone(server)) {
                // The directory went with it.
                return Ok(());
            }
            self.io.sleep(HOME_PAUSE).await;
            self.keep_token(plan).await;
        }
    }

    async fn tell_parent_of(self: &Arc<Self>, entry: &EntryValue, parent: Ino) {
        if entry.kind == FileKind::Directory {
            self.tell_parent(entry.ino, parent).await;
        }
    }

    /// Tells a directory's home where its name is; until it has understood, if it does not answer at
    /// once. To be called while the name is locked, so that no later move is overtaken.
    pub(super) async fn tell_parent(self: &Arc<Self>, dir: Ino, parent: Ino) {
        let moved = Request::SetParent { ino: dir, parent };
        if self.ask_shard(self.home(dir), moved.clone()).await.is_err() {
            self.persist_shard(self.home(dir), moved);
        }
    }

    /// Goes on until the new name's server confirms, or has restarted empty: then the new name went
    /// with it, and the old one stays.
    async fn complete_later(self: &Arc<Self>, plan: &Move, moved: &Moved) {
        let shard = plan.new_shard(self.config.shards);
        let incarnation = || {
            let map = self.map();
            map.server_of(shard).and_then(|server| map.server(server).map(|info| info.incarnation))
        };
        let before = incarnation();
        while !self.is_stopping() {
            self.io.sleep(DECISION_PATIENCE).await;
            if self.transactions.decided(plan.tx).is_none() {
                return;
            }
            if incarnation() != before {
                return self.keep_source(plan, moved).await;
            }
            match self.ask_shard(shard, plan.commit()).await {
                Ok(_) => return self.resolve_source(plan, moved),
                // It has restarted, and this server has not heard of it yet.
                Err(failure) if failure.code == Code::Lost => return self.keep_source(plan, moved).await,
                Err(_) => {}
            }
        }
    }

    /// The end of a rename whose new name is lost: the old one stays.
    async fn keep_source(self: &Arc<Self>, plan: &Move, moved: &Moved) {
        self.transactions.end(plan.tx);
        if plan.changes_parent() {
            self.tell_parent_of(&moved.entry, plan.from.parent).await;
        }
        self.unlock_source(plan);
    }

    /// The end of a rename: the old name goes, or gets the inode that had the new one, and its lock goes.
    pub(crate) fn resolve_source(&self, plan: &Move, moved: &Moved) {
        let Some(cell) = self.shards.get(plan.old_shard(self.config.shards)) else { return };
        let mut names = cell.names.lock();
        if names.shard.lock_of(&plan.from).is_none_or(|lock| lock.tx != plan.tx) {
            return;
        }
        let stamp = self.own_stamp(&plan.stamp);
        let (key, parent, under) = (plan.from.clone(), plan.from.parent, plan.tx);
        let was_dir = moved.entry.kind == FileKind::Directory;
        let op = match moved.back {
            None => Op::Remove { key, only: Some(moved.entry.ino), moved: true, under: Some(under) },
            Some(EntryValue { ino, kind }) => Op::Exchange { key, ino, kind, under },
        };
        if names.shard.apply(&op, &stamp).reply.is_ok() {
            let directories = &self.directories;
            match moved.back {
                None => directories.removed(parent, cell.id, was_dir, names.shard.has_entries(parent), stamp.time),
                Some(back) => {
                    directories.replaced(parent, was_dir, back.kind == FileKind::Directory, stamp.time);
                }
            }
        }
        self.unlock_entry(&mut names, &plan.from, plan.tx, &stamp);
        self.transactions.end(plan.tx);
    }

    /// Lets go of both names. The other side is told until it has understood.
    pub(crate) async fn give_up(self: &Arc<Self>, plan: &Move) {
        let shard = plan.new_shard(self.config.shards);
        let abort = Request::Abort { tx: plan.tx, to_parent: plan.to_parent, to_name: plan.to_name.clone() };
        if self.ask_shard(shard, abort.clone()).await.is_err() {
            self.persist_shard(shard, abort);
        }
        self.unlock_source(plan);
    }

    fn unlock_source(&self, plan: &Move) {
        if let Some(cell) = self.shards.get(plan.old_shard(self.config.shards)) {
            self.unlock_entry(&mut cell.names.lock(), &plan.from, plan.tx, &plan.stamp);
        }
    }
}
