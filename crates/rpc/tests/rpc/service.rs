//! A service that counts what takes effect, and ways to ask it.

use aze_io::claims::Claims;
use aze_io::slab::{BASE_BYTES, Payload, ReceiveBuffer, Slab};
use aze_io::sync::Mutex;
use aze_io::{Addr, Io, Listener};
use aze_proto::frame::Header;
use aze_proto::handshake::Secret;
use aze_proto::limits::WIRE_VERSIONS;
use aze_proto::retry::{RetryTable, Verdict};
use aze_proto::{
    Code, Failure, FileKind, Identity, Incarnation, Ino, MapEpoch, Name, NamespaceEpoch, Order, Refusal, Reply,
    Request, ServerIndex, SessionId, ShardId, Time,
};
use aze_rpc::{Answer, Ask, Caller, CallerConfig, Incoming, Proven, ReplyContext, ServeConfig, Service, Target, serve};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub const SECRET: Secret = Secret([7; 32]);

#[derive(Default)]
pub struct Seen {
    /// How often each name was removed.
    pub effects: BTreeMap<Name, u32>,
    /// How often requests came, copies included.
    pub requests: u64,
    pub opened: u32,
    pub closed: u32,
    pub refused: Vec<String>,
    /// Requests to be refused because too many wait.
    pub refuse_next: u32,
    /// How often it was asked where a payload shall go.
    pub receive_buffers: u32,
    /// Payloads that came in frames.
    pub in_frames: u32,
    /// Requests to be left without an answer.
    pub ignore_next: u32,
    /// Changes that it does not know are refused by a map of this epoch.
    pub stale: Option<MapEpoch>,
    /// How changes ended.
    pub retries: BTreeMap<ShardId, RetryTable<Reply>>,
}

/// Removes names (`Unlink`) and tells about them (`Lookup`), the answer late and in any order.
pub struct Counting {
    io: Io,
    pub seen: Mutex<Seen>,
    /// Longest time until an answer, in nanoseconds; 0 answers at once.
    pub late_ns_max: u64,
    /// Payloads go here.
    pub slab: Arc<Slab>,
    /// When its life began.
    began: MapEpoch,
}

impl Counting {
    pub fn new(io: &Io, late_ns_max: u64) -> Arc<Counting> {
        Counting::of_life(io, late_ns_max, MapEpoch(3))
    }

    pub fn of_life(io: &Io, late_ns_max: u64, began: MapEpoch) -> Arc<Counting> {
        let slab = Slab::new(16 << 20).unwrap();
        Arc::new(Counting { io: io.clone(), seen: Mutex::default(), late_ns_max, slab, began })
    }

    fn answer(&self, incoming: &Incoming) -> Option<Result<Reply, Failure>> {
        let mut seen = self.seen.lock();
        seen.requests += 1;
        if seen.ignore_next > 0 {
            seen.ignore_next -= 1;
            return None;
        }
        if seen.refuse_next > 0 {
            seen.refuse_next -= 1;
            return Some(Err(Failure::refused(Refusal::TooManyPending)));
        }
        let header = &incoming.header;
        let seen = &mut *seen;
        Some(match &incoming.request {
            Request::Unlink { name, .. } | Request::Rmdir { name, .. } => {
                let retries = seen.retries.entry(header.shard).or_default();
                match retries.check(header.session, header.sequence, header.floor) {
                    Verdict::Done(reply) => Ok(reply),
                    Verdict::TooOld => Err(Failure::from(Code::Replayed)),
                    Verdict::Full => Err(Failure::refused(Refusal::TooManyPending)),
                    Verdict::New if seen.stale.is_some() => {
                        Err(Failure::refused(Refusal::MapStale { epoch: seen.stale.unwrap_or_default() }))
                    }
                    Verdict::New => {
                        *seen.effects.entry(name.clone()).or_default() += 1;
                        retries.record(header.session, header.sequence, header.floor, Reply::Done);
                        Ok(Reply::Done)
                    }
                }
            }
            Request::Lookup { parent, .. } => {
                Ok(Reply::Entry { ino: *parent, kind: FileKind::File, attr: None, created: false })
            }
            other => Err(Failure::new(Code::Unsupported, other.name())),
        })
    }
}

