//! `aze up --from SYSTEM --storage local`: the directory on a disk of its own that a batch system gives a job on each node.
//!
//! Each server looks on its own node, by variables that the system documents, and takes the first directory that is on a
//! file system of a disk: one that other nodes see, too, would be one disk for all servers, and one in memory none at all. What
//! the volume keeps there goes with it: a server removes its part when the volume ends, and `aze down` those of servers
//! that were killed.

use crate::batch::set;
use crate::exit::{Exit, Outcome, Trouble};
use crate::launch::Order;
use crate::volume::{self, LOCAL};
use crate::{kept, show, size, sys};
use aze_io::real::files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Of the free bytes servers take one in so many: programs of the job have the rest, in the same directory.
const SHARE: u64 = 2;

/// Bytes beside its data that a server needs for its journal and checkpoints, and the least for the data.
const BESIDE_BYTES: u64 = 1 << 30;

/// In place of a variable: `/tmp`, if Slurm's job_container/tmpfs has given the job one of its own.
pub const OWN_TMP: &str = "/tmp";

/// File systems of disks, as statfs(2) names them.
const OF_DISKS: [(i64, &str); 7] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0xF2F5_2010, "f2fs"),
    (0x2FC1_2FC1, "zfs"),
    (0xCA45_1A4E, "bcachefs"),
    (0x3153_464A, "jfs"),
];

/// Others that are met often, and why they are refused.
const OTHERS: [(i64, &str); 17] = [
    (0x0102_1994, "tmpfs, which is in memory"),
    (0x8584_58F6, "ramfs, which is in memory"),
    (0x794C_7630, "overlayfs, which does not say where it keeps its files"),
    (0x6969, "NFS, which other nodes see, too"),
    (0x0BD0_0BD0, "Lustre, which other nodes see, too"),
    (0x4750_4653, "GPFS, which other nodes see, too"),
    (0x1983_0326, "BeeGFS, which other nodes see, too"),
    (0x00C3_6400, "Ceph, which other nodes see, too"),
    (0xFF53_4D42, "CIFS, which other nodes see, too"),
    (0xFE53_4D42, "SMB, which other nodes see, too"),
    (0x5346_414F, "AFS, which other nodes see, too"),
    (0x2003_0528, "OrangeFS, which other nodes see, too"),
    (0xAAD7_AAEA, "PanFS, which other nodes see, too"),
    (0x0116_1970, "GFS2, which other nodes see, too"),
    (0x7461_636F, "OCFS2, which other nodes see, too"),
    (0x6573_5546, "FUSE, which other nodes may see, too"),
    (0x0102_1997, "9P, which other nodes may see, too"),
];

/// What a server is told that is to find its place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Local {
    /// The batch job in which the volume is started: its system, and its number.
    pub job: Option<(String, String)>,
    /// Variables, the best first, with their values there.
    pub variables: Vec<(String, Option<String>)>,
    /// The place that an earlier start has found.
    pub place: Option<PathBuf>,
}

impl Local {
    /// For servers of the job that this process is in.
    pub fn of(variables: &[&str]) -> Local {
        Local {
            job: aze_reach::batch_job().map(|(system, id)| (system.to_owned(), id)),
            variables: variables.iter().map(|name| (name.to_string(), set(name))).collect(),
            place: None,
        }
    }

    /// Their values on this node. A variable of this process counts if it is in that job, too: a launcher such as ssh hands no
    /// variables on, and some that are set here may be of the login.
    fn here(&self) -> Vec<(&str, Option<String>)> {
        let own = aze_reach::batch_job().map(|(system, id)| (system.to_owned(), id));
        let is_in_job = own.is_some() && own == self.job;
        let value = |(name, there): &'_ (String, Option<String>)| match name.as_str() {
            OWN_TMP => {
                let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
                let id = own.as_ref().map(|(_, id)| id.as_str());
                id.filter(|id| is_in_job && is_own_tmp(&mounts, id)).map(|_| OWN_TMP.to_owned())
            }
            name => set(name).filter(|_| is_in_job).or_else(|| there.clone()),
        };
        self.variables.iter().map(|variable| (variable.0.as_str(), value(variable))).collect()
    }
}

/// A disk that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// The directory for the servers of the volume.
    pub place: PathBuf,
    /// The variable that names the directory in which it is.
    pub by: String,
    /// The file system.
    pub kind: String,
    /// Free bytes, and those that servers of the volume have there already.
    pub free_bytes: u64,
}

