//! The asking side: one request, one answer, exactly once in effect.
//!
//! It alone knows which requests are sent again, under which number, and the error when no answer comes.

use crate::Target;
use crate::calls::{Call, News};
use crate::lane::{self, LANES_MAX};
use crate::link::{Channel, Core, Locate, Located, OnEnd, OnFar, OnLinksChanged, SeenElsewhere, Whole};
use crate::sequences::{Sequences, Ticket};
use aze_io::defects::vitally;
use aze_io::logical::LogicalClock;
use aze_io::{Io, SharedPayload, Transport};
use aze_proto::frame::{self, HEADER_BYTES, Header, Kind};
use aze_proto::handshake::{Secret, Versions};
use aze_proto::limits::{HEAD_BYTES_MAX, PAYLOAD_BYTES_MAX};
use aze_proto::wire::Wire;
use aze_proto::{
    Code, Failure, Identity, JobId, MapEpoch, NamespaceEpoch, Order, Refusal, Reply, Request, Sequence, ServerIndex,
    SessionId, ShardId, Time,
};
use std::borrow::Cow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Pause before a change is sent again that a server refused because too many of its kind wait
/// there: about as long as a few of them take.
const TOO_MANY_PAUSE: Duration = Duration::from_millis(10);

/// Pause before a change is sent again to a server that is starting.
const STARTING_PAUSE: Duration = Duration::from_millis(50);

/// Connections that a request is sent over without a pause, each after the one before broke: servers start again, and cables
/// are pulled.
const BREAKS_AT_ONCE: usize = 3;

/// Pause before the next one; doubled after each up to [`BREAK_PAUSE_MAX`]. A server whose answers make no sense accepts
/// every connection, and each takes memory and descriptors at both ends.
const BREAK_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between connections that break.
const BREAK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Who asks, and how it proves itself.
#[derive(Clone, Debug)]
pub struct CallerConfig {
    /// The volume's secret.
    pub secret: Secret,
    /// The volume's name.
    pub volume: String,
    /// The versions of frames and messages that it speaks.
    pub versions: Versions,
    /// This process, from its start to its end: random.
    pub session: SessionId,
    /// This process is a server of the volume.
    pub server: bool,
    /// Name of the job that is accounted, at most 255 bytes.
    pub job: String,
    /// This node's name: `unix:` addresses are used only for servers of the same node.
    pub host: String,
    /// What may be used to servers of the same node.
    pub transport: Transport,
    /// How long it waits for a server that says that it is starting; each such word begins a request's deadline anew.
    /// Zero: it is told at once that the server is starting.
    pub start_time_max: Duration,
    /// Every request states its time, and every reply moves it. A server shares it with its journal.
    pub order: Arc<LogicalClock>,
}

/// One request.
#[derive(Clone)]
pub struct Ask<'a> {
    /// Whom to ask.
    pub to: &'a Target,
    /// The shard that is meant; 0 where the request names none.
    pub shard: ShardId,
    /// What the asker knows of the shard map.
    pub map_epoch: MapEpoch,
    /// What the asker knows of renamed directories.
    pub namespace_epoch: NamespaceEpoch,
    /// On whose behalf.
    pub identity: &'a Identity,
    /// The request itself.
    pub request: &'a Request,
    /// Bulk data, sent from where they are.
    pub payload: &'a [u8],
    /// After which time to give up; looked at about every 100 ms.
    pub deadline: Duration,
}

/// What a server said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// With what the server knows of map and names, and its time.
    pub header: Header,
    /// The reply itself.
    pub reply: Reply,
    /// Bulk data, whose checksums are in the reply: the caller compares them.
    pub payload: Vec<u8>,
    /// Where they are, if they were shared and are not in `payload`: only what a read asks for is.
    pub shared: Option<Arc<SharedPayload>>,
}

/// What a caller has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests put on a connection, each as often as it was sent.
    pub sent: u64,
    /// Of these, those that had been sent before.
    pub resent: u64,
    /// Connections that broke and were opened again.
    pub reconnects: u64,
}

