//! Requests: operations in a volume, with paths, numbers and memory, taken from Python's objects before anything happens.

use crate::buffer::{Held, Use, memory_of, new_bytes};
use crate::convert::path_bytes;
use crate::error::exception;
use aze_cabi::Memory;
use aze_handles::{
    Attr, Connected, DirEntry, Error, File, Flags, Result, SetTime, Space, Time, Times, XattrHow, chunk_bits_of,
};
use aze_io::sync::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Bytes that are read of a file before its length is asked for: as many come with an open.
const PROBE_BYTES: usize = 64 << 10;

/// The largest part of a file that is read into new bytes of exactly this size without asking for the file's length.
const EXACT_BYTES_MAX: u64 = 64 << 20;

/// What a request gave.
pub enum Given {
    Nothing,
    Count(u64),
    Bytes(Vec<u8>),
    Name(Vec<u8>),
    Names(Vec<Vec<u8>>),
    Attr(Attr),
    Entries(Vec<DirEntry>),
    Space(Space),
    File(Arc<File>),
}

type Path = Vec<u8>;

/// An operation.
pub enum Act {
    Stat { path: Path, follow: bool },
    Entries { path: Path, with_attrs: bool },
    Mkdir { path: Path, mode: u32, all: bool },
    MkdirPrivate { path: Path, mode: u32 },
    Rmdir { path: Path },
    Unlink { path: Path },
    Rename { from: Path, to: Path, flags: u32 },
    Link { target: Path, path: Path, follow: bool },
    Symlink { target: Path, path: Path },
    Readlink { path: Path },
    Truncate { path: Path, length: u64 },
    Chmod { path: Path, mode: u32, follow: bool },
    Chown { path: Path, uid: Option<u32>, gid: Option<u32>, follow: bool },
    SetTimes { path: Path, times: Times, follow: bool },
    GetXattr { path: Path, name: Vec<u8>, follow: bool },
    ListXattr { path: Path, follow: bool },
    SetXattr { path: Path, name: Vec<u8>, value: Vec<u8>, how: XattrHow, follow: bool },
    RemoveXattr { path: Path, name: Vec<u8>, follow: bool },
    Open { path: Path, flags: Flags, mode: u32 },
    Read { path: Path, start: u64, end: Option<u64> },
    ReadInto { path: Path, start: u64, memory: Memory },
    Write { path: Path, memory: Memory, flags: Flags, mode: u32 },
    FileRead { file: Arc<File>, at: u64, memory: Memory },
    FileWrite { file: Arc<File>, at: u64, memory: Memory },
    FileSync { file: Arc<File> },
    FileStat { file: Arc<File> },
    FileClose { file: Arc<File> },
    Space,
    Sync,
}

impl Act {
    /// Does it. Its memory must be held until this is over or dropped.
    pub async fn run(self, connected: Arc<Connected>) -> Result<Given> {
        let nothing = |()| Given::Nothing;
        match self {
            Act::Stat { path, follow } => connected.stat(&path, follow).await.map(Given::Attr),
            Act::Entries { path, with_attrs } => connected.entries(&path, with_attrs).await.map(Given::Entries),
            Act::Mkdir { path, mode, all: false } => connected.mkdir(&path, mode).await.map(nothing),
            Act::MkdirPrivate { path, mode } => connected.mkdir_private(&path, mode).await.map(nothing),
            Act::Mkdir { path, mode, all: true } => connected.mkdir_all(&path, mode).await.map(nothing),
            Act::Rmdir { path } => connected.rmdir(&path).await.map(nothing),
            Act::Unlink { path } => connected.unlink(&path).await.map(nothing),
            Act::Rename { from, to, flags } => connected.rename(&from, &to, flags).await.map(nothing),
            Act::Link { target, path, follow } => connected.link(&target, &path, follow).await.map(nothing),
            Act::Symlink { target, path } => connected.symlink(&target, &path).await.map(nothing),
            Act::Readlink { path } => connected.readlink(&path).await.map(Given::Name),
            Act::Truncate { path, length } => connected.truncate(&path, length).await.map(nothing),
            Act::Chmod { path, mode, follow } => connected.chmod(&path, mode, follow).await.map(nothing),
            Act::Chown { path, uid, gid, follow } => connected.chown(&path, uid, gid, follow).await.map(nothing),
            Act::SetTimes { path, times, follow } => connected.set_times(&path, times, follow).await.map(nothing),
            Act::GetXattr { path, name, follow } => connected.get_xattr(&path, &name, follow).await.map(Given::Bytes),
            Act::ListXattr { path, follow } => connected.list_xattr(&path, follow).await.map(Given::Names),
            Act::SetXattr { path, name, value, how, follow } => {
                connected.set_xattr(&path, &name, &value, how, follow).await.map(nothing)
            }
            Act::RemoveXattr { path, name, follow } => connected.remove_xattr(&path, &name, follow).await.map(nothing),
            Act::Open { path, flags, mode } => {
                let file = connected.open(&path, flags, mode).await?;
                match file.is_directory()? {
                    true => Err(Error::new(libc::EISDIR, "is a directory")),
                    false => Ok(Given::File(file)),
                }
            }
            Act::Read { path, start, end } => read(&connected, &path, start, end).await.map(Given::Bytes),
            Act::ReadInto { path, start, memory } => {
                let file = connected.open(&path, reading(), 0).await?;
                file_read(&file, start, memory).await
            }
            Act::Write { path, memory, flags, mode } => {
                let file = connected.open(&path, flags, mode).await?;
                let wrote = file_write(&file, 0, memory).await;
                let closed = file.close_and_tell().await;
                let wrote = wrote?;
                closed.map(|()| wrote)
            }
            Act::FileRead { file, at, memory } => file_read(&file, at, memory).await,
            Act::FileWrite { file, at, memory } => file_write(&file, at, memory).await,
            Act::FileSync { file } => file.sync().await.map(nothing),
            Act::FileStat { file } => file.stat().await.map(Given::Attr),
            Act::FileClose { file } => file.close_and_tell().await.map(nothing),
            Act::Space => connected.space().await.map(Given::Space),
            Act::Sync => connected.sync().await.map(nothing),
        }
    }
}

