//! Servers join a volume in memory under work: `aze grow`.

use aze_tests::ledger::Ledger;
use aze_tests::servers::{pids, runs, states};
use aze_tests::writers::while_writing;
use aze_tests::{Draw, Place, ends_within, long, signal, wait_until};
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

/// Moments at which a server dies that joins.
const MOMENTS: u64 = 6;

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// How many slots each server of the map has that a command of this machine has seen last.
fn requests_of(place: &Place) -> Vec<u64> {
    let status = json(&place.aze(&["status", "--json"]).ok().out);
    let of = |server: &serde_json::Value| {
        let counters =
            server["requests"].as_object().map(|counters| counters.values().filter_map(|count| count.as_u64()).sum());
        counters.unwrap_or(0)
    };
    status["servers"].as_array().expect("a list").iter().map(of).collect()
}

/// A mount that asks nothing hears of every server that leaves, and so of those that have come.
#[test]
fn an_idle_mount_finds_servers_that_have_all_come_later() {
    let mut place = Place::new();
    place.aze(&["up", "--name", "v", "--servers", "2", "--size", "256M"]).ok();
    let mount = place.mount();
    fs::write(mount.join("file"), "its bytes").expect("written");
    for leaving in ["0,1", "2,3"] {
        place.aze(&["grow", "--name", "v", "--servers", "2"]).ok();
        place.aze(&["shrink", "--servers", leaving]).ok();
    }
    assert_eq!(states(&place), ["left", "left", "left", "left", "up", "up"]);
    assert_eq!(fs::read_to_string(mount.join("file")).expect("read"), "its bytes");
    fs::write(mount.join("another"), "more").expect("written");
    assert_eq!(place.aze(&["cat", "aze:/another"]).ok().out, "more");
}

