//! A process that ends opens no more directories. This holds for the whole process, so the test has a program of its own.

use aze_io::disk::DiskError;
use aze_io::real::{Runtime, open_no_more_dirs};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that open directories, and how many each opens at most.
const THREADS: usize = 4;
const DIRS_MAX: usize = 10_000;

/// Opened by each thread before the process ends.
const DIRS_MIN: usize = 5;

#[test]
fn what_is_removed_after_the_last_opening_stays_away() {
    let all = std::env::temp_dir().join(format!("aze-ending-{}", std::process::id()));
    std::fs::create_dir(&all).expect("the test's directory can be made");
    let opened: [AtomicUsize; THREADS] = Default::default();
    std::thread::scope(|scope| {
        for (thread, opened) in opened.iter().enumerate() {
            let all = &all;
            scope.spawn(move || {
                let runtime = Runtime::client();
                for number in 0..DIRS_MAX {
                    let path = all.join(format!("{thread}-{number}")).display().to_string();
                    match runtime.block_on(async { runtime.io().open_dir(&path).await.err() }) {
                        None => opened.fetch_add(1, Ordering::SeqCst),
                        Some(DiskError::Failed(why)) if why.contains("this process is ending") => return,
                        Some(other) => panic!("{path}: {other:?}"),
                    };
                }
                panic!("{DIRS_MAX} directories were opened, and this process does not end");
            });
        }
        while opened.iter().any(|opened| opened.load(Ordering::SeqCst) < DIRS_MIN) {
            std::thread::yield_now();
        }
        open_no_more_dirs();
        std::fs::remove_dir_all(&all).expect("nothing is added any more");
    });
    assert!(!all.exists(), "a directory was made after the last opening");
}
