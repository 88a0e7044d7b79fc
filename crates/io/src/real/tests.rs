//! Tests of the decoder against a pair of sockets, where the wire format is frozen, and of how many
//! calls the answers to many frames take.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::decode::{Decoder, prefix};
use super::{Runtime, sys};
use crate::{Acceptor, Addr, Connection, Frame, FrameLimits, Handler, NetError};

const LIMITS: FrameLimits = FrameLimits { head_bytes_max: 1000, payload_bytes_max: 200_000 };

fn encode(head: &[u8], payload: &[u8]) -> Vec<u8> {
    [&prefix(head.len(), payload.len()).unwrap()[..], head, payload].concat()
}

/// What the decoder makes of `bytes` when they arrive in pieces of `step`.
fn decode(bytes: &[u8], step: usize) -> (Vec<Frame>, bool) {
    let (mut to, from) = UnixStream::pair().unwrap();
    let from = OwnedFd::from(from);
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(step) {
        to.write_all(piece).unwrap();
        let mut left = piece.len();
        while left > 0 {
            left -= decoder.fill(&from, false).unwrap().bytes;
            frames.extend(std::iter::from_fn(|| decoder.next(LIMITS, &|_, _| None).unwrap()));
        }
        // Another one reads with the buffer meanwhile.
        decoder.lay_down();
        let (mut other, others) = UnixStream::pair().unwrap();
        other.write_all(&[255; 300]).unwrap();
        Decoder::new().fill(&OwnedFd::from(others), false).unwrap();
    }
    (frames, decoder.is_inside_frame())
}

fn error_of(bytes: &[u8]) -> NetError {
    let (mut to, from) = UnixStream::pair().unwrap();
    let from = OwnedFd::from(from);
    to.write_all(bytes).unwrap();
    let mut decoder = Decoder::new();
    decoder.fill(&from, false).unwrap();
    decoder.next(LIMITS, &|_, _| None).unwrap_err()
}

#[test]
fn a_decoder_has_a_buffer_only_while_bytes_are_left_in_it() {
    let (mut to, from) = UnixStream::pair().unwrap();
    let from = OwnedFd::from(from);
    let mut decoder = Decoder::new();
    assert_eq!(decoder.buffer_bytes(), 0);
    let bytes = encode(b"head", b"payload");
    let mut frames = Vec::new();
    // The second piece ends within a prefix.
    for (piece, is_left) in [(&bytes[..], false), (&bytes[..3], true), (&bytes[3..], false)] {
        to.write_all(piece).unwrap();
        decoder.fill(&from, false).unwrap();
        frames.extend(std::iter::from_fn(|| decoder.next(LIMITS, &|_, _| None).unwrap()));
        decoder.lay_down();
        assert_eq!(decoder.buffer_bytes() > 0, is_left);
    }
    assert_eq!(frames.len(), 2);
    assert!(frames.iter().all(|frame| frame.head == b"head" && frame.payload == b"payload"));
}

#[test]
fn the_wire_format_is_this() {
    assert_eq!(encode(b"ab", b"xyz"), b"\x02\0\0\0\x03\0\0\0abxyz");
}

#[test]
fn frames_survive_any_cut() {
    let parts = [(1, 0), (1000, 0), (3, 1), (7, 100_000), (500, 65_536), (1, 200_000), (2, 2)];
    let frames: Vec<Frame> = parts
        .iter()
        .map(|&(head, payload)| Frame {
            head: (0..head).map(|at| at as u8).collect(),
            payload: (0..payload).map(|at| (at * 7) as u8).collect(),
            ..Frame::default()
        })
        .collect();
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| encode(&frame.head, &frame.payload)).collect();
    for step in [1, 7, 8, 9, 1000, 4096, 65_535, 65_536, 65_537, 100_000] {
        let (decoded, is_inside) = decode(&bytes, step);
        assert!(decoded == frames, "in pieces of {step}");
        assert!(!is_inside);
    }
    assert!(decode(&bytes[..bytes.len() - 1], 5000).1);
    assert!(decode(&bytes[..4], 5000).1);
}

