//! `scripts/record` in its tiny form on the real program: one command records everything, and takes away
//! all that it started, also when a part fails or when it is told to end.

use aze_tests::{Place, Ran, program, set_mode, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The script with everything of its own below `place`, and with this program.
fn record(place: &Place, program: &Path) -> Command {
    for name in ["disk", "tmp"] {
        fs::create_dir_all(place.path(name)).expect("a directory");
    }
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/record"));
    command.args(["test", &place.path("disk").display().to_string()]);
    command.env("QUICK", "1").env("AZE", program).env("TMPDIR", place.path("tmp"));
    command.env("CARGO_TARGET_DIR", place.path("target")).stdin(Stdio::null());
    command
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
}

fn assert_nothing_is_left(place: &Place) {
    assert_eq!(entries(&place.path("disk")), Vec::<PathBuf>::new());
    assert_eq!(entries(&place.path("tmp")), Vec::<PathBuf>::new(), "running volumes are in there");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&place.dir.display().to_string()), "{mounts}");
}

/// A program that does what the shell command says, and `aze` where that comes to an end. It writes down
/// where the script keeps files in memory.
fn instead(place: &Place, shell: &str) -> PathBuf {
    let path = place.path("instead");
    let known = format!("echo \"$*\" | grep -o '/dev/shm/aze-record-[^ ]*' >> '{}'", place.path("memory").display());
    let text = format!("#!/usr/bin/env bash\n{known}\n{shell}\nexec '{}' \"$@\"\n", program().display());
    fs::write(&path, text).expect("a program");
    set_mode(&path, 0o755);
    path
}

fn assert_memory_is_empty(place: &Place) {
    let known = fs::read_to_string(place.path("memory")).expect("it was used");
    let dir = known.lines().next().expect("a directory in memory");
    assert!(!Path::new(dir).exists(), "{dir}");
}

#[test]
fn one_command_records_everything() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(400));
    let aze = instead(&place, "true");
    let ran: Ran = record(&place, &aze).output().expect("the script starts").into();
    let ran = ran.ok();
    let results = entries(&place.path("target/record"));
    assert_eq!(results.len(), 1, "{}", ran.out);
    let page = fs::read_to_string(results[0].join("README.md")).expect("a page");
    for part in ["io500-one", "io500-mount", "io500-tcp", "io500-four", "iops", "p4", "durability", "many"] {
        let result = fs::read_to_string(results[0].join(part).join("result.json")).expect("what was measured");
        assert!(result.contains("\"machine\"") && result.contains("\"command\""), "{part}: {result}");
    }
    for section in [
        "A quick run",
        "## One server, by the best local way",
        "| | aze, no mount | aze, no mount, threads | ratio | |",
        "| | aze, no mount | tmpfs | ratio | aim | hope | |",
        "## One server through a mount",
        "## One server over TCP",
        "## Four servers, by the best local way",
        "## Single operations of 1 caller",
        "## One process by transfer size",
        "## What durability costs",
        "durable: nothing: it is in memory (tmpfs)",
        "| checkpoint | ",
        "## Names when there are many",
        "## Four servers at rest",
    ] {
        assert!(page.contains(section), "'{section}' is missing:\n{page}");
    }
    // Every picture that is shown is there.
    for (_, after) in page.match_indices("](").map(|(at, start)| page.split_at(at + start.len())) {
        let name = after.split(')').next().unwrap_or("");
        assert!(results[0].join(name).exists(), "{name}");
    }
    assert_eq!(page.matches("| score | ").count(), 6, "each place beside the first one of its part:\n{page}");
    assert_nothing_is_left(&place);
    assert_memory_is_empty(&place);
}

#[test]
fn a_part_that_fails_leaves_nothing_running() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(100));
    // While a volume runs and is mounted.
    let aze =
        instead(&place, "case \"$1 $2\" in 'bench io500') exit 0 ;; 'bench iops') echo too bad >&2; exit 7 ;; esac");
    let ran: Ran = record(&place, &aze).output().expect("the script starts").into();
    let ran = ran.code(1);
    assert!(ran.err.contains("too bad") && ran.err.contains("this failed: aze bench iops"), "{}", ran.err);
    assert_nothing_is_left(&place);
    assert_memory_is_empty(&place);
}

#[test]
fn a_signal_ends_it_and_what_it_started() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(100));
    let pid_file = place.path("pid");
    let shell = format!("if [ \"$2\" = io500 ]; then echo $$ > '{}'; exec sleep 1000; fi", pid_file.display());
    let aze = instead(&place, &shell);
    let child = record(&place, &aze).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until("it measures", || fs::read_to_string(&pid_file).is_ok_and(|text| text.ends_with('\n')));
    aze_tests::signal(child.id(), libc::SIGTERM);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    ran.code(130);
    let pid = fs::read_to_string(&pid_file).expect("a number");
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "what it had started has ended");
    assert_nothing_is_left(&place);
    assert_memory_is_empty(&place);
}
