//! The mapping itself.
//!
//! It alone knows that the slab is a memory file mapped into this process. Who may touch
//! which bytes of it when it does not know.

use std::ffi::c_int;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use super::SlabError;
use crate::memory_file;

/// A mapped memory file; unmapped when dropped.
pub(super) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Region {}
// SAFETY: all that a shared region gives out is an address; see `Region::at`.
unsafe impl Sync for Region {}

fn system(call: &'static str) -> SlabError {
    SlabError::System(call, Error::last_os_error())
}

fn too_large(call: &'static str) -> SlabError {
    SlabError::System(call, Error::from_raw_os_error(libc::EFBIG))
}

impl Region {
    pub(super) fn new(bytes: usize) -> Result<Self, SlabError> {
        let file = memory_file::create(c"aze-slab").map_err(|error| SlabError::System("memfd_create", error))?;
        let file_bytes = libc::off_t::try_from(bytes).map_err(|_| too_large("ftruncate"))?;
        // SAFETY: takes no pointer.
        if unsafe { libc::ftruncate(file.as_raw_fd(), file_bytes) } != 0 {
            return Err(system("ftruncate"));
        }
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: without MAP_FIXED the kernel picks addresses that nothing uses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(system("mmap"));
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address zero unasked");
        Ok(Region { start, bytes, file })
    }

    /// The file once more, for reading only: from now on it can be written only through mappings that
    /// there are already, nor change its length.
    pub(super) fn reader(&self) -> std::io::Result<OwnedFd> {
        const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE;
        // SAFETY: takes no pointer.
        if unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(Error::last_os_error());
        }
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        std::fs::File::open(path).map(OwnedFd::from)
    }

    /// The address of the `len` bytes at `offset`, all of them mapped.
    pub(super) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "the range lies in the region");
        // SAFETY: just checked that the result is within or one past the mapping, which is one object.
        unsafe { self.start.add(offset) }
    }

    /// Has the kernel find, zero and map the pages of a range that have none yet. Contents
    /// stay, even if others write to them meanwhile. Blocks for about 0.3 µs per KiB.
    /// `false` if there is no memory for it.
    pub(super) fn populate(&self, offset: usize, len: usize) -> bool {
        let start = self.at(offset, len);
        // SAFETY: the range is mapped; this advice changes no contents.
        while unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) } != 0 {
            match Error::last_os_error().raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                Some(libc::EINVAL) => return self.give_pages(offset, len),
                _ => return false,
            }
        }
        true
    }

    /// Populates on kernels before 5.14, which do not know the advice: gives the file its pages and leaves only their
    /// mapping to the first touch. To touch them here would be a data race with a thread that is given the frame
    /// meanwhile.
    fn give_pages(&self, offset: usize, len: usize) -> bool {
        let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) else {
            return false;
        };
        // SAFETY: takes no pointer.
        let given: c_int = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, offset, len) };
        given == 0
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every frame holds the slab, hence the region: no
        // reference into it is left.
        let unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        assert!(unmapped == 0, "a mapping can be unmapped");
    }
}
