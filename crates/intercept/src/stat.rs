//! What stat(2), statx(2), statfs(2) and access(2) say.

use crate::channel::{self, Session};
use crate::descriptors::stat_of;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::lookup::{self, Key, Looked};
use crate::place::{self, PathCall, Target};
use crate::{cwd, paths};
use aze_calls::{NO_DESC, Op, Request, Stat};
use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};

/// `a` of requests that do not follow a link at the end.
pub const NO_FOLLOW: u64 = 1;

/// Bytes of struct statfs.
const STATFS_BYTES: usize = size_of::<libc::statfs>();

/// In which form the host wants the answer.
#[derive(Clone, Copy)]
enum Form {
    Stat(u64),
    Statx(u64),
}

/// Handles these calls.
pub fn handle(number: i64, args: Args) -> i64 {
    let by_path = |dir, path, flags: u64, form| {
        let follows = flags as i32 & AT_SYMLINK_NOFOLLOW == 0;
        let call = PathCall { number, args, dir, path, follows };
        place::run(&call, |session, target| stat(session, target, follows, form))
    };
    match number {
        libc::SYS_stat => by_path(None, 0, 0, Form::Stat(args[1])),
        libc::SYS_lstat => by_path(None, 0, AT_SYMLINK_NOFOLLOW as u64, Form::Stat(args[1])),
        libc::SYS_fstat => fstat(number, args, Form::Stat(args[1])),
        libc::SYS_newfstatat if is_itself(args[1], args[3]) => fstat(number, args, Form::Stat(args[2])),
        libc::SYS_newfstatat => by_path(Some(0), 1, args[3], Form::Stat(args[2])),
        libc::SYS_statx if is_itself(args[1], args[2]) => fstat(number, args, Form::Statx(args[4])),
        libc::SYS_statx => by_path(Some(0), 1, args[2], Form::Statx(args[4])),
        libc::SYS_statfs => {
            let call = PathCall { number, args, dir: None, path: 0, follows: true };
            place::run(&call, |session, target| {
                // It fails as stat(2) does if there is no such file.
                match fetch(session, target, true) {
                    Ok(_) => statfs(session, args[1]),
                    Err(failed) => failed,
                }
            })
        }
        libc::SYS_fstatfs => match fds::of(argument(args[0])) {
            Fd::Kernels => raw(number, args),
            Fd::Failed(failed) => failed,
            Fd::Ours(_) => Session::begin().map_or_else(|failed| failed, |mut session| statfs(&mut session, args[1])),
        },
        libc::SYS_access => access(number, args, None, 0, args[1], 0),
        libc::SYS_faccessat => access(number, args, Some(0), 1, args[2], 0),
        _ => access(number, args, Some(0), 1, args[2], args[3]),
    }
}

/// True if a path is empty, or not there, and means the descriptor itself.
pub fn is_itself(path: u64, flags: u64) -> bool {
    flags as i32 & AT_EMPTY_PATH != 0 && (!host::is_memory(path) || host::read::<u8>(path) == 0)
}

fn fstat(number: i64, args: Args, form: Form) -> i64 {
    let desc = match itself(argument(args[0])) {
        Ok(Some(target)) => target,
        // Programs look for their descriptors this way.
        Ok(None) if channel::is_hidden(argument(args[0])) => return error(libc::EBADF),
        Ok(None) => return raw(number, args),
        Err(failed) => return failed,
    };
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let path = match desc {
        Itself::Open(desc) => Target { desc, path: b"" },
        Itself::Here => here(&session),
    };
    stat(&mut session, path, true, form)
}

/// What a descriptor means without a path.
pub enum Itself {
    /// A description.
    Open(u64),
    /// The working directory, which lies in the volume.
    Here,
}

/// The volume's description of a descriptor, or the working directory; `None` for the kernel's.
pub fn itself(fd: i32) -> Result<Option<Itself>, i64> {
    if fd == AT_FDCWD {
        return Ok(cwd::is_ours().then_some(Itself::Here));
    }
    match fds::of(fd) {
        Fd::Kernels => Ok(None),
        Fd::Failed(failed) => Err(failed),
        Fd::Ours(desc) => Ok(Some(Itself::Open(desc))),
    }
}