/// Asks servers. Holds one connection to each server that it was asked for, in each of its lanes ([`lane`]); closes them when
/// dropped.
pub struct Caller {
    whole: Arc<Whole>,
    /// The first is there from the beginning.
    lanes: [OnceLock<Arc<Core>>; LANES_MAX],
    is_closed: AtomicBool,
    job: JobId,
    sequences: Sequences,
    sent: AtomicU64,
    resent: AtomicU64,
    /// When a server has said last that it is starting; 0: none has.
    start_seen_ns: AtomicU64,
}

impl Caller {
    /// Makes a caller without any connection.
    pub fn new(io: Io, config: CallerConfig) -> Arc<Caller> {
        let job = JobId::of(&config.job);
        let whole = Whole::new(config);
        let lanes: [OnceLock<Arc<Core>>; LANES_MAX] = Default::default();
        lanes[0].get_or_init(|| Core::new(io, whole.clone()));
        Arc::new(Caller {
            whole,
            lanes,
            is_closed: AtomicBool::new(false),
            job,
            sequences: Sequences::default(),
            sent: AtomicU64::new(0),
            resent: AtomicU64::new(0),
            start_seen_ns: AtomicU64::new(0),
        })
    }

    /// Has `tell` called, on a thread that drives the runtime, when a server on this machine whose process has ended
    /// cannot be reached any more: once for each life of a server. The first call counts.
    pub fn on_end(&self, tell: Box<OnEnd>) {
        let _ = self.whole.on_end.set(tell);
    }

    /// Has `tell` called when a server turns out to be far away, before anything was asked of it.
    pub fn on_far(&self, tell: Box<OnFar>) {
        *self.whole.on_far.lock() = Some(tell);
    }

    /// Has `tell` called, on a thread that drives the runtime, when a server cannot be connected to: once in a second at
    /// most. The first call counts.
    pub fn on_unreachable(&self, tell: Box<OnEnd>) {
        let _ = self.whole.on_unreachable.set(tell);
    }

    /// Has `tell` called, on a thread that drives the runtime, when a server can be connected to again after a connection to it
    /// broke. The first call counts.
    pub fn on_back(&self, tell: Box<OnEnd>) {
        let _ = self.whole.on_back.set(tell);
    }

    /// Asks `locate`, from now on, which server has a shard, for changes that another one may have done before it gave the shard
    /// away. The first call counts.
    pub fn locates(&self, locate: Box<Locate>) {
        let _ = self.whole.locate.set(locate);
    }

    /// Has `tell` called whenever a connection stands from now on or has ended, before calls over it fail. The first call counts.
    pub fn on_links_changed(&self, tell: Box<OnLinksChanged>) {
        let _ = self.whole.on_links_changed.set(tell);
    }

    /// Asks `seen` before each request for a time that is to count as seen. The first call counts.
    pub fn sees_elsewhere(&self, seen: Box<SeenElsewhere>) {
        let _ = self.whole.seen_elsewhere.set(seen);
    }

    /// A server has left the volume, and the map of this epoch says so. Changes in shards that are under way there go on,
    /// under their numbers, at the servers that have the shards now and know how they ended, if they have ended. Everything
    /// else is refused as by a server that knows this map.
    pub fn leave(&self, index: ServerIndex, epoch: MapEpoch) {
        let failure = Failure::refused(Refusal::MapStale { epoch });
        self.all().for_each(|core| core.leave(index, &failure));
    }

    /// The process of a server has ended, in the life that `target` names. Changes in shards that it had given to others go on there, as
    /// when it has left. Other requests to it fail with `why`. Changes that were sent have an unknown outcome then; with `sent_wait` they go
    /// on waiting instead, since its next life knows how they ended, or who has their shard.
    pub fn ended(&self, target: &Target, why: &str, sent_wait: bool) {
        self.all().for_each(|core| core.ended(target, why, sent_wait));
    }