/// Two writers through a mount, a program without one, and programs that hold files open, while two servers become four and then
/// two again. A file that did not fit before fits while there are four.
#[test]
fn servers_join_under_work_and_nothing_is_lost() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(if long() { 1200 } else { 300 }));
    place.aze(&["up", "--name", "v", "--servers", "2", "--size", "256M"]).ok();
    let mount = place.mount();
    // Open for the whole time, without a request: its home may change.
    let mut idle: Vec<fs::File> =
        (0..24).map(|at| fs::File::create(mount.join(format!("idle{at}"))).expect("made")).collect();
    let unnamed = (0..24).map(|at| mount.join(format!("idle{at}")));
    unnamed.take(12).for_each(|path| fs::remove_file(path).expect("removed"));
    let large: Vec<u8> = (0..300_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let failed = fs::write(mount.join("large"), &large).expect_err("two servers have no room for it");
    assert_eq!(failed.raw_os_error(), Some(libc::ENOSPC));
    fs::remove_file(mount.join("large")).expect("removed");
    let used = |place: &Place| {
        let space = json(&place.aze(&["df", "--json"]).ok().out);
        space["used_bytes"].as_u64().unwrap_or_else(|| panic!("{space}"))
    };
    wait_until("its room is free", || used(&place) < 1_000_000);
    let script =
        "for n in $(seq 1 100000); do echo line $n >> /aze/lines || exit 9; [ -e /aze/enough ] && exit 0; done";
    let mut program = place.command(&["run", "--door", "intercept", "--", "bash", "-c", script]);
    let mut program = program.stdout(Stdio::null()).spawn().expect("it starts");
    let mut ledgers = [0, 1].map(|who| Ledger::new(&format!("w{who}"), Draw::new(17, 1 + who)));
    let slowest = while_writing(&mount, &mut ledgers, |writers| {
        writers.more("changes are made");
        let told = json(&place.aze(&["grow", "--name", "v", "--servers", "2", "--json"]).ok().out);
        assert_eq!((&told["joined"], &told["slots_moved"]), (&serde_json::json!([2, 3]), &serde_json::json!(8)));
        println!("{} slots in {} s under work", told["slots_moved"], told["seconds"]);
        writers.more("changes are made at four servers");
        assert_eq!(states(&place), ["up", "up", "up", "up"]);
        fs::write(mount.join("large"), &large).expect("four servers have room for it");
        assert!(fs::read(mount.join("large")).expect("read") == large);
        place.aze(&["du", "aze:/"]).ok();
        let asked = requests_of(&place);
        assert!(asked.len() == 4 && asked.iter().all(|asked| *asked > 100), "all serve: {asked:?}");
        let before = pids(&place, "v");
        fs::remove_file(mount.join("large")).expect("removed");
        place.aze(&["shrink", "--servers", "1,2"]).ok();
        assert_eq!(states(&place), ["up", "left", "left", "up"]);
        assert!(before.len() == 4 && !runs(before[1]) && !runs(before[2]) && runs(before[3]));
        writers.more("changes are made at the first and the last");
        let told = json(&place.aze(&["grow", "--servers", "1", "--json"]).ok().out);
        assert_eq!(told["joined"], serde_json::json!([4]), "a number is given out once");
        writers.more("changes are made at three");
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
    for (at, file) in idle.iter_mut().enumerate() {
        file.write_all(b"still open").unwrap_or_else(|why| panic!("idle{at}: {why}"));
        assert_eq!(file.metadata().expect("its home knows it").len(), 10, "idle{at}");
    }
    drop(idle);
    let checked = place.aze(&["check", "--name", "v"]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    let watched = place.aze(&["status", "--watch=100ms", "--count", "1"]).ok();
    assert_eq!(watched.out.matches(" left").count(), 2, "{}", watched.out);
    let second = place.mount();
    assert_eq!(fs::read_to_string(second.join("lines")).expect("read"), lines, "a new mount finds all");
    let all = pids(&place, "v");
    assert_eq!(all.len(), 5);
    place.aze(&["down", "--force", "--discard"]).ok();
    assert!(all.iter().all(|pid| !runs(*pid)), "those that have joined end with the volume");
}

/// A volume of one server grows under a program that writes, and is there with all servers afterwards; three decide about the map then.
fn one_grows(up: &[&str], lasts: bool) {
    let mut place = Place::new();
    place.allow(Duration::from_secs(240));
    let storage = place.path("storage").display().to_string();
    let up: Vec<&str> = up.iter().map(|word| if *word == "DIR" { storage.as_str() } else { word }).collect();
    place.up(&[&["--name", "v", "--servers", "1"], up.as_slice()].concat());
    let mount = place.mount();
    (0..5).for_each(|at| fs::create_dir(mount.join(format!("d{at}"))).expect("made"));
    (0..20).for_each(|at| fs::write(mount.join(format!("d{}/f{at}", at % 5)), content(at)).expect("written"));
    let mut ledger = Ledger::new("w", Draw::new(23, 1));
    while_writing(&mount, std::slice::from_mut(&mut ledger), |writers| {
        writers.more("changes are made");
        let grown = place.aze(&["grow", "--servers", "1", "--json"]).ok();
        assert_eq!(json(&grown.out)["slots_moved"], 4, "{}", grown.out);
        writers.more("changes are made by two servers");
        place.aze(&["grow", "--servers", "1"]).ok();
        writers.more("changes are made by three servers");
    });
    assert_eq!(states(&place), ["up"; 3]);
    let status = json(&place.aze(&["status", "--json"]).ok().out);
    assert_eq!(status["group"].as_array().map(Vec::len), Some(3), "{status}");
    has_all(&mount, 20);
    ledger.check(&mount).unwrap_or_else(|why| panic!("{}: {why}", ledger.dir));
    if lasts {
        // The one that was there at the beginning dies; the others decide.
        signal(pids(&place, "v")[0], libc::SIGKILL);
        place.aze(&["restart", "--server", "0"]).ok();
        has_all(&mount, 20);
        place.aze(&["down", "--force"]).ok();
        place.up(&["--name", "v", "--servers", "3", "--storage", &storage]);
        let mount = place.mount();
        has_all(&mount, 20);
        ledger.check(&mount).unwrap_or_else(|why| panic!("{}: {why}", ledger.dir));
    }
    let checked = place.aze(&["check", "--name", "v"]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    place.aze(&["down", "--force", "--discard"]).ok();
}

#[test]
fn a_volume_of_one_server_grows() {
    one_grows(&[], false);
}

#[test]
fn a_volume_of_one_server_in_a_directory_grows() {
    one_grows(&["--storage", "DIR"], true);
}

/// An earlier build has made a volume of one server with one slot: it works, and is not asked to grow.
#[test]
fn a_volume_with_one_slot_is_served_and_does_not_grow() {
    let mut place = Place::new();
    let storage = place.path("storage").display().to_string();
    let up = ["--name", "v", "--servers", "1", "--storage", &storage];
    place.up(&up);
    place.aze(&["down"]).ok();
    // As that build has left it: nothing but the root, which is in the first slot by either count.
    let manifest = place.path("storage/server-0/volume");
    let text = fs::read_to_string(&manifest).expect("text");
    assert!(text.contains("\nslots 8\n"), "{text}");
    fs::write(&manifest, text.replace("\nslots 8\n", "\nslots 1\n")).expect("written");
    fs::remove_file(place.path("storage/server-0/group")).expect("removed");
    for start in 0..3 {
        place.up(&up);
        let mount = place.mount();
        if start == 0 {
            (0..5).for_each(|at| fs::create_dir(mount.join(format!("d{at}"))).expect("made"));
            (0..20).for_each(|at| fs::write(mount.join(format!("d{}/f{at}", at % 5)), content(at)).expect("written"));
        }
        has_all(&mount, 20);
        refused(&place, &["--servers", "1"], "and 1 of the slots of which each server needs one");
        if start == 1 {
            signal(pids(&place, "v")[0], libc::SIGKILL);
            place.aze(&["restart"]).ok();
            has_all(&mount, 20);
        }
        place.aze(&["down", "--force"]).ok();
        let checked = place.aze(&["check", &storage]);
        assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    }
}

/// A node whose record does not tell of a server that has joined finds it in the map.
#[test]
fn a_record_of_before_is_enough() {
    let mut place = Place::new();
    place.up(&["--name", "v", "--servers", "2"]);
    let mount = place.mount();
    (0..20).for_each(|at| fs::write(mount.join(format!("f{at}")), vec![7u8; 300_000]).expect("written"));
    let record = place.path("run/v/volume.json");
    let before = fs::read(&record).expect("a record");
    place.aze(&["grow", "--servers", "2"]).ok();
    let joined = pids(&place, "v")[2..].to_vec();
    assert!(joined.len() == 2 && joined.iter().all(|pid| runs(*pid)));
    fs::write(&record, &before).expect("written");
    fs::remove_file(place.path("run/v/map")).ok();
    assert_eq!(states(&place), ["up", "up", "up", "up"]);
    for _ in 0..2 {
        // The second one knows the map of the first.
        assert_eq!(place.aze(&["cat", "aze:/f3"]).ok().out.len(), 300_000);
    }
    let watched = place.aze(&["status", "--watch=100ms", "--count", "1", "--json"]).ok();
    assert_eq!(json(&watched.out)["servers"].as_array().map(Vec::len), Some(4));
    place.aze(&["shrink", "--servers", "2"]).ok();
    assert_eq!(states(&place), ["up", "up", "left", "up"]);
    fs::write(&record, &before).expect("written");
    place.aze(&["down", "--force", "--discard"]).ok();
    assert!(joined.iter().all(|pid| !runs(*pid)), "they end with the volume");
}

/// The command is killed in the middle, again and again: the volume works wholly, no process goes on in vain, and the command goes
/// on with the servers that have joined.
#[test]
fn a_command_that_is_killed_goes_on_the_next_time() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(240));
    place.up(&["--name", "v", "--servers", "2"]);
    let mount = place.mount();
    let bytes = |at: usize| vec![at as u8 | 1; 1_500_000];
    (0..30).for_each(|at| fs::write(mount.join(format!("f{at}")), bytes(at)).expect("written"));
    let all_there = |when: &str| {
        for at in 0..30 {
            assert!(fs::read(mount.join(format!("f{at}"))).expect("read") == bytes(at), "{when}: f{at}");
        }
    };
    let mut was_joining = false;
    for round in 0..12 {
        let mut grow = place.command(&["grow", "--servers", "2"]);
        let mut grow = grow.stderr(Stdio::null()).spawn().expect("it starts");
        ends_within(&mut grow, Duration::from_millis(20 * (round + 1)));
        let _ = grow.kill();
        if grow.wait().expect("it ends").success() {
            break;
        }
        was_joining |= states(&place).contains(&"joining".into());
        all_there(&format!("after kill {round}"));
        fs::write(mount.join(format!("new{round}")), b"works").expect("the volume works");
        place.aze(&["df"]).ok();
        // The move that was under way is over by now.
        let servers = states(&place);
        if servers.len() > 2 && !servers.contains(&"joining".into()) {
            // All of it was done.
            break;
        }
    }
    if states(&place).len() < 4 {
        place.aze(&["grow", "--servers", "2"]).ok();
    } else {
        place.aze(&["grow"]).ok();
    }
    let servers = states(&place);
    assert_eq!(servers, ["up"; 4], "those that had joined were not started once more");
    println!("one was killed while slots moved: {was_joining}");
    all_there("at the end");
    assert_eq!(place.aze(&["check"]).code, 0);
    wait_until("no server runs that has not joined", || servers_in(&place, "v").len() == servers.len());
}

/// Processes of servers of a volume, by their logs.
fn servers_in(place: &Place, name: &str) -> Vec<u32> {
    let here = format!("{}/", place.path("run").join(name).display());
    let is_here = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let log = fs::read_link(format!("/proc/{pid}/fd/2")).unwrap_or_default().display().to_string();
        line.split('\0').nth(1) == Some("serve") && log.starts_with(&here)
    };
    let numbers = fs::read_dir("/proc").expect("procfs").flatten();
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_here).collect()
}

