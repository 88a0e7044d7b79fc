//! Listings: opendir(3) and its like for directories of the volume, and what libc builds on them.

use super::entry::{Frame, Outcome, make};
use super::functions::is_kernels;
use super::{Wanted, call_host, entry, errno, found, index_of, real, set_errno};
use crate::fds::{self, Fd, argument};
use crate::host;
use libc::AT_FDCWD;

/// The first field of a listing here. Libc's begins with a descriptor and the word of a lock, which is never this.
const MARK: u64 = 0x7a65_4c49_0000_0000;

/// Memory of a listing: its fields, then entries.
const HEAD_BYTES: u64 = 64;
const ENTRIES_BYTES: u64 = (64 << 10) - HEAD_BYTES;

/// struct dirent: where the position behind the entry, its length and its name are.
const NEXT_AT: u64 = 8;
const LENGTH_AT: u64 = 16;
const NAME_AT: u64 = 19;

/// glob(3): a flag, and where its struct has the flags and five functions.
const BY_FUNCTIONS: u64 = 1 << 9;
const FUNCTIONS_AT: u64 = 32;
const BY: [&str; 5] = ["closedir", "readdir", "opendir", "lstat", "stat"];

/// A listing; lies at the beginning of its memory. As with libc's, two threads must not use one at the same time.
#[repr(C)]
struct Listing {
    mark: u64,
    fd: i64,
    /// The next entry, and the end of those that have come, from the first.
    next: u64,
    end: u64,
    /// The position that telldir(3) tells.
    position: i64,
}

/// The listing at an address, if it is one of these.
fn listing(at: u64) -> Option<&'static mut Listing> {
    // SAFETY: the host gives what opendir(3) has given it; both kinds are at least as long as the mark, and aligned.
    (host::is_memory(at) && host::read::<u64>(at) == MARK).then(|| unsafe { &mut *(at as *mut Listing) })
}

/// A listing of a descriptor of the volume.
fn begin(fd: i64) -> Outcome {
    let at = host::map((HEAD_BYTES + ENTRIES_BYTES) as usize);
    if at == 0 {
        return Outcome::null(host::error(libc::ENOMEM));
    }
    host::write(at, Listing { mark: MARK, fd, next: 0, end: 0, position: 0 });
    Outcome::value(at)
}

impl Clone for Listing {
    fn clone(&self) -> Listing {
        *self
    }
}

impl Copy for Listing {}

