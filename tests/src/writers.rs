//! Writers that change a mounted volume while a test does something to its servers.

use crate::ledger::Ledger;
use crate::wait_until;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Changes that are waited for between two steps of a test.
const STEPS: usize = 40;

/// Writers at work.
#[derive(Default)]
pub struct Writers {
    is_over: AtomicBool,
    steps: AtomicUsize,
    slowest_us: AtomicU64,
}

impl Writers {
    /// Waits until the writers have made some more changes, or panics with `what`.
    pub fn more(&self, what: &str) {
        let so_far = self.steps.load(Ordering::Relaxed);
        wait_until(what, || self.steps.load(Ordering::Relaxed) >= so_far + STEPS);
    }

    fn write(&self, root: &Path, ledger: &mut Ledger) {
        while !self.is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let done = ledger.step(root);
            self.slowest_us.fetch_max(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
            assert!(done.is_ok(), "{done:?}: nothing fails\n  {}", ledger.story());
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Ends the writers, also if the test panics: their threads are waited for in any case.
struct Ends<'a>(&'a Writers);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while one thread for each ledger makes changes in the mounted directory `root`, and gives how long the longest of them took.
/// The directories of ledgers are made if they are not there.
///
/// # Panics
/// If a change fails.
pub fn while_writing(root: &Path, ledgers: &mut [Ledger], work: impl FnOnce(&Writers)) -> Duration {
    for ledger in &*ledgers {
        fs::create_dir_all(root.join(&ledger.dir)).expect("a directory");
    }
    let writers = Writers::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&writers);
        for ledger in ledgers {
            scope.spawn(|| writers.write(root, ledger));
        }
        work(&writers);
    });
    Duration::from_micros(writers.slowest_us.into_inner())
}
