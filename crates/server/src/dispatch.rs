//! From an arriving request to its reply: counted, admitted, attempted, carried on as a task if it
//! must wait, and remembered so that a second copy has no second effect.

use crate::coherence::through::OpenedAt;
use crate::membership::state::activity::{Activity, Timed};
use crate::membership::state::moving::UnderWay;
use crate::names::release::Frozen;
use crate::names::state::moves::How;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Contents, FROZEN_PAUSE, Output, READERS_PAUSE, Work};
use aze_io::claims::Claims;
use aze_io::slab::ReceiveBuffer;
use aze_meta::Stamp;
use aze_meta::access::Want;
use aze_proto::frame::Header;
use aze_proto::retry::Verdict;
use aze_proto::rules::{Changes, Sender, To};
use aze_proto::{Code, Failure, Identity, MapEpoch, Refusal, Reply, Request};
use aze_rpc::{Incoming, Proven, Service};
use futures_channel::oneshot;
use std::sync::Arc;
use std::time::Duration;

/// What admission decides.
enum Admission {
    Go,
    /// The reply is known.
    Known(Box<Result<Reply, Failure>>),
    /// A copy is being worked on: the client will ask again.
    Drop,
}

impl Admission {
    fn known(result: Result<Reply, Failure>) -> Admission {
        Admission::Known(Box::new(result))
    }
}

impl Service for Server {
    fn receive_buffer(&self, header: &Header, request: &Request, payload_bytes: usize) -> Option<ReceiveBuffer> {
        self.receive_buffer_for(header, request, payload_bytes)
    }

    fn request(self: Arc<Self>, incoming: Incoming) {
        self.order.witness(incoming.header.order.0);
        let earlier = self.counters.count(&incoming.request);
        Activity::count(&incoming.who, &incoming.request, incoming.payload.len());
        if incoming.request.from_servers_only() && !incoming.who.server {
            let detail = format!("{} may be asked by servers of the volume only", incoming.request.name());
            incoming.responder.send(self.reply_context(), Err(Failure::new(Code::NotPermitted, detail)), &[]);
            return;
        }
        if let Some(refusal) = self.not_open(&incoming.request).filter(|_| !incoming.who.server) {
            incoming.responder.send(self.reply_context(), Err(refusal), &[]);
            return;
        }
        let by_server = incoming.who.server;
        let entered = self.moving.enter(&incoming.request, incoming.header.shard, by_server);
        let (request, mut work) = Work::incoming(&self, incoming);
        work.timed = Timed::of(&self.io, &self.activity, earlier, &request);
        match entered {
            Ok(under_way) => {
                work.under_way = under_way;
                self.begin(request, work);
            }
            Err(()) => {
                let server = self.clone();
                self.io.spawn(async move { server.begin_later(request, work, by_server).await });
            }
        }
    }

    fn session_opened(&self, who: &Arc<Proven>, claims: Option<Claims>) {
        self.counters.count_opened(&who.peer);
        self.session_begins(who);
        if !who.server {
            self.activity.begins(who);
        }
        if let Some(claims) = claims.filter(|_| !who.server) {
            self.leases.enter(who, claims);
            self.sweep_leases_soon();
        }
    }

    fn session_closed(&self, who: &Arc<Proven>) {
        if self.leases.leave(who) {
            self.sweep_leases_soon();
        }
        self.session_leaves(who);
        self.activity.ends(who);
    }

    fn began(&self) -> MapEpoch {
        self.map().server(self.slot()).map_or(MapEpoch(0), |info| info.began)
    }

    fn peer_refused(&self, _peer: &str, _why: &str) {
        self.counters.count_refused();
    }
}

