//! Names of directory entries and the hash that orders and places them.

use crate::ids::{Ino, Prefix, ShardId};
use crate::limits::NAME_BYTES_MAX;
use crate::wire::{Input, Malformed, Wire};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// One component of a path: 1 to 255 bytes of any kind but `/` and NUL; never `.` or `..`.
#[derive(Clone)]
pub struct Name(Text);

/// The longest names that need no memory of their own, in bytes: a name is 24 bytes long anyway, and
/// most names of most directories are shorter than that.
const SHORT_BYTES_MAX: usize = 22;

#[derive(Clone)]
enum Text {
    Short { len: u8, bytes: [u8; SHORT_BYTES_MAX] },
    Long(Box<[u8]>),
}

/// Why bytes are not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadName {
    /// Longer than [`NAME_BYTES_MAX`].
    TooLong,
    /// Empty, `.`, `..`, or with a `/` or a NUL.
    Invalid,
}

impl Name {
    /// Checks and copies.
    pub fn new(bytes: &[u8]) -> Result<Name, BadName> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(BadName::TooLong);
        }
        let invalid =
            bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| matches!(b, b'/' | 0));
        if invalid { Err(BadName::Invalid) } else { Ok(Name(Text::of(bytes))) }
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short { len, bytes } => &bytes[..usize::from(*len)],
            Text::Long(bytes) => bytes,
        }
    }
}

impl Text {
    fn of(name: &[u8]) -> Text {
        let mut bytes = [0; SHORT_BYTES_MAX];
        match bytes.get_mut(..name.len()) {
            Some(place) => {
                place.copy_from_slice(name);
                Text::Short { len: name.len() as u8, bytes }
            }
            None => Text::Long(name.into()),
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl Wire for Name {
    fn put(&self, out: &mut Vec<u8>) {
        let bytes = self.as_bytes();
        (bytes.len() as u16).put(out);
        out.extend_from_slice(bytes);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let count = usize::from(u16::take(input)?);
        let bytes = input.bytes(count, "a name")?;
        Name::new(bytes).map_err(|_| input.malformed("a name that is no name"))
    }
}

/// 62-bit hash of (parent, name). Its high bits choose the shard; the whole orders entries
/// within a directory and is the cookie of a listing. Two names of equal hash are told apart by
/// their bytes: a hash places, it never identifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash(u64);

impl NameHash {
    /// Bits of the hash: a cookie plus the two for `.` and `..` stays positive in a signed offset.
    pub const BITS: u32 = aze_index::HASH_BITS;

    /// The hash of `name` in directory `parent`: XXH3 with the parent as seed. In a private directory the prefix is the
    /// directory's own instead, so that all its names are beside it.
    pub fn of(parent: Ino, name: &Name) -> NameHash {
        NameHash(aze_index::hash_of(parent.0, name.as_bytes()))
    }

    /// Its high bits: the place of the entry, and of the inode that is made with it.
    #[inline]
    pub fn prefix(self) -> Prefix {
        Prefix((self.0 >> (Self::BITS - Prefix::BITS)) as u32)
    }

    /// The shard of an entry in a volume of `shards` shards (a power of two).
    pub fn shard(self, shards: u32) -> ShardId {
        debug_assert!(shards.is_power_of_two());
        ShardId((self.0 >> (Self::BITS - shards.trailing_zeros())) as u32)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Least cookie of an entry: 0 means "before the first", 1 and 2 belong to `.` and `..`.
    pub const COOKIE_MIN: u64 = 3;

    /// The cookie of an entry in a listing of its directory: hash + [`Self::COOKIE_MIN`]. Entries
    /// of equal hash share it.
    pub fn cookie(self) -> u64 {
        self.0 + Self::COOKIE_MIN
    }

    /// The least hash whose cookie is greater than `after`; `None` if there is no such hash.
    pub fn after_cookie(after: u64) -> Option<NameHash> {
        let hash = after.saturating_sub(Self::COOKIE_MIN - 1);
        (hash >> Self::BITS == 0).then_some(NameHash(hash))
    }
}

impl Wire for NameHash {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let value = u64::take(input)?;
        if value >> Self::BITS != 0 {
            return Err(input.malformed("a name hash of more than 62 bits"));
        }
        Ok(NameHash(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_posix() {
        assert!(Name::new(b"a\xff\n ").is_ok());
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert_eq!(Name::new(&[b'x'; 256]), Err(BadName::TooLong));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(bad), Err(BadName::Invalid));
        }
    }

    #[test]
    fn names_of_every_length_are_kept_and_ordered_by_their_bytes() {
        let name = |len: usize, last: u8| Name::new(&[&vec![b'x'; len - 1][..], &[last]].concat()).unwrap();
        for len in 1..=NAME_BYTES_MAX {
            let (low, high) = (name(len, b'a'), name(len, b'b'));
            assert_eq!(low.as_bytes().len(), len);
            assert!(low == name(len, b'a') && low < high && low != high, "{len}");
            assert!(len == NAME_BYTES_MAX || high < name(len + 1, b'a'), "{len}");
            let mut written = Vec::new();
            high.put(&mut written);
            assert_eq!(written.len(), 2 + len);
        }
        assert_eq!(size_of::<Name>(), 24);
    }

    #[test]
    fn the_same_name_in_two_directories_has_two_places() {
        let name = Name::new(b"data").unwrap();
        let (one, two) = (NameHash::of(Ino(1), &name), NameHash::of(Ino(2), &name));
        assert_ne!(one, two);
        assert!(one.shard(4096).0 < 4096 && one.shard(1).0 == 0);
    }

    #[test]
    fn cookies_leave_room_for_dot_and_dot_dot() {
        assert_eq!(NameHash::default().cookie(), 3);
        for after in 0..3 {
            assert_eq!(NameHash::after_cookie(after), Some(NameHash(0)));
        }
        assert_eq!(NameHash::after_cookie(NameHash(41).cookie()), Some(NameHash(42)));
        let last = NameHash((1 << NameHash::BITS) - 1);
        assert!(last.cookie() < i64::MAX as u64);
        assert_eq!(NameHash::after_cookie(last.cookie() - 1), Some(last));
        assert_eq!(NameHash::after_cookie(last.cookie()), None);
        assert_eq!(NameHash::after_cookie(u64::MAX), None);
    }

    #[test]
    fn shards_are_ranges_of_the_hash() {
        let mut hashes: Vec<_> =
            (0..1000).map(|i| NameHash::of(Ino::ROOT, &Name::new(format!("f{i}").as_bytes()).unwrap())).collect();
        hashes.sort();
        let shards: Vec<_> = hashes.iter().map(|hash| hash.shard(64)).collect();
        assert!(shards.is_sorted());
    }
}
