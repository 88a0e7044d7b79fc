//! Chunks that are copies of what lies elsewhere: they go and nothing else does, and any change of one makes it stay.

use aze_io::sim::{Faults, Sim};
use aze_io::slab::Slab;
use aze_proto::ids::{Generation, Ino};
use aze_proto::sum::piece_sums;
use aze_store::disk::manifest::Manifest;
use aze_store::disk::segments::Segments;
use aze_store::{ChunkShard, Disk, Evicted, InChunk, Row, SeekFrom, Store, StoreError};
use std::sync::Arc;

const CHUNK_BITS: u8 = 17;
const CHUNK: usize = 1 << CHUNK_BITS;
const G: Generation = Generation(1);

fn file(number: u64) -> Ino {
    Ino(number).of_backing()
}

fn fill(shard: &mut ChunkShard, ino: Ino, chunk: u64, byte: u8) {
    let data = vec![byte; CHUNK];
    shard.fill(ino, G, chunk, &data, &piece_sums(0, &data)).expect("there is room");
}

fn write(shard: &mut ChunkShard, ino: Ino, chunk: u64, data: &[u8]) {
    shard.write(ino, G, chunk, 100, data, &piece_sums(100, data)).expect("there is room");
}

fn evict_all(shard: &mut ChunkShard) -> Evicted {
    shard.evict((Ino(0), 0), usize::MAX, u64::MAX, true)
}

fn empty() -> (Arc<Store>, ChunkShard) {
    let store = Store::new(Slab::new(4 << 20).expect("four megabytes"));
    (store.clone(), ChunkShard::new(store))
}

#[test]
fn what_changes_a_copy_makes_it_stay() {
    type Change = fn(&mut ChunkShard, Ino);
    let changes: [(&str, Change); 7] = [
        ("a write", |shard, ino| write(shard, ino, 1, b"new")),
        ("a reservation", |shard, ino| shard.reserve(ino, G, 1, 0..10, false).expect("there is room")),
        ("zeroing", |shard, ino| shard.reserve(ino, G, 1, 0..10, true).expect("there is room")),
        ("a hole", |shard, ino| {
            let start = CHUNK as u64 + 5;
            shard.punch(ino, G, start..start + 9000, CHUNK_BITS).expect("there is room");
        }),
        ("a truncation", |shard, ino| shard.truncate(ino, Generation(2), CHUNK as u64 + 7, CHUNK_BITS)),
        ("a trim", |shard, ino| shard.trim(ino, CHUNK as u64 + 7, CHUNK_BITS)),
        ("a word", |shard, ino| assert!(shard.keep(ino, 1))),
    ];
    for (what, change) in changes {
        let (store, mut shard) = empty();
        let ino = file(7);
        (0..2).for_each(|chunk| fill(&mut shard, ino, chunk, 3));
        assert_eq!(store.copies_bytes(), 2 * CHUNK as u64);
        change(&mut shard, ino);
        assert!(shard.is_copy(ino, 0) && !shard.is_copy(ino, 1), "{what}");
        assert_eq!(store.copies_bytes(), CHUNK as u64, "{what}");
        let evicted = evict_all(&mut shard);
        assert_eq!(evicted.chunks, [(ino, 0)], "{what}");
        assert!(!shard.has(ino, 0) && shard.has(ino, 1), "{what}");
        assert_eq!(store.copies_bytes(), 0, "{what}");
    }
}

#[test]
fn copies_go_once_they_were_not_used_between_two_looks() {
    let (store, mut shard) = empty();
    for number in 1..4 {
        fill(&mut shard, file(number), 0, number as u8);
    }
    write(&mut shard, Ino(9), 0, b"not of the backing");
    let before = (store.used_bytes(), shard.count_changes(file(1), G).expect("it is there"));
    let look = |shard: &mut ChunkShard| shard.evict((Ino(0), 0), 100, u64::MAX, false).chunks;
    assert_eq!(look(&mut shard), [], "all were used just now");
    shard.read(file(2), G, 0, 0, 10, |_| ()).expect("it is there");
    let held = shard.hold(file(3), G, 0, 0, 10).expect("it is there");
    let evicted = shard.evict((Ino(0), 0), 100, u64::MAX, false);
    assert_eq!((&evicted.chunks[..], evicted.freed_bytes, evicted.held), (&[(file(1), 0)][..], CHUNK as u64, 1));
    assert_eq!(store.used_bytes(), before.0 - CHUNK as u64);
    assert_eq!(shard.count_changes(file(1), G).expect("it is known"), before.1, "no byte has changed");
    // What a reader holds stays, and is right.
    assert_eq!(
        evict_all(&mut shard),
        Evicted { held: 1, freed_bytes: CHUNK as u64, chunks: vec![(file(2), 0)], next: None }
    );
    assert!(held.parts().concat().iter().all(|byte| *byte == 3));
    drop(held);
    assert_eq!(evict_all(&mut shard).chunks, [(file(3), 0)]);
    assert_eq!((shard.chunks(), shard.has(Ino(9), 0), store.copies_bytes()), (1, true, 0));
    // It comes again.
    fill(&mut shard, file(1), 0, 1);
    assert!(shard.is_copy(file(1), 0));
}

