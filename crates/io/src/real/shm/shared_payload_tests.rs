//! Tests of shared payloads: that they arrive, come back, and can be read only.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::sync::Mutex;

use super::super::Runtime;
use super::shared_payload::{SHARE_BYTES_MIN, SHARED_BYTES_MAX, ShmPayload};
use super::{RETURNED, ring};
use crate::published::{self, Shape, words_needed};
use crate::shared_payload::Source;
use crate::slab::{BASE_BYTES, FrameClass, Slab};
use crate::{Acceptor, Addr, Connection, Frame, FrameLimits, Handler, Listener, NetError, slab};

const LIMITS: FrameLimits = FrameLimits { head_bytes_max: 4096, payload_bytes_max: 8 << 20 };

/// Answers each frame with as many bytes of its frames as the head says.
struct Library {
    slab: Arc<Slab>,
    frames: Mutex<Vec<Arc<slab::Frame>>>,
    /// If there is one: the byte that the frames are filled with, another for each answer.
    edition: Option<AtomicU8>,
    /// Kept as by a server that has not heard of their end yet.
    conns: Mutex<Vec<Arc<dyn Connection>>>,
}

struct Entrance(Arc<Library>, Option<Arc<published::Writer>>);

impl Acceptor for Entrance {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(LIMITS);
        self.1.iter().for_each(|published| conn.offer(published));
        self.0.clone()
    }
}

impl Handler for Library {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        self.conns.lock().push(conn.clone());
        let mut left = u32::from_le_bytes(frame.head[..4].try_into().unwrap()) as usize;
        let mut frames = self.frames.lock();
        let edition = self.edition.as_ref().map(|edition| edition.fetch_add(1, SeqCst));
        edition.iter().for_each(|edition| frames.iter_mut().for_each(|frame| self.write(frame, *edition)));
        let mut held = Vec::new();
        for frame in frames.iter() {
            // Not from the beginning, so that pieces are not next to each other.
            let len = left.min(BASE_BYTES - 100);
            left -= len;
            if len > 0 {
                held.push((frame.clone(), 100..100 + len));
            }
        }
        let parts: Vec<&[u8]> = held.iter().map(|(frame, range)| &frame.bytes()[range.clone()]).collect();
        drop(conn.send_held(&[&frame.head[..4], &[edition.unwrap_or(0)]].concat(), &parts, &held));
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

impl Library {
    /// As the store does it: in place only if no reader holds the frame.
    fn write(&self, frame: &mut Arc<slab::Frame>, edition: u8) {
        if Arc::get_mut(frame).is_none() {
            *frame = Arc::new(self.slab.allocate(FrameClass::K64).expect("there is room for what is held"));
        }
        Arc::get_mut(frame).expect("nobody else has it").bytes_mut().fill(edition);
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

fn slab_of(frames: usize) -> Arc<Slab> {
    Slab::new((frames * BASE_BYTES) as u64).unwrap()
}

fn frames_of(slab: &Arc<Slab>, frames: usize) -> Vec<Arc<slab::Frame>> {
    let frames = (0..frames).map(|index| {
        let mut frame = slab.allocate(FrameClass::K64).unwrap();
        frame.bytes_mut().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + index) as u8);
        Arc::new(frame)
    });
    frames.collect()
}

fn place(name: &str) -> Place {
    let slab = slab_of(FRAMES);
    let frames = frames_of(&slab, FRAMES);
    place_with(name, slab, frames, None)
}

fn place_with(name: &str, slab: Arc<Slab>, frames: Vec<Arc<slab::Frame>>, edition: Option<AtomicU8>) -> Place {
    let path = std::env::temp_dir().join(format!("aze-lend-{name}-{}", std::process::id()));
    let path = path.to_str().unwrap().to_string();
    let library =
        Arc::new(Library { slab: slab.clone(), frames: Mutex::new(frames), edition, conns: Mutex::default() });
    let server = Runtime::server(1);
    server.io().share_slab(&slab);
    let listener = server.io().listen(&Addr::Unix(path.clone()), Arc::new(Entrance(library.clone(), None))).unwrap();
    Place { server, client: Runtime::client(), slab, library, path, _listener: listener }
}

impl Place {
    fn connect(&self) -> (Arc<dyn Connection>, Arc<Reader>) {
        self.connect_to(self.path.clone())
    }

