//! Volumes kept in directories, on the real program: they come back, also after every server was
//! killed in the middle of its work. (Power cuts are simulated: `sim/tests/persistent.rs`.)

use aze_tests::python::python;
use aze_tests::{Place, make_tree, run, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How often all servers are killed.
const ROUNDS: usize = 5;

/// Starts the volume `v` of two servers in the directory `storage`.
fn up(place: &Place, more: &[&str]) -> String {
    let storage = place.path("storage").display().to_string();
    let mut args = vec!["--name", "v", "--servers", "2", "--storage", &storage];
    args.extend(more);
    place.up(&args)
}

/// All files below the storage, with their contents.
fn stored(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for dir in fs::read_dir(place.path("storage")).expect("the volume's directory").flatten() {
        for file in fs::read_dir(dir.path()).expect("a server's directory").flatten() {
            files.insert(file.path().display().to_string(), fs::read(file.path()).expect("a file"));
        }
    }
    files
}

/// Of more servers than it was made with, and of a version that is not known: nothing is changed in it, and nothing is beside.
#[test]
fn a_volume_that_is_refused_is_left_as_it_was() {
    let place = Place::new();
    up(&place, &[]);
    place.aze(&["mkdir", "aze:/kept"]).ok();
    place.aze(&["down"]).ok();
    let storage = place.path("storage").display().to_string();
    let refused = |servers: &str, why: &str| {
        let before = stored(&place);
        assert!(before.len() >= 8, "{:?}", before.keys());
        let refused = place.aze(&["up", "--name", "v", "--servers", servers, "--storage", &storage]);
        assert!(refused.code != 0 && refused.err.contains(why) && !refused.err.contains("lost"), "{}", refused.err);
        let after = stored(&place);
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
        assert!(after == before, "the contents of a file have changed");
    };
    refused("4", "start the volume as it was made");
    place.aze(&["check", &storage]).ok();
    let replace = |from: &str, to: &str| {
        for server in ["server-0", "server-1"] {
            let file = place.path("storage").join(server).join("volume");
            let text = fs::read_to_string(&file).expect("the file of a server");
            assert!(text.contains(from), "{text}");
            fs::write(&file, text.replace(from, to)).expect("the same file");
        }
    };
    replace("format 15", "format 13");
    for servers in ["2", "4"] {
        refused(
            servers,
            "it is in format 13, and this program knows formats 15 and 16 only: use the version that wrote it",
        );
    }
    replace("format 13", "format 15");
    up(&place, &[]);
    assert!(place.aze(&["ls", "aze:/"]).ok().out.contains("kept"));
}

fn kill_all(place: &Place) {
    let status = place.aze(&["status", "--name", "v", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("status is JSON");
    for server in status["servers"].as_array().expect("servers") {
        let pid = server["pid"].as_u64().expect("a pid") as i32;
        aze_tests::signal(pid as u32, libc::SIGKILL);
    }
}

#[test]
fn a_volume_comes_back_from_its_directories() {
    let place = Place::new();
    let tree = place.path("tree");
    make_tree(&tree, 60);
    let big = place.path("tree/big");
    fs::write(&big, (0..5_000_000u32).map(|byte| (byte % 251) as u8).collect::<Vec<u8>>()).expect("a file");
    up(&place, &[]);
    place.aze(&["cp", "-r", &tree.display().to_string(), "aze:/tree"]).ok();
    place.aze(&["mkdir", "aze:/empty"]).ok();
    place.aze(&["mv", "aze:/tree/big", "aze:/empty/moved"]).ok();
    fs::rename(&big, place.path("big")).expect("a rename");
    let listed = place.aze(&["ls", "-l", "aze:/"]).ok().out;
    let status = place.aze(&["status", "--json"]).ok().out;
    assert!(status.contains("\"durability\": \"fsync\"") || status.contains("\"durability\":\"fsync\""), "{status}");
    place.aze(&["down"]).ok();

    // Other ports, and so other addresses.
    up(&place, &["--port-base", "29761", "--durability", "close"]);
    assert_eq!(place.aze(&["ls", "-l", "aze:/"]).ok().out, listed);
    let back = place.path("back");
    place.aze(&["cp", "-r", "aze:/tree", &back.display().to_string()]).ok();
    run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(&back));
    place.aze(&["cp", "aze:/empty/moved", &place.path("moved").display().to_string()]).ok();
    run(Command::new("cmp").arg(place.path("big")).arg(place.path("moved")));
    place.aze(&["rm", "-r", "aze:/tree"]).ok();
    place.aze(&["down"]).ok();

    up(&place, &[]);
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out.trim(), "empty");
    let used = place.aze(&["up", "--name", "w", "--servers", "2", "--size", "1G", "--storage", "storage"]);
    assert!(used.code != 0 && used.err.contains("another server uses it"), "{}", used.err);
    place.aze(&["down", "--name", "v"]).ok();

    let other = place.aze(&["up", "--servers", "3", "--size", "1G", "--storage", "storage"]);
    assert!(other.code != 0 && other.err.contains("start the volume as it was made"), "{}", other.err);
    let manifest = place.path("storage/server-1/volume");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    fs::write(&manifest, text.replace("format 15", "format 12")).expect("a manifest");
    let older = place.aze(&["up", "--servers", "2", "--size", "1G", "--storage", "storage"]);
    assert!(older.code != 0 && older.err.contains("format 12"), "{}", older.err);
}

#[test]
fn durability_needs_directories() {
    let place = Place::new();
    let refused = place.aze(&["up", "--durability", "fsync"]).code(2);
    assert!(refused.err.contains("--storage"), "{}", refused.err);
}

/// Everything that a command has said is done is there when all servers were killed at any moment.
#[test]
fn what_was_acknowledged_survives_the_death_of_all_servers() {
    let place = Place::new();
    let mut acknowledged: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..ROUNDS {
        up(&place, &["--durability", if round % 2 == 0 { "none" } else { "fsync" }]);
        for (name, data) in &acknowledged {
            let ran = place.command(&["cat", name]).output().expect("aze starts");
            assert!(ran.status.success(), "round {round}: {name}: {}", String::from_utf8_lossy(&ran.stderr));
            assert!(ran.stdout == *data, "round {round}: {name} has other bytes");
        }
        let (over, commands) = (AtomicBool::new(false), AtomicUsize::new(0));
        let done = std::thread::scope(|scope| {
            let worker = scope.spawn(|| work(&place, round, &over, &commands));
            wait_until("some commands have ended", || commands.load(Ordering::Relaxed) > 4 + round);
            std::thread::park_timeout(Duration::from_millis(7 * round as u64));
            kill_all(&place);
            over.store(true, Ordering::Relaxed);
            worker.join().expect("the worker ends")
        });
        acknowledged.extend(done);
        place.aze(&["down", "--force", "--name", "v"]);
    }
    assert!(acknowledged.len() > ROUNDS, "only {} files were made", acknowledged.len());
}

/// Bytes of memory for the data of a volume that is larger.
const MEMORY: &str = "160M";

/// Bytes of a file; sixteen of them are three times as much.
const BIG_BYTES: u64 = 30 << 20;

fn big(number: u64) -> Vec<u8> {
    let word = |at: u64| (at ^ number << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..BIG_BYTES / 8).flat_map(word).collect()
}

fn look_at_big(place: &Place, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let ran = place.command(&["cat", &format!("aze:/big-{number}")]).output().expect("aze starts");
        assert!(ran.status.success(), "file {number}: {}", String::from_utf8_lossy(&ran.stderr));
        assert!(ran.stdout == big(number), "file {number} has other bytes");
    }
}

