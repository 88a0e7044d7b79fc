//! The client as its users hold it, and what all of its parts share.

use crate::again::Again;
use crate::closes::Closes;
use crate::contact::Contacts;
use crate::dir_attrs::DirAttrs;
use crate::dirs::DirCache;
use crate::flight::Flight;
use crate::inodes::Inodes;
use crate::leases::Leases;
use crate::locks::LockOwners;
use crate::opened::Contents;
use crate::owed::Owed;
use crate::published::Entered;
use crate::route::{Routes, SeenToEnd};
use crate::share::Subscribed;
use crate::sync::Moves;
use crate::volume::LastSpace;
use crate::xattr::Attributed;
use aze_io::sync::RwLock;
use aze_io::{Addr, Io, Transport};
use aze_proto::handshake::Secret;
use aze_proto::message::Durability;
use aze_proto::{Attr, Code, Failure, Identity, Reply, Request, SessionId, ShardMap};
use aze_rpc::{Caller, Counters};
use futures_util::future::join_all;
use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long [`Client::close`] waits for a server to take note: one that does not will find out by
/// itself, so that the caller need not wait for it.
const END_SESSION_TIME_MAX: Duration = Duration::from_secs(1);

/// What a client must know of its volume and itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// The volume's name.
    pub volume: String,
    /// The volume's secret.
    pub secret: Secret,
    /// Servers to ask for the map: the name of their node and where they listen there, best first.
    pub seeds: Vec<(String, Vec<Addr>)>,
    /// This node's name: local sockets are used to servers on the same node only.
    pub host: String,
    /// Name of the job that is accounted, at most 255 bytes.
    pub job: String,
    /// How long one request is tried before it fails.
    pub deadline: Duration,
    /// How long a server is waited for that says that it is starting; see [`CallerConfig::start_time_max`].
    ///
    /// [`CallerConfig::start_time_max`]: aze_rpc::CallerConfig::start_time_max
    pub start_time_max: Duration,
    /// What may be used to servers on the same node.
    pub transport: Transport,
    /// What the volume keeps through a power cut, and so what fsync(2) and close(2) have to do.
    pub durability: Durability,
    /// The volume is kept in directories or files: a server that has ended may come back, and then knows how requests ended.
    pub lasts: bool,
}

/// One session with a volume. All operations are futures and may be dropped at any point; whether
/// a change then took effect is unknown.
///
/// Inode numbers stay valid for as long as the file exists, under any name. Failures that
/// every operation may have besides its own: [`Code::Unreachable`], [`Code::TimedOut`],
/// [`Code::UnknownOutcome`] after the configured deadline, and [`Code::Lost`] for data of a
/// server that has lost them.
pub struct Client {
    pub(crate) core: Arc<Core>,
}

/// What the client, its open files and its tasks share.
pub(crate) struct Core {
    pub(crate) me: Weak<Core>,
    pub(crate) io: Io,
    pub(crate) caller: Arc<Caller>,
    /// Name of the node.
    pub(crate) host: String,
    pub(crate) deadline: Duration,
    pub(crate) start_time_max: Duration,
    pub(crate) routes: RwLock<Arc<Routes>>,
    pub(crate) dirs: DirCache,
    pub(crate) dir_attrs: DirAttrs,
    pub(crate) inodes: Inodes,
    pub(crate) closes: Closes,
    pub(crate) contacts: Contacts,
    pub(crate) owed: Owed,
    pub(crate) leases: Leases,
    pub(crate) attributed: Attributed,
    pub(crate) lock_owners: LockOwners,
    pub(crate) flight: Flight,
    pub(crate) entered: Entered,
    pub(crate) contents: Arc<Contents>,
    pub(crate) again: Again,
    pub(crate) subscribed: Subscribed,
    /// What the volume promises.
    pub(crate) durability: Durability,
    /// See [`Config::lasts`].
    pub(crate) lasts: bool,
    pub(crate) seen_to_end: SeenToEnd,
    /// Start of the volume since which all names are known to be there, if they are synced.
    pub(crate) names_since: AtomicU32,
    pub(crate) moves: Moves,
    pub(crate) last_space: LastSpace,
    next_handle: AtomicU64,
}

