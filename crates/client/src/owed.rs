//! Reports of writes that a file's home has not got, since its server has ended or does not answer.
//!
//! The data of a write may be at other servers already when the home cannot be told how long the file is now, and a file may be closed before
//! the home knows that it was written. The program has got an error; the report is kept, and sent until the home has answered, in this life of
//! its server or the next.

use crate::attrs::is_silence;
use crate::client::Core;
use crate::route::Place;
use aze_io::sync::Mutex;
use aze_proto::{Attr, Code, Failure, Generation, Identity, Ino, Request, Spread};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pause before a report is sent again; doubled each time up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(8);

#[derive(Default)]
pub(crate) struct Owed {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    reports: BTreeMap<Ino, Owing>,
    /// A task sends them.
    is_sent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Owing {
    who: Identity,
    generation: Generation,
    /// The file ends here at least; 0: it was written.
    end: u64,
    spread: Spread,
}

impl Table {
    /// Keeps the most that is owed of a file; data truncated meanwhile are not.
    fn add(&mut self, ino: Ino, owing: Owing) {
        match self.reports.get_mut(&ino) {
            Some(known) if known.generation > owing.generation => {}
            Some(known) if known.generation == owing.generation => {
                known.end = known.end.max(owing.end);
                known.spread = known.spread.and(owing.spread);
            }
            _ => drop(self.reports.insert(ino, owing)),
        }
    }
}

/// Whether the home may get a report later that it has not got now.
pub(crate) fn may_come_later(failure: &Failure) -> bool {
    is_silence(failure) || failure.code == Code::UnknownOutcome
}

impl Core {
    /// Has a file's home told in the end that the file was written and, unless `end` is 0, ends there at least.
    pub(crate) fn owe(&self, who: &Identity, attr: &Attr, end: u64, spread: Spread) {
        let mut table = self.owed.table.lock();
        table.add(attr.ino, Owing { who: who.clone(), generation: attr.generation, end, spread });
        if std::mem::replace(&mut table.is_sent, true) {
            return;
        }
        drop(table);
        // A client that is dropped is not kept for it.
        let (me, io) = (self.me.clone(), self.io.clone());
        self.io.spawn(async move {
            let mut pause = PAUSE_MIN;
            loop {
                io.sleep(pause).await;
                let Some(core) = me.upgrade() else { return };
                if core.send_owed().await {
                    return;
                }
                pause = PAUSE_MAX.min(pause * 2);
            }
        });
    }

    /// A time that is set now takes the place of that of earlier writes.
    pub(crate) fn owe_no_time(&self, ino: Ino) {
        self.owed.table.lock().reports.retain(|other, owing| *other != ino || owing.end > 0);
    }

    /// Sends each report once, but for those to servers that have just not answered; `true` when nothing is owed any more.
    pub(crate) async fn send_owed(&self) -> bool {
        let reports = self.owed.table.lock().reports.clone();
        let mut silent = BTreeSet::new();
        for (ino, owing) in reports {
            let home = self.routes.read().map.home_of(ino);
            if silent.contains(&home) {
                continue;
            }
            let Owing { who, generation, end, spread } = owing.clone();
            let request = Request::Report { ino, generation, end, spread };
            let reported = self.ask(&who, Place::Home(ino), &request).await;
            match reported.and_then(|reply| self.attributes(&request, reply)) {
                Err(failure) if may_come_later(&failure) => {
                    silent.insert(home);
                }
                // Told, or the file has been truncated or has gone, or the session has ended.
                _ => {
                    let mut table = self.owed.table.lock();
                    if table.reports.get(&ino) == Some(&owing) {
                        table.reports.remove(&ino);
                    }
                }
            }
        }
        let mut table = self.owed.table.lock();
        table.is_sent = !table.reports.is_empty();
        !table.is_sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_is_owed_is_kept() {
        let mut table = Table::default();
        let mut owed = |generation, end, is_sparse| {
            let (who, spread) = (Identity::default(), Spread::sparse(is_sparse));
            table.add(Ino(9), Owing { who, generation: Generation(generation), end, spread });
            let kept = &table.reports[&Ino(9)];
            (kept.generation.0, kept.end, kept.spread.is_sparse())
        };
        assert_eq!(owed(1, 500, true), (1, 500, true));
        assert_eq!(owed(1, 0, false), (1, 500, true), "that it was written says less");
        assert_eq!(owed(1, 700, false), (1, 700, true));
        assert_eq!(owed(0, 900, false), (1, 700, true), "it was truncated since");
        assert_eq!(owed(2, 0, false), (2, 0, false), "it was truncated");
    }
}
