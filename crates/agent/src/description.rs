//! Open file descriptions: what open(2) makes, and what dup(2), fork(2) and `SCM_RIGHTS` share.
//!
//! Each is a pipe. Programs hold its reading end, as the descriptor that they take for the file's; the writing end is here, and
//! is in error (poll(2)) when the last copy of the reading end has gone, however that has happened. Most pipes are
//! [named ones](crate::named_pipes), which stand for another description afterwards.

use crate::error::{Result, errno};
use crate::named_pipes::NamedPipe;
use crate::shared::Position;
use crate::sys::FileId;
use aze_client::{Access, File};
use aze_handles::Dir;
use aze_io::sync::{Mutex, RwLock};
use aze_proto::attr::{Attr, FileKind};
use aze_proto::ids::Ino;
use aze_proto::name::Name;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// Flags that F_SETFL changes (fcntl(2)).
const SETTABLE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;

/// What a description is open for.
pub enum Kind {
    /// A regular file.
    File(Arc<File>),
    /// A directory: the open of the servers, and how far it has been read.
    Directory(Arc<File>, Box<Dir>),
    /// Only a place, and no file that could be read: `O_PATH`.
    Place,
}

/// Where an inode was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedAt {
    /// The path in the volume, without links, `.` and `..`.
    pub path: Vec<u8>,
    /// The directory that has its name, and the name.
    pub entry: Option<(Ino, Name)>,
}

/// What stands for a description.
pub enum Pipe {
    /// The writing end of a pipe that ends with it.
    Own(OwnedFd, FileId),
    /// One that is given back.
    Named(Arc<NamedPipe>),
}

/// One open file description.
pub struct Description {
    /// Its number, which is also its number as an owner of locks.
    pub number: u64,
    /// Its purpose.
    pub kind: Kind,
    /// Its inode.
    pub ino: Ino,
    /// The inode's kind.
    pub file_kind: FileKind,
    /// It was made without a name, and linkat(2) is to give it none: `O_TMPFILE` with `O_EXCL`.
    pub stays_unnamed: bool,
    /// What open(2) was given, as F_GETFL tells it.
    flags: AtomicI32,
    /// Held during reads and writes that move it, so that they come one after the other.
    pub position: Position,
    /// Its path in the volume when it was opened, or last found to be elsewhere.
    pub place: Mutex<NamedAt>,
    /// Attributes as they were last known: a directory, or a place, may be removed meanwhile.
    last_attr: Mutex<Attr>,
    pipe: Pipe,
    /// Its end is told at once.
    pub is_watched_closely: AtomicBool,
}

