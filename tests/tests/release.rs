//! `aze stage release`: what a volume gives up is at its destination, and stays there.

use aze_tests::{Place, Ran, signal, wait_until};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn told(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).expect("JSON")
}

fn status(place: &Place) -> Value {
    told(&place.aze(&["stage", "status", "aze:/", "--json"]).ok())
}

/// Opens for writing that the servers know of.
fn writers(place: &Place) -> u64 {
    let status = told(&place.aze(&["status", "--json"]).ok());
    status["servers"]
        .as_array()
        .expect("servers")
        .iter()
        .filter_map(|server| server["opens_for_writing"].as_u64())
        .sum()
}

fn stage(place: &Place, to: &Path, more: &[&str]) -> Ran {
    place.aze(&[&["stage", "out", "aze:/in", text(to), "--keep", "--quiet"], more].concat())
}

/// A volume that is guarded, mounted, with a small tree in `in`; gives the mount's tree and the destination.
fn begin(place: &mut Place, more: &[&str]) -> (PathBuf, PathBuf) {
    let out = place.path("out");
    place.up(&[&["--servers", "3", "--stage-out", text(&out)], more].concat());
    let tree = place.mount().join("in");
    fs::create_dir_all(tree.join("sub")).expect("directories");
    fs::write(tree.join("a"), "contents").expect("a file");
    fs::write(tree.join("sub/large"), vec![7; 5 << 20]).expect("a file");
    std::os::unix::fs::symlink("a", tree.join("link")).expect("a link");
    (tree, out)
}

#[test]
fn a_released_file_is_gone_from_the_volume_and_stays_at_its_destination() {
    let mut place = Place::new();
    let (tree, out) = begin(&mut place, &[]);
    let ran = place.aze(&["stage", "release", "aze:/in"]).code(1);
    assert!(ran.err.contains("no receipt of this volume has it"), "{}", ran.err);
    stage(&place, &out, &[]).ok();
    wait_until("all are closed", || writers(&place) == 0);
    let used = || {
        let status = told(&place.aze(&["status", "--json"]).ok());
        status["servers"]
            .as_array()
            .expect("servers")
            .iter()
            .filter_map(|server| server["chunks"].as_u64())
            .sum::<u64>()
    };
    assert!(used() > 2);
    let report = told(&place.aze(&["stage", "release", "aze:/in", "--compare", "--json"]).ok());
    assert_eq!(
        (&report["released"], &report["bytes"], &report["kept"]),
        (&2.into(), &(8 + (5 << 20)).into(), &0.into())
    );
    for gone in ["a", "sub/large"] {
        assert_eq!(File::open(tree.join(gone)).expect_err("it is gone").kind(), std::io::ErrorKind::NotFound, "{gone}");
    }
    assert!(tree.join("sub").is_dir() && tree.join("link").is_symlink());
    wait_until("the data are gone", || used() == 0);
    let is_there = || fs::read(out.join("a")).is_ok_and(|a| a == b"contents") && out.join("sub/large").exists();
    assert!(is_there());
    let now = status(&place);
    assert_eq!(
        (&now["dirty"], &now["released"], &now["released_bytes"]),
        (&0.into(), &2.into(), &report["bytes"]),
        "{now}"
    );
    // Neither a directory that goes, nor a stage that mirrors, takes the only copy away.
    fs::remove_dir(tree.join("sub")).expect("it is empty");
    fs::write(tree.join("new"), "new").expect("a file");
    stage(&place, &out, &["--delete"]).ok();
    assert!(is_there() && out.join("new").exists());
    let refused = stage(&place, &out, &["--atomic"]).code(5);
    assert!(refused.err.contains("2 files there were released"), "{}", refused.err);
    // A new file of the name is one like all others.
    fs::write(tree.join("a"), "newer").expect("a file");
    stage(&place, &out, &["--delete"]).ok();
    assert_eq!(fs::read(out.join("a")).expect("a file"), b"newer");
    fs::remove_file(tree.join("a")).expect("it goes");
    assert_eq!(status(&place)["removed"], 1);
    stage(&place, &out, &["--delete"]).ok();
    assert!(!out.join("a").exists() && out.join("sub/large").exists());
    let now = status(&place);
    assert_eq!((&now["dirty"], &now["released"]), (&0.into(), &1.into()), "{now}");
    // On a node without the ledgers --delete is refused.
    let mut command = place.command(&["stage", "out", "aze:/in", text(&out), "--delete", "--keep"]);
    let elsewhere = command.env("XDG_STATE_HOME", place.path("elsewhere")).output().expect("the program runs");
    assert_eq!(elsewhere.status.code(), Some(5));
    let why = String::from_utf8_lossy(&elsewhere.stderr);
    assert!(why.contains("no ledger in"), "{why}");
    assert!(out.join("sub/large").exists());
    place.aze(&["down", "--force"]).ok();
}

