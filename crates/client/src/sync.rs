//! fsync: what was done before is on the disks of the servers when it returns.
//!
//! All servers of the volume are asked, at once, and each syncs its one journal, once for everybody
//! who waits at the moment. So the file's inode, its data wherever they are, its name and all the
//! directories above it are durable together, without anybody knowing where each of them is.

use crate::client::{Client, Core, unexpected};
use crate::file::File;
use crate::route::{Knowing, Place, Question};
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, Identity, Reply, Request, ServerIndex};
use futures_util::future::try_join_all;
use std::sync::atomic::{AtomicU32, Ordering};

impl Core {
    /// Makes everything durable that any client has been told is done. Fails once after the volume was
    /// started again, for whoever knows nothing newer than `since`: what had been written and not
    /// synced may have gone with the power of a server, and no sync brings it back.
    async fn sync(&self, who: &Identity, since: &AtomicU32) -> Result<(), Failure> {
        if self.durability == Durability::None {
            return Ok(());
        }
        let servers: Vec<ServerIndex> = self.routes.read().map.indexes().collect();
        let asked = servers.into_iter().map(|server| async move {
            let failed = |failure: Failure| {
                failure.during(format!("what was written is not known to be durable on server {server}"))
            };
            let (place, knowing, request) = (Place::Server(server), Knowing::Latest, &Request::Sync);
            let question = Question { who, place, knowing, request, payload: &[] };
            let answer = self.ask_question(question).await.map_err(failed)?;
            match answer.reply {
                Reply::Synced { .. } => Ok(answer.header.map_epoch),
                other => Err(unexpected(&Request::Sync, &other)),
            }
        });
        // Nothing in the question would have told a server that the map known here is an old one.
        let newest = try_join_all(asked).await?.into_iter().max().unwrap_or_default();
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
    /// What fsync(2) asks: all that was written is acknowledged and, on lasting storage, durable,
    /// with the file's name and the directories above it.
    ///
    /// # Errors
    /// Those of every request; what was written may then be lost with the power.
    pub async fn sync(&self) -> Result<(), Failure> {
        self.flush().await?;
        self.core.sync(&self.who, &self.since).await
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
    /// Makes everything durable that was done before: what fsync(2) of a directory asks.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn sync(&self, who: &Identity) -> Result<(), Failure> {
        self.core.sync(who, &self.core.names_since).await
    }
}
