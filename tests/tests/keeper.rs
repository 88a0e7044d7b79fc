//! The server that keeps the map dies or leaves, and another one keeps it.

use aze_tests::servers::pids;
use aze_tests::{Place, wait_until};
use std::fs;
use std::path::Path;

/// Directories of which each has a directory that is renamed: of some of them all that this needs is on one or two servers.
const COUNT: usize = 24;

fn kill(pid: u32) {
    // SAFETY: it takes no memory.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) }, 0, "{pid}");
}

fn status(place: &Place, name: &str) -> serde_json::Value {
    let ran = place.aze(&["status", "--name", name, "--json"]);
    serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {} {}", ran.out, ran.err))
}

/// Renames a directory below each, side by side, since what needs a dead server waits for it for a moment; gives which it could.
fn rename(mount: &Path, from: &str, to: &str) -> Vec<usize> {
    let at = |index: usize, name: &str| mount.join(format!("p{index}/{name}"));
    std::thread::scope(|scope| {
        let tries: Vec<_> = (0..COUNT)
            .map(|index| (index, scope.spawn(move || fs::rename(at(index, from), at(index, to)).is_ok())))
            .collect();
        tries.into_iter().filter_map(|(index, done)| done.join().expect("no panic").then_some(index)).collect()
    })
}

/// The keeper dies, and then the next one: directories are renamed through a mount all the same.
#[test]
fn directories_are_renamed_when_keepers_have_died() {
    let mut place = Place::new();
    place.aze(&["up", "--name", "v", "--servers", "4", "--size", "400M"]).ok();
    let mount = place.mount();
    (0..COUNT).for_each(|index| fs::create_dir_all(mount.join(format!("p{index}/d0"))).expect("a directory"));
    let told = status(&place, "v");
    assert_eq!((&told["keeper"], told["group"].as_array().map(Vec::len)), (&0.into(), Some(3)), "{told}");
    for (round, living) in [(0, 3), (1, 2)] {
        let server = pids(&place, "v")[round];
        kill(server);
        let (from, to) = (format!("d{round}"), format!("d{}", round + 1));
        let mut renamed = Vec::new();
        wait_until("directories are renamed again", || {
            renamed = rename(&mount, &from, &to);
            !renamed.is_empty()
        });
        let told = status(&place, "v");
        let keeper = told["keeper"].as_u64().expect("a keeper");
        assert!(keeper > round as u64, "{told}");
        assert_eq!(told["group"].as_array().map(Vec::len), Some(if living < 3 { 1 } else { 3 }), "{told}");
    }
    let shown = place.aze(&["status", "--name", "v"]).out;
    assert!(shown.contains("keeper: server "), "{shown}");
}

/// Nobody uses the volume when its keeper dies: the servers of its machine see that, and commands learn of it.
#[test]
fn the_end_of_the_keeper_is_seen_without_programs() {
    let place = Place::new();
    place.aze(&["up", "--name", "v", "--servers", "3", "--size", "300M"]).ok();
    kill(pids(&place, "v")[0]);
    let mut told = serde_json::Value::Null;
    wait_until("another server keeps the map", || {
        told = status(&place, "v");
        told["keeper"] != 0
    });
    assert_eq!(told["group"].as_array().map(Vec::len), Some(1), "of two that are left one decides: {told}");
}

/// The server that keeps the map is like any other.
#[test]
fn the_keeper_leaves() {
    let mut place = Place::new();
    place.aze(&["up", "--name", "v", "--servers", "3", "--size", "300M"]).ok();
    let mount = place.mount();
    for index in 0..COUNT {
        fs::create_dir_all(mount.join(format!("p{index}/d0"))).expect("a directory");
        fs::write(mount.join(format!("p{index}/f")), [7; 10_000]).expect("written");
    }
    place.aze(&["shrink", "--name", "v", "--servers", "0"]).ok();
    assert_eq!(status(&place, "v")["keeper"], 1);
    assert_eq!(rename(&mount, "d0", "d1").len(), COUNT, "nothing is lost");
    (0..COUNT).for_each(|index| {
        assert_eq!(fs::read(mount.join(format!("p{index}/f"))).expect("read"), [7; 10_000]);
    });
    place.aze(&["grow", "--name", "v", "--servers", "2"]).ok();
    let told = status(&place, "v");
    assert_eq!((&told["keeper"], told["group"].as_array().map(Vec::len)), (&1.into(), Some(3)), "{told}");
    assert_eq!(rename(&mount, "d1", "d2").len(), COUNT);
    place.aze(&["shrink", "--name", "v", "--servers", "1,2"]).ok();
    assert_eq!(rename(&mount, "d2", "d3").len(), COUNT);
}
