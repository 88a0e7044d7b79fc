//! What programs do with files: paths, flags of open(2), positions, and an errno for each failure.
//!
//! It alone knows how the calls of a C library become operations of the client, what a forked process may still use of
//! its parent's, and how a call goes on while its caller does something else ([`Queue`]). The libraries for C and Python are
//! thin above it: they know their calling convention only. What an operation means, and which server does it, it
//! does not know.
//!
//! Every function blocks until its servers have answered or the connection's time is over (10 s; as long as they say so
//! while servers are starting), except where it says otherwise, and may be called from any number of threads at once.
//! After fork(2) a [`Volume`] connects anew in the child at its first use; open files, directories and queues of the
//! parent fail there with EBADF.

mod connected;
mod dir;
mod error;
mod file;
mod flags;
mod lanes;
mod lock;
mod path;
mod queue;
mod table;
mod volume;

pub use connected::{Connected, Times};
pub use dir::{Dir, DirEntry};
pub use error::{Error, Result};
pub use file::{File, Whence};
pub use flags::{Flags, chunk_bits_of};
pub use lock::{Lock, LockKind};
pub use path::{PATH_BYTES_MAX, absolute};
pub use queue::{Completion, Queue};
pub use table::Table;
pub use volume::Volume;

pub use aze_client::{Access, Room, Space};
pub use aze_proto::attr::{Attr, FileKind, SetTime, XattrHow};
pub use aze_proto::ids::Time;
pub use aze_proto::limits::NAME_BYTES_MAX;
