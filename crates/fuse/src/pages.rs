//! Dropping the kernel's pages of a file that another client has changed.
//!
//! The kernel drops a file's pages by itself when it learns another modification time, but it stores the new attributes
//! first: another thread of the node can then read old pages under new attributes. And when two answers cross, the
//! kernel discards one of them whole. So this mount drops the pages before it confirms the recall of a lease, and the
//! other client's change returns only after that.
//!
//! Before the kernel drops a page it waits until the page is unlocked, and no signal, not even SIGKILL, ends that wait.
//! A killed mount process would stay in it for ever if the page waits for a read which that process was to answer. Two
//! rules keep the wait short and harmless:
//!
//! - A thread drops the pages of a file after the reads and writes of that file have been answered. Later reads first
//!   ask for attributes, and those are answered when the pages are gone.
//! - The threads that drop pages have a descriptor table of their own. When the process is killed, the kernel closes all
//!   other descriptors of the device, which ends the requests that these threads wait for.
//!
//! Such a thread must not run foreign code, whose descriptors it does not have: a thread with the descriptors of the
//! process calls the callbacks.

use crate::device::{Device, Sent};
use aze_io::Io;
use aze_io::sync::{Condvar, Mutex};
use futures_channel::oneshot;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Files whose pages are dropped at the same time. Each may wait for a silent server.
const THREADS_MAX: usize = 16;

/// The longest time for which a thread waits for the answers to a file's reads and writes before it drops the pages. A
/// server may be silent.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// Files that are known to have no pages. When there are more, the set is emptied.
const WITHOUT_PAGES_MAX: usize = 1 << 16;

/// Counts of drops; several inodes share one.
const DROPS_SLOTS: usize = 1 << 12;

/// What a thread calls when a job is done.
type Callback = Box<dyn FnOnce() + Send>;

/// What a thread calls when it has lengthened a file, or has not.
type Lengthened = Box<dyn FnOnce(bool) + Send>;

/// What a thread does with an inode. Either call into the kernel may wait for a page.
enum Job {
    Drop(Callback),
    Lengthen { offset: u64, byte: u8, drops: u64, lengthened: Lengthened },
}

/// Drops pages, by threads that end when this is dropped.
pub struct Pages {
    device: Arc<Device>,
    shared: Arc<Shared>,
}

struct Shared {
    io: Io,
    jobs: Mutex<Jobs>,
    /// There is a job, or the end.
    has_job: Condvar,
    transfers: Mutex<Transfers>,
    /// All reads and writes of some inode have been answered.
    is_quiet: Condvar,
    /// To the thread that calls the callbacks.
    callbacks: mpsc::Sender<Callback>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(u64, Job)>,
    threads: usize,
    idle: usize,
    has_ended: bool,
}

/// Reads and writes that the kernel has asked for and that are not answered yet.
#[derive(Default)]
struct Transfers {
    /// For each inode: reads and writes together, and writes alone.
    counts: HashMap<u64, (usize, usize)>,
    /// Inodes without a read or write since their pages were dropped.
    without_pages: HashSet<u64>,
    /// Dropped when a write of the inode begins.
    writes: HashMap<u64, Vec<oneshot::Sender<()>>>,
    /// How often pages were to be dropped.
    drops: Vec<u64>,
    /// Inodes that are being lengthened, and by how many threads.
    lengthening: HashMap<u64, usize>,
}

impl Transfers {
    fn drops(&mut self, ino: u64) -> &mut u64 {
        self.drops.resize(DROPS_SLOTS, 0);
        &mut self.drops[(ino ^ ino >> 48) as usize % DROPS_SLOTS]
    }
}

/// One read or write; dropped when it has been answered.
pub struct Transfer<'a> {
    shared: &'a Shared,
    ino: u64,
    is_write: bool,
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let mut transfers = self.shared.transfers.lock();
        let (all, writes) = transfers.counts.get_mut(&self.ino).expect("it was counted");
        (*all, *writes) = (*all - 1, *writes - usize::from(self.is_write));
        if *all == 0 {
            transfers.counts.remove(&self.ino);
            drop(transfers);
            self.shared.is_quiet.notify_all();
        }
    }
}

