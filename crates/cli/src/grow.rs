//! `aze grow`: servers join a volume in use, under the programs that use it.

use crate::exit::{Exit, Outcome, Trouble};
use crate::launch::who;
use crate::session::Session;
use crate::tally::Out;
use crate::volume::{self, Record, Turn, Volume};
use crate::{kept, show, shrink, size, up};
use aze_proto::error::Code;
use aze_proto::ids::ServerIndex;
use aze_proto::place::ShardMap;
use aze_words::errln;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Pause before the keeper is asked again that could move no slot at this moment.
const PAUSE: Duration = Duration::from_millis(100);

/// Have further servers join a volume in use; programs go on.
///
/// Starts servers as 'aze up' did: each may hold as much as the others if --size was given, else half of the free memory of its
/// node, shared with the other servers there. Then parts of the volume (slots) move to them, one by one,
/// until all servers have as many, but for one. A request for a slot waits while that slot
/// moves; nothing is lost. The volume works as a whole at every moment: if this command is ended, the servers that have joined stay,
/// and the same command goes on with them instead of starting others; without --servers and --hosts it starts none.
/// The servers of a volume in directories get directories, too: server-N in the places of --storage, which take turns, or else in
/// those of the volume. From then on 'aze up' wants all places and the new number of servers.
/// A volume can grow to as many servers as it has slots: 8 for each server with which it was made.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze grow --servers 2               two more on this machine, or on the nodes of the volume that have the fewest
  aze grow --hosts n3,n4             one more on each of these nodes
  aze grow --hosts n3 --servers 2    two more on that node
  aze grow --servers 1 --storage /disk2    one more, with a directory server-N there
  aze grow                           goes on with what was interrupted
  aze grow --name v1 --hosts n3 --json | jq .seconds")]
pub struct Args {
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// So many more servers: in all, or on each of --hosts (1 if not given).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    servers: Option<u16>,
    /// The nodes on which they are started, separated by commas, with the launcher of the volume. They may have servers already.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Where the new servers keep their parts of a volume in directories; the places of the volume if not given. On other nodes absolute
    /// paths.
    #[arg(long, value_name = "DIR,…", value_delimiter = ',')]
    storage: Vec<String>,
    /// How long the start may take, and for how long to go on if no slot can be moved.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = size::parse_duration)]
    timeout: Duration,
    /// Say at the end which servers have joined and how many slots have moved, as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut volume = Volume::meant(args.name.as_deref())?;
    let name = volume.record.name.clone();
    let begun = Instant::now();
    // Two starts here would take the same numbers.
    let _alone = volume.take_turn(Turn::Grow, begun)?;
    let session = Session::open(volume)?;
    let grown = grow(&session, args);
    let noted = shrink::note(&session);
    session.end();
    let (joined, moved) = grown.map_err(|trouble| trouble.during(format!("have servers join volume '{name}'")))?;
    noted?;
    let seconds = begun.elapsed().as_secs_f64();
    let told: Vec<String> = joined.iter().map(|(server, host)| who(server.0, Some(host))).collect();
    if joined.is_empty() {
        errln!("volume '{name}': no server has joined, {} moved in {seconds:.1} s", show::count(moved.into(), "slot"));
    } else {
        errln!(
            "volume '{name}': {} joined, {} moved in {seconds:.1} s",
            told.join(", "),
            show::count(moved.into(), "slot")
        );
    }
    if args.json {
        let mut out = Out::new();
        out.json(&json!({
            "volume": name,
            "joined": joined.iter().map(|(server, _)| server.0).collect::<Vec<_>>(),
            "slots_moved": moved,
            "seconds": seconds,
        }))?;
        out.flush()?;
    }
    Ok(Exit::Done)
}

/// Servers that have joined, with their hosts, and how many slots have moved.
type Grown = (Vec<(ServerIndex, String)>, u32);

