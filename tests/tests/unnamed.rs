//! `O_TMPFILE` on a mount: files without a name, which may be given one.

use aze_tests::Place;
use aze_tests::python::python;

#[test]
fn files_without_a_name_may_be_given_one() {
    let mut place = Place::new();
    place.up(&["--servers", "3", "--chunk-size", "64K"]);
    let (mnt, other) = (place.mount(), place.mount());
    aze_tests::set_mode(&place.dir, 0o711);
    aze_tests::set_mode(&mnt, 0o777);
    let program = r#"
# With a directory's descriptor it is linkat(2), which follows links if it is told to.
ROOT = os.open('/', os.O_RDONLY)
def named(descriptor, path):
    os.link(f'/proc/self/fd/{descriptor}', path, src_dir_fd=ROOT, follow_symlinks=True)
def is_equal(a, b):
    assert a == b, (a, b)
for number in range(30):
    descriptor = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o640)
    found = os.fstat(descriptor)
    is_equal((found.st_nlink, stat.S_IMODE(found.st_mode), found.st_size), (0, 0o640, 0))
    text = os.urandom(200_000)
    os.write(descriptor, text)
    is_equal(os.pread(descriptor, 300_000, 0), text)
    is_equal(os.listdir(sys.argv[1]), [])
    if number % 2:
        named(descriptor, P('name'))
        is_equal(os.fstat(descriptor).st_nlink, 1)
        is_equal(name(named, descriptor, P('name')), 'EEXIST')
        named(descriptor, P('second'))
        is_equal(data(f'{sys.argv[2]}/name'), text)
        os.unlink(P('second'))
        is_equal(os.stat(P('name')).st_nlink, 1)
        os.close(descriptor)
        is_equal(data(P('name')), text)
        os.unlink(P('name'))
    else:
        os.close(descriptor)
descriptor = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
is_equal(name(named, descriptor, P('never')), 'ENOENT')
os.close(descriptor)
# What has lost the name that it was given gets none again.
descriptor = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o600)
named(descriptor, P('name'))
os.unlink(P('name'))
is_equal(name(named, descriptor, P('again')), 'ENOENT')
os.close(descriptor)
os.mkdir(P('closed'), 0o755)
if os.getuid() == 0:
    user(lambda: is_equal(name(os.open, P('closed'), os.O_TMPFILE | os.O_RDWR), 'EACCES'))
os.rmdir(P('closed'))
with tempfile.TemporaryFile(dir=sys.argv[1]) as file:
    file.write(b'text')
# Nothing is left of them.
until(lambda: os.statvfs(P()).f_bfree == os.statvfs(P()).f_blocks, 'memory is held')
"#;
    python(program, &[&mnt, &other]);
}
