//! What the simulated world promises: one seed, one run; every fault on demand;
//! and nothing of a dead node left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aze_io::sim::{CLOCK_SKEW_NS_MAX, CONNECT_TIMEOUT_NS, DRIVER, Faults, Link, Sim, TRACE_EVENTS_MAX, WALL_BASE_NS};
use aze_io::sync::Mutex;
use aze_io::{
    Acceptor, Addr, Connection, Frame, FrameLimits, Handler, Io, LIMITS_BEFORE_HANDSHAKE, Listener, NetError,
    SEND_QUEUE_BYTES_MAX,
};
use futures_util::future::join_all;

const SECOND: Duration = Duration::from_secs(1);
const ROOMY: FrameLimits = FrameLimits { head_bytes_max: 1 << 20, payload_bytes_max: 1 << 30 };

type Conn = Arc<dyn Connection>;

/// Records its calls; sends frames back if `echo`.
#[derive(Default)]
struct Recorder {
    frames: Mutex<Vec<Frame>>,
    closed: Mutex<Vec<NetError>>,
    conns: Mutex<Vec<Conn>>,
    echo: bool,
}

impl Recorder {
    fn new() -> Arc<Recorder> {
        Arc::default()
    }

    fn echo() -> Arc<Recorder> {
        Arc::new(Recorder { echo: true, ..Recorder::default() })
    }

    fn heads(&self) -> Vec<u64> {
        self.frames.lock().iter().map(|frame| u64::from_le_bytes(frame.head[..8].try_into().unwrap())).collect()
    }

    fn closed(&self) -> Vec<NetError> {
        self.closed.lock().clone()
    }

    fn conn(&self) -> Conn {
        self.conns.lock().last().expect("a connection was accepted").clone()
    }
}

impl Handler for Recorder {
    fn on_frame(&self, conn: &Conn, frame: Frame) {
        if self.echo {
            let _closed_meanwhile = conn.send(&frame.head, &[&frame.payload]);
        }
        self.frames.lock().push(frame);
    }

    fn on_close(&self, _: &Conn, why: NetError) {
        self.closed.lock().push(why);
    }
}

/// Accepts every connection for one recorder.
struct Accepting(Arc<Recorder>);

impl Acceptor for Accepting {
    fn accept(&self, conn: &Conn) -> Arc<dyn Handler> {
        conn.set_limits(ROOMY);
        self.0.conns.lock().push(conn.clone());
        self.0.clone()
    }
}

fn addr(text: &str) -> Addr {
    text.parse().unwrap()
}

fn listen(io: &Io, at: &str, recorder: &Arc<Recorder>) -> Box<dyn Listener> {
    io.listen(&addr(at), Arc::new(Accepting(recorder.clone()))).unwrap()
}

/// A server on node `b` that records and a connection to it from node `a`.
struct Pair {
    sim: Sim,
    server: Arc<Recorder>,
    client: Arc<Recorder>,
    conn: Conn,
    listener: Box<dyn Listener>,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let sim = Sim::new(seed, Faults::default());
        let (server, client) = (Recorder::new(), Recorder::new());
        let listener = listen(&sim.node("b"), "tcp:b:7", &server);
        let conn = sim.block_on(sim.node("a").connect(&addr("tcp:b:7"), client.clone())).unwrap();
        conn.set_limits(ROOMY);
        Pair { sim, server, client, conn, listener }
    }

    fn send(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            self.conn.send(&number.to_le_bytes(), &[]).unwrap();
        }
    }

    fn settle(&self) {
        self.sim.block_on(self.sim.sleep(SECOND));
    }
}

fn panic_text(run: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("a panic was expected");
    payload.downcast_ref::<String>().expect("a text").clone()
}

