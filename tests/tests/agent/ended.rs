//! Descriptions whose last copy has gone.

use crate::calls::{AgentProcess, Program};
use crate::{opens, volume_with_agent};
use aze_calls::{Op, Request};
use aze_tests::{Place, wait_until};
use std::fs;
use std::time::Instant;

/// How often the agent's main thread has gone to sleep.
fn sleeps(agent: &AgentProcess) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.process.id())).expect("the agent's threads");
    let is_main = |task: &fs::DirEntry| {
        // The test's name, as far as it goes.
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("an_agent_of"))
    };
    let main = tasks.flatten().find(is_main).expect("the thread of the test");
    let status = fs::read_to_string(main.path().join("status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    line.trim().parse().expect("a number")
}

/// Closing many files wakes the agent's main thread once in a millisecond, and not for each; all are let go of all the same, and so
/// is the next one after a pause.
#[test]
fn many_closes_wake_the_agent_seldom() {
    const CLOSES: u64 = 4000;
    let (place, _, program, agent) = volume_with_agent();
    drop(program.open("/f", libc::O_CREAT | libc::O_RDWR));
    wait_until("no file is open", || opens(&place) == 0);
    let (before, begin) = (sleeps(&agent), Instant::now());
    (0..CLOSES).for_each(|_| drop(program.open("/f", libc::O_RDWR)));
    let (slept, elapsed) = (sleeps(&agent) - before, begin.elapsed());
    assert!(u128::from(slept) < elapsed.as_millis() + u128::from(CLOSES / 4), "{slept} times in {elapsed:?}");
    wait_until("no file is open", || opens(&place) == 0);
    for _ in 0..3 {
        let (_, held) = program.open("/f", libc::O_RDWR);
        assert_eq!(opens(&place), 1);
        drop(held);
        wait_until("no file is open", || opens(&place) == 0);
    }
}

/// What a program has closed before it asks for a lock is gone by then, however many files it closes.
#[test]
fn what_was_closed_is_gone_before_a_lock_is_asked_for() {
    const ROUNDS: usize = 500;
    let (_place, _, program, _agent) = volume_with_agent();
    let (locked, _held) = program.open("/locked", libc::O_CREAT | libc::O_RDWR);
    let is_gone = |round: usize| {
        let (desc, held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
        drop(held);
        let operation = if round.is_multiple_of(2) { libc::LOCK_EX } else { libc::LOCK_SH };
        assert_eq!(program.on(Op::Flock, locked, operation | libc::LOCK_NB), 0);
        program.on(Op::GetFlags, desc, 0) == -i64::from(libc::EBADF)
    };
    let gone = (0..ROUNDS).filter(|round| is_gone(*round)).count();
    // A process that another test forks has a copy of the descriptor for a moment.
    assert!(gone > ROUNDS * 9 / 10, "{gone} of {ROUNDS}");
}

/// An agent that may open no more files can open one as soon as a program has closed some.
#[test]
fn what_was_closed_takes_no_descriptors_of_the_agent() {
    const ROUNDS: usize = 30;
    let place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let agent = AgentProcess::start_with(&place, &volume, std::process::id(), Some(100));
    let program = Program::me(&agent.socket);
    let open = || {
        let request = Request { a: (libc::O_CREAT | libc::O_RDWR) as u64, b: 0o600, ..Request::default() };
        program.call(Op::Open, request, b"/f")
    };
    let can_open_again = |_: &usize| {
        let held: Vec<_> = std::iter::from_fn(|| open().passed).collect();
        drop(held);
        open().passed.is_some()
    };
    let could = (0..ROUNDS).filter(can_open_again).count();
    // As above: a copy takes a description for a moment.
    assert!(could > ROUNDS * 9 / 10, "{could} of {ROUNDS}");
}
