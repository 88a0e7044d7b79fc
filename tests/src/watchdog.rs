//! What ends a test that hangs in a mount: when its time is over it shows what hangs and where in the
//! kernel, aborts the connections of its mounts, which is what such a process waits for, and ends the
//! processes that the test has started. Nothing here touches a mount or a process's memory.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a test may use a mount.
pub const TIME_MAX: Duration = Duration::from_secs(120);

/// How long a test gets to fail once everything that it waited for is gone.
const LAST_MOMENT: Duration = Duration::from_secs(30);

/// How long a look at one file of a process may take.
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);

/// Where the kernel lets connections of mounts be aborted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Watches over one test until it is told that the test has ended.
pub struct Watchdog {
    say: Sender<Duration>,
    has_bitten: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watchdog {
    /// Watches over the calling thread's test, whose files are in `dir`.
    pub fn start(dir: &Path) -> Watchdog {
        let (say, hear) = channel();
        let has_bitten = Arc::new(AtomicBool::new(false));
        // SAFETY: a number is asked for.
        let test = unsafe { libc::gettid() };
        let name = thread::current().name().unwrap_or("?").to_string();
        let (dir, bitten) = (dir.to_path_buf(), has_bitten.clone());
        let thread = thread::spawn(move || {
            let started = Instant::now();
            if wait(&hear, started, TIME_MAX) {
                return;
            }
            bitten.store(true, Ordering::SeqCst);
            bite(&name, test, &dir, started.elapsed());
            if !wait(&hear, Instant::now(), LAST_MOMENT) {
                tell(&format!("watchdog: {name} does not end even so: the whole program is ended\n"));
                std::process::abort();
            }
        });
        Watchdog { say, has_bitten, thread }
    }

    /// Gives the test so much time in all.
    pub fn allow(&self, time: Duration) {
        // One that has bitten no longer listens to this.
        let _ = self.say.send(time);
    }

    /// The test has ended; tells whether it had to be ended.
    pub fn end(self) -> bool {
        drop(self.say);
        self.thread.join().expect("a watchdog does not panic");
        self.has_bitten.load(Ordering::SeqCst)
    }
}

/// Waits until the test has ended (true) or its time is over.
fn wait(hear: &Receiver<Duration>, started: Instant, mut time: Duration) -> bool {
    loop {
        match hear.recv_timeout(time.saturating_sub(started.elapsed())) {
            Ok(allowed) => time = allowed,
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

fn bite(name: &str, test: i32, dir: &Path, after: Duration) {
    let mut processes = children(&format!("/proc/self/task/{test}/children"));
    processes.extend(of_volumes(dir));
    let mut text = format!("watchdog: {name} hangs after {:.0} s; its processes:\n", after.as_secs_f64());
    describe(&mut text, std::process::id(), Some(test));
    processes.iter().for_each(|pid| describe(&mut text, *pid, None));
    for connection in connections(dir) {
        let path = Path::new(CONNECTIONS).join(connection.to_string()).join("abort");
        if !path.exists() {
            // This machine has not mounted fusectl yet.
            let _ = Command::new("mount").args(["-t", "fusectl", "none", CONNECTIONS]).status();
        }
        let done = fs::write(&path, "1");
        writeln!(text, "watchdog: abort {}: {done:?}", path.display()).expect("a string can be written");
    }
    for pid in processes {
        // SAFETY: no memory is involved; the process was started by this test.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
    tell(&text);
}

/// To the standard error itself: what a test prints is lost if its program is aborted.
fn tell(text: &str) {
    // There is no other place to report an error.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The processes of such a list, and theirs.
fn children(list: &str) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for pid in read(list).split_whitespace().filter_map(|word| word.parse().ok()) {
        all.insert(pid);
        for task in tasks(pid) {
            all.extend(children(&format!("/proc/{pid}/task/{task}/children")));
        }
    }
    all
}

fn tasks(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.file_name().to_string_lossy().into_owned()).collect()
}

/// Servers and mounts of the volumes in this place, as their records name them.
pub fn of_volumes(dir: &Path) -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    let entries = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    for run in
        entries(dir.to_path_buf()).filter(|path| path.file_name().is_some_and(|name| is_run(name.as_encoded_bytes())))
    {
        for volume in entries(run) {
            for record in entries(volume.join("mounts")).chain([volume.join("volume.json")]) {
                let text = fs::read(record).unwrap_or_default();
                collect(&serde_json::from_slice(&text).unwrap_or_default(), &mut pids);
            }
        }
    }
    pids.retain(|pid| read(&format!("/proc/{pid}/comm")).trim() == "aze");
    pids
}

/// Processes that run `aze VERB` for volumes of this place, whether any record names them or not.
pub fn processes_of(dir: &Path, verb: &str) -> Vec<i32> {
    let here = format!("AZE_RUN_DIR={}", dir.join("run").display());
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let is_meant = |pid: &i32| {
        read(&format!("/proc/{pid}/comm")).trim() == "aze"
            && read(&format!("/proc/{pid}/cmdline")).split('\0').nth(1) == Some(verb)
            && read(&format!("/proc/{pid}/environ")).split('\0').any(|word| word == here)
    };
    pids.filter(is_meant).collect()
}

fn is_run(name: &[u8]) -> bool {
    name.starts_with(b"run")
}

/// Every process that a record names.
fn collect(record: &Value, pids: &mut BTreeSet<u32>) {
    match record {
        Value::Object(fields) => {
            pids.extend(fields.get("pid").and_then(Value::as_u64).map(|pid| pid as u32));
            fields.values().for_each(|value| collect(value, pids));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, pids)),
        _ => {}
    }
}

/// Name, state and kernel stack of a process's tasks, or of one of them.
fn describe(text: &mut String, pid: u32, only: Option<i32>) {
    for task in tasks(pid).into_iter().filter(|task| only.is_none_or(|only| *task == only.to_string())) {
        let status = read(&format!("/proc/{pid}/task/{task}/status"));
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_string();
        let (name, state) = (field("Name:"), field("State:"));
        writeln!(text, "  {pid} {task} {name}: {state}").expect("a string can be written");
        for line in read(&format!("/proc/{pid}/task/{task}/stack")).lines() {
            writeln!(text, "      {line}").expect("a string can be written");
        }
    }
}

/// A file under /proc; empty if it cannot be read, or not within a moment.
fn read(path: &str) -> String {
    let (say, hear) = channel();
    let path = path.to_string();
    // Whether the other thread ever comes back is not ours to know.
    thread::spawn(move || say.send(fs::read(path).unwrap_or_default()));
    let bytes = hear.recv_timeout(LOOK_TIME_MAX).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The kernel's numbers of the connections of all mounts in this place.
fn connections(dir: &Path) -> Vec<u32> {
    // A test may have a mount namespace of its own, which the first thread of its program has not.
    let text = read("/proc/thread-self/mountinfo");
    let parse = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let here = line.contains(" - fuse.aze ") && Path::new(words[4]).starts_with(dir);
        here.then(|| words[2].split_once(':')?.1.parse().ok()).flatten()
    };
    text.lines().filter_map(parse).collect()
}
