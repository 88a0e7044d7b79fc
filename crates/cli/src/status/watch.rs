//! `aze status --watch`: what servers and jobs do, from one look to the next.

use crate::exit::{Exit, Outcome};
use crate::session::Session;
use crate::size;
use crate::tally::Out;
use crate::volume::{ServerRecord, Volume};
use aze_proto::error::Failure;
use aze_proto::ids::ServerIndex;
use aze_proto::limits::DEADLINE_MS_DEFAULT;
use aze_proto::message::{JobActivity, ServerActivity};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Moves to the first line and clears the screen from there on (ECMA-48, CUP and ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// Jobs that are shown, those with the most requests.
const JOBS_SHOWN_MAX: usize = 10;

/// Shortest time between two looks: each asks all servers.
const PERIOD_MIN: Duration = Duration::from_millis(100);

/// The time of `--watch`. The error names the expected form.
pub fn parse_period(text: &str) -> Result<Duration, String> {
    let period = size::parse_duration(text)?;
    if period < PERIOD_MIN { Err(format!("'{text}' is too short: 100ms at least")) } else { Ok(period) }
}

/// One look at all servers.
struct Look {
    at: Instant,
    servers: Vec<(ServerIndex, Result<ServerActivity, Failure>)>,
}

impl Look {
    fn now(session: &Session) -> Look {
        let servers = session.runtime.block_on(session.client.activity());
        Look { at: Instant::now(), servers }
    }
}

/// Shows it every `period`, so often, or until the process is interrupted.
pub fn run(volume: Volume, period: Duration, count: Option<u64>, as_json: bool) -> Outcome<Exit> {
    let session = Session::open_if_there(volume, Duration::from_millis(DEADLINE_MS_DEFAULT.into()))?;
    let mut volume = session.volume.clone();
    let clears = !as_json && std::io::stdout().is_terminal();
    let mut before = Look::now(&session);
    let mut shown = 0;
    let mut unreachable = 0;
    while count.is_none_or(|count| shown < count) {
        std::thread::sleep(period.saturating_sub(before.at.elapsed()));
        let now = Look::now(&session);
        let rates = Rates::between(&before, &now);
        volume.record.learn(&session.client.map());
        unreachable = now.servers.iter().filter(|(_, server)| server.is_err()).count();
        let mut out = Out::new();
        if as_json {
            out.json(&rates.object(&volume))?;
        } else {
            if clears {
                out.line(CLEAR)?;
            }
            rates.print(&volume, &mut out)?;
        }
        out.flush()?;
        (before, shown) = (now, shown + 1);
    }
    let servers = before.servers.len();
    session.end();
    Ok(match unreachable {
        0 => Exit::Done,
        all if all == servers => Exit::Again,
        _ => Exit::Some,
    })
}

/// What changed in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    requests: f64,
    read_bytes: f64,
    written_bytes: f64,
}

impl Rate {
    /// A job that a server has forgotten and met again counts from nothing.
    fn of(before: Option<&JobActivity>, now: &JobActivity, seconds: f64) -> Rate {
        let since = |count: fn(&JobActivity) -> u64| {
            let (earlier, now) = (before.map_or(0, count), count(now));
            (if now < earlier { now } else { now - earlier }) as f64 / seconds
        };
        Rate {
            requests: since(|job| job.requests),
            read_bytes: since(|job| job.read_bytes),
            written_bytes: since(|job| job.written_bytes),
        }
    }

    fn add(&mut self, other: Rate) {
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }

    fn cells(&self) -> [String; 3] {
        let bytes = |rate: f64| format!("{}/s", size::short(rate as u64));
        [format!("{:.0}", self.requests), bytes(self.read_bytes), bytes(self.written_bytes)]
    }
}

/// What one server did.
struct ServerRate<'a> {
    activity: &'a ServerActivity,
    rate: Rate,
    /// The times that half, and 99 of 100, of the timed requests stayed below, in nanoseconds.
    took_ns: [Option<u64>; 2],
}

