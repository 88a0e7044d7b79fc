//! The working directory, when it lies in the volume.
//!
//! The kernel does not know it: it stands in an empty directory of procfs meanwhile, so that a program that this library
//! cannot see finds nothing by relative paths, rather than another directory's files. Here it is a description of the agent's, whose
//! descriptor this library holds, so that it stays the same directory when it is renamed or removed, however long its path is.
//! Where the process has no room for a descriptor, it is a path below the volume's root. Notes are written to places in turn and
//! never while they are the current one, so that a fork or a signal at any instant finds a whole one.

use crate::channel;
use crate::host;
use crate::process::shared_child;
use aze_calls::NO_DESC;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Longest path, in bytes, with a NUL, as PATH_MAX.
pub const PATH_BYTES_MAX: usize = 4096;

/// Places for notes.
const PLACES: usize = 8;

/// Where the kernel stands meanwhile; the first of these that it has.
const EMPTY: [&CStr; 3] = [c"/proc/tty/ldisc", c"/proc/self/fdinfo", c"/"];

/// A directory by its description.
#[derive(Clone, Copy)]
pub struct Held {
    /// The description.
    pub desc: u64,
    /// A descriptor of it that is this library's own.
    pub fd: i32,
}

struct Place {
    length: AtomicU32,
    /// The child on this memory that has this as its own; 0 for the process.
    pid: AtomicU32,
    /// The description, or [`NO_DESC`]; and its descriptor, or -1.
    desc: AtomicU64,
    fd: AtomicI32,
    text: UnsafeCell<[u8; PATH_BYTES_MAX]>,
}

// SAFETY: a text is written only between the turn that chooses its place and the one that makes it current; readers look
// at the turn before and after they copy it.
unsafe impl Sync for Place {}

static NOTES: [Place; PLACES] = [const { Place::new() }; PLACES];

/// Places of children on this memory.
static CHILDREN: [Place; PLACES] = [const { Place::new() }; PLACES];

/// Length by which a place says that the working directory is the kernel's.
const OUTSIDE: u32 = u32::MAX;

/// Turns that have begun.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The turn whose note is current; 0: this process has never been in the volume.
static CURRENT: AtomicU64 = AtomicU64::new(0);

impl Place {
    const fn new() -> Place {
        Place {
            length: AtomicU32::new(0),
            pid: AtomicU32::new(0),
            desc: AtomicU64::new(NO_DESC),
            fd: AtomicI32::new(-1),
            text: UnsafeCell::new([0; PATH_BYTES_MAX]),
        }
    }

    fn put(&self, path: &[u8], held: Option<Held>) {
        let length = path.len().min(PATH_BYTES_MAX);
        host::copy(self.text.get() as u64, path.as_ptr() as u64, length);
        self.desc.store(held.map_or(NO_DESC, |held| held.desc), SeqCst);
        self.take_fd(held.map_or(-1, |held| held.fd));
        self.length.store(length as u32, SeqCst);
    }

    fn put_outside(&self) {
        self.desc.store(NO_DESC, SeqCst);
        self.take_fd(-1);
        self.length.store(OUTSIDE, SeqCst);
    }

    fn is_outside(&self) -> bool {
        self.length.load(SeqCst) == OUTSIDE
    }

    fn take(&self, into: &mut [u8]) -> usize {
        let length = (self.length.load(SeqCst) as usize).min(into.len());
        host::copy(into.as_mut_ptr() as u64, self.text.get() as u64, length);
        length
    }

    /// Takes a descriptor, or none (-1), and closes that of before.
    fn take_fd(&self, fd: i32) {
        let before = self.fd.swap(fd, SeqCst);
        if before >= 0 {
            host::close(before);
        }
    }
}

fn of_child() -> Option<&'static Place> {
    let pid = shared_child()?;
    CHILDREN.iter().find(|place| place.pid.load(SeqCst) == pid)
}

fn of_turn(turn: u64) -> &'static Place {
    &NOTES[turn as usize % PLACES]
}

