//! `aze doctor`: looks at every node, before the job, for what a volume needs there.
//!
//! It runs itself on each node by the launcher, as `aze up` runs servers. Each writes one report as a line of JSON, then
//! measures the way to other nodes when it is asked to, and ends with its standard input.

use crate::exit::{Exit, Outcome, Trouble};
use crate::hosts::Hosts;
use crate::memory::Memory;
use crate::process::Process;
use crate::up::CAPACITY_BYTES_MIN;
use crate::version::COMMIT;
use crate::{launch, namespace, size, sys, volume};
use aze_proto::limits::WIRE_VERSION;
use aze_words::outln;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long one node sends to another for the bandwidth between them.
const SEND_TIME: Duration = Duration::from_millis(300);

/// With so many nodes at most each sends to all others; with more each to the next one, unless all are asked for.
const PAIRS_NODES_MAX: usize = 16;

/// After so many failures of a node it is tried no more.
const PAIR_FAILURES_MAX: u32 = 2;

/// How long a node tries to connect to another.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// How long a launcher gets to end with its input.
const END_TIME: Duration = Duration::from_secs(1);

/// Clocks may differ by so much (see `docs/semantics.md`); a tenth of a second is worth a warning.
const CLOCKS_NS_MAX: i64 = 60_000_000_000;
const CLOCKS_NS_WARNED: i64 = 100_000_000;

/// Descriptors below which a server may not hold the connections of a large job.
const DESCRIPTORS_MIN: u64 = 4096;

/// Look at every node for what a volume needs there.
///
/// No server is started, and only the run directory is made. Each problem is named with its remedy.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze doctor                          this machine
  aze doctor --hosts node1,node2      both nodes, and the network between them
  aze doctor --from slurm             the nodes of the Slurm job that this runs in")]
pub struct Args {
    #[command(flatten)]
    hosts: Hosts,
    /// Measure the network from each node to every other one, also with more than 16 nodes; else to the next one.
    #[arg(long)]
    all_pairs: bool,
    /// How long all of it may take.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = size::parse_duration)]
    timeout: Duration,
    /// One JSON object for each node.
    #[arg(long)]
    json: bool,
    /// Look at this node, under this name.
    #[arg(long, hide = true, value_name = "NAME")]
    this_node: Option<String>,
}

/// How good one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    /// Something will not work, a volume will.
    Warned,
    /// A volume will not work.
    Bad,
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Finding {
    /// One of [`CHECKS`].
    check: String,
    state: State,
    /// The value found.
    found: String,
    /// What to do about it.
    advice: String,
}

/// The columns of the table, in order.
const CHECKS: [&str; 9] =
    ["launcher", "build", "directory", "memory", "descriptors", "mount", "namespaces", "clock", "network"];

/// What a node says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Report {
    build: String,
    wall_ns: u64,
    /// Where it can be connected to.
    port: u16,
    findings: Vec<Finding>,
}

/// What came of sending to another node.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sent {
    bytes_per_second: u64,
    /// Why nothing was sent.
    error: Option<String>,
}

