//! A program that sees the volume without a mount: a library in it turns its system calls into requests to an agent.
//!
//! This process forks the agent, which is a child of neither the program nor the shell, waits until it serves, and becomes the
//! program, so that signals and the exit code are the program's own.

use super::{Args, DONE, become_program, executable};
use crate::exit::{Exit, Outcome, Trouble};
use crate::hold;
use crate::process::Process;
use crate::sys;
use crate::volume::{MountRecord, VARIABLE, Volume};
use aze_agent::Listening;
use aze_fuse::signals;
use aze_words::outln;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

/// The library's file.
const LIBRARY: &str = "libaze_intercept.so";

/// Where it is, from the directory of this program.
const PLACES: &[&str] = &[".", "../lib", "../lib/azekura"];

/// Variable that names libraries to be loaded first (ld.so(8)).
const PRELOAD: &str = "LD_PRELOAD";

/// The paths needed to run a program this way.
pub struct Ready {
    library: PathBuf,
    at: PathBuf,
}

/// Looks whether this way can be had.
///
/// # Errors
/// Why not.
pub fn prepare(args: &Args) -> Outcome<Ready> {
    let refused = |text: String| Err(Trouble::new(Exit::Caller, text));
    if args.read_only {
        return refused("--read-only: only a mount refuses changes".into());
    }
    let at = place(&args.at)?;
    let library = library()?;
    if let Some(program) = args.program.first().and_then(|program| executable::find(program)) {
        if program.starts_with(&at) {
            return refused(format!(
                "{} lies in the volume: let a program of this machine start it, as in 'aze run -- sh -c {0}'",
                program.display()
            ));
        }
        if let Some(hindrance) = executable::hindrance(&program) {
            return refused(format!("{hindrance}: its system calls cannot be intercepted, so that it needs the mount"));
        }
    }
    Ok(Ready { library, at })
}

/// Where programs see the volume: an absolute path without `.`, `..` and `/` at its end.
fn place(at: &Path) -> Outcome<PathBuf> {
    let at = std::path::absolute(at).map_err(|error| Trouble::local("find the working directory", &error))?;
    let plain = at.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let at: PathBuf = at.components().collect();
    if plain && at != Path::new("/") {
        return Ok(at);
    }
    Err(Trouble::usage(format!("show the volume at {}: choose a path like /aze", at.display())))
}

fn library() -> Outcome<PathBuf> {
    let failed = |error: &io::Error| Trouble::local("find this program's own file", error);
    let program = env::current_exe().and_then(|program| program.canonicalize()).map_err(|error| failed(&error))?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let found = PLACES.iter().filter_map(|place| dir.join(place).join(LIBRARY).canonicalize().ok()).next();
    let Some(library) = found else {
        let text = format!("{LIBRARY} is not beside {}, nor in ../lib or ../lib/azekura from there", program.display());
        return Err(Trouble::new(Exit::NotFound, text));
    };
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ')) {
        // ld.so(8) takes both for the end of a path.
        let text = format!("{} has a blank or a colon in its path: it cannot be loaded from there", library.display());
        return Err(Trouble::new(Exit::Caller, text));
    }
    Ok(library)
}

/// Starts the agent, and becomes the program; returns only if that fails, or if the variables are to be printed.
pub fn run(args: &Args, volume: Volume, ready: &Ready) -> Outcome<Exit> {
    let program = if args.print_env { shell(args.pid)? } else { Process::me() };
    let name = volume.record.name.clone();
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| Trouble::local("make a pair of sockets", &error))?;
    let agent = match sys::fork_orphan().map_err(|error| Trouble::local("start the agent", &error))? {
        sys::Forked::Orphan => {
            drop(ours);
            std::process::exit(serve(volume, theirs, &ready.at, program) as i32);
        }
        sys::Forked::Parent => {
            drop(theirs);
            let mut told = Vec::new();
            let word = ours.read_to_end(&mut told).map(|_| told);
            // Without a word the agent has told why.
            let Some(path) = word.ok().and_then(|told| told.strip_suffix(DONE).map(<[u8]>::to_vec)) else {
                return Ok(Exit::Again);
            };
            OsString::from_vec(path)
        }
    };
    let variables = [
        (PRELOAD, preload(&ready.library, env::var_os(PRELOAD).as_deref())),
        (aze_calls::AGENT_VARIABLE, agent),
        (aze_calls::AT_VARIABLE, ready.at.clone().into_os_string()),
        (VARIABLE, name.into()),
    ];
    if args.print_env {
        for (name, value) in variables {
            outln!("export {name}='{}'", value.to_string_lossy().replace('\'', "'\\''"));
        }
        return Ok(Exit::Done);
    }
    become_program(&args.program, &variables)
}

