//! The disks of simulated nodes. They outlive their node: the death of its process takes nothing
//! that was written, a power cut ([`super::Sim::kill_silently`]) anything that was not synced: each such write is kept,
//! lost or kept in part, independently of those before and after it, and so is each name that was made, changed or
//! removed.

use super::node::Node;
use super::rng::SimRng;
use super::state::{Core, Life, State};
use crate::disk::{Dir, DiskError, DiskFile, DiskResult, FixedFile};
use crate::{Boxed, Io, Task};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time that a write takes, in virtual nanoseconds: at least and at most.
const WRITE_NS: (u64, u64) = (5_000, 60_000);

/// Time that a sync takes.
const SYNC_NS: (u64, u64) = (100_000, 4_000_000);

/// What a disk writes whole, or not at all.
const SECTOR_BYTES: usize = 512;

/// A log has zeros up to the next multiple of this, in bytes.
const LOG_STEP_BYTES: usize = 4096;

/// What a slow disk takes longer by.
const SLOW_FACTOR: u64 = 60;

/// Room of a simulated directory, in bytes.
const ROOM_BYTES: u64 = 1 << 30;

/// The fault of a node's disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFault {
    /// Nothing.
    #[default]
    None,
    /// Little room is left.
    Low,
    /// Writes fail since no room is left.
    Full,
    /// Writes and syncs fail.
    Broken,
    /// All works but one call: of those that can fail so, the one of this number from now on, counted from 0.
    Once(u64, DiskTrouble),
    /// Everything takes much longer.
    Slow,
}

/// How one call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskTrouble {
    /// ENOSPC: of a write, or of what makes a name.
    Full,
    /// EIO: of any call. After one of a sync the system takes for clean the bytes that it was to make durable, and they
    /// are lost.
    Failed,
    /// EMFILE: of what makes or opens a file.
    TooManyFiles,
    /// A write that ends before its end.
    Short,
}

/// Kinds of calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// Reads, lists or removes.
    Read,
    Open,
    /// Makes a name.
    Make,
    /// Makes a file whose room is set aside.
    MakeFixed,
    Write,
    Sync,
    /// The beginning of another.
    Part,
}

impl DiskTrouble {
    fn happens_to(self, call: Call) -> bool {
        match self {
            DiskTrouble::Full => matches!(call, Call::Make | Call::MakeFixed | Call::Write),
            DiskTrouble::Failed => call != Call::Part,
            DiskTrouble::TooManyFiles => matches!(call, Call::Make | Call::MakeFixed | Call::Open),
            DiskTrouble::Short => call == Call::Write,
        }
    }

    fn error(self) -> DiskError {
        match self {
            DiskTrouble::Full | DiskTrouble::Short => DiskError::Full("the simulated disk is full".into()),
            DiskTrouble::Failed => DiskError::Failed("the simulated disk failed once".into()),
            DiskTrouble::TooManyFiles => DiskError::Failed("the simulated process has too many open files".into()),
        }
    }
}

#[derive(Clone)]
enum NameOp {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Default)]
struct SimFile {
    bytes: Vec<u8>,
    synced: usize,
    /// Where each write since the last sync ends.
    ends: Vec<usize>,
    /// Of a file of fixed length: the writes to places since the last sync, oldest first.
    places: Vec<(usize, Vec<u8>)>,
    /// How many writes to places were synced.
    settled: usize,
    /// Of a file of fixed length: its durable bytes.
    under: Vec<u8>,
    /// Whether zeros follow that were never written.
    is_log: bool,
    /// What a sync that failed has left behind: no later one brings it to the disk.
    doomed: Vec<(usize, usize)>,
}

#[derive(Default)]
struct SimDir {
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    pending: Vec<NameOp>,
    files: BTreeMap<u64, SimFile>,
}

/// All disks of a world.
pub(super) struct Disks {
    dirs: BTreeMap<(u32, String), SimDir>,
    faults: BTreeMap<u32, DiskFault>,
    /// Room of directories that have another than usual.
    rooms: BTreeMap<(u32, String), u64>,
    last_file: u64,
    rng: SimRng,
}

