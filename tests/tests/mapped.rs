//! Volumes kept in files, as in persistent memory, on the real program: they come back, also after every
//! server was killed, and a foreign file is refused and not touched.

use aze_tests::{Place, leave_out, make_tree, run};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Length of a file that keeps a server's part, in bytes.
const BYTES: u64 = 1 << 30;

fn new_file(place: &Place, name: &str, bytes: u64) -> (PathBuf, String) {
    let path = place.path(name);
    File::create(&path).expect("a file").set_len(bytes).expect("a length");
    (path.clone(), path.display().to_string())
}

fn kill_all(place: &Place, name: &str) {
    let status = place.aze(&["status", "--name", name, "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("status is JSON");
    for server in status["servers"].as_array().expect("servers") {
        let pid = server["pid"].as_u64().expect("a pid") as i32;
        aze_tests::signal(pid as u32, libc::SIGKILL);
    }
}

/// The first place in a file with these bytes.
fn find(path: &Path, bytes: &[u8]) -> Option<u64> {
    let file = File::open(path).expect("a file");
    let mut buffer = vec![0; 4 << 20];
    (0..BYTES).step_by(buffer.len() / 2).find_map(|at| {
        let count = file.read_at(&mut buffer, at).expect("within its length");
        if buffer[..count].iter().all(|byte| *byte == 0) {
            return None;
        }
        let found = buffer[..count].windows(bytes.len()).position(|window| window == bytes);
        found.map(|found| at + found as u64)
    })
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("within its length");
    file.write_all_at(&[byte[0] ^ 16], at).expect("within its length");
}

#[test]
fn a_volume_comes_back_from_files() {
    let place = Place::new();
    let (first, first_text) = new_file(&place, "first", BYTES);
    let (second, second_text) = new_file(&place, "second", BYTES);
    let both = format!("{first_text},{second_text}");
    let tree = place.path("tree");
    make_tree(&tree, 60);
    // By default there is one server for each file.
    let up = || place.aze(&["up", "--name", "v", "--size", "1G", "--storage", &both]).ok();
    let said = up().err;
    assert!(said.contains("2 servers") && said.contains("not persistent memory: synced by the kernel"), "{said}");
    place.aze(&["cp", "-r", &tree.display().to_string(), "aze:/tree"]).ok();
    let used = place.aze(&["up", "--name", "w", "--size", "1G", "--storage", &both]).code(6);
    assert!(used.err.contains("another server uses it"), "{}", used.err);
    let looked = place.aze(&["check", &first_text, &second_text]).code(2);
    assert!(looked.err.contains("aze down"), "{}", looked.err);
    kill_all(&place, "v");
    place.aze(&["restart", "--name", "v"]).ok();
    place.aze(&["mv", "aze:/tree", "aze:/moved"]).ok();
    kill_all(&place, "v");
    place.aze(&["down", "--force", "--name", "v"]);

    place.aze(&["check", &first_text, &second_text]).ok();
    up();
    let back = place.path("back");
    place.aze(&["cp", "-r", "aze:/moved", &back.display().to_string()]).ok();
    run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(&back));
    let marked: Vec<u8> = (0..40_000u32).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    fs::write(place.path("marked"), &marked).expect("a local file");
    place.aze(&["cp", &place.path("marked").display().to_string(), "aze:/marked"]).ok();
    place.aze(&["down"]).ok();
    let one = place.aze(&["check", &first_text]).code(2);
    assert!(one.err.contains("missing"), "{}", one.err);
    place.aze(&["check", &first_text, &second_text]).ok();
    let found = [&first, &second].into_iter().find_map(|path| Some((path, find(path, &marked[4096..4160])?)));
    let (path, at) = found.expect("one of them has the data");
    flip(path, at + 7);
    let found = place.aze(&["check", &first_text, &second_text]).code(1);
    assert!(found.out.contains("checksum: /marked"), "{} {}", found.out, found.err);
    flip(path, at + 7);
    // The superblock has a second copy, the table of files has none.
    flip(&first, 80);
    let noted = place.aze(&["check", &first_text, &second_text]).ok();
    assert!(noted.out.contains("note: ") && noted.out.contains("one of the two copies"), "{}", noted.out);
    for table in [8192, 8192 + 24576] {
        flip(&first, table);
    }
    let damaged = place.aze(&["up", "--name", "v", "--size", "1G", "--storage", &both]);
    assert!(damaged.code == 7 && damaged.err.contains("its table of files"), "{}", damaged.err);
}

#[test]
fn a_file_is_emptied_and_keeps_another_volume() {
    let place = Place::new();
    let (path, text) = new_file(&place, "file", BYTES);
    for round in 0..2 {
        place.up(&["--name", "v", "--storage", &text]);
        assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "", "round {round}");
        fs::write(place.path("local"), vec![round; 5 << 20]).expect("a local file");
        place.aze(&["cp", &place.path("local").display().to_string(), "aze:/file"]).ok();
        place.aze(&["down", "--delete", "--yes"]).ok();
        assert_eq!(fs::metadata(&path).expect("the file stays").len(), BYTES);
    }
}

