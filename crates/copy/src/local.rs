//! Local files as a [`Tree`].

use crate::stripes;
use crate::tree::{
    Meta, Named, Names, ReadBack, Replaces, Sink, Source, Traits, Tree, Xattr, beside, copied_mode, in_the_way, is_kept,
};
use crate::workers::{ALIGNED_BYTES, aligned_room};
use aze_io::real::files::{self, Taken};
use aze_io::sync::Mutex;
use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, Permissions};
use std::io::{ErrorKind, Read};
use std::ops::Range;
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
        let kind = file.metadata().map(|meta| kind_of(meta.file_type()));
        match kind.map_err(|error| Trouble::local(format!("open {}", self.shown(path)), &error))? {
            FileKind::Directory => {
                Err(Trouble::new(Exit::Caller, format!("open {}: is a directory", self.shown(path))))
            }
            FileKind::File => Ok(Box::new(LocalSource { file, shown: self.shown(path) })),
            _ => Ok(Box::new(LocalStream(LocalSource { file, shown: self.shown(path) }))),
        }
    }

    fn open_fresh(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        // A FIFO that has taken the place of a file must not hold up the copy.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(local(path));
        let file = file.map_err(|error| Trouble::local(format!("open {}", self.shown(path)), &error))?;
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Err(Trouble::new(
                Exit::Caller,
                format!("open {}: it is no regular file any more", self.shown(path)),
            ));
        }
        Ok(Box::new(LocalSource { file, shown: self.shown(path) }))
    }

    fn create_as(&self, path: &[u8], _mode: u32, hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        self.refuse_other(path)?;
        LocalSink::create(local(path).to_owned(), local(&beside(path, hidden)).to_owned())
    }

    fn reopen_as(&self, path: &[u8], hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        let (target, temporary) = (local(path).to_owned(), local(&beside(path, hidden)).to_owned());
        let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(&temporary);
        let file = file.map_err(|error| Trouble::local(format!("write {}", target.display()), &error))?;
        Ok(Box::new(LocalSink { file, temporary, target }))
    }

    fn reread_as(&self, path: &[u8], hidden: &[u8]) -> Outcome<(Box<dyn Source>, ReadBack)> {
        reread_stored(local(&beside(path, hidden)), self.shown(path))
    }

    fn make_link_as(&self, path: &[u8], target: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        self.refuse_other(path)?;
        self.by_way_of(path, hidden, replaces, |hidden| std::os::unix::fs::symlink(OsStr::from_bytes(target), hidden))
    }

    fn add_name(&self, existing: &[u8], path: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        self.refuse_other(path)?;
        let same = |path: &[u8]| fs::symlink_metadata(local(path)).map(|meta| (meta.dev(), meta.ino())).ok();
        if same(existing).is_some_and(|there| same(path) == Some(there)) {
            // A rename between two names of one file would do nothing and leave both.
            return Ok(());
        }
        self.by_way_of(path, hidden, replaces, |hidden| fs::hard_link(local(existing), hidden))
    }

    fn remove(&self, path: &[u8], kind: FileKind) -> Outcome<()> {
        let removed = match kind {
            FileKind::Directory => fs::remove_dir(local(path)),
            _ => fs::remove_file(local(path)),
        };
        removed.map_err(|error| Trouble::local(format!("remove {}", self.shown(path)), &error))
    }

    fn sync_dir(&self, path: &[u8]) -> Outcome<()> {
        let synced = File::open(local(path)).and_then(|dir| dir.sync_all());
        synced.map_err(|error| Trouble::local(format!("sync directory {}", self.shown(path)), &error))
    }

    fn put_in_place(&self, from: &[u8], to: &[u8], exchange: bool) -> Outcome<()> {
        let taken = if exchange { Taken::Exchanges } else { Taken::Fails };
        files::rename_with(local(from), local(to), taken).map_err(|error| {
            let what = format!("publish {}", self.shown(to));
            match error.raw_os_error() {
                Some(libc::EINVAL | libc::ENOSYS) => {
                    let way = if exchange { "let two names change places" } else { "rename without replacing" };
                    let text = format!(
                        "{what}: its file system cannot {way} in one step: stage to a name that is free, or without --atomic"
                    );
                    Trouble::new(Exit::Caller, text)
                }
                _ => Trouble::local(what, &error),
            }
        })
    }

    fn traits(&self, dir: &[u8], hidden: &[u8]) -> Outcome<Traits> {
        let look = || {
            let (room_bytes, room_files) = files::file_system_room(local(dir))?;
            let name_bytes_max = longest_name(files::name_bytes_max(local(dir))?, |bytes| {
                let found = fs::symlink_metadata(local(&crate::tree::join(dir, &vec![b'n'; bytes])));
                found.is_err_and(|error| error.raw_os_error() == Some(libc::ENAMETOOLONG))
            });
            let probe = [hidden, b"-probe"].concat();
            let (lower, upper) = (crate::tree::join(dir, &probe), crate::tree::join(dir, &probe.to_ascii_uppercase()));
            let second = [&lower[..], b"-2"].concat();
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(local(&lower))?;
            let folds_case = fs::symlink_metadata(local(&upper)).is_ok();
            let links = fs::hard_link(local(&lower), local(&second)).is_ok();
            let removed = if links { fs::remove_file(local(&second)) } else { Ok(()) };
            fs::remove_file(local(&lower)).and(removed)?;
            let stripes = stripes::of_dir(local(dir));
            Ok(Traits { folds_case, links, name_bytes_max, room_bytes, room_files, stripes })
        };
        look().map_err(|error| Trouble::local(format!("write to {}", self.shown(dir)), &error))
    }

    /// Only its owner may use it before it is finished.
    fn create(&self, path: &[u8], _mode: u32) -> Outcome<Box<dyn Sink>> {
        // A link stays a link: its target is replaced.
        let target = fs::canonicalize(local(path)).unwrap_or_else(|_| local(path).to_path_buf());
        refuse_what_is_not_written(&target)?;
        let temporary = temporary(&target);
        LocalSink::create(target, temporary)
    }

    fn make_dir(&self, path: &[u8]) -> Outcome<()> {
        match DirBuilder::new().mode(0o700).create(local(path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && local(path).is_dir() => Ok(()),
            result => result.map_err(|error| Trouble::local(format!("make directory {}", self.shown(path)), &error)),
        }
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()> {
        self.refuse_other(path)?;
        let temporary = temporary(local(path));
        let make = || {
            std::os::unix::fs::symlink(OsStr::from_bytes(target), &temporary)?;
            fs::rename(&temporary, local(path)).inspect_err(|_| drop(fs::remove_file(&temporary)))
        };
        make().map_err(|error| Trouble::local(format!("make link {}", self.shown(path)), &error))
    }

    fn set_link(&self, path: &[u8], meta: &Meta) -> Outcome<()> {
        let path = local(path);
        let set = match std::os::unix::fs::lchown(path, Some(meta.uid), Some(meta.gid)) {
            // As of a file: it stays this user's.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => Err(error),
            _ => files::set_link_times(path, [meta.atime.0, meta.mtime.0]),
        };
        set.map_err(|error| Trouble::local(format!("set attributes of {}", path.display()), &error))
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

impl LocalTree {
    /// Only files and symbolic links are replaced by something else: with a directory would go all that is in it, and other
    /// programs use a device by its name.
    fn refuse_other(&self, path: &[u8]) -> Outcome<()> {
        match fs::symlink_metadata(local(path)) {
            Ok(meta) if meta.is_dir() => {
                let text = format!("create {}: a directory is there: move it away", self.shown(path));
                Err(Trouble::new(Exit::Caller, text))
            }
            Ok(meta) if !meta.is_file() && !meta.is_symlink() => Err(no_regular_file(local(path))),
            _ => Ok(()),
        }
    }

    /// Makes something under a hidden name, and gives it the right one.
    fn by_way_of(
        &self,
        path: &[u8],
        hidden: &[u8],
        replaces: &Replaces,
        make: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Outcome<()> {
        let hidden = beside(path, hidden);
        make(local(&hidden)).map_err(|error| Trouble::local(format!("make {}", self.shown(path)), &error))?;
        give_name("make", local(&hidden), local(path), replaces).inspect_err(|_| drop(fs::remove_file(local(&hidden))))
    }
}

/// Gives a whole file or link its name. If the name is free, one step takes it, and can replace nothing; if it is taken, the
/// object there is looked at right before the rename.
fn give_name(what: &str, hidden: &Path, path: &Path, replaces: &Replaces) -> Outcome<()> {
    let failed = |error: std::io::Error| Trouble::local(format!("{what} {}", path.display()), &error);
    let Replaces::Only(known) = replaces else { return fs::rename(hidden, path).map_err(failed) };
    match LocalTree.stat(path.as_os_str().as_bytes(), false)? {
        Some(there) if known.contains(&there.print()) => return fs::rename(hidden, path).map_err(failed),
        Some(_) => return Err(in_the_way(&path.display().to_string())),
        None => {}
    }
    let is_unknown = |error: &std::io::Error| {
        matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::EPERM))
    };
    let mut named = files::rename_with(hidden, path, Taken::Fails);
    if named.as_ref().is_err_and(is_unknown) {
        // NFS can make a second name, and that replaces nothing, either.
        named = fs::hard_link(hidden, path).and_then(|()| fs::remove_file(hidden));
    }
    if named.as_ref().is_err_and(is_unknown) {
        named = fs::rename(hidden, path);
    }
    named.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => in_the_way(&path.display().to_string()),
        _ => failed(error),
    })
}