/// A process that another one has started.
fn child_of(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().next()?.parse().ok()
}

/// A server dies at some moment after its start: if it has no slot by then it takes nothing along, and the next one joins.
#[test]
fn a_server_that_dies_before_it_has_a_slot_takes_nothing_along() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(240));
    let (mut had_none, mut had_some) = (0, 0);
    for moment in 0..MOMENTS {
        let name = format!("v{moment}");
        place.up(&["--name", &name, "--servers", "2"]);
        let mount = place.mount_with(&["--name", &name]);
        (0..20).for_each(|at| fs::write(mount.join(format!("f{at}")), vec![7u8; 300_000]).expect("written"));
        let mut grow = place.command(&["grow", "--servers", "1"]);
        let mut grow = grow.stderr(Stdio::null()).spawn().expect("it starts");
        let mut started = child_of(grow.id());
        while started.is_none() && !ends_within(&mut grow, Duration::from_millis(1)) {
            started = child_of(grow.id());
        }
        let new = started.expect("it has started a server");
        ends_within(&mut grow, Duration::from_millis(15 * moment));
        signal(new, libc::SIGKILL);
        let _ = grow.wait().expect("it ends");
        let mut again = place.aze(&["grow", "--servers", "1"]);
        wait_until("its end is known", || {
            let is_known = again.code == 0 || again.err.contains("no slot moves");
            if !is_known {
                again = place.aze(&["grow", "--servers", "1"]);
            }
            is_known
        });
        if again.code == 0 {
            had_none += 1;
            assert_eq!(states(&place).iter().filter(|state| *state == "up").count(), 3);
            (0..20).for_each(|at| assert_eq!(fs::read(mount.join(format!("f{at}"))).expect("read").len(), 300_000));
            assert_eq!(place.aze(&["check"]).code, 0);
        } else {
            had_some += 1;
        }
        place.aze(&["down", "--force", "--discard"]).ok();
    }
    println!("it had no slot {had_none} times, and some {had_some} times");
    assert!(had_none > 0);
}

