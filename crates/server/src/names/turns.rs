//! Turns: what must happen to a file one after the other, in the order in which it was asked for.
//! An append has the file's turn from the moment its place is chosen until its size is set.

use crate::state::Server;
use aze_proto::{Code, Failure, Ino};
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Who waits for a file's turn, the first in front. Bounded by the changes that sessions may have
/// under way at a shard.
pub(crate) type Queue = VecDeque<oneshot::Sender<Turn>>;

/// The turn at one file; dropping it hands it on. Not to be dropped under the lock of its home.
pub(crate) struct Turn {
    server: Arc<Server>,
    ino: Ino,
    /// Cleared when no request is left to hand it to, or another one hands it on.
    held: bool,
}

impl Turn {
    fn of(server: &Arc<Server>, ino: Ino) -> Turn {
        Turn { server: server.clone(), ino, held: true }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        while self.held {
            self.held = false;
            let Some(cell) = self.server.shards.get(self.ino.home()) else { return };
            let mut names = cell.names.lock();
            let next = names.turns.get_mut(&self.ino).and_then(VecDeque::pop_front);
            if next.is_none() {
                names.turns.remove(&self.ino);
            }
            drop(names);
            // A request that gave up while it waited gives the turn back at once: then the next one has it.
            if let Some(next) = next
                && let Err(mut refused) = next.send(Turn::of(&self.server, self.ino))
            {
                refused.held = false;
                self.held = true;
            }
        }
    }
}

impl Server {
    /// The turn at a file whose home is here, if it is free.
    pub(crate) fn try_turn(self: &Arc<Self>, names: &mut crate::shards::Names, ino: Ino) -> Option<Turn> {
        if names.turns.contains_key(&ino) {
            return None;
        }
        names.turns.insert(ino, Queue::new());
        Some(Turn::of(self, ino))
    }

    /// Waits for the turn at a file whose home is here.
    pub(crate) async fn take_turn(self: &Arc<Self>, ino: Ino, deadline_ns: u64) -> Result<Turn, Failure> {
        let cell = self.shards.get(ino.home()).ok_or_else(|| Failure::from(Code::Internal))?;
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