    fn connect_to(&self, path: String) -> (Arc<dyn Connection>, Arc<Reader>) {
        connect(&self.client, path)
    }

    fn ask(&self, conn: &Arc<dyn Connection>, reader: &Reader, bytes: usize) -> Frame {
        ask(&self.client, conn, reader, bytes)
    }

    fn expected(&self, bytes: usize) -> Vec<u8> {
        let all: Vec<u8> = self.library.frames.lock().iter().flat_map(|frame| frame.bytes()[100..].to_vec()).collect();
        all[..bytes].to_vec()
    }

    /// How many have the frame that most have; one is the library itself.
    fn holders(&self) -> usize {
        self.library.frames.lock().iter().map(Arc::strong_count).max().unwrap()
    }

    fn await_holders(&self, wanted: usize, what: &str) {
        self.until(|| self.holders() == wanted, what);
    }

    fn until(&self, done: impl Fn() -> bool, what: &str) {
        until(&self.client, what, || done().then_some(()));
    }
}

fn until<T>(client: &Arc<Runtime>, what: &str, done: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(done) = done() {
            return done;
        }
        assert!(Instant::now() < deadline, "{what}");
        client.block_on(client.io().sleep(Duration::from_millis(1)));
    }
}

fn connect(client: &Arc<Runtime>, path: String) -> (Arc<dyn Connection>, Arc<Reader>) {
    let reader = Arc::new(Reader::default());
    let conn = client.block_on(client.io().connect(&Addr::Shm(path), reader.clone())).unwrap();
    conn.set_limits(LIMITS);
    (conn, reader)
}

fn ask(client: &Arc<Runtime>, conn: &Arc<dyn Connection>, reader: &Reader, bytes: usize) -> Frame {
    conn.send(&(bytes as u32).to_le_bytes(), &[]).unwrap();
    until(client, "the server answers", || reader.0.lock().pop())
}

impl Drop for Place {
    fn drop(&mut self) {
        self.client.shutdown();
        self.server.shutdown();
        self.library.conns.lock().clear();
    }
}

fn contents(frame: &Frame) -> Vec<u8> {
    let Some(shared) = &frame.shared else { return frame.payload.clone() };
    let mut bytes = vec![0; shared.len()];
    let (first, second) = bytes.split_at_mut(shared.len() / 3);
    assert!(shared.copy_to(0, first) && shared.copy_to(first.len(), second));
    assert!(!shared.copy_to(1, &mut vec![0; shared.len()]), "no more than was shared");
    bytes
}

fn shm_payload(frame: &Frame) -> Option<&ShmPayload> {
    match &frame.shared.as_ref()?.0 {
        Source::Shm(shared) => Some(shared),
        Source::Sim(_) => None,
    }
}

