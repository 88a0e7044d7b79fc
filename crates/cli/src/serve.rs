//! `aze serve`: one server process. `aze up` starts it; it takes its order from standard input.

use crate::cores::Cores;
use crate::exit::{Exit, Outcome, Trouble, of_code};
use crate::launch::{Order, Other, Parts, Said};
use crate::local_disks;
use crate::memory::Memory;
use crate::network::Network;
use crate::process::Process;
use crate::volume::{self, Backing, Made, Record, Volume};
use crate::{kept, show, size, sys};
use aze_contact::Contact;
use aze_fuse::signals;
use aze_io::real::Runtime;
use aze_io::{Addr, Transport};
use aze_proto::BackingIdentity;
use aze_proto::error::Failure;
use aze_proto::handshake::Secret;
use aze_proto::ids::ServerIndex;
use aze_proto::limits::DEADLINE_MS_DEFAULT;
use aze_proto::message::Durability;
use aze_proto::slots::Placement;
use aze_server::{Comeback, Config, OtherServer, Server, Stage};
use aze_words::errln;
use futures_channel::oneshot;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Memory that is kept ready ahead of its use, in bytes: some tenths of a second of writing.
const FAULT_AHEAD_BYTES_MAX: u64 = 256 << 20;

/// Part of a server's memory that it takes for what clients of its node may read without a request: one in so many.
const PUBLISHED_SHARE: u64 = 32;

/// Length of a segment within a file, which may be small.
const FILE_SEGMENT_BYTES: u64 = 64 << 20;

/// How often a server that reads its storage says so.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);

/// How long a server that a signal has ended waits for the end of its starter, before it leaves its volume's directory
/// to those who go on with the volume.
const STARTER_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a server waits for another one: half of what its askers wait for it, so that they are
/// told which server is silent before they give up themselves.
const PEER_TIME_MAX: Duration = Duration::from_millis(DEADLINE_MS_DEFAULT as u64 / 2);

/// Run one server of a volume: what 'aze up' starts.
///
/// Reads its order as a line of JSON from standard input, says on standard output when it listens
/// and when the volume is complete, and goes on in the background when it has been given the
/// volume's record.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  aze up --hosts a,b      runs 'aze serve' on a and b")]
pub struct Args {}

/// Runs the command.
pub fn run(_args: &Args) -> Outcome<Exit> {
    // The shell that started it may go away; a leader of a process group, which a launcher may have
    // made of us, has left the shell's reach already.
    let _ = sys::leave_session();
    sys::ignore(libc::SIGHUP);
    signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
    sys::open_as_many_files_as_allowed();
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|error| Trouble::local("read the order from standard input", &error))?;
    let order: Order = serde_json::from_str(&line).map_err(|error| {
        Trouble::usage(format!("no order on standard input ({error}): servers are started by 'aze up'"))
    })?;
    let dir = volume::share_dir(&order.volume)?;
    let ending = Arc::new(Ending::default());
    let served = serve(&order, &dir, &ending);
    if let Err(trouble) = &served {
        ending.remove_unfinished();
        ending.remove_local(order.slot, true);
        say(&Said::Failed { exit: trouble.exit as u8, text: trouble.text.clone() });
    }
    if ending.known().is_elsewhere {
        if order.keeps_directory && order.starts == 0 {
            tidy(&order.volume, order.slot, &dir);
        } else {
            tidy_own(order.slot, &dir);
        }
        return served;
    }
    if ending.known().has_left || served.is_err() && order.joins {
        ending.remove_local(order.slot, false);
        leave_node(&order, &dir);
        return served;
    }
    // What a start of a volume that was there before has not brought back is left for the next one.
    if order.keeps_directory
        && (served.is_ok() || order.starts == 0 && order.others.is_none())
        && ending.is_of_volume(order.is_tied)
    {
        ending.remove_local(order.slot, served.is_err());
        tidy(&order.volume, order.slot, &dir);
    }
    served
}

/// Why this server ends, other than by a request.
#[derive(Default)]
struct Ending {
    known: Mutex<Known>,
    changed: Condvar,
}

