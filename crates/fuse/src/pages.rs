//! Throwing away the kernel's pages of a file that others have changed.
//!
//! The kernel would do so by itself where it is told of another modification time, but it notes that first: another
//! thread then finds attributes that are new and pages that are old. And it drops an answer that crosses another
//! one, with whatever it says. So the pages go before others hear that they have changed the file.
//!
//! To throw a page away the kernel waits until nobody reads or writes it, and nothing interrupts that wait, not even
//! SIGKILL: a process that is killed meanwhile would stay, and its mount with it, if nobody answered the read any more. So
//! that wait is made short and rare: the file's reads and writes are answered first, and new reads ask for attributes
//! before, which they are not given yet. And it is left to threads whose descriptors are their own: when the process is
//! killed all other descriptors of the device go, and with them the requests for which such a thread waits.

use crate::device::Device;
use aze_io::Io;
use futures_channel::oneshot;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Files whose pages are thrown away at the same time; one may wait for a server that is silent.
const THREADS_MAX: usize = 16;

/// How long reads and writes of a file are waited for before its pages are thrown away. A server may be silent.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// Files known to be without old pages; beyond, nothing is known of any.
const CLEAN_MAX: usize = 1 << 16;

/// What is done when pages have gone.
type Done = Box<dyn FnOnce() + Send>;

/// Throws pages away, by threads that end with this.
pub struct Pages {
    device: Arc<Device>,
    shared: Arc<Shared>,
}

struct Shared {
    io: Io,
    jobs: Mutex<Jobs>,
    called: Condvar,
    moving: Mutex<Moves>,
    moved: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(u64, Done)>,
    threads: usize,
    idle: usize,
    has_ended: bool,
}

/// Data on their way between the kernel and here.
#[derive(Default)]
struct Moves {
    /// Reads and writes under way of each inode, and writes alone.
    counts: HashMap<u64, (usize, usize)>,
    /// Inodes of which nothing has moved since the kernel's pages of them went, or are about to go.
    clean: HashSet<u64>,
    /// Who is to hear of a write of an inode.
    of_writes: HashMap<u64, Vec<oneshot::Sender<()>>>,
}

/// A read or write that is under way.
pub struct Moving<'a> {
    shared: &'a Shared,
    ino: u64,
    is_write: bool,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let mut moving = self.shared.moving.lock();
        let (all, writes) = moving.counts.get_mut(&self.ino).expect("it was counted");
        (*all, *writes) = (*all - 1, *writes - usize::from(self.is_write));
        if *all == 0 {
            moving.counts.remove(&self.ino);
            drop(moving);
            self.shared.moved.notify_all();
        }
    }
}

impl Pages {
    /// Of the mount of this device.
    pub fn new(io: Io, device: Arc<Device>) -> Pages {
        let (jobs, moving) = (Mutex::default(), Mutex::default());
        let shared = Shared { io, jobs, called: Condvar::new(), moving, moved: Condvar::new() };
        Pages { device, shared: Arc::new(shared) }
    }

    /// A read or write of this inode has come; it is answered when what is given is dropped.
    pub fn moves(&self, ino: u64, is_write: bool) -> Moving<'_> {
        let mut moving = self.shared.moving.lock();
        moving.clean.remove(&ino);
        let (all, writes) = moving.counts.entry(ino).or_default();
        (*all, *writes) = (*all + 1, *writes + usize::from(is_write));
        if is_write {
            moving.of_writes.remove(&ino);
        }
        Moving { shared: &self.shared, ino, is_write }
    }

    /// Whether the kernel has had no page of this inode since its pages were thrown away last.
    pub fn are_clean(&self, ino: u64) -> bool {
        self.shared.moving.lock().clean.contains(&ino)
    }

    /// Resolves when this inode is being written through this mount.
    pub async fn written(&self, ino: u64) {
        let (tell, told) = oneshot::channel();
        {
            let mut moving = self.shared.moving.lock();
            if moving.counts.get(&ino).is_some_and(|(_, writes)| *writes > 0) {
                return;
            }
            let who = moving.of_writes.entry(ino).or_default();
            who.retain(|other| !other.is_canceled());
            who.push(tell);
        }
        // It is dropped then.
        let _ = told.await;
    }

    /// Has the kernel throw away the pages of this inode that it has now; `done` is called then, by another thread.
    pub fn forget(&self, ino: u64, done: Done) {
        let shared = &self.shared;
        let mut jobs = shared.jobs.lock();
        jobs.waiting.push_back((ino, done));
        if jobs.idle < jobs.waiting.len() && jobs.threads < THREADS_MAX {
            jobs.threads += 1;
            let (of_thread, device) = (shared.clone(), self.device.clone());
            let started = std::thread::Builder::new().name("aze-pages".into()).spawn(move || of_thread.work(device));
            if started.is_err() {
                jobs.threads -= 1;
                let job = if jobs.threads == 0 { jobs.waiting.pop_back() } else { None };
                drop(jobs);
                // Nobody else will.
                job.into_iter().for_each(|(ino, done)| shared.forget(&self.device, ino, done));
                return;
            }
        }
        shared.called.notify_one();
    }

    /// The same; returns when they have gone.
    pub fn forget_now(&self, ino: u64) {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        // Whoever does not listen any more has gone.
        self.forget(
            ino,
            Box::new(move || {
                let _ = tell.send(());
            }),
        );
        let _ = told.recv();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.shared.jobs.lock().has_ended = true;
        self.shared.called.notify_all();
    }
}