/// Writes more than fits, twice over: acknowledged files stay, and removed files make room.
#[test]
fn a_full_file_says_so_and_goes_on() {
    let place = Place::new();
    let (_, text) = new_file(&place, "file", BYTES);
    let up = || place.aze(&["up", "--name", "v", "--size", "160M", "--storage", &text]).ok();
    up();
    let data = |number: u32| -> Vec<u8> {
        (0..8u32 << 20).flat_map(|word| (word ^ number << 24).wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
    };
    let local = place.path("local");
    let local_text = local.display().to_string();
    let is_there = |number: u32| {
        let ran = place.command(&["cat", &format!("aze:/{number}")]).output().expect("aze starts");
        assert!(ran.status.success(), "file {number}: {}", String::from_utf8_lossy(&ran.stderr));
        assert!(ran.stdout == data(number), "file {number} has other bytes");
    };
    for round in 0..2 {
        let (mut there, mut why) = (Vec::new(), String::new());
        for number in 0..40 {
            fs::write(&local, data(number)).expect("a local file");
            let ran = place.aze(&["cp", &local_text, &format!("aze:/{number}")]);
            if ran.code != 0 {
                assert!(ran.code == 5, "round {round}, file {number}: {}", ran.err);
                why = ran.err;
                break;
            }
            there.push(number);
        }
        assert!((16..40).contains(&there.len()), "round {round}: {} files fit: {why}", there.len());
        there.iter().for_each(|number| is_there(*number));
        place.aze(&["down", "--name", "v"]).ok();
        up();
        there.iter().for_each(|number| is_there(*number));
        let names: Vec<String> =
            place.aze(&["ls", "aze:/"]).ok().out.lines().map(|name| format!("aze:/{name}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        place.aze(&[&["rm"], &names[..]].concat()).ok();
    }
    place.aze(&["down", "--name", "v"]).ok();
    place.aze(&["check", &text]).ok();
}

#[test]
fn what_cannot_keep_a_volume_is_refused_and_not_touched() {
    let place = Place::new();
    let refused = |args: &[&str], code: i32, what: &str| {
        let ran = place.aze(&[&["up", "--size", "1G", "--storage"], args].concat()).code(code);
        assert!(ran.err.contains(what), "{args:?}: {}", ran.err);
        assert!(!ran.err.contains("lost") && !ran.err.contains("promise"), "{args:?}: {}", ran.err);
    };
    let (path, text) = new_file(&place, "file", BYTES);
    refused(&[&text, "--servers", "3"], 2, "3 servers of this node were given it: give as many");
    File::options().write(true).open(&path).expect("a file").write_all_at(b"mine", BYTES - 9).expect("a write");
    refused(&[&text], 5, &format!("file has other content, at byte {}, which is not touched", BYTES - 9));
    assert!(find(&path, b"Azekura").is_none(), "nothing was written");
    let (_, small) = new_file(&place, "small", 1000);
    refused(&[&small], 5, "at least 1024 MiB are needed: 'truncate -s SIZE ");
    refused(&["/dev/null"], 5, "it is neither a directory, nor a file, nor a device of persistent memory");
    refused(&["/dev/dax-of-nobody"], 3, "there is no such device");
    refused(&[&format!("{small}/below")], 5, "Not a directory");
    let blocks = fs::read_dir("/dev").expect("devices").flatten().map(|entry| entry.path());
    let mut blocks = blocks.filter(|path| path.metadata().is_ok_and(|about| about.file_type().is_block_device()));
    match blocks.next() {
        Some(device) => refused(&[&device.display().to_string()], 5, "it is a block device: make a file system on it"),
        None => leave_out("what_cannot_keep_a_volume_is_refused_and_not_touched", "there is no block device"),
    }
}