impl Disks {
    pub(super) fn new(seed: u64) -> Disks {
        let (dirs, faults, rooms) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Disks { dirs, faults, rooms, last_file: 0, rng: SimRng::new(seed, "disks") }
    }

    pub(super) fn set_room(&mut self, node: u32, path: &str, bytes: u64) {
        self.rooms.insert((node, path.to_owned()), bytes);
    }

    /// Bytes that a directory could still take.
    fn free(&self, key: &(u32, String)) -> u64 {
        let files = self.dirs.get(key).into_iter().flat_map(|dir| dir.files.values());
        let used: u64 = files.map(|file| file.bytes.len() as u64).sum();
        self.rooms.get(key).unwrap_or(&ROOM_BYTES).saturating_sub(used)
    }

    pub(super) fn set_fault(&mut self, node: u32, fault: DiskFault) {
        self.faults.insert(node, fault);
    }

    pub(super) fn fault(&self, node: u32) -> DiskFault {
        self.faults.get(&node).copied().unwrap_or_default()
    }

    /// What goes wrong with a call that happens now.
    fn trouble(&mut self, node: u32, call: Call) -> Option<DiskError> {
        let fault = self.faults.get_mut(&node)?;
        let writes = matches!(call, Call::MakeFixed | Call::Write | Call::Sync);
        match *fault {
            DiskFault::Full if writes => Some(DiskError::Full("the simulated disk is full".into())),
            DiskFault::Broken if writes => Some(DiskError::Failed("the simulated disk is broken".into())),
            DiskFault::Once(left, trouble) if trouble.happens_to(call) => {
                *fault = if left == 0 { DiskFault::None } else { DiskFault::Once(left - 1, trouble) };
                (left == 0).then(|| trouble.error())
            }
            _ => None,
        }
    }

    /// Flips one bit of a file; `false` if it has no such byte.
    pub(super) fn flip_bit(&mut self, node: u32, path: &str, name: &str, bit: u64) -> bool {
        let Some(dir) = self.dirs.get_mut(&(node, path.to_owned())) else { return false };
        let Some(file) = dir.names.get(name).and_then(|id| dir.files.get_mut(id)) else { return false };
        let Some(byte) = file.bytes.get_mut((bit / 8) as usize) else { return false };
        *byte ^= 1 << (bit % 8);
        if let Some(byte) = file.under.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
        true
    }

    /// The files of a directory with their lengths.
    pub(super) fn list(&self, node: u32, path: &str) -> Vec<(String, u64)> {
        let Some(dir) = self.dirs.get(&(node, path.to_owned())) else { return Vec::new() };
        let length = |id: &u64| dir.files.get(id).map_or(0, |file| file.bytes.len() as u64);
        dir.names.iter().map(|(name, id)| (name.clone(), length(id))).collect()
    }

    /// What a power cut leaves of a node's disks.
    pub(super) fn cut_power(&mut self, node: u32) {
        let rng = &mut self.rng;
        for (_, dir) in self.dirs.iter_mut().filter(|((owner, _), _)| *owner == node) {
            for op in std::mem::take(&mut dir.pending) {
                if rng.chance(500_000) {
                    apply(&mut dir.synced_names, &op);
                }
            }
            dir.names = dir.synced_names.clone();
            let names = &dir.names;
            dir.files.retain(|id, _| names.values().any(|named| named == id));
            for file in dir.files.values_mut() {
                file.tear(rng);
            }
        }
    }
}

fn apply(names: &mut BTreeMap<String, u64>, op: &NameOp) {
    match op {
        NameOp::Create(name, id) => {
            names.insert(name.clone(), *id);
        }
        NameOp::Rename(from, to) => {
            if let Some(id) = names.remove(from) {
                names.insert(to.clone(), id);
            }
        }
        NameOp::Remove(name) => {
            names.remove(name);
        }
    }
}

impl SimFile {
    /// Its length as it is seen.
    fn len(&self) -> usize {
        if self.is_log { self.bytes.len().next_multiple_of(LOG_STEP_BYTES) } else { self.bytes.len() }
    }

