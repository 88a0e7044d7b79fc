//! A volume in directories whose servers have all ended is started without one whose directory is lost (`aze restart --without`), and with
//! that again when it is found.

use aze_tests::{Place, wait_until};
use std::fs;

const SERVERS: usize = 4;
const LOST: usize = 2;
const FILES: usize = 60;

fn pids(place: &Place) -> Vec<u32> {
    let text = fs::read(place.path("run/v/volume.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let servers = record["servers"].as_array().expect("a list");
    servers.iter().map(|server| server["process"]["pid"].as_u64().expect("a pid") as u32).collect()
}

fn kill(place: &Place, servers: &[usize]) {
    let all = pids(place);
    for pid in servers.iter().map(|server| all[*server]) {
        aze_tests::signal(pid, libc::SIGKILL);
        wait_until("the server ends", || !fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()));
    }
}

fn content(number: usize) -> String {
    format!("what is in file {number}\n")
}

/// The files that are read, and those that are EIO; nothing else happens.
fn read_all(place: &Place) -> (Vec<usize>, Vec<usize>) {
    let (mut there, mut away) = (Vec::new(), Vec::new());
    for number in 0..FILES {
        let read = place.aze(&["cat", &format!("aze:/f{number}")]);
        match read.code {
            0 => {
                assert_eq!(read.out, content(number));
                there.push(number);
            }
            _ => {
                assert!(read.err.contains("server 2") && !read.err.contains("does not exist"), "{}", read.err);
                away.push(number);
            }
        }
    }
    (there, away)
}

#[test]
fn a_volume_starts_without_a_server_whose_directory_is_lost_and_with_it_later() {
    let place = Place::new();
    let storage = place.path("storage");
    let (shown, count) = (storage.display().to_string(), SERVERS.to_string());
    place.up(&["--name", "v", "--servers", &count, "--storage", &shown]);
    let tree = place.path("tree");
    fs::create_dir(&tree).expect("a directory");
    for number in 0..FILES {
        fs::write(tree.join(format!("f{number}")), content(number)).expect("a file");
        place.aze(&["cp", &tree.join(format!("f{number}")).display().to_string(), &format!("aze:/f{number}")]).ok();
    }
    let refused = place.aze(&["restart", "--without", "2"]);
    assert!(refused.code != 0 && refused.err.contains("--force"), "servers run: {}", refused.err);
    kill(&place, &[0, 1, 2, 3]);
    let (own, elsewhere) = (storage.join(format!("server-{LOST}")), place.path("elsewhere"));
    fs::rename(&own, &elsewhere).expect("the directory is moved away");
    // No server has said that it is lost.
    let refused = place.aze(&["restart", "--timeout", "10s"]);
    assert!(refused.code != 0, "{}", refused.err);
    assert!(refused.err.contains("aze restart --without 2"), "{}", refused.err);
    let refused = place.aze(&["restart", "--without", "7"]);
    assert!(refused.code != 0 && refused.err.contains("has no server 7"), "{}", refused.err);
    let started = place.aze(&["restart", "--without", "2"]);
    assert_eq!(started.code, 0, "{}", started.err);
    assert!(started.err.contains("3 of 4 servers run again") && started.err.contains("left out: 2"), "{}", started.err);
    let status = place.aze(&["status"]);
    assert!(status.out.contains("server 2 is away"), "{}{}", status.out, status.err);
    let (there, away) = read_all(&place);
    assert!(!there.is_empty() && !away.is_empty(), "{there:?} {away:?}");
    // Names that are there go, and others come.
    place.aze(&["rm", &format!("aze:/f{}", there[0])]).ok();
    let refused = place.aze(&["restart", "--server", "2"]);
    assert!(
        refused.code != 0 && refused.err.contains("was left out when volume 'v' was last started"),
        "{}",
        refused.err
    );
    // The two that are left out now could have started alone.
    kill(&place, &[0, 1, 3]);
    let _ = fs::remove_dir_all(&own);
    fs::rename(&elsewhere, &own).expect("the directory is found");
    let refused = place.aze(&["restart", "--without", "0,1", "--timeout", "20s"]);
    assert!(refused.code != 0 && refused.err.contains("decided about it when it ran last"), "{}", refused.err);
    place.aze(&["restart"]).ok();
    let (there_now, away_now) = read_all_but(&place, there[0]);
    assert_eq!((there_now, away_now), (FILES - 1, 0));
    assert!(pids(&place).len() == SERVERS);
    place.aze(&["check"]).ok();
}

fn read_all_but(place: &Place, removed: usize) -> (usize, usize) {
    let (mut there, mut away) = (0, 0);
    for number in (0..FILES).filter(|number| *number != removed) {
        let read = place.aze(&["cat", &format!("aze:/f{number}")]);
        match read.code {
            0 => there += usize::from(read.out == content(number)),
            _ => away += 1,
        }
    }
    assert_ne!(place.aze(&["cat", &format!("aze:/f{removed}")]).code, 0, "it was removed");
    (there, away)
}