#[derive(Default)]
struct Known {
    /// Set once it serves.
    server: Option<Arc<Server>>,
    has_stopped: bool,
    by_signal: bool,
    /// A signal has had it begin to leave.
    is_leaving: bool,
    starter_has_gone: bool,
    /// The server has left the volume, which goes on.
    has_left: bool,
    /// It has not started, since another server is the first one.
    is_elsewhere: bool,
    /// Directories of its storage that it makes itself.
    new_dirs: Vec<PathBuf>,
    /// The volume's place on a local disk of the job.
    place: Option<PathBuf>,
}

impl Ending {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which directories of its storage are not there yet.
    fn begins(&self, storage: Option<&aze_server::Storage>) {
        let dirs = storage.iter().flat_map(|storage| &storage.dirs).map(|dir| PathBuf::from(&dir.path));
        self.known().new_dirs = dirs.filter(|dir| !dir.exists()).collect();
    }

    /// Removes those that have not become part of a volume: a start that is refused leaves a volume's other directories as
    /// they were, and nothing beside them that `aze check` would look at.
    fn remove_unfinished(&self) {
        // A thread of the start may still be at work. It makes no further directory, and a few files at most.
        aze_io::real::open_no_more_dirs();
        for dir in self.known().new_dirs.iter().filter(|dir| !dir.join("volume").exists()) {
            let removed = loop {
                match fs::remove_dir_all(dir) {
                    Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                    result => break result,
                }
            };
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    errln!("aze: serve: remove {}, which was made for this start: {error}", dir.display());
                }
                _ => {}
            }
        }
    }

    /// Removes its part on a local disk of the job; with `if_new` only if this start has made it.
    fn remove_local(&self, slot: u16, if_new: bool) {
        let known = self.known();
        let Some(place) = &known.place else { return };
        if !if_new || known.new_dirs.contains(&kept::part(place, slot)) {
            local_disks::remove(place, slot);
        }
        // It may be new, and have nothing in it.
        let _ = fs::remove_dir(place);
    }

    /// Notes that the server serves, and stops it if the starter has gone.
    fn serves(&self, server: &Arc<Server>) {
        let mut known = self.known();
        known.server = Some(server.clone());
        if known.starter_has_gone {
            server.stop();
        }
    }

    fn starter_has_gone(&self) {
        let mut known = self.known();
        known.starter_has_gone = true;
        if let Some(server) = &known.server {
            server.stop();
        }
        self.changed.notify_all();
    }

    /// Stops the server at the first signal; false if it does not serve yet. Says so first: the process may end as soon as
    /// its server has stopped.
    fn stop_by_signal(&self, signal: i32) -> bool {
        let mut known = self.known();
        known.by_signal |= !known.has_stopped;
        let Some(server) = &known.server else { return false };
        errln!("aze: serve: ending by signal {signal}");
        server.stop();
        true
    }

    /// Has the server leave the volume at the first signal; false if it does not serve yet.
    fn leave_by_signal(&self, within: Duration) -> bool {
        let mut known = self.known();
        let Some(server) = known.server.clone() else { return false };
        if std::mem::replace(&mut known.is_leaving, true) {
            return true;
        }
        known.by_signal |= !known.has_stopped;
        errln!("aze: serve: leaving the volume by SIGTERM (--leave-within {within:?})");
        let leaver = server.clone();
        server.leave_by_itself(within, move |left| {
            if let Err(failure) = left {
                errln!("aze: serve: cannot leave the volume, and ends: {failure}");
                leaver.stop();
            }
        });
        true
    }

    /// Notes that the server was asked to stop: by a request, a signal or the end of its starter.
    fn has_stopped(&self) {
        self.known().has_stopped = true;
    }

    /// Whether the volume ends, and not this server alone. A batch system signals servers and their starter at the
    /// same time, in any order; where only a server is signalled, its volume is still in use.
    fn is_of_volume(&self, is_tied: bool) -> bool {
        let known = self.known();
        if !known.by_signal || !is_tied {
            return !known.by_signal;
        }
        let goes_on = |known: &mut Known| !known.starter_has_gone;
        let waited = self.changed.wait_timeout_while(known, STARTER_TIME_MAX, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0.starter_has_gone
    }
}

