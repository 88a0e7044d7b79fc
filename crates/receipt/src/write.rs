//! A receipt as a file: written whole or not at all, never over another one, and read line by line.

use crate::key::{Key, PublicKey};
use crate::line::{End, Head, LINE_BYTES_MAX, Line, What};
use crate::sums::Hash;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::hex;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How the last line begins.
const SIGNATURE: &str = "{\"signature\":\"";

/// What the end of a receipt says of its lines.
#[derive(Default)]
struct Counted {
    files: u64,
    directories: u64,
    links: u64,
    removed: u64,
    bytes: u64,
    tree: blake3::Hasher,
}

impl Counted {
    fn add(&mut self, line: &Line) {
        match line {
            Line::Object(object) => {
                self.tree.update(&object.essence());
                match &object.what {
                    What::Directory => self.directories += 1,
                    What::Link { .. } => self.links += 1,
                    What::File { size, same_as, .. } => {
                        self.files += 1;
                        self.bytes = self.bytes.saturating_add(if same_as.is_none() { *size } else { 0 });
                    }
                }
            }
            Line::Removed(_) => self.removed += 1,
            Line::Head(_) | Line::End(_) => {}
        }
    }

    fn end(&self, finished: String, missing: u64) -> End {
        let Counted { files, directories, links, removed, bytes, .. } = *self;
        let tree = Hash(*self.tree.finalize().as_bytes());
        End { files, directories, links, removed, missing, bytes, tree, finished }
    }
}

/// A receipt that is being written, under a temporary name. It goes if it is dropped unfinished.
pub struct Draft {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    hasher: blake3::Hasher,
    counted: Counted,
    is_finished: bool,
}

impl Draft {
    /// Begins the receipt that is to be `path`; `temporary` is a name beside it that no other process uses.
    ///
    /// # Errors
    /// There is a file of that name, or none can be made.
    pub fn begin(path: &Path, temporary: PathBuf, head: &Head) -> Outcome<Draft> {
        if path.symlink_metadata().is_ok() {
            return Err(is_there(path));
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary);
        let file = file.map_err(|error| Trouble::local(format!("write receipt {}", path.display()), &error))?;
        let mut draft = Draft {
            file: BufWriter::with_capacity(256 << 10, file),
            temporary,
            path: path.to_owned(),
            hasher: blake3::Hasher::new(),
            counted: Counted::default(),
            is_finished: false,
        };
        draft.put(&Line::Head(head.clone()))?;
        Ok(draft)
    }

    /// Adds a line. Objects come in the order of their paths, removals after them.
    ///
    /// # Errors
    /// Those of writing.
    pub fn add(&mut self, line: &Line) -> Outcome<()> {
        self.counted.add(line);
        self.put(line)
    }

