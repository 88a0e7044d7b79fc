//! fsync: what was done before is on the disks of the servers when it returns.
//!
//! All servers of the volume are asked, at once, and each syncs its one journal, once for everybody
//! who waits at the moment. So the file's inode, its data wherever they are, its name and all the
//! directories above it are durable together, without anybody knowing where each of them is.

use crate::client::{Client, Core, unexpected};
use crate::file::File;
use aze_proto::message::Durability;
use aze_proto::{Failure, Identity, Reply, Request, ServerIndex};
use futures_util::future::try_join_all;

impl Core {
    /// Makes everything durable that any client has been told is done.
    pub(crate) async fn sync(&self, who: &Identity) -> Result<(), Failure> {
        if self.durability == Durability::None {
            return Ok(());
        }
        let servers: Vec<ServerIndex> = self.routes.read().map.indexes().collect();
        let asked = servers.into_iter().map(|server| async move {
            let failed = |failure: Failure| {
                failure.during(format!("what was written is not known to be durable on server {server}"))
            };
            match self.ask_server(who, server, &Request::Sync).await.map_err(failed)? {
                Reply::Synced { .. } => Ok(()),
                other => Err(unexpected(&Request::Sync, &other)),
            }
        });
        try_join_all(asked).await.map(drop)
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
        self.core.sync(&self.who).await
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
        self.core.sync(who).await
    }
}