/// Another command changes the record of the volume while servers start: the record has both changes.
#[test]
fn what_another_command_notes_while_servers_start_stays() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(100));
    place.up(&["--name", "v", "--servers", "2"]);
    let mut grow = place.command(&["grow", "--servers", "1"]);
    let mut grow = grow.stderr(Stdio::null()).spawn().expect("it starts");
    let mut new = None;
    wait_until("it has started a server", || {
        new = child_of(grow.id());
        new.is_some()
    });
    let new = new.expect("it is there");
    // Until it goes on, the command waits, and has read the record.
    signal(new, libc::SIGSTOP);
    let path = place.path("run/v/volume.json");
    let mut record = json(&fs::read_to_string(&path).expect("a record"));
    assert_eq!(record["servers"].as_array().map(Vec::len), Some(2), "it has not joined");
    record["starts"] = 5.into();
    fs::write(&path, record.to_string()).expect("written");
    signal(new, libc::SIGCONT);
    assert!(grow.wait().expect("it ends").success());
    let record = json(&fs::read_to_string(&path).expect("a record"));
    assert_eq!((&record["starts"], record["servers"].as_array().map(Vec::len)), (&5.into(), Some(3)));
    place.aze(&["down", "--force", "--discard"]).ok();
    wait_until("all have ended", || !runs(new));
}

