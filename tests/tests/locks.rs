//! Locks of files hold between mounts: two mounts of one volume stand for two nodes, since nothing
//! but the volume joins their processes.

use aze_tests::{Place, python::python, watchdog};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// What the programs below begin with: `Q` makes a path on the other mount; `waits` returns when a child
/// that has written to the pipe waits for an answer of a mount.
const BOTH: &str = r#"
import signal, struct
Q = lambda *names: os.path.join(sys.argv[2], *names)
EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB
def getlk(descriptor, kind, start, length):
    asked = struct.pack('hhqqi4x', kind, os.SEEK_SET, start, length, 0)
    kind, _, start, length, pid = struct.unpack('hhqqi4x', fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return (kind, start, length, pid)
def waits(pid, pipe):
    assert os.read(pipe, 1) == b'.'
    def at():
        with open(f'/proc/{pid}/wchan') as file:
            return file.read()
    until(lambda: at() in ('request_wait_answer', '__fuse_simple_request'), f'{pid} waits for a lock')
class Signalled(Exception):
    pass
def raise_signalled(*_):
    raise Signalled
"#;

/// A volume and two mounts of it.
fn two_mounts(up: &[&str]) -> (Place, [PathBuf; 2]) {
    let mut place = Place::new();
    place.up(up);
    let mounts = [place.mount(), place.mount()];
    (place, mounts)
}

fn on_both(program: &str, mounts: &[PathBuf; 2]) -> String {
    python(&format!("{BOTH}{program}"), &[&mounts[0], &mounts[1]]).out
}

#[test]
fn locks_of_whole_files_exclude_each_other_between_mounts() {
    let (_place, mounts) = two_mounts(&[]);
    let program = r#"
make(P('f'), b'x')
mine, theirs = os.open(P('f'), os.O_RDWR), os.open(Q('f'), os.O_RDWR)
beside = os.open(P('f'), os.O_RDONLY)
fcntl.flock(mine, EX)
assert name(fcntl.flock, theirs, EX | NB) == 'EAGAIN'
assert name(fcntl.flock, theirs, SH | NB) == 'EAGAIN'
assert name(fcntl.flock, beside, SH | NB) == 'EAGAIN', 'another open of the same mount'
# The two kinds of locks know nothing of each other.
fcntl.lockf(theirs, EX | NB); fcntl.lockf(theirs, UN)
fcntl.flock(mine, SH)
fcntl.flock(theirs, SH | NB)
assert name(fcntl.flock, mine, EX | NB) == 'EAGAIN'
fcntl.flock(theirs, UN)
fcntl.flock(mine, EX | NB)
# The lock belongs to the open: it is there until the last descriptor of it is closed.
copy = os.dup(mine)
os.close(mine)
assert name(fcntl.flock, theirs, EX | NB) == 'EAGAIN'
os.close(copy)
until(lambda: name(fcntl.flock, theirs, EX | NB) == 'success', 'a close unlocks')
# What a close leaves to be done does not hit a lock that comes after it.
for turn in range(100):
    again = os.open(Q('g'), os.O_RDWR | os.O_CREAT)
    until(lambda: name(fcntl.flock, again, EX | NB) == 'success', 'the one before is closed')
    other = os.open(P('g'), os.O_RDWR)
    assert name(fcntl.flock, other, EX | NB) == 'EAGAIN', turn
    os.close(other)
    os.close(again)
"#;
    on_both(program, &mounts);
}

#[test]
fn locks_of_ranges_split_join_and_are_told_between_mounts() {
    let (_place, mounts) = two_mounts(&[]);
    let program = r#"
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
make(P('f'), b'x' * 100)
mine = os.open(P('f'), os.O_RDWR)
fcntl.lockf(mine, EX, 100, 0)
fcntl.lockf(mine, UN, 20, 40)
def other():
    theirs = os.open(Q('f'), os.O_RDWR)
    assert getlk(theirs, W, 0, 0) == (W, 0, 40, os.getppid())
    assert getlk(theirs, R, 50, 0) == (W, 60, 40, os.getppid())
    assert getlk(theirs, W, 40, 20)[0] == U
    assert name(fcntl.lockf, theirs, EX | NB, 1, 39) == 'EAGAIN'
    assert name(fcntl.lockf, theirs, SH | NB, 21, 40) == 'EAGAIN'
    fcntl.lockf(theirs, EX | NB, 20, 40)
    fcntl.lockf(theirs, EX | NB, 0, 100)
    os._exit(0)
wait(child(other))
# It is joined again, and a part of it becomes a shared one.
fcntl.lockf(mine, EX, 20, 40)
fcntl.lockf(mine, SH, 10, 0)
def joined():
    theirs = os.open(Q('f'), os.O_RDWR)
    assert getlk(theirs, R, 0, 0) == (W, 10, 90, os.getppid())
    fcntl.lockf(theirs, SH | NB, 10, 0)
    assert name(fcntl.lockf, theirs, EX | NB, 10, 0) == 'EAGAIN'
    os._exit(0)
wait(child(joined))
# All of them go when their process closes any descriptor of the file.
os.close(os.open(P('f'), os.O_RDONLY))
def free():
    theirs = os.open(Q('f'), os.O_RDWR)
    assert getlk(theirs, W, 0, 0)[0] == U
    fcntl.lockf(theirs, EX | NB)
    os._exit(0)
wait(child(free))
# They end with their process: this one could not lock if those of the children were left.
fcntl.lockf(mine, EX | NB)
fcntl.lockf(mine, UN)
# Those of an open belong to it, whatever its process closes.
def ofd(descriptor, kind):
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', kind, os.SEEK_SET, 0, 0, 0))
theirs = os.open(Q('f'), os.O_RDWR)
for turn in range(50):
    held = os.open(P('f'), os.O_RDWR)
    until(lambda: name(ofd, held, W) == 'success', 'the one before is closed')
    os.close(os.open(P('f'), os.O_RDONLY))
    assert name(ofd, theirs, W) == 'EAGAIN', turn
    os.close(held)
until(lambda: name(ofd, theirs, W) == 'success', 'the last close unlocks')
"#;
    on_both(program, &mounts);
}

#[test]
fn a_lock_is_had_when_it_is_free_and_shows_what_was_written_before() {
    let (_place, mounts) = two_mounts(&[]);
    let program = r#"
for lock in (fcntl.flock, fcntl.lockf):
    make(P('f'), b'a' * 5000)
    mine = os.open(P('f'), os.O_RDWR)
    lock(mine, EX)
    begun, begin = os.pipe()
    def other():
        theirs = os.open(Q('f'), os.O_RDWR)
        assert os.pread(theirs, 9000, 0) == b'a' * 5000
        os.write(begin, b'.')
        lock(theirs, EX)
        assert os.pread(theirs, 9000, 0) == b'b' * 7000
    waiting = child(other)
    waits(waiting, begun)
    os.pwrite(mine, b'b' * 7000, 0)
    lock(mine, UN)
    wait(waiting)
    lock(mine, EX)
    os.close(mine)
    os.unlink(P('f'))
"#;
    on_both(program, &mounts);
}

#[test]
fn many_waiting_programs_hold_up_nobody_and_can_be_interrupted() {
    let (_place, mounts) = two_mounts(&[]);
    let program = r#"
make(P('f'), b'x')
mine = os.open(P('f'), os.O_RDWR)
for lock in (fcntl.flock, fcntl.lockf):
    lock(mine, EX)
    def other(begin):
        signal.signal(signal.SIGUSR1, raise_signalled)
        theirs = os.open(Q('f'), os.O_RDWR)
        os.write(begin, b'.')
        try:
            lock(theirs, EX)
            raise AssertionError('it was locked')
        except Signalled:
            pass
        assert name(lock, theirs, EX | NB) == 'EAGAIN'
        os.write(begin, b'.')
        # A lock after an interruption is like any other.
        lock(theirs, EX)
        lock(theirs, UN)
    # More than a mount has threads.
    pipes = [os.pipe() for _ in range(80)]
    waiting = [child(lambda: other(begin)) for _, begin in pipes]
    for pid, (begun, _) in zip(waiting, pipes):
        waits(pid, begun)
    make(Q('g'), b'served')
    assert data(Q('g')) == b'served'
    for pid in waiting:
        os.kill(pid, signal.SIGUSR1)
    for pid, (begun, _) in zip(waiting, pipes):
        waits(pid, begun)
    # One that is killed leaves at once, though nobody unlocks.
    os.kill(waiting[0], signal.SIGKILL)
    assert os.waitpid(waiting[0], 0)[1] == signal.SIGKILL
    lock(mine, UN)
    wait(*waiting[1:])
    # Signals that come at any moment: around the beginning of a wait, too.
    lock(mine, EX)
    signal.signal(signal.SIGALRM, raise_signalled)
    theirs = os.open(Q('f'), os.O_RDWR)
    def alarms():
        theirs = os.open(Q('f'), os.O_RDWR)
        for turn in range(200):
            try:
                # And again: one that comes just before the system call does not interrupt it.
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + turn), 0.1)
                lock(theirs, EX)
                raise AssertionError('it was locked')
            except Signalled:
                signal.setitimer(signal.ITIMER_REAL, 0)
    wait(child(alarms))
    os.close(theirs)
    lock(mine, UN)
