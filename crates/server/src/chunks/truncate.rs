//! Truncation: the home raises the file's generation, every server that may hold data beyond the
//! new end truncates, then the answer goes out with the new generation. A server that sees a newer
//! generation than it knows asks the home before it serves, so a missed truncation shows no old bytes.

use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, Work, then};
use aze_meta::access;
use aze_meta::{Op, Stamp};
use aze_proto::{Attr, Code, Failure, Generation, Ino, Reply, Request, ServerIndex, ShardId};
use std::sync::Arc;

impl Server {
    pub(crate) fn truncate(self: &Arc<Self>, work: &mut Work, ino: Ino, size: u64, opened: bool) -> Attempt<Output> {
        let cell = self.cell(self.home(ino))?;
        // Declared before the locks: giving it back takes them.
        let turn = work.turn.take();
        let mut data = cell.data.lock();
        let mut names = cell.names.lock();
        if turn.is_none() && names.turns.contains_key(&ino) {
            return Err(Stop::Wait(Wait::Turn(ino)));
        }
        self.unfrozen(&names, ino)?;
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        access::check_truncate(&work.identity, inode, opened)?;
        let before = inode.attr.clone();
        self.drop_set_id(&mut names, ino, work);
        work.recorded = !before.spread.is_wide();
        let stamp = if before.spread.is_wide() { self.own_stamp(&work.stamp) } else { work.stamp };
        let reply = names.shard.apply(&Op::Truncate { ino, size }, &stamp).reply?;
        let Reply::Attributes { attr } = &reply else {
            return Err(Failure::new(Code::Internal, "Truncate gave no attributes").into());
        };
        data.truncate(ino, attr.generation, size, attr.chunk_bits);
        if !before.spread.is_wide() {
            self.truncate_done(&mut names, ino, attr.generation);
            return Ok(reply.into());
        }
        let attr = attr.clone();
        drop(names);
        drop(data);
        let server = self.clone();
        then(async move {
            server.truncate_data(&attr, size).await?;
            Ok(Reply::Attributes { attr })
        })
    }

    fn truncate_done(&self, names: &mut crate::shards::Names, ino: Ino, generation: Generation) {
        let stamp = self.own_stamp(&Stamp::default());
        // A file that is deleted meanwhile needs no record of its truncations.
        let _ = names.shard.apply(&Op::TruncateDone { ino, generation }, &stamp).reply;
    }

    /// The servers that may have data of a file elsewhere than beside its inode.
    pub(crate) fn data_servers(&self, attr: &Attr) -> Vec<ServerIndex> {
        let mut attr = attr.clone();
        if self.config.switches.is(Sabotage::ShortReach) {
            attr.spread = attr.spread.with_reach(attr.spread.reach().min(2).saturating_sub(1));
        }
        self.map().data_servers(&attr)
    }

    /// Tells every server that may have data. One that does not answer is told in the background, and until then asks before it serves the
    /// file. It makes the truncation fail, but not half, unless its process has ended.
    pub(crate) async fn truncate_data(self: &Arc<Self>, attr: &Attr, size: u64) -> Result<(), Failure> {
        if self.config.switches.is(Sabotage::SkipTruncation) {
            return Ok(());
        }
        let truncation = Request::TruncateData {
            ino: attr.ino,
            generation: attr.generation,
            length: size,
            chunk_bits: attr.chunk_bits,
        };
        let (mut silent, mut has_all) = (None, true);
        let mut answers;
        loop {
            let epoch = self.map_epoch_now();
            answers = self.ask_each(&self.data_servers(attr), &truncation).await;
            // Data may have moved to a server that was not asked.
            if self.map_epoch_now() == epoch || self.is_stopping() {
                break;
            }
        }
        for (server, answer) in answers {
            if let Err(failure) = answer {
                has_all = false;
                if !self.map().is_gone(server) {
                    silent = Some(failure.during(format!("truncating inode {} on server {server}", attr.ino)));
                }
            }
        }
        if !has_all {
            let (ino, generation) = (attr.ino, attr.generation);
            self.persist_to_data(attr.clone(), truncation, move |server| {
                // Until then the slot of the file does not move. In directories the next start looks after it.
                if let Some(cell) = server.shards.home(ino).filter(|_| server.persistence.is_none()) {
                    server.truncate_done(&mut cell.names.lock(), ino, generation);
                }
            });
        }
        match silent {
            Some(failure) => Err(failure),
            None => {
                if let Some(cell) = self.shards.home(attr.ino).filter(|_| has_all) {
                    self.truncate_done(&mut cell.names.lock(), attr.ino, attr.generation);
                }
                Ok(())
            }
        }
    }

    /// Truncates what this server holds of a file. A shard that has not seen the generation before may
    /// have missed a truncation that went deeper: it asks the home, which knows them all.
    pub(crate) fn truncate_here(
        self: &Arc<Self>,
        ino: Ino,
        generation: Generation,
        length: u64,
        chunk_bits: u8,
    ) -> Attempt<Output> {
        let mut behind = Vec::new();
        for cell in self.shards.iter() {
            let mut data = cell.data.lock();
            if data.generation_of(ino).is_some_and(|have| have.0 + 1 < generation.0) {
                behind.push(cell.id);
            } else {
                data.truncate(ino, generation, length, chunk_bits);
            }
        }
        if behind.is_empty() {
            return Ok(Reply::Done.into());
        }
        let server = self.clone();
        then(async move {
            for shard in behind {
                server.catch_up_with_truncations(shard, ino).await?;
            }
            Ok(Reply::Done)
        })
    }

    /// At the home: the truncations that a server at generation `have` may have missed.
    pub(crate) fn truncate_query(&self, ino: Ino, have: Generation) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        let length = inode.truncated_since(have);
        Ok(Reply::TruncateIs { generation: inode.attr.generation, length, chunk_bits: inode.attr.chunk_bits }.into())
    }

    /// Before data are served in a generation newer than known here: ask the home for the truncations.
    pub(crate) async fn catch_up_with_truncations(self: &Arc<Self>, shard: ShardId, ino: Ino) -> Result<(), Failure> {
        let have = self.shards.get(shard).and_then(|cell| cell.data.lock().generation_of(ino)).unwrap_or(Generation(0));
        match self.ask_shard(self.home(ino), Request::TruncateQuery { ino, have }).await? {
            Reply::TruncateIs { generation, length, chunk_bits } => {
                if let Some(cell) = self.shards.get(shard) {
                    cell.data.lock().truncate(ino, generation, length, chunk_bits);
                }
                Ok(())
            }
            _ => Err(Failure::new(Code::Malformed, "TruncateQuery was answered with something else")),
        }
    }
}
