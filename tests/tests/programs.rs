//! Programs that others have written to find out what a file system does wrong, and programs that
//! everybody runs, through a mount.

use aze_tests::{Place, Ran, long, python::python, run, set_mode};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

fn mounted() -> (Place, PathBuf) {
    let mut place = Place::new();
    place.up(&["--servers", "3"]);
    let mnt = place.mount();
    if long() {
        place.allow(Duration::from_secs(3600));
    }
    (place, mnt)
}

fn bash(script: &str, dirs: &[&PathBuf]) -> Ran {
    run(Command::new("bash").args(["-euo", "pipefail", "-c", script, "bash"]).args(dirs))
}

/// A program with execute but no read permission runs, as on local file systems.
#[test]
fn a_program_that_may_only_be_run_is_run() {
    let mut place = Place::new();
    place.up(&["--servers", "1"]);
    let mount = place.mount();
    let program = mount.join("only-run");
    fs::copy("/bin/true", &program).expect("a copy");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o111)).expect("a mode");
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } != 0 {
        run(&mut Command::new(&program));
        assert!(fs::read(&program).is_err(), "it may not be read");
        return;
    }
    // Root may do everything; another user is bound by the mode.
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o755)).expect("a mode");
    set_mode(&place.dir, 0o711);
    let as_nobody = |words: &[&OsStr]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).args(words);
        command.output().expect("setpriv runs").status
    };
    assert!(as_nobody(&[program.as_os_str()]).success());
    assert!(!as_nobody(&[OsStr::new("cat"), program.as_os_str()]).success(), "it may not be read");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o444)).expect("a mode");
    assert!(!as_nobody(&[program.as_os_str()]).success(), "it may not be run");
}

/// fio writes at random, in every way, and verifies the bytes that it reads.
#[test]
fn fio_finds_what_it_has_written() {
    let (place, mnt) = mounted();
    // Five files of this size, in a volume of 1 GiB.
    let size = if long() { "128M" } else { "24M" };
    let jobs = format!(
        "[global]\ndirectory={}\nsize={size}\nverify=crc32c\nverify_fatal=1\nverify_backlog=200\nfallocate=none\nrandseed=7\n\
         [pieces]\nrw=randrw\nbsrange=512-96k\nbs_unaligned\nnumjobs=2\nioengine=psync\n\
         [mapped]\nrw=randwrite\nbs=8k\nioengine=mmap\n\
         [large]\nrw=write\nbs=1m\nioengine=psync\nfsync=8\n\
         [direct]\nrw=randwrite\nbs=64k\ndirect=1\nioengine=psync\n",
        mnt.display()
    );
    std::fs::write(place.path("jobs.fio"), jobs).expect("a file");
    let ran = run(Command::new("fio").arg("--output-format=json").arg("jobs.fio").current_dir(&place.dir));
    let json = &ran.out[ran.out.find('{').expect("an object")..];
    let result: serde_json::Value = serde_json::from_str(json).expect("what fio found");
    let jobs = result["jobs"].as_array().expect("jobs");
    assert_eq!(jobs.len(), 5);
    for job in jobs {
        assert_eq!(job["error"], 0, "{job}");
        assert!(job["read"]["total_ios"].as_u64().is_some_and(|count| count > 20), "it has read to verify: {job}");
    }
}

/// What stress-ng has for file systems and needs nothing that a mount of an ordinary user lacks.
const STRESSORS: &[&str] = &[
    "access",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "dup",
    "fallocate",
    "fcntl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "hdd",
    "inotify",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "open",
    "rename",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "xattr",
];

#[test]
fn stress_ng_finds_no_fault() {
    let (_place, mnt) = mounted();
    let seconds = if long() { "60" } else { "4" };
    let mut command = Command::new("stress-ng");
    command.args(["--verify", "--no-rand-seed", "--timeout", seconds, "--temp-path"]).arg(&mnt);
    for stressor in STRESSORS {
        command.arg(format!("--{stressor}")).arg("1");
    }
    // Else it would fill the volume, by its own idea of how much that may be.
    command.args(["--hdd-bytes", "16M", "--iomix-bytes", "16M", "--fallocate-bytes", "16M"]);
    let ran = run(&mut command);
    let text = ran.out + &ran.err;
    assert!(text.contains("successful run completed"), "{text}");
    assert!(!text.contains("fail:"), "{text}");
    assert_eq!(std::fs::read_dir(&mnt).expect("the mount").count(), 0, "it removes what it made: {text}");
}

/// A repository with a history: made, packed, checked, cloned, and worked on.
#[test]
fn git_keeps_a_large_repository() {
    let (place, mnt) = mounted();
    let program = r#"
import random
random.seed(3)
out = open(sys.argv[1], 'wb')
commits, files = int(sys.argv[2]), 1500
for number in range(commits):
    out.write(b'commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 3\nyes\n' % (1_600_000_000 + number))
    for index in range(files) if number == 0 else random.sample(range(files), 60):
        text = b''.join(b'%d line %d of %d\n' % (number, line, index) for line in range(random.randrange(1, 90)))
        out.write(b'M 100644 inline d%d/e%d/f%d\ndata %d\n' % (index % 13, index % 7, index, len(text)) + text + b'\n')
"#;
    let commits = PathBuf::from(if long() { "1000" } else { "60" });
    let stream = place.path("stream");
    python(program, &[&stream, &commits]);
    let script = r#"
cd "$1"
git init -q -b main repo && cd repo
git fast-import --quiet < "$2"
git reset -q --hard
git repack -q -A && git gc -q --aggressive --prune=now && git fsck --strict --full 2>&1
git clone -q --no-local . ../clone
cd ../clone
test "$(git rev-parse HEAD^{tree})" = "$(git write-tree)"
test "$(git ls-files | wc -l)" -eq 1500
for number in 1 2 3; do
    git checkout -q -b "b$number" "main~$((number * 5))"
    git mv "d$number" "moved$number" && git -c user.name=n -c user.email=e commit -qm "$number"
    git checkout -q main
done
test -z "$(git status --porcelain)" && git fsck --strict 2>&1
git archive main | tar -x -C "$(mkdir ../tree && echo ../tree)"
diff -r --exclude=.git . ../tree
cd .. && rm -r repo clone tree && test -z "$(ls -A .)"
"#;
    bash(script, &[&mnt, &stream]);
}

