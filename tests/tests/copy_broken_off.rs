//! Copies that are broken off leave nothing that looks like the whole, and measurements leave nothing at all.

use aze_tests::{PATIENCE, Place, run, wait_until};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

/// Long enough that a signal comes before the copy is done.
const BYTES: u64 = 400 << 20;

/// Makes the file that is copied; gives its path.
fn source(place: &Place) -> String {
    let path = place.path("large");
    let file = File::create(&path).expect("a file");
    let block = vec![0x5a; 1 << 20];
    for at in 0..BYTES >> 20 {
        file.write_all_at(&block, at << 20).expect("room");
    }
    path.to_str().expect("a path").to_owned()
}

fn ended(mut child: Child) -> std::process::ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(started.elapsed() < PATIENCE, "a copy that was broken off does not end");
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

fn send(child: &Child, signal: i32) {
    aze_tests::signal(child.id(), signal);
}

fn copy(place: &Place, from: &str, to: &str) -> Child {
    place.command(&["cp", "--quiet", from, to]).stderr(Stdio::null()).spawn().expect("aze starts")
}

/// Names in the volume's root, hidden ones too.
fn names(place: &Place) -> Vec<String> {
    place.aze(&["ls", "-a", "aze:/"]).ok().out.lines().map(str::to_owned).collect()
}

#[test]
fn a_copy_into_a_volume_that_is_broken_off_leaves_what_was_there() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let from = source(&place);
    fs::write(place.path("old"), "what was there").expect("a file");
    let old = place.path("old");
    place.aze(&[OsStr::new("cp"), old.as_os_str(), OsStr::new("aze:/f")]).ok();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let child = copy(&place, &from, "aze:/f");
        wait_until("the copy has begun", || names(&place).len() > 1);
        send(&child, signal);
        assert_eq!(ended(child).signal(), Some(signal));
        assert_eq!(names(&place), ["f"], "nothing unfinished is left");
        assert_eq!(place.aze(&["cat", "aze:/f"]).ok().out, "what was there");
    }
    // Killed, it could not clean up; the unfinished file has a hidden name.
    let child = copy(&place, &from, "aze:/g");
    wait_until("the copy has begun", || names(&place).len() > 1);
    send(&child, libc::SIGKILL);
    assert_eq!(ended(child).signal(), Some(libc::SIGKILL));
    let left = names(&place);
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().all(|name| name == "f" || name.starts_with(".aze-")), "{left:?}");
    // Not broken off, the copy replaces the old file.
    assert!(ended(copy(&place, &from, "aze:/f")).success());
    assert!(place.aze(&["stat", "--json", "aze:/f"]).ok().out.contains(&BYTES.to_string()));
}

#[test]
fn what_may_not_be_written_is_not_replaced() {
    let mut place = Place::new();
    place.up(&["--servers", "1"]);
    let mount = place.mount();
    fs::write(place.path("new"), "new").expect("a file");
    let new = place.path("new").display().to_string();
    run(std::process::Command::new("mkfifo").arg(mount.join("pipe")));
    let ran = place.aze(&["cp", &new, "aze:/pipe"]);
    assert!(ran.code == 5 && ran.err.contains("no regular file"), "{} {}", ran.code, ran.err);
    assert!(fs::symlink_metadata(mount.join("pipe")).expect("it is there").file_type().is_fifo());
    // Rights count for those who are not root.
    fs::write(mount.join("kept"), "kept").expect("a file");
    fs::set_permissions(mount.join("kept"), fs::Permissions::from_mode(0o444)).expect("a mode");
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o777)).expect("a mode");
    let ran = place.aze(&["cp", &new, "aze:/kept"]);
    let is_root = fs::metadata("/proc/self").expect("a directory").uid() == 0;
    let text = fs::read_to_string(mount.join("kept")).expect("a file");
    if is_root {
        assert!(ran.code == 0 && text == "new", "{} {}", ran.code, ran.err);
    } else {
        assert!(ran.code == 4 && text == "kept", "{} {}", ran.code, ran.err);
    }
}

