//! A progress bar on standard error, if that is a terminal.

use crate::{show, size};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the bar is drawn, at most, each second.
const DRAWS_PER_SECOND: u8 = 10;

/// How many files and bytes have been dealt with.
pub struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Progress {
    /// Starts a bar, if standard error is a terminal and the user is not to be left alone.
    pub fn new(quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND));
            let style =
                ProgressStyle::with_template("{bar:24} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Progress { bar, started: Instant::now(), files: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// The bar, for messages that must not tear it.
    pub fn bar(&self) -> Option<ProgressBar> {
        self.bar.clone()
    }

    /// More is to be done than was known.
    pub fn expect(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc_length(bytes);
        }
    }

    /// Bytes are done.
    pub fn bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// A file is done.
    pub fn file(&self) {
        let files = 1 + self.files.fetch_add(1, Ordering::Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_message(show::count(files, "file"));
        }
    }

    /// Removes the bar; gives the summary `12 files, 3.40 GiB in 2.1 s, 1.62 GiB/s`.
    pub fn finish(&self) -> String {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let (files, bytes) = (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        summary(files, bytes, self.started.elapsed())
    }
}

fn summary(files: u64, bytes: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    let rate = if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 };
    format!("{}, {} in {seconds:.1} s, {}/s", show::count(files, "file"), size::words(bytes), size::words(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_files_bytes_time_and_rate() {
        assert_eq!(summary(1, 3 << 30, Duration::from_secs(2)), "1 file, 3.00 GiB in 2.0 s, 1.50 GiB/s");
        assert_eq!(summary(0, 0, Duration::ZERO), "0 files, 0 B in 0.0 s, 0 B/s");
    }
}
