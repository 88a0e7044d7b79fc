//! Volumes of this user on this node: the directory that says where a volume's servers are.
//!
//! `RUN/NAME/` holds `volume.json` (the record), `secret`, `server-N.sock`, `server-N.log`, `launcher-N.log` and
//! `mounts/`, and `server-N.unkept` of a server whose storage has failed at its end; commands keep the shard map in `map`, and lock `grow.lock` and `restart.lock`. RUN is `$AZE_RUN_DIR`, else `$XDG_RUNTIME_DIR/aze`, else `/tmp/aze-UID`. Only its
//! owner may read a volume's directory; one that others could read or have made is refused.

use crate::mounts;
use crate::process::Process;
use aze_io::real::until;
use aze_io::{Addr, real};
use aze_proto::handshake::Secret;
use aze_proto::limits::{WIRE_VERSION, fingerprint};
use aze_proto::message::Durability;
use aze_proto::place::{ServerInfo, ShardMap};
use aze_proto::wire::Wire;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::hex;
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Longest name of a volume: a socket's path has at most 107 bytes, and the usual directories take the rest.
const NAME_BYTES_MAX: usize = 64;

/// File with the process that starts the volume, for as long as there is no record.
const STARTER: &str = "starter";

/// File with the shard map that a command of this node has seen last.
const MAP: &str = "map";

/// How often the removal of a volume's directory is tried while other commands put files into it.
const REMOVE_TRIES: u32 = 100;

/// Names the environment variable that says which volume is meant.
pub const VARIABLE: &str = "AZE_VOLUME";

/// Word of `--storage` for local disks of a job's nodes, which stands in the record in the place of directories.
pub const LOCAL: &str = "local";

/// What `volume.json` holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The volume's name.
    pub name: String,
    /// User id of its owner.
    pub owner_uid: u32,
    /// When it was started, in nanoseconds since 1970-01-01 UTC.
    pub created_ns: u64,
    /// How often it was started again under its mounts.
    #[serde(default)]
    pub starts: u32,
    /// [`secret_check`] of its secret, by which another secret is noticed before a server is asked: servers do not
    /// answer a stranger. Absent in records of older programs.
    #[serde(default)]
    pub secret_check: Option<String>,
    /// Its servers, by slot.
    pub servers: Vec<ServerRecord>,
    /// How it was made.
    pub settings: Settings,
}

/// One server in `volume.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its place in the shard map.
    pub slot: u16,
    /// The node it runs on, as the node calls itself.
    pub host: String,
    /// The node as `--hosts` named it; absent if it was started on this machine without a launcher.
    pub node: Option<String>,
    /// Its process there.
    pub process: Process,
    /// The launcher's process on the machine where the volume was started; it ends with the server.
    pub launcher: Option<Process>,
    /// Where it listens, best first, as `tcp:HOST:PORT` and `unix:PATH`.
    pub addresses: Vec<String>,
    /// The directory on a local disk of its node in which it keeps its part, if the volume is on such disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PathBuf>,
    /// It has left the volume, as 'aze shrink' has noted in this copy of the record. Its place stays empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// It has joined a volume in use, and did not have its share of it when this copy of the record was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joining: bool,
}

impl ServerRecord {
    /// A server that only the map tells of.
    fn of(slot: u16, info: &ServerInfo, here: &str, by_launcher: bool) -> ServerRecord {
        // Of a process that is gone, or is on another node, the number is for people.
        let known = if info.host == here { Process::of(info.pid) } else { None };
        ServerRecord {
            slot,
            host: info.host.clone(),
            node: by_launcher.then(|| info.host.clone()),
            process: known.unwrap_or(Process { pid: info.pid, started: 0 }),
            launcher: None,
            addresses: info.addresses.clone(),
            place: None,
            left: info.left,
            joining: info.joining,
        }
    }
}

