//! Chunks partly on a simulated disk, against a plain array of bytes: after parts are let go of, brought back,
//! cut, overwritten, or written down as a checkpoint and read again, the bytes are the same.

use aze_io::sim::{Faults, Sim, SimRng};
use aze_io::slab::Slab;
use aze_proto::ids::{Generation, Ino};
use aze_proto::sum::{first_mismatch, piece_sums};
use aze_store::disk::manifest::Manifest;
use aze_store::disk::segments::Segments;
use aze_store::{ChunkShard, Disk, Row, Store, StoreError, Warmed};
use std::sync::Arc;

const CHUNK_BITS: u8 = 18;
const CHUNK_BYTES: usize = 1 << CHUNK_BITS;
const CAPACITY_BYTES: u64 = 8 << 20;
const MANIFEST: Manifest = Manifest {
    volume: 7,
    server: 0,
    servers: 1,
    shards: 256,
    slots: 32,
    chunk_bits: CHUNK_BITS,
    owner_uid: 0,
    directory: 0,
    directories: 1,
};
const INO: Ino = Ino(5);

async fn empty(sim: &Sim) -> (Arc<Store>, ChunkShard) {
    let store = Store::new(Slab::new(2 << 20).expect("two megabytes"));
    let dir: Arc<dyn aze_io::disk::Dir> = sim.node("s0").open_dir("/disk").await.expect("a directory");
    let segments = Segments::open(dir, MANIFEST, 1 << 20, CAPACITY_BYTES).await.expect("segments");
    store.use_disk(Disk::new(segments, CAPACITY_BYTES));
    (store.clone(), ChunkShard::new(store))
}

/// Does `what`, bringing units back for as long as they are wanted.
async fn with_units<T>(
    store: &Arc<Store>,
    shard: &mut ChunkShard,
    mut what: impl FnMut(&mut ChunkShard) -> Result<T, StoreError>,
) -> T {
    for _ in 0..3 {
        match what(shard) {
            Err(StoreError::Cold { ino, chunk, units }) => {
                let cold = shard.cold(ino, chunk, &units);
                assert!(!cold.is_empty(), "something is wanted");
                for cold in cold {
                    let bytes = store.fetch(&cold).await.expect("it is there");
                    assert_eq!(shard.warm(&cold, &bytes, false), Warmed::Done);
                }
            }
            other => return other.expect("nothing else is in the way"),
        }
    }
    panic!("units were brought back and were not there");
}

async fn let_go(store: &Arc<Store>, shard: &mut ChunkShard, rng: &mut SimRng) {
    let swept = shard.sweep((Ino(0), 0), 100, rng.between(1, 2 << 20), rng.chance(700_000));
    let (mut placed, left) = store.write_out(swept.dirty).await.expect("the disk works");
    assert!(left.is_empty(), "there is room");
    if rng.chance(100_000) {
        // Another request was faster.
        placed.truncate(1);
    }
    for (unit, place) in placed {
        shard.settle(unit, place, false);
    }
}

/// Writes everything down, and makes it again as a server that starts does.
async fn start_again(sim: &Sim, store: &Arc<Store>, shard: &mut ChunkShard) -> (Arc<Store>, ChunkShard) {
    let begun = store.begin_checkpoint();
    let all = shard.snapshot();
    let (placed, left) = store.write_out(all.dirty).await.expect("the disk works");
    assert!(left.is_empty(), "there is room");
    let mut rows = all.rows;
    for (unit, place) in placed {
        rows.push(Row { slot: place.number(), ..unit.row() });
        shard.settle(unit, place, true);
    }
    store.disk().expect("there is one").segments().sync().await.expect("the disk works");
    store.checkpoint_durable(begun);
    if sim.rng("cut").chance(500_000) {
        sim.kill_silently("s0");
    }
    let (store, mut shard) = empty(sim).await;
    rows.iter().for_each(|row| shard.restore_row(row).expect("a sound row"));
    (store, shard)
}

/// All units, in memory and on the disk: each matches its checksums, and none comes into memory.
async fn looked_through(store: &Store, shard: &ChunkShard) {
    let used = store.memory_used_bytes();
    let mut next = Some((Ino(0), 0, 0));
    while let Some(from) = next {
        let look = shard.look(from, 2, 100_000);
        assert!(look.next.is_none_or(|next| next > from), "it does not go on");
        for looked in &look.units {
            assert_eq!(looked.rotten_in_memory(), None, "{:?}", looked.spot);
            assert_eq!(store.rotten_on_disk(looked).await.expect("the disk works"), None, "{:?}", looked.spot);
            assert!(shard.is_as_looked(looked));
        }
        next = look.next;
    }
    assert_eq!(store.memory_used_bytes(), used);
}

