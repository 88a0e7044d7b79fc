//! Who is let in, who is believed, and what becomes of hostile bytes.

use crate::service::{Counting, SECRET, caller, config, lookup, start, start_with, target, unlink};
use aze_io::sim::{Faults, Sim};
use aze_io::sync::Mutex;
use aze_io::{Acceptor, Connection, Frame, Handler, Io, NetError};
use aze_proto::frame::{self, Header, Kind};
use aze_proto::handshake::{Hello, Secret, Step, Transcript, Versions, hello_proof};
use aze_proto::limits::{HANDSHAKE_VERSION, WIRE_VERSION, WIRE_VERSIONS, fingerprint};
use aze_proto::wire::Wire;
use aze_proto::{Code, SessionId};
use aze_rpc::Caller;
use futures_channel::oneshot;
use std::sync::Arc;

const MS: u64 = 1_000_000;

fn sim(seed: u64) -> Sim {
    Sim::new(seed, Faults::default())
}

/// Keeps what comes, and tells when the connection has ended.
struct Listening {
    frames: Mutex<Vec<Frame>>,
    ended: Mutex<Option<oneshot::Sender<()>>>,
}

impl Handler for Listening {
    fn on_frame(&self, _conn: &Arc<dyn Connection>, frame: Frame) {
        self.frames.lock().push(frame);
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {
        if let Some(ended) = self.ended.lock().take() {
            let _ = ended.send(());
        }
    }
}

async fn dial(io: &Io) -> (Arc<dyn Connection>, Arc<Listening>, oneshot::Receiver<()>) {
    let (tell, ended) = oneshot::channel();
    let listening = Arc::new(Listening { frames: Mutex::default(), ended: Mutex::new(Some(tell)) });
    let conn = io.connect(&"tcp:s0:7".parse().unwrap(), listening.clone()).await.unwrap();
    (conn, listening, ended)
}

fn step_frame(step: &Step) -> Vec<u8> {
    frame::seal(&Header::new(Kind::Handshake, 0), &step.to_bytes(), 0, None)
}

fn hello(secret: &Secret, versions: Versions) -> (Hello, Vec<u8>) {
    let hello = Hello {
        versions,
        session: SessionId(1),
        nonce: [3; 32],
        volume: "v".into(),
        server: false,
        job: "job".into(),
        more: Default::default(),
    };
    let proof = hello_proof(secret, &hello);
    (hello.clone(), step_frame(&Step::Hello { hello, proof }))
}

/// A connection that has gone through the handshake by hand, with its keys.
async fn admitted(io: &Io) -> (Arc<dyn Connection>, Arc<Listening>, oneshot::Receiver<()>, Transcript) {
    let (conn, listening, ended) = dial(io).await;
    let (hello, head) = hello(&SECRET, WIRE_VERSIONS);
    conn.send(&head, &[]).unwrap();
    io.sleep(std::time::Duration::from_millis(10)).await;
    let challenge = listening.frames.lock().pop().unwrap();
    let (_, body) = frame::open(&challenge.head, 0, None).unwrap();
    let Step::Challenge { nonce, .. } = Step::from_bytes(body).unwrap() else { panic!("a challenge") };
    let transcript = Transcript::new(&SECRET, &hello, &nonce, WIRE_VERSION);
    conn.send(&step_frame(&Step::Proof { proof: transcript.client_proof() }), &[]).unwrap();
    io.sleep(std::time::Duration::from_millis(10)).await;
    let welcome = listening.frames.lock().pop().unwrap();
    frame::open(&welcome.head, 0, Some(&transcript.server_key())).unwrap();
    (conn, listening, ended, transcript)
}

#[test]
fn a_client_without_the_secret_is_not_answered() {
    let sim = sim(1);
    let service = Counting::new(&sim.node("s0"), 0);
    let _listener = start(&sim.node("s0"), &"tcp:s0:7".parse().unwrap(), &service);
    sim.block_on(async {
        let (conn, listening, ended) = dial(&sim.node("c")).await;
        conn.send(&hello(&Secret([9; 32]), WIRE_VERSIONS).1, &[]).unwrap();
        ended.await.unwrap();
        assert!(listening.frames.lock().is_empty());
    });
    let stranger = Caller::new(sim.node("c"), config(Secret([9; 32]), 1));
    let failure = sim.block_on(unlink(&stranger, &target(0, "s0", &["tcp:s0:7"]), 1, "a", 3)).unwrap_err();
    assert_eq!(failure.code, Code::Unreachable);
    assert!(failure.detail.contains("same secret"), "{failure}");
    let seen = service.seen.lock();
    assert_eq!((seen.opened, seen.requests), (0, 0));
    assert!(seen.refused[0].contains("without the volume's secret"));
}

#[test]
fn another_volume_or_build_is_named() {
    let sim = sim(2);
    let service = Counting::new(&sim.node("s0"), 0);
    let _listener = start_with(&sim.node("s0"), &"tcp:s0:7".parse().unwrap(), &service, SECRET, "other").unwrap();
    let caller = caller(&sim.node("c"), 1);
    let failure = sim.block_on(unlink(&caller, &target(0, "s0", &["tcp:s0:7"]), 1, "a", 3)).unwrap_err();
    assert_eq!(failure.code, Code::NotAuthentic);
    assert!(failure.detail.contains("volume 'other'") && sim.now_ns() < 100 * MS, "{failure}");

    sim.block_on(async {
        let (conn, listening, ended) = dial(&sim.node("c")).await;
        let (hello, head) = hello(&SECRET, Versions { oldest: WIRE_VERSION + 1, newest: WIRE_VERSION + 3 });
        conn.send(&head, &[]).unwrap();
        ended.await.unwrap();
        let answer = listening.frames.lock().pop().unwrap();
        let key = Transcript::new(&SECRET, &hello, &[0; 32], HANDSHAKE_VERSION).server_key();
        let (header, body) = frame::open(&answer.head, 0, Some(&key)).unwrap();
        assert_eq!(header.kind, Kind::Failure);
        assert_eq!(aze_proto::Failure::from_bytes(body).unwrap().code, Code::Version);
    });
}

/// Builds that speak older versions, newer ones, or both.
#[test]
fn peers_of_other_versions_agree_on_one_or_are_told() {
    let sim = sim(9);
    let service = Counting::new(&sim.node("s0"), 0);
    let _listener = start(&sim.node("s0"), &"tcp:s0:7".parse().unwrap(), &service);
    let ask = |session: u64, oldest: u8, newest: u8| {
        let versions = Versions { oldest, newest };
        let caller = Caller::new(sim.node("c"), aze_rpc::CallerConfig { versions, ..config(SECRET, session) });
        sim.block_on(unlink(&caller, &target(0, "s0", &["tcp:s0:7"]), 1, "a", 3))
    };
    let (oldest, newest) = (WIRE_VERSIONS.oldest, WIRE_VERSIONS.newest);
    for (session, lower, upper) in [(1, 1, newest), (2, newest, newest + 3), (3, 1, newest + 3)] {
        let answer = ask(session, lower, upper).unwrap();
        assert_eq!(answer.header.version, newest, "{lower} to {upper}");
    }
    for (session, lower, upper) in [(4, 1, oldest - 1), (5, newest + 1, newest + 3)] {
        let failure = ask(session, lower, upper).unwrap_err();
        assert_eq!(failure.code, Code::Version);
        let (theirs, ours) =
            (format!("the client speaks wire version {lower} to {upper}"), format!("the server {WIRE_VERSIONS}"));
        assert!(failure.detail.contains(&theirs) && failure.detail.contains(&ours), "{failure}");
    }
}

/// Answers every greeting with the same frames.
struct Impostor {
    frames: Vec<Vec<u8>>,
}

impl Acceptor for Impostor {
    fn accept(&self, _conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        Arc::new(Impostor { frames: self.frames.clone() })
    }
}

impl Handler for Impostor {
    fn on_frame(&self, conn: &Arc<dyn Connection>, _frame: Frame) {
        for frame in &self.frames {
            let _ = conn.send(frame, &[]);
        }
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

fn ask_impostor(seed: u64, frames: Vec<Vec<u8>>) -> (aze_proto::Failure, u64) {
    let sim = sim(seed);
    let _listener = sim.node("s0").listen(&"tcp:s0:7".parse().unwrap(), Arc::new(Impostor { frames })).unwrap();
    let caller = caller(&sim.node("c"), 1);
    let failure = sim.block_on(unlink(&caller, &target(0, "s0", &["tcp:s0:7"]), 1, "a", 3)).unwrap_err();
    (failure, sim.now_ns())
}

#[test]
fn a_server_without_the_secret_is_refused_at_once() {
    let challenge = Step::Challenge { nonce: [1; 32], version: WIRE_VERSION, fingerprint: 0, proof: [2; 32] };
    let (failure, now_ns) = ask_impostor(3, vec![step_frame(&challenge)]);
    assert_eq!(failure.code, Code::NotAuthentic);
    assert!(failure.detail.contains("check that the volume") && failure.detail.contains("tcp:s0:7"), "{failure}");
    assert!(now_ns < 100 * MS);
}

#[test]
fn senseless_servers_are_given_up_at_the_deadline() {
    let welcome = step_frame(&Step::Welcome { map_epoch: aze_proto::MapEpoch(1) });
    let forged = aze_proto::Failure::new(Code::Version, "lies").to_bytes();
    let unproven_refusal = frame::seal(&Header::new(Kind::Failure, 0), &forged, 0, None);
    for frames in [vec![], vec![b"GET / HTTP/1.1".to_vec()], vec![welcome], vec![vec![]], vec![unproven_refusal]] {
        let (failure, now_ns) = ask_impostor(4, frames);
        assert_eq!(failure.code, Code::Unreachable, "{failure}");
        assert!((3_000 * MS..3_300 * MS).contains(&now_ns));
    }
}

#[test]
fn who_does_not_finish_the_handshake_is_cut_off() {
    let sim = sim(5);
    let service = Counting::new(&sim.node("s0"), 0);
    let _listener = start(&sim.node("s0"), &"tcp:s0:7".parse().unwrap(), &service);
    sim.block_on(async {
        let (silent, _, silent_ended) = dial(&sim.node("c")).await;
        let (half, _, half_ended) = dial(&sim.node("c")).await;
        half.send(&hello(&SECRET, WIRE_VERSIONS).1, &[]).unwrap();
        silent_ended.await.unwrap();
        half_ended.await.unwrap();
        drop((silent, half));
    });
    assert!((2_000 * MS..2_100 * MS).contains(&sim.now_ns()));
}

#[test]
fn hostile_bytes_end_their_connection_and_nothing_else() {
    let sim = sim(6);
    let service = Counting::new(&sim.node("s0"), 0);
    let _listener = start(&sim.node("s0"), &"tcp:s0:7".parse().unwrap(), &service);
    let good = caller(&sim.node("good"), 8);
    let to = target(0, "s0", &["tcp:s0:7"]);
    let mut rng = sim.rng("bytes");
    sim.block_on(async {
        lookup(&good, &to, 1, &[], 10).await.unwrap();
        let io = sim.node("bad");
        for round in 0..60 {
            let mut bytes: Vec<u8> = (0..rng.below(300)).map(|_| rng.below(256) as u8).collect();
            let (conn, ended, head) = if round % 2 == 0 {
                let (conn, _, ended) = dial(&io).await;
                (conn, ended, step_frame(&Step::Proof { proof: [0; 32] }))
            } else {
                let (conn, _, ended, transcript) = admitted(&io).await;
                let wrong_session = Header { session: SessionId(77), ..Header::new(Kind::Request, 1) };
                (conn, ended, frame::seal(&wrong_session, &bytes, 0, Some(&transcript.client_key())))
            };
            // Some are noise throughout, some start like a frame, some are one but for its body.
            match round % 3 {
                0 => {}
                1 => bytes.splice(0..0, head[..head.len().min(60)].iter().copied()).for_each(drop),
                _ => bytes = head,
            }
            conn.send(&bytes, &[]).unwrap();
            ended.await.unwrap();
        }
        lookup(&good, &to, 2, &[], 10).await.unwrap();
    });
    let seen = service.seen.lock();
    assert_eq!(seen.refused.len(), 60);
    assert_eq!((seen.opened, seen.closed, good.counters().reconnects), (31, 30, 0));
    assert_eq!(seen.requests, 2);
}

/// Proves itself, then answers the first request of each of its first connections with noise.
struct Noisy {
    noise_left: Arc<Mutex<u32>>,
}

struct NoisyVisit {
    noise_left: Arc<Mutex<u32>>,
    transcript: Mutex<Option<Transcript>>,
}

impl Acceptor for Noisy {
    fn accept(&self, conn: &Arc<dyn Connection>) -> Arc<dyn Handler> {
        conn.set_limits(aze_io::FrameLimits { head_bytes_max: 1 << 20, payload_bytes_max: 0 });
        Arc::new(NoisyVisit { noise_left: self.noise_left.clone(), transcript: Mutex::new(None) })
    }
}

impl Handler for NoisyVisit {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        let mut transcript = self.transcript.lock();
        let step = frame::open(&frame.head, 0, None).ok().and_then(|(_, body)| Step::from_bytes(body).ok());
        match (step, &*transcript) {
            (Some(Step::Hello { hello, .. }), _) => {
                let next = Transcript::new(&SECRET, &hello, &[1; 32], WIRE_VERSION);
                let (fingerprint, proof) = (fingerprint(WIRE_VERSION), next.server_proof());
                let challenge = Step::Challenge { nonce: [1; 32], version: WIRE_VERSION, fingerprint, proof };
                let _ = conn.send(&step_frame(&challenge), &[]);
                *transcript = Some(next);
            }
            (Some(Step::Proof { .. }), Some(keys)) => {
                let welcome = Step::Welcome { map_epoch: aze_proto::MapEpoch(1) };
                let head =
                    frame::seal(&Header::new(Kind::Handshake, 0), &welcome.to_bytes(), 0, Some(&keys.server_key()));
                let _ = conn.send(&head, &[]);
            }
            (None, Some(keys)) => {
                let (header, _) = frame::open(&frame.head, 0, Some(&keys.client_key())).unwrap();
                let mut noise_left = self.noise_left.lock();
                let body =
                    if *noise_left == 0 { aze_proto::Reply::Done.to_bytes() } else { vec![0xff; *noise_left as usize] };
                *noise_left = noise_left.saturating_sub(1);
                // Replies to calls that were never made are ignored.
                for call in [header.call + 1, u64::MAX, header.call] {
                    let head = frame::seal(&Header::new(Kind::Reply, call), &body, 0, Some(&keys.server_key()));
                    let _ = conn.send(&head, &[]);
                }
            }
            other => panic!("not what a client says: {:?}", other.0),
        }
    }

    fn on_close(&self, _conn: &Arc<dyn Connection>, _why: NetError) {}
}

#[test]
fn malformed_replies_end_the_connection_and_the_call_goes_on() {
    let sim = sim(7);
    let noisy = Noisy { noise_left: Arc::new(Mutex::new(3)) };
    let _listener = sim.node("s0").listen(&"tcp:s0:7".parse().unwrap(), Arc::new(noisy)).unwrap();
    let caller = caller(&sim.node("c"), 1);
    let answer = sim.block_on(unlink(&caller, &target(0, "s0", &["tcp:s0:7"]), 1, "a", 10)).unwrap();
    assert_eq!(answer.reply, aze_proto::Reply::Done);
    assert_eq!(caller.counters().reconnects, 3);
}

/// Each new connection would take a ring, descriptors and a greeting of the server, hundreds of times in a second.
#[test]
fn a_server_that_answers_with_noise_only_is_not_stormed() {
    let sim = sim(9);
    let noisy = Noisy { noise_left: Arc::new(Mutex::new(100_000)) };
    let _listener = sim.node("s0").listen(&"tcp:s0:7".parse().unwrap(), Arc::new(noisy)).unwrap();
    let caller = caller(&sim.node("c"), 1);
    let failure = sim.block_on(unlink(&caller, &target(0, "s0", &["tcp:s0:7"]), 1, "a", 10)).unwrap_err();
    assert_eq!(failure.code, aze_proto::Code::UnknownOutcome);
    let reconnects = caller.counters().reconnects;
    assert!((8..=30).contains(&reconnects), "{reconnects} in 10 seconds");
}

/// Frames of the server's memory are for those only who have shown that they know the secret, and for what they have
/// sent themselves.
#[test]
fn nobody_gets_frames_who_has_not_shown_the_secret() {
    let sim = sim(8);
    let service = Counting::new(&sim.node("s0"), 0);
    let _listener = start(&sim.node("s0"), &"tcp:s0:7".parse().unwrap(), &service);
    let payload = vec![7; 200_000];
    let lookup_head = |key: Option<&frame::FrameKey>, session: u64, payload_bytes: usize| {
        let request = aze_proto::Request::Lookup { parent: aze_proto::Ino(9), name: crate::service::name("x") };
        let envelope = aze_proto::message::Envelope { identity: aze_proto::Identity::default(), request };
        let header = Header { session: SessionId(session), deadline_ms: 1000, ..Header::new(Kind::Request, 5) };
        frame::seal(&header, &envelope.to_bytes(), payload_bytes, key)
    };
    sim.block_on(async {
        // Before the handshake, and in its middle.
        for greets in [false, true] {
            let (conn, _listening, ended) = dial(&sim.node("c")).await;
            if greets {
                conn.send(&hello(&SECRET, WIRE_VERSIONS).1, &[]).unwrap();
            }
            conn.send(&lookup_head(None, 1, payload.len()), &[&payload]).unwrap();
            ended.await.unwrap();
        }
        // After it: without the key, with a wrong one, of another session, and of another length than was sealed.
        for wrong in 0..4 {
            let (conn, _listening, ended, transcript) = admitted(&sim.node("c")).await;
            let right = transcript.client_key();
            let head = match wrong {
                0 => lookup_head(None, 1, payload.len()),
                1 => lookup_head(Some(&transcript.server_key()), 1, payload.len()),
                2 => lookup_head(Some(&right), 2, payload.len()),
                _ => lookup_head(Some(&right), 1, payload.len() - 1),
            };
            conn.send(&head, &[&payload]).unwrap();
            ended.await.unwrap();
            assert_eq!(service.seen.lock().receive_buffers, 0, "wrong in way {wrong}");
        }
        let (conn, listening, _ended, transcript) = admitted(&sim.node("c")).await;
        conn.set_limits(aze_io::FrameLimits { head_bytes_max: 1 << 20, payload_bytes_max: 1 << 20 });
        conn.send(&lookup_head(Some(&transcript.client_key()), 1, payload.len()), &[&payload]).unwrap();
        sim.sleep(std::time::Duration::from_millis(10)).await;
        let answer = listening.frames.lock().pop().expect("an answer");
        assert!(answer.payload == payload);
    });
    let seen = service.seen.lock();
    assert_eq!((seen.receive_buffers, seen.in_frames, seen.requests), (1, 1, 1));
    assert_eq!(service.slab.used_bytes(), 0);
}
