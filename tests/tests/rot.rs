//! Directories of a volume on disks that change bits, or write and read in the wrong place: `aze check`
//! finds it, a start refuses it or goes on, and no reader ever gets a byte that was never written.
//!
//! `AZE_TEST_SEED` seeds the random choices.

use aze_tests::{Draw, Place, long, run};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Changes that are looked for with `aze check`.
const CHECKS: u64 = 60;
const CHECKS_LONG: u64 = 20_000;

/// Changes under which a volume is started, and read.
const STARTS: u64 = 8;
const STARTS_LONG: u64 = 500;

/// Files in each of two trees: one that checkpoints name, one in the journals.
const FILES: usize = 30;

/// What a segment of this test uses of its length, in bytes: more than there are data.
const SEGMENT_USED_BYTES: usize = 24 << 20;

/// The record that a clean end writes is no longer than this, in bytes.
const END_BYTES_MAX: usize = 64;

/// What disks write and read at once, in bytes.
const BLOCK: u64 = 4096;

/// A change of a file, which can be taken back.
struct Damage {
    path: PathBuf,
    at: u64,
    before: Vec<u8>,
    what: String,
}

impl Damage {
    fn flip(path: &Path, at: u64, bit: u8) -> Damage {
        let mut byte = [0];
        let file = File::open(path).expect("a file");
        file.read_exact_at(&mut byte, at).expect("within its length");
        Damage::write(path, at, vec![byte[0] ^ 1 << bit], format!("bit {bit} of byte {at}"))
    }

    /// The block at `at` has what belongs to `from`.
    fn misdirect(path: &Path, at: u64, from: u64, len: u64) -> Damage {
        let mut bytes = vec![0; len as usize];
        File::open(path).expect("a file").read_exact_at(&mut bytes, from).expect("within its length");
        Damage::write(path, at, bytes, format!("{len} bytes at {at} are those of {from}"))
    }

    fn write(path: &Path, at: u64, bytes: Vec<u8>, what: String) -> Damage {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("a file");
        let mut before = vec![0; bytes.len()];
        file.read_exact_at(&mut before, at).expect("within its length");
        file.write_all_at(&bytes, at).expect("within its length");
        Damage { path: path.into(), at, before, what }
    }

    fn undo(&self) {
        let file = OpenOptions::new().write(true).open(&self.path).expect("a file");
        file.write_all_at(&self.before, self.at).expect("within its length");
    }

    fn text(&self) -> String {
        format!("{}: {}", self.path.display(), self.what)
    }
}

/// What the directories have, and where.
struct Stored {
    /// Journals, checkpoints, manifests, lists of starts and promises about the map, and how much of them must be as it is.
    whole: Vec<(PathBuf, u64)>,
    /// Places of segments that have data: the file, the place, and its length.
    places: Vec<(PathBuf, u64, u64)>,
}

fn bytes_of(draw: &mut Draw, len: u64) -> Vec<u8> {
    (0..len.div_ceil(8)).flat_map(|_| draw.word().to_le_bytes()).take(len as usize).collect()
}

fn up(place: &Place, storage: &str) -> aze_tests::Ran {
    let words = ["up", "--name", "v", "--servers", "2", "--size", "160M", "--chunk-size", "64K", "--storage", storage];
    place.aze(&words)
}

/// Makes a volume of two trees, the old one in segments; gives the bytes of all files.
fn make(place: &Place, draw: &mut Draw) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for tree in ["old", "new"] {
        let local = place.path(tree);
        fs::create_dir(&local).expect("a directory");
        for number in 0..FILES {
            let len = match draw.below(3) {
                0 => draw.below(300) + 64,
                1 => draw.below(20_000) + 64,
                _ => draw.below(200_000) + 64,
            };
            let bytes = bytes_of(draw, len);
            fs::write(local.join(format!("f{number}")), &bytes).expect("a file");
            files.insert(format!("{tree}/f{number}"), bytes);
        }
        up(place, "storage").ok();
        place.aze(&["cp", "-r", &local.display().to_string(), &format!("aze:/{tree}")]).ok();
        place.aze(&["down", "--name", "v"]).ok();
    }
    files
}

fn stored(place: &Place, files: &BTreeMap<String, Vec<u8>>) -> Stored {
    let mut stored = Stored { whole: Vec::new(), places: Vec::new() };
    for server in 0..2 {
        for entry in fs::read_dir(place.path(&format!("storage/server-{server}"))).expect("a directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if name == "in-use" {
                continue;
            }
            if !name.starts_with("data-") {
                let len =
                    if is_journal(&path) { end_of_journal(&path) } else { fs::metadata(&path).expect("a file").len() };
                stored.whole.push((path, len));
                continue;
            }
            let mut bytes = vec![0; SEGMENT_USED_BYTES];
            File::open(&path).expect("a segment").read_exact_at(&mut bytes, 0).expect("within its length");
            let blocks: BTreeMap<&[u8], u64> =
                bytes.chunks(BLOCK as usize).map(|block| &block[..64]).zip(0..).collect();
            for data in files.iter().filter(|(name, _)| name.starts_with("old")).map(|(_, data)| data) {
                for block in data.chunks(BLOCK as usize).filter(|block| block.len() >= 64) {
                    if let Some(number) = blocks.get(&block[..64]) {
                        stored.places.push((path.clone(), number * BLOCK, block.len() as u64));
                    }
                }
            }
        }
    }
    assert!(stored.places.len() > FILES, "{} places", stored.places.len());
    // Of each server: volume, group, starts, checkpoint and journal. Of the one that is not its home: the rights of the root.
    assert_eq!(stored.whole.len(), 2 * 5 + 1, "{:?}", stored.whole);
    stored
}

