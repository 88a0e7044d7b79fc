//! Where volumes are mounted on this machine, as the system lists it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// File system type of our mounts in the system's lists.
const TYPE: &str = "fuse.aze";

/// Where volumes are mounted on this machine.
fn all() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(parse_line).collect()
}

/// The mount that `dir` names; not asked of the file system itself, whose server may be gone.
pub fn find(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().or_else(|_| std::path::absolute(dir)).ok()?;
    all().into_iter().rfind(|mounted| *mounted == dir)
}

/// Whether a mount of ours is at `dir` whose process has gone.
pub fn is_dead(dir: &Path) -> bool {
    let error = fs::metadata(dir).err().and_then(|error| error.raw_os_error());
    error == Some(libc::ENOTCONN) && find(dir).is_some()
}

/// The mount point of a line of proc_pid_mountinfo(5), if it is one of ours.
pub fn parse_line(line: &str) -> Option<PathBuf> {
    let (mount, system) = line.split_once(" - ")?;
    (system.split(' ').next() == Some(TYPE)).then_some(())?;
    let point = mount.split(' ').nth(4)?;
    Some(PathBuf::from(OsString::from_vec(unescape(point))))
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let digits = after
            .get(..3)
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (byte, digits) {
            (b'\\', Some(value)) => {
                bytes.push(value);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_told_from_others() {
        let ours = r"40 28 0:36 / /mnt/with\040blank rw,nosuid shared:1 - fuse.aze azekura:v1 rw,user_id=0";
        assert_eq!(parse_line(ours), Some(PathBuf::from("/mnt/with blank")));
        assert_eq!(parse_line("41 28 0:37 / /mnt rw - fuse.sshfs host: rw"), None);
        assert_eq!(parse_line("nonsense"), None);
    }
}
