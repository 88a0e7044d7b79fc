//! The only room that knows which node does what.
//!
//! A server holds shards: of names (`meta`) and of data (`store`). This room dispatches requests
//! to them, asks other servers where an operation spans shards, keeps the shard map and the
//! namespace epoch, and notices when sessions end. What an operation does to a name or to a block
//! it deliberately does not know.
//!
//! A request runs to completion on the worker that read it. One that must wait (for a directory's
//! stub, for a locked entry, for another server) becomes a task; no thread is ever parked.

mod check;
mod chunks;
mod clock;
mod coherence;
mod dispatch;
mod membership;
mod names;
mod persistence;
pub mod sabotage;
mod shards;
mod state;
mod status;
mod wait;

pub use aze_store::disk::segments::SEGMENT_BYTES_DEFAULT;
pub use membership::members::{Stage, Tell, start};
pub use persistence::check::{Problem, Report, check};
pub use persistence::{CHECKPOINT_BYTES_DEFAULT, DIRECTORIES_MAX, Storage, StorageDir};
pub use state::{Config, Server};
pub use status::Contents;
