//! Streams of stdio over files of the volume.
//!
//! glibc's stdio reads and writes by a table of functions that each stream has. The tables of files are data: their functions for
//! reading, writing, seeking, closing and asking become those here, which ask libc's own for files that are not the volume's. So streams
//! work whose descriptor was inherited, as in shells. A stream is made on /dev/null and then given the descriptor: libc
//! would look at the pipe that stands for a file of the volume.

use super::entry::{Frame, Outcome, make, number, stub};
use super::functions::is_kernels;
use super::{Place, Walk, Wanted, call_host, errno, found, index_of, iterate_over, object, real};
use crate::fds::{self, Fd, argument};
use crate::host;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use libc::AT_FDCWD;

/// Where a stream has its flags, its descriptor, its position, and its table.
const DESCRIPTOR_AT: u64 = 112;
const POSITION_AT: u64 = 144;
const TABLE_AT: u64 = 216;

/// A flag of a stream: an error was met.
const HAS_FAILED: u32 = 0x20;

/// Where a table has its functions for reading, writing, seeking, closing and asking, in this order.
const READ_AT: u64 = 14 * 8;

/// How far from the table of files others may lie.
const TABLES_BYTES: u64 = 0x1000;

/// Functions in a table, in their order.
const NAMES: [&str; 5] = ["_IO_file_read", "_IO_file_write", "_IO_file_seek", "_IO_file_close", "_IO_file_stat"];

/// Where the table of files lies.
static TABLE: AtomicU64 = AtomicU64::new(0);

/// True if the tables have been changed.
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// Changes the tables; false if they are not as expected.
pub fn start() -> bool {
    let stdout = found(Wanted::Stdout);
    if stdout == 0 || host::read::<i32>(stdout + DESCRIPTOR_AT) != 1 {
        return false;
    }
    let table: u64 = host::read(stdout + TABLE_AT);
    let function = |index: usize| host::read::<u64>(table + READ_AT + 8 * index as u64);
    if NAMES.iter().enumerate().any(|(index, name)| real(name) == 0 || function(index) != real(name)) {
        return false;
    }
    TABLE.store(table, SeqCst);
    iterate_over(put_in_place, &mut Walk::default());
    IS_DONE.load(SeqCst)
}

extern "C" fn put_in_place(info: *const super::Info, _: u64, _: &mut Walk) -> i32 {
    let Some((object, _)) = object(info) else { return 0 };
    let table = TABLE.load(SeqCst);
    if !(object.sealed.0..object.sealed.1).contains(&table) {
        return 0;
    }
    let mut place = Place::new(object.sealed);
    place.is_done = Some(true);
    let first = object.sealed.0.max(table.saturating_sub(TABLES_BYTES)) & !7;
    let last = object.sealed.1.min(table + TABLES_BYTES);
    // Streams of wide characters and of commands have tables of their own with the same functions.
    for at in (first..last).step_by(8) {
        let value: u64 = host::read(at);
        let name = NAMES.iter().find(|name| real(name) == value);
        if let Some(index) = name.and_then(|name| index_of(name.as_bytes())) {
            place.put(at, stub(index));
        }
    }
    place.end();
    IS_DONE.store(host::read::<u64>(table + READ_AT) != real(NAMES[0]), SeqCst);
    1
}

/// The descriptor of a stream.
fn descriptor(stream: u64) -> i32 {
    host::read(stream + DESCRIPTOR_AT)
}

/// True unless the stream's file is the kernel's.
fn is_ours(stream: u64) -> bool {
    fds::of(descriptor(stream)) != Fd::Kernels
}

/// Reads into a stream's buffer.
pub fn read(frame: &Frame) -> Outcome {
    let [stream, to, bytes, ..] = frame.args;
    if !is_ours(stream) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(libc::SYS_read, [descriptor(stream) as u64, to, bytes, 0, 0, 0]))
}

/// Writes all, or notes that the stream has failed.
pub fn write(frame: &Frame) -> Outcome {
    let [stream, from, bytes, ..] = frame.args;
    if !is_ours(stream) {
        return Outcome::libcs(frame);
    }
    let mut done = 0;
    while done < bytes {
        let args = [descriptor(stream) as u64, from + done, bytes - done, 0, 0, 0];
        let result = number(make(libc::SYS_write, args));
        if result < 0 {
            host::write(stream, host::read::<u32>(stream) | HAS_FAILED);
            break;
        }
        done += result as u64;
    }
    let position: i64 = host::read(stream + POSITION_AT);
    if position >= 0 {
        host::write(stream + POSITION_AT, position + done as i64);
    }
    Outcome::value(done)
}

/// Moves a stream's position.
pub fn seek(frame: &Frame) -> Outcome {
    let [stream, offset, whence, ..] = frame.args;
    if !is_ours(stream) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(libc::SYS_lseek, [descriptor(stream) as u64, offset, whence & 0xffff_ffff, 0, 0, 0]))
}

/// Closes a stream's descriptor.
pub fn close(frame: &Frame) -> Outcome {
    Outcome::of(make(libc::SYS_close, [descriptor(frame.args[0]) as u64, 0, 0, 0, 0, 0]))
}

/// Asks for the attributes of a stream's file.
pub fn status(frame: &Frame) -> Outcome {
    let [stream, to, ..] = frame.args;
    if !is_ours(stream) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(libc::SYS_fstat, [descriptor(stream) as u64, to, 0, 0, 0, 0]))
}

/// What the mode of fopen(3) asks of open(2), and the mode without what only counts there.
struct Mode {
    flags: i32,
    plain: [u8; 8],
}

