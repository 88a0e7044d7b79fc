//! Two mounts of one volume: when a change returns on one, the other shows it at once, though its kernel answers from
//! its caches.

use aze_tests::python::python;
use aze_tests::{Place, wait_until};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const ROUNDS: &str = r#"
import ctypes, struct
one, two = sys.argv[1:]
mounts = [one, two]
libc = ctypes.CDLL(None, use_errno=True)
def swap(one, other):
    assert libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0, ctypes.get_errno()
def size(path):
    return os.stat(path).st_size
def mode(path):
    return os.stat(path).st_mode & 0o7777
for number in range(60):
    here, there = mounts[number % 2], mounts[1 - number % 2]
"#;

fn on_two_mounts(program: &str) {
    let mut place = Place::new();
    place.up(&["--servers", "2", "--chunk-size", "64K"]);
    let (one, two) = (place.mount(), place.mount());
    let program: String = program.trim_start_matches('\n').lines().map(|line| format!("    {line}\n")).collect();
    python(&format!("{ROUNDS}{program}"), &[&one, &two]);
}

#[test]
fn attributes_that_another_mount_has_changed_show_at_once() {
    on_two_mounts(
        r#"
make(f'{here}/f', b'x' * number)
assert size(f'{there}/f') == number, number
os.chmod(f'{here}/f', 0o600)
assert mode(f'{there}/f') == 0o600, number
os.chmod(f'{here}/f', 0o644)
assert mode(f'{there}/f') == 0o644, number
with open(f'{here}/f', 'ab') as file:
    file.write(b'12345')
assert size(f'{there}/f') == number + 5, number
os.truncate(f'{here}/f', 100_000)
assert size(f'{there}/f') == 100_000, number
os.utime(f'{here}/f', (number, number))
assert os.stat(f'{there}/f').st_mtime == number, number
os.link(f'{here}/f', f'{here}/g')
assert os.stat(f'{there}/f').st_nlink == 2, number
os.unlink(f'{here}/f')
assert os.stat(f'{there}/g').st_nlink == 1, number
assert name(os.stat, f'{there}/f') == 'ENOENT', number
os.unlink(f'{there}/g')
"#,
    );
}

/// A mount answers itself that a file has no extended attributes, until another one gives it some.
#[test]
fn extended_attributes_that_another_mount_has_changed_show_at_once() {
    on_two_mounts(
        r#"
make(f'{here}/f', b'x')
acl = lambda perm: struct.pack('<I', 2) + b''.join(
    struct.pack('<HHI', tag, bits, who)
    for tag, bits, who in [(1, 6, 2**32 - 1), (2, perm, 1001), (4, 0, 2**32 - 1), (16, 7, 2**32 - 1), (32, 0, 2**32 - 1)])
ACCESS = 'system.posix_acl_access'
for round in range(3):
    for side in mounts:
        assert size(f'{side}/f') == 1 and os.listxattr(f'{side}/f') == [], (number, round)
        assert name(os.getxattr, f'{side}/f', 'user.a') == name(os.getxattr, f'{side}/f', ACCESS) == 'ENODATA', number
    os.setxattr(f'{here}/f', 'user.a', b'%d' % round)
    for side in [there, here]:
        assert os.listxattr(f'{side}/f') == ['user.a'] and os.getxattr(f'{side}/f', 'user.a') == b'%d' % round, number
    os.removexattr(f'{there}/f', 'user.a')
    for side in [here, there]:
        assert os.listxattr(f'{side}/f') == [] and name(os.getxattr, f'{side}/f', 'user.a') == 'ENODATA', number
    os.setxattr(f'{there}/f', ACCESS, acl(round))
    for side in [here, there]:
        assert os.getxattr(f'{side}/f', ACCESS) == acl(round), number
    os.removexattr(f'{here}/f', ACCESS)
os.unlink(f'{there}/f')
"#,
    );
}