    fn tear(&mut self, rng: &mut SimRng) {
        if !self.under.is_empty() {
            return self.tear_places(rng);
        }
        let (mut start, mut kept_end) = (self.synced, self.synced);
        for end in std::mem::take(&mut self.ends) {
            let fate = rng.below(if self.is_log { 5 } else { 4 });
            let kept = match fate {
                0 | 1 | 4 => end,
                2 => start + rng.below((end - start) as u64 + 1) as usize,
                _ => start,
            };
            self.bytes[kept..end].fill(0);
            if fate == 4 {
                // The room was there before: any of its sectors may have been written.
                for sector in self.bytes[start..end].chunks_mut(SECTOR_BYTES) {
                    if rng.chance(300_000) {
                        sector.fill(0);
                    }
                }
            }
            if kept > start {
                kept_end = kept;
            }
            start = end;
        }
        self.bytes.truncate(kept_end);
        self.synced = kept_end;
        for (start, end) in std::mem::take(&mut self.doomed) {
            let end = end.min(kept_end);
            self.bytes[start.min(end)..end].fill(0);
        }
    }

    fn append(&mut self, bytes: &[u8], trouble: Option<DiskError>) -> DiskResult<()> {
        // What fails may have got as far as this.
        let count = if trouble.is_some() { bytes.len() / 2 } else { bytes.len() };
        self.bytes.extend_from_slice(&bytes[..count]);
        self.ends.push(self.bytes.len());
        trouble.map_or(Ok(()), Err)
    }

    /// A sync has failed: the system takes for clean what the disk has not got.
    fn doom(&mut self) {
        if self.under.is_empty() {
            self.doomed.push((self.synced, self.bytes.len()));
            self.synced = self.bytes.len();
            self.ends.clear();
        } else {
            self.settled += self.places.len();
            self.places.clear();
        }
    }
}

impl SimFile {
    /// Each write to a place is kept, lost, or kept in some of its sectors, in any order.
    fn tear_places(&mut self, rng: &mut SimRng) {
        let mut places = std::mem::take(&mut self.places);
        self.settled += places.len();
        while !places.is_empty() {
            let (offset, bytes) = places.swap_remove(rng.below(places.len() as u64) as usize);
            let fate = rng.below(4);
            for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                if fate <= 1 || fate == 2 && rng.chance(500_000) {
                    let at = offset + number * SECTOR_BYTES;
                    self.under[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.bytes = self.under.clone();
    }
}

struct Place {
    core: Arc<Core>,
    life: Life,
    path: String,
}

impl Place {
    /// Lets time pass, then does `op` unless the node has died; `op` is told what goes wrong.
    async fn try_run<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut State, (u32, String), Option<DiskError>) -> DiskResult<T>,
    ) -> DiskResult<T> {
        let delay = {
            let disks = &mut self.core.state.lock().disks;
            let factor = if disks.fault(self.life.node) == DiskFault::Slow { SLOW_FACTOR } else { 1 };
            disks.rng.between(ns.0, ns.1) * factor
        };
        let io = Io::new(Arc::new(Node::new(self.core.clone(), self.life)));
        io.sleep(Duration::from_nanos(delay)).await;
        let mut state = self.core.state.lock();
        if !state.is_alive(self.life) {
            return Err(DiskError::Failed("the node is dead".into()));
        }
        let trouble = state.disks.trouble(self.life.node, call);
        op(&mut state, (self.life.node, self.path.clone()), trouble)
    }

    /// As [`Self::try_run`], for an `op` that does not begin if something goes wrong.
    async fn run<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut State, (u32, String)) -> DiskResult<T>,
    ) -> DiskResult<T> {
        self.try_run(ns, call, |state, key, trouble| trouble.map_or_else(|| op(state, key), Err)).await
    }

    async fn names<T>(&self, call: Call, op: impl FnOnce(&mut SimDir, &mut u64) -> DiskResult<T>) -> DiskResult<T> {
        self.run(WRITE_NS, call, |state, key| {
            let disks = &mut state.disks;
            op(disks.dirs.entry(key).or_default(), &mut disks.last_file)
        })
        .await
    }

    fn file(&self, id: u64) -> Arc<dyn DiskFile> {
        let place = Place { core: self.core.clone(), life: self.life, path: self.path.clone() };
        Arc::new(SimHandle { place, id })
    }

    async fn create_growing(&self, name: &str, is_log: bool) -> DiskResult<Arc<dyn DiskFile>> {
        let id = self
            .names(Call::Make, |dir, last_file| {
                *last_file += 1;
                let op = NameOp::Create(name.into(), *last_file);
                apply(&mut dir.names, &op);
                dir.pending.push(op);
                dir.files.insert(*last_file, SimFile { is_log, ..SimFile::default() });
                Ok(*last_file)
            })
            .await?;
        Ok(self.file(id))
    }

    fn fixed(&self, id: u64) -> Arc<dyn FixedFile> {
        let place = Place { core: self.core.clone(), life: self.life, path: self.path.clone() };
        Arc::new(SimFixed(SimHandle { place, id }))
    }
}