impl Pages {
    /// For the mount of this device.
    ///
    /// # Errors
    /// What the system said when it had no thread for the callbacks.
    pub fn new(io: Io, device: Arc<Device>) -> io::Result<Pages> {
        let (callbacks, called) = mpsc::channel::<Callback>();
        // Ends with the last of the threads that send to it.
        let calls = move || called.into_iter().for_each(|callback| callback());
        std::thread::Builder::new().name("aze-dropped".into()).spawn(calls)?;
        let (jobs, transfers) = (Mutex::default(), Mutex::default());
        let (has_job, is_quiet) = (Condvar::new(), Condvar::new());
        let shared = Shared { io, jobs, has_job, transfers, is_quiet, callbacks };
        Ok(Pages { device, shared: Arc::new(shared) })
    }

    /// Counts a read or write of this inode until the caller drops the result.
    pub fn transfer(&self, ino: u64, is_write: bool) -> Transfer<'_> {
        let mut transfers = self.shared.transfers.lock();
        transfers.without_pages.remove(&ino);
        let (all, writes) = transfers.counts.entry(ino).or_default();
        (*all, *writes) = (*all + 1, *writes + usize::from(is_write));
        if is_write {
            transfers.writes.remove(&ino);
        }
        Transfer { shared: &self.shared, ino, is_write }
    }

    /// Whether the kernel has had no page of this inode since its pages were dropped last.
    pub fn are_none(&self, ino: u64) -> bool {
        self.shared.transfers.lock().without_pages.contains(&ino)
    }

    /// Resolves while a program writes this inode through this mount: at once, or when the next write begins.
    pub async fn written(&self, ino: u64) {
        let (begins, begun) = oneshot::channel();
        {
            let mut transfers = self.shared.transfers.lock();
            if transfers.counts.get(&ino).is_some_and(|(_, writes)| *writes > 0) {
                return;
            }
            let waiting = transfers.writes.entry(ino).or_default();
            waiting.retain(|other| !other.is_canceled());
            waiting.push(begins);
        }
        // The write drops the sender.
        let _ = begun.await;
    }

    /// Has a thread drop the pages of this inode that the kernel has now; another one calls the callback then.
    pub fn drop_pages(&self, ino: u64, callback: Callback) {
        *self.shared.transfers.lock().drops(ino) += 1;
        self.give(ino, Job::Drop(callback));
    }

    fn give(&self, ino: u64, job: Job) {
        let shared = &self.shared;
        let mut jobs = shared.jobs.lock();
        jobs.waiting.push_back((ino, job));
        if jobs.idle < jobs.waiting.len() && jobs.threads < THREADS_MAX {
            jobs.threads += 1;
            let (of_thread, device) = (shared.clone(), self.device.clone());
            let started = std::thread::Builder::new().name("aze-pages".into()).spawn(move || of_thread.work(device));
            if started.is_err() {
                jobs.threads -= 1;
                // Without any thread the caller does the work.
                let job = if jobs.threads == 0 { jobs.waiting.pop_back() } else { None };
                drop(jobs);
                job.into_iter().for_each(|(ino, job)| shared.work_on(&self.device, ino, job));
                return;
            }
        }
        shared.has_job.notify_one();
    }

    /// The same; returns when the pages are gone.
    pub fn drop_pages_now(&self, ino: u64) {
        let (are_gone, gone) = mpsc::sync_channel(1);
        let callback = move || are_gone.send(()).expect("the caller waits");
        self.drop_pages(ino, Box::new(callback));
        gone.recv().expect("the callback is called");
    }

    /// How often pages of this inode were to be dropped; for [`Pages::lengthen_now`].
    pub fn drops(&self, ino: u64) -> u64 {
        *self.shared.transfers.lock().drops(ino)
    }

    /// Has a thread tell the kernel that the file has at least `offset + 1` bytes, the last of them `byte`; returns
    /// when the kernel knows it. Gives false, and has told nothing, if pages of the inode were to be dropped after
    /// `drops` of them: then another client may have changed that byte since it was read.
    pub fn lengthen_now(&self, ino: u64, offset: u64, byte: u8, drops: u64) -> bool {
        let (tell, told) = mpsc::sync_channel(1);
        let lengthened = move |is_done| tell.send(is_done).expect("the caller waits");
        self.give(ino, Job::Lengthen { offset, byte, drops, lengthened: Box::new(lengthened) });
        told.recv().expect("the callback is called")
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.shared.jobs.lock().has_ended = true;
        self.shared.has_job.notify_all();
    }
}

