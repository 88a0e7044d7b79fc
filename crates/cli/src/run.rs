//! `aze run`: a program that sees a volume which is not mounted for others.
//!
//! There are two doors: a library in the program that intercepts its system calls ([`intercept`]), and a mount of its own, which
//! is here. The program gets a mount namespace of its own with the volume in it; without root, in a user namespace of its
//! own. Three processes take part. This one enters the namespaces, mounts, and then becomes the program, so that
//! signals, the exit code and job control are the program's own. Before that it has forked the one that serves the
//! mount, the *agent*, from outside of the mount namespace: the kernel takes the mount away when the last process
//! of the namespace has gone, which ends the agent. (The third is in between for a moment, so that the agent is
//! no child of the program.)

mod executable;
mod intercept;

use crate::exit::{Exit, Outcome, Trouble};
use crate::mount::Way;
use crate::namespace;
use crate::process::Process;
use crate::session::Session;
use crate::volume::{MountRecord, VARIABLE, Volume};
use crate::{sys, trace};
use aze_fuse::{CACHE_TIME_DEFAULT, MountOptions, THREADS_MAX, Unmounted, signals};
use aze_words::errln;
use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Exit code for a program that cannot be started, as shells and env(1) give it.
const NOT_EXECUTABLE: u8 = 126;

/// Exit code for a program that is not there.
const NOT_THERE: u8 = 127;

/// What the agent and the process that mounts tell each other when their step is done.
const DONE: &[u8] = b"+";

/// How a program sees a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Door {
    /// By a mount where one can be had, else by the library.
    Auto,
    /// A library in the program intercepts its system calls.
    Intercept,
    /// A mount that only the program sees.
    Mount,
}

/// Run a program that sees a volume, without root and without mounting it for others.
///
/// The program and all that it starts see the volume as a directory; no other process does. Its input, output,
/// signals and exit code are its own. The volume stays there until the last of these processes has ended.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze run -- ls -l /aze
  aze run --at ~/vol -- make -j8
  aze run --door intercept -- python3 job.py    where neither /dev/fuse nor namespaces can be had
  eval \"$(aze run --print-env)\"                 what this shell starts from now on sees the volume at /aze
  srun aze run -- my-program /aze/input /aze/output")]
