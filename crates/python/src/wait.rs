//! Waiting without the interpreter's lock, so that other threads of Python go on, and signals are heard.

use crate::error::exception;
use aze_cabi::guarded;
use aze_handles::{Connected, Error, Result};
use pyo3::prelude::*;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a wait goes on before signals are looked after: what an interrupt by the keyboard takes at most.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Why a call failed.
pub enum Failed {
    /// The operation failed.
    Operation(Error),
    /// The handler of a signal raised an exception: the operation was given up, and may have taken effect.
    Signal(PyErr),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Operation(error)
    }
}

impl Failed {
    /// The exception for it; `names` are the paths that the call was about.
    pub fn exception(self, py: Python<'_>, names: &[Py<PyAny>]) -> PyErr {
        match self {
            Failed::Operation(error) => exception(py, error, names),
            Failed::Signal(raised) => raised,
        }
    }
}

/// Does something that may block without the interpreter's lock; a panic becomes EIO.
pub fn without_lock<T: Send>(
    py: Python<'_>,
    body: impl FnOnce() -> std::result::Result<T, Failed> + Send,
) -> std::result::Result<T, Failed> {
    // The outer result is that of a panic.
    py.detach(|| guarded(|| Ok(body()))).unwrap_or_else(|defect| Err(defect.into()))
}

/// Blocks until an operation is done; called without the interpreter's lock.
pub fn wait_for<T>(
    connected: &Arc<Connected>,
    operation: impl Future<Output = Result<T>>,
) -> std::result::Result<T, Failed> {
    let mut operation = pin!(operation);
    loop {
        if let Some(done) = connected.wait_within(SIGNALS_EVERY, operation.as_mut())? {
            return Ok(done);
        }
        Python::attach(|py| py.check_signals()).map_err(Failed::Signal)?;
    }
}

/// As [`wait_for`], for an operation that must not be dropped on its way: at a signal it is told to stop, and waited for. Gives
/// its result, and the exception of the signal.
pub fn wait_or_stop<T>(
    connected: &Arc<Connected>,
    operation: impl Future<Output = Result<T>>,
    stop: impl FnOnce(),
) -> (Result<T>, Option<Failed>) {
    let mut operation = pin!(operation);
    loop {
        match connected.wait_within(SIGNALS_EVERY, operation.as_mut()) {
            Ok(Some(done)) => return (Ok(done), None),
            Ok(None) => {}
            Err(error) => return (Err(error), None),
        }
        if let Err(raised) = Python::attach(|py| py.check_signals()) {
            stop();
            return (connected.wait(operation), Some(Failed::Signal(raised)));
        }
    }
}