fn finding(check: &str, state: State, found: impl Into<String>, advice: &str) -> Finding {
    Finding { check: check.into(), state, found: found.into(), advice: advice.into() }
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    if let Some(name) = &args.this_node {
        return look(name);
    }
    let names = args.hosts.names()?;
    let program = args.hosts.program()?;
    let deadline = Instant::now() + args.timeout;
    let nodes: Vec<Option<String>> = match names.is_empty() {
        true => vec![None],
        false => names.into_iter().map(Some).collect(),
    };
    let mut looks = Vec::new();
    for node in &nodes {
        let name = node.as_deref().unwrap_or("127.0.0.1");
        let mut words = node.as_ref().map_or(Ok(Vec::new()), |node| launch::launcher(args.hosts.launcher(), node))?;
        words.push(program.display().to_string());
        words.extend(["doctor", "--this-node", name].map(str::to_owned));
        looks.push(Look::start(name, &words));
    }
    let mut results: Vec<(String, Vec<Finding>)> = Vec::new();
    let reports: Vec<Result<(Report, i64), Finding>> = looks.iter_mut().map(|look| look.report(deadline)).collect();
    let own = build();
    for (look, report) in looks.iter().zip(&reports) {
        let mut findings = Vec::new();
        match report {
            Err(failed) => findings.push(failed.clone()),
            Ok((report, offset_ns)) => {
                findings.push(finding("launcher", State::Good, "the program runs there", ""));
                findings.push(same_build(&own, &report.build));
                findings.extend(report.findings.iter().cloned());
                findings.push(clock(*offset_ns));
            }
        }
        results.push((look.name.clone(), findings));
    }
    let rounds = match looks.len() {
        count if count <= PAIRS_NODES_MAX || args.all_pairs => count - 1,
        _ => 1,
    };
    for (found, (_, findings)) in network(&mut looks, &reports, rounds, deadline).into_iter().zip(&mut results) {
        findings.extend(found);
    }
    for look in looks {
        look.end();
    }
    show(&results, args.json);
    let worst = results.iter().flat_map(|(_, findings)| findings).map(|finding| finding.state).max();
    let is_reached = reports.iter().all(Result::is_ok);
    Ok(match worst {
        Some(State::Bad) if !is_reached => Exit::Again,
        Some(State::Bad) => Exit::Caller,
        _ => Exit::Done,
    })
}

fn build() -> String {
    let commit = COMMIT.map_or(String::new(), |commit| format!(" {commit}"));
    format!("{}{commit} (wire version {WIRE_VERSION})", env!("CARGO_PKG_VERSION"))
}

fn same_build(own: &str, theirs: &str) -> Finding {
    match own == theirs {
        true => finding("build", State::Good, own, ""),
        false => finding(
            "build",
            State::Bad,
            format!("aze {theirs} there, aze {own} here"),
            "install the same build on all nodes, or name it with --remote-aze",
        ),
    }
}

fn clock(offset_ns: i64) -> Finding {
    let seconds = offset_ns as f64 / 1e9;
    let (state, advice) = match offset_ns.abs() {
        CLOCKS_NS_MAX.. => (State::Bad, "set the clocks: times of files would go back and forth (chronyd, ntpd)"),
        CLOCKS_NS_WARNED.. => (State::Warned, "times of files differ by as much between nodes: set the clocks"),
        _ => (State::Good, ""),
    };
    finding("clock", state, format!("{seconds:+.3} s from here"), advice)
}

/// This program at work on one node.
struct Look {
    name: String,
    started: Result<(Child, ChildStdin), String>,
    lines: Receiver<String>,
    /// On this machine's clock.
    asked_ns: u64,
}

