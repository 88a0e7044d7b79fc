//! The answering side: accepts clients that prove to know the secret, and hands on their requests.
//!
//! It alone checks frames, before any other part looks at the requests in them.

use crate::handshake::{Challenged, Keys, Knock, Turned, open_step, seal_refusal, seal_step};
use crate::{HANDSHAKE_TIME_MAX, LIMITS_AFTER_HANDSHAKE};
use aze_io::claims::Claims;
use aze_io::slab::{Payload, ReceiveBuffer};
use aze_io::sync::Mutex;
use aze_io::{
    Acceptor, Addr, Connection, Credentials, FRAMES_PAYLOAD_BYTES_MIN, Frame, Handler, Io, Listener, NetError,
    published, slab,
};
use aze_proto::frame::{self, FrameKey, Header, Kind};
use aze_proto::handshake::{Secret, Step, Versions};
use aze_proto::limits::{HEAD_BYTES_MAX, PAYLOAD_BYTES_MAX};
use aze_proto::message::Envelope;
use aze_proto::wire::{Malformed, Wire};
use aze_proto::{Code, Failure, Identity, MapEpoch, NamespaceEpoch, Order, Reply, Request, SessionId, Time};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};

/// Connections of one listener that have not proven that they know the secret. When there are more the oldest is
/// closed.
pub const UNPROVEN_MAX: usize = 256;

/// What answers requests.
pub trait Service: Send + Sync + 'static {
    /// A request came. Called by a thread that drives the runtime: must not block; work that takes long
    /// belongs in a task. The same change may come again while the first copy is still at work.
    fn request(self: Arc<Self>, incoming: Incoming);

    /// Where the payload of a request shall go, so many bytes, which has not come yet; `None`: to a buffer. The client
    /// is proven, and has sent this head; [`Service::request`] follows, unless the connection ends before.
    fn receive_buffer(&self, header: &Header, request: &Request, payload_bytes: usize) -> Option<ReceiveBuffer> {
        let _ = (header, request, payload_bytes);
        None
    }

    /// A connection of a session stands; comes before the connection's first request. A session
    /// may have several connections, each with a `Proven` of its own.
    fn session_opened(&self, who: &Arc<Proven>, claims: Option<Claims>);

    /// A connection of a session has ended; its last request has been handed over before.
    fn session_closed(&self, who: &Arc<Proven>);

    /// The map epoch at which the server's life began, told at the handshake; 0 until it is in the map.
    fn began(&self) -> MapEpoch;

    /// A connection was closed because of a frame that came over it: for counters and logs.
    fn peer_refused(&self, peer: &str, why: &str) {
        let _ = (peer, why);
    }
}

/// What came over a connection, as the service counts it.
#[derive(Debug, Default)]
pub struct Usage {
    /// Requests.
    pub requests: AtomicU64,
    /// Bytes that were asked for.
    pub read_bytes: AtomicU64,
    /// Bytes that were sent.
    pub written_bytes: AtomicU64,
}

/// What the handshake has proven about the other end of a connection.
#[derive(Debug)]
pub struct Proven {
    /// The process, from its start to its end.
    pub session: SessionId,
    /// It is a server of the volume.
    pub server: bool,
    /// Name of the job that is accounted.
    pub job: String,
    /// What the kernel says of it; only on local sockets.
    pub credentials: Option<Credentials>,
    /// For messages to people.
    pub peer: String,
    /// Its requests and their bytes.
    pub usage: Usage,
    conn: WeakConnection,
}

impl Proven {
    /// Closes the connection. The client opens another one, if it still wants this server.
    pub fn close(&self) {
        if let Some(conn) = self.conn.0.upgrade() {
            conn.close();
        }
    }
}

/// A connection that this reference does not keep open.
struct WeakConnection(Weak<dyn Connection>);

impl fmt::Debug for WeakConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakConnection")
    }
}

/// One request with the means to answer it.
pub struct Incoming {
    /// Which shard, in what order, with which knowledge.
    pub header: Header,
    /// On whose behalf, as the sender says.
    pub identity: Identity,
    /// The request itself.
    pub request: Request,
    /// Bulk data, whose checksums are in the request; in frames only where [`Service::receive_buffer`] said so.
    pub payload: Payload,
    /// Who asks.
    pub who: Arc<Proven>,
    /// Answers.
    pub responder: Responder,
}

