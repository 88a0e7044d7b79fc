//! `aze status`: how a volume's servers are.

mod hot;
mod staging;
mod watch;

use crate::exit::{self, Exit, Outcome, Trouble};
use crate::session::Session;
use crate::tally::Out;
use crate::volume::{self, Record, ServerRecord, VARIABLE, Volume};
use crate::{show, size};
use aze_proto::error::Failure;
use aze_proto::ids::{ServerIndex, Time};
use aze_proto::limits::DEADLINE_MS_DEFAULT;
use aze_proto::message::ServerStatus;
use aze_proto::place::{GroupMember, ShardMap};
use aze_words::errln;
use futures_util::future::join;
use serde_json::{Value, json};
use staging::Staging;
use std::sync::Arc;
use std::time::Duration;

/// Show how the servers of a volume are, or which volumes there are.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze status
  aze status --json | jq '.servers[].used_bytes'
  aze status --requests      how often each server was asked what
  aze status --watch         what servers and jobs do, every 2 s until Ctrl-C
  aze status --watch=1s --count 10 --json > load.json")]
pub struct Args {
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// Count requests by kind, too.
    #[arg(long)]
    requests: bool,
    /// Show again and again what servers and jobs do: rates, latencies, memory; every 2 s if TIME is not given.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s",
          value_parser = watch::parse_period)]
    watch: Option<Duration>,
    /// With --watch: end after so many times.
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// As one JSON object; with --watch one for each time.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let names = volume::names();
    if args.name.is_none() && std::env::var_os(VARIABLE).is_none() && names.len() != 1 {
        return volumes(args, &names);
    }
    let mut volume = Volume::meant(args.name.as_deref())?;
    if let Some(period) = args.watch {
        return watch::run(volume, period, args.count, args.json);
    }
    let mut out = Out::new();
    let asked = if volume.is_dead() { None } else { Some(ask(&mut volume)?) };
    let (map, (answers, hot, staging)) = match asked {
        Some((map, (answers, hot, staging))) => (Some(map), (Some(answers), hot, staging)),
        None => Default::default(),
    };
    if args.json {
        let mut object = object(&volume, answers.as_ref());
        object["keeper"] = map.as_ref().map(|map| map.keeper.0).into();
        object["group"] = map.iter().flat_map(|map| group(map, answers.as_ref())).map(|(_, object)| object).collect();
        object["hot"] = hot.into_iter().map(|(_, object)| object).collect();
        object["staging"] = staging.as_ref().map(Staging::object).into();
        out.json(&object)?;
    } else {
        print(args, &volume, answers.as_ref(), &mut out)?;
        if let Some(map) = map.filter(|map| map.servers.len() > 1) {
            let members: Vec<String> = group(&map, answers.as_ref()).into_iter().map(|(text, _)| text).collect();
            out.line(format!("keeper: server {}; group: {}", map.keeper, members.join(", ")))?;
        }
        for (line, _) in hot {
            out.line(line)?;
        }
        for line in staging.iter().flat_map(Staging::lines) {
            out.line(line)?;
        }
    }
    out.flush()?;
    for warning in staging.iter().flat_map(Staging::warnings) {
        errln!("{}", exit::warning_line("status", &warning));
    }
    let Some(answers) = answers else {
        let name = &volume.record.name;
        return Err(Trouble::new(
            Exit::Again,
            format!("volume '{name}': none of its servers runs any more: clear it away with 'aze down --name {name}'"),
        ));
    };
    Ok(exit_of(&answers))
}

/// A server whose storage has failed answers this one question, and no other.
fn exit_of(answers: &Answers) -> Exit {
    let is_well = |(_, answer): &(ServerIndex, Result<ServerStatus, Failure>)| {
        answer.as_ref().is_ok_and(|status| status.failure.is_empty())
    };
    match answers {
        all if all.iter().all(is_well) => Exit::Done,
        all if all.iter().all(|(_, answer)| answer.is_err()) => Exit::Again,
        _ => Exit::Some,
    }
}

/// How the servers are that have not left.
type Answers = Vec<(ServerIndex, Result<ServerStatus, Failure>)>;

/// The map; how the servers are; what stands out among their requests, a line and an object; and how staging goes.
type Asked = (Arc<ShardMap>, (Answers, Vec<(String, Value)>, Option<Staging>));

/// The members of the keeper group, each as text and as an object.
fn group(map: &ShardMap, answers: Option<&Answers>) -> Vec<(String, Value)> {
    let member = |member: &GroupMember| {
        let server = member.server;
        let answer = answers.into_iter().flatten().find(|(other, _)| *other == server).map(|(_, answer)| answer);
        let state = match answer {
            _ if !map.is_living(member) => "ended",
            Some(Ok(_)) => "up",
            _ => "unreachable",
        };
        let text = if state == "up" { server.to_string() } else { format!("{server} ({state})") };
        (text, json!({ "server": server.0, "state": state }))
    };
    map.group.members.iter().map(member).collect()
}

