//! Where files came from, in a volume that lies over a directory of another file system.

use crate::Client;
use crate::client::unexpected;
use crate::route::Place;
use aze_proto::{Backing, Failure, Identity, Ino, Reply, Request};

impl Client {
    /// Where an inode came from, and whether it was changed since; `None` if it did not come from the volume's backing.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn backing_of(&self, who: &Identity, ino: Ino) -> Result<Option<Backing>, Failure> {
        let request = Request::BackingOf { ino };
        match self.core.ask(who, Place::Home(ino), &request).await? {
            Reply::BackingIs { backing, .. } => Ok(backing),
            other => Err(unexpected(&request, &other)),
        }
    }
}
