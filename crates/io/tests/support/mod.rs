//! An echo server and a caller that matches replies to calls, shared by the tests of this crate.

#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use aze_io::real::{READ_PAUSE_BYTES, Runtime};
use aze_io::sync::Mutex;
use aze_io::{Acceptor, Addr, Connection, Frame, FrameLimits, Handler, Listener, NetError, Peer};
use futures_channel::oneshot;

/// What both ends accept.
pub const LIMITS: FrameLimits = FrameLimits { head_bytes_max: 1 << 16, payload_bytes_max: 16 << 20 };

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub enum Wire {
    Tcp,
    Unix,
    Shm,
}

pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// Sends frames of so many bytes altogether to a server that echoes them, without reading. Gives how many were
/// taken when that came to a stop, after all echoes have been read and compared.
pub fn taken_of_flood(mut reader: impl Read, mut writer: impl Write + Send + 'static, bytes: usize) -> usize {
    const PAYLOAD_BYTES: usize = 64 << 10;
    let frame = |index: usize| frame_bytes(&(index as u64).to_le_bytes(), &[index as u8; PAYLOAD_BYTES]);
    let count = bytes / PAYLOAD_BYTES;
    let written = Arc::new(AtomicUsize::new(0));
    let written_there = written.clone();
    let writing = std::thread::spawn(move || {
        for index in 0..count {
            writer.write_all(&frame(index)).unwrap();
            written_there.fetch_add(PAYLOAD_BYTES, SeqCst);
        }
    });
    wait_until("much is written", || written.load(SeqCst) >= READ_PAUSE_BYTES);
    let clock = Runtime::client();
    let mut before = 0;
    // Stands still for a while: the server does not read on.
    while std::mem::replace(&mut before, written.load(SeqCst)) != written.load(SeqCst) {
        clock.block_on(clock.io().sleep(Duration::from_millis(50)));
    }
    for index in 0..count {
        let expected = frame(index);
        let mut echo = vec![0; expected.len()];
        reader.read_exact(&mut echo).unwrap();
        assert!(echo == expected, "reply {index}");
    }
    writing.join().unwrap();
    before
}

pub fn tcp_any() -> Addr {
    Addr::Tcp("127.0.0.1".into(), 0)
}

/// A path that no other test uses.
pub fn socket_path() -> String {
    static SERIAL: AtomicUsize = AtomicUsize::new(0);
    let name = format!("aze-io-{}-{}", std::process::id(), SERIAL.fetch_add(1, SeqCst));
    std::env::temp_dir().join(name).to_str().unwrap().into()
}

/// A frame as it lies on the wire.
pub fn frame_bytes(head: &[u8], payload: &[u8]) -> Vec<u8> {
    let lengths = [head.len() as u32, payload.len() as u32].map(u32::to_le_bytes);
    [&lengths[0], &lengths[1], head, payload].concat()
}

/// Ignores everything.
pub struct Silent;

impl Handler for Silent {
    fn on_frame(&self, _conn: &Arc<dyn Connection>, _frame: Frame) {}
    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

struct Refuser;

impl Acceptor for Refuser {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.close();
        Arc::new(Silent)
    }
}

/// Closes every connection it accepts.
pub fn refuser() -> Arc<dyn Acceptor> {
    Arc::new(Refuser)
}

/// What an echo server saw.
struct Seen {
    limits: Option<FrameLimits>,
    accepted: AtomicUsize,
    closes: AtomicUsize,
    last_close: Mutex<Option<NetError>>,
    last_peer: Mutex<Option<Peer>>,
}

struct Echo {
    seen: Arc<Seen>,
    /// Calls that are inside the handler, which must never be two.
    inside: AtomicUsize,
    closed: AtomicUsize,
}

struct EchoAcceptor(Arc<Seen>);

impl Acceptor for EchoAcceptor {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        if let Some(limits) = self.0.limits {
            conn.set_limits(limits);
        }
        self.0.accepted.fetch_add(1, SeqCst);
        *self.0.last_peer.lock() = Some(conn.peer().clone());
        Arc::new(Echo { seen: self.0.clone(), inside: AtomicUsize::new(0), closed: AtomicUsize::new(0) })
    }
}

impl Handler for Echo {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "frames of one connection come one at a time");
        assert_eq!(self.closed.load(SeqCst), 0, "no frame follows the end");
        let middle = frame.payload.len() / 2;
        // A peer that is gone is told by on_close.
        drop(conn.send(&frame.head, &[&frame.payload[..middle], &[], &frame.payload[middle..]]));
        self.inside.fetch_sub(1, SeqCst);
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, why: NetError) {
        assert_eq!(self.inside.load(SeqCst), 0);
        assert_eq!(self.closed.fetch_add(1, SeqCst), 0, "the end is told once");
        *self.seen.last_close.lock() = Some(why);
        self.seen.closes.fetch_add(1, SeqCst);
    }
}

