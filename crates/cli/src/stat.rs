//! `aze stat`: everything that is known of a file.

use crate::exit::{Exit, Outcome, Trouble};
use crate::operands::{ask_each, by_volume};
use crate::place::VolumePath;
use crate::session::{Session, Sessions};
use crate::tally::{Out, Tally};
use crate::{show, size};
use aze_proto::attr::{Attr, FileKind};
use aze_proto::ids::ServerIndex;
use aze_proto::place::ShardMap;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Chunks whose servers are looked up one by one; in a longer file they repeat.
const CHUNKS_SHOWN_MAX: u64 = 1 << 16;

/// Show all attributes of files, and which servers keep them.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze stat aze:/data.h5
  aze stat --json aze:/a aze:/b")]
pub struct Args {
    /// Files and directories.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// What a symbolic link leads to, not the link.
    #[arg(short = 'L', long)]
    dereference: bool,
    /// One JSON object for each line.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let mut out = Out::new();
    let tally = Tally::new("stat");
    let run = |session: &Session, paths: &[VolumePath]| {
        let map = session.client.map();
        ask_each(
            session,
            paths,
            async |path| look(args, session, path).await,
            |path, found| {
                let shown = found.and_then(|(attr, target)| match args.json {
                    true => out.json(&object(path, &attr, target.as_deref(), &map)),
                    false => print(path, &attr, target.as_deref(), &map, &mut out),
                });
                out.flush()?;
                tally.note(shown);
                Ok(())
            },
        )
    };
    by_volume(&args.paths, &mut sessions, run, |trouble| tally.fail(&trouble))?;
    Ok(tally.exit())
}

/// The attributes of what a path leads to, and where that leads if it is a link.
async fn look(args: &Args, session: &Session, path: &VolumePath) -> Outcome<(Attr, Option<Vec<u8>>)> {
    let (client, who) = (&session.client, &session.who);
    let found = async {
        let attr = client.resolve(who, &path.path, args.dereference).await?;
        Ok(match attr.kind {
            // A directory's counts are gathered only on request.
            FileKind::Directory => (client.getattr(who, attr.ino).await?, None),
            FileKind::Symlink => {
                let target = client.readlink(who, attr.ino).await?;
                (attr, Some(target))
            }
            _ => (attr, None),
        })
    };
    found.await.map_err(|failure| Trouble::volume(path.shown(), &failure))
}

fn object(path: &VolumePath, attr: &Attr, target: Option<&[u8]>, map: &ShardMap) -> Map<String, Value> {
    let mut object = Map::new();
    show::put_name(&mut object, "path", &path.written());
    object.extend(show::attr_json(attr));
    if let Some(target) = target {
        show::put_name(&mut object, "target", target);
    }
    object.insert("generation".into(), attr.generation.0.into());
    object.insert("home_shard".into(), attr.ino.home(map.shards()).0.into());
    object.insert("home_server".into(), json!(map.home_of(attr.ino).map(|server| server.0)));
    object.insert("chunk_bytes".into(), attr.chunk_bytes().into());
    if attr.kind == FileKind::Directory {
        object.insert("private".into(), attr.ino.is_private_directory().into());
    }
    if attr.kind == FileKind::File {
        let chunks: Vec<Value> =
            chunks(attr, map).iter().map(|(server, count)| json!({ "server": server.0, "chunks": count })).collect();
        object.insert("placement".into(), chunks.into());
    }
    object
}

