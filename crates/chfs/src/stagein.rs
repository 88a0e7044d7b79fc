//! Copies of this machine's files into the volume, one at a time: programs of CHFS walk trees by themselves.

use crate::connection::{connected, stagein_bytes};
use crate::names::path_of;
use aze_cabi::catch;
use aze_handles::{Connected, Error, Flags, Result};
use std::ffi::{OsStr, c_char, c_int};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_stagein(path: *const c_char) -> c_int {
    catch(-1, || {
        // SAFETY: as the header asks of callers.
        let (connected, path) = (connected()?, unsafe { path_of(path) }?);
        stage_in(&connected, path).map(|()| 0)
    })
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::new(error.raw_os_error().unwrap_or(libc::EIO), format!("copy {}: {error}", path.display()))
}

fn stage_in(connected: &Arc<Connected>, path: &[u8]) -> Result<()> {
    let local = Path::new(OsStr::from_bytes(path));
    let failed = |error: io::Error| failed(local, &error);
    let meta = fs::symlink_metadata(local).map_err(failed)?;
    if let Some(slash) = path.iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0) {
        connected.wait(connected.mkdir_all(&path[..slash], 0o777))?;
    }
    let kind = meta.file_type();
    if kind.is_dir() {
        // It is to be filled next.
        return match connected.wait(connected.mkdir(path, meta.mode() | 0o700)) {
            Err(exists) if exists.errno == libc::EEXIST => Ok(()),
            made => made,
        };
    }
    if kind.is_symlink() {
        let target = fs::read_link(local).map_err(failed)?;
        return connected.wait(connected.symlink(target.as_os_str().as_bytes(), path));
    }
    if !kind.is_file() {
        return Err(Error::new(libc::ENOTSUP, format!("copy {}: neither file, directory nor link", local.display())));
    }
    let mut from = fs::File::open(local).map_err(failed)?;
    let flags = Flags { create: true, truncate: true, ..Flags::read_write() };
    let to = connected.wait(connected.open(path, flags, meta.mode()))?;
    let mut buffer = vec![0; stagein_bytes()];
    let mut at = 0;
    loop {
        let count = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(failed)?,
        };
        if count == 0 {
            return to.close();
        }
        connected.wait(to.write_at(at, &buffer[..count]))?;
        at += count as u64;
    }
}
