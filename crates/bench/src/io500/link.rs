//! What the coordinator and its ranks say to each other: lines of a rank's number and JSON, orders to the
//! standard input of the rank's process and answers from its standard output, which is all that a
//! launcher has to carry to another node. A rank answers every order; an output that ends means that its
//! process has died.

use super::layout::Phase;
use aze_words::exit::{Exit, Outcome, Trouble};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

/// Where the files are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Where {
    /// In a volume of this name, without a mount.
    Volume(String),
    /// In a directory.
    Directory(PathBuf),
}

/// What a rank has to know before it can do anything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Its number, from 0.
    pub rank: u32,
    /// How many there are.
    pub procs: u32,
    /// How many there are on each node; as many as there are if there is one node.
    pub procs_on_node: u32,
    /// Where the files are.
    pub place: Where,
    /// The run's own directory there.
    pub base: String,
    /// Tells this run's data from those of others.
    pub run: u64,
    /// After how many seconds writing stops.
    pub stonewall_s: f64,
}

/// From the coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Connect. Answered by `Done`.
    Setup(Setup),
    /// Touch memory: write and remove so many bytes. Answered by `Done`.
    Warm(u64),
    /// Write until the stonewall, but no more than `count_max` times. Answered by `Reached`.
    Write {
        phase: Phase,
        count_max: u64,
        /// So often, without a stonewall.
        exactly: bool,
    },
    /// Go on to this count, as some rank has come that far. Answered by `Done`.
    UpTo(u64),
    /// Read, stat or remove `count` files or transfers of another rank. Answered by `Done`.
    Take { phase: Phase, count: u64 },
    /// Search a directory for files that are newer than the time in nanoseconds. Answered by `Walked`.
    Walk { dir: String, since_ns: u64 },
}

/// What a search of one directory came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walked {
    /// Directories come across that remain to be searched.
    pub dirs: Vec<String>,
    /// Entries looked at; absent where servers looked, who do not say.
    pub looked: Option<u64>,
    /// Entries that fit.
    pub found: u64,
}

/// From a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    /// The order is carried out.
    Done,
    /// The stonewall was reached after so many operations.
    Reached(u64),
    /// A directory was searched.
    Walked(Walked),
    /// It has failed and ends: exit code and story.
    Failed { exit: u8, text: String },
}

/// One end: where words come from, and where they go.
pub struct Link {
    rank: u32,
    next: Box<dyn FnMut() -> Option<String> + Send>,
    output: Box<dyn Write + Send>,
}

impl Link {
    /// Takes over both directions. `next` gives line after line of what concerns this rank until the other
    /// side has gone.
    pub fn new(
        rank: u32,
        next: impl FnMut() -> Option<String> + Send + 'static,
        output: impl Write + Send + 'static,
    ) -> Link {
        Link { rank, next: Box::new(next), output: Box::new(output) }
    }

    /// Says something. Blocks only while the other side's buffer is full.
    pub fn say(&mut self, word: &impl Serialize) -> Outcome<()> {
        say(&mut self.output, self.rank, word)
    }

    /// What the other side says next; `None` when it has gone.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Outcome<Option<T>> {
        let Some(line) = (self.next)() else { return Ok(None) };
        parse(&line).map(|(_, word)| Some(word))
    }
}

/// The lines of the input, until it ends. A process that is killed with words unread resets its end.
pub fn lines(input: impl Read + Send + 'static) -> impl FnMut() -> Option<String> + Send + 'static {
    let mut lines = BufReader::new(input).lines();
    move || lines.next()?.ok()
}

/// The rank that a line concerns; nothing if it is none of ours, as a greeting of a launcher.
pub fn rank_of(line: &str) -> Option<u32> {
    let (rank, word) = line.split_once(' ')?;
    rank.parse().ok().filter(|_| word.starts_with(['{', '"']))
}

/// What a line says, and whom it concerns.
pub fn parse<T: DeserializeOwned>(line: &str) -> Outcome<(u32, T)> {
    let told = |why: &str| Trouble::new(Exit::Fatal, format!("bench io500: '{}': {why}", line.trim()));
    let rank = rank_of(line).ok_or_else(|| told("it does not begin with a rank"))?;
    let word = line.split_once(' ').map_or("", |(_, word)| word);
    Ok((rank, serde_json::from_str(word).map_err(|error| told(&error.to_string()))?))
}

/// Writes one line.
pub fn say(output: &mut impl Write, rank: u32, word: &impl Serialize) -> Outcome<()> {
    let mut line = format!("{rank} ").into_bytes();
    serde_json::to_writer(&mut line, word).expect("words of numbers and strings become JSON");
    line.push(b'\n');
    let said = output.write_all(&line).and_then(|()| output.flush());
    said.map_err(|error| Trouble::local("bench io500: speak to another process of the run", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_a_rank_are_ours() {
        let mut line = Vec::new();
        say(&mut line, 12, &Said::Reached(7)).expect("memory takes it");
        let line = String::from_utf8(line).expect("text");
        assert_eq!(rank_of(line.trim()), Some(12));
        assert!(matches!(parse(line.trim()), Ok((12, Said::Reached(7)))), "{line}");
        for greeting in ["Welcome", "3 messages wait", "{\"a\": 1}", "", "x {}"] {
            assert_eq!(rank_of(greeting), None, "{greeting}");
            assert!(parse::<Said>(greeting).is_err(), "{greeting}");
        }
    }
}
