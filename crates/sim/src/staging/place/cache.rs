//! Page caches of the machines that have the place mounted. They are close-to-open: who has written a file sees its own writes, and others see
//! those that have arrived at the storage, by a sync or by chance.

use super::{Missing, Node, Place, PlaceSource, State, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Writes of a million that arrive at once, without a sync.
const ARRIVES_PPM: u32 = 300_000;

/// What page caches have of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    /// The machine that has its pages, as they are now.
    holder: Option<usize>,
    /// What others see as long as there is one.
    arrived: Option<Arc<Vec<u8>>>,
    /// The holder has pages that have not arrived.
    is_dirty: bool,
    /// Machines that have written its bytes, and that have read them back since.
    writers: BTreeSet<usize>,
    readers: BTreeSet<usize>,
}

impl Cache {
    /// What a machine has of the file has arrived.
    pub fn synced(&mut self, system: usize, stored: Option<&Version>) {
        if self.holder.is_some() {
            self.arrived = stored.map(|stored| stored.bytes.clone());
        }
        self.is_dirty &= self.holder != Some(system);
    }

    /// Nothing is in memory any more.
    pub fn drop_pages(&mut self) {
        (self.holder, self.arrived, self.is_dirty) = (None, None, false);
    }
}

impl Node {
    /// The bytes that a program on a machine reads.
    pub(super) fn seen_by(&self, system: usize) -> Arc<Vec<u8>> {
        match &self.cache {
            Cache { holder: Some(holder), arrived, .. } if *holder != system => arrived.clone().unwrap_or_default(),
            _ => self.now.bytes.clone(),
        }
    }
}

impl State {
    /// A program on a machine changes the bytes of a file.
    pub(super) fn write(&mut self, inode: u64, system: usize, now_ns: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let arrives = self.rng.chance(ARRIVES_PPM);
        let node = &self.nodes[&inode];
        let (seen, mut cache) = (node.seen_by(system), node.cache.clone());
        if cache.holder.is_none() {
            cache.arrived = Some(seen.clone());
        }
        self.change(inode, now_ns, true, |version| {
            version.bytes = seen;
            change(Arc::make_mut(&mut version.bytes));
        });
        let node = self.nodes.get_mut(&inode).expect("it is there");
        if arrives {
            cache.arrived = Some(node.now.bytes.clone());
        }
        (cache.holder, cache.is_dirty) = (Some(system), !arrives);
        cache.writers.insert(system);
        cache.readers.clear();
        node.cache = cache;
    }

    /// A program on a machine syncs a file: of pages of another machine it makes those durable that have arrived.
    pub(super) fn sync_on(&mut self, inode: u64, system: usize) {
        let node = self.nodes.get_mut(&inode).expect("it is there");
        match &node.cache {
            Cache { holder: Some(holder), arrived, is_dirty: true, .. } if *holder != system => {
                let bytes = arrived.clone().unwrap_or_default();
                (node.stored, node.synced) = (Some(Version { bytes, ..node.now.clone() }), None);
            }
            _ => self.sync(inode),
        }
    }
}

impl Place {
    /// The same one, as a machine has it mounted.
    pub fn on_system(&self, system: usize) -> Place {
        Place { system, ..self.clone() }
    }

    /// A machine is lost with its memory, and with writes that it has not synced.
    pub fn lose_machine(&self, system: usize) {
        let now_ns = self.now_ns();
        let state = &mut *self.state.lock();
        for node in state.nodes.values_mut().filter(|node| node.cache.holder == Some(system)) {
            if node.cache.is_dirty {
                let bytes = node.cache.arrived.clone().unwrap_or_default();
                node.now = Version { from_ns: now_ns, bytes, ..node.now.clone() };
                node.versions.push(Version { names: BTreeMap::new(), ..node.now.clone() });
            }
            node.cache.drop_pages();
        }
    }

    /// A file for reading it back.
    pub(super) fn stored_source(&self, inode: u64, path: &[u8]) -> PlaceSource {
        let without = self.moods().without;
        if let Some(node) = self.state.lock().nodes.get_mut(&inode) {
            node.cache.readers.insert(self.system);
        }
        // Without a sync there would be nothing to read.
        let is_stored = !matches!(without, Some(Missing::SyncOfFiles | Missing::ReadFromStorage));
        PlaceSource { place: self.clone(), inode, path: path.to_vec(), is_stored }
    }

    /// Whether a machine has read the bytes of an inode back, after the last write, that had written none of them.
    pub fn was_reread_by_another(&self, inode: u64) -> bool {
        let state = self.state.lock();
        state.nodes.get(&inode).is_some_and(|node| node.cache.readers.difference(&node.cache.writers).next().is_some())
    }
}