/// Waits for signals on a thread of its own. The first one stops the server, which answers accepted requests and
/// closes its storage; before there is one it ends this process. Further ones are ignored: batch systems send several.
/// SIGTERM has a server leave first that was started so.
fn stop_on_signal(order: &Order, dir: &Path, ending: &Arc<Ending>) -> Outcome<()> {
    let (order, dir, ending) = (order.clone(), dir.to_path_buf(), ending.clone());
    let leave_within = order.leave_ms.map(Duration::from_millis);
    let wait = move || {
        loop {
            match signals::wait() {
                // A signal that is held comes although it is ignored.
                Ok(libc::SIGHUP) => {}
                Ok(libc::SIGTERM) if leave_within.is_some_and(|time| ending.leave_by_signal(time)) => {}
                Ok(signal) if ending.stop_by_signal(signal) => {}
                Ok(signal) => {
                    errln!("aze: serve: ended by signal {signal} before it served");
                    end_unready(&order, &dir, &ending);
                }
                Err(error) => {
                    errln!("aze: serve: wait for signals: {error}: no signal but SIGKILL ends this server");
                    return;
                }
            }
        }
    };
    let started = std::thread::Builder::new().name("aze-signals".into()).spawn(wait);
    started.map(drop).map_err(|error| Trouble::local("start a thread", &error))
}

fn serve(order: &Order, dir: &Path, ending: &Arc<Ending>) -> Outcome<Exit> {
    log_to(&dir.join(format!("server-{}.log", order.slot)))?;
    volume::clear_unkept(dir, order.slot);
    let memory = Memory::now()?;
    let (settled, disk) = local_disks::settle(order)?;
    let order = &settled;
    ending.known().place = disk.as_ref().map(|disk| disk.place.clone());
    let parts = match parts(order)? {
        First::Here(parts) => parts,
        First::Elsewhere(parts) => {
            ending.known().is_elsewhere = true;
            say(&Said::Elsewhere { parts });
            return Ok(Exit::Done);
        }
    };
    let mut order = order.clone();
    if let Some(Parts { made, .. }) = &parts {
        (order.servers, order.shards, order.is_there) = (made.servers, made.shards, true);
    }
    let order = &order;
    let mut config = config(order, dir, &memory)?;
    ending.begins(config.storage.as_ref());
    let host = config.host.clone();
    let wrong = |error| Trouble::usage(format!("the order: {error}"));
    let cores = match &order.cores {
        Some(cores) => cores.parse::<Cores>().map_err(wrong)?.take()?,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    stop_on_signal(order, dir, ending)?;
    let runtime = Runtime::server((cores / usize::from(order.servers_on_node.max(1))).max(1));
    config.backing = runtime.block_on(backing(order))?;
    config.contact = Some(contact(&runtime, &config));
    let last_said = Mutex::new(Instant::now());
    let tell = move |stage: Stage<'_>| match stage {
        Stage::Listening(addresses) => {
            let addresses = addresses.iter().map(Addr::to_string).collect();
            let parts = parts.clone();
            let (host, disk) = (host.clone(), disk.clone());
            say(&Said::Listening { host, process: Process::me(), addresses, memory, disk, parts });
        }
        Stage::Read { records } => {
            let mut last_said = last_said.lock().unwrap_or_else(PoisonError::into_inner);
            if last_said.elapsed() >= PROGRESS_PERIOD {
                *last_said = Instant::now();
                say(&Said::Read { records });
            }
        }
    };
    let (record, is_known) = await_record(order, dir, ending.clone());
    // With the record, a server that joins a volume in use does not end with its starter: it joins then, and not before.
    let may_join = async {
        if order.joins {
            // An error means that this process ends.
            let _ = is_known.await;
        }
    };
    let server = runtime
        .block_on(aze_server::start_when(runtime.io(), config, Arc::new(tell), may_join))
        .map_err(|failure: Failure| Trouble::new(of_code(failure.code), failure.to_string()))?;
    ending.serves(&server);
    if let Some((medium, remarks)) = server.storage_medium() {
        remarks.iter().for_each(|remark| errln!("azekura: {remark}"));
        say(&Said::KeptBy { medium });
    }
    say(&Said::Ready { capacity_bytes: server.capacity_bytes() });
    let record: Record =
        record.recv().map_err(|_| Trouble::new(Exit::Again, "the starter of this server has given up"))?;
    if order.keeps_directory {
        volume::write_secret(dir, &secret(order)?)?;
        volume::write_record(dir, &record)?;
    }
    say(&Said::Kept);
    stand_alone(order);
    runtime.block_on(server.stopped());
    ending.has_stopped();
    let has_left = server.has_left();
    ending.known().has_left = has_left;
    if has_left {
        errln!("aze: serve: has left the volume");
    }
    server.close();
    let rested = runtime.block_on(server.rest());
    runtime.shutdown();
    rested.map_err(|failure| {
        let trouble = Trouble::new(of_code(failure.code), failure.to_string());
        if !has_left {
            // Nothing but its end is seen of this process, and its log goes with the volume's directory.
            volume::note_unkept(dir, order.slot, &trouble.text);
        }
        trouble
    })?;
    Ok(Exit::Done)
}