fn refused(place: &Place, args: &[&str], why: &str) {
    let all: Vec<&str> = ["grow"].iter().chain(args).copied().collect();
    let ran = place.aze(&all);
    assert_ne!(ran.code, 0, "{args:?}");
    assert!(ran.err.contains(why), "{args:?}: {}", ran.err);
}

/// No process is started when it is refused.
#[test]
fn what_cannot_grow_is_refused_before_anything_starts() {
    let mut place = Place::new();
    place.up(&["--name", "v", "--servers", "2"]);
    let mount = place.mount();
    refused(&place, &["--servers", "15"], "15 more servers are too many: the volume has 2, and 16 of the slots");
    refused(&place, &["--servers", "0"], "0 is not in");
    refused(&place, &["--hosts", "n7"], "was started on this machine only");
    let more = place.aze(&["grow"]).ok();
    assert!(more.err.contains("no server has joined, 0 slots moved"), "{}", more.err);
    fs::write(mount.join("f"), b"x").expect("written");
    let killed = pids(&place, "v")[1];
    signal(killed, libc::SIGKILL);
    wait_until("the server ends", || !runs(killed));
    // A grow that came before would have its server join.
    wait_until("its end is known", || place.aze(&["shrink", "--servers", "1"]).err.contains("no slot moves"));
    refused(&place, &["--servers", "1"], "no slot moves");
    assert_eq!(servers_in(&place, "v").len(), 1);
    place.aze(&["down", "--force", "--discard"]).ok();

    place.up(&["--name", "one", "--servers", "1"]);
    refused(&place, &["--servers", "8"], "8 more servers are too many: the volume has 1, and 8 of the slots");
    place.aze(&["down", "--discard"]).ok();
    let storage = place.path("storage").display().to_string();
    let places: Vec<String> = (0..4).map(|at| format!("{storage}-{at}")).collect();
    place.up(&["--name", "kept", "--servers", "2", "--storage", &places.join(",")]);
    refused(&place, &["--servers", "1"], "its servers have several directories each");
    place.aze(&["down", "--discard"]).ok();
    let backing = place.path("backing");
    fs::create_dir(&backing).expect("a directory");
    place.up(&["--name", "over", "--servers", "2", "--backing", &backing.display().to_string()]);
    refused(&place, &["--servers", "1"], "a volume over a backing does not grow");
}