#[test]
fn large_data_are_shared_and_small_ones_sent() {
    let place = place("sizes");
    let (conn, reader) = place.connect();
    for round in 0..300 {
        for bytes in [1, SHARE_BYTES_MIN - 1, SHARE_BYTES_MIN, 3 * BASE_BYTES, 7 * BASE_BYTES] {
            let frame = place.ask(&conn, &reader, bytes);
            assert_eq!(frame.shared.is_some(), bytes >= SHARE_BYTES_MIN, "{bytes} in round {round}");
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
    assert_eq!(place.holders(), 4, "one here, and one for each shared payload");
    assert!(place.slab.allocate(FrameClass::K64).is_none(), "the slab is full");
    assert_eq!(place.holders(), 4, "nothing that is still out");
    drop(held);
    assert!(place.slab.allocate(FrameClass::K64).is_none(), "the slab is full");
    assert_eq!(place.holders(), 1, "whoever needs memory takes back what has come back");
}

#[test]
fn a_connection_that_ends_gives_back_all_and_whoever_reads_on_knows() {
    let place = place("ends");
    let (conn, reader) = place.connect();
    let frame = place.ask(&conn, &reader, 7 * BASE_BYTES);
    let shared = frame.shared.as_ref().unwrap();
    let mut bytes = vec![0; 300_000];
    assert!(shared.copy_to(5, &mut bytes));
    assert_eq!(place.holders(), 2);
    conn.close();
    place.await_holders(1, "a connection's end gives all back");
    assert!(!shared.copy_to(5, &mut bytes), "it is kept no more");
}

#[test]
fn shared_data_stay_as_they_were_until_they_are_given_back() {
    let slab = slab_of(40 * FRAMES);
    let frames = frames_of(&slab, FRAMES);
    let place = place_with("editions", slab, frames, Some(AtomicU8::new(1)));
    let ends: Vec<_> = (0..3).map(|_| place.connect()).collect();
    let mut held = VecDeque::new();
    let is_whole = |frame: &Frame| contents(frame).iter().all(|byte| *byte == frame.head[4]);
    for round in 0..300 {
        let (conn, reader) = &ends[round % 3];
        held.push_back(place.ask(conn, reader, 7 * BASE_BYTES));
        // Each is held through some answers, and each answer writes all frames anew.
        if held.len() > round % 11 {
            assert!(held.pop_front().is_some_and(|frame| is_whole(&frame)), "in round {round}");
        }
    }
    // One reads all the time while its connection ends and the frames are used for others.
    let frame = place.ask(&ends[0].0, &ends[0].1, 7 * BASE_BYTES);
    let reads = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (shared, mut bytes) = (frame.shared.as_ref().unwrap(), vec![0; 7 * BASE_BYTES]);
            let end = Instant::now() + Duration::from_secs(60);
            while shared.copy_to(0, &mut bytes) {
                assert!(Instant::now() < end, "it is never told that its connection has ended");
                assert!(bytes.iter().all(|byte| *byte == frame.head[4]), "what was said to be kept has changed");
                reads.fetch_add(1, SeqCst);
            }
        });
        place.until(|| reads.load(SeqCst) > 2 || reading.is_finished(), "it reads");
        ends[0].0.close();
        for _ in 0..200 {
            place.ask(&ends[1].0, &ends[1].1, 7 * BASE_BYTES);
        }
        place.until(|| reading.is_finished(), "whoever reads what is not kept is told");
    });
}

#[test]
fn a_client_that_is_killed_gives_back_all() {
    const PATH: &str = "AZE_TEST_LENDER";
    if let Ok(path) = std::env::var(PATH) {
        // The client: reads its shared payloads until it is killed.
        let client = Runtime::client();
        let (conn, reader) = connect(&client, path);
        let held: Vec<Frame> = (0..3).map(|_| ask(&client, &conn, &reader, 7 * BASE_BYTES)).collect();
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end && held.iter().all(|frame| contents(frame).len() == 7 * BASE_BYTES) {}
        return;
    }
    let place = place("killed");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "real::shm::shared_payload_tests::a_client_that_is_killed_gives_back_all"])
        .env(PATH, &place.path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    place.await_holders(4, "one here, and one for each shared payload");
    child.kill().unwrap();
    child.wait().unwrap();
    place.await_holders(1, "its end gives all back");
    let (conn, reader) = place.connect();
    assert!(contents(&place.ask(&conn, &reader, 150_000)) == place.expected(150_000), "the server serves others");
}

#[test]
fn so_many_bytes_are_shared_at_one_time_and_the_rest_is_sent() {
    const BYTES: usize = 1 << 20;
    let slab = slab_of(17);
    let frames = frames_of(&slab, 17);
    let place = place_with("bytes", slab, frames, None);
    let (conn, reader) = place.connect();
    let ask = || {
        let frame = place.ask(&conn, &reader, BYTES);
        assert!(contents(&frame) == place.expected(BYTES));
        frame
    };
    let mut held: Vec<Frame> = (0..SHARED_BYTES_MAX / BYTES).map(|_| ask()).collect();
    assert!(held.iter().all(|frame| frame.shared.is_some()));
    assert!(ask().shared.is_none(), "more is sent");
    assert!(place.ask(&conn, &reader, SHARE_BYTES_MIN).shared.is_none(), "however little");
    drop(held.pop());
    held.push(ask());
    assert!(held.iter().all(|frame| frame.shared.is_some()), "as much as came back is shared again");
    assert!(ask().shared.is_none());
}

#[test]
fn what_lies_elsewhere_is_sent() {
    let [slab, other] = [slab_of(FRAMES), slab_of(FRAMES)];
    let mut frames = frames_of(&slab, FRAMES);
    frames[1] = frames_of(&other, 2).pop().unwrap();
    let place = place_with("foreign", slab, frames, None);
    let (conn, reader) = place.connect();
    let frame = place.ask(&conn, &reader, 3 * BASE_BYTES);
    assert!(frame.shared.is_none(), "the client could not read it, or would read something else");
    assert!(contents(&frame) == place.expected(3 * BASE_BYTES));
}

