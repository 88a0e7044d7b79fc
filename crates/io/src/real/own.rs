//! Numbers of this process, and signals to other processes of this machine.

use super::sys;
use std::io;

/// User, group and supplementary groups of this process, as they are in effect.
pub fn own_ids() -> (u32, u32, Vec<u32>) {
    (user_id(), sys::group_id(), sys::groups())
}

/// Effective user id of this process.
pub fn user_id() -> u32 {
    sys::user_id()
}

/// Process group of this process: what a shell calls a job.
pub fn process_group() -> i32 {
    sys::process_group()
}

/// Sends `signal` to one process; signal 0 only asks whether that is possible.
///
/// # Errors
/// What kill(2) says; `InvalidInput` for numbers that would mean a group of processes.
pub fn send_signal(pid: u32, signal: i32) -> io::Result<()> {
    // Zero and negative numbers would mean whole groups of processes.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(io::ErrorKind::InvalidInput)?;
    sys::kill(pid, signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_means_a_group_is_not_signalled() {
        assert!(send_signal(std::process::id(), 0).is_ok());
        for pid in [0, 1 << 31, u32::MAX] {
            assert_eq!(send_signal(pid, 0).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput), "{pid}");
        }
    }

    #[test]
    fn groups_are_those_of_the_status() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut listed: Vec<u32> = line.split_ascii_whitespace().map(|group| group.parse().unwrap()).collect();
        let (_, _, mut groups) = own_ids();
        listed.sort();
        groups.sort();
        assert_eq!(groups, listed);
    }
}
