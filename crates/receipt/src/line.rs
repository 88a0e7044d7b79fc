//! The lines of a receipt as JSON, in both directions.
//!
//! Reading is strict: a line with a field that is missing, unknown or of another form is no line of a receipt. So a line
//! has one meaning, and a checker of another build never passes over a claim that it does not know.

use crate::sums::{Hash, Sums};
use aze_words::hex;
use serde_json::{Map, Value, json};

/// What the head of every receipt of this form says.
pub const FORM: &str = "azekura receipt 1";

/// The sums of chunks stand in a line if a file has at most so many: 4 GiB. Of a larger file the line has its hash alone,
/// so that a line stays below [`LINE_BYTES_MAX`].
pub const CHUNKS_MAX: usize = 1024;

/// The longest line, in bytes. Longer ones are in no receipt.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// A line of a receipt, up to its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The first one.
    Head(Head),
    /// An object that was staged.
    Object(Box<Object>),
    /// A name that was removed.
    Removed(Removed),
    /// The last one before the signature.
    End(End),
}

/// Source, destination, program and signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// `out` or `in`.
    pub direction: String,
    /// Where the objects were read.
    pub source: String,
    /// The directory or file that the paths of the lines begin at.
    pub destination: Vec<u8>,
    /// Number of the attempt, which its temporary names carry.
    pub attempt: String,
    /// When the attempt began, in RFC 3339.
    pub started: String,
    /// Version and commit of the program.
    pub program: String,
    /// The whole public key, in hexadecimal.
    pub key: String,
    /// The short name of the key.
    pub key_id: String,
}

/// An object at its destination, as it was read back there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// From the destination on; empty for the destination itself.
    pub path: Vec<u8>,
    /// When it was so, in RFC 3339.
    pub checked: String,
    /// Permission bits (12).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Time of the last change of its contents, in RFC 3339.
    pub mtime: String,
    /// Of all extended attributes and access control lists that a copy keeps.
    pub xattrs: Hash,
    /// Inode number at the destination, for people who look for later changes.
    pub inode: u64,
    /// Change time there, likewise.
    pub ctime: String,
    /// Its kind, with its contents.
    pub what: What,
}

/// The kind of an object, with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A directory.
    Directory,
    /// A symbolic link.
    Link {
        /// Where it leads to.
        target: Vec<u8>,
    },
    /// A regular file.
    File {
        /// Length in bytes.
        size: u64,
        /// Over its size and its chunks ([`Sums::hash`]).
        hash: Hash,
        /// Of each chunk that is not all zeros; none if there are more than [`CHUNKS_MAX`].
        chunks: Option<Sums>,
        /// How its bytes were read back: `direct`, `dropped` or `servers`.
        read_back: String,
        /// Another path of this receipt which is the same inode.
        same_as: Option<Vec<u8>>,
    },
}

/// A name that was there before and is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// From the destination on.
    pub path: Vec<u8>,
    /// When it was removed, in RFC 3339.
    pub when: String,
}

/// Counts over all lines, and a hash over the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Regular files, each name counted.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Names removed.
    pub removed: u64,
    /// Objects of the source that could not be staged, and have no line.
    pub missing: u64,
    /// Lengths of all files together, each inode once.
    pub bytes: u64,
    /// Over all objects in the order of their paths: equal trees have equal hashes.
    pub tree: Hash,
    /// When the last name was looked at once more, in RFC 3339.
    pub finished: String,
}

/// Bytes as text, with `FIELD_bytes` in hexadecimal beside it where they are no text.
fn put_bytes(map: &mut Map<String, Value>, field: &str, bytes: &[u8]) {
    map.insert(field.into(), String::from_utf8_lossy(bytes).into());
    if str::from_utf8(bytes).is_err() {
        map.insert(format!("{field}_bytes"), hex::write(bytes).into());
    }
}

impl Line {
    /// The line as it is written, without its end.
    pub fn write(&self) -> String {
        let mut map = Map::new();
        match self {
            Line::Head(head) => {
                map.insert("receipt".into(), FORM.into());
                put_bytes(&mut map, "destination", &head.destination);
                for (field, text) in [
                    ("direction", &head.direction),
                    ("source", &head.source),
                    ("attempt", &head.attempt),
                    ("started", &head.started),
                    ("program", &head.program),
                    ("key", &head.key),
                    ("key_id", &head.key_id),
                ] {
                    map.insert(field.into(), text.as_str().into());
                }
            }
            Line::Object(object) => object.put(&mut map),
            Line::Removed(removed) => {
                put_bytes(&mut map, "removed", &removed.path);
                map.insert("when".into(), removed.when.as_str().into());
            }
            Line::End(end) => {
                let End { files, directories, links, removed, missing, bytes, tree, finished } = end;
                let counts = json!({
                    "files": files, "directories": directories, "links": links, "removed": removed, "missing": missing
                });
                map.insert("end".into(), counts);
                map.insert("bytes".into(), (*bytes).into());
                map.insert("tree".into(), tree.to_string().into());
                map.insert("finished".into(), finished.as_str().into());
            }
        }
        Value::Object(map).to_string()
    }

