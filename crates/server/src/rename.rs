//! Rename: the one operation over two names, decided by the server of the old one.
//!
//! Each side locks its entry, validates and records; one that is busy makes the whole transaction
//! let go and try again, so no transaction waits while it holds a lock. The coordinator decides;
//! then the new name is put in place and unlocked, then the old one removed and unlocked. A request
//! for a locked name waits, so no client ever sees both names or none, and no client that has seen
//! the new name sees the old. A directory that gets another parent takes the volume's one token
//! first, so that no two moves can make a cycle together.

use crate::dispatch::{Output, Work, then};
use crate::state::Server;
use crate::wait::{Attempt, Stop};
use aze_meta::access::Want;
use aze_meta::{EntryKey, EntryValue, Op, Role, Stamp};
use aze_proto::fields::{Prepare, PrepareExchange};
use aze_proto::message::Victim;
use aze_proto::{
    Code, Failure, FileKind, Identity, Incarnation, Ino, Name, NameHash, Reply, Request, ServerIndex, ShardId, TxId,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a busy rename is tried again: doubled from the first to the last.
const BUSY_PAUSE_FIRST: Duration = Duration::from_micros(200);
const BUSY_PAUSE_LAST: Duration = Duration::from_millis(50);

/// How long a locked new name waits for the decision before it asks.
pub(crate) const DECISION_PATIENCE: Duration = Duration::from_secs(5);

/// Directories between a directory and the root, at most; more can only be damage.
const DEPTH_MAX: usize = 65_536;

/// Finished transactions of other coordinators that are remembered, so that a late copy of a message
/// does not lock a name for one that is over. Older ones are caught by asking for the decision.
const FINISHED_KEPT: usize = 65_536;

/// A decided rename.
type Decided = (Arc<Move>, Moved);

/// Transactions that concern this server.
pub(crate) struct Transactions {
    /// Transactions that this server coordinates and that are not yet over; with the decision, once it is taken.
    active: Mutex<BTreeMap<TxId, Option<Decided>>>,
    /// Those that are over at the side of the new name, and whether they were committed.
    finished: Mutex<Finished>,
}

#[derive(Default)]
struct Finished {
    committed: BTreeMap<TxId, bool>,
    order: VecDeque<TxId>,
}

impl Transactions {
    pub(crate) fn new() -> Transactions {
        Transactions { active: Mutex::new(BTreeMap::new()), finished: Mutex::new(Finished::default()) }
    }

    /// What became of a transaction: `None` while it is undecided. One that is not known was given
    /// up, since a committed one is kept until the other side has acknowledged.
    pub(crate) fn outcome(&self, tx: TxId) -> Option<bool> {
        match self.active.lock().get(&tx) {
            Some(None) => None,
            Some(Some(_)) => Some(true),
            None => Some(false),
        }
    }

    /// One that is decided and not yet over.
    pub(crate) fn decided(&self, tx: TxId) -> Option<Decided> {
        self.active.lock().get(&tx).cloned().flatten()
    }

    pub(crate) fn begin(&self, tx: TxId) {
        self.active.lock().insert(tx, None);
    }

    fn decide(&self, plan: &Arc<Move>, moved: Moved) {
        self.active.lock().insert(plan.tx, Some((plan.clone(), moved)));
    }

    pub(crate) fn end(&self, tx: TxId) {
        self.active.lock().remove(&tx);
    }

    fn finish(&self, tx: TxId, committed: bool) {
        let mut finished = self.finished.lock();
        if finished.committed.insert(tx, committed).is_none() {
            finished.order.push_back(tx);
        }
        if finished.order.len() > FINISHED_KEPT
            && let Some(oldest) = finished.order.pop_front()
        {
            finished.committed.remove(&oldest);
        }
    }

    /// Those that were committed here, as far as they are remembered.
    pub(crate) fn committed(&self) -> Vec<TxId> {
        self.finished.lock().committed.iter().filter(|(_, committed)| **committed).map(|(tx, _)| *tx).collect()
    }

    /// Whether one is over here, one way or the other.
    pub(crate) fn is_finished(&self, tx: TxId) -> bool {
        self.finished(tx).is_some()
    }

    /// Whether one was committed here.
    pub(crate) fn is_committed(&self, tx: TxId) -> bool {
        self.finished(tx) == Some(true)
    }

    /// Remembers those that were committed before the server started again.
    pub(crate) fn remember_committed(&self, committed: &[TxId]) {
        committed.iter().for_each(|tx| self.finish(*tx, true));
    }

    fn finished(&self, tx: TxId) -> Option<bool> {
        self.finished.lock().committed.get(&tx).copied()
    }
}

/// What becomes of an inode that has the new name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It goes.
    Replace,
    /// There must be nothing.
    NoReplace,
    /// It gets the old name.
    Exchange,
}

