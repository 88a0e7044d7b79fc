//! Segments on a simulated disk whose power is cut at any moment: every synced unit is there, in its place.

use aze_io::disk::{Dir, DiskError};
use aze_io::sim::{DiskFault, Faults, Sim};
use aze_io::slab::FrameClass;
use aze_store::disk::manifest::Manifest;
use aze_store::disk::places::Slot;
use aze_store::disk::segments::{Segments, segment_name};
use std::sync::Arc;

const NODE: &str = "s0";
const DIR: &str = "/disk";
const SEGMENT_BYTES: u64 = 1 << 20;
const MANIFEST: Manifest = Manifest {
    volume: 7,
    server: 0,
    servers: 1,
    shards: 256,
    slots: 32,
    chunk_bits: 16,
    owner_uid: 0,
    directory: 0,
    directories: 1,
};

async fn open(sim: &Sim, manifest: Manifest) -> Result<Arc<Segments>, DiskError> {
    let dir: Arc<dyn Dir> = sim.node(NODE).open_dir(DIR).await.expect("a simulated directory opens");
    Segments::open(dir, manifest, SEGMENT_BYTES, 4 << 20).await
}

fn unit(number: usize, class: FrameClass) -> Vec<u8> {
    (0..class.bytes()).map(|at| (at / 7 + number * 31) as u8).collect()
}

#[test]
fn what_was_synced_is_in_its_place_after_a_power_cut() {
    let mut lost = 0;
    for seed in 0..50 {
        let sim = Sim::new(seed, Faults::default());
        let mut rng = sim.rng("segments");
        let classes = [FrameClass::K4, FrameClass::K16, FrameClass::K64];
        let (mut synced, mut last) = (Vec::<(Slot, usize)>::new(), Vec::<(Slot, usize)>::new());
        sim.block_on(async {
            let segments = open(&sim, MANIFEST).await.unwrap();
            for round in 0..4 {
                let mut units = Vec::new();
                for number in 0..rng.between(1, 12) as usize {
                    let class = *rng.pick(&classes);
                    let slot = segments.places().lock().take(class).expect("there is room");
                    units.push((slot, round * 100 + number));
                }
                segments.write(units.iter().map(|(slot, n)| (*slot, unit(*n, slot.class))).collect()).await.unwrap();
                for (slot, number) in &units {
                    assert_eq!(segments.read(*slot, slot.class.bytes()).await.unwrap(), unit(*number, slot.class));
                }
                if round < 3 {
                    segments.sync().await.unwrap();
                    synced.extend(units);
                } else {
                    last = units;
                }
            }
        });
        sim.kill_silently(NODE);
        sim.block_on(async {
            let segments = open(&sim, MANIFEST).await.unwrap();
            for (slot, number) in &synced {
                let there = segments.read(*slot, slot.class.bytes()).await.unwrap();
                assert!(there == unit(*number, slot.class), "seed {seed}: {slot:?} has other bytes");
            }
            for (slot, number) in &last {
                let there = segments.read(*slot, slot.class.bytes()).await;
                lost += usize::from(there.ok() != Some(unit(*number, slot.class)));
            }
        });
        sim.shutdown();
    }
    assert!(lost > 0, "a power cut takes nothing of what was not synced");
}

#[test]
fn segments_of_others_are_refused() {
    let sim = Sim::new(1, Faults::default());
    sim.block_on(async {
        let segments = open(&sim, MANIFEST).await.unwrap();
        let slot = segments.places().lock().take(FrameClass::K4).unwrap();
        segments.write(vec![(slot, unit(1, slot.class))]).await.unwrap();
        let other = open(&sim, Manifest { volume: 8, ..MANIFEST }).await;
        let why = other.err().expect("another volume's").to_string();
        assert!(why.contains(&segment_name(0)) && why.contains("volume 0000000000000008"), "{why}");
        // The format.
        assert!(sim.flip_disk_bit(NODE, DIR, &segment_name(0), (52 + 7) * 8));
        let why = open(&sim, MANIFEST).await.err().expect("another format").to_string();
        assert!(why.contains("format"), "{why}");
    });
    sim.shutdown();
}

#[test]
fn a_segment_without_its_head_is_dropped_only_if_nothing_is_in_it() {
    let sim = Sim::new(1, Faults::default());
    sim.block_on(async {
        let dir: Arc<dyn Dir> = sim.node(NODE).open_dir(DIR).await.expect("a simulated directory opens");
        let head = {
            let segments = open(&sim, MANIFEST).await.unwrap();
            let slot = segments.places().lock().take(FrameClass::K4).unwrap();
            segments.write(vec![(slot, unit(1, slot.class))]).await.unwrap();
            dir.open_fixed(&segment_name(0)).await.unwrap()
        };
        head.write_at(0, vec![0; 4096]).await.unwrap();
        let why = open(&sim, MANIFEST).await.err().expect("what is in it is not thrown away").to_string();
        assert!(why.contains(&segment_name(0)) && why.contains("no head"), "{why}");
        dir.create_fixed(&segment_name(0), SEGMENT_BYTES).await.unwrap();
        open(&sim, MANIFEST).await.expect("the power went while it was made");
        assert!(!dir.list().await.unwrap().contains(&segment_name(0)));
    });
    sim.shutdown();
}

#[test]
fn a_full_disk_makes_no_segment_and_a_failed_sync_is_remembered() {
    let sim = Sim::new(1, Faults::default());
    sim.block_on(async {
        let segments = open(&sim, MANIFEST).await.unwrap();
        let slot = segments.places().lock().take(FrameClass::K64).unwrap();
        sim.set_disk_fault(NODE, DiskFault::Full);
        let full = segments.write(vec![(slot, unit(1, slot.class))]).await;
        assert!(matches!(full, Err(DiskError::Full(_))), "{full:?}");
        sim.set_disk_fault(NODE, DiskFault::None);
        segments.write(vec![(slot, unit(1, slot.class))]).await.unwrap();
        sim.set_disk_fault(NODE, DiskFault::Broken);
        segments.sync().await.unwrap_err();
        sim.set_disk_fault(NODE, DiskFault::None);
        segments.sync().await.expect_err("what the disk has is not known any more");
    });
    sim.shutdown();
}
