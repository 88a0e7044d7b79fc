//! What libc makes of paths by several system calls.

use super::entry::{Frame, Outcome, make};
use super::functions::is_kernels;
use super::{Wanted, call_host, found};
use crate::cwd;
use crate::host;
use crate::place::PATH_BYTES_MAX;
use libc::AT_FDCWD;

/// Names that are tried for a new file.
const TRIES_MAX: u32 = 1000;

/// The letters of new names, and the end of a template.
const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const TEMPLATE: &[u8] = b"XXXXXX";

fn allocate(bytes: usize) -> u64 {
    call_host(found(Wanted::Malloc), [bytes as u64, 0, 0, 0, 0, 0])
}

/// Gives a path, with its NUL, in the host's memory: at `to`, or in new memory.
fn give(path: &[u8], to: u64) -> Outcome {
    let to = if to == 0 { allocate(path.len() + 1) } else { to };
    if to == 0 {
        return Outcome::null(host::error(libc::ENOMEM));
    }
    host::copy(to, path.as_ptr() as u64, path.len());
    host::write(to + path.len() as u64, 0u8);
    Outcome::value(to)
}

fn here(to: u64, room: u64) -> Outcome {
    let mut path = [0u8; PATH_BYTES_MAX];
    let length = make(libc::SYS_getcwd, [path.as_mut_ptr() as u64, path.len() as u64, 0, 0, 0, 0]);
    if length < 0 {
        return Outcome::null(length);
    }
    if (to != 0 || room != 0) && length as u64 > room {
        return Outcome::null(host::error(if room == 0 { libc::EINVAL } else { libc::ERANGE }));
    }
    give(path.get(..length as usize - 1).unwrap_or(&[]), to)
}

/// getcwd(3).
pub fn getcwd(frame: &Frame) -> Outcome {
    if cwd::is_ours() { here(frame.args[0], frame.args[1]) } else { Outcome::libcs(frame) }
}

/// get_current_dir_name(3).
pub fn get_current_dir_name(frame: &Frame) -> Outcome {
    if cwd::is_ours() { here(0, 0) } else { Outcome::libcs(frame) }
}

/// realpath(3).
pub fn realpath(frame: &Frame) -> Outcome {
    real_path(frame, frame.args[1])
}

/// canonicalize_file_name(3).
pub fn canonicalize_file_name(frame: &Frame) -> Outcome {
    real_path(frame, 0)
}

fn real_path(frame: &Frame, to: u64) -> Outcome {
    let path = frame.args[0];
    if !host::is_memory(path) || is_kernels(AT_FDCWD as u64, path) {
        return Outcome::libcs(frame);
    }
    let fd = make(libc::SYS_open, [path, (libc::O_PATH | libc::O_CLOEXEC) as u64, 0, 0, 0, 0]);
    if fd < 0 {
        return Outcome::null(fd);
    }
    let mut found = [0u8; PATH_BYTES_MAX];
    let link = host::descriptor_link(fd as i32);
    let args = [link.as_ptr() as u64, found.as_mut_ptr() as u64, found.len() as u64 - 1, 0, 0, 0];
    let length = make(libc::SYS_readlink, args);
    make(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
    if length < 0 {
        return Outcome::null(length);
    }
    give(found.get(..length as usize).unwrap_or(&[]), to)
}

/// mkstemp(3).
pub fn mkstemp(frame: &Frame) -> Outcome {
    file(frame, 0, 0)
}

/// mkostemp(3).
pub fn mkostemp(frame: &Frame) -> Outcome {
    file(frame, 0, frame.args[1])
}

/// mkstemps(3).
pub fn mkstemps(frame: &Frame) -> Outcome {
    file(frame, frame.args[1], 0)
}

/// mkostemps(3).
pub fn mkostemps(frame: &Frame) -> Outcome {
    file(frame, frame.args[1], frame.args[2])
}

fn file(frame: &Frame, suffix: u64, flags: u64) -> Outcome {
    let made = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | flags as i32 & !libc::O_ACCMODE;
    let path = frame.args[0];
    match new_name(path, suffix as u32 as usize, || make(libc::SYS_open, [path, made as u64, 0o600, 0, 0, 0])) {
        Some(result) => Outcome::of(result),
        None => Outcome::libcs(frame),
    }
}

/// mkdtemp(3).
pub fn mkdtemp(frame: &Frame) -> Outcome {
    let path = frame.args[0];
    match new_name(path, 0, || make(libc::SYS_mkdir, [path, 0o700, 0, 0, 0, 0])) {
        Some(result) if result < 0 => Outcome::null(result),
        Some(_) => Outcome::value(path),
        None => Outcome::libcs(frame),
    }
}

/// Tries names of a template in the host's memory; `None` if this is not for the volume.
fn new_name(path: u64, suffix: usize, mut try_it: impl FnMut() -> i64) -> Option<i64> {
    if is_kernels(AT_FDCWD as u64, path) {
        return None;
    }
    let whole = host::string(path, PATH_BYTES_MAX);
    let at = whole.len().checked_sub(suffix).and_then(|end| end.checked_sub(TEMPLATE.len()));
    let Some(at) = at.filter(|at| whole.get(*at..*at + TEMPLATE.len()) == Some(TEMPLATE)) else {
        return Some(host::error(libc::EINVAL));
    };
    for _ in 0..TRIES_MAX {
        let mut random = [0u8; TEMPLATE.len()];
        host::call(libc::SYS_getrandom, random.as_mut_ptr() as u64, random.len() as u64, 0);
        for (index, byte) in random.iter().enumerate() {
            let letter = LETTERS.get(usize::from(*byte) % LETTERS.len()).copied().unwrap_or(b'a');
            host::write(path + (at + index) as u64, letter);
        }
        let result = try_it();
        if result != host::error(libc::EEXIST) {
            return Some(result);
        }
    }
    Some(host::error(libc::EEXIST))
}
