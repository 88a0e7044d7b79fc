//! Servers of a volume in memory leave it under work: `aze shrink`.

use aze_tests::ledger::Ledger;
use aze_tests::servers::{pids, runs, states};
use aze_tests::writers::while_writing;
use aze_tests::{Draw, Place, ends_within, long, make_tree, stays_so, wait_until};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Two writers through a mount, a program without one, and one command after the other, while two of four servers leave.
#[test]
fn servers_leave_under_work_and_nothing_is_lost() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(if long() { 1200 } else { 240 }));
    place.up(&["--name", "v", "--servers", "4"]);
    let mount = place.mount();
    make_tree(&place.path("tree"), 20);
    let big: Vec<u8> = (0..48_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(mount.join("big"), &big).expect("written");
    // Open for the whole time, without a request: its home may leave.
    let mut idle: Vec<fs::File> =
        (0..24).map(|at| fs::File::create(mount.join(format!("idle{at}"))).expect("made")).collect();
    let unnamed = (0..24).map(|at| mount.join(format!("idle{at}")));
    unnamed.take(12).for_each(|path| fs::remove_file(path).expect("removed"));
    let script =
        "for n in $(seq 1 100000); do echo line $n >> /aze/lines || exit 9; [ -e /aze/enough ] && exit 0; done";
    let mut program = place.command(&["run", "--door", "intercept", "--", "bash", "-c", script]);
    let mut program = program.stdout(Stdio::null()).spawn().expect("it starts");
    let (over, copied) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut ledgers = [0, 1].map(|who| Ledger::new(&format!("w{who}"), Draw::new(11, 1 + who)));
    let before = pids(&place, "v");
    let slowest = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let to = format!("aze:/copy{number}");
                place.aze(&["cp", "-r", &place.path("tree").display().to_string(), &to]).ok();
                place.aze(&["rm", "-r", &to]).ok();
                copied.fetch_add(1, Ordering::Relaxed);
            }
        });
        let slowest = while_writing(&mount, &mut ledgers, |writers| {
            writers.more("changes are made");
            let shrunk = place.aze(&["shrink", "--name", "v", "--servers", "2,3", "--json"]).ok();
            let told: serde_json::Value = serde_json::from_str(&shrunk.out).expect("JSON");
            assert_eq!((&told["left"], &told["slots_moved"]), (&serde_json::json!([2, 3]), &serde_json::json!(16)));
            println!("{} slots in {} s under work", told["slots_moved"], told["seconds"]);
            for left in &before[2..] {
                assert!(!runs(*left), "its process has ended, and with it its memory is given back");
            }
            assert!(before[..2].iter().all(|pid| runs(*pid)));
            writers.more("changes are made by two servers");
            let so_far = copied.load(Ordering::Relaxed);
            wait_until("commands are done by two servers", || copied.load(Ordering::Relaxed) >= so_far + 2);
        });
        over.store(true, Ordering::Relaxed);
        slowest
    });
    println!("the longest step of a writer took {} ms", slowest.as_millis());
    fs::write(mount.join("enough"), b"").expect("made");
    assert!(program.wait().expect("it ends").success(), "the program without a mount has seen no error");
    let lines = fs::read_to_string(mount.join("lines")).expect("read");
    let expected: String = (1..=lines.lines().count()).map(|number| format!("line {number}\n")).collect();
    assert!(lines.lines().count() > 1 && lines == expected, "each line once");
    for mut ledger in ledgers {
        ledger.check(&mount).unwrap_or_else(|why| panic!("{}: {why}", ledger.dir));
    }
    assert!(fs::read(mount.join("big")).expect("read") == big, "data are as they were");
    for (at, file) in idle.iter_mut().enumerate() {
        file.write_all(b"still open").unwrap_or_else(|why| panic!("idle{at}: {why}"));
        assert_eq!(file.metadata().expect("its home knows it").len(), 10, "idle{at}");
    }
    drop(idle);
    assert_eq!(states(&place), ["up", "up", "left", "left"]);
    let checked = place.aze(&["check", "--name", "v"]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    let watched = place.aze(&["status", "--watch=100ms", "--count", "1"]).ok();
    assert_eq!(watched.out.matches(" left").count(), 2, "{}", watched.out);
    let again = place.aze(&["shrink", "--servers", "3"]).ok();
    assert!(again.err.contains("left before"), "{}", again.err);
    place.aze(&["df"]).ok();
    place.aze(&["du", "aze:/"]).ok();
    let second = place.mount();
    assert!(fs::read(second.join("big")).expect("read") == big, "a new mount finds all");
    let begun = Instant::now();
    place.aze(&["down", "--force", "--discard"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(4), "nobody waits for those that left: {:?}", begun.elapsed());
}

/// A program that has a file open and does nothing is connected to the server that leaves only: the file stays open, also
/// after everybody's patience with sessions that are away.
#[test]
fn an_idle_program_keeps_what_it_has_open() {
    let mut place = Place::new();
    place.up(&["--name", "v", "--servers", "3"]);
    let mount = place.mount();
    let mut files: Vec<fs::File> = (0..12)
        .map(|at| {
            let path = mount.join(format!("f{at}"));
            let file = fs::OpenOptions::new().create_new(true).read(true).write(true).open(&path).expect("made");
            fs::remove_file(path).expect("removed");
            file
        })
        .collect();
    place.aze(&["shrink", "--servers", "1,2"]).ok();
    // A server that has taken opens waits less long for their sessions: as long as the one that left may go on, and a grace.
    stays_so("the server that stays has all files open", Duration::from_secs(25), || {
        opens(&place) == files.len() as u64
    });
    for (at, file) in files.iter_mut().enumerate() {
        file.write_all(b"here").unwrap_or_else(|why| panic!("f{at}: {why}"));
        assert_eq!(file.metadata().expect("it is there").len(), 4, "f{at}");
    }
}

/// The command is killed in the middle, again and again: the volume works wholly, and the command goes on.
#[test]
fn a_command_that_is_killed_goes_on_the_next_time() {
    let mut place = Place::new();
    place.up(&["--name", "v", "--servers", "3"]);
    let mount = place.mount();
    let bytes = |at: usize| vec![at as u8 | 1; 1_500_000];
    (0..30).for_each(|at| fs::write(mount.join(format!("f{at}")), bytes(at)).expect("written"));
    let all_there = |when: &str| {
        for at in 0..30 {
            assert!(fs::read(mount.join(format!("f{at}"))).expect("read") == bytes(at), "{when}: f{at}");
        }
    };
    for round in 0..4 {
        let mut shrink = place.command(&["shrink", "--servers", "1,2"]);
        let mut shrink = shrink.stderr(Stdio::null()).spawn().expect("it starts");
        ends_within(&mut shrink, Duration::from_millis(20 * (round + 1)));
        let _ = shrink.kill();
        shrink.wait().expect("it ends");
        all_there(&format!("after kill {round}"));
        fs::write(mount.join(format!("new{round}")), b"works").expect("the volume works");
    }
    place.aze(&["shrink", "--servers", "1,2"]).ok();
    assert_eq!(states(&place), ["up", "left", "left"]);
    all_there("at the end");
    assert_eq!(place.aze(&["check"]).code, 0);
}

/// How many files the servers have as open.
fn opens(place: &Place) -> u64 {
    let text = place.aze(&["status", "--json"]).ok().out;
    let status: serde_json::Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    let servers = status["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 3, "{text}");
    servers.iter().filter_map(|server| server["opens"].as_u64()).sum()
}

fn refused(place: &Place, args: &[&str], why: &str) {
    let all: Vec<&str> = ["shrink"].iter().chain(args).copied().collect();
    let ran = place.aze(&all);
    assert_ne!(ran.code, 0, "{args:?}");
    assert!(ran.err.contains(why), "{args:?}: {}", ran.err);
}

/// Nothing has moved when it is refused.
#[test]
fn what_cannot_leave_is_refused_before_anything_moves() {
    let mut place = Place::new();
    place.aze(&["up", "--name", "v", "--servers", "3", "--size", "200M"]).ok();
    refused(&place, &["--servers", "0,1,2"], "no server would stay");
    refused(&place, &["--servers", "7"], "volume 'v' has no server 7: it has 3");
    refused(&place, &["--hosts", "nowhere"], "has no server on 'nowhere'");
    refused(&place, &[], "required");
    let mount = place.mount();
    (0..90).for_each(|at| fs::write(mount.join(format!("f{at}")), vec![7u8; 1 << 20]).expect("written"));
    refused(&place, &["--servers", "1,2"], "those that stay have room for");
    assert_eq!(states(&place), ["up", "up", "up"]);
    (0..90).for_each(|at| assert_eq!(fs::read(mount.join(format!("f{at}"))).expect("read").len(), 1 << 20));
    let killed = pids(&place, "v")[2];
    aze_tests::signal(killed, libc::SIGKILL);
    wait_until("the server ends", || !runs(killed));
    wait_until("its end is known", || place.aze(&["shrink", "--servers", "1"]).err.contains("server 2 on "));
    refused(&place, &["--servers", "1"], "no slot moves");
    place.aze(&["down", "--force", "--discard"]).ok();

    place.up(&["--name", "one", "--servers", "1"]);
    refused(&place, &["--servers", "0"], "server 0 is the only one of the volume: 'aze down' ends it");
    place.aze(&["down", "--discard"]).ok();
    let backing = place.path("backing");
    fs::create_dir(&backing).expect("a directory");
    place.up(&["--name", "over", "--servers", "2", "--backing", &path(&backing)]);
    refused(&place, &["--servers", "1"], "a volume over a backing does not move slots between servers");
}

/// A number of the requests of a server, as `aze status` tells it; 0 if it does not.
fn requests(place: &Place, server: usize, kind: &str) -> u64 {
    let told = place.aze(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&told.out).unwrap_or_default();
    status.pointer(&format!("/servers/{server}/requests/{kind}")).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

fn has_left(place: &Place, server: u16) -> bool {
    let dir = place.path(&format!("storage/server-{server}"));
    !dir.join("volume").exists() && dir.join("volume.left").exists()
}

/// Nothing is started, and nothing is made, where the directory of server 1 is missing, which is the first one since server 0 has left.
fn the_first_is_missing(place: &Place, storage: &str) {
    let at = |name: &str| place.path(name);
    fs::rename(at("storage/server-1"), at("kept-1")).expect("renamed");
    for marked in [true, false] {
        if !marked {
            fs::rename(at("storage/server-0"), at("kept-0")).expect("renamed");
        }
        let refused = place.aze(&["up", "--name", "v", "--servers", "2", "--storage", storage]);
        let why = if marked { "server 0 has left the volume" } else { "that of server 1, the first one, is missing" };
        assert!(refused.code != 0 && refused.err.contains(why), "{}{}", refused.out, refused.err);
        let made = ["server-0", "server-1"].map(|name| at("storage").join(name).join("volume").exists());
        assert_eq!(made, [false, false], "no volume is made beside the old one");
    }
    for number in [0, 1] {
        let of = at(&format!("storage/server-{number}"));
        assert!(!of.exists(), "{of:?}");
        fs::rename(at(&format!("kept-{number}")), of).expect("renamed");
    }
}

/// The server that counts the starts of a volume in directories leaves it while a program writes, and the next one after it; after each the volume
/// is started again under its mount, and as a whole from the directories that are left.
#[test]
fn the_first_server_of_a_volume_in_directories_leaves_like_any_other() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(400));
    let storage = path(&place.path("storage"));
    place.up(&["--name", "v", "--servers", "3", "--storage", &storage]);
    let big: Vec<u8> = (0..24_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut ledger = Ledger::new("w", Draw::new(17, 1));
    for (first, left) in [(0u16, "number 1, 2"), (1, "number 2")] {
        let mount = place.mount();
        if first == 0 {
            fs::write(mount.join("big"), &big).expect("written");
        }
        while_writing(&mount, std::slice::from_mut(&mut ledger), |writers| {
            writers.more("changes are made");
            place.aze(&["shrink", "--servers", &first.to_string()]).ok();
            writers.more("changes are made without it");
        });
        assert!(has_left(&place, first), "its directory is marked");
        let status = place.aze(&["status"]).ok();
        assert!(status.out.contains(&format!("keeper: server {}", first + 1)), "{}", status.out);
        let all_there = |mount: &Path, ledger: &mut Ledger, when: &str| {
            ledger.check(mount).unwrap_or_else(|why| panic!("{when}: {}: {why}", ledger.dir));
            assert!(fs::read(mount.join("big")).expect("read") == big, "{when}: data are as they were");
        };
        all_there(&mount, &mut ledger, "after it has left");
        place.aze(&["restart", "--force"]).ok();
        all_there(&mount, &mut ledger, "under the mount");
        let checked = place.aze(&["check", "--name", "v"]);
        assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
        place.aze(&["down", "--force"]).ok();

        let checked = place.aze(&["check", &storage]);
        assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
        assert!(checked.out.contains(&format!("server {first} has left volume")), "{}", checked.out);
        let refused = place.aze(&["up", "--name", "v", "--servers", "4", "--storage", &storage]);
        assert!(refused.code != 0 && refused.err.contains(left), "{}", refused.err);
        if first == 0 {
            the_first_is_missing(&place, &storage);
        } else {
            // Nothing of it is needed.
            fs::remove_dir_all(place.path("storage/server-1")).expect("removed");
        }
        let servers = (2 - first).to_string();
        place.up(&["--name", "v", "--servers", &servers, "--storage", &storage]);
        let mount = place.mount();
        all_there(&mount, &mut ledger, "after a start of those that are left");
    }
    let other = path(&place.path("other"));
    place.aze(&["grow", "--servers", "1", "--storage", &other]).ok();
    assert!(place.path("other/server-3/volume").exists(), "it goes on with numbers that nobody has had");
    place.aze(&["down", "--force"]).ok();
    let places = format!("{storage},{other}");
    place.up(&["--name", "v", "--servers", "2", "--storage", &places]);
    let mount = place.mount();
    ledger.check(&mount).unwrap_or_else(|why| panic!("{}: {why}", ledger.dir));
    place.aze(&["down", "--force"]).ok();
}

/// Everything is killed while the first server leaves, again and again: the next start has every byte, and does not bring a server back that has
/// left.
#[test]
fn whatever_is_killed_while_the_first_server_leaves_is_there_at_the_next_start() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(400));
    let storage = path(&place.path("storage"));
    place.up(&["--name", "v", "--servers", "3", "--storage", &storage]);
    let mount = place.mount();
    let bytes = |at: usize| vec![at as u8 | 1; 1_500_000];
    (0..24).for_each(|at| fs::write(mount.join(format!("f{at}")), bytes(at)).expect("written"));
    for moves in [1, 4, 7, 8, 9] {
        let mut shrink = place.command(&["shrink", "--servers", "0"]);
        let mut shrink = shrink.stderr(Stdio::null()).spawn().expect("it starts");
        let has_ended = |shrink: &mut std::process::Child| shrink.try_wait().expect("it is ours").is_some();
        wait_until("slots move", || requests(&place, 0, "MoveEnd") >= moves || has_ended(&mut shrink));
        let killed = pids(&place, "v");
        killed.iter().filter(|pid| runs(**pid)).for_each(|pid| aze_tests::signal(*pid, libc::SIGKILL));
        let _ = shrink.kill();
        shrink.wait().expect("it ends");
        let mut started = place.aze(&["restart"]);
        for _ in 0..2 {
            if started.err.contains("start the volume once more") {
                started = place.aze(&["restart"]);
            }
        }
        assert_eq!(started.code, 0, "after {moves} moves: {}", started.err);
        for at in 0..24 {
            let read = fs::read(mount.join(format!("f{at}"))).unwrap_or_else(|why| panic!("{moves}: f{at}: {why}"));
            assert!(read == bytes(at), "after {moves} moves: f{at}");
        }
    }
    if states(&place)[0] != "left" {
        place.aze(&["shrink", "--servers", "0"]).ok();
    }
    place.aze(&["down", "--force"]).ok();
    let checked = place.aze(&["check", &storage]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    place.up(&["--name", "v", "--servers", "2", "--storage", &storage]);
    let mount = place.mount();
    (0..24).for_each(|at| assert!(fs::read(mount.join(format!("f{at}"))).expect("read") == bytes(at), "f{at}"));
    place.aze(&["down", "--force"]).ok();
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
