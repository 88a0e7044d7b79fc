//! Room for a file: reserved, given back, and where data and holes begin; and how often its data have changed. Each request
//! concerns one shard: the client asks all that a range touches.

use crate::chunks::state::backed::Lack;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work};
use aze_proto::fields::{CountChanges, Punch, Reserve, Seek};
use aze_proto::limits::CHUNK_BITS_MAX;
use aze_proto::place::Layout;
use aze_proto::{Code, Failure, Generation, Ino, Reply, ShardId};
use aze_store::SeekFrom;
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
        if zero {
            self.check_punchable(cell.id, ino, generation)?;
        }
        let chunk_bits = self.check_home(ino, layout, chunk, chunk_bits)?;
        if len == 0 {
            // Only what came from the backing is to stay.
            if !self.config.switches.is(Sabotage::SkipKeep) {
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
        work.recorded = true;
        Ok(Reply::Done.into())
    }

    pub(crate) fn punch(self: &Arc<Self>, work: &mut Work, punch: &Punch) -> Attempt<Output> {
        let Punch { ino, generation, born, layout, chunk, start, end, chunk_bits } = *punch;
        let cell = self.chunk_cell(work, ino, layout, chunk, born)?;
        let mut data = cell.data.lock();
        // Under the lock under which chunks become copies of the backing.
        self.check_punchable(cell.id, ino, generation)?;
        let chunk_bits = self.check_home(ino, layout, chunk, chunk_bits)?;
        let done = data.punch(&work.stamp, ino, generation, start..end, chunk_bits);
        done.map_err(|error| self.data_stop(error, cell.id, ino))?;
        work.recorded = true;
        Ok(Reply::Done.into())
    }

    pub(crate) fn seek(&self, seek: &Seek) -> Attempt<Output> {
        let Seek { ino, generation, born, layout, offset, hole, chunk_bits } = *seek;
        self.check_kept(ino, born)?;
        if chunk_bits > CHUNK_BITS_MAX {
            return Err(Failure::new(Code::Malformed, "a chunk size that cannot be").into());
        }
        // What is still in the backing counts as data: a hole there is found only by reading it.
        let backed = self.length_in_backing(ino, generation)?;
        let whole = offset;
        if offset < backed && !hole {
            return Ok(Reply::SoughtIs { at: Some(offset) }.into());
        }
        let offset = offset.max(backed);
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
        if self.length_in_backing(ino, generation)? > backed {
            // A stage has made chunks copies meanwhile, which may have gone and are no holes.
            return self.seek(&Seek { offset: whole, ..*seek });
        }
        Ok(Reply::SoughtIs { at: nearest }.into())
    }

    /// Each shard is looked at under its own lock. A shard's number never goes back, so two equal sums mean that each
    /// of them was the same both times.
    pub(crate) fn count_changes(&self, count: &CountChanges) -> Attempt<Output> {
        let CountChanges { ino, generation, born, .. } = *count;
        self.check_kept(ino, born)?;
        let (mut wraps, mut changes) = (0u64, 0u64);
        for cell in self.shards_of_data(count) {
            let counted = cell.data.lock().count_changes(ino, generation);
            let counted = counted.map_err(|error| self.data_stop(error, cell.id, ino))?;
            wraps = wraps.wrapping_add(counted.wraps);
            changes = changes.wrapping_add(counted.changes);
        }
        Ok(Reply::ChangesAre { life: self.leases.life(), wraps, changes }.into())
    }

    /// How many bytes of a file, from its beginning on, were the backing's unless they were written since.
    fn length_in_backing(&self, ino: Ino, generation: Generation) -> Attempt<u64> {
        if !ino.is_backed() {
            return Ok(0);
        }
        let lack = Lack { shard: self.home(ino), ino, generation, chunk: None, changes: false, is_ahead: false };
        Ok(self.known_backing(lack)?.backing.length)
    }

    /// A hole in a file that came from the backing would look like a chunk that was not read yet.
    fn check_punchable(&self, shard: ShardId, ino: Ino, generation: Generation) -> Attempt<()> {
        if !ino.is_backed() {
            return Ok(());
        }
        let lack = Lack { shard, ino, generation, chunk: None, changes: true, is_ahead: false };
        if self.known_backing(lack)?.backing.length == 0 {
            return Ok(());
        }
        let detail =
            "holes cannot be punched into a file that came from the volume's backing: write zeros, or copy the file";
        Err(Failure::new(Code::Unsupported, detail).into())
    }

    /// The chunk size that was stated. Where the inode is here too, it must be there, and of that size.
    fn check_home(&self, ino: Ino, layout: Layout, chunk: u64, chunk_bits: u8) -> Attempt<u8> {
        let mut fits = chunk_bits <= CHUNK_BITS_MAX;
        if chunk == 0 && layout.is_beside(ino) {
            let names = self.cell(self.home(ino))?.names.lock();
            fits &= names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr.chunk_bits == chunk_bits;
        }
        if fits {
            Ok(chunk_bits)
        } else {
            Err(Failure::new(Code::Malformed, "another chunk size than the file's").into())
        }
    }
}
