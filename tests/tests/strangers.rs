//! Users of the same machine who do not know the secret: connections that they open, and files that they put where a
//! server keeps its storage.

use aze_tests::{Place, set_mode, wait_until, watchdog};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Descriptors that the servers of the test may have.
const DESCRIPTORS: usize = 256;

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count())
}

#[test]
fn connections_without_the_secret_leave_the_server_its_descriptors() {
    let place = Place::new();
    let up = place.command(&["up", "--name", "v", "--servers", "1", "--size", "128M", "--storage", "storage"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {DESCRIPTORS} && exec \"$@\""), "sh"]);
    limited.arg(up.get_program()).args(up.get_args()).current_dir(&place.dir);
    limited.envs(up.get_envs().filter_map(|(name, value)| Some((name, value?))));
    aze_tests::run(&mut limited);
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("run/v/volume.json")).expect("a record")).expect("JSON");
    let addresses = record["servers"][0]["addresses"].as_array().expect("addresses");
    let addr = addresses.iter().find_map(|addr| addr.as_str()?.strip_prefix("tcp:")).expect("one of TCP").to_owned();
    let pids = watchdog::of_volumes(&place.dir);
    assert_eq!(pids.len(), 1, "{pids:?}");
    let pid = pids.into_iter().next().expect("one");
    let before = descriptors(pid);
    let (is_over, connected) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut most = 0;
    std::thread::scope(|scope| {
        // They send nothing, stay open for a while, and come again.
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let all: Vec<TcpStream> = (0..2 * DESCRIPTORS).filter_map(|_| TcpStream::connect(&addr).ok()).collect();
                connected.fetch_add(all.len(), Ordering::SeqCst);
            }
        });
        wait_until("strangers come", || connected.load(Ordering::SeqCst) > 4 * DESCRIPTORS);
        for number in 0..20 {
            place.aze(&["mkdir", &format!("aze:/d{number}")]).ok();
            most = most.max(descriptors(pid));
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert!(most > before, "{most} and {before}");
    assert!(most <= DESCRIPTORS - DESCRIPTORS / 4 + 8, "{most} descriptors of {DESCRIPTORS}");
    wait_until("the descriptors are free again", || descriptors(pid) <= before + 8);
    place.aze(&["down", "--name", "v"]).ok();
    let again = place.aze(&["up", "--name", "v", "--servers", "1", "--size", "128M", "--storage", "storage"]);
    again.ok();
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out.lines().count(), 20);
}

#[test]
fn directories_that_another_user_may_write_to_are_refused() {
    let place = Place::new();
    let part = place.path("storage/server-0");
    let refused = |what: &str| {
        let ran = place.aze(&["up", "--name", "v", "--servers", "1", "--size", "128M", "--storage", "storage"]);
        assert!(ran.code != 0 && ran.err.contains(what), "{what}: {} {}", ran.code, ran.err);
    };
    fs::create_dir_all(&part).expect("a directory");
    set_mode(&part, 0o777);
    refused("others may write to it (mode 777): chmod go-w");
    set_mode(&part, 0o700);
    let victim = place.path("victim");
    fs::write(&victim, "what is not the volume's").expect("a file");
    symlink(&victim, part.join("log-0000000001")).expect("a link");
    refused("it is no file of the server's own");
    fs::remove_file(part.join("log-0000000001")).expect("it is removed");
    fs::hard_link(&victim, part.join("in-use")).expect("a name");
    refused("it is no file of the server's own");
    fs::remove_file(part.join("in-use")).expect("it is removed");
    // Only root can give the directory to another user.
    if std::os::unix::fs::chown(&part, Some(65534), None).is_ok() {
        refused("it belongs to user 65534");
        std::os::unix::fs::chown(&part, Some(0), None).expect("it is taken back");
    }
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "what is not the volume's");
    place.aze(&["up", "--name", "v", "--servers", "1", "--size", "128M", "--storage", "storage"]).ok();
}
