//! The only room that touches the world.
//!
//! It alone knows what a socket, a file, a clock, a page of memory, a random
//! number and a thread are. Everything above asks an [`Io`] for them, so that one
//! program runs against the real machine ([`real`]) or, in one thread and from
//! one seed, against a simulated one ([`sim`]). What the bytes that it moves
//! mean it deliberately does not know: that is `proto`'s secret.

pub mod backing;
pub mod claims;
pub mod defects;
pub mod disk;
pub mod logical;
pub mod mapped;
mod memory_file;
pub mod once;
pub mod published;
pub mod real;
mod shared_payload;
pub mod sim;
pub mod slab;
pub mod sync;
pub mod threads;
mod transport;

pub use shared_payload::SharedPayload;
pub use transport::Transport;

use claims::Claims;
use disk::{Dir, DiskResult};
use published::SharedWords;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A boxed task: what [`Io::spawn`] runs to its end.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A boxed future that borrows its maker.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where a server listens: `tcp:HOST:PORT` or `unix:PATH`; or `shm:PATH`, by which a client says
/// that it wants to talk through shared memory with the server that listens on the local socket.
///
/// The simulated network uses TCP addresses of the form `tcp:NODE:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Addr {
    /// Host (a name or a literal address) and port; port 0 asks for any free one.
    Tcp(String, u16),
    /// Path of a local stream socket; at most 107 bytes (unix(7)).
    Unix(String),
    /// The same path, for a connection through shared memory, or none at all. To listen on it is to
    /// listen on the local socket.
    Shm(String),
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Addr::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
            Addr::Unix(path) => write!(f, "unix:{path}"),
            Addr::Shm(path) => write!(f, "shm:{path}"),
        }
    }
}

impl std::str::FromStr for Addr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not an address: expected tcp:HOST:PORT, unix:PATH or shm:PATH");
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Addr::Unix(path.into())) };
        }
        if let Some(path) = text.strip_prefix("shm:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Addr::Shm(path.into())) };
        }
        let rest = text.strip_prefix("tcp:").ok_or_else(bad)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse() {
            Ok(port) if !host.is_empty() => Ok(Addr::Tcp(host.into(), port)),
            _ => Err(bad()),
        }
    }
}

/// Why a connection could not be made or used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetError {
    /// No server listens there, or the name is unknown; with the system's message.
    Unreachable(String),
    /// The connection ended: closed by the peer, reset, or cut.
    Closed(String),
    /// The peer sent what breaks a named limit.
    Limit(String),
    /// The address cannot be listened on.
    Listen(String),
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetError::Unreachable(why) | NetError::Closed(why) | NetError::Limit(why) | NetError::Listen(why) => {
                f.write_str(why)
            }
        }
    }
}

impl std::error::Error for NetError {}

/// One message as it came off the wire: two byte strings with their lengths kept apart,
/// so that bulk data comes into a buffer of its own.
#[derive(Debug, Default)]
pub struct Frame {
    /// Header and body, as `proto` encoded them.
    pub head: Vec<u8>,
    /// Bulk data; empty for most messages.
    pub payload: Vec<u8>,
    /// Where the bulk data are, if they were shared and are not in `payload`.
    pub shared: Option<Arc<SharedPayload>>,
    /// The bulk data, if they came into frames of a slab ([`Handler::receive_buffer`]) and are not in `payload`.
    pub in_frames: Option<slab::ReceivedFrames>,
}

impl Frame {
    /// Length of the bulk data, wherever they are.
    pub fn payload_bytes(&self) -> usize {
        match (&self.shared, &self.in_frames) {
            (Some(shared), _) => shared.len(),
            (None, Some(in_frames)) => in_frames.len(),
            (None, None) => self.payload.len(),
        }
    }

    /// Sets the payload, a buffer or frames.
    pub(crate) fn set_payload(&mut self, payload: slab::Payload) {
        match payload {
            slab::Payload::Bytes(bytes) => self.payload = bytes,
            slab::Payload::Frames(in_frames) => self.in_frames = Some(in_frames),
        }
    }

    /// The bulk data that came, in a buffer or in frames.
    pub fn take_payload(&mut self) -> slab::Payload {
        match self.in_frames.take() {
            Some(in_frames) => slab::Payload::Frames(in_frames),
            None => slab::Payload::Bytes(std::mem::take(&mut self.payload)),
        }
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Frame) -> bool {
        let shared = |frame: &Frame| frame.shared.as_ref().map(Arc::as_ptr);
        let is_here = self.in_frames.is_none() && other.in_frames.is_none();
        is_here && (&self.head, &self.payload, shared(self)) == (&other.head, &other.payload, shared(other))
    }
}

/// The largest frame a connection accepts, in bytes; a larger one ends the connection
/// before any memory is set aside for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Longest head.
    pub head_bytes_max: u32,
    /// Longest payload.
    pub payload_bytes_max: u32,
}

