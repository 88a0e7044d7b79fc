//! Names and attributes that programs look up in published indexes, without their agent: they see the same as it would.

use super::{SYMBOLS, agent_pids, gate, through, volume};
use aze_tests::{PATIENCE, Place, Ran, clib, leave_out, program, run, servers, signal, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a program says nothing that waits for its agent; a shorter time only hides a defect.
const QUIET: Duration = Duration::from_millis(300);

/// Another user than root.
const USER: u32 = 65_534;

/// A program that looks names up as it is told. It looks each up several times, so that it gets the indexes.
const WATCHER: &str = r#"
import os, sys, errno
def look(act):
    try: return act()
    except OSError as e: return errno.errorcode[e.errno]
def attributes(path):
    s = os.stat(path)
    return f'{s.st_size}:{s.st_mode & 0o7777:o}:{s.st_nlink}'
def opened(path):
    os.close(os.open(path, os.O_RDONLY)); return 'opened'
for i in range(8): look(lambda: os.stat('/aze/d/none'))
for line in sys.stdin:
    path = line.strip()
    if path.startswith('open '):
        file = os.open(path[5:], os.O_RDONLY); print('open', flush=True); continue
    if path.startswith('read '):
        print(os.stat(path[5:]).st_size, len(os.read(file, 100)), flush=True); continue
    said = [look(lambda: attributes(path)), look(lambda: 'yes' if os.access(path, os.R_OK) else 'no')]
    if said[0] == 'ENOENT' or said[0] == 'EIO': said.append(look(lambda: opened(path)))
    for i in range(20):
        again = look(lambda: attributes(path))
        if again != said[0]: said.append(again)
    print(*said, flush=True)
"#;

/// The process of [`WATCHER`], or of another program that answers each line.
pub struct Watcher {
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
}

impl Watcher {
    fn start(place: &Place) -> Watcher {
        Watcher::start_with(place, WATCHER)
    }

    /// Starts this program of Python.
    pub fn start_with(place: &Place, text: &str) -> Watcher {
        let mut command = place.command(&["run", "--door", "intercept", "--", "python3", "-c", text]);
        command.env("AZE_INTERCEPT_VERBOSE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let err = std::fs::File::create(place.path("watcher.err")).expect("a file");
        let mut child = command.stderr(err).spawn().expect("it starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let (give, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = give.send(line);
            }
        });
        Watcher { child, input, said }
    }

    /// Its answer to a line.
    pub fn says(&mut self, path: &str) -> String {
        writeln!(self.input.as_mut().expect("a pipe"), "{path}").expect("it reads");
        self.said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("what is said of {path}"))
    }

    /// How often it has asked its agent, at its end.
    pub fn asked(mut self, place: &Place) -> u64 {
        drop(self.input.take());
        assert!(self.child.wait().expect("it ends").success());
        asked(&std::fs::read_to_string(place.path("watcher.err")).expect("what it has said"))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often a program says that it has asked its agent.
pub fn asked(errors: &str) -> u64 {
    let lines = errors.lines().filter_map(|line| line.strip_prefix("aze: intercept: asked the agent "));
    lines.filter_map(|rest| rest.strip_suffix(" times")?.parse::<u64>().ok()).sum()
}

#[test]
fn names_are_looked_up_without_a_question() {
    let Some((place, _)) = volume("names_are_looked_up_without_a_question") else { return };
    place.aze(&through("intercept", "mkdir /aze/d; cd /aze/d; for i in {1..100}; do echo $i > f$i; done")).ok();
    let count = |way: (&str, &str), text: &str| {
        let text = format!("import os\n{text}");
        let mut command = place.command(&["run", "--door", "intercept", "--", "python3", "-c", &text]);
        let ran: Ran = command.env(way.0, way.1).env("AZE_INTERCEPT_VERBOSE", "1").output().expect("it starts").into();
        asked(&ran.ok().err)
    };
    let cases = [
        "for i in range(1, 101): assert os.stat(f'/aze/d/f{i}').st_size == len(str(i)) + 1",
        "for i in range(1, 101): assert os.lstat(f'/aze/d/f{i}').st_size == len(str(i)) + 1",
        "for i in range(1, 101): assert os.access(f'/aze/d/f{i}', os.R_OK | os.W_OK) and not os.access(f'/aze/d/f{i}', os.X_OK)",
        "for i in range(100): assert not os.path.exists(f'/aze/d/none{i}') and not os.access(f'/aze/d/n{i}', os.F_OK)",
        "for i in range(100):\n try: os.open(f'/aze/d/none{i}', os.O_RDONLY); assert False\n except FileNotFoundError: pass",
        "os.chdir('/aze/d')\nfor i in range(1, 101): assert os.stat(f'f{i}').st_size == len(str(i)) + 1",
        "d = os.open('/aze/d', os.O_RDONLY)\nfor i in range(1, 101): assert os.stat(f'f{i}', dir_fd=d).st_size == len(str(i)) + 1",
    ];
    for way in [("AZE_INTERCEPT", ""), SYMBOLS] {
        for text in cases {
            let count = count(way, text);
            // Six questions; two for memory that is shared and the list of indexes; memory and process of two servers; some for each server of the directory.
            assert!((1..=20).contains(&count), "{count} questions: {text} {way:?}");
        }
    }
}

#[test]
fn one_file_is_opened_for_many_processes_by_three_requests() {
    let Some((place, name)) = volume("one_file_is_opened_for_many_processes_by_three_requests") else { return };
    let opens = || -> u64 {
        let out = place.aze(&["status", "--json", "--name", &name]).ok().out;
        let status: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let servers = status["servers"].as_array().expect("a list");
        assert_eq!(servers.len(), 2);
        let kinds = ["OpenName", "OpenNameWith", "OpenWith", "Open"];
        servers.iter().flat_map(|server| kinds.map(|kind| server["requests"][kind].as_u64().unwrap_or(0))).sum()
    };
    let count = |script: &str| {
        let (before, began) = (opens(), Instant::now());
        let ran = place.aze(&through("intercept", script)).ok();
        (ran.out.trim().to_string(), opens() - before, began.elapsed().as_secs())
    };
    place.aze(&through("intercept", "cd /aze; head -c 1000 /dev/zero > small; head -c 3000000 /dev/zero > large")).ok();
    for (file, bytes) in [("small", 1000), ("large", 3_000_000)] {
        for at_once in [true, false] {
            let script = if at_once {
                "for i in {1..32}; do cat F & done | wc -c"
            } else {
                "for i in {1..32}; do cat F; done | wc -c"
            };
            // What the run before had open is closed when its agent ends, which its command does not wait for.
            wait_until("nothing is open", || gate::opens(&place) == 0);
            let (read, asked, seconds) = count(&script.replace('F', &format!("/aze/{file}")));
            assert_eq!(read, (32 * bytes).to_string());
            // The first tells whether the directory may be looked at in memory. Those that come before the third has been answered ask, too, which
            // may be all that come at once, and one that comes more than a second after the last.
            let most = if at_once { 32 } else { 3 + seconds };
            assert!((1..=most).contains(&asked), "{asked} opens in {seconds} s: {script}, {file}");
        }
    }
    // Each has a file of its own: nothing is remembered of them.
    place.aze(&through("intercept", "mkdir /aze/d; cd /aze/d; for i in {1..100}; do echo $i > f$i; done")).ok();
    let (_, asked, _) = count("cat /aze/d/f* > /dev/null");
    assert!(asked >= 100, "{asked}");
}

#[test]
fn what_others_change_is_seen_at_once() {
    let Some((mut place, _)) = volume("what_others_change_is_seen_at_once") else { return };
    let other = |place: &Place, script: &str| drop(place.aze(&through("intercept", script)).ok());
    other(&place, "mkdir -p /aze/d/e /aze/x; echo 123 > /aze/d/f; echo 1234567 > /aze/x/g; echo 1 > /aze/d/e/h");
    let mount = place.mount();
    let mut watcher = Watcher::start(&place);
    let missing = "ENOENT no ENOENT";
    // A change by another agent, or a mount, and the attributes that names show then.
    let steps: &[(&str, &[(&str, &str)])] = &[
        ("true", &[("d/f", "4:644:1 yes"), ("d/none", missing), ("d/e/h", "2:644:1 yes"), ("x/g", "8:644:1 yes")]),
        ("echo more >> $D/d/f", &[("d/f", "9:644:1 yes")]),
        ("chmod 600 $D/d/f", &[("d/f", "9:600:1 yes")]),
        ("ln $D/d/f $D/d/l", &[("d/f", "9:600:2 yes"), ("d/l", "9:600:2 yes")]),
        ("mv $D/x/g $D/d/none", &[("d/none", "8:644:1 yes"), ("x/g", missing)]),
        ("rm $D/d/none", &[("d/none", missing)]),
        ("mkdir $D/d/none", &[("d/none/x", missing)]),
        ("rmdir $D/d/none; echo 1 > $D/d/none", &[("d/none", "2:644:1 yes")]),
        ("rm $D/d/none $D/d/l", &[("d/none", missing), ("d/f", "9:600:1 yes")]),
        ("mv $D/d $D/moved", &[("d/f", missing), ("d/e/h", missing), ("moved/f", "9:600:1 yes")]),
        (
            "mkdir -p $D/d/e; echo 12 > $D/d/f",
            &[("d/f", "3:644:1 yes"), ("d/e/h", missing), ("moved/e/h", "2:644:1 yes")],
        ),
        ("rm -r $D/d; mv $D/moved $D/d", &[("d/f", "9:600:1 yes"), ("d/e/h", "2:644:1 yes"), ("moved/f", missing)]),
        ("rm -r $D/d/e; mkdir $D/d/e", &[("d/e/h", missing)]),
        ("rmdir $D/d/e; mkdir $D/x/e; echo 7 > $D/x/e/h; ln -s ../x/e $D/d/e", &[("d/e/h", "2:644:1 yes")]),
        ("rm $D/d/e; mkdir $D/d/e", &[("d/e/h", missing), ("x/e/h", "2:644:1 yes")]),
        ("rm -r $D/d/e $D/x; mkdir $D/d/e $D/x; echo 1 > $D/d/e/h; echo 1234567 > $D/x/g", &[("d/e/h", "2:644:1 yes")]),
        ("rm -r $D/d $D/x; mkdir -p $D/d/e $D/x; echo 123 > $D/d/f; echo 1234567 > $D/x/g; echo 1 > $D/d/e/h", &[]),
    ];
    for by_mount in [false, true] {
        let dir = if by_mount { mount.display().to_string() } else { "/aze".into() };
        for (change, seen) in steps {
            let script = format!("export D={dir}; {change}");
            if by_mount {
                run(Command::new("bash").args(["-c", &script]));
            } else {
                other(&place, &script);
            }
            for (path, expected) in *seen {
                assert_eq!(watcher.says(&format!("/aze/{path}")), *expected, "{path} after {script}");
            }
        }
    }
    // What came with an open is not shown after a newer state was seen.
    for (text, bytes) in [("one", 4), ("longer", 7)] {
        assert_eq!(watcher.says("open /aze/d/f"), "open");
        other(&place, &format!("echo {text} > /aze/d/f"));
        assert_eq!(watcher.says("read /aze/d/f"), format!("{bytes} {bytes}"));
    }
    let asked = watcher.asked(&place);
    // Each name was looked up 22 times, and most of it without a question.
    assert!(asked < 500, "{asked} questions");
}

/// An ordinary user, whose own directories may be closed to him.
#[test]
fn a_directory_that_may_not_be_searched_any_more_says_nothing() {
    let test = "a_directory_that_may_not_be_searched_any_more_says_nothing";
    let Some((place, _)) = volume(test) else { return };
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return leave_out(test, "only root can be another user");
    }
    let place = {
        drop(place);
        Place::new()
    };
    let copy = place.program_for_all();
    let library = "libaze_intercept.so";
    std::fs::copy(program().with_file_name(library), place.path(library)).expect("a copy");
    for name in ["run", "config", "state"] {
        std::fs::create_dir_all(place.path(name)).expect("a directory");
        std::os::unix::fs::chown(place.path(name), Some(USER), Some(USER)).expect("root may do that");
    }
    let user = |words: &[&str]| {
        let as_root = place.command(words);
        let mut command = Command::new("setpriv");
        let id = USER.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(&copy).args(words).current_dir("/");
        command.envs(as_root.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        command
    };
    run(&mut user(&["up", "--size", "1G", "--servers", "2"]));
    // Root takes no record of another user's.
    let copied = Command::new("cp").arg("-r").args([place.path("run"), place.path("of-root")]).output();
    assert!(copied.expect("it starts").status.success());
    let shell = |script: &str| run(&mut user(&through("intercept", script))).out;
    shell("mkdir -p /aze/p/d; for i in {1..20}; do echo $i > /aze/p/d/f$i; done");
    let script =
        "while read -r; do n=0; for i in {1..20} {1..20}; do [ -e /aze/p/d/f$i ] && n=$((n+1)); done; echo $n; done";
    let mut watcher = user(&through("intercept", script));
    let mut watcher = watcher.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let (mut input, output) = (watcher.stdin.take().expect("a pipe"), watcher.stdout.take().expect("a pipe"));
    let mut output = BufReader::new(output);
    let mut finds = || {
        let mut line = String::new();
        writeln!(input).expect("it reads");
        output.read_line(&mut line).expect("it answers");
        line.trim().parse::<u32>().expect("a number")
    };
    assert_eq!((finds(), finds()), (40, 40));
    for dir in ["/aze/p/d", "/aze/p", "/aze/p/d", "/aze/p"] {
        shell(&format!("chmod 0 {dir}"));
        // Root may search it, and has each server publish it again in its new state.
        for number in 1..=20 {
            run(place.command(&["stat", &format!("aze:/p/d/f{number}")]).env("AZE_RUN_DIR", place.path("of-root")));
        }
        assert_eq!((finds(), finds()), (0, 0), "{dir} is closed");
        shell(&format!("chmod 755 {dir}"));
        assert_eq!((finds(), finds()), (40, 40), "{dir} is open again");
    }
    drop(input);
    assert!(watcher.wait().expect("it ends").success());
    run(&mut user(&["down"]));
}

/// Of an open file the agent may know more than the servers do, such as times of writes.
#[test]
fn what_processes_of_one_run_do_is_seen_by_the_others() {
    let Some((place, _)) = volume("what_processes_of_one_run_do_is_seen_by_the_others") else { return };
    let text = r#"
import os, time
os.mkdir('/aze/d')
for name in ('f', 'g'): open(f'/aze/d/{name}', 'w').write('x' * 3000000)
for i in range(10): os.stat('/aze/d/f'); os.path.exists(f'/aze/d/no{i}')
for round in range(30):
    fd = os.open('/aze/d/f', os.O_RDWR)
    before = os.stat('/aze/d/g').st_ctime_ns
    for part in range(2):
        if os.fork() == 0:
            # Within the file, and beyond its first chunk: the servers are told of the second time later.
            os.pwrite(fd, b'y', 2000000 + round); os._exit(0)
        os.wait()
        after = os.stat('/aze/d/f').st_mtime_ns
        assert after > before, (round, part, 'the time of a write')
        before = after
    os.close(fd)
    open('/aze/d/g', 'a').write('z')
    s = os.stat('/aze/d/g')
    assert (s.st_size, s.st_ctime_ns > after) == (3000001 + round, True), (round, s)
    os.chmod('/aze/d/g', 0o600 + round % 8); assert os.stat('/aze/d/g').st_mode & 0o7777 == 0o600 + round % 8
    os.rename('/aze/d/g', '/aze/d/h'); assert not os.path.exists('/aze/d/g') and os.path.exists('/aze/d/h')
    os.rename('/aze/d/h', '/aze/d/g'); assert os.path.exists('/aze/d/g') and not os.path.exists('/aze/d/h')
    os.mkdir('/aze/d/no1'); assert os.path.isdir('/aze/d/no1'); os.rmdir('/aze/d/no1'); assert not os.path.exists('/aze/d/no1')
    os.symlink('g', '/aze/d/no2'); assert os.path.getsize('/aze/d/no2') == s.st_size; os.unlink('/aze/d/no2')
    assert not os.path.lexists('/aze/d/no2')
print('the same')
"#;
    assert_eq!(place.aze(&["run", "--door", "intercept", "--", "python3", "-c", text]).ok().out, "the same\n");
}

/// By what the system tells of the end of a process, which comes after it has no memory and no connection any more.
fn process(pid: u32) -> OwnedFd {
    // SAFETY: pidfd_open(2) takes two numbers.
    let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    assert!(number >= 0, "process {pid}");
    // SAFETY: nothing else knows the new descriptor.
    unsafe { OwnedFd::from_raw_fd(number as i32) }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `asked` lives until the call returns.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
}

#[test]
fn nothing_is_believed_of_a_server_that_was_killed_nor_without_an_agent() {
    let test = "nothing_is_believed_of_a_server_that_was_killed_nor_without_an_agent";
    for kills_agent in [true, false] {
        let Some((place, name)) = volume(test) else { return };
        place.aze(&through("intercept", "mkdir /aze/d; for i in {1..20}; do echo 123 > /aze/d/f$i; done")).ok();
        let mut watcher = Watcher::start(&place);
        let paths: Vec<String> = (1..=20).flat_map(|i| [format!("/aze/d/f{i}"), format!("/aze/d/none{i}")]).collect();
        for path in &paths {
            let expected = if path.contains("none") { "ENOENT no ENOENT" } else { "4:644:1 yes" };
            assert_eq!(watcher.says(path), expected, "{path}");
        }
        wait_until("the agent of the first program has ended", || agent_pids(&place).len() == 1);
        // The other server goes on, and has a part of the names.
        let agent = agent_pids(&place)[0];
        let killed = if kills_agent { agent } else { servers::pids(&place, &name)[1] };
        let process = process(killed);
        if !kills_agent {
            // It cannot tell its programs of the server's end.
            signal(agent, libc::SIGSTOP);
        }
        signal(killed, libc::SIGKILL);
        wait_until("it has ended", || has_ended(&process));
        // A name that does not exist may be asked for always: another one may share its counter.
        let paths: Vec<&String> = paths.iter().filter(|path| kills_agent || !path.contains("none")).collect();
        let input = watcher.input.as_mut().expect("a pipe");
        paths.iter().for_each(|path| writeln!(input, "{path}").expect("it reads"));
        // Those before the first that needs the agent, if the server's end is seen.
        let mut said: Vec<String> = std::iter::from_fn(|| watcher.said.recv_timeout(QUIET).ok()).collect();
        if !kills_agent {
            signal(agent, libc::SIGCONT);
        }
        while said.len() < paths.len() {
            said.push(watcher.said.recv_timeout(PATIENCE).expect("it answers"));
        }
        let mut gone = 0;
        for (path, said) in paths.iter().zip(&said) {
            assert!(said == "EIO no EIO" || said == "4:644:1 yes" && !kills_agent, "{path}: {said}");
            gone += usize::from(said.starts_with("EIO"));
            // The server that lives has a newer map, so that its names need the agent, too; those of the other one fail again.
            assert_eq!(watcher.says(path), *said, "{path}: what was said first");
        }
        // Of the files that are there, the other server has about a half.
        assert!(if kills_agent { gone == paths.len() } else { gone > 2 }, "{gone} of {} names are gone", paths.len());
    }
}

#[test]
fn threads_handlers_of_signals_and_children_look_names_up_at_once() {
    let test = "threads_handlers_of_signals_and_children_look_names_up_at_once";
    let Some((place, _)) = volume(test) else { return };
    let program = place.path("looks");
    let mut cc = Command::new("cc");
    run(cc
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(clib::sources().join("looks.c")));
    let script = format!("mkdir /aze/d; echo 123 > /aze/d/there; {} /aze/d", program.display());
    for way in [("AZE_INTERCEPT", ""), SYMBOLS] {
        let mut command = place.command(&through("intercept", &format!("rm -rf /aze/d; {script}")));
        let ran: Ran = command.env(way.0, way.1).output().expect("it starts").into();
        assert_eq!(ran.ok().out, "right\n", "{way:?}");
    }
}
