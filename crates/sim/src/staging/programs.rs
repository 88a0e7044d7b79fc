//! The programs that use the volume while it is staged, and the contents that the files which they write may have.
//!
//! Each file has one program, which changes it by one request at a time and notes when it has begun and when it was
//! answered. So at any moment it is known what the file has, or which of two contents while a request is under way. The
//! programs leave a file alone once an answer is missing: it may have either for ever.

use super::place::Place;
use super::users::Copies;
use crate::cluster::CHUNK_BITS;
use aze_client::{Access, Client, File, NewFile};
use aze_io::Io;
use aze_io::sync::Mutex;
use aze_proto::attr::{Change, FileKind, Identity, XattrHow};
use aze_proto::{Code, Failure, Name};
use aze_receipt::{Hash, Sums};
use std::sync::Arc;
use std::time::Duration;

/// Root.
pub(super) static ROOT: Identity = Identity { uid: 0, gid: 0, groups: Vec::new() };

/// The directory of the volume that is staged.
pub(super) const INSIDE: &str = "/d";

/// Names in each program's directory.
const NAMES: usize = 5;

/// Chunks of a file in which a program writes in turn.
const APART_CHUNKS: u64 = 3;

const CHUNK: u64 = 1 << CHUNK_BITS;
const BOTH: Access = Access { read: true, write: true };

/// No end yet.
pub(super) const NEVER: u64 = u64::MAX;

/// What a file had, and between which moments it may have had that.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub from: u64,
    pub to: u64,
    pub hash: Hash,
}

/// A name of a file: between which moments it may have led there, and between which it surely did.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub path: Vec<u8>,
    pub from: u64,
    pub sure_from: u64,
    pub sure_to: u64,
    pub to: u64,
}

/// Why a file is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// Its program has removed it.
    Removed,
    /// The volume has given it up.
    Released,
}

/// A file, as far as it is known.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub contents: Vec<Content>,
    pub names: Vec<Named>,
    bytes: Vec<u8>,
    /// A symbolic link; its bytes are the target.
    pub is_link: bool,
    /// All requests were answered.
    pub is_certain: bool,
    pub gone: Option<Gone>,
    owner: usize,
    /// Between which moments its program surely had it open for writing.
    pub holds: Vec<Hold>,
}

/// A file is open for writing between these moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub from: u64,
    pub to: u64,
}

impl Known {
    /// A file that was there from the beginning.
    pub fn there(path: Vec<u8>, bytes: Vec<u8>, owner: usize) -> Known {
        let contents = vec![Content { from: 0, to: NEVER, hash: hash_of(&bytes) }];
        let names = vec![Named { path, from: 0, sure_from: 0, sure_to: NEVER, to: NEVER }];
        Known { contents, names, bytes, is_link: false, is_certain: true, gone: None, owner, holds: Vec::new() }
    }

    /// A new file; the answer to its creation is missing.
    fn new(path: Vec<u8>, bytes: Vec<u8>, is_link: bool, owner: usize, now: u64) -> Known {
        let contents = vec![Content { from: now, to: NEVER, hash: hash_of(&bytes) }];
        let names = vec![Named { path, from: now, sure_from: NEVER, sure_to: NEVER, to: NEVER }];
        Known { contents, names, bytes, is_link, is_certain: false, gone: None, owner, holds: Vec::new() }
    }

    /// Its names, if it is there and that is certain.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let names = self.names.iter().filter(|name| name.to == NEVER && name.sure_to == NEVER);
        names.filter(|_| self.is_certain && self.gone.is_none()).map(|name| &name.path[..])
    }

    /// The name that leads to it under a path.
    fn name_mut(&mut self, path: &[u8]) -> &mut Named {
        self.names.iter_mut().find(|name| name.path == path && name.to == NEVER).expect("it has this name")
    }

    /// Notes a change before it is asked for.
    pub fn begin(&mut self, now: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.clone();
        change(&mut self.bytes);
        let mut states = vec![self.bytes.clone()];
        if self.bytes.len() > before.len() {
            // Length and bytes are two requests, to two servers.
            let (mut long, mut short) = (before.clone(), self.bytes.clone());
            long.resize(self.bytes.len(), 0);
            short.truncate(before.len());
            states.splice(0..0, [long, short]);
        }
        let contents = states.iter().map(|bytes| Content { from: now, to: NEVER, hash: hash_of(bytes) });
        self.contents.extend(contents);
        self.is_certain = false;
    }

    /// Notes that it was done.
    pub fn done(&mut self, now: u64) {
        let last = self.contents.len() - 1;
        self.contents[..last].iter_mut().filter(|content| content.to == NEVER).for_each(|content| content.to = now);
        self.is_certain = true;
    }

    /// Its length, as far as it is known.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Contents that it may have now.
    pub fn has(&self, hash: Hash) -> bool {
        self.contents.iter().any(|content| content.to == NEVER && content.hash == hash)
    }
}

