//! Servers join a volume in use.
//!
//! A server that joins asks the keeper, which puts it at the end of the map, without slots. Then the keeper moves slots, one for each
//! request of the command that wants it, until all servers have as many. If that command ends in between, the
//! volume works as a whole: a server that has joined and has few slots or none is a server like any other.

use crate::membership::members::JOIN_PAUSE;
use crate::membership::peers::without_map;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_proto::place::ServerInfo;
use aze_proto::{Code, Failure, Identity, Incarnation, MapEpoch, Refusal, Reply, Request, ServerIndex, ShardMap};
use aze_rpc::Target;
use std::sync::Arc;
use std::time::Duration;

/// How long a server that joins waits for the keeper. Its starter usually gives up before.
const ENTER_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a server that joins, or has just joined, may take to answer the keeper.
const REACH_TIME_MAX: Duration = Duration::from_secs(10);

/// Whether a server's status is that of this process, and not of another one that listens there now.
fn is_that_of(reply: Reply, info: &ServerInfo) -> Result<(), Failure> {
    match reply {
        Reply::Status { status } if status.pid == info.pid && status.host == info.host => Ok(()),
        Reply::Status { status } => {
            let detail = format!("process {} of {} listens there, and not {}", status.pid, status.host, info.pid);
            Err(Failure::new(Code::Unreachable, detail))
        }
        _ => Err(Failure::new(Code::Malformed, "Status was answered with something else")),
    }
}

/// Puts a further server at the end of a map; `false` if it is there.
fn add_entrant(map: &mut ShardMap, slot: ServerIndex, info: &ServerInfo) -> Result<bool, Failure> {
    if let Some(known) = map.server(slot) {
        if known.session == info.session && !known.left {
            return Ok(false);
        }
        let detail = format!(
            "the volume has a server {slot} already: did another 'aze grow' start one at the same time? run this one again"
        );
        return Err(Failure::new(Code::Invalid, detail));
    }
    if usize::from(slot.0) != map.servers.len() {
        let detail = format!("server {slot} cannot join: the next one of the volume is number {}", map.servers.len());
        return Err(Failure::new(Code::Invalid, detail));
    }
    map.check_room_for(1).map_err(|why| Failure::new(Code::Limit, why))?;
    // As of the servers that were there at the start: nothing was lost since, and knowledge of a slot holds where the
    // slot goes.
    let (since, began) = (MapEpoch::first_of(0), MapEpoch::first_of(map.epoch.starts()));
    map.servers.push(ServerInfo {
        incarnation: Incarnation(0),
        life: 0,
        since,
        began,
        joining: true,
        ended: false,
        left: false,
        ..info.clone()
    });
    Ok(true)
}

impl Server {
    /// Joins a volume in use: gives the map with this server in it.
    pub(super) async fn enter_volume(self: &Arc<Self>) -> Result<Arc<ShardMap>, Failure> {
        let enter = Request::Enter { slot: self.slot(), info: self.info() };
        let (mut to, identity) = (self.keeper_as_ordered(), Identity::default());
        let give_up_ns = self.io.mono_ns() + ENTER_TIME_MAX.as_nanos() as u64;
        let answer = loop {
            let asked = self.peers.ask(without_map(&to, &identity, &enter, ENTER_TIME_MAX)).await;
            let failure = match asked {
                Ok(answer) => break answer,
                Err(failure) => failure.during("joining the volume"),
            };
            if !matches!(failure.refusal, Some(Refusal::MapStale { .. })) || self.io.mono_ns() >= give_up_ns {
                return Err(failure);
            }
            // It does not keep the map any more, and knows who does.
            self.io.sleep(JOIN_PAUSE).await;
            if let Ok(Reply::Map { map }) = self
                .peers
                .ask(without_map(&to, &identity, &Request::GetMap, REACH_TIME_MAX))
                .await
                .map(|answer| answer.reply)
            {
                to = Target::of(&map, map.keeper).unwrap_or(to);
            }
        };
        self.namespace.adopt(answer.header.namespace_epoch);
        self.part_from_starter(&to);
        match answer.reply {
            Reply::Entered { map, fenced } => {
                for session in fenced.into_iter().filter(|_| !self.config.switches.is(Sabotage::ForgetFences)) {
                    self.sessions.fence(session);
                    self.end_session(session);
                }
                Ok(map)
            }
            _ => Err(Failure::new(Code::Malformed, "Enter was answered with something else")),
        }
    }

    /// At the keeper: a server joins. A repeated request finds it in the map.
    pub(crate) fn enter(self: &Arc<Self>, slot: ServerIndex, info: &ServerInfo) -> Attempt<Output> {
        let (server, info) = (self.clone(), info.clone());
        then(async move {
            server.reach_entrant(slot, &info).await?;
            server.hear_all().await?;
            // The namespace epoch of the answer is then not older than any that other servers know, and the next one is told to it.
            let raising = server.keeper.raising().await;
            server.put_entrant(slot, &info).await?;
            // A server that ends a session for all others later asks them by a map with this one in it.
            let fenced = server.sessions.fenced();
            drop(raising);
            Ok(Reply::Entered { map: server.map(), fenced })
        })
    }

