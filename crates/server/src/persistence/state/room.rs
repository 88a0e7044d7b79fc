//! The room that a server has on its disk: how much may be in segments, what the journal needs besides, and who waits
//! until memory has been let go of.

use super::persistence::Storage;
use super::roots::Roots;
use aze_io::disk::{Dir, DiskResult};
use aze_io::slab::BASE_BYTES;
use aze_io::sync::Mutex;
use aze_store::Disk;
use aze_store::disk::manifest::Manifest;
use aze_store::disk::segments::Segments;
use futures_channel::oneshot;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often the room on the disk is looked at.
const LOOK_PERIOD_NS: u64 = 1_000_000_000;

/// Who makes room, and who waits for it.
#[derive(Default)]
pub(in crate::persistence) struct Room {
    is_running: AtomicBool,
    /// They are told whether there is any hope.
    waiters: Mutex<Vec<oneshot::Sender<bool>>>,
    /// The file system has hardly room for the journal.
    is_low: AtomicBool,
    looked_ns: AtomicU64,
    /// Units that were read from the disk.
    brought_back: AtomicU64,
}

impl Room {
    /// Notes that a task makes room; `false` if one does already.
    pub(in crate::persistence) fn begin(&self) -> bool {
        !self.is_running.swap(true, Ordering::SeqCst)
    }

    /// That task has ended; the requests that wait are told whether there is any hope.
    pub(in crate::persistence) fn end(&self, is_hopeful: bool) {
        self.is_running.store(false, Ordering::SeqCst);
        for waiter in std::mem::take(&mut *self.waiters.lock()) {
            // An error means that the request has given up.
            let _ = waiter.send(is_hopeful);
        }
    }

    /// Resolves when a task has made room.
    pub(in crate::persistence) fn wait(&self) -> oneshot::Receiver<bool> {
        let (sender, receiver) = oneshot::channel();
        self.waiters.lock().push(sender);
        receiver
    }

    /// Units that were read from the disk so far.
    pub(in crate::persistence) fn brought_back(&self) -> u64 {
        self.brought_back.load(Ordering::Relaxed)
    }

    /// One more was.
    pub(in crate::persistence) fn brings_back(&self) {
        self.brought_back.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is time to look at the disk again; then the caller does it.
    pub(in crate::persistence) fn is_look_due(&self, now_ns: u64) -> bool {
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        now_ns >= looked_ns + LOOK_PERIOD_NS
            && self.looked_ns.compare_exchange(looked_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the file system has hardly room for the journal, as the last look found.
    pub(in crate::persistence) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    /// A look at the disk has found this.
    pub(in crate::persistence) fn set_low(&self, is_low: bool) {
        self.is_low.store(is_low, Ordering::Relaxed);
    }
}

/// What the journal and checkpoints may need besides: no segment is made of it, and nothing but
/// removals goes on when the disk has less.
pub(in crate::persistence) fn reserve_bytes(storage: &Storage, checkpoint_bytes: u64) -> u64 {
    storage.checkpoint_bytes.max(checkpoint_bytes) + checkpoint_bytes / 4 * 5 + storage.segment_bytes / 4
}

/// Opens the segments, and says how much may be in them.
pub(in crate::persistence) async fn open_disk(
    storage: &Storage,
    roots: &Roots,
    manifest: Manifest,
) -> DiskResult<Arc<Disk>> {
    let dir = &roots.first().dir;
    let mut room = 0;
    for (number, root) in roots.all.iter().enumerate() {
        let names = root.dir.list().await?;
        let there = names.iter().filter(|name| name.starts_with("data-")).count() as u64 * storage.segment_bytes;
        let reserve = if number == 0 { reserve_bytes(storage, 0) } else { 0 };
        let share = root.dir.free_bytes().await?.saturating_sub(reserve) / u64::from(root.shared_by.max(1));
        room += match roots.all.len() {
            1 => there + share,
            // Less than a segment is left over in each.
            _ => there + share / storage.segment_bytes * storage.segment_bytes,
        };
    }
    let mut capacity = storage.capacity_bytes.unwrap_or(room / 16 * 15);
    // Overwritten data stay until the next checkpoint.
    let mut bases = capacity.saturating_add(storage.checkpoint_bytes);
    if dir.medium().is_some() {
        // Beside segments there is the free reserve, and the journal that is kept while a checkpoint is made.
        let besides = storage.checkpoint_bytes + reserve_bytes(storage, 0);
        let segments = room_of(&**dir).await?.saturating_sub(besides) / storage.segment_bytes;
        let bytes = segments * (storage.segment_bytes - BASE_BYTES as u64);
        let wanted = storage.capacity_bytes.unwrap_or(u64::MAX);
        capacity = wanted.min(bytes.saturating_sub(storage.checkpoint_bytes) / 16 * 15);
        bases = wanted.saturating_add(storage.checkpoint_bytes).min(bytes);
    }
    let segments = Segments::open_in(roots.for_segments(), manifest, storage.segment_bytes, bases).await?;
    segments.keep_free(reserve_bytes(storage, 0));
    Ok(Disk::new(segments, capacity))
}

/// All bytes of a directory whose room is this server's alone, used or not.
async fn room_of(dir: &dyn Dir) -> DiskResult<u64> {
    let mut room = dir.free_bytes().await?;
    for name in dir.list().await? {
        room += dir.open(&name).await?.size().await?;
    }
    Ok(room)
}

/// Bytes of journal after which a checkpoint is made: in room that is this server's alone, a part of that.
pub(in crate::persistence) async fn checkpoint_bytes(storage: &Storage, dir: &dyn Dir) -> DiskResult<u64> {
    if dir.medium().is_none() {
        return Ok(storage.checkpoint_bytes);
    }
    Ok(storage.checkpoint_bytes.min((room_of(dir).await? / 16).max(storage.segment_bytes)))
}
