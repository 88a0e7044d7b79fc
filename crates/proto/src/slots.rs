//! Slots: which servers keep which shards. Arithmetic says in which slot a shard is, a table which servers keep the slot.
//!
//! Source: configurations as in PacificA (Lin et al., MSR-TR-2008-25): a number that grows with each change of a slot's
//! servers, a primary that serves, backups that follow it. Consistent hashing: Karger et al., STOC 1997.

use crate::ids::{Configuration, Life, MapEpoch, ServerIndex, ShardId, SlotIndex};
use crate::limits::{SHARDS_MAX, SHARDS_PER_SERVER_MIN, SLOTS_PER_SERVER};
use crate::wire::{Input, Malformed, Wire};
use crate::{wire_enum, wire_struct};
use std::cmp::Reverse;
use std::collections::BTreeMap;

wire_struct! {
    /// The servers of one slot.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Slot {
        /// How many times it has been made empty again.
        pub life: Life,
        /// Counts the changes of its servers.
        pub configuration: Configuration,
        /// The server that serves it.
        pub primary: ServerIndex,
        /// The servers that have a copy of what the primary acknowledges. There are none yet.
        pub backups: Vec<ServerIndex>,
    }
}

wire_struct! {
    /// Since when what sessions have in a slot goes on, which has moved to a server whose life began at another epoch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SlotSince {
        /// The slot.
        pub slot: SlotIndex,
        /// The epoch.
        pub since: MapEpoch,
    }
}

wire_enum! {
    /// Which server gets which slot.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Placement {
        /// Slot k is on server k mod N at first, and each server has as many later, but for one.
        #[default]
        1 = Modular,
        /// Consistent hashing: slots and servers have places on a ring, and a slot is on the server whose place is next. When
        /// servers join or leave, only slots move that they get or have.
        2 = Ring
    }
}

impl Placement {
    /// The word by which people name it.
    pub fn word(self) -> &'static str {
        match self {
            Placement::Modular => "modular",
            Placement::Ring => "ring",
        }
    }

    /// The placement of this word.
    pub fn of_word(word: &str) -> Option<Placement> {
        [Placement::Modular, Placement::Ring].into_iter().find(|placement| placement.word() == word)
    }
}

/// Slot → servers, and the number of shards, by which a shard's slot is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotTable {
    shards: u32,
    placement: Placement,
    slots: Vec<Slot>,
    /// In the order of the slots. Of all others locks and opens go on since the life of their server began.
    sinces: Vec<SlotSince>,
}

/// Places of each server on the ring.
const RING_PLACES: u64 = 64;

