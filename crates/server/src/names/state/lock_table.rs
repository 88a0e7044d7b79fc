//! The locks of one file: their owners, and the requests that wait. Nothing here waits or asks.
//!
//! As in POSIX a new lock of an owner replaces what the owner had of its range. Requests that wait
//! are granted as soon as no lock is in their way, the oldest first; one that is in no other's way
//! does not wait for older ones, as on Linux.

use crate::membership::state::pieces::FileLockRow;
use aze_proto::message::{LockMode, LockOutcome, LockSpace, LockSpec};
use aze_proto::{Ino, SessionId};
use futures_channel::oneshot;
use std::collections::VecDeque;

/// Locks that one file can have, and requests that can wait for one: more are refused.
pub(crate) const LOCKS_PER_FILE_MAX: usize = 10_000;

/// A lock with its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) session: SessionId,
    pub(crate) spec: LockSpec,
}

impl Lock {
    fn is_of(&self, other: &Lock) -> bool {
        (self.session, self.spec.owner, self.spec.space) == (other.session, other.spec.owner, other.spec.space)
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.spec.start <= end && start <= self.spec.end
    }

    fn excludes(&self, other: &Lock) -> bool {
        self.spec.space == other.spec.space
            && !self.is_of(other)
            && self.overlaps(other.spec.start, other.spec.end)
            && (self.spec.mode == LockMode::Exclusive || other.spec.mode == LockMode::Exclusive)
    }
}

struct Waiting {
    lock: Lock,
    number: u64,
    /// The requests to answer when it is granted.
    told: Vec<oneshot::Sender<()>>,
}

/// Too many.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// All locks of one file.
#[derive(Default)]
pub(crate) struct FileLocks {
    held: Vec<Lock>,
    queue: VecDeque<Waiting>,
}

