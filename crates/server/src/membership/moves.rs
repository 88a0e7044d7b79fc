//! The keeper moves a slot from one server to another.
//!
//! The giver sends data in advance, then holds what concerns the slot and sends the rest; the taker says that it has all of
//! it; the keeper has the group write the taker into the map. That is the decision: every process with the new map knows it. A move that fails
//! before is given up, which both ends are told until they know.

use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_proto::{Code, Failure, MapEpoch, Reply, Request, ServerIndex, SessionId, ShardId, ShardMap, SlotIndex};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// How often the giver is asked to give a slot, before the move is given up.
const GIVE_TRIES: u32 = 20;

/// Pause before it is asked again.
const GIVE_PAUSE: Duration = Duration::from_millis(100);

/// How long the giver has for one answer: to finish earlier requests, and to send the rest of the slot.
const GIVER_TIME_MAX: Duration = Duration::from_secs(10);

/// The same on a volume in directories, where the taker brings the slot to its disk.
const GIVER_DISK_TIME_MAX: Duration = Duration::from_secs(100);

/// How long both ends have to confirm the new map before the move counts as done: they learn it in any case.
const CONFIRM_TIME_MAX: Duration = Duration::from_secs(5);

/// Bits of a move's number that count moves under one map.
const MOVE_BITS: u32 = 24;

/// The map under which a move was begun. Each map names one keeper: so no other server has given the same number to a move.
fn begun_under(moving: u64) -> MapEpoch {
    MapEpoch((moving >> MOVE_BITS) as u32)
}

fn has_ended() -> Failure {
    Failure::new(Code::Busy, "one of the two servers has ended meanwhile")
}

/// The server that has a slot, and the processes of the giver and the taker.
type Ends = (ServerIndex, (SessionId, SessionId));

/// A move.
#[derive(Clone, Copy)]
struct Move {
    moving: u64,
    slot: SlotIndex,
    from: ServerIndex,
    to: ServerIndex,
    /// The processes of both.
    sessions: (SessionId, SessionId),
}

/// Whether both ends are the processes that they were when the move began, and the taker is not known to have ended.
fn is_as_begun(map: &ShardMap, mov: Move) -> bool {
    let is_same = |server, session| map.server(server).is_some_and(|info| info.session == session);
    let slot_is_theirs = map.slots.get(mov.slot).is_some_and(|slot| slot.primary == mov.from);
    slot_is_theirs && is_same(mov.from, mov.sessions.0) && is_same(mov.to, mov.sessions.1) && !map.is_gone(mov.to)
}

impl Server {
    /// Has a slot served by another server. Answered when it is; gives the slot back to the one that had it if that
    /// cannot be done.
    ///
    /// # Errors
    /// [`Code::Unsupported`] on a volume that moves no slots; [`Code::Invalid`] for a slot or server that there is not;
    /// [`Code::Busy`] if another slot is being moved, or this one could not be; [`Code::NoSpace`].
    pub async fn move_slot(self: &Arc<Self>, slot: SlotIndex, to: ServerIndex) -> Result<(), Failure> {
        let Some(mut last) = self.keeper.try_moving() else {
            return Err(Failure::new(Code::Busy, "another slot is being moved: ask again when it is done"));
        };
        if self.keeper.is_open(None) {
            self.settle_move().await?;
        }
        let Some((from, sessions)) = self.check_move(slot, to)? else { return Ok(()) };
        if let Some(next) = self.next_keeper(&self.map(), slot, to) {
            if self.keeper.is_leaving(next, self.io.mono_ns()) {
                let detail =
                    format!("server {next} would count the starts of the volume next, and leaves: its slots go before");
                return Err(Failure::new(Code::Busy, detail));
            }
            self.hand_over_to_one_of(&[next]).await?;
            return Err(self.no_keeper());
        }
        let map = self.map();
        if map.keeper != self.slot() {
            return Err(self.no_keeper());
        }
        // Numbers grow also from one life of the keeper to the next, whose map is newer.
        *last = (*last).max(u64::from(map.epoch.0) << MOVE_BITS) + 1;
        let mov = Move { moving: *last, slot, from, to, sessions };
        self.keeper.begins_move(mov.moving);
        let brought = self.bring_over(mov).await;
        let is_brought = brought.is_ok();
        let moved = match brought {
            Ok(()) => self.commit_move(mov).await,
            Err(failure) => Err(failure),
        };
        if let Some(failure) = moved.as_ref().err().filter(|failure| is_brought && failure.code == Code::UnknownOutcome)
        {
            // Giver and taker ask until it is known.
            self.keeper.leaves_open(mov.moving);
            return Err(failure.clone().during(format!("slot {slot} is on server {from} or on server {to}")));
        }
        self.keeper.ends_move();
        let telling = match &moved {
            Ok(()) => CONFIRM_TIME_MAX,
            Err(_) => Duration::ZERO,
        };
        self.tell_end(mov, telling).await;
        moved.map_err(|mut failure| {
            if failure.code == Code::Replayed {
                // The taker has given it up, for instance since it has asked how it ended.
                failure.code = Code::Busy;
            }
            failure.during(format!("slot {slot} stays on server {from}, and was not moved to server {to}"))
        })
    }