impl Record {
    /// Learns from the servers' map which servers there are, and which have left: records of nodes on which no 'aze grow' or 'aze
    /// shrink' has run do not say so.
    pub fn learn(&mut self, map: &ShardMap) {
        let (here, lasts) = (host(), self.settings.lasts());
        let members = |record: &Record| record.members().count().max(1) as u64;
        let before = members(self);
        let server = |(slot, info): (u16, &ServerInfo)| {
            // One that has come back alone is another process, and is where it was.
            let same = |known: &&ServerRecord| known.slot == slot && (lasts || known.process.pid == info.pid);
            let known = self.servers.iter().find(same).cloned();
            let known = known.unwrap_or_else(|| ServerRecord::of(slot, info, &here, self.settings.launcher.is_some()));
            ServerRecord { left: info.left, joining: info.joining, ..known }
        };
        self.servers = (0u16..).zip(&map.servers).map(server).collect();
        let there = map.servers.iter().filter(|info| !info.left);
        self.settings.capacity_bytes = there.map(|info| info.capacity_bytes).sum();
        if lasts {
            // Each is started again with the memory that it has.
            let now = members(self);
            if now != before {
                self.settings.memory_bytes = self.settings.memory_bytes.map(|bytes| bytes / before * now);
            }
            self.settings.made = Some(Made { servers: map.slots.begun_with(), shards: map.shards() });
        }
    }

    /// Takes servers in that have been started: further ones, or further processes of known ones.
    pub fn take_in<'a>(&mut self, started: impl IntoIterator<Item = &'a ServerRecord>) {
        for server in started {
            self.servers.retain(|known| known.slot != server.slot);
            self.servers.push(server.clone());
        }
        self.servers.sort_by_key(|server| server.slot);
    }

    /// The servers that are not noted to have left.
    pub fn members(&self) -> impl Iterator<Item = &ServerRecord> {
        self.servers.iter().filter(|server| !server.left)
    }
}

/// How a volume in directories was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// With how many servers.
    pub servers: u16,
    /// How many shards it has.
    pub shards: u32,
}

/// What the volume was asked to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `mem`, `local` (each server's record has its place), or the directories or files of the servers, separated by commas.
    pub storage: String,
    /// What a power cut leaves: `none`, `fsync` or `close`; absent where all is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// `modular`.
    pub placement: String,
    /// `auto`, `shm`, `unix` or `tcp`: how data travels within a node.
    pub transport: String,
    /// Bytes that it can hold in all.
    pub capacity_bytes: u64,
    /// Bytes of memory for data, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes of one chunk of a new file.
    pub chunk_bytes: u64,
    /// How a command is run on a node; absent if all servers were started on this machine.
    pub launcher: Option<Vec<String>>,
    /// The program that the launcher runs there.
    pub remote_aze: Option<PathBuf>,
    /// The network at whose addresses its servers listen, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Server N listens on this TCP port plus N, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_base: Option<u16>,
    /// The cores that its servers use, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
    /// Whether its servers end when the processes that started them end.
    #[serde(default)]
    pub is_tied: bool,
    /// Milliseconds that a server has after SIGTERM to leave the volume, where that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave_ms: Option<u64>,
    /// The directory over which it lies, if it lies over one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// How it was made, if it is in directories and other servers have parts of it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Made>,
    /// The process, on the machine where the volume was started, that the volume ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// The directory over which a volume lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backing {
    /// Its absolute path, on every node.
    pub path: PathBuf,
    /// The number of its inode: on another node another directory may have this path.
    pub inode: u64,
}

impl Settings {
    /// What the volume keeps through a power cut.
    pub fn durability(&self) -> Durability {
        self.durability.as_deref().map_or(Durability::None, parse_durability)
    }

    /// Whether the volume can be started again.
    pub fn lasts(&self) -> bool {
        self.durability.is_some()
    }

    /// Whether it is on local disks of a job's nodes: its data there go with it.
    pub fn is_local(&self) -> bool {
        self.storage == LOCAL
    }

    /// Whether its data are there after its end.
    pub fn is_kept(&self) -> bool {
        self.lasts() && !self.is_local()
    }
}

/// One of the words that `--durability` takes.
pub fn parse_durability(word: &str) -> Durability {
    match word {
        "close" => Durability::Close,
        "fsync" => Durability::Fsync,
        _ => Durability::None,
    }
}

/// A volume's directory, opened and checked.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Where it is.
    pub dir: PathBuf,
    /// What `volume.json` says.
    pub record: Record,
}

/// What one command of this machine does with the servers of a volume at a time. The command that ends the volume has the turn of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Servers join or leave it.
    Grow,
    /// Servers are started again, also while others join.
    Restart,
}

