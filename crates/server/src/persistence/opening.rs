//! A server that listens while it reads its storage: connections stand, and requests are told to come again.
//!
//! Without it clients would not know whether a server that refuses connections is being started or is gone for good.

use crate::state::Server;
use aze_io::claims::Claims;
use aze_io::slab::ReceiveBuffer;
use aze_io::sync::Mutex;
use aze_proto::frame::Header;
use aze_proto::{Failure, MapEpoch, Refusal, Request, ServerIndex};
use aze_rpc::{Incoming, Proven, ReplyContext, Service};
use std::sync::{Arc, OnceLock};

/// What a request is told that comes before the server can serve it.
pub(crate) fn starting(slot: ServerIndex) -> Failure {
    let detail = format!("server {slot} is still starting");
    Failure { detail, ..Failure::refused(Refusal::Starting) }
}

/// Takes requests in place of a server until that is there, and hands them on from then on.
pub(crate) struct Opening {
    slot: ServerIndex,
    server: OnceLock<Arc<Server>>,
    /// The connections that stand before the server is there.
    early: Mutex<Vec<(Arc<Proven>, Option<Claims>)>>,
}

impl Opening {
    pub(crate) fn new(slot: ServerIndex) -> Arc<Opening> {
        Arc::new(Opening { slot, server: OnceLock::new(), early: Mutex::default() })
    }

    /// The server is there; it is told of the connections that stand.
    pub(crate) fn open(&self, server: &Arc<Server>) {
        let mut early = self.early.lock();
        for (who, claims) in early.drain(..) {
            server.session_opened(&who, claims);
        }
        assert!(self.server.set(server.clone()).is_ok(), "a server is made once");
    }
}

impl Service for Opening {
    fn request(self: Arc<Self>, incoming: Incoming) {
        match self.server.get() {
            Some(server) => server.clone().request(incoming),
            None => incoming.responder.send(ReplyContext::default(), Err(starting(self.slot)), &[]),
        }
    }

    fn receive_buffer(&self, header: &Header, request: &Request, payload_bytes: usize) -> Option<ReceiveBuffer> {
        self.server.get()?.receive_buffer(header, request, payload_bytes)
    }

    fn session_opened(&self, who: &Arc<Proven>, claims: Option<Claims>) {
        if self.server.get().is_none() {
            let mut early = self.early.lock();
            // It may have come meanwhile.
            if self.server.get().is_none() {
                early.push((who.clone(), claims));
                return;
            }
        }
        if let Some(server) = self.server.get() {
            server.session_opened(who, claims);
        }
    }

    fn session_closed(&self, who: &Arc<Proven>) {
        if self.server.get().is_none() {
            let mut early = self.early.lock();
            if self.server.get().is_none() {
                early.retain(|(other, _)| !Arc::ptr_eq(other, who));
                return;
            }
        }
        if let Some(server) = self.server.get() {
            server.session_closed(who);
        }
    }

    fn began(&self) -> MapEpoch {
        self.server.get().map_or(MapEpoch(0), |server| server.began())
    }

    fn peer_refused(&self, peer: &str, why: &str) {
        if let Some(server) = self.server.get() {
            server.peer_refused(peer, why);
        }
    }
}
