//! What the system knows of mounts: where volumes are mounted, and who uses a mount.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// File system type of our mounts in the system's lists.
const TYPE: &str = "fuse.aze";

/// Users of a mount that are named before the rest is left out.
const USERS_SHOWN_MAX: usize = 5;

/// Where volumes are mounted on this machine.
pub fn all() -> Vec<PathBuf> {
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

/// The number of the file system at `dir`, by which copies of the mount in other mount namespaces are found.
pub fn device(dir: &Path) -> Option<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let line = text.lines().rfind(|line| parse_line(line).as_deref() == Some(dir))?;
    line.split(' ').nth(2).map(str::to_owned)
}

/// One process, as `name (pid)`, of each mount namespace in which this file system is mounted. Those of other users are
/// seen by root only.
pub fn namespaces_with(device: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let process = entry.path();
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else { continue };
        let text = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        let is_it = |line: &str| parse_line(line).is_some() && line.split(' ').nth(2) == Some(device);
        if seen.insert(namespace) && text.lines().any(is_it) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", name.trim()));
        }
    }
    found
}

/// Processes that use files in `dir`, as `name (pid)`; those of other users are seen by root only.
pub fn users(dir: &Path) -> Vec<String> {
    let is_in = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    let mut users = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let process = entry.path();
        let open = fs::read_dir(process.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|descriptor| is_in(&descriptor.path()));
        if open || ["cwd", "root", "exe"].iter().any(|link| is_in(&process.join(link))) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            users.push(format!("{} ({pid})", name.trim()));
        }
    }
    users
}

/// The users of [`users`] in a sentence: `bash (12), vi (13) and 4 more`.
pub fn named(users: &[String]) -> String {
    let shown = users.iter().take(USERS_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    match users.len().saturating_sub(USERS_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The mount point of a line of proc_pid_mountinfo(5), if it is one of ours.
fn parse_line(line: &str) -> Option<PathBuf> {
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

    #[test]
    fn many_users_are_not_all_named() {
        let users: Vec<String> = (1..=7).map(|pid| format!("p ({pid})")).collect();
        assert_eq!(named(&users), "p (1), p (2), p (3), p (4), p (5) and 2 more");
        assert_eq!(named(&users[..1]), "p (1)");
    }
}
