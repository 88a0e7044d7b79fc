//! Sessions: who is connected, and what ends with them.
//!
//! A session holds its opens while it has a connection to this server and `SESSION_GRACE_MS` after the
//! last one closed; then files that only it kept are deleted. It may come back and go on, since its
//! requests are still told apart; only one that was away for `FORGET_TIME` is forgotten and refused.

use crate::state::Server;
use aze_proto::limits::SESSION_GRACE_MS;
use aze_proto::{Ino, SessionId};
use aze_rpc::Proven;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Ended sessions that are remembered in order to refuse their late requests.
const ENDED_KEPT: usize = 65_536;

/// How long a session may be away before what it has asked is forgotten. A laptop's lunch break is
/// shorter; records of a thousand dead clients must not stay for days.
const FORGET_TIME: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Table {
    /// Connections of each session; with none, a task counts down its grace.
    alive: BTreeMap<SessionId, Alive>,
    ended: BTreeSet<SessionId>,
    ended_order: VecDeque<SessionId>,
}

#[derive(Default)]
struct Alive {
    connections: u32,
    /// Counts disconnections, so that an old countdown knows that it is not the last one.
    leavings: u64,
}

pub(crate) struct Sessions {
    table: Mutex<Table>,
}

impl Sessions {
    pub(crate) fn new() -> Sessions {
        Sessions { table: Mutex::new(Table::default()) }
    }

    pub(crate) fn is_ended(&self, session: SessionId) -> bool {
        self.table.lock().ended.contains(&session)
    }

    pub(crate) fn connected(&self) -> u64 {
        self.table.lock().alive.len() as u64
    }

    fn end(&self, session: SessionId) {
        let mut table = self.table.lock();
        table.alive.remove(&session);
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
        self.drop_opens(session);
        for cell in self.shards.iter() {
            cell.data.lock().forget_session(session);
            cell.names.lock().shard.forget_session(session);
        }
    }

    fn drop_opens(self: &Arc<Self>, session: SessionId) {
        for cell in self.shards.iter() {
            let mut orphans: Vec<Ino> = Vec::new();
            cell.names.lock().opens.retain(|ino, holders| {
                holders.retain(|(holder, _)| *holder != session);
                if holders.is_empty() {
                    orphans.push(*ino);
                }
                !holders.is_empty()
            });
            for ino in orphans {
                self.delete_if_orphan(ino);
            }
        }
    }
}