/// How a server of the record is, as far as this command knows.
enum Known<'a> {
    Told(&'a ServerStatus),
    Silent(&'a Failure),
    Left,
    /// No server runs.
    Ended,
}

impl Known<'_> {
    fn of<'a>(known: &ServerRecord, answers: Option<&'a Answers>) -> Known<'a> {
        match answers.map(|answers| answers.iter().find(|(server, _)| server.0 == known.slot)) {
            Some(Some((_, Ok(status)))) => Known::Told(status),
            Some(Some((_, Err(failure)))) => Known::Silent(failure),
            Some(None) => Known::Left,
            None if known.left => Known::Left,
            None => Known::Ended,
        }
    }

    /// In a word.
    fn state(&self, server: &ServerRecord) -> &'static str {
        match self {
            Known::Told(status) if !status.failure.is_empty() => "failed",
            Known::Told(_) if server.joining => "joining",
            Known::Told(_) => "up",
            Known::Silent(_) => "unreachable",
            Known::Left => "left",
            Known::Ended => "ended",
        }
    }
}

/// Asks the servers, and learns which there are.
fn ask(volume: &mut Volume) -> Outcome<Asked> {
    let session = Session::open_if_there(volume.clone(), Duration::from_millis(DEADLINE_MS_DEFAULT.into()))?;
    let client = &session.client;
    let asked = session.runtime.block_on(async {
        // Servers that have ended or left meanwhile are not asked. If none gives a map, the answers below say why.
        drop(client.look_for_map().await);
        let (answers, activities) = join(client.status(), client.activity()).await;
        let activities =
            activities.iter().filter_map(|(server, answer)| Some((usize::from(server.0), answer.as_ref().ok()?)));
        let mut hot = Vec::new();
        for found in hot::find(&activities.collect::<Vec<_>>()) {
            hot.push(found.told(client).await);
        }
        (answers, hot)
    });
    let (answers, hot) = asked;
    let map = client.map();
    volume.record.learn(&map);
    let staging = Staging::look(&session, answers.iter().all(|(_, answer)| answer.is_ok()));
    session.end();
    Ok((map, (answers, hot, staging)))
}

