//! One task writes, truncates and in the end perhaps unlinks a file of its own; others read it.

use super::{FileSlot, ROOT, Worker};
use crate::bytes::{Bytes, Change, WriteId, data_of};
use crate::cluster::CHUNK_BITS;
use aze_client::{Access, File, NewFile, Room};
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure, FileKind, Ino, Name};
use std::sync::Arc;

/// The directory of these files.
pub const FILES_DIR: &[u8] = b"/files";

/// Longest file: so many chunks.
const CHUNKS_MAX: u64 = 6;

/// Chunk size, as an exponent, of files that are written to in large pieces.
const LARGE_CHUNK_BITS: u8 = 18;

const READ_WRITE: Access = Access { read: true, write: true };
const READ: Access = Access { read: true, write: false };

/// Where a file is.
pub fn path_of(number: usize) -> Vec<u8> {
    [FILES_DIR, format!("/f{number}").as_bytes()].concat()
}

/// Writes file `number`, reads it back and checks the bytes.
pub async fn write(mut worker: Worker, number: usize, ops: u64) {
    let path = path_of(number);
    let bytes = Arc::new(Mutex::new(Bytes::default()));
    worker.board.files.lock().push(FileSlot { path: path.clone(), bytes: bytes.clone() });
    let Some(file) = create(&mut worker, &path).await else {
        bytes.lock().unlinked = true;
        return;
    };
    let mut writer = Writer { worker: &mut worker, file, bytes, path, next: 1 };
    for _ in 0..ops {
        writer.worker.think().await;
        writer.step().await;
    }
    if writer.worker.rng.chance(300_000) {
        writer.unlink_while_open().await;
    }
    let (worker, file) = (&writer.worker, &writer.file);
    // A close that fails leaves the file open until the session ends, which is checked.
    let _ = worker.call(|| "close".into(), file.close()).await;
}

async fn create(worker: &mut Worker, path: &[u8]) -> Option<Arc<File>> {
    let (parent, name) =
        worker.call(|| "resolve_parent".into(), worker.client.resolve_parent(&ROOT, path)).await.ok()?;
    let new = NewFile {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
        target: Vec::new(),
        exclusive: true,
        open: Some(READ_WRITE),
        chunk_bits: if worker.board.large_chunks() { LARGE_CHUNK_BITS } else { 0 },
        private: false,
    };
    let name: Name = name;
    if worker.rng.chance(250_000) {
        return create_and_name(worker, parent, &name).await;
    }
    let made = worker.call(|| format!("create {name}"), worker.client.create(&ROOT, parent, &name, &new)).await;
    match made {
        Ok(created) if created.created && created.file.is_some() => created.file,
        Ok(_) => {
            worker.board.violation(format!("{}: creating {name} gave no open file", worker.who));
            None
        }
        Err(failure) => {
            if failure.code == Code::Exists {
                worker.board.violation(format!("{}: creating {name}, which nobody else does: {failure}", worker.who));
            }
            None
        }
    }
}

/// Makes a file without a name, writes to it perhaps, and gives it its name; or lets go of it.
async fn create_and_name(worker: &mut Worker, parent: Ino, name: &Name) -> Option<Arc<File>> {
    let making = worker.client.create_unnamed(&ROOT, parent, 0o644, READ_WRITE);
    let (attr, file) = worker.call(|| format!("create unnamed for {name}"), making).await.ok()?;
    if attr.links != 0 {
        worker.board.violation(format!("{}: a file without a name has {} links", worker.who, attr.links));
    }
    if worker.rng.chance(200_000) {
        // Its only open: the file goes.
        return None;
    }
    worker.think().await;
    let linked = worker.call(|| format!("name it {name}"), worker.client.link(&ROOT, attr.ino, parent, name)).await;
    match linked {
        Ok(attr) if attr.links == 1 => Some(file),
        Ok(attr) => {
            worker.board.violation(format!("{}: {name} is the first name of {}", worker.who, attr.links));
            None
        }
        Err(failure) => {
            if failure.code == Code::NotFound && !worker.board.mix().loses_answers() {
                worker
                    .board
                    .violation(format!("{}: a file without a name cannot be named {name}: {failure}", worker.who));
            }
            None
        }
    }
}

