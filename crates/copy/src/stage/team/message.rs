//! What the command and its workers say to each other: JSON values, one a line, of bounded length.
//!
//! The first line to a worker is its [`Order`]; its first one is [`Said::Ready`] or [`Said::Refused`]. Paths and hashes are
//! hexadecimal digits, since paths are bytes.

use crate::stage::nodes::{Part, Probe};
use crate::tree::ReadBack;
use aze_receipt::{Hash, Sums};
use aze_words::hex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Error, ErrorKind, Read, Result};

/// The version of these messages: a worker of another one is refused.
pub const FORM: u32 = 2;

/// Bytes of a line, at most: two paths of 4,096 bytes and 16 hashes are 18 KiB.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The names of the volumes of the source and of the copy; none where that is no volume.
pub type Volumes = [Option<String>; 2];

/// What a worker is to do.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The version of the messages.
    pub stage_worker: u32,
    /// Version of the command's program.
    pub program: String,
    /// Where the source is, and where its copy: the names of volumes; none for a path of the node.
    pub volumes: Volumes,
    /// Tasks at the same time.
    pub jobs: usize,
    /// The nice value of the command, which the worker takes over.
    pub nice: i32,
    /// Source of the probe: path, and print.
    pub from: (String, [u64; 4]),
    /// Copy of the probe: path, inode, contents.
    pub to: (String, u64, String),
}

/// A task.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its number, which the answer has, too.
    pub id: u64,
    /// The part is to be read back; else to be copied.
    pub read_back: bool,
    /// Path and print of the source.
    pub from: (String, [u64; 4]),
    /// Path, temporary name and inode of the copy.
    pub to: (String, String, u64),
    /// Length of the file.
    pub size: u64,
    /// Whether it may have holes.
    pub sparse: bool,
    /// The bytes meant.
    pub range: (u64, u64),
}

/// What a worker says.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It has seen the probe, and waits for tasks.
    Ready {
        /// The version of the messages.
        form: u32,
        /// The number of its running system; empty if that has none.
        system: String,
    },
    /// It cannot work.
    Refused {
        /// It has other files in the place of the probe.
        is_elsewhere: bool,
        /// The exit code of the failure.
        exit: u8,
        /// Why.
        text: String,
    },
    /// It is there.
    Alive,
    /// A task is done.
    Done {
        /// Which.
        id: u64,
        /// By their numbers, hashes of the chunks that are not all zeros; none if the source is another file now.
        sums: Option<Vec<(u64, String)>>,
        /// From where they were read back.
        read_back: Option<String>,
    },
    /// A task has failed.
    Failed {
        /// Which.
        id: u64,
        /// The exit code of the failure.
        exit: u8,
        /// Why.
        text: String,
    },
}

impl Order {
    /// With this probe.
    pub fn new(volumes: &Volumes, jobs: usize, nice: i32, probe: &Probe) -> Order {
        Order {
            stage_worker: FORM,
            program: env!("CARGO_PKG_VERSION").into(),
            volumes: volumes.clone(),
            jobs,
            nice,
            from: (hex::write(&probe.from.0), probe.from.1),
            to: (hex::write(&probe.to), probe.inode, hex::write(&probe.contents)),
        }
    }

    /// The probe; `None` if its digits are none.
    pub fn probe(&self) -> Option<Probe> {
        Some(Probe {
            from: (hex::read(&self.from.0)?, self.from.1),
            to: hex::read(&self.to.0)?,
            inode: self.to.1,
            contents: hex::read(&self.to.2)?,
        })
    }
}

impl Task {
    /// Of a part.
    pub fn new(id: u64, read_back: bool, part: &Part) -> Task {
        Task {
            id,
            read_back,
            from: (hex::write(&part.from), part.from_print),
            to: (hex::write(&part.to), hex::write(&part.hidden), part.to_inode),
            size: part.size,
            sparse: part.is_sparse,
            range: (part.range.start, part.range.end),
        }
    }

    /// The part; `None` if its digits are none, or it ends before it begins.
    pub fn part(&self) -> Option<Part> {
        (self.range.0 <= self.range.1).then_some(())?;
        Some(Part {
            from: hex::read(&self.from.0)?,
            from_print: self.from.1,
            to: hex::read(&self.to.0)?,
            hidden: hex::read(&self.to.1)?,
            to_inode: self.to.2,
            size: self.size,
            is_sparse: self.sparse,
            range: self.range.0..self.range.1,
        })
    }
}

