//! `aze bench clients`: what clients cost servers that hardly use them: memory, connections, requests. A volume in memory is started, some
//! processes of this program hold many clients each, and servers are looked at before, when all are connected, when each has a file open, and
//! after a while without work.

use crate::program::{Program, Session};
use crate::record::{self, Keep};
use crate::started::{self, Started};
use aze_client::{Access, File, NewFile};
use aze_proto::FileKind;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::{errln, out, outln};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  aze bench clients                              10,000 clients of two servers, held by four processes
  aze bench clients --clients 200 --idle 2s --json";

/// Rights of the files that are made.
const MODE: u32 = 0o600;

/// What clients cost servers: memory, connections, and requests while they do nothing.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Clients
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    clients: u64,
    /// Processes that hold them
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    procs: u64,
    /// Servers of the volume
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// How clients reach servers: tcp, uds
    #[arg(long, value_name = "KIND", default_value = "tcp", value_parser = ["tcp", "uds"])]
    transport: String,
    /// How long the clients rest at the end
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = aze_words::size::parse_duration)]
    idle: Duration,
    /// Write result.json and result.txt into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One process of it, which it starts.
#[derive(clap::Args)]
pub struct HolderArgs {
    /// Name of the volume
    name: String,
    /// Clients
    clients: usize,
    /// Number of the first one
    first: usize,
}

/// What servers have at one moment, all together.
#[derive(Clone, Copy)]
struct Look {
    moment: &'static str,
    memory_bytes: i64,
    connections: u64,
    sessions: u64,
    opens: u64,
}

/// A process that holds clients.
struct Holder {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    fn start(name: &str, clients: u64, first: u64) -> Outcome<Holder> {
        let failed = |error: &io::Error| Trouble::local("start a process that holds clients", error);
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut command = Command::new(program);
        command.args(["bench", "clients-holder", name]).args([clients.to_string(), first.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| failed(&error))?;
        let answers = BufReader::new(child.stdout.take().expect("it was given a pipe"));
        Ok(Holder { orders: child.stdin.take(), child, answers })
    }

    fn order(&mut self, what: &str) -> Outcome<()> {
        let orders = self.orders.as_mut().expect("it has not ended");
        writeln!(orders, "{what}").map_err(|error| Trouble::local("tell a process that holds clients", &error))
    }

