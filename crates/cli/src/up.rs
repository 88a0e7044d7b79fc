//! `aze up`: starts a volume.

mod again;
mod given;

use crate::account::{Account, Reason};
use crate::cores::Cores;
use crate::exit::{Exit, Outcome, Trouble};
use crate::hosts::Hosts;
use crate::launch::{self, Order, Other, Parts, Said, Starting, call_off};
use crate::local_disks::{self, Disk, Local};
use crate::memory::Memory;
use crate::network::Network;
use crate::process::Process;
use crate::session::Session;
use crate::volume::{self, Backing, Made, Record, ServerRecord, Settings, VARIABLE};
use crate::{hold, kept, serve, show, size, sys};
use aze_io::Transport;
use aze_io::real::Runtime;
use aze_proto::handshake::Secret;
use aze_proto::limits::{
    CHUNK_BITS_DEFAULT, CHUNK_BITS_MAX, CHUNK_BITS_MIN, SERVERS_MAX, SHARDS_DEFAULT, SHARDS_PER_SERVER_MIN,
};
use aze_proto::place::ShardMap;
use aze_proto::slots::Placement;
use aze_words::{errln, outln};
use clap::ValueEnum;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

pub use again::{again, back};

/// Servers on this machine unless the user chose.
const SERVERS_DEFAULT: u16 = 4;

/// Smallest capacity of one server, in bytes: room for a few of the largest chunks.
pub const CAPACITY_BYTES_MIN: u64 = 64 << 20;

/// Start a volume on this machine, or on the nodes of your job.
///
/// Prints the line that makes it the volume that is meant, so run it as shown below.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  eval \"$(aze up)\"                             4 servers on this machine
  eval \"$(aze up --servers 2 --size 8G)\"
  eval \"$(aze up --hosts node1,node2)\"         one server on each, started with ssh
  eval \"$(aze up --from slurm)\"               one server on each node of the job that this runs in
  eval \"$(aze up --from slurm --storage local)\"    the same, on a local disk of each node
  eval \"$(aze up --storage /data/v1)\"          kept in a directory: the same command brings it back
  eval \"$(aze up --servers 2 --storage /disk1/v,/disk2/v,/disk3/v,/disk4/v)\"     each server on two disks
  eval \"$(aze up --backing /project/run7)\"     shows what is in that directory, and reads it when it is used
  eval \"$(aze up --pid $$)\"                   ends with this shell, whatever ends it
  eval \"$(aze up --storage /dev/dax0.0)\"       kept in persistent memory
  eval \"$(aze up --hostfile hosts --launcher 'srun -N1 -n1 --overlap -w {host}')\"

A launcher runs as long as its server does.")]
pub struct Args {
    /// Name of the volume; job-ID within a batch job, else a random one.
    #[arg(long)]
    name: Option<String>,
    /// Servers on this machine (4 if nothing is said, or one for each file of --storage), or on each host
    /// (1 if nothing is said).
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    servers: Option<u16>,
    #[command(flatten)]
    hosts: Hosts,
    /// What all servers together may hold in memory; if not given, on each node half of the smaller of its free memory
    /// and what the cgroup still allows.
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Bytes of a file that stay together on one server, a power of two from 64K to 16M.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_chunk_bits)]
    chunk_size: u8,
    /// How names and chunks are spread over servers: modular, in turn; ring, by consistent hashing, for comparison and for volumes
    /// in memory only.
    #[arg(long, value_name = "modular|ring", default_value = "modular", value_parser = parse_placement)]
    placement: Placement,
    /// Where the volume is: mem (memory); with --from, local (on each node the directory on a disk of its own that the
    /// batch system gives the job), until 'aze down' or the end of the job. Or where it is kept: directories, given to the servers in turn; where there are
    /// more of them than servers on a node, each server takes as many. The same directories, in any order,
    /// bring it back. Or files that are there, one for each server: of persistent memory (/dev/daxX.Y, or
    /// on a file system mounted with -o dax), or any other.
    #[arg(long, value_name = "mem|local|DIR,..", default_value = "mem", value_delimiter = ',')]
    storage: Vec<String>,
    /// What all servers together may keep in directories, where --size is their memory only; nearly all
    /// that is free there if not given, and half of it of local disks.
    #[arg(long, value_parser = size::parse)]
    storage_size: Option<u64>,
    /// What a power cut leaves of a volume in directories; if not given, fsync, and none on local disks.
    #[arg(long, value_enum, value_name = "WHEN")]
    durability: Option<Promise>,
    /// Server N listens on this TCP port plus N; free ports are taken if not given.
    #[arg(long, value_name = "PORT")]
    port_base: Option<u16>,
    /// Listen at the node's address in this network, such as 10.1.0.0/16, or of this interface, such as ib0; if not
    /// given, at the address of the node's name in --hosts.
    #[arg(long, value_name = "NET|IF")]
    network: Option<Network>,
    /// Cores that the servers of a node use, together: a number (the last of those that they may use), or a list such
    /// as 0-3,8; all if not given.
    #[arg(long, value_name = "N|LIST")]
    cores: Option<Cores>,
    /// How data travels within a node: auto takes the best way there is; shm (shared memory), unix
    /// (local sockets) and tcp take that way or none. Between nodes it is TCP.
    #[arg(long, value_name = "WAY", default_value_t = Transport::Auto)]
    transport: Transport,
    /// End the volume when this process of this machine ends, such as $$ of a job script; if not given, the batch
    /// shell of the Slurm job that this runs in.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Let servers that a launcher has started go on when this machine's side of the start has ended: the launcher,
    /// or its connection. If not given, they end then.
    #[arg(long, conflicts_with = "pid")]
    detach: bool,
    /// A server that gets SIGTERM has this time to leave, as by 'aze shrink': others get its slots, under the programs
    /// that use it. If there are none that could, or the time is over, it ends. If not given, it ends at once.
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration, conflicts_with = "backing")]
    leave_within: Option<Duration>,
    /// Let the volume end only when all of its contents are elsewhere, too: 'aze down' refuses before, and 'aze down
    /// --stage-out' copies to this directory, which is made then.
    #[arg(long, value_name = "DIR")]
    stage_out: Option<PathBuf>,
    /// Show the names of this directory in the volume at once, and read its files when they are used. Changes stay in the
    /// volume until 'aze stage out' writes them back. It may be larger than the volume: file data that were read and not
    /// changed go when room is short, and are read again. All servers must see the directory under this path.
    #[arg(long, value_name = "DIR")]
    backing: Option<PathBuf>,
    /// How long the start may take; begins anew for as long as servers read their storage.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = size::parse_duration)]
    timeout: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Promise {
    /// Nothing sure; acknowledged changes survive the death of servers.
    None,
    /// Files that were synced with fsync(2), and their names.
    Fsync,
    /// That, and files that were closed.
    Close,
}

