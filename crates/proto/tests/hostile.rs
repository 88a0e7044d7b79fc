//! Hostile bytes into every decoder of the wire, the short form of the fuzz targets: what decodes
//! encodes to the same bytes again, and nothing panics or takes memory that the input could not fill.

use aze_proto::frame;
use aze_proto::handshake::Step;
use aze_proto::message::Envelope;
use aze_proto::wire::Wire;
use aze_proto::{Failure, Reply, Request, ShardMap};
use proptest::prelude::*;

fn round_trip<T: Wire>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        assert_eq!(value.to_bytes(), bytes);
    }
}

fn all(bytes: &[u8]) {
    round_trip::<Envelope>(bytes);
    round_trip::<Reply>(bytes);
    round_trip::<Step>(bytes);
    round_trip::<Failure>(bytes);
    round_trip::<ShardMap>(bytes);
    assert!(frame::open(bytes, 0, Some(&[1; 32])).is_err(), "a frame without the key opened");
    let _ = frame::open(bytes, 0, None);
}

fn tag_max() -> u16 {
    let tags = Request::NAMES.iter().chain(Reply::NAMES).map(|(tag, _)| *tag);
    tags.max().expect("there are messages")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        all(&bytes);
    }

    /// Bytes that begin like a message of every kind get further into the decoders.
    #[test]
    fn any_bytes_after_a_tag(tag in 1..=tag_max(), rest in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 0..300)) {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend_from_slice(&rest);
        all(&bytes);
        let mut envelope = vec![0; 12];
        envelope.extend_from_slice(&bytes);
        all(&envelope);
    }
}