"#;
    on_both(program, &mounts);
}

#[test]
fn a_database_is_changed_from_two_mounts() {
    let (mut place, mounts) = two_mounts(&[]);
    place.allow(Duration::from_secs(90));
    let program = r#"
def count(path):
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    assert db.execute('pragma journal_mode').fetchone()[0] == 'delete'
    for row in range(25):
        db.execute('begin immediate')
        seen = db.execute('select v from counter').fetchone()[0]
        db.execute('update counter set v = ?', (seen + 1,))
        db.execute('insert into rows values (?, ?)', (seen, 'x' * 3000))
        db.execute('commit')
    db.close()
db = sqlite3.connect(P('db'), isolation_level=None)
db.execute('create table counter (v)'); db.execute('insert into counter values (0)')
db.execute('create table rows (v unique, t)')
db.close()
wait(*[child(lambda: count(path)) for path in (P('db'), Q('db'), P('db'), Q('db'))])
for path in (P('db'), Q('db')):
    db = sqlite3.connect(path)
    assert db.execute('select v from counter').fetchone()[0] == 100
    assert db.execute('select count(*) from rows').fetchone()[0] == 100
    assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
    db.close()
"#;
    on_both(program, &mounts);
}

#[test]
fn the_locks_of_a_mount_that_is_killed_are_free_in_time() {
    let (place, mounts) = two_mounts(&[]);
    let serving = place.serving(&mounts[0]);
    let program = format!(
        r#"
make(P('f'), b'x'); make(P('g'), b'x')
fcntl.flock(os.open(P('f'), os.O_RDWR), EX)
held = os.open(P('g'), os.O_RDWR)
fcntl.lockf(held, EX)
def other():
    theirs = os.open(Q('g'), os.O_RDWR)
    os.write(begin, b'.')
    fcntl.lockf(theirs, EX)
    fcntl.flock(os.open(Q('f'), os.O_RDWR), EX)
begun, begin = os.pipe()
waiting = child(other)
waits(waiting, begun)
os.kill({serving}, signal.SIGKILL)
started = time.monotonic()
wait(waiting)
took = time.monotonic() - started
assert 5 < took < 20, took
"#
    );
    on_both(&program, &mounts);
}

#[test]
fn whoever_waits_for_a_lock_is_told_that_its_server_is_gone() {
    let (place, mounts) = two_mounts(&["--servers", "1"]);
    let doors: BTreeSet<u32> = mounts.iter().map(|mount| place.serving(mount)).collect();
    let all = watchdog::of_volumes(&place.dir);
    let servers: Vec<u32> = all.difference(&doors).copied().collect();
    assert_eq!(servers.len(), 1, "one server: {all:?}");
    let program = format!(
        r#"
make(P('f'), b'x')
mine = os.open(P('f'), os.O_RDWR)
fcntl.flock(mine, EX)
def other():
    theirs = os.open(Q('f'), os.O_RDWR)
    os.write(begin, b'.')
    said = name(fcntl.flock, theirs, EX)
    assert said == 'EIO', said
begun, begin = os.pipe()
waiting = child(other)
waits(waiting, begun)
os.kill({}, signal.SIGKILL)
started = time.monotonic()
wait(waiting)
assert time.monotonic() - started < 30
"#,
        servers[0]
    );
    on_both(&program, &mounts);
}