impl Promise {
    fn word(self) -> &'static str {
        match self {
            Promise::None => "none",
            Promise::Fsync => "fsync",
            Promise::Close => "close",
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome<Exit> {
    let runtime = Runtime::client();
    let io = runtime.io();
    let name = args.name.clone().unwrap_or_else(|| default_name(io.random_u64()));
    if !volume::is_name(&name) {
        return Err(Trouble::usage(format!(
            "'{name}' cannot be the name of a volume: use up to 64 letters, digits, '.', '_' and '-'"
        )));
    }
    let nodes = nodes(&args)?;
    let has_launcher = nodes.iter().any(Option::is_some);
    let storage = given::storage(&args, &nodes)?;
    let backing = given::backing(&args)?;
    let mut names: Vec<&str> = nodes.iter().flatten().map(String::as_str).collect();
    names.dedup();
    args.hosts.told(&names).iter().for_each(|told| errln!("{told}"));
    let process = if args.detach { None } else { hold::process(args.pid)? };
    let mut secret = Secret([0; 32]);
    io.fill_random(&mut secret.0);
    let dir = volume::create_dir(&name)?;
    let (said, hear) = channel();
    let mut start = Start {
        args: &args,
        name: &name,
        dir: &dir,
        secret: &secret,
        numbers: (0..nodes.len() as u16).collect(),
        nodes,
        is_known: false,
        made: None,
        without: Vec::new(),
        storage,
        local: args
            .hosts
            .from
            .filter(|_| local_disks::is_meant(&args.storage))
            .map(|system| Local::of(system.disk_variables())),
        places: BTreeMap::new(),
        backing,
        is_tied: process.is_some() || !args.detach && has_launcher,
        process,
        ports: Vec::new(),
        starts: 0,
        others: Vec::new(),
        joins: None,
        said,
        hear,
        servers: Vec::new(),
        heard: BTreeMap::new(),
    };
    let deadline = Instant::now() + args.timeout;
    match start.all(deadline, io.wall_ns(), None).and_then(|record| note_wish(&args, &name).map(|()| record)) {
        Ok(record) => {
            let servers = show::count(record.servers.len() as u64, "server");
            let room = size::words(record.settings.capacity_bytes);
            let media: BTreeSet<&str> = start.heard.values().filter_map(|heard| heard.medium.as_deref()).collect();
            let media: String = media.iter().map(|medium| format!("; {medium}")).collect();
            match &record.settings.durability {
                Some(_) if record.settings.is_local() => {
                    let disks = local_disks::told(start.of_nodes().filter_map(|heard| heard.disk.as_ref()));
                    errln!("volume '{name}': {servers}, {room} on local disks ({disks}); 'aze down' ends it");
                }
                Some(word) => errln!(
                    "volume '{name}': {servers}, {room}, kept in {} (durability {word}{media}); 'aze down' stops it",
                    record.settings.storage
                ),
                None => {
                    let memory = start.memory().map_or(String::new(), |memory| format!(" ({memory})"));
                    errln!("volume '{name}': {servers}, {room} in memory{memory}; 'aze down' ends it");
                }
            }
            outln!("export {VARIABLE}='{name}'");
            let written = aze_words::out::finish();
            let advice = format!("volume '{name}' runs all the same: 'aze down --name {name}' ends it");
            written.map_err(|trouble| Trouble { text: format!("{trouble}: {advice}"), ..trouble })?;
            Ok(Exit::Done)
        }
        Err(trouble) => {
            call_off(start.servers);
            volume::remove_dir(&dir)?;
            Err(trouble)
        }
    }
}

/// Has the volume keep account of staging, if its user wants to have its contents elsewhere at its end.
fn note_wish(args: &Args, name: &str) -> Outcome<()> {
    let is_kept = args.storage != ["mem"] && !local_disks::is_meant(&args.storage);
    let lies_over = given::backing(args)?.filter(|_| !is_kept).map(|backing| backing.path);
    let dir = match (&args.stage_out, lies_over) {
        (None, None) => return Ok(()),
        (None, Some(dir)) => dir,
        (Some(dir), _) => {
            std::path::absolute(dir).map_err(|error| Trouble::local(format!("find {}", dir.display()), &error))?
        }
    };
    let session = Session::open(volume::Volume::open(name)?)?;
    let account = Account::open(&session, &Reason::StageOut(dir));
    session.end();
    account.map(drop)
}

/// How a volume was started, as its record says.
fn args_of(record: &Record, timeout: Duration) -> Outcome<Args> {
    let Settings { transport, chunk_bytes, launcher, remote_aze, network, cores, .. } = &record.settings;
    let quoted = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    Ok(Args {
        name: Some(record.name.clone()),
        servers: None,
        hosts: Hosts {
            hosts: Vec::new(),
            hostfile: None,
            from: None,
            launcher: launcher.as_ref().map(|words| words.iter().map(quoted).collect::<Vec<_>>().join(" ")),
            remote_aze: remote_aze.clone(),
        },
        size: record.settings.memory_bytes,
        storage_size: Some(record.settings.capacity_bytes),
        chunk_size: chunk_bytes.trailing_zeros() as u8,
        placement: parse_placement(&record.settings.placement)
            .map_err(|error| Trouble::new(Exit::Fatal, format!("volume.json: placement: {error}")))?,
        storage: Vec::new(),
        durability: None,
        port_base: record.settings.port_base,
        network: parsed(network.as_deref())?,
        cores: parsed(cores.as_deref())?,
        pid: None,
        detach: false,
        leave_within: record.settings.leave_ms.map(Duration::from_millis),
        stage_out: None,
        backing: record.settings.backing.as_ref().map(|backing| backing.path.clone()),
        transport: transport.parse().map_err(|error| Trouble::new(Exit::Fatal, format!("volume.json: {error}")))?,
        timeout,
    })
}

/// The places of its servers on local disks of the job, as its record says.
fn places(record: &Record) -> BTreeMap<u16, PathBuf> {
    record.servers.iter().filter_map(|server| Some((server.slot, server.place.clone()?))).collect()
}

/// Where a volume is kept, and its promise, as its record says.
fn kept_as(record: &Record) -> (Vec<PathBuf>, Promise) {
    let Settings { storage, durability, .. } = &record.settings;
    let promise = match durability.as_deref() {
        Some("close") => Promise::Close,
        Some("fsync") => Promise::Fsync,
        _ => Promise::None,
    };
    (storage.split(',').map(PathBuf::from).collect(), promise)
}

/// Starts servers that join a volume in use, on these nodes. Gives the record with those that have joined, also if others have not,
/// which end; then with the reason.
pub fn more(
    record: &Record,
    dir: &Path,
    secret: &Secret,
    map: &ShardMap,
    more: &[Option<String>],
    storage: &[PathBuf],
    timeout: Duration,
) -> (Record, Outcome<()>) {
    let mut record = record.clone();
    let result = args_of(&record, timeout).and_then(|args| {
        let left = |server: &ServerRecord| if server.left { GONE.map(str::to_owned) } else { server.node.clone() };
        let nodes: Vec<Option<String>> = record.servers.iter().map(left).chain(more.iter().cloned()).collect();
        let members = record.members().count().max(1) as u64;
        let first = match record.settings.lasts() {
            true => record.settings.memory_bytes.unwrap_or(0) / members,
            false => map.server(map.keeper).map_or(0, |info| info.capacity_bytes),
        };
        let (said, hear) = channel();
        let mut start = Start {
            args: &args,
            name: &record.name.clone(),
            dir,
            secret,
            numbers: (0..nodes.len() as u16).collect(),
            nodes,
            is_known: true,
            made: Some(Made { servers: map.slots.begun_with(), shards: map.shards() }),
            without: Vec::new(),
            storage: record.settings.lasts().then(|| (storage.to_vec(), kept_as(&record).1)),
            local: None,
            places: BTreeMap::new(),
            backing: None,
            is_tied: record.settings.is_tied,
            process: None,
            ports: Vec::new(),
            starts: record.starts,
            others: Vec::new(),
            joins: Some(Joins {
                first: record.servers.len() as u16,
                storage_bytes: record.settings.lasts().then(|| record.settings.capacity_bytes / members),
                capacity_bytes: record.settings.memory_bytes.map(|_| first),
            }),
            said,
            hear,
            servers: Vec::new(),
            heard: BTreeMap::new(),
        };
        let result = start.more(Instant::now() + timeout, &mut record, map.keeper);
        let Start { servers, heard, .. } = start;
        let has_joined = |server: &Starting| heard.get(&server.slot).is_some_and(|heard| heard.has_kept);
        let (mut joined, others): (Vec<Starting>, Vec<Starting>) = servers.into_iter().partition(has_joined);
        call_off(others);
        let inputs = joined.iter_mut().filter_map(Starting::take_input).collect();
        if record.settings.is_tied {
            hold::start(&record.name, inputs, None)?;
        }
        result
    });
    (record, result)
}

/// The node of servers that have left, among those of a volume: none that a server runs on.
const GONE: Option<&str> = Some("");

/// A setting as the record keeps it.
fn parsed<T: FromStr<Err = String>>(text: Option<&str>) -> Outcome<Option<T>> {
    text.map(str::parse).transpose().map_err(|error| Trouble::new(Exit::Fatal, format!("volume.json: {error}")))
}

/// Where a server listened for TCP.
fn port(server: &ServerRecord) -> u16 {
    let tcp = server.addresses.iter().find(|address| address.starts_with("tcp:"));
    tcp.and_then(|address| address.rsplit_once(':')?.1.parse().ok()).unwrap_or(0)
}

/// What servers are told that join a volume in use.
struct Joins {
    /// The number of the first of them.
    first: u16,
    /// What each may keep on its disk, if it is in directories.
    storage_bytes: Option<u64>,
    /// What each of its servers may hold, if that was said.
    capacity_bytes: Option<u64>,
}

/// A start under way.
struct Start<'a> {
    args: &'a Args,
    name: &'a str,
    dir: &'a Path,
    secret: &'a Secret,
    /// The node of each server, in the order of their numbers; `None` is this machine.
    nodes: Vec<Option<String>>,
    /// Their numbers.
    numbers: Vec<u16>,
    /// Which of them is on which node is known from an earlier start.
    is_known: bool,
    /// How the volume was made, if other servers have parts of it now.
    made: Option<Made>,
    /// Servers that are left out.
    without: Vec<u16>,
    /// Directories or files, and promise, of a persistent volume.
    storage: Option<(Vec<PathBuf>, Promise)>,
    /// Servers find their places themselves, on local disks of the job.
    local: Option<Local>,
    /// Those that are known from an earlier start.
    places: BTreeMap<u16, PathBuf>,
    /// The directory over which the volume lies.
    backing: Option<Backing>,
    /// Servers end when their input does.
    is_tied: bool,
    /// The process that the volume ends with.
    process: Option<Process>,
    /// Where each server listened before, if the volume is started again.
    ports: Vec<u16>,
    /// How often it was started again.
    starts: u32,
    /// All servers, if some of them come back while the others go on.
    others: Vec<Other>,
    /// The servers join a volume in use.
    joins: Option<Joins>,
    said: Sender<(u16, Said)>,
    hear: Receiver<(u16, Said)>,
    servers: Vec<Starting>,
    /// What each server has said last, and where it listens.
    heard: BTreeMap<u16, Heard>,
}

#[derive(Default)]
struct Heard {
    record: Option<ServerRecord>,
    capacity_bytes: u64,
    memory: Option<Memory>,
    disk: Option<Disk>,
    parts: Option<Parts>,
    /// It ends, since another server is the first one.
    is_elsewhere: bool,
    is_ready: bool,
    has_kept: bool,
    /// The file or device that keeps its part, if no directory does.
    medium: Option<String>,
}

impl Start<'_> {
    /// The first server, then the others, which find each other through it.
    /// `known`: the record of the volume; some of its servers may be left out.
    fn all(&mut self, mut deadline: Instant, now_ns: u64, known: Option<&Record>) -> Outcome<Record> {
        volume::write_secret(self.dir, self.secret)?;
        let (first, keeper) = self.first(&mut deadline)?;
        for slot in self.numbers.clone().into_iter().filter(|slot| *slot != first) {
            // A local socket of another node is of no use.
            let same_node = self.node(slot) == self.node(first);
            let keeper = keeper.iter().filter(|address| same_node || address.starts_with("tcp:")).cloned().collect();
            self.server(slot, keeper)?;
        }
        self.wait(&mut deadline, "become ready", |heard| heard.is_ready)?;
        let record = match known.filter(|_| !self.without.is_empty()) {
            // Those that are left out stay in it as they are.
            Some(known) => {
                let mut record = known.clone();
                record.take_in(self.heard.values().filter_map(|heard| heard.record.as_ref()));
                record
            }
            None => self.record(now_ns)?,
        };
        for server in &mut self.servers {
            server.keep(&record);
        }
        self.wait(&mut deadline, "take over", |heard| heard.has_kept)?;
        volume::write_record(self.dir, &record)?;
        let inputs = self.servers.iter_mut().filter_map(Starting::take_input).collect();
        if self.is_tied {
            hold::start(self.name, inputs, self.process)?;
        }
        Ok(record)
    }

