//! `aze cp` between a volume and its mount: a directory is not copied into itself, nor a file onto itself.
//!
//! The two were taken for different file systems: `aze cp -r aze:/d /mnt/d/e` made `/mnt/d/e/e/e…` until the path was too long.

use aze_tests::Place;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Names of what is in a directory, at any depth, below it.
fn names(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
        let name = entry.file_name().into_string().expect("text");
        if entry.file_type().expect("a kind").is_dir() {
            found.extend(names(&entry.path()).into_iter().map(|below| format!("{name}/{below}")));
        }
        found.push(name);
    }
    found.sort();
    found
}

#[test]
fn a_directory_is_not_copied_into_itself_by_way_of_a_mount() {
    let mut place = Place::new();
    place.up(&["--name", "v"]);
    let [mnt, again] = [place.mount(), place.mount()].map(|dir| dir.display().to_string());
    let dir = Path::new(&mnt).join("d");
    for (from, to) in [("aze:", &*mnt), (&mnt, "aze:"), (&mnt, &mnt), (&mnt, &again), ("aze:", "aze:")] {
        fs::create_dir_all(dir.join("x")).expect("directories");
        fs::write(dir.join("f"), "contents").expect("a file");
        let (from, to) = (format!("{from}/d"), format!("{to}/d/x/e"));
        let ran = place.aze(&["cp", "-r", &from, &to]).code(1);
        let text = format!("cannot copy directory {from} into itself, {to}:");
        assert!(ran.err.contains(&text), "{}", ran.err);
        assert_eq!(names(&dir), ["f", "x", "x/e", "x/e/f", "x/e/x"], "{from} to {to}");
        fs::remove_dir_all(&dir).expect("it goes");
    }
}

#[test]
fn a_file_is_not_copied_onto_itself_by_way_of_a_mount() {
    let mut place = Place::new();
    place.up(&["--name", "v"]);
    let mnt = place.mount();
    fs::write(mnt.join("f"), "contents").expect("a file");
    std::os::unix::fs::symlink("f", mnt.join("link")).expect("a link");
    let before = fs::metadata(mnt.join("f")).expect("a file").ino();
    let at = mnt.display().to_string();
    for (from, to) in [("aze:", &*at), (&at, "aze:")] {
        for name in ["f", "link"] {
            let (from, to) = (format!("{from}/f"), format!("{to}/{name}"));
            let ran = place.aze(&["cp", &from, &to]).code(5);
            assert!(ran.err.contains(&format!("{from} and {to} are the same file")), "{}", ran.err);
        }
    }
    let ran = place.aze(&["cp", "-r", "aze:/.", &at]).code(5);
    assert!(ran.err.contains(&format!("aze:/. and {at} are the same directory")), "{}", ran.err);
    assert_eq!(fs::metadata(mnt.join("f")).expect("a file").ino(), before);
    assert_eq!(names(&mnt), ["f", "link"]);
}

/// Inodes of two volumes have the same numbers.
#[test]
fn a_mount_of_another_volume_is_another_place() {
    let mut place = Place::new();
    place.up(&["--name", "v"]);
    let mnt = place.mount();
    place.up(&["--name", "w"]);
    fs::write(mnt.join("f"), "contents").expect("a file");
    let at = mnt.display().to_string();
    place.aze(&["cp", &format!("{at}/f"), "aze://w/f"]).ok();
    place.aze(&["cp", "-r", "aze://w/.", &at]).ok();
    assert_eq!(place.aze(&["cat", "aze://w/f"]).ok().out, "contents");
}
