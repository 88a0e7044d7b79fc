//! Which places of the segments are free. Touches no disk: a place is a number.
//!
//! Segments are cut into bases of 64 KiB, and a base, where smaller units are kept, into pieces of 16
//! or 4 KiB. A place that is given back may still be named by the last checkpoint, or by one that is
//! being written: it is given out again when a checkpoint that began later is durable.

use aze_io::slab::FrameClass;
use std::collections::BTreeSet;

/// Bases that are given out from one lane before it is the next one's turn: a MiB, so that data written
/// together lie together.
const TURN_BASES: u32 = 16;

/// A place for one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Number of the base, counted over all segments.
    pub base: u32,
    /// Number of the piece in it.
    pub piece: u8,
    /// Its size.
    pub class: FrameClass,
}

impl Slot {
    /// As it is written down.
    pub fn number(self) -> u64 {
        let class = match self.class {
            FrameClass::K4 => 1,
            FrameClass::K16 => 2,
            FrameClass::K64 => 3,
        };
        u64::from(self.base) << 8 | u64::from(self.piece) << 4 | class
    }

    /// The slot of a number; `None` if there is none.
    pub fn of(number: u64) -> Option<Slot> {
        let class = match number & 0xf {
            1 => FrameClass::K4,
            2 => FrameClass::K16,
            3 => FrameClass::K64,
            _ => return None,
        };
        let slot = Slot { base: u32::try_from(number >> 8).ok()?, piece: (number >> 4 & 0xf) as u8, class };
        (slot.piece < pieces(class)).then_some(slot)
    }

    fn bit(self) -> u16 {
        1 << self.piece
    }
}

/// Pieces of a base that is cut into a class.
fn pieces(class: FrameClass) -> u8 {
    match class {
        FrameClass::K4 => 16,
        FrameClass::K16 => 4,
        FrameClass::K64 => 1,
    }
}

#[derive(Clone, Copy)]
struct Base {
    class: FrameClass,
    used: u16,
}

/// Places that are free, used, or free after a later checkpoint.
pub struct Places {
    bases: Vec<Base>,
    /// Bases of a segment.
    segment_bases: u32,
    /// Wholly free bases of each lane: of every so many segments, which are on one disk.
    free: Vec<BTreeSet<u32>>,
    /// The lane whose turn it is, and how many of its bases were given out since that began.
    turn: (usize, u32),
    /// Cut bases with free pieces: of 4 KiB, of 16 KiB.
    open: [BTreeSet<u32>; 2],
    /// Number of bases that there may be.
    limit: u32,
    /// Places that were given back, with the number of the checkpoint that was the last to begin before.
    given_back: Vec<(u64, Slot)>,
    begun: u64,
    used_bytes: u64,
    waiting_bytes: u64,
}

/// Beyond it another segment for each lane could not be counted.
fn last_base(lanes: usize, segment_bases: u32) -> u32 {
    u32::MAX - lanes as u32 * segment_bases
}

fn list(class: FrameClass) -> Option<usize> {
    match class {
        FrameClass::K4 => Some(0),
        FrameClass::K16 => Some(1),
        FrameClass::K64 => None,
    }
}

impl Places {
    /// Places in so many bases, none of them used.
    pub fn new(limit: u32) -> Places {
        Places::in_lanes(limit, 1, 1)
    }

    /// The same in segments of so many bases, which take turns, so that every disk has its part of the writes.
    pub fn in_lanes(limit: u32, lanes: usize, segment_bases: u32) -> Places {
        let limit = limit.min(last_base(lanes, segment_bases));
        Places {
            bases: Vec::new(),
            segment_bases,
            free: vec![BTreeSet::new(); lanes],
            turn: (0, 0),
            open: Default::default(),
            limit,
            given_back: Vec::new(),
            begun: 0,
            used_bytes: 0,
            waiting_bytes: 0,
        }
    }

    /// From now on bases from number `limit` on are not given out.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Number of bases that there may be.
    pub fn bases_max(&self) -> u32 {
        self.limit
    }

    /// Bytes in places that are used.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes in places that wait for a checkpoint.
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// A free place; those with the lowest numbers first, so that data written together lie together.
    pub fn take(&mut self, class: FrameClass) -> Option<Slot> {
        self.open_base(class, &|_| true)
            .or_else(|| self.free_base(&|_| true))
            .or_else(|| self.new_base())
            .map(|base| self.give(base, class))
    }