    /// Starts the first server, of those that have parts of the volume the one with the lowest number; gives its number, and where it listens. Which one
    /// that is, the one knows that was the first before, or a directory beside its own.
    fn first(&mut self, deadline: &mut Instant) -> Outcome<(u16, Vec<String>)> {
        let mut tried = BTreeSet::new();
        loop {
            let Some(first) = self.numbers.first().copied() else {
                return Err(Trouble::new(Exit::Caller, "all servers of the record of this node have left the volume"));
            };
            if !tried.insert(first) {
                let text = format!(
                    "server {first} is the first one of the volume, and its node has no part of it: give the nodes in the order of the numbers \
                     of their servers"
                );
                return Err(Trouble::new(Exit::Caller, text));
            }
            self.server(first, Vec::new())?;
            self.wait(deadline, "listen", |heard| heard.record.is_some() || heard.is_elsewhere)?;
            let heard = self.heard.entry(first).or_default();
            let parts = heard.parts.take();
            if !heard.is_elsewhere {
                let addresses = heard.record.clone().map(|record| record.addresses).unwrap_or_default();
                if let Some(parts) = parts {
                    self.consists_of(parts)?;
                }
                return Ok((first, addresses));
            }
            self.heard.remove(&first);
            let (over, others) = std::mem::take(&mut self.servers).into_iter().partition(|server| server.slot == first);
            self.servers = others;
            call_off(over);
            match parts {
                Some(parts) => self.consists_of(parts)?,
                None if self.is_known => self.consist_of_others(&|number| number != first),
                None => {
                    let text = format!(
                        "server {first} has left the volume that had a part of it in this directory, and the first of the others has none here: \
                         give the directories of all its servers, and their nodes in the order of their numbers, or other places for a new volume"
                    );
                    return Err(Trouble::new(Exit::Caller, text));
                }
            }
        }
    }