impl Mode {
    fn of(mode: u64) -> Option<Mode> {
        let letters = host::string(mode, 64);
        let mut flags = match letters.first()? {
            b'r' => libc::O_RDONLY,
            b'w' => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
            b'a' => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
            _ => return None,
        };
        let mut plain = [0u8; 8];
        plain[0] = letters[0];
        let mut length = 1;
        for letter in letters.iter().skip(1).take(6) {
            match letter {
                b'+' => {
                    flags = flags & !libc::O_ACCMODE | libc::O_RDWR;
                    plain[length] = b'+';
                    length += 1;
                }
                b'x' => flags |= libc::O_EXCL,
                b'e' => {
                    flags |= libc::O_CLOEXEC;
                    plain[length] = b'e';
                    length += 1;
                }
                // `,ccs=`: libc converts characters. It finds no such file, and says so.
                b',' => return None,
                _ => {}
            }
        }
        Some(Mode { flags, plain })
    }
}

/// A stream of libc's on a file that takes everything.
fn empty_stream(mode: &Mode) -> u64 {
    call_host(real("fopen"), [c"/dev/null".as_ptr() as u64, mode.plain.as_ptr() as u64, 0, 0, 0, 0])
}

/// Gives a descriptor the place of a stream's own, which is closed.
fn put_under(fd: i64, stream: u64, mode: &Mode) -> Result<(), i64> {
    let flags = (mode.flags & libc::O_CLOEXEC) as u64;
    let put = make(libc::SYS_dup3, [fd as u64, descriptor(stream) as u64, flags, 0, 0, 0]);
    make(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
    if put < 0 { Err(put) } else { Ok(()) }
}

fn open(path: u64, mode: &Mode) -> i64 {
    let fd = make(libc::SYS_open, [path, mode.flags as u64, 0o666, 0, 0, 0]);
    if fd >= 0 && mode.flags & libc::O_APPEND != 0 {
        make(libc::SYS_lseek, [fd as u64, 0, libc::SEEK_END as u64, 0, 0, 0]);
    }
    fd
}

/// fopen(3).
pub fn fopen(frame: &Frame) -> Outcome {
    let [path, mode, ..] = frame.args;
    let Some(mode) = Mode::of(mode).filter(|_| host::is_memory(path)) else { return Outcome::libcs(frame) };
    if is_kernels(AT_FDCWD as u64, path) {
        let stream = call_host(super::real_of(frame.index as usize), frame.args);
        // A link may lead into the volume.
        if stream != 0 || errno() != libc::ENOENT {
            return Outcome::value(stream);
        }
    }
    let fd = open(path, &mode);
    if fd < 0 {
        return Outcome::null(fd);
    }
    let stream = empty_stream(&mode);
    if stream == 0 {
        let failed = host::error(errno());
        make(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
        return Outcome::null(failed);
    }
    match put_under(fd, stream, &mode) {
        Ok(()) => Outcome::value(stream),
        Err(failed) => {
            call_host(found(Wanted::CloseStream), [stream, 0, 0, 0, 0, 0]);
            Outcome::null(failed)
        }
    }
}

/// fdopen(3): the stream has the descriptor that is given.
pub fn fdopen(frame: &Frame) -> Outcome {
    let [fd, mode, ..] = frame.args;
    let Some(mode) = Mode::of(mode) else { return Outcome::libcs(frame) };
    match fds::of(argument(fd)) {
        Fd::Kernels => return Outcome::libcs(frame),
        Fd::Failed(failed) => return Outcome::null(failed),
        Fd::Ours(_) => {}
    }
    let has = make(libc::SYS_fcntl, [fd, libc::F_GETFL as u64, 0, 0, 0, 0]);
    if has < 0 {
        return Outcome::null(has);
    }
    let (has, asks) = (has as i32, mode.flags & libc::O_ACCMODE);
    if has & libc::O_ACCMODE != libc::O_RDWR && has & libc::O_ACCMODE != asks {
        return Outcome::null(host::error(libc::EINVAL));
    }
    if mode.flags & libc::O_APPEND != 0 && has & libc::O_APPEND == 0 {
        let appending = (has | libc::O_APPEND) as u64;
        let set = make(libc::SYS_fcntl, [fd, libc::F_SETFL as u64, appending, 0, 0, 0]);
        if set < 0 {
            return Outcome::null(set);
        }
    }
    let stream = empty_stream(&mode);
    if stream != 0 {
        make(libc::SYS_close, [descriptor(stream) as u64, 0, 0, 0, 0, 0]);
        host::write(stream + DESCRIPTOR_AT, argument(fd));
    }
    Outcome::value(stream)
}

/// freopen(3).
pub fn freopen(frame: &Frame) -> Outcome {
    let [path, mode, stream, ..] = frame.args;
    let before = descriptor(stream);
    let function = super::real_of(frame.index as usize);
    let Some(asked) = Mode::of(mode).filter(|_| host::is_memory(path)) else { return Outcome::libcs(frame) };
    if is_kernels(AT_FDCWD as u64, path) {
        let stream = call_host(function, frame.args);
        // Libc has put another file there by itself.
        fds::forget(before);
        return Outcome::value(stream);
    }
    let fd = open(path, &asked);
    let null = [c"/dev/null".as_ptr() as u64, asked.plain.as_ptr() as u64, stream, 0, 0, 0];
    let stream = call_host(function, null);
    fds::forget(before);
    if fd < 0 || stream == 0 {
        let failed = if fd < 0 { fd } else { host::error(errno()) };
        if fd >= 0 {
            make(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
        }
        if stream != 0 {
            call_host(found(Wanted::CloseStream), [stream, 0, 0, 0, 0, 0]);
        }
        return Outcome::null(failed);
    }
    match put_under(fd, stream, &asked) {
        Ok(()) => Outcome::value(stream),
        Err(failed) => Outcome::null(failed),
    }
}
