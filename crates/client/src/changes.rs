//! Whether a file's data have changed between two moments, as its servers know it.
//!
//! Times do not tell that: a write beyond the first chunk reports its time now and then only, and two changes at one home
//! may leave one change time. The servers count instead, each for its own shards.

use crate::client::unexpected;
use crate::data::{in_window, is_stale};
use crate::file::File;
use crate::route::is_replanned;
use aze_proto::fields::CountChanges;
use aze_proto::{Attr, Failure, Generation, Reply, Request, ServerChanges, ServerIndex, ShardMap};

/// Servers asked at the same time.
const REQUESTS_MAX: usize = 32;

/// How often the data of a file had changed, on each server that may have some.
///
/// If two of them are equal, one asked for after the other was answered, then nothing of the file's data has changed from
/// the last answer to the first on to the first question of the second: no byte was written, cut off or made a hole, on
/// behalf of any client, whether its caller was told so or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCounts {
    generation: Generation,
    /// Number of chunks that may have data: a write beyond them makes it grow first.
    chunks: u64,
    /// How often slots have changed their servers: counts of before cannot be compared.
    placements: u64,
    /// Sorted by server.
    servers: Vec<(ServerIndex, Count)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Count {
    life: u64,
    wraps: u64,
    changes: u64,
}

impl ChangeCounts {
    /// All of it as numbers, which are equal if and only if the counts are.
    pub fn numbers(&self) -> Vec<u64> {
        let of = |(server, count): &(ServerIndex, Count)| [u64::from(server.0), count.life, count.wraps, count.changes];
        [u64::from(self.generation.0), self.chunks, self.placements]
            .into_iter()
            .chain(self.servers.iter().flat_map(of))
            .collect()
    }
}

impl ChangeCounts {
    /// The counts that have these numbers.
    pub fn of_numbers(numbers: &[u64]) -> Option<ChangeCounts> {
        let [generation, chunks, placements, servers @ ..] = numbers else { return None };
        let (servers, []) = servers.as_chunks() else { return None };
        let of = |&[server, life, wraps, changes]: &[u64; 4]| {
            Some((ServerIndex(u16::try_from(server).ok()?), Count { life, wraps, changes }))
        };
        let servers = servers.iter().map(of).collect::<Option<Vec<_>>>()?;
        let generation = Generation(u32::try_from(*generation).ok()?);
        Some(ChangeCounts { generation, chunks: *chunks, placements: *placements, servers })
    }

    /// The generation in which it was counted, the number of chunks, and the counts, by server.
    pub(crate) fn parts(&self) -> (Generation, u64, Vec<ServerChanges>) {
        let of = |&(server, Count { life, wraps, changes }): &(ServerIndex, Count)| ServerChanges {
            server,
            life,
            wraps,
            changes,
        };
        (self.generation, self.chunks, self.servers.iter().map(of).collect())
    }
}

impl File {
    /// How often the file's data have changed so far.
    ///
    /// # Errors
    /// [`Code::Lost`](aze_proto::Code::Lost) if a part of the data was lost; those of every request.
    pub async fn count_changes(&self) -> Result<ChangeCounts, Failure> {
        self.attr_and_changes().await.map(|(_, counts)| counts)
    }

    /// The file's attributes, with writes of this client, and how often its data have changed: the home has answered for the
    /// attributes before any server was asked for its count.
    ///
    /// # Errors
    /// As [`File::count_changes`].
    pub async fn attr_and_changes(&self) -> Result<(Attr, ChangeCounts), Failure> {
        self.core.flush(&self.who, &self.inode).await?;
        let until = self.core.patience();
        loop {
            match self.count_changes_once().await {
                Err(failure) if is_stale(&failure) || is_replanned(&failure) => {
                    until.check(&self.core, &failure, &Request::GetAttr { ino: self.ino(), exact: false })?;
                }
                counted => return counted,
            }
        }
    }

    async fn count_changes_once(&self) -> Result<(Attr, ChangeCounts), Failure> {
        let attr = self.refresh().await?;
        let chunks = attr.spread.chunks().max(1);
        let map = self.core.routes.read().map.clone();
        let mut asked = map.data_servers(&attr);
        if asked.is_empty() {
            asked.extend(map.server_of(map.chunk_shard(&attr, 0)));
        }
        let mut servers = Vec::with_capacity(asked.len());
        let requests = asked.into_iter().map(|server| self.ask_count(&attr, &map, server, chunks));
        in_window(REQUESTS_MAX, requests, |counted| servers.push(counted)).await?;
        servers.sort_unstable();
        let placements = map.slots.iter().map(|(_, slot)| u64::from(slot.configuration.0)).sum();
        let counts = ChangeCounts { generation: attr.generation, chunks, placements, servers };
        Ok((attr, counts))
    }

    async fn ask_count(
        &self,
        attr: &Attr,
        map: &ShardMap,
        server: ServerIndex,
        chunks: u64,
    ) -> Result<(ServerIndex, Count), Failure> {
        let Attr { ino, generation, born, layout, .. } = *attr;
        let request = Request::CountChanges(CountChanges { ino, generation, born, layout, chunks });
        match self.core.ask_planned(&self.who, map, server, &request).await? {
            Reply::ChangesAre { life, wraps, changes } => Ok((server, Count { life, wraps, changes })),
            other => Err(unexpected(&request, &other)),
        }
    }
}