    /// Only some of the servers that are known have parts.
    fn consist_of_others(&mut self, has_part: &dyn Fn(u16) -> bool) {
        let there: Vec<bool> = self.numbers.iter().map(|number| has_part(*number)).collect();
        let mut at = there.iter();
        self.nodes.retain(|_| *at.next().unwrap_or(&true));
        let mut at = there.iter();
        self.ports.retain(|_| *at.next().unwrap_or(&true));
        let mut at = there.iter();
        self.numbers.retain(|_| *at.next().unwrap_or(&true));
    }

    /// The node of a server.
    fn node(&self, slot: u16) -> &Option<String> {
        let at = self.numbers.iter().position(|number| *number == slot);
        &self.nodes[at.expect("each server that is started has a place")]
    }

    /// The volume has grown or shrunk since it was made: its servers have these numbers.
    fn consists_of(&mut self, parts: Parts) -> Outcome<()> {
        let refused = |text: String| Err(Trouble::new(Exit::Caller, text));
        let Parts { made, mut members } = parts;
        members.retain(|member| !self.without.contains(member));
        let told = |numbers: &[u16]| numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        self.made = Some(made);
        if !self.is_known {
            if members.len() != self.nodes.len() {
                return refused(format!(
                    "the volume consists of {} now, number {}, and {} are to be started: give --servers {}, or --hosts in the \
                     order of these numbers",
                    show::count(members.len() as u64, "server"),
                    told(&members),
                    self.nodes.len(),
                    members.len()
                ));
            }
            self.numbers = members;
            return Ok(());
        }
        if let Some(unknown) = members.iter().find(|member| !self.numbers.contains(member)) {
            return refused(format!(
                "server {unknown} has a part of the volume, and the record of this node does not know it: run this where 'aze grow' was \
                 run"
            ));
        }
        // The others have left, or have never had a part.
        self.consist_of_others(&|number| members.contains(&number));
        Ok(())
    }

