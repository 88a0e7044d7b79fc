//! A backing of this machine: a directory of any file system that it has mounted.

use super::disk::Pool;
use super::files;
use crate::Boxed;
use crate::backing::{BACKING_THREADS, Backing, BackingError, BackingResult, Found, Identity, Names};
use crate::disk::{DiskError, DiskResult};
use crate::sync::Mutex;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, ReadDir};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct RealBacking {
    root: PathBuf,
    shown: String,
    pool: Arc<Pool>,
}

/// Takes a directory of this machine as a backing.
///
/// # Errors
/// `Unfit` if it is no directory, or cannot be looked at.
pub async fn open_backing(path: &str) -> DiskResult<Arc<dyn Backing>> {
    let failed = |what: &str, error: &io::Error| DiskError::Unfit(format!("{what} {path}: {error}"));
    let pool = Pool::start("backing", BACKING_THREADS).map_err(|error| failed("start threads for", &error))?;
    let backing = RealBacking { root: path.into(), shown: path.to_owned(), pool };
    let found = backing.look(Vec::new()).await.map_err(|error| DiskError::Unfit(error.to_string()))?;
    if found.mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(DiskError::Unfit(format!("{path}: it is no directory")));
    }
    Ok(Arc::new(backing))
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

fn identity(about: &Metadata) -> Identity {
    Identity {
        inode: about.ino(),
        size: about.size(),
        mtime_ns: nanoseconds(about.mtime(), about.mtime_nsec()),
        ctime_ns: nanoseconds(about.ctime(), about.ctime_nsec()),
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> BackingError {
    let text = format!("{what} {}: {error}", path.display());
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ELOOP) => BackingError::Changed(text),
        Some(libc::EACCES | libc::EPERM) => BackingError::Denied(text),
        _ => BackingError::Failed(text),
    }
}

fn changed(path: &Path, what: &str) -> BackingError {
    BackingError::Changed(format!("{}: {what} since the volume first looked at it", path.display()))
}

/// The object under a path, with the name by which it was found.
fn found(path: &Path, name: Vec<u8>) -> BackingResult<Found> {
    let about = fs::symlink_metadata(path).map_err(|error| failed("look at", path, &error))?;
    let target = match about.is_symlink() {
        true => fs::read_link(path).map_err(|error| failed("read link", path, &error))?.into_os_string().into_vec(),
        false => Vec::new(),
    };
    let xattrs = if about.is_file() || about.is_dir() { path_xattrs(path)? } else { Vec::new() };
    Ok(Found {
        name,
        mode: about.mode(),
        uid: about.uid(),
        gid: about.gid(),
        rdev: about.rdev(),
        atime_ns: nanoseconds(about.atime(), about.atime_nsec()),
        identity: identity(&about),
        links: about.nlink(),
        target,
        xattrs,
    })
}

fn path_xattrs(path: &Path) -> BackingResult<Vec<(Vec<u8>, Vec<u8>)>> {
    files::path_xattrs(path).map_err(|error| failed("read extended attributes of", path, &error))
}

impl RealBacking {
    fn at(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(path)) }
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> BackingResult<T> + Send + 'static,
    ) -> BackingResult<T> {
        let done = self.pool.run(move || Ok(job())).await;
        done.unwrap_or_else(|error| Err(BackingError::Failed(error.to_string())))
    }
}

impl Backing for RealBacking {
    fn root(&self) -> &str {
        &self.shown
    }

