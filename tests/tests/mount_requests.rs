//! How often a mount asks a server of its own node: every request costs a program two wake-ups.

use aze_tests::Place;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

const FILES: u64 = 300;

/// A volume of one server, and a directory on a mount of it in which names have been looked up.
struct Mounted {
    place: Place,
    volume: String,
    dir: PathBuf,
}

impl Mounted {
    fn new() -> Mounted {
        let mut place = Place::new();
        let volume = place.up(&["--servers", "1"]);
        let dir = place.mount().join("d");
        fs::create_dir(&dir).expect("a directory");
        for number in 0..4 {
            assert!(fs::metadata(dir.join(format!("x{number}"))).is_err());
        }
        Mounted { place, volume, dir }
    }

    /// Requests of each kind by now, but for closes, which nobody waits for.
    fn asked(&self) -> BTreeMap<String, u64> {
        let out = self.place.aze(&["status", "--json", "--name", &self.volume]).ok().out;
        let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let requests = status["servers"][0]["requests"].as_object().expect("counters").clone();
        let counts = requests.into_iter().map(|(kind, count)| (kind, count.as_u64().expect("a count")));
        // What stands in brackets are no requests; status asks for itself.
        counts.filter(|(kind, _)| !kind.starts_with('(') && kind != "Close" && kind != "Status").collect()
    }

    /// Does something with each file, which takes about so many requests in all.
    fn takes(&self, what: &str, expected: u64, mut each: impl FnMut(PathBuf)) {
        let before = self.asked();
        for number in 0..FILES {
            each(self.dir.join(format!("f{number}")));
        }
        let after = self.asked();
        let kinds: BTreeMap<&String, u64> =
            after.iter().map(|(kind, count)| (kind, count - before.get(kind).unwrap_or(&0))).collect();
        let total: u64 = kinds.values().sum();
        // A few for what is asked once a second, and for names that share a counter.
        assert!((expected..=expected + FILES / 5).contains(&total), "{what}: {total} requests, {kinds:?}");
    }
}

#[test]
fn an_operation_on_a_mount_takes_one_request_at_most() {
    let mounted = Mounted::new();
    mounted.takes("create", FILES, |path| drop(fs::File::create_new(path).expect("a new file")));
    mounted.takes("stat", 0, |path| assert_eq!(fs::metadata(path).expect("a file").len(), 0));
    mounted.takes("stat of what is not there", 0, |path| {
        assert!(fs::metadata(path.with_extension("none")).is_err());
    });
    mounted.takes("open, cut, write", 3 * FILES, |path| fs::write(path, "some bytes").expect("written"));
    mounted.takes("open, read, close", FILES, |path| {
        let mut text = String::new();
        fs::File::open(path).expect("a file").read_to_string(&mut text).expect("read");
        assert_eq!(text, "some bytes");
    });
    mounted.takes("unlink", FILES, |path| fs::remove_file(path).expect("removed"));
    mounted.takes("mkdir", FILES, |path| fs::create_dir(path).expect("a directory"));
}
