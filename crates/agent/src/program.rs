//! Processes that use the volume: when they have ended, and which of them own locks.
//!
//! Locks of fcntl(2) belong to a process, also when it has become another program (execve(2)), and to nothing else: not to its
//! channels, and not to the descriptions through which they were taken.

use crate::description::Description;
use crate::sys;
use aze_io::real::open_process;
use aze_io::sync::Mutex;
use aze_proto::ids::Ino;
use aze_reach::process::Process;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

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
    channels: Vec<Weak<OwnedFd>>,
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
    pub fn hears_of_end(&self, channel: &Arc<OwnedFd>) {
        let mut locked = self.locked.lock();
        if locked.has_ended {
            sys::shut(channel);
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
        locked.channels.drain(..).filter_map(|channel| channel.upgrade()).for_each(|channel| sys::shut(&channel));
        let through = std::mem::take(&mut locked.by_ino);
        through.values().flatten().filter_map(Weak::upgrade).collect()
    }
}

/// Processes of this user that have a variable in their environment, as it was when they became the program that they are
/// (proc_pid_environ(5)). Those that cannot be looked at have no library of ours: the system does not load one into programs
/// with other rights than their user's.
pub fn with_variable(name: &str, value: &[u8]) -> Vec<u32> {
    let wanted = [name.as_bytes(), b"=", value].concat();
    let is_it = |pid: &u32| {
        let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        text.split(|byte| *byte == 0).any(|variable| variable == wanted)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let me = std::process::id();
    pids.filter(|pid| *pid != me && is_it(pid)).collect()
}

/// Processes by their numbers.
pub type Programs = BTreeMap<u32, Arc<Program>>;
