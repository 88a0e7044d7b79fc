//! Volumes over a directory of another file system: the names are there at once, data when a program reads, and changed
//! files stay in the volume until they are staged out.

use aze_tests::{Place, Ran, make_tree, run, signal, wait_until};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Names in the large directory.
const MANY: usize = 100_000;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Starts a volume over the directory `backing` of the place and mounts it.
fn over(place: &mut Place, more: &[&str]) -> (PathBuf, PathBuf) {
    let backing = place.path("backing");
    let name = format!("over-{}", std::process::id());
    place.up(&[&["--servers", "2", "--name", &name, "--backing", text(&backing)], more].concat());
    let mount = place.mount();
    (backing, mount)
}

/// What the servers of the place's volume have logged.
fn logs(place: &Place) -> String {
    let run_dir = place.path("run");
    let volume = run_dir.join(&names(&run_dir)[0]);
    let log = |name| fs::read_to_string(volume.join(name)).expect("a log");
    ["server-0.log", "server-1.log"].map(log).concat()
}

/// Puts the time of the last change of a file's data far into the past: a change of it shows.
fn made_long_ago(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).expect("a file");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("a time");
}

/// Asserts that two trees have equal names, kinds, modes, times of files, contents, and targets of links.
fn assert_same(one: &Path, other: &Path) {
    let names_here = names(one);
    assert_eq!(names_here, names(other), "{}", one.display());
    for name in names_here {
        let (one, other) = (one.join(&name), other.join(&name));
        let (is, should) = (one.symlink_metadata().expect("a file"), other.symlink_metadata().expect("a file"));
        assert_eq!((is.mode(), is.uid(), is.gid()), (should.mode(), should.uid(), should.gid()), "{}", one.display());
        if is.is_dir() {
            assert_same(&one, &other);
            continue;
        }
        if is.is_symlink() {
            assert_eq!(fs::read_link(&one).expect("a link"), fs::read_link(&other).expect("a link"));
            continue;
        }
        assert_eq!((is.size(), is.mtime(), is.mtime_nsec()), (should.size(), should.mtime(), should.mtime_nsec()));
        assert!(fs::read(&one).expect("contents") == fs::read(&other).expect("contents"), "{}", one.display());
    }
}

/// A volume in directories keeps no account before its first stage, and `aze stage status` found nothing.
#[test]
fn before_the_first_stage_a_volume_is_compared_with_its_backing() {
    let place = Place::new();
    let backing = place.path("backing");
    fs::create_dir(&backing).expect("a directory");
    fs::write(backing.join("there"), "contents").expect("a file");
    place.up(&["--servers", "2", "--storage", "kept", "--storage-size", "1G", "--backing", text(&backing)]);
    let of = || place.aze(&["stage", "status", "aze:/", "--json"]).ok();
    let (told, said) = (of(), "nothing has been staged yet");
    let status: serde_json::Value = serde_json::from_str(&told.out).expect("JSON");
    assert!(status["dirty"] == 0 && told.err.contains(said), "{status}: {}", told.err);
    place.aze(&["touch", "aze:/new"]).ok();
    let status: serde_json::Value = serde_json::from_str(&of().out).expect("JSON");
    assert_eq!((&status["dirty"], &status["first"][0]["path"]), (&1.into(), &"aze:/new".into()), "{status}");
    place.aze(&["stage", "out", "aze:/", "--quiet"]).ok();
    let told = of();
    assert!(!told.err.contains(said), "{}", told.err);
}

#[test]
fn a_volume_shows_what_its_backing_has() {
    let mut place = Place::new();
    let backing = place.path("backing");
    make_tree(&backing, 150);
    let sparse = File::create(backing.join("sparse")).expect("a file");
    sparse.set_len(40 << 20).expect("a hole");
    sparse.write_all_at(b"in the middle", (20 << 20) + 77).expect("data");
    fs::set_permissions(backing.join("sparse"), Permissions::from_mode(0o600)).expect("a mode");
    let set = "import os, sys; os.setxattr(sys.argv[1], 'user.note', b'kept')";
    run(Command::new("python3").args(["-c", set]).arg(backing.join("sparse")));
    symlink("nowhere", backing.join("dangling")).expect("a link");
    let (backing, mount) = over(&mut place, &[]);

    // A directory that was not looked into says that the number of its subdirectories is not known.
    let dir =
        names(&backing).into_iter().find(|name| name.starts_with('d') && name != "dangling").expect("a directory");
    assert_eq!(mount.join(&dir).metadata().expect("a directory").nlink(), 1);
    assert_same(&mount, &backing);
    // The kernel may keep attributes of directories for a second.
    wait_until("the subdirectories are counted", || mount.join(&dir).metadata().expect("a directory").nlink() > 2);
    let get = "import os, sys; print(os.getxattr(sys.argv[1], 'user.note').decode(), end='')";
    let note = run(Command::new("python3").args(["-c", get]).arg(mount.join("sparse")));
    assert_eq!(note.out, "kept");
    // Each way of asking sees all of it.
    let found = place.aze(&["find", "aze:/", "-type", "f"]).ok().out.lines().count();
    let expected = run(Command::new("find").arg(&backing).args(["-type", "f"])).out.lines().count();
    assert_eq!((found, expected > 100), (expected, true));
    place.aze(&["check"]).ok();
    // Nothing was changed: nothing keeps the volume from ending.
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");
}

#[test]
fn a_search_looks_into_directories_that_nobody_has_used() {
    let mut place = Place::new();
    fs::create_dir_all(place.path("backing/a/b/c")).expect("directories");
    fs::write(place.path("backing/a/b/c/deep"), "x").expect("a file");
    over(&mut place, &[]);
    let found = place.aze(&["find", "aze:/", "-name", "deep"]).ok().out;
    assert_eq!(found.trim(), "aze:/a/b/c/deep");
}

#[test]
fn a_large_directory_is_imported_once_for_all_who_ask() {
    let mut place = Place::new();
    let large = place.path("backing/large");
    fs::create_dir_all(&large).expect("a directory");
    for number in 0..MANY {
        File::create(large.join(format!("name-{number}"))).expect("a file");
    }
    let (_, first) = over(&mut place, &[]);
    let second = place.mount();
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let count = |mount: &Path| {
            let dir = mount.join("large");
            scope.spawn(move || fs::read_dir(dir).expect("a directory").count())
        };
        let all = [count(&first), count(&second), count(&first), count(&second)];
        all.into_iter().map(|thread| thread.join().expect("a count")).collect()
    });
    assert_eq!(counts, [MANY; 4]);
    assert!(second.join("large/name-77777").exists());
}

