//! The requests of the kernel, one function each, which turns the request into one call of [`Door`] and
//! the outcome into a reply.

use crate::abi::{Args, Header, Out, getattr, op, set, write};
use crate::door::{Door, Entry, ino, new_file};
use crate::kernel_cache::Version;
use crate::locks;
use crate::reply::Errno;
use crate::space;
use crate::stream::Stream;
use crate::translate;
use crate::worker_pool::Kind;
use crate::xattr;
use aze_client::{Aged, NewFile, mode_under};
use aze_proto::attr::{Attr, Change, FileKind, SetTime};
use aze_proto::limits::NAME_BYTES_MAX;
use std::sync::Arc;
use std::time::Duration;

/// How old the answer to statfs(2) may be: every server has to be asked for it.
const STATFS_AGE_MAX: Duration = Duration::from_secs(1);

/// Set-user-id and set-group-id.
const SET_ID_BITS: u32 = 0o6000;

/// Bytes of one block in statfs(2).
const STATFS_BLOCK_BYTES: u64 = 4096;

/// Bytes of an entry in a listing before its name, and with attributes.
const DIRENT_BYTES: usize = 24;
const DIRENT_PLUS_BYTES: usize = 152;

/// How an operation is answered.
pub enum Done {
    /// With the bytes in the buffer.
    Now,
    /// The same; it opened a file, which is closed if the kernel does not take the answer.
    Opened(u64),
    /// The same for a directory.
    OpenedDir(u64),
    /// Not at all: none is expected.
    Silently,
}

/// Reads and writes of no more bytes are quick: longer ones are worth another thread.
const QUICK_BYTES_MAX: u32 = 32 << 10;

type Outcome = Result<Done, Errno>;

