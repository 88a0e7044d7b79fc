//! Volumes, and what concerns all of one.

use aze_cabi::{catch, optional_text, statvfs_of};
use aze_handles::{Connected, Error, Result, Volume};
use std::ffi::{CString, c_char, c_int};
use std::ptr::null_mut;
use std::sync::Arc;

/// What `aze_volume` is.
pub struct Opened {
    volume: Arc<Volume>,
    name: CString,
}

/// The connection behind a pointer of C.
///
/// # Safety
/// The pointer is null, or came from [`aze_open_volume`] and was not closed.
pub unsafe fn connected(volume: *const Opened) -> Result<Arc<Connected>> {
    // SAFETY: as the caller promises.
    let opened = unsafe { volume.as_ref() };
    opened.ok_or_else(|| Error::new(libc::EFAULT, "a volume is a null pointer"))?.volume.connected()
}

/// Does something by a connection, and waits for it; its outcome is the result in C.
///
/// # Safety
/// As [`connected`].
pub unsafe fn done<F: Future<Output = Result<()>>>(
    volume: *const Opened,
    operation: impl FnOnce(Arc<Connected>) -> Result<F>,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the caller promises.
        let connected = unsafe { connected(volume) }?;
        connected.wait(operation(connected.clone())?).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_open_volume(name: *const c_char) -> *mut Opened {
    catch(null_mut(), || {
        // SAFETY: as the header asks of callers.
        let volume = Volume::open(unsafe { optional_text(name) }?)?;
        let name = CString::new(volume.name()).unwrap_or_default();
        Ok(Box::into_raw(Box::new(Opened { volume, name })))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_close_volume(volume: *mut Opened) -> c_int {
    catch(-1, || {
        if volume.is_null() {
            return Err(Error::new(libc::EFAULT, "a volume is a null pointer"));
        }
        // SAFETY: as the header asks of callers: it came from `aze_open_volume`, and is not used any more.
        let opened = unsafe { Box::from_raw(volume) };
        opened.volume.close();
        crate::files::forget_lost();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_volume_name(volume: *const Opened) -> *const c_char {
    catch(std::ptr::null(), || {
        // SAFETY: as the header asks of callers.
        let opened = unsafe { volume.as_ref() };
        opened.map(|opened| opened.name.as_ptr()).ok_or_else(|| Error::new(libc::EFAULT, "a volume is a null pointer"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_umask(volume: *const Opened, mask: libc::mode_t) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let connected = unsafe { connected(volume) }?;
        Ok(connected.set_umask(mask).cast_signed())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_statvfs(volume: *const Opened, statvfs: *mut libc::statvfs) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe {
        done(volume, |connected| {
            let statvfs = out(statvfs)?;
            Ok(async move {
                *statvfs = statvfs_of(&connected.space().await?);
                Ok(())
            })
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_sync(volume: *const Opened) -> c_int {
    // SAFETY: as the header asks of callers.
    unsafe { done(volume, |connected| Ok(async move { connected.sync().await })) }
}

/// Where a result goes.
///
/// # Safety
/// The pointer is null, or memory for a value that no other thread uses during the call.
pub unsafe fn out<'a, T>(to: *mut T) -> Result<&'a mut T> {
    // SAFETY: as the caller promises; the structures of C have no invalid values.
    unsafe { to.as_mut() }.ok_or_else(|| Error::new(libc::EFAULT, "a result has no place: its pointer is null"))
}

/// Plants a defect: 0 in the call itself, 1 in an operation that it waits for, 2 in a task of the connection. For tests;
/// in builds with debug assertions only.
#[cfg(debug_assertions)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_test_panic(volume: *const Opened, place: c_int) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let connected = unsafe { connected(volume) }?;
        match place {
            0 => panic!("planted in a call"),
            1 => connected.wait(async { panic!("planted in an operation") }),
            _ => {
                connected.plant_panic();
                connected.wait(std::future::pending())
            }
        }
    })
}
