//! The proof of one file: the bytes that were read were there at one moment, and the bytes that were written were read back
//! from their storage, before the copy gets its name.
//!
//! The moment. The mark of the source is taken before the first byte is read and after the last one, and the attributes are
//! asked for between the last byte and the second mark. Equal marks mean that no byte has changed from the first to the
//! second, so all bytes were there when the attributes were asked for. If they differ nothing is said of the file: its copy
//! goes, and it is copied again.

use super::nodes::{Anew, Crew, Spread};
use super::sparse::{Chunk, Frontier};
use super::state::{Done, Journal, Unsynced, Version, line_of};
use crate::Watch;
use crate::tree::{GoneName, Meta, Print, ReadBack, Replaces, Source, Spot, Xattr};
use crate::workers::{Ends, Plan, Transfer, aligned_room, room, warn};
use aze_io::sync::Mutex;
use aze_proto::attr::FileKind;
use aze_receipt::line::{CHUNKS_MAX, What};
use aze_receipt::{CHUNK_BYTES, Hash, Object, Sums, when};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads that read one large file back, at most.
const READ_BACK_THREADS_MAX: u64 = 4;

/// A file of more bytes is read back by several threads.
const READ_BACK_ALONE_BYTES_MAX: u64 = 64 << 20;

/// What all copies of one attempt share.
pub struct Proof {
    /// Number of the attempt; temporary names carry it.
    pub attempt: String,
    serial: AtomicU64,
    /// Length of the destination's path, which paths of the receipt go on from.
    pub root_len: AtomicUsize,
    /// The objects proven so far, on disk.
    pub journal: Mutex<Journal>,
    /// Files that have changed while they were copied.
    pub again: Mutex<Vec<(Spot, Spot)>>,
    /// Files whose node was lost while it copied them.
    pub lost: Mutex<Vec<(Spot, Spot)>>,
    /// The nodes that copy and read back; none if this process does it.
    pub crew: Option<Arc<Crew>>,
    /// Objects copied, and bytes of the files among them.
    pub copied: (AtomicU64, AtomicU64),
    /// By paths of the receipt, what objects may replace at the destination; without it, anything.
    pub known: Option<Known>,
    /// By paths of the receipt, the sources that came from the places of their copies: no other file is copied there, as long as
    /// they may need what these places have.
    pub sources: BTreeMap<Vec<u8>, (u64, u64)>,
}

/// Files and links of the destination that the volume has taken from there or put there, by paths of the receipt.
pub type Known = Mutex<BTreeMap<Vec<u8>, Vec<Print>>>;

/// A file's mark and attributes before it was read, and the sums of the bytes read.
pub struct Began {
    mark: Vec<u64>,
    meta: Meta,
    sums: Mutex<Sums>,
    /// Where the threads that copy a file with holes go on.
    frontier: Frontier,
    /// Of a file that other nodes copy.
    pub spread: Option<Spread>,
}

/// A copy that was read back, how that was done, its mark, and its attributes.
type Stored = (Box<dyn Source>, ReadBack, Vec<u64>, Meta);

/// Nanoseconds since 1970, for people who read a receipt.
pub fn now() -> u64 {
    aze_io::threads::date_ns()
}

/// How temporary names of an attempt begin.
pub fn hidden_prefix(attempt: &str) -> String {
    format!(".aze-stage-{attempt}-")
}

impl Proof {
    /// Of an attempt that notes proven objects in `journal`.
    pub fn new(
        attempt: String,
        root_len: usize,
        journal: Journal,
        known: Option<Known>,
        sources: BTreeMap<Vec<u8>, (u64, u64)>,
        crew: Option<Arc<Crew>>,
    ) -> Proof {
        let (serial, root_len) = (AtomicU64::new(0), root_len.into());
        let (journal, again, lost, copied) =
            (Mutex::new(journal), Mutex::default(), Mutex::default(), Default::default());
        Proof { attempt, serial, root_len, journal, again, lost, crew, copied, known, sources }
    }

