//! The free blocks.

use crate::sync::Mutex;
use std::collections::BTreeMap;

/// Blocks that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub start: u32,
    pub count: u32,
}

/// Adds blocks at the end of a list.
pub(super) fn push(extents: &mut Vec<Extent>, more: Extent) {
    match extents.last_mut() {
        Some(last) if last.start + last.count == more.start => last.count += more.count,
        _ => extents.push(more),
    }
}

/// The blocks behind the first `blocks` of a list.
pub(super) fn beyond(extents: &[Extent], blocks: u64) -> Vec<Extent> {
    let (mut left, mut behind) = (blocks, Vec::new());
    for extent in extents {
        let skipped = left.min(u64::from(extent.count)) as u32;
        left -= u64::from(skipped);
        if skipped < extent.count {
            behind.push(Extent { start: extent.start + skipped, count: extent.count - skipped });
        }
    }
    behind
}

pub(super) struct Room(Mutex<State>);

struct State {
    blocks: u32,
    /// From here on no block was ever used: they are zero.
    fresh: u32,
    /// Below: blocks that were used and are free, by first block.
    free: BTreeMap<u32, u32>,
}

impl Room {
    /// `taken` do not overlap, and are below `fresh`.
    pub fn new<'a>(blocks: u32, fresh: u32, taken: impl Iterator<Item = &'a Extent>) -> Room {
        let mut taken: Vec<Extent> = taken.copied().collect();
        taken.sort_unstable_by_key(|extent| extent.start);
        let mut free = BTreeMap::new();
        let mut at = 0;
        for extent in taken.into_iter().chain([Extent { start: fresh, count: 0 }]) {
            if extent.start > at {
                free.insert(at, extent.start - at);
            }
            at = extent.start + extent.count;
        }
        Room(Mutex::new(State { blocks, fresh, free }))
    }

    pub fn fresh(&self) -> u32 {
        self.0.lock().fresh
    }

    pub fn free_blocks(&self) -> u64 {
        let state = self.0.lock();
        let free: u64 = state.free.values().map(|count| u64::from(*count)).sum();
        free + u64::from(state.blocks - state.fresh)
    }

    /// Takes so many blocks, and says which of them have been used before; `None` if there are not so many.
    pub fn take(&self, blocks: u64) -> Option<(Vec<Extent>, Vec<Extent>)> {
        if self.free_blocks() < blocks {
            return None;
        }
        let mut state = self.0.lock();
        let (mut left, mut used) = (blocks, Vec::new());
        while left > 0
            && let Some((start, count)) = state.free.pop_first()
        {
            let taken = left.min(u64::from(count)) as u32;
            if taken < count {
                state.free.insert(start + taken, count - taken);
            }
            used.push(Extent { start, count: taken });
            left -= u64::from(taken);
        }
        let mut extents = used.clone();
        let left = u32::try_from(left).ok().filter(|left| *left <= state.blocks - state.fresh);
        let Some(left) = left else {
            // Another request was faster.
            drop(state);
            self.give_back(&used);
            return None;
        };
        if left > 0 {
            push(&mut extents, Extent { start: state.fresh, count: left });
            state.fresh += left;
        }
        Some((extents, used))
    }

    /// Takes blocks back.
    pub fn give_back(&self, extents: &[Extent]) {
        let free = &mut self.0.lock().free;
        for extent in extents {
            let (mut start, mut count) = (extent.start, extent.count);
            if let Some((before, its)) = free.range(..start).next_back().map(|(start, count)| (*start, *count))
                && before + its == start
            {
                free.remove(&before);
                (start, count) = (before, its + count);
            }
            if let Some(its) = free.remove(&(start + count)) {
                count += its;
            }
            free.insert(start, count);
        }
    }
}
