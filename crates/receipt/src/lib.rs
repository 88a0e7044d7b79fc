//! What a receipt says, who signed it, and how both are checked.
//!
//! A receipt is a file of JSON lines: a head, a line for each object that was staged, one for each name that was removed, an
//! end with counts and a hash over the tree, and a signature over all of that. This room alone knows the lines ([`line`]),
//! how a file's bytes are summed up ([`sums`]), where a user's key lies and how it signs ([`key`]). It does not know how
//! files are copied or where they are: room `copy` does.

pub mod key;
pub mod line;
pub mod sums;
mod time;
mod write;

pub use key::{Key, PublicKey};
pub use line::{End, Head, Line, Object, Removed};
pub use sums::{CHUNK_BYTES, Hash, Sums};
pub use time::when;
pub use write::{Draft, Reader, Signed, is_there};
