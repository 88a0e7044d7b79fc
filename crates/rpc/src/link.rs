//! Connections of the asking side: one to each server, opened when first needed.
//!
//! It alone knows when a connection is opened, how it proves itself, when it is given up and when
//! it is tried again. What travels over it, it only pairs: a reply's number with a call.

mod handler;
mod open;

use crate::caller::CallerConfig;
use crate::calls::{Call, Calls};
use crate::{HANDSHAKE_TIME_MAX, Target};
use aze_io::claims::Claims;
use aze_io::published::Reader;
use aze_io::sync::Mutex;
use aze_io::{Connection, Io, Process};
use aze_proto::frame::FrameKey;
use aze_proto::limits::{SESSION_GRACE_MS, WIRE_VERSION};
use aze_proto::{Code, Failure, MapEpoch, ServerIndex, ShardId, Time};
use handler::LinkHandler;
use open::keep_opening;
use std::collections::BTreeMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a server that is known to be down is tried at least: some attempts to connect.
const DOWN_PATIENCE: Duration = Duration::from_secs(1);
/// How often it is told at most that a server cannot be connected to.
const TELL_EVERY_NS: u64 = 1_000_000_000;
/// How often silence and deadlines are looked after while calls are in flight.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// One lane of a caller: the state that it shares with the handlers of its connections.
pub(crate) struct Core {
    pub(crate) io: Io,
    pub(crate) whole: Arc<Whole>,
    pub(crate) calls: Calls,
    links: Mutex<Links>,
}

/// What all lanes of a caller share.
pub(crate) struct Whole {
    pub(crate) config: CallerConfig,
    pub(crate) seen_time: AtomicU64,
    pub(crate) seen_elsewhere: OnceLock<Box<SeenElsewhere>>,
    pub(crate) reconnects: AtomicU64,
    pub(crate) on_end: OnceLock<Box<OnEnd>>,
    pub(crate) on_unreachable: OnceLock<Box<OnEnd>>,
    pub(crate) on_back: OnceLock<Box<OnEnd>>,
    pub(crate) on_links_changed: OnceLock<Box<OnLinksChanged>>,
    pub(crate) locate: OnceLock<Box<Locate>>,
    pub(crate) on_far: Mutex<Option<Box<OnFar>>>,
}

/// Says which server has a shard now, after a server has refused a request by a map of this epoch, or is there no more (0).
pub type Locate =
    dyn Fn(ShardId, Target, MapEpoch) -> Pin<Box<dyn Future<Output = Option<Located>> + Send>> + Send + Sync;

/// Which server has a shard.
#[derive(Clone, Debug)]
pub struct Located {
    /// The server.
    pub server: Target,
    /// When a life of a server that had the shard has ended last, as the epoch at which the next one began.
    pub since: MapEpoch,
    /// The map that says so.
    pub epoch: MapEpoch,
}

/// Is told of a server whose process has ended, or that cannot be connected to.
pub type OnEnd = dyn Fn(&Target) + Send + Sync;

/// Gives the largest time that others have seen for whom this process asks.
pub type SeenElsewhere = dyn Fn() -> Time + Send + Sync;

/// Is told that a connection stands, or that one does not any more.
pub type OnLinksChanged = dyn Fn() + Send + Sync;

/// Is told, once, that a server is far away.
pub type OnFar = dyn FnOnce() + Send;

/// A server that takes longer to take a connection, or to answer a greeting, is far away: within a cluster that takes a
/// tenth of it.
const FAR_MIN: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Links {
    closed: bool,
    by_server: BTreeMap<ServerIndex, Link>,
}

struct Link {
    target: Target,
    state: State,
    /// A connection that broke is opened again without being asked for until then, so that the
    /// server does not take the session for dead.
    keep_until_ns: u64,
    /// The last connection broke, and none has stood since.
    was_lost: bool,
    /// Why the last attempt failed, for messages.
    last_error: String,
    /// Since when attempts have failed, if the last one did.
    down_since_ns: Option<u64>,
    /// When that was told last.
    told_ns: Option<u64>,
    /// The target's process, as soon as there was a connection to it, if it is on this machine.
    process: Option<Arc<dyn Process>>,
}

enum State {
    /// No call needs it.
    Idle,
    /// A task tries to connect.
    Opening,
    Up(Arc<Channel>),
}

/// An established connection.
pub(crate) struct Channel {
    conn: Arc<dyn Connection>,
    key_out: Option<FrameKey>,
    handler: Arc<LinkHandler>,
    published: Option<Reader>,
    claims: Option<Claims>,
}

