//! Processes of this machine: whether one is still the one that was meant, and how to end it.
//!
//! A process id alone names whoever has it now; together with the time at which it started it
//! names one process for ever.

use crate::sys;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How often a wait looks again. Processes that are not our children cannot be waited for otherwise.
pub const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// One process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the machine did (proc_pid_stat(5), field 22).
    pub started: u64,
}

impl Process {
    /// This process.
    pub fn me() -> Process {
        Process::of(std::process::id()).expect("/proc shows this process")
    }

    /// The running process of this number, if there is one.
    pub fn of(pid: u32) -> Option<Process> {
        started(pid).map(|started| Process { pid, started })
    }

    /// Whether it still runs; a zombie does not.
    pub fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Sends it `signal`, if it still runs.
    pub fn signal(&self, signal: i32) {
        if self.is_alive() {
            // It may end between the look and the signal; then there is nothing left to do.
            let _ = sys::signal(self.pid, signal);
        }
    }

    /// Waits until it has ended; false if it has not by the deadline.
    pub fn wait(&self, deadline: Instant) -> bool {
        until(deadline, || !self.is_alive())
    }
}

/// Looks again and again until `holds`; false if it does not by the deadline.
pub fn until(deadline: Instant, mut holds: impl FnMut() -> bool) -> bool {
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// When a running process started; `None` if there is none of that number or it is a zombie.
fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&text))
}

/// Reads state and start time behind the command's name, which may itself hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_another_start_time_does_not() {
        let me = Process::me();
        assert!(me.is_alive());
        assert!(!Process { started: me.started + 1, ..me }.is_alive());
    }

    #[test]
    fn names_of_commands_do_not_confuse() {
        let rest = "1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 100";
        assert_eq!(parse_stat(&format!("7 (a) b (c) S {rest}")), Some(4711));
        assert_eq!(parse_stat(&format!("7 (x) Z {rest}")), None);
        assert_eq!(parse_stat("7 (x"), None);
    }
}
