//! Directories that need not be looked up again.
//!
//! It alone knows which path components are cached: directories only, never symbolic links, each
//! under the identity that was allowed to look it up, and all under one namespace epoch. Servers
//! refuse clients that know an older epoch than they do and name the changed directories; so a component that
//! is still here when a request goes through is right. (A directory that was removed does not move
//! the epoch: its number, never given to another, fails by itself.)

use aze_io::sync::Mutex;
use aze_proto::{Identity, Ino, Name, NamespaceEpoch};
use std::collections::BTreeMap;

/// Components kept. At 100 to 200 bytes each this is some 10 MiB, and more than the directories
/// that one program works in. The half that was not used for longest goes first.
const COMPONENTS_MAX: usize = 65_536;

/// Identities told apart: a mount serves a few users. One more, and everything is forgotten.
const IDENTITIES_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct DirCache {
    state: Mutex<State>,
}

type Components = BTreeMap<(usize, Ino, Name), Ino>;

#[derive(Default)]
struct State {
    epoch: NamespaceEpoch,
    /// A server has answered at this epoch although it knows a newer one.
    overtaken: Option<NamespaceEpoch>,
    identities: Vec<Identity>,
    /// Used since the last change of guard.
    young: Components,
    /// Not used since.
    old: Components,
}

impl State {
    fn identity(&self, who: &Identity) -> Option<usize> {
        self.identities.iter().position(|known| known == who)
    }

    fn clear(&mut self) {
        *self = State { epoch: self.epoch, overtaken: self.overtaken, ..State::default() };
    }

    fn put(&mut self, key: (usize, Ino, Name), dir: Ino) {
        if self.young.len() >= COMPONENTS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, dir);
    }
}

impl DirCache {
    /// The state of the namespace, as far as it is known here.
    pub(crate) fn epoch(&self) -> NamespaceEpoch {
        self.state.lock().epoch
    }

