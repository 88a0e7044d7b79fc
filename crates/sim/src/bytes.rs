//! The model of one file's bytes and length: which writes may be seen where.
//!
//! One task writes, so its acknowledged operations have one order. For each stretch of bytes the
//! model keeps the writes that may be there: one once a write was acknowledged, several while one
//! is under way or if its outcome is unknown. A reader takes a snapshot before it asks and adds
//! what began until it was answered.

use std::collections::{BTreeMap, BTreeSet};

/// Number of a write; 0 stands for bytes never written.
pub type WriteId = u32;

/// The byte that a write puts at an offset. Never zero, so that a hole is told from data, and
/// different at each place, so that bytes that end up elsewhere are noticed.
pub fn byte_of(write: WriteId, offset: u64) -> u8 {
    if write == 0 {
        return 0;
    }
    let mixed = (u64::from(write) << 32 ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 33) % 255) as u8 + 1
}

/// The bytes of a write.
pub fn data_of(write: WriteId, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| byte_of(write, at)).collect()
}

/// A change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes from `offset` to `end`.
    Write {
        /// Number of the write.
        id: WriteId,
        /// First byte.
        offset: u64,
        /// Byte after the last.
        end: u64,
    },
    /// Zeros from `offset` to `end`, as far as the file goes or, if it `grows`, all of them.
    Zero {
        /// First byte.
        offset: u64,
        /// Byte after the last.
        end: u64,
        /// Whether the file is that long afterwards.
        grows: bool,
    },
    /// The file is at least that long; the added part is a hole.
    Grow {
        /// Byte after the last.
        end: u64,
    },
    /// A new length.
    Truncate {
        /// The length in bytes.
        size: u64,
    },
}

/// What may be in a file.
#[derive(Clone, Debug)]
pub struct Bytes {
    /// From each key to the next the same writes may be seen.
    stretches: BTreeMap<u64, BTreeSet<WriteId>>,
    size_min: u64,
    size_max: u64,
    begun: Vec<Change>,
    /// Whether the name was taken away, or may have been.
    pub unlinked: bool,
}

/// A file as it may be when a reader begins.
pub struct Snapshot {
    bytes: Bytes,
    begun: usize,
}

impl Default for Bytes {
    fn default() -> Self {
        let stretches = BTreeMap::from([(0, BTreeSet::from([0]))]);
        Bytes { stretches, size_min: 0, size_max: 0, begun: Vec::new(), unlinked: false }
    }
}

impl Bytes {
    /// A change is asked for: it may be seen from now on.
    pub fn begin(&mut self, change: Change) {
        self.begun.push(change);
        self.widen(change);
    }

    fn widen(&mut self, change: Change) {
        match change {
            Change::Write { id, offset, end } => {
                self.each(offset, end, |writes| {
                    writes.insert(id);
                });
                self.size_max = self.size_max.max(end);
            }
            Change::Zero { offset, end, grows } => {
                self.each(offset, end, |writes| {
                    writes.insert(0);
                });
                self.size_max = self.size_max.max(if grows { end } else { 0 });
            }
            Change::Grow { end } => self.size_max = self.size_max.max(end),
            Change::Truncate { size } => {
                self.each(size, u64::MAX, |writes| {
                    writes.insert(0);
                });
                self.size_min = self.size_min.min(size);
                self.size_max = self.size_max.max(size);
            }
        }
    }

    /// The change was acknowledged: no later read returns the bytes that it replaced.
    pub fn acknowledge(&mut self, change: Change) {
        match change {
            Change::Write { id, offset, end } => {
                self.each(offset, end, |writes| *writes = BTreeSet::from([id]));
                self.size_min = self.size_min.max(end);
            }
            Change::Zero { offset, end, grows } => {
                if grows {
                    self.size_min = self.size_min.max(end);
                }
                // Beyond its end the file may have bytes of a write that was never answered.
                self.each(offset, end.min(self.size_min), |writes| *writes = BTreeSet::from([0]));
            }
            Change::Grow { end } => self.size_min = self.size_min.max(end),
            Change::Truncate { size } => {
                self.each(size, u64::MAX, |writes| *writes = BTreeSet::from([0]));
                (self.size_min, self.size_max) = (size, size);
            }
        }
    }

    fn each(&mut self, from: u64, to: u64, mut change: impl FnMut(&mut BTreeSet<WriteId>)) {
        if from >= to {
            return;
        }
        self.split(from);
        if to != u64::MAX {
            self.split(to);
        }
        self.stretches.range_mut(from..to).for_each(|(_, writes)| change(writes));
    }

    fn split(&mut self, at: u64) {
        let (_, writes) = self.stretches.range(..=at).next_back().expect("the first stretch begins at 0");
        let writes = writes.clone();
        self.stretches.entry(at).or_insert(writes);
    }

