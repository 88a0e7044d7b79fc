//! Reading and writing.
//!
//! A request moves at most a window; longer ones are made of several. What a call has moved before an error is its result, as
//! in the kernel.

use crate::channel::Session;
use crate::descriptors::{ask, offset};
use crate::dispatch::AS_IT_WAS;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::limits;
use crate::shared;
use crate::vectors::Vectors;
use aze_calls::{Op, POSITION, Request, WINDOW_BYTES};

/// Largest length of a read or write, as in the kernel.
const TRANSFER_BYTES_MAX: u64 = 0x7fff_f000;

/// Flags of preadv2(2) and pwritev2(2) that only tell the kernel how much hurry there is.
const RWF_HIPRI: u64 = 1;
/// The write is durable, data or all, before the call returns.
const RWF_DURABLE: u64 = 2 | 4;

/// Flags of sync_file_range(2).
const SYNC_FLAGS: u32 =
    libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;

/// Bytes of struct linux_dirent64 before the name, and of the older struct.
const ENTRY_BYTES: usize = 19;

/// Handles a call by its descriptor.
pub fn handle(number: i64, args: Args) -> i64 {
    let desc = match fds::of_open(argument(args[0])) {
        Fd::Kernels => return AS_IT_WAS,
        Fd::Failed(failed) => return failed,
        Fd::Ours(desc) => desc,
    };
    let simple = |op: Op| Request { op: op as u32, desc, ..Request::default() };
    match number {
        libc::SYS_lseek => shared::seek(desc, args[1] as i64, args[2] as i32)
            .unwrap_or_else(|| ask(Request { offset: args[1], a: args[2] & 0xffff_ffff, ..simple(Op::Seek) })),
        libc::SYS_getdents | libc::SYS_getdents64 => read_directory(number, desc, args),
        libc::SYS_ftruncate if args[1] > i64::MAX as u64 => error(libc::EINVAL),
        libc::SYS_ftruncate => match limits::may_be_open(desc, args[1]) {
            Ok(()) => ask(Request { len: args[1], ..simple(Op::TruncateOpen) }),
            Err(failed) => failed,
        },
        libc::SYS_fsync => ask(simple(Op::Sync)),
        libc::SYS_sync_file_range if !is_range(args[1], args[2]) || args[3] as u32 & !SYNC_FLAGS != 0 => {
            error(libc::EINVAL)
        }
        libc::SYS_fdatasync | libc::SYS_sync_file_range => ask(Request { a: 1, ..simple(Op::Sync) }),
        libc::SYS_fallocate if args[2] > i64::MAX as u64 || args[3] > i64::MAX as u64 || args[3] == 0 => {
            error(libc::EINVAL)
        }
        libc::SYS_fallocate => {
            let mode = args[1] as i32;
            if matches!(mode, 0 | libc::FALLOC_FL_ZERO_RANGE)
                && let Err(failed) = limits::may_be_open(desc, args[2].saturating_add(args[3]))
            {
                return failed;
            }
            ask(Request { offset: args[2], len: args[3], a: u64::from(mode as u32), ..simple(Op::Allocate) })
        }
        libc::SYS_fadvise64
            if args[2] > i64::MAX as u64 || !(0..=libc::POSIX_FADV_NOREUSE).contains(&(args[3] as i32)) =>
        {
            error(libc::EINVAL)
        }
        libc::SYS_fadvise64 => 0,
        libc::SYS_readahead => match ask(simple(Op::GetFlags)) as i32 & libc::O_ACCMODE {
            libc::O_RDONLY | libc::O_RDWR => 0,
            _ => error(libc::EBADF),
        },
        _ => transfer(number, desc, args).unwrap_or_else(|failed| failed),
    }
}

/// The calls that read or write.
fn transfer(number: i64, desc: u64, args: Args) -> Result<i64, i64> {
    let mut at = POSITION;
    let mut durable = false;
    let mut vectors = match number {
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64 => {
            if matches!(number, libc::SYS_pread64 | libc::SYS_pwrite64) {
                at = offset(args[3])?;
            }
            Vectors::one(args[1], args[2].min(TRANSFER_BYTES_MAX))?
        }
        _ => Vectors::many(args[1], args[2])?,
    };
    match number {
        libc::SYS_preadv | libc::SYS_pwritev => at = offset(args[3])?,
        libc::SYS_preadv2 | libc::SYS_pwritev2 => {
            if args[3] != POSITION {
                at = offset(args[3])?;
            }
            if args[5] & 0xffff_ffff & !(RWF_HIPRI | RWF_DURABLE) != 0 {
                return Err(error(libc::EOPNOTSUPP));
            }
            durable = args[5] & RWF_DURABLE != 0 && number == libc::SYS_pwritev2;
        }
        _ => {}
    }
    let mut session = Session::begin()?;
    let writes = matches!(
        number,
        libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2
    );
    let moved =
        if writes { write(&mut session, desc, at, &mut vectors) } else { read(&mut session, desc, at, &mut vectors) }?;
    if durable && moved > 0 {
        let synced = session.ask(Request { op: Op::Sync as u32, desc, a: 1, ..Request::default() }, &[])?.result;
        return Ok(if synced < 0 { synced } else { moved });
    }
    Ok(moved)
}

