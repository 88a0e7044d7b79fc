//! Checksums of file data: one CRC-32C for every block of 4 KiB.
//!
//! The writer computes them, the store keeps them apart from the bytes, the reader compares:
//! nothing in between has to be trusted. A block's checksum always covers the whole block, the
//! part beyond the end of the data counted as zeros.

use crate::limits::BLOCK_BYTES;
use crc_fast::{CrcAlgorithm, Digest};

/// Checksum of a block that holds only zeros.
pub const ZERO_BLOCK_SUM: u32 = 0x98f9_4189;

/// The CRC-32C of bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC-32C of bytes that have the sum `sum`, followed by `bytes`.
pub fn crc32c_append(sum: u32, bytes: &[u8]) -> u32 {
    // The state is the sum before its last step, which inverts it.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Checksum of one block: `bytes` (at most 4 KiB), followed by zeros up to a whole block.
pub fn block_sum(bytes: &[u8]) -> u32 {
    assert!(bytes.len() <= BLOCK_BYTES, "a block has at most {BLOCK_BYTES} bytes");
    static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
    let sum = crc32c(bytes);
    if bytes.len() == BLOCK_BYTES { sum } else { crc32c_append(sum, &ZEROS[bytes.len()..]) }
}

/// The pieces of `[offset, offset + len)` within single blocks: (start, end) relative to `offset`.
pub fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= len {
            return None;
        }
        let in_block = ((offset + start as u64) % BLOCK_BYTES as u64) as usize;
        let end = len.min(start + BLOCK_BYTES - in_block);
        let piece = (start, end);
        start = end;
        Some(piece)
    })
}

/// Checksums that a writer sends: one for each piece of `data` written at `offset`, each over
/// the piece alone, padded with zeros. For a whole block it is the block's checksum.
pub fn piece_sums(offset: u64, data: &[u8]) -> Vec<u32> {
    pieces(offset, data.len()).map(|(start, end)| block_sum(&data[start..end])).collect()
}

/// The first piece of `data` that does not match, as its index; `None` if all is well.
pub fn first_mismatch(offset: u64, data: &[u8], sums: &[u32]) -> Option<usize> {
    let count = pieces(offset, data.len()).count();
    if count != sums.len() {
        return Some(count.min(sums.len()));
    }
    pieces(offset, data.len()).zip(sums).position(|((start, end), sum)| block_sum(&data[start..end]) != *sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zero_block_constant_is_right() {
        assert_eq!(block_sum(&[]), ZERO_BLOCK_SUM);
        assert_eq!(block_sum(&[0; BLOCK_BYTES]), ZERO_BLOCK_SUM);
    }

    /// The definition, bit by bit: RFC 3720, section 12.1.
    fn by_definition(bytes: &[u8]) -> u32 {
        let step = |sum: u32, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
        !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
    }

    /// Short and long bytes take different ways through the processor, and so do those that begin at odd places.
    #[test]
    fn sums_are_those_of_the_definition() {
        assert_eq!(by_definition(b"123456789"), 0xe306_9283, "the check value of the catalogue of CRCs");
        let bytes: Vec<u8> = (0..70_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let lengths = (0..1100).chain([2047, 2048, 3901, 4095, 4096, 4097, 65_536, 65_600]);
        for (begin, length) in lengths.enumerate().map(|(number, length)| (number % 67, length)) {
            let part = &bytes[begin..begin + length];
            let sum = by_definition(part);
            assert_eq!(crc32c(part), sum, "{length} bytes from {begin}");
            let (head, tail) = part.split_at(length / 3);
            assert_eq!(crc32c_append(crc32c(head), tail), sum, "{length} bytes from {begin} in two parts");
            assert_eq!(crc32c_append(0, part), sum, "{length} bytes from {begin} after none");
        }
    }

    #[test]
    fn pieces_end_at_block_borders() {
        assert_eq!(pieces(4000, 200).collect::<Vec<_>>(), [(0, 96), (96, 200)]);
        assert_eq!(pieces(0, 8192).collect::<Vec<_>>(), [(0, 4096), (4096, 8192)]);
        assert_eq!(pieces(5, 0).count(), 0);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut data: Vec<u8> = (0..9000u32).map(|i| i as u8).collect();
        let sums = piece_sums(100, &data);
        assert_eq!(first_mismatch(100, &data, &sums), None);
        for bit in (0..data.len() * 8).step_by(997) {
            data[bit / 8] ^= 1 << (bit % 8);
            assert!(first_mismatch(100, &data, &sums).is_some());
            data[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(first_mismatch(100, &data, &sums[1..]).is_some());
    }
}
