//! What a member has on its disk.
//!
//! The layout of version 1: the version (1 byte), the member (8 bytes), then its promises, the newest decided value with its
//! place, and each entry that follows, each with its length (8 bytes) and in the library's form. Numbers are little-endian. The caller that writes this to a disk adds a
//! checksum.

use crate::MemberId;
use crate::log::Log;
use protobuf::Message;
use raft::eraftpb::Entry;
use std::fmt;

/// The layout that this build writes and reads.
const LAYOUT: u8 = 1;

/// Bytes that are not what a member has stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged(String);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what the member of the keeper group has stored cannot be read: {}", self.0)
    }
}

impl std::error::Error for Damaged {}

fn damaged(why: impl fmt::Display) -> Damaged {
    Damaged(why.to_string())
}

pub(crate) fn encode(me: MemberId, log: &Log) -> Vec<u8> {
    let mut bytes = vec![LAYOUT];
    bytes.extend_from_slice(&me.0.to_le_bytes());
    let mut add = |part: &dyn Message| {
        let part = part.write_to_bytes().expect("a message whose fields are all optional can be written to memory");
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&part);
    };
    add(&log.promises);
    add(&log.decided);
    log.entries.iter().for_each(|entry| add(entry));
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Result<(MemberId, Log), Damaged> {
    let (layout, bytes) = bytes.split_first().ok_or_else(|| damaged("it is empty"))?;
    if *layout != LAYOUT {
        return Err(damaged(format!("its layout is {layout}, and this build knows {LAYOUT}")));
    }
    let mut rest = Rest(bytes);
    let me = MemberId(rest.number()?);
    let mut log = Log { promises: rest.part()?, decided: rest.part()?, entries: Vec::new() };
    while !rest.0.is_empty() {
        log.entries.push(rest.part::<Entry>()?);
    }
    check(me, &log)?;
    Ok((me, log))
}

/// Whether these are the parts of one log.
fn check(me: MemberId, log: &Log) -> Result<(), Damaged> {
    if me.0 == 0 {
        return Err(damaged("the member has no number"));
    }
    let members = log.members();
    let is_whole = members.learners.is_empty()
        && members.learners_next.is_empty()
        && members.auto_leave != members.voters_outgoing.is_empty()
        && members.voters.is_empty() == (log.index() == 0)
        && members.voters.iter().chain(&members.voters_outgoing).all(|member| *member != 0);
    if !is_whole {
        return Err(damaged("the members are no group"));
    }
    let mut before = (log.index(), log.decided.get_metadata().term);
    for entry in &log.entries {
        if entry.index != before.0 + 1 || entry.term < before.1 {
            return Err(damaged(format!("entry {} of term {} follows entry {}", entry.index, entry.term, before.0)));
        }
        before = (entry.index, entry.term);
    }
    let promises = &log.promises;
    if promises.commit < log.index() || promises.commit > before.0 || promises.term < before.1 {
        let (commit, term) = (promises.commit, promises.term);
        return Err(damaged(format!("it promises term {term} and decisions up to {commit}, and has others")));
    }
    Ok(())
}

/// The bytes that are not read yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn number(&mut self) -> Result<u64, Damaged> {
        let (number, rest) = self.0.split_first_chunk::<8>().ok_or_else(|| damaged("it ends within a number"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn part<M: Message>(&mut self) -> Result<M, Damaged> {
        let length = self.number()?;
        let length = usize::try_from(length).ok().filter(|length| *length <= self.0.len());
        let (part, rest) = self.0.split_at(length.ok_or_else(|| damaged("it ends within a part"))?);
        self.0 = rest;
        M::parse_from_bytes(part).map_err(damaged)
    }
}
