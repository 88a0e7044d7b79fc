//! What an agent shares with its programs so that they need not ask: positions, and contents that come with an open.

use super::calls::{AgentProcess, Program, Shared, take};
use super::volume_with_agent;
use aze_calls::indexes::WANT_DIRECTORY;
use aze_calls::shared::{counter_at, position_at, position_in, word_of};
use aze_calls::{Kept, Op, POSITION, Request, Stat, after_stat};
use aze_tests::Place;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

/// Opens a file; what came with it, and the bytes in the window.
fn opened(program: &mut Program, path: &str, flags: i32) -> (u64, OwnedFd, Option<(Kept, Vec<u8>)>) {
    let answer = program.call(Op::Open, Request { a: flags as u64, ..Request::default() }, path.as_bytes());
    assert_eq!(answer.result, 0, "open {path}");
    let kept = answer.bytes.get(size_of::<Stat>()..).filter(|rest| !rest.is_empty()).map(take::<Kept>);
    let kept = kept.map(|kept| (kept, program.window()[..kept.len as usize].to_vec()));
    (answer.desc, answer.passed.expect("a descriptor"), kept)
}

/// A file `f` that three programs use.
struct Changed {
    _place: Place,
    _agents: [AgentProcess; 2],
    /// Has the file open as `desc`, and has written `first` to it.
    program: Program,
    desc: u64,
    _held: OwnedFd,
    /// Of the same agent.
    second: Program,
    /// Of another one.
    other: Program,
}

