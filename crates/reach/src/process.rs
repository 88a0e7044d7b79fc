//! Processes of this machine: whether one is still the one that was meant, and how to end it.
//!
//! A process id alone names the process that has it now; together with the time at which it started it
//! names one process for ever.

use aze_io::real::{send_signal, until};
use serde::{Deserialize, Serialize};
use std::time::Instant;

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

    /// Whether this process descends from it.
    pub fn is_ancestor(&self) -> bool {
        let parent = |pid: &u32| stat(*pid).map(|stat| stat.parent).filter(|parent| *parent > 0);
        let mut ancestors = std::iter::successors(parent(&std::process::id()), parent);
        ancestors.any(|pid| pid == self.pid) && self.is_alive()
    }

    /// Sends it `signal`, if it still runs.
    pub fn signal(&self, signal: i32) {
        if self.is_alive() {
            // It may end between the look and the signal; then there is nothing left to do.
            let _ = send_signal(self.pid, signal);
        }
    }

    /// Whether the process of this number has no environment. One that becomes another program has: execve(2) takes the memory
    /// of the one program away some time before it makes the environment of the other, and `/proc/PID/environ` is empty in
    /// between. Says nothing of processes of other users.
    pub fn has_no_environment(pid: u32) -> bool {
        // Zombies and threads of the kernel have no memory. execve(2) says last where the code begins.
        stat(pid).is_none_or(|stat| stat.memory == 0 || stat.code > 0 && stat.environment.0 == stat.environment.1)
    }

    /// Whether nothing is left of it. One that was killed looks dead as soon as its first thread is; the others
    /// may still give memory back, and keep its files open and locked until then.
    fn is_gone(&self) -> bool {
        stat(self.pid).is_none_or(|stat| stat.started != self.started || stat.is_dead && stat.threads <= 1)
    }

    /// Waits until it has ended and nothing is left of it; false if that is not so by the deadline.
    pub fn wait(&self, deadline: Instant) -> bool {
        until(deadline, || self.is_gone())
    }
}

/// When a running process started; `None` if there is none of that number or it is a zombie.
fn started(pid: u32) -> Option<u64> {
    stat(pid).filter(|stat| !stat.is_dead).map(|stat| stat.started)
}

/// What the system says of the process of this number; `None` if there is none.
fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&text))
}

/// What the system says of a process.
#[derive(Debug, PartialEq)]
struct Stat {
    is_dead: bool,
    parent: u32,
    threads: u64,
    started: u64,
    /// Bytes of virtual memory.
    memory: u64,
    /// Where its code begins in memory; 0 until its program is there.
    code: u64,
    /// Where its environment begins and ends in memory; 0 until it is there, and if this user may not know.
    environment: (u64, u64),
}

/// Reads what stands behind the command's name, which may itself hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X");
    // Fields 4, 20, 22, 23, 26, 50 and 51 of proc_pid_stat(5); the state is field 3.
    let parent = fields.next()?.parse().ok()?;
    let threads = fields.nth(15)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    let memory = fields.next()?.parse().ok()?;
    let code = fields.nth(2)?.parse().ok()?;
    let environment = (fields.nth(23)?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Stat { is_dead, parent, threads, started, memory, code, environment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn this_process_lives_and_another_start_time_does_not() {
        let me = Process::me();
        assert!(me.is_alive());
        assert!(!Process { started: me.started + 1, ..me }.is_alive());
    }

    #[test]
    fn a_process_descends_from_those_that_started_it_only() {
        let parent = stat(std::process::id()).map(|stat| stat.parent).and_then(Process::of);
        assert!(parent.is_some_and(|parent| parent.is_ancestor()));
        assert!(!Process::me().is_ancestor());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        assert!(!Process::of(child.id()).expect("it runs").is_ancestor());
        child.kill().and_then(|()| child.wait()).expect("it can be killed");
    }

    #[test]
    fn names_of_commands_do_not_confuse() {
        let rest = format!("1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 100 {} 98 99 0", "9 ".repeat(26));
        let stat = |is_dead| {
            Some(Stat { is_dead, parent: 1, threads: 1, started: 4711, memory: 100, code: 9, environment: (98, 99) })
        };
        assert_eq!(parse_stat(&format!("7 (a) b (c) S {rest}")), stat(false));
        assert_eq!(parse_stat(&format!("7 (x) Z {rest}")), stat(true));
        assert_eq!(parse_stat("7 (x"), None);
    }

    /// A server that was killed was taken for gone while its other threads still had its directory locked: it
    /// could not be started again at once.
    #[test]
    fn a_process_is_gone_when_its_last_thread_is() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let process = Process::of(child.id()).expect("it runs");
        assert!(process.is_alive() && !process.is_gone());
        child.kill().expect("it can be killed");
        assert!(process.wait(Instant::now() + Duration::from_secs(20)), "nobody has asked for its exit code yet");
        assert!(!process.is_alive());
        child.wait().expect("it has ended");
        assert!(process.is_gone());
        let rest = format!("1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 2 0 4711 100 {} 98 99 0", "9 ".repeat(26));
        assert_eq!(parse_stat(&format!("7 (x) Z {rest}")).map(|stat| stat.threads), Some(2));
    }
}