/// The volume's one token for moving directories between parents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    None,
    /// The inode at the new name needs it, too.
    Wanted,
    Held,
}

/// A rename in progress, at its coordinator. Every try is a transaction of its own, so that a late
/// message of one does nothing to the next.
#[derive(Clone)]
pub(crate) struct Move {
    pub(crate) tx: TxId,
    identity: Identity,
    pub(crate) from: EntryKey,
    pub(crate) to_parent: Ino,
    to_name: Name,
    how: How,
    pub(crate) stamp: Stamp,
    deadline_ns: u64,
}

/// What gets the new name, and in an exchange what gets the old one.
#[derive(Clone, Copy)]
pub(crate) struct Moved {
    pub(crate) entry: EntryValue,
    pub(crate) back: Option<EntryValue>,
}

impl Moved {
    /// That it is done.
    fn done(&self) -> Reply {
        let entries = std::iter::once(self.entry).chain(self.back);
        let files = entries.filter(|entry| entry.kind != FileKind::Directory);
        Reply::Moved { inos: files.map(|entry| entry.ino).collect() }
    }
}

impl Move {
    pub(crate) fn old_shard(&self, shards: u32) -> ShardId {
        self.from.hash.shard(shards)
    }

    fn new_shard(&self, shards: u32) -> ShardId {
        NameHash::of(self.to_parent, &self.to_name).shard(shards)
    }

    fn commit(&self) -> Request {
        Request::Commit { tx: self.tx, to_parent: self.to_parent, to_name: self.to_name.clone() }
    }

    pub(crate) fn changes_parent(&self) -> bool {
        self.from.parent != self.to_parent
    }
}

impl Server {
    /// A rename or an exchange.
    pub(crate) fn rename(
        self: &Arc<Self>,
        work: &Work,
        parent: Ino,
        name: &Name,
        to_parent: Ino,
        to_name: &Name,
        how: How,
    ) -> Attempt<Output> {
        let (cell, from) = self.entry_place(work, parent, name)?;
        let names = cell.names.lock();
        self.unlocked(cell, &names, &from)?;
        let stub = self.directories.enter(parent, &work.identity, Want::CHANGE_NAMES, self.whole_since())?;
        let entry = names.shard.entry(&from).ok_or(Code::NotFound)?;
        self.may_remove(work, &names, &stub, &entry)?;
        drop(names);
        if parent == to_parent && name == to_name {
            return if how == How::NoReplace { Err(Code::Exists.into()) } else { Ok(Reply::Done.into()) };
        }
        let plan = Move {
            tx: TxId(self.io.random_u64()),
            identity: work.identity.clone(),
            from,
            to_parent,
            to_name: to_name.clone(),
            how,
            stamp: work.stamp,
            deadline_ns: work.deadline_ns,
        };
        let server = self.clone();
        then(async move { server.rename_until_free(&plan).await })
    }

    /// Tries until both names could be locked. What the old name means is looked at anew every time,
    /// since it may have been replaced meanwhile.
    async fn rename_until_free(self: &Arc<Self>, plan: &Move) -> Result<Reply, Failure> {
        let mut token = Token::None;
        let mut pause = BUSY_PAUSE_FIRST;
        let result = loop {
            let failure = match self.rename_looking(plan, &mut token).await {
                Err(failure) if failure.code == Code::Busy => failure,
                other => break other,
            };
            // A random part keeps two renames that block each other from doing so for ever.
            let jitter = Duration::from_nanos(self.io.random_u64() % pause.as_nanos() as u64);
            if self.io.mono_ns() + (pause + jitter).as_nanos() as u64 >= plan.deadline_ns {
                break Err(failure);
            }
            self.io.sleep(pause + jitter).await;
            pause = (pause * 2).min(BUSY_PAUSE_LAST);
        };
        if token == Token::Held {
            let (keeper, drop_token) = (self.map().keeper, Request::DropToken { tx: plan.tx });
            if self.ask(keeper, ShardId(0), drop_token.clone()).await.is_err() {
                self.persist(keeper, ShardId(0), drop_token);
            }
        }
        result
    }

