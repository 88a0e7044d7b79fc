//! What tests of many seeds share: how many they run, and a panic told as a finding.

use std::panic::UnwindSafe;

/// The number in a variable of the environment, or else another one.
pub fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

/// The outcome of a run, or the words of its panic.
pub fn caught<T>(run: impl FnOnce() -> T + UnwindSafe) -> Result<T, String> {
    std::panic::catch_unwind(run).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .unwrap_or_else(|| "a panic without words".into())
    })
}
