//! `aze mount` and `aze umount`.
//!
//! `aze mount` runs itself once more in the background; that process serves the kernel until the
//! volume is unmounted, and says on a pipe when it does. What goes wrong before is told by it on
//! the user's terminal, afterwards in the mount's log.

use crate::exit::{Exit, Outcome, Trouble};
use crate::process::Process;
use crate::session::Session;
use crate::volume::{self, MountRecord, Volume};
use crate::{mount_nodes, mounts};
use crate::{sys, trace};
use aze_fuse::{CACHE_TIME_DEFAULT, CACHE_TIME_MAX, FuseIo, MountOptions, Mounted, THREADS_MAX, signals};
use aze_io::real::files;
use aze_words::errln;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the process of a mount gets to end after it was unmounted.
const END_TIME: Duration = Duration::from_secs(10);

/// How long it gets before copies of the mount in other mount namespaces are looked for.
const COPY_TIME: Duration = Duration::from_secs(1);

/// What the background process writes when the mount stands.
pub const READY: &[u8] = b"ready\n";

/// See a volume as a directory.
///
/// Any program can use it; all nodes see its writes at once. Changes of other nodes show at
/// once in files, and within a second in directories.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze mount ~/vol
  aze mount --name v1 --read-only /mnt/v1
  aze mount --cache-time 0 ~/vol      what others change shows at once
  aze mount --all-nodes /tmp/vol      on each node that has a server")]
pub struct Args {
    /// Where: an existing directory.
    dir: PathBuf,
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// Stay here until it is unmounted; interrupting unmounts.
    #[arg(long)]
    foreground: bool,
    /// Refuse changes through this mount.
    #[arg(long)]
    read_only: bool,
    /// Let other users in; root's mounts always do.
    #[arg(long)]
    allow_other: bool,
    /// Mount also where there are files already; they are hidden until it is unmounted.
    #[arg(long)]
    nonempty: bool,
    /// Requests served at the same time at most; 64 if not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX as i64))]
    threads: Option<u16>,
    /// How long the kernel may use cached names and attributes: 0 to 60, also
    /// 0.25; 0 asks every time. What others change in directories shows that much later; 1 if not given.
    #[arg(long, value_name = "SECONDS", value_parser = cache_time)]
    cache_time: Option<Duration>,
    /// Ask the servers for every read and write, past the kernel's page cache: for programs of which many processes write
    /// records into one file. Reading the same again, and small reads, take longer.
    #[arg(long)]
    direct_io: bool,
    /// How the kernel's requests come: by io_uring, by /dev/fuse, or by whichever fits. 'aze status' tells which it is.
    #[arg(long, value_name = "WAY", value_enum, default_value = "auto")]
    fuse_io: Way,
    /// Mount on every node that has a server of the volume: all of them, or none. DIR is made where it is missing, and
    /// removed again with the mount where only its node sees it.
    #[arg(long, conflicts_with = "foreground")]
    all_nodes: bool,
    /// Say on standard output when it stands, then go to the background.
    #[arg(long, hide = true)]
    ready: bool,
    /// Make the directory if it is missing, and remove it with the mount.
    #[arg(long, hide = true, requires = "ready")]
    make: bool,
    /// Unmount when standard input ends.
    #[arg(long, hide = true, requires = "ready")]
    tied: bool,
}

/// How the kernel's requests come to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// By io_uring where root has switched that on, else by /dev/fuse.
    Auto,
    /// By io_uring, a queue for each processor: Linux 6.14 and newer.
    Uring,
    /// By /dev/fuse.
    Dev,
}

impl From<Way> for FuseIo {
    fn from(way: Way) -> FuseIo {
        match way {
            Way::Auto => FuseIo::Auto,
            Way::Uring => FuseIo::Uring,
            Way::Dev => FuseIo::Dev,
        }
    }
}

/// Unmount volumes.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze umount ~/vol
  aze umount --lazy ~/vol      even while a program uses it
  aze umount --all-nodes /tmp/vol")]
