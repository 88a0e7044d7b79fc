//! Queues of operations that go on while their caller does something else.

use crate::files::files;
use crate::volumes::{Opened, connected, out};
use aze_cabi::{Memory, bytes_of, catch, offset, stat_of};
use aze_handles::{Completion, Error, Flags, Queue, Result};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

/// What `aze_queue` is.
pub struct OpenedQueue {
    queue: Queue,
}

/// The outcome of an operation: `struct aze_completion`.
#[repr(C)]
pub struct Outcome {
    tag: u64,
    result: i64,
    error: c_int,
    reserved: c_int,
}

unsafe fn opened<'a>(queue: *const OpenedQueue) -> Result<&'a OpenedQueue> {
    // SAFETY: as the header asks of callers: null, or from `aze_queue_new` and not freed.
    unsafe { queue.as_ref() }.ok_or_else(|| Error::new(libc::EFAULT, "a queue is a null pointer"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_new(volume: *const Opened) -> *mut OpenedQueue {
    catch(null_mut(), || {
        // SAFETY: as the header asks of callers.
        let connected = unsafe { connected(volume) }?;
        let queue = Queue::new(&connected)?;
        Ok(Box::into_raw(Box::new(OpenedQueue { queue })))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_free(queue: *mut OpenedQueue) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let drained = unsafe { opened(queue) }?.queue.drain();
        // SAFETY: as the header asks of callers: it came from `aze_queue_new`, and is not used any more.
        drop(unsafe { Box::from_raw(queue) });
        drained.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_pread(
    queue: *const OpenedQueue,
    fd: c_int,
    buffer: *mut c_void,
    bytes: usize,
    at: libc::off_t,
    tag: u64,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (opened, memory) = unsafe { (opened(queue)?, Memory::new(buffer, bytes)?) };
        let (file, at) = (files().get(fd)?, offset(at)?);
        // SAFETY: as the header asks of callers: the memory is this operation's until its outcome is picked up.
        let read = async move { file.read_at(at, unsafe { memory.write() }).await.map(|count| count as i64) };
        opened.queue.submit(tag, read).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_pwrite(
    queue: *const OpenedQueue,
    fd: c_int,
    buffer: *const c_void,
    bytes: usize,
    at: libc::off_t,
    tag: u64,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (opened, memory) = unsafe { (opened(queue)?, Memory::new(buffer, bytes)?) };
        let (file, at) = (files().get(fd)?, offset(at)?);
        // SAFETY: as the header asks of callers: the memory is not written until the outcome is picked up.
        let write = async move { file.write_at(at, unsafe { memory.read() }).await.map(|count| count as i64) };
        opened.queue.submit(tag, write).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_fsync(queue: *const OpenedQueue, fd: c_int, tag: u64) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let opened = unsafe { opened(queue) }?;
        let file = files().get(fd)?;
        opened.queue.submit(tag, async move { file.sync().await.map(|()| 0) }).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_open(
    queue: *const OpenedQueue,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    tag: u64,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (opened, path) = unsafe { (opened(queue)?, bytes_of(path)?.to_vec()) };
        let (connected, flags) = (opened.queue.connected()?, Flags::parse(flags)?);
        let open = async move { files().insert(connected.open(&path, flags, mode).await?).map(i64::from) };
        opened.queue.submit(tag, open).map(|()| 0)
    })
}

/// Where the attributes go.
struct Place(*mut libc::stat);

// SAFETY: as the header asks of callers: the memory is the operation's until its outcome is picked up.
unsafe impl Send for Place {}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_stat(
    queue: *const OpenedQueue,
    path: *const c_char,
    to: *mut libc::stat,
    tag: u64,
) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (opened, path) = unsafe { (opened(queue)?, bytes_of(path)?.to_vec()) };
        let (connected, place) = (opened.queue.connected()?, Place(to));
        // SAFETY: the place is only compared with null here.
        unsafe { out(to) }?;
        let stat = async move {
            let place = place;
            let attr = connected.stat(&path, true).await?;
            // SAFETY: as the header asks of callers.
            *unsafe { out(place.0) }? = stat_of(&attr);
            Ok(0)
        };
        opened.queue.submit(tag, stat).map(|()| 0)
    })
}

/// Writes outcomes to where C wants them; gives their number.
///
/// # Safety
/// There is room for them.
unsafe fn give(outcomes: Vec<Completion<i64>>, to: *mut Outcome) -> c_int {
    let count = outcomes.len() as c_int;
    for (at, Completion { tag, result }) in outcomes.into_iter().enumerate() {
        let (result, error) = result.map_or_else(|error| (-1, error.errno), |result| (result, 0));
        // SAFETY: as the caller promises.
        unsafe { to.add(at).write(Outcome { tag, result, error, reserved: 0 }) };
    }
    count
}

fn room(to: *mut Outcome, most: c_int) -> Result<usize> {
    let most = usize::try_from(most).ok().filter(|most| *most > 0);
    let most = most.ok_or_else(|| Error::new(libc::EINVAL, "there must be room for one outcome at least"))?;
    if to.is_null() { Err(Error::new(libc::EFAULT, "the place for outcomes is a null pointer")) } else { Ok(most) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_poll(queue: *const OpenedQueue, to: *mut Outcome, most: c_int) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let outcomes = unsafe { opened(queue) }?.queue.poll(room(to, most)?)?;
        // SAFETY: as the header asks of callers.
        Ok(unsafe { give(outcomes, to) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_wait(
    queue: *const OpenedQueue,
    to: *mut Outcome,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    catch(-1, || {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // SAFETY: as the header asks of callers.
        let outcomes = unsafe { opened(queue) }?.queue.wait(room(to, most)?, timeout)?;
        // SAFETY: as the header asks of callers.
        Ok(unsafe { give(outcomes, to) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_fd(queue: *const OpenedQueue) -> c_int {
    // SAFETY: as the header asks of callers.
    catch(-1, || unsafe { opened(queue) }?.queue.event())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aze_queue_pending(queue: *const OpenedQueue) -> c_int {
    // SAFETY: as the header asks of callers.
    catch(-1, || Ok(unsafe { opened(queue) }?.queue.pending()? as c_int))
}