impl Server {
    /// Begins to work on a request.
    #[inline(always)]
    fn begin(self: Arc<Self>, request: Request, mut work: Work) {
        match self.admit(&request, &work) {
            Admission::Drop => {}
            Admission::Known(result) => self.respond(request, work, *result),
            Admission::Go => match self.attempt(&request, &mut work) {
                Ok(Output::Reply(reply)) => self.finish(request, work, Ok(reply)),
                Ok(Output::Sent) => {}
                Ok(Output::Contents(contents)) => self.finish_contents(&request, work, *contents),
                Err(Stop::Fail(failure)) => self.finish(request, work, Err(failure)),
                Ok(Output::Then(rest)) => {
                    let server = self.clone();
                    self.io.spawn(async move {
                        let result = rest.await;
                        server.finish(request, work, result);
                    });
                }
                Err(Stop::Wait(wait)) => {
                    let server = self.clone();
                    self.io.spawn(async move { server.carry(request, work, wait).await });
                }
            },
        }
    }

    /// Begins to work on a request that has to wait for a slot which moves, unless its sender has given up by then.
    async fn begin_later(self: Arc<Self>, request: Request, mut work: Work, by_server: bool) {
        loop {
            if let Some(changed) = self.moving.changed() {
                let left = Duration::from_nanos(work.deadline_ns.saturating_sub(self.io.mono_ns()));
                if self.io.timeout(left, changed).await.is_none() {
                    return;
                }
            }
            if let Ok(under_way) = self.moving.enter(&request, work.header.shard, by_server) {
                work.under_way = under_way;
                break;
            }
        }
        work.stamp.time = self.clock.next(&self.io, work.header.time);
        self.begin(request, work);
    }

    /// Begins to work on a request of this server to itself, when it need not wait for a slot that moves.
    async fn enter_alone(&self, request: &Request, work: &Work) -> Result<Option<UnderWay>, Failure> {
        let entered = loop {
            if let Ok(entered) = self.moving.enter(request, work.header.shard, true) {
                break entered;
            }
            if let Some(changed) = self.moving.changed() {
                self.await_until(changed, work.deadline_ns, "a slot that moves to another server").await?;
            }
        };
        let is_elsewhere = request.names_shard() && self.shards.get(work.header.shard).is_none();
        if is_elsewhere { Err(self.stale()) } else { Ok(entered) }
    }

    /// On whose behalf a request runs: a root that the kernel vouches for, and the servers, may
    /// state it; everybody else who knows the secret acts as the owner.
    pub(crate) fn proven_identity(&self, stated: Identity, who: &Proven) -> Identity {
        let (uid, gid) = (self.config.owner_uid, self.config.owner_gid);
        let vouched_root = who.credentials.is_some_and(|credentials| credentials.uid == 0);
        if vouched_root || uid == 0 || who.server { stated } else { Identity { uid, gid, groups: Vec::new() } }
    }