/// What one server may hold in memory. Refuses more than its node has; but a volume that starts again keeps its size,
/// so that its data can be reached where less memory is free than before.
fn capacity(order: &Order, memory: &Memory) -> Outcome<u64> {
    let servers = u64::from(order.servers_on_node.max(1));
    let Some(bytes) = order.capacity_bytes else { return Ok(memory.usable() / 2 / servers) };
    if order.starts == 0 && order.others.is_none() && bytes > memory.usable() / servers {
        let text = format!(
            "--size: {} for {} of this node is more than its memory ({memory}): ask for less, or take more nodes",
            size::words(bytes.saturating_mul(servers)),
            show::count(servers, "server"),
        );
        return Err(Trouble::new(Exit::Caller, text));
    }
    Ok(bytes)
}

fn config(order: &Order, dir: &Path, memory: &Memory) -> Outcome<Config> {
    let capacity_bytes = capacity(order, memory)?;
    let mut listen = Vec::new();
    let transport = transport(order)?;
    if transport != Transport::Tcp {
        listen.push(Addr::Unix(dir.join(format!("server-{}.sock", order.slot)).display().to_string()));
    }
    let tcp_host = match &order.network {
        Some(network) => {
            let network: Network = network.parse().map_err(|error| Trouble::usage(format!("the order: {error}")))?;
            network.address()?.to_string()
        }
        None => order.tcp_host.clone(),
    };
    listen.push(Addr::Tcp(tcp_host, order.tcp_port));
    let owner = aze_reach::own_identity();
    Ok(Config {
        volume: order.volume.clone(),
        secret: secret(order)?,
        slot: ServerIndex(order.slot),
        first: ServerIndex(order.first),
        servers: order.servers,
        without: order.without.iter().copied().map(ServerIndex).collect(),
        joins_later: order.joins,
        keeper: order.keeper.iter().filter_map(|address| address.parse().ok()).collect(),
        listen,
        host: volume::host(),
        pid: std::process::id(),
        capacity_bytes,
        // No client could read it over TCP.
        published_bytes: match transport {
            Transport::Tcp => 0,
            _ => (capacity_bytes / PUBLISHED_SHARE).min(aze_proto::published::BYTES_MAX),
        },
        fault_ahead_bytes: FAULT_AHEAD_BYTES_MAX.min(capacity_bytes / 8),
        chunk_bits: order.chunk_bits,
        shards: order.shards,
        placement: Placement::of_word(&order.placement)
            .ok_or_else(|| Trouble::usage(format!("the order: there is no placement '{}'", order.placement)))?,
        owner_uid: owner.uid,
        owner_gid: owner.gid,
        transport,
        deadline: PEER_TIME_MAX,
        backing: None,
        storage: storage(order)?,
        memory_bytes: crate::memory::of_this_process,
        starts: order.starts,
        comeback: order.others.as_deref().map(comeback),
        boot: boot(),
        contact: None,
        switches: aze_server::sabotage::Switches::default(),
    })
}