    /// A temporary name that nothing else has.
    pub fn hidden(&self) -> Vec<u8> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        format!("{}{serial}", hidden_prefix(&self.attempt)).into_bytes()
    }

    /// What the object of a path at the destination may replace.
    pub fn replaces(&self, path: &[u8]) -> Replaces {
        let Some(known) = &self.known else { return Replaces::Anything };
        Replaces::Only(known.lock().get(&self.relative(path)).cloned().unwrap_or_default())
    }

    /// A path at the destination as receipts have it.
    pub fn relative(&self, path: &[u8]) -> Vec<u8> {
        let rest = path.get(self.root_len.load(Ordering::Relaxed)..).unwrap_or_default();
        rest.strip_prefix(b"/").unwrap_or(rest).to_vec()
    }

    /// Opens both sides of a file.
    pub fn open(&self, from: &Spot, to: &Spot) -> Outcome<Ends> {
        let source = from.tree.open_fresh(&from.path)?;
        let (meta, mark) = source.marked()?;
        let hidden = to.tree.hidden_near(&to.path, self.hidden())?;
        let sink = to.tree.create_as(&to.path, meta.mode, &hidden)?;
        if meta.is_sparse {
            sink.set_size(meta.size).inspect_err(|_| sink.abandon())?;
        }
        let spread = self.crew.as_ref().map(|crew| Spread::new(crew, from, &meta, to, &hidden)).transpose();
        let spread = spread.inspect_err(|_| sink.abandon())?;
        let frontier = Frontier::new(0..meta.size, meta.is_sparse);
        let began = Some(Began { mark, meta, sums: Mutex::default(), frontier, spread });
        Ok(Ends { source, sink, began })
    }

    /// Gives a file up that is to be begun anew, under another temporary name.
    fn give_up(&self, transfer: &Transfer, ends: &Ends, why: Anew) -> Outcome<bool> {
        ends.sink.abandon();
        let list = if why == Anew::Lost { &self.lost } else { &self.again };
        list.lock().push((transfer.from.clone(), transfer.to.clone()));
        Ok(false)
    }

    /// Proves a file when all its bytes are written, and gives it its name; `false` if it has changed meanwhile.
    pub fn finish(&self, transfer: &Transfer, ends: &Ends, plan: &Plan) -> Outcome<bool> {
        let began = ends.began.as_ref().expect("a copy with proof began with a mark");
        if let Some(why) = began.spread.as_ref().and_then(Spread::anew) {
            return self.give_up(transfer, ends, why);
        }
        let kept = ends.source.xattrs()?;
        // Before the mark, which says whether it has grown. Servers of a volume know how long a file is.
        let is_longer = !transfer.from.tree.is_volume()
            && ends.source.read_at(began.meta.size, &mut [0]).is_ok_and(|count| count > 0);
        let (meta, mark) = ends.source.marked()?;
        if version(&meta, &mark) != version(&began.meta, &began.mark) {
            return self.give_up(transfer, ends, Anew::Changed);
        }
        if is_longer {
            let text = format!(
                "more bytes can be read of it than the {} that its file system says: nothing is said of it: 'aze cp' copies it",
                meta.size
            );
            return Err(Trouble::new(Exit::Caller, text));
        }
        if self.sources.get(&self.relative(&transfer.to.path)).is_some_and(|source| *source != meta.identity) {
            let text =
                format!("{}: another file has its name since it was looked at: stage again", transfer.from.shown());
            return Err(Trouble::new(Exit::Again, text));
        }
        for xattr in kept {
            warn(plan, &xattr, ends.sink.set_xattr(&xattr));
        }
        ends.sink.settle(&meta)?;
        let read = began.sums.lock().clone();
        let stored = self.read_back(ends, began, &meta, plan, &transfer.to.shown())?;
        let Some((stored, how, stored_mark, before)) = stored else { return self.give_up(transfer, ends, Anew::Lost) };
        let checked = when(now());
        let xattrs = xattrs_hash(stored.xattrs()?);
        if self.known.is_some() {
            let [inode, size, mtime, _] = before.print();
            self.journal.lock().name(self.relative(&transfer.to.path), [inode, size, mtime])?;
        }
        if self.known.is_some() && !transfer.from.tree.has_kept_data(&own_place(&transfer.from, &transfer.to, &meta))? {
            return self.give_up(transfer, ends, Anew::Changed);
        }
        let named = ends.sink.publish(&self.replaces(&transfer.to.path))?;
        // Programs of a volume may change it as soon as it has its name, at the same length and with the time put back. The name has
        // moved the change time, so extended attributes are compared themselves.
        let is_counted = how == ReadBack::Servers;
        if !is_same(&before, &named)
            || !has_same_rights(&before, &named)
            || is_counted && (stored.mark()? != stored_mark || xattrs_hash(stored.xattrs()?) != xattrs)
        {
            let text = format!("verify {}: another process has changed it since it was read back", transfer.to.shown());
            return Err(Trouble::new(Exit::Again, text));
        }
        let what = What::File {
            size: meta.size,
            hash: read.hash(meta.size),
            chunks: (read.chunks.len() <= CHUNKS_MAX).then_some(read),
            read_back: how.word().into(),
            same_as: None,
        };
        let object = self.object(&transfer.to.path, &named, xattrs, checked, what);
        let held = held(how, &named, &stored_mark);
        self.note(Done { object, from: version(&meta, &began.mark), to: identity(&named), held })?;
        self.copied.0.fetch_add(1, Ordering::Relaxed);
        self.copied.1.fetch_add(meta.size, Ordering::Relaxed);
        Ok(true)
    }

    /// Reads all of a copy from its storage, and compares the sums with those of the source. Mark and attributes are from before the first
    /// byte: as long as they are the same, the copy has these bytes. `None` if other nodes were to do it, and none is left.
    fn read_back(&self, ends: &Ends, began: &Began, meta: &Meta, plan: &Plan, shown: &str) -> Outcome<Option<Stored>> {
        let (stored, mut how) = ends.sink.reread_stored()?;
        let (before, mark) = if how == ReadBack::Servers { stored.marked()? } else { (stored.meta()?, Vec::new()) };
        let found = match began.spread.as_ref().filter(|spread| !spread.is_untouched()) {
            None => sums_of(stored.as_ref(), meta.size, meta.is_sparse, plan.watch.as_ref())?,
            Some(spread) => match spread.read_back(plan.watch.as_ref())? {
                Some((found, by)) => {
                    how = by;
                    found
                }
                None => return Ok(None),
            },
        };
        let wrong = |why: String| {
            Trouble::new(Exit::Fatal, format!("verify {shown}: {why}: nothing is said of it: stage it again"))
        };
        if before.size != meta.size {
            return Err(wrong(format!("it has {} bytes instead of {}", before.size, meta.size)));
        }
        if let Some(chunk) = found.first_difference(&began.sums.lock()) {
            let at = chunk * CHUNK_BYTES;
            return Err(wrong(format!(
                "what was read back differs from what was written, in the 4 MiB from byte {at} on"
            )));
        }
        if !is_same(&before, &stored.meta()?) {
            return Err(wrong("another process has changed it while it was read back".into()));
        }
        Ok(Some((stored, how, mark, before)))
    }

    /// Compares a file of a volume with the sums of its proven copy, whose place was not changed since; `false` if it has other
    /// bytes, or has changed meanwhile.
    pub fn compare(&self, from: &Spot, done: &Done, watch: &dyn Watch) -> Outcome<bool> {
        let What::File { size, hash, .. } = &done.object.what else { return Ok(false) };
        let source = from.tree.open_fresh(&from.path)?;
        let (meta, mark) = source.marked()?;
        if meta.size != *size {
            return Ok(false);
        }
        let found = sums_of(source.as_ref(), *size, meta.is_sparse, watch)?;
        let (now, mark_now) = source.marked()?;
        let now = version(&now, &mark_now);
        if found.hash(*size) != *hash || now != version(&meta, &mark) || now[..OWN_NUMBERS] != done.from[..OWN_NUMBERS]
        {
            return Ok(false);
        }
        self.note(Done { from: now, ..done.clone() })?;
        Ok(true)
    }

    /// Copies a symbolic link.
    pub fn link(&self, from: &Spot, to: &Spot) -> Outcome<()> {
        let meta = from.must_stat(false)?;
        let target = from.tree.read_link(&from.path)?;
        let hidden = to.tree.hidden_near(&to.path, self.hidden())?;
        to.tree.make_link_as(&to.path, &target, &hidden, &self.replaces(&to.path))?;
        let named = to.must_stat(false)?;
        if named.kind == FileKind::Symlink && to.tree.read_link(&to.path)? != target {
            return Err(Trouble::new(Exit::Fatal, format!("verify {}: it leads elsewhere", to.shown())));
        }
        // A program may give the name to another object at any moment.
        if named.kind != FileKind::Symlink || identity(&to.must_stat(false)?) != identity(&named) {
            let text = format!("verify {}: it is another object than was made there", to.shown());
            return Err(Trouble::new(Exit::Again, text));
        }
        let object = self.object(&to.path, &named, Hash::of(b""), when(now()), What::Link { target });
        let held = if to.tree.is_volume() { version(&named, &[]) } else { Vec::new() };
        self.copied.0.fetch_add(1, Ordering::Relaxed);
        self.note(Done { object, from: version(&meta, &[]), to: identity(&named), held })
    }

    /// Notes a further name of a proven file; or its first one again, whose change time the others have moved.
    ///
    /// # Errors
    /// [`Exit::Again`] if it is another file, or has changed.
    pub fn name(&self, first: &Done, to: &Spot) -> Outcome<()> {
        let found = to.must_stat(false)?;
        let named = identity(&found);
        if !same_inode(&named, &first.to) {
            let text = format!("verify {}: it is another file than was verified", to.shown());
            return Err(Trouble::new(Exit::Again, text));
        }
        let mut object = first.object.clone();
        object.path = self.relative(&to.path);
        object.ctime = when(named[4]);
        let checked = when(now());
        let mark = first.held.get(OWN_NUMBERS..).filter(|mark| !mark.is_empty());
        // In a volume a program may have changed it since it had its first name, at the same length and with the time put back.
        let is_same = (found.mode, found.uid, found.gid) == (object.mode, object.uid, object.gid)
            && match mark {
                Some(mark) => {
                    let copy = to.tree.open_fresh(&to.path)?;
                    copy.mark()? == mark && xattrs_hash(copy.xattrs()?) == object.xattrs
                }
                None => true,
            };
        if !is_same {
            let text = format!("verify {}: another process has changed it since it was verified", to.shown());
            return Err(Trouble::new(Exit::Again, text));
        }
        if let What::File { same_as, .. } = &mut object.what
            && object.path != first.object.path
        {
            *same_as = Some(first.object.path.clone());
            object.checked = checked;
        }
        // The new name has moved the change time, and nothing else.
        let held = mark.map_or(Vec::new(), |mark| version(&found, mark));
        self.note(Done { object, from: first.from.clone(), to: named, held })
    }

    /// What a receipt says of an object.
    pub fn object(&self, path: &[u8], found: &Meta, xattrs: Hash, checked: String, what: What) -> Object {
        Object {
            path: self.relative(path),
            checked,
            mode: found.mode,
            uid: found.uid,
            gid: found.gid,
            mtime: when(found.mtime.0),
            xattrs,
            inode: found.identity.1,
            ctime: when(found.ctime.0),
            what,
        }
    }

    fn note(&self, done: Done) -> Outcome<()> {
        let line = line_of(&done);
        let unsynced = self.journal.lock().note_line(done, &line)?;
        unsynced.map_or(Ok(()), Unsynced::sync)
    }
}

