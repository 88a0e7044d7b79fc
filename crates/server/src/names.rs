//! Names and inodes: which entry leads to which inode, and which requests may change it now.
//!
//! This part alone knows how an operation on names spans servers: which server has the stub of a directory and counts its
//! entries, how a rename or a link locks names at two servers and ends with both or none, when an inode without a name
//! goes, who has a file open or locked, and from which namespace epoch on a client must forget paths. What an
//! operation does to a name within one shard it leaves to `meta`.

#[cfg(feature = "sabotage")]
mod contradict;
mod entries;
mod exchange;
mod gone;
mod import;
pub(crate) mod inodes;
mod links;
mod listing;
mod locks;
pub(crate) mod opens;
mod parts;
pub(crate) mod release;
mod removal;
mod rename;
pub(crate) mod root;
pub(crate) mod state;
mod turns;
mod unnamed;
mod unresolved;
mod xattr;
