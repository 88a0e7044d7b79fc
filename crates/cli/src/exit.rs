//! How a failure is told on standard error: as a line for people, or as JSON.

pub use aze_words::exit::{Exit, Outcome, TABLE, Trouble, of_code, of_io};

use std::sync::atomic::{AtomicBool, Ordering};

/// Failures are told as JSON.
static AS_JSON: AtomicBool = AtomicBool::new(false);

/// Has failures told as JSON from now on, or not.
pub fn tell_as_json(json: bool) {
    AS_JSON.store(json, Ordering::Relaxed);
}

/// A line for standard error about a failure.
pub fn failure_line(command: &str, trouble: &Trouble) -> String {
    match AS_JSON.load(Ordering::Relaxed) {
        true => object("error", command, trouble),
        false => format!("aze: {command}: {trouble}"),
    }
}

/// A line for standard error about a part that is missing from something that was done.
pub fn warning_line(command: &str, trouble: &Trouble) -> String {
    match AS_JSON.load(Ordering::Relaxed) {
        true => object("warning", command, trouble),
        false => format!("aze: {command}: warning: {trouble}"),
    }
}

fn object(kind: &str, command: &str, trouble: &Trouble) -> String {
    serde_json::json!({ kind: trouble.text, "command": command, "exit": trouble.exit as u8 }).to_string()
}
