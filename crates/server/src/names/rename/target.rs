//! The side of the new name: it is locked and validated, and what the coordinator decides is done.

use super::DECISION_PATIENCE;
use crate::state::Server;
use crate::wait::{Attempt, Stop};
use crate::work::{Output, Work, then};
use aze_meta::access::Want;
use aze_meta::{EntryKey, EntryValue, Op, Role, Stamp};
use aze_proto::fields::Prepare;
use aze_proto::message::Victim;
use aze_proto::{
    Code, Failure, FileKind, Incarnation, Ino, Name, NameHash, Reply, Request, ServerIndex, ShardId, TxId,
};
use std::sync::Arc;

impl Server {
    /// At the new name's shard: lock it, unless something forbids the rename.
    pub(crate) fn prepare(self: &Arc<Self>, work: &mut Work, prepare: &Prepare) -> Attempt<Output> {
        let &Prepare { tx, coordinator, incarnation, to_parent, ref to_name, ino, kind, no_replace, .. } = prepare;
        work.identity = prepare.identity.clone();
        let (cell, key) = self.entry_place(work, to_parent, to_name)?;
        let mut names = cell.names.lock();
        if self.transactions.is_finished(tx) {
            return Err(Failure::new(Code::Replayed, "the rename is over").into());
        }
        self.resolved(&key)?;
        let existing = names.shard.entry(&key);
        let victim = existing.map(|entry| Victim { ino: entry.ino, kind: entry.kind });
        match names.shard.lock_of(&key) {
            Some(lock) if lock.tx == tx => return Ok(Reply::Prepared { victim }.into()),
            Some(_) => return Err(Failure::new(Code::Busy, Server::entry_text(to_parent, to_name)).into()),
            None => {}
        }
        if let Some(entry) = &existing {
            let stub = self.directories.enter(to_parent, &work.identity, Want::CHANGE_NAMES, self.whole_since())?;
            if no_replace {
                // Also where both names lead to one file: Linux looks at the name first.
                return Err(Code::Exists.into());
            }
            if entry.ino != ino {
                replaceable(kind, entry.kind)?;
                self.may_remove(work, &names, &stub, entry)?;
            }
        } else {
            self.directories.enter_to_add(to_parent, &work.identity, self.whole_since())?;
        }
        let lock = aze_meta::Lock { tx, role: Role::Destination, coordinator, incarnation, ino, kind };
        let locked = names.shard.apply(&Op::Lock { key: key.clone(), lock }, &self.own_stamp(&work.stamp)).reply;
        if locked.is_err() && existing.is_none() {
            self.directories.not_added(to_parent);
        }
        locked?;
        drop(names);
        self.watch_transaction(cell.id, key, tx, coordinator, incarnation);
        Ok(Reply::Prepared { victim }.into())
    }

    /// At the new name's shard: makes the new name and removes the inode that it replaces.
    pub(crate) fn commit(self: &Arc<Self>, tx: TxId, to_parent: Ino, to_name: &Name, stamp: &Stamp) -> Attempt<Output> {
        let hash = NameHash::of(to_parent, to_name);
        let cell = self.cell(hash.shard(self.config.shards))?;
        let key = EntryKey { parent: to_parent, hash, name: to_name.clone() };
        let mut names = cell.names.lock();
        // Its coordinator has come back, and was told that it is given up.
        let is_given_up = self.transactions.finished(tx) == Some(false);
        let held = names.shard.lock_of(&key).filter(|lock| lock.tx == tx && !is_given_up);
        let Some(lock) = held.cloned() else {
            return match self.transactions.finished(tx) {
                Some(true) => Ok(Reply::Done.into()),
                _ => Err(Failure::new(Code::Lost, format!("rename {tx}: {} does not know it", self.who())).into()),
            };
        };
        let victim = names.shard.entry(&key);
        let stamp = self.own_stamp(stamp);
        let EntryValue { ino, kind } = EntryValue { ino: lock.ino, kind: lock.kind };
        let op = match lock.role {
            Role::ExchangeDestination => Op::Exchange { key: key.clone(), ino, kind, under: tx },
            _ => Op::Insert { key: key.clone(), ino, kind, replace: true, under: Some(tx), attr: None },
        };
        let applied = names.shard.apply(&op, &stamp);
        applied.reply?;
        self.transactions.finish(tx, true);
        self.note_unresolved(&key, tx, lock.coordinator);
        let is_dir = lock.kind == FileKind::Directory;
        match victim {
            None => self.directories.added(to_parent, cell.id, is_dir, stamp.time),
            Some(victim) => {
                self.directories.replaced(to_parent, victim.kind == FileKind::Directory, is_dir, stamp.time)
            }
        }
        self.unlock_entry(&mut names, &key, tx, &stamp);
        drop(names);
        if let Some(orphan) = applied.effects.orphan {
            self.delete_if_orphan(orphan);
        }
        let Some(replaced) = applied.effects.drop_link.filter(|_| !is_dir) else { return Ok(Reply::Done.into()) };
        let (server, shard) = (self.clone(), cell.id);
        then(async move {
            server.lower_links(shard, replaced).await;
            Ok(Reply::Done)
        })
    }

