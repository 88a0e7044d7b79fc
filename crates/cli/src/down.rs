//! `aze down`: ends a volume and leaves nothing of it behind.

mod delete;
mod unsaved;

use crate::exit::{Exit, Outcome, Trouble};
use crate::launch::who;
use crate::local_disks;
use crate::mounts;
use crate::process::Process;
use crate::session::Session;
use crate::sys;
use crate::volume::{self, MountRecord, Record, ServerRecord, Turn, VARIABLE, Volume};
use aze_words::errln;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long servers and mounts get to end by themselves.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same for servers that have to write their memory to disks.
const PATIENCE_PERSISTENT: Duration = Duration::from_secs(120);

/// How long other commands that start servers of the volume get.
const PATIENCE_OTHERS: Duration = Duration::from_secs(60);

/// How long a process gets between the polite signal and the other one.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// How long servers are asked before they are taken for unreachable.
const ASK_TIME: Duration = Duration::from_secs(3);

/// End a volume; its files are gone, unless they are kept in directories.
///
/// Unmounts it, stops its servers, and removes all traces of it but for those directories.
/// A volume that was staged in, or started with 'aze up --stage-out', ends only if all that it holds is elsewhere,
/// too: else exit code 8, and nothing has ended. Exit code 7: a part cannot be looked at, since servers are lost; or
/// the volume has ended, and a server could not keep its part, since its storage had failed or failed at the end. Exit code 4:
/// directories of the volume are closed to this user, who cannot look into them; nothing has ended.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze down
  aze down --name v1 --force      even while a program uses a mount of it
  aze down --stage-out            objects that are nowhere else go to the directory of 'aze up --stage-out' first
  aze down --discard              they are lost
  aze down --name v1 --delete     and remove the directories that keep it, after asking for its name
  aze down --all                  every volume of yours that this node knows, by force
  aze down --all --this-node --user anna    as root, on a node that a job of hers has left")]
pub struct Args {
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// Take mounts away from programs that use them.
    #[arg(short, long)]
    force: bool,
    /// Remove also the directories that keep it: the volume is gone for good.
    #[arg(long)]
    delete: bool,
    /// With --delete: do not ask for the volume's name.
    #[arg(long, requires = "delete")]
    yes: bool,
    /// End it also if that loses objects that are nowhere else.
    #[arg(long)]
    discard: bool,
    /// First stage out, with a receipt, all objects that are nowhere else: to DIR, or to the directory of 'aze up
    /// --stage-out'.
    #[arg(long, value_name = "DIR", num_args = 0..=1, conflicts_with_all = ["discard", "all", "this_node"])]
    stage_out: Option<Option<PathBuf>>,
    /// Every volume of yours that this node knows, each as with --force.
    #[arg(long, conflicts_with_all = ["name", "delete"])]
    all: bool,
    /// End no server of another node by a command there: for a job's epilog, which runs on each of its nodes.
    #[arg(long)]
    this_node: bool,
    /// As root: volumes of this user, by name or number.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    if let Some(user) = &args.user {
        act_for(user)?;
    }
    if !args.all {
        return one(args, args.name.as_deref());
    }
    let names = volume::names();
    if names.is_empty() {
        errln!("nothing to end: no volume runs on this machine");
    }
    let mut worst = Exit::Done;
    for name in names {
        worst = worst.max(one(args, Some(&name)).unwrap_or_else(|trouble| {
            errln!("aze: down: {trouble}");
            trouble.exit
        }));
    }
    Ok(worst)
}

/// Goes on as that user, whose volumes are where that user's commands find them.
fn act_for(user: &str) -> Outcome<()> {
    if sys::uid() != 0 {
        return Err(Trouble::new(Exit::Denied, format!("--user {user}: only root may end volumes of other users")));
    }
    let ids = sys::ids_of(user).or_else(|| user.parse().ok().map(|uid| (uid, uid)));
    let (uid, gid) = ids.ok_or_else(|| {
        Trouble::new(Exit::NotFound, format!("--user {user}: no such user on this machine: give the number"))
    })?;
    // SAFETY: no other thread runs yet that could look at the environment.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", format!("/run/user/{uid}")) };
    sys::become_user(uid, gid).map_err(|error| Trouble::local(format!("become user {uid}"), &error))
}