    /// The shard first, then the retry record: a repeated change must get its first answer even after
    /// other changes, because a client that is refused believes that nothing has happened and
    /// asks under a new number. Then the sender's epochs of the map and of the namespace.
    fn admit(&self, request: &Request, work: &Work) -> Admission {
        let ended =
            || Admission::known(Err(Failure::new(Code::Expired, format!("{}: the session was ended", self.who()))));
        let ends = self.sessions.ends();
        if self.sessions.is_ended(work.session) {
            return ended();
        }
        let rules = request.rules();
        if rules.sender == Sender::Owner
            && let Err(failure) = self.owner_only(work)
        {
            return Admission::known(Err(failure));
        }
        if rules.to == To::Keeper && self.slot() != self.map().keeper {
            let map = self.map();
            let detail = format!("{} does not keep the map: server {} does", self.who(), map.keeper);
            // One of both has not heard of the next keeper, or had not when the question was sent, or this server comes back and has no
            // map yet: it is asked again.
            let failure = Failure::refused(Refusal::MapStale { epoch: map.epoch }).during(detail);
            return Admission::known(Err(failure));
        }
        if let Some(failure) = self.failure_for(request) {
            return Admission::known(Err(failure));
        }
        if let Request::Takeover { map } = request
            && let Some(reply) = self.taken_over_meanwhile(map)
        {
            return Admission::known(Ok(reply));
        }
        if self.map_epoch_now() == MapEpoch(0) && !request.needs_no_map() {
            // Just started and not yet in the map: it has no shards, so it cannot say that a name or
            // inode is not there. The client asks again, and finds it ready.
            return Admission::known(Err(Failure::refused(Refusal::MapStale { epoch: MapEpoch(0) })));
        }
        let epoch = self.map_epoch_now();
        if request.names_shard() && self.shards.get(work.header.shard).is_none() {
            return Admission::known(self.given_outcome(request, work).unwrap_or_else(|| Err(self.stale())));
        }
        if rules.to == To::Slots && work.header.map_epoch < epoch {
            return Admission::known(Err(Failure::refused(Refusal::MapStale { epoch })));
        }
        if work.is_recorded_change()
            && let Some(known) = self.known_change(request, work)
        {
            return known;
        }
        // Ending a session waits for its running requests: either sees the other.
        if work.is_recorded_change() && self.sessions.ends() != ends && self.sessions.is_ended(work.session) {
            self.not_running(work);
            return ended();
        }
        if request.names_shard() && work.header.map_epoch < epoch {
            self.not_running(work);
            return Admission::known(Err(Failure::refused(Refusal::MapStale { epoch })));
        }
        if request.needs_namespace_epoch()
            && !self.config.switches.is(Sabotage::SkipNamespaceEpochCheck)
            && let Some(refusal) = self.namespace.refusal(work.header.namespace_epoch)
        {
            self.not_running(work);
            return Admission::known(Err(Failure::refused(refusal)));
        }
        Admission::Go
    }

    fn known_change(&self, request: &Request, work: &Work) -> Option<Admission> {
        let cell = self.shards.get(work.header.shard)?;
        let Stamp { session, sequence, floor, .. } = work.stamp;
        if self.config.switches.is(Sabotage::SkipDuplicateCheck) {
            return None;
        }
        let with_data = request.remembered_with() == Changes::Data;
        let in_data = with_data.then(|| cell.data.lock().check(session, sequence, floor));
        let mut names = cell.names.lock();
        let verdict = in_data.unwrap_or_else(|| names.shard.check(session, sequence, floor));
        match verdict {
            Verdict::Done(result) => Some(Admission::known(result)),
            Verdict::TooOld => {
                Some(Admission::known(Err(Failure::new(Code::Replayed, "a late copy of a request that was given up"))))
            }
            Verdict::Full => Some(Admission::known(Err(Failure::refused(Refusal::TooManyPending)))),
            Verdict::New if !names.running.insert((session, sequence)) => Some(Admission::Drop),
            Verdict::New => {
                // A copy may have finished between the look into the data's record and now.
                drop(names);
                if with_data && let Verdict::Done(result) = cell.data.lock().check(session, sequence, floor) {
                    self.not_running(work);
                    return Some(Admission::known(result));
                }
                None
            }
        }
    }

    /// How a change ended in a shard that was given to another server since: its sender would take a refusal for a word
    /// that nothing has happened.
    fn given_outcome(&self, request: &Request, work: &Work) -> Option<Result<Reply, Failure>> {
        let Stamp { session, sequence, floor, .. } = work.stamp;
        let known = self.moving.given_outcome(request, work.header.shard, (session, sequence, floor));
        match known {
            Verdict::Done(result) => Some(result),
            Verdict::TooOld => Some(Err(Failure::new(Code::Replayed, "a late copy of a request that was given up"))),
            Verdict::Full | Verdict::New => None,
        }
    }

    fn not_running(&self, work: &Work) {
        if work.is_recorded_change()
            && let Some(cell) = self.shards.get(work.header.shard)
        {
            cell.names.lock().running.remove((work.stamp.session, work.stamp.sequence));
            self.sessions.finished();
        }
    }

