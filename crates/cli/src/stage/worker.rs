//! `aze stage worker`: the process that copies and reads back for an 'aze stage' on another node. Room `copy` has its work.

use super::share::Cores;
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::{Place, VolumePath};
use crate::session::Sessions;
use crate::sys;
use aze_copy::stage::team::worker::{Process, serve};
use aze_copy::tree::Spot;
use aze_io::sync::Mutex;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Work for an 'aze stage' on another node, which starts this.
///
/// It reads tasks from its standard input, as 'aze stage --nodes' sends them, and writes what it has done to its
/// standard output. It ends with its input.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_: &Args) -> Outcome<Exit> {
    let process: Arc<dyn Process> = Arc::new(Own { sessions: Mutex::default(), cores: OnceLock::new() });
    serve(&process, std::io::stdin(), Box::new(std::io::stdout()))
}

/// This process, with its connections to volumes.
struct Own {
    sessions: Mutex<Sessions>,
    /// Of a worker with the lowest priority.
    cores: OnceLock<Option<Cores>>,
}

impl Process for Own {
    fn system(&self) -> String {
        // See random(4), "boot_id".
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    }

    fn be_nice(&self, nice: i32) -> Outcome<()> {
        sys::be_nice(nice).map_err(|error| Trouble::local("lower the priority", &error))?;
        if nice >= sys::NICE_LOWEST {
            self.cores.get_or_init(Cores::watch);
        }
        Ok(())
    }

    fn open(&self, volume: Option<&str>, path: &[u8]) -> Outcome<Spot> {
        let place = match volume {
            Some(name) => Place::Volume(VolumePath { volume: Some(name.into()), path: path.to_vec() }),
            None => Place::Local(PathBuf::from(OsStr::from_bytes(path))),
        };
        place.spot(&mut self.sessions.lock())
    }

    fn die(&self, exit: Exit) {
        std::process::exit(exit as i32);
    }

    fn turn(&self, is_over: &dyn Fn() -> bool) {
        if let Some(Some(cores)) = self.cores.get() {
            cores.turn(is_over);
        }
    }
}
