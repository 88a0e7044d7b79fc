//! Paths, names and outcomes, between Python's objects and ours.

use crate::buffer::first;
use crate::file::File;
use crate::request::Given;
use aze_cabi::{stat_of, statvfs_of};
use aze_handles::{Attr, DirEntry, FileKind, Space};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

const SECOND_NS: i64 = 1_000_000_000;

/// The bytes of a path that is given as str, bytes or os.PathLike.
///
/// # Errors
/// TypeError for anything else.
pub fn path_bytes(path: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = path.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    Ok(path.extract::<PathBuf>()?.into_os_string().into_vec())
}

/// A name as str; bytes that are no UTF-8 as os.fsdecode has them.
fn name<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    Ok(OsStr::from_bytes(bytes).into_pyobject(py)?.into_any())
}

/// Fields of os.stat_result, and the time at which the file was made: mode, inode, links, user, group, device, size, bytes of
/// a block, blocks of 512 bytes; the times of access, data, attributes and making in nanoseconds.
fn attr<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    let stat = stat_of(attr);
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * i128::from(SECOND_NS) + i128::from(ns);
    let times =
        [(stat.st_atime, stat.st_atime_nsec), (stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec)];
    let [atime, mtime, ctime] = times.map(|(seconds, part)| ns(seconds, part) as i64);
    let numbers = [
        i64::from(stat.st_mode),
        stat.st_nlink as i64,
        i64::from(stat.st_uid),
        i64::from(stat.st_gid),
        stat.st_rdev as i64,
        stat.st_size,
        stat.st_blksize,
        stat.st_blocks,
        atime,
        mtime,
        ctime,
        attr.btime.0 as i64,
    ];
    // The number of an inode uses all of its 64 bits.
    let all = [stat.st_ino.into_pyobject(py)?.into_any()].into_iter();
    let all = all.chain(numbers.into_iter().map(|number| number.into_pyobject(py).expect("an int").into_any()));
    Ok(PyTuple::new(py, all.collect::<Vec<_>>())?.into_any())
}

/// The letter that says the kind of an entry, as `find -type` has it.
fn letter(kind: FileKind) -> char {
    if kind == FileKind::File { 'f' } else { kind.letter() }
}

fn entry<'py>(py: Python<'py>, entry: &DirEntry) -> PyResult<Bound<'py, PyAny>> {
    let attr = entry.attr.as_ref().map(|of| attr(py, of)).transpose()?;
    Ok((name(py, &entry.name)?, entry.ino, letter(entry.kind), attr).into_pyobject(py)?.into_any())
}

fn space<'py>(py: Python<'py>, space: &Space) -> PyResult<Bound<'py, PyAny>> {
    let of = statvfs_of(space);
    let blocks = [of.f_bsize, of.f_frsize, of.f_blocks, of.f_bfree, of.f_bavail];
    let rest = [of.f_files, of.f_ffree, of.f_favail, of.f_flag, of.f_namemax];
    Ok(PyTuple::new(py, [blocks, rest].concat())?.into_any())
}

/// What a request gave, as an object; `bytes` is the memory of those that read into new bytes.
pub fn outcome<'py>(py: Python<'py>, given: Given, bytes: Option<Py<PyBytes>>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match given {
        Given::Nothing => py.None().into_bound(py),
        Given::Count(count) => match bytes {
            Some(bytes) => first(py, bytes, count as usize).into_bound(py).into_any(),
            None => count.into_pyobject(py)?.into_any(),
        },
        Given::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
        Given::Name(bytes) => name(py, &bytes)?,
        Given::Names(names) => {
            let names = names.iter().map(|bytes| name(py, bytes)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, names)?.into_any()
        }
        Given::Attr(given) => attr(py, &given)?,
        Given::Entries(entries) => {
            let entries = entries.iter().map(|of| entry(py, of)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, entries)?.into_any()
        }
        Given::Space(given) => space(py, &given)?,
        Given::File(file) => File::of(file).into_pyobject(py)?.into_any(),
    })
}
