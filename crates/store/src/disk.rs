//! What lasting storage holds: one directory for each server.
//!
//! | file | what it is |
//! |---|---|
//! | `volume` | which volume and which server this is, and in which format ([`manifest`]) |
//! | `starts` | in which starts of the volume the server took part, and where its journal ended ([`starts`]) |
//! | `state-N` | a checkpoint: everything, as records ([`checkpoint`]) |
//! | `log-N` | the journal since then: records in the order in which they took effect ([`journal`]) |
//! | `data-N` | a segment: file data that the checkpoint names, with their checksums ([`segments`]) |
//!
//! Starting means: read the newest checkpoint, then its journal and any later one ([`recover`]). A
//! journal that ends in a torn record ends before it; one that is damaged before something that is
//! known to have been durable is refused. What records mean is not known here.

pub mod checkpoint;
pub mod journal;
pub mod manifest;
pub mod places;
pub mod record;
pub mod recover;
pub mod segments;
pub mod starts;

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

/// Writes a small file so that it is there as it was or as it is to be, durably.
async fn write_text(dir: &dyn Dir, name: &str, text: String) -> DiskResult<()> {
    let new = format!("{name}.new");
    let file = dir.create(&new).await?;
    file.append(text.into_bytes()).await?;
    file.sync().await?;
    dir.rename(&new, name).await?;
    dir.sync().await
}

/// Removes journals and checkpoints older than number `keep`, and what is left of unfinished ones.
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

/// Removes what is left of checkpoints that were not finished.
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
