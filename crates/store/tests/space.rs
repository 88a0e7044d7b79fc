//! Room for data: reserved room is there when memory is full, punched memory is given back, and
//! data and holes are where they were made.

use aze_io::slab::Slab;
use aze_proto::ids::{Generation, Ino};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::piece_sums;
use aze_store::{ChunkShard, InChunk, SeekFrom, Store, StoreError};
use std::sync::Arc;

const BITS: u8 = 20;
const CHUNK: u32 = 1 << BITS;
const UNIT: usize = 64 << 10;
const FILE: Ino = Ino(7);
const NOW: Generation = Generation(1);

fn shard(bytes: u64) -> (Arc<Store>, ChunkShard) {
    let store = Store::new(Slab::new(bytes).expect("address space"));
    (store.clone(), ChunkShard::new(store))
}

fn write(shard: &mut ChunkShard, ino: Ino, chunk: u64, offset: u32, data: &[u8]) -> Result<(), StoreError> {
    shard.write(ino, NOW, chunk, offset, data, &piece_sums(u64::from(offset), data))
}

fn read(shard: &ChunkShard, chunk: u64, offset: usize, len: usize) -> Vec<u8> {
    let found = shard.read(FILE, NOW, chunk, offset as u32, len as u32, |out| {
        let bytes = out.parts.concat();
        assert_eq!(out.sums, piece_sums(u64::from(out.start), &pad(&bytes)), "the sums fit");
        bytes[(offset - out.start as usize).min(bytes.len())..].to_vec()
    });
    let mut bytes = found.expect("it can be read");
    bytes.resize(len, 0);
    bytes
}

fn pad(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    padded
}