    /// Carries on a request that must wait, until it is done or its client has given up.
    async fn carry(self: Arc<Self>, request: Request, mut work: Work, mut wait: Wait) {
        let result = loop {
            let was_told = !matches!(wait, Wait::Stub(_));
            if let Err(failure) = self.wait_for(&mut work, wait).await {
                break Err(failure);
            }
            // Only the home of a directory whose stub was not here has been told of changes of paths through it.
            if !was_told
                && request.needs_namespace_epoch()
                && !self.config.switches.is(Sabotage::CheckPathsOnce)
                && let Some(refusal) = self.namespace.refusal(work.header.namespace_epoch)
            {
                break Err(Failure::refused(refusal));
            }
            // A newer time: the request takes effect now, not when it arrived.
            work.stamp.time = self.clock.next(&self.io, work.header.time);
            match self.attempt(&request, &mut work) {
                Ok(Output::Reply(reply)) => break Ok(reply),
                Ok(Output::Sent) => return,
                Ok(Output::Contents(contents)) => return self.finish_contents(&request, work, *contents),
                Ok(Output::Then(rest)) => break rest.await,
                Err(Stop::Fail(failure)) => break Err(failure),
                Err(Stop::Wait(next)) => wait = next,
            }
        };
        self.finish(request, work, result);
    }

    /// Runs a request of this server to itself.
    pub(crate) async fn run_local(self: &Arc<Self>, request: &Request, mut work: Work) -> Result<Reply, Failure> {
        let (shard, deadline_ns) = (work.header.shard, work.deadline_ns);
        let _under_way = self.enter_alone(request, &work).await?;
        let result = self.run_local_now(request, &mut work).await;
        if self.waits_for_recalls(request) {
            self.recalled(shard).await;
        }
        if let Some(dirs) = self.untold_parts(request) {
            self.parts_told(dirs, deadline_ns).await;
        }
        result
    }

    async fn run_local_now(self: &Arc<Self>, request: &Request, work: &mut Work) -> Result<Reply, Failure> {
        loop {
            match self.attempt(request, work) {
                Ok(Output::Reply(reply)) => return Ok(reply),
                Ok(Output::Sent) => return Ok(Reply::Done),
                Ok(Output::Contents(contents)) => return Ok(contents.plain),
                Ok(Output::Then(rest)) => return rest.await,
                Err(Stop::Fail(failure)) => return Err(failure),
                Err(Stop::Wait(wait)) => self.wait_for(work, wait).await?,
            }
        }
    }

