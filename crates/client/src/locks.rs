//! Locks of open files, kept by the file's home. A program that waits for one has no request under way for
//! longer than a moment: the home keeps the place in the queue, and the client asks again and again.

use crate::client::{Client, Core, unexpected};
use crate::file::File;
use crate::route::{Knowing, Place, Question, is_replanned};
use aze_io::sync::Mutex;
use aze_proto::limits::LOCKS_KEPT_MS;
use aze_proto::message::{LockOutcome, LockSpace, LockSpec};
use aze_proto::{Code, Failure, Identity, Ino, MapEpoch, Reply, Request, ServerIndex};
use aze_rpc::Answer;
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a server says of a lock.
struct Said {
    outcome: LockOutcome,
    /// Its map.
    as_of: MapEpoch,
}

/// What became of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It is held now.
    Granted,
    /// It is not, because of this one.
    Held(LockSpec),
    /// It is not, because waiting for it would never end.
    Deadlock,
    /// It is not, because its wait was ended.
    Interrupted,
}

/// Owners that have, or may have, locks on files of this client.
#[derive(Default)]
pub(crate) struct LockOwners {
    /// With the life of the file's home in which they took the first of them.
    known: Mutex<BTreeMap<(Ino, LockSpace, u64), u32>>,
    /// A task says to their homes that this client lives.
    kept: Mutex<bool>,
    /// Owners of whom a wait ended without an answer, and what may have come of it is being undone.
    undoing: Mutex<BTreeMap<(Ino, LockSpace, u64), Undoing>>,
}

/// How many waits of one owner are being undone, and the tasks that wait until none is any more.
#[derive(Default)]
struct Undoing {
    waits: usize,
    told: Vec<oneshot::Sender<()>>,
}

impl LockOwners {
    fn note(&self, ino: Ino, space: LockSpace, owner: u64, life: u32) {
        self.known.lock().entry((ino, space, owner)).or_insert(life);
    }

    fn has_older(&self, ino: Ino, life: u32) -> bool {
        let known = self.known.lock();
        let mut of_ino = known.range((ino, LockSpace::Ranges, 0)..).take_while(|((other, ..), _)| *other == ino);
        of_ino.any(|(_, taken_in)| *taken_in < life)
    }

    fn is_known(&self, ino: Ino, space: LockSpace, owner: u64) -> bool {
        self.known.lock().contains_key(&(ino, space, owner))
    }

    fn forget(&self, ino: Ino, space: LockSpace, owner: u64) {
        self.known.lock().remove(&(ino, space, owner));
    }

    fn begin_undoing(&self, ino: Ino, lock: &LockSpec) {
        self.undoing.lock().entry((ino, lock.space, lock.owner)).or_default().waits += 1;
    }

    fn end_undoing(&self, ino: Ino, lock: &LockSpec) {
        let mut undoing = self.undoing.lock();
        let key = (ino, lock.space, lock.owner);
        let Some(of_owner) = undoing.get_mut(&key) else { return };
        of_owner.waits -= 1;
        if of_owner.waits == 0 {
            for sender in undoing.remove(&key).map(|done| done.told).unwrap_or_default() {
                // A task that was interrupted does not receive.
                let _ = sender.send(());
            }
        }
    }

    /// Waits until nothing is undone for the owner of a lock: what he locks from now on must not go with
    /// it. That takes as long as two requests are tried, at most.
    async fn all_undone(&self, ino: Ino, lock: &LockSpec) {
        let told = {
            let mut undoing = self.undoing.lock();
            let Some(of_owner) = undoing.get_mut(&(ino, lock.space, lock.owner)) else { return };
            let (sender, told) = oneshot::channel();
            of_owner.told.push(sender);
            told
        };
        let _ = told.await;
    }
}

impl File {
    /// Whether a lock could be had; if not, one that is in its way.
    ///
    /// # Errors
    /// Those of every request; [`Code::Invalid`] for anything but a regular file.
    pub async fn test_lock(&self, lock: &LockSpec) -> Result<Option<LockSpec>, Failure> {
        let request = Request::TestLock { ino: self.ino(), lock: *lock };
        match self.core.ask_lock(&self.who, &request).await?.outcome {
            LockOutcome::Granted => Ok(None),
            LockOutcome::Held { by } => Ok(Some(by)),
            other => Err(unexpected(&request, &Reply::LockIs { outcome: other })),
        }
    }

    /// Locks at once or not at all. A lock replaces what its owner has of its range; for
    /// [`LockSpace::Whole`] that is gone also if the new one cannot be had.
    ///
    /// # Errors
    /// As [`File::test_lock`]; [`Code::Limit`] if the file has too many locks.
    pub async fn try_lock(&self, lock: &LockSpec) -> Result<Locked, Failure> {
        self.check_locks()?;
        self.open_at_home().await?;
        self.core.lock_owners.all_undone(self.ino(), lock).await;
        self.note_owner(lock);
        let request = Request::SetLock { ino: self.ino(), lock: *lock, wait: None };
        let said = self.core.ask_lock(&self.who, &request).await?;
        self.settled(lock, &request, said)
    }