/// Opens a directory of a node, which is made if it is not there.
pub(super) async fn open_dir(core: &Arc<Core>, life: Life, path: &str) -> DiskResult<Arc<dyn Dir>> {
    let place = Place { core: core.clone(), life, path: path.into() };
    place.names(Call::Open, |_, _| Ok(())).await?;
    Ok(Arc::new(place))
}

fn missing(name: &str) -> DiskError {
    DiskError::NotFound(format!("{name}: no such file"))
}

impl Dir for Place {
    fn list(&self) -> Boxed<'_, DiskResult<Vec<String>>> {
        Box::pin(self.names(Call::Read, |dir, _| Ok(dir.names.keys().cloned().collect())))
    }

    fn create<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(self.create_growing(name, false))
    }

    fn create_log<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(self.create_growing(name, true))
    }

    fn open<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(async move {
            let id = self.names(Call::Open, |dir, _| dir.names.get(name).copied().ok_or_else(|| missing(name))).await?;
            Ok(self.file(id))
        })
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> Boxed<'a, DiskResult<()>> {
        Box::pin(self.names(Call::Make, |dir, _| {
            if !dir.names.contains_key(from) {
                return Err(missing(from));
            }
            let op = NameOp::Rename(from.into(), to.into());
            apply(&mut dir.names, &op);
            dir.pending.push(op);
            Ok(())
        }))
    }

    fn remove<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<()>> {
        Box::pin(self.names(Call::Read, |dir, _| {
            let op = NameOp::Remove(name.into());
            apply(&mut dir.names, &op);
            dir.pending.push(op);
            Ok(())
        }))
    }

    fn create_fixed<'a>(&'a self, name: &'a str, bytes: u64) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        Box::pin(async move {
            let made = self.run(WRITE_NS, Call::MakeFixed, |state, key| {
                let disks = &mut state.disks;
                if disks.rooms.contains_key(&key) && disks.free(&key) < bytes {
                    return Err(DiskError::Full("the simulated directory is full".into()));
                }
                disks.last_file += 1;
                let (id, dir) = (disks.last_file, disks.dirs.entry(key).or_default());
                let op = NameOp::Create(name.into(), id);
                apply(&mut dir.names, &op);
                dir.pending.push(op);
                let zeros = vec![0; bytes as usize];
                dir.files.insert(id, SimFile { bytes: zeros.clone(), under: zeros, ..SimFile::default() });
                Ok(id)
            });
            Ok(self.fixed(made.await?))
        })
    }

    fn open_fixed<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        Box::pin(async move {
            let id = self.names(Call::Open, |dir, _| dir.names.get(name).copied().ok_or_else(|| missing(name))).await?;
            Ok(self.fixed(id))
        })
    }

    fn free_bytes(&self) -> Boxed<'_, DiskResult<u64>> {
        Box::pin(self.run(WRITE_NS, Call::Read, |state, key| {
            if matches!(state.disks.faults.get(&key.0), Some(DiskFault::Low | DiskFault::Full)) {
                return Ok(0);
            }
            Ok(state.disks.free(&key))
        }))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(self.run(SYNC_NS, Call::Sync, |state, key| {
            let dir = state.disks.dirs.entry(key).or_default();
            dir.pending.clear();
            dir.synced_names = dir.names.clone();
            Ok(())
        }))
    }

    fn spawn(&self, task: Task) {
        Io::new(Arc::new(Node::new(self.core.clone(), self.life))).spawn(task);
    }
}

