//! `aze check` of a volume that runs, on the real program. (Its findings, and that it has none on an intact volume,
//! are simulated: `sim/tests/check.rs`.)

use aze_tests::{Place, make_tree};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Checks while others work.
const CHECKS: usize = 2;

/// Makes, moves, links and removes files and directories, until it is over; gives how often.
fn churn(root: &Path, over: &AtomicBool) -> u32 {
    let mut rounds = 0;
    fs::create_dir(root).expect("a directory");
    while !over.load(Ordering::Relaxed) {
        let (dir, moved) = (root.join("dir"), root.join("moved"));
        fs::create_dir(&dir).expect("a directory");
        for number in 0..8 {
            let file = dir.join(format!("f{number}"));
            fs::write(&file, vec![number; 3000 * usize::from(number)]).expect("a file");
            fs::hard_link(&file, root.join(format!("l{number}"))).expect("a link");
            fs::rename(&file, root.join(format!("r{number}"))).expect("a rename");
        }
        fs::rename(&dir, &moved).expect("a rename of a directory");
        for number in 0..8 {
            fs::remove_file(root.join(format!("l{number}"))).expect("a removal");
            fs::remove_file(root.join(format!("r{number}"))).expect("a removal");
        }
        fs::remove_dir(&moved).expect("a removal of a directory");
        rounds += 1;
    }
    rounds
}

#[test]
fn a_volume_is_looked_through_while_it_is_used() {
    let mut place = Place::new();
    let tree = place.path("tree");
    make_tree(&tree, 60);
    place.up(&["--name", "busy", "--servers", "3"]);
    place.aze(&["cp", "-r", "tree", "aze:/tree"]).ok();
    let well = place.aze(&["check"]).ok();
    assert!(well.err.contains("all is well") && well.out.is_empty(), "{}{}", well.out, well.err);
    let mount = place.mount();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|number| {
                let (root, over) = (mount.join(format!("w{number}")), &over);
                scope.spawn(move || churn(&root, over))
            })
            .collect();
        let checks: Vec<_> = (0..CHECKS).map(|_| place.aze(&["check", "--name", "busy", "--json"])).collect();
        over.store(true, Ordering::Relaxed);
        let rounds: u32 = workers.into_iter().map(|worker| worker.join().expect("a worker ends")).sum();
        for check in checks {
            let said: serde_json::Value = serde_json::from_str(&check.ok().out).expect("one object");
            assert_eq!(said["problems"], serde_json::json!([]), "{said}");
            assert!(said["files"].as_u64() >= Some(60) && said["bytes"].as_u64() > Some(100_000), "{said}");
        }
        println!("{rounds} rounds were done meanwhile");
        assert!(rounds > 2, "only {rounds} rounds: nothing was done meanwhile");
    });
}

#[test]
fn a_bit_that_flips_below_a_volume_in_use_is_found() {
    let place = Place::new();
    let (marked, storage) = (place.path("marked"), place.path("storage").display().to_string());
    fs::write(&marked, b"a line that is found again".repeat(1000)).expect("a file");
    let up = ["--name", "v", "--servers", "2", "--storage", &storage];
    place.up(&up);
    place.aze(&["mkdir", "aze:/dir"]).ok();
    place.aze(&["cp", "marked", "aze:/dir/marked"]).ok();
    place.aze(&["down"]).ok();
    // A start writes a checkpoint, with the data in segments.
    place.up(&up);
    place.aze(&["check"]).ok();
    let mut changed = 0;
    for server in ["storage/server-0", "storage/server-1"] {
        for file in fs::read_dir(place.path(server)).expect("a directory").flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let bytes = if name.starts_with("data-") { fs::read(file.path()).expect("a file") } else { Vec::new() };
            if let Some(at) = bytes.windows(26).position(|words| words == b"a line that is found again") {
                let file = OpenOptions::new().write(true).open(file.path()).expect("a file");
                file.write_all_at(&[bytes[at] ^ 1], at as u64).expect("a write");
                changed += 1;
            }
        }
    }
    assert_eq!(changed, 1);
    let found = place.aze(&["check"]).code(1);
    assert!(found.out.starts_with("checksum: /dir/marked (inode "), "{}", found.out);
    assert!(found.out.contains("data-0000000000 at byte") && found.out.contains("of server "), "{}", found.out);
    assert!(found.out.contains("what to do (checksum): "), "{}", found.out);
    assert!(found.err.contains("1 problem found"), "{}", found.err);
    place.aze(&["rm", "aze:/dir/marked"]).ok();
    place.aze(&["check", "--name", "v", "--rate", "100M"]).ok();
}

#[test]
fn what_cannot_be_looked_at_is_never_well() {
    let place = Place::new();
    let none = place.aze(&["check"]).code(2);
    assert!(none.err.contains("no volume of yours runs"), "{}", none.err);
    place.up(&["--name", "half", "--servers", "3"]);
    let wrong = place.aze(&["check", "--repair"]).code(2);
    assert!(wrong.err.contains("DIR"), "{}", wrong.err);
    place.aze(&["check", "--rate", "0"]).code(2);
    let record = fs::read(place.path("run/half/volume.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
    let pid = record["servers"][1]["process"]["pid"].as_u64().expect("a pid") as i32;
    aze_tests::signal(pid as u32, libc::SIGKILL);
    let refused = place.aze(&["check"]).code(2);
    assert!(refused.err.contains("nothing can be said") && refused.err.contains("server 1"), "{}", refused.err);
    assert!(refused.out.is_empty(), "{}", refused.out);
}