/// What every reply tells of its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyContext {
    /// The server's shard map.
    pub map_epoch: MapEpoch,
    /// What the server knows of renamed directories.
    pub namespace_epoch: NamespaceEpoch,
    /// The server's hybrid clock after the request.
    pub time: Time,
    /// The server's logical time after the request.
    pub order: Order,
    /// For how many milliseconds the asker may believe the answer unless it is told otherwise.
    pub lease_ms: u32,
}

/// Answers one request. Dropping it leaves the request unanswered: its sender asks again.
pub struct Responder {
    conn: Arc<dyn Connection>,
    version: u8,
    key: Option<FrameKey>,
    call: u64,
}

impl Responder {
    /// Sends the answer; `payload` goes with successful ones only. Never blocks. If the
    /// connection has ended meanwhile the answer is dropped: the sender asks again over a new one.
    pub fn send(self, context: ReplyContext, result: Result<Reply, Failure>, payload: &[&[u8]]) {
        self.send_held(context, result, payload, &[]);
    }

    /// As [`Responder::send`], with a payload that lies in frames: see [`Connection::send_held`].
    pub fn send_held(
        self,
        context: ReplyContext,
        result: Result<Reply, Failure>,
        payload: &[&[u8]],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) {
        let fits = |body: &[u8]| body.len() <= HEAD_BYTES_MAX as usize - frame::HEADER_BYTES;
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        let too_long =
            || Failure::new(Code::Internal, "a server made an answer that is longer than the limit of a frame");
        match result.map(|reply| reply.to_bytes()) {
            Ok(body) if fits(&body) && payload_bytes <= PAYLOAD_BYTES_MAX as usize => {
                self.send_body(context, Kind::Reply, &body, payload_bytes, |head| {
                    self.conn.send_held(head, payload, held)
                });
            }
            Ok(_) => {
                self.send_body(context, Kind::Failure, &too_long().to_bytes(), 0, |head| self.conn.send(head, &[]))
            }
            Err(failure) => {
                let body = Some(failure.to_bytes()).filter(|body| fits(body)).unwrap_or_else(|| too_long().to_bytes());
                self.send_body(context, Kind::Failure, &body, 0, |head| self.conn.send(head, &[]));
            }
        }
    }

    fn send_body(
        &self,
        context: ReplyContext,
        kind: Kind,
        body: &[u8],
        payload_bytes: usize,
        send: impl FnOnce(&[u8]) -> Result<(), NetError>,
    ) {
        let ReplyContext { map_epoch, namespace_epoch, time, order, lease_ms } = context;
        let plain = Header { version: self.version, ..Header::new(kind, self.call) };
        let header = Header { map_epoch, namespace_epoch, time, order, deadline_ms: lease_ms, ..plain };
        let head = frame::seal(&header, body, payload_bytes, self.key.as_ref());
        // An error means that the connection has ended, which its handler is told.
        let _ = send(&head);
    }
}

/// The parts of a server that accepting a client needs.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The volume's secret.
    pub secret: Secret,
    /// The volume's name.
    pub volume: String,
    /// The versions of frames and messages that it speaks.
    pub versions: Versions,
    /// User id of this process: over local sockets only this user and root are let in.
    pub uid: u32,
    /// What clients of this node may read without a request.
    pub published: Option<Arc<published::Writer>>,
}

/// Listens on `addr` and hands requests to `service` until the listener is dropped. Connections
/// that stand by then go on until either end closes them.
///
/// # Errors
/// [`NetError::Listen`] when the address cannot be listened on.
pub fn serve(
    io: &Io,
    addr: &Addr,
    config: &ServeConfig,
    service: Arc<dyn Service>,
) -> Result<Box<dyn Listener>, NetError> {
    let unproven = Mutex::default();
    io.listen(addr, Arc::new(Entrance(Arc::new(Door { io: io.clone(), config: config.clone(), service, unproven }))))
}

struct Entrance(Arc<Door>);

/// What all connections of one listener share.
struct Door {
    io: Io,
    config: ServeConfig,
    service: Arc<dyn Service>,
    /// Connections that may not have proven yet that they know the secret, the oldest first.
    unproven: Mutex<VecDeque<Unproven>>,
}

/// Weak references to a visit and its connection.
type Unproven = (Weak<Visit>, Weak<dyn Connection>);

