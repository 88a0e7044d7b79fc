//! How often a mount asks a server of its own node: every request costs a program two wake-ups.

use aze_tests::Place;
use aze_tests::python::python;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const FILES: u64 = 300;

/// A volume of one server, and a directory on a mount of it in which names have been looked up.
struct Mounted {
    place: Place,
    volume: String,
    dir: PathBuf,
}

impl Mounted {
    fn new() -> Mounted {
        Mounted::of(|_| Vec::new())
    }

    /// With further settings of the volume.
    fn of(settings: impl FnOnce(&Place) -> Vec<String>) -> Mounted {
        let mut place = Place::new();
        let settings = settings(&place);
        let args = ["--servers", "1"].into_iter().chain(settings.iter().map(String::as_str));
        let volume = place.up(&args.collect::<Vec<_>>());
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

/// Programs of one node that read the same file need not each ask its server, at once or one after the other, large or small.
#[test]
fn one_file_is_opened_for_many_processes_by_two_requests() {
    const PROCESSES: usize = 32;
    let mounted = Mounted::new();
    for (name, bytes) in [("small", 1000), ("large", 3 << 20)] {
        let path = mounted.dir.join(name);
        fs::write(&path, vec![b'a'; bytes]).expect("written");
        for at_once in [true, false] {
            let (before, began) = (mounted.asked(), Instant::now());
            let script = if at_once {
                "for i in $(seq 32); do cat $0 & done | wc -c; wait"
            } else {
                "for i in $(seq 32); do cat $0; done | wc -c"
            };
            let ran = aze_tests::run(Command::new("sh").arg("-c").arg(script).arg(&path)).ok();
            assert_eq!(ran.out.trim(), (PROCESSES * bytes).to_string());
            let after = mounted.asked();
            let opens = |asked: &BTreeMap<String, u64>| asked.get("OpenWith").copied().unwrap_or(0);
            let asked = opens(&after) - opens(&before);
            // Those that come before the second has been answered ask, too; and one that comes more than a second after the last.
            let (least, most) = if at_once { (1, PROCESSES as u64 - 1) } else { (0, 2 + began.elapsed().as_secs()) };
            assert!(
                (least..=most).contains(&asked),
                "{name}, at once {at_once}: {asked} opens, {before:?} and then {after:?}"
            );
        }
    }
}

/// Programs ask for several extended attributes of each file, and nearly no file has any: also where the mount reads
/// nothing of the server's memory (a volume in directories).
#[test]
fn a_listing_asks_for_no_extended_attributes_of_files_that_have_none() {
    const LISTED: usize = 100;
    const LOOK: &str = r#"
has = sys.argv[2].endswith('with')
entries = list(os.scandir(sys.argv[1]))
assert len(entries) == 100, len(entries)
for entry in entries:
    entry.stat()
    for attribute in ['security.selinux', 'system.posix_acl_access', 'system.posix_acl_default', 'trusted.none']:
        assert name(os.getxattr, entry.path, attribute) == 'ENODATA', (entry.name, attribute)
    assert os.listxattr(entry.path) == (['user.a'] if has and entry.name == 'f7' else []), entry.name
"#;
    /// A program's own changes of a directory that was said to have no attributes.
    const OWN_ARE_SEEN: &str = r#"
import struct
acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in
    [(1, 7, 2**32 - 1), (2, 5, 1001), (4, 5, 2**32 - 1), (16, 5, 2**32 - 1), (32, 5, 2**32 - 1)])
for attribute, value in [('security.a', b'label'), ('system.posix_acl_access', acl)]:
    os.stat(sys.argv[1])
    assert name(os.getxattr, sys.argv[1], attribute) == 'ENODATA'
    os.setxattr(sys.argv[1], attribute, value)
    assert os.getxattr(sys.argv[1], attribute) == value, attribute
    os.removexattr(sys.argv[1], attribute)
    assert name(os.getxattr, sys.argv[1], attribute) == 'ENODATA'
"#;
    let stored = |place: &Place| vec!["--storage".to_string(), place.path("storage").display().to_string()];
    for mounted in [Mounted::new(), Mounted::of(stored)] {
        for number in 0..LISTED {
            fs::write(mounted.dir.join(format!("f{number}")), "x").expect("a file");
        }
        let asked = || {
            let asked = mounted.asked();
            asked.get("GetXattr").unwrap_or(&0) + asked.get("ListXattr").unwrap_or(&0)
        };
        let list = |what: &str| {
            let ran = aze_tests::run(Command::new("sh").arg("-c").arg("ls -l f*").current_dir(&mounted.dir)).ok();
            assert_eq!(ran.out.lines().filter(|line| line.contains(" f")).count(), LISTED, "{}", ran.out);
            python(LOOK, &[&mounted.dir, Path::new(what)]);
        };
        // 'aze status', which counts, asks the root whether the volume keeps an account.
        let by_counting = {
            let before = asked();
            asked() - before
        };
        assert!(by_counting <= 1, "{by_counting}");
        let before = asked();
        list("without");
        assert_eq!(asked() - before, by_counting, "requests for attributes of files that have none");
        // A directory that was just looked at is asked for its default list, from which new names get their rights, and for nothing else.
        let before = asked();
        let ran = aze_tests::run(Command::new("sh").args(["-c", "ls -ld ."]).current_dir(&mounted.dir)).ok();
        assert_eq!(ran.out.lines().count(), 1);
        assert_eq!(asked() - before - by_counting, 1, "requests for attributes of a directory that has none");
        // A new file has none either, and a copy's program asks its original.
        let before = asked();
        aze_tests::run(Command::new("sh").args(["-c", "cp -p f1 ../copy"]).current_dir(&mounted.dir)).ok();
        assert_eq!(asked() - before, by_counting, "requests for attributes of a file that is copied");
        python(OWN_ARE_SEEN, &[&mounted.dir]);
        python("os.setxattr(sys.argv[1] + '/f7', 'user.a', b'b')", &[&mounted.dir]);
        let before = asked();
        list("with");
        // ls asks for as many as it likes.
        let more = asked() - before - by_counting;
        assert!((5..=12).contains(&more), "{more} requests for the attributes of one file that has one");
    }
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