fn no_regular_file(path: &Path) -> Trouble {
    let text = format!("create {}: it is there, and no regular file: give another name, or remove it", path.display());
    Trouble::new(Exit::Caller, text)
}

/// A copy replaces what this process could have written, and nothing else.
fn refuse_what_is_not_written(target: &Path) -> Outcome<()> {
    match fs::symlink_metadata(target) {
        Ok(meta) if meta.is_dir() => return Ok(()),
        Ok(meta) if !meta.is_file() => return Err(no_regular_file(target)),
        Ok(_) => {}
        // What is wrong with the path is told when something is made there.
        Err(_) => return Ok(()),
    }
    match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(target) {
        // A program that runs goes on with the file that it has.
        Err(error) if error.raw_os_error() != Some(libc::ETXTBSY) => {
            Err(Trouble::local(format!("create {}", target.display()), &error))
        }
        _ => Ok(()),
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

    fn meta(&self) -> Outcome<Meta> {
        meta_now(&self.file, &self.shown)
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        self.marked().map(|(_, mark)| mark)
    }

    fn marked(&self) -> Outcome<(Meta, Vec<u64>)> {
        let meta = self.meta()?;
        let mark = vec![meta.identity.0, meta.identity.1, meta.size, meta.mtime.0, meta.ctime.0];
        Ok((meta, mark))
    }
}

/// A FIFO or a device, whose bytes come one after the other: each read goes on where the last one has ended, whatever its offset.
struct LocalStream(LocalSource);

impl Source for LocalStream {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        self.0.xattrs()
    }

    fn read_at(&self, _offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let mut count = 0;
        while count < buffer.len() {
            match (&self.0.file).read(&mut buffer[count..]) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::local(format!("read {}", self.0.shown), &error)),
            }
        }
        Ok(count)
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        Ok(Some(offset))
    }

    fn meta(&self) -> Outcome<Meta> {
        self.0.meta()
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        self.0.mark()
    }
}

