//! The handshake: both ends prove that they know the volume's secret, neither sends it.
//!
//! `Hello` carries a keyed hash over itself, so that a stranger who knocks without the secret is
//! never answered. The server's `Challenge` proves the server (keyed hash over both nonces), the
//! client's `Proof` the client; the keys for the frames that follow are derived from the secret
//! and both nonces. `Welcome` is the first frame under those keys.
//!
//! `Hello` names the versions of frames and messages that the client speaks; the server chooses the newest that it
//! speaks, too, and names it in its `Challenge`. The encoding of `Hello`, of `Challenge` and of a refusal is therefore the
//! same in all versions ([`HANDSHAKE_VERSION`](crate::limits::HANDSHAKE_VERSION)): what a later build has to add goes
//! into `Hello::more`.

use crate::frame::FrameKey;
use crate::ids::{MapEpoch, SessionId};
use crate::wire::{Blob, Wire};
use crate::{wire_enum, wire_struct};

/// The volume's secret: 256 random bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

wire_struct! {
    /// A range of versions, both ends included.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Versions {
        /// The oldest.
        pub oldest: u8,
        /// The newest.
        pub newest: u8,
    }
}

impl Versions {
    /// The newest version of both ranges.
    pub fn common(self, other: Versions) -> Option<u8> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether a version is in the range.
    #[inline]
    pub fn contain(self, version: u8) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Versions { oldest, newest } = self;
        if oldest == newest { write!(f, "{newest}") } else { write!(f, "{oldest} to {newest}") }
    }
}

wire_struct! {
    /// What a client says first.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Hello {
        /// The versions that the client speaks.
        pub versions: Versions,
        /// The client's session.
        pub session: SessionId,
        /// Random bytes of the client.
        pub nonce: [u8; 32],
        /// The volume that is meant.
        pub volume: String,
        /// Set by servers of the volume.
        pub server: bool,
        /// Name of the job that is accounted, at most 255 bytes.
        pub job: String,
        /// What later builds add: this one ignores it.
        pub more: Blob,
    }
}

wire_enum! {
    /// A step of the handshake.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Step {
        /// Client to server.
        1 = Hello {
            /// The greeting.
            hello: Hello,
            /// Keyed hash over the greeting.
            proof: [u8; 32]
        },
        /// Server to client.
        2 = Challenge {
            /// Random bytes of the server.
            nonce: [u8; 32],
            /// The version of all frames but those of the handshake.
            version: u8,
            /// [`fingerprint`](crate::limits::fingerprint) of that version in the server's build.
            fingerprint: u64,
            /// Proof of the server.
            proof: [u8; 32]
        },
        /// Client to server.
        3 = Proof {
            /// Proof of the client.
            proof: [u8; 32]
        },
        /// Server to client: the connection stands.
        4 = Welcome {
            /// The map epoch at which the server's life began; 0 while it starts.
            map_epoch: MapEpoch
        },
    }
}

/// What both ends know once both nonces are exchanged.
#[derive(Clone)]
pub struct Transcript {
    secret: Secret,
    bytes: Vec<u8>,
}

impl Transcript {
    /// Binds secret, greeting, the server's nonce, and the version that the server has chosen.
    pub fn new(secret: &Secret, hello: &Hello, server_nonce: &[u8; 32], version: u8) -> Transcript {
        let mut bytes = hello.to_bytes();
        bytes.extend_from_slice(server_nonce);
        version.put(&mut bytes);
        Transcript { secret: secret.clone(), bytes }
    }

    /// What the server must show.
    pub fn server_proof(&self) -> [u8; 32] {
        keyed(&self.secret, "azekura 1 server proof", &self.bytes)
    }

    /// What the client must show.
    pub fn client_proof(&self) -> [u8; 32] {
        keyed(&self.secret, "azekura 1 client proof", &self.bytes)
    }

    /// Key of frames from client to server.
    pub fn client_key(&self) -> FrameKey {
        keyed(&self.secret, "azekura 1 client to server", &self.bytes)
    }

    /// Key of frames from server to client.
    pub fn server_key(&self) -> FrameKey {
        keyed(&self.secret, "azekura 1 server to client", &self.bytes)
    }
}

/// The keyed hash that a greeting carries.
pub fn hello_proof(secret: &Secret, hello: &Hello) -> [u8; 32] {
    keyed(secret, "azekura 1 hello", &hello.to_bytes())
}

/// Compares proofs in constant time.
pub fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

fn keyed(secret: &Secret, context: &str, bytes: &[u8]) -> [u8; 32] {
    let mut material = Vec::with_capacity(32);
    material.extend_from_slice(&secret.0);
    let key = blake3::derive_key(context, &material);
    *blake3::keyed_hash(&key, bytes).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_depend_on_secret_direction_and_both_nonces() {
        let hello = Hello {
            versions: Versions { oldest: 1, newest: 3 },
            session: SessionId(2),
            nonce: [3; 32],
            volume: "v".into(),
            server: false,
            job: "j".into(),
            more: Blob::default(),
        };
        let right = Transcript::new(&Secret([1; 32]), &hello, &[4; 32], 9);
        let mut others = vec![
            Transcript::new(&Secret([2; 32]), &hello, &[4; 32], 9).server_proof(),
            Transcript::new(&Secret([1; 32]), &hello, &[5; 32], 9).server_proof(),
            Transcript::new(&Secret([1; 32]), &hello, &[4; 32], 8).server_proof(),
            Transcript::new(&Secret([1; 32]), &Hello { nonce: [9; 32], ..hello.clone() }, &[4; 32], 9).server_proof(),
        ];
        others.extend([right.client_proof(), right.client_key(), right.server_key()]);
        assert!(others.iter().all(|other| !same(other, &right.server_proof())));
        assert!(same(&right.server_proof(), &Transcript::new(&Secret([1; 32]), &hello, &[4; 32], 9).server_proof()));
    }
    #[test]
    fn the_newest_common_version_is_chosen() {
        let versions = |oldest, newest| Versions { oldest, newest };
        let mine = versions(9, 11);
        for (other, common) in [
            (mine, Some(11)),
            (versions(1, 8), None),
            (versions(1, 9), Some(9)),
            (versions(10, 10), Some(10)),
            (versions(11, 200), Some(11)),
            (versions(12, 200), None),
            (versions(11, 9), None),
        ] {
            assert_eq!((mine.common(other), other.common(mine)), (common, common), "{other}");
        }
        assert_eq!((versions(9, 9).to_string(), versions(9, 11).to_string()), ("9".into(), "9 to 11".into()));
        assert!(mine.contain(9) && mine.contain(11) && !mine.contain(8) && !mine.contain(12));
    }
}
