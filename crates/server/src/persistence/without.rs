//! A start without some servers: what only all servers together can clean up is left for the next start of all of them.
//!
//! Counts of links become the number of names that all servers have, data without a file are dropped, and an old name goes where the new
//! one is somewhere: each of these, done without one server, would remove what that one has or needs. So counts stay as they are, which
//! are too high if anything; data and inodes without names stay; and the old name of a rename that the servers which are there have not
//! committed stays locked, since one that was left out may have. Any of those may have entries of every directory.

use super::state::image::Leftovers;
use super::state::persistence::Persistence;
use crate::sabotage::Sabotage;
use crate::state::Server;
use aze_proto::{Attr, Failure, Ino, Request, ServerIndex};
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Server {
    /// Brings to an end what the servers that are there can, and begins to watch the rest; in place of [`Server::resolve`].
    pub(super) async fn resolve_without(
        self: &Arc<Self>,
        persistence: &Persistence,
        leftovers: Leftovers,
        left_out: &[ServerIndex],
    ) -> Result<(), Failure> {
        if !self.config.switches.is(Sabotage::ForgetLeftOut) {
            left_out.iter().for_each(|server| self.suppose_holder(*server));
        }
        self.tell_kept_root_rights(left_out).await?;
        self.take_stubs(&leftovers.changed).await?;
        let map = self.map();
        for (shard, key) in leftovers.doubtful {
            let entry = self.shards.get(shard).and_then(|cell| cell.names.lock().shard.entry(&key));
            let home = entry.and_then(|entry| map.home_of(entry.ino));
            if home.is_some_and(|home| !map.is_gone(home)) {
                self.drop_if_dead(shard, &key).await?;
            }
        }
        persistence.is_resolved.store(true, Ordering::SeqCst);
        if self.config.switches.is(Sabotage::CleanUpWithout) {
            return self.clean_up().await;
        }
        for tx in self.transactions.all_in_doubt() {
            let server = self.clone();
            self.io.spawn(async move { server.settle_source(tx).await });
        }
        for cell in self.shards.iter() {
            let open: Vec<(Attr, u64)> = {
                let names = cell.names.lock();
                let last =
                    |inode: &aze_meta::Inode| Some((inode.attr.clone(), inode.rare.get().truncations.last()?.length));
                names.shard.all_inodes().filter_map(last).collect()
            };
            for (attr, length) in open {
                let server = self.clone();
                // Who does not answer is told in the background.
                self.io.spawn(async move { drop(server.truncate_data(&attr, length).await) });
            }
        }
        Ok(())
    }

    /// If the home of the root was left out: each server tells the others the rights that it has written down, and the newest count.
    async fn tell_kept_root_rights(self: &Arc<Self>, left_out: &[ServerIndex]) -> Result<(), Failure> {
        let map = self.map();
        if !map.home_of(Ino::ROOT).is_some_and(|home| left_out.contains(&home)) {
            return Ok(());
        }
        self.recall_root_rights().await;
        let Some(stub) = self.directories.root() else { return Ok(()) };
        let others = map.members().filter(|other| *other != self.slot() && !left_out.contains(other));
        let told = others.map(|other| self.ask_until_ready(other, Request::StubUpdate { stub: stub.clone() }));
        try_join_all(told).await.map(drop)
    }
}
