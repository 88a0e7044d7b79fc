//! What the words of a published index mean: a server's files as clients of its node may read them without a
//! request.
//!
//! Where each word stands says room `index`. Everything that the words say may have been written by another process:
//! impossible values are no record.

use crate::attr::{Attr, FileKind, Spread};
use crate::ids::{Generation, Ino, MapEpoch, Prefix, Time};
use crate::limits::{CHUNK_BITS_MAX, CHUNK_BITS_MIN};
use crate::name::Name;
use crate::place::Layout;
use aze_index::parts;
pub use aze_index::{
    DIRECTORIES, ENTRIES, ENTRY_KEY_WORDS, INODE_VALUE_WORDS, INODES, NAME_BYTES_MAX, NOTE_MAP_EPOCH,
    NOTE_NAMESPACE_EPOCH, NOTE_PERIOD, NOTE_REMOVED, SHAPES,
};

/// Counters for each file that has a place, as a power of two: so few names share one, also where
/// there are several times as many names as places.
const COUNTERS_EACH_BITS: u32 = 4;

/// Bytes of one entry with its inode and its counters.
const FILE_BYTES: u64 = 8 * (1 + ENTRY_KEY_WORDS as u64 + 1 + 2 + INODE_VALUE_WORDS as u64) + (1 << COUNTERS_EACH_BITS);

/// Most memory that entries and inodes take, in bytes.
pub const BYTES_MAX: u64 = 1 << 30;

/// Least of it, as a power of two of files.
const FILE_BITS_MIN: u32 = 6;

/// Base-2 logarithm of the directories that have a place.
const DIRECTORY_BITS: u32 = 10;

/// For how many files and directories, as powers of two, there is a place in a published index of about this many
/// bytes.
pub fn file_bits(bytes: u64) -> [u32; 3] {
    let files = (bytes.min(BYTES_MAX) / FILE_BYTES).checked_ilog2().unwrap_or(0).max(FILE_BITS_MIN);
    [files, files, DIRECTORY_BITS.min(files)]
}

/// How many counters of names there are, as a power of two, where there is a place for 2^`file_bits` files.
pub fn counter_bits(file_bits: u32) -> u32 {
    file_bits + COUNTERS_EACH_BITS
}