#[test]
fn what_has_changed_underneath_is_an_error_and_no_mixture() {
    let mut place = Place::new();
    fs::create_dir(place.path("backing")).expect("a directory");
    let bytes = vec![b'o'; 3 << 20];
    for name in ["changed", "replaced", "removed", "shorter"] {
        fs::write(place.path("backing").join(name), &bytes).expect("a file");
        made_long_ago(&place.path("backing").join(name));
    }
    let (backing, mount) = over(&mut place, &[]);
    let mut begun = [0; 1000];
    for name in ["changed", "replaced", "removed", "shorter"] {
        File::open(mount.join(name)).expect("a file").read_exact_at(&mut begun, 0).expect("the first chunk");
        assert!(begun.iter().all(|byte| *byte == b'o'));
    }
    let changed = OpenOptions::new().write(true).open(backing.join("changed")).expect("a file");
    changed.write_all_at(&vec![b'n'; 3 << 20], 0).expect("other contents");
    fs::write(backing.join("new"), vec![b'n'; 3 << 20]).expect("a file");
    fs::rename(backing.join("new"), backing.join("replaced")).expect("a rename");
    fs::remove_file(backing.join("removed")).expect("a removal");
    OpenOptions::new().write(true).open(backing.join("shorter")).expect("a file").set_len(5).expect("a length");
    for name in ["changed", "replaced", "removed", "shorter"] {
        let error = fs::read(mount.join(name)).expect_err("it is another file now");
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{name}");
        // The chunk that was read before is still there.
        File::open(mount.join(name)).expect("a file").read_exact_at(&mut begun, 500).expect("the first chunk");
        assert!(begun.iter().all(|byte| *byte == b'o'));
    }
    // The log of a server names each.
    let logs = logs(&place);
    for name in ["changed", "replaced", "removed", "shorter"] {
        assert!(logs.contains(text(&backing.join(name))), "{name}: {logs}");
    }
}

#[test]
fn changes_stay_in_the_volume() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir_all(backing.join("dir/sub")).expect("directories");
    let old: Vec<u8> = (0..5_000_000u32).map(|at| (at % 251) as u8).collect();
    for name in ["partly", "cut", "grown", "appended", "removed", "renamed", "linked", "dir/file", "dir/sub/deep"] {
        fs::write(backing.join(name), &old).expect("a file");
    }
    let untouched =
        run(Command::new("sh").arg("-c").arg("find . -printf '%p %y %s %T@\\n' | sort").current_dir(&backing));
    let (backing, mount) = over(&mut place, &[]);

    let write = |name: &str| OpenOptions::new().write(true).open(mount.join(name)).expect("a file");
    // A part of a chunk that no program has read.
    write("partly").write_all_at(b"new", 3_000_000).expect("a write");
    let mut partly = old.clone();
    partly[3_000_000..3_000_003].copy_from_slice(b"new");
    // Cut within a chunk that no program has read, and lengthened: zeros, and not the backing's bytes.
    write("cut").set_len(2_500_000).expect("a length");
    write("cut").set_len(4_000_000).expect("a length");
    let mut cut = old.clone();
    cut[2_500_000..].fill(0);
    cut.truncate(4_000_000);
    write("grown").write_all_at(b"end", 6_000_000).expect("a write");
    let mut grown = old.clone();
    grown.resize(6_000_000, 0);
    grown.extend(b"end");
    OpenOptions::new()
        .append(true)
        .open(mount.join("appended"))
        .expect("a file")
        .write_all(b"more")
        .expect("an append");
    let appended = [&old[..], b"more"].concat();
    fs::remove_file(mount.join("removed")).expect("a removal");
    fs::rename(mount.join("renamed"), mount.join("other")).expect("a rename");
    fs::hard_link(mount.join("linked"), mount.join("also")).expect("a link");
    // A directory that no program has looked into finds the names below its old name.
    fs::rename(mount.join("dir"), mount.join("moved")).expect("a rename");
    fs::rename(mount.join("moved/sub"), mount.join("sub")).expect("a rename");

    let check = |mount: &Path| {
        assert_eq!(
            names(mount),
            ["also", "appended", "cut", "grown", "linked", "moved", "other", "partly", "sub"],
            "a removed name stays removed"
        );
        for (name, should) in [
            ("partly", &partly),
            ("cut", &cut),
            ("grown", &grown),
            ("appended", &appended),
            ("other", &old),
            ("also", &old),
            ("moved/file", &old),
            ("sub/deep", &old),
        ] {
            assert!(fs::read(mount.join(name)).expect("contents") == *should, "{name}");
        }
    };
    check(&mount);
    let second = place.mount();
    check(&second);
    place.aze(&["check"]).ok();
    assert!(mount.join("removed").symlink_metadata().is_err());
    let now = run(Command::new("sh").arg("-c").arg("find . -printf '%p %y %s %T@\\n' | sort").current_dir(&backing));
    assert_eq!(now.out, untouched.out, "the backing is only read");
}

/// The holes of a file, by lseek(2): where they begin and end.
fn holes(file: &File) -> Vec<(i64, i64)> {
    // SAFETY: lseek(2) takes numbers.
    let seek = |at, whence| unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    let (size, mut at, mut holes) = (file.metadata().expect("attributes").len() as i64, 0, Vec::new());
    while at < size {
        let hole = seek(at, libc::SEEK_HOLE);
        let data = seek(hole, libc::SEEK_DATA);
        at = if data < 0 { size } else { data };
        holes.extend((hole < size).then_some((hole, at)));
    }
    holes
}