    /// Locks, and waits for it until `stop` resolves. A lock that was granted just then is
    /// [`Locked::Granted`] all the same. Dropping the future ends the wait, too, and unlocks the range,
    /// since the caller could not know whether it had been granted.
    ///
    /// # Errors
    /// As [`File::try_lock`]. A home that is out of reach for as long as a request is tried ends the
    /// wait with its failure; then the range is unlocked.
    pub async fn lock_unless(&self, lock: &LockSpec, stop: impl Future<Output = ()>) -> Result<Locked, Failure> {
        self.check_locks()?;
        self.open_at_home().await?;
        let mut stop = pin!(stop);
        let undone = pin!(self.core.lock_owners.all_undone(self.ino(), lock));
        if let Either::Right(_) = select(undone, stop.as_mut()).await {
            return Ok(Locked::Interrupted);
        }
        self.note_owner(lock);
        let (ino, wait) = (self.ino(), self.core.new_handle());
        // Made before the request is sent, so that a place in the queue is given up if its answer is lost.
        let mut waiting = Waiting { core: &self.core, who: &self.who, ino, lock: *lock, wait: Some(wait) };
        let request = Request::SetLock { ino, lock: *lock, wait: Some(wait) };
        let said = self.core.ask_lock(&self.who, &request).await?;
        if said.outcome != LockOutcome::Queued {
            waiting.wait = None;
            return self.settled(lock, &request, said);
        }
        loop {
            let request = Request::AwaitLock { ino, wait };
            let asking = pin!(self.core.ask_lock(&self.who, &request));
            let said = match select(asking, stop.as_mut()).await {
                Either::Left((said, _)) => said?,
                Either::Right(_) => {
                    let cancel = Request::CancelLock { ino, wait };
                    let said = self.core.ask_lock(&self.who, &cancel).await?;
                    waiting.wait = None;
                    return self.settled(lock, &cancel, said);
                }
            };
            if said.outcome != LockOutcome::Queued {
                waiting.wait = None;
                return self.settled(lock, &request, said);
            }
        }
    }

    /// Unlocks what an owner has of a range, whose last byte is `end`.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn unlock(&self, space: LockSpace, owner: u64, start: u64, end: u64) -> Result<(), Failure> {
        self.core.unlock(&self.who, self.ino(), space, owner, start, end).await
    }

    /// Unlocks all that an owner has of this file: at a close, which is mostly no request at all.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn unlock_owner(&self, space: LockSpace, owner: u64) -> Result<(), Failure> {
        // Later locks of this owner may be through another open, and outlive this one.
        self.forget_locker(space, owner);
        self.core.unlock_owner(&self.who, self.ino(), space, owner).await
    }

    fn settled(&self, lock: &LockSpec, asked: &Request, said: Said) -> Result<Locked, Failure> {
        match said.outcome {
            LockOutcome::Granted => {
                // Its owner may have unlocked everything while this was under way.
                self.note_owner(lock);
                self.relies_since(said.as_of);
                // The lock's previous holder may have written: contents that came with the open are old.
                drop(self.core.contents.change(self.ino()));
                Ok(Locked::Granted)
            }
            LockOutcome::Held { by } => Ok(Locked::Held(by)),
            LockOutcome::Deadlock => Ok(Locked::Deadlock),
            LockOutcome::Cancelled => Ok(Locked::Interrupted),
            outcome @ LockOutcome::Queued => Err(unexpected(asked, &Reply::LockIs { outcome })),
        }
    }

    /// Notes that an owner may have locks that must go with this open at the latest.
    fn note_owner(&self, lock: &LockSpec) {
        let life = self.core.life_of(self.ino());
        self.core.lock_owners.note(self.ino(), lock.space, lock.owner, life);
        self.core.keep_locks();
        self.lockers.lock().insert((lock.space, lock.owner));
    }

    /// A lock was granted by a server with this map. The life of its home that this client knows may be older, if it asked nothing since
    /// the home came back, or newer than the lock, if the home came back after that.
    fn relies_since(&self, as_of: MapEpoch) {
        let life = self.core.life_of(self.ino()).min(as_of.0);
        let first = |before: u32| if before == 0 { life + 1 } else { before.min(life + 1) };
        self.locked_in.update(Ordering::SeqCst, Ordering::SeqCst, first);
    }

    fn forget_locker(&self, space: LockSpace, owner: u64) {
        let mut lockers = self.lockers.lock();
        lockers.remove(&(space, owner));
        if lockers.is_empty() {
            self.locked_in.store(0, Ordering::SeqCst);
        }
    }

    /// A program that has locked relies on it: its reads and writes through this open fail once the locks have gone
    /// with a life of its home's server.
    ///
    /// # Errors
    /// [`Code::Lost`] if they have.
    pub fn check_locks(&self) -> Result<(), Failure> {
        let locked_in = self.locked_in.load(Ordering::Relaxed);
        if locked_in == 0 || locked_in > self.core.life_of(self.ino()) {
            return Ok(());
        }
        let detail = format!(
            "inode {}: its server was started again, and the locks taken before are lost: close it",
            self.ino()
        );
        Err(Failure::new(Code::Lost, detail))
    }

    /// Unlocks, in the background, all ranges that were locked through this open.
    pub(crate) fn unlock_all_later(&self) {
        let owners = std::mem::take(&mut *self.lockers.lock());
        for (space, owner) in owners {
            let (ino, who) = (self.ino(), self.who.clone());
            if self.core.lock_owners.is_known(ino, space, owner) {
                // What does not arrive ends with the last open of the file, or the session.
                self.core.spawn(|core| async move { drop(core.unlock_owner(&who, ino, space, owner).await) });
            }
        }
    }
}

