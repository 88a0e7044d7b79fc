//! One record of a journal or checkpoint: a head, which says what happened, and a payload, which is
//! file data or empty. Each has a checksum in the record's own header, which has one, too; so a
//! payload that has changed by itself is recognised, and does not hide the records behind it.

use aze_proto::sum::{crc32c, crc32c_append};
use aze_proto::{Configuration, SlotIndex};

/// Bytes before the head.
pub const HEADER_BYTES: usize = 64;

/// First bytes of every record: `AZR3`.
const MAGIC: u32 = u32::from_le_bytes(*b"AZR3");

/// In the place of a slot's number: the record belongs to none.
const NO_SLOT: u32 = u32::MAX;

/// Longest head; a longer one can only be damage. A shard's tables go into several records.
pub const HEAD_BYTES_MAX: usize = 64 << 20;

/// Longest payload: the largest chunk.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// What a record's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the head in bytes.
    pub head_bytes: u32,
    /// Length of the payload in bytes.
    pub payload_bytes: u32,
    head_sum: u32,
    payload_sum: u32,
    /// Where the record begins, counted from the beginning of the first journal.
    pub position: u64,
    /// Up to where the journal was durable when the record was made.
    pub durable: u64,
    /// The logical time of the record: greater in each one of a journal than in the one before.
    pub order: u64,
    /// The slot whose log it belongs to; `None` for what the server as a whole knows.
    pub of: Option<Entry>,
}

/// Where a record stands in the log of a slot: the slots of a server share its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The slot.
    pub slot: SlotIndex,
    /// The configuration of the slot in which it was made.
    pub configuration: Configuration,
    /// Counts the records of the slot's journal from 1, whichever server has it; 0 in checkpoints.
    pub serial: u64,
}

/// Where a record stands: as in [`Header`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// Where it begins.
    pub position: u64,
    /// Up to where the journal was durable.
    pub durable: u64,
    /// Its logical time.
    pub order: u64,
    /// Where in the log of a slot, if it is of one.
    pub of: Option<Entry>,
}

/// Adds a record to `out`.
///
/// # Panics
/// If head or payload are longer than can be.
pub fn put(out: &mut Vec<u8>, at: Place, head: &[u8], payload: &[u8]) {
    put_parts(out, at, head, &[payload]);
}

/// As [`put`], with a payload in several parts.
///
/// # Panics
/// As [`put`].
pub fn put_parts(out: &mut Vec<u8>, at: Place, head: &[u8], payload: &[&[u8]]) {
    let Place { position, durable, order, of } = at;
    let (slot, configuration, serial) = of.map_or((NO_SLOT, 0, 0), |of| (of.slot.0, of.configuration.0, of.serial));
    let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
    assert!(head.len() <= HEAD_BYTES_MAX && payload_bytes <= PAYLOAD_BYTES_MAX, "a record is too long");
    let start = out.len();
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&(head.len() as u32).to_le_bytes());
    out.extend_from_slice(&(payload_bytes as u32).to_le_bytes());
    let payload_sum = payload.iter().fold(0, |sum, part| crc32c_append(sum, part));
    out.extend_from_slice(&crc32c(head).to_le_bytes());
    out.extend_from_slice(&payload_sum.to_le_bytes());
    out.extend_from_slice(&position.to_le_bytes());
    out.extend_from_slice(&durable.to_le_bytes());
    out.extend_from_slice(&order.to_le_bytes());
    out.extend_from_slice(&slot.to_le_bytes());
    out.extend_from_slice(&configuration.to_le_bytes());
    out.extend_from_slice(&serial.to_le_bytes());
    let sum = crc32c(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(head);
    payload.iter().for_each(|part| out.extend_from_slice(part));
}

/// Bytes that a record takes.
pub fn size(head: &[u8], payload_bytes: usize) -> u64 {
    (HEADER_BYTES + head.len() + payload_bytes) as u64
}

impl Header {
    /// Reads a header; `None` if these bytes are none.
    pub fn take(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if word(0) != MAGIC || word(60) != crc32c(&bytes[..60]) {
            return None;
        }
        let header = Header {
            head_bytes: word(4),
            payload_bytes: word(8),
            head_sum: word(12),
            payload_sum: word(16),
            position: long(20),
            durable: long(28),
            order: long(36),
            of: (word(44) != NO_SLOT).then(|| Entry {
                slot: SlotIndex(word(44)),
                configuration: Configuration(word(48)),
                serial: long(52),
            }),
        };
        let fits = header.head_bytes as usize <= HEAD_BYTES_MAX && header.payload_bytes as usize <= PAYLOAD_BYTES_MAX;
        fits.then_some(header)
    }

    /// Length of the whole record.
    pub fn record_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.head_bytes) + u64::from(self.payload_bytes)
    }

    /// Whether a head is the one that was written.
    pub fn fits_head(&self, head: &[u8]) -> bool {
        head.len() == self.head_bytes as usize && crc32c(head) == self.head_sum
    }

    /// Whether a payload is the one that was written.
    pub fn fits_payload(&self, payload: &[u8]) -> bool {
        payload.len() == self.payload_bytes as usize && crc32c(payload) == self.payload_sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of these bytes is another format: see `manifest::FORMAT`.
    #[test]
    fn a_record_looks_like_this() {
        let mut bytes = Vec::new();
        let of = Entry { slot: SlotIndex(0x55), configuration: Configuration(0x66), serial: 0x77 };
        let at = Place { position: 0x1122, durable: 0x33, order: 0x44, of: Some(of) };
        put(&mut bytes, at, b"head", b"payload");
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, GOLDEN);
        let header = Header::take(&bytes).expect("it is a record");
        assert!(header.fits_head(b"head") && header.fits_payload(b"payload"));
        assert_eq!((header.position, header.durable, header.order, header.of), (0x1122, 0x33, 0x44, Some(of)));
        assert_eq!(header.record_bytes(), bytes.len() as u64);
    }

    const GOLDEN: &str = concat!(
        "415a52330400000007000000e8977cea7069e3f4",
        "221100000000000033000000000000004400000000000000",
        "550000006600000077000000000000000fa82d22",
        "686561647061796c6f6164",
    );

    #[test]
    fn every_flipped_bit_is_found() {
        let mut bytes = Vec::new();
        put(&mut bytes, Place { position: 7, durable: 3, order: 5, of: None }, b"some head", b"some payload");
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let sound = Header::take(&bytes).is_some_and(|header| {
                let (head, payload) = bytes[HEADER_BYTES..].split_at(9);
                header.fits_head(head) && header.fits_payload(payload)
            });
            assert!(!sound, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