    /// The same as a request.
    pub(crate) fn move_asked(self: &Arc<Self>, slot: SlotIndex, to: ServerIndex) -> Attempt<Output> {
        let server = self.clone();
        then(async move { server.move_slot(slot, to).await.map(|()| Reply::Done) })
    }

    /// Who has the slot, and the processes of both ends; `None` if there is nothing to do.
    fn check_move(&self, slot: SlotIndex, to: ServerIndex) -> Result<Option<Ends>, Failure> {
        self.check_slots_move()?;
        let map = self.map();
        let refused = |why: String| Err(Failure::new(Code::Invalid, why));
        let Some(from) = map.slots.get(slot).map(|slot| slot.primary) else {
            return refused(format!("the volume has {} slots, and no slot {slot}", map.slots.len()));
        };
        if from == to {
            return Ok(None);
        }
        let session = |server| map.server(server).map(|info| info.session);
        let (Some(giver), Some(taker)) = (session(from), session(to)) else {
            return refused(format!("the volume has no server {to}"));
        };
        if !self.may_take(&map, to) {
            return refused(format!("server {to} leaves the volume"));
        }
        Ok(Some((from, (giver, taker))))
    }

    /// On a volume in directories the server that has to keep the map when a slot moves, if that is another one: the one that counts the starts
    /// afterwards, if that was not it before, or if this one would be left without a slot. Who keeps the map has each decision on its disk before
    /// anybody else: so the next start finds in its directory that it counts, and servers with slots, which are asked then, know all decisions.
    fn next_keeper(&self, map: &ShardMap, slot: SlotIndex, to: ServerIndex) -> Option<ServerIndex> {
        if self.persistence.is_none() || self.config.switches.is(Sabotage::LeaveUncounted) {
            return None;
        }
        let next = map.slots.first_after(slot, to);
        let keeps_some = map.slots.served_by(self.slot()).any(|(other, _)| other != slot);
        ((next != map.slots.first() || !keeps_some) && next != self.slot()).then_some(next)
    }

    /// Whether slots of this volume move.
    pub(super) fn check_slots_move(&self) -> Result<(), Failure> {
        let refused = |why: String| Err(Failure::new(Code::Unsupported, why));
        if self.config.backing.is_some() {
            return refused("a volume over a backing does not move slots between servers".into());
        }
        if self.persistence.as_ref().is_some_and(|persistence| persistence.dir.medium().is_some()) {
            return refused("a volume in files or devices does not move slots between servers".into());
        }
        self.map().check_slots_move(self.persistence.is_some()).or_else(refused)
    }

    /// Brings everything of a slot to the server that will have it.
    async fn bring_over(self: &Arc<Self>, mov: Move) -> Result<(), Failure> {
        let Move { moving, slot, from, to, .. } = mov;
        let copy = Request::CopySlot { moving, slot, to };
        while let Reply::CopiedIs { more: true } = self.ask_giver(from, copy.clone()).await? {}
        let mut tries = 1;
        loop {
            match self.ask_giver(from, Request::GiveSlot { moving, slot, to }).await {
                Err(failure) if failure.code == Code::Busy && tries < GIVE_TRIES && is_as_begun(&self.map(), mov) => {
                    tries += 1
                }
                given => return given.map(drop),
            }
            self.io.sleep(GIVE_PAUSE).await;
        }
    }

    async fn ask_giver(self: &Arc<Self>, from: ServerIndex, request: Request) -> Result<Reply, Failure> {
        if from == self.slot() {
            return self.ask(from, ShardId(0), request).await;
        }
        let patience = if self.persistence.is_some() { GIVER_DISK_TIME_MAX } else { GIVER_TIME_MAX };
        self.ask_other(from, ShardId(0), request, &[], patience).await
    }

