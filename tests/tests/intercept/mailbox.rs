//! Programs that wait for their agent at the mailbox of a channel, where the kernel tells nobody that the other side has gone.

use super::{agent_pids, agent_threads, through};
use aze_tests::servers::pids;
use aze_tests::{Place, Ran, signal, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Makes a directory for each line that it reads, and says what came of it.
const MAKER: &str = r#"exec python3 -c "
import errno, os, sys
print(os.getpid(), flush=True)
for line in sys.stdin:
    try:
        os.mkdir('/aze/' + line.strip())
        print('made', flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
""#;

/// A program, and the lines that it says.
struct Program {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(place: &Place, script: &str) -> Program {
        let mut command = place.command(&through("intercept", script));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Program { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn is_told(&mut self, line: &str) {
        self.child.stdin.as_mut().expect("a pipe").write_all(format!("{line}\n").as_bytes()).expect("it reads");
    }

    fn ends(mut self) -> i32 {
        drop(self.child.stdin.take());
        Ran::from(self.child.wait_with_output().expect("it ends")).code
    }
}

/// Whether a process waits in futex(2), and how often it has slept.
fn waits(pid: &str) -> (bool, u64) {
    let of = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it lives");
    let count =
        of("status").lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
    (of("syscall").starts_with(&format!("{} ", libc::SYS_futex)), count.expect("a count"))
}

/// Stops a process; a request that comes then is not answered.
fn stop(pid: u32) {
    signal(pid, libc::SIGSTOP);
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).expect("it lives");
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    wait_until("all of its threads have stopped", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        tasks.map(|task| task.expect("a thread")).all(is_stopped)
    });
}

/// A call lasts as long as the servers need; its program looks meanwhile whether the agent lives. When the agent is killed, a call that is under
/// way fails soon, and those after it at once.
#[test]
fn a_call_that_waits_outlasts_slow_servers_and_ends_with_its_agent() {
    let place = Place::new();
    let volume = place.up(&["--servers", "1"]);
    let mut program = Program::start(&place, MAKER);
    let pid = program.line();
    program.is_told("a");
    assert_eq!(program.line(), "made");
    let servers = pids(&place, &volume);
    assert_eq!(servers.len(), 1);
    stop(servers[0]);
    program.is_told("b");
    wait_until("the call waits", || waits(&pid).0);
    let (_, before) = waits(&pid);
    wait_until("it has looked for its agent twice", || waits(&pid).1 >= before + 2);
    signal(servers[0], libc::SIGCONT);
    assert_eq!(program.line(), "made");
    stop(servers[0]);
    program.is_told("c");
    wait_until("the call waits", || waits(&pid).0);
    let agents = agent_pids(&place);
    assert_eq!(agents.len(), 1);
    let killed = Instant::now();
    signal(agents[0], libc::SIGKILL);
    assert_eq!(program.line(), "EIO");
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    signal(servers[0], libc::SIGCONT);
    program.is_told("d");
    assert_eq!(program.line(), "EIO");
    assert_eq!(program.ends(), 0);
}

/// The kernel closes the channels of a process that becomes another program, and the process lives on: each channel's thread ends.
#[test]
fn channels_of_programs_that_a_process_has_been_end() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let again = "mkdir /aze/$N; rmdir /aze/$N; [ -d /aze/none ] || [ $N = 0 ] || N=$((N - 1)) exec sh -c \"$AGAIN\"; \
                 cd /aze; echo did; read -r _";
    let mut program = Program::start(&place, &format!("export N=40 AGAIN='{again}'; exec sh -c \"$AGAIN\""));
    assert_eq!(program.line(), "did");
    wait_until("the channels of earlier programs have ended", || agent_threads(&place, "aze-channel") <= 1);
    assert_eq!(program.ends(), 1, "there is no line to read");
}