fn reading() -> Flags {
    let read_write = Flags::read_write();
    Flags { access: aze_handles::Access { read: true, write: false }, ..read_write }
}

async fn file_read(file: &File, at: u64, memory: Memory) -> Result<Given> {
    // SAFETY: who runs an act holds its memory until it is over.
    file.read_at(at, unsafe { memory.write() }).await.map(|count| Given::Count(count as u64))
}

async fn file_write(file: &File, at: u64, memory: Memory) -> Result<Given> {
    // SAFETY: who runs an act holds its memory until it is over.
    file.write_at(at, unsafe { memory.read() }).await.map(|count| Given::Count(count as u64))
}

/// The bytes of a file from `start` up to `end`, or up to its end.
async fn read(connected: &Arc<Connected>, path: &[u8], start: u64, end: Option<u64>) -> Result<Vec<u8>> {
    let file = connected.open(path, reading(), 0).await?;
    let wanted = end.map_or(u64::MAX, |end| end.saturating_sub(start));
    let mut bytes = vec![0; PROBE_BYTES.min(usize::try_from(wanted).unwrap_or(usize::MAX))];
    let count = file.read_at(start, &mut bytes).await?;
    if count == bytes.len() && (count as u64) < wanted {
        // There is more. A file that grows meanwhile is given as long as it is found here.
        let rest = file.stat().await?.size.saturating_sub(start).min(wanted);
        let length = usize::try_from(rest).map_err(|_| too_long(rest))?.max(count);
        bytes.try_reserve_exact(length - count).map_err(|_| too_long(rest))?;
        bytes.resize(length, 0);
        let more = file.read_at(start + count as u64, &mut bytes[count..]).await?;
        bytes.truncate(count + more);
    } else {
        // Outcomes of many small files are kept at a time: none may keep the memory of the whole probe.
        bytes = bytes[..count].to_vec();
    }
    Ok(bytes)
}

fn too_long(bytes: u64) -> Error {
    Error::new(libc::ENOMEM, format!("there is no memory for {bytes} bytes: read them in parts"))
}

/// An act with what must live until it is over.
pub struct Prepared {
    pub act: Act,
    /// Memory that it uses.
    pub held: Option<Held>,
    /// Paths for its exception, as they were given.
    pub names: Vec<Py<PyAny>>,
}

/// Something to be done once: made by its static methods; it is waited for by `Volume.wait` or `Volume.wait_all`, or queued
/// by `Queue.submit`. Nothing happens before.
#[pyclass(frozen, module = "azekura._azekura")]
pub struct Request(Mutex<Option<Prepared>>);

