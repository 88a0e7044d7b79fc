//! Questions to all servers of a volume.

use crate::client::{Client, unexpected};
use crate::names::done;
use aze_proto::message::{ServerActivity, ServerStatus};
use aze_proto::{Failure, Identity, Reply, Request};
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
        for answer in self.ask_all(&Identity::default(), &Request::StatFs).await {
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

    /// How each server of the map is, in the map's order.
    pub async fn status(&self) -> Vec<Result<ServerStatus, Failure>> {
        let answers = self.ask_all(&Identity::default(), &Request::Status).await.into_iter();
        let status = |reply| match reply {
            Reply::Status { status } => Ok(status),
            other => Err(unexpected(&Request::Status, &other)),
        };
        answers.map(|answer| answer.and_then(status)).collect()
    }

    /// What each server of the map has done so far, in the map's order.
    pub async fn activity(&self) -> Vec<Result<ServerActivity, Failure>> {
        let answers = self.ask_all(&Identity::default(), &Request::Activity).await.into_iter();
        let activity = |reply| match reply {
            Reply::ActivityIs { activity } => Ok(activity),
            other => Err(unexpected(&Request::Activity, &other)),
        };
        answers.map(|answer| answer.and_then(activity)).collect()
    }

    /// Has every server end, on behalf of the volume's owner; what each said, in the map's order.
    pub async fn shutdown_servers(&self) -> Vec<Result<(), Failure>> {
        let map = self.map();
        let owner = Identity { uid: map.owner_uid, gid: map.owner_gid, groups: Vec::new() };
        let answers = self.ask_all(&owner, &Request::Shutdown).await.into_iter();
        answers.map(|answer| answer.and_then(|reply| done(&Request::Shutdown, reply))).collect()
    }

    async fn ask_all(&self, who: &Identity, request: &Request) -> Vec<Result<Reply, Failure>> {
        join_all(self.map().indexes().map(|server| self.core.ask_server(who, server, request))).await
    }
}
