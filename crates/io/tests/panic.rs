//! A panic in a task or handler ends the process instead of leaving a worker dead or its state
//! half-changed. The program runs itself again to watch itself die.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
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

/// What a block_on has come to: its panic is caught, as a library's entries do it.
fn survives(runtime: &Runtime, future: impl Future<Output = ()>) -> bool {
    catch_unwind(AssertUnwindSafe(|| runtime.block_on(future))).is_ok()
}

#[test]
fn in_a_program_of_others_a_panic_ends_the_runtime_alone() {
    if std::env::var_os(VICTIM).is_some() || cfg!(panic = "abort") {
        return;
    }
    let runtime = Runtime::library();
    let told = Arc::new(AtomicU32::new(0));
    let count = |told: &Arc<AtomicU32>| {
        let told = told.clone();
        move || {
            told.fetch_add(1, SeqCst);
        }
    };
    runtime.when_broken(count(&told));
    let io = runtime.io();
    assert!(survives(&runtime, io.sleep(Duration::from_millis(1))) && !runtime.is_broken());
    // Others that wait at that moment end, too.
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        let wait = || {
            barrier.wait();
            survives(&runtime, io.sleep(Duration::from_secs(60)))
        };
        let waiting: Vec<_> = (0..3).map(|_| scope.spawn(wait)).collect();
        barrier.wait();
        io.spawn(async { panic!("the disk is a lie") });
        assert!(waiting.into_iter().all(|thread| !thread.join().unwrap()));
    });
    assert!(runtime.is_broken() && !survives(&runtime, async {}));
    runtime.when_broken(count(&told));
    assert_eq!(told.load(SeqCst), 2, "each is told once");
    runtime.shutdown();
}

#[test]
fn in_a_program_of_others_a_panic_of_the_background_thread_is_noticed() {
    if std::env::var_os(VICTIM).is_some() || cfg!(panic = "abort") {
        return;
    }
    let runtime = Runtime::library();
    runtime.background().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    runtime.when_broken(move || tell.send(std::thread::current().name().map(str::to_owned)).unwrap());
    runtime.io().spawn(async { panic!("the disk is a lie") });
    let thread = told.recv_timeout(Duration::from_secs(20)).expect("the background thread runs the task");
    assert_eq!(thread.as_deref(), Some("aze-background"));
    assert!(!survives(&runtime, async {}));
    runtime.shutdown();
}

/// What waits in one runtime may wait for what another one of the same connection does.
#[test]
fn in_a_program_of_others_a_panic_ends_all_runtimes_of_a_connection() {
    if std::env::var_os(VICTIM).is_some() || cfg!(panic = "abort") {
        return;
    }
    let first = Runtime::library();
    let others = [first.one_more().unwrap(), first.one_more().unwrap()];
    let barrier = Barrier::new(4);
    let wait = |runtime: &Arc<Runtime>| {
        barrier.wait();
        survives(runtime, runtime.io().sleep(Duration::from_secs(60)))
    };
    let wait = &wait;
    std::thread::scope(|scope| {
        let waiting = [&first, &others[0], &others[1]].map(|runtime| scope.spawn(move || wait(runtime)));
        barrier.wait();
        others[0].io().spawn(async { panic!("the disk is a lie") });
        assert!(waiting.into_iter().all(|thread| !thread.join().unwrap()));
    });
    assert!(first.is_broken() && others.iter().all(|other| other.is_broken()));
    others.iter().for_each(|other| other.shutdown());
    first.shutdown();
}
