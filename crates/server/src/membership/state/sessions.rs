//! The table of sessions: which have a connection, which have ended, which have locks here, and which changes are waited for.

use aze_io::sync::Mutex;
use aze_proto::SessionId;
use aze_proto::limits::SESSION_GRACE_MS;
use futures_channel::oneshot;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Ended sessions that are remembered in order to refuse their late requests.
const ENDED_KEPT: usize = 65_536;

/// Ended sessions that a server is told of when it comes back alone.
const FENCED_KEPT: usize = 16_384;

#[derive(Default)]
struct Table {
    /// Connections of each session; with none, a task counts down its grace.
    alive: BTreeMap<SessionId, Alive>,
    ended: BTreeSet<SessionId>,
    ended_order: VecDeque<SessionId>,
    /// Those of them that no server may serve any more, the last ones.
    fenced: VecDeque<SessionId>,
    /// Those that have locks here, and when they were last known to live.
    heard_ns: BTreeMap<SessionId, u64>,
    /// Ended ones whose locks here are about to go.
    freeing: BTreeSet<SessionId>,
    /// The tasks that wait for changes to finish.
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Alive {
    connections: u32,
    /// Counts disconnections, so that an old countdown knows that it is not the last one.
    leavings: u64,
}

pub(crate) struct Sessions {
    table: Mutex<Table>,
    /// How many sessions have ended so far.
    ends: AtomicU64,
    /// Whether a task waits for changes to finish.
    is_waited_for: AtomicBool,
}

impl Sessions {
    pub(crate) fn new() -> Sessions {
        Sessions { table: Mutex::default(), ends: AtomicU64::new(0), is_waited_for: AtomicBool::new(false) }
    }

    pub(crate) fn is_ended(&self, session: SessionId) -> bool {
        self.table.lock().ended.contains(&session)
    }

    /// Whether the session has a connection.
    pub(crate) fn is_connected(&self, session: SessionId) -> bool {
        self.table.lock().alive.get(&session).is_some_and(|alive| alive.connections > 0)
    }

    /// The sessions that have a connection.
    pub(crate) fn all_connected(&self) -> Vec<SessionId> {
        let table = self.table.lock();
        table.alive.iter().filter(|(_, alive)| alive.connections > 0).map(|(session, _)| *session).collect()
    }

    /// Whether locks of a session are about to be freed.
    pub(crate) fn is_freeing(&self) -> bool {
        !self.table.lock().freeing.is_empty()
    }

    /// Whether the session has a connection, or has lost the last one and may come back.
    pub(crate) fn is_alive(&self, session: SessionId) -> bool {
        self.table.lock().alive.contains_key(&session)
    }

    /// A connection of the session stands. Those of one that has ended do not count.
    pub(crate) fn connects(&self, session: SessionId) {
        let mut table = self.table.lock();
        if !table.ended.contains(&session) {
            table.alive.entry(session).or_default().connections += 1;
        }
    }

    /// A connection of the session has ended; with the last one the number of this leaving, for [`Self::is_away`].
    pub(crate) fn disconnects(&self, session: SessionId) -> Option<u64> {
        let mut table = self.table.lock();
        // One that has ended may have had several connections.
        let alive = table.alive.get_mut(&session).filter(|alive| alive.connections > 0)?;
        alive.connections -= 1;
        alive.leavings += 1;
        (alive.connections == 0).then_some(alive.leavings)
    }

    /// Forgets a session whose only connection has ended: it has asked nothing, and may come as a new one.
    pub(crate) fn forget_unused(&self, session: SessionId) -> bool {
        let mut table = self.table.lock();
        let is_unused = table.alive.get(&session).is_some_and(|alive| alive.connections == 0 && alive.leavings == 1);
        if is_unused {
            table.alive.remove(&session);
        }
        is_unused
    }

    /// Whether the session has not come back since a leaving.
    pub(crate) fn is_away(&self, session: SessionId, leaving: u64) -> bool {
        let table = self.table.lock();
        table.alive.get(&session).is_some_and(|alive| alive.connections == 0 && alive.leavings == leaving)
    }

