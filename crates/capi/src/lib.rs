//! The library for C: it alone knows the functions of `include/azekura.h`, where each is described.
//!
//! Each takes its arguments, does one call of room `handles`, and gives back what C expects. The whole body of each runs
//! in [`aze_cabi::catch`], so that a panic becomes EIO. Paths begin at the root of a volume. What a function needs of its
//! pointers stands in the header, and is what the functions here rely on: see [`aze_cabi`].

#![allow(clippy::missing_safety_doc)]

mod dirs;
mod files;
mod names;
mod queues;
mod volumes;

use std::ffi::{c_char, c_int};

/// Version of the library and its interface.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of the library: `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn aze_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// The sentence of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn aze_last_error() -> *const c_char {
    let none = c"no call of this thread has failed".as_ptr();
    aze_cabi::catch(none, || {
        let last = aze_cabi::last_error();
        Ok(if last.is_null() { none } else { last })
    })
}

/// The system's text for an error number.
#[unsafe(no_mangle)]
pub extern "C" fn aze_strerror(number: c_int) -> *const c_char {
    aze_cabi::catch(c"unknown error".as_ptr(), || {
        // SAFETY: strerror(3) takes any number; glibc gives texts of its own, or one of this thread.
        Ok(unsafe { libc::strerror(number) }.cast_const())
    })
}