    /// At the new name's shard: nothing happens after all.
    pub(crate) fn abort(self: &Arc<Self>, tx: TxId, to_parent: Ino, to_name: &Name) -> Attempt<Output> {
        let hash = NameHash::of(to_parent, to_name);
        let cell = self.cell(hash.shard(self.config.shards))?;
        let key = EntryKey { parent: to_parent, hash, name: to_name.clone() };
        let mut names = cell.names.lock();
        self.transactions.finish(tx, false);
        if names.shard.lock_of(&key).is_some_and(|lock| lock.tx == tx) {
            if names.shard.entry(&key).is_none() {
                self.directories.not_added(to_parent);
            }
            self.unlock_entry(&mut names, &key, tx, &Stamp::default());
        }
        if names.shard.entry(&key).is_none_or(|entry| entry.kind != FileKind::Directory) {
            return Ok(Reply::Done.into());
        }
        drop(names);
        let (server, shard) = (self.clone(), cell.id);
        then(async move {
            server.drop_dead_directory(shard, key).await?;
            Ok(Reply::Done)
        })
    }

    fn directory_at(&self, shard: ShardId, key: &EntryKey) -> Option<Ino> {
        let entry = self.shards.get(shard).and_then(|cell| cell.names.lock().shard.entry(key));
        entry.filter(|entry| entry.kind == FileKind::Directory).map(|entry| entry.ino)
    }

    /// Asks for the decision when it does not come: its coordinator may have lost the answer, or
    /// have restarted and know nothing, or be gone.
    pub(crate) fn watch_transaction(
        self: &Arc<Self>,
        shard: ShardId,
        key: EntryKey,
        tx: TxId,
        coordinator: ServerIndex,
        incarnation: Incarnation,
    ) {
        let server = self.clone();
        self.io.spawn(async move {
            loop {
                server.io.sleep(DECISION_PATIENCE).await;
                let lock = server.shards.get(shard).and_then(|cell| {
                    let names = cell.names.lock();
                    names.shard.lock_of(&key).filter(|lock| lock.tx == tx).cloned()
                });
                let Some(lock) = lock.filter(|_| !server.is_stopping()) else { return };
                let moved = (lock.kind == FileKind::Directory).then_some(lock.ino);
                let restarted = server.map().server(coordinator).is_some_and(|info| info.incarnation != incarnation);
                let outcome = match server.ask(coordinator, ShardId(0), Request::TxOutcome { tx }).await {
                    // The first name went with its server: no client has seen that it got this inode.
                    _ if restarted && lock.role == Role::ExchangeDestination => Some(false),
                    // The old name went with its server: the new one is the only one left. But a
                    // directory in the way may be full, which only the coordinator could have said.
                    _ if restarted => Some(server.directory_at(shard, &key).is_none()),
                    Ok(Reply::TxIs { committed }) => committed,
                    // Transactions that it had committed were over before it left.
                    _ if server.map().has_left(coordinator) => Some(false),
                    _ => None,
                };
                if let Some(dir) = moved.filter(|_| restarted && outcome == Some(true)) {
                    // Its coordinator may have died before it could say so.
                    server.tell_parent(dir, key.parent).await;
                }
                if let Some(dir) = server.directory_at(shard, &key).filter(|_| restarted && outcome == Some(false)) {
                    // Or after it had said so of what stays here.
                    server.tell_parent(dir, key.parent).await;
                }
                let resolved = match outcome {
                    Some(true) => server.commit(tx, key.parent, &key.name, &Stamp::default()),
                    Some(false) => server.abort(tx, key.parent, &key.name),
                    None => continue,
                };
                if let Ok(Output::Then(rest)) = resolved {
                    // Only a link count elsewhere is left to lower, which sees to itself, or a name to be looked at.
                    let _ = rest.await;
                }
            }
        });
    }
}

/// rename(2): what may replace what.
fn replaceable(moved: FileKind, victim: FileKind) -> Result<(), Stop> {
    match (moved == FileKind::Directory, victim == FileKind::Directory) {
        (true, false) => Err(Code::NotDirectory.into()),
        (false, true) => Err(Code::IsDirectory.into()),
        _ => Ok(()),
    }
}