/// Sums as they are written.
pub fn of_sums(sums: &Sums) -> Vec<(u64, String)> {
    sums.chunks.iter().map(|(chunk, hash)| (*chunk, hash.to_string())).collect()
}

/// Sums as they were written; `None` if they are none.
pub fn sums_of(written: &[(u64, String)]) -> Option<Sums> {
    let chunks = written.iter().map(|(chunk, hash)| Some((*chunk, Hash::read(hash)?)));
    Some(Sums { chunks: chunks.collect::<Option<_>>()? })
}

/// The way of reading back that a word names.
pub fn read_back_of(word: &str) -> Option<ReadBack> {
    let all = [ReadBack::Direct, ReadBack::Dropped, ReadBack::Memory, ReadBack::Servers];
    all.into_iter().find(|how| how.word() == word)
}

/// A value as a line.
pub fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("values of strings and numbers become JSON");
    line.push(b'\n');
    line
}

/// The next line; `None` at the end.
///
/// # Errors
/// It is longer than a line may be, or cannot be read.
pub fn next(reader: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() + 1 < LINE_BYTES_MAX => Ok(None),
        Some(_) => Err(Error::new(ErrorKind::InvalidData, format!("a line of more than {LINE_BYTES_MAX} bytes"))),
    }
}

/// What a line says.
pub fn read<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Part {
        Part {
            from: b"/\xff\n".to_vec(),
            from_print: [1, 2, 3, u64::MAX],
            to: b"/to".to_vec(),
            hidden: b".hidden".to_vec(),
            to_inode: 7,
            size: 100,
            is_sparse: true,
            range: 4..90,
        }
    }

    #[test]
    fn tasks_and_answers_go_both_ways() {
        let task = Task::new(3, true, &part());
        assert_eq!(read::<Task>(&line(&task)).and_then(|task| task.part()), Some(part()));
        assert_eq!(read::<Task>(&line(&Task { range: (2, 1), ..task })).expect("a task").part(), None);
        let mut sums = Sums::default();
        sums.add(5, b"contents");
        assert_eq!(sums_of(&of_sums(&sums)), Some(sums));
        assert_eq!(sums_of(&[(1, "12".into())]), None);
        assert_eq!(read_back_of("dropped"), Some(ReadBack::Dropped));
        assert_eq!(read_back_of("other_node"), None, "only the command knows that");
    }

    #[test]
    fn lines_are_bounded_and_whole() {
        let all = |mut bytes: &[u8]| {
            let lines: Result<Vec<_>> = std::iter::from_fn(|| next(&mut bytes).transpose()).collect();
            lines.map_err(|error| error.kind())
        };
        assert_eq!(all(b"one\n\ntwo\nhal"), Ok(vec![b"one".to_vec(), b"".to_vec(), b"two".to_vec()]));
        let mut long = vec![b'x'; LINE_BYTES_MAX - 1];
        long.push(b'\n');
        assert_eq!(all(&long).map(|lines| lines.len()), Ok(1));
        long.insert(0, b'x');
        assert_eq!(all(&long), Err(ErrorKind::InvalidData));
    }

    /// Workers of another version of the program read these lines.
    #[test]
    fn the_form_of_messages_is_stable() {
        let said = Said::Done { id: 1, sums: Some(vec![(2, "ab".into())]), read_back: Some("direct".into()) };
        let text = String::from_utf8(line(&said)).expect("text");
        assert_eq!(text, "{\"done\":{\"id\":1,\"sums\":[[2,\"ab\"]],\"read_back\":\"direct\"}}\n");
        let text = String::from_utf8(line(&Task::new(3, false, &part()))).expect("text");
        let path = "\"from\":[\"2fff0a\",[1,2,3,18446744073709551615]],\"to\":[\"2f746f\",\"2e68696464656e\",7]";
        assert_eq!(
            text,
            format!("{{\"id\":3,\"read_back\":false,{path},\"size\":100,\"sparse\":true,\"range\":[4,90]}}\n")
        );
    }
}