pub struct Args {
    /// Name of the volume; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// Where the program sees the volume: an existing directory, or a name right below / that need not exist.
    #[arg(long, value_name = "DIR", default_value = "/aze")]
    at: PathBuf,
    /// Refuse the program's changes.
    #[arg(long)]
    read_only: bool,
    /// Ask the servers for every read and write, past the kernel's page cache: for programs of which many processes write
    /// records into one file.
    #[arg(long)]
    direct_io: bool,
    /// How the kernel's requests come to a mount of the program's own: by io_uring, by /dev/fuse, or by whichever fits.
    #[arg(long, value_name = "WAY", value_enum, default_value = "auto")]
    fuse_io: Way,
    /// How the program sees the volume: by a mount of its own, or by a library in it that intercepts its system calls, which needs
    /// no right of any kind and a program that is linked dynamically.
    #[arg(long, value_enum, default_value = "auto")]
    door: Door,
    /// Print variables for the shell instead of running a program: what it starts with them sees the volume by the library. That
    /// ends with the shell.
    #[arg(long)]
    print_env: bool,
    /// With --print-env: end it with this process instead of the one that has started this command.
    #[arg(long)]
    pid: Option<u32>,
    /// The program and its arguments.
    #[arg(
        required_unless_present = "print_env",
        conflicts_with = "print_env",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Runs the command; returns only if the program could not be started.
pub fn run(args: &Args) -> Outcome<Exit> {
    let volume = Volume::meant(args.name.as_deref())?;
    trace::is_logged()?;
    if args.pid.is_some() && !args.print_env {
        return Err(Trouble::usage("--pid: only with --print-env, since a program is what it runs for"));
    }
    match args.door {
        Door::Mount if args.print_env => Err(Trouble::usage(
            "--print-env: a mount is seen by one program and what it starts: use 'aze mount' instead",
        )),
        Door::Mount => mount(args, volume),
        Door::Intercept => intercept::run(args, volume, &intercept::prepare(args)?),
        Door::Auto if args.print_env => intercept::run(args, volume, &intercept::prepare(args)?),
        Door::Auto => match (intercept::prepare(args), can_mount(args, &volume)?) {
            (_, None) => mount(args, volume),
            (Ok(ready), Some(_)) => intercept::run(args, volume, &ready),
            (Err(library), Some(mount)) => {
                let text = format!("{mount}; and no library intercepts the program's system calls: {library}");
                Err(Trouble::new(mount.exit, text))
            }
        },
    }
}

/// Why a program cannot be given a mount; `None` if it can. Tried by a process that ends at once, and its mount with it, since
/// the steps cannot be taken back.
fn can_mount(args: &Args, volume: &Volume) -> Outcome<Option<Trouble>> {
    let at = std::path::absolute(&args.at).map_err(|error| Trouble::local("find the working directory", &error))?;
    let missing = missing_below_root(&at)?;
    let attempt = || {
        let tried = enter_user_and_open().and_then(|device| {
            enter_mounts(&at, missing.as_deref())?;
            show(device, &at, &options(args, volume))
        });
        let trouble = tried.err()?;
        Some(format!("{} {}", trouble.exit as u8, trouble.text))
    };
    let failed = |error: &io::Error| Trouble::local("try whether the program can have a mount", error);
    let said = sys::in_another_process(attempt).map_err(|error| failed(&error))?;
    Ok(said.as_deref().and_then(|said| said.split_once(' ')).map(|(exit, text)| {
        let is_denied = exit == (Exit::Denied as u8).to_string();
        Trouble::new(if is_denied { Exit::Denied } else { Exit::Caller }, text)
    }))
}

/// Enters a user namespace, except as root, and opens the device of a mount.
fn enter_user_and_open() -> Outcome<Unmounted> {
    if sys::uid() != 0 {
        namespace::enter_user().map_err(|error| no_namespace("user", &error))?;
    }
    Unmounted::open().map_err(|error| no_device(&error))
}

/// Enters a mount namespace in which `at` is a directory: one that is there, or the root's `missing`.
fn enter_mounts(at: &Path, missing: Option<&str>) -> Outcome<()> {
    namespace::enter_mounts().map_err(|error| no_namespace("mount", &error))?;
    let Some(name) = missing else { return Ok(()) };
    namespace::add_to_root(name).map_err(|error| {
        let text = format!("make {} for the program: {error}: name an existing directory with --at", at.display());
        Trouble::new(Exit::Caller, text)
    })
}

fn show(device: Unmounted, at: &Path, options: &MountOptions) -> Outcome<()> {
    let failed =
        |error: &io::Error| Trouble::local(format!("mount the volume at {} for the program", at.display()), error);
    device.mount(at, options).map_err(|error| failed(&error))
}

fn options(args: &Args, volume: &Volume) -> MountOptions {
    MountOptions {
        volume: volume.record.name.clone(),
        read_only: args.read_only,
        allow_other: sys::uid() == 0,
        threads: THREADS_MAX,
        cache_time: CACHE_TIME_DEFAULT,
        direct_io: args.direct_io,
        fuse_io: args.fuse_io.into(),
    }
}

/// Runs the program with a mount.
fn mount(args: &Args, volume: Volume) -> Outcome<Exit> {
    let at = std::path::absolute(&args.at).map_err(|error| Trouble::local("find the working directory", &error))?;
    let missing = missing_below_root(&at)?;
    let here = std::env::current_dir().map_err(|error| Trouble::local("find the working directory", &error))?;
    let options = options(args, &volume);
    let device = enter_user_and_open()?;
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| Trouble::local("make a pair of sockets", &error))?;
    let program = Process::me();
    match sys::fork_orphan().map_err(|error| Trouble::local("start the process that serves the mount", &error))? {
        sys::Forked::Orphan => {
            drop(ours);
            let record = MountRecord {
                dir: at,
                process: Process::me(),
                program: Some(program),
                is_intercepted: false,
                fuse_io: None,
            };
            let exit = serve(volume, device, theirs, &record, &options);
            std::process::exit(exit as i32);
        }
        sys::Forked::Parent => drop(theirs),
    }
    enter_mounts(&at, missing.as_deref())?;
    show(device, &at, &options)?;
    if !exchange(&mut ours) {
        // The agent has told why.
        return Ok(Exit::Again);
    }
    // The working directory was in the namespace that this process has left.
    std::env::set_current_dir(&here)
        .map_err(|error| Trouble::local(format!("go back to {}", here.display()), &error))?;
    become_program(&args.program, &[(VARIABLE, volume.record.name.into())])
}

/// Becomes a program, with these variables; returns never.
fn become_program(program: &[OsString], variables: &[(&str, OsString)]) -> ! {
    let name: &OsStr = &program[0];
    let variables = variables.iter().map(|(name, value)| (name, value));
    let error = Command::new(name).args(&program[1..]).envs(variables).exec();
    errln!("aze: run: start {}: {error}", Path::new(name).display());
    let code = if error.kind() == ErrorKind::NotFound { NOT_THERE } else { NOT_EXECUTABLE };
    std::process::exit(code.into());
}

/// The name of `at` if it is not there and can be made for the program alone.
fn missing_below_root(at: &Path) -> Outcome<Option<String>> {
    match fs::metadata(at) {
        Ok(meta) if meta.is_dir() => return Ok(None),
        Ok(_) => {
            return Err(Trouble::new(Exit::Caller, format!("show the volume at {}: not a directory", at.display())));
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Trouble::local(format!("show the volume at {}", at.display()), &error));
        }
        Err(_) => {}
    }
    let mut parts = at.components();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Component::RootDir), Some(Component::Normal(name)), None) if name.to_str().is_some() => {
            Ok(name.to_str().map(str::to_owned))
        }
        _ => {
            let text = format!(
                "show the volume at {}: no such directory: make it first, or choose a name right below /, as in --at /aze",
                at.display()
            );
            Err(Trouble::new(Exit::NotFound, text))
        }
    }
}

