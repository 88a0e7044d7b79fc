//! What leases mean for a server's answers: some give leases, some tell of recalls, and those to changes wait for them.

use super::{ANSWER_TIME, HELD, Listener, QUIET_SWEEPS};
use crate::dispatch::{Output, Work, then};
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use crate::wait::Attempt;
use aze_proto::{Code, Failure, FileKind, Ino, Request, ShardId};
use futures_channel::oneshot;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

impl Server {
    /// The session that asks, if it gets leases.
    pub(crate) fn listener_of(self: &Arc<Self>, work: &Work) -> Option<Arc<Listener>> {
        work.responder.as_ref()?;
        self.leases.listener(work.session, self.io.mono_ns())
    }

    /// Gives the session that asks a lease of an inode in its answer, if it listens. Directories have none: their
    /// times and counts change in many places.
    pub(crate) fn lease(self: &Arc<Self>, work: &Work, names: &mut Names, ino: Ino, kind: FileKind) -> bool {
        let listener = if kind == FileKind::Directory { None } else { self.listener_of(work) };
        listener.is_some_and(|listener| names.shard.told.give(ino, &listener, self.io.mono_ns()))
    }

    /// Answers when a lease of the session is recalled, or soon in any case.
    pub(crate) fn await_recall(self: &Arc<Self>, work: &Work, life: u64, confirmed: u64) -> Attempt<Output> {
        let now_ns = self.io.mono_ns();
        let listener = self.leases.listens(work.session, now_ns)?;
        if self.sessions.is_ended(work.session) {
            // It has ended since this request was admitted; ending it removes its leases after that.
            self.leases.forget(work.session);
            return Err(Failure::new(Code::Expired, format!("{}: the session was ended", self.who())).into());
        }
        self.sweep_leases();
        if life == self.leases.life {
            listener.confirmed(confirmed);
        }
        let rung = {
            let mut mail = listener.mail.lock();
            if mail.recalls.values().any(|(_, until_ns)| *until_ns > now_ns) {
                drop(mail);
                return Ok(listener.news(now_ns).into());
            }
            let (bell, rung) = oneshot::channel();
            // An older question is answered by this: it has been given up, or will be asked again.
            mail.bell = Some(bell);
            rung
        };
        let server = self.clone();
        then(async move {
            // Also if a newer question has taken its place.
            let _ = server.io.timeout(ANSWER_TIME, rung).await;
            Ok(listener.news(server.io.mono_ns()))
        })
    }

    /// As [`Self::sweep_leases`].
    pub(crate) fn sweep_leases_soon(&self) {
        if let Some(server) = self.me.upgrade() {
            server.sweep_leases();
        }
    }

    /// Has a task remove expired leases, for as long as there are leases.
    pub(crate) fn sweep_leases(self: &Arc<Self>) {
        if self.leases.is_swept.swap(true, SeqCst) {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            let mut quiet = 0;
            loop {
                server.io.sleep(HELD).await;
                let now_ns = server.io.mono_ns();
                if let Some(claims) = &server.leases.claims {
                    claims.turn(now_ns);
                }
                for cell in server.shards.iter() {
                    cell.names.lock().shard.told.sweep(now_ns);
                }
                // The last claim expires only after two more periods.
                quiet = if server.leases.sweep(now_ns) { 0 } else { quiet + 1 };
                let mut goes_on = quiet < QUIET_SWEEPS;
                if !goes_on {
                    server.leases.is_swept.store(false, SeqCst);
                    // Another task may have given a lease in between, and have relied on this one.
                    goes_on = server.leases.sweep(now_ns) && !server.leases.is_swept.swap(true, SeqCst);
                }
                if !goes_on || server.is_stopping() {
                    return;
                }
            }
        });
    }

    /// Whether the answer to a request may have to wait for recalls: those that change nothing need not.
    pub(crate) fn waits_for_recalls(&self, request: &Request) -> bool {
        let may_change = request.is_change() || matches!(request, Request::Commit { .. });
        if !may_change || self.config.switches.is(Sabotage::SkipRecallWait) {
            return false;
        }
        let settled_ns = self.leases.settled_ns.load(SeqCst);
        self.leases.open.load(SeqCst) > 0 || (settled_ns > 0 && self.io.mono_ns() < settled_ns)
    }

    /// Waits until no session has a lease that is older than the last change of a shard.
    pub(crate) async fn recalled(&self, shard: ShardId) {
        let settled_ns = self.leases.settled_ns.load(SeqCst);
        let unsettled = Duration::from_nanos(settled_ns.saturating_sub(self.io.mono_ns()));
        if !unsettled.is_zero() {
            self.io.sleep(unsettled).await;
        }
        let mark = self.leases.recalls.lock().last;
        while let Some((changed, left)) = self.leases.open_of(shard, mark, self.io.mono_ns()) {
            // Whichever it was: look again.
            let _ = self.io.timeout(left, changed).await;
        }
    }

    /// How many leases there are, and sessions that listen.
    pub fn lease_counts(&self) -> (usize, usize) {
        self.leases.counts()
    }
}
