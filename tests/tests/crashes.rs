//! `kill -9` of servers, of a mount's process, of commands that write, of all of them, and of servers
//! that are just starting, at random moments: acknowledged changes survive. The test records them
//! outside of the volume (`aze_tests::ledger`).
//!
//! `AZE_TEST_SEED` seeds the random choices; the timing depends on the machine. The long form takes
//! many seeds.

use aze_tests::ledger::Ledger;
use aze_tests::watchdog::processes_of;
use aze_tests::{Draw, PATIENCE, Place, long, wait_until};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Rounds with one volume: each kind of death four times, in a drawn order.
const ROUNDS: usize = 20;

/// It draws three servers and durability `close`: a close waits for the disks.
const SEED: u64 = 8;

/// Volumes in the long form.
const SEEDS_LONG: u64 = 100;

/// Memory of one server for data: little more than the least.
const SERVER_MIB: usize = 72;

/// Writers through the mount.
const WRITERS: usize = 2;

/// Changes that must have been made before anybody is killed.
const STEPS_MIN: usize = 40;

/// Longest time from then on, in microseconds.
const MOMENT_US_MAX: u64 = 80_000;

#[derive(Clone, Copy, Debug)]
enum Killed {
    /// One server; the volume is restarted under its mount.
    Server,
    /// All servers; the same.
    Servers,
    /// The process of the mount, and the command that is writing.
    Clients,
    /// All of these.
    All,
    /// All servers, and once more those that are being started.
    Starting,
}

const KINDS: [Killed; 5] = [Killed::Server, Killed::Servers, Killed::Clients, Killed::All, Killed::Starting];

struct Volume {
    place: Place,
    servers: usize,
    durability: &'static str,
    mount: PathBuf,
}

impl Volume {
    fn begin(draw: &mut Draw) -> Volume {
        let durability = ["none", "fsync", "close"][draw.below(3) as usize];
        let mut volume =
            Volume { place: Place::new(), servers: 1 + draw.below(3) as usize, durability, mount: PathBuf::new() };
        volume.up().expect("a new volume starts");
        volume.place.allow(Duration::from_secs(if long() { 600 } else { 240 }));
        volume.mount = volume.place.mount();
        volume
    }

    fn up(&self) -> Result<(), String> {
        let (storage, servers) = (self.place.path("storage").display().to_string(), self.servers.to_string());
        let size = format!("{}M", SERVER_MIB * self.servers);
        let words = ["up", "--name", "v", "--servers", &servers, "--size", &size, "--storage", &storage];
        let ran = self.place.aze(&[&words[..], &["--durability", self.durability]].concat());
        if ran.code == 0 { Ok(()) } else { Err(ran.err) }
    }

    fn pids(&self) -> Vec<i32> {
        processes_of(&self.place.dir, "serve")
    }

    fn mount_again(&mut self) {
        wait_until("the mount's process is gone", || {
            std::fs::metadata(&self.mount).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
        });
        self.place.aze(&["umount", &self.mount.display().to_string()]).ok();
        self.mount = self.place.mount();
    }

    /// `aze restart`, which waits for its word. A program with files that are open in a mount cannot start
    /// another one before these are flushed, which waits for servers that are dead.
    fn restart(&self) -> Held {
        let ours = self.place.command(&["restart", "--name", "v"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", "read word && exec \"$@\"", "sh"]).arg(ours.get_program()).args(ours.get_args());
        shell.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("AZE_VOLUME");
        shell.current_dir(&self.place.dir).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        Held(Some(shell.spawn().expect("sh starts")))
    }

    /// Kills servers that are on their way.
    fn kill_starting(&self, restart: Held, draw: &mut Draw) {
        let mut child = restart.go();
        wait_until("a server is there, or all of it is over", || {
            !self.pids().is_empty() || child.try_wait().expect("a child").is_some()
        });
        moment(draw);
        kill(&self.pids());
        child.wait().expect("a child");
        kill(&self.pids());
    }
}

