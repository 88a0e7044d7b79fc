//! Placement: which shard holds what, and which server serves a shard. Arithmetic only.
//!
//! Source of the modular rule: CHFS (Tatebe et al.), where striping chunk i of a file to
//! (hash + i) mod N gave 1.6 times the bandwidth of consistent hashing. Here the modulus is the
//! number of virtual shards that the volume had when the file was made, so that servers may come and go without moving
//! every chunk.

use crate::attr::Attr;
use crate::ids::{Incarnation, Ino, MapEpoch, Prefix, ServerIndex, SessionId, ShardId, SlotIndex};
use crate::limits::{SERVERS_MAX, SLOTS_PER_SERVER};
use crate::slots::SlotTable;
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
        /// It has left the volume: other servers have all that it had, and its place stays empty.
        pub left: bool,
        /// It has joined a volume in use, and does not have its share of the slots yet.
        pub joining: bool,
        /// How often it has come back alone, from its directory, in this start of the volume.
        pub life: u32,
        /// Map epoch at which this life of it began.
        pub began: MapEpoch,
        /// The session of its process: what an earlier one has sent is refused.
        pub session: SessionId,
    }
}

wire_struct! {
    /// A member of the keeper group.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GroupMember {
        /// Its server.
        pub server: ServerIndex,
        /// What names it: the session of its process, since a later process of that server has forgotten what this one has promised. On a
        /// volume in directories [`GroupMember::lasting`].
        pub session: SessionId,
    }
}

wire_struct! {
    /// The newest map to which a member of a keeper group has agreed, and where in the order of decisions that is. Of
    /// those that are highest in this order among all members, each has all decisions.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Agreed {
        /// The start of the volume in which the group was formed.
        pub start: u64,
        /// The map by which it was.
        pub formed: MapEpoch,
        /// The term of the proposal.
        pub term: u64,
        /// Its place in the log.
        pub index: u64,
        /// The map.
        pub map: ShardMap,
    }
}

wire_struct! {
    /// A server that was left out of a start of a volume in directories.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Away {
        /// Its number.
        pub server: ServerIndex,
        /// The last complete start in which it took part.
        pub start: u64,
    }
}

impl Agreed {
    /// Where in the order of decisions it is.
    pub fn order(&self) -> (u64, MapEpoch, u64, u64) {
        (self.start, self.formed, self.term, self.index)
    }
}

wire_struct! {
    /// The servers whose majority decides on the map.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct KeeperGroup {
        /// The map by which this group was formed. That map is the last decision of the group before it.
        pub formed: MapEpoch,
        /// Its members.
        pub members: Vec<GroupMember>,
    }
}

wire_struct! {
    /// Which server serves which shard; versioned, changed only by the keeper.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ShardMap {
        /// Version of this map.
        pub epoch: MapEpoch,
        /// The server that changes the map.
        pub keeper: ServerIndex,
        /// The servers that have to agree.
        pub group: KeeperGroup,
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
        /// The slots of the shards, and their servers.
        pub slots: SlotTable,
    }
}

/// Where the chunks of a file are: beginning at the prefix of its first one, each is one shard further, among as many
/// shards as there were when the file was made; all in one shard if the file was made in a private directory. When each
/// shard has been cut in two since, a chunk is in the half that its prefix says, as names and inodes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The prefix of chunk 0: the inode's, where chunk 0 lies beside it.
    pub first: Prefix,
    /// Base-2 logarithm of the number of shards among which they are: all that there were when the file was made, or one.
    pub shard_bits: u8,
}

impl Layout {
    /// With chunk 0 at `first`, on a volume of `shards` shards (a power of two).
    pub fn new(first: Prefix, shards: u32) -> Layout {
        Layout { first, shard_bits: shards.trailing_zeros() as u8 }
    }

    /// With all chunks beside one another at `first`.
    pub fn in_one_shard(first: Prefix) -> Layout {
        Layout { first, shard_bits: 0 }
    }

    /// Whether chunk 0 lies beside the inode.
    #[inline]
    pub fn is_beside(self, ino: Ino) -> bool {
        self.first == ino.prefix()
    }

    /// The place of chunk `index`.
    #[inline]
    pub fn place(self, index: u64) -> Prefix {
        // Only the low bits of the index count: the shards are gone through again and again.
        let steps = (index & (self.step() - 1)) as u32;
        Prefix((self.first.0 + (steps << self.low_bits())) & ((1 << Prefix::BITS) - 1))
    }

