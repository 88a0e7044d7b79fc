//! Segments in several directories: they take turns, each is found wherever it is, and one directory that is
//! full leaves them to the others.

use aze_io::disk::{Dir, DiskError};
use aze_io::sim::{Faults, Sim};
use aze_io::slab::{FrameClass, Slab};
use aze_proto::ids::{Generation, Ino};
use aze_proto::sum::piece_sums;
use aze_store::disk::manifest::Manifest;
use aze_store::disk::places::Slot;
use aze_store::disk::segments::{Root, Segments, segment_name};
use aze_store::{ChunkShard, Disk, Placed, Store};
use std::sync::Arc;

const NODE: &str = "s0";
const SEGMENT_BYTES: u64 = 1 << 20;
/// Units of 64 KiB in a segment.
const UNITS: usize = 15;
const MANIFEST: Manifest = Manifest {
    volume: 7,
    server: 0,
    servers: 1,
    shards: 256,
    slots: 32,
    chunk_bits: 16,
    owner_uid: 0,
    directory: 0,
    directories: 2,
};

async fn dir(sim: &Sim, path: &str) -> Arc<dyn Dir> {
    sim.node(NODE).open_dir(path).await.expect("a simulated directory opens")
}

async fn open(sim: &Sim, paths: [&str; 2], bytes: u64) -> Result<Arc<Segments>, DiskError> {
    let mut roots = Vec::new();
    for path in paths {
        roots.push(Root { dir: dir(sim, path).await, name: path.into() });
    }
    Segments::open_in(roots, MANIFEST, SEGMENT_BYTES, bytes).await
}

fn names(sim: &Sim, path: &str) -> Vec<String> {
    sim.disk_files(NODE, path).into_iter().map(|(name, _)| name).collect()
}

fn unit(slot: Slot) -> Vec<u8> {
    (0..slot.class.bytes()).map(|at| (at / 7) as u8 ^ (slot.base as u8).wrapping_mul(31)).collect()
}

#[test]
fn segments_take_turns_and_are_there_after_a_power_cut_in_any_order() {
    for seed in 0..30 {
        let sim = Sim::new(seed, Faults::default());
        let mut slots = Vec::new();
        sim.block_on(async {
            let segments = open(&sim, ["/a", "/b"], 8 << 20).await.unwrap();
            slots.extend((0..4 * UNITS).map_while(|_| segments.places().lock().take(FrameClass::K64)));
            assert_eq!(slots.len(), 4 * UNITS);
            segments.write(slots.iter().map(|slot| (*slot, unit(*slot))).collect()).await.unwrap();
            segments.sync().await.unwrap();
            assert_eq!(names(&sim, "/a"), [segment_name(0), segment_name(2)]);
            assert_eq!(names(&sim, "/b"), [segment_name(1), segment_name(3)]);
            assert!(segments.describe(slots[0]).starts_with("/a/data-"), "{}", segments.describe(slots[0]));
        });
        sim.kill_silently(NODE);
        sim.block_on(async {
            let segments = open(&sim, ["/b", "/a"], 8 << 20).await.unwrap();
            for slot in &slots {
                let there = segments.read(*slot, slot.class.bytes()).await.unwrap();
                assert!(there == unit(*slot), "seed {seed}: {slot:?} has other bytes");
            }
        });
        sim.shutdown();
    }
}

