//! What the tests of the real program share: where it is, a private place for volumes, mounts that
//! are taken down in any case, and waiting for a condition with a deadline. A test that hangs in
//! a mount is ended by its [`watchdog`].

pub mod clib;
pub mod disk;
pub mod fuse_io;
pub mod ledger;
pub mod line;
pub mod nodes;
pub mod python;
pub mod servers;
pub mod staging;
pub mod watchdog;
pub mod writers;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use watchdog::Watchdog;

/// How long a test waits for something that should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The program under test, built by the same profile as the tests.
///
/// # Panics
/// If it has not been built: `cargo build -p aze-cli` does that.
pub fn program() -> PathBuf {
    let exe = std::env::current_exe().expect("a process knows its program");
    let built = exe.ancestors().nth(2).expect("tests live two folders deep").join("aze");
    assert!(built.exists(), "{} is not built: run 'cargo build -p aze-cli' first", built.display());
    built
}

/// A private run directory with at most one volume that is meant; taken down at the end.
pub struct Place {
    /// Everything of this test is in here.
    pub dir: PathBuf,
    mounts: Vec<PathBuf>,
    watchdog: Option<Watchdog>,
}

/// What a command came to.
pub struct Ran {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Panics with what the command said unless it succeeded.
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "\nstdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Panics unless the exit code is the one expected.
    pub fn code(self, expected: i32) -> Ran {
        assert_eq!(self.code, expected, "\nstdout: {}\nstderr: {}", self.out, self.err);
        self
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Place {
    /// A new empty place.
    pub fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("aze-test-{}-{number}", std::process::id()));
        fs::create_dir_all(dir.join("run")).expect("a place for the test");
        let place = Place { dir, mounts: Vec::new(), watchdog: None };
        set_mode(&place.dir.join("run"), 0o700);
        place
    }

    /// The command `aze` in this place, without a volume in its environment.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .env("AZE_RUN_DIR", self.dir.join("run"))
            .env("XDG_CONFIG_HOME", self.dir.join("config"))
            .env("XDG_STATE_HOME", self.dir.join("state"))
            .env_remove("AZE_VOLUME")
            .env_remove("XDG_RUNTIME_DIR");
        command.stdin(Stdio::null()).current_dir(&self.dir);
        command
    }

    /// Runs `aze` and gives what came of it.
    pub fn aze<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        self.command(args).output().expect("aze starts").into()
    }

    /// Starts a volume with further arguments for `aze up`; gives its name.
    pub fn up(&self, args: &[&str]) -> String {
        let mut all = vec!["up", "--size", "1G"];
        all.extend(args);
        let ran = self.aze(&all).ok();
        let line = ran.out.trim();
        let name = line.strip_prefix("export AZE_VOLUME=").unwrap_or_else(|| panic!("aze up printed '{line}'"));
        name.trim_matches('\'').to_string()
    }

    /// Mounts the volume and gives the directory. From now on the test has [`watchdog::TIME_MAX`].
    pub fn mount(&mut self) -> PathBuf {
        self.mount_with(&[])
    }

    /// The same with further arguments for `aze mount`.
    pub fn mount_with(&mut self, args: &[&str]) -> PathBuf {
        self.watch();
        let dir = self.dir.join(format!("mnt{}", self.mounts.len()));
        fs::create_dir_all(&dir).expect("a directory for the mount");
        let way = fuse_io::way();
        let words = ["mount", "--fuse-io", way.as_str()];
        let all: Vec<&OsStr> =
            words.iter().chain(args).map(OsStr::new).chain([OsStr::new("--"), dir.as_os_str()]).collect();
        let _switch = (way == "uring").then(|| fuse_io::Switch::turn(true));
        self.aze(&all).ok();
        self.mounts.push(dir.clone());
        dir
    }

    /// The process that serves the mount at `dir`.
    ///
    /// # Panics
    /// If there is none.
    pub fn serving(&self, dir: &Path) -> u32 {
        let names_it = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == dir.as_os_str().as_encoded_bytes())
        };
        watchdog::of_volumes(&self.dir).into_iter().find(names_it).expect("a process serves the mount")
    }

    /// Lets a test that uses a mount take longer than others.
    pub fn allow(&mut self, time: Duration) {
        self.watch().allow(time);
    }

    fn watch(&mut self) -> &Watchdog {
        self.watchdog.get_or_insert_with(|| Watchdog::start(&self.dir))
    }

    /// A copy of the program that every user may run, also if its build directory is closed to others: they may
    /// now enter this place.
    pub fn program_for_all(&self) -> PathBuf {
        set_mode(&self.dir, 0o711);
        let copy = self.path("aze-for-all");
        fs::copy(program(), &copy).expect("a copy of the program");
        copy
    }

    /// A path in this place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Default for Place {
    fn default() -> Self {
        Place::new()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for mount in &self.mounts {
            self.aze(&[OsStr::new("umount"), mount.as_os_str()]);
        }
        let volumes = fs::read_dir(self.dir.join("run")).into_iter().flatten().flatten();
        for volume in volumes {
            let name = volume.file_name().to_string_lossy().into_owned();
            self.aze(&["down", "--force", "--discard", "--name", &name]);
        }
        // Files that cannot be removed disturb only the next reader of the folder.
        let _ = fs::remove_dir_all(&self.dir);
        let hung = self.watchdog.take().is_some_and(Watchdog::end);
        assert!(!hung || std::thread::panicking(), "the test was ended by its watchdog");
    }
}