#[test]
fn imported_files_have_holes_and_get_more() {
    const MIB: i64 = 1 << 20;
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir(&backing).expect("a directory");
    let mut should = vec![0; 8 * MIB as usize];
    let sparse = File::create(backing.join("sparse")).expect("a file");
    sparse.set_len(8 * MIB as u64).expect("a length");
    for piece in [0, 5] {
        let range = (piece * MIB) as usize..((piece + 1) * MIB) as usize;
        should[range.clone()].fill(1);
        sparse.write_all_at(&should[range.clone()], range.start as u64).expect("a write");
    }
    let in_backing = holes(&sparse);
    assert_eq!(in_backing, [(MIB, 5 * MIB), (6 * MIB, 8 * MIB)], "the tests' directory knows holes");
    fs::write(backing.join("full"), vec![1; 200_000]).expect("a file");
    made_long_ago(&backing.join("sparse"));
    made_long_ago(&backing.join("full"));
    let storage = place.path("storage");
    let (backing, mount) = over(&mut place, &["--storage", text(&storage)]);
    let allocate = |name: &str, mode, offset, len| {
        let file = OpenOptions::new().write(true).open(mount.join(name)).expect("a file");
        // SAFETY: fallocate(2) takes numbers.
        let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let holes_of = |name: &str| holes(&File::open(mount.join(name)).expect("a file"));

    // The holes of an unread file are those of the backing; reading changes nothing.
    assert_eq!(holes_of("sparse"), in_backing);
    assert!(fs::read(mount.join("sparse")).expect("contents") == should);
    assert_eq!(holes_of("sparse"), in_backing);
    assert_eq!(holes_of("full"), []);

    // In the file that was read, and in the one that was not: a part of a block, blocks, and to the end.
    allocate("sparse", punch, 5 * MIB, MIB / 2);
    allocate("sparse", libc::FALLOC_FL_ZERO_RANGE, 100, 10_000);
    should[(5 * MIB) as usize..(5 * MIB + MIB / 2) as usize].fill(0);
    should[100..10_100].fill(0);
    allocate("full", punch, 4096 * 3 + 50, 4096 * 2);
    allocate("full", punch, 190_000, 100_000);
    let mut full = vec![1; 200_000];
    full[4096 * 3 + 50..4096 * 5 + 50].fill(0);
    full[190_000..].fill(0);
    let has_become = [(4096, 8192), (MIB, 5 * MIB + MIB / 2), (6 * MIB, 8 * MIB)];
    let check = |mount: &Path| {
        assert!(fs::read(mount.join("sparse")).expect("contents") == should);
        assert!(fs::read(mount.join("full")).expect("contents") == full);
        assert_eq!(holes(&File::open(mount.join("sparse")).expect("a file")), has_become);
        assert_eq!(
            holes(&File::open(mount.join("full")).expect("a file")),
            [(4 * 4096, 5 * 4096), (47 * 4096, 200_000)]
        );
    };
    check(&mount);

    // A punched hole outlives the servers, is dirty, and is a hole in the backing once it is staged.
    File::open(&mount).expect("the mount").sync_all().expect("a sync");
    for pid in servers(&place) {
        signal(pid, libc::SIGKILL);
    }
    place.aze(&["restart", "--force"]).ok();
    wait_until("the mount serves again", || fs::read_dir(&mount).is_ok());
    check(&mount);
    place.aze(&["stage", "out", "--keep"]).ok();
    assert!(fs::read(backing.join("sparse")).expect("contents") == should);
    assert!(fs::read(backing.join("full")).expect("contents") == full);
    assert_eq!(
        holes(&File::open(backing.join("sparse")).expect("a file")),
        has_become[1..],
        "pieces of 64 KiB are left out"
    );
    check(&mount);

    // And once more, in chunks that came from where the stage has put them.
    let file = OpenOptions::new().write(true).open(mount.join("sparse")).expect("a file");
    // SAFETY: fallocate(2) takes numbers.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), punch, 0, 8 * MIB) }, 0);
    assert_eq!(holes(&file), [(0, 8 * MIB)]);
    assert!(fs::read(mount.join("sparse")).expect("contents") == vec![0; 8 * MIB as usize]);
    place.aze(&["stage", "out", "--keep"]).ok();
    assert_eq!(backing.join("sparse").metadata().expect("attributes").blocks(), 0);
}

#[test]
fn what_has_changed_is_staged_out_to_the_backing() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir_all(backing.join("kept/below")).expect("directories");
    fs::create_dir(backing.join("unused")).expect("a directory");
    for name in ["changed", "inside", "same", "mode", "kept/inner", "kept/below/x", "unused/y", "conflict"] {
        fs::write(backing.join(name), name).expect("a file");
        made_long_ago(&backing.join(name));
    }
    run(Command::new("mkfifo").arg(backing.join("pipe")));
    let inode_of = |name: &str| backing.join(name).symlink_metadata().expect("a file").ino();
    let before: Vec<u64> = ["same", "kept/below/x", "unused/y"].iter().map(|name| inode_of(name)).collect();
    let (backing, mount) = over(&mut place, &[]);

    place.aze(&["stage", "status", "aze:/"]).ok();
    OpenOptions::new().append(true).open(mount.join("changed")).expect("a file").write_all(b" much").expect("a write");
    // Its length stays.
    let inside = OpenOptions::new().write(true).open(mount.join("inside")).expect("a file");
    inside.write_all_at(b"I", 0).expect("a write");
    drop(inside);
    fs::set_permissions(mount.join("mode"), Permissions::from_mode(0o600)).expect("a mode");
    fs::write(mount.join("kept/new"), "new").expect("a file");
    fs::create_dir(mount.join("made")).expect("a directory");
    fs::write(mount.join("made/file"), "made").expect("a file");
    fs::read(mount.join("same")).expect("contents");

    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    for line in [
        "dirty   5 objects",
        "aze:/changed (changed)",
        "aze:/inside (changed)",
        "aze:/mode (attributes changed)",
        "aze:/kept/new (new)",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let refused = place.aze(&["down"]).code(8);
    assert!(refused.err.contains("aze:/changed"), "{}", refused.err);

    let receipt = place.path("receipt.jsonl");
    place.aze(&["stage", "out", "--quiet", "--receipt", text(&receipt)]).ok();
    assert_eq!(fs::read_to_string(backing.join("changed")).expect("contents"), "changed much");
    assert_eq!(fs::read_to_string(backing.join("inside")).expect("contents"), "Inside");
    assert_eq!(backing.join("mode").metadata().expect("a file").mode() & 0o7777, 0o600);
    assert_eq!(fs::read_to_string(backing.join("kept/new")).expect("contents"), "new");
    assert_eq!(fs::read_to_string(backing.join("made/file")).expect("contents"), "made");
    let after: Vec<u64> = ["same", "kept/below/x", "unused/y"].iter().map(|name| inode_of(name)).collect();
    assert_eq!(after, before, "what has not changed was not copied");
    place.aze(&["receipt", "verify", text(&receipt)]).ok();
    let lines = fs::read_to_string(&receipt).expect("a receipt");
    assert!(lines.contains("\"changed\"") && !lines.contains("unused") && !lines.contains("\"same\""), "{lines}");
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");

    // A file that both sides have changed is left alone, and named.
    fs::write(mount.join("conflict"), "of the volume").expect("a file");
    fs::write(backing.join("conflict"), "of somebody else").expect("a file");
    let conflict = place.aze(&["stage", "out", "--receipt", text(&place.path("second.jsonl"))]).code(1);
    assert!(conflict.err.contains("conflict: it has changed since"), "{}", conflict.err);
    assert_eq!(fs::read_to_string(backing.join("conflict")).expect("contents"), "of somebody else");
    fs::remove_file(mount.join("conflict")).expect("a removal");

    // The other user's file is not the one that the volume has removed.
    let kept = place.aze(&["stage", "out", "--delete", "--receipt", text(&place.path("third.jsonl"))]).code(1);
    assert!(kept.err.contains("conflict: it has changed since"), "{}", kept.err);
    assert_eq!(fs::read_to_string(backing.join("conflict")).expect("contents"), "of somebody else");
    // When it has gone there, too, nothing is dirty any more.
    fs::remove_file(backing.join("conflict")).expect("a removal");
    place.aze(&["stage", "out", "--receipt", text(&place.path("fourth.jsonl"))]).ok();
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
}

/// What a receipt says of names that were removed.
fn removed_in(receipt: &Path) -> Vec<String> {
    let lines = fs::read_to_string(receipt).expect("a receipt");
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let path = |line: serde_json::Value| Some(line["removed"].as_str()?.to_owned());
    let mut paths: Vec<String> = lines.filter_map(path).collect();
    paths.sort();
    paths
}

#[test]
fn removals_and_renames_reach_the_backing_if_that_is_asked_for() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir_all(backing.join("tree/sub")).expect("directories");
    fs::create_dir_all(backing.join("moved/sub")).expect("directories");
    fs::create_dir_all(backing.join("foreign")).expect("directories");
    let old = vec![b'o'; 3 << 20];
    let files = [
        "removed",
        "renamed",
        "log",
        "log.1",
        "one",
        "other",
        "held",
        "kept",
        "tree/a",
        "tree/sub/b",
        "moved/c",
        "moved/sub/d",
        "foreign/e",
    ];
    for name in files {
        fs::write(backing.join(name), [name.as_bytes(), &old].concat()).expect("a file");
        made_long_ago(&backing.join(name));
    }
    symlink("kept", backing.join("link")).expect("a link");
    let contents = |name: &str| [name.as_bytes(), &old].concat();
    let (backing, mount) = over(&mut place, &[]);

    // No program has read any of them.
    let held = File::open(mount.join("held")).expect("a file");
    for name in ["removed", "held", "link", "tree/a", "tree/sub/b", "foreign/e"] {
        fs::remove_file(mount.join(name)).expect("a removal");
    }
    for name in ["tree/sub", "tree", "foreign"] {
        fs::remove_dir(mount.join(name)).expect("a removal");
    }
    fs::rename(mount.join("renamed"), mount.join("new-name")).expect("a rename");
    fs::rename(mount.join("log"), mount.join("log.1")).expect("a rename");
    fs::write(mount.join("log"), "begun anew").expect("a file");
    fs::rename(mount.join("one"), mount.join("third")).expect("a rename");
    fs::rename(mount.join("other"), mount.join("one")).expect("a rename");
    fs::rename(mount.join("third"), mount.join("other")).expect("a rename");
    fs::rename(mount.join("moved"), mount.join("elsewhere")).expect("a rename");
    fs::write(backing.join("foreign/of-others"), "of others").expect("a file");

    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    for line in ["dirty   21 objects", "aze:/held (removed)", "aze:/log.1 (renamed from /log)", "aze:/log (new)"] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let status = place.aze(&["stage", "status", "--json", "aze:/"]).ok().out;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    // removed, renamed, held, link; tree with a, sub, b; foreign with e; moved with c, sub, d.
    assert_eq!((status["removed"].as_u64(), status["lost"].as_array().map(Vec::len)), (Some(14), Some(0)), "{status}");

    // Without --delete they stay, and the exit code says so.
    let first = place.path("first.jsonl");
    let told = place.aze(&["stage", "out", "--receipt", text(&first)]).code(1);
    assert!(told.err.contains("14 names that the volume has not any more"), "{}", told.err);
    assert_eq!(removed_in(&first), [""; 0]);
    for name in ["removed", "renamed", "held", "tree/a", "tree/sub/b", "moved/c", "foreign/e"] {
        assert!(backing.join(name).exists(), "{name}");
    }
    // The log begun anew has not cost the file that had its name before: its data were taken over first.
    let check = |dir: &Path| {
        assert_eq!(fs::read_to_string(dir.join("log")).expect("contents"), "begun anew");
        for (name, was) in [
            ("new-name", "renamed"),
            ("log.1", "log"),
            ("one", "other"),
            ("other", "one"),
            ("elsewhere/c", "moved/c"),
            ("elsewhere/sub/d", "moved/sub/d"),
        ] {
            assert!(fs::read(dir.join(name)).expect("contents") == contents(was), "{} {name}", dir.display());
        }
    };
    check(&backing);
    check(&mount);
    let refused = place.aze(&["down"]).code(8);
    assert!(refused.err.contains("14 names that it has removed"), "{}", refused.err);

    // With --delete they go, and the receipt says which; what the volume does not know stays.
    let second = place.path("second.jsonl");
    let told = place.aze(&["stage", "out", "--delete", "--receipt", text(&second)]).code(1);
    assert!(told.err.contains("foreign") && told.err.contains("1 name that"), "{}", told.err);
    assert_eq!(
        removed_in(&second),
        [
            "foreign/e",
            "held",
            "link",
            "moved",
            "moved/c",
            "moved/sub",
            "moved/sub/d",
            "removed",
            "renamed",
            "tree",
            "tree/a",
            "tree/sub",
            "tree/sub/b"
        ]
    );
    place.aze(&["receipt", "verify", text(&second)]).ok();
    assert_eq!(fs::read_to_string(backing.join("foreign/of-others")).expect("contents"), "of others");
    assert_eq!(names(&backing), ["elsewhere", "foreign", "kept", "log", "log.1", "new-name", "one", "other"]);
    check(&backing);
    // A file that is still open keeps its data.
    let mut bytes = vec![0; 4 + old.len()];
    held.read_exact_at(&mut bytes, 0).expect("its data");
    assert!(bytes == contents("held"));
    drop(held);

    // Nothing but the directory of others is left.
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   1 object"), "{told}");
    // Under its first name again, a file that the backing has lost is not clean.
    fs::rename(mount.join("new-name"), mount.join("renamed")).expect("a rename");
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(
        told.contains("aze:/renamed (renamed from /new-name)") && told.contains("aze:/new-name (removed)"),
        "{told}"
    );
    fs::remove_file(backing.join("foreign/of-others")).expect("a removal");
    place.aze(&["stage", "out", "--delete", "--receipt", text(&place.path("third.jsonl"))]).ok();
    assert!(fs::read(backing.join("renamed")).expect("contents") == contents("renamed"));
    assert_eq!(names(&backing), ["elsewhere", "kept", "log", "log.1", "one", "other", "renamed"]);
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
}