/// Reads into the host's memory; the bytes, 0 at the end.
fn read(session: &mut Session, desc: u64, at: u64, vectors: &mut Vectors) -> Result<i64, i64> {
    if let Some(bytes) = shared::read(session, desc, at, vectors) {
        return Ok(bytes);
    }
    let mut done = 0u64;
    loop {
        let len = vectors.left().min(WINDOW_BYTES as u64);
        let request = Request { op: Op::Read as u32, desc, offset: after(at, done), len, ..Request::default() };
        let result = session.ask(request, &[]).map_or_else(|failed| failed, |reply| reply.result);
        if result < 0 {
            return partly(done, result);
        }
        let bytes = (result as u64).min(len);
        vectors.put(session.window(), bytes);
        done += bytes;
        if bytes < len || vectors.left() == 0 {
            return Ok(done as i64);
        }
    }
}

/// Writes from the host's memory.
fn write(session: &mut Session, desc: u64, at: u64, vectors: &mut Vectors) -> Result<i64, i64> {
    let mut done = 0u64;
    session.connect()?;
    vectors.cut(limits::room(session, desc, at, vectors.left())?);
    loop {
        let len = vectors.left().min(WINDOW_BYTES as u64);
        vectors.take(session.window(), len);
        let request = Request { op: Op::Write as u32, desc, offset: after(at, done), len, ..Request::default() };
        let result = session.ask(request, &[]).map_or_else(|failed| failed, |reply| reply.result);
        if result < 0 {
            return partly(done, result);
        }
        let bytes = (result as u64).min(len);
        done += bytes;
        if bytes < len || vectors.left() == 0 {
            return Ok(done as i64);
        }
    }
}

/// Whether these bytes can be in a file.
fn is_range(offset: u64, bytes: u64) -> bool {
    let (offset, bytes) = (offset as i64, bytes as i64);
    offset >= 0 && offset.checked_add(bytes).is_some_and(|end| end >= offset)
}

/// The offset of a later part.
fn after(at: u64, done: u64) -> u64 {
    if at == POSITION { POSITION } else { at + done }
}

fn partly(done: u64, failed: i64) -> Result<i64, i64> {
    if done > 0 { Ok(done as i64) } else { Err(failed) }
}

/// getdents64(2), and getdents(2), whose entries have the same length and another order.
fn read_directory(number: i64, desc: u64, args: Args) -> i64 {
    let (to, room) = (args[1], args[2] & 0xffff_ffff);
    if !host::is_memory(to) {
        return error(libc::EFAULT);
    }
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let len = room.min(WINDOW_BYTES as u64);
    let request = Request { op: Op::ReadDir as u32, desc, len, ..Request::default() };
    let result = session.ask(request, &[]).map_or_else(|failed| failed, |reply| reply.result);
    if result <= 0 {
        return result;
    }
    let bytes = (result as u64).min(len) as usize;
    if number == libc::SYS_getdents {
        // SAFETY: the window is this session's, and the agent has put as many bytes there.
        let entries = unsafe { core::slice::from_raw_parts_mut(session.window() as *mut u8, bytes) };
        make_old(entries);
    }
    host::copy(to, session.window(), bytes);
    result
}

/// Moves the kind of each entry from before the name to the last byte, where getdents(2) has it.
fn make_old(mut entries: &mut [u8]) {
    while entries.len() > ENTRY_BYTES {
        let length = usize::from(u16::from_le_bytes([entries[16], entries[17]]));
        if length <= ENTRY_BYTES || length > entries.len() {
            return;
        }
        let (entry, rest) = entries.split_at_mut(length);
        let kind = entry[ENTRY_BYTES - 1];
        entry.copy_within(ENTRY_BYTES.., ENTRY_BYTES - 1);
        entry[length - 1] = kind;
        entries = rest;
    }
}

/// sync(2) and syncfs(2).
pub fn sync_all(number: i64, args: Args) -> i64 {
    let request = Request { op: Op::SyncAll as u32, ..Request::default() };
    if number == libc::SYS_sync {
        // sync(2) has no errors.
        ask(request);
        return raw(number, args);
    }
    match fds::of_open(argument(args[0])) {
        Fd::Kernels => raw(number, args),
        Fd::Failed(failed) => failed,
        Fd::Ours(_) => ask(request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_entries_have_their_kind_at_the_end() {
        let mut entries = [0u8; 56];
        for (at, length, name) in [(0, 24, &b"abc"[..]), (24, 32, b"file-name")] {
            entries[at + 16..at + 18].copy_from_slice(&(length as u16).to_le_bytes());
            entries[at + 18] = 8;
            entries[at + 19..at + 19 + name.len()].copy_from_slice(name);
        }
        make_old(&mut entries);
        assert_eq!((&entries[18..22], entries[23]), (&b"abc\0"[..], 8));
        assert_eq!((&entries[42..52], entries[55]), (&b"file-name\0"[..], 8));
    }
}
