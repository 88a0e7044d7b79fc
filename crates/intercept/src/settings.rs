//! What the environment says: where the agent is, where the volume is seen, and which programs are left alone.
//!
//! Read once, at the start, into memory of its own: the host may change its environment at any time.

use crate::host;
use crate::paths;
use aze_calls::{AGENT_VARIABLE, AT_VARIABLE, BYPASS_VARIABLE, CWD_VARIABLE, VERBOSE_VARIABLE, WAY_VARIABLE};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Environment, set by this library for execve(2) only: the path of the program, if it lies in the volume.
pub const EXE_VARIABLE: &str = "AZE_EXE";
/// Environment: what the loader puts before a program's libraries.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Bytes of the longest text that is kept: a path, or a list of programs.
const TEXT_BYTES_MAX: usize = 4096;

/// A text that is written once, by the start.
pub struct Text {
    length: AtomicUsize,
    bytes: UnsafeCell<[u8; TEXT_BYTES_MAX]>,
}

// SAFETY: `set` runs at the start only, before any other thread reaches this library.
unsafe impl Sync for Text {}

impl Text {
    const fn new() -> Text {
        Text { length: AtomicUsize::new(0), bytes: UnsafeCell::new([0; TEXT_BYTES_MAX]) }
    }

    /// Keeps a text with a NUL behind it; false if it is too long.
    pub fn set(&self, text: &[u8]) -> bool {
        if text.len() >= TEXT_BYTES_MAX {
            return false;
        }
        host::copy(self.bytes.get() as u64, text.as_ptr() as u64, text.len());
        self.length.store(text.len(), SeqCst);
        true
    }

    /// The text; empty if there is none.
    pub fn get(&self) -> &'static [u8] {
        host::bytes(self.bytes.get() as u64, self.length.load(SeqCst))
    }
}

/// Path of the agent's socket.
pub static AGENT: Text = Text::new();
/// Where the volume is seen; absolute, no slash at its end.
pub static AT: Text = Text::new();
/// Programs that are left alone, separated by commas.
pub static BYPASS: Text = Text::new();
/// Path of this library.
pub static LIBRARY: Text = Text::new();
/// Path of this program, if it lies in the volume.
pub static EXE: Text = Text::new();

/// struct sockaddr_un: two bytes of family, then the path.
static ADDRESS: Text = Text::new();

/// Longest path of a socket.
const SOCKET_BYTES_MAX: usize = 107;

/// When symbols alone are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Always.
    Forced,
    /// Where sites cannot be rewritten, which is said.
    IfNeeded,
    /// The same; a program above has said it.
    IfNeededAndTold,
}

/// How the library starts in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// When symbols alone are taken.
    pub symbols: Symbols,
    /// The counts are wanted.
    pub verbose: bool,
}

/// The value of [`WAY_VARIABLE`] for programs that this one starts; empty if it is not set.
pub static WAY: Text = Text::new();

/// Values of [`WAY_VARIABLE`]: a user's, and this library's own.
const WAY_SYMBOLS: &[u8] = b"symbols";
const WAY_TOLD: &[u8] = b"told";

/// Programs that this one starts need not say again that they take symbols alone.
pub fn say_no_more() {
    WAY.set(WAY_TOLD);
}

/// The value of a variable in an environment of the host's.
pub fn variable(environment: u64, name: &str) -> Option<&'static [u8]> {
    let mut at = environment;
    while at != 0 {
        let entry = host::read::<u64>(at);
        if entry == 0 {
            return None;
        }
        if let Some(value) = value_of(host::string(entry, usize::MAX), name) {
            return Some(value);
        }
        at += 8;
    }
    None
}

