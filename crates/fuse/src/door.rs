//! The parts that requests share: the client, the callers' identities, the tables of open files and directories.
//!
//! Everything here runs on the thread that read the request: waking another one would cost more
//! than most requests take.

use crate::abi::{Header, fopen};
use crate::device::Device;
use crate::handles::Handles;
use crate::identity::{self, Callers};
use crate::journal::Journal;
use crate::kernel_cache::{First, KernelCache, Means, Showing};
use crate::locks::Locks;
use crate::pages::Pages;
use crate::pick_ups::PickUps;
use crate::recalls::{PICK_UP_TIME, Recalls};
use crate::removed::Removed;
use crate::reply::Errno;
use crate::stream::Stream;
use crate::trace::Trace;
use crate::translate;
use crate::unnamed::{Found, Unnamed, Want};
use crate::worker_pool::{PATIENCE, waits_long};
use crate::writers::Writers;
use aze_client::{Access, Aged, CONTENTS_TIME, Client, File, Lease, NewFile, mode_under};
use aze_io::Io;
use aze_io::real::Runtime;
use aze_proto::attr::{Attr, Change, FileKind};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::{Ino, Time};
use futures_util::future::select;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Among the flags of an open: the kernel is to run the file (`__FMODE_EXEC` in its `fs.h`).
const FMODE_EXEC: i32 = 0x20;

/// How often a file's attributes are asked for while other clients change it.
const LENGTHENED_TRIES_MAX: usize = 100;

/// How long a thread may take to look a path up again and to come with its request; the mount keeps the file that it
/// finds open so long. It comes at once, unless it has ended or wanted nothing more.
const LOOKING_TIME: Duration = Duration::from_secs(1);

/// What the kernel is given where nothing may be kept.
const NOTHING: Duration = Duration::ZERO;

/// The door of one mount.
pub struct Door {
    /// What knows how to ask the servers.
    pub client: Arc<Client>,
    /// The longest time for which the kernel may use an answer.
    pub cache_time: Duration,
    /// The kernel keeps no pages of files.
    pub direct_io: bool,
    /// Who asks.
    pub callers: Callers,
    /// Open files.
    pub files: Handles<File>,
    /// Those of them that are open for writing.
    pub writers: Writers,
    /// Open directories.
    pub streams: Handles<Stream>,
    /// What the kernel was told of files.
    pub kernel_cache: Arc<KernelCache>,
    /// Drops the kernel's pages.
    pub pages: Arc<Pages>,
    /// Threads that were answered first.
    pick_ups: Arc<PickUps>,
    /// What the kernel has to forget.
    pub recalls: Arc<Recalls>,
    /// Locks that programs hold or wait for.
    pub locks: Locks,
    /// Threads that come to files which have lost a name.
    unnamed: Arc<Unnamed>,
    /// Directories that are no more.
    pub removed: Removed,
    /// The mount's device.
    pub device: Arc<Device>,
    runtime: Arc<Runtime>,
    /// Clock and tasks.
    pub io: Io,
    /// Where failures are told.
    pub journal: Journal,
    /// The trace of requests, while a reader is attached.
    pub trace: Trace,
}

impl Door {
    /// A door to the client's volume; `device` belongs to the mount, whose kernel may answer from what
    /// it was told for `cache_time`, and keeps pages of files unless `direct_io` is set.
    pub fn new(
        client: Arc<Client>,
        runtime: Arc<Runtime>,
        device: Arc<Device>,
        cache_time: Duration,
        direct_io: bool,
        writers: Writers,
    ) -> std::io::Result<Door> {
        let io = runtime.io();
        let kernel_cache = Arc::new(KernelCache::default());
        let pages = Arc::new(Pages::new(io.clone(), device.clone())?);
        Ok(Door {
            cache_time,
            direct_io,
            callers: Callers::new(io.clone(), identity::own()),
            journal: Journal::new(io.clone()),
            trace: Trace::new(io.clone()),
            files: Handles::default(),
            writers,
            streams: Handles::default(),
            recalls: Arc::new(Recalls::new(
                io.clone(),
                device.clone(),
                kernel_cache.clone(),
                pages.clone(),
                cache_time,
            )),
            kernel_cache,
            pages,
            pick_ups: Arc::default(),
            locks: Locks::default(),
            unnamed: Arc::default(),
            removed: Removed::default(),
            device,
            client,
            runtime,
            io,
        })
    }