pub struct UmountArgs {
    /// Where volumes are mounted.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Make it disappear now; it ends when the last program lets go of it.
    #[arg(short, long)]
    lazy: bool,
    /// Unmount on every node that has a server of the volume.
    #[arg(long)]
    all_nodes: bool,
    /// With --all-nodes: name of the volume; the one that is meant if not given.
    #[arg(long, requires = "all_nodes")]
    name: Option<String>,
}

/// Seconds of `--cache-time`.
fn cache_time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|time| *time <= CACHE_TIME_MAX)
        .ok_or_else(|| format!("not a number of seconds from 0 to {}", CACHE_TIME_MAX.as_secs()))
}

/// Runs `aze mount`.
pub fn run(args: &Args) -> Outcome<Exit> {
    trace::is_logged()?;
    if args.foreground || args.ready {
        return serve(args);
    }
    let volume = Volume::meant(args.name.as_deref())?;
    let nodes = if args.all_nodes { mount_nodes::of(&volume) } else { Vec::new() };
    if !nodes.is_empty() {
        let dir = absolute(&args.dir)?;
        let mut words = words(args, &volume);
        words.push("--make".into());
        words.extend(volume.record.settings.is_tied.then(|| "--tied".into()));
        words.extend(["--".into(), dir]);
        return mount_nodes::mount(&volume, &nodes, &words);
    }
    check(args)?;
    let program = std::env::current_exe().map_err(|error| Trouble::local("find this program's file", &error))?;
    let mut command = Command::new(program);
    command.args(words(args, &volume)).arg("--").arg(&args.dir).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| Trouble::local("start the process that serves the mount", &error))?;
    let mut said = Vec::new();
    let mut output = child.stdout.take().expect("the child was given a pipe");
    // It says one word and closes the pipe, or ends.
    output.read_to_end(&mut said).map_err(|error| Trouble::local("wait for the mount", &error))?;
    if said != READY {
        // It has told why.
        let status =
            child.wait().map_err(|error| Trouble::local("wait for the process that serves the mount", &error))?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return match code {
            Some(code) => Ok(Exit::of_number(code)),
            None => Err(Trouble::new(Exit::Fatal, format!("the process that serves the mount ended: {status}"))),
        };
    }
    Ok(Exit::Done)
}

/// The command that serves a mount, but for its directory.
fn words(args: &Args, volume: &Volume) -> Vec<String> {
    let flags = [
        ("--read-only", args.read_only),
        ("--allow-other", args.allow_other),
        ("--nonempty", args.nonempty),
        ("--direct-io", args.direct_io),
    ];
    let mut words: Vec<String> =
        ["mount", "--ready", "--name", &volume.record.name].iter().map(ToString::to_string).collect();
    words.extend(flags.iter().filter(|(_, set)| *set).map(|(flag, _)| flag.to_string()));
    words.extend(args.threads.map(|threads| format!("--threads={threads}")));
    words.extend(args.cache_time.map(|time| format!("--cache-time={}", time.as_secs_f64())));
    words.extend((args.fuse_io != Way::Auto).then(|| format!("--fuse-io={}", FuseIo::from(args.fuse_io))));
    words
}

/// A path that means the same on every node.
fn absolute(dir: &Path) -> Outcome<String> {
    let path = std::path::absolute(dir).map_err(|error| Trouble::local("find the working directory", &error))?;
    path.into_os_string()
        .into_string()
        .map_err(|path| Trouble::usage(format!("{}: not UTF-8: launchers do not take it", path.display())))
}

/// Runs `aze umount`.
pub fn run_umount(args: &UmountArgs) -> Outcome<Exit> {
    if args.all_nodes {
        let volume = Volume::meant(args.name.as_deref())?;
        let nodes = mount_nodes::of(&volume);
        if !nodes.is_empty() {
            let dirs = args.dirs.iter().map(|dir| absolute(dir)).collect::<Outcome<Vec<_>>>()?;
            return mount_nodes::umount(&volume, &nodes, &dirs, args.lazy);
        }
    }
    let tally = crate::tally::Tally::new("umount");
    for dir in &args.dirs {
        tally.note(umount(dir, args.lazy));
    }
    Ok(tally.exit())
}