impl Turn {
    /// The name of the file that is locked.
    fn word(self) -> &'static str {
        match self {
            Turn::Grow => "grow",
            Turn::Restart => "restart",
        }
    }

    /// The commands that take it.
    fn commands(self) -> &'static str {
        match self {
            Turn::Grow => "'aze grow', 'aze shrink' or 'aze down'",
            Turn::Restart => "'aze restart' or 'aze down'",
        }
    }
}

/// One mount of a volume on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountRecord {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Who serves it.
    pub process: Process,
    /// For a mount of `aze run`: the program that sees it. No other process but those that it starts does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Process>,
    /// There is no mount: a library in the program asks the process that serves it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_intercepted: bool,
    /// How the kernel's requests come to it: `uring` or `dev`; none if there is no mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuse_io: Option<String>,
}

impl Volume {
    /// Opens the directory of volume `name`.
    pub fn open(name: &str) -> Outcome<Volume> {
        let roots = roots();
        let Some(dir) = roots.iter().map(|root| root.join(name)).find(|dir| dir.join("volume.json").exists()) else {
            let places: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
            let places = places.join(" or ");
            return Err(Trouble::new(
                Exit::NotFound,
                format!(
                    "no volume '{name}' of yours in {places}: 'aze status' lists what there is, 'aze up --name {name}' starts one"
                ),
            ));
        };
        check_private(&dir, "directory")?;
        let record = read_record(&dir)?;
        Ok(Volume { dir, record })
    }

    /// The volume that `name`, `$AZE_VOLUME` or the lack of a second one means.
    pub fn meant(name: Option<&str>) -> Outcome<Volume> {
        let variable = env::var(VARIABLE).ok().filter(|value| !value.is_empty());
        Volume::open(&choose(name, variable.as_deref(), &names())?)
    }

    /// Waits until no other command has this turn, and takes it for as long as the file is open; reads the record as it is then.
    ///
    /// # Errors
    /// [`Exit::Again`] if another one has it at the deadline; [`Exit::NotFound`] if it has ended the volume.
    pub fn take_turn(&mut self, turn: Turn, deadline: Instant) -> Outcome<File> {
        let mut tried = Ok(None);
        until(deadline, || {
            tried = self.try_turn(turn);
            !matches!(tried, Ok(None))
        });
        let name = &self.record.name;
        let taken = tried?.ok_or_else(|| {
            let text =
                format!("another {} of volume '{name}' is at work on this machine: wait for its end", turn.commands());
            Trouble::new(Exit::Again, text)
        })?;
        self.record = read_record(&self.dir).map_err(|trouble| match trouble.exit {
            Exit::NotFound => has_ended(name),
            _ => trouble,
        })?;
        Ok(taken)
    }