    /// Makes sure that this server reaches one that is about to join, and sees the end of its process if that is on this machine. One
    /// that has ended since it asked does not join.
    async fn reach_entrant(self: &Arc<Self>, slot: ServerIndex, info: &ServerInfo) -> Result<(), Failure> {
        let Some(map) = self.map_with(slot, info)? else { return Ok(()) };
        // By the words that the map will have: for other ones the connection would be given up.
        let to = Target::of(&map, slot).ok_or(Code::Internal)?;
        let identity = Identity::default();
        let ask = without_map(&to, &identity, &Request::Status, REACH_TIME_MAX);
        let reached = self.peers.ask(ask).await.and_then(|answer| is_that_of(answer.reply, info));
        reached.map_err(|failure| failure.during(format!("{} does not reach the server that joins", self.who())))
    }

    /// Puts a server into the map that joins, unless it is there.
    async fn put_entrant(self: &Arc<Self>, slot: ServerIndex, info: &ServerInfo) -> Result<(), Failure> {
        self.change_map(Some(slot), |map| add_entrant(map, slot, info)).await.map(drop)
    }

    /// The map with a further server; `None` if it is in the map.
    fn map_with(&self, slot: ServerIndex, info: &ServerInfo) -> Result<Option<ShardMap>, Failure> {
        self.check_slots_move()?;
        let mut map = (*self.map()).clone();
        map.epoch = MapEpoch(map.epoch.0 + 1);
        Ok(add_entrant(&mut map, slot, info)?.then_some(map))
    }

    /// Has one slot moved to a server that has fewer than others; gives how many are to move until all have as many, but for one.
    ///
    /// # Errors
    /// [`Code::Unsupported`] on a volume that moves no slots; [`Code::NoSpace`] if a server has no room for a slot; [`Code::Busy`] if
    /// a slot could not be moved now.
    pub async fn balance(self: &Arc<Self>) -> Result<u32, Failure> {
        self.check_slots_move()?;
        self.drop_silent_entrants().await?;
        let map = self.map();
        let mut servers: Vec<ServerIndex> = map.members().filter(|server| self.may_take(&map, *server)).collect();
        let mut refused = None;
        while let Some((slot, to)) = map.slots.next_to_balance(&servers) {
            match self.move_slot(slot, to).await {
                Ok(()) => {
                    self.note_joined(&servers).await?;
                    return Ok(self.map().slots.moves_to_balance(&servers));
                }
                // Another one may have more room.
                Err(failure) if failure.code == Code::NoSpace => {
                    servers.retain(|server| *server != to);
                    refused = Some(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        match refused {
            Some(failure) => Err(failure),
            None => self.note_joined(&servers).await.map(|()| 0),
        }
    }

    /// Servers that have joined, have nothing yet and do not answer have left: nothing is lost with them.
    async fn drop_silent_entrants(self: &Arc<Self>) -> Result<(), Failure> {
        let map = self.map();
        let entrants: Vec<ServerIndex> =
            map.joining().filter(|server| map.slots.served_by(*server).next().is_none()).collect();
        let answers = self.ask_each_within(&entrants, &Request::Status, REACH_TIME_MAX).await;
        let is_silent = |server: ServerIndex, answer: Result<Reply, Failure>| {
            let known = map.server(server).ok_or(Failure::from(Code::Internal));
            answer.and_then(|reply| is_that_of(reply, known?)).is_err_and(|failure| failure.is_silence())
        };
        let silent = answers.into_iter().filter_map(|(server, answer)| is_silent(server, answer).then_some(server));
        let silent: Vec<ServerIndex> = silent.collect();
        if silent.is_empty() { Ok(()) } else { self.note_left(&silent).await }
    }

    /// The same as a request.
    pub(crate) fn balance_asked(self: &Arc<Self>) -> Attempt<Output> {
        let server = self.clone();
        then(async move { server.balance().await.map(|slots| Reply::Balancing { slots }) })
    }

    /// Notes in the map that servers have their share, once all have.
    async fn note_joined(self: &Arc<Self>, servers: &[ServerIndex]) -> Result<(), Failure> {
        let is_due = |map: &ShardMap| map.slots.next_to_balance(servers).is_none() && map.joining().next().is_some();
        if !is_due(&self.map()) {
            return Ok(());
        }
        let noted = self.change_map(None, |map| {
            let is_due = is_due(map);
            if is_due {
                map.servers.iter_mut().for_each(|info| info.joining = false);
            }
            Ok(is_due)
        });
        noted.await.map(drop)
    }
}
