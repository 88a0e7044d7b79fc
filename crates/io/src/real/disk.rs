//! Files of this machine. A directory has threads of its own, which take its operations one after
//! another; they end with the last handle on the directory or on a file of it.

mod log;
mod mapping;
mod pool;

use crate::disk::{Dir, DiskError, DiskFile, DiskResult, FixedFile};
use crate::sync::Mutex;
use crate::{Boxed, Task};
pub(super) use pool::Pool;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One that writes the journal, one that syncs it, and one for a checkpoint that is written meanwhile.
const THREADS: usize = 3;

/// For files of fixed length, so that reads wait neither for the journal nor for one slow place of a disk.
const FIXED_THREADS: usize = 4;

/// The file whose lock says that the directory is in use. It stays empty.
const LOCK_FILE: &str = "in-use";

/// How long a directory may stay in use: a server that was killed lets go of it when the system has
/// taken it apart, which takes a moment if it had much memory.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Pause between two looks: a lock cannot be waited for with a limit.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

fn failed(what: &str, path: &Path, error: &io::Error) -> DiskError {
    let text = format!("{what} {}: {error}", path.display());
    match error.kind() {
        ErrorKind::NotFound => DiskError::NotFound(text),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::Full(text),
        ErrorKind::PermissionDenied | ErrorKind::NotADirectory | ErrorKind::ReadOnlyFilesystem => {
            DiskError::Unfit(text)
        }
        _ => DiskError::Failed(text),
    }
}

/// Whether this process still opens directories. A thread that opens one holds the lock until it has made the missing
/// directories.
static OPENS: Mutex<bool> = Mutex::new(true);

/// Refuses directories from now on, and waits until one that is being made is there: a process that ends before it
/// serves can then remove the directories it has made, and none comes afterwards.
pub fn open_no_more_dirs() {
    *OPENS.lock() = false;
}

struct RealDir {
    path: PathBuf,
    pool: Arc<Pool>,
    fixed_pool: Arc<Pool>,
    /// Holds the lock.
    _lock: File,
}

/// Opens a directory, which is made if it is not there, or one within a file.
pub(super) async fn open_dir(path: &str) -> DiskResult<Arc<dyn Dir>> {
    let path = PathBuf::from(path);
    let start = |name, threads| Pool::start(name, threads).map_err(|error| failed("start a thread for", &path, &error));
    let (pool, fixed_pool) = (start("disk", THREADS)?, start("data", FIXED_THREADS)?);
    if path.metadata().is_ok_and(|about| !about.is_dir()) {
        let work = pool.clone();
        return pool.run(move || mapping::open_dir(&path, work, fixed_pool)).await;
    }
    let lock = pool
        .run({
            let path = path.clone();
            move || lock(&path)
        })
        .await?;
    Ok(Arc::new(RealDir { path, pool, fixed_pool, _lock: lock }))
}

fn lock(path: &Path) -> DiskResult<File> {
    let opens = OPENS.lock();
    if !*opens {
        return Err(DiskError::Failed(format!("open {}: this process is ending", path.display())));
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| failed("make directory", path, &error))?;
    check_own(path)?;
    let name = path.join(LOCK_FILE);
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&name)
        .map_err(|error| failed("open", &name, &error))?;
    drop(opens);
    lock_alone(&file, path)?;
    Ok(file)
}

/// Refuses a directory (or a file in place of one) that another user owns or may write to: that user could put a link
/// under the name of one of its files, and the server would write wherever the link leads.
fn check_own(path: &Path) -> DiskResult<()> {
    // SAFETY: no memory is involved.
    let own = unsafe { libc::geteuid() };
    let look = |at: &Path| fs::symlink_metadata(at).map_err(|error| failed("look at", at, &error));
    let link = look(path)?;
    if link.is_symlink() && link.uid() != own && link.uid() != 0 {
        let text = format!("it is a symbolic link of user {}: give the place to which it leads", link.uid());
        return Err(unfit(path, &text));
    }
    let about = path.metadata().map_err(|error| failed("look at", path, &error))?;
    if about.uid() != own {
        return Err(unfit(path, &format!("it belongs to user {}, and the server is user {own}", about.uid())));
    }
    if about.mode() & 0o022 != 0 {
        let text = format!("others may write to it (mode {:o}): chmod go-w {}", about.mode() & 0o7777, path.display());
        return Err(unfit(path, &text));
    }
    if !about.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(|error| failed("list", path, &error))? {
        let at = entry.map_err(|error| failed("list", path, &error))?.path();
        let about = look(&at)?;
        if !about.is_file() || about.uid() != own || about.nlink() != 1 {
            return Err(unfit(&at, "it is no file of the server's own that has this name only: remove it"));
        }
    }
    Ok(())
}