impl Began {
    /// Of a part that is copied for another process, which has marked the file.
    pub fn of_part(meta: Meta, range: Range<u64>) -> Began {
        let frontier = Frontier::new(range.start..range.end.min(meta.size), meta.is_sparse);
        Began { mark: Vec::new(), meta, sums: Mutex::default(), frontier, spread: None }
    }

    /// Takes in the sums of a part.
    pub fn add(&self, part: Sums) {
        self.sums.lock().chunks.extend(part.chunks);
    }

    /// The sums of the bytes copied.
    pub fn into_sums(self) -> Sums {
        self.sums.into_inner()
    }

    /// Copies a part that begins at the beginning of a chunk, and sums it up. Of a file with holes it is not this part but as many
    /// bytes, those that come next in the whole file: when all parts are done, so is the file.
    pub fn copy(&self, ends: &Ends, range: Range<u64>, watch: &dyn Watch, memory: &mut Vec<u8>) -> Outcome<()> {
        if !self.meta.is_sparse {
            let part = Frontier::new(range.start..range.end.min(self.meta.size), false);
            return self.copy_chunks(ends, &part, u64::MAX, watch, memory);
        }
        let copied = self.copy_chunks(ends, &self.frontier, range.end - range.start, watch, memory);
        // The other parts of it end, too.
        copied.inspect_err(|_| self.frontier.stop())
    }

