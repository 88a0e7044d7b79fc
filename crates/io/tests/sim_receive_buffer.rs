//! Payloads that a simulated node receives into frames: in parts, in their order, or not at all.

use aze_io::sim::{Faults, Sim, SlowPayloads};
use aze_io::slab::{BASE_BYTES, ReceiveBuffer, Slab};
use aze_io::sync::Mutex;
use aze_io::{Acceptor, Connection, Frame, FrameLimits, Handler, NetError};
use std::sync::Arc;
use std::time::Duration;

const ROOMY: FrameLimits = FrameLimits { head_bytes_max: 1 << 20, payload_bytes_max: 1 << 30 };

/// Records the frames that come, and the calls of `receive_buffer`.
struct Receiver {
    slab: Arc<Slab>,
    asked: Mutex<Vec<u8>>,
    came: Mutex<Vec<(u8, Vec<u8>, bool)>>,
    closed: Mutex<usize>,
}

struct Entrance(Arc<Receiver>);

impl Acceptor for Entrance {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(ROOMY);
        self.0.clone()
    }
}

impl Handler for Receiver {
    fn receive_buffer(&self, _conn: &Arc<dyn Connection>, head: &[u8], payload_bytes: usize) -> Option<ReceiveBuffer> {
        assert_eq!(
            self.asked.lock().len(),
            self.came.lock().iter().filter(|(_, bytes, _)| bytes.len() >= BASE_BYTES).count()
        );
        self.asked.lock().push(head[0]);
        self.slab.receive_buffer(0, payload_bytes / BASE_BYTES, payload_bytes % BASE_BYTES)
    }

    fn on_frame(&self, _conn: &Arc<dyn Connection>, mut frame: Frame) {
        let is_in_frames = frame.in_frames.is_some();
        self.came.lock().push((frame.head[0], frame.take_payload().into_bytes(), is_in_frames));
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        *self.closed.lock() += 1;
    }
}

struct Silent;

impl Handler for Silent {
    fn on_frame(&self, _conn: &Arc<dyn Connection>, _frame: Frame) {}
    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

struct World {
    sim: Sim,
    there: Arc<Receiver>,
    conn: Arc<dyn Connection>,
    _listener: Box<dyn aze_io::Listener>,
}

fn world(seed: u64, slow: Option<SlowPayloads>) -> World {
    let sim = Sim::new(seed, Faults::default());
    sim.set_slow_payloads(slow);
    let there = Arc::new(Receiver {
        slab: Slab::new(8 << 20).unwrap(),
        asked: Mutex::default(),
        came: Mutex::default(),
        closed: Mutex::default(),
    });
    let listener = sim.node("b").listen(&"tcp:b:7".parse().unwrap(), Arc::new(Entrance(there.clone()))).unwrap();
    let io = sim.node("a");
    let conn = sim.block_on(async move { io.connect(&"tcp:b:7".parse().unwrap(), Arc::new(Silent)).await }).unwrap();
    World { sim, there, conn, _listener: listener }
}

fn payload(number: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251 + usize::from(number)) as u8).collect()
}

fn settle(world: &World, time: Duration) {
    world.sim.block_on(world.sim.sleep(time));
}

#[test]
fn payloads_come_in_parts_and_frames_keep_their_order() {
    let sizes = [10, 65_535, 65_536, 200_000, 0];
    let run = |slow| {
        let world = world(5, slow);
        for number in 0..100u8 {
            let data = payload(number, sizes[usize::from(number) % 5]);
            world.conn.send(&[number], &[&data]).unwrap();
        }
        settle(&world, Duration::from_secs(100));
        let came = std::mem::take(&mut *world.there.came.lock());
        assert_eq!(came.len(), 100);
        for (index, (number, bytes, is_in_frames)) in came.into_iter().enumerate() {
            let size = sizes[index % 5];
            assert!(usize::from(number) == index && bytes == payload(number, size), "frame {index}");
            assert_eq!(is_in_frames, size >= 65_536);
        }
        assert_eq!(world.there.slab.used_bytes(), 0);
        assert_eq!(world.sim.counters().payloads_in_frames, 40);
        (world.sim.counters().payloads_paused, world.sim.trace_hash())
    };
    assert_eq!(run(None).0, 0);
    let slow = Some(SlowPayloads { pause_ppm: 500_000, pause_ns_max: 1_000_000_000 });
    let (paused, trace) = run(slow);
    assert!((10..30).contains(&paused), "{paused} of 40");
    assert_eq!(run(slow), (paused, trace), "the same seed gives the same run");
}

#[test]
fn what_ends_in_the_middle_gives_its_frames_back_and_is_never_heard_of() {
    let slow = Some(SlowPayloads { pause_ppm: 1_000_000, pause_ns_max: u64::MAX / 4 });
    let is_all_free = |world: &World| {
        let take = || world.there.slab.allocate(aze_io::slab::FrameClass::K64);
        std::iter::from_fn(take).collect::<Vec<_>>().len() == 128
    };
    for end in 0..3 {
        let world = world(end, slow);
        world.conn.send(&[1], &[&payload(1, 300_000)]).unwrap();
        world.conn.send(&[2], &[b"behind it"]).unwrap();
        settle(&world, Duration::from_millis(10));
        assert_eq!((world.there.asked.lock().len(), world.there.came.lock().len()), (1, 0));
        match end {
            0 => world.conn.close(),
            1 => world.sim.kill("a"),
            _ => world.sim.kill("b"),
        }
        settle(&world, Duration::from_millis(10));
        assert_eq!(*world.there.closed.lock(), usize::from(end < 2), "whoever lives is told");
        // No frame is held: not even by a payload that might come in a long time.
        let held = world.there.slab.receive_buffer(0, 16, 0);
        assert!(held.is_some(), "all that may come into frames at one time can");
        drop(held);
        assert!(is_all_free(&world) && world.there.came.lock().is_empty());
    }
}