fn unfit(path: &Path, why: &str) -> DiskError {
    DiskError::Unfit(format!("{}: {why}", path.display()))
}

/// Has the lock of a file for this process, if no other keeps it.
fn lock_alone(file: &File, path: &Path) -> DiskResult<()> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        // SAFETY: flock takes a descriptor, which `file` keeps open, and no memory.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            ErrorKind::WouldBlock if Instant::now() < deadline => std::thread::sleep(LOCK_PAUSE),
            ErrorKind::WouldBlock => {
                return Err(DiskError::InUse(format!("{}: another server uses it", path.display())));
            }
            _ => return Err(failed("lock", path, &error)),
        }
    }
}

impl RealDir {
    fn file(&self, file: File, path: PathBuf) -> Arc<dyn DiskFile> {
        Arc::new(RealFile { file: Arc::new(file), path, pool: self.pool.clone() })
    }

    fn fixed(&self, file: File, path: PathBuf) -> Arc<dyn FixedFile> {
        Arc::new(RealFile { file: Arc::new(file), path, pool: self.fixed_pool.clone() })
    }
}

fn create_fixed(path: &Path, bytes: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    set_aside(&file, bytes)?;
    Ok(file)
}

/// Gives a file the room of its first `bytes` bytes. A file system that has too little is not asked for it: ext4 gives
/// all that it has before it finds that this is not enough, and meanwhile no other program could write.
fn set_aside(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let wanted = bytes.saturating_sub(file.metadata()?.blocks().saturating_mul(512));
    let space = space(file)?;
    let free = available_bytes(&space);
    // A file system without a size has said nothing about its room.
    if space.f_blocks > 0 && wanted > free {
        let text = format!("it takes {wanted} more bytes, and its file system has {free}");
        return Err(io::Error::new(ErrorKind::StorageFull, text));
    }
    // SAFETY: posix_fallocate takes a descriptor, which `file` keeps open, and no memory.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The space of the file system of a file or directory: fstatvfs(3).
fn space(file: &File) -> io::Result<libc::statvfs> {
    // SAFETY: a `statvfs` is made of integers, for which all-zero bytes are valid.
    let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: fstatvfs takes a descriptor, which `file` keeps open, and writes to `space` alone.
    match unsafe { libc::fstatvfs(file.as_raw_fd(), &mut space) } {
        0 => Ok(space),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that are left to users without privileges.
fn available_bytes(space: &libc::statvfs) -> u64 {
    space.f_bavail.saturating_mul(space.f_frsize)
}

fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut have = 0;
    while have < len {
        match file.read_at(&mut bytes[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

impl Dir for RealDir {
    fn list(&self) -> Boxed<'_, DiskResult<Vec<String>>> {
        let path = self.path.clone();
        Box::pin(self.pool.run(move || {
            let entries = fs::read_dir(&path).map_err(|error| failed("list", &path, &error))?;
            let mut names = Vec::new();
            for entry in entries {
                let entry = entry.map_err(|error| failed("list", &path, &error))?;
                names.extend(entry.file_name().into_string().ok().filter(|name| name != LOCK_FILE));
            }
            names.sort();
            Ok(names)
        }))
    }

    fn create<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        let path = self.path.join(name);
        Box::pin(async move {
            let at = path.clone();
            let open = move || {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(true).mode(0o600);
                options
                    .custom_flags(libc::O_APPEND | libc::O_NOFOLLOW)
                    .open(&at)
                    .map_err(|error| failed("create", &at, &error))
            };
            Ok(self.file(self.pool.run(open).await?, path))
        })
    }

    fn create_log<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        let path = self.path.join(name);
        Box::pin(async move {
            let at = path.clone();
            let open = move || {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(true).mode(0o600);
                options.custom_flags(libc::O_NOFOLLOW).open(&at).map_err(|error| failed("create", &at, &error))
            };
            let file: Arc<dyn DiskFile> = Arc::new(log::Log::new(self.pool.run(open).await?, path, self.pool.clone()));
            Ok(file)
        })
    }

    fn open<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        let path = self.path.join(name);
        Box::pin(async move {
            let at = path.clone();
            let open = move || {
                let mut options = OpenOptions::new();
                options.read(true).append(true).custom_flags(libc::O_NOFOLLOW);
                options.open(&at).map_err(|error| failed("open", &at, &error))
            };
            Ok(self.file(self.pool.run(open).await?, path))
        })
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> Boxed<'a, DiskResult<()>> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        Box::pin(self.pool.run(move || fs::rename(&from, &to).map_err(|error| failed("rename", &from, &error))))
    }

    fn remove<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<()>> {
        let path = self.path.join(name);
        Box::pin(self.pool.run(move || match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", &path, &error)),
            _ => Ok(()),
        }))
    }

    fn create_fixed<'a>(&'a self, name: &'a str, bytes: u64) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        let path = self.path.join(name);
        Box::pin(async move {
            let at = path.clone();
            let file = self.fixed_pool.run(move || {
                let made = create_fixed(&at, bytes).map_err(|error| failed("set room aside for", &at, &error));
                if made.is_err() {
                    // The first error is the one to tell.
                    let _ = fs::remove_file(&at);
                }
                made
            });
            Ok(self.fixed(file.await?, path))
        })
    }

    fn open_fixed<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        let path = self.path.join(name);
        Box::pin(async move {
            let at = path.clone();
            let open = move || {
                let mut options = OpenOptions::new();
                options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
                options.open(&at).map_err(|error| failed("open", &at, &error))
            };
            Ok(self.fixed(self.fixed_pool.run(open).await?, path))
        })
    }

    fn free_bytes(&self) -> Boxed<'_, DiskResult<u64>> {
        let path = self.path.clone();
        Box::pin(self.pool.run(move || {
            let space =
                File::open(&path).and_then(|dir| space(&dir)).map_err(|error| failed("look at", &path, &error))?;
            Ok(available_bytes(&space))
        }))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        let path = self.path.clone();
        Box::pin(self.pool.run(move || {
            File::open(&path).and_then(|dir| dir.sync_all()).map_err(|error| failed("sync", &path, &error))
        }))
    }

    fn spawn(&self, task: Task) {
        self.pool.spawn(task);
    }
}