    /// The file as a reader that begins now may find it.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { bytes: self.clone(), begun: self.begun.len() }
    }

    /// What a reader that began with `snapshot` and ends now may have found.
    pub fn since(&self, snapshot: Snapshot) -> Bytes {
        let mut bytes = snapshot.bytes;
        self.begun[snapshot.begun..].iter().for_each(|change| bytes.widen(*change));
        bytes
    }

    /// Whether it certainly has bytes, and so was made.
    pub fn is_written(&self) -> bool {
        self.size_min > 0
    }

    /// The greatest length that it may have.
    pub fn size_max(&self) -> u64 {
        self.size_max
    }

    /// Whether a length is possible.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check_size(&self, size: u64) -> Result<(), String> {
        if (self.size_min..=self.size_max).contains(&size) {
            return Ok(());
        }
        Err(format!("a length of {size}, which must be between {} and {}", self.size_min, self.size_max))
    }

    /// Whether a read of `len` bytes at `offset` may have given `data`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_read(&self, offset: u64, len: usize, data: &[u8]) -> Result<(), String> {
        let end = offset + data.len() as u64;
        if !data.is_empty() && end > self.size_max {
            return Err(format!("{} bytes at {offset}, beyond the greatest length {}", data.len(), self.size_max));
        }
        if data.len() < len && end < self.size_min {
            return Err(format!(
                "only {} of {len} bytes at {offset}, though the file has at least {}",
                data.len(),
                self.size_min
            ));
        }
        let (first, _) = self.stretches.range(..=offset).next_back().expect("the first stretch begins at 0");
        let starts: Vec<u64> = self.stretches.range(first..).map(|(start, _)| *start).collect();
        for (index, start) in starts.iter().enumerate() {
            let stop = starts.get(index + 1).copied().unwrap_or(u64::MAX).min(end);
            let writes = &self.stretches[start];
            for at in (*start).max(offset)..stop {
                let byte = data[(at - offset) as usize];
                if !writes.iter().any(|write| byte_of(*write, at) == byte) {
                    return Err(format!(
                        "byte {byte} at {at}, where only writes {writes:?} can be ({:?})",
                        self.origin(byte, at)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether there may be a hole from `from` to `to`.
    ///
    /// # Errors
    /// Names the writes that are there.
    pub fn check_hole(&self, from: u64, to: u64) -> Result<(), String> {
        let to = to.min(self.size_min);
        let (first, _) = self.stretches.range(..=from).next_back().expect("the first stretch begins at 0");
        let mut there = self.stretches.range(*first..to.max(*first)).filter(|(_, writes)| !writes.contains(&0));
        match there.next() {
            Some((start, writes)) if from < to => {
                Err(format!("no data from {from} to {to}, though writes {writes:?} are at {start}"))
            }
            _ => Ok(()),
        }
    }

    /// Which write such a byte may come from.
    fn origin(&self, byte: u8, at: u64) -> Vec<WriteId> {
        let ids = self.begun.iter().filter_map(|change| match change {
            Change::Write { id, .. } => Some(*id),
            Change::Zero { .. } | Change::Grow { .. } | Change::Truncate { .. } => None,
        });
        ids.chain([0]).filter(|id| byte_of(*id, at) == byte).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(id: WriteId, offset: u64, end: u64) -> Change {
        Change::Write { id, offset, end }
    }

    #[test]
    fn an_acknowledged_write_is_there_and_an_unknown_one_may_be() {
        let mut bytes = Bytes::default();
        bytes.begin(write(1, 0, 100));
        bytes.acknowledge(write(1, 0, 100));
        bytes.begin(write(2, 50, 150));
        assert!(bytes.check_read(0, 100, &data_of(1, 0, 100)).is_ok());
        let mixed = [data_of(1, 0, 60), data_of(2, 60, 90)].concat();
        assert!(bytes.check_read(0, 200, &mixed).is_ok());
        assert!(bytes.check_read(0, 200, &data_of(1, 0, 99)).is_err(), "the acknowledged end is missing");
        assert!(bytes.check_read(0, 100, &[0; 100]).is_err());
        assert!(bytes.check_size(100).is_ok() && bytes.check_size(150).is_ok() && bytes.check_size(151).is_err());
    }

    #[test]
    fn what_was_truncated_does_not_come_back() {
        let mut bytes = Bytes::default();
        for change in [write(1, 0, 100), Change::Truncate { size: 40 }, Change::Truncate { size: 100 }] {
            bytes.begin(change);
            bytes.acknowledge(change);
        }
        let right = [data_of(1, 0, 40), vec![0; 60]].concat();
        assert!(bytes.check_read(0, 100, &right).is_ok());
        assert!(bytes.check_read(0, 100, &data_of(1, 0, 100)).is_err());
    }

    #[test]
    fn a_reader_may_see_what_began_while_it_read() {
        let mut bytes = Bytes::default();
        let snapshot = bytes.snapshot();
        bytes.begin(write(1, 10, 20));
        bytes.acknowledge(write(1, 10, 20));
        let seen = bytes.since(snapshot);
        assert!(seen.check_read(0, 20, &[]).is_ok());
        assert!(seen.check_read(0, 20, &[vec![0; 10], data_of(1, 10, 10)].concat()).is_ok());
        assert!(bytes.check_read(0, 20, &[]).is_err());
    }
}