    /// Waits until an attempt is worth repeating.
    pub(crate) async fn wait_for(self: &Arc<Self>, work: &mut Work, wait: Wait) -> Result<(), Failure> {
        match wait {
            Wait::Stub(dir) => self.fetch_stub(dir, work.deadline_ns).await,
            Wait::Closing(dir) => match self.directories.wait_closing(dir) {
                Some(decided) => self.await_until(decided, work.deadline_ns, "a directory that is being removed").await,
                None => Ok(()),
            },
            Wait::Entry(shard, key) => {
                let unlocked = self.shards.get(shard).and_then(|cell| {
                    let mut names = cell.names.lock();
                    names.shard.lock_of(&key)?;
                    let (sender, receiver) = oneshot::channel();
                    names.entry_waiters.entry(key).or_default().push(sender);
                    Some(receiver)
                });
                match unlocked {
                    Some(unlocked) => {
                        self.await_until(unlocked, work.deadline_ns, "a name that is being renamed or removed").await
                    }
                    None => Ok(()),
                }
            }
            Wait::Unresolved(key) => self.resolve_name(&key).await,
            Wait::Owner(ino) => {
                let reply = self.ask_shard(self.home(ino), Request::GetAttr { ino, exact: false }).await?;
                if let Reply::Attributes { attr } = reply {
                    work.owners.insert(ino, attr.uid);
                }
                Ok(())
            }
            Wait::Truncation(shard, ino) => {
                let have = || self.shards.get(shard).and_then(|cell| cell.data.lock().generation_of(ino));
                let before = have();
                self.catch_up_with_truncations(shard, ino).await?;
                match (before, have()) {
                    // The client knows a truncation that was lost when the volume was started again.
                    (Some(before), Some(now)) if before == now => {
                        Err(Failure::refused(Refusal::GenerationStale { generation: now }))
                    }
                    _ => Ok(()),
                }
            }
            Wait::Readers => {
                if self.io.mono_ns() >= work.deadline_ns {
                    let detail = format!("{}: memory is full and being read; try again", self.who());
                    return Err(Failure::new(Code::TimedOut, detail));
                }
                self.evict_ahead();
                self.io.sleep(READERS_PAUSE).await;
                Ok(())
            }
            Wait::Frozen(ino) => {
                if self.io.mono_ns() >= work.deadline_ns {
                    let detail =
                        format!("{}: inode {ino} is being released by 'aze stage release'; try again", self.who());
                    return Err(Failure::new(Code::TimedOut, detail));
                }
                self.io.sleep(FROZEN_PAUSE).await;
                Ok(())
            }
            Wait::Cold(shard, ino, chunk, units) => {
                self.bring_back(shard, (ino, chunk), &units, work.deadline_ns).await
            }
            Wait::Room(full) => self.await_room(work.deadline_ns, full).await,
            Wait::Eviction(full) => self.await_eviction(work.deadline_ns, full).await,
            Wait::Import(dir) => self.fetch_names(dir, work.deadline_ns).await,
            Wait::Backing(lack) => self.fetch_backed(lack, work.deadline_ns).await,
            Wait::Run(lack, at) => {
                work.runs.learn(self.run_in_backing(lack, at, work.deadline_ns).await?);
                Ok(())
            }
            Wait::Turn(ino) => {
                work.turn = Some(self.take_turn(ino, work.deadline_ns).await?);
                Ok(())
            }
        }
    }

