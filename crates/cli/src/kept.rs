//! Where a volume is kept: which of the directories or files that were given to `--storage` are which
//! server's. A new volume deals them out in their order; one that is there is found wherever it is.

use crate::exit::{Outcome, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Whether the argument is a file or device, which keeps the part of one server.
pub fn keeps_one(given: &Path) -> bool {
    given.metadata().is_ok_and(|about| !about.is_dir())
}

/// Where a server keeps its part, or a piece of it, by its argument.
pub fn part(given: &Path, slot: u16) -> PathBuf {
    if keeps_one(given) { given.into() } else { given.join(format!("server-{slot}")) }
}

/// The places of a server that have its part, or a piece of it: all of them, in the order of the arguments.
pub fn there(given: &[PathBuf], slot: u16) -> Vec<PathBuf> {
    let own = given.iter().filter(|given| !keeps_one(given)).map(|given| part(given, slot));
    own.filter(|own| own.join("volume").exists()).collect()
}

/// The servers that have a part, or a piece of one, in these places, and where.
pub fn all_there(given: &[PathBuf]) -> BTreeMap<u16, Vec<PathBuf>> {
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.strip_prefix("server-")?.parse::<u16>().ok();
    let places = given.iter().filter(|given| !keeps_one(given)).filter_map(|given| fs::read_dir(given).ok());
    let servers: BTreeSet<u16> = places.flatten().flatten().filter_map(|entry| number(&entry)).collect();
    let found = servers.into_iter().map(|server| (server, there(given, server)));
    found.filter(|(_, places)| !places.is_empty()).collect()
}

/// Whether one of these places says that a server has left its volume.
pub fn has_left(given: &[PathBuf], slot: u16) -> bool {
    given.iter().any(|given| !keeps_one(given) && part(given, slot).join("volume.left").exists())
}

/// How many parts of servers are, or will be, on the disk of this one, as far as its directory shows: itself and those beside it.
pub fn neighbours(own: &Path) -> u16 {
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("server-");
    let beside = own.parent().and_then(|dir| fs::read_dir(dir).ok());
    let others = beside.into_iter().flatten().flatten().filter(|entry| entry.path() != own && name(entry));
    let parts = others.filter(|entry| entry.path().join("volume").exists()).count();
    u16::try_from(parts + 1).unwrap_or(u16::MAX)
}

/// How many directories each server of a node has. `text` is the argument, for the error.
pub fn each(given: &[PathBuf], servers: u16, text: &str) -> Outcome<u16> {
    let (places, most) = (given.len(), usize::from(aze_server::DIRECTORIES_MAX));
    let many = if servers == 1 { "server of a node" } else { "servers of each node" };
    if places <= usize::from(servers) {
        return Ok(1);
    }
    if let Some(file) = given.iter().find(|given| keeps_one(given)) {
        return Err(Trouble::usage(format!(
            "--storage {text}: {places} places for {servers} {many}, and {} is a file or device, which keeps the part of \
             one server alone: give --servers {places}, or fewer places",
            file.display()
        )));
    }
    if places % usize::from(servers) != 0 {
        let fit: Vec<String> =
            (1..=places).filter(|servers| places.is_multiple_of(*servers)).map(|servers| servers.to_string()).collect();
        return Err(Trouble::usage(format!(
            "--storage {text}: {places} directories for {servers} {many} do not divide, and each takes as many: give \
             --servers {}, or other directories",
            fit.join(" or ")
        )));
    }
    if places / usize::from(servers) > most {
        return Err(Trouble::usage(format!(
            "--storage {text}: {places} directories for {servers} {many}: a server has at most {most}"
        )));
    }
    Ok((places / usize::from(servers)) as u16)
}

/// Refuses arguments that mean the same place.
pub fn refuse_twice(given: &[PathBuf], text: &str) -> Outcome<()> {
    // A directory that is not there yet has a path all the same.
    let place = |path: &Path| {
        let there = path.ancestors().find_map(|start| Some((start, start.canonicalize().ok()?)));
        there.and_then(|(start, real)| Some(real.join(path.strip_prefix(start).ok()?)))
    };
    for (number, path) in given.iter().enumerate() {
        if let Some(other) = given[..number].iter().find(|other| place(other) == place(path)) {
            let (path, other) = (path.display(), other.display());
            return Err(Trouble::usage(format!("--storage {text}: {path} and {other} are the same")));
        }
    }
    Ok(())
}

/// What a server of a new volume is given: servers take turns where there are fewer places than servers on a
/// node; where there are more, each takes its part of them, those that follow each other.
fn dealt(given: &[PathBuf], slot: u16, servers_on_node: u16) -> &[PathBuf] {
    let (places, slot, servers) = (given.len(), usize::from(slot), usize::from(servers_on_node.max(1)));
    if places <= servers {
        let turn = slot % places;
        return &given[turn..=turn];
    }
    let count = places / servers;
    &given[slot % servers * count..][..count]
}

/// The directories or the file of a server: those that it has already, else its share.
pub fn parts(given: &[PathBuf], slot: u16, servers_on_node: u16) -> Vec<PathBuf> {
    let dealt = dealt(given, slot, servers_on_node);
    let there = |given: &&PathBuf| !keeps_one(given) && part(given, slot).join("volume").exists();
    let mut found: Vec<&PathBuf> = given.iter().filter(there).collect();
    if given.len() <= usize::from(servers_on_node) {
        // It has one: what its turn says, unless that is empty.
        found = dealt.iter().filter(there).chain(found).take(1).collect();
    }
    if found.is_empty() || dealt.iter().any(|dealt| keeps_one(dealt)) {
        found = dealt.iter().collect();
    }
    found.into_iter().map(|given| part(given, slot)).collect()
}

/// How many parts of a node's servers are on the disk of this one, itself with them.
pub fn shared_by(given: &[PathBuf], part: &Path, slot: u16, servers_on_node: u16) -> u16 {
    let own = device(part);
    let first = slot - slot % servers_on_node.max(1);
    let all = (first..first + servers_on_node.max(1)).flat_map(|other| dealt(given, other, servers_on_node));
    (all.filter(|given| device(given) == own).count() as u16).max(1)
}

/// The file system that a path is on, or will be.
fn device(path: &Path) -> Option<u64> {
    path.ancestors().find_map(|path| fs::metadata(path).ok()).map(|about| about.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn directories_are_dealt_out() {
        let given = paths(&["a", "b", "c", "d"]);
        let of = |slot, servers| dealt(&given, slot, servers);
        assert_eq!([of(0, 4), of(3, 4), of(5, 6)], [&given[..1], &given[3..], &given[1..2]]);
        assert_eq!([of(0, 2), of(1, 2), of(2, 2), of(0, 1)], [&given[..2], &given[2..], &given[..2], &given[..]]);
    }

    #[test]
    fn they_must_divide() {
        let each = |count: usize, servers| {
            let given: Vec<PathBuf> = (0..count).map(|number| PathBuf::from(format!("none-{number}"))).collect();
            each(&given, servers, "…").map_err(|trouble| trouble.text)
        };
        assert_eq!([each(1, 4), each(4, 4), each(4, 2), each(64, 1)], [Ok(1), Ok(1), Ok(2), Ok(64)]);
        let why = each(6, 4).expect_err("they do not divide");
        assert!(why.contains("6 directories for 4 servers") && why.contains("--servers 1 or 2 or 3 or 6"), "{why}");
        assert!(each(65, 1).expect_err("too many").contains("at most 64"));
    }

    #[test]
    fn what_is_there_is_found_in_any_order() {
        let dir = std::env::temp_dir().join(format!("aze-kept-{}", std::process::id()));
        let at = |name: &str| dir.join(name);
        for (name, slot) in [("a", 1), ("b", 1), ("c", 0), ("d", 0)] {
            fs::create_dir_all(part(&at(name), slot)).expect("a directory");
            fs::write(part(&at(name), slot).join("volume"), "").expect("a file");
        }
        let given = ["a", "c", "b", "d"].map(at);
        let found = [parts(&given, 0, 2), parts(&given, 1, 2)];
        let one = parts(&given[2..], 0, 2);
        let again = parts(&[at("c"), at("d")], 0, 2);
        let new = parts(&given, 2, 2);
        let twice = refuse_twice(&[at("a"), at("b/../a")], "…").map_err(|trouble| trouble.text);
        fs::remove_dir_all(&dir).expect("it is there");
        assert_eq!(found, [[at("c/server-0"), at("d/server-0")], [at("a/server-1"), at("b/server-1")]]);
        assert_eq!((one, again), (vec![at("d/server-0")], vec![at("c/server-0")]));
        assert_eq!(new, [at("a/server-2"), at("c/server-2")]);
        assert!(twice.expect_err("it is the same").contains("are the same"));
    }
}
