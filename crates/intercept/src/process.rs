//! This process: which one it is, its children on the same memory, its umask.
//!
//! What belongs to one process lies in memory that the kernel wipes in a forked child (`MADV_WIPEONFORK`): a child finds
//! zeros there, at any instant at which its parent forks, and begins anew. A child of vfork(2) or posix_spawn(3) runs on its
//! parent's memory with its own descriptors. While there is one, each call asks for the number of the process, and those of
//! a child neither read nor change what the parent has noted.

use crate::channel;
use crate::cwd;
use crate::fds::CACHED;
use crate::host::{self, raw};
use crate::lookup::Directories;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};

/// States of [`Wiped::state`].
const NEW: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;

/// Children on this memory of which something is noted, at once; others of them leak what they have allocated for execve(2).
const CHILDREN_MAX: usize = 16;

/// What a forked child does not inherit.
#[repr(C)]
pub struct Wiped {
    /// Whether this process has begun.
    state: AtomicU32,
    /// Its number.
    pid: AtomicU32,
    /// Children on this memory that may run.
    vforks: AtomicU32,
    /// 1: this process has asked for an fcntl(2) lock.
    locks: AtomicU32,
    /// 1: a thread gets the indexes that the agent shares.
    pub getting_indexes: AtomicU32,
    /// 1: threads have descriptors of their own, so that nothing is noted about them.
    uncached: AtomicU32,
    /// Notes about each descriptor.
    pub fds: [AtomicU64; CACHED as usize],
    /// Notes about directories.
    pub directories: Directories,
}

/// Where the count of children lies, for the entry.
pub const VFORKS_AT: usize = offset_of!(Wiped, vforks);
/// Where the descriptors lie, for the entry.
pub const FDS_AT: usize = offset_of!(Wiped, fds);

/// The memory; null before the start.
pub static WIPED: AtomicPtr<Wiped> = AtomicPtr::new(core::ptr::null_mut());

/// What a child on this memory has left behind.
struct Child {
    pid: AtomicU32,
    area: AtomicU64,
    bytes: AtomicU64,
}

static CHILDREN: [Child; CHILDREN_MAX] =
    [const { Child { pid: AtomicU32::new(0), area: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; CHILDREN_MAX];

/// The process's umask. Forked children inherit it.
static UMASK: AtomicU32 = AtomicU32::new(0o022);

/// True once an operation could panic-free no longer be trusted: every later call to the agent fails.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Maps the memory and notes who this is. False if the kernel refuses memory.
pub fn start() -> bool {
    let bytes = size_of::<Wiped>();
    let at = host::map(bytes);
    if at == 0 || host::call(libc::SYS_madvise, at, bytes as u64, libc::MADV_WIPEONFORK as u64) < 0 {
        return false;
    }
    WIPED.store(at as *mut Wiped, SeqCst);
    let mask = host::call(libc::SYS_umask, 0o077, 0, 0);
    host::call(libc::SYS_umask, mask as u64, 0, 0);
    UMASK.store(mask as u32, SeqCst);
    begin();
    true
}

/// The memory of this process.
pub fn wiped() -> &'static Wiped {
    // SAFETY: `start` has mapped it before the first site was rewritten, and nothing unmaps it; zeros are valid, and all
    // parts are atomic.
    unsafe { &*WIPED.load(SeqCst) }
}

/// Begins anew in a forked child; with signals blocked, so that no handler waits for itself.
pub fn begin() {
    let wiped = wiped();
    while wiped.state.load(SeqCst) != READY {
        if wiped.state.compare_exchange(NEW, STARTING, SeqCst, SeqCst).is_ok() {
            channel::forget_all();
            for child in &CHILDREN {
                child.pid.store(0, SeqCst);
            }
            wiped.pid.store(host::pid(), SeqCst);
            wiped.state.store(READY, SeqCst);
        } else {
            host::call(libc::SYS_sched_yield, 0, 0, 0);
        }
    }
}

/// True if this process has begun.
pub fn is_ready() -> bool {
    wiped().state.load(SeqCst) == READY
}

/// The number of the child that runs on its parent's memory, if this is one.
pub fn shared_child() -> Option<u32> {
    if wiped().vforks.load(SeqCst) == 0 {
        return None;
    }
    let pid = host::pid();
    (pid != wiped().pid.load(SeqCst)).then_some(pid)
}

/// True if notes about descriptors may be read and made.
pub fn may_note() -> bool {
    wiped().uncached.load(SeqCst) == 0 && shared_child().is_none()
}

/// From now on, nothing is noted about descriptors.
pub fn stop_noting() {
    wiped().uncached.store(1, SeqCst);
}

/// A child on this memory is about to begin.
pub fn sharing_begins() {
    if !is_ready() {
        begin();
    }
    wiped().vforks.fetch_add(1, SeqCst);
}

/// A child on this memory has become another program, or has ended, or could not begin (`pid` ≤ 0).
pub fn sharing_ends(pid: i64) {
    if pid > 0 {
        cwd::forget(pid as u32);
        for child in CHILDREN.iter().filter(|child| i64::from(child.pid.load(SeqCst)) == pid) {
            host::unmap(child.area.load(SeqCst), child.bytes.load(SeqCst) as usize);
            child.pid.store(0, SeqCst);
        }
    }
    wiped().vforks.fetch_sub(1, SeqCst);
}

/// A child on this memory allocates for its execve(2); the parent gives it back.
pub fn leave_behind(pid: u32, area: u64, bytes: usize) {
    for child in &CHILDREN {
        if child.pid.load(SeqCst) == 0 && child.pid.compare_exchange(0, pid, SeqCst, SeqCst).is_ok() {
            child.area.store(area, SeqCst);
            child.bytes.store(bytes as u64, SeqCst);
            return;
        }
    }
}

/// The execve(2) failed, and the child has given the memory back itself.
pub fn took_back(pid: u32) {
    for child in CHILDREN.iter().filter(|child| child.pid.load(SeqCst) == pid) {
        child.pid.store(0, SeqCst);
    }
}

/// umask(2).
pub fn umask(mask: u64) -> i64 {
    let before = host::call(libc::SYS_umask, mask, 0, 0);
    if shared_child().is_none() {
        UMASK.store(mask as u32 & 0o777, SeqCst);
    }
    before
}

/// The umask for what this process makes.
pub fn umask_now() -> u32 {
    UMASK.load(SeqCst)
}

/// This process has asked for an fcntl(2) lock: from now on it tells the agent when it closes a file.
pub fn note_lock() {
    if shared_child().is_none() {
        wiped().locks.store(1, SeqCst);
    }
}

/// True if closing a file may free fcntl(2) locks.
pub fn may_have_locks() -> bool {
    wiped().locks.load(SeqCst) != 0 && shared_child().is_none()
}

/// After a defect of this library: no call to the agent is made any more.
pub fn is_broken() -> bool {
    BROKEN.load(SeqCst)
}

/// See [`is_broken`].
#[cfg(all(not(test), panic = "abort"))]
pub fn set_broken() {
    BROKEN.store(true, SeqCst);
}

/// All signals blocked; gives the mask of before.
pub fn block_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0u64);
    let mask = [libc::SIG_SETMASK as u64, &raw const all as u64, &raw mut before as u64, 8, 0, 0];
    raw(libc::SYS_rt_sigprocmask, mask);
    before
}

/// The mask of before again.
pub fn restore_signals(mask: u64) {
    raw(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, &raw const mask as u64, 0, 8, 0, 0]);
}
