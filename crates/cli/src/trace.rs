//! `aze trace`: the requests of a mount, while programs make them.
//!
//! The process of a mount listens on a socket beside its record, and writes a line for each request to every connection.

use crate::exit::{Exit, Outcome, Trouble};
use crate::tally::Out;
use crate::volume::{self, MountRecord, Volume};
use crate::{mounts, size};
use aze_fuse::Tracer;
use aze_words::errln;
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Fields of a line, as the mount writes them.
const FIELDS: usize = 8;

/// Show what programs ask of a mount, while they do it: operation, path, how long it took.
///
/// Costs the mount nothing while it is not traced. What the kernel answers by itself, from names, attributes and pages
/// in its caches, does not come to the mount. Paths are those that were asked for since; other files are named by inode
/// number (#17).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze trace ~/vol
  aze trace --slower-than 10ms ~/vol
  aze trace --json 4711 > requests.json      the mount of this process, or of 'aze run' with this program")]
pub struct Args {
    /// Where the volume is mounted, or the process that serves the mount, or the program of 'aze run'.
    #[arg(value_name = "DIR|PID")]
    mount: PathBuf,
    /// Requests that took at least so long.
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    slower_than: Option<Duration>,
    /// One JSON object for each request.
    #[arg(long)]
    json: bool,
}

/// Says what a mount writes to its log: `problems`, or each request by `trace`.
const VARIABLE: &str = "AZE_LOG";

/// Whether a new mount writes each request to its log.
///
/// # Errors
/// The variable says something else.
pub fn is_logged() -> Outcome<bool> {
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("" | "problems") => Ok(false),
        Ok("trace") => Ok(true),
        Ok(other) => Err(Trouble::usage(format!("{VARIABLE}={other}: either problems or trace"))),
    }
}

/// Writes each request to standard error, which is a mount's log.
fn log(tracer: &Tracer) -> std::io::Result<()> {
    let (lines, mut read) = UnixStream::pair()?;
    tracer.attach(lines)?;
    let copy = move || drop(std::io::copy(&mut read, &mut std::io::stderr()));
    std::thread::Builder::new().name("aze-log".into()).spawn(copy).map(drop)
}

/// Has the process that serves a mount listen for readers of its trace; where it cannot, the mount goes on without.
pub fn listen(volume: &Volume, tracer: Tracer) {
    if is_logged().is_ok_and(|is_logged| is_logged)
        && let Err(error) = log(&tracer)
    {
        errln!("aze: {VARIABLE}=trace: {error}");
    }
    if let Err(trouble) = try_listen(volume, tracer) {
        errln!("aze: this mount cannot be traced: {trouble}");
    }
}

fn try_listen(volume: &Volume, tracer: Tracer) -> Outcome<()> {
    let path = socket(volume, crate::process::Process::me().pid);
    let failed = |error: &std::io::Error| Trouble::local(format!("listen at {}", path.display()), error);
    // That of an earlier process of the same number.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| failed(&error))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(|error| failed(&error))?;
    let wait = move || {
        for stream in listener.incoming().flatten() {
            // One that has gone already needs no lines.
            let _ = tracer.attach(stream);
        }
    };
    std::thread::Builder::new().name("aze-trace".into()).spawn(wait).map(drop).map_err(|error| failed(&error))
}

/// Removes the socket of this process.
pub fn forget(volume: &Volume) {
    // The directory may have been removed with the volume.
    let _ = fs::remove_file(socket(volume, crate::process::Process::me().pid));
}

fn socket(volume: &Volume, pid: u32) -> PathBuf {
    volume.dir.join("mounts").join(format!("{pid}.sock"))
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let (volume, mount) = find(&args.mount)?;
    let path = socket(&volume, mount.process.pid);
    let stream = UnixStream::connect(&path)
        .map_err(|error| Trouble::local(format!("connect to the mount at {}", path.display()), &error))?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next().transpose().map_err(|error| Trouble::local("read the trace", &error))? {
        let fields: Vec<&str> = line.split('\t').collect();
        if let ["lost", count] = fields[..] {
            errln!("aze: trace: {count} requests are missing here: they came faster than they could be told");
            continue;
        }
        let fields: [&str; FIELDS] = fields
            .try_into()
            .map_err(|_| Trouble::new(Exit::Fatal, format!("the mount wrote something else than a trace: {line}")))?;
        show(args, fields)?;
    }
    errln!("aze: trace: the mount has ended");
    Ok(Exit::Done)
}

fn show(args: &Args, fields: [&str; FIELDS]) -> Outcome<()> {
    let [seconds, took_us, operation, path, second, range, errno, pid] = fields;
    let number = |text: &str| text.parse::<f64>().unwrap_or_default();
    if args.slower_than.is_some_and(|least| number(took_us) < least.as_secs_f64() * 1e6) {
        return Ok(());
    }
    let errno: i32 = errno.parse().unwrap_or_default();
    let error = std::io::Error::from_raw_os_error(errno).to_string();
    let error = error.split(" (os error").next().filter(|_| errno != 0);
    let mut out = Out::new();
    if args.json {
        let mut object = json!({
            "seconds": number(seconds),
            "took_us": number(took_us),
            "operation": operation,
            "path": plain(path),
            "errno": errno,
            "pid": pid.parse::<u32>().unwrap_or_default(),
        });
        if !second.is_empty() {
            object["to"] = plain(second).into();
        }
        if let Some((offset, length)) = range.split_once('+') {
            object["offset"] = offset.parse::<u64>().ok().into();
            object["bytes"] = length.parse::<u64>().ok().into();
        }
        out.json(&object)?;
    } else {
        let to = if second.is_empty() { String::new() } else { format!(" -> {second}") };
        let range = if range.is_empty() { String::new() } else { format!(" {range}") };
        let outcome = error.map_or(String::new(), |error| format!(": {error}"));
        out.line(format!("{seconds:>12} {took_us:>10} us  {pid:>7}  {operation} {path}{to}{range}{outcome}"))?;
    }
    out.flush()
}

/// A name without the mount's escapes.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('\\', Some(next)) => {
                chars.next();
                out.push(match next {
                    't' => '\t',
                    'n' => '\n',
                    other => other,
                });
            }
            _ => out.push(c),
        }
    }
    out
}

/// The mount that is meant.
fn find(named: &Path) -> Outcome<(Volume, MountRecord)> {
    let pid = named.to_str().and_then(|text| text.parse::<u32>().ok());
    let dir = mounts::find(named);
    let is_it = |mount: &MountRecord| {
        let programs = mount.program.map(|program| program.pid);
        match pid {
            Some(pid) => mount.process.pid == pid || programs == Some(pid),
            None => mount.program.is_none() && Some(&mount.dir) == dir.as_ref(),
        }
    };
    for volume in volume::names().into_iter().filter_map(|name| Volume::open(&name).ok()) {
        if let Some(mount) = volume.mounts().into_iter().find(is_it) {
            return Ok((volume, mount));
        }
    }
    let text = format!("{}: no mount of yours: 'aze status' names directories and processes", named.display());
    Err(Trouble::new(Exit::NotFound, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_escapes() {
        assert_eq!(plain(r"/d/a\tb\\n\n"), "/d/a\tb\\n\n");
        assert_eq!(plain("/plain"), "/plain");
    }
}
