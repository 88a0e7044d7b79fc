//! What clients of this node have opened through this server, and the client of its own that opens it.

use aze_io::sync::Mutex;
use aze_proto::{Attr, Failure, Identity, Ino, NamespaceEpoch, SessionId, ShardMap};
use futures_util::future::BoxFuture;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Closes remembered for each session, so that a late copy of an open opens nothing any more. A copy that is later still stays open until
/// its session ends.
const CLOSED_MAX: usize = 64;

/// A client of the volume beside a server: opens files for reading on behalf of the clients of its node, one that several of them open
/// once for all.
pub trait Contact: Send + Sync {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// Those of an open by its path.
    fn open(self: Arc<Self>, wanted: Wanted) -> BoxFuture<'static, Result<Through, Failure>>;
}

/// Whether the server is told before a path through this directory changes.
pub type IsTold = Arc<dyn Fn(Ino) -> BoxFuture<'static, bool> + Send + Sync>;

/// A file to be opened.
pub struct Wanted {
    /// The map as the server knows it.
    pub map: Arc<ShardMap>,
    /// On whose behalf.
    pub who: Identity,
    /// Where the path begins.
    pub dir: Ino,
    /// The path.
    pub path: Vec<u8>,
    /// A symbolic link at its end is followed.
    pub follow: bool,
    /// The contents of a small file are wanted, too.
    pub contents: bool,
    /// The epoch of the namespace: paths that were found earlier may be wrong.
    pub epoch: NamespaceEpoch,
    /// A name leads to the same file as before, without a request, only in a directory for which this gives true.
    pub is_told: IsTold,
}

/// A file that was opened.
pub struct Through {
    /// Its attributes.
    pub attr: Attr,
    /// It was opened more than once lately.
    pub is_shared: bool,
    /// All of its contents, if they came along.
    pub contents: Option<Vec<u8>>,
    /// The open, which ends with this.
    pub held: Box<dyn Any + Send + Sync>,
}

/// The opens that sessions have here.
#[derive(Default)]
pub(crate) struct Opened {
    sessions: Mutex<BTreeMap<SessionId, OfSession>>,
}

#[derive(Default)]
struct OfSession {
    opens: BTreeMap<u64, Box<dyn Any + Send + Sync>>,
    closed: VecDeque<u64>,
}

impl Opened {
    /// Keeps an open until it is closed; `false` if it was.
    pub(crate) fn keep(&self, session: SessionId, handle: u64, held: Box<dyn Any + Send + Sync>) -> bool {
        let mut sessions = self.sessions.lock();
        let of = sessions.entry(session).or_default();
        if of.closed.contains(&handle) {
            return false;
        }
        // A copy of the request may have opened it before.
        let earlier = of.opens.insert(handle, held);
        drop(sessions);
        drop(earlier);
        true
    }

    /// Closes opens of a session.
    pub(crate) fn close(&self, session: SessionId, handles: &[u64]) {
        let mut sessions = self.sessions.lock();
        let of = sessions.entry(session).or_default();
        let ended: Vec<_> = handles.iter().filter_map(|handle| of.opens.remove(handle)).collect();
        of.closed.extend(handles);
        let too_many = of.closed.len().saturating_sub(CLOSED_MAX);
        of.closed.drain(..too_many);
        drop(sessions);
        drop(ended);
    }

    /// Closes all that a session has open.
    pub(crate) fn forget(&self, session: SessionId) {
        let ended = self.sessions.lock().remove(&session);
        drop(ended);
    }

    /// How many opens there are.
    pub(crate) fn count(&self) -> usize {
        self.sessions.lock().values().map(|of| of.opens.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;

    fn open() -> (Box<dyn Any + Send + Sync>, Weak<()>) {
        let open = Arc::new(());
        (Box::new(open.clone()), Arc::downgrade(&open))
    }

    #[test]
    fn an_open_ends_with_its_close_or_its_session() {
        let (opened, session) = (Opened::default(), SessionId(1));
        let ((one, first), (two, second), (three, third)) = (open(), open(), open());
        assert!(opened.keep(session, 1, one) && opened.keep(session, 2, two) && opened.keep(SessionId(2), 1, three));
        opened.close(session, &[1]);
        assert_eq!((first.strong_count(), second.strong_count(), third.strong_count(), opened.count()), (0, 1, 1, 2));
        opened.forget(session);
        assert_eq!((second.strong_count(), third.strong_count(), opened.count()), (0, 1, 1));
    }

    #[test]
    fn a_late_copy_of_an_open_opens_nothing() {
        let (opened, session) = (Opened::default(), SessionId(1));
        let ((one, first), (copy, second), (late, third)) = (open(), open(), open());
        assert!(opened.keep(session, 1, one) && opened.keep(session, 1, copy));
        assert_eq!((first.strong_count(), second.strong_count()), (0, 1), "one open for all copies of a request");
        opened.close(session, &[1]);
        assert!(!opened.keep(session, 1, late), "it was closed");
        assert_eq!((second.strong_count(), third.strong_count()), (0, 0));
        for handle in 2..1000 {
            opened.close(session, &[handle]);
        }
        assert_eq!(opened.sessions.lock()[&session].closed.len(), CLOSED_MAX);
    }
}