    /// As [`Self::take`], in a segment that is there.
    pub fn take_in(&mut self, class: FrameClass, is_there: impl Fn(u32) -> bool) -> Option<Slot> {
        let segment_bases = self.segment_bases;
        let may = |base: u32| is_there(base / segment_bases);
        self.open_base(class, &may).or_else(|| self.free_base(&may)).map(|base| self.give(base, class))
    }

    fn open_base(&self, class: FrameClass, may: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.open[list(class)?].iter().copied().find(|base| may(*base))
    }

    /// Of the lane whose turn it is, or else the next one that has any.
    fn free_base(&mut self, may: &dyn Fn(u32) -> bool) -> Option<u32> {
        let (lanes, (turn, count)) = (self.free.len(), self.turn);
        for step in 0..lanes {
            let lane = (turn + step) % lanes;
            let free = self.free[lane].iter().copied().take_while(|base| *base < self.limit).find(|base| may(*base));
            if let Some(base) = free {
                let count = if step == 0 { count + 1 } else { 1 };
                self.turn = if count == TURN_BASES { ((lane + 1) % lanes, 0) } else { (lane, count) };
                return Some(base);
            }
        }
        None
    }

    /// Of segments that come after all that were thought of.
    fn new_base(&mut self) -> Option<u32> {
        if self.bases.len() >= self.limit as usize {
            return None;
        }
        self.add_bases();
        self.free_base(&|_| true)
    }

    /// A segment more for each lane.
    fn add_bases(&mut self) {
        for _ in 0..self.free.len() * self.segment_bases as usize {
            let base = self.bases.len() as u32;
            self.bases.push(Base { class: FrameClass::K64, used: 0 });
            let lane = self.lane(base);
            self.free[lane].insert(base);
        }
    }

    fn lane(&self, base: u32) -> usize {
        (base / self.segment_bases) as usize % self.free.len()
    }

    fn give(&mut self, base: u32, class: FrameClass) -> Slot {
        let lane = self.lane(base);
        let row = &mut self.bases[base as usize];
        if row.used == 0 {
            row.class = class;
            self.free[lane].remove(&base);
        }
        let slot = Slot { base, piece: row.used.trailing_ones() as u8, class };
        self.mark(slot);
        slot
    }

    fn mark(&mut self, slot: Slot) {
        let row = &mut self.bases[slot.base as usize];
        row.used |= slot.bit();
        self.used_bytes += slot.class.bytes() as u64;
        if let Some(list) = list(slot.class) {
            if row.used.count_ones() < u32::from(pieces(slot.class)) {
                self.open[list].insert(slot.base);
            } else {
                self.open[list].remove(&slot.base);
            }
        }
    }

    /// Gives back a place that no checkpoint has ever named.
    pub fn put_back(&mut self, slot: Slot) {
        self.used_bytes -= slot.class.bytes() as u64;
        let row = &mut self.bases[slot.base as usize];
        row.used &= !slot.bit();
        let is_free = row.used == 0;
        if let Some(list) = list(slot.class) {
            match is_free {
                true => self.open[list].remove(&slot.base),
                false => self.open[list].insert(slot.base),
            };
        }
        if is_free {
            let lane = self.lane(slot.base);
            self.free[lane].insert(slot.base);
        }
    }

    /// Gives back a place that a checkpoint may name.
    pub fn give_back(&mut self, slot: Slot) {
        self.waiting_bytes += slot.class.bytes() as u64;
        self.given_back.push((self.begun, slot));
    }

    /// A checkpoint begins: nothing that was given back before will be named by it. Gives its number.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// Whether a checkpoint has begun.
    pub fn has_begun(&self) -> bool {
        self.begun > 0
    }

    /// The checkpoint of this number is durable, and no other will be read.
    pub fn durable(&mut self, number: u64) {
        let (free, kept) = std::mem::take(&mut self.given_back).into_iter().partition(|(begun, _)| *begun < number);
        self.given_back = kept;
        let free: Vec<(u64, Slot)> = free;
        for (_, slot) in free {
            self.waiting_bytes -= slot.class.bytes() as u64;
            self.put_back(slot);
        }
    }