    /// Opens a connection to a server that may be asked soon. It stays open as any other.
    pub fn prepare(&self, target: &Target) {
        self.core().prepare(target);
    }

    /// Requests of this lane go over connections of their own from now on, which `io` moves: until then they go over those of the first
    /// lane. Does nothing if the lane has some already, and for the first one.
    ///
    /// # Panics
    /// If `lane` is [`LANES_MAX`] or more.
    pub fn add_lane(&self, lane: usize, io: Io) {
        self.lanes[lane].get_or_init(|| Core::new(io, self.whole.clone()));
        if self.is_closed.load(Ordering::SeqCst) {
            self.all().for_each(|core| core.close());
        }
    }

    /// The lane of the future that is polled now.
    pub(crate) fn core(&self) -> &Arc<Core> {
        let first = || self.lanes[0].get().expect("it is there from the beginning");
        self.lanes[lane::current()].get().unwrap_or_else(first)
    }

    /// A connection to a server that stands, of any lane: through each the same is read that the server lends.
    pub(crate) fn standing(&self, to: &Target) -> Option<Arc<Channel>> {
        self.all().find_map(|core| core.standing(to))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Core>> {
        self.lanes.iter().filter_map(OnceLock::get)
    }

    /// This process.
    pub fn session(&self) -> SessionId {
        self.whole.config.session
    }

    /// The largest time seen in any reply: no change asked for from now on is dated before it.
    pub fn seen_time(&self) -> Time {
        self.whole.latest_time()
    }

    /// Moves the clock on, for times learnt elsewhere.
    pub fn observe_time(&self, time: Time) {
        self.whole.observe_time(time);
    }

    /// When a server has said last that it is starting: deadlines begin anew there. 0: none has.
    pub fn start_seen_ns(&self) -> u64 {
        self.start_seen_ns.load(Ordering::Relaxed)
    }

    /// The counts of requests sent and repeated, and of reconnections.
    pub fn counters(&self) -> Counters {
        let reconnects = self.whole.reconnects.load(Ordering::Relaxed);
        Counters { sent: self.sent.load(Ordering::Relaxed), resent: self.resent.load(Ordering::Relaxed), reconnects }
    }

    /// Closes the connection to a server and opens a new one, over which requests in flight are sent again.
    pub fn disconnect(&self, index: ServerIndex) {
        self.all().for_each(|core| core.disconnect(index, None));
    }

    /// Closes all connections. Requests in flight and later ones fail with [`Code::Expired`].
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.all().for_each(|core| core.close());
    }

    /// Sends a request, again when there is silence or the connection breaks, and waits for the
    /// answer. However often it is sent, it takes effect once. Dropping the future gives it up:
    /// whether a change took effect is then unknown.
    ///
    /// # Errors
    /// The server's failure as it is, refusals included (but for `TooManyPending`, after which it
    /// asks again, and for `Starting`). [`Code::Busy`] if a server is starting and is not to be waited for.
    /// [`Code::NotAuthentic`] or [`Code::Version`] at once if the handshake says so.
    /// At the deadline (a second at least, if the server was tried in vain before and is not there; counted from the last word of a
    /// server that it is starting)
    /// [`Code::Unreachable`] (never sent), [`Code::UnknownOutcome`] (a change that
    /// may have happened) or [`Code::TimedOut`]. [`Code::Limit`] for a request that is too long.
    pub async fn ask(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let body = encode(&ask)?;
        // Calls, links and windows of numbers are shared by all requests.
        vitally(pin!(self.ask_encoded(ask, &body))).await
    }

