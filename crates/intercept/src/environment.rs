//! The environment and the arguments of a new program.

use crate::decimal;
use crate::exec::Script;
use crate::host;
use crate::settings::{AGENT, AT, BYPASS, EXE_VARIABLE, LIBRARY, PRELOAD_VARIABLE, WAY, value_of};
use crate::{cwd, process};
use aze_calls::{AGENT_VARIABLE, AT_VARIABLE, BYPASS_VARIABLE, CWD_VARIABLE, WAY_VARIABLE};

/// Room for texts: the variables that are set, paths of scripts and their interpreters.
const TEXT_BYTES: usize = 96 << 10;

/// Places for variables that are added, and for arguments of scripts.
const EXTRA: usize = 32;

/// Longest variable that is looked through.
const VARIABLE_BYTES_MAX: usize = 128 << 10;

/// Names that are set here, and replace those of the caller.
const NAMES: [&str; 7] =
    [AGENT_VARIABLE, AT_VARIABLE, BYPASS_VARIABLE, CWD_VARIABLE, EXE_VARIABLE, PRELOAD_VARIABLE, WAY_VARIABLE];

/// Memory for a call of execve(2), which ends with the program.
pub struct Arena {
    at: u64,
    bytes: usize,
    used: usize,
    /// The child on its parent's memory that has it, which cannot give it back if all goes well.
    child: Option<u32>,
}

impl Arena {
    /// Memory for a new program's environment and arguments.
    pub fn new(variables: u64, arguments: u64) -> Option<Arena> {
        let bytes = (count(variables) + count(arguments) + EXTRA * 4) * 8 + TEXT_BYTES;
        let bytes = bytes.next_multiple_of(4096);
        let at = host::map(bytes);
        let child = process::shared_child();
        if at == 0 {
            return None;
        }
        if let Some(pid) = child {
            process::leave_behind(pid, at, bytes);
        }
        Some(Arena { at, bytes, used: 0, child })
    }

    /// The call has failed.
    pub fn give_back(self) {
        host::unmap(self.at, self.bytes);
        if let Some(pid) = self.child {
            process::took_back(pid);
        }
    }

    fn take(&mut self, bytes: usize) -> Option<u64> {
        let at = self.at + self.used as u64;
        self.used += bytes.next_multiple_of(8);
        (self.used <= self.bytes).then_some(at)
    }

    /// A text of parts, with a NUL behind it; `None` if there is no room.
    pub fn text(&mut self, parts: &[&[u8]]) -> Option<u64> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let at = self.take(length + 1)?;
        let mut to = at;
        for part in parts {
            host::copy(to, part.as_ptr() as u64, part.len());
            to += part.len() as u64;
        }
        host::write(to, 0u8);
        Some(at)
    }

    /// The arguments of a script's interpreter: it, its argument, the script, and the script's own arguments.
    pub fn script_arguments(&mut self, script: &Script, arguments: u64) -> Option<u64> {
        let had = count(arguments);
        let list = self.take((had + 4) * 8)?;
        let mut to = list;
        let mut put = |value: u64| {
            host::write(to, value);
            to += 8;
        };
        put(script.interpreter);
        if script.argument != 0 {
            put(script.argument);
        }
        put(script.path);
        for index in 1..had {
            put(host::read(arguments + index as u64 * 8));
        }
        put(0);
        Some(list)
    }
}

/// Entries of a list that ends with null.
fn count(list: u64) -> usize {
    let mut count = 0;
    while host::is_memory(list) && host::read::<u64>(list + count as u64 * 8) != 0 {
        count += 1;
    }
    count
}

fn entry(list: u64, index: usize) -> &'static [u8] {
    host::string(host::read(list + index as u64 * 8), VARIABLE_BYTES_MAX)
}

