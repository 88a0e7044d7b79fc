//! Locks of open files: flock(2), and byte ranges of open file descriptions (fcntl(2), `F_OFD_SETLK`).

use crate::error::{Error, Result};
use crate::file::File;
use aze_client::Locked;
use aze_proto::message::{LockMode, LockSpace, LockSpec};
use std::future::Future;

/// How much a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Other exclusive locks.
    Shared,
    /// All other locks.
    Exclusive,
}

/// A range of a file to be locked, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// As flock(2) does it: knows nothing of locked ranges.
    Whole,
    /// From the first byte to the last one; `u64::MAX` is the end of the file, wherever that is.
    Range(u64, u64),
}

impl Lock {
    fn parts(self) -> (LockSpace, u64, u64) {
        match self {
            Lock::Whole => (LockSpace::Whole, 0, u64::MAX),
            Lock::Range(start, end) => (LockSpace::Ranges, start, end),
        }
    }
}

impl File {
    /// The owner of locks is the open: two opens of one program exclude each other.
    fn owner(&self) -> Result<u64> {
        Ok(std::ptr::from_ref(self.client_file()?.as_ref()).addr() as u64)
    }

    /// Locks at once; fails with EWOULDBLOCK where another lock is in the way.
    ///
    /// # Errors
    /// As flock(2).
    pub async fn try_lock(&self, lock: Lock, kind: LockKind) -> Result<()> {
        let spec = self.spec(lock, kind)?;
        outcome(self.client_file()?.try_lock(&spec).await?)
    }

    /// Locks, and waits for as long as that takes, unless `stop` is done before: then EINTR.
    ///
    /// # Errors
    /// As flock(2) and fcntl(2); EDEADLK where the wait would never end.
    pub async fn lock_unless(&self, lock: Lock, kind: LockKind, stop: impl Future<Output = ()>) -> Result<()> {
        let spec = self.spec(lock, kind)?;
        outcome(self.client_file()?.lock_unless(&spec, stop).await?)
    }

    /// Unlocks what this open has locked of a range, or of the file as a whole.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn unlock(&self, lock: Lock) -> Result<()> {
        let ((space, start, end), owner) = (lock.parts(), self.owner()?);
        match lock {
            Lock::Whole => self.client_file()?.unlock_owner(space, owner).await?,
            Lock::Range(..) => self.client_file()?.unlock(space, owner, start, end).await?,
        }
        Ok(())
    }

    fn spec(&self, lock: Lock, kind: LockKind) -> Result<LockSpec> {
        let (space, start, end) = lock.parts();
        if start > end {
            return Err(Error::new(libc::EINVAL, "a range ends before it begins"));
        }
        let mode = match kind {
            LockKind::Shared => LockMode::Shared,
            LockKind::Exclusive => LockMode::Exclusive,
        };
        Ok(LockSpec { space, owner: self.owner()?, pid: std::process::id(), start, end, mode })
    }
}

fn outcome(locked: Locked) -> Result<()> {
    match locked {
        Locked::Granted => Ok(()),
        Locked::Held(by) => Err(Error::new(libc::EWOULDBLOCK, format!("process {} has a lock in the way", by.pid))),
        Locked::Deadlock => Err(Error::new(libc::EDEADLK, "the wait for this lock would never end")),
        Locked::Interrupted => Err(Error::new(libc::EINTR, "the wait for the lock was ended")),
    }
}
