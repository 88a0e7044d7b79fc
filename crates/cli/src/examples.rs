//! A volume's record for tests; none of its servers runs.

use crate::process::Process;
use crate::volume::{Record, ServerRecord, Settings, Volume};
use aze_proto::ids::{Incarnation, MapEpoch, SessionId};
use aze_proto::place::ServerInfo;

/// A volume in memory with a server on each of these nodes; this machine may not know them.
pub fn volume(nodes: &[Option<&str>]) -> Volume {
    let server = |(slot, node): (usize, &Option<&str>)| ServerRecord {
        slot: slot as u16,
        host: format!("host-{slot}"),
        node: node.map(str::to_owned),
        process: Process::me(),
        launcher: None,
        addresses: vec![format!("unix:/run/server-{slot}"), format!("tcp:host-{slot}:1")],
        place: None,
        left: false,
        joining: false,
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
        port_base: None,
        cores: None,
        is_tied: false,
        leave_ms: None,
        backing: None,
        made: None,
        process: None,
    };
    let servers = nodes.iter().enumerate().map(server).collect();
    let record =
        Record { name: "v".into(), owner_uid: 0, created_ns: 0, starts: 0, secret_check: None, servers, settings };
    Volume { dir: "/nowhere".into(), record }
}

/// A server of a map.
pub fn info(host: &str, joining: bool) -> ServerInfo {
    ServerInfo {
        addresses: vec![format!("tcp:{host}:1")],
        host: host.into(),
        incarnation: Incarnation(0),
        since: MapEpoch(0),
        pid: 1,
        capacity_bytes: 1 << 30,
        ended: false,
        left: false,
        joining,
        life: 0,
        began: MapEpoch(0),
        session: SessionId(0),
    }
}
