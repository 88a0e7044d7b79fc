//! Where a measurement runs: a volume without a mount, or any directory; each tells which data
//! are cached and durable there, since a figure without that means nothing.

use crate::program::{Program, Session};
use crate::started::{Scratch, VolumeScratch, go_on};
use aze_client::{Access, File, NewFile};
use aze_io::real::files;
use aze_proto::{FileKind, Ino, Name};
use aze_words::exit::{Outcome, Trouble};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What a measurement does to files, each call one operation of the kind that is timed. Names are
/// plain file names within the place's own new directory.
pub trait Place: Send + Sync {
    /// Makes an empty file that must not exist, and closes it.
    fn create(&self, name: &str) -> Outcome<()>;
    /// Asks for the attributes by name.
    fn stat(&self, name: &str) -> Outcome<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> Outcome<()>;
    /// Writes `count` times `block` one after another into a file, made or cut to nothing before.
    fn write(&self, name: &str, block: &[u8], count: usize) -> Outcome<()>;
    /// Reads a file in blocks of the buffer's size from its beginning to its end; gives its length.
    fn read(&self, name: &str, block: &mut [u8]) -> Outcome<u64>;
    /// Opens a file, reads it whole into the buffer, which is longer, and closes it, as a program does that reads a
    /// small file once; gives its length.
    fn load(&self, name: &str, buffer: &mut [u8]) -> Outcome<usize>;
    /// Makes a file that must not exist with these contents, has it synchronised if `sync` says so, and
    /// closes it.
    fn put(&self, name: &str, contents: &[u8], sync: bool) -> Outcome<()>;
    /// Removes the place's own directory, which must be empty.
    fn end(&self) -> Outcome<()>;
}

/// A kernel uses cached names and attributes of a mount for no longer, unless `--cache-time` says so.
pub fn kept_time(program: &dyn Program) -> Duration {
    program.cache_time() + Duration::from_millis(100)
}

/// The properties of a place, known before the measurement.
#[derive(Clone)]
pub struct Described {
    /// For the head of its column.
    pub title: String,
    /// A kernel answers from names and attributes that it caches for a time.
    pub is_mount: bool,
    /// What answered from memory nearer than the place itself.
    pub cached: &'static str,
    /// What would have survived.
    pub durable: &'static str,
    /// The state of a file when close(2) returns.
    pub close: &'static str,
    /// The state of a file when fsync(2) returns.
    pub fsync: &'static str,
}

/// A directory of a mounted file system.
pub struct Directory {
    path: PathBuf,
    /// Removes it, if it does not come to an end by itself.
    _own: Option<Scratch>,
}

impl Directory {
    /// Makes a directory of its own in `target`.
    pub fn new(target: &Path, name: &str) -> Outcome<Directory> {
        let path = target.join(name);
        let own = Scratch::at(&path)?;
        Ok(Directory { path, _own: Some(own) })
    }

    /// The same directory for another caller; it stays when this goes.
    pub fn seen_again(&self) -> Directory {
        Directory { path: self.path.clone(), _own: None }
    }

    fn trouble<T>(&self, what: &str, name: &str, result: std::io::Result<T>) -> Outcome<T> {
        result.map_err(|error| Trouble::local(format!("{what} {}", self.path.join(name).display()), &error))
    }

    fn open(&self, what: &str, name: &str, options: &mut fs::OpenOptions) -> Outcome<fs::File> {
        self.trouble(what, name, options.mode(0o644).open(self.path.join(name)))
    }
}

impl Place for Directory {
    fn create(&self, name: &str) -> Outcome<()> {
        go_on()?;
        self.open("create", name, fs::OpenOptions::new().write(true).create_new(true)).map(drop)
    }

    fn stat(&self, name: &str) -> Outcome<()> {
        self.trouble("stat", name, fs::symlink_metadata(self.path.join(name)).map(drop))
    }

    fn remove(&self, name: &str) -> Outcome<()> {
        self.trouble("remove", name, fs::remove_file(self.path.join(name)))
    }

    fn write(&self, name: &str, block: &[u8], count: usize) -> Outcome<()> {
        let mut file = self.open("write", name, fs::OpenOptions::new().write(true).create(true).truncate(true))?;
        (0..count).try_for_each(|_| go_on().and_then(|()| self.trouble("write", name, file.write_all(block))))
    }

