//! Where a path of a system call leads: to the kernel or into the volume.
//!
//! A path that is surely the kernel's goes there at once. For others, the target is found, the operation asked of the agent,
//! and the call made anew with another path when a symbolic link leads over the border, in either direction.

use crate::channel::{Area, FIRST, REPLY, SECOND, Session, THIRD};
use crate::fds::{self, Fd};
use crate::host::{self, Args, error, raw};
use crate::paths;
use crate::settings::AT;
use crate::{cwd, process};
use aze_calls::{LEAVES, NO_DESC};
use core::mem::MaybeUninit;
use libc::AT_FDCWD;

/// Symbolic links over the border that a path may have, as in the kernel.
pub const LINKS_MAX: u32 = 40;

/// Longest path, with its NUL, that is looked at on the stack.
const SHORT_BYTES_MAX: usize = 256;

/// Longest path, with its NUL.
pub const PATH_BYTES_MAX: usize = cwd::PATH_BYTES_MAX;

/// A place in the volume.
#[derive(Clone, Copy)]
pub struct Target {
    /// The directory below which the path begins, or [`NO_DESC`].
    pub desc: u64,
    /// The path; empty for the description itself.
    pub path: &'static [u8],
}

/// Where a path leads.
pub enum Place {
    /// To the kernel, as the host has written it.
    Kernels,
    /// To the kernel, by the path at this address.
    Elsewhere(u64),
    /// Into the volume.
    Ours(Target),
    /// The call fails with this.
    Failed(i64),
}

/// A system call with one path.
pub struct PathCall {
    /// Number of the call.
    pub number: i64,
    /// Its arguments.
    pub args: Args,
    /// Which argument is the directory's descriptor, if there is one.
    pub dir: Option<usize>,
    /// Which argument is the path.
    pub path: usize,
    /// True if a symbolic link at the end is followed.
    pub follows: bool,
}

impl PathCall {
    fn directory(&self) -> i32 {
        self.dir.map_or(AT_FDCWD, |dir| fds::argument(self.args.get(dir).copied().unwrap_or(0)))
    }

    fn with_path(&self, path: u64) -> Args {
        let mut args = self.args;
        if let Some(argument) = args.get_mut(self.path) {
            *argument = path;
        }
        args
    }
}

/// Handles a call with one path: by `act` if it leads into the volume, which may answer [`LEAVES`], else by the kernel.
pub fn run(call: &PathCall, mut act: impl FnMut(&mut Session, Target) -> i64) -> i64 {
    let (directory, path) = (call.directory(), call.args.get(call.path).copied().unwrap_or(0));
    if is_kernels(directory, path) {
        let result = raw(call.number, call.args);
        if result != error(libc::ENOENT) || !host::is_memory(path) {
            return result;
        }
        return chased(call, directory, path, result, act);
    }
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let mut place = locate(&mut session, directory, host::string(path, PATH_BYTES_MAX), FIRST, call.follows);
    for _ in 0..LINKS_MAX {
        match place {
            Place::Kernels => {
                drop(session);
                let result = raw(call.number, call.args);
                return if result == error(libc::ENOENT) { chased(call, directory, path, result, act) } else { result };
            }
            Place::Elsewhere(path) => {
                session.unblock();
                return raw(call.number, call.with_path(path));
            }
            Place::Failed(failed) => return failed,
            Place::Ours(target) => {
                let result = act(&mut session, target);
                if result != LEAVES {
                    return result;
                }
                place = left(&mut session, FIRST, call.follows);
            }
        }
    }
    error(libc::ELOOP)
}

/// Where the path of an answer [`LEAVES`] leads; it lies in `area` from now on.
pub fn left(session: &mut Session, area: Area, follows: bool) -> Place {
    let last = session.last();
    let room = session.area(area);
    match paths::join(room, &[session.bytes(&last)]) {
        Some(length) => match locate(session, AT_FDCWD, room.get(..length).unwrap_or(&[]), area, follows) {
            // It lies in this library's memory, not where the host's path does.
            Place::Kernels => Place::Elsewhere(room.as_ptr() as u64),
            place => place,
        },
        None => Place::Failed(error(libc::ENAMETOOLONG)),
    }
}

