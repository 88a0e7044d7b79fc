//! What stands out among the requests of the last seconds: a directory with most of the changes, a file that everybody opens,
//! a server that is slower than the others.

use aze_client::{Client, Lister};
use aze_proto::Ino;
use aze_proto::message::{HotCount, RecentActivity, ServerActivity};
use aze_proto::{Failure, Identity};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A directory or file is hot with at least this share of all requests of its kind.
const SHARE_MIN: f64 = 0.5;

/// With fewer requests in a second nothing is hot.
const RATE_MIN: f64 = 100.0;

/// A server is slow if its requests take this many times as long as those of the others.
const SLOWNESS_MIN: f64 = 2.0;

/// With fewer requests timed, on it or on the others, nothing is said of a server.
const TIMED_MIN: u64 = 50;

/// A server that has just started is taken to have counted for this time: one counted request stands for several.
const WINDOW_MS_MIN: u64 = 2000;

/// Directories on the way to one whose path is shown.
const DEPTH_MAX: usize = 64;

/// Names looked through for a directory's own one.
const NAMES_MAX: usize = 20_000;

/// Names of a page of a listing.
const PAGE_NAMES: usize = 1000;

/// Something that stands out.
#[derive(Debug, PartialEq)]
pub enum Hot {
    /// Most names are made and removed in one directory.
    Directory { ino: Ino, share: f64, rate: f64 },
    /// Most opens are of one file: an inode, or a name in a directory.
    File { ino: Ino, name: Vec<u8>, share: f64, rate: f64 },
    /// A server takes longer than the others; times are geometric means.
    Server { server: usize, took_ns: f64, others_ns: f64 },
}

/// Requests of one kind, on all servers: rates by subject.
#[derive(Default)]
struct Rates {
    all: f64,
    by_subject: BTreeMap<(Ino, Vec<u8>), f64>,
}

impl Rates {
    fn add(&mut self, all: u64, counts: &[HotCount], per_second: f64) {
        self.all += all as f64 * per_second;
        for HotCount { ino, name, count } in counts {
            *self.by_subject.entry((*ino, name.0.clone())).or_default() += *count as f64 * per_second;
        }
    }

    /// The subject with most of them, its share and its rate.
    fn most(self) -> Option<(Ino, Vec<u8>, f64, f64)> {
        let ((ino, name), rate) = self.by_subject.into_iter().max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        // A counter may be too high.
        let share = (rate / self.all).min(1.0);
        (share >= SHARE_MIN && rate >= RATE_MIN).then_some((ino, name, share, rate))
    }
}

/// The geometric mean of times counted by powers of two of nanoseconds, and how many there are.
fn mean_ns(took: &[u64]) -> (f64, u64) {
    let count: u64 = took.iter().sum();
    // A time below 2^n and not below half of that: 2^(n - 1/2).
    let exponents: f64 = took.iter().enumerate().map(|(power, count)| (power as f64 - 0.5) * *count as f64).sum();
    ((exponents / count.max(1) as f64).exp2(), count)
}

/// What stands out; `activities` by the server's index, those that answered.
pub fn find(activities: &[(usize, &ServerActivity)]) -> Vec<Hot> {
    let (mut changes, mut opens) = (Rates::default(), Rates::default());
    for (_, activity) in activities {
        let RecentActivity { window_ms, directories, files, .. } = &activity.recent;
        let per_second = f64::from(activity.timed_one_in) * 1000.0 / (*window_ms).max(WINDOW_MS_MIN) as f64;
        changes.add(activity.recent.changes, directories, per_second);
        opens.add(activity.recent.opens, files, per_second);
    }
    let directory = changes.most().map(|(ino, _, share, rate)| Hot::Directory { ino, share, rate });
    let file = opens.most().map(|(ino, name, share, rate)| Hot::File { ino, name, share, rate });
    let servers = activities.iter().filter_map(|(server, activity)| {
        let (took_ns, timed) = mean_ns(&activity.recent.took);
        let others = activities.iter().filter(|(other, _)| other != server);
        let mut of_others = vec![0; activity.recent.took.len()];
        others
            .for_each(|(_, other)| of_others.iter_mut().zip(&other.recent.took).for_each(|(sum, count)| *sum += count));
        let (others_ns, timed_by_others) = mean_ns(&of_others);
        let is_slow = timed.min(timed_by_others) >= TIMED_MIN && took_ns >= SLOWNESS_MIN * others_ns;
        is_slow.then_some(Hot::Server { server: *server, took_ns, others_ns })
    });
    directory.into_iter().chain(file).chain(servers).collect()
}

/// A path as far as it is found: of directories by looking through the one above.
async fn path(client: &Client, mut dir: Ino, name: &[u8]) -> Result<String, Failure> {
    let who = Identity::default();
    let mut path = if name.is_empty() { String::new() } else { format!("/{}", String::from_utf8_lossy(name)) };
    for _ in 0..DEPTH_MAX {
        if dir == Ino::ROOT {
            return Ok(if path.is_empty() { "/".into() } else { path });
        }
        let parent = client.getattr(&who, dir).await?.parent;
        let Some(name) = name_in(client, &who, parent, dir).await? else { break };
        path.insert_str(0, &format!("/{name}"));
        dir = parent;
    }
    Ok(format!("(directory {dir}){path}"))
}