#[test]
fn a_file_that_is_not_proven_to_be_elsewhere_stays() {
    let mut place = Place::new();
    let (tree, out) = begin(&mut place, &[]);
    let all = ["new", "changed", "open", "copy-changed", "copy-gone", "names"];
    for name in &all[1..] {
        fs::write(tree.join(name), name).expect("a file");
    }
    fs::hard_link(tree.join("names"), tree.join("names-too")).expect("a link");
    stage(&place, &out, &[]).ok();
    wait_until("all are closed", || writers(&place) == 0);
    fs::write(tree.join("new"), "new").expect("a file");
    File::options().write(true).open(tree.join("changed")).expect("a file").write_all_at(b"x", 0).expect("room");
    // Nothing is written through it, and it may be at any time.
    let held = File::options().write(true).open(tree.join("open")).expect("a file");
    fs::write(out.join("copy-changed"), "other").expect("room");
    fs::remove_file(out.join("copy-gone")).expect("it is there");
    let ran = place.aze(&["stage", "release", "aze:/in", "--json"]).code(1);
    let report = told(&ran);
    assert_eq!((&report["released"], &report["kept"]), (&2.into(), &7.into()), "{}", ran.err);
    let reasons = [
        ("aze:/in/new", "no receipt of this volume has it"),
        ("aze:/in/changed", "it has changed since it was staged"),
        ("aze:/in/open", "a program has it open for writing"),
        ("aze:/in/copy-changed", "has changed since it was verified"),
        ("aze:/in/copy-gone", "is not there any more"),
        ("aze:/in/names", "several names"),
        ("aze:/in/names-too", "several names"),
    ];
    for (path, why) in reasons {
        assert!(ran.err.lines().any(|line| line.contains(path) && line.contains(why)), "{path}: {why}: {}", ran.err);
    }
    for name in all {
        assert!(tree.join(name).exists(), "{name}");
    }
    // The open file goes on as if nothing had been.
    held.write_all_at(b"more", 0).expect("room");
    held.sync_all().expect("room");
    drop(held);
    assert_eq!(fs::read(tree.join("open")).expect("a file"), b"more");
    wait_until("it is closed", || writers(&place) == 0);
    stage(&place, &out, &[]).ok();
    let report = told(&place.aze(&["stage", "release", "aze:/in/open", "aze:/in/changed", "--json"]).ok());
    assert_eq!(report["released"], 2);
    assert_eq!(fs::read(out.join("open")).expect("a file"), b"more");
}

