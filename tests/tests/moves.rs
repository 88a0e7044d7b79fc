//! Slots move between servers while a server, the command or everything is killed, a server stands still, or a node is cut off:
//! what programs were told is there afterwards, `aze check` finds nothing, and nothing hangs. A server of a volume in memory that is
//! killed takes its part along: names at other servers are right, and the rest is EIO.
//!
//! `AZE_TEST_SEED` seeds the random choices; the timing depends on the machine. The long form has 233 rounds, or as many as
//! `AZE_TEST_ROUNDS` says for each of the three kinds of volume.

use aze_tests::ledger::Ledger;
use aze_tests::nodes::Nodes;
use aze_tests::servers::runs;
use aze_tests::{Draw, Place, Ran, long, signal, wait_until};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// It draws each trouble at least once in the short form.
const SEED: u64 = 1;

/// Servers of a new volume, and the most that it gets.
const SERVERS: usize = 3;
const SERVERS_MAX: usize = 4;

/// Writers through the mount.
const WRITERS: u64 = 2;

/// Changes that are waited for before slots move, and when the trouble is over.
const STEPS: usize = 20;

/// Longest time from the beginning of a command to the trouble: a move of all slots of one server takes about as long.
const MOMENT_MS_MAX: u64 = 400;

/// Files in the root that no writer changes, every second one with so many bytes: they are most of what moves.
const FILES: usize = 60;
const FILE_BYTES: usize = 1_400_000;

/// How long a change may take in the worst case: some requests, and each waits 10 s for a silent server.
const STEP_TIME_MAX: Duration = Duration::from_secs(50);

/// How long a command may go on when the trouble is over. It gives up a slot that cannot be moved after 60 s.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(90);

/// How long a ledger may be in doubt when the trouble is over.
const DOUBT_TIME_MAX: Duration = Duration::from_secs(60);

/// Rounds with one volume, before another one is made.
const ROUNDS_OF_VOLUME: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Servers with directories on this machine.
    Kept,
    /// Servers in memory on this machine.
    Memory,
    /// Each server on a node of its own, in directories or in memory.
    Nodes { kept: bool },
}

impl Kind {
    fn is_kept(self) -> bool {
        matches!(self, Kind::Kept | Kind::Nodes { kept: true })
    }
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// A server is killed.
    Server,
    /// All servers are killed at one moment.
    Servers,
    /// The command that has slots moved is killed.
    Command,
    /// A server stands still for a while.
    Stopped(Duration),
    /// A server stands still, and another one is killed meanwhile.
    StoppedAndKilled(Duration),
    /// A node is cut off from all others for a while.
    Cut(Duration),
}

impl Trouble {
    /// Each of the troubles of a volume once, with times drawn.
    fn all(kind: Kind, draw: &mut Draw) -> Vec<Trouble> {
        let mut time = || {
            let (short, in_long_form) = ([300, 1500], [3_000, 3_000, 3_000, 20_000, 20_000, 60_000]);
            let millis = match long() {
                true => in_long_form[draw.below(in_long_form.len() as u64) as usize],
                false => short[draw.below(short.len() as u64) as usize],
            };
            Duration::from_millis(millis)
        };
        let (first, second) = (time(), time());
        match kind {
            Kind::Kept => vec![
                Trouble::Server,
                Trouble::Servers,
                Trouble::Command,
                Trouble::Stopped(first),
                Trouble::StoppedAndKilled(second),
            ],
            Kind::Memory => vec![Trouble::Stopped(first), Trouble::Command, Trouble::Server],
            Kind::Nodes { kept: true } => vec![Trouble::Cut(first), Trouble::Server, Trouble::Stopped(second)],
            // Where no client sees that a server of another node has ended, each file that it had is waited for.
            Kind::Nodes { kept: false } => vec![Trouble::Cut(first), Trouble::Command, Trouble::Cut(second)],
        }
    }