    async fn ask_encoded(&self, mut ask: Ask<'_>, body: &[u8]) -> Result<Answer, Failure> {
        let core = self.core();
        let whole = ask.deadline;
        ask.deadline = core.patience(ask.to, whole);
        let began_ns = core.io.mono_ns();
        let mut deadline_ns = began_ns.saturating_add(nanos(ask.deadline));
        let ticket = self.ticket(core, &ask).await?;
        let (mut call, mut channel) = core.begin(ask.to, ask.request.is_change(), began_ns, deadline_ns)?;
        let mut to = Cow::Borrowed(ask.to);
        let mut history = History::default();
        loop {
            if let Some(channel) = &channel {
                let remaining_ns = deadline_ns.saturating_sub(core.io.mono_ns());
                let head = self.seal(&ask, call.number(), ticket.as_ref(), remaining_ns, channel, body);
                if channel.send(&head, ask.payload) {
                    self.count(&mut history, channel);
                }
            }
            match call.news().await {
                News::Answer(Err(failure)) if failure.refusal == Some(Refusal::TooManyPending) => {
                    core.io.sleep(TOO_MANY_PAUSE).await;
                }
                News::Answer(Err(failure)) if self.is_starting(&failure) || self.has_no_map(&ask, &failure) => {
                    // This time it has not happened, and it keeps its number: whether it was sent to a
                    // server that is no more must not be forgotten.
                    if history.sent == 1 {
                        (history.sent, history.channels) = (0, Channels::default());
                    }
                    if failure.refusal == Some(Refusal::Starting) {
                        self.start_seen_ns.fetch_max(core.io.mono_ns(), Ordering::Relaxed);
                    }
                    core.io.sleep(STARTING_PAUSE).await;
                }
                News::Answer(Err(failure)) if failure.refusal == Some(Refusal::Starting) => {
                    return Err(Failure::new(Code::Busy, failure.detail).during(ask.request.name()));
                }
                News::Answer(Err(failure)) if history.is_in_doubt(&ask, &failure) => {
                    if let Some(now_at) = self.refused(core, &ask, &to, &mut history, failure).await? {
                        (call, channel) = self.begin_at(core, &ask, &now_at, &mut history, deadline_ns)?;
                        to = Cow::Owned(now_at);
                        continue;
                    }
                }
                News::Answer(answer) => return answer,
                News::Send => {}
                News::Ended(failure) => match self.gone(&ask, &to, &history, failure).await {
                    Ok(now_at) => {
                        (call, channel) = self.begin_at(core, &ask, &now_at, &mut history, deadline_ns)?;
                        to = Cow::Owned(now_at);
                        continue;
                    }
                    Err(failure) if history.sent == 0 => return Err(failure),
                    // Its next life knows.
                    Err(_) => {}
                },
                News::Broken(failure) => {
                    let now_at = self.gone(&ask, &to, &history, failure).await?;
                    (call, channel) = self.begin_at(core, &ask, &now_at, &mut history, deadline_ns)?;
                    to = Cow::Owned(now_at);
                    continue;
                }
                News::Deadline => {
                    if core.patience(&to, whole) == whole {
                        // A server that was tried in vain before is there again: it has as long as any other.
                        ask.deadline = whole;
                    }
                    let whole_ns = began_ns.saturating_add(nanos(ask.deadline));
                    match self.later_deadline(began_ns, ask.deadline).unwrap_or(whole_ns).max(whole_ns) {
                        later_ns if later_ns > deadline_ns => {
                            deadline_ns = later_ns;
                            call.wait_until(deadline_ns);
                        }
                        _ => return Err(self.give_up(core, &ask, &to, &history)),
                    }
                }
            }
            if let Some(pause) = history.pause() {
                let remaining_ns = deadline_ns.saturating_sub(core.io.mono_ns());
                core.io.sleep(pause.min(Duration::from_nanos(remaining_ns))).await;
            }
            if let Some(dead) = channel.take().filter(|channel| history.is_dead(channel)) {
                core.disconnect(to.index, Some(dead.id()));
            }
            channel = core.again(&to, &call)?;
        }
    }