/// The key of an entry's record; `None` if its name is too long for one.
pub fn entry_key(parent: Ino, name: &Name) -> Option<[u64; ENTRY_KEY_WORDS]> {
    aze_index::entry_key(parent.0, name.as_bytes())
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Where the bits of a file's spread stand, above its chunk bits.
const SPREAD_BIT: u32 = 8;
/// Where those of the number of shards stand with which the file was made.
const SHARDS_BIT: u32 = 16;
/// Where the bit stands that says that the file has extended attributes.
const XATTRS_BIT: u32 = 24;

/// The value of an inode's record; `None` for an inode that has none: all but regular files.
pub fn inode_value(attr: &Attr) -> Option<[u64; INODE_VALUE_WORDS]> {
    let Attr { ino: _, kind, mode, links, uid, gid, rdev, size, atime, mtime, ctime, btime, generation, .. } = attr;
    let Attr { born, layout, chunk_bits, spread, has_xattrs, parent, .. } = attr;
    if *kind != FileKind::File || *rdev != 0 || *parent != Ino(0) {
        return None;
    }
    let bits = u32::from(*chunk_bits)
        | u32::from(spread.bits()) << SPREAD_BIT
        | u32::from(layout.shard_bits) << SHARDS_BIT
        | u32::from(*has_xattrs) << XATTRS_BIT;
    Some([
        pair(*mode, *links),
        pair(*uid, *gid),
        *size,
        atime.0,
        mtime.0,
        ctime.0,
        btime.0,
        pair(generation.0, born.0),
        pair(layout.first.0, bits),
        attr.blocks(),
    ])
}

/// The attributes that an inode's record tells; `None` if it cannot be one.
pub fn inode_attr(ino: Ino, value: &[u64; INODE_VALUE_WORDS]) -> Option<Attr> {
    let [modes, owners, size, atime, mtime, ctime, btime, ages, place, _] = *value;
    let ((mode, links), (uid, gid)) = (parts(modes), parts(owners));
    let ((generation, born), (first, bits)) = (parts(ages), parts(place));
    let chunk_bits = (bits & 0xff) as u8;
    if mode & !0o7777 != 0 || !(CHUNK_BITS_MIN..=CHUNK_BITS_MAX).contains(&chunk_bits) {
        return None;
    }
    let spread = Spread::from_bits((bits >> SPREAD_BIT & 0xff) as u8)?;
    let shard_bits = (bits >> SHARDS_BIT & 0xff) as u8;
    let has_xattrs = match bits >> XATTRS_BIT {
        0 => false,
        1 => true,
        _ => return None,
    };
    if first >> Prefix::BITS != 0 || u32::from(shard_bits) > Prefix::BITS {
        return None;
    }
    Some(Attr {
        ino,
        kind: FileKind::File,
        mode,
        links,
        uid,
        gid,
        rdev: 0,
        size,
        atime: Time(atime),
        mtime: Time(mtime),
        ctime: Time(ctime),
        btime: Time(btime),
        generation: Generation(generation),
        born: MapEpoch(born),
        layout: Layout { first: Prefix(first), shard_bits },
        chunk_bits,
        spread,
        has_xattrs,
        parent: Ino(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        Attr {
            ino: Ino(9),
            kind: FileKind::File,
            mode: 0o4755,
            links: 3,
            uid: u32::MAX,
            gid: 5,
            rdev: 0,
            size: u64::MAX,
            atime: Time(1),
            mtime: Time(2),
            ctime: Time(3),
            btime: Time(u64::MAX),
            generation: Generation(7),
            born: MapEpoch(8),
            layout: Layout { first: Prefix((1 << 22) - 1), shard_bits: 22 },
            chunk_bits: 20,
            spread: Spread::ANYWHERE,
            has_xattrs: true,
            parent: Ino(0),
        }
    }

    #[test]
    fn attributes_of_files_go_through_words_as_they_are() {
        for file in [attr(), Attr { spread: Spread::sparse(true), chunk_bits: CHUNK_BITS_MIN, ..attr() }] {
            let value = inode_value(&file).expect("a regular file has a record");
            assert_eq!(inode_attr(Ino(9), &value), Some(file));
        }
        for other in [
            Attr { kind: FileKind::Directory, ..attr() },
            Attr { kind: FileKind::Symlink, ..attr() },
            Attr { parent: Ino(1), ..attr() },
            Attr { rdev: 1, ..attr() },
        ] {
            assert_eq!(inode_value(&other), None);
        }
    }

    /// Programs look for holes where a file takes fewer blocks than its length, and `tar` reads nothing of 0 blocks.
    #[test]
    fn files_that_may_have_holes_take_fewer_blocks() {
        let layout = Layout::new(attr().ino.prefix(), 4096);
        let with = |size, spread| Attr { size, spread, chunk_bits: 16, layout, ..attr() }.blocks();
        let both = Spread::ANYWHERE.and(Spread::sparse(true));
        for (size, dense, sparse) in [(0, 0, 0), (1, 1, 1), (512, 1, 1), (513, 2, 1), (1 << 20, 2048, 2047)] {
            assert_eq!((with(size, Spread::ANYWHERE), with(size, both)), (dense, sparse), "{size}");
        }
        assert_eq!(with(1 << 40, Spread::default()), 128, "there are data in chunk 0 only");
        let apart = Layout { first: Prefix(layout.first.0 + 1), ..layout };
        let apart = Attr { size: 1 << 40, spread: Spread::default(), layout: apart, ..attr() };
        assert_eq!(apart.blocks(), 0, "nothing is beside the inode");
        assert_eq!(Attr { kind: FileKind::Directory, size: 5, ..attr() }.blocks(), 0);
    }

    #[test]
    fn words_that_cannot_be_are_no_attributes() {
        let value = inode_value(&attr()).expect("a regular file has a record");
        for (at, wrong) in [
            (0, 0o10_000),
            (8, 25 << 32),
            (8, 15 << 32),
            (8, (1 << 15 | 20) << 32),
            (8, 20 << 32 | 1 << 22),
            (8, (23 << 16 | 20) << 32),
        ] {
            let mut spoilt = value;
            spoilt[at] = wrong;
            assert_eq!(inode_attr(Ino(9), &spoilt), None, "word {at} is {wrong:#x}");
        }
    }

    #[test]
    fn different_names_have_different_keys() {
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let key = |text: &str| entry_key(Ino(2), &name(text));
        let names = ["a", "b", "ab", "a\u{1}", "aaaaaaa", "aaaaaaaa", &"a".repeat(38), &"a".repeat(39)];
        for (index, one) in names.iter().enumerate() {
            for other in &names[index + 1..] {
                assert_ne!(key(one), key(other));
            }
        }
        assert_ne!(key("a"), entry_key(Ino(3), &name("a")));
        assert_eq!(key(&"a".repeat(40)), None);
    }

    #[test]
    fn the_memory_taken_is_bounded() {
        for bytes in [0, 1 << 20, 32 << 20, u64::MAX] {
            let [files, same, directories] = file_bits(bytes);
            assert!(files == same && directories <= files);
            assert!(files == FILE_BITS_MIN || FILE_BYTES << files <= bytes.min(BYTES_MAX));
        }
    }
}
