//! Another member of the keeper group becomes the keeper.
//!
//! A process says that the keeper is gone: it has seen the end on the keeper's machine, or got no answer. A member then makes itself
//! the keeper by a decision of the group. What only the keeper before knew, it asks all servers for: the namespace epoch, and which
//! transactions have the token for moving directories. A server takes the new map into use before it answers, and from
//! then on lets no earlier keeper raise the epoch, and believes no token that one gives. So when every server has answered, nothing of an
//! earlier keeper takes effect any more, and only then the new one gives the token and raises the epoch itself.

use crate::membership::group::As;
use crate::membership::paths::TOLD_TO_ALL_EVERY;
use crate::membership::state::keeper::Living;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_proto::{
    Code, Failure, Incarnation, MapEpoch, NamespaceEpoch, Refusal, Reply, Request, ServerIndex, SessionId, ShardId,
    ShardMap, TxId,
};
use futures_util::future::{Either, join_all, select};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a question to the keeper may take before the group is told that it has not answered; and how long it may then take to
/// answer a member.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the group has for another keeper, before a request that needs one is refused. Shorter than a client waits, so that it hears why.
const TAKEOVER_TIME_MAX: Duration = Duration::from_secs(5);

/// How long the first of the members has, before the next one makes itself the keeper.
const TURN_TIME: Duration = Duration::from_millis(500);

/// Pause before the keeper is asked again, if no newer map comes.
const KEEPER_PAUSE: Duration = Duration::from_millis(100);

/// How long all servers have to say what only the keeper before knew, before a request that needs it is refused.
const HEAR_TIME_MAX: Duration = Duration::from_secs(2);

/// How long a keeper is looked for that can be told something.
const TELL_TIME_MAX: Duration = Duration::from_secs(60);

/// A server in one of its lives, as the map names it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerLife {
    pub(super) server: ServerIndex,
    pub(super) began: MapEpoch,
    pub(super) incarnation: Incarnation,
}

impl ServerLife {
    fn of(map: &ShardMap, server: ServerIndex) -> Option<ServerLife> {
        map.server(server).map(|info| ServerLife { server, began: info.began, incarnation: info.incarnation })
    }
}

impl Server {
    /// Asks whichever server keeps the map: the next one when that one is gone.
    pub(crate) async fn ask_keeper(self: &Arc<Self>, request: Request) -> Result<Reply, Failure> {
        let until_ns = self.io.mono_ns() + self.config.deadline.as_nanos() as u64;
        loop {
            let other_keeper = self.group.other_keeper();
            let map = self.map();
            let left = Duration::from_nanos(until_ns.saturating_sub(self.io.mono_ns()));
            let failure = if map.keeper == self.slot() {
                match Box::pin(self.run_local(&request, Work::local(self, ShardId(0)))).await {
                    Err(failure) if is_stale(&failure) || self.has_other_keeper(&map, &failure) => failure,
                    answer => return answer,
                }
            } else {
                let asked = pin!(self.ask_once(map.keeper, ShardId(0), &request, left));
                let is_gone = pin!(self.until_keeper_is_gone(&map));
                match select(select(asked, is_gone), other_keeper).await {
                    Either::Left((Either::Left((Err(failure), _)), _))
                        if is_stale(&failure) || self.has_other_keeper(&map, &failure) =>
                    {
                        drop(self.refresh_map_from(map.keeper).await);
                        failure
                    }
                    Either::Left((Either::Left((Err(failure), is_gone)), other_keeper)) if failure.is_silence() => {
                        if map.group.members.len() <= 1 || self.answers(map.keeper).await {
                            // There is no other one; or the keeper has said so itself, of a server that it has asked.
                            return Err(failure);
                        }
                        match self.io.timeout(TAKEOVER_TIME_MAX, select(is_gone, other_keeper)).await {
                            Some(Either::Left((failure, _))) => return Err(failure),
                            Some(Either::Right(_)) => continue,
                            // It answers again, and stays the keeper.
                            None => return Err(failure),
                        }
                    }
                    Either::Left((Either::Left((answer, _)), _)) => return answer,
                    Either::Left((Either::Right((failure, _)), _)) => return Err(failure),
                    Either::Right(_) => continue,
                }
            };
            if self.io.mono_ns() >= until_ns || self.is_stopping() {
                return Err(failure);
            }
            if self.map().epoch == map.epoch {
                self.io.timeout(KEEPER_PAUSE, self.group.other_keeper()).await;
            }
        }
    }

