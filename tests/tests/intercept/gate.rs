//! The gate: trees of processes that end, are stopped, or are killed, at many moments. Nothing of theirs is left in the
//! servers, and a stopped process stops neither the agent nor the others.

use aze_tests::{Draw, PATIENCE, Place, clib, run, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The words before a program whose system calls are intercepted.
fn intercepted(script: &str) -> [&str; 7] {
    ["run", "--door", "intercept", "--", "bash", "-c", script]
}

/// A tree of processes with open files, positions that they share, and locks: pipes, a make, processes of python,
/// children of posix_spawn(3), in `$MPI` processes of MPI. The witness is not stopped: it writes, reads, and repeats
/// each line it gets.
const TREE: &str = r#"
    cd /aze/tree && exec 7<&0 8>&1 > /dev/null < /dev/null 3<> shared 4>> log
    WITNESS=1 bash -c 'echo ready; while read -r line; do
        echo "$line" > witness; read -r back < witness; names=(*); [ ${#names[@]} -gt 3 ] && echo "$back"; done' <&7 >&8 &
    ( flock 3; seq 1 200 | tee -a log | sort -rn | head -n 1 >&4 ) & waited=$!
    make -s -j8 -f Makefile p & waited="$waited $!"
    { python3 m.py && echo done > python.said; } & waited="$waited $!"
    $DOORS /aze/tree/doors > doors.said & waited="$waited $!"
    flock other sh -c 'echo held > held; cat empty' & waited="$waited $!"
    if [ -n "$MPI" ]; then $MPI /aze/tree/ranks > ranks.said & waited="$waited $!"; fi
    wait $waited
    test -s p && grep -qx 200 log && grep -q done python.said && grep -q same doors.said &&
        { [ -z "$MPI" ] || grep -q 'well with 4' ranks.said; }"#;

const PREPARE: &str = r#"
    mkdir -p /aze/tree/doors /aze/tree/ranks && cd /aze/tree
    for i in 1 2 3 4 5 6 7 8; do echo "int f$i(void) { return $i; }" > f$i.c; done
    printf 'p: f1.o f2.o f3.o f4.o f5.o f6.o f7.o f8.o\n\tcat $^ > p\n%%.o: %%.c\n\tcc -c -o $@ $<\n' > Makefile
    printf 'import multiprocessing as mp\ndef f(i): return len(open("shared", "a+").read())\n' > m.py
    printf 'if __name__ == "__main__":\n for m in ("fork", "spawn"):\n  with mp.get_context(m).Pool(2) as p: p.map(f, range(4))\n' >> m.py
    touch held empty"#;

/// Every file that a tree locks can be locked as a whole, and the place is as it was.
const FREE: &str = r#"
    cd /aze/tree && rm -f log p witness *.o *.said && flock -n shared true && flock -n other true && python3 -c '
import fcntl, glob
files = ["shared", "other"] + glob.glob("doors/*") + glob.glob("ranks/*")
for file in files:
    with open(file, "a") as f:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)' &&
    rm -r doors ranks && mkdir doors ranks"#;

/// How long a tree may take on a machine that is busy.
const TREE_TIME_MAX: Duration = Duration::from_secs(200);

/// How a test treats a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Ends,
    Killed,
    StoppedAndGoesOn,
    StoppedAndKilled,
}

const FATES: [Fate; 4] = [Fate::Ends, Fate::Killed, Fate::StoppedAndGoesOn, Fate::StoppedAndKilled];

/// Marks by which a moment is chosen: a file of the tree has got so long, in bytes.
const MARKS: &[(&str, u64)] = &[
    ("log", 0),
    ("log", 1),
    ("held", 5),
    ("f1.o", 1),
    ("f6.o", 1),
    ("doors/in", 1),
    ("doors/out", 1),
    ("python.said", 1),
    ("p", 1),
    ("log", 693),
    ("ranks/shared", 1),
    ("ranks/all", 0),
];

/// Runs `rounds` trees in a place with one volume of two servers. `mpi` has the commands that start four processes of MPI; in
/// turn, a tree runs one of them, or none.
pub fn pass(place: &mut Place, rounds: usize, mpi: &[&str]) {
    place.allow(Duration::from_secs(120 + 30 * rounds as u64));
    let doors = compiled(place);
    place.aze(&intercepted(PREPARE)).ok();
    let mut draw = Draw::new(1, 15);
    let mut stopped_before_the_end = 0;
    for round in 0..rounds {
        let (fate, mpi) = (FATES[round % FATES.len()], mpi.get((round / FATES.len()) % (mpi.len() + 1)).unwrap_or(&""));
        let mark = MARKS[draw.below(MARKS.len() as u64) as usize];
        let mut tree = Tree::start(place, &doors, mpi);
        let is_stopped = matches!(fate, Fate::StoppedAndGoesOn | Fate::StoppedAndKilled);
        if is_stopped {
            tree.witness_says("ready", place);
        }
        if fate != Fate::Ends {
            tree.has_come_to(place, mark);
        }
        if is_stopped {
            stopped_before_the_end += usize::from(tree.stop(place) > 0);
            tree.witness_answers(&format!("round {round}"), place);
        }
        match fate {
            Fate::Killed | Fate::StoppedAndKilled => tree.kill(place),
            Fate::StoppedAndGoesOn => tree.go_on(place),
            Fate::Ends => {}
        }
        tree.ends(place, &format!("round {round}, {fate:?} at {mark:?}, MPI '{mpi}'"), fate);
        place.aze(&intercepted(FREE)).ok();
    }
    assert!(
        stopped_before_the_end >= rounds / 8,
        "{stopped_before_the_end} of {rounds} trees were stopped in the middle"
    );
}

/// Compiles `tests/c/doors.c`.
pub fn compiled(place: &Place) -> PathBuf {
    let made = place.path("doors");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&made);
    run(cc.arg(clib::sources().join("doors.c")));
    made
}

