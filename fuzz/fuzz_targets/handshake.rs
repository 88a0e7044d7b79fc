//! Hostile bytes as a handshake: refused, or decoded to what encodes to the same bytes again.
#![no_main]
use aze_proto::handshake::Step as Message;
use aze_proto::wire::Wire;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::from_bytes(bytes) {
        assert_eq!(message.to_bytes(), bytes);
    }
});
