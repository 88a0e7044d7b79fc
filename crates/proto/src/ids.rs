//! Numbers with a meaning, each a type of its own.

use crate::wire_id;

wire_id! {
    /// A virtual shard: the unit of order. Fixed in number when the volume is made.
    pub struct ShardId(u32)
}
wire_id! {
    /// A server's place in the shard map, counted from 0.
    pub struct ServerIndex(u16)
}
wire_id! {
    /// How many times a server of this place has started empty.
    pub struct Incarnation(u16)
}
wire_id! {
    /// A slot: the shards that one primary and its backups keep together. Fixed in number when the volume is made.
    pub struct SlotIndex(u32)
}
wire_id! {
    /// Counts the changes of a slot's servers, from 1.
    pub struct Configuration(u32)
}
wire_id! {
    /// How many times a slot has been made empty again, because no server had its contents any more: part of every
    /// inode number issued in it, so that a number never names two files. At most [`Life::MAX`].
    pub struct Life(u8)
}
impl Life {
    /// The last life of a slot: six bits of an inode number name it.
    pub const MAX: Life = Life((1 << Ino::LIFE_BITS) - 1);

    /// The life after this one; `None` after the last.
    pub fn next(self) -> Option<Life> {
        (self < Life::MAX).then_some(Life(self.0 + 1))
    }
}
wire_id! {
    /// The high bits of a name's hash: a place among all names, inodes and chunks of a volume. The high bits of a prefix
    /// are the shard, so that twice as many shards cut each of them in two.
    pub struct Prefix(u32)
}
impl Prefix {
    /// Bits of a prefix: 65,536 servers with 64 shards each can be told apart.
    pub const BITS: u32 = aze_index::PREFIX_BITS;

    /// The first prefix of a shard among `shards` (a power of two).
    pub fn first_of(shard: ShardId, shards: u32) -> Prefix {
        Prefix(shard.0 << (Prefix::BITS - shards.trailing_zeros()))
    }

    /// Its shard among `shards` (a power of two).
    #[inline]
    pub fn shard(self, shards: u32) -> ShardId {
        debug_assert!(shards.is_power_of_two());
        ShardId(self.0 >> (Prefix::BITS - shards.trailing_zeros()))
    }
}
wire_id! {
    /// Version of the shard map.
    pub struct MapEpoch(u32)
}
impl MapEpoch {
    /// The low bits count changes of the map, those above them starts of the volume under its mounts.
    pub const CHANGE_BITS: u32 = 22;

    /// The first epoch after the volume was started again for the `starts`-th time.
    pub fn first_of(starts: u32) -> MapEpoch {
        MapEpoch((starts << MapEpoch::CHANGE_BITS) + 1)
    }

    /// How often the volume had been started again.
    pub fn starts(self) -> u32 {
        self.0 >> MapEpoch::CHANGE_BITS
    }
}

wire_id! {
    /// Version of what clients may cache of paths: moves when a directory is renamed, removed
    /// from where it was, or loses rights.
    pub struct NamespaceEpoch(u64)
}
wire_id! {
    /// Raised by every truncation of a file; data requests of an older generation are refused.
    pub struct Generation(u32)
}
wire_id! {
    /// One client or server process, from its start to its end: 64 random bits.
    pub struct SessionId(u64)
}
wire_id! {
    /// Counts the changes that one session asks of one shard, from 1. Zero means "not a change".
    pub struct Sequence(u64)
}
wire_id! {
    /// The job that is accounted: a hash of its name, which the handshake carries in full.
    pub struct JobId(u64)
}
wire_id! {
    /// One transaction over shards: 64 random bits.
    pub struct TxId(u64)
}
wire_id! {
    /// Logical time, which orders events by cause; not related to [`Time`].
    pub struct Order(u64)
}
wire_id! {
    /// Hybrid clock: nanoseconds since 1970-01-01 UTC, never behind a cause that was seen.
    pub struct Time(u64)
}
wire_id! {
    /// An inode number: identity of a file for the volume's whole life, never issued twice.
    ///
    /// From the high bits: a prefix (22), which is that of the hash of the name under which it was made; the life of its
    /// slot (6); whether it is a private directory (1); whether its data came from a backing (1); a counter of its shard (34).
    /// The root directory is number 1: prefix 0, life 0, counter 1.
    pub struct Ino(u64)
}

impl JobId {
    /// The id of a job of this name.
    pub fn of(name: &str) -> JobId {
        JobId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
    }
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
    /// Bits of the counter: 17 billion files for each shard and life.
    pub const COUNTER_BITS: u32 = 34;
    /// The bit of inodes imported from the volume's backing, above the counter.
    const BACKED: u64 = 1 << Ino::COUNTER_BITS;
    /// The bit of a private directory, above that.
    const PRIVATE: u64 = aze_index::PRIVATE;
    /// Where the life begins.
    const LIFE_BIT: u32 = aze_index::PREFIX_SHIFT - Ino::LIFE_BITS;
    /// Bits of the life: 64 lives of one slot.
    pub const LIFE_BITS: u32 = 6;

