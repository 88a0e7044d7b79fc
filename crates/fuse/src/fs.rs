//! The requests of the kernel, one method each: what it says is turned into one call of [`Door`], and
//! the outcome into a reply.

use crate::door::{Door, ino, new_file};
use crate::stream::Stream;
use crate::translate;
use crate::{REQUEST_BYTES, VALIDITY};
use aze_client::{Aged, NewFile};
use aze_proto::attr::{Change, FileKind};
use aze_proto::ids::Ino;
use aze_proto::limits::NAME_BYTES_MAX;
use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Requests that the kernel may have under way without anybody waiting for them: read-ahead and
/// direct I/O. Enough to keep every server of a large volume busy with one stream.
const BACKGROUND_MAX: u16 = 64;

/// Bytes of one block in statfs(2).
const STATFS_BLOCK_BYTES: u64 = 4096;

/// An inode number is never issued twice, so the kernel need not tell two files of one number apart.
const ONE_GENERATION: Generation = Generation(0);

thread_local! {
    /// Where this thread's reads land; grown once to the largest request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Filesystem for Door {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_ASYNC_DIO
            // Set-id bits go at the servers, with the write, truncation or change of owner that takes
            // them. The kernel would ask for the new mode on behalf of a writer who may not set it.
            | InitFlags::FUSE_HANDLE_KILLPRIV
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            // A symlink's target never changes and an inode number is never used again.
            | InitFlags::FUSE_CACHE_SYMLINKS
            // Appends are direct I/O; such a file may still be mapped into memory.
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        for flag in wanted.iter() {
            // An older kernel does without.
            let _ = config.add_capabilities(flag);
        }
        // The nearest possible value is as good as it gets on this kernel.
        let _ = config.set_max_write(REQUEST_BYTES);
        if let Err(nearest) = config.set_max_readahead(4 * REQUEST_BYTES) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(reply, self.lookup_attr(request, parent, name));
    }

    fn getattr(&self, request: &Request, target: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(reply, self.attr(request, target));
    }

    fn setattr(
        &self,
        request: &Request,
        target: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            atime: atime.map(translate::set_time),
            mtime: mtime.map(translate::set_time),
        };
        answer_attr(reply, self.change(request, target, size, handle, &change));
    }

    fn readlink(&self, request: &Request, target: INodeNo, reply: ReplyData) {
        let who = self.callers.who(request);
        match self.serve("readlink of", target, self.client.readlink(&who, ino(target))) {
            Ok(text) => reply.data(&text),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = match FileKind::from_mode(mode) {
            Some(kind) if kind != FileKind::Directory && kind != FileKind::Symlink => {
                self.make(request, parent, name, &NewFile { rdev, ..new_file(kind, mode) })
            }
            _ => Err(Errno::EINVAL),
        };
        answer_entry(reply, made);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        answer_entry(reply, self.make(request, parent, name, &new_file(FileKind::Directory, mode)));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let who = self.callers.who(request);
        answer(
            reply,
            self.serve("unlink in", parent, async {
                self.client.unlink(&who, ino(parent), &translate::name(name)?).await
            }),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let who = self.callers.who(request);
        answer(
            reply,
            self.serve("rmdir in", parent, async {
                self.client.rmdir(&who, ino(parent), &translate::name(name)?).await
            }),
        );
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes().to_vec();
        answer_entry(
            reply,
            self.make(request, parent, name, &NewFile { target, ..new_file(FileKind::Symlink, 0o777) }),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
            return reply.error(Errno::EINVAL);
        }
        let who = self.callers.who(request);
        answer(
            reply,
            self.serve("rename in", parent, async {
                let (name, to_name) = (translate::name(name)?, translate::name(to_name)?);
                self.client.rename(&who, ino(parent), &name, ino(to_parent), &to_name, !flags.is_empty()).await
            }),
        );
    }

    fn link(&self, request: &Request, target: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let who = self.callers.who(request);
        let linked = self.serve("link to", target, async {
            self.client.link(&who, ino(target), ino(parent), &translate::name(name)?).await
        });
        answer_entry(reply, linked);
    }

    fn open(&self, request: &Request, target: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(request, target, flags) {
            Ok(handle) => reply.opened(FileHandle(handle), open_flags(flags)),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let flags = OpenFlags(flags);
        match self.create_file(request, parent, name, mode, flags) {
            Ok((attr, handle)) => {
                reply.created(
                    &VALIDITY,
                    &translate::attr(&attr),
                    ONE_GENERATION,
                    FileHandle(handle),
                    open_flags(flags),
                );
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _request: &Request,
        target: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = match self.file(handle) {
            Ok(file) => file,
            Err(errno) => return reply.error(errno),
        };
        READ_BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(buffer.len().max(size as usize), 0);
            match self.serve("read of", target, file.read_into(offset, &mut buffer[..size as usize])) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        target: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.file(handle).and_then(|file| match flags.0 & libc::O_APPEND {
            0 => self.serve("write to", target, file.write(offset, data)),
            _ => self.append_file(request, target, &file, data),
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _request: &Request, target: INodeNo, handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        let flushed = self.file(handle).and_then(|file| self.serve("flush of", target, file.flush()));
        answer(reply, flushed);
    }

    fn release(
        &self,
        _request: &Request,
        target: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let closed = match self.files.remove(handle.0) {
            Some(file) => self.serve("close of", target, file.close()),
            None => Err(Errno::EBADF),
        };
        answer(reply, closed);
    }

    /// What was written is with its server already, and a volume in memory has no device to wait for.
    fn fsync(&self, _request: &Request, target: INodeNo, handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        let flushed = self.file(handle).and_then(|file| self.serve("fsync of", target, file.flush()));
        answer(reply, flushed);
    }

    fn opendir(&self, _request: &Request, target: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.streams.insert(Arc::new(Stream::new(ino(target))));
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(&self, request: &Request, _target: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let read = self.read_dir(request, handle, offset, false, |entry| {
            !reply.add(
                INodeNo(entry.ino.0),
                entry.next,
                translate::file_type(entry.kind),
                OsStr::from_bytes(entry.name),
            )
        });
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        _target: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let read = self.read_dir(request, handle, offset, true, |entry| {
            let attr = entry.attr.map_or_else(|| dots_attr(entry.ino), translate::attr);
            !reply.add(attr.ino, entry.next, OsStr::from_bytes(entry.name), &entry.validity, &attr, ONE_GENERATION)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _target: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.streams.remove(handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, target: INodeNo, reply: ReplyStatfs) {
        match self.serve("statfs at", target, self.client.statfs()) {
            Ok(space) => {
                let blocks = space.capacity_bytes / STATFS_BLOCK_BYTES;
                let free = space.capacity_bytes.saturating_sub(space.used_bytes) / STATFS_BLOCK_BYTES;
                // Inodes share the memory with data; at least a block's worth is counted for each.
                let files = space.inodes + free;
                reply.statfs(
                    blocks,
                    free,
                    free,
                    files,
                    free,
                    STATFS_BLOCK_BYTES as u32,
                    NAME_BYTES_MAX as u32,
                    STATFS_BLOCK_BYTES as u32,
                );
            }
            Err(errno) => reply.error(errno),
        }
    }
}

/// Appends go around the page cache, which would keep them where this kernel thinks the file ends.
fn open_flags(flags: OpenFlags) -> FopenFlags {
    if flags.0 & libc::O_APPEND != 0 { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() }
}

/// `.` and `..` in a listing with attributes: the kernel uses number and kind only.
fn dots_attr(dir: Ino) -> fuser::FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    fuser::FileAttr {
        ino: INodeNo(dir.0),
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: fuser::FileType::Directory,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn answer_attr(reply: ReplyAttr, result: Result<impl Into<Aged>, Errno>) {
    match result.map(Into::into) {
        Ok(Aged { attr, age }) => reply.attr(&VALIDITY.saturating_sub(age), &translate::attr(&attr)),
        Err(errno) => reply.error(errno),
    }
}

fn answer_entry(reply: ReplyEntry, result: Result<impl Into<Aged>, Errno>) {
    match result.map(Into::into) {
        Ok(Aged { attr, age }) => {
            reply.entry(&VALIDITY.saturating_sub(age), &translate::attr(&attr), ONE_GENERATION);
        }
        Err(errno) => reply.error(errno),
    }
}