/// Clients that talk to an echo under every fault, with one kill on the way.
fn rough_run(seed: u64, trace: bool) -> (u64, Vec<String>) {
    let faults = Faults {
        loss_ppm: 50_000,
        duplicate_ppm: 50_000,
        reorder_ppm: 50_000,
        flip_ppm: 50_000,
        connection_cut_ppm: 2_000,
        ..Faults::default()
    };
    let sim = Sim::new(seed, faults);
    if trace {
        sim.trace_on();
    }
    let server = Recorder::echo();
    let _listener = listen(&sim.node("server"), "tcp:server:1", &server);
    for client in 0..4 {
        let io = sim.node(&format!("client{client}"));
        io.clone().spawn(async move {
            loop {
                if let Ok(conn) = io.connect(&addr("tcp:server:1"), Recorder::new()).await {
                    conn.set_limits(ROOMY);
                    while conn.send(&io.random_u64().to_le_bytes(), &[b"bulk"]).is_ok() {
                        io.sleep(Duration::from_micros(io.random_u64() % 500)).await;
                    }
                }
                io.sleep(Duration::from_millis(1)).await;
            }
        });
    }
    sim.block_on(async {
        sim.sleep(Duration::from_millis(50)).await;
        sim.kill("client2");
        sim.log("client2", "was killed");
        sim.sleep(Duration::from_millis(50)).await;
    });
    let counters = sim.counters();
    assert!(counters.frames_lost > 0 && counters.frames_duplicated > 0 && counters.frames_flipped > 0, "{counters:?}");
    assert!(counters.frames_reordered > 0 && counters.connections_cut > 0, "{counters:?}");
    (sim.trace_hash(), sim.trace_dump())
}

#[test]
fn one_seed_gives_one_run() {
    let (hash, lines) = rough_run(7, true);
    assert_eq!((hash, lines), rough_run(7, true));
    assert_eq!(hash, rough_run(7, false).0, "keeping the trace changes nothing");
    assert_ne!(hash, rough_run(8, false).0);
}

#[test]
fn the_trace_keeps_the_last_events_as_text() {
    let sim = Sim::new(1, Faults::default());
    sim.trace_on();
    for number in 0..=TRACE_EVENTS_MAX {
        sim.log("a", format!("line {number}"));
    }
    let lines = sim.trace_dump();
    assert_eq!(lines.len(), TRACE_EVENTS_MAX);
    assert!(lines[0].ends_with("line 1"), "{}", lines[0]);
}

