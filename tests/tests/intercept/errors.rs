//! Calls that the kernel refuses or cuts: a program finds the same in the volume and on the local file system.

use super::{SYMBOLS, through, volume};
use aze_tests::{Ran, run};
use std::fs;
use std::process::Command;

/// What each program begins with. `say` shows what a call comes to; `call` makes one by its number.
const BEGIN: &str = r"
import ctypes, errno, fcntl, mmap, os, resource, signal, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def say(what, act):
    try:
        print(what, act(), flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
def call(number, *args):
    words = [a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in args]
    done = libc.syscall(ctypes.c_long(number), *words)
    if done < 0: raise OSError(ctypes.get_errno(), '')
    return done
def make(name, bytes=10):
    with open(name, 'wb') as file: file.write(b'x' * bytes)
AT_FDCWD = -100
os.chdir(sys.argv[1])
make('u')
";

/// Runs a program in an empty directory of the volume and in one of the local file system.
pub fn says_the_same(test: &str, text: &str) {
    let Some((place, _)) = volume(test) else { return };
    let (local, program) = (place.path("local"), place.path("program.py"));
    fs::create_dir(&local).expect("a directory");
    fs::write(&program, format!("{BEGIN}{text}")).expect("a program");
    let ran = Command::new("python3").arg(&program).arg(&local).output().expect("python3");
    let here = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && here.lines().count() > 1, "{here}");
    let script = format!("mkdir /aze/d && python3 {} /aze/d", program.display());
    let ran = place.aze(&through("intercept", &script));
    let there = format!("{}{}", ran.out, ran.err);
    let differ: Vec<_> = here.lines().zip(there.lines()).filter(|(here, there)| here != there).collect();
    assert!(differ.is_empty(), "locally, and in the volume: {differ:#?}");
    assert_eq!(here, there);
}

