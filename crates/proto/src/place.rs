//! Placement: which shard holds what, and which server holds a shard. Arithmetic only.
//!
//! Source of the modular rule: CHFS (Tatebe et al.), where striping chunk i of a file to
//! (hash + i) mod N gave 1.6 times the bandwidth of consistent hashing. Here the modulus is the
//! fixed number of virtual shards S, so that servers may come and go without moving every chunk.

use crate::attr::Attr;
use crate::ids::{Incarnation, MapEpoch, ServerIndex, ShardId};
use crate::limits::{SHARDS_MAX, SHARDS_PER_SERVER_MIN};
use crate::wire::{Input, Malformed, Wire};
use crate::wire_struct;
use std::collections::BTreeSet;

wire_struct! {
    /// One server as the map knows it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ServerInfo {
        /// Where it listens, best first: `unix:PATH` (same node only), `tcp:HOST:PORT`.
        pub addresses: Vec<String>,
        /// The node it runs on, for people.
        pub host: String,
        /// How many times it has started empty before.
        pub incarnation: Incarnation,
        /// Map epoch at which it last started empty: older files and directories have lost their part here.
        pub since: MapEpoch,
        /// Its process id on its node, for people and for `aze down`.
        pub pid: u32,
        /// Bytes it can hold.
        pub capacity_bytes: u64,
        /// Its process has ended, and it has not come back.
        pub ended: bool,
    }
}

wire_struct! {
    /// Which server holds which shard; versioned, changed only by the keeper.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ShardMap {
        /// Version of this map.
        pub epoch: MapEpoch,
        /// The server that changes the map.
        pub keeper: ServerIndex,
        /// Base-2 logarithm of the chunk size of new files.
        pub chunk_bits: u8,
        /// User id of the volume's owner.
        pub owner_uid: u32,
        /// Group id of the volume's owner.
        pub owner_gid: u32,
        /// The volume's name.
        pub volume: String,
        /// The servers.
        pub servers: Vec<ServerInfo>,
        /// Shard number to server; its length is the number of shards, a power of two.
        pub table: ShardTable,
    }
}

/// Shard number → server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardTable(Vec<ServerIndex>);

impl ShardTable {
    /// The first assignment: shard s on server s mod N.
    ///
    /// # Errors
    /// When `shards` is no power of two up to [`SHARDS_MAX`], or there are fewer than
    /// [`SHARDS_PER_SERVER_MIN`] for each server.
    pub fn modular(shards: u32, servers: u16) -> Result<ShardTable, String> {
        if !shards.is_power_of_two() || shards > SHARDS_MAX {
            return Err(format!("the number of shards must be a power of two up to {SHARDS_MAX}, not {shards}"));
        }
        if servers == 0 || u32::from(servers) * SHARDS_PER_SERVER_MIN > shards {
            return Err(format!(
                "{servers} servers on {shards} shards: at least 1 server and {SHARDS_PER_SERVER_MIN} shards for each server are needed"
            ));
        }
        Ok(ShardTable((0..shards).map(|shard| ServerIndex((shard % u32::from(servers)) as u16)).collect()))
    }

    /// How many shards there are.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Whether there are none (never, in a decoded table).
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The server of a shard; `None` if the volume has no such shard.
    pub fn get(&self, shard: ShardId) -> Option<ServerIndex> {
        self.0.get(shard.0 as usize).copied()
    }
}

impl Wire for ShardTable {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let table: Vec<ServerIndex> = Vec::take(input)?;
        if !table.len().is_power_of_two() || table.len() > SHARDS_MAX as usize {
            return Err(input.malformed("a shard table whose length is no power of two"));
        }
        Ok(ShardTable(table))
    }
}

impl ShardMap {
    /// How many shards the volume has.
    pub fn shards(&self) -> u32 {
        self.table.len()
    }

    /// The server of a shard. A shard beyond the table gives `None`.
    pub fn server_of(&self, shard: ShardId) -> Option<ServerIndex> {
        self.table.get(shard).filter(|server| usize::from(server.0) < self.servers.len())
    }

    /// Whether the process of a server is known to have ended.
    pub fn has_ended(&self, index: ServerIndex) -> bool {
        self.server(index).is_some_and(|info| info.ended)
    }

    /// A server by its index.
    pub fn server(&self, index: ServerIndex) -> Option<&ServerInfo> {
        self.servers.get(usize::from(index.0))
    }

    /// All server numbers.
    pub fn indexes(&self) -> impl Iterator<Item = ServerIndex> + use<> {
        (0..self.servers.len() as u16).map(ServerIndex)
    }

