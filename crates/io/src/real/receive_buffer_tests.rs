//! Payloads that are received into frames, over each kind of connection.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::sync::Mutex;
use futures_channel::mpsc;
use futures_util::StreamExt;

use super::Runtime;
use super::decode::{Decoder, prefix};
use crate::slab::{BASE_BYTES, Frame as SlabFrame, FrameClass, ReceiveBuffer, Slab};
use crate::{Acceptor, Addr, Connection, FRAMES_PAYLOAD_BYTES_MIN, Frame, FrameLimits, Handler, Listener, NetError};

const LIMITS: FrameLimits = FrameLimits { head_bytes_max: 100_000, payload_bytes_max: 8 << 20 };

/// Of the payload, so many bytes come before the first frame: the head's first byte says.
fn receive_buffer(slab: &Arc<Slab>, head: &[u8], payload_bytes: usize) -> Option<ReceiveBuffer> {
    let first = usize::from(head[0]) * 100;
    let rest = payload_bytes.checked_sub(first)?;
    if rest < BASE_BYTES {
        return None;
    }
    slab.receive_buffer(first, rest / BASE_BYTES, rest % BASE_BYTES)
}

fn payload(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 13) as u8).collect()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

#[test]
fn received_frames_survive_any_cut() {
    let slab = Slab::new(16 << 20).unwrap();
    let parts = [(3, 1), (7, 100_000), (90_000, 65_536), (1, 1_000_000), (65_528, 70_000), (2, 65_535), (9, 131_072)];
    let frames: Vec<(Vec<u8>, Vec<u8>)> = parts
        .iter()
        .enumerate()
        .map(|(seed, (head, bytes))| (vec![seed as u8 * 20; *head], payload(*bytes, seed)))
        .collect();
    let encode = |(head, payload): &(Vec<u8>, Vec<u8>)| {
        [&prefix(head.len(), payload.len()).unwrap()[..], head, payload].concat()
    };
    let bytes: Vec<u8> = frames.iter().flat_map(encode).collect();
    for step in [7, 8, 4096, 65_535, 65_536, 65_537, 300_000] {
        let (mut to, from) = UnixStream::pair().unwrap();
        let from = OwnedFd::from(from);
        let (mut decoder, mut decoded) = (Decoder::new(), Vec::new());
        let asked = Mutex::new(Vec::new());
        for piece in bytes.chunks(step) {
            let mut piece = piece;
            while !piece.is_empty() {
                // No more than fits into the socket's buffer.
                let (now, later) = piece.split_at(piece.len().min(60_000));
                to.write_all(now).unwrap();
                piece = later;
                let mut left = now.len();
                while left > 0 {
                    left -= decoder.fill(&from, false).unwrap().bytes;
                    let receive_buffer = |head: &[u8], bytes| {
                        asked.lock().push((head.len(), bytes));
                        receive_buffer(&slab, head, bytes)
                    };
                    decoded.extend(std::iter::from_fn(|| decoder.next(LIMITS, &receive_buffer).unwrap()));
                }
            }
        }
        let large: Vec<_> = parts.iter().filter(|(_, bytes)| *bytes >= FRAMES_PAYLOAD_BYTES_MIN).copied().collect();
        assert_eq!(*asked.lock(), large, "once for each large payload, with the whole head");
        assert_eq!(decoded.iter().filter(|frame| frame.in_frames.is_some()).count(), 3);
        assert!(!decoder.is_inside_frame());
        for (mut frame, (head, payload)) in decoded.into_iter().zip(&frames) {
            assert_eq!(frame.payload_bytes(), payload.len());
            assert!(frame.head == *head && frame.take_payload().into_bytes() == *payload, "in pieces of {step}");
        }
    }
    assert_eq!(slab.used_bytes(), 0);
}

/// Has payloads put into frames, and sends them back from there.
struct ReceivedFrames {
    slab: Arc<Slab>,
    in_frames: AtomicUsize,
    not_in_frames: AtomicUsize,
    closes: AtomicUsize,
    inside: AtomicUsize,
}

struct Entrance(Arc<ReceivedFrames>);

impl Acceptor for Entrance {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(LIMITS);
        self.0.clone()
    }
}

impl Handler for ReceivedFrames {
    fn receive_buffer(&self, _conn: &Arc<dyn Connection>, head: &[u8], payload_bytes: usize) -> Option<ReceiveBuffer> {
        let receiving = receive_buffer(&self.slab, head, payload_bytes);
        self.inside.fetch_add(usize::from(receiving.is_some()), SeqCst);
        receiving
    }

    fn on_frame(&self, conn: &Arc<dyn Connection>, mut frame: Frame) {
        let count = if frame.in_frames.is_some() { &self.in_frames } else { &self.not_in_frames };
        count.fetch_add(1, SeqCst);
        drop(conn.send(&frame.head.clone(), &[&frame.take_payload().into_bytes()]));
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        self.closes.fetch_add(1, SeqCst);
    }
}

struct Server {
    runtime: Arc<Runtime>,
    there: Arc<ReceivedFrames>,
    listeners: Vec<Box<dyn Listener>>,
}

impl Server {
    /// Listens on TCP and, for local sockets and shared memory, on a path.
    fn start(name: &str, slab_bytes: u64) -> Server {
        let path = std::env::temp_dir().join(format!("aze-landing-{name}-{}", std::process::id()));
        let path = path.to_str().unwrap().to_string();
        let zero = AtomicUsize::default;
        let there = Arc::new(ReceivedFrames {
            slab: Slab::new(slab_bytes).unwrap(),
            in_frames: zero(),
            not_in_frames: zero(),
            closes: zero(),
            inside: zero(),
        });
        let runtime = Runtime::server(2);
        let listeners = [Addr::Tcp("127.0.0.1".into(), 0), Addr::Unix(path)]
            .map(|addr| runtime.io().listen(&addr, Arc::new(Entrance(there.clone()))).unwrap());
        Server { runtime, there, listeners: listeners.into() }
    }

