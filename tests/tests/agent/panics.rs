//! Panics that are planted in an agent: one call fails, or the agent ends, and no answer is wrong.

use super::calls::{AgentProcess, Answer, Program, take};
use super::{opens, volume_with_agent};
use aze_agent::Planted;
use aze_calls::{Op, Request, Stat};
use aze_tests::wait_until;

/// What a call answers that has met a panic.
const EIO: i64 = -(libc::EIO as i64);

/// Where [`plant`] has a task of the connection panic: behind the places of the client.
const IN_A_TASK: u64 = Planted::ALL.len() as u64 + 1;

/// Has a panic wait at a place of the client, or in a task.
fn plant(program: &Program, place: u64) {
    let request = Request { a: aze_calls::PLANTED, b: place, ..Request::default() };
    assert_eq!(program.call(Op::Identify, request, &[]).result, -i64::from(libc::ENOENT));
}

/// A panic in a call that holds nothing ends this call with EIO, and the agent lives; one that holds what other calls wait for
/// ends the agent, so that none waits for ever.
#[test]
fn a_panic_ends_one_call() {
    let (place, _, mut program, agent) = volume_with_agent();
    let (desc, held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
    assert_eq!(program.write(desc, b"there"), 5);
    for _ in 0..3 {
        let panicking = Program::me(&agent.socket);
        let request = Request { a: aze_calls::PLANTED, ..Request::default() };
        assert_eq!(panicking.call(Op::Identify, request, &[]).result, EIO);
        assert_eq!(program.read_at(desc, 0), b"there", "the agent lives");
    }
    assert_eq!(agent.log().matches("planted").count(), 3, "{}", agent.log());
    let request = Request { desc, a: aze_calls::PLANTED, ..Request::default() };
    assert!(program.is_lost_after(Op::Seek, request), "no answer comes");
    drop(held);
    agent.has_aborted();
    wait_until("no file is open", || opens(&place) == 0);
}

/// What a program finds at a path.
fn found(program: &Program, path: &str) -> (i64, Option<[u64; 4]>) {
    let Answer { result, bytes, .. } = program.call(Op::Stat, Request { a: 1, ..Request::default() }, path.as_bytes());
    let stat = (result == 0).then(|| take::<Stat>(&bytes));
    (result, stat.map(|stat| [stat.ino, stat.size, u64::from(stat.mode), u64::from(stat.nlink)]))
}

/// A change that is made while a panic waits for it: its name, and the call.
type Change = (&'static str, fn(&mut Program, u64) -> i64);

fn changes() -> Vec<Change> {
    fn two(program: &Program, op: Op, from: &str, to: &str) -> i64 {
        let request = Request { first: from.len() as u32, ..Request::default() };
        program.call(op, request, format!("{from}{to}").as_bytes()).result
    }
    fn mode(program: &Program, path: &str, mode: u64) -> i64 {
        program.call(Op::Chmod, Request { b: mode, ..Request::default() }, path.as_bytes()).result
    }
    vec![
        ("mkdir", |program, _| program.call(Op::Mkdir, Request { a: 0o755, ..Request::default() }, b"/new").result),
        ("create", |program, _| {
            let flags = (libc::O_CREAT | libc::O_WRONLY) as u64;
            program.call(Op::Open, Request { a: flags, b: 0o644, ..Request::default() }, b"/made").result
        }),
        ("rename of a directory", |program, _| two(program, Op::Rename, "/dir", "/moved")),
        ("rename of a file", |program, _| two(program, Op::Rename, "/a", "/b")),
        ("link", |program, _| two(program, Op::Link, "/open", "/linked")),
        ("symlink", |program, _| two(program, Op::Symlink, "target", "/symlink")),
        ("unlink", |program, _| program.at(Op::Unlink, "/gone", 0)),
        ("rmdir", |program, _| program.at(Op::Rmdir, "/empty", 0)),
        ("chmod", |program, _| mode(program, "/open", 0o600)),
        ("chmod of a directory", |program, _| mode(program, "/", 0o711)),
        ("truncate", |program, _| {
            program.call(Op::Truncate, Request { len: 3, ..Request::default() }, b"/open").result
        }),
        ("write", |program, desc| {
            program.window()[..9].copy_from_slice(b"different");
            program.call(Op::Write, Request { desc, offset: 1, len: 9, ..Request::default() }, &[]).result
        }),
        ("write with the position", |program, desc| program.write(desc, b"more")),
    ]
}

const PATHS: [&str; 16] = [
    "/",
    "/new",
    "/made",
    "/dir",
    "/dir/in",
    "/moved",
    "/moved/in",
    "/a",
    "/b",
    "/open",
    "/linked",
    "/symlink",
    "/gone",
    "/empty",
    "/dir/gone",
    "/nothing",
];

/// A panic of the client before a request of a call is sent, or after it was answered, fails that call with EIO,
/// whichever call it was. The agent's programs go on, and what they find afterwards is what a program of another agent
/// finds.
#[test]
fn a_panic_of_the_client_fails_one_call_and_no_later_answer_is_wrong() {
    let (place, volume, mut program, agent) = volume_with_agent();
    let watching = AgentProcess::start(&place, &volume, std::process::id());
    let mut other = Program::start(&watching.socket);
    for path in ["/dir", "/empty"] {
        assert_eq!(program.at(Op::Mkdir, path, 0o755), 0, "{path}");
    }
    for path in ["/dir/in", "/a", "/gone"] {
        drop(program.open(path, libc::O_CREAT | libc::O_WRONLY));
    }
    let (desc, held) = program.open("/open", libc::O_CREAT | libc::O_RDWR);
    assert_eq!(program.write(desc, b"what was there before"), 21);
    let (seen_by_other, held_too) = other.open("/open", libc::O_RDONLY);
    let mut panics = 0;
    for (name, change) in changes() {
        for planted in [Planted::Asking, Planted::Answered] {
            // Everything is known to this agent's client before.
            for path in PATHS {
                found(&program, path);
            }
            assert_eq!(program.read_at(desc, 0), other.read_at(seen_by_other, 0), "before {name}");
            // A change whose answer was lost is not made again.
            plant(&program, planted as u64);
            assert_eq!(change(&mut program, desc), EIO, "{name}, {planted:?}");
            panics += 1;
            for path in PATHS {
                assert_eq!(found(&program, path), found(&other, path), "{path} after {name}, {planted:?}");
            }
            assert_eq!(program.read_at(desc, 0), other.read_at(seen_by_other, 0), "after {name}, {planted:?}");
        }
    }
    assert_eq!((panics, agent.log().matches("planted: ").count()), (26, 26), "{}", agent.log());
    // Each change was made once, by the call whose answer was lost, and none by the call that was not sent.
    let there = ["/new", "/made", "/moved", "/moved/in", "/b", "/linked", "/symlink"];
    assert!(there.iter().all(|path| found(&other, path).0 == 0));
    let is_missing = |path: &&str| found(&other, path).0 == -i64::from(libc::ENOENT);
    assert!(["/dir", "/a", "/gone", "/empty"].iter().all(is_missing));
    // The position did not move with a write that has failed.
    assert_eq!(
        program.call(Op::Seek, Request { desc, a: libc::SEEK_CUR as u64, ..Request::default() }, &[]).result,
        21
    );
    drop((held, held_too));
    // The open of the create whose answer was lost is known to the servers alone: it goes with the session.
    wait_until("one file is open", || opens(&place) == 1);
    drop(program);
    agent.has_ended();
    wait_until("no file is open", || opens(&place) == 0);
}

/// Where others rely on what a panic breaks off, it ends the agent: with a lock held, in the sending of a request, in a task, in a
/// listing, and in a call that locks a file, whose lock would stay.
#[test]
fn a_panic_that_others_would_suffer_from_ends_the_agent() {
    let lock = |program: &Program, [file, _]: [u64; 2]| {
        let (request, bytes) = Program::lock_request(file, libc::F_SETLK, libc::F_WRLCK, 0, 0);
        program.ask(Op::Lock, request, &bytes);
    };
    let stat = |program: &Program, [file, _]: [u64; 2]| {
        assert_eq!(program.on(Op::StatOpen, file, 0), EIO, "the panic itself fails one call");
        program.ask(Op::StatOpen, Request { desc: file, ..Request::default() }, &[]);
    };
    let mkdir = |program: &Program, _: [u64; 2]| {
        program.ask(Op::Mkdir, Request { a: 0o755, ..Request::default() }, b"/new");
    };
    let list = |program: &Program, [_, dir]: [u64; 2]| {
        program.ask(Op::ReadDir, Request { desc: dir, len: 4096, ..Request::default() }, &[]);
    };
    type Then<'a> = &'a dyn Fn(&Program, [u64; 2]);
    let cases: [(&str, u64, Then<'_>); 5] = [
        ("a lock", Planted::Noting as u64, &stat),
        ("a request", Planted::Sending as u64, &mkdir),
        ("a task", IN_A_TASK, &mkdir),
        ("a call that locks", Planted::Answered as u64, &lock),
        ("a listing", Planted::Answered as u64, &list),
    ];
    for (name, planted, then) in cases {
        let (_place, _, program, agent) = volume_with_agent();
        let (file, _held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
        let (dir, _held_too) = program.open("/", libc::O_DIRECTORY);
        plant(&program, planted);
        then(&program, [file, dir]);
        assert!(program.has_lost_its_agent(), "{name}: no answer comes: {}", agent.log());
        agent.has_aborted();
    }
}
