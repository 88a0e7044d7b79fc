//! The server that keeps the map dies or leaves, and another one keeps it.

use aze_tests::servers::pids;
use aze_tests::{Place, wait_until};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// So many directories each have a directory that is renamed: for some of them one or two servers have all that this
/// needs.
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

/// No program uses the volume when its keeper dies: the servers of its machine see that, and commands learn of it.
#[test]
fn the_end_of_the_keeper_is_seen_without_programs() {
    let place = Place::new();
    place.aze(&["up", "--name", "v", "--servers", "3", "--size", "300M"]).ok();
    kill(pids(&place, "v")[0]);
    // Each waits 10 s for a server that is not known to have ended.
    let told =
        (0..6).map(|_| status(&place, "v")).find(|told| told["keeper"] != 0).expect("another server keeps the map");
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

fn has_all(mount: &Path) {
    (0..COUNT).for_each(|index| {
        let path = mount.join(format!("p{index}/f"));
        let read = fs::read(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        assert!(read == vec![index as u8; 10_000 + index], "{}", path.display());
    });
}

/// Renames each directory from whichever of the names it has.
fn rename_all(mount: &Path, from: &[&str], to: &str) {
    let mut renamed: Vec<usize> = from.iter().flat_map(|from| rename(mount, from, to)).collect();
    renamed.sort_unstable();
    assert_eq!(renamed, (0..COUNT).collect::<Vec<_>>(), "{from:?} to {to}");
}

/// Server 0 of a volume in directories is killed, and directories are renamed; it comes back like any other; all are started again, and the volume
/// grows.
#[test]
fn server_0_of_a_volume_in_directories_dies_and_comes_back() {
    let mut place = Place::new();
    place.allow(Duration::from_secs(400));
    let storage = place.path("storage").display().to_string();
    place.up(&["--name", "v", "--servers", "3", "--storage", &storage]);
    let mount = place.mount();
    for index in 0..COUNT {
        fs::create_dir_all(mount.join(format!("p{index}/d0"))).expect("a directory");
        fs::write(mount.join(format!("p{index}/f")), vec![index as u8; 10_000 + index]).expect("written");
    }
    for server in [0, 1] {
        let (from, to) = (format!("d{server}"), format!("d{}", server + 1));
        kill(pids(&place, "v")[server]);
        wait_until("directories are renamed again", || !rename(&mount, &from, &to).is_empty());
        let told = status(&place, "v");
        assert_ne!(told["keeper"], server, "{told}");
        let back = place.aze(&["restart", "--name", "v", "--server", &server.to_string()]).ok();
        assert!(back.err.contains(&format!("server {server} is back")), "{}", back.err);
        let told = status(&place, "v");
        let group = told["group"].as_array().expect("a group");
        assert!(group.len() == 3 && group.iter().all(|member| member["state"] == "up"), "{told}");
        has_all(&mount);
        let rest = rename(&mount, &from, &to);
        assert!(rest.len() < COUNT, "some were renamed before");
    }
    rename_all(&mount, &["d2"], "d3");
    place.aze(&["restart", "--name", "v", "--force"]).ok();
    has_all(&mount);
    rename_all(&mount, &["d3"], "d4");
    place.aze(&["grow", "--name", "v", "--servers", "1"]).ok();
    has_all(&mount);
    rename_all(&mount, &["d4"], "d5");
    assert_eq!(status(&place, "v")["keeper"], 0);
    place.aze(&["down", "--name", "v", "--force"]).ok();
    let checked = place.aze(&["check", &storage]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    place.up(&["--name", "v", "--servers", "4", "--storage", &storage]);
    let mount = place.mount();
    has_all(&mount);
}
