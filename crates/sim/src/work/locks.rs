//! Clients lock parts of a few files, and write under their locks. A client that has a lock, and has not been
//! taken for dead, has it alone: no other client gets it, and no write of an earlier owner has an effect.

use super::{ROOT, Worker};
use crate::bytes::data_of;
use aze_client::{Access, File, Locked};
use aze_io::sync::Mutex;
use aze_proto::message::{LockMode, LockSpace, LockSpec};
use aze_proto::{Failure, Ino};
use std::sync::Arc;
use std::time::Duration;

/// The directory of these files.
pub const LOCKED_DIR: &[u8] = b"/locked";

/// Files that are locked.
pub const FILES: usize = 2;

/// Parts of a file that are locked, one byte each.
const CELLS: u64 = 3;

/// Bytes of each part that are written under its lock.
const CELL_BYTES: u64 = 100;

/// How long a lock is kept after a write under it has failed: then no copy of it is on its way.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

const READ_WRITE: Access = Access { read: true, write: true };

/// A lock that a client believes to have.
#[derive(Clone, Copy, Debug)]
struct HeldLock {
    number: u64,
    file: usize,
    lock: LockSpec,
    /// Another client was given it since.
    is_broken: bool,
}

/// The locks, with their owners.
#[derive(Debug, Default)]
pub struct HeldLocks {
    files: Vec<Ino>,
    held: Vec<HeldLock>,
    next: u64,
}

/// Shared by all tasks of the run.
pub type SharedHeldLocks = Mutex<HeldLocks>;

impl HeldLocks {
    /// Makes a file known.
    pub fn add_file(&mut self, ino: Ino) {
        self.files.push(ino);
    }

    /// The files.
    pub fn files(&self) -> &[Ino] {
        &self.files
    }

    fn enter(&mut self, file: usize, lock: LockSpec) -> u64 {
        for hold in self.held.iter_mut().filter(|hold| hold.file == file && excludes(&hold.lock, &lock)) {
            hold.is_broken = true;
        }
        self.next += 1;
        self.held.push(HeldLock { number: self.next, file, lock, is_broken: false });
        self.next
    }

    /// Whether it was had alone all the time.
    fn is_whole(&self, number: u64) -> bool {
        self.held.iter().any(|hold| hold.number == number && !hold.is_broken)
    }

    fn leave(&mut self, number: u64) {
        self.held.retain(|hold| hold.number != number);
    }
}

fn excludes(one: &LockSpec, other: &LockSpec) -> bool {
    one.space == other.space
        && one.start <= other.end
        && other.start <= one.end
        && (one.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive)
}

/// Locks and unlocks `ops` times.
pub async fn run(mut worker: Worker, number: usize, ops: u64) {
    let files = worker.board.held_locks.lock().files.clone();
    let mut open = Vec::new();
    for ino in &files {
        match worker.call(|| "open what is locked".into(), worker.client.open(&ROOT, *ino, READ_WRITE)).await {
            Ok(file) => open.push(file),
            Err(_) => return,
        }
    }
    for step in 0..ops {
        worker.think().await;
        let which = worker.rng.below(open.len() as u64) as usize;
        let start = worker.rng.below(CELLS);
        let mode = if worker.rng.chance(300_000) { LockMode::Shared } else { LockMode::Exclusive };
        let (space, end) = match worker.rng.chance(300_000) {
            true => (LockSpace::Whole, u64::MAX),
            false => (LockSpace::Ranges, worker.rng.between(start, CELLS - 1)),
        };
        let start = if space == LockSpace::Whole { 0 } else { start };
        // Several owners of one client exclude each other as those of several clients do.
        let lock = LockSpec { space, owner: number as u64, pid: 1, start, end, mode };
        if take(&mut worker, &open[which], which, &lock).await {
            let id = (number as u64 * 1000 + step + 1) as u32;
            hold(&mut worker, &open[which], which, &lock, id).await;
        }
    }
    for file in open {
        let _ = worker.call(|| "close what was locked".into(), file.close()).await;
    }
}

