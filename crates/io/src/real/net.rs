//! Listening, accepting and connecting.
//!
//! It alone knows how an [`Addr`] becomes a socket: name resolution, stale paths of local
//! sockets, connection attempts that take their time. What then flows it leaves to
//! [`super::conn`].

use std::fs;
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Poll, Wake, Waker};

use crate::sync::Mutex;
use futures_channel::oneshot;

use super::attend::ATTENDED_IDLE_MS;
use super::conn::{self, Side};
use super::drive::ALONE_MS;
use super::reactor::{Reactor, Source, Work};
use super::shm::upgrade;
use super::sys;
use crate::{Acceptor, Addr, Connection, Credentials, Handler, Listener, NetError, Peer};

/// Connections that may wait to be accepted; more are refused or tried again by their system.
const BACKLOG: i32 = 4096;

/// Connections accepted in a row before others get their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// How long accepting pauses when the process has no file descriptor or memory left for more.
const ACCEPT_RETRY_NS: u64 = 100_000_000;

/// Descriptors that accepted connections leave free: a quarter of the process's limit, at most this many.
const RESERVED_MAX: u64 = 256;

/// How long to wait before trying a local listener again whose backlog is full.
const UNIX_RETRY_NS: u64 = 1_000_000;

/// How often a local listener with a full backlog is tried: some five seconds.
const UNIX_TRIES_MAX: u32 = 5_000;

/// Send buffer asked for on local sockets, in bytes: a frame of 1 MiB goes in one call. The
/// kernel's default of 208 KiB makes sender and reader wake each other several times.
const UNIX_SEND_BUFFER_BYTES: i32 = 1 << 20;

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A listening socket as the reactor sees it.
pub(super) struct ListenSocket {
    token: u64,
    socket: Socket,
    fd: OwnedFd,
    addr: Addr,
    /// Device and inode of the local socket's path, to remove no other.
    inode: Option<(u64, u64)>,
    acceptor: Arc<dyn Acceptor>,
    reactor: Arc<Reactor>,
    closed: AtomicBool,
}

/// The owner's handle of a listening socket.
struct Listening(Arc<ListenSocket>);

