//! Failures as exceptions of Python: OSError; Python itself makes its subclass that belongs to the number.

use crate::convert::path_bytes;
use aze_handles::Error;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// The exception for a failure; `names` are the one or two paths that the call was about.
pub fn exception(py: Python<'_>, error: Error, names: &[Py<PyAny>]) -> PyErr {
    let Error { errno, text } = error;
    // Python puts the paths behind the sentence by itself.
    let first = names.first().and_then(|name| path_bytes(name.bind(py)).ok()).unwrap_or_default();
    let first = String::from_utf8_lossy(&first).into_owned();
    let text = text.strip_prefix(&first).and_then(|rest| rest.strip_prefix(": ")).map(str::to_owned).unwrap_or(text);
    let name = |at: usize| names.get(at).map(|name| name.clone_ref(py));
    match (name(0), name(1)) {
        (Some(one), Some(two)) => PyOSError::new_err((errno, text, one, None::<i32>, two)),
        (Some(one), None) => PyOSError::new_err((errno, text, one)),
        _ => PyOSError::new_err((errno, text)),
    }
}