    /// Waits until it has followed the order; it tells its own errors.
    fn done(&mut self) -> Outcome<()> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(_) if line.trim() == "done" => started::go_on(),
            _ => Err(Trouble::new(Exit::Again, "a process that holds clients has ended")),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It ends with its input.
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// Measures, then reports.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    started::hear_signals(program, "clients")?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let name = format!("clients-{}", std::process::id());
    let servers = args.servers.to_string();
    let volume =
        Started::new(program, &name, &["--servers", &servers, "--size", "1G", "--transport", &args.transport])?;
    let mut looks = vec![look(program, &volume, "before")?];
    let mut holders = Vec::new();
    let mut first = 0;
    for process in 0..args.procs {
        let clients = args.clients / args.procs + u64::from(process < args.clients % args.procs);
        holders.push(Holder::start(&name, clients, first)?);
        first += clients;
    }
    holders.iter_mut().try_for_each(Holder::done)?;
    looks.push(look(program, &volume, "connected to all servers")?);
    errln!("bench clients: {} clients are connected", args.clients);
    for (order, moment) in [("open", "each with a file open"), ("close", "and closed again")] {
        holders.iter_mut().try_for_each(|holder| holder.order(order))?;
        holders.iter_mut().try_for_each(Holder::done)?;
        looks.push(look(program, &volume, moment)?);
    }
    let session = volume.open()?;
    let before = requests(&*session)?;
    std::thread::sleep(args.idle);
    started::go_on()?;
    let idle_requests = requests(&*session)?.saturating_sub(before);
    session.end();
    looks.push(look(program, &volume, "idle")?);
    drop(holders);
    report(args, program, keep, &looks, idle_requests)
}

fn look(program: &'static dyn Program, volume: &Started, moment: &'static str) -> Outcome<Look> {
    let memory_bytes = volume.settled_bytes()?;
    let connections = program.connections_of_servers(&volume.name)?;
    let session = volume.open()?;
    let status = session.runtime().block_on(session.client().status());
    let (mut sessions, mut opens) = (0, 0);
    for (server, status) in status {
        let status = status.map_err(|failure| Trouble::volume(format!("ask server {server}"), &failure))?;
        (sessions, opens) = (sessions + status.sessions, opens + status.opens);
    }
    session.end();
    Ok(Look { moment, memory_bytes, connections, sessions, opens })
}

/// Requests that servers have dispatched so far, without those that ask for it.
fn requests(session: &dyn Session) -> Outcome<u64> {
    let mut sum = 0;
    for (server, status) in session.runtime().block_on(session.client().status()) {
        let status = status.map_err(|failure| Trouble::volume(format!("ask server {server}"), &failure))?;
        sum +=
            status.requests.iter().filter(|counter| counter.name != "Status").map(|counter| counter.count).sum::<u64>();
    }
    Ok(sum)
}

/// Holds clients and follows orders, a line each, until its input ends.
pub fn hold(args: &HolderArgs, program: &'static dyn Program) -> Outcome<Exit> {
    let sessions = program.open_many(&args.name, args.clients)?;
    for session in &sessions {
        session.ask("ask all servers for their room", session.client().statfs())?;
    }
    let said = |error: io::Error| Trouble::local("answer", &error);
    let mut files: Vec<Arc<File>> = Vec::new();
    outln!("done");
    io::stdout().flush().map_err(said)?;
    for line in io::stdin().lines() {
        match line.map_err(|error| Trouble::local("read an order", &error))?.as_str() {
            "open" => {
                for (index, session) in sessions.iter().enumerate() {
                    files.push(open(&**session, args.first + index)?);
                }
            }
            _ => {
                for (file, session) in files.drain(..).zip(&sessions) {
                    session.ask("close a file", file.close())?;
                }
            }
        }
        outln!("done");
        io::stdout().flush().map_err(said)?;
    }
    sessions.iter().for_each(|session| session.end());
    Ok(Exit::Done)
}

fn open(session: &dyn Session, number: usize) -> Outcome<Arc<File>> {
    let path = format!("/client-{number}");
    let new = NewFile {
        kind: FileKind::File,
        mode: MODE,
        rdev: 0,
        target: Vec::new(),
        exclusive: true,
        open: Some(Access { read: true, write: true }),
        chunk_bits: 0,
        private: false,
    };
    let made = session.client().create_path(session.who(), path.as_bytes(), &new);
    let made = session.ask(format!("create {path}"), made)?;
    Ok(made.file.expect("an open was asked for"))
}

fn report(
    args: &Args,
    program: &'static dyn Program,
    keep: Option<Keep>,
    looks: &[Look],
    idle_requests: u64,
) -> Outcome<Exit> {
    let base = looks[0];
    let each = |bytes: i64| bytes as f64 / args.clients as f64 / f64::from(args.servers);
    let row = |look: &Look| {
        json!({
            "moment": look.moment,
            "memory_bytes_per_client_and_server": each(look.memory_bytes - base.memory_bytes),
            "connections": look.connections.saturating_sub(base.connections),
            "sessions": look.sessions,
            "opens": look.opens,
        })
    };
    let mut result = record::circumstances(program);
    result["clients"] = args.clients.into();
    result["servers"] = args.servers.into();
    result["transport"] = args.transport.clone().into();
    result["looks"] = looks[1..].iter().map(row).collect::<Vec<Value>>().into();
    result["idle_s"] = args.idle.as_secs_f64().into();
    result["idle_requests"] = idle_requests.into();
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    put(format!(
        "{} clients of {} servers, by {}, held by {} processes",
        args.clients, args.servers, args.transport, args.procs
    ));
    put(format!("{:<28}{:>22}{:>14}{:>12}{:>10}", "", "bytes/client/server", "connections", "sessions", "opens"));
    for look in &looks[1..] {
        let bytes = each(look.memory_bytes - base.memory_bytes);
        let connections = look.connections.saturating_sub(base.connections);
        put(format!("{:<28}{bytes:>22.0}{connections:>14}{:>12}{:>10}", look.moment, look.sessions, look.opens));
    }
    put(format!("requests in {:.0} s in which nobody did anything: {idle_requests}", args.idle.as_secs_f64()));
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        keep.write("result.txt", &text)?;
    }
    if args.json {
        outln!("{result}");
    } else {
        out!("{text}");
    }
    Ok(Exit::Done)
}