/// opendir(3).
pub fn opendir(frame: &Frame) -> Outcome {
    let path = frame.args[0];
    let flags = (libc::O_RDONLY | libc::O_NONBLOCK | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    let fd = make(libc::SYS_open, [path, flags, 0, 0, 0, 0]);
    if fd < 0 {
        return Outcome::null(fd);
    }
    if let Fd::Ours(_) = fds::of(fd as i32) {
        return begin(fd);
    }
    let given = call_host(real("fdopendir"), [fd as u64, 0, 0, 0, 0, 0]);
    if given == 0 {
        let failed = host::error(errno());
        make(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
        return Outcome::null(failed);
    }
    Outcome::value(given)
}

/// fdopendir(3).
pub fn fdopendir(frame: &Frame) -> Outcome {
    let fd = frame.args[0];
    match fds::of(argument(fd)) {
        Fd::Kernels => Outcome::libcs(frame),
        Fd::Failed(failed) => Outcome::null(failed),
        Fd::Ours(_) => {
            // SAFETY: zeros are a valid value.
            let mut stat: libc::stat = unsafe { core::mem::zeroed() };
            let result = make(libc::SYS_fstat, [fd, &raw mut stat as u64, 0, 0, 0, 0]);
            if result < 0 {
                return Outcome::null(result);
            }
            if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
                return Outcome::null(host::error(libc::ENOTDIR));
            }
            begin(i64::from(argument(fd)))
        }
    }
}

/// closedir(3).
pub fn closedir(frame: &Frame) -> Outcome {
    let at = frame.args[0];
    let Some(listing) = listing(at) else { return Outcome::libcs(frame) };
    let fd = listing.fd as u64;
    listing.mark = 0;
    host::unmap(at, (HEAD_BYTES + ENTRIES_BYTES) as usize);
    Outcome::of(make(libc::SYS_close, [fd, 0, 0, 0, 0, 0]))
}

/// The next entry; 0 at the end, or a negative errno.
fn next(listing: &mut Listing) -> i64 {
    let first = core::ptr::from_ref(listing) as u64 + HEAD_BYTES;
    if listing.next >= listing.end {
        let got = make(libc::SYS_getdents64, [listing.fd as u64, first, ENTRIES_BYTES, 0, 0, 0]);
        if got <= 0 {
            // As in libc: a directory that was removed has no more entries.
            return if got == host::error(libc::ENOENT) { 0 } else { got };
        }
        (listing.next, listing.end) = (0, got as u64);
    }
    let entry = first + listing.next;
    listing.next += u64::from(host::read::<u16>(entry + LENGTH_AT));
    listing.position = host::read(entry + NEXT_AT);
    entry as i64
}

/// readdir(3).
pub fn readdir(frame: &Frame) -> Outcome {
    let Some(listing) = listing(frame.args[0]) else { return Outcome::libcs(frame) };
    match next(listing) {
        failed if failed < 0 => Outcome::null(failed),
        entry => Outcome::value(entry as u64),
    }
}

/// readdir_r(3): an errno, or 0.
pub fn readdir_r(frame: &Frame) -> Outcome {
    let [at, to, result, ..] = frame.args;
    let Some(listing) = listing(at) else { return Outcome::libcs(frame) };
    let entry = next(listing);
    if entry > 0 {
        host::copy(to, entry as u64, host::read::<u16>(entry as u64 + LENGTH_AT).into());
    }
    host::write(result, if entry > 0 { to } else { 0 });
    Outcome::value(-entry.min(0) as u64)
}

fn seek(listing: &mut Listing, position: i64) {
    make(libc::SYS_lseek, [listing.fd as u64, position as u64, libc::SEEK_SET as u64, 0, 0, 0]);
    (listing.next, listing.end, listing.position) = (0, 0, position);
}

/// rewinddir(3).
pub fn rewinddir(frame: &Frame) -> Outcome {
    let Some(listing) = listing(frame.args[0]) else { return Outcome::libcs(frame) };
    seek(listing, 0);
    Outcome::value(0)
}

/// seekdir(3).
pub fn seekdir(frame: &Frame) -> Outcome {
    let Some(listing) = listing(frame.args[0]) else { return Outcome::libcs(frame) };
    seek(listing, frame.args[1] as i64);
    Outcome::value(0)
}

/// telldir(3).
pub fn telldir(frame: &Frame) -> Outcome {
    let Some(listing) = listing(frame.args[0]) else { return Outcome::libcs(frame) };
    Outcome::value(listing.position as u64)
}

/// dirfd(3).
pub fn dirfd(frame: &Frame) -> Outcome {
    let Some(listing) = listing(frame.args[0]) else { return Outcome::libcs(frame) };
    Outcome::value(listing.fd as u64)
}

/// scandir(3): entries are the host's to give back.
pub fn scandir(frame: &Frame) -> Outcome {
    let [path, list, chooses, compares, ..] = frame.args;
    if is_kernels(AT_FDCWD as u64, path) {
        return Outcome::libcs(frame);
    }
    let at = opendir(frame);
    let Some(found_at) = at.as_value().filter(|at| *at != 0) else { return Outcome::value(u64::MAX) };
    let Some(listing) = listing(found_at) else {
        // A link out of the volume: libc's own would not find it by the path.
        call_host(real("closedir"), [found_at, 0, 0, 0, 0, 0]);
        set_errno(libc::ENOENT);
        return Outcome::value(u64::MAX);
    };
    let (mut array, mut count, mut room) = (0u64, 0u64, 0u64);
    let failed = loop {
        let entry = next(listing);
        if entry <= 0 {
            break entry;
        }
        let entry = entry as u64;
        if chooses != 0 && call_host(chooses, [entry, 0, 0, 0, 0, 0]) as i32 == 0 {
            continue;
        }
        if count == room {
            room = (2 * room).max(16);
            let grown = call_host(found(Wanted::Realloc), [array, room * 8, 0, 0, 0, 0]);
            if grown == 0 {
                break host::error(libc::ENOMEM);
            }
            array = grown;
        }
        let bytes = u64::from(host::read::<u16>(entry + LENGTH_AT));
        let copy = call_host(found(Wanted::Malloc), [bytes, 0, 0, 0, 0, 0]);
        if copy == 0 {
            break host::error(libc::ENOMEM);
        }
        host::copy(copy, entry, bytes as usize);
        host::write(array + 8 * count, copy);
        count += 1;
    };
    let fd = listing.fd as u64;
    host::unmap(found_at, (HEAD_BYTES + ENTRIES_BYTES) as usize);
    make(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
    if failed < 0 {
        for index in 0..count {
            call_host(found(Wanted::Free), [host::read(array + 8 * index), 0, 0, 0, 0, 0]);
        }
        call_host(found(Wanted::Free), [array, 0, 0, 0, 0, 0]);
        return Outcome::of(failed);
    }
    if compares != 0 && count > 1 {
        call_host(found(Wanted::Sort), [array, count, 8, compares, 0, 0]);
    }
    host::write(list, array);
    Outcome::value(count)
}

/// glob(3) looks by functions that the caller may give: those here.
pub fn glob(frame: &Frame) -> Outcome {
    let [pattern, flags, told, result, ..] = frame.args;
    if flags & BY_FUNCTIONS != 0 || !host::is_memory(result) {
        return Outcome::libcs(frame);
    }
    for (name, at) in BY.iter().zip((result + FUNCTIONS_AT..).step_by(8)) {
        let Some(index) = index_of(name.as_bytes()).filter(|index| super::real_of(*index) != 0) else {
            return Outcome::libcs(frame);
        };
        host::write(at, entry::stub(index));
    }
    let function = super::real_of(frame.index as usize);
    Outcome::value(call_host(function, [pattern, flags | BY_FUNCTIONS, told, result, 0, 0]))
}

const _: () = assert!(size_of::<Listing>() as u64 <= HEAD_BYTES && NAME_AT == LENGTH_AT + 3);