/// Where the `index`-th thing of a kind is on the ring: numbers that look random, and are the same everywhere (the finalizer of
/// SplitMix64, Steele et al., OOPSLA 2014).
fn on_ring(kind: u64, index: u64) -> u64 {
    let mut place = (kind << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    place = (place ^ (place >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    place = (place ^ (place >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    place ^ (place >> 31)
}

/// Which of these servers each slot is on by consistent hashing. With fewer slots than a ring needs to reach every server, those
/// servers that it leaves out get one each, from the server that has the most.
fn ring(slots: u32, servers: &[ServerIndex]) -> Vec<ServerIndex> {
    let places = |server: &ServerIndex| {
        let server = *server;
        (0..RING_PLACES).map(move |place| (on_ring(u64::from(server.0) + 1, place), server))
    };
    let mut around: Vec<(u64, ServerIndex)> = servers.iter().flat_map(places).collect();
    around.sort_unstable();
    let next = |slot: u32| {
        let place = on_ring(0, u64::from(slot));
        let at = around.partition_point(|(other, _)| *other < place);
        around.get(at).or(around.first()).map_or(ServerIndex(0), |(_, server)| *server)
    };
    let mut assigned: Vec<ServerIndex> = (0..slots).map(next).collect();
    let mut counts: BTreeMap<ServerIndex, usize> = servers.iter().map(|server| (*server, 0)).collect();
    assigned.iter().for_each(|server| *counts.entry(*server).or_default() += 1);
    for server in servers {
        if counts[server] > 0 {
            continue;
        }
        let most = servers.iter().max_by_key(|other| (counts[*other], Reverse(**other)));
        if let Some(most) = most.filter(|other| counts[*other] > 1)
            && let Some(slot) = assigned.iter().rposition(|other| other == most)
        {
            assigned[slot] = *server;
            *counts.entry(*most).or_default() -= 1;
            counts.insert(*server, 1);
        }
    }
    assigned
}

/// In how many slots the shards of a new volume of so many servers are: several for each server, so that servers that come later get their
/// parts from all.
pub fn slots_of(servers: u16) -> u32 {
    u32::from(servers) * SLOTS_PER_SERVER
}

/// The slot of a shard among `slots`: neighbouring shards, which have neighbouring chunks of a file, are in different
/// slots.
#[inline]
pub fn slot_of(shard: ShardId, slots: u32) -> SlotIndex {
    SlotIndex(shard.0 % slots)
}

/// The shards of a slot among `slots`, in order.
pub fn shards_of_slot(slot: SlotIndex, slots: u32, shards: u32) -> impl Iterator<Item = ShardId> {
    (slot.0..shards).step_by(slots as usize).map(ShardId)
}

impl SlotTable {
    /// The first assignment: slot k on server k mod N.
    ///
    /// # Errors
    /// As [`SlotTable::placed`].
    pub fn modular(shards: u32, servers: u16) -> Result<SlotTable, String> {
        SlotTable::placed(Placement::Modular, shards, servers)
    }

    /// Whether a volume can have so many shards and servers.
    ///
    /// # Errors
    /// When `shards` is no power of two up to [`SHARDS_MAX`], or there are fewer than
    /// [`SHARDS_PER_SERVER_MIN`] for each server.
    pub fn check(shards: u32, servers: u16) -> Result<(), String> {
        if !shards.is_power_of_two() || shards > SHARDS_MAX {
            return Err(format!("the number of shards must be a power of two up to {SHARDS_MAX}, not {shards}"));
        }
        if servers == 0 || u32::from(servers) * SHARDS_PER_SERVER_MIN > shards {
            return Err(format!(
                "{servers} servers on {shards} shards: at least 1 server and {SHARDS_PER_SERVER_MIN} shards for each server are needed"
            ));
        }
        Ok(())
    }

    /// The first assignment by either way.
    ///
    /// # Errors
    /// As [`SlotTable::check`].
    pub fn placed(placement: Placement, shards: u32, servers: u16) -> Result<SlotTable, String> {
        SlotTable::check(shards, servers)?;
        let count = slots_of(servers);
        let primaries = match placement {
            Placement::Modular => (0..count).map(|slot| ServerIndex((slot % u32::from(servers)) as u16)).collect(),
            Placement::Ring => ring(count, &(0..servers).map(ServerIndex).collect::<Vec<_>>()),
        };
        let slot = |primary: ServerIndex| Slot {
            life: Life(0),
            configuration: Configuration(1),
            primary,
            backups: Vec::new(),
        };
        Ok(SlotTable { shards, placement, slots: primaries.into_iter().map(slot).collect(), sinces: Vec::new() })
    }

    /// The first assignment of a volume in directories of so many slots: one of a single server may have been made with one slot, by an earlier
    /// build.
    ///
    /// # Errors
    /// As [`SlotTable::placed`].
    pub fn begun(shards: u32, servers: u16, slots: u32) -> Result<SlotTable, String> {
        let mut table = SlotTable::modular(shards, servers)?;
        if (servers, slots) == (1, 1) {
            table.slots.truncate(1);
        }
        Ok(table)
    }

    /// By which way slots are given to servers.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// As a volume in directories has written it down: of each slot its server, and the configuration in which that has it.
    ///
    /// # Errors
    /// When `shards` is no power of two up to [`SHARDS_MAX`], or there are no slots, or more than shards.
    pub fn recorded(shards: u32, slots: &[(ServerIndex, Configuration)]) -> Result<SlotTable, String> {
        if !shards.is_power_of_two() || shards > SHARDS_MAX || slots.is_empty() || slots.len() > shards as usize {
            return Err(format!("{} slots of {shards} shards: no volume has these", slots.len()));
        }
        let slot = |(primary, configuration): &(ServerIndex, Configuration)| Slot {
            life: Life(0),
            configuration: *configuration,
            primary: *primary,
            backups: Vec::new(),
        };
        let (placement, slots) = (Placement::Modular, slots.iter().map(slot).collect());
        Ok(SlotTable { shards, placement, slots, sinces: Vec::new() })
    }

    /// How many shards there are.
    #[inline]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// How many slots there are.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether there are none (never).
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The slot of a shard.
    #[inline]
    pub fn slot_of(&self, shard: ShardId) -> SlotIndex {
        slot_of(shard, self.len())
    }

    /// The shards that a server has, in order.
    pub fn shards_of(&self, server: ServerIndex) -> Vec<ShardId> {
        let slots = self.served_by(server);
        let mut shards: Vec<ShardId> =
            slots.flat_map(|(slot, _)| shards_of_slot(slot, self.len(), self.shards)).collect();
        shards.sort_unstable();
        shards
    }

    /// A slot by its number.
    pub fn get(&self, slot: SlotIndex) -> Option<&Slot> {
        self.slots.get(slot.0 as usize)
    }

    /// The servers of a shard; `None` if the volume has no such shard.
    #[inline]
    pub fn keeps(&self, shard: ShardId) -> Option<&Slot> {
        self.get(self.slot_of(shard)).filter(|_| shard.0 < self.shards)
    }

    /// All slots, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (SlotIndex, &Slot)> {
        (0..).map(SlotIndex).zip(&self.slots)
    }

    /// The server with the lowest number of those that have slots: it counts the starts of a volume in directories.
    pub fn first(&self) -> ServerIndex {
        self.slots.iter().map(|slot| slot.primary).min().expect("a volume has slots")
    }

    /// Which server that is once a slot is another server's.
    pub fn first_after(&self, moved: SlotIndex, to: ServerIndex) -> ServerIndex {
        let others = self.iter().filter(|(slot, _)| *slot != moved).map(|(_, slot)| slot.primary);
        others.min().map_or(to, |first| first.min(to))
    }

    /// The slots that a server serves.
    pub fn served_by(&self, server: ServerIndex) -> impl Iterator<Item = (SlotIndex, &Slot)> {
        self.iter().filter(move |(_, slot)| slot.primary == server)
    }

    /// How many servers the volume was started with.
    pub fn begun_with(&self) -> u16 {
        if self.len() == 1 { 1 } else { (self.len() / SLOTS_PER_SERVER) as u16 }
    }

    /// Slots that are not where the ring has them, of those on these servers.
    fn off_ring(&self, servers: &[ServerIndex]) -> impl Iterator<Item = (SlotIndex, ServerIndex)> {
        let on = self.iter().zip(ring(self.len(), servers));
        on.filter(|((_, slot), to)| slot.primary != *to && servers.contains(&slot.primary))
            .map(|((slot, _), to)| (slot, to))
    }

    /// Which of the servers that stay gets a slot of one that leaves, if the placement says it.
    pub fn heir(&self, slot: SlotIndex, stay: &[ServerIndex]) -> Option<ServerIndex> {
        match self.placement {
            Placement::Modular => None,
            Placement::Ring if stay.is_empty() => None,
            Placement::Ring => ring(self.len(), stay).get(slot.0 as usize).copied(),
        }
    }

    /// How many slots have to move until each of these servers has those that the placement gives it: as many, but for one.
    pub fn moves_to_balance(&self, servers: &[ServerIndex]) -> u32 {
        if self.placement == Placement::Ring {
            return self.off_ring(servers).count() as u32;
        }
        let mut counts: Vec<u32> = servers.iter().map(|server| self.served_by(*server).count() as u32).collect();
        counts.sort_by_key(|count| Reverse(*count));
        let (all, count) = (counts.iter().sum::<u32>(), counts.len().max(1) as u32);
        let shares = (0..count).map(|at| all / count + u32::from(at < all % count));
        counts.iter().zip(shares).map(|(count, share)| count.saturating_sub(share)).sum()
    }

    /// Which slot goes where next, so that each of these servers gets those that the placement gives it. On a ring, the first that is
    /// elsewhere. Else so that each gets as many, but for one: from the one with the most to the one with the fewest. Of its slots that one which is the farthest from those that the other has: neighbouring chunks of a file
    /// are in neighbouring slots, and are to be on different servers.
    pub fn next_to_balance(&self, servers: &[ServerIndex]) -> Option<(SlotIndex, ServerIndex)> {
        if self.placement == Placement::Ring {
            return self.off_ring(servers).next();
        }
        let count = |server: &ServerIndex| self.served_by(*server).count();
        let from = *servers.iter().min_by_key(|server| (Reverse(count(server)), **server))?;
        let to = *servers.iter().min_by_key(|server| (count(server), **server))?;
        if count(&from) < count(&to) + 2 {
            return None;
        }
        let near = |slot: SlotIndex| {
            let steps = |other: SlotIndex| slot.0.abs_diff(other.0).min(self.len() - slot.0.abs_diff(other.0));
            self.served_by(to).map(|(other, _)| steps(other)).min().unwrap_or(self.len())
        };
        let (slot, _) = self.served_by(from).min_by_key(|(slot, _)| (Reverse(near(*slot)), *slot))?;
        Some((slot, to))
    }

    /// Another server serves a slot from now on.
    pub fn hand_over(&mut self, slot: SlotIndex, to: ServerIndex) {
        if let Some(slot) = self.slots.get_mut(slot.0 as usize) {
            slot.primary = to;
            slot.configuration = Configuration(slot.configuration.0 + 1);
        }
    }

    /// Since when locks and opens of a slot go on, if that is not the epoch at which the life of its server began.
    pub(crate) fn since(&self, slot: SlotIndex) -> Option<MapEpoch> {
        let at = self.sinces.binary_search_by_key(&slot, |known| known.slot).ok()?;
        Some(self.sinces[at].since)
    }

    /// Notes since when that is; `None`: since the life of its server began.
    pub(crate) fn note_since(&mut self, slot: SlotIndex, since: Option<MapEpoch>) {
        self.sinces.retain(|known| known.slot != slot);
        if let Some(since) = since {
            let at = self.sinces.partition_point(|known| known.slot < slot);
            self.sinces.insert(at, SlotSince { slot, since });
        }
    }

    /// A life of a server begins: in all of its slots locks and opens go on since then.
    pub fn forget_since(&mut self, server: ServerIndex) {
        let (slots, sinces) = (&self.slots, &mut self.sinces);
        sinces.retain(|known| slots.get(known.slot.0 as usize).is_some_and(|slot| slot.primary != server));
    }

    /// Whether locks and opens of each slot go on since the life of its server began.
    pub(crate) fn follows_servers(&self) -> bool {
        self.sinces.is_empty()
    }

    /// The contents of all slots that a server serves are lost: each begins another life, empty.
    ///
    /// # Errors
    /// When a slot has had its last life; then none is changed.
    pub fn begin_lives(&mut self, server: ServerIndex) -> Result<(), String> {
        if let Some((slot, _)) = self.served_by(server).find(|(_, slot)| slot.life.next().is_none()) {
            return Err(format!(
                "slot {slot} has been made empty {} times, and inode numbers of another life would not differ from \
                 earlier ones",
                Life::MAX
            ));
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.primary == server) {
            slot.life = Life(slot.life.0 + 1);
            slot.configuration = Configuration(slot.configuration.0 + 1);
        }
        self.forget_since(server);
        Ok(())
    }
}

impl Wire for SlotTable {
    fn put(&self, out: &mut Vec<u8>) {
        self.shards.put(out);
        self.placement.put(out);
        self.slots.put(out);
        self.sinces.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let (shards, placement, slots) = (u32::take(input)?, Placement::take(input)?, Vec::<Slot>::take(input)?);
        if !shards.is_power_of_two() || shards > SHARDS_MAX {
            return Err(input.malformed("a number of shards that is no power of two"));
        }
        if slots.is_empty() || slots.len() > shards as usize {
            return Err(input.malformed("a number of slots beyond that of the shards"));
        }
        if slots.iter().any(|slot| slot.life > Life::MAX || slot.backups.contains(&slot.primary)) {
            return Err(input.malformed("a slot that cannot be"));
        }
        let sinces = Vec::<SlotSince>::take(input)?;
        let is_one = |known: &SlotSince| (known.slot.0 as usize) < slots.len();
        if !sinces.iter().all(is_one) || !sinces.is_sorted_by(|one, next| one.slot < next.slot) {
            return Err(input.malformed("epochs of slots that cannot be"));
        }
        Ok(SlotTable { shards, placement, slots, sinces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modular_spreads_evenly_and_in_order() {
        let table = SlotTable::modular(4096, 3).unwrap();
        assert_eq!((table.shards(), table.len()), (4096, 24));
        let of = |shard: u32| table.keeps(ShardId(shard)).map(|slot| slot.primary.0);
        assert_eq!((of(0), of(4), of(4095), of(4096)), (Some(0), Some(1), Some(0), None));
        assert_eq!(table.slot_of(ShardId(25)), SlotIndex(1));
        assert!((0..4096).all(|shard| of(shard) == Some((shard % 3) as u16)), "as many slots as a multiple of servers");
        for server in 0..3 {
            assert_eq!(table.served_by(ServerIndex(server)).count(), 8);
            let shards = table.shards_of(ServerIndex(server));
            let all = (0..4096).map(ShardId);
            let kept = all.filter(|shard| table.keeps(*shard).is_some_and(|slot| slot.primary.0 == server));
            assert_eq!(shards, kept.collect::<Vec<_>>());
            assert!(shards.len() > 1300);
        }
        assert_eq!(SlotTable::modular(64, 1).unwrap().len(), 8);
        assert_eq!(SlotTable::begun(64, 1, 1).unwrap().len(), 1);
        assert!(SlotTable::modular(4095, 3).is_err());
        assert!(SlotTable::modular(4096, 65).is_err());
        assert!(SlotTable::modular(4096, 0).is_err());
        assert!(slots_of(1024) <= SHARDS_MAX);
    }

    #[test]
    fn slots_begin_64_lives_and_no_more() {
        let mut table = SlotTable::modular(256, 2).unwrap();
        for life in 1..64 {
            table.begin_lives(ServerIndex(1)).unwrap();
            let (mine, other) = (table.get(SlotIndex(1)).unwrap(), table.get(SlotIndex(0)).unwrap());
            assert_eq!((mine.life, mine.configuration), (Life(life), Configuration(u32::from(life) + 1)));
            assert_eq!((other.life, other.configuration), (Life(0), Configuration(1)));
        }
        let before = table.clone();
        let why = table.begin_lives(ServerIndex(1)).unwrap_err();
        assert!(why.contains("slot 1 has been made empty 63 times"), "{why}");
        assert_eq!(table, before);
    }

    #[test]
    fn a_slot_that_is_handed_over_begins_a_configuration_and_no_life() {
        let mut table = SlotTable::modular(256, 2).unwrap();
        table.hand_over(SlotIndex(3), ServerIndex(0));
        let moved = table.get(SlotIndex(3)).unwrap();
        assert_eq!((moved.primary, moved.configuration, moved.life), (ServerIndex(0), Configuration(2), Life(0)));
        assert_eq!([0, 1].map(|server| table.served_by(ServerIndex(server)).count()), [9, 7]);
        table.hand_over(SlotIndex(16), ServerIndex(0));
        assert_eq!(table.len(), 16, "there is no such slot");
    }

    #[test]
    fn slots_are_balanced_within_one_and_neighbours_are_apart() {
        for (before, after) in [(2, 4), (2, 3), (4, 5), (3, 24), (8, 9)] {
            let mut table = SlotTable::modular(4096, before).unwrap();
            let servers: Vec<ServerIndex> = (0..after).map(ServerIndex).collect();
            balance(&mut table, &servers);
            let counts: Vec<usize> = servers.iter().map(|server| table.served_by(*server).count()).collect();
            let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
            assert!(least > 0 && most - least <= 1, "{before} to {after}: {counts:?}");
        }
        let mut table = SlotTable::modular(4096, 2).unwrap();
        let servers: Vec<ServerIndex> = (0..4).map(ServerIndex).collect();
        balance(&mut table, &servers);
        let of = |server: u16| table.served_by(ServerIndex(server)).map(|(slot, _)| slot.0).collect::<Vec<_>>();
        assert_eq!([of(0), of(2)], [[2, 6, 10, 14], [0, 4, 8, 12]], "a file goes over all servers in turn");
        assert_eq!(SlotTable::modular(64, 1).unwrap().begun_with(), 1);
        assert_eq!(SlotTable::begun(64, 1, 1).unwrap().begun_with(), 1);
        assert_eq!(table.begun_with(), 2);
    }

    /// Moves slots until none is left to move; gives how many did.
    fn balance(table: &mut SlotTable, servers: &[ServerIndex]) -> u32 {
        let (all, mut moved) = (table.moves_to_balance(servers), 0);
        while let Some((slot, to)) = table.next_to_balance(servers) {
            assert_ne!(table.get(slot).unwrap().primary, to);
            table.hand_over(slot, to);
            moved += 1;
            assert_eq!(table.moves_to_balance(servers), all - moved, "none moves in vain");
        }
        assert_eq!(moved, all);
        moved
    }

    #[test]
    fn the_first_server_is_another_one_when_its_last_slot_has_moved() {
        let mut table = SlotTable::modular(4096, 3).expect("a table");
        let of_first: Vec<SlotIndex> = table.served_by(ServerIndex(0)).map(|(slot, _)| slot).collect();
        for (left, slot) in (0..of_first.len()).rev().zip(&of_first) {
            assert_eq!(table.first(), ServerIndex(0));
            let after = table.first_after(*slot, ServerIndex(2));
            assert_eq!(after, ServerIndex(u16::from(left == 0)), "{left} slots are left to it");
            table.hand_over(*slot, ServerIndex(2));
            assert_eq!(table.first(), after);
        }
        assert_eq!(table.first_after(of_first[0], ServerIndex(0)), ServerIndex(0));
    }

    #[test]
    fn on_a_ring_only_slots_of_servers_that_come_or_go_move() {
        let primaries = |table: &SlotTable| table.iter().map(|(_, slot)| slot.primary).collect::<Vec<_>>();
        for (before, after) in [(2, 3), (4, 8), (8, 9), (24, 32), (1, 1)] {
            let mut table = SlotTable::placed(Placement::Ring, 4096, before).unwrap();
            let all: Vec<ServerIndex> = (0..after).map(ServerIndex).collect();
            assert!(all[..usize::from(before)].iter().all(|server| table.served_by(*server).next().is_some()));
            assert_eq!(table.moves_to_balance(&all[..usize::from(before)]), 0, "it begins in balance");
            let first = primaries(&table);
            balance(&mut table, &all);
            let grown = primaries(&table);
            for (slot, (was, is)) in first.iter().zip(&grown).enumerate() {
                // A server that the ring leaves out is given a slot all the same, from the server with the most.
                let is_given = table.served_by(*is).count() == 1;
                assert!(was == is || is.0 >= before || is_given, "{before} to {after}, slot {slot}: {was} to {is}");
            }
            // Those that came leave again.
            let stay = &all[..usize::from(before)];
            for slot in (0..table.len()).map(SlotIndex) {
                if table.get(slot).unwrap().primary.0 >= before {
                    let heir = table.heir(slot, stay).unwrap();
                    table.hand_over(slot, heir);
                }
            }
            balance(&mut table, stay);
            assert_eq!(primaries(&table), first, "{before} to {after} and back");
        }
        let modular = SlotTable::modular(4096, 3).unwrap();
        assert_eq!((modular.heir(SlotIndex(0), &[ServerIndex(1)]), modular.placement()), (None, Placement::Modular));
        // What the paper on CHFS found of it: the busiest server has more than its part.
        let table = SlotTable::placed(Placement::Ring, 4096, 32).unwrap();
        let most = (0..32).map(|server| table.served_by(ServerIndex(server)).count()).max().unwrap();
        assert!((12..=24).contains(&most), "of 8 in the mean the busiest has {most}");
        assert_eq!(Placement::of_word("ring"), Some(Placement::Ring));
        assert_eq!((Placement::of_word("modular"), Placement::of_word("other")), (Some(Placement::Modular), None));
    }

    #[test]
    fn a_table_that_cannot_be_is_refused() {
        let right = SlotTable::modular(256, 2).unwrap();
        assert_eq!(SlotTable::from_bytes(&right.to_bytes()), Ok(right.clone()));
        let with = |change: fn(&mut SlotTable)| {
            let mut table = right.clone();
            change(&mut table);
            SlotTable::from_bytes(&table.to_bytes())
        };
        let wrong = [
            with(|table| table.shards = 255),
            with(|table| table.shards = 8),
            with(|table| table.slots.clear()),
            with(|table| table.slots[3].life = Life(64)),
            with(|table| table.slots[3].backups = vec![ServerIndex(1)]),
        ];
        wrong.iter().for_each(|result| assert!(result.is_err(), "{result:?}"));
    }
}
