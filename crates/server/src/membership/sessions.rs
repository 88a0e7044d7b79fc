//! Sessions: the connected processes, and what ends with them.
//!
//! A session holds its opens while it has a connection to this server and `SESSION_GRACE_MS` after the
//! last one closed; then files that only it kept are deleted (those of a server's client, which has them open for others,
//! after `FORGET_TIME`). It may come back and go on, since its
//! requests are still told apart; only one that was away for `FORGET_TIME` is forgotten and refused,
//! or that had locks, or had frozen a file, for which others may wait.

use crate::membership::state::moving::UnderWay;
use crate::sabotage::Sabotage;
use crate::state::Server;
use aze_proto::limits::{CONTACT_JOB, SESSION_GRACE_MS};
use aze_proto::{Request, SessionId, ShardId, Time};
use aze_rpc::Proven;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a session may be away before its retry records are forgotten. A laptop's lunch break is
/// shorter; records of a thousand dead clients must not stay for days.
const FORGET_TIME: Duration = Duration::from_secs(3600);

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
            let _settled = server.until_settled().await;
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
            let came = |session: &SessionId| server.sessions.is_alive(*session);
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
        self.sessions.connects(who.session);
    }

    pub(crate) fn session_leaves(&self, who: &Proven) {
        // Another server is who it is for as long as it runs, however long it was out of reach;
        // it holds nothing open, and a new life of it comes with a new session.
        let leaving = self.sessions.disconnects(who.session).filter(|_| !who.server);
        // A client of another node may connect in advance to servers that it then does not need. (One of this node may
        // have read the published index, which takes no request.)
        let has_asked = who.credentials.is_some() || who.usage.requests.load(Ordering::Relaxed) > 0;
        if leaving.is_some() && !has_asked && self.sessions.forget_unused(who.session) {
            return;
        }
        if let Some(leaving) = leaving {
            let Some(server) = self.me.upgrade() else { return };
            let (session, is_for_others) = (who.session, who.job == CONTACT_JOB);
            self.io.spawn(async move {
                let is_away = || server.sessions.is_away(session, leaving);
                server.io.sleep(Duration::from_millis(SESSION_GRACE_MS)).await;
                let settled = server.until_settled().await;
                if is_away() && server.has_locks(session) {
                    // Others wait for its locks: it cannot come back.
                    return server.end_session(session);
                }
                if is_away() {
                    if !is_for_others {
                        server.session_left(session);
                    }
                    drop(settled);
                    server.io.sleep(FORGET_TIME).await;
                    let _settled = server.until_settled().await;
                    if is_away() {
                        server.end_session(session);
                    }
                }
            });
        }
    }

    /// Drops what the session held on this server, and refuses it from now on.
    pub(crate) fn end_session(self: &Arc<Self>, session: SessionId) {
        self.sessions.end(session);
        self.shards.watches.forget(session);
        self.drop_opens(session, true);
        self.free_locks(session);
        self.forget_outcomes(session);
        self.moving.forget_session(session);
        self.tell_heirs(session, true);
    }

    /// A session was away for its grace: its opens are closed.
    pub(crate) fn session_left(self: &Arc<Self>, session: SessionId) {
        self.drop_opens(session, false);
        self.tell_heirs(session, false);
    }

    /// A session that had something here, and never a connection, is forgotten as one that is away.
    pub(crate) fn forget_session_later(self: &Arc<Self>, session: SessionId) {
        let server = Arc::downgrade(self);
        let io = self.io.clone();
        self.io.spawn(async move {
            io.sleep(FORGET_TIME).await;
            let Some(server) = server.upgrade() else { return };
            let _settled = server.until_settled().await;
            if !server.sessions.is_alive(session) {
                server.forget_outcomes(session);
            }
        });
    }

    /// Tells the servers to which slots have moved in which the session had something open or locked.
    fn tell_heirs(self: &Arc<Self>, session: SessionId, is_over: bool) {
        let heirs = self.moving.take_heirs(session);
        for heir in heirs.into_iter().filter(|_| !self.config.switches.is(Sabotage::ForgetHeirs)) {
            self.persist(heir, ShardId(0), Request::SessionGone { session, is_over });
        }
    }

    /// Waits until no slot is being given or taken here, since what ends with a session would be missed. None is as long as what
    /// this gives is there.
    pub(crate) async fn until_settled(&self) -> UnderWay {
        loop {
            if let Some(settled) = self.moving.begin_at_rest() {
                return settled;
            }
            if let Some(changed) = self.moving.changed() {
                // Whichever phase comes: look again.
                let _ = changed.await;
            }
        }
    }

    fn drop_opens(self: &Arc<Self>, session: SessionId, is_over: bool) {
        self.leases.forget(session);
        self.opened.forget(session);
        for cell in self.shards.iter() {
            let closed = cell.names.lock().opens.remove_session(session, is_over);
            for ino in closed {
                self.delete_if_orphan(ino);
            }
        }
    }
}
