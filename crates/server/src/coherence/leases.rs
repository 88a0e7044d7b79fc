//! What leases mean for a server's answers: some give leases, some tell of recalls, and those to changes wait for them.

use crate::coherence::state::leases::{HELD, Listener};
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_proto::{Code, Failure, FileKind, Ino, Request, ShardId};
use std::sync::Arc;
use std::time::Duration;

/// How long a question waits for a recall: less than the silence after which it would be sent again.
const ANSWER_TIME: Duration = Duration::from_millis(900);

/// After so many sweeps that find no expired lease the task that sweeps ends: then no claim counts any more.
const QUIET_SWEEPS: usize = 3;

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
        listener.is_some_and(|listener| names.shard.lease_table.give(ino, &listener, self.io.mono_ns()))
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
        if self.leases.is_life(life) {
            listener.confirmed(confirmed);
        }
        let woken = match listener.news_or_bell(now_ns) {
            Ok(news) => return Ok(news.into()),
            Err(woken) => woken,
        };
        let server = self.clone();
        then(async move {
            // Also if a newer question has taken its place.
            let _ = server.io.timeout(ANSWER_TIME, woken).await;
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
        if !self.leases.begin_sweeping() {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            let mut quiet = 0;
            loop {
                server.io.sleep(HELD).await;
                let now_ns = server.io.mono_ns();
                server.leases.turn_claims(now_ns);
                for cell in server.shards.iter() {
                    cell.names.lock().shard.lease_table.sweep(now_ns);
                }
                // The last claim expires only after two more periods.
                quiet = if server.leases.sweep(now_ns) { 0 } else { quiet + 1 };
                let mut goes_on = quiet < QUIET_SWEEPS;
                if !goes_on {
                    server.leases.end_sweeping();
                    // Another task may have given a lease in between, and have relied on this one.
                    goes_on = server.leases.sweep(now_ns) && server.leases.begin_sweeping();
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
        self.leases.may_hold_answers(|| self.io.mono_ns())
    }

    /// Waits until no session has a lease that is older than the last change of a shard.
    pub(crate) async fn recalled(&self, shard: ShardId) {
        let left = self.leases.inherited_for(self.io.mono_ns());
        if !left.is_zero() {
            self.io.sleep(left).await;
        }
        let mark = self.leases.last_recall();
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
