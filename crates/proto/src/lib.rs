//! The only room that knows what bytes on the wire mean.
//!
//! Ids, attributes, messages, frames, the handshake, block checksums, retry
//! records and the arithmetic of placement: all of it pure computation, so that
//! client, server, store and simulation read the same rules. How bytes travel
//! (`io`), what an operation does to a name (`meta`) and who decides (`client`,
//! `server`) it deliberately does not know.

pub mod attr;
pub mod backing;
pub mod check;
pub mod error;
pub mod fields;
pub mod frame;
pub mod handshake;
pub mod ids;
pub mod limits;
pub mod message;
pub mod name;
pub mod place;
pub mod predicate;
pub mod published;
pub mod retry;
pub mod rules;
pub mod slots;
pub mod sum;
pub mod wire;
pub mod xattr;

pub use attr::{Attr, Change, FileKind, Identity, SetTime, Spread, Stub, XattrHow};
pub use backing::{Backing, BackingIdentity, Gone, Imported, ServerChanges, Settle, Staged};
pub use error::{Code, Failure, Refusal};
pub use ids::{
    Configuration, Generation, Incarnation, Ino, JobId, Life, MapEpoch, NamespaceEpoch, Order, Prefix, Sequence,
    ServerIndex, SessionId, ShardId, SlotIndex, Time, TxId,
};
pub use message::{Reply, Request};
pub use name::{Name, NameHash};
pub use place::ShardMap;
