//! Hostile bytes as the head of a frame: refused or opened, never a panic.
#![no_main]
use aze_proto::frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = frame::open(bytes, 0, None);
    let _ = frame::open(bytes, 0, Some(&[7; 32]));
});
