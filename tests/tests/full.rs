//! A volume whose memory is full: it says so, keeps its files, and works again after deletes.

use aze_tests::Place;
use aze_tests::python::python;

#[test]
fn a_full_volume_says_so_and_works_again_after_deletes() {
    let mut place = Place::new();
    place.aze(&["up", "--size", "160M", "--servers", "2"]).ok();
    let mnt = place.mount();
    let program = r#"
def is_equal(a, b):
    assert a == b, (a, b)
text = os.urandom(1 << 20)
for number in range(8):
    make(P(f'kept{number}'), text)
os.mkdir(P('dir'))
filler = os.open(P('filler'), os.O_RDWR | os.O_CREAT)
# One server may be full before the other: single blocks at many places take what is left of each.
at = 0
misses = 0
while misses < 600:
    try:
        os.pwrite(filler, text[:65536], at)
        misses = 0
    except OSError as error:
        is_equal(errno.errorcode[error.errno], 'ENOSPC')
        misses += 1
    at += 65536
misses, at = 0, at + (1 << 20) - at % (1 << 20)
while misses < 40:
    try:
        os.pwrite(filler, text[:4096], at)
        misses = 0
    except OSError as error:
        is_equal(errno.errorcode[error.errno], 'ENOSPC')
        misses += 1
    at += 1 << 20
is_equal(os.statvfs(P()).f_bfree, 0)
def made(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
for number in range(8):
    is_equal(name(made, P(f'file{number}')), 'ENOSPC')
    is_equal(name(os.mkdir, P(f'dir{number}')), 'ENOSPC')
    is_equal(name(os.symlink, 'kept0', P(f'symlink{number}')), 'ENOSPC')
    is_equal(name(os.link, P('kept0'), P(f'link{number}')), 'ENOSPC')
    is_equal(name(os.mkfifo, P('dir', f'fifo{number}')), 'ENOSPC')
    is_equal(name(os.setxattr, P(f'kept{number}'), 'user.a', b'x'), 'ENOSPC')
    is_equal(name(os.open, P(), os.O_TMPFILE | os.O_RDWR), 'ENOSPC')
# What is there can be read, written over, renamed and changed.
for number in range(8):
    assert data(P(f'kept{number}')) == text
    descriptor = os.open(P(f'kept{number}'), os.O_WRONLY | os.O_CREAT)
    os.pwrite(descriptor, text[:70_000], 0)
    os.close(descriptor)
    os.rename(P(f'kept{number}'), P('dir', f'kept{number}'))
    os.chmod(P('dir', f'kept{number}'), 0o600)
is_equal(sorted(os.listdir(P())), ['dir', 'filler'])
is_equal(len(os.listdir(P('dir'))), 8)
os.unlink(P('dir', 'kept0'))
os.close(filler)
os.unlink(P('filler'))
until(lambda: os.statvfs(P()).f_bfree >= os.statvfs(P()).f_blocks // 2, 'memory is held')
for number in range(8):
    made(P(f'file{number}'))
    os.mkdir(P(f'dir{number}'))
    os.symlink('dir', P(f'symlink{number}'))
    os.link(P('dir', 'kept1'), P(f'link{number}'))
    os.setxattr(P(f'file{number}'), 'user.a', b'x')
    make(P(f'file{number}'), text)
    assert data(P(f'file{number}')) == text
for number in range(1, 8):
    assert data(P('dir', f'kept{number}')) == text
"#;
    python(program, &[&mnt]);
}