    /// Reads a line; `None` if it is none.
    pub fn read(text: &str) -> Option<Line> {
        let Value::Object(map) = serde_json::from_str(text).ok()? else { return None };
        let mut fields = Fields(map);
        let line = if fields.0.contains_key("receipt") {
            Line::Head(fields.head()?)
        } else if fields.0.contains_key("end") {
            Line::End(fields.end()?)
        } else if fields.0.contains_key("removed") {
            Line::Removed(Removed { path: fields.path("removed")?, when: fields.text("when")? })
        } else {
            Line::Object(Box::new(fields.object()?))
        };
        fields.0.is_empty().then_some(line)
    }
}

impl Object {
    fn put(&self, map: &mut Map<String, Value>) {
        put_bytes(map, "path", &self.path);
        let kind = match &self.what {
            What::Directory => "directory",
            What::Link { target } => {
                put_bytes(map, "target", target);
                "symlink"
            }
            What::File { size, hash, chunks, read_back, same_as } => {
                map.insert("size".into(), (*size).into());
                map.insert("hash".into(), hash.to_string().into());
                if let Some(sums) = chunks {
                    let of = |(chunk, hash): (&u64, &Hash)| json!([chunk, hash.to_string()]);
                    map.insert("chunks".into(), sums.chunks.iter().map(of).collect());
                }
                map.insert("read_back".into(), read_back.as_str().into());
                if let Some(path) = same_as {
                    put_bytes(map, "same_as", path);
                }
                "file"
            }
        };
        map.insert("kind".into(), kind.into());
        map.insert("mode".into(), format!("{:04o}", self.mode).into());
        map.insert("uid".into(), self.uid.into());
        map.insert("gid".into(), self.gid.into());
        map.insert("xattrs".into(), self.xattrs.to_string().into());
        // As text: numbers of 64 bits lose digits in many readers of JSON.
        map.insert("inode".into(), self.inode.to_string().into());
        for (field, time) in [("checked", &self.checked), ("mtime", &self.mtime), ("ctime", &self.ctime)] {
            map.insert(field.into(), time.as_str().into());
        }
    }

    /// What of it is the same wherever the tree lies, for the hash over all objects.
    pub fn essence(&self) -> Vec<u8> {
        let (kind, what): (u8, Vec<u8>) = match &self.what {
            What::Directory => (b'd', Vec::new()),
            What::Link { target } => (b'l', target.clone()),
            What::File { size, hash, .. } => (b'f', [&size.to_le_bytes()[..], &hash.0].concat()),
        };
        let mut bytes = Vec::with_capacity(self.path.len() + what.len() + 64);
        for part in [&self.path, &what] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.push(kind);
        // Of a symbolic link there is no mode to set.
        bytes.extend_from_slice(&if kind == b'l' { 0 } else { self.mode }.to_le_bytes());
        bytes.extend_from_slice(&self.xattrs.0);
        bytes
    }
}

/// The fields of a line that have not been read yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, field: &str) -> Option<String> {
        match self.0.remove(field)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    fn number(&mut self, field: &str) -> Option<u64> {
        self.0.remove(field)?.as_u64()
    }

    fn bytes(&mut self, field: &str) -> Option<Vec<u8>> {
        let text = self.text(field)?;
        let Some(bytes) = self.0.remove(&format!("{field}_bytes")) else { return Some(text.into_bytes()) };
        let bytes = hex::read(bytes.as_str()?)?;
        (String::from_utf8_lossy(&bytes) == text && str::from_utf8(&bytes).is_err()).then_some(bytes)
    }

    /// A path below the destination: no component of it leads out again.
    fn path(&mut self, field: &str) -> Option<Vec<u8>> {
        let path = self.bytes(field)?;
        let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        (path.is_empty() || path.split(|byte| *byte == b'/').all(is_name)).then_some(path)
    }

    fn hash(&mut self, field: &str) -> Option<Hash> {
        Hash::read(&self.text(field)?)
    }

    fn head(&mut self) -> Option<Head> {
        if self.text("receipt")? != FORM {
            return None;
        }
        Some(Head {
            direction: self.text("direction").filter(|direction| ["in", "out"].contains(&direction.as_str()))?,
            source: self.text("source")?,
            destination: self.bytes("destination")?,
            attempt: self.text("attempt")?,
            started: self.text("started")?,
            program: self.text("program")?,
            key: self.text("key")?,
            key_id: self.text("key_id")?,
        })
    }

    fn end(&mut self) -> Option<End> {
        let Value::Object(counts) = self.0.remove("end")? else { return None };
        let mut counts = Fields(counts);
        let end = End {
            files: counts.number("files")?,
            directories: counts.number("directories")?,
            links: counts.number("links")?,
            removed: counts.number("removed")?,
            missing: counts.number("missing")?,
            bytes: self.number("bytes")?,
            tree: self.hash("tree")?,
            finished: self.text("finished")?,
        };
        counts.0.is_empty().then_some(end)
    }

    fn object(&mut self) -> Option<Object> {
        let path = self.path("path")?;
        let what = match self.text("kind")?.as_str() {
            "directory" => What::Directory,
            "symlink" => What::Link { target: self.bytes("target")? },
            "file" => {
                let (size, hash) = (self.number("size")?, self.hash("hash")?);
                let chunks = match self.0.remove("chunks") {
                    None => None,
                    Some(chunks) => Some(sums_of(&chunks).filter(|sums| sums.hash(size) == hash)?),
                };
                let read_back = self.text("read_back")?;
                let same_as = if self.0.contains_key("same_as") { Some(self.path("same_as")?) } else { None };
                What::File { size, hash, chunks, read_back, same_as }
            }
            _ => return None,
        };
        let mode = u32::from_str_radix(&self.text("mode")?, 8).ok().filter(|mode| *mode <= 0o7777)?;
        Some(Object {
            path,
            checked: self.text("checked")?,
            mode,
            uid: self.number("uid")?.try_into().ok()?,
            gid: self.number("gid")?.try_into().ok()?,
            mtime: self.text("mtime")?,
            xattrs: self.hash("xattrs")?,
            inode: self.text("inode")?.parse().ok()?,
            ctime: self.text("ctime")?,
            what,
        })
    }
}