impl Look {
    fn start(name: &str, words: &[String]) -> Look {
        let (give, lines) = channel();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let asked_ns = wall_ns();
        let started = command.spawn().map_err(|error| format!("{}: {error}", words[0])).map(|mut child| {
            let input = child.stdin.take().expect("it was given a pipe");
            let output = child.stdout.take().expect("it was given a pipe");
            std::thread::spawn(move || {
                // An error means that the time is over.
                BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| give.send(line))
            });
            (child, input)
        });
        Look { name: name.into(), started, lines, asked_ns }
    }

    /// Its report, and how much later its clock is.
    fn report(&mut self, deadline: Instant) -> Result<(Report, i64), Finding> {
        let advice = "see the launcher's message above; --launcher and --remote-aze say how nodes are reached";
        let bad = |why: String| finding("launcher", State::Bad, why, advice);
        if let Err(why) = &self.started {
            return Err(bad(why.clone()));
        }
        let report: Report = self.hear(deadline).map_err(|why| bad(why.into()))?;
        // It looked at its clock at some moment between the two.
        let heard_ns = wall_ns();
        let offset_ns = match report.wall_ns {
            theirs if theirs < self.asked_ns => -((self.asked_ns - theirs) as i64),
            theirs => theirs.saturating_sub(heard_ns) as i64,
        };
        Ok((report, offset_ns))
    }

    /// Waits for a line of JSON; launchers may print others before it.
    fn hear<T: DeserializeOwned>(&self, deadline: Instant) -> Result<T, &'static str> {
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Ok(heard) = serde_json::from_str(&line) {
                        return Ok(heard);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err("it did not answer in time (--timeout)"),
                Err(RecvTimeoutError::Disconnected) => return Err("it ended without an answer"),
            }
        }
    }

    /// Has it send to another node; [`Look::sent`] waits for the outcome.
    fn send_to(&mut self, address: &str) -> Result<(), String> {
        let Ok((_, input)) = &mut self.started else { return Err("it does not run".into()) };
        writeln!(input, "{address}").and_then(|()| input.flush()).map_err(|error| error.to_string())
    }

    /// Bytes that it has sent in a second.
    fn sent(&self, deadline: Instant) -> Result<u64, String> {
        match self.hear(deadline)? {
            Sent { error: None, bytes_per_second } => Ok(bytes_per_second),
            Sent { error: Some(why), .. } => Err(why),
        }
    }

    /// It ends with its input; a launcher that does not end with it is ended.
    fn end(self) {
        let Ok((mut child, input)) = self.started else { return };
        drop(input);
        let ended = Process::of(child.id()).is_none_or(|process| process.wait(Instant::now() + END_TIME));
        if !ended {
            // It may have ended meanwhile.
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}

/// Has each node send to the next one, then to the one after that, in so many rounds; all nodes at once, so that each
/// sends and receives. Gives the findings of each node.
fn network(
    looks: &mut [Look],
    reports: &[Result<(Report, i64), Finding>],
    rounds: usize,
    deadline: Instant,
) -> Vec<Vec<Finding>> {
    let count = looks.len();
    let mut findings: Vec<Vec<Finding>> = vec![Vec::new(); count];
    let mut rates: Vec<Vec<(u64, String)>> = vec![Vec::new(); count];
    // A node that is cut off makes every other one wait: two failures of it are enough.
    let mut failed = vec![0; count];
    for round in 1..=rounds {
        let mut under_way = Vec::new();
        for index in 0..count {
            let to = (index + round) % count;
            let (Ok(_), Ok((other, _))) = (&reports[index], &reports[to]) else { continue };
            if failed[index].max(failed[to]) >= PAIR_FAILURES_MAX {
                continue;
            }
            let address = format!("{}:{}", looks[to].name, other.port);
            under_way.push((index, to, looks[index].send_to(&address), address));
        }
        for (index, to, asked, address) in under_way {
            match asked.and_then(|()| looks[index].sent(deadline)) {
                Ok(rate) => rates[index].push((rate, address)),
                Err(why) => {
                    failed[index] += 1;
                    failed[to] += 1;
                    findings[index].push(unreachable(&address, &why));
                }
            }
        }
    }
    let mut all: Vec<u64> = rates.iter().flatten().map(|(rate, _)| *rate).collect();
    all.sort_unstable();
    let usual = all.get(all.len() / 2).copied().unwrap_or_default();
    for (found, rates) in findings.iter_mut().zip(rates) {
        found.extend(bandwidth(rates, usual));
    }
    findings
}

fn unreachable(address: &str, why: &str) -> Finding {
    let advice = "open the ports of the nodes to each other, or name other addresses with --hosts";
    finding("network", State::Bad, format!("to {address}: {why}"), advice)
}

/// What one node has sent to others, beside the median of all.
fn bandwidth(mut rates: Vec<(u64, String)>, usual: u64) -> Option<Finding> {
    rates.sort();
    let ((slowest, to), (fastest, _)) = (rates.first()?, rates.last()?);
    let text = match rates.len() {
        1 => format!("{}/s to {to}, by one TCP connection", size::words(*slowest)),
        count => format!(
            "{}/s to {}/s to {count} nodes, by one TCP connection each; slowest to {to}",
            size::words(*slowest),
            size::words(*fastest)
        ),
    };
    let advice = "less than half of the median of all pairs: look at cables, switches and the load of both nodes";
    Some(match *slowest < usual / 2 {
        true => finding("network", State::Warned, text, advice),
        false => finding("network", State::Good, text, ""),
    })
}

fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// One row for each node and one column for each check; then the problems with their remedies.
fn show(results: &[(String, Vec<Finding>)], as_json: bool) {
    if as_json {
        for (node, findings) in results {
            outln!("{}", json!({ "node": node, "findings": findings }));
        }
        return;
    }
    let width = results.iter().map(|(node, _)| node.len()).max().unwrap_or_default().max(4);
    outln!("{:width$}  {}", "node", CHECKS.join("  "));
    for (node, findings) in results {
        let cell = |check: &&str| {
            let word = match findings.iter().find(|finding| finding.check == **check).map(|finding| finding.state) {
                Some(State::Good) => "ok",
                Some(State::Warned) => "warn",
                Some(State::Bad) => "BAD",
                None => "-",
            };
            format!("{word:<len$}", len = check.len())
        };
        let cells: Vec<String> = CHECKS.iter().map(cell).collect();
        outln!("{node:width$}  {}", cells.join("  ").trim_end());
    }
    for (node, findings) in results {
        for Finding { check, found, advice, .. } in findings.iter().filter(|finding| finding.state != State::Good) {
            outln!("{node}: {check}: {found}: {advice}");
        }
    }
    for (node, findings) in results {
        let shown = |finding: &&Finding| matches!(finding.check.as_str(), "memory" | "network");
        for Finding { check, found, .. } in findings.iter().filter(shown).filter(|found| found.state == State::Good) {
            outln!("{node}: {check}: {found}");
        }
    }
}

/// Looks at this node, and measures the way to others for as long as it is asked to.
fn look(name: &str) -> Outcome<Exit> {
    // While this process has one thread.
    let findings = vec![namespaces(), directory(), memory(), descriptors(), mount()];
    let listener = TcpListener::bind((name, 0))
        .map_err(|error| Trouble::local(format!("listen at {name}, its address for other nodes"), &error))?;
    let port = listener.local_addr().map_err(|error| Trouble::local("listen", &error))?.port();
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            std::thread::spawn(move || io::copy(&mut connection, &mut io::sink()));
        }
    });
    say(&Report { build: build(), wall_ns: wall_ns(), port, findings })?;
    for address in io::stdin().lock().lines().map_while(Result::ok) {
        let sent = match send(&address) {
            Ok(bytes_per_second) => Sent { bytes_per_second, error: None },
            Err(error) => Sent { bytes_per_second: 0, error: Some(error.to_string()) },
        };
        say(&sent)?;
    }
    Ok(Exit::Done)
}

