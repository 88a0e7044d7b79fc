//! Volumes over a directory that has more bytes than they have room: chunks that were read and not changed go, and come
//! again when a program reads them; changed chunks stay until `aze stage out` has put them into the directory.

use aze_tests::{Place, ends_within, signal, wait_until};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Files of the backing, and bytes of each.
const FILES: usize = 64;
const BYTES: usize = 4 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn name(file: usize) -> String {
    format!("f{file:02}")
}

/// What a file has: no two blocks of all files are equal.
fn contents(file: usize) -> Vec<u8> {
    let words = (0..BYTES as u64 / 8).map(|at| ((file as u64) << 40 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Makes the directory, all of it long ago: a later change shows.
fn make(place: &Place, files: usize) -> PathBuf {
    let backing = place.path("backing");
    fs::create_dir(&backing).expect("a directory");
    for file in 0..files {
        let path = backing.join(name(file));
        fs::write(&path, contents(file)).expect("a file");
        let made = OpenOptions::new().write(true).open(&path).expect("a file");
        made.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("a time");
    }
    backing
}

fn up(place: &mut Place, backing: &Path, more: &[&str]) -> PathBuf {
    let name = format!("evicted-{}", std::process::id());
    place.aze(&[&["up", "--servers", "2", "--name", &name, "--backing", text(backing)], more].concat()).ok();
    place.mount()
}

fn status(place: &Place) -> Value {
    serde_json::from_str(&place.aze(&["status", "--json"]).ok().out).expect("JSON")
}

/// A number of the status, summed up over the servers.
fn sum(place: &Place, field: &str) -> u64 {
    let status = status(place);
    let servers = status["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 2, "{status}");
    servers.iter().map(|server| server[field].as_u64().unwrap_or_else(|| panic!("{field}: {status}"))).sum()
}

/// Reads all files but one, and compares them.
fn assert_read(dir: &Path, but: Option<usize>) {
    for file in (0..FILES).filter(|file| Some(*file) != but) {
        assert!(fs::read(dir.join(name(file))).expect("contents") == contents(file), "{}", name(file));
    }
}

/// Kills both servers, and starts the volume again under its mount.
fn kill_and_restart(place: &Place, mount: &Path) {
    let status = status(place);
    let servers = status["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 2, "{status}");
    for server in servers {
        signal(server["pid"].as_u64().expect("a process") as u32, libc::SIGKILL);
    }
    place.aze(&["restart", "--force"]).ok();
    wait_until("the mount serves again", || fs::read_dir(mount).is_ok());
}

#[test]
fn files_are_read_and_written_in_a_volume_smaller_than_its_backing() {
    let mut place = Place::new();
    let backing = make(&place, FILES);
    let mount = up(&mut place, &backing, &["--size", "132M"]);
    let capacity = sum(&place, "capacity_bytes");
    assert_eq!(capacity, 132 << 20);

    // While others read, a file is changed in each of its chunks, and a large one is made.
    let (changed, new) = (7, contents(FILES));
    let mut after = contents(changed);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| assert_read(&mount, Some(changed)));
        let file = OpenOptions::new().write(true).open(mount.join(name(changed))).expect("a file");
        let mut made = File::create(mount.join("made")).expect("a file");
        for step in 0..4 {
            let at = step * (1 << 20) + 5000;
            file.write_all_at(b"of the volume", at as u64).expect("a write");
            after[at..at + 13].copy_from_slice(b"of the volume");
            std::io::Write::write_all(&mut made, &new).expect("a write");
        }
        reader.join().expect("all is right");
    });
    assert!(sum(&place, "evicted_bytes") > 100 << 20, "{}", status(&place));
    let clean = sum(&place, "clean_bytes");
    assert!((1..capacity).contains(&clean), "{}", status(&place));
    let told = place.aze(&["status"]).ok().out;
    assert!(told.contains("go when room is short") && told.contains(text(&backing)), "{told}");
    // What may go counts as free.
    let df: Value = serde_json::from_str(&place.aze(&["df", "--json"]).ok().out).expect("JSON");
    let used = df["used_bytes"].as_u64().expect("a number");
    assert!((20 << 20..40 << 20).contains(&used), "{df}");

    // The other ways to the same bytes.
    let all: Vec<String> = (0..FILES).map(name).collect();
    let sums = |dir: &str| {
        Command::new("sh").args(["-c", &format!("cd {dir} && sha256sum f*")]).output().expect("sums").stdout
    };
    fs::create_dir(place.path("vol")).expect("a directory");
    let summed = place.aze(&["run", "--at", "vol", "--", "sh", "-c", "cd vol && sha256sum f*"]).ok().out;
    let (mounted, below) = (sums(text(&mount)), sums(text(&backing)));
    assert_eq!(summed.as_bytes(), mounted);
    let differ = |line: &&str| !String::from_utf8_lossy(&below).contains(*line);
    assert_eq!(summed.lines().filter(differ).count(), 1, "only one was changed");
    assert_eq!(summed.lines().count(), all.len());
    let copy = place.path("copy");
    place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
    assert_read(&copy, Some(changed));
    for dir in [&mount, &copy] {
        assert!(fs::read(dir.join(name(changed))).expect("contents") == after);
        assert!(fs::read(dir.join("made")).expect("contents") == new.repeat(4));
    }

    // A staged file has another place now, and does not depend on the file it came from.
    fs::set_permissions(mount.join(name(8)), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    place.aze(&["stage", "out", "--quiet", "--receipt", text(&place.path("receipt.jsonl"))]).ok();
    let copy = place.path("staged");
    place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
    for dir in [&copy, &backing] {
        assert_read(dir, Some(changed));
        assert!(fs::read(dir.join(name(changed))).expect("contents") == after);
        assert!(fs::read(dir.join("made")).expect("contents") == new.repeat(4));
    }
    place.aze(&["receipt", "verify", text(&place.path("receipt.jsonl"))]).ok();
    place.aze(&["check"]).ok();
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");

    // What went and has changed underneath is an error.
    fs::write(backing.join(name(0)), contents(1)).expect("a change");
    let stale = place.aze(&["cp", "--recursive", "aze:/", text(&place.path("last"))]).code(1);
    assert!(stale.err.contains("f00: it has changed since"), "{}", stale.err);
    assert!(!place.path("last").join(name(0)).exists());
}

#[test]
fn nothing_is_read_ahead_that_something_else_would_have_to_go_for() {
    let mut place = Place::new();
    let backing = make(&place, FILES);
    let mount = up(&mut place, &backing, &["--size", "132M"]);
    let full = place.aze(&["stage", "in", "aze:/"]).code(5);
    assert!(full.err.contains("no more is read ahead"), "{}", full.err);
    let (evicted, clean) = (sum(&place, "evicted_bytes"), sum(&place, "clean_bytes"));
    assert!(evicted == 0 && clean > 100 << 20, "{evicted} and {clean}");
    assert_read(&mount, None);
}

#[test]
fn a_volume_on_disks_smaller_than_its_backing_survives_the_end_of_its_servers() {
    let mut place = Place::new();
    let backing = make(&place, FILES);
    let storage = place.path("storage");
    let size = ["--size", "160M", "--storage", text(&storage), "--storage-size", "64M"];
    let mount = up(&mut place, &backing, &size);
    assert_read(&mount, None);
    assert!(sum(&place, "evicted_bytes") > 100 << 20, "{}", status(&place));
    // Zeros where the backing has something: no chunk may look as if it were not there.
    let zeroed = 3;
    let file = OpenOptions::new().write(true).open(mount.join(name(zeroed))).expect("a file");
    file.write_all_at(&vec![0; 1 << 20], 1 << 20).expect("a write");
    file.sync_all().expect("a sync");
    drop(file);
    let mut after = contents(zeroed);
    after[1 << 20..2 << 20].fill(0);
    // The second start begins with what the first one has written down.
    for start in ["first", "second"] {
        kill_and_restart(&place, &mount);
        // The mount's kernel has many of them: another client has none.
        let copy = place.path(start);
        place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
        assert!(fs::read(copy.join(name(zeroed))).expect("contents") == after, "{start}");
        assert_read(&copy, Some(zeroed));
        assert!(sum(&place, "evicted_bytes") > 100 << 20, "{}", status(&place));
    }
    place.aze(&["stage", "out", "--quiet", "--receipt", text(&place.path("receipt.jsonl"))]).ok();
    assert!(fs::read(backing.join(name(zeroed))).expect("contents") == after);
    kill_and_restart(&place, &mount);
    let copy = place.path("third");
    place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
    assert_read(&copy, Some(zeroed));
    assert!(fs::read(copy.join(name(zeroed))).expect("contents") == after);
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
    place.aze(&["check", text(&storage)]).ok();
}

/// Files that a program writes, of 8 MiB each: four times what a volume of 132 MiB has room for.
const WRITTEN: usize = 64;

fn written(file: usize) -> Vec<u8> {
    [contents(2 * file), contents(2 * file + 1)].concat()
}

fn write_file(dir: &Path, file: usize) {
    let path = dir.join(name(file));
    let write = || {
        let mut made = File::create(&path)?;
        std::io::Write::write_all(&mut made, &written(file))?;
        made.sync_all()
    };
    write().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn assert_written(dir: &Path, files: std::ops::Range<usize>) {
    for file in files {
        assert!(fs::read(dir.join(name(file))).expect("contents") == written(file), "{} in {dir:?}", name(file));
    }
}

/// Nothing is in the volume alone, and all is in the directory below.
fn assert_drained(place: &Place, backing: &Path) {
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");
    assert_written(backing, 0..WRITTEN);
}

#[test]
fn a_program_writes_four_times_what_a_volume_holds_that_is_staged_out_meanwhile() {
    let mut place = Place::new();
    let backing = make(&place, 0);
    let mount = up(&mut place, &backing, &["--size", "132M"]);
    for file in 0..WRITTEN {
        write_file(&mount, file);
        if file % 6 == 5 {
            place.aze(&["stage", "out", "--quiet"]).ok();
        }
    }
    place.aze(&["stage", "out", "--quiet"]).ok();
    assert!(sum(&place, "drained_bytes") >= (WRITTEN as u64) << 23, "{}", status(&place));
    assert!(sum(&place, "evicted_bytes") > 380 << 20, "{}", status(&place));
    let told = place.aze(&["status"]).ok().out;
    assert!(told.contains("512M were drained"), "{told}");
    assert_drained(&place, &backing);
    // The kernel of the mount has many pages: another client has none.
    let copy = place.path("copy");
    place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
    assert_written(&copy, 0..WRITTEN);

    // What went is written in a part, cut, renamed, linked and removed, and staged once more.
    let patched = OpenOptions::new().write(true).open(mount.join(name(0))).expect("a file");
    patched.write_all_at(b"of the volume", (3 << 20) + 5000).expect("a write");
    drop(patched);
    let mut after = written(0);
    after[(3 << 20) + 5000..][..13].copy_from_slice(b"of the volume");
    let cut = OpenOptions::new().write(true).open(mount.join(name(1))).expect("a file");
    cut.set_len((1 << 20) + 77).expect("a length");
    cut.set_len(2 << 20).expect("a length");
    drop(cut);
    let mut short = written(1);
    short.truncate((1 << 20) + 77);
    short.resize(2 << 20, 0);
    fs::rename(mount.join(name(2)), mount.join("renamed")).expect("a rename");
    fs::write(mount.join(name(2)), b"another file").expect("a file");
    fs::rename(mount.join(name(3)), mount.join(name(4))).expect("a rename over another file");
    fs::hard_link(mount.join(name(5)), mount.join("linked")).expect("a link");
    let open = File::open(mount.join(name(6))).expect("a file");
    fs::remove_file(mount.join(name(6))).expect("a removal");
    for round in 0..2 {
        place.aze(&["stage", "out", "--quiet", "--delete"]).ok();
        let copy = place.path(&format!("again-{round}"));
        place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
        for dir in [&copy, &backing, &mount] {
            assert!(fs::read(dir.join(name(0))).expect("contents") == after, "{dir:?}");
            assert!(fs::read(dir.join(name(1))).expect("contents") == short, "{dir:?}");
            assert!(fs::read(dir.join("renamed")).expect("contents") == written(2), "{dir:?}");
            assert_eq!(fs::read(dir.join(name(2))).expect("contents"), b"another file", "{dir:?}");
            assert!(fs::read(dir.join(name(4))).expect("contents") == written(3), "{dir:?}");
            assert!(fs::read(dir.join(name(5))).expect("contents") == written(5), "{dir:?}");
            assert!(fs::read(dir.join("linked")).expect("contents") == written(5), "{dir:?}");
            assert!(!dir.join(name(3)).exists() && !dir.join(name(6)).exists(), "{dir:?}");
            assert_written(dir, 7..WRITTEN);
        }
    }
    let mut bytes = vec![0; 8 << 20];
    open.read_exact_at(&mut bytes, 0).expect("an open file keeps its bytes");
    assert!(bytes == written(6));
    drop(open);

    // What went and has changed underneath is an error.
    fs::write(backing.join(name(9)), contents(1)).expect("a change");
    let stale = place.aze(&["cp", "--recursive", "aze:/", text(&place.path("last"))]).code(1);
    assert!(stale.err.contains("it has changed since"), "{}", stale.err);
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
}

#[test]
fn a_stage_in_rounds_drains_what_a_program_writes_beside_it() {
    let mut place = Place::new();
    let backing = make(&place, 0);
    let mount = up(&mut place, &backing, &["--size", "132M"]);
    let mut stager =
        place.command(&["stage", "out", "--quiet", "--when", "closed", "--every", "1s"]).spawn().expect("aze");
    for file in 0..WRITTEN {
        write_file(&mount, file);
        // No faster than it drains: 64 MiB and the files of the last round fit.
        let ahead = (file as u64 + 1) << 23;
        wait_until("what was written is drained", || sum(&place, "drained_bytes") + (64 << 20) >= ahead);
    }
    wait_until("all is drained", || sum(&place, "drained_bytes") >= (WRITTEN as u64) << 23);
    signal(stager.id(), libc::SIGTERM);
    assert_eq!(stager.wait().expect("it ends").code(), Some(0));
    assert_drained(&place, &backing);
    let copy = place.path("copy");
    place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
    assert_written(&copy, 0..WRITTEN);
}

#[test]
fn what_was_drained_survives_the_end_of_servers_at_any_moment() {
    let mut place = Place::new();
    let backing = make(&place, 0);
    let storage = place.path("storage");
    let size = ["--size", "132M", "--storage", text(&storage), "--storage-size", "128M"];
    let mount = up(&mut place, &backing, &size);
    for round in 0..WRITTEN / 4 {
        (4 * round..4 * round + 4).for_each(|file| write_file(&mount, file));
        if round % 4 == 1 {
            // In the middle of it, later each time.
            let mut stager = place.command(&["stage", "out", "--quiet"]).spawn().expect("aze");
            ends_within(&mut stager, Duration::from_millis(20 << (round / 2)));
            kill_and_restart(&place, &mount);
            // It has succeeded or not.
            stager.wait().expect("it ends");
        }
        place.aze(&["stage", "out", "--quiet"]).ok();
    }
    assert!(sum(&place, "clean_bytes") > 0, "{}", status(&place));
    assert_drained(&place, &backing);
    kill_and_restart(&place, &mount);
    let copy = place.path("copy");
    place.aze(&["cp", "--recursive", "aze:/", text(&copy)]).ok();
    assert_written(&copy, 0..WRITTEN);
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
    place.aze(&["check", text(&storage)]).ok();
}