fn umount(dir: &Path, lazy: bool) -> Outcome<()> {
    let Some(mounted) = mounts::find(dir) else {
        return Err(Trouble::new(Exit::NotFound, format!("{}: no volume is mounted there", dir.display())));
    };
    // Looked up first: the process removes its record as it ends.
    let (serving, device) = (serving(&mounted), mounts::device(&mounted));
    if let Err((error, users)) = mounts::unmount(&mounted, lazy, serving.as_ref()) {
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(Trouble::local(format!("unmount {}", dir.display()), &error));
        }
        let by = if users.is_empty() { String::new() } else { format!(" by {}", mounts::named(&users)) };
        return Err(Trouble::new(
            Exit::Again,
            format!("unmount {}: in use{by}: end these programs, or use --lazy", dir.display()),
        ));
    }
    let Some(process) = serving.filter(|_| !lazy) else { return Ok(()) };
    if process.wait(Instant::now() + COPY_TIME) {
        return Ok(());
    }
    // A process with a mount namespace of its own may have a copy, which keeps the mount's process.
    let copies = device.map_or(Vec::new(), |device| mounts::namespaces_with(&device));
    if !copies.is_empty() {
        errln!(
            "aze: umount: {}: unmounted here; it goes on in the mount namespace of {}, and ends with that",
            dir.display(),
            mounts::named(&copies)
        );
        return Ok(());
    }
    if process.wait(Instant::now() + END_TIME) {
        return Ok(());
    }
    let (dir, pid) = (dir.display(), process.pid);
    let text = format!("{dir}: unmounted, but its process {pid} still runs: see its log in the volume's directory");
    Err(Trouble::new(Exit::Again, text))
}

/// The process that serves a mount, if it is recorded.
fn serving(dir: &Path) -> Option<Process> {
    let volumes = volume::names().into_iter().filter_map(|name| Volume::open(&name).ok());
    volumes.flat_map(|volume| volume.mounts()).find(|mount| mount.dir == dir).map(|mount| mount.process)
}

/// Serves the mount until it is unmounted.
fn serve(args: &Args) -> Outcome<Exit> {
    signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
    if args.ready {
        // Fails only for the leader of a process group, which the background process is not.
        let _ = sys::leave_session();
    }
    let is_made = args.make && make_dir(&args.dir)?;
    let is_removed = is_made && is_local(&args.dir);
    let served = serve_at(args, is_removed);
    if is_removed {
        // A directory that is in use, or was filled meanwhile, stays.
        let _ = fs::remove_dir(&args.dir);
    }
    served
}

/// Whether `dir` is on a file system that only this node sees. Removing a directory that another node sees would take
/// that node's mount away.
fn is_local(dir: &Path) -> bool {
    // statfs(2): ext4, xfs, btrfs, tmpfs, overlayfs, F2FS.
    const LOCAL: [i64; 6] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0xF2F5_2010];
    files::file_system_kind(dir).is_ok_and(|kind| LOCAL.contains(&kind))
}

/// Makes the directory of a mount; false if it is there.
fn make_dir(dir: &Path) -> Outcome<bool> {
    match fs::create_dir(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Trouble::local(format!("make directory {}", dir.display()), &error)),
    }
}