/// Random numbers from a seed.
#[derive(Clone)]
pub struct Draw(u64);

impl Draw {
    /// The numbers of a seed, and of who draws them.
    pub fn new(seed: u64, who: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ who.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }
}

/// Whether the long forms of tests are wanted: `make posix-long` says so.
pub fn long() -> bool {
    std::env::var_os("AZE_TEST_LONG").is_some()
}

/// Leaves out a test that this machine cannot run: shows the reason, although a test that passes prints
/// nothing, and adds it to the file of `AZE_TEST_LEFT_OUT`, from which `scripts/test` counts.
pub fn leave_out(test: &str, why: &str) {
    use std::io::Write;
    let text = format!("{test}: {}\n", why.replace('\n', " "));
    let _ = std::io::stderr().write_all(text.as_bytes());
    if let Some(path) = std::env::var_os("AZE_TEST_LEFT_OUT") {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("what is left out can be noted");
    }
}

/// Sets permission bits.
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions can be set");
}

/// Waits until `condition` holds, or panics with `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || if condition() { Ok(()) } else { Err("not yet".into()) });
}

/// Waits until `attempt` succeeds, or panics with `what` and why the last attempt did not.
pub fn wait_for(what: &str, mut attempt: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    while let Err(why) = attempt() {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}: {why}");
        // Between two looks the processor belongs to those that are waited for.
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Panics with `what` unless `condition` holds again and again for as long as `time`.
pub fn stays_so(what: &str, time: Duration, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while started.elapsed() < time {
        assert!(condition(), "after {:?} no longer: {what}", started.elapsed());
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// Waits until a program ends, for `limit` at most; false if it goes on.
pub fn ends_within(program: &mut Child, limit: Duration) -> bool {
    let started = Instant::now();
    loop {
        if program.try_wait().expect("it is a child").is_some() {
            return true;
        }
        match limit.checked_sub(started.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::park_timeout(left.min(Duration::from_millis(10))),
            _ => return false,
        }
    }
}

/// Sends a signal to a process that the test has started, and that must be there.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: kill(2) takes two numbers and touches no memory.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "signal {signal} to process {pid}");
}

/// Runs a program that is no part of the product and panics unless it succeeds.
pub fn run(command: &mut Command) -> Ran {
    let name = format!("{command:?}");
    let ran: Ran = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{name}: {error}")).into();
    assert_eq!(ran.code, 0, "{name}\nstdout: {}\nstderr: {}", ran.out, ran.err);
    ran
}

/// A tree with files of many sizes and names, directories, and symbolic links; the same every time.
pub fn make_tree(root: &Path, files: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    fs::create_dir_all(root).expect("a root");
    for index in 0..files {
        let dir = root.join(format!("d{}", next() % 17)).join(format!("e{}", next() % 5));
        fs::create_dir_all(&dir).expect("a directory");
        let size = match next() % 20 {
            0 => 0,
            1 => 300_000 + next() % 3_000_000,
            2..=4 => next() % 100_000,
            _ => next() % 9000,
        };
        let mut bytes = Vec::with_capacity(size as usize);
        while bytes.len() < size as usize {
            bytes.extend_from_slice(&next().to_le_bytes());
        }
        bytes.truncate(size as usize);
        let file = dir.join(format!("f {index} ä"));
        fs::write(&file, bytes).expect("a file");
        set_mode(&file, if index % 7 == 0 { 0o755 } else { 0o640 });
        if index % 11 == 0 {
            std::os::unix::fs::symlink(format!("../f {index}"), dir.join(format!("l{index}"))).expect("a link");
        }
    }
}