#[test]
fn a_new_directory_does_not_hide_what_a_renamed_one_has_left() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir_all(backing.join("dir/sub")).expect("directories");
    for name in ["dir/a", "dir/sub/b"] {
        fs::write(backing.join(name), name).expect("a file");
        made_long_ago(&backing.join(name));
    }
    let (backing, mount) = over(&mut place, &[]);
    fs::rename(mount.join("dir"), mount.join("elsewhere")).expect("a rename");
    fs::create_dir(mount.join("dir")).expect("a directory");
    fs::write(mount.join("dir/new"), "new").expect("a file");
    for _ in 0..2 {
        let told = place.aze(&["stage", "out"]).code(1).err;
        assert!(told.contains("3 names that the volume has not any more left"), "{told}");
    }
    let status = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(status.contains("aze:/dir/sub/b (removed)"), "{status}");
    place.aze(&["stage", "out", "--delete"]).ok();
    assert_same(&backing, &mount);
    assert_eq!(
        (names(&backing), names(&backing.join("dir"))),
        (vec!["dir".into(), "elsewhere".into()], vec!["new".into()])
    );
    let status = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(status.contains("dirty   0 objects"), "{status}");
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
}

#[test]
fn objects_of_another_kind_get_the_places_of_what_the_volume_has_removed() {
    let mut place = Place::new();
    let backing = place.path("backing");
    for dir in ["dir/sub", "foreign"] {
        fs::create_dir_all(backing.join(dir)).expect("directories");
    }
    for name in ["file", "changed", "dir/a", "dir/sub/b", "foreign/e"] {
        fs::write(backing.join(name), name).expect("a file");
        made_long_ago(&backing.join(name));
    }
    let (backing, mount) = over(&mut place, &[]);
    // A file becomes a directory, and a directory a link that leads to where it has gone.
    fs::remove_file(mount.join("file")).expect("a removal");
    fs::create_dir(mount.join("file")).expect("a directory");
    fs::write(mount.join("file/new"), "in place of a file").expect("a file");
    fs::rename(mount.join("dir"), mount.join("elsewhere")).expect("a rename");
    symlink("elsewhere", mount.join("dir")).expect("a link");
    fs::remove_dir_all(mount.join("foreign")).expect("a removal");
    fs::write(mount.join("foreign"), "in place of a directory").expect("a file");
    fs::write(mount.join("changed"), "of the volume").expect("a write");
    fs::write(backing.join("foreign/of-others"), "of others").expect("a file");

    // Without --delete all else is staged; with it, too, as long as something stays.
    let refused = place.aze(&["stage", "out"]).code(1).err;
    for told in
        ["file: no directory is there", "dir: a directory is there", "foreign: a directory is there", "--delete"]
    {
        assert!(refused.contains(told), "{told}: {refused}");
    }
    assert_eq!(names(&backing), ["changed", "dir", "elsewhere", "file", "foreign"]);
    assert_eq!(fs::read_to_string(backing.join("changed")).expect("contents"), "of the volume");
    assert_eq!(fs::read_to_string(backing.join("elsewhere/sub/b")).expect("contents"), "dir/sub/b");
    let refused = place.aze(&["stage", "out", "--delete"]).code(1).err;
    assert!(refused.contains("foreign/of-others is none that the volume has removed"), "{refused}");
    assert_eq!(refused.matches("since not all else could be staged").count(), 2, "{refused}");
    assert!(backing.join("file").is_file() && backing.join("dir/sub/b").is_file());

    fs::remove_file(backing.join("foreign/of-others")).expect("a removal");
    let receipt = place.path("receipt.jsonl");
    place.aze(&["stage", "out", "--delete", "--receipt", text(&receipt)]).ok();
    assert_same(&backing, &mount);
    assert_eq!(removed_in(&receipt), ["dir/a", "dir/sub", "dir/sub/b", "foreign/e"]);
    place.aze(&["receipt", "verify", text(&receipt)]).ok();
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");

    // And back: what the volume has put there goes, too.
    fs::remove_dir_all(mount.join("file")).expect("a removal");
    fs::write(mount.join("file"), "a file again").expect("a file");
    fs::remove_file(mount.join("dir")).expect("a removal");
    fs::rename(mount.join("elsewhere"), mount.join("dir")).expect("a rename");
    place.aze(&["stage", "out", "--delete"]).ok();
    assert_same(&backing, &mount);
    assert_eq!(fs::read_to_string(backing.join("dir/sub/b")).expect("contents"), "dir/sub/b");
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
}

