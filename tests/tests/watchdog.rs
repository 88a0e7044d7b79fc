//! A test that hangs in a mount is ended, says where it hung, and leaves nothing behind; so does a test
//! program that takes too long. Both are tried on tests of this file that hang when they are told to.

use aze_tests::{Place, Ran, run, wait_until, watchdog};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Names the environment variable that makes the test below hang.
const HANG: &str = "AZE_TEST_HANGS";

/// Hangs if it is told to: a server of a mount is stopped and a program reads from the mount.
#[test]
fn hangs_when_told_to() {
    let Ok(how) = std::env::var(HANG) else { return };
    let mut place = Place::new();
    place.up(&["--servers", "1"]);
    let mnt = place.mount();
    std::fs::write(mnt.join("file"), "text").expect("a file");
    for pid in watchdog::of_volumes(&place.dir) {
        aze_tests::signal(pid, libc::SIGSTOP);
    }
    if how == "briefly" {
        place.allow(Duration::from_secs(2));
    }
    run(Command::new("cat").arg(mnt.join("file")));
}

/// Runs the test above in a process of its own, and looks for mounts, processes and files that it leaves.
fn hanging(command: &mut Command, how: &str) -> (Ran, Duration) {
    let started = Instant::now();
    let child = command
        .args(["hangs_when_told_to", "--exact", "--nocapture"])
        .env(HANG, how)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test program starts");
    let mark = format!("aze-test-{}-", child.id());
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(&mark), "a mount is left: {mounts}");
    for entry in std::fs::read_dir(std::env::temp_dir()).expect("a folder").flatten() {
        if entry.file_name().to_string_lossy().starts_with(&mark) {
            wait_until("no process is left", || watchdog::of_volumes(&entry.path()).is_empty());
            assert!(how != "briefly", "{} is left", entry.path().display());
            std::fs::remove_dir_all(entry.path()).expect("it can be removed");
        }
    }
    (ran, started.elapsed())
}

#[test]
fn a_test_that_hangs_is_ended_and_says_where() {
    let this = std::env::current_exe().expect("a process knows its program");
    let (ran, took) = hanging(&mut Command::new(this), "briefly");
    assert_eq!(ran.code, 101, "it fails as tests do\n{}", ran.err);
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(ran.err.contains("watchdog: hangs_when_told_to hangs after 2 s"), "{}", ran.err);
    for line in [" cat: ", " aze: T (stopped)", "/abort: Ok("] {
        assert!(ran.err.contains(line), "{line}\n{}", ran.err);
    }
}

#[test]
fn a_test_program_that_hangs_is_ended_and_shown() {
    let this = std::env::current_exe().expect("a process knows its program");
    let bounded = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/bounded"));
    let (ran, took) = hanging(Command::new(bounded).arg(this).env("BOUND", "4"), "for long");
    assert_eq!(ran.code, -1, "a signal ended it\n{}", ran.err);
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(ran.err.contains("is not done after 4 s") && ran.err.contains("\ncat "), "{}", ran.err);
}

#[test]
fn a_test_program_that_ends_is_not_disturbed() {
    let bounded = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/bounded"));
    let ran: Ran = Command::new(bounded).args(["sh", "-c", "echo out; exit 3"]).output().expect("it runs").into();
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (3, "out\n", ""));
}