/// The process that the variables are for.
fn shell(pid: Option<u32>) -> Outcome<Process> {
    let parent = std::os::unix::process::parent_id();
    let missing = || Trouble::new(Exit::NotFound, "the process that is to see the volume has ended");
    hold::process(Some(pid.unwrap_or(parent)))?.ok_or_else(missing)
}

/// The library before those that are to be loaded already.
fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let others = before.map(OsStr::as_bytes).unwrap_or_default().split(|byte| matches!(byte, b':' | b' '));
    for other in others.filter(|other| !other.is_empty() && *other != library.as_os_str().as_bytes()) {
        value.push(":");
        value.push(OsStr::from_bytes(other));
    }
    value
}

/// The life of the agent.
fn serve(volume: Volume, mut other: UnixStream, at: &Path, program: Process) -> Exit {
    let served = (|| {
        // As for a mount: a job that is ended signals all of its processes, and the program may write its last results then.
        signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
        sys::leave_session().map_err(|error| Trouble::local("leave the terminal's session", &error))?;
        let me = Process::me();
        let record = MountRecord {
            dir: at.to_owned(),
            process: me,
            program: Some(program),
            is_intercepted: true,
            fuse_io: None,
        };
        volume.record_mount(&record)?;
        let record_path = volume.mount_record_path(me);
        let (socket, log_path) = (record_path.with_extension("sock"), record_path.with_extension("log"));
        let forget = || {
            // The socket, too, if it has not come to serve: the program was killed before it was told of it.
            for path in [&record_path, &log_path, &socket] {
                // The directory may have been removed with the volume.
                let _ = std::fs::remove_file(path);
            }
        };
        let listening = Listening::start(volume, &socket, at, program.pid).map_err(|error| {
            forget();
            let exit = if error.errno == libc::EHOSTUNREACH { Exit::Again } else { Exit::Caller };
            Trouble::new(exit, format!("start the agent: {error}"))
        })?;
        // The program's input and output must not be kept open by the agent.
        let mut quiet = || -> io::Result<()> {
            let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&log_path)?;
            let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
            sys::put_in_place(&null, 0)?;
            sys::put_in_place(&null, 1)?;
            other.write_all(&[socket.as_os_str().as_bytes(), DONE].concat())?;
            sys::put_in_place(&log, 2)
        };
        let ended = match quiet() {
            Ok(()) => {
                drop(other);
                listening.run().map_err(|error| Trouble::local("serve programs", &error))
            }
            Err(error) => Err(Trouble::local(format!("go to the background with log {}", log_path.display()), &error)),
        };
        forget();
        ended
    })();
    super::told(served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_before_others_and_once() {
        let ours = Path::new("/x/ours.so");
        let all = |before: Option<&str>| preload(ours, before.map(OsStr::new));
        assert_eq!(all(None), "/x/ours.so");
        assert_eq!(all(Some("/a.so:/b.so")), "/x/ours.so:/a.so:/b.so");
        assert_eq!(all(Some("/x/ours.so /b.so")), "/x/ours.so:/b.so");
    }

    #[test]
    fn a_volume_is_not_shown_everywhere() {
        let at = |path: &str| place(Path::new(path)).map_err(|trouble| trouble.exit);
        assert_eq!((at("/aze"), at("/a/b/")), (Ok("/aze".into()), Ok("/a/b".into())));
        assert_eq!((at("/"), at("/a/../b")), (Err(Exit::Usage), Err(Exit::Usage)));
    }
}
