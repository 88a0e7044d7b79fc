//! The server whose answers a test scripts.

use aze_client::{Access, Client, Config, File};
use aze_io::claims::Claims;
use aze_io::sim::{Faults, Sim};
use aze_io::slab::{BASE_BYTES, FrameClass, Slab};
use aze_io::sync::Mutex;
use aze_io::{Addr, Listener};
use aze_proto::frame::Header;
use aze_proto::handshake::Secret;
use aze_proto::place::ServerInfo;
use aze_proto::slots::SlotTable;
use aze_proto::{
    Attr, Failure, FileKind, Generation, Identity, Incarnation, Ino, MapEpoch, Name, Reply, Request, ServerIndex,
    SessionId, ShardMap, Spread, Time,
};
use aze_rpc::{Incoming, Proven, ReplyContext, ServeConfig, Service, serve};
use std::sync::Arc;
use std::time::Duration;

pub const CHUNK_BITS: u8 = 16;
pub const CHUNK: usize = 1 << CHUNK_BITS;
pub const FILE: Ino = Ino(77);
pub const BOTH: Access = Access { read: true, write: true };

/// A reply with its payload.
pub type Said = (Result<Reply, Failure>, Vec<u8>);
type Script = Box<dyn FnMut(&Header, &Request, &[u8]) -> Said + Send>;

pub struct Fake {
    pub sim: Sim,
    service: Arc<Scripted>,
    _listener: Box<dyn Listener>,
}

pub struct Scripted {
    map: Mutex<ShardMap>,
    asked: Mutex<Vec<(Header, Request)>>,
    script: Mutex<Option<Script>>,
    /// Where payloads are put, to be shared.
    slab: Option<Arc<Slab>>,
}

impl Scripted {
    pub fn new(
        map: ShardMap,
        slab: Option<Arc<Slab>>,
        script: impl FnMut(&Header, &Request, &[u8]) -> Said + Send + 'static,
    ) -> Arc<Scripted> {
        let script = Mutex::new(Some(Box::new(script) as Script));
        Arc::new(Scripted { map: Mutex::new(map), asked: Mutex::default(), script, slab })
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Vec<(Header, Request)> {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl Service for Scripted {
    fn request(self: Arc<Self>, incoming: Incoming) {
        let Incoming { header, request, payload, responder, .. } = incoming;
        let (said, bytes) = match &request {
            Request::GetMap => (Ok(Reply::Map { map: Arc::new(self.map.lock().clone()) }), Vec::new()),
            Request::EndSession | Request::Close { .. } => (Ok(Reply::Done), Vec::new()),
            _ => (self.script.lock().as_mut().expect("the test says what to say"))(
                &header,
                &request,
                &payload.into_bytes(),
            ),
        };
        self.asked.lock().push((header, request));
        let held = self.slab.iter().flat_map(|slab| {
            bytes.chunks(BASE_BYTES).map(|piece| {
                let mut frame = slab.allocate(FrameClass::K64).expect("there is room");
                frame.bytes_mut()[..piece.len()].copy_from_slice(piece);
                (Arc::new(frame), 0..piece.len())
            })
        });
        responder.send_held(ReplyContext::default(), said, &[&bytes], &held.collect::<Vec<_>>());
    }

    fn session_opened(&self, _who: &Arc<Proven>, _claims: Option<Claims>) {}

    fn session_closed(&self, _who: &Arc<Proven>) {}

    fn began(&self) -> MapEpoch {
        self.map.lock().epoch
    }
}

impl Fake {
    pub fn new(script: impl FnMut(&Header, &Request, &[u8]) -> Said + Send + 'static) -> Fake {
        let sim = Sim::new(1, Faults::default());
        let service = Scripted::new(map(1, ADDRESS), None, script);
        let config = ServeConfig {
            secret: Secret([1; 32]),
            volume: "v".into(),
            versions: aze_proto::limits::WIRE_VERSIONS,
            uid: 0,
            published: None,
        };
        let listener = serve(&sim.node("s0"), &Addr::Tcp("s0".into(), 7), &config, service.clone()).unwrap();
        Fake { sim, service, _listener: listener }
    }

    pub async fn connect(&self) -> Arc<Client> {
        let client = Client::connect(self.sim.node("c"), config("c", Addr::Tcp("s0".into(), 7))).await.unwrap();
        self.service.asked.lock().clear();
        client
    }

    /// Opens a file, which the script must allow; its request is not in [`Self::asked`].
    pub async fn open(&self, client: &Arc<Client>) -> Arc<File> {
        let file = client.open(&who(), FILE, BOTH).await.unwrap();
        self.service.asked.lock().clear();
        file
    }

    pub fn set_map_epoch(&self, epoch: u32) {
        *self.service.map.lock() = map(epoch, ADDRESS);
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Vec<(Header, Request)> {
        self.service.asked()
    }

    /// The names of the requests since the last call.
    pub fn names(&self) -> Vec<&'static str> {
        self.asked().iter().map(|(_, request)| request.name()).collect()
    }
}

pub fn who() -> Identity {
    Identity { uid: 1, gid: 2, groups: vec![3] }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn say(reply: Reply) -> Said {
    (Ok(reply), Vec::new())
}

pub fn refuse(failure: Failure) -> Said {
    (Err(failure), Vec::new())
}

pub fn attr(size: u64, generation: u32) -> Attr {
    Attr {
        ino: FILE,
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 1,
        gid: 2,
        rdev: 0,
        size,
        atime: Time(0),
        mtime: Time(0),
        ctime: Time(0),
        btime: Time(0),
        generation: Generation(generation),
        born: MapEpoch(1),
        layout: aze_proto::place::Layout::default(),
        chunk_bits: CHUNK_BITS,
        spread: Spread::default(),
        has_xattrs: false,
        parent: Ino(0),
    }
}

pub fn attributes(attr: Attr) -> Said {
    say(Reply::Attributes { attr })
}

/// For a client whose only server is at `addr`.
pub fn config(host: &str, addr: Addr) -> Config {
    Config {
        volume: "v".into(),
        secret: Secret([1; 32]),
        seeds: vec![("s0".into(), vec![addr])],
        host: host.into(),
        job: "job".into(),
        deadline: Duration::from_secs(10),
        start_time_max: Duration::ZERO,
        transport: aze_io::Transport::Auto,
        durability: aze_proto::message::Durability::None,
        lasts: false,
    }
}

/// Where the simulated one is.
const ADDRESS: &str = "tcp:s0:7";

/// One server has everything.
pub fn map(epoch: u32, address: &str) -> ShardMap {
    let info = ServerInfo {
        addresses: vec![address.into()],
        host: "s0".into(),
        incarnation: Incarnation(0),
        since: MapEpoch(0),
        pid: 1,
        capacity_bytes: 0,
        ended: false,
        left: false,
        joining: false,
        life: 0,
        began: MapEpoch(0),
        session: SessionId(0),
    };
    ShardMap {
        epoch: MapEpoch(epoch),
        keeper: ServerIndex(0),
        group: aze_proto::place::KeeperGroup::default(),
        chunk_bits: CHUNK_BITS,
        owner_uid: 0,
        owner_gid: 0,
        volume: "v".into(),
        servers: vec![info],
        slots: SlotTable::modular(64, 1).unwrap(),
    }
}