impl Service for Counting {
    fn receive_buffer(&self, header: &Header, request: &Request, payload_bytes: usize) -> Option<ReceiveBuffer> {
        assert!(header.session != SessionId(0) && matches!(request, Request::Lookup { .. }));
        self.seen.lock().receive_buffers += 1;
        self.slab.receive_buffer(0, payload_bytes / BASE_BYTES, payload_bytes % BASE_BYTES)
    }

    fn request(self: Arc<Self>, incoming: Incoming) {
        let Some(answer) = self.answer(&incoming) else { return };
        let time = Time(incoming.header.time.0.max(self.io.wall_ns()) + 1);
        let context = ReplyContext {
            map_epoch: MapEpoch(3),
            namespace_epoch: NamespaceEpoch(4),
            time,
            order: Order(incoming.header.order.0 + 7),
            ..ReplyContext::default()
        };
        self.seen.lock().in_frames += u32::from(matches!(incoming.payload, Payload::Frames(_)));
        let echo = incoming.payload.into_bytes();
        if self.late_ns_max == 0 {
            return incoming.responder.send(context, answer, &[&echo]);
        }
        let (io, late_ns_max) = (self.io.clone(), self.late_ns_max);
        self.io.spawn(async move {
            io.sleep(Duration::from_nanos(io.random_u64() % late_ns_max)).await;
            incoming.responder.send(context, answer, &[&echo]);
        });
    }

    fn session_opened(&self, who: &Arc<Proven>, _claims: Option<Claims>) {
        assert_eq!((who.job.as_str(), who.server), ("job", false));
        self.seen.lock().opened += 1;
    }

    fn session_closed(&self, _who: &Arc<Proven>) {
        self.seen.lock().closed += 1;
    }

    fn began(&self) -> MapEpoch {
        self.began
    }

    fn peer_refused(&self, _peer: &str, why: &str) {
        self.seen.lock().refused.push(why.into());
    }
}

pub fn start(io: &Io, addr: &Addr, service: &Arc<Counting>) -> Box<dyn Listener> {
    start_with(io, addr, service, SECRET, "v").unwrap()
}

pub fn start_with(
    io: &Io,
    addr: &Addr,
    service: &Arc<Counting>,
    secret: Secret,
    volume: &str,
) -> Result<Box<dyn Listener>, aze_io::NetError> {
    // Over local sockets a server lets in only its own user and root: here the user of the test.
    serve(
        io,
        addr,
        &ServeConfig { secret, volume: volume.into(), versions: WIRE_VERSIONS, uid: own_uid(), published: None },
        service.clone(),
    )
}

fn own_uid() -> u32 {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap())
}

pub fn config(secret: Secret, session: u64) -> CallerConfig {
    let (volume, job, host) = ("v".into(), "job".into(), "here".into());
    CallerConfig {
        secret,
        volume,
        versions: WIRE_VERSIONS,
        session: SessionId(session),
        server: false,
        job,
        host,
        transport: aze_io::Transport::Auto,
        start_time_max: std::time::Duration::from_secs(60),
        order: Arc::default(),
    }
}

pub fn caller(io: &Io, session: u64) -> Arc<Caller> {
    Caller::new(io.clone(), config(SECRET, session))
}

pub fn target(index: u16, host: &str, addresses: &[&str]) -> Target {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    Target { index: ServerIndex(index), host: host.into(), addresses, life: (MapEpoch(0), Incarnation(0)) }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub async fn ask(
    caller: &Caller,
    to: &Target,
    shard: u32,
    request: &Request,
    payload: &[u8],
    seconds: u64,
) -> Result<Answer, Failure> {
    let identity = Identity { uid: 1, gid: 2, groups: vec![3] };
    let deadline = Duration::from_secs(seconds);
    let (shard, map_epoch, namespace_epoch) = (ShardId(shard), MapEpoch(1), NamespaceEpoch(2));
    caller.ask(Ask { to, shard, map_epoch, namespace_epoch, identity: &identity, request, payload, deadline }).await
}

pub async fn unlink(caller: &Caller, to: &Target, shard: u32, text: &str, seconds: u64) -> Result<Answer, Failure> {
    ask(caller, to, shard, &Request::Unlink { parent: Ino::ROOT, name: name(text) }, &[], seconds).await
}

pub async fn lookup(caller: &Caller, to: &Target, ino: u64, payload: &[u8], seconds: u64) -> Result<Answer, Failure> {
    ask(caller, to, 0, &Request::Lookup { parent: Ino(ino), name: name("x") }, payload, seconds).await
}
