//! Recognising directories that are older than those of the other servers.
//!
//! The first server, of those that have slots the one with the lowest number, counts the starts of a volume. Each server syncs a note that it begins a start before it resolves changes
//! in doubt, and a note that the start is complete before it serves clients. The first server notes that the start is complete
//! after every server has begun it, and before any server serves. So a directory that has not begun the last complete
//! start is an older copy, which lacks changes that the server acknowledged since: the start is refused. When the
//! directory of the first server is the older one, the others know of a complete start that it does not know.

use aze_io::disk::{Dir, DiskError, DiskResult};
use aze_io::sync::Mutex;
use aze_proto::ServerIndex;
use aze_store::disk::recover::Found;
use aze_store::disk::starts::Starts;

/// Advice to the operator about a directory that is older than the others.
const ADVICE: &str = "put the directory of the last end back; no other has what was written since";

/// Refuses a journal that ends before the place at which it was closed.
pub(in crate::persistence) fn reaches_its_end(starts: &Starts, found: &Found) -> DiskResult<()> {
    let position = found.position;
    match starts.ended {
        // A server writes its first journal before its manifest.
        _ if !found.has_any => {
            Err(DiskError::Failed("the journal is missing: no file log-… is there: put it back".into()))
        }
        Some(ended) if position < ended => Err(DiskError::Failed(format!(
            "the journal ends at {position} and was closed at {ended}: a file log-… was removed, emptied, cut short or \
             replaced by an older one: put it back"
        ))),
        _ => Ok(()),
    }
}

/// What the first server has counted.
#[derive(Clone, Copy)]
pub(in crate::persistence) struct Counted {
    /// Its number.
    pub(in crate::persistence) by: ServerIndex,
    /// The start that it is about to begin.
    pub(in crate::persistence) start: u64,
    /// The last one that it knows to be complete.
    pub(in crate::persistence) complete: u64,
}

/// Compares a server's own starts with those that the first one has counted. The error names the older directory.
pub(in crate::persistence) fn compare(own: &Starts, counted: &Counted) -> Result<(), String> {
    let Counted { by: first, start, complete } = *counted;
    if own.begun < complete {
        let begun = own.begun;
        return Err(format!(
            "it is older than that of server {first}: its last start was number {begun}, and number {complete} was complete: {ADVICE}"
        ));
    }
    if own.complete > complete {
        let newer = own.complete;
        return Err(format!(
            "that of server {first} is older: this one knows of the complete start number {newer}, server {first} of number {complete} only: {ADVICE} (of server {first})"
        ));
    }
    if start <= own.complete {
        return Err(format!(
            "server {first} begins start number {start} once more, which was complete: {ADVICE} (of server {first})"
        ));
    }
    Ok(())
}

/// Whether a server can come back alone, to servers that began start number `start` and know `life` as the number of its
/// last life. The error says why not, and what to do.
pub(in crate::persistence) fn may_come_back(own: &Starts, start: u64, life: u32, boot: u64) -> Result<(), String> {
    let begun = own.begun;
    if begun < start || own.life < life {
        let (number, last) = if begun < start { (begun, start) } else { (own.life.into(), life.into()) };
        let what = if begun < start { "start" } else { "life" };
        return Err(format!(
            "it is older than what the other servers know of it: its last {what} is number {number}, and they know of number {last}: {ADVICE}"
        ));
    }
    // Nothing is resolved at the first start, which is not noted as complete.
    if begun > start || own.complete < begun && begun > 1 {
        return Err(format!(
            "its last start, number {begun}, is not the one that the other servers take part in, number {start}: restart the whole volume: aze restart --force"
        ));
    }
    if own.ended.is_none() && (own.boot == 0 || own.boot != boot) {
        return Err("its machine was started again since: what the server had acknowledged and not synced may be lost, and the other servers build on it: restart the whole volume, which tells programs: aze restart --force".into());
    }
    Ok(())
}