/// A server with a runtime of its own, which ends with it.
pub struct EchoServer {
    runtime: Arc<Runtime>,
    listener: Box<dyn Listener>,
    seen: Arc<Seen>,
}

pub fn echo_server(wire: Wire, workers: usize) -> EchoServer {
    start_server(wire, workers, Some(LIMITS))
}

pub fn server_with_default_limits() -> EchoServer {
    start_server(Wire::Tcp, 1, None)
}

fn start_server(wire: Wire, workers: usize, limits: Option<FrameLimits>) -> EchoServer {
    let seen = Arc::new(Seen {
        limits,
        accepted: AtomicUsize::new(0),
        closes: AtomicUsize::new(0),
        last_close: Mutex::default(),
        last_peer: Mutex::default(),
    });
    let addr = match wire {
        Wire::Tcp => tcp_any(),
        Wire::Unix => Addr::Unix(socket_path()),
        Wire::Shm => Addr::Shm(socket_path()),
    };
    let runtime = Runtime::server(workers);
    let listener = runtime.io().listen(&addr, Arc::new(EchoAcceptor(seen.clone()))).unwrap();
    EchoServer { runtime, listener, seen }
}

impl EchoServer {
    pub fn addr(&self) -> &Addr {
        self.listener.addr()
    }

    pub fn socket_addr(&self) -> SocketAddr {
        let Addr::Tcp(host, port) = self.addr() else { panic!("not TCP") };
        SocketAddr::new(host.parse().unwrap(), *port)
    }

    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    pub fn accepted(&self) -> usize {
        self.seen.accepted.load(SeqCst)
    }

    pub fn closes(&self) -> usize {
        self.seen.closes.load(SeqCst)
    }

    pub fn last_close(&self) -> Option<NetError> {
        self.seen.last_close.lock().clone()
    }

    pub fn last_peer(&self) -> Option<Peer> {
        self.seen.last_peer.lock().clone()
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.runtime.shutdown();
    }
}

/// The calling end of a connection: each call's head is its number.
pub struct Caller {
    conn: Mutex<Option<Arc<dyn Connection>>>,
    waiting: Arc<Waiting>,
    serial: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    calls: Mutex<HashMap<u64, oneshot::Sender<Frame>>>,
    closes: AtomicUsize,
    last_close: Mutex<Option<NetError>>,
    on_close: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Handler for Waiting {
    fn on_frame(&self, _conn: &Arc<dyn Connection>, frame: Frame) {
        let serial = u64::from_le_bytes(frame.head[..].try_into().unwrap());
        let call = self.calls.lock().remove(&serial).expect("a reply to a call");
        // An error means that the call was given up.
        drop(call.send(frame));
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, why: NetError) {
        *self.last_close.lock() = Some(why);
        self.closes.fetch_add(1, SeqCst);
        self.calls.lock().clear();
        self.on_close.lock().clear();
    }
}

impl Caller {
    pub fn connect(client: &Arc<Runtime>, addr: &Addr) -> Arc<Caller> {
        let waiting = Arc::new(Waiting::default());
        let conn = client.block_on(client.io().connect(addr, waiting.clone())).unwrap();
        conn.set_limits(LIMITS);
        Arc::new(Caller { conn: Mutex::new(Some(conn)), waiting, serial: AtomicU64::new(0) })
    }

    pub fn conn(&self) -> Arc<dyn Connection> {
        self.conn.lock().clone().unwrap()
    }

    /// Sends at once; resolves with the reply, or fails when the connection ends.
    pub fn call(&self, payload: &[u8]) -> impl Future<Output = Result<Frame, NetError>> + use<> {
        let serial = self.serial.fetch_add(1, SeqCst);
        let (tell, heard) = oneshot::channel();
        self.waiting.calls.lock().insert(serial, tell);
        let sent = self.conn().send(&serial.to_le_bytes(), &[payload]);
        if sent.is_err() {
            self.waiting.calls.lock().remove(&serial);
        }
        async move {
            sent?;
            heard.await.map_err(|_| NetError::Closed("no reply".into()))
        }
    }

    /// Resolves when the handler has heard of the end.
    pub fn closed(&self) -> impl Future<Output = ()> + use<> {
        let (tell, heard) = oneshot::channel::<()>();
        self.waiting.on_close.lock().push(tell);
        let is_closed = self.closes() > 0;
        async move {
            if !is_closed {
                let _cancelled_by_the_end = heard.await;
            }
        }
    }

    pub fn closes(&self) -> usize {
        self.waiting.closes.load(SeqCst)
    }

    pub fn last_close(&self) -> Option<NetError> {
        self.waiting.last_close.lock().clone()
    }
}
