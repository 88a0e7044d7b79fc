//! What must not happen: damage that is not noticed, half a write, data that come back, memory
//! that is lost.

use aze_io::slab::Slab;
use aze_io::sync::Mutex;
use aze_proto::ids::{Generation, Ino, Sequence, SessionId};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::retry::Verdict;
use aze_proto::sum::{block_sum, piece_sums};
use aze_proto::{Code, Failure, Refusal, Reply};
use aze_store::{ChunkShard, Held, Store, StoreError};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const INO: Ino = Ino(77);
const NOW: Generation = Generation(0);
const CHUNK_BITS: u8 = 20;

fn store(capacity_kib: u64) -> Arc<Store> {
    Store::new(Slab::new(capacity_kib << 10).expect("address space"))
}

fn shard() -> ChunkShard {
    ChunkShard::new(store(64 << 10))
}

fn put(shard: &mut ChunkShard, chunk: u64, offset: u32, data: &[u8]) -> Result<(), StoreError> {
    shard.write(INO, NOW, chunk, offset, data, &piece_sums(u64::from(offset), data))
}

/// The bytes from the block of `offset` on, and whether each block matches its checksum.
fn get(shard: &ChunkShard, offset: u32, len: u32) -> (Vec<u8>, Vec<bool>) {
    let found = shard.read(INO, NOW, 0, offset, len, |out| {
        let payload = out.parts.concat();
        let sound = payload.chunks(BLOCK_BYTES).map(block_sum).zip(&out.sums).map(|(now, sum)| now == *sum).collect();
        assert_eq!(payload.len().div_ceil(BLOCK_BYTES), out.sums.len());
        (payload, sound)
    });
    found.expect("readable")
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn damage_on_the_way_in_is_found_before_anything_changes() {
    let mut shard = shard();
    put(&mut shard, 0, 0, &pattern(10_000)).expect("stored");
    let sums = piece_sums(100, &pattern(9000));
    let mut data = pattern(9000);
    data[5000] ^= 4;
    let error = shard.write(INO, NOW, 0, 100, &data, &sums).expect_err("damaged");
    assert_eq!(error, StoreError::Damaged { ino: INO, chunk: 0, piece: 1 });
    assert!(error.to_string().contains("arrived damaged"), "{error}");
    assert!(shard.write(INO, NOW, 0, 100, &pattern(9000), &sums[1..]).is_err());
    assert_eq!(get(&shard, 0, 20_000).0, pattern(10_000));
}

#[test]
fn a_changed_block_is_not_blessed_by_a_partial_write() {
    let mut shard = shard();
    put(&mut shard, 0, 0, &pattern(5 * BLOCK_BYTES)).expect("stored");
    assert!(shard.flip_bit(INO, 0, (2 * BLOCK_BYTES as u64 + 9) * 8));
    let before = get(&shard, 0, 1 << 16);
    assert_eq!(before.1, [true, true, false, true, true]);
    let corrupt = Err(StoreError::Corrupt { ino: INO, chunk: 0, block: 2 });
    for (offset, len) in
        [(2 * BLOCK_BYTES + 100, 10), (2 * BLOCK_BYTES, 10), (BLOCK_BYTES + 5, BLOCK_BYTES), (10, 2 * BLOCK_BYTES)]
    {
        assert_eq!(put(&mut shard, 0, offset as u32, &vec![1; len]), corrupt, "{offset}+{len}");
        assert_eq!(get(&shard, 0, 1 << 16), before);
    }
    put(&mut shard, 0, 2 * BLOCK_BYTES as u32, &[1; BLOCK_BYTES]).expect("a whole block replaces the damaged one");
    assert_eq!(get(&shard, 0, 1 << 16).1, [true; 5]);
    put(&mut shard, 1, 0, b"short").expect("stored");
    shard.flip_bit(INO, 1, 3);
    assert_eq!(put(&mut shard, 1, 0, b"shor"), Err(StoreError::Corrupt { ino: INO, chunk: 1, block: 0 }));
    put(&mut shard, 1, 0, b"again").expect("all there is of the block is replaced");
}

#[test]
fn a_changed_block_is_not_blessed_by_a_truncation() {
    let mut shard = shard();
    put(&mut shard, 0, 0, &pattern(2 * BLOCK_BYTES)).expect("stored");
    shard.flip_bit(INO, 0, 9 * 8);
    shard.truncate(INO, Generation(1), 100, CHUNK_BITS);
    let sound = shard.read(INO, Generation(1), 0, 0, 4096, |out| {
        assert_eq!(out.parts.concat().len(), 100);
        block_sum(&out.parts.concat()) == out.sums[0]
    });
    assert_eq!(sound, Ok(false));
}

#[test]
fn a_bit_that_is_not_there_is_not_flipped() {
    let mut shard = shard();
    assert!(!shard.flip_bit(INO, 0, 0));
    put(&mut shard, 0, 0, b"x").expect("stored");
    assert!(shard.flip_bit(INO, 0, 0));
    assert!(!shard.flip_bit(INO, 0, 8 * BLOCK_BYTES as u64));
    assert!(!shard.flip_bit(INO, 0, 8 << 20));
    assert!(!shard.flip_bit(INO, 1, 0));
}

/// The writer's checksum of what replaces a whole block must arrive at the reader as it was:
/// damage between writer and store's memory would be hidden by one computed here.
#[test]
fn checksums_go_from_writer_to_reader() {
    let mut shard = shard();
    for (offset, len) in [(0, 100), (0, 200), (4096, 4096), (8192, 50), (0, 8242)] {
        let data = pattern(len);
        let sums = piece_sums(offset, &data);
        shard.write(INO, NOW, 0, offset as u32, &data, &sums).expect("stored");
        shard.read(INO, NOW, 0, offset as u32, len as u32, |out| assert_eq!(out.sums, sums)).expect("readable");
    }
}

#[test]
fn small_files_take_small_frames_and_grow() {
    let store = store(1 << 10);
    let mut shard = ChunkShard::new(store.clone());
    for (end, kib) in
        [(100, 4), (4096, 4), (4097, 16), (16_384, 16), (16_385, 64), (65_536, 64), (65_537, 68), (131_072, 128)]
    {
        put(&mut shard, 0, 0, &pattern(end)).expect("stored");
        assert_eq!(store.used_bytes(), kib << 10, "for {end} bytes");
        assert_eq!(get(&shard, 0, 1 << 20).0, pattern(end));
        assert_eq!(shard.bytes(), end as u64);
    }
    drop(shard);
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn appending_in_small_pieces_gives_the_whole() {
    let mut shard = shard();
    let all = pattern(70_000);
    for (number, piece) in all.chunks(999).enumerate() {
        put(&mut shard, 0, number as u32 * 999, piece).expect("stored");
    }
    let (bytes, sound) = get(&shard, 0, 70_000);
    assert_eq!(bytes, all);
    assert!(sound.iter().all(|sound| *sound));
}

#[test]
fn without_space_nothing_changes() {
    let store = store(256);
    let mut shard = ChunkShard::new(store.clone());
    put(&mut shard, 0, 0, &pattern(100_000)).expect("fits");
    let used = store.used_bytes();
    let before = get(&shard, 0, 1 << 20);
    let error = put(&mut shard, 0, 0, &vec![1; 1 << 20]).expect_err("does not fit");
    assert_eq!(error, StoreError::NoSpace { used_bytes: used, capacity_bytes: 256 << 10 });
    assert_eq!(get(&shard, 0, 1 << 20), before);
    assert_eq!((store.used_bytes(), shard.bytes(), shard.chunks()), (used, 100_000, 1));
    assert!(shard.write(Ino(78), NOW, 0, 0, &pattern(200_000), &piece_sums(0, &pattern(200_000))).is_err());
    assert_eq!((store.used_bytes(), shard.chunks(), shard.generation_of(Ino(78))), (used, 1, None));
    shard.delete(INO);
    assert_eq!(store.used_bytes(), 0);
    shard.write(Ino(78), NOW, 0, 0, &pattern(200_000), &piece_sums(0, &pattern(200_000))).expect("there is room again");
}

#[test]
fn frames_that_were_used_before_show_nothing() {
    let mut shard = ChunkShard::new(store(64));
    put(&mut shard, 0, 0, &[0xff; 1 << 16]).expect("fills the memory");
    shard.delete(INO);
    let other = Ino(78);
    let write = |shard: &mut ChunkShard, offset: u32, data: &[u8]| {
        shard.write(other, NOW, 0, offset, data, &piece_sums(u64::from(offset), data)).expect("stored");
    };
    write(&mut shard, 20_000, b"x");
    write(&mut shard, 50_000, b"y");
    let mut expected = vec![0; 50_001];
    (expected[20_000], expected[50_000]) = (b'x', b'y');
    let found = shard.read(other, NOW, 0, 0, 1 << 16, |out| out.parts.concat()).expect("readable");
    assert!(found == expected);
}

#[test]
fn a_late_write_brings_nothing_back() {
    let store = store(1 << 10);
    let (mut one, mut other) = (ChunkShard::new(store.clone()), ChunkShard::new(store.clone()));
    put(&mut one, 0, 0, b"data").expect("stored");
    one.truncate(INO, Generation(3), 0, CHUNK_BITS);
    for shard in [&mut one, &mut other] {
        assert_eq!(put(shard, 5, 0, b"late"), Err(StoreError::GenerationStale(Generation(3))));
        assert_eq!(shard.read(INO, NOW, 5, 0, 1, |_| ()), Err(StoreError::GenerationStale(Generation(3))));
        assert!(shard.read(INO, Generation(3), 5, 0, 1, |out| out.parts.is_empty()).expect("a hole"));
    }
    one.delete(INO);
    for shard in [&mut one, &mut other] {
        assert_eq!(put(shard, 5, 0, b"late"), Err(StoreError::Deleted { ino: INO }));
    }
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn a_missed_truncation_is_asked_for_before_old_bytes_are_shown() {
    let mut shard = shard();
    put(&mut shard, 0, 0, &pattern(1000)).expect("stored");
    let missed = StoreError::MissedTruncation { have: NOW };
    assert_eq!(shard.read(INO, Generation(2), 0, 0, 1000, |_| ()), Err(missed.clone()));
    assert_eq!(shard.write(INO, Generation(2), 0, 0, b"x", &piece_sums(0, b"x")), Err(missed));
    shard.truncate(INO, Generation(2), 10, CHUNK_BITS);
    let found = shard.read(INO, Generation(2), 0, 0, 1000, |out| out.parts.concat());
    assert_eq!(found, Ok(pattern(10)));
    shard.truncate(INO, Generation(1), 0, CHUNK_BITS);
    assert_eq!(shard.bytes(), 10, "an older truncation that arrives late is ignored");
}

#[test]
fn a_truncation_is_done_once() {
    let mut shard = shard();
    put(&mut shard, 0, 0, &pattern(1000)).expect("stored");
    shard.truncate(INO, Generation(1), 500, CHUNK_BITS);
    shard.truncate(INO, Generation(1), 0, CHUNK_BITS);
    assert_eq!(shard.bytes(), 500);
}

#[test]
fn nothing_can_have_been_missed_where_nothing_is_kept() {
    let mut shard = shard();
    put(&mut shard, 0, 0, b"data").expect("stored");
    shard.truncate(INO, Generation(1), 0, CHUNK_BITS);
    assert!(shard.read(INO, Generation(5), 0, 0, 9, |out| out.parts.is_empty()).expect("a hole"));
    shard.write(INO, Generation(5), 0, 0, b"new", &piece_sums(0, b"new")).expect("adopts the generation");
    assert_eq!(shard.generation_of(INO), Some(Generation(5)));
}

#[test]
fn a_truncated_byte_reads_as_zero_when_the_file_grows_again() {
    let mut shard = shard();
    put(&mut shard, 0, 0, &[0xff; 300_000]).expect("stored");
    put(&mut shard, 1, 0, &[0xff; 10]).expect("stored");
    shard.truncate(INO, Generation(1), 70_000, CHUNK_BITS);
    assert_eq!((shard.bytes(), shard.chunks()), (70_000, 1));
    shard.write(INO, Generation(1), 0, 299_999, b"x", &piece_sums(299_999, b"x")).expect("stored");
    let found = shard.read(INO, Generation(1), 0, 0, 300_000, |out| out.parts.concat()).expect("readable");
    assert!(found[..70_000].iter().all(|byte| *byte == 0xff));
    assert!(found[70_000..299_999].iter().all(|byte| *byte == 0));
}

#[test]
fn what_does_not_fit_a_chunk_is_refused() {
    let mut shard = shard();
    assert_eq!(put(&mut shard, 0, 1 << 24, b"x"), Err(StoreError::OutOfRange { end: (1 << 24) + 1 }));
    assert!(matches!(shard.read(INO, NOW, 0, u32::MAX, u32::MAX, |_| ()), Err(StoreError::OutOfRange { .. })));
    put(&mut shard, 0, (1 << 24) - 1, b"x").expect("the last byte of the largest chunk");
    let end = shard.read(INO, NOW, 0, 0, 1 << 24, |out| out.parts.iter().map(|part| part.len()).sum::<usize>());
    assert_eq!(end, Ok(1 << 24));
}

#[test]
fn outcomes_are_remembered() {
    let mut shard = shard();
    let (session, one) = (SessionId(1), Sequence(1));
    assert_eq!(shard.check(session, one, one), Verdict::New);
    let outcome = Ok(Reply::Written { attr: None });
    shard.record(session, one, one, outcome.clone());
    assert_eq!(shard.check(session, one, one), Verdict::Done(outcome));
    shard.expire_outcomes();
    shard.expire_outcomes();
    assert_eq!(shard.check(session, one, one), Verdict::TooOld);
    shard.end_session(session);
    assert_eq!(shard.check(session, one, one), Verdict::New);
}

#[test]
fn errors_say_what_to_do() {
    let failure = Failure::from(StoreError::GenerationStale(Generation(4)));
    assert_eq!(failure.refusal, Some(Refusal::GenerationStale { generation: Generation(4) }));
    for (error, code) in [
        (StoreError::NoSpace { used_bytes: 1, capacity_bytes: 2 }, Code::NoSpace),
        (StoreError::Corrupt { ino: INO, chunk: 3, block: 2 }, Code::Corrupt),
        (StoreError::Damaged { ino: INO, chunk: 3, piece: 2 }, Code::Corrupt),
        (StoreError::Deleted { ino: INO }, Code::Stale),
        (StoreError::MissedTruncation { have: NOW }, Code::Busy),
        (StoreError::OutOfRange { end: 1 }, Code::Invalid),
    ] {
        let failure = Failure::from(error);
        assert_eq!(failure.code, code);
        assert!(!failure.detail.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 100 } else { 2_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_flipped_bit_is_found_by_the_reader(
        writes in prop::collection::vec((0..200_000u32, 1..30_000usize), 1..4),
        bit in any::<prop::sample::Index>(),
    ) {
        let mut shard = shard();
        for (offset, len) in writes {
            put(&mut shard, 0, offset, &pattern(len)).expect("stored");
        }
        let bit = bit.index(shard.bytes() as usize * 8);
        let block = bit / 8 / BLOCK_BYTES;
        // A hole has no memory of its own that could fail.
        if shard.flip_bit(INO, 0, bit as u64) {
            let (_, sound) = get(&shard, 0, 1 << 18);
            for (at, sound) in sound.into_iter().enumerate() {
                prop_assert_eq!(sound, at != block, "block {}", at);
            }
        }
    }
}

/// The parts that are held, put together.
fn bytes_of(held: &Held) -> Vec<u8> {
    held.parts().concat()
}

#[test]
fn what_a_reader_holds_stays_as_it_was() {
    let store = store(1 << 10);
    let mut shard = ChunkShard::new(store.clone());
    let first = pattern(150_000);
    put(&mut shard, 0, 0, &first).expect("stored");
    let held = shard.hold(INO, NOW, 0, 0, 150_000).expect("readable");
    let mut now = first.clone();
    for (offset, len) in [(10, 100), (60_000, 20_000), (0, 65_536), (140_000, 30_000)] {
        put(&mut shard, 0, offset as u32, &vec![0xee; len]).expect("stored");
        now.resize(now.len().max(offset + len), 0);
        now[offset..offset + len].fill(0xee);
        assert!(bytes_of(&held) == first, "a write of {len} at {offset} shows to whoever reads");
        let (bytes, sound) = get(&shard, 0, 1 << 20);
        assert!(bytes == now && sound.iter().all(|sound| *sound), "{len} at {offset}");
    }
    shard.truncate(INO, Generation(1), 5000, CHUNK_BITS);
    assert!(bytes_of(&held) == first, "a truncation shows");
    shard.write(INO, Generation(1), 0, 7000, b"x", &piece_sums(7000, b"x")).expect("stored");
    let after = shard.hold(INO, Generation(1), 0, 0, 9000).expect("readable");
    let sums: Vec<u32> = bytes_of(&after).chunks(BLOCK_BYTES).map(block_sum).collect();
    assert_eq!(sums, after.sums);
    assert!(bytes_of(&after)[..5000] == now[..5000] && bytes_of(&after)[5000..7000].iter().all(|byte| *byte == 0));
    shard.delete(INO);
    assert!(bytes_of(&held) == first, "a removal shows");
    drop((held, after));
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn a_full_memory_is_overwritten_in_place_and_waits_for_readers() {
    let mut shard = ChunkShard::new(store(256));
    put(&mut shard, 0, 0, &[1; 256 << 10]).expect("fills the memory");
    put(&mut shard, 0, 0, &[2; 256 << 10]).expect("overwrites in place");
    assert!(get(&shard, 0, 256 << 10).0.iter().all(|byte| *byte == 2));
    let held = shard.hold(INO, NOW, 0, 100_000, 10).expect("readable");
    assert_eq!(put(&mut shard, 0, 0, &[3; 256 << 10]), Err(StoreError::BeingRead));
    assert_eq!(put(&mut shard, 0, 100_000, &[3; 10]), Err(StoreError::BeingRead));
    assert!(get(&shard, 0, 256 << 10).0.iter().all(|byte| *byte == 2), "nothing has changed");
    put(&mut shard, 0, 0, &[3; 64 << 10]).expect("nobody reads here");
    drop(held);
    put(&mut shard, 0, 0, &[3; 256 << 10]).expect("nobody reads any more");
    assert_eq!(
        put(&mut shard, 0, 256 << 10, b"x"),
        Err(StoreError::NoSpace { used_bytes: 256 << 10, capacity_bytes: 256 << 10 })
    );
}

#[test]
fn damage_is_found_in_every_part_of_what_is_staged() {
    let store = store(1 << 10);
    let data = pattern(300_000);
    let sums = piece_sums(3000, &data);
    for (piece, at) in [(0, 0), (1, 1096), (15, 60_000), (16, 62_536), (40, 160_856), (73, 299_999)] {
        let mut damaged = data.clone();
        damaged[at] ^= 1;
        let error = store.stage(INO, 0, 3000, &damaged, &sums).err();
        assert_eq!(error, Some(StoreError::Damaged { ino: INO, chunk: 0, piece }), "byte {at}");
    }
    for wrong in [&sums[1..], &[sums.clone(), vec![0]].concat()] {
        assert!(matches!(store.stage(INO, 0, 3000, &data, wrong), Err(StoreError::Damaged { .. })));
    }
    assert_eq!(store.used_bytes(), 0);
}

/// Readers hold the data they have found while others write: no reader may see half a write, and every
/// block must match its checksum at any time.
#[test]
fn readers_and_writers_at_the_same_time_see_whole_writes() {
    const RECORD: usize = 47_008;
    const RECORDS: usize = 20;
    let store = store(64 << 10);
    let shard = Mutex::new(ChunkShard::new(store.clone()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u8)
            .map(|writer| {
                let (shard, store) = (&shard, &store);
                scope.spawn(move || {
                    for turn in 0..400 {
                        let record = (turn * 7 + usize::from(writer)) % RECORDS;
                        // Every third write fills whole units.
                        let (offset, len) = if turn % 3 == 0 { (0, 3 << 16) } else { (record * RECORD, RECORD) };
                        let data = vec![(turn % 250) as u8 + 1; len];
                        let sums = piece_sums(offset as u64, &data);
                        let mut staged = store.stage(INO, 0, offset as u32, &data, &sums).expect("sound");
                        shard.lock().put(INO, NOW, 0, &mut staged).expect("there is room");
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut looks = 0;
                    while looks < 20 || !is_over.load(Ordering::Relaxed) {
                        looks += 1;
                        let held = shard.lock().hold(INO, NOW, 0, 0, 1 << 20).expect("readable");
                        let bytes = bytes_of(&held);
                        let sums: Vec<u32> = bytes.chunks(BLOCK_BYTES).map(block_sum).collect();
                        assert!(sums == held.sums, "a block changed under a reader");
                        let within = bytes.len().min(RECORD);
                        assert!(bytes[..within].iter().all(|byte| *byte == bytes[0]), "half a write was seen");
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("no write fails"));
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().expect("no read is wrong"));
    });
    drop(shard);
    assert_eq!(store.used_bytes(), 0);
}