/// What `read` finds in the current note; `None` if the working directory is the kernel's.
fn in_current<T>(mut read: impl FnMut(&Place) -> T) -> Option<T> {
    if let Some(place) = of_child() {
        return (!place.is_outside()).then(|| read(place));
    }
    loop {
        let turn = CURRENT.load(SeqCst);
        if turn == 0 {
            return None;
        }
        let place = of_turn(turn);
        let found = (!place.is_outside()).then(|| read(place));
        // The place has been given to another note only if as many turns as there are places have begun since.
        if NEXT.load(SeqCst) - turn <= PLACES as u64 {
            return found;
        }
    }
}

/// True if relative paths begin in the volume.
pub fn is_ours() -> bool {
    in_current(|_| ()).is_some()
}

/// The description of the working directory, [`NO_DESC`] if it is known by its path alone; `None` if it is the kernel's.
pub fn desc() -> Option<u64> {
    in_current(|place| place.desc.load(SeqCst))
}

/// Copies the path below the volume's root that the directory had when the process changed to it, empty if that was not known; its
/// length, or `None` if the working directory is the kernel's.
pub fn get(into: &mut [u8]) -> Option<usize> {
    in_current(|place| place.take(into))
}

/// The process, or the child on its memory, has changed to a directory of the volume: a path, empty if it is not known, and a
/// descriptor, which is this room's from now on. A child for which there is no place any more gets an error.
pub fn set(path: &[u8], held: Option<Held>) -> Result<(), i64> {
    for empty in EMPTY {
        if host::call(libc::SYS_chdir, empty.as_ptr() as u64, 0, 0) >= 0 {
            break;
        }
    }
    if let Some(pid) = shared_child() {
        let Some(place) = of_child().or_else(|| place_for(pid)) else {
            held.iter().for_each(|held| host::close(held.fd));
            return Err(host::error(libc::ENOMEM));
        };
        place.put(path, held);
        return Ok(());
    }
    next(|place| place.put(path, held));
    Ok(())
}

/// The working directory is the kernel's again.
pub fn clear() {
    match shared_child() {
        Some(pid) => of_child().or_else(|| place_for(pid)).into_iter().for_each(Place::put_outside),
        None if CURRENT.load(SeqCst) == 0 => {}
        None => next(Place::put_outside),
    }
}

/// Makes a new note the current one.
fn next(write: impl FnOnce(&Place)) {
    let turn = NEXT.fetch_add(1, SeqCst);
    write(of_turn(turn));
    let before = CURRENT.fetch_max(turn, SeqCst);
    if before > turn {
        // Another thread has changed to a directory later.
        return of_turn(turn).take_fd(-1);
    }
    // Another thread may just begin at the directory of before: its descriptor stays until the next change.
    let fd = of_turn(before).fd.load(SeqCst);
    if before > 0 && fd >= 0 {
        host::call(libc::SYS_fcntl, fd as u64, libc::F_SETFD as u64, libc::FD_CLOEXEC as u64);
    }
    if turn > 2 {
        of_turn(turn - 2).take_fd(-1);
    }
}

/// The descriptor of the working directory, which stays open over execve(2) from now on: the new program begins there.
pub fn kept_over_exec() -> Option<i32> {
    let fd = in_current(|place| place.fd.load(SeqCst)).filter(|fd| *fd >= 0)?;
    host::call(libc::SYS_fcntl, fd as u64, libc::F_SETFD as u64, 0);
    Some(fd)
}

/// Descriptors of this room.
pub fn descriptors() -> impl Iterator<Item = i32> {
    NOTES.iter().chain(&CHILDREN).map(|place| place.fd.load(SeqCst))
}

/// A copy of a descriptor of the description, for [`set`]; `None` if there is no room for one.
pub fn held(fd: i32, desc: u64) -> Option<Held> {
    channel::hidden_copy(fd).map(|fd| Held { desc, fd })
}

fn place_for(pid: u32) -> Option<&'static Place> {
    CHILDREN.iter().find(|place| place.pid.compare_exchange(0, pid, SeqCst, SeqCst).is_ok())
}

/// A child on this memory has gone, and its descriptors with it.
pub fn forget(pid: u32) {
    for place in CHILDREN.iter().filter(|place| place.pid.load(SeqCst) == pid) {
        place.fd.store(-1, SeqCst);
        place.pid.store(0, SeqCst);
    }
}