/// Opens files for clients of this node.
fn contact(runtime: &Arc<Runtime>, config: &Config) -> Arc<Contact> {
    let (volume, secret, host) = (config.volume.clone(), config.secret.clone(), config.host.clone());
    let durability = config.storage.as_ref().map_or(Durability::None, |storage| storage.durability);
    let config = aze_client::Config {
        volume,
        secret,
        // The map comes with each question.
        seeds: Vec::new(),
        host,
        job: String::new(),
        deadline: config.deadline,
        start_time_max: Duration::ZERO,
        transport: config.transport,
        durability,
        lasts: config.storage.is_some(),
    };
    Contact::new(runtime.io(), config)
}

/// The directory over which the volume lies, which must be the one that the starter meant.
async fn backing(order: &Order) -> Outcome<Option<aze_server::Over>> {
    let Some(Backing { path, inode }) = &order.backing else { return Ok(None) };
    let shown = path.display().to_string();
    let failed = |why: String| Trouble::new(Exit::Caller, format!("--backing {shown}, on {}: {why}", volume::host()));
    let tree = aze_io::real::open_backing(&shown).await.map_err(|error| failed(error.to_string()))?;
    let found = tree.look(Vec::new()).await.map_err(|error| failed(error.to_string()))?.identity;
    if found.inode != *inode {
        return Err(failed("another directory has this path here than where the volume was started".into()));
    }
    let root = BackingIdentity {
        inode: found.inode,
        size: found.size,
        mtime_ns: found.mtime_ns.cast_unsigned(),
        ctime_ns: found.ctime_ns.cast_unsigned(),
    };
    Ok(Some(aze_server::Over { tree, root, report: |line| errln!("azekura: {line}") }))
}

/// Where the first server of a volume in directories is.
enum First {
    /// This one is it, or was not started as it; and which servers have parts of the volume, if it has grown or shrunk.
    Here(Option<Parts>),
    /// It is another one: of these servers, as a directory here says.
    Elsewhere(Option<Parts>),
}

/// Whether the server that is to be the first one of a volume in directories is that, as far as the directories of this node say.
fn parts(order: &Order) -> Outcome<First> {
    let Some((given, _)) = order.storage.as_ref().filter(|_| order.others.is_none() && !order.joins) else {
        return Ok(First::Here(None));
    };
    let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
    let own = kept::there(&given, order.slot);
    if order.slot != order.first {
        if own.is_empty() && !order.is_there {
            // Servers of a new volume have the numbers below that of all servers.
            refuse_beside(order, &given, None, order.servers)?;
        }
        return Ok(First::Here(None));
    }
    let found = parts_in(&own, order.slot)?;
    if found.is_none() && !own.is_empty() {
        return Ok(First::Here(None));
    }
    if !order.without.is_empty() {
        // Its directory may well say that a lower number is the first one: that is left out. The servers look at the rest.
        return Ok(First::Here(found.filter(|found| !found.is_as_made).map(|found| told(&found))));
    }
    // Several servers may say that they are the first one, if some have left without hearing of it.
    let mut newest = found.clone().filter(aze_server::Parts::is_of_first);
    let mut other = None;
    for (slot, dirs) in kept::all_there(&given).into_iter().filter(|(slot, _)| *slot != order.slot) {
        let beside = match parts_in(&dirs, slot) {
            Ok(beside) => beside,
            // A server of another volume uses it.
            Err(trouble) if trouble.exit == Exit::Again => continue,
            Err(trouble) => return Err(trouble),
        };
        let is_newer = |beside: &aze_server::Parts| {
            let is_same = found.as_ref().is_none_or(|found| found.volume == beside.volume);
            is_same && beside.is_of_first() && newest.as_ref().is_none_or(|newest| newest.order < beside.order)
        };
        other = other.or_else(|| beside.as_ref().and_then(|beside| beside.members.first().copied()));
        newest = beside.filter(is_newer).or(newest);
    }
    match (newest, found) {
        (Some(newest), _) if newest.server != ServerIndex(order.slot) => Ok(First::Elsewhere(Some(told(&newest)))),
        (Some(newest), _) => Ok(First::Here((!newest.is_as_made).then(|| told(&newest)))),
        (None, Some(found)) if !found.members.contains(&found.server) => Ok(First::Elsewhere(Some(told(&found)))),
        // It may have left without hearing of that.
        (None, Some(found)) => {
            let text = format!(
                "by its directory on {}, server {} is the first one of the volume to be started, and not server {}: start the volume on the \
                 nodes of its servers, in the order of their numbers",
                volume::host(),
                found.members[0],
                order.slot
            );
            Err(Trouble::new(Exit::Caller, text))
        }
        (None, None) if kept::has_left(&given, order.slot) => Ok(First::Elsewhere(None)),
        (None, None) => {
            refuse_beside(order, &given, other, 0)?;
            Ok(First::Here(None))
        }
    }
}

