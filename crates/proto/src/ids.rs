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
    /// How many times a server of this place has started empty; part of every inode number
    /// that it issues, so that a number never names two files.
    pub struct Incarnation(u16)
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
    /// From the high bits: home shard (16), incarnation of its server (12), counter (36).
    /// The root directory is number 1: shard 0, incarnation 0, counter 1.
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
    /// Bits of the counter: 68 billion files for each shard and incarnation.
    pub const COUNTER_BITS: u32 = 36;
    /// Bits of the incarnation: 4,096 empty restarts of one server.
    pub const INCARNATION_BITS: u32 = 12;

    /// Builds a number; `None` where a part is too large.
    pub fn new(home: ShardId, incarnation: Incarnation, counter: u64) -> Option<Ino> {
        let fits = home.0 < crate::limits::SHARDS_MAX
            && u32::from(incarnation.0) < 1 << Self::INCARNATION_BITS
            && counter > 0
            && counter < 1 << Self::COUNTER_BITS;
        fits.then(|| {
            let home = u64::from(home.0) << (Self::INCARNATION_BITS + Self::COUNTER_BITS);
            Ino(home | u64::from(incarnation.0) << Self::COUNTER_BITS | counter)
        })
    }

    /// The shard that keeps the inode.
    pub fn home(self) -> ShardId {
        ShardId((self.0 >> (Self::INCARNATION_BITS + Self::COUNTER_BITS)) as u32)
    }

    /// The incarnation under which it was issued.
    pub fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> Self::COUNTER_BITS) as u16 & ((1 << Self::INCARNATION_BITS) - 1))
    }

    /// The counter within shard and incarnation.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << Self::COUNTER_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_number_keeps_its_parts() {
        let ino = Ino::new(ShardId(65_535), Incarnation(4_095), (1 << 36) - 1).unwrap();
        assert_eq!(
            (ino.home(), ino.incarnation(), ino.counter()),
            (ShardId(65_535), Incarnation(4_095), (1 << 36) - 1)
        );
        assert_eq!(ino.0, u64::MAX);
        assert_eq!(Ino::new(ShardId(0), Incarnation(0), 1), Some(Ino::ROOT));
        assert_eq!(Ino::new(ShardId(65_536), Incarnation(0), 1), None);
        assert_eq!(Ino::new(ShardId(0), Incarnation(4_096), 1), None);
        assert_eq!(Ino::new(ShardId(0), Incarnation(0), 1 << 36), None);
        assert_eq!(Ino::new(ShardId(0), Incarnation(0), 0), None);
    }
}
