//! The questions of a check, step by step to their end.

use super::Check;
use aze_proto::check::{CHECK_INODES_MAX, CheckedEntry, CheckedInode, ChunkPlace, DamagedData, DataPlace, EntryPlace};
use aze_proto::{Failure, Ino, Reply, Request, ServerIndex, ShardId};
use futures_util::future::try_join_all;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a server says of some of its data.
pub(super) struct DataStep {
    pub(super) bytes: u64,
    pub(super) damaged: Vec<DamagedData>,
    pub(super) strays: Vec<ChunkPlace>,
    pub(super) next: Option<DataPlace>,
}

impl Check<'_> {
    async fn ask(&self, server: ServerIndex, request: Request) -> Result<Reply, Failure> {
        let host = self.map.server(server).map_or("an unknown node", |info| &info.host);
        let asked = self.core.ask_planned(self.who, &self.map, server, &request).await;
        asked.map_err(|failure| failure.during(format!("server {server} on {host}")))
    }

    /// The inodes of a server with homes in a range.
    pub(super) async fn inodes(
        &self,
        server: ServerIndex,
        homes: Range<u32>,
        directories: bool,
    ) -> Result<Vec<CheckedInode>, Failure> {
        let mut all = Vec::new();
        let shards = self.map.shards();
        let place = |ino: Ino| (ino.home(shards), ino.issue());
        let mut from = Ino::least_of(ShardId(homes.start), shards);
        loop {
            let request = Request::CheckInodes { from, end_home: homes.end, directories, only: Vec::new() };
            match self.ask(server, request).await? {
                Reply::InodesChecked { inodes, next } => {
                    all.extend(inodes);
                    match next {
                        None => return Ok(all),
                        Some(next) if place(next) > place(from) => from = next,
                        Some(_) => return Err(self.strange(server, "CheckInodes")),
                    }
                }
                _ => return Err(self.strange(server, "CheckInodes")),
            }
        }
    }

    /// Those of some inodes that are there.
    pub(super) async fn those(&self, inos: &[Ino]) -> Result<Vec<CheckedInode>, Failure> {
        let mut by_home: BTreeMap<ServerIndex, Vec<Ino>> = BTreeMap::new();
        for ino in inos {
            if let Some(home) = self.map.home_of(*ino) {
                by_home.entry(home).or_default().push(*ino);
            }
        }
        let some = by_home.iter().flat_map(|(home, inos)| inos.chunks(CHECK_INODES_MAX).map(|some| (*home, some)));
        let asked = some.map(|(home, only)| async move {
            let request = Request::CheckInodes { from: Ino(0), end_home: 0, directories: false, only: only.to_vec() };
            match self.ask(home, request).await? {
                Reply::InodesChecked { inodes, .. } => Ok(inodes),
                _ => Err(self.strange(home, "CheckInodes")),
            }
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    /// The names of a server that lead to inodes with homes in a range, or to some that are singled out; and
    /// those of these with whose names something is under way.
    pub(super) async fn entries(
        &self,
        server: ServerIndex,
        homes: Range<u32>,
        only: &[Ino],
    ) -> Result<(Vec<CheckedEntry>, Vec<Ino>), Failure> {
        let (mut all, mut moving) = (Vec::new(), Vec::new());
        let mut from = EntryPlace::default();
        loop {
            let (first_home, end_home) = (homes.start, homes.end);
            let request = Request::CheckEntries { from: from.clone(), first_home, end_home, only: only.to_vec() };
            match self.ask(server, request).await? {
                Reply::EntriesChecked { entries, under_way, next } => {
                    all.extend(entries);
                    moving.extend(under_way);
                    match next {
                        None => return Ok((all, moving)),
                        Some(next) if next > from => from = next,
                        Some(_) => return Err(self.strange(server, "CheckEntries")),
                    }
                }
                _ => return Err(self.strange(server, "CheckEntries")),
            }
        }
    }

    /// One step through a server's data, or one chunk.
    pub(super) async fn data(
        &self,
        server: ServerIndex,
        from: DataPlace,
        only: Option<ChunkPlace>,
    ) -> Result<DataStep, Failure> {
        match self.ask(server, Request::CheckData { from, only }).await? {
            Reply::DataChecked { bytes, damaged, strays, next } if next.is_none_or(|next| next > from) => {
                Ok(DataStep { bytes, damaged, strays, next })
            }
            _ => Err(self.strange(server, "CheckData")),
        }
    }

    /// From now on all servers note what happens to these inodes.
    pub(super) async fn begin_watch(&mut self, inos: &[Ino]) -> Result<(), Failure> {
        self.watches += 1;
        let (this, number) = (&*self, self.watches);
        let begun = this.map.members().map(|server| async move {
            match this.ask(server, Request::CheckWatch { number, begin: Some(inos.to_vec()) }).await? {
                Reply::Done => Ok(()),
                _ => Err(this.strange(server, "CheckWatch")),
            }
        });
        try_join_all(begun).await.map(drop)
    }

    /// To which of them something has happened since.
    pub(super) async fn end_watch(&self) -> Result<Vec<Ino>, Failure> {
        let number = self.watches;
        let told = self.map.members().map(|server| async move {
            match self.ask(server, Request::CheckWatch { number, begin: None }).await? {
                Reply::WatchTold { changed } => Ok(changed),
                _ => Err(self.strange(server, "CheckWatch")),
            }
        });
        Ok(try_join_all(told).await?.into_iter().flatten().collect())
    }
}