struct Rates<'a> {
    seconds: f64,
    servers: BTreeMap<u16, Result<ServerRate<'a>, &'a Failure>>,
    /// By name: connections, and what the job did.
    jobs: BTreeMap<&'a str, (u64, Rate)>,
}

impl<'a> Rates<'a> {
    fn between(before: &Look, now: &'a Look) -> Rates<'a> {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let mut jobs: BTreeMap<&str, (u64, Rate)> = BTreeMap::new();
        let mut servers = BTreeMap::new();
        for (slot, server) in &now.servers {
            let activity = match server {
                Ok(activity) => activity,
                Err(failure) => {
                    servers.insert(slot.0, Err(failure));
                    continue;
                }
            };
            // Another process has begun to count anew.
            let earlier =
                before.servers.iter().find(|(other, _)| other == slot).and_then(|(_, server)| server.as_ref().ok());
            let earlier = earlier.filter(|earlier| earlier.pid == activity.pid);
            let mut sum = Rate::default();
            for job in &activity.jobs {
                let known = earlier.and_then(|earlier| earlier.jobs.iter().find(|other| other.job == job.job));
                // Of a server that is new here nothing is known of the time in between.
                let rate = if earlier.is_some() { Rate::of(known, job, seconds) } else { Rate::default() };
                sum.add(rate);
                let entry = jobs.entry(&job.job).or_default();
                entry.0 += job.connections;
                entry.1.add(rate);
            }
            let since = |at: usize, count: u64| {
                count.saturating_sub(earlier.and_then(|earlier| earlier.took.get(at)).copied().unwrap_or(0))
            };
            let took: Vec<u64> = activity.took.iter().enumerate().map(|(at, count)| since(at, *count)).collect();
            let took_ns = [50, 99].map(|part| below(&took, part));
            servers.insert(slot.0, Ok(ServerRate { activity, rate: sum, took_ns }));
        }
        Rates { seconds, servers, jobs }
    }

    /// Busy jobs first; those that have neither a connection nor asked for anything are left out.
    fn jobs(&self) -> Vec<(&'a str, u64, Rate)> {
        let jobs = self.jobs.iter().map(|(job, (connections, rate))| (*job, *connections, *rate));
        let mut jobs: Vec<_> = jobs.filter(|(_, connections, rate)| *connections > 0 || rate.requests > 0.0).collect();
        jobs.sort_by(|(_, _, one), (_, _, other)| other.requests.total_cmp(&one.requests));
        jobs
    }

    fn object(&self, volume: &Volume) -> Value {
        let rate = |rate: &Rate| {
            json!({
                "requests_per_s": rate.requests,
                "read_bytes_per_s": rate.read_bytes,
                "written_bytes_per_s": rate.written_bytes,
            })
        };
        let server = |known: &ServerRecord| match self.servers.get(&known.slot) {
            Some(Ok(ServerRate { activity, rate: at, took_ns })) => {
                let mut object = rate(at);
                object["server"] = known.slot.into();
                object["host"] = known.host.clone().into();
                object["state"] = "up".into();
                object["took_below_ns_p50"] = took_ns[0].into();
                object["took_below_ns_p99"] = took_ns[1].into();
                object["memory_bytes"] = activity.memory_bytes.into();
                object["used_bytes"] = activity.used_bytes.into();
                object["sessions"] = activity.sessions.into();
                object
            }
            Some(Err(failure)) => {
                json!({ "server": known.slot, "host": known.host, "state": "unreachable", "why": failure.to_string() })
            }
            None => json!({ "server": known.slot, "host": known.host, "state": "left" }),
        };
        let job = |(name, connections, at): (&str, u64, Rate)| {
            let mut object = rate(&at);
            object["job"] = name.into();
            object["connections"] = connections.into();
            object
        };
        json!({
            "volume": volume.record.name,
            "seconds": self.seconds,
            "servers": volume.record.servers.iter().map(server).collect::<Vec<_>>(),
            "jobs": self.jobs().into_iter().map(job).collect::<Vec<_>>(),
        })
    }

    fn print(&self, volume: &Volume, out: &mut Out) -> Outcome<()> {
        out.line(format!("volume '{}', the last {:.1} s", volume.record.name, self.seconds))?;
        let titles = [
            "server",
            "host",
            "requests/s",
            "read",
            "written",
            "half below",
            "99% below",
            "memory",
            "used",
            "sessions",
        ];
        let mut rows = vec![titles.map(String::from).to_vec()];
        let mut sum = Rate::default();
        for known in &volume.record.servers {
            let mut row = vec![known.slot.to_string(), known.host.clone()];
            match self.servers.get(&known.slot) {
                Some(Ok(ServerRate { activity, rate, took_ns })) => {
                    sum.add(*rate);
                    row.extend(rate.cells());
                    row.extend(took_ns.map(|ns| ns.map_or("-".into(), time)));
                    row.push(size::short(activity.memory_bytes));
                    row.push(size::short(activity.used_bytes));
                    row.push(activity.sessions.to_string());
                }
                Some(Err(_)) => row.push("unreachable".into()),
                None => row.push("left".into()),
            }
            rows.push(row);
        }
        let mut all = vec!["all".into(), String::new()];
        all.extend(sum.cells());
        rows.push(all);
        out.table(&[true, false, true, true, true, true, true, true, true, true], &rows)?;
        for failure in self.servers.values().filter_map(|server| server.as_ref().err()) {
            out.line(format!("  {failure}"))?;
        }
        let jobs = self.jobs();
        let mut rows = vec![["job", "connections", "requests/s", "read", "written"].map(String::from).to_vec()];
        rows.extend(jobs.iter().take(JOBS_SHOWN_MAX).map(|(name, connections, rate)| {
            let mut row = vec![name.to_string(), connections.to_string()];
            row.extend(rate.cells());
            row
        }));
        out.line("")?;
        out.table(&[false, true, true, true, true], &rows)?;
        if jobs.len() > JOBS_SHOWN_MAX {
            out.line(format!("and {} more jobs", jobs.len() - JOBS_SHOWN_MAX))?;
        }
        Ok(())
    }
}

/// The power of two, in nanoseconds, below which so many of 100 timed requests stayed; `None` if there were none.
fn below(took: &[u64], percent: u64) -> Option<u64> {
    let all: u64 = took.iter().sum();
    let wanted = (all * percent).div_ceil(100);
    let mut seen = 0;
    let power = took.iter().position(|count| {
        seen += count;
        seen >= wanted && seen > 0
    });
    power.map(|power| 1 << power)
}

/// A time to two digits: `4.1 µs`, `66 µs`, `1.0 ms`.
fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_powers_that_hold_them() {
        assert_eq!(below(&[0; 42], 50), None);
        let mut took = [0; 42];
        (took[10], took[20]) = (98, 2);
        assert_eq!(
            (below(&took, 50), below(&took, 98), below(&took, 99)),
            (Some(1 << 10), Some(1 << 10), Some(1 << 20))
        );
        assert_eq!([time(4096), time(1 << 16), time(1 << 20), time(1 << 31)], ["4.1 µs", "66 µs", "1.0 ms", "2.1 s"]);
    }

    #[test]
    fn a_job_that_was_forgotten_counts_from_nothing() {
        let job = |requests, read_bytes| JobActivity {
            job: "j".into(),
            connections: 1,
            requests,
            read_bytes,
            written_bytes: 0,
        };
        let rate = |requests, read_bytes| Rate { requests, read_bytes, written_bytes: 0.0 };
        assert_eq!(Rate::of(Some(&job(100, 0)), &job(300, 4096), 2.0), rate(100.0, 2048.0));
        assert_eq!(Rate::of(Some(&job(100, 0)), &job(10, 0), 2.0), rate(5.0, 0.0));
        assert_eq!(Rate::of(None, &job(10, 0), 2.0), rate(5.0, 0.0));
    }
}
