//! File data: reads and writes of one chunk, each under its shard's data lock. Chunk 0 lives with
//! the inode, so that a small write moves size and times in the same request.

use crate::chunks::state::backed::Lack;
use crate::sabotage::Sabotage;
use crate::shards::ShardCell;
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, Work};
use aze_io::slab::ReceiveBuffer;
use aze_meta::{Op, Stamp};
use aze_proto::fields::{Read, Write};
use aze_proto::frame::Header;
use aze_proto::place::Layout;
use aze_proto::{Code, Failure, Ino, MapEpoch, Reply, Request, ShardId, Spread};
use aze_store::StoreError;
use std::sync::Arc;

impl Server {
    /// The chunk's shard, which must be the header's, if nothing of the file was lost here.
    pub(crate) fn chunk_cell(
        &self,
        work: &Work,
        ino: Ino,
        layout: Layout,
        chunk: u64,
        born: MapEpoch,
    ) -> Attempt<&ShardCell> {
        let shard = layout.place(chunk).shard(self.config.shards);
        if shard != work.header.shard {
            let detail = format!("chunk {chunk} of inode {ino} is not on shard {}", work.header.shard);
            return Err(Failure::new(Code::Malformed, detail).into());
        }
        self.check_kept(ino, born)?;
        self.cell(shard)
    }

    /// Fails if a part of a file that was born in this epoch may have been lost here.
    pub(crate) fn check_kept(&self, ino: Ino, born: MapEpoch) -> Attempt<()> {
        if born < self.since() && !self.config.switches.is(Sabotage::SkipBornCheck) {
            let detail = format!("a part of inode {ino} was on {}, which has restarted empty", self.who());
            return Err(Failure::new(Code::Lost, detail).into());
        }
        Ok(())
    }

    pub(crate) fn data_stop(&self, error: StoreError, shard: ShardId, ino: Ino) -> Stop {
        match error {
            StoreError::MissedTruncation { .. } => Stop::Wait(Wait::Truncation(shard, ino)),
            StoreError::BeingRead => Stop::Wait(Wait::Readers),
            StoreError::Cold { chunk, units, .. } => Stop::Wait(Wait::Cold(shard, ino, chunk, units)),
            StoreError::NoSpace { .. } if self.persistence.is_some() => {
                Stop::Wait(Wait::Room(Failure::from(error).during(format!("inode {ino}, {}", self.who()))))
            }
            StoreError::NoSpace { .. } | StoreError::DiskFull { .. } if self.config.backing.is_some() => {
                Stop::Wait(Wait::Eviction(Failure::from(error).during(format!("inode {ino}, {}", self.who()))))
            }
            other => Stop::Fail(Failure::from(other).during(format!("inode {ino}, {}", self.who()))),
        }
    }

    /// Where the payload of a request shall go that is a write: see [`aze_rpc::Service::receive_buffer`].
    pub(crate) fn receive_buffer_for(
        &self,
        header: &Header,
        request: &Request,
        payload_bytes: usize,
    ) -> Option<ReceiveBuffer> {
        let Request::Write(Write { offset, .. }) = request else { return None };
        // Nothing is written to shards that are not here.
        self.shards.get(header.shard)?;
        self.store.receive_buffer(*offset, payload_bytes)
    }

    pub(crate) fn write(self: &Arc<Self>, work: &mut Work, write: &Write) -> Attempt<Output> {
        let &Write { ino, generation, born, layout, chunk, offset, ref sums } = write;
        let cell = self.chunk_cell(work, ino, layout, chunk, born)?;
        // What costs time comes before the lock: checking, and copying what needs no merging.
        let payload = std::mem::take(&mut work.payload);
        let payload_bytes = payload.len() as u64;
        let staged = self.store.stage(ino, chunk, offset, payload, sums);
        let mut staged = staged.map_err(|error| self.data_stop(error, cell.id, ino))?;
        let mut data = cell.data.lock();
        let lack = Lack { shard: cell.id, ino, generation, chunk: Some(chunk), changes: true, is_ahead: false };
        if let Err(stop) = self.filled(&data, lack) {
            work.payload = staged.into_payload();
            return Err(stop);
        }
        let at_home = write.is_beside_inode();
        if at_home {
            let names = cell.names.lock();
            let attr = &names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr;
            if u64::from(offset) + payload_bytes > attr.home_bytes() {
                return Err(Failure::new(Code::Malformed, "a write beyond the end of its chunk").into());
            }
        }
        // Beside the inode, the operation that changes the inode decides the request.
        let stamp = if at_home { Stamp::default() } else { work.stamp };
        if let Err(error) = data.put(&stamp, ino, generation, chunk, &mut staged) {
            drop(data);
            let stop = self.data_stop(error, cell.id, ino);
            if matches!(stop, Stop::Wait(_)) {
                // A request that waits must not keep frames that other requests may need.
                work.payload = staged.into_payload();
            }
            return Err(stop);
        }
        if self.config.switches.is(Sabotage::CallChangedACopy) {
            data.note_copy(ino, chunk);
        }
        self.keep_room();
        work.recorded = true;
        if !at_home {
            return Ok(Reply::Written { attr: None }.into());
        }
        // A write of nothing does not extend the file: write(2).
        let end = if payload_bytes == 0 { 0 } else { u64::from(offset) + payload_bytes };
        let mut names = cell.names.lock();
        let size = names.shard.inode(ino).map_or(0, |inode| inode.attr.size);
        let spread = Spread::sparse(end > 0 && u64::from(offset) > size);
        let wrote = Op::Wrote { ino, generation, end, spread };
        if end > 0 {
            self.drop_set_id(&mut names, ino, work);
        }
        Ok(names.shard.apply(&wrote, &work.stamp).reply?.into())
    }

    pub(crate) fn read(self: &Arc<Self>, work: &mut Work, read: &Read) -> Attempt<Output> {
        let Read { ino, generation, born, layout, chunk, offset, len } = *read;
        let cell = self.chunk_cell(work, ino, layout, chunk, born)?;
        let data = cell.data.lock();
        let is_ahead = len == 0;
        self.filled(&data, Lack { shard: cell.id, ino, generation, chunk: Some(chunk), changes: false, is_ahead })?;
        let mut size = None;
        if chunk == 0 && layout.is_beside(ino) {
            let names = cell.names.lock();
            let attr = &names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr;
            if attr.generation > generation {
                let refusal = aze_proto::Refusal::GenerationStale { generation: attr.generation };
                return Err(Failure::refused(refusal).into());
            }
            size = Some(attr.size);
        }
        let held = data.hold(ino, generation, chunk, offset, len);
        // Sending copies: without the lock. Writers leave held frames alone.
        drop(data);
        let mut held = held.map_err(|error| self.data_stop(error, cell.id, ino))?;
        if let Some(responder) = work.responder.take() {
            let reply = Reply::Data { start: held.start, sums: std::mem::take(&mut held.sums), size };
            responder.send_held(self.reply_context(), Ok(reply), &held.parts(), &held.frames());
        }
        Ok(Output::Sent)
    }
}
