//! Room for a file: reserved, given back, and where data and holes begin; and how often its data have changed. Each request
//! concerns one shard: the client asks all that a range touches.

use crate::chunks::state::backed::{Known, Lack, other_chunk_size};
use crate::sabotage::Sabotage;
use crate::shards::{LoggedChunks, ShardCell};
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, Work};
use aze_proto::fields::{CountChanges, Punch, Reserve, Seek};
use aze_proto::limits::{BLOCK_BYTES, CHUNK_BITS_MAX};
use aze_proto::place::Layout;
use aze_proto::sum::piece_sums;
use aze_proto::{Code, Failure, Ino, Reply};
use aze_store::{InChunk, SeekFrom};
use std::sync::Arc;

impl Server {
    pub(crate) fn reserve(self: &Arc<Self>, work: &mut Work, reserve: &Reserve) -> Attempt<Output> {
        let Reserve { ino, generation, born, layout, chunk, offset, len, zero, chunk_bits } = *reserve;
        let cell = self.chunk_cell(work, ino, layout, chunk, born)?;
        let mut data = cell.data.lock();
        self.filled(
            &data,
            Lack { shard: cell.id, ino, generation, chunk: Some(chunk), changes: true, is_ahead: false },
        )?;
        let chunk_bits = self.check_home(ino, layout, chunk, chunk_bits)?;
        if len == 0 {
            // Only what came from the backing is to stay.
            if !self.config.switches.is(Sabotage::SkipKeep) {
                if ino.is_backed() && !data.has(ino, chunk) {
                    // A stage that found no data here has not told this server of its origin, which has zeros for them.
                    let zeros = &[0; BLOCK_BYTES];
                    let done = data.write(ino, generation, chunk, 0, zeros, &piece_sums(0, zeros));
                    done.map_err(|error| self.data_stop(error, cell.id, ino))?;
                }
                data.keep(ino, chunk);
            }
            // A late request of an earlier stage must not make the chunk a copy again.
            data.touched(ino);
            data.decide(&work.stamp, Ok(Reply::Done));
            work.recorded = true;
            return Ok(Reply::Done.into());
        }
        let beyond = offset.checked_add(len).is_none_or(|end| u64::from(end) > 1 << chunk_bits);
        if beyond {
            return Err(Failure::new(Code::Malformed, "a reservation beyond the end of its chunk").into());
        }
        let (range, zero) = (offset..offset + len, zero.then_some(chunk_bits));
        let done = data.reserve(&work.stamp, ino, generation, chunk, range, zero);
        done.map_err(|error| self.data_stop(error, cell.id, ino))?;
        if zero.is_some() {
            self.publish_data_change(cell, ino);
        }
        work.recorded = true;
        Ok(Reply::Done.into())
    }

    pub(crate) fn punch(self: &Arc<Self>, work: &mut Work, punch: &Punch) -> Attempt<Output> {
        let Punch { ino, generation, born, layout, chunk, start, end, chunk_bits } = *punch;
        let cell = self.chunk_cell(work, ino, layout, chunk, born)?;
        let mut data = cell.data.lock();
        let chunk_bits = self.check_home(ino, layout, chunk, chunk_bits)?;
        if ino.is_backed() && start < end {
            // Under the lock under which chunks become copies of the backing.
            self.cover_backing(&mut data, punch, Lack::of_change(cell.id, ino, generation))?;
        }
        let done = data.punch(&work.stamp, ino, generation, start..end, chunk_bits);
        done.map_err(|error| self.data_stop(error, cell.id, ino))?;
        self.publish_data_change(cell, ino);
        work.recorded = true;
        Ok(Reply::Done.into())
    }

    /// Data of a file in this shard have become zeros; the client reports the time only afterwards. The lock of the shard's data is held.
    fn publish_data_change(&self, cell: &ShardCell, ino: Ino) {
        if self.home(ino) == cell.id {
            cell.names.lock().shard.published.data_changed(ino);
        }
    }

