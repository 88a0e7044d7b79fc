//! Servers leave the volume.
//!
//! The keeper moves their slots to servers that stay, one for each request of the command that wants it, so that the
//! end of that command ends nothing but the moves to come. A server without slots has left: the map says so, no server
//! or client asks it any more, and its process ends when it owes others no word.

use crate::membership::takeover::is_stale;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_proto::{Code, Failure, Reply, Request, ServerIndex, ShardMap, SlotIndex};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// After this time a server that has left closes the connections of the clients that it still has: they ask nothing, and do not
/// know the newer map.
const NOTICE_TIME_MAX: Duration = Duration::from_millis(200);

/// How long it goes on then, for these clients to come again and ask for the map. One that is stopped for longer asks the other
/// servers that it knows.
const LINGER_TIME_MAX: Duration = Duration::from_secs(2);

/// How long it has to tell other servers the words it owes them. One that does not answer for so long has ended, most
/// likely.
const OWED_TIME_MAX: Duration = Duration::from_secs(10);

/// How long after a server has left its process may go on.
pub(super) const GOING_TIME_MAX: Duration =
    NOTICE_TIME_MAX.saturating_add(LINGER_TIME_MAX).saturating_add(OWED_TIME_MAX);

/// How long a server that would keep the map has to answer.
const HEIR_TIME_MAX: Duration = Duration::from_secs(2);

