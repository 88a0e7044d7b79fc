//! A published index: memory that a server writes, and that others of its node read without asking it.
//!
//! It alone knows where what lies in it and when words that were read are an answer. It is read by clients
//! (rooms `rpc` and `client`), and by the library in intercepted programs, which has no standard library; so this room has
//! none either, and takes the words from whoever has mapped them. Who may read what is not its business.

#![no_std]

mod layout;
mod lookup;
mod reader;
mod words;

pub use layout::{
    BUCKET_BITS_MAX, COUNTER_BITS_MAX, COUNTER_BITS_MIN, Layout, NOTES, Shape, TABLES_MAX, Table, WAYS, begin,
    raise_note, set_note,
};
pub use lookup::{Found, Known, Named};
pub use reader::{Reader, Seen};
pub use words::{
    DIRECTORIES, DIRECTORY_VALUE_WORDS, ENTRIES, ENTRY_KEY_WORDS, HASH_BITS, INODE_BLOCKS, INODE_MODES, INODE_OWNERS,
    INODE_PLACE, INODE_SIZE, INODE_TIMES, INODE_VALUE_WORDS, INODES, NAME_BYTES_MAX, NOTE_MAP_EPOCH,
    NOTE_NAMESPACE_EPOCH, NOTE_PERIOD, NOTE_REMOVED, PREFIX_BITS, PREFIX_SHIFT, PRIVATE, SHAPES, chunk_bits_of,
    entry_key, hash_of, parts, slot_of_hash,
};
