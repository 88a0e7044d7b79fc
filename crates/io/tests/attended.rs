//! Connections over TCP that are so busy that a server's thread waits for each of them alone. Alone in its
//! program, since it looks at all its threads.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aze_io::NetError;
use aze_io::real::{READ_PAUSE_BYTES, Runtime};
use aze_io::sync::Mutex;
use futures_util::future::join_all;
use support::{Caller, EchoServer, Silent, Wire, echo_server, frame_bytes, taken_of_flood, wait_until};

/// One test at a time, so that the threads are its own.
static ALONE: Mutex<()> = Mutex::new(());

/// Calls in a row that make any connection busy.
const MANY: usize = 2000;

/// The system calls in which the threads of this name wait; `running` for one that does not.
fn waits_of(name: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let call = |task: fs::DirEntry| {
        // One that has just ended has no name any more.
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        let is_it = comm.trim_end() == name;
        let call = is_it.then(|| fs::read_to_string(task.path().join("syscall")).ok()).flatten()?;
        call.split_whitespace().next().map(str::to_owned)
    };
    tasks.filter_map(call).collect()
}

fn attendants() -> usize {
    waits_of("aze-attend").len()
}

/// Attendants that wait for a connection to attend, and not for a request.
fn resting() -> usize {
    waits_of("aze-attend").iter().filter(|call| **call == libc::SYS_futex.to_string()).count()
}

fn call_often(client: &Arc<Runtime>, caller: &Caller) {
    for _ in 0..MANY {
        client.block_on(caller.call(b"x")).unwrap();
    }
}

fn attended() -> (EchoServer, Arc<Runtime>, Arc<Caller>) {
    let server = echo_server(Wire::Tcp, 2);
    let client = Runtime::client();
    let caller = Caller::connect(&client, server.addr());
    client.block_on(caller.call(b"x")).unwrap();
    assert_eq!(attendants(), 0, "one call is no pace");
    call_often(&client, &caller);
    assert_eq!(attendants(), 1);
    (server, client, caller)
}

#[test]
fn a_busy_connection_has_a_thread_until_it_rests() {
    let _alone = ALONE.lock();
    let (server, client, caller) = attended();
    let large = vec![7; 3 << 20];
    assert!(client.block_on(caller.call(&large)).unwrap().payload == large);
    let all = (0..500).map(|index| caller.call(&vec![index as u8; index * 40])).collect::<Vec<_>>();
    let replies = client.block_on(join_all(all));
    assert!(replies.iter().enumerate().all(|(index, reply)| reply.as_ref().unwrap().payload.len() == index * 40));
    // The workers read again, and later a thread.
    wait_until("the thread rests", || resting() == 1);
    client.block_on(caller.call(b"y")).unwrap();
    call_often(&client, &caller);
    assert_eq!(attendants(), 1, "the thread is used again");
    let others: Vec<_> = (0..200).map(|_| Caller::connect(&client, server.addr())).collect();
    others.iter().for_each(|other| (0..70).for_each(|_| drop(client.block_on(other.call(b"z")).unwrap())));
    let cores = std::thread::available_parallelism().unwrap().get();
    assert!(attendants() <= 64.min(4 * cores), "{}", attendants());
    client.shutdown();
}

#[test]
fn the_end_of_an_attended_connection_is_heard_once() {
    let _alone = ALONE.lock();
    let (server, client, caller) = attended();
    caller.conn().close();
    client.block_on(caller.closed());
    wait_until("the server heard", || server.closes() == 1);
    assert!(matches!(server.last_close(), Some(NetError::Closed(why)) if why.contains("peer")));
    drop(server);
    assert_eq!(attendants(), 0);
    let (server, client, caller) = attended();
    let began = Instant::now();
    server.runtime().shutdown();
    assert!(began.elapsed() < Duration::from_secs(5));
    client.block_on(caller.closed());
    assert_eq!((server.closes(), caller.closes(), attendants()), (1, 1, 0));
    assert!(matches!(server.last_close(), Some(NetError::Closed(why)) if why.contains("this end")));
}

#[test]
fn an_attended_connection_that_does_not_take_its_answers_is_not_read_from() {
    let _alone = ALONE.lock();
    let server = echo_server(Wire::Tcp, 1);
    let mut reader = TcpStream::connect(server.socket_addr()).unwrap();
    reader.set_nodelay(true).unwrap();
    let mut writer = reader.try_clone().unwrap();
    let small = frame_bytes(&0u64.to_le_bytes(), b"x");
    for _ in 0..MANY {
        writer.write_all(&small).unwrap();
        reader.read_exact(&mut vec![0; small.len()]).unwrap();
    }
    assert_eq!(attendants(), 1);
    let taken = taken_of_flood(reader, writer, 8 * READ_PAUSE_BYTES);
    assert!(taken < 6 * READ_PAUSE_BYTES, "{taken} bytes were taken");
}

/// A caller that has one connection waits for that alone; what another thread of its process does meanwhile,
/// with timers, tasks and connections, is served all the same.
#[test]
fn others_are_served_while_a_caller_waits_for_its_only_connection() {
    let _alone = ALONE.lock();
    for wire in [Wire::Tcp, Wire::Unix, Wire::Shm] {
        let server = echo_server(wire, 2);
        let client = Runtime::client();
        let caller = Caller::connect(&client, server.addr());
        client.block_on(caller.call(b"x")).unwrap();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (there, closed) = (client.clone(), caller.closed());
        let waiting = std::thread::Builder::new().name("waits".into()).spawn(move || there.block_on(closed)).unwrap();
        let began = Instant::now();
        for _ in 0..20 {
            wait_until("the other one waits", || waits_of("waits").iter().any(|call| call != "running"));
            client.block_on(client.io().sleep(Duration::from_millis(1)));
            client.block_on(caller.call(b"y")).unwrap();
        }
        let addr = aze_io::Addr::Tcp("127.0.0.1".into(), silent.local_addr().unwrap().port());
        let other = client.block_on(client.io().connect(&addr, Arc::new(Silent))).unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "{:?} over {wire:?}", began.elapsed());
        other.close();
        caller.conn().close();
        waiting.join().unwrap();
    }
}

/// It is woken where it sleeps, and does not wait until it looks by itself.
#[test]
fn a_caller_that_waits_for_its_only_connection_is_woken() {
    let _alone = ALONE.lock();
    for wire in [Wire::Tcp, Wire::Shm] {
        let server = echo_server(wire, 1);
        let client = Runtime::client();
        let caller = Caller::connect(&client, server.addr());
        let began = Instant::now();
        call_often(&client, &caller);
        // 4 ms each if it had to look.
        assert!(began.elapsed() < Duration::from_millis(3 * MANY as u64), "{:?} over {wire:?}", began.elapsed());
    }
}
