//! The programs that use files while a stage brings them into the volume: they read, change, rename and remove the
//! copies, and make files of their own.
//!
//! Each has a directory. Before it changes a file it reads all of it: a name that it has not made has to lead to a
//! whole file of the source, and the program goes on from that file.

use super::place::Place;
use super::programs::{Known, NEVER, ROOT, Shared, Step};
use aze_client::{Access, Client, File, NewFile};
use aze_io::Io;
use aze_proto::attr::{Attr, Change, FileKind, SetTime, XattrHow};
use aze_proto::{Code, Failure, Ino, Name};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Names that a program gives in its directory.
const NAMES: u64 = 6;

/// Entries of a directory that it looks at.
const ENTRIES_MAX: usize = 64;

/// Bytes of a change, at most.
const BYTES_MAX: u64 = 70_000;

const BOTH: Access = Access { read: true, write: true };

/// A change of what a path leads to.
pub(super) struct Renaming {
    pub path: Vec<u8>,
    /// When it was answered.
    pub to: u64,
}

/// What the inodes of the volume have, as far as the programs know.
#[derive(Default)]
pub(super) struct Copies {
    /// By inode, from its contents when a program looked at it first.
    pub inodes: BTreeMap<u64, Known>,
    /// By inode, when its attributes were changed last.
    pub touched: BTreeMap<u64, u64>,
    pub renamings: Vec<Renaming>,
    /// Where files were to be made; it may not be known whether they were.
    pub made: BTreeSet<Vec<u8>>,
    /// Files of the source, whole, that were found under their names.
    pub found: u64,
}

impl Copies {
    /// Whether programs may have changed what a path leads to, at a moment that fits or later.
    pub fn is_renamed(&self, path: &[u8], is_late: impl Fn(u64) -> bool) -> bool {
        self.renamings.iter().any(|one| one.path == path && (one.to == NEVER || is_late(one.to)))
    }

    /// Whether no program has changed an inode, or was about to.
    pub fn is_untouched(&self, inode: u64) -> bool {
        let is_read_only = self.inodes.get(&inode).is_none_or(|known| known.contents.len() == 1);
        is_read_only && !self.touched.contains_key(&inode)
    }
}

/// Reads all of a file, and looks whether it has more.
pub(super) async fn read_all(file: &File, size: u64) -> Result<Vec<u8>, Failure> {
    file.read(0, size as usize + 1).await
}

/// A program at work.
pub(super) struct User {
    pub client: Arc<Client>,
    pub io: Io,
    /// The source.
    pub place: Place,
    pub model: Shared,
    pub me: usize,
    /// Its directory in the volume.
    pub dir: String,
}

impl User {
    fn random(&self, below: u64) -> u64 {
        self.io.random_u64() % below
    }

    fn now(&self) -> u64 {
        self.place.now_ns()
    }

    fn path(&self, name: &Name) -> Vec<u8> {
        aze_copy::tree::join(self.dir.as_bytes(), name.as_bytes())
    }

    /// A name of its own or of the source.
    fn name(&self) -> Name {
        let kind = if self.random(2) == 0 { "n" } else { "own" };
        Name::new(format!("{kind}{}", self.random(NAMES)).as_bytes()).expect("a proper name")
    }

    /// Notes that paths are about to lead elsewhere; gives where that stands.
    fn begin_renaming(&self, paths: &[&[u8]]) -> usize {
        let mut model = self.model.lock();
        let at = model.copies.renamings.len();
        model.copies.renamings.extend(paths.iter().map(|path| Renaming { path: path.to_vec(), to: NEVER }));
        at
    }

    /// Notes that they do, or never will.
    fn end_renaming(&self, at: usize, count: usize) {
        let now = self.now();
        self.model.lock().copies.renamings[at..at + count].iter_mut().for_each(|one| one.to = now);
    }

