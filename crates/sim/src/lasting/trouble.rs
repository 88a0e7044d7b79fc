//! What goes wrong besides while clients of a volume that lasts work: on the wire, on a disk, with clocks.

use super::CHUNKS_MAX;
use crate::cluster::{CHUNK_BITS, Cluster, server_node};
use aze_io::sim::{DiskFault, Faults, SimRng};

/// Largest jump of a clock, in seconds: half a day.
const JUMP_SECONDS_MAX: u64 = 12 * 3600;

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
    /// Hardly anybody syncs, and files are so short that no size has to be durable: most of what is done can
    /// be lost, and must hang together all the same.
    pub few_syncs: bool,
}

impl Trouble {
    /// The trouble of a seed.
    pub(super) fn of(seed: u64) -> Trouble {
        let mut rng = SimRng::new(seed, "trouble");
        let [frames, cuts, slow_disks, clocks, few_syncs] = [(); 5].map(|()| rng.chance(500_000));
        Trouble { frames, cuts, slow_disks, clocks, few_syncs }
    }

    /// Chance of a sync where others sync always, in millionths.
    pub(super) fn sync_ppm(&self) -> u32 {
        if self.few_syncs { 50_000 } else { 1_000_000 }
    }

    /// Longest file, in bytes.
    pub(super) fn file_bytes_max(&self) -> u64 {
        if self.few_syncs { 1 << CHUNK_BITS } else { CHUNKS_MAX << CHUNK_BITS }
    }

    /// Who waits for a disk, or for what was lost, needs longer for the same work.
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

/// It is over: who looks at what there is has a quiet cluster.
pub(super) fn end(cluster: &Cluster) {
    cluster.sim.set_faults(Faults::default());
    for server in 0..cluster.layout().servers {
        cluster.sim.set_disk_fault(&server_node(server), DiskFault::None);
    }
}
