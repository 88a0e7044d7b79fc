//! One task fills and empties a directory of its own; others list it, page by page.

use super::{ROOT, Worker};
use crate::work::shared::new_file;
use aze_client::{Client, Lister};
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure, FileKind, Ino, Name};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The directory.
pub const LISTED_DIR: &[u8] = b"/listed";

/// Names that come and go: enough for many pages.
const NAMES: u64 = 40;

/// Whether a name is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Yes,
    No,
    /// Unknown, or it is changing.
    Perhaps,
}

/// What may be in the directory.
#[derive(Debug, Default)]
pub struct Names {
    there: BTreeMap<Vec<u8>, There>,
    /// Names touched, in order.
    touched: Vec<Vec<u8>>,
}

/// The directory with its model.
#[derive(Clone)]
pub struct Slot {
    /// Which it is.
    pub dir: Ino,
    /// What may be in it.
    pub names: Arc<Mutex<Names>>,
}

impl Names {
    fn begin(&mut self, name: &Name) {
        self.there.insert(name.as_bytes().to_vec(), There::Perhaps);
        self.touched.push(name.as_bytes().to_vec());
    }

    fn end(&mut self, name: &Name, there: There) {
        self.there.insert(name.as_bytes().to_vec(), there);
    }

    /// Whether a listing that began when `before` names had been touched may say this.
    fn check(&self, before: &(BTreeMap<Vec<u8>, There>, usize), listed: &[Vec<u8>]) -> Result<(), String> {
        let touched = &self.touched[before.1..];
        let mut counts: BTreeMap<&[u8], u32> = BTreeMap::new();
        for name in listed {
            *counts.entry(name).or_default() += 1;
        }
        if let Some((name, count)) = counts.iter().find(|(_, count)| **count > 1) {
            return Err(format!("{} comes {count} times", String::from_utf8_lossy(name)));
        }
        for (name, there) in before.0.iter().filter(|(name, _)| !touched.contains(name)) {
            let seen = counts.contains_key(name.as_slice());
            if *there == There::Yes && !seen || *there == There::No && seen {
                return Err(format!("{} is {}listed", String::from_utf8_lossy(name), if seen { "" } else { "not " }));
            }
        }
        let unheard =
            |name: &&&[u8]| !before.0.contains_key(**name) && !touched.iter().any(|touched| touched == **name);
        match counts.keys().find(unheard) {
            Some(name) => Err(format!("{} was never made", String::from_utf8_lossy(name))),
            None => Ok(()),
        }
    }
}

fn name(index: u64) -> Name {
    Name::new(format!("n{index}").as_bytes()).expect("a letter and a number are a name")
}

/// Makes the directory's model known; it is empty.
pub fn begin(worker: &Worker, dir: Ino) {
    worker.board.listings.lock().push(Slot { dir, names: Arc::default() });
}

/// Fills and empties.
pub async fn change(mut worker: Worker, slot: Slot, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        let (one, other) = (name(worker.rng.below(NAMES)), name(worker.rng.below(NAMES)));
        match worker.rng.below(10) {
            0..=5 => create(&worker, &slot, &one).await,
            6..=7 => unlink(&worker, &slot, &one).await,
            _ if one != other => rename(&worker, &slot, &one, &other).await,
            _ => {}
        }
    }
}

async fn create(worker: &Worker, slot: &Slot, name: &Name) {
    slot.names.lock().begin(name);
    let new = new_file(FileKind::File, true);
    let result =
        worker.call(|| format!("create {name} to be listed"), worker.client.create(&ROOT, slot.dir, name, &new)).await;
    if matches!(result, Ok(_) | Err(Failure { code: Code::Exists, .. })) {
        slot.names.lock().end(name, There::Yes);
    }
}

async fn unlink(worker: &Worker, slot: &Slot, name: &Name) {
    slot.names.lock().begin(name);
    let result =
        worker.call(|| format!("unlink {name} that is listed"), worker.client.unlink(&ROOT, slot.dir, name)).await;
    if matches!(result, Ok(()) | Err(Failure { code: Code::NotFound, .. })) {
        slot.names.lock().end(name, There::No);
    }
}

async fn rename(worker: &Worker, slot: &Slot, from: &Name, to: &Name) {
    let before = {
        let mut names = slot.names.lock();
        let before = names.there.get(to.as_bytes()).copied();
        names.begin(from);
        names.begin(to);
        before
    };
    let call = worker.client.rename(&ROOT, slot.dir, from, slot.dir, to, false);
    let result = worker.call(|| format!("rename {from} to {to} that is listed"), call).await;
    let mut names = slot.names.lock();
    match result {
        Ok(()) => {
            names.end(from, There::No);
            names.end(to, There::Yes);
        }
        Err(Failure { code: Code::NotFound, .. }) => {
            names.end(from, There::No);
            names.end(to, before.unwrap_or(There::No));
        }
        Err(_) => {}
    }
}

/// Lists again and again, in pages of different lengths.
pub async fn list(mut worker: Worker, slot: Slot, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        let page = worker.rng.between(1, 30) as usize;
        check(&worker, &slot, page).await;
    }
}

/// Lists once and compares.
pub async fn check(worker: &Worker, slot: &Slot, page: usize) {
    let before = {
        let names = slot.names.lock();
        (names.there.clone(), names.touched.len())
    };
    let listed = worker.call(|| format!("list by {page}"), list_all(&worker.client, slot.dir, page)).await;
    if let Ok(listed) = listed
        && let Err(why) = slot.names.lock().check(&before, &listed)
    {
        worker.board.violation(format!("{} lists a directory: {why}", worker.who));
    }
}

/// All names of a directory.
///
/// # Errors
/// A listing that is not whole.
pub async fn list_all(client: &Client, dir: Ino, page: usize) -> Result<Vec<Vec<u8>>, Failure> {
    let mut names = Vec::new();
    let mut after = 0;
    let mut lister = Lister::new(dir, false);
    loop {
        let listing = lister.page(client, &ROOT, after, page).await?;
        if let Some(last) = listing.entries.last() {
            after = last.hash.cookie();
        }
        let is_empty = listing.entries.is_empty();
        names.extend(listing.entries.into_iter().map(|listed| listed.name.as_bytes().to_vec()));
        if let Some(failure) = listing.failure {
            return Err(failure);
        }
        if !listing.more || is_empty {
            return Ok(names);
        }
    }
}
