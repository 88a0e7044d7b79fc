//! What each file must hold and where it must be, as the tasks that work know it.

use crate::bytes::data_of;
use aze_proto::{Code, Failure, Ino, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// A file as a task knows it.
pub(super) struct Known {
    pub(super) id: u32,
    /// The bytes it holds now, if every operation begun has happened.
    pub(super) content: Vec<u8>,
    /// The bytes it must hold up to `low`, if not those of `content`; beyond it any of the bytes written, or zeros.
    pub(super) kept: Vec<u8>,
    pub(super) low: usize,
    pub(super) high: usize,
    /// Where it may be.
    pub(super) places: BTreeSet<(Ino, Vec<u8>)>,
    /// Where it is, if everything that was begun has happened; `None`: nowhere.
    pub(super) place: Option<(Ino, Vec<u8>)>,
    pub(super) may_be_gone: bool,
    /// An operation on it has failed: its state is unknown.
    pub(super) in_doubt: bool,
}

/// All files.
#[derive(Default)]
pub(super) struct Book {
    pub(super) files: BTreeMap<Ino, Known>,
    /// Every inode number that a client was ever told, by shard and what tells numbers of one shard apart: the place of the
    /// name in a number must not be what keeps two of them different.
    given: BTreeSet<(ShardId, u64)>,
}

impl Book {
    /// A client is told the number of the inode that it has made.
    pub(super) fn give(&mut self, ino: Ino, shards: u32) -> Result<(), Failure> {
        match self.given.insert((ino.home(shards), ino.issue())) {
            true => Ok(()),
            false => Err(Failure::new(Code::Internal, format!("inode number {ino} is given out for the second time"))),
        }
    }
}

impl Known {
    /// Whether it is, for sure, as it is believed to be.
    pub(super) fn is_settled(&self) -> bool {
        let places: BTreeSet<_> = self.place.iter().cloned().collect();
        let (len, is_gone) = (self.content.len(), self.place.is_none());
        self.kept == self.content
            && self.low == len
            && self.high == len
            && self.places == places
            && self.may_be_gone == is_gone
    }

    /// From now on it must be as it is.
    pub(super) fn settle(&mut self) {
        if self.in_doubt {
            return;
        }
        self.kept = self.content.clone();
        (self.low, self.high) = (self.content.len(), self.content.len());
        self.places = self.place.iter().cloned().collect();
        self.may_be_gone = self.place.is_none();
    }

    pub(super) fn check(&self, data: &[u8]) -> Result<(), String> {
        let sure = self.low.min(self.kept.len());
        if data.len() < sure || data.len() > self.high.max(self.kept.len()) {
            return Err(format!("{} bytes, where {sure} to {} are possible", data.len(), self.high));
        }
        if let Some(at) = (0..sure).find(|at| data[*at] != self.kept[*at] && Some(&data[*at]) != self.content.get(*at))
        {
            return Err(format!("byte {at} of {sure} that were kept is wrong"));
        }
        let written = data_of(self.id, 0, data.len());
        if let Some(at) = (sure..data.len()).find(|at| data[*at] != written[*at] && data[*at] != 0) {
            return Err(format!("byte {at} was never written"));
        }
        Ok(())
    }
}