/// Does a request; `out` is empty and takes the answer.
pub fn act(door: &Door, header: &Header, args: Args<'_>, out: &mut Out) -> Outcome {
    match header.opcode {
        op::LOOKUP => lookup(door, header, args, out),
        // Inodes are known by their number: nothing is kept for as long as the kernel knows one.
        op::FORGET | op::BATCH_FORGET | op::NOTIFY_REPLY => Ok(Done::Silently),
        op::INTERRUPT => interrupt(door, args),
        op::GETATTR => getattr(door, header, args, out),
        op::SETATTR => setattr(door, header, args, out),
        op::READLINK => readlink(door, header, out),
        op::SYMLINK => symlink(door, header, args, out),
        op::MKNOD => mknod(door, header, args, out),
        op::MKDIR => mkdir(door, header, args, out),
        op::UNLINK => unlink(door, header, args),
        op::RMDIR => rmdir(door, header, args),
        op::RENAME | op::RENAME2 => rename(door, header, args),
        op::LINK => link(door, header, args, out),
        op::OPEN => open(door, header, args, out),
        op::CREATE => create(door, header, args, out),
        op::READ => read(door, header, args, out),
        op::WRITE => write(door, header, args, out),
        op::FLUSH => flush(door, header, args),
        op::FSYNC => fsync(door, header, args),
        op::FSYNCDIR => fsyncdir(door, header),
        op::RELEASE => release(door, header, args),
        op::OPENDIR => opendir(door, header, out),
        op::READDIR | op::READDIRPLUS => readdir(door, header, args, out),
        op::RELEASEDIR => releasedir(door, args),
        op::STATFS => statfs(door, header, out),
        op::SETXATTR => xattr::set(door, header, args).map(|()| Done::Now),
        op::GETXATTR => xattr::get(door, header, args, out).map(|()| Done::Now),
        op::LISTXATTR => xattr::list(door, header, args, out).map(|()| Done::Now),
        op::REMOVEXATTR => xattr::remove(door, header, args).map(|()| Done::Now),
        op::TMPFILE => tmpfile(door, header, args, out),
        op::FALLOCATE => space::fallocate(door, header, args).map(|()| Done::Now),
        op::LSEEK => space::lseek(door, header, args, out).map(|()| Done::Now),
        op::GETLK => locks::test(door, header, args, out).map(|()| Done::Now),
        op::SETLK => locks::set(door, header, args).map(|()| Done::Now),
        op::DESTROY => Ok(Done::Now),
        // The kernel does without, in its own way or by telling the caller.
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// How long a request takes the worker that does it.
pub fn kind(door: &Door, header: &Header, mut args: Args<'_>) -> Kind {
    let quick = match header.opcode {
        op::LOOKUP | op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::GETATTR | op::READLINK | op::STATFS => true,
        op::CREATE | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK => true,
        op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 => true,
        op::OPEN | op::OPENDIR | op::RELEASEDIR | op::GETXATTR | op::LISTXATTR => true,
        // On some volumes they wait for disks.
        op::FLUSH | op::RELEASE => !door.client.syncs_at_close(),
        op::WRITE => header.len <= QUICK_BYTES_MAX,
        op::READ => args.skip(16).and_then(|()| args.u32()).is_ok_and(|bytes| bytes <= QUICK_BYTES_MAX),
        _ => false,
    };
    if quick { Kind::Quick } else { Kind::Slow }
}

fn getattr(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let flags = args.u32()?;
    args.skip(4)?;
    let handle = args.u64()?;
    let mut aged = door.attr(header, header.node)?;
    let mut is_lengthened = false;
    // The kernel names an open file when it asks in order to read from its pages, but not for fstat(2). The volume may
    // have started again while the request was under way.
    if flags & getattr::FH != 0
        && let Some(file) = door.files.get(handle)
    {
        file.check_locks().map_err(|failure| door.noted("read of", header.node, &failure))?;
        is_lengthened = door.lengthen(header, &file, &mut aged)?;
    }
    tell(out, &aged.attr);
    let validity = door.validity_if(header, &aged, is_lengthened);
    translate::put_aged(out, &aged.attr, validity);
    Ok(Done::Now)
}

/// Answers with what a name means.
fn named<T: Into<Aged>>(door: &Door, header: &Header, out: &mut Out, found: Result<T, Errno>) -> Outcome {
    let aged = found?.into();
    tell(out, &aged.attr);
    let validity = door.validity(header, &aged);
    let is_for_now = door.looks_again(header);
    translate::put_entry(out, &aged.attr, if is_for_now { Duration::ZERO } else { validity });
    Ok(Done::Now)
}

fn tell(out: &mut Out, attr: &Attr) {
    if attr.kind == FileKind::File {
        out.versions.push(Version::of(attr));
    }
}

fn lookup(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let name = args.text()?;
    named(door, header, out, door.lookup_attr(header, header.node, name))
}

fn setattr(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let valid = args.u32()?;
    args.skip(4)?;
    let (handle, size) = (args.u64()?, args.u64()?);
    args.skip(8)?;
    let (atime, mtime, _ctime) = (args.u64()?, args.u64()?, args.u64()?);
    let (atime_ns, mtime_ns, _ctime_ns) = (args.u32()?, args.u32()?, args.u32()?);
    let mode = args.u32()?;
    args.skip(4)?;
    let (uid, gid) = (args.u32()?, args.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |set, now, seconds, nanoseconds| match (has(set), has(now)) {
        (false, _) => None,
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(translate::set_time(seconds, nanoseconds)),
    };
    let change = Change {
        mode: has(set::MODE).then_some(mode & 0o7777),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        atime: time(set::ATIME, set::ATIME_NOW, atime, atime_ns),
        mtime: time(set::MTIME, set::MTIME_NOW, mtime, mtime_ns),
    };
    let (size, handle) = (has(set::SIZE).then_some(size), has(set::HANDLE).then_some(handle));
    door.came_by_name(header, header.node)?;
    let attr = door.change(header, header.node, size, handle, &change)?;
    tell(out, &attr);
    // The kernel takes these attributes as its own change. It may hold pages meanwhile, so they cannot be dropped
    // before.
    translate::put_aged(out, &attr, Duration::ZERO);
    Ok(Done::Now)
}

fn readlink(door: &Door, header: &Header, out: &mut Out) -> Outcome {
    let who = door.callers.who(header);
    let text = door.serve("readlink of", header.node, door.client.readlink(&who, ino(header.node)))?;
    out.put(&text);
    Ok(Done::Now)
}

fn symlink(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (name, target) = (args.text()?, args.text()?);
    let new = NewFile { target: target.to_vec(), ..new_file(FileKind::Symlink, 0o777, 0) };
    named(door, header, out, door.make(header, header.node, name, &new))
}

fn mknod(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (mode, rdev, umask) = (args.u32()?, args.u32()?, args.u32()?);
    args.skip(4)?;
    let name = args.text()?;
    match FileKind::from_mode(mode) {
        Some(kind) if kind != FileKind::Directory && kind != FileKind::Symlink => named(
            door,
            header,
            out,
            door.make(header, header.node, name, &NewFile { rdev, ..new_file(kind, mode, umask) }),
        ),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn mkdir(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (mode, umask) = (args.u32()?, args.u32()?);
    let name = args.text()?;
    named(door, header, out, door.make(header, header.node, name, &new_file(FileKind::Directory, mode, umask)))
}

fn unlink(door: &Door, header: &Header, mut args: Args<'_>) -> Outcome {
    let (who, name) = (door.callers.who(header), args.text()?);
    door.serve("unlink in", header.node, async {
        door.client.unlink(&who, ino(header.node), &translate::name(name)?).await
    })?;
    Ok(Done::Now)
}

fn rmdir(door: &Door, header: &Header, mut args: Args<'_>) -> Outcome {
    let (who, name) = (door.callers.who(header), args.text()?);
    door.serve("rmdir in", header.node, async {
        door.client.rmdir(&who, ino(header.node), &translate::name(name)?).await
    })?;
    Ok(Done::Now)
}

fn rename(door: &Door, header: &Header, mut args: Args<'_>) -> Outcome {
    let to_dir = args.node()?;
    let mut flags = 0;
    if header.opcode == op::RENAME2 {
        flags = args.u32()?;
        args.skip(4)?;
    }
    let (name, to_name) = (args.text()?, args.text()?);
    // The kernel refuses both together, and what else there is wants a whiteout.
    if !matches!(flags, 0 | libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) {
        return Err(Errno(libc::EINVAL));
    }
    let who = door.callers.who(header);
    door.serve("rename in", header.node, async {
        let (name, to_name) = (translate::name(name)?, translate::name(to_name)?);
        let (dir, to_dir) = (ino(header.node), ino(to_dir));
        if flags == libc::RENAME_EXCHANGE {
            return door.client.exchange(&who, dir, &name, to_dir, &to_name).await;
        }
        door.client.rename(&who, dir, &name, to_dir, &to_name, flags != 0).await
    })?;
    Ok(Done::Now)
}

fn link(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (target, name) = (args.node()?, args.text()?);
    door.came_by_name(header, target)?;
    let who = door.callers.who(header);
    let linked = door.serve("link to", target, async {
        door.client.link(&who, ino(target), ino(header.node), &translate::name(name)?).await
    });
    named(door, header, out, linked)
}

fn open(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let flags = args.u32()? as i32;
    let (handle, pages) = door.open_file(header, header.node, flags)?;
    put_open(out, handle, pages);
    Ok(Done::Opened(handle))
}

fn create(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (flags, mode, umask) = (args.u32()? as i32, args.u32()?, args.u32()?);
    args.skip(4)?;
    let name = args.text()?;
    let (aged, (handle, pages)) = door.create_file(header, header.node, name, mode_under(mode, umask), flags)?;
    tell(out, &aged.attr);
    let validity = door.validity(header, &aged);
    translate::put_entry(out, &aged.attr, validity);
    put_open(out, handle, pages);
    Ok(Done::Opened(handle))
}

/// `O_TMPFILE`: the file may be given a name later, unless the kernel forbids it (`O_EXCL`).
fn tmpfile(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (flags, mode, umask) = (args.u32()? as i32, args.u32()?, args.u32()?);
    let (attr, (handle, pages)) = door.create_unnamed(header, header.node, mode_under(mode, umask), flags)?;
    tell(out, &attr);
    let aged = Aged::from(attr);
    translate::put_entry(out, &aged.attr, door.validity(header, &aged));
    put_open(out, handle, pages);
    Ok(Done::Opened(handle))
}

fn put_open(out: &mut Out, handle: u64, flags: u32) {
    out.u64(handle);
    out.u32(flags);
    out.zeros(4);
}

fn read(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (handle, offset, size) = (args.u64()?, args.u64()?, args.u32()?);
    let file = door.file(handle)?;
    door.kernel_cache.has_pages(ino(header.node));
    let room = out.room(size as usize).ok_or(Errno(libc::EINVAL))?;
    let count = door.serve("read of", header.node, file.read_as_opened(offset, room))?;
    out.filled(count);
    Ok(Done::Now)
}

fn write(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (handle, offset, size) = (args.u64()?, args.u64()?, args.u32()?);
    let how = args.u32()?;
    args.skip(8)?;
    let flags = args.u32()? as i32;
    args.skip(4)?;
    let data = args.bytes(size as usize)?;
    let file = door.file(handle)?;
    let takes_set_id = how & write::KILL_SUIDGID != 0 && file.attr().mode & SET_ID_BITS != 0;
    door.kernel_cache.has_pages(ino(header.node));
    match flags & libc::O_APPEND {
        0 => door.serve("write to", header.node, file.write(offset, data))?,
        _ => door.append_file(header.node, &file, data)?,
    }
    door.has_written(ino(header.node), offset.saturating_add(size.into()));
    if takes_set_id {
        // The kernel would go on showing these bits to a program that asks for the mode alone.
        door.device.forget_attrs(header.node);
    }
    out.u32(size);
    out.zeros(4);
    Ok(Done::Now)
}

/// A program is no longer to wait. Only what may wait without bound takes notice: the rest has a
/// deadline, and is finished.
fn interrupt(door: &Door, mut args: Args<'_>) -> Outcome {
    door.locks.interrupt(args.u64()?);
    Ok(Done::Silently)
}

fn flush(door: &Door, header: &Header, mut args: Args<'_>) -> Outcome {
    let handle = args.u64()?;
    args.skip(8)?;
    let kernel_owner = args.u64()?;
    let file = door.file(handle)?;
    let flushed = door.serve("flush of", header.node, file.flush_for_close());
    // Locks go with the first descriptor that their process closes, also when the data could not be written.
    let unlocked = locks::closed(door, header, handle, kernel_owner, &file);
    flushed.and(unlocked)?;
    Ok(Done::Now)
}

fn fsync(door: &Door, header: &Header, mut args: Args<'_>) -> Outcome {
    let file = door.file(args.u64()?)?;
    door.serve("fsync of", header.node, file.sync())?;
    Ok(Done::Now)
}

fn fsyncdir(door: &Door, header: &Header) -> Outcome {
    let who = door.callers.who(header);
    door.serve("fsync of", header.node, door.client.sync(&who))?;
    Ok(Done::Now)
}

fn release(door: &Door, header: &Header, mut args: Args<'_>) -> Outcome {
    let handle = args.u64()?;
    let file = door.leave(handle).ok_or(Errno(libc::EBADF))?;
    door.locks.released(header.node, handle);
    // Ends the locks that were taken through it, too.
    door.serve("close of", header.node, file.close())?;
    Ok(Done::Now)
}

fn opendir(door: &Door, header: &Header, out: &mut Out) -> Outcome {
    let handle = door.streams.insert(Arc::new(Stream::new(ino(header.node))));
    put_open(out, handle, 0);
    Ok(Done::OpenedDir(handle))
}

fn releasedir(door: &Door, mut args: Args<'_>) -> Outcome {
    door.streams.remove(args.u64()?);
    Ok(Done::Now)
}

fn readdir(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Outcome {
    let (handle, offset, size) = (args.u64()?, args.u64()?, args.u32()?);
    out.room(size as usize).ok_or(Errno(libc::EINVAL))?;
    let plus = header.opcode == op::READDIRPLUS;
    door.read_dir(header, handle, offset, plus, |entry| {
        let fits = put_listed(out, size as usize, plus, &entry);
        if let Some(attr) = entry.attr.filter(|_| fits) {
            tell(out, attr);
        }
        fits
    })?;
    Ok(Done::Now)
}

/// Writes an entry if it fits into `size` bytes with those before it.
fn put_listed(out: &mut Out, size: usize, plus: bool, entry: &Entry<'_>) -> bool {
    let head = if plus { DIRENT_PLUS_BYTES } else { DIRENT_BYTES };
    let len = (head + entry.name.len()).next_multiple_of(8);
    if out.len() + len > size {
        return false;
    }
    if plus {
        match entry.attr {
            Some(attr) => translate::put_entry(out, attr, entry.validity),
            None => translate::put_dots_entry(out, entry.ino),
        }
    }
    out.u64(entry.ino.0);
    out.u64(entry.next);
    out.u32(entry.name.len() as u32);
    out.u32(translate::listed_kind(entry.kind));
    out.put(entry.name);
    out.zeros(len - head - entry.name.len());
    true
}

fn statfs(door: &Door, header: &Header, out: &mut Out) -> Outcome {
    let space = door.serve("statfs at", header.node, door.client.statfs_within(STATFS_AGE_MAX))?;
    let blocks = space.capacity_bytes / STATFS_BLOCK_BYTES;
    let free = space.capacity_bytes.saturating_sub(space.used_bytes) / STATFS_BLOCK_BYTES;
    // Where there is no room for data none is left for names either.
    let free_files = if free == 0 { 0 } else { space.inodes_max.saturating_sub(space.inodes) };
    for value in [blocks, free, free, space.inodes + free_files, free_files] {
        out.u64(value);
    }
    for value in [STATFS_BLOCK_BYTES as u32, NAME_BYTES_MAX as u32, STATFS_BLOCK_BYTES as u32] {
        out.u32(value);
    }
    out.zeros(28);
    Ok(Done::Now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::ids::Ino;

    fn dot(name: &[u8]) -> Entry<'_> {
        Entry { ino: Ino(9), kind: FileKind::Directory, name, next: 2, attr: None, validity: Duration::ZERO }
    }

    #[test]
    fn an_entry_of_a_listing_ends_at_a_multiple_of_eight_bytes() {
        let mut out = Out::new(4096);
        assert!(put_listed(&mut out, 4096, false, &dot(b"..")));
        let expected = [
            &9u64.to_ne_bytes()[..],
            &2u64.to_ne_bytes(),
            &2u32.to_ne_bytes(),
            &u32::from(libc::DT_DIR).to_ne_bytes(),
            b"..\0\0\0\0\0\0",
        ];
        assert_eq!(out.written(), expected.concat());
        assert!(put_listed(&mut out, 4096, false, &dot(b"12345678")));
        assert_eq!(out.len(), 2 * (DIRENT_BYTES + 8), "nothing is added to a name of eight bytes");
        out.clear();
        assert!(put_listed(&mut out, 4096, true, &dot(b"..")));
        assert_eq!(out.len(), DIRENT_PLUS_BYTES + 8);
        assert_eq!(out.written()[DIRENT_PLUS_BYTES - DIRENT_BYTES..], expected.concat());
    }

    #[test]
    fn an_entry_that_does_not_fit_is_left_out_as_a_whole() {
        let mut out = Out::new(4096);
        assert!(!put_listed(&mut out, DIRENT_BYTES + 7, false, &dot(b"..")));
        assert!(put_listed(&mut out, DIRENT_BYTES + 8, false, &dot(b"..")), "it fits exactly");
        assert!(!put_listed(&mut out, 2 * DIRENT_BYTES + 15, false, &dot(b"..")), "those before it count");
        assert_eq!(out.len(), DIRENT_BYTES + 8);
        out.clear();
        assert!(!put_listed(&mut out, DIRENT_PLUS_BYTES + 7, true, &dot(b"..")));
        assert!(put_listed(&mut out, DIRENT_PLUS_BYTES + 8, true, &dot(b"..")));
    }
}
