//! What goes wrong besides while clients of a persistent volume work: on the wire, on a disk, with clocks.

use super::{CHECKPOINT_BITS, CHUNKS_MAX, WRITE_BYTES_MAX};
use crate::cluster::{CHUNK_BITS, Cluster, STORAGE_DIR, server_node};
use aze_io::sim::{DiskFault, Faults, SimRng};
use aze_proto::{Ino, Name, NameHash};
use aze_server::Server;
use std::collections::BTreeSet;
use std::time::Duration;

/// Largest jump of a clock, in seconds: half a day.
const JUMP_SECONDS_MAX: u64 = 12 * 3600;

/// How the name of a checkpoint ends while it is made.
const UNFINISHED: &str = ".new";

/// Pause between two looks whether a checkpoint is there: less than the disk needs for anything.
const LOOK_PAUSE: Duration = Duration::from_micros(20);

/// What goes wrong.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// Messages are lost, come twice, and overtake each other.
    pub frames: bool,
    /// Connections break, and bits flip on them.
    pub cuts: bool,
    /// Some disks are slow.
    pub slow_disks: bool,
    /// Clocks jump, by seconds or by hours.
    pub clocks: bool,
    /// Clients hardly ever sync, and files are so short that no size has to be durable: most changes can be lost,
    /// and the rest must be consistent all the same.
    pub few_syncs: bool,
    /// Many tasks rename most of the time, so that something is always half done, and everything ends when a
    /// checkpoint is just there during which something was renamed.
    pub renames: bool,
}

impl Trouble {
    /// The trouble of a seed.
    pub(super) fn of(seed: u64) -> Trouble {
        let mut rng = SimRng::new(seed, "trouble");
        let [frames, cuts, slow_disks, clocks, few_syncs] = [(); 5].map(|()| rng.chance(500_000));
        Trouble { frames, cuts, slow_disks, clocks, few_syncs, renames: false }
    }

    /// A crowd that renames, of a seed.
    pub(super) fn renaming(seed: u64) -> Trouble {
        let slow_disks = SimRng::new(seed, "renaming trouble").chance(500_000);
        Trouble { frames: false, cuts: false, slow_disks, clocks: false, few_syncs: true, renames: true }
    }

    /// What a worker does instead of a step.
    pub(super) fn step(&self, step: u64) -> u64 {
        match step {
            _ if !self.renames => step,
            // A file is made, written or synced.
            0..=5 => 15,
            6..=70 => 35,
            71 => 99,
            // It is renamed.
            _ => 60,
        }
    }

    /// Chance of a sync where others sync always, in millionths.
    pub(super) fn sync_ppm(&self) -> u32 {
        if self.few_syncs { 50_000 } else { 1_000_000 }
    }

    /// Longest write, in bytes. Short ones leave little data in many files for a checkpoint to write down, so
    /// that much happens between the shard that it looks at first and the last one.
    pub(super) fn write_bytes_max(&self) -> u64 {
        if self.renames { 2_000 } else { WRITE_BYTES_MAX }
    }

    /// How much is in a journal before a checkpoint, at least and at most, as powers of two.
    pub(super) fn checkpoint_bits(&self) -> (u64, u64) {
        if self.renames { (14, 16) } else { CHECKPOINT_BITS }
    }

    /// Longest file, in bytes.
    pub(super) fn file_bytes_max(&self) -> u64 {
        if self.few_syncs { 1 << CHUNK_BITS } else { CHUNKS_MAX << CHUNK_BITS }
    }

    /// Longest life, in microseconds: with slow disks or lost messages the same work takes longer.
    pub(super) fn life_us_max(&self) -> u64 {
        if self.frames || self.slow_disks { 1_500_000 } else { 400_000 }
    }

    /// It begins, in one of the lives.
    pub(super) fn begin(&self, cluster: &Cluster, life: usize) {
        let rng = &mut cluster.sim.rng(&format!("trouble of life {life}"));
        let mut faults = Faults::default();
        if self.frames {
            (faults.loss_ppm, faults.duplicate_ppm) = (rng.below(6_000) as u32, rng.below(20_000) as u32);
            (faults.reorder_ppm, faults.reorder_delay_ns_max) =
                (rng.below(50_000) as u32, rng.between(1_000_000, 1_500_000_000));
        }
        if self.cuts {
            (faults.connection_cut_ppm, faults.flip_ppm) = (rng.below(3_000) as u32, rng.below(2_000) as u32);
        }
        cluster.sim.set_faults(faults);
        for server in (0..cluster.layout().servers).filter(|_| self.slow_disks) {
            if rng.chance(500_000) {
                cluster.sim.set_disk_fault(&server_node(server), DiskFault::Slow);
            }
        }
        self.jump(cluster, rng);
    }

    /// In the middle of a life.
    pub(super) fn go_on(&self, cluster: &Cluster, life: usize) {
        self.jump(cluster, &mut cluster.sim.rng(&format!("more trouble of life {life}")));
    }

    /// The rest of a life: to its end, or to the moment that [`Self::renames`] describes.
    pub(super) async fn last_moments(&self, cluster: &Cluster, left: Duration) {
        let sim = &cluster.sim;
        if !self.renames {
            return sim.sleep(left).await;
        }
        let ends_ns = sim.now_ns() + left.as_nanos() as u64;
        // For each server, the renamed names at the beginning of its checkpoint.
        let mut begun: Vec<Option<BTreeSet<Name>>> = vec![None; cluster.layout().servers.into()];
        while sim.now_ns() < ends_ns {
            for (index, before) in (0..).zip(&mut begun) {
                let Some(server) = &cluster.server(index) else { continue };
                let files = sim.disk_files(&server_node(index), STORAGE_DIR);
                let is_made = files.iter().any(|(name, _)| name.ends_with(UNFINISHED));
                *before = match before.take() {
                    None if is_made => Some(renamed(cluster, server)),
                    Some(before) if !is_made && !renamed(cluster, server).is_subset(&before) => return,
                    before => before.filter(|_| is_made),
                };
            }
            sim.sleep(LOOK_PAUSE).await;
        }
    }

    fn jump(&self, cluster: &Cluster, rng: &mut SimRng) {
        for server in (0..cluster.layout().servers).filter(|_| self.clocks) {
            let seconds = if rng.chance(500_000) { 20 } else { JUMP_SECONDS_MAX };
            let ns = rng.below(2 * seconds * 1_000_000_000) as i64 - seconds as i64 * 1_000_000_000;
            if rng.chance(700_000) {
                cluster.sim.step_clock(&server_node(server), ns);
            }
        }
    }
}

/// Names at a server that are in another shard than what they lead to, since they are not the first ones.
fn renamed(cluster: &Cluster, server: &Server) -> BTreeSet<Name> {
    let shards = cluster.layout().shards;
    let is_elsewhere = |name: &Name, ino: Ino| NameHash::of(Ino::ROOT, name).shard(shards) != ino.home(shards);
    let entries = server.entries_of(Ino::ROOT).into_iter();
    entries.filter(|(name, ino, _)| is_elsewhere(name, *ino)).map(|(name, ..)| name).collect()
}

/// Ends it: the checks that follow run in a quiet cluster.
pub(super) fn end(cluster: &Cluster) {
    cluster.sim.set_faults(Faults::default());
    for server in 0..cluster.layout().servers {
        cluster.sim.set_disk_fault(&server_node(server), DiskFault::None);
    }
}
