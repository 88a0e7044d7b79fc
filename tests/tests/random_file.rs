//! One file, many operations in an order drawn from a seed, compared with bytes in memory after each:
//! through one mount with mappings, also by two opens in turns, and through two mounts in turns. A failure names its seed, its
//! operation and the operations before it.

use aze_tests::{Place, long};
use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The file is never longer.
const LENGTH_MAX: u64 = 700_000;
/// Nor is one operation.
const PIECE_MAX: u64 = 150_000;
/// Operations that a failure shows.
const SHOWN: usize = 12;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A file and the bytes that it should hold.
struct Both {
    paths: Vec<PathBuf>,
    /// The path through which it is open.
    at: usize,
    file: File,
    /// Another open of the file, by the same mount: the second open for writing goes past the kernel's cache.
    other: Option<File>,
    model: Vec<u8>,
    random: Random,
    done: Vec<String>,
}

fn open(path: &PathBuf) -> File {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    opened.unwrap_or_else(|error| panic!("open {}: {error}", path.display()))
}

impl Both {
    fn new(paths: Vec<PathBuf>, seed: u64) -> Both {
        let file = open(&paths[0]);
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Both { paths, at: 0, file, other: None, model: Vec::new(), random, done: Vec::new() }
    }

    fn note(&mut self, what: String) {
        self.done.push(what);
    }

    /// Somewhere within the file, or a little beyond its end; often where a page or a chunk begins.
    fn place(&mut self) -> (u64, usize) {
        let limit = (self.model.len() as u64 + 70_000).min(LENGTH_MAX);
        let mut offset = self.random.below(limit);
        if self.random.below(3) == 0 {
            offset &= !0xfff;
        }
        let most = if self.random.below(3) == 0 { 20 } else { PIECE_MAX };
        let length = 1 + self.random.below(most.min(LENGTH_MAX - offset));
        (offset, length as usize)
    }

    /// A range within the file; `None` if the drawn offset is not within it.
    fn part(&mut self) -> Option<(u64, usize)> {
        let (offset, length) = self.place();
        let left = self.model.len().checked_sub(offset as usize).filter(|left| *left > 0)?;
        Some((offset, length.min(left)))
    }

