//! Extended attributes and access control lists on a mount, as programs use them.

use aze_tests::{Place, Ran, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `P` makes a path in the mount, `name` gives the errno of a call that must fail, `user` runs a function
/// as an unprivileged user, `acl` makes a list in the kernel's form.
const PRELUDE: &str = r#"
import errno, os, struct, sys
os.umask(0)
P = lambda *names: os.path.join(sys.argv[1], *names)
ACCESS, DEFAULT = 'system.posix_acl_access', 'system.posix_acl_default'
def name(call, *args, **more):
    try:
        call(*args, **more)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'success'
def user(call, uid=1001, groups=[]):
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid); call()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
def acl(*entries):
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHI', tag, perm, id) for tag, perm, id in entries)
def is_equal(a, b):
    assert a == b, (a, b)
NOBODY = 0xffffffff
# The owner all, user 1001 what is said, nobody else anything.
def only(perm):
    return acl((1, 7, NOBODY), (2, perm, 1001), (4, 0, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY))
"#;

fn python(program: &str, dir: &Path) -> Ran {
    run(Command::new("python3").arg("-c").arg(format!("{PRELUDE}{program}")).arg(dir))
}

fn mounted() -> (Place, PathBuf) {
    let mut place = Place::new();
    place.up(&["--chunk-size", "64K", "--servers", "2"]);
    let mnt = place.mount();
    aze_tests::set_mode(&place.dir, 0o711);
    aze_tests::set_mode(&mnt, 0o777);
    (place, mnt)
}

#[test]
fn extended_attributes_are_kept() {
    let (_place, mnt) = mounted();
    let program = r#"
for path in [P('file'), P('dir')]:
    os.mkdir(path) if path.endswith('dir') else open(path, 'w').close()
    is_equal(os.listxattr(path), [])
    os.setxattr(path, 'user.a', b'one', os.XATTR_CREATE)
    is_equal(name(os.setxattr, path, 'user.a', b'two', os.XATTR_CREATE), 'EEXIST')
    is_equal(name(os.setxattr, path, 'user.b', b'two', os.XATTR_REPLACE), 'ENODATA')
    os.setxattr(path, 'user.b', b'')
    os.setxattr(path, 'user.long', b'x' * 65536)
    is_equal(len(os.getxattr(path, 'user.long')), 65536)
    is_equal(name(os.setxattr, path, 'user.longer', b'x' * 65537), 'E2BIG')
    is_equal(sorted(os.listxattr(path)), ['user.a', 'user.b', 'user.long'])
    is_equal([os.getxattr(path, 'user.a'), os.getxattr(path, 'user.b')], [b'one', b''])
    os.removexattr(path, 'user.a')
    is_equal(name(os.getxattr, path, 'user.a'), 'ENODATA')
    is_equal(name(os.removexattr, path, 'user.a'), 'ENODATA')
os.symlink('file', P('link'))
is_equal(name(os.setxattr, P('link'), 'user.a', b'', follow_symlinks=False), 'EPERM')
if os.getuid() == 0:
    os.setxattr(P('file'), 'trusted.t', b'secret')
    is_equal(os.getxattr(P('file'), 'trusted.t'), b'secret')
    os.chmod(P('file'), 0o644)
    def other():
        is_equal(name(os.getxattr, P('file'), 'trusted.t'), 'ENODATA')
        is_equal(sorted(os.listxattr(P('file'))), ['user.b', 'user.long'])
        is_equal(os.getxattr(P('file'), 'user.b'), b'')
        is_equal(name(os.setxattr, P('file'), 'user.b', b'x'), 'EACCES')
    user(other)
none = struct.pack('<5I', 0x02000000, 0, 0, 0, 0)
is_equal(name(os.setxattr, P('file'), 'security.capability', none), 'ENOTSUP' if os.getuid() == 0 else 'EPERM')
"#;
    python(program, &mnt).ok();
}

#[test]
fn access_control_lists_decide_on_a_mount() {
    let (_place, mnt) = mounted();
    let program = r#"
if os.getuid() != 0:
    print('needs root'); sys.exit(0)
os.mkdir(P('dir'), 0o700)
for index in range(8):
    open(P('dir', f'f{index}'), 'w').close()
def closed():
    is_equal(name(os.stat, P('dir', 'f0')), 'EACCES')
    is_equal(name(os.listdir, P('dir')), 'EACCES')
user(closed)
os.setxattr(P('dir'), ACCESS, only(7))
is_equal(os.stat(P('dir')).st_mode & 0o777, 0o770)
def opened():
    is_equal(len(os.listdir(P('dir'))), 8)
    for index in range(8):
        os.stat(P('dir', f'f{index}'))
    open(P('dir', 'mine'), 'w').close()
    os.unlink(P('dir', 'mine'))
user(opened)
# A member of the owning group: the mode alone would let him in, since its bits show the mask.
os.chown(P('dir'), 0, 1002)
user(closed, 1002)
os.chmod(P('dir'), 0o700)
user(closed)
# An invalid list, and one of somebody else's file.
is_equal(name(os.setxattr, P('dir'), ACCESS, b'rubbish'), 'ENOTSUP')
is_equal(name(os.setxattr, P('dir'), ACCESS, acl((1, 7, NOBODY))), 'EINVAL')
user(lambda: is_equal(name(os.setxattr, P('dir'), DEFAULT, only(7)), 'EPERM'))
# What is made in a directory with a default list inherits it, whatever the umask.
os.mkdir(P('heirs'), 0o755)
os.setxattr(P('heirs'), DEFAULT, only(6))
os.umask(0o077)
open(P('heirs', 'file'), 'w').close()
os.mkdir(P('heirs', 'inner'))
is_equal(os.stat(P('heirs', 'file')).st_mode & 0o777, 0o660)
is_equal(os.getxattr(P('heirs', 'inner'), DEFAULT), only(6))
user(lambda: open(P('heirs', 'file'), 'r+').close())
open(P('plain'), 'w').close()
os.mkdir(P('plain dir'))
is_equal([os.stat(P(name)).st_mode & 0o777 for name in ['plain', 'plain dir']], [0o600, 0o700])
os.mkfifo(P('fifo'), 0o666)
is_equal(os.stat(P('fifo')).st_mode & 0o777, 0o600)
"#;
    python(program, &mnt).ok();
}
