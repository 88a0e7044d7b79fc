//! Data that came in frames: kept where they are, compared there, and nothing else than data that came in a buffer.

use aze_io::slab::{BASE_BYTES, Payload, Slab};
use aze_proto::ids::{Generation, Ino};
use aze_proto::sum::piece_sums;
use aze_store::{ChunkShard, Store, StoreError};
use proptest::prelude::*;
use std::sync::Arc;

const INO: Ino = Ino(77);
const NOW: Generation = Generation(0);
const KIB: usize = 1 << 10;

fn shard(capacity_kib: usize) -> (Arc<Store>, ChunkShard) {
    let store = Store::new(Slab::new((capacity_kib * KIB) as u64).expect("address space"));
    (store.clone(), ChunkShard::new(store))
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

/// Data as they come off the network, in frames if there are some.
fn receive(store: &Store, offset: usize, data: &[u8]) -> Payload {
    match store.receive_buffer(offset as u32, data.len()) {
        Some(mut receiving) => {
            data.chunks(10_007).for_each(|piece| assert_eq!(receiving.put(piece), piece.len()));
            receiving.finish()
        }
        None => Payload::Bytes(data.to_vec()),
    }
}

fn in_frames(store: &Store, offset: usize, data: &[u8]) -> Payload {
    let payload = receive(store, offset, data);
    assert!(matches!(payload, Payload::Frames(_)), "there is room for {} bytes", data.len());
    payload
}

/// As a server does: data that have to wait are staged anew.
fn put(shard: &mut ChunkShard, offset: usize, payload: Payload) -> Result<(), StoreError> {
    let store = shard.store().clone();
    let sums = piece_sums(offset as u64, &bytes_of(&payload));
    let mut staged = store.stage(INO, 0, offset as u32, payload, &sums)?;
    let first = shard.put(INO, NOW, 0, &mut staged);
    if first.is_ok() {
        staged.let_go();
        return first;
    }
    let mut staged = store.stage(INO, 0, offset as u32, staged.into_payload(), &sums)?;
    shard.put(INO, NOW, 0, &mut staged)
}

fn bytes_of(payload: &Payload) -> Vec<u8> {
    match payload {
        Payload::Bytes(bytes) => bytes.clone(),
        Payload::Frames(in_frames) => {
            let whole = in_frames.whole.iter().map(|frame| frame.bytes());
            std::iter::once(&in_frames.first[..]).chain(whole).chain([&in_frames.last[..]]).collect::<Vec<_>>().concat()
        }
    }
}

fn get(shard: &ChunkShard, offset: usize, len: usize) -> (u32, Vec<u8>, Vec<u32>) {
    let take = |out: aze_store::ReadOut<'_>| (out.start, out.parts.concat(), out.sums);
    shard.read(INO, NOW, 0, offset as u32, len as u32, take).expect("readable")
}

#[test]
fn whole_units_stay_in_the_frames_that_they_came_in() {
    let (store, mut shard) = shard(8 << 10);
    let data = pattern(3 * BASE_BYTES + 2000, 1);
    let payload = in_frames(&store, BASE_BYTES - 1000, &data);
    let Payload::Frames(came) = &payload else { unreachable!("it came into frames") };
    assert_eq!((came.first.len(), came.whole.len(), came.last.len()), (1000, 3, 1000));
    let places: Vec<u64> = came.whole.iter().map(|frame| frame.offset()).collect();
    put(&mut shard, BASE_BYTES - 1000, payload).expect("there is room");
    let held = shard.hold(INO, NOW, 0, BASE_BYTES as u32, 3 * BASE_BYTES as u32).expect("readable");
    let kept: Vec<u64> = held.frames().iter().map(|(frame, _)| frame.offset()).collect();
    assert_eq!(kept, places, "they were not copied");
    assert!(get(&shard, BASE_BYTES - 1000, data.len()).1.ends_with(&data[data.len() - 1000..]));
    drop(held);
    shard.delete(INO);
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn what_would_be_copied_in_any_case_goes_to_a_buffer() {
    let (store, _shard) = shard(8 << 10);
    for (offset, len) in [(0, 65_535), (1, 65_536), (1, 131_070), (60_000, 65_536 + 70_000), (0, 0)] {
        assert!(store.receive_buffer(offset, len).is_none(), "{len} at {offset}");
    }
    for (offset, len) in [(0, 65_536), (65_536, 65_536 + 65_535), (40_000, 65_536 + 60_000)] {
        assert!(store.receive_buffer(offset, len).is_some(), "{len} at {offset}");
    }
    assert!(store.receive_buffer((1 << 24) - 65_536, 65_536).is_some());
    assert!(store.receive_buffer((1 << 24) - 65_536, 65_537).is_none(), "beyond the largest chunk");
    assert!(store.receive_buffer(u32::MAX, usize::MAX / 2).is_none());
}

#[test]
fn damage_is_found_in_every_part_of_received_frames() {
    let (store, mut shard) = shard(8 << 10);
    let data = pattern(300_000, 2);
    let sums = piece_sums(3000, &data);
    for (piece, at) in [(0, 0), (1, 1096), (15, 60_000), (16, 62_536), (40, 160_856), (73, 299_999)] {
        let mut damaged = data.clone();
        damaged[at] ^= 1;
        let error = store.stage(INO, 0, 3000, in_frames(&store, 3000, &damaged), &sums).err();
        assert_eq!(error, Some(StoreError::Damaged { ino: INO, chunk: 0, piece }), "byte {at}");
    }
    for wrong in [&sums[1..], &[sums.clone(), vec![0]].concat()] {
        let error = store.stage(INO, 0, 3000, in_frames(&store, 3000, &data), wrong).err();
        assert!(matches!(error, Some(StoreError::Damaged { .. })));
    }
    assert_eq!(store.used_bytes(), 0, "frames were given back");
    // For another place than they are written to.
    let payload = in_frames(&store, 3000, &data);
    put(&mut shard, 70_001, payload).expect("there is room");
    assert!(get(&shard, 70_001, 300_000).1[70_001 - 69_632..] == data);
}

#[test]
fn a_full_slab_takes_what_it_would_have_taken_from_a_buffer() {
    let (store, mut shard) = shard(2 << 10);
    // All but an eighth is used.
    put(&mut shard, 0, Payload::Bytes(pattern(28 * BASE_BYTES, 1))).expect("there is room");
    let new = pattern(2 * BASE_BYTES + 200, 2);
    let payload = in_frames(&store, BASE_BYTES - 100, &new);
    // Meanwhile another write takes the last room: now the slab is full.
    put(&mut shard, 28 * BASE_BYTES, Payload::Bytes(pattern(2 * BASE_BYTES, 3))).expect("there is room");
    let held = shard.hold(INO, NOW, 0, 0, 10).expect("readable");
    // A reader keeps the first unit: a frame is needed for the 100 bytes in it, and there is none.
    put(&mut shard, BASE_BYTES - 100, payload).expect("what is overwritten gives its room");
    drop(held);
    let found = get(&shard, 0, 30 * BASE_BYTES).1;
    let expected = [
        &pattern(28 * BASE_BYTES, 1)[..BASE_BYTES - 100],
        &new,
        &pattern(28 * BASE_BYTES, 1)[BASE_BYTES - 100 + new.len()..],
        &pattern(2 * BASE_BYTES, 3),
    ]
    .concat();
    assert!(found == expected);
    assert_eq!(store.used_bytes(), 30 * BASE_BYTES as u64);
    let error = put(&mut shard, 30 * BASE_BYTES, receive(&store, 30 * BASE_BYTES, &pattern(3 * BASE_BYTES, 4)));
    let full = StoreError::NoSpace { used_bytes: store.used_bytes(), capacity_bytes: store.capacity_bytes() };
    assert_eq!(error, Err(full), "what does not fit is refused");
    assert!(get(&shard, 0, 30 * BASE_BYTES).1 == expected && store.used_bytes() == 30 * BASE_BYTES as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Two shards are written to in the same way, one with data from frames: they stay the same, byte by byte and
    /// sum by sum, in a slab that is mostly full.
    #[test]
    fn from_frames_or_from_a_buffer_it_is_the_same(
        writes in prop::collection::vec((0usize..900_000, 0usize..400_000, any::<bool>()), 1..12),
        capacity_kib in prop::sample::select(vec![512, 1024, 8 << 10]),
    ) {
        let (one_store, mut one) = shard(capacity_kib);
        let (_, mut other) = shard(capacity_kib);
        for (seed, (offset, len, is_even)) in writes.into_iter().enumerate() {
            let (offset, len) = if is_even { (offset / BASE_BYTES * BASE_BYTES, len) } else { (offset, len) };
            let data = pattern(len, seed);
            let first = put(&mut one, offset, receive(&one_store, offset, &data));
            let second = put(&mut other, offset, Payload::Bytes(data));
            prop_assert_eq!(first.is_ok(), second.is_ok());
            prop_assert_eq!(get(&one, 0, 1 << 24), get(&other, 0, 1 << 24));
            prop_assert_eq!(one_store.used_bytes(), other.store().used_bytes());
        }
        one.delete(INO);
        prop_assert_eq!(one_store.used_bytes(), 0);
    }
}