/// A program of many files, compiled by several processes at once, in the tree and beside it.
#[test]
fn make_builds_in_parallel() {
    let (_place, mnt) = mounted();
    let script = r#"
cd "$1"
mkdir src build
files=60
for number in $(seq $files); do
    printf '#include "all.h"\nint f%d(void) { return %d; }\n' "$number" "$number" > "src/f$number.c"
done
for number in $(seq $files); do printf 'int f%d(void);\n' "$number"; done > src/all.h
{
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) { printf("%%d\\n", 0'
    for number in $(seq $files); do printf ' + f%d()' "$number"; done
    printf '); return 0; }\n'
} > src/main.c
cat > Makefile <<'END'
objects := $(patsubst src/%.c,build/%.o,$(wildcard src/*.c))
program: $(objects)
	$(CC) -o $@ $^
build/%.o: src/%.c src/all.h
	$(CC) -c -o $@ $<
END
make -s -j4 && test "$(./program)" = 1830
make -q
# Only what depends on it is made again.
echo 'int f1(void) { return 1001; }' > src/f1.c
make -j4 > log && test "$(grep -c -- ' -c ' log)" = 1 && test "$(./program)" = 2830
touch src/all.h && make -j4 > log && test "$(grep -c -- ' -c ' log)" = 61
"#;
    bash(script, &[&mnt]);
}

/// Archives and copies with everything that metadata can be.
#[test]
fn archives_keep_every_kind_of_metadata() {
    let (place, mnt) = mounted();
    let local = place.path("local");
    std::fs::create_dir(&local).expect("a directory");
    let program = r#"
os.makedirs(P('d/empty')); os.chmod(P('d/empty'), 0o1711)
for number, mode in enumerate([0o000, 0o400, 0o644, 0o755, 0o4755, 0o2755, 0o6711, 0o7777]):
    path = make(P('d', f'm{number}'), b'x' * number)
    if os.getuid() == 0:
        os.chown(path, 1000 + number, 2000 + number)
    os.chmod(path, mode)
for number, when in enumerate([0, 1, 999_999_999, 1_700_000_000_123_456_789, 4_000_000_000_000_000_001]):
    os.utime(make(P('d', f't{number}')), ns=(when, when))
sparse = os.open(P('d/sparse'), os.O_CREAT | os.O_WRONLY)
os.pwrite(sparse, b'begin', 0); os.pwrite(sparse, b'end', 50 << 20); os.close(sparse)
os.symlink('/nowhere/at all', P('d/dangling')); os.symlink('empty', P('d/to-dir')); os.symlink('x' * 4000, P('d/long'))
for number in range(3):
    os.link(P('d/m3'), P('d', f'hard{number}'))
os.mkfifo(P('d/fifo'), 0o640)
listener = socket.socket(socket.AF_UNIX); os.chdir(P('d')); listener.bind('socket')
if os.getuid() == 0:
    os.mknod(P('d/null'), 0o620 | stat.S_IFCHR, os.makedev(1, 3)); os.mknod(P('d/block'), 0o600 | stat.S_IFBLK, os.makedev(7, 300))
for entry in ['ä ö', 'new\nline', '-dash', 'x' * 255, '"quoted"', "it's", '*', '\\back', '\udcff\udcfe']:
    make(P('d', entry), entry.encode(errors='surrogateescape'))
os.utime(P('d'), ns=(5, 1_234_567_890_000_000_009))
"#;
    python(program, &[&local]);
    let script = r#"
same() { test -z "$(rsync -aHnic --delete --specials --devices "$1/" "$2/")" || { rsync -aHnic --delete --specials --devices "$1/" "$2/"; false; }; }
cd "$1"
rsync -aH --sparse --specials --devices "$1/" "$2/rsync/" && same "$1" "$2/rsync"
for form in gnu posix; do
    tar -C "$2/rsync" --format=$form --sparse --warning=no-file-ignored -cf "$2/$form.tar" . && mkdir "$2/$form"
    tar -C "$2/$form" -xpf "$2/$form.tar"
    tar -C "$1" --warning=no-file-ignored --compare -f "$2/$form.tar"
done
# Only this form has times to the nanosecond; none has sockets.
rm "$2/rsync/d/socket"; touch -r "$1/d" "$2/rsync/d"
same "$2/rsync" "$2/posix"
cp -a "$2/rsync" "$2/cp" && same "$2/rsync" "$2/cp"
rsync -aH --specials --devices "$2/cp/" "$2/../back/"
same "$2/cp" "$2/../back"
rm -rf "$2"/*
"#;
    bash(script, &[&local, &mnt]);
}