impl Shared {
    fn work(self: Arc<Self>, device: Arc<Device>) {
        let device = own_descriptors(device);
        self.take_jobs(&device);
        // If these are the last references to them, the clock and the channel must not close descriptors here.
        let callbacks = self.callbacks.clone();
        callbacks.send(Box::new(move || drop(self))).expect("the thread receives until the last sender is dropped");
    }

    fn take_jobs(&self, device: &Device) {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some((ino, job)) = jobs.waiting.pop_front() {
                drop(jobs);
                self.work_on(device, ino, job);
                jobs = self.jobs.lock();
            } else if jobs.has_ended {
                return;
            } else {
                jobs.idle += 1;
                jobs = self.has_job.wait(jobs);
                jobs.idle -= 1;
            }
        }
    }

    fn work_on(&self, device: &Device, ino: u64, job: Job) {
        let callback = match job {
            Job::Drop(callback) => {
                self.wait_until_quiet(ino);
                device.forget_pages(ino);
                callback
            }
            Job::Lengthen { offset, byte, drops, lengthened } => {
                let is_done = self.lengthen(device, ino, offset, byte, drops);
                Box::new(move || lengthened(is_done))
            }
        };
        self.callbacks.send(callback).expect("the thread receives until the last sender is dropped");
    }

    fn lengthen(&self, device: &Device, ino: u64, offset: u64, byte: u8, drops: u64) -> bool {
        {
            let mut transfers = self.transfers.lock();
            if *transfers.drops(ino) != drops {
                return false;
            }
            transfers.without_pages.remove(&ino);
            *transfers.lengthening.entry(ino).or_default() += 1;
        }
        let sent = device.store(ino, offset, byte);
        let mut transfers = self.transfers.lock();
        let threads = transfers.lengthening.get_mut(&ino).expect("it was counted");
        *threads -= 1;
        if *threads == 0 {
            transfers.lengthening.remove(&ino);
            drop(transfers);
            self.is_quiet.notify_all();
        }
        sent != Sent::Refused
    }

    fn wait_until_quiet(&self, ino: u64) {
        let until_ns = self.io.mono_ns() + QUIET_TIME.as_nanos() as u64;
        let mut transfers = self.transfers.lock();
        while transfers.counts.contains_key(&ino)
            && let left @ 1.. = until_ns.saturating_sub(self.io.mono_ns())
        {
            transfers = self.is_quiet.wait_for(transfers, Duration::from_nanos(left));
        }
        // The byte that is stored may be older than the change for which the pages are dropped.
        while transfers.lengthening.contains_key(&ino) {
            transfers = self.is_quiet.wait(transfers);
        }
        // Noted before the kernel drops the pages, so that a read which begins meanwhile removes the note.
        if !transfers.counts.contains_key(&ino) {
            if transfers.without_pages.len() >= WITHOUT_PAGES_MAX {
                transfers.without_pages.clear();
            }
            transfers.without_pages.insert(ino);
        }
    }
}

/// Gives the calling thread a descriptor table of its own, which holds a descriptor of the device and the standard
/// streams. Where the system refuses that the thread works as well, but the end of a killed process may have to wait
/// for it.
fn own_descriptors(device: Arc<Device>) -> Arc<Device> {
    // SAFETY: no memory is involved; every number that this thread has means the same afterwards.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return device;
    }
    // A process that may not open /dev/fuse duplicates the mount's only descriptor.
    let Ok(own) = Device::clone_of(&device).or_else(|_| device.duplicate()) else { return device };
    // Before the numbers are closed below: dropping the device may close one of them.
    drop(device);
    let keep = own.descriptor() as u32;
    close_range(3, keep.saturating_sub(1));
    close_range(keep + 1, u32::MAX);
    Arc::new(own)
}

