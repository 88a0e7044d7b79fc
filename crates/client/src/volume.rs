//! Questions to all servers of a volume.

use crate::client::{Client, unexpected};
use crate::names::done;
use aze_proto::message::{ServerActivity, ServerStatus};
use aze_proto::{Failure, Identity, Reply, Request, ServerIndex};
use futures_util::future::join_all;
use futures_util::lock::Mutex;
use std::time::Duration;

/// Space of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Files and directories that it has.
    pub inodes: u64,
    /// Files and directories that it can have, each with one name.
    pub inodes_max: u64,
}

/// The last sum over all servers; locked while it is asked for, so that all who want it then get the same answer.
#[derive(Default)]
pub(crate) struct LastSpace(Mutex<Option<Asked>>);

struct Asked {
    began_ns: u64,
    ended_ns: u64,
    answer: Result<Space, Failure>,
}

impl Client {
    /// As [`Client::statfs`], from an answer that may be so old, or was waited for together: however many ask, servers
    /// are asked once in that time.
    ///
    /// # Errors
    /// As [`Client::statfs`].
    pub async fn statfs_within(&self, age_max: Duration) -> Result<Space, Failure> {
        let io = &self.core.io;
        let wanted_ns = io.mono_ns();
        let mut last = self.core.last_space.0.lock().await;
        let age_ns_max = age_max.as_nanos() as u64;
        let will_do = |asked: &&mut Asked| asked.ended_ns >= wanted_ns || io.mono_ns() < asked.began_ns + age_ns_max;
        if let Some(asked) = last.as_mut().filter(will_do) {
            return asked.answer.clone();
        }
        let began_ns = io.mono_ns();
        let answer = self.statfs().await;
        *last = Some(Asked { began_ns, ended_ns: io.mono_ns(), answer: answer.clone() });
        answer
    }

    /// The space of all servers together.
    ///
    /// # Errors
    /// If one of them does not answer: a sum without it would be wrong.
    pub async fn statfs(&self) -> Result<Space, Failure> {
        let mut sum = Space::default();
        for (_, answer) in self.ask_all(&Identity::default(), &Request::StatFs).await {
            match answer? {
                Reply::Space { capacity_bytes, used_bytes, inodes, inodes_max } => {
                    sum.capacity_bytes = sum.capacity_bytes.saturating_add(capacity_bytes);
                    sum.used_bytes = sum.used_bytes.saturating_add(used_bytes);
                    sum.inodes = sum.inodes.saturating_add(inodes);
                    sum.inodes_max = sum.inodes_max.saturating_add(inodes_max);
                }
                other => return Err(unexpected(&Request::StatFs, &other)),
            }
        }
        Ok(sum)
    }

    /// How each server is that has not left.
    pub async fn status(&self) -> Vec<(ServerIndex, Result<ServerStatus, Failure>)> {
        let status = |reply| match reply {
            Reply::Status { status } => Ok(*status),
            other => Err(unexpected(&Request::Status, &other)),
        };
        self.each(&Identity::default(), &Request::Status, status).await
    }

    /// What each server has done so far that has not left.
    pub async fn activity(&self) -> Vec<(ServerIndex, Result<ServerActivity, Failure>)> {
        let activity = |reply| match reply {
            Reply::ActivityIs { activity } => Ok(*activity),
            other => Err(unexpected(&Request::Activity, &other)),
        };
        self.each(&Identity::default(), &Request::Activity, activity).await
    }

    /// Has every server end that has not left, on behalf of the volume's owner; what each said.
    pub async fn shutdown_servers(&self) -> Vec<(ServerIndex, Result<(), Failure>)> {
        self.each(&self.owner(), &Request::Shutdown, |reply| done(&Request::Shutdown, reply)).await
    }

    /// Has one slot of servers that leave moved to one that stays, on behalf of the volume's owner; those that have none left
    /// have left. Gives how many slots are left, and which servers have not left.
    ///
    /// # Errors
    /// What the keeper says: [`Code::Busy`] if nothing could be moved at this moment.
    pub async fn leave(&self, servers: &[ServerIndex]) -> Result<(u32, Vec<ServerIndex>), Failure> {
        let request = Request::Leave { servers: servers.to_vec() };
        match self.core.ask_keeper(&self.owner(), &request).await? {
            Reply::Leaving { slots, servers } => Ok((slots, servers)),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// Has one slot moved to a server that has fewer than others, on behalf of the volume's owner. Gives how many are to move until
    /// all have as many, but for one.
    ///
    /// # Errors
    /// What the keeper says: [`Code::Busy`] if nothing could be moved at this moment.
    pub async fn balance(&self) -> Result<u32, Failure> {
        match self.core.ask_keeper(&self.owner(), &Request::Balance).await? {
            Reply::Balancing { slots } => Ok(slots),
            other => Err(unexpected(&Request::Balance, &other)),
        }
    }

    /// Fetches the map from a server that has not left.
    ///
    /// # Errors
    /// If that one does not answer.
    pub async fn look_for_map(&self) -> Result<(), Failure> {
        self.core.look_for_map().await
    }

    fn owner(&self) -> Identity {
        let map = self.map();
        Identity { uid: map.owner_uid, gid: map.owner_gid, groups: Vec::new() }
    }

    async fn each<T>(
        &self,
        who: &Identity,
        request: &Request,
        take: impl Fn(Reply) -> Result<T, Failure>,
    ) -> Vec<(ServerIndex, Result<T, Failure>)> {
        let answers = self.ask_all(who, request).await.into_iter();
        answers.map(|(server, answer)| (server, answer.and_then(&take))).collect()
    }

    async fn ask_all(&self, who: &Identity, request: &Request) -> Vec<(ServerIndex, Result<Reply, Failure>)> {
        let map = self.map();
        let ask = |server| async move { (server, self.core.ask_server(who, server, request).await) };
        let mut answers = join_all(map.members().map(ask)).await;
        // One that leaves meanwhile has nothing to say.
        let map = self.map();
        answers.retain(|(server, answer)| answer.is_ok() || !map.has_left(*server));
        answers
    }
}
