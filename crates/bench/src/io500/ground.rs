//! Where a run's files are: a directory of any file system, or a volume without a mount (in
//! [`super::volume`]). Every call is one operation of the kind that is timed, by its full path as
//! the official program does it.

use super::layout::{self, SMALL_FILE_BYTES, STAMP_FILE};
use super::link::{Walked, Where};
use super::volume::{Crowd, OnVolume};
use crate::place::{Described, describe};
use crate::program::Program;
use aze_io::real::files;
use aze_words::exit::{Outcome, Trouble};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What still fits.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files; absent if they are not limited.
    pub files: Option<u64>,
}

/// A run's own directory. Paths are relative to it.
pub trait Ground {
    /// Makes the directory itself, which must not exist.
    fn begin(&self) -> Outcome<()>;
    /// Makes a directory.
    fn make_dir(&self, path: &str) -> Outcome<()>;
    /// Makes the file whose time is compared with; gives its time in nanoseconds since 1970.
    fn make_stamp(&self) -> Outcome<u64>;
    /// Makes a file that must not exist with these contents: opens, writes if there are any, closes.
    fn create(&self, path: &str, contents: &[u8]) -> Outcome<()>;
    /// Asks for the attributes; gives the size.
    fn stat(&self, path: &str) -> Outcome<u64>;
    /// Removes a file.
    fn remove(&self, path: &str) -> Outcome<()>;
    /// Opens a file, made if it does not exist and is to be written.
    fn open(&self, path: &str, write: bool) -> Outcome<Box<dyn Opened>>;
    /// Makes the files that were created so far durable, as far as the place can.
    fn sync(&self) -> Outcome<()>;
    /// Searches one directory (of a volume: all below it, too) for small files newer than a time.
    fn walk(&self, dir: &str, since_ns: u64) -> Outcome<Walked>;
    /// What still fits.
    fn room(&self, program: &dyn Program) -> Outcome<Room>;
    /// Its properties, known before the measurement.
    fn described(&self) -> Outcome<Described>;
    /// Whether it is in memory, whose first touch costs more than its use.
    fn is_memory(&self) -> Outcome<bool>;
    /// Removes the directory with all that is in it; one that does not exist is no error.
    fn remove_all(&self) -> Outcome<()>;
    /// Ends the connection, if there is one.
    fn end(&self) {}
}

/// An open file.
pub trait Opened {
    /// Writes all of it.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Outcome<()>;
    /// Reads until the buffer is full or the file ends; gives how much.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize>;
    /// Makes the written data durable, as far as the place can, and closes.
    fn finish(self: Box<Self>) -> Outcome<()>;
}

/// Connects to where a run's files are to be.
pub fn open(program: &dyn Program, place: &Where, base: &str) -> Outcome<Box<dyn Ground>> {
    Ok(match place {
        Where::Volume(name) => Box::new(OnVolume::connect(program, name, base)?),
        Where::Directory(dir) => in_directory(dir, base),
    })
}

/// The same for one of several ranks of a process.
pub fn open_shared(program: &dyn Program, place: &Where, base: &str, crowd: &Crowd) -> Outcome<Box<dyn Ground>> {
    match place {
        Where::Volume(name) => Ok(Box::new(OnVolume::share(crowd, program, name, base)?)),
        Where::Directory(_) => open(program, place, base),
    }
}

/// A run's directory in that directory of a mounted file system.
pub fn in_directory(dir: &Path, base: &str) -> Box<dyn Ground> {
    Box::new(Directory { target: dir.to_path_buf(), path: dir.join(base) })
}

/// A directory of a mounted file system.
struct Directory {
    target: PathBuf,
    path: PathBuf,
}

impl Directory {
    fn at(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }
}

fn told<T>(what: &str, path: &Path, result: io::Result<T>) -> Outcome<T> {
    result.map_err(|error| Trouble::local(format!("{what} {}", path.display()), &error))
}

fn time_ns(meta: &fs::Metadata) -> u64 {
    let ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    u64::try_from(ns).unwrap_or(0)
}

impl Ground for Directory {
    fn begin(&self) -> Outcome<()> {
        told("make", &self.path, fs::create_dir(&self.path))
    }

    fn make_dir(&self, path: &str) -> Outcome<()> {
        let path = self.at(path);
        told("make", &path, fs::create_dir(&path))
    }