impl Client {
    /// Whether an open of this client may rely on locks of this file that ended with an earlier life of its home's server.
    pub fn may_have_lost_locks(&self, ino: Ino) -> bool {
        self.core.lock_owners.has_older(ino, self.core.life_of(ino))
    }
}

impl Core {
    /// Says to the homes of all locks that this client lives, for as long as it has any.
    fn keep_locks(self: &Arc<Self>) {
        if std::mem::replace(&mut *self.lock_owners.kept.lock(), true) {
            return;
        }
        self.spawn(|core| async move {
            loop {
                core.io.sleep(Duration::from_millis(LOCKS_KEPT_MS)).await;
                let mut kept = core.lock_owners.kept.lock();
                let files: BTreeSet<Ino> = core.lock_owners.known.lock().keys().map(|(ino, ..)| *ino).collect();
                *kept = !files.is_empty();
                drop(kept);
                if files.is_empty() {
                    return;
                }
                core.say_alive(files, BTreeSet::new());
            }
        });
    }

    /// Says to the homes of files that this client lives, but for those that have just heard it.
    fn say_alive(self: &Arc<Self>, files: BTreeSet<Ino>, heard: BTreeSet<ServerIndex>) {
        let map = self.routes.read().map.clone();
        let homes: BTreeSet<_> = files.iter().filter_map(|ino| map.home_of(*ino)).collect();
        for home in homes.into_iter().filter(|home| !heard.contains(home)) {
            // A home that does not answer must not delay the requests to other homes.
            let (map, files, heard) = (map.clone(), files.clone(), heard.clone());
            self.spawn(|core| async move {
                let said = core.ask_planned(&Identity::default(), &map, home, &Request::KeepLocks).await;
                if said.is_err_and(|failure| is_replanned(&failure)) {
                    // The locks may be at other servers by now.
                    core.say_alive(files, heard);
                }
            });
        }
    }

    async fn ask_lock(&self, who: &Identity, request: &Request) -> Result<Said, Failure> {
        let ino = match request {
            Request::SetLock { ino, .. }
            | Request::TestLock { ino, .. }
            | Request::AwaitLock { ino, .. }
            | Request::CancelLock { ino, .. } => *ino,
            other => return Err(Failure::new(Code::Internal, format!("{} is about no lock", other.name()))),
        };
        let (place, knowing) = (Place::Home(ino), Knowing::Latest);
        let question = Question { who, place, knowing, request, payload: &[], life: None, planned: None };
        let Answer { header, reply, .. } = self.ask_question(question).await?;
        match reply {
            Reply::LockIs { outcome } => Ok(Said { outcome, as_of: header.map_epoch }),
            other => Err(unexpected(request, &other)),
        }
    }

    async fn unlock(
        &self,
        who: &Identity,
        ino: Ino,
        space: LockSpace,
        owner: u64,
        start: u64,
        end: u64,
    ) -> Result<(), Failure> {
        let request = Request::Unlock { ino, space, owner, start, end };
        match self.ask(who, Place::Home(ino), &request).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&request, &other)),
        }
    }

    async fn unlock_owner(&self, who: &Identity, ino: Ino, space: LockSpace, owner: u64) -> Result<(), Failure> {
        if !self.lock_owners.is_known(ino, space, owner) {
            return Ok(());
        }
        // Before the answer: later locks are noted anew.
        self.lock_owners.forget(ino, space, owner);
        self.unlock(who, ino, space, owner, 0, u64::MAX).await
    }
}

/// A place in a queue.
struct Waiting<'a> {
    core: &'a Arc<Core>,
    who: &'a Identity,
    ino: Ino,
    lock: LockSpec,
    /// Its number, until it is known how it ended.
    wait: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(wait) = self.wait else { return };
        let (who, ino, lock) = (self.who.clone(), self.ino, self.lock);
        self.core.lock_owners.begin_undoing(ino, &lock);
        self.core.spawn(|core| async move {
            let cancelled = core.ask_lock(&who, &Request::CancelLock { ino, wait }).await;
            if cancelled.is_ok_and(|said| said.outcome == LockOutcome::Granted) {
                // The caller does not know that it was granted. If this fails the lock goes with the open.
                let _ = core.unlock(&who, ino, lock.space, lock.owner, lock.start, lock.end).await;
            }
            core.lock_owners.end_undoing(ino, &lock);
        });
    }
}
