//! The memory that servers of one node may take: the free memory, and the rest that the job's cgroup allows.

use crate::exit::{Exit, Outcome, Trouble};
use crate::size;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Limits from this many bytes on are none: version 1 of cgroups writes the largest number of pages instead of "max".
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// Memory of one node or several, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Programs can have so much without swapping: `MemAvailable` of proc_meminfo(5).
    pub free: u64,
    /// The cgroup of this process, and those above it, allow so much more; `None` without a limit.
    pub allowed: Option<u64>,
}

impl Memory {
    /// As it is now.
    ///
    /// # Errors
    /// `/proc/meminfo` cannot be read, or does not say.
    pub fn now() -> Outcome<Memory> {
        let path = "/proc/meminfo";
        let text = fs::read_to_string(path).map_err(|error| Trouble::local(format!("read {path}"), &error))?;
        let free = parse_meminfo(&text)
            .ok_or_else(|| Trouble::new(Exit::Caller, format!("{path} says nothing of MemAvailable: give --size")))?;
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let allowed = allowed_by(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        Ok(Memory { free, allowed })
    }

    /// That of two nodes.
    pub fn and(self, other: Memory) -> Memory {
        let allowed = (self.allowed.is_some() || other.allowed.is_some())
            .then(|| self.allowed.unwrap_or(self.free) + other.allowed.unwrap_or(other.free));
        Memory { free: self.free + other.free, allowed }
    }

    /// The smaller of both.
    pub fn usable(&self) -> u64 {
        self.allowed.map_or(self.free, |allowed| allowed.min(self.free))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} free, ", size::words(self.free))?;
        match self.allowed {
            Some(bytes) => write!(out, "{} left of the cgroup's limit", size::words(bytes)),
            None => write!(out, "no limit by a cgroup"),
        }
    }
}

/// Bytes of memory that this process takes; 0 if the system does not say.
pub fn of_this_process() -> u64 {
    of_process(std::process::id()).unwrap_or(0)
}

/// Bytes of memory that a process takes, shared memory included: `VmRSS` of proc_pid_status(5).
///
/// # Errors
/// There is no such process, or the system does not say.
pub fn of_process(pid: u32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(|error| Trouble::local(format!("read {path}"), &error))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let silent = || Trouble::new(Exit::Fatal, format!("{path} does not say VmRSS"));
    kibibytes.map(|kibibytes| kibibytes * 1024).ok_or_else(silent)
}

/// Sockets that a process has open: proc_pid_fd(5).
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn connections_of_process(pid: u32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/fd");
    let open = fs::read_dir(&path).map_err(|error| Trouble::local(format!("read {path}"), &error))?;
    let is_socket = |link: &PathBuf| link.to_string_lossy().starts_with("socket:");
    // One that is closed meanwhile has no link.
    Ok(open.flatten().filter_map(|fd| fs::read_link(fd.path()).ok()).filter(is_socket).count() as u64)
}

fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Files of one version of the memory controller (cgroups(7)).
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Counters in `memory.stat` of pages that the kernel drops when memory is short.
    reclaimable: [&'static str; 2],
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_active_file", "total_inactive_file"],
};

const VERSION_2: Files =
    Files { limit: "memory.max", usage: "memory.current", reclaimable: ["active_file", "inactive_file"] };

/// The least that a cgroup of this process or one above it has left. Takes the text of `/proc/self/cgroup` and
/// `/proc/self/mountinfo`.
fn allowed_by(cgroups: &str, mounts: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let files = match (number, controllers) {
            ("0", "") => &VERSION_2,
            _ if controllers.split(',').any(|controller| controller == "memory") => &VERSION_1,
            _ => return None,
        };
        let (top, dir) = directory(files, path, mounts)?;
        dir.ancestors().take_while(|dir| dir.starts_with(&top)).filter_map(|dir| left(files, dir)).min()
    };
    cgroups.lines().filter_map(of_line).min()
}