/// Closes descriptors of the calling thread, whose table is its own and which uses none of them.
fn close_range(first: u32, last: u32) {
    // SAFETY: no memory is involved. Nothing that this thread runs owns one of these numbers.
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
        // SAFETY: as above. The descriptor of the listing itself is closed already.
        unsafe { libc::close(number as i32) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    fn io() -> Io {
        aze_io::real::Runtime::client().io()
    }

    /// A device, and the file that receives its messages in the kernel's place.
    fn device() -> (Arc<Device>, std::fs::File) {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        (Arc::new(Device::adopt(OwnedFd::from(ours))), std::fs::File::from(OwnedFd::from(theirs)))
    }

    #[test]
    fn the_kernel_has_the_message_before_the_call_returns() {
        let (device, mut kernel) = device();
        let pages = Pages::new(io(), device).expect("there is a thread");
        std::thread::scope(|scope| {
            for ino in 0..100 {
                let pages = &pages;
                scope.spawn(move || pages.drop_pages_now(ino));
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
        assert!(pages.are_none(7));
        drop(pages.transfer(7, false));
        assert!(!pages.are_none(7), "the read may have left pages");
    }

    #[test]
    fn reads_are_answered_before_pages_are_thrown_away() {
        let (device, mut kernel) = device();
        let pages = Pages::new(io(), device).expect("there is a thread");
        let read = pages.transfer(1, false);
        std::thread::scope(|scope| {
            scope.spawn(|| pages.drop_pages_now(1));
            pages.drop_pages_now(2);
            drop(read);
        });
        assert!(pages.shared.transfers.lock().counts.is_empty());
        // A server that stays silent delays it by QUIET_TIME only.
        let _read = pages.transfer(3, false);
        pages.drop_pages_now(3);
        assert!(!pages.are_none(3));
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
    fn a_byte_that_may_be_old_is_not_given_to_the_kernel() {
        let (device, mut kernel) = device();
        let pages = Pages::new(io(), device).expect("there is a thread");
        let drops = pages.drops(1);
        assert!(pages.lengthen_now(1, 7, b'x', drops));
        pages.drop_pages_now(1);
        assert!(pages.are_none(1));
        assert!(!pages.lengthen_now(1, 8, b'y', drops), "the pages were dropped");
        let drops = pages.drops(1);
        assert!(pages.lengthen_now(1, 8, b'z', drops) && !pages.are_none(1));
        let mut message = [0; 128];
        let mut told = || {
            let count = kernel.read(&mut message).expect("it was told");
            message[count - 1]
        };
        assert_eq!([told(), told(), told()], [b'x', 0, b'z']);
    }

    #[test]
    fn a_wait_for_a_write_ends_when_the_write_begins() {
        use futures_util::FutureExt;
        let pages = Pages::new(io(), device().0).expect("there is a thread");
        let mut written = Box::pin(pages.written(1));
        assert!((&mut written).now_or_never().is_none());
        let _other = (pages.transfer(2, true), pages.transfer(1, false));
        assert!((&mut written).now_or_never().is_none());
        let _write = pages.transfer(1, true);
        assert!(written.now_or_never().is_some() && pages.written(1).now_or_never().is_some());
    }

    /// A future that waits for the pages may be woken by way of a descriptor.
    #[test]
    fn the_callback_runs_with_the_descriptors_of_the_process() {
        let (device, _kernel) = device();
        let pages = Pages::new(io(), device).expect("there is a thread");
        pages.drop_pages_now(1);
        let (mut ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        pages.drop_pages(2, Box::new(move || ours.write_all(b"1").expect("the descriptor is open")));
        let mut byte = [0];
        theirs.read_exact(&mut byte).expect("the callback has run");
    }

    #[test]
    fn the_threads_keep_no_descriptor_of_others() {
        let (device, _kernel) = device();
        let pages = Pages::new(io(), device.clone()).expect("there is a thread");
        pages.drop_pages_now(1);
        drop(device);
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        pages.drop_pages_now(2);
        drop(ours);
        let mut end = [0];
        assert_eq!(theirs.read(&mut end).expect("the other end is closed"), 0);
    }
}