    /// Awaits a signal (or the end of its sender, which is one too) until the deadline.
    pub(crate) async fn await_until(
        &self,
        signal: oneshot::Receiver<()>,
        deadline_ns: u64,
        what: &str,
    ) -> Result<(), Failure> {
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.io.mono_ns()));
        match self.io.timeout(left, signal).await {
            Some(_) => Ok(()),
            None => Err(Failure::new(Code::TimedOut, format!("{}: waited for {what}; try again", self.who()))),
        }
    }

    /// Remembers the outcome of a change and replies.
    fn finish(self: &Arc<Self>, request: Request, mut work: Work, result: Result<Reply, Failure>) {
        self.remember(&request, &mut work, &result);
        self.respond(request, work, result);
    }

    /// As [`Self::finish`]; the retry record goes without the contents.
    fn finish_contents(self: &Arc<Self>, request: &Request, mut work: Work, mut contents: Contents) {
        let plain = std::mem::replace(&mut contents.plain, Reply::Done);
        self.remember(request, &mut work, &Ok(plain));
        self.respond_contents(work, contents);
    }

    fn remember(self: &Arc<Self>, request: &Request, work: &mut Work, result: &Result<Reply, Failure>) {
        let refused = matches!(result, Err(failure) if failure.code == Code::Refused);
        if work.is_recorded_change()
            && let Some(cell) = self.shards.get(work.header.shard)
        {
            let with = request.remembered_with();
            let is_decided = work.recorded || refused;
            if !is_decided && with == Changes::Data {
                cell.data.lock().decide(&work.stamp, result.clone());
            }
            let mut names = cell.names.lock();
            match with {
                Changes::Names if !is_decided => names.shard.decide(&work.stamp, result),
                Changes::Holds if !is_decided => names.shard.remember(&work.stamp, result.clone()),
                Changes::Names | Changes::Holds | Changes::Data | Changes::Nothing => {}
            }
            names.running.remove((work.stamp.session, work.stamp.sequence));
            drop(names);
            self.sessions.finished();
        }
        work.recorded = true;
    }

    /// One attempt at a request: its handler gets its fields.
    fn attempt(self: &Arc<Self>, request: &Request, work: &mut Work) -> Attempt<Output> {
        if let Some(failure) = self.disk_is_low(request) {
            return Err(failure.into());
        }
        match request {
            Request::Lookup { parent, name } => self.lookup(work, *parent, name),
            Request::Create(create) => self.create(work, create),
            Request::Unlink { parent, name } => self.unlink(work, *parent, name, None),
            Request::Rmdir { parent, name } => self.rmdir(work, *parent, name),
            Request::Link { parent, name, ino } => self.link(work, *parent, name, *ino),
            Request::Rename { parent, name, to_parent, to_name, no_replace } => {
                let how = if *no_replace { How::NoReplace } else { How::Replace };
                self.rename(work, *parent, name, *to_parent, to_name, how)
            }
            Request::Exchange { parent, name, to_parent, to_name } => {
                self.rename(work, *parent, name, *to_parent, to_name, How::Exchange)
            }
            &Request::OpenName { parent, ref name, handle, read, write } => {
                self.open_name(work, parent, name, handle, Want { read, write, execute: false })
            }
            &Request::OpenWith { ino, handle, write, contents } => self.open_with(work, ino, handle, write, contents),
            &Request::OpenNameWith { parent, ref name, handle, write, contents } => {
                self.open_name_with(work, parent, name, handle, write, contents)
            }
            &Request::OpenThrough { dir, ref path, handle, contents } => {
                self.open_through(work, OpenedAt { dir, path: &path.0, follow: true }, handle, contents)
            }
            &Request::OpenNameThrough { dir, ref name, handle, contents } => {
                // From then on this server is told of changes of paths through it: the sender may have missed one.
                self.directories.know(dir)?;
                self.open_through(work, OpenedAt { dir, path: name.as_bytes(), follow: false }, handle, contents)
            }
            Request::CloseThrough { handles } => Ok(self.close_through(work, handles).into()),
            &Request::GetAttr { ino, exact } => self.getattr(work, ino, exact),
            Request::SetAttr { ino, change } => self.setattr(work, *ino, change),
            &Request::Truncate { ino, size, opened } => self.truncate(work, ino, size, opened),
            &Request::Open { ino, handle, read, write } => {
                self.open(work, ino, handle, Want { read, write, execute: false })
            }
            &Request::OpenToRun { ino, handle } => {
                self.open(work, ino, handle, Want { read: false, write: false, execute: true })
            }
            Request::Close { handles } => Ok(self.close_handles(work.session, handles).into()),
            &Request::Report { ino, generation, end, spread } => self.report(work, ino, generation, end, spread),
            Request::ReadLink { ino } => self.readlink(*ino),
            &Request::Holders { dir } => self.holders(work, dir),
            Request::GetXattr { ino, name } => self.get_xattr(work, *ino, name),
            Request::ListXattr { ino } => self.list_xattr(work, *ino),
            Request::SetXattr { ino, name, value, how } => self.set_xattr(work, *ino, name, value.as_ref(), *how),
            Request::Write(write) => self.write(work, write),
            Request::Append { ino, sums } => self.append(work, *ino, sums),
            &Request::CreateUnnamed { parent, ref name, mode, open, write } => {
                self.create_unnamed(work, parent, name, mode, open, write)
            }
            &Request::CountOpens { ino } => self.count_opens(ino),
            &Request::Freeze { ino, handle, generation, ctime, any_life } => {
                self.freeze(work, ino, handle, Frozen { generation, ctime, any_life })
            }
            &Request::UnlinkFrozen { parent, ref name, ino, began } => {
                self.unlink_frozen(work, parent, name, ino, began)
            }
            Request::Reserve(reserve) => self.reserve(work, reserve),
            Request::Punch(punch) => self.punch(work, punch),
            Request::Seek(seek) => self.seek(work, seek),
            Request::CountChanges(count) => self.count_changes(count),
            &Request::SetLock { ino, lock, wait } => self.set_lock(work, ino, lock, wait),
            &Request::Unlock { ino, space, owner, start, end } => self.unlock(work, ino, space, owner, start, end),
            &Request::TestLock { ino, lock } => self.test_lock(work, ino, lock),
            &Request::AwaitLock { ino, wait } => self.await_lock(work, ino, wait),
            &Request::CancelLock { ino, wait } => self.cancel_lock(work, ino, wait),
            Request::ServerEnded { server, began, incarnation } => self.server_ended(*server, *began, *incarnation),
            Request::KeepLocks => {
                self.sessions.heard(work.session, self.io.mono_ns());
                Ok(Reply::Done.into())
            }
            Request::Read(read) => self.read(work, read),
            &Request::List { dir, after, limit, attrs } => self.list(work, dir, after, limit, attrs),
            Request::Scan { scan } => self.scan(work, scan),
            Request::StatFs => Ok(self.space().into()),
            Request::Status => Ok(Reply::Status { status: Box::new(self.status()) }.into()),
            Request::Activity => Ok(Reply::ActivityIs { activity: Box::new(self.activity()) }.into()),
            Request::GetMap => Ok(Reply::Map { map: self.map() }.into()),
            Request::Shutdown => self.shutdown(work),
            Request::Sync => Ok(self.synced().into()),
            &Request::Listen { life, confirmed } => self.await_recall(work, life, confirmed),
            Request::CheckInodes { from, end_home, directories, only } => {
                self.check_inodes(*from, *end_home, *directories, only)
            }
            Request::CheckEntries { from, first_home, end_home, only } => {
                self.check_entries(from, *first_home..*end_home, only)
            }
            &Request::CheckData { from, only } => self.check_data(from, only),
            Request::CheckWatch { number, begin } => self.check_watch(work, *number, begin.as_deref()),
            &Request::BackingOf { ino } => self.backing_of(ino),
            Request::GoneNames { from } => self.gone_names(from),
            &Request::LeaveBacking { ino } => self.leave_backing(ino),
            Request::Adopt { staged } => self.adopt(staged),
            &Request::Claim { ino } => self.claim(ino),
            Request::ForgetGone { parent, name, since } => self.forget_gone(work, *parent, name, *since),
            Request::EndSession => {
                self.leases.left(work.session);
                self.end_session(work.session);
                Ok(Reply::Done.into())
            }

            // From servers only.
            Request::Join { slot, info } => self.join(*slot, info),
            Request::MapPush { map } => self.map_pushed(map),
            Request::StubGet { dir, holder, incarnation } => {
                self.stub_get(*dir, *holder, *incarnation, work.header.namespace_epoch)
            }
            Request::StubClose { dir, round } => {
                Ok(Reply::StubClosed { empty: self.directories.close(*dir, *round) }.into())
            }
            Request::StubReopen { dir, round } => {
                self.directories.reopen(*dir, *round);
                Ok(Reply::Done.into())
            }
            Request::StubDrop { dir } => {
                self.directories.forget(*dir);
                Ok(Reply::Done.into())
            }
            Request::StubUpdate { stub } => self.stub_updated(stub),
            Request::Fragment { dir } => Ok(self.part(*dir).into()),
            Request::Prepare(prepare) => self.prepare(work, prepare),
            Request::PrepareExchange(prepare) => self.prepare_exchange(work, prepare),
            Request::Commit { tx, to_parent, to_name } => self.commit(*tx, *to_parent, to_name, &work.stamp),
            Request::Abort { tx, to_parent, to_name } => self.abort(*tx, *to_parent, to_name),
            Request::TxOutcome { tx } => Ok(Reply::TxIs { committed: self.transactions.outcome(*tx) }.into()),
            Request::TxResolve { txs } => self.tx_resolve(txs),
            &Request::LinkBegin { ino, tx, shard } => self.link_begin(work, ino, tx, shard),
            &Request::LinkEnd { ino, tx, kept } => self.link_end(work, ino, tx, kept),
            &Request::LinkDrop { ino, tx } => self.link_drop(work, ino, tx),
            Request::LinkForget { ino, tx } => self.link_forget(*ino, *tx),
            Request::MayWrite { ino, identity } => self.may_write(*ino, identity),
            Request::LinkOutcome { tx } => self.link_outcome(work.header.shard, *tx),
            Request::SetParent { ino, parent } => self.set_parent(work, *ino, *parent),
            Request::ParentOf { ino } => self.parent_of(*ino),
            Request::CloseDir { dir } => self.close_dir(*dir),
            Request::RaiseEpoch { dir } => self.raise_epoch(*dir),
            Request::EpochPush { epoch, changed, at_home, with_entries } => {
                self.epoch_pushed((*epoch, changed), (at_home, with_entries), work)
            }
            Request::RootRights => self.root_rights(),
            Request::GroupKept => Ok(self.group_kept()?.into()),
            Request::Group { formed, bytes } => self.group_message(*formed, bytes),
            Request::Takeover { map } => self.taken_over(map),
            Request::KeeperGone { keeper, began, incarnation, has_ended } => {
                self.told_keeper_gone(*keeper, *began, *incarnation, *has_ended)
            }
            Request::TakeToken { tx } => self.take_token(*tx, work.session),
            Request::DropToken { tx } => Ok(self.drop_token(*tx, work.session).into()),
            Request::TruncateData { ino, generation, length, chunk_bits } => {
                self.truncate_here(*ino, *generation, *length, *chunk_bits)
            }
            Request::DeleteData { ino } => Ok(self.delete_data_here(*ino).into()),
            Request::TruncateQuery { ino, have } => self.truncate_query(*ino, *have),
            Request::PersistentId => Ok(self.persistent_is()?.into()),
            Request::TxDone { tx } => self.tx_done(*tx),
            Request::Known { of, from } => self.known_of(*of, *from),
            Request::IsDone => Ok(self.is_done()?.into()),
            Request::LinksTo { home, from } => Ok(self.links_to(*home, *from)?.into()),
            Request::FilesNow { inos } => Ok(self.files_now(inos)?.into()),
            &Request::WillChange { ino } => self.will_change(ino),
            Request::Settle { settle } => self.settle_copies(settle),
            &Request::ImportDir { dir } => self.import_dir(work, dir),
            Request::Import { dir, names } => self.import(*dir, names),
            Request::FenceSession { session } => self.fence_session(*session),
            &Request::MoveSlot { slot, to } => self.move_asked(slot, to),
            &Request::KnowsSession { session } => self.knows_session(session),
            Request::Leave { servers } => self.leave_asked(servers),
            Request::Enter { slot, info } => self.enter(*slot, info),
            Request::Balance => self.balance_asked(),
            &Request::CopySlot { moving, slot, to } => self.copy_slot(moving, slot, to),
            &Request::GiveSlot { moving, slot, to } => self.give_slot(moving, slot, to),
            Request::TakePiece { moving, slot, number, piece, sums } => {
                self.take_piece(work, *moving, *slot, *number, piece, sums)
            }
            &Request::TakeAll { moving, slot, pieces, leased } => self.take_all(work, moving, slot, pieces, leased),
            Request::MoveEnd { moving, map } => {
                self.move_ended(*moving, map.clone());
                Ok(Reply::Done.into())
            }
            Request::MoveOutcome { moving } => self.move_outcome(*moving),
            Request::TakeUndo { moving } => self.take_undo(*moving),
            Request::NoteHolders { holder, incarnation, dirs } => self.note_holders(*holder, *incarnation, dirs),
            &Request::SessionGone { session, is_over } => {
                if let Some(by) = self.server_of_session(work.session) {
                    self.session_gone(session, (by, None), is_over);
                }
                Ok(Reply::Done.into())
            }
        }
    }
}
