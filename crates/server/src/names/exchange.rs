//! Exchange: two names that are both there change places, in the steps of a rename.
//!
//! The first name's server coordinates. Both names are locked; after the decision the second name
//! leads to the first one's inode and is unlocked, then the first to the second one's. A request that
//! looks at a locked name waits, so each name always answers with one of the two, and both never with
//! the same. Nothing is replaced: link counts stay, and full directories may be exchanged with anything.

use crate::names::rename::Token;
use crate::names::state::moves::{Move, Moved};
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work};
use aze_meta::access::Want;
use aze_meta::{EntryValue, Lock, Op, Role};
use aze_proto::fields::PrepareExchange;
use aze_proto::message::Victim;
use aze_proto::{Code, Failure, FileKind, Reply};
use std::sync::Arc;

impl Server {
    /// One try, at the coordinator.
    pub(crate) async fn exchange_once(
        self: &Arc<Self>,
        plan: &Arc<Move>,
        entry: &EntryValue,
        token: &mut Token,
    ) -> Result<Reply, Failure> {
        self.lock_source(plan, entry)?;
        match self.ready_to_exchange(plan, entry, token).await {
            Ok(Some(back)) => self.decide(plan, Moved { entry: *entry, back: Some(back) }).await,
            Ok(None) => {
                self.give_up(plan).await;
                Ok(Reply::Done)
            }
            Err(failure) => {
                self.give_up(plan).await;
                Err(failure)
            }
        }
    }

    /// All that must be so before the decision; gives what the second name leads to, if that is not
    /// what the first one leads to, too.
    async fn ready_to_exchange(
        self: &Arc<Self>,
        plan: &Move,
        entry: &EntryValue,
        token: &mut Token,
    ) -> Result<Option<EntryValue>, Failure> {
        let Victim { ino, kind } = self.prepare_target(plan, entry).await?.ok_or(Code::NotFound)?;
        let back = EntryValue { ino, kind };
        if ino == entry.ino {
            return Ok(None);
        }
        if kind == FileKind::Directory && plan.changes_parent() {
            if *token != Token::Held {
                // A request that holds names does not wait for it.
                *token = Token::Wanted;
                return Err(Failure::new(Code::Busy, "a directory gets another parent: the token first"));
            }
            self.refuse_cycle(ino, plan.from.parent).await?;
            self.check_may_move(plan, ino).await?;
        }
        self.tell_of_move(entry).await?;
        self.tell_of_move(&back).await?;
        let role = Role::ExchangeSource { ino, kind, parent: plan.to_parent };
        let cell = self.shards.get(plan.old_shard(self.config.shards)).ok_or_else(|| Failure::from(Code::Internal))?;
        self.lock_entry(&mut cell.names.lock(), &plan.from, plan.tx, role, entry, &plan.stamp)?;
        Ok(Some(back))
    }

    /// At the second name's shard: lock it, unless something forbids the exchange.
    pub(crate) fn prepare_exchange(self: &Arc<Self>, work: &mut Work, prepare: &PrepareExchange) -> Attempt<Output> {
        let &PrepareExchange { tx, coordinator, incarnation, to_parent, ref to_name, ino, kind, .. } = prepare;
        work.identity = prepare.identity.clone();
        let (cell, key) = self.entry_place(work, to_parent, to_name)?;
        let mut names = cell.names.lock();
        if self.transactions.is_finished(tx) {
            return Err(Failure::new(Code::Replayed, "the exchange is over").into());
        }
        self.resolved(&key)?;
        let held = names.shard.lock_of(&key).map(|lock| lock.tx);
        if held.is_some_and(|holder| holder != tx) {
            return Err(Failure::new(Code::Busy, Server::entry_text(to_parent, to_name)).into());
        }
        let stub = self.directories.enter(to_parent, &work.identity, Want::CHANGE_NAMES, self.whole_since())?;
        let entry = names.shard.entry(&key).ok_or(Code::NotFound)?;
        if entry.ino != ino {
            self.may_remove(work, &names, &stub, &entry)?;
        }
        let victim = Some(Victim { ino: entry.ino, kind: entry.kind });
        if held.is_none() {
            let lock = Lock { tx, role: Role::ExchangeDestination, coordinator, incarnation, ino, kind };
            names.shard.apply(&Op::Lock { key: key.clone(), lock }, &self.own_stamp(&work.stamp)).reply?;
            drop(names);
            self.watch_transaction(cell.id, key, tx, coordinator, incarnation);
        }
        Ok(Reply::Prepared { victim }.into())
    }
}
