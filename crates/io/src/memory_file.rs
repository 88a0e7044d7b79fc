//! Memory files. The kernel is asked directly, since `make dist` builds for glibc 2.17, which has no function for them.

use std::ffi::CStr;
use std::io::{Error, Result};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Makes an empty memory file that can be sealed and that programs started later do not get (memfd_create(2)). The name is
/// for people who look into `/proc`.
///
/// # Errors
/// What the system said, as a limit of open files or of memory.
pub(crate) fn create(name: &CStr) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a live C string, which the kernel only reads.
    let made = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
    let fd = RawFd::try_from(made).expect("descriptors are small numbers");
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel just made `fd` for us, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
