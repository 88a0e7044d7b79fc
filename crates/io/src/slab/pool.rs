//! Which places of the region are free.
//!
//! It alone knows how bases are cut into pieces and merge again. It touches no byte of the
//! region: a place is a number.
//!
//! Whole bases lie in one pool behind one lock. Cut bases belong to one of several shards,
//! each with a lock of its own and a few whole bases at hand, and threads prefer different
//! shards. No two locks are held at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::sync::Mutex;

use super::FrameClass;

/// Locks that threads spread over when they allocate pieces: about one for each core of a
/// large node, few enough that the cut bases they keep (one or two each) do not matter.
const SHARDS: usize = 16;

/// Whole bases that a shard keeps at hand, so that threads seldom meet at the pool's lock.
const SPARES_MAX: usize = 4;

/// Ends a list.
const NONE: u32 = u32::MAX;

/// A base, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the base.
    pub(super) base: u32,
    /// Number of the piece in it.
    pub(super) piece: u8,
    /// The base was never given out before.
    pub(super) is_fresh: bool,
}

pub(super) struct Pool {
    whole: Mutex<Whole>,
    shards: [Shard; SHARDS],
    /// One for each base. Used only while the base is cut, under its shard's lock, which also
    /// orders the accesses; atomic because shards own bases next to each other.
    /// Zeros at first, from pages that cost nothing until a base near is cut.
    cuts: Box<[Cut]>,
    /// Bases from this one on are not given out, nor kept when they come back.
    limit: AtomicU32,
}

struct Whole {
    /// Free bases that were used before, the latest last. Has room for all from the beginning.
    recycled: Vec<u32>,
    /// The first base that was never used.
    fresh: u32,
}

/// On cache lines of its own (two, since processors fetch pairs).
#[repr(align(128))]
struct Shard {
    bases: Mutex<Bases>,
    /// Bytes allocated less bytes freed by the threads that prefer this shard, modulo 2^64:
    /// what one allocates another may free. Only the sum over all shards means something.
    used_bytes: AtomicU64,
}

struct Bases {
    /// The first bases of the lists of cut bases with free pieces: of 4 KiB, of 16 KiB. A base
    /// with a piece just freed is first, its memory being the warmest.
    first: [u32; 2],
    /// Whole bases, the latest freed last.
    spares: Vec<u32>,
}

struct Cut {
    /// Neighbours in the list.
    before: AtomicU32,
    after: AtomicU32,
    /// One bit for each free piece.
    free: AtomicU16,
    /// The piece freed last.
    latest: AtomicU8,
    shard: AtomicU8,
}

thread_local! {
    static SHARD: Cell<usize> = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        Cell::new(THREADS.fetch_add(1, Relaxed) % SHARDS)
    };
}

/// The list of a class, and the free bits of a base of it with no piece in use.
fn cut_of(class: FrameClass) -> Option<(usize, u16)> {
    match class {
        FrameClass::K4 => Some((0, 0xffff)),
        FrameClass::K16 => Some((1, 0x000f)),
        FrameClass::K64 => None,
    }
}

impl Pool {
    pub(super) fn new(bases: u32) -> Self {
        let cuts = Box::<[Cut]>::new_zeroed_slice(bases as usize);
        Pool {
            whole: Mutex::new(Whole { recycled: Vec::with_capacity(bases as usize), fresh: 0 }),
            shards: std::array::from_fn(|_| Shard {
                bases: Mutex::new(Bases { first: [NONE; 2], spares: Vec::with_capacity(SPARES_MAX) }),
                used_bytes: AtomicU64::new(0),
            }),
            // SAFETY: a `Cut` is made of atomic integers, for which all-zero bytes are valid.
            cuts: unsafe { cuts.assume_init() },
            limit: AtomicU32::new(bases),
        }
    }

    /// From now on only the first `bases` are given out; others are gone once they are free.
    pub(super) fn limit(&self, bases: u32) {
        self.limit.store(bases, Relaxed);
        self.whole.lock().recycled.retain(|base| *base < bases);
        for shard in &self.shards {
            shard.bases.lock().spares.retain(|base| *base < bases);
        }
    }

    /// Exact while no thread allocates or frees.
    pub(super) fn used_bytes(&self) -> u64 {
        let sum = self.shards.iter().fold(0u64, |sum, shard| sum.wrapping_add(shard.used_bytes.load(Relaxed)));
        // A frame that moves between threads during the walk may be missed on one side.
        if sum.cast_signed() < 0 { 0 } else { sum }
    }

    pub(super) fn allocate(&self, class: FrameClass) -> Option<Place> {
        let own = SHARD.get();
        let place = match cut_of(class) {
            None => self.allocate_base(own),
            Some((list, whole)) => self.allocate_piece(own, list, whole),
        }?;
        self.shards[own].used_bytes.fetch_add(class.bytes() as u64, Relaxed);
        Some(place)
    }

