//! How often a mount asks a server of its own node: every request costs a program two wake-ups.

use aze_tests::Place;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
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

    /// Requests of each kind by now, but for closes, which no program waits for.
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
        // A few for answers that are asked for once a second, and for names that share a counter.
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

/// Records that begin within a page, as of an array that many processes write: the kernel's cache splits each in two.
#[test]
fn a_record_of_one_of_several_writers_is_one_write() {
    const RECORD: usize = 47_008;
    const COUNT: usize = 200;
    let mounted = Mounted::new();
    let path = mounted.dir.join("shared");
    let first = File::options().read(true).write(true).create_new(true).open(&path).expect("a new file");
    let second = |read| File::options().read(read).write(true).open(&path).expect("another open");
    let seconds = [second(false), second(true)];
    // A page that the cache has whole is not split.
    first.set_len((COUNT * RECORD) as u64).expect("a length");
    let record = |index: usize| vec![(index % 251) as u8; RECORD];
    std::thread::scope(|scope| {
        for (turn, second) in seconds.iter().enumerate() {
            scope.spawn(move || {
                for index in (turn..COUNT).step_by(2) {
                    second.write_all_at(&record(index), (index * RECORD) as u64).expect("a write");
                }
            });
        }
    });
    let writes = mounted.asked()["Write"];
    // A record that reaches into another chunk is sent in two.
    let chunks = (COUNT * RECORD).div_ceil(1 << 20);
    assert!((COUNT..=COUNT + chunks).contains(&(writes as usize)), "{writes} requests to write {COUNT} records");
    let mut read = vec![0; RECORD];
    for index in 0..COUNT {
        first.read_exact_at(&mut read, (index * RECORD) as u64).expect("a read");
        assert!(read == record(index), "record {index} through the cache");
        seconds[1].read_exact_at(&mut read, (index * RECORD) as u64).expect("a read");
        assert!(read == record(index), "record {index} past the cache");
    }
}

/// `--direct-io`: each read and write of a program is a request, also of a file's only writer, and a repeated read.
#[test]
fn a_mount_without_page_cache_asks_for_what_programs_ask_for() {
    const RECORD: usize = 47_008;
    const COUNT: usize = 20;
    let mut place = Place::new();
    let volume = place.up(&["--servers", "1"]);
    let dir = place.mount_with(&["--direct-io"]);
    let mounted = Mounted { place, volume, dir };
    let file = File::options().read(true).write(true).create_new(true).open(mounted.dir.join("f")).expect("a new file");
    let before = mounted.asked();
    let mut read = vec![0; RECORD];
    for index in 0..COUNT {
        let record = vec![index as u8; RECORD];
        file.write_all_at(&record, (index * RECORD) as u64).expect("a write");
        for _ in 0..2 {
            file.read_exact_at(&mut read, (index * RECORD) as u64).expect("a read");
            assert!(read == record, "record {index}");
        }
    }
    let after = mounted.asked();
    let asked = |kind: &str| (after[kind] - before.get(kind).unwrap_or(&0)) as usize;
    // All are in the file's first chunk.
    assert_eq!((asked("Write"), asked("Read")), (COUNT, 2 * COUNT));
}
