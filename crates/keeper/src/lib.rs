//! A few servers decide together, by consensus, on the state of a volume: they are its *keeper group*.
//!
//! They decide on one value, and each decision is a newer version of it: the map of the volume, as bytes that mean nothing here. This
//! room alone knows the library of consensus (`raft`: Ongaro, Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014) and
//! its rules. [`Group`] is one member: a state machine without input, output, clock and randomness. Its driver gives it messages
//! and takes [`Work`] from it; so the same code decides in a server and in a simulation. [`Driver`] does that in a process.
//!
//! Nothing is sent while there is nothing to decide: a leader sends no heartbeats. Other servers find out that a leader is gone, and have
//! another member [stand for election](Group::campaign).

mod driver;
mod group;
mod log;
mod stored;

pub use driver::{ANSWER_TIME_MAX, Driver, Outside, Undecided};
pub use group::{Fate, Group, Outcome, Proposal, Refused, Work};
pub use stored::Damaged;

/// Names a member of a group in one of its lives: a member that has lost its log comes back under another number, since one that has
/// forgotten its vote must not vote twice. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);