/// All volumes, without asking their servers.
fn volumes(args: &Args, names: &[String]) -> Outcome<Exit> {
    let mut out = Out::new();
    let volumes: Vec<Volume> = names.iter().filter_map(|name| Volume::open(name).ok()).collect();
    if args.json {
        let list: Vec<Value> = volumes.iter().map(|volume| json!({ "name": volume.record.name, "servers": volume.record.members().count(), "dir": volume.dir })).collect();
        out.json(&json!({ "volumes": list }))?;
    } else if volumes.is_empty() {
        errln!("no volume of yours runs on this machine: start one with: eval \"$(aze up)\"");
    } else {
        let mut rows = vec![["volume", "servers", "size", "started", "state"].map(String::from).to_vec()];
        rows.extend(volumes.iter().map(|volume| {
            let record = &volume.record;
            let state = if volume.is_dead() { "ended" } else { "up" };
            let size = size::short(record.settings.capacity_bytes);
            vec![
                record.name.clone(),
                record.members().count().to_string(),
                size,
                show::time(Time(record.created_ns)),
                state.into(),
            ]
        }));
        out.table(&[false, true, true, false, false], &rows)?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

fn object(volume: &Volume, answers: Option<&Answers>) -> Value {
    let record = &volume.record;
    let server = |server: &ServerRecord| {
        let known = Known::of(server, answers);
        let mut object = match known {
            Known::Told(status) => return status_object(status, known.state(server)),
            _ => {
                json!({ "server": server.slot, "host": server.host, "pid": server.process.pid, "state": known.state(server) })
            }
        };
        if let Known::Silent(failure) = known {
            object["why"] = failure.to_string().into();
        }
        object
    };
    json!({
        "volume": record.name,
        "created": show::moment(Time(record.created_ns)),
        "settings": record.settings,
        "servers": record.servers.iter().map(server).collect::<Vec<_>>(),
        "mounts": volume.mounts(),
    })
}

fn status_object(status: &ServerStatus, state: &str) -> Value {
    let requests: serde_json::Map<String, Value> =
        status.requests.iter().map(|counter| (counter.name.clone(), counter.count.into())).collect();
    json!({
        "server": status.index.0,
        "host": status.host,
        "pid": status.pid,
        "state": state,
        "why": status.failure,
        "incarnation": status.incarnation.0,
        "map_epoch": status.map_epoch.0,
        "namespace_epoch": status.namespace_epoch.0,
        "up_s": status.up_ns as f64 / 1e9,
        "capacity_bytes": status.capacity_bytes,
        "used_bytes": status.used_bytes,
        "touched_bytes": status.touched_bytes,
        "clean_bytes": status.clean_bytes,
        "drained_bytes": status.drained_bytes,
        "evicted_bytes": status.evicted_bytes,
        "evicted_chunks": status.evicted_chunks,
        "inodes": status.inodes,
        "entries": status.entries,
        "chunks": status.chunks,
        "sessions": status.sessions,
        "opens": status.opens,
        "opens_for_writing": status.writers,
        "requests": requests,
    })
}

fn print(args: &Args, volume: &Volume, answers: Option<&Answers>, out: &mut Out) -> Outcome<()> {
    let record = &volume.record;
    out.line(format!("volume '{}', started {}", record.name, show::time(Time(record.created_ns))))?;
    let mut rows = vec![
        ["server", "host", "pid", "state", "used", "size", "files", "chunks", "sessions", "requests", "up"]
            .map(String::from)
            .to_vec(),
    ];
    for server in &record.servers {
        let known = Known::of(server, answers);
        let state = known.state(server);
        rows.push(match known {
            Known::Told(status) => status_row(status, state),
            _ => vec![server.slot.to_string(), server.host.clone(), server.process.pid.to_string(), state.into()],
        });
    }
    out.table(&[true, false, true, false, true, true, true, true, true, true, true], &rows)?;
    for (slot, failure) in
        answers.into_iter().flatten().filter_map(|(server, answer)| Some((server.0, answer.as_ref().err()?)))
    {
        out.line(format!("  {failure}"))?;
        for line in advice(record, slot) {
            out.line(line)?;
        }
    }
    let told = || answers.into_iter().flatten().filter_map(|(_, answer)| answer.as_ref().ok());
    for status in told().filter(|status| !status.failure.is_empty()) {
        out.line(format!("  {}", status.failure))?;
    }
    if let (Some(backing), Some(_)) = (&record.settings.backing, answers) {
        let sum = |of: fn(&ServerStatus) -> u64| told().map(of).sum::<u64>();
        out.line(format!(
            "of what is used, {} are copies of {} and go when room is short; {} were drained into it, {} went so far",
            size::short(sum(|status| status.clean_bytes)),
            backing.path.display(),
            size::short(sum(|status| status.drained_bytes)),
            size::short(sum(|status| status.evicted_bytes))
        ))?;
    }
    for mount in volume.mounts() {
        let of = mount.program.map(|program| format!(" for 'aze run' of process {}", program.pid)).unwrap_or_default();
        let how = if mount.is_intercepted { "seen" } else { "mounted" };
        let by = match mount.fuse_io.as_deref() {
            Some("uring") => ", requests by io_uring",
            _ => "",
        };
        out.line(format!("{how} at {}{of} (pid {}{by})", mount.dir.display(), mount.process.pid))?;
    }
    if args.requests {
        for status in told() {
            let asked: Vec<String> = status
                .requests
                .iter()
                .filter(|counter| counter.count > 0)
                .map(|counter| format!("{} {}", counter.name, counter.count))
                .collect();
            out.line(format!("server {}: {}", status.index.0, asked.join(", ")))?;
        }
    }
    Ok(())
}

/// What to do about a server that does not answer.
fn advice(record: &Record, slot: u16) -> Vec<String> {
    let server = record.servers.iter().find(|server| server.slot == slot);
    let runs_here = server.filter(|server| server.host == volume::host() && server.process.is_alive());
    let mut lines = Vec::new();
    if let Some(server) = runs_here {
        let pid = server.process.pid;
        lines.push(format!(
            "  server {slot} does not answer, and its process (pid {pid}) runs: if it was stopped, 'kill -CONT {pid}' has it go on"
        ));
    }
    if record.settings.lasts() {
        let what = if runs_here.is_some() { "end it and bring it back" } else { "bring it back" };
        lines.push(format!(
            "  server {slot} is away, and its part with it: {what} with 'aze restart --server {slot}', or with all others \
             ('aze restart --force') if it was left out of the last start"
        ));
    }
    lines
}

fn status_row(status: &ServerStatus, state: &str) -> Vec<String> {
    // What stands in brackets are no requests.
    let asked = status.requests.iter().filter(|counter| !counter.name.starts_with('('));
    let requests: u64 = asked.map(|counter| counter.count).sum();
    vec![
        status.index.0.to_string(),
        status.host.clone(),
        status.pid.to_string(),
        state.into(),
        size::short(status.used_bytes),
        size::short(status.capacity_bytes),
        status.inodes.to_string(),
        status.chunks.to_string(),
        status.sessions.to_string(),
        requests.to_string(),
        age(status.up_ns / 1_000_000_000),
    ]
}

/// The two largest units of a time in seconds: `3d 4h`, `5m 6s`.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        assert_eq!([age(5), age(65), age(3700), age(90_000)], ["5s", "1m 5s", "1h 1m", "1d 1h"]);
    }
}
