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
use aze_proto::message::Durability;
use aze_proto::place::Away;
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
    /// The last one in which the server that asks must have taken part: `complete`, or an earlier one if it was left out since.
    pub(in crate::persistence) last: u64,
}

/// The starts of another server, as it tells the first one.
pub(crate) struct Told {
    pub(crate) server: ServerIndex,
    pub(crate) begun: u64,
    pub(crate) complete: u64,
    pub(crate) away: Vec<Away>,
}

/// What the first server, number `me`, takes as its own before it counts a start: it was left out of starts that others
/// have counted, has not noted that one was complete, or another one has begun one that was not. The error says that
/// its directory is older; it counts nothing then, since its count of begun starts tells its age at the next attempt,
/// too.
pub(in crate::persistence) fn caught_up(own: Starts, me: ServerIndex, told: &[Told]) -> Result<Starts, String> {
    let begun = told.iter().map(|told| told.begun).fold(own.begun, u64::max);
    let Some(newest) = told.iter().max_by_key(|told| told.complete).filter(|told| told.complete > own.complete) else {
        return Ok(Starts { begun, ..own });
    };
    let Told { server, complete, away, .. } = newest;
    let last = away.iter().find(|away| away.server == me).map_or(*complete, |away| away.start);
    if own.begun < last {
        return Err(format!(
            "that of server {me} is older: server {server} knows of the complete start number {complete}, server {me} has begun number {} \
             last: {ADVICE} (of server {me})",
            own.begun
        ));
    }
    let away = away.iter().map(|away| (away.server.0, away.start)).collect();
    Ok(Starts { begun, complete: *complete, away, ..own })
}

/// The same list as it travels.
pub(in crate::persistence) fn away_of(starts: &Starts) -> Vec<Away> {
    starts.away.iter().map(|(server, start)| Away { server: ServerIndex(*server), start: *start }).collect()
}

/// Why a directory that a power cut may have made older cannot go on without some servers.
pub(in crate::persistence) fn may_go_on_without(own: &Starts, boot: u64, durability: Durability) -> Result<(), String> {
    if durability == Durability::None && own.ended.is_none() && (own.boot == 0 || own.boot != boot) {
        return Err("its machine was started again since, and the volume promises nothing then (--durability none): counts of names are right \
             again only when all servers start"
            .into());
    }
    Ok(())
}

