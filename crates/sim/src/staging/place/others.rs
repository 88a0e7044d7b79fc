//! What other processes do to the files of the place, each at once; and what a path led to when.

use super::{Missing, Place, State, Version};
use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_receipt::when;
use std::io;
use std::sync::Arc;

/// A stretch of time between two moments as receipts have them, both within it.
#[derive(Clone, Debug)]
pub struct Window {
    /// Its first moment.
    pub from: String,
    /// Its last one.
    pub to: String,
}

impl Window {
    /// Whether it has a moment of those from one on, and before another.
    fn meets(&self, from: u64, before: u64) -> bool {
        let is_early = before != u64::MAX && when(before).as_str() <= self.from.as_str();
        !is_early && when(from).as_str() <= self.to.as_str()
    }
}

/// What a path led to: from one moment on, and before another.
struct Stretch {
    from: u64,
    before: u64,
    inode: Option<u64>,
}

impl State {
    fn stretches(&self, path: &[u8]) -> Vec<Stretch> {
        let mut all = vec![Stretch { from: 0, before: u64::MAX, inode: None }];
        for (at, _, inode) in self.names.iter().filter(|(_, other, _)| other == path) {
            if let Some(last) = all.last_mut() {
                last.before = *at;
            }
            all.push(Stretch { from: *at, before: u64::MAX, inode: *inode });
        }
        all
    }

    /// The states of an inode, each with the moments between which it had it.
    fn states(&self, inode: u64) -> impl Iterator<Item = (u64, u64, &Version)> {
        let versions = self.nodes.get(&inode).map_or(&[][..], |node| &node.versions);
        let ends = versions.iter().skip(1).map(|version| version.from_ns).chain([u64::MAX]);
        versions.iter().zip(ends).map(|(version, before)| (version.from_ns, before, version))
    }
}

impl Place {
    /// Does something at once; what cannot be done is left.
    fn at_once(&self, change: impl FnOnce(&mut State, u64) -> io::Result<()>) {
        let now_ns = self.now_ns();
        // Others take what they find.
        let _ = change(&mut self.state.lock(), now_ns);
    }

    /// Changes the bytes of a file.
    pub fn rewrite(&self, path: &[u8], change: impl FnOnce(&mut Vec<u8>)) {
        self.at_once(|state, now_ns| {
            let inode = state.find(path)?;
            if state.nodes[&inode].kind != FileKind::File {
                return Ok(());
            }
            let Version { mtime, ctime, .. } = state.nodes[&inode].now;
            state.change(inode, now_ns, true, |version| change(Arc::make_mut(&mut version.bytes)));
            if state.moods.without == Some(Missing::ChangeTimes)
                && let Some(node) = state.nodes.get_mut(&inode)
            {
                for version in [Some(&mut node.now), node.versions.last_mut()].into_iter().flatten() {
                    (version.mtime, version.ctime) = (mtime, ctime);
                }
            }
            Ok(())
        });
    }

    /// Gives a path another file or link, in one step.
    pub fn replace(&self, path: &[u8], kind: FileKind, bytes: Vec<u8>) {
        self.at_once(|state, now_ns| {
            let inode = state.make(kind, if kind == FileKind::File { 0o644 } else { 0o777 }, bytes, now_ns);
            state.set_name(path, Some(inode), now_ns)
        });
    }

    /// Renames a file or link, over a file that has the name.
    pub fn move_to(&self, from: &[u8], to: &[u8]) {
        self.at_once(|state, now_ns| state.rename(from, to, now_ns));
    }

    /// Gives a file a further name.
    pub fn add_link(&self, existing: &[u8], path: &[u8]) {
        self.at_once(|state, now_ns| {
            let inode = state.find(existing)?;
            state.set_name(path, Some(inode), now_ns)
        });
    }

    /// Removes a name.
    pub fn unlink(&self, path: &[u8]) {
        self.at_once(|state, now_ns| state.find(path).and_then(|_| state.set_name(path, None, now_ns)));
    }

    /// Changes the mode of a file, or its time.
    pub fn set_attributes(&self, path: &[u8], mode: Option<u32>, mtime: Option<Time>) {
        self.at_once(|state, now_ns| {
            let inode = state.find(path)?;
            state.change(inode, now_ns, false, |version| {
                version.mode = mode.unwrap_or(version.mode);
                version.mtime = mtime.unwrap_or(version.mtime);
            });
            Ok(())
        });
    }

    /// What a path leads to now: its inode, its kind and its state.
    pub fn now_at(&self, path: &[u8]) -> Option<(u64, FileKind, Version)> {
        let state = self.state.lock();
        let inode = state.find(path).ok()?;
        let node = &state.nodes[&inode];
        Some((inode, node.kind, node.now.clone()))
    }

    /// Whether a path led, at a moment of a window, to an object that was then in a state that fits.
    pub fn was(&self, path: &[u8], window: &Window, fits: impl Fn(FileKind, &Version) -> bool) -> bool {
        let state = self.state.lock();
        state.stretches(path).into_iter().any(|Stretch { from, before, inode }| {
            let Some((inode, node)) = inode.and_then(|inode| Some((inode, state.nodes.get(&inode)?))) else {
                return false;
            };
            state.states(inode).any(|(state_from, state_before, version)| {
                let (from, before) = (from.max(state_from), before.min(state_before));
                from < before && window.meets(from, before) && fits(node.kind, version)
            })
        })
    }

    /// Whether a path led to nothing at some moment of a window.
    pub fn was_free(&self, path: &[u8], window: &Window) -> bool {
        let stretches = self.state.lock().stretches(path);
        stretches.iter().any(|stretch| stretch.inode.is_none() && window.meets(stretch.from, stretch.before))
    }

    /// Whether a file had these bytes at some time.
    pub fn ever_had(&self, bytes: &[u8]) -> bool {
        let state = self.state.lock();
        let mut versions = state.nodes.values().flat_map(|node| &node.versions);
        versions.any(|version| *version.bytes == bytes)
    }
}