    /// Has the group decide that the slot is the taker's, unless one of both ends is another process by then.
    async fn commit_move(self: &Arc<Self>, mov: Move) -> Result<(), Failure> {
        let decided = self.change_map(None, |map| {
            if !is_as_begun(map, mov) {
                return Err(has_ended());
            }
            // The map that is changed has the next epoch already.
            let newest = MapEpoch(map.epoch.0 - 1);
            if !self.keeper.has_decided_all(begun_under(mov.moving), newest)
                && !self.config.switches.is(Sabotage::DecideGivenUp)
            {
                return Err(Failure::new(
                    Code::Busy,
                    "another server has kept the map meanwhile, and has given the move up",
                ));
            }
            if let Some(next) = self.next_keeper(map, mov.slot, mov.to) {
                let detail =
                    format!("server {next} would count the starts of the volume next, and does not keep the map");
                return Err(Failure::new(Code::Busy, detail));
            }
            match self.config.switches.is(Sabotage::ForgetSince) {
                true => map.slots.hand_over(mov.slot, mov.to),
                false => map.hand_over(mov.slot, mov.to),
            }
            Ok(true)
        });
        decided.await.map(drop)
    }

    /// Finds out whether a move was decided that the group has left open.
    async fn settle_move(self: &Arc<Self>) -> Result<(), Failure> {
        // A decision after it, since only that shows whether the move took effect.
        self.change_map(None, |_| Ok(true)).await?;
        self.keeper.ends_move();
        Ok(())
    }

    /// Tells both ends how the move has ended; waits so long for them to confirm it.
    async fn tell_end(self: &Arc<Self>, mov: Move, wait: Duration) {
        let told = [mov.from, mov.to].map(|server| {
            let (told, is_first) = self.keeper.note_ended(server, mov.moving);
            if is_first {
                let (this, owed) = (self.clone(), self.owes());
                self.io.spawn(async move {
                    let _owed = owed;
                    this.tell_ends(server).await;
                });
            }
            told
        });
        if !wait.is_zero() {
            // Who is silent learns it later.
            let _ = self.io.timeout(wait, join_all(told)).await;
        }
    }

    /// Tells a server how moves have ended, until there are none: one after the other, so that no requests pile up for one that is silent.
    async fn tell_ends(self: &Arc<Self>, server: ServerIndex) {
        while let Some(moving) = self.keeper.next_ended(server) {
            let end = Request::MoveEnd { moving, map: self.map() };
            if self.ask(server, ShardId(0), end).await.is_ok() {
                self.keeper.told_ended(server);
            } else if self.map().is_gone(server) || self.is_stopping() {
                return self.keeper.forget_ended(server);
            } else {
                self.io.sleep(GIVE_PAUSE).await;
            }
        }
    }

    /// A giver or taker asks how a move has ended.
    pub(crate) fn move_outcome(self: &Arc<Self>, moving: u64) -> Attempt<Output> {
        let map = self.map();
        if begun_under(moving) > map.epoch {
            // Another server has become the keeper, and this one has not heard of it.
            return Err(Failure::new(Code::Busy, format!("{} does not know of move {moving} yet", self.who())).into());
        }
        if self.keeper.is_open(Some(moving)) {
            let server = self.clone();
            return then(async move {
                server.settle_move().await?;
                Ok(Reply::Map { map: server.map() })
            });
        }
        if self.keeper.is_moving(moving) {
            return Err(Failure::new(Code::Busy, "the move is not decided").into());
        }
        Ok(Reply::Map { map }.into())
    }

    /// A map is in use: the slot that is being given or taken is given or taken if it says so.
    pub(super) fn settle_by_map(self: &Arc<Self>) {
        let _ending = self.moving.ends();
        // Not one that the thread has put into use: it may have stood still since, and the slot have gone further.
        let map = self.map();
        self.give_by(&map);
        self.take_by(&map);
    }

    /// A move is over, and this map, or the one known here, says how it ended.
    pub(crate) fn move_ended(self: &Arc<Self>, moving: u64, map: Arc<ShardMap>) {
        self.install_map(map);
        // Another thread may have put the map into use, and not have come to this yet.
        self.settle_by_map();
        // What the map has not settled was given up.
        self.keep_slot(moving);
        self.drop_slot(moving);
    }
}
