//! Whether the objects that a receipt names are still as it says.

use super::prove::{sums_of, xattrs_hash};
use super::survey::{at, stat_within};
use crate::Watch;
use crate::tree::{Meta, Spot};
use aze_proto::attr::FileKind;
use aze_receipt::line::What;
use aze_receipt::{CHUNK_BYTES, Line, Object, Signed, when};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Lines that wait to be checked; reading the receipt waits when there are more.
const QUEUE_LINES_MAX: usize = 256;

/// What of the lines is checked beside the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// Owners and times, too: not of a copy elsewhere.
    pub owners_and_times: bool,
    /// Files read at the same time.
    pub jobs: usize,
}

/// Compares all that a receipt says with the objects below `root`; gives the number of lines that are true. Each difference is
/// told to the watch.
///
/// # Errors
/// The receipt cannot be read again.
pub fn verify(signed: &Signed, root: &Spot, claims: Claims, watch: &dyn Watch) -> Outcome<u64> {
    let (queue, lines) = sync_channel(QUEUE_LINES_MAX);
    let (lines, good) = (Mutex::new(lines), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..claims.jobs.max(1) {
            scope.spawn(|| work(&lines, root, claims, watch, &good));
        }
        for line in signed.lines()? {
            if watch.is_over() {
                break;
            }
            // The checkers end only after the queue has.
            let _ = queue.send(line?);
        }
        drop(queue);
        Ok(())
    })?;
    Ok(good.into_inner())
}

fn work(lines: &Mutex<Receiver<Line>>, root: &Spot, claims: Claims, watch: &dyn Watch, good: &AtomicU64) {
    loop {
        let line = lines.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let checked = match line {
            Ok(Line::Object(object)) => check(&object, &at(root, &object.path), claims, watch),
            Ok(Line::Removed(removed)) => {
                let spot = at(root, &removed.path);
                match stat_within(root, &removed.path) {
                    Ok(None) => Ok(()),
                    Ok(Some(_)) => Err(differs(&spot, "it was removed, and is there")),
                    Err(trouble) => Err(trouble),
                }
            }
            Ok(Line::Head(_) | Line::End(_)) => continue,
            Err(_) => return,
        };
        match checked {
            Ok(()) => drop(good.fetch_add(1, Ordering::Relaxed)),
            Err(_) if watch.is_over() => {}
            Err(trouble) => watch.failed(&trouble),
        }
    }
}

fn differs(spot: &Spot, how: impl std::fmt::Display) -> Trouble {
    Trouble::new(Exit::Some, format!("{}: {how}", spot.shown()))
}

fn check(object: &Object, spot: &Spot, claims: Claims, watch: &dyn Watch) -> Outcome<()> {
    let is_root = object.path.is_empty();
    let found = spot.stat(is_root)?.ok_or_else(|| differs(spot, "it is missing"))?;
    let kind = match &object.what {
        What::Directory => FileKind::Directory,
        What::Link { .. } => FileKind::Symlink,
        What::File { .. } => FileKind::File,
    };
    if found.kind != kind {
        return Err(differs(spot, "it is of another kind"));
    }
    match &object.what {
        What::Directory => {
            if xattrs_hash(spot.tree.dir_xattrs(&spot.path)?) != object.xattrs {
                return Err(differs(spot, "its extended attributes have changed"));
            }
        }
        What::Link { target } => {
            if spot.tree.read_link(&spot.path)? != *target {
                return Err(differs(spot, "it leads elsewhere"));
            }
        }
        What::File { size, hash, chunks, .. } => {
            if found.size != *size {
                return Err(differs(spot, format_args!("it has {} bytes instead of {size}", found.size)));
            }
            let source = spot.tree.open_fresh(&spot.path)?;
            let sums = sums_of(source.as_ref(), *size, found.is_sparse, watch)?;
            if sums.hash(*size) != *hash {
                let place = chunks.as_ref().and_then(|chunks| chunks.first_difference(&sums));
                let place = place.map(|chunk| format!(", first in the 4 MiB from byte {} on", chunk * CHUNK_BYTES));
                return Err(differs(spot, format_args!("its bytes have changed{}", place.unwrap_or_default())));
            }
            if xattrs_hash(source.xattrs()?) != object.xattrs {
                return Err(differs(spot, "its extended attributes have changed"));
            }
        }
    }
    attributes(object, spot, &found, claims)
}

fn attributes(object: &Object, spot: &Spot, found: &Meta, claims: Claims) -> Outcome<()> {
    let is_link = matches!(object.what, What::Link { .. });
    if found.mode != object.mode && !is_link {
        return Err(differs(spot, format_args!("its mode is {:04o} instead of {:04o}", found.mode, object.mode)));
    }
    if !claims.owners_and_times {
        return Ok(());
    }
    if (found.uid, found.gid) != (object.uid, object.gid) {
        let (uid, gid) = (object.uid, object.gid);
        return Err(differs(spot, format_args!("it belongs to {}:{} instead of {uid}:{gid}", found.uid, found.gid)));
    }
    let mtime = when(found.mtime.0);
    if mtime != object.mtime {
        return Err(differs(spot, format_args!("it was changed at {mtime}, not at {}", object.mtime)));
    }
    Ok(())
}