impl Listener for Listening {
    fn addr(&self) -> &Addr {
        &self.0.addr
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// See [`crate::World::listen`]. Blocks while a host name is resolved.
pub(super) fn listen(
    reactor: &Arc<Reactor>,
    addr: &Addr,
    acceptor: Arc<dyn Acceptor>,
) -> Result<Box<dyn Listener>, NetError> {
    let failed = |error: Error| NetError::Listen(format!("cannot listen on {addr}: {error}"));
    let (socket, addr, inode) = match addr {
        Addr::Tcp(host, port) => {
            // std sets SO_REUSEADDR, so that a restarted server gets its port back at once.
            let socket = TcpListener::bind((host.as_str(), *port)).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let port = socket.local_addr().map_err(failed)?.port();
            (Socket::Tcp(socket), Addr::Tcp(host.clone(), port), None)
        }
        Addr::Unix(path) | Addr::Shm(path) => {
            let socket = bind_unix(path).map_err(failed)?;
            // A connection that finds the queue full is refused at once instead of after a timeout.
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            let meta = fs::symlink_metadata(path).map_err(failed)?;
            (Socket::Unix(socket), addr.clone(), Some((meta.dev(), meta.ino())))
        }
    };
    let fd = match &socket {
        Socket::Tcp(socket) => socket.as_fd().try_clone_to_owned(),
        Socket::Unix(socket) => socket.as_fd().try_clone_to_owned(),
    };
    let fd = fd.map_err(failed)?;
    sys::listen(&fd, BACKLOG).map_err(failed)?;
    let token = reactor.new_token();
    let closed = AtomicBool::new(false);
    let listener =
        Arc::new(ListenSocket { token, socket, fd, addr, inode, acceptor, reactor: reactor.clone(), closed });
    // Made first: it cleans up if registering fails.
    let listening = Box::new(Listening(listener.clone()));
    reactor.register(token, &listener.fd, libc::EPOLLIN, Source::Listen(listener.clone())).map_err(failed)?;
    Ok(listening)
}

/// Binds a local socket, replacing the path that a dead listener left behind.
fn bind_unix(path: &str) -> std::io::Result<UnixListener> {
    let taken = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => error,
        bound => return bound,
    };
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    // After any other error a process may listen there.
    let is_stale =
        is_socket && sys::connect_unix(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if !is_stale {
        return Err(taken);
    }
    fs::remove_file(path)?;
    UnixListener::bind(path)
}

impl ListenSocket {
    /// Accepts what waits. Several threads may at once; the kernel gives each its own.
    pub(super) fn accept_all(self: &Arc<Self>) {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.closed.load(SeqCst) {
                return;
            }
            match self.accept() {
                Ok((socket, peer)) => {
                    let conn = conn::new(&self.reactor, socket, peer, Side::Accepted);
                    let handler = self.acceptor.accept(&(conn.clone() as Arc<dyn Connection>));
                    conn.start(handler);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_exhaustion(&error) => {
                    let retry_ns = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(ACCEPT_RETRY_NS);
                    self.reactor.timers.add(retry_ns, Waker::from(self.clone()));
                    return;
                }
                // The one connection failed before it was accepted (accept(2)).
                Err(_) => {}
            }
        }
        self.reactor.enqueue(Work::Accept(self.clone()));
    }

    fn accept(&self) -> std::io::Result<(OwnedFd, Peer)> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, from) = socket.accept()?;
                stream.set_nodelay(true)?;
                let name = Addr::Tcp(from.ip().to_string(), from.port()).to_string();
                let fd = not_reserved(OwnedFd::from(stream))?;
                sys::let_wait(&fd, ATTENDED_IDLE_MS)?;
                Ok((fd, Peer { name, credentials: None }))
            }
            Socket::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                let fd = not_reserved(OwnedFd::from(stream))?;
                sys::set_send_buffer(&fd, UNIX_SEND_BUFFER_BYTES);
                let who = sys::credentials(&fd)?;
                Ok((fd, unix_peer(&self.addr, who)))
            }
        }
    }

    /// Stops listening and removes the path. Idempotent.
    pub(super) fn close(&self) {
        if self.closed.swap(true, SeqCst) {
            return;
        }
        // Ends it even while another thread still holds the descriptor.
        sys::shutdown(&self.fd);
        self.reactor.deregister(self.token, &self.fd);
        if let Addr::Unix(path) | Addr::Shm(path) = &self.addr {
            let now = fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
            if now == self.inode {
                // Without the right to remove it, it stays as a stale path, which the next
                // listener replaces.
                drop(fs::remove_file(path));
            }
        }
    }
}

/// Closes an accepted connection that would take one of the reserved descriptors: storage and the connections between
/// servers need them.
fn not_reserved(fd: OwnedFd) -> std::io::Result<OwnedFd> {
    let limit = sys::descriptors_max();
    // The system has given it the lowest free number.
    let is_one_of_the_last = fd.as_raw_fd() as u64 >= limit - (limit / 4).min(RESERVED_MAX);
    if is_one_of_the_last { Err(Error::from_raw_os_error(libc::EMFILE)) } else { Ok(fd) }
}

fn is_exhaustion(error: &Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

impl Wake for ListenSocket {
    fn wake(self: Arc<Self>) {
        self.reactor.clone().enqueue(Work::Accept(self));
    }
}

fn unix_peer(addr: &Addr, who: Credentials) -> Peer {
    Peer { name: format!("{addr} (process {}, user {})", who.pid, who.uid), credentials: Some(who) }
}

/// See [`crate::World::connect`].
pub(super) async fn connect(
    reactor: &Arc<Reactor>,
    addr: &Addr,
    handler: Arc<dyn Handler>,
) -> Result<Arc<dyn Connection>, NetError> {
    let failed = |error: Error| NetError::Unreachable(error.to_string());
    let (socket, peer) = match addr {
        Addr::Unix(path) => {
            let socket = connect_unix(reactor, path).await.map_err(failed)?;
            sys::set_send_buffer(&socket, UNIX_SEND_BUFFER_BYTES);
            let who = sys::credentials(&socket).map_err(failed)?;
            (socket, unix_peer(addr, who))
        }
        Addr::Shm(path) => {
            let socket = connect_unix(reactor, path).await.map_err(failed)?;
            let who = sys::credentials(&socket).map_err(failed)?;
            let opened = upgrade::open(reactor, &socket).await.map_err(failed)?;
            let conn = conn::new(reactor, socket, unix_peer(addr, who), Side::Opened);
            conn.start_ring(handler, opened).map_err(failed)?;
            return Ok(conn);
        }
        Addr::Tcp(host, port) => {
            let socket = connect_tcp(reactor, host, *port).await.map_err(failed)?;
            sys::let_wait(&socket, ALONE_MS).map_err(failed)?;
            (socket, Peer { name: addr.to_string(), credentials: None })
        }
    };
    let conn = conn::new(reactor, socket, peer, Side::Opened);
    conn.start(handler);
    Ok(conn)
}

async fn connect_unix(reactor: &Arc<Reactor>, path: &str) -> std::io::Result<OwnedFd> {
    for _ in 0..UNIX_TRIES_MAX {
        match sys::connect_unix(path) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => pause(reactor, UNIX_RETRY_NS).await,
            done => return done,
        }
    }
    Err(Error::new(ErrorKind::TimedOut, "the listener accepts nobody"))
}