    /// Builds a number; `None` where a part is too large.
    pub fn new(prefix: Prefix, life: Life, counter: u64) -> Option<Ino> {
        let fits =
            prefix.0 >> Prefix::BITS == 0 && life <= Life::MAX && counter > 0 && counter < 1 << Ino::COUNTER_BITS;
        fits.then(|| {
            let prefix = u64::from(prefix.0) << (Ino::LIFE_BITS + Ino::LIFE_BIT);
            Ino(prefix | u64::from(life.0) << Ino::LIFE_BIT | counter)
        })
    }

    /// The number as that of a private directory, whose names and their inodes all have its own prefix.
    pub fn of_private_directory(self) -> Ino {
        Ino(self.0 | Ino::PRIVATE)
    }

    /// Whether it is a private directory.
    #[inline]
    pub fn is_private_directory(self) -> bool {
        self.0 & Ino::PRIVATE != 0
    }

    /// The number as that of an inode that was imported from the volume's backing.
    pub fn of_backing(self) -> Ino {
        Ino(self.0 | Ino::BACKED)
    }

    /// Whether it was imported from the volume's backing, so that its data may still be there only.
    #[inline]
    pub fn is_backed(self) -> bool {
        self.0 & Ino::BACKED != 0
    }

    /// The least number of a shard among `shards`: no number of this shard is less, and none of a shard before is greater.
    pub fn least_of(shard: ShardId, shards: u32) -> Ino {
        Ino(u64::from(Prefix::first_of(shard, shards).0) << (Ino::LIFE_BITS + Ino::LIFE_BIT))
    }

    /// The place of the name under which it was made.
    #[inline]
    pub fn prefix(self) -> Prefix {
        Prefix((self.0 >> (Ino::LIFE_BITS + Ino::LIFE_BIT)) as u32)
    }

    /// The shard, among `shards`, that keeps the inode.
    #[inline]
    pub fn home(self, shards: u32) -> ShardId {
        self.prefix().shard(shards)
    }

    /// The life of its slot in which it was issued.
    pub fn life(self) -> Life {
        Life((self.0 >> Ino::LIFE_BIT) as u8 & Life::MAX.0)
    }

    /// The counter within shard and life.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << Ino::COUNTER_BITS) - 1)
    }

    /// Life, counter and the bits between them as one number: a shard issues each only once, those of private directories,
    /// those from a backing and all others each in their order.
    #[inline]
    pub fn issue(self) -> u64 {
        self.0 & ((1 << (Ino::LIFE_BITS + Ino::LIFE_BIT)) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_number_keeps_its_parts() {
        let last = (1 << Prefix::BITS) - 1;
        let ino = Ino::new(Prefix(last), Life(63), (1 << 34) - 1).unwrap();
        assert_eq!((ino.prefix(), ino.life(), ino.counter()), (Prefix(last), Life(63), (1 << 34) - 1));
        let private = ino.of_private_directory();
        assert_eq!((private.of_backing().0, private.of_backing().issue()), (u64::MAX, (1 << 42) - 1));
        assert_eq!((ino.is_backed(), ino.of_backing().is_backed(), private.is_backed()), (false, true, false));
        assert_eq!(ino.of_backing().counter(), ino.counter());
        assert_eq!((private.prefix(), private.life(), private.counter()), (ino.prefix(), ino.life(), ino.counter()));
        assert_eq!((ino.is_private_directory(), private.is_private_directory()), (false, true));
        assert_eq!(Ino::new(Prefix(0), Life(0), 1), Some(Ino::ROOT));
        assert_eq!(Ino::new(Prefix(1 << 22), Life(0), 1), None);
        assert_eq!(Ino::new(Prefix(0), Life(64), 1), None);
        assert_eq!(Ino::new(Prefix(0), Life(0), 1 << 34), None);
        assert_eq!(Ino::new(Prefix(0), Life(0), 0), None);
        assert_eq!((Life(62).next(), Life(63).next()), (Some(Life(63)), None));
    }

    /// Twice as many shards: each is cut in two, and no number changes.
    #[test]
    fn shards_double_without_new_numbers() {
        for prefix in [0, 1, 0x155_555, 0x2a_aaaa, (1 << 22) - 1] {
            let ino = Ino::new(Prefix(prefix), Life(5), 7).unwrap();
            assert_eq!(ino.home(1), ShardId(0));
            for bits in 0..Prefix::BITS {
                let (before, after) = (ino.home(1 << bits), ino.home(2 << bits));
                assert_eq!(before.0, after.0 / 2, "prefix {prefix:#x}, {bits} bits");
                let (least, next) = (Ino::least_of(after, 2 << bits), Ino::least_of(ShardId(after.0 + 1), 2 << bits));
                assert!(least <= ino && (ino < next || next < least), "prefix {prefix:#x}, {bits} bits");
                assert_eq!(Prefix::first_of(after, 2 << bits).shard(2 << bits), after);
            }
            assert_eq!(ino.home(1 << Prefix::BITS), ShardId(prefix));
        }
    }
}
