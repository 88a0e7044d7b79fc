//! How the bytes of a file are summed up.
//!
//! A file is cut into chunks of 4 MiB. A chunk that is not all zeros has a BLAKE3 hash; one that is has none, whether it is
//! a hole or stored zeros, so that a file of holes is summed up without being read. The hash of the file is one over its
//! size and these hashes.

use aze_words::hex;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

/// Length of a chunk: what one thread reads at once.
pub const CHUNK_BYTES: u64 = 4 << 20;

/// Length of the pieces of a chunk that are looked at for zeros: a part of the chunk's tree of hashes.
pub const PIECE_BYTES: usize = 64 << 10;

/// What the hash of a file begins with, so that it is never taken for one of other bytes.
const FILE_CONTEXT: &[u8] = b"azekura receipt 1 file\0";

/// A BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Of some bytes.
    pub fn of(bytes: &[u8]) -> Hash {
        Hash(*blake3::hash(bytes).as_bytes())
    }

    /// Of 64 hexadecimal digits.
    pub fn read(text: &str) -> Option<Hash> {
        hex::read(text)?.try_into().ok().map(Hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::write(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The sums of one file's chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Of each chunk that is not all zeros, by its number from 0 on.
    pub chunks: BTreeMap<u64, Hash>,
}

impl Sums {
    /// Takes in a chunk: all of it, or what the file has of it at its end.
    pub fn add(&mut self, chunk: u64, bytes: &[u8]) {
        if let Some(hash) = Sums::of_chunk(bytes) {
            self.chunks.insert(chunk, hash);
        }
    }

    /// The sum of a chunk; none if it is all zeros.
    pub fn of_chunk(bytes: &[u8]) -> Option<Hash> {
        if bytes.len() as u64 != CHUNK_BYTES {
            return (!is_zero(bytes)).then(|| Hash::of(bytes));
        }
        Sums::of_whole(bytes, |_| true)
    }

    /// The same of a chunk whose unread pieces are holes: they count as zeros, regardless of their memory.
    pub fn of_pieces(bytes: &mut [u8], is_read: &[bool]) -> Option<Hash> {
        let is_read = |piece: usize| is_read.get(piece).is_some_and(|is_read| *is_read);
        if bytes.len() as u64 != CHUNK_BYTES {
            let holes = bytes.chunks_mut(PIECE_BYTES).enumerate().filter(|(piece, _)| !is_read(*piece));
            holes.for_each(|(_, bytes)| bytes.fill(0));
            return Sums::of_chunk(bytes);
        }
        Sums::of_whole(bytes, is_read)
    }

    fn of_whole(bytes: &[u8], is_read: impl Fn(usize) -> bool) -> Option<Hash> {
        let pieces = bytes.chunks(PIECE_BYTES).enumerate();
        let has_data: Vec<bool> = pieces.map(|(piece, bytes)| is_read(piece) && !is_zero(bytes)).collect();
        match has_data.iter().filter(|has_data| **has_data).count() {
            0 => None,
            count if count == has_data.len() => Some(Hash::of(bytes)),
            _ => Some(hash_without_zeros(bytes, &has_data)),
        }
    }

    /// The hash of a file of so many bytes with these chunks.
    pub fn hash(&self, size: u64) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(FILE_CONTEXT).update(&size.to_le_bytes());
        for (chunk, hash) in &self.chunks {
            hasher.update(&chunk.to_le_bytes()).update(&hash.0);
        }
        Hash(*hasher.finalize().as_bytes())
    }

    /// The first chunk in which two files differ.
    pub fn first_difference(&self, other: &Sums) -> Option<u64> {
        let differs = |chunk: &&u64| self.chunks.get(chunk) != other.chunks.get(chunk);
        self.chunks.keys().chain(other.chunks.keys()).filter(differs).min().copied()
    }
}

/// The same as [`Hash::of`], for a whole chunk of whose pieces only some have other bytes than zeros: nothing is computed of the
/// others, which are the same in all chunks.
fn hash_without_zeros(bytes: &[u8], has_data: &[bool]) -> Hash {
    static ZEROS: LazyLock<Vec<ChainingValue>> = LazyLock::new(|| {
        (0..CHUNK_BYTES as usize / PIECE_BYTES).map(|index| hash_of_piece(index, &[0; PIECE_BYTES])).collect()
    });
    let pieces = bytes.chunks(PIECE_BYTES).zip(has_data).enumerate();
    let hashes =
        pieces.map(|(index, (piece, has_data))| if *has_data { hash_of_piece(index, piece) } else { ZEROS[index] });
    let mut level: Vec<ChainingValue> = hashes.collect();
    while level.len() > 2 {
        level = level.chunks(2).map(|pair| merge_subtrees_non_root(&pair[0], &pair[1], Mode::Hash)).collect();
    }
    Hash(*merge_subtrees_root(&level[0], &level[1], Mode::Hash).as_bytes())
}

fn hash_of_piece(index: usize, piece: &[u8]) -> ChainingValue {
    blake3::Hasher::new().set_input_offset((index * PIECE_BYTES) as u64).update(piece).finalize_non_root()
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    let words = bytes.chunks_exact(16);
    let is_rest_zero = words.remainder().iter().all(|byte| *byte == 0);
    is_rest_zero && words.into_iter().all(|word| word == [0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_left_out_wherever_they_are_and_nothing_else() {
        let mut sums = Sums::default();
        sums.add(0, &[0; 100]);
        assert_eq!(sums, Sums::default());
        for at in 0..100 {
            let mut bytes = [0; 100];
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "byte {at}");
        }
        assert!(is_zero(&[]));
    }

    #[test]
    fn a_chunk_with_pieces_of_zeros_has_the_hash_of_all_of_its_bytes() {
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        for at in [0, PIECE_BYTES - 1, PIECE_BYTES, 5 * PIECE_BYTES + 77, 63 * PIECE_BYTES, CHUNK_BYTES as usize - 1] {
            bytes[at] = (at % 251) as u8 + 1;
            assert_eq!(Sums::of_chunk(&bytes), Some(Hash::of(&bytes)), "with byte {at}");
            let mut alone = vec![0; CHUNK_BYTES as usize];
            alone[at] = 1;
            assert_eq!(Sums::of_chunk(&alone), Some(Hash::of(&alone)), "byte {at} alone");
        }
        bytes.fill(7);
        assert_eq!(Sums::of_chunk(&bytes), Some(Hash::of(&bytes)));
        assert_eq!(Sums::of_chunk(&bytes[1..]), Some(Hash::of(&bytes[1..])));
    }

    #[test]
    fn memory_of_pieces_that_were_not_read_counts_as_zeros() {
        for len in [CHUNK_BYTES as usize, CHUNK_BYTES as usize - 5, 2 * PIECE_BYTES + 7] {
            let mut bytes = vec![7; len];
            let count = len.div_ceil(PIECE_BYTES);
            assert_eq!(Sums::of_pieces(&mut bytes.clone(), &vec![true; count]), Sums::of_chunk(&bytes));
            assert_eq!(Sums::of_pieces(&mut bytes.clone(), &vec![false; count]), None);
            let mut is_read = vec![false; count];
            is_read[1] = true;
            let sum = Sums::of_pieces(&mut bytes, &is_read);
            bytes[..PIECE_BYTES].fill(0);
            bytes[2 * PIECE_BYTES..].fill(0);
            assert_eq!(sum, Some(Hash::of(&bytes)), "of {len} bytes");
        }
    }

    #[test]
    fn the_hash_of_a_file_depends_on_its_size_its_bytes_and_their_places() {
        let sums = |chunk: u64, bytes: &[u8]| {
            let mut sums = Sums::default();
            sums.add(chunk, bytes);
            sums
        };
        let hashes = [
            sums(0, b"a").hash(1),
            sums(0, b"a").hash(2),
            sums(0, b"b").hash(1),
            sums(1, b"a").hash(1),
            Sums::default().hash(1),
            Sums::default().hash(2),
        ];
        for (index, one) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(one), "{index}");
        }
        assert_eq!(sums(1, b"a").first_difference(&sums(1, b"b")), Some(1));
        assert_eq!(sums(1, b"a").first_difference(&sums(0, b"a")), Some(0));
        assert_eq!(sums(1, b"a").first_difference(&sums(1, b"a")), None);
        assert_eq!(Hash::read(&hashes[0].to_string()), Some(hashes[0]));
    }
}