/// Resolves after `delay_ns`; if dropped before, leaves a timer that wakes once for nothing.
async fn pause(reactor: &Arc<Reactor>, delay_ns: u64) {
    let mut is_set = false;
    let deadline_ns = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(delay_ns);
    poll_fn(|cx| {
        if is_set && sys::clock_ns(libc::CLOCK_MONOTONIC) >= deadline_ns {
            return Poll::Ready(());
        }
        is_set = true;
        reactor.timers.add(deadline_ns, cx.waker().clone());
        Poll::Pending
    })
    .await;
}

async fn connect_tcp(reactor: &Arc<Reactor>, host: &str, port: u16) -> std::io::Result<OwnedFd> {
    let mut last = Error::new(ErrorKind::NotFound, "the name has no address");
    for to in resolve(host, port).await? {
        match dial(reactor, &to).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Finds the addresses of a host; a name is looked up on a thread of its own, since the
/// system's resolver blocks.
async fn resolve(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (answer, answered) = oneshot::channel();
    let host = host.to_owned();
    let look_up = move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        // An error means that connecting was given up.
        drop(answer.send(found));
    };
    std::thread::Builder::new().name("aze-resolve".into()).spawn(look_up)?;
    answered.await.map_err(|_| Error::other("looking up the name panicked"))?
}

/// A connection attempt as the reactor sees it.
pub(super) struct Dial {
    state: Mutex<DialState>,
}

#[derive(Default)]
struct DialState {
    told: bool,
    waker: Option<Waker>,
}

impl Dial {
    /// Something happened: the attempt stands or failed.
    pub(super) fn on_event(&self) {
        let mut state = self.state.lock();
        state.told = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Stops polling an attempt when it ended or was given up.
struct Registered<'a> {
    reactor: &'a Reactor,
    token: u64,
    fd: &'a OwnedFd,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.reactor.deregister(self.token, self.fd);
    }
}

/// Tells when something can be read from a socket that no other thread polls.
pub(super) struct Watch<'a> {
    dial: Arc<Dial>,
    _registered: Registered<'a>,
}

impl Watch<'_> {
    /// Has `waker` woken by what comes from now on.
    pub(super) fn wake_with(&self, waker: &Waker) {
        self.dial.state.lock().waker = Some(waker.clone());
    }
}

/// See [`Watch`], which ends it when dropped.
pub(super) fn watch_readable<'a>(reactor: &'a Arc<Reactor>, fd: &'a OwnedFd) -> std::io::Result<Watch<'a>> {
    let token = reactor.new_token();
    let dial = Arc::new(Dial { state: Mutex::default() });
    reactor.register(token, fd, libc::EPOLLIN | libc::EPOLLRDHUP, Source::Dial(dial.clone()))?;
    Ok(Watch { dial, _registered: Registered { reactor, token, fd } })
}

async fn dial(reactor: &Arc<Reactor>, to: &SocketAddr) -> std::io::Result<OwnedFd> {
    let (fd, stands) = sys::connect_tcp(to)?;
    if stands {
        return Ok(fd);
    }
    let token = reactor.new_token();
    let dial = Arc::new(Dial { state: Mutex::default() });
    reactor.register(token, &fd, libc::EPOLLOUT, Source::Dial(dial.clone()))?;
    let registered = Registered { reactor, token, fd: &fd };
    poll_fn(|cx| {
        let mut state = dial.state.lock();
        if state.told {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    })
    .await;
    drop(registered);
    sys::pending_error(&fd)?;
    Ok(fd)
}
