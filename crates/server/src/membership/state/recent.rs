//! What a server was asked for in its last seconds: which directories change the most, which files are opened the most.
//!
//! Requests are counted in windows: the one that lasts and the one before it. Of each kind of request one in
//! [`TIMED_ONE_IN`](super::activity::TIMED_ONE_IN) is counted.

use aze_io::sync::Mutex;
use aze_proto::message::{HotCount, RecentActivity};
use aze_proto::wire::Blob;
use aze_proto::{Ino, Name, Request};
use std::collections::BTreeMap;

/// How long a window lasts: the counts told are between one and two of them old.
const WINDOW_NS: u64 = 4_000_000_000;

/// Counters of a window. Something that is asked for more often than one time in so many has one.
const COUNTERS_MAX: usize = 32;

/// Counters that are told, the largest.
const TOLD_MAX: usize = 4;

/// What a request asks for: a directory, a file, or a name in a directory.
type Subject = (Ino, Option<Name>);

/// The most frequent of many subjects, in little memory (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent
/// and top-k elements in data streams", ICDT 2005): a subject without a counter takes over the smallest one, with its count.
#[derive(Default)]
struct Frequent {
    all: u64,
    counts: BTreeMap<Subject, u64>,
}

impl Frequent {
    fn count(&mut self, subject: Subject) {
        self.all += 1;
        if let Some(count) = self.counts.get_mut(&subject) {
            *count += 1;
            return;
        }
        let mut least = 0;
        if self.counts.len() >= COUNTERS_MAX
            && let Some((smallest, count)) = self.counts.iter().min_by_key(|(_, count)| **count)
        {
            least = *count;
            let smallest = smallest.clone();
            self.counts.remove(&smallest);
        }
        self.counts.insert(subject, least + 1);
    }
}

/// Names that change, and files that are opened.
#[derive(Default)]
struct Window {
    changes: Frequent,
    opens: Frequent,
}

#[derive(Default)]
struct Windows {
    began_ns: u64,
    now: Window,
    before_began_ns: u64,
    before: Window,
    /// The times of requests, as they were counted when the window before began, and when this one did.
    took: [Vec<u64>; 2],
}

impl Windows {
    fn turn(&mut self, now_ns: u64, took: impl FnOnce() -> Vec<u64>) {
        let age_ns = now_ns.saturating_sub(self.began_ns);
        if age_ns < WINDOW_NS {
            return;
        }
        // After a pause nothing of the window that lasted is recent.
        let is_recent = age_ns < 2 * WINDOW_NS;
        let (ended, took) = (std::mem::take(&mut self.now), took());
        self.before = if is_recent { ended } else { Window::default() };
        self.before_began_ns = if is_recent { self.began_ns } else { now_ns };
        self.took[0] = if is_recent { std::mem::take(&mut self.took[1]) } else { took.clone() };
        (self.began_ns, self.took[1]) = (now_ns, took);
    }
}

/// The windows of one server.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Windows>);

impl Recent {
    /// Counts a request. `took` are the times of all requests so far.
    pub(crate) fn count(&self, request: &Request, now_ns: u64, took: impl FnOnce() -> Vec<u64>) {
        let (is_open, subject) = match request {
            Request::Create(create) => (false, (create.parent, None)),
            Request::Unlink { parent, .. }
            | Request::UnlinkFrozen { parent, .. }
            | Request::Rmdir { parent, .. }
            | Request::Link { parent, .. } => (false, (*parent, None)),
            Request::Open { ino, .. } | Request::OpenWith { ino, .. } | Request::OpenToRun { ino, .. } => {
                (true, (*ino, None))
            }
            Request::OpenName { parent, name, .. } | Request::OpenNameWith { parent, name, .. } => {
                (true, (*parent, Some(name.clone())))
            }
            _ => return,
        };
        let mut windows = self.0.lock();
        windows.turn(now_ns, took);
        let Window { changes, opens } = &mut windows.now;
        if is_open { opens.count(subject) } else { changes.count(subject) }
    }

