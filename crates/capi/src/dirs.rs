//! Open directories.

use crate::volumes::{Opened, connected};
use aze_cabi::{bytes_of, catch, fill_dirent, raise};
use aze_handles::{Dir, Error, Result};
use std::ffi::{c_char, c_int, c_long};
use std::ptr::null_mut;
use std::sync::Arc;

/// What `aze_dir` is. As with readdir(3), one thread at a time uses it.
pub struct OpenedDir {
    dir: Arc<Dir>,
    entry: libc::dirent,
}

unsafe fn opened<'a>(dir: *mut OpenedDir) -> Result<&'a mut OpenedDir> {
    // SAFETY: as the header asks of callers: null, or from `aze_opendir`, not closed, and used by one thread at a time.
    unsafe { dir.as_mut() }.ok_or_else(|| Error::new(libc::EBADF, "a directory is a null pointer"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_opendir(volume: *const Opened, path: *const c_char) -> *mut OpenedDir {
    catch(null_mut(), || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = unsafe { (connected(volume)?, bytes_of(path)?) };
        let dir = connected.wait(connected.open_dir(path, false))?;
        // SAFETY: all fields are numbers, for which zero is a value.
        let entry = unsafe { std::mem::zeroed() };
        Ok(Box::into_raw(Box::new(OpenedDir { dir, entry })))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_readdir(dir: *mut OpenedDir) -> *mut libc::dirent {
    catch(null_mut(), || {
        // SAFETY: as the header asks of callers.
        let opened = unsafe { opened(dir) }?;
        let Some(entry) = opened.dir.read()? else { return Ok(null_mut()) };
        fill_dirent(&mut opened.entry, &entry.name, entry.ino, entry.kind, entry.next);
        Ok(&raw mut opened.entry)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_telldir(dir: *mut OpenedDir) -> c_long {
    // SAFETY: as the header asks of callers.
    catch(-1, || Ok(unsafe { opened(dir) }?.dir.tell()?.cast_signed()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_seekdir(dir: *mut OpenedDir, to: c_long) {
    catch((), || {
        // SAFETY: as the header asks of callers.
        let opened = unsafe { opened(dir) }?;
        opened.dir.seek(to.cast_unsigned())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_rewinddir(dir: *mut OpenedDir) {
    // SAFETY: as the header asks of callers.
    unsafe { aze_seekdir(dir, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_closedir(dir: *mut OpenedDir) -> c_int {
    catch(-1, || {
        if dir.is_null() {
            return Err(Error::new(libc::EBADF, "a directory is a null pointer"));
        }
        // SAFETY: as the header asks of callers: it came from `aze_opendir`, and is not used any more.
        let closed = unsafe { Box::from_raw(dir) };
        if let Err(error) = closed.dir.tell() {
            raise(&error);
            return Ok(-1);
        }
        Ok(0)
    })
}