/// The other user was given a copy of the volume's directory.
#[test]
fn another_user_over_a_backing_sees_and_stages_changes() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir(&backing).expect("a directory");
    for name in ["changed", "removed"] {
        fs::write(backing.join(name), name).expect("a file");
        made_long_ago(&backing.join(name));
    }
    fs::set_permissions(&backing, Permissions::from_mode(0o777)).expect("a mode");
    let (backing, mount) = over(&mut place, &[]);
    fs::write(mount.join("changed"), "of the volume").expect("a write");
    // It notes there that the volume keeps account of staging.
    fs::set_permissions(&mount, Permissions::from_mode(0o777)).expect("a mode");
    fs::remove_file(mount.join("removed")).expect("a removal");
    let aze = place.program_for_all();
    fs::set_permissions(&place.dir, Permissions::from_mode(0o777)).expect("a mode");
    let theirs = place.path("theirs");
    fs::create_dir(&theirs).expect("a directory");
    let volume = format!("over-{}", std::process::id());
    let copy = theirs.join(&volume);
    run(Command::new("cp").arg("-r").arg(place.path("run").join(&volume)).arg(&copy));
    // If the mount has noted itself there.
    drop(fs::remove_dir_all(copy.join("mounts")));
    let all = names(&copy).into_iter().map(|name| copy.join(name)).chain([theirs.clone(), copy.clone()]);
    all.for_each(|path| lchown(path, Some(65_534), Some(65_534)).expect("another owner"));
    fs::set_permissions(&copy, Permissions::from_mode(0o700)).expect("a mode");
    let as_nobody = |words: &[&str]| -> Ran {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&aze).args(words);
        command.env("AZE_RUN_DIR", &theirs).env("HOME", &theirs).env("AZE_VOLUME", &volume).current_dir("/");
        command.env_remove("XDG_RUNTIME_DIR").output().expect("setpriv runs").into()
    };
    let told = as_nobody(&["stage", "status", "aze:/"]).ok().out;
    for line in ["dirty   1 object,", "aze:/changed (changed)", "untold  names that were removed are not looked at"] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let (state, receipt) = (theirs.join("state"), theirs.join("receipt.jsonl"));
    let staged = as_nobody(&["stage", "out", "--state", text(&state), "--receipt", text(&receipt)]).ok();
    assert!(staged.err.contains("names that were removed are not looked at"), "{}", staged.err);
    assert_eq!(fs::read_to_string(backing.join("changed")).expect("contents"), "of the volume");
    assert!(backing.join("removed").exists());
    // The owner is told.
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("aze:/removed (removed)"), "{told}");
}

