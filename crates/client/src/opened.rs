//! Contents that came along with an open: the whole of a small file, as it was then.
//!
//! It alone knows until when they may be shown. They are of the moment of the open, so a caller that
//! was promised no more than that may be answered from them, until this client has begun or ended
//! a change of a file of the same shard, has heard of newer attributes, or a second has passed. A caller that was promised the
//! contents at each read is answered from them only while the file's record in a published index is the one from before the open.

use crate::client::{Client, Core};
use crate::file::File;
use crate::published::Witness;
use aze_io::sync::Mutex;
use aze_proto::limits::OPEN_CONTENTS_BYTES_MAX;
use aze_proto::sum::first_mismatch;
use aze_proto::{Attr, Failure, Generation, Ino, ShardId, Time};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long contents may be shown: as long as a mount may use cached attributes by default.
pub const CONTENTS_TIME: Duration = Duration::from_secs(1);

/// The same in nanoseconds.
const VALID_NS: u64 = CONTENTS_TIME.as_nanos() as u64;

/// Contents kept for all open files of a client together; beyond, the oldest go.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// Counters of changes; files of different shards may share one.
pub const CHANGE_COUNTERS: usize = 256;

/// Told the number of a counter whenever it has changed.
pub type ToldChange = dyn Fn(usize) + Send + Sync;

pub(crate) struct Contents {
    shards: u32,
    /// Changes begun, and again when they ended, by the home shard of the file.
    changes: Vec<AtomicU64>,
    /// Hears of each change of a counter.
    told: OnceLock<Box<ToldChange>>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    bytes: usize,
    files: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Kept {
    /// Takes contents in; the oldest go where they are too many. Gives their key.
    fn put(&mut self, bytes: Arc<Vec<u8>>) -> u64 {
        let key = self.next;
        self.next += 1;
        self.bytes += bytes.len();
        self.files.insert(key, bytes);
        while self.bytes > KEPT_BYTES_MAX
            && let Some((_, oldest)) = self.files.pop_first()
        {
            self.bytes -= oldest.len();
        }
        key
    }
}

/// The contents that came with an open; let go of with it.
pub(crate) struct Opened {
    home: Arc<Contents>,
    key: u64,
    seen: u64,
    until_ns: u64,
    version: Version,
    /// Of an open for writing, too: the file's record from before the open. They may be shown while it is unchanged.
    pub(crate) witness: Option<Witness>,
}

/// The attributes that every change of a file moves.
pub(crate) type Version = (Generation, Time, u64);

pub(crate) fn version(attr: &Attr) -> Version {
    (attr.generation, attr.ctime, attr.size)
}

/// A change of a file's contents by this client, from before it is sent until its caller waits no longer
/// any more.
pub(crate) struct Changing<'a> {
    contents: &'a Contents,
    counter: usize,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.contents.count(self.counter);
    }
}

impl Contents {
    /// None yet, on a volume of `shards` shards.
    pub(crate) fn new(shards: u32) -> Contents {
        let changes = (0..CHANGE_COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Contents { shards, changes, told: OnceLock::new(), kept: Mutex::default() }
    }

    fn counter(shard: ShardId) -> usize {
        shard.0 as usize % CHANGE_COUNTERS
    }

    fn count(&self, counter: usize) {
        self.changes[counter].fetch_add(1, SeqCst);
        self.told.get().iter().for_each(|told| told(counter));
    }

    /// What this client has changed so far, to be looked at before an open is sent.
    pub(crate) fn seen(&self, shard: ShardId) -> u64 {
        self.changes[Self::counter(shard)].load(SeqCst)
    }

    /// The changes of all files so far, to be looked at before an open is sent of a file that is not known yet.
    pub(crate) fn all_seen(&self) -> Vec<u64> {
        self.changes.iter().map(|counter| counter.load(SeqCst)).collect()
    }

    /// Shows contents that came with an open of a file that was not known before; `seen` are the changes from before it was sent.
    pub(crate) fn came_with(self: &Arc<Self>, attr: &Attr, bytes: Vec<u8>, seen: &[u64], now_ns: u64) -> Opened {
        let seen = seen[Self::counter(attr.ino.home(self.shards))];
        self.again(attr, Arc::new(bytes), seen, now_ns)
    }

    /// Notes a change until the result is dropped.
    pub(crate) fn change(&self, ino: Ino) -> Changing<'_> {
        let counter = Self::counter(ino.home(self.shards));
        self.count(counter);
        Changing { contents: self, counter }
    }