fn sums_of(chunks: &Value) -> Option<Sums> {
    let mut sums = Sums::default();
    for pair in chunks.as_array().filter(|pairs| pairs.len() <= CHUNKS_MAX)? {
        let [chunk, hash] = pair.as_array()?.as_slice() else { return None };
        let (chunk, hash) = (chunk.as_u64()?, Hash::read(hash.as_str()?)?);
        if sums.chunks.last_key_value().is_some_and(|(last, _)| *last >= chunk) {
            return None;
        }
        sums.chunks.insert(chunk, hash);
    }
    Some(sums)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn file(path: &[u8]) -> Object {
        let mut sums = Sums::default();
        sums.add(0, b"contents");
        Object {
            path: path.to_vec(),
            checked: crate::when(1),
            mode: 0o4755,
            uid: 1,
            gid: 2,
            mtime: crate::when(3),
            xattrs: Hash::of(b""),
            inode: u64::MAX,
            ctime: crate::when(4),
            what: What::File {
                size: 8,
                hash: sums.hash(8),
                chunks: Some(sums),
                read_back: "direct".into(),
                same_as: Some(b"b".to_vec()),
            },
        }
    }

    pub(crate) fn head() -> Head {
        let text = || String::from("x");
        Head {
            direction: "out".into(),
            source: text(),
            destination: b"/d\xff".to_vec(),
            attempt: text(),
            started: text(),
            program: text(),
            key: text(),
            key_id: text(),
        }
    }

    #[test]
    fn lines_say_what_they_were_made_of() {
        let (mut link, mut dir) = (file(b"l"), file(b""));
        link.what = What::Link { target: b"\xff/..".to_vec() };
        dir.what = What::Directory;
        let end = End {
            files: 1,
            directories: 2,
            links: 3,
            removed: 4,
            missing: 5,
            bytes: u64::MAX,
            tree: Hash::of(b"t"),
            finished: crate::when(9),
        };
        let objects = [file(b"a/\xff\n\"b"), link, dir].into_iter().map(|object| Line::Object(Box::new(object)));
        let rest = [
            Line::Head(head()),
            Line::Removed(Removed { path: b"gone/\\".to_vec(), when: crate::when(5) }),
            Line::End(end),
        ];
        for line in objects.chain(rest) {
            let text = line.write();
            assert!(!text.contains('\n'));
            assert_eq!(Line::read(&text), Some(line), "{text}");
        }
    }

    #[test]
    fn lines_that_claim_more_less_or_lead_out_are_refused() {
        let good = Line::Object(Box::new(file(b"a"))).write();
        assert!(Line::read(&good).is_some());
        for (from, to) in [
            ("\"uid\":1", "\"uid\":1,\"more\":1"),
            ("\"uid\":1,", ""),
            ("\"uid\":1", "\"uid\":4294967296"),
            ("\"path\":\"a\"", "\"path\":\"../a\""),
            ("\"path\":\"a\"", "\"path\":\"/a\""),
            ("\"path\":\"a\"", "\"path\":\"a//b\""),
            ("\"path\":\"a\"", "\"path\":\"a\",\"path_bytes\":\"62\""),
            ("\"mode\":\"4755\"", "\"mode\":\"14755\""),
            ("\"size\":8", "\"size\":9"),
            ("\"kind\":\"file\"", "\"kind\":\"fifo\""),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            assert_eq!(Line::read(&bad), None, "{bad}");
        }
    }

    #[test]
    fn the_longest_line_is_short_enough() {
        let mut object = file(&vec![0xff; 4096]);
        let mut sums = Sums::default();
        for chunk in 0..CHUNKS_MAX as u64 {
            sums.chunks.insert(u64::MAX - chunk, Hash([7; 32]));
        }
        let (hash, same_as) = (sums.hash(8), Some(vec![0xff; 4096]));
        object.what = What::File { size: 8, hash, chunks: Some(sums), read_back: "direct".into(), same_as };
        assert!(Line::Object(Box::new(object)).write().len() < LINE_BYTES_MAX);
    }
}
