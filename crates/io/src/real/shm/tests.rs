//! Tests of the rings and of what a process may do to them.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::super::Runtime;
use super::super::sys::Room;
use super::ring::{Consumer, Producer};
use super::upgrade::{self, Opened};
use super::{CLIENT_WAITS, FILE_BYTES, REPLIES, REQUESTS, RING_BYTES, SHM_CONNECTIONS_MAX, Shm, Wakeup, region};
use crate::published::{self, Reader, Shape, Writer, words_needed};
use crate::{Acceptor, Addr, Connection, Frame, FrameLimits, Handler, Listener, NetError};

/// A ring between two ends in this process.
fn pair() -> (Arc<Shm>, Producer, Consumer) {
    let (region, file) = region::Region::create(c"aze-test", FILE_BYTES).unwrap();
    let eventfd = super::super::sys::eventfd().unwrap();
    let server = Shm::new(region, Wakeup::Client(eventfd.try_clone().unwrap()), None, None);
    let client = Shm::new(region::Region::open(&file, FILE_BYTES).unwrap(), Wakeup::Client(eventfd), None, None);
    let producer = Producer::new(server, REPLIES);
    (client.clone(), producer, Consumer::new(client, REPLIES))
}

/// Pseudo-random numbers; the same ones each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

/// In both ways in which bytes can be taken, by turns.
fn take(consumer: &mut Consumer, bytes: usize) -> std::io::Result<Vec<u8>> {
    if bytes % 2 == 1 {
        let mut vec = vec![0; bytes];
        let (one, two) = vec.split_at_mut(bytes / 3);
        let taken =
            consumer.read_slices(&mut [IoSliceMut::new(one), IoSliceMut::new(&mut []), IoSliceMut::new(two)])?;
        vec.truncate(taken);
        return Ok(vec);
    }
    let (mut vec, mut none) = (Vec::with_capacity(bytes), Vec::new());
    let room = Room { vec: &mut vec, bytes_max: bytes };
    consumer.read(room, Room { vec: &mut none, bytes_max: 0 }, &mut [])?;
    Ok(vec)
}