    /// After how many chunks it is the same shard's turn again.
    #[inline]
    pub fn step(self) -> u64 {
        1 << self.shard_bits
    }

    /// How many chunks after chunk `from` the first one comes that is in a shard, among `shards`; `None` if the shard has
    /// none of the file.
    pub fn ahead(self, from: u64, shard: ShardId, shards: u32) -> Option<u64> {
        let mut wanted = Prefix::first_of(shard, shards).0;
        let low = (1 << self.low_bits()) - 1;
        let own = (1 << (Prefix::BITS - shards.trailing_zeros())) - 1;
        // Of the shards into which one was cut, only that one which the low bits of the prefix say.
        if wanted & low != self.first.0 & low & !own {
            return None;
        }
        wanted >>= self.low_bits();
        let now = self.place(from).0 >> self.low_bits();
        Some(u64::from(wanted.wrapping_sub(now)) & (self.step() - 1))
    }

    /// Bits of a prefix below those of the shard.
    fn low_bits(self) -> u32 {
        Prefix::BITS - u32::from(self.shard_bits)
    }
}

impl Wire for Layout {
    fn put(&self, out: &mut Vec<u8>) {
        self.first.put(out);
        self.shard_bits.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let layout = Layout { first: Wire::take(input)?, shard_bits: Wire::take(input)? };
        if layout.first.0 >> Prefix::BITS != 0 || u32::from(layout.shard_bits) > Prefix::BITS {
            return Err(input.malformed("a layout that cannot be"));
        }
        Ok(layout)
    }
}

impl ServerInfo {
    /// One that was left out when the volume was started, and has not come back.
    pub fn of_left_out(host: String, capacity_bytes: u64, session: SessionId) -> ServerInfo {
        ServerInfo { ended: true, left: false, host, capacity_bytes, session, ..ServerInfo::of_none() }
    }

    /// Whether it was left out when the volume was started. No other server knows the work that it had begun before.
    pub fn is_left_out(&self) -> bool {
        self.ended && !self.left && self.addresses.is_empty()
    }

    /// In the place of a server that has left before the volume was started.
    pub fn of_none() -> ServerInfo {
        ServerInfo {
            addresses: Vec::new(),
            host: String::new(),
            incarnation: Incarnation(0),
            since: MapEpoch(0),
            pid: 0,
            capacity_bytes: 0,
            ended: false,
            left: true,
            joining: false,
            life: 0,
            began: MapEpoch(0),
            session: SessionId(0),
        }
    }
}

/// Members of a keeper group, where there are as many servers: it goes on without one of them.
pub const GROUP_MEMBERS: usize = 3;

impl GroupMember {
    /// A member of a volume in directories: its promises are on the disk of its server. It is another one when the
    /// server has come back, which the group decides.
    pub fn lasting(server: ServerIndex, life: u32) -> GroupMember {
        GroupMember { server, session: SessionId((u64::from(life) << 16 | u64::from(server.0)) + 1) }
    }
}

impl KeeperGroup {
    /// The member that a server is, in any life.
    pub fn member(&self, server: ServerIndex) -> Option<&GroupMember> {
        self.members.iter().find(|member| member.server == server)
    }

    /// How many members have to agree.
    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }
}

/// An empty table.
const NONE: [u8; 4] = [0; 4];

impl ShardMap {
    /// Forms another group by this map, if that is due: members that are gone are replaced. With fewer than three
    /// servers the keeper decides alone, since two members would both be needed. On a volume in directories (`lasts`)
    /// members outlive their processes, and have slots: when all servers start, those that have are asked for the
    /// decisions.
    pub fn form_group(&mut self, lasts: bool) {
        let has_slots = |server: ServerIndex| self.slots.served_by(server).next().is_some();
        let is_there = |server: ServerIndex| !self.is_gone(server) && (!lasts || has_slots(server));
        let living: Vec<ServerIndex> = self.indexes().filter(|server| is_there(*server)).collect();
        let wanted = if living.len() < GROUP_MEMBERS { 1 } else { GROUP_MEMBERS };
        let member = |server: ServerIndex| match self.server(server) {
            Some(info) if lasts => GroupMember::lasting(server, info.life),
            info => GroupMember { server, session: info.map_or(SessionId(0), |info| info.session) },
        };
        let mut members = vec![member(self.keeper)];
        // Who is a member stays one; then come servers on other nodes than those that there are.
        let stay = living.iter().map(|server| member(*server)).filter(|member| self.group.members.contains(member));
        for next in stay {
            if members.len() < wanted && !members.contains(&next) {
                members.push(next);
            }
        }
        let host = |server: ServerIndex| self.server(server).map_or("", |info| info.host.as_str());
        for with_node in [false, true] {
            for next in living.iter().map(|server| member(*server)) {
                let has_node = members.iter().any(|member| host(member.server) == host(next.server));
                if members.len() < wanted && !members.contains(&next) && (with_node || !has_node) {
                    members.push(next);
                }
            }
        }
        members.sort_by_key(|member| member.server);
        if members != self.group.members {
            self.group = KeeperGroup { formed: self.epoch, members };
        }
    }