#[test]
fn limits_hold_before_memory_is_set_aside() {
    let announced = |head: u32, payload: u32| [head.to_le_bytes(), payload.to_le_bytes()].concat();
    for bytes in [announced(0, 0), announced(1001, 0), announced(1, 200_001), announced(u32::MAX, u32::MAX)] {
        assert!(matches!(error_of(&bytes), NetError::Limit(_)), "{bytes:?}");
    }
    assert!(matches!(prefix(0, 1), Err(NetError::Limit(_))));
}

/// Answers every frame with itself, and tells of the end.
struct Echo(std::sync::Mutex<Option<futures_channel::oneshot::Sender<()>>>);

impl Handler for Echo {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        conn.send(&frame.head, &[&frame.payload]).unwrap();
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        drop(self.0.lock().unwrap().take());
    }
}

struct Entrance(Arc<Echo>);

impl Acceptor for Entrance {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(LIMITS);
        self.0.clone()
    }
}

/// What comes back for `bytes` sent at once, and how many calls that took.
fn answered(bytes: &[u8]) -> (Vec<u8>, u64) {
    let runtime = Runtime::client();
    let (tell, ended) = futures_channel::oneshot::channel();
    let echo = Arc::new(Echo(std::sync::Mutex::new(Some(tell))));
    let listener = runtime.io().listen(&Addr::Tcp("127.0.0.1".into(), 0), Arc::new(Entrance(echo))).unwrap();
    let Addr::Tcp(host, port) = listener.addr() else { panic!("not TCP") };
    let mut stream = TcpStream::connect((host.as_str(), *port)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let before = sys::SENDS.get();
    // Everything happens on this thread.
    let _told_by_dropping = runtime.block_on(ended);
    let sends = sys::SENDS.get() - before;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    (answer, sends)
}

#[test]
fn answers_to_frames_that_came_together_leave_together() {
    let small: Vec<u8> = (0..50u8).flat_map(|at| encode(&[at; 20], &[at; 100])).collect();
    assert_eq!(answered(&small), (small, 1));
    let one = encode(b"head", b"payload");
    assert_eq!(answered(&one), (one, 1));
    // Large ones go by themselves, in the same order, and take with them what waited.
    let mixed: Vec<u8> = [10, 20_000, 10, 10, 20_000, 10]
        .iter()
        .flat_map(|bytes| encode(b"head", &vec![*bytes as u8; *bytes]))
        .collect();
    let (answer, sends) = answered(&mixed);
    assert!(answer == mixed);
    assert!((3..=5).contains(&sends), "{sends} calls");
}

#[test]
fn patience_ends_once_for_whoever_leads_and_whoever_follows() {
    let runtime = Runtime::client();
    let io = runtime.io();
    let wait = |ms: u64, patience: u64| {
        let mut late = 0;
        let sleep = io.sleep(Duration::from_millis(ms));
        runtime.block_on_patiently(sleep, Duration::from_millis(patience), || late += 1);
        late
    };
    assert_eq!((wait(0, 1000), wait(100, 10)), (0, 1));
    std::thread::scope(|scope| {
        // One of them leads.
        let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| wait(200, 20))).collect();
        let lates: Vec<i32> = waits.into_iter().map(|wait| wait.join().expect("it ends")).collect();
        assert_eq!(lates, [1, 1, 1]);
    });
}

/// A runtime is busy while a caller leads: not without a caller, nor for its background thread.
#[test]
fn a_runtime_is_busy_while_a_caller_waits() {
    let runtime = Runtime::client();
    assert!(!runtime.is_busy());
    runtime.background().unwrap();
    let (io, inside) = (runtime.io(), runtime.clone());
    runtime.block_on(async {
        io.sleep(Duration::from_millis(5)).await;
        assert!(inside.is_busy());
    });
    assert!(!runtime.is_busy());
    runtime.shutdown();
}