    /// Adds the end, which says how many objects of the source are `missing`, and the signature, and gives the receipt its name when all of it is on the device.
    ///
    /// # Errors
    /// Those of writing; the name was taken meanwhile.
    pub fn finish(mut self, finished: String, missing: u64, key: &Key) -> Outcome<End> {
        let end = self.counted.end(finished, missing);
        self.put(&Line::End(end.clone()))?;
        let signature = key.sign(&Hash(*self.hasher.finalize().as_bytes()));
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
        let mut name = || {
            writeln!(self.file, "{SIGNATURE}{}\"}}", hex::write(&signature))?;
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            // A link, unlike a rename, replaces nothing. Where there are no links, the name is only looked at before.
            match fs::hard_link(&self.temporary, &self.path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) if self.path.symlink_metadata().is_err() => fs::rename(&self.temporary, &self.path)?,
                linked => linked.and_then(|()| fs::remove_file(&self.temporary))?,
            }
            File::open(&dir)?.sync_all()
        };
        let named = name();
        self.is_finished = named.is_ok();
        named.map_err(|error| self.failed(&error))?;
        Ok(end)
    }

    fn put(&mut self, line: &Line) -> Outcome<()> {
        let mut text = line.write();
        text.push('\n');
        self.hasher.update(text.as_bytes());
        self.file.write_all(text.as_bytes()).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Trouble {
        Trouble::local(format!("write receipt {}", self.path.display()), error)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_finished {
            // Its name says that it is temporary, should it stay.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// There is a file where a receipt is to be.
pub fn is_there(path: &Path) -> Trouble {
    let text =
        format!("write receipt {}: it exists, and a receipt is never replaced: give another name", path.display());
    Trouble::new(Exit::Caller, text)
}

/// A receipt whose signature is good.
pub struct Signed {
    /// Its first line.
    pub head: Head,
    /// Its last one before the signature.
    pub end: End,
    /// The key that has signed it, as the head names it.
    pub key: PublicKey,
    path: PathBuf,
}

impl Signed {
    /// Reads all of a receipt and checks that each line is one, that they come in their order, that the end counts what
    /// is there, and that the key of the head has signed it. With `key`, that it is this one.
    ///
    /// # Errors
    /// [`Exit::Caller`] if it is no receipt, or not signed so.
    pub fn open(path: &Path, key: Option<&PublicKey>) -> Outcome<Signed> {
        let bad = |why: &str| Trouble::new(Exit::Caller, format!("receipt {}: {why}", path.display()));
        let mut lines = Lines::open(path)?;
        let Some(Line::Head(head)) = lines.next_line()? else { return Err(bad("it is no receipt")) };
        let named = PublicKey::read(&head.key).filter(|named| named.id() == head.key_id);
        let named = named.ok_or_else(|| bad("its head names no key"))?;
        let (mut counted, mut end) = (Counted::default(), None);
        while let Some(line) = lines.next_line()? {
            if end.is_some() {
                return Err(bad("lines follow its end"));
            }
            counted.add(&line);
            match line {
                Line::Head(_) => return Err(bad("it has two heads")),
                Line::End(found) => end = Some(found),
                Line::Object(_) | Line::Removed(_) => {}
            }
        }
        let Some((end, signature)) = end.zip(lines.signature) else {
            return Err(bad("it has no end and no signature: it is not whole"));
        };
        if !named.has_signed(&Hash(*lines.hasher.finalize().as_bytes()), &signature) {
            return Err(bad("its signature is wrong: it was changed, or never signed by the key that it names"));
        }
        if let Some(key) = key.filter(|key| **key != named) {
            return Err(bad(&format!("it is signed by key {}, not by {}", named.id(), key.id())));
        }
        if counted.end(end.finished.clone(), end.missing) != end {
            return Err(bad("its end does not count its lines"));
        }
        Ok(Signed { head, end, key: named, path: path.to_owned() })
    }

    /// Its objects and removals, in their order.
    ///
    /// # Errors
    /// It cannot be opened again.
    pub fn lines(&self) -> Outcome<Reader> {
        Ok(Reader(Lines::open(&self.path)?))
    }
}

/// The lines of a receipt between head and end.
pub struct Reader(Lines);

impl Iterator for Reader {
    type Item = Outcome<Line>;

    fn next(&mut self) -> Option<Outcome<Line>> {
        loop {
            match self.0.next_line() {
                Ok(Some(Line::Head(_))) => {}
                Ok(Some(Line::End(_)) | None) => return None,
                Ok(Some(line)) => return Some(Ok(line)),
                Err(trouble) => return Some(Err(trouble)),
            }
        }
    }
}

struct Lines {
    path: PathBuf,
    file: BufReader<File>,
    number: u64,
    hasher: blake3::Hasher,
    signature: Option<[u8; 64]>,
}

impl Lines {
    fn open(path: &Path) -> Outcome<Lines> {
        let file = File::open(path).map_err(|error| Trouble::local(format!("receipt {}", path.display()), &error))?;
        let (file, path) = (BufReader::with_capacity(256 << 10, file), path.to_owned());
        Ok(Lines { path, file, number: 0, hasher: blake3::Hasher::new(), signature: None })
    }

    /// The next line; `None` after the signature, which is noted, or at the end of the file.
    fn next_line(&mut self) -> Outcome<Option<Line>> {
        let mut bytes = Vec::new();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let read = std::io::Read::take(&mut self.file, limit).read_until(b'\n', &mut bytes);
        read.map_err(|error| Trouble::local(format!("receipt {}", self.path.display()), &error))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let text = bytes.strip_suffix(b"\n").and_then(|line| str::from_utf8(line).ok());
        if self.signature.is_some() {
            return Err(self.bad("follows the signature"));
        }
        if let Some(signature) = text.and_then(signature_of) {
            self.signature = Some(signature);
            return self.next_line();
        }
        let line = text.and_then(Line::read).ok_or_else(|| self.bad("is no line of a receipt"))?;
        self.hasher.update(&bytes);
        Ok(Some(line))
    }

    fn bad(&self, why: &str) -> Trouble {
        Trouble::new(Exit::Caller, format!("receipt {}: line {} {why}", self.path.display(), self.number))
    }
}

fn signature_of(line: &str) -> Option<[u8; 64]> {
    let Value::Object(fields) = serde_json::from_str(line).ok()? else { return None };
    let digits = fields.get("signature")?.as_str()?;
    let bytes: [u8; 64] = hex::read(digits)?.try_into().ok()?;
    // In exactly one form, so that no byte of it can be changed without a word.
    (line == format!("{SIGNATURE}{}\"}}", hex::write(&bytes))).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::tests::{file, head};

    /// A receipt of two files and a removal, in a directory of its own; and its key.
    fn receipt(test: &str) -> (PathBuf, PathBuf, Key) {
        let dir = std::env::temp_dir().join(format!("aze-receipt-{test}-{}", std::process::id()));
        fs::create_dir(&dir).expect("a new directory");
        let (key, _) = Key::at(&dir.join("key")).expect("a key");
        let path = dir.join("receipt");
        let head = Head { key: key.public().to_string(), key_id: key.public().id(), ..head() };
        let mut draft = Draft::begin(&path, dir.join(".tmp"), &head).expect("a draft");
        for path in [&b"a"[..], b"b"] {
            draft.add(&Line::Object(Box::new(file(path)))).expect("a line");
        }
        let removed = crate::Removed { path: b"c".to_vec(), when: crate::when(8) };
        draft.add(&Line::Removed(removed)).expect("a line");
        assert!(!path.exists(), "it has no name before it is whole");
        draft.finish(crate::when(9), 0, &key).expect("a receipt");
        (dir, path, key)
    }

    #[test]
    fn a_receipt_is_whole_or_not_there_and_replaces_none() {
        let (dir, path, key) = receipt("whole");
        let signed = Signed::open(&path, Some(&key.public())).expect("a good receipt");
        let end = &signed.end;
        assert_eq!([end.files, end.directories, end.links, end.removed, end.bytes], [2, 0, 0, 1, 0]);
        assert_eq!(signed.lines().expect("lines").collect::<Outcome<Vec<_>>>().expect("lines").len(), 3);
        let refused = Draft::begin(&path, dir.join(".tmp"), &head()).err().expect("it is not replaced");
        assert_eq!(refused.exit, Exit::Caller);
        drop(Draft::begin(&dir.join("other"), dir.join(".tmp"), &head()).expect("a draft"));
        let mut names: Vec<_> =
            fs::read_dir(&dir).expect("a directory").map(|at| at.expect("one").file_name()).collect();
        names.sort();
        assert_eq!(names, ["key", "receipt"]);
        let other = Key::at(&dir.join("other")).expect("a key").0.public();
        assert_eq!(Signed::open(&path, Some(&other)).err().map(|bad| bad.exit), Some(Exit::Caller));
        fs::remove_dir_all(&dir).expect("the directory goes");
    }

    #[test]
    fn no_bit_of_a_receipt_can_be_changed_and_no_end_cut_off() {
        let (dir, path, _) = receipt("bits");
        let good = fs::read(&path).expect("a receipt");
        assert!(good.len() > 1000);
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("a file");
            Signed::open(&path, None).is_err()
        };
        assert!(!refused(&good));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(refused(&bad), "byte {at}");
        }
        for len in (0..good.len()).step_by(7) {
            assert!(refused(&good[..len]), "{len} bytes");
        }
        assert!(refused(&[&good[..], b"\n"].concat()) && refused(&[&good[..], &good].concat()));
        fs::remove_dir_all(&dir).expect("the directory goes");
    }
}