/// On nodes that a launcher reaches, servers join with that launcher; if one of them cannot be started, none has joined.
#[test]
fn servers_join_on_nodes() {
    let place = Place::new();
    // A node is a directory of its own on this machine.
    let root = place.path("nodes").display().to_string();
    fs::create_dir(&root).expect("a directory");
    let launcher = format!("sh -c '[ {{host}} = bad ] && exit 7; AZE_RUN_DIR={root}/{{host}} exec \"$@\"' --");
    place.aze(&["up", "--name", "v", "--hosts", "127.0.0.1,127.0.0.2", "--launcher", &launcher, "--size", "512M"]).ok();
    refused(&place, &["--hosts", "127.0.0.3,bad"], "bad");
    assert_eq!(states(&place), ["up", "up"], "none has joined");
    wait_until("the other one ends", || !place.path("nodes/127.0.0.3/v").exists());
    place.aze(&["grow", "--hosts", "127.0.0.3"]).ok();
    place.aze(&["grow", "--servers", "1"]).ok();
    assert_eq!(states(&place), ["up", "up", "up", "up"]);
    assert!(place.path("nodes/127.0.0.3/v/volume.json").exists(), "the node has the record");
    let all = pids(&place, "v");
    place.aze(&["shrink", "--hosts", "127.0.0.3"]).ok();
    place.aze(&["down", "--discard"]).ok();
    wait_until("all have ended", || all.iter().all(|pid| !runs(*pid)));
}

/// What a file of the test below holds.
fn content(at: usize) -> Vec<u8> {
    (0..700_000u32).map(|byte| (byte.wrapping_mul(2_654_435_761).wrapping_add(at as u32) >> 13) as u8).collect()
}

