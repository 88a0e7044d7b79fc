//! Named pipes that stand for what programs have open, one description after the other.

use super::through;
use aze_tests::{Place, Ran, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

fn names_in(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
}

fn run(place: &Place, script: &str) -> Ran {
    Ran::from(place.command(&through("intercept", script)).output().expect("it runs"))
}

#[test]
fn a_program_opens_pipes_of_the_agent_itself() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let script = r#"exec python3 -c "
import os, sys
files = [open('/aze/f%d' % i, 'w') for i in range(8)]
print(os.getpid(), flush=True)
sys.stdin.readline()
""#;
    let mut command = place.command(&through("intercept", script));
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut pid = String::new();
    BufReader::new(program.stdout.take().expect("a pipe")).read_line(&mut pid).expect("a line");
    let fds = format!("/proc/{}/fd", pid.trim());
    let links = names_in(&fds).into_iter().filter_map(|fd| fs::read_link(format!("{fds}/{fd}")).ok());
    let dirs = links.filter_map(|link| link.parent().map(|dir| dir.to_owned()));
    let opens: Vec<_> = dirs.filter(|dir| dir.extension().is_some_and(|extension| extension == "opens")).collect();
    assert!((5..=8).contains(&opens.len()), "the first ones came with replies: {opens:?}");
    program.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    assert_eq!(program.wait().expect("it ends").code(), Some(0));
    wait_until("the agent has removed the pipes", || !opens[0].exists());
}

/// The pipe of a description that another process has is no other file's, also where the one that has opened it has closed it.
#[test]
fn what_another_process_has_stays_its_own() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let ran = run(
        &place,
        r#"exec python3 -c "
import os, subprocess
for i in range(40):
    with open('/aze/f%d' % i, 'w') as file: file.write('contents of %d' % i)
def read(i): return os.open('/aze/f%d' % i, os.O_RDONLY)
asked, ask = os.pipe()
kept = read(7)
if os.fork() == 0:
    os.close(ask)
    os.read(asked, 1)
    print('forked:', os.read(kept, 99).decode(), flush=True)
    os._exit(0)
kept_over_exec = read(8)
os.set_inheritable(kept_over_exec, True)
other = subprocess.Popen(['sh', '-c', 'read line <&%d; cat <&%d' % (asked, kept_over_exec)], pass_fds=(asked, kept_over_exec), stdout=subprocess.PIPE)
os.close(kept)
os.close(kept_over_exec)
for i in list(range(10, 40)) * 10:
    file = read(i)
    assert os.read(file, 99).decode() == 'contents of %d' % i
    os.close(file)
os.close(asked)
os.write(ask, b'\n')
os.wait()
os.close(ask)
print('became another program:', other.communicate()[0].decode())
""#,
    );
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["became another program: contents of 8", "forked: contents of 7"]);
}

/// As in the kernel, the descriptor is there before the name is looked at. It was not: the file was cut, or made, and the call failed.
#[test]
fn an_open_without_room_for_a_descriptor_does_nothing() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let ran = run(
        &place,
        r#"exec python3 -c "
import errno, os, resource
os.mkdir('/aze/d')
with open('/aze/old', 'w') as file: file.write('x' * 1000)
def without_room():
    full, before = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, before[1]))
    try:
        while True: full.append(os.open('/dev/null', os.O_RDONLY))
    except OSError: pass
    said = []
    for name, flags in ('old', os.O_TRUNC | os.O_RDWR), ('new', os.O_CREAT | os.O_RDWR):
        try: os.open('/aze/' + name, flags)
        except OSError as error: said.append(errno.errorcode[error.errno])
    for fd in full: os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return said, os.stat('/aze/old').st_size, os.path.exists('/aze/new')
print(without_room())
for i in range(9): open('/aze/d/f%d' % i, 'w').close()
print(without_room())
""#,
    );
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(ran.out, "(['EMFILE', 'EMFILE'], 1000, False)\n".repeat(2));
}