    pub(super) fn free(&self, place: Place, class: FrameClass) {
        let own = SHARD.get();
        // Counted first: once the place can be had again, it may be counted again. Wraps around.
        self.shards[own].used_bytes.fetch_sub(class.bytes() as u64, Relaxed);
        let is_base_free = match cut_of(class) {
            None => true,
            Some((list, whole)) => self.free_piece(place, list, whole),
        };
        if is_base_free {
            self.free_base(own, place.base);
        }
    }

    /// Takes a base used before, or else the first fresh one.
    fn allocate_base(&self, own: usize) -> Option<Place> {
        let recycled = self
            .take_spare(own)
            .or_else(|| self.whole.lock().recycled.pop())
            .or_else(|| (1..SHARDS).find_map(|other| self.take_spare((own + other) % SHARDS)));
        if let Some(base) = recycled {
            return Some(Place { base, piece: 0, is_fresh: false });
        }
        let mut whole = self.whole.lock();
        let base = whole.fresh;
        if base >= self.limit.load(Relaxed) {
            return None;
        }
        whole.fresh += 1;
        Some(Place { base, piece: 0, is_fresh: true })
    }

    fn take_spare(&self, shard: usize) -> Option<u32> {
        self.shards[shard].bases.lock().spares.pop()
    }

    fn free_base(&self, own: usize, base: u32) {
        if base >= self.limit.load(Relaxed) {
            return;
        }
        let mut bases = self.shards[own].bases.lock();
        if bases.spares.len() < SPARES_MAX {
            bases.spares.push(base);
            return;
        }
        // The one freed longest ago goes to the pool, where others find it.
        let oldest = bases.spares.remove(0);
        bases.spares.push(base);
        drop(bases);
        self.whole.lock().recycled.push(oldest);
    }

    fn allocate_piece(&self, own: usize, list: usize, whole: u16) -> Option<Place> {
        if let Some(place) = self.take_piece(own, list) {
            return Some(place);
        }
        if let Some(base) = self.allocate_base(own) {
            let cut = &self.cuts[base.base as usize];
            let mut shard = self.shards[own].bases.lock();
            cut.free.store(whole & !1, Relaxed);
            cut.latest.store(1, Relaxed);
            cut.shard.store(u8::try_from(own).expect("few shards"), Relaxed);
            self.link(&mut shard, list, base.base);
            return Some(base);
        }
        (1..SHARDS).find_map(|other| self.take_piece((own + other) % SHARDS, list))
    }

    /// Takes a piece of the first base in the list, preferring the one freed last.
    fn take_piece(&self, shard: usize, list: usize) -> Option<Place> {
        let mut shard = self.shards[shard].bases.lock();
        let base = shard.first[list];
        if base == NONE {
            return None;
        }
        let cut = &self.cuts[base as usize];
        let free = cut.free.load(Relaxed);
        let latest = cut.latest.load(Relaxed);
        let piece = if free >> latest & 1 == 1 { latest } else { free.trailing_zeros() as u8 };
        assert!(free >> piece & 1 == 1, "a base in the list has a free piece");
        let rest = free & !(1 << piece);
        cut.free.store(rest, Relaxed);
        if rest == 0 {
            self.unlink(&mut shard, list, base);
        }
        Some(Place { base, piece, is_fresh: false })
    }

    /// Gives a piece back to its base; `true` if that is whole again, and then in no list.
    fn free_piece(&self, place: Place, list: usize, whole: u16) -> bool {
        let cut = &self.cuts[place.base as usize];
        // Does not change while a piece of the base is in use, as this one was until now.
        let mut shard = self.shards[usize::from(cut.shard.load(Relaxed))].bases.lock();
        let before = cut.free.load(Relaxed);
        assert!(before >> place.piece & 1 == 0, "a piece is freed once");
        let free = before | 1 << place.piece;
        cut.free.store(free, Relaxed);
        cut.latest.store(place.piece, Relaxed);
        if before != 0 {
            self.unlink(&mut shard, list, place.base);
        }
        if free == whole {
            return true;
        }
        self.link(&mut shard, list, place.base);
        false
    }

    fn link(&self, shard: &mut Bases, list: usize, base: u32) {
        let first = std::mem::replace(&mut shard.first[list], base);
        let cut = &self.cuts[base as usize];
        cut.before.store(NONE, Relaxed);
        cut.after.store(first, Relaxed);
        if first != NONE {
            self.cuts[first as usize].before.store(base, Relaxed);
        }
    }

    fn unlink(&self, shard: &mut Bases, list: usize, base: u32) {
        let cut = &self.cuts[base as usize];
        let (before, after) = (cut.before.load(Relaxed), cut.after.load(Relaxed));
        if before == NONE {
            shard.first[list] = after;
        } else {
            self.cuts[before as usize].after.store(after, Relaxed);
        }
        if after != NONE {
            self.cuts[after as usize].before.store(before, Relaxed);
        }
    }
}
