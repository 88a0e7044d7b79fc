//! Data that a server on the same node shares: copied out of its memory and then checked.
//!
//! It alone knows that the copy may differ from the shared frames, and how to copy no byte twice.

use aze_io::SharedPayload;
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::block_sum;

/// Bytes that are copied before they are checked: few enough to be in the processor's cache then.
const RUN_BYTES: usize = 64 << 10;

/// What lies in another's memory.
pub(crate) trait SharedBytes {
    fn len(&self) -> usize;
    /// Copies what lies at `at`; `false` if it is not there.
    fn copy_to(&self, at: usize, to: &mut [u8]) -> bool;
}

impl SharedBytes for SharedPayload {
    fn len(&self) -> usize {
        SharedPayload::len(self)
    }

    fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        SharedPayload::copy_to(self, at, to)
    }
}

/// As [`crate::data::take_sound`], with shared frames from `start` on, a border of blocks.
pub(crate) fn take_shared(
    part: &mut [u8],
    offset: usize,
    start: usize,
    shared: &impl SharedBytes,
    sums: &[u32],
) -> bool {
    let end = start + shared.len();
    if !start.is_multiple_of(BLOCK_BYTES) || sums.len() != shared.len().div_ceil(BLOCK_BYTES) {
        return false;
    }
    let wanted = offset.max(start).min(end)..(offset + part.len()).clamp(start, end);
    let mut block = [0; BLOCK_BYTES];
    let mut at = start;
    while at < end {
        let sum = &sums[(at - start) / BLOCK_BYTES..];
        let whole = (wanted.end.saturating_sub(at) / BLOCK_BYTES * BLOCK_BYTES).min(RUN_BYTES);
        if at >= wanted.start && whole > 0 {
            let room = &mut part[at - offset..at - offset + whole];
            let copied = shared.copy_to(at - start, room);
            if !copied || room.chunks(BLOCK_BYTES).zip(sum).any(|(block, sum)| block_sum(block) != *sum) {
                return false;
            }
            at += whole;
            continue;
        }
        // Not all of the block is wanted, and only all of it can be checked.
        let room = &mut block[..BLOCK_BYTES.min(end - at)];
        if !shared.copy_to(at - start, room) || block_sum(room) != sum[0] {
            return false;
        }
        let (from, to) = (wanted.start.max(at), wanted.end.min(at + room.len()));
        if from < to {
            part[from - offset..to - offset].copy_from_slice(&room[from - at..to - at]);
        }
        at += room.len();
    }
    let there = end.saturating_sub(offset).min(part.len());
    part[there..].fill(0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::take_sound;
    use aze_proto::sum::piece_sums;

    impl SharedBytes for Vec<u8> {
        fn len(&self) -> usize {
            Vec::len(self)
        }

        fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
            self.get(at..at + to.len()).map(|bytes| to.copy_from_slice(bytes)).is_some()
        }
    }

    #[test]
    fn shared_data_are_the_same_as_sent_data() {
        let b = BLOCK_BYTES;
        let bytes: Vec<u8> = (0..40 * b - 100).map(|at| (at % 251) as u8 + 1).collect();
        let start = 2 * b;
        let sums = piece_sums(start as u64, &bytes);
        let ends_at = start + bytes.len();
        for (offset, len) in [
            (start, 1),
            (start, b),
            (start, 40 * b),
            (start + 5, b),
            (start + 5, 38 * b),
            (start + b + 1, 2 * b),
            (start + b, 17 * b),
            (ends_at - 5, 10),
            (ends_at, 10),
            (ends_at + 7, b),
            (start + 3, 50 * b),
        ] {
            let (mut shared, mut sent) = (vec![0xaa; len], vec![0xbb; len]);
            assert!(take_sound(&mut sent, offset, start, &bytes, &sums));
            assert!(take_shared(&mut shared, offset, start, &bytes, &sums), "{len} at {offset}");
            assert!(shared == sent, "{len} at {offset}");
            for damaged_at in [9, 2 * b + 9, 39 * b + 9] {
                let mut damaged = bytes.clone();
                damaged[damaged_at] ^= 4;
                assert!(!take_shared(&mut shared, offset, start, &damaged, &sums), "{len} at {offset}");
            }
        }
        let mut part = [0; 9];
        assert!(!take_shared(&mut part, start, start, &bytes, &sums[1..]));
        assert!(!take_shared(&mut part, start, start, &bytes, &[&sums[..], &[0]].concat()));
        assert!(!take_shared(&mut part, start + 1, start + 1, &bytes, &sums));
    }
}
