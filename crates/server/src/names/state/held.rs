//! Small sets that nearly every request goes through: which changes of a shard are being worked on,
//! who has which of its files open and for what, and which shards have entries of a directory.
//!
//! It alone knows how they lie in memory: so that a request that enters something and takes it
//! away again asks for no memory.

use crate::membership::state::pieces::OpenRow;
use aze_proto::{Ino, Sequence, SessionId, ShardId};
use std::collections::{BTreeMap, BTreeSet};

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
pub(crate) struct Opens {
    all: BTreeMap<(Ino, SessionId, u64), Kind>,
    /// Opens for writing of sessions that are away: they keep no file that has no name, and their sessions may come back and
    /// go on writing.
    away: BTreeSet<(Ino, SessionId, u64)>,
    /// Files that may not change, each with the open that has frozen it.
    frozen: BTreeMap<Ino, (SessionId, u64)>,
}

/// An open, as the home knows it.
#[derive(Clone, Copy)]
struct Kind {
    writes: bool,
    /// No client has had the file open for writing since.
    is_quiet: bool,
}

impl Opens {
    pub(crate) fn insert(&mut self, ino: Ino, session: SessionId, handle: u64, writes: bool) {
        if writes {
            self.all.range_mut(of(ino)).for_each(|(_, open)| open.is_quiet = false);
        }
        let is_quiet = !writes && self.writers(ino) == 0;
        self.all.insert((ino, session, handle), Kind { writes, is_quiet });
    }

    /// Takes an open away; `false` if there is no such one.
    pub(crate) fn remove(&mut self, ino: Ino, session: SessionId, handle: u64) -> bool {
        self.away.remove(&(ino, session, handle));
        if self.frozen.get(&ino) == Some(&(session, handle)) {
            self.frozen.remove(&ino);
        }
        self.all.remove(&(ino, session, handle)).is_some()
    }

    /// Takes away all that a session has open; gives the files that are now open in no session. Unless the session
    /// `is_over`, those that it may still write stay known. A file that it has frozen stays frozen, see [`Self::thaw`].
    pub(crate) fn remove_session(&mut self, session: SessionId, is_over: bool) -> Vec<Ino> {
        let (mut inos, away) = (Vec::new(), &mut self.away);
        if is_over {
            away.retain(|(_, holder, _)| *holder != session);
        }
        self.all.retain(|&(ino, holder, handle), open| {
            let goes = holder == session;
            if goes && inos.last() != Some(&ino) {
                inos.push(ino);
            }
            if goes && open.writes && !is_over {
                away.insert((ino, holder, handle));
            }
            !goes
        });
        inos.retain(|ino| !self.has(*ino));
        inos
    }

    /// Whether a session has the file open.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.all.range(of(ino)).next().is_some()
    }

    /// Whether a session has the file open.
    pub(crate) fn has_of(&self, ino: Ino, session: SessionId) -> bool {
        self.all.range((ino, session, 0)..=(ino, session, u64::MAX)).next().is_some()
    }

    /// How often the file is open for writing, or is so in a session that is away.
    pub(crate) fn writers(&self, ino: Ino) -> usize {
        self.all.range(of(ino)).filter(|(_, open)| open.writes).count() + self.away.range(of(ino)).count()
    }

    /// How often the file is open.
    pub(crate) fn count(&self, ino: Ino) -> usize {
        self.all.range(of(ino)).count()
    }

    /// Freezes a file for an open of it; `false` if it was open for writing since, or another open has it.
    pub(crate) fn freeze(&mut self, ino: Ino, session: SessionId, handle: u64) -> bool {
        let is_quiet = self.all.get(&(ino, session, handle)).is_some_and(|open| open.is_quiet);
        is_quiet && self.writers(ino) == 0 && *self.frozen.entry(ino).or_insert((session, handle)) == (session, handle)
    }

    /// Whether the file may not change now.
    pub(crate) fn is_frozen(&self, ino: Ino) -> bool {
        self.frozen.contains_key(&ino)
    }

    /// Whether a session has frozen a file.
    pub(crate) fn has_frozen(&self, session: SessionId) -> bool {
        self.frozen.values().any(|(holder, _)| *holder == session)
    }

    /// Lets files change again that a session has frozen which no server serves any more.
    pub(crate) fn thaw(&mut self, session: SessionId) {
        self.frozen.retain(|_, (holder, _)| *holder != session);
    }

    /// A file is deleted.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.frozen.remove(&ino);
        let away: Vec<_> = self.away.range(of(ino)).copied().collect();
        for open in away {
            self.away.remove(&open);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Opens for writing, those of sessions that are away included.
    pub(crate) fn all_writers(&self) -> usize {
        self.all.values().filter(|open| open.writes).count() + self.away.len()
    }

    /// Everything, to be put back elsewhere.
    pub(crate) fn rows(&self) -> Vec<OpenRow> {
        let frozen = |ino: &Ino, session: &SessionId, handle: &u64| self.frozen.get(ino) == Some(&(*session, *handle));
        let open = |(&(ino, session, handle), kind): (&(Ino, SessionId, u64), &Kind)| OpenRow {
            ino,
            session,
            handle,
            writes: kind.writes,
            is_quiet: kind.is_quiet,
            is_away: false,
            is_frozen: frozen(&ino, &session, &handle),
        };
        let away = |&(ino, session, handle): &(Ino, SessionId, u64)| OpenRow {
            ino,
            session,
            handle,
            writes: true,
            is_quiet: false,
            is_away: true,
            is_frozen: false,
        };
        self.all.iter().map(open).chain(self.away.iter().map(away)).collect()
    }

    /// Puts back what [`Self::rows`] gave.
    pub(crate) fn put_back(&mut self, row: &OpenRow) {
        let OpenRow { ino, session, handle, writes, is_quiet, is_away, is_frozen } = *row;
        match is_away {
            true => drop(self.away.insert((ino, session, handle))),
            false => drop(self.all.insert((ino, session, handle), Kind { writes, is_quiet })),
        }
        if is_frozen {
            self.frozen.insert(ino, (session, handle));
        }
    }

    /// The files that are open, each as often as it is.
    pub(crate) fn inos(&self) -> impl Iterator<Item = Ino> {
        self.all.keys().map(|(ino, ..)| *ino)
    }
}

