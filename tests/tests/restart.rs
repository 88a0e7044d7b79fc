//! `aze restart` on the real program: a server of a volume in directories dies under a mount in use,
//! and comes back; and `aze down --delete`.

use aze_tests::watchdog::processes_of;
use aze_tests::{Place, Ran, make_tree, wait_until};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How often a server is killed.
const ROUNDS: usize = 3;

fn up(place: &Place, more: &[&str]) {
    let storage = place.path("storage").display().to_string();
    let mut args = vec!["--name", "v", "--storage", &storage];
    args.extend(more);
    place.up(&args);
}

fn pid_of(place: &Place, server: usize) -> i32 {
    let text = fs::read(place.path("run/v/volume.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    record["servers"][server]["process"]["pid"].as_u64().expect("a pid") as i32
}

fn kill(pid: i32) {
    aze_tests::signal(pid as u32, libc::SIGKILL);
}

fn bytes(number: usize) -> Vec<u8> {
    (0..(number * 40_003 + 17) % 700_000).map(|at| ((at + number) % 253) as u8).collect()
}

/// One of three servers is killed under a mount that works; the mount stays, and all that its programs
/// were told is done is there when the server is back.
#[test]
fn a_mount_outlives_the_death_of_a_server() {
    let mut place = Place::new();
    up(&place, &["--servers", "3"]);
    let mount = place.mount();
    let kept = mount.join("kept");
    let mut open = File::options().read(true).write(true).create_new(true).open(&kept).expect("a file");
    open.write_all(b"before").expect("a write");
    open.sync_all().expect("a sync");
    let mut there: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..ROUNDS {
        let (over, made) = (AtomicBool::new(false), AtomicUsize::new(0));
        let done = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut done = Vec::new();
                for number in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("f-{round}-{number}");
                    // What fails while the servers are away may have happened, or not.
                    if fs::write(mount.join(&name), bytes(number)).is_ok() {
                        done.push((name, bytes(number)));
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                }
                done
            });
            wait_until("some files are made", || made.load(Ordering::Relaxed) > 20);
            kill(pid_of(&place, round % 3));
            place.aze(&["restart", "--name", "v"]).ok();
            let so_far = made.load(Ordering::Relaxed);
            wait_until("files are made again", || made.load(Ordering::Relaxed) > so_far + 10);
            over.store(true, Ordering::Relaxed);
            worker.join().expect("the worker ends")
        });
        there.extend(done);
        for (name, data) in &there {
            let read = fs::read(mount.join(name)).unwrap_or_else(|error| panic!("round {round}: {name}: {error}"));
            assert!(read == *data, "round {round}: {name} has other bytes");
        }
        // The open file stays usable, and nothing is lost.
        open.sync_all().expect("a sync");
        open.write_all_at(format!("round{round}").as_bytes(), 0).expect("a write through the old descriptor");
        let mut text = String::new();
        File::open(&kept).expect("an open").read_to_string(&mut text).expect("a read");
        assert_eq!(text, format!("round{round}"));
    }
    assert!(there.len() > ROUNDS * 20, "only {} files were made", there.len());
    let refused = place.aze(&["restart", "--name", "v"]);
    assert!(refused.code != 0 && refused.err.contains("--force"), "{}", refused.err);
    place.aze(&["restart", "--name", "v", "--force"]).ok();
    // A sync reports once that unsynced bytes may be lost.
    let told = open.sync_all().expect_err("the first sync after a restart of the whole volume");
    assert_eq!(told.raw_os_error(), Some(libc::EIO), "{told}");
    open.sync_all().expect("the second sync");
    assert_eq!(fs::read(&kept).expect("a read").len(), 6);
}

/// A server that a signal ends closes its storage, as after `aze down`, and comes back under its mounts.
#[test]
fn a_server_that_a_signal_ends_closes_its_storage() {
    let mut place = Place::new();
    up(&place, &["--servers", "2"]);
    let mount = place.mount();
    for number in 0..100 {
        fs::write(mount.join(format!("f{number}")), bytes(number)).expect("a file");
    }
    for server in 0..2 {
        let pid = pid_of(&place, server) as u32;
        aze_tests::signal(pid, libc::SIGTERM);
        wait_until("the server ends", || !fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()));
    }
    for server in 0..2 {
        let starts = fs::read_to_string(place.path(&format!("storage/server-{server}/starts"))).expect("a file");
        assert!(starts.contains("journal ended "), "{starts}");
    }
    place.aze(&["restart"]).ok();
    for number in 0..100 {
        assert_eq!(fs::read(mount.join(format!("f{number}"))).expect("a file"), bytes(number), "f{number}");
    }
}