impl Shared {
    fn work(&self, device: Arc<Device>) {
        let device = own_descriptors(device);
        let mut jobs = self.jobs.lock();
        loop {
            if let Some((ino, done)) = jobs.waiting.pop_front() {
                drop(jobs);
                self.forget(&device, ino, done);
                jobs = self.jobs.lock();
            } else if jobs.has_ended {
                return;
            } else {
                jobs.idle += 1;
                self.called.wait(&mut jobs);
                jobs.idle -= 1;
            }
        }
    }

    fn forget(&self, device: &Device, ino: u64, done: Done) {
        self.wait_until_quiet(ino);
        device.forget_pages(ino);
        done();
    }

    fn wait_until_quiet(&self, ino: u64) {
        let until_ns = self.io.mono_ns() + QUIET_TIME.as_nanos() as u64;
        let mut moving = self.moving.lock();
        while moving.counts.contains_key(&ino)
            && let left @ 1.. = until_ns.saturating_sub(self.io.mono_ns())
        {
            self.moved.wait_for(&mut moving, Duration::from_nanos(left));
        }
        // What moves from now on may stay in pages.
        if moving.clean.len() >= CLEAN_MAX {
            moving.clean.clear();
        }
        if !moving.counts.contains_key(&ino) {
            moving.clean.insert(ino);
        }
    }
}

/// Gives the calling thread a table of descriptors of its own, with one of the device and nothing else beyond the
/// standard streams. Where that cannot be had the thread works as well, but a kill may have to wait for it.
fn own_descriptors(device: Arc<Device>) -> Arc<Device> {
    // SAFETY: no memory is involved; every number that this thread has means the same afterwards.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return device;
    }
    // Where /dev/fuse may not be opened the mount's only descriptor has to do.
    let Ok(own) = Device::clone_of(&device).or_else(|_| device.duplicate()) else { return device };
    // In this order: what is dropped closes a number that is still there.
    drop(device);
    let keep = own.descriptor() as u32;
    close_range(3, keep.saturating_sub(1));
    close_range(keep + 1, u32::MAX);
    Arc::new(own)
}

/// Closes descriptors of the calling thread, which shares their numbers with no other one and uses none of them.
fn close_range(first: u32, last: u32) {
    // SAFETY: no memory is involved. In this thread nobody owns these numbers.
    if first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Before Linux 5.9.
    let listed = std::fs::read_dir("/proc/thread-self/fd").into_iter().flatten();
    let numbers: Vec<u32> = listed
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| (first..=last).contains(number))
        .collect();
    for number in numbers {
        // SAFETY: as above. That of the listing itself is closed already.
        unsafe { libc::close(number as i32) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    fn io() -> Io {
        aze_io::real::Runtime::client().io()
    }

    /// A device whose other end takes what it is told.
    fn device() -> (Arc<Device>, std::fs::File) {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        (Arc::new(Device::adopt(OwnedFd::from(ours))), std::fs::File::from(OwnedFd::from(theirs)))
    }

    #[test]
    fn the_kernel_is_told_before_the_call_returns() {
        let (device, mut kernel) = device();
        let pages = Pages::new(io(), device);
        std::thread::scope(|scope| {
            for ino in 0..100 {
                let pages = &pages;
                scope.spawn(move || pages.forget_now(ino));
            }
        });
        assert!(pages.shared.jobs.lock().threads <= THREADS_MAX);
        let mut message = [0; 128];
        for _ in 0..100 {
            let count = kernel.read(&mut message).expect("it was told");
            assert_eq!(count, crate::abi::OUT_HEADER_BYTES + 24);
            let [offset, length] =
                [24, 32].map(|at| i64::from_ne_bytes(message[at..at + 8].try_into().expect("eight")));
            assert_eq!((offset, length), (0, 0), "all of the file");
        }
        assert!(pages.are_clean(7));
        drop(pages.moves(7, false));
        assert!(!pages.are_clean(7), "there may be new ones, which grow old");
    }

    #[test]
    fn reads_are_answered_before_pages_are_thrown_away() {
        let (device, mut kernel) = device();
        let pages = Pages::new(io(), device);
        let read = pages.moves(1, false);
        std::thread::scope(|scope| {
            scope.spawn(|| pages.forget_now(1));
            pages.forget_now(2);
            drop(read);
        });
        assert!(pages.shared.moving.lock().counts.is_empty());
        // Of a server that is silent no answer is waited for.
        let _read = pages.moves(3, false);
        pages.forget_now(3);
        assert!(!pages.are_clean(3));
        let mut message = [0; 128];
        let told: Vec<u64> = (0..3)
            .map(|_| {
                let count = kernel.read(&mut message).expect("it was told");
                assert_eq!(count, crate::abi::OUT_HEADER_BYTES + 24);
                u64::from_ne_bytes(message[16..24].try_into().expect("eight"))
            })
            .collect();
        assert_eq!(told.len(), 3);
        assert_eq!(told[2], crate::nodes::node(3));
    }

    #[test]
    fn whoever_waits_for_a_write_hears_of_it() {
        use futures_util::FutureExt;
        let pages = Pages::new(io(), device().0);
        let mut written = Box::pin(pages.written(1));
        assert!((&mut written).now_or_never().is_none());
        let _other = (pages.moves(2, true), pages.moves(1, false));
        assert!((&mut written).now_or_never().is_none());
        let _write = pages.moves(1, true);
        assert!(written.now_or_never().is_some() && pages.written(1).now_or_never().is_some());
    }

    #[test]
    fn the_threads_keep_no_descriptor_of_others() {
        let (device, _kernel) = device();
        let pages = Pages::new(io(), device.clone());
        pages.forget_now(1);
        drop(device);
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        pages.forget_now(2);
        drop(ours);
        let mut end = [0];
        assert_eq!(theirs.read(&mut end).expect("the other end is closed"), 0);
    }
}
