//! Small sets that nearly every request goes through: which changes of a shard are being worked on,
//! who has which of its files open, and which shards have entries of a directory.
//!
//! It alone knows how they lie in memory: so that a request that enters something and takes it
//! away again asks for no memory.

use aze_proto::{Ino, Sequence, SessionId, ShardId};
use std::collections::BTreeSet;

/// Changes kept in a list, which is faster while they are few.
const FEW: usize = 8;

/// Changes of sessions that are being worked on.
#[derive(Default)]
pub(crate) struct Running {
    few: Vec<(SessionId, Sequence)>,
    others: BTreeSet<(SessionId, Sequence)>,
}

impl Running {
    /// Enters a change; `false` if it was there.
    pub(crate) fn insert(&mut self, change: (SessionId, Sequence)) -> bool {
        if self.few.contains(&change) || self.others.contains(&change) {
            return false;
        }
        if self.few.len() < FEW {
            self.few.push(change);
        } else {
            self.others.insert(change);
        }
        true
    }

    pub(crate) fn remove(&mut self, change: (SessionId, Sequence)) {
        match self.few.iter().position(|one| *one == change) {
            Some(at) => drop(self.few.swap_remove(at)),
            None => drop(self.others.remove(&change)),
        }
    }

    /// Whether there is any of this session.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        let of_session = (session, Sequence(0))..=(session, Sequence(u64::MAX));
        self.few.iter().any(|(of, _)| *of == session) || self.others.range(of_session).next().is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.few.len() + self.others.len()
    }
}

/// Opens of the files of a shard, each with its session and its handle there.
#[derive(Default)]
pub(crate) struct Opens(BTreeSet<(Ino, SessionId, u64)>);

impl Opens {
    pub(crate) fn insert(&mut self, ino: Ino, session: SessionId, handle: u64) {
        self.0.insert((ino, session, handle));
    }

    /// Takes an open away; `false` if there is no such one.
    pub(crate) fn remove(&mut self, ino: Ino, session: SessionId, handle: u64) -> bool {
        self.0.remove(&(ino, session, handle))
    }

    /// Takes away all that a session has open; gives the files that are now open in no session.
    pub(crate) fn remove_session(&mut self, session: SessionId) -> Vec<Ino> {
        let mut inos = Vec::new();
        self.0.retain(|(ino, holder, _)| {
            let goes = *holder == session;
            if goes && inos.last() != Some(ino) {
                inos.push(*ino);
            }
            !goes
        });
        inos.retain(|ino| !self.has(*ino));
        inos
    }

    /// Whether a session has the file open.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        let least = SessionId::default();
        self.0.range((ino, least, 0)..).next().is_some_and(|(of, ..)| *of == ino)
    }

    /// Whether a session has the file open.
    pub(crate) fn has_of(&self, ino: Ino, session: SessionId) -> bool {
        self.0.range((ino, session, 0)..=(ino, session, u64::MAX)).next().is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The files that are open, each as often as it is.
    pub(crate) fn inos(&self) -> impl Iterator<Item = Ino> {
        self.0.iter().map(|(ino, ..)| *ino)
    }
}

/// Shards that are kept in a list; more are bits, which are found without a search.
const LISTED_SHARDS: usize = 64;

const WORD_BITS: u32 = u64::BITS;

/// Some of the shards of this server.
pub(crate) enum Shards {
    /// In their order.
    Listed(Vec<ShardId>),
    /// A bit for each number.
    Bits(Vec<u64>),
}

impl Default for Shards {
    fn default() -> Shards {
        Shards::Listed(Vec::new())
    }
}

impl Shards {
    pub(crate) fn insert(&mut self, shard: ShardId) {
        match self {
            Shards::Listed(list) => {
                let Err(at) = list.binary_search(&shard) else { return };
                if list.len() < LISTED_SHARDS {
                    return list.insert(at, shard);
                }
                let list = std::mem::take(list);
                *self = Shards::Bits(Vec::new());
                list.into_iter().for_each(|listed| self.insert(listed));
                self.insert(shard);
            }
            Shards::Bits(words) => {
                let at = (shard.0 / WORD_BITS) as usize;
                if at >= words.len() {
                    words.resize(at + 1, 0);
                }
                words[at] |= 1 << (shard.0 % WORD_BITS);
            }
        }
    }