    /// Enters a change that goes on at another server.
    fn begin_at<'a>(
        &self,
        core: &'a Arc<Core>,
        ask: &Ask<'_>,
        now_at: &Target,
        history: &mut History,
        deadline_ns: u64,
    ) -> Result<(Call<'a>, Option<Arc<Channel>>), Failure> {
        (history.was_elsewhere, history.channels) = (true, Channels::default());
        core.begin(now_at, ask.request.is_change(), core.io.mono_ns(), deadline_ns)
    }

    /// Which server has the shard of a request, if anybody says so.
    async fn located(&self, ask: &Ask<'_>, from: &Target, epoch: MapEpoch) -> Option<Located> {
        let locate = self.whole.locate.get().filter(|_| ask.request.names_shard())?;
        locate(ask.shard, from.clone(), epoch).await
    }

    /// A change was refused that another process may have done: an earlier life of the server, or one that had the
    /// shard before. Gives the server that has the shard now, if that is another one; the same one is to be asked
    /// again.
    ///
    /// Outcomes go where a shard goes. So a refusal says that the change was not done if it comes from a process that had the shard after an
    /// earlier refusal of the same process: until then the shard may have been elsewhere.
    ///
    /// # Errors
    /// The refusal, if it says so. [`Code::UnknownOutcome`] if the change may have been done all the same.
    async fn refused(
        &self,
        core: &Core,
        ask: &Ask<'_>,
        to: &Target,
        history: &mut History,
        refusal: Failure,
    ) -> Result<Option<Target>, Failure> {
        let epoch = stale_by(&refusal).unwrap_or_default();
        match &history.has_it {
            Some((conn, located)) if *conn == history.conn && epoch >= located.epoch => {
                return Err(was_not_done(ask, to, Some(located.since), refusal));
            }
            Some((conn, _)) if *conn == history.conn => {}
            _ => {
                let Some(located) = self.located(ask, to, epoch).await else {
                    return Err(was_not_done(ask, to, None, refusal));
                };
                if located.epoch >= epoch {
                    if located.server.index != to.index {
                        return Ok(Some(located.server));
                    }
                    history.has_it = Some((history.conn, located));
                    return Ok(None);
                }
            }
        }
        // One of both has not heard of the newer map yet.
        core.io.sleep(STARTING_PAUSE).await;
        Ok(None)
    }

    /// A server has left the volume, or its process has ended. Gives the one that has the shard of a change now.
    ///
    /// # Errors
    /// No other one has it, or the request is no change and has to be asked by a newer map.
    async fn gone(&self, ask: &Ask<'_>, from: &Target, history: &History, failure: Failure) -> Result<Target, Failure> {
        let is_gone = failure.code == Code::Unreachable || stale_by(&failure).is_some();
        let located = if is_gone { self.located(ask, from, MapEpoch(0)).await } else { None };
        match located.filter(|located| located.server.index != from.index) {
            Some(located) if ask.request.is_change() => Ok(located.server),
            Some(located) => Err(Failure::refused(Refusal::MapStale { epoch: located.epoch })),
            None if failure.code == Code::Unreachable && history.sent > 0 && ask.request.is_change() => {
                Err(Failure { code: Code::UnknownOutcome, ..failure }.during(ask.request.name()))
            }
            None => Err(failure.during(ask.request.name())),
        }
    }

    /// Whether a server that starts is to be waited for.
    fn is_starting(&self, failure: &Failure) -> bool {
        failure.refusal == Some(Refusal::Starting) && !self.whole.config.start_time_max.is_zero()
    }

    /// Whether a client's change was refused by a server that is not yet in the map.
    fn has_no_map(&self, ask: &Ask<'_>, failure: &Failure) -> bool {
        failure.refusal == Some(Refusal::MapStale { epoch: MapEpoch(0) })
            && ask.map_epoch > MapEpoch(0)
            && ask.request.is_change()
            && !self.whole.config.server
    }

    /// When a request's time is up that was begun then, as servers of the volume start.
    fn later_deadline(&self, began_ns: u64, deadline: Duration) -> Option<u64> {
        let seen_ns = Some(self.start_seen_ns()).filter(|seen_ns| *seen_ns > began_ns)?;
        let last_ns = began_ns.saturating_add(nanos(self.whole.config.start_time_max));
        Some(seen_ns.saturating_add(nanos(deadline)).min(last_ns))
    }

    /// A number for a change; none for anything else.
    async fn ticket(&self, core: &Core, ask: &Ask<'_>) -> Result<Option<Ticket<'_>>, Failure> {
        if !ask.request.is_change() {
            return Ok(None);
        }
        // Only a full window waits, and only then is a timer worth its while.
        if let Some(ticket) = self.sequences.try_take(ask.shard) {
            return Ok(Some(ticket));
        }
        match core.io.timeout(ask.deadline, self.sequences.take(ask.shard)).await {
            Some(ticket) => Ok(Some(ticket)),
            None => Err(self.give_up(core, ask, ask.to, &History::default())),
        }
    }

    fn seal(
        &self,
        ask: &Ask<'_>,
        call: u64,
        ticket: Option<&Ticket<'_>>,
        remaining_ns: u64,
        channel: &Channel,
        body: &[u8],
    ) -> Vec<u8> {
        let (sequence, floor) = ticket.map_or((Sequence(0), Sequence(0)), Ticket::number_and_floor);
        let header = Header {
            version: channel.version(),
            kind: Kind::Request,
            call,
            session: self.session(),
            sequence,
            floor,
            shard: ask.shard,
            map_epoch: ask.map_epoch,
            namespace_epoch: ask.namespace_epoch,
            time: self.seen_time(),
            order: Order(self.whole.config.order.now()),
            job: self.job,
            deadline_ms: u32::try_from(remaining_ns / 1_000_000).unwrap_or(u32::MAX),
        };
        frame::seal(&header, body, ask.payload.len(), channel.key())
    }

    fn count(&self, history: &mut History, channel: &Arc<Channel>) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        if history.sent > 0 {
            self.resent.fetch_add(1, Ordering::Relaxed);
        }
        let (conn, heard) = (channel.id(), channel.frames_heard());
        let same = history.conn == conn && history.heard == heard;
        history.reaches(channel);
        history.unheard = if same { history.unheard + 1 } else { 1 };
        (history.sent, history.conn, history.heard) = (history.sent + 1, conn, heard);
    }

    fn give_up(&self, core: &Core, ask: &Ask<'_>, to: &Target, history: &History) -> Failure {
        let seconds = ask.deadline.as_secs_f64();
        let why = core.last_error(to.index);
        let why = if why.is_empty() { why } else { format!(": {why}") };
        let (code, what) = match (history.sent, ask.request.is_change()) {
            (0, _) => (Code::Unreachable, "could not be sent".to_string()),
            (sent, true) => (Code::UnknownOutcome, format!("sent {sent} times, no answer")),
            (sent, false) => (Code::TimedOut, format!("sent {sent} times, no answer")),
        };
        let detail = format!("{} to {to}: {what} within {seconds:.1} s{why}", ask.request.name());
        Failure::new(code, detail)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The epoch of a server's map, if it has refused a request since it knows a newer one than the sender.
fn stale_by(failure: &Failure) -> Option<MapEpoch> {
    match failure.refusal {
        Some(Refusal::MapStale { epoch }) => Some(epoch),
        _ => None,
    }
}

/// What a refusal means by which a change is not known where its shard is, and a life of a server that had the shard has ended at `since`. One
/// that took several steps may have been done by then without a record of its outcome, and cannot simply be done once more.
fn was_not_done(ask: &Ask<'_>, to: &Target, since: Option<MapEpoch>, refusal: Failure) -> Failure {
    if ask.request.may_be_repeated() || since.is_some_and(|since| since <= ask.map_epoch) {
        return refusal;
    }
    let detail =
        format!("{} to {to}: a server that had this was started again while this was under way", ask.request.name());
    Failure::new(Code::UnknownOutcome, detail)
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.close();
    }
}