/// Refuses a server without a directory where other servers, of numbers from `from` on, have directories of a volume that was used before: it
/// would be one of a new volume. `first` is the first server of the other one, if that is known.
fn refuse_beside(order: &Order, given: &[PathBuf], first: Option<ServerIndex>, from: u16) -> Outcome<()> {
    let there: Vec<u16> = kept::all_there(given).into_keys().filter(|slot| *slot >= from).collect();
    if there.is_empty() {
        return Ok(());
    }
    let there = there.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let places = given.iter().map(|given| given.display().to_string()).collect::<Vec<_>>().join(",");
    let missing = match first {
        Some(first) => format!("that of server {first}, the first one, is missing"),
        None => "others are missing".into(),
    };
    let text = format!(
        "--storage {places}, on {}: server {} would be one of a new volume, beside parts of a volume that was used before (of server {there}); \
         {missing}: give the directories of all its servers, and their nodes in the order of their numbers, or other places for a new volume",
        volume::host(),
        order.slot
    );
    Err(Trouble::new(Exit::Caller, text))
}

/// What the directories of a server say about which servers have parts of its volume; `None` if they say nothing, as those of a volume
/// in which no slot has moved may.
fn parts_in(dirs: &[PathBuf], slot: u16) -> Outcome<Option<aze_server::Parts>> {
    let says = |dir: &PathBuf| ["placement", "group"].iter().any(|name| dir.join(name).exists());
    if !dirs.iter().any(says) {
        return Ok(None);
    }
    let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    let runtime = Runtime::client();
    let read = runtime.block_on(aze_server::parts_of(&runtime.io(), &dirs));
    runtime.shutdown();
    let read = read.map_err(|failure| Trouble::new(of_code(failure.code), failure.to_string()))?;
    Ok(read.filter(|found| found.server == ServerIndex(slot)))
}

fn told(parts: &aze_server::Parts) -> Parts {
    Parts {
        made: Made { servers: parts.made_with, shards: parts.shards },
        members: parts.members.iter().map(|server| server.0).collect(),
    }
}

fn comeback(others: &[Other]) -> Comeback {
    let other = |other: &Other| OtherServer {
        slot: ServerIndex(other.slot),
        host: other.host.clone(),
        addresses: other.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
        pid: other.pid,
        has_ended: other.has_ended,
    };
    Comeback { others: others.iter().map(other).collect() }
}

/// A number of the running system (random(4), "boot_id"); 0 if it has none.
fn boot() -> u64 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