    /// Whether a refusal is due to a newer map, with another keeper, that came into use here between the choice of the keeper and the question.
    fn has_other_keeper(&self, chosen_by: &ShardMap, failure: &Failure) -> bool {
        failure.code == Code::Invalid && self.map().keeper != chosen_by.keeper
    }

    /// Whether the keeper answers; its map is in use here then.
    async fn answers(self: &Arc<Self>, keeper: ServerIndex) -> bool {
        match self.ask_once(keeper, ShardId(0), &Request::GetMap, SILENCE_TIME_MAX).await {
            Ok(Reply::Map { map }) => {
                self.install_map(map);
                true
            }
            _ => false,
        }
    }

    /// Tells the group, again and again, that the keeper of this map does not answer, as long as it does not. Resolves when no other one has
    /// taken its place in time, with the error for those who wait.
    async fn until_keeper_is_gone(self: &Arc<Self>, map: &ShardMap) -> Failure {
        let began_ns = self.io.mono_ns();
        loop {
            let is_known = map.is_gone(map.keeper) || self.has_seen_end(map.keeper);
            self.io.sleep(if is_known { KEEPER_PAUSE } else { SILENCE_TIME_MAX }).await;
            if map.group.members.len() <= 1 || self.answers(map.keeper).await {
                continue;
            }
            if let Some(keeper) = ServerLife::of(map, map.keeper) {
                self.tell_keeper_gone(keeper, false);
            }
            if self.io.mono_ns() >= began_ns + TAKEOVER_TIME_MAX.as_nanos() as u64 {
                let keeper = map.keeper;
                return self
                    .no_majority(Code::TimedOut)
                    .during(format!("server {keeper}, which keeps the map, does not answer"));
            }
            self.look_for_newer_map().await;
        }
    }

    /// Asks all servers for their maps: the keeper may have decided on another group, and have told some only.
    async fn look_for_newer_map(self: &Arc<Self>) {
        let others: Vec<ServerIndex> = self.living().into_iter().filter(|server| *server != self.slot()).collect();
        let answers = self.ask_each_within(&others, &Request::GetMap, SILENCE_TIME_MAX).await;
        for (_, answer) in answers {
            if let Ok(Reply::Map { map }) = answer {
                self.install_map(map);
            }
        }
    }

    /// As [`Self::ask_keeper`], until there is an answer or this server stops.
    pub(crate) async fn ask_keeper_in_the_end(self: &Arc<Self>, request: Request) {
        let _owed = self.owes();
        while self.ask_keeper(request.clone()).await.is_err() && !self.is_stopping() {
            self.io.sleep(KEEPER_PAUSE).await;
        }
    }

    /// Tells the keeper something in the background, for so long.
    pub(crate) fn tell_keeper(self: &Arc<Self>, request: Request) {
        let map = self.map();
        if map.group.members.len() <= 1 {
            // No other one takes its place: it is told when it comes back.
            return self.persist(map.keeper, ShardId(0), request);
        }
        let (server, owed) = (self.clone(), self.owes());
        self.io.spawn(async move {
            let _owed = owed;
            let until_ns = server.io.mono_ns() + TELL_TIME_MAX.as_nanos() as u64;
            loop {
                let is_told = server.ask_keeper(request.clone()).await.is_ok();
                if is_told || server.is_stopping() || server.io.mono_ns() >= until_ns {
                    return;
                }
                server.io.sleep(KEEPER_PAUSE).await;
            }
        });
    }