    /// One try: looks the inode up, checks that it may be moved, and runs the transaction.
    async fn rename_looking(self: &Arc<Self>, plan: &Move, token: &mut Token) -> Result<Reply, Failure> {
        self.settle_name(&plan.from).await?;
        let entry = {
            let cell =
                self.shards.get(plan.old_shard(self.config.shards)).ok_or_else(|| Failure::from(Code::Internal))?;
            cell.names.lock().shard.entry(&plan.from).ok_or(Code::NotFound)?
        };
        let moves_dir = entry.kind == FileKind::Directory && plan.changes_parent();
        if *token == Token::Wanted || moves_dir && *token == Token::None {
            // Given back also if the answer does not come: it may be taken all the same.
            *token = Token::Held;
            self.ask(self.map().keeper, ShardId(0), Request::TakeToken { tx: plan.tx }).await?;
        }
        if moves_dir {
            self.refuse_cycle(entry.ino, plan.to_parent).await?;
            self.check_may_move(plan, entry.ino).await?;
        }
        let attempt = Arc::new(Move { tx: TxId(self.io.random_u64()), ..plan.clone() });
        self.transactions.begin(attempt.tx);
        let result = match plan.how {
            How::Exchange => self.exchange_once(&attempt, &entry, token).await,
            How::Replace | How::NoReplace => self.rename_once(&attempt, &entry).await,
        };
        if self.transactions.outcome(attempt.tx).is_none() {
            self.transactions.end(attempt.tx);
        }
        result
    }

    /// A directory that gets another parent is changed itself: rename(2) wants the right to write it.
    pub(crate) async fn check_may_move(self: &Arc<Self>, plan: &Move, dir: Ino) -> Result<(), Failure> {
        let may_write = Request::MayWrite { ino: dir, identity: plan.identity.clone() };
        match self.ask_shard(dir.home(), may_write).await {
            Ok(_) => Ok(()),
            // One that has just been removed still has its name for a moment: look again.
            Err(failure) if failure.code == Code::Stale => Err(Code::Busy.into()),
            Err(failure) => Err(failure.during(format!("directory {dir} gets another parent"))),
        }
    }

    /// Walks from the new parent to the root; the directory that moves must not be met.
    pub(crate) async fn refuse_cycle(self: &Arc<Self>, moved: Ino, to_parent: Ino) -> Result<(), Failure> {
        let mut dir = to_parent;
        for _ in 0..DEPTH_MAX {
            if dir == moved {
                return Err(Failure::new(Code::Invalid, "a directory cannot be moved into itself or below itself"));
            }
            if dir == Ino::ROOT {
                return Ok(());
            }
            match self.ask_shard(dir.home(), Request::ParentOf { ino: dir }).await? {
                Reply::ParentIs { parent } => dir = parent,
                _ => return Err(Failure::new(Code::Malformed, "ParentOf was answered with something else")),
            }
        }
        Err(Failure::new(Code::Internal, format!("directory {to_parent} is not below the root")))
    }

    async fn rename_once(self: &Arc<Self>, plan: &Arc<Move>, entry: &EntryValue) -> Result<Reply, Failure> {
        self.lock_source(plan, entry)?;
        let victim = match self.prepare_target(plan, entry).await {
            Ok(victim) => victim,
            Err(failure) => {
                self.give_up(plan).await;
                return Err(failure);
            }
        };
        if victim.is_some_and(|victim| victim.ino == entry.ino) {
            // Two names of one file: rename(2) leaves both as they are.
            self.give_up(plan).await;
            return Ok(Reply::Done);
        }
        if let Err(failure) = self.ready_to_decide(entry, victim).await {
            self.give_up(plan).await;
            return Err(failure);
        }
        self.decide(plan, Moved { entry: *entry, back: None }).await
    }

    pub(crate) fn lock_source(&self, plan: &Move, entry: &EntryValue) -> Result<(), Failure> {
        let cell = self.shards.get(plan.old_shard(self.config.shards)).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        let now = names.shard.entry(&plan.from);
        if now.is_none_or(|now| now.ino != entry.ino) {
            return Err(Failure::new(Code::Busy, "the old name has changed: look again"));
        }
        if self.settled(&plan.from).is_err() {
            return Err(Failure::new(Code::Busy, "the old name was made by a rename: settle that first"));
        }
        self.lock_entry(&mut names, &plan.from, plan.tx, Role::Source, entry, &plan.stamp)
    }