/// Where the hierarchy is mounted, and the cgroup's directory in it.
fn directory(files: &Files, path: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let is_it = match kind.next()? {
            "cgroup2" => files.limit == VERSION_2.limit,
            "cgroup" => files.limit == VERSION_1.limit && kind.nth(1)?.split(',').any(|option| option == "memory"),
            _ => false,
        };
        let mut fields = mount.split(' ').skip(3);
        let (root, top) = (fields.next()?, Path::new(fields.next()?));
        // A container's mount shows a part of the hierarchy only.
        let below = Path::new(path).strip_prefix(root).ok()?;
        is_it.then(|| (top.to_path_buf(), top.join(below)))
    })
}

/// What one cgroup has left of its limit; `None` without one.
fn left(files: &Files, dir: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(files.limit).filter(|limit| *limit < NO_LIMIT_BYTES)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let counter = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        value.parse::<u64>().ok()
    };
    let reclaimable: u64 = files.reclaimable.iter().filter_map(|name| counter(name)).sum();
    let usage = number(files.usage).unwrap_or_default().saturating_sub(reclaimable);
    Some(limit.saturating_sub(usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_in_bytes() {
        assert_eq!(parse_meminfo("MemTotal:  9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_meminfo("MemTotal:  9 kB\n"), None);
    }

    #[test]
    fn both_numbers_are_named() {
        let memory = Memory { free: 3 << 30, allowed: Some(2 << 30) };
        assert_eq!(memory.to_string(), "3.00 GiB free, 2.00 GiB left of the cgroup's limit");
        assert_eq!(memory.usable(), 2 << 30);
        let memory = Memory { allowed: None, ..memory };
        assert_eq!(
            memory.and(Memory { free: 1, allowed: Some(2) }),
            Memory { free: (3 << 30) + 1, allowed: Some((3 << 30) + 2) }
        );
        assert_eq!(memory.and(memory).allowed, None);
        assert_eq!(memory.to_string(), "3.00 GiB free, no limit by a cgroup");
        assert_eq!(memory.usable(), 3 << 30);
    }

    /// A hierarchy in which the job of a step has the limit.
    fn hierarchy(files: &Files, name: &str, none: &str) -> PathBuf {
        let top = std::env::temp_dir().join(format!("aze-cgroup-{name}-{}", std::process::id()));
        let job = top.join("job");
        fs::create_dir_all(job.join("step")).expect("directories");
        for (dir, limit) in [(top.clone(), none), (job.clone(), "1000\n"), (job.join("step"), none)] {
            fs::write(dir.join(files.limit), limit).expect("a limit");
            fs::write(dir.join(files.usage), "700\n").expect("a usage");
        }
        let [active, inactive] = files.reclaimable;
        fs::write(job.join("memory.stat"), format!("anon 400\n{active} 100\n{inactive} 200\n")).expect("counters");
        top
    }

    #[test]
    fn the_tightest_cgroup_above_the_process_counts() {
        let top = hierarchy(&VERSION_2, "2", "max\n");
        let mounts = format!("41 31 0:38 / {} rw,relatime - cgroup2 cgroup2 rw\n", top.display());
        assert_eq!(allowed_by("0::/job/step\n", &mounts), Some(600));
        assert_eq!(allowed_by("0::/\n", &mounts), None);
        // In a container the mount begins at the job.
        let mounts = mounts.replace(" / ", " /slurm ");
        assert_eq!(allowed_by("0::/slurm/job/step\n", &mounts), Some(600));
        fs::remove_dir_all(top).expect("it is removed");
        let top = hierarchy(&VERSION_1, "1", "9223372036854771712\n");
        let mounts = format!(
            "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / {} rw - cgroup cgroup rw,memory\n",
            top.display()
        );
        assert_eq!(allowed_by("4:memory:/job/step\n1:cpu:/other\n0::/\n", &mounts), Some(600));
        assert_eq!(allowed_by("4:memory:/\n", &mounts), None);
        assert_eq!(allowed_by("", ""), None);
        fs::remove_dir_all(top).expect("it is removed");
    }
}
