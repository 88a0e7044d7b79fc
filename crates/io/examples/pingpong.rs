//! Measures the roundtrip between a client's runtime and a server's in another process.
//!
//! `cargo run --release -p aze-io --example pingpong [ROUNDS]` prints, for TCP, local
//! sockets and shared memory, three payload sizes and both ways of answering, the median and the 99th percentile
//! in µs: `write` is answered without payload, `echo` with the same. The client is one thread
//! inside `block_on`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use aze_io::real::Runtime;
use aze_io::sync::Mutex;
use aze_io::{Acceptor, Addr, Connection, Frame, FrameLimits, Handler, NetError};

const LIMITS: FrameLimits = FrameLimits { head_bytes_max: 4096, payload_bytes_max: 16 << 20 };
const SIZES_BYTES: [(usize, usize); 3] = [(64, 1), (64 << 10, 4), (1 << 20, 40)];
const ROUNDS: usize = 40_000;
const WARM_UP: usize = 200;
const HEAD_ECHO: &[u8] = b"echo 0123456789a";
const HEAD_WRITE: &[u8] = b"write 0123456789";

struct Echo;

impl Acceptor for Echo {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(LIMITS);
        Arc::new(Echo)
    }
}

impl Handler for Echo {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        let payload = if frame.head == HEAD_ECHO { &frame.payload[..] } else { &[] };
        // A client that has left is told by on_close.
        drop(conn.send(&frame.head, &[payload]));
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

/// Hands one reply at a time to who waits for it.
#[derive(Default)]
struct Reply {
    came: AtomicBool,
    frame: Mutex<Option<Frame>>,
    waker: Mutex<Option<Waker>>,
}

impl Handler for Reply {
    fn on_frame(&self, _conn: &Arc<dyn Connection>, frame: Frame) {
        *self.frame.lock() = Some(frame);
        self.came.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

impl Reply {
    async fn next(&self) -> Frame {
        std::future::poll_fn(|cx| {
            *self.waker.lock() = Some(cx.waker().clone());
            if self.came.swap(false, Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.frame.lock().take().expect("it came")
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("serve") => serve(args[1].parse().expect("an address"), args[2].parse().expect("workers")),
        rounds => measure_all(rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"))),
    }
}

/// Serves until its standard input ends.
fn serve(addr: Addr, workers: usize) {
    let runtime = Runtime::server(workers);
    let listener = runtime.io().listen(&addr, Arc::new(Echo)).expect("the address is free");
    println!("{}", listener.addr());
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the parent closes it");
    drop(listener);
    runtime.shutdown();
}

fn start_server(addr: &Addr, workers: usize) -> (Child, Addr) {
    let program = std::env::current_exe().expect("we run from a file");
    let mut command = Command::new(program);
    command.args(["serve", &addr.to_string(), &workers.to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("it says where it listens");
    (child, line.trim().parse().expect("an address"))
}

fn measure_all(rounds: usize) {
    let path = std::env::temp_dir().join(format!("aze-pingpong-{}", std::process::id()));
    let unix = Addr::Unix(path.to_str().expect("a plain path").into());
    let shm = Addr::Shm(path.to_str().expect("a plain path").into());
    for workers in [1, 2] {
        for addr in [Addr::Tcp("127.0.0.1".into(), 0), unix.clone(), shm.clone()] {
            let (mut child, addr) = start_server(&addr, workers);
            let kind = addr.to_string();
            let kind = kind.split(':').next().expect("an address has a kind");
            for (bytes, divisor) in SIZES_BYTES {
                for (way, head) in [("write", HEAD_WRITE), ("echo", HEAD_ECHO)] {
                    let [p50, p99] = measure(&addr, head, bytes, rounds / divisor);
                    println!("{workers} workers {kind:4} {way:5} {bytes:8} bytes p50 {p50:7.1} µs p99 {p99:7.1} µs");
                }
            }
            drop(child.stdin.take());
            child.wait().expect("it ends");
        }
    }
}

fn measure(addr: &Addr, head: &[u8], bytes: usize, rounds: usize) -> [f64; 2] {
    let runtime = Runtime::client();
    let io = runtime.io();
    let reply = Arc::new(Reply::default());
    let conn = runtime.block_on(io.connect(addr, reply.clone())).expect("the server listens");
    conn.set_limits(LIMITS);
    let payload = vec![7; bytes];
    let mut times_ns = Vec::with_capacity(rounds);
    for round in 0..rounds + WARM_UP {
        let start_ns = io.mono_ns();
        conn.send(head, &[&payload]).expect("the server reads");
        let frame = runtime.block_on(reply.next());
        let end_ns = io.mono_ns();
        assert!(frame.head == head && [0, bytes].contains(&frame.payload.len()), "the reply is whole");
        if round >= WARM_UP {
            times_ns.push(end_ns - start_ns);
        }
    }
    runtime.shutdown();
    times_ns.sort_unstable();
    [50, 99].map(|percent| times_ns[times_ns.len() * percent / 100] as f64 / 1000.0)
}
