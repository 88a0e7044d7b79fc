//! The edges of files and volumes: very long files, and volumes that are full.

use aze_tests::python::python;
use aze_tests::{Place, long};

#[test]
fn files_reach_beyond_a_terabyte() {
    let mut place = Place::new();
    place.up(&["--servers", "3", "--chunk-size", "64K"]);
    let (one, two) = (place.mount(), place.mount());
    let program = r#"
one, two = sys.argv[1:]
T = 1 << 40
descriptor = os.open(f'{one}/f', os.O_CREAT | os.O_RDWR)
places = [0, T - 5, 3 * T + 65_530, 15 * T]
for at in places:
    os.pwrite(descriptor, b'%020d' % at, at)
assert os.fstat(descriptor).st_size == places[-1] + 20
os.close(descriptor)
descriptor = os.open(f'{two}/f', os.O_RDWR)
assert os.fstat(descriptor).st_size == places[-1] + 20
for at in places:
    assert os.pread(descriptor, 40, at)[:20] == b'%020d' % at, at
assert os.pread(descriptor, 100_000, 2 * T) == bytes(100_000), 'what was not written is zeros'
space = os.statvfs(two)
assert (space.f_blocks - space.f_bfree) * space.f_frsize < 4 << 20, 'and takes no space'
os.ftruncate(descriptor, T)
assert os.pread(descriptor, 99, T - 5) == (b'%020d' % (T - 5))[:5]
os.ftruncate(descriptor, 16 * T)
assert os.pread(descriptor, 20, 15 * T) == bytes(20), 'what was cut off is gone'
os.close(descriptor)
os.unlink(f'{one}/f')
"#;
    python(program, &[&one, &two]);
}

#[test]
fn a_full_volume_says_so_and_goes_on() {
    let mut place = Place::new();
    place.aze(&["up", "--name", "small", "--servers", "2", "--size", "160M"]).ok();
    let mnt = place.mount();
    let program = r#"
def fill(path):
    descriptor, written = os.open(path, os.O_CREAT | os.O_WRONLY), 0
    block = bytes(range(256)) * 4096
    try:
        while written < 1 << 30:
            written += os.pwrite(descriptor, block, written)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    os.close(descriptor)
    return written
whole = fill(P('a'))
assert 100 << 20 < whole <= 160 << 20, whole
assert name(make, P('b'), bytes(1 << 20)) == 'ENOSPC'
with open(P('a'), 'rb') as file:
    for at in range(0, whole, 1 << 20):
        assert file.read(1 << 20) == bytes(range(256)) * 4096, at
assert os.statvfs(P()).f_bavail * os.statvfs(P()).f_frsize < 40 << 20
os.truncate(P('a'), 1 << 20)
# Where no room is left at all there is not even the name.
assert name(os.unlink, P('b')) in ('success', 'ENOENT')
def half():
    make(P('c'), bytes(60 << 20)); return os.path.getsize(P('c')) == 60 << 20
assert half(), 'space that was given back is used again'
os.unlink(P('c')); os.unlink(P('a'))
again = fill(P('a'))
assert abs(again - whole) < 8 << 20, (again, whole)
"#;
    python(program, &[&mnt]);
}

/// A directory of many entries: listed whole, with positions that stay valid while others change it.
#[test]
fn a_large_directory_is_listed_while_it_changes() {
    let entries = if long() { 1_000_000 } else { 20_000 };
    let mut place = Place::new();
    place.allow(std::time::Duration::from_secs(if long() { 1_200 } else { 120 }));
    place.up(&["--servers", "3"]);
    let (mnt, other) = (place.mount(), place.mount());
    place.aze(&["mkdir", "aze:/d"]).ok();
    for first in (0..entries).step_by(10_000) {
        let names = (first..first + 10_000).map(|number| format!("aze:/d/{number:07}"));
        let words: Vec<String> = ["touch".to_owned()].into_iter().chain(names).collect();
        place.aze(&words).ok();
    }
    assert_eq!(place.aze(&["ls", "aze:/d"]).ok().out.lines().count(), entries);
    let program = r#"
one, two, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = ['%07d' % number for number in range(count)]
assert sorted(entry.name for entry in os.scandir(f'{one}/d')) == names
assert os.stat(f'{one}/d').st_size == count
# Half listed, then changed through the other mount, then the rest.
listing = os.scandir(f'{one}/d')
seen = [next(listing).name for _ in range(count // 2)]
gone = set(names[::count // 500])
for name in gone:
    os.unlink(f'{two}/d/{name}')
for number in range(500):
    make(f'{two}/d/new{number}')
seen += [entry.name for entry in listing]
assert len(seen) == len(set(seen)), 'nothing is returned twice'
all_names = set(names)
assert all_names - gone <= set(seen), 'what existed throughout is returned'
assert not [name for name in seen if name not in all_names and not name.startswith('new')]
"#;
    python(program, &[&mnt, &other, entries.to_string().as_ref()]);
    place.aze(&["rm", "-r", "aze:/d"]).ok();
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "");
}
