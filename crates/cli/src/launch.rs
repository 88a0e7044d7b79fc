//! Starting a server process here or on another node, and talking to it until it stands alone.
//!
//! The starter writes an [`Order`] to the server's standard input and reads [`Said`] from its
//! standard output, one JSON value on each line. Nothing secret is ever on a command line. Until the
//! starter has sent the volume's record, a server whose starter disappears ends by itself; a server that is tied
//! does so for ever, and the starter leaves the pipe to `aze hold`.

use crate::batch::{self, System};
use crate::exit::{Exit, Outcome, Trouble};
use crate::local_disks::{Disk, Local};
use crate::memory::Memory;
use crate::process::Process;
use crate::volume::{Backing, Made, Record};
use aze_io::real::until;
use aze_words::errln;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How a program is run on a node where nothing else is said.
pub fn default_launcher() -> &'static str {
    let in_job = std::env::var_os("SLURM_JOB_ID").is_some_and(|id| !id.is_empty());
    if in_job { System::Slurm.launcher() } else { batch::SSH }
}

/// Lines of a log that are shown when a server could not start.
const TAIL_LINES: usize = 12;

/// How long servers get to end by themselves when a start is called off, on a machine whose cores are all busy.
const CALL_OFF_TIME: Duration = Duration::from_secs(30);

/// What a server is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The volume's name.
    pub volume: String,
    /// Its secret in hexadecimal.
    pub secret: String,
    /// The server's place.
    pub slot: u16,
    /// The server that makes the first map, and on a volume in directories counts the starts.
    #[serde(default)]
    pub first: u16,
    /// Servers that are left out of the start.
    #[serde(default)]
    pub without: Vec<u16>,
    /// How many servers the volume was started with, when it was made.
    pub servers: u16,
    /// The server joins a volume in use.
    #[serde(default)]
    pub joins: bool,
    /// Its part of the volume is in those of the places that have one of its number, whichever these are.
    #[serde(default)]
    pub is_there: bool,
    /// How many of them run on the same node.
    pub servers_on_node: u16,
    /// Where the first server listens; empty for itself.
    pub keeper: Vec<String>,
    /// Name or address of the node for TCP.
    pub tcp_host: String,
    /// In its place, the node's address in this network.
    #[serde(default)]
    pub network: Option<String>,
    /// The cores that servers of the node use together; all that they may, if absent.
    #[serde(default)]
    pub cores: Option<String>,
    /// Port for TCP; 0 takes a free one.
    pub tcp_port: u16,
    /// How data travels within a node.
    pub transport: String,
    /// Bytes that it may hold; half of its node's usable memory, divided by its servers, if absent.
    pub capacity_bytes: Option<u64>,
    /// Base-2 logarithm of the chunk size.
    pub chunk_bits: u8,
    /// Number of shards.
    pub shards: u32,
    /// Which server gets which slot: the word of a placement.
    pub placement: String,
    /// Where the volume is kept, if it lasts: all that was given to `--storage`, and one of the words of
    /// `--durability`.
    #[serde(default)]
    pub storage: Option<(Vec<String>, String)>,
    /// How often the volume was started again under its mounts.
    #[serde(default)]
    pub starts: u32,
    /// It comes back alone, to these other servers of the volume.
    #[serde(default)]
    pub others: Option<Vec<Other>>,
    /// It finds the place itself, on a local disk of the job.
    #[serde(default)]
    pub local: Option<Local>,
    /// Bytes that it may keep there; what fits if not given.
    #[serde(default)]
    pub storage_bytes: Option<u64>,
    /// The directory over which the volume lies.
    #[serde(default)]
    pub backing: Option<Backing>,
    /// The node is to have a directory of the volume that the server keeps.
    pub keeps_directory: bool,
    /// The server ends when its standard input does.
    #[serde(default)]
    pub is_tied: bool,
    /// After SIGTERM it has so many milliseconds to leave the volume; absent, it ends at once.
    #[serde(default)]
    pub leave_ms: Option<u64>,
}

/// Another server, for one that comes back alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Other {
    /// Its place.
    pub slot: u16,
    /// Its node's own name.
    pub host: String,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Its process.
    pub pid: u32,
    /// The starter has seen that this has ended.
    pub has_ended: bool,
}

