//! The disks of simulated nodes. They outlive their node: the death of its process takes nothing
//! that was written, a power cut ([`super::Sim::kill_silently`]) anything that was not synced: each such write is kept,
//! lost or kept in part, independently of those before and after it, and so is each name that was made, changed or
//! removed.

mod dir;
mod faults;
mod file;
mod handle;

use super::rng::SimRng;
use crate::disk::DiskError;
use std::collections::BTreeMap;

pub(super) use dir::open_dir;
use faults::Call;
pub use faults::{DiskFault, DiskTrouble};
use file::SimFile;

/// Time that a write takes, in virtual nanoseconds: at least and at most.
const WRITE_NS: (u64, u64) = (5_000, 60_000);

/// Time that a sync takes.
const SYNC_NS: (u64, u64) = (100_000, 4_000_000);

/// Room of a simulated directory, in bytes.
const ROOM_BYTES: u64 = 1 << 30;

#[derive(Clone)]
enum NameOp {
    Create(String, u64),
    Rename(String, String),
    Remove(String),
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