/// Compares a server's own starts with those that the first one has counted. The error names the older directory.
pub(in crate::persistence) fn compare(own: &Starts, counted: &Counted) -> Result<(), String> {
    let Counted { by: first, start, complete, last } = *counted;
    if own.begun < last {
        let begun = own.begun;
        return Err(format!(
            "it is older than that of server {first}: its last start was number {begun}, and number {last} was complete: {ADVICE}"
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
        self.now.lock().clone()
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

    /// Changes them here, and in the file when that is next written.
    pub(in crate::persistence) fn catch_up(&self, caught: Starts) {
        *self.now.lock() = caught;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_directory_is_told_on_either_side() {
        let own = Starts { begun: 5, complete: 5, ..Starts::default() };
        let compare = |own: &Starts, start, complete| {
            compare(own, &Counted { by: ServerIndex(2), start, complete, last: complete })
        };
        assert_eq!(compare(&own, 6, 5), Ok(()));
        // The last start failed after the first server had counted it, before or after this server had begun it.
        assert_eq!(compare(&own, 7, 5), Ok(()));
        let later = Starts { begun: 6, ..own.clone() };
        assert_eq!(compare(&later, 7, 5), Ok(()));
        // This server was killed after the first server had noted that all had begun.
        assert_eq!(compare(&later, 7, 6), Ok(()));
        assert!(compare(&own, 7, 6).unwrap_err().starts_with("it is older than that of server 2"));
        assert!(compare(&own, 5, 4).unwrap_err().starts_with("that of server 2 is older"));
        // A start with the older copy has failed already, and was counted.
        assert!(compare(&own, 9, 4).unwrap_err().starts_with("that of server 2 is older"));
    }

    #[test]
    fn a_server_comes_back_alone_only_with_all_that_it_had_acknowledged() {
        let own = Starts { begun: 5, complete: 5, away: Vec::new(), ended: None, life: 2, boot: 7 };
        assert_eq!(may_come_back(&own, 5, 2, 7), Ok(()));
        assert_eq!(may_come_back(&own, 5, 1, 7), Ok(()), "an attempt to come back has failed");
        assert_eq!(may_come_back(&Starts { begun: 1, complete: 0, ..own.clone() }, 1, 2, 7), Ok(()), "the first start");
        let refused = |own: &Starts, start, life, boot| may_come_back(own, start, life, boot).unwrap_err();
        assert!(refused(&own, 6, 0, 7).starts_with("it is older"));
        assert!(refused(&own, 5, 3, 7).contains("its last life is number 2, and they know of number 3"));
        assert!(refused(&own, 4, 2, 7).contains("not the one"));
        assert!(refused(&Starts { complete: 4, ..own.clone() }, 5, 2, 7).contains("not the one"));
        assert!(refused(&own, 5, 2, 8).contains("its machine was started again"));
        assert!(refused(&Starts { boot: 0, ..own.clone() }, 5, 2, 0).contains("its machine was started again"));
        assert_eq!(may_come_back(&Starts { ended: Some(3), ..own.clone() }, 5, 2, 8), Ok(()), "it had ended well");
    }

    #[test]
    fn a_journal_that_was_closed_may_not_end_earlier() {
        let ended = Starts { begun: 1, complete: 1, ended: Some(100), ..Starts::default() };
        let found = |position| Found { has_any: true, position, ..Found::default() };
        assert!(reaches_its_end(&ended, &found(100)).is_ok());
        assert!(reaches_its_end(&Starts { ended: None, ..ended.clone() }, &found(0)).is_ok());
        assert!(reaches_its_end(&Starts { ended: None, ..ended.clone() }, &Found::default()).is_err());
        let why = reaches_its_end(&ended, &found(99)).unwrap_err().to_string();
        assert!(why.contains("ends at 99 and was closed at 100"), "{why}");
    }

    #[test]
    fn a_server_that_was_left_out_takes_part_with_what_it_had() {
        let own = Starts { begun: 5, complete: 5, ..Starts::default() };
        let counted = |last| Counted { by: ServerIndex(0), start: 9, complete: 8, last };
        assert_eq!(compare(&own, &counted(5)), Ok(()));
        assert!(
            compare(&own, &counted(6)).unwrap_err().contains("its last start was number 5, and number 6 was complete")
        );
    }

    #[test]
    fn a_first_server_that_was_left_out_goes_on_with_what_the_others_have_counted() {
        let own = Starts { begun: 5, complete: 5, ..Starts::default() };
        let told = |complete, start| {
            let away = vec![Away { server: ServerIndex(0), start }];
            vec![Told { server: ServerIndex(1), begun: 9, complete, away }]
        };
        let caught = |told: Vec<Told>| caught_up(own.clone(), ServerIndex(0), &told);
        assert_eq!(caught(told(8, 5)), Ok(Starts { begun: 9, complete: 8, away: vec![(0, 5)], ..own.clone() }));
        // It is an older copy: it had taken part in start 6.
        assert!(caught(told(8, 6)).unwrap_err().starts_with("that of server 0 is older"));
        // It was killed before it had noted that start 6 was complete, or is older.
        let noted = || vec![Told { server: ServerIndex(1), begun: 6, complete: 6, away: Vec::new() }];
        let begun = Starts { begun: 6, ..own.clone() };
        assert_eq!(caught_up(begun.clone(), ServerIndex(0), &noted()), Ok(Starts { complete: 6, ..begun }));
        assert!(caught(noted()).is_err());
        // No server has got further than it.
        assert_eq!(caught(told(5, 5)), Ok(Starts { begun: 9, ..own.clone() }));
        assert_eq!(caught(Vec::new()), Ok(own));
    }
}
