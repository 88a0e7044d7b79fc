//! Processes that use the volume: when they have ended, and which of them own locks.
//!
//! Locks of fcntl(2) belong to a process, also when it has become another program (execve(2)), and to nothing else: not to its
//! channels, and not to the descriptions through which they were taken.

use crate::description::Description;
use crate::mailbox::Channel;
use aze_io::real::open_process;
use aze_io::sync::Mutex;
use aze_proto::ids::Ino;
use aze_reach::process::Process;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One process.
pub struct Program {
    /// Its number, and when it started.
    pub process: Process,
    /// Its number as an owner of locks.
    pub owner: u64,
    /// Becomes readable when it ends (pidfd_open(2)).
    pub descriptor: OwnedFd,
    locked: Mutex<Locked>,
}

/// The descriptions through which a process has locked, or asked for a lock, by inode.
#[derive(Default)]
struct Locked {
    by_ino: BTreeMap<Ino, Vec<Weak<Description>>>,
    has_ended: bool,
    /// Its channels: they end with it.
    channels: Vec<Weak<Channel>>,
}

impl Program {
    /// The process of this number; `owner` is its number as an owner of locks.
    ///
    /// # Errors
    /// ESRCH if it has ended; EMFILE.
    pub fn of(pid: u32, owner: u64) -> io::Result<Program> {
        let descriptor = open_process(pid)?;
        // Its number cannot have gone to another process in between, unless the descriptor is readable at once.
        let process = Process::of(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        Ok(Program { process, owner, descriptor, locked: Mutex::default() })
    }

    /// Notes that it asks for a lock through a description; false if it has ended.
    pub fn asks(&self, description: &Arc<Description>) -> bool {
        let mut locked = self.locked.lock();
        if locked.has_ended {
            return false;
        }
        let through = locked.by_ino.entry(description.ino).or_default();
        through.retain(|known| known.strong_count() > 0);
        if !through.iter().any(|known| known.as_ptr() == Arc::as_ptr(description)) {
            through.push(Arc::downgrade(description));
        }
        true
    }

    /// Ends a channel of its when it ends; at once if it has.
    pub fn hears_of_end(&self, channel: &Arc<Channel>) {
        let mut locked = self.locked.lock();
        if locked.has_ended {
            channel.end();
        }
        locked.channels.retain(|channel| channel.strong_count() > 0);
        locked.channels.push(Arc::downgrade(channel));
    }

    /// Forgets its locks on an inode; gives the descriptions through which it may have some.
    pub fn unlocks(&self, ino: Ino) -> Vec<Arc<Description>> {
        let through = self.locked.lock().by_ino.remove(&ino).unwrap_or_default();
        through.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes that it has ended; gives the descriptions through which it may have locks.
    pub fn ends(&self) -> Vec<Arc<Description>> {
        let mut locked = self.locked.lock();
        locked.has_ended = true;
        // With its channels end its waits for locks.
        locked.channels.drain(..).filter_map(|channel| channel.upgrade()).for_each(|channel| channel.end());
        let through = std::mem::take(&mut locked.by_ino);
        through.values().flatten().filter_map(Weak::upgrade).collect()
    }
}

/// Processes of this user that have a variable in their environment, as it was when they became the program that they are
/// (proc_pid_environ(5)). Those that cannot be looked at have no library of ours: the system does not load one into programs
/// with other rights than their user's.
pub fn with_variable(name: &str, value: &[u8]) -> Vec<u32> {
    let wanted = [name.as_bytes(), b"=", value].concat();
    let is_it = |pid: &u32| environment(*pid).split(|byte| *byte == 0).any(|variable| variable == wanted);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let me = std::process::id();
    pids.filter(|pid| *pid != me && is_it(pid)).collect()
}

/// The environment of a process; empty if it has none, has ended, or this user may not look. Waits for a process that
/// becomes another program just now, which has none for a moment: the kernel tells no process of the end of execve(2).
fn environment(pid: u32) -> Vec<u8> {
    let mut pause = Duration::from_micros(100);
    loop {
        match environment_now(pid) {
            Ok(text) if text.is_empty() && !Process::has_no_environment(pid) => {}
            text => return text.unwrap_or_default(),
        }
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(100));
    }
}

/// The environment that a process has at one moment; empty if it had another program before all was read.
fn environment_now(pid: u32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    // The open file belongs to the memory of the program, which cannot be read any more when another program has taken
    // its place.
    let mut file = fs::File::open(format!("/proc/{pid}/environ"))?;
    file.read_to_end(&mut text)?;
    if file.read_at(&mut [0], 0)? == 0 {
        text.clear();
    }
    Ok(text)
}

/// Processes by their numbers.
pub type Programs = BTreeMap<u32, Arc<Program>>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A process that becomes another program again and again was overlooked in 1 of 100 looks: `/proc` shows no environment
    /// until execve(2) has made it.
    #[test]
    fn a_process_that_becomes_another_program_keeps_its_variable() {
        let again = r#"i=$((${I:-0} + 1)); [ $i -gt 1000 ] && read _; I=$i exec /bin/sh -c "$AGAIN""#;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", again]).env_clear().env("AGAIN", again).env("AGENT", "7").stdin(std::process::Stdio::piped());
        let mut shell = shell.spawn().expect("a shell");
        let (mut looks, mut missed) = (0, 0);
        let has_done_all = || environment(shell.id()).split(|byte| *byte == 0).any(|variable| variable == b"I=1000");
        while !has_done_all() {
            looks += 1;
            let text = environment(shell.id());
            missed += usize::from(!text.split(|byte| *byte == 0).any(|variable| variable == b"AGENT=7"));
        }
        shell.kill().and_then(|()| shell.wait()).expect("it can be killed");
        assert!(looks > 100, "{looks}");
        assert_eq!(missed, 0, "of {looks} looks");
    }
}
