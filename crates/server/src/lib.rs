//! The only room that knows which node does what.
//!
//! A server holds shards: of names (`meta`) and of data (`store`). This room dispatches requests
//! to them, asks other servers where an operation spans shards, keeps the shard map and the
//! namespace epoch, and notices when sessions end. What an operation does to a name or to a block
//! it deliberately does not know.
//!
//! A request runs to completion on the worker that read it. One that must wait (for a directory's
//! stub, for a locked entry, for another server) becomes a task; no thread is ever parked.

mod activity;
mod append;
mod check;
mod claims;
mod clock;
mod data;
mod directories;
mod dispatch;
mod exchange;
mod held;
mod inodes;
mod keeper;
mod lasting;
mod leases;
mod links;
mod listing;
mod lock_table;
mod locks;
mod members;
mod names;
mod namespace;
mod opens;
mod peers;
mod removal;
mod rename;
pub mod sabotage;
mod sessions;
mod settle;
mod shards;
mod slate;
mod space;
mod state;
mod status;
mod truncate;
mod turns;
mod unnamed;
mod wait;
mod watch;
mod xattr;

pub use aze_store::disk::segments::SEGMENT_BYTES_DEFAULT;
pub use lasting::check::{Problem, Report, check};
pub use lasting::{CHECKPOINT_BYTES_DEFAULT, DIRECTORIES_MAX, Storage, StorageDir};
pub use members::{Stage, Tell, start};
pub use state::{Config, Server};
pub use status::Contents;