/// Three times as much as memory holds; all servers are killed; a bit is flipped; and the disk gets full.
#[test]
fn a_volume_is_larger_than_memory() {
    let place = Place::new();
    let start = || {
        let storage = place.path("storage").display().to_string();
        let args = ["up", "--name", "v", "--servers", "2", "--size", MEMORY, "--storage", &storage];
        place.aze(&[&args[..], &["--storage-size", "600M", "--durability", "fsync"]].concat()).ok();
    };
    start();
    for number in 0..16 {
        let local = place.path("local");
        fs::write(&local, big(number)).expect("a local file");
        place.aze(&["cp", &local.display().to_string(), &format!("aze:/big-{number}")]).ok();
    }
    look_at_big(&place, 0..16);
    let status = place.aze(&["status", "--requests"]).ok().out;
    assert!(status.contains("read from disk"), "{status}");
    kill_all(&place);
    place.aze(&["down", "--force", "--name", "v"]);

    start();
    look_at_big(&place, 0..16);
    // A file larger than the room left: the other files stay, and removals make room.
    let local = place.path("local");
    fs::write(&local, vec![7; 200 << 20]).expect("a local file");
    let full = place.aze(&["cp", &local.display().to_string(), "aze:/too-large"]);
    assert!(full.code != 0 && full.err.contains("storage are in use"), "{}", full.err);
    place.aze(&["rm", "aze:/big-14", "aze:/big-15"]).ok();
    look_at_big(&place, 0..14);
    fs::write(&local, big(14)).expect("a local file");
    place.aze(&["cp", &local.display().to_string(), "aze:/big-14"]).ok();
    place.aze(&["down", "--name", "v"]).ok();

    // One bit in a place of each segment.
    for server in 0..2 {
        let dir = place.path(&format!("storage/server-{server}"));
        for entry in fs::read_dir(dir).expect("the server's directory") {
            let path = entry.expect("an entry").path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("data-")) {
                let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("a segment");
                for at in (65536 + 777..file.metadata().expect("a length").len()).step_by(1 << 20) {
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at).expect("within its length");
                    file.write_all_at(&[byte[0] ^ 4], at).expect("within its length");
                }
            }
        }
    }
    start();
    let mut refused = 0;
    for number in 0..15 {
        let ran = place.command(&["cat", &format!("aze:/big-{number}")]).output().expect("aze starts");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(big(number).starts_with(&ran.stdout), "file {number}: bytes were given that are not its own");
        if !ran.status.success() {
            assert!(said.contains("checksum") && said.contains(&format!("big-{number}")), "file {number}: {said}");
            refused += 1;
        }
    }
    // The bytes written last are in the journals, too.
    assert!(refused > 7, "only {refused} files were refused");
    place.aze(&["down", "--name", "v"]).ok();
}

