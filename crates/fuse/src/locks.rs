//! Locks: their owners, the requests that wait for one, and the waits that a signal has ended.
//!
//! The kernel names an owner of byte ranges by a number that it gives to another process, or another
//! open, as soon as this one is gone; an unlock in the background must not hit that one. So
//! each owner gets a number of ours, until all its locks of the file go. A lock of a whole file belongs
//! to an open, whose handle is never used again.
//!
//! A task that owns the [`Reply`] waits for a lock; no worker waits with it.

use crate::abi::{Args, Header, Malformed, Out, lk};
use crate::door::Door;
use crate::identity;
use crate::queue::BUFFERS_MAX;
use crate::reply::{Errno, Reply};
use aze_client::{File, Locked};
use aze_io::sync::Mutex;
use aze_proto::error::Code;
use aze_proto::message::{LockMode, LockSpace, LockSpec};
use futures_channel::oneshot;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Interruptions kept of requests that are not known to wait, the latest ones. A request is known soon
/// after it was read, and no more are read at once than there are threads; the other ones here are of requests
/// that do not wait for locks. To have the kernel repeat them (EAGAIN) is no way: it takes that only
/// through the descriptor from which the request was read, and each thread has its own.
const INTERRUPTED_MAX: usize = 1024;

/// Owners and waits of one mount.
#[derive(Default)]
pub struct Locks {
    owners: Mutex<Owners>,
    waits: Mutex<Waits>,
}

/// Owners of byte ranges. Both maps hold what programs have open, and so are bounded by their limits.
#[derive(Default)]
struct Owners {
    last: u64,
    /// By inode and the kernel's number.
    known: BTreeMap<(u64, u64), Owner>,
    /// Our number of those that have locked through an open, by its handle and the kernel's number.
    through: BTreeMap<(u64, u64), u64>,
}

#[derive(Clone, Copy)]
struct Owner {
    number: u64,
    /// Requests for locks under way.
    asking: u32,
}

impl Owners {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Forgets an owner that has nothing under way.
    fn forget(&mut self, key: (u64, u64)) {
        if self.known.get(&key).is_some_and(|owner| owner.asking == 0) {
            self.known.remove(&key);
        }
    }
}

#[derive(Default)]
struct Waits {
    /// Waits, by the number of their request; a wait ends when its sender is dropped.
    by_request: BTreeMap<u64, oneshot::Sender<()>>,
    /// Requests that were interrupted and are not known to wait.
    interrupted: VecDeque<u64>,
    has_ended: bool,
}

impl Locks {
    fn number(&self, node: u64, kernel_owner: u64) -> Option<u64> {
        self.owners.lock().known.get(&(node, kernel_owner)).map(|owner| owner.number)
    }

    /// A request for a lock begins.
    fn asks(&self, asked: &Asked) -> u64 {
        let mut owners = self.owners.lock();
        let fresh = owners.number();
        let owner = owners.known.entry((asked.node, asked.kernel_owner)).or_insert(Owner { number: fresh, asking: 0 });
        owner.asking += 1;
        let number = owner.number;
        owners.through.insert((asked.handle, asked.kernel_owner), number);
        number
    }

    /// It has been answered.
    fn has_asked(&self, asked: &Asked) {
        if let Some(owner) = self.owners.lock().known.get_mut(&(asked.node, asked.kernel_owner)) {
            owner.asking -= 1;
        }
    }

    /// All locks of an owner go; its number, if it may have any.
    fn forget(&self, node: u64, handle: u64, kernel_owner: u64) -> Option<u64> {
        let mut owners = self.owners.lock();
        owners.through.remove(&(handle, kernel_owner));
        let number = owners.known.get(&(node, kernel_owner))?.number;
        owners.forget((node, kernel_owner));
        Some(number)
    }

    /// An open is gone, and with it the owners that have locked through it and have not closed it before: those that
    /// are opens.
    pub fn released(&self, node: u64, handle: u64) {
        let mut owners = self.owners.lock();
        while let Some((&(_, kernel_owner), &number)) = owners.through.range((handle, 0)..=(handle, u64::MAX)).next() {
            owners.through.remove(&(handle, kernel_owner));
            // The kernel's number may mean another owner by now.
            if owners.known.get(&(node, kernel_owner)).is_some_and(|owner| owner.number == number) {
                owners.forget((node, kernel_owner));
            }
        }
    }