fn say(what: &impl Serialize) -> Outcome<()> {
    let line = serde_json::to_string(what).expect("words and numbers become JSON");
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    said.map_err(|error| Trouble::local("write to standard output", &error))
}

/// Bytes a second over one connection, counted until the other end has read all of them.
fn send(address: &str) -> io::Result<u64> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for socket in address.to_socket_addrs()? {
        let mut connection = match TcpStream::connect_timeout(&socket, CONNECT_TIME) {
            Ok(connection) => connection,
            Err(error) => {
                last = error;
                continue;
            }
        };
        connection.set_write_timeout(Some(CONNECT_TIME))?;
        connection.set_read_timeout(Some(CONNECT_TIME))?;
        let (began, mut bytes) = (Instant::now(), 0u64);
        let block = vec![0; 1 << 20];
        while began.elapsed() < SEND_TIME {
            connection.write_all(&block)?;
            bytes += block.len() as u64;
        }
        connection.shutdown(std::net::Shutdown::Write)?;
        // The other end closes when it has read everything.
        io::copy(&mut connection.take(1), &mut io::sink())?;
        return Ok((bytes as f64 / began.elapsed().as_secs_f64()) as u64);
    }
    Err(last)
}

fn directory() -> Finding {
    let advice = "set AZE_RUN_DIR to a directory on this node that only you can write to";
    match volume::run_dir() {
        Ok(dir) => finding("directory", State::Good, dir.display().to_string(), ""),
        Err(trouble) => finding("directory", State::Bad, trouble.to_string(), advice),
    }
}