/// How often one request was sent, and the signs of life since.
#[derive(Default)]
struct History {
    sent: u32,
    /// The connections that it was sent over, each once.
    channels: Channels,
    /// How often it was sent over `conn` without that anything at all has come back.
    unheard: u32,
    conn: u64,
    heard: u64,
    /// It was sent, or was to be, to another server before.
    was_elsewhere: bool,
    /// Over this connection it was refused by a server that has the shard, as was found out then.
    has_it: Option<(u64, Located)>,
}

/// Connections in the order in which they were used. Nearly every request needs one only, and no memory for it.
#[derive(Default)]
struct Channels {
    first: Option<Arc<Channel>>,
    later: Vec<Arc<Channel>>,
}

/// Sends over one connection after which, if nothing at all has come back, the other end is taken
/// for dead: with pauses of 1 s, 2 s and 4 s that is 7 s, where TCP would take a quarter of an
/// hour, and more than a server needs that is merely busy.
const UNHEARD_SENDS_MAX: u32 = 3;

impl History {
    /// It is sent over this connection.
    fn reaches(&mut self, channel: &Arc<Channel>) {
        let Channels { first, later } = &mut self.channels;
        match later.last().or(first.as_ref()) {
            None => *first = Some(channel.clone()),
            Some(last) if last.id() != channel.id() => later.push(channel.clone()),
            Some(_) => {}
        }
    }