#[test]
fn the_order_of_tasks_depends_on_the_seed() {
    let order = |seed| {
        let sim = Sim::new(seed, Faults::default());
        let order: Arc<Mutex<Vec<u64>>> = Arc::default();
        for number in 0..10 {
            let order = order.clone();
            sim.node("a").spawn(async move { order.lock().push(number) });
        }
        sim.block_on(sim.sleep(SECOND));
        order.lock().clone()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn timers_that_are_due_together_fire_in_an_order_from_the_seed() {
    let order = |seed| {
        let sim = Sim::new(seed, Faults::default());
        let order: Arc<Mutex<Vec<u64>>> = Arc::default();
        let sleepers = (0..10).map(|number| {
            let (io, order) = (sim.node("a"), order.clone());
            async move {
                io.sleep_until(1000).await;
                order.lock().push(number);
            }
        });
        for sleeper in sleepers {
            sim.node("a").spawn(sleeper);
        }
        sim.block_on(sim.sleep(SECOND));
        order.lock().clone()
    };
    assert_eq!(order(1).len(), 10);
    assert_ne!(order(1), order(2));
}

#[test]
fn time_moves_only_when_nothing_can_run() {
    let sim = Sim::new(1, Faults::default());
    let io = sim.node("a");
    sim.block_on(async {
        assert_eq!(io.mono_ns(), 0);
        io.sleep(SECOND).await;
        assert_eq!(io.mono_ns(), 1_000_000_000);
        assert_eq!(io.timeout(SECOND, io.sleep(2 * SECOND)).await, None);
        assert_eq!(io.timeout(2 * SECOND, io.sleep(SECOND)).await, Some(()));
        assert_eq!(sim.now_ns(), 3_000_000_000);
    });
}

#[test]
fn a_deadlock_panics_with_the_seed() {
    let sim = Sim::new(4711, Faults::default());
    sim.node("a").spawn(std::future::pending());
    let text = panic_text(|| sim.block_on(std::future::pending()));
    assert!(text.starts_with("deadlock") && text.contains("seed 4711") && text.contains("a 1"), "{text}");
}

#[test]
fn the_time_limit_panics_with_seed_and_time() {
    let sim = Sim::new(4711, Faults::default());
    sim.set_time_limit(10 * SECOND);
    let text = panic_text(|| {
        sim.block_on(async {
            loop {
                sim.sleep(SECOND).await;
            }
        })
    });
    assert!(text.starts_with("time limit") && text.contains("seed 4711"), "{text}");
    assert!(text.contains("virtual time 10000000000 ns"), "{text}");
}

#[test]
fn a_task_that_spins_panics_with_the_seed() {
    let sim = Sim::new(4711, Faults::default());
    let io = sim.node("a");
    io.clone().spawn(async move {
        let mut sleep = std::pin::pin!(io.sleep(SECOND));
        std::future::poll_fn(move |cx| {
            // A task whose destructor calls the world, so that it must not run under the lock.
            assert!(sleep.as_mut().poll(cx).is_pending());
            cx.waker().wake_by_ref();
            std::task::Poll::<()>::Pending
        })
        .await;
    });
    let text = panic_text(|| sim.block_on(sim.sleep(SECOND)));
    assert!(text.starts_with("livelock") && text.contains("seed 4711"), "{text}");
}

#[test]
fn block_on_inside_block_on_panics() {
    let sim = Sim::new(4711, Faults::default());
    let text = panic_text(|| sim.block_on(async { sim.block_on(async {}) }));
    assert!(text.contains("seed 4711"), "{text}");
    sim.block_on(async {});
}

#[test]
fn wall_clocks_are_skewed_and_can_step() {
    let sim = Sim::new(1, Faults::default());
    let (a, b) = (sim.node("a"), sim.node("b"));
    let error_ns = |io: &Io| io.wall_ns() as i64 - WALL_BASE_NS - io.mono_ns() as i64;
    assert_ne!(error_ns(&a), error_ns(&b));
    assert!(error_ns(&a).abs() <= CLOCK_SKEW_NS_MAX && error_ns(&b).abs() <= CLOCK_SKEW_NS_MAX);
    let (a_before, b_before) = (error_ns(&a), error_ns(&b));
    sim.step_clock("a", -3_000_000_000);
    sim.block_on(sim.sleep(SECOND));
    assert_eq!(error_ns(&a), a_before - 3_000_000_000);
    assert_eq!(error_ns(&b), b_before);
    sim.kill("a");
    assert_eq!(error_ns(&sim.node("a")), a_before - 3_000_000_000, "a clock outlives the process");
}

#[test]
fn random_streams_differ_by_node_incarnation_and_label() {
    let sim = Sim::new(1, Faults::default());
    let first = sim.node("a").random_u64();
    assert_ne!(first, sim.node("b").random_u64());
    sim.kill("a");
    assert_ne!(first, sim.node("a").random_u64());
    assert_eq!(sim.rng("x").u64(), sim.rng("x").u64());
    assert_ne!(sim.rng("x").u64(), sim.rng("y").u64());
    assert_ne!(sim.rng("x").u64(), Sim::new(2, Faults::default()).rng("x").u64());
}

#[test]
fn workload_randomness_has_the_right_shape() {
    let mut rng = Sim::new(1, Faults::default()).rng("shape");
    let hits = (0..100_000).filter(|_| rng.chance(250_000)).count();
    assert!((24_000..26_000).contains(&hits), "{hits}");
    assert!(!rng.chance(0) && rng.chance(1_000_000));
    let mut items: Vec<u64> = (0..100).collect();
    rng.shuffle(&mut items);
    assert!(!items.is_sorted());
    items.sort_unstable();
    assert_eq!(items, (0..100).collect::<Vec<_>>());
    let mut picked = [0; 4];
    (0..4000).for_each(|_| picked[*rng.pick(&[0_usize, 1, 2, 3])] += 1);
    assert!(picked.iter().all(|&count| count > 800), "{picked:?}");
}

#[test]
fn frames_arrive_whole_and_in_order_both_ways() {
    let pair = Pair::new(1);
    pair.send(0..1000);
    pair.conn.send(&1000_u64.to_le_bytes(), &[b"bu", b"", b"lk"]).unwrap();
    for number in 0..1000_u64 {
        pair.server.conn().send(&number.to_le_bytes(), &[]).unwrap();
    }
    pair.settle();
    assert_eq!(pair.server.heads(), (0..=1000).collect::<Vec<_>>());
    assert_eq!(pair.server.frames.lock()[1000].payload, b"bulk");
    assert_eq!(pair.client.heads(), (0..1000).collect::<Vec<_>>());
    assert_ne!(pair.conn.id(), pair.server.conn().id());
    assert_eq!((pair.conn.peer().name.as_str(), pair.conn.peer().credentials), ("tcp:b:7", None));
}

#[test]
fn frames_sent_while_accepting_arrive() {
    struct Greeting;
    impl Acceptor for Greeting {
        fn accept(&self, conn: &Conn) -> Arc<dyn Handler> {
            conn.send(&1_u64.to_le_bytes(), &[]).unwrap();
            conn.close();
            Recorder::new()
        }
    }
    for seed in 0..50 {
        let reorder_ppm = if seed % 2 == 0 { 0 } else { 500_000 };
        let sim = Sim::new(seed, Faults { reorder_ppm, reorder_delay_ns_max: 1, ..Faults::default() });
        let _listener = sim.node("b").listen(&addr("tcp:b:7"), Arc::new(Greeting)).unwrap();
        let client = Recorder::new();
        sim.block_on(async {
            sim.node("a").connect(&addr("tcp:b:7"), client.clone()).await.unwrap();
            sim.sleep(SECOND).await;
        });
        assert_eq!(client.closed().len(), 1);
        assert!(reorder_ppm > 0 || client.heads() == [1], "seed {seed}");
    }
}

#[test]
fn a_node_reaches_itself_by_port_and_by_path() {
    let sim = Sim::new(1, Faults::default());
    let (server, client, io) = (Recorder::echo(), Recorder::new(), sim.node("a"));
    let tcp = listen(&io, "tcp:0.0.0.0:0", &server);
    let unix = listen(&io, "unix:/run/a", &server);
    assert!(matches!(tcp.addr(), Addr::Tcp(host, port) if host == "a" && *port > 0), "{}", tcp.addr());
    assert_ne!(listen(&io, "tcp:a:0", &server).addr(), tcp.addr());
    sim.block_on(async {
        for at in [tcp.addr(), unix.addr()] {
            io.connect(at, client.clone()).await.unwrap().send(&5_u64.to_le_bytes(), &[]).unwrap();
        }
        let elsewhere = sim.node("b").connect(unix.addr(), Recorder::new()).await;
        assert!(matches!(elsewhere, Err(NetError::Unreachable(_))), "each node has its own paths");
        sim.sleep(SECOND).await;
    });
    assert_eq!(client.heads(), [5, 5]);
}

#[test]
fn an_address_is_listened_on_once_and_freed_by_drop() {
    let pair = Pair::new(1);
    let again = |at: &str| pair.sim.node("b").listen(&addr(at), Arc::new(Accepting(Recorder::new())));
    assert!(matches!(again("tcp:b:7"), Err(NetError::Listen(_))));
    assert!(matches!(again("tcp:a:8"), Err(NetError::Listen(_))));
    drop(pair.listener);
    let refused = pair.sim.block_on(pair.sim.node("a").connect(&addr("tcp:b:7"), Recorder::new()));
    assert!(matches!(refused, Err(NetError::Unreachable(why)) if why.contains("refused")));
    assert!(pair.sim.now_ns() < CONNECT_TIMEOUT_NS);
    let unknown = pair.sim.block_on(pair.sim.node("a").connect(&addr("tcp:nowhere:7"), Recorder::new()));
    assert!(matches!(unknown, Err(NetError::Unreachable(_))));
    again("tcp:b:7").unwrap();
}

#[test]
fn close_is_heard_once_on_both_ends_behind_the_frames() {
    let pair = Pair::new(1);
    pair.send(0..10);
    pair.conn.close();
    pair.conn.close();
    assert!(pair.client.closed().is_empty(), "handlers are not called from inside close");
    assert!(matches!(pair.conn.send(b"", &[]), Err(NetError::Closed(_))));
    pair.settle();
    assert_eq!((pair.client.closed().len(), pair.server.closed().len()), (1, 1));
    assert_eq!(pair.server.heads(), (0..10).collect::<Vec<_>>());
    assert!(matches!(pair.server.conn().send(b"", &[]), Err(NetError::Closed(_))));
}

#[test]
fn a_dropped_connect_leaves_no_connection() {
    let mut accepted = [0; 2];
    for wait_us in (0..500).step_by(5) {
        let pair = Pair::new(wait_us);
        let (sim, io) = (&pair.sim, pair.sim.node("a"));
        sim.block_on(async {
            let connect = async { io.connect(&addr("tcp:b:7"), Recorder::new()).await.map(|conn| conn.close()) };
            let _result = io.timeout(Duration::from_micros(wait_us), connect).await;
            sim.sleep(SECOND).await;
        });
        let extra = pair.server.conns.lock().len() - 1;
        assert_eq!(pair.server.closed().len(), extra, "given up after {wait_us} us");
        accepted[extra] += 1;
    }
    assert!(accepted.iter().all(|&count| count > 10), "both ways were taken: {accepted:?}");
}

#[test]
fn a_frame_over_the_limit_closes_the_connection() {
    for (head, payload) in [(vec![0; 4097], vec![]), (vec![0; 1], vec![0; 1])] {
        let pair = Pair::new(1);
        pair.server.conn().set_limits(LIMITS_BEFORE_HANDSHAKE);
        pair.conn.send(&[0; 4096], &[]).unwrap();
        pair.conn.send(&head, &[&payload]).unwrap();
        pair.settle();
        assert_eq!(pair.server.frames.lock().len(), 1);
        assert!(matches!(pair.server.closed()[..], [NetError::Limit(_)]));
        assert!(matches!(pair.client.closed()[..], [NetError::Closed(_)]));
    }
}

#[test]
fn a_new_connection_has_the_limits_before_the_handshake() {
    let pair = Pair::new(1);
    let client = Recorder::new();
    let conn = pair.sim.block_on(pair.sim.node("a").connect(&addr("tcp:b:7"), client.clone())).unwrap();
    pair.server.conn().send(&[0; 4097], &[]).unwrap();
    pair.settle();
    assert!(matches!(client.closed()[..], [NetError::Limit(_)]));
    assert!(conn.send(b"", &[]).is_err());
}

#[test]
fn a_send_queue_that_is_full_closes_the_connection() {
    let pair = Pair::new(1);
    let half = vec![0; SEND_QUEUE_BYTES_MAX / 2];
    pair.conn.send(b"", &[&half]).unwrap();
    pair.settle();
    pair.conn.send(b"", &[&half]).unwrap();
    pair.conn.send(b"", &[&half]).unwrap();
    assert!(matches!(pair.conn.send(b"x", &[]), Err(NetError::Limit(_))));
    pair.settle();
    assert!(matches!(pair.client.closed()[..], [NetError::Limit(_)]));
    assert_eq!(pair.server.closed().len(), 1);
}

#[test]
fn lost_frames_do_not_arrive() {
    let pair = Pair::new(1);
    pair.sim.set_faults(Faults { loss_ppm: 100_000, ..Faults::default() });
    pair.send(0..10_000);
    pair.settle();
    let (counters, heads) = (pair.sim.counters(), pair.server.heads());
    assert!((800..1200).contains(&counters.frames_lost), "{counters:?}");
    assert_eq!(heads.len() as u64, 10_000 - counters.frames_lost);
    assert!(heads.is_sorted(), "loss alone keeps the order");
}

#[test]
fn duplicated_frames_arrive_twice() {
    let pair = Pair::new(1);
    pair.sim.set_faults(Faults { duplicate_ppm: 100_000, ..Faults::default() });
    pair.send(0..10_000);
    pair.settle();
    let (counters, mut heads) = (pair.sim.counters(), pair.server.heads());
    assert!((800..1200).contains(&counters.frames_duplicated), "{counters:?}");
    assert_eq!(heads.len() as u64, 10_000 + counters.frames_duplicated);
    assert!(heads.is_sorted(), "duplication alone keeps the order");
    heads.dedup();
    assert_eq!(heads.len(), 10_000);
}

#[test]
fn reordered_frames_all_arrive() {
    let pair = Pair::new(1);
    pair.sim.set_faults(Faults { reorder_ppm: 100_000, ..Faults::default() });
    pair.send(0..10_000);
    pair.settle();
    let mut heads = pair.server.heads();
    assert!(!heads.is_sorted());
    heads.sort_unstable();
    assert_eq!(heads, (0..10_000).collect::<Vec<_>>());
}

#[test]
fn a_flip_inverts_one_bit_of_head_or_payload() {
    let pair = Pair::new(1);
    pair.sim.set_faults(Faults { flip_ppm: 1_000_000, ..Faults::default() });
    for _ in 0..100 {
        pair.conn.send(&[0; 8], &[&[0; 8]]).unwrap();
    }
    pair.conn.send(&[], &[]).unwrap();
    pair.settle();
    let ones = |bytes: &[u8]| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    let frames = pair.server.frames.lock();
    assert!(frames[..100].iter().all(|frame| ones(&frame.head) + ones(&frame.payload) == 1));
    assert!(frames.iter().any(|frame| ones(&frame.head) == 1) && frames.iter().any(|frame| ones(&frame.payload) == 1));
    assert_eq!(pair.sim.counters().frames_flipped, 100, "an empty frame has no bit");
}

#[test]
fn a_cut_closes_both_ends_instead_of_sending() {
    for seed in 0..10 {
        let pair = Pair::new(seed);
        pair.sim.set_faults(Faults { connection_cut_ppm: 1_000_000, ..Faults::default() });
        let _may_fail_at_once = pair.conn.send(b"x", &[]);
        assert!(pair.conn.send(b"x", &[]).is_err());
        pair.settle();
        assert_eq!((pair.client.closed().len(), pair.server.closed().len()), (1, 1));
        assert_eq!((pair.server.frames.lock().len(), pair.sim.counters().connections_cut), (0, 1));
    }
}

#[test]
fn frames_vanish_one_way_while_a_link_is_down() {
    let pair = Pair::new(1);
    pair.send(0..1);
    pair.sim.set_link("a", "b", Link::Down);
    pair.send(1..2);
    pair.server.conn().send(&9_u64.to_le_bytes(), &[]).unwrap();
    pair.settle();
    assert_eq!(pair.server.heads(), [], "what was on the way is lost too");
    assert_eq!(pair.client.heads(), [9], "the way back is open");
    assert_eq!(pair.sim.counters().frames_vanished, 2);
    pair.sim.heal();
    pair.send(2..3);
    pair.settle();
    assert_eq!(pair.server.heads(), [2], "the connection did not close by itself");
    assert!(pair.client.closed().is_empty() && pair.server.closed().is_empty());
}

#[test]
fn a_close_is_not_heard_over_a_link_that_is_down_but_a_later_frame_is_answered() {
    let pair = Pair::new(1);
    pair.sim.set_link("a", "b", Link::Down);
    pair.conn.close();
    pair.settle();
    assert_eq!((pair.client.closed().len(), pair.server.closed().len()), (1, 0));
    pair.sim.set_link("a", "b", Link::Up);
    pair.settle();
    assert_eq!(pair.server.closed().len(), 0);
    pair.server.conn().send(b"x", &[]).unwrap();
    pair.settle();
    assert_eq!(pair.server.closed().len(), 1);
}

#[test]
fn connects_time_out_while_a_link_is_down_either_way() {
    for (from, to) in [("a", "b"), ("b", "a")] {
        let pair = Pair::new(1);
        pair.sim.set_link(from, to, Link::Down);
        let start_ns = pair.sim.now_ns();
        let result = pair.sim.block_on(pair.sim.node("a").connect(&addr("tcp:b:7"), Recorder::new()));
        assert!(matches!(result, Err(NetError::Unreachable(why)) if why.contains("timed out")));
        assert_eq!(pair.sim.now_ns() - start_ns, CONNECT_TIMEOUT_NS);
    }
}

/// Calls back into the world when it is dropped.
struct Meddler {
    sim: Sim,
    io: Io,
    conn: Conn,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.conn.close();
        assert!(self.conn.send(b"x", &[]).is_err());
        let dropped = DropCount(self.dropped.clone());
        self.io.spawn(async move { drop(dropped) });
        assert!(self.io.listen(&addr("tcp:a:1"), Arc::new(Accepting(Recorder::new()))).is_err());
        self.sim.kill("a");
        self.sim.now_ns();
    }
}

struct DropCount(Arc<AtomicUsize>);

impl Drop for DropCount {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn destructors_may_call_the_world_while_their_node_is_killed() {
    let pair = Pair::new(1);
    let dropped: Arc<AtomicUsize> = Arc::default();
    let io = pair.sim.node("a");
    for task in 0..3 {
        let (sim, io, conn, dropped) = (pair.sim.clone(), io.clone(), pair.conn.clone(), dropped.clone());
        io.clone().spawn(async move {
            let meddler = Meddler { sim, io, conn, dropped };
            let others = [1, 2, 3].map(|seconds| meddler.io.sleep(seconds * SECOND));
            if task == 0 {
                meddler.io.sleep(Duration::from_millis(1)).await;
                meddler.sim.kill("a");
            }
            join_all(others).await;
            unreachable!("a killed task took another step");
        });
    }
    pair.settle();
    pair.settle();
    assert_eq!(dropped.load(Ordering::Relaxed), 6, "three tasks, and one refused by each of their destructors");
    assert_eq!(pair.server.closed().len(), 1);
}

#[test]
fn a_killed_node_is_gone_and_its_peers_hear_of_it() {
    let pair = Pair::new(1);
    let (sim, a) = (&pair.sim, pair.sim.node("a"));
    pair.send(0..1);
    pair.server.conn().send(&1_u64.to_le_bytes(), &[]).unwrap();
    sim.kill("a");
    assert!(matches!(pair.conn.send(b"x", &[]), Err(NetError::Closed(_))));
    pair.settle();
    assert_eq!(pair.server.heads(), [0], "what was on the way arrives");
    assert!(matches!(pair.server.closed()[..], [NetError::Closed(_)]));
    assert!(pair.client.frames.lock().is_empty() && pair.client.closed().is_empty(), "the dead hear nothing");
    let dead = sim.block_on(a.connect(&addr("tcp:b:7"), Recorder::new()));
    assert!(matches!(dead, Err(NetError::Unreachable(_))));
    let dropped: Arc<AtomicUsize> = Arc::default();
    let count = DropCount(dropped.clone());
    a.spawn(async move { drop(count) });
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    let text = panic_text(|| sim.block_on(a.sleep(SECOND)));
    assert!(text.starts_with("deadlock"), "timers of the dead are gone: {text}");
}

#[test]
fn a_connect_under_way_fails_when_its_node_is_killed() {
    let pair = Pair::new(1);
    pair.sim.set_link("a", "b", Link::Down);
    let a = pair.sim.node("a");
    let sim = pair.sim.clone();
    pair.sim.node("b").spawn(async move { sim.kill("a") });
    let start_ns = pair.sim.now_ns();
    let result = pair.sim.block_on(a.connect(&addr("tcp:b:7"), Recorder::new()));
    assert!(matches!(result, Err(NetError::Unreachable(_))));
    assert_eq!(pair.sim.now_ns(), start_ns);
}

#[test]
fn a_killed_server_refuses_until_it_is_started_again() {
    let pair = Pair::new(1);
    let (sim, client) = (&pair.sim, pair.sim.node("a"));
    sim.kill("b");
    let start_ns = sim.now_ns();
    assert!(matches!(sim.block_on(client.connect(&addr("tcp:b:7"), Recorder::new())), Err(NetError::Unreachable(_))));
    assert!(sim.now_ns() - start_ns < CONNECT_TIMEOUT_NS);
    let server = Recorder::echo();
    let _listener = listen(&sim.node("b"), "tcp:b:7", &server);
    drop(pair.listener);
    let answers = Recorder::new();
    let conn = sim.block_on(client.connect(&addr("tcp:b:7"), answers.clone())).unwrap();
    conn.send(&3_u64.to_le_bytes(), &[]).unwrap();
    sim.block_on(sim.sleep(SECOND));
    assert_eq!(answers.heads(), [3], "dropping the old incarnation's listener does not close the new one");
    assert_eq!(pair.client.closed().len(), 1);
}

#[test]
fn a_silent_kill_is_heard_only_after_the_restart() {
    let pair = Pair::new(1);
    let sim = &pair.sim;
    sim.kill_silently("b");
    pair.send(0..1);
    pair.settle();
    assert!(pair.client.closed().is_empty());
    let start_ns = sim.now_ns();
    assert!(sim.block_on(sim.node("a").connect(&addr("tcp:b:7"), Recorder::new())).is_err());
    assert_eq!(sim.now_ns() - start_ns, CONNECT_TIMEOUT_NS, "nobody refuses either");
    sim.node("b");
    pair.settle();
    assert!(pair.client.closed().is_empty());
    pair.send(1..2);
    pair.settle();
    assert_eq!(pair.client.closed().len(), 1);
    assert!(pair.server.heads().is_empty());
}

#[test]
fn a_kill_behind_a_link_that_is_down_is_not_heard() {
    let pair = Pair::new(1);
    pair.sim.set_link("b", "a", Link::Down);
    pair.sim.kill("b");
    pair.settle();
    pair.sim.heal();
    pair.settle();
    assert!(pair.client.closed().is_empty());
}

#[test]
fn wakers_of_dead_and_ended_tasks_are_harmless() {
    let sim = Sim::new(1, Faults::default());
    let kept: Arc<Mutex<Vec<std::task::Waker>>> = Arc::default();
    for ends in [false, true] {
        let kept = kept.clone();
        sim.node("a").spawn(std::future::poll_fn(move |cx| {
            kept.lock().push(cx.waker().clone());
            if ends { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        }));
    }
    sim.block_on(sim.sleep(SECOND));
    sim.kill("a");
    kept.lock().iter().for_each(std::task::Waker::wake_by_ref);
    sim.block_on(sim.sleep(SECOND));
    assert_eq!(kept.lock().len(), 2);
}

#[test]
fn dropping_the_world_drops_its_tasks_and_handlers() {
    struct Silent(#[allow(dead_code, reason = "it is there to be dropped")] DropCount);
    impl Handler for Silent {
        fn on_frame(&self, _: &Conn, _: Frame) {}
        fn on_close(&self, _: &Conn, _: NetError) {}
    }
    let dropped: Arc<AtomicUsize> = Arc::default();
    let pair = Pair::new(1);
    let (io, handler) = (pair.sim.node("a"), Arc::new(Silent(DropCount(dropped.clone()))));
    let conn = pair.sim.block_on(io.connect(&addr("tcp:b:7"), handler)).unwrap();
    let count = DropCount(dropped.clone());
    io.clone().spawn(async move {
        let _count = count;
        io.sleep(SECOND).await;
        let _conn = conn;
    });
    pair.sim.node(DRIVER);
    pair.sim.block_on(pair.sim.sleep(SECOND / 2));
    drop(pair.sim);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
}
