//! `aze shrink`: servers leave a volume, under the programs that use it.

use crate::exit::{Exit, Outcome, Trouble};
use crate::launch::who;
use crate::session::Session;
use crate::tally::Out;
use crate::volume::{self, Record, ServerRecord, Turn, Volume};
use crate::{show, size};
use aze_proto::error::Code;
use aze_proto::ids::ServerIndex;
use aze_words::errln;
use serde_json::json;
use std::time::{Duration, Instant};

/// Pause before the keeper is asked again that could move no slot at this moment.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the process of a server that has left may take to end: it lets clients go first, and tells other servers of
/// its last changes.
const GOING_TIME_MAX: Duration = Duration::from_secs(15);

/// Have servers of a volume leave it; programs go on.
///
/// What the servers hold moves, slot by slot, to those that stay, which need room for it. A request for a slot waits while that slot
/// moves; nothing is lost. Then the processes of the servers end, and their directories, if they have some, are marked (`volume.left`), and
/// what the servers kept there is removed. The volume works as a whole at every moment: if this command
/// is ended, the slots that have moved stay where they are, and the same command goes on. If the server that keeps the map leaves, another
/// one keeps it from then on; if the one with the lowest number leaves, which counts the starts of a volume in directories, the next one does.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze shrink --servers 2,3       these two leave the only volume, as 'aze status' numbers them
  aze shrink --hosts n3,n4       all servers of these nodes leave
  aze shrink --name v1 --servers 3 --json | jq .seconds")]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct Args {
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// The servers that leave, separated by commas.
    #[arg(long, value_name = "N,M", value_delimiter = ',', group = "which")]
    servers: Vec<u16>,
    /// The nodes whose servers leave, separated by commas.
    #[arg(long, value_name = "A,B", value_delimiter = ',', group = "which")]
    hosts: Vec<String>,
    /// Give up when no slot could be moved for this time.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = size::parse_duration)]
    timeout: Duration,
    /// Say at the end how many slots have moved, as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut volume = Volume::meant(args.name.as_deref())?;
    // Servers that join meanwhile would get slots of those that leave; and a volume that ends has none to move.
    let _alone = volume.take_turn(Turn::Grow, Instant::now())?;
    let session = Session::open(volume)?;
    let record = session.volume.record.clone();
    let name = &record.name;
    let named = named(&record, &args.servers, &args.hosts).inspect_err(|_| session.end())?;
    let told = || named.iter().map(|server| who(server.slot, Some(&server.host))).collect::<Vec<_>>().join(", ");
    let what = format!("have {} leave volume '{name}'", told());
    let servers: Vec<ServerIndex> = named.iter().map(|server| ServerIndex(server.slot)).collect();
    let begun = Instant::now();
    let left = leave(&session, &servers, args.timeout).map_err(|trouble| trouble.during(&what));
    // Without an answer the next command finds out.
    let _ = session.runtime.block_on(session.client.look_for_map());
    let noted = note(&session);
    session.end();
    let (moved, gone) = left?;
    noted?;
    let lasting: Vec<String> =
        named.iter().filter(|server| !has_ended(server)).map(|server| who(server.slot, Some(&server.host))).collect();
    if !lasting.is_empty() {
        errln!("aze: shrink: {} has left, and its process has not ended yet", lasting.join(", "));
    }
    let seconds = begun.elapsed().as_secs_f64();
    if gone.is_empty() {
        errln!("volume '{name}': {} left before", told());
    } else {
        errln!("volume '{name}': {} left, {} moved in {seconds:.1} s", told(), show::count(moved.into(), "slot"));
    }
    if args.json {
        let mut out = Out::new();
        out.json(&json!({
            "volume": name,
            "left": servers.iter().map(|server| server.0).collect::<Vec<_>>(),
            "slots_moved": moved,
            "seconds": seconds,
        }))?;
        out.flush()?;
    }
    Ok(Exit::Done)
}