/// Who the system says the other end of a local socket is (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id of the peer when it connected.
    pub uid: u32,
    /// Effective group id of the peer when it connected.
    pub gid: u32,
    /// Process id of the peer.
    pub pid: i32,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// For messages to people.
    pub name: String,
    /// Present on local sockets only.
    pub credentials: Option<Credentials>,
}

/// One end of an established connection that carries whole frames in both directions.
///
/// The real one is reliable and ordered until it closes. The simulated one may lose, delay,
/// duplicate and reorder frames; users of connections must be correct with both.
pub trait Connection: Send + Sync {
    /// Sends one frame: `head`, and the concatenation of `payload`. Never blocks: bytes that the
    /// socket does not take at once are copied, and a thread that drives the runtime sends them later.
    ///
    /// # Errors
    /// [`NetError::Closed`] when the connection has ended; [`NetError::Limit`] when more than
    /// [`SEND_QUEUE_BYTES_MAX`] bytes wait to be taken by the peer (the connection is then closed).
    fn send(&self, head: &[u8], payload: &[&[u8]]) -> Result<(), NetError>;

    /// As [`Connection::send`], where `payload` is known to lie in frames of a slab, which are in `held`
    /// again: a peer that can read that memory may be told where they are instead, and they are kept for it.
    ///
    /// # Errors
    /// As [`Connection::send`].
    fn send_held(
        &self,
        head: &[u8],
        payload: &[&[u8]],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) -> Result<(), NetError> {
        let _ = held;
        self.send(head, payload)
    }

    /// Closes both directions; the handler's `on_close` follows on both ends. Idempotent.
    fn close(&self);

    /// The other end.
    fn peer(&self) -> &Peer;

    /// Changes the limits for frames received from now on. A new connection has
    /// [`LIMITS_BEFORE_HANDSHAKE`].
    fn set_limits(&self, limits: FrameLimits);

    /// A number unique among the connections of this world.
    fn id(&self) -> u64;

    /// Lets the other end read a published index of this one, if the two share memory. For new connections,
    /// before anything is sent.
    fn offer(&self, published: &Arc<published::Writer>);

    /// The published index that the other end has offered, if there is one.
    fn offered(&self) -> Option<SharedWords>;

    /// What the end that opened this connection notes for the other one, if the two share memory and a published index
    /// was offered.
    fn claims(&self) -> Option<Claims>;

    /// Whether the process at the other end still holds the connection at this moment. Exact for
    /// connections over which a published index was offered; for others it is as this end has last noticed.
    fn is_held(&self) -> bool;

    /// The process that listens at the other end, where this end opened the connection and the two are on one
    /// machine. It may be asked of after the connection has ended.
    fn process(&self) -> Option<Arc<dyn Process>>;
}

/// Another process of this machine.
pub trait Process: Send + Sync {
    /// Whether it has ended: it runs no instruction any more, and holds no connection.
    fn has_ended(&self) -> bool;

    /// The descriptor by which the system tells of its end (pidfd_open(2)); none in the simulation.
    fn descriptor(&self) -> Option<&OwnedFd> {
        None
    }
}

/// Bytes that may wait in one connection's send queue. A peer that reads so slowly that more
/// would have to be kept is cut off, since memory is the only other place to keep them.
pub const SEND_QUEUE_BYTES_MAX: usize = 256 << 20;

/// A payload may go to frames from this size on: it has to fill one at least.
pub const FRAMES_PAYLOAD_BYTES_MIN: usize = slab::BASE_BYTES;

/// What a peer may send before it has proven anything: enough for a handshake, no more.
pub const LIMITS_BEFORE_HANDSHAKE: FrameLimits = FrameLimits { head_bytes_max: 4096, payload_bytes_max: 0 };

/// Handles the frames of one connection. Called by a thread that drives the runtime, one frame at a time and in the
/// order received; must not block. A slow answer belongs in a task.
pub trait Handler: Send + Sync {
    /// Says where a frame's payload shall go, once its head has come; `None`: to a buffer. Asked once for each frame
    /// with a payload of at least [`FRAMES_PAYLOAD_BYTES_MIN`], after `on_frame` for the one before it. If the
    /// connection ends before the payload is there, no call for the frame follows.
    fn receive_buffer(
        &self,
        conn: &Arc<dyn Connection>,
        head: &[u8],
        payload_bytes: usize,
    ) -> Option<slab::ReceiveBuffer> {
        let _ = (conn, head, payload_bytes);
        None
    }
    /// A frame arrived.
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame);
    /// The connection ended; called exactly once, and no frame follows.
    fn on_close(&self, conn: &Arc<dyn Connection>, why: NetError);
}

/// Handles new connections of a listener.
pub trait Acceptor: Send + Sync {
    /// Gives the handler for a connection that was just accepted.
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler>;
}

/// A listening socket; dropping it stops listening and removes a unix socket's path.
pub trait Listener: Send + Sync {
    /// The address with the port that was given.
    fn addr(&self) -> &Addr;
}