/// A command that waits for its word.
struct Held(Option<Child>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Without a word it ends.
            drop(child.stdin.take());
            child.wait().expect("a child");
        }
    }
}

impl Held {
    fn go(mut self) -> Child {
        let mut child = self.0.take().expect("it has not begun");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"go\n").expect("it listens");
        child
    }

    fn ends_well(self, who: &str) {
        let ran = self.go().wait_with_output().expect("a child");
        assert!(ran.status.success(), "{who}: aze restart: {}", String::from_utf8_lossy(&ran.stderr));
    }
}

/// Sends SIGKILL; a process that has already ended is ignored.
fn kill(pids: &[i32]) {
    for pid in pids {
        // SAFETY: no memory is involved; the process was started by this test.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
}

fn moment(draw: &mut Draw) {
    std::thread::park_timeout(Duration::from_micros(draw.below(MOMENT_US_MAX)));
}

/// Runs a command; another thread may kill it by its id in `running`.
fn command(place: &Place, words: &[&str], running: &Mutex<Option<u32>>, over: &AtomicBool) -> bool {
    let mut child = {
        let mut running = running.lock().expect("nobody panics with it");
        if over.load(Ordering::SeqCst) {
            return false;
        }
        let mut command: Command = place.command(words);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("aze starts");
        *running = Some(child.id());
        child
    };
    loop {
        // The system does not reuse its id until it has been waited for.
        let mut running = running.lock().expect("nobody panics with it");
        if let Some(status) = child.try_wait().expect("a child") {
            *running = None;
            return status.success();
        }
        drop(running);
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Tells the writers that it is over.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Errors that a program may get when a server or its mount was killed.
fn is_explained(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENOTCONN | libc::ECONNABORTED | libc::ETIMEDOUT))
}

fn round(volume: &mut Volume, killed: Killed, ledgers: &mut [Ledger], draw: &mut Draw, who: &str) {
    let (over, has_killed) = (AtomicBool::new(false), AtomicBool::new(false));
    let (steps, running) = (AtomicUsize::new(0), Mutex::new(None::<u32>));
    let stopped = AtomicU32::new(0);
    // Errors of programs that no killed process explains.
    let unexplained = Mutex::new(Vec::new());
    let root = volume.mount.clone();
    // On a panic, too, the writers stop.
    let ends = Ends(&over);
    let (line, mounted) = ledgers.split_first_mut().expect("there are some");
    std::thread::scope(|scope| {
        for ledger in mounted {
            let (root, over, has_killed, steps, stopped) = (&root, &over, &has_killed, &steps, &stopped);
            let unexplained = &unexplained;
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    if let Err(error) = ledger.step(root) {
                        // A descriptor from before a restart reports once that unsynced bytes may be lost.
                        stopped.fetch_add(1, Ordering::SeqCst);
                        let was_killed = has_killed.load(Ordering::SeqCst);
                        if !was_killed || !is_explained(&error) {
                            let told = format!("{}: {error}\n  {}", ledger.dir, ledger.story());
                            unexplained.lock().expect("nobody panics with it").push(told);
                        }
                        return;
                    }
                    steps.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let place = &volume.place;
        let (over_now, running_now) = (&over, &running);
        let local = place.path("local");
        scope.spawn(move || {
            while !over_now.load(Ordering::SeqCst)
                && line.command(&local, |words| command(place, words, running_now, over_now))
            {}
        });
        let _ends = ends;
        wait_until("some changes were made", || {
            steps.load(Ordering::SeqCst) >= STEPS_MIN || stopped.load(Ordering::SeqCst) > 0
        });
        let (first, second) = (volume.restart(), volume.restart());
        moment(draw);
        has_killed.store(true, Ordering::SeqCst);
        let pids = volume.pids();
        // No command starts any more, and none is waited for, while this is held.
        let end_clients = |running: MutexGuard<'_, Option<u32>>| {
            over.store(true, Ordering::SeqCst);
            kill(&running.iter().map(|pid| *pid as i32).collect::<Vec<_>>());
            kill(&processes_of(&volume.place.dir, "mount"));
        };
        match killed {
            Killed::Server => kill(&pids[draw.below(pids.len() as u64) as usize..][..1]),
            Killed::Servers | Killed::Starting => kill(&pids),
            Killed::Clients => end_clients(running.lock().expect("nobody panics with it")),
            Killed::All => {
                let running = running.lock().expect("nobody panics with it");
                kill(&pids);
                end_clients(running);
            }
        }
        match killed {
            Killed::Server | Killed::Servers => {
                first.ends_well(who);
                moment(draw);
            }
            Killed::Starting => {
                volume.kill_starting(first, draw);
                second.ends_well(who);
            }
            Killed::Clients | Killed::All => {}
        }
        over.store(true, Ordering::SeqCst);
    });
    match killed {
        Killed::Clients => volume.mount_again(),
        Killed::All => {
            volume.place.aze(&["umount", &volume.mount.display().to_string()]).ok();
            volume.place.aze(&["down", "--force", "--name", "v"]);
            volume.up().unwrap_or_else(|error| panic!("{who}: the volume does not start: {error}"));
            volume.mount = volume.place.mount();
        }
        Killed::Server | Killed::Servers | Killed::Starting => {}
    }
    let mut wrong = unexplained.into_inner().expect("nobody panics with it");
    for ledger in ledgers {
        // What a killed server had under way others bring to an end, in moments.
        let (began, mut checked) = (Instant::now(), ledger.check(&volume.mount));
        while checked.is_err() && ledger.is_in_doubt() && began.elapsed() < PATIENCE {
            std::thread::park_timeout(Duration::from_millis(100));
            checked = ledger.check(&volume.mount);
        }
        if let Err(why) = checked {
            wrong.push(format!("{}: {why}\n  {}", ledger.dir, ledger.story()));
        }
    }
    assert!(wrong.is_empty(), "{who}, {}", wrong.join("\n"));
}

fn seed_to_rounds(seed: u64) {
    let mut draw = Draw::new(seed, 0);
    let mut volume = Volume::begin(&mut draw);
    let mut ledgers: Vec<Ledger> =
        (0..=WRITERS).map(|who| Ledger::new(&format!("w{who}"), Draw::new(seed, 1 + who as u64))).collect();
    for ledger in &ledgers {
        std::fs::create_dir(volume.mount.join(&ledger.dir)).expect("a directory");
    }
    let mut kinds = Vec::new();
    for number in 0..ROUNDS {
        if kinds.is_empty() {
            kinds.extend(KINDS);
        }
        let killed = kinds.swap_remove(draw.below(kinds.len() as u64) as usize);
        let Volume { servers, durability, .. } = volume;
        let who = format!("AZE_TEST_SEED={seed}, round {number}, {killed:?} of {servers}, {durability}");
        println!("{who}");
        round(&mut volume, killed, &mut ledgers, &mut draw, &who);
    }
    let root: &Path = &volume.mount;
    for ledger in &mut ledgers {
        ledger.check(root).unwrap_or_else(|why| panic!("AZE_TEST_SEED={seed}, at the end, {}: {why}", ledger.dir));
    }
    let Volume { place, .. } = volume;
    place.aze(&["umount", &root.display().to_string()]).ok();
    place.aze(&["down", "--name", "v"]).ok();
    let checked = place.aze(&["check", "storage"]);
    assert_eq!(checked.code, 0, "AZE_TEST_SEED={seed}: aze check: {}{}", checked.out, checked.err);
}

#[test]
fn what_was_acknowledged_is_there_whoever_is_killed() {
    let seed = std::env::var("AZE_TEST_SEED").ok().map(|text| text.parse().expect("a number"));
    match seed {
        Some(seed) => seed_to_rounds(seed),
        None if long() => (0..SEEDS_LONG).for_each(seed_to_rounds),
        None => seed_to_rounds(SEED),
    }
}