    fn fresh(&mut self, length: usize) -> Vec<u8> {
        let start = self.random.next();
        (0..length as u64).map(|index| (start.wrapping_add(index).wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[offset as usize..end].copy_from_slice(bytes);
    }

    fn write(&mut self) {
        let (offset, length) = self.place();
        let bytes = self.fresh(length);
        self.note(format!("write {length} at {offset}"));
        self.file.write_all_at(&bytes, offset).expect("a write");
        self.put(offset, &bytes);
    }

    fn read(&mut self) {
        let (offset, length) = self.place();
        self.note(format!("read {length} at {offset}"));
        let mut bytes = vec![0xa5; length];
        let mut count = 0;
        while count < length {
            match self.file.read_at(&mut bytes[count..], offset + count as u64).expect("a read") {
                0 => break,
                more => count += more,
            }
        }
        let end = (offset as usize + length).min(self.model.len());
        let expected = self.model.get(offset as usize..end).unwrap_or_default();
        self.compare(offset, &bytes[..count], expected);
    }

    fn compare(&self, offset: u64, got: &[u8], expected: &[u8]) {
        assert_eq!(got.len(), expected.len(), "length of what was read at {offset}");
        if let Some(at) = got.iter().zip(expected).position(|(got, expected)| got != expected) {
            panic!("byte {} is {:#04x}, not {:#04x}", offset + at as u64, got[at], expected[at]);
        }
    }

    fn truncate(&mut self) {
        let length = match self.random.below(4) {
            0 => 0,
            1 => self.model.len() as u64 / 4096 * 4096,
            _ => self.random.below(LENGTH_MAX),
        };
        self.note(format!("truncate to {length}"));
        self.file.set_len(length).expect("a truncation");
        self.model.resize(length as usize, 0);
    }

    /// Reads or writes through a shared mapping.
    fn map(&mut self) {
        let Some((offset, length)) = self.part() else { return };
        let write = self.random.below(2) == 0;
        let bytes = self.fresh(length);
        self.note(format!("{} {length} at {offset} through a mapping", if write { "write" } else { "read" }));
        let (start, skip) = (offset & !0xfff, (offset & 0xfff) as usize);
        let whole = skip + length;
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, self.file.as_raw_fd());
        // SAFETY: the kernel chooses the address; the length is not zero.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), whole, protection, libc::MAP_SHARED, descriptor, start as i64) };
        assert_ne!(address, libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
        // SAFETY: `whole` bytes are mapped there, all of them within the file, until munmap below.
        let mapped = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), whole) };
        if write {
            mapped[skip..].copy_from_slice(&bytes);
            self.put(offset, &bytes);
        } else {
            let expected = &self.model[offset as usize..offset as usize + length];
            self.compare(offset, &mapped[skip..], expected);
        }
        // SAFETY: both get the mapping made above; nothing refers to it afterwards.
        let done = unsafe { libc::msync(address, whole, libc::MS_SYNC) | libc::munmap(address, whole) };
        assert_eq!(done, 0, "msync and munmap: {}", Error::last_os_error());
    }

    /// Copies a part to another place within the file, or makes a hole, where that is possible.
    fn shift(&mut self) {
        let Some((from, length)) = self.part() else { return };
        let to = self.random.below(LENGTH_MAX - length as u64);
        if from < to + length as u64 && to < from + length as u64 {
            return;
        }
        self.note(format!("copy {length} from {from} to {to}"));
        let (mut source, mut target, mut left) = (from as i64, to as i64, length);
        while left > 0 {
            let file = self.file.as_raw_fd();
            // SAFETY: both offsets live until the call returns.
            let count = unsafe { libc::copy_file_range(file, &mut source, file, &mut target, left, 0) };
            assert!(count > 0, "copy_file_range: {}", Error::last_os_error());
            left -= count as usize;
        }
        let bytes = self.model[from as usize..from as usize + length].to_vec();
        self.put(to, &bytes);
    }

    fn hole(&mut self) {
        let Some((offset, length)) = self.part() else { return };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no memory is involved.
        let done = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset as i64, length as i64) };
        if done == 0 {
            self.note(format!("make a hole of {length} at {offset}"));
            self.model[offset as usize..offset as usize + length].fill(0);
        } else {
            assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP), "a hole");
        }
    }

    fn reopen(&mut self) {
        self.at = self.random.below(self.paths.len() as u64) as usize;
        self.note(format!("close and open through {}", self.at));
        let path = self.paths[self.at].clone();
        // The old one is closed first: an open after that sees the bytes written through it.
        self.file = File::open("/dev/null").expect("a file");
        self.file = open(&path);
    }

    fn check(&self) {
        let length = self.file.metadata().expect("attributes").len();
        assert_eq!(length, self.model.len() as u64, "the length");
    }

    fn step(&mut self) {
        if let Some(other) = &mut self.other
            && self.random.below(2) == 0
        {
            std::mem::swap(&mut self.file, other);
            self.done.push("take the other open".into());
        }
        match self.random.below(16) {
            0..=4 => self.write(),
            5..=8 => self.read(),
            9 => self.truncate(),
            10..=11 => self.map(),
            12 => self.shift(),
            13 => self.hole(),
            14 => {
                self.note("fsync".into());
                self.file.sync_all().expect("fsync");
            }
            _ => self.reopen(),
        }
        self.check();
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let first = self.done.len().saturating_sub(SHOWN);
            eprintln!("operation {}; the last ones:\n  {}", self.done.len(), self.done[first..].join("\n  "));
        }
    }
}

fn run(mounts: &[PathBuf], opens: usize, seeds: u64, operations: u64) {
    for seed in 1..=seeds {
        eprintln!("seed {seed}");
        let paths: Vec<PathBuf> = mounts.iter().map(|mount| mount.join(format!("file{seed}"))).collect();
        let mut both = Both::new(paths.clone(), seed);
        both.other = (opens > 1).then(|| open(&paths[0]));
        (0..operations).for_each(|_| both.step());
        // Everything once more, as another program sees it.
        both.reopen();
        let whole = std::fs::read(&paths[0]).expect("the whole file");
        both.compare(0, &whole, &both.model);
        std::fs::remove_file(&paths[0]).expect("it can be removed");
    }
}

fn place(mounts: usize) -> (Place, Vec<PathBuf>) {
    let mut place = Place::new();
    place.up(&["--chunk-size", "64K", "--servers", "3"]);
    let mounts = (0..mounts).map(|_| place.mount()).collect();
    if long() {
        place.allow(std::time::Duration::from_secs(1800));
    }
    (place, mounts)
}

#[test]
fn a_file_holds_what_was_written_by_any_call() {
    let (_place, mounts) = place(1);
    let (seeds, operations) = if long() { (100, 5000) } else { (4, 1500) };
    run(&mounts, 1, seeds, operations);
}

#[test]
fn a_file_holds_what_was_written_through_two_mounts() {
    let (_place, mounts) = place(2);
    let (seeds, operations) = if long() { (100, 5000) } else { (4, 1500) };
    run(&mounts, 1, seeds, operations);
}

#[test]
fn a_file_holds_what_was_written_through_two_opens() {
    let (_place, mounts) = place(1);
    let (seeds, operations) = if long() { (100, 5000) } else { (4, 1500) };
    run(&mounts, 2, seeds, operations);
}