/// Pause before a server that leaves by itself asks the keeper again, which could move no slot or did not answer.
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// Pause before it looks again whether clients have gone, or everything is told.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Something that this server has to tell another one, until this is dropped.
pub(crate) struct Owed(Arc<AtomicUsize>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a server has room for and holds.
#[derive(Clone, Copy, Default)]
struct Space {
    bytes: u64,
    bytes_max: u64,
    inodes: u64,
    inodes_max: u64,
}

impl Space {
    /// Room that is left, with a tenth to spare.
    fn free(&self) -> (u64, u64) {
        let spare = |max: u64, used: u64| max.saturating_sub(used) / 10 * 9;
        (spare(self.bytes_max, self.bytes), spare(self.inodes_max, self.inodes))
    }
}

impl Server {
    /// Has one slot of servers that leave moved to one that stays; those that have none left have left. Gives how many slots are left,
    /// and which servers have not left.
    ///
    /// # Errors
    /// Before anything moves: [`Code::Unsupported`] on a volume that moves no slots; [`Code::Invalid`] for the keeper, and for a
    /// server that there is not; [`Code::NoSpace`] if those that stay have no room. [`Code::Busy`] if a slot could not be moved now.
    pub async fn leave(self: &Arc<Self>, servers: &[ServerIndex]) -> Result<(u32, Vec<ServerIndex>), Failure> {
        self.check_leavers(servers)?;
        if self.leaving(servers).0 > 0 {
            self.check_slots_move()?;
        }
        // Where none of those that stay has a slot, one gets its first one before.
        let waits = self.persistence.is_some() && self.heirs(servers).is_empty() && self.leaving(servers).0 > 0;
        if servers.contains(&self.slot()) && !waits {
            // The next keeper is asked again.
            self.hand_over(servers).await?;
            return Err(self.no_keeper());
        }
        self.keeper.note_leaving(servers, self.io.mono_ns());
        self.note_left(servers).await?;
        let map = self.map();
        let mut theirs = map.slots.iter().filter(|(_, slot)| servers.contains(&slot.primary));
        let next = match self.persistence {
            // Those of the first server are the last: who counts the starts then does not leave as well.
            Some(_) => theirs.max_by_key(|(slot, kept)| (kept.primary, Reverse(*slot))),
            None => theirs.next(),
        };
        let Some((slot, _)) = next else { return Ok(self.leaving(servers)) };
        let spaces = self.spaces(&map).await?;
        self.check_stayers(&map, servers, &spaces)?;
        let mut refused = None;
        for to in self.takers(&map, slot, &spaces) {
            match self.move_slot(slot, to).await {
                Ok(()) => {
                    self.note_left(servers).await?;
                    return Ok(self.leaving(servers));
                }
                // Another one may have more room.
                Err(failure) if failure.code == Code::NoSpace => refused = Some(failure),
                Err(failure) => return Err(failure),
            }
        }
        Err(refused.unwrap_or_else(|| Failure::new(Code::Invalid, "no server would stay that could take the slots")))
    }

    /// The same as a request.
    pub(crate) fn leave_asked(self: &Arc<Self>, servers: &[ServerIndex]) -> Attempt<Output> {
        let (server, servers) = (self.clone(), servers.to_vec());
        then(async move {
            let (slots, servers) = server.leave(&servers).await?;
            Ok(Reply::Leaving { slots, servers })
        })
    }

    fn leaving(&self, servers: &[ServerIndex]) -> (u32, Vec<ServerIndex>) {
        let map = self.map();
        let slots = map.slots.iter().filter(|(_, slot)| servers.contains(&slot.primary)).count() as u32;
        (slots, servers.iter().copied().filter(|server| !map.has_left(*server)).collect())
    }

    fn check_leavers(&self, servers: &[ServerIndex]) -> Result<(), Failure> {
        let map = self.map();
        let refused = |why: String| Err(Failure::new(Code::Invalid, why));
        for server in servers {
            if map.server(*server).is_none() {
                return refused(format!("the volume has no server {server}"));
            }
            if *server == map.keeper && map.members().count() == 1 {
                return refused(format!("server {server} is the only one of the volume: 'aze down' ends it"));
            }
        }
        Ok(())
    }

    /// Has this server leave, as a node that must be given back wants; its process ends when it has left. Tells `told` in the
    /// end how that went: if it could not leave within `time`, the server goes on.
    pub fn leave_by_itself(self: &Arc<Self>, time: Duration, told: impl FnOnce(Result<(), Failure>) + Send + 'static) {
        let server = self.clone();
        self.io.spawn(async move { told(server.leave_within(time).await) });
    }

    /// Has this server leave. Slots that have moved when it gives up stay where they are.
    ///
    /// # Errors
    /// Those of [`Server::leave`] but for [`Code::Busy`], silence and refusals by a newer map; the last failure when `time` is over.
    async fn leave_within(self: &Arc<Self>, time: Duration) -> Result<(), Failure> {
        let until_ns = self.io.mono_ns() + time.as_nanos() as u64;
        loop {
            let asked = self.ask_keeper(Request::Leave { servers: vec![self.slot()] }).await;
            if self.has_left() {
                return Ok(());
            }
            let slots = self.leaving(&[self.slot()]).0;
            let is_other = |server: &ServerIndex| *server != self.slot() && !self.has_seen_end(*server);
            // While a member of the group is silent, another one may take the keeper's place again and again.
            let is_passing =
                |failure: &Failure| failure.code == Code::Busy || failure.is_silence() || is_stale(failure);
            let goes_on = asked.as_ref().err().is_none_or(is_passing) && self.living().iter().any(is_other);
            if !goes_on || self.is_stopping() || self.io.mono_ns() >= until_ns {
                let failure = asked.err().unwrap_or_else(|| Code::TimedOut.into());
                return Err(failure.during(format!("{slots} of its slots have not moved")));
            }
            if asked.is_err() || slots == 0 {
                // No slot could be moved at this moment, or the map in which it has left is on its way.
                self.io.sleep(ASK_PAUSE).await;
            }
        }
    }

    /// Has another server keep the map.
    ///
    /// # Errors
    /// Those of every decision.
    pub async fn hand_over_to(self: &Arc<Self>, heir: ServerIndex) -> Result<(), Failure> {
        let decided = self.change_map(None, |map| {
            if map.is_gone(heir) || map.server(heir).is_none() {
                return Err(Failure::new(Code::Busy, format!("server {heir} has ended meanwhile")));
            }
            if self.persistence.is_some() && map.slots.served_by(heir).next().is_none() {
                return Err(Failure::new(Code::Busy, format!("server {heir} has no slot, and does not keep the map")));
            }
            map.keeper = heir;
            Ok(true)
        });
        decided.await.map(drop)
    }

    /// The servers that stay and may keep the map: on a volume in directories those that have slots.
    fn heirs(&self, leavers: &[ServerIndex]) -> Vec<ServerIndex> {
        let map = self.map();
        let stays = |server: &ServerIndex| {
            self.may_take(&map, *server) && !leavers.contains(server) && !self.has_seen_end(*server)
        };
        let may_keep =
            |server: &ServerIndex| self.persistence.is_none() || map.slots.served_by(*server).next().is_some();
        map.members().filter(stays).filter(may_keep).collect()
    }

    /// Has a server keep the map that stays.
    async fn hand_over(self: &Arc<Self>, leavers: &[ServerIndex]) -> Result<(), Failure> {
        let Some(_turn) = self.keeper.try_moving() else {
            return Err(Failure::new(Code::Busy, "another slot is being moved: ask again when it is done"));
        };
        let (map, mut heirs) = (self.map(), self.heirs(leavers));
        heirs.sort_by_key(|server| map.group.member(*server).is_none());
        if self.persistence.is_some() && leavers.contains(&map.slots.first()) {
            // It is to count the starts.
            let next = heirs.iter().min().copied();
            heirs.sort_by_key(|server| Some(*server) != next);
            if self.config.switches.is(Sabotage::LeaveUncounted) {
                heirs.reverse();
            }
        }
        self.hand_over_to_one_of(&heirs).await
    }

    /// Has the first of these servers keep the map that answers: one that does not would keep nothing.
    pub(super) async fn hand_over_to_one_of(self: &Arc<Self>, heirs: &[ServerIndex]) -> Result<(), Failure> {
        let mut silent = None;
        for (heir, answer) in self.ask_each_within(heirs, &Request::StatFs, HEIR_TIME_MAX).await {
            match answer {
                Ok(_) => return self.hand_over_to(heir).await,
                Err(failure) => silent = Some(failure),
            }
        }
        let nobody = || Failure::new(Code::Invalid, "no server would stay that could keep the map and take the slots");
        Err(silent.map_or_else(nobody, |failure| failure.during("asking who could keep the map")))
    }

    /// What each server that has not left holds and has room for.
    async fn spaces(self: &Arc<Self>, map: &ShardMap) -> Result<BTreeMap<ServerIndex, Space>, Failure> {
        let members: Vec<ServerIndex> = map.members().collect();
        let mut spaces = BTreeMap::new();
        for (server, answer) in self.ask_each(&members, &Request::StatFs).await {
            match answer.map_err(|failure| failure.during("asking every server for its room"))? {
                Reply::Space { capacity_bytes, used_bytes, inodes, inodes_max } => {
                    let space = Space { bytes: used_bytes, bytes_max: capacity_bytes, inodes, inodes_max };
                    spaces.insert(server, space);
                }
                _ => return Err(Failure::new(Code::Malformed, "StatFs was answered with something else")),
            }
        }
        Ok(spaces)
    }

    /// Refuses if those that stay have too little room for what the others have.
    fn check_stayers(
        &self,
        map: &ShardMap,
        servers: &[ServerIndex],
        spaces: &BTreeMap<ServerIndex, Space>,
    ) -> Result<(), Failure> {
        let (mut bytes, mut inodes, mut free_bytes, mut free_inodes) = (0u64, 0u64, 0u64, 0u64);
        for (server, space) in spaces {
            if servers.contains(server) {
                (bytes, inodes) = (bytes.saturating_add(space.bytes), inodes.saturating_add(space.inodes));
            } else if self.may_take(map, *server) {
                let free = space.free();
                (free_bytes, free_inodes) = (free_bytes.saturating_add(free.0), free_inodes.saturating_add(free.1));
            }
        }
        if bytes <= free_bytes && inodes <= free_inodes {
            return Ok(());
        }
        let detail = format!(
            "the servers that leave have {bytes} bytes and {inodes} files, and those that stay have room for {free_bytes} \
             bytes and {free_inodes} files, with a tenth to spare"
        );
        Err(Failure::new(Code::NoSpace, detail))
    }

    /// Whether a server takes slots: it is there and stays. One that has counted the starts of a volume in directories, and has given its
    /// last slot away, is about to leave.
    pub(super) fn may_take(&self, map: &ShardMap, server: ServerIndex) -> bool {
        let has_counted = self.persistence.is_some() && server < map.slots.first();
        !map.is_gone(server) && !has_counted && !self.keeper.is_leaving(server, self.io.mono_ns())
    }

    /// The servers that may take a slot: first the one that its placement says, then those with the fewest slots, then those that hold
    /// the least.
    fn takers(&self, map: &ShardMap, slot: SlotIndex, spaces: &BTreeMap<ServerIndex, Space>) -> Vec<ServerIndex> {
        let mut takers: Vec<ServerIndex> = map.members().filter(|server| self.may_take(map, *server)).collect();
        let heir = map.slots.heir(slot, &takers);
        takers.sort_by_key(|server| {
            let held = spaces.get(server).map_or(0, |space| space.bytes);
            (heir != Some(*server), map.slots.served_by(*server).count(), held)
        });
        takers
    }

    /// Notes in the map that those servers have left that have no slot any more, and tells all.
    pub(super) async fn note_left(self: &Arc<Self>, servers: &[ServerIndex]) -> Result<(), Failure> {
        let Some(_turn) = self.keeper.try_moving() else {
            return Err(Failure::new(Code::Busy, "another slot is being moved: ask again when it is done"));
        };
        let may_stay = usize::from(self.config.switches.is(Sabotage::LeaveSlotBehind));
        let without = |map: &ShardMap| -> Vec<ServerIndex> {
            let is_done =
                |server: &ServerIndex| !map.is_gone(*server) && map.slots.served_by(*server).count() <= may_stay;
            servers.iter().copied().filter(is_done).collect()
        };
        if without(&self.map()).is_empty() {
            return Ok(());
        }
        let noted = self.change_map(None, |map| {
            let without = without(map);
            for server in &without {
                if let Some(info) = map.servers.get_mut(usize::from(server.0)) {
                    info.left = true;
                }
            }
            Ok(!without.is_empty())
        });
        noted.await.map(drop)
    }

    /// Notes that this server owes another one a word, until the returned guard is dropped.
    pub(crate) fn owes(&self) -> Owed {
        self.owed.fetch_add(1, Ordering::SeqCst);
        Owed(self.owed.clone())
    }

    /// Whether this server has left the volume.
    pub fn has_left(&self) -> bool {
        self.map().has_left(self.slot())
    }

    /// A new map is in use: servers that have left hold nothing of any directory, and are asked nothing. If this one has, it ends.
    pub(super) fn leave_by(self: &Arc<Self>, map: &ShardMap, left: &[ServerIndex]) {
        for server in left.iter().filter(|server| **server != self.slot()) {
            self.peers.leave(*server, map.epoch);
            for cell in self.shards.iter() {
                for holders in cell.names.lock().holders.values_mut() {
                    holders.servers.remove(server);
                }
            }
        }
        if left.contains(&self.slot()) {
            self.published.close();
            let server = self.clone();
            self.io.spawn(async move { server.go().await });
        }
    }

    /// Whether clients are connected to this server.
    fn has_clients(&self) -> bool {
        let map = self.map();
        let is_server = |session| map.servers.iter().any(|info| info.session == session);
        self.sessions.all_connected().into_iter().any(|session| !is_server(session))
    }

    /// Ends this server when clients have gone to others and everything is told, or in the end.
    async fn go(self: Arc<Self>) {
        let until = |time: Duration, is_over: fn(&Server) -> bool| {
            let server = self.clone();
            async move {
                let until_ns = server.io.mono_ns() + time.as_nanos() as u64;
                while !is_over(&server) && server.io.mono_ns() < until_ns && !server.is_stopping() {
                    server.io.sleep(LOOK_PAUSE).await;
                }
            }
        };
        until(NOTICE_TIME_MAX, |server| !server.has_clients()).await;
        if self.has_clients() {
            self.activity.connections().iter().for_each(|who| who.close());
            until(LINGER_TIME_MAX, |_| false).await;
        }
        let owes_nothing = |server: &Server| server.owed.load(Ordering::SeqCst) == 0 && server.moving.under_way() == 0;
        until(OWED_TIME_MAX, owes_nothing).await;
        self.stop();
    }
}