#[test]
fn names_that_another_mount_has_changed_show_at_once() {
    on_two_mounts(
        r#"
make(f'{here}/a', b'old')
assert size(f'{there}/a') == 3 and os.listdir(there) == ['a'], number
os.rename(f'{here}/a', f'{here}/b')
assert name(os.stat, f'{there}/a') == 'ENOENT', number
assert size(f'{there}/b') == 3 and os.listdir(there) == ['b'], number
assert name(open, f'{there}/a') == 'ENOENT', number
make(f'{here}/c', b'newer')
assert size(f'{there}/b') == 3 and size(f'{there}/c') == 5, number
os.rename(f'{here}/c', f'{here}/b')
assert size(f'{there}/b') == 5 and name(os.stat, f'{there}/c') == 'ENOENT', number
assert data(f'{there}/b') == b'newer', number
os.rename(f'{there}/b', f'{there}/a')
assert size(f'{here}/a') == 5 and name(os.stat, f'{here}/b') == 'ENOENT', number
os.unlink(f'{here}/a')
assert name(os.stat, f'{there}/a') == 'ENOENT' and os.listdir(there) == [], number
make(f'{here}/a', b'1')
make(f'{here}/b', b'22')
assert size(f'{there}/a') == 1 and size(f'{there}/b') == 2, number
swap(f'{here}/a', f'{here}/b')
assert size(f'{there}/a') == 2 and size(f'{there}/b') == 1, number
assert size(f'{here}/a') == 2 and size(f'{here}/b') == 1, number
swap(f'{there}/a', f'{there}/b')
assert size(f'{here}/a') == 1 and size(f'{here}/b') == 2, number
assert size(f'{there}/a') == 1 and size(f'{there}/b') == 2, number
os.unlink(f'{there}/a')
os.unlink(f'{there}/b')
# Of two names of one file, the one that goes; and files that are listed with their attributes.
for file in range(5):
    make(f'{here}/{file}', b'1' * file)
assert sorted(entry.stat().st_size for entry in os.scandir(there)) == [0, 1, 2, 3, 4], number
os.link(f'{here}/1', f'{here}/one')
assert size(f'{there}/1') == size(f'{there}/one') == 1, number
os.rename(f'{here}/1', f'{here}/5')
assert size(f'{there}/one') == size(f'{there}/5') == 1, number
assert name(os.stat, f'{there}/1') == 'ENOENT', number
os.rename(f'{here}/one', f'{here}/2')
for file in ['0', '2', '3', '4', '5']:
    os.unlink(f'{here}/{file}')
    assert name(os.stat, f'{there}/{file}') == 'ENOENT', (number, file)
"#,
    );
}