    /// Further servers of a volume in use. Each gets the record, and joins then, when all of them listen: if one of them cannot be
    /// started none has joined. Those that have are in the record.
    fn more(&mut self, mut deadline: Instant, record: &mut Record, keeper: aze_proto::ServerIndex) -> Outcome<()> {
        let first = record.servers.len() as u16;
        let keeper = record.servers.iter().find(|server| server.slot == keeper.0).cloned();
        for slot in first..self.nodes.len() as u16 {
            let node = self.node(slot);
            let near = keeper.as_ref().is_some_and(|keeper| keeper.node == *node);
            let addresses = keeper.iter().flat_map(|keeper| keeper.addresses.clone());
            // A local socket of another node is of no use.
            let addresses = addresses.filter(|address| near || address.starts_with("tcp:")).collect();
            self.server(slot, addresses)?;
        }
        self.wait(&mut deadline, "listen", |heard| heard.record.is_some())?;
        for slot in first..self.nodes.len() as u16 {
            let heard = self.heard.get(&slot).and_then(|heard| heard.record.clone());
            let known = record.clone();
            record.servers.extend(heard);
            if let Some(server) = self.servers.iter_mut().find(|server| server.slot == slot) {
                server.keep(record);
            }
            let joined = self.wait_for(&mut deadline, "join the volume", |at, heard| at != slot || heard.has_kept);
            if let Err(trouble) = joined {
                *record = known;
                return Err(trouble);
            }
            let capacity = self.heard.get(&slot).map_or(0, |heard| heard.capacity_bytes);
            record.settings.capacity_bytes += capacity;
            let memory = self.joins.as_ref().filter(|_| record.settings.lasts()).and_then(|joins| joins.capacity_bytes);
            if let Some(bytes) = &mut record.settings.memory_bytes {
                *bytes += memory.unwrap_or(capacity);
            }
        }
        Ok(())
    }

