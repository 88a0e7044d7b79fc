//! Sessions: the connected processes, and what ends with them.
//!
//! A session holds its opens while it has a connection to this server and `SESSION_GRACE_MS` after the
//! last one closed; then files that only it kept are deleted. It may come back and go on, since its
//! requests are still told apart; only one that was away for `FORGET_TIME` is forgotten and refused,
//! or that had locks for which others may wait.

use crate::state::Server;
use aze_proto::limits::SESSION_GRACE_MS;
use aze_proto::{SessionId, Time};
use aze_rpc::Proven;
use futures_channel::oneshot;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Ended sessions that are remembered in order to refuse their late requests.
const ENDED_KEPT: usize = 65_536;

/// How long a session may be away before its retry records are forgotten. A laptop's lunch break is
/// shorter; records of a thousand dead clients must not stay for days.
const FORGET_TIME: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Table {
    /// Connections of each session; with none, a task counts down its grace.
    alive: BTreeMap<SessionId, Alive>,
    ended: BTreeSet<SessionId>,
    ended_order: VecDeque<SessionId>,
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

    /// How many sessions have ended: if none has since, one that had not ended has not.
    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Ordering::SeqCst)
    }

    /// A session has locked something; `true` if it was not known to have anything.
    fn has_locked(&self, session: SessionId, now_ns: u64) -> bool {
        self.table.lock().heard_ns.insert(session, now_ns).is_none()
    }

    /// A session that has locks lives.
    pub(crate) fn heard(&self, session: SessionId, now_ns: u64) {
        if let Some(heard_ns) = self.table.lock().heard_ns.get_mut(&session) {
            *heard_ns = now_ns;
        }
    }

    /// How long a session that has locks may still be silent; it is no longer watched if that is over.
    fn silence_left(&self, session: SessionId, now_ns: u64) -> Option<Duration> {
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

    /// Sessions with a connection. One that has left stays in the table for [`FORGET_TIME`].
    pub(crate) fn connected(&self) -> u64 {
        self.table.lock().alive.values().filter(|alive| alive.connections > 0).count() as u64
    }

    fn end(&self, session: SessionId) {
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

impl Server {
    /// A session has locked something here: from now on it has to say that it lives, since one that was
    /// cut off, or whose node has lost power, leaves its connections standing.
    pub(crate) fn watch_session(self: &Arc<Self>, session: SessionId) {
        if !self.sessions.has_locked(session, self.io.mono_ns()) {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            while let Some(left) = server.sessions.silence_left(session, server.io.mono_ns()) {
                server.io.sleep(left).await;
            }
            if server.has_locks(session) {
                server.end_session(session);
            }
        });
    }

    /// After a start: outcomes of sessions that were there before and do not come back are forgotten. Those sessions
    /// are not refused: one that had nothing to ask of this server for so long may still come.
    pub(crate) fn forget_sessions_that_stay_away(self: &Arc<Self>) {
        let mut known = BTreeSet::new();
        for cell in self.shards.iter() {
            known.extend(cell.data.lock().outcomes().sessions());
            known.extend(cell.names.lock().shard.outcomes().sessions());
        }
        if known.is_empty() {
            return;
        }
        let server = Arc::downgrade(self);
        let io = self.io.clone();
        self.io.spawn(async move {
            io.sleep(FORGET_TIME).await;
            let Some(server) = server.upgrade() else { return };
            let came = |session: &SessionId| server.sessions.table.lock().alive.contains_key(session);
            known.into_iter().filter(|session| !came(session)).for_each(|session| server.forget_outcomes(session));
        });
    }

    fn forget_outcomes(&self, session: SessionId) {
        let time = self.clock.next(&self.io, Time(0));
        for cell in self.shards.iter() {
            cell.data.lock().end_session(session);
            cell.names.lock().shard.end_session(session, time);
        }
    }

    pub(crate) fn session_begins(&self, who: &Proven) {
        self.sessions.table.lock().alive.entry(who.session).or_default().connections += 1;
    }

    pub(crate) fn session_leaves(&self, who: &Proven) {
        let leaving = {
            let mut table = self.sessions.table.lock();
            let Some(alive) = table.alive.get_mut(&who.session) else { return };
            alive.connections -= 1;
            alive.leavings += 1;
            // Another server is who it is for as long as it runs, however long it was out of reach;
            // it holds nothing open, and a new life of it comes with a new session.
            (alive.connections == 0 && !who.server).then_some(alive.leavings)
        };
        if let Some(leaving) = leaving {
            let Some(server) = self.me.upgrade() else { return };
            let session = who.session;
            self.io.spawn(async move {
                let is_away = || {
                    let table = server.sessions.table.lock();
                    table.alive.get(&session).is_some_and(|alive| alive.connections == 0 && alive.leavings == leaving)
                };
                server.io.sleep(Duration::from_millis(SESSION_GRACE_MS)).await;
                if is_away() && server.has_locks(session) {
                    // Others wait for its locks: it cannot come back.
                    return server.end_session(session);
                }
                if is_away() {
                    server.drop_opens(session);
                    server.io.sleep(FORGET_TIME).await;
                }
                if is_away() {
                    server.end_session(session);
                }
            });
        }
    }

    /// Drops what the session held on this server, and refuses it from now on.
    pub(crate) fn end_session(self: &Arc<Self>, session: SessionId) {
        self.sessions.end(session);
        self.shards.watches.forget(session);
        self.drop_opens(session);
        self.free_locks(session);
        self.forget_outcomes(session);
    }

    fn drop_opens(self: &Arc<Self>, session: SessionId) {
        self.leases.forget(session);
        for cell in self.shards.iter() {
            let closed = cell.names.lock().opens.remove_session(session);
            for ino in closed {
                self.delete_if_orphan(ino);
            }
        }
    }
}
