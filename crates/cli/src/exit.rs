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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_as_json_has_text_command_and_code() {
        let trouble = Trouble::new(Exit::NotFound, "no \"such\" file");
        let said: serde_json::Value = serde_json::from_str(&object("warning", "cp", &trouble)).expect("JSON");
        assert_eq!(said, serde_json::json!({ "warning": "no \"such\" file", "command": "cp", "exit": 3 }));
    }
}