/// The working directory, which lies in the volume.
pub fn here(session: &Session) -> Target {
    match cwd::desc() {
        Some(desc) if desc != NO_DESC => Target { desc, path: b"" },
        _ => {
            let room = session.area(channel::FIRST);
            let length = cwd::get(room).unwrap_or(0);
            Target { desc: NO_DESC, path: room.get(..length).unwrap_or(b"/") }
        }
    }
}

/// What a published index says, or else the agent; the error may be LEAVES.
pub fn fetch(session: &mut Session, target: Target, follows: bool) -> Result<Stat, i64> {
    if target.path.is_empty() && target.desc != NO_DESC {
        return stat_of(session, target.desc);
    }
    let key = Key::of(&target);
    match key.as_ref().and_then(|key| lookup::look(session, key)) {
        Some(Looked::File(stat, _)) => return Ok(stat),
        Some(Looked::Missing) => return Err(error(libc::ENOENT)),
        None => {}
    }
    let a = if follows { 0 } else { NO_FOLLOW };
    let request = Request { op: Op::Stat as u32, desc: target.desc, a, ..Request::default() };
    let (reply, _) = lookup::ask(session, request, key.as_ref(), target.path)?;
    let bytes = session.bytes(&reply);
    match reply.result {
        failed if failed < 0 => Err(failed),
        _ if bytes.len() < size_of::<Stat>() => Err(error(libc::EIO)),
        _ => Ok(host::read(bytes.as_ptr() as u64)),
    }
}

fn stat(session: &mut Session, target: Target, follows: bool, form: Form) -> i64 {
    let to = match form {
        Form::Stat(to) | Form::Statx(to) => to,
    };
    if !host::is_memory(to) {
        return error(libc::EFAULT);
    }
    match fetch(session, target, follows) {
        Ok(stat) => {
            match form {
                Form::Stat(to) => host::write(to, as_stat(&stat, channel::device())),
                Form::Statx(to) => host::write(to, as_statx(&stat, channel::device())),
            }
            0
        }
        Err(failed) => failed,
    }
}

/// As struct stat.
pub fn as_stat(from: &Stat, device: u64) -> libc::stat {
    // SAFETY: zeros are a valid struct stat.
    let mut to: libc::stat = unsafe { core::mem::zeroed() };
    to.st_dev = device;
    to.st_ino = from.ino;
    to.st_nlink = u64::from(from.nlink);
    to.st_mode = from.mode;
    (to.st_uid, to.st_gid) = (from.uid, from.gid);
    to.st_rdev = from.rdev;
    (to.st_size, to.st_blocks) = (from.size as i64, from.blocks as i64);
    to.st_blksize = i64::from(from.blksize);
    [to.st_atime, to.st_atime_nsec] = from.atime;
    [to.st_mtime, to.st_mtime_nsec] = from.mtime;
    [to.st_ctime, to.st_ctime_nsec] = from.ctime;
    to
}

/// As struct statx, with everything but what only some file systems have.
fn as_statx(from: &Stat, device: u64) -> libc::statx {
    // SAFETY: zeros are a valid struct statx.
    let mut to: libc::statx = unsafe { core::mem::zeroed() };
    to.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    to.stx_blksize = from.blksize;
    to.stx_nlink = from.nlink;
    (to.stx_uid, to.stx_gid) = (from.uid, from.gid);
    to.stx_mode = from.mode as u16;
    (to.stx_ino, to.stx_size, to.stx_blocks) = (from.ino, from.size, from.blocks);
    let time = |[seconds, nanoseconds]: [i64; 2]| {
        // SAFETY: zeros are a valid time.
        let mut time: libc::statx_timestamp = unsafe { core::mem::zeroed() };
        (time.tv_sec, time.tv_nsec) = (seconds, nanoseconds as u32);
        time
    };
    (to.stx_atime, to.stx_mtime) = (time(from.atime), time(from.mtime));
    (to.stx_ctime, to.stx_btime) = (time(from.ctime), time(from.btime));
    (to.stx_dev_major, to.stx_dev_minor) = (libc::major(device), libc::minor(device));
    (to.stx_rdev_major, to.stx_rdev_minor) = (libc::major(from.rdev), libc::minor(from.rdev));
    to
}