    /// The directory of this name, if it is known and nothing has changed since `epoch`.
    pub(crate) fn get(&self, who: &Identity, parent: Ino, name: &Name, epoch: NamespaceEpoch) -> Option<Ino> {
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return None;
        }
        let key = (state.identity(who)?, parent, name.clone());
        if let Some(dir) = state.young.get(&key) {
            return Some(*dir);
        }
        let dir = state.old.remove(&key)?;
        state.put(key, dir);
        Some(dir)
    }

    /// A server that knows the namespace epoch `now` has answered a request by a path that was found at `epoch`: the request came before
    /// a change of paths and was answered after it. Whom the server has told of what it had to serve then, it alone knows.
    pub(crate) fn answered(&self, epoch: NamespaceEpoch, now: NamespaceEpoch) {
        if now > epoch {
            let mut state = self.state.lock();
            state.overtaken = state.overtaken.max(Some(epoch));
        }
    }

    /// Remembers the result of a lookup under `epoch`; not if something has changed since.
    pub(crate) fn insert(&self, who: &Identity, parent: Ino, name: &Name, dir: Ino, epoch: NamespaceEpoch) {
        let mut state = self.state.lock();
        if state.epoch != epoch || state.overtaken.is_some_and(|overtaken| overtaken >= epoch) {
            return;
        }
        let identity = match state.identity(who) {
            Some(identity) => identity,
            None => {
                if state.identities.len() == IDENTITIES_MAX {
                    state.clear();
                }
                state.identities.push(who.clone());
                state.identities.len() - 1
            }
        };
        state.put((identity, parent, name.clone()), dir);
    }

    /// Forgets all directories.
    pub(crate) fn forget_all(&self) {
        self.state.lock().clear();
    }

    /// Forgets a name, for everybody.
    pub(crate) fn forget(&self, parent: Ino, name: &Name) {
        let mut state = self.state.lock();
        for identity in 0..state.identities.len() {
            let key = (identity, parent, name.clone());
            state.young.remove(&key);
            state.old.remove(&key);
        }
    }

    /// Moves on to a newer epoch: forgets the directories that were renamed, and names that were reached
    /// through those that lost rights.
    pub(crate) fn adopt(&self, epoch: NamespaceEpoch, all: bool, changed: &[Ino]) {
        let mut state = self.state.lock();
        if epoch <= state.epoch {
            return;
        }
        state.epoch = epoch;
        if all {
            state.clear();
        } else {
            let stays = |key: &(usize, Ino, Name), dir: &mut Ino| !changed.contains(dir) && !changed.contains(&key.1);
            state.young.retain(stays);
            state.old.retain(stays);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: NamespaceEpoch = NamespaceEpoch(0);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn user(uid: u32) -> Identity {
        Identity { uid, gid: 0, groups: Vec::new() }
    }

    #[test]
    fn each_identity_has_its_own() {
        let dirs = DirCache::default();
        dirs.insert(&user(1), Ino(1), &name("a"), Ino(5), NOW);
        assert_eq!(dirs.get(&user(1), Ino(1), &name("a"), NOW), Some(Ino(5)));
        assert_eq!(dirs.get(&user(2), Ino(1), &name("a"), NOW), None);
        dirs.forget(Ino(1), &name("a"));
        assert_eq!(dirs.get(&user(1), Ino(1), &name("a"), NOW), None);
        for user in [user(1), user(2)] {
            dirs.insert(&user, Ino(1), &name("b"), Ino(6), NOW);
        }
        dirs.forget_all();
        assert_eq!([1, 2].map(|uid| dirs.get(&user(uid), Ino(1), &name("b"), NOW)), [None, None]);
    }

    #[test]
    fn an_answer_with_a_newer_epoch_is_not_remembered() {
        let (dirs, next) = (DirCache::default(), NamespaceEpoch(3));
        dirs.answered(NOW, NOW);
        dirs.insert(&user(1), Ino(1), &name("a"), Ino(5), NOW);
        assert_eq!(dirs.get(&user(1), Ino(1), &name("a"), NOW), Some(Ino(5)));
        dirs.answered(NOW, next);
        dirs.insert(&user(1), Ino(1), &name("b"), Ino(6), NOW);
        assert_eq!(dirs.get(&user(1), Ino(1), &name("b"), NOW), None);
        dirs.adopt(next, true, &[]);
        dirs.insert(&user(1), Ino(1), &name("b"), Ino(6), next);
        assert_eq!(dirs.get(&user(1), Ino(1), &name("b"), next), Some(Ino(6)));
    }

    #[test]
    fn a_new_epoch_takes_what_changed_along() {
        let dirs = DirCache::default();
        for (parent, child) in [(1, 5), (5, 6), (6, 7), (1, 8)] {
            dirs.insert(&user(1), Ino(parent), &name("x"), Ino(child), NOW);
            dirs.insert(&user(1), Ino(parent), &name(&format!("to{child}")), Ino(child), NOW);
        }
        let next = NamespaceEpoch(3);
        dirs.adopt(next, false, &[Ino(5)]);
        assert_eq!(dirs.get(&user(1), Ino(1), &name("to5"), next), None, "it may have been renamed");
        assert_eq!(dirs.get(&user(1), Ino(5), &name("to6"), next), None, "it may have lost rights");
        assert_eq!(dirs.get(&user(1), Ino(6), &name("to7"), next), Some(Ino(7)));
        assert_eq!(
            dirs.get(&user(1), Ino(6), &name("to7"), NOW),
            None,
            "whoever began under the old epoch walks again"
        );
        dirs.adopt(NOW, true, &[]);
        assert_eq!(dirs.epoch(), next, "an epoch never goes back");
        dirs.adopt(NamespaceEpoch(4), true, &[]);
        assert_eq!(dirs.get(&user(1), Ino(6), &name("to7"), NamespaceEpoch(4)), None);
    }

    #[test]
    fn what_was_looked_up_before_a_change_is_not_kept() {
        let dirs = DirCache::default();
        dirs.adopt(NamespaceEpoch(1), false, &[Ino(5)]);
        dirs.insert(&user(1), Ino(1), &name("a"), Ino(5), NOW);
        assert_eq!(dirs.get(&user(1), Ino(1), &name("a"), NamespaceEpoch(1)), None);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let dirs = DirCache::default();
        dirs.insert(&user(1), Ino(1), &name("used"), Ino(2), NOW);
        for i in 0..COMPONENTS_MAX as u64 * 2 {
            dirs.insert(&user(1), Ino(10 + i), &name("x"), Ino(3), NOW);
            if i % 1000 == 0 {
                assert_eq!(dirs.get(&user(1), Ino(1), &name("used"), NOW), Some(Ino(2)));
            }
        }
        let state = dirs.state.lock();
        assert!(state.young.len() + state.old.len() <= COMPONENTS_MAX);
    }

    #[test]
    fn so_are_the_identities() {
        let dirs = DirCache::default();
        for uid in 0..IDENTITIES_MAX as u32 + 1 {
            dirs.insert(&user(uid), Ino(1), &name("x"), Ino(2), NOW);
        }
        assert_eq!(dirs.get(&user(0), Ino(1), &name("x"), NOW), None);
        assert_eq!(dirs.get(&user(IDENTITIES_MAX as u32), Ino(1), &name("x"), NOW), Some(Ino(2)));
    }
}