impl Door {
    /// Notes a visit. When there are too many without proof the oldest is closed: a client that knows the secret proves
    /// it within a moment.
    fn note(&self, visit: &Arc<Visit>, conn: &Arc<dyn Connection>) {
        let is_unproven = |visit: &Weak<Visit>| visit.upgrade().is_some_and(|visit| visit.open.get().is_none());
        let oldest = {
            let mut unproven = self.unproven.lock();
            unproven.push_back((Arc::downgrade(visit), Arc::downgrade(conn)));
            while unproven.front().is_some_and(|(visit, _)| !is_unproven(visit)) {
                unproven.pop_front();
            }
            if unproven.len() > UNPROVEN_MAX {
                unproven.retain(|(visit, _)| is_unproven(visit));
            }
            if unproven.len() > UNPROVEN_MAX { unproven.pop_front() } else { None }
        };
        if let Some(conn) = oldest.and_then(|(_, conn)| conn.upgrade()) {
            conn.close();
        }
    }
}

/// One accepted connection.
struct Visit {
    door: Arc<Door>,
    /// Before the handshake is over. `None` before the greeting.
    challenged: Mutex<Option<Challenged>>,
    /// After it.
    open: OnceLock<Open>,
    /// A request whose payload is on its way.
    announced: Mutex<Option<(Header, Envelope)>>,
}

struct Open {
    who: Arc<Proven>,
    /// Of all frames but those of the handshake.
    version: u8,
    /// Key of incoming frames; absent on local sockets, whose ends the kernel vouches for.
    key_in: Option<FrameKey>,
    key_out: Option<FrameKey>,
}

impl Acceptor for Entrance {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        if let Some(published) = &self.0.config.published {
            conn.offer(published);
        }
        let (challenged, open, announced) = (Mutex::new(None), OnceLock::new(), Mutex::new(None));
        let visit = Arc::new(Visit { door: self.0.clone(), challenged, open, announced });
        self.0.note(&visit, conn);
        // Connections that their peers have closed are forgotten.
        let (io, waiting, conn) = (self.0.io.clone(), Arc::downgrade(&visit), Arc::downgrade(conn));
        self.0.io.spawn(async move {
            io.sleep(HANDSHAKE_TIME_MAX).await;
            if waiting.upgrade().is_some_and(|visit| visit.open.get().is_none())
                && let Some(conn) = conn.upgrade()
            {
                conn.close();
            }
        });
        visit
    }
}

impl Handler for Visit {
    fn receive_buffer(&self, _conn: &Arc<dyn Connection>, head: &[u8], payload_bytes: usize) -> Option<ReceiveBuffer> {
        // Errors are answered when the frame is complete.
        let (header, envelope) = self.open.get()?.request_in(head, payload_bytes).ok()?;
        let receiving = self.door.service.receive_buffer(&header, &envelope.request, payload_bytes);
        *self.announced.lock() = Some((header, envelope));
        receiving
    }

    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        let taken = match self.open.get() {
            Some(open) => self.take_request(open, conn, frame),
            None => self.take_step(conn, &frame),
        };
        if let Err(why) = taken {
            self.door.service.peer_refused(&conn.peer().name, &why);
            conn.close();
        }
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        if let Some(open) = self.open.get() {
            self.door.service.session_closed(&open.who);
        }
    }
}

impl Visit {
    /// Hands a request on; an error closes the connection.
    fn take_request(&self, open: &Open, conn: &Arc<dyn Connection>, mut frame: Frame) -> Result<(), String> {
        let payload = frame.take_payload();
        let large = payload.len() >= FRAMES_PAYLOAD_BYTES_MIN;
        let announced = if large { self.announced.lock().take() } else { None };
        let taken = match announced {
            Some(request) => Ok(request),
            None => open.request_in(&frame.head, payload.len()),
        };
        let (header, Envelope { identity, request }) = match taken {
            Ok(request) => request,
            Err(NoRequest::Step) => return Ok(()),
            Err(NoRequest::Malformed(malformed)) => return ignore_late_step(&frame.head, payload.len(), malformed),
            Err(NoRequest::Senseless(why)) => return Err(why),
        };
        let responder = Responder { conn: conn.clone(), version: open.version, key: open.key_out, call: header.call };
        let incoming = Incoming { header, identity, request, payload, who: open.who.clone(), responder };
        self.door.service.clone().request(incoming);
        Ok(())
    }

