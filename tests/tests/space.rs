//! fallocate(2), and lseek(2) to data and holes, on a mount.

use aze_tests::python::python;
use aze_tests::{Place, run};
use std::path::{Path, PathBuf};
use std::process::Command;

const PRELUDE: &str = r#"
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
def fallocate(descriptor, mode, offset, length):
    result = libc.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length))
    if result != 0:
        raise OSError(ctypes.get_errno(), 'fallocate')
def is_equal(a, b):
    assert a == b, (a, b)
def fresh(path, text=b''):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, text)
    return descriptor
"#;

fn mounted(options: &[&str]) -> (Place, PathBuf) {
    let mut place = Place::new();
    place.up(&[&["--servers", "2"], options].concat());
    let mnt = place.mount();
    (place, mnt)
}

fn program(text: &str, dirs: &[&Path]) {
    python(&format!("{PRELUDE}{text}"), dirs);
}

/// Every mode has the same effect on every range as on a local file system.
#[test]
fn ranges_are_reserved_zeroed_and_punched() {
    let (mut place, mnt) = mounted(&["--chunk-size", "64K"]);
    let other = place.mount();
    let text = r#"
import random
random.seed(5)
SIZE = 300_000
for number in range(60):
    text = random.randbytes(random.randrange(1, SIZE))
    descriptor = fresh(P('f'), text)
    mode = random.choice([0, KEEP, ZERO, ZERO | KEEP, PUNCH | KEEP])
    offset, length = random.randrange(SIZE), random.randrange(1, SIZE)
    fallocate(descriptor, mode, offset, length)
    model, end = bytearray(text), offset + length
    if not mode & KEEP:
        model.extend(bytes(max(0, end - len(model))))
    if mode & (ZERO | PUNCH):
        model[offset:end] = bytes(len(model[offset:end]))
    is_equal(os.fstat(descriptor).st_size, len(model))
    assert os.pread(descriptor, 2 * SIZE, 0) == model, (mode, offset, length, len(text))
    assert data(f'{sys.argv[2]}/f') == model, (mode, offset, length, len(text))
    # What is written then is there as always.
    os.pwrite(descriptor, b'again', offset)
    os.close(descriptor)
    assert data(f'{sys.argv[2]}/f')[offset:offset + 5] == b'again'
descriptor = fresh(P('f'), b'text')
before = os.fstat(descriptor)
for mode in [COLLAPSE, INSERT, PUNCH, 64]:
    is_equal(name(fallocate, descriptor, mode, 0, 4096), 'ENOTSUP')
is_equal(name(fallocate, descriptor, 0, 0, 0), 'EINVAL')
is_equal(name(fallocate, descriptor, 0, -1, 10), 'EINVAL')
is_equal(name(fallocate, descriptor, 0, 1 << 62, 1 << 62), 'EFBIG')
reader = os.open(P('f'), os.O_RDONLY)
is_equal(name(fallocate, reader, 0, 0, 10), 'EBADF')
is_equal(os.fstat(descriptor).st_size, 4)
time.sleep(0.02)
fallocate(descriptor, PUNCH | KEEP, 0, 4)
assert os.fstat(descriptor).st_mtime_ns > before.st_mtime_ns
"#;
    program(text, &[&mnt, &other]);
}

/// The limit of a process on the length of files holds for fallocate too.
#[test]
fn nobody_reserves_beyond_his_limit() {
    let (_place, mnt) = mounted(&[]);
    let text = r#"
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
descriptor = fresh(P('f'), b'text')
is_equal(name(fallocate, descriptor, 0, 0, 100_001), 'EFBIG')
is_equal(name(os.pwrite, descriptor, b'x', 100_000), 'EFBIG')
is_equal(name(os.ftruncate, descriptor, 100_001), 'EFBIG')
fallocate(descriptor, KEEP, 0, 200_000)
is_equal(os.fstat(descriptor).st_size, 4)
fallocate(descriptor, 0, 0, 100_000)
is_equal(os.fstat(descriptor).st_size, 100_000)
"#;
    program(text, &[&mnt]);
}