/// The bytes of the stream that goes through rings here, from one position on.
fn stream(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn bytes_come_out_as_they_went_in_whatever_their_number() {
    let (_shm, mut producer, mut consumer) = pair();
    let mut dice = Dice(4711);
    let (mut written, mut read) = (0, 0);
    for round in 0..400 {
        let most = [9, 100, 70_000, RING_BYTES / 2, RING_BYTES + 100][dice.roll(5)];
        let (first, second) = (dice.roll(most), dice.roll(most));
        let (first, second) = (stream(written, first), stream(written + first, second));
        written += producer.write(&[IoSlice::new(&first), IoSlice::new(&[]), IoSlice::new(&second)]).unwrap();
        let mut left = if round % 3 == 0 { usize::MAX } else { dice.roll(most) };
        while left > 0 && read < written {
            let want = left.min(written - read).min(1 + dice.roll(most));
            let got = take(&mut consumer, want).unwrap();
            assert!(got == stream(read, got.len()), "round {round}: byte {read} and on");
            read += got.len();
            left -= got.len();
        }
    }
    assert!(written > 5 * RING_BYTES, "the ring was gone around many times");
}

/// Both ends see the ring at one address here, unlike real ones: so that a race detector sees what
/// one end reads and the other writes (`make sanitize`).
#[test]
fn both_ends_work_at_once_and_no_byte_is_read_before_it_is_written() {
    const BYTES: usize = 3 * RING_BYTES;
    let (shm, ..) = pair();
    let (mut producer, mut consumer) = (Producer::new(shm.clone(), REPLIES), Consumer::new(shm, REPLIES));
    let filling = std::thread::spawn(move || {
        let mut dice = Dice(815);
        let mut written = 0;
        while written < BYTES {
            let bytes = stream(written, (1 + dice.roll(100_000)).min(BYTES - written));
            match producer.write(&[IoSlice::new(&bytes)]).unwrap() {
                0 => std::thread::yield_now(),
                some => written += some,
            }
        }
    });
    let mut read = 0;
    while read < BYTES {
        match take(&mut consumer, 50_000) {
            Ok(got) => {
                assert!(got == stream(read, got.len()), "byte {read} and on");
                read += got.len();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    filling.join().unwrap();
}

#[test]
fn a_full_ring_takes_nothing_and_tells_of_room() {
    let (_shm, mut producer, mut consumer) = pair();
    let bytes = vec![7; 2 * RING_BYTES];
    let took = producer.write(&[IoSlice::new(&bytes)]).unwrap();
    assert!((RING_BYTES - 64..RING_BYTES).contains(&took), "{took} of {RING_BYTES}");
    assert_eq!(producer.write(&[IoSlice::new(b"x")]).unwrap(), 0);
    assert!(!producer.want_room().unwrap());
    assert_eq!(take(&mut consumer, took).unwrap().len(), took);
    assert!(producer.want_room().unwrap());
    assert_eq!(take(&mut consumer, 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(producer.write(&[IoSlice::new(b"x")]).unwrap(), 1);
}

#[test]
fn small_frames_stay_in_the_first_pages() {
    let (_shm, mut producer, mut consumer) = pair();
    for _ in 0..100_000 {
        assert_eq!(producer.write(&[IoSlice::new(&[5; 200])]).unwrap(), 200);
        assert_eq!(take(&mut consumer, 200).unwrap(), [5; 200]);
    }
    // Nothing was ever written beyond: the file has no such page.
    let mut beyond = vec![0; RING_BYTES / 2];
    _shm.region.copy_to(REPLIES.data + RING_BYTES / 2, &mut beyond);
    assert!(beyond.iter().all(|byte| *byte == 0));
}

#[test]
fn what_cannot_be_ends_the_ring() {
    type Spoil = fn(&Shm);
    let spoils: [Spoil; 7] = [
        |shm| shm.word64(REPLIES.head).store(RING_BYTES as u64 + 8, SeqCst),
        |shm| shm.word64(REPLIES.head).store(u64::MAX, SeqCst),
        |shm| shm.word64(REPLIES.head).store(12, SeqCst),
        |shm| shm.word64(REPLIES.data).store(0, SeqCst),
        |shm| shm.word64(REPLIES.data).store(super::ring::DATA << 32, SeqCst),
        |shm| shm.word64(REPLIES.data).store(super::ring::DATA << 32 | u64::from(u32::MAX), SeqCst),
        |shm| shm.word64(REPLIES.data).store(super::ring::SKIP << 32, SeqCst),
    ];
    for (index, spoil) in spoils.iter().enumerate() {
        let (shm, mut producer, mut consumer) = pair();
        producer.write(&[IoSlice::new(b"a frame")]).unwrap();
        spoil(&shm);
        assert_eq!(take(&mut consumer, 7).unwrap_err().kind(), ErrorKind::InvalidData, "spoil {index}");
    }
    for tail in [1, 8, 1 << 40] {
        let (shm, mut producer, _consumer) = pair();
        shm.word64(REPLIES.tail).store(tail, SeqCst);
        assert_eq!(producer.write(&[IoSlice::new(b"x")]).unwrap_err().kind(), ErrorKind::InvalidData, "tail {tail}");
    }
}

#[test]
fn memory_that_could_vanish_is_refused() {
    let file = crate::memory_file::create(c"aze-test").unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: takes no pointer.
    assert_eq!(unsafe { libc::ftruncate(fd, 4096) }, 0);
    let Err(error) = region::Region::open(&file, 4096) else { panic!("mapped without seals") };
    assert!(error.to_string().contains("sealed"), "{error}");
    let (_region, sealed) = region::Region::create(c"aze-test", 4096).unwrap();
    assert!(region::Region::open(&sealed, 8192).is_err(), "another size");
    // SAFETY: takes no pointer.
    let shortened = unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&sealed), 0) };
    assert_eq!(shortened, -1, "it cannot be made shorter");
}

#[derive(Default)]
struct Echo {
    closes: AtomicUsize,
}

struct Entrance(Arc<Echo>);

impl Acceptor for Entrance {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(FrameLimits { head_bytes_max: 4096, payload_bytes_max: 1 << 20 });
        self.0.clone()
    }
}

impl Handler for Echo {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        drop(conn.send(&frame.head, &[&frame.payload]));
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        self.closes.fetch_add(1, SeqCst);
    }
}

struct Server {
    runtime: Arc<Runtime>,
    echo: Arc<Echo>,
    path: String,
    _listener: Box<dyn Listener>,
}

fn server(name: &str) -> Server {
    let path = std::env::temp_dir().join(format!("aze-shm-{name}-{}", std::process::id()));
    let path = path.to_str().unwrap().to_string();
    let (runtime, echo) = (Runtime::server(1), Arc::new(Echo::default()));
    let listener = runtime.io().listen(&Addr::Unix(path.clone()), Arc::new(Entrance(echo.clone()))).unwrap();
    Server { runtime, echo, path, _listener: listener }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.shutdown();
    }
}

