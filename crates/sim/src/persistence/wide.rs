//! One more client of a persistent volume: hard links, extended attributes, modes, holes, locks and times.
//!
//! It has a few files, made and synced before anything else, whose first name stays. For each name, for
//! the attribute, the mode and each block it keeps what there must be and what there may be.

use super::Trouble;
use crate::cluster::{CHUNK_BITS, Cluster};
use crate::work::{Board, ROOT};
use aze_client::{Access, Client, File, Locked, Room};
use aze_io::sim::SimRng;
use aze_io::sync::Mutex;
use aze_proto::attr::{Change, XattrHow};
use aze_proto::message::{LockMode, LockSpace, LockSpec};
use aze_proto::{Attr, Code, Failure, FileKind, Ino, Name, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of files.
const FILES: usize = 4;

/// Bytes that are written, punched and compared as one.
const BLOCK_BYTES: usize = 8 << 10;

/// Blocks of a file: three chunks.
const BLOCKS: usize = (3 << CHUNK_BITS) / BLOCK_BYTES;

/// The attribute.
const ATTRIBUTE: &[u8] = b"user.version";

const READ_WRITE: Access = Access { read: true, write: true };

/// Something with several states.
#[derive(Clone, Debug)]
struct Thing<T> {
    now: T,
    /// The states in which it may be found.
    may: BTreeSet<T>,
}

impl<T: Clone + Ord> Thing<T> {
    fn new(now: T) -> Thing<T> {
        Thing { may: BTreeSet::from([now.clone()]), now }
    }

    fn becomes(&mut self, now: T) {
        self.may.insert(now.clone());
        self.now = now;
    }

    fn settle(&mut self) {
        *self = Thing::new(self.now.clone());
    }
}

struct Wide {
    ino: Ino,
    /// Names besides the first, and whether they are there.
    names: BTreeMap<Vec<u8>, Thing<bool>>,
    attribute: Thing<Option<u32>>,
    mode: Thing<u32>,
    blocks: Vec<Thing<u8>>,
    /// The latest change of data that was seen, and the latest that must not be lost.
    seen: Time,
    kept: Time,
}

impl Wide {
    fn note_time(&mut self, attr: &Attr) -> Result<(), String> {
        if attr.mtime < self.seen {
            return Err(format!("a file's time goes back from {:?} to {:?}", self.seen, attr.mtime));
        }
        self.seen = attr.mtime;
        Ok(())
    }

    fn settle(&mut self) {
        self.names.values_mut().for_each(Thing::settle);
        self.names.retain(|_, is_there| is_there.now);
        self.attribute.settle();
        self.mode.settle();
        self.blocks.iter_mut().for_each(Thing::settle);
        self.kept = self.seen;
    }
}

/// All that this client knows, over all lives.
#[derive(Default)]
pub(super) struct WideBook {
    dir: Option<Ino>,
    files: Vec<Wide>,
    last: u32,
}

fn block(version: u8) -> Vec<u8> {
    vec![version; BLOCK_BYTES]
}

fn text(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("letters and digits are a name")
}

/// Makes the files.
pub(super) async fn begin(client: &Arc<Client>, book: &Mutex<WideBook>) -> Result<(), Failure> {
    let new = crate::work::shared::new_file(FileKind::Directory, true);
    let dir = client.create(&ROOT, Ino::ROOT, &text("wide"), &new).await?.attr.ino;
    let mut files = Vec::new();
    for number in 0..FILES {
        let new = crate::work::shared::new_file(FileKind::File, true);
        let ino = client.create(&ROOT, dir, &text(&format!("first{number}")), &new).await?.attr.ino;
        let file = client.open(&ROOT, ino, READ_WRITE).await?;
        file.write(0, &block(1).repeat(BLOCKS)).await?;
        file.sync().await?;
        file.close().await?;
        let attr = client.getattr(&ROOT, ino).await?;
        files.push(Wide {
            ino,
            names: BTreeMap::new(),
            attribute: Thing::new(None),
            mode: Thing::new(attr.mode),
            blocks: vec![Thing::new(1); BLOCKS],
            seen: attr.mtime,
            kept: attr.mtime,
        });
    }
    *book.lock() = WideBook { dir: Some(dir), files, last: 0 };
    Ok(())
}

/// Works until its node dies. `lasts`: acknowledged changes are kept.
pub(super) async fn work(
    lasts: bool,
    trouble: Trouble,
    mut rng: SimRng,
    client: Arc<Client>,
    book: Arc<Mutex<WideBook>>,
    board: Arc<Board>,
) {
    let inos: Vec<Ino> = book.lock().files.iter().map(|file| file.ino).collect();
    let mut open = Vec::new();
    for ino in inos {
        match client.open(&ROOT, ino, READ_WRITE).await {
            Ok(file) => open.push(file),
            Err(failure) => return board.violation(format!("wide: open: {failure}")),
        }
    }
    loop {
        let which = rng.below(open.len() as u64) as usize;
        let one =
            One { lasts, trouble: &trouble, rng: &mut rng, client: &client, book: &book, file: &open[which], which };
        match one.step().await {
            Ok(()) => {}
            Err(failure) if failure.code == Code::NoSpace => return,
            Err(failure) => return board.violation(format!("wide: {:?}: {failure}", failure.code)),
        }
    }
}

/// One step on one file.
struct One<'a> {
    lasts: bool,
    trouble: &'a Trouble,
    rng: &'a mut SimRng,
    client: &'a Arc<Client>,
    book: &'a Mutex<WideBook>,
    file: &'a Arc<File>,
    which: usize,
}