/// Everything the program may ask of the world. Implemented by [`real::Runtime`] and [`sim::Node`].
pub trait World: Send + Sync {
    /// Nanoseconds of a clock that never steps back; its zero means nothing.
    fn mono_ns(&self) -> u64;
    /// Nanoseconds since 1970-01-01 UTC; may step either way.
    fn wall_ns(&self) -> u64;
    /// Fills `bytes` with random bytes; in the real world fit for secrets.
    fn fill_random(&self, bytes: &mut [u8]);
    /// Starts a task.
    fn spawn(&self, task: Task);
    /// Arranges for `waker` to be woken once `mono_ns` has reached `deadline_ns`.
    fn wake_at(&self, deadline_ns: u64, waker: Waker) -> TimerId;
    /// Forgets a timer; one that has fired is ignored.
    fn cancel_timer(&self, timer: TimerId);
    /// Opens a connection; frames go to `handler`. Resolves when the connection stands.
    fn connect<'a>(
        &'a self,
        addr: &'a Addr,
        handler: Arc<dyn Handler>,
    ) -> Boxed<'a, Result<Arc<dyn Connection>, NetError>>;
    /// Listens on `addr` until the listener is dropped.
    fn listen(&self, addr: &Addr, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, NetError>;
    /// So many words, all zero, which other processes of this node can be let read; `None` if the
    /// system has none to give.
    fn share(&self, words: usize) -> Option<SharedWords>;
    /// From now on other processes on the same node may read this slab, where the world has such.
    fn share_slab(&self, slab: &Arc<slab::Slab>) {
        let _ = slab;
    }
    /// The values of [`Io::only_once`]; `None`: each process has its own.
    fn once(&self) -> Option<&once::Once> {
        None
    }
    /// Opens a directory of this node for persistent storage; it is made if it is not there.
    fn open_dir<'a>(&'a self, path: &'a str) -> Boxed<'a, DiskResult<Arc<dyn Dir>>>;
}

/// Names one timer of one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerId {
    /// When it is due.
    pub deadline_ns: u64,
    /// Tells apart timers that are due at the same time.
    pub serial: u64,
}

/// A handle on the world, cheap to clone: all parts that need anything from outside have one.
#[derive(Clone)]
pub struct Io(Arc<dyn World>);

impl Io {
    /// Wraps a world.
    pub fn new(world: Arc<dyn World>) -> Self {
        Io(world)
    }

    /// See [`World::mono_ns`].
    pub fn mono_ns(&self) -> u64 {
        self.0.mono_ns()
    }

    /// See [`World::wall_ns`].
    pub fn wall_ns(&self) -> u64 {
        self.0.wall_ns()
    }

    /// Sixty-four random bits.
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill_random(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// See [`World::fill_random`].
    pub fn fill_random(&self, bytes: &mut [u8]) {
        self.0.fill_random(bytes);
    }

    /// See [`World::spawn`].
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Callers have noted already that a task does what others wait for.
        defects::vital(|| self.0.spawn(Box::pin(task)));
    }

    /// Resolves after `delay`.
    pub fn sleep(&self, delay: Duration) -> Sleep {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.sleep_until(self.mono_ns().saturating_add(delay_ns))
    }

    /// Resolves once the monotonic clock has reached `deadline_ns`.
    pub fn sleep_until(&self, deadline_ns: u64) -> Sleep {
        Sleep { io: self.clone(), deadline_ns, timer: None }
    }

    /// The result of `work`, or `None` if it took longer than `limit` (the work is dropped).
    pub async fn timeout<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        use futures_util::future::{Either, select};
        let work = std::pin::pin!(work);
        match select(work, self.sleep(limit)).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    /// See [`World::connect`].
    pub async fn connect(&self, addr: &Addr, handler: Arc<dyn Handler>) -> Result<Arc<dyn Connection>, NetError> {
        self.0.connect(addr, handler).await
    }

    /// A value that cannot change and that many processes have alike. Those of a simulated world, which are one process, have it once;
    /// elsewhere it is given back.
    pub fn only_once<T: Any + PartialEq + Send + Sync>(&self, value: Arc<T>) -> Arc<T> {
        match self.0.once() {
            Some(once) => once.get(value),
            None => value,
        }
    }

    /// See [`World::share`].
    pub fn share(&self, words: usize) -> Option<SharedWords> {
        self.0.share(words)
    }

    /// See [`World::share_slab`].
    pub fn share_slab(&self, slab: &Arc<slab::Slab>) {
        self.0.share_slab(slab);
    }

    /// See [`World::open_dir`].
    pub async fn open_dir(&self, path: &str) -> DiskResult<Arc<dyn Dir>> {
        self.0.open_dir(path).await
    }

    /// See [`World::listen`].
    pub fn listen(&self, addr: &Addr, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, NetError> {
        self.0.listen(addr, acceptor)
    }
}

/// The future of [`Io::sleep`]; dropping it cancels the timer.
pub struct Sleep {
    io: Io,
    deadline_ns: u64,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = self.timer.take() {
            self.io.0.cancel_timer(timer);
        }
        if self.io.mono_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        self.timer = Some(self.io.0.wake_at(self.deadline_ns, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.io.0.cancel_timer(timer);
        }
    }
}
