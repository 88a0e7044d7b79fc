//! The only room that knows what a name means.
//!
//! A [`Shard`] is a part of the namespace: directory entries whose hash falls into it, and the
//! inodes that were made in it. It changes only by [`Shard::apply`], which is deterministic: no
//! I/O, no clock (every operation carries its time), no random number. So one sequence of
//! [`Op`]s gives one state, whether they come from a client's request, a journal, a backup or a
//! consensus log. How shards are found, who waits for whom and what other shards have to do
//! afterwards ([`Effects`]) it deliberately does not know: that is the server's secret.

pub mod access;
pub mod acl;
mod backing;
pub mod conformance;
pub mod dump;
mod entries;
mod inodes;
pub mod links;
pub mod op;
mod pages;
pub mod rare;
pub mod shard;
pub mod tables;
pub mod xattr;

pub use dump::{SessionRow, ShardPart};
pub use links::{LinkInDoubt, LostLink};
pub use op::{AttrSet, NewFile, Op, Outcome, Stamp};
pub use rare::{PendingLink, Rare};
pub use shard::{Applied, DirDelta, Effects, Shard};
pub use tables::{EntryKey, EntryValue, Inode, Lock, PendingTruncation, PlainTables, Role, Tables};
pub use xattr::{Xattr, XattrSet};
