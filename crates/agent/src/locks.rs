//! Calls on locks: fcntl(2) and flock(2).
//!
//! Every owner has a number that no other one of this session has: a process, for locks of fcntl(2); a description, for those
//! of flock(2) and `F_OFD_SETLK`.

use crate::call::Call;
use crate::channel::Answer;
use crate::description::{Description, Kind};
use crate::error::{Fault, Result, errno, failed};
use crate::sys;
use aze_client::{Access, File, Locked};
use aze_proto::error::{Code, Failure};
use aze_proto::message::{LockMode, LockSpace, LockSpec};
use std::sync::Arc;

/// Shown as the process of a lock that belongs to no process but to a description (fcntl(2)).
const NO_PROCESS: u32 = u32::MAX;

/// An open file that is neither read nor written.
const NEITHER: Access = Access { read: false, write: false };

/// Last byte of a range that ends with the file, for the kernel.
const END: i64 = i64::MAX;

/// A request for a lock of bytes.
struct Asked {
    /// A description is the owner.
    is_of_description: bool,
    start: u64,
    end: u64,
    /// Nothing if it is to be unlocked.
    mode: Option<LockMode>,
}

impl Call<'_> {
    /// `F_GETLK`, `F_SETLK`, `F_SETLKW` of fcntl(2), and the same for descriptions.
    pub fn lock(&mut self) -> Result<Answer> {
        let description = self.description()?;
        let (told, _) = sys::take::<libc::flock>(self.bytes).ok_or(errno(libc::EINVAL))?;
        let command = self.request.a as i32;
        let is_of_description = matches!(command, libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
        if is_of_description && told.l_pid != 0 {
            return Err(errno(libc::EINVAL));
        }
        let asked = asked(&told, is_of_description)?;
        let file = match &description.kind {
            Kind::File(file) => file,
            Kind::Directory(..) => return Err(failed(libc::EINVAL, "a directory has no ranges to lock")),
            Kind::Place => return Err(errno(libc::EBADF)),
        };
        match command {
            libc::F_GETLK | libc::F_OFD_GETLK => self.test(&description, file, told, &asked),
            libc::F_SETLK | libc::F_OFD_SETLK => self.set(&description, file, &asked, false),
            libc::F_SETLKW | libc::F_OFD_SETLKW => self.set(&description, file, &asked, true),
            _ => Err(errno(libc::EINVAL)),
        }
    }

    fn spec(&self, description: &Description, asked: &Asked, mode: LockMode) -> LockSpec {
        let (owner, pid) = match asked.is_of_description {
            true => (description.number, NO_PROCESS),
            false => (self.program.owner, self.program.process.pid),
        };
        LockSpec { space: LockSpace::Ranges, owner, pid, start: asked.start, end: asked.end, mode }
    }

    fn test(&self, description: &Description, file: &File, mut told: libc::flock, asked: &Asked) -> Result<Answer> {
        let mode = asked.mode.ok_or(errno(libc::EINVAL))?;
        let by = self.agent.wait_for_lock(file.test_lock(&self.spec(description, asked, mode)))??;
        match by {
            None => told.l_type = libc::F_UNLCK as libc::c_short,
            Some(by) => {
                let kind = if by.mode == LockMode::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
                told.l_type = kind as libc::c_short;
                told.l_whence = libc::SEEK_SET as libc::c_short;
                told.l_start = i64::try_from(by.start).unwrap_or(END);
                told.l_len = if by.end >= END as u64 { 0 } else { (by.end - by.start + 1) as i64 };
                told.l_pid = by.pid as libc::pid_t;
            }
        }
        Ok(Answer::with(sys::bytes_of(&told).to_vec()))
    }

    fn set(&self, description: &Arc<Description>, file: &Arc<File>, asked: &Asked, waits: bool) -> Result<Answer> {
        let Some(mode) = asked.mode else {
            let spec = self.spec(description, asked, LockMode::Shared);
            return self.unlocked(file, spec);
        };
        let access = description.access(file);
        if mode == LockMode::Shared && !access.read || mode == LockMode::Exclusive && !access.write {
            return Err(errno(libc::EBADF));
        }
        if !asked.is_of_description && !self.program.asks(description) {
            return Err(errno(libc::ESRCH));
        }
        let spec = self.spec(description, asked, mode);
        let answer = self.locked(description, file, spec, waits)?;
        // Its owner may have unlocked everything, or ended, while this was under way.
        if !asked.is_of_description && !self.program.asks(description) {
            self.agent.unlock_later(description, self.program.owner);
        }
        Ok(answer)
    }

    /// Unlocks. The lock's next holder is to see the bytes that were written, and their time.
    fn unlocked(&self, file: &File, spec: LockSpec) -> Result<Answer> {
        self.stored_is_written(file.ino());
        self.agent.wait_for_lock(async {
            let flushed = file.flush().await;
            match spec.space {
                LockSpace::Whole => file.unlock_owner(spec.space, spec.owner).await?,
                LockSpace::Ranges => file.unlock(spec.space, spec.owner, spec.start, spec.end).await?,
            }
            flushed
        })??;
        Ok(Answer::default())
    }

    /// Locks, at once or when it can be had: until the program cancels the wait, or its channel ends.
    fn locked(&self, description: &Description, file: &Arc<File>, spec: LockSpec, waits: bool) -> Result<Answer> {
        self.agent.watch_closely(description)?;
        // What a program has closed before is not in its own way.
        self.agent.let_go_of_ended()?;
        let locked = match self.agent.wait_for_lock(file.try_lock(&spec))? {
            Ok(Locked::Held(_)) if waits => {
                let (number, ended) = self.agent.begin_wait(self.channel)?;
                // The sender is dropped to end the wait.
                let stop = async { ended.await.unwrap_or_default() };
                let locked = self.agent.wait_for_lock(file.lock_unless(&spec, stop));
                self.agent.end_wait(number, self.channel);
                locked?
            }
            locked => locked,
        };
        match locked {
            Ok(Locked::Granted) => {
                let (agent, file) = (self.agent.clone(), file.clone());
                let undo = move || {
                    // No program has learned that it is locked.
                    agent.connected().begin(async move {
                        drop(file.unlock(spec.space, spec.owner, spec.start, spec.end).await);
                    });
                };
                Ok(Answer { undo: Some(Box::new(undo)), ..Answer::default() })
            }
            Ok(Locked::Held(_)) => Err(errno(libc::EAGAIN)),
            Ok(Locked::Deadlock) => Err(errno(libc::EDEADLK)),
            Ok(Locked::Interrupted) => Err(errno(libc::EINTR)),
            // Not what a program takes for a lock in its way.
            Err(failure @ Failure { code: Code::TimedOut | Code::Refused, .. }) => {
                Err(failed(libc::EIO, failure.to_string()))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// flock(2).
    pub fn flock(&mut self) -> Result<Answer> {
        let description = self.description()?;
        let file = match &description.kind {
            Kind::File(file) => file,
            Kind::Directory(..) => return Err(failed(libc::EINVAL, "a directory cannot be locked")),
            Kind::Place => return Err(errno(libc::EBADF)),
        };
        let operation = self.request.a as i32;
        let mode = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Some(LockMode::Shared),
            libc::LOCK_EX => Some(LockMode::Exclusive),
            libc::LOCK_UN => None,
            _ => return Err(errno(libc::EINVAL)),
        };
        let (space, owner, pid) = (LockSpace::Whole, description.number, self.program.process.pid);
        let spec = |mode| LockSpec { space, owner, pid, start: 0, end: u64::MAX, mode };
        match mode {
            Some(_) if description.access(file) == NEITHER => Err(errno(libc::EBADF)),
            Some(mode) => self.locked(&description, file, spec(mode), operation & libc::LOCK_NB == 0),
            None => self.unlocked(file, spec(LockMode::Shared)),
        }
    }

    /// A process has closed a descriptor of an inode: all its locks of fcntl(2) on the inode go.
    pub fn unlock(&self) -> Result<Answer> {
        let ino = self.description()?.ino;
        let owner = self.program.owner;
        self.stored_is_written(ino);
        let mut result = Ok(Answer::default());
        for description in self.program.unlocks(ino) {
            if let Kind::File(file) = &description.kind {
                let unlocked = self.agent.wait_for_lock(async {
                    let flushed = file.flush().await;
                    file.unlock_owner(LockSpace::Ranges, owner).await?;
                    flushed
                });
                result = result.and(unlocked?.map(|()| Answer::default()).map_err(Fault::from));
            }
        }
        result
    }
}

fn asked(told: &libc::flock, is_of_description: bool) -> Result<Asked> {
    let mode = match i32::from(told.l_type) {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(errno(libc::EINVAL)),
    };
    if i32::from(told.l_whence) != libc::SEEK_SET {
        return Err(errno(libc::EINVAL));
    }
    let overflows = || errno(libc::EOVERFLOW);
    let (start, end) = match told.l_len {
        0 => (told.l_start, END),
        len @ 1.. => (told.l_start, told.l_start.checked_add(len - 1).ok_or_else(overflows)?),
        // The bytes before the start.
        len => (told.l_start.checked_add(len).ok_or(errno(libc::EINVAL))?, told.l_start - 1),
    };
    let start = u64::try_from(start).map_err(|_| errno(libc::EINVAL))?;
    let end = if end == END { u64::MAX } else { u64::try_from(end).map_err(|_| errno(libc::EINVAL))? };
    Ok(Asked { is_of_description, start, end, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_fcntl() {
        let range = |l_start, l_len| {
            let mut told = sys::zeros::<libc::flock>();
            (told.l_start, told.l_len) = (l_start, l_len);
            asked(&told, false).map(|asked| (asked.start, asked.end))
        };
        assert_eq!(range(0, 0), Ok((0, u64::MAX)));
        assert_eq!(range(5, 1), Ok((5, 5)));
        assert_eq!(range(5, -5), Ok((0, 4)));
        assert_eq!(range(5, -6), Err(errno(libc::EINVAL)));
        assert_eq!(range(-1, 5), Err(errno(libc::EINVAL)));
        assert_eq!(range(i64::MAX, 1), Ok((i64::MAX as u64, u64::MAX)));
        assert_eq!(range(i64::MAX, 2), Err(errno(libc::EOVERFLOW)));
    }
}