/// All files, as far as they are known, and the violations found.
#[derive(Default)]
pub(super) struct Model {
    pub files: Vec<Known>,
    pub wrong: Vec<String>,
    pub is_over: bool,
    /// Files that were found to be released.
    pub released: u64,
    pub changes: u64,
    /// Where files are staged in: what their copies have.
    pub copies: Copies,
}

impl Model {
    /// Programs that have ended, or servers that have forgotten their opens, hold files open no more.
    pub fn end_holds(&mut self, now: u64, of: Option<usize>) {
        let files = self.files.iter_mut().filter(|file| of.is_none_or(|owner| owner == file.owner));
        let holds = files.flat_map(|file| &mut file.holds);
        holds.filter(|hold| hold.to == NEVER).for_each(|hold| hold.to = now);
    }
}

pub(super) type Shared = Arc<Mutex<Model>>;

/// The hash of a file with these bytes, as receipts have it.
pub(super) fn hash_of(bytes: &[u8]) -> Hash {
    let mut sums = Sums::default();
    let chunks = bytes.chunks(aze_receipt::CHUNK_BYTES as usize);
    (0..).zip(chunks).for_each(|(chunk, bytes)| sums.add(chunk, bytes));
    sums.hash(bytes.len() as u64)
}

fn name(text: &[u8]) -> Name {
    Name::new(text).expect("a proper name")
}

/// A program at work.
pub(super) struct Program {
    pub client: Arc<Client>,
    pub io: Io,
    pub place: Place,
    pub model: Shared,
    /// Its number, which is also that of its directory.
    pub me: usize,
    /// The directory at the destination that has what the volume has in [`INSIDE`].
    pub outside: String,
    /// It makes names that are one where upper and lower case are not told apart, and long ones.
    pub is_odd: bool,
    /// It gives files several names, and makes symbolic links.
    pub links: bool,
    /// It holds files open for writing, for seconds.
    pub holds: bool,
    /// It writes to several chunks of a file in turn.
    pub writes_apart: bool,
}

/// Whether a step of a program was done; an error says that an answer is missing.
pub(super) type Step = Result<(), Failure>;

impl Program {
    fn dir(&self) -> String {
        format!("{INSIDE}/w{}", self.me)
    }

    fn random(&self, below: u64) -> u64 {
        self.io.random_u64() % below
    }

    fn now(&self) -> u64 {
        self.place.now_ns()
    }

    /// A path of this program's that no file of it has, or may have.
    fn free_path(&self) -> Option<Vec<u8>> {
        let number = self.random(NAMES as u64);
        let text = match self.is_odd {
            true if number == 0 => "N1".to_owned(),
            true if number == 2 => format!("n2-{}", "long".repeat(10)),
            _ => format!("n{number}"),
        };
        let path = format!("{}/{text}", self.dir()).into_bytes();
        let model = self.model.lock();
        let is_taken =
            model.files.iter().any(|file| file.names.iter().any(|name| name.path == path && name.to == NEVER));
        (!is_taken).then_some(path)
    }

    /// One of its files that is there, by one of its names.
    fn some_file(&self) -> Option<(usize, Vec<u8>)> {
        let model = self.model.lock();
        let mine = model.files.iter().enumerate().filter(|(_, file)| file.owner == self.me);
        let mine: Vec<_> =
            mine.flat_map(|(index, file)| file.paths().map(move |path| (index, path.to_vec()))).collect();
        drop(model);
        (!mine.is_empty()).then(|| mine[self.random(mine.len() as u64) as usize].clone())
    }