/// Once a range is reserved, writing to it does not fail for want of memory.
#[test]
fn what_is_reserved_can_be_written_when_the_volume_is_full() {
    let mut place = Place::new();
    place.aze(&["up", "--size", "160M", "--servers", "2"]).ok();
    let mnt = place.mount();
    let text = r#"
SIZE = 48 << 20
kept = fresh(P('kept'))
# Made while there is room: a full server makes no names.
filler = fresh(P('filler'))
fallocate(kept, 0, 0, SIZE)
is_equal(os.fstat(kept).st_size, SIZE)
is_equal(name(fallocate, fresh(P('too much')), 0, 0, 1 << 40), 'ENOSPC')
is_equal(os.stat(P('too much')).st_size, 0)
is_equal(name(fallocate, fresh(P('much')), 0, 0, 140 << 20), 'ENOSPC')
is_equal(os.stat(P('much')).st_size, 0)
os.unlink(P('much'))
def fill():
    at = 0
    for size in [1 << 20, 65536, 4096]:
        for _ in range(10_000):
            os.pwrite(filler, b'x' * size, at)
            at += size
# Whatever one server has no room for, another may have.
for _ in range(40):
    is_equal(name(fill), 'ENOSPC')
text = os.urandom(1 << 20)
for at in range(0, SIZE, 1 << 20):
    os.pwrite(kept, text, at)
for at in range(0, SIZE, 1 << 20):
    assert os.pread(kept, 1 << 20, at) == text, at
# A hole gives its memory back.
fallocate(kept, PUNCH | KEEP, 0, SIZE)
os.pwrite(fresh(P('new')), b'y' * (4 << 20), 0)
is_equal(os.pread(kept, 100, 5 << 20), bytes(100))
"#;
    program(text, &[&mnt]);
}

#[test]
fn data_and_holes_are_found() {
    let (mut place, mnt) = mounted(&["--chunk-size", "64K"]);
    let other = place.mount();
    let text = r#"
descriptor = fresh(P('f'))
os.ftruncate(descriptor, 10 << 20)
is_equal(name(os.lseek, descriptor, 0, os.SEEK_DATA), 'ENXIO')
is_equal(os.lseek(descriptor, 5, os.SEEK_HOLE), 5)
written = [(0, 4096), (100_000, 8192), (1 << 20, 300_000), ((10 << 20) - 65536, 65536)]
for at, size in written:
    os.pwrite(descriptor, b'x' * size, at)
for reader in [descriptor, os.open(f'{sys.argv[2]}/f', os.O_RDONLY)]:
    at, found = 0, bytearray(10 << 20)
    while name(os.lseek, reader, at, os.SEEK_DATA) == 'success':
        start = os.lseek(reader, at, os.SEEK_DATA)
        at = os.lseek(reader, start, os.SEEK_HOLE)
        assert start < at
        found[start:at] = b'x' * (at - start)
        if at == 10 << 20:
            break
    model = bytearray(10 << 20)
    for at, size in written:
        model[at:at + size] = b'x' * size
    assert all(not model[at] or found[at] for at in range(len(model))), 'data in what was called a hole'
    assert found.count(b'x') < len(model) // 5, 'holes are found'
    is_equal(os.lseek(reader, (10 << 20) - 1, os.SEEK_DATA), (10 << 20) - 1)
    is_equal(os.lseek(reader, (10 << 20) - 1, os.SEEK_HOLE), 10 << 20)
    is_equal(name(os.lseek, reader, 10 << 20, os.SEEK_HOLE), 'ENXIO')
    is_equal(name(os.lseek, reader, 10 << 20, os.SEEK_DATA), 'ENXIO')
is_equal(os.lseek(fresh(P('small'), b'text'), 0, os.SEEK_HOLE), 4)
is_equal(os.lseek(fresh(P('small'), b'text'), 2, os.SEEK_DATA), 2)
is_equal(name(os.lseek, fresh(P('empty')), 0, os.SEEK_HOLE), 'ENXIO')
"#;
    program(text, &[&mnt, &other]);
    // Programs that look for holes make copies that are the same.
    let script =
        "cp --sparse=auto f copy && cmp f copy && tar -Scf t.tar f && mkdir x && tar -Sxf t.tar -C x && cmp f x/f";
    run(Command::new("bash").args(["-ec", script]).current_dir(&mnt)).ok();
}