fn memory() -> Finding {
    let memory = match Memory::now() {
        Ok(memory) => memory,
        Err(trouble) => return finding("memory", State::Bad, trouble.to_string(), "give 'aze up' a --size"),
    };
    match memory.usable() / 2 > CAPACITY_BYTES_MIN {
        true => finding("memory", State::Good, memory.to_string(), ""),
        false => finding("memory", State::Bad, memory.to_string(), "free some, or give the job more memory"),
    }
}

fn descriptors() -> Finding {
    // Servers take the hard limit by themselves.
    let limit = sys::open_files_max().unwrap_or_default();
    let (state, advice) = match limit < DESCRIPTORS_MIN {
        true => (State::Warned, "large jobs need more: an administrator raises the hard limit (limits.conf)"),
        false => (State::Good, ""),
    };
    finding("descriptors", state, format!("at most {limit}"), advice)
}

fn mount() -> Finding {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let is_root = sys::uid() == 0;
    let (found, advice) = match device {
        Err(error) => (
            format!("/dev/fuse: {error}"),
            "an administrator loads the module 'fuse' and opens it: chmod 666 /dev/fuse",
        ),
        Ok(_) if !is_root && !sys::is_installed("fusermount3") => {
            ("no fusermount3".into(), "an administrator installs the package 'fuse3'; 'aze run' does without")
        }
        Ok(_) => return finding("mount", State::Good, "/dev/fuse can be used", ""),
    };
    finding("mount", State::Warned, found, advice)
}

fn namespaces() -> Finding {
    let mut command = Command::new("true");
    // SAFETY: the child has one thread and makes system calls only, with short strings formatted in between; this
    // process has one thread, too, so that no lock of its allocator is held.
    unsafe { command.pre_exec(|| namespace::enter_user().and_then(|()| namespace::enter_mounts())) };
    match command.status() {
        Ok(_) => finding("namespaces", State::Good, "users may make them", ""),
        Err(error) => finding(
            "namespaces",
            State::Warned,
            format!("users may not make them: {error}"),
            "'aze run' does not work; an administrator allows it: sysctl user.max_user_namespaces, or AppArmor's \
             kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_judged_by_their_distance() {
        for (offset_ns, state) in [
            (0, State::Good),
            (-99_000_000, State::Good),
            (-2_000_000_000, State::Warned),
            (61_000_000_000, State::Bad),
        ] {
            assert_eq!(clock(offset_ns).state, state, "{offset_ns}");
        }
    }

    #[test]
    fn a_slow_pair_is_named() {
        let rates = |rates: &[u64]| rates.iter().enumerate().map(|(at, rate)| (*rate, format!("n{at}:1"))).collect();
        let found = bandwidth(rates(&[900, 100, 1000]), 900).expect("there are rates");
        assert!(
            found.state == State::Warned
                && found.found.ends_with("to 3 nodes, by one TCP connection each; slowest to n1:1")
        );
        assert_eq!(bandwidth(rates(&[900, 500]), 900).map(|found| found.state), Some(State::Good));
        assert!(bandwidth(Vec::new(), 900).is_none());
    }

    #[test]
    fn bytes_that_were_sent_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let reads = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().expect("a connection");
            io::copy(&mut connection, &mut io::sink()).expect("it is read")
        });
        assert!(send(&address).expect("it is sent") > 0);
        assert!(reads.join().expect("it has read") >= 1 << 20);
        assert!(send(&address).is_err(), "nobody listens there any more");
    }
}
