//! Between a body in Rust and its caller in C: failures become errno, and panics become EIO.

use aze_handles::{Error, Result};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;

thread_local! {
    /// The sentence of this thread's last failure.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the whole body of a function that C calls. A failure sets errno and gives `failed`; a panic sets EIO, and the
/// program goes on. A success leaves errno as it is.
pub fn catch<T>(failed: T, body: impl FnOnce() -> Result<T>) -> T {
    guarded(body).unwrap_or_else(|error| {
        raise(&error);
        failed
    })
}

/// Runs a body; none of its panics may leave the library.
///
/// # Errors
/// Those of the body; EIO for a panic.
pub fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves half-changed is a connection, which refuses every later call then.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // A payload may panic when it is dropped; it is a text in nearly all cases.
        std::mem::forget(payload);
        Err(Error::new(libc::EIO, "a defect in Azekura: its message is on standard error"))
    })
}

/// Sets errno, and the sentence of [`last_error`].
pub fn raise(error: &Error) {
    let text = CString::new(error.text.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no sentence any more.
    let _ = LAST.try_with(|last| last.replace(Some(text)));
    // SAFETY: the system gives a valid pointer to this thread's errno.
    unsafe { *libc::__errno_location() = error.errno };
}

/// The sentence of this thread's last failure, or null; valid until its next failure.
pub fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ref().map_or(null(), |text| text.as_ptr())).unwrap_or(null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::io;

    fn said() -> String {
        // SAFETY: there was a failure on this thread, and none since the pointer was asked for.
        unsafe { CStr::from_ptr(last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn failures_and_panics_become_errno() {
        assert!(last_error().is_null());
        assert_eq!(catch(-1, || Err(Error::new(libc::EBADF, "no such\0file"))), -1);
        assert_eq!((io::Error::last_os_error().raw_os_error(), said()), (Some(libc::EBADF), "no such file".into()));
        assert_eq!(catch(-1, || Ok(3)), 3);
        assert_eq!(said(), "no such file", "a success changes nothing");
        assert_eq!(catch(-1, || panic!("planted")), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        assert!(said().starts_with("a defect in Azekura"));
    }
}
