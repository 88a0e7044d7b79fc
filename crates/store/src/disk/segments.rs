//! Segments: files of fixed length that hold units of file data, each in a place of its own.
//!
//! A segment does not describe its contents: the checkpoint does, and has the checksums of every block. So
//! data that have changed, or that the disk has written to or read from the wrong place, do not match.
//! A place is never written to while a checkpoint that may be read names it (`places`).
//!
//! They may be in several directories. Each segment has one whose turn it is, and is made in another one if
//! that is full; where it is, only its name there says.

use super::manifest::{FORMAT, Manifest};
use super::places::{Places, Slot};
use aze_io::disk::{Dir, DiskError, DiskResult, FixedFile};
use aze_io::slab::{BASE_BYTES, FrameClass};
use aze_io::sync::Mutex;
use futures_util::future::join_all;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Length of a segment, unless chosen otherwise: short enough for a small disk, and few enough of them
/// on a large one.
pub const SEGMENT_BYTES_DEFAULT: u64 = 256 << 20;

/// Bytes that are written or read by one call at most.
const CALL_BYTES_MAX: usize = 1 << 20;

/// First line of a segment.
const TITLE: &str = "Azekura: a segment of one server's part of a volume";

/// The file of a segment.
pub fn segment_name(number: u32) -> String {
    format!("data-{number:010}")
}

/// A directory in which segments are.
pub struct Root {
    /// The directory.
    pub dir: Arc<dyn Dir>,
    /// For people: where it is.
    pub name: String,
}

/// A segment that is there.
#[derive(Clone)]
struct Segment {
    file: Arc<dyn FixedFile>,
    root: usize,
}

/// All segments of a server.
pub struct Segments {
    roots: Vec<Root>,
    /// Where there are several directories: what must be left of the first one, for what else is in it.
    kept_free: AtomicU64,
    manifest: Manifest,
    volume: AtomicU64,
    segment_bytes: u64,
    files: Mutex<BTreeMap<u32, Segment>>,
    /// Segments with writes that were not synced.
    unsynced: Mutex<BTreeSet<u32>>,
    places: Mutex<Places>,
    /// Held while a segment is made.
    making: futures_util::lock::Mutex<()>,
    failed: Mutex<Option<DiskError>>,
}

/// The bases of one segment: the first one is its head.
fn bases_of(segment_bytes: u64) -> u32 {
    (segment_bytes / BASE_BYTES as u64 - 1) as u32
}

fn head(manifest: &Manifest, segment_bytes: u64, number: u32) -> Vec<u8> {
    let Manifest { volume, server, .. } = manifest;
    format!(
        "{TITLE}\nformat {FORMAT}\nvolume {volume:016x}\nserver {server}\nsegment {number}\nbytes {segment_bytes}\n"
    )
    .into_bytes()
}

/// Fails if a segment without a head has anything else.
async fn refuse_damaged(name: &str, file: &dyn FixedFile) -> DiskResult<()> {
    let size = file.size().await?;
    let mut at = 0;
    while at < size {
        let part = file.read_at(at, CALL_BYTES_MAX).await?;
        if part.iter().any(|byte| *byte != 0) {
            let why = format!("{name} has data and no head: it was damaged; restore the file from a copy");
            return Err(DiskError::Failed(why));
        }
        if part.is_empty() {
            break;
        }
        at += part.len() as u64;
    }
    Ok(())
}