/// Mode, times, extended attributes and one more name were given to the file that had gone elsewhere.
#[test]
fn nothing_is_done_to_a_file_by_a_name_that_it_has_lost() {
    on_two_mounts(
        r#"
calls = [
    lambda path: os.chmod(path, 0o600),
    lambda path: os.chown(path, 5, 5),
    lambda path: os.utime(path, (5, 5)),
    lambda path: os.truncate(path, 1),
    lambda path: os.setxattr(path, 'user.x', b'1'),
    lambda path: os.setxattr(path, 'trusted.x', b'1'),
    lambda path: os.removexattr(path, 'trusted.y'),
    lambda path: os.getxattr(path, 'trusted.y'),
    lambda path: os.listxattr(path),
    lambda path: os.link(path, f'{there}/link'),
    lambda path: os.open(path, os.O_RDONLY),
]
call = calls[number // 2 % len(calls)]
make(f'{here}/old', b'text')
os.setxattr(f'{here}/old', 'trusted.y', b'2')
assert size(f'{there}/old') == 4, number
before = os.stat(f'{here}/old')
os.rename(f'{here}/old', f'{here}/new')
told = name(call, f'{there}/old')
assert told == 'ENOENT', (number, told)
after = os.stat(f'{here}/new')
assert (after.st_mode, after.st_uid, after.st_mtime, after.st_size) == (before.st_mode, 0, before.st_mtime, 4), number
assert after.st_nlink == 1 and os.listxattr(f'{here}/new') == ['trusted.y'], number
# By the new one it is.
assert name(call, f'{there}/new') == 'success', number
for entry in os.listdir(here):
    os.unlink(f'{here}/{entry}')
"#,
    );
}

/// What a symbolic link led to is in the kernel's pages, and it never asks again for as long as it has the name.
#[test]
fn a_symbolic_link_that_another_mount_has_replaced_leads_elsewhere_at_once() {
    on_two_mounts(
        r#"
make(f'{here}/one', b'1')
make(f'{here}/two', b'22')
os.symlink('one', f'{here}/link')
assert os.readlink(f'{there}/link') == 'one' and data(f'{there}/link') == b'1' and size(f'{there}/link') == 1, number
os.symlink('two', f'{here}/other')
os.rename(f'{here}/other', f'{here}/link')
assert os.readlink(f'{there}/link') == 'two' and data(f'{there}/link') == b'22' and size(f'{there}/link') == 2, number
os.symlink('one', f'{here}/other')
assert os.readlink(f'{there}/other') == 'one' and os.readlink(f'{there}/link') == 'two', number
swap(f'{here}/other', f'{here}/link')
assert size(f'{there}/link') == 1 and os.readlink(f'{there}/other') == 'two', number
os.rename(f'{here}/other', f'{here}/away')
assert name(os.readlink, f'{there}/other') == 'ENOENT' and name(open, f'{there}/other') == 'ENOENT', number
os.unlink(f'{here}/link')
assert name(os.readlink, f'{there}/link') == 'ENOENT' and name(os.stat, f'{there}/link') == 'ENOENT', number
for entry in os.listdir(here):
    os.unlink(f'{here}/{entry}')
"#,
    );
}

/// As programs do that write a new file and give it the name of the old one: who opens it meanwhile gets one of the two. The kernel looks a
/// second time only, and one replacement in twenty made an open fail.
#[test]
fn a_file_that_another_mount_replaces_again_and_again_can_be_opened_at_any_moment() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let (one, two) = (place.mount(), place.mount());
    let program = r#"
import multiprocessing, time
one, two = sys.argv[1:]
REPLACED, READERS = 300, [one, one, two]
fork = multiprocessing.get_context('fork')
over, counts = fork.Event(), fork.Queue()
make(f'{two}/f', b'0000')
def replace(number):
    for round in range(REPLACED):
        make(f'{two}/new{number}', b'%04d' % round)
        os.rename(f'{two}/new{number}', f'{two}/f')
def read(mount):
    opened, failed = 0, []
    while not over.is_set():
        for flags in [os.O_RDONLY, os.O_RDWR, os.O_RDONLY | os.O_DIRECT, os.O_WRONLY | os.O_APPEND]:
            try:
                file = os.open(f'{mount}/f', flags)
                opened += 1
                if flags == os.O_RDONLY:
                    assert len(os.read(file, 100)) == 4
                os.close(file)
            except OSError as error:
                failed.append(errno.errorcode[error.errno])
    counts.put((mount, opened, failed))
readers = [fork.Process(target=read, args=[mount]) for mount in READERS]
writers = [fork.Process(target=replace, args=[number]) for number in range(2)]
for process in readers + writers:
    process.start()
for process in writers:
    process.join()
    assert process.exitcode == 0
over.set()
for _ in readers:
    mount, opened, failed = counts.get(timeout=60)
    # Through the mount that replaces the file an open waits for the replacement that is under way.
    assert opened > (REPLACED if mount == one else 10) and failed == [], (mount, opened, len(failed), failed[:10])
"#;
    python(program, &[&one, &two]);
}

