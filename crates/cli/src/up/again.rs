//! Servers of a volume in directories that are started again: all of them, all but some that are left out, or some while the others go on.

use super::{Args, Start, args_of, kept_as, places, port, shards};
use crate::exit::Outcome;
use crate::launch::{Other, call_off};
use crate::local_disks::Local;
use crate::process::Process;
use crate::volume::{self, Made, Record, ServerRecord};
use aze_proto::handshake::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Starts all servers of a volume in directories again, where they were and as they were: clients
/// that know it go on; all but those that are left out. The number of this start is used up also if it fails: clients may have been served.
pub fn again(
    record: &Record,
    dir: &Path,
    secret: &Secret,
    without: &BTreeSet<u16>,
    timeout: Duration,
) -> Outcome<Record> {
    let args = args_of(record, timeout)?;
    let mut servers = members(record);
    let as_made = servers.len() as u16;
    servers.retain(|server| !without.contains(&server.slot));
    let begun = Record { starts: record.starts + 1, ..record.clone() };
    volume::write_record(dir, &begun)?;
    volume::note_starter(dir)?;
    let mut start = Start {
        // Without some of its servers it does not show any more with how many it was made.
        made: match (record.settings.made, without.is_empty()) {
            (None, false) => Some(Made { servers: as_made, shards: shards(as_made) }),
            (made, _) => made,
        },
        without: without.iter().copied().collect(),
        process: record.settings.process.filter(Process::is_alive),
        ..start_of(&args, &begun, dir, secret, &servers)
    };
    let result = start.all(Instant::now() + timeout, record.created_ns, Some(&begun));
    if result.is_err() {
        call_off(start.servers);
    }
    result
}

/// Starts servers of a volume in directories again that have ended, where they were and as they were, while the others
/// go on. `slots` are those to start, `ended` all that have ended.
pub fn back(
    record: &Record,
    dir: &Path,
    secret: &Secret,
    (slots, ended): (&BTreeSet<u16>, &BTreeSet<u16>),
    timeout: Duration,
) -> Outcome<Record> {
    let args = args_of(record, timeout)?;
    let servers = members(record);
    let other = |server: &&ServerRecord| Other {
        slot: server.slot,
        host: server.host.clone(),
        addresses: server.addresses.clone(),
        pid: server.process.pid,
        has_ended: ended.contains(&server.slot),
    };
    let mut start =
        Start { others: servers.iter().map(other).collect(), ..start_of(&args, record, dir, secret, &servers) };
    let result = start.some(Instant::now() + timeout, record, slots);
    if result.is_err() {
        call_off(start.servers);
    }
    result
}

/// The servers of a volume, by their numbers.
fn members(record: &Record) -> Vec<&ServerRecord> {
    let mut servers: Vec<&ServerRecord> = record.members().collect();
    servers.sort_by_key(|server| server.slot);
    servers
}

/// A start of these servers of a volume, where they were and as they were.
fn start_of<'a>(
    args: &'a Args,
    record: &'a Record,
    dir: &'a Path,
    secret: &'a Secret,
    servers: &[&ServerRecord],
) -> Start<'a> {
    let (said, hear) = channel();
    Start {
        args,
        name: &record.name,
        dir,
        secret,
        nodes: servers.iter().map(|server| server.node.clone()).collect(),
        numbers: servers.iter().map(|server| server.slot).collect(),
        is_known: true,
        made: record.settings.made,
        without: Vec::new(),
        storage: Some(kept_as(record)),
        local: record.settings.is_local().then(Local::default),
        places: places(record),
        backing: record.settings.backing.clone(),
        is_tied: record.settings.is_tied,
        process: None,
        ports: servers.iter().map(|server| port(server)).collect(),
        starts: record.starts,
        others: Vec::new(),
        joins: None,
        said,
        hear,
        servers: Vec::new(),
        heard: BTreeMap::new(),
    }
}
