//! Exactly-once effect: what a shard remembers of the changes that sessions asked of it.
//!
//! A change is named by (session, sequence), the sequence counting the changes of one session
//! at one shard. The shard stores the reply in the same step as the effect; a repeated request
//! gets the stored reply. Every request carries the *floor*, the lowest sequence whose reply the
//! session still wants; below it replies are dropped and late copies refused.

use crate::ids::{Sequence, SessionId};
use crate::limits::RETRIES_PER_SESSION_AND_SHARD;
use std::collections::BTreeMap;

/// What to do with an arriving change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<R> {
    /// Never seen: do it.
    New,
    /// Already done: this was the reply.
    Done(R),
    /// Below the floor: the client has given up; doing it now could undo later changes.
    TooOld,
    /// The session has too many replies kept here: it must wait.
    Full,
}

#[derive(Clone, Debug)]
struct Session<R> {
    floor: Sequence,
    /// By their sequence. Nearly always one or none: a list of exactly that many, kept when it is empty.
    done: Vec<(Sequence, R)>,
    /// Something was recorded since records were last looked through.
    is_recent: bool,
}

impl<R> Session<R> {
    /// Where the reply of a change is, or belongs.
    fn place(&self, sequence: Sequence) -> Result<usize, usize> {
        self.done.binary_search_by_key(&sequence, |(of, _)| *of)
    }

    /// How many replies are at or above a floor.
    fn wanted(&self, floor: Sequence) -> usize {
        self.done.len() - self.done.partition_point(|(of, _)| *of < floor)
    }
}

/// Records of one shard.
#[derive(Clone, Debug)]
pub struct RetryTable<R> {
    sessions: BTreeMap<SessionId, Session<R>>,
}

impl<R> Default for RetryTable<R> {
    fn default() -> Self {
        RetryTable { sessions: BTreeMap::new() }
    }
}

/// All that a table knows of one session: for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered<R> {
    /// The session.
    pub session: SessionId,
    /// The lowest sequence whose reply it still wants.
    pub floor: Sequence,
    /// Whether it asked for a change since silent sessions were last expired.
    pub is_recent: bool,
    /// Replies by their sequence, in its order.
    pub done: Vec<(Sequence, R)>,
}

impl<R: Clone> RetryTable<R> {
    /// Looks a change up. `floor` is the lowest sequence whose reply its session still wants, as the request
    /// says. Requests that change nothing carry sequence 0 and are always new.
    pub fn check(&self, session: SessionId, sequence: Sequence, floor: Sequence) -> Verdict<R> {
        if sequence == Sequence(0) {
            return Verdict::New;
        }
        let Some(known) = self.sessions.get(&session) else {
            return if sequence < floor { Verdict::TooOld } else { Verdict::New };
        };
        if sequence < floor.max(known.floor) {
            return Verdict::TooOld;
        }
        match known.place(sequence) {
            Ok(at) => Verdict::Done(known.done[at].1.clone()),
            Err(_) if known.wanted(floor) >= RETRIES_PER_SESSION_AND_SHARD => Verdict::Full,
            Err(_) => Verdict::New,
        }
    }

    /// Stores the reply of a change, in the same step as its effect, raises the session's floor and drops the
    /// replies below it.
    pub fn record(&mut self, session: SessionId, sequence: Sequence, floor: Sequence, reply: R) {
        if sequence == Sequence(0) {
            return;
        }
        let known =
            self.sessions.entry(session).or_insert_with(|| Session { floor, done: Vec::new(), is_recent: true });
        known.is_recent = true;
        if floor > known.floor {
            known.floor = floor;
            let dropped = known.done.len() - known.wanted(floor);
            known.done.drain(..dropped);
        }
        match known.place(sequence) {
            Ok(at) => known.done[at].1 = reply,
            Err(at) => {
                known.done.reserve_exact(1);
                known.done.insert(at, (sequence, reply));
            }
        }
    }

    /// Replaces replies of sessions that were silent since the last call, and before it, by a floor above
    /// them: no client repeats a request for that long. A server calls it once in
    /// [`RETRY_SECONDS_MAX`](crate::limits::RETRY_SECONDS_MAX), and no clock that may jump takes part in it.
    pub fn expire(&mut self) {
        for known in self.sessions.values_mut() {
            if !std::mem::take(&mut known.is_recent)
                && let Some((last, _)) = known.done.pop()
            {
                known.floor = Sequence(last.0 + 1);
                known.done = Vec::new();
            }
        }
    }

    /// Whether [`Self::expire`] would change anything.
    pub fn has_recent_or_kept(&self) -> bool {
        self.sessions.values().any(|known| known.is_recent || !known.done.is_empty())
    }

    /// Forgets a session that has ended; its requests are refused before they get here.
    pub fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Whether anything is known of a session.
    pub fn knows(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The sessions with any record.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied()
    }

