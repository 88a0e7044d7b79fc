//! How requests come to the mounts of tests: by `/dev/fuse`, or with `AZE_TEST_FUSE_IO=uring` by io_uring, as
//! `scripts/test` has some of them done once more.
//!
//! Root switches the latter on for the whole machine, on which other tests run meanwhile: so it is on only while a
//! mount begins, under a lock that all processes know.

use std::fs::{self, File};

/// Root switches it on here.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// How requests come to mounts: `uring` or `dev`.
pub fn way() -> String {
    std::env::var("AZE_TEST_FUSE_IO").unwrap_or_else(|_| "dev".into())
}

/// The switch, held on or off until this is dropped.
pub struct Switch {
    before: String,
    // Unlocked when it is closed.
    _lock: File,
}

impl Switch {
    /// Waits for those that hold it, and turns it; `None` where there is none, or this user may not.
    pub fn turn(on: bool) -> Option<Switch> {
        let lock = File::options().write(true).open(PARAMETER).ok()?;
        lock.lock().expect("the parameter can be locked");
        let before = fs::read_to_string(PARAMETER).expect("it can be read");
        fs::write(PARAMETER, if on { "Y" } else { "N" }).expect("root may turn it");
        Some(Switch { before, _lock: lock })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        fs::write(PARAMETER, self.before.trim()).expect("what was can be again");
    }
}