/// Serves; removes the directory as soon as it is unmounted, if so.
fn serve_at(args: &Args, is_removed: bool) -> Outcome<Exit> {
    check(args)?;
    let volume = Volume::meant(args.name.as_deref())?;
    let session = Session::open(volume)?;
    let options = MountOptions {
        volume: session.volume.record.name.clone(),
        read_only: args.read_only,
        allow_other: args.allow_other || sys::uid() == 0,
        threads: args.threads.map_or(THREADS_MAX, usize::from),
        cache_time: args.cache_time.unwrap_or(CACHE_TIME_DEFAULT),
        direct_io: args.direct_io,
        fuse_io: args.fuse_io.into(),
    };
    let mounted = aze_fuse::mount(session.client.clone(), session.runtime.clone(), &args.dir, &options)
        .map_err(|error| Trouble::local(format!("mount at {}", args.dir.display()), &error))?;
    let record = MountRecord {
        dir: mounted.dir().to_path_buf(),
        process: Process::me(),
        program: None,
        is_intercepted: false,
        fuse_io: Some(mounted.fuse_io().to_string()),
    };
    let starter_has_gone = Arc::new(AtomicBool::new(false));
    let served = session.volume.record_mount(&record).and_then(|()| {
        unmount_on_signal(&mounted, is_removed)?;
        if args.tied {
            unmount_at_end_of_input(&mounted, is_removed, starter_has_gone.clone())?;
        }
        trace::listen(&session.volume, mounted.tracer());
        fs::metadata(&args.dir)
            .map_err(|error| Trouble::local(format!("look into the new mount {}", args.dir.display()), &error))?;
        if args.ready { go_to_background(&session.volume) } else { Ok(()) }
    });
    if let Err(trouble) = served {
        // No record would name this mount; the first error is the one to tell.
        let _ = aze_fuse::unmount(mounted.dir(), true);
        return Err(trouble);
    }
    let ended =
        mounted.wait().map_err(|error| Trouble::local(format!("serve the mount at {}", args.dir.display()), &error));
    trace::forget(&session.volume);
    let me = session.volume.mount_record_path(record.process);
    for path in [me.with_extension("json"), me.with_extension("log")] {
        // The directory may have been removed with the volume.
        let _ = fs::remove_file(path);
    }
    if starter_has_gone.load(Ordering::SeqCst) && session.volume.is_left_here() {
        // Its server here would have removed it, but was killed.
        let _ = volume::remove_dir(&session.volume.dir);
    }
    session.end();
    ended.map(|()| Exit::Done)
}

/// Standard error becomes the log, then the starter is told.
fn go_to_background(volume: &Volume) -> Outcome<()> {
    let path = volume.mount_record_path(Process::me()).with_extension("log");
    let switch = || -> std::io::Result<()> {
        let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        let mut out = std::io::stdout().lock();
        out.write_all(READY)?;
        out.flush()?;
        sys::put_in_place(&log, 2)?;
        sys::put_in_place(&null, 1)
    };
    switch().map_err(|error| Trouble::local(format!("go to the background with log {}", path.display()), &error))
}

/// The first signal unmounts, lazily if need be; the second one ends the process in any case.
fn unmount_on_signal(mounted: &Mounted, is_removed: bool) -> Outcome<()> {
    let dir = mounted.dir().to_path_buf();
    let wait = move || {
        if signals::wait().is_ok() {
            unmount_or_hide(&dir, is_removed);
        }
        if signals::wait().is_ok() {
            std::process::exit(Exit::Again as i32);
        }
    };
    let started = std::thread::Builder::new().name("aze-signals".into()).spawn(wait);
    started.map(drop).map_err(|error| Trouble::local("start a thread", &error))
}

/// The end of standard input unmounts, lazily if need be.
fn unmount_at_end_of_input(mounted: &Mounted, is_removed: bool, has_ended: Arc<AtomicBool>) -> Outcome<()> {
    let dir = mounted.dir().to_path_buf();
    let wait = move || {
        // Nothing is written to it; an error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        has_ended.store(true, Ordering::SeqCst);
        unmount_or_hide(&dir, is_removed);
    };
    let started = std::thread::Builder::new().name("aze-input".into()).spawn(wait);
    started.map(drop).map_err(|error| Trouble::local("start a thread", &error))
}