    /// What resolves when the request is to wait no longer.
    fn waits(&self, request: u64) -> oneshot::Receiver<()> {
        let (end, ended) = oneshot::channel();
        let mut waits = self.waits.lock();
        match waits.interrupted.iter().position(|number| *number == request) {
            Some(place) => drop(waits.interrupted.remove(place)),
            None if waits.has_ended => {}
            None => drop(waits.by_request.insert(request, end)),
        }
        ended
    }

    fn has_waited(&self, request: u64) {
        self.waits.lock().by_request.remove(&request);
    }

    /// A request is to wait no longer, whether it is known already or not.
    pub fn interrupt(&self, request: u64) {
        let mut waits = self.waits.lock();
        if waits.by_request.remove(&request).is_none() {
            if waits.interrupted.len() >= INTERRUPTED_MAX {
                waits.interrupted.pop_front();
            }
            waits.interrupted.push_back(request);
        }
    }

    /// Ends all waits.
    pub fn end(&self) {
        let mut waits = self.waits.lock();
        waits.has_ended = true;
        waits.by_request.clear();
    }
}

/// A request that is about a lock.
struct Asked {
    node: u64,
    handle: u64,
    kernel_owner: u64,
    space: LockSpace,
    start: u64,
    end: u64,
    /// Nothing if it is to be unlocked.
    mode: Option<LockMode>,
    pid: u32,
}

