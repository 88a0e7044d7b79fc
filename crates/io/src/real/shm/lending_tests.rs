//! Tests of what is lent: that it arrives, comes back, and can be read only.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::Runtime;
use super::loan::LEND_BYTES_MIN;
use super::{RETURNED, ring};
use crate::slab::{BASE_BYTES, FrameClass, Slab};
use crate::slate::{self, Shape, words_needed};
use crate::{Acceptor, Addr, Connection, Frame, FrameLimits, Handler, Listener, NetError, slab};

const LIMITS: FrameLimits = FrameLimits { head_bytes_max: 4096, payload_bytes_max: 8 << 20 };

/// Answers each frame with as many bytes of its frames as the head says.
struct Library {
    frames: Vec<Arc<slab::Frame>>,
    closes: AtomicUsize,
}

struct Entrance(Arc<Library>, Option<Arc<slate::Writer>>);

impl Acceptor for Entrance {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(LIMITS);
        self.1.iter().for_each(|slate| conn.offer(slate));
        self.0.clone()
    }
}

impl Handler for Library {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        let mut left = u32::from_le_bytes(frame.head[..4].try_into().unwrap()) as usize;
        let mut held = Vec::new();
        for frame in &self.frames {
            // Not from the beginning, so that pieces are not next to each other.
            let len = left.min(BASE_BYTES - 100);
            left -= len;
            if len > 0 {
                held.push((frame.clone(), 100..100 + len));
            }
        }
        let parts: Vec<&[u8]> = held.iter().map(|(frame, range)| &frame.bytes()[range.clone()]).collect();
        drop(conn.send_held(&frame.head, &parts, &held));
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        self.closes.fetch_add(1, SeqCst);
    }
}

#[derive(Default)]
struct Reader(Mutex<Vec<Frame>>);

impl Handler for Reader {
    fn on_frame(&self, _conn: &Arc<dyn Connection>, frame: Frame) {
        self.0.lock().push(frame);
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

struct Place {
    server: Arc<Runtime>,
    client: Arc<Runtime>,
    slab: Arc<Slab>,
    library: Arc<Library>,
    path: String,
    _listener: Box<dyn Listener>,
}

const FRAMES: usize = 8;

fn place(name: &str) -> Place {
    let path = std::env::temp_dir().join(format!("aze-lend-{name}-{}", std::process::id()));
    let path = path.to_str().unwrap().to_string();
    let slab = Slab::new((FRAMES * BASE_BYTES) as u64).unwrap();
    let frames = (0..FRAMES).map(|index| {
        let mut frame = slab.allocate(FrameClass::K64).unwrap();
        frame.bytes_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + index) as u8);
        Arc::new(frame)
    });
    let library = Arc::new(Library { frames: frames.collect(), closes: AtomicUsize::new(0) });
    let server = Runtime::server(1);
    server.io().lend(&slab);
    let listener = server.io().listen(&Addr::Unix(path.clone()), Arc::new(Entrance(library.clone(), None))).unwrap();
    Place { server, client: Runtime::client(), slab, library, path, _listener: listener }
}

impl Place {
    fn connect(&self) -> (Arc<dyn Connection>, Arc<Reader>) {
        self.connect_to(self.path.clone())
    }

    fn connect_to(&self, path: String) -> (Arc<dyn Connection>, Arc<Reader>) {
        let reader = Arc::new(Reader::default());
        let io = self.client.io();
        let conn = self.client.block_on(io.connect(&Addr::Shm(path), reader.clone())).unwrap();
        conn.set_limits(LIMITS);
        (conn, reader)
    }

    fn ask(&self, conn: &Arc<dyn Connection>, reader: &Reader, bytes: usize) -> Frame {
        conn.send(&(bytes as u32).to_le_bytes(), &[]).unwrap();
        let io = self.client.io();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(frame) = reader.0.lock().pop() {
                return frame;
            }
            assert!(Instant::now() < deadline, "the server answers");
            self.client.block_on(io.sleep(Duration::from_millis(1)));
        }
    }

    fn expected(&self, bytes: usize) -> Vec<u8> {
        let all = self.library.frames.iter().flat_map(|frame| frame.bytes()[100..].to_vec());
        all.take(bytes).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.client.shutdown();
        self.server.shutdown();
    }
}

fn contents(frame: &Frame) -> Vec<u8> {
    let Some(loan) = &frame.lent else { return frame.payload.clone() };
    let mut bytes = vec![0; loan.len()];
    let (first, second) = bytes.split_at_mut(loan.len() / 3);
    assert!(loan.copy_to(0, first) && loan.copy_to(first.len(), second));
    assert!(!loan.copy_to(1, &mut vec![0; loan.len()]), "no more than was lent");
    bytes
}

#[test]
fn large_data_are_lent_and_small_ones_sent() {
    let place = place("sizes");
    let (conn, reader) = place.connect();
    for round in 0..300 {
        for bytes in [1, LEND_BYTES_MIN - 1, LEND_BYTES_MIN, 3 * BASE_BYTES, 7 * BASE_BYTES] {
            let frame = place.ask(&conn, &reader, bytes);
            assert_eq!(frame.lent.is_some(), bytes >= LEND_BYTES_MIN, "{bytes} in round {round}");
            assert_eq!(frame.payload_bytes(), bytes);
            assert!(contents(&frame) == place.expected(bytes), "{bytes} in round {round}");
        }
    }
}