    /// `None` if another command has it.
    fn try_turn(&self, turn: Turn) -> Outcome<Option<File>> {
        let path = self.dir.join(turn.word()).with_extension("lock");
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => has_ended(&self.record.name),
            _ => Trouble::local(format!("lock {}", path.display()), &error),
        };
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = open.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // 'aze down' may have removed it before it was locked.
        let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let named = fs::symlink_metadata(&path).map(inode).map_err(failed)?;
        Ok((named == file.metadata().map(inode).map_err(failed)?).then_some(file))
    }

    /// The volume's secret.
    pub fn secret(&self) -> Outcome<Secret> {
        let path = self.dir.join("secret");
        check_private(&path, "file")?;
        let text =
            fs::read_to_string(&path).map_err(|error| Trouble::local(format!("read {}", path.display()), &error))?;
        let denied = |why: &str| Trouble::new(Exit::Denied, format!("read {}: {why}", path.display()));
        let secret = parse_secret(text.trim()).ok_or_else(|| denied("not a secret: expected 64 hexadecimal digits"))?;
        match &self.record.secret_check {
            Some(check) if *check != secret_check(&secret) => Err(denied(
                "this is not the secret of this volume: copy volume.json and secret from where it was started",
            )),
            _ => Ok(secret),
        }
    }

    /// Where to ask for its servers, by host.
    pub fn seeds(&self) -> Vec<(String, Vec<Addr>)> {
        let parse =
            |server: &ServerRecord| server.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        self.record.members().map(|server| (server.host.clone(), parse(server))).collect()
    }

    /// The shard map that the last command of this node has seen, if it is of the servers in the record, and perhaps of others that
    /// have joined since. It may be older than that of the servers, which notice it.
    pub fn known_map(&self) -> Option<ShardMap> {
        let bytes = fs::read(self.dir.join(MAP)).ok()?;
        let map = ShardMap::from_bytes(bytes.strip_prefix(&*self.map_prefix())?).ok()?;
        let is_same = |(known, recorded): (&ServerInfo, &ServerRecord)| known.addresses == recorded.addresses;
        let are_same =
            map.servers.len() >= self.record.servers.len() && map.servers.iter().zip(&self.record.servers).all(is_same);
        (are_same && map.volume == self.record.name && map.epoch.starts() == self.record.starts).then_some(map)
    }

    /// Keeps a map for [`Volume::known_map`]. A failure is of no consequence: the next command asks a server.
    pub fn keep_map(&self, map: &ShardMap) {
        let mut bytes = self.map_prefix();
        map.put(&mut bytes);
        let _ = write_whole(&self.dir.join(MAP), &bytes);
    }

    /// What a kept map begins with: it is of this build's protocol and of this volume.
    fn map_prefix(&self) -> Vec<u8> {
        [fingerprint(WIRE_VERSION).to_le_bytes(), self.record.created_ns.to_le_bytes()].concat()
    }

    /// Whether all its servers ran on this machine, none does any more, and none is being started.
    pub fn is_dead(&self) -> bool {
        let here = host();
        !starter(&self.dir).is_some_and(|starter| starter.is_alive())
            && self.record.servers.iter().all(|server| server.host == here && !server.process.is_alive())
    }

    /// Whether no process of this machine uses its directory any more: neither a server nor a mount.
    pub fn is_left_here(&self) -> bool {
        let here = host();
        let mut servers = self.record.servers.iter().filter(|server| server.host == here);
        servers.all(|server| !server.process.is_alive()) && self.mounts().is_empty()
    }

    /// Its mounts on this machine whose process still runs.
    pub fn mounts(&self) -> Vec<MountRecord> {
        self.recorded_mounts().into_iter().filter(|mount| mount.process.is_alive()).collect()
    }

    /// Directories on which a mount is left whose process was killed.
    pub fn dead_mounts(&self) -> Vec<PathBuf> {
        let dead = self.recorded_mounts().into_iter().filter(|mount| !mount.process.is_alive());
        dead.map(|mount| mount.dir).collect()
    }

    /// By directory; removes records without a process and a mount.
    fn recorded_mounts(&self) -> Vec<MountRecord> {
        let mut mounts = Vec::new();
        for entry in fs::read_dir(self.dir.join("mounts")).into_iter().flatten().flatten() {
            let text = fs::read(entry.path()).unwrap_or_default();
            match serde_json::from_slice::<MountRecord>(&text) {
                Ok(mount) if mount.process.is_alive() || mounts::is_dead(&mount.dir) => mounts.push(mount),
                Ok(_) => drop(fs::remove_file(entry.path())),
                Err(_) => {}
            }
        }
        mounts.sort_by(|a, b| a.dir.cmp(&b.dir));
        mounts
    }

    /// Runs `aze WORDS` on a node by the volume's launcher; `None` if no launcher started its servers.
    pub fn command_on(&self, node: &str, words: &[impl AsRef<OsStr>]) -> Option<Command> {
        let Settings { launcher: Some(launcher), remote_aze: Some(program), .. } = &self.record.settings else {
            return None;
        };
        let mut launcher = launcher.iter().map(|word| word.replace("{host}", node));
        let mut command = Command::new(launcher.next().unwrap_or_default());
        command.args(launcher).arg(program).args(words).stdin(Stdio::null());
        Some(command)
    }

    /// Where the record of the mount that this process serves belongs.
    pub fn mount_record_path(&self, process: Process) -> PathBuf {
        self.dir.join("mounts").join(format!("{}.json", process.pid))
    }

    /// The directory for named pipes by which programs of this machine that have no mount meet.
    pub fn pipes_dir(&self) -> PathBuf {
        self.dir.join("pipes")
    }

    /// Notes a mount.
    pub fn record_mount(&self, mount: &MountRecord) -> Outcome<()> {
        make_dir(&self.dir.join("mounts"))?;
        let text = serde_json::to_vec_pretty(mount).expect("a record of strings and numbers becomes JSON");
        write_whole(&self.mount_record_path(mount.process), &text)
    }

    /// Removes the directory and all that is in it.
    pub fn remove(&self) -> Outcome<()> {
        remove_dir(&self.dir)
    }
}

