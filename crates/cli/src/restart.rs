//! `aze restart`: restarts a volume in directories after server failures; mounts survive.

use crate::exit::{Exit, Outcome, Trouble};
use crate::launch::who;
use crate::size;
use crate::up;
use crate::volume::{self, ServerRecord, Volume};
use aze_io::real::until;
use aze_proto::ids::MapEpoch;
use aze_words::errln;
use std::time::{Duration, Instant};

/// How long a launcher may take to end.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// How long a server that was ended by force may take to be gone: it has to give its memory back.
const GONE_TIME_MAX: Duration = Duration::from_secs(30);

/// How long it may take until a server that has just been killed is seen to be dead.
const DYING_TIME_MAX: Duration = Duration::from_secs(2);

/// Restart a volume in directories after server failures; mounts survive.
///
/// Ends the servers that are left and starts all of them on the directories that they had, at the
/// addresses that they had. Mounts stay: their operations wait for servers that are starting, and for dead ones for
/// 10 s.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze restart
  aze restart --name v1 --force      although all its servers run, since a disk was full")]
pub struct Args {
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// Also if all servers run.
    #[arg(short, long)]
    force: bool,
    /// How long the start may take; begins anew for as long as servers read their storage.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = size::parse_duration)]
    timeout: Duration,
    /// End the servers of this node only: what 'aze restart' runs on other nodes.
    #[arg(long, hide = true)]
    this_node: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let volume = Volume::meant(args.name.as_deref())?;
    let record = &volume.record;
    let name = &record.name;
    if !record.settings.lasts() {
        return Err(Trouble::new(
            Exit::Caller,
            format!("volume '{name}' is in memory: what a server held went with it; end it with 'aze down'"),
        ));
    }
    let here = volume::host();
    let (local, remote): (Vec<&ServerRecord>, Vec<&ServerRecord>) =
        record.servers.iter().partition(|server| server.host == here);
    if args.this_node {
        return end_here(&local).map(|()| Exit::Done);
    }
    let is_alive = |server: &&ServerRecord| match server.host == here {
        true => server.process.is_alive(),
        // A launcher ends with its server.
        false => server.launcher.is_some_and(|launcher| launcher.is_alive()),
    };
    let count_dead = || record.servers.iter().filter(|server| !is_alive(server)).count();
    if !args.force {
        // A process that was killed has to give its memory back before it is gone.
        until(Instant::now() + DYING_TIME_MAX, || count_dead() > 0);
    }
    let dead = count_dead();
    if dead == 0 && !args.force {
        return Err(Trouble::new(Exit::Caller, format!("all servers of volume '{name}' run: --force restarts them")));
    }
    if record.starts + 1 >= 1 << (u32::BITS - MapEpoch::CHANGE_BITS) {
        let text = format!("volume '{name}' was restarted too often: 'aze down', then 'aze up'");
        return Err(Trouble::new(Exit::Caller, text));
    }
    let secret = volume.secret()?;
    end_here(&local)?;
    remote.iter().for_each(|server| end_there(&volume, server));
    for launcher in record.servers.iter().filter_map(|server| server.launcher) {
        launcher.signal(libc::SIGTERM);
        launcher.wait(Instant::now() + LAST_MOMENT);
    }
    let record = up::again(record, &volume.dir, &secret, args.timeout)
        .map_err(|trouble| trouble.during(format!("restart volume '{name}', of which no server runs now")))?;
    errln!("volume '{name}': all {} servers run again ({dead} had died)", record.servers.len());
    Ok(Exit::Done)
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
    let end = ["restart", "--this-node", "--name", &volume.record.name];
    let Some(mut command) = volume.command_on(node, &end) else { return };
    if !command.status().is_ok_and(|status| status.success()) {
        errln!("aze: restart: {} could not be told to end", who(server.slot, Some(node)));
    }
}