/// A copy to a local device replaced the device by a file: to `/dev/null`, by root, for all programs of the machine.
#[test]
fn what_is_no_local_file_is_not_replaced() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let path = |name: &str| place.path(name).display().to_string();
    fs::write(path("new"), "new").expect("a file");
    place.aze(&["cp", &path("new"), "aze:/new"]).ok();
    fs::create_dir(path("to")).expect("a directory");
    run(std::process::Command::new("mkfifo").arg(path("to/pipe")));
    let _socket = std::os::unix::net::UnixListener::bind(path("to/socket")).expect("a socket");
    std::os::unix::fs::symlink("pipe", path("to/link")).expect("a link");
    for name in ["to/pipe", "to/socket", "to/link"] {
        for from in ["aze:/new", &path("new")] {
            let ran = place.aze(&["cp", from, &path(name)]);
            assert!(ran.code == 5 && ran.err.contains("no regular file"), "{from} {name}: {} {}", ran.code, ran.err);
        }
        // Staging replaces links, and follows none.
        if name != "to/link" {
            let ran = place.aze(&["stage", "out", "aze:/new", &path(name)]);
            assert!(ran.code != 0 && ran.err.contains("no regular file"), "{name}: {} {}", ran.code, ran.err);
        }
    }
    let kind = |name: &str| fs::symlink_metadata(path(name)).expect("it is there").file_type();
    assert!(kind("to/pipe").is_fifo() && kind("to/socket").is_socket() && kind("to/link").is_symlink());
    let is_root = fs::metadata("/proc/self").expect("a directory").uid() == 0;
    fs::write(path("kept"), "kept").expect("a file");
    fs::set_permissions(path("kept"), fs::Permissions::from_mode(0o444)).expect("a mode");
    let ran = place.aze(&["cp", "aze:/new", &path("kept")]);
    let should = if is_root { (0, "new") } else { (4, "kept") };
    assert_eq!((ran.code, &*fs::read_to_string(path("kept")).expect("a file")), should, "{}", ran.err);
}

#[test]
fn a_copy_that_does_not_fit_leaves_what_was_there() {
    let place = Place::new();
    place.aze(&["up", "--name", "v", "--servers", "1", "--size", "80M"]).ok();
    fs::write(place.path("old"), "what was there").expect("a file");
    place.aze(&["cp", &place.path("old").display().to_string(), "aze:/f"]).ok();
    let ran = place.aze(&["cp", "--quiet", &source(&place), "aze:/f"]);
    assert!(ran.code == 5 && ran.err.contains("no space left"), "{} {}", ran.code, ran.err);
    assert_eq!(names(&place), ["f"], "nothing unfinished is left");
    assert_eq!(place.aze(&["cat", "aze:/f"]).ok().out, "what was there");
}

fn local_names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8")).collect()
}

#[test]
fn a_copy_out_of_a_volume_that_is_broken_off_leaves_nothing() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    place.aze(&["cp", "--quiet", &source(&place), "aze:/large"]).ok();
    let out = place.path("out");
    fs::create_dir(&out).expect("a directory");
    let child = copy(&place, "aze:/large", out.to_str().expect("a path"));
    wait_until("the copy has begun", || !local_names(&out).is_empty());
    send(&child, libc::SIGTERM);
    assert_eq!(ended(child).signal(), Some(libc::SIGTERM));
    assert_eq!(local_names(&out), [""; 0], "nothing is left");
}

/// A measurement that is interrupted, or for which there is no room, removes its files: in a directory and in a volume.
#[test]
fn a_measurement_that_is_broken_off_leaves_nothing() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let dir = place.path("dir");
    fs::create_dir(&dir).expect("a directory");
    let target = dir.to_str().expect("a path");
    let in_dir = || fs::read_dir(&dir).expect("a directory").count();
    for args in [&["--native"][..], &["--target", target]] {
        let iops = ["bench", "iops", "--files", "1000000", "--repeat", "1"];
        let child = place.command(&[&iops, args].concat()).stderr(Stdio::null()).spawn().expect("aze starts");
        wait_until("it has begun", || names(&place).len() + in_dir() > 0);
        send(&child, libc::SIGINT);
        assert_eq!(ended(child).code(), Some(6));
        assert_eq!((names(&place).len(), in_dir()), (0, 0), "{args:?}");
    }
    let full = place.aze(&["bench", "iops", "--native", "--files", "1", "--threads", "1", "--bytes", "64G"]);
    assert_eq!(full.code, 5, "{}", full.err);
    assert_eq!(names(&place), [""; 0]);
}
