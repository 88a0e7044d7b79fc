//! Hostile bytes as an operation of a journal: refused, or decoded to what encodes to the same again.
#![no_main]
use aze_meta::Op;
use aze_proto::wire::Wire;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(op) = Op::from_bytes(bytes) {
        assert_eq!(op.to_bytes(), bytes);
    }
});