    fn read(&self, name: &str, block: &mut [u8]) -> Outcome<u64> {
        let mut file = self.open("read", name, fs::OpenOptions::new().read(true))?;
        let mut total = 0;
        loop {
            match self.trouble("read", name, file.read(block))? {
                0 => return Ok(total),
                count => total += count as u64,
            }
        }
    }

    fn load(&self, name: &str, buffer: &mut [u8]) -> Outcome<usize> {
        let mut file = self.open("read", name, fs::OpenOptions::new().read(true))?;
        let mut count = 0;
        loop {
            match self.trouble("read", name, file.read(&mut buffer[count..]))? {
                0 => return Ok(count),
                more => count += more,
            }
        }
    }

    fn put(&self, name: &str, contents: &[u8], sync: bool) -> Outcome<()> {
        let mut file = self.open("create", name, fs::OpenOptions::new().write(true).create_new(true))?;
        self.trouble("write", name, file.write_all(contents))?;
        if sync { self.trouble("synchronise", name, file.sync_all()) } else { Ok(()) }
    }

    fn end(&self) -> Outcome<()> {
        self.trouble("remove", "", fs::remove_dir(&self.path))
    }
}

/// A directory of a volume, without a mount.
pub struct Native {
    session: Arc<dyn Session>,
    dir: Ino,
    name: Name,
    /// Removes it, if it does not come to an end by itself.
    own: Option<VolumeScratch>,
}

impl Native {
    /// Makes a directory of its own in the root of a volume that goes with the measurement.
    pub fn new(session: Arc<dyn Session>, name: &str) -> Outcome<Native> {
        Native::make_dir(session, name, false, None)
    }

    /// Makes a directory of its own in the volume's root, which goes with this; a private one, if that is said.
    pub fn removed(session: Arc<dyn Session>, name: &str, private: bool) -> Outcome<Native> {
        let own = VolumeScratch::new(format!("aze://{}/{name}", session.volume().name));
        Native::make_dir(session, name, private, Some(own))
    }

    fn make_dir(session: Arc<dyn Session>, name: &str, private: bool, own: Option<VolumeScratch>) -> Outcome<Native> {
        let name = name_of(name);
        let new = NewFile { kind: FileKind::Directory, mode: 0o755, private, ..empty_file(None) };
        let created =
            session.ask(format!("make aze:/{name}"), session.client().create(session.who(), Ino::ROOT, &name, &new))?;
        Ok(Native { dir: created.attr.ino, session, name, own })
    }

    /// The same directory through another session; it stays when this goes.
    pub fn seen_by(&self, session: Arc<dyn Session>) -> Native {
        Native { session, dir: self.dir, name: self.name.clone(), own: None }
    }

    fn make(&self, name: &str, new: &NewFile) -> Outcome<Option<Arc<File>>> {
        let entry = name_of(name);
        let made = self.session.client().create(self.session.who(), self.dir, &entry, new);
        Ok(self.session.ask(format!("create {name}"), made)?.file)
    }

    fn look_up(&self, name: &str) -> Outcome<Ino> {
        let entry = name_of(name);
        let found = self.session.client().lookup(self.session.who(), self.dir, &entry);
        Ok(self.session.ask(format!("stat {name}"), found)?.ino)
    }
}

impl Place for Native {
    fn create(&self, name: &str) -> Outcome<()> {
        go_on()?;
        self.make(name, &empty_file(None)).map(drop)
    }

    fn stat(&self, name: &str) -> Outcome<()> {
        self.look_up(name).map(drop)
    }

    fn remove(&self, name: &str) -> Outcome<()> {
        let entry = name_of(name);
        let removed = self.session.client().unlink(self.session.who(), self.dir, &entry);
        self.session.ask(format!("remove {name}"), removed)
    }

    fn write(&self, name: &str, block: &[u8], count: usize) -> Outcome<()> {
        let access = Access { read: false, write: true };
        let file = self.make(name, &NewFile { exclusive: false, ..empty_file(Some(access)) })?;
        let Some(file) = file else { return Err(Trouble::usage(format!("write {name}: it is no regular file"))) };
        for index in 0..count {
            go_on()?;
            let offset = (index * block.len()) as u64;
            self.session.ask(format!("write {name}"), file.write(offset, block))?;
        }
        self.session.ask(format!("close {name}"), file.close())
    }