    pub(crate) fn remove(&mut self, shard: ShardId) {
        match self {
            Shards::Listed(list) => list.retain(|listed| *listed != shard),
            Shards::Bits(words) => {
                if let Some(word) = words.get_mut((shard.0 / WORD_BITS) as usize) {
                    *word &= !(1 << (shard.0 % WORD_BITS));
                }
            }
        }
    }

    /// Those from a number on, in their order.
    pub(crate) fn at_least(&self, least: ShardId) -> Vec<ShardId> {
        match self {
            Shards::Listed(list) => list.iter().copied().filter(|shard| *shard >= least).collect(),
            Shards::Bits(words) => {
                let first = (least.0 / WORD_BITS) as usize;
                let numbers =
                    (first * WORD_BITS as usize..words.len() * WORD_BITS as usize).map(|number| number as u32);
                let is_there = |shard: &u32| words[(shard / WORD_BITS) as usize] >> (shard % WORD_BITS) & 1 == 1;
                numbers.filter(|shard| *shard >= least.0).filter(is_there).map(ShardId).collect()
            }
        }
    }
}

impl FromIterator<ShardId> for Shards {
    fn from_iter<I: IntoIterator<Item = ShardId>>(shards: I) -> Shards {
        let mut all = Shards::default();
        shards.into_iter().for_each(|shard| all.insert(shard));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: SessionId = SessionId(7);
    const OTHER: SessionId = SessionId(8);

    #[test]
    fn a_change_runs_once_however_many_there_are() {
        let mut running = Running::default();
        let changes: Vec<_> = (1..=3 * FEW as u64).map(|number| (ME, Sequence(number))).collect();
        assert!(changes.iter().all(|change| running.insert(*change)));
        assert!(changes.iter().all(|change| !running.insert(*change)));
        assert!(running.len() == 3 * FEW && running.has(ME) && !running.has(OTHER));
        // One of the list goes, and another one takes its place while the others are still there.
        running.remove(changes[0]);
        assert!(running.insert(changes[0]) && !running.insert(changes[0]));
        assert!(!running.insert(changes[2 * FEW]));
        changes.iter().for_each(|change| running.remove(*change));
        assert!(running.len() == 0 && !running.has(ME));
        changes.iter().for_each(|change| running.remove(*change));
    }

    #[test]
    fn a_file_is_open_until_its_last_open_goes() {
        let mut opens = Opens::default();
        for (ino, session, handle) in [(5, ME, 1), (5, ME, 2), (5, OTHER, 1), (6, ME, 3), (9, OTHER, 4)] {
            opens.insert(Ino(ino), session, handle);
        }
        assert!(opens.has(Ino(5)) && opens.has(Ino(9)) && !opens.has(Ino(4)) && !opens.has(Ino(7)));
        assert!(opens.remove(Ino(5), ME, 1) && !opens.remove(Ino(5), ME, 1));
        assert!(opens.has_of(Ino(5), ME) && opens.has_of(Ino(5), OTHER) && !opens.has_of(Ino(6), OTHER));
        assert_eq!(opens.remove_session(ME), [Ino(6)], "another session has 5 open");
        assert!(opens.has(Ino(5)) && !opens.has_of(Ino(5), ME) && !opens.has(Ino(6)));
        assert_eq!(opens.inos().collect::<Vec<_>>(), [Ino(5), Ino(9)]);
        assert_eq!(opens.len(), 2);
    }

    #[test]
    fn shards_are_found_in_their_order_however_many_there_are() {
        for count in [1, LISTED_SHARDS as u32, 4 * LISTED_SHARDS as u32] {
            // In no order, and up to the largest number there is.
            let numbers = (0..count).map(|number| (number * 40_503 + 7) % 65_536);
            let mut all: BTreeSet<u32> = numbers.chain([65_535]).collect();
            let mut shards: Shards = all.iter().rev().map(|number| ShardId(*number)).collect();
            for least in [0, 7, 8, 4096, 65_535] {
                let found: Vec<u32> = shards.at_least(ShardId(least)).into_iter().map(|shard| shard.0).collect();
                assert_eq!(found, all.range(least..).copied().collect::<Vec<_>>(), "{count} from {least}");
            }
            for gone in [7, 7, 9, 65_535] {
                all.remove(&gone);
                shards.remove(ShardId(gone));
                shards.insert(ShardId(8));
            }
            all.insert(8);
            assert_eq!(shards.at_least(ShardId(0)).len(), all.len());
        }
    }
}
