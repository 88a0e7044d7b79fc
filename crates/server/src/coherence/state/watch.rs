//! A client that checks the volume has to know whether the rows that it saw, on several servers one after the other,
//! agreed at one moment. It names inodes, and every server notes which of them change in their count of
//! names, or get, lose or move one. Those with which nothing has happened were the whole time as they
//! were seen.

use aze_io::sync::Mutex;
use aze_meta::{Op, Role, Shard};
use aze_proto::check::CHECK_INODES_MAX;
use aze_proto::{Code, Failure, Ino, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sessions that may watch at one time.
const WATCHES_MAX: usize = 16;

/// How long a watch is kept: one that is not ended is forgotten then. Nothing is said of it after that.
const WATCH_TIME_NS: u64 = 600_000_000_000;

/// The watches of a server, shared by its shards.
#[derive(Clone, Default)]
pub(crate) struct Watches(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Whether there is any: nearly always there is none.
    is_used: AtomicBool,
    all: Mutex<BTreeMap<SessionId, Watch>>,
}

struct Watch {
    number: u64,
    until_ns: u64,
    /// Whether something has happened.
    inos: BTreeMap<Ino, bool>,
}

impl Watches {
    pub(crate) fn is_used(&self) -> bool {
        self.0.is_used.load(Ordering::SeqCst)
    }

    /// Begins a watch, instead of an older one of the session.
    pub(crate) fn begin(&self, session: SessionId, number: u64, inos: &[Ino], now_ns: u64) -> Result<(), Failure> {
        if inos.len() > CHECK_INODES_MAX {
            let detail = format!("a watch over {} inodes: at most {CHECK_INODES_MAX}", inos.len());
            return Err(Failure::new(Code::Limit, detail));
        }
        let mut all = self.0.all.lock();
        all.retain(|_, watch| watch.until_ns > now_ns);
        if all.get(&session).is_some_and(|watch| watch.number >= number) {
            return Ok(());
        }
        if all.len() >= WATCHES_MAX && !all.contains_key(&session) {
            let detail = format!("{WATCHES_MAX} checks of the volume are under way: wait until one has ended");
            return Err(Failure::new(Code::Busy, detail));
        }
        let inos = inos.iter().map(|ino| (*ino, false)).collect();
        all.insert(session, Watch { number, until_ns: now_ns + WATCH_TIME_NS, inos });
        self.0.is_used.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// With which of the inodes something has happened.
    pub(crate) fn told(&self, session: SessionId, number: u64, now_ns: u64) -> Result<Vec<Ino>, Failure> {
        let mut all = self.0.all.lock();
        all.retain(|_, watch| watch.until_ns > now_ns);
        match all.get(&session).filter(|watch| watch.number == number) {
            Some(watch) => Ok(watch.inos.iter().filter(|(_, changed)| **changed).map(|(ino, _)| *ino).collect()),
            None => Err(Failure::new(Code::TimedOut, "the watch over these inodes has ended")),
        }
    }

    /// The session has ended.
    pub(crate) fn forget(&self, session: SessionId) {
        if self.is_used() {
            let mut all = self.0.all.lock();
            all.remove(&session);
            self.0.is_used.store(!all.is_empty(), Ordering::SeqCst);
        }
    }

    /// Notes what an operation is about to change. Also if it fails in the end: then nothing is said of
    /// inodes with which nothing has happened, which is no harm.
    pub(crate) fn note(&self, shard: &Shard, op: &Op) {
        let concerned = concerned(shard, op);
        for watch in self.0.all.lock().values_mut() {
            for ino in concerned.iter().flatten() {
                if let Some(changed) = watch.inos.get_mut(ino) {
                    *changed = true;
                }
            }
        }
    }
}

/// The inodes whose names or counts an operation may change, or hold.
fn concerned(shard: &Shard, op: &Op) -> [Option<Ino>; 4] {
    let (named, held) = match op.key() {
        Some(key) => (shard.entry(key).map(|entry| entry.ino), shard.lock_of(key).map(|lock| lock.ino)),
        None => (None, None),
    };
    let stated = match op {
        Op::Insert { ino, .. }
        | Op::LinkInsert { ino, .. }
        | Op::Exchange { ino, .. }
        | Op::SetParent { ino, .. }
        | Op::Delete { ino }
        | Op::LinkBegin { ino, .. }
        | Op::LinkEnd { ino, .. }
        | Op::LinkDrop { ino, .. }
        | Op::SetLinks { ino, .. } => Some(*ino),
        Op::Lock { lock, .. } => Some(lock.ino),
        Op::MakeRoot { .. }
        | Op::Import { .. }
        | Op::ImportedAll { .. }
        | Op::LieOver { .. }
        | Op::WillChange { .. }
        | Op::LeaveBacking { .. }
        | Op::Adopt { .. }
        | Op::Settled { .. }
        | Op::ForgetGone { .. }
        | Op::Create { .. }
        | Op::CreateWith { .. }
        | Op::Remove { .. }
        | Op::SetAttr { .. }
        | Op::Report { .. }
        | Op::Wrote { .. }
        | Op::Appended { .. }
        | Op::Truncate { .. }
        | Op::TruncateDone { .. }
        | Op::Unlock { .. }
        | Op::Record { .. }
        | Op::ReserveInos { .. }
        | Op::BeginLife { .. }
        | Op::LinkForget { .. }
        | Op::LinkResolved { .. }
        | Op::SetXattr { .. }
        | Op::EndSession { .. }
        | Op::ExpireOutcomes => None,
    };
    let back = match op {
        Op::Lock { lock, .. } => match lock.role {
            Role::ExchangeSource { ino, .. } => Some(ino),
            Role::Source | Role::Destination | Role::ExchangeDestination => None,
        },
        _ => None,
    };
    [named, held, stated, back]
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_meta::op::NewFile;
    use aze_meta::{EntryKey, Lock, Stamp};
    use aze_proto::{FileKind, Incarnation, MapEpoch, Name, ServerIndex, ShardId, Time, TxId};

    const ME: SessionId = SessionId(7);

    fn key(text: &str) -> EntryKey {
        EntryKey::new(Ino::ROOT, Name::new(text.as_bytes()).expect("a name"))
    }

    /// A shard that has all names of the volume, with one file.
    fn shard() -> (Shard, Ino) {
        let mut shard = Shard::new(ShardId(0), 1);
        let (kind, target, born) = (FileKind::File, Default::default(), MapEpoch(1));
        let new = NewFile {
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target,
            born,
            chunk_bits: 20,
            layout: aze_proto::place::Layout::default(),
            private: false,
            over_backing: false,
        };
        let op = Op::Create { key: key("a"), new, exclusive: true };
        let made = shard.apply(&op, &Stamp::at(Time(1))).effects.attr.expect("it was made").ino;
        (shard, made)
    }

    fn noted(op: &Op) -> Vec<Ino> {
        let (shard, file) = shard();
        let watches = Watches::default();
        watches.begin(ME, 1, &[file, Ino(99)], 0).expect("there is room");
        watches.note(&shard, op);
        watches.told(ME, 1, 1).expect("it was begun")
    }

    #[test]
    fn whatever_changes_names_or_counts_is_noted() {
        let (_, file) = shard();
        let (tx, kind) = (TxId(5), FileKind::File);
        let remove = Op::Remove { key: key("a"), only: None, moved: true, under: None };
        let replace = Op::Insert { key: key("a"), ino: Ino(98), kind, replace: true, under: None, attr: None };
        let insert = Op::LinkInsert { key: key("b"), ino: file, kind, tx };
        let (coordinator, incarnation) = (ServerIndex(0), Incarnation(0));
        let lock = Lock { tx, role: Role::Destination, coordinator, incarnation, ino: Ino(99), kind };
        assert_eq!(noted(&remove), [file]);
        assert_eq!(noted(&replace), [file]);
        assert_eq!(noted(&insert), [file]);
        assert_eq!(noted(&Op::Lock { key: key("b"), lock: lock.clone() }), [Ino(99)]);
        let back = Role::ExchangeSource { ino: Ino(99), kind, parent: Ino::ROOT };
        let exchange = Lock { role: back, ino: file, ..lock };
        assert_eq!(noted(&Op::Lock { key: key("a"), lock: exchange }), [Ino(99), file]);
        for op in [
            Op::LinkBegin { ino: file, tx, shard: ShardId(0) },
            Op::LinkEnd { ino: file, tx, kept: true },
            Op::LinkDrop { ino: file, tx },
            Op::SetLinks { ino: file, links: 3 },
            Op::SetParent { ino: file, parent: Ino::ROOT },
            Op::Delete { ino: file },
        ] {
            assert_eq!(noted(&op), [file], "{op:?}");
        }
        let written =
            Op::Report { ino: file, generation: Default::default(), end: 5, spread: aze_proto::Spread::default() };
        assert_eq!(noted(&written), []);
        assert_eq!(noted(&Op::Remove { key: key("c"), only: None, moved: false, under: None }), []);
    }

    #[test]
    fn a_watch_is_of_one_session_and_number_and_time() {
        let watches = Watches::default();
        assert!(!watches.is_used());
        assert!(watches.told(ME, 1, 0).is_err(), "none was begun");
        watches.begin(ME, 2, &[Ino(5)], 0).expect("there is room");
        watches.note(&shard().0, &Op::Delete { ino: Ino(5) });
        watches.begin(ME, 2, &[Ino(5)], 0).expect("a late copy changes nothing");
        watches.begin(ME, 1, &[Ino(5)], 0).expect("nor does an older one");
        assert_eq!(watches.told(ME, 2, 1), Ok(vec![Ino(5)]));
        assert!(watches.told(ME, 1, 1).is_err() && watches.told(SessionId(8), 2, 1).is_err());
        watches.begin(ME, 3, &[Ino(5)], 0).expect("a newer one begins anew");
        assert_eq!(watches.told(ME, 3, 1), Ok(Vec::new()));
        for other in 100..100 + WATCHES_MAX as u64 - 1 {
            watches.begin(SessionId(other), 1, &[], 0).expect("there is room");
        }
        assert_eq!(watches.begin(SessionId(9), 1, &[], 1).map_err(|failure| failure.code), Err(Code::Busy));
        watches.begin(SessionId(9), 1, &[], WATCH_TIME_NS).expect("the others have run out");
        assert!(watches.told(ME, 3, WATCH_TIME_NS).is_err(), "it has run out");
        watches.forget(SessionId(9));
        assert!(!watches.is_used());
        let many = vec![Ino(1); CHECK_INODES_MAX + 1];
        assert_eq!(watches.begin(ME, 9, &many, 0).map_err(|failure| failure.code), Err(Code::Limit));
    }
}