    /// Blocks until the client has an answer; when that takes long another worker reads requests. Logs failures that no
    /// program has caused.
    pub fn serve<T>(
        &self,
        operation: &str,
        ino: u64,
        answer: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Errno> {
        let answer = self.runtime.block_on_patiently(answer, PATIENCE, waits_long);
        answer.map_err(|failure| self.noted(operation, ino, &failure))
    }

    /// The error number of a failure, which is logged.
    pub fn noted(&self, operation: &str, ino: u64, failure: &Failure) -> Errno {
        self.journal.note(format_args!("{operation} {ino}"), failure);
        translate::errno(failure)
    }

    /// Has the client believe what servers say for as long as they tell it of changes.
    pub fn listen(&self) {
        if self.cache_time.is_zero() {
            return;
        }
        let recalls = Arc::downgrade(&self.recalls);
        self.client.listen(Box::new(move |kernel_cache| {
            let recalls = recalls.upgrade();
            Box::pin(async move {
                if let Some(recalls) = recalls {
                    recalls.let_go(kernel_cache).await;
                }
            })
        }));
    }

    /// For how long the kernel may use these attributes, and the name that led to them. Blocks until the kernel has
    /// dropped pages that are older than another client's change.
    pub fn validity(&self, request: &Header, aged: &Aged) -> Duration {
        self.validity_if(request, aged, false)
    }

    /// As [`Self::validity`]; `is_lengthened` says that the kernel has been given the file's last byte.
    pub fn validity_if(&self, request: &Header, aged: &Aged, is_lengthened: bool) -> Duration {
        let Aged { attr, lease, .. } = aged;
        if attr.kind == FileKind::File {
            let means = Means {
                is_lengthened,
                is_leased: &|lease| self.is_leased(lease, attr.ino),
                // Another worker must read requests meanwhile: it answers those that this one waits for.
                waits: &waits_long,
                are_clean: &|| self.pages.are_none(attr.ino.0),
                drop_pages: &|| self.pages.drop_pages_now(attr.ino.0),
            };
            if let Showing::First(first) = self.kernel_cache.show(attr, *lease, request.pid, &means) {
                self.drop_pages_after(request.pid, attr.ino, first);
                return NOTHING;
            }
        }
        self.validity_of_shown(aged)
    }

    /// Lets the kernel know the length of a file which another client may have made longer, for a program that is about to
    /// read it or to ask where it ends. `aged` are its attributes, or become newer ones. Gives whether the kernel has been
    /// given the last byte.
    pub fn lengthen(&self, request: &Header, file: &File, aged: &mut Aged) -> Result<bool, Errno> {
        for _ in 0..LENGTHENED_TRIES_MAX {
            let ino = aged.attr.ino;
            if !self.kernel_cache.is_too_short(&aged.attr, |lease| self.is_leased(lease, ino)) {
                return Ok(false);
            }
            // In this order: a change of another client from now on drops pages.
            self.kernel_cache.has_pages(ino);
            let drops = self.pages.drops(ino.0);
            let offset = aged.attr.size - 1;
            // The file may have become shorter.
            if let Some(byte) = self.serve("read of", ino.0, file.byte_at(offset))? {
                waits_long();
                if self.pages.lengthen_now(ino.0, offset, byte, drops) {
                    self.kernel_cache.has_length(ino, aged.attr.size);
                    return Ok(true);
                }
            }
            *aged = self.attr(request, request.node)?;
        }
        Ok(false)
    }

    /// Drops pages when the kernel call of a thread that was answered first has done so, or should have.
    fn drop_pages_after(&self, thread: u32, ino: Ino, first: First) {
        let picked_up = self.pick_ups.give(thread, ino.0);
        let (io, kernel_cache, pages) = (self.io.clone(), self.kernel_cache.clone(), self.pages.clone());
        let pick_ups = self.pick_ups.clone();
        self.io.spawn(async move {
            let late = io.sleep(PICK_UP_TIME);
            match picked_up {
                Some(picked_up) => drop(select(picked_up, Box::pin(late)).await),
                None => late.await,
            }
            pick_ups.is_over(thread);
            if kernel_cache.first_is_done(ino, first) {
                pages.drop_pages(ino.0, Box::new(move || kernel_cache.first_has_ended(ino, first)));
            }
        });
    }

    /// As [`Self::validity`], for attributes that come with a listing; `None` if they would have to wait.
    fn validity_by_the_way(&self, aged: &Aged) -> Option<Duration> {
        let may = aged.attr.kind != FileKind::File || self.kernel_cache.is_shown(&aged.attr);
        may.then(|| self.validity_of_shown(aged))
    }

    fn is_leased(&self, lease: Lease, ino: Ino) -> bool {
        !self.client.lease_left(Some(lease), ino).is_zero()
    }

    fn validity_of_shown(&self, aged: &Aged) -> Duration {
        let Aged { attr, age, lease } = aged;
        if attr.kind == FileKind::Directory {
            return self.cache_time.saturating_sub(*age);
        }
        // An open that has lost its locks must not read the kernel's pages any more.
        if attr.kind == FileKind::File && self.client.may_have_lost_locks(attr.ino) {
            return NOTHING;
        }
        // In this order: a recall that comes from now on waits until the kernel has processed this answer.
        self.recalls.tell(attr.ino);
        let left = self.client.lease_left(*lease, attr.ino).min(self.cache_time);
        if left.is_zero() || self.recalls.has_moved(attr.ino) { NOTHING } else { left }
    }

    /// Whether a thread that has come to an inode is sent to look again: it may have come by a name that
    /// leads there no longer.
    fn is_sent_back(&self, request: &Header, attr: &Attr, want: Want) -> bool {
        // Pipes, sockets and devices are opened by the kernel alone: who asks for their attributes may have them open.
        is_sent_back_to(attr)
            && (attr.links == 0 || self.recalls.has_moved(attr.ino))
            && self.unnamed.refuses(request.pid, attr.ino, want)
    }

    /// A program has written a file up to `end`.
    pub fn has_written(&self, ino: Ino, end: u64) {
        self.kernel_cache.written(ino, end, |lease| self.is_leased(lease, ino));
    }

    /// A request begins.
    pub fn begins(&self, request: &Header) {
        self.unnamed.begins(request.pid, request.opcode);
        self.pick_ups.asks(request.pid, request.opcode, request.node);
    }

    /// A request ends, with any other answer than `ESTALE`.
    pub fn ends(&self, request: &Header) {
        self.unnamed.ends(request.pid, request.opcode);
    }

    /// A request is answered with `ESTALE`: the kernel looks the path up again, once.
    pub fn was_sent_back(&self, request: &Header) {
        let thread = request.pid;
        let Some(number) = self.unnamed.refused(thread, request.opcode) else { return };
        let (io, unnamed) = (self.io.clone(), self.unnamed.clone());
        self.io.spawn(async move {
            io.sleep(LOOKING_TIME).await;
            unnamed.is_over(thread, number);
        });
    }

    /// Whether the kernel looks a path up again for this thread. It is given nothing to keep then, so that it asks for attributes once more.
    pub fn looks_again(&self, request: &Header) -> bool {
        self.unnamed.looks_again(request.pid)
    }

    /// Before a change of an inode that the program does not have open: a program that may have come by a name which
    /// the inode has lost gets `ESTALE` and looks the name up again.
    pub fn came_by_name(&self, request: &Header, target: u64) -> Result<(), Errno> {
        let ino = ino(target);
        let is_elsewhere = self.recalls.has_moved(ino) && !self.is_open(ino);
        if is_elsewhere && self.unnamed.refuses(request.pid, ino, Want::Else) {
            return Err(Errno(libc::ESTALE));
        }
        Ok(())
    }

    /// Whether a program has the file open. A file that is held for a thread which looks again is not open for that.
    fn is_open(&self, ino: Ino) -> bool {
        self.client.is_open(ino) && (!self.unnamed.is_held(ino) || self.files.any(|file| file.ino() == ino))
    }

    /// An open file.
    pub fn file(&self, handle: u64) -> Result<Arc<File>, Errno> {
        self.files.get(handle).ok_or(Errno(libc::EBADF))
    }

    fn stream(&self, handle: u64) -> Result<Arc<Stream>, Errno> {
        self.streams.get(handle).ok_or(Errno(libc::EBADF))
    }

    /// What a name means.
    pub fn lookup_attr(&self, request: &Header, parent: u64, name: &[u8]) -> Result<Aged, Errno> {
        let who = self.callers.who(request);
        let found = self.serve("lookup in", parent, async {
            let name = translate::name(name)?;
            if !self.looks_again(request) {
                // A directory's counts and times are gathered only when they are asked for.
                return self.client.lookup_within(&who, ino(parent), &name, self.cache_time).await;
            }
            let (aged, file) = self.client.lookup_and_hold(&who, ino(parent), &name, self.cache_time).await?;
            if let Some(file) = file {
                self.unnamed.hold(request.pid, aged.attr.ino, file);
            }
            Ok(aged)
        });
        let led = match found.as_ref().map(|aged| &aged.attr) {
            Ok(attr) if is_sent_back_to(attr) => {
                Found::File { ino: attr.ino, has_moved: self.recalls.has_moved(attr.ino) }
            }
            Ok(_) => Found::Directory,
            Err(_) => Found::Nothing,
        };
        self.unnamed.looked_up(request.pid, led);
        found.inspect(|aged| self.removed.tell(&aged.attr))
    }

    /// The attributes of an inode. The kernel asks for a directory's attributes before every change in it; for that an
    /// answer is good enough which is as old as the kernel itself may keep one.
    pub fn attr(&self, request: &Header, target: u64) -> Result<Aged, Errno> {
        let who = self.callers.who(request);
        let aged = self.serve("getattr of", target, async {
            match self.client.getattr_within(&who, ino(target), self.cache_time).await {
                // The kernel asks because a program is still there.
                Err(gone) if gone.code == Code::Stale => self.removed.attr(ino(target)).map(Aged::from).ok_or(gone),
                answer => answer,
            }
        })?;
        self.removed.tell(&aged.attr);
        // A program that has the file open may have come by its descriptor, and would not look the name up again.
        if !self.is_open(aged.attr.ino) && self.is_sent_back(request, &aged.attr, Want::Attributes) {
            return Err(Errno(libc::ESTALE));
        }
        Ok(aged)
    }

    /// Makes a file of any kind.
    pub fn make(&self, request: &Header, parent: u64, name: &[u8], new: &NewFile) -> Result<Aged, Errno> {
        let who = self.callers.who(request);
        let made = self.serve("create in", parent, async {
            self.client.create(&who, ino(parent), &translate::name(name)?, new).await
        })?;
        self.removed.tell(&made.attr);
        Ok(Aged { attr: made.attr, age: NOTHING, lease: made.lease })
    }

    /// Sets length and attributes.
    pub fn change(
        &self,
        request: &Header,
        target: u64,
        size: Option<u64>,
        handle: Option<u64>,
        change: &Change,
    ) -> Result<Attr, Errno> {
        let who = self.callers.who(request);
        let file = handle.and_then(|handle| self.files.get(handle));
        let changed = self.serve("setattr of", target, async {
            let mut attr = None;
            if let Some(size) = size {
                attr = Some(self.client.truncate(&who, ino(target), size, file.as_deref()).await?);
            }
            let changed = match attr {
                _ if *change != Change::default() => self.client.setattr(&who, ino(target), change).await,
                Some(attr) => Ok(attr),
                None => self.client.getattr(&who, ino(target)).await,
            };
            match changed {
                Err(gone) if gone.code == Code::Stale => {
                    self.removed.change(ino(target), change, Time(self.io.wall_ns())).ok_or(gone)
                }
                changed => changed,
            }
        });
        changed.inspect(|attr| {
            self.removed.tell(attr);
            if attr.kind == FileKind::File {
                self.kernel_cache.changed(attr, |lease| self.is_leased(lease, attr.ino));
            }
        })
    }

    /// Gives an open file its handle, and the kernel's way to treat it.
    fn enter(&self, file: Arc<File>, flags: i32) -> (u64, u32) {
        let is_one_of_several = self.writers.opened(file.ino(), file.access());
        let pages = pages_of(flags, self.direct_io || is_one_of_several);
        (self.files.insert(file), pages)
    }

    /// Takes an open file out of the table.
    pub fn leave(&self, handle: u64) -> Option<Arc<File>> {
        self.files.remove(handle).inspect(|file| self.writers.closed(file.ino(), file.access()))
    }

    /// Opens a file; gives its handle, and how the kernel is to treat it.
    pub fn open_file(&self, request: &Header, target: u64, flags: i32) -> Result<(u64, u32), Errno> {
        let who = self.callers.who(request);
        let file = self.serve("open of", target, async {
            // What direct I/O reads is asked of the servers at that moment. Contents that come along are
            // shown for longer than a mount may want to keep anything.
            let file = match flags & (libc::O_TRUNC | libc::O_DIRECT) {
                _ if flags & FMODE_EXEC != 0 => self.client.open_to_run(&who, ino(target)).await?,
                0 if self.cache_time >= CONTENTS_TIME => {
                    self.client.open_with_contents(&who, ino(target), access(flags)).await?
                }
                _ => self.client.open(&who, ino(target), access(flags)).await?,
            };
            if self.is_sent_back(request, &file.attr(), Want::Open) {
                return Err(Failure::new(Code::Stale, "it has lost a name"));
            }
            if flags & libc::O_TRUNC != 0 {
                self.client.truncate(&who, ino(target), 0, Some(&file)).await?;
            }
            Ok(file)
        })?;
        if flags & libc::O_TRUNC != 0 {
            self.kernel_cache.cut(ino(target), |lease| self.is_leased(lease, ino(target)));
        }
        let at_open = self.kernel_cache.open(&file.attr());
        if at_open.forget_attrs {
            // Before the answer, so that every open of the file sees its size. Its program waits
            // for that answer and keeps the inode, so this does not wait.
            self.device.forget_attrs(target);
        }
        let kept = if at_open.keep_pages { fopen::KEEP_CACHE } else { 0 };
        let (handle, pages) = self.enter(file, flags);
        Ok((handle, pages | kept))
    }

    /// Makes and opens a file; gives its handle, and how the kernel is to treat it.
    pub fn create_file(
        &self,
        request: &Header,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Aged, (u64, u32)), Errno> {
        let who = self.callers.who(request);
        let new = NewFile {
            exclusive: flags & libc::O_EXCL != 0,
            open: Some(access(flags)),
            mode,
            ..new_file(FileKind::File, 0, 0)
        };
        let (aged, file) = self.serve("create in", parent, async {
            let made = self.client.create(&who, ino(parent), &translate::name(name)?, &new).await?;
            // The name has come to be since the kernel looked, and it is no file: ESTALE makes it look again.
            let Some(file) = made.file else { return Err(Code::Stale.into()) };
            if !made.created && flags & libc::O_TRUNC != 0 {
                return Ok((self.client.truncate(&who, made.attr.ino, 0, Some(&file)).await?.into(), file));
            }
            Ok((Aged { attr: made.attr, age: NOTHING, lease: made.lease }, file))
        })?;
        Ok((aged, self.enter(file, flags)))
    }

    /// The same for a file without a name.
    pub fn create_unnamed(
        &self,
        request: &Header,
        parent: u64,
        mode: u32,
        flags: i32,
    ) -> Result<(Attr, (u64, u32)), Errno> {
        let who = self.callers.who(request);
        let making = self.client.create_unnamed(&who, ino(parent), mode, access(flags));
        let (attr, file) = self.serve("create in", parent, making)?;
        Ok((attr, self.enter(file, flags)))
    }

    /// An append goes to where the file ends now, not to where this kernel last saw its end: another
    /// node may have written since.
    pub fn append_file(&self, target: u64, file: &File, data: &[u8]) -> Result<(), Errno> {
        self.serve("append to", target, file.append(data)).map(drop)
    }

    /// Gives entries from `offset` on to `give`, which says whether it had room for one.
    pub fn read_dir(
        &self,
        request: &Header,
        handle: u64,
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
        let answer = self.serve("readdir of", stream.dir.0, async {
            loop {
                let (entry, next) = match place.peek(&self.client, &who, stream.dir, attrs).await {
                    Ok(Some(found)) => found,
                    // A removed directory is empty.
                    Err(gone) if gone.code == Code::Stale => return Ok(()),
                    end => return end.map(drop),
                };
                let (entry, page) = (entry.clone(), place.lease);
                // Attributes kept elsewhere come on request; an entry that is gone by now is left out.
                let fetched = if attrs && entry.attr.is_none() {
                    self.client.getattr_within(&who, entry.ino, NOTHING).await.map(Some)
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
                let aged = match (entry.attr.clone(), fetched) {
                    (Some(attr), _) => Some(Aged { attr, age: NOTHING, lease: page }),
                    (None, fetched) => fetched.map(|aged| Aged { lease: Lease::both(page, aged.lease), ..aged }),
                };
                // Of a directory the listing knows its home's part of the counts only.
                let validity = match &aged {
                    Some(aged) if entry.kind != FileKind::Directory => self.validity_by_the_way(aged),
                    _ => Some(NOTHING),
                };
                let attr = aged.as_ref().filter(|_| validity.is_some()).map(|aged| &aged.attr);
                let validity = validity.unwrap_or(NOTHING);
                if !give(Entry { ino: entry.ino, kind: entry.kind, name: entry.name.as_bytes(), next, attr, validity })
                {
                    return Ok(());
                }
                place.take();
                given = true;
            }
        });
        // Entries that were given come first; the kernel asks again, and gets the error then.
        if given { Ok(()) } else { answer }
    }
}

/// One directory entry on its way to the kernel.
pub struct Entry<'a> {
    /// The inode that it names.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a [u8],
    /// Offset from which the kernel goes on after it.
    pub next: u64,
    /// Present if the kernel asked for them; absent for `.` and `..`, and for files that may have older pages.
    pub attr: Option<&'a Attr>,
    /// How long the kernel may answer from it.
    pub validity: Duration,
}

impl<'a> Entry<'a> {
    /// No program resolves `..` by the number in a listing, so the directory's own number serves for both.
    fn dots(dir: Ino, next: u64, name: &'a str) -> Entry<'a> {
        Entry { ino: dir, kind: FileKind::Directory, name: name.as_bytes(), next, attr: None, validity: NOTHING }
    }
}

/// The inode of the kernel's number.
pub fn ino(number: u64) -> Ino {
    Ino(number)
}

/// Whether who comes to it by a name that it has lost is sent to look again.
fn is_sent_back_to(attr: &Attr) -> bool {
    matches!(attr.kind, FileKind::File | FileKind::Symlink)
}

/// What an open is for.
fn access(flags: i32) -> Access {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access { read: true, write: false },
        libc::O_WRONLY => Access { read: false, write: true },
        _ => Access { read: true, write: true },
    }
}

/// How the kernel is to treat the pages of an open with these flags. Appends go past the page cache, which would keep
/// them where this kernel thinks the file ends.
fn pages_of(flags: i32, goes_past_cache: bool) -> u32 {
    match flags & libc::O_APPEND {
        0 if goes_past_cache => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
        0 => 0,
        _ => fopen::DIRECT_IO,
    }
}

/// A file to be made by a program with this umask.
pub fn new_file(kind: FileKind, mode: u32, umask: u32) -> NewFile {
    NewFile {
        kind,
        mode: mode_under(mode, umask),
        rdev: 0,
        target: Vec::new(),
        exclusive: true,
        open: None,
        chunk_bits: 0,
        private: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_is_for_what_its_flags_say() {
        let opens = [
            (libc::O_RDONLY, true, false),
            (libc::O_WRONLY | libc::O_TRUNC, false, true),
            (libc::O_RDWR | libc::O_APPEND | libc::O_CREAT, true, true),
            // Linux wants both rights for it (open(2)).
            (libc::O_ACCMODE, true, true),
        ];
        for (flags, read, write) in opens {
            assert_eq!(access(flags), Access { read, write }, "flags {flags:#o}");
        }
    }

    #[test]
    fn appends_go_past_the_page_cache_one_at_a_time() {
        assert_eq!(pages_of(libc::O_RDWR, false), 0);
        assert_eq!(pages_of(libc::O_RDWR, true), fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES);
        for goes_past_cache in [false, true] {
            assert_eq!(pages_of(libc::O_WRONLY | libc::O_APPEND, goes_past_cache), fopen::DIRECT_IO);
        }
    }
}
