//! Unresolved names: new names whose renames are not known to be over at their coordinators.
//!
//! A coordinator that has not heard that the new name is there keeps the old one locked, and gives it
//! back if the new name's server restarts empty: a moved inode must have a name. So nothing may have
//! happened to the new name by then. A request that would rename, replace or remove it first has the
//! coordinator end the rename; for the others that is done in the background.

use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, then};
use aze_meta::EntryKey;
use aze_proto::{Failure, Reply, Request, ServerIndex, ShardId, TxId};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a coordinator has before it is told in the background of a new name, which it most often knows.
const TELL_PAUSE: Duration = Duration::from_millis(500);

impl Server {
    /// A new name is there. To be called under the lock of its shard.
    pub(crate) fn note_unresolved(self: &Arc<Self>, key: &EntryKey, tx: TxId, coordinator: ServerIndex) {
        // One that is decided here and lost goes together with its old name.
        if coordinator == self.slot() || !self.unresolved.add(key.clone(), tx, coordinator) {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            while !server.is_stopping() {
                server.io.sleep(TELL_PAUSE).await;
                let all = server.unresolved.to_tell();
                if all.is_empty() {
                    return;
                }
                join_all(all.into_iter().map(|(coordinator, txs)| server.tell_resolved(coordinator, txs))).await;
            }
        });
    }

    /// Tells all coordinators now of the new names here.
    pub(crate) fn tell_all_resolved(self: &Arc<Self>) {
        for (coordinator, txs) in self.unresolved.to_tell() {
            let server = self.clone();
            self.io.spawn(async move { server.tell_resolved(coordinator, txs).await });
        }
    }

    async fn tell_resolved(self: &Arc<Self>, coordinator: ServerIndex, txs: BTreeSet<TxId>) {
        let request = Request::TxResolve { txs: txs.iter().copied().collect() };
        // Who does not answer is told again. One that leaves has brought its renames to an end.
        if self.ask(coordinator, ShardId(0), request).await.is_ok() || self.map().has_left(coordinator) {
            self.unresolved.told(&txs);
        }
    }

    /// Stops at a new name whose rename may not be over.
    pub(crate) fn resolved(&self, key: &EntryKey) -> Attempt<()> {
        match self.unresolved.of(key) {
            Some(_) => Err(Stop::Wait(Wait::Unresolved(key.clone()))),
            None => Ok(()),
        }
    }

    /// Has the rename ended that has made a name.
    pub(crate) async fn resolve_name(self: &Arc<Self>, key: &EntryKey) -> Result<(), Failure> {
        let Some((tx, coordinator)) = self.unresolved.of(key) else { return Ok(()) };
        let asked = self.ask(coordinator, ShardId(0), Request::TxResolve { txs: vec![tx] }).await;
        // Old names are unlocked before a slot moves, so that all renames of one that has left are over.
        if !self.map().has_left(coordinator) {
            asked.map_err(|failure| failure.during("whether the rename that has made this name is over"))?;
        }
        self.unresolved.forget(key, tx);
        Ok(())
    }

    /// At a coordinator: these were committed. Those that it does not know are over.
    pub(crate) fn tx_resolve(self: &Arc<Self>, txs: &[TxId]) -> Attempt<Output> {
        let mut in_doubt = Vec::new();
        for tx in txs {
            if let Some((plan, moved)) = self.transactions.decided(*tx) {
                self.resolve_source(&plan, &moved);
            } else if self.transactions.in_doubt(*tx).is_some() {
                in_doubt.push(*tx);
            }
        }
        if in_doubt.is_empty() {
            return Ok(Reply::Done.into());
        }
        let server = self.clone();
        then(async move {
            server.settle_committed(in_doubt).await?;
            Ok(Reply::Done)
        })
    }
}