    /// Whether a member is its server in the life that the server has by this map.
    pub fn is_living(&self, member: &GroupMember) -> bool {
        self.server(member.server).is_some_and(|info| {
            let is_it = info.session == member.session || *member == GroupMember::lasting(member.server, info.life);
            is_it && !info.ended && !info.left
        })
    }

    /// How many shards the volume has.
    #[inline]
    pub fn shards(&self) -> u32 {
        self.slots.shards()
    }

    /// The server that serves a shard. A shard beyond the last gives `None`.
    #[inline]
    pub fn server_of(&self, shard: ShardId) -> Option<ServerIndex> {
        let primary = self.slots.keeps(shard)?.primary;
        (usize::from(primary.0) < self.servers.len()).then_some(primary)
    }

    /// The server that serves the home of an inode.
    #[inline]
    pub fn home_of(&self, ino: Ino) -> Option<ServerIndex> {
        self.server_of(ino.home(self.shards()))
    }

    /// Since when what sessions have in the slot of an inode's home goes on: locks, and opens. It goes with a life of the server that has the slot,
    /// and stays with a slot that moves. Grows only; 0 if there is no such server.
    pub fn home_since(&self, ino: Ino) -> MapEpoch {
        self.shard_since(ino.home(self.shards()))
    }

    /// The same of a shard.
    pub fn shard_since(&self, shard: ShardId) -> MapEpoch {
        self.slot_since(self.slots.slot_of(shard))
    }

    fn slot_since(&self, slot: SlotIndex) -> MapEpoch {
        let began = |server: ServerIndex| self.server(server).map_or(MapEpoch(0), |info| info.began);
        let since = self.slots.since(slot);
        since.or_else(|| self.slots.get(slot).map(|slot| began(slot.primary))).unwrap_or(MapEpoch(0))
    }

    /// Another server serves a slot from now on.
    pub fn hand_over(&mut self, slot: SlotIndex, to: ServerIndex) {
        let since = self.slot_since(slot);
        let began = self.server(to).map(|info| info.began);
        self.slots.hand_over(slot, to);
        self.slots.note_since(slot, (began != Some(since)).then_some(since));
    }

    /// The bytes as which members of the keeper group write a map down. Earlier builds read them, unless a slot has moved to or from a server that
    /// has come back alone.
    pub fn stored(&self) -> Vec<u8> {
        let mut bytes = self.to_bytes();
        if self.slots.follows_servers() {
            bytes.truncate(bytes.len() - NONE.len());
        }
        bytes
    }

    /// Reads them.
    ///
    /// # Errors
    /// They are those of no map.
    pub fn from_stored(bytes: &[u8]) -> Result<ShardMap, Malformed> {
        // With a table more than it has, none of both can be read.
        ShardMap::from_bytes(&[bytes, &NONE].concat()).or_else(|_| ShardMap::from_bytes(bytes))
    }

    /// Whether a server has left the volume.
    pub fn has_left(&self, index: ServerIndex) -> bool {
        self.server(index).is_some_and(|info| info.left)
    }

    /// Whether a server is known to serve no requests: its process has ended, or it has left.
    pub fn is_gone(&self, index: ServerIndex) -> bool {
        self.server(index).is_some_and(|info| info.ended || info.left)
    }

    /// A server by its index.
    pub fn server(&self, index: ServerIndex) -> Option<&ServerInfo> {
        self.servers.get(usize::from(index.0))
    }