/// Programs look for holes only where a file takes less room than its length: a file of 1 TiB with three bytes in it is
/// copied in a moment, and takes three bytes of room. `tar` does not read what takes no room at all.
#[test]
fn copies_keep_holes() {
    let (place, mnt) = mounted(&["--chunk-size", "64K"]);
    let text = r#"
import subprocess
blocks = lambda name: os.stat(P(name)).st_blocks
with open(P('dense'), 'wb') as file:
    file.write(b'x' * 300_001)
is_equal(blocks('dense'), -(-300_001 // 512))
SIZE = 1 << 40
with open(P('big'), 'wb') as file:
    file.truncate(SIZE)
    os.pwrite(file.fileno(), b'end', SIZE - 3)
assert 0 < blocks('big') < SIZE // 512
# Short, and with a hole; a hole that a write has left, near and far; one that was punched.
with open(P('short'), 'wb') as file:
    os.pwrite(file.fileno(), b'x', 100)
is_equal(blocks('short'), 1)
for name, offset in [('near', 40_000), ('far', 400_000)]:
    with open(P(name), 'wb') as file:
        os.pwrite(file.fileno(), b'x', offset)
    assert 0 < blocks(name) < offset // 512 + 1, name
with open(P('punched'), 'wb') as file:
    file.write(b'x' * 300_000)
    file.flush()
    fallocate(file.fileno(), PUNCH | KEEP, 65_536, 65_536)
assert 0 < blocks('punched') < -(-300_000 // 512)
# An empty file has no holes any more.
os.truncate(P('punched'), 0)
with open(P('punched'), 'wb') as file:
    file.write(b'x' * 1000)
is_equal(blocks('punched'), 2)
os.makedirs(P('copies'))
names = ['big', 'short', 'near', 'far', 'dense']
subprocess.run(['cp', *map(P, names), P('copies')], check=True)
subprocess.run(['tar', '-C', P('.'), '-cSf', P('tar'), *names], check=True)
assert os.stat(P('tar')).st_size < 2_000_000
os.makedirs(P('untarred'))
subprocess.run(['tar', '-C', P('untarred'), '-xSf', P('tar')], check=True)
def is_copy(name):
    is_equal(os.stat(name).st_size, os.stat(P(os.path.basename(name))).st_size)
    with open(name, 'rb') as one, open(P(os.path.basename(name)), 'rb') as other:
        for file in one, other:
            file.seek(-min(1_000_000, os.stat(name).st_size), os.SEEK_END)
        is_equal(one.read(), other.read())
for name in names:
    is_copy(P(f'copies/{name}'))
    is_copy(P(f'untarred/{name}'))
"#;
    program(text, &[&mnt]);
    let local = place.path("local");
    std::fs::create_dir(&local).expect("a directory");
    for name in ["big", "short", "near", "far", "dense"] {
        place.aze(&["cp", "--verify", &format!("aze:/{name}"), "local"]).ok();
        place.aze(&["cp", "--verify", &format!("local/{name}"), &format!("aze:/again-{name}")]).ok();
        let [first, again] = [name, &format!("again-{name}")].map(|name| mnt.join(name));
        if name != "big" {
            run(Command::new("cmp").args([&first, &local.join(name)]));
            run(Command::new("cmp").args([&first, &again]));
        }
        let [first, again] = [first, again].map(|path| std::fs::metadata(path).expect("it is there").len());
        assert_eq!((first, again), (local.join(name).metadata().expect("it is there").len(), first));
    }
    let used = place.aze(&["df", "--json"]).ok();
    let used: serde_json::Value = serde_json::from_str(used.out.lines().next().expect("a volume")).expect("JSON");
    assert!(used["used_bytes"].as_u64().is_some_and(|bytes| bytes < 64 << 20), "{used}");
}