    /// Whether acknowledged changes go with it.
    fn loses(self, kind: Kind) -> bool {
        matches!(self, Trouble::Server | Trouble::Servers | Trouble::StoppedAndKilled(_)) && !kind.is_kept()
    }
}

/// A way to have slots move.
#[derive(Clone, Copy, Debug)]
enum Move {
    Grow,
    Shrink(usize),
    /// The server gets SIGTERM.
    Term(usize),
}

impl Move {
    /// The server that is to leave.
    fn leaver(self) -> Option<usize> {
        match self {
            Move::Grow => None,
            Move::Shrink(server) | Move::Term(server) => Some(server),
        }
    }
}

/// A command under way, or a server that leaves by itself.
struct Moving {
    what: Move,
    command: Option<Child>,
    /// The process of the server that leaves.
    leaver: Option<u32>,
}

struct Volume {
    kind: Kind,
    mount: PathBuf,
    nodes: Option<Nodes>,
    place: Place,
}

impl Volume {
    fn new(kind: Kind) -> Volume {
        let mut place = Place::new();
        place.allow(Duration::from_secs(if long() { 3600 } else { 300 }));
        let (storage, servers) = (place.path("storage").display().to_string(), SERVERS.to_string());
        let mut words = vec!["up", "--name", "v", "--size", "512M", "--leave-within", "150s"];
        if kind.is_kept() {
            words.extend(["--storage", &storage]);
        }
        let Kind::Nodes { .. } = kind else {
            place.aze(&[&words[..], &["--servers", &servers]].concat()).ok();
            let mount = place.mount();
            return Volume { kind, mount, nodes: None, place };
        };
        let nodes = Nodes::new("azv", SERVERS_MAX as u32);
        let launcher = nodes.launcher(&place);
        let hosts: Vec<String> = (1..=SERVERS).map(|node| format!("10.66.0.{node}")).collect();
        nodes.aze(&place, 1, &[&words[..], &["--hosts", &hosts.join(","), "--launcher", &launcher]].concat()).ok();
        let mount = nodes.mount(&place, 1, "v");
        Volume { kind, mount, nodes: Some(nodes), place }
    }

    fn command(&self, words: &[&str]) -> Command {
        match &self.nodes {
            Some(nodes) => {
                let program = aze_tests::program().display().to_string();
                nodes.command(&self.place, 1, &[&[program.as_str()], words].concat())
            }
            None => self.place.command(words),
        }
    }

    fn aze(&self, words: &[&str]) -> Ran {
        self.command(words).output().expect("aze starts").into()
    }

    /// Of each number that was given out, what the record says.
    fn servers(&self) -> Vec<Value> {
        let run_dir = if self.nodes.is_some() { "run-10.66.0.1" } else { "run" };
        let text = fs::read(self.place.path(&format!("{run_dir}/v/volume.json"))).expect("a record");
        let record: Value = serde_json::from_slice(&text).expect("JSON");
        record["servers"].as_array().expect("a list").clone()
    }

    /// Numbers of the servers whose processes run.
    fn running(&self) -> Vec<usize> {
        let servers = self.servers();
        (0..servers.len()).filter(|number| runs(pid_of(&servers[*number]))).collect()
    }

    fn pid(&self, server: usize) -> u32 {
        pid_of(&self.servers()[server])
    }