/// Opens a segment; `None` if the power went while it was made, and it has been removed.
async fn open_one(
    dir: &dyn Dir,
    name: &str,
    number: u32,
    manifest: &Manifest,
    segment_bytes: u64,
) -> DiskResult<Option<Arc<dyn FixedFile>>> {
    let file = dir.open_fixed(name).await?;
    let expected = head(manifest, segment_bytes, number);
    let found = file.read_at(0, expected.len()).await?;
    if found.iter().all(|byte| *byte == 0) {
        // Nothing is in it, since its head is durable before anything else is written.
        refuse_damaged(name, &*file).await?;
        dir.remove(name).await?;
        return Ok(None);
    }
    if found != expected || file.size().await? != segment_bytes {
        let (found, expected) = (String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
        let why = format!("{name} begins with {found:?} where {expected:?} is due, in {segment_bytes} bytes");
        return Err(DiskError::Failed(why));
    }
    Ok(Some(file))
}

impl Segments {
    /// Opens the segments in a directory. They may hold `capacity_bytes`; those that are there count.
    ///
    /// # Errors
    /// What the disk says, and a file that is no segment of this server.
    pub async fn open(
        dir: Arc<dyn Dir>,
        manifest: Manifest,
        segment_bytes: u64,
        capacity_bytes: u64,
    ) -> DiskResult<Arc<Segments>> {
        let root = Root { dir, name: String::new() };
        Segments::open_in(vec![root], manifest, segment_bytes, capacity_bytes).await
    }

    /// As [`Self::open`], in several directories.
    ///
    /// # Errors
    /// As there, and a segment that is in two of them.
    pub async fn open_in(
        roots: Vec<Root>,
        manifest: Manifest,
        segment_bytes: u64,
        capacity_bytes: u64,
    ) -> DiskResult<Arc<Segments>> {
        let mut files: BTreeMap<u32, Segment> = BTreeMap::new();
        for (index, root) in roots.iter().enumerate() {
            for name in root.dir.list().await? {
                let Some(number) = super::number_of(&name, "data-").and_then(|number| u32::try_from(number).ok())
                else {
                    continue;
                };
                let Some(file) = open_one(&*root.dir, &name, number, &manifest, segment_bytes).await? else { continue };
                let before = files.insert(number, Segment { file, root: index });
                if let Some(other) = before.and_then(|other| roots.get(other.root)) {
                    let why = format!(
                        "{name} is in {} and in {}: one of them is a copy, which must go",
                        other.name, root.name
                    );
                    return Err(DiskError::Failed(why));
                }
            }
        }
        let limit = (capacity_bytes / BASE_BYTES as u64).min(u64::from(u32::MAX)) as u32;
        let places = Places::in_lanes(limit, roots.len(), bases_of(segment_bytes));
        Ok(Arc::new(Segments {
            roots,
            kept_free: AtomicU64::new(0),
            manifest,
            volume: AtomicU64::new(manifest.volume),
            segment_bytes,
            files: Mutex::new(files),
            unsynced: Mutex::default(),
            places: Mutex::new(places),
            making: futures_util::lock::Mutex::new(()),
            failed: Mutex::default(),
        }))
    }

    /// From now on no segment is made in the first of several directories that would leave less there.
    pub fn keep_free(&self, bytes: u64) {
        self.kept_free.store(bytes, Ordering::Relaxed);
    }

    /// The number of a volume that is new, before there is any segment.
    pub fn set_volume(&self, volume: u64) {
        self.volume.store(volume, Ordering::Relaxed);
    }

    /// Its free and used places.
    pub fn places(&self) -> &Mutex<Places> {
        &self.places
    }

    /// Where a place is: its segment, and the offset there.
    fn find(&self, slot: Slot) -> (u32, u64) {
        let bases = bases_of(self.segment_bytes);
        let base = u64::from(slot.base % bases + 1) * BASE_BYTES as u64;
        (slot.base / bases, base + u64::from(slot.piece) * slot.class.bytes() as u64)
    }

    /// For people: where a place is.
    pub fn describe(&self, slot: Slot) -> String {
        let (number, offset) = self.find(slot);
        let root = self.files.lock().get(&number).filter(|_| self.roots.len() > 1).map(|segment| segment.root);
        let within = root.and_then(|root| self.roots.get(root)).map_or(String::new(), |root| format!("{}/", root.name));
        format!("{within}{} at byte {offset}", segment_name(number))
    }

    fn file(&self, number: u32) -> DiskResult<Arc<dyn FixedFile>> {
        let known = self.files.lock().get(&number).map(|segment| segment.file.clone());
        known.ok_or_else(|| DiskError::NotFound(format!("{}: there is no such segment", segment_name(number))))
    }

    /// A segment to be written to: it is made if it is not there.
    async fn segment(&self, number: u32) -> DiskResult<Arc<dyn FixedFile>> {
        let _making = self.making.lock().await;
        if let Ok(file) = self.file(number) {
            return Ok(file);
        }
        let mut full = None;
        for root in self.roots_for(number).await? {
            match self.make(number, root).await {
                Err(error @ DiskError::Full(_)) => full = Some(error),
                made => return made,
            }
        }
        Err(full.unwrap_or_else(|| DiskError::Full(format!("{}: no directory has room", segment_name(number)))))
    }

    /// The directories in which a segment may be made: the one whose turn it is, then those with more room.
    async fn roots_for(&self, number: u32) -> DiskResult<Vec<usize>> {
        let count = self.roots.len();
        if count == 1 {
            return Ok(vec![0]);
        }
        let mut fit = Vec::new();
        for (index, root) in self.roots.iter().enumerate() {
            let kept = if index == 0 { self.kept_free.load(Ordering::Relaxed) } else { 0 };
            let free = root.dir.free_bytes().await?.saturating_sub(kept);
            if free >= self.segment_bytes {
                fit.push((index != number as usize % count, Reverse(free), index));
            }
        }
        fit.sort_unstable();
        Ok(fit.into_iter().map(|(_, _, index)| index).collect())
    }

    async fn make(&self, number: u32, root: usize) -> DiskResult<Arc<dyn FixedFile>> {
        let dir = &self.roots[root].dir;
        let file = dir.create_fixed(&segment_name(number), self.segment_bytes).await?;
        let manifest = Manifest { volume: self.volume.load(Ordering::Relaxed), ..self.manifest };
        file.write_at(0, head(&manifest, self.segment_bytes, number)).await?;
        file.sync().await?;
        dir.sync().await?;
        self.files.lock().insert(number, Segment { file: file.clone(), root });
        Ok(file)
    }

    /// A free place, in none of the segments `but`.
    pub fn take(&self, class: FrameClass, but: &BTreeSet<u32>) -> Option<Slot> {
        let mut places = self.places.lock();
        if but.is_empty() { places.take(class) } else { places.take_in(class, |number| !but.contains(&number)) }
    }

    /// The segment of a place.
    pub fn number(&self, slot: Slot) -> u32 {
        self.find(slot).0
    }

    /// Makes the segments of places that are not there; gives those for which no directory has room.
    ///
    /// # Errors
    /// What the disk says, but for a full one.
    pub async fn prepare(&self, slots: impl Iterator<Item = Slot>) -> DiskResult<BTreeSet<u32>> {
        let numbers: BTreeSet<u32> = slots.map(|slot| self.number(slot)).collect();
        let mut full = BTreeSet::new();
        for number in numbers {
            match self.segment(number).await {
                Ok(_) => {}
                Err(DiskError::Full(_)) => drop(full.insert(number)),
                Err(error) => return Err(error),
            }
        }
        Ok(full)
    }

    /// Writes units, each to its place; what lies together is written together.
    ///
    /// # Errors
    /// What the disk says; then any of them may have been written.
    pub async fn write(&self, mut units: Vec<(Slot, Vec<u8>)>) -> DiskResult<()> {
        units.sort_unstable_by_key(|(slot, _)| *slot);
        let mut calls: Vec<(u32, u64, Vec<u8>)> = Vec::new();
        for (slot, bytes) in units {
            let (number, offset) = self.find(slot);
            match calls.last_mut() {
                Some((last, start, gathered))
                    if *last == number
                        && *start + gathered.len() as u64 == offset
                        && gathered.len() + bytes.len() <= CALL_BYTES_MAX =>
                {
                    gathered.extend_from_slice(&bytes);
                }
                _ => calls.push((number, offset, bytes)),
            }
        }
        let mut writes = Vec::new();
        for (number, offset, bytes) in calls {
            let file = self.segment(number).await?;
            self.unsynced.lock().insert(number);
            writes.push(async move { file.write_at(offset, bytes).await });
        }
        join_all(writes).await.into_iter().collect()
    }

    /// The first `len` bytes of a place.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn read(&self, slot: Slot, len: usize) -> DiskResult<Vec<u8>> {
        self.read_how(slot, len, false).await
    }

    /// The same from the disk itself, past the system's page cache.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn read_disk(&self, slot: Slot, len: usize) -> DiskResult<Vec<u8>> {
        self.read_how(slot, len, true).await
    }

    async fn read_how(&self, slot: Slot, len: usize, from_disk: bool) -> DiskResult<Vec<u8>> {
        let (number, offset) = self.find(slot);
        let file = self.file(number)?;
        let bytes = match from_disk {
            true => file.read_disk_at(offset, len).await?,
            false => file.read_at(offset, len).await?,
        };
        if bytes.len() < len {
            let why = format!("{}: {} of {len} bytes at {offset}", segment_name(number), bytes.len());
            return Err(DiskError::Failed(why));
        }
        Ok(bytes)
    }

    /// Makes earlier writes durable.
    ///
    /// # Errors
    /// The disk's error. The disk's contents cannot be known after that: later calls return the error again.
    pub async fn sync(&self) -> DiskResult<()> {
        let unsynced = std::mem::take(&mut *self.unsynced.lock());
        for number in unsynced {
            let synced = match self.file(number) {
                Ok(file) => file.sync().await,
                Err(error) => Err(error),
            };
            if let Err(error) = synced {
                *self.failed.lock() = Some(error);
            }
        }
        self.failed.lock().clone().map_or(Ok(()), Err)
    }
}