/// A number of a server as `aze status` tells it; 0 if it does not.
fn number_of(place: &Place, server: usize, path: &str) -> u64 {
    let told = place.aze(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&told.out).unwrap_or_default();
    status.pointer(&format!("/servers/{server}{path}")).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

fn has_all(mount: &std::path::Path, files: usize) {
    for at in 0..files {
        let read = fs::read(mount.join(format!("d{}/f{at}", at % 5))).unwrap_or_else(|why| panic!("f{at}: {why}"));
        assert!(read == content(at), "f{at} is as it was written");
    }
}

/// One of two servers dies and comes back; then the volume grows, that server leaves, and all else goes on, under a program that writes.
#[test]
fn slots_move_after_a_server_has_come_back_alone() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(300));
    let storage = place.path("storage").display().to_string();
    place.up(&["--name", "v", "--servers", "2", "--storage", &storage]);
    let mount = place.mount();
    fs::create_dir(mount.join("d0")).expect("made");
    fs::write(mount.join("d0/f0"), content(0)).expect("written");
    signal(pids(&place, "v")[1], libc::SIGKILL);
    place.aze(&["restart", "--server", "1"]).ok();
    let mut ledgers = [Ledger::new("w", Draw::new(37, 1))];
    while_writing(&mount, &mut ledgers, |writers| {
        writers.more("changes are made after the comeback");
        let told = json(&place.aze(&["grow", "--servers", "1", "--json"]).ok().out);
        assert_eq!(told["joined"], serde_json::json!([2]));
        writers.more("changes are made at three servers");
        place.aze(&["shrink", "--servers", "1"]).ok();
        writers.more("changes are made at two servers");
    });
    assert_eq!(states(&place), ["up", "left", "up"]);
    for mut ledger in ledgers {
        ledger.check(&mount).unwrap_or_else(|why| panic!("{}: {why}", ledger.dir));
    }
    has_all(&mount, 1);
    let checked = place.aze(&["check", "--name", "v"]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    place.aze(&["restart", "--force"]).ok();
    has_all(&mount, 1);
    place.aze(&["down", "--force"]).ok();
    let checked = place.aze(&["check", &storage]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
}

/// A volume in directories grows while everything is killed, grows to its end, shrinks, and is there under each number of servers after each
/// kind of start; directories of servers that have left are no part of it.
#[test]
fn a_volume_in_directories_grows_and_shrinks() {
    const FILES: usize = 40;
    let mut place = Place::new();
    place.allow(Duration::from_secs(400));
    let storage = place.path("storage").display().to_string();
    place.up(&["--name", "v", "--servers", "2", "--storage", &storage]);
    let mount = place.mount();
    (0..5).for_each(|at| fs::create_dir(mount.join(format!("d{at}"))).expect("made"));
    (0..FILES).for_each(|at| fs::write(mount.join(format!("d{}/f{at}", at % 5)), content(at)).expect("written"));
    // Killed while slots move.
    let mut growing = place.command(&["grow", "--servers", "2"]).spawn().expect("it starts");
    wait_until("slots move", || [2, 3].iter().all(|server| number_of(&place, *server, "/requests/MoveEnd") > 0));
    let killed = pids(&place, "v");
    assert_eq!(killed.len(), 4);
    killed.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
    growing.kill().expect("it is there");
    growing.wait().expect("it ends");
    place.aze(&["restart"]).ok();
    assert_eq!(states(&place), ["up"; 4]);
    has_all(&mount, FILES);
    place.aze(&["grow"]).ok();
    assert!((0..4).all(|server| number_of(&place, server, "/chunks") > 0), "all have a share");
    let again = place.aze(&["grow", "--json"]).ok();
    assert!(again.out.contains("\"slots_moved\":0"), "{}", again.out);
    has_all(&mount, FILES);

    // One of the new ones dies, and comes back.
    signal(pids(&place, "v")[3], libc::SIGKILL);
    place.aze(&["restart", "--server", "3"]).ok();
    has_all(&mount, FILES);
    place.aze(&["shrink", "--servers", "1"]).ok();
    assert_eq!(states(&place), ["up", "left", "up", "up"]);
    assert!(!place.path("storage/server-1/volume").exists() && place.path("storage/server-1/volume.left").exists());
    has_all(&mount, FILES);
    place.aze(&["restart", "--force"]).ok();
    has_all(&mount, FILES);
    place.aze(&["down", "--force"]).ok();

    let checked = place.aze(&["check", &storage]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    assert!(checked.out.contains("server 1 has left volume"), "{}", checked.out);
    let other = place.aze(&["up", "--name", "v", "--servers", "4", "--storage", &storage]);
    assert!(other.code != 0 && other.err.contains("consists of 3 servers now, number 0, 2, 3"), "{}", other.err);
    place.up(&["--name", "v", "--servers", "3", "--storage", &storage]);
    let mount = place.mount();
    has_all(&mount, FILES);
    place.aze(&["down", "--force"]).ok();
    // A directory of a server that has one is missing.
    fs::rename(place.path("storage/server-2"), place.path("elsewhere")).expect("moved");
    let missing = place.aze(&["up", "--name", "v", "--servers", "3", "--storage", &storage]);
    assert!(missing.code != 0 && missing.err.contains("has a part on server 2"), "{}", missing.err);
    fs::rename(place.path("elsewhere"), place.path("storage/server-2")).expect("moved");
    place.up(&["--name", "v", "--servers", "3", "--storage", &storage]);
    let other = place.path("other").display().to_string();
    place.aze(&["grow", "--servers", "1", "--storage", &other]).ok();
    assert!(
        place.path("other/server-4/volume").exists() && number_of(&place, 4, "/chunks") > 0,
        "a number is given out once"
    );
    place.aze(&["down", "--force", "--delete", "--yes"]).ok();
    assert!(!place.path("storage").exists() && !place.path("other").exists());
}