#[test]
fn a_look_ends_where_it_has_enough_and_says_where_to_go_on() {
    let (_, mut shard) = empty();
    (0..6).for_each(|chunk| fill(&mut shard, file(1), chunk, 1));
    let first = shard.evict((Ino(0), 0), 100, CHUNK as u64 + 1, true);
    assert_eq!((first.chunks.len(), first.next), (2, Some((file(1), 2))));
    let second = shard.evict((file(1), 2), 3, u64::MAX, true);
    assert_eq!((second.chunks.len(), second.next), (3, Some((file(1), 5))));
    let third = shard.evict((file(1), 5), 3, u64::MAX, true);
    assert_eq!((third.chunks.len(), third.next), (1, None));
    assert_eq!(evict_all(&mut shard), Evicted::default());
}

#[test]
fn a_checkpoint_says_which_chunks_are_copies_and_keeps_zeros() {
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
    let sim = Sim::new(1, Faults::default());
    let start = async || {
        let (store, shard) = empty();
        let dir: Arc<dyn aze_io::disk::Dir> = sim.node("s0").open_dir("/disk").await.expect("a directory");
        let segments = Segments::open(dir, MANIFEST, 1 << 20, 8 << 20).await.expect("segments");
        store.use_disk(Disk::new(segments, 8 << 20));
        (store, shard)
    };
    sim.block_on(async {
        let (store, mut shard) = start().await;
        (0..4).for_each(|chunk| fill(&mut shard, file(1), chunk, 1));
        write(&mut shard, file(1), 1, b"new");
        // Copies of zeros, and zeros that were written over something else.
        fill(&mut shard, file(1), 2, 0);
        fill(&mut shard, file(1), 3, 0);
        let zeros = vec![0; CHUNK];
        shard.write(file(1), G, 3, 0, &zeros, &piece_sums(0, &zeros)).expect("there is room");
        // Holes that take all of a chunk, at once and in two steps.
        let punch = |shard: &mut ChunkShard, from: usize, to: usize| {
            shard.punch(file(1), G, from as u64..to as u64, CHUNK_BITS).expect("a hole");
        };
        (4..6).for_each(|chunk| fill(&mut shard, file(1), chunk, 1));
        punch(&mut shard, 4 * CHUNK, 5 * CHUNK + 70_000);
        punch(&mut shard, 5 * CHUNK + 60_000, 6 * CHUNK);
        let all = shard.snapshot();
        let (placed, left) = store.write_out(all.dirty).await.expect("the disk works");
        assert!(left.is_empty(), "there is room");
        let rows: Vec<Row> = placed.iter().map(|(unit, place)| Row { slot: place.number(), ..unit.row() }).collect();
        assert_eq!(
            rows.len(),
            ((4 * CHUNK) >> 16) + 2,
            "a copy of zeros may be kept later, and one unit says that there is a hole"
        );
        drop(placed);
        let (store, mut shard) = start().await;
        rows.iter().for_each(|row| shard.restore_row(row).expect("a sound row"));
        let there = [0, 1, 2, 3, 4, 5].map(|chunk| (shard.has(file(1), chunk), shard.is_copy(file(1), chunk)));
        assert_eq!(there, [(true, true), (true, false), (true, true), (true, false), (true, false), (true, false)]);
        // Chunks that may be zeros have to be looked at, and others not.
        let look = |chunk: u64, hole| {
            let from = SeekFrom { chunk, offset: 0, step: 1, chunk_bits: CHUNK_BITS };
            shard.look_in_chunk(file(1), G, from, hole)
        };
        assert_eq!(look(0, false).expect("no disk is needed"), InChunk::At(0));
        assert_eq!(look(0, true).expect("no disk is needed"), InChunk::Nothing);
        assert_eq!(look(7, true).expect("no disk is needed"), InChunk::NotStored);
        assert!(matches!(look(2, true), Err(StoreError::Cold { chunk: 2, .. })));
        assert!(matches!(look(4, false), Err(StoreError::Cold { chunk: 4, .. })));
        assert_eq!(store.copies_bytes(), 2 * CHUNK as u64);
        // Copies on the disk only go, too.
        let evicted = evict_all(&mut shard);
        assert_eq!((&evicted.chunks[..], evicted.freed_bytes), (&[(file(1), 0), (file(1), 2)][..], 2 * CHUNK as u64));
    });
}
