//! The rights of the root: every server knows them, so that names in the root are made, found and removed when its home has ended
//! (decision 0118). Servers that have been told them are no holders: the root's attributes and names are not asked of them.

use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_proto::{Code, Failure, Ino, Reply, Request, ServerIndex, SessionId, ShardId, Stub};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a server is told again that has not confirmed.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

impl Server {
    /// This server serves: it tells the rights of the root, if that is here.
    pub(crate) fn begin_telling_root_rights(self: &Arc<Self>) {
        *self.root_told.lock() = Some(Default::default());
        self.tell_root_rights();
    }

    /// Tells each process of a server once, in the background: one that has come by this map, and all if the root has come here.
    pub(crate) fn tell_root_rights(self: &Arc<Self>) {
        let map = self.map();
        if map.home_of(Ino::ROOT) != Some(self.slot()) {
            if let Some(told) = self.root_told.lock().as_mut() {
                told.clear();
            }
            return;
        }
        let mut told = self.root_told.lock();
        let Some(told) = told.as_mut() else { return };
        for server in self.living().into_iter().filter(|server| *server != self.slot()) {
            let Some(session) = map.server(server).map(|info| info.session) else { continue };
            if told.insert(server, session) != Some(session) {
                let this = self.clone();
                self.io.spawn(async move { this.tell_root_rights_to(server, session).await });
            }
        }
    }

    async fn tell_root_rights_to(self: Arc<Self>, server: ServerIndex, session: SessionId) {
        loop {
            let map = self.map();
            let is_there = map.server(server).is_some_and(|info| info.session == session) && !map.is_gone(server);
            if !is_there || map.home_of(Ino::ROOT) != Some(self.slot()) || self.is_stopping() {
                return;
            }
            // Without one the root is still being taken into use here.
            if let Some(stub) = self.root_stub()
                && self.ask(server, ShardId(0), Request::StubUpdate { stub }).await.is_ok()
            {
                return;
            }
            self.io.sleep(AGAIN_PAUSE).await;
        }
    }

    /// The rights of the root, whose home is here, in a version that no earlier life of this server has given.
    fn root_stub(&self) -> Option<Stub> {
        let began = self.map().home_since(Ino::ROOT);
        {
            let mut names = self.shards.home(Ino::ROOT)?.names.lock();
            let holders = names.holders.entry(Ino::ROOT).or_default();
            holders.version = holders.version.max(u64::from(began.0) << 32);
        }
        self.stub_now(Ino::ROOT)
    }

    /// The home of a directory, which is another server, says its rights. Those of the root are on this server's disk when that is answered.
    pub(crate) fn stub_updated(self: &Arc<Self>, stub: &Stub) -> Attempt<Output> {
        self.directories.update(stub.clone());
        if stub.ino != Ino::ROOT || self.persistence.is_none() {
            return Ok(Reply::Done.into());
        }
        let server = self.clone();
        then(async move { server.keep_root_rights().await.map(|()| Reply::Done) })
    }

    /// For a client that cannot ask the root's home.
    pub(crate) fn root_rights(&self) -> Attempt<Output> {
        let stub = self.stub_now(Ino::ROOT).or_else(|| self.directories.root()).ok_or_else(|| {
            let detail =
                format!("{}: the root's home had not told it the rights of the root when that ended", self.who());
            Failure::new(Code::Unreachable, detail)
        })?;
        Ok(Reply::StubGranted { stub }.into())
    }
}
