//! A file system that is shut down under the servers, as a power cut does it: synced files are there when
//! it is mounted again. It takes root, a loop device, and an ext4 or xfs that can be told to shut down; where that
//! cannot be had, the test is counted as left out, with the reason.
//!
//! `AZE_TEST_SEED` seeds the random choices; the timing depends on the machine.

use aze_tests::disk::Disk;
use aze_tests::watchdog::processes_of;
use aze_tests::{Draw, Place, leave_out, long, wait_until};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How often it is shut down.
const ROUNDS: u64 = 3;
const ROUNDS_LONG: u64 = 300;

/// Threads that write.
const WRITERS: u64 = 2;

/// Ends the file system at once: nothing that is not on the disk gets there any more (`EXT4_IOC_SHUTDOWN`, which
/// is `XFS_IOC_GOINGDOWN`, too).
fn shut_down(dir: &Path) {
    const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
    let without_flush: u32 = 2;
    let dir = File::open(dir).expect("the file system");
    // SAFETY: the request reads the number, which outlives the call, through a descriptor that is open.
    let result = unsafe { libc::ioctl(dir.as_raw_fd(), EXT4_IOC_SHUTDOWN as _, &raw const without_flush) };
    assert_eq!(result, 0, "shut the file system down: {}", std::io::Error::last_os_error());
}

fn up(place: &Place) {
    let storage = place.path("disk/storage").display().to_string();
    let words = ["up", "--name", "v", "--servers", "2", "--size", "160M", "--storage-size", "400M"];
    place.aze(&[&words[..], &["--storage", &storage]].concat()).ok();
}

/// Writes and syncs until that fails; gives what must be there.
fn work(root: &Path, who: &str, mut draw: Draw, synced: &AtomicUsize) -> Vec<(String, Vec<u8>)> {
    let mut there = Vec::new();
    for number in 0.. {
        let bytes: Vec<u8> = (0..draw.below(150_000)).map(|at| (at * 7 + number) as u8 | 1).collect();
        let (first, second) = (format!("{who}-{number}"), format!("{who}-{number}-moved"));
        let done = || -> std::io::Result<String> {
            let mut file = File::create(root.join(&first))?;
            file.write_all(&bytes)?;
            if number % 3 == 0 {
                fs::rename(root.join(&first), root.join(&second))?;
            }
            file.sync_all()?;
            Ok(if number % 3 == 0 { second.clone() } else { first.clone() })
        };
        match done() {
            Ok(name) => there.push((name, bytes)),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{who}: {error}");
                break;
            }
        }
        synced.fetch_add(1, Ordering::Relaxed);
    }
    there
}

#[test]
fn what_was_synced_is_there_after_the_file_system_was_shut_down() {
    shut_down_again_and_again("power", Disk::ext4);
}

#[test]
fn so_it_is_on_xfs() {
    shut_down_again_and_again("power-xfs", Disk::xfs);
}

/// What another test does that has nodes with mount namespaces of their own: both tests above failed beside it.
#[test]
fn a_copy_of_the_mount_namespace_does_not_keep_it_busy() {
    let place = Place::new();
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let copies = std::thread::spawn(move || {
        asked.recv().expect("the other thread asks");
        let mut copy = Command::new("unshare");
        copy.args(["--mount", "--propagation", "private", "sh", "-c", "echo; read -r _"]);
        let mut copy = copy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare runs");
        let read = copy.stdout.as_mut().expect("a pipe").read_exact(&mut [0]);
        read.map(|()| copy).expect("it has a namespace")
    });
    let disk = match Disk::ext4(&place, "disk") {
        Ok(disk) => disk,
        Err(why) => return leave_out("power-copy", &format!("left out, since no disk can be mounted here: {why}")),
    };
    ask.send(()).expect("the thread is there");
    let mut copy = copies.join().expect("the namespace was copied");
    disk.unmount();
    drop(copy.stdin.take());
    assert!(copy.wait().expect("it ends").code().is_some(), "it has been there until now");
}

fn shut_down_again_and_again(test: &str, make: fn(&Place, &str) -> Result<Disk, String>) {
    let seed = std::env::var("AZE_TEST_SEED").ok().map_or(1, |text| text.parse().expect("a number"));
    let (mut place, mut draw) = (Place::new(), Draw::new(seed, 0));
    let disk = match make(&place, "disk") {
        Ok(disk) => disk,
        Err(why) => {
            return leave_out(test, &format!("left out, since no file system in a file can be mounted here: {why}"));
        }
    };
    let rounds = if long() { ROUNDS_LONG } else { ROUNDS };
    let mut there: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..rounds {
        up(&place);
        let mount = place.mount();
        place.allow(Duration::from_secs(120 * rounds));
        for (name, bytes) in &there {
            let read = fs::read(mount.join(name));
            let read = read.unwrap_or_else(|error| panic!("AZE_TEST_SEED={seed}, round {round}: {name}: {error}"));
            assert!(read == *bytes, "AZE_TEST_SEED={seed}, round {round}: {name} has other bytes");
        }
        let synced = AtomicUsize::new(0);
        let done = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (draw, mount, synced) = (Draw::new(seed, 1 + writer + round * WRITERS), &mount, &synced);
                    scope.spawn(move || work(mount, &format!("r{round}w{writer}"), draw, synced))
                })
                .collect();
            wait_until("some files were synced", || synced.load(Ordering::Relaxed) > 20);
            std::thread::park_timeout(Duration::from_micros(draw.below(100_000)));
            shut_down(&disk.dir);
            writers.into_iter().flat_map(|writer| writer.join().expect("a writer ends")).collect::<Vec<_>>()
        });
        there.extend(done);
        let status = place.aze(&["ls", "aze:/"]);
        assert!(status.code != 0 && status.err.contains("its storage failed"), "{}{}", status.out, status.err);
        place.aze(&["umount", &mount.display().to_string()]).ok();
        // It may say what could not be made durable.
        place.aze(&["down", "--force", "--name", "v"]);
        wait_until("the servers are gone", || processes_of(&place.dir, "serve").is_empty());
        disk.unmount();
        disk.mount().expect("the file system is mounted again");
    }
    disk.unmount();
    println!("{} files were synced", there.len());
}
