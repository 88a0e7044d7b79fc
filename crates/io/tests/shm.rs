//! Shared memory between processes: clients that are killed while they work. Alone in its
//! program, which is also the client that is killed.

mod support;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aze_io::Addr;
use aze_io::real::Runtime;
use support::{Caller, Wire, echo_server, wait_until};

const ADDRESS: &str = "AZE_IO_TEST_ADDRESS";

/// The client: works until it is killed. Does nothing if the environment has no address for it.
#[test]
fn a_client_that_works_until_it_is_killed() {
    let Ok(addr) = std::env::var(ADDRESS) else { return };
    let client = Runtime::client();
    let caller = Caller::connect(&client, &addr.parse().unwrap());
    let payload = vec![3; 3 << 20];
    for round in 0usize.. {
        let calls: Vec<_> = [1, 500, 70_000, 3 << 20].map(|bytes| caller.call(&payload[..bytes - round % 2])).into();
        for call in calls {
            client.block_on(call).unwrap();
        }
    }
}

/// Mappings of this process that hold rings.
fn mapped_rings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().matches("aze-rings").count()
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_server_outlives_clients_killed_at_any_point() {
    if std::env::var(ADDRESS).is_ok() {
        return;
    }
    let server = echo_server(Wire::Shm, 1);
    let client = Runtime::client();
    let caller = Caller::connect(&client, server.addr());
    client.block_on(caller.call(b"before")).unwrap();
    // Both ends are in this process.
    assert_eq!(mapped_rings(), 2);
    let files = open_files();
    let Addr::Shm(path) = server.addr() else { panic!("not shared memory") };
    let rounds = 40;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_client_that_works_until_it_is_killed"])
            .env(ADDRESS, format!("shm:{path}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the client is there", || server.accepted() == 2 + round);
        // Work goes on meanwhile, for a time that differs from round to round.
        let until = Instant::now() + Duration::from_micros(1 + 797 * (round as u64 * 7 % 23));
        while Instant::now() < until {
            assert_eq!(client.block_on(caller.call(b"meanwhile")).unwrap().payload, b"meanwhile");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(client.block_on(caller.call(b"after")).unwrap().payload, b"after");
    }
    wait_until("every end was noticed", || server.closes() == rounds);
    wait_until("all memory was given back", || mapped_rings() == 2);
    wait_until("all files were closed", || open_files() == files);
}
