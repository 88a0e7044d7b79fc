//! How data may travel between processes of one node. Between nodes it is always TCP.
//!
//! It alone knows in which order the ways to one server are tried.

use crate::Addr;
use std::fmt;
use std::str::FromStr;

/// What may be used within a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The best that can be had: shared memory, else a local socket, else TCP.
    #[default]
    Auto,
    /// Shared memory or nothing.
    Shm,
    /// A local socket or nothing.
    Unix,
    /// TCP, also within a node.
    Tcp,
}

impl Transport {
    /// All of them with their names.
    pub const ALL: [(Transport, &'static str); 4] =
        [(Transport::Auto, "auto"), (Transport::Shm, "shm"), (Transport::Unix, "unix"), (Transport::Tcp, "tcp")];

    /// Its name.
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(transport, _)| *transport == self);
        named.expect("each has a name").1
    }

    /// Of the addresses at which a server listens, those to try, best first.
    pub fn candidates(self, addresses: &[Addr], same_node: bool) -> Vec<Addr> {
        let local = same_node && self != Transport::Tcp;
        let tcp = !same_node || matches!(self, Transport::Auto | Transport::Tcp);
        let ways = |addr: &Addr| match addr {
            Addr::Tcp(..) if tcp => vec![addr.clone()],
            Addr::Unix(path) if local => match self {
                Transport::Unix => vec![addr.clone()],
                Transport::Shm => vec![Addr::Shm(path.clone())],
                _ => vec![Addr::Shm(path.clone()), addr.clone()],
            },
            // No process listens at such an address: it is another process's local socket.
            Addr::Tcp(..) | Addr::Unix(_) | Addr::Shm(_) => Vec::new(),
        };
        addresses.iter().flat_map(ways).collect()
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named
            .map(|(transport, _)| *transport)
            .ok_or_else(|| format!("'{text}' is not a transport: expected auto, shm, unix or tcp"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_within_a_node_comes_first() {
        let addresses = ["unix:/s", "tcp:h:1"].map(|text| text.parse().unwrap());
        let of = |text: &str, same_node| {
            let transport: Transport = text.parse().unwrap();
            transport.candidates(&addresses, same_node).iter().map(Addr::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("auto", true), "shm:/s unix:/s tcp:h:1");
        assert_eq!(of("shm", true), "shm:/s");
        assert_eq!(of("unix", true), "unix:/s");
        assert_eq!(of("tcp", true), "tcp:h:1");
        for (_, name) in Transport::ALL {
            assert_eq!(of(name, false), "tcp:h:1", "{name}");
        }
        assert!("rdma".parse::<Transport>().is_err());
    }
}
