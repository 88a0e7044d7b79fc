//! Rename: the one operation over two names, decided by the server of the old one.
//!
//! Each side locks its entry, validates and records; one that is busy makes the whole transaction
//! let go and try again, so no transaction waits while it holds a lock. The coordinator decides;
//! then the new name is put in place and unlocked, then the old one removed and unlocked. A request
//! for a locked name waits, so no client ever sees both names or none, and no client that has seen
//! the new name sees the old. A directory that gets another parent takes the volume's one token
//! first, so that no two moves can make a cycle together.

mod decided;
mod target;

use crate::names::removal::CLOSE_PAUSE;
use crate::names::state::moves::{How, Move, Moved};
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_meta::access::Want;
use aze_meta::{EntryValue, Role};
use aze_proto::fields::{Prepare, PrepareExchange};
use aze_proto::message::Victim;
use aze_proto::{Code, Failure, FileKind, Ino, MapEpoch, Name, Reply, Request, ServerIndex, TxId};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a busy rename is tried again: doubled from the first to the last.
const BUSY_PAUSE_FIRST: Duration = Duration::from_micros(200);
const BUSY_PAUSE_LAST: Duration = Duration::from_millis(50);

/// How long a locked new name waits for the decision before it asks.
pub(crate) const DECISION_PATIENCE: Duration = Duration::from_secs(5);

/// Directories between a directory and the root, at most; more can only be damage.
const DEPTH_MAX: usize = 65_536;

/// The volume's one token for moving directories between parents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    None,
    /// The inode at the new name needs it, too.
    Wanted,
    /// The keeper was asked for it and has not given it, or its answer is not known: it is asked again, and the token is given back.
    Asked,
    Held,
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
        if parent != to_parent {
            // The epoch of the request is checked here alone, for both directories.
            let is_home_gone = || self.map().home_of(to_parent).is_none_or(|home| self.map().is_gone(home));
            if !self.config.switches.is(Sabotage::RenameUntold)
                && let Err(wait) = self.directories.know(to_parent)
                && !is_home_gone()
            {
                return Err(wait);
            }
        }
        if parent == to_parent && name == to_name {
            return if how == How::NoReplace { Err(Code::Exists.into()) } else { Ok(Reply::Done.into()) };
        }
        let tx = TxId(self.io.random_u64());
        let plan = Move {
            tx,
            token: tx,
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
        let is_left_over = result.as_ref().is_err_and(|failure| failure.code == Code::Stopping) && self.is_stopping();
        if matches!(token, Token::Held | Token::Asked) && !is_left_over {
            let (before, drop_token) = (self.life_of_keeper(), Request::DropToken { tx: plan.tx });
            let dropped = self.ask_keeper(drop_token.clone()).await;
            self.transactions.drops_token(plan.tx);
            if dropped.is_err() || self.life_of_keeper() != before {
                // Another keeper may have heard of it from here meanwhile.
                self.tell_keeper(drop_token);
            }
        }
        result
    }

    /// One try: looks the inode up, checks that it may be moved, and runs the transaction.
    async fn rename_looking(self: &Arc<Self>, plan: &Move, token: &mut Token) -> Result<Reply, Failure> {
        self.resolve_name(&plan.from).await?;
        let entry = {
            let cell =
                self.shards.get(plan.old_shard(self.config.shards)).ok_or_else(|| Failure::from(Code::Internal))?;
            cell.names.lock().shard.entry(&plan.from).ok_or(Code::NotFound)?
        };
        let moves_dir = entry.kind == FileKind::Directory && plan.changes_parent();
        if matches!(*token, Token::Wanted | Token::Asked) || moves_dir && *token == Token::None {
            // Given back also if the answer does not come: it may be taken all the same.
            *token = Token::Asked;
            self.get_token(plan.tx).await?;
            *token = Token::Held;
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

    /// Gets the token from the keeper. One that the keeper gave in an earlier life may be given to another by now, unless
    /// the keeper heard of it from here when it came back.
    async fn get_token(self: &Arc<Self>, tx: TxId) -> Result<(), Failure> {
        loop {
            let before = self.life_of_keeper();
            self.ask_keeper(Request::TakeToken { tx }).await?;
            self.transactions.takes_token(tx);
            if self.life_of_keeper() == before {
                return Ok(());
            }
            self.transactions.drops_token(tx);
        }
    }

    /// Takes the token once more, if a rename has it that waits for a server: the keeper takes it from one of whom it does not hear for long.
    async fn keep_token(self: &Arc<Self>, plan: &Move) {
        if self.transactions.has_token(plan.token) {
            // Another keeper hears of it from here.
            drop(self.ask_keeper(Request::TakeToken { tx: plan.token }).await);
        }
    }

    /// Which server keeps the map, and when its life began.
    fn life_of_keeper(&self) -> (ServerIndex, Option<MapEpoch>) {
        let map = self.map();
        (map.keeper, map.server(map.keeper).map(|info| info.began))
    }

    /// A directory that gets another parent is changed itself: rename(2) wants the right to write it.
    pub(crate) async fn check_may_move(self: &Arc<Self>, plan: &Move, dir: Ino) -> Result<(), Failure> {
        let may_write = Request::MayWrite { ino: dir, identity: plan.identity.clone() };
        match self.ask_shard(self.home(dir), may_write).await {
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
            match self.ask_shard(self.home(dir), Request::ParentOf { ino: dir }).await? {
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
        if let Err(failure) = self.ready_to_decide(plan, entry, victim).await {
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
        if self.resolved(&plan.from).is_err() {
            return Err(Failure::new(Code::Busy, "the old name was made by a rename: resolve that first"));
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
    async fn ready_to_decide(
        self: &Arc<Self>,
        plan: &Move,
        entry: &EntryValue,
        victim: Option<Victim>,
    ) -> Result<(), Failure> {
        self.tell_of_move(entry).await?;
        let Some(victim) = victim.filter(|victim| victim.kind == FileKind::Directory) else { return Ok(()) };
        let mut may_be_closed = false;
        loop {
            let closed = self.close_at_home(victim.ino).await;
            let code = closed.as_ref().map_err(|failure| failure.code);
            may_be_closed |= matches!(code, Err(Code::UnknownOutcome | Code::TimedOut));
            match closed {
                // It may have been removed: until that is known the rename can be neither done nor given up.
                Err(failure)
                    if may_be_closed && (failure.is_silence() || failure.code == Code::Busy) && !self.is_stopping() =>
                {
                    self.io.sleep(CLOSE_PAUSE).await;
                    self.keep_token(plan).await;
                }
                closed => return closed.map(drop),
            }
        }
    }

    /// Tells every server that paths through a directory change.
    pub(crate) async fn tell_of_move(self: &Arc<Self>, entry: &EntryValue) -> Result<(), Failure> {
        if entry.kind == FileKind::Directory {
            self.ask_keeper(Request::RaiseEpoch { dir: entry.ino }).await?;
        }
        Ok(())
    }
}