/// After ENOENT from the kernel: if a symbolic link on the way leads into the volume, the call is made there.
fn chased(
    call: &PathCall,
    directory: i32,
    path: u64,
    result: i64,
    mut act: impl FnMut(&mut Session, Target) -> i64,
) -> i64 {
    if !may_be_linked(directory, path) {
        return result;
    }
    let Ok(mut session) = Session::begin() else { return result };
    let mut found = chase(&mut session, directory, host::string(path, PATH_BYTES_MAX));
    for _ in 0..LINKS_MAX {
        let Some(target) = found else { return result };
        let result = act(&mut session, target);
        if result != LEAVES {
            return result;
        }
        match left(&mut session, FIRST, call.follows) {
            Place::Ours(target) => found = Some(target),
            Place::Elsewhere(path) => {
                session.unblock();
                return raw(call.number, call.with_path(path));
            }
            Place::Failed(failed) => return failed,
            Place::Kernels => return result,
        }
    }
    error(libc::ELOOP)
}

/// A cheap look at a path that the kernel has not found: false if nothing of it can lead into the volume. Programs look for
/// many files that are not there. Two calls if the directory is there: one says that the name is no link, which only the kernel
/// can know, since any process may have made one; the other that the directory exists, so that the name alone is missing.
pub fn may_be_linked(directory: i32, path: u64) -> bool {
    let mut short = MaybeUninit::<[u8; SHORT_BYTES_MAX]>::uninit();
    let at = short.as_mut_ptr() as u64;
    let Some(length) = copied(path, at) else { return true };
    // SAFETY: `copied` has written so many bytes, and a NUL, from the beginning on.
    let short = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, length + 1) };
    if short.first() != Some(&b'/') {
        // By its letters only if it names the last part of where the volume is seen.
        let last = AT.get().rsplit(|byte| *byte == b'/').next();
        if short.split(|byte| matches!(byte, b'/' | 0)).any(|part| Some(part) == last) {
            return true;
        }
    }
    let mut end = length;
    loop {
        let mut letter = 0u8;
        let link = raw(libc::SYS_readlinkat, [directory as u64, at, &raw mut letter as u64, 1, 0, 0]);
        if link > 0 {
            // A link to a directory that is there (as /lib is on many systems) leads nowhere else.
            return end == length || !exists(directory, at);
        }
        if link != error(libc::ENOENT) {
            return false;
        }
        end = match short.get(..end).and_then(|path| path.iter().rposition(|byte| *byte == b'/')) {
            Some(slash) if slash > 0 => slash,
            _ => return false,
        };
        if let Some(byte) = short.get_mut(end) {
            *byte = 0;
        }
    }
}

/// Copies a path of the host's, with its NUL, to a place of [`SHORT_BYTES_MAX`]; its length, or `None` if it is longer.
fn copied(path: u64, to: u64) -> Option<usize> {
    for at in 0..SHORT_BYTES_MAX as u64 {
        let byte: u8 = host::read(path + at);
        host::write(to + at, byte);
        if byte == 0 {
            return Some(at as usize);
        }
    }
    None
}

/// True if the kernel finds a path, by links, too.
fn exists(directory: i32, path: u64) -> bool {
    raw(libc::SYS_faccessat, [directory as u64, path, libc::F_OK as u64, 0, 0, 0]) != error(libc::ENOENT)
}

/// Where a path of the kernel's leads if the kernel does not find it: into the volume by a link, or where it says.
pub fn linked(session: &mut Session, directory: i32, path: u64) -> Place {
    if exists(directory, path) {
        return Place::Kernels;
    }
    chase(session, directory, host::string(path, PATH_BYTES_MAX)).map_or(Place::Kernels, Place::Ours)
}