    /// Some servers of a volume whose others go on.
    fn some(&mut self, mut deadline: Instant, record: &Record, slots: &BTreeSet<u16>) -> Outcome<Record> {
        for slot in slots {
            self.server(*slot, Vec::new())?;
        }
        self.wait(&mut deadline, "come back", |heard| heard.is_ready)?;
        let back: Vec<ServerRecord> = self.heard.values().filter_map(|heard| heard.record.clone()).collect();
        let mut record = record.clone();
        record.take_in(&back);
        for server in &mut self.servers {
            server.keep(&record);
        }
        self.wait(&mut deadline, "take over", |heard| heard.has_kept)?;
        // Meanwhile 'aze grow' may have noted further servers.
        let record = volume::change_record(self.dir, |record| record.take_in(&back))?;
        let inputs = self.servers.iter_mut().filter_map(Starting::take_input).collect();
        if self.is_tied {
            hold::start(self.name, inputs, None)?;
        }
        Ok(record)
    }

    fn server(&mut self, slot: u16, keeper: Vec<String>) -> Outcome<()> {
        let servers = (self.nodes.len() + self.without.len()) as u16;
        let at = self.numbers.iter().position(|number| *number == slot).unwrap_or_default();
        let node = &self.nodes[at];
        let joins = self.joins.as_ref().filter(|joins| slot >= joins.first);
        let storage = self.storage.as_ref().map(|(given, promise)| {
            let places: Vec<String> = given.iter().map(|given| given.display().to_string()).collect();
            let places = match joins {
                Some(joins) => vec![places[usize::from(slot - joins.first) % places.len()].clone()],
                None => places,
            };
            (places, promise.word().to_owned())
        });
        let order = Order {
            volume: self.name.into(),
            secret: serve::secret_text(self.secret),
            slot,
            first: self.numbers.first().copied().unwrap_or_default(),
            servers: self.made.map_or(servers, |made| made.servers),
            without: self.without.clone(),
            joins: joins.is_some(),
            is_there: self.made.is_some() && joins.is_none(),
            servers_on_node: self.nodes.iter().filter(|other| *other == node).count() as u16,
            keeper,
            tcp_host: node.clone().unwrap_or_else(|| "127.0.0.1".into()),
            network: self.args.network.as_ref().map(ToString::to_string),
            cores: self.args.cores.as_ref().map(ToString::to_string),
            tcp_port: match self.ports.get(at) {
                Some(port) => *port,
                None => self.args.port_base.map_or(0, |base| base.saturating_add(slot)),
            },
            transport: self.args.transport.name().into(),
            capacity_bytes: match &self.joins {
                Some(joins) => joins.capacity_bytes,
                None => self.args.size.map(|size| size / u64::from(servers)),
            },
            chunk_bits: self.args.chunk_size,
            shards: self.made.map_or_else(|| shards(servers), |made| made.shards),
            placement: self.args.placement.word().into(),
            storage,
            local: self.local.clone().map(|local| Local { place: self.places.get(&slot).cloned(), ..local }),
            starts: self.starts,
            others: (!self.others.is_empty())
                .then(|| self.others.iter().filter(|other| other.slot != slot).cloned().collect()),
            storage_bytes: match joins {
                Some(joins) => joins.storage_bytes,
                None => self.args.storage_size.map(|size| size / u64::from(servers)),
            },
            backing: self.backing.clone(),
            keeps_directory: node.is_some() || self.is_tied,
            is_tied: self.is_tied,
            leave_ms: self.leave_ms(),
        };
        let mut argv = match node {
            Some(node) => launch::launcher(self.args.hosts.launcher(), node)?,
            None => Vec::new(),
        };
        argv.push(self.args.hosts.program()?.display().to_string());
        self.heard.insert(slot, Heard::default());
        self.servers.push(Starting::start(&argv, node.as_deref(), self.dir, &order, &self.said)?);
        Ok(())
    }