    /// The counts of late; `took` are the times of all requests so far.
    pub(crate) fn told(&self, now_ns: u64, took: &[u64]) -> RecentActivity {
        let mut windows = self.0.lock();
        windows.turn(now_ns, || took.to_vec());
        let both = |part: fn(&Window) -> &Frequent| {
            let mut counts = part(&windows.before).counts.clone();
            part(&windows.now).counts.iter().for_each(|(subject, count)| {
                *counts.entry(subject.clone()).or_default() += count;
            });
            let mut counts: Vec<(Subject, u64)> = counts.into_iter().collect();
            counts.sort_by(|(one, count), (other, of_other)| of_other.cmp(count).then_with(|| one.cmp(other)));
            let told = |((ino, name), count): (Subject, u64)| HotCount {
                ino,
                name: Blob(name.map_or(Vec::new(), |name| name.as_bytes().to_vec())),
                count,
            };
            (part(&windows.before).all + part(&windows.now).all, counts.into_iter().take(TOLD_MAX).map(told).collect())
        };
        let (changes, directories) = both(|window| &window.changes);
        let (opens, files) = both(|window| &window.opens);
        let earlier = |power: usize| windows.took[0].get(power).copied().unwrap_or(0);
        RecentActivity {
            window_ms: now_ns.saturating_sub(windows.before_began_ns) / 1_000_000,
            changes,
            directories,
            opens,
            files,
            took: took.iter().enumerate().map(|(power, count)| count - earlier(power).min(*count)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(dir: u64) -> Request {
        Request::Unlink { parent: Ino(dir), name: Name::new(b"a").expect("a name") }
    }

    #[test]
    fn what_is_asked_for_most_of_late_is_told_and_the_rest_forgotten() {
        let recent = Recent::default();
        let began_ns = 3 * WINDOW_NS;
        for number in 0..1000 {
            recent.count(&removal(if number % 2 == 0 { 7 } else { 100 + number }), began_ns, || vec![0, 5]);
        }
        let open = Request::OpenName {
            parent: Ino(7),
            name: Name::new(b"b").expect("a name"),
            handle: 1,
            read: true,
            write: false,
        };
        recent.count(&open, began_ns + 1, Vec::new);
        recent.count(&Request::StatFs, began_ns + 1, Vec::new);
        let told = recent.told(began_ns + 2_000_000, &[0, 8]);
        assert_eq!((told.changes, told.opens, told.window_ms), (1000, 1, 2));
        assert_eq!(told.directories.len(), TOLD_MAX);
        assert_eq!((told.directories[0].ino, told.directories[0].count), (Ino(7), 500));
        assert_eq!((told.files.len(), told.files[0].name.0.as_slice()), (1, &b"b"[..]));
        assert_eq!(told.took, [0, 3], "since the window began");
        let later = recent.told(began_ns + WINDOW_NS, &[0, 9]);
        assert_eq!((later.changes, later.window_ms), (1000, WINDOW_NS / 1_000_000), "the window before");
        assert_eq!(recent.told(began_ns + 2 * WINDOW_NS, &[0, 9]).changes, 0, "neither window");
        recent.count(&removal(7), began_ns + 2 * WINDOW_NS, Vec::new);
        let after_a_pause = recent.told(began_ns + 8 * WINDOW_NS, &[0, 10]);
        assert_eq!((after_a_pause.changes, after_a_pause.window_ms), (0, 0));
    }

    #[test]
    fn counters_are_bounded_and_a_frequent_subject_keeps_its_own() {
        let mut frequent = Frequent::default();
        for number in 0..10_000u64 {
            frequent.count((Ino(if number % 4 == 0 { 1 } else { 2 + number }), None));
        }
        assert_eq!((frequent.counts.len(), frequent.all), (COUNTERS_MAX, 10_000));
        let told = frequent.counts[&(Ino(1), None)];
        assert!((2500..=2500 + 10_000 / COUNTERS_MAX as u64).contains(&told), "{told}");
    }
}
