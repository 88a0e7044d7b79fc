//! fsync: earlier changes are on the disks of the servers when it returns.
//!
//! Each server that is asked syncs its one journal, once for everybody who waits at the moment. Of a file that
//! this open has made, and that has no data beyond chunk 0, everything is in its home's journal: inode,
//! data and name; and the directories above it were durable before the home made an entry there. So the
//! home alone is asked. For all else, and when this client has given names since all servers synced, all of
//! them are asked at once: then the client need not know where the parts are.

use crate::client::{Client, Core, unexpected};
use crate::file::File;
use crate::route::{Knowing, Place, Question};
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, Identity, Reply, Request, ServerIndex};
use futures_util::future::try_join_all;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Names that this client has given to existing inodes: where they are durable is not followed.
#[derive(Default)]
pub(crate) struct Moves {
    done: AtomicU64,
    /// Of these, those that all servers have synced.
    synced: AtomicU64,
}

impl Moves {
    /// One more has been answered.
    pub(crate) fn count(&self) {
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    fn are_synced(&self) -> bool {
        self.synced.load(Ordering::SeqCst) == self.done.load(Ordering::SeqCst)
    }
}

impl Core {
    /// Makes everything durable that any client has been told is done, or at least what these servers have
    /// of it. Fails once after the volume was started again, for callers that know nothing newer than `since`: data
    /// written and not synced may have gone with the power of a server, and no sync brings it back.
    async fn sync(&self, who: &Identity, since: &AtomicU32, only: Option<ServerIndex>) -> Result<(), Failure> {
        if self.durability == Durability::None {
            return Ok(());
        }
        let moves = self.moves.done.load(Ordering::SeqCst);
        let servers = match only {
            Some(server) => vec![server],
            None => self.routes.read().map.members().collect(),
        };
        let asked = servers.into_iter().map(|server| async move {
            let failed = |failure: Failure| {
                failure.during(format!("what was written is not known to be durable on server {server}"))
            };
            let (place, knowing, request) = (Place::Server(server), Knowing::Latest, &Request::Sync);
            let question = Question { who, place, knowing, request, payload: &[], life: None, planned: None };
            let answer = match self.ask_question(question).await {
                // Others had its slots on their disks before they served them in its place.
                Err(_) if self.routes.read().map.has_left(server) => return Ok(self.routes.read().map.epoch),
                answer => answer.map_err(failed)?,
            };
            match answer.reply {
                Reply::Synced { .. } => Ok(answer.header.map_epoch),
                other => Err(unexpected(&Request::Sync, &other)),
            }
        });
        // Nothing in the question would have told a server that the map known here is an old one.
        let newest = try_join_all(asked).await?.into_iter().max().unwrap_or_default();
        if only.is_none() {
            self.moves.synced.fetch_max(moves, Ordering::SeqCst);
        }
        if newest.starts() > self.starts() {
            self.look_for_map().await?;
        }
        if since.swap(newest.starts(), Ordering::SeqCst) == newest.starts() {
            return Ok(());
        }
        let detail = "the volume was started again: what was written before and not synced may be lost; look, write it again if so, and sync again";
        Err(Failure::new(Code::Lost, detail))
    }
}

impl File {
    /// What fsync(2) asks: all that was written is acknowledged and, on persistent storage, durable,
    /// with the file's name and the directories above it.
    ///
    /// # Errors
    /// Those of every request; the written data may then be lost with the power.
    pub async fn sync(&self) -> Result<(), Failure> {
        self.flush().await?;
        self.core.sync(&self.who, &self.since, self.has_all_of_it()).await
    }

    /// The one server that has everything that a sync of this file is about, if there is one for sure.
    fn has_all_of_it(&self) -> Option<ServerIndex> {
        let is_there = self.is_new && self.core.moves.are_synced() && !self.attr().spread.is_wide();
        is_there.then(|| self.core.routes.read().map.home_of(self.ino())).flatten()
    }

    /// What closing a file asks: [`File::flush`], or [`File::sync`] on a volume that promises as much.
    ///
    /// # Errors
    /// As theirs.
    pub async fn flush_for_close(&self) -> Result<(), Failure> {
        let syncs = self.is_for_writing() && self.core.durability == Durability::Close;
        if syncs { self.sync().await } else { self.flush().await }
    }
}

impl Client {
    /// Whether closing a file that was written waits for disks: [`File::flush_for_close`].
    pub fn syncs_at_close(&self) -> bool {
        self.core.durability == Durability::Close
    }

    /// Makes everything durable that was done before: what fsync(2) of a directory asks.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn sync(&self, who: &Identity) -> Result<(), Failure> {
        self.core.sync(who, &self.core.names_since, None).await
    }
}
