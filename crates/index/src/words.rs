//! What the words mean.
//!
//! Three kinds of records. An *entry* says which regular file a name leads to; an *inode* has the
//! attributes of a regular file; a *directory* has a number that no other state of any directory had
//! before, and is there only while names in it may be looked up. *Counters* say of every name, of any
//! kind, that it is there or held: where there are none the name does not exist.

use crate::layout::Shape;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What the records of each table consist of, in the order of the constants below.
pub const SHAPES: [Shape; 3] = [
    Shape { key_words: ENTRY_KEY_WORDS, value_words: 1 },
    Shape { key_words: 1, value_words: INODE_VALUE_WORDS },
    Shape { key_words: 1, value_words: DIRECTORY_VALUE_WORDS },
];

/// The table of entries.
pub const ENTRIES: usize = 0;
/// The table of inodes.
pub const INODES: usize = 1;
/// The table of directories.
pub const DIRECTORIES: usize = 2;

/// Note: the server's map epoch; 0 while clients must not read here.
pub const NOTE_MAP_EPOCH: usize = 0;
/// Note: the server's namespace epoch.
pub const NOTE_NAMESPACE_EPOCH: usize = 1;
/// Note: the time of the last removal of a name.
pub const NOTE_REMOVED: usize = 2;
/// Note: the period of claims: a client that goes on believing a record read here claims it for this period.
pub const NOTE_PERIOD: usize = 3;

/// Longest name of an entry's record, in bytes; longer ones are asked for.
pub const NAME_BYTES_MAX: usize = 39;

/// Words of an entry's key: the directory, and the name with its length.
pub const ENTRY_KEY_WORDS: usize = 1 + (NAME_BYTES_MAX + 1) / 8;

/// Words of an inode's value.
pub const INODE_VALUE_WORDS: usize = 10;
/// Of an inode's value: permission bits, and above them (at bit 32) the number of names.
pub const INODE_MODES: usize = 0;
/// Of an inode's value: owner, and above (at bit 32) the owning group.
pub const INODE_OWNERS: usize = 1;
/// Of an inode's value: its length in bytes.
pub const INODE_SIZE: usize = 2;
/// Of an inode's value: four times in nanoseconds: of the last access, of the last change of data, of the last change, and
/// when it was made.
pub const INODE_TIMES: usize = 3;
/// Of an inode's value: where its data lie, and above (at bit 32) the base-2 logarithm of its chunk size and more.
pub const INODE_PLACE: usize = 8;
/// Of an inode's value: how many blocks of 512 bytes it takes, as stat(2) says.
pub const INODE_BLOCKS: usize = 9;

/// Words of a directory's value: the number, and one that is kept free.
pub const DIRECTORY_VALUE_WORDS: usize = 2;

/// Bits of the hash of a name.
pub const HASH_BITS: u32 = 62;
/// Bits of a prefix: of an inode number's highest bits, which are those of the hash of its first name.
pub const PREFIX_BITS: u32 = 22;
/// Where the prefix begins in an inode number.
pub const PREFIX_SHIFT: u32 = 42;
/// The bit in the number of a private directory, whose names all have its own prefix.
pub const PRIVATE: u64 = 1 << 35;

/// The hash of `name` in directory `parent`: XXH3 with the parent as seed. In a private directory the prefix is the
/// directory's own instead, so that all its names are beside it.
pub fn hash_of(parent: u64, name: &[u8]) -> u64 {
    let hash = xxh3_64_with_seed(name, parent) >> (64 - HASH_BITS);
    if parent & PRIVATE == 0 {
        return hash;
    }
    const BELOW: u32 = HASH_BITS - PREFIX_BITS;
    (parent >> PREFIX_SHIFT) << BELOW | hash & ((1 << BELOW) - 1)
}

/// The slot of a name's entry, of `slots` slots in a volume of 2^`shard_bits` shards; `slots` is not 0.
pub fn slot_of_hash(hash: u64, shard_bits: u32, slots: u32) -> u32 {
    (hash >> (HASH_BITS - shard_bits)) as u32 % slots
}

/// The key of an entry's record; `None` if its name is too long for one.
pub fn entry_key(parent: u64, name: &[u8]) -> Option<[u64; ENTRY_KEY_WORDS]> {
    let mut padded = [0; NAME_BYTES_MAX + 1];
    padded[0] = u8::try_from(name.len()).ok()?;
    padded.get_mut(1..=name.len())?.copy_from_slice(name);
    let mut key = [parent; ENTRY_KEY_WORDS];
    for (word, part) in key[1..].iter_mut().zip(padded.chunks_exact(8)) {
        *word = part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    Some(key)
}

/// The two numbers of a word: the low one, and the one at bit 32.
pub fn parts(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// The base-2 logarithm of the chunk size, of an inode's value.
pub fn chunk_bits_of(value: &[u64; INODE_VALUE_WORDS]) -> u32 {
    parts(value[INODE_PLACE]).1 & 0xff
}