#[test]
fn a_start_uses_places_again_that_no_checkpoint_names() {
    let sim = Sim::new(1, Faults::default());
    sim.block_on(async {
        let (store, mut shard) = empty(&sim).await;
        let unit = vec![7; 64 << 10];
        let sums = piece_sums(0, &unit);
        // Twice as much as the disk has, and one unit of it counts.
        for _ in 0..2 * CAPACITY_BYTES / (64 << 10) {
            shard.write(INO, Generation(1), 0, 0, &unit, &sums).expect("there is memory");
            let (placed, left) = store.write_out(shard.sweep((Ino(0), 0), 1, 1, true).dirty).await.expect("it works");
            assert!(left.is_empty(), "no checkpoint can make room before the journal is read");
            placed.into_iter().for_each(|(unit, place)| shard.settle(unit, place, false));
        }
        assert!(!store.waits_for_checkpoint());
        // What the first checkpoint names waits for the next one; and so does all else from then on.
        store.begin_checkpoint();
        shard.write(INO, Generation(1), 0, 0, &unit, &sums).expect("there is memory");
        assert!(store.waits_for_checkpoint());
    });
}

#[test]
fn what_is_on_the_disk_is_what_was_in_memory() {
    for seed in 0..60 {
        let sim = Sim::new(seed, Faults::default());
        let mut rng = sim.rng("spill");
        sim.block_on(async {
            let (mut store, mut shard) = empty(&sim).await;
            let mut model = vec![0u8; CHUNK_BYTES];
            let mut generation = 1;
            for step in 0..150u64 {
                match rng.below(20) {
                    0..=6 => {
                        let offset = rng.below(CHUNK_BYTES as u64) as usize;
                        let (offset, len) = match rng.below(3) {
                            0 => (offset & !0xffff, 65536),
                            1 => (offset & !0xfff, 4096 * rng.between(1, 4) as usize),
                            _ => (offset, rng.between(1, 70_000) as usize),
                        };
                        let end = (offset + len).min(CHUNK_BYTES);
                        let data: Vec<u8> = (offset..end).map(|at| (at as u64 * 31 + step * 7) as u8 | 1).collect();
                        let sums = piece_sums(offset as u64, &data);
                        with_units(&store, &mut shard, |shard| {
                            shard.write(INO, Generation(generation), 0, offset as u32, &data, &sums)
                        })
                        .await;
                        model[offset..end].copy_from_slice(&data);
                    }
                    7..=8 => {
                        let length = rng.below(CHUNK_BYTES as u64) as usize;
                        generation += 1;
                        shard.truncate(INO, Generation(generation), length as u64, CHUNK_BITS);
                        model[length..].fill(0);
                    }
                    9..=13 => let_go(&store, &mut shard, &mut rng).await,
                    14 => (store, shard) = start_again(&sim, &store, &mut shard).await,
                    15 => looked_through(&store, &shard).await,
                    _ => {
                        let offset = rng.below(CHUNK_BYTES as u64) as usize;
                        let len = rng.between(1, 100_000).min((CHUNK_BYTES - offset) as u64) as usize;
                        let known = shard.generation_of(INO).unwrap_or(Generation(generation));
                        let held = with_units(&store, &mut shard, |shard| {
                            shard.hold(INO, known, 0, offset as u32, len as u32)
                        })
                        .await;
                        let (start, bytes) = (held.start as usize, held.parts().concat());
                        assert_eq!(first_mismatch(start as u64, &bytes, &held.sums), None, "seed {seed}, step {step}");
                        let same = bytes == model[start..start + bytes.len()];
                        assert!(same, "seed {seed}, step {step}: other bytes at {start}");
                        let rest = &model[start + bytes.len()..(offset + len).max(start + bytes.len())];
                        assert!(rest.iter().all(|byte| *byte == 0), "seed {seed}, step {step}: too short");
                    }
                }
            }
        });
        sim.shutdown();
    }
}

#[test]
fn what_has_changed_on_the_disk_does_not_match() {
    let sim = Sim::new(1, Faults::default());
    sim.block_on(async {
        let (store, mut shard) = empty(&sim).await;
        for number in 0..2u64 {
            let data = vec![number as u8 + 1; 65536];
            shard.write(Ino(5 + number), Generation(1), 0, 0, &data, &piece_sums(0, &data)).unwrap();
        }
        let swept = shard.sweep((Ino(0), 0), 100, u64::MAX, true);
        let (placed, _) = store.write_out(swept.dirty).await.unwrap();
        placed.into_iter().for_each(|(unit, place)| shard.settle(unit, place, false));
        let cold: Vec<_> = (5..7).flat_map(|ino| shard.cold(Ino(ino), 0, &(0..1))).collect();
        assert_eq!(cold.len(), 2);
        // The disk reads from the wrong place.
        let other = store.fetch(&cold[1]).await.unwrap();
        assert_eq!(shard.warm(&cold[0], &other, false), Warmed::Differs);
        // A bit has changed.
        assert!(sim.flip_disk_bit("s0", "/disk", "data-0000000000", (65536 + 5000) * 8));
        let rotten = store.fetch(&cold[0]).await.unwrap();
        assert_eq!(shard.warm(&cold[0], &rotten, false), Warmed::Differs);
        // Kept all the same, it is known for that: the other blocks can still be read.
        assert_eq!(shard.warm(&cold[0], &rotten, true), Warmed::Done);
        let held = shard.hold(Ino(5), Generation(1), 0, 0, 65536).unwrap();
        assert_eq!(first_mismatch(0, &held.parts().concat(), &held.sums), Some(1));
    });
    sim.shutdown();
}