/// Ends one volume.
fn one(args: &Args, name: Option<&str>) -> Outcome<Exit> {
    let mut volume = match Volume::meant(name) {
        Ok(volume) => volume,
        Err(trouble) if trouble.exit == Exit::NotFound => {
            let named = name.map(str::to_owned).or_else(|| std::env::var(VARIABLE).ok());
            match named.filter(|name| volume::is_name(name)) {
                Some(name) if volume::clear_abandoned_start(&name)? => {
                    errln!("volume '{name}' was never complete: cleared away");
                }
                _ => errln!("nothing to end: {trouble}"),
            }
            return Ok(Exit::Done);
        }
        Err(trouble) => return Err(trouble),
    };
    if args.delete && !args.yes {
        delete::ask(&volume.record.name, &delete::parts(&volume)?)?;
    }
    let _alone = match take_turns(args, &mut volume) {
        Err(trouble) if trouble.exit == Exit::NotFound => {
            errln!("nothing to end: {trouble}");
            return Ok(Exit::Done);
        }
        taken => taken?,
    };
    let name = &volume.record.name;
    let parts = if args.delete { delete::parts(&volume)? } else { Vec::new() };
    // 'aze down' on another node has looked before it runs this command here; and an epilog has no user who could decide.
    let guard = if args.discard || args.this_node { None } else { unsaved::guard(&volume, args.stage_out.as_ref())? };
    let had_mounts = !volume.mounts().is_empty();
    end_mounts(&volume, args.force || args.all || args.this_node)?;
    if let Some(guard) = guard.as_ref().filter(|_| had_mounts) {
        // Programs may have written through them since.
        guard.check()?;
    }
    let account = guard.map(unsaved::Guard::finish).or_else(|| unsaved::account(&volume));
    let here = volume::host();
    // 'aze down' on another node has asked the servers before it runs this command here.
    let (were_asked, mut record) = (args.this_node && !args.all, volume.record.clone());
    let (answers, mut failed) = if were_asked { Default::default() } else { shut_down(&volume, &mut record) };
    let (local, remote): (Vec<&ServerRecord>, Vec<&ServerRecord>) =
        record.servers.iter().partition(|server| server.host == here);
    let answered = |server: &ServerRecord| answers.contains(&server.slot);
    let lasts = volume.record.settings.lasts();
    let is_ending = lasts && (were_asked || !answers.is_empty());
    let deadline = Instant::now() + if is_ending { PATIENCE_PERSISTENT } else { PATIENCE };
    for server in &local {
        let what = who(server.slot, server.node.as_deref());
        let killed = !end(&what, server.process, deadline) && is_ending;
        let why = volume::unkept(&volume.dir, server.slot).or_else(|| killed.then(|| "it was ended by force".into()));
        if let Some(why) = why.filter(|_| !were_asked) {
            failed.entry(server.slot).or_insert_with(|| format!("{what}: {why}"));
        }
    }
    local.iter().for_each(|server| clear(server));
    let mut lost = Vec::new();
    if !args.this_node {
        let silent = |server: &&ServerRecord| {
            let has_ended = has_ended(server, deadline);
            // What one that was killed has left on its node's disk is removed there.
            !(answered(server) || has_ended && server.place.is_none())
        };
        lost = remote.into_iter().filter(silent).collect();
        lost.retain(|server| !end_remote(&volume, server));
    }
    for launcher in local.iter().filter_map(|server| server.launcher) {
        end("a launcher", launcher, deadline);
    }
    volume.remove()?;
    if lost.is_empty() {
        delete::remove(&parts)?;
        let is_kept = volume.record.settings.is_kept();
        if let Some(account) = account.filter(|_| !is_kept || args.delete) {
            account.remove_ledgers()?;
        }
        if is_kept && !args.delete && !failed.is_empty() {
            let failed: Vec<String> = failed.into_values().collect();
            let text = format!(
                "volume '{name}' has stopped, and is kept in {}; what was not written there may be lost, since these servers could not \
                 keep it: {}: mend the storage, and look at the files with 'aze up' and 'aze check'",
                record.settings.storage,
                failed.join("; ")
            );
            return Err(Trouble::new(Exit::Fatal, text));
        }
        match is_kept {
            _ if args.delete => errln!("volume '{name}' has ended, and what kept it is removed"),
            true => errln!("volume '{name}' has stopped; it is kept in {}", volume.record.settings.storage),
            false => errln!("volume '{name}' has ended"),
        }
        return Ok(Exit::Done);
    }
    let lost: Vec<String> = lost
        .iter()
        .map(|server| format!("{} (pid {})", who(server.slot, Some(&server.host)), server.process.pid))
        .collect();
    Err(Trouble::new(
        Exit::Again,
        format!("end volume '{name}': these may still run: {}: end them on their nodes", lost.join(", ")),
    ))
}

