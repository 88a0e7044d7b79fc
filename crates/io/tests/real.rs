//! The real runtime, from outside: echo servers over TCP and local sockets, and everything that
//! may go wrong on the way.

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use aze_io::real::{READ_PAUSE_BYTES, Runtime};
use aze_io::{Addr, NetError, SEND_QUEUE_BYTES_MAX, Task};
use futures_channel::oneshot;
use support::{
    Caller, LIMITS, Silent, Wire, echo_server, frame_bytes, socket_path, taken_of_flood, tcp_any, wait_until,
};

fn each(test: impl Fn(Wire)) {
    test(Wire::Tcp);
    test(Wire::Unix);
    test(Wire::Shm);
}

#[test]
fn echoes_frames_of_any_size() {
    each(|wire| {
        let server = echo_server(wire, 2);
        let client = Runtime::client();
        let caller = Caller::connect(&client, server.addr());
        let mut size = 1;
        while size <= 8 << 20 {
            for payload_bytes in [0, size - 1, size, size + 1] {
                let payload: Vec<u8> = (0..payload_bytes).map(|at| (at * 31 + size) as u8).collect();
                let frame = client.block_on(caller.call(&payload)).unwrap();
                assert!(frame.payload == payload, "{payload_bytes} bytes over {wire:?}");
            }
            size *= 4;
        }
    });
}

#[test]
fn eight_threads_make_a_hundred_thousand_calls() {
    each(|wire| {
        let server = echo_server(wire, 2);
        let client = Runtime::client();
        let callers: Vec<_> = (0..3).map(|_| Caller::connect(&client, server.addr())).collect();
        calls_from_threads(&client, &callers, 8, 6_250);
    });
}

#[test]
fn callers_and_the_background_thread_take_turns() {
    let server = echo_server(Wire::Unix, 1);
    let client = Runtime::client();
    client.background().unwrap();
    client.background().unwrap();
    let callers = [Caller::connect(&client, server.addr())];
    calls_from_threads(&client, &callers, 1, 10_000);
    calls_from_threads(&client, &callers, 3, 3_000);
    // No thread is in block_on now: the background thread alone serves the timer and the reply.
    let (told, hears) = std::sync::mpsc::channel();
    let (io, caller) = (client.io(), callers[0].clone());
    client.io().spawn(async move {
        io.sleep(Duration::from_millis(5)).await;
        told.send(caller.call(b"from a task").await).unwrap();
    });
    let frame = hears.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
    assert_eq!(frame.payload, b"from a task");
    client.shutdown();
}

fn calls_from_threads(client: &Arc<Runtime>, callers: &[Arc<Caller>], threads: usize, calls: usize) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let caller = &callers[thread % callers.len()];
            scope.spawn(move || {
                for call in 0..calls {
                    let payload = ((thread * calls + call) as u64).to_le_bytes();
                    let reply = client.block_on(caller.call(&payload)).unwrap();
                    assert_eq!(reply.payload, payload);
                }
            });
        }
    });
}

#[test]
fn many_connections_at_once() {
    each(|wire| {
        let server = echo_server(wire, 3);
        let client = Runtime::client();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (client, server) = (&client, &server);
                scope.spawn(move || {
                    let callers: Vec<_> = (0..100).map(|_| Caller::connect(client, server.addr())).collect();
                    for (index, caller) in callers.iter().enumerate() {
                        let payload = vec![index as u8; 10_000 + thread];
                        assert_eq!(client.block_on(caller.call(&payload)).unwrap().payload, payload);
                    }
                });
            }
        });
        assert_eq!(server.accepted(), 400);
    });
}

#[test]
fn many_calls_in_flight_on_one_connection() {
    each(|wire| {
        let server = echo_server(wire, 2);
        let client = Runtime::client();
        let caller = Caller::connect(&client, server.addr());
        let calls: Vec<_> = (0..400u32).map(|call| caller.call(&vec![call as u8; 100_000])).collect();
        client.block_on(async {
            for (call, reply) in calls.into_iter().enumerate() {
                assert!(reply.await.unwrap().payload == vec![call as u8; 100_000]);
            }
        });
    });
}

#[test]
fn a_frame_beyond_the_limits_ends_the_connection() {
    each(|wire| {
        let server = echo_server(wire, 1);
        let client = Runtime::client();
        let caller = Caller::connect(&client, server.addr());
        let payload = vec![0; LIMITS.payload_bytes_max as usize + 1];
        assert!(client.block_on(caller.call(&payload)).is_err());
        wait_until("the server noticed", || server.closes() == 1);
        assert!(matches!(server.last_close(), Some(NetError::Limit(_))));
        assert_eq!(caller.closes(), 1);
        assert!(matches!(caller.conn().send(b"h", &[]), Err(NetError::Closed(_))));
    });
}