    /// Everything, session by session.
    pub fn all(&self) -> impl Iterator<Item = Remembered<R>> {
        self.sessions.iter().map(|(session, known)| {
            let Session { floor, done, is_recent } = known.clone();
            Remembered { session: *session, floor, is_recent, done }
        })
    }

    /// Puts back what [`Self::all`] gave.
    pub fn restore(&mut self, known: Remembered<R>) {
        let Remembered { session, floor, is_recent, done } = known;
        self.sessions.insert(session, Session { floor, done, is_recent });
    }

    /// Replies kept, for accounting.
    pub fn len(&self) -> usize {
        self.sessions.values().map(|known| known.done.len()).sum()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: SessionId = SessionId(7);

    #[test]
    fn a_repeated_change_gets_the_first_reply() {
        let mut table = RetryTable::default();
        assert_eq!(table.check(ME, Sequence(1), Sequence(1)), Verdict::New);
        table.record(ME, Sequence(1), Sequence(1), "made");
        assert_eq!(table.check(ME, Sequence(1), Sequence(1)), Verdict::Done("made"));
        assert_eq!(table.check(ME, Sequence(2), Sequence(2)), Verdict::New);
        assert_eq!(table.check(ME, Sequence(1), Sequence(1)), Verdict::Done("made"));
        table.record(ME, Sequence(2), Sequence(2), "made, too");
        assert_eq!(table.check(ME, Sequence(1), Sequence(1)), Verdict::TooOld);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_late_copy_of_an_abandoned_change_is_refused() {
        let mut table: RetryTable<()> = RetryTable::default();
        assert_eq!(table.check(ME, Sequence(3), Sequence(4)), Verdict::TooOld);
        table.record(ME, Sequence(5), Sequence(4), ());
        assert_eq!(table.check(ME, Sequence(3), Sequence(3)), Verdict::TooOld);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut table = RetryTable::default();
        for sequence in 1..=RETRIES_PER_SESSION_AND_SHARD as u64 {
            assert_eq!(table.check(ME, Sequence(sequence), Sequence(1)), Verdict::New);
            table.record(ME, Sequence(sequence), Sequence(1), sequence);
        }
        assert_eq!(table.check(ME, Sequence(65), Sequence(1)), Verdict::Full);
        assert_eq!(table.check(ME, Sequence(65), Sequence(2)), Verdict::New);
    }

    #[test]
    fn replies_that_come_out_of_order_are_found_and_dropped_by_the_floor() {
        let mut table = RetryTable::default();
        for sequence in [3, 1, 2, 5] {
            table.record(ME, Sequence(sequence), Sequence(1), sequence);
        }
        table.record(ME, Sequence(2), Sequence(1), 20);
        for (sequence, reply) in [(1, 1), (2, 20), (3, 3), (5, 5)] {
            assert_eq!(table.check(ME, Sequence(sequence), Sequence(1)), Verdict::Done(reply));
        }
        table.record(ME, Sequence(4), Sequence(3), 4);
        assert_eq!(table.len(), 3);
        assert_eq!(table.check(ME, Sequence(2), Sequence(1)), Verdict::TooOld);
        assert_eq!(table.check(ME, Sequence(3), Sequence(1)), Verdict::Done(3));
    }

    #[test]
    fn a_restored_table_gives_the_same_verdicts_and_expires_the_same() {
        let mut table = RetryTable::default();
        for sequence in 1..=3 {
            table.record(ME, Sequence(sequence), Sequence(2), sequence);
        }
        table.record(SessionId(8), Sequence(1), Sequence(1), 10);
        table.expire();
        table.record(SessionId(8), Sequence(2), Sequence(1), 20);
        let mut again = RetryTable::default();
        table.all().for_each(|known| again.restore(known));
        for _ in 0..3 {
            let all: Vec<Remembered<u64>> = table.all().collect();
            assert_eq!(all.len(), 2);
            assert_eq!(again.all().collect::<Vec<_>>(), all);
            table.expire();
            again.expire();
        }
        assert!(again.is_empty() && !again.has_recent_or_kept() && again.knows(ME));
        assert_eq!(again.check(SessionId(8), Sequence(2), Sequence(1)), Verdict::TooOld);
    }

    #[test]
    fn a_silent_session_is_forgotten_but_not_its_past() {
        let mut table = RetryTable::default();
        table.record(ME, Sequence(9), Sequence(9), ());
        table.expire();
        assert_eq!(table.len(), 1);
        table.expire();
        assert_eq!(table.len(), 0);
        assert_eq!(table.check(ME, Sequence(9), Sequence(9)), Verdict::TooOld);
        assert_eq!(table.check(ME, Sequence(10), Sequence(10)), Verdict::New);
    }
}