impl Description {
    /// A description of an inode with these attributes.
    pub fn new(
        (number, position): (u64, Position),
        kind: Kind,
        attr: &Attr,
        flags: i32,
        place: NamedAt,
        pipe: Pipe,
    ) -> Description {
        let dropped = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_CLOEXEC;
        let unnamed = libc::O_TMPFILE | libc::O_EXCL;
        let stays_unnamed = flags & unnamed == unnamed;
        let flags = match kind {
            Kind::Place => flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW),
            // O_LARGEFILE, which the system adds on every machine of 64 bits.
            _ => flags & !dropped | 0o100_000,
        };
        Description {
            number,
            kind,
            ino: attr.ino,
            file_kind: attr.kind,
            stays_unnamed,
            flags: AtomicI32::new(flags),
            position,
            place: Mutex::new(place),
            last_attr: Mutex::new(attr.clone()),
            pipe,
            is_watched_closely: AtomicBool::new(false),
        }
    }

    /// The file that its pipe is.
    pub fn file_id(&self) -> FileId {
        match &self.pipe {
            Pipe::Own(_, file) => *file,
            Pipe::Named(pipe) => pipe.file,
        }
    }

    /// Its pipe if that is a named one.
    pub fn named_pipe(&self) -> Option<&Arc<NamedPipe>> {
        match &self.pipe {
            Pipe::Own(..) => None,
            Pipe::Named(pipe) => Some(pipe),
        }
    }

    /// The end that is in error when the last copy of the other one has gone.
    pub fn writing_end(&self) -> &OwnedFd {
        match &self.pipe {
            Pipe::Own(writing_end, _) => writing_end,
            Pipe::Named(pipe) => &pipe.writing_end,
        }
    }

    /// Its flags, as F_GETFL tells them.
    pub fn flags(&self) -> i32 {
        self.flags.load(SeqCst)
    }

    /// F_SETFL.
    pub fn set_flags(&self, flags: i32) {
        let _ = self.flags.fetch_update(SeqCst, SeqCst, |before| Some(before & !SETTABLE | flags & SETTABLE));
    }

    /// Notes attributes.
    pub fn tell(&self, attr: &Attr) {
        *self.last_attr.lock() = attr.clone();
    }

    /// Attributes of an inode that has been removed.
    pub fn removed_attr(&self) -> Attr {
        Attr { links: 0, ..self.last_attr.lock().clone() }
    }

    /// The open of the servers.
    ///
    /// # Errors
    /// EBADF for `O_PATH`.
    pub fn open(&self) -> Result<&Arc<File>> {
        match &self.kind {
            Kind::File(file) | Kind::Directory(file, _) => Ok(file),
            Kind::Place => Err(errno(libc::EBADF)),
        }
    }

    /// What an open file may be used for: nothing after an open with the fourth access mode, which wants the rights to read and to
    /// write, and is for ioctl(2) alone (open(2)).
    pub fn access(&self, file: &File) -> Access {
        match self.flags() & libc::O_ACCMODE {
            libc::O_ACCMODE => Access { read: false, write: false },
            _ => file.access(),
        }
    }

    /// A regular file that is open for reading.
    ///
    /// # Errors
    /// EBADF if it is not, EISDIR for a directory.
    pub fn for_reading(&self) -> Result<&Arc<File>> {
        match &self.kind {
            Kind::File(file) if self.access(file).read => Ok(file),
            Kind::Directory(..) => Err(errno(libc::EISDIR)),
            _ => Err(errno(libc::EBADF)),
        }
    }

    /// A regular file that is open for writing.
    ///
    /// # Errors
    /// EBADF if it is not.
    pub fn for_writing(&self) -> Result<&Arc<File>> {
        match &self.kind {
            Kind::File(file) if self.access(file).write => Ok(file),
            _ => Err(errno(libc::EBADF)),
        }
    }

    /// An open directory.
    ///
    /// # Errors
    /// ENOTDIR, and EBADF for `O_PATH`.
    pub fn directory(&self) -> Result<&Dir> {
        match &self.kind {
            Kind::Directory(_, dir) => Ok(dir),
            Kind::File(_) => Err(errno(libc::ENOTDIR)),
            Kind::Place => Err(errno(libc::EBADF)),
        }
    }
}

/// All open file descriptions.
#[derive(Default)]
pub struct Descriptions(RwLock<Known>);

#[derive(Default)]
struct Known {
    by_number: BTreeMap<u64, Arc<Description>>,
    /// By the file that the pipe is, which no other pipe is while this end is open.
    by_pipe: BTreeMap<FileId, u64>,
}

impl Descriptions {
    /// Adds one.
    pub fn insert(&self, description: Arc<Description>) {
        let mut known = self.0.write();
        known.by_pipe.insert(description.file_id(), description.number);
        known.by_number.insert(description.number, description);
    }

    /// The description of this number.
    ///
    /// # Errors
    /// EBADF.
    pub fn get(&self, number: u64) -> Result<Arc<Description>> {
        self.0.read().by_number.get(&number).cloned().ok_or(errno(libc::EBADF))
    }

    /// The number of the description with this pipe.
    pub fn of_pipe(&self, pipe: FileId) -> Option<u64> {
        self.0.read().by_pipe.get(&pipe).copied()
    }

    /// Takes those of these numbers out that are there.
    pub fn remove(&self, numbers: &[u64]) -> Vec<Arc<Description>> {
        let mut known = self.0.write();
        let removed: Vec<_> = numbers.iter().filter_map(|number| known.by_number.remove(number)).collect();
        for description in &removed {
            known.by_pipe.remove(&description.file_id());
        }
        removed
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.read().by_number.is_empty()
    }
}