fn print(path: &VolumePath, attr: &Attr, target: Option<&[u8]>, map: &ShardMap, out: &mut Out) -> Outcome<()> {
    let mut line = |label: &str, value: &[u8]| out.line([format!("{label:>9}: ").as_bytes(), value].concat());
    line("path", &show::name(&path.written()))?;
    if let Some(target) = target {
        line("leads to", &show::name(target))?;
    }
    let is_private = attr.ino.is_private_directory();
    line("kind", format!("{}{}", if is_private { "private " } else { "" }, show::kind(attr)).as_bytes())?;
    let unit =
        if attr.kind == FileKind::Directory { "entries".into() } else { format!("bytes ({})", size::words(attr.size)) };
    line("size", format!("{} {unit}", attr.size).as_bytes())?;
    line("mode", format!("{:04o} ({})", attr.mode, show::mode(attr)).as_bytes())?;
    line("owner", format!("uid {} gid {}", attr.uid, attr.gid).as_bytes())?;
    line("links", attr.links.to_string().as_bytes())?;
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        line("device", format!("{},{}", libc::major(attr.rdev.into()), libc::minor(attr.rdev.into())).as_bytes())?;
    }
    for (label, time) in
        [("changed", attr.mtime), ("accessed", attr.atime), ("altered", attr.ctime), ("made", attr.btime)]
    {
        line(label, show::time_exact(time).as_bytes())?;
    }
    line("inode", format!("{} (generation {})", attr.ino.0, attr.generation.0).as_bytes())?;
    line(
        "home",
        format!("shard {} on {}", attr.ino.home(map.shards()).0, server(map.home_of(attr.ino), map)).as_bytes(),
    )?;
    if attr.kind == FileKind::File {
        line(
            "chunks",
            format!("{} of {}", attr.size.div_ceil(attr.chunk_bytes()), size::words(attr.chunk_bytes())).as_bytes(),
        )?;
        for (index, count) in chunks(attr, map) {
            line("", format!("{} on {}", show::count(count, "chunk"), server(Some(index), map)).as_bytes())?;
        }
    }
    Ok(())
}

fn server(index: Option<ServerIndex>, map: &ShardMap) -> String {
    let host = index.and_then(|index| map.server(index)).map_or("?", |server| &server.host);
    match index {
        Some(index) => format!("server {} ({host})", index.0),
        None => "no server".into(),
    }
}

/// How many chunks each server keeps if the file has no holes.
fn chunks(attr: &Attr, map: &ShardMap) -> BTreeMap<ServerIndex, u64> {
    let chunks = attr.size.div_ceil(attr.chunk_bytes());
    let shards = attr.layout.step();
    let (rounds, rest) = if chunks > CHUNKS_SHOWN_MAX { (chunks / shards, chunks % shards) } else { (0, chunks) };
    let mut counts = BTreeMap::new();
    let mut add = |index: u64, count: u64| {
        if let Some(server) = map.server_of(map.chunk_shard(attr, index)) {
            *counts.entry(server).or_insert(0) += count;
        }
    };
    (0..rest).for_each(|index| add(index, 1));
    if rounds > 0 {
        // Every round visits every shard once.
        (0..shards).for_each(|index| add(index, rounds));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::ids::{Incarnation, MapEpoch, SessionId};
    use aze_proto::place::ServerInfo;
    use aze_proto::slots::SlotTable;

    fn map(servers: u16) -> ShardMap {
        let server = |slot| ServerInfo {
            addresses: Vec::new(),
            host: format!("host-{slot}"),
            incarnation: Incarnation(0),
            since: MapEpoch(0),
            pid: 1,
            capacity_bytes: 0,
            ended: false,
            left: false,
            joining: false,
            life: 0,
            began: MapEpoch(0),
            session: SessionId(0),
        };
        ShardMap {
            epoch: MapEpoch(1),
            keeper: ServerIndex(0),
            group: aze_proto::place::KeeperGroup::default(),
            chunk_bits: 20,
            owner_uid: 0,
            owner_gid: 0,
            volume: "v".into(),
            servers: (0..servers).map(server).collect(),
            slots: SlotTable::modular(4096, servers).expect("so many shards are enough"),
        }
    }

    #[test]
    fn chunks_are_counted_where_they_are() {
        let of = |size, servers| chunks(&show::example(size), &map(servers));
        assert!(of(0, 4).is_empty());
        let one = |server| (ServerIndex(server), 1);
        assert_eq!(of((2 << 20) + 1, 4), BTreeMap::from([one(2), one(3), one(0)]));
    }

    #[test]
    fn the_short_way_for_long_files_counts_the_same() {
        let (map, count) = (map(3), CHUNKS_SHOWN_MAX + 4097);
        let attr = show::example(count << 20);
        let mut each = BTreeMap::new();
        for index in 0..count {
            *each.entry(map.server_of(map.chunk_shard(&attr, index)).expect("a server")).or_insert(0) += 1;
        }
        assert_eq!(chunks(&attr, &map), each);
    }
}
