//! Random numbers that come from a seed and a label, and from nothing else.

/// A stream of random numbers, fit for simulation and for nothing secret.
///
/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014):
/// one word of state and one multiplication chain per number, and it passes BigCrush.
#[derive(Clone, Debug)]
pub struct SimRng(u64);

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: every input bit reaches every output bit.
pub(super) fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Hashes bytes, eight at a time; the length takes part.
pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    let add = |hash: u64, word| (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95);
    let (words, rest) = bytes.as_chunks();
    let mut hash = words.iter().fold(mix(bytes.len() as u64 ^ GOLDEN_GAMMA), |hash, word| add(hash, *word));
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = add(hash, word);
    }
    mix(hash)
}

impl SimRng {
    /// The stream of this seed and label.
    pub fn new(seed: u64, label: &str) -> SimRng {
        SimRng(mix(mix(seed.wrapping_add(GOLDEN_GAMMA)) ^ hash_bytes(label.as_bytes())))
    }

    /// Sixty-four random bits.
    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN_GAMMA);
        mix(self.0)
    }

    /// A number less than `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "no number is below 0");
        // Multiply and shift (Lemire 2019) without the rejection: the bias is below n / 2^64.
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "{low} exceeds {high}");
        match (high - low).checked_add(1) {
            Some(n) => low + self.below(n),
            None => self.u64(),
        }
    }

    /// True `ppm` times in a million. 0 and a million draw nothing from the stream.
    pub fn chance(&mut self, ppm: u32) -> bool {
        match ppm {
            0 => false,
            1_000_000.. => true,
            _ => self.below(1_000_000) < u64::from(ppm),
        }
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }

    /// A number less than `len`, which must not be 0.
    pub(super) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Fills `bytes`.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