/// Unmounts; where programs use the mount, it ends when the last of them lets go of it.
fn unmount_or_hide(dir: &Path, is_removed: bool) {
    if aze_fuse::unmount(dir, false).is_err() {
        // What keeps it from going now will show in the end of the wait for the mount.
        let _ = aze_fuse::unmount(dir, true);
    }
    if is_removed {
        // The rest may wait for servers that are gone, and a batch system kills what takes long.
        let _ = fs::remove_dir(dir);
    }
}

/// What would fail later with a worse message.
fn check(args: &Args) -> Outcome<()> {
    let dir = &args.dir;
    let shown = dir.display();
    if let Some(mounted) = mounts::find(dir) {
        let what = match serving(&mounted) {
            Some(process) => format!("a volume is mounted there already (pid {})", process.pid),
            None => format!("a mount whose process is gone is in the way: 'aze umount {shown}' removes it"),
        };
        return Err(Trouble::new(Exit::Caller, format!("mount at {shown}: {what}")));
    }
    match fs::metadata(dir) {
        Ok(meta) if !meta.is_dir() => {
            return Err(Trouble::new(Exit::Caller, format!("mount at {shown}: not a directory")));
        }
        Ok(_) if !args.nonempty && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) => {
            let text = format!(
                "mount at {shown}: not empty, and what is there would be hidden: choose an empty directory, or use --nonempty"
            );
            return Err(Trouble::new(Exit::Caller, text));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Trouble::new(Exit::NotFound, format!("mount at {shown}: no such directory: make it first")));
        }
        Err(error) => return Err(Trouble::local(format!("mount at {shown}"), &error)),
    }
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let text =
                "only root may use /dev/fuse on this machine: its administrator can change that: chmod 666 /dev/fuse";
            return Err(Trouble::new(Exit::Denied, text));
        }
        Err(_) => {
            let text = "this machine has no usable /dev/fuse: its administrator must load the kernel module 'fuse'";
            return Err(Trouble::new(Exit::Caller, text));
        }
    }
    if sys::uid() != 0 && !sys::is_installed("fusermount3") {
        return Err(Trouble::new(
            Exit::Caller,
            "users mount with 'fusermount3', which is missing: install the package 'fuse3'",
        ));
    }
    if sys::uid() != 0 && !Path::new("/etc/mtab").exists() {
        // Found out at the mount's end, it would stay.
        return Err(Trouble::new(
            Exit::Caller,
            "fusermount3 cannot unmount without /etc/mtab, which is missing: an administrator makes it with \
             'ln -s /proc/self/mounts /etc/mtab'; 'aze run' needs neither",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn cache_times_are_seconds_up_to_a_minute() {
        let milliseconds = |text| cache_time(text).map(|time| time.as_millis());
        assert_eq!(["0", "0.25", "60"].map(milliseconds), [Ok(0), Ok(250), Ok(60_000)]);
        for text in ["60.1", "-1", "nan", "inf", "1s", ""] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }

    /// The process that serves the mount is told all that its starter was.
    #[test]
    fn the_background_process_is_told_every_option() {
        let volume = examples::volume(&[None]);
        let said = |line: &[&str]| words(&Line::parse_from(line).args, &volume);
        assert_eq!(said(&["mount", "dir"]), ["mount", "--ready", "--name", "v"]);
        let mut line = said(&[
            "mount",
            "--read-only",
            "--allow-other",
            "--nonempty",
            "--direct-io",
            "--threads=7",
            "--cache-time=0.25",
            "--fuse-io=uring",
            "dir",
        ]);
        line.extend(["--", "-dir"].map(str::to_owned));
        let told = Line::parse_from(line).args;
        assert!(told.ready && told.read_only && told.allow_other && told.nonempty && told.direct_io);
        assert_eq!((told.threads, told.cache_time), (Some(7), Some(Duration::from_millis(250))));
        assert_eq!(told.fuse_io, Way::Uring);
        assert_eq!((told.dir, told.name.as_deref()), (PathBuf::from("-dir"), Some("v")));
    }
}