/// Copies, moves and removes files until the servers die; gives what must be there.
fn work(place: &Place, round: usize, over: &AtomicBool, commands: &AtomicUsize) -> Vec<(String, Vec<u8>)> {
    let mut there = Vec::new();
    for number in 0.. {
        let local = place.path(&format!("local-{round}-{number}"));
        let data: Vec<u8> = (0..(number * 400_003 + 17) % 3_000_000).map(|at| ((at + number) % 253) as u8).collect();
        fs::write(&local, &data).expect("a local file");
        let (first, second) = (format!("aze:/a-{round}-{number}"), format!("aze:/b-{round}-{number}"));
        let copied =
            !over.load(Ordering::Relaxed) && place.aze(&["cp", &local.display().to_string(), &first]).code == 0;
        if !copied {
            break;
        }
        commands.fetch_add(1, Ordering::Relaxed);
        // Only certain outcomes count: a move that fails may have happened.
        match number % 3 {
            0 => there.push((first, data)),
            1 if place.aze(&["mv", &first, &second]).code == 0 => there.push((second, data)),
            1 => break,
            _ if place.aze(&["rm", &first]).code == 0 => {}
            _ => break,
        }
    }
    there
}

/// What `docs/releases.md` has users do to take a volume from one version to the next, here with the same program twice.
#[test]
fn a_volume_is_taken_over_by_copying_it_out_and_in() {
    let place = Place::new();
    let look = r#"
found = {}
for top, dirs, files in os.walk(P()):
    for name in dirs + files:
        path = os.path.join(top, name)
        at, link = os.lstat(path), os.path.islink(path)
        data = os.readlink(path) if link else open(path, 'rb').read() if name in files else None
        # A link has its owner and times from the copy.
        kept = None if link else (oct(at.st_mode), at.st_mtime_ns, os.listxattr(path))
        found[os.path.relpath(path, P())] = (kept, data)
print(len(found), hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest())
"#;
    let look = format!("import hashlib\n{look}");
    let make = r#"
os.makedirs(P('.hidden', 'with space'))
make(P('.hidden', 'with space', 'file'), b'text' * 100)
os.setxattr(P('.hidden', 'with space', 'file'), 'user.a', b'one')
os.utime(P('.hidden', 'with space', 'file'), ns=(1, 1577934245123456789))
os.chmod(P('.hidden', 'with space', 'file'), 0o400)
make(P('.dot'), b'dot')
make(P('large'), bytes(range(256)) * 20_000)
os.link(P('large'), P('other-name'))
os.symlink('large', P('link'))
os.truncate(P('.dot'), 5_000_000)
os.utime(P('.hidden'), ns=(1, 1546300800000000000))
"#;
    let source = place.path("source");
    fs::create_dir(&source).expect("a directory");
    python(make, &[&source]);
    let all = |dir: &str, to: &str| {
        let mut words = vec!["cp".to_owned(), "-rp".to_owned(), "--verify".to_owned()];
        let entries = fs::read_dir(place.path(dir)).expect("a directory").flatten();
        words.extend(entries.map(|entry| entry.path().display().to_string()));
        words.push(to.to_owned());
        place.aze(&words).ok();
    };
    up(&place, &[]);
    all("source", "aze:/");
    place.aze(&["check"]).ok();
    place.aze(&["cp", "-rp", "--verify", "aze:/", "backup"]).ok();
    place.aze(&["down"]).ok();

    let new = place.path("new").display().to_string();
    let start = || place.up(&["--name", "v", "--servers", "3", "--storage", &new]);
    start();
    all("backup", "aze:/");
    place.aze(&["down"]).ok();
    start();
    place.aze(&["check"]).ok();
    place.aze(&["cp", "-rp", "aze:/", "back"]).ok();
    place.aze(&["down"]).ok();
    let told = python(&look, &[&source]).out;
    assert!(told.starts_with("7 "), "{told}");
    assert_eq!(python(&look, &[&place.path("backup")]).out, told, "copied out");
    assert_eq!(python(&look, &[&place.path("back")]).out, told, "copied in");

    // The old directories go with a volume that runs.
    up(&place, &[]);
    place.aze(&["down", "--delete", "--yes"]).ok();
    assert!(!place.path("storage").exists());
}