    /// Listens until all servers started so far are as they should be. A server that reads its storage is given the
    /// whole time anew.
    fn wait(&mut self, deadline: &mut Instant, what: &str, is_done: impl Fn(&Heard) -> bool) -> Outcome<()> {
        self.wait_for(deadline, what, |_, heard| is_done(heard))
    }

    /// The same of servers by their numbers.
    fn wait_for(&mut self, deadline: &mut Instant, what: &str, is_done: impl Fn(u16, &Heard) -> bool) -> Outcome<()> {
        while let Some((slot, _)) = self.heard.iter().find(|(slot, heard)| !is_done(**slot, heard)) {
            let late = self.starting(*slot);
            let left = deadline.saturating_duration_since(Instant::now());
            let (slot, said) = match self.hear.recv_timeout(left) {
                Ok(word) => word,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let why = format!(
                        "it did not {what} within {:?}: see --timeout{}",
                        self.args.timeout,
                        self.advice(late.slot)
                    );
                    return Err(late.failed_silently(Exit::Again, &why));
                }
            };
            if matches!(said, Said::Read { .. }) {
                *deadline = (*deadline).max(Instant::now() + self.args.timeout);
            }
            self.hear_one(slot, said)?;
        }
        Ok(())
    }

    /// What to do about a server that does not start with the others, if it or its directory is lost.
    fn advice(&self, slot: u16) -> String {
        let is_whole = self.is_known && self.storage.is_some() && self.others.is_empty() && self.joins.is_none();
        if !is_whole || !self.without.is_empty() || self.numbers.len() < 2 {
            return String::new();
        }
        format!(" (if its directory or its node is lost: 'aze restart --without {slot}' starts the others)")
    }

    fn starting(&self, slot: u16) -> &Starting {
        self.servers.iter().find(|starting| starting.slot == slot).expect("each server that is waited for was started")
    }

    fn hear_one(&mut self, slot: u16, said: Said) -> Outcome<()> {
        let Some(starting) = self.servers.iter().find(|starting| starting.slot == slot) else {
            // The last words of one that was not the first server.
            return Ok(());
        };
        let heard = self.heard.entry(slot).or_default();
        match said {
            Said::Listening { host, process, addresses, memory, disk, parts } => {
                let node = starting.node.clone();
                let launcher = node.is_some().then(|| Process::of(starting.process())).flatten();
                let place = disk.as_ref().map(|disk| disk.place.clone());
                let (left, joining) = (false, false);
                heard.record =
                    Some(ServerRecord { slot, host, node, process, launcher, addresses, place, left, joining });
                (heard.memory, heard.disk, heard.parts) = (Some(memory), disk, parts);
            }
            Said::Elsewhere { parts } => (heard.parts, heard.is_elsewhere) = (parts, true),
            Said::Read { .. } => {}
            Said::KeptBy { medium } => heard.medium = Some(medium),
            Said::Ready { capacity_bytes } => (heard.is_ready, heard.capacity_bytes) = (true, capacity_bytes),
            Said::Kept => heard.has_kept = true,
            Said::Failed { exit, text } => {
                let advice = if text.contains("--without") { String::new() } else { self.advice(slot) };
                let text = text + &advice;
                return Err(self.starting(slot).failed(Exit::of_number(exit), &text));
            }
            Said::Ended if heard.has_kept || heard.is_elsewhere => {}
            Said::Ended => {
                let why = format!("it ended before it was ready{}", self.advice(slot));
                return Err(self.starting(slot).failed_silently(Exit::Again, &why));
            }
        }
        Ok(())
    }

    /// The memory of all nodes, as the first server of each has found it.
    fn memory(&self) -> Option<Memory> {
        self.of_nodes().filter_map(|heard| heard.memory).reduce(Memory::and)
    }

    /// What the first server of each node has said.
    fn of_nodes(&self) -> impl Iterator<Item = &Heard> {
        let first = move |slot: &u16| {
            let node = self.node(*slot);
            self.nodes.iter().position(|other| other == node) == self.numbers.iter().position(|other| other == slot)
        };
        self.heard.iter().filter(move |(slot, _)| first(slot)).map(|(_, heard)| heard)
    }

    fn record(&self, created_ns: u64) -> Outcome<Record> {
        let remote = self.nodes.iter().any(Option::is_some);
        let launcher = if remote { Some(launch::launcher(self.args.hosts.launcher(), "{host}")?) } else { None };
        Ok(Record {
            name: self.name.into(),
            owner_uid: sys::uid(),
            created_ns,
            starts: self.starts,
            secret_check: Some(volume::secret_check(self.secret)),
            servers: self.heard.values().filter_map(|heard| heard.record.clone()).collect(),
            settings: Settings {
                storage: match &self.storage {
                    Some((dirs, _)) => {
                        let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
                        dirs.join(",")
                    }
                    None => "mem".into(),
                },
                durability: self.storage.as_ref().map(|(_, promise)| promise.word().into()),
                placement: self.args.placement.word().into(),
                transport: self.args.transport.name().into(),
                capacity_bytes: self.heard.values().map(|heard| heard.capacity_bytes).sum(),
                memory_bytes: self.args.size,
                chunk_bytes: 1 << self.args.chunk_size,
                launcher,
                remote_aze: if remote { Some(self.args.hosts.program()?) } else { None },
                network: self.args.network.as_ref().map(ToString::to_string),
                port_base: self.args.port_base,
                cores: self.args.cores.as_ref().map(ToString::to_string),
                is_tied: self.is_tied,
                leave_ms: self.leave_ms(),
                backing: self.backing.clone(),
                made: self.made,
                process: self.process,
            },
        })
    }

    fn leave_ms(&self) -> Option<u64> {
        self.args.leave_within.map(|time| time.as_millis() as u64)
    }
}

