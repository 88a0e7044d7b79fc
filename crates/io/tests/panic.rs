//! A panic in a task or handler ends the process instead of leaving a worker dead or its state
//! half-changed. The program runs itself again to watch itself die.

mod support;

use std::process::Command;
use std::time::Duration;

use aze_io::real::Runtime;

const VICTIM: &str = "AZE_IO_TEST_VICTIM";

#[test]
fn a_panicking_task_aborts_the_process() {
    if std::env::var_os(VICTIM).is_some() {
        return die();
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let ended = again.args(["--nocapture", "--test-threads=1"]).env(VICTIM, "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), None, "killed by a signal, not an exit: {stderr}");
    assert!(stderr.contains("the disk is a lie"), "{stderr}");
    // Where the build aborts on any panic (the release profile) the runtime has no say.
    assert!(stderr.contains("aborting") || cfg!(panic = "abort") || !cfg!(debug_assertions), "{stderr}");
}

fn die() {
    let server = Runtime::server(2);
    server.io().spawn(async { panic!("the disk is a lie") });
    let client = Runtime::client();
    client.block_on(client.io().sleep(Duration::from_secs(20)));
}

#[test]
fn a_panic_in_block_on_passes_the_lead_on() {
    if std::env::var_os(VICTIM).is_some() {
        return;
    }
    let client = Runtime::client();
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| {
            client.block_on(async {
                client.io().sleep(Duration::from_millis(5)).await;
                panic!("only the caller's own future");
            })
        });
        client.block_on(client.io().sleep(Duration::from_millis(20)));
        assert!(leader.join().is_err());
    });
}
