//! Memory of Python objects, read and written where it lies.

use aze_cabi::Memory;
use aze_handles::Error;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Memory that stays where it is until this is dropped, which a thread of Python's does: it takes the interpreter's lock.
pub enum Held {
    /// Of any object with the buffer protocol.
    Buffer(PyUntypedBuffer),
    /// New bytes that no other thread knows yet.
    Bytes(Py<PyBytes>),
}

/// What an object's memory is wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// To be read.
    Read,
    /// To be written.
    Write,
}

/// The memory of an object with the buffer protocol, of any kind of elements.
///
/// # Errors
/// TypeError for an object without such memory or whose memory cannot be written, BufferError if it does not lie together.
pub fn memory_of(object: &Bound<'_, PyAny>, to: Use) -> PyResult<(Held, Memory)> {
    let buffer = PyUntypedBuffer::get(object)?;
    if to == Use::Write && buffer.readonly() {
        return Err(PyTypeError::new_err("memory to read into is needed, and this can only be read"));
    }
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer's memory does not lie together"));
    }
    // SAFETY: the buffer keeps its memory valid until it is released, and is held until the operation is over. Other threads
    // of Python may use the memory meanwhile, as they may during any call that releases the interpreter's lock, read(2)
    // of the standard library among them: the program sees to it that they do not.
    let memory = unsafe { Memory::new(buffer.buf_ptr(), buffer.len_bytes()) };
    let memory = memory.map_err(|error: Error| PyBufferError::new_err(error.text))?;
    Ok((Held::Buffer(buffer), memory))
}

/// New bytes to be read into, as many as that.
///
/// # Errors
/// MemoryError.
pub fn new_bytes(py: Python<'_>, count: usize) -> PyResult<(Py<PyBytes>, Memory)> {
    // SAFETY: without a source it gives new memory of this size, or null with an exception, also for sizes below 0.
    let made = unsafe { pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), count as isize) };
    // SAFETY: it is a new reference, or null.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
    // SAFETY: it has just been made as bytes, which have their memory for as long as they live.
    let start = unsafe { pyo3::ffi::PyBytes_AsString(made.as_ptr()) };
    // SAFETY: the memory is the operation's: no other code has the object yet, and it is held until the operation is over.
    let memory = unsafe { Memory::new(start.cast(), count) }.map_err(|error| PyBufferError::new_err(error.text))?;
    Ok((made.cast_into::<PyBytes>()?.unbind(), memory))
}

/// The first `count` of new bytes, which are all of them in most cases.
pub fn first(py: Python<'_>, bytes: Py<PyBytes>, count: usize) -> Py<PyBytes> {
    let whole = bytes.as_bytes(py);
    if whole.len() == count { bytes } else { PyBytes::new(py, &whole[..count]).unbind() }
}