#[test]
fn what_others_have_put_into_the_backing_is_not_replaced() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir_all(backing.join("dir")).expect("directories");
    fs::write(backing.join("dir/old"), "old").expect("a file");
    let (backing, mount) = over(&mut place, &[]);
    assert_eq!(names(&mount.join("dir")), ["old"]);
    for name in ["theirs", "equal", "dir/theirs", "free"] {
        fs::write(mount.join(name), "of the volume").expect("a file");
    }
    symlink("of-the-volume", mount.join("link")).expect("a link");
    for name in ["theirs", "dir/theirs"] {
        fs::write(backing.join(name), "of somebody else").expect("a file");
    }
    symlink("of-somebody-else", backing.join("link")).expect("a link");
    // As an attempt leaves it that is killed before it notes its work.
    fs::write(backing.join("equal"), "of the volume").expect("a file");

    let receipt = place.path("first.jsonl");
    let told = place.aze(&["stage", "out", "--receipt", text(&receipt)]).code(1);
    for name in ["/theirs: something is there", "dir/theirs: something is there", "link: something is there"] {
        assert!(told.err.contains(name), "{name}: {}", told.err);
    }
    assert!(!told.err.contains("equal: ") && told.err.contains("3 objects could not be staged"), "{}", told.err);
    for (name, should) in
        [("theirs", "of somebody else"), ("dir/theirs", "of somebody else"), ("free", "of the volume")]
    {
        assert_eq!(fs::read_to_string(backing.join(name)).expect("contents"), should, "{name}");
    }
    assert_eq!(fs::read_link(backing.join("link")).expect("a link"), Path::new("of-somebody-else"));
    place.aze(&["receipt", "verify", text(&receipt)]).ok();
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   3 objects"), "{told}");
    // When it was moved away, the same command goes on; what the volume has put there it replaces.
    for name in ["theirs", "dir/theirs", "link"] {
        fs::rename(backing.join(name), place.path(&name.replace('/', "-"))).expect("a rename");
    }
    fs::write(mount.join("free"), "of the volume, later").expect("a file");
    place.aze(&["stage", "out", "--receipt", text(&place.path("second.jsonl"))]).ok();
    assert_eq!(fs::read_to_string(backing.join("theirs")).expect("contents"), "of the volume");
    assert_eq!(fs::read_to_string(backing.join("free")).expect("contents"), "of the volume, later");
    // By a path with symbolic links it would be another place.
    symlink(&backing, place.path("by-link")).expect("a link");
    let refused = place.aze(&["stage", "out", "aze:/", text(&place.path("by-link/x"))]).code(2);
    assert!(refused.err.contains("over which the volume lies"), "{}", refused.err);
    let refused = place.aze(&["stage", "out", "--atomic"]).code(5);
    assert!(refused.err.contains("--atomic is not for"), "{}", refused.err);
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
}

/// Several names of one file in the backing are several files in the volume: that is told, and no stage gives one of them another file.
#[test]
fn a_file_of_several_names_in_the_backing_stays_one() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir_all(backing.join("dir")).expect("a directory");
    for name in ["data", "mode", "replaced", "removed", "moved", "single"] {
        fs::write(backing.join(name), "old").expect("a file");
        fs::hard_link(backing.join(name), backing.join(format!("dir/{name}"))).expect("a link");
    }
    fs::remove_file(backing.join("dir/single")).expect("a removal");
    symlink("data", backing.join("link")).expect("a link");
    fs::hard_link(backing.join("link"), backing.join("dir/link")).expect("a link");
    let (backing, mount) = over(&mut place, &[]);
    assert_eq!(names(&mount).len(), 8);
    assert_eq!(mount.join("data").metadata().expect("a file").nlink(), 1);

    for name in ["data", "single"] {
        fs::write(mount.join(name), "new").expect("a file");
    }
    fs::set_permissions(mount.join("mode"), Permissions::from_mode(0o600)).expect("a mode");
    fs::write(mount.join("other"), "new").expect("a file");
    fs::rename(mount.join("other"), mount.join("replaced")).expect("a rename");
    fs::remove_file(mount.join("removed")).expect("a removal");
    fs::rename(mount.join("moved"), mount.join("fresh")).expect("a rename");
    fs::remove_file(mount.join("link")).expect("a removal");
    symlink("mode", mount.join("link")).expect("a link");
    // The volume's own names of one file, at one place that had several names.
    fs::write(mount.join("also"), "new").expect("a file");
    fs::hard_link(mount.join("also"), mount.join("too")).expect("a link");

    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("aze:/data (changed; 2 names in the directory below: it is not staged there)"), "{told}");
    assert!(told.contains("aze:/single (changed)"), "{told}");
    let told = place.aze(&["stage", "status", "aze:/", "--json"]).ok().out;
    assert!(told.contains(r#""names_below":2,"path":"aze:/mode","why":"attributes changed""#), "{told}");
    let receipt = place.path("first.jsonl");
    let told = place.aze(&["stage", "out", "--delete", "--receipt", text(&receipt)]).code(1);
    for name in ["data", "mode", "replaced", "link"] {
        let words = format!("{}: it has 2 names there", text(&backing.join(name)));
        assert!(told.err.contains(&words), "{name}: {}", told.err);
    }
    for (name, inside) in [("data", "new"), ("mode", "old"), ("replaced", "new")] {
        assert_eq!(fs::read_to_string(mount.join(name)).expect("contents"), inside, "{name}");
        let (one, other) = (backing.join(name), backing.join("dir").join(name));
        let inode = |path: &Path| path.metadata().expect("a file").ino();
        assert_eq!(inode(&one), inode(&other), "{name}: the names are one file");
        assert_eq!(fs::read_to_string(&one).expect("contents"), "old", "{name}");
        // Nothing of the other name was lost to the volume, which reads it only now.
        assert_eq!(fs::read_to_string(mount.join("dir").join(name)).expect("contents"), "old", "{name}");
    }
    assert_eq!(fs::read_link(backing.join("link")).expect("a link"), Path::new("data"));
    for (name, should) in [("single", "new"), ("fresh", "old"), ("also", "new"), ("too", "new")] {
        assert_eq!(fs::read_to_string(backing.join(name)).expect("contents"), should, "{name}");
    }
    assert_eq!(backing.join("too").metadata().expect("a file").nlink(), 2);
    place.aze(&["receipt", "verify", text(&receipt)]).ok();
    // What the volume has linked itself it replaces, and all names stay one file.
    fs::write(mount.join("too"), "newer").expect("a file");
    place.aze(&["stage", "out"]).code(1);
    for name in ["also", "too"] {
        assert_eq!(fs::read_to_string(backing.join(name)).expect("contents"), "newer", "{name}");
        assert_eq!(backing.join(name).metadata().expect("a file").nlink(), 2, "{name}");
    }
    // The way out: another name.
    for name in ["data", "mode", "replaced", "link"] {
        place.aze(&["mv", &format!("aze:/{name}"), &format!("aze:/{name}-of-its-own")]).ok();
    }
    for name in ["data", "mode", "replaced", "link", "removed", "moved"] {
        fs::remove_file(backing.join(name)).expect("a removal");
    }
    place.aze(&["stage", "out", "--delete"]).ok();
    assert_eq!(fs::read_to_string(backing.join("data-of-its-own")).expect("contents"), "new");
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");

    place.aze(&["umount", text(&mount)]).ok();
    let line = "6 files of ";
    assert!(
        logs(&place).contains(line) && logs(&place).contains("have several names in the backing"),
        "{}",
        logs(&place)
    );
    place.aze(&["down"]).ok();
}

/// A file that the volume need not stage, since its place has it, is one file there with the names that a program gives it.
#[test]
fn links_to_what_has_not_changed_are_links_in_the_backing() {
    const NAMES: [[&str; 3]; 2] = [["came", "a-link", "z-link"], ["staged", "b-link", "y-link"]];
    let mut place = Place::new();
    fs::create_dir(place.path("backing")).expect("a directory");
    fs::write(place.path("backing/came"), "came").expect("a file");
    let (backing, mount) = over(&mut place, &[]);
    fs::write(mount.join("staged"), "staged").expect("a file");
    place.aze(&["stage", "out", "--delete"]).ok();
    for [first, further @ ..] in NAMES {
        for name in further {
            fs::hard_link(mount.join(first), mount.join(name)).expect("a link");
        }
    }
    let is_one = |should: fn(&str) -> String| {
        for names in NAMES {
            let inode = backing.join(names[0]).metadata().expect("a file").ino();
            for name in names {
                let there = backing.join(name).metadata().expect("a file");
                assert_eq!((there.ino(), there.nlink()), (inode, 3), "{name}");
                for dir in [&backing, &mount] {
                    assert_eq!(fs::read_to_string(dir.join(name)).expect("contents"), should(names[0]), "{name}");
                }
            }
        }
        let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
        assert!(told.contains("dirty   0 objects"), "{told}");
    };
    let receipt = place.path("receipt.jsonl");
    place.aze(&["stage", "out", "--delete", "--receipt", text(&receipt)]).ok();
    is_one(str::to_owned);
    place.aze(&["receipt", "verify", text(&receipt)]).ok();
    for [_, further, _] in NAMES {
        let mut file = OpenOptions::new().append(true).open(mount.join(further)).expect("a file");
        file.write_all(b", changed").expect("a write");
    }
    place.aze(&["stage", "out", "--delete"]).ok();
    is_one(|name| format!("{name}, changed"));
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).ok();
}