#[test]
fn bytes_that_another_mount_has_written_show_in_files_that_are_open() {
    on_two_mounts(
        r#"
make(f'{here}/f', b'0' * 1000)
kept = os.open(f'{there}/f', os.O_RDONLY)
assert os.pread(kept, 2000, 0) == b'0' * 1000, number
writer = os.open(f'{here}/f', os.O_RDWR)
for text in [b'1' * 1000, b'2' * 1000, b'3' * 3000]:
    os.pwrite(writer, text, 0)
    assert os.pread(kept, 5000, 0) == text, number
    assert os.fstat(kept).st_size == len(text), number
os.pwrite(writer, b'far', 200_000)
assert os.pread(kept, 10, 200_000) == b'far', number
os.ftruncate(writer, 10)
assert os.pread(kept, 5000, 0) == b'3' * 10, number
assert mmap.mmap(kept, 10, prot=mmap.PROT_READ)[:] == b'3' * 10, number
os.close(writer)
os.close(kept)
with open(f'{there}/f', 'rb') as file:
    assert file.read() == b'3' * 10, number
os.unlink(f'{here}/f')
"#,
    );
}

/// A volume and a mount with a file of zeros.
fn with_file(bytes: usize) -> (Place, PathBuf) {
    let mut place = Place::new();
    place.up(&["--servers", "1"]);
    let one = place.mount();
    std::fs::write(one.join("f"), vec![0; bytes]).expect("a file");
    (place, one)
}

/// Several threads read a file through one mount while another mount writes it. The kernel drops old pages in the call
/// of the first thread that asks for attributes; the other threads must not read these pages meanwhile.
#[test]
fn readers_of_one_mount_see_every_write_of_another_one() {
    const WRITES: u64 = 3000;
    const READERS: usize = 4;
    let (mut place, one) = with_file(8192);
    let two = place.mount();
    let acknowledged = AtomicU64::new(0);
    let old = Mutex::new(Vec::new());
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let file = File::open(two.join("f")).expect("the file");
            let (acknowledged, old, reads) = (&acknowledged, &old, &reads);
            scope.spawn(move || {
                let place = if reader % 2 == 0 { 16 } else { 4100 };
                let mut bytes = [0; 8];
                loop {
                    let before = acknowledged.load(Ordering::SeqCst);
                    if reader == READERS - 1 {
                        file.metadata().expect("attributes");
                    }
                    file.read_exact_at(&mut bytes, place).expect("the file is read");
                    let seen = u64::from_le_bytes(bytes);
                    if seen < before {
                        old.lock().expect("no thread panics with it").push((reader, before, seen));
                    }
                    reads.fetch_add(1, Ordering::SeqCst);
                    if before == WRITES {
                        return;
                    }
                }
            });
        }
        let file = File::options().write(true).open(one.join("f")).expect("the file");
        for number in 1..=WRITES {
            for place in [16, 4100] {
                file.write_all_at(&number.to_le_bytes(), place).expect("the file is written");
            }
            acknowledged.store(number, Ordering::SeqCst);
        }
    });
    let old = old.into_inner().expect("no thread panics with it");
    let reads = reads.into_inner();
    assert!(reads > WRITES, "{reads} reads");
    assert!(
        old.is_empty(),
        "{} of {reads} reads saw old bytes (reader, written, read): {:?}",
        old.len(),
        &old[..old.len().min(5)]
    );
}

