//! What a server does at this time: how long requests take, and what each job asks for.

use crate::membership::state::recent::Recent;
use aze_io::Io;
use aze_io::sync::Mutex;
use aze_proto::Request;
use aze_proto::message::{JobActivity, RecentActivity};
use aze_proto::rules::Pace;
use aze_rpc::Proven;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// One request in so many of a kind is timed.
pub(crate) const TIMED_ONE_IN: u64 = 16;

/// Jobs without a connection that are remembered, those that ended last.
const ENDED_JOBS_MAX: usize = 64;

/// Powers of two of nanoseconds that are told apart: the last one is half an hour and more.
const POWERS: usize = 42;

/// Counts for the server, and for each job.
pub(crate) struct Activity {
    /// Requests that took less than 2^n nanoseconds, and not less than half of that.
    took: [AtomicU64; POWERS],
    jobs: Mutex<Jobs>,
    recent: Recent,
}

#[derive(Default)]
struct Jobs {
    connected: BTreeMap<String, Job>,
    ended: VecDeque<(String, Total)>,
}

#[derive(Default)]
struct Job {
    connections: Vec<Weak<Proven>>,
    /// Of connections that have ended.
    past: Total,
}

#[derive(Clone, Copy, Default)]
struct Total {
    requests: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl Total {
    fn of(who: &Proven) -> Total {
        let [requests, read_bytes, written_bytes] =
            [&who.usage.requests, &who.usage.read_bytes, &who.usage.written_bytes]
                .map(|count| count.load(Ordering::Relaxed));
        Total { requests, read_bytes, written_bytes }
    }

    fn add(&mut self, other: Total) {
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// A request whose time is taken until this is dropped.
pub(crate) struct Timed {
    io: Io,
    activity: Arc<Activity>,
    began_ns: u64,
}

impl Timed {
    /// Whether this request is to be timed, the `earlier`th of its kind but for one; requests that wait for something to
    /// happen are not.
    pub(crate) fn of(io: &Io, activity: &Arc<Activity>, earlier: u64, request: &Request) -> Option<Arc<Timed>> {
        let is_timed = earlier.is_multiple_of(TIMED_ONE_IN) && request.rules().pace == Pace::Soon;
        is_timed.then(|| {
            let began_ns = io.mono_ns();
            activity.recent.count(request, began_ns, || activity.took());
            Arc::new(Timed { io: io.clone(), activity: activity.clone(), began_ns })
        })
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let took_ns = self.io.mono_ns().saturating_sub(self.began_ns);
        let power = (u64::BITS - took_ns.leading_zeros()) as usize;
        self.activity.took[power.min(POWERS - 1)].fetch_add(1, Ordering::Relaxed);
    }
}

impl Activity {
    pub(crate) fn new() -> Activity {
        Activity { took: std::array::from_fn(|_| AtomicU64::new(0)), jobs: Mutex::default(), recent: Recent::default() }
    }

    /// A connection of a client stands.
    pub(crate) fn begins(&self, who: &Arc<Proven>) {
        let mut jobs = self.jobs.lock();
        let again = jobs.ended.iter().position(|(job, _)| *job == who.job);
        let past = again.and_then(|index| jobs.ended.remove(index)).map(|(_, past)| past);
        let job = jobs.connected.entry(who.job.clone()).or_default();
        job.past.add(past.unwrap_or_default());
        job.connections.push(Arc::downgrade(who));
    }

    /// It has ended.
    pub(crate) fn ends(&self, who: &Arc<Proven>) {
        let mut jobs = self.jobs.lock();
        let Some(job) = jobs.connected.get_mut(&who.job) else { return };
        job.past.add(Total::of(who));
        job.connections.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(who)));
        if job.connections.is_empty() {
            let past = job.past;
            jobs.connected.remove(&who.job);
            jobs.ended.push_back((who.job.clone(), past));
            if jobs.ended.len() > ENDED_JOBS_MAX {
                jobs.ended.pop_front();
            }
        }
    }

    /// The clients' connections.
    pub(crate) fn connections(&self) -> Vec<Arc<Proven>> {
        self.jobs.lock().connected.values().flat_map(|job| &job.connections).filter_map(Weak::upgrade).collect()
    }

    /// Counts a request, at the beginning of its life.
    pub(crate) fn count(who: &Proven, request: &Request, payload_bytes: usize) {
        let usage = &who.usage;
        usage.requests.fetch_add(1, Ordering::Relaxed);
        match request {
            Request::Read(read) => usage.read_bytes.fetch_add(u64::from(read.len), Ordering::Relaxed),
            Request::Write(_) | Request::Append { .. } => {
                usage.written_bytes.fetch_add(payload_bytes as u64, Ordering::Relaxed)
            }
            _ => return,
        };
    }

    /// How many of the timed requests took less than each power of two of nanoseconds, and not less than half of it.
    pub(crate) fn took(&self) -> Vec<u64> {
        self.took.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// The requests of late.
    pub(crate) fn recent(&self, now_ns: u64) -> RecentActivity {
        self.recent.told(now_ns, &self.took())
    }

    /// What each job has asked for so far.
    pub(crate) fn jobs(&self) -> Vec<JobActivity> {
        let jobs = self.jobs.lock();
        let told = |job: &str, connections: usize, total: Total| JobActivity {
            job: job.into(),
            connections: connections as u64,
            requests: total.requests,
            read_bytes: total.read_bytes,
            written_bytes: total.written_bytes,
        };
        let connected = jobs.connected.iter().map(|(job, at)| {
            let mut total = at.past;
            at.connections.iter().filter_map(Weak::upgrade).for_each(|who| total.add(Total::of(&who)));
            told(job, at.connections.len(), total)
        });
        connected.chain(jobs.ended.iter().map(|(job, total)| told(job, 0, *total))).collect()
    }
}