fn grow(session: &Session, args: &Args) -> Outcome<Grown> {
    let client = &session.client;
    session.ask("ask for the servers of the volume", client.look_for_map())?;
    let (map, mut record) = (client.map(), session.volume.record.clone());
    record.learn(&map);
    let more = missing(args, &record, &map)?;
    check(&record, &map, more.len())?;
    let storage = storage(args, &record)?;
    if !more.is_empty() {
        let secret = session.volume.secret()?;
        let dir = &session.volume.dir;
        let known = record.servers.len();
        let (mut grown, started) = up::more(&record, dir, &secret, &map, &more, &storage, args.timeout);
        note_places(&mut grown, &storage);
        // Also if a later one has failed. Meanwhile 'aze restart' may have noted other processes of the servers that were there.
        volume::change_record(dir, |record| {
            record.take_in(&grown.servers[known..]);
            let (now, grown) = (&mut record.settings, grown.settings);
            (now.storage, now.capacity_bytes, now.memory_bytes) =
                (grown.storage, grown.capacity_bytes, grown.memory_bytes);
        })?;
        started?;
        session.ask("ask for the servers of the volume", client.look_for_map())?;
    }
    let joining = client.map().joining().collect::<Vec<_>>();
    let moved = balance(session, args.timeout)?;
    let map = client.map();
    let mut joined = Vec::new();
    for server in joining {
        let host = map.server(server).map(|info| info.host.clone()).unwrap_or_default();
        if map.is_gone(server) {
            let why = "it joined, and its process ended before it had a part of the volume: run 'aze grow' again";
            return Err(Trouble::new(Exit::Again, format!("{}: {why}", who(server.0, Some(&host)))));
        }
        joined.push((server, host));
    }
    Ok((joined, moved))
}