/// Every file is in the volume or at its destination, whenever the command is killed; and no later `--delete` takes the copy
/// of a file that the volume has given up.
#[test]
fn a_release_that_is_killed_loses_nothing() {
    const FILES: usize = 400;
    let mut place = Place::new();
    let (tree, out) = begin(&mut place, &[]);
    let name = |number: usize| format!("sub/f{number}");
    for number in 0..FILES {
        File::create(tree.join(name(number))).and_then(|mut file| write!(file, "{number}")).expect("a file");
    }
    stage(&place, &out, &[]).ok();
    let inside = || fs::read_dir(tree.join("sub")).expect("a directory").count();
    let (mut kills, mut before) = (0, inside());
    assert_eq!(before, FILES + 1);
    while before > 0 {
        let mut child = place
            .command(&["stage", "release", "aze:/in", "--jobs", "2", "--quiet"])
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut ended = false;
        wait_until("some files are released", || {
            ended = child.try_wait().expect("a child").is_some();
            ended || inside() + 20 <= before
        });
        if !ended {
            signal(child.id(), libc::SIGKILL);
            child.wait().expect("a child");
            kills += 1;
        }
        // What the killed one had frozen may be written again after a while.
        stage(&place, &out, &["--delete"]).ok();
        for number in 0..FILES {
            let expected = number.to_string();
            let copy = fs::read_to_string(out.join(name(number))).expect("a copy");
            assert_eq!(copy, expected, "after {kills} kills");
            if let Ok(inside) = fs::read_to_string(tree.join(name(number))) {
                assert_eq!(inside, expected, "after {kills} kills");
            }
        }
        before = inside();
    }
    assert!(kills > 3, "{kills} kills");
    assert_eq!(status(&place)["dirty"], 0);
    let last = tree.join("sub/again");
    fs::write(&last, "a file can be made as before").expect("room");
}

/// A server that was started again does not know who had a file open before.
#[test]
fn a_volume_that_was_started_again_releases_only_if_told() {
    let place = Place::new();
    let (storage, out, src) = (place.path("storage"), place.path("out"), place.path("src"));
    place.up(&["--servers", "2", "--storage", text(&storage), "--stage-out", text(&out)]);
    fs::write(&src, "contents").expect("a file");
    place.aze(&["mkdir", "aze:/in"]).ok();
    place.aze(&["cp", text(&src), "aze:/in/a"]).ok();
    stage(&place, &out, &[]).ok();
    place.aze(&["restart", "--force"]).ok();
    // The counts of the servers have begun anew: the next stage compares.
    let ran = place.aze(&["stage", "release", "aze:/in"]).code(1);
    assert!(ran.err.contains("its server was started again: stage it once more"), "{}", ran.err);
    stage(&place, &out, &[]).ok();
    let ran = place.aze(&["stage", "release", "aze:/in"]).code(1);
    assert!(ran.err.contains("does not know which programs had it open before"), "{}", ran.err);
    place.aze(&["cat", "aze:/in/a"]).ok();
    place.aze(&["cp", text(&src), "aze:/in/b"]).ok();
    stage(&place, &out, &[]).ok();
    place.aze(&["stage", "release", "aze:/in/b"]).ok();
    place.aze(&["stage", "release", "aze:/in", "--restarted"]).ok();
    place.aze(&["cat", "aze:/in/a"]).code(3);
    assert_eq!(fs::read(out.join("a")).expect("a copy"), b"contents");
    place.aze(&["down", "--force"]).ok();
}

/// A file open for writing is left out, named by its number, and taken when it is closed.
#[test]
fn files_are_staged_when_nobody_has_them_open_for_writing() {
    let mut place = Place::new();
    let (tree, out) = begin(&mut place, &[]);
    let closed = |more: &[&str]| stage(&place, &out, &[&["--when", "closed"], more].concat());
    let mut open = File::create(tree.join("log")).expect("a file");
    open.write_all(b"half").expect("room");
    // A mount tells a close a moment later.
    wait_until("the others are closed", || writers(&place) == 1);
    let ran = closed(&["--json"]).code(1);
    assert_eq!((&told(&ran)["open"], &told(&ran)["proven"]), (&1.into(), &5.into()), "{}", ran.err);
    let ran = closed(&[]).code(1);
    assert!(ran.err.contains("1 file open for writing, and left out"), "{}", ran.err);
    assert!(!out.join("log").exists() && out.join("a").exists());
    // Reading does not count.
    let read = File::open(tree.join("a")).expect("a file");
    open.write_all(b" and half").expect("room");
    drop(open);
    wait_until("the close has arrived", || closed(&[]).code == 0);
    drop(read);
    assert_eq!(fs::read(out.join("log")).expect("a copy"), b"half and half");
    place.aze(&["down", "--force"]).ok();
}
