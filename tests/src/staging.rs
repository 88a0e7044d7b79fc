//! What tests of staging share: receipts and names in a directory, an attempt that runs by itself, and the priorities of threads.

use crate::PATIENCE;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The names in a directory, hidden ones too, in order.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The receipts in a directory, in order.
pub fn receipts(dir: &Path) -> Vec<PathBuf> {
    names(dir).iter().filter(|name| name.starts_with("azekura-receipt-")).map(|name| dir.join(name)).collect()
}

/// Waits until a command has ended.
pub fn ended(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(started.elapsed() < PATIENCE, "a command does not end");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// The name and the nice value of each thread of a process; none if it has ended.
pub fn priorities(pid: u32) -> Vec<(String, i32)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        // proc_pid_stat(5): the name in brackets is the second field, and the nice value the 19th.
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        Some((name.to_owned(), rest.split_whitespace().nth(16)?.parse().expect("a number")))
    };
    threads.filter_map(of).collect()
}