#[test]
fn a_client_that_gives_nothing_back_gets_no_more_shared_data() {
    let place = place("hoard");
    let (conn, reader) = place.connect();
    let mut held = Vec::new();
    for round in 0..100 {
        let frame = place.ask(&conn, &reader, 150_000);
        assert!(contents(&frame) == place.expected(150_000), "round {round}");
        held.push(frame);
    }
    assert_eq!(held.iter().filter(|frame| frame.shared.is_some()).count(), 64);
    held.clear();
    assert!(place.ask(&conn, &reader, 150_000).shared.is_some(), "what came back is shared again");
}

#[test]
fn a_client_that_gives_back_what_it_has_not_harms_nobody() {
    let place = place("vain");
    let (conn, reader) = place.connect();
    let frame = place.ask(&conn, &reader, 150_000);
    let shm = shm_payload(&frame).unwrap().shm.clone();
    for _ in 0..3 {
        shm.word64(RETURNED).store(u64::MAX, SeqCst);
        assert!(contents(&place.ask(&conn, &reader, 150_000)) == place.expected(150_000));
    }
    drop(frame);
    let held: Vec<Frame> = (0..100).map(|_| place.ask(&conn, &reader, 150_000)).collect();
    let slots: BTreeSet<u64> = held.iter().filter_map(shm_payload).map(|shared| shared.slot).collect();
    assert_eq!(held.iter().filter(|frame| frame.shared.is_some()).count(), 64, "no slot more than there are");
    assert_eq!(slots.len(), 64, "and no slot twice");
    drop(held);
    assert!(place.slab.allocate(FrameClass::K64).is_none(), "the slab is full");
    assert_eq!(place.holders(), 1, "nothing is left over");
}

#[test]
fn a_published_index_and_shared_payloads_come_with_one_connection() {
    let place = place("both");
    let shapes = [Shape { key_words: 1, value_words: 1 }];
    let memory = place.server.io().share(words_needed(&shapes, &[2], 3)).expect("memory is to be had");
    let writer = Arc::new(published::Writer::begin(memory, &shapes, &[2], 3));
    writer.put(0, 7, &[7], &[8]);
    let path = format!("{}-slate", place.path);
    let entrance = Arc::new(Entrance(place.library.clone(), Some(writer)));
    let _listener = place.server.io().listen(&Addr::Unix(path.clone()), entrance).unwrap();
    let (conn, reader) = place.connect_to(path);
    let published =
        published::Reader::open(conn.offered().expect("it was offered"), &shapes).expect("it is a published index");
    let mut value = [0];
    assert!(published.read().find(0, 7, &[7], &mut value).is_some());
    assert_eq!(value, [8]);
    let frame = place.ask(&conn, &reader, SHARE_BYTES_MIN);
    assert!(frame.shared.is_some() && contents(&frame) == place.expected(SHARE_BYTES_MIN));
    assert!(place.connect().0.offered().is_none(), "what is shared is no published index");
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
fn nonsense_about_shared_payloads_is_refused() {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let place = place("nonsense");
    let (conn, reader) = place.connect();
    let shm = shm_payload(&place.ask(&conn, &reader, 150_000)).unwrap().shm.clone();
    let shared = |told: &[u8]| super::shared_payload::ShmPayload::new(shm.clone(), told, 100);
    assert!(shared(&words(&[63, 0, 60, 1 << 20, 40])).is_ok());
    let nonsense: [&[u64]; 6] = [&[], &[0], &[64, 0, 100], &[0, 0, 99], &[0, 0, u64::MAX, 0, 101], &[0, 0, 100, 0]];
    for told in nonsense {
        assert!(shared(&words(told)).is_err(), "{told:?}");
    }
    assert!(shared(&[1; 7]).is_err());
    // Beyond the end of the file, and around the end of all numbers.
    for start in [1 << 40, u64::MAX] {
        let shared = shared(&words(&[3, start, 100])).unwrap();
        assert!(!shared.copy_to(50, &mut [0; 10]), "{start}");
    }
    assert_ne!(ring::DATA, ring::SHARED);
}
