//! What a server remembers of files whose data it has dropped, so that a write that was long on
//! its way does not bring bytes back. It knows the last [`FENCES_MAX`] of them; shards that still
//! hold data of a file know its generation by themselves.

use crate::StoreError;
use aze_proto::ids::{Generation, Ino};
use std::collections::{BTreeMap, VecDeque};

/// Files remembered, about 4 MiB of memory. At 50,000 deletions a second that is more than a
/// second, and a write that comes so late must come from a client that no program waits for. One
/// beyond that leaves a chunk that no file has, which costs memory but is never seen.
pub(crate) const FENCES_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fence {
    Truncated(Generation),
    Deleted,
}

#[derive(Default)]
pub(crate) struct Fences {
    known: BTreeMap<Ino, Fence>,
    order: VecDeque<Ino>,
}

impl Fences {
    /// A truncation began this generation.
    pub(crate) fn truncate(&mut self, ino: Ino, generation: Generation) {
        self.set(ino, Fence::Truncated(generation));
    }

    /// The file is gone.
    pub(crate) fn deleted(&mut self, ino: Ino) {
        self.set(ino, Fence::Deleted);
    }

    /// All that is remembered: files that are gone, and generations of others.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Ino, Option<Generation>)> {
        self.known.iter().map(|(ino, fence)| match fence {
            Fence::Truncated(generation) => (*ino, Some(*generation)),
            Fence::Deleted => (*ino, None),
        })
    }

    fn set(&mut self, ino: Ino, fence: Fence) {
        if let Some(known) = self.known.get_mut(&ino) {
            *known = fence.max(*known);
            return;
        }
        if self.order.len() == FENCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(ino);
        self.known.insert(ino, fence);
    }

    /// Whether a request of this generation may bring data of a file to where there are none.
    pub(crate) fn check(&self, ino: Ino, generation: Generation) -> Result<(), StoreError> {
        match self.known.get(&ino) {
            Some(Fence::Deleted) => Err(StoreError::Deleted { ino }),
            Some(Fence::Truncated(now)) if generation < *now => Err(StoreError::GenerationStale(*now)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let mut fences = Fences::default();
        for number in 0..=FENCES_MAX as u64 {
            fences.deleted(Ino(number));
        }
        assert_eq!(fences.known.len(), FENCES_MAX);
        assert_eq!(fences.check(Ino(0), Generation(0)), Ok(()));
        assert_eq!(fences.check(Ino(1), Generation(0)), Err(StoreError::Deleted { ino: Ino(1) }));
    }

    #[test]
    fn a_fence_never_falls_back() {
        let mut fences = Fences::default();
        fences.truncate(Ino(7), Generation(3));
        fences.truncate(Ino(7), Generation(2));
        assert_eq!(fences.check(Ino(7), Generation(2)), Err(StoreError::GenerationStale(Generation(3))));
        assert_eq!(fences.check(Ino(7), Generation(3)), Ok(()));
        fences.deleted(Ino(7));
        fences.truncate(Ino(7), Generation(9));
        assert_eq!(fences.check(Ino(7), Generation(9)), Err(StoreError::Deleted { ino: Ino(7) }));
    }
}