impl Channel {
    /// See [`Connection::id`].
    pub(crate) fn id(&self) -> u64 {
        self.conn.id()
    }

    /// The version of its frames.
    pub(crate) fn version(&self) -> u8 {
        // A channel is made when the handshake is over.
        self.handler.open.get().map_or(WIRE_VERSION, |open| open.version)
    }

    /// Key of outgoing frames.
    pub(crate) fn key(&self) -> Option<&FrameKey> {
        self.key_out.as_ref()
    }

    /// When the life of the server began to which the connection leads: 0 if it was starting, `None` until its welcome
    /// has come.
    pub(crate) fn began(&self) -> Option<MapEpoch> {
        self.handler.began.get().copied()
    }

    /// Sends a sealed frame; `false` if the connection has ended.
    pub(crate) fn send(&self, head: &[u8], payload: &[u8]) -> bool {
        let parts = [payload];
        self.conn.send(head, if payload.is_empty() { &[] } else { &parts }).is_ok()
    }

    /// What the server lets this process read.
    pub(crate) fn published(&self) -> Option<&Reader> {
        self.published.as_ref()
    }

    /// What this process notes for the server.
    pub(crate) fn claims(&self) -> Option<&Claims> {
        self.claims.as_ref()
    }

    /// See [`Connection::is_held`].
    pub(crate) fn is_held(&self) -> bool {
        self.conn.is_held()
    }

    /// See [`Connection::process`].
    pub(crate) fn process(&self) -> Option<Arc<dyn Process>> {
        self.conn.process()
    }

    /// How many frames have come so far.
    pub(crate) fn frames_heard(&self) -> u64 {
        self.handler.frames_heard.load(Ordering::Relaxed)
    }
}

impl Whole {
    pub(crate) fn new(config: CallerConfig) -> Arc<Whole> {
        let (on_end, on_far) = (OnceLock::new(), Mutex::default());
        let (on_unreachable, on_back, locate) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let (seen_time, reconnects) = (AtomicU64::new(0), AtomicU64::new(0));
        let (seen_elsewhere, on_links_changed) = (OnceLock::new(), OnceLock::new());
        Arc::new(Whole {
            config,
            seen_time,
            seen_elsewhere,
            reconnects,
            on_end,
            on_unreachable,
            on_back,
            on_links_changed,
            locate,
            on_far,
        })
    }

    /// Moves the hybrid clock.
    pub(crate) fn observe_time(&self, time: Time) {
        if time.0 > self.seen_time.load(Ordering::Relaxed) {
            self.seen_time.fetch_max(time.0, Ordering::Relaxed);
        }
    }

    /// The largest time seen, here and by those for whom this process asks.
    pub(crate) fn latest_time(&self) -> Time {
        let elsewhere = self.seen_elsewhere.get().map_or(0, |seen| seen().0);
        Time(self.seen_time.load(Ordering::Relaxed).max(elsewhere))
    }

    /// A connection stands from now on, or does not any more.
    fn links_changed(&self) {
        self.on_links_changed.get().inspect(|told| told());
    }
}

impl Core {
    pub(crate) fn new(io: Io, whole: Arc<Whole>) -> Arc<Core> {
        Arc::new(Core { io, whole, calls: Calls::default(), links: Mutex::default() })
    }

    /// Enters a call; gives the connection to send it over, or else has one opened, which the
    /// call will be told of.
    pub(crate) fn begin(
        self: &Arc<Self>,
        target: &Target,
        is_change: bool,
        now_ns: u64,
        deadline_ns: u64,
    ) -> Result<(Call<'_>, Option<Arc<Channel>>), Failure> {
        // Both locks at once, so that a connection that comes up meanwhile is not missed.
        let mut links = self.links.lock();
        let (channel, open) = links.channel(target)?;
        let conn = channel.as_ref().map_or(0, |channel| channel.id());
        let (call, sweep) = self.calls.begin(target.index, conn, is_change, now_ns, deadline_ns)?;
        drop(links);
        if open {
            self.spawn_opener(target.index);
        }
        if sweep {
            self.spawn_sweeper();
        }
        Ok((call, channel))
    }

    /// Opens a connection that no call needs yet.
    pub(crate) fn prepare(self: &Arc<Self>, target: &Target) {
        let mut links = self.links.lock();
        let Ok((None, true)) = links.channel(target) else { return };
        let link = links.by_server.get_mut(&target.index).expect("it was entered just now");
        link.keep_until_ns = self.io.mono_ns() + HANDSHAKE_TIME_MAX.as_nanos() as u64;
        drop(links);
        self.spawn_opener(target.index);
    }

