//! The handshake: both ends prove that they know the volume's secret, neither sends it.
//!
//! `Hello` carries a keyed hash over itself, so that a stranger who knocks without the secret is
//! never answered. The server's `Challenge` proves the server (keyed hash over both nonces), the
//! client's `Proof` the client; the keys for the frames that follow are derived from the secret
//! and both nonces. `Welcome` is the first frame under those keys.

use crate::frame::FrameKey;
use crate::ids::{MapEpoch, SessionId};
use crate::wire::Wire;
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
    /// What a client says first.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Hello {
        /// [`fingerprint`](crate::limits::fingerprint) of the client's build.
        pub fingerprint: u64,
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
            /// The server's shard map.
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
    /// Binds secret, greeting and the server's nonce.
    pub fn new(secret: &Secret, hello: &Hello, server_nonce: &[u8; 32]) -> Transcript {
        let mut bytes = hello.to_bytes();
        bytes.extend_from_slice(server_nonce);
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
            fingerprint: 1,
            session: SessionId(2),
            nonce: [3; 32],
            volume: "v".into(),
            server: false,
            job: "j".into(),
        };
        let right = Transcript::new(&Secret([1; 32]), &hello, &[4; 32]);
        let mut others = vec![
            Transcript::new(&Secret([2; 32]), &hello, &[4; 32]).server_proof(),
            Transcript::new(&Secret([1; 32]), &hello, &[5; 32]).server_proof(),
            Transcript::new(&Secret([1; 32]), &Hello { nonce: [9; 32], ..hello.clone() }, &[4; 32]).server_proof(),
        ];
        others.extend([right.client_proof(), right.client_key(), right.server_key()]);
        assert!(others.iter().all(|other| !same(other, &right.server_proof())));
        assert!(same(&right.server_proof(), &Transcript::new(&Secret([1; 32]), &hello, &[4; 32]).server_proof()));
    }
}
