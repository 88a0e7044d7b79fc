//! The library for Python: it alone knows what Python sees of calls, namely objects, buffers and exceptions.
//!
//! The module `_azekura` has what the package `azekura` (folder `python`) is written with: volumes, requests, open files
//! and queues. A [`request::Request`] names an operation and does nothing; it is waited for alone or with others
//! ([`volume::Volume`]), or queued ([`queue::Queue`]). Modes of open, buffering, text, and walks stand in the
//! package, which is written in Python.
//!
//! The interpreter's lock is released while a call waits. No thread but that of the caller takes it, since callers may
//! hold it while they wait for locks of a connection.

mod buffer;
mod convert;
mod error;
mod file;
mod queue;
mod request;
mod volume;
mod wait;

use pyo3::prelude::*;

/// The compiled part of the package `azekura`, which is to be used instead.
#[pymodule]
mod _azekura {
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::queue::Queue;
    #[pymodule_export]
    use crate::request::Request;
    #[pymodule_export]
    use crate::volume::Volume;

    /// Version of the library, which is that of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const version: &str = env!("CARGO_PKG_VERSION");
}
