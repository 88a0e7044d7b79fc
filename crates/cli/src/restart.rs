//! `aze restart`: brings servers of a volume in directories back that have died, or restarts all of it; mounts survive.

use crate::exit::{Exit, Outcome, Trouble};
use crate::launch::who;
use crate::session::Session;
use crate::size;
use crate::up;
use crate::volume::{self, ServerRecord, Turn, Volume};
use aze_io::real::until;
use aze_proto::ids::MapEpoch;
use aze_words::errln;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a launcher may take to end.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// How long a server that was ended by force may take to be gone: it has to give its memory back.
const GONE_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a server may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);

/// How long it may take until a server that has just been killed is seen to be dead.
const DYING_TIME_MAX: Duration = Duration::from_secs(2);

/// Bring servers of a volume in directories back that have died, or restart all of it; mounts survive.
///
/// Starts the servers that have died on the directories that they had, at the addresses that they had. The others go
/// on, and operations wait for those that are starting. What a dead server has is an error meanwhile: at once if its end was seen, else
/// after 10 s; a change that it was sent before waits for it as long. With --force, or if no server runs,
/// ends those that are left and starts all of them; with --without all but some, whose parts are missing then. Those come with the next
/// start of all servers.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze restart                        those servers that have died, while the others go on
  aze restart --server 2             that one; it is ended first if it still runs
  aze restart --name v1 --force      all of them, although they run, since a disk was full
  aze restart --without 2            all but server 2, whose disk is lost or will be back in a week")]
pub struct Args {
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// Bring this server back, and no other.
    #[arg(long, value_name = "N", conflicts_with = "force")]
    server: Option<u16>,
    /// Start the volume without these servers: what they have is EIO. It needs a majority of those that decided about it last.
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "server")]
    without: Vec<u16>,
    /// End the servers that run, and start all of them.
    #[arg(short, long)]
    force: bool,
    /// How long the start may take; begins anew for as long as servers read their storage.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = size::parse_duration)]
    timeout: Duration,
    /// End the servers of this node only, or the one that --server names: what 'aze restart' runs on other nodes.
    #[arg(long, hide = true)]
    this_node: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut volume = Volume::meant(args.name.as_deref())?;
    // 'aze restart' on another node has it when it runs this command here.
    let _alone = if args.this_node { None } else { Some(volume.take_turn(Turn::Restart, Instant::now())?) };
    let mut left_out = BTreeSet::new();
    if volume.record.settings.lasts() && !args.this_node {
        left_out = learn(&mut volume)?;
    }
    let record = &volume.record;
    let name = &record.name;
    if !record.settings.lasts() {
        return Err(Trouble::new(
            Exit::Caller,
            format!("volume '{name}' is in memory: what a server held went with it; end it with 'aze down'"),
        ));
    }
    let here = volume::host();
    let local = |servers: &[&ServerRecord]| -> Vec<&ServerRecord> {
        record
            .servers
            .iter()
            .filter(|server| server.host == here && servers.iter().any(|one| one.slot == server.slot))
            .collect()
    };
    let all: Vec<&ServerRecord> = record.members().collect();
    let named: Vec<&ServerRecord> =
        all.iter().copied().filter(|server| args.server.is_none_or(|slot| slot == server.slot)).collect();
    if let (Some(slot), true) = (args.server, named.is_empty()) {
        let text = format!("volume '{name}' has no server {slot}: it has {}", all.len());
        return Err(Trouble::new(Exit::Caller, text));
    }
    if let Some(slot) = args.without.iter().find(|slot| !all.iter().any(|server| server.slot == **slot)) {
        let text = format!("--without {slot}: volume '{name}' has no server {slot}: it has {}", all.len());
        return Err(Trouble::new(Exit::Caller, text));
    }
    if args.this_node {
        return end_here(&local(&named)).map(|()| Exit::Done);
    }
    let is_alive = |server: &&ServerRecord| match server.host == here {
        true => server.process.is_alive(),
        // A launcher ends with its server.
        false => server.launcher.is_some_and(|launcher| launcher.is_alive()),
    };
    let dead =
        || -> BTreeSet<u16> { all.iter().filter(|server| !is_alive(server)).map(|server| server.slot).collect() };
    if !args.force {
        // A process that was killed has to give its memory back before it is gone, and until then it looks alive. Several may
        // have been killed at the same moment: one that answers was not.
        let is_settled = || {
            let dead = dead();
            !dead.is_empty() && (dead.len() == all.len() || dead.union(&answering(&volume)).count() == all.len())
        };
        if args.server.is_none() || !dead().is_empty() {
            until(Instant::now() + DYING_TIME_MAX, is_settled);
        }
    }
    let secret = volume.secret()?;
    let ended = dead();
    if ended.is_empty() && !args.force && args.server.is_none() {
        return Err(Trouble::new(
            Exit::Caller,
            format!(
                "all servers of volume '{name}' run: 'aze restart --server N' ends one that does not answer ('aze status') and brings it back, --force restarts all"
            ),
        ));
    }
    let back: BTreeSet<u16> = args.server.map_or_else(|| ended.clone(), |slot| BTreeSet::from([slot]));
    let gone: BTreeSet<u16> = ended.union(&back).copied().collect();
    if args.server.is_some() && gone.len() == all.len() {
        let text = format!("volume '{name}': no other server runs: 'aze restart' without --server starts all of them");
        return Err(Trouble::new(Exit::Caller, text));
    }
    if !args.without.is_empty() && !args.force && gone.len() < all.len() {
        let text =
            format!("servers of volume '{name}' run: --force ends them, and starts all that --without does not name");
        return Err(Trouble::new(Exit::Caller, text));
    }
    if !args.force
        && gone.len() < all.len()
        && let Some(slot) = back.iter().find(|slot| left_out.contains(slot))
    {
        let text = format!(
            "server {slot} was left out when volume '{name}' was last started, and comes with the next start of all servers: \
             'aze restart --force' ends those that run, and starts all"
        );
        return Err(Trouble::new(Exit::Caller, text));
    }
    if !args.force && gone.len() < all.len() {
        let come: Vec<&ServerRecord> = all.iter().copied().filter(|server| back.contains(&server.slot)).collect();
        end(&volume, &come, &local(&come))?;
        let numbers: Vec<String> = back.iter().map(u16::to_string).collect();
        let which = match numbers.len() {
            1 => format!("server {}", numbers[0]),
            _ => format!("servers {}", numbers.join(", ")),
        };
        let why = format!("bring {which} of volume '{name}' back, whose other servers go on");
        up::back(record, &volume.dir, &secret, (&back, &gone), args.timeout).map_err(|trouble| trouble.during(why))?;
        let left: Vec<String> = ended.difference(&back).map(u16::to_string).collect();
        let left = if left.is_empty() { String::new() } else { format!("; away: {}", left.join(", ")) };
        errln!("volume '{name}': {which} {} back{left}", if numbers.len() == 1 { "is" } else { "are" });
        return Ok(Exit::Done);
    }
    let dead = ended.len();
    if record.starts + 1 >= 1 << (u32::BITS - MapEpoch::CHANGE_BITS) {
        let text = format!("volume '{name}' was restarted too often: 'aze down', then 'aze up'");
        return Err(Trouble::new(Exit::Caller, text));
    }
    end(&volume, &all, &local(&all))?;
    let without: BTreeSet<u16> = args.without.iter().copied().collect();
    let record = up::again(record, &volume.dir, &secret, &without, args.timeout)
        .map_err(|trouble| trouble.during(format!("restart volume '{name}', of which no server runs now")))?;
    let count = record.members().count();
    match without.is_empty() {
        true => errln!("volume '{name}': all {count} servers run again ({dead} had died)"),
        false => {
            let away: Vec<String> = without.iter().map(u16::to_string).collect();
            let there = count - without.len();
            errln!(
                "volume '{name}': {there} of {count} servers run again ({dead} had died); left out: {}",
                away.join(", ")
            );
        }
    }
    Ok(Exit::Done)
}

