//! A volume whose servers have several directories each, on the real program: it comes back from them in any
//! order, a missing or foreign directory is refused by its name, and a full one leaves its part to the others.

use aze_tests::disk::Disk;
use aze_tests::{Place, Ran, leave_out, make_tree, run};
use std::fs;
use std::path::Path;
use std::process::Command;

fn try_up(place: &Place, name: &str, servers: &str, storage: &str) -> Ran {
    let paths: Vec<String> = storage.split(',').map(|dir| place.path(dir).display().to_string()).collect();
    let words = ["up", "--name", name, "--servers", servers, "--size", "160M", "--storage", &paths.join(",")];
    place.aze(&words)
}

fn up(place: &Place, storage: &str) {
    try_up(place, "v", "2", storage).ok();
}

/// The processes of the servers.
fn pids(place: &Place) -> Vec<i32> {
    let text = fs::read(place.path("run/v/volume.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let servers = record["servers"].as_array().expect("servers");
    servers.iter().map(|server| server["process"]["pid"].as_u64().expect("a pid") as i32).collect()
}

fn kill(pid: i32) {
    aze_tests::signal(pid as u32, libc::SIGKILL);
}

fn segments(dir: &Path) -> usize {
    let names = fs::read_dir(dir).expect("a directory").flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with("data-")).count()
}

#[test]
fn a_volume_comes_back_from_several_directories_of_each_server() {
    let place = Place::new();
    let (tree, back) = (place.path("tree"), place.path("back"));
    let [tree_text, back_text] = [&tree, &back].map(|path| path.display().to_string());
    make_tree(&tree, 60);
    let big: Vec<u8> = (0..20_000_000u32).map(|byte| (byte % 251) as u8).collect();
    fs::write(tree.join("big"), big).expect("a file");
    let is_whole = || {
        place.aze(&["cp", "-r", "aze:/tree", &back_text]).ok();
        run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(&back));
        fs::remove_dir_all(&back).expect("it is there");
    };
    up(&place, "a,b,c,d");
    place.aze(&["cp", "-r", &tree_text, "aze:/tree"]).ok();
    pids(&place).into_iter().for_each(kill);
    place.aze(&["down", "--name", "v"]).ok();

    // In another order, under mounts as well as without.
    up(&place, "d,b,c,a");
    is_whole();
    kill(pids(&place)[1]);
    place.aze(&["restart"]).ok();
    is_whole();
    place.aze(&["check"]).ok();
    place.aze(&["down"]).ok();
    for (dir, has_journal) in [("a/server-0", true), ("b/server-0", false), ("c/server-1", true), ("d/server-1", false)]
    {
        let dir = place.path(dir);
        assert!(segments(&dir) > 0, "{}: there are no data", dir.display());
        let has = fs::read_dir(&dir).expect("a directory").flatten().any(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.starts_with("log-") || name.starts_with("state-")
        });
        assert_eq!(has, has_journal, "{}", dir.display());
    }
    place.aze(&["check", "--repair", "b", "a", "d", "c"]).ok();
    let missing = place.aze(&["check", "a", "b", "c"]).code(2);
    assert!(missing.err.contains("directory 1 of the 2 of 1"), "{}", missing.err);

    up(&place, "a,b,c,d");
    is_whole();
    place.aze(&["down", "--delete", "--yes"]).ok();
    for dir in ["a", "b", "c", "d"] {
        assert!(!place.path(dir).exists(), "{dir} is left");
    }
}

#[test]
fn what_does_not_belong_together_is_refused_by_its_name() {
    let place = Place::new();
    for (name, storage) in [("v", "a,b,c,d"), ("w", "e,f,g,h")] {
        try_up(&place, name, "2", storage).ok();
        place.aze(&["down", "--name", name]).ok();
    }
    run(Command::new("cp").arg("-r").args(["b", "copy"].map(|name| place.path(name))));
    let refused = |servers: &str, storage: &str, words: &[&str]| {
        let ran = try_up(&place, "v", servers, storage);
        assert!(ran.code != 0, "{storage}: it is taken");
        words.iter().for_each(|word| assert!(ran.err.contains(word), "{storage}: no '{word}' in\n{}", ran.err));
    };
    refused(
        "2",
        "a,new,c,d",
        &["a/server-0: it holds directory 0 of the 2 of server 0", "number 1 of these is in none"],
    );
    refused(
        "2",
        "new,b,c,d",
        &["b/server-0: it holds directory 1 of the 2 of server 0", "number 0 of these is in none"],
    );
    refused("2", "copy,b,c,d", &["b/server-0", "copy/server-0", "one of them is a copy"]);
    refused("2", "a,f,c,d", &["f/server-0: it holds a part of another volume than", "a/server-0"]);
    refused("2", "a,b,g,h", &["server-1", "it holds a part of another volume than server 0 has"]);
    refused("2", "a,c", &["directory 0 of the 2 of server ", "start the volume as it was made"]);
    refused("2", "a,b,c", &["3 directories for 2 servers", "do not divide", "--servers 1 or 3"]);
    refused("2", "a,b,c,b", &["are the same"]);
    refused("1", "new,newer,a/../new", &["are the same"]);
    fs::write(place.path("file"), "").expect("a file");
    refused("1", "file,new", &["is a file or device", "--servers 2"]);
    assert!(!place.path("new").exists() && !place.path("newer").exists());
    // A directory that has lost its manifest: no server begins its part anew.
    fs::remove_file(place.path("a/server-0/volume")).expect("it is there");
    refused("2", "a,b,c,d", &["number 0 of these is in none"]);
    // What moved is found.
    fs::rename(place.path("h"), place.path("elsewhere")).expect("a rename");
    try_up(&place, "w", "2", "g,elsewhere,e,f").ok();
    place.aze(&["down", "--name", "w"]).ok();
}

#[test]
fn a_directory_that_is_full_leaves_its_part_to_the_others() {
    let place = Place::new();
    let small = match Disk::in_memory(&place, "small", 100 << 20) {
        Ok(disk) => disk,
        Err(why) => return leave_out("directories", &format!("left out, since no tmpfs can be mounted here: {why}")),
    };
    try_up(&place, "v", "1", "large,small").ok();
    let (from, to) = (place.path("from").display().to_string(), place.path("to").display().to_string());
    // More than memory, and than the first segment.
    let word = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    fs::write(&from, (0..400u64 << 17).flat_map(word).collect::<Vec<u8>>()).expect("a file");
    place.aze(&["cp", &from, "aze:/big"]).ok();
    place.aze(&["cp", "aze:/big", &to]).ok();
    run(Command::new("cmp").args([&from, &to]));
    place.aze(&["check"]).ok();
    place.aze(&["down"]).ok();
    assert!(segments(&place.path("large/server-0")) >= 2);
    assert_eq!(segments(&place.path("small/server-0")), 0);
    place.aze(&["check", "large", "small"]).ok();
    small.unmount();
}