#[test]
fn a_segment_that_is_in_two_directories_is_refused_unless_one_was_being_made() {
    let sim = Sim::new(1, Faults::default());
    sim.block_on(async {
        let slot = {
            let segments = open(&sim, ["/a", "/b"], 8 << 20).await.unwrap();
            let slot = segments.places().lock().take(FrameClass::K4).unwrap();
            segments.write(vec![(slot, unit(slot))]).await.unwrap();
            slot
        };
        let other = dir(&sim, "/b").await.create_fixed(&segment_name(0), SEGMENT_BYTES).await.unwrap();
        let segments = open(&sim, ["/b", "/a"], 8 << 20).await.expect("the power went while it was made");
        assert!(segments.read(slot, 4096).await.unwrap() == unit(slot));
        assert_eq!(names(&sim, "/b"), [""; 0]);
        drop(other);
        let from = dir(&sim, "/a").await.open_fixed(&segment_name(0)).await.unwrap();
        let copy = dir(&sim, "/b").await.create_fixed(&segment_name(0), SEGMENT_BYTES).await.unwrap();
        copy.write_at(0, from.read_at(0, SEGMENT_BYTES as usize).await.unwrap()).await.unwrap();
        let why = open(&sim, ["/a", "/b"], 8 << 20).await.err().expect("a copy").to_string();
        assert!(why.contains(&segment_name(0)) && why.contains("in /a and in /b"), "{why}");
    });
    sim.shutdown();
}

/// As a server that lets go of memory: writes out so many new units, and gives how many had a place.
async fn write_units(store: &Arc<Store>, shard: &mut ChunkShard, kept: &mut Vec<Ino>, count: usize) -> usize {
    for _ in 0..count {
        let (ino, data) = (Ino(kept.len() as u64 + 5), vec![kept.len() as u8 + 1; 65536]);
        shard.write(ino, Generation(1), 0, 0, &data, &piece_sums(0, &data)).expect("there is memory");
        kept.push(ino);
    }
    let swept = shard.sweep((Ino(0), 0), 1000, u64::MAX, true);
    let (placed, _): (Vec<(_, Placed)>, _) = store.write_out(swept.dirty).await.expect("the disk works");
    let count = placed.len();
    placed.into_iter().for_each(|(unit, place)| shard.settle(unit, place, false));
    count
}

#[test]
fn a_directory_that_is_full_leaves_segments_to_the_other_and_all_room_is_used() {
    let sim = Sim::new(1, Faults::default());
    sim.block_on(async {
        sim.set_disk_room(NODE, "/b", SEGMENT_BYTES * 3 / 2);
        sim.set_disk_room(NODE, "/a", 5 * SEGMENT_BYTES);
        let segments = open(&sim, ["/a", "/b"], 64 << 20).await.unwrap();
        // One of the five is for other things.
        segments.keep_free(SEGMENT_BYTES);
        let store = Store::new(Slab::new(16 << 20).expect("memory"));
        store.use_disk(Disk::new(segments, 64 << 20));
        let (mut shard, mut kept) = (ChunkShard::new(store.clone()), Vec::new());
        // More than a MiB for each lane.
        assert_eq!(write_units(&store, &mut shard, &mut kept, 2 * UNITS).await, 2 * UNITS);
        assert_eq!([names(&sim, "/a").len(), names(&sim, "/b").len()], [1, 1]);
        // Now in the first one only.
        assert_eq!(write_units(&store, &mut shard, &mut kept, UNITS + 3).await, UNITS + 3);
        assert_eq!(names(&sim, "/a"), [segment_name(0), segment_name(2), segment_name(3)]);
        // What these have left, and one more segment of the two that are thought of next.
        assert_eq!(write_units(&store, &mut shard, &mut kept, UNITS + 1).await, UNITS + 1);
        assert_eq!(write_units(&store, &mut shard, &mut kept, UNITS - 1).await, UNITS - 4);
        assert_eq!(names(&sim, "/a").len(), 4, "what is left there is not for segments");
        assert_eq!(write_units(&store, &mut shard, &mut kept, 0).await, 0);
        // There is room again.
        sim.set_disk_room(NODE, "/b", 2 * SEGMENT_BYTES);
        assert_eq!(write_units(&store, &mut shard, &mut kept, 0).await, 3);
        assert_eq!(names(&sim, "/b").len(), 2);
        for (number, ino) in kept.iter().enumerate() {
            let cold = shard.cold(*ino, 0, &(0..1));
            assert_eq!(cold.len(), 1, "{ino} has a place");
            let bytes = store.fetch(&cold[0]).await.expect("it can be read");
            assert!(bytes.iter().all(|byte| *byte == number as u8 + 1), "{ino} has other bytes");
        }
    });
    sim.shutdown();
}
