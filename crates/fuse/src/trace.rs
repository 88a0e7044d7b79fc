//! The trace of a mount: a line for each request, while a reader is attached.
//!
//! A line has eight fields between tabs: seconds since the reader came, microseconds that the request took, operation,
//! path, second path or symlink's target, offset and length (`4096+512`), error number (0: none), process. Paths are
//! those that the kernel has asked for since the first reader came; files that it knew before are named by their inode
//! numbers (`#17`).

use crate::abi::{Args, Header, Malformed, op};
use crate::nodes;
use aze_io::Io;
use aze_io::sync::Mutex;
use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// Inodes whose names are remembered at most.
const NAMES_MAX: usize = 65_536;

/// Deepest path that is shown.
const DEPTH_MAX: usize = 256;

/// Bytes before the name in an entry of a listing with attributes: what a lookup would say, then the entry.
const ENTRY_BYTES: usize = 128;
const DIRENT_BYTES: usize = 24;

/// The readers of one mount's trace.
pub struct Trace {
    io: Io,
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    readers: Vec<Reader>,
    /// By inode: the directory and the name by which the kernel has found it.
    names: HashMap<u64, (u64, Vec<u8>)>,
}

struct Reader {
    stream: UnixStream,
    began_ns: u64,
    /// Lines that it was too slow for, since the last one that it got.
    lost: u64,
}

/// A request that is traced.
pub struct Traced {
    began_ns: u64,
    opcode: u32,
    node: u64,
    pid: u32,
    name: Option<Vec<u8>>,
    /// A second directory and name, or a target alone.
    second: Option<(Option<u64>, Vec<u8>)>,
    range: Option<(u64, u64)>,
}

