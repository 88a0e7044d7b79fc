//! Programs whose system calls are intercepted: each does through this door as through a mount, and nothing of theirs is left
//! when they end, however they end.

#[path = "intercept/directories.rs"]
mod directories;
#[path = "intercept/errors.rs"]
mod errors;
#[path = "intercept/gate.rs"]
mod gate;
#[path = "intercept/lookup.rs"]
mod lookup;
#[path = "intercept/mailbox.rs"]
mod mailbox;
#[path = "intercept/named_pipes.rs"]
mod named_pipes;
#[path = "intercept/reads.rs"]
mod reads;
#[path = "intercept/search.rs"]
mod search;

use aze_tests::{PATIENCE, Place, Ran, clib, leave_out, program, run, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Trees of processes that end, are stopped, or are killed; `make test-doors` has more of them.
const ROUNDS: usize = 20;

/// Loads of a library.
const LOADS: usize = 2000;

/// Scripts of bash, each in an empty directory of the volume, which is also `$D`. Through both doors they say the same.
const SCRIPTS: &[(&str, &str)] = &[
    ("cp, cat, cmp", "cp /etc/passwd a; cat a | cmp - /etc/passwd; cmp /etc/passwd < a; cp a b; cmp a b; ls"),
    ("ls -l, stat", "umask 027; echo text > f; mkdir d; stat -c '%n %s %a %F %h' f d; ls -l | cut -c 1-10"),
    ("dd, truncate", "dd if=/dev/zero of=d bs=64k count=4 status=none; truncate -s 1000 d; stat -c %s d; md5sum < d"),
    ("text tools", "sort -r /etc/passwd > s; wc -l < s; awk -F: '{n++} END {print n}' s; grep -c root s; sed -i s/root/toor/ s; \
      grep -c toor s; head -n 2 s; tail -n 2 s; tail -c 20 s"),
    ("pipes", "seq 1 3000 | tee t | sort -n | tail -n 1 > last; cat last; gzip -c t | gzip -dc | cmp - t && echo same"),
    ("exec 3<>", "echo -n abcdefghij > r; exec 3<>r; read -n 3 x <&3; echo -n XYZ >&3; exec 3>&-; cat r; echo \" $x\""),
    ("appending", "(echo a; sh -c 'echo b'; echo c) >> ap; (echo d; bash -c 'echo e') >> ap; cat ap"),
    ("here", "cat <<< one > h; { cat; echo two; } < h > i; cat i; while read -r line; do echo \"[$line]\"; done < i"),
    ("a shared position", "printf '1\\n2\\n3\\n' > n; (read a; sh -c 'read b; echo b=$b'; read c; echo $a $c) < n"),
    ("directories", "mkdir -p a/b; cd a; /bin/pwd; cd b; /bin/pwd; cd ..; ls; /bin/pwd; cd ../..; ls $D; ls -d /usr/../usr"),
    ("a way out and in", "ln -s /etc e; head -n 1 e/passwd; ls -d e/../etc; readlink e; cd e; /bin/pwd; cd -; head -n 1 ../../etc/passwd"),
    ("a link into the volume", "ln -sfn $D $L; echo x > $L/f; cat $L/f f; mv $L/f $L/g; ln $L/g h; ls $L/ $L/.; \
      rm $L/g; cd $L; /bin/pwd; mkdir $L/d; cd $L/d; ls ..; cat $L/h; rm $L"),
    ("links by a directory that is one", "mkdir $L; ln -s $L $L.l; ln -s $D/f $L/x; ln -s $D $L/d; echo x > f; cat $L.l/x $L.l/d/f; \
      cat $L.l/none $L.l/d/none $L.l/none/f; rm -r $L $L.l"),
    ("links", "echo x > f; ln f g; ln -s f s; stat -c %h f; cat s g; readlink s; realpath s; mv f h; cat s; rm s; ls; ls -l /aze/none"),
    ("renames", "mkdir d; echo 1 > d/f; mv d e; mv e/f .; rmdir e; mv f /tmp/$$.f && mv /tmp/$$.f g; cat g; mv g /etc/passwd/x; ls"),
    ("descriptors by name", "echo x > f; exec 5< f; readlink /proc/self/fd/5; cat /dev/fd/5; cat /proc/self/fd/5; ls -l /proc/self/fd/5 | \
      sed 's/.*->//'"),
    ("scripts and programs", "printf '#!/bin/sh -e\\necho $0 $1\\n' > s; chmod +x s; ./s 1; $D/s 2; cp /bin/echo p; ./p 3; $D/p 4; \
      echo '#!'$D/s > t; chmod +x t; ./t; chmod -x p; ./p; echo $?; ./none; echo $?"),
    ("the program's own path", "cp /usr/bin/readlink p; ./p /proc/self/exe; ./p $(./p /proc/self/exe)"),
    ("no environment", "echo x > f; env -i /bin/cat $D/f; env -i /bin/sh -c '/bin/ls'"),
    ("named pipes", "mkfifo -m 640 p; stat -c '%F %a' p; mkfifo p; seq 1000 > p & wc -l < p; wait; exec 3<>p; echo two >&3; read x <&3; \
      echo $x; exec 3>&-; mv p q; cat q & cat <<< three > q; wait; (umask 077; mkfifo r; stat -c %a r); python3 -c 'import os; os.open(\"q\", \
      os.O_WRONLY | os.O_NONBLOCK)' 2>&1 | tail -n 1; python3 -c 'import os; os.open(\"q\", os.O_RDWR | os.O_CREAT | os.O_EXCL)' 2>&1 | \
      tail -n 1; test -p q && echo pipe; mkfifo none/x; mkfifo s/; rm q r; ls"),
    ("mknod", "mknod d c 1 3; stat -c '%F %a %t:%T' d; mknod b b 7 1; stat -c '%F %t:%T' b; mknod d p; mknod e p; stat -c %F e; \
      python3 -c 'import os, stat; os.mknod(\"f\", 0o600); os.mknod(\"s\", 0o600 | stat.S_IFSOCK); print(os.stat(\"f\").st_mode, \
      os.stat(\"s\").st_mode)'; ls -l | cut -c 1-10"),
    ("times", "touch -d @1000 f; stat -c '%X %Y' f; touch -r f g; stat -c %Y g; touch -m -d @7 g; stat -c '%X %Y' g"),
    ("permissions", "echo x > f; chmod 640 f; stat -c %a f; chown 1:2 f; stat -c %u:%g f; test -x f; echo $?; mkdir -m 700 d; stat -c %a d"),
    ("find, du, rm", "mkdir -p a/b c; touch a/1 a/b/2 c/3; find . | sort; find . -name 2 -delete; rm -rf a; find . -type f"),
    ("tar", "mkdir d; cp /etc/passwd d; ln -s x d/l; touch -d @5 d/t; tar -cf t.tar d; rm -r d; tar -xpf t.tar; ls d; stat -c %Y d/t; tar -tf t.tar | sort"),
    ("rsync", "mkdir a; cp /etc/passwd /etc/group a; rsync -a a/ b/; diff -r a b && echo same; echo x >> a/passwd; rsync -ai a/ b/ | cut -c 1-4"),
    ("git", "git init -q . && git config user.email a@b && git config user.name n; echo 1 > f; git add f; git commit -qm one; \
      git clone -q . c; git -C c log --format=%s; git gc -q; git fsck 2>&1 | grep -v notice; git status --short"),
    ("perl", "perl -e 'open(F, q(>), q(p)) or die; print F q(x) x 50000; close F; print -s q(p); opendir(D, q(.)); print sort(readdir(D)); \
      unlink q(p); print -e q(p) ? 1 : 0'"),
    ("flock", "flock f true; echo $?; flock f flock -n f true; echo $?; flock f -c 'echo in'; exec 9> g; flock 9; flock -n g true; echo $?"),
    ("python", "python3 -c \"
import os, select, shutil, fcntl, mmap, tempfile, subprocess
open('p', 'w').write('x' * 100000); print(os.path.getsize('p'), len(open('p').read()))
shutil.copyfile('p', 'q'); os.utime('q', (1, 2)); print(os.stat('q').st_mtime); os.setxattr('q', 'user.a', b'v')
print(os.listxattr('q'), os.getxattr('q', 'user.a')); os.makedirs('a/b'); print(sorted(os.listdir('.')), os.path.realpath('a/../q'))
d = os.open('.', os.O_RDONLY); f = os.open('q', os.O_RDWR, dir_fd=d); print(os.preadv(f, [bytearray(2), bytearray(3)], 1))
print(select.select([f], [f], [], 5) == ([f], [f], []), mmap.mmap(f, 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)[:3])
print(subprocess.run(['pwd', '-P'], cwd='a/b', stdout=subprocess.PIPE, text=True).stdout)
fcntl.lockf(f, fcntl.LOCK_EX); t = tempfile.NamedTemporaryFile(dir='.'); t.write(b'12'); t.flush(); print(os.path.getsize(t.name))
os.ftruncate(f, 3); os.lseek(f, 0, 2); os.write(f, b'!'); print(open('q').read(), os.path.samefile('q', 'a/../q'))
\""),
    ("threads of python", "python3 -c \"
import threading
def f(i):
    for k in range(10):
        open(f't{i}', 'w').write('y' * 1000); assert len(open(f't{i}').read()) == 1000
t = [threading.Thread(target=f, args=(i,)) for i in range(4)]
[x.start() for x in t]; [x.join() for x in t]; print('done')\""),
    ("processes of python", "cat > m.py <<'END'
import multiprocessing as mp, os, sys
def f(i):
    open(f'mp{i}', 'w').write(str(i)); return int(open(f'mp{i}').read())
if __name__ == '__main__':
    for method in ('fork', 'spawn'):
        with mp.get_context(method).Pool(3) as pool: print(pool.map(f, range(12)), len(os.listdir('.')) > 12)
END
      python3 m.py"),
    ("sqlite with a write-ahead log", "python3 -c \"
import os, sqlite3
db = sqlite3.connect('w.db'); print(db.execute('pragma journal_mode=wal').fetchone(), db.execute('create table t(i)').fetchall())
def child():
    own = sqlite3.connect('w.db', timeout=60)
    for i in range(20):
        with own: own.execute('insert into t values(?)', (i,))
    os._exit(0)
for pid in [os.fork() or child() for _ in range(3)]: print(os.waitpid(pid, 0)[1])
print(db.execute('select count(*), sum(i) from t').fetchone(), db.execute('pragma integrity_check').fetchone())\""),
    ("make", "for i in 1 2 3 4 5 6 7 8; do echo \"int f$i(void) { return $i; }\" > f$i.c; done
      echo 'int f1(void), f8(void); int puts(const char *); int main(void) { return puts(f1() + f8() == 9 ? \"nine\" : \"no\") < 0; }' > main.c
      printf 'O = $(patsubst %%.c,%%.o,$(wildcard *.c))\\np: $(O)\\n\\tcc -o $@ $(O)\\n%%.o: %%.c\\n\\tcc -c -o $@ $<\\n' > Makefile
      make -s -j8 && ./p; make -q; echo $?; echo 'int x;' >> f3.c; make -s; ls *.o | wc -l"),
    ("a library of the volume", "echo 'int seven(void) { return 7; }' > l.c; cc -shared -fPIC -o l.so l.c; \
      python3 -c 'import ctypes, os; print(ctypes.CDLL(os.getcwd() + \"/l.so\").seven())'"),
    ("positions and contents", POSITIONS_AND_CONTENTS),
    ("limits", "python3 -c 'import os\nopen(\"f\", \"w\"); fd = os.open(\"f\", os.O_RDONLY)\ndef ask(of, name):\n try: return (os.fpathconf if of is fd else \
      os.pathconf)(of, name)\n except OSError as error: return error.errno\nfor name in sorted(os.pathconf_names): print(name, \
      [ask(of, name) for of in (\"f\", fd, \".\", os.getcwd() + \"/none\")])'"),
    ("an unlinked file", "exec 4> u 5< u; rm u; echo kept >&4; cat <&5; ls; stat -L -c %h /proc/self/fd/5"),
    ("errors", "cat none; cat .; mkdir a; mkdir a; rmdir /aze; ls a/b; echo x > a; : > f; cd f; ls f/x; rm a; mv a a/b; ln -s l l; cat l; \
      rmdir none; touch none/x; readlink f; echo $?"),
];

/// What needs no question to the agent: positions that processes and threads share, and contents that came with an open while the file
/// is changed in all ways.
const POSITIONS_AND_CONTENTS: &str = r#"python3 - <<'E'
import mmap, os, signal, socket, subprocess, threading
open('p', 'wb').write(bytes(range(256)) * 16)
fd = os.open('p', os.O_RDWR)
def child(act):
    pid = os.fork()
    if pid == 0:
        os._exit(act())
    return os.waitpid(pid, 0)[1]
for at in range(20):
    os.lseek(fd, at, 0)
    was_right = child(lambda: [os.lseek(fd, 0, 1), os.read(fd, 10)[0], os.lseek(fd, 5, 1)] != [at, at, at + 15])
    print(was_right, os.lseek(fd, 0, 1), end=' ')
other = os.dup(fd)
print(os.lseek(other, 100, 0), os.read(fd, 1), os.lseek(other, 0, 1))
here, there = socket.socketpair()
pid = os.fork()
if pid == 0:
    os.lseek(socket.recv_fds(there, 1, 1)[1][0], 1000, 0)
    os._exit(there.send(b'x') - 1)
socket.send_fds(here, [b'f'], [fd])
print(here.recv(1), os.lseek(fd, 0, 1), os.waitpid(pid, 0)[1])
for to in (-1, 0), (-5000, 1), (1 << 50, 0), (3, 1), (0, 1), ((1 << 63) - 1, 0), (1, 1), (7, 9), (2, 2), (-3, 1), (10, 3), (10, 4):
    try:
        print(os.lseek(fd, *to), end=' ')
    except OSError as error:
        print(error.errno, end=' ')
print(os.read(fd, 4))
def together(act):
    threads = [threading.Thread(target=act) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
os.lseek(fd, 0, 0)
together(lambda: [os.lseek(fd, 1, 1) for _ in range(500)])
print(os.lseek(fd, 0, 1))
os.lseek(fd, 0, 0)
parts = []
together(lambda: parts.extend(iter(lambda: os.read(fd, 16), b'')))
print(len(parts), sum(map(len, parts)), len(set(parts)))
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        there.send(b'x')
        while True:
            os.lseek(fd, 3, 0)
            os.read(fd, 2)
    here.recv(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(os.lseek(fd, 9, 0), os.read(fd, 1), end=' ')
print()
open('c', 'wb').write(b'0123456789')
def opened():
    return os.open('c', os.O_RDONLY)
c, w = opened(), os.open('c', os.O_RDWR)
print(os.read(c, 4), os.pwrite(w, b'ABCDEF', 4), os.read(c, 3), os.read(c, 100), os.read(c, 100))
c = opened()
print(os.pread(c, 4, 2), subprocess.call(['sh', '-c', 'printf xy | dd of=c bs=1 seek=1 conv=notrunc status=none']), os.pread(c, 4, 0))
c = opened()
print(os.read(c, 2), child(lambda: os.read(c, 3) != b'3AB'), os.read(c, 3), os.lseek(c, 0, 1))
c = opened()
print(os.read(c, 2), os.ftruncate(w, 5), os.read(c, 100), os.pread(c, 9, 3), os.pread(c, 9, 50))
c = opened()
print(os.pwrite(w, b'end', 5), os.read(c, 100), os.pwrite(w, b'more', 8), os.read(c, 100), os.read(c, 100))
shared = mmap.mmap(w, 12)
c, d = opened(), opened()
shared[0:2] = b'MM'
print(os.read(c, 3), os.read(d, 1))
shared[0:2] = b'NN'
print(os.pread(c, 3, 0), os.read(d, 1))
shared.close()
c = opened()
print(os.rename('c', 'e'), open('c', 'wb').write(b'another'), os.read(c, 20), os.read(opened(), 20))
c = opened()
print(os.unlink('c'), os.read(c, 20))
c = os.open('e', os.O_RDONLY)
print(os.pread(fd, 50, 0), os.read(c, 3))
c = os.open('e', os.O_RDONLY)
print(os.getxattr('p', 'user.none') if 'user.none' in os.listxattr('p') else len(os.listdir('.')), os.read(c, 3))
c = os.open('e', os.O_RDONLY)
parts = [bytearray(3), bytearray(20)]
print(os.readv(c, parts), parts, os.preadv(c, parts[:1], 2), parts[0], os.read(c, 0), os.lseek(c, 0, 1))
print(os.lseek(c, 4, 0), os.read(c, 2), os.lseek(c, -2, 2), os.read(c, 9))
E"#;

/// The words before a program, for a door.
fn through<'a>(door: &'a str, script: &'a str) -> [&'a str; 7] {
    ["run", "--door", door, "--", "bash", "-c", script]
}

/// A place with a volume and the library beside the program; `None` if a mount at /aze cannot be had here.
fn volume(test: &str) -> Option<(Place, String)> {
    let library = program().with_file_name("libaze_intercept.so");
    assert!(library.exists(), "{} is not built: run 'cargo build -p aze-intercept' first", library.display());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    if !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/")) {
        leave_out(test, "/ is no mount point");
        return None;
    }
    let place = Place::new();
    let name = place.up(&["--servers", "2"]);
    Some((place, name))
}

/// Has the library take symbols alone.
const SYMBOLS: (&str, &str) = ("AZE_INTERCEPT", "symbols");

/// What a script says, with its errors and its exit code.
fn said(place: &Place, door: &str, variable: (&str, &str), script: &str) -> String {
    let whole = format!(
        "D=/aze/d L=$PWD/link; export D L LC_ALL=C HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1; mkdir $D && cd $D || exit 99; exec 2>&1\n\
         ( {script}\n ); echo \"= $?\"; cd / && rm -rf $D && ls /aze"
    );
    let mut command = place.command(&through(door, &whole));
    let ran: Ran = command.env(variable.0, variable.1).output().expect("it starts").into();
    let out = ran.out.replace("bash: line 1:", "bash:");
    format!("{out}{}", if ran.code == 0 { String::new() } else { format!("({}) {}", ran.code, ran.err) })
}

#[test]
fn scripts_say_the_same_through_both_doors() {
    assert!(SCRIPTS.len() > 30, "{} scripts", SCRIPTS.len());
    let Some((place, _)) = volume("scripts_say_the_same_through_both_doors") else { return };
    let mut different = Vec::new();
    for (name, script) in SCRIPTS {
        let mounted = said(&place, "mount", SYMBOLS, script);
        assert!(mounted.contains("= "), "{name}: {mounted}");
        for way in [("AZE_INTERCEPT", ""), SYMBOLS] {
            let intercepted = said(&place, "intercept", way, script);
            if mounted != intercepted {
                different.push(format!("--- {name}, mount:\n{mounted}--- intercept, {way:?}:\n{intercepted}"));
            }
        }
    }
    assert!(different.is_empty(), "{} of {} differ:\n{}", different.len(), SCRIPTS.len(), different.join("\n"));
}

/// With symbols alone, calls that libc makes by itself are seen where they have functions of their own; the others end with an
/// error.
#[test]
fn calls_that_libc_makes_by_itself_are_refused_or_seen() {
    let Some((place, _)) = volume("calls_that_libc_makes_by_itself_are_refused_or_seen") else { return };
    let program = place.path("inner");
    let mut cc = Command::new("cc");
    run(cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(clib::sources().join("inner.c")));
    let script = format!("mkdir /aze/d && {} /aze/d", program.display());
    let mut said = Vec::new();
    for way in [("AZE_INTERCEPT", ""), SYMBOLS] {
        let ran: Ran =
            place.command(&through("intercept", &script)).env(way.0, way.1).output().expect("it starts").into();
        assert_eq!(ran.code, 0, "{way:?}: {}{}", ran.out, ran.err);
        said.push(ran.ok().out);
        place.aze(&["rm", "-r", "aze:/d"]).ok();
    }
    let lines: Vec<Vec<&str>> = said.iter().map(|said| said.lines().collect()).collect();
    assert_eq!((lines[0].len(), lines[1].len()), (14, 14), "{said:?}");
    let differ: Vec<(&str, &str)> =
        lines[0].iter().zip(&lines[1]).filter(|(sites, symbols)| sites != symbols).map(|(a, b)| (*a, *b)).collect();
    assert_eq!(
        differ,
        [("vfork: 1", "vfork: 0"), ("aio: 4", "aio: EAGAIN"), ("nftw: 3", "nftw: ENOENT"), ("fts: 4", "fts: ENOENT")],
        "what docs/semantics.md says of symbols alone"
    );
}

/// A library did not see the volume in 1 of 500 loads: another thread had begun to look through it, and its own thread did not wait for that.
/// Before that, one thread put addresses into a library at which the loader was still at work (Java ended by SIGSEGV).
#[test]
fn a_library_that_is_loaded_sees_the_volume_while_other_threads_call() {
    let Some((place, _)) = volume("a_library_that_is_loaded_sees_the_volume_while_other_threads_call") else { return };
    let (program, library) = (place.path("loading"), place.path("loaded.so"));
    let cc = || {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(clib::sources().join("loading.c"));
        cc
    };
    run(cc().arg("-o").arg(&program));
    run(cc().args(["-shared", "-fPIC", "-DLIBRARY", "-o"]).arg(&library));
    let script = format!("echo x > /aze/f; {} /aze/f {} {LOADS}", program.display(), library.display());
    let mut command = place.command(&through("intercept", &script));
    let ran: Ran = command.env(SYMBOLS.0, SYMBOLS.1).output().expect("it starts").into();
    assert_eq!(ran.ok().out, "seen each time\n");
}

/// A kernel that lets nothing be executable that was written (systemd's MemoryDenyWriteExecute, SELinux): the program said that it
/// does not see the volume, and did not. Now it takes symbols alone, and says so once for a whole tree.
#[test]
fn symbols_alone_are_taken_where_the_kernel_refuses_to_rewrite() {
    let Some((place, _)) = volume("symbols_alone_are_taken_where_the_kernel_refuses_to_rewrite") else { return };
    let program = place.path("sealed");
    let mut cc = Command::new("cc");
    run(cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(clib::sources().join("sealed.c")));
    let script = "mkdir /aze/d; cd /aze/d; cp /etc/passwd f; sh -c 'cmp f /etc/passwd && env -i /bin/ls -l f | wc -l'; cd /; rm -r /aze/d; ls /aze; echo end";
    let sealed = format!("{} bash -c \"{script}\"", program.display());
    let ran = place.aze(&through("intercept", &sealed)).ok();
    assert_eq!(ran.out, "1\nend\n", "{}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert!(ran.err.starts_with("aze: libc cannot be rewritten: "), "{}", ran.err);
    assert!(ran.err.contains("by symbols alone"), "{}", ran.err);
}

#[test]
fn a_program_in_c_finds_the_same_through_both_doors_and_without_a_volume() {
    let test = "a_program_in_c_finds_the_same_through_both_doors_and_without_a_volume";
    let Some((place, _)) = volume(test) else { return };
    let program = gate::compiled(&place);
    let plain = place.path("plain");
    fs::create_dir(&plain).expect("a directory");
    assert_eq!(run(Command::new(&program).arg(&plain)).out, "the same\n");
    let script = format!("mkdir -p /aze/d && {} /aze/d", program.display());
    for (door, way) in [("mount", ""), ("intercept", ""), ("intercept", SYMBOLS.1)] {
        let mut command = place.command(&through(door, &script));
        let ran: Ran = command.env(SYMBOLS.0, way).output().expect("it starts").into();
        assert_eq!(ran.ok().out, "the same\n", "{door} {way}");
    }
}

#[test]
fn nothing_is_left_of_processes_that_end_are_stopped_or_killed() {
    let Some((mut place, _)) = volume("nothing_is_left_of_processes_that_end_are_stopped_or_killed") else { return };
    gate::pass(&mut place, ROUNDS, &[]);
}

/// The agents of this place's volume.
fn agent_pids(place: &Place) -> Vec<u32> {
    let records = gate::agents(place).into_iter().filter(|path| path.extension().is_some_and(|end| end == "json"));
    records.filter_map(|path| path.file_stem()?.to_str()?.parse().ok()).collect()
}

/// The processors that this process may run on.
fn processors() -> Vec<String> {
    let status = fs::read_to_string("/proc/thread-self/status").expect("a status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list").trim();
    let numbers = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<u32>().expect("a number");
        (number(first)..=number(last)).map(|number| number.to_string()).collect::<Vec<_>>()
    };
    list.split(',').flat_map(numbers).collect()
}

/// A call stays on the processor on which it was made: the agent's thread comes there, and the program's may go again.
#[test]
fn a_call_stays_on_its_processor() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let calls = "where() { taskset -cp $$; }; before=$(where); \
                 for n in $(seq 50); do echo $n > /aze/f || exit 1; read -r x < /aze/f; done; \
                 [ \"$before\" = \"$(where)\" ] || { echo \"$before\"; where; }";
    assert_eq!(place.aze(&through("intercept", calls)).ok().out, "");
    let all = processors();
    assert!(!all.is_empty());
    for processor in [&all[0], &all[all.len() - 1]] {
        let script =
            format!("taskset -cp {processor} $$ > /dev/null; echo > /aze/f && read -r x < /aze/f; echo did; read -r _");
        let mut command = place.command(&through("intercept", &script));
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(program.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "did\n");
        let agents = agent_pids(&place);
        assert_eq!(agents.len(), 1);
        let threads = fs::read_dir(format!("/proc/{}/task", agents[0])).expect("threads").flatten();
        let of_channels = threads.filter_map(|thread| {
            let of = |file| fs::read_to_string(thread.path().join(file)).ok();
            of("comm").filter(|comm| comm == "aze-channel\n").and(of("status"))
        });
        let is_there = |status: String| status.lines().any(|line| line == format!("Cpus_allowed_list:\t{processor}"));
        assert_eq!(of_channels.map(is_there).collect::<Vec<_>>(), [true], "processor {processor} of {all:?}");
        drop(program.stdin.take());
        assert!(program.wait().expect("it ends").code().is_some());
        wait_until("its agent has ended", || agent_pids(&place).is_empty());
    }
}

/// Threads with this name of the agent of `place`.
fn agent_threads(place: &Place, name: &str) -> usize {
    let agents = agent_pids(place);
    assert_eq!(agents.len(), 1);
    let threads = fs::read_dir(format!("/proc/{}/task", agents[0])).expect("threads").flatten();
    let is_one = |comm: String| comm.trim_end() == name;
    threads.filter(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(is_one)).count()
}

/// Threads of the agent of `place` that move connections while no program waits: one for each lane that was used.
fn lanes_used(place: &Place) -> usize {
    agent_threads(place, "aze-background")
}

/// A program that asks alone uses the first connection to each server; those that ask at the same time do not wait for each other's
/// threads.
#[test]
fn programs_that_ask_at_once_have_connections_of_their_own() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let stop = place.path("stop");
    let script = format!(
        "work() {{ echo $1 > /aze/$1 && read -r x < /aze/$1 && [ $x = $1 ]; }}; for n in $(seq 200); do work alone || exit 1; done; \
         echo did; read -r _; for n in 1 2 3; do (while [ ! -e {0} ]; do work $n || exit 1; done) & pids=\"$pids $!\"; done; \
         for pid in $pids; do wait $pid || exit 1; done; rm /aze/*",
        stop.display()
    );
    let mut command = place.command(&through("intercept", &script));
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(program.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!((line.as_str(), lanes_used(&place)), ("did\n", 1));
    drop(program.stdin.take());
    let more = processors().len() > 1;
    wait_until("another lane is used", || !more || lanes_used(&place) > 1);
    fs::write(&stop, "").expect("a file");
    assert!(program.wait().expect("it ends").success());
    wait_until("its agent has ended", || agent_pids(&place).is_empty());
}

/// If `aze run` was killed before its agent had told it where to find the agent, the agent's socket stayed.
#[test]
fn a_program_that_is_killed_at_its_start_leaves_nothing() {
    let Some((place, _)) = volume("a_program_that_is_killed_at_its_start_leaves_nothing") else { return };
    for round in 0..5 {
        let mut program =
            place.command(&["run", "--door", "intercept", "--", "sleep", "60"]).spawn().expect("it starts");
        let started = Instant::now();
        // The agent records itself first, and connects to the servers before it makes its socket.
        while gate::agents(&place).is_empty() {
            assert!(started.elapsed() < PATIENCE, "round {round}: an agent has a record");
        }
        program.kill().expect("it can be killed");
        program.wait().expect("it ends");
        wait_until("no file of an agent is left", || gate::agents(&place).is_empty());
    }
}

/// What a program stores in a shared mapping is in the file for every client as soon as the program has ended, and soon after
/// it was killed.
#[test]
fn what_is_stored_in_a_mapping_comes_to_the_file() {
    let Some((place, _)) = volume("what_is_stored_in_a_mapping_comes_to_the_file") else { return };
    let stores = |end: &str| {
        format!(
            "head -c 10000 /dev/zero | tr '\\0' a > /aze/f; python3 -c '
import mmap, os, signal
m = mmap.mmap(os.open(\"/aze/f\", os.O_RDWR), 0); m[5000] = 98; m[9999] = 99
{end}'; exit 0"
        )
    };
    let ends = ["pass", "os._exit(0)", "os.execv(\"/bin/true\", [\"true\"])", "os.kill(os.getpid(), signal.SIGKILL)"];
    for end in ends {
        place.aze(&through("intercept", &stores(end))).ok();
        let is_there = || {
            let out = place.aze(&["cat", "aze:/f"]).ok().out;
            assert_eq!(out.len(), 10_000);
            (&out[5000..5001], &out[9999..], out.matches('a').count()) == ("b", "c", 9998)
        };
        if !end.contains("SIGKILL") {
            assert!(is_there(), "{end}");
        }
        wait_until("what was stored is in the file", is_there);
        wait_until("no file is open", || gate::opens(&place) == 0);
    }
}

#[test]
fn programs_are_left_alone_and_counts_are_shown_when_asked() {
    let Some((place, _)) = volume("programs_are_left_alone_and_counts_are_shown_when_asked") else { return };
    let ran = place.aze(&through(
        "intercept",
        "echo x > /aze/f; AZE_BYPASS=ls,cat cat /aze/f; AZE_BYPASS=ls sh -c 'cat /aze/f'; cat /aze/f",
    ));
    assert_eq!((ran.code, ran.out.as_str()), (0, "x\nx\n"), "{}", ran.err);
    assert!(ran.err.contains("No such file"), "{}", ran.err);
    let ran = place.aze(&through("intercept", "AZE_INTERCEPT_VERBOSE=1 cat /aze/f")).ok();
    let counts =
        ran.err.lines().find(|line| line.contains("intercept: cat: ")).unwrap_or_else(|| panic!("{}", ran.err));
    let by_symbols = place.aze(&through("intercept", "AZE_INTERCEPT=symbols AZE_INTERCEPT_VERBOSE=1 cat /aze/f")).ok();
    assert!(by_symbols.err.contains(" 0 left alone; by symbols alone\n"), "{}", by_symbols.err);
    let unknown = place.aze(&through("intercept", "AZE_INTERCEPT=sites cat /aze/f")).ok();
    assert_eq!(unknown.err, "aze: AZE_INTERCEPT=sites: this is not known; the value is symbols, or nothing\n");
    let numbers: Vec<u64> = counts.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers.len(), 4, "{counts}");
    assert!(numbers[0] >= 2 && numbers[1] > 150, "{counts}");
}

/// Opening a small file, going to a place in it, reading and closing it asks the agent once, and going to a place before a
/// write nothing more than the write.
#[test]
fn what_a_program_does_with_an_open_file_asks_the_agent_seldom() {
    let Some((place, _)) = volume("what_a_program_does_with_an_open_file_asks_the_agent_seldom") else { return };
    let asked = |way: (&str, &str), text: &str| {
        let mut command = place.command(&["run", "--door", "intercept", "--", "python3", "-c", text]);
        let ran: Ran = command.env(way.0, way.1).env("AZE_INTERCEPT_VERBOSE", "1").output().expect("it starts").into();
        let ran = ran.ok();
        let lines = ran.err.lines().filter_map(|line| line.strip_prefix("aze: intercept: asked the agent "));
        lines.filter_map(|rest| rest.strip_suffix(" times")?.parse::<u64>().ok()).sum::<u64>()
    };
    for way in [("AZE_INTERCEPT", ""), SYMBOLS] {
        assert_eq!(asked(way, "import os"), 0);
        let made =
            asked(way, "import os\nfor i in range(100): os.close(os.open(f'/aze/f{i}', os.O_CREAT | os.O_WRONLY))");
        // One more for named pipes.
        assert_eq!(made, 101, "a create and its close");
        let text = "import os\nfor i in range(100):\n f = os.open(f'/aze/f{i}', os.O_WRONLY); os.lseek(f, 7, 0); os.write(f, b'text'); os.close(f)";
        // One more for the memory that is shared.
        assert_eq!(asked(way, text), 202, "an open and a write");
        let text = "import os\nfor i in range(100):\n f = os.open(f'/aze/f{i}', os.O_RDONLY); os.lseek(f, 7, 0); assert os.read(f, 4) == b'text'; os.close(f)";
        // And one for the first read, whose contents the question for this memory has replaced.
        assert_eq!(asked(way, text), 103, "an open");
    }
}

/// A static program does not see the volume, and ran on without a word: a compiler that npm(1) had installed in the volume did
/// not find its own files beside it.
#[test]
fn a_program_whose_calls_cannot_be_seen_is_named() {
    let Some((place, _)) = volume("a_program_whose_calls_cannot_be_seen_is_named") else { return };
    let (source, program) = (place.path("hello.c"), place.path("hello"));
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"hello\"); }\n").expect("a source");
    run(Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source));
    let outside = program.display();
    // The last four do not need the volume, or are known to do without.
    let script = format!(
        "cp {outside} /aze/hello; /aze/hello; {outside} /aze/x; cd /aze; {outside}; env -i {outside}
         {outside}-not-there; ls /aze/hello; AZE_BYPASS=hello /aze/hello; cd /; {outside} /azenot"
    );
    let ran = place.aze(&through("intercept", &script)).ok();
    assert_eq!(ran.out.matches("hello\n").count(), 6 + 1, "{}{}", ran.out, ran.err);
    let expected = |path: &str| {
        format!("aze: {path} is statically linked: it does not see the volume as 'aze run --door mount' would show it")
    };
    let said: Vec<&str> = ran.err.lines().filter(|line| line.contains("statically linked")).collect();
    let outside = outside.to_string();
    assert_eq!(
        said,
        [expected("/aze/hello"), expected(&outside), expected(&outside), expected(&outside)],
        "{}",
        ran.err
    );
}

/// Libraries that patch libc leave its text in several mappings: an instruction lay across two of them and was not seen, so
/// that a process of MPI did not find the volume by opendir(3) after UCX had patched the page behind.
#[test]
fn calls_are_seen_when_the_text_of_libc_is_in_many_mappings() {
    let Some((place, _)) = volume("calls_are_seen_when_the_text_of_libc_is_in_many_mappings") else { return };
    let library = place.path("split.so");
    let mut cc = Command::new("cc");
    run(cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(clib::sources().join("split.c")));
    let split = format!("LD_PRELOAD=$LD_PRELOAD:{}", library.display());
    let script = format!(
        "mkdir /aze/d; echo x > /aze/d/f; {split} grep -c 'r-xp.*libc.so.6' /proc/self/maps; {split} ls /aze/d; {split} cat /aze/d/f
         export AZE_INTERCEPT_VERBOSE=1; cat /aze/d/f; {split} cat /aze/d/f"
    );
    let ran = place.aze(&through("intercept", &script)).ok();
    assert!(ran.out.ends_with("\nf\nx\nx\nx\n"), "{}{}", ran.out, ran.err);
    let counts: Vec<&str> = ran.err.lines().filter_map(|line| line.strip_prefix("aze: intercept: cat: ")).collect();
    assert_eq!(counts.len(), 2, "{}", ran.err);
    assert_eq!(counts[0], counts[1], "as many sites as without it");
}

#[test]
fn without_its_agent_a_program_gets_errors_at_once() {
    let Some((place, _)) = volume("without_its_agent_a_program_gets_errors_at_once") else { return };
    let script = "echo x > /aze/f; exec 5< /aze/f; echo ready; read line; cat /aze/f; cat <&5; : > /aze/g; echo lives";
    let mut command = place.command(&through("intercept", script));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = command.spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(program.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let status = place.aze(&["status", "--json"]).ok().out;
    let status: serde_json::Value = serde_json::from_str(status.lines().next().expect("a line")).expect("JSON");
    let mounts = status["mounts"].as_array().expect("mounts");
    assert_eq!(mounts.len(), 1, "{status}");
    let agent = mounts[0]["process"]["pid"].as_u64().unwrap_or_else(|| panic!("{status}"));
    aze_tests::signal(agent as u32, libc::SIGKILL);
    wait_until("the agent has gone", || !PathBuf::from(format!("/proc/{agent}/exe")).exists());
    let started = Instant::now();
    program.stdin.take().expect("a pipe").write_all(b"go\n").expect("it reads");
    let ran: Ran = program.wait_with_output().expect("it ends").into();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!((ran.code, ran.out.as_str()), (0, "lives\n"), "{}", ran.err);
    assert_eq!(ran.err.matches("Input/output error").count(), 3, "{}", ran.err);
}
