//! Files that programs have mapped to be shared and written (mmap(2)).
//!
//! A file has one copy in memory, a memfd that all processes of the agent map, so that each sees at once what another
//! one stores. What they have stored is found by comparing the copy with another one that no program maps, and is
//! written to the file: before a call of this agent reads or changes the file, at msync(2), munmap(2), execve(2) and
//! exit, and when a process has ended. A call that changes the file changes the copies, too. Changes of other clients
//! are not seen.

use crate::agent::Agent;
use crate::error::{Result, failed};
use crate::panics::Held;
use crate::sys;
use aze_calls::WINDOW_BYTES;
use aze_client::File;
use aze_io::sync::{Mutex, RwLock};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Ino;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Bytes of data that are copied into memory for one mapping, and no more than half of the memory that is available: beyond, ENOMEM.
/// Holes take no memory and do not count.
pub const CONTENTS_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a page of memory: a mapping shows what lies behind a file's end up to there.
const PAGE_BYTES: u64 = 4096;

/// Changed bytes with fewer unchanged ones than this between them are written together.
const GAP_BYTES: usize = 64;

/// All files that are mapped so.
#[derive(Default)]
pub struct Mapped {
    by_ino: Mutex<BTreeMap<Ino, Arc<Copies>>>,
    /// How many there are: most agents have none, and look no further.
    count: AtomicUsize,
    /// Held for reading by calls that change a file.
    changes: RwLock<()>,
}

/// The copies of one file.
pub struct Copies {
    /// Keeps the file open as long as it is mapped.
    file: Arc<File>,
    memory: Mutex<Memory>,
}

struct Memory {
    /// What programs map.
    seen: fs::File,
    /// What the file is known to hold.
    known: fs::File,
    len: u64,
    /// No process maps it any more, and it cannot be changed.
    is_over: bool,
}

impl Mapped {
    /// Whether there is any.
    pub fn is_used(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// The copies of a file, if it is mapped.
    pub fn of(&self, ino: Ino) -> Option<Arc<Copies>> {
        if !self.is_used() {
            return None;
        }
        self.by_ino.lock().get(&ino).cloned()
    }

    /// The copy for a program that maps a file of this length. Blocks.
    ///
    /// # Errors
    /// ENOMEM for a file that is too large, EMFILE; those of reading it.
    pub fn begin(&self, agent: &Agent, file: &Arc<File>, len: impl FnOnce() -> Result<u64>) -> Result<OwnedFd> {
        // Calls that change the file now are waited for; later ones see that there is a copy, and wait for it.
        drop((self.changes.write(), self.count.fetch_add(1, SeqCst)));
        let _held = Held::begin();
        let mut by_ino = self.by_ino.lock();
        let seen = match by_ino.get(&file.ino()) {
            Some(copies) => {
                self.count.fetch_sub(1, SeqCst);
                copies.memory.lock().seen.try_clone()
            }
            None => {
                let memory = len().and_then(|len| Memory::of(agent, file, len));
                let memory = memory.inspect_err(|_| {
                    self.count.fetch_sub(1, SeqCst);
                })?;
                let seen = memory.seen.try_clone();
                by_ino.insert(file.ino(), Arc::new(Copies { file: file.clone(), memory: Mutex::new(memory) }));
                // What programs store now changes the file for them.
                agent.shared.count_change(file.change_counter());
                seen
            }
        };
        Ok(seen?.into())
    }

    /// Changes a file by `change`, which tells the outcome; the copies that programs have mapped change, too. Blocks;
    /// other calls on a file that is mapped wait.
    ///
    /// # Errors
    /// Those of `change`, and of reading the changed bytes.
    pub fn changing<T>(&self, agent: &Agent, ino: Ino, change: impl FnOnce() -> Result<(T, Changed)>) -> Result<T> {
        let (_held, _under_way) = (Held::begin(), self.changes.read());
        match self.of(ino) {
            Some(copies) => copies.changing(agent, change),
            None => change().map(|(result, _)| result),
        }
    }

    /// Writes the bytes stored in any of them, and forgets those that no process maps any more. Blocks.
    ///
    /// # Errors
    /// The first one of those of writing; what could not be written stays as long as it is mapped.
    pub fn settle(&self, agent: &Agent) -> Result<()> {
        if !self.is_used() {
            return Ok(());
        }
        let all: Vec<Arc<Copies>> = self.by_ino.lock().values().cloned().collect();
        let (_held, mut outcome) = (Held::begin(), Ok(()));
        for copies in all {
            outcome = outcome.and(copies.write_back(agent, 0..u64::MAX));
            let mut by_ino = self.by_ino.lock();
            let mut memory = copies.memory.lock();
            // The system refuses this seal as long as a mapping can be written.
            if memory.is_over || sys::seal(&memory.seen, libc::F_SEAL_WRITE).is_err() {
                continue;
            }
            // Nothing is stored any more: what came after the first look is written now.
            memory.is_over = true;
            outcome = outcome.and(copies.written(agent, &memory, 0..u64::MAX));
            by_ino.remove(&copies.file.ino());
            self.count.fetch_sub(1, SeqCst);
        }
        outcome
    }
}

impl Copies {
    /// Writes the stored bytes of a range. Blocks.
    ///
    /// # Errors
    /// Those of writing; what could not be written is written later.
    pub fn write_back(&self, agent: &Agent, range: Range<u64>) -> Result<()> {
        let _held = Held::begin();
        self.written(agent, &self.memory.lock(), range)
    }

