//! Opening a connection: the addresses of a server are tried in their order, again and again while a call needs it.

use super::handler::{LinkHandler, Phase};
use super::{Channel, Core};
use crate::caller::CallerConfig;
use crate::handshake::{Greeting, seal_step};
use crate::{HANDSHAKE_TIME_MAX, Target};
use aze_io::published::Reader;
use aze_io::sync::Mutex;
use aze_io::{Addr, Io, NetError, Transport};
use aze_proto::handshake::Hello;
use aze_proto::wire::Blob;
use aze_proto::{Code, Failure, ServerIndex};
use futures_channel::oneshot;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Pause after a failed attempt to connect; doubled after each up to [`RECONNECT_PAUSE_MAX`].
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between attempts: a server that comes back is found within a second.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Connects to a server until it works, or no call needs it any more, or another attempt makes no sense.
/// Holds the caller's state only during an attempt, so that a dropped caller ends.
pub(super) async fn keep_opening(core: Weak<Core>, io: Io, index: ServerIndex) {
    let mut pause = RECONNECT_PAUSE_MIN;
    loop {
        {
            let Some(core) = core.upgrade() else { return };
            let Some(target) = core.wanted(index) else { return };
            match core.attempt(&target).await {
                Ok(channel) => {
                    if core.install(index, channel) {
                        return;
                    }
                }
                Err(Unopened::Again(why)) => core.failed(index, why),
                Err(Unopened::ForGood(failure)) => return core.give_up(index, failure),
            }
        }
        // Half of it at random, lest all clients of a server that comes back come at once.
        let half_ns = pause.as_nanos() as u64 / 2;
        io.sleep(Duration::from_nanos(half_ns + io.random_u64() % half_ns)).await;
        pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
    }
}

/// Why there is no connection.
pub(super) enum Unopened {
    /// It may work later.
    Again(String),
    /// It will not.
    ForGood(Failure),
}

impl Core {
    /// Tries the addresses of a server in their order.
    async fn attempt(self: &Arc<Self>, target: &Target) -> Result<Channel, Unopened> {
        let CallerConfig { host, transport, .. } = &self.whole.config;
        // The target names its addresses, and most of them fail for the same reason.
        let mut errors: Vec<(String, Vec<String>)> = Vec::new();
        for addr in transport.candidates(&target.addresses, target.host == *host) {
            match self.open(target, &addr).await {
                Err(Unopened::Again(why)) => {
                    let way = addr.to_string().split(':').next().unwrap_or_default().to_owned();
                    match errors.iter_mut().find(|(same, _)| *same == why) {
                        Some((_, ways)) => ways.push(way),
                        None => errors.push((why, vec![way])),
                    }
                }
                done => return done,
            }
        }
        if errors.is_empty() {
            let advice = match transport {
                Transport::Shm | Transport::Unix => "have it listen on a local socket, or allow another transport",
                Transport::Auto | Transport::Tcp => "have it listen on TCP",
            };
            let detail =
                format!("{target} has no address that can be reached from {host} by transport '{transport}': {advice}");
            return Err(Unopened::ForGood(Failure::new(Code::Unreachable, detail)));
        }
        let told: Vec<String> = errors.iter().map(|(why, ways)| format!("{}: {why}", ways.join(", "))).collect();
        Err(Unopened::Again(told.join("; ")))
    }

    async fn open(self: &Arc<Self>, target: &Target, addr: &Addr) -> Result<Channel, Unopened> {
        let again = |error: NetError| Unopened::Again(error.to_string());
        let late = || Unopened::Again(format!("no connection within {} s", HANDSHAKE_TIME_MAX.as_secs()));
        let began_ns = self.io.mono_ns();
        let &CallerConfig { ref secret, ref volume, versions, session, server, ref job, .. } = &self.whole.config;
        let mut nonce = [0; 32];
        self.io.fill_random(&mut nonce);
        let (volume, job, more) = (volume.clone(), job.clone(), Blob::default());
        let (greeting, hello) = Greeting::new(secret, Hello { versions, session, nonce, volume, server, job, more });
        let (done, outcome) = oneshot::channel();
        let handler = Arc::new(LinkHandler {
            core: Arc::downgrade(self),
            target: target.clone(),
            phase: Mutex::new(Some(Phase { greeting, done })),
            open: OnceLock::new(),
            began: OnceLock::new(),
            ended: AtomicBool::new(false),
            frames_heard: AtomicU64::new(0),
        });
        let connecting = self.io.timeout(HANDSHAKE_TIME_MAX, self.io.connect(addr, handler.clone()));
        let conn = connecting.await.ok_or_else(late)?.map_err(again)?;
        let spent = Duration::from_nanos(self.io.mono_ns() - began_ns);
        self.connected_within(spent);
        let answered = match conn.send(&seal_step(&hello, None), &[]) {
            Ok(()) => self.io.timeout(HANDSHAKE_TIME_MAX.saturating_sub(spent), outcome).await,
            Err(error) => Some(Ok(Err(again(error)))),
        };
        self.connected_within(Duration::from_nanos(self.io.mono_ns() - began_ns));
        match answered {
            Some(Ok(Ok(key_out))) => {
                let published = conn.offered().and_then(|words| Reader::open(words, &aze_proto::published::SHAPES));
                let claims = conn.claims();
                Ok(Channel { conn, key_out, handler, published, claims })
            }
            failed => {
                conn.close();
                Err(failed.and_then(Result::ok).and_then(Result::err).unwrap_or_else(late))
            }
        }
    }
}