/// Makes the directory of a new volume.
pub fn create_dir(name: &str) -> Outcome<PathBuf> {
    let root = run_dir()?;
    let dir = root.join(name);
    clear_abandoned(&dir)?;
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let root = root.display();
            let text = format!(
                "volume '{name}' exists already in {root}: choose another --name, or end it with 'aze down --name {name}'"
            );
            return Err(Trouble::new(Exit::Caller, text));
        }
        Err(error) => return Err(Trouble::local(format!("make directory {}", dir.display()), &error)),
    }
    note_starter(&dir)?;
    Ok(dir)
}

/// Notes that this process starts the volume's servers, until [`write_record`].
pub fn note_starter(dir: &Path) -> Outcome<()> {
    let starter = serde_json::to_vec(&Process::me()).expect("two numbers become JSON");
    write_whole(&dir.join(STARTER), &starter)
}

fn starter(dir: &Path) -> Option<Process> {
    fs::read(dir.join(STARTER)).ok().and_then(|text| serde_json::from_slice(&text).ok())
}

/// Removes what an interrupted `aze up` has left of volume `name`; says whether there was anything.
pub fn clear_abandoned_start(name: &str) -> Outcome<bool> {
    roots().iter().try_fold(false, |cleared, root| Ok(clear_abandoned(&root.join(name))? || cleared))
}

/// A volume whose starter has gone before it was complete is none: its servers end by themselves.
fn clear_abandoned(dir: &Path) -> Outcome<bool> {
    let is_abandoned = starter(dir).is_some_and(|starter| !starter.is_alive()) && !dir.join("volume.json").exists();
    if is_abandoned {
        remove_dir(dir)?;
    }
    Ok(is_abandoned)
}

/// Makes sure that this node has the directory of volume `name`; others may have made it at the same time.
pub fn share_dir(name: &str) -> Outcome<PathBuf> {
    let dir = run_dir()?.join(name);
    make_dir(&dir)?;
    check_private(&dir, "directory")?;
    Ok(dir)
}

fn has_ended(name: &str) -> Trouble {
    Trouble::new(Exit::NotFound, format!("volume '{name}' has ended meanwhile"))
}

/// Removes a volume's directory and all that is in it; one that is gone already is no error.
pub fn remove_dir(dir: &Path) -> Outcome<()> {
    // First, since a command that waits for its turn looks whether there is a record.
    let _ = fs::remove_file(dir.join("volume.json"));
    let mut removed = fs::remove_dir_all(dir);
    for _ in 1..REMOVE_TRIES {
        // Another command has just put something into it.
        if removed.as_ref().is_err_and(|error| error.kind() == ErrorKind::DirectoryNotEmpty) {
            removed = fs::remove_dir_all(dir);
        }
    }
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Trouble::local(format!("remove directory {}", dir.display()), &error))
        }
        _ => Ok(()),
    }
}

fn read_record(dir: &Path) -> Outcome<Record> {
    let path = dir.join("volume.json");
    let text = fs::read(&path).map_err(|error| Trouble::local(format!("read {}", path.display()), &error))?;
    serde_json::from_slice(&text).map_err(|error| {
        let text = format!(
            "read {}: not the whole record of a volume ({error}): copy volume.json from another node of the volume; where there is \
             none, end its servers and mounts with kill (server-N.log beside it), then remove {}",
            path.display(),
            dir.display()
        );
        Trouble::new(Exit::Fatal, text)
    })
}

/// Changes `volume.json` as it is now: another command may have changed it since this one has read it. Waits while another one does this.
pub fn change_record(dir: &Path, change: impl FnOnce(&mut Record)) -> Outcome<Record> {
    let turn = File::open(dir).and_then(|file| file.lock().map(|()| file));
    let _turn = turn.map_err(|error| Trouble::local(format!("lock {}", dir.display()), &error))?;
    let known = read_record(dir)?;
    let mut record = known.clone();
    change(&mut record);
    if record != known {
        write_record(dir, &record)?;
    }
    Ok(record)
}

/// Writes `volume.json`.
pub fn write_record(dir: &Path, record: &Record) -> Outcome<()> {
    let text = serde_json::to_vec_pretty(record).expect("a record of strings and numbers becomes JSON");
    write_whole(&dir.join("volume.json"), &text)?;
    // From here on the record tells all; a node that did not start the volume has no such file.
    let _ = fs::remove_file(dir.join(STARTER));
    Ok(())
}