/// Asks the system to drop its cached pages of a range; it keeps those that it has not written to the disk, and a read
/// finds them.
fn forget(file: &File, offset: u64, len: usize) {
    // SAFETY: posix_fadvise takes a descriptor, which `file` keeps open, and no memory.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), offset as i64, len as i64, libc::POSIX_FADV_DONTNEED);
    }
}

struct RealFile {
    file: Arc<File>,
    path: PathBuf,
    pool: Arc<Pool>,
}

impl RealFile {
    /// Works on the file in a thread of its pool; `what` is for the error.
    fn work<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> Boxed<'_, DiskResult<T>> {
        let (file, path) = (self.file.clone(), self.path.clone());
        Box::pin(self.pool.run(move || work(&file).map_err(|error| failed(what, &path, &error))))
    }

    fn length(&self) -> Boxed<'_, DiskResult<u64>> {
        self.work("look at", |file| Ok(file.metadata()?.len()))
    }

    fn read(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.work("read", move |file| read_at(file, offset, len))
    }

    fn sync_data(&self) -> Boxed<'_, DiskResult<()>> {
        self.work("sync", File::sync_data)
    }
}

impl DiskFile for RealFile {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        self.length()
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.read(offset, len)
    }

    fn append(&self, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        self.work("write to", move |mut file| file.write_all(&bytes))
    }

    fn append_now(&self, bytes: Vec<u8>) -> Result<DiskResult<()>, Vec<u8>> {
        Err(bytes)
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        self.sync_data()
    }
}

impl FixedFile for RealFile {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        self.length()
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.read(offset, len)
    }

    fn read_disk_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.work("read", move |file| {
            forget(file, offset, len);
            let bytes = read_at(file, offset, len);
            forget(file, offset, len);
            bytes
        })
    }

    fn write_at(&self, offset: u64, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        self.work("write to", move |file| file.write_all_at(&bytes, offset))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        self.sync_data()
    }
}