/// Takes all memory that is left.
fn fill(shard: &mut ChunkShard) {
    for len in [UNIT, BLOCK_BYTES] {
        for ino in 100.. {
            match write(shard, Ino(ino * 100_000 + len as u64), 0, 0, &vec![1; len]) {
                Ok(()) => {}
                Err(StoreError::NoSpace { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn what_is_reserved_can_be_written_when_memory_is_full() {
    for zero in [false, true] {
        let (_store, mut shard) = shard(8 << 20);
        write(&mut shard, FILE, 0, 70_000, b"kept").expect("room");
        shard.reserve(FILE, NOW, 0, 5000..CHUNK, zero).expect("room");
        let kept = if zero { [0; 4] } else { *b"kept" };
        assert_eq!(read(&shard, 0, 70_000, 4), kept);
        fill(&mut shard);
        let full = write(&mut shard, FILE, 1, 0, b"x");
        assert!(matches!(full, Err(StoreError::NoSpace { .. })), "{full:?}");
        for (offset, len) in [(5000, 1), (5000, 60_000), (65_000, 200_000), (UNIT as u32, 3 * UNIT), (CHUNK - 9, 9)] {
            write(&mut shard, FILE, 0, offset, &vec![7; len]).expect("it is reserved");
            assert_eq!(read(&shard, 0, offset as usize, len), vec![7; len]);
        }
        // Once more takes nothing more.
        shard.reserve(FILE, NOW, 0, 5000..CHUNK, zero).expect("it is there already");
    }
}

#[test]
fn a_reservation_that_cannot_be_had_changes_no_byte() {
    let (store, mut shard) = shard(2 << 20);
    write(&mut shard, FILE, 0, 3, b"kept").expect("room");
    let refused = (0..3).find_map(|chunk| shard.reserve(FILE, NOW, chunk, 0..CHUNK, false).err());
    assert!(matches!(refused, Some(StoreError::NoSpace { .. })), "{refused:?}");
    assert_eq!(read(&shard, 0, 0, 9), b"\0\0\0kept\0\0");
    shard.delete(FILE);
    assert_eq!((store.used_bytes(), shard.bytes(), shard.chunks()), (0, 0, 0));
}

#[test]
fn what_is_punched_reads_as_zeros_and_gives_its_memory_back() {
    let bytes: Vec<u8> = (0..CHUNK as usize).map(|at| (at % 251) as u8 + 1).collect();
    let chunk = u64::from(CHUNK);
    for (start, end) in [
        (0, 1),
        (100, 5000),
        (5000, 70_000),
        (1, 3 * UNIT as u64 + 1),
        (UNIT as u64, 2 * UNIT as u64),
        (chunk - 5, chunk + 7),
        (0, chunk),
        (200_000, 2 * chunk),
    ] {
        let (store, mut shard) = shard(8 << 20);
        let mut model = [&bytes[..], &bytes[..100_000]].concat();
        write(&mut shard, FILE, 0, 0, &bytes).expect("room");
        write(&mut shard, FILE, 1, 0, &bytes[..100_000]).expect("room");
        let (held, used) = (shard.hold(FILE, NOW, 0, 0, CHUNK).expect("stored"), store.used_bytes());
        shard.punch(FILE, NOW, start..end, BITS).expect("it can be punched");
        assert_eq!(held.parts().concat(), bytes, "what is held stays");
        drop(held);
        let (from, to) = (start as usize, (end as usize).min(model.len()));
        model[from..to].fill(0);
        assert!(read(&shard, 0, 0, CHUNK as usize) == model[..CHUNK as usize], "{start}..{end}");
        assert!(read(&shard, 1, 0, 100_000) == model[CHUNK as usize..], "{start}..{end}");
        let units = (to / UNIT).saturating_sub(from.div_ceil(UNIT)) as u64;
        assert!(used - store.used_bytes() >= units * UNIT as u64, "{start}..{end}: {units} units are given back");
        write(&mut shard, FILE, 0, 66_000, b"again").expect("room");
        model[66_000..66_005].copy_from_slice(b"again");
        assert!(read(&shard, 0, 0, CHUNK as usize) == model[..CHUNK as usize], "{start}..{end}, written again");
    }
}

#[test]
fn a_hole_that_takes_a_chunk_of_a_file_in_a_backing_leaves_a_chunk() {
    let ino = FILE.of_backing();
    for (is_full, start) in [(false, 0), (false, 70_000), (true, 0), (true, 70_000)] {
        let (store, mut shard) = shard(8 << 20);
        // With `start`, all before it is a hole already.
        write(&mut shard, ino, 0, start, &vec![1; CHUNK as usize - start as usize]).expect("room");
        if is_full {
            fill(&mut shard);
        }
        let used = store.used_bytes();
        shard.punch(ino, NOW, start.into()..CHUNK.into(), BITS).expect("it can be punched");
        assert!(shard.has(ino, 0), "full: {is_full}, from {start} on");
        let in_checkpoint = shard.snapshot().dirty.iter().filter(|unit| unit.row().ino == ino).count();
        assert_eq!(in_checkpoint, 1, "full: {is_full}, from {start} on");
        assert!(used - store.used_bytes() >= (13 * UNIT) as u64, "full: {is_full}, from {start} on");
        let all = shard.read(ino, NOW, 0, 0, CHUNK, |out| out.parts.concat().iter().all(|byte| *byte == 0));
        assert!(all.expect("stored"), "full: {is_full}, from {start} on");
        for (hole, at) in [(true, InChunk::At(0)), (false, InChunk::Nothing)] {
            let from = SeekFrom { chunk: 0, offset: 0, step: 1, chunk_bits: BITS };
            assert_eq!(shard.look_in_chunk(ino, NOW, from, hole).expect("in memory"), at);
        }
        write(&mut shard, ino, 0, 66_000, b"again").expect("room");
    }
}

#[test]
fn blocks_of_zeros_are_holes_of_a_file_in_a_backing() {
    let (_store, mut shard) = shard(8 << 20);
    let ino = FILE.of_backing();
    let mut bytes = vec![0; CHUNK as usize - 100];
    bytes[BLOCK_BYTES] = 1;
    bytes[UNIT..3 * UNIT + 1].fill(1);
    *bytes.last_mut().expect("a byte") = 1;
    write(&mut shard, ino, 3, 0, &bytes).expect("room");
    let seek = |offset: usize, hole| {
        let from = SeekFrom { chunk: 3, offset: offset as u32, step: 1, chunk_bits: BITS };
        let at = shard.seek(ino, NOW, from, hole).expect("in memory");
        at.map(|at| (at - (3 << BITS)) as usize)
    };
    let last = bytes.len() / BLOCK_BYTES * BLOCK_BYTES;
    let runs = [(BLOCK_BYTES, 2 * BLOCK_BYTES), (UNIT, 3 * UNIT + BLOCK_BYTES), (last, bytes.len())];
    let mut at = 0;
    for (data, hole) in runs {
        assert_eq!(seek(at, true), Some(at), "a hole at {at}");
        assert_eq!(seek(at, false), Some(data));
        assert_eq!(seek(data + 7, false), Some(data + 7));
        assert_eq!(seek(data, true), Some(hole));
        at = hole;
    }
    assert_eq!(seek(at, false), None);
}

#[test]
fn data_and_holes_are_found() {
    let (_store, mut shard) = shard(16 << 20);
    // Of a shard with every fourth chunk.
    write(&mut shard, FILE, 2, 100, b"x").expect("room");
    write(&mut shard, FILE, 6, 0, &vec![1; CHUNK as usize]).expect("room");
    write(&mut shard, FILE, 10, 0, &vec![1; UNIT + 9]).expect("room");
    let seek = |shard: &ChunkShard, chunk: u64, offset: u32, hole| {
        let from = SeekFrom { chunk, offset, step: 4, chunk_bits: BITS };
        let at = shard.seek(FILE, NOW, from, hole).expect("it can be looked for");
        at.map(|at| (at >> BITS, (at % u64::from(CHUNK)) as usize))
    };
    assert_eq!(seek(&shard, 2, 0, false), Some((2, 0)), "the block that was written");
    assert_eq!(seek(&shard, 2, 0, true), Some((2, 101)));
    assert_eq!(seek(&shard, 2, 200, false), Some((6, 0)));
    assert_eq!(seek(&shard, 6, 70_000, true), Some((10, UNIT + 9)));
    assert_eq!(seek(&shard, 10, UNIT as u32 + 9, false), None);
    assert_eq!(seek(&shard, 14, 5, true), Some((14, 5)), "nothing is stored there");
    shard.punch(FILE, NOW, (6 << BITS) + UNIT as u64..(6 << BITS) + 3 * UNIT as u64, BITS).expect("a hole");
    assert_eq!(seek(&shard, 6, 5, true), Some((6, UNIT)));
    assert_eq!(seek(&shard, 6, UNIT as u32, false), Some((6, 3 * UNIT)));
    shard.reserve(FILE, NOW, 14, 0..CHUNK, false).expect("room");
    assert_eq!(seek(&shard, 14, 0, true), Some((18, 0)), "what is reserved is no hole");
}