impl Asked {
    fn take(header: &Header, args: &mut Args<'_>) -> Result<Asked, Errno> {
        let (handle, kernel_owner) = (args.u64()?, args.u64()?);
        let (start, end) = (args.u64()?, args.u64()?);
        let (kind, pid, flags) = (args.u32()? as i32, args.u32()?, args.u32()?);
        let mode = match kind {
            libc::F_RDLCK => Some(LockMode::Shared),
            libc::F_WRLCK => Some(LockMode::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(Errno(libc::EINVAL)),
        };
        if start > end {
            return Err(Malformed.into());
        }
        let space = if flags & lk::FLOCK != 0 { LockSpace::Whole } else { LockSpace::Ranges };
        let end = if end >= lk::END { u64::MAX } else { end };
        Ok(Asked { node: header.node, handle, kernel_owner, space, start, end, mode, pid })
    }

    fn lock(&self, owner: u64, mode: LockMode) -> LockSpec {
        LockSpec { space: self.space, owner, pid: self.pid, start: self.start, end: self.end, mode }
    }
}

/// Answers whether a lock could be had, and if not, one that is in its way.
pub fn test(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
    let asked = Asked::take(header, &mut args)?;
    let file = door.file(asked.handle)?;
    let mode = asked.mode.ok_or(Errno(libc::EINVAL))?;
    let known = door.locks.number(asked.node, asked.kernel_owner);
    let owner = known.unwrap_or_else(|| door.locks.owners.lock().number());
    let lock = asked.lock(owner, mode);
    let by = door.serve("test of a lock of", asked.node, file.test_lock(&lock))?;
    let shown = by.unwrap_or(lock);
    let kind = match by.map(|by| by.mode) {
        None => libc::F_UNLCK,
        Some(LockMode::Shared) => libc::F_RDLCK,
        Some(LockMode::Exclusive) => libc::F_WRLCK,
    };
    out.u64(shown.start);
    out.u64(shown.end.min(lk::END));
    out.u32(kind as u32);
    out.u32(shown.pid);
    Ok(())
}

/// Locks at once or not at all, or unlocks.
pub fn set(door: &Door, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
    let asked = Asked::take(header, &mut args)?;
    let file = door.file(asked.handle)?;
    let Some(mode) = asked.mode else { return unlock(door, &asked, &file) };
    let place = Place::of(door, &asked);
    let lock = asked.lock(place.owner, mode);
    let locked = door.serve("lock of", asked.node, file.try_lock(&lock))?;
    settled(door, asked.node, &locked)
}

/// Locks as soon as that is possible, on a task, or unlocks.
pub fn set_or_wait(door: &Arc<Door>, header: &Header, mut args: Args<'_>, reply: Reply) {
    let taken = Asked::take(header, &mut args).and_then(|asked| Ok((door.file(asked.handle)?, asked)));
    let (file, asked, mode) = match taken {
        Ok((file, asked @ Asked { mode: Some(mode), .. })) => (file, asked, mode),
        Ok((file, asked)) => {
            reply.send_outcome(unlock(door, &asked, &file));
            return;
        }
        Err(errno) => {
            reply.send_outcome(Err(errno));
            return;
        }
    };
    if !reply.may_wait() {
        door.journal.say(format_args!(
            "as many programs wait for locks as may ({BUFFERS_MAX}), or there is no memory for more"
        ));
        reply.send_outcome(Err(Errno(libc::ENOLCK)));
        return;
    }
    let request = header.unique;
    let ended = door.locks.waits(request);
    // From now on the kernel tells of every signal.
    if reply.may_miss_interruptions() && identity::is_signalled(header.pid) {
        door.locks.interrupt(request);
    }
    let door = door.clone();
    door.io.clone().spawn(async move {
        let place = Place::of(&door, &asked);
        let lock = asked.lock(place.owner, mode);
        let stop = async { ended.await.unwrap_or_default() };
        let locked = file.lock_unless(&lock, stop).await;
        door.locks.has_waited(request);
        let answer = match &locked {
            Ok(locked) => settled(&door, asked.node, locked),
            Err(failure) => match (door.noted("lock of", asked.node, failure), failure.code) {
                // Not what a program takes for a time that it has set itself, or for a lock in its way.
                (_, Code::TimedOut | Code::Refused) => Err(Errno(libc::EIO)),
                (errno, _) => Err(errno),
            },
        };
        if !reply.send_outcome(answer) && locked == Ok(Locked::Granted) {
            // No program has learned that it is locked. If the unlock does not arrive the lock ends with the open.
            drop(file.unlock(lock.space, lock.owner, lock.start, lock.end).await);
        }
    });
}

/// A process has closed a descriptor: all its locks of byte ranges go, which is no request unless it
/// may have some.
pub fn closed(door: &Door, header: &Header, handle: u64, kernel_owner: u64, file: &File) -> Result<(), Errno> {
    match door.locks.forget(header.node, handle, kernel_owner) {
        Some(owner) => door.serve("unlock of", header.node, file.unlock_owner(LockSpace::Ranges, owner)),
        None => Ok(()),
    }
}

fn unlock(door: &Door, asked: &Asked, file: &File) -> Result<(), Errno> {
    let owner = match asked.space {
        LockSpace::Whole => Some(asked.handle),
        LockSpace::Ranges => door.locks.number(asked.node, asked.kernel_owner),
    };
    // An owner without locks needs no request.
    let Some(owner) = owner else { return Ok(()) };
    door.serve("unlock of", asked.node, async {
        // The lock's next holder is to see the bytes that were written, and their time.
        let flushed = file.flush().await;
        match asked.space {
            LockSpace::Whole => file.unlock_owner(asked.space, owner).await?,
            LockSpace::Ranges => file.unlock(asked.space, owner, asked.start, asked.end).await?,
        }
        flushed
    })
}

fn settled(door: &Door, node: u64, locked: &Locked) -> Result<(), Errno> {
    match locked {
        Locked::Granted => {
            // Before the answer, so that the lock's holder sees earlier writes: with new
            // attributes the kernel drops the pages of a file that has changed. The program that waits
            // for the answer keeps the inode.
            door.device.forget_attrs(node);
            Ok(())
        }
        Locked::Held(_) => Err(Errno(libc::EAGAIN)),
        Locked::Deadlock => Err(Errno(libc::EDEADLK)),
        Locked::Interrupted => Err(Errno(libc::EINTR)),
    }
}

/// An owner with a request for a lock under way.
struct Place<'a> {
    locks: &'a Locks,
    asked: &'a Asked,
    owner: u64,
}