fn storage(order: &Order) -> Outcome<Option<aze_server::Storage>> {
    let Some((given, durability)) = &order.storage else { return Ok(None) };
    let text = given.join(",");
    let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
    let servers = order.servers_on_node.max(1);
    let device = given.iter().find(|given| given.parent() == Some(Path::new("/dev")) && !given.exists());
    if let Some(device) = device {
        // A directory there would be in memory.
        let text = format!(
            "--storage {}: there is no such device: 'ls /dev/dax*' shows those of persistent memory",
            device.display()
        );
        return Err(Trouble::new(Exit::NotFound, text));
    }
    kept::refuse_twice(&given, &text)?;
    let there = if order.is_there { kept::there(&given, order.slot) } else { Vec::new() };
    if order.is_there && there.is_empty() {
        let text = format!(
            "--storage {text}: the volume has a part on server {}, and none of these places on {} has it: give the one that does",
            order.slot,
            volume::host()
        );
        return Err(Trouble::new(Exit::NotFound, text));
    }
    if order.joins || !there.is_empty() {
        // One that joins was given its place; those that are there have as many as they had.
        let own = if order.joins { vec![kept::part(&given[0], order.slot)] } else { there };
        let dir = |own: &PathBuf| aze_server::StorageDir {
            path: own.display().to_string(),
            shared_by: kept::neighbours(own),
        };
        return Ok(Some(aze_server::Storage {
            dirs: own.iter().map(dir).collect(),
            directories: own.len() as u16,
            durability: volume::parse_durability(durability),
            checkpoint_bytes: aze_server::CHECKPOINT_BYTES_DEFAULT,
            segment_bytes: aze_server::SEGMENT_BYTES_DEFAULT,
            capacity_bytes: order.storage_bytes,
        }));
    }
    let directories = kept::each(&given, servers, &text)?;
    let own = kept::parts(&given, order.slot, servers);
    let keeps_one = own.iter().any(|own| kept::keeps_one(own));
    if keeps_one && order.leave_ms.is_some() {
        return Err(Trouble::usage(format!(
            "--leave-within: servers of a volume in files or devices (--storage {text}) do not leave it"
        )));
    }
    if keeps_one && given.len() < usize::from(servers) {
        let given = if given.len() == 1 { "it".into() } else { format!("these {}", given.len()) };
        return Err(Trouble::usage(format!(
            "--storage {text}: a file or device keeps the part of one server, and {servers} servers of this node were \
             given {given}: give as many, separated by commas, or fewer --servers"
        )));
    }
    let dir = |own: &PathBuf| aze_server::StorageDir {
        path: own.display().to_string(),
        shared_by: if keeps_one { 1 } else { kept::shared_by(&given, own, order.slot, servers) },
    };
    Ok(Some(aze_server::Storage {
        dirs: own.iter().map(dir).collect(),
        directories,
        durability: volume::parse_durability(durability),
        checkpoint_bytes: aze_server::CHECKPOINT_BYTES_DEFAULT,
        segment_bytes: if keeps_one { FILE_SEGMENT_BYTES } else { aze_server::SEGMENT_BYTES_DEFAULT },
        capacity_bytes: order.storage_bytes,
    }))
}

fn transport(order: &Order) -> Outcome<Transport> {
    order.transport.parse().map_err(|error| Trouble::usage(format!("the order: {error}")))
}

fn secret(order: &Order) -> Outcome<Secret> {
    volume::parse_secret(&order.secret)
        .ok_or_else(|| Trouble::usage("the order holds no secret of 64 hexadecimal digits"))
}

/// Waits for the record on a thread of its own, so that the end of the starter is noticed at any time, and tells when it is there; and, where the
/// server is tied, for the end of the input afterwards.
fn await_record(order: &Order, dir: &Path, ending: Arc<Ending>) -> (Receiver<Record>, oneshot::Receiver<()>) {
    let (give, take) = channel();
    let (known, is_known) = oneshot::channel();
    let (order, dir) = (order.clone(), dir.to_path_buf());
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        match serde_json::from_str(&line) {
            Ok(record) => {
                drop(give.send(record));
                let _ = known.send(());
                // Nothing more is written to it.
                if order.is_tied && std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).is_ok() {
                    errln!("aze: serve: what this server was tied to has ended: ending");
                    ending.starter_has_gone();
                }
            }
            Err(_) => {
                let why = read.map_or_else(
                    |error| error.to_string(),
                    |count| format!("{count} bytes instead of the volume's record"),
                );
                errln!("aze: serve: the starter of this server has gone away ({why}): ending");
                end_unready(&order, &dir, &ending);
            }
        }
    });
    (take, is_known)
}