    fn copy_chunks(
        &self,
        ends: &Ends,
        frontier: &Frontier,
        bytes_max: u64,
        watch: &dyn Watch,
        memory: &mut Vec<u8>,
    ) -> Outcome<()> {
        let (source, mut left) = (ends.source.as_ref(), bytes_max);
        while left > 0 && !watch.is_over() {
            let (_, Some(taken)) = frontier.take(source)? else { return Ok(()) };
            let mut chunk = Chunk::read(source, &taken, room(memory, taken.len))?;
            if chunk.len() < taken.len {
                // It was cut off: the mark will say so.
                return Ok(());
            }
            if let Some(hash) = chunk.sum() {
                self.sums.lock().chunks.insert(taken.offset / CHUNK_BYTES, hash);
            }
            match self.meta.is_sparse {
                true => chunk.write_data(ends.sink.as_ref(), taken.offset)?,
                false => ends.sink.write_at(taken.offset, chunk.bytes())?,
            }
            if self.meta.size > CHUNK_BYTES {
                ends.sink.begin_to_store(taken.offset..taken.offset + taken.len as u64);
            }
            left = left.saturating_sub(CHUNK_BYTES);
            watch.turn();
        }
        Ok(())
    }
}

/// Sums up a file of so many bytes, and tells how many of them were verified; a caller that has to know of changes meanwhile compares marks
/// or attributes from before and after. Several threads take its chunks in turn, so that
/// all of them have work wherever its data are.
pub fn sums_of(source: &dyn Source, size: u64, is_sparse: bool, watch: &dyn Watch) -> Outcome<Sums> {
    let threads = if size > READ_BACK_ALONE_BYTES_MAX { READ_BACK_THREADS_MAX } else { 1 };
    let (sums, frontier) = (Mutex::new(Sums::default()), Frontier::new(0..size, is_sparse));
    let read = || -> Outcome<()> {
        let mut memory = Vec::new();
        loop {
            let (passed, taken) = frontier.take(source)?;
            watch.copied(passed);
            let Some(taken) = taken else { return Ok(()) };
            if watch.is_over() {
                return Err(Trouble::new(Exit::Again, "the command was asked to end"));
            }
            let mut chunk = Chunk::read(source, &taken, aligned_room(&mut memory, taken.len))?;
            if let Some(hash) = chunk.sum() {
                sums.lock().chunks.insert(taken.offset / CHUNK_BYTES, hash);
            }
            watch.copied(chunk.len() as u64);
            watch.turn();
        }
    };
    let work = || read().inspect_err(|_| frontier.stop());
    if threads == 1 {
        work()?;
    } else {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let panicked = |_| Err(Trouble::new(Exit::Fatal, "a thread that verifies has panicked: a defect in aze"));
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(panicked))
        })?;
    }
    Ok(sums.into_inner())
}

