//! What a server tells of its own start, while it goes on.

use aze_io::Addr;
use std::sync::Arc;

/// The progress of a server's start.
pub enum Stage<'a> {
    /// It can be connected to at these addresses, and the others can be started.
    Listening(&'a [Addr]),
    /// It has read so many records of its storage.
    Read {
        /// Since the start.
        records: u64,
    },
}

/// Is told of a server's start.
pub type Tell = Arc<dyn Fn(Stage<'_>) + Send + Sync>;