fn meta_now(file: &File, shown: &str) -> Outcome<Meta> {
    file.metadata().map(|meta| meta_of(&meta)).map_err(|error| Trouble::local(format!("stat {shown}"), &error))
}

thread_local! {
    /// Where reads past the page cache go first whose bytes are wanted elsewhere; kept, since making room takes longer than copying.
    static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A file that is read past the page cache.
struct DirectSource(LocalSource);

impl DirectSource {
    /// Offset, length and address are aligned.
    fn read_aligned(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let mut count = 0;
        // Where the file ends within a block, no aligned read could go on.
        while count < buffer.len() && count.is_multiple_of(ALIGNED_BYTES) {
            match self.0.file.read_at(&mut buffer[count..], offset + count as u64) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::local(format!("read {} back", self.0.shown), &error)),
            }
        }
        Ok(count)
    }
}

impl Source for DirectSource {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        self.0.xattrs()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let is_aligned = |number: usize| number.is_multiple_of(ALIGNED_BYTES);
        if is_aligned(buffer.as_ptr().addr()) && is_aligned(buffer.len()) && offset.is_multiple_of(ALIGNED_BYTES as u64)
        {
            return self.read_aligned(offset, buffer);
        }
        let before = (offset % ALIGNED_BYTES as u64) as usize;
        let len = (before + buffer.len()).next_multiple_of(ALIGNED_BYTES);
        BOUNCE.with_borrow_mut(|bounce| {
            let aligned = aligned_room(bounce, len);
            let found = self.read_aligned(offset - before as u64, aligned)?.saturating_sub(before).min(buffer.len());
            buffer[..found].copy_from_slice(&aligned[before..before + found]);
            Ok(found)
        })
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        self.0.next_data(offset)
    }

    fn meta(&self) -> Outcome<Meta> {
        self.0.meta()
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        self.0.mark()
    }
}