    /// Takes a step of the handshake; an error closes the connection.
    fn take_step(&self, conn: &Arc<dyn Connection>, frame: &Frame) -> Result<(), String> {
        let step = open_step(&frame.head, frame.payload.len(), None).map_err(|malformed| malformed.to_string())?;
        let mut challenged = self.challenged.lock();
        match &*challenged {
            None => {
                if let Some(next) = self.greeted(conn, step)? {
                    *challenged = Some(next);
                }
                Ok(())
            }
            Some(waiting) => match waiting.take(&step)? {
                Some(keys) => {
                    let hello = &waiting.hello;
                    let who = Proven {
                        session: hello.session,
                        server: hello.server,
                        job: hello.job.clone(),
                        credentials: conn.peer().credentials,
                        peer: conn.peer().name.clone(),
                        usage: Usage::default(),
                        conn: WeakConnection(Arc::downgrade(conn)),
                    };
                    self.admit(conn, Arc::new(who), keys);
                    Ok(())
                }
                None => Ok(()),
            },
        }
    }

    fn greeted(&self, conn: &Arc<dyn Connection>, step: Step) -> Result<Option<Challenged>, String> {
        let ServeConfig { secret, volume, versions, uid, .. } = &self.door.config;
        let mut nonce = [0; 32];
        self.door.io.fill_random(&mut nonce);
        let (versions, credentials) = (*versions, conn.peer().credentials);
        match (Knock { secret, volume, versions, uid: *uid, credentials }).take(step, nonce) {
            Ok((challenged, challenge)) => {
                // An error means that the connection has ended, which `on_close` is told.
                let _ = conn.send(&seal_step(&challenge, None), &[]);
                Ok(Some(challenged))
            }
            Err(Turned::Away(why)) => Err(why.into()),
            Err(Turned::Down(failure, key)) => {
                self.door.service.peer_refused(&conn.peer().name, &failure.detail);
                // The client closes, or else the clock: closing now could overtake the message.
                let _ = conn.send(&seal_refusal(&failure, &key), &[]);
                Ok(None)
            }
        }
    }

    fn admit(&self, conn: &Arc<dyn Connection>, who: Arc<Proven>, keys: Keys) {
        let local = who.credentials.is_some();
        let Keys { version, client, server } = keys;
        let (key_in, key_out) = if local { (None, None) } else { (Some(client), Some(server)) };
        conn.set_limits(LIMITS_AFTER_HANDSHAKE);
        self.door.service.session_opened(&who, conn.claims());
        if self.open.set(Open { who, version, key_in, key_out }).is_err() {
            unreachable!("frames of one connection come one at a time, and after the first admission none is a step");
        }
        let welcome = Step::Welcome { map_epoch: self.door.service.began() };
        let _ = conn.send(&seal_step(&welcome, key_out.as_ref()), &[]);
    }
}

/// Why a frame is no request.
enum NoRequest {
    /// It is a step of the handshake.
    Step,
    Malformed(Malformed),
    Senseless(String),
}

impl Open {
    /// The request that a head holds, if it is one of this session.
    fn request_in(&self, head: &[u8], payload_bytes: usize) -> Result<(Header, Envelope), NoRequest> {
        let senseless = |why: &str| NoRequest::Senseless(why.into());
        let (header, body) = frame::open(head, payload_bytes, self.key_in.as_ref()).map_err(NoRequest::Malformed)?;
        match header.kind {
            Kind::Request if header.version == self.version => {}
            Kind::Request => return Err(senseless("a request of another version than the handshake's")),
            Kind::Handshake => return Err(NoRequest::Step),
            Kind::Reply | Kind::Failure => return Err(senseless("a client sent a reply")),
        }
        if header.session != self.who.session {
            return Err(senseless("a request in the name of another session than the handshake's"));
        }
        let envelope = Envelope::from_bytes(body).map_err(|malformed| senseless(&malformed.to_string()))?;
        Ok((header, envelope))
    }
}

/// A step of the handshake that the network delivers twice or late, and therefore without the
/// connection's key, is no reason to close; anything else without the key is.
fn ignore_late_step(head: &[u8], payload_bytes: usize, malformed: Malformed) -> Result<(), String> {
    open_step(head, payload_bytes, None).map(|_| ()).map_err(|_| malformed.to_string())
}