    /// A server took so long to take a connection, or to answer the greeting.
    fn connected_within(&self, time: Duration) {
        if time >= FAR_MIN
            && let Some(tell) = self.whole.on_far.lock().take()
        {
            tell();
        }
    }

    /// The connection to a server, if it stands.
    pub(crate) fn standing(&self, target: &Target) -> Option<Arc<Channel>> {
        let links = self.links.lock();
        match links.by_server.get(&target.index).map(|link| (&link.target, &link.state)) {
            Some((known, State::Up(channel))) if known == target && !links.closed => Some(channel.clone()),
            _ => None,
        }
    }

    /// The connection to send a call over once more.
    pub(crate) fn again(self: &Arc<Self>, target: &Target, call: &Call<'_>) -> Result<Option<Arc<Channel>>, Failure> {
        let mut links = self.links.lock();
        let (channel, open) = links.channel(target)?;
        call.sent_over(channel.as_ref().map_or(0, |channel| channel.id()));
        drop(links);
        if open {
            self.spawn_opener(target.index);
        }
        Ok(channel)
    }

    /// How long to try a server. A call to a server that earlier calls have tried in vain need not wait as long as
    /// those, but for a moment, in case the server has come back.
    pub(crate) fn patience(&self, target: &Target, deadline: Duration) -> Duration {
        let links = self.links.lock();
        let down_since_ns = links.by_server.get(&target.index).filter(|link| link.target == *target);
        match down_since_ns.and_then(|link| link.down_since_ns) {
            None => deadline,
            Some(since_ns) => {
                let down = Duration::from_nanos(self.io.mono_ns().saturating_sub(since_ns));
                deadline.saturating_sub(down).max(DOWN_PATIENCE).min(deadline)
            }
        }
    }

    /// Why a server could not be reached the last time it was tried.
    pub(crate) fn last_error(&self, index: ServerIndex) -> String {
        self.links.lock().by_server.get(&index).map(|link| link.last_error.clone()).unwrap_or_default()
    }

    /// Closes the connection to a server, if it is `only` (or any), and opens a new one.
    pub(crate) fn disconnect(self: &Arc<Self>, index: ServerIndex, only: Option<u64>) {
        let mut links = self.links.lock();
        let Some(link) = links.by_server.get_mut(&index) else { return };
        let State::Up(channel) = &link.state else { return };
        if only.is_some_and(|id| id != channel.id()) {
            return;
        }
        let channel = channel.clone();
        // Opened again also without a waiting call: the session lives by its connections.
        link.state = State::Opening;
        link.keep_until_ns = self.io.mono_ns() + SESSION_GRACE_MS * 1_000_000;
        drop(links);
        self.whole.links_changed();
        channel.conn.close();
        self.spawn_opener(index);
    }

    /// Closes the connection to a server for good. Calls in flight there end with `failure`.
    pub(crate) fn leave(&self, index: ServerIndex, failure: &Failure) {
        // A task that opens one ends by itself.
        if let Some(link) = self.links.lock().by_server.remove(&index)
            && let State::Up(channel) = link.state
        {
            channel.conn.close();
        }
        self.whole.links_changed();
        self.calls.broken(Some(index), failure);
    }

    /// The process of a server has ended, in the life that `target` names: see [`crate::Caller::ended`].
    pub(crate) fn ended(&self, target: &Target, why: &str, sent_wait: bool) {
        self.whole.links_changed();
        // No call to its next life is entered meanwhile.
        let mut links = self.links.lock();
        let Some(link) = links.by_server.get_mut(&target.index).filter(|link| link.target.life == target.life) else {
            return;
        };
        link.last_error = why.to_owned();
        let failure = Failure::new(Code::Unreachable, format!("{target}: {why}"));
        self.calls.ended(target.index, &failure, sent_wait);
    }

    /// Ends everything: calls in flight fail.
    pub(crate) fn close(&self) {
        let mut links = self.links.lock();
        links.closed = true;
        let all = std::mem::take(&mut links.by_server);
        drop(links);
        self.whole.links_changed();
        for link in all.into_values() {
            if let State::Up(channel) = link.state {
                channel.conn.close();
            }
        }
        self.calls.broken(None, &closed());
    }

    fn spawn_sweeper(self: &Arc<Self>) {
        let core = self.clone();
        self.io.spawn(async move {
            loop {
                core.io.sleep(SWEEP_INTERVAL).await;
                if !core.calls.sweep(core.io.mono_ns()) {
                    return;
                }
            }
        });
    }

