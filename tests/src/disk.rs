//! File systems that a test makes, in a file or in memory. It takes root, and a loop device for those in a file.
//!
//! The test's thread gets a mount namespace of its own first, which the threads and processes that it starts share.
//! Tests of other programs that run meanwhile copy mount namespaces, and a copy would keep a file system busy
//! after the test has unmounted it. The namespace goes with its last process, however the test ends, and with it
//! go the mounts and their loop devices.

use crate::{Place, run};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Length of a file system in a file, in bytes; the file is sparse.
const IMAGE_BYTES: u64 = 3 << 30;

/// A file system, mounted in the place of a test.
pub struct Disk {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The image or `tmpfs`, which mount(8) mounts there with these options.
    what: PathBuf,
    options: Vec<String>,
}

impl Disk {
    /// An ext4 in a file, mounted at `name`.
    ///
    /// # Errors
    /// Why it cannot be had on this machine.
    pub fn ext4(place: &Place, name: &str) -> Result<Disk, String> {
        let image = image(place, name);
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        Disk::at(place, name, &image, &["-o", "loop"])
    }

    /// An xfs in a file, mounted at `name`.
    ///
    /// # Errors
    /// As of [`Self::ext4`].
    pub fn xfs(place: &Place, name: &str) -> Result<Disk, String> {
        let image = image(place, name);
        let made = Command::new("mkfs.xfs").arg("-q").arg(&image).status();
        match made {
            Ok(status) if status.success() => Disk::at(place, name, &image, &["-t", "xfs", "-o", "loop"]),
            Ok(status) => Err(format!("mkfs.xfs: {status}")),
            Err(error) => Err(format!("mkfs.xfs: {error}")),
        }
    }

    /// A file system in memory that takes so many bytes.
    ///
    /// # Errors
    /// Why it cannot be had on this machine.
    pub fn in_memory(place: &Place, name: &str, bytes: u64) -> Result<Disk, String> {
        Disk::at(place, name, Path::new("tmpfs"), &["-t", "tmpfs", "-o", &format!("size={bytes}")])
    }

    fn at(place: &Place, name: &str, what: &Path, options: &[&str]) -> Result<Disk, String> {
        let options = options.iter().map(|word| (*word).to_owned()).collect();
        let disk = Disk { dir: place.path(name), what: what.into(), options };
        fs::create_dir(&disk.dir).expect("a directory");
        leave_mount_namespace().map_err(|error| format!("a mount namespace: {error}"))?;
        disk.mount().map(|()| disk)
    }

    /// Mounts it again.
    ///
    /// # Errors
    /// What mount says.
    pub fn mount(&self) -> Result<(), String> {
        let mounted = Command::new("mount").args(&self.options).arg(&self.what).arg(&self.dir).output();
        let mounted = mounted.expect("mount runs");
        if mounted.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&mounted.stderr).trim().into()) }
    }

    /// Unmounts it.
    pub fn unmount(&self) {
        run(Command::new("umount").arg(&self.dir));
        let devices = run(Command::new("losetup").arg("-j").arg(&self.what));
        assert_eq!(devices.out, "", "a loop device is left behind");
    }
}

/// Puts the calling thread into a mount namespace of its own, in which mounts that others make still show.
fn leave_mount_namespace() -> io::Result<()> {
    // SAFETY: unshare(2) takes a number and touches no memory. It concerns this thread, and those that it starts.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (root, none) = (c"/".as_ptr(), std::ptr::null());
    // SAFETY: the path is a string that outlives the call; mount(2) takes no source and no type for a change of
    // propagation.
    let done = unsafe { libc::mount(none, root, none, libc::MS_REC | libc::MS_SLAVE, none.cast()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn image(place: &Place, name: &str) -> PathBuf {
    let image = place.path(&format!("{name}.image"));
    File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).expect("a file");
    image
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It is not mounted any more, unless something went wrong.
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status();
    }
}
