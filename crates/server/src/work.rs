//! A request in progress, and what an attempt at it came to: for the dispatcher, which attempts, and for the handlers.

use crate::chunks::state::backed::Runs;
use crate::membership::state::activity::Timed;
use crate::membership::state::moving::UnderWay;
use crate::names::state::turns::Turn;
use crate::state::Server;
use crate::wait::Attempt;
use aze_io::slab::Payload;
use aze_meta::Stamp;
use aze_proto::frame::{Header, Kind};
use aze_proto::{Attr, Failure, Identity, Ino, Reply, Request, Sequence, SessionId, ShardId, Time};
use aze_rpc::{Incoming, Responder};
use aze_store::Held;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a write is tried again that found memory full and readers in its way: longer than
/// it takes to send one chunk.
pub(crate) const READERS_PAUSE: Duration = Duration::from_millis(1);

/// Pause before a change of a frozen file is tried again: its name goes within a round trip or two.
pub(crate) const FROZEN_PAUSE: Duration = Duration::from_millis(2);

/// What the handler of a request in progress needs besides the request's own fields. These it gets as arguments: they
/// are no part of the work, so that it can change the work while it looks at them.
pub(crate) struct Work {
    pub(crate) header: Header,
    pub(crate) identity: Identity,
    pub(crate) payload: Payload,
    pub(crate) session: SessionId,
    /// Time, session and sequence of the change.
    pub(crate) stamp: Stamp,
    /// Whether an applied operation has recorded the reply already.
    pub(crate) recorded: bool,
    /// Owners of inodes elsewhere, learnt while waiting.
    pub(crate) owners: BTreeMap<Ino, u32>,
    /// Where data of the file are in the backing, learnt while waiting.
    pub(crate) runs: Runs,
    /// The file's turn, where the request had to wait for it.
    pub(crate) turn: Option<Turn>,
    /// When the client will have given up, on the monotonic clock.
    pub(crate) deadline_ns: u64,
    /// The answer comes with leases of all that it says.
    pub(crate) leased: bool,
    pub(crate) responder: Option<Responder>,
    /// Takes the time until the request is done with.
    pub(crate) timed: Option<Arc<Timed>>,
    /// Counts the request as one that is being worked on.
    pub(crate) under_way: Option<UnderWay>,
}

/// An open with contents, on its way out.
pub(crate) struct Contents {
    pub(crate) attr: Attr,
    pub(crate) held: Held,
    /// The answer to a repeated request: contents are not kept for that.
    pub(crate) plain: Reply,
}

/// What an attempt came to.
pub(crate) enum Output {
    /// The reply.
    Reply(Reply),
    /// The reply has been sent, with its payload.
    Sent,
    /// The file is open; its contents go out with the reply.
    Contents(Box<Contents>),
    /// The rest takes other servers.
    Then(Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>>),
}

impl From<Reply> for Output {
    fn from(reply: Reply) -> Output {
        Output::Reply(reply)
    }
}

/// Makes the rest of a request from a future.
pub(crate) fn then(rest: impl Future<Output = Result<Reply, Failure>> + Send + 'static) -> Attempt<Output> {
    Ok(Output::Then(Box::pin(rest)))
}

impl Work {
    /// A request of this server to itself, with the rights of the volume.
    pub(crate) fn local(server: &Server, shard: ShardId) -> Work {
        let (map_epoch, namespace_epoch) = (server.map_epoch_now(), server.namespace_epoch());
        let header = Header { shard, map_epoch, namespace_epoch, ..Header::new(Kind::Request, 0) };
        let session = server.session();
        let stamp =
            Stamp { time: server.clock.next(&server.io, Time(0)), session, sequence: Sequence(0), floor: Sequence(0) };
        Work {
            header,
            identity: Identity::default(),
            payload: Payload::default(),
            session,
            stamp,
            recorded: false,
            owners: BTreeMap::new(),
            runs: Runs::default(),
            turn: None,
            leased: false,
            deadline_ns: server.io.mono_ns() + server.config.deadline.as_nanos() as u64,
            responder: None,
            timed: None,
            under_way: None,
        }
    }

    pub(crate) fn incoming(server: &Server, incoming: Incoming) -> (Request, Work) {
        let Incoming { header, identity, request, payload, who, responder } = incoming;
        let identity = server.proven_identity(identity, &who);
        let sequence = if request.is_change() { header.sequence } else { Sequence(0) };
        let stamp = Stamp {
            time: server.clock.next(&server.io, header.time),
            session: who.session,
            sequence,
            floor: header.floor,
        };
        let work = Work {
            deadline_ns: server.io.mono_ns() + u64::from(header.deadline_ms) * 1_000_000,
            header,
            identity,
            payload,
            session: who.session,
            stamp,
            recorded: false,
            owners: BTreeMap::new(),
            runs: Runs::default(),
            turn: None,
            leased: false,
            responder: Some(responder),
            timed: None,
            under_way: None,
        };
        (request, work)
    }

    /// What a second half of the request needs to wait, with its rights, time and deadline.
    pub(crate) fn to_wait(&self, server: &Server) -> Work {
        let local = Work::local(server, self.header.shard);
        let timed = self.timed.clone();
        Work { identity: self.identity.clone(), stamp: self.stamp, deadline_ns: self.deadline_ns, timed, ..local }
    }

    pub(crate) fn is_recorded_change(&self) -> bool {
        self.stamp.sequence != Sequence(0)
    }
}