#[test]
fn the_end_of_a_volume_stages_out_to_its_backing() {
    let mut place = Place::new();
    fs::create_dir(place.path("backing")).expect("a directory");
    fs::write(place.path("backing/old"), "old").expect("a file");
    let (backing, mount) = over(&mut place, &[]);
    fs::write(mount.join("result"), "of the run").expect("a file");
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down"]).code(8);
    place.aze(&["down", "--stage-out"]).ok();
    assert_eq!(fs::read_to_string(backing.join("result")).expect("contents"), "of the run");
}

#[test]
fn what_was_imported_and_changed_survives_a_restart() {
    let mut place = Place::new();
    let backing = place.path("backing");
    fs::create_dir_all(backing.join("used")).expect("directories");
    fs::create_dir_all(backing.join("unused")).expect("directories");
    let old: Vec<u8> = (0..3_000_000u32).map(|at| (at % 249) as u8).collect();
    for name in ["used/partly", "used/cut", "used/removed", "used/read", "unused/later"] {
        fs::write(backing.join(name), &old).expect("a file");
        made_long_ago(&backing.join(name));
    }
    let zeros = File::create(backing.join("used/zeros")).expect("a file");
    zeros.set_len(3_000_000).expect("a hole");
    made_long_ago(&backing.join("used/zeros"));
    let storage = place.path("storage");
    let (backing, mount) = over(&mut place, &["--storage", text(&storage)]);
    fs::read(mount.join("used/read")).expect("contents");
    fs::read(mount.join("used/zeros")).expect("contents");
    let write = |name: &str| OpenOptions::new().write(true).open(mount.join(name)).expect("a file");
    write("used/partly").write_all_at(b"new", 1_500_000).expect("a write");
    write("used/cut").set_len(10).expect("a length");
    write("used/cut").set_len(2_000_000).expect("a length");
    fs::remove_file(mount.join("used/removed")).expect("a removal");
    File::open(&mount).expect("the mount").sync_all().expect("a sync");

    for pid in servers(&place) {
        signal(pid, libc::SIGKILL);
    }
    place.aze(&["restart", "--force"]).ok();
    wait_until("the mount serves again", || fs::read_dir(mount.join("used")).is_ok());
    assert_eq!(names(&mount.join("used")), ["cut", "partly", "read", "zeros"], "a removed name stays removed");
    let mut partly = old.clone();
    partly[1_500_000..1_500_003].copy_from_slice(b"new");
    assert!(fs::read(mount.join("used/partly")).expect("contents") == partly);
    let mut cut = old[..10].to_vec();
    cut.resize(2_000_000, 0);
    assert!(fs::read(mount.join("used/cut")).expect("contents") == cut);
    assert!(fs::read(mount.join("unused/later")).expect("contents") == old);
    // Data that were read are in the volume, and stay when the backing changes.
    fs::remove_file(backing.join("used/read")).expect("a removal");
    fs::write(backing.join("used/zeros"), "no zeros").expect("a file");
    assert!(fs::read(mount.join("used/read")).expect("contents") == old);
    assert!(fs::read(mount.join("used/zeros")).expect("contents") == vec![0; 3_000_000]);
    // Files changed before the restart are still known as changed.
    let told = place.aze(&["stage", "out", "--quiet", "--keep", "--receipt", text(&place.path("r.jsonl"))]);
    let lines = fs::read_to_string(place.path("r.jsonl")).unwrap_or_else(|_| panic!("{}", told.err));
    assert!(lines.contains("used/partly") && lines.contains("used/cut") && !lines.contains("later"), "{lines}");
    assert!(fs::read(backing.join("used/partly")).expect("contents") == partly);
    // So is the name that was removed, and no other.
    assert!(backing.join("used/removed").exists());
    place.aze(&["stage", "out", "--quiet", "--delete", "--receipt", text(&place.path("d.jsonl"))]).ok();
    assert_eq!(removed_in(&place.path("d.jsonl")), ["used/removed"]);
    assert!(!backing.join("used/removed").exists());
    place.aze(&["check"]).ok();
}