    /// A place that the checkpoint names which is being read.
    ///
    /// # Errors
    /// If it cannot be: another unit has it.
    pub fn adopt(&mut self, slot: Slot) -> Result<(), String> {
        if slot.base >= last_base(self.free.len(), self.segment_bases) {
            return Err(format!("there is no base {}", slot.base));
        }
        while self.bases.len() <= slot.base as usize {
            self.add_bases();
        }
        let lane = self.lane(slot.base);
        let row = &mut self.bases[slot.base as usize];
        if row.used & slot.bit() != 0 || row.used != 0 && row.class != slot.class {
            return Err(format!("two units share place {} of base {}", slot.piece, slot.base));
        }
        row.class = slot.class;
        self.free[lane].remove(&slot.base);
        self.mark(slot);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_io::slab::FRAME_CLASSES;

    #[test]
    fn slots_have_numbers() {
        for class in FRAME_CLASSES {
            let slot = Slot { base: 0x0123_4567, piece: pieces(class) - 1, class };
            assert_eq!(Slot::of(slot.number()), Some(slot));
        }
        assert_eq!(Slot { base: 1, piece: 2, class: FrameClass::K4 }.number(), 0x121);
        for wrong in [0, 0x100, 0x104, 0x113, 0x142, 1 << 60 | 1] {
            assert_eq!(Slot::of(wrong), None, "{wrong:x}");
        }
    }

    #[test]
    fn a_place_comes_back_only_after_a_checkpoint_that_began_later() {
        let mut places = Places::new(1);
        let slot = places.take(FrameClass::K64).expect("one is free");
        assert_eq!(places.take(FrameClass::K4), None);
        let first = places.begin();
        places.give_back(slot);
        places.durable(first);
        assert_eq!(places.take(FrameClass::K64), None, "the first checkpoint may name it");
        let second = places.begin();
        assert_eq!(places.take(FrameClass::K64), None, "the second is not there yet");
        places.durable(second);
        assert_eq!(places.take(FrameClass::K64), Some(slot));
        assert_eq!((places.used_bytes(), places.waiting_bytes()), (64 << 10, 0));
    }

    #[test]
    fn pieces_fill_a_base_and_merge_again() {
        let mut places = Places::new(2);
        let small: Vec<Slot> = (0..16).map(|_| places.take(FrameClass::K4).expect("room")).collect();
        assert!(small.iter().all(|slot| slot.base == 0));
        let middle: Vec<Slot> = (0..4).map(|_| places.take(FrameClass::K16).expect("room")).collect();
        assert!(middle.iter().all(|slot| slot.base == 1));
        assert!(FRAME_CLASSES.into_iter().all(|class| places.take(class).is_none()));
        small.iter().for_each(|slot| places.put_back(*slot));
        assert_eq!(places.take(FrameClass::K64).map(|slot| slot.base), Some(0));
        places.put_back(middle[2]);
        assert_eq!(places.take(FrameClass::K16), Some(middle[2]));
    }

    #[test]
    fn what_a_checkpoint_names_is_used() {
        let mut places = Places::new(4);
        let slot = Slot { base: 2, piece: 3, class: FrameClass::K4 };
        places.adopt(slot).expect("nobody has it");
        assert!(places.adopt(slot).is_err(), "now somebody has");
        assert!(places.adopt(Slot { base: 2, piece: 0, class: FrameClass::K16 }).is_err(), "the base is cut otherwise");
        let others: Vec<u32> = (0..3).map(|_| places.take(FrameClass::K64).expect("room").base).collect();
        assert_eq!(others, [0, 1, 3]);
        assert_eq!(places.take(FrameClass::K64), None);
    }

    #[test]
    fn lanes_take_turns_and_one_that_is_full_is_passed_over() {
        // Segments of 20 bases: the first lane has 0 to 19 and 40 to 44, the second 20 to 39.
        let mut places = Places::in_lanes(45, 2, 20);
        let mut take = |count: usize| -> Vec<u32> {
            (0..count).map_while(|_| places.take(FrameClass::K64)).map(|slot| slot.base).collect()
        };
        assert_eq!(take(16), (0..16).collect::<Vec<u32>>());
        assert_eq!(take(16), (20..36).collect::<Vec<u32>>());
        assert_eq!(take(100), [16, 17, 18, 19, 36, 37, 38, 39, 40, 41, 42, 43, 44]);
        let slot = |base| Slot { base, piece: 0, class: FrameClass::K64 };
        for base in [3, 25, 42] {
            places.put_back(slot(base));
        }
        assert_eq!(places.take_in(FrameClass::K4, |segment| segment == 1).map(|slot| slot.base), Some(25));
        assert_eq!(places.take_in(FrameClass::K64, |segment| segment == 1), None);
        assert_eq!(places.take_in(FrameClass::K4, |segment| segment == 1).map(|slot| slot.piece), Some(1));
        assert_eq!(places.take(FrameClass::K64), Some(slot(3)));
        assert_eq!(places.take(FrameClass::K64), Some(slot(42)));
        assert_eq!(places.take(FrameClass::K64), None);
    }
}
