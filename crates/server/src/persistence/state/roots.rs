//! The directories of a server: which of them is which, and whether they are all there.
//!
//! Each says in its manifest whose it is, its number, and how many there are. So they may be given in any
//! order, and one that is missing, of another volume or a copy of another directory is told by its name.

use super::persistence::{OURS, Storage, disk_failure};
use aze_io::Io;
use aze_io::disk::{Dir, DiskResult};
use aze_proto::{Code, Failure};
use aze_store::disk::manifest::{self, Manifest};
use aze_store::disk::segments::Root;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Directories of one server, at most.
pub const DIRECTORIES_MAX: u16 = 64;

/// A directory of a server.
#[derive(Clone, Debug)]
pub struct StorageDir {
    /// Where it is.
    pub path: String,
    /// Parts of servers, this one with it, that are on the same disk.
    pub shared_by: u16,
}

/// A directory that is open.
pub(in crate::persistence) struct OpenRoot {
    pub(in crate::persistence) path: String,
    pub(in crate::persistence) shared_by: u16,
    pub(in crate::persistence) dir: Arc<dyn Dir>,
}

/// All directories of a server, in the order of their numbers.
pub(in crate::persistence) struct Roots {
    pub(in crate::persistence) all: Vec<OpenRoot>,
    /// What the first one says; `None`: all are empty.
    pub(in crate::persistence) manifest: Option<Manifest>,
}

fn invalid(detail: String) -> Failure {
    Failure::new(Code::Invalid, detail)
}

impl Roots {
    /// Opens the directories; each one then belongs to this server alone.
    pub(in crate::persistence) async fn open(
        io: &Io,
        storage: &Storage,
        expected: &Manifest,
    ) -> Result<Roots, Failure> {
        let (mut known, mut empty) = (BTreeMap::<u16, (OpenRoot, Manifest)>::new(), Vec::new());
        for StorageDir { path, shared_by } in &storage.dirs {
            let failed = |error| disk_failure(path, &error);
            let dir = io.open_dir(path).await.map_err(failed)?;
            let root = OpenRoot { path: path.clone(), shared_by: *shared_by, dir };
            let Some(found) = Manifest::read(&*root.dir).await.map_err(failed)? else {
                begin_empty(&root).await?;
                empty.push(root);
                continue;
            };
            let (volume, directory) = (found.volume, found.directory);
            // By an earlier build a volume of one server was made with one slot.
            let slots = if (found.servers, found.slots) == (1, 1) { 1 } else { expected.slots };
            check(path, &found, &Manifest { volume, directory, slots, ..*expected })?;
            if let Some((other, first)) = known.values().next().filter(|(_, first)| first.volume != volume) {
                let text = "it holds a part of another volume than";
                return Err(invalid(format!("storage {path}: {text} {} ({:016x})", other.path, first.volume)));
            }
            if let Some((other, _)) = known.get(&directory) {
                let (what, other) = (told(&found), &other.path);
                let text = "is a copy, or the same under another name";
                return Err(invalid(format!(
                    "storage {path}: it holds {what}, and so does {other}: one of them {text}"
                )));
            }
            known.insert(directory, (root, found));
        }
        let Some((first, manifest)) = known.values().next() else {
            return Ok(Roots { all: empty, manifest: None });
        };
        let (first, what, manifest) = (&first.path, told(manifest), *manifest);
        if let Some(root) = empty.first() {
            let detail = format!(
                "storage {}: it is empty, but {first} holds {what}: give the one that belongs to it",
                root.path
            );
            return Err(Failure::new(Code::Lost, detail));
        }
        if let Some(missing) = (0..manifest.directories).find(|number| !known.contains_key(number)) {
            let detail = format!(
                "storage {first}: it holds {what}, and number {missing} of these is in none of the places given: give that \
                 one, too (or remove what is there, if the volume was being made and its start was cut off)"
            );
            return Err(Failure::new(Code::Lost, detail));
        }
        Ok(Roots { all: known.into_values().map(|(root, _)| root).collect(), manifest: Some(manifest) })
    }

    /// The directory of the journal and of checkpoints.
    pub(in crate::persistence) fn first(&self) -> &OpenRoot {
        &self.all[0]
    }

    /// For the segments.
    pub(in crate::persistence) fn for_segments(&self) -> Vec<Root> {
        self.all.iter().map(|root| Root { dir: root.dir.clone(), name: root.path.clone() }).collect()
    }

    /// Writes down whose they are. What the first one says is what counts: so it is the last.
    pub(in crate::persistence) async fn found(dirs: &[Arc<dyn Dir>], manifest: Manifest) -> DiskResult<()> {
        for (number, dir) in dirs.iter().enumerate().rev() {
            Manifest { directory: number as u16, ..manifest }.write(&**dir).await?;
        }
        Ok(())
    }
}

/// Files that a start leaves if it ends before it has written the manifest.
const UNFINISHED_TEXTS: [&str; 3] = ["volume.new", "starts", "starts.new"];

/// Makes sure that a directory without a manifest has no foreign files.
async fn begin_empty(root: &OpenRoot) -> Result<(), Failure> {
    let failed = |error| disk_failure(&root.path, &error);
    if let Some(left) = manifest::read_left(&*root.dir).await.map_err(failed)? {
        return Err(invalid(format!(
            "storage {}: server {} of volume {:016x} had its part here and has left that volume, whose other servers have \
             all that was here: use an empty directory, or remove this one",
            root.path, left.server, left.volume
        )));
    }
    let others = root.dir.list().await.map_err(failed)?;
    let known =
        |name: &String| OURS.iter().any(|start| name.starts_with(start)) || UNFINISHED_TEXTS.contains(&name.as_str());
    if let Some(other) = others.iter().find(|name| !known(name)) {
        return Err(invalid(format!(
            "storage {}: it holds '{other}', and no volume: use an empty directory",
            root.path
        )));
    }
    Ok(())
}

/// What a manifest says, but for the volume.
fn told(manifest: &Manifest) -> String {
    let Manifest { server, servers, shards, slots, chunk_bits, owner_uid, directory, directories, volume: _ } =
        manifest;
    let part = match directories {
        1 => String::new(),
        _ => format!("directory {directory} of the {directories} of "),
    };
    format!(
        "{part}server {server} of {servers}, {shards} shards in {slots} slots, chunks of {} KiB, owner {owner_uid}",
        (1u64 << (chunk_bits % 64)) >> 10
    )
}

/// Refuses a directory of another server, or of a volume that was made otherwise.
fn check(dir: &str, found: &Manifest, expected: &Manifest) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (told(found), told(expected));
    Err(invalid(format!("storage {dir}: it holds {found}; wanted is {expected}: start the volume as it was made")))
}