impl Changed {
    fn new() -> Changed {
        let (place, volume, mut program, agent) = volume_with_agent();
        let second = Program::start(&agent.socket);
        let elsewhere = AgentProcess::start(&place, &volume, std::process::id());
        let other = Program::start(&elsewhere.socket);
        let (desc, held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
        assert_eq!(program.write(desc, b"first"), 5);
        Changed { _place: place, _agents: [agent, elsewhere], program, desc, _held: held, second, other }
    }
}

/// Whether contents may still be shown.
fn may_be_shown(shared: &Shared, kept: Kept) -> bool {
    shared.word(counter_at(kept.counter)).load(SeqCst) == kept.seen
}

/// A position is in the shared memory while no call moves it, and a program that moves it there has moved it for all.
#[test]
fn a_position_is_shared() {
    let (_place, _, mut program, _agent) = volume_with_agent();
    let (desc, _held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
    let (dir, _held_too) = program.open("/", libc::O_DIRECTORY);
    let (path, _held_three) = program.open("/f", libc::O_PATH);
    assert_eq!((position_at(dir), position_at(path)), (None, None));
    let shared = program.shared();
    let word = shared.word(position_at(desc));
    assert_eq!(position_in(word.load(SeqCst), desc), Some(0));
    assert_eq!(program.write(desc, b"0123456789"), 10);
    assert_eq!(position_in(word.load(SeqCst), desc), Some(10));
    word.store(word_of(desc, 4), SeqCst);
    assert_eq!(program.read_at(desc, POSITION), b"456789");
    word.store(word_of(desc, 2), SeqCst);
    let seek = |by: i64, whence: i32| Request { desc, offset: by as u64, a: whence as u64, ..Request::default() };
    assert_eq!(program.call(Op::Seek, seek(3, libc::SEEK_CUR), &[]).result, 5);
    // One that fits into no word is asked for.
    assert_eq!(program.call(Op::Seek, seek(i64::MAX, libc::SEEK_SET), &[]).result, i64::MAX);
    assert_eq!(position_in(word.load(SeqCst), desc), None);
    assert_eq!(program.call(Op::Seek, seek(-7, libc::SEEK_CUR), &[]).result, i64::MAX - 7);
    // Nonsense moves it, and nothing else.
    for nonsense in [0, u64::MAX, word_of(desc + 1, 3)] {
        word.store(nonsense, SeqCst);
        assert_eq!(program.call(Op::Seek, seek(1, libc::SEEK_SET), &[]).result, 1);
    }
}

/// Contents come with an open for reading, and a counter says when they may not be shown any more.
#[test]
fn contents_come_with_an_open_until_something_changes() {
    let Changed { _place, _agents, _held, mut program, desc, mut second, mut other } = Changed::new();
    let shared = second.shared();
    for flags in [libc::O_RDWR, libc::O_WRONLY, libc::O_RDONLY | libc::O_DIRECT] {
        assert_eq!(opened(&mut second, "/f", flags).2, None, "{flags:#o}");
    }
    let fresh = |second: &mut Program, text: &[u8]| {
        let (desc, held, kept) = opened(second, "/f", libc::O_RDONLY);
        let (kept, bytes) = kept.expect("contents");
        assert_eq!((bytes.as_slice(), may_be_shown(&shared, kept)), (text, true));
        (kept, desc, held)
    };
    // By a call of another process of this agent.
    let (kept, ..) = fresh(&mut second, b"first");
    assert_eq!(program.write(desc, b"next"), 4);
    assert!(!may_be_shown(&shared, kept));
    let (kept, ..) = fresh(&mut second, b"firstnext");
    let cut = Request { desc, len: 2, ..Request::default() };
    assert_eq!(program.call(Op::TruncateOpen, cut, &[]).result, 0);
    assert!(!may_be_shown(&shared, kept));
    // By another client, as soon as this one has heard of it.
    let (kept, of_second, _held_too) = fresh(&mut second, b"fi");
    let (of_other, _held_three) = other.open("/f", libc::O_WRONLY);
    assert_eq!(other.write(of_other, b"other"), 5);
    let heard = second.call(Op::StatOpen, Request { desc: of_second, ..Request::default() }, &[]);
    assert_eq!(take::<Stat>(&heard.bytes).size, 5);
    assert!(!may_be_shown(&shared, kept));
    // A program sees bytes that came behind contents it had read to their end.
    let (_, of_second, _held_five) = fresh(&mut second, b"other");
    assert_eq!(other.write(of_other, b"more"), 4);
    assert_eq!(second.read_at(of_second, 5), b"more");
    // The agent reads in the index that an open file has changed, before it asks: the next open brings the contents of then.
    fresh(&mut second, b"othermore");
    // By a lock, whose holder before may have written.
    let (kept, of_second, _held_four) = fresh(&mut second, b"othermore");
    assert_eq!(second.lock(of_second, libc::F_SETLK, libc::F_RDLCK, 0, 0).result, 0);
    assert!(!may_be_shown(&shared, kept));
    // By a mapping, into which programs store without a call; none come while there is one.
    let (kept, ..) = fresh(&mut second, b"othermore");
    let mapped = program.call(Op::Map, Request { desc, ..Request::default() }, &[]);
    assert_eq!((mapped.result, mapped.passed.is_some()), (0, true));
    assert!(!may_be_shown(&shared, kept));
    assert_eq!(opened(&mut second, "/f", libc::O_RDONLY).2, None);
}

/// Those of an open for reading and writing come where a published index shows whether they are still current, with the directory, so that
/// programs can look there before they open the next file.
#[test]
fn contents_of_a_file_that_is_opened_for_reading_and_writing_are_shown_while_nobody_has_changed_it() {
    let Changed { _place, _agents, _held, program, desc, mut second, mut other } = Changed::new();
    let both = Request { a: libc::O_RDWR as u64, len: WANT_DIRECTORY, ..Request::default() };
    // The client looks the name up until its server has let it do so by itself.
    for _ in 0..3 {
        assert_eq!(second.call(Op::Open, both, b"/f").result, 0);
    }
    let (of_second, _held_too, kept) = opened(&mut second, "/f", libc::O_RDWR);
    assert_eq!(kept.expect("contents").1, b"first");
    let (of_other, _held_three) = other.open("/f", libc::O_WRONLY);
    assert_eq!(other.write(of_other, b"other"), 5);
    assert_eq!(second.read_at(of_second, 0), b"other");
    let answer = second.call(Op::Open, both, b"/f");
    assert_eq!((answer.result, after_stat(answer.bytes.len())), (0, (true, true)));
    for (flags, expected) in [(libc::O_RDWR | libc::O_TRUNC, false), (libc::O_WRONLY, false)] {
        let answer = second.call(Op::Open, Request { a: flags as u64, ..both }, b"/f");
        assert_eq!((answer.result, after_stat(answer.bytes.len()).0), (0, expected), "{flags:#o}");
    }
    // One that is longer than an answer is worth brings none.
    assert_eq!(program.call(Op::TruncateOpen, Request { desc, len: 4097, ..Request::default() }, &[]).result, 0);
    assert_eq!(opened(&mut second, "/f", libc::O_RDWR).2, None);
}