/// The servers that are meant, each once.
fn named<'a>(record: &'a Record, servers: &[u16], hosts: &[String]) -> Outcome<Vec<&'a ServerRecord>> {
    let name = &record.name;
    let refused = |text: String| Err(Trouble::new(Exit::Caller, text));
    for slot in servers {
        if !record.servers.iter().any(|server| server.slot == *slot) {
            return refused(format!("volume '{name}' has no server {slot}: it has {}", record.servers.len()));
        }
    }
    let is_on = |server: &ServerRecord, host: &str| server.host == host || server.node.as_deref() == Some(host);
    for host in hosts {
        if !record.servers.iter().any(|server| is_on(server, host)) {
            return refused(format!("volume '{name}' has no server on '{host}': 'aze status' shows its hosts"));
        }
    }
    let is_meant =
        |server: &&ServerRecord| servers.contains(&server.slot) || hosts.iter().any(|host| is_on(server, host));
    Ok(record.servers.iter().filter(is_meant).collect())
}

/// Has all their slots moved; gives how many have, and which servers have left since the beginning.
fn leave(session: &Session, servers: &[ServerIndex], timeout: Duration) -> Outcome<(u32, Vec<ServerIndex>)> {
    let client = &session.client;
    let before = client.map();
    let (mut moved, mut last) = (0, None);
    let mut stay: Vec<ServerIndex> = servers.iter().copied().filter(|server| !before.has_left(*server)).collect();
    let gone = stay.clone();
    let mut progress_at = Instant::now();
    loop {
        match session.runtime.block_on(client.leave(servers)) {
            Ok((slots, staying)) => {
                if last != Some((slots, staying.len())) {
                    progress_at = Instant::now();
                    moved += last.map_or(0, |(before, _)| u32::saturating_sub(before, slots));
                }
                if last.is_none() {
                    // The first one has moved already.
                    let all = before.slots.iter().filter(|(_, slot)| servers.contains(&slot.primary)).count() as u32;
                    moved += all.saturating_sub(slots);
                }
                last = Some((slots, staying.len()));
                for server in stay.iter().filter(|server| !staying.contains(server)) {
                    errln!("server {server} has left; {} to move", show::count(slots.into(), "slot"));
                }
                stay = staying;
                if stay.is_empty() {
                    return Ok((moved, gone));
                }
            }
            // A slot that takes long is still being moved.
            Err(failure) if failure.code == Code::Busy || failure.code == Code::TimedOut => {
                if progress_at.elapsed() >= timeout {
                    let text = format!("no slot could be moved for {timeout:?} (--timeout); run it again to go on");
                    return Err(Trouble::volume(text, &failure));
                }
                std::thread::sleep(PAUSE);
            }
            Err(failure) => {
                let left = last.map(|(slots, _)| format!("{} not moved; ", show::count(slots.into(), "slot")));
                return Err(Trouble::volume(left.unwrap_or_else(|| "nothing was moved".into()), &failure));
            }
        }
    }
}

/// Notes in the record of this node which servers there are and which have left, as the map says that was seen last.
pub fn note(session: &Session) -> Outcome<()> {
    let map = session.client.map();
    volume::change_record(&session.volume.dir, |record| record.learn(&map)).map(drop)
}

/// Waits for the process of a server that has left, where this machine can see it.
fn has_ended(server: &ServerRecord) -> bool {
    let deadline = Instant::now() + GOING_TIME_MAX;
    if server.host == volume::host() {
        return server.process.wait(deadline);
    }
    // A launcher ends with its server.
    server.launcher.is_none_or(|launcher| launcher.wait(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;

    #[test]
    fn servers_are_named_by_number_or_by_host() {
        let record = examples::volume(&[Some("n0"), Some("n1"), Some("n1")]).record;
        let slots = |servers: &[u16], hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|host| host.to_string()).collect();
            named(&record, servers, &hosts).map(|named| named.iter().map(|server| server.slot).collect::<Vec<_>>())
        };
        assert_eq!(slots(&[2, 1, 2], &[]), Ok(vec![1, 2]));
        assert_eq!(slots(&[], &["n1"]), Ok(vec![1, 2]));
        assert_eq!(slots(&[], &["host-2"]), Ok(vec![2]), "as the node calls itself");
        assert!(slots(&[3], &[]).unwrap_err().text.contains("no server 3: it has 3"));
        assert!(slots(&[], &["n2"]).unwrap_err().text.contains("no server on 'n2'"));
    }
}
