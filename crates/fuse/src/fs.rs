//! The requests of the kernel, one method each.
//!
//! `Door` answers them on the thread that read them: waking another one would cost more than most
//! requests take.

use crate::handles::Handles;
use crate::identity::{self, Callers};
use crate::journal::Journal;
use crate::stream::Stream;
use crate::translate;
use crate::{REQUEST_BYTES, VALIDITY};
use aze_client::{Access, Client, File, NewFile};
use aze_io::Io;
use aze_io::real::Runtime;
use aze_proto::attr::{Attr, Change, FileKind};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Ino;
use aze_proto::limits::NAME_BYTES_MAX;
use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Requests that the kernel may have under way without anybody waiting for them: read-ahead and
/// direct I/O. Enough to keep every server of a large volume busy with one stream.
const BACKGROUND_MAX: u16 = 64;

/// Bytes of one block in statfs(2).
const STATFS_BLOCK_BYTES: u64 = 4096;

/// An inode number is never issued twice, so the kernel need not tell two files of one number apart.
const ONE_GENERATION: Generation = Generation(0);

/// What the kernel is given where nothing may be kept.
const NOTHING: Duration = Duration::ZERO;

thread_local! {
    /// Where this thread's reads land; grown once to the largest request.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The door of one mount.
pub struct Door {
    client: Arc<Client>,
    runtime: Arc<Runtime>,
    io: Io,
    callers: Callers,
    journal: Journal,
    files: Handles<File>,
    streams: Handles<Stream>,
}

impl Door {
    /// A door to the client's volume.
    pub fn new(client: Arc<Client>, runtime: Arc<Runtime>) -> Door {
        let io = runtime.io();
        Door {
            callers: Callers::new(io.clone(), identity::own()),
            journal: Journal::new(io.clone()),
            files: Handles::default(),
            streams: Handles::default(),
            client,
            runtime,
            io,
        }
    }

    /// Blocks until the client has an answer; tells the log of failures that are nobody's fault here.
    fn serve<T>(
        &self,
        operation: &str,
        ino: INodeNo,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Errno> {
        self.runtime.block_on(answer).map_err(|failure| {
            self.journal.note(format_args!("{operation} {}", ino.0), &failure);
            translate::errno(&failure)
        })
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>, Errno> {
        self.files.get(handle.0).ok_or(Errno::EBADF)
    }

    fn stream(&self, handle: FileHandle) -> Result<Arc<Stream>, Errno> {
        self.streams.get(handle.0).ok_or(Errno::EBADF)
    }

    fn lookup_attr(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Result<Attr, Errno> {
        let who = self.callers.who(request);
        self.serve("lookup in", parent, async {
            let attr = self.client.lookup(&who, ino(parent), &translate::name(name)?).await?;
            // A directory's counts and times are gathered only when they are asked for.
            if attr.kind == FileKind::Directory { self.client.getattr(&who, attr.ino).await } else { Ok(attr) }
        })
    }

    fn make(&self, request: &Request, parent: INodeNo, name: &OsStr, new: &NewFile) -> Result<Attr, Errno> {
        let who = self.callers.who(request);
        let made = self.serve("create in", parent, async {
            self.client.create(&who, ino(parent), &translate::name(name)?, new).await
        })?;
        Ok(made.attr)
    }

    fn change(
        &self,
        request: &Request,
        target: INodeNo,
        size: Option<u64>,
        handle: Option<FileHandle>,
        change: &Change,
    ) -> Result<Attr, Errno> {
        let who = self.callers.who(request);
        let file = handle.and_then(|handle| self.files.get(handle.0));
        self.serve("setattr of", target, async {
            let mut attr = None;
            if let Some(size) = size {
                attr = Some(self.client.truncate(&who, ino(target), size, file.as_deref()).await?);
            }
            match attr {
                _ if *change != Change::default() => self.client.setattr(&who, ino(target), change).await,
                Some(attr) => Ok(attr),
                None => self.client.getattr(&who, ino(target)).await,
            }
        })
    }

    fn open_file(&self, request: &Request, target: INodeNo, flags: OpenFlags) -> Result<u64, Errno> {
        let who = self.callers.who(request);
        let file = self.serve("open of", target, async {
            let file = self.client.open(&who, ino(target), access(flags)).await?;
            if flags.0 & libc::O_TRUNC != 0 {
                self.client.truncate(&who, ino(target), 0, Some(&file)).await?;
            }
            Ok(file)
        })?;
        Ok(self.files.insert(file))
    }

    fn create_file(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, u64), Errno> {
        let who = self.callers.who(request);
        let new = NewFile {
            exclusive: flags.0 & libc::O_EXCL != 0,
            open: Some(access(flags)),
            ..new_file(FileKind::File, mode)
        };
        let (attr, file) = self.serve("create in", parent, async {
            let made = self.client.create(&who, ino(parent), &translate::name(name)?, &new).await?;
            // The name has come to be since the kernel looked, and it is no file: ESTALE makes it look again.
            let Some(file) = made.file else { return Err(Code::Stale.into()) };
            if !made.created && flags.0 & libc::O_TRUNC != 0 {
                return Ok((self.client.truncate(&who, made.attr.ino, 0, Some(&file)).await?, file));
            }
            Ok((made.attr, file))
        })?;
        Ok((attr, self.files.insert(file)))
    }

    /// An append goes to where the file ends now, not to where this kernel last saw its end: another
    /// node may have written since. Appends of several nodes *at the same time* are not kept apart.
    fn append_file(&self, request: &Request, target: INodeNo, file: &File, data: &[u8]) -> Result<(), Errno> {
        let who = self.callers.who(request);
        self.serve("append to", target, async {
            let end = self.client.getattr(&who, file.ino()).await?.size;
            file.write(end, data).await
        })
    }

    /// Gives entries from `offset` on to `give`, which says whether it had room for one.
    fn read_dir(
        &self,
        request: &Request,
        handle: FileHandle,
        offset: u64,
        attrs: bool,
        mut give: impl FnMut(Entry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let stream = self.stream(handle)?;
        let who = self.callers.who(request);
        let mut place = stream.seek(offset);
        let mut given = false;
        for (next, name) in [(1, "."), (2, "..")] {
            if offset < next {
                if !give(Entry::dots(stream.dir, next, name)) {
                    return Ok(());
                }
                place.take_dots(next);
                given = true;
            }
        }
        let answer = self.serve("readdir of", INodeNo(stream.dir.0), async {
            loop {
                let left = place.validity_left(&self.io, VALIDITY);
                let Some((entry, next)) = place.peek(&self.client, &self.io, &who, stream.dir, attrs).await? else {
                    return Ok(());
                };
                // Attributes kept elsewhere come on request; an entry that is gone by now is left out.
                let fetched = if attrs && entry.attr.is_none() {
                    self.client.getattr(&who, entry.ino).await.map(Some)
                } else {
                    Ok(None)
                };
                let fetched = match fetched {
                    Err(failure) if matches!(failure.code, Code::NotFound | Code::Stale) => {
                        place.take();
                        continue;
                    }
                    fetched => fetched?,
                };
                let attr = entry.attr.as_ref().or(fetched.as_ref());
                // Of a directory the listing knows its home's part of the counts only.
                let validity = if entry.kind == FileKind::Directory { NOTHING } else { left };
                if !give(Entry { ino: entry.ino, kind: entry.kind, name: entry.name.as_bytes(), next, attr, validity })
                {
                    return Ok(());
                }
                place.take();
                given = true;
            }
        });
        // What was given comes first; the kernel asks again and is then told.
        if given { Ok(()) } else { answer }
    }
}

/// One directory entry on its way to the kernel.
struct Entry<'a> {
    ino: Ino,
    kind: FileKind,
    name: &'a [u8],
    /// Offset from which the kernel goes on after it.
    next: u64,
    attr: Option<&'a Attr>,
    validity: Duration,
}

impl<'a> Entry<'a> {
    /// Nobody resolves `..` by the number in a listing, so the directory's own serves for both.
    fn dots(dir: Ino, next: u64, name: &'a str) -> Entry<'a> {
        Entry { ino: dir, kind: FileKind::Directory, name: name.as_bytes(), next, attr: None, validity: NOTHING }
    }
}

impl Filesystem for Door {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_ASYNC_DIO
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
        let who = self.callers.who(request);
        answer_attr(reply, self.serve("getattr of", target, self.client.getattr(&who, ino(target))));
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

fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

fn access(flags: OpenFlags) -> Access {
    match flags.acc_mode() {
        OpenAccMode::O_RDONLY => Access { read: true, write: false },
        OpenAccMode::O_WRONLY => Access { read: false, write: true },
        OpenAccMode::O_RDWR => Access { read: true, write: true },
    }
}

/// Appends go around the page cache, which would keep them where this kernel thinks the file ends.
fn open_flags(flags: OpenFlags) -> FopenFlags {
    if flags.0 & libc::O_APPEND != 0 { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() }
}

/// The kernel has applied the caller's umask already.
fn new_file(kind: FileKind, mode: u32) -> NewFile {
    NewFile { kind, mode: mode & 0o7777, rdev: 0, target: Vec::new(), exclusive: true, open: None, chunk_bits: 0 }
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

fn answer_attr(reply: ReplyAttr, result: Result<Attr, Errno>) {
    match result {
        Ok(attr) => reply.attr(&VALIDITY, &translate::attr(&attr)),
        Err(errno) => reply.error(errno),
    }
}

fn answer_entry(reply: ReplyEntry, result: Result<Attr, Errno>) {
    match result {
        Ok(attr) => reply.entry(&VALIDITY, &translate::attr(&attr), ONE_GENERATION),
        Err(errno) => reply.error(errno),
    }
}