/// The length in bytes of the longest name that is not too long. The file system tells `told`: one that encrypts names may tell
/// the limit of the one below it, which is more.
fn longest_name(told: usize, is_too_long: impl Fn(usize) -> bool) -> usize {
    if told > NAME_BYTES_MAX || !is_too_long(told) {
        return told;
    }
    let (mut fits, mut too_long) = (0, told);
    while fits + 1 < too_long {
        let middle = fits.midpoint(too_long);
        *if is_too_long(middle) { &mut too_long } else { &mut fits } = middle;
    }
    fits
}

/// Longest name that Linux knows (limits.h, NAME_MAX): a file system that tells more is not asked.
const NAME_BYTES_MAX: usize = 255;

/// File systems in memory, as statfs(2) names them: tmpfs, ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Writes under another name in the same directory, and takes the right name when it is whole.
struct LocalSink {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
}

impl LocalSink {
    fn create(target: PathBuf, temporary: PathBuf) -> Outcome<Box<dyn Sink>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
        let file = file.map_err(|error| Trouble::local(format!("create {}", target.display()), &error))?;
        Ok(Box::new(LocalSink { file, temporary, target }))
    }
}

/// Devices that have let this process read past the page cache: `direct` does not try again for each of their files.
static DIRECT_DEVICES: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// A file past the page cache; `None` where the file system cannot read so.
fn direct(temporary: &Path, device: u64) -> Option<File> {
    let file = files::open_direct(temporary).ok()?;
    if !DIRECT_DEVICES.lock().contains(&device) {
        file.read_at(aligned_room(&mut Vec::new(), ALIGNED_BYTES), 0).ok()?;
        DIRECT_DEVICES.lock().insert(device);
    }
    Some(file)
}

/// Opens an unfinished file, which shall have the name `shown`, to read it from where it is stored.
fn reread_stored(temporary: &Path, shown: String) -> Outcome<(Box<dyn Source>, ReadBack)> {
    let failed = |error: &std::io::Error| Trouble::local(format!("read {shown} back"), error);
    let device = fs::symlink_metadata(temporary).map_err(|error| failed(&error))?.dev();
    let kind = |temporary| files::file_system_kind(temporary).map_err(|error| failed(&error));
    let in_memory = !DIRECT_DEVICES.lock().contains(&device) && IN_MEMORY.contains(&kind(temporary)?);
    if !in_memory && let Some(file) = direct(temporary, device) {
        return Ok((Box::new(DirectSource(LocalSource { file, shown })), ReadBack::Direct));
    }
    let file = File::open(temporary).map_err(|error| failed(&error))?;
    files::drop_cached(&file).map_err(|error| failed(&error))?;
    let how = if in_memory { ReadBack::Memory } else { ReadBack::Dropped };
    Ok((Box::new(LocalSource { file, shown }), how))
}

impl Sink for LocalSink {
    fn settle(&self, meta: &Meta) -> Outcome<()> {
        let done = set(&self.file, meta, true).and_then(|()| self.file.sync_all());
        done.map_err(|error| Trouble::local(format!("write {}", self.target.display()), &error))
    }

    fn reread_stored(&self) -> Outcome<(Box<dyn Source>, ReadBack)> {
        reread_stored(&self.temporary, self.target.display().to_string())
    }

    fn store(&self) -> Outcome<()> {
        self.file.sync_all().map_err(|error| Trouble::local(format!("write {}", self.target.display()), &error))
    }

    fn publish(&self, replaces: &Replaces) -> Outcome<Meta> {
        give_name("finish", &self.temporary, &self.target, replaces)?;
        fs::symlink_metadata(&self.target)
            .map(|meta| meta_of(&meta))
            .map_err(|error| Trouble::local(format!("finish {}", self.target.display()), &error))
    }

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

    fn begin_to_store(&self, range: Range<u64>) {
        // It only saves time: the sync that follows tells of errors.
        let _ = files::begin_write_back(&self.file, range);
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
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        links: meta.nlink(),
        identity: (meta.dev(), meta.ino()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_names_that_is_not_told_is_found() {
        for limit in [1, 40, 143, 254, 255] {
            assert_eq!(longest_name(255, |bytes| bytes > limit), limit);
        }
        assert_eq!(longest_name(40, |bytes| bytes > 255), 40, "what is told is taken if it fits");
        assert_eq!(longest_name(1 << 20, |_| true), 1 << 20, "what Linux cannot have is not asked for");
    }
}
