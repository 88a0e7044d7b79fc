//! What libraries that C calls share: how arguments are taken, how a failure is told by errno, what the structures of the
//! system's headers look like, and that no panic leaves a library (docs/decisions/0073-libraries-unwind.md).
//!
//! What the calls do, it does not know.

mod arguments;
mod catch;
mod structures;

pub use arguments::{Memory, bytes_of, offset, optional_text, text_of};
pub use catch::{catch, guarded, last_error, raise};
pub use structures::{fill_dirent, set_time, stat_of, statvfs_of};
