//! No program waits for a mount for ever. Many threads of one program map, fault, write, truncate,
//! drop pages and reopen the same files on two mounts at once, and read `/proc` of themselves, which
//! waits for the lock on their memory.
//!
//! A mount that reads `/proc/PID/cmdline` of its callers would take the lock on the memory of a
//! program whose page fault waits for this very mount: both would wait for ever, and so
//! would everybody who looks at the program. A child process does the work; should it not end, the test
//! breaks the connections by way of fusectl, so that nothing stays behind.

use aze_tests::{Place, run};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the work goes on.
const WORK: Duration = Duration::from_secs(6);

/// How long it may take to end after that.
const GRACE: Duration = Duration::from_secs(24);

/// Length of a mapping; no file is ever shorter, since a page beyond the end is a SIGBUS.
const MAPPED_BYTES: usize = 64 << 10;

/// Threads at work, and the files they share.
const THREADS: u64 = 8;
const FILES: u64 = 3;

/// Where the child finds what to work on.
const DIRS: &str = "AZE_TEST_STRESS_DIRS";

#[test]
fn threads_that_map_write_and_truncate_on_two_mounts_all_come_to_an_end() {
    let mut place = Place::new();
    place.up(&["--chunk-size", "64K"]);
    let mounts = [place.mount(), place.mount()];
    for number in 0..FILES {
        fs::write(mounts[0].join(format!("f{number}")), vec![1; MAPPED_BYTES]).expect("a file");
    }
    let breaker = Breaker::new(&place, &mounts);
    let mut command = Command::new(std::env::current_exe().expect("a process knows its program"));
    command.args(["--exact", "the_work_itself", "--nocapture"]);
    command.env(DIRS, format!("{}:{}", mounts[0].display(), mounts[1].display())).stdin(Stdio::null());
    let mut child = command.spawn().expect("the work starts");
    if let Err(states) = ends(&mut child, WORK + GRACE) {
        breaker.break_all();
        // Its threads are let go by that, and end by this.
        let _ = child.kill();
        let _ = child.wait();
        panic!("threads wait for a mount for ever:\n{states}");
    }
    assert!(child.wait().expect("a child").success(), "the work failed");
}

/// Waits for the child; what its threads wait for if it does not end in time.
fn ends(child: &mut Child, time: Duration) -> Result<(), String> {
    let started = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if started.elapsed() > time {
            let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
            // Of a thread's files this one takes no lock of its memory.
            let wait = |task: PathBuf| fs::read_to_string(task.join("wchan")).unwrap_or_default();
            return Err(tasks.map(|task| wait(task.path()) + "\n").collect());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(())
}

/// Breaks connections between the kernel and mounts: `/sys/fs/fuse/connections/N/abort`.
struct Breaker {
    control: PathBuf,
    numbers: Vec<u32>,
}

impl Breaker {
    /// Looks up the connection numbers now: later the mounts may no longer answer.
    fn new(place: &Place, mounts: &[PathBuf]) -> Breaker {
        let numbers = mounts.iter().map(|mount| libc::minor(fs::metadata(mount).expect("a mount").dev())).collect();
        let control = place.path("connections");
        fs::create_dir(&control).expect("a directory");
        run(Command::new("mount").args(["-t", "fusectl", "none"]).arg(&control));
        Breaker { control, numbers }
    }

    fn break_all(&self) {
        for number in &self.numbers {
            let abort = self.control.join(number.to_string()).join("abort");
            fs::write(&abort, "1").unwrap_or_else(|error| panic!("{}: {error}", abort.display()));
        }
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        run(Command::new("umount").arg(&self.control));
    }
}

/// A connection that is broken lets a program go that waits for it: the breaker of the test above
/// works when it is needed.
#[test]
fn a_broken_connection_lets_everybody_go() {
    let mut place = Place::new();
    place.up(&[]);
    let mounts = [place.mount()];
    let breaker = Breaker::new(&place, &mounts);
    breaker.break_all();
    let error = fs::read_dir(&mounts[0]).expect_err("nobody answers");
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
}

/// Does nothing unless the test above has started it.
#[test]
fn the_work_itself() {
    let Ok(dirs) = std::env::var(DIRS) else { return };
    let dirs: Vec<PathBuf> = dirs.split(':').map(PathBuf::from).collect();
    let until = Instant::now() + WORK;
    std::thread::scope(|scope| {
        for seed in 1..=THREADS {
            let dirs = &dirs;
            scope.spawn(move || {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                while Instant::now() < until {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let dir = &dirs[(random % 2) as usize];
                    step(&dir.join(format!("f{}", (random >> 8) % FILES)), random >> 16);
                }
            });
        }
    });
}

/// One thing that a thread does with a file.
fn step(path: &Path, random: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("it opens");
    let at = random % MAPPED_BYTES as u64;
    match (random >> 20) % 8 {
        0 => file.write_all_at(&[random as u8; 3000], at).expect("it is written"),
        1 => {
            file.read_at(&mut [0; 9000], at).expect("it is read");
        }
        2 => file.set_len(MAPPED_BYTES as u64 * (1 + random % 5)).expect("its length is set"),
        3 => {
            // SAFETY: a hint about an open descriptor.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        4 => {
            for name in ["stat", "cmdline", "status", "maps"] {
                fs::read(format!("/proc/self/{name}")).expect("one's own state");
            }
        }
        5 => mapped(&file, at, false),
        _ => mapped(&file, at, true),
    }
}

/// Reads and writes through a mapping.
fn mapped(file: &File, at: u64, shared: bool) {
    let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    // SAFETY: a new mapping, anywhere.
    let start = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), MAPPED_BYTES, access, kind, file.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let bytes = start.cast::<u8>();
    let mut sum = 0;
    for page in 0..MAPPED_BYTES / 4096 {
        // SAFETY: within the mapping, and no file is shorter than that.
        sum ^= unsafe { bytes.add(page * 4096).read_volatile() };
    }
    // SAFETY: as above.
    unsafe { bytes.add(at as usize).write_volatile(sum) };
    // SAFETY: the mapping was made above and no other code has its address.
    unsafe {
        if at.is_multiple_of(4) {
            libc::msync(start, MAPPED_BYTES, libc::MS_SYNC);
        }
        libc::munmap(start, MAPPED_BYTES);
    }
    // So that what goes wrong in here is seen.
    std::io::stdout().flush().expect("standard output");
}