    /// Notes a change before it is asked for.
    fn begin(&self, file: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let now = self.now();
        self.model.lock().files[file].begin(now, change);
    }

    /// Notes that it was done.
    fn done(&self, file: usize) {
        let now = self.now();
        let mut model = self.model.lock();
        model.changes += 1;
        model.files[file].done(now);
    }

    /// The file is not there under its name, and only the volume can have taken it away.
    fn missing(&self, file: usize, path: &[u8]) {
        let outside = format!("{}{}", self.outside, String::from_utf8_lossy(&path[INSIDE.len()..]));
        let there = self.place.bytes_at(outside.as_bytes()).map(|bytes| hash_of(&bytes));
        let now = self.now();
        let mut model = self.model.lock();
        let known = &mut model.files[file];
        let names = known.paths().count();
        known.gone = Some(Gone::Released);
        // It may have gone long ago.
        let since = known.contents.last().map_or(0, |content| content.from);
        let name = known.name_mut(path);
        (name.to, name.sure_to) = (now, name.sure_from.max(since.min(name.sure_to)));
        let is_there = there.is_some_and(|hash| known.has(hash));
        let is_link = known.is_link;
        model.released += 1;
        if names > 1 || is_link {
            let text = format!("{}: it is gone, and has {names} names", String::from_utf8_lossy(path));
            model.wrong.push(text);
        }
        if !is_there {
            let text = format!(
                "{}: it is gone from the volume, and {outside} has not its bytes",
                String::from_utf8_lossy(path)
            );
            model.wrong.push(text);
        }
    }