/// True if a program with this environment sees the volume as this one does.
pub fn is_complete(variables: u64) -> bool {
    let (mut agent, mut at, mut preload) = (false, false, false);
    let (mut bypass, mut way) = (BYPASS.get().is_empty(), WAY.get().is_empty());
    for index in 0..count(variables) {
        let entry = entry(variables, index);
        // Most entries begin with another letter than the names.
        if !matches!(entry.first(), Some(b'A' | b'L')) {
            continue;
        }
        agent |= value_of(entry, AGENT_VARIABLE) == Some(AGENT.get());
        at |= value_of(entry, AT_VARIABLE) == Some(AT.get());
        bypass |= value_of(entry, BYPASS_VARIABLE).is_some();
        way |= value_of(entry, WAY_VARIABLE).is_some();
        preload |= value_of(entry, PRELOAD_VARIABLE).is_some_and(has_library);
        if value_of(entry, CWD_VARIABLE).is_some() || value_of(entry, EXE_VARIABLE).is_some() {
            return false;
        }
    }
    agent && at && bypass && way && preload
}

/// True if a list of libraries has this one.
fn has_library(list: &[u8]) -> bool {
    list.split(|byte| matches!(byte, b':' | b' ')).any(|library| library == LIBRARY.get())
}

/// The environment with what the program needs to see the volume. `program` is its path in the volume, or empty.
pub fn complete(variables: u64, program: &[u8], arena: &mut Arena) -> Option<u64> {
    let had = count(variables);
    let list = arena.take((had + EXTRA) * 8)?;
    let mut to = list;
    let mut put = |value: u64| {
        host::write(to, value);
        to += 8;
    };
    let (mut preload, mut bypass, mut way): (&[u8], &[u8], &[u8]) = (b"", BYPASS.get(), WAY.get());
    for index in 0..had {
        let text = entry(variables, index);
        if let Some(value) = value_of(text, PRELOAD_VARIABLE) {
            preload = value;
        }
        if let Some(value) = value_of(text, BYPASS_VARIABLE) {
            bypass = value;
        }
        if let Some(value) = value_of(text, WAY_VARIABLE) {
            way = value;
        }
        if !NAMES.iter().any(|name| value_of(text, name).is_some()) {
            put(host::read(variables + index as u64 * 8));
        }
    }
    let mut set = |name: &str, parts: [&[u8]; 3]| -> Option<()> {
        let [a, b, c] = parts;
        put(arena.text(&[name.as_bytes(), b"=", a, b, c])?);
        Some(())
    };
    set(AGENT_VARIABLE, [AGENT.get(), b"", b""])?;
    set(AT_VARIABLE, [AT.get(), b"", b""])?;
    if has_library(preload) {
        set(PRELOAD_VARIABLE, [preload, b"", b""])?;
    } else {
        set(PRELOAD_VARIABLE, [LIBRARY.get(), if preload.is_empty() { b"" } else { b":" }, preload])?;
    }
    if !bypass.is_empty() {
        set(BYPASS_VARIABLE, [bypass, b"", b""])?;
    }
    if !way.is_empty() {
        set(WAY_VARIABLE, [way, b"", b""])?;
    }
    if !program.is_empty() {
        set(EXE_VARIABLE, [program, b"", b""])?;
    }
    let mut here = [0u8; cwd::PATH_BYTES_MAX];
    if let Some(length) = cwd::get(&mut here) {
        let (path, mut digits) = (here.get(..length)?, [0u8; 20]);
        match cwd::kept_over_exec() {
            Some(fd) => set(CWD_VARIABLE, [decimal(fd as u64, &mut digits), b":", path])?,
            None => set(CWD_VARIABLE, [path, b"", b""])?,
        }
    }
    put(0);
    Some(list)
}

/// Takes the variables away that are meant for this program alone. `environment` is the host's own list.
pub fn clean(environment: u64) {
    let had = count(environment);
    let mut kept = 0;
    for index in 0..had {
        let value: u64 = host::read(environment + index as u64 * 8);
        let text = entry(environment, index);
        if value_of(text, CWD_VARIABLE).is_none() && value_of(text, EXE_VARIABLE).is_none() {
            host::write(environment + kept * 8, value);
            kept += 1;
        }
    }
    host::write(environment + kept * 8, 0u64);
}