impl Request {
    pub fn new(act: Act, held: Option<Held>, names: &[&Bound<'_, PyAny>]) -> Request {
        let names = names.iter().map(|name| (*name).clone().unbind()).collect();
        Request(Mutex::new(Some(Prepared { act, held, names })))
    }

    /// Takes it, to be done.
    ///
    /// # Errors
    /// ValueError if it was taken before.
    pub fn take(&self) -> PyResult<Prepared> {
        self.0.lock().take().ok_or_else(|| PyValueError::new_err("a request is for one use, and this one was used"))
    }
}

/// Flags of open(2) with a chunk size in bytes for a new file; 0: that of its directory.
fn flags_of(flags: i32, chunk_bytes: u64) -> PyResult<Flags> {
    let flags = Flags::parse(flags).map_err(|error| PyValueError::new_err(error.text))?;
    Ok(Flags { chunk_bits: chunk_bits_of(chunk_bytes), ..flags })
}

/// A length that a file is to have.
///
/// # Errors
/// OSError with EINVAL if it is negative, as of truncate(2); `names` are the paths of the exception.
pub fn length_of(py: Python<'_>, length: i64, names: &[Py<PyAny>]) -> PyResult<u64> {
    let refused = |_| exception(py, Error::new(libc::EINVAL, format!("{length} is no length of a file")), names);
    u64::try_from(length).map_err(refused)
}

fn time_of(ns: i128) -> SetTime {
    SetTime::To { time: Time(u64::try_from(ns.max(0)).unwrap_or(u64::MAX)) }
}

type Object<'a, 'py> = &'a Bound<'py, PyAny>;

#[pymethods]
impl Request {
    #[staticmethod]
    fn stat(path: Object<'_, '_>, follow: bool) -> PyResult<Request> {
        Ok(Request::new(Act::Stat { path: path_bytes(path)?, follow }, None, &[path]))
    }

    #[staticmethod]
    fn entries(path: Object<'_, '_>, with_attrs: bool) -> PyResult<Request> {
        Ok(Request::new(Act::Entries { path: path_bytes(path)?, with_attrs }, None, &[path]))
    }

    #[staticmethod]
    fn mkdir(path: Object<'_, '_>, mode: u32, all: bool) -> PyResult<Request> {
        Ok(Request::new(Act::Mkdir { path: path_bytes(path)?, mode, all }, None, &[path]))
    }

    #[staticmethod]
    fn mkdir_private(path: Object<'_, '_>, mode: u32) -> PyResult<Request> {
        Ok(Request::new(Act::MkdirPrivate { path: path_bytes(path)?, mode }, None, &[path]))
    }

    #[staticmethod]
    fn rmdir(path: Object<'_, '_>) -> PyResult<Request> {
        Ok(Request::new(Act::Rmdir { path: path_bytes(path)? }, None, &[path]))
    }

    #[staticmethod]
    fn unlink(path: Object<'_, '_>) -> PyResult<Request> {
        Ok(Request::new(Act::Unlink { path: path_bytes(path)? }, None, &[path]))
    }

    /// `flags` are those of renameat2(2).
    #[staticmethod]
    fn rename(from: Object<'_, '_>, to: Object<'_, '_>, flags: u32) -> PyResult<Request> {
        let act = Act::Rename { from: path_bytes(from)?, to: path_bytes(to)?, flags };
        Ok(Request::new(act, None, &[from, to]))
    }

    #[staticmethod]
    fn link(target: Object<'_, '_>, path: Object<'_, '_>, follow: bool) -> PyResult<Request> {
        let act = Act::Link { target: path_bytes(target)?, path: path_bytes(path)?, follow };
        Ok(Request::new(act, None, &[target, path]))
    }

    #[staticmethod]
    fn symlink(target: Object<'_, '_>, path: Object<'_, '_>) -> PyResult<Request> {
        let act = Act::Symlink { target: path_bytes(target)?, path: path_bytes(path)? };
        Ok(Request::new(act, None, &[target, path]))
    }

    #[staticmethod]
    fn readlink(path: Object<'_, '_>) -> PyResult<Request> {
        Ok(Request::new(Act::Readlink { path: path_bytes(path)? }, None, &[path]))
    }

    #[staticmethod]
    fn truncate(path: Object<'_, '_>, length: i64) -> PyResult<Request> {
        let length = length_of(path.py(), length, &[path.clone().unbind()])?;
        Ok(Request::new(Act::Truncate { path: path_bytes(path)?, length }, None, &[path]))
    }

    #[staticmethod]
    fn chmod(path: Object<'_, '_>, mode: u32, follow: bool) -> PyResult<Request> {
        Ok(Request::new(Act::Chmod { path: path_bytes(path)?, mode, follow }, None, &[path]))
    }

    /// None leaves user or group as it is.
    #[staticmethod]
    fn chown(path: Object<'_, '_>, uid: Option<u32>, gid: Option<u32>, follow: bool) -> PyResult<Request> {
        Ok(Request::new(Act::Chown { path: path_bytes(path)?, uid, gid, follow }, None, &[path]))
    }