fn is_journal(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-"))
}

/// The end of a journal's indispensable bytes: they precede the record that says that all of it was durable,
/// and the zeros behind that, which are room. Every record begins as the first one does.
fn end_of_journal(path: &Path) -> u64 {
    let bytes = fs::read(path).expect("a journal");
    let last = bytes.windows(4).rposition(|four| four == &bytes[..4]).expect("the first record");
    assert!(last > 0 && bytes[last + END_BYTES_MAX..].iter().all(|byte| *byte == 0), "{}", path.display());
    last as u64
}

/// A random fault of a disk; never in bytes that a volume can do without.
fn damage(stored: &Stored, draw: &mut Draw) -> Damage {
    let kind = draw.below(4);
    let place = |draw: &mut Draw| stored.places[draw.below(stored.places.len() as u64) as usize].clone();
    if kind < 2 {
        let (path, at, len) = place(draw);
        // Another block of the same segment.
        let others: Vec<u64> =
            stored.places.iter().filter(|(other, there, _)| *other == path && *there != at).map(|at| at.1).collect();
        return match kind {
            0 => Damage::flip(&path, at + draw.below(len), draw.below(8) as u8),
            _ => Damage::misdirect(&path, at, others[draw.below(others.len() as u64) as usize], BLOCK),
        };
    }
    let (path, len) = &stored.whole[draw.below(stored.whole.len() as u64) as usize];
    let len = *len;
    let blocks = len / BLOCK;
    if kind == 2 || blocks < 2 {
        return Damage::flip(path, draw.below(len), draw.below(8) as u8);
    }
    let at = draw.below(blocks);
    let from = (at + 1 + draw.below(blocks - 1)) % blocks;
    Damage::misdirect(path, at * BLOCK, from * BLOCK, BLOCK)
}

fn seed() -> u64 {
    std::env::var("AZE_TEST_SEED").ok().map_or(1, |text| text.parse().expect("a number"))
}

#[test]
fn no_damage_of_a_directory_is_overlooked() {
    let (place, mut draw) = (Place::new(), Draw::new(seed(), 1));
    let files = make(&place, &mut draw);
    let stored = stored(&place, &files);
    let well = place.aze(&["check", "storage"]).ok();
    assert!(well.err.contains("all is well"), "{}", well.err);
    // The last bytes before the record of the clean end.
    for (path, len) in stored.whole.iter().filter(|(path, _)| is_journal(path)) {
        let damage = Damage::flip(path, len - 20, 3);
        let found = place.aze(&["check", "storage"]);
        assert!(matches!(found.code, 1 | 2), "{}: aze check: {}{}", damage.text(), found.out, found.err);
        damage.undo();
    }
    for number in 0..if long() { CHECKS_LONG } else { CHECKS } {
        let damage = damage(&stored, &mut draw);
        let found = place.aze(&["check", "storage"]);
        let who = format!("AZE_TEST_SEED={}, change {number}, {}", seed(), damage.text());
        assert!(matches!(found.code, 1 | 2), "{who}: aze check says {}: {}{}", found.code, found.out, found.err);
        let said = format!("{}{}", found.out, found.err);
        let is_named = said.contains("server-0") || said.contains("server-1") || said.contains("checksum: /");
        assert!(is_named, "{who}: it does not say where: {said}");
        damage.undo();
    }
    place.aze(&["check", "storage"]).ok();
}

#[test]
fn nothing_that_has_changed_is_served() {
    let (mut place, mut draw) = (Place::new(), Draw::new(seed(), 2));
    let files = make(&place, &mut draw);
    let stored = stored(&place, &files);
    let (mut refused, mut unreadable) = (0, 0);
    if long() {
        place.allow(Duration::from_secs(3600));
    }
    for number in 0..if long() { STARTS_LONG } else { STARTS } {
        let damage = damage(&stored, &mut draw);
        let who = format!("AZE_TEST_SEED={}, start {number}, {}", seed(), damage.text());
        let copy = format!("copy-{number}");
        let (from, to) = (place.path("storage"), place.path(&copy));
        run(Command::new("cp").args(["-r", "--sparse=always"]).arg(&from).arg(&to));
        damage.undo();
        let started = up(&place, &copy);
        if started.code != 0 {
            let is_named = started.err.contains("server-0") || started.err.contains("server-1");
            assert!(is_named, "{who}: it does not say where: {}", started.err);
            refused += 1;
        } else {
            let mount = place.mount();
            let mut told = None;
            for (name, bytes) in &files {
                match fs::read(mount.join(name)) {
                    Ok(read) => assert!(read == *bytes, "{who}: {name} has other bytes"),
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{who}: {name}: {error}");
                        told = Some(name);
                        unreadable += 1;
                    }
                }
            }
            if let Some(name) = told {
                let said = place.aze(&["cat", &format!("aze:/{name}")]).err;
                let tells = ["checksum", "chunk", "server"].iter().all(|word| said.contains(word));
                assert!(tells, "{who}: {name}: {said}");
            }
            place.aze(&["umount", &mount.display().to_string()]).ok();
            place.aze(&["down", "--name", "v"]).ok();
        }
        fs::remove_dir_all(place.path(&copy)).expect("the copy can be removed");
    }
    println!("{refused} starts were refused, {unreadable} files were");
    assert!(refused > 0 && unreadable > 0, "{refused} starts and {unreadable} files were refused");
}
