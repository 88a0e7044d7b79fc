//! Files that clients of this node open through this server, by its own client of the volume (FINCHFS, "contact servers").

use crate::coherence::state::through::{IsTold, Through, Wanted};
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_proto::wire::Blob;
use aze_proto::{Code, Failure, Ino, Reply};
use futures_util::FutureExt;
use std::sync::Arc;

/// The path of a file that a client of this node opens.
#[derive(Clone, Copy)]
pub(crate) struct OpenedAt<'a> {
    /// The directory where the path begins.
    pub(crate) dir: Ino,
    pub(crate) path: &'a [u8],
    /// A symbolic link at the path's end is followed.
    pub(crate) follow: bool,
}

impl Server {
    /// Opens a file for a client of this node, until that closes it or its session ends.
    pub(crate) fn open_through(
        self: &Arc<Self>,
        work: &Work,
        at: OpenedAt<'_>,
        handle: u64,
        contents: bool,
    ) -> Attempt<Output> {
        let Some(contact) = self.config.contact.clone() else {
            let detail = format!("{}: it opens no files for clients of its node", self.who());
            return Err(Failure::new(Code::Unsupported, detail).into());
        };
        // A change of paths that neither knows yet has not been acknowledged.
        let epoch = work.header.namespace_epoch.max(self.namespace_epoch());
        let OpenedAt { dir, path, follow } = at;
        let (who, path) = (work.identity.clone(), path.to_vec());
        let me = self.me.clone();
        let is_told: IsTold = Arc::new(move |dir| match me.upgrade() {
            Some(server) => server.is_told_of(dir).boxed(),
            None => async { false }.boxed(),
        });
        let wanted = Wanted { map: self.map(), who, dir, path, follow, contents, epoch, is_told };
        let (server, session) = (self.clone(), work.session);
        then(async move {
            let Through { attr, is_shared, contents, held } = contact.open(wanted).await?;
            if !server.opened.keep(session, handle, held) {
                return Err(Failure::new(Code::Replayed, "a late copy of an open that was closed"));
            }
            if !server.sessions.is_connected(session) {
                // It may have ended meanwhile. If it is back it asks again.
                server.opened.forget(session);
            }
            Ok(Reply::OpenedThrough { attr, is_shared, contents: contents.map(Blob) })
        })
    }

    /// Whether this server is told of changes of paths through a directory before they are decided: it gets the directory's stub for that, if it
    /// does not have it.
    async fn is_told_of(self: Arc<Self>, dir: Ino) -> bool {
        if self.directories.know(dir).is_ok() || self.config.switches.is(Sabotage::BelieveNamesUntold) {
            return true;
        }
        let until_ns = self.io.mono_ns() + self.config.deadline.as_nanos() as u64;
        self.fetch_stub(dir, until_ns).await.is_ok() && self.directories.know(dir).is_ok()
    }

    /// Closes files that a session has opened through this server.
    pub(crate) fn close_through(&self, work: &Work, handles: &[u64]) -> Reply {
        self.opened.close(work.session, handles);
        Reply::Done
    }

    /// How many files clients have open through this server.
    pub fn opened_through(&self) -> usize {
        self.opened.count()
    }
}