    fn read(&self, name: &str, block: &mut [u8]) -> Outcome<u64> {
        let ino = self.look_up(name)?;
        let access = Access { read: true, write: false };
        let file =
            self.session.ask(format!("open {name}"), self.session.client().open(self.session.who(), ino, access))?;
        let mut total = 0;
        loop {
            match self.session.ask(format!("read {name}"), file.read_into(total, block))? {
                0 => break,
                count => total += count as u64,
            }
        }
        self.session.ask(format!("close {name}"), file.close())?;
        Ok(total)
    }

    fn load(&self, name: &str, buffer: &mut [u8]) -> Outcome<usize> {
        let (client, path) = (self.session.client(), format!("/{}/{name}", self.name));
        let access = Access { read: true, write: false };
        let opened = client.open_path_with_contents(self.session.who(), path.as_bytes(), access);
        let file = self.session.ask(format!("open {name}"), opened)?;
        // Gives fewer bytes than asked for only at the end of the file.
        let count = self.session.ask(format!("read {name}"), file.read_as_opened(0, buffer))?;
        self.session.ask(format!("close {name}"), file.close())?;
        Ok(count)
    }

    fn put(&self, name: &str, contents: &[u8], sync: bool) -> Outcome<()> {
        let access = Access { read: false, write: true };
        let file = self.make(name, &empty_file(Some(access)))?;
        let Some(file) = file else { return Err(Trouble::usage(format!("write {name}: it is no regular file"))) };
        self.session.ask(format!("write {name}"), file.write(0, contents))?;
        if sync {
            self.session.ask(format!("synchronise {name}"), file.sync())?;
        }
        self.session.ask(format!("close {name}"), file.close())
    }

    fn end(&self) -> Outcome<()> {
        let removed = self.session.client().rmdir(self.session.who(), Ino::ROOT, &self.name);
        self.session.ask(format!("remove aze:/{}", self.name), removed)?;
        self.own.iter().for_each(VolumeScratch::gone);
        Ok(())
    }
}

fn name_of(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("names of measurements are letters and digits")
}

fn empty_file(open: Option<Access>) -> NewFile {
    NewFile {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
        target: Vec::new(),
        exclusive: true,
        open,
        chunk_bits: 0,
        private: false,
    }
}

const CLOSE_OF_VOLUME: &str = "all bytes are with the servers, and the next open on any node sees them";
const FSYNC_OF_VOLUME: &str = "no more than close: the volume is in memory";

/// The properties of a volume as a place, by its durability.
pub fn describe_native(durability: Option<&str>) -> Described {
    let (durable, close, fsync) = match durability {
        None => ("nothing: the servers keep it in memory", CLOSE_OF_VOLUME, FSYNC_OF_VOLUME),
        Some("none") => ("nothing sure: it survives its servers, not the power", CLOSE_OF_VOLUME, "no more than close"),
        Some("close") => {
            ("what was closed or synced", "the file is on the servers' disks", "the file is on the servers' disks")
        }
        Some(_) => ("what was synced", CLOSE_OF_VOLUME, "the file is on the servers' disks"),
    };
    let cached = "nothing: a server answers, or its memory is read";
    Described { title: "aze, no mount".into(), is_mount: false, cached, durable, close, fsync }
}

/// The properties of a directory as a place, by the kind of its file system (statfs(2)).
pub fn describe(target: &Path) -> Outcome<Described> {
    const TMPFS: i64 = 0x0102_1994;
    const EXT: i64 = 0xEF53;
    const FUSE: i64 = 0x6573_5546;
    let kind = files::file_system_kind(target)
        .map_err(|error| Trouble::local(format!("look at {}", target.display()), &error))?;
    let (title, cached, durable, close, fsync) = match kind {
        TMPFS => (
            "tmpfs",
            "everything: it is the page cache",
            "nothing: memory",
            "seen on this node, which has the only copy",
            "nothing: memory",
        ),
        EXT => (
            "ext4",
            "everything: the page cache, written back later",
            "nothing at the time measured: no fsync",
            "seen on this node; nothing is on disk",
            "the file is on disk",
        ),
        FUSE => (
            "aze, mounted",
            "names and attributes for 1 s; data until the next open",
            "what its volume promises: nothing if that is in memory",
            CLOSE_OF_VOLUME,
            "what its volume promises: no more than close if that is in memory",
        ),
        _ => ("other", "unknown", "unknown", "unknown", "unknown"),
    };
    Ok(Described { title: title.into(), is_mount: kind == FUSE, cached, durable, close, fsync })
}