struct SimHandle {
    place: Place,
    id: u64,
}

impl SimHandle {
    async fn with<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut SimFile) -> DiskResult<T>,
    ) -> DiskResult<T> {
        self.try_with(ns, call, |file, trouble| trouble.map_or_else(|| op(file), Err)).await
    }

    /// `op` is told what goes wrong.
    async fn try_with<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut SimFile, Option<DiskError>) -> DiskResult<T>,
    ) -> DiskResult<T> {
        let id = self.id;
        self.place
            .try_run(ns, call, |state, key, trouble| {
                let file = state.disks.dirs.get_mut(&key).and_then(|dir| dir.files.get_mut(&id));
                op(file.ok_or_else(|| missing("a removed file"))?, trouble)
            })
            .await
    }
}

impl DiskFile for SimHandle {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        Box::pin(self.with(WRITE_NS, Call::Read, |file| Ok(file.len() as u64)))
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        Box::pin(self.with(WRITE_NS, Call::Read, move |file| {
            let start = (offset as usize).min(file.len());
            let end = (start + len).min(file.len());
            let mut bytes = file.bytes[start.min(file.bytes.len())..end.min(file.bytes.len())].to_vec();
            bytes.resize(end - start, 0);
            Ok(bytes)
        }))
    }

    fn append(&self, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        Box::pin(self.try_with(WRITE_NS, Call::Write, move |file, trouble| file.append(&bytes, trouble)))
    }

    fn append_now(&self, bytes: Vec<u8>) -> Result<DiskResult<()>, Vec<u8>> {
        let mut state = self.place.core.state.lock();
        let (node, path) = (self.place.life.node, self.place.path.clone());
        let may_wait = state.disks.fault(node) == DiskFault::Slow || state.disks.rng.chance(300_000);
        if may_wait || !state.is_alive(self.place.life) {
            return Err(bytes);
        }
        let trouble = state.disks.trouble(node, Call::Write);
        let file = state.disks.dirs.get_mut(&(node, path)).and_then(|dir| dir.files.get_mut(&self.id));
        Ok(file.ok_or_else(|| missing("a removed file")).and_then(|file| file.append(&bytes, trouble)))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(async move {
            // Writes made while the sync runs are not covered by it.
            let covers = self.with((0, 0), Call::Part, |file| Ok(file.bytes.len())).await?;
            self.try_with(SYNC_NS, Call::Sync, move |file, trouble| {
                if let Some(trouble) = trouble {
                    file.doom();
                    return Err(trouble);
                }
                file.synced = file.synced.max(covers);
                file.ends.retain(|end| *end > covers);
                Ok(())
            })
            .await
        })
    }
}

struct SimFixed(SimHandle);

impl FixedFile for SimFixed {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        self.0.size()
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.0.read_at(offset, len)
    }

    fn write_at(&self, offset: u64, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        Box::pin(self.0.try_with(WRITE_NS, Call::Write, move |file, trouble| {
            let start = offset as usize;
            let count = if trouble.is_some() { bytes.len() / 2 } else { bytes.len() };
            let Some(place) = file.bytes.get_mut(start..start + count) else {
                return Err(DiskError::Failed(format!("byte {start}: beyond the end of a simulated file")));
            };
            place.copy_from_slice(&bytes[..count]);
            file.places.push((start, bytes[..count].to_vec()));
            trouble.map_or(Ok(()), Err)
        }))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(async move {
            // Writes made while the sync runs are not covered by it.
            let covers = self.0.with((0, 0), Call::Part, |file| Ok(file.settled + file.places.len())).await?;
            self.0
                .try_with(SYNC_NS, Call::Sync, move |file, trouble| {
                    if let Some(trouble) = trouble {
                        file.doom();
                        return Err(trouble);
                    }
                    let count = covers.saturating_sub(file.settled);
                    file.settled += count;
                    for (start, bytes) in file.places.drain(..count) {
                        file.under[start..start + bytes.len()].copy_from_slice(&bytes);
                    }
                    Ok(())
                })
                .await
        })
    }
}
