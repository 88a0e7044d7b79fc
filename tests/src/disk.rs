//! File systems that a test makes, in a file or in memory. It takes root, and a loop device for those in a file.

use crate::{Place, run};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

/// Length of a file system in a file, in bytes; the file is sparse.
const IMAGE_BYTES: u64 = 3 << 30;

/// Waits until the test has ended, however that was, and leaves no file system behind. The loop device goes
/// with the last that uses it. If the test was killed its directory is there, and it may just be mounting.
const AFTERWARDS: &str = r#"
read -r _
for second in 1 2 3 4 5 6 7 8 9 10; do
    [ -d "$0" ] || exit 0
    umount -l "$0" && exit 0
    sleep 1
done
"#;

/// A file system, mounted in the place of a test.
pub struct Disk {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// The image or `tmpfs`, which mount(8) mounts there with these options.
    what: PathBuf,
    options: Vec<String>,
    /// Closed when this process ends.
    _ends: Option<ChildStdin>,
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
        let mut disk = Disk { dir: place.path(name), what: what.into(), options, _ends: None };
        fs::create_dir(&disk.dir).expect("a directory");
        let mut after = Command::new("setsid");
        after.args(["-f", "sh", "-c", AFTERWARDS]).arg(&disk.dir);
        after.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut after = after.spawn().expect("setsid runs");
        disk._ends = after.stdin.take();
        assert!(after.wait().expect("setsid ends").success(), "nobody cleans up");
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