/// All opens of a file.
fn of(ino: Ino) -> std::ops::RangeInclusive<(Ino, SessionId, u64)> {
    (ino, SessionId(u64::MIN), 0)..=(ino, SessionId(u64::MAX), u64::MAX)
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
            opens.insert(Ino(ino), session, handle, false);
        }
        assert!(opens.has(Ino(5)) && opens.has(Ino(9)) && !opens.has(Ino(4)) && !opens.has(Ino(7)));
        assert!(opens.remove(Ino(5), ME, 1) && !opens.remove(Ino(5), ME, 1));
        assert!(opens.has_of(Ino(5), ME) && opens.has_of(Ino(5), OTHER) && !opens.has_of(Ino(6), OTHER));
        assert_eq!(opens.remove_session(ME, false), [Ino(6)], "another session has 5 open");
        assert!(opens.has(Ino(5)) && !opens.has_of(Ino(5), ME) && !opens.has(Ino(6)));
        assert_eq!(opens.inos().collect::<Vec<_>>(), [Ino(5), Ino(9)]);
        assert_eq!(opens.len(), 2);
    }

    #[test]
    fn a_file_is_frozen_if_nobody_has_had_it_open_for_writing_since() {
        let (ino, mut opens) = (Ino(5), Opens::default());
        opens.insert(ino, OTHER, 1, true);
        opens.insert(Ino(4), OTHER, 5, true);
        opens.insert(ino, ME, 1, false);
        assert_eq!((opens.writers(ino), opens.count(ino), opens.all_writers()), (1, 2, 2));
        assert!(opens.remove(ino, OTHER, 1) && opens.writers(ino) == 0);
        assert!(!opens.freeze(ino, ME, 1), "a writer was there when it was opened");
        opens.insert(ino, ME, 2, false);
        opens.insert(ino, OTHER, 2, true);
        assert!(opens.remove(ino, OTHER, 2) && !opens.freeze(ino, ME, 2), "a writer came and went");
        opens.insert(ino, ME, 3, false);
        opens.insert(ino, OTHER, 3, false);
        assert!(
            opens.freeze(ino, ME, 3) && opens.freeze(ino, ME, 3) && opens.is_frozen(ino) && !opens.is_frozen(Ino(4))
        );
        assert!(!opens.freeze(ino, OTHER, 3), "one open at a time");
        assert!(opens.has_frozen(ME) && !opens.has_frozen(OTHER));
        // The session's end does not let it change: its requests may still be on their way to other servers.
        assert_eq!(opens.remove_session(ME, true), []);
        assert!(opens.is_frozen(ino));
        opens.thaw(ME);
        assert!(opens.freeze(ino, OTHER, 3) && opens.remove(ino, OTHER, 3) && !opens.is_frozen(ino));
    }

    #[test]
    fn a_session_that_is_away_may_still_write() {
        let (ino, mut opens) = (Ino(5), Opens::default());
        opens.insert(ino, OTHER, 1, true);
        opens.insert(ino, OTHER, 2, false);
        assert_eq!(opens.remove_session(OTHER, false), [ino]);
        assert!(!opens.has(ino) && opens.writers(ino) == 1 && opens.all_writers() == 1);
        opens.insert(ino, ME, 1, false);
        assert!(!opens.freeze(ino, ME, 1));
        // It comes back and closes it.
        assert!(!opens.remove(ino, OTHER, 1) && opens.writers(ino) == 0);
        opens.insert(ino, OTHER, 3, true);
        opens.remove_session(OTHER, false);
        opens.remove_session(OTHER, true);
        assert_eq!(opens.writers(ino), 0);
        opens.insert(ino, OTHER, 4, true);
        opens.remove_session(OTHER, false);
        opens.forget(ino);
        assert_eq!(opens.writers(ino), 0);
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