/// The servers of a volume in directories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// How it was made.
    pub made: Made,
    /// The servers that have parts of it.
    pub members: Vec<u16>,
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It can be connected to.
    Listening {
        /// Its node's own name.
        host: String,
        /// Its process there.
        process: Process,
        /// Where it listens.
        addresses: Vec<String>,
        /// The memory of its node, as the server found it.
        memory: Memory,
        /// The local disk that it has found.
        #[serde(default)]
        disk: Option<Disk>,
        /// Which servers have parts of the volume, if that has grown or shrunk and this is the first of them.
        #[serde(default)]
        parts: Option<Parts>,
    },
    /// It was started as the first server of a volume in directories, has no part of that any more, and ends.
    Elsewhere {
        /// Which servers have parts of the volume, if a directory of the node says so.
        parts: Option<Parts>,
    },
    /// It reads its storage.
    Read {
        /// How many records it has read.
        records: u64,
    },
    /// It keeps its part in a file or device.
    KeptBy {
        /// What that is, in words.
        medium: String,
    },
    /// The volume is complete.
    Ready {
        /// Bytes that the server can hold.
        capacity_bytes: u64,
    },
    /// It has the volume's record and needs its starter no longer.
    Kept,
    /// It could not start.
    Failed {
        /// Exit code of the failure.
        exit: u8,
        /// Its story.
        text: String,
    },
    /// Its output has ended. Never written: the reader concludes it.
    Ended,
}

/// A server on its way.
pub struct Starting {
    /// Its place.
    pub slot: u16,
    /// The node as `--hosts` named it.
    pub node: Option<String>,
    child: Child,
    input: Option<ChildStdin>,
    log: PathBuf,
}

impl Starting {
    /// Runs `argv serve`, gives it its order, and lets everything that it says arrive at `said`.
    pub fn start(
        argv: &[String],
        node: Option<&str>,
        dir: &Path,
        order: &Order,
        said: &Sender<(u16, Said)>,
    ) -> Outcome<Starting> {
        // A launcher's words are no server's log: the server of another node keeps that there.
        let kind = if node.is_some() { "launcher" } else { "server" };
        let log = dir.join(format!("{kind}-{}.log", order.slot));
        let failed =
            |error: &std::io::Error| Trouble::local(format!("start {}: run {}", who(order.slot, node), argv[0]), error);
        let open = OpenOptions::new().append(true).create(true).mode(0o600).open(&log);
        let stderr = open.map_err(|error| Trouble::local(format!("open {}", log.display()), &error))?;
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        if node.is_some() {
            // A key that interrupts the shell's job must not reach a launcher, which lives as long as
            // its server. A server of this machine starts a session of its own.
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let output = child.stdout.take().expect("the child was given a pipe");
        let mut input = child.stdin.take().expect("the child was given a pipe");
        let (slot, said) = (order.slot, said.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // A launcher may print a greeting; it is none of ours.
                if let Ok(word) = serde_json::from_str(&line)
                    && said.send((slot, word)).is_err()
                {
                    return;
                }
            }
            // An error means that the starter has given up already.
            let _ = said.send((slot, Said::Ended));
        });
        // A server that ends at once closes the pipe; its own words tell why.
        let _ = send(&mut input, order);
        Ok(Starting { slot, node: node.map(str::to_owned), child, input: Some(input), log })
    }

    /// The process that was started here: the server, or the launcher that runs it elsewhere.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Gives it the volume's record: it needs its starter no longer, but for its input if it is tied.
    pub fn keep(&mut self, record: &Record) {
        if let Some(input) = &mut self.input {
            // If it has ended, its answer will be missing.
            let _ = send(input, record);
        }
    }

    /// The writing end of its standard input; without it, its input ends.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.input.take()
    }

    /// Why it has not come up, as it has told itself.
    pub fn failed(&self, exit: Exit, why: &str) -> Trouble {
        Trouble::new(exit, why).during(format!("start {}", who(self.slot, self.node.as_deref())))
    }

    /// Why it has not come up, with the end of its log.
    pub fn failed_silently(&self, exit: Exit, why: &str) -> Trouble {
        let server = self.log.with_file_name(format!("server-{}.log", self.slot));
        let mut logs = vec![&self.log];
        logs.extend((server != self.log).then_some(&server));
        let text: Vec<u8> = logs.into_iter().flat_map(|log| std::fs::read(log).unwrap_or_default()).collect();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        let tail = if tail.is_empty() { String::new() } else { format!("\n  it wrote:\n    {}", tail.join("\n    ")) };
        self.failed(exit, &format!("{why}{tail}"))
    }
}