/// On which nodes servers are to be started: those that an interrupted command has had join, and that do not have their share yet,
/// count.
fn missing(args: &Args, record: &Record, map: &ShardMap) -> Outcome<Vec<Option<String>>> {
    let refused = |text: String| Err(Trouble::new(Exit::Caller, text));
    let name = &record.name;
    let by_launcher = record.settings.launcher.is_some();
    let mut hosts: Vec<&str> = Vec::new();
    for host in args.hosts.iter().map(|host| host.trim()).filter(|host| !host.is_empty()) {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    if !args.hosts.is_empty() && !by_launcher {
        return refused(format!(
            "--hosts: volume '{name}' was started on this machine only ('aze up' without --hosts): its servers listen where no other \
             node reaches them, and --servers starts more here"
        ));
    }
    let here = volume::host();
    if args.servers.is_some() && !by_launcher && !record.members().any(|server| server.host == here) {
        return refused(format!(
            "volume '{name}' was started on another machine, without --hosts: run 'aze grow' there"
        ));
    }
    let node = |server: ServerIndex| {
        record.servers.iter().find(|known| known.slot == server.0).and_then(|known| known.node.clone())
    };
    let host = |server: ServerIndex| map.server(server).map(|info| info.host.clone());
    let mut joining: Vec<ServerIndex> = map.joining().collect();
    let each = usize::from(args.servers.unwrap_or(u16::from(!hosts.is_empty())));
    let mut more = Vec::new();
    if hosts.is_empty() {
        let mut counts: Vec<(Option<String>, usize)> = Vec::new();
        for server in record.members() {
            match counts.iter_mut().find(|(node, _)| *node == server.node) {
                Some((_, count)) => *count += 1,
                None => counts.push((server.node.clone(), 1)),
            }
        }
        for _ in joining.len()..each {
            let Some((node, count)) = counts.iter_mut().min_by_key(|(_, count)| *count) else { break };
            *count += 1;
            more.push(node.clone());
        }
        return Ok(more);
    }
    for wanted in hosts {
        let is_there =
            |server: &ServerIndex| node(*server).as_deref() == Some(wanted) || host(*server).as_deref() == Some(wanted);
        let there = joining.iter().filter(|server| is_there(server)).count();
        joining.retain(|server| !is_there(server));
        more.extend((there..each).map(|_| Some(wanted.to_owned())));
    }
    Ok(more)
}

/// The places in which the new servers of a volume in directories keep their parts.
fn storage(args: &Args, record: &Record) -> Outcome<Vec<PathBuf>> {
    let text = args.storage.join(",");
    if !record.settings.lasts() {
        return match args.storage.is_empty() {
            true => Ok(Vec::new()),
            false => Err(Trouble::usage(format!("--storage {text}: volume '{}' is in memory", record.name))),
        };
    }
    let known: Vec<PathBuf> = record.settings.storage.split(',').map(PathBuf::from).collect();
    // On another node that is not seen: the new servers have one directory each all the same.
    if record.members().any(|server| kept::there(&known, server.slot).len() > 1) {
        let why = "its servers have several directories each, and servers of such a volume do not join";
        return Err(Trouble::new(Exit::Caller, format!("volume '{}' does not grow: {why}", record.name)));
    }
    if args.storage.is_empty() {
        return Ok(known);
    }
    let is_remote = record.settings.launcher.is_some();
    let place = |place: &String| {
        if place.is_empty() || place == "mem" || is_remote && !place.starts_with('/') {
            return Err(Trouble::usage(format!(
                "--storage {text}: give directories, on other nodes by absolute paths"
            )));
        }
        std::path::absolute(place).map_err(|error| Trouble::local(format!("--storage {place}"), &error))
    };
    let places = args.storage.iter().map(place).collect::<Outcome<Vec<PathBuf>>>()?;
    kept::refuse_twice(&places, &text)?;
    match places.iter().find(|place| kept::keeps_one(place)) {
        Some(file) => Err(Trouble::usage(format!("--storage {text}: {} is no directory", file.display()))),
        None => Ok(places),
    }
}

/// Notes that there are parts of the volume in these places, too.
fn note_places(record: &mut Record, places: &[PathBuf]) {
    let mut known: Vec<String> = record.settings.storage.split(',').map(str::to_owned).collect();
    for place in places.iter().map(|place| place.display().to_string()) {
        if !known.contains(&place) {
            known.push(place);
        }
    }
    if record.settings.lasts() {
        record.settings.storage = known.join(",");
    }
}

/// Refuses what cannot be, before anything is started.
fn check(record: &Record, map: &ShardMap, more: usize) -> Outcome<()> {
    let refused = |text: String| Err(Trouble::new(Exit::Caller, text));
    if record.settings.is_local() {
        return refused(
            "a volume on local disks of a job does not grow: start it with all nodes and servers that it needs".into(),
        );
    }
    if record.settings.backing.is_some() {
        return refused("a volume over a backing does not grow: its slots do not move between servers".into());
    }
    map.check_slots_move(record.settings.lasts()).or_else(refused)?;
    map.check_room_for(more).or_else(refused)
}

/// Has slots moved until all servers have as many, but for one; gives how many have.
fn balance(session: &Session, timeout: Duration) -> Outcome<u32> {
    let client = &session.client;
    let map = client.map();
    let planned = map.slots.moves_to_balance(&map.members().collect::<Vec<_>>());
    let mut last = None;
    let mut progress_at = Instant::now();
    loop {
        match session.runtime.block_on(client.balance()) {
            Ok(slots) => {
                if last != Some(slots) {
                    progress_at = Instant::now();
                }
                last = Some(slots);
                if slots == 0 {
                    break;
                }
            }
            // A slot that takes long is still being moved; and a server may have died, which is seen by others.
            Err(failure) if failure.code == Code::Busy || failure.is_silence() => {
                if progress_at.elapsed() >= timeout {
                    let text =
                        format!("no slot could be moved for {timeout:?} (--timeout); run 'aze grow' again to go on");
                    return Err(Trouble::volume(text, &failure));
                }
                std::thread::sleep(PAUSE);
            }
            Err(failure) => {
                let left = last.map(|slots| format!("{} not moved; ", show::count(slots.into(), "slot")));
                return Err(Trouble::volume(left.unwrap_or_else(|| "nothing was moved".into()), &failure));
            }
        }
    }
    if planned > 0 {
        // Without an answer the next command finds out.
        let _ = session.runtime.block_on(client.look_for_map());
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;
    use aze_proto::ids::MapEpoch;
    use aze_proto::limits::SERVERS_MAX;
    use aze_proto::slots::SlotTable;

    fn args(servers: Option<u16>, hosts: &[&str]) -> Args {
        let hosts = hosts.iter().map(|host| host.to_string()).collect();
        let storage = Vec::new();
        Args { name: None, servers, hosts, storage, timeout: Duration::from_secs(1), json: false }
    }

    /// A map with a server on each of these hosts; so many of them, the last ones, are joining.
    fn map(hosts: &[&str], joining: usize) -> ShardMap {
        let info = |(at, host): (usize, &&str)| examples::info(host, at >= hosts.len() - joining);
        ShardMap {
            epoch: MapEpoch(1),
            keeper: ServerIndex(0),
            group: aze_proto::place::KeeperGroup::default(),
            chunk_bits: 20,
            owner_uid: 0,
            owner_gid: 0,
            volume: "v".into(),
            servers: hosts.iter().enumerate().map(info).collect(),
            slots: SlotTable::modular(4096, 2).expect("two servers"),
        }
    }

    #[test]
    fn servers_go_to_the_nodes_meant_and_those_that_are_joining_count() {
        let mut record = examples::volume(&[Some("n0"), Some("n1")]).record;
        record.settings.launcher = Some(vec!["ssh".into(), "{host}".into()]);
        let nodes = |args: &Args, map: &ShardMap, record: &Record| {
            let more = missing(args, record, map).expect("it can be");
            more.into_iter().map(|node| node.unwrap_or_default()).collect::<Vec<_>>()
        };
        let two = map(&["host-0", "host-1"], 0);
        assert_eq!(nodes(&args(None, &["n2", "n3", "n2"]), &two, &record), ["n2", "n3"]);
        assert_eq!(nodes(&args(Some(2), &["n2"]), &two, &record), ["n2", "n2"]);
        assert_eq!(nodes(&args(Some(3), &[]), &two, &record), ["n0", "n1", "n0"], "to those with the fewest");
        assert!(nodes(&args(None, &[]), &two, &record).is_empty());
        let three = map(&["host-0", "host-1", "n2"], 1);
        assert_eq!(nodes(&args(None, &["n2", "n3"]), &three, &record), ["n3"], "it has joined before");
        assert_eq!(nodes(&args(Some(2), &[]), &three, &record).len(), 1);
    }

    #[test]
    fn hosts_are_for_volumes_that_other_nodes_reach() {
        let record = examples::volume(&[None]).record;
        let why = missing(&args(None, &["n2"]), &record, &map(&["host-0"], 0)).expect_err("it is refused");
        assert!(why.text.contains("started on this machine only"), "{why}");
    }

    #[test]
    fn what_cannot_grow_is_refused() {
        let record = examples::volume(&[None, None]).record;
        let two = map(&["host-0", "host-1"], 0);
        assert_eq!(check(&record, &two, 14), Ok(()));
        let why = check(&record, &two, 15).expect_err("16 slots").text;
        assert!(why.contains("15 more servers are too many") && why.contains("16 of the slots"), "{why}");
        let mut ended = two.clone();
        ended.servers[1].ended = true;
        assert!(check(&record, &ended, 1).expect_err("it has ended").text.contains("no slot moves"));
        let mut numbers = two;
        numbers.servers = vec![examples::info("h", false); SERVERS_MAX.into()];
        numbers.servers[1..].iter_mut().for_each(|info| info.left = true);
        assert!(check(&record, &numbers, 1).expect_err("all numbers").text.contains("4096 numbers"));
    }
}