async fn take(worker: &mut Worker, file: &Arc<File>, which: usize, lock: &LockSpec) -> bool {
    let (at_once, patience) = (worker.rng.chance(300_000), worker.rng.below(4_000));
    let taken: Result<Locked, Failure> = match at_once {
        true => worker.call(|| format!("try to lock file {which}: {lock:?}"), file.try_lock(lock)).await,
        false => {
            let stop = worker.io.sleep(Duration::from_millis(patience));
            worker.call(|| format!("lock file {which}: {lock:?}"), file.lock_unless(lock, stop)).await
        }
    };
    taken == Ok(Locked::Granted)
}

async fn hold(worker: &mut Worker, file: &Arc<File>, which: usize, lock: &LockSpec, id: u32) {
    let number = worker.board.held_locks.lock().enter(which, *lock);
    let (offset, len) = (lock.start * CELL_BYTES, CELL_BYTES as usize);
    // Byte ranges and whole files know nothing of each other: each has bytes of its own.
    let offset = if lock.space == LockSpace::Whole { 10_000 } else { offset };
    let mut sound = true;
    if lock.mode == LockMode::Exclusive {
        let data = data_of(id, offset, len);
        sound = worker.call(|| format!("write {id} under the lock"), file.write(offset, &data)).await.is_ok();
    }
    let first = worker.call(|| "read under the lock".into(), file.read(offset, len)).await;
    worker.think().await;
    let second = worker.call(|| "read again under the lock".into(), file.read(offset, len)).await;
    if !sound {
        worker.io.sleep(AFTER_FAILURE).await;
    }
    let was_alone = worker.board.held_locks.lock().is_whole(number);
    worker.board.held_locks.lock().leave(number);
    let unlocked = match lock.space {
        LockSpace::Whole => file.unlock_owner(lock.space, lock.owner).await,
        LockSpace::Ranges => file.unlock(lock.space, lock.owner, lock.start, lock.end).await,
    };
    // Who may unlock was never taken for dead.
    let lives = worker.call(|| format!("unlock file {which}: {lock:?}"), async { unlocked }).await.is_ok();
    if lives && !was_alone {
        worker.board.violation(format!("{}: somebody else was given the lock {lock:?} of file {which}", worker.who));
    }
    if let (Ok(first), Ok(second)) = (first, second)
        && lives
        && sound
        && written(&first) != written(&second)
    {
        let text = format!("a write took effect under the lock {lock:?} of file {which}, which somebody else had");
        worker.board.violation(format!("{}: {text}", worker.who));
    }
}

/// The bytes of a part without trailing zeros: other clients' writes behind it may have lengthened the file.
fn written(data: &[u8]) -> &[u8] {
    let end = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &data[..end]
}

/// When all who locked have ended well or are dead, everything can be locked.
pub async fn check_free(worker: &Worker) {
    let files = worker.board.held_locks.lock().files.clone();
    for ino in files {
        let Ok(file) = worker.client.open(&ROOT, ino, READ_WRITE).await else { continue };
        for space in [LockSpace::Ranges, LockSpace::Whole] {
            let lock = LockSpec { space, owner: u64::MAX, pid: 1, start: 0, end: u64::MAX, mode: LockMode::Exclusive };
            let free = worker.call(|| "look at locks at rest".into(), file.test_lock(&lock)).await;
            if let Ok(Some(by)) = free {
                worker.board.violation(format!("{}: file {ino} is still locked: {by:?}", worker.who));
            }
        }
        let _ = file.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_two_have_is_noticed() {
        let lock = |mode, start| LockSpec { space: LockSpace::Ranges, owner: 1, pid: 1, start, end: 2, mode };
        let mut held_locks = HeldLocks::default();
        let shared = held_locks.enter(0, lock(LockMode::Shared, 0));
        let other = held_locks.enter(1, lock(LockMode::Exclusive, 0));
        let second = held_locks.enter(0, lock(LockMode::Shared, 1));
        assert!(held_locks.is_whole(shared) && held_locks.is_whole(other) && held_locks.is_whole(second));
        let wrong = held_locks.enter(0, lock(LockMode::Exclusive, 2));
        assert!(!held_locks.is_whole(shared) && held_locks.is_whole(other) && !held_locks.is_whole(second));
        held_locks.leave(wrong);
        assert_eq!(held_locks.held.len(), 3);
    }
}