fn raw(client: &Arc<Runtime>, server: &Server) -> (OwnedFd, Opened) {
    let socket = super::super::sys::connect_unix(&server.path).unwrap();
    let opened = client.block_on(upgrade::open(&client.reactor, &socket)).unwrap();
    (socket, opened)
}

/// One frame there and back.
fn ask(producer: &mut Producer, consumer: &mut Consumer) -> std::io::Result<Vec<u8>> {
    let prefix = super::super::decode::prefix(4, 4).unwrap();
    producer.write(&[IoSlice::new(&prefix), IoSlice::new(b"headbody")])?;
    let mut got = Vec::new();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while got.len() < 16 {
        match take(consumer, 16 - got.len()) {
            Ok(bytes) => got.extend(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
        assert!(std::time::Instant::now() < deadline, "the server answers");
    }
    Ok(got)
}

#[test]
fn a_client_that_writes_nonsense_harms_only_itself() {
    let server = server("nonsense");
    let client = Runtime::client();
    let (_socket, good) = raw(&client, &server);
    let (mut producer, mut consumer) = good.shm.ends();
    let mut dice = Dice(42);
    let rounds = 300;
    for round in 0..rounds {
        let (socket, bad) = raw(&client, &server);
        let (mut bad_producer, _bad_consumer) = bad.shm.ends();
        for _ in 0..1 + dice.roll(6) {
            let words = [REQUESTS.head, REQUESTS.tail, REQUESTS.room, REPLIES.head, REPLIES.tail, REPLIES.room];
            let value = [0, 8, 1 << 20, u64::MAX, dice.0, RING_BYTES as u64][dice.roll(6)];
            match dice.roll(5) {
                0 => bad.shm.word64(words[dice.roll(6)]).store(value, SeqCst),
                1 => bad.shm.word64(REQUESTS.data + 8 * dice.roll(1000)).store(value, SeqCst),
                2 => bad.shm.word32(CLIENT_WAITS).store(value as u32, SeqCst),
                3 => drop(bad_producer.write(&[IoSlice::new(&dice.0.to_le_bytes())])),
                _ => {
                    bad.shm.word64(REQUESTS.head).store(8 * dice.roll(RING_BYTES / 8) as u64, SeqCst);
                    bad.shm.region.copy_in(REQUESTS.data, &dice.0.to_le_bytes());
                }
            }
            bad.shm.tell_data();
        }
        assert_eq!(ask(&mut producer, &mut consumer).unwrap()[8..], *b"headbody", "round {round}");
        drop(socket);
    }
    wait_until(|| server.echo.closes.load(SeqCst) == rounds);
    assert_eq!(ask(&mut producer, &mut consumer).unwrap()[8..], *b"headbody");
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "waited in vain");
        std::thread::yield_now();
    }
}

#[test]
fn a_spoilt_page_of_wakeups_makes_others_late_and_no_more() {
    let server = server("bells");
    let client = Runtime::client();
    let (_socket, good) = raw(&client, &server);
    let (mut producer, mut consumer) = good.shm.ends();
    for _ in 0..2 {
        ask(&mut producer, &mut consumer).unwrap();
        // As if another client had said that no worker sleeps, and taken the bits away.
        let Wakeup::Workers(worker_waker) = &good.shm.wakeup else { panic!("a client wakes workers") };
        worker_waker.spoil();
        assert_eq!(ask(&mut producer, &mut consumer).unwrap()[8..], *b"headbody");
    }
}