    /// Before a hole is made in a file that is in the backing: a chunk that is not here has to be, since it would be read from
    /// there otherwise. Where the hole takes all of it, it need not be read: a block of zeros will do.
    fn cover_backing(&self, data: &mut LoggedChunks, punch: &Punch, lack: Lack) -> Attempt<()> {
        let Punch { ino, generation, layout, start, end, chunk_bits, .. } = *punch;
        let known = self.known_backing(lack)?;
        known.check_chunk_bits(chunk_bits)?;
        let end = end.min(known.backing.length);
        let Some(ahead) = layout.ahead(start >> chunk_bits, lack.shard, self.config.shards).filter(|_| start < end)
        else {
            return Ok(());
        };
        let own = || (start >> chunk_bits).saturating_add(ahead)..=(end - 1) >> chunk_bits;
        let is_whole = |chunk: u64| {
            let from = chunk << chunk_bits;
            start <= from && end >= from + known.bytes_of(chunk) as u64
        };
        let step = usize::try_from(layout.step()).unwrap_or(usize::MAX);
        let is_partial = |chunk: &u64| !is_whole(*chunk) && !data.has(ino, *chunk);
        // At most the first and the last.
        if let Some(chunk) = own().step_by(step).find(is_partial) {
            return Err(Stop::Wait(Wait::Backing(Lack { chunk: Some(chunk), ..lack })));
        }
        if self.config.switches.is(Sabotage::PunchNothing) {
            return Ok(());
        }
        for chunk in own().step_by(step) {
            if !data.has(ino, chunk) {
                let zeros = &[0; BLOCK_BYTES][..known.bytes_of(chunk).min(BLOCK_BYTES)];
                let done = data.write(ino, generation, chunk, 0, zeros, &piece_sums(0, zeros));
                done.map_err(|error| self.data_stop(error, lack.shard, ino))?;
            }
        }
        Ok(())
    }

    pub(crate) fn seek(&self, work: &Work, seek: &Seek) -> Attempt<Output> {
        let Seek { ino, generation, born, offset, hole, chunk_bits, .. } = *seek;
        self.check_kept(ino, born)?;
        if chunk_bits > CHUNK_BITS_MAX {
            return Err(Failure::new(Code::Malformed, "a chunk size that cannot be").into());
        }
        if !ino.is_backed() {
            return Ok(Reply::SoughtIs { at: self.seek_stored(seek, offset)? }.into());
        }
        let lack = Lack { changes: false, ..Lack::of_change(self.home(ino), ino, generation) };
        let known = self.known_backing(lack)?;
        known.check_chunk_bits(chunk_bits)?;
        let at = match hole {
            true => self.seek_backed(work, seek, &known, lack, None)?,
            false => {
                let stored = self.seek_stored(seek, offset)?;
                self.seek_backed(work, seek, &known, lack, stored)?
            }
        };
        let now = self.known_backing(lack)?;
        if (now.backing.origin, now.backing.length) != (known.backing.origin, known.backing.length) {
            // A stage has made chunks copies meanwhile, which may have gone and are no holes.
            return self.seek(work, seek);
        }
        Ok(Reply::SoughtIs { at }.into())
    }

    /// Looks through the chunks that are here, and takes others for holes.
    fn seek_stored(&self, seek: &Seek, offset: u64) -> Attempt<Option<u64>> {
        let Seek { ino, generation, layout, hole, chunk_bits, .. } = *seek;
        let (begins, step) = (offset >> chunk_bits, layout.step());
        let mut nearest: Option<u64> = None;
        for cell in self.shards.iter() {
            // The first chunk that belongs to this shard.
            let Some(ahead) = layout.ahead(begins, cell.id, self.config.shards) else { continue };
            let chunk = begins.saturating_add(ahead);
            let within = if ahead == 0 { (offset - (begins << chunk_bits)) as u32 } else { 0 };
            if ahead > 0 && nearest.is_some_and(|at| at >> chunk_bits < chunk) {
                continue;
            }
            let from = SeekFrom { chunk, offset: within, step, chunk_bits };
            let sought = cell.data.lock().seek(ino, generation, from, hole);
            let at = sought.map_err(|error| self.data_stop(error, cell.id, ino))?;
            nearest = nearest.into_iter().chain(at).min();
        }
        Ok(nearest)
    }

