//! Names and directories.

use crate::connection::connected;
use aze_cabi::{Memory, bytes_of, catch, offset, stat_of};
use aze_handles::{Connected, DirEntry, Error, Result};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;

/// What a listing calls for each entry: its own argument, a name, attributes, and 0.
type Filler = unsafe extern "C" fn(*mut c_void, *const c_char, *const libc::stat, libc::off_t) -> c_int;

/// A path without the slashes at its end: programs add them to names of files, too.
///
/// # Safety
/// As [`bytes_of`].
pub unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a [u8]> {
    // SAFETY: as the caller promises.
    let path = unsafe { bytes_of(path) }?;
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    Ok(&path[..end.min(path.len())])
}

/// Does something with the path, and waits for it.
unsafe fn done<'a, F: Future<Output = Result<()>>>(
    path: *const c_char,
    operation: impl FnOnce(Arc<Connected>, &'a [u8]) -> Result<F>,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = (connected()?, unsafe { path_of(path) }?);
        connected.wait(operation(connected.clone(), path)?).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_truncate(path: *const c_char, len: libc::off_t) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe {
        done(path, |connected, path| {
            let len = offset(len)?;
            Ok(async move { connected.truncate(path, len).await })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_unlink(path: *const c_char) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { done(path, |connected, path| Ok(async move { connected.unlink(path).await })) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_mkdir(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { done(path, |connected, path| Ok(async move { connected.mkdir(path, mode & 0o7777).await })) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_rmdir(path: *const c_char) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { done(path, |connected, path| Ok(async move { connected.rmdir(path).await })) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_stat(path: *const c_char, st: *mut libc::stat) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe {
        done(path, |connected, path| {
            let st =
                st.as_mut().ok_or_else(|| Error::new(libc::EFAULT, "the place for attributes is a null pointer"))?;
            Ok(async move {
                *st = stat_of(&connected.stat(path, false).await?);
                Ok(())
            })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe {
        done(path, |connected, path| {
            let target = bytes_of(target)?;
            Ok(async move { connected.symlink(target, path).await })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_readlink(path: *const c_char, buf: *mut c_char, size: usize) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = (connected()?, unsafe { path_of(path) }?);
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buf.cast(), size) }?;
        let mut target = connected.wait(connected.readlink(path))?;
        let count = target.len().min(size);
        target.push(0);
        // SAFETY: the call lasts until the memory is written.
        unsafe { memory.put(&target) };
        Ok(count as c_int)
    })
}

/// Calls `filler` for these entries; false if it wants no more.
///
/// # Safety
/// `filler` is a function of the caller's that takes `buf`.
unsafe fn fill(entries: Vec<DirEntry>, buf: *mut c_void, filler: Filler) -> bool {
    entries.into_iter().all(|entry| {
        // Entries come with attributes; names have no NUL.
        let (Some(attr), Ok(name)) = (entry.attr, CString::new(entry.name)) else { return true };
        let stat = stat_of(&attr);
        // SAFETY: as the caller promises; name and attributes live until the call returns.
        unsafe { filler(buf, name.as_ptr(), &stat, 0) == 0 }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_readdir(path: *const c_char, buf: *mut c_void, filler: Option<Filler>) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = (connected()?, unsafe { path_of(path) }?);
        let filler = filler.ok_or_else(|| Error::new(libc::EFAULT, "the filler is a null pointer"))?;
        for server in 0..connected.servers() {
            let entries = connected.wait(connected.entries_on(path, server))?;
            // SAFETY: as the header asks of callers.
            if !unsafe { fill(entries, buf, filler) } {
                break;
            }
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_readdir_index(
    path: *const c_char,
    index: c_int,
    buf: *mut c_void,
    filler: Option<Filler>,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = (connected()?, unsafe { path_of(path) }?);
        let (Ok(server), Some(filler)) = (usize::try_from(index), filler) else { return Ok(0) };
        let entries = connected.wait(connected.entries_on(path, server))?;
        // SAFETY: as the header asks of callers.
        unsafe { fill(entries, buf, filler) };
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_at_the_end_do_not_count() {
        for (given, taken) in [(c"/a/b//", "/a/b"), (c"a", "a"), (c"/", "/"), (c"//", "/"), (c"", ""), (c"a/./", "a/.")]
        {
            // SAFETY: the text lives for ever.
            let path = unsafe { path_of(given.as_ptr()) }.unwrap();
            assert_eq!(path, taken.as_bytes(), "{given:?}");
        }
    }
}
