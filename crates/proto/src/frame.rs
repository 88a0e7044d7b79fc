//! The head of every frame: a fixed header, then the body; bulk data follow as the payload.
//!
//! One keyed hash (BLAKE3, 128 bits) over header and body authenticates both; the body holds the
//! checksums of the payload's blocks. Those find damage, not malice: against an attacker on the path
//! who rewrites payloads only an encrypted transport helps.

use crate::ids::{JobId, MapEpoch, NamespaceEpoch, Order, Sequence, SessionId, ShardId, Time};
use crate::limits::{HANDSHAKE_VERSION, WIRE_VERSION, WIRE_VERSIONS};
use crate::sum::crc32c;
use crate::wire::{Input, Malformed, Wire};

/// First bytes of every frame.
pub const MAGIC: [u8; 3] = *b"AZK";
/// Length of the encoded header in bytes.
pub const HEADER_BYTES: usize = 112;
const MAC_BYTES: usize = 16;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A step of the handshake.
    Handshake,
    /// A request.
    Request,
    /// A reply that carries the result.
    Reply,
    /// A reply that carries a [`Failure`](crate::Failure).
    Failure,
}

/// The fixed part of a frame. In a reply `call` repeats the request's; `map_epoch`,
/// `namespace_epoch`, `time`, `order` and `deadline_ms` are the server's; the rest is zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of its encoding: [`HANDSHAKE_VERSION`] until both ends have agreed on another one.
    pub version: u8,
    /// What the frame is for.
    pub kind: Kind,
    /// Pairs reply and request on one connection.
    pub call: u64,
    /// Who sends: one process from start to end.
    pub session: SessionId,
    /// The change, counted per session and shard; 0 for what changes nothing.
    pub sequence: Sequence,
    /// Lowest sequence at this shard whose reply is still wanted.
    pub floor: Sequence,
    /// The shard that is meant; 0 where the message names none.
    pub shard: ShardId,
    /// The sender's shard map.
    pub map_epoch: MapEpoch,
    /// What the sender knows of renamed directories.
    pub namespace_epoch: NamespaceEpoch,
    /// The largest time the sender has seen.
    pub time: Time,
    /// The sender's logical time.
    pub order: Order,
    /// The job that is accounted.
    pub job: JobId,
    /// In a request the milliseconds after which the sender gives up. In a reply those for which the asker
    /// may believe it, counted from before it asked, unless it is told otherwise; 0: it is told nothing.
    pub deadline_ms: u32,
}

impl Header {
    /// A header with everything else zero, of the newest version, or of the handshake's if it is a step of that.
    pub fn new(kind: Kind, call: u64) -> Header {
        Header {
            version: if kind == Kind::Handshake { HANDSHAKE_VERSION } else { WIRE_VERSION },
            kind,
            call,
            session: SessionId(0),
            sequence: Sequence(0),
            floor: Sequence(0),
            shard: ShardId(0),
            map_epoch: MapEpoch(0),
            namespace_epoch: NamespaceEpoch(0),
            time: Time(0),
            order: Order(0),
            job: JobId(0),
            deadline_ms: 0,
        }
    }
}

/// A key that authenticates the frames of one direction of one connection.
pub type FrameKey = [u8; 32];

fn mac(key: Option<&FrameKey>, header: &[u8], body: &[u8]) -> [u8; MAC_BYTES] {
    let mut mac = [0; MAC_BYTES];
    if let Some(key) = key {
        let hash = blake3::Hasher::new_keyed(key).update(header).update(body).finalize();
        mac.copy_from_slice(&hash.as_bytes()[..MAC_BYTES]);
    }
    mac
}

/// Encodes header and body. Without a key (local sockets, whose ends the kernel vouches for, and
/// the handshake) the field for the hash is zero.
pub fn seal(header: &Header, body: &[u8], payload_bytes: usize, key: Option<&FrameKey>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.extend_from_slice(&MAGIC);
    header.version.put(&mut out);
    u32::from(kind_number(header.kind)).put(&mut out);
    header.call.put(&mut out);
    header.session.put(&mut out);
    header.sequence.put(&mut out);
    header.floor.put(&mut out);
    header.namespace_epoch.put(&mut out);
    header.time.put(&mut out);
    header.order.put(&mut out);
    header.job.put(&mut out);
    header.shard.put(&mut out);
    header.map_epoch.put(&mut out);
    header.deadline_ms.put(&mut out);
    (body.len() as u32).put(&mut out);
    (payload_bytes as u32).put(&mut out);
    crc32c(body).put(&mut out);
    let mac = mac(key, &out, body);
    out.extend_from_slice(&mac);
    debug_assert_eq!(out.len(), HEADER_BYTES);
    out.extend_from_slice(body);
    out
}