/// How many files all servers have as open.
pub fn opens(place: &Place) -> u64 {
    let text = place.aze(&["status", "--json"]).ok().out;
    let status: serde_json::Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    let servers = status["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 2, "{text}");
    servers.iter().map(|server| server["opens"].as_u64().expect("a number")).sum()
}

/// The files of agents and mounts of this place's volume that have not been taken away.
pub fn agents(place: &Place) -> Vec<PathBuf> {
    let volumes = fs::read_dir(place.path("run")).expect("a directory").flatten();
    let files = volumes.filter_map(|volume| fs::read_dir(volume.path().join("mounts")).ok());
    files.flat_map(|files| files.flatten().map(|file| file.path()).collect::<Vec<_>>()).collect()
}

struct Tree {
    child: Child,
    said: Receiver<String>,
}

impl Tree {
    fn start(place: &Place, doors: &Path, mpi: &str) -> Tree {
        let mut command = place.command(&intercepted(TREE));
        command.env("DOORS", doors).env("MPI", mpi).env("TMPDIR", &place.dir);
        let errors = fs::File::create(place.path("tree.err")).expect("a file");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().expect("it starts");
        let said = lines(child.stdout.take().expect("a pipe"));
        Tree { child, said }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_some()
    }

    /// Waits until the tree has made a file so long, or has ended without.
    fn has_come_to(&mut self, place: &Place, (file, bytes): (&str, u64)) {
        let begun = Instant::now();
        while !self.has_ended() && begun.elapsed() < PATIENCE {
            let stat = place.aze(&["stat", "--json", &format!("aze:/tree/{file}")]);
            let stat: Option<serde_json::Value> = serde_json::from_str(stat.out.lines().next().unwrap_or("")).ok();
            if stat.is_some_and(|stat| stat["size"].as_u64().is_some_and(|size| size >= bytes)) {
                return;
            }
        }
    }

    /// Processes of the tree that run, but for the witness.
    fn processes(&self, place: &Place) -> BTreeSet<u32> {
        let agent = format!("AZE_AGENT={}/", place.path("run").display());
        let is_ours = |pid: &u32| {
            let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = text.split(|byte| *byte == 0);
            variables.clone().any(|variable| variable.starts_with(agent.as_bytes()))
                && !variables.any(|variable| variable == b"WITNESS=1")
        };
        let entries = fs::read_dir("/proc").expect("processes").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| *pid == self.child.id() || is_ours(pid))
            .filter(|pid| !matches!(state(*pid), 'Z' | 'X'))
            .collect()
    }

    /// Sends a signal to all processes again and again until all are as they should be.
    fn signal_until(&self, place: &Place, number: i32, is_done: impl Fn(u32) -> bool) -> usize {
        let mut most = 0;
        wait_until("all processes of the tree have got a signal", || {
            let left: Vec<u32> = self.processes(place).into_iter().filter(|pid| !is_done(*pid)).collect();
            most = most.max(left.len());
            for pid in &left {
                // SAFETY: kill(2) takes two numbers and touches no memory. One that has ended meanwhile is no matter.
                unsafe { libc::kill(*pid as i32, number) };
            }
            left.is_empty()
        });
        most
    }

    /// Stops every process but the witness; gives how many there were.
    fn stop(&mut self, place: &Place) -> usize {
        // The parent of vfork(2) waits for its child, and stops when that has gone on.
        let is_stopped = |pid| {
            matches!(state(pid), 'T' | 'Z' | 'X') || state(pid) == 'D' && children(pid).any(|pid| state(pid) == 'T')
        };
        // A process in the middle of a fork has children that are not seen at the first look.
        let first = self.signal_until(place, libc::SIGSTOP, is_stopped);
        self.signal_until(place, libc::SIGSTOP, is_stopped);
        first
    }

    fn go_on(&mut self, place: &Place) {
        // All get it: one that waits for its child of vfork(2) does not look stopped, and stops when that has gone on.
        for pid in self.processes(place) {
            // SAFETY: kill(2) takes two numbers and touches no memory. One that has ended meanwhile is no matter.
            unsafe { libc::kill(pid as i32, libc::SIGCONT) };
        }
        self.signal_until(place, libc::SIGCONT, |pid| state(pid) != 'T');
    }

    fn kill(&mut self, place: &Place) {
        self.signal_until(place, libc::SIGKILL, |_| false);
    }

    /// A process that shares the agent with those that are stopped does its work. A tree that has ended before has none.
    fn witness_answers(&mut self, line: &str, place: &Place) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("the witness reads");
        self.witness_says(line, place);
    }

    fn witness_says(&self, line: &str, place: &Place) {
        let said = self.said.recv_timeout(PATIENCE);
        assert_eq!(said.as_deref(), Ok(line), "what a process beside those of the tree says: {:#?}", self.shown(place));
    }

    /// The processes with their states.
    fn shown(&self, place: &Place) -> Vec<String> {
        let shown = |pid: u32| format!("{pid} {} {}", state(pid), read(pid, "cmdline").replace('\0', " "));
        self.processes(place).into_iter().map(shown).collect()
    }

    /// The end of all processes, and of what they had in the servers.
    fn ends(&mut self, place: &Place, what: &str, fate: Fate) {
        let begun = Instant::now();
        while !self.has_ended() {
            let shown = || self.shown(place);
            assert!(begun.elapsed() < TREE_TIME_MAX, "{what} has not ended: {:#?}", shown());
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let status = self.child.wait().expect("it ends");
        // The end of the witness's input is its own.
        drop(self.child.stdin.take());
        let errors = || fs::read_to_string(place.path("tree.err")).unwrap_or_default();
        if matches!(fate, Fate::Ends | Fate::StoppedAndGoesOn) {
            assert!(status.success(), "{what}: {status}: {}", errors());
        }
        wait_until(&format!("no file is open after {what}"), || opens(place) == 0);
        let waiting = Instant::now();
        loop {
            let left = agents(place);
            if left.is_empty() {
                break;
            }
            let shown = || self.shown(place);
            assert!(waiting.elapsed() < PATIENCE, "{left:?} is left after {what}: {:#?}", shown());
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(!errors().contains("defect of libaze_intercept"), "{what}: {}", errors());
    }
}

/// The letter of a process's state; `X` if there is none.
fn state(pid: u32) -> char {
    read(pid, "stat").rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('X')
}

/// A file of procfs; empty if the process has gone.
fn read(pid: u32, file: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default()).into_owned()
}

/// The children of all threads of a process.
fn children(pid: u32) -> impl Iterator<Item = u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
}

/// The lines of a pipe, as they come.
fn lines(pipe: ChildStdout) -> Receiver<String> {
    let (give, take) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = give.send(line);
        }
    });
    take
}