/// Servers of a start that fails may have served clients, who tell starts apart by their numbers: what one of
/// them has done is not done again by the next.
#[test]
fn a_start_that_fails_has_a_number_of_its_own() {
    let place = Place::new();
    up(&place, &["--servers", "2"]);
    let starts = || {
        let text = fs::read(place.path("run/v/volume.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        record["starts"].as_u64().expect("a number")
    };
    assert_eq!(starts(), 0);
    kill(pid_of(&place, 1));
    let failed = place.aze(&["restart", "--force", "--timeout", "1ms"]);
    assert!(failed.code != 0 && failed.err.contains("did not listen"), "{}", failed.err);
    assert_eq!(starts(), 1);
    place.aze(&["restart", "--force"]).ok();
    assert_eq!(starts(), 2);
}

/// A descriptor that has lost its lock neither reads nor writes the file any more.
#[test]
fn locks_that_are_lost_are_told() {
    let mut place = Place::new();
    up(&place, &["--servers", "2"]);
    let mount = place.mount();
    let file = File::options().read(true).write(true).create_new(true).open(mount.join("f")).expect("a file");
    file.lock().expect("a lock");
    file.write_all_at(b"one", 0).expect("a write");
    kill(pid_of(&place, 1));
    place.aze(&["restart", "--force"]).ok();
    // Others may read, which brings the kernel pages: of those nothing is to be read under the lock either.
    let other = File::open(mount.join("f")).expect("an open");
    let mut bytes = [0; 3];
    for _ in 0..2 {
        other.read_exact_at(&mut bytes, 0).expect("a read");
        assert_eq!(&bytes, b"one");
        let refused = file.read_exact_at(&mut bytes, 0).expect_err("the lock is lost");
        assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
    }
    let refused = file.write_all_at(b"two", 0).expect_err("the lock is lost");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
    drop(file);
    let again = File::options().read(true).write(true).open(mount.join("f")).expect("an open");
    again.lock().expect("a lock");
    again.write_all_at(b"two", 0).expect("a write");
}

/// Status gave 0, and 'aze down' said that all is kept.
#[test]
fn a_server_whose_storage_has_failed_is_told_by_exit_codes() {
    let place = Place::new();
    place.up(&["--servers", "2", "--storage", "kept", "--storage-size", "1G", "--name", "q"]);
    // The server has to make a file for its data.
    fs::write(place.path("file"), vec![7; 60 << 20]).expect("a file");
    place.aze(&["status"]).ok();
    fs::rename(place.path("kept/server-0"), place.path("kept/gone")).expect("it moves");
    let mut number = 0;
    wait_until("the server has seen it", || {
        number += 1;
        place.aze(&["cp", "file", &format!("aze:/{number}")]);
        place.aze(&["status"]).out.contains("failed")
    });
    place.aze(&["status"]).code(1);
    let ran = place.aze(&["down"]).code(7);
    assert!(ran.err.contains("could not keep it: server 0") && !ran.err.contains("server 1"), "{}", ran.err);
    place.aze(&["status", "--name", "q"]).code(3);
}

/// Servers that were being started stayed without a volume.
#[test]
fn a_volume_ends_whatever_else_is_done_with_its_servers() {
    let place = Place::new();
    let servers = || processes_of(&place.dir, "serve");
    for (round, what) in ["at once", "locked", "ended", "started", "growing", "shrinking"].into_iter().enumerate() {
        up(&place, &["--servers", "2", "--storage-size", "1G"]);
        let before = servers();
        assert_eq!(before.len(), 2);
        let other: &[&str] = match what {
            "growing" => &["grow", "--servers", "1"],
            "shrinking" => &["shrink", "--servers", "1"],
            _ => &["restart", "--force"],
        };
        let start = |words: &[&str]| {
            let mut command = place.command(&[words, &["--name", "v"]].concat());
            command.stderr(std::process::Stdio::piped()).spawn().expect("aze starts")
        };
        let mut others = vec![start(other)];
        wait_until(what, || match what {
            "locked" => place.path("run/v/restart.lock").exists(),
            "ended" => before.iter().any(|server| !servers().contains(server)),
            "started" => servers().iter().any(|server| !before.contains(server)),
            "growing" | "shrinking" => place.path("run/v/grow.lock").exists(),
            _ => true,
        });
        others.push(start(other));
        let down = place.aze(&["down", "--name", "v"]);
        let told: Vec<Ran> =
            others.into_iter().map(|child| child.wait_with_output().expect("it ends").into()).collect();
        assert_eq!(down.code, 0, "round {round}: {}", down.err);
        assert!(!place.path("run/v").exists(), "round {round}");
        wait_until("no server is left", || processes_of(&place.dir, "serve").is_empty());
        for ran in told.iter().filter(|ran| ran.code != 0) {
            let is_clear = ["is at work on this machine", "has ended meanwhile", "no volume 'v'"];
            assert!(is_clear.iter().any(|words| ran.err.contains(words)), "round {round}: {}", ran.err);
        }
        fs::remove_dir_all(place.path("storage")).expect("it goes");
    }
}

/// Two commands that move slots stood in each other's way, and `aze down` ended servers while their slots moved.
#[test]
fn servers_leave_when_no_other_command_is_at_work() {
    let place = Place::new();
    up(&place, &["--servers", "2", "--storage-size", "1G"]);
    let turn = File::create(place.path("run/v/grow.lock")).expect("a file");
    turn.lock().expect("a lock");
    let refused = place.aze(&["shrink", "--servers", "1"]).code(6);
    assert!(
        refused.err.contains("another 'aze grow', 'aze shrink' or 'aze down' of volume 'v' is at work"),
        "{}",
        refused.err
    );
    assert!(!place.aze(&["status"]).ok().out.contains("left"));
    drop(turn);
    place.aze(&["shrink", "--servers", "1"]).ok();
}

/// Its storage is whole, and `aze restart` said only that all servers run.
#[test]
fn a_server_that_stands_still_is_told_from_one_that_has_died() {
    let place = Place::new();
    up(&place, &["--servers", "2", "--storage-size", "1G"]);
    let stopped = pid_of(&place, 1);
    aze_tests::signal(stopped as u32, libc::SIGSTOP);
    let told = place.aze(&["status"]).code(1).out;
    assert!(told.contains(&format!("its process (pid {stopped}) runs")), "{told}");
    assert!(told.contains(&format!("'kill -CONT {stopped}'")) && told.contains("'aze restart --server 1'"), "{told}");
    let refused = place.aze(&["restart"]).code(5);
    assert!(refused.err.contains("'aze restart --server N' ends one that does not answer"), "{}", refused.err);
    aze_tests::signal(stopped as u32, libc::SIGCONT);
    place.aze(&["status"]).ok();
    aze_tests::signal(stopped as u32, libc::SIGSTOP);
    place.aze(&["restart", "--server", "1"]).ok();
    place.aze(&["status"]).ok();
}

#[test]
fn a_volume_in_memory_is_not_restarted() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let refused = place.aze(&["restart"]);
    assert!(refused.code != 0 && refused.err.contains("in memory"), "{}", refused.err);
    let refused = place.aze(&["down", "--delete", "--yes"]);
    assert!(refused.code != 0 && refused.err.contains("nothing to --delete"), "{}", refused.err);
}

#[test]
fn directories_are_removed_when_that_is_meant() {
    let place = Place::new();
    up(&place, &["--servers", "2"]);
    let refused = place.aze(&["down", "--delete"]);
    assert!(refused.code != 0 && refused.err.contains("--yes"), "{}", refused.err);
    assert!(place.path("storage/server-1/volume").exists());
    fs::write(place.path("storage/mine"), "other things").expect("a file");
    place.aze(&["down", "--delete", "--yes"]).ok();
    assert!(!place.path("storage/server-0").exists() && !place.path("storage/server-1").exists());
    assert!(place.path("storage/mine").exists(), "what is not the volume's stays");
}

/// `aze check` of directories: in use, intact, incomplete, changed, and of another format.
#[test]
fn directories_are_looked_through() {
    let place = Place::new();
    let tree = place.path("tree");
    make_tree(&tree, 30);
    up(&place, &["--servers", "2"]);
    place.aze(&["cp", "-r", &tree.display().to_string(), "aze:/tree"]).ok();
    let marked = place.path("marked");
    fs::write(&marked, b"a line that is found again".repeat(100)).expect("a file");
    place.aze(&["cp", &marked.display().to_string(), "aze:/tree/marked"]).ok();
    let busy = place.aze(&["check", "storage"]);
    assert!(busy.code == 2 && busy.err.contains("a server uses it"), "{} {}", busy.code, busy.err);
    place.aze(&["down"]).ok();
    let well = place.aze(&["check", "storage"]).ok();
    assert!(well.err.contains("all is well"), "{}", well.err);
    let alone = place.aze(&["check", "storage/server-1"]);
    assert!(alone.code == 2 && alone.err.contains("missing: 0"), "{} {}", alone.code, alone.err);

    // One byte of a file changes on the disk, after a start has made a checkpoint of it.
    up(&place, &["--servers", "2"]);
    place.aze(&["down"]).ok();
    let mut changed = 0;
    for server in ["storage/server-0", "storage/server-1"] {
        for file in fs::read_dir(place.path(server)).expect("a directory").flatten() {
            let bytes = fs::read(file.path()).expect("a file");
            if let Some(at) = bytes.windows(26).position(|words| words == b"a line that is found again") {
                let file = fs::OpenOptions::new().write(true).open(file.path()).expect("a file");
                file.write_all_at(&[bytes[at] ^ 1], at as u64).expect("a write");
                changed += 1;
            }
        }
    }
    assert_eq!(changed, 1);
    let found = place.aze(&["check", "storage"]).code(1);
    assert!(found.out.contains("checksum: /tree/marked"), "{}", found.out);
    assert_eq!(found.out.lines().count(), 1, "{}", found.out);
    let found = place.aze(&["check", "--repair", "--json", "storage"]).code(1);
    assert!(found.out.contains("\"repaired\":[]"), "{}", found.out);

    let manifest = place.path("storage/server-1/volume");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    fs::write(&manifest, text.replace("format 15", "format 12")).expect("a manifest");
    let older = place.aze(&["check", "storage"]);
    assert!(older.code == 2 && older.err.contains("format 12"), "{} {}", older.code, older.err);
}
