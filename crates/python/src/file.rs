//! Open files, with a position.

use crate::buffer::{Use, first, memory_of, new_bytes};
use crate::request::{Act, Request, length_of};
use crate::wait::{Failed, wait_for, wait_or_stop, without_lock};
use aze_cabi::Memory;
use aze_handles::{Lock, LockKind, Whence};
use aze_io::sync::Mutex;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::future::pending;
use std::sync::Arc;

/// An open file of this process, with a position; what `azekura.RawFile` is written with. In a forked process every call
/// fails with EBADF, but `close`.
#[pyclass(frozen, module = "azekura._azekura")]
pub struct File {
    file: Arc<aze_handles::File>,
    /// Locked during reads and writes that move it, without the interpreter's lock.
    position: Mutex<u64>,
}

type Done<T> = Result<T, Failed>;

impl File {
    pub fn of(file: Arc<aze_handles::File>) -> File {
        File { file, position: Mutex::new(0) }
    }

    /// Does something without the interpreter's lock.
    fn with<T: Send>(&self, py: Python<'_>, body: impl FnOnce(&File) -> Done<T> + Send) -> PyResult<T> {
        without_lock(py, || {
            // A forked process must not wait for the lock of the position, which a thread of its parent may have had.
            self.file.connected()?;
            body(self)
        })
        .map_err(|failed| failed.exception(py, &[]))
    }

    fn read_on(&self, memory: Memory) -> Done<usize> {
        let mut position = self.position.lock();
        // SAFETY: the caller holds the memory until this is over.
        let count = wait_for(&self.file.connected()?, self.file.read_at(*position, unsafe { memory.write() }))?;
        *position += count as u64;
        Ok(count)
    }

    fn write_on(&self, memory: Memory) -> Done<usize> {
        let mut position = self.position.lock();
        // SAFETY: the caller holds the memory until this is over.
        let (data, connected) = (unsafe { memory.read() }, self.file.connected()?);
        if data.is_empty() {
            return Ok(0);
        }
        if self.file.flags()?.append {
            *position = wait_for(&connected, self.file.append(data))?;
        } else {
            wait_for(&connected, self.file.write_at(*position, data))?;
            *position += data.len() as u64;
        }
        Ok(data.len())
    }
}

#[pymethods]
impl File {
    /// Reads from the position into memory; gives how many bytes, fewer only at the end of the file.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (_held, memory) = memory_of(buffer, Use::Write)?;
        self.with(py, move |file| file.read_on(memory))
    }

    /// Reads `count` bytes from the position; up to the end of the file if there are fewer.
    fn read(&self, py: Python<'_>, count: usize) -> PyResult<Py<PyBytes>> {
        let (bytes, memory) = new_bytes(py, count)?;
        let count = self.with(py, move |file| file.read_on(memory))?;
        Ok(first(py, bytes, count))
    }

    /// Writes all of the data at the position, or at the end of a file opened for appending.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let (_held, memory) = memory_of(data, Use::Read)?;
        self.with(py, move |file| file.write_on(memory))
    }

    /// Moves the position; gives the new one. `whence` as for lseek(2).
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let whence = Whence::of_number(whence).map_err(|error| PyValueError::new_err(error.text))?;
        self.with(py, |file| {
            let mut position = file.position.lock();
            *position = match whence {
                Whence::Data | Whence::Hole => file.file.seek(offset, whence)?,
                _ => {
                    let base = match whence {
                        Whence::Position => *position,
                        Whence::End => wait_for(&file.file.connected()?, file.file.stat())?.size,
                        _ => 0,
                    };
                    let place = base.checked_add_signed(offset).filter(|place| i64::try_from(*place).is_ok());
                    place
                        .ok_or_else(|| aze_handles::Error::new(libc::EINVAL, "a position is between 0 and 2^63 - 1"))?
                }
            };
            Ok(*position)
        })
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |file| Ok(*file.position.lock()))
    }

    /// The file's length.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |file| Ok(wait_for(&file.file.connected()?, file.file.stat())?.size))
    }

    fn truncate(&self, py: Python<'_>, length: i64) -> PyResult<()> {
        let length = length_of(py, length, &[])?;
        self.with(py, |file| wait_for(&file.file.connected()?, file.file.truncate(length)))
    }

    /// fsync(2).
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |file| wait_for(&file.file.connected()?, file.file.sync()))
    }

    /// As flock(2).
    fn lock(&self, py: Python<'_>, shared: bool, wait: bool) -> PyResult<()> {
        let kind = if shared { LockKind::Shared } else { LockKind::Exclusive };
        self.with(py, |file| {
            let (file, connected) = (&file.file, file.file.connected()?);
            if !wait {
                return wait_for(&connected, file.try_lock(Lock::Whole, kind));
            }
            let (stop, registration) = AbortHandle::new_pair();
            let stopped = Abortable::new(pending::<()>(), registration).map(drop);
            let (locked, signal) =
                wait_or_stop(&connected, file.lock_unless(Lock::Whole, kind, stopped), || stop.abort());
            match signal {
                None => Ok(locked?),
                Some(signal) => {
                    // It may have been granted at the last moment.
                    if locked.is_ok() {
                        connected.wait(file.unlock(Lock::Whole))?;
                    }
                    Err(signal)
                }
            }
        })
    }

    fn unlock(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |file| wait_for(&file.file.connected()?, file.file.unlock(Lock::Whole)))
    }

    /// Closes it; a forked process leaves that to its parent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.file.is_of_parent() {
            return Ok(());
        }
        self.with(py, |file| Ok(file.file.close()?))
    }

    /// A request for its attributes.
    fn stat_request(&self) -> Request {
        Request::new(Act::FileStat { file: self.file.clone() }, None, &[])
    }

    /// A request to read at a place into memory.
    fn pread_request(&self, at: u64, buffer: &Bound<'_, PyAny>) -> PyResult<Request> {
        let (held, memory) = memory_of(buffer, Use::Write)?;
        Ok(Request::new(Act::FileRead { file: self.file.clone(), at, memory }, Some(held), &[]))
    }

    /// A request to write at a place, also if the file was opened for appending.
    fn pwrite_request(&self, at: u64, data: &Bound<'_, PyAny>) -> PyResult<Request> {
        let (held, memory) = memory_of(data, Use::Read)?;
        Ok(Request::new(Act::FileWrite { file: self.file.clone(), at, memory }, Some(held), &[]))
    }

    /// A request for fsync(2).
    fn sync_request(&self) -> Request {
        Request::new(Act::FileSync { file: self.file.clone() }, None, &[])
    }

    /// A request to close it.
    fn close_request(&self) -> Request {
        Request::new(Act::FileClose { file: self.file.clone() }, None, &[])
    }
}
