//! One server of a volume in directories dies under work and comes back alone, while the others, a mount and commands
//! go on: acknowledged changes are there, and no user mounts again. What cannot come back so is refused with the
//! reason.

use aze_tests::ledger::Ledger;
use aze_tests::{Draw, Place, Ran, ends_within, long, make_tree, wait_for, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SERVERS: usize = 3;

/// Rounds of kill and comeback.
const ROUNDS: usize = 20;
const ROUNDS_LONG: usize = 200;

/// Changes that each round waits for, before and after.
const STEPS: usize = 25;

/// Files of a directory that are spread over all servers.
const FILES: usize = 30;

fn up(place: &Place, servers: usize) {
    let (storage, servers) = (place.path("storage").display().to_string(), servers.to_string());
    place.up(&["--name", "back", "--servers", &servers, "--storage", &storage]);
}

fn pids(place: &Place) -> Vec<u32> {
    let text = fs::read(place.path("run/back/volume.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let servers = record["servers"].as_array().expect("a list");
    servers.iter().map(|server| server["process"]["pid"].as_u64().expect("a pid") as u32).collect()
}

fn end(place: &Place, server: usize, signal: i32) {
    let pid = pids(place)[server];
    aze_tests::signal(pid, signal);
    wait_until("the server ends", || !fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()));
}

fn names(round: usize) -> impl Iterator<Item = String> {
    (0..FILES).map(move |number| format!("r{round}-f{number}"))
}

/// Two writers through a mount and one command after the other, over and over, while servers are killed one by one.
#[test]
fn servers_come_back_alone_under_work() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(if long() { 3600 } else { 400 }));
    up(&place, SERVERS);
    let mount = place.mount();
    make_tree(&place.path("tree"), 20);
    let over = AtomicBool::new(false);
    let (steps, copied) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let ledgers: Vec<Mutex<Ledger>> =
        (0..2).map(|who| Mutex::new(Ledger::new(&format!("w{who}"), Draw::new(7, 1 + who)))).collect();
    for ledger in &ledgers {
        fs::create_dir(mount.join(&ledger.lock().expect("no writer panics").dir)).expect("a directory");
    }
    std::thread::scope(|scope| {
        for ledger in &ledgers {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut ledger = ledger.lock().expect("no writer panics");
                    // What fails while a server is away may have happened, or not: looked at before the next step.
                    let done = ledger.step(&mount).is_ok();
                    if ledger.is_in_doubt() {
                        wait_for("the ledger's directory is as before the last step, or as after it", || {
                            ledger.check(&mount).map_err(|why| format!("{why}\n  {}", ledger.story()))
                        });
                    }
                    steps.fetch_add(usize::from(done), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            for number in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let to = format!("aze:/copy{number}");
                if place.aze(&["cp", "-r", &place.path("tree").display().to_string(), &to]).code == 0 {
                    copied.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let more = |what: &str, count: &AtomicUsize, wanted: usize| {
            let so_far = count.load(Ordering::Relaxed);
            wait_until(what, || count.load(Ordering::Relaxed) >= so_far + wanted);
        };
        for round in 0..if long() { ROUNDS_LONG } else { ROUNDS } {
            more("changes are made", &steps, STEPS);
            let (server, before) = (round % SERVERS, pids(&place));
            aze_tests::signal(before[server], if round % 4 == 3 { libc::SIGTERM } else { libc::SIGKILL });
            let back = match round % 2 {
                0 => place.aze(&["restart", "--name", "back"]),
                _ => place.aze(&["restart", "--name", "back", "--server", &server.to_string()]),
            };
            assert_eq!(back.code, 0, "round {round}: {}", back.err);
            assert!(back.err.contains(&format!("server {server} is back")), "round {round}: {}", back.err);
            let after = pids(&place);
            for other in (0..SERVERS).filter(|other| *other != server) {
                assert_eq!(before[other], after[other], "round {round}: server {other} went on");
            }
            more("changes are made after a comeback", &steps, STEPS);
        }
        more("a command is done", &copied, 1);
        over.store(true, Ordering::Relaxed);
    });
    for ledger in ledgers {
        let mut ledger = ledger.into_inner().expect("no writer has panicked");
        ledger.check(&mount).unwrap_or_else(|why| panic!("{}: {why}", ledger.dir));
    }
    let checked = place.aze(&["check", "--name", "back"]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
}

/// While a server is away its part gives errors, and nothing else; status says how to bring it back. Locks of files at
/// other servers stay.
#[test]
fn a_server_that_is_away_costs_its_part() {
    let mut place = Place::new();
    up(&place, SERVERS);
    let mount = place.mount();
    for name in names(0) {
        fs::write(mount.join(&name), &name).expect("a file");
    }
    let open = |name: &String| File::options().read(true).write(true).open(mount.join(name)).expect("an open");
    let locked: Vec<(String, File)> = names(0).map(|name| (name.clone(), open(&name))).collect();
    locked.iter().for_each(|(_, file)| file.lock().expect("a lock"));
    end(&place, 1, libc::SIGKILL);
    let works = |name: &String| fs::read(mount.join(name)).is_ok_and(|bytes| bytes == name.as_bytes());
    let there: Vec<bool> = names(0).map(|name| works(&name)).collect();
    let count = there.iter().filter(|works| **works).count();
    assert!(count > FILES / 3 && count < FILES, "{count} of {FILES} files are read while one server of three is away");
    let status = place.aze(&["status", "--name", "back"]);
    assert!(status.out.contains("aze restart --server 1"), "{}{}", status.out, status.err);
    // It was away once, and stays so for the other ones.
    let (dead, other) = (place.aze(&["restart", "--server", "1"]), there.iter().filter(|works| !**works).count());
    assert_eq!(dead.code, 0, "{}", dead.err);
    assert_eq!(names(0).filter(works).count(), FILES, "all is there again");
    let mut lost = 0;
    for (at, (name, file)) in locked.iter().enumerate() {
        let read = file.read_exact_at(&mut [0; 1], 0);
        lost += usize::from(read.is_err());
        assert!(read.is_ok() || !there[at], "{name}: a lock at a server that went on is lost");
    }
    assert_eq!(lost, other, "locks at the server that died are told as lost");
}

/// A process that is killed looks alive until it has given its memory back: of several that were killed at one moment the
/// first one to look dead was brought back alone, and waited for the others.
#[test]
fn servers_that_are_killed_at_one_moment_are_started_together() {
    let mut place = Place::new();
    up(&place, SERVERS);
    let mount = place.mount();
    for round in 0..8 {
        let name = format!("f{round}");
        fs::write(mount.join(&name), vec![7; 4 << 20]).expect("a file");
        pids(&place).into_iter().for_each(|pid| aze_tests::signal(pid, libc::SIGKILL));
        let back = place.aze(&["restart"]).ok();
        assert!(back.err.contains("all 3 servers run again (3 had died)"), "round {round}: {}", back.err);
        assert_eq!(fs::read(mount.join(&name)).expect("the file"), vec![7; 4 << 20], "round {round}");
    }
}

/// The server that keeps the map dies while another one comes back, and that waits for a third: the comeback ends at once
/// and says what to do. It took 100 s. Where the third one dies the comeback goes on.
#[test]
fn a_death_during_a_comeback_does_not_hold_it_up() {
    const ENOUGH: Duration = Duration::from_secs(20);
    let mut place = Place::new();
    place.allow(Duration::from_secs(300));
    up(&place, SERVERS);
    let mount = place.mount();
    for name in names(0) {
        fs::write(mount.join(&name), &name).expect("a file");
    }
    for dies in [2, 0] {
        end(&place, 1, libc::SIGKILL);
        let (standing, dying) = (pids(&place)[2], pids(&place)[dies]);
        let joins = || joins(&place);
        let before = joins();
        aze_tests::signal(standing, libc::SIGSTOP);
        let (ran, took) = std::thread::scope(|scope| {
            let restart = scope.spawn(|| {
                let ran = place.aze(&["restart", "--server", "1", "--timeout", "100s"]);
                (ran, Instant::now())
            });
            wait_until("server 1 asks to be put into the map", || joins() > before);
            let killed = Instant::now();
            aze_tests::signal(dying, libc::SIGKILL);
            let (ran, ended) = restart.join().expect("no panic");
            (ran, ended - killed)
        });
        if standing != dying {
            aze_tests::signal(standing, libc::SIGCONT);
        }
        assert!(took < ENOUGH, "server {dies} dies: {took:?}: {}", ran.err);
        match dies {
            0 => assert!(ran.code != 0 && ran.err.contains("server 0, which keeps the map, has died"), "{}", ran.err),
            _ => assert_eq!(ran.code, 0, "{}", ran.err),
        }
        place.aze(&["restart"]).ok();
        for name in names(0) {
            assert_eq!(fs::read(mount.join(&name)).expect("a file"), name.as_bytes(), "{name}");
        }
    }
}

/// How often server 0 has been asked to put a server into the map.
fn joins(place: &Place) -> u64 {
    let status = place.aze(&["status", "--json", "--name", "back"]);
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    let requests = status["servers"][0]["requests"].as_object().expect("server 0 answers");
    requests.get("Join").and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// A process that is only stopped has its directory; aze restart ends it. An older copy of the directory is refused.
#[test]
fn only_one_process_and_the_newest_directory_come_back() {
    let mut place = Place::new();
    up(&place, 2);
    let mount = place.mount();
    fs::write(mount.join("a"), "1").expect("a file");
    aze_tests::signal(pids(&place)[1], libc::SIGSTOP);
    place.aze(&["restart", "--server", "1"]).ok();
    end(&place, 1, libc::SIGKILL);
    let (dir, copy) = (place.path("storage/server-1"), place.path("copy"));
    let copied = |from: &std::path::Path, to: &std::path::Path| {
        aze_tests::run(std::process::Command::new("cp").arg("-a").arg(from).arg(to));
    };
    copied(&dir, &copy);
    place.aze(&["restart"]).ok();
    for name in names(1) {
        fs::write(mount.join(&name), &name).expect("a file");
    }
    end(&place, 1, libc::SIGKILL);
    let newest = place.path("newest");
    fs::rename(&dir, &newest).expect("a rename");
    copied(&copy, &dir);
    let older = place.aze(&["restart", "--server", "1"]);
    assert!(older.code != 0 && older.err.contains("older than what the other servers know"), "{}", older.err);
    fs::remove_dir_all(&dir).expect("it is there");
    fs::rename(&newest, &dir).expect("a rename");
    place.aze(&["restart", "--server", "1"]).ok();
    assert_eq!(names(1).filter(|name| fs::read(mount.join(name)).is_ok()).count(), FILES);
    let nobody = place.aze(&["restart", "--server", "7"]);
    assert!(nobody.code != 0 && nobody.err.contains("no server 7"), "{}", nobody.err);
}

/// Servers that stand still for long and go on, while programs work.
#[test]
fn servers_that_stand_still_go_on() {
    if !long() {
        return aze_tests::leave_out("servers_that_stand_still_go_on", "it takes minutes: AZE_TEST_LONG=1");
    }
    let mut place = Place::new();
    place.allow(Duration::from_secs(600));
    up(&place, SERVERS);
    let mount = place.mount();
    for (server, seconds) in [(1, 3), (0, 20), (2, 60)] {
        let pid = pids(&place)[server];
        aze_tests::signal(pid, libc::SIGSTOP);
        let other = (server + 1) % SERVERS;
        end(&place, other, libc::SIGKILL);
        // It waits for the one that stands still, if that is needed, and says so where that takes too long.
        let mut restart = place.command(&["restart", "--server", &other.to_string(), "--timeout", "100s"]);
        let mut restart = restart.stderr(Stdio::piped()).spawn().expect("it starts");
        ends_within(&mut restart, Duration::from_secs(seconds));
        aze_tests::signal(pid, libc::SIGCONT);
        let back: Ran = restart.wait_with_output().expect("it ends").into();
        assert_eq!(back.code, 0, "server {server} stands still for {seconds} s: {}", back.err);
        for name in names(server) {
            fs::write(mount.join(&name), &name).expect("a file");
            assert_eq!(fs::read(mount.join(&name)).expect("a file"), name.as_bytes());
        }
    }
    place.aze(&["check", "--name", "back"]).ok();
}
