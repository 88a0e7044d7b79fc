//! Names under hard use: every pair of operations of two mounts on one name, a directory of very many
//! entries that is read while it changes, and names of every kind.

use aze_tests::python::python;
use aze_tests::{Place, long, set_mode, wait_until};
use std::path::{Path, PathBuf};

fn mounted(count: usize) -> (Place, Vec<PathBuf>) {
    let mut place = Place::new();
    place.up(&["--servers", "3"]);
    let mounts: Vec<PathBuf> = (0..count).map(|_| place.mount()).collect();
    set_mode(&mounts[0], 0o777);
    // Many names take their time where many tests run side by side.
    place.allow(std::time::Duration::from_secs(if long() { 3600 } else { 400 }));
    (place, mounts)
}

fn all(mounts: &[PathBuf], local: &Path) -> Vec<PathBuf> {
    mounts.iter().cloned().chain([local.to_path_buf()]).collect()
}

/// Two operations one after the other, on two mounts, do what they do on a local file system; two at
/// the same time do what they do in one of the two orders. The directory is made through a third mount
/// and looked at through a fourth; neither has seen it before.
#[test]
fn two_operations_of_two_mounts_on_one_name() {
    let (place, mounts) = mounted(4);
    let local = place.path("local");
    std::fs::create_dir(&local).expect("a directory");
    let program = r#"
import itertools, random, threading
*mounts, local, rounds = sys.argv[1:]
one, two, maker, looker = mounts
random.seed(1)
def opened(flags):
    def call(d):
        os.close(os.open(f'{d}/n', flags, 0o644))
    return call
operations = {
    'create': opened(os.O_CREAT | os.O_WRONLY),
    'create new': opened(os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    'open': opened(os.O_RDONLY),
    'truncate': lambda d: os.truncate(f'{d}/n', 2),
    'chmod': lambda d: os.chmod(f'{d}/n', 0o700),
    'mkdir': lambda d: os.mkdir(f'{d}/n', 0o755),
    'rmdir': lambda d: os.rmdir(f'{d}/n'),
    'unlink': lambda d: os.unlink(f'{d}/n'),
    'symlink': lambda d: os.symlink('m', f'{d}/n'),
    'link away': lambda d: os.link(f'{d}/n', f'{d}/p', follow_symlinks=False),
    'link here': lambda d: os.link(f'{d}/m', f'{d}/n'),
    'move away': lambda d: os.rename(f'{d}/n', f'{d}/o'),
    'move here': lambda d: os.rename(f'{d}/m', f'{d}/n'),
    'move directory here': lambda d: os.rename(f'{d}/e', f'{d}/n'),
    'make inside': lambda d: os.mkdir(f'{d}/n/i', 0o755),
}
states = {
    'nothing': lambda d: None,
    'file': lambda d: make(f'{d}/n', b'contents'),
    'directory': lambda d: os.mkdir(f'{d}/n', 0o755),
    'full directory': lambda d: os.makedirs(f'{d}/n/f'),
}
def prepare(d, state):
    os.mkdir(d); make(f'{d}/m', b'other'); os.mkdir(f'{d}/e', 0o755); states[state](d)
def look(d):
    found = []
    for here, dirs, files in os.walk(d):
        for entry in dirs + files:
            path = os.path.join(here, entry); at = os.lstat(path)
            what = data(path) if stat.S_ISREG(at.st_mode) else os.readlink(path) if stat.S_ISLNK(at.st_mode) else b''
            found.append((os.path.relpath(path, d), oct(at.st_mode), at.st_nlink, what))
    return sorted(found)
def after(number, state, first, second):
    d = f'{local}/{number}{first}{second}'
    prepare(d, state)
    results = tuple(name(operations[operation], d) if operation else None for operation in (first, second))
    return results, look(d)
trials = list(itertools.product(states, operations, operations)) * int(rounds)
random.shuffle(trials)
for number, (state, first, second) in enumerate(trials):
    told = (number, state, first, second)
    in_turn = after(f'{number}t', state, first, second)
    d = f'{number}'
    prepare(f'{maker}/{d}', state)
    results = name(operations[first], f'{one}/{d}'), name(operations[second], f'{two}/{d}')
    seen = look(f'{looker}/{d}')
    assert (results, seen) == in_turn, ('one after the other', told, results, seen, in_turn)
    swapped, tree = after(f'{number}s', state, second, first)
    allowed = [in_turn, ((swapped[1], swapped[0]), tree)]
    d = f'{number}c'
    prepare(f'{maker}/{d}', state)
    results, barrier = [None, None], threading.Barrier(2)
    def run(index, operation, mount):
        barrier.wait()
        results[index] = name(operations[operation], f'{mount}/{d}')
    threads = [threading.Thread(target=run, args=work) for work in [(0, first, one), (1, second, two)]]
    [thread.start() for thread in threads]; [thread.join() for thread in threads]
    seen = (tuple(results), look(f'{looker}/{d}'))
    if seen in allowed:
        continue
    # A kernel looks up what leads to two places one after the other, and what it found first may be gone
    # or its new name taken when it comes to the second: then it does nothing, and says so, unless it finds
    # one file under both names of a rename. Nothing else may ever be seen.
    fails = [operation.startswith(('link', 'move', 'make')) for operation in (first, second)]
    alone = [after(f'{number}a', state, first, None), after(f'{number}b', state, None, second)]
    for index, result in enumerate(seen[0]):
        known = [orders[0][index] for orders in allowed + alone]
        assert result in known or fails[index] and result in ('ENOENT', 'EEXIST'), ('at the same time', told, seen, allowed)
    trees = [tree for _, tree in allowed] + [tree for index, (_, tree) in enumerate(alone) if fails[1 - index]]
    assert seen[1] in trees and any(fails), ('at the same time', told, seen, allowed)
"#;
    let rounds = PathBuf::from(if long() { "10" } else { "1" });
    let arguments = [all(&mounts, &local), vec![rounds]].concat();
    python(program, &arguments.iter().map(PathBuf::as_path).collect::<Vec<_>>());
}

/// A file takes the place of another one through one mount, while a program of another mount comes to the name: it gets one
/// of the two. The kernel looks again once, and finds a file that has just lost its own name.
#[test]
fn a_name_that_gets_another_file_leads_to_one_of_them() {
    let (_place, mounts) = mounted(3);
    let program = r#"
import threading
one, two, maker = sys.argv[1:]
operations = {
    'open': lambda d: os.close(os.open(f'{d}/n', os.O_RDONLY)),
    'link': lambda d: os.link(f'{d}/n', f'{d}/p'),
}
for operation, call in operations.items():
    for number in range(400):
        d = f'{operation}{number}'
        os.mkdir(f'{maker}/{d}')
        for n in 'nm':
            make(f'{maker}/{d}/{n}', b'')
        results, barrier = [None, None], threading.Barrier(2)
        def run(index, call):
            barrier.wait()
            results[index] = name(call)
        work = [(0, lambda: call(f'{one}/{d}')), (1, lambda: os.rename(f'{two}/{d}/m', f'{two}/{d}/n'))]
        threads = [threading.Thread(target=run, args=args) for args in work]
        [thread.start() for thread in threads]; [thread.join() for thread in threads]
        # The kernel refuses to link what has lost its last name since it looked (linkat(2)).
        known = ('success', 'ENOENT') if operation == 'link' else ('success',)
        assert results[0] in known and results[1] == 'success', (d, results)
"#;
    python(program, &mounts.iter().map(PathBuf::as_path).collect::<Vec<_>>());
}

/// Two names change places as on a local file system, and as another mount sees it at once.
#[test]
fn two_names_change_places() {
    let (place, mounts) = mounted(2);
    let local = place.path("local");
    std::fs::create_dir(&local).expect("a directory");
    let program = r#"
import ctypes, itertools
one, two, local = sys.argv[1:]
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
kinds = {
    'nothing': lambda path: None,
    'file': lambda path: make(path, path[-3:].encode()),
    'directory': lambda path: os.mkdir(path, 0o750),
    'full directory': lambda path: os.makedirs(path + '/in/side'),
    'link': lambda path: os.symlink('nowhere', path),
}
def look(d):
    found = []
    for here, dirs, files in os.walk(d):
        for entry in dirs + files:
            path = os.path.join(here, entry); at = os.lstat(path)
            what = data(path) if stat.S_ISREG(at.st_mode) else b''
            found.append((os.path.relpath(path, d), oct(at.st_mode), at.st_nlink, what))
    return sorted(found)
def tried(d, first, second, flags):
    os.makedirs(d + '/p'); os.mkdir(d + '/q'); kinds[first](d + '/p/n'); kinds[second](d + '/q/m')
    before = [os.stat(d + here).st_mtime_ns for here in ('/p', '/q')]
    if d.startswith(one):
        look(two + d[len(one):])
    time.sleep(0.02) # local file systems count time in ticks
    answers = [name(renameat2, d + '/p/n', d + '/q/m', flags), name(renameat2, d + '/p/n', d + '/p', flags),
               name(renameat2, d, d + '/q/m', flags), name(renameat2, d + '/p/n', d + '/p/n', flags)]
    after = [os.stat(d + here).st_mtime_ns for here in ('/p', '/q')]
    return answers, [a > b for a, b in zip(after, before)]
for number, (first, second) in enumerate(itertools.product(kinds, kinds)):
    told = (first, second)
    answers = tried(f'{one}/{number}', first, second, EXCHANGE)
    expected = tried(f'{local}/{number}', first, second, EXCHANGE)
    assert answers == expected, (told, answers, expected)
    assert look(f'{one}/{number}') == look(f'{local}/{number}'), told
    # The other kernel had looked, and may believe for a second what it saw.
    deadline = time.monotonic() + 5
    while look(f'{two}/{number}') != look(f'{local}/{number}'):
        assert time.monotonic() < deadline, (told, look(f'{two}/{number}'))
for flags in (EXCHANGE | NOREPLACE, WHITEOUT, 8):
    make(f'{one}/f'); make(f'{one}/g')
    assert name(renameat2, f'{one}/f', f'{one}/g', flags) == 'EINVAL', flags
os.mkdir(f'{one}/sticky'); os.chmod(f'{one}/sticky', 0o1777); make(f'{one}/sticky/root'); os.chmod(one, 0o777)
def visitor():
    make(f'{one}/mine')
    for pair in [('mine', 'sticky/root'), ('sticky/root', 'mine')]:
        assert name(renameat2, *(f'{one}/{entry}' for entry in pair), EXCHANGE) == 'EPERM', pair
user(visitor)
# Neither name is ever missing while they change places.
make(f'{one}/x', b'one'); os.mkdir(f'{one}/y'); make(f'{one}/y/in', b'two')
def turns():
    for _ in range(301):
        renameat2(f'{one}/x', f'{one}/y', EXCHANGE)
turning = child(turns)
while os.waitpid(turning, os.WNOHANG)[0] == 0:
    for entry in 'xy':
        assert stat.S_IFMT(os.lstat(f'{two}/{entry}').st_mode) in (stat.S_IFREG, stat.S_IFDIR)
assert data(f'{one}/y') == b'one' and data(f'{one}/x/in') == b'two'
"#;
    python(program, &[&mounts[0], &mounts[1], &local]);
    place.aze(&["mv", "--exchange", "-T", "aze:/x", "aze:/y"]).ok();
    // The kernel may use its cached entry for a second.
    wait_until("the file is back", || std::fs::read(mounts[0].join("x")).is_ok_and(|data| data == b"one"));
    let into = place.aze(&["mv", "--exchange", "aze:/x", "aze:/y"]);
    assert!(into.code != 0 && into.err.contains("/y/x"), "{}", into.err);
}

/// A name whose directory was replaced between the question for the name and the one for the directory
/// was ESTALE.
#[test]
fn a_directory_replaced_while_it_is_looked_up() {
    let (_place, mounts) = mounted(3);
    let program = r#"
import threading
one, two, maker = sys.argv[1:]
for number in range(600):
    here = [f'{mount}/{number}' for mount in (maker, one, two)]
    os.mkdir(here[0]); os.mkdir(here[0] + '/n'); os.mkdir(here[0] + '/e')
    results, barrier = [None, None], threading.Barrier(2)
    def run(index, call, *paths):
        barrier.wait()
        results[index] = name(call, *paths)
    work = [(0, os.mkdir, here[1] + '/n'), (1, os.rename, here[2] + '/e', here[2] + '/n')]
    threads = [threading.Thread(target=run, args=arguments) for arguments in work]
    [thread.start() for thread in threads]; [thread.join() for thread in threads]
    assert results == ['EEXIST', 'success'], (number, results)
"#;
    python(program, &mounts.iter().map(PathBuf::as_path).collect::<Vec<_>>());
}

/// Entries that are there all the time are each listed once while others are made and removed; a
/// position in a directory does not change.
#[test]
fn a_directory_of_very_many_entries_is_listed_while_it_changes() {
    let (_place, mounts) = mounted(2);
    let program = r#"
import ctypes, struct
one, two, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir(f'{one}/d')
def fill(part):
    for number in range(part, count, 2):
        os.mknod(f'{(one, two)[part]}/d/stays{number:06}')
wait(*[child(lambda part=part: fill(part)) for part in (0, 1)])
stays = {f'stays{number:06}' for number in range(count)}
def entries(descriptor, size=32768):
    buffer = ctypes.create_string_buffer(size)
    length = libc.syscall(217, descriptor, buffer, size)
    assert length >= 0, ctypes.get_errno()
    at, found = 0, []
    while at < length:
        ino, cookie, step = struct.unpack_from('QqH', buffer, at)
        found.append((buffer.raw[at + 19:at + step].split(b'\0')[0].decode(), cookie))
        at += step
    return found
def whole(descriptor):
    found = []
    while part := entries(descriptor):
        found += part
    return found
def change():
    for number in range(count // 50):
        os.mknod(f'{two}/d/goes{number}'); os.unlink(f'{two}/d/goes{number}')
        os.mknod(f'{two}/d/comes{number}')
changer = child(change)
descriptor = os.open(f'{one}/d', os.O_RDONLY | os.O_DIRECTORY)
first = whole(descriptor)
wait(changer)
seen = [entry for entry, _ in first if entry in stays]
assert len(seen) == count and set(seen) == stays, (len(seen), len(set(seen)))
assert len({cookie for _, cookie in first}) == len(first), 'cookies are distinct'
# Back to positions in the middle, through another descriptor, after half of what came before is gone.
for number in range(0, count, 2):
    os.unlink(f'{one}/d/stays{number:06}')
left = {f'stays{number:06}' for number in range(1, count, 2)}
other = os.open(f'{one}/d', os.O_RDONLY | os.O_DIRECTORY)
for at in range(count // 7, count, count // 7):
    os.lseek(other, first[at][1], os.SEEK_SET)
    expected = [entry for entry, _ in first[at + 1:] if entry in left]
    assert [entry for entry, _ in whole(other) if entry in left] == expected, at
os.lseek(other, 0, os.SEEK_SET)
assert {entry for entry, _ in whole(other) if entry.startswith('stays')} == left
"#;
    let count = PathBuf::from(if long() { "1000000" } else { "100000" });
    python(program, &[&mounts[0], &mounts[1], &count]);
}

#[test]
fn names_may_be_any_bytes() {
    let (_place, mounts) = mounted(2);
    let program = r#"
one, two = [os.fsencode(mount) for mount in sys.argv[1:]]
bytes_of_names = bytes(set(range(1, 256)) - {ord('/')})
names = {bytes_of_names[at:at + 85] * 3 for at in range(0, 254, 84)} | {bytes([byte]) for byte in bytes_of_names if byte != ord('.')}
names |= {b'\xff' * 255, b'...', b' ', b'\n', b'-rf', b'*', 'é'.encode(), 'e\u0301'.encode(), b'A', b'a'}
names = {name[:255] for name in names}
assert max(map(len, names)) == 255
os.mkdir(one + b'/d')
for entry in names:
    make(one + b'/d/' + entry, entry)
assert set(os.listdir(two + b'/d')) == names
for number, entry in enumerate(names):
    assert data(two + b'/d/' + entry) == entry
    link = b'/l%d' % number
    os.symlink(entry, two + link); assert os.readlink(one + link) == entry; os.unlink(two + link)
    os.rename(two + b'/d/' + entry, two + b'/d/' + entry[::-1] + b'x' if len(entry) < 255 else two + b'/x')
    os.unlink(two + b'/d/' + entry[::-1] + b'x' if len(entry) < 255 else two + b'/x')
assert os.listdir(one + b'/d') == []
assert name(os.mkdir, one + b'/' + b'n' * 256) == 'ENAMETOOLONG'
deep = one
for depth in range(14):
    deep += b'/' + bytes_of_names[depth * 16:depth * 16 + 16] * 15; os.mkdir(deep)
assert len(deep) > 3000 and os.path.isdir(two + deep[len(one):])
"#;
    python(program, &[&mounts[0], &mounts[1]]);
}
