//! Arguments as C passes them.

use aze_handles::{Error, Result};
use std::ffi::{CStr, c_char, c_void};
use std::slice;

fn fault(what: &str) -> Error {
    Error::new(libc::EFAULT, format!("{what} is a null pointer"))
}

/// The bytes of a text that ends in NUL.
///
/// # Errors
/// EFAULT for a null pointer.
///
/// # Safety
/// The pointer is null, or a text that ends in NUL and that no thread changes during `'a`.
pub unsafe fn bytes_of<'a>(text: *const c_char) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(fault("a path or name"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// The same as text.
///
/// # Errors
/// EFAULT for a null pointer, EINVAL for bytes that are no UTF-8.
///
/// # Safety
/// As [`bytes_of`].
pub unsafe fn text_of<'a>(text: *const c_char) -> Result<&'a str> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { bytes_of(text) }?;
    str::from_utf8(bytes).map_err(|_| Error::new(libc::EINVAL, "a name of a volume is plain text"))
}

/// The same where a null pointer and an empty text mean that there is none.
///
/// # Errors
/// EINVAL for bytes that are no UTF-8.
///
/// # Safety
/// As [`bytes_of`].
pub unsafe fn optional_text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { text_of(text) }?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// An offset or length, which must not be negative.
///
/// # Errors
/// EINVAL if it is.
pub fn offset(offset: i64) -> Result<u64> {
    u64::try_from(offset)
        .map_err(|_| Error::new(libc::EINVAL, format!("{offset}: an offset or length is not negative")))
}

/// Memory of a C program, for as long as an operation needs it.
#[derive(Clone, Copy)]
pub struct Memory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the caller of `Memory::new` promises that any thread may use the memory.
unsafe impl Send for Memory {}

impl Memory {
    /// Takes a pointer and a length.
    ///
    /// # Errors
    /// EFAULT for a null pointer to anything, EINVAL for more bytes than there can be.
    ///
    /// # Safety
    /// Until the operation is over that the result is for, the memory is valid; no other thread uses it, or only reads
    /// it if the operation does no more.
    pub unsafe fn new(start: *const c_void, bytes: usize) -> Result<Memory> {
        if start.is_null() && bytes > 0 {
            return Err(fault("a buffer"));
        }
        if isize::try_from(bytes).is_err() {
            return Err(Error::new(libc::EINVAL, format!("a buffer of {bytes} bytes is larger than memory can be")));
        }
        Ok(Memory { start: start.cast_mut().cast(), bytes })
    }

    /// To be read.
    ///
    /// # Safety
    /// The operation is not over, and it only reads.
    pub unsafe fn read<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: as the callers of `new` and of this function promise.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }

    /// To be written.
    ///
    /// # Safety
    /// The operation is not over, and no other borrow of the memory exists.
    pub unsafe fn write<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as the callers of `new` and of this function promise; bytes have no invalid values.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }

    /// Copies `value` into it, as much as fits; gives how much that is.
    ///
    /// # Safety
    /// As [`Memory::write`].
    pub unsafe fn put(self, value: &[u8]) -> usize {
        let count = value.len().min(self.bytes);
        // SAFETY: as the caller promises.
        let memory = unsafe { self.write() };
        memory[..count].copy_from_slice(&value[..count]);
        count
    }

    /// Its length.
    pub fn len(self) -> usize {
        self.bytes
    }

    /// Whether it has no byte.
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }
}
