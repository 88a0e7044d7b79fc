//! What persistent storage holds: one directory for each server.
//!
//! | file | contents |
//! |---|---|
//! | `volume` | which volume and which server this is, and in which format ([`manifest`]) |
//! | `starts` | in which starts of the volume the server took part, and where its journal ended ([`starts`]) |
//! | `group` | what the server has promised as a member of the keeper group: the map that is decided, and what may be ([`group`]) |
//! | `placement` | which server has which slot, as earlier builds have written it at server 0 ([`placement`]) |
//! | `state-N` | a checkpoint: everything, as records ([`checkpoint`]) |
//! | `log-N` | the journal since then: records in the order in which they took effect ([`journal`]) |
//! | `data-N` | a segment: file data that the checkpoint names, with their checksums ([`segments`]) |
//!
//! Starting means: read the newest checkpoint, then its journal and any later one ([`recover`]). A
//! journal that ends in a torn record ends before it; one that is damaged before something that is
//! known to have been durable is refused. The meaning of records is not known here.

pub mod checkpoint;
pub mod group;
pub mod journal;
pub mod manifest;
pub mod placement;
pub mod places;
pub mod record;
pub mod recover;
pub mod root;
pub mod segments;
pub mod slots;
pub mod starts;
mod text;

use aze_io::disk::{Dir, DiskResult};

/// The file of a journal.
pub fn log_name(number: u64) -> String {
    format!("log-{number:010}")
}

/// The file of a checkpoint.
pub fn state_name(number: u64) -> String {
    format!("state-{number:010}")
}

/// The number in a name made by one of the above.
fn number_of(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// Removes journals and checkpoints older than number `keep`, and the remains of unfinished ones.
///
/// # Errors
/// What the disk says.
pub async fn remove_older(dir: &dyn Dir, keep: u64) -> DiskResult<()> {
    for name in dir.list().await? {
        let number = number_of(&name, "log-").or_else(|| number_of(&name, "state-"));
        if number.is_some_and(|number| number < keep) || is_unfinished(&name) {
            dir.remove(&name).await?;
        }
    }
    dir.sync().await
}

fn is_unfinished(name: &str) -> bool {
    name.starts_with("state-") && name.ends_with(checkpoint::UNFINISHED)
}

/// Removes the remains of checkpoints that were not finished.
///
/// # Errors
/// What the disk says.
pub async fn remove_unfinished(dir: &dyn Dir) -> DiskResult<()> {
    for name in dir.list().await? {
        if is_unfinished(&name) {
            dir.remove(&name).await?;
        }
    }
    Ok(())
}
