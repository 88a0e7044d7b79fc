//! What programs of a POSIX system expect of a mount: each test is a short Python program, or a
//! program that everybody uses, whose outcome on a local file system is known.

use aze_tests::python::python;
use aze_tests::{Place, make_tree, run};
use std::fs;
use std::process::Command;

/// A volume and a mount of it.
fn mounted() -> (Place, std::path::PathBuf) {
    let mut place = Place::new();
    place.up(&["--chunk-size", "64K"]);
    let mnt = place.mount();
    aze_tests::set_mode(&place.dir, 0o711);
    aze_tests::set_mode(&mnt, 0o777);
    (place, mnt)
}

/// Write and truncation of a set-id file by a user who is allowed to write it failed with EPERM:
/// the kernel asked for the mode without the bits in the name of the writer, who may not set it.
/// Append and `O_TRUNC` left the bits as they were.
#[test]
fn users_of_a_mount_take_set_id_bits_by_writing() {
    let (_place, mnt) = mounted();
    let program = r#"
def with_open(path, flags, data=b''):
    descriptor = os.open(path, flags); os.write(descriptor, data); os.close(descriptor)
ways = [
    lambda path: with_open(path, os.O_WRONLY, b'x'),
    lambda path: with_open(path, os.O_WRONLY | os.O_APPEND, b'x'),
    lambda path: with_open(path, os.O_WRONLY | os.O_TRUNC),
    lambda path: os.truncate(path, 1),
]
for number, way in enumerate(ways):
    path = make(P(f'f{number}'), b'abc', 0o6777)
    way(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o6777, ('root', number)
    user(lambda: way(path))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o777, (number, oct(os.stat(path).st_mode))
path = make(P('owned'), b'abc', 0o6755)
os.chown(path, 5, 5)
assert stat.S_IMODE(os.stat(path).st_mode) == 0o755
"#;
    python(program, &[&mnt]);
}

/// A file that was replaced by `rename` on one node was opened and read on another for up to a
/// second, although an open that comes after a change must see it.
#[test]
fn a_file_replaced_on_another_mount_is_opened_anew() {
    let (mut place, one) = mounted();
    let two = place.mount();
    let program = r#"
mounts = sys.argv[1:]
make(P('f'))
for number in range(100):
    writer, reader = mounts[number % 2], mounts[1 - number % 2]
    text = b'%d' % number
    make(f'{writer}/new', text)
    os.rename(f'{writer}/new', f'{writer}/f')
    assert data(f'{reader}/f') == text, number
    descriptor = os.open(f'{writer}/f', os.O_WRONLY)
    os.pwrite(descriptor, b'changed', 200_000)
    os.close(descriptor)
    assert data(f'{reader}/f')[200_000:] == b'changed', number
# Also while the old one is open, and there for whoever has it.
for number in range(20):
    make(P('f'), b'old')
    kept = os.open(f'{mounts[1]}/f', os.O_RDONLY)
    make(P('new'), b'new')
    os.rename(P('new'), P('f'))
    with open(f'{mounts[1]}/f', 'r+b') as opened:
        assert opened.read() == b'new', number
    assert data(f'/proc/self/fd/{kept}') == b'old', number
    assert os.pread(kept, 10, 0) == b'old', number
    os.close(kept)
make(P('gone'))
os.stat(f'{mounts[1]}/gone')
os.unlink(P('gone'))
assert name(open, f'{mounts[1]}/gone') == 'ENOENT'
assert name(os.stat, f'{mounts[1]}/late') == 'ENOENT'
make(P('late'))
assert name(os.stat, f'{mounts[1]}/late') == 'success'
"#;
    python(program, &[&one, &two]);
}

/// An open on one mount showed a file at the length that the kernel had been told of before another
/// mount wrote or cut it, for up to a second.
#[test]
fn an_open_shows_the_length_that_another_mount_has_given() {
    let (mut place, one) = mounted();
    let two = place.mount();
    let program = r#"
mounts = sys.argv[1:]
def seen(path):
    descriptor = os.open(path, os.O_RDONLY)
    found = os.read(descriptor, 1 << 20), os.fstat(descriptor).st_size
    os.close(descriptor)
    return found
for number in range(60):
    writer, reader = mounts[number % 2], mounts[1 - number % 2]
    make(f'{writer}/f', b'first')
    assert seen(f'{reader}/f') == (b'first', 5), number
    descriptor = os.open(f'{writer}/f', os.O_WRONLY)
    os.pwrite(descriptor, b'changed', 200_000)
    os.close(descriptor)
    text, size = seen(f'{reader}/f')
    assert (text[200_000:], size) == (b'changed', 200_007), (number, len(text), size)
    os.truncate(f'{writer}/f', 3)
    assert seen(f'{reader}/f') == (b'fir', 3), number
    os.truncate(f'{writer}/f', 5)
    assert seen(f'{reader}/f') == (b'fir\0\0', 5), number
    # Of the same length: pages that were kept from the last open are not.
    assert seen(f'{reader}/f') == (b'fir\0\0', 5), number
    with open(f'{writer}/f', 'r+b') as file:
        file.write(b'other')
    assert seen(f'{reader}/f') == (b'other', 5), number
"#;
    python(program, &[&one, &two]);
}

#[test]
fn open_files_outlive_their_names() {
    let (_place, mnt) = mounted();
    let program = r#"
path = make(P('f'), b'hello')
descriptor = os.open(path, os.O_RDWR)
os.unlink(path)
os.write(descriptor, b'J')
os.ftruncate(descriptor, 4)
again = os.open(f'/proc/self/fd/{descriptor}', os.O_RDONLY)
assert (os.read(again, 9), os.fstat(again).st_nlink, os.fstat(again).st_size) == (b'Jell', 0, 4)
os.fchmod(descriptor, 0o600); os.utime(descriptor, (1, 2))
assert os.fstat(descriptor).st_mtime == 2
old = os.open(make(P('a'), b'old'), os.O_RDONLY)
os.rename(make(P('b'), b'new'), P('a'))
assert (os.read(old, 9), data(P('a'))) == (b'old', b'new')
with tempfile.TemporaryFile(dir=P()) as file:
    file.write(b'x' * 300_000); file.seek(0)
    assert len(file.read()) == 300_000
assert sorted(os.listdir(P())) == ['a']
"#;
    python(program, &[&mnt]);
}

#[test]
fn appends_are_whole_and_seen_by_all_descriptors() {
    let (_place, mnt) = mounted();
    let program = r#"
path = make(P('log'))
reader = os.open(path, os.O_RDONLY)
def append(number):
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    for line in range(300):
        os.write(descriptor, b'%d %06d\n' % (number, line))
wait(*[child(lambda number=number: append(number)) for number in range(3)])
lines = data(path).splitlines()
assert len(lines) == 900 and len(set(lines)) == 900 and os.fstat(reader).st_size == 8100
both = os.open(path, os.O_RDWR | os.O_APPEND)
os.truncate(path, 0)
os.write(both, b'after')
os.pwrite(both, b'wards', 0)
assert os.pread(reader, 99, 0) == b'afterwards' and os.lseek(both, 0, os.SEEK_CUR) == 5
fcntl.fcntl(both, fcntl.F_SETFL, 0)
os.pwrite(both, b'A', 0)
assert data(path) == b'Afterwards'
"#;
    python(program, &[&mnt]);
}

#[test]
fn mappings_and_descriptors_show_the_same_bytes() {
    let (_place, mnt) = mounted();
    let program = r#"
path = make(P('f'), bytes(300_000))
descriptor = os.open(path, os.O_RDWR)
here = mmap.mmap(descriptor, 300_000)
def there():
    other = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(other, 300_000)
    mapped[200_000:200_005] = b'child'
wait(child(there))
assert here[200_000:200_005] == b'child' == os.pread(descriptor, 5, 200_000)
os.pwrite(descriptor, b'W', 200_000)
assert here[200_000:200_005] == b'Whild'
here[70_000:70_004] = b'page'
appending = os.open(path, os.O_RDWR | os.O_APPEND)
os.write(appending, b'end')
assert os.pread(appending, 4, 70_000) == b'page' and data(path)[300_000:] == b'end'
os.ftruncate(descriptor, 65_541); os.ftruncate(descriptor, 70_010)
assert here[65_541:70_010] == bytes(4469)
here.flush(); os.utime(descriptor, (5, 5)); here.close(); os.close(descriptor)
assert os.stat(path).st_mtime == 5
copy = os.open(P('copy'), os.O_RDWR | os.O_CREAT)
source = os.open(path, os.O_RDONLY)
while os.copy_file_range(source, copy, 1 << 20):
    pass
assert data(P('copy')) == data(path)
os.posix_fallocate(copy, 0, 200_000)
assert os.fstat(copy).st_size == 200_000
"#;
    python(program, &[&mnt]);
}

#[test]
fn names_links_and_times_follow_posix() {
    let (_place, mnt) = mounted();
    let program = r#"
os.makedirs(P('d/x')); os.makedirs(P('full/y')); make(P('f')); make(P('f2'))
moves = [('d', 'full', 'ENOTEMPTY'), ('d', 'f', 'ENOTDIR'), ('f', 'd', 'EISDIR'), ('d', 'd/x/z', 'EINVAL'),
         ('none', 'f', 'ENOENT'), ('f', 'none/f', 'ENOENT'), ('f', 'f/f', 'ENOTDIR'), ('f', 'f', 'success')]
for old, new, expected in moves:
    assert name(os.rename, P(old), P(new)) == expected, (old, new)
os.link(P('f'), P('g'))
os.rename(P('f'), P('g'))
assert os.stat(P('f')).st_nlink == 2, 'two names of one file stay'
os.symlink('g', P('l'))
assert name(os.open, P('l'), os.O_RDONLY | os.O_NOFOLLOW) == 'ELOOP'
assert name(os.open, P('l'), os.O_CREAT | os.O_EXCL) == 'EEXIST'
os.symlink('loop', P('loop'))
assert name(os.stat, P('loop')) == 'ELOOP' and name(os.stat, P('n' * 256)) == 'ENAMETOOLONG'
assert name(os.open, P('d'), os.O_WRONLY) == 'EISDIR' and name(os.rmdir, P('f')) == 'ENOTDIR'
assert os.stat(P('d')).st_nlink == 3 and name(os.rmdir, P('d')) == 'ENOTEMPTY'
def moves_time(path, step):
    before = os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns
    step()
    after = os.stat(path).st_mtime_ns, os.stat(path).st_ctime_ns
    return after[0] > before[0] and after[1] > before[1]
for step in [lambda: make(P('d/n')), lambda: os.mkdir(P('d/m')), lambda: os.link(P('d/n'), P('d/o')),
             lambda: os.rename(P('d/o'), P('d/p')), lambda: os.unlink(P('d/p')), lambda: os.rmdir(P('d/m')),
             lambda: os.rename(P('d/n'), P('full/n'))]:
    assert moves_time(P('d'), step)
assert not moves_time(P('d'), lambda: make(P('full/n'), b'x'))
assert name(os.setxattr, P('f'), 'user.x', b'1') == 'success'
assert name(os.open, P(), os.O_TMPFILE | os.O_RDWR) == 'success'
os.mkdir(P('many'))
for number in range(1000):
    make(P('many', str(number)))
with os.scandir(P('many')) as entries:
    removed = [os.unlink(entry.path) for entry in entries]
assert len(removed) == 1000 and os.listdir(P('many')) == []
"#;
    python(program, &[&mnt]);
}

#[test]
fn users_of_a_mount_are_kept_apart() {
    let (_place, mnt) = mounted();
    let program = r#"
os.mkdir(P('sticky')); os.chmod(P('sticky'), 0o1777); make(P('sticky/root'), mode=0o666)
def visitor():
    assert name(os.unlink, P('sticky/root')) == 'EPERM'
    make(P('sticky/mine')); os.rename(P('sticky/mine'), P('sticky/still')); os.unlink(P('sticky/still'))
    descriptor = os.open(P('sticky/readonly'), os.O_CREAT | os.O_RDWR, 0o444)
    os.write(descriptor, b'abc'); os.ftruncate(descriptor, 2)
    assert name(os.truncate, P('sticky/readonly'), 0) == 'EACCES'
user(visitor)
"#;
    python(program, &[&mnt]);
}

#[test]
fn locks_sockets_and_pipes_join_processes_of_one_mount() {
    let (_place, mnt) = mounted();
    let program = r#"
path = make(P('f'), b'x' * 10)
mine = os.open(path, os.O_RDWR)
fcntl.lockf(mine, fcntl.LOCK_EX, 5)
fcntl.flock(mine, fcntl.LOCK_EX)
def other():
    try_lock = fcntl.LOCK_EX | fcntl.LOCK_NB
    theirs = os.open(path, os.O_RDWR)
    assert name(fcntl.lockf, theirs, try_lock, 1) == 'EAGAIN'
    assert name(fcntl.lockf, theirs, try_lock, 1, 7) == 'success'
    assert name(fcntl.flock, theirs, try_lock) == 'EAGAIN'
wait(child(other))
listener = socket.socket(socket.AF_UNIX); listener.bind(P('socket')); listener.listen()
caller = socket.socket(socket.AF_UNIX); caller.connect(P('socket')); caller.send(b'hello')
assert listener.accept()[0].recv(9) == b'hello'
os.mkfifo(P('pipe'))
writer = child(lambda: make(P('pipe'), b'through'))
assert data(P('pipe')) == b'through'
wait(writer)
assert subprocess.run([make(P('program'), b'#!/bin/sh\nexit 3\n', 0o755)]).returncode == 3
"#;
    python(program, &[&mnt]);
}

#[test]
fn a_database_is_changed_by_two_processes() {
    let (_place, mnt) = mounted();
    let program = r#"
def count(path, number):
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    for row in range(30):
        db.execute('begin immediate')
        seen = db.execute('select v from counter').fetchone()[0]
        db.execute('update counter set v = ?', (seen + 1,))
        db.execute('insert into rows values (?, ?, ?)', (number, row, 'x' * 3000))
        db.execute('commit')
    db.close()
for mode in ['delete', 'truncate', 'wal']:
    path = P(mode)
    db = sqlite3.connect(path, isolation_level=None)
    assert db.execute(f'pragma journal_mode = {mode}').fetchone() == (mode,)
    db.execute('create table counter (v)'); db.execute('insert into counter values (0)')
    db.execute('create table rows (a, b, c)'); db.close()
    wait(*[child(lambda number=number: count(path, number)) for number in range(2)])
    db = sqlite3.connect(path)
    assert db.execute('select v from counter').fetchone() == (60,), mode
    assert db.execute('select count(*) from rows').fetchone() == (60,), mode
    assert db.execute('pragma integrity_check').fetchone() == ('ok',), mode
    db.close()
"#;
    python(program, &[&mnt]);
}

#[test]
fn archives_copies_and_repositories_survive_a_round_trip() {
    let (place, mnt) = mounted();
    let tree = place.path("tree");
    make_tree(&tree, 120);
    fs::write(tree.join("hard"), "two names").expect("a file");
    fs::hard_link(tree.join("hard"), tree.join("link")).expect("a second name");
    let script = r#"
set -e
cd "$1"
mkdir "$2/tar"
tar -C "$1" -cf "$2/a.tar" . && tar -C "$2/tar" -xpf "$2/a.tar"
tar -C "$1" --compare -f "$2/a.tar" && tar -C "$2/tar" --compare -f "$2/a.tar"
rsync -aH "$1/" "$2/rsync/"
test -z "$(rsync -aHnic --delete "$1/" "$2/rsync/")"
test -z "$(rsync -aHnic --delete "$2/rsync/" "$2/tar/")"
git init -q "$2/git" && cd "$2/git" && cp -a "$2/rsync/." . && git add -A
git -c user.name=n -c user.email=e commit -qm one
git gc -q && git fsck --strict 2>&1 && git clone -q . "$2/clone"
test -z "$(git -C "$2/clone" status --porcelain)"
rm -r "$2/tar" "$2/rsync" "$2/clone" "$2/git" "$2/a.tar"
test -z "$(ls -A "$2")"
"#;
    run(Command::new("bash").args(["-c", script, "bash"]).arg(&tree).arg(&mnt));
}
