//! Volumes that a measurement starts for itself, with this program: they end with it, also if it is
//! interrupted or fails.

use crate::program::{Program, Session};
use aze_io::real::until;
use aze_proto::Ino;
use aze_proto::predicate::Predicate;
use aze_words::errln;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a server may go on touching memory by itself, and after how many looks that show no more of it
/// it is taken to have ended.
const SETTLED_MAX: Duration = Duration::from_secs(60);
const SETTLED_LOOKS: u32 = 30;

/// How often it is tried to remove what other threads may still add to: each has one operation under way at most.
const REMOVALS_MAX: usize = 20;

/// This process was told to end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Fails once this process was told to end, so that nothing more is made where all is removed.
pub fn go_on() -> Outcome<()> {
    if IS_OVER.load(Ordering::Relaxed) { Err(Trouble::new(Exit::Again, "interrupted")) } else { Ok(()) }
}

/// Volumes and directories to remove if this process is told to end. Locked while a volume starts, so that
/// it is not half there when it has to end.
static LEFT: Mutex<Left> = Mutex::new(Left { volumes: Vec::new(), dirs: Vec::new(), places: Vec::new() });

struct Left {
    volumes: Vec<String>,
    dirs: Vec<PathBuf>,
    /// Directories in volumes, as commands take them.
    places: Vec<String>,
}

fn left() -> MutexGuard<'static, Left> {
    LEFT.lock().expect("nothing panics with this lock")
}

/// From now on a signal that ends this process ends its volumes and removes its directories before. To be
/// called before the first thread is started.
pub fn hear_signals(program: &'static dyn Program, bench: &'static str) -> Outcome<()> {
    program.hold_signals().map_err(|error| Trouble::local(format!("bench {bench}: hold signals"), &error))?;
    std::thread::spawn(move || {
        if program.wait_for_signal().is_ok() {
            IS_OVER.store(true, Ordering::Relaxed);
            // To the end, so that nothing new is begun.
            let left = left();
            left.volumes.iter().for_each(|name| end(name));
            left.dirs.iter().for_each(|dir| remove(dir));
            left.places.iter().for_each(|place| remove_place(place));
            errln!("aze: bench {bench}: interrupted");
            std::process::exit(Exit::Again as i32);
        }
    });
    Ok(())
}

/// A volume that ends with this.
pub struct Started {
    /// Its name.
    pub name: String,
    program: &'static dyn Program,
}

impl Started {
    /// Starts one with these options of `aze up`.
    pub fn new(program: &'static dyn Program, name: &str, options: &[&str]) -> Outcome<Started> {
        let mut left = left();
        aze(&[&["up", "--name", name], options].concat())?;
        left.volumes.push(name.to_string());
        Ok(Started { name: name.to_string(), program })
    }

    /// Connects to it.
    pub fn open(&self) -> Outcome<Arc<dyn Session>> {
        self.program.open(&self.name)
    }

    /// Kills all its servers and has them start again: their memory then holds only the data that they have read.
    pub fn crash_and_restart(&self, timeout: &str) -> Outcome<()> {
        let _left = left();
        self.program.kill_servers(&self.name)?;
        aze(&["restart", "--name", &self.name, "--timeout", timeout]).map(drop)
    }

    /// What its servers have in memory, once they touch no more of it by themselves.
    pub fn settled_bytes(&self) -> Outcome<i64> {
        let (mut bytes, mut same, mut looked) = (0, 0, Ok(()));
        until(Instant::now() + SETTLED_MAX, || {
            match self.program.memory_of_servers(&self.name) {
                Ok(now) => (bytes, same) = (now, if now == bytes { same + 1 } else { 0 }),
                Err(trouble) => looked = Err(trouble),
            }
            looked.is_err() || same >= SETTLED_LOOKS
        });
        looked.map(|()| bytes)
    }
}

