//! Local files as a [`Tree`].

use crate::tree::{Meta, Named, Names, Sink, Source, Tree, Xattr, copied_mode, is_kept};
use aze_io::real::files;
use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// This machine's file systems.
pub struct LocalTree;

/// Tells apart the temporary names of one process.
static TEMPORARY: AtomicU64 = AtomicU64::new(0);

impl Tree for LocalTree {
    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Option<Meta>> {
        let result = if follow { fs::metadata(local(path)) } else { fs::symlink_metadata(local(path)) };
        match result {
            Ok(meta) => Ok(Some(meta_of(&meta))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Trouble::local(self.shown(path), &error)),
        }
    }

    fn list(&self, dir: &[u8]) -> Outcome<Names> {
        let mut names = Names::default();
        let entries =
            fs::read_dir(local(dir)).map_err(|error| Trouble::local(format!("list {}", self.shown(dir)), &error))?;
        for entry in entries {
            let found = entry.and_then(|entry| Ok((entry.file_name(), kind_of(entry.file_type()?))));
            match found {
                Ok((name, kind)) => names.entries.push(Named { name: name.as_bytes().to_vec(), kind, meta: None }),
                Err(error) => names.trouble = Some(Trouble::local(format!("list {}", self.shown(dir)), &error)),
            }
        }
        Ok(names)
    }

    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        let target = fs::read_link(local(path))
            .map_err(|error| Trouble::local(format!("read link {}", self.shown(path)), &error))?;
        Ok(target.as_os_str().as_bytes().to_vec())
    }

    fn open(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        let file =
            File::open(local(path)).map_err(|error| Trouble::local(format!("open {}", self.shown(path)), &error))?;
        if file.metadata().is_ok_and(|meta| meta.is_dir()) {
            return Err(Trouble::new(Exit::Caller, format!("open {}: is a directory", self.shown(path))));
        }
        Ok(Box::new(LocalSource { file, shown: self.shown(path) }))
    }

    /// Only its owner may use it before it is finished.
    fn create(&self, path: &[u8], _mode: u32) -> Outcome<Box<dyn Sink>> {
        // A link stays a link: its target is replaced.
        let target = fs::canonicalize(local(path)).unwrap_or_else(|_| local(path).to_path_buf());
        let temporary = temporary(&target);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(|error| Trouble::local(format!("create {}", self.shown(path)), &error))?;
        Ok(Box::new(LocalSink { file, temporary, target }))
    }

    fn make_dir(&self, path: &[u8]) -> Outcome<()> {
        match DirBuilder::new().mode(0o700).create(local(path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && local(path).is_dir() => Ok(()),
            result => result.map_err(|error| Trouble::local(format!("make directory {}", self.shown(path)), &error)),
        }
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()> {
        let temporary = temporary(local(path));
        let make = || {
            std::os::unix::fs::symlink(OsStr::from_bytes(target), &temporary)?;
            fs::rename(&temporary, local(path)).inspect_err(|_| drop(fs::remove_file(&temporary)))
        };
        make().map_err(|error| Trouble::local(format!("make link {}", self.shown(path)), &error))
    }

    fn dir_xattrs(&self, path: &[u8]) -> Outcome<Vec<Xattr>> {
        let found = File::open(local(path)).and_then(|dir| xattrs(&dir));
        found.map_err(|error| Trouble::local(format!("read extended attributes of {}", self.shown(path)), &error))
    }

    fn set_dir_xattr(&self, path: &[u8], xattr: &Xattr) -> Outcome<()> {
        let set = File::open(local(path)).and_then(|dir| files::set_xattr(&dir, &xattr.0, &xattr.1));
        set.map_err(|error| Trouble::local(self.shown(path), &error))
    }

    fn set_dir(&self, path: &[u8], meta: &Meta, preserve: bool) -> Outcome<()> {
        let set = || {
            let dir = File::open(local(path))?;
            set(&dir, meta, preserve)
        };
        set().map_err(|error| Trouble::local(format!("set attributes of {}", self.shown(path)), &error))
    }

    fn shown(&self, path: &[u8]) -> String {
        local(path).display().to_string()
    }

    fn id(&self) -> String {
        "local".into()
    }
}

/// A local path's bytes as a path.
fn local(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

struct LocalSource {
    file: File,
    shown: String,
}

impl Source for LocalSource {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        xattrs(&self.file)
            .map_err(|error| Trouble::local(format!("read extended attributes of {}", self.shown), &error))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        files::read_at(&self.file, offset, buffer)
            .map_err(|error| Trouble::local(format!("read {}", self.shown), &error))
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        files::next_data(&self.file, offset)
            .map_err(|error| Trouble::local(format!("look for data in {}", self.shown), &error))
    }
}

/// Writes under another name in the same directory, and takes the right name when it is whole.
struct LocalSink {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
}

impl Sink for LocalSink {
    fn set_xattr(&self, xattr: &Xattr) -> Outcome<()> {
        let set = files::set_xattr(&self.file, &xattr.0, &xattr.1);
        set.map_err(|error| Trouble::local(self.target.display(), &error))
    }

    fn set_size(&self, bytes: u64) -> Outcome<()> {
        let set = self.file.set_len(bytes);
        set.map_err(|error| Trouble::local(format!("set the size of {}", self.target.display()), &error))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<()> {
        let written = self.file.write_all_at(data, offset);
        written.map_err(|error| Trouble::local(format!("write {}", self.target.display()), &error))
    }

    fn reread(&self) -> Outcome<Box<dyn Source>> {
        let shown = self.target.display().to_string();
        let file = File::open(&self.temporary).map_err(|error| Trouble::local(format!("verify {shown}"), &error))?;
        Ok(Box::new(LocalSource { file, shown }))
    }

    fn finish(&self, meta: &Meta, preserve: bool) -> Outcome<()> {
        let done = set(&self.file, meta, preserve).and_then(|()| fs::rename(&self.temporary, &self.target));
        done.map_err(|error| Trouble::local(format!("finish {}", self.target.display()), &error))
    }

    fn abandon(&self) {
        // If even that fails there is nothing more to do; the name tells that it is temporary.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// The extended attributes of an open file that a copy keeps; none where the file system has none.
fn xattrs(file: &File) -> std::io::Result<Vec<Xattr>> {
    let mut found = Vec::new();
    let names = match files::xattr_names(file) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(found),
        names => names?,
    };
    for name in names.into_iter().filter(|name| is_kept(name)) {
        match files::xattr(file, &name) {
            Ok(value) => found.push((name, value)),
            // It has gone since.
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A hidden name beside `target` that no other copy uses.
fn temporary(target: &Path) -> PathBuf {
    let serial = TEMPORARY.fetch_add(1, Ordering::Relaxed);
    target.with_file_name(format!(".aze-{}-{serial}", std::process::id()))
}

fn set(file: &File, meta: &Meta, preserve: bool) -> std::io::Result<()> {
    let mut owner_kept = false;
    if preserve {
        // Only root may give files away; the copies of another user stay that user's, as with cp(1).
        match std::os::unix::fs::fchown(file, Some(meta.uid), Some(meta.gid)) {
            Err(error) if error.kind() != ErrorKind::PermissionDenied => return Err(error),
            result => owner_kept = result.is_ok(),
        }
    }
    file.set_permissions(Permissions::from_mode(copied_mode(meta.mode, owner_kept)))?;
    if preserve {
        file.set_times(FileTimes::new().set_accessed(system_time(meta.atime)).set_modified(system_time(meta.mtime)))?;
    }
    Ok(())
}

fn system_time(time: Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(time.0)
}

fn kind_of(kind: fs::FileType) -> FileKind {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        kind if kind.is_fifo() => FileKind::Fifo,
        kind if kind.is_socket() => FileKind::Socket,
        kind if kind.is_block_device() => FileKind::BlockDevice,
        _ => FileKind::CharDevice,
    }
}

fn meta_of(meta: &fs::Metadata) -> Meta {
    let time = |seconds: i64, nanoseconds: i64| match u64::try_from(seconds) {
        Ok(seconds) => Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds as u64)),
        // Before 1970: the earliest time that a volume can keep.
        Err(_) => Time(0),
    };
    Meta {
        kind: kind_of(meta.file_type()),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.len(),
        is_sparse: meta.is_file() && meta.blocks().saturating_mul(512) < meta.len(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        identity: (meta.dev(), meta.ino()),
    }
}
