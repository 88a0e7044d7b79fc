//! The contents of files, and the comparison of reads with them.
//!
//! Every 512 bytes begin with eight that follow from the run, the rank and the place in the file;
//! those between depend on the place in the transfer. So a block of another rank, another place or
//! another run is noticed, and making a transfer costs far less than copying it.

/// Distance of the bytes that tell one place from another.
const STAMP_EVERY: usize = 512;

/// The contents of one transfer.
pub struct Pattern {
    run: u64,
    bytes: Vec<u8>,
}

impl Pattern {
    /// For transfers of `len` bytes in the run that has this number.
    pub fn new(run: u64, len: usize) -> Pattern {
        let words = (0..len.div_ceil(8) as u64).flat_map(|word| mix(word).to_le_bytes());
        Pattern { run, bytes: words.take(len).collect() }
    }

    /// What `rank` writes at `place`: an offset or the number of a file.
    pub fn of(&mut self, rank: u32, place: u64) -> &[u8] {
        let base = mix(mix(self.run ^ u64::from(rank)) ^ place);
        for (index, part) in self.bytes.chunks_mut(STAMP_EVERY).enumerate() {
            let stamp = (base ^ (index as u64)).to_le_bytes();
            let len = part.len().min(stamp.len());
            part[..len].copy_from_slice(&stamp[..len]);
        }
        &self.bytes
    }

    /// Where `read` first differs from what `rank` has written at `place`; its length counts, too.
    pub fn first_difference(&mut self, rank: u32, place: u64, read: &[u8]) -> Option<usize> {
        let expected = self.of(rank, place);
        if expected == read {
            return None;
        }
        Some(expected.iter().zip(read).take_while(|(one, other)| one == other).count())
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on every bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_noticed_where_it_is() {
        let mut pattern = Pattern::new(7, 3901);
        let written = pattern.of(2, 47_008).to_vec();
        assert_eq!(written.len(), 3901);
        assert_eq!(pattern.first_difference(2, 47_008, &written), None);
        for at in [0, 7, 8, 511, 512, 3583, 3584, 3900] {
            let mut damaged = written.clone();
            damaged[at] ^= 1;
            assert_eq!(pattern.first_difference(2, 47_008, &damaged), Some(at));
        }
    }

    #[test]
    fn another_rank_place_run_or_length_is_noticed() {
        let written = Pattern::new(7, 1024).of(1, 0).to_vec();
        assert!(Pattern::new(7, 1024).first_difference(0, 0, &written).is_some());
        assert!(Pattern::new(7, 1024).first_difference(1, 1024, &written).is_some());
        assert!(Pattern::new(8, 1024).first_difference(1, 0, &written).is_some());
        assert_eq!(Pattern::new(7, 1024).first_difference(1, 0, &written[..100]), Some(100));
    }
}