    fn look(&self, path: Vec<u8>) -> Boxed<'_, BackingResult<Found>> {
        let at = self.at(&path);
        // The root may be given as a symbolic link.
        let is_root = path.is_empty();
        Box::pin(self.run(move || {
            let at = if is_root { fs::canonicalize(&at).map_err(|error| failed("find", &at, &error))? } else { at };
            found(&at, Vec::new())
        }))
    }

    fn list(&self, path: Vec<u8>, identity: Identity) -> Boxed<'_, BackingResult<Arc<dyn Names>>> {
        let (at, pool) = (self.at(&path), self.pool.clone());
        Box::pin(self.run(move || {
            let about = fs::metadata(&at).map_err(|error| failed("look at", &at, &error))?;
            if about.ino() != identity.inode {
                return Err(changed(&at, "another directory has its place"));
            }
            let entries = fs::read_dir(&at).map_err(|error| failed("list", &at, &error))?;
            Ok(Arc::new(RealNames { at, pool, entries: Arc::new(Mutex::new(entries)) }) as Arc<dyn Names>)
        }))
    }

    fn read(&self, path: Vec<u8>, identity: Identity, offset: u64, len: usize) -> Boxed<'_, BackingResult<Vec<u8>>> {
        let at = self.at(&path);
        Box::pin(self.run(move || read(&at, identity, offset, len)))
    }

    fn next_data(&self, path: Vec<u8>, identity: Identity, offset: u64) -> Boxed<'_, BackingResult<Range<u64>>> {
        let at = self.at(&path);
        Box::pin(self.run(move || {
            let look = |file: &File| match files::next_data(file, offset)? {
                Some(data) => Ok(data..files::next_hole(file, data)?),
                None => Ok(u64::MAX..u64::MAX),
            };
            with_same(&at, identity, "look for data in", look)
        }))
    }
}

/// Opens a file, and looks whether it is the expected one before and after its use.
fn with_same<T>(
    at: &Path,
    expected: Identity,
    what: &str,
    used: impl FnOnce(&File) -> io::Result<T>,
) -> BackingResult<T> {
    // A file that has become a pipe or a device meanwhile must not hold up the thread.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file =
        OpenOptions::new().read(true).custom_flags(flags).open(at).map_err(|error| failed("open", at, &error))?;
    let is_same = |file: &File| -> BackingResult<()> {
        let about = files::attributes_now(file).map_err(|error| failed("look at", at, &error))?;
        let time = |time: libc::statx_timestamp| nanoseconds(time.tv_sec, time.tv_nsec.into());
        let now = Identity {
            inode: about.stx_ino,
            size: about.stx_size,
            mtime_ns: time(about.stx_mtime),
            ctime_ns: time(about.stx_ctime),
        };
        if u32::from(about.stx_mode) & libc::S_IFMT == libc::S_IFREG && now == expected {
            Ok(())
        } else {
            Err(changed(at, "it has changed"))
        }
    };
    is_same(&file)?;
    let found = used(&file).map_err(|error| failed(what, at, &error))?;
    is_same(&file)?;
    Ok(found)
}

fn read(at: &Path, expected: Identity, offset: u64, len: usize) -> BackingResult<Vec<u8>> {
    let mut bytes = vec![0; len];
    let count = with_same(at, expected, "read", |file| files::read_at(file, offset, &mut bytes))?;
    let expected_count = expected.size.saturating_sub(offset).min(len as u64);
    if count as u64 != expected_count {
        return Err(changed(at, "it is shorter than it says, or has become shorter"));
    }
    bytes.truncate(count);
    Ok(bytes)
}

struct RealNames {
    at: PathBuf,
    pool: Arc<Pool>,
    entries: Arc<Mutex<ReadDir>>,
}

impl Names for RealNames {
    fn next(&self, count: usize) -> Boxed<'_, BackingResult<Vec<Found>>> {
        let (at, entries) = (self.at.clone(), self.entries.clone());
        Box::pin(async move {
            let done = self.pool.run(move || Ok(next(&at, &mut entries.lock(), count))).await;
            done.unwrap_or_else(|error| Err(BackingError::Failed(error.to_string())))
        })
    }
}

fn next(at: &Path, entries: &mut ReadDir, count: usize) -> BackingResult<Vec<Found>> {
    let mut page = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed("list", at, &error))?;
        match found(&entry.path(), entry.file_name().into_vec()) {
            Ok(found) => page.push(found),
            Err(error) => match fs::symlink_metadata(entry.path()) {
                Err(gone) if gone.kind() == ErrorKind::NotFound => {}
                _ => return Err(error),
            },
        }
        if page.len() == count {
            break;
        }
    }
    Ok(page)
}