    /// Opens a file, and reads all of it. None if it is gone, or is no file.
    async fn look(&self, dir: Ino, name: &Name) -> Result<Option<(Attr, Arc<File>)>, Failure> {
        let opened = async {
            let attr = self.client.lookup(&ROOT, dir, name).await?;
            match attr.kind {
                FileKind::File => {
                    let file = self.client.open(&ROOT, attr.ino, BOTH).await?;
                    Ok(Some((self.client.getattr(&ROOT, attr.ino).await?, file)))
                }
                FileKind::Symlink => {
                    let target = self.client.readlink(&ROOT, attr.ino).await?;
                    self.judge(name, &target);
                    Ok(None)
                }
                _ => Ok(None),
            }
        };
        let opened: Result<Option<(Attr, Arc<File>)>, Failure> = opened.await;
        let (attr, file) = match opened {
            Err(failure) if matches!(failure.code, Code::NotFound | Code::Stale) => return Ok(None),
            opened => match opened? {
                Some(opened) => opened,
                None => return Ok(None),
            },
        };
        let began = self.now();
        let bytes = read_all(&file, attr.size).await?;
        let path = self.path(name);
        let mut model = self.model.lock();
        match model.copies.inodes.get(&attr.ino.0) {
            Some(known) if known.had_since(began, super::hash_of(&bytes)) => {}
            Some(_) => {
                let text =
                    format!("{}: a program finds other bytes than it has written", String::from_utf8_lossy(&path));
                model.wrong.push(text);
            }
            None => {
                let is_new = bytes.is_empty() && model.copies.made.contains(&path);
                drop(model);
                if !is_new {
                    self.judge(name, &bytes);
                }
                model = self.model.lock();
                model.copies.inodes.insert(attr.ino.0, Known::there(path, bytes, self.me));
            }
        }
        Ok(Some((attr, file)))
    }

    /// A file with a name is whole.
    fn judge(&self, name: &Name, bytes: &[u8]) {
        let is_whole = self.place.ever_had(bytes);
        let mut model = self.model.lock();
        model.copies.found += 1;
        if !is_whole {
            let (path, len) = (self.path(name), bytes.len());
            let text = format!("{}: {len} bytes that no file of the source ever had", String::from_utf8_lossy(&path));
            model.wrong.push(text);
        }
    }

    fn begin(&self, ino: Ino, change: impl FnOnce(&mut Vec<u8>)) {
        let now = self.now();
        if let Some(known) = self.model.lock().copies.inodes.get_mut(&ino.0) {
            known.begin(now, change);
        }
    }

    fn done(&self, ino: Ino) {
        let now = self.now();
        let mut model = self.model.lock();
        model.changes += 1;
        if let Some(known) = model.copies.inodes.get_mut(&ino.0) {
            known.done(now);
        }
    }

    fn len(&self, ino: Ino) -> u64 {
        self.model.lock().copies.inodes.get(&ino.0).map_or(0, Known::len)
    }

    fn is_certain(&self, ino: Ino) -> bool {
        self.model.lock().copies.inodes.get(&ino.0).is_some_and(|known| known.is_certain)
    }

    async fn write(&self, file: &File, offset: u64, len: u64) -> Step {
        let data: Vec<u8> = self.io.random_u64().to_le_bytes().iter().copied().cycle().take(len as usize).collect();
        // In one chunk, so that one request changes the bytes, and a longer write has two parts at most.
        let chunk = 1 << crate::cluster::CHUNK_BITS;
        let data = &data[..len.min(chunk - offset % chunk) as usize];
        self.begin(file.ino(), |bytes| {
            let offset = offset as usize;
            bytes.resize(bytes.len().max(offset + data.len()), 0);
            bytes[offset..offset + data.len()].copy_from_slice(data);
        });
        file.write(offset, data).await?;
        self.done(file.ino());
        Ok(())
    }

    /// Changes the bytes of a file; sometimes it has the time that it had before, then.
    async fn change(&self, attr: &Attr, file: &File) -> Step {
        let (ino, size) = (file.ino(), self.len(file.ino()));
        match self.random(4) {
            0 => {
                let cut = self.random(size + 2);
                self.begin(ino, |bytes| bytes.resize(cut as usize, 0));
                self.client.truncate(&ROOT, ino, cut, Some(file)).await?;
                self.done(ino);
            }
            1 => self.write(file, size, 1 + self.random(2000)).await?,
            _ if size > 0 => {
                let offset = self.random(size);
                self.write(file, offset, 1 + self.random((size - offset).min(BYTES_MAX))).await?;
            }
            _ => {}
        }
        if self.random(2) == 0 {
            let time = SetTime::To { time: attr.mtime };
            self.set(ino, &Change { mtime: Some(time), ..Change::default() }).await?;
        }
        Ok(())
    }