    fn addrs(&self) -> [Addr; 3] {
        let Addr::Unix(path) = self.listeners[1].addr().clone() else { panic!("a path") };
        [self.listeners[0].addr().clone(), Addr::Unix(path.clone()), Addr::Shm(path)]
    }

    fn counts(&self) -> (usize, usize) {
        (self.there.in_frames.load(SeqCst), self.there.not_in_frames.load(SeqCst))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.shutdown();
    }
}

/// Hands on what comes.
struct Answers(mpsc::UnboundedSender<Frame>);

impl Handler for Answers {
    fn on_frame(&self, _conn: &Arc<dyn Connection>, frame: Frame) {
        // An error means that the caller has given up.
        let _ = self.0.unbounded_send(frame);
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        self.0.close_channel();
    }
}

fn connect(client: &Arc<Runtime>, addr: &Addr) -> (Arc<dyn Connection>, mpsc::UnboundedReceiver<Frame>) {
    let (sender, answers) = mpsc::unbounded();
    let conn = client.block_on(client.io().connect(addr, Arc::new(Answers(sender)))).unwrap();
    conn.set_limits(LIMITS);
    (conn, answers)
}

#[test]
fn payloads_come_into_frames_over_every_kind_of_connection() {
    let server = Server::start("kinds", 256 << 20);
    let client = Runtime::client();
    for addr in server.addrs() {
        let (conn, mut answers) = connect(&client, &addr);
        let before = server.counts();
        // Often enough that over TCP a thread of its own takes the connection.
        for round in 0..60usize {
            let sizes = [65_536, 10, 1 << 20, 70_000, 0, 3 << 20];
            for (index, bytes) in sizes.into_iter().enumerate() {
                let data = payload(bytes, round);
                let (one, two) = data.split_at(bytes / 3);
                conn.send(&[(round % 40) as u8, index as u8], &[one, two]).unwrap();
            }
            for (index, bytes) in sizes.into_iter().enumerate() {
                let frame = client.block_on(answers.next()).expect("an answer");
                assert_eq!(frame.head, [(round % 40) as u8, index as u8]);
                assert!(frame.payload == payload(bytes, round), "{addr}, round {round}: {bytes} bytes");
            }
        }
        let after = server.counts();
        assert!(after.0 - before.0 > 60 * 2, "{} of {} came into frames over {addr}", after.0 - before.0, 60 * 6);
        conn.close();
    }
    wait_until("all are gone", || server.there.closes.load(SeqCst) == 3);
    assert_eq!(server.there.slab.used_bytes(), 0);
    client.shutdown();
}

/// A part of a frame over a local socket.
fn stall(addr: &Addr, head: u8, announced: usize, sent: &[u8]) -> UnixStream {
    let Addr::Unix(path) = addr else { panic!("a path") };
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(&[&prefix(1, announced).unwrap()[..], &[head]].concat()).unwrap();
    stream.write_all(sent).unwrap();
    stream
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_payload_gives_its_frames_back() {
    let server = Server::start("ends", 16 << 20);
    let addr = &server.addrs()[1];
    for sent in [0, 1, 65_535, 70_000, 499_999] {
        let inside = server.there.inside.load(SeqCst);
        let closes = server.there.closes.load(SeqCst);
        let stream = stall(addr, 3, 500_000, &payload(sent, 1));
        wait_until("its head was seen", || server.there.inside.load(SeqCst) == inside + 1);
        drop(stream);
        wait_until("its end was seen", || server.there.closes.load(SeqCst) == closes + 1);
        let all: Vec<SlabFrame> =
            std::iter::from_fn(|| server.there.slab.allocate(FrameClass::K64)).take(1000).collect();
        assert_eq!(all.len(), 256, "after {sent} bytes");
    }
    assert_eq!(server.counts(), (0, 0));
}

#[test]
fn clients_that_stall_hold_a_limited_part_and_none_of_a_full_slab() {
    let server = Server::start("stall", 16 << 20);
    let addr = &server.addrs()[1];
    let data = payload(512 << 10, 9);
    let mut streams: Vec<UnixStream> = (0..8).map(|_| stall(addr, 0, data.len(), &data[..100_000])).collect();
    wait_until("an eighth of the slab is held", || server.there.inside.load(SeqCst) == 4);
    // The others go to buffers, as does all that comes now.
    let client = Runtime::client();
    let (conn, mut answers) = connect(&client, &server.addrs()[2]);
    conn.send(&[0], &[&data]).unwrap();
    assert!(client.block_on(answers.next()).expect("an answer").payload == data);
    assert_eq!(server.counts(), (0, 1));
    let all: Vec<SlabFrame> = std::iter::from_fn(|| server.there.slab.allocate(FrameClass::K64)).collect();
    assert_eq!(all.len(), 256, "whoever stores something gets all there is");
    for stream in &mut streams {
        stream.write_all(&data[100_000..]).unwrap();
        let mut echo = vec![0; 8 + 1 + data.len()];
        stream.read_exact(&mut echo).unwrap();
        assert!(echo[9..] == data, "no byte was lost");
    }
    assert_eq!(server.counts(), (0, 9));
    drop(all);
    conn.send(&[0], &[&data]).unwrap();
    assert!(client.block_on(answers.next()).expect("an answer").payload == data);
    assert_eq!(server.counts(), (1, 9), "with room there are frames again");
    client.shutdown();
}