/// Finds the place of a server on this node, and how much it may keep there.
///
/// # Errors
/// None of the directories can be used; all that was looked at is named.
pub fn settle(order: &Order) -> Outcome<(Order, Option<Disk>)> {
    let Some(local) = &order.local else { return Ok((order.clone(), None)) };
    let disk = match &local.place {
        Some(place) => known(place)?,
        None => find(order, local)?,
    };
    let promise = order.storage.as_ref().map_or("none", |(_, promise)| promise);
    let mut settled = order.clone();
    settled.storage = Some((vec![disk.place.display().to_string()], promise.to_owned()));
    settled.storage_bytes = order.storage_bytes.or(Some(disk.free_bytes / SHARE / servers(order)));
    Ok((settled, Some(disk)))
}

fn servers(order: &Order) -> u64 {
    u64::from(order.servers_on_node.max(1))
}

/// The place of a server that is started again.
fn known(place: &Path) -> Outcome<Disk> {
    let kind = place.is_dir().then(|| files::file_system_kind(place).ok()).flatten();
    let Some(kind) = kind else {
        let text = format!(
            "--storage local, on {}: {} is gone, as after the end of the job: what the server kept is lost; 'aze down' ends the volume",
            volume::host(),
            place.display()
        );
        return Err(Trouble::new(Exit::NotFound, text));
    };
    let kind = of_disk(kind).unwrap_or_else(|why| why);
    Ok(Disk { place: place.into(), by: "an earlier start".into(), kind, free_bytes: 0 })
}

fn find(order: &Order, local: &Local) -> Outcome<Disk> {
    let mut looked = Vec::new();
    for (name, value) in local.here() {
        let Some(value) = value else {
            looked.push(match name {
                OWN_TMP => "/tmp is no directory of the job's own (job_container/tmpfs)".into(),
                name => format!("{name} is not set"),
            });
            continue;
        };
        match usable(order, Path::new(&value)) {
            Ok((place, kind, free_bytes)) => return Ok(Disk { place, by: name.into(), kind, free_bytes }),
            Err(why) if name == OWN_TMP => looked.push(format!("/tmp: {why}")),
            Err(why) => looked.push(format!("{name}={value}: {why}")),
        }
    }
    let text = format!(
        "--storage local, on {}: no local disk was found: {}: give --storage DIR, a directory that is on a disk of each node, or no --storage, \
         for a volume in memory",
        volume::host(),
        looked.join("; ")
    );
    Err(Trouble::new(Exit::Caller, text))
}

/// The volume's place in a directory, which is made, its file system, and the free bytes; else why the directory cannot be used.
fn usable(order: &Order, dir: &Path) -> Result<(PathBuf, String, u64), String> {
    if !dir.is_absolute() {
        return Err("it is no absolute path".into());
    }
    let about = fs::metadata(dir).map_err(|error| no_such(&error))?;
    if !about.is_dir() {
        return Err("it is no directory".into());
    }
    let kind = files::file_system_kind(dir).map_err(|error| error.to_string())?;
    let kind = of_disk(kind).map_err(|why| format!("it is on {why}"))?;
    let place = dir.join(format!("azekura-{}", order.volume));
    let is_new = make(&place)?;
    let room = files::file_system_room(&place).map_err(|error| error.to_string());
    let enough = room.and_then(|(free, _)| enough(order, free + held(&place)));
    if enough.is_err() && is_new {
        // Another server of this node may have put something there.
        let _ = fs::remove_dir(&place);
    }
    Ok((place, kind, enough?))
}

/// Gives the free bytes back if they are enough for the servers of the node.
fn enough(order: &Order, free: u64) -> Result<u64, String> {
    let data = order.storage_bytes.unwrap_or_else(|| BESIDE_BYTES.max(free / SHARE / servers(order)));
    let wanted = data.saturating_add(BESIDE_BYTES).saturating_mul(servers(order));
    if wanted <= free {
        return Ok(free);
    }
    let of = show::count(servers(order), "server");
    Err(format!(
        "{} are free, and {of} with {} for data each need {}",
        size::words(free),
        size::words(data),
        size::words(wanted)
    ))
}

/// Makes the directory of the volume, which is its owner's alone; false if it is there.
fn make(place: &Path) -> Result<bool, String> {
    match DirBuilder::new().mode(0o700).create(place) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(format!("it cannot be written to: {error}"));
        }
        Err(_) => {}
    }
    let about = fs::symlink_metadata(place).map_err(|error| error.to_string())?;
    if !about.is_dir() || about.uid() != sys::uid() || about.mode() & 0o022 != 0 {
        return Err(format!("{} is there, and not a directory that you alone may write to", place.display()));
    }
    Ok(false)
}