async fn name_in(client: &Client, who: &Identity, parent: Ino, dir: Ino) -> Result<Option<String>, Failure> {
    let mut lister = Lister::new(parent, false);
    let (mut after, mut seen) = (0, 0);
    while seen < NAMES_MAX {
        let page = lister.page(client, who, after, PAGE_NAMES).await?;
        if let Some(entry) = page.entries.iter().find(|entry| entry.ino == dir) {
            return Ok(Some(entry.name.to_string()));
        }
        let Some(last) = page.entries.last().filter(|_| page.more) else { break };
        (after, seen) = (last.hash.cookie(), seen + page.entries.len());
    }
    Ok(None)
}

impl Hot {
    /// A line for people, and the same as an object.
    pub async fn told(&self, client: &Client) -> (String, Value) {
        match self {
            Hot::Directory { ino, share, rate } => {
                let path = path(client, *ino, b"").await.unwrap_or_else(|_| format!("(directory {ino})"));
                let line = format!(
                    "hot directory: {:.0} % of {rate:.0} names made and removed a second are in {path}",
                    share * 100.0
                );
                (
                    line,
                    json!({ "kind": "directory", "path": path, "ino": ino.to_string(), "share": share, "per_s": rate }),
                )
            }
            Hot::File { ino, name, share, rate } => {
                let is_named = !name.is_empty();
                let path = if is_named { path(client, *ino, name).await.ok() } else { None };
                let shown = path.clone().unwrap_or_else(|| {
                    format!(
                        "the file with inode number {ino}; to find it: find MOUNT -inum {ino}, on a mount of the volume"
                    )
                });
                let line = format!("hot file: {:.0} % of {rate:.0} opens a second are of {shown}", share * 100.0);
                let ino = (!is_named).then(|| ino.to_string());
                (line, json!({ "kind": "file", "path": path, "ino": ino, "share": share, "per_s": rate }))
            }
            Hot::Server { server, took_ns, others_ns } => {
                let times = took_ns / others_ns;
                let line = format!(
                    "slow server: requests take {times:.1} times as long at server {server} as at the others ({:.0} and {:.0} us)",
                    took_ns / 1000.0,
                    others_ns / 1000.0
                );
                (line, json!({ "kind": "server", "server": server, "took_ns": took_ns, "others_took_ns": others_ns }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::wire::Blob;

    fn server(took: Vec<u64>, changes: u64, directories: &[(u64, u64)], files: &[(u64, &[u8], u64)]) -> ServerActivity {
        let hot = |ino: u64, name: &[u8], count| HotCount { ino: Ino(ino), name: Blob(name.to_vec()), count };
        let recent = RecentActivity {
            window_ms: 4000,
            changes,
            directories: directories.iter().map(|(ino, count)| hot(*ino, b"", *count)).collect(),
            opens: files.iter().map(|(_, _, count)| count).sum(),
            files: files.iter().map(|(ino, name, count)| hot(*ino, name, *count)).collect(),
            took,
        };
        ServerActivity {
            pid: 1,
            memory_bytes: 0,
            used_bytes: 0,
            sessions: 0,
            timed_one_in: 16,
            took: Vec::new(),
            jobs: Vec::new(),
            recent,
        }
    }

    fn found(servers: &[ServerActivity]) -> Vec<Hot> {
        find(&servers.iter().enumerate().collect::<Vec<_>>())
    }

    #[test]
    fn most_requests_for_one_directory_or_file_stand_out() {
        let hot = found(&[
            server(Vec::new(), 100, &[(7, 50), (8, 30)], &[(9, b"x", 60), (9, b"", 10)]),
            server(Vec::new(), 100, &[(7, 60)], &[(9, b"x", 50)]),
        ]);
        assert_eq!(hot.len(), 2);
        assert_eq!(hot[0], Hot::Directory { ino: Ino(7), share: 0.55, rate: 440.0 });
        assert!(
            matches!(&hot[1], Hot::File { ino: Ino(9), name, share, rate } if name == b"x" && *share > 0.91 && *rate == 440.0)
        );
    }

    #[test]
    fn neither_a_small_share_nor_few_requests_stand_out() {
        assert_eq!(found(&[server(Vec::new(), 100, &[(7, 49)], &[])]), []);
        assert_eq!(found(&[server(Vec::new(), 24, &[(7, 24)], &[])]), [], "96 a second");
        assert_eq!(found(&[server(Vec::new(), 25, &[(7, 25)], &[])]).len(), 1);
    }

    #[test]
    fn a_server_that_takes_twice_as_long_stands_out() {
        let times =
            |power: usize, count| (0..20).map(|other| if other == power { count } else { 0 }).collect::<Vec<u64>>();
        let all = |slow, count| {
            found(&[
                server(times(14, 60), 0, &[], &[]),
                server(times(slow, count), 0, &[], &[]),
                server(times(14, 60), 0, &[], &[]),
            ])
        };
        assert!(
            matches!(all(15, 60)[..], [Hot::Server { server: 1, took_ns, others_ns }] if (took_ns / others_ns - 2.0).abs() < 1e-9)
        );
        assert_eq!((all(14, 60), all(15, 49)), (vec![], vec![]));
    }
}