    /// How many sessions have ended: if none has since, one that had not ended has not.
    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Ordering::SeqCst)
    }

    /// A session has locked something; `true` if it was not known to have anything.
    pub(crate) fn has_locked(&self, session: SessionId, now_ns: u64) -> bool {
        self.table.lock().heard_ns.insert(session, now_ns).is_none()
    }

    /// A session that has locks lives.
    pub(crate) fn heard(&self, session: SessionId, now_ns: u64) {
        if let Some(heard_ns) = self.table.lock().heard_ns.get_mut(&session) {
            *heard_ns = now_ns;
        }
    }

    /// How long a session that has locks may still be silent; it is no longer watched if that is over.
    pub(crate) fn silence_left(&self, session: SessionId, now_ns: u64) -> Option<Duration> {
        let mut table = self.table.lock();
        let until_ns = table.heard_ns.get(&session)? + SESSION_GRACE_MS * 1_000_000;
        if now_ns >= until_ns {
            table.heard_ns.remove(&session);
            return None;
        }
        Some(Duration::from_nanos(until_ns - now_ns))
    }

    /// Notes that locks are about to be freed; `false` if that is so already.
    pub(crate) fn begin_freeing(&self, session: SessionId) -> bool {
        self.table.lock().freeing.insert(session)
    }

    pub(crate) fn end_freeing(&self, session: SessionId) {
        self.table.lock().freeing.remove(&session);
    }

    /// Resolves when a change that is under way now or begins later has finished.
    pub(crate) fn next_finished(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.table.lock().waiting.push(sender);
        self.is_waited_for.store(true, Ordering::SeqCst);
        receiver
    }

    /// A change has finished.
    pub(crate) fn finished(&self) {
        if !self.is_waited_for.load(Ordering::SeqCst) {
            return;
        }
        let waiting = {
            let mut table = self.table.lock();
            self.is_waited_for.store(false, Ordering::SeqCst);
            std::mem::take(&mut table.waiting)
        };
        for waiting in waiting {
            // An error means that the task has given up.
            let _ = waiting.send(());
        }
    }

    /// Sessions with a connection. One that has left stays in the table until it is forgotten.
    pub(crate) fn connected(&self) -> u64 {
        self.table.lock().alive.values().filter(|alive| alive.connections > 0).count() as u64
    }

    /// No server serves this session, which ends.
    pub(crate) fn fence(&self, session: SessionId) {
        let mut table = self.table.lock();
        if !table.fenced.contains(&session) {
            table.fenced.push_back(session);
        }
        if table.fenced.len() > FENCED_KEPT {
            table.fenced.pop_front();
        }
    }

    /// Sessions that no server serves.
    pub(crate) fn fenced(&self) -> Vec<SessionId> {
        self.table.lock().fenced.iter().copied().collect()
    }

    /// Refuses the session from now on.
    pub(crate) fn end(&self, session: SessionId) {
        let mut table = self.table.lock();
        table.alive.remove(&session);
        self.ends.fetch_add(1, Ordering::SeqCst);
        if table.ended.insert(session) {
            table.ended_order.push_back(session);
        }
        if table.ended_order.len() > ENDED_KEPT
            && let Some(oldest) = table.ended_order.pop_front()
        {
            table.ended.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const ONE: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    /// A session with two connections loses one, then the other, and comes back before its grace is over.
    #[test]
    fn a_session_is_away_until_it_comes_back() {
        let sessions = Sessions::new();
        sessions.connects(ONE);
        sessions.connects(ONE);
        assert_eq!(sessions.disconnects(ONE), None, "it has another connection");
        let first = sessions.disconnects(ONE).expect("the last connection has ended");
        assert!(sessions.is_away(ONE, first) && sessions.is_alive(ONE));
        assert_eq!(sessions.connected(), 0);
        sessions.connects(ONE);
        assert!(!sessions.is_away(ONE, first));
        let second = sessions.disconnects(ONE).expect("the last connection has ended");
        assert!(!sessions.is_away(ONE, first), "the countdown of the first leaving must not end it");
        assert!(sessions.is_away(ONE, second));
        assert_eq!(sessions.disconnects(OTHER), None, "it was never there");
    }

    #[test]
    fn a_session_that_came_once_and_asked_nothing_is_forgotten() {
        let sessions = Sessions::new();
        sessions.connects(ONE);
        assert!(!sessions.forget_unused(ONE), "it is connected");
        sessions.disconnects(ONE);
        assert!(sessions.forget_unused(ONE) && !sessions.is_alive(ONE) && !sessions.is_ended(ONE));
        for _ in 0..2 {
            sessions.connects(ONE);
            sessions.disconnects(ONE);
        }
        assert!(!sessions.forget_unused(ONE) && sessions.is_alive(ONE), "its first connection may have asked");
    }

    /// It had two connections, and opens a third one.
    #[test]
    fn the_connections_of_an_ended_session_do_not_count() {
        let sessions = Sessions::new();
        sessions.connects(ONE);
        sessions.connects(ONE);
        sessions.end(ONE);
        sessions.connects(ONE);
        assert!(!sessions.is_connected(ONE) && !sessions.is_alive(ONE));
        for _ in 0..3 {
            assert_eq!(sessions.disconnects(ONE), None, "there is nothing to count down");
        }
        assert_eq!(sessions.connected(), 0);
    }

    #[test]
    fn an_ended_session_is_refused_until_very_many_others_have_ended() {
        let sessions = Sessions::new();
        sessions.connects(ONE);
        sessions.end(ONE);
        assert!(sessions.is_ended(ONE) && !sessions.is_alive(ONE) && !sessions.is_ended(OTHER));
        sessions.end(ONE);
        assert_eq!(sessions.ends(), 2);
        (0..ENDED_KEPT as u64 - 1).for_each(|number| sessions.end(SessionId(100 + number)));
        assert!(sessions.is_ended(ONE));
        sessions.end(OTHER);
        assert!(!sessions.is_ended(ONE) && sessions.is_ended(OTHER));
    }

    #[test]
    fn a_session_with_locks_has_to_say_that_it_lives() {
        let (sessions, grace_ns) = (Sessions::new(), SESSION_GRACE_MS * 1_000_000);
        assert_eq!(sessions.silence_left(ONE, 0), None, "it has no locks");
        assert!(sessions.has_locked(ONE, 10));
        assert!(!sessions.has_locked(ONE, 20));
        sessions.heard(ONE, 30);
        assert_eq!(sessions.silence_left(ONE, 30), Some(Duration::from_nanos(grace_ns)));
        assert_eq!(sessions.silence_left(ONE, 29 + grace_ns), Some(Duration::from_nanos(1)));
        assert_eq!(sessions.silence_left(ONE, 30 + grace_ns), None);
        sessions.heard(ONE, 40 + grace_ns);
        assert_eq!(sessions.silence_left(ONE, 40 + grace_ns), None, "it is watched no more");
    }

    #[test]
    fn tasks_that_wait_for_changes_hear_of_the_next_one_once() {
        let sessions = Sessions::new();
        sessions.finished();
        let (first, second) = (sessions.next_finished(), sessions.next_finished());
        assert!(first.now_or_never().is_none(), "a change that had finished before is none");
        sessions.finished();
        assert_eq!(second.now_or_never(), Some(Ok(())));
        assert!(sessions.next_finished().now_or_never().is_none());
    }
}