    /// The servers that have not left.
    pub fn members(&self) -> impl Iterator<Item = ServerIndex> + '_ {
        self.indexes().filter(|server| !self.has_left(*server))
    }

    /// The servers that have joined since the volume was started and do not have their share of the slots yet.
    pub fn joining(&self) -> impl Iterator<Item = ServerIndex> + '_ {
        self.indexes().filter(|index| self.server(*index).is_some_and(|info| info.joining && !info.ended && !info.left))
    }

    /// Whether slots can move, as far as the map tells, of a volume that is in directories or not (`lasts`): what a server that has ended had is known by servers, and not by slots.
    ///
    /// # Errors
    /// The reason.
    pub fn check_slots_move(&self, lasts: bool) -> Result<(), String> {
        let has_lost = |info: &&ServerInfo| info.ended || info.incarnation > Incarnation(0);
        let mut ends = self.indexes().zip(&self.servers);
        match ends.find(|(_, info)| has_lost(info)) {
            None => Ok(()),
            Some((server, info)) if lasts && info.ended => Err(format!(
                "server {server} on {} has ended, and no slot moves without it: bring it back with 'aze restart --server {server}'",
                info.host
            )),
            Some((server, info)) => Err(format!(
                "server {server} on {} has ended since the volume was started: what is lost is known by servers, and no slot moves",
                info.host
            )),
        }
    }

    /// Whether so many more servers can join.
    ///
    /// # Errors
    /// The reason.
    pub fn check_room_for(&self, more: usize) -> Result<(), String> {
        let (members, slots, numbers) = (self.members().count(), self.slots.len(), self.servers.len() + more);
        if members + more > slots as usize {
            return Err(format!(
                "{more} more servers are too many: the volume has {members}, and {slots} of the slots of which each server needs one; \
                 their number was decided when it was made: {SLOTS_PER_SERVER} for each server, and one in all by an earlier build for a volume of one server"
            ));
        }
        if numbers > usize::from(SERVERS_MAX) {
            return Err(format!(
                "{more} more servers are too many: a volume gives out {SERVERS_MAX} numbers, those of servers that have left \
                 included, and {} are given out",
                self.servers.len()
            ));
        }
        Ok(())
    }

    /// All server numbers, also of servers that have left.
    pub fn indexes(&self) -> impl Iterator<Item = ServerIndex> + use<> {
        (0..self.servers.len() as u16).map(ServerIndex)
    }

    /// The shard of chunk `index` of a file.
    #[inline]
    pub fn chunk_shard(&self, attr: &Attr, index: u64) -> ShardId {
        attr.layout.place(index).shard(self.shards())
    }

    /// The servers that may have data of a file which are elsewhere than beside its inode, each once.
    pub fn data_servers(&self, attr: &Attr) -> Vec<ServerIndex> {
        let chunks = attr.spread.chunks().min(attr.layout.step());
        if chunks >= u64::from(self.shards()) {
            return self.members().collect();
        }
        let places: BTreeSet<ServerIndex> =
            (0..chunks).filter_map(|chunk| self.server_of(self.chunk_shard(attr, chunk))).collect();
        places.into_iter().collect()
    }
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
    use crate::ids::SlotIndex;

    #[test]
    fn chunks_wrap_around_the_shards() {
        let layout = |shard: u32| Layout::new(Prefix::first_of(ShardId(shard), 4096), 4096);
        assert_eq!(layout(4095).place(1).shard(4096), ShardId(0));
        assert_eq!(layout(3).place(u64::MAX >> 20).shard(4096).0, (3 + ((u64::MAX >> 20) % 4096) as u32) % 4096);
    }

    /// Each shard has been cut in two, and in two again: chunks stay where they were, in one of the parts.
    #[test]
    fn a_layout_keeps_the_shards_it_was_made_with() {
        for first in [0, 0x3f_ffff, 0x15_5555, 0x2a_aaaa] {
            let layout = Layout::new(Prefix(first), 8);
            for chunk in 0..20 {
                let place = layout.place(chunk);
                assert_eq!(place.shard(8).0, (Prefix(first).shard(8).0 + chunk as u32) % 8);
                assert_eq!((place.shard(16).0 / 2, place.shard(32).0 / 4), (place.shard(8).0, place.shard(8).0));
            }
            assert_eq!(layout.place(0), Prefix(first), "beside the inode for ever");
        }
    }

    #[test]
    fn a_shard_knows_its_next_chunk() {
        for (first, shards) in [(0, 8), (0x3f_ffff, 8), (0x15_5555, 16), (0x2a_aaaa, 64), (0x2b_0001, 1 << 22)] {
            let layout = Layout::new(Prefix(first), 8);
            for from in [0, 1, 7, 8, 1 << 40] {
                let mut found = 0;
                for shard in
                    (0..shards).map(ShardId).filter(|shard| shards <= 64 || layout.place(shard.0.into()).0 == shard.0)
                {
                    let ahead = (0..8).find(|ahead| layout.place(from + ahead).shard(shards) == shard);
                    assert_eq!(layout.ahead(from, shard, shards), ahead, "{first:#x} {from} {shard} of {shards}");
                    found += u32::from(ahead.is_some());
                }
                assert!(found == 8 || shards > 64, "{found} shards have chunks");
            }
        }
    }

    #[test]
    fn a_layout_that_cannot_be_is_refused() {
        let right = Layout { first: Prefix((1 << 22) - 1), shard_bits: 22 };
        assert_eq!(Layout::from_bytes(&right.to_bytes()), Ok(right));
        for wrong in [Layout { first: Prefix(1 << 22), shard_bits: 1 }, Layout { first: Prefix(0), shard_bits: 23 }] {
            assert!(Layout::from_bytes(&wrong.to_bytes()).is_err(), "{wrong:?}");
        }
    }

    fn map_of(servers: u16) -> ShardMap {
        let server = ServerInfo {
            addresses: Vec::new(),
            host: String::new(),
            incarnation: Incarnation(0),
            since: MapEpoch(1),
            pid: 1,
            capacity_bytes: 0,
            ended: false,
            left: false,
            joining: false,
            life: 0,
            began: MapEpoch(0),
            session: SessionId(0),
        };
        ShardMap {
            epoch: MapEpoch(1),
            keeper: ServerIndex(0),
            group: KeeperGroup::default(),
            chunk_bits: 20,
            owner_uid: 0,
            owner_gid: 0,
            volume: String::new(),
            servers: vec![server; usize::from(servers)],
            slots: SlotTable::modular(4096, servers).unwrap(),
        }
    }

    /// Locks and opens of a slot go with a life of its server, and stay when it moves.
    #[test]
    fn what_sessions_have_goes_on_where_a_slot_goes() {
        let mut map = map_of(2);
        let (slot, shard) = (SlotIndex(0), ShardId(0));
        let since = |map: &ShardMap| map.shard_since(shard).0;
        map.hand_over(slot, ServerIndex(1));
        assert_eq!((since(&map), map.slots.follows_servers()), (0, true));
        map.servers[1].began = MapEpoch(5);
        map.slots.forget_since(ServerIndex(1));
        assert_eq!((since(&map), map.slots.follows_servers()), (5, true));
        map.hand_over(slot, ServerIndex(0));
        assert_eq!((since(&map), map.slots.follows_servers()), (5, false), "it was lost, wherever it is");
        assert_eq!(ShardMap::from_bytes(&map.to_bytes()).as_ref(), Ok(&map));
        assert_eq!(ShardMap::from_stored(&map.stored()).as_ref(), Ok(&map));
        map.hand_over(slot, ServerIndex(1));
        assert_eq!((since(&map), map.slots.follows_servers()), (5, true), "as all of that server's");
        assert_eq!(ShardMap::from_stored(&map.stored()).as_ref(), Ok(&map));
        map.hand_over(slot, ServerIndex(0));
        map.servers[0].began = MapEpoch(9);
        map.slots.forget_since(ServerIndex(0));
        assert_eq!((since(&map), map.slots.follows_servers()), (9, true));
        // As earlier builds have written it.
        let stored = map.stored();
        assert_eq!([&stored[..], &[0; 4]].concat(), map.to_bytes());
        assert_eq!(ShardMap::from_stored(&stored), Ok(map));
    }

    #[test]
    fn members_of_a_group_that_lasts_have_slots() {
        let mut map = map_of(2);
        map.servers.resize(4, map.servers[0].clone());
        let members = |map: &mut ShardMap, lasts: bool| {
            map.form_group(lasts);
            map.group.members.iter().map(|member| member.server.0).collect::<Vec<_>>()
        };
        assert_eq!(members(&mut map, false), [0, 1, 2]);
        assert_eq!(members(&mut map, true), [0], "two have slots, and one decides alone");
        map.slots.hand_over(SlotIndex(0), ServerIndex(3));
        assert_eq!(members(&mut map, true), [0, 1, 3]);
    }

    #[test]
    fn only_servers_of_the_chunks_may_have_data() {
        let map = map_of(8);
        let of = |first: u32, chunks: u64| {
            let layout = Layout::new(Prefix::first_of(ShardId(first), 4096), 4096);
            let attr = Attr { layout, spread: Spread::reaching(chunks), ..file() };
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
