//! The user and groups of the process behind a request.
//!
//! A mount by root states the identity of each caller; the kernel gives user and group, the
//! supplementary groups are read from `/proc`. Any other user's mount serves its owner only (the
//! kernel refuses others), so it states that one identity.

use crate::abi::Header;
use aze_io::Io;
use aze_io::real::own_ids;
use aze_io::sync::Mutex;
use aze_proto::attr::Identity;
use aze_proto::limits::GROUPS_MAX;
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
    let (uid, gid, mut groups) = own_ids();
    groups.truncate(GROUPS_MAX);
    Identity { uid, gid, groups }
}

/// Supplementary groups in the text of `/proc/PID/status` (proc_pid_status(5)).
fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|group| group.parse().ok()).take(GROUPS_MAX).collect()
}

/// Whether a signal waits for a thread that does not block it. Unknown for a thread that has no number here: then false.
pub fn is_signalled(thread: u32) -> bool {
    thread != 0
        && std::fs::read(format!("/proc/{thread}/status"))
            .is_ok_and(|status| has_signals(&String::from_utf8_lossy(&status)))
}

/// The same, from the text of `/proc/THREAD/status`.
fn has_signals(status: &str) -> bool {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_wait_are_read_from_the_status() {
        let status = |own: &str, shared: &str, blocked: &str| {
            has_signals(&format!("Name:\tx\nSigQ:\t0/1\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n"))
        };
        assert!(!status("0000000000000000", "0000000000000000", "0000000000000000"));
        assert!(status("0000000000000200", "0000000000000000", "0000000000000000"));
        assert!(status("0000000000000000", "0000000000002000", "0000000000000200"));
        assert!(!status("0000000000000200", "0000000000002000", "0000000000002200"), "both are blocked");
        assert!(!has_signals(""));
    }

    #[test]
    fn groups_are_read_from_the_status() {
        assert_eq!(parse_groups("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert_eq!(parse_groups("Name:\tx\nGroups:\t \n"), []);
        assert_eq!(parse_groups(""), []);
    }

    fn callers(uid: u32) -> (Callers, Identity) {
        let owner = Identity { uid, gid: 7, groups: vec![8] };
        (Callers::new(aze_io::real::Runtime::client().io(), owner.clone()), owner)
    }

    fn from(uid: u32, pid: u32) -> Header {
        Header { len: 0, opcode: 0, unique: 1, node: 1, uid, gid: 5, pid }
    }

    #[test]
    fn a_mount_of_a_user_states_its_owner_whoever_asks() {
        let (callers, owner) = callers(1000);
        for uid in [0, 1000, 2000] {
            assert_eq!(callers.who(&from(uid, std::process::id())), owner);
        }
    }

    #[test]
    fn a_mount_of_root_states_each_caller() {
        let (callers, _) = callers(0);
        let me = std::process::id();
        // A group that this process is not in.
        let other = own().groups.iter().max().map_or(4, |most| most.wrapping_add(1));
        for pid in [0, me] {
            callers.seen.lock().insert(pid, Seen { until_ns: u64::MAX, groups: vec![other] });
        }
        assert_eq!(callers.who(&from(3, me)), Identity { uid: 3, gid: 5, groups: vec![other] });
        assert_eq!(callers.who(&from(3, 0)), Identity { uid: 3, gid: 5, groups: vec![] }, "no process of this node");
        assert_eq!(callers.who(&from(0, me)), Identity { uid: 0, gid: 5, groups: vec![] }, "root needs no groups");
        callers.seen.lock().insert(me, Seen { until_ns: 0, groups: vec![other] });
        assert_eq!(callers.who(&from(3, me)).groups, own().groups, "what was read long ago is read again");
    }

    #[test]
    fn callers_that_are_remembered_are_bounded() {
        let (callers, _) = callers(0);
        // No process has such a number (proc_sys_kernel(5): pid_max is 2^22 at most).
        for pid in 1 << 23..(1 << 23) + 2 * CALLERS_MAX as u32 {
            callers.who(&from(3, pid));
            assert!(callers.seen.lock().len() <= CALLERS_MAX);
        }
    }
}