fn statfs(session: &mut Session, to: u64) -> i64 {
    if !host::is_memory(to) {
        return error(libc::EFAULT);
    }
    let reply = match session.ask(Request { op: Op::StatFs as u32, ..Request::default() }, &[]) {
        Ok(reply) => reply,
        Err(failed) => return failed,
    };
    if reply.result < 0 {
        return reply.result;
    }
    let bytes = session.bytes(&reply);
    if bytes.len() < STATFS_BYTES {
        return error(libc::EIO);
    }
    host::copy(to, bytes.as_ptr() as u64, STATFS_BYTES);
    0
}

fn access(number: i64, args: Args, dir: Option<usize>, path: usize, mode: u64, flags: u64) -> i64 {
    let follows = flags as i32 & AT_SYMLINK_NOFOLLOW == 0;
    let effective = u64::from(flags as i32 & libc::AT_EACCESS != 0);
    let ask = |session: &mut Session, target: Target| {
        // A mode that the agent would refuse is refused by it.
        let key = Key::of(&target).filter(|_| mode <= (libc::R_OK | libc::W_OK | libc::X_OK) as u64);
        if let Some(result) = key.as_ref().and_then(|key| lookup::access(session, key, mode as u32)) {
            return result;
        }
        let a = if follows { 0 } else { NO_FOLLOW };
        let request =
            Request { op: Op::Access as u32, desc: target.desc, a, b: mode, c: effective, ..Request::default() };
        lookup::ask(session, request, key.as_ref(), target.path).map_or_else(|failed| failed, |(reply, _)| reply.result)
    };
    if dir.is_some() && is_itself(args[1], flags) {
        return of_itself(number, args, ask);
    }
    place::run(&PathCall { number, args, dir, path, follows }, ask)
}

/// A call whose first argument is a descriptor that means itself.
pub fn of_itself(number: i64, args: Args, act: impl FnOnce(&mut Session, Target) -> i64) -> i64 {
    let found = match itself(argument(args[0])) {
        Ok(Some(found)) => found,
        Ok(None) => return raw(number, args),
        Err(failed) => return failed,
    };
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let target = match found {
        Itself::Open(desc) => Target { desc, path: b"" },
        Itself::Here => here(&session),
    };
    act(&mut session, target)
}

/// Where a path of the volume is seen, with a NUL behind it, in an area; its length.
pub fn seen(session: &Session, area: channel::Area, path: &[u8]) -> Option<usize> {
    let at = crate::settings::AT.get();
    let path = if path == b"/" { b"" } else { path };
    paths::join(session.area(area), &[at, path])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_arrive() {
        let from = Stat {
            ino: 1,
            size: 2,
            blocks: 3,
            rdev: 0x0102,
            mode: libc::S_IFREG | 0o640,
            nlink: 5,
            uid: 6,
            gid: 7,
            blksize: 8,
            pad: 0,
            atime: [9, 10],
            mtime: [11, 12],
            ctime: [13, 14],
            btime: [15, 16],
        };
        let stat = as_stat(&from, 0x0304);
        assert_eq!((stat.st_ino, stat.st_size, stat.st_blocks, stat.st_rdev, stat.st_dev), (1, 2, 3, 0x0102, 0x0304));
        assert_eq!((stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid), (libc::S_IFREG | 0o640, 5, 6, 7));
        assert_eq!((stat.st_blksize, stat.st_atime, stat.st_atime_nsec), (8, 9, 10));
        assert_eq!((stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec), (11, 12, 13, 14));
        let statx = as_statx(&from, 0x0304);
        assert_eq!((statx.stx_ino, statx.stx_size, statx.stx_blocks, statx.stx_nlink), (1, 2, 3, 5));
        assert_eq!((statx.stx_dev_major, statx.stx_dev_minor, statx.stx_rdev_minor), (3, 4, 2));
        assert_eq!((statx.stx_btime.tv_sec, statx.stx_ctime.tv_nsec, statx.stx_mode & 0o777), (15, 14, 0o640));
    }
}
