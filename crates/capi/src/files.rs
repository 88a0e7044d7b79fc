//! Open files.

use crate::volumes::{Opened, connected, out};
use aze_cabi::{Memory, bytes_of, catch, offset, set_time, stat_of};
use aze_handles::{Error, File, Flags, Lock, LockKind, Result, Room, Table, Times, Whence};
use aze_io::real::PerProcess;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Files that this process has open.
static FILES: PerProcess<Table<File>> = PerProcess::new();

pub fn files() -> &'static Table<File> {
    FILES.get_or_init(|| Table::new("file"))
}

/// Gives up the numbers of files whose volume was closed.
pub fn forget_lost() {
    // They are dropped after the table's lock.
    drop(files().remove_all(File::is_lost));
}

/// Does something with an open file, and waits for it.
fn with<T, F: Future<Output = Result<T>>>(fd: c_int, failed: T, operation: impl FnOnce(Arc<File>) -> Result<F>) -> T {
    catch(failed, || {
        let file = files().get(fd)?;
        let connected = file.connected()?;
        connected.wait(operation(file)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_open(
    volume: *const Opened,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = unsafe { (connected(volume)?, bytes_of(path)?) };
        let file = connected.wait(connected.open(path, Flags::parse(flags)?, mode))?;
        files().insert(file)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_close(fd: c_int) -> c_int {
    catch(-1, || files().remove(fd)?.close().map(|()| 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_pread(fd: c_int, buffer: *mut c_void, bytes: usize, at: libc::off_t) -> isize {
    with(fd, -1, |file| {
        // SAFETY: as the header asks of callers.
        let (memory, at) = (unsafe { Memory::new(buffer, bytes) }?, offset(at)?);
        // SAFETY: the call lasts until the operation is over.
        Ok(async move { file.read_at(at, unsafe { memory.write() }).await.map(usize::cast_signed) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_pwrite(fd: c_int, buffer: *const c_void, bytes: usize, at: libc::off_t) -> isize {
    with(fd, -1, |file| {
        // SAFETY: as the header asks of callers.
        let (memory, at) = (unsafe { Memory::new(buffer, bytes) }?, offset(at)?);
        // SAFETY: the call lasts until the operation is over.
        Ok(async move { file.write_at(at, unsafe { memory.read() }).await.map(usize::cast_signed) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buffer, bytes) }?;
        // SAFETY: the call lasts until the operation is over.
        files().get(fd)?.read(unsafe { memory.write() }).map(usize::cast_signed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_write(fd: c_int, buffer: *const c_void, bytes: usize) -> isize {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let memory = unsafe { Memory::new(buffer, bytes) }?;
        // SAFETY: the call lasts until the operation is over.
        files().get(fd)?.write(unsafe { memory.read() }).map(usize::cast_signed)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_lseek(fd: c_int, to: libc::off_t, whence: c_int) -> libc::off_t {
    catch(-1, || files().get(fd)?.seek(to, Whence::of_number(whence)?).map(u64::cast_signed))
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_fsync(fd: c_int) -> c_int {
    with(fd, -1, |file| Ok(async move { file.sync().await.map(|()| 0) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    with(fd, -1, |file| {
        let length = offset(length)?;
        Ok(async move { file.truncate(length).await.map(|()| 0) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_fallocate(fd: c_int, mode: c_int, start: libc::off_t, length: libc::off_t) -> c_int {
    with(fd, -1, |file| {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let room = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Room::Reserved,
            libc::FALLOC_FL_ZERO_RANGE => Room::Zeroed,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Room::Hole,
            _ => {
                let text = format!("mode {mode:#x} of fallocate(2) is not supported");
                return Err(Error::new(libc::EOPNOTSUPP, text));
            }
        };
        let (start, length) = (offset(start)?, offset(length)?);
        Ok(async move { file.make_room(room, start, length, keep_size).await.map(|()| 0) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    with(fd, -1, |file| {
        // SAFETY: as the header asks of callers.
        let stat = unsafe { out(stat) }?;
        Ok(async move {
            *stat = stat_of(&file.stat().await?);
            Ok(0)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_fchmod(fd: c_int, mode: libc::mode_t) -> c_int {
    with(fd, -1, |file| Ok(async move { file.chmod(mode).await.map(|()| 0) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_fchown(fd: c_int, uid: libc::uid_t, gid: libc::gid_t) -> c_int {
    with(fd, -1, |file| Ok(async move { file.chown(id(uid), id(gid)).await.map(|()| 0) }))
}

/// A user or group to set: -1 leaves it as it is.
pub fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_futimens(fd: c_int, times: *const libc::timespec) -> c_int {
    with(fd, -1, |file| {
        // SAFETY: as the header asks of callers.
        let times = unsafe { times_of(times) }?;
        Ok(async move { file.set_times(times).await.map(|()| 0) })
    })
}

/// Two times, or none: now.
///
/// # Safety
/// The pointer is null, or two times.
pub unsafe fn times_of(times: *const libc::timespec) -> Result<Times> {
    use aze_handles::SetTime::Now;
    if times.is_null() {
        return Ok(Times { access: Some(Now), modification: Some(Now) });
    }
    // SAFETY: as the caller promises.
    let (access, modification) = unsafe { (&*times, &*times.add(1)) };
    Ok(Times { access: set_time(access)?, modification: set_time(modification)? })
}

#[unsafe(no_mangle)]
pub extern "C" fn aze_flock(fd: c_int, operation: c_int) -> c_int {
    with(fd, -1, |file| {
        let kind = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Some(LockKind::Shared),
            libc::LOCK_EX => Some(LockKind::Exclusive),
            libc::LOCK_UN => None,
            _ => return Err(Error::new(libc::EINVAL, format!("{operation} is no operation of flock(2)"))),
        };
        Ok(async move {
            match kind {
                None => file.unlock(Lock::Whole).await?,
                Some(kind) if operation & libc::LOCK_NB != 0 => file.try_lock(Lock::Whole, kind).await?,
                Some(kind) => file.lock_unless(Lock::Whole, kind, std::future::pending()).await?,
            }
            Ok(0)
        })
    })
}