/// A file that is copied to the place `to` of the directory over which its volume lies.
pub fn own_place(from: &Spot, to: &Spot, meta: &Meta) -> GoneName {
    GoneName {
        inside: from.path.clone(),
        outside: to.path.clone(),
        kind: meta.kind,
        identity: [0; 4],
        inode: meta.identity.1,
        record: None,
    }
}

/// A hash of extended attributes in any order.
pub fn xattrs_hash(mut xattrs: Vec<Xattr>) -> Hash {
    xattrs.sort();
    let mut bytes = Vec::new();
    for part in xattrs.iter().flat_map(|(name, value)| [name, value]) {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    Hash::of(&bytes)
}

/// Numbers of a version before those of the mark.
pub(super) const OWN_NUMBERS: usize = 7;

/// The version of a copy in a volume, whose name led to `named` after it was read back.
fn held(how: ReadBack, named: &Meta, mark: &[u64]) -> Version {
    if how == ReadBack::Servers { version(named, mark) } else { Vec::new() }
}

/// What tells a version of a source from every other one.
pub fn version(meta: &Meta, mark: &[u64]) -> Version {
    let ids = u64::from(meta.uid) << 32 | u64::from(meta.gid);
    let own: [u64; OWN_NUMBERS] =
        [meta.identity.0, meta.identity.1, meta.size, meta.mtime.0, meta.ctime.0, meta.mode.into(), ids];
    own.into_iter().chain(mark.iter().copied()).collect()
}

/// What shows that a name at the destination leads to the object that was proven: inode, length, time of the last change of
/// its bytes, and of its attributes.
pub fn identity(meta: &Meta) -> Version {
    let size = if meta.kind == FileKind::File { meta.size } else { 0 };
    vec![meta.identity.0, meta.identity.1, size, meta.mtime.0, meta.ctime.0]
}

/// A new name moves the change time of an inode; nothing else may.
fn same_inode(one: &Version, other: &Version) -> bool {
    one[..4] == other[..4]
}

fn has_same_rights(one: &Meta, other: &Meta) -> bool {
    (one.mode, one.uid, one.gid) == (other.mode, other.uid, other.gid)
}

fn is_same(one: &Meta, other: &Meta) -> bool {
    same_inode(&identity(one), &identity(other))
}