/// Tells the other side that this side's step is done, and waits for its word; false if it has ended instead.
fn exchange(other: &mut UnixStream) -> bool {
    let mut word = [0; DONE.len()];
    other.write_all(DONE).is_ok() && other.read_exact(&mut word).is_ok() && word == DONE
}

/// The life of the agent.
fn serve(
    volume: Volume,
    device: Unmounted,
    mut other: UnixStream,
    record: &MountRecord,
    options: &MountOptions,
) -> Exit {
    let dir = record.dir.display();
    let served = (|| {
        // A batch system that ends a job signals all of its processes: the program may have to write its last
        // results then, so this one stays until it has gone.
        signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
        sys::leave_session().map_err(|error| Trouble::local("leave the terminal's session", &error))?;
        let log_path = volume.mount_record_path(record.process).with_extension("log");
        let mut word = [0; DONE.len()];
        if other.read_exact(&mut word).is_err() {
            // The other side has told why there is no mount.
            return Ok(());
        }
        let session = Session::open(volume)?;
        let mounted = device
            .serve(session.client.clone(), session.runtime.clone(), &record.dir, options)
            .map_err(|error| Trouble::local(format!("serve the mount at {dir}"), &error))?;
        let fuse_io = Some(mounted.fuse_io().to_string());
        session.volume.record_mount(&MountRecord { fuse_io, ..record.clone() })?;
        trace::listen(&session.volume, mounted.tracer());
        // The program's input and output must not be kept open by the agent.
        let mut quiet = || -> io::Result<()> {
            let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&log_path)?;
            let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
            sys::put_in_place(&null, 0)?;
            sys::put_in_place(&null, 1)?;
            other.write_all(DONE)?;
            sys::put_in_place(&log, 2)
        };
        let ended = match quiet() {
            Ok(()) => mounted.wait().map_err(|error| Trouble::local(format!("serve the mount at {dir}"), &error)),
            Err(error) => Err(Trouble::local(format!("go to the background with log {}", log_path.display()), &error)),
        };
        drop(other);
        trace::forget(&session.volume);
        for path in [log_path.with_extension("json"), log_path] {
            // The directory may have been removed with the volume.
            let _ = fs::remove_file(path);
        }
        session.end();
        ended
    })();
    told(served)
}

/// The exit code of an agent, after it has told its trouble.
fn told(served: Outcome<()>) -> Exit {
    served.map_or_else(
        |trouble| {
            errln!("aze: run: {trouble}");
            trouble.exit
        },
        |()| Exit::Done,
    )
}

fn no_namespace(kind: &str, error: &io::Error) -> Trouble {
    let text = format!(
        "make a {kind} namespace for the program: {error}: this machine does not let its users make namespaces \
         (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): \
         use 'aze mount'"
    );
    Trouble::new(if error.kind() == ErrorKind::PermissionDenied { Exit::Denied } else { Exit::Caller }, text)
}

fn no_device(error: &io::Error) -> Trouble {
    let what = match error.kind() {
        ErrorKind::PermissionDenied => "closed to you: an administrator must open it to users ('chmod 666 /dev/fuse')",
        _ => "not usable: an administrator must load the kernel module 'fuse'",
    };
    Trouble::new(crate::exit::of_io(error), format!("open /dev/fuse: {error}: it is {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_the_mount_is_there_or_right_below_the_root() {
        let missing = |at: &str| missing_below_root(Path::new(at)).map_err(|trouble| trouble.exit);
        assert_eq!(missing("/proc"), Ok(None));
        assert_eq!(missing("/no-such-directory"), Ok(Some("no-such-directory".into())));
        assert_eq!(missing("/no-such-directory/below"), Err(Exit::NotFound));
        assert_eq!(missing("/proc/self/status"), Err(Exit::Caller));
    }

    #[test]
    fn a_side_that_has_ended_is_noticed() {
        let pair = || UnixStream::pair().expect("a pair of sockets");
        let (mut ours, mut theirs) = pair();
        let other = std::thread::spawn(move || exchange(&mut theirs));
        assert!(exchange(&mut ours));
        assert!(other.join().expect("it ends"));
        // It has ended before this side's word, or after it without one of its own.
        assert!(!exchange(&mut ours));
        let (mut ours, mut theirs) = pair();
        let other = std::thread::spawn(move || theirs.read_exact(&mut [0; DONE.len()]));
        assert!(!exchange(&mut ours));
        other.join().expect("it ends").expect("it has heard the word");
    }
}
