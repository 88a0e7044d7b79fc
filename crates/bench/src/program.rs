//! What measurements need of the program that they are part of: it finds volumes, connects to them, and knows their
//! servers. They get it as a parameter, since they must not use the command line.

use aze_client::Client;
use aze_io::real::Runtime;
use aze_proto::attr::Identity;
use aze_proto::error::Failure;
use aze_words::exit::{Outcome, Trouble};
use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// The program that measures.
pub trait Program: Sync {
    /// The commit that it was built from, if that is known.
    fn commit(&self) -> Option<&'static str>;
    /// The volume of this name; without a name, the one that is meant where none is given.
    fn volume(&self, name: Option<&str>) -> Outcome<Volume>;
    /// Connects to the volume of this name.
    fn open(&self, name: &str) -> Outcome<Arc<dyn Session>>;
    /// Connects so many times to the volume of this name, each time as a client of its own.
    fn open_many(&self, name: &str, clients: usize) -> Outcome<Vec<Arc<dyn Session>>>;
    /// Kills all servers of the volume of this name, by SIGKILL.
    fn kill_servers(&self, name: &str) -> Outcome<()>;
    /// Bytes of memory of the servers of the volume of this name, which all run on this node.
    fn memory_of_servers(&self, name: &str) -> Outcome<i64>;
    /// Time that processors have worked for the servers of the volume of this name, which all run on this node; without a name,
    /// for this process.
    fn processor_time(&self, name: Option<&str>) -> Outcome<Duration>;
    /// Connections that the servers of the volume of this name have open, which all run on this node.
    fn connections_of_servers(&self, name: &str) -> Outcome<u64>;
    /// Bytes of memory that programs of this node may still take.
    fn usable_memory(&self) -> Outcome<u64>;
    /// The words that run a program on a node, with `{host}` for its name: those of the template, else of the default.
    fn launcher(&self, template: Option<&str>) -> Outcome<Vec<String>>;
    /// For how long a kernel may use cached names and attributes of a mount, unless the mount was asked otherwise.
    fn cache_time(&self) -> Duration;
    /// Keeps signals that end a program for [`Program::wait_for_signal`]. To be called before the first thread starts.
    fn hold_signals(&self) -> io::Result<()>;
    /// Blocks until one of these signals comes.
    fn wait_for_signal(&self) -> io::Result<()>;
    /// Has a command that is yet to be started get the signals that this process holds.
    fn with_signals(&self, command: &mut Command);
    /// Tells all processes of the group that the process of this number leads or has led; whether there is any.
    fn tell_group(&self, leader: u32, what: Tell) -> bool;
}

/// What a group of processes is told.
#[derive(Clone, Copy, Debug)]
pub enum Tell {
    /// Nothing: it is only looked whether there is any.
    Nothing,
    /// That it should end.
    End,
    /// That it ends here.
    Kill,
}

/// A connection to a volume; any number of threads may use it.
pub trait Session: Send + Sync {
    /// Asks the servers.
    fn client(&self) -> &Arc<Client>;
    /// On whose behalf.
    fn who(&self) -> &Identity;
    /// Where answers are waited for.
    fn runtime(&self) -> &Runtime;
    /// The volume.
    fn volume(&self) -> Volume;
    /// Removes a directory with all that is in it; one that does not exist is no error. Failures below it are told as
    /// those of this command.
    fn remove_all(&self, command: &'static str, path: &[u8]) -> Outcome<()>;
    /// Ends the session.
    fn end(&self);
}

impl dyn Session + '_ {
    /// Waits for an answer; `what` names the request in an error.
    pub(crate) fn ask<T>(&self, what: impl Display, answer: impl Future<Output = Result<T, Failure>>) -> Outcome<T> {
        self.runtime().block_on(answer).map_err(|failure| Trouble::volume(what, &failure))
    }
}

/// What the record of a running volume says.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// What a power cut leaves, as `--durability` says it; absent where all is in memory.
    pub durability: Option<String>,
    /// The way that its data travel on this node: the best that its servers offer.
    pub transport: String,
    /// The nodes of its servers, one for each server that a launcher started.
    pub nodes: Vec<String>,
    /// The words that run a program on a node; absent if its servers were started without a launcher.
    pub launcher: Option<Vec<String>>,
    /// The program that the launcher runs there.
    pub remote_aze: Option<PathBuf>,
}
