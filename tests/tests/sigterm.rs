//! A server that gets SIGTERM leaves its volume by itself: `aze up --leave-within`.

use aze_tests::ledger::Ledger;
use aze_tests::servers::{pids, runs, states};
use aze_tests::writers::while_writing;
use aze_tests::{Draw, Place, signal, wait_until};
use std::fs;

/// What the server has written to its log.
fn log(place: &Place, server: usize) -> String {
    let dir = place.path("run").join("v");
    fs::read_to_string(dir.join(format!("server-{server}.log"))).unwrap_or_else(|error| format!("no log: {error}"))
}

/// The server in the middle and then the one that keeps the map get SIGTERM, some times each, while a program writes.
fn servers_leave(up: &[&str], leavers: &[usize], after: &[&str]) {
    let mut place = Place::new();
    let dirs = place.path("storage").display().to_string();
    let up: Vec<&str> = up.iter().map(|word| if *word == "DIR" { dirs.as_str() } else { word }).collect();
    place.up(&[&["--name", "v", "--servers", "4", "--leave-within", "60s"], up.as_slice()].concat());
    let mount = place.mount();
    let big: Vec<u8> = (0..24_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(mount.join("big"), &big).expect("written");
    let before = pids(&place, "v");
    let mut ledger = Ledger::new("w", Draw::new(5, 1));
    while_writing(&mount, std::slice::from_mut(&mut ledger), |writers| {
        writers.more("changes are made");
        for leaver in leavers {
            // Batch systems send it more than once.
            (0..3).for_each(|_| signal(before[*leaver], libc::SIGTERM));
            wait_until("the server ends", || !runs(before[*leaver]));
            writers.more("changes are made without it");
        }
    });
    assert_eq!(states(&place), after);
    ledger.check(&mount).unwrap_or_else(|why| panic!("{}: {why}", ledger.dir));
    assert!(fs::read(mount.join("big")).expect("read") == big, "data are as they were");
    let checked = place.aze(&["check", "--name", "v"]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    place.aze(&["down", "--discard"]).ok();
}

#[test]
fn servers_in_memory_that_get_sigterm_leave_under_work() {
    servers_leave(&[], &[2, 0], &["left", "up", "left", "up"]);
}

#[test]
fn servers_in_directories_that_get_sigterm_leave_under_work() {
    servers_leave(&["--storage", "DIR"], &[3, 0], &["left", "up", "up", "left"]);
}

/// Without the option, SIGTERM ends a server, and its data are lost.
#[test]
fn without_the_option_sigterm_ends_a_server() {
    let place = Place::new();
    place.up(&["--name", "v", "--servers", "3"]);
    let server = pids(&place, "v")[1];
    signal(server, libc::SIGTERM);
    wait_until("the server ends", || !runs(server));
    wait_until("its end is known", || states(&place)[1] != "up");
    assert_ne!(states(&place)[1], "left");
}

/// A batch system that ends a job signals all servers at once: no server is left that could take anything.
#[test]
fn servers_that_all_get_sigterm_end() {
    let place = Place::new();
    place.up(&["--name", "v", "--servers", "3", "--leave-within", "60s"]);
    let all = pids(&place, "v");
    assert_eq!(all.len(), 3);
    all.iter().for_each(|pid| signal(*pid, libc::SIGTERM));
    wait_until("all servers end", || all.iter().all(|pid| !runs(*pid)));
    let told = (0..3).filter(|server| log(&place, *server).contains("cannot leave the volume, and ends: ")).count();
    assert!(told > 0, "one at least had nobody left");
    place.aze(&["down", "--force"]).ok();
}

/// No other server could take anything from the only one; when the time is over it ends; SIGINT ends it at once.
#[test]
fn a_server_that_cannot_leave_ends_and_says_why() {
    let place = Place::new();
    place.up(&["--name", "v", "--servers", "1", "--leave-within", "60s"]);
    let server = pids(&place, "v")[0];
    signal(server, libc::SIGTERM);
    wait_until("the server ends", || !runs(server));
    let told = log(&place, 0);
    assert!(told.contains("server 0 is the only one of the volume"), "{told}");
    place.aze(&["down", "--force"]).ok();
}

#[test]
fn volumes_whose_servers_do_not_leave_refuse_the_option() {
    let place = Place::new();
    let backing = place.path("backing");
    fs::create_dir(&backing).expect("a directory");
    let over = place.aze(&["up", "--leave-within", "9s", "--backing", &backing.display().to_string()]).code(2);
    assert!(over.err.contains("cannot be used with"), "{}", over.err);
    let file = place.path("file");
    fs::write(&file, vec![0; 64 << 20]).expect("written");
    let text = file.display().to_string();
    let kept = place.aze(&["up", "--leave-within", "9s", "--servers", "1", "--storage", &text]);
    assert_eq!(kept.code, 2, "{}", kept.err);
    assert!(kept.err.contains("servers of a volume in files or devices"), "{}", kept.err);
}
