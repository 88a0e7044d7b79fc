//! What the processes of a measurement do, over simulated servers and over running ones alike.

use crate::work::ROOT;
use aze_client::{Access, Client, File, NewFile};
use aze_io::sync::Mutex;
use aze_proto::predicate::Predicate;
use aze_proto::{Code, Failure, FileKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time between two phases, in which clients send their closes.
pub const REST: Duration = Duration::from_millis(200);

/// Bytes of a transfer to the file that all processes share, as IO500 has them.
pub const HARD_BYTES: u64 = 47_008;

/// Bytes of a file in the directory that all processes share, as IO500 has them.
pub const SMALL_BYTES: usize = 3901;

const READ_WRITE: Access = Access { read: true, write: true };
const READ: Access = Access { read: true, write: false };

/// A phase, of all processes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Makes empty files in a directory of its own.
    EasyCreate,
    /// Looks at those of another process.
    EasyStat,
    /// Opens and closes those of another process.
    EasyOpen,
    /// Process 0 alone searches for all files; all servers look at once.
    Search,
    /// Removes its own.
    EasyRemove,
    /// Makes small files in the directory of all.
    HardCreate,
    /// Looks at those of another process.
    HardStat,
    /// Removes its own.
    HardRemove,
    /// Writes a file of its own.
    EasyWrite,
    /// Reads that of another process.
    EasyRead,
    /// Writes its records of the file of all, each behind one of every other process.
    HardWrite,
    /// Reads those of another process.
    HardRead,
    /// Opens the file of all.
    OpenOne,
    /// Opens a file of its own.
    OpenOwn,
    /// Process 0 alone writes a file in transfers of so many bytes, with all their chunks under way at once, or one.
    Write(u64, bool),
    /// The same for reading.
    Read(u64, bool),
}

impl Phase {
    /// Names, in the order of the phases of figure 2.
    pub const NAMES: [Phase; 6] =
        [Phase::EasyCreate, Phase::EasyStat, Phase::EasyRemove, Phase::HardCreate, Phase::HardStat, Phase::HardRemove];
    /// Data, in the order of the phases of figure 1.
    pub const DATA: [Phase; 4] = [Phase::EasyWrite, Phase::EasyRead, Phase::HardWrite, Phase::HardRead];

    /// For people and records.
    pub fn name(self) -> String {
        match self {
            Phase::EasyCreate => "easy-create".into(),
            Phase::EasyStat => "easy-stat".into(),
            Phase::EasyOpen => "easy-open".into(),
            Phase::Search => "search".into(),
            Phase::EasyRemove => "easy-remove".into(),
            Phase::HardCreate => "hard-create".into(),
            Phase::HardStat => "hard-stat".into(),
            Phase::HardRemove => "hard-remove".into(),
            Phase::EasyWrite => "easy-write".into(),
            Phase::EasyRead => "easy-read".into(),
            Phase::HardWrite => "hard-write".into(),
            Phase::HardRead => "hard-read".into(),
            Phase::OpenOne => "open-one".into(),
            Phase::OpenOwn => "open-own".into(),
            Phase::Write(bytes, all) => format!("write-{bytes}-{}", if all { "all" } else { "one" }),
            Phase::Read(bytes, all) => format!("read-{bytes}-{}", if all { "all" } else { "one" }),
        }
    }

    /// Whether its amount is bytes.
    pub fn moves_data(self) -> bool {
        Phase::DATA.contains(&self) || matches!(self, Phase::Write(..) | Phase::Read(..))
    }
}

/// How much each process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Processes of each client.
    pub procs: usize,
    /// Files of each.
    pub files: u64,
    /// Bytes of each.
    pub bytes: u64,
    /// Bytes of a transfer to a file of its own.
    pub transfer: u64,
    /// Bytes of the file that process 0 writes alone.
    pub alone: u64,
}

/// One process.
pub struct Process {
    client: Arc<Client>,
    rank: usize,
    all: usize,
    job: Job,
    chunk_bits: u8,
    /// Files of phases that move data: opens are measured by themselves.
    open: Mutex<BTreeMap<String, Arc<File>>>,
}

fn new(kind: FileKind, open: bool, chunk_bits: u8) -> NewFile {
    let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    let open = open.then_some(READ_WRITE);
    let chunk_bits = if kind == FileKind::File { chunk_bits } else { 0 };
    NewFile { kind, mode, rdev: 0, target: Vec::new(), exclusive: true, open, chunk_bits, private: false }
}

impl Process {
    /// Process number `rank` of `all`, which makes files with chunks of `1 << chunk_bits` bytes.
    pub fn new(client: Arc<Client>, rank: usize, all: usize, job: Job, chunk_bits: u8) -> Process {
        Process { client, rank, all, job, chunk_bits, open: Mutex::default() }
    }

    /// The process whose files this one looks at: of another client, if there is one.
    fn other(&self) -> usize {
        (self.rank + self.job.procs) % self.all
    }

    async fn make(&self, path: &str, kind: FileKind) -> Result<(), Failure> {
        self.client.create_path(&ROOT, path.as_bytes(), &new(kind, false, self.chunk_bits)).await.map(drop)
    }

    /// Makes directories and files for all processes.
    ///
    /// # Errors
    /// What an operation says.
    pub async fn prepare(this: Arc<Process>) -> Result<(), Failure> {
        for dir in ["/p4", "/p4/hard", "/p4/data"] {
            this.make(dir, FileKind::Directory).await?;
        }
        for file in ["/p4/hard-data", "/p4/alone"] {
            this.make(file, FileKind::File).await?;
        }
        for rank in 0..this.all {
            this.make(&format!("/p4/easy-{rank}"), FileKind::Directory).await?;
            this.make(&format!("/p4/data/{rank}"), FileKind::File).await?;
        }
        Ok(())
    }