impl Trace {
    /// Without readers.
    pub fn new(io: Io) -> Trace {
        Trace { io, is_on: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Writes lines to `stream` from now on, until its other end is closed.
    ///
    /// # Errors
    /// What the system said.
    pub fn attach(&self, stream: UnixStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        let mut state = self.state.lock();
        state.readers.push(Reader { stream, began_ns: self.io.mono_ns(), lost: 0 });
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Begins to trace a request, if there is a reader.
    pub fn begin(&self, header: &Header, args: &Args<'_>) -> Option<Traced> {
        if !self.is_on.load(Ordering::Relaxed) || operation(header.opcode).is_none() {
            return None;
        }
        let mut traced = Traced {
            began_ns: self.io.mono_ns(),
            opcode: header.opcode,
            node: header.node,
            pid: header.pid,
            name: None,
            second: None,
            range: None,
        };
        // What cannot be read is answered with an error, which is in the line.
        let _ = traced.read(Args(args.0));
        Some(traced)
    }

    /// Tells the readers; `reply` is what the kernel was answered, of a request that did not fail.
    pub fn end(&self, traced: Traced, reply: Result<&[u8], i32>) {
        let now_ns = self.io.mono_ns();
        let mut state = self.state.lock();
        if let Ok(reply) = reply {
            state.learn(&traced, reply);
        }
        let line = state.line(&traced, now_ns, reply.err().unwrap_or(0));
        state.readers.retain_mut(|reader| reader.tell(traced.began_ns, &line));
        if state.readers.is_empty() {
            self.is_on.store(false, Ordering::Relaxed);
            state.names.clear();
        }
    }
}

/// What an operation is called; `None` for what no program has asked for.
fn operation(opcode: u32) -> Option<&'static str> {
    Some(match opcode {
        op::LOOKUP => "lookup",
        op::GETATTR => "getattr",
        op::SETATTR => "setattr",
        op::READLINK => "readlink",
        op::SYMLINK => "symlink",
        op::MKNOD => "mknod",
        op::MKDIR => "mkdir",
        op::UNLINK => "unlink",
        op::RMDIR => "rmdir",
        op::RENAME | op::RENAME2 => "rename",
        op::LINK => "link",
        op::OPEN => "open",
        op::READ => "read",
        op::WRITE => "write",
        op::STATFS => "statfs",
        op::RELEASE => "release",
        op::FSYNC => "fsync",
        op::SETXATTR => "setxattr",
        op::GETXATTR => "getxattr",
        op::LISTXATTR => "listxattr",
        op::REMOVEXATTR => "removexattr",
        op::FLUSH => "flush",
        op::OPENDIR => "opendir",
        op::READDIR | op::READDIRPLUS => "readdir",
        op::RELEASEDIR => "releasedir",
        op::FSYNCDIR => "fsyncdir",
        op::GETLK => "getlk",
        op::SETLK => "setlk",
        op::SETLKW => "setlkw",
        op::CREATE => "create",
        op::FALLOCATE => "fallocate",
        op::LSEEK => "lseek",
        op::TMPFILE => "tmpfile",
        _ => return None,
    })
}

impl Traced {
    fn read(&mut self, mut args: Args<'_>) -> Result<(), Malformed> {
        match self.opcode {
            op::LOOKUP | op::UNLINK | op::RMDIR => self.name = Some(args.text()?.to_vec()),
            op::MKNOD | op::CREATE => {
                args.skip(16)?;
                self.name = Some(args.text()?.to_vec());
            }
            op::MKDIR => {
                args.skip(8)?;
                self.name = Some(args.text()?.to_vec());
            }
            op::SYMLINK => {
                self.name = Some(args.text()?.to_vec());
                self.second = Some((None, args.text()?.to_vec()));
            }
            op::LINK => {
                let old = args.node()?;
                // As ln(1) has it: the existing file, and its new name.
                self.second = Some((Some(self.node), args.text()?.to_vec()));
                self.node = old;
            }
            op::RENAME | op::RENAME2 => {
                let dir = args.node()?;
                args.skip(if self.opcode == op::RENAME2 { 8 } else { 0 })?;
                self.name = Some(args.text()?.to_vec());
                self.second = Some((Some(dir), args.text()?.to_vec()));
            }
            op::READ | op::WRITE => {
                args.skip(8)?;
                self.range = Some((args.u64()?, args.u32()?.into()));
            }
            op::FALLOCATE => {
                args.skip(8)?;
                self.range = Some((args.u64()?, args.u64()?));
            }
            _ => {}
        }
        Ok(())
    }
}

impl State {
    /// Takes note of names that the kernel has been told.
    fn learn(&mut self, traced: &Traced, reply: &[u8]) {
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
        match (traced.opcode, &traced.name, &traced.second) {
            (op::LOOKUP | op::MKNOD | op::MKDIR | op::SYMLINK | op::CREATE, Some(name), _) => {
                if let Some(node) = reply.get(..8).and_then(number).filter(|node| *node != 0) {
                    self.remember(nodes::ino(node), traced.node, name.clone());
                }
            }
            (op::LINK, _, Some((Some(dir), name))) => self.remember(traced.node, *dir, name.clone()),
            (op::RENAME | op::RENAME2, Some(old), Some((Some(dir), new))) => {
                let old = (traced.node, old.clone());
                let moved = self.names.iter().find(|(_, named)| **named == old).map(|(ino, _)| *ino);
                if let Some(ino) = moved {
                    self.remember(ino, *dir, new.clone());
                }
            }
            (op::READDIRPLUS, ..) => {
                let mut rest = reply;
                while let (Some(node), Some(length)) =
                    (rest.get(..8).and_then(number), rest.get(ENTRY_BYTES + 16..ENTRY_BYTES + 20))
                {
                    let length = u32::from_ne_bytes(length.try_into().expect("four bytes")) as usize;
                    let start = ENTRY_BYTES + DIRENT_BYTES;
                    let Some(name) = rest.get(start..start + length) else { return };
                    if node != 0 && name != b"." && name != b".." {
                        self.remember(nodes::ino(node), traced.node, name.to_vec());
                    }
                    rest = rest.get((start + length).next_multiple_of(8)..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }

    fn remember(&mut self, ino: u64, dir: u64, name: Vec<u8>) {
        if self.names.len() < NAMES_MAX || self.names.contains_key(&ino) {
            self.names.insert(ino, (dir, name));
        }
    }

    /// The path of `name` in a directory, or of an inode.
    fn path(&self, node: u64, name: Option<&[u8]>) -> String {
        let mut parts: Vec<String> = name.into_iter().map(escaped).collect();
        let mut at = node;
        while at != nodes::ROOT && parts.len() < DEPTH_MAX {
            match self.names.get(&at) {
                Some((dir, name)) => {
                    parts.push(escaped(name));
                    at = *dir;
                }
                None => {
                    parts.push(format!("#{at}"));
                    parts.reverse();
                    return parts.join("/");
                }
            }
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }

    /// All but the first field.
    fn line(&self, traced: &Traced, now_ns: u64, errno: i32) -> String {
        let took_us = now_ns.saturating_sub(traced.began_ns) as f64 / 1e3;
        let second = match &traced.second {
            Some((Some(dir), name)) => self.path(*dir, Some(name)),
            Some((None, target)) => escaped(target),
            None => String::new(),
        };
        let range = traced.range.map_or(String::new(), |(offset, length)| format!("{offset}+{length}"));
        let (path, operation) =
            (self.path(traced.node, traced.name.as_deref()), operation(traced.opcode).unwrap_or_default());
        format!("{took_us:.1}\t{operation}\t{path}\t{second}\t{range}\t{errno}\t{}\n", traced.pid)
    }
}

/// Without what would end a field or a line.
fn escaped(name: impl AsRef<[u8]>) -> String {
    let name = String::from_utf8_lossy(name.as_ref());
    name.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
}

impl Reader {
    /// False if it has gone.
    fn tell(&mut self, began_ns: u64, line: &str) -> bool {
        let seconds = began_ns.saturating_sub(self.began_ns) as f64 / 1e9;
        let lost = if self.lost > 0 { format!("lost\t{}\n", self.lost) } else { String::new() };
        let text = format!("{lost}{seconds:.6}\t{line}");
        match self.stream.write(text.as_bytes()) {
            // A part of a line cannot be taken back, and the rest of it would hold up the program.
            Ok(count) if count < text.len() => false,
            Ok(_) => {
                self.lost = 0;
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.lost += 1;
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_io::real::Runtime;
    use std::io::Read;

    fn request(opcode: u32, node: u64) -> Header {
        Header { len: 0, opcode, unique: 1, node, uid: 0, gid: 0, pid: 7 }
    }

    #[test]
    fn paths_are_those_that_were_asked_for() {
        let trace = Trace::new(Runtime::client().io());
        assert!(trace.begin(&request(op::LOOKUP, nodes::ROOT), &Args(b"d\0")).is_none(), "nobody reads");
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        trace.attach(ours).expect("it can be written to");
        let mut done = |opcode, node, args: &[u8], reply: Result<&[u8], i32>| {
            let traced = trace.begin(&request(opcode, node), &Args(args)).expect("it is traced");
            trace.end(traced, reply);
            let mut line = [0; 400];
            let count = theirs.read(&mut line).expect("a line");
            let line = String::from_utf8_lossy(&line[..count]).into_owned();
            let fields: Vec<String> = line.trim_end().split('\t').skip(2).map(str::to_owned).collect();
            fields.join("|")
        };
        let found = |ino: u64| nodes::node(ino).to_ne_bytes();
        assert_eq!(done(op::LOOKUP, nodes::ROOT, b"d\0", Ok(&found(10))), "lookup|/d|||0|7");
        assert_eq!(done(op::LOOKUP, 10, b"a\tb\0", Ok(&found(11))), r"lookup|/d/a\tb|||0|7");
        let mut range = [0; 24];
        (range[9], range[17]) = (16, 2);
        assert_eq!(done(op::READ, 11, &range, Ok(b"")), r"read|/d/a\tb||4096+512|0|7");
        let rename = [&nodes::node(nodes::ROOT).to_ne_bytes()[..], b"a\tb\0c\0"].concat();
        assert_eq!(done(op::RENAME, 10, &rename, Ok(b"")), r"rename|/d/a\tb|/c||0|7");
        assert_eq!(done(op::GETATTR, 11, b"", Err(libc::EIO)), "getattr|/c|||5|7");
        assert_eq!(done(op::GETATTR, 99, b"", Ok(b"")), "getattr|#99|||0|7");
        drop(theirs);
        let last = trace.begin(&request(op::STATFS, nodes::ROOT), &Args(b"")).expect("not yet noticed");
        trace.end(last, Ok(b""));
        assert!(trace.begin(&request(op::STATFS, nodes::ROOT), &Args(b"")).is_none(), "the reader has gone");
    }
}