impl<'a> Place<'a> {
    fn of(door: &'a Door, asked: &'a Asked) -> Place<'a> {
        let owner = match asked.space {
            LockSpace::Whole => asked.handle,
            LockSpace::Ranges => door.locks.asks(asked),
        };
        Place { locks: &door.locks, asked, owner }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.asked.space == LockSpace::Ranges {
            self.locks.has_asked(self.asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_channel::oneshot::Canceled;

    fn asked(handle: u64, kernel_owner: u64) -> Asked {
        let (space, mode) = (LockSpace::Ranges, Some(LockMode::Exclusive));
        Asked { node: 7, handle, kernel_owner, space, start: 0, end: u64::MAX, mode, pid: 1 }
    }

    #[test]
    fn an_interruption_ends_a_wait_also_if_it_comes_first() {
        let locks = Locks::default();
        let mut known = locks.waits(2);
        assert_eq!(known.try_recv(), Ok(None), "it waits");
        locks.interrupt(2);
        assert_eq!(known.try_recv(), Err(Canceled));
        locks.interrupt(4);
        assert_eq!(locks.waits(4).try_recv(), Err(Canceled), "interrupted before it was known");
        assert!(locks.waits.lock().interrupted.is_empty());
        for request in 0..2 * INTERRUPTED_MAX as u64 {
            locks.interrupt(100 + request);
        }
        assert_eq!(locks.waits.lock().interrupted.len(), INTERRUPTED_MAX);
        let mut last = locks.waits(6);
        locks.end();
        assert_eq!(last.try_recv(), Err(Canceled), "the mount has ended");
        assert_eq!(locks.waits(8).try_recv(), Err(Canceled));
    }

    #[test]
    fn a_number_of_the_kernel_means_somebody_else_after_a_close() {
        let locks = Locks::default();
        assert_eq!(locks.forget(7, 1, 40), None, "it has never locked");
        let first = locks.asks(&asked(1, 40));
        assert_eq!(locks.asks(&asked(2, 40)), first, "one process, two opens");
        assert_eq!(locks.forget(7, 2, 40), Some(first), "one of them is closed");
        assert_eq!(locks.number(7, 40), Some(first), "two requests are under way");
        locks.has_asked(&asked(1, 40));
        locks.has_asked(&asked(1, 40));
        assert_eq!(locks.forget(7, 1, 40), Some(first));
        let second = locks.asks(&asked(3, 40));
        locks.has_asked(&asked(3, 40));
        assert_ne!(second, first);
        locks.released(7, 1);
        assert_eq!(locks.number(7, 40), Some(second), "another open");
        locks.released(7, 3);
        assert_eq!(locks.number(7, 40), None);
        assert!(locks.owners.lock().through.is_empty());
    }

    /// A request for a lock as the kernel lays it out.
    fn taken(start: u64, end: u64, kind: i32, flags: u32) -> Result<(LockSpace, u64, u64, Option<LockMode>), Errno> {
        let mut out = Out::new(64);
        for value in [3, 40, start, end] {
            out.u64(value);
        }
        for value in [kind as u32, 77, flags] {
            out.u32(value);
        }
        let header = Header { len: 0, opcode: 0, unique: 1, node: 7, uid: 0, gid: 0, pid: 1 };
        let asked = Asked::take(&header, &mut Args(out.written()))?;
        assert_eq!((asked.node, asked.handle, asked.kernel_owner, asked.pid), (7, 3, 40, 77));
        Ok((asked.space, asked.start, asked.end, asked.mode))
    }

    #[test]
    fn a_request_for_a_lock_is_taken_apart() {
        let (shared, exclusive) = (Some(LockMode::Shared), Some(LockMode::Exclusive));
        assert_eq!(taken(5, 9, libc::F_RDLCK, 0), Ok((LockSpace::Ranges, 5, 9, shared)));
        assert_eq!(taken(9, 9, libc::F_WRLCK, lk::FLOCK), Ok((LockSpace::Whole, 9, 9, exclusive)), "one byte");
        assert_eq!(taken(0, 9, libc::F_UNLCK, 0), Ok((LockSpace::Ranges, 0, 9, None)));
        assert_eq!(taken(0, lk::END - 1, libc::F_RDLCK, 0), Ok((LockSpace::Ranges, 0, lk::END - 1, shared)));
        assert_eq!(taken(0, lk::END, libc::F_RDLCK, 0), Ok((LockSpace::Ranges, 0, u64::MAX, shared)), "to the end");
        assert_eq!(taken(6, 5, libc::F_RDLCK, 0), Err(Malformed.into()));
        assert_eq!(taken(5, 9, 7, 0), Err(Errno(libc::EINVAL)), "no such kind");
    }
}