/// The value, if the entry of an environment has this name.
pub fn value_of<'a>(entry: &'a [u8], name: &str) -> Option<&'a [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// Reads the environment. `program` is the program's path. `None` if there is no agent, or the program is to be left alone.
pub fn read(environment: u64, program: &[u8]) -> Option<Mode> {
    let (Some(agent), Some(at)) = (variable(environment, AGENT_VARIABLE), variable(environment, AT_VARIABLE)) else {
        return None;
    };
    let bypass = variable(environment, BYPASS_VARIABLE).unwrap_or(b"");
    if agent.is_empty() || agent.len() > SOCKET_BYTES_MAX || !is_place(at) || is_listed(bypass, program) {
        return None;
    }
    if !(AGENT.set(agent) && AT.set(at) && BYPASS.set(bypass)) {
        return None;
    }
    let mut address = [0u8; SOCKET_BYTES_MAX + 3];
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_le_bytes());
    address[2..2 + agent.len()].copy_from_slice(agent);
    ADDRESS.set(&address[..agent.len() + 3]);
    EXE.set(variable(environment, EXE_VARIABLE).unwrap_or(b""));
    let way = variable(environment, WAY_VARIABLE).unwrap_or(b"");
    let symbols = match way {
        WAY_SYMBOLS => Symbols::Forced,
        WAY_TOLD => Symbols::IfNeededAndTold,
        _ => Symbols::IfNeeded,
    };
    if symbols != Symbols::IfNeeded {
        WAY.set(way);
    } else if !way.is_empty() {
        host::say(&[
            b"aze: ",
            WAY_VARIABLE.as_bytes(),
            b"=",
            way,
            b": this is not known; the value is symbols, or nothing\n",
        ]);
    }
    Some(Mode { symbols, verbose: variable(environment, VERBOSE_VARIABLE).is_some_and(|value| !value.is_empty()) })
}

/// True if a program that starts with this environment is to be left alone.
pub fn is_left_alone(program: &[u8], environment: u64) -> bool {
    is_listed(variable(environment, BYPASS_VARIABLE).unwrap_or(b""), program)
}

/// The working directory that the process before execve(2) had in the volume: its path, and its descriptor.
pub fn working_directory(environment: u64) -> Option<(&'static [u8], Option<i32>)> {
    variable(environment, CWD_VARIABLE).and_then(paths::working_directory)
}

/// Address and length of the agent's address.
pub fn agent_address() -> (u64, u64) {
    let address = ADDRESS.get();
    (address.as_ptr() as u64, address.len() as u64)
}

/// True for an absolute path that is not the root and has no slash at its end.
fn is_place(at: &[u8]) -> bool {
    at.len() > 1 && at.first() == Some(&b'/') && at.last() != Some(&b'/')
}

/// True if the last part of the program's path is one of the names.
fn is_listed(names: &[u8], program: &[u8]) -> bool {
    let last = program.rsplit(|byte| *byte == b'/').next().unwrap_or(program);
    !last.is_empty() && names.split(|byte| *byte == b',').any(|name| name == last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_left_alone_by_the_last_part_of_their_path() {
        assert!(is_listed(b"sshd,ls", b"/usr/bin/ls") && is_listed(b"ls", b"ls"));
        assert!(!is_listed(b"sshd,ls", b"/usr/bin/lsof") && !is_listed(b"", b"/bin/ls") && !is_listed(b"a,,b", b"/"));
    }

    #[test]
    fn a_place_is_absolute_and_below_the_root() {
        assert!(is_place(b"/aze") && is_place(b"/mnt/x"));
        assert!(!is_place(b"/") && !is_place(b"aze") && !is_place(b"/aze/") && !is_place(b""));
    }

    #[test]
    fn an_entry_has_a_value_only_by_its_whole_name() {
        assert_eq!(value_of(b"AZE_AT=/aze", "AZE_AT"), Some(&b"/aze"[..]));
        assert_eq!(value_of(b"AZE_ATX=/aze", "AZE_AT"), None);
        assert_eq!(value_of(b"AZE_AT", "AZE_AT"), None);
    }
}