/// Notes, for `aze down`, why a server could not bring to its storage at its end what it had.
pub fn note_unkept(dir: &Path, slot: u16, why: &str) {
    // The server's log has it, too.
    let _ = fs::write(unkept_path(dir, slot), why);
}

/// What [`note_unkept`] has noted.
pub fn unkept(dir: &Path, slot: u16) -> Option<String> {
    fs::read_to_string(unkept_path(dir, slot)).ok()
}

/// Removes it, since the server is started again.
pub fn clear_unkept(dir: &Path, slot: u16) {
    // There is none but after such an end.
    let _ = fs::remove_file(unkept_path(dir, slot));
}

fn unkept_path(dir: &Path, slot: u16) -> PathBuf {
    dir.join(format!("server-{slot}.unkept"))
}

/// Writes `secret`.
pub fn write_secret(dir: &Path, secret: &Secret) -> Outcome<()> {
    write_whole(&dir.join("secret"), format!("{}\n", hex::write(&secret.0)).as_bytes())
}

/// A hash of a secret, in hexadecimal. The secret cannot be computed from it (BLAKE3, key derivation mode).
pub fn secret_check(secret: &Secret) -> String {
    hex::write(&blake3::derive_key("Azekura: whether a file holds a volume's secret", &secret.0)[..16])
}

/// A secret of 64 hexadecimal digits.
pub fn parse_secret(text: &str) -> Option<Secret> {
    hex::read(text)?.try_into().ok().map(Secret)
}

/// Names of this user's volumes on this machine, sorted.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = roots()
        .iter()
        .flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten())
        .filter(|entry| entry.path().join("volume.json").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Whether `name` may name a volume: letters, digits, `.`, `_` and `-`, beginning with a letter or digit.
pub fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Name of this machine.
pub fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_else(|_| "localhost".into())
}

/// Where volumes' directories may be, the preferred place first. Both defaults are looked at, since
/// a shell of the job may know `XDG_RUNTIME_DIR` where the launcher's did not.
fn roots() -> Vec<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(root) = set("AZE_RUN_DIR") {
        return vec![std::path::absolute(&root).unwrap_or(root)];
    }
    let fallback = PathBuf::from(format!("/tmp/aze-{}", real::user_id()));
    let usable = |dir: &PathBuf| {
        fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == real::user_id() && meta.mode() & 0o200 != 0)
    };
    set("XDG_RUNTIME_DIR").filter(usable).map(|dir| dir.join("aze")).into_iter().chain([fallback]).collect()
}

/// Where the directories of new volumes go; it is made if it is not there.
///
/// # Errors
/// What the system said, and a directory that other users may write to.
pub fn run_dir() -> Outcome<PathBuf> {
    let root = roots().into_iter().next().expect("there is always a place to try");
    make_dir(&root)?;
    check_ours(&root)?;
    Ok(root)
}

/// Decides which volume is meant.
fn choose(name: Option<&str>, variable: Option<&str>, found: &[String]) -> Outcome<String> {
    if let Some(name) = name.or(variable) {
        return if is_name(name) {
            Ok(name.to_owned())
        } else {
            Err(Trouble::usage(format!("'{name}' cannot be the name of a volume")))
        };
    }
    match found {
        [only] => Ok(only.clone()),
        [] => Err(Trouble::new(
            Exit::NotFound,
            "no volume of yours runs on this machine: start one with: eval \"$(aze up)\"",
        )),
        several => Err(Trouble::usage(format!(
            "which volume is meant? {} run on this machine: set {VARIABLE}, or use --name or aze://VOLUME/path: {}",
            several.len(),
            several.join(", ")
        ))),
    }
}

fn make_dir(dir: &Path) -> Outcome<()> {
    match DirBuilder::new().mode(0o700).recursive(true).create(dir) {
        Ok(()) => Ok(()),
        Err(error) => Err(Trouble::local(format!("make directory {}", dir.display()), &error)),
    }
}

/// Refuses a directory in which another user could have made, or could exchange, a file of ours.
fn check_ours(dir: &Path) -> Outcome<()> {
    let meta =
        fs::symlink_metadata(dir).map_err(|error| Trouble::local(format!("look at {}", dir.display()), &error))?;
    if meta.is_dir() && meta.uid() == real::user_id() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let dir = dir.display();
    Err(Trouble::new(
        Exit::Denied,
        format!(
            "{dir} is not a directory of yours that only you can write to: remove it, or set AZE_RUN_DIR to one that is"
        ),
    ))
}

