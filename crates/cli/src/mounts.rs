//! Who uses a mount, as far as the system tells.

pub use aze_reach::mounts::find;
use aze_reach::mounts::parse_line;
use aze_reach::process::Process;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Users of a mount that are named before the rest is left out.
const USERS_SHOWN_MAX: usize = 5;

/// How long unmounting is tried while no program is seen that uses the mount, and the pause in between.
const FREE_TIME: Duration = Duration::from_secs(1);
const FREE_PAUSE: Duration = Duration::from_millis(20);

/// The number of the file system at `dir`, by which copies of the mount in other mount namespaces are found.
pub fn device(dir: &Path) -> Option<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let line = text.lines().rfind(|line| parse_line(line).as_deref() == Some(dir))?;
    line.split(' ').nth(2).map(str::to_owned)
}

/// The same as a number, as stat(2) tells it (st_dev).
pub fn device_number(dir: &Path) -> Option<u64> {
    let text = device(dir)?;
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
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

/// Processes that use files in `dir`, but for the one that serves the mount, as `name (pid)`; those of other users are seen by root only.
pub fn users(dir: &Path, serving: Option<&Process>) -> Vec<String> {
    let is_in = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    let mut users = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if serving.is_some_and(|process| process.pid == pid) {
            continue;
        }
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

/// Unmounts. While the mount is in use, and by no program that is seen, it tries again, for up to a second: the system lets go of a program's
/// files a moment after the program has ended, and the mount's own process looks at a mount that it has just made. Blocks.
///
/// # Errors
/// What the system said, and who uses the mount if that was EBUSY.
pub fn unmount(dir: &Path, lazy: bool, serving: Option<&Process>) -> Result<(), (io::Error, Vec<String>)> {
    let give_up = Instant::now() + FREE_TIME;
    loop {
        let Err(error) = aze_fuse::unmount(dir, lazy) else { return Ok(()) };
        if error.kind() != ErrorKind::ResourceBusy {
            return Err((error, Vec::new()));
        }
        let users = users(dir, serving);
        if !users.is_empty() || Instant::now() >= give_up {
            return Err((error, users));
        }
        // Nothing tells when it is free.
        std::thread::sleep(FREE_PAUSE);
    }
}

/// The users of [`users`] in a sentence: `bash (12), vi (13) and 4 more`.
pub fn named(users: &[String]) -> String {
    let shown = users.iter().take(USERS_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    match users.len().saturating_sub(USERS_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_users_are_not_all_named() {
        let users: Vec<String> = (1..=7).map(|pid| format!("p ({pid})")).collect();
        assert_eq!(named(&users), "p (1), p (2), p (3), p (4), p (5) and 2 more");
        assert_eq!(named(&users[..1]), "p (1)");
    }
}