/// Lets servers end: by themselves, as their starter is gone, or else by force.
pub fn call_off(mut servers: Vec<Starting>) {
    servers.iter_mut().for_each(|server| drop(server.input.take()));
    let deadline = Instant::now() + CALL_OFF_TIME;
    for mut server in servers {
        if !until(deadline, || matches!(server.child.try_wait(), Ok(Some(_)))) {
            let who = who(server.slot, server.node.as_deref());
            errln!("aze: {who} does not end: ending it by force; an empty directory of its storage may stay behind");
            // An error means that it has ended after all.
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

/// `server 2 on node7`.
pub fn who(slot: u16, node: Option<&str>) -> String {
    match node {
        Some(node) => format!("server {slot} on {node}"),
        None => format!("server {slot}"),
    }
}

/// Splits a launcher's template into words as a shell does, and puts `host` for `{host}`.
pub fn launcher(template: &str, host: &str) -> Outcome<Vec<String>> {
    let words = split(template, None).map_err(|why| Trouble::usage(format!("--launcher '{template}': {why}")))?;
    if words.is_empty() || !template.contains("{host}") {
        return Err(Trouble::usage(format!(
            "--launcher '{template}': expected a program with {{host}} among its words, such as '{}'",
            batch::SSH
        )));
    }
    Ok(words.into_iter().map(|word| word.replace("{host}", host)).collect())
}

fn send(input: &mut ChildStdin, value: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    input.write_all(&line)?;
    input.flush()
}

/// Words separated by blanks, with single and double quotes and backslashes. With `variables`, `$NAME` and `${NAME}` outside of
/// single quotes are replaced, and what comes of them is not split.
///
/// # Errors
/// The reason: a quote is open, or a variable has no value or no name.
pub fn split(text: &str, variables: Option<crate::job::Lookup<'_>>) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => word.get_or_insert_default().push(chars.next().ok_or(OPEN)?),
            (_, '$') if variables.is_some() => {
                let name = variable_name(&mut chars)?;
                let value = variables.map_or(Ok(String::new()), |lookup| lookup(&name))?;
                word.get_or_insert_default().push_str(&value);
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_none() { Ok(words) } else { Err(OPEN.into()) }
}

/// The name behind a dollar, in braces or without.
fn variable_name(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, String> {
    let in_braces = chars.next_if_eq(&'{').is_some();
    let mut name = String::new();
    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    if name.is_empty() || in_braces && chars.next_if_eq(&'}').is_none() {
        return Err("behind '$' stands no NAME or {NAME}: a '$' that is meant stands in single quotes".into());
    }
    Ok(name)
}

/// Why words cannot be split.
const OPEN: &str = "a quote is not closed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_split_like_in_a_shell() {
        let words = |text: &str| split(text, None).ok().map(|words| words.join("|"));
        assert_eq!(words("ssh -o  BatchMode=yes {host}").as_deref(), Some("ssh|-o|BatchMode=yes|{host}"));
        assert_eq!(words(r#"a 'b c' "d 'e'" f\ g ''"#).as_deref(), Some("a|b c|d 'e'|f g|"));
        assert_eq!(words("a 'b"), None);
        assert_eq!(words("a \\"), None);
        assert_eq!(words("").as_deref(), Some(""));
        assert_eq!(words("$a ${b").as_deref(), Some("$a|${b"));
        let lookup = |name: &str| if name == "A" { Ok("x y".to_owned()) } else { Err(format!("{name} is not set")) };
        let words = |text: &str| split(text, Some(&lookup)).map(|words| words.join("|"));
        assert_eq!(words(r#"$A-1 "${A}" '$A' \$A"#), Ok("x y-1|x y|$A|$A".to_owned()));
        assert_eq!(words("$B"), Err("B is not set".into()));
        for text in ["$", "a$ b", "${A", "${}"] {
            assert!(words(text).is_err_and(|why| why.contains("no NAME")), "{text}");
        }
    }

    #[test]
    fn the_host_is_put_into_every_word() {
        let argv = launcher("env AZE_RUN_DIR=/x/{host} ssh {host}", "n1").unwrap();
        assert_eq!(argv, ["env", "AZE_RUN_DIR=/x/n1", "ssh", "n1"]);
        assert_eq!(launcher("ssh", "n1").unwrap_err().exit, Exit::Usage);
        assert_eq!(launcher("ssh '{host}", "n1").unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn what_servers_say_is_stable() {
        let said = Said::Failed { exit: 6, text: "no".into() };
        assert_eq!(serde_json::to_string(&said).unwrap(), r#"{"failed":{"exit":6,"text":"no"}}"#);
        assert_eq!(serde_json::from_str::<Said>("\"kept\"").unwrap(), Said::Kept);
    }
}