    /// Opens a file; none if it is gone.
    async fn open(&self, file: usize, path: &[u8]) -> Result<Option<Arc<File>>, Failure> {
        let opened = async {
            let ino = self.client.resolve(&ROOT, path, false).await?.ino;
            self.client.open(&ROOT, ino, BOTH).await
        };
        match opened.await {
            Err(failure) if failure.code == Code::NotFound => {
                self.missing(file, path);
                Ok(None)
            }
            // It was released in between: the next look says so.
            Err(failure) if failure.code == Code::Stale => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Looks whether a file is there.
    pub async fn open_and_close(&self, file: usize, path: &[u8]) -> Step {
        match self.open(file, path).await? {
            Some(opened) => opened.close().await,
            None => Ok(()),
        }
    }

    /// Writes to a file, within a chunk.
    async fn write(&self, file: usize, opened: &File, offset: u64, len: u64) -> Step {
        let len = len.min(CHUNK - offset % CHUNK).max(1) as usize;
        let data: Vec<u8> = self.io.random_u64().to_le_bytes().iter().copied().cycle().take(len).collect();
        self.begin(file, |bytes| {
            let offset = offset as usize;
            bytes.resize(bytes.len().max(offset + len), 0);
            bytes[offset..offset + len].copy_from_slice(&data);
        });
        opened.write(offset, &data).await?;
        self.done(file);
        Ok(())
    }

    async fn make(&self) -> Step {
        let Some(path) = self.free_path() else { return Ok(()) };
        let now = self.now();
        let is_link = self.links && self.random(4) == 0;
        let target = if is_link { format!("to-{}", self.random(3)).into_bytes() } else { Vec::new() };
        let file = {
            let mut model = self.model.lock();
            model.files.push(Known::new(path.clone(), target.clone(), is_link, self.me, now));
            model.files.len() - 1
        };
        let new = NewFile {
            kind: if is_link { FileKind::Symlink } else { FileKind::File },
            mode: 0o644,
            rdev: 0,
            target,
            exclusive: true,
            open: (!is_link).then_some(BOTH),
            chunk_bits: 0,
            private: false,
        };
        let (parent, name) = self.client.resolve_parent(&ROOT, &path[..]).await?;
        let made = self.client.create(&ROOT, parent, &name, &new).await?;
        self.done(file);
        {
            let now = self.now();
            self.model.lock().files[file].names[0].sure_from = now;
        }
        let Some(opened) = made.file else { return Ok(()) };
        for part in 0..self.random(3) {
            self.write(file, &opened, part * CHUNK + self.random(2) * self.random(CHUNK / 2), 1 + self.random(CHUNK))
                .await?;
        }
        opened.close().await
    }

    async fn change(&self, file: usize, path: &[u8]) -> Step {
        let Some(opened) = self.open(file, path).await? else { return Ok(()) };
        let size = self.model.lock().files[file].bytes.len() as u64;
        match self.random(8) {
            0 => {
                let cut = self.random(size + size / 4 + 2);
                self.begin(file, |bytes| bytes.resize(cut as usize, 0));
                self.client.truncate(&ROOT, opened.ino(), cut, Some(&opened)).await?;
                self.done(file);
            }
            1 => self.write(file, &opened, size, 1 + self.random(2000)).await?,
            // As pages of a mapped file are written back.
            2..=4 => {
                for _ in 0..1 + self.random(20) {
                    self.write(file, &opened, self.random(size + 1), 64).await?;
                }
            }
            _ => self.write(file, &opened, self.random(size + 1), 1 + self.random(CHUNK)).await?,
        }
        opened.close().await
    }

    /// Writes to the beginning of a file, and then to chunks that are on other servers. If the clock of the first one is far ahead, these writes
    /// move no time of the file.
    async fn write_apart(&self, file: usize, path: &[u8]) -> Step {
        let (size, least) = (self.model.lock().files[file].len(), APART_CHUNKS * CHUNK);
        let Some(opened) = self.open(file, path).await? else { return Ok(()) };
        if size < least {
            self.write(file, &opened, least - 64, 64).await?;
        }
        self.write(file, &opened, self.random(CHUNK - 64), 64).await?;
        for number in 0..20 + self.random(60) {
            let chunk = 1 + number % (APART_CHUNKS - 1);
            self.write(file, &opened, chunk * CHUNK + self.random(CHUNK - 64), 64).await?;
        }
        opened.close().await
    }

    /// Opens a file, and writes to it from time to time.
    async fn hold(&self, file: usize, path: &[u8]) -> Step {
        // What ends all opens before this one is answered ends this one, too.
        self.model.lock().files[file].holds.push(Hold { from: NEVER, to: NEVER });
        let opened = self.open(file, path).await;
        if let Ok(Some(opened)) = &opened {
            self.last_hold(file, |hold, now| hold.from = now);
            let written = self.write_slowly(file, opened).await;
            self.last_hold(file, |hold, now| hold.to = hold.to.min(now));
            return written.and(opened.close().await);
        }
        self.last_hold(file, |hold, now| hold.to = hold.to.min(now));
        opened.map(drop)
    }

    fn last_hold(&self, file: usize, change: impl FnOnce(&mut Hold, u64)) {
        let now = self.now();
        if let Some(hold) = self.model.lock().files[file].holds.last_mut() {
            change(hold, now);
        }
    }

    async fn write_slowly(&self, file: usize, opened: &File) -> Step {
        for _ in 0..1 + self.random(6) {
            self.io.sleep(Duration::from_millis(self.random(700))).await;
            let size = self.model.lock().files[file].len();
            self.write(file, opened, self.random(size + 1), 1 + self.random(2000)).await?;
        }
        Ok(())
    }

    async fn rename(&self, file: usize, path: &[u8]) -> Step {
        let Some(new) = self.free_path() else { return Ok(()) };
        let now = self.now();
        {
            let mut model = self.model.lock();
            let known = &mut model.files[file];
            known.is_certain = false;
            known.name_mut(path).sure_to = now;
            known.names.push(Named { path: new.clone(), from: now, sure_from: NEVER, sure_to: NEVER, to: NEVER });
        }
        let (parent, from) = self.client.resolve_parent(&ROOT, path).await?;
        let to = name(new.rsplit(|byte| *byte == b'/').next().unwrap_or(&new));
        let renamed = self.client.rename(&ROOT, parent, &from, parent, &to, true).await;
        let now = self.now();
        let mut model = self.model.lock();
        let known = &mut model.files[file];
        match renamed {
            Ok(()) => {
                known.name_mut(path).to = now;
                known.name_mut(&new).sure_from = now;
                known.is_certain = true;
                Ok(())
            }
            Err(failure) if failure.code == Code::NotFound => {
                known.names.pop();
                known.name_mut(path).sure_to = NEVER;
                known.is_certain = true;
                drop(model);
                self.missing(file, path);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    async fn remove(&self, file: usize, path: &[u8]) -> Step {
        let now = self.now();
        {
            let mut model = self.model.lock();
            let known = &mut model.files[file];
            known.is_certain = false;
            known.name_mut(path).sure_to = now;
        }
        let (parent, from) = self.client.resolve_parent(&ROOT, path).await?;
        let removed = self.client.unlink(&ROOT, parent, &from).await;
        let now = self.now();
        let mut model = self.model.lock();
        let known = &mut model.files[file];
        match removed {
            Ok(()) => {
                known.name_mut(path).to = now;
                known.is_certain = true;
                if known.paths().next().is_none() {
                    known.gone = Some(Gone::Removed);
                }
                Ok(())
            }
            Err(failure) if failure.code == Code::NotFound => {
                known.name_mut(path).sure_to = NEVER;
                known.is_certain = true;
                drop(model);
                self.missing(file, path);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Gives a file a further name.
    async fn link(&self, file: usize, path: &[u8]) -> Step {
        let Some(new) = self.free_path() else { return Ok(()) };
        let now = self.now();
        {
            let mut model = self.model.lock();
            let known = &mut model.files[file];
            known.is_certain = false;
            known.names.push(Named { path: new.clone(), from: now, sure_from: NEVER, sure_to: NEVER, to: NEVER });
        }
        let linked = async {
            let ino = self.client.resolve(&ROOT, path, false).await?.ino;
            let (parent, name) = self.client.resolve_parent(&ROOT, &new[..]).await?;
            self.client.link(&ROOT, ino, parent, &name).await
        };
        let linked = linked.await;
        let now = self.now();
        let mut model = self.model.lock();
        let known = &mut model.files[file];
        match linked {
            Ok(_) => {
                known.name_mut(&new).sure_from = now;
                known.is_certain = true;
                Ok(())
            }
            Err(failure) if matches!(failure.code, Code::NotFound | Code::Stale) => {
                known.names.pop();
                known.is_certain = true;
                drop(model);
                if failure.code == Code::NotFound {
                    self.missing(file, path);
                }
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Changes what no line of a receipt is compared with.
    async fn attributes(&self, path: &[u8]) -> Step {
        let Ok(attr) = self.client.resolve(&ROOT, path, false).await else { return Ok(()) };
        let mode = Change { mode: Some(0o600 + self.random(0o77) as u32), ..Change::default() };
        match self.random(2) {
            0 => self.client.setattr(&ROOT, attr.ino, &mode).await.map(drop),
            _ => {
                let value = self.io.random_u64().to_le_bytes();
                self.client.set_xattr(&ROOT, attr.ino, b"user.k", &value, XattrHow::Any).await
            }
        }
    }

    /// Works until the run is over. What fails leaves a file that is left alone.
    pub async fn work(self) {
        while !self.model.lock().is_over {
            let chosen = self.some_file();
            let is_link = chosen.as_ref().is_some_and(|(file, _)| self.model.lock().files[*file].is_link);
            let step = match (self.random(12), chosen) {
                (6..=7, Some((file, path))) if self.links => self.link(file, &path).await,
                (8..=9, Some((file, path))) if self.holds && !is_link => self.hold(file, &path).await,
                (10..=11, Some((file, path))) if self.writes_apart && !is_link => self.write_apart(file, &path).await,
                (0..=2, _) | (_, None) => self.make().await,
                (3, Some((file, path))) => self.rename(file, &path).await,
                (4, Some((file, path))) => self.remove(file, &path).await,
                (5, Some((_, path))) => self.attributes(&path).await,
                (_, Some(_)) if is_link => Ok(()),
                (_, Some((file, path))) => self.change(file, &path).await,
            };
            // A program may go on after an error.
            let _ = step;
            let pause = if self.random(4) == 0 { self.random(400) } else { self.random(30) };
            self.io.sleep(Duration::from_millis(pause)).await;
        }
    }
}