    /// Shows no contents that came until now or are on their way.
    pub(crate) fn forget_all(&self) {
        (0..CHANGE_COUNTERS).for_each(|counter| self.count(counter));
    }

    /// Keeps what came along with an open, if it is sound.
    pub(crate) fn keep(
        self: &Arc<Self>,
        attr: &Attr,
        sums: &[u32],
        mut bytes: Vec<u8>,
        seen: u64,
        now_ns: u64,
    ) -> Option<Opened> {
        if attr.size > u64::from(OPEN_CONTENTS_BYTES_MAX) || first_mismatch(0, &bytes, sums).is_some() {
            return None;
        }
        bytes.resize(attr.size as usize, 0);
        Some(self.again(attr, Arc::new(bytes), seen, now_ns))
    }

    /// Shows contents that came with another open, for one of the same file with these attributes: they were current after `seen`.
    pub(crate) fn again(self: &Arc<Self>, attr: &Attr, bytes: Arc<Vec<u8>>, seen: u64, now_ns: u64) -> Opened {
        let key = self.kept.lock().put(bytes);
        let until_ns = now_ns.saturating_add(VALID_NS);
        Opened { home: self.clone(), key, seen, until_ns, version: version(attr), witness: None }
    }

    fn forget(&self, opened: &Opened) {
        let mut kept = self.kept.lock();
        if let Some(bytes) = kept.files.remove(&opened.key) {
            kept.bytes -= bytes.len();
        }
    }

    /// The contents, if they may still be shown of a file with these attributes.
    fn valid(&self, opened: &Opened, attr: &Attr, now_ns: u64) -> Option<Arc<Vec<u8>>> {
        let seen = self.seen(attr.ino.home(self.shards));
        let valid = now_ns < opened.until_ns && version(attr) == opened.version && seen == opened.seen;
        valid.then(|| self.kept.lock().files.get(&opened.key).cloned()).flatten()
    }
}

impl Opened {
    /// The contents, while they are kept.
    pub(crate) fn bytes(&self) -> Option<Arc<Vec<u8>>> {
        self.home.kept.lock().files.get(&self.key).cloned()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.home.forget(self);
    }
}

impl Core {
    fn read_opened(&self, opened: &Opened, attr: &Attr, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let is_unchanged = || opened.witness.as_ref().is_none_or(|witness| self.is_unchanged(witness));
        let valid = self.contents.valid(opened, attr, self.io.mono_ns()).filter(|_| is_unchanged());
        let Some(bytes) = valid else {
            self.contents.forget(opened);
            return None;
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        if start == bytes.len() {
            // A program may have shown all of them before: this read asks for bytes that have come behind them.
            self.contents.forget(opened);
            return None;
        }
        let count = buf.len().min(bytes.len() - start);
        buf[..count].copy_from_slice(&bytes[start..start + count]);
        if count < buf.len() {
            // The end was seen: no read asks for more.
            self.contents.forget(opened);
        }
        Some(count)
    }
}

impl Client {
    /// Has `told` called from now on with the number of a counter whenever it changes: before a change of a file is sent, and when
    /// it has ended, and when contents that came with an open may not be shown any more for another reason. Files share
    /// counters: [`File::change_counter`].
    pub fn tell_changes(&self, told: Box<ToldChange>) {
        assert!(self.core.contents.told.set(told).is_ok(), "a client tells one");
    }
}

impl File {
    /// The counter of this file's changes, less than [`CHANGE_COUNTERS`].
    pub fn change_counter(&self) -> usize {
        Contents::counter(self.ino().home(self.core.contents.shards))
    }

    /// Copies what came along with the open, if it may be shown now and fits; its length, and until when it may be shown at the latest,
    /// by this node's clock. It may be shown for less long: [`Client::tell_changes`]. Of an open that is for writing, too, the caller that shows it has
    /// to know by a published index that the file has not changed since before the open.
    pub fn copy_contents_as_opened(&self, buf: &mut [u8]) -> Option<(usize, u64)> {
        let opened = self.opened.as_ref()?;
        let bytes = self.core.contents.valid(opened, &self.inode.attr(), self.core.io.mono_ns())?;
        buf.get_mut(..bytes.len())?.copy_from_slice(&bytes);
        Some((bytes.len(), opened.until_ns))
    }

