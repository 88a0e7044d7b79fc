//! Published indexes shared with other processes of this user on this node, which read them with what this client knows.
//!
//! It alone knows what such a *subscriber* has to be told, so that it takes no answer that this client would not take: that
//! something was learnt or lost by which earlier answers counted, and which files are open: servers may not know all of
//! an open file. A subscriber tells the largest time that it has seen. Who may look names up where, servers have
//! decided by requests of this client, as in [`crate::published`].

use crate::client::{Client, Core};
use crate::route::Knowing;
use aze_proto::{Identity, Ino, MapEpoch, Name, NameHash, NamespaceEpoch, ServerIndex, ShardId, Time};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// Others who read what this client may read.
pub trait Subscriber: Send + Sync {
    /// Indexes shared before count no more, nor do directories that were resolved. Called after the change, and before anybody hears of it.
    fn servers_changed(&self);
    /// Directories that were resolved before count no more; likewise.
    fn names_changed(&self);
    /// A file is open from now on: only this client may know of writes to it, and has to learn what others see. Files are counted.
    fn opened(&self, ino: Ino);
    /// A file that was open is not any more.
    fn closed(&self, ino: Ino);
    /// The largest time that they have seen: no change that this client asks for from now on is dated before it.
    fn seen(&self) -> Time;
}

/// The subscriber, once there is one.
#[derive(Clone, Default)]
pub(crate) struct Subscribed(Arc<OnceLock<Arc<dyn Subscriber>>>);

impl Subscribed {
    pub(crate) fn get(&self) -> Option<&Arc<dyn Subscriber>> {
        self.0.get()
    }

    /// See [`Subscriber::servers_changed`].
    pub(crate) fn servers_changed(&self) {
        self.get().inspect(|subscriber| subscriber.servers_changed());
    }

    /// See [`Subscriber::names_changed`].
    pub(crate) fn names_changed(&self) {
        self.get().inspect(|subscriber| subscriber.names_changed());
    }
}

/// The indexes that a client can read, until [`Subscriber::servers_changed`].
#[derive(Debug)]
pub struct SharedIndexes {
    /// Servers that know a newer map than this do not count.
    pub map_epoch: MapEpoch,
    /// Base-2 logarithm of the number of shards.
    pub shard_bits: u32,
    /// The server of each slot.
    pub slots: Vec<ServerIndex>,
    /// The servers whose indexes can be read.
    pub servers: Vec<SharedIndex>,
}

/// The published index of one server.
#[derive(Debug)]
pub struct SharedIndex {
    /// The server.
    pub server: ServerIndex,
    /// Its memory, which can be mapped to be read only.
    pub memory: OwnedFd,
    /// Becomes readable when the server's process has ended (pidfd_open(2)).
    pub process: OwnedFd,
}

/// The right to look names up, as a server has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetIn {
    /// The server of the name's entry.
    pub server: ServerIndex,
    /// The state of the directory there in which the user may look names up.
    pub state: u64,
}

impl Core {
    fn share_indexes(&self) -> SharedIndexes {
        let routes = self.routes.read().clone();
        let slots = routes.map.slots.len();
        let server_of = |slot| routes.map.server_of(ShardId(slot)).unwrap_or_default();
        let mut servers = Vec::new();
        // What this client believes it claims, which others cannot.
        for target in routes.targets().filter(|_| !self.leases.are_wanted()) {
            if let Some((memory, process)) = self.caller.published(target).and_then(|index| index.files()) {
                servers.push(SharedIndex { server: target.index, memory, process });
            }
        }
        SharedIndexes {
            map_epoch: routes.map.epoch,
            shard_bits: routes.map.shards().trailing_zeros(),
            // The first shards are in the slots of their numbers.
            slots: (0..slots).map(server_of).collect(),
            servers,
        }
    }
}

impl Client {
    /// Has a subscriber told from now on. To be called before any file is opened.
    ///
    /// # Panics
    /// If there is one already.
    pub fn share_with(&self, subscriber: Arc<dyn Subscriber>) {
        let seen = subscriber.clone();
        assert!(self.core.subscribed.0.set(subscriber).is_ok(), "a client has one subscriber");
        let subscribed = self.core.subscribed.clone();
        self.core.caller.on_links_changed(Box::new(move || subscribed.servers_changed()));
        self.core.caller.sees_elsewhere(Box::new(move || seen.seen()));
    }

    /// What can be shared now: it counts if [`Subscriber::servers_changed`] was not called since before.
    pub fn share_indexes(&self) -> SharedIndexes {
        self.core.share_indexes()
    }

    /// In which state of the directory its server has let the user look this name, or another one of the server's, up by a
    /// request; `None` if it has not.
    pub fn was_let_in(&self, who: &Identity, dir: Ino, name: &Name) -> Option<LetIn> {
        let server = {
            let map = &self.core.routes.read().map;
            map.server_of(NameHash::of(dir, name).shard(map.shards()))?
        };
        let state = self.core.entered.state_of(who, dir, server)?;
        Some(LetIn { server, state })
    }

    /// As [`Client::was_let_in`], after a request that found no such name, and was no lookup: only those let in. So one is made, unless it
    /// would be in vain: there is no index, or names of the directory may be in a backing only.
    pub async fn is_let_in(&self, who: &Identity, dir: Ino, name: &Name, epoch: NamespaceEpoch) -> Option<LetIn> {
        if let Some(let_in) = self.was_let_in(who, dir, name) {
            return Some(let_in);
        }
        if !self.core.is_published(dir, name) || dir.is_backed() {
            return None;
        }
        // The answer itself is not needed.
        drop(self.core.lookup(who, dir, name, Knowing::Since(epoch)).await);
        self.was_let_in(who, dir, name)
    }
}