    fn path(&self, phase: Phase, rank: usize, index: u64) -> String {
        match phase {
            Phase::HardCreate | Phase::HardStat | Phase::HardRemove => format!("/p4/hard/{rank}.{index}"),
            _ => format!("/p4/easy-{rank}/{index}"),
        }
    }

    async fn opened(&self, path: &str, access: Access) -> Result<Arc<File>, Failure> {
        self.client.open_path(&ROOT, path.as_bytes(), access).await
    }

    /// A file that stays open, as this process has it.
    async fn kept(&self, path: &str) -> Result<Arc<File>, Failure> {
        if let Some(file) = self.open.lock().get(path) {
            return Ok(file.clone());
        }
        let file = self.opened(path, READ_WRITE).await?;
        self.open.lock().insert(path.to_owned(), file.clone());
        Ok(file)
    }

    /// Does its part of a phase; gives operations or bytes.
    ///
    /// # Errors
    /// What an operation says.
    pub async fn work(this: Arc<Process>, phase: Phase) -> Result<u64, Failure> {
        match phase {
            Phase::EasyWrite | Phase::EasyRead | Phase::HardWrite | Phase::HardRead => this.data(phase).await,
            Phase::OpenOne => this.opened("/p4/hard-data", READ).await?.close().await.map(|()| 1),
            Phase::OpenOwn => this.opened(&format!("/p4/data/{}", this.rank), READ).await?.close().await.map(|()| 1),
            Phase::Write(bytes, all) if this.rank == 0 => this.alone(bytes, all, true).await,
            Phase::Read(bytes, all) if this.rank == 0 => this.alone(bytes, all, false).await,
            Phase::Search if this.rank == 0 => this.search().await,
            Phase::Write(..) | Phase::Read(..) | Phase::Search => Ok(0),
            _ => {
                for index in 0..this.job.files {
                    this.name(phase, index).await?;
                }
                Ok(this.job.files)
            }
        }
    }

    async fn name(&self, phase: Phase, index: u64) -> Result<(), Failure> {
        let is_own = !matches!(phase, Phase::EasyStat | Phase::EasyOpen | Phase::HardStat);
        let path = self.path(phase, if is_own { self.rank } else { self.other() }, index);
        match phase {
            Phase::EasyCreate | Phase::HardCreate => {
                let new = new(FileKind::File, true, self.chunk_bits);
                let made = self.client.create_path(&ROOT, path.as_bytes(), &new).await?;
                let file = made.file.ok_or_else(|| Failure::new(Code::Internal, "a new file is not open"))?;
                if phase == Phase::HardCreate {
                    file.write(0, &[7; SMALL_BYTES]).await?;
                }
                file.close().await
            }
            Phase::EasyStat | Phase::HardStat => self.client.resolve(&ROOT, path.as_bytes(), true).await.map(drop),
            Phase::EasyOpen => self.opened(&path, READ).await?.close().await,
            _ => self.client.unlink_path(&ROOT, path.as_bytes()).await,
        }
    }

    /// Finds all files, while each process has its own; gives how many they are.
    async fn search(&self) -> Result<u64, Failure> {
        let root = self.client.resolve(&ROOT, b"/p4", true).await?.ino;
        let files = Predicate { kind: Some(FileKind::File), ..Predicate::default() };
        let mut found = 0;
        self.client.find(&ROOT, root, &files, &mut |_| found += 1).await?;
        // Those of names and of data, and two of all.
        let there = self.all as u64 * (self.job.files + 1) + 2;
        match found == there {
            true => Ok(found),
            false => Err(Failure::new(Code::Internal, format!("{found} files are found, and {there} are there"))),
        }
    }

    async fn data(&self, phase: Phase) -> Result<u64, Failure> {
        let is_write = matches!(phase, Phase::EasyWrite | Phase::HardWrite);
        let rank = if is_write { self.rank } else { self.other() };
        let (path, transfer) = match phase {
            Phase::EasyWrite | Phase::EasyRead => (format!("/p4/data/{rank}"), self.job.transfer),
            _ => ("/p4/hard-data".into(), HARD_BYTES),
        };
        let file = self.kept(&path).await?;
        let mut buffer = vec![rank as u8; transfer as usize];
        let count = (self.job.bytes / transfer).max(1);
        for index in 0..count {
            let offset = match phase {
                Phase::EasyWrite | Phase::EasyRead => index * transfer,
                _ => (index * self.all as u64 + rank as u64) * transfer,
            };
            moved(&file, offset, &mut buffer, is_write).await?;
            if buffer[0] != rank as u8 {
                return Err(Failure::new(Code::Internal, format!("{path}: another process's data at {offset}")));
            }
        }
        Ok(count * transfer)
    }

    async fn alone(&self, transfer: u64, all: bool, is_write: bool) -> Result<u64, Failure> {
        let piece = if all { transfer } else { transfer.min(1 << self.chunk_bits) };
        let file = self.kept("/p4/alone").await?;
        let mut buffer = vec![3; piece as usize];
        for offset in (0..self.job.alone).step_by(piece as usize) {
            moved(&file, offset, &mut buffer, is_write).await?;
        }
        Ok(self.job.alone)
    }
}

/// Writes or reads all of a buffer.
async fn moved(file: &File, offset: u64, buffer: &mut [u8], is_write: bool) -> Result<(), Failure> {
    if is_write {
        return file.write(offset, buffer).await.map(drop);
    }
    match file.read_into(offset, buffer).await? {
        read if read == buffer.len() => Ok(()),
        read => Err(Failure::new(Code::Internal, format!("{read} bytes at {offset}, not {}", buffer.len()))),
    }
}