/// `unlinkat` with an unknown flag removed the file, `linkat` made a link, `utimensat` set the times; `dup3` and `close_range` freed locks.
#[test]
fn flags_that_the_kernel_does_not_know_are_refused_before_anything_happens() {
    says_the_same(
        "flags_that_the_kernel_does_not_know_are_refused_before_anything_happens",
        r"
os.utime('u', (1, 1))
fd, d = os.open('u', os.O_RDWR), os.open('.', os.O_RDONLY)
buffer, times = ctypes.create_string_buffer(4096), struct.pack('4q', 5, 0, 5, 0)
for flags in (1, 0x55, 1 << 20): say(f'unlinkat {flags}', lambda: call(263, AT_FDCWD, b'u', flags))
for flags in (0x55, 0x100): say(f'linkat {flags}', lambda: call(265, d, b'u', d, b'l', flags))
for flags in (3, 8, 0x80): say(f'renameat2 {flags}', lambda: call(316, d, b'u', d, b'm', flags))
for path in (b'u', 0):
    for flags in (0x55, 0x400): say(f'utimensat {path} {flags}', lambda: call(280, fd if path == 0 else d, path, times, flags))
say('utimensat 0 0x1000', lambda: call(280, fd, 0, times, 0x1000))
say('fchownat', lambda: call(260, d, b'u', 1, 1, 0x55))
say('faccessat2', lambda: call(439, d, b'u', 0, 0x400))
say('faccessat2 mode', lambda: call(439, d, b'u', 8, 0))
say('newfstatat', lambda: call(262, d, b'u', buffer, 0x55))
for flags, mask in ((0x55, 0xfff), (0x6000, 0xfff), (0, 0x80000000)): say('statx', lambda: call(332, d, b'u', flags, mask, buffer))
say('readlinkat', lambda: call(267, d, b'u', buffer, -1))
for flags, mode, rules, more in ((1 << 40, 0, 0, 0), (0, 0o600, 0, 0), (0, 0, 1 << 20, 0), (64, 0o10600, 0, 0), (0x200002, 0, 0, 0), (64, 0o600, 0, 1)):
    how = struct.pack('4Q', flags, mode, rules, more)
    say(f'openat2 {flags} {mode} {rules} {more}', lambda: call(437, d, b'n', how, 32))
say('fadvise advice', lambda: call(221, fd, 0, 0, 99))
say('fadvise length', lambda: call(221, fd, 0, -1, 0))
for at, count, flags in ((0, 1, 99), (-1, 1, 0), (1, -1, 0), (0, 0, 7)): say('sync_file_range', lambda: call(277, fd, at, count, flags))
for mode in (2, 1 << 20, 0x12): say(f'fallocate {mode}', lambda: call(285, fd, mode, 0, 4096))
part = ctypes.create_string_buffer(struct.pack('2Q', ctypes.addressof(buffer), 1))
for number in (327, 328): say(f'vector {number}', lambda: call(number, fd, part, 1, 0, 0, 1 << 20))
say('copy_file_range', lambda: call(326, fd, 0, fd, 0, 1, 1))
fcntl.lockf(fd, fcntl.LOCK_EX)
copy, pipe = os.open('u', os.O_RDWR), os.pipe()
say('dup3', lambda: call(292, pipe[0], copy, 1))
say('close_range', lambda: call(436, copy, copy, 1))
if os.fork() == 0:
    say('lock', lambda: fcntl.lockf(os.open('u', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB))
    os._exit(0)
os.wait()
found = os.stat('u')
print(sorted(os.listdir('.')), found.st_size, found.st_nlink, found.st_mtime)
",
    );
}

/// `fchmod` and the like changed the file of a descriptor that was opened with `O_PATH`.
#[test]
fn a_descriptor_of_o_path_is_no_open_file() {
    says_the_same(
        "a_descriptor_of_o_path_is_no_open_file",
        r"
os.utime('u', (1, 1)); os.chmod('u', 0o640)
def look(name, f):
    buffer, times = ctypes.create_string_buffer(4096), struct.pack('4q', 5, 0, 5, 0)
    calls = {
        'fchmod': (91, f, 0o777), 'fchown': (93, f, 1, 1), 'futimens': (280, f, 0, times, 0), 'futimesat': (261, f, 0, 0),
        'fsetxattr': (190, f, b'user.a', b'x', 1, 0), 'fgetxattr': (193, f, b'user.a', buffer, 9), 'flistxattr': (196, f, buffer, 99),
        'fremovexattr': (199, f, b'user.a'), 'read': (0, f, buffer, 1), 'write': (1, f, buffer, 1), 'lseek': (8, f, 0, 0),
        'ftruncate': (77, f, 0), 'fsync': (74, f), 'fdatasync': (75, f), 'syncfs': (306, f), 'fallocate': (285, f, 0, 0, 1),
        'fadvise': (221, f, 0, 0, 0), 'readahead': (187, f, 0, 10), 'sync_file_range': (277, f, 0, 1, 0), 'flock': (73, f, 2),
        'getdents': (217, f, buffer, 4096), 'FIONREAD': (16, f, 0x541b, buffer), 'FIOCLEX': (16, f, 0x5451),
        'F_SETFL': (72, f, 4, 0o2000), 'F_GETFL': (72, f, 3), 'F_GETFD': (72, f, 1), 'F_GETOWN': (72, f, 9), 'F_GETLEASE': (72, f, 1025),
        'F_SETLK': (72, f, 6, struct.pack('hhqqi', 1, 0, 0, 0, 0)), 'F_OFD_SETLK': (72, f, 37, struct.pack('hhqqi', 1, 0, 0, 0, 0)),
        'sendfile': (40, f, os.open('u', os.O_RDONLY), 0, 1), 'copy_file_range': (326, f, 0, os.open('u', os.O_RDWR), 0, 1, 0),
        'mmap': (9, 0, 4096, 1, 2, f, 0),
    }
    for what, args in calls.items():
        say(f'{name} {what}', lambda: call(*args) if not what.startswith('F_GETF') else call(*args) & 0o2010001)
def both(name, f):
    look(name, f)
    look(name + ' copied', os.dup(f))
    if os.fork() == 0:
        look(name + ' of a child', f)
        os._exit(0)
    print(os.wait()[1])
both('file', os.open('u', os.O_PATH))
both('directory', os.open('.', os.O_PATH))
print(sorted(os.listdir('.')), oct(os.stat('u').st_mode), os.stat('u').st_uid, os.stat('u').st_mtime, os.listxattr('u'))
# What it serves for.
d, f = os.open('.', os.O_PATH), os.open('u', os.O_PATH)
print(os.fstat(f).st_size, os.stat('u', dir_fd=d).st_size, os.fchdir(d), os.read(os.open('u', os.O_RDONLY, dir_fd=d), 3))
say('fchownat', lambda: call(260, f, b'', 7, 8, 0x1000))
say('utimensat', lambda: call(280, f, b'', struct.pack('4q', 5, 0, 6, 0), 0x1000))
say('linkat', lambda: call(265, f, b'', d, b'l', 0x1000))
print(sorted(os.listdir('.')), os.stat('u').st_uid, os.stat('u').st_mtime)
",
    );
}

/// io_setup(2) succeeded, and io_submit(2) failed with EBADF. libaio makes system calls of its own.
#[test]
fn linux_aio_is_refused_before_a_program_relies_on_it() {
    let Some((place, _)) = volume("linux_aio_is_refused_before_a_program_relies_on_it") else { return };
    let (program, library, source) = (place.path("asks"), place.path("libasks.so"), place.path("asks.c"));
    fs::write(
        &source,
        r#"
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int io_setup(unsigned int events, void **context);
#ifdef LIBRARY
int io_setup(unsigned int events, void **context) { (void)events, (void)context; return 0; }
#else
int main(void) {
    void *context = 0;
    long made = syscall(SYS_io_setup, 4, &context);
    return printf("%d %d\n", made < 0 ? errno : 0, -io_setup(4, &context)) < 0;
}
#endif
"#,
    )
    .expect("a program");
    let cc = || {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror"]).arg(&source);
        cc
    };
    run(cc().args(["-shared", "-fPIC", "-DLIBRARY", "-o"]).arg(&library));
    run(cc().arg("-o").arg(&program).arg(&library));
    for way in [("AZE_INTERCEPT", ""), SYMBOLS] {
        let mut command = place.command(&through("intercept", program.to_str().expect("UTF-8")));
        let ran: Ran = command.env(way.0, way.1).output().expect("it starts").into();
        assert_eq!(ran.ok().out, format!("{0} {0}\n", libc::ENOSYS), "{way:?}");
    }
}

/// `ulimit -f` was ignored.
#[test]
fn the_limit_on_the_length_of_files_holds() {
    says_the_same(
        "the_limit_on_the_length_of_files_holds",
        r"
import subprocess, threading
came = []
signal.signal(signal.SIGXFSZ, lambda *_: came.append(threading.get_native_id() == os.getpid()))
make('other', 3000)
fd, source = os.open('f', os.O_RDWR | os.O_CREAT), os.open('other', os.O_RDONLY)
more = os.open('f', os.O_WRONLY | os.O_APPEND)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
def limited(what, act):
    say(what, act)
    print(came, os.fstat(fd).st_size, os.lseek(fd, 0, 1))
    came.clear()
x = b'x' * 3000
limited('write', lambda: os.write(fd, x[:900]))
for _ in range(2): limited('write over it', lambda: os.write(fd, x[:300]))
limited('nothing', lambda: os.write(fd, b''))
limited('pwrite', lambda: os.pwrite(fd, x[:10], 995))
limited('pwrite beyond', lambda: os.pwrite(fd, x[:10], 5000))
os.lseek(fd, 990, 0)
for _ in range(2): limited('writev', lambda: os.writev(fd, [x[:5], x[:50]]))
limited('pwritev', lambda: os.pwritev(fd, [x[:5], x[:50]], 998))
limited('read only', lambda: os.write(source, x))
limited('ftruncate to it', lambda: os.ftruncate(fd, 1000))
limited('ftruncate', lambda: os.ftruncate(fd, 1001))
limited('ftruncate, read only', lambda: os.ftruncate(source, 5001))
limited('truncate', lambda: os.truncate('f', 2000))
limited('truncate, nothing there', lambda: os.truncate('none', 2000))
limited('a long file made shorter', lambda: os.truncate('other', 2500))
for mode in (0, 1, 0x10, 0x11): limited(f'fallocate {mode}', lambda: call(285, fd, mode, 0, 2000))
limited('copy_file_range', lambda: os.copy_file_range(source, fd, 100, 0, 990))
limited('copy_file_range beyond', lambda: os.copy_file_range(source, fd, 100, 0, 1000))
os.lseek(fd, 995, 0)
for _ in range(2): limited('sendfile', lambda: os.sendfile(fd, source, 0, 100))
os.ftruncate(fd, 990)
for at in (None, 3, 3): limited('append', lambda: os.write(more, x[:6]) if at is None else os.pwrite(more, x[:6], at))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
print(subprocess.run(['bash', '-c', 'ulimit -c 0 -f 1; head -c 100000 /dev/zero > lim'], stderr=subprocess.DEVNULL).returncode, os.stat('lim').st_size)
for act in (lambda: os.write(more, x), lambda: os.truncate('f', 1001)):
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        act()
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
",
    );
}

/// A symbolic link to a directory was renamed by its name with a slash.
#[test]
fn a_slash_at_the_end_of_a_name_asks_for_a_directory() {
    says_the_same(
        "a_slash_at_the_end_of_a_name_asks_for_a_directory",
        r"
os.mkdir('d'); os.mkdir('e'); os.symlink('d', 's'); os.symlink('none', 'dangling'); os.symlink('/etc', 'out')
os.symlink('u', 'to_file')
names = ('u', 'd', 's', 'dangling', 'out', 'to_file', 'none')
for name in names:
    path = name + '/'
    say('unlink ' + path, lambda: os.unlink(path))
    say('rename to ' + path, lambda: os.rename('u', path))
    if name != 'd':
        say('rename ' + path, lambda: os.rename(path, 'new'))
        say('rename both ' + path, lambda: os.rename(path, 'new/'))
        say('rmdir ' + path, lambda: os.rmdir(path))
    if name != 'none': say('mkdir ' + path, lambda: os.mkdir(path))
    if name != 'out': say('link ' + path, lambda: os.link(path, 'new'))
    say('stat ' + path, lambda: os.stat(path) and 'there')
    say('lstat ' + path, lambda: os.lstat(path) and 'there')
    say('readlink ' + path, lambda: os.readlink(path))
    say('open ' + path, lambda: os.open(path, os.O_RDONLY) and 'opened')
    say('truncate ' + path, lambda: os.truncate(path, 1))
    print(sorted(os.listdir('.')))
say('rename', lambda: os.rename('d/', 'f/'))
say('rename over', lambda: os.rename('f/', 'e'))
say('rmdir', lambda: os.rmdir('e/'))
print(sorted(os.listdir('.')))
",
    );
}

/// A copy within one file was EINVAL because of bytes behind its end.
#[test]
fn copies_between_descriptors_are_cut_and_refused_as_by_the_kernel() {
    says_the_same(
        "copies_between_descriptors_are_cut_and_refused_as_by_the_kernel",
        r"
make('f', 3000); make('e', 0)
f, d, only, empty = os.open('f', os.O_RDWR), os.open('.', os.O_RDONLY), os.open('f', os.O_RDONLY), os.open('e', os.O_RDWR)
more, to, pipe = os.open('e', os.O_WRONLY | os.O_APPEND), os.open('e', os.O_WRONLY), os.pipe()
def look(): print(os.fstat(f).st_size, os.lseek(f, 0, 1), os.fstat(empty).st_size, os.lseek(empty, 0, 1))
for at, target, count in ((0, 3000, 1 << 20), (0, 100, 200), (5999, 0, 500), (6000, 6000, 10), (9000, 0, 10), (0, 0, 0), (100, 100, 5)):
    say(f'within {at} {target} {count}', lambda: os.copy_file_range(f, f, count, at, target))
    look()
os.lseek(f, 0, 2)
say('one position, at the end', lambda: os.copy_file_range(f, f, 10))
os.lseek(f, 0, 0)
say('one position', lambda: os.copy_file_range(f, f, 10))
say('by another descriptor', lambda: os.copy_file_range(only, f, 1 << 20, 0, 6000))
look()
ends = {'itself': f, 'closed': 99, 'read only': only, 'directory': d, 'append': more, 'write only': to, 'empty': empty}
for name, end in ends.items():
    say('to ' + name, lambda: os.copy_file_range(only, end, 10, 0, 20000))
    say('from ' + name, lambda: os.copy_file_range(end, empty, 10, 0, 20000))
    for count in (10, 0):
        os.lseek(only, 0, 0)
        say(f'sendfile to {name} {count}', lambda: os.sendfile(end, only, None, count))
        os.lseek(only, 0, 2)
        say(f'sendfile of nothing to {name} {count}', lambda: os.sendfile(end, only, None, count))
    say('sendfile from ' + name, lambda: os.sendfile(pipe[1], end, 0, 10))
    look()
say('sendfile to a reading end', lambda: os.sendfile(pipe[0], f, 0, 10))
say('sendfile at -1', lambda: os.sendfile(empty, f, -1, 10))
",
    );
}

/// Each of these had another errno.
#[test]
fn errors_have_the_number_that_the_kernel_gives() {
    says_the_same(
        "errors_have_the_number_that_the_kernel_gives",
        r"
os.mkdir('d'); os.mkdir('d/e'); make('d/f')
say('open . missing', lambda: os.open('none/.', os.O_RDWR | os.O_CREAT))
say('open .', lambda: os.open('d/.', os.O_RDWR | os.O_CREAT))
say('open /. of a file', lambda: os.open('u/.', os.O_RDWR | os.O_CREAT))
say('make a directory', lambda: os.open('new', os.O_RDWR | os.O_CREAT | os.O_DIRECTORY))
for path in ('none/.', 'none/..', 'd/.', 'd/e/..', 'u/.'):
    say('rename ' + path, lambda: os.rename(path, 'new'))
    say('rename to ' + path, lambda: os.rename('d', path))
    say('link to ' + path, lambda: os.link('u', path))
    say('symlink at ' + path, lambda: os.symlink('x', path))
for path in ('u', 'd/e', 'none/x', 'u/x', 'new', 'new/', 'u/', 'd/', '.'):
    say('link a directory ' + path, lambda: os.link('d', path))
    if path != 'new':
        say('symlink ' + path, lambda: os.symlink('x', path))
        say('link ' + path, lambda: os.link('u', path))
wrong = struct.pack('4q', 0, 2000000000, 0, 0)
for name in (b'none', b'u', b'd'):
    say(f'utimensat {name}', lambda: call(280, AT_FDCWD, name, wrong, 0))
say('futimens', lambda: call(280, os.open('u', os.O_RDONLY), 0, wrong, 0))
say('utimensat of nothing', lambda: call(280, AT_FDCWD, b'none', struct.pack('4q', 0, 0x3ffffffe, 0, 0x3ffffffe), 0))
w, r, d = os.open('u', os.O_WRONLY), os.open('u', os.O_RDONLY), os.open('d', os.O_RDONLY)
for name, fd in (('write only', w), ('directory', d), ('closed', 99)):
    for flags in (1, 2):
        for right in (1, 2): say(f'mmap {name} {flags} {right}', lambda: call(9, 0, 4096, right, flags, fd, 0))
for mode in (0, 1, 2, 8, 1 << 20): say(f'fallocate {mode}', lambda: call(285, r, mode, 0, 10))
last, rw = (1 << 63) - 1, os.open('u', os.O_RDWR)
for fd in (r, rw):
    for at in (last, last - 1):
        for count in (0, 1, 2): say(f'pread {at} {count}', lambda: os.pread(fd, count, at))
say('pwrite', lambda: os.pwrite(rw, b'xy', last))
say('pwrite, read only', lambda: os.pwrite(r, b'xy', last))
for name, flags in (('user.', 0), ('user.a', 3), ('user.a', 0), ('user.a', 3), ('user.a', 1), ('user.b', 2), ('user.a', 4)):
    say(f'setxattr {name} {flags}', lambda: os.setxattr('u', name, b'x', flags))
say('setxattr of nothing', lambda: os.setxattr('none', 'user.', b'x'))
print(sorted(os.listdir('.')), sorted(os.listdir('d')), os.stat('u').st_size, os.listxattr('u'))
",
    );
}

/// A file that is renamed onto a directory above it was refused with EISDIR.
#[test]
fn a_rename_onto_a_directory_above_says_that_it_is_not_empty() {
    says_the_same(
        "a_rename_onto_a_directory_above_says_that_it_is_not_empty",
        r"
import shutil
def tree():
    shutil.rmtree('t', ignore_errors=True)
    os.makedirs('t/a/b/c'); os.makedirs('t/e'); make('t/a/b/f'); make('t/u'); os.symlink('x', 't/a/b/l'); os.symlink('..', 't/a/b/up')
def rename(source, target, flags):
    tree()
    say(f'{source} {target} {flags}', lambda: call(316, AT_FDCWD, b't/' + source.encode(), AT_FDCWD, b't/' + target.encode(), flags))
for source in ('a/b/f', 'a/b/l', 'a/b/c', 'a/b', 'a', 'a/b/none', 'a/b/up/b/f', 'u', 'e'):
    for target in ('a', 'a/b', 'a/b/c', 'a/.', 'a/', 'a/b/', 'a/b/up', 'e'): rename(source, target, 0)
    for target in ('a', 'a/b', 'a/'): rename(source, target, 1)
    for target in ('a', 'a/b', 'a/b/f'): rename(source, target, 2)
tree()
d = os.open('t/a/b', os.O_RDONLY)
for target in ('..', '../../a', '../../../t', 'c'): say(f'f {target}', lambda: os.rename('f', target, src_dir_fd=d, dst_dir_fd=d))
",
    );
}

/// `open` with an access mode of 3 was refused.
#[test]
fn an_access_mode_of_3_neither_reads_nor_writes() {
    says_the_same(
        "an_access_mode_of_3_neither_reads_nor_writes",
        r"
buffer = ctypes.create_string_buffer(4096)
def look(name, f):
    lock = lambda kind: struct.pack('hhqqi', kind, 0, 0, 0, 0)
    calls = {
        'read': (0, f, buffer, 1), 'write': (1, f, buffer, 1), 'pread': (17, f, buffer, 1, 0), 'pwrite': (18, f, buffer, 1, 0), 'lseek': (8, f, 3, 0),
        'read nothing': (0, f, buffer, 0), 'write nothing': (1, f, buffer, 0), 'readv': (19, f, struct.pack('2Q', ctypes.addressof(buffer), 1), 1),
        'fstat': (5, f, buffer), 'ftruncate': (77, f, 5), 'fsync': (74, f), 'fallocate': (285, f, 0, 0, 1), 'fadvise': (221, f, 0, 0, 0),
        'readahead': (187, f, 0, 10), 'sync_file_range': (277, f, 0, 1, 0), 'flock': (73, f, 2), 'getdents': (217, f, buffer, 4096),
        'FIONREAD': (16, f, 0x541b, buffer), 'TCGETS': (16, f, 0x5401, buffer), 'F_GETFL': (72, f, 3), 'F_SETFL': (72, f, 4, 0o2000),
        'F_GETFL of appending': (72, f, 3), 'a lock to read': (72, f, 6, lock(0)), 'a lock to write': (72, f, 6, lock(1)), 'no lock': (72, f, 6, lock(2)),
        'sendfile from': (40, os.open('u', os.O_RDWR), f, 0, 1), 'sendfile to': (40, f, os.open('u', os.O_RDONLY), 0, 1),
        'copy_file_range from': (326, f, 0, os.open('u', os.O_RDWR), 0, 1, 0), 'copy_file_range to': (326, os.open('u', os.O_RDWR), 0, f, 0, 1, 0),
        'fchmod': (91, f, 0o640), 'fsetxattr': (190, f, b'user.a', b'x', 1, 0), 'flistxattr': (196, f, buffer, 0), 'futimens': (280, f, 0, struct.pack('4q', 5, 0, 6, 0), 0),
    }
    for what, args in calls.items(): say(f'{name} {what}', lambda: call(*args))
    for rights in (0, 1, 2, 3):
        for kind in (1, 2): say(f'{name} mmap {rights} {kind}', lambda: call(9, 0, 4096, rights, kind, f, 0) > 0)
os.mkdir('d')
for name in ('u', 'none', 'd', '.', 'u/'):
    for flags in (0, os.O_CREAT, os.O_TRUNC, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_APPEND, os.O_PATH, os.O_CREAT | os.O_EXCL, os.O_TMPFILE):
        say(f'{name} {flags}', lambda: os.close(os.open(name, flags | 3)))
print(sorted(os.listdir('.')), os.stat('u').st_size)
make('u')
f = os.open('u', 3)
look('file', f)
look('copied', os.dup(f))
say('opened again', lambda: os.read(os.open(f'/proc/self/fd/{f}', os.O_RDONLY), 3))
say('again', lambda: os.read(os.open(f'/proc/self/fd/{f}', 3), 3))
if os.fork() == 0:
    say('of a child', lambda: os.read(f, 3))
    os._exit(0)
os.wait()
print(os.stat('u').st_size, os.stat('u').st_mtime)
",
    );
}

/// A count of 0 succeeded where the kernel refuses the descriptors, and an offset of -1 was the file's position.
#[test]
fn copies_of_nothing_are_refused_as_others_are() {
    says_the_same(
        "copies_of_nothing_are_refused_as_others_are",
        r"
make('v', 100)
r, w, rw, a, d, p = (os.open(*args) for args in (('u', 0), ('u', 1), ('v', 2), ('v', 2 | os.O_APPEND), ('.', 0), ('u', os.O_PATH)))
pipe = os.pipe()
local = os.open('/etc/passwd', os.O_RDONLY)
names = {r: 'r', w: 'w', rw: 'rw', a: 'a', d: 'd', p: 'p', pipe[0]: 'pipe', pipe[1]: 'pipe', 999: 'none'}
offsets = {'none': 0, '0': 0, '-1': -1, '5': 5, 'min': -(1 << 63), 'max': (1 << 63) - 1, 'end': 1 << 40}
def at(name): return 0 if name == 'none' else ctypes.create_string_buffer(struct.pack('q', offsets[name]), 8)
def sends(out, source, offset, count):
    # What takes all of it, or waits for another process, is no error.
    if count and offset in ('none', '0', '5') and (out == pipe[1] or source == pipe[0]): return
    place = at(offset)
    os.lseek(r, 0, 0); os.lseek(rw, 0, 0)
    say(f'sendfile {names[out]} {names[source]} {offset} {count}', lambda: call(40, out, source, place, count))
    if place: print(struct.unpack('q', place.raw))
def copies(source, offset, out, to, count):
    first, second = at(offset), at(to)
    os.lseek(r, 0, 0); os.lseek(rw, 0, 0)
    say(f'copy_file_range {names[source]} {offset} {names[out]} {to} {count}', lambda: call(326, source, first, out, second, count, 0))
files = (r, w, rw, a, d, p, 999)
for out in files + (pipe[1],):
    for source in files + (pipe[0],):
        for offset in offsets:
            for count in (0, 1): sends(out, source, offset, count)
for source in files + (pipe[0],):
    for out in files + (pipe[1],):
        for offset, to in (('none', 'none'), ('0', '-1'), ('-1', '0'), ('-1', '-1'), ('min', 'none'), ('none', 'max'), ('max', '5'), ('end', '5'), ('5', 'end')):
            for count in (0, 1): copies(source, offset, out, to, count)
print(os.stat('u').st_size, os.stat('v').st_size)
",
    );
}

/// Bytes that a program had stored behind the end of a file came into it when it grew.
#[test]
fn what_is_stored_behind_the_end_of_a_file_is_never_seen() {
    says_the_same(
        "what_is_stored_behind_the_end_of_a_file_is_never_seen",
        r"
class Memory:
    def __init__(self, fd, bytes):
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.at = libc.mmap(None, bytes, 3, 1, fd, 0)
        self.bytes = bytes
    def put(self, at, text): ctypes.memmove(self.at + at, text, len(text))
    def get(self, at, count): return ctypes.string_at(self.at + at, count)
    def sync(self): libc.msync(ctypes.c_void_p(self.at), ctypes.c_size_t(self.bytes), 4)
grows = {
    'cut': lambda fd: os.ftruncate(fd, 200), 'cut by name': lambda fd: os.truncate('f', 200), 'written': lambda fd: os.pwrite(fd, b'y', 199),
    'allocated': lambda fd: os.posix_fallocate(fd, 0, 200), 'cut over pages': lambda fd: os.ftruncate(fd, 5000),
    'written over pages': lambda fd: os.pwrite(fd, b'y', 4999), 'appended': lambda fd: os.write(os.open('f', os.O_WRONLY | os.O_APPEND), b'y' * 190),
    'shorter, and longer': lambda fd: (os.ftruncate(fd, 5), os.ftruncate(fd, 200)),
    'by another process': lambda fd: os.system('truncate -s 200 f'),
}
for name, grow in grows.items():
    for synced in (False, True):
        make('f')
        fd = os.open('f', os.O_RDWR)
        memory = Memory(fd, 4096)
        memory.put(100, b'hidden'); memory.put(3, b'seen'); memory.put(8, b'over')
        if synced: memory.sync()
        print(os.pread(fd, 10, 0), os.fstat(fd).st_size)
        grow(fd)
        print(name, synced, os.pread(fd, 5000, 0), os.fstat(fd).st_size, memory.get(0, 12), memory.get(100, 6))
        memory.put(100, b'now'); memory.sync()
        print(os.pread(fd, 6, 100))
        os.close(fd); os.unlink('f')
",
    );
}
