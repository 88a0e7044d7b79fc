//! Names, and attributes by name.

use crate::files::{id, times_of};
use crate::volumes::{Opened, connected, done, out};
use aze_cabi::{Memory, bytes_of, catch, offset, stat_of};
use aze_handles::{Error, Result, XattrHow};
use std::ffi::{c_char, c_int, c_uint, c_void};

unsafe fn stat(volume: *const Opened, path: *const c_char, stat: *mut libc::stat, follow: bool) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe {
        done(volume, |connected| {
            let (path, stat) = (bytes_of(path)?, out(stat)?);
            Ok(async move {
                *stat = stat_of(&connected.stat(path, follow).await?);
                Ok(())
            })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_stat(volume: *const Opened, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { stat(volume, path, to, true) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_lstat(volume: *const Opened, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { stat(volume, path, to, false) }
}

/// Defines a function that does one thing to a path.
macro_rules! by_path {
    ($(fn $function:ident($($argument:ident: $type:ty),*) = |$connected:ident, $path:ident| $operation:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(volume: *const Opened, path: *const c_char $(, $argument: $type)*) -> c_int {
            // SAFETY: as the header asks of callers.
            unsafe {
                done(volume, |$connected| {
                    let $path = bytes_of(path)?;
                    Ok(async move { $operation.await })
                })
            }
        }
    )*};
}

by_path! {
    fn aze_mkdir(mode: libc::mode_t) = |connected, path| connected.mkdir(path, mode);
    fn aze_mkdir_private(mode: libc::mode_t) = |connected, path| connected.mkdir_private(path, mode);
    fn aze_rmdir() = |connected, path| connected.rmdir(path);
    fn aze_unlink() = |connected, path| connected.unlink(path);
    fn aze_truncate(length: libc::off_t) = |connected, path| async { connected.truncate(path, offset(length)?).await };
    fn aze_chmod(mode: libc::mode_t) = |connected, path| connected.chmod(path, mode, true);
    fn aze_chown(uid: libc::uid_t, gid: libc::gid_t) = |connected, path| connected.chown(path, id(uid), id(gid), true);
    fn aze_lchown(uid: libc::uid_t, gid: libc::gid_t) = |connected, path| connected.chown(path, id(uid), id(gid), false);
    fn aze_utimens(times: *const libc::timespec) =
        |connected, path| async { connected.set_times(path, times_of(times)?, true).await };
    fn aze_lutimens(times: *const libc::timespec) =
        |connected, path| async { connected.set_times(path, times_of(times)?, false).await };
    fn aze_rename(to: *const c_char) = |connected, path| async { connected.rename(path, bytes_of(to)?, 0).await };
    fn aze_rename2(to: *const c_char, flags: c_uint) =
        |connected, path| async { connected.rename(path, bytes_of(to)?, flags).await };
    fn aze_link(path_new: *const c_char) =
        |connected, path| async { connected.link(path, bytes_of(path_new)?, false).await };
    fn aze_removexattr(name: *const c_char) =
        |connected, path| async { connected.remove_xattr(path, bytes_of(name)?, true).await };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_symlink(volume: *const Opened, target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe {
        done(volume, |connected| {
            let (target, path) = (bytes_of(target)?, bytes_of(path)?);
            Ok(async move { connected.symlink(target, path).await })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_readlink(
    volume: *const Opened,
    path: *const c_char,
    buffer: *mut c_char,
    bytes: usize,
) -> isize {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = unsafe { (connected(volume)?, bytes_of(path)?) };
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buffer.cast(), bytes) }?;
        if memory.is_empty() {
            return Err(Error::new(libc::EINVAL, "a target does not fit into 0 bytes"));
        }
        let target = connected.wait(connected.readlink(path))?;
        // SAFETY: the call lasts until the memory is written.
        Ok(unsafe { memory.put(&target) }.cast_signed())
    })
}

/// Gives a value as getxattr(2) does: its length only where there is no room at all.
///
/// # Safety
/// The memory is valid, and no other thread uses it.
unsafe fn give(value: &[u8], memory: Memory) -> Result<isize> {
    if memory.is_empty() {
        return Ok(value.len().cast_signed());
    }
    if value.len() > memory.len() {
        let text = format!("{} bytes do not fit into {}", value.len(), memory.len());
        return Err(Error::new(libc::ERANGE, text));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { memory.put(value) }.cast_signed())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_getxattr(
    volume: *const Opened,
    path: *const c_char,
    name: *const c_char,
    buffer: *mut c_void,
    bytes: usize,
) -> isize {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path, name) = unsafe { (connected(volume)?, bytes_of(path)?, bytes_of(name)?) };
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buffer, bytes) }?;
        let value = connected.wait(connected.get_xattr(path, name, true))?;
        // SAFETY: as the header asks of callers.
        unsafe { give(&value, memory) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_listxattr(
    volume: *const Opened,
    path: *const c_char,
    buffer: *mut c_char,
    bytes: usize,
) -> isize {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = unsafe { (connected(volume)?, bytes_of(path)?) };
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buffer.cast(), bytes) }?;
        let names = connected.wait(connected.list_xattr(path, true))?;
        let all: Vec<u8> = names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
        // SAFETY: as the header asks of callers.
        unsafe { give(&all, memory) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_setxattr(
    volume: *const Opened,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    bytes: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe {
        done(volume, |connected| {
            let (path, name, value) = (bytes_of(path)?, bytes_of(name)?, Memory::new(value, bytes)?);
            let how = match flags {
                0 => XattrHow::Any,
                libc::XATTR_CREATE => XattrHow::Create,
                libc::XATTR_REPLACE => XattrHow::Replace,
                _ => return Err(Error::new(libc::EINVAL, format!("{flags} are no flags of setxattr(2)"))),
            };
            Ok(async move { connected.set_xattr(path, name, value.read(), how, true).await })
        })
    }
}