    /// Tells the members of the group that the keeper is gone: its process `has_ended`, or it does not answer.
    fn tell_keeper_gone(self: &Arc<Self>, keeper: ServerLife, has_ended: bool) {
        let ServerLife { server, began, incarnation } = keeper;
        let word = Request::KeeperGone { keeper: server, began, incarnation, has_ended };
        let map = self.map();
        for member in map.group.members.iter().map(|member| member.server).filter(|member| *member != server) {
            if member == self.slot() {
                self.keeper_gone(keeper, has_ended);
                continue;
            }
            let (this, word) = (self.clone(), word.clone());
            self.io.spawn(async move { drop(this.ask_once(member, ShardId(0), &word, SILENCE_TIME_MAX).await) });
        }
    }

    /// The system has told that the process of a server has ended.
    pub(super) fn end_seen(self: &Arc<Self>, server: ServerIndex, began: MapEpoch, incarnation: Incarnation) {
        self.seen_to_end.lock().insert((server, began, incarnation));
        let map = self.map();
        if map.keeper != server {
            return self.tell_keeper(Request::ServerEnded { server, began, incarnation });
        }
        if map.group.members.len() <= 1 {
            return;
        }
        let (this, keeper) = (self.clone(), ServerLife { server, began, incarnation });
        self.io.spawn(async move {
            let until_ns = this.io.mono_ns() + TELL_TIME_MAX.as_nanos() as u64;
            while this.map().keeper == server && this.io.mono_ns() < until_ns && !this.is_stopping() {
                let other_keeper = this.group.other_keeper();
                this.tell_keeper_gone(keeper, true);
                this.io.timeout(SILENCE_TIME_MAX, other_keeper).await;
            }
            // The next one may not have heard it.
            if this.map().keeper != server {
                this.tell_keeper(Request::ServerEnded { server, began, incarnation });
            }
        });
    }

    /// At a member: a process says that the keeper is gone.
    pub(crate) fn told_keeper_gone(
        self: &Arc<Self>,
        server: ServerIndex,
        began: MapEpoch,
        incarnation: Incarnation,
        has_ended: bool,
    ) -> Attempt<Output> {
        self.keeper_gone(ServerLife { server, began, incarnation }, has_ended);
        Ok(Reply::Done.into())
    }

    fn keeper_gone(self: &Arc<Self>, keeper: ServerLife, has_ended: bool) {
        let ServerLife { server, began, incarnation } = keeper;
        if has_ended {
            self.seen_to_end.lock().insert((server, began, incarnation));
        }
        let Some(looking) = self.group.looks() else { return };
        let this = self.clone();
        self.io.spawn(async move {
            if this.take_over_from(keeper).await.is_err() {
                // A request that needs a keeper has the members told again.
                this.look_for_newer_map().await;
            }
            drop(looking);
            let map = this.map();
            if this.has_seen_end(server) && !map.is_gone(server) && map.keeper != server {
                this.tell_keeper(Request::ServerEnded { server, began, incarnation });
            }
        });
    }

