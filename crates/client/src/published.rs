//! Answers that a server of this node lets this process read without a request.
//!
//! It alone knows which of them this client may take: of names only in directories in which the server has
//! let the same user look one up by a request, and whose state has been the same since. Who may
//! search a directory so remains the server's to decide. Everything that is not to be had this way is asked for.

use crate::client::Core;
use crate::names::Entry;
use crate::route::{Knowing, Place};
use aze_io::sync::Mutex;
use aze_proto::{Attr, Identity, Ino, Name, ServerIndex, Time};
use aze_rpc::published::{Known, Named, PublishedIndex, Seen};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Directories remembered; one more, and all are forgotten, which costs a request each.
const DIRECTORIES_MAX: usize = 4096;

/// Identities told apart, likewise.
const IDENTITIES_MAX: usize = 64;

/// In which directories who was let look names up.
#[derive(Default)]
pub(crate) struct Entered {
    state: Mutex<Table>,
    /// Answers that took no request.
    answers: AtomicU64,
}

#[derive(Default)]
struct Table {
    identities: Vec<Identity>,
    /// The state of each directory at that time, at each server.
    directories: BTreeMap<(usize, Ino, ServerIndex), u64>,
}

impl Table {
    fn identity(&self, who: &Identity) -> Option<usize> {
        self.identities.iter().position(|known| known == who)
    }
}

impl Entered {
    /// Whether `who` was let in while the directory was in this state.
    fn was_let(&self, who: &Identity, dir: Ino, directory: State) -> bool {
        let state = self.state.lock();
        let known = state.identity(who).and_then(|identity| state.directories.get(&(identity, dir, directory.server)));
        known == Some(&directory.number)
    }

    /// The state of the directory in which `who` was let in last.
    pub(crate) fn state_of(&self, who: &Identity, dir: Ino, server: ServerIndex) -> Option<u64> {
        let state = self.state.lock();
        state.directories.get(&(state.identity(who)?, dir, server)).copied()
    }

    /// `who` was let in, after the directory had been seen in this state.
    pub(crate) fn let_in(&self, who: &Identity, dir: Ino, directory: State) {
        let mut state = self.state.lock();
        if state.directories.len() >= DIRECTORIES_MAX || state.identities.len() >= IDENTITIES_MAX {
            *state = Table::default();
        }
        let identity = state.identity(who).unwrap_or_else(|| {
            state.identities.push(who.clone());
            state.identities.len() - 1
        });
        state.directories.insert((identity, dir, directory.server), directory.number);
    }

    /// Forgets who was let in.
    pub(crate) fn forget_all(&self) {
        *self.state.lock() = Table::default();
    }

    /// How many answers took no request.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

/// The state of a directory as a server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    server: ServerIndex,
    number: u64,
}

/// The records read for a name.
pub(crate) enum Looked {
    /// The answer.
    Found(Entry),
    /// The answer, too: it does not exist.
    Missing,
    /// It has to be asked for. If it is answered then the asker was let into the directory, whose
    /// state was this before.
    Ask(Option<State>),
}

/// The record of a file, as it was at one moment.
pub(crate) struct Witness {
    /// Which file it is.
    pub(crate) ino: Ino,
    index: PublishedIndex,
    seen: Seen,
    known: Known,
}

impl Core {
    fn published(&self, place: Place<'_>) -> Option<(ServerIndex, PublishedIndex, Known)> {
        let (server, published, map_epoch) = {
            let routes = self.routes.read();
            let (_, server) = routes.locate(place).ok()?;
            (server.target.index, self.caller.published(&server.target)?, routes.map.epoch)
        };
        let believes = self.leases.are_wanted();
        if believes {
            // The client claims records before it believes them, and servers tell claimants of changes.
            self.listen_to(server);
        }
        Some((server, published, Known { map_epoch, namespace_epoch: None, believes }))
    }

    /// Whether the server of a name has an index for this client.
    pub(crate) fn is_published(&self, parent: Ino, name: &Name) -> bool {
        self.published(Place::Entry(parent, name)).is_some()
    }

    /// Takes over an answer that was read.
    fn read(&self, attr: Attr) -> Attr {
        self.answered(attr.ctime);
        self.inodes.learn(&attr);
        attr
    }