#[test]
fn frames_are_free_again_when_nobody_has_them() {
    let place = place("free");
    let (conn, reader) = place.connect();
    let held: Vec<Frame> = (0..3).map(|_| place.ask(&conn, &reader, 7 * BASE_BYTES)).collect();
    let counts = || place.library.frames.iter().map(Arc::strong_count).max().unwrap();
    assert_eq!(counts(), 4, "one here, and one for each loan");
    assert!(place.slab.allocate(FrameClass::K64).is_none(), "the slab is full");
    assert_eq!(counts(), 4, "nothing that is still out");
    drop(held);
    assert!(place.slab.allocate(FrameClass::K64).is_none(), "the slab is full");
    assert_eq!(counts(), 1, "whoever needs memory takes back what has come back");
    // The client goes without giving back.
    std::mem::forget(place.ask(&conn, &reader, 7 * BASE_BYTES));
    assert_eq!(counts(), 2);
    conn.close();
    let deadline = Instant::now() + Duration::from_secs(20);
    while counts() > 1 {
        assert!(Instant::now() < deadline, "a connection's end gives all back");
        place.client.block_on(place.client.io().sleep(Duration::from_millis(1)));
    }
}

#[test]
fn a_client_that_gives_nothing_back_is_lent_no_more() {
    let place = place("hoard");
    let (conn, reader) = place.connect();
    let mut held = Vec::new();
    for round in 0..100 {
        let frame = place.ask(&conn, &reader, 150_000);
        assert!(contents(&frame) == place.expected(150_000), "round {round}");
        held.push(frame);
    }
    assert_eq!(held.iter().filter(|frame| frame.lent.is_some()).count(), 64);
    held.clear();
    assert!(place.ask(&conn, &reader, 150_000).lent.is_some(), "what came back is lent again");
}

#[test]
fn a_client_that_gives_back_what_it_has_not_harms_nobody() {
    let place = place("vain");
    let (conn, reader) = place.connect();
    let frame = place.ask(&conn, &reader, 150_000);
    let loan = frame.lent.as_ref().unwrap();
    for _ in 0..3 {
        loan.shm.word64(RETURNED).store(u64::MAX, SeqCst);
        assert!(contents(&place.ask(&conn, &reader, 150_000)) == place.expected(150_000));
    }
}

#[test]
fn a_slate_and_loans_come_with_one_connection() {
    let place = place("both");
    let shapes = [Shape { key_words: 1, value_words: 1 }];
    let memory = place.server.io().share(words_needed(&shapes, &[2])).expect("memory is to be had");
    let writer = Arc::new(slate::Writer::begin(memory, &shapes, &[2]));
    writer.put(0, 7, &[7], &[8]);
    let path = format!("{}-slate", place.path);
    let entrance = Arc::new(Entrance(place.library.clone(), Some(writer)));
    let _listener = place.server.io().listen(&Addr::Unix(path.clone()), entrance).unwrap();
    let (conn, reader) = place.connect_to(path);
    let slate = slate::Reader::open(conn.offered().expect("it was offered"), &shapes).expect("it is a slate");
    let mut value = [0];
    assert!(slate.find(0, 7, &[7], &mut value).is_some());
    assert_eq!(value, [8]);
    let frame = place.ask(&conn, &reader, LEND_BYTES_MIN);
    assert!(frame.lent.is_some() && contents(&frame) == place.expected(LEND_BYTES_MIN));
    assert!(place.connect().0.offered().is_none(), "what is lent is no slate");
}

#[test]
fn what_a_server_lends_can_be_read_only() {
    let slab = Slab::new(BASE_BYTES as u64).unwrap();
    let mut frame = slab.allocate(FrameClass::K64).unwrap();
    let file = slab.reader().unwrap();
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let written = std::fs::OpenOptions::new()
        .write(true)
        .open(again)
        .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0));
    assert!(written.is_err(), "it is sealed against writers");
    frame.bytes_mut().fill(5);
    let mut read = [0; 3];
    assert!(super::region::Region::open(&file, BASE_BYTES).is_err(), "nor can it be mapped to be written");
    super::region::Region::open_to_read(&file, BASE_BYTES).unwrap().copy_to(frame.offset() as usize, &mut read);
    assert_eq!(read, [5; 3], "the server itself goes on writing");
}

#[test]
fn nonsense_about_loans_is_refused() {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let place = place("nonsense");
    let (conn, reader) = place.connect();
    let shm = place.ask(&conn, &reader, 150_000).lent.unwrap().shm.clone();
    let loan = |told: &[u8]| super::loan::Loan::new(shm.clone(), told, 100);
    assert!(loan(&words(&[63, 0, 60, 1 << 20, 40])).is_ok());
    let nonsense: [&[u64]; 6] = [&[], &[0], &[64, 0, 100], &[0, 0, 99], &[0, 0, u64::MAX, 0, 101], &[0, 0, 100, 0]];
    for told in nonsense {
        assert!(loan(&words(told)).is_err(), "{told:?}");
    }
    assert!(loan(&[1; 7]).is_err());
    // Beyond the end of the file, and around the end of all numbers.
    for start in [1 << 40, u64::MAX] {
        let loan = loan(&words(&[3, start, 100])).unwrap();
        assert!(!loan.copy_to(50, &mut [0; 10]), "{start}");
    }
    assert_ne!(ring::DATA, ring::LENT);
}
