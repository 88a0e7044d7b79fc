//! Tests of the slab: a model of the owned frames is kept beside it and compared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BASE_BYTES, FRAME_CLASSES, Frame, FrameClass, Slab, SlabError};

/// A small generator (xorshift64*, Vigna 2016), so that a seed replays a run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// Marks the ends and the middle of a frame.
fn mark(frame: &mut Frame, mark: u64) {
    let bytes = frame.bytes_mut();
    let len = bytes.len();
    for at in [0, len / 2, len - 8] {
        bytes[at..at + 8].copy_from_slice(&mark.to_le_bytes());
    }
}

fn assert_marked(frame: &Frame, mark: u64) {
    let bytes = frame.bytes();
    let len = bytes.len();
    for at in [0, len / 2, len - 8] {
        assert_eq!(bytes[at..at + 8], mark.to_le_bytes(), "{frame:?} was written by another owner");
    }
}

/// After all frames are dropped every base can be had whole.
fn assert_merged(slab: &Arc<Slab>) {
    assert_eq!(slab.used_bytes(), 0);
    let bases = slab.capacity_bytes() / BASE_BYTES as u64;
    let all: Vec<Frame> = (0..bases).map(|_| slab.allocate(FrameClass::K64).expect("all merged")).collect();
    assert!(slab.allocate(FrameClass::K4).is_none());
    assert_eq!(slab.used_bytes(), slab.capacity_bytes());
    drop(all);
    assert_eq!(slab.used_bytes(), 0);
}

fn play(slab: &Arc<Slab>, seed: u64, rounds: usize, is_alone: bool) {
    let mut dice = Dice(seed);
    let mut owned: Vec<(Frame, u64)> = Vec::new();
    for round in 0..rounds {
        // Leans towards full and towards empty by turns.
        let grows = dice.below(100) < if round / 500 % 2 == 0 { 65 } else { 35 };
        if grows {
            let class = FRAME_CLASSES[dice.below(3)];
            if let Some(mut frame) = slab.allocate(class) {
                assert_eq!(frame.len(), class.bytes());
                let id = seed << 32 | round as u64;
                mark(&mut frame, id);
                owned.push((frame, id));
            }
        } else if !owned.is_empty() {
            let (frame, id) = owned.swap_remove(dice.below(owned.len()));
            assert_marked(&frame, id);
        }
        if is_alone {
            let used: usize = owned.iter().map(|(frame, _)| frame.len()).sum();
            assert_eq!(slab.used_bytes(), used as u64, "seed {seed}, round {round}");
        }
    }
    if is_alone {
        assert_disjoint(&owned);
    }
    owned.iter().for_each(|(frame, id)| assert_marked(frame, *id));
}

fn assert_disjoint(owned: &[(Frame, u64)]) {
    let mut ranges: Vec<(u64, u64)> = owned.iter().map(|(f, _)| (f.offset(), f.offset() + f.len() as u64)).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?} overlap");
    }
}

#[test]
fn behaves_like_the_model() {
    for seed in 1..=20 {
        println!("seed {seed}");
        let slab = Slab::new(40 * BASE_BYTES as u64).unwrap();
        play(&slab, seed, 4_000, true);
        assert_merged(&slab);
    }
}

#[test]
fn threads_never_share_a_frame() {
    let slab = Slab::new(24 * BASE_BYTES as u64).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=8 {
            let slab = &slab;
            scope.spawn(move || play(slab, seed, 20_000, false));
        }
    });
    assert_merged(&slab);
}

#[test]
fn frames_move_between_threads() {
    let slab = Slab::new(4 * BASE_BYTES as u64).unwrap();
    let frames: Vec<Frame> = (0..64).map(|_| slab.allocate(FrameClass::K4).unwrap()).collect();
    assert!(slab.allocate(FrameClass::K4).is_none());
    std::thread::spawn(move || drop(frames)).join().unwrap();
    assert_merged(&slab);
}

#[test]
fn prefers_what_was_freed_last() {
    let slab = Slab::new(8 * BASE_BYTES as u64).unwrap();
    for class in FRAME_CLASSES {
        let frames: Vec<Frame> = (0..3).map(|_| slab.allocate(class).unwrap()).collect();
        let [first, second, third] = <[Frame; 3]>::try_from(frames).unwrap();
        let at = second.offset();
        drop(first);
        drop(second);
        assert_eq!(slab.allocate(class).unwrap().offset(), at, "{class:?}");
        drop(third);
    }
}

#[test]
fn takes_fresh_bases_in_order_and_only_when_needed() {
    let slab = Slab::new(8 * BASE_BYTES as u64).unwrap();
    assert_eq!(slab.touched_bytes(), 0);
    let frames: Vec<Frame> = (0..4).map(|_| slab.allocate(FrameClass::K64).unwrap()).collect();
    let offsets: Vec<u64> = frames.iter().map(Frame::offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3].map(|base| base * BASE_BYTES as u64));
    drop(frames);
    let again: Vec<Frame> = (0..4).map(|_| slab.allocate(FrameClass::K64).unwrap()).collect();
    assert_eq!(slab.touched_bytes(), 4 * BASE_BYTES as u64);
    drop(again);
}

#[test]
fn flips_the_bit_asked_for() {
    let slab = Slab::new(BASE_BYTES as u64).unwrap();
    let mut frame = slab.allocate(FrameClass::K16).unwrap();
    frame.bytes_mut().fill(0);
    frame.flip_bit(8 * 100 + 3);
    assert_eq!(frame.bytes()[100], 8);
    frame.flip_bit(8 * 100 + 3);
    assert!(frame.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn refuses_impossible_capacities() {
    for bytes in [0, BASE_BYTES as u64 - 1, u64::MAX] {
        assert!(matches!(Slab::new(bytes), Err(SlabError::Capacity(_))), "{bytes}");
    }
}

#[test]
fn faults_in_ahead_and_keeps_ahead() {
    let slab = Slab::new(64 << 20).unwrap();
    let window = 8 << 20;
    slab.fault_ahead(window).unwrap();
    wait_until("the window stands", || slab.touched_bytes() >= window);
    let frames: Vec<Frame> = (0..256).map(|_| slab.allocate(FrameClass::K64).unwrap()).collect();
    wait_until("it stands again", || slab.touched_bytes() >= (16 << 20) + window);
    slab.fault_ahead(u64::MAX).unwrap();
    wait_until("all is there", || slab.touched_bytes() == slab.capacity_bytes());
    assert!(frames.iter().all(|frame| frame.bytes().iter().all(|byte| *byte == 0)));
}

#[test]
fn the_thread_that_goes_ahead_ends_with_the_slab() {
    let slab = Slab::new(1 << 40).unwrap();
    slab.fault_ahead(16 << 20).unwrap();
    wait_until("it works", || slab.touched_bytes() > 0);
    let region = Arc::downgrade(&slab.region);
    drop(slab);
    wait_until("it ended and the region is unmapped", || region.strong_count() == 0);
}

#[test]
fn what_is_beyond_the_capacity_is_given_out_once() {
    let slab = Slab::with_excess(4 * BASE_BYTES as u64).expect("a slab");
    let mut owned: Vec<Frame> = std::iter::from_fn(|| slab.allocate(FrameClass::K64)).collect();
    assert_eq!((owned.len(), slab.capacity_bytes()), (8, 4 * BASE_BYTES as u64));
    // Some come back before the end of the excess, some after.
    owned.truncate(7);
    slab.end_excess();
    owned.truncate(5);
    assert!(slab.allocate(FrameClass::K4).is_none());
    drop(owned);
    assert_merged(&slab);
}