    /// Makes this server the keeper, if the one before is gone and no other member does so first.
    async fn take_over_from(self: &Arc<Self>, before: ServerLife) -> Result<(), Failure> {
        let is_kept_by = |server: &Server| ServerLife::of(&server.map(), server.map().keeper) == Some(before);
        if !is_kept_by(self) || self.group.member().is_none() || self.slot() == before.server {
            return Ok(());
        }
        if !self.has_seen_end(before.server) && self.answers(before.server).await {
            return Ok(());
        }
        let map = self.map();
        let may_come_first =
            |server: &ServerIndex| *server != before.server && !map.is_gone(*server) && *server < self.slot();
        let earlier = map.group.members.iter().map(|member| member.server).filter(may_come_first).count() as u32;
        if earlier > 0 {
            let until_ns = self.io.mono_ns() + (TURN_TIME * earlier).as_nanos() as u64;
            while is_kept_by(self) && self.io.mono_ns() < until_ns {
                let left = Duration::from_nanos(until_ns.saturating_sub(self.io.mono_ns()));
                self.io.timeout(left, self.group.other_keeper()).await;
            }
        }
        if self.is_stopping() {
            return Ok(());
        }
        let decided = self.change_map_as(As::Successor, None, |map| {
            if ServerLife::of(map, map.keeper) != Some(before) {
                return Ok(false);
            }
            map.keeper = self.slot();
            if self.has_seen_end(before.server) {
                end_in(map, before.server);
            }
            Ok(true)
        });
        decided.await.map(drop)
    }

    /// The map that has come into use makes this server the keeper, and another one was before.
    pub(super) fn begin_keeping(self: &Arc<Self>) {
        let server = self.clone();
        self.io.spawn(async move {
            // A request that needs it asks those again that have not answered.
            drop(server.hear_all().await);
        });
    }

    /// Resolves when this server knows what only the keeper before knew.
    ///
    /// # Errors
    /// A server that has not ended does not say it.
    pub(super) async fn hear_all(self: &Arc<Self>) -> Result<(), Failure> {
        let refused_before = self.keeper.refusals();
        let mut hearing = self.keeper.hearing().await;
        let Some(heard) = hearing.as_mut() else { return Ok(()) };
        // As with raises: those that waited meanwhile do not wait for the silent server in turn.
        if let Some(failure) = self.keeper.refused_since(refused_before) {
            return Err(failure);
        }
        let until_ns = self.io.mono_ns() + HEAR_TIME_MAX.as_nanos() as u64;
        loop {
            let map = self.map();
            if map.keeper != self.slot() {
                return Err(self.no_keeper());
            }
            let is_missing = |server: &ServerIndex| {
                let session = map.server(*server).map(|info| info.session);
                heard.by.get(server).copied() != session
            };
            let missing: Vec<ServerIndex> = self.living().into_iter().filter(is_missing).collect();
            if missing.is_empty() || self.config.switches.is(Sabotage::TakeOverUnheard) {
                break;
            }
            let asked = missing.iter().map(|server| async {
                let request = Request::Takeover { map: map.clone() };
                let answer = match *server == self.slot() {
                    true => Box::pin(self.run_local(&request, Work::local(self, ShardId(0)))).await,
                    false => self.ask_once(*server, ShardId(0), &request, SILENCE_TIME_MAX).await,
                };
                (*server, answer)
            });
            let mut silent = None;
            for (server, answer) in join_all(asked).await {
                let Some(session) = map.server(server).map(|info| info.session) else { continue };
                match answer {
                    Ok(Reply::TakeoverIs { epoch, tokens }) => {
                        heard.by.insert(server, session);
                        heard.epoch = heard.epoch.max(epoch);
                        let by = |tx: TxId| {
                            let ended = map.indexes().zip(&map.servers).find(|(_, info)| token_of(info.session) == tx);
                            let ended = ended.map(|(server, info)| Living { server, session: info.session });
                            match ended {
                                // It is coming back, and an earlier life of it may have the token.
                                Some(own) if own.server == server => Living { server, session: NO_SESSION },
                                ended => ended.unwrap_or(Living { server, session }),
                            }
                        };
                        heard.tokens.extend(tokens.into_iter().map(|tx| (tx, Some(by(tx)))));
                    }
                    Ok(_) => return Err(Failure::new(Code::Malformed, "Takeover was answered with something else")),
                    Err(failure) => {
                        silent = Some(failure.during(format!(
                            "nothing is changed, since server {server} has not said what it knows of the keeper before"
                        )));
                    }
                }
            }
            let Some(failure) = silent else { continue };
            if self.io.mono_ns() >= until_ns {
                self.keeper.refuse(&failure);
                return Err(failure);
            }
            self.io.sleep(KEEPER_PAUSE).await;
        }
        let heard = hearing.take().unwrap_or_default();
        if !self.config.switches.is(Sabotage::TakeOverEpoch) {
            let mut last = self.keeper.raising().await;
            // Servers that do not answer now may have been told of later ones.
            *last = NamespaceEpoch((*last).max(heard.epoch).0 + TOLD_TO_ALL_EVERY);
            self.namespace.adopt(*last);
        }
        let tokens = if self.config.switches.is(Sabotage::TakeOverTokens) { Vec::new() } else { heard.tokens };
        self.keeper.knows_tokens(&tokens, self.io.mono_ns());
        Ok(())
    }