    /// The shard of chunk `index` of a file: (shard of chunk 0 + index) mod S.
    pub fn chunk_shard(&self, attr: &Attr, index: u64) -> ShardId {
        chunk_shard(attr.data_shard, index, self.shards())
    }

    /// The servers that may have data of a file which are elsewhere than beside its inode, each once.
    pub fn data_servers(&self, attr: &Attr) -> Vec<ServerIndex> {
        let chunks = attr.spread.chunks();
        if chunks >= u64::from(self.shards()) {
            return self.indexes().collect();
        }
        let places: BTreeSet<ServerIndex> =
            (0..chunks).filter_map(|chunk| self.server_of(self.chunk_shard(attr, chunk))).collect();
        places.into_iter().collect()
    }
}

/// The shard of chunk `index` of a file whose chunk 0 lives on `first`, among `shards`.
pub fn chunk_shard(first: ShardId, index: u64, shards: u32) -> ShardId {
    ShardId(((u64::from(first.0) + index % u64::from(shards)) % u64::from(shards)) as u32)
}

/// A part of a byte range that lies in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Number of the chunk.
    pub chunk: u64,
    /// Where in the chunk it starts, in bytes.
    pub offset: u32,
    /// Where in the whole range it starts, in bytes.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// Cuts `[offset, offset + len)` at chunk borders.
pub fn spans(offset: u64, len: usize, chunk_bits: u8) -> impl Iterator<Item = Span> {
    let chunk_bytes = 1u64 << chunk_bits;
    let mut start = 0;
    std::iter::from_fn(move || {
        if start >= len {
            return None;
        }
        let at = offset + start as u64;
        let in_chunk = at % chunk_bytes;
        let room = (chunk_bytes - in_chunk).min((len - start) as u64) as usize;
        let span = Span { chunk: at >> chunk_bits, offset: in_chunk as u32, start, len: room };
        start += room;
        Some(span)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Spread;
    use crate::attr::tests::file;

    #[test]
    fn modular_spreads_evenly_and_in_order() {
        let table = ShardTable::modular(4096, 3).unwrap();
        assert_eq!(table.get(ShardId(0)), Some(ServerIndex(0)));
        assert_eq!(table.get(ShardId(4)), Some(ServerIndex(1)));
        assert_eq!(table.get(ShardId(4096)), None);
        assert!(ShardTable::modular(4095, 3).is_err());
        assert!(ShardTable::modular(4096, 65).is_err());
        assert!(ShardTable::modular(4096, 0).is_err());
    }

    #[test]
    fn chunks_wrap_around_the_shards() {
        assert_eq!(chunk_shard(ShardId(4095), 1, 4096), ShardId(0));
        assert_eq!(chunk_shard(ShardId(3), u64::MAX >> 20, 4096).0, (3 + ((u64::MAX >> 20) % 4096) as u32) % 4096);
    }

    #[test]
    fn only_servers_of_the_chunks_may_have_data() {
        let server = ServerInfo {
            addresses: Vec::new(),
            host: String::new(),
            incarnation: Incarnation(0),
            since: MapEpoch(1),
            pid: 1,
            capacity_bytes: 0,
            ended: false,
        };
        let map = ShardMap {
            epoch: MapEpoch(1),
            keeper: ServerIndex(0),
            chunk_bits: 20,
            owner_uid: 0,
            owner_gid: 0,
            volume: String::new(),
            servers: vec![server; 8],
            table: ShardTable::modular(4096, 8).unwrap(),
        };
        let of = |first: u32, chunks: u64| {
            let attr = Attr { data_shard: ShardId(first), spread: Spread::reaching(chunks), ..file() };
            map.data_servers(&attr).iter().map(|server| server.0).collect::<Vec<_>>()
        };
        assert_eq!(of(3, 0), [], "all are beside the inode");
        assert_eq!(of(3, 1), [3]);
        assert_eq!(of(3, 2), [3, 4]);
        assert_eq!(of(4095, 2), [0, 7]);
        assert_eq!(of(6, 3), [0, 1, 6, 7]);
        assert_eq!(of(0, 1000).len(), 8);
        assert_eq!(of(0, u64::MAX).len(), 8);
    }

    #[test]
    fn spans_cover_the_range_once() {
        let parts: Vec<_> = spans((1 << 20) - 10, (1 << 20) + 20, 20).collect();
        assert_eq!(parts.iter().map(|span| span.len).sum::<usize>(), (1 << 20) + 20);
        assert_eq!(parts[0], Span { chunk: 0, offset: (1 << 20) - 10, start: 0, len: 10 });
        assert_eq!(parts[1], Span { chunk: 1, offset: 0, start: 10, len: 1 << 20 });
        assert_eq!(parts[2], Span { chunk: 2, offset: 0, start: 10 + (1 << 20), len: 10 });
    }
}