    fn make_stamp(&self) -> Outcome<u64> {
        let path = self.at(STAMP_FILE);
        let made = File::create_new(&path).and_then(|file| file.metadata());
        told("create", &path, made).map(|meta| time_ns(&meta))
    }

    fn create(&self, path: &str, contents: &[u8]) -> Outcome<()> {
        let path = self.at(path);
        let made = File::create_new(&path);
        let file = told("create", &path, made)?;
        match contents.is_empty() {
            true => Ok(()),
            false => told("write", &path, file.write_all_at(contents, 0)),
        }
    }

    fn stat(&self, path: &str) -> Outcome<u64> {
        let path = self.at(path);
        told("stat", &path, fs::metadata(&path)).map(|meta| meta.len())
    }

    fn remove(&self, path: &str) -> Outcome<()> {
        let path = self.at(path);
        told("remove", &path, fs::remove_file(&path))
    }

    fn open(&self, path: &str, write: bool) -> Outcome<Box<dyn Opened>> {
        let path = self.at(path);
        let mut options = OpenOptions::new();
        let options = if write { options.write(true).create(true) } else { options.read(true) };
        let file = told("open", &path, options.open(&path))?;
        Ok(Box::new(LocalFile { file, path, write }))
    }

    fn sync(&self) -> Outcome<()> {
        let synced = File::open(&self.path).and_then(|dir| files::sync_file_system(&dir));
        told("synchronise the file system of", &self.path, synced)
    }

    fn walk(&self, dir: &str, since_ns: u64) -> Outcome<Walked> {
        let path = self.at(dir);
        let mut walked = Walked { looked: Some(0), ..Walked::default() };
        for entry in told("search", &path, fs::read_dir(&path))? {
            let entry = told("search", &path, entry)?;
            *walked.looked.get_or_insert_default() += 1;
            let name = entry.file_name();
            if told("search", &path, entry.file_type())?.is_dir() {
                let name = name.to_string_lossy();
                walked.dirs.push(if dir.is_empty() { name.into_owned() } else { format!("{dir}/{name}") });
            }
            if layout::is_found(name.as_bytes()) {
                let meta = told("stat", &entry.path(), entry.metadata())?;
                walked.found += u64::from(meta.len() == SMALL_FILE_BYTES as u64 && time_ns(&meta) > since_ns);
            }
        }
        Ok(walked)
    }

    fn room(&self, program: &dyn Program) -> Outcome<Room> {
        let (bytes, files) = told("look at", &self.target, files::file_system_room(&self.target))?;
        // A file system in memory may be larger than the memory that there is.
        let bytes = if self.is_memory()? { bytes.min(program.usable_memory()?) } else { bytes };
        Ok(Room { bytes, files })
    }

    fn described(&self) -> Outcome<Described> {
        let told = describe(&self.target)?;
        let durable = match told.title.as_str() {
            "ext4" | "other" => "ior's data at the end of each writing phase (fsync); mdtest's files, too (syncfs)",
            _ => told.durable,
        };
        Ok(Described { durable, ..told })
    }

    fn is_memory(&self) -> Outcome<bool> {
        Ok(describe(&self.target)?.title == "tmpfs")
    }

    fn remove_all(&self) -> Outcome<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => told("remove", &self.path, done),
        }
    }
}

/// The smallest page size of the supported systems, in bytes.
const PAGE_BYTES: u64 = 4096;

struct LocalFile {
    file: File,
    path: PathBuf,
    write: bool,
}

impl Opened for LocalFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Outcome<()> {
        told("write", &self.path, self.file.write_all_at(bytes, offset))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let first = match self.file.read_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            first => told("read", &self.path, first)?,
        };
        // A call that ends within a page has met the end of the file: no further call asks for it, as with a volume's
        // client. The verification finds a read that ended too early.
        if first == buffer.len() || !(offset + first as u64).is_multiple_of(PAGE_BYTES) {
            return Ok(first);
        }
        let rest = files::read_at(&self.file, offset + first as u64, &mut buffer[first..]);
        Ok(first + told("read", &self.path, rest)?)
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        match self.write {
            true => told("synchronise", &self.path, self.file.sync_all()),
            false => Ok(()),
        }
    }
}
