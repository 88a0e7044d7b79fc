//! The only room that knows what a file operation means: resolve, split, route, cache, retry.
//!
//! A [`Client`] turns what a program wants done to a path, an inode or an open [`File`] into
//! requests: which shard is meant and which server holds it (arithmetic, no lookup), which
//! directories need not be looked up again, which requests go out in parallel, the meaning of a refusal and
//! when to ask again. How a request finds its reply it leaves to `rpc`; how a calling convention
//! looks, to the doors.

mod again;
mod append;
mod attrs;
mod backing;
mod changes;
mod check;
mod client;
mod closes;
mod connect;
mod contact;
mod data;
mod dir_attrs;
mod dirs;
mod file;
mod find;
mod flight;
mod forget;
mod inodes;
mod keeper;
mod leases;
mod list;
mod locks;
mod names;
mod opened;
mod owed;
mod path;
#[cfg(debug_assertions)]
mod planted;
mod published;
mod release;
mod route;
mod scan;
mod share;
mod shared_read;
mod space;
mod sync;
mod tries;
mod unnamed;
mod usage;
mod volume;
mod way;
mod xattr;

pub use aze_rpc::lane;
pub use backing::PutBack;
pub use changes::ChangeCounts;
pub use check::{CheckOptions, Checked, Finding};
pub use client::{Client, Config};
pub use dir_attrs::Aged;
pub use file::{Access, File};
pub use find::FoundPath;
pub use flight::{FLIGHT_BYTES_MAX, NEAR_BYTES_MAX};
pub use leases::{Lease, LetGo};
pub use list::{Lister, Listing};
pub use locks::Locked;
pub use names::{Created, NewFile, Reached};
pub use opened::{CHANGE_COUNTERS, CONTENTS_TIME, ToldChange};
pub use path::Entries;
#[cfg(debug_assertions)]
pub use planted::Planted;
pub use release::OpenCount;
pub use share::{LetIn, SharedIndex, SharedIndexes, Subscriber};
pub use space::{Room, Sought};
pub use usage::{EachDir, UsageSum};
pub use volume::Space;
pub use way::{Trail, Way, WayNote};
pub use xattr::mode_under;