/// Waits until no other command starts servers of the volume, and keeps others from it: servers that start while the volume ends would
/// stay behind.
fn take_turns(args: &Args, volume: &mut Volume) -> Outcome<Vec<File>> {
    // 'aze down' on another node has them when it runs this command here; and an epilog comes after all commands of its job.
    if args.this_node {
        return Ok(Vec::new());
    }
    let take = |turn| match volume.take_turn(turn, Instant::now()) {
        Err(trouble) if trouble.exit == Exit::Again => {
            errln!("aze: down: {trouble}: waiting up to {} s", PATIENCE_OTHERS.as_secs());
            match volume.take_turn(turn, Instant::now() + PATIENCE_OTHERS) {
                Err(trouble) if args.force && trouble.exit == Exit::Again => {
                    errln!("aze: down: {trouble}: --force ends the volume all the same");
                    Ok(None)
                }
                taken => taken.map(Some),
            }
        }
        taken => taken.map(Some),
    };
    let taken: Vec<Option<File>> = [Turn::Grow, Turn::Restart].into_iter().map(take).collect::<Outcome<_>>()?;
    Ok(taken.into_iter().flatten().collect())
}

/// Unmounts idle mounts; refuses before it touches any if one is in use.
fn end_mounts(volume: &Volume, force: bool) -> Outcome<()> {
    if !force {
        await_ended_runs(volume);
    }
    // A mount of 'aze run' is in use for as long as there is one, and cannot be unmounted from here.
    let (private, mounts): (Vec<MountRecord>, Vec<MountRecord>) =
        volume.mounts().into_iter().partition(|mount| mount.program.is_some());
    if !force {
        let running = private.iter().filter_map(|mount| mount.program);
        let running: Vec<String> = running.map(|program| program.pid.to_string()).collect();
        if !running.is_empty() {
            let text = format!("'aze run' of process {} and what it has started", running.join(", "));
            return Err(in_use(volume, &text));
        }
        let busy = |mount: &MountRecord| {
            let users = mounts::users(&mount.dir, Some(&mount.process));
            (!users.is_empty()).then(|| format!("{} by {}", mount.dir.display(), mounts::named(&users)))
        };
        let busy: Vec<String> = mounts.iter().filter_map(busy).collect();
        if !busy.is_empty() {
            return Err(in_use(volume, &busy.join("; ")));
        }
    }
    for dir in volume.dead_mounts() {
        // A mount that was unmounted meanwhile is as well.
        let _ = aze_fuse::unmount(&dir, true);
    }
    for mount in &private {
        // Its programs get ENOTCONN from now on, and EIO where they have no mount.
        mount.process.signal(libc::SIGKILL);
        let what = if mount.is_intercepted { "agent" } else { "mount" };
        let what = format!("the {what} of 'aze run' at {}", mount.dir.display());
        end(&what, mount.process, Instant::now() + LAST_MOMENT);
    }
    for mount in &mounts {
        match mounts::unmount(&mount.dir, force, Some(&mount.process)) {
            Ok(()) => {}
            Err((error, _)) if error.kind() == ErrorKind::ResourceBusy => {
                return Err(in_use(volume, &mount.dir.display().to_string()));
            }
            // Another command has just unmounted it.
            Err(_) if mounts::find(&mount.dir).is_none() => {}
            Err((error, _)) => return Err(Trouble::local(format!("unmount {}", mount.dir.display()), &error)),
        }
        // After a mount was taken away from its users, its process would wait for them.
        let patience = if force { LAST_MOMENT } else { PATIENCE };
        end(&format!("the mount at {}", mount.dir.display()), mount.process, Instant::now() + patience);
    }
    Ok(())
}

