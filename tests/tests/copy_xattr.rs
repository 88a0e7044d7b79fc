//! `aze cp -p` keeps extended attributes and access control lists, and owner and times of symbolic links, in both directions.

use aze_tests::Place;
use aze_tests::python::python;

const PRELUDE: &str = r#"
import struct
def acl(perm):
    entries = [(1, 7, -1), (2, perm, 1234), (4, 0, -1), (16, 7, -1), (32, 0, -1)]
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)
FILE = {'user.a': b'one', 'user.empty': b'', 'user.long': bytes(range(256)) * 10, 'system.posix_acl_access': acl(4)}
DIR = {'user.d': b'two', 'system.posix_acl_access': acl(5), 'system.posix_acl_default': acl(6)}
def give(path, attributes):
    for key, value in attributes.items():
        os.setxattr(path, key, value)
def check(path, attributes):
    found = {key: os.getxattr(path, key) for key in os.listxattr(path)}
    assert found == attributes, (path, found)
"#;

#[test]
fn a_copy_keeps_extended_attributes() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let mnt = place.mount();
    let (source, back) = (place.path("source"), place.path("back"));
    let make = r#"
os.mkdir(P())
os.mkdir(P('dir'))
give(make(P('dir', 'file'), b'text'), FILE)
give(make(P('dir', 'closed'), b'text'), {'user.a': b'one'})
os.chmod(P('dir', 'closed'), 0o400)
make(P('plain'))
os.symlink('plain', P('link'))
give(P('dir'), DIR)
"#;
    python(&format!("{PRELUDE}{make}"), &[&source]);
    let copied = place.aze(&["cp", "-rp", "source", "aze:/in"]).ok();
    assert!(!copied.err.contains("warning"), "{}", copied.err);
    let copied = place.aze(&["cp", "-rp", "aze:/in", "back"]).ok();
    assert!(!copied.err.contains("warning"), "{}", copied.err);
    place.aze(&["cp", "-r", "source", "aze:/without"]).ok();
    let look = r#"
for path in [P('in'), sys.argv[2]]:
    check(f'{path}/dir/file', FILE)
    check(f'{path}/dir/closed', {'user.a': b'one'})
    assert stat.S_IMODE(os.stat(f'{path}/dir/closed').st_mode) == 0o400
    check(f'{path}/dir', DIR)
    check(f'{path}/plain', {})
check(P('without', 'dir', 'file'), {})
"#;
    python(&format!("{PRELUDE}{look}"), &[&mnt, &back]);
}

/// What a target cannot have is told, by name, and the rest is copied.
#[test]
fn what_the_target_refuses_is_told() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let mnt = place.mount();
    let make = "make(P('f'), b'text'); os.setxattr(P('f'), 'user.large', b'x' * 60_000)";
    python(make, &[&mnt]);
    // No file system on a disk here takes one of that size; where one does, there is nothing to tell.
    let target = place.path("f");
    let copied = place.aze(&["cp", "-p", "aze:/f", "f"]).ok();
    assert_eq!(std::fs::read(&target).expect("the copy"), b"text");
    let look = "print(os.listxattr(sys.argv[1]))";
    let kept = python(look, &[&target]).out.contains("user.large");
    let told = copied.err.contains("warning: without extended attribute user.large");
    assert!(kept != told, "{}", copied.err);
}

/// A link had the times of its copy.
#[test]
fn a_copy_of_a_link_keeps_its_own_owner_and_times() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let mnt = place.mount();
    let (source, back) = (place.path("source"), place.path("back"));
    let make = r#"
os.mkdir(P())
make(P('file'))
os.symlink('file', P('link'))
if os.getuid() == 0:
    os.chown(P('link'), 1234, 2345, follow_symlinks=False)
os.utime(P('link'), ns=(1_000_000_001_000_000_002, 1_200_000_003_000_000_004), follow_symlinks=False)
"#;
    python(make, &[&source]);
    place.aze(&["cp", "-rp", "source", "aze:/in"]).ok();
    place.aze(&["cp", "-rp", "aze:/in", "back"]).ok();
    let look = r#"
def of(path):
    about = os.lstat(path)
    return about.st_uid, about.st_gid, about.st_mtime_ns, about.st_atime_ns
# Reading a link may move the time of its last access here, and does not in a volume.
should = of(f'{sys.argv[2]}/link')[:2] + (1_200_000_003_000_000_004, 1_000_000_001_000_000_002)
found = of(P('in', 'link')), of(f'{sys.argv[3]}/link')
assert found == (should, should), (found, should)
"#;
    python(look, &[&mnt, &source, &back]);
}
