//! An idle runtime uses no CPU. Alone in its program, since it looks at all its threads.

mod support;

use std::fs;
use std::time::Duration;

use aze_io::real::Runtime;
use support::{Caller, Wire, echo_server};

/// Nanoseconds that the threads of this process whose name begins with `prefix` have run
/// (`/proc/PID/task/TID/schedstat`), and how many there are.
fn run_ns(prefix: &str) -> (u64, usize) {
    let (mut ns, mut count) = (0, 0);
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if fs::read_to_string(task.join("comm")).unwrap().starts_with(prefix) {
            let stat = fs::read_to_string(task.join("schedstat")).unwrap();
            ns += stat.split(' ').next().unwrap().parse::<u64>().unwrap();
            count += 1;
        }
    }
    (ns, count)
}

#[test]
fn idle_threads_use_no_cpu() {
    for wire in [Wire::Unix, Wire::Tcp, Wire::Shm] {
        idle_with(wire);
    }
}

fn idle_with(wire: Wire) {
    let server = echo_server(wire, 2);
    let client = Runtime::client();
    client.background().unwrap();
    let caller = Caller::connect(&client, server.addr());
    // Over TCP enough to have a thread of the server wait for the connection alone.
    (0..1000).for_each(|_| drop(client.block_on(caller.call(b"x")).unwrap()));
    let clock = Runtime::client();
    // The background thread settles into its sleep.
    clock.block_on(clock.io().sleep(Duration::from_millis(20)));
    let (before_ns, threads) = run_ns("aze-");
    let cores = std::thread::available_parallelism().unwrap().get();
    let more = match wire {
        Wire::Unix => 0,
        Wire::Tcp => 1,
        Wire::Shm => cores,
    };
    assert_eq!(threads, 3 + more, "over {wire:?}");
    // Long enough for the looks that are taken once a second in case that no wakeup comes.
    clock.block_on(clock.io().sleep(Duration::from_millis(1200)));
    let (after_ns, _) = run_ns("aze-");
    assert!(after_ns - before_ns < 5_000_000, "{} ns in 1,200 ms over {wire:?}", after_ns - before_ns);
    client.shutdown();
}