/// Waits for mounts of 'aze run' whose programs have ended. The process that serves such a mount ends by itself after the
/// last process that sees it, and 'aze run' returns before that. One that stays has processes that its program has started.
fn await_ended_runs(volume: &Volume) {
    let mounts = volume.mounts();
    let programs = || mounts.iter().filter_map(|mount| mount.program);
    if programs().any(|program| program.is_alive()) {
        // One that runs is enough to refuse.
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    for mount in mounts.iter().filter(|mount| mount.program.is_some()) {
        mount.process.wait(deadline);
    }
}

fn in_use(volume: &Volume, what: &str) -> Trouble {
    let name = &volume.record.name;
    Trouble::new(Exit::Again, format!("end volume '{name}': in use: {what}: end these programs, or use --force"))
}

/// Asks all servers to end, also those that have joined since the record was written; gives the places of those that agreed,
/// and of those that have left; and the reasons of those whose storage has failed.
fn shut_down(volume: &Volume, record: &mut Record) -> (Vec<u16>, BTreeMap<u16, String>) {
    if volume.is_dead() {
        return Default::default();
    }
    match Session::open_if_there(volume.clone(), ASK_TIME) {
        Ok(session) => {
            let mut failed = BTreeMap::new();
            if record.settings.is_kept() {
                // Storage that fails now is told of below, also that of a server on another node.
                let _ = session.runtime.block_on(session.client.sync(&session.who));
                let told = session.runtime.block_on(session.client.status());
                let told = told.into_iter().filter_map(|(server, answer)| Some((server.0, answer.ok()?.failure)));
                failed.extend(told.filter(|(_, failure)| !failure.is_empty()));
            }
            let answers = session.runtime.block_on(session.client.shutdown_servers());
            let map = session.client.map();
            record.learn(&map);
            let left = map.indexes().filter(|server| map.has_left(*server));
            let agreed = answers.into_iter().filter(|(_, answer)| answer.is_ok()).map(|(server, _)| server);
            (left.chain(agreed).map(|server| server.0).collect(), failed)
        }
        Err(trouble) => {
            errln!("aze: down: {trouble}: ending the servers by signals");
            Default::default()
        }
    }
}

/// Waits for a process of this machine, and ends it if it does not end by itself; gives whether it did.
fn end(what: &str, process: Process, deadline: Instant) -> bool {
    if process.wait(deadline) {
        return true;
    }
    errln!("{what} (pid {}) does not end by itself: ending it", process.pid);
    // After SIGTERM a server may begin to leave the volume (--leave-within).
    process.signal(libc::SIGINT);
    if !process.wait(Instant::now() + LAST_MOMENT) {
        process.signal(libc::SIGKILL);
        process.wait(Instant::now() + LAST_MOMENT);
    }
    false
}

/// Removes what a server of this machine that was killed has left on a local disk of its job; one that ends by itself does that itself.
fn clear(server: &ServerRecord) {
    if let Some(place) = server.place.as_deref().filter(|_| !server.process.is_alive()) {
        local_disks::remove(place, server.slot);
    }
}

/// A launcher ends with its server, which shows here what happened there.
fn has_ended(server: &ServerRecord, deadline: Instant) -> bool {
    server.launcher.is_some_and(|launcher| launcher.wait(deadline))
}

/// Ends a server that does not answer by a command on its node; false if that fails, too.
fn end_remote(volume: &Volume, server: &ServerRecord) -> bool {
    let Some(node) = &server.node else { return false };
    let end = ["down", "--this-node", "--name", &volume.record.name];
    let Some(mut command) = volume.command_on(node, &end) else { return false };
    errln!("{} does not answer: ending it there", who(server.slot, Some(node)));
    command.status().is_ok_and(|status| status.success())
}