impl One<'_> {
    fn change<T>(&self, change: impl FnOnce(&mut Wide) -> T) -> T {
        change(&mut self.book.lock().files[self.which])
    }

    async fn step(mut self) -> Result<(), Failure> {
        let step = match self.rng.below(100) {
            89.. if !self.rng.chance(self.trouble.sync_ppm()) => 50,
            step => step,
        };
        match step {
            0..=17 => self.link().await?,
            18..=27 => self.unlink().await?,
            28..=34 => self.rename().await?,
            35..=44 => self.attribute().await?,
            45..=49 => self.mode().await?,
            50..=64 => self.write().await?,
            65..=74 => self.punch().await?,
            75..=84 => self.locked().await?,
            85..=88 => self.look_at_time().await?,
            _ => self.file.sync().await?,
        }
        if self.lasts {
            self.book.lock().files.iter_mut().for_each(Wide::settle);
        } else if step >= 89 {
            self.change(Wide::settle);
        }
        Ok(())
    }

    async fn link(&mut self) -> Result<(), Failure> {
        let (dir, name) = {
            let mut book = self.book.lock();
            book.last += 1;
            (book.dir.unwrap_or(Ino::ROOT), format!("link{}", book.last))
        };
        let ino = self.change(|wide| {
            let mut thing = Thing::new(false);
            thing.becomes(true);
            wide.names.insert(name.as_bytes().to_vec(), thing);
            wide.ino
        });
        self.client.link(&ROOT, ino, dir, &text(&name)).await.map(drop)
    }

    async fn unlink(&mut self) -> Result<(), Failure> {
        let dir = self.book.lock().dir.unwrap_or(Ino::ROOT);
        let draw = self.rng.u64();
        let name = self.change(|wide| {
            let mut there: Vec<_> = wide.names.iter_mut().filter(|(_, is_there)| is_there.now).collect();
            let count = there.len().max(1);
            let (name, is_there) = there.get_mut(draw as usize % count)?;
            is_there.becomes(false);
            Some(name.clone())
        });
        let Some(name) = name else { return Ok(()) };
        self.client.unlink(&ROOT, dir, &Name::new(&name).expect("it was made as a name")).await
    }

    /// A name of this file takes the place of a name of another one.
    async fn rename(&mut self) -> Result<(), Failure> {
        let draw = self.rng.u64();
        let names = {
            let mut book = self.book.lock();
            let other = (self.which + 1 + draw as usize % (FILES - 1)) % FILES;
            let there =
                |wide: &Wide| wide.names.iter().find(|(_, is_there)| is_there.now).map(|(name, _)| name.clone());
            let names = there(&book.files[self.which]).zip(there(&book.files[other]));
            if let Some((from, to)) = &names {
                let mut was_there = |which: usize, name: &[u8]| {
                    book.files[which].names.entry(name.to_vec()).or_insert_with(|| Thing::new(false)).becomes(false);
                };
                was_there(self.which, from);
                was_there(other, to);
                was_there(self.which, to);
                if let Some(thing) = book.files[self.which].names.get_mut(to) {
                    thing.becomes(true);
                }
            }
            names.map(|(from, to)| (book.dir.unwrap_or(Ino::ROOT), from, to))
        };
        let Some((dir, from, to)) = names else { return Ok(()) };
        let name = |bytes: &[u8]| Name::new(bytes).expect("it was made as a name");
        self.client.rename(&ROOT, dir, &name(&from), dir, &name(&to), false).await
    }

    async fn mode(&mut self) -> Result<(), Failure> {
        let (mode, ino) = (0o600 | self.rng.below(0o100) as u32, self.change(|wide| wide.ino));
        self.change(|wide| wide.mode.becomes(mode));
        let change = Change { mode: Some(mode), ..Change::default() };
        self.client.setattr(&ROOT, ino, &change).await.map(drop)
    }

    /// Times of a file never go back, even if clocks do.
    async fn look_at_time(&mut self) -> Result<(), Failure> {
        let attr = self.client.getattr(&ROOT, self.change(|wide| wide.ino)).await?;
        self.change(|wide| wide.note_time(&attr)).map_err(|why| Failure::new(Code::Internal, why))
    }

    async fn attribute(&mut self) -> Result<(), Failure> {
        let (draw, ino) = (self.rng.below(1000) as u32, self.change(|wide| wide.ino));
        let has = self.change(|wide| wide.attribute.now.is_some());
        if has && draw < 200 {
            self.change(|wide| wide.attribute.becomes(None));
            return self.client.remove_xattr(&ROOT, ino, ATTRIBUTE).await;
        }
        self.change(|wide| wide.attribute.becomes(Some(draw)));
        self.client.set_xattr(&ROOT, ino, ATTRIBUTE, &draw.to_le_bytes(), XattrHow::Any).await
    }

    fn range(&mut self) -> (usize, usize) {
        let blocks = BLOCKS.min(self.trouble.file_bytes_max() as usize / BLOCK_BYTES);
        let first = self.rng.below(blocks as u64) as usize;
        (first, (first + self.rng.between(1, 9) as usize).min(blocks))
    }

    async fn write(&mut self) -> Result<(), Failure> {
        let (first, end) = self.range();
        let version = self.rng.between(2, 250) as u8;
        self.change(|wide| wide.blocks[first..end].iter_mut().for_each(|block| block.becomes(version)));
        self.file.write((first * BLOCK_BYTES) as u64, &block(version).repeat(end - first)).await.map(drop)
    }

    async fn punch(&mut self) -> Result<(), Failure> {
        let (first, end) = self.range();
        self.change(|wide| wide.blocks[first..end].iter_mut().for_each(|block| block.becomes(0)));
        let (start, len) = ((first * BLOCK_BYTES) as u64, ((end - first) * BLOCK_BYTES) as u64);
        self.file.make_room(Room::Hole, start, len, true).await
    }

    /// A write under a lock that no other client wants.
    async fn locked(&mut self) -> Result<(), Failure> {
        let lock = whole();
        if self.file.try_lock(&lock).await? != Locked::Granted {
            return Err(Failure::new(Code::Internal, "a lock that nobody else wants is not granted"));
        }
        self.write().await?;
        self.file.unlock(lock.space, lock.owner, lock.start, lock.end).await
    }
}

