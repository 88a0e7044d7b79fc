//! Directories that are removed while programs are in them, or have them open.

use aze_tests::Place;
use aze_tests::python::python;
use std::path::PathBuf;

fn mounted() -> (Place, PathBuf, PathBuf) {
    let mut place = Place::new();
    place.up(&["--servers", "3"]);
    let (one, two) = (place.mount(), place.mount());
    (place, one, two)
}

/// What both tests look at: the directory in which this process is, and which it has open, is no more.
const IS_GONE: &str = r#"
def is_gone(open_dir, before):
    for found in (os.fstat(open_dir), os.stat('.'), os.stat(f'/proc/self/fd/{open_dir}')):
        assert found.st_nlink == 0 and found.st_size == 0, found
        same = lambda attr: (attr.st_ino, attr.st_mode, attr.st_uid, attr.st_gid)
        assert same(found) == same(before), (found, before)
    assert os.listdir('.') == [] and os.listdir(open_dir) == []
    again = os.open('.', os.O_RDONLY | os.O_DIRECTORY)
    assert os.listdir(again) == [] and os.fstat(again).st_nlink == 0
    os.close(again)
    os.fsync(open_dir); os.statvfs('.')
    assert os.listxattr(open_dir) == [] and name(os.getxattr, '.', 'user.x') == 'ENODATA'
    assert name(os.setxattr, '.', 'user.x', b'1') == 'ESTALE'
    assert name(os.stat, 'x') == 'ENOENT' and name(os.stat, 'x', dir_fd=open_dir) == 'ENOENT'
    assert name(open, 'x') == 'ENOENT' and name(os.unlink, 'x') == 'ENOENT'
    assert name(open, 'x', 'w') == 'ENOENT' and name(os.mkdir, 'x') == 'ENOENT' and name(os.mkfifo, 'x') == 'ENOENT'
    assert name(os.open, 'x', os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=open_dir) == 'ENOENT'
    assert name(os.symlink, 'to', 'x') == 'ENOENT' and name(os.link, P('file'), 'x') == 'ENOENT'
    assert name(os.rename, P('file'), 'x') == 'ENOENT'
    assert os.path.exists(P('file'))
# All that are looked at hereafter are as these changes leave it.
def can_be_changed(open_dir):
    before = os.fstat(open_dir)
    os.chmod('.', 0o711); os.chown('.', 9, -1); os.chown(open_dir, -1, 10); os.utime(open_dir, ns=(5, 6))
    after = os.fstat(open_dir)
    assert (after.st_mode, after.st_uid, after.st_gid) == (stat.S_IFDIR | 0o711, 9, 10), after
    assert (after.st_atime_ns, after.st_mtime_ns, after.st_nlink) == (5, 6, 0) and after.st_ctime_ns > before.st_ctime_ns
    assert (os.stat('.').st_ctime_ns, os.stat('.').st_mode) == (after.st_ctime_ns, after.st_mode)
    os.utime('.')
    assert os.fstat(open_dir).st_mtime_ns > before.st_mtime_ns
    def visitor():
        assert name(os.chmod, open_dir, 0o777) == 'EPERM' and name(os.chown, '.', 65534, -1) == 'EPERM'
        assert name(os.utime, open_dir) == 'EACCES' and name(os.listdir, '.') == 'EACCES'
    user(visitor)
    return after
make(P('file'))
"#;

/// `stat` and listings failed with ESTALE.
#[test]
fn a_directory_removed_under_a_program_is_there_and_empty() {
    let (mut place, one, _two) = mounted();
    let program = r#"
def by_rename():
    os.mkdir(P('other')); os.rename(P('other'), P('d'))
for remove in (lambda: os.rmdir(P('d')), by_rename):
    os.mkdir(P('d'), 0o2750); os.chown(P('d'), 7, 8); os.mkdir(P('d/sub')); os.rmdir(P('d/sub'))
    make(P('d/x')); os.unlink(P('d/x'))
    open_dir = os.open(P('d'), os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(open_dir)
    before = os.fstat(open_dir)
    assert before.st_nlink == 2
    remove()
    is_gone(open_dir, before)
    assert name(os.getcwd) == 'ENOENT'
    is_gone(open_dir, can_be_changed(open_dir))
    os.chdir('..')
    assert os.path.samefile('.', P())
    os.close(open_dir)
    if os.path.exists(P('d')):
        os.rmdir(P('d'))
"#;
    // The kernel of the second asks each time.
    for mount in [one, place.mount_with(&["--cache-time", "0"])] {
        python(&format!("{IS_GONE}{program}"), &[&mount]);
    }
}

/// The kernel of the other mount does not know that it was removed, and may answer for a second.
#[test]
fn so_is_one_removed_through_another_mount() {
    let (_place, one, two) = mounted();
    let program = r#"
two = sys.argv[2]
os.mkdir(P('d')); make(P('d/x'))
open_dir = os.open(P('d'), os.O_RDONLY | os.O_DIRECTORY)
os.chdir(open_dir)
before = os.fstat(open_dir)
os.unlink(f'{two}/d/x'); os.rmdir(f'{two}/d')
until(lambda: os.fstat(open_dir).st_nlink == 0, 'the kernel of this mount has asked')
is_gone(open_dir, before)
# Another one of its name is another one.
os.mkdir(f'{two}/d'); make(f'{two}/d/y')
assert os.listdir(P('d')) == ['y'] and os.stat(P('d')).st_nlink == 2
is_gone(open_dir, before)
is_gone(open_dir, can_be_changed(open_dir))
assert stat.S_IMODE(os.stat(f'{two}/d').st_mode) == 0o777, 'it is another one'
os.chdir('..')
assert os.listdir('d') == ['y']
"#;
    python(&format!("{IS_GONE}{program}"), &[&one, &two]);
}