    /// An answer took no request.
    fn answered(&self, time: Time) {
        // Later changes by this client are dated after this.
        self.caller.observe_time(time);
        self.entered.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Looks a name up where that takes no request.
    pub(crate) fn look(&self, who: &Identity, parent: Ino, name: &Name, knowing: Knowing) -> Looked {
        let Some((server, published, known)) = self.published(Place::Entry(parent, name)) else {
            return Looked::Ask(None);
        };
        let epoch = match knowing {
            Knowing::Since(epoch) => epoch,
            Knowing::Latest => self.dirs.epoch(),
        };
        let known = Known { namespace_epoch: Some(epoch), ..known };
        let Some(found) = published.lookup(parent, name, known) else { return Looked::Ask(None) };
        let directory = State { server, number: found.directory };
        match found.named {
            Named::File(_) | Named::Nothing(_) if !self.entered.was_let(who, parent, directory) => {}
            Named::File(attr) => {
                let attr = self.read(attr);
                return Looked::Found(Entry { ino: attr.ino, kind: attr.kind, attr: Some(attr), created: false });
            }
            Named::Nothing(time) => {
                self.answered(time);
                return Looked::Missing;
            }
            Named::Unknown => {}
        }
        Looked::Ask(Some(directory))
    }

    /// Reads a file's attributes in its record, and notes the record; `None` where there is none.
    pub(crate) fn record(&self, ino: Ino) -> Option<(Attr, Witness)> {
        let (_, index, known) = self.published(Place::Home(ino))?;
        let known = Known { believes: false, ..known };
        let (attr, seen) = index.record(ino, known)?;
        Some((attr, Witness { ino, index, seen, known }))
    }

    /// Notes the record of a file of 1 to `bytes_max` bytes before it is opened; `None` where there is none.
    pub(crate) fn witness(&self, ino: Ino, bytes_max: u64) -> Option<Witness> {
        let (attr, witness) = self.record(ino)?;
        (1..=bytes_max).contains(&attr.size).then_some(witness)
    }

    /// Whether the file is unchanged since its record was noted.
    pub(crate) fn is_unchanged(&self, witness: &Witness) -> bool {
        // By a newer map another server may have the file.
        witness.known.map_epoch == self.routes.read().map.epoch
            && witness.index.is_unchanged(witness.seen, witness.known)
    }

    /// The attributes of a regular file, where that takes no request.
    pub(crate) fn look_at(&self, ino: Ino) -> Option<Attr> {
        let (_, published, known) = self.published(Place::Home(ino))?;
        Some(self.read(published.inode(ino, known)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Identity {
        Identity { uid, gid: 0, groups: Vec::new() }
    }

    #[test]
    fn who_was_let_in_is_known_for_one_state_of_one_directory() {
        let entered = Entered::default();
        let state = |number| State { server: ServerIndex(1), number };
        entered.let_in(&user(1), Ino(5), state(77));
        assert!(entered.was_let(&user(1), Ino(5), state(77)));
        assert!(!entered.was_let(&user(2), Ino(5), state(77)), "somebody else");
        assert!(!entered.was_let(&user(1), Ino(6), state(77)), "another directory");
        assert!(!entered.was_let(&user(1), Ino(5), state(78)), "its rights may have changed");
        entered.let_in(&user(1), Ino(5), State { server: ServerIndex(2), number: 80 });
        assert!(entered.was_let(&user(1), Ino(5), state(77)), "each server has a state of its own");
        entered.let_in(&user(1), Ino(5), state(78));
        assert!(!entered.was_let(&user(1), Ino(5), state(77)));
        entered.forget_all();
        assert!(!entered.was_let(&user(1), Ino(5), state(78)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let entered = Entered::default();
        for number in 0..3 * DIRECTORIES_MAX as u64 {
            entered.let_in(&user(number as u32 % 100), Ino(number), State { server: ServerIndex(0), number });
            let state = entered.state.lock();
            assert!(state.directories.len() <= DIRECTORIES_MAX && state.identities.len() <= IDENTITIES_MAX);
        }
    }
}