/// Refuses what others could read or have made.
fn check_private(path: &Path, what: &str) -> Outcome<()> {
    let meta =
        fs::symlink_metadata(path).map_err(|error| Trouble::local(format!("look at {}", path.display()), &error))?;
    let problem = if meta.uid() != real::user_id() {
        format!("belongs to user {}", meta.uid())
    } else if meta.mode() & 0o077 != 0 {
        format!("can be used by others (mode {:04o})", meta.mode() & 0o7777)
    } else if meta.is_symlink() {
        "is a symbolic link".into()
    } else {
        return Ok(());
    };
    Err(Trouble::new(
        Exit::Denied,
        format!("{what} {} {problem}: refused, since whoever reads it can use the volume", path.display()),
    ))
}

/// Writes a file under another name and renames it, so that no reader ever sees half of it.
fn write_whole(path: &Path, bytes: &[u8]) -> Outcome<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Trouble::local(format!("write {}", path.display()), &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_volume_meant_is_named_set_or_the_only_one() {
        let found = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(choose(Some("a"), Some("b"), &found(&["c"])), Ok("a".into()));
        assert_eq!(choose(None, Some("b"), &found(&["c"])), Ok("b".into()));
        assert_eq!(choose(None, None, &found(&["c"])), Ok("c".into()));
        assert_eq!(choose(None, None, &[]).unwrap_err().exit, Exit::NotFound);
        let several = choose(None, None, &found(&["c", "d"])).unwrap_err();
        assert_eq!(several.exit, Exit::Usage);
        assert!(several.text.ends_with("c, d"), "{several}");
        assert_eq!(choose(Some("../x"), None, &[]).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn a_turn_is_of_one_at_a_time_and_goes_with_the_volume() {
        let dir = env::temp_dir().join(format!("aze-turn-{}", std::process::id()));
        fs::create_dir(&dir).expect("a new directory");
        let settings = serde_json::json!({
            "storage": "mem", "placement": "modular", "transport": "auto", "capacity_bytes": 1, "chunk_bytes": 1,
            "launcher": null, "remote_aze": null
        });
        let record = serde_json::json!({
            "name": "v", "owner_uid": 0, "created_ns": 0, "servers": [], "settings": settings
        });
        let record: Record = serde_json::from_value(record).expect("a record");
        let mut volume = Volume { dir: dir.clone(), record };
        write_record(&dir, &volume.record).expect("a record");
        let now = Instant::now();
        let taken = volume.take_turn(Turn::Restart, now).expect("nobody has it");
        assert!(volume.take_turn(Turn::Grow, now).is_ok(), "that is another one");
        let mut late = volume.clone();
        let refused = late.take_turn(Turn::Restart, now).expect_err("it is taken");
        assert!(refused.exit == Exit::Again && refused.text.contains("another 'aze restart'"), "{refused}");
        volume.record.starts += 1;
        write_record(&dir, &volume.record).expect("a record");
        drop(taken);
        let taken = late.take_turn(Turn::Restart, now).expect("nobody has it any more");
        assert_eq!(late.record.starts, volume.record.starts, "the record as it is now");
        remove_dir(&dir).expect("it goes");
        drop(taken);
        assert_eq!(late.take_turn(Turn::Restart, now).expect_err("it is gone").exit, Exit::NotFound);
    }

    #[test]
    fn names_of_volumes_are_tame() {
        for name in ["a", "job-12", "v_1.x", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".a", "-a", "a/b", "a b", "a'b", "ä", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn what_others_can_read_is_refused() {
        let dir = env::temp_dir().join(format!("aze-private-{}", std::process::id()));
        make_dir(&dir).unwrap();
        assert_eq!(check_private(&dir, "directory"), Ok(()));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(check_private(&dir, "directory").unwrap_err().exit, Exit::Denied);
        assert_eq!(check_ours(&dir), Ok(()));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(check_ours(&dir).unwrap_err().exit, Exit::Denied);
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn secrets_are_64_digits() {
        assert_eq!(parse_secret(&"0f".repeat(32)), Some(Secret([15; 32])));
        assert_eq!(parse_secret(&"0f".repeat(31)), None);
        assert_eq!(parse_secret(&"0g".repeat(32)), None);
    }
}