impl Core {
    pub(crate) fn new(io: Io, caller: Arc<Caller>, config: &Config, map: Arc<ShardMap>) -> Arc<Core> {
        let (deadline, durability) = (config.deadline, config.durability);
        let names_since = AtomicU32::new(map.epoch.starts());
        let contents = Arc::new(Contents::new(map.shards()));
        let routes = RwLock::new(Arc::new(Routes::new(&io, map)));
        let subscribed = Subscribed::default();
        let inodes = Inodes::new(contents.clone(), subscribed.clone());
        let (dirs, closes) = (DirCache::default(), Closes::default());
        let (dir_attrs, leases) = (DirAttrs::default(), Leases::default());
        let (flight, lock_owners, entered) = (Flight::default(), LockOwners::default(), Entered::default());
        let next_handle = AtomicU64::new(1);
        Arc::new_cyclic(|me| Core {
            me: me.clone(),
            io,
            caller,
            host: config.host.clone(),
            deadline,
            start_time_max: config.start_time_max,
            routes,
            dirs,
            dir_attrs,
            inodes,
            closes,
            contacts: Contacts::default(),
            owed: Owed::default(),
            leases,
            attributed: Attributed::default(),
            lock_owners,
            flight,
            entered,
            contents,
            again: Again::default(),
            subscribed,
            durability,
            lasts: config.lasts,
            seen_to_end: SeenToEnd::default(),
            names_since,
            moves: Moves::default(),
            last_space: LastSpace::default(),
            next_handle,
        })
    }

    /// A number for an open: never given twice in this session.
    pub(crate) fn new_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs something in the background that needs the client.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, task: impl FnOnce(Arc<Core>) -> F) {
        self.io.spawn(task(self.clone()));
    }

    /// Takes attributes out of a reply, and lets open files know them.
    pub(crate) fn attributes(&self, asked: &Request, reply: Reply) -> Result<Attr, Failure> {
        match reply {
            Reply::Attributes { attr } => {
                self.inodes.learn(&attr);
                Ok(attr)
            }
            other => Err(unexpected(asked, &other)),
        }
    }
}

/// A reply of a kind that does not fit the request.
pub(crate) fn unexpected(asked: &Request, reply: &Reply) -> Failure {
    Failure::new(Code::Malformed, format!("a server answered {} with {}", asked.name(), reply.name()))
}

impl Client {
    /// The shard map as it is known now.
    pub fn map(&self) -> Arc<ShardMap> {
        self.core.routes.read().map.clone()
    }

    /// See [`aze_rpc::Caller::add_lane`].
    ///
    /// # Panics
    /// As there.
    pub fn add_lane(&self, lane: usize, io: Io) {
        self.core.caller.add_lane(lane, io);
    }

    /// This session.
    pub fn session(&self) -> SessionId {
        self.core.caller.session()
    }

    /// Requests sent so far.
    pub fn counters(&self) -> Counters {
        self.core.caller.counters()
    }

    /// Answers that were read where a server of this node lets its clients read them: no request was sent.
    pub fn answers_without_request(&self) -> u64 {
        self.core.entered.answers()
    }

    /// Most bytes of file data that were under way at one time.
    pub fn flight_peak_bytes(&self) -> usize {
        self.core.flight.peak_bytes()
    }

    /// Reports unreported changes and ends the session: its opens are dropped by the
    /// servers. Operations fail from now on.
    ///
    /// # Errors
    /// The first report that failed; the session has ended all the same.
    pub async fn close(&self) -> Result<(), Failure> {
        let core = &self.core;
        core.forget_opens();
        let reports =
            core.inodes.all().into_iter().map(|inode| async move { core.flush(&inode.opener(), &inode).await });
        let reported: Result<Vec<()>, Failure> = join_all(reports).await.into_iter().collect();
        // What a server cannot be told now is lost: the program has got an error.
        let _ = core.io.timeout(END_SESSION_TIME_MAX.min(core.deadline), core.send_owed()).await;
        let talked = core.routes.read().talked_to();
        let nobody = Identity::default();
        let ends = talked.into_iter().map(|server| core.ask_server(&nobody, server, &Request::EndSession));
        // A server that does not hear of it finds out by itself.
        let _ = core.io.timeout(END_SESSION_TIME_MAX.min(core.deadline), join_all(ends)).await;
        core.caller.close();
        reported.map(drop)
    }
}
