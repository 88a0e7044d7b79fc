//! What a figure means nothing without: the machine, the command and the program that it came from; and
//! the directory that keeps it.

use crate::program::Program;
use aze_words::exit::{Outcome, Trouble};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A new directory for the results of one measurement.
pub struct Keep(PathBuf);

impl Keep {
    /// Makes the directory; refuses one that has something in it, which must not be lost.
    pub fn new(dir: &Path) -> Outcome<Keep> {
        let told = |what: &str, error: &std::io::Error| Trouble::local(format!("{what} {}", dir.display()), error);
        fs::create_dir_all(dir).map_err(|error| told("make", &error))?;
        match fs::read_dir(dir).map_err(|error| told("read", &error))?.next() {
            None => Ok(Keep(dir.to_path_buf())),
            Some(_) => {
                Err(Trouble::usage(format!("--record {}: there is something in it: name a new one", dir.display())))
            }
        }
    }

    /// Writes one file.
    pub fn write(&self, name: &str, text: &str) -> Outcome<()> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| Trouble::local(format!("write {}", path.display()), &error))
    }
}

/// The command, the program, the machine and the time.
pub fn circumstances(program: &dyn Program) -> Value {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "command": format!("aze {}", command.join(" ")),
        "version": env!("CARGO_PKG_VERSION"),
        "commit": program.commit(),
        "optimised": !cfg!(debug_assertions),
        "unix_s": now.as_secs(),
        "machine": machine(),
    })
}

fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_start_matches([':', ' ', '\t']).trim().to_string())
    };
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kib = memory.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
    json!({
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map(usize::from).ok(),
        "memory_bytes": kib.map(|kib| kib << 10),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": read("/proc/loadavg").split(' ').next().and_then(|load| load.parse::<f64>().ok()),
    })
}
