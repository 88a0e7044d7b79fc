//! What the user has given: where a volume is kept, and over which directory it lies.

use super::{Args, Promise};
use crate::exit::{Outcome, Trouble};
use crate::place::Place;
use crate::volume::{Backing, LOCAL};
use crate::{kept, local_disks};
use aze_proto::slots::Placement;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The directory over which the volume is to lie.
pub fn backing(args: &Args) -> Outcome<Option<Backing>> {
    let Some(given) = &args.backing else { return Ok(None) };
    let failed = |error: &std::io::Error| Trouble::local(format!("--backing {}", given.display()), error);
    if let Ok(Place::Volume(path)) = Place::parse(given.as_os_str()) {
        let text = format!(
            "--backing {}: servers read a backing by a path of this machine: mount it ('aze mount DIR' of its volume, on all nodes of the \
             new one), and give DIR{}",
            path.shown(),
            String::from_utf8_lossy(&path.path)
        );
        return Err(Trouble::usage(text));
    }
    let path = std::fs::canonicalize(given).map_err(|error| failed(&error))?;
    let about = path.metadata().map_err(|error| failed(&error))?;
    if !about.is_dir() {
        return Err(Trouble::usage(format!("--backing {}: it is no directory", given.display())));
    }
    if path.to_str().is_none() {
        return Err(Trouble::usage(format!("--backing {}: its path is no text (UTF-8)", given.display())));
    }
    Ok(Some(Backing { path, inode: about.ino() }))
}

/// Where a persistent volume is kept; `None`: in memory.
pub fn storage(args: &Args, nodes: &[Option<String>]) -> Outcome<Option<(Vec<PathBuf>, Promise)>> {
    if args.storage == ["mem"] {
        return match args.durability {
            Some(_) => Err(Trouble::usage("--durability is for volumes that are kept: give --storage DIR, too")),
            None if args.storage_size.is_some() => {
                Err(Trouble::usage("--storage-size is for volumes that are kept: give --storage DIR, too"))
            }
            None => Ok(None),
        };
    }
    let remote = nodes.iter().any(Option::is_some);
    let dir = |text: &String| {
        if text == "mem" || text == LOCAL || text.is_empty() {
            return Err(Trouble::usage(format!(
                "--storage {}: either mem, or local, or directories or files (./local for one of that name)",
                args.storage.join(",")
            )));
        }
        if remote && !text.starts_with('/') {
            return Err(Trouble::usage(format!("--storage {text}: on other nodes it must be an absolute path")));
        }
        std::path::absolute(text).map_err(|error| Trouble::local(format!("--storage {text}"), &error))
    };
    if args.placement != Placement::Modular {
        let text =
            "--placement ring is for volumes in memory: servers find what their directories keep by the other way";
        return Err(Trouble::usage(text));
    }
    if local_disks::is_meant(&args.storage) {
        return match args.hosts.from {
            // Its nodes leave the job at the end, and their disks are emptied.
            Some(_) => Ok(Some((vec![LOCAL.into()], args.durability.unwrap_or(Promise::None)))),
            None => Err(Trouble::usage(
                "--storage local: which directories are on local disks, a batch system says: give --from SYSTEM in a job, or --storage DIR",
            )),
        };
    }
    let dirs = args.storage.iter().map(dir).collect::<Outcome<Vec<PathBuf>>>()?;
    let text = args.storage.join(",");
    kept::refuse_twice(&dirs, &text)?;
    kept::each(&dirs, nodes.iter().filter(|node| **node == nodes[0]).count() as u16, &text)?;
    Ok(Some((dirs, args.durability.unwrap_or(Promise::Fsync))))
}