impl FileLocks {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.queue.is_empty()
    }

    /// Locks held, and requests that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.held.len(), self.queue.len())
    }

    pub(crate) fn is_known(&self, session: SessionId) -> bool {
        self.held.iter().any(|held| held.session == session)
            || self.queue.iter().any(|waiting| waiting.lock.session == session)
    }

    /// The lock that is in the way of another: of several the one that begins first, as Linux answers F_GETLK.
    pub(crate) fn in_the_way(&self, lock: &Lock) -> Option<LockSpec> {
        self.held.iter().filter(|held| held.excludes(lock)).map(|held| held.spec).min_by_key(|held| held.start)
    }

    /// Locks, or waits under a number.
    pub(crate) fn set(&mut self, lock: Lock, wait: Option<u64>) -> Result<LockOutcome, TooMany> {
        if lock.spec.space == LockSpace::Whole {
            // flock(2): what one has is given up first, and may be lost.
            self.take_out(lock.session, lock.spec.space, lock.spec.owner, 0, u64::MAX);
            self.settle();
        }
        if let Some(by) = self.in_the_way(&lock) {
            let Some(number) = wait else { return Ok(LockOutcome::Held { by }) };
            if self.closes_a_circle(&lock) {
                return Ok(LockOutcome::Deadlock);
            }
            if self.queue.len() >= LOCKS_PER_FILE_MAX {
                return Err(TooMany);
            }
            self.queue.push_back(Waiting { lock, number, told: Vec::new() });
            return Ok(LockOutcome::Queued);
        }
        if self.held.len() >= LOCKS_PER_FILE_MAX {
            return Err(TooMany);
        }
        self.put_in(lock);
        // It may have replaced something stronger.
        self.settle();
        Ok(LockOutcome::Granted)
    }

    /// Whether an owner that is in the way of a lock waits, over any number of steps, for the owner of that lock.
    /// Whole files are left out: their owners give up their lock before they wait.
    fn closes_a_circle(&self, lock: &Lock) -> bool {
        if lock.spec.space == LockSpace::Whole {
            return false;
        }
        let mut seen: Vec<&Lock> = Vec::new();
        let mut open = vec![lock];
        while let Some(next) = open.pop() {
            for held in self.held.iter().filter(|held| held.excludes(next)) {
                if held.is_of(lock) {
                    return true;
                }
                if seen.iter().any(|seen| seen.is_of(held)) {
                    continue;
                }
                seen.push(held);
                open.extend(self.queue.iter().map(|waiting| &waiting.lock).filter(|waiting| waiting.is_of(held)));
            }
        }
        false
    }

    /// Unlocks what an owner has of a range.
    pub(crate) fn unlock(&mut self, session: SessionId, space: LockSpace, owner: u64, start: u64, end: u64) {
        self.take_out(session, space, owner, start, end);
        self.settle();
    }

    /// Takes a request out of the queue; `false` if it is not there.
    pub(crate) fn cancel(&mut self, session: SessionId, number: u64) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiting| (waiting.lock.session, waiting.number) != (session, number));
        before != self.queue.len()
    }

    /// Resolves when a request leaves the queue; `None` if it is not there.
    pub(crate) fn listen(&mut self, session: SessionId, number: u64) -> Option<oneshot::Receiver<()>> {
        let waiting =
            self.queue.iter_mut().find(|waiting| (waiting.lock.session, waiting.number) == (session, number))?;
        let (sender, receiver) = oneshot::channel();
        // A request that gave up is not answered.
        waiting.told.retain(|sender| !sender.is_canceled());
        waiting.told.push(sender);
        Some(receiver)
    }

    /// The sessions that have or wait for locks.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        let waiting = self.queue.iter().map(|waiting| waiting.lock.session);
        self.held.iter().map(|held| held.session).chain(waiting)
    }

    /// All locks, to be put back elsewhere: those held, then those that wait, the oldest first.
    pub(crate) fn rows(&self, ino: Ino) -> Vec<FileLockRow> {
        let row = |lock: &Lock, waits| FileLockRow { ino, session: lock.session, spec: lock.spec, waits };
        let waiting = self.queue.iter().map(|waiting| row(&waiting.lock, Some(waiting.number)));
        self.held.iter().map(|lock| row(lock, None)).chain(waiting).collect()
    }

    /// Puts back what [`Self::rows`] gave, in its order.
    pub(crate) fn put_back(&mut self, row: &FileLockRow) {
        let lock = Lock { session: row.session, spec: row.spec };
        match row.waits {
            None => self.held.push(lock),
            Some(number) => self.queue.push_back(Waiting { lock, number, told: Vec::new() }),
        }
    }

    /// Drops all that a session has and waits for.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.held.retain(|held| held.session != session);
        self.queue.retain(|waiting| waiting.lock.session != session);
        self.settle();
    }

    /// Grants what can be granted.
    fn settle(&mut self) {
        let mut at = 0;
        while let Some(waiting) = self.queue.get(at) {
            if self.in_the_way(&waiting.lock).is_some() || self.held.len() >= LOCKS_PER_FILE_MAX {
                at += 1;
                continue;
            }
            if let Some(waiting) = self.queue.remove(at) {
                self.put_in(waiting.lock);
                for told in waiting.told {
                    // An error means that the request has given up.
                    let _ = told.send(());
                }
            }
            // It may have replaced a stronger lock: requests that waited for that may be granted now.
            at = 0;
        }
    }

    fn put_in(&mut self, lock: Lock) {
        let LockSpec { space, owner, start, end, .. } = lock.spec;
        self.take_out(lock.session, space, owner, start, end);
        let mut joined = lock;
        self.held.retain(|held| {
            let touches = held.spec.start <= joined.spec.end.saturating_add(1)
                && joined.spec.start <= held.spec.end.saturating_add(1);
            if !held.is_of(&lock) || held.spec.mode != lock.spec.mode || !touches {
                return true;
            }
            joined.spec.start = joined.spec.start.min(held.spec.start);
            joined.spec.end = joined.spec.end.max(held.spec.end);
            false
        });
        self.held.push(joined);
    }

    fn take_out(&mut self, session: SessionId, space: LockSpace, owner: u64, start: u64, end: u64) {
        let mut left = Vec::new();
        self.held.retain(|held| {
            let is_theirs = (held.session, held.spec.space, held.spec.owner) == (session, space, owner);
            if !is_theirs || !held.overlaps(start, end) {
                return true;
            }
            if held.spec.start < start {
                left.push(Lock { spec: LockSpec { end: start - 1, ..held.spec }, ..*held });
            }
            if held.spec.end > end {
                left.push(Lock { spec: LockSpec { start: end + 1, ..held.spec }, ..*held });
            }
            false
        });
        self.held.append(&mut left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockMode::{Exclusive, Shared};

    fn lock(owner: u64, start: u64, end: u64, mode: LockMode) -> Lock {
        let spec = LockSpec { space: LockSpace::Ranges, owner, pid: owner as u32, start, end, mode };
        Lock { session: SessionId(owner), spec }
    }

    fn whole(owner: u64, mode: LockMode) -> Lock {
        let mut lock = lock(owner, 0, u64::MAX, mode);
        lock.spec.space = LockSpace::Whole;
        lock
    }

    fn ranges(locks: &FileLocks, owner: u64) -> Vec<(u64, u64, LockMode)> {
        let mine = locks.held.iter().filter(|held| held.spec.owner == owner);
        let mut ranges: Vec<_> = mine.map(|held| (held.spec.start, held.spec.end, held.spec.mode)).collect();
        ranges.sort_by_key(|(start, ..)| *start);
        ranges
    }

    fn unlock(locks: &mut FileLocks, owner: u64, start: u64, end: u64) {
        locks.unlock(SessionId(owner), LockSpace::Ranges, owner, start, end);
    }

    #[test]
    fn locks_of_one_owner_replace_split_and_join() {
        let mut locks = FileLocks::default();
        assert_eq!(locks.set(lock(1, 0, 99, Exclusive), None), Ok(LockOutcome::Granted));
        assert_eq!(locks.set(lock(1, 40, 59, Shared), None), Ok(LockOutcome::Granted));
        assert_eq!(ranges(&locks, 1), [(0, 39, Exclusive), (40, 59, Shared), (60, 99, Exclusive)]);
        unlock(&mut locks, 1, 10, 19);
        assert_eq!(ranges(&locks, 1)[..2], [(0, 9, Exclusive), (20, 39, Exclusive)]);
        locks.set(lock(1, 0, 99, Exclusive), None).expect("there is room");
        locks.set(lock(1, 100, u64::MAX, Exclusive), None).expect("there is room");
        assert_eq!(ranges(&locks, 1), [(0, u64::MAX, Exclusive)]);
        unlock(&mut locks, 1, 0, u64::MAX);
        assert!(locks.is_empty());
    }

    #[test]
    fn only_what_overlaps_and_excludes_is_in_the_way() {
        let mut locks = FileLocks::default();
        locks.set(lock(1, 10, 19, Shared), None).expect("there is room");
        assert_eq!(locks.in_the_way(&lock(2, 0, 50, Shared)), None);
        assert_eq!(locks.in_the_way(&lock(2, 0, 9, Exclusive)), None);
        assert_eq!(locks.in_the_way(&lock(2, 19, 50, Exclusive)), Some(lock(1, 10, 19, Shared).spec));
        locks.set(lock(3, 2, 4, Shared), None).unwrap();
        assert_eq!(
            locks.in_the_way(&lock(2, 0, 50, Exclusive)),
            Some(lock(3, 2, 4, Shared).spec),
            "the first by position"
        );
        assert_eq!(locks.in_the_way(&whole(2, Exclusive)), None, "flock and fcntl know nothing of each other");
        assert!(matches!(locks.set(lock(2, 0, 50, Exclusive), None), Ok(LockOutcome::Held { .. })));
    }

    #[test]
    fn who_waits_is_granted_in_order_and_told() {
        let mut locks = FileLocks::default();
        locks.set(lock(1, 0, 9, Exclusive), None).expect("there is room");
        for owner in 2..5 {
            assert_eq!(locks.set(lock(owner, 0, 9, Exclusive), Some(owner)), Ok(LockOutcome::Queued));
        }
        let mut two = locks.listen(SessionId(2), 2).expect("it waits");
        assert!(locks.cancel(SessionId(3), 3) && !locks.cancel(SessionId(3), 3));
        assert_eq!(two.try_recv(), Ok(None));
        locks.forget(SessionId(1));
        assert_eq!(two.try_recv(), Ok(Some(())));
        assert!(locks.listen(SessionId(2), 2).is_none());
        unlock(&mut locks, 2, 0, 9);
        assert_eq!(ranges(&locks, 4), [(0, 9, Exclusive)]);
    }

    #[test]
    fn a_weaker_lock_lets_others_in() {
        let mut locks = FileLocks::default();
        locks.set(lock(1, 0, 9, Exclusive), None).expect("there is room");
        assert_eq!(locks.set(lock(2, 0, 9, Shared), Some(1)), Ok(LockOutcome::Queued));
        locks.set(lock(1, 0, 9, Shared), None).expect("there is room");
        assert_eq!(ranges(&locks, 2), [(0, 9, Shared)]);
    }

    #[test]
    fn a_circle_of_waiters_is_seen() {
        let mut locks = FileLocks::default();
        for owner in 1..4 {
            locks.set(lock(owner, owner * 10, owner * 10, Exclusive), None).expect("there is room");
        }
        assert_eq!(locks.set(lock(1, 20, 20, Exclusive), Some(1)), Ok(LockOutcome::Queued));
        assert_eq!(locks.set(lock(2, 30, 30, Exclusive), Some(1)), Ok(LockOutcome::Queued));
        assert_eq!(locks.set(lock(3, 10, 10, Exclusive), Some(1)), Ok(LockOutcome::Deadlock));
        assert_eq!(locks.set(lock(3, 40, 40, Exclusive), Some(1)), Ok(LockOutcome::Granted));
    }

    #[test]
    fn flock_gives_up_what_it_has_before_it_waits() {
        let mut locks = FileLocks::default();
        locks.set(whole(1, Shared), None).expect("there is room");
        locks.set(whole(2, Shared), None).expect("there is room");
        assert_eq!(locks.set(whole(1, Exclusive), Some(1)), Ok(LockOutcome::Queued));
        assert_eq!(locks.set(whole(2, Exclusive), Some(1)), Ok(LockOutcome::Queued));
        assert_eq!(ranges(&locks, 1), [(0, u64::MAX, Exclusive)], "both wanted more: the first one has it");
    }

    #[test]
    fn the_number_of_locks_is_bounded() {
        let mut locks = FileLocks::default();
        for index in 0..LOCKS_PER_FILE_MAX as u64 {
            assert_eq!(locks.set(lock(1, index * 2, index * 2, Shared), None), Ok(LockOutcome::Granted));
        }
        assert_eq!(locks.set(lock(1, u64::MAX, u64::MAX, Shared), None), Err(TooMany));
    }
}