#[test]
fn a_stranger_may_send_little() {
    let server = support::server_with_default_limits();
    let mut stream = TcpStream::connect(server.socket_addr()).unwrap();
    stream.write_all(&frame_bytes(&[1; 5000], &[])).unwrap();
    wait_until("it was cut off", || server.closes() == 1);
    assert!(matches!(server.last_close(), Some(NetError::Limit(_))));
}

#[test]
fn a_head_of_no_bytes_is_refused() {
    let server = echo_server(Wire::Tcp, 1);
    let client = Runtime::client();
    let caller = Caller::connect(&client, server.addr());
    assert!(matches!(caller.conn().send(b"", &[b"x"]), Err(NetError::Limit(_))));
    let mut stream = TcpStream::connect(server.socket_addr()).unwrap();
    stream.write_all(&[0; 8]).unwrap();
    wait_until("it was cut off", || server.closes() == 1);
    assert!(matches!(server.last_close(), Some(NetError::Limit(_))));
}

#[test]
fn a_peer_that_leaves_inside_a_frame_is_noticed_once() {
    let server = echo_server(Wire::Tcp, 2);
    for cut in [1, 8, 9, 500, 100_000] {
        let before = server.closes();
        let mut stream = TcpStream::connect(server.socket_addr()).unwrap();
        let bytes = frame_bytes(&[2; 16], &[3; 200_000]);
        stream.write_all(&bytes[..cut]).unwrap();
        drop(stream);
        wait_until("the end was told", || server.closes() == before + 1);
        let why = server.last_close().unwrap().to_string();
        assert!(why.contains("middle of a frame"), "{why}");
    }
    assert_eq!(server.closes(), 5);
}

#[test]
fn both_ends_hear_a_close_once() {
    each(|wire| {
        let server = echo_server(wire, 2);
        let client = Runtime::client();
        let caller = Caller::connect(&client, server.addr());
        client.block_on(caller.call(b"x")).unwrap();
        caller.conn().close();
        caller.conn().close();
        assert!(client.block_on(caller.call(b"y")).is_err());
        client.block_on(caller.closed());
        wait_until("the server heard", || server.closes() == 1);
        assert_eq!(caller.closes(), 1);
    });
}

#[test]
fn the_end_of_a_server_is_heard() {
    each(|wire| {
        let server = echo_server(wire, 2);
        let client = Runtime::client();
        let caller = Caller::connect(&client, server.addr());
        client.block_on(caller.call(b"x")).unwrap();
        server.runtime().shutdown();
        client.block_on(caller.closed());
        assert_eq!(server.closes(), 1);
        let again = client.block_on(client.io().connect(server.addr(), Arc::new(Silent)));
        assert!(matches!(again, Err(NetError::Unreachable(_))));
    });
}

#[test]
fn a_slow_reader_is_not_read_from() {
    let server = echo_server(Wire::Unix, 1);
    let Addr::Unix(path) = server.addr() else { panic!() };
    let reader = UnixStream::connect(path).unwrap();
    let writer = reader.try_clone().unwrap();
    let taken = taken_of_flood(reader, writer, 4 * READ_PAUSE_BYTES);
    let socket_buffers_bytes_max = 8 << 20;
    assert!(taken <= READ_PAUSE_BYTES + socket_buffers_bytes_max, "{taken} bytes were taken");
}

#[test]
fn a_peer_that_never_reads_is_cut_off() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = Addr::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port());
    let client = Runtime::client();
    let caller = Caller::connect(&client, &addr);
    let _stuck = listener.accept().unwrap();
    let chunk = vec![0; 32 << 20];
    let sent = (0..SEND_QUEUE_BYTES_MAX / chunk.len() + 4).find_map(|_| caller.conn().send(b"h", &[&chunk]).err());
    assert!(matches!(sent, Some(NetError::Limit(_))), "{sent:?}");
    client.block_on(caller.closed());
    assert!(matches!(caller.last_close(), Some(NetError::Limit(_))));
}

#[test]
fn all_timers_fire_and_none_early() {
    for runtime in [Runtime::client(), Runtime::server(2)] {
        let io = runtime.io();
        let (tell, heard) = std::sync::mpsc::channel();
        for delay_ms in [30, 10, 20, 0, 25, 5] {
            let (io, tell) = (io.clone(), tell.clone());
            runtime.io().spawn(async move {
                let deadline_ns = io.mono_ns() + delay_ms * 1_000_000;
                io.sleep_until(deadline_ns).await;
                assert!(io.mono_ns() >= deadline_ns);
                tell.send(delay_ms).unwrap();
            });
        }
        runtime.block_on(io.sleep(Duration::from_millis(35)));
        let mut fired = Vec::new();
        while fired.len() < 6 {
            runtime.block_on(io.sleep(Duration::from_millis(1)));
            fired.extend(heard.try_iter());
        }
        fired.sort_unstable();
        assert_eq!(fired, [0, 5, 10, 20, 25, 30]);
        let limited = runtime.block_on(io.timeout(Duration::from_millis(1), std::future::pending::<()>()));
        assert!(limited.is_none());
        runtime.shutdown();
    }
}

