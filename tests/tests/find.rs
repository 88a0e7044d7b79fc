//! `aze find`: what fits by path and age, and paths that other programs can read.

use aze_tests::Place;
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

#[test]
fn files_are_found_by_path_and_age_and_told_byte_for_byte() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let mount = place.mount();
    for dir in ["a", "a/tmp", "b"] {
        fs::create_dir(mount.join(dir)).expect("a directory");
    }
    let day = Duration::from_secs(24 * 3600);
    // Each half a day older than its number says.
    for (name, days) in [("a/tmp/0", 0), ("a/tmp/2\n", 2), ("a/9", 9), ("b/tmp9", 9)] {
        let file = File::create(mount.join(name)).expect("a file");
        file.set_modified(SystemTime::now() - day * days - day / 2).expect("a time");
    }
    let find = |words: &[&str]| {
        let ran = place.aze(&[&["find", "aze:/", "-type", "f"], words].concat()).ok();
        let mut found: Vec<String> = ran.out.split_terminator(['\0']).map(str::to_owned).collect();
        found.sort();
        found
    };
    assert_eq!(find(&["-path", "*/tmp/*", "-print0"]), ["aze:/a/tmp/0", "aze:/a/tmp/2\n"]);
    assert_eq!(find(&["-mtime", "-1", "-print0"]), ["aze:/a/tmp/0"]);
    assert_eq!(find(&["-mtime", "2", "-print0"]), ["aze:/a/tmp/2\n"]);
    assert_eq!(find(&["-mtime", "+8", "-print0"]), ["aze:/a/9", "aze:/b/tmp9"]);
    assert_eq!(find(&["-mtime", "+9", "-print0"]), [""; 0]);
    assert_eq!(place.aze(&["find", "aze:/", "-path", "aze:/a/*", "--count"]).ok().out, "4\n");
    let both = place.aze(&["find", "aze:/", "-print0", "--json"]);
    assert_eq!(both.code, 2, "{}", both.err);
}

/// `-delete` removes found files, and found directories once they are empty; the rest stays, and so does the root.
#[test]
fn what_is_found_is_removed() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let mount = place.mount();
    fs::create_dir_all(mount.join("a/b/c")).expect("directories");
    for name in ["a/old1", "a/b/old2", "a/b/c/old3", "a/kept"] {
        File::create(mount.join(name)).expect("a file");
    }
    let left = || {
        let mut left: Vec<String> = place.aze(&["find", "aze:/"]).ok().out.lines().map(str::to_owned).collect();
        left.sort();
        left
    };
    place.aze(&["find", "aze:/", "-name", "old*", "-delete"]).ok();
    assert_eq!(left(), ["aze:/", "aze:/a", "aze:/a/b", "aze:/a/b/c", "aze:/a/kept"]);
    // As with find(1): a directory with something in it stays, and that is said.
    let full = place.aze(&["find", "aze:/", "-type", "d", "-delete"]).code(1);
    assert!(full.err.contains("remove aze:/a: ") && full.err.contains("not empty"), "{}", full.err);
    assert_eq!(left(), ["aze:/", "aze:/a", "aze:/a/kept"]);
    place.aze(&["find", "aze:/", "-delete"]).ok();
    assert_eq!(left(), ["aze:/"]);
    place.aze(&["find", "aze:/", "-delete", "-print0"]).code(2);
}