/// Checks and decodes a head; gives the header and the body.
///
/// # Errors
/// Wrong magic, a version that this build does not speak, lengths that do not fit, a checksum or keyed hash that does not match.
/// The payload's own checksums are in the body: the caller that decodes it compares them.
pub fn open<'a>(head: &'a [u8], payload_bytes: usize, key: Option<&FrameKey>) -> Result<(Header, &'a [u8]), Malformed> {
    let mut input = Input::new(head);
    if input.array("the frame's magic")? != MAGIC {
        return Err(Malformed { what: "the magic number of a frame", at: 0 });
    }
    let version = u8::take(&mut input)?;
    if version != HANDSHAKE_VERSION && !WIRE_VERSIONS.contain(version) {
        return Err(Malformed { what: "the version of a frame", at: 3 });
    }
    let kind = kind_of(u32::take(&mut input)?).ok_or(Malformed { what: "the kind of a frame", at: 4 })?;
    let header = Header {
        version,
        kind,
        call: Wire::take(&mut input)?,
        session: Wire::take(&mut input)?,
        sequence: Wire::take(&mut input)?,
        floor: Wire::take(&mut input)?,
        namespace_epoch: Wire::take(&mut input)?,
        time: Wire::take(&mut input)?,
        order: Wire::take(&mut input)?,
        job: Wire::take(&mut input)?,
        shard: Wire::take(&mut input)?,
        map_epoch: Wire::take(&mut input)?,
        deadline_ms: Wire::take(&mut input)?,
    };
    let (body_bytes, payload_said, body_sum) = (u32::take(&mut input)?, u32::take(&mut input)?, u32::take(&mut input)?);
    let sent_mac: [u8; MAC_BYTES] = input.array("the keyed hash of a frame")?;
    if body_bytes as usize != input.left() || payload_said as usize != payload_bytes {
        return Err(input.malformed("the lengths of a frame"));
    }
    let body = &head[HEADER_BYTES..];
    let right_mac = mac(key, &head[..HEADER_BYTES - MAC_BYTES], body);
    // Constant time: an attacker must not learn how many bytes of a forged hash were right.
    if right_mac.iter().zip(sent_mac).fold(0, |difference, (a, b)| difference | (a ^ b)) != 0 {
        return Err(input.malformed("the keyed hash of a frame does not match"));
    }
    if crc32c(body) != body_sum {
        return Err(input.malformed("the checksum of a message does not match"));
    }
    Ok((header, body))
}

/// The kind and the body of a head, unchecked: for those who watch frames and act on nothing of them.
pub fn look(head: &[u8]) -> Option<(Kind, &[u8])> {
    let mut input = Input::new(head.get(MAGIC.len() + 1..)?);
    Some((kind_of(u32::take(&mut input).ok()?)?, head.get(HEADER_BYTES..)?))
}

fn kind_number(kind: Kind) -> u8 {
    match kind {
        Kind::Handshake => 1,
        Kind::Request => 2,
        Kind::Reply => 3,
        Kind::Failure => 4,
    }
}

fn kind_of(number: u32) -> Option<Kind> {
    [Kind::Handshake, Kind::Request, Kind::Reply, Kind::Failure]
        .into_iter()
        .find(|kind| u32::from(kind_number(*kind)) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            session: SessionId(3),
            sequence: Sequence(4),
            shard: ShardId(5),
            deadline_ms: 10_000,
            ..Header::new(Kind::Request, 9)
        }
    }

    #[test]
    fn a_sealed_frame_opens() {
        let key = [7; 32];
        let head = seal(&sample(), b"body", 12, Some(&key));
        assert_eq!(open(&head, 12, Some(&key)), Ok((sample(), &b"body"[..])));
        assert!(open(&head, 13, Some(&key)).is_err());
        assert!(open(&head, 12, Some(&[8; 32])).is_err());
        assert!(open(&head, 12, None).is_err());
        assert_eq!(look(&head), Some((Kind::Request, &b"body"[..])));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let key = [7; 32];
        let head = seal(&sample(), b"a body of some length", 0, Some(&key));
        for bit in 0..head.len() * 8 {
            let mut bad = head.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&bad, 0, Some(&key)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn no_prefix_opens() {
        let head = seal(&sample(), b"body", 0, None);
        for len in 0..head.len() {
            assert!(open(&head[..len], 0, None).is_err());
        }
    }
}