    /// Times of access and data in nanoseconds since 1970; None: now, as the server has it.
    #[staticmethod]
    fn utime(path: Object<'_, '_>, ns: Option<(i128, i128)>, follow: bool) -> PyResult<Request> {
        let (access, modification) =
            ns.map_or((SetTime::Now, SetTime::Now), |(access, data)| (time_of(access), time_of(data)));
        let times = Times { access: Some(access), modification: Some(modification) };
        Ok(Request::new(Act::SetTimes { path: path_bytes(path)?, times, follow }, None, &[path]))
    }

    #[staticmethod]
    fn getxattr(path: Object<'_, '_>, name: Object<'_, '_>, follow: bool) -> PyResult<Request> {
        let act = Act::GetXattr { path: path_bytes(path)?, name: path_bytes(name)?, follow };
        Ok(Request::new(act, None, &[path]))
    }

    #[staticmethod]
    fn listxattr(path: Object<'_, '_>, follow: bool) -> PyResult<Request> {
        Ok(Request::new(Act::ListXattr { path: path_bytes(path)?, follow }, None, &[path]))
    }

    /// `flags` are those of setxattr(2).
    #[staticmethod]
    fn setxattr(
        path: Object<'_, '_>,
        name: Object<'_, '_>,
        value: Vec<u8>,
        flags: i32,
        follow: bool,
    ) -> PyResult<Request> {
        let how = match flags {
            0 => XattrHow::Any,
            libc::XATTR_CREATE => XattrHow::Create,
            libc::XATTR_REPLACE => XattrHow::Replace,
            other => return Err(PyValueError::new_err(format!("flags {other} of setxattr(2) are not supported"))),
        };
        let act = Act::SetXattr { path: path_bytes(path)?, name: path_bytes(name)?, value, how, follow };
        Ok(Request::new(act, None, &[path]))
    }

    #[staticmethod]
    fn removexattr(path: Object<'_, '_>, name: Object<'_, '_>, follow: bool) -> PyResult<Request> {
        let act = Act::RemoveXattr { path: path_bytes(path)?, name: path_bytes(name)?, follow };
        Ok(Request::new(act, None, &[path]))
    }

    /// `flags` are those of open(2); `chunk_bytes` counts for a file that is made.
    #[staticmethod]
    fn open(path: Object<'_, '_>, flags: i32, mode: u32, chunk_bytes: u64) -> PyResult<Request> {
        let act = Act::Open { path: path_bytes(path)?, flags: flags_of(flags, chunk_bytes)?, mode };
        Ok(Request::new(act, None, &[path]))
    }

    /// The bytes of a file from `start` up to `end`, or its own end.
    #[staticmethod]
    fn read(py: Python<'_>, path: Object<'_, '_>, start: u64, end: Option<u64>) -> PyResult<Request> {
        let bytes = path_bytes(path)?;
        match end.map(|end| end.saturating_sub(start)) {
            Some(count) if count <= EXACT_BYTES_MAX => {
                let (held, memory) = new_bytes(py, count as usize)?;
                Ok(Request::new(Act::ReadInto { path: bytes, start, memory }, Some(Held::Bytes(held)), &[path]))
            }
            _ => Ok(Request::new(Act::Read { path: bytes, start, end }, None, &[path])),
        }
    }

    /// Reads a file from `start` on into memory; gives how many bytes.
    #[staticmethod]
    fn readinto(path: Object<'_, '_>, start: u64, buffer: Object<'_, '_>) -> PyResult<Request> {
        let (held, memory) = memory_of(buffer, Use::Write)?;
        Ok(Request::new(Act::ReadInto { path: path_bytes(path)?, start, memory }, Some(held), &[path]))
    }

    /// Opens a file, writes data at its beginning, and closes it; gives how many bytes.
    #[staticmethod]
    fn write(path: Object<'_, '_>, data: Object<'_, '_>, flags: i32, mode: u32, chunk_bytes: u64) -> PyResult<Request> {
        let ((held, memory), flags) = (memory_of(data, Use::Read)?, flags_of(flags, chunk_bytes)?);
        Ok(Request::new(Act::Write { path: path_bytes(path)?, memory, flags, mode }, Some(held), &[path]))
    }

    #[staticmethod]
    fn statvfs() -> Request {
        Request::new(Act::Space, None, &[])
    }

    #[staticmethod]
    fn sync() -> Request {
        Request::new(Act::Sync, None, &[])
    }
}
