//! Turns: what must happen to a file one after the other, in the order in which it was asked for.
//! An append has the file's turn from the moment its place is chosen until its size is set.

use crate::shards::{Names, ShardSet};
use aze_proto::Ino;
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::Arc;

/// Who waits for a file's turn, the first in front. Bounded by the changes that sessions may have
/// under way at a shard.
pub(crate) type Queue = VecDeque<oneshot::Sender<Turn>>;

/// The turn at one file; dropping it hands it on. Not to be dropped under the lock of its home.
pub(crate) struct Turn {
    shards: Arc<ShardSet>,
    ino: Ino,
    /// Cleared when no request is left to hand it to, or another one hands it on.
    held: bool,
}

impl Turn {
    fn of(shards: &Arc<ShardSet>, ino: Ino) -> Turn {
        Turn { shards: shards.clone(), ino, held: true }
    }

    /// The turn at a file whose home is among `shards`, if it is free.
    pub(crate) fn take(shards: &Arc<ShardSet>, names: &mut Names, ino: Ino) -> Option<Turn> {
        if names.turns.contains_key(&ino) {
            return None;
        }
        names.turns.insert(ino, Queue::new());
        Some(Turn::of(shards, ino))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        while self.held {
            self.held = false;
            let Some(cell) = self.shards.home(self.ino) else { return };
            let mut names = cell.names.lock();
            let next = names.turns.get_mut(&self.ino).and_then(VecDeque::pop_front);
            if next.is_none() {
                names.turns.remove(&self.ino);
            }
            drop(names);
            // A request that gave up while it waited gives the turn back at once: then the next one has it.
            if let Some(next) = next
                && let Err(mut refused) = next.send(Turn::of(&self.shards, self.ino))
            {
                refused.held = false;
                self.held = true;
            }
        }
    }
}