/// The place in the volume to which a link on a path of the kernel's leads, if there is one. A path that exists but for its
/// last part costs two calls.
fn chase(session: &mut Session, directory: i32, path: &[u8]) -> Option<Target> {
    let (room, spare) = (session.area(FIRST), session.area(SECOND));
    let mut length = paths::join(room, &[path])?;
    if path.first() != Some(&b'/') {
        // It may lead there by its letters, from a directory above.
        let here = directory_path(directory, spare)?;
        let whole = session.area(THIRD);
        let joined = paths::join(whole, &[spare.get(..here)?, b"/", path])?;
        let reduced = paths::reduce(whole.get(..joined)?, room)?;
        if paths::below(AT.get(), room.get(..reduced)?).is_some() {
            return reached(session, reduced);
        }
        length = paths::join(room, &[path])?;
    }
    for _ in 0..LINKS_MAX {
        let (end, link) = last_link(directory, room, length, spare)?;
        let whole = session.area(THIRD);
        let (target, rest) = (spare.get(..link)?, room.get(end..length)?);
        let parent = room.get(..end)?.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let before: &[u8] = if target.first() == Some(&b'/') { b"" } else { room.get(..parent)? };
        let joined = paths::join(whole, &[before, target, rest])?;
        let whole = whole.get(..joined)?;
        if whole.first() == Some(&b'/') {
            length = paths::reduce(whole, room)?;
            if paths::below(AT.get(), room.get(..length)?).is_some() {
                return reached(session, length);
            }
            *room.get_mut(length)? = 0;
        } else {
            length = paths::join(room, &[whole])?;
        }
    }
    None
}

/// The path of a directory of the kernel's, without a NUL; its length.
fn directory_path(directory: i32, to: &mut [u8]) -> Option<usize> {
    let (at, room) = (to.as_mut_ptr() as u64, to.len() as u64);
    if directory == AT_FDCWD {
        let bytes = host::call(libc::SYS_getcwd, at, room, 0);
        return usize::try_from(bytes).ok()?.checked_sub(1);
    }
    let link = host::descriptor_link(directory);
    usize::try_from(host::call(libc::SYS_readlink, link.as_ptr() as u64, at, room)).ok()
}

/// The place of an absolute path in the first room.
fn reached(session: &Session, length: usize) -> Option<Target> {
    let path: &'static [u8] = session.area(FIRST).get(..length)?;
    paths::below(AT.get(), path).map(|rest| Target { desc: NO_DESC, path: or_root(rest) })
}

/// The longest beginning of the path that is a symbolic link, and the length of its target, which goes to `to`. `None` as
/// soon as a beginning exists and is none.
fn last_link(directory: i32, path: &mut [u8], length: usize, to: &mut [u8]) -> Option<(usize, usize)> {
    let mut end = length;
    loop {
        while end > 1 && path.get(end - 1) == Some(&b'/') {
            end -= 1;
        }
        let kept = core::mem::replace(path.get_mut(end)?, 0);
        let args = [directory as u64, path.as_ptr() as u64, to.as_mut_ptr() as u64, to.len() as u64 - 1, 0, 0];
        let link = raw(libc::SYS_readlinkat, args);
        *path.get_mut(end)? = kept;
        if link > 0 {
            return Some((end, link as usize));
        }
        if link != error(libc::ENOENT) {
            return None;
        }
        end = path.get(..end)?.iter().rposition(|byte| *byte == b'/')?;
        if end == 0 {
            return None;
        }
    }
}