/// The starts of a volume, and the file in which one server keeps them.
pub(in crate::persistence) struct Kept {
    now: Mutex<Starts>,
    /// Held while a task writes the file.
    writing: futures_util::lock::Mutex<()>,
}

impl Kept {
    pub(in crate::persistence) fn new(starts: Starts) -> Kept {
        Kept { now: Mutex::new(starts), writing: futures_util::lock::Mutex::new(()) }
    }

    pub(in crate::persistence) fn now(&self) -> Starts {
        *self.now.lock()
    }

    /// Changes them in the file, and here once that is durable.
    pub(in crate::persistence) async fn write(
        &self,
        dir: &dyn Dir,
        change: impl FnOnce(Starts) -> Starts,
    ) -> DiskResult<()> {
        let _turn = self.writing.lock().await;
        let starts = change(self.now());
        starts.write(dir).await?;
        *self.now.lock() = starts;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_directory_is_told_on_either_side() {
        let own = Starts { begun: 5, complete: 5, ..Starts::default() };
        let compare = |own: &Starts, start, complete| compare(own, &Counted { by: ServerIndex(2), start, complete });
        assert_eq!(compare(&own, 6, 5), Ok(()));
        // The last start failed after the first server had counted it, before or after this server had begun it.
        assert_eq!(compare(&own, 7, 5), Ok(()));
        assert_eq!(compare(&Starts { begun: 6, ..own }, 7, 5), Ok(()));
        // This server was killed after the first server had noted that all had begun.
        assert_eq!(compare(&Starts { begun: 6, ..own }, 7, 6), Ok(()));
        assert!(compare(&own, 7, 6).unwrap_err().starts_with("it is older than that of server 2"));
        assert!(compare(&own, 5, 4).unwrap_err().starts_with("that of server 2 is older"));
        // A start with the older copy has failed already, and was counted.
        assert!(compare(&own, 9, 4).unwrap_err().starts_with("that of server 2 is older"));
    }

    #[test]
    fn a_server_comes_back_alone_only_with_all_that_it_had_acknowledged() {
        let own = Starts { begun: 5, complete: 5, ended: None, life: 2, boot: 7 };
        assert_eq!(may_come_back(&own, 5, 2, 7), Ok(()));
        assert_eq!(may_come_back(&own, 5, 1, 7), Ok(()), "an attempt to come back has failed");
        assert_eq!(may_come_back(&Starts { begun: 1, complete: 0, ..own }, 1, 2, 7), Ok(()), "the first start");
        let refused = |own: &Starts, start, life, boot| may_come_back(own, start, life, boot).unwrap_err();
        assert!(refused(&own, 6, 0, 7).starts_with("it is older"));
        assert!(refused(&own, 5, 3, 7).contains("its last life is number 2, and they know of number 3"));
        assert!(refused(&own, 4, 2, 7).contains("not the one"));
        assert!(refused(&Starts { complete: 4, ..own }, 5, 2, 7).contains("not the one"));
        assert!(refused(&own, 5, 2, 8).contains("its machine was started again"));
        assert!(refused(&Starts { boot: 0, ..own }, 5, 2, 0).contains("its machine was started again"));
        assert_eq!(may_come_back(&Starts { ended: Some(3), ..own }, 5, 2, 8), Ok(()), "it had ended well");
    }

    #[test]
    fn a_journal_that_was_closed_may_not_end_earlier() {
        let ended = Starts { begun: 1, complete: 1, ended: Some(100), ..Starts::default() };
        let found = |position| Found { has_any: true, position, ..Found::default() };
        assert!(reaches_its_end(&ended, &found(100)).is_ok());
        assert!(reaches_its_end(&Starts { ended: None, ..ended }, &found(0)).is_ok());
        assert!(reaches_its_end(&Starts { ended: None, ..ended }, &Found::default()).is_err());
        let why = reaches_its_end(&ended, &found(99)).unwrap_err().to_string();
        assert!(why.contains("ends at 99 and was closed at 100"), "{why}");
    }
}