    /// At every server: there is another keeper. Answered when no request of a server that has ended is under way here, since no
    /// server knows of their tokens.
    pub(crate) fn taken_over(self: &Arc<Self>, map: &Arc<ShardMap>) -> Attempt<Output> {
        self.install_map(map.clone());
        let ended = map.servers.iter().filter(|info| info.ended).map(|info| info.session);
        let known = self.retired.lock().clone();
        let ended: Vec<SessionId> = ended.filter(|session| !known.contains(session)).collect();
        ended.into_iter().for_each(|session| self.retire(session));
        if self.retired.lock().is_empty() {
            return Ok(self.takeover_reply().into());
        }
        let server = self.clone();
        then(async move {
            server.until_retired().await;
            Ok(server.takeover_reply())
        })
    }

    /// At a server that comes back and has no map yet, in place of [`Self::taken_over`]; `None` at any other. The keeper before may have put its
    /// life into the map, so that the new keeper asks it, and answers its `Join` only then. No request is under way here, and no map that is older
    /// than this one comes into use; its directory may have a move of a directory that an earlier life began.
    pub(crate) fn taken_over_meanwhile(&self, map: &Arc<ShardMap>) -> Option<Reply> {
        if !self.comes_back() {
            return None;
        }
        self.group.hear(map.clone());
        // If its first map has come into use since, it may not have looked for a newer one any more.
        let reply = || Reply::TakeoverIs { epoch: self.namespace_epoch(), tokens: vec![token_of(self.session())] };
        self.comes_back().then(reply)
    }

    fn takeover_reply(&self) -> Reply {
        let mut tokens = self.transactions.with_token();
        if self.persistence.is_some() {
            // An earlier life of this server may have had it.
            tokens.extend(self.transactions.all_in_doubt());
            let map = self.map();
            let ended = map.servers.iter().filter(|info| info.ended && !info.left).map(|info| info.session);
            tokens.extend(ended.filter(|session| self.transactions.has_ended_in_a_move(*session)).map(token_of));
        }
        Reply::TakeoverIs { epoch: self.namespace_epoch(), tokens }
    }
}

/// In the place of the session of an earlier life of a server: the token is free when the present life says that no earlier one has it.
const NO_SESSION: SessionId = SessionId(0);

/// In place of the transaction of a server that has ended in the middle of a move, and comes back with it.
fn token_of(ended: SessionId) -> TxId {
    TxId(ended.0)
}

/// Notes the end of a server in a map.
pub(super) fn end_in(map: &mut ShardMap, server: ServerIndex) {
    let has_slots = map.slots.served_by(server).next().is_some();
    let Some(info) = map.servers.get_mut(usize::from(server.0)) else { return };
    // One that has just joined and has nothing takes nothing along.
    match info.joining && !has_slots {
        true => info.left = true,
        false => info.ended = true,
    }
}

/// Whether another server keeps the map, or the asker's map is an old one.
pub(super) fn is_stale(failure: &Failure) -> bool {
    matches!(failure.refusal, Some(Refusal::MapStale { .. }))
}