/// The kernel discards attributes if a write of the same mount has ended since it asked for them, and reads no further than
/// the length that it had.
#[test]
fn a_file_that_another_mount_lengthens_is_read_to_its_end_while_programs_of_this_one_write_it() {
    const APPENDS: u64 = 300;
    let (mut place, one) = with_file(10);
    let two = place.mount();
    let open = |dir: &Path| File::options().read(true).write(true).open(dir.join("f")).expect("the file");
    let (over, writes) = (AtomicU64::new(0), AtomicU64::new(0));
    let missed = std::thread::scope(|scope| {
        let writer = open(&two);
        let (over, writes) = (&over, &writes);
        scope.spawn(move || {
            while over.load(Ordering::SeqCst) == 0 {
                writer.write_all_at(b"1", 0).expect("the file is written");
                writes.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (lengthens, mut reader) = (open(&one), File::open(two.join("f")).expect("the file"));
        let missed = (0..APPENDS).filter(|number| {
            let end = 10 + 7 * number;
            lengthens.write_all_at(b"1234567", end).expect("the file is written");
            let mut bytes = [0; 7];
            let is_read = reader.read_exact_at(&mut bytes, end).is_ok() && bytes == *b"1234567";
            let is_found = reader.seek(SeekFrom::End(0)).expect("an end") == end + 7;
            !(is_read && is_found)
        });
        let missed = missed.count();
        over.store(1, Ordering::SeqCst);
        missed
    });
    assert!(writes.into_inner() > APPENDS, "a writer that does not write meanwhile shows nothing");
    assert_eq!(missed, 0, "of {APPENDS} times it was not whole");
}

/// Threads of a process that have not ended; it may still be there for its parent.
fn threads_of(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lives = |task: &std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        text.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
    };
    tasks.filter(lives).count()
}

/// The kernel drops pages in a call that no signal ends: that must not hold up the end of a mount.
#[test]
fn a_mount_that_is_killed_while_its_readers_see_changes_is_gone() {
    const ROUNDS: usize = 4;
    const READS: u64 = 300;
    let (mut place, one) = with_file(1 << 20);
    let file = File::options().write(true).open(one.join("f")).expect("the file");
    for _ in 0..ROUNDS {
        let two = place.mount();
        let pid = place.serving(&two);
        let (reads, is_over) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let file = File::open(two.join("f")).expect("the file");
                let reads = &reads;
                scope.spawn(move || {
                    let mut bytes = vec![0; 64 << 10];
                    let places = (0..16).cycle().skip(4 * reader);
                    // Until there is no mount any more.
                    for place in places {
                        if file.read_exact_at(&mut bytes, place << 16).is_err() {
                            return;
                        }
                        reads.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            scope.spawn(|| {
                for number in (0u64..).take_while(|_| is_over.load(Ordering::SeqCst) == 0) {
                    file.write_all_at(&number.to_le_bytes(), 16).expect("the file is written");
                }
            });
            wait_until("the readers are in the middle of it", || reads.load(Ordering::SeqCst) > READS);
            // SAFETY: no memory is involved; the process was started by this test.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            wait_until("the mount's process has ended", || threads_of(pid) == 0);
            is_over.store(1, Ordering::SeqCst);
        });
        let error = std::fs::metadata(two.join("f")).expect_err("the mount is gone");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
        // Tests of this process that start a program at this moment give it the readers' files until it runs.
        wait_until("the mount is not in use", || place.aze(&["umount", &two.display().to_string()]).code == 0);
    }
}

#[test]
fn a_stopped_mount_holds_a_change_up_for_a_moment_and_shows_nothing_old() {
    let mut place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let (one, two) = (place.mount(), place.mount());
    let ran = place.aze(&["status", "--name", &volume, "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&ran.out).expect("status is JSON");
    let mounts = status["mounts"].as_array().expect("mounts");
    let stopped = mounts.iter().find(|mount| mount["dir"].as_str() == two.to_str()).expect("the second mount");
    let pid = stopped["process"]["pid"].to_string();
    let program = r#"
import select, signal
one, two, pid = sys.argv[1], sys.argv[2], int(os.path.basename(sys.argv[3]))
def size(path):
    return os.stat(path).st_size
for number in range(3):
    here, there = f'{one}/f{number}', f'{two}/f{number}'
    make(here, b'old')
    assert size(there) == size(there) == 3
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with open(here, 'ab') as file:
            file.write(b'er')
        took = time.monotonic() - began
        looker = subprocess.Popen(['stat', '-c', '%s', there], stdout=subprocess.PIPE)
        # It waits for the mount, or knows.
        select.select([looker.stdout], [], [], 0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    shown = looker.communicate()[0]
    assert shown == b'5\n', shown
    assert took < 3, took
    os.chmod(there, 0o600)
    assert os.stat(here).st_mode & 0o777 == 0o600
"#;
    python(program, &[&one, &two, Path::new(&pid)]);
}