    /// Makes the file durable, after [`Copies::write_back`]. Blocks.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn sync(&self, agent: &Agent) -> Result<()> {
        agent.wait(self.file.sync())
    }

    fn written(&self, agent: &Agent, memory: &Memory, range: Range<u64>) -> Result<()> {
        memory.each_change(range, |at, bytes| agent.wait(self.file.write(at, bytes)))
    }

    fn changing<T>(&self, agent: &Agent, change: impl FnOnce() -> Result<(T, Changed)>) -> Result<T> {
        let mut memory = self.memory.lock();
        // What cannot be written now stays for later; this call has its own outcome.
        let written = self.written(agent, &memory, 0..u64::MAX);
        written.unwrap_or_else(|fault| agent.say(format_args!("write what was stored in a mapping: {fault:?}")));
        let (result, changed) = change()?;
        if memory.is_over {
            return Ok(result);
        }
        match changed {
            Changed::Len(len) => memory.set_len(len)?,
            Changed::Bytes(range) => {
                let len = memory.len.max(range.end);
                memory.set_len(len)?;
                memory.load(agent, &self.file, range)?;
            }
        }
        Ok(result)
    }
}

/// What a call has changed of a file.
pub enum Changed {
    /// Its length.
    Len(u64),
    /// Bytes, up to the file's new end if they are beyond the old one.
    Bytes(Range<u64>),
}

impl Memory {
    fn of(agent: &Agent, file: &Arc<File>, len: u64) -> Result<Memory> {
        let mut memory =
            Memory { seen: sys::data_memory_file()?, known: sys::data_memory_file()?, len: 0, is_over: false };
        memory.set_len(len)?;
        memory.load(agent, file, 0..len)?;
        Ok(memory)
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        if len != self.len {
            self.seen.set_len(len)?;
            self.known.set_len(len)?;
            // What programs have stored behind the end, in its page, is no part of the file (mmap(2)).
            let end = self.len.next_multiple_of(PAGE_BYTES).min(len);
            self.seen.write_all_at(&vec![0; end.saturating_sub(self.len) as usize], self.len)?;
            self.len = len;
        }
        Ok(())
    }

