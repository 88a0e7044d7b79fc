//! The only room that knows how a request finds its reply.
//!
//! [`Caller`] asks: it opens connections, proves itself, numbers changes, sends requests, sends
//! them again when a reply is late or a connection breaks, and gives up at a deadline. [`serve`]
//! answers: it lets in clients that prove to know the volume's secret and hands each request to a
//! [`Service`] with the means to reply. What a request means, and which server to ask, this room
//! deliberately does not know: that is the secret of `client` and `server`.

mod caller;
mod calls;
mod handshake;
pub mod lane;
mod link;
pub mod published;
mod sequences;
mod serve;

pub use caller::{Answer, Ask, Caller, CallerConfig, Counters};
pub use link::Located;
pub use serve::{Incoming, Proven, ReplyContext, Responder, ServeConfig, Service, Usage, serve};

use aze_io::{Addr, FrameLimits};
use aze_proto::limits::{HEAD_BYTES_MAX, PAYLOAD_BYTES_MAX};
use aze_proto::{Incarnation, MapEpoch, ServerIndex, ShardMap};
use std::fmt;
use std::time::Duration;

/// How long connecting and the handshake together may take at one address. Both need two round
/// trips and no work worth mentioning; a peer that takes longer is overloaded or broken, and is
/// better left alone for a moment.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(2);

/// What both ends accept once each has proven to know the secret.
const LIMITS_AFTER_HANDSHAKE: FrameLimits =
    FrameLimits { head_bytes_max: HEAD_BYTES_MAX, payload_bytes_max: PAYLOAD_BYTES_MAX };

/// A server to ask: its place in the map and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its place in the shard map.
    pub index: ServerIndex,
    /// The node it runs on: its `unix:` addresses are of use on the same node only.
    pub host: String,
    /// Where it listens, best first.
    pub addresses: Vec<Addr>,
    /// Which life of it is meant: the map epoch at which that began, and how often it has started empty. Zero where
    /// that is not known yet.
    pub life: (MapEpoch, Incarnation),
}

impl Target {
    /// What the map says of a server. Addresses of a form that this build does not know are left out.
    pub fn of(map: &ShardMap, index: ServerIndex) -> Option<Target> {
        let info = map.server(index)?;
        let addresses = info.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        Some(Target { index, host: info.host.clone(), addresses, life: (info.began, info.incarnation) })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {} on {}", self.index, self.host)?;
        for (i, addr) in self.addresses.iter().enumerate() {
            write!(f, "{}{addr}", if i == 0 { " (" } else { ", " })?;
        }
        if self.addresses.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}