/// Ends this process before it serves. A start of a volume that was there before leaves its directory for the next one.
fn end_unready(order: &Order, dir: &Path, ending: &Ending) -> ! {
    ending.remove_unfinished();
    ending.remove_local(order.slot, true);
    if order.joins {
        leave_node(order, dir);
    } else if order.keeps_directory && order.starts == 0 && order.others.is_none() {
        tidy(&order.volume, order.slot, dir);
    }
    std::process::exit(Exit::Again as i32)
}

/// Tells the starter; if it is gone, standard input has ended too, and that ends this process.
fn say(said: &Said) {
    let line = serde_json::to_string(said).expect("words of strings and numbers become JSON");
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Lets go of the starter's pipes, but for the input that a tied server ends with.
fn stand_alone(order: &Order) {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        for number in if order.is_tied { 1..2 } else { 0..2 } {
            // Without it a starter that reads to the end would wait for ours; it does not.
            let _ = sys::put_in_place(&null, number);
        }
    }
}

fn log_to(path: &PathBuf) -> Outcome<()> {
    let open = || -> std::io::Result<()> {
        let log: File = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        sys::put_in_place(&log, 2)
    };
    open().map_err(|error| Trouble::local(format!("open {}", path.display()), &error))
}

/// Removes the socket and the log of this server. Failures leave files behind, which the next 'aze up' of this name reports.
fn tidy_own(slot: u16, dir: &Path) {
    for kind in ["sock", "log"] {
        let _ = fs::remove_file(dir.join(format!("server-{slot}.{kind}")));
    }
}

/// Whether the volume's directory has the log of a server of this node, or of its launcher.
fn has_log(dir: &Path, of: &str) -> bool {
    let mut names =
        fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.any(|name| name.starts_with(of) && name.ends_with(".log"))
}

/// Removes the volume's directory on this node, if neither a server nor a mount here needs it, and the volume was not
/// started from here: this server has left, and the volume goes on.
fn leave_node(order: &Order, dir: &Path) {
    tidy_own(order.slot, dir);
    let is_needed = || Volume::open(&order.volume).is_ok_and(|volume| !volume.mounts().is_empty());
    if order.keeps_directory && !has_log(dir, "server-") && !has_log(dir, "launcher-") && !is_needed() {
        let _ = volume::remove_dir(dir);
    }
}

/// Ends what this node has of the volume, once its last server here has stopped.
fn tidy(name: &str, slot: u16, dir: &Path) {
    tidy_own(slot, dir);
    if has_log(dir, "server-") {
        return;
    }
    for mount in Volume::open(name).iter().flat_map(Volume::mounts) {
        let _ = aze_fuse::unmount(&mount.dir, true);
    }
    let _ = volume::remove_dir(dir);
}

/// Used by both ends: a secret as it travels in an order.
pub fn secret_text(secret: &Secret) -> String {
    aze_words::hex::write(&secret.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_one_server_does_not_end_the_volume() {
        let asked = Ending::default();
        assert!(asked.is_of_volume(false) && asked.is_of_volume(true), "it was asked to end");
        let alone = Ending::default();
        assert!(!alone.stop_by_signal(libc::SIGTERM), "there is no server to stop yet");
        assert!(!alone.is_of_volume(false));
    }

    #[test]
    fn a_signal_to_a_server_and_its_starter_ends_the_volume() {
        let ending = Ending::default();
        ending.stop_by_signal(libc::SIGTERM);
        ending.starter_has_gone();
        assert!(ending.is_of_volume(true));
    }

    #[test]
    fn a_signal_that_comes_after_the_end_changes_nothing() {
        let ending = Ending::default();
        ending.has_stopped();
        ending.stop_by_signal(libc::SIGTERM);
        assert!(ending.is_of_volume(false));
    }
}