    async fn set(&self, ino: Ino, change: &Change) -> Step {
        self.model.lock().copies.touched.insert(ino.0, NEVER);
        self.client.setattr(&ROOT, ino, change).await?;
        let now = self.now();
        self.model.lock().copies.touched.insert(ino.0, now);
        Ok(())
    }

    async fn make(&self, dir: Ino) -> Step {
        let name = self.name();
        let path = self.path(&name);
        self.model.lock().copies.made.insert(path.clone());
        let new = NewFile {
            kind: FileKind::File,
            mode: 0o600,
            rdev: 0,
            target: Vec::new(),
            exclusive: true,
            open: Some(BOTH),
            chunk_bits: 0,
            private: false,
        };
        let at = self.begin_renaming(&[&path]);
        let created = self.client.create(&ROOT, dir, &name, &new).await;
        if created.as_ref().is_ok() || created.as_ref().is_err_and(|failure| failure.code == Code::Exists) {
            self.end_renaming(at, 1);
        }
        let created = created?;
        let ino = created.attr.ino;
        let mut known = Known::there(path, Vec::new(), self.me);
        // It is no copy: its contents are the program's.
        known.begin(self.now(), |_| {});
        known.done(self.now());
        self.model.lock().copies.inodes.insert(ino.0, known);
        let Some(file) = created.file else { return Ok(()) };
        self.write(&file, 0, 1 + self.random(BYTES_MAX)).await?;
        file.close().await
    }

    async fn rename(&self, dir: Ino, from: &Name) -> Step {
        let to = self.name();
        let (old, new) = (self.path(from), self.path(&to));
        let at = self.begin_renaming(&[&old, &new]);
        let replaces_none = self.random(2) == 0;
        let renamed = self.client.rename(&ROOT, dir, from, dir, &to, replaces_none).await;
        if renamed.is_ok()
            || renamed.as_ref().is_err_and(|failure| matches!(failure.code, Code::Exists | Code::NotFound))
        {
            self.end_renaming(at, 2);
        }
        renamed
    }

    async fn remove(&self, dir: Ino, name: &Name) -> Step {
        let path = self.path(name);
        let at = self.begin_renaming(&[&path]);
        let removed = self.client.unlink(&ROOT, dir, name).await;
        if removed.is_ok() || removed.as_ref().is_err_and(|failure| failure.code == Code::NotFound) {
            self.end_renaming(at, 1);
        }
        removed
    }

    async fn step(&self) -> Step {
        let dir = self.client.resolve(&ROOT, self.dir.as_bytes(), true).await?.ino;
        if self.random(10) == 0 {
            return self.make(dir).await;
        }
        let listing = self.client.list(&ROOT, dir, 0, ENTRIES_MAX, false).await?;
        let mut names: Vec<Name> = listing.entries.into_iter().map(|entry| entry.name).collect();
        names.retain(|name| !name.as_bytes().starts_with(b"."));
        if names.is_empty() {
            return Ok(());
        }
        let name = &names[self.random(names.len() as u64) as usize];
        let Some((attr, file)) = self.look(dir, name).await? else { return Ok(()) };
        if !self.is_certain(attr.ino) {
            return file.close().await;
        }
        let done = match self.random(10) {
            0..=3 => self.change(&attr, &file).await,
            4 => self.rename(dir, name).await,
            5 => self.remove(dir, name).await,
            6 => {
                let mode = Some(0o600 + self.random(0o77) as u32);
                self.set(attr.ino, &Change { mode, ..Change::default() }).await
            }
            7 => {
                self.model.lock().copies.touched.insert(attr.ino.0, NEVER);
                let value = self.io.random_u64().to_le_bytes();
                self.client.set_xattr(&ROOT, attr.ino, b"user.k", &value, XattrHow::Any).await
            }
            _ => Ok(()),
        };
        done.and(file.close().await)
    }

    /// Works until the run is over.
    pub async fn work(self) {
        while !self.model.lock().is_over {
            // A program may go on after an error.
            let _ = self.step().await;
            let pause = if self.random(4) == 0 { self.random(300) } else { self.random(30) };
            self.io.sleep(Duration::from_millis(pause)).await;
        }
    }
}