    /// What came along with the open, if it may be shown now.
    pub fn contents_as_opened(&self) -> Option<Vec<u8>> {
        let opened = self.opened.as_ref()?;
        let bytes = self.core.contents.valid(opened, &self.inode.attr(), self.core.io.mono_ns())?;
        Some(bytes.to_vec())
    }

    /// As [`File::read_into`], but what came along with the open may be shown as it was then, for
    /// up to a second: changes of other clients since the open need not be seen, those of this
    /// client are. For callers to which the contents at the open were promised, as mounts
    /// promise it, or has opened it for this read. Of an open that is for writing, too, changes of others are seen as by
    /// [`File::read_into`].
    ///
    /// # Errors
    /// As [`File::read_into`].
    pub async fn read_as_opened(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        if let Some(opened) = &self.opened
            && let Some(count) = self.core.read_opened(opened, &self.inode.attr(), offset, buf)
        {
            return Ok(count);
        }
        self.read_into(offset, buf).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inodes::tests::attr;
    use aze_proto::sum::piece_sums;

    const SHARDS: u32 = 4096;

    fn kept(contents: &Arc<Contents>, size: u64, bytes: &[u8]) -> Option<Opened> {
        let seen = contents.seen(Ino(9).home(SHARDS));
        contents.keep(&attr(size, 0, 5), &piece_sums(0, bytes), bytes.to_vec(), seen, 100)
    }

    #[test]
    fn contents_are_shown_until_something_changes_or_a_second_has_passed() {
        let contents = Arc::new(Contents::new(SHARDS));
        let opened = kept(&contents, 7, b"hello").expect("sound");
        let shown = contents.valid(&opened, &attr(7, 0, 5), 101).expect("nothing has changed");
        assert_eq!(shown.as_slice(), b"hello\0\0", "what is not stored is a hole");
        for newer in [attr(8, 0, 5), attr(7, 1, 5), attr(7, 0, 6)] {
            assert!(contents.valid(&opened, &newer, 101).is_none());
        }
        assert!(contents.valid(&opened, &attr(7, 0, 5), 100 + VALID_NS).is_none());
        let other = contents.change(Ino::least_of(ShardId(1), SHARDS));
        drop(other);
        assert!(contents.valid(&opened, &attr(7, 0, 5), 101).is_some(), "another shard's file");
        let changing = contents.change(Ino(9));
        assert!(contents.valid(&opened, &attr(7, 0, 5), 101).is_none());
        let late = kept(&contents, 5, b"hello").expect("sound");
        drop(changing);
        assert!(contents.valid(&late, &attr(5, 0, 5), 101).is_none(), "opened before the change ended");
        let forgotten = kept(&contents, 5, b"hello").expect("sound");
        contents.forget_all();
        assert!(contents.valid(&forgotten, &attr(5, 0, 5), 101).is_none());
    }

    #[test]
    fn what_is_damaged_or_too_long_is_not_kept() {
        let contents = Arc::new(Contents::new(SHARDS));
        let (sums, damaged) = (piece_sums(0, b"hello"), b"hellO".to_vec());
        assert!(contents.keep(&attr(5, 0, 5), &sums, damaged, 0, 0).is_none());
        assert!(
            contents
                .keep(&attr(u64::from(OPEN_CONTENTS_BYTES_MAX) + 1, 0, 5), &sums, b"hello".to_vec(), 0, 0)
                .is_none()
        );
        assert!(contents.kept.lock().files.is_empty());
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes_first() {
        let contents = Arc::new(Contents::new(SHARDS));
        let size = u64::from(OPEN_CONTENTS_BYTES_MAX);
        let all: Vec<_> =
            (0..=KEPT_BYTES_MAX as u64 / size).map(|_| kept(&contents, size, b"").expect("sound")).collect();
        assert_eq!(contents.kept.lock().bytes, KEPT_BYTES_MAX);
        let (first, last) = (all.first().expect("some"), all.last().expect("some"));
        assert!(contents.valid(first, &attr(size, 0, 5), 101).is_none());
        assert!(contents.valid(last, &attr(size, 0, 5), 101).is_some());
        drop(all);
        assert_eq!(contents.kept.lock().bytes, 0);
    }
}