fn no_such(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such directory".into(),
        _ => error.to_string(),
    }
}

/// Bytes that parts of servers take there.
fn held(place: &Path) -> u64 {
    let parts = kept::all_there(&[place.to_owned()]).into_values().flatten();
    let files = parts.filter_map(|part| fs::read_dir(part).ok()).flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|about| about.blocks() * 512).sum()
}

/// The name of a file system of a disk; else the kind of file system.
fn of_disk(kind: i64) -> Result<String, String> {
    let kind = kind & 0xFFFF_FFFF;
    let named = |list: &[(i64, &str)]| list.iter().find(|known| known.0 == kind).map(|known| known.1.to_owned());
    let unknown = || format!("a file system of kind {kind:#x}, which is not known to be that of a local disk");
    named(&OF_DISKS).ok_or_else(|| named(&OTHERS).unwrap_or_else(unknown))
}

/// Whether `/tmp` is a directory of this job: its mount, by the text of `/proc/self/mountinfo`, is of a directory that is named
/// after the job (job_container.conf(5), BasePath).
fn is_own_tmp(mounts: &str, id: &str) -> bool {
    let is_it = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_of_job = |name: &str| name == id || name.strip_prefix('.') == Some(id);
        matches!(fields[..], [_, _, _, root, "/tmp", ..] if root.split('/').any(is_of_job))
    };
    mounts.lines().any(is_it)
}

/// Removes the part of a server, and the directory of the volume with the last of them.
pub fn remove(place: &Path, slot: u16) {
    // What cannot be removed is in a directory that is the job's.
    let _ = fs::remove_dir_all(kept::part(place, slot));
    let _ = fs::remove_dir(place);
}

/// The disks of the nodes, for people: free bytes, file system, and variable.
pub fn told<'a>(disks: impl Iterator<Item = &'a Disk>) -> String {
    let mut found: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for disk in disks {
        let (nodes, free) = found.entry((&disk.by, &disk.kind)).or_default();
        (*nodes, *free) = (*nodes + 1, free.saturating_add(disk.free_bytes));
    }
    let one = |((by, kind), (nodes, free)): ((&str, &str), (u64, u64))| {
        format!("{} free on {kind} of {}, by {by}", size::words(free), show::count(nodes, "node"))
    };
    found.into_iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Whether these are the words of `--storage` for local disks.
pub fn is_meant(storage: &[String]) -> bool {
    storage == [LOCAL]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_file_systems_of_disks_are_taken() {
        assert_eq!(of_disk(0xEF53).as_deref(), Ok("ext4"));
        for (kind, told) in
            [(0x0102_1994, "in memory"), (0x6969, "NFS, which other nodes see"), (0x1234, "kind 0x1234")]
        {
            assert!(of_disk(kind).expect_err("it is no disk").contains(told), "{kind:#x}");
        }
        // statfs(2) has 32 bits of it, which some systems extend by their sign.
        assert_eq!(of_disk(-0x35BA_E5B2).as_deref(), Ok("bcachefs"));
    }

    #[test]
    fn a_tmp_of_the_job_is_a_mount_of_a_directory_named_after_it() {
        let line = |root: &str, dir: &str| format!("1 2 8:1 {root} {dir} rw - ext4 /dev/sda1 rw\n");
        assert!(is_own_tmp(&(line("/", "/") + &line("/containers/77/.77", "/tmp")), "77"));
        assert!(is_own_tmp(&line("/77/_tmp", "/tmp"), "77"));
        for (root, dir) in [("/", "/tmp"), ("/containers/770/.770", "/tmp"), ("/77/.77", "/var/tmp"), ("/77", "/")] {
            assert!(!is_own_tmp(&line(root, dir), "77"), "{root} at {dir}");
        }
    }

    #[test]
    fn disks_of_many_nodes_are_told_together() {
        let disk = |by: &str| Disk { place: "/x".into(), by: by.into(), kind: "xfs".into(), free_bytes: 1 << 30 };
        let disks = [disk("TMPDIR"), disk("TMPDIR"), disk("SLURM_TMPDIR")];
        assert_eq!(
            told(disks.iter()),
            "1.00 GiB free on xfs of 1 node, by SLURM_TMPDIR; 2.00 GiB free on xfs of 2 nodes, by TMPDIR"
        );
    }
}
