//! The stage's own files: state, ledgers, receipts, key. They are on the real disk, in a directory of the run.

use aze_copy::stage::ledger;
use aze_receipt::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Tells apart the runs of one process.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// The directory; it goes with the run.
pub(super) struct OwnFiles {
    root: PathBuf,
    is_releasing: AtomicBool,
}

fn receipt_name(number: u64) -> String {
    format!("receipt-{number:04}")
}

/// What all files have at a moment.
pub(super) type Copy = BTreeMap<PathBuf, Vec<u8>>;

impl OwnFiles {
    pub fn new(seed: u64) -> OwnFiles {
        let (process, run) = (std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(format!("aze-staging-{process}-{run}-{seed}"));
        fs::create_dir_all(root.join("ledgers")).expect("a directory for temporary files");
        OwnFiles { root, is_releasing: AtomicBool::new(false) }
    }

    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    pub fn ledgers(&self) -> PathBuf {
        self.root.join("ledgers")
    }

    pub fn receipt(&self, number: u64) -> PathBuf {
        self.root.join(receipt_name(number))
    }

    /// The first receipt beside this one that is not there.
    pub fn free_receipt(receipt: &Path) -> PathBuf {
        let mut all = (0..).map(|number| receipt.with_file_name(receipt_name(number)));
        all.find(|path| !path.exists()).expect("numbers do not end")
    }

    pub fn key(&self) -> Key {
        Key::at(&self.root.join("key")).expect("a key").0
    }

    pub fn begin(&self, is_release: bool) {
        self.is_releasing.store(is_release, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.is_releasing.store(false, Ordering::Relaxed);
    }

    pub fn is_releasing(&self) -> bool {
        self.is_releasing.load(Ordering::Relaxed)
    }

    /// Receipts with their names.
    pub fn receipts(&self) -> Vec<PathBuf> {
        let all = self.read().into_keys();
        all.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("receipt-"))).collect()
    }

    /// Paths at the destination of files that ledgers list as released.
    pub fn released(&self) -> BTreeSet<Vec<u8>> {
        let (ledgers, _) = ledger::all_in(&self.ledgers()).expect("ledgers can be read");
        ledgers.iter().flat_map(|ledger| ledger.released_outside().collect::<Vec<_>>()).collect()
    }

    pub fn read(&self) -> Copy {
        let mut all = Copy::new();
        for dir in [self.root.clone(), self.ledgers()] {
            for entry in fs::read_dir(dir).expect("the directory of the run") {
                let path = entry.expect("an entry").path();
                if path.is_file() {
                    all.insert(path.clone(), fs::read(&path).expect("a file of the run"));
                }
            }
        }
        all
    }

    /// Puts everything back as it was.
    pub fn restore(&self, copy: &Copy) {
        let write = |path: &Path, bytes: &[u8]| fs::write(path, bytes).expect("a file of the run");
        for (path, bytes) in self.read() {
            match copy.get(&path) {
                None => fs::remove_file(&path).expect("a file of the run"),
                Some(before) if *before != bytes => write(&path, before),
                Some(_) => {}
            }
        }
        copy.iter().filter(|(path, _)| !path.exists()).for_each(|(path, bytes)| write(path, bytes));
    }
}

impl Drop for OwnFiles {
    fn drop(&mut self) {
        // Leftovers are small, and their names tell which run made them.
        let _ = fs::remove_dir_all(&self.root);
    }
}
