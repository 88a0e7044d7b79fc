//! Tests of frames that are filled while the data arrive.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use super::{BASE_BYTES, Frame, FrameClass, Payload, RECEIVE_BUFFERS_BYTES_MAX, ReceiveBuffer, Slab};

fn slab(bases: usize) -> Arc<Slab> {
    Slab::new((bases * BASE_BYTES) as u64).expect("address space")
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

/// Everything that can be had, which is all that is free and all that is being filled.
fn fill_up(slab: &Arc<Slab>) -> Vec<Frame> {
    std::iter::from_fn(|| slab.allocate(FrameClass::K64)).collect()
}

/// Puts the rest of `data` in steps.
fn put_rest(receiving: &mut ReceiveBuffer, data: &[u8], step: usize) {
    while receiving.left() > 0 {
        let from = data.len() - receiving.left();
        let put = receiving.put(&data[from..(from + step).min(data.len())]);
        assert_eq!(put, step.min(data.len() - from));
    }
}

#[test]
fn what_is_put_piece_by_piece_is_what_was_received() {
    let slab = slab(256);
    for (first, units, last) in [(0, 1, 0), (1, 1, 0), (0, 3, 65_535), (65_535, 2, 1), (4096, 5, 4097)] {
        let data = pattern(first + units * BASE_BYTES + last, first + last);
        for step in [1000, 4096, 65_535, 65_536, 65_537, 1 << 20] {
            let mut receiving = slab.receive_buffer(first, units, last).expect("there is room");
            assert_eq!((receiving.len(), receiving.left()), (data.len(), data.len()));
            put_rest(&mut receiving, &data, step);
            assert_eq!(receiving.put(b"more"), 0, "there is no room for more");
            let Payload::Frames(in_frames) = receiving.finish() else { panic!("nobody wanted the frames") };
            assert_eq!((in_frames.first.len(), in_frames.whole.len(), in_frames.last.len()), (first, units, last));
            assert_eq!(slab.used_bytes(), (units * BASE_BYTES) as u64, "from now on they are somebody's");
            assert!(in_frames.into_bytes() == data, "{first} {units} {last} in steps of {step}");
            assert_eq!(slab.used_bytes(), 0);
        }
    }
}

#[test]
fn what_follows_in_one_read_goes_behind_it() {
    let slab = slab(64);
    let data = pattern(2 * BASE_BYTES + 10, 3);
    let mut receiving = slab.receive_buffer(0, 2, 0).expect("there is room");
    let failed = receiving.fill(usize::MAX, &mut [], |_| Err(Error::from(ErrorKind::WouldBlock)));
    assert!(failed.is_err() && receiving.left() == 2 * BASE_BYTES, "nothing came");
    let mut rest = [0; 100];
    let read = |slices: &mut [std::io::IoSliceMut<'_>]| {
        let mut from = &data[..];
        for slice in slices {
            let (now, later) = from.split_at(slice.len().min(from.len()));
            slice[..now.len()].copy_from_slice(now);
            from = later;
        }
        Ok(data.len())
    };
    assert_eq!(receiving.fill(usize::MAX, &mut rest, read).unwrap(), data.len());
    assert_eq!((receiving.left(), &rest[..10]), (0, &data[2 * BASE_BYTES..]));
    assert!(receiving.finish().into_bytes() == data[..2 * BASE_BYTES]);
}

#[test]
fn what_is_given_up_in_the_middle_gives_its_frames_back() {
    let slab = slab(64);
    for bytes in [0, 10, BASE_BYTES, 3 * BASE_BYTES] {
        let mut receiving = slab.receive_buffer(5, 3, 7).expect("there is room");
        receiving.put(&pattern(bytes, 1));
        assert_eq!(slab.used_bytes(), 0, "it can be had at any time");
        drop(receiving);
        let all = fill_up(&slab);
        assert_eq!(all.len(), 64);
        drop(all);
    }
    assert_eq!(slab.receive_buffers.bytes(), 0);
}

/// A sender that stalls in the middle of a payload keeps no memory from others.
#[test]
fn a_full_slab_has_the_frames_back_and_no_byte_is_lost() {
    for (first, last) in [(0, 0), (100, 0), (0, 65_535), (4000, 9)] {
        let slab = slab(64);
        let data = pattern(first + 3 * BASE_BYTES + last, last);
        for come in [0, first, first + 1, first + 2 * BASE_BYTES, data.len() - 1, data.len()] {
            let mut receiving = slab.receive_buffer(first, 3, last).expect("there is room");
            receiving.put(&data[..come]);
            let all = fill_up(&slab);
            assert_eq!(all.len(), 64, "all of them can be had");
            put_rest(&mut receiving, &data, 30_000);
            let Payload::Bytes(bytes) = receiving.finish() else { panic!("it was moved to a buffer") };
            assert!(bytes == data, "{come} of {} had come", data.len());
        }
        assert_eq!((slab.used_bytes(), slab.receive_buffers.bytes()), (0, 0));
    }
}

#[test]
fn receive_buffers_are_limited() {
    let slab = slab(64);
    let eighth: Vec<ReceiveBuffer> = (0..8).map(|_| slab.receive_buffer(0, 1, 0).expect("within the limit")).collect();
    assert!(slab.receive_buffer(0, 1, 0).is_none(), "more than an eighth of the slab");
    drop(eighth);
    let much: Vec<Frame> = (0..59).map(|_| slab.allocate(FrameClass::K64).expect("free")).collect();
    assert!(slab.receive_buffer(0, 2, 0).is_none(), "too little would be free");
    drop(slab.receive_buffer(0, 1, 0).expect("a sixteenth is free"));
    drop(much);
    let large = Slab::new(16 * RECEIVE_BUFFERS_BYTES_MAX).expect("address space");
    let units = RECEIVE_BUFFERS_BYTES_MAX as usize / BASE_BYTES;
    let all = large.receive_buffer(1, units, 1).expect("within the limit");
    assert!(large.receive_buffer(0, 1, 0).is_none(), "the limit of all slabs");
    drop(all);
    drop(large.receive_buffer(0, 1, 0).expect("it was given back"));
}

/// Some fill, others want all memory there is: no byte is lost, and no frame is lost or had twice.
#[test]
fn fillers_and_takers_at_the_same_time_do_no_harm() {
    let slab = slab(96);
    let (is_over, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..3)
            .map(|seed| {
                let (slab, turns) = (&slab, &turns);
                scope.spawn(move || {
                    let (mut moved, mut kept, mut turn, mut receive_buffers) = (0, 0, seed, 0);
                    while (moved < 5 || kept < 5) && receive_buffers < 2000 {
                        turn += 3;
                        let (first, last) = (turn % 3 * 1000, turn % 5 * 99);
                        let data = pattern(first + 2 * BASE_BYTES + last, turn);
                        let Some(mut receiving) = slab.receive_buffer(first, 2, last) else {
                            std::thread::yield_now();
                            continue;
                        };
                        receive_buffers += 1;
                        turns.fetch_add(1, SeqCst);
                        put_rest(&mut receiving, &data, 1 + turn * 997 % 90_000);
                        match receiving.finish() {
                            Payload::Bytes(bytes) => {
                                moved += 1;
                                assert!(bytes == data);
                            }
                            in_frames => {
                                kept += 1;
                                assert!(in_frames.into_bytes() == data);
                            }
                        }
                    }
                    kept
                })
            })
            .collect();
        let taker = scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let mut all = fill_up(&slab);
                // Received frames that are looked at have an owner: at most so many at a time.
                assert!(all.len() >= 96 - 3 * 2, "{} of 96", all.len());
                for (mark, frame) in all.iter_mut().enumerate() {
                    frame.bytes_mut()[..100].fill(mark as u8);
                }
                for (mark, frame) in all.drain(..).enumerate() {
                    assert!(frame.bytes()[..100].iter().all(|byte| *byte == mark as u8), "another owner wrote to it");
                }
                // Others have their turns.
                let before = turns.load(SeqCst);
                while turns.load(SeqCst) < before + 4 && !is_over.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
        });
        let kept: Vec<i32> = fillers.into_iter().map(|filler| filler.join().expect("no byte is lost")).collect();
        is_over.store(true, SeqCst);
        taker.join().expect("no frame is had twice");
        assert!(kept.iter().all(|kept| *kept > 0), "{kept:?} kept their frames");
    });
    assert_eq!((slab.used_bytes(), slab.receive_buffers.bytes()), (0, 0));
    assert_eq!(fill_up(&slab).len(), 96);
}