    /// What the servers have written to their logs, for people.
    fn show_logs(&self) {
        let dirs = fs::read_dir(&self.place.dir).into_iter().flatten().flatten();
        let volumes = dirs.map(|entry| entry.path().join("v")).flat_map(|path| [path.join("mounts"), path]);
        for path in volumes.flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|end| end == "log") {
                println!("{}:\n{}", path.display(), fs::read_to_string(&path).unwrap_or_default());
            }
        }
    }

    /// A node without a server.
    fn free_node(&self) -> usize {
        let servers = self.servers();
        let is_on = |node: usize| {
            let name = format!("node{node}");
            servers.iter().any(|server| server["host"] == *name && runs(pid_of(server)))
        };
        (1..=SERVERS_MAX).find(|node| !is_on(*node)).expect("one more node than servers")
    }

    /// The states of all servers, as `aze status` tells them.
    fn states(&self) -> Result<Vec<String>, String> {
        let told = self.aze(&["status", "--json"]);
        let status: Value = serde_json::from_str(&told.out).map_err(|_| told.err)?;
        let servers = status["servers"].as_array().expect("a list");
        Ok(servers.iter().map(|server| server["state"].as_str().expect("a word").to_owned()).collect())
    }

    /// Starts the servers of a volume in directories again that have died.
    fn bring_back(&self, who: &str) {
        let mut told = String::new();
        let until = Instant::now() + COMMAND_TIME_MAX;
        if self.servers().iter().any(|server| server["left"] != true && !runs(pid_of(server))) {
            // One that has left may not be noted yet.
            let begun = Instant::now();
            told = self.aze(&["restart", "--timeout", "60s"]).err;
            println!("{who}: aze restart took {:?}", begun.elapsed());
        }
        loop {
            let states = self.states();
            let is_up = |state: &String| ["up", "left", "joining"].contains(&state.as_str());
            if states.as_ref().is_ok_and(|states| states.iter().all(is_up)) {
                return;
            }
            assert!(Instant::now() < until, "{who}: the servers are {states:?}, and aze restart: {told}");
            told = self.aze(&["restart", "--timeout", "60s"]).err;
        }
    }

    /// The outcome of the command or server that has slots moved, within some time.
    fn end_of(&self, moving: Moving, who: &str) -> String {
        let Some(command) = moving.command else {
            let pid = moving.leaver.expect("a server leaves");
            let until = Instant::now() + COMMAND_TIME_MAX;
            while runs(pid) {
                assert!(Instant::now() < until, "{who}: the server that leaves does not end");
                std::thread::park_timeout(Duration::from_millis(10));
            }
            return "the server has ended".into();
        };
        let ran = ended(command, COMMAND_TIME_MAX).unwrap_or_else(|| panic!("{who}: the command hangs"));
        format!("{}: {}", ran.code, ran.err.lines().last().unwrap_or(""))
    }

    /// Has commands bring the move to its end; they must succeed now.
    fn finish(&self, what: Move, who: &str) {
        let number;
        let words: Vec<&str> = match what {
            Move::Grow => vec!["grow"],
            Move::Shrink(server) | Move::Term(server) => {
                number = server.to_string();
                vec!["shrink", "--servers", &number]
            }
        };
        let is_done = |states: &[String]| {
            states.iter().enumerate().all(|(server, state)| match state.as_str() {
                "up" => what.leaver() != Some(server),
                state => state == "left",
            })
        };
        // A server that a killed command has started may join a moment later.
        for attempt in 1.. {
            let command = self.command(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
            let ran = ended(command.expect("aze starts"), COMMAND_TIME_MAX);
            let ran = ran.unwrap_or_else(|| panic!("{who}: aze {words:?} hangs"));
            assert_eq!(ran.code, 0, "{who}: aze {words:?}, when the trouble is over: {}", ran.err);
            let states = self.states().unwrap_or_else(|why| panic!("{who}: {why}"));
            if is_done(&states) {
                return;
            }
            assert!(attempt < 3, "{who}: after aze {words:?}, {attempt} times: {states:?}");
        }
    }

    /// Has slots move, to one more server or from one of them.
    fn begin(&self, draw: &mut Draw) -> Moving {
        let running = self.running();
        let may_grow = running.len() < SERVERS_MAX;
        let what = if may_grow && (running.len() < SERVERS || draw.below(2) == 0) {
            Move::Grow
        } else {
            // Server 0 of a volume in directories stays, and so does the one on the node of the mount.
            let least = usize::from(self.kind != Kind::Memory);
            let leaves = running[least + draw.below((running.len() - least) as u64) as usize];
            if draw.below(3) == 0 { Move::Term(leaves) } else { Move::Shrink(leaves) }
        };
        Moving { what, leaver: what.leaver().map(|server| self.pid(server)), command: self.act(what) }
    }

    fn act(&self, what: Move) -> Option<Child> {
        let number;
        let words: Vec<&str> = match what {
            Move::Grow if self.nodes.is_some() => {
                number = format!("10.66.0.{}", self.free_node());
                vec!["grow", "--hosts", &number]
            }
            Move::Grow => vec!["grow", "--servers", "1"],
            Move::Shrink(server) => {
                number = server.to_string();
                vec!["shrink", "--servers", &number]
            }
            Move::Term(server) => {
                signal(self.pid(server), libc::SIGTERM);
                return None;
            }
        };
        let mut command = self.command(&words);
        Some(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("aze starts"))
    }
}

