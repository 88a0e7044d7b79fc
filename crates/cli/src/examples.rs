//! A volume's record for tests, of which no server runs.

use crate::process::Process;
use crate::volume::{Record, ServerRecord, Settings, Volume};

/// A volume in memory with a server on each of these nodes, of which this machine may know nothing.
pub fn volume(nodes: &[Option<&str>]) -> Volume {
    let server = |(slot, node): (usize, &Option<&str>)| ServerRecord {
        slot: slot as u16,
        host: format!("host-{slot}"),
        node: node.map(str::to_owned),
        process: Process::me(),
        launcher: None,
        addresses: vec![format!("unix:/run/server-{slot}"), format!("tcp:host-{slot}:1")],
        left: false,
    };
    let settings = Settings {
        storage: "mem".into(),
        durability: None,
        placement: "modular".into(),
        transport: "auto".into(),
        capacity_bytes: 1 << 30,
        memory_bytes: None,
        chunk_bytes: 1 << 20,
        launcher: None,
        remote_aze: None,
        network: None,
        cores: None,
        is_tied: false,
        backing: None,
        process: None,
    };
    let servers = nodes.iter().enumerate().map(server).collect();
    let record =
        Record { name: "v".into(), owner_uid: 0, created_ns: 0, starts: 0, secret_check: None, servers, settings };
    Volume { dir: "/nowhere".into(), record }
}