#[test]
fn tasks_spawn_tasks() {
    fn descend(io: aze_io::Io, depth: u32, done: Arc<AtomicUsize>) -> Task {
        Box::pin(async move {
            if depth > 0 {
                for _ in 0..2 {
                    io.spawn(descend(io.clone(), depth - 1, done.clone()));
                }
            }
            done.fetch_add(1, SeqCst);
        })
    }
    let server = Runtime::server(2);
    let done = Arc::new(AtomicUsize::new(0));
    server.io().spawn(descend(server.io(), 12, done.clone()));
    wait_until("all ran", || done.load(SeqCst) == 8191);
    let client = Runtime::client();
    let done = Arc::new(AtomicUsize::new(0));
    client.io().spawn(descend(client.io(), 12, done.clone()));
    client.block_on(async {
        while done.load(SeqCst) < 8191 {
            client.io().sleep(Duration::from_micros(100)).await;
        }
    });
}

#[test]
fn tasks_on_two_workers_lose_no_wake() {
    let runtime = Runtime::server(2);
    let io = runtime.io();
    let (tell, heard) = oneshot::channel();
    let task_io = io.clone();
    io.spawn(async move {
        for _ in 0..20_000 {
            let (ping, ping_heard) = oneshot::channel();
            let (pong, pong_heard) = oneshot::channel();
            task_io.spawn(async move {
                ping_heard.await.unwrap();
                pong.send(()).unwrap();
            });
            ping.send(()).unwrap();
            pong_heard.await.unwrap();
        }
        tell.send(()).unwrap();
    });
    runtime.block_on(heard).unwrap();
    runtime.shutdown();
}

#[test]
fn a_stale_socket_path_is_replaced_and_a_live_one_is_not() {
    let path = socket_path();
    drop(UnixListener::bind(&path).unwrap());
    let addr = Addr::Unix(path.clone());
    let runtime = Runtime::server(1);
    let listener = runtime.io().listen(&addr, support::refuser()).unwrap();
    assert!(matches!(runtime.io().listen(&addr, support::refuser()), Err(NetError::Listen(_))));
    drop(listener);
    assert!(!std::path::Path::new(&path).exists());
    std::fs::write(&path, "not a socket").unwrap();
    assert!(matches!(runtime.io().listen(&addr, support::refuser()), Err(NetError::Listen(_))));
    std::fs::remove_file(&path).unwrap();
    runtime.shutdown();
}

#[test]
fn connects_by_name_and_says_who_is_not_there() {
    let server = echo_server(Wire::Tcp, 1);
    let Addr::Tcp(_, port) = server.addr() else { panic!() };
    let client = Runtime::client();
    let caller = Caller::connect(&client, &Addr::Tcp("localhost".into(), *port));
    assert_eq!(client.block_on(caller.call(b"by name")).unwrap().payload, b"by name");
    let nobody = [
        Addr::Tcp("127.0.0.1".into(), 1),
        Addr::Tcp("no-such-host.invalid".into(), 80),
        Addr::Unix(socket_path()),
        Addr::Unix("x".repeat(200)),
    ];
    for addr in nobody {
        let refused = client.block_on(client.io().connect(&addr, Arc::new(Silent)));
        assert!(matches!(refused, Err(NetError::Unreachable(_))), "{addr}");
    }
    assert!(matches!(client.io().listen(server.addr(), support::refuser()), Err(NetError::Listen(_))));
}

#[test]
fn local_peers_are_known() {
    let server = echo_server(Wire::Unix, 1);
    let client = Runtime::client();
    let caller = Caller::connect(&client, server.addr());
    client.block_on(caller.call(b"x")).unwrap();
    let seen = server.last_peer().unwrap().credentials.unwrap();
    assert_eq!(seen.pid.cast_unsigned(), std::process::id());
    assert_eq!(caller.conn().peer().credentials, Some(seen));
    let tcp = echo_server(Wire::Tcp, 1);
    let caller = Caller::connect(&client, tcp.addr());
    assert_eq!(caller.conn().peer().credentials, None);
}

#[test]
fn random_bytes_differ() {
    let io = Runtime::client().io();
    let mut seen: Vec<u64> = (0..1000).map(|_| io.random_u64()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 1000);
    let mut long = [0; 4096];
    io.fill_random(&mut long);
    assert!(long.chunks(8).all(|word| word != [0; 8]));
}

#[test]
fn ports_are_given_and_freed() {
    let runtime = Runtime::server(1);
    let listener = runtime.io().listen(&tcp_any(), support::refuser()).unwrap();
    let addr = listener.addr().clone();
    assert!(matches!(&addr, Addr::Tcp(_, port) if *port != 0));
    drop(listener);
    let again = runtime.io().listen(&addr, support::refuser()).unwrap();
    assert_eq!(*again.addr(), addr);
    runtime.shutdown();
}
