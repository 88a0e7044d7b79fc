//! The user and groups of the process behind a request.
//!
//! A mount by root states the identity of each caller; the kernel gives user and group, the
//! supplementary groups are read from `/proc`. Any other user's mount serves its owner only (the
//! kernel refuses others), so it states that one identity.

use crate::abi::Header;
use aze_io::Io;
use aze_proto::attr::Identity;
use aze_proto::limits::GROUPS_MAX;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// How long groups read from `/proc` are used again, in nanoseconds: long enough to spare a busy
/// process most of the reads, short enough that a new program under an old number is not taken for it.
const GROUPS_VALID_NS: u64 = 100_000_000;

/// How many processes are remembered; beyond, all are forgotten.
const CALLERS_MAX: usize = 1024;

/// Finds out who asks.
pub struct Callers {
    io: Io,
    /// Absent where callers are told apart.
    only: Option<Identity>,
    seen: Mutex<BTreeMap<u32, Seen>>,
}

struct Seen {
    until_ns: u64,
    groups: Vec<u32>,
}

impl Callers {
    /// `owner` is the identity of this process.
    pub fn new(io: Io, owner: Identity) -> Callers {
        let only = (!owner.is_root()).then_some(owner);
        Callers { io, only, seen: Mutex::default() }
    }

    /// The identity behind a request.
    pub fn who(&self, request: &Header) -> Identity {
        match &self.only {
            Some(owner) => owner.clone(),
            None => Identity { uid: request.uid, gid: request.gid, groups: self.groups(request) },
        }
    }

    /// Root needs no groups: rights do not apply to it.
    fn groups(&self, request: &Header) -> Vec<u32> {
        let pid = request.pid;
        if request.uid == 0 || pid == 0 {
            return Vec::new();
        }
        let now_ns = self.io.mono_ns();
        if let Some(seen) = self.seen.lock().get(&pid)
            && seen.until_ns > now_ns
        {
            return seen.groups.clone();
        }
        // The request waits for its answer meanwhile, so its process cannot have ended.
        let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let groups = parse_groups(&String::from_utf8_lossy(&status));
        let mut seen = self.seen.lock();
        if seen.len() >= CALLERS_MAX {
            seen.clear();
        }
        seen.insert(pid, Seen { until_ns: now_ns + GROUPS_VALID_NS, groups: groups.clone() });
        groups
    }
}

/// The identity of this process.
pub fn own() -> Identity {
    // SAFETY: geteuid(2) and getegid(2) take nothing and always succeed.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    Identity { uid, gid, groups: parse_groups(&String::from_utf8_lossy(&status)) }
}

/// Supplementary groups in the text of `/proc/PID/status` (proc_pid_status(5)).
fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|group| group.parse().ok()).take(GROUPS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status() {
        assert_eq!(parse_groups("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert_eq!(parse_groups("Name:\tx\nGroups:\t \n"), []);
        assert_eq!(parse_groups(""), []);
    }
}