fn whole() -> LockSpec {
    LockSpec { space: LockSpace::Ranges, owner: 7, pid: 1, start: 0, end: u64::MAX, mode: LockMode::Exclusive }
}

/// Compares the files with the book, and records their state as the start of the next life.
pub(super) async fn look(cluster: &Arc<Cluster>, client: &Arc<Client>, book: &Mutex<WideBook>) -> Result<(), String> {
    let Some(dir) = book.lock().dir else { return Ok(()) };
    let mut entries: BTreeMap<Vec<u8>, Ino> = BTreeMap::new();
    for (name, ino, _) in cluster.servers().iter().flat_map(|server| server.entries_of(dir)) {
        entries.insert(name.as_bytes().to_vec(), ino);
    }
    let mut named = 0;
    for which in 0..FILES {
        let who = |what: String| format!("wide file {which}: {what}");
        let ino = book.lock().files[which].ino;
        let first = format!("first{which}");
        if entries.get(first.as_bytes()) != Some(&ino) {
            return Err(who("its first name is gone".into()));
        }
        let there: BTreeSet<Vec<u8>> =
            entries.iter().filter(|(_, other)| **other == ino).map(|(name, _)| name.clone()).collect();
        named += there.len();
        let failed = |failure: Failure| who(failure.to_string());
        let attr = client.getattr(&ROOT, ino).await.map_err(failed)?;
        if attr.links as usize != there.len() {
            return Err(who(format!("{} names and link count {}", there.len(), attr.links)));
        }
        let attribute = match client.get_xattr(&ROOT, ino, ATTRIBUTE).await {
            Ok(value) => Some(u32::from_le_bytes(value.try_into().map_err(|_| who("an attribute's length".into()))?)),
            Err(failure) if failure.code == Code::NoAttribute => None,
            Err(failure) => return Err(failed(failure)),
        };
        let file = client.open(&ROOT, ino, READ_WRITE).await.map_err(failed)?;
        let data = file.read(0, BLOCKS * BLOCK_BYTES + 1).await.map_err(failed)?;
        if data.len() != BLOCKS * BLOCK_BYTES {
            return Err(who(format!("{} bytes", data.len())));
        }
        // Locks end with their owners, and with the servers.
        if file.try_lock(&whole()).await.map_err(failed)? != Locked::Granted {
            return Err(who("somebody has it locked".into()));
        }
        file.close().await.map_err(failed)?;
        let mut book = book.lock();
        let wide = &mut book.files[which];
        for name in there.iter().filter(|name| name.as_slice() != first.as_bytes()) {
            if !wide.names.get(name).is_some_and(|thing| thing.may.contains(&true)) {
                return Err(who(format!("{} must not be there", String::from_utf8_lossy(name))));
            }
        }
        if let Some((name, _)) =
            wide.names.iter().find(|(name, thing)| !there.contains(*name) && !thing.may.contains(&false))
        {
            return Err(who(format!("{} is gone", String::from_utf8_lossy(name))));
        }
        if !wide.attribute.may.contains(&attribute) {
            return Err(who(format!("attribute {attribute:?} is none of {:?}", wide.attribute.may)));
        }
        if !wide.mode.may.contains(&attr.mode) {
            return Err(who(format!("mode {:o} is none of {:?}", attr.mode, wide.mode.may)));
        }
        // A lost change may have had a later time.
        wide.seen = wide.kept;
        wide.note_time(&attr).map_err(who)?;
        wide.kept = attr.mtime;
        (wide.attribute, wide.mode) = (Thing::new(attribute), Thing::new(attr.mode));
        wide.names =
            there.into_iter().filter(|name| *name != first.as_bytes()).map(|name| (name, Thing::new(true))).collect();
        for (number, (bytes, thing)) in data.chunks(BLOCK_BYTES).zip(&mut wide.blocks).enumerate() {
            if bytes.iter().any(|byte| *byte != bytes[0]) || !thing.may.contains(&bytes[0]) {
                return Err(who(format!("block {number} begins with {}, none of {:?}", bytes[0], thing.may)));
            }
            *thing = Thing::new(bytes[0]);
        }
    }
    if named != entries.len() {
        return Err(format!("wide: {} names, of which {named} lead to known files", entries.len()));
    }
    Ok(())
}