/// The process that a record names for a server.
fn pid_of(server: &Value) -> u32 {
    server["process"]["pid"].as_u64().expect("a pid") as u32
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        if let Some(nodes) = &self.nodes {
            nodes.umount(&self.place, 1, &self.mount);
            self.aze(&["down", "--name", "v", "--force", "--discard"]);
        }
    }
}

/// How a command ended; `None` if it goes on for too long, and is ended.
fn ended(mut command: Child, time: Duration) -> Option<Ran> {
    let until = Instant::now() + time;
    while command.try_wait().expect("a child").is_none() {
        if Instant::now() >= until {
            command.kill().expect("it is there");
            command.wait().expect("it ends");
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Some(command.wait_with_output().expect("it has ended").into())
}

fn pause(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}

/// What writers and the rest of a round tell each other.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    /// Errors are explained.
    trouble: AtomicBool,
    /// How often that began: one change may take longer than the trouble.
    troubles: AtomicUsize,
    /// A part of the volume is lost.
    lost: AtomicBool,
    steps: AtomicUsize,
    slowest_ms: AtomicUsize,
}

/// Errors that a program may get while a server is away.
fn is_explained(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT | libc::EBUSY))
}

/// One change after the other. What fails in trouble may have happened, or not: that is looked at before the next one.
fn write(ledger: &Mutex<Ledger>, volume: &Volume, shared: &Shared, who: &str) {
    while !shared.over.load(Ordering::SeqCst) && !shared.lost.load(Ordering::SeqCst) {
        let mut ledger = ledger.lock().expect("no writer panics");
        let (is_explained_now, before) =
            (shared.trouble.load(Ordering::SeqCst), shared.troubles.load(Ordering::SeqCst));
        let begun = Instant::now();
        let done = ledger.step(&volume.mount);
        let took = begun.elapsed();
        shared.slowest_ms.fetch_max(took.as_millis() as usize, Ordering::SeqCst);
        assert!(took < STEP_TIME_MAX, "{who}: a change took {took:?}\n  {}", ledger.story());
        let Err(error) = done else {
            shared.steps.fetch_add(1, Ordering::SeqCst);
            continue;
        };
        let is_in_trouble = is_explained_now || shared.troubles.load(Ordering::SeqCst) != before;
        assert!(is_in_trouble && is_explained(&error), "{who}: {error}: nothing fails\n  {}", ledger.story());
        let mut since = Instant::now();
        while ledger.is_in_doubt() && !shared.lost.load(Ordering::SeqCst) && !shared.over.load(Ordering::SeqCst) {
            let Err(why) = ledger.check(&volume.mount) else { break };
            if shared.trouble.load(Ordering::SeqCst) {
                since = Instant::now();
            }
            let story = ledger.story();
            assert!(
                since.elapsed() < DOUBT_TIME_MAX,
                "{who}: neither as before the last step nor as after: {why}\n  {story}"
            );
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Ends the writers, also on a panic.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

/// Sends a signal; a process that has just ended is ignored.
fn kill_with(pid: u32, signal: i32) {
    // SAFETY: no memory is involved; the process was started by this test.
    unsafe { libc::kill(pid as i32, signal) };
}

fn kill(pid: u32) {
    kill_with(pid, libc::SIGKILL);
}

/// Makes the trouble; a stopped server or a node cut off goes on when it is over.
fn make_trouble(volume: &Volume, moving: &mut Moving, trouble: Trouble, draw: &mut Draw, who: &str) {
    let running = volume.running();
    let victim = running[draw.below(running.len() as u64) as usize];
    let pid = volume.pid(victim);
    println!("{who}: server {victim} of {running:?}");
    match trouble {
        Trouble::Server => kill(pid),
        Trouble::Servers => running.iter().for_each(|server| kill(volume.pid(*server))),
        Trouble::Command => match &mut moving.command {
            Some(command) => command.kill().expect("it is a child"),
            // Batch systems send it more than once.
            None => moving.leaver.into_iter().for_each(|pid| kill_with(pid, libc::SIGTERM)),
        },
        Trouble::Stopped(time) => {
            kill_with(pid, libc::SIGSTOP);
            pause(time);
            kill_with(pid, libc::SIGCONT);
        }
        Trouble::StoppedAndKilled(time) => {
            let other = running.iter().copied().find(|other| *other != victim).expect("there are several");
            kill_with(pid, libc::SIGSTOP);
            pause(time / 2);
            kill(volume.pid(other));
            pause(time / 2);
            kill_with(pid, libc::SIGCONT);
        }
        Trouble::Cut(time) => {
            let nodes = volume.nodes.as_ref().expect("this volume has nodes");
            let node = 1 + draw.below(SERVERS_MAX as u64) as u32;
            nodes.cut(node, true);
            pause(time);
            nodes.cut(node, false);
        }
    }
}

/// Slots move under work, and there is trouble in the middle of it. Gives whether the volume goes on as a whole.
fn round(volume: &Volume, ledgers: &[Mutex<Ledger>], trouble: Trouble, draw: &mut Draw, who: &str) -> bool {
    let shared = Shared::default();
    let is_lost = trouble.loses(volume.kind);
    std::thread::scope(|scope| {
        let ends = Ends(&shared);
        for ledger in ledgers {
            let shared = &shared;
            scope.spawn(move || write(ledger, volume, shared, who));
        }
        let more = |what: &str| {
            let so_far = shared.steps.load(Ordering::SeqCst);
            wait_until(&format!("{who}: {what}"), || shared.steps.load(Ordering::SeqCst) >= so_far + STEPS);
        };
        more("changes are made");
        let mut moving = volume.begin(draw);
        let who = &format!("{who}, {:?}, {trouble:?}", moving.what);
        let what = moving.what;
        pause(Duration::from_millis(draw.below(MOMENT_MS_MAX)));
        shared.trouble.store(true, Ordering::SeqCst);
        shared.troubles.fetch_add(1, Ordering::SeqCst);
        shared.lost.store(is_lost, Ordering::SeqCst);
        make_trouble(volume, &mut moving, trouble, draw, who);
        if volume.kind.is_kept() {
            volume.bring_back(who);
        }
        let outcome = volume.end_of(moving, who);
        println!("{who}: {outcome}");
        if !is_lost {
            if volume.kind.is_kept() {
                // A server that was to leave may have ended instead.
                volume.bring_back(who);
                if !matches!(trouble, Trouble::Stopped(_) | Trouble::Cut(_) | Trouble::Command) {
                    volume.aze(&["restart", "--force"]).ok();
                }
            }
            volume.finish(what, who);
            shared.trouble.store(false, Ordering::SeqCst);
            more("changes are made when the trouble is over");
        }
        drop(ends);
    });
    println!("{who}: the longest change took {} ms", shared.slowest_ms.load(Ordering::SeqCst));
    let (mut lost, mut there) = (0, 0);
    for ledger in ledgers {
        let mut ledger = ledger.lock().expect("no writer has panicked");
        if is_lost {
            let looked = ledger.check_part(&volume.mount);
            let (works, fails) =
                looked.unwrap_or_else(|why| panic!("{who}: {}: {why}\n  {}", ledger.dir, ledger.story()));
            (lost, there) = (lost + fails, there + works);
        } else {
            let checked = ledger.check(&volume.mount);
            checked.unwrap_or_else(|why| panic!("{who}: {}: {why}\n  {}", ledger.dir, ledger.story()));
        }
    }
    let files = right_files(volume, who);
    if is_lost {
        println!("{who}: {there} names are there, {lost} are lost; {files} files in the root are there");
        // Another server than the one that is lost has some.
        assert!(files > FILES / 10, "{who}");
        return false;
    }
    assert_eq!(files, FILES, "{who}: all files are there");
    let checked = volume.aze(&["check", "--name", "v"]);
    assert_eq!(checked.code, 0, "{who}: {}{}", checked.out, checked.err);
    true
}

fn content(at: usize) -> Vec<u8> {
    // Small ones are on two servers at most, large ones on all.
    let len = if at.is_multiple_of(2) { FILE_BYTES } else { 3_000 };
    (0..len as u32).map(|byte| (byte.wrapping_mul(2_654_435_761).wrapping_add(at as u32) >> 13) as u8).collect()
}

/// How many of the files that no writer changes are right; the others are EIO.
fn right_files(volume: &Volume, who: &str) -> usize {
    let is_right = |at: &usize| match fs::read(volume.mount.join(format!("f{at}"))) {
        Ok(bytes) => {
            assert!(bytes == content(*at), "{who}: f{at} is not as it was written");
            true
        }
        Err(error) if error.raw_os_error() == Some(libc::EIO) => false,
        Err(error) => panic!("{who}: f{at}: {error}"),
    };
    (0..FILES).filter(is_right).count()
}

fn rounds(kind: impl Fn(u64) -> Kind, short: usize, in_long_form: usize) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("AZE_TEST_SEED").unwrap_or(SEED);
    let rounds = number("AZE_TEST_ROUNDS").map_or(if long() { in_long_form } else { short }, |count| count as usize);
    let (mut done, mut volumes) = (0, 0);
    while done < rounds {
        let kind = kind(volumes);
        let mut draw = Draw::new(seed, 100 * volumes);
        let volume = Volume::new(kind);
        let ledgers: Vec<Mutex<Ledger>> = (0..WRITERS)
            .map(|who| Mutex::new(Ledger::new(&format!("w{who}"), Draw::new(seed, 100 * volumes + 1 + who))))
            .collect();
        for ledger in &ledgers {
            fs::create_dir(volume.mount.join(&ledger.lock().expect("nobody panics with it").dir)).expect("a directory");
        }
        (0..FILES).for_each(|at| fs::write(volume.mount.join(format!("f{at}")), content(at)).expect("written"));
        let mut troubles = Vec::new();
        for _ in 0..ROUNDS_OF_VOLUME.min(rounds - done) {
            if troubles.is_empty() {
                troubles = Trouble::all(kind, &mut draw);
            }
            let trouble = match kind {
                // Of a volume in memory it is the last one.
                Kind::Memory => troubles.remove(0),
                _ => troubles.swap_remove(draw.below(troubles.len() as u64) as usize),
            };
            let who = format!("AZE_TEST_SEED={seed}, {kind:?}, volume {volumes}, round {done}");
            done += 1;
            if !round(&volume, &ledgers, trouble, &mut draw, &who) {
                break;
            }
        }
        volumes += 1;
    }
}

#[test]
fn acknowledged_changes_survive_trouble_while_slots_move_between_directories() {
    rounds(|_| Kind::Kept, 5, 100);
}

#[test]
fn what_is_not_lost_is_right_when_there_is_trouble_while_slots_move_in_memory() {
    rounds(|_| Kind::Memory, 3, 70);
}

#[test]
fn a_volume_over_nodes_loses_nothing_when_nodes_are_cut_off_while_slots_move() {
    rounds(|volume| Kind::Nodes { kept: volume % 2 == 1 }, 4, 63);
}
