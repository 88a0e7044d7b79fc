//! Storage that fails while a volume ends: `aze down` says so, for which server, and why. It said that the volume is kept.

use aze_tests::disk::Disk;
use aze_tests::{Place, leave_out};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Bytes of the file system of one server.
const DISK_BYTES: u64 = 96 << 20;

/// Takes all room of a file system.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file");
    for block in [1 << 20, 4096] {
        let bytes = vec![7; block];
        loop {
            match file.write_all(&bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn storage_that_fails_at_the_end_is_told() {
    let place = Place::new();
    let small = match Disk::in_memory(&place, "small", DISK_BYTES) {
        Ok(disk) => disk,
        Err(why) => return leave_out("storage_that_fails_at_the_end_is_told", &why),
    };
    let storage = format!("large,{}", small.dir.display());
    place.up(&["--name", "v", "--servers", "2", "--storage", &storage, "--storage-size", "64M"]);
    fs::write(place.path("file"), "contents").expect("a file");
    place.aze(&["cp", "file", "aze:/file"]).ok();
    fill(&small.dir.join("other"));
    let ran = place.aze(&["down"]).code(7);
    assert!(ran.err.contains("may be lost") && ran.err.contains("could not keep it: server 1"), "{}", ran.err);
    assert!(ran.err.contains("No space left") && !ran.err.contains("server 0"), "{}", ran.err);
    assert!(!place.path("run/v").exists());
    fs::remove_file(small.dir.join("other")).expect("it goes");
    place.up(&["--name", "v", "--servers", "2", "--storage", &storage, "--storage-size", "64M"]);
    assert_eq!(place.aze(&["cat", "aze:/file"]).ok().out, "contents");
    place.aze(&["down"]).ok();
}