/// The node of each server, in the order of their slots.
fn nodes(args: &Args) -> Outcome<Vec<Option<String>>> {
    let hosts = args.hosts.names()?;
    let nodes: Vec<Option<String>> = if hosts.is_empty() {
        let is_files = args.storage.iter().all(|given| given != "mem" && kept::keeps_one(Path::new(given)));
        let servers = if is_files { args.storage.len() as u16 } else { SERVERS_DEFAULT };
        vec![None; args.servers.unwrap_or(servers).into()]
    } else {
        hosts.into_iter().flat_map(|host| vec![Some(host); args.servers.unwrap_or(1).into()]).collect()
    };
    let most = usize::from(SERVERS_MAX);
    if nodes.len() > most {
        return Err(Trouble::usage(format!("{} servers are too many: a volume has at most {most}", nodes.len())));
    }
    if let Some(size) = args.size
        && size / nodes.len() as u64 <= CAPACITY_BYTES_MIN
    {
        let least = size::words((CAPACITY_BYTES_MIN + 1) * nodes.len() as u64);
        return Err(Trouble::usage(format!(
            "--size {}: too small for {} servers, which need more than {least}",
            size::words(size),
            nodes.len()
        )));
    }
    Ok(nodes)
}

/// As many as usual, or the next power of two that gives every server enough.
fn shards(servers: u16) -> u32 {
    (u32::from(servers) * SHARDS_PER_SERVER_MIN).next_power_of_two().max(SHARDS_DEFAULT)
}

/// The name of the batch job's volume; `None` outside of a job.
pub fn job_name() -> Option<String> {
    // PBS puts its server's name behind the number.
    let number = |(_, id): (_, String)| id.split('.').next().map(|id| format!("job-{id}"));
    aze_reach::batch_job().and_then(number).filter(|name| volume::is_name(name))
}

/// The batch job's name, else a short random one.
fn default_name(random: u64) -> String {
    job_name().unwrap_or_else(|| format!("vol-{:06x}", random & 0xff_ffff))
}

/// Base-2 logarithm of a chunk size. The error names the expected form.
fn parse_placement(text: &str) -> Result<Placement, String> {
    Placement::of_word(text).ok_or_else(|| "expected modular or ring".into())
}

fn parse_chunk_bits(text: &str) -> Result<u8, String> {
    let bytes = size::parse(text)?;
    let fits = bytes.is_power_of_two() && (1 << CHUNK_BITS_MIN..=1 << CHUNK_BITS_MAX).contains(&bytes);
    if fits { Ok(bytes.trailing_zeros() as u8) } else { Err(format!("'{text}' is not a power of two from 64K to 16M")) }
}

const _: () = assert!(CHUNK_BITS_DEFAULT == 20, "the default of --chunk-size is written as 1M");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_powers_of_two() {
        assert_eq!(parse_chunk_bits("64K"), Ok(16));
        assert_eq!(parse_chunk_bits("1M"), Ok(20));
        assert_eq!(parse_chunk_bits("16M"), Ok(24));
        for text in ["32K", "32M", "96K", "x"] {
            assert!(parse_chunk_bits(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_server_gets_enough_shards() {
        assert_eq!(shards(1), 4096);
        assert_eq!(shards(64), 4096);
        assert_eq!(shards(65), 8192);
        assert_eq!(shards(1024), 65_536);
    }
}