struct Writer<'a> {
    worker: &'a mut Worker,
    file: Arc<File>,
    bytes: Arc<Mutex<Bytes>>,
    path: Vec<u8>,
    next: WriteId,
}

impl Writer<'_> {
    async fn step(&mut self) {
        let size = self.bytes.lock().size_max();
        let longest = CHUNKS_MAX << CHUNK_BITS;
        match self.worker.rng.below(100) {
            0..=19 if self.worker.board.large_chunks() => {
                let unit = if self.worker.rng.chance(500_000) { 1 << CHUNK_BITS } else { 1 };
                let offset = self.worker.rng.below((size + 70_000).min(longest)) / unit * unit;
                let len = self.worker.rng.between(1 << CHUNK_BITS, longest);
                self.write(offset, len).await;
            }
            0..=39 => {
                let offset = self.worker.rng.below((size + 5000).min(longest));
                let len = self.worker.rng.between(1, 6000);
                self.write(offset, len).await;
            }
            40..=44 => {
                let offset = self.worker.rng.below((size + 5000).min(longest));
                let len = self.worker.rng.between(1, 200_000);
                let (room, keep_size) = (self.worker.rng.below(3), self.worker.rng.chance(500_000));
                self.make_room([Room::Reserved, Room::Zeroed, Room::Hole][room as usize], offset, len, keep_size).await;
            }
            45..=54 => {
                let offset = self.worker.rng.below((size + 70_000).min(longest));
                let len = self.worker.rng.between(1, 200_000);
                self.write(offset, len).await;
            }
            55..=64 => {
                let size = self.worker.rng.below(size + 1);
                self.truncate(size).await;
            }
            65..=69 => {
                let size = self.worker.rng.between(size, (size + 100_000).min(longest).max(size));
                self.truncate(size).await;
            }
            70..=84 => {
                let offset = self.worker.rng.below(size + 1);
                let len = self.worker.rng.between(1, 200_000) as usize;
                self.read_back(offset, len).await;
            }
            85..=87 => self.stat().await,
            88..=89 => {
                let (offset, hole) = (self.worker.rng.below(size + 1), self.worker.rng.chance(500_000));
                self.seek(offset, hole).await;
            }
            90..=94 => self.open_again().await,
            _ => {
                let (worker, file) = (&self.worker, &self.file);
                // Nothing is promised by a flush that fails.
                let _ = worker.call(|| "flush".into(), file.flush()).await;
            }
        }
    }

    async fn write(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(CHUNKS_MAX << CHUNK_BITS);
        let id = self.next;
        self.next += 1;
        let data = data_of(id, offset, (end - offset) as usize);
        let change = Change::Write { id, offset, end };
        self.bytes.lock().begin(change);
        let result =
            self.worker.call(|| format!("{} {change:?}", text(&self.path)), self.file.write(offset, &data)).await;
        self.settle(change, result);
    }

    async fn make_room(&mut self, room: Room, offset: u64, len: u64, keep_size: bool) {
        let end = (offset + len).min(CHUNKS_MAX << CHUNK_BITS);
        let change = match room {
            Room::Reserved => Change::Grow { end: if keep_size { 0 } else { end } },
            Room::Zeroed => Change::Zero { offset, end, grows: !keep_size },
            Room::Hole => Change::Zero { offset, end, grows: false },
        };
        self.bytes.lock().begin(change);
        let making = self.file.make_room(room, offset, end - offset, keep_size);
        let result =
            self.worker.call(|| format!("{} {room:?} {offset}..{end} {change:?}", text(&self.path)), making).await;
        self.settle(change, result);
    }

    /// Bytes that a search for data passes over must be zeros, and so must the byte where a hole is found.
    async fn seek(&mut self, offset: u64, hole: bool) {
        let what = if hole { "hole" } else { "data" };
        let seeking = self.file.seek(offset, hole);
        let result = self.worker.call(|| format!("{} {what} from {offset}", text(&self.path)), seeking).await;
        let bytes = self.bytes.lock();
        let wrong = match result {
            Ok(at) if hole => bytes.check_hole(at, at + 1),
            Ok(at) => bytes.check_hole(offset, at),
            Err(failure) if failure.code == Code::NotFound && !hole => bytes.check_hole(offset, u64::MAX),
            Err(_) => Ok(()),
        };
        if let Err(why) = wrong {
            self.worker.board.violation(format!("{} seeks {what} in {}: {why}", self.worker.who, text(&self.path)));
        }
    }

    async fn truncate(&mut self, size: u64) {
        let change = Change::Truncate { size };
        self.bytes.lock().begin(change);
        let through = self.worker.rng.chance(700_000).then_some(&*self.file);
        let worker = &self.worker;
        let call = worker.client.truncate(&ROOT, self.file.ino(), size, through);
        let result = worker.call(|| format!("{} {change:?}", text(&self.path)), call).await;
        if let Ok(attr) = &result
            && attr.size != size
        {
            worker.board.violation(format!("{}: {change:?} gave a length of {}", worker.who, attr.size));
        }
        self.settle(change, result.map(|_| ()));
    }

    /// What failed may have happened, in parts, unless the file is gone.
    fn settle(&self, change: Change, result: Result<(), Failure>) {
        match result {
            Ok(()) => self.bytes.lock().acknowledge(change),
            Err(failure)
                if matches!(failure.code, Code::NotFound | Code::Stale) && !self.worker.board.mix.loses_answers() =>
            {
                self.worker.board.violation(format!("{}: {change:?} on an open file: {failure}", self.worker.who));
            }
            Err(_) => {}
        }
    }

    async fn read_back(&mut self, offset: u64, len: usize) {
        let result = self
            .worker
            .call(|| format!("{} read {len} at {offset}", text(&self.path)), self.file.read(offset, len))
            .await;
        if let Ok(data) = result
            && let Err(why) = self.bytes.lock().check_read(offset, len, &data)
        {
            self.worker.board.violation(format!("{} reads {} back: {why}", self.worker.who, text(&self.path)));
        }
    }

    /// Opens the file once more, with the contents if it is small, changes it through the first
    /// open perhaps, and reads through the second: it must show what this client has done.
    async fn open_again(&mut self) {
        let (worker, ino) = (&self.worker, self.file.ino());
        let name = text(&self.path);
        let opening = worker.call(|| format!("{name} open again"), worker.client.open_with_contents(&ROOT, ino, READ));
        let Ok(file) = opening.await else { return };
        let size = self.bytes.lock().size_max();
        match self.worker.rng.below(4) {
            0 => self.write(size / 3, 2000).await,
            1 => self.truncate(size / 2).await,
            _ => {}
        }
        let mut data = vec![0; size as usize + 3000];
        let reading = file.read_as_opened(0, &mut data);
        let result = self.worker.call(|| format!("{name} read as opened"), reading).await;
        if let Ok(count) = result
            && let Err(why) = self.bytes.lock().check_read(0, data.len(), &data[..count])
        {
            self.worker.board.violation(format!("{} reads what came with {name}: {why}", self.worker.who));
        }
        // Closed in the background.
        drop(file);
    }

    async fn stat(&mut self) {
        let call = self.worker.client.getattr(&ROOT, self.file.ino());
        let result = self.worker.call(|| format!("{} getattr", text(&self.path)), call).await;
        if let Ok(attr) = result
            && let Err(why) = self.bytes.lock().check_size(attr.size)
        {
            self.worker.board.violation(format!("{} looks at {}: {why}", self.worker.who, text(&self.path)));
        }
    }

    async fn unlink_while_open(&mut self) {
        self.bytes.lock().unlinked = true;
        let worker = &self.worker;
        let Ok((parent, name)) = worker.client.resolve_parent(&ROOT, &self.path).await else { return };
        let gone = worker.call(|| format!("unlink {name}"), worker.client.unlink(&ROOT, parent, &name)).await;
        let size = self.bytes.lock().size_max();
        self.read_back(0, size as usize + 1).await;
        self.write(size / 2, 3000).await;
        self.read_back(0, size as usize + 3000).await;
        if gone.is_ok() {
            let found = self.worker.client.lookup(&ROOT, parent, &name).await;
            if found.is_ok() {
                self.worker.board.violation(format!("{}: {name} is there after its unlink", self.worker.who));
            }
        }
    }
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Reads file `number` again and again.
pub async fn read(mut worker: Worker, number: usize, ops: u64) {
    let path = path_of(number);
    for _ in 0..ops {
        worker.think().await;
        let Some(slot) = worker.board.files().into_iter().find(|slot| slot.path == path) else { continue };
        let size = slot.bytes.lock().size_max();
        let (offset, len) = (worker.rng.below(size + 1), worker.rng.between(1, 200_000) as usize);
        let whole = worker.rng.chance(300_000);
        let (offset, len) = if whole { (0, (CHUNKS_MAX << CHUNK_BITS) as usize) } else { (offset, len) };
        let written = slot.bytes.lock().is_written();
        if let Err(failure) = check(&worker, &slot, offset, len).await {
            missing(&worker, &slot, written, &failure);
        }
    }
}