/// Searches a whole volume, which must have exactly so many files and directories: otherwise the
/// measurement was of something else.
pub fn count(session: &dyn Session, names: u64) -> Outcome<()> {
    let mut found = 0;
    let mut each = |_| found += 1;
    let all = Predicate::default();
    let searched = session.client().find(session.who(), Ino::ROOT, &all, &mut each);
    session.ask("count the files of the volume", searched)?;
    if found == names {
        return Ok(());
    }
    Err(Trouble::new(Exit::Fatal, format!("bench: {found} files and directories are there, not {names}")))
}

impl Drop for Started {
    fn drop(&mut self) {
        let mut left = left();
        end(&self.name);
        left.volumes.retain(|name| *name != self.name);
    }
}

/// What could not be ended says so itself.
fn end(name: &str) {
    let _ =
        aze(&["down", "--force", "--discard", "--name", name]).inspect_err(|trouble| errln!("aze: bench: {trouble}"));
}

/// Removes a directory in which threads of this process may still make files.
fn remove(dir: &Path) {
    let tried = (0..REMOVALS_MAX).map(|_| fs::remove_dir_all(dir));
    let gone = |tried: &std::io::Result<()>| {
        tried.as_ref().map_or_else(|error| error.kind() == ErrorKind::NotFound, |()| true)
    };
    if !tried.into_iter().any(|tried| gone(&tried)) {
        errln!("aze: bench: {} could not be removed", dir.display());
    }
}

/// The same in a volume. What could not be removed says so itself.
fn remove_place(place: &str) {
    let mut removed = Ok(());
    for _ in 0..REMOVALS_MAX {
        removed = aze(&["rm", "-r", "-f", place]).map(drop);
        if removed.is_ok() {
            return;
        }
    }
    let _ = removed.inspect_err(|trouble| errln!("aze: bench: {trouble}"));
}

/// A new directory of a volume that is removed with this, and all that is in it.
pub struct VolumeScratch(String);

impl VolumeScratch {
    /// Of the directory that is to be made there: `aze://VOLUME/NAME`.
    pub fn new(path: String) -> VolumeScratch {
        left().places.push(path.clone());
        VolumeScratch(path)
    }

    /// It has gone.
    pub fn gone(&self) {
        left().places.retain(|place| *place != self.0);
    }
}

impl Drop for VolumeScratch {
    fn drop(&mut self) {
        let mut left = left();
        if left.places.contains(&self.0) {
            remove_place(&self.0);
            left.places.retain(|place| *place != self.0);
        }
    }
}

/// A new directory that is removed with this, and all that is in it.
pub struct Scratch {
    /// Where it is.
    pub path: PathBuf,
}

impl Scratch {
    /// Makes it in `parent`, with this process's number in its name.
    pub fn new(parent: &Path, bench: &str) -> Outcome<Scratch> {
        Scratch::at(&parent.join(format!("aze-bench-{bench}-{}", std::process::id())))
    }

    /// Makes it there.
    pub fn at(path: &Path) -> Outcome<Scratch> {
        let path = std::path::absolute(path);
        let path = path.map_err(|error| Trouble::local("find the working directory", &error))?;
        let mut left = left();
        fs::create_dir(&path).map_err(|error| Trouble::local(format!("make {}", path.display()), &error))?;
        left.dirs.push(path.clone());
        Ok(Scratch { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut left = left();
        remove(&self.path);
        left.dirs.retain(|dir| *dir != self.path);
    }
}

/// Runs this program; its failure is ours.
pub fn aze(arguments: &[&str]) -> Outcome<Output> {
    let ran =
        std::env::current_exe().and_then(|program| Command::new(program).args(arguments).stdin(Stdio::null()).output());
    let ran = ran.map_err(|error| Trouble::local(format!("run aze {}", arguments[0]), &error))?;
    if ran.status.success() {
        return Ok(ran);
    }
    let why = String::from_utf8_lossy(&ran.stderr).trim().to_string();
    Err(Trouble::new(Exit::Again, format!("aze {}: {why}", arguments.join(" "))))
}
