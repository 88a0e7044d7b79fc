//! Room that copies of the backing give up: chunks that were read from there and not changed since go when a server is short
//! of room, those first that were not used since the last look, and are read again when a request wants them.
//!
//! What may go the store knows, chunk by chunk ([`aze_store::ChunkShard::is_copy`]). No client reads chunks without a request, and what a
//! reader holds stays, so nothing has to be taken back from anybody.

use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::work::READERS_PAUSE;
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::piece_sums;
use aze_proto::{Code, Failure, Ino};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Copies begin to go when more of the capacity is in use, in sixteenths; not those that were used since the last look.
const HIGH_SIXTEENTHS: u64 = 15;

/// They go until no more than this is in use, in sixteenths. `aze stage in` stops there.
const LOW_SIXTEENTHS: u64 = 14;

/// Copies that are looked at under one hold of a shard's lock.
const LOOK_CHUNKS: usize = 64;

/// What became of a look for copies.
enum Look {
    Freed,
    /// Readers hold all that is left.
    Held,
    Nothing,
}

impl Server {
    fn sixteenths(&self, count: u64) -> u64 {
        self.store.capacity_bytes() / 16 * count
    }

    /// After room was taken: copies that were not used for a while go before there is none left. A few copies among much that
    /// stays are not looked for each time.
    pub(crate) fn evict_ahead(self: &Arc<Self>) {
        let is_worth_it = self.store.copies_bytes() > self.sixteenths(1) / 4;
        if is_worth_it && self.store.used_bytes() > self.sixteenths(HIGH_SIXTEENTHS) {
            // No request waits for it.
            drop(self.begin_to_evict(false));
        }
    }

    /// Waits until copies have gone; fails as told if there are none.
    pub(crate) async fn await_eviction(self: &Arc<Self>, deadline_ns: u64, full: Failure) -> Result<(), Failure> {
        if self.config.backing.is_none() {
            return Err(full);
        }
        let ended = self.begin_to_evict(true);
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.io.mono_ns()));
        match self.io.timeout(left, ended).await {
            Some(Ok(Ok(()))) if self.io.mono_ns() < deadline_ns => Ok(()),
            // The task that looked has ended without a word: the request tries again.
            Some(Err(_)) => Ok(()),
            _ => Err(full),
        }
    }

    fn begin_to_evict(self: &Arc<Self>, must: bool) -> futures_channel::oneshot::Receiver<Result<(), Failure>> {
        let (is_first, ended) = self.evictions.looks.join(must);
        if is_first {
            let server = self.clone();
            self.io.spawn(async move {
                let looked = server.evict(must).await;
                server.evictions.looks.end(&must, &looked);
            });
        }
        ended
    }

    /// Looks once for copies that were not used lately and, if there must be room, for any.
    async fn evict(self: &Arc<Self>, must: bool) -> Result<(), Failure> {
        let used = self.store.used_bytes();
        let mut goal = self.sixteenths(LOW_SIXTEENTHS);
        if must {
            // Even where memory is only cut up too small.
            goal = goal.min(used.saturating_sub(self.sixteenths(1)));
        }
        let mut look = self.evict_to(goal, false).await;
        if must && !matches!(look, Look::Freed) {
            look = self.evict_to(goal, true).await;
        }
        match look {
            Look::Freed => Ok(()),
            Look::Held => {
                self.io.sleep(READERS_PAUSE).await;
                Ok(())
            }
            Look::Nothing => Err(Failure::new(Code::NoSpace, format!("{} has no copies that may go", self.who()))),
        }
    }

    /// One round through all copies, from where the last one ended, until no more than `goal` is in use.
    async fn evict_to(&self, goal: u64, all: bool) -> Look {
        let (mut freed, mut held) = (0, 0);
        let (first, from) = self.evictions.hand();
        let cells: Vec<_> = self.shards.iter().map(|cell| cell.id).collect();
        let start = cells.partition_point(|id| *id < first);
        // The shard where it begins comes twice: its second part, and at the end its first.
        let round = cells[start..].iter().chain(&cells[..(start + 1).min(cells.len())]);
        for (index, id) in round.enumerate() {
            let Some(cell) = self.shards.get(*id) else { continue };
            let mut next = Some(if index == 0 && *id == first { from } else { (Ino(0), 0) });
            while let Some(from) = next {
                self.evictions.set_hand((*id, from));
                let wanted = self.store.used_bytes().saturating_sub(goal);
                if wanted == 0 {
                    return Look::Freed;
                }
                let evicted = {
                    let mut data = cell.data.lock();
                    let evicted = data.evict(from, LOOK_CHUNKS, wanted, all);
                    if self.config.switches.is(Sabotage::EvictToZeros) {
                        let zeros = [0; BLOCK_BYTES];
                        for &(ino, chunk) in &evicted.chunks {
                            let generation = data.generation_of(ino).unwrap_or_default();
                            let _ = data.write(ino, generation, chunk, 0, &zeros, &piece_sums(0, &zeros));
                        }
                    }
                    evicted
                };
                self.evictions.count(evicted.chunks.len(), evicted.freed_bytes);
                freed += evicted.freed_bytes;
                held += evicted.held;
                next = evicted.next;
            }
        }
        match (freed, held) {
            (0, 0) => Look::Nothing,
            (0, _) => Look::Held,
            _ => Look::Freed,
        }
    }

    /// Whether so many bytes more may be read before anybody uses them: what others have read does not go for that.
    pub(crate) fn check_room_ahead(&self, bytes: u64) -> Result<(), Failure> {
        let (used, being_read) = (self.store.used_bytes(), self.backed.being_read.load(Ordering::Relaxed));
        if used + being_read + bytes <= self.sixteenths(LOW_SIXTEENTHS) {
            return Ok(());
        }
        let capacity = self.store.capacity_bytes();
        let detail = format!(
            "{}: {used} of {capacity} bytes are in use: no more is read ahead, since what was read would have to go for it; \
             the rest is read when it is used",
            self.who()
        );
        Err(Failure::new(Code::NoSpace, detail))
    }
}
