//! How a request takes its turn at a file (`state/turns.rs`), or waits for it.

use crate::names::state::turns::Turn;
use crate::shards::Names;
use crate::state::Server;
use aze_proto::{Code, Failure, Ino};
use futures_channel::oneshot;
use std::sync::Arc;
use std::time::Duration;

impl Server {
    /// The turn at a file whose home is here, if it is free.
    pub(crate) fn try_turn(&self, names: &mut Names, ino: Ino) -> Option<Turn> {
        Turn::take(&self.shards, names, ino)
    }

    /// Waits for the turn at a file whose home is here.
    pub(crate) async fn take_turn(self: &Arc<Self>, ino: Ino, deadline_ns: u64) -> Result<Turn, Failure> {
        let cell = self.shards.home(ino).ok_or_else(|| Failure::from(Code::Internal))?;
        let given = {
            let mut names = cell.names.lock();
            if let Some(turn) = self.try_turn(&mut names, ino) {
                return Ok(turn);
            }
            let (sender, given) = oneshot::channel();
            names.turns.entry(ino).or_default().push_back(sender);
            given
        };
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.io.mono_ns()));
        match self.io.timeout(left, given).await {
            Some(Ok(turn)) => Ok(turn),
            _ => {
                let detail = format!("{}: waited for earlier appends to inode {ino}; try again", self.who());
                Err(Failure::new(Code::TimedOut, detail))
            }
        }
    }
}
