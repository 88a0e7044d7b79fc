//! The working directory, when it lies in the volume.
//!
//! The kernel does not know it: it stands in an empty directory of procfs meanwhile, so that a program that this library
//! cannot see finds nothing by relative paths, rather than another directory's files. Here it is a path below the volume's
//! root. Texts are written to places in turn and never while they are the current one, so that a fork or a signal at any
//! instant finds a whole one.

use crate::host;
use crate::process::shared_child;
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// Longest path, in bytes, with a NUL, as PATH_MAX.
pub const PATH_BYTES_MAX: usize = 4096;

/// Places for texts.
const PLACES: usize = 8;

/// Where the kernel stands meanwhile; the first of these that it has.
const EMPTY: [&CStr; 3] = [c"/proc/tty/ldisc", c"/proc/self/fdinfo", c"/"];

struct Place {
    length: AtomicU32,
    /// The child on this memory that has this as its own; 0 for the process.
    pid: AtomicU32,
    text: UnsafeCell<[u8; PATH_BYTES_MAX]>,
}

// SAFETY: a text is written only between the turn that chooses its place and the one that makes it current; readers look
// at the turn before and after they copy it.
unsafe impl Sync for Place {}

static TEXTS: [Place; PLACES] =
    [const { Place { length: AtomicU32::new(0), pid: AtomicU32::new(0), text: UnsafeCell::new([0; PATH_BYTES_MAX]) } };
        PLACES];

/// Places of children on this memory.
static CHILDREN: [Place; PLACES] =
    [const { Place { length: AtomicU32::new(0), pid: AtomicU32::new(0), text: UnsafeCell::new([0; PATH_BYTES_MAX]) } };
        PLACES];

/// Length by which a child says that it has left the volume.
const OUTSIDE: u32 = u32::MAX;

/// Turns that have begun.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The turn whose text is current; 0: the working directory is the kernel's.
static CURRENT: AtomicU64 = AtomicU64::new(0);

impl Place {
    fn put(&self, path: &[u8]) {
        let length = path.len().min(PATH_BYTES_MAX);
        host::copy(self.text.get() as u64, path.as_ptr() as u64, length);
        self.length.store(length as u32, SeqCst);
    }

    fn take(&self, into: &mut [u8]) -> usize {
        let length = (self.length.load(SeqCst) as usize).min(into.len());
        host::copy(into.as_mut_ptr() as u64, self.text.get() as u64, length);
        length
    }
}

fn of_child() -> Option<&'static Place> {
    let pid = shared_child()?;
    CHILDREN.iter().find(|place| place.pid.load(SeqCst) == pid)
}

/// True if relative paths begin in the volume.
pub fn is_ours() -> bool {
    match of_child() {
        Some(place) => place.length.load(SeqCst) != OUTSIDE,
        None => CURRENT.load(SeqCst) != 0,
    }
}

/// Copies the path below the volume's root; its length, or `None` if the working directory is the kernel's.
pub fn get(into: &mut [u8]) -> Option<usize> {
    if let Some(place) = of_child() {
        return (place.length.load(SeqCst) != OUTSIDE).then(|| place.take(into));
    }
    loop {
        let turn = CURRENT.load(SeqCst);
        if turn == 0 {
            return None;
        }
        let length = TEXTS.get(turn as usize % PLACES)?.take(into);
        // The place has been given to another text only if as many turns as there are places have begun since.
        if NEXT.load(SeqCst) - turn <= PLACES as u64 {
            return Some(length);
        }
    }
}

/// The process, or the child on its memory, has changed to a directory of the volume. A child for which there is no place
/// any more gets an error.
pub fn set(path: &[u8]) -> Result<(), i64> {
    for empty in EMPTY {
        if host::call(libc::SYS_chdir, empty.as_ptr() as u64, 0, 0) >= 0 {
            break;
        }
    }
    if let Some(pid) = shared_child() {
        let place = of_child().or_else(|| place_for(pid)).ok_or(host::error(libc::ENOMEM))?;
        place.put(path);
        return Ok(());
    }
    let turn = NEXT.fetch_add(1, SeqCst);
    if let Some(place) = TEXTS.get(turn as usize % PLACES) {
        place.put(path);
        CURRENT.store(turn, SeqCst);
    }
    Ok(())
}

/// The working directory is the kernel's again.
pub fn clear() {
    let Some(pid) = shared_child() else { return CURRENT.store(0, SeqCst) };
    if let Some(place) = of_child().or_else(|| place_for(pid)) {
        place.length.store(OUTSIDE, SeqCst);
    }
}

fn place_for(pid: u32) -> Option<&'static Place> {
    CHILDREN.iter().find(|place| place.pid.compare_exchange(0, pid, SeqCst, SeqCst).is_ok())
}

/// A child on this memory has gone.
pub fn forget(pid: u32) {
    for place in CHILDREN.iter().filter(|place| place.pid.load(SeqCst) == pid) {
        place.pid.store(0, SeqCst);
    }
}