/// Notes which servers there are now, and which have left, if one of them answers: 'aze grow' and 'aze shrink' may have run elsewhere. Gives those
/// that were left out of the last start.
fn learn(volume: &mut Volume) -> Outcome<BTreeSet<u16>> {
    let Ok(session) = Session::open_if_there(volume.clone(), ANSWER_TIME_MAX) else { return Ok(BTreeSet::new()) };
    let map = session.client.map();
    session.end();
    let known = volume.record.servers.iter().filter(|server| !server.left).map(|server| server.slot);
    if !known.eq(map.members().map(|server| server.0)) {
        volume.record = volume::change_record(&volume.dir, |record| record.learn(&map))?;
    }
    let left_out = (0u16..).zip(&map.servers).filter(|(_, info)| info.is_left_out());
    Ok(left_out.map(|(slot, _)| slot).collect())
}

/// The servers that answer at this moment.
fn answering(volume: &Volume) -> BTreeSet<u16> {
    let Ok(session) = Session::open_if_there(volume.clone(), ANSWER_TIME_MAX) else { return BTreeSet::new() };
    let answers = session.runtime.block_on(session.client.status());
    session.end();
    answers.into_iter().filter_map(|(server, answer)| answer.is_ok().then_some(server.0)).collect()
}

/// Ends servers, some of them of this node, and their launchers.
fn end(volume: &Volume, servers: &[&ServerRecord], local: &[&ServerRecord]) -> Outcome<()> {
    end_here(local)?;
    let is_local = |server: &ServerRecord| local.iter().any(|here| here.slot == server.slot);
    servers.iter().filter(|server| !is_local(server)).for_each(|server| end_there(volume, server));
    for launcher in servers.iter().filter_map(|server| server.launcher) {
        launcher.signal(libc::SIGTERM);
        launcher.wait(Instant::now() + LAST_MOMENT);
    }
    Ok(())
}

/// Ends servers of this node at once: everything that they have acknowledged is in their directories,
/// and a server that ends properly would end its mounts, too.
fn end_here(servers: &[&ServerRecord]) -> Outcome<()> {
    servers.iter().for_each(|server| server.process.signal(libc::SIGKILL));
    for server in servers {
        if !server.process.wait(Instant::now() + GONE_TIME_MAX) {
            let text = format!("{} (pid {}) does not end", who(server.slot, None), server.process.pid);
            return Err(Trouble::new(Exit::Again, text));
        }
    }
    Ok(())
}

/// Has the server of another node ended there; one that goes on keeps its directory from the new one.
fn end_there(volume: &Volume, server: &ServerRecord) {
    let Some(node) = &server.node else { return };
    let slot = server.slot.to_string();
    let end = ["restart", "--this-node", "--name", &volume.record.name, "--server", &slot];
    let Some(mut command) = volume.command_on(node, &end) else { return };
    if !command.status().is_ok_and(|status| status.success()) {
        errln!("aze: restart: {} could not be told to end", who(server.slot, Some(node)));
    }
}
