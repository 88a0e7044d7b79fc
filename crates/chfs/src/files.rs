//! Open files.

use crate::connection::{chunk_bits, connected, files, size};
use crate::names::path_of;
use aze_cabi::{Memory, catch, offset};
use aze_handles::{File, Flags, Result, Whence, chunk_bits_of};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Makes a file unless it is there, and opens it.
unsafe fn create(path: *const c_char, mode: libc::mode_t, chunk_bits: u8) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = (connected()?, unsafe { path_of(path) }?);
        let flags = Flags { create: true, chunk_bits, ..Flags::read_write() };
        files().insert(connected.wait(connected.open(path, flags, mode & 0o7777))?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_create(path: *const c_char, _flags: i32, mode: libc::mode_t) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { create(path, mode, chunk_bits()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_create_chunk_size(
    path: *const c_char,
    _flags: i32,
    mode: libc::mode_t,
    chunk_size: c_int,
) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { create(path, mode, chunk_bits_of(size(chunk_size))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_open(path: *const c_char, _flags: i32) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = (connected()?, unsafe { path_of(path) }?);
        // Most are opened to be read: then a small file comes with the open, in one request.
        let flags = Flags { writes_later: true, ..Flags::parse(libc::O_RDONLY)? };
        files().insert(connected.wait(connected.open(path, flags, 0))?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_close(fd: c_int) -> c_int {
    catch(-1, || files().remove(fd)?.close().map(|()| 0))
}

/// Does something with an open file, and waits for it.
fn with<F: Future<Output = Result<usize>>>(fd: c_int, operation: impl FnOnce(Arc<File>) -> Result<F>) -> isize {
    catch(-1, || {
        let file = files().get(fd)?;
        let connected = file.connected()?;
        connected.wait(operation(file)?).map(usize::cast_signed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_pwrite(fd: c_int, buf: *const c_void, size: usize, at: libc::off_t) -> isize {
    with(fd, |file| {
        // SAFETY: as the header asks of callers.
        let (memory, at) = (unsafe { Memory::new(buf, size) }?, offset(at)?);
        // SAFETY: the call lasts until the operation is over.
        Ok(async move { file.write_at(at, unsafe { memory.read() }).await })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_pread(fd: c_int, buf: *mut c_void, size: usize, at: libc::off_t) -> isize {
    with(fd, |file| {
        // SAFETY: as the header asks of callers.
        let (memory, at) = (unsafe { Memory::new(buf, size) }?, offset(at)?);
        // SAFETY: the call lasts until the operation is over.
        Ok(async move { file.read_at(at, unsafe { memory.write() }).await })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_write(fd: c_int, buf: *const c_void, size: usize) -> isize {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buf, size) }?;
        // SAFETY: the call lasts until the operation is over.
        files().get(fd)?.write(unsafe { memory.read() }).map(usize::cast_signed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_read(fd: c_int, buf: *mut c_void, size: usize) -> isize {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buf, size) }?;
        // SAFETY: the call lasts until the operation is over.
        files().get(fd)?.read(unsafe { memory.write() }).map(usize::cast_signed)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_seek(fd: c_int, off: libc::off_t, whence: c_int) -> libc::off_t {
    catch(-1, || files().get(fd)?.seek(off, Whence::of_number(whence)?).map(u64::cast_signed))
}

#[unsafe(no_mangle)]
pub extern "C" fn chfs_fsync(fd: c_int) -> c_int {
    with(fd, |file| Ok(async move { file.sync().await.map(|()| 0) })) as c_int
}