    /// Takes bytes of the file into both copies.
    fn load(&self, agent: &Agent, file: &File, range: Range<u64>) -> Result<()> {
        let take = |at: u64, bytes: &[u8]| {
            self.known.write_all_at(bytes, at)?;
            self.seen.write_all_at(bytes, at)
        };
        if sys::data_parts(&self.known, range.clone())?.is_empty() {
            return copy_data(agent, file, range, take);
        }
        // Its holes are taken, too: there may have been bytes in their place.
        let mut buffer = vec![0; WINDOW_BYTES];
        let mut at = range.start;
        while at < range.end {
            let part = usize::try_from(range.end - at).unwrap_or(WINDOW_BYTES).min(WINDOW_BYTES);
            let count = agent.wait(file.read_into(at, &mut buffer[..part]))?;
            if count == 0 {
                break;
            }
            take(at, &buffer[..count])?;
            at += count as u64;
        }
        Ok(())
    }

    /// Calls `write` for each run of bytes that differ, and notes them as known.
    fn each_change(&self, range: Range<u64>, mut write: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let (mut seen, mut known) = (vec![0; WINDOW_BYTES], vec![0; WINDOW_BYTES]);
        for part in sys::data_parts(&self.seen, range.start..range.end.min(self.len))? {
            let mut at = part.start;
            while at < part.end {
                let len = usize::try_from(part.end - at).unwrap_or(WINDOW_BYTES).min(WINDOW_BYTES);
                self.seen.read_exact_at(&mut seen[..len], at)?;
                self.known.read_exact_at(&mut known[..len], at)?;
                for run in runs(&seen[..len], &known[..len]) {
                    let (begin, bytes) = (at + run.start as u64, &seen[run]);
                    write(begin, bytes)?;
                    self.known.write_all_at(bytes, begin)?;
                }
                at += len as u64;
            }
        }
        Ok(())
    }
}

/// Where two slices of one length differ.
fn runs(new: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    // Most blocks are the same.
    for (block, (new, old)) in new.chunks(4096).zip(old.chunks(4096)).enumerate() {
        if new == old {
            continue;
        }
        let begin = block * 4096;
        for at in (0..new.len()).filter(|at| new[*at] != old[*at]).map(|at| begin + at) {
            match runs.last_mut() {
                Some(run) if at - run.end < GAP_BYTES => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
    }
    runs
}

/// Reads the data of a range of a file, not its holes, and gives them in order.
///
/// # Errors
/// ENOMEM beyond [`CONTENTS_BYTES_MAX`]; those of reading, and of `take`.
pub fn copy_data(
    agent: &Agent,
    file: &File,
    range: Range<u64>,
    mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<()> {
    let limit = CONTENTS_BYTES_MAX.min(sys::memory_available_bytes() / 2);
    let (mut at, mut copied) = (range.start, 0);
    let mut buffer = vec![0; WINDOW_BYTES];
    while at < range.end {
        // Holes stay holes.
        at = match agent.wait_for(file.seek(at, false))? {
            Err(Failure { code: Code::NotFound, .. }) => break,
            found => found?,
        };
        let part = usize::try_from(range.end.saturating_sub(at)).unwrap_or(WINDOW_BYTES).min(WINDOW_BYTES);
        let count = agent.wait(file.read_into(at, &mut buffer[..part]))?;
        if count == 0 {
            break;
        }
        copied += count as u64;
        if copied > limit {
            let text =
                format!("map a file with more than {limit} bytes of data: as many are copied into memory at most");
            return Err(failed(libc::ENOMEM, text));
        }
        take(at, &buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_bytes_are_found_exactly() {
        let old = vec![7u8; 20_000];
        let mut new = old.clone();
        assert!(runs(&new, &old).is_empty());
        for at in [0, 100, 101, 130, 4095, 4096, 4300, 19_999] {
            new[at] = 8;
        }
        assert_eq!(runs(&new, &old), [0..1, 100..131, 4095..4097, 4300..4301, 19_999..20_000]);
    }
}