#[test]
fn the_number_of_connections_is_limited_and_the_limit_named() {
    let server = server("limit");
    let wakeups = server.runtime.reactor.wakeups().unwrap();
    let slots: Vec<_> = (0..SHM_CONNECTIONS_MAX).map(|_| wakeups.reserve().unwrap()).collect();
    let client = Runtime::client();
    let io = client.io();
    let connect = |addr: Addr| client.block_on(io.connect(&addr, Arc::new(Echo::default()))).map(drop);
    let refused = connect(Addr::Shm(server.path.clone())).unwrap_err().to_string();
    assert!(refused.contains(&SHM_CONNECTIONS_MAX.to_string()), "{refused}");
    connect(Addr::Unix(server.path.clone())).unwrap();
    slots.into_iter().for_each(|slot| wakeups.leave(slot));
    connect(Addr::Shm(server.path.clone())).unwrap();
    client.shutdown();
}

#[test]
fn whoever_asks_in_part_or_too_late_gets_no_shared_memory() {
    let server = server("part");
    for bytes in [&b"\0\0\0\0aze-s"[..], b"\0", b"\0\0\0\0aze-shm-v004", b"\0\0\0\0something else"] {
        let mut stream = UnixStream::connect(&server.path).unwrap();
        std::io::Write::write_all(&mut stream, bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The end may be a reset, since the server leaves something unread.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
}

const SHAPES: [Shape; 1] = [Shape { key_words: 1, value_words: 2 }];

/// Lets those who connect read a published index.
struct Offering(Arc<Echo>, Arc<published::Writer>);

impl Acceptor for Offering {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.offer(&self.1);
        self.0.clone()
    }
}

#[test]
fn a_published_index_is_read_through_shared_memory_while_the_server_is_there() {
    let server = server("slate");
    let path = format!("{}-offering", server.path);
    let io = server.runtime.io();
    let memory = io.share(words_needed(&SHAPES, &[2], 3)).expect("memory is to be had");
    let writer = Arc::new(Writer::begin(memory, &SHAPES, &[2], 3));
    let acceptor = Arc::new(Offering(server.echo.clone(), writer.clone()));
    let listener = io.listen(&Addr::Unix(path.clone()), acceptor).unwrap();
    let client = Runtime::client();
    let connect = |addr: Addr| client.block_on(client.io().connect(&addr, Arc::new(Echo::default()))).unwrap();
    assert!(connect(Addr::Unix(path.clone())).offered().is_none(), "a local socket shares nothing");
    assert!(connect(Addr::Shm(server.path.clone())).offered().is_none(), "this one offers nothing");
    let conn = connect(Addr::Shm(path));
    let reader = Reader::open(conn.offered().expect("it was offered"), &SHAPES).expect("it is of this shape");
    let mut value = [0; 2];
    assert!(reader.read().find(0, 7, &[7], &mut value).is_none());
    writer.put(0, 7, &[7], &[8, 9]);
    assert!(reader.read().find(0, 7, &[7], &mut value).is_some() && conn.is_held());
    assert_eq!(value, [8, 9]);
    drop(listener);
    server.runtime.shutdown();
    assert!(!conn.is_held(), "known without waiting for any event");
    client.shutdown();
}

#[test]
fn nobody_but_its_writer_can_write_a_published_index() {
    let (_writable, file) = region::Region::create_for_readers(c"aze-test", 4096).unwrap();
    assert!(region::Region::open(&file, 4096).is_err(), "it cannot be mapped for writing");
    assert_eq!(region::Region::open_to_read(&file, 1 << 20).unwrap().bytes(), 4096);
    assert!(region::Region::open_to_read(&file, 4095).is_err(), "larger than is mapped");
    let mut file = std::fs::File::from(file);
    assert!(std::io::Write::write(&mut file, b"x").is_err(), "nor written to");
}
