//! A run's directory in a volume, without a mount: each process has a session of its own, which its ranks
//! share.

use super::ground::{Ground, Opened, Room};
use super::layout::{FOUND_PART, SMALL_FILE_BYTES, STAMP_FILE};
use super::link::Walked;
use crate::place::{Described, describe_native};
use crate::program::{Program, Session};
use aze_client::{Access, File, NewFile};
use aze_proto::FileKind;
use aze_proto::ids::Time;
use aze_proto::predicate::Predicate;
use aze_proto::wire::Blob;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::sync::{Arc, Mutex};

/// A directory of a volume.
pub struct OnVolume {
    session: Arc<dyn Session>,
    base: String,
    /// Whether the session ends with this.
    is_own: bool,
}

/// The ranks of one process: the session that they share, once one of them needs it.
#[derive(Default)]
pub struct Crowd {
    session: Mutex<Option<Arc<dyn Session>>>,
}

impl Crowd {
    /// Ends the session, if there is one; no rank uses it any more.
    pub fn end(&self) {
        if let Some(session) = self.session.lock().expect("nothing panics with this lock").take() {
            session.end();
        }
    }
}

impl OnVolume {
    /// Opens a session.
    pub fn connect(program: &dyn Program, volume: &str, base: &str) -> Outcome<OnVolume> {
        Ok(OnVolume { session: program.open(volume)?, base: format!("/{base}"), is_own: true })
    }

    /// Uses the session of the process.
    pub fn share(crowd: &Crowd, program: &dyn Program, volume: &str, base: &str) -> Outcome<OnVolume> {
        let mut shared = crowd.session.lock().expect("nothing panics with this lock");
        let session = match &*shared {
            Some(session) => session.clone(),
            None => shared.insert(program.open(volume)?).clone(),
        };
        Ok(OnVolume { session, base: format!("/{base}"), is_own: false })
    }

    fn at(&self, path: &str) -> String {
        if path.is_empty() { self.base.clone() } else { format!("{}/{path}", self.base) }
    }

    fn make(&self, path: &str, kind: FileKind, exclusive: bool) -> Outcome<Option<Arc<File>>> {
        let path = self.at(path);
        let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
        let open = (kind == FileKind::File).then_some(Access { read: false, write: true });
        let new = NewFile { kind, mode, rdev: 0, target: Vec::new(), exclusive, open, chunk_bits: 0, private: false };
        let made = self.session.client().create_path(self.session.who(), path.as_bytes(), &new);
        Ok(self.session.ask(format_args!("create aze:{path}"), made)?.file)
    }

    fn make_file(&self, path: &str, exclusive: bool) -> Outcome<Arc<File>> {
        let not_a_file = || Trouble::new(Exit::Caller, format!("open aze:{}: it is no regular file", self.at(path)));
        self.make(path, FileKind::File, exclusive)?.ok_or_else(not_a_file)
    }
}

impl Ground for OnVolume {
    fn begin(&self) -> Outcome<()> {
        self.make("", FileKind::Directory, true).map(drop)
    }

    fn make_dir(&self, path: &str) -> Outcome<()> {
        self.make(path, FileKind::Directory, true).map(drop)
    }

    fn make_stamp(&self) -> Outcome<u64> {
        let file = self.make_file(STAMP_FILE, true)?;
        Ok(file.attr().mtime.0)
    }

    fn create(&self, path: &str, contents: &[u8]) -> Outcome<()> {
        let file = self.make_file(path, true)?;
        if !contents.is_empty() {
            self.session.ask(format_args!("write aze:{}", self.at(path)), file.write(0, contents))?;
        }
        self.session.ask(format_args!("close aze:{}", self.at(path)), file.close())
    }

    fn stat(&self, path: &str) -> Outcome<u64> {
        let path = self.at(path);
        let found = self.session.client().resolve(self.session.who(), path.as_bytes(), true);
        Ok(self.session.ask(format_args!("stat aze:{path}"), found)?.size)
    }

    fn remove(&self, path: &str) -> Outcome<()> {
        let path = self.at(path);
        let removed = self.session.client().unlink_path(self.session.who(), path.as_bytes());
        self.session.ask(format_args!("remove aze:{path}"), removed)
    }

    fn open(&self, path: &str, write: bool) -> Outcome<Box<dyn Opened>> {
        let file = if write {
            self.make_file(path, false)?
        } else {
            let (access, path) = (Access { read: true, write: false }, self.at(path));
            let opened = self.session.client().open_path_with_contents(self.session.who(), path.as_bytes(), access);
            self.session.ask(format_args!("open aze:{path}"), opened)?
        };
        Ok(Box::new(VolumeFile { session: self.session.clone(), file, path: self.at(path) }))
    }

    fn sync(&self) -> Outcome<()> {
        // What a call has changed is with the servers when it returns; those with disks sync them.
        self.session.ask("synchronise the volume", self.session.client().sync(self.session.who()))
    }

    fn walk(&self, dir: &str, since_ns: u64) -> Outcome<Walked> {
        let path = self.at(dir);
        let predicate = Predicate {
            name: Some(Blob([b"*", FOUND_PART, b"*"].concat())),
            size_min: Some(SMALL_FILE_BYTES as u64),
            size_max: Some(SMALL_FILE_BYTES as u64),
            newer_than: Some(Time(since_ns)),
            ..Predicate::default()
        };
        let (client, who) = (self.session.client(), self.session.who());
        let mut found = 0;
        let mut count = |_| found += 1;
        self.session.ask(format_args!("search aze:{path}"), async {
            let root = client.resolve(who, path.as_bytes(), true).await?;
            client.find(who, root.ino, &predicate, &mut count).await
        })?;
        Ok(Walked { dirs: Vec::new(), looked: None, found })
    }

    fn room(&self, _program: &dyn Program) -> Outcome<Room> {
        let space = self.session.ask("ask for space", self.session.client().statfs())?;
        Ok(Room { bytes: space.capacity_bytes.saturating_sub(space.used_bytes), files: None })
    }

    fn described(&self) -> Outcome<Described> {
        Ok(describe_native(self.session.volume().durability.as_deref()))
    }

    fn is_memory(&self) -> Outcome<bool> {
        Ok(self.session.volume().durability.is_none())
    }

    fn remove_all(&self) -> Outcome<()> {
        self.session.remove_all("bench io500", self.base.as_bytes())
    }

    fn end(&self) {
        if self.is_own {
            self.session.end();
        }
    }
}

struct VolumeFile {
    session: Arc<dyn Session>,
    file: Arc<File>,
    path: String,
}

impl Opened for VolumeFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Outcome<()> {
        self.session.ask(format_args!("write aze:{}", self.path), self.file.write(offset, bytes))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        self.session.ask(format_args!("read aze:{}", self.path), self.file.read_as_opened(offset, buffer))
    }

    fn finish(self: Box<Self>) -> Outcome<()> {
        if self.file.access().write {
            self.session.ask(format_args!("synchronise aze:{}", self.path), self.file.sync())?;
        }
        self.session.ask(format_args!("close aze:{}", self.path), self.file.close())
    }
}