    /// Whether different lives of the server may have received it. One connection leads to one life; a connection that
    /// broke before the server's welcome, and one to a server that was starting, may lead to any.
    fn reached_several_lives(&self) -> bool {
        let life = |channel: &Arc<Channel>| channel.began().filter(|began| *began > MapEpoch(0));
        let Channels { first: Some(first), later } = &self.channels else { return false };
        later.iter().any(|other| life(first).is_none() || life(other) != life(first))
    }

    /// Whether a refusal leaves open that the change was done: an earlier life of the server may have done it, or another server.
    fn is_in_doubt(&self, ask: &Ask<'_>, failure: &Failure) -> bool {
        // A server refuses the request each time: its map is from before this life.
        self.sent > 1
            && stale_by(failure).is_some_and(|epoch| epoch > ask.map_epoch)
            && ask.request.is_change()
            && (self.was_elsewhere || self.reached_several_lives())
    }

    /// How long to wait before the next connection, if several have broken.
    fn pause(&self) -> Option<Duration> {
        let broken = self.channels.first.iter().len() + self.channels.later.len();
        let more = broken.checked_sub(BREAKS_AT_ONCE)?;
        Some(BREAK_PAUSE_MAX.min(BREAK_PAUSE_MIN * (1 << more.min(16))))
    }

    fn is_dead(&self, channel: &Channel) -> bool {
        self.unheard >= UNHEARD_SENDS_MAX && self.conn == channel.id() && self.heard == channel.frames_heard()
    }
}

/// The body of a request's frame: the encoding of an [`Envelope`](aze_proto::message::Envelope)
/// of borrowed parts.
fn encode(ask: &Ask<'_>) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::with_capacity(128);
    ask.identity.put(&mut body);
    ask.request.put(&mut body);
    let too_long = |bytes: usize, max: usize| {
        let detail = format!("{} of {bytes} bytes: a message has at most {max}", ask.request.name());
        Failure::new(Code::Limit, detail)
    };
    let body_bytes_max = HEAD_BYTES_MAX as usize - HEADER_BYTES;
    if body.len() > body_bytes_max {
        return Err(too_long(body.len(), body_bytes_max));
    }
    if ask.payload.len() > PAYLOAD_BYTES_MAX as usize {
        return Err(too_long(ask.payload.len(), PAYLOAD_BYTES_MAX as usize));
    }
    Ok(body)
}