/// A name that was acknowledged and not taken away must be there.
fn missing(worker: &Worker, slot: &FileSlot, written: bool, failure: &Failure) {
    let must_be_there = written && !slot.bytes.lock().unlinked;
    if must_be_there && matches!(failure.code, Code::NotFound | Code::Stale) {
        worker.board.violation(format!("{}: {} is not there: {failure}", worker.who, text(&slot.path)));
    }
}

/// Opens a file, compares length and bytes with its model, closes it.
///
/// # Errors
/// What the client said, if anything failed.
pub async fn check(worker: &Worker, slot: &FileSlot, offset: u64, len: usize) -> Result<(), Failure> {
    let (client, name) = (&worker.client, text(&slot.path));
    let before = slot.bytes.lock().snapshot();
    let attr = worker.call(|| format!("resolve {name}"), client.resolve(&ROOT, &slot.path, true)).await?;
    let file = worker.call(|| format!("open {name}"), client.open_with_contents(&ROOT, attr.ino, READ)).await?;
    // As it was when it was opened; the second time, as it is by then.
    let mut data = vec![0; len];
    let read = worker.call(|| format!("{name} read {len} at {offset}"), file.read_as_opened(offset, &mut data)).await;
    let data = read.map(|count| data[..count].to_vec());
    let between = slot.bytes.lock().snapshot();
    let again = worker.call(|| format!("{name} read again"), file.read(offset, len)).await;
    if let Ok(again) = &again
        && let Err(why) = slot.bytes.lock().since(between).check_read(offset, len, again)
    {
        worker.board.violation(format!("{} reads {name} again: {why}", worker.who));
    }
    let allowed = slot.bytes.lock().since(before);
    if let Err(why) = allowed.check_size(attr.size) {
        worker.board.violation(format!("{} finds {name} with {why}", worker.who));
    }
    if let Ok(data) = &data
        && let Err(why) = allowed.check_read(offset, len, data)
    {
        worker.board.violation(format!("{} reads {name}: {why}", worker.who));
    }
    let closed = worker.call(|| format!("close {name}"), file.close()).await;
    data.map(|_| ()).and(closed)
}