    pub(crate) async fn prepare_target(
        self: &Arc<Self>,
        plan: &Move,
        entry: &EntryValue,
    ) -> Result<Option<Victim>, Failure> {
        let (tx, coordinator, incarnation) = (plan.tx, self.slot(), self.incarnation());
        let (to_parent, to_name, identity) = (plan.to_parent, plan.to_name.clone(), plan.identity.clone());
        let EntryValue { ino, kind } = *entry;
        let no_replace = plan.how == How::NoReplace;
        let request = match plan.how {
            How::Exchange => Request::PrepareExchange(PrepareExchange {
                tx,
                coordinator,
                incarnation,
                to_parent,
                to_name,
                ino,
                kind,
                identity,
            }),
            How::Replace | How::NoReplace => Request::Prepare(Prepare {
                tx,
                coordinator,
                incarnation,
                to_parent,
                to_name,
                ino,
                kind,
                no_replace,
                identity,
            }),
        };
        match self.ask_shard(plan.new_shard(self.config.shards), request).await? {
            Reply::Prepared { victim } => Ok(victim),
            _ => Err(Failure::new(Code::Malformed, "Prepare was answered with something else")),
        }
    }

    /// The conditions of the decision: a directory in the way is dead, and every server knows
    /// that paths through the moved directory change.
    async fn ready_to_decide(self: &Arc<Self>, entry: &EntryValue, victim: Option<Victim>) -> Result<(), Failure> {
        self.tell_of_move(entry).await?;
        if let Some(victim) = victim.filter(|victim| victim.kind == FileKind::Directory) {
            self.close_at_home(victim.ino).await?;
        }
        Ok(())
    }

    /// Tells every server that paths through a directory change.
    pub(crate) async fn tell_of_move(self: &Arc<Self>, entry: &EntryValue) -> Result<(), Failure> {
        if entry.kind == FileKind::Directory {
            self.ask(self.map().keeper, ShardId(0), Request::RaiseEpoch { dir: entry.ino }).await?;
        }
        Ok(())
    }

    /// Decides, and brings it to its end: the new name first, then the old one.
    pub(crate) async fn decide(self: &Arc<Self>, plan: &Arc<Move>, moved: Moved) -> Result<Reply, Failure> {
        self.transactions.decide(plan, moved);
        if plan.changes_parent() {
            self.tell_parent_of(&moved.entry, plan.to_parent).await;
            if let Some(back) = &moved.back {
                self.tell_parent_of(back, plan.from.parent).await;
            }
        }
        match self.ask_shard(plan.new_shard(self.config.shards), plan.commit()).await {
            Ok(_) => {
                self.settle_source(plan, &moved);
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

    async fn tell_parent_of(self: &Arc<Self>, entry: &EntryValue, parent: Ino) {
        if entry.kind == FileKind::Directory {
            self.tell_parent(entry.ino, parent).await;
        }
    }

    /// Tells a directory's home where its name is; until it has understood, if it does not answer at
    /// once. To be called while the name is locked, so that no later move is overtaken.
    async fn tell_parent(self: &Arc<Self>, dir: Ino, parent: Ino) {
        let moved = Request::SetParent { ino: dir, parent };
        if self.ask_shard(dir.home(), moved.clone()).await.is_err() {
            self.persist_shard(dir.home(), moved);
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
                Ok(_) => return self.settle_source(plan, moved),
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

    /// The end of a rename: the old name goes, or gets what had the new one, and its lock goes.
    pub(crate) fn settle_source(&self, plan: &Move, moved: &Moved) {
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

    /// At the new name's shard: lock it, unless something forbids the rename.
    pub(crate) fn prepare(self: &Arc<Self>, work: &mut Work, prepare: &Prepare) -> Attempt<Output> {
        let &Prepare { tx, coordinator, incarnation, to_parent, ref to_name, ino, kind, no_replace, .. } = prepare;
        work.identity = prepare.identity.clone();
        let (cell, key) = self.entry_place(work, to_parent, to_name)?;
        let mut names = cell.names.lock();
        if self.transactions.is_finished(tx) {
            return Err(Failure::new(Code::Replayed, "the rename is over").into());
        }
        self.settled(&key)?;
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
        let Some(lock) = names.shard.lock_of(&key).filter(|lock| lock.tx == tx).cloned() else {
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
        self.note_unsettled(&key, tx, lock.coordinator);
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
    pub(crate) fn abort(&self, tx: TxId, to_parent: Ino, to_name: &Name) -> Attempt<Output> {
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
        Ok(Reply::Done.into())
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
                let settled = match outcome {
                    Some(true) => server.commit(tx, key.parent, &key.name, &Stamp::default()),
                    Some(false) => server.abort(tx, key.parent, &key.name),
                    None => continue,
                };
                if let Ok(Output::Then(rest)) = settled {
                    // Only a link count elsewhere is left to lower, which sees to itself.
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