/// The root has a name of one letter.
fn or_root(rest: &'static [u8]) -> &'static [u8] {
    if rest.is_empty() { b"/" } else { rest }
}

/// True for a path that cannot lead into the volume but by a symbolic link; a cheap look.
pub fn is_kernels(directory: i32, path: u64) -> bool {
    if !host::is_memory(path) {
        return true;
    }
    if host::read::<u8>(path) == b'/' {
        return !may_be_ours(path);
    }
    if directory == AT_FDCWD {
        return !cwd::is_ours();
    }
    fds::of(directory) == Fd::Kernels
}

/// Looks through an absolute path once: does it begin where the volume is seen, or in procfs or /dev, or is it reducible?
fn may_be_ours(path: u64) -> bool {
    let byte = |at: u64| host::read::<u8>(path + at);
    let begins = |text: &[u8]| text.iter().zip(0..).all(|(letter, at)| byte(at) == *letter);
    if begins(AT.get()) || begins(b"/proc/") || begins(b"/dev/fd/") || begins(b"/dev/std") {
        return true;
    }
    let mut at = 0;
    loop {
        match byte(at) {
            0 => return false,
            b'/' => match byte(at + 1) {
                b'/' => return true,
                b'.' if matches!(byte(at + 2), 0 | b'/' | b'.') => return true,
                _ => {}
            },
            _ => {}
        }
        at += 1;
    }
}

/// Where a path leads. A path that is made anew lies in `area`.
pub fn locate(session: &mut Session, directory: i32, path: &'static [u8], area: Area, follows: bool) -> Place {
    if path.len() >= PATH_BYTES_MAX {
        return Place::Failed(error(libc::ENAMETOOLONG));
    }
    if path.first() == Some(&b'/') {
        return absolute(session, path, area, follows);
    }
    let found = if directory == AT_FDCWD { cwd::desc().map_or(Fd::Kernels, Fd::Ours) } else { fds::of(directory) };
    match found {
        Fd::Kernels => Place::Kernels,
        Fd::Failed(failed) => Place::Failed(failed),
        Fd::Ours(_) if path.is_empty() => Place::Failed(error(libc::ENOENT)),
        Fd::Ours(NO_DESC) => from_path(session, path, area, follows),
        // The agent says where the path leaves the volume.
        Fd::Ours(desc) => Place::Ours(Target { desc, path }),
    }
}

/// A path that begins in a working directory known by its path alone.
fn from_path(session: &mut Session, path: &[u8], area: Area, follows: bool) -> Place {
    let (room, spare) = (session.area(area), session.area(REPLY));
    let Some(length) = cwd::get(spare) else { return Place::Kernels };
    match paths::join(room, &[AT.get(), spare.get(..length).unwrap_or(&[]), b"/", path]) {
        Some(length) => absolute_in(session, length, area, follows),
        None => Place::Failed(error(libc::ENAMETOOLONG)),
    }
}

/// An absolute path that lies in `area`.
fn absolute_in(session: &mut Session, length: usize, area: Area, follows: bool) -> Place {
    let path = session.area(area).get(..length).unwrap_or(&[]);
    if path.len() >= PATH_BYTES_MAX {
        return Place::Failed(error(libc::ENAMETOOLONG));
    }
    // Paths that are made here begin in the volume, so that the kernel never gets one as it is.
    absolute(session, path, area, follows)
}

fn absolute(session: &mut Session, path: &'static [u8], area: Area, follows: bool) -> Place {
    let at = AT.get();
    if let Some(rest) = paths::below(at, path)
        && !paths::climbs(rest)
    {
        return Place::Ours(Target { desc: NO_DESC, path: or_root(rest) });
    }
    if paths::is_reducible(path) {
        // The path may lie in the area itself: it is made in the room for replies, which no reply needs now.
        let spare = session.area(REPLY);
        let Some(length) = paths::reduce(path, spare) else { return Place::Failed(error(libc::ENAMETOOLONG)) };
        let begins_here = paths::below(at, path).is_some();
        let room = session.area(area);
        if paths::join(room, &[spare.get(..length).unwrap_or(&[])]).is_none() {
            return Place::Failed(error(libc::ENAMETOOLONG));
        }
        let reduced: &'static [u8] = room.get(..length).unwrap_or(&[]);
        return match paths::below(at, reduced) {
            Some(rest) => Place::Ours(Target { desc: NO_DESC, path: or_root(rest) }),
            None if begins_here => Place::Elsewhere(room.as_ptr() as u64),
            None => Place::Kernels,
        };
    }
    match paths::descriptor(path, process_number()) {
        Some((fd, rest)) if follows || !rest.is_empty() => match fds::of(fd) {
            Fd::Ours(desc) => Place::Ours(Target { desc, path: rest }),
            _ => Place::Kernels,
        },
        _ => Place::Kernels,
    }
}

fn process_number() -> u32 {
    process::shared_child().unwrap_or_else(host::pid)
}