    fn spawn_opener(self: &Arc<Self>, index: ServerIndex) {
        self.io.spawn(keep_opening(Arc::downgrade(self), self.io.clone(), index));
    }

    /// Where to connect to, as long as a call or the session needs the connection.
    fn wanted(&self, index: ServerIndex) -> Option<Target> {
        let mut links = self.links.lock();
        let link = links.by_server.get_mut(&index)?;
        if self.calls.any_for(index) || self.io.mono_ns() < link.keep_until_ns {
            return Some(link.target.clone());
        }
        link.state = State::Idle;
        None
    }

    /// Puts a new connection to use; `false` if it has ended already.
    fn install(&self, index: ServerIndex, channel: Channel) -> bool {
        let id = channel.id();
        let back = {
            let mut links = self.links.lock();
            let Some(link) = links.by_server.get_mut(&index) else {
                channel.conn.close();
                return true;
            };
            // The handler says so before it looks at the link: one of the two sees the other.
            if channel.handler.ended.load(Ordering::SeqCst) {
                link.last_error = "the connection ended right after the handshake".into();
                return false;
            }
            if channel.handler.target == link.target {
                link.process = channel.conn.process();
            }
            link.state = State::Up(Arc::new(channel));
            link.last_error.clear();
            link.down_since_ns = None;
            mem::take(&mut link.was_lost).then(|| link.target.clone())
        };
        self.whole.links_changed();
        self.calls.connected(index, id, self.io.mono_ns());
        if let (Some(target), Some(tell)) = (back, self.whole.on_back.get()) {
            tell(&target);
        }
        true
    }

    fn failed(&self, index: ServerIndex, why: String) {
        let (ended, unreachable) = {
            let mut links = self.links.lock();
            let Some(link) = links.by_server.get_mut(&index) else { return };
            link.last_error = why;
            let now_ns = self.io.mono_ns();
            link.down_since_ns.get_or_insert(now_ns);
            let is_news = link.told_ns.is_none_or(|told_ns| now_ns >= told_ns + TELL_EVERY_NS);
            let unreachable = is_news.then(|| {
                link.told_ns = Some(now_ns);
                link.target.clone()
            });
            // Told once.
            (link.process.take_if(|process| process.has_ended()).map(|_| link.target.clone()), unreachable)
        };
        if let Some(target) = unreachable {
            self.whole.on_unreachable.get().inspect(|tell| tell(&target));
        }
        if let Some(target) = ended {
            self.whole.on_end.get().inspect(|tell| tell(&target));
        }
    }

    /// There is no sense in trying again.
    fn give_up(&self, index: ServerIndex, failure: Failure) {
        if let Some(link) = self.links.lock().by_server.get_mut(&index) {
            link.state = State::Idle;
            link.keep_until_ns = 0;
        }
        self.calls.broken(Some(index), &failure);
    }

    /// A connection ended by itself: opens another.
    fn lost(self: &Arc<Self>, index: ServerIndex, conn: u64) {
        let mut links = self.links.lock();
        let Some(link) = links.by_server.get_mut(&index) else { return };
        if !matches!(&link.state, State::Up(channel) if channel.id() == conn) {
            return;
        }
        link.state = State::Opening;
        link.keep_until_ns = self.io.mono_ns() + SESSION_GRACE_MS * 1_000_000;
        link.was_lost = true;
        drop(links);
        self.whole.links_changed();
        self.whole.reconnects.fetch_add(1, Ordering::Relaxed);
        self.spawn_opener(index);
    }
}

impl Links {
    /// The connection to a server, if there is one; the second value says that one has to be opened.
    fn channel(&mut self, target: &Target) -> Result<(Option<Arc<Channel>>, bool), Failure> {
        if self.closed {
            return Err(closed());
        }
        if let Some(link) = self.by_server.get_mut(&target.index) {
            if let State::Up(channel) = &link.state {
                return Ok((Some(channel.clone()), false));
            }
            if link.target != *target {
                link.target = target.clone();
                link.down_since_ns = None;
                link.process = None;
            }
            let idle = matches!(link.state, State::Idle);
            link.state = State::Opening;
            return Ok((None, idle));
        }
        let link = Link {
            target: target.clone(),
            state: State::Opening,
            keep_until_ns: 0,
            was_lost: false,
            last_error: String::new(),
            down_since_ns: None,
            told_ns: None,
            process: None,
        };
        self.by_server.insert(target.index, link);
        Ok((None, true))
    }
}

fn closed() -> Failure {
    Failure::new(Code::Expired, "this process has ended its session")
}