/// The processes of the servers of the only volume of a place.
fn servers(place: &Place) -> Vec<u32> {
    let status = place.aze(&["status", "--json"]).ok().out;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let servers = status["servers"].as_array().expect("servers").iter();
    let pids: Vec<u32> = servers.map(|server| server["pid"].as_u64().expect("a process") as u32).collect();
    assert_eq!(pids.len(), 2, "{status}");
    pids
}

#[test]
fn names_and_data_are_taken_over_before_their_use() {
    let mut place = Place::new();
    let backing = place.path("backing");
    make_tree(&backing.join("input/tree"), 60);
    // More than one part, with a hole in it.
    let large = File::create(backing.join("input/large")).expect("a file");
    large.set_len(150 << 20).expect("a hole");
    for at in [0, (64 << 20) - 3, 149 << 20] {
        large.write_all_at(b"data", at).expect("data");
    }
    fs::create_dir_all(backing.join("names/a/b")).expect("directories");
    fs::write(backing.join("names/a/b/file"), "never read").expect("a file");
    let copy = place.path("copy");
    run(Command::new("cp").arg("-a").arg(backing.join("input")).arg(&copy));
    let (backing, mount) = over(&mut place, &[]);

    let told = place.aze(&["stage", "in", "--names-only", "--json", "aze:/names"]).ok().out;
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((told["directories"].as_u64(), told["files"].as_u64()), (Some(3), Some(0)), "{told}");
    fs::remove_dir_all(backing.join("names")).expect("a removal");
    assert_eq!(names(&mount.join("names/a/b")), ["file"]);
    let error = fs::read(mount.join("names/a/b/file")).expect_err("its data are gone");
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));

    let files = run(Command::new("find").arg(backing.join("input")).args(["-type", "f"])).out.lines().count() as u64;
    let told = place.aze(&["stage", "in", "--json", "--jobs", "5", "aze:/input"]).ok().out;
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((told["files"].as_u64(), told["failed"].as_u64()), (Some(files), Some(0)), "{told}");
    assert!(files > 40 && told["bytes"].as_u64() > Some(150 << 20), "{told}");
    fs::remove_dir_all(backing.join("input")).expect("a removal");
    assert_same(&mount.join("input"), &copy);
    // Nothing is copied into the volume by that, and nothing is dirty.
    let told = place.aze(&["stage", "status", "aze:/"]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");

    // A part that fails is named, and the rest is there.
    fs::write(backing.join("late"), "late").expect("a file");
    let told = place.aze(&["stage", "in", "aze:/"]).code(1);
    assert!(told.err.contains("fetch aze:/names/a/b/file") && told.err.contains("1 object failed"), "{}", told.err);
    for (words, why) in [
        (&["stage", "in", "--delete", "aze:/"][..], "--delete needs a destination"),
        (&["stage", "in", "somewhere"], "name where to"),
        (&["stage", "in", "--names-only", "somewhere", "aze:/"], "cannot be used with"),
    ] {
        let refused = place.aze(words).code(2);
        assert!(refused.err.contains(why), "{}", refused.err);
    }
}

/// A directory of another volume, by its mount: what another node changes there is never mixed, however long the kernel believes
/// attributes.
#[test]
fn a_volume_lies_over_a_mount_of_another_one() {
    const FILES: usize = 12;
    let mut place = Place::new();
    let [below, above] = ["below", "above"].map(|name| format!("{name}-{}", std::process::id()));
    place.up(&["--servers", "2", "--name", &below]);
    let [here, there] = [(); 2].map(|()| place.mount());
    fs::create_dir(here.join("data")).expect("a directory");
    let file = |number: usize| format!("f{number}");
    for number in 0..FILES {
        fs::write(here.join("data").join(file(number)), vec![b'o'; 3 << 20]).expect("a file");
    }
    let over = here.join("data");
    place.up(&["--servers", "2", "--name", &above, "--backing", text(&over)]);
    let mount = place.mount_with(&["--name", &above]);
    assert_eq!(names(&mount).len(), FILES);
    let (mut writers, mut refused) = (Vec::new(), 0);
    for number in 0..FILES / 2 {
        let mut begun = [0; 1];
        let opened = File::open(mount.join(file(number))).expect("a file");
        opened.read_exact_at(&mut begun, 0).expect("the first chunk");
        assert_eq!(begun, *b"o");
        // On another node, as far as the kernel knows. The home hears nothing of a write to the last chunk.
        let other = there.join("data").join(file(number));
        let other = OpenOptions::new().write(true).open(other).expect("a file");
        other.write_all_at(b"n", 2 << 20).expect("a change");
        writers.push(other);
        let mut rest = [0; 1];
        match opened.read_exact_at(&mut rest, 2 << 20) {
            // A kernel had it read ahead, before the change.
            Ok(()) => assert_eq!(rest, *b"o", "{number}: bytes of two moments"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{number}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused >= FILES / 4, "{refused} files were found to be others now");
    for number in FILES / 2..FILES {
        assert!(fs::read(mount.join(file(number))).expect("contents") == vec![b'o'; 3 << 20], "{number}");
    }
    // Changed files go back, and are read from there afterwards.
    fs::write(mount.join(file(FILES - 1)), "changed").expect("a file");
    fs::write(mount.join("new"), "new").expect("a file");
    let out = format!("aze://{above}/");
    place.aze(&["stage", "out", &out]).ok();
    for (name, should) in [(file(FILES - 1), "changed"), ("new".into(), "new")] {
        assert_eq!(fs::read_to_string(there.join("data").join(&name)).expect("contents"), should);
        assert_eq!(fs::read_to_string(mount.join(&name)).expect("contents"), should);
    }
    let told = place.aze(&["stage", "status", &out]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");
    // A path of a volume itself is refused, with the way.
    let refused = place.aze(&["up", "--backing", &format!("aze://{below}/data"), "--name", "none"]).code(2);
    assert!(refused.err.contains("mount it"), "{}", refused.err);
    place.aze(&["umount", text(&mount)]).ok();
    place.aze(&["down", "--name", &above]).ok();
}

#[test]
fn a_backing_that_is_none_is_refused() {
    let place = Place::new();
    let missing = place.aze(&["up", "--backing", "missing"]);
    assert!(missing.code == 3 && missing.err.contains("--backing missing"), "{} {}", missing.code, missing.err);
    fs::write(place.path("file"), "").expect("a file");
    let file = place.aze(&["up", "--backing", "file"]).code(2);
    assert!(file.err.contains("it is no directory"), "{}", file.err);
}
