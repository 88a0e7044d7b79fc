//! Locks of files at their home. A request that must wait stays in the file's queue, without any
//! task or thread: its client asks now and then for the outcome, and is answered at once when
//! it is granted. A lock goes when its session unlocks it, has closed the file, or has ended
//! and no server takes anything from it any more.

use crate::names::state::lock_table::{FileLocks, LOCKS_PER_FILE_MAX, Lock, TooMany};
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_proto::message::{LockOutcome, LockSpec};
use aze_proto::{Code, Failure, FileKind, Ino, Reply, Request, ServerIndex, SessionId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a question after a waiting request is held back at most: less than the silence after
/// which it would be sent again.
const ANSWER_TIME: Duration = Duration::from_millis(900);

impl Server {
    fn check_lockable(&self, names: &Names, ino: Ino, lock: &LockSpec) -> Result<(), Failure> {
        let attr = &names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr;
        if attr.kind != FileKind::File || lock.start > lock.end {
            return Err(Failure::new(Code::Invalid, format!("a lock of inode {ino}, a {:?}: {lock:?}", attr.kind)));
        }
        Ok(())
    }

    pub(crate) fn set_lock(
        self: &Arc<Self>,
        work: &mut Work,
        ino: Ino,
        lock: LockSpec,
        wait: Option<u64>,
    ) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        self.check_lockable(&names, ino, &lock)?;
        let locks = names.locks.entry(ino).or_default();
        let outcome = locks.set(Lock { session: work.session, spec: lock }, wait);
        drop_if_empty(&mut names, ino);
        drop(names);
        if matches!(outcome, Ok(LockOutcome::Granted | LockOutcome::Queued)) {
            self.watch_session(work.session);
        }
        let outcome = outcome.map_err(|TooMany| {
            let detail = format!("inode {ino}: {LOCKS_PER_FILE_MAX} locks, or as many requests that wait");
            Failure::new(Code::Limit, detail)
        })?;
        Ok(Reply::LockIs { outcome }.into())
    }

    pub(crate) fn unlock(
        &self,
        work: &mut Work,
        ino: Ino,
        space: aze_proto::message::LockSpace,
        owner: u64,
        start: u64,
        end: u64,
    ) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        if let Some(locks) = names.locks.get_mut(&ino) {
            locks.unlock(work.session, space, owner, start, end);
            drop_if_empty(&mut names, ino);
        } else if names.shard.inode(ino).is_none() {
            return Err(self.gone(ino).into());
        }
        Ok(Reply::Done.into())
    }

    pub(crate) fn test_lock(&self, work: &Work, ino: Ino, lock: LockSpec) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        self.check_lockable(&names, ino, &lock)?;
        let lock = Lock { session: work.session, spec: lock };
        let held = names.locks.get(&ino).and_then(|locks| locks.in_the_way(&lock));
        let outcome = held.map_or(LockOutcome::Granted, |by| LockOutcome::Held { by });
        Ok(Reply::LockIs { outcome }.into())
    }

    pub(crate) fn await_lock(self: &Arc<Self>, work: &Work, ino: Ino, wait: u64) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        if names.shard.inode(ino).is_none() {
            return Err(self.gone(ino).into());
        }
        let session = work.session;
        // Only a grant takes a request out of the queue without its session's doing.
        let Some(granted) = names.locks.get_mut(&ino).and_then(|locks| locks.listen(session, wait)) else {
            return Ok(Reply::LockIs { outcome: LockOutcome::Granted }.into());
        };
        drop(names);
        let server = self.clone();
        then(async move {
            let outcome = match server.io.timeout(ANSWER_TIME, granted).await {
                Some(Ok(())) => LockOutcome::Granted,
                // The queue has gone with the file's slot: the client asks there.
                Some(Err(_)) if server.shards.home(ino).is_none() => return Err(server.stale()),
                Some(Err(_)) => LockOutcome::Cancelled,
                None => LockOutcome::Queued,
            };
            Ok(Reply::LockIs { outcome })
        })
    }

    pub(crate) fn cancel_lock(&self, work: &mut Work, ino: Ino, wait: u64) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        let cancelled = names.locks.get_mut(&ino).is_some_and(|locks| locks.cancel(work.session, wait));
        drop_if_empty(&mut names, ino);
        let outcome = if cancelled { LockOutcome::Cancelled } else { LockOutcome::Granted };
        Ok(Reply::LockIs { outcome }.into())
    }

    /// Whether a session has or waits for locks of files with their home here, or has frozen one.
    pub(crate) fn has_locks(&self, session: SessionId) -> bool {
        self.shards.iter().any(|cell| {
            let names = cell.names.lock();
            names.opens.has_frozen(session) || names.locks.values().any(|locks| locks.is_known(session))
        })
    }

    /// Drops the locks of a session here, now that every server refuses its requests.
    fn drop_locks(&self, session: SessionId) {
        for cell in self.shards.iter() {
            let mut names = cell.names.lock();
            names.opens.thaw(session);
            names.locks.retain(|_, locks| {
                locks.forget(session);
                !locks.is_empty()
            });
        }
    }

    /// After a session that has locks here has ended: tells every server to refuse it, and when all of
    /// them do, the locks go. A write that is still on its way has no effect after that.
    pub(crate) fn free_locks(self: &Arc<Self>, session: SessionId) {
        if !self.has_locks(session) || !self.sessions.begin_freeing(session) {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            let mut told = BTreeSet::new();
            loop {
                let map = server.map();
                let untold: Vec<ServerIndex> = map.members().filter(|index| !told.contains(index)).collect();
                if untold.is_empty() || !told.is_empty() && server.config.switches.is(Sabotage::FenceOnce) {
                    break;
                }
                let fences = untold.iter().map(|index| {
                    let server = server.clone();
                    async move { server.ask_in_the_end(*index, Request::FenceSession { session }).await }
                });
                futures_util::future::join_all(fences).await;
                told.extend(untold);
                // A server that has joined meanwhile is in the map by which the keeper has answered, or was told by it.
                server.until_map_is_new().await;
            }
            server.drop_locks(session);
            server.sessions.end_freeing(session);
        });
    }

    /// Refuses a session from now on; answers when none of its changes is under way here.
    pub(crate) fn fence_session(self: &Arc<Self>, session: SessionId) -> Attempt<Output> {
        self.sessions.fence(session);
        self.end_session(session);
        let server = self.clone();
        then(async move {
            server.until_quiet(&[session]).await;
            Ok(Reply::Done)
        })
    }

    /// Waits until no change of sessions that are refused is under way here.
    pub(crate) async fn until_quiet(&self, sessions: &[SessionId]) {
        loop {
            let changed = self.sessions.next_finished();
            let is_busy = |session: &SessionId| self.shards.iter().any(|cell| cell.names.lock().running.has(*session));
            if !sessions.iter().any(is_busy) {
                return;
            }
            // Its end is a sign as well.
            let _ = changed.await;
        }
    }
}

/// The last close of a file by a session drops its locks.
pub(crate) fn forget_locks(names: &mut Names, ino: Ino, session: SessionId) {
    if let Some(locks) = names.locks.get_mut(&ino) {
        locks.forget(session);
        drop_if_empty(names, ino);
    }
}

fn drop_if_empty(names: &mut Names, ino: Ino) {
    if names.locks.get(&ino).is_some_and(FileLocks::is_empty) {
        names.locks.remove(&ino);
    }
}