    /// The same of a file that is in the backing, where chunks that are not here are as they are there. Data were found in
    /// `stored`: no chunk that was here before that had any. One that has come since is looked at again.
    fn seek_backed(
        &self,
        work: &Work,
        seek: &Seek,
        known: &Known,
        lack: Lack,
        stored: Option<u64>,
    ) -> Attempt<Option<u64>> {
        let Seek { ino, generation, layout, offset, hole, chunk_bits, .. } = *seek;
        let (length, mut at) = (known.backing.length, offset);
        while at < length && stored.is_none_or(|stored| at < stored) {
            let chunk = at >> chunk_bits;
            let next = (chunk + 1) << chunk_bits;
            let shard = layout.place(chunk).shard(self.config.shards);
            let Some(cell) = self.shards.get(shard) else {
                at = next;
                continue;
            };
            let from = SeekFrom { chunk, offset: (at - (chunk << chunk_bits)) as u32, step: layout.step(), chunk_bits };
            let found = cell.data.lock().look_in_chunk(ino, generation, from, hole);
            match found.map_err(|error| self.data_stop(error, shard, ino))? {
                InChunk::At(found) => return Ok(Some(found)),
                InChunk::Nothing => at = next,
                InChunk::NotStored if self.config.switches.is(Sabotage::UnreadAreHoles) => match hole {
                    true => return Ok(Some(at)),
                    false => at = next,
                },
                InChunk::NotStored => match work.runs.at(&known.backing, at) {
                    None => return Err(Stop::Wait(Wait::Run(lack, at))),
                    Some((true, _)) if !hole => return Ok(Some(at)),
                    Some((false, _)) if hole => return Ok(Some(at)),
                    Some((true, end)) => at = end.min(next),
                    Some((false, end)) => at = end,
                },
            }
        }
        match hole {
            true => self.seek_stored(seek, at),
            false => Ok(stored),
        }
    }

    /// Each shard is looked at under its own lock. A shard's number never goes back, so two equal sums mean that each
    /// of them was the same both times.
    pub(crate) fn count_changes(&self, count: &CountChanges) -> Attempt<Output> {
        let CountChanges { ino, generation, born, .. } = *count;
        self.check_kept(ino, born)?;
        let (mut wraps, mut changes) = (0u64, 0u64);
        if self.config.switches.is(Sabotage::CountNoChanges) {
            return Ok(Reply::ChangesAre { life: self.leases.life(), wraps, changes }.into());
        }
        for cell in self.shards_of_data(count) {
            let counted = cell.data.lock().count_changes(ino, generation);
            let counted = counted.map_err(|error| self.data_stop(error, cell.id, ino))?;
            wraps = wraps.wrapping_add(counted.wraps);
            changes = changes.wrapping_add(counted.changes);
        }
        Ok(Reply::ChangesAre { life: self.leases.life(), wraps, changes }.into())
    }

    /// The chunk size that was stated. Where the inode is here too, it must be there, and of that size.
    fn check_home(&self, ino: Ino, layout: Layout, chunk: u64, chunk_bits: u8) -> Attempt<u8> {
        let mut fits = chunk_bits <= CHUNK_BITS_MAX;
        if chunk == 0 && layout.is_beside(ino) {
            let names = self.cell(self.home(ino))?.names.lock();
            fits &= names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr.chunk_bits == chunk_bits;
        }
        if fits { Ok(chunk_bits) } else { Err(other_chunk_size().into()) }
    }
}
