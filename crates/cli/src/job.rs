//! `aze job`: a job script with a volume, as its `#AZE` lines say: for sites whose batch system knows nothing of it, and the
//! parts of it for the hooks of those whose does.
//!
//! It alone knows the order: all lines are understood before anything starts; input is in the volume before the script begins;
//! results are staged out in rounds while it runs and once more when it has ended, however it has; then the volume ends. Each
//! step is a command of this program. Signals go to the step at work, so that a script can end early and its results still be
//! staged out.

mod check;
mod lines;

use crate::exit::{Exit, Outcome, Trouble};
use crate::process::Process;
use crate::volume::VARIABLE;
use crate::{batch, launch, size, sys, up};
use aze_io::sync::Mutex;
use aze_words::{errln, outln};
pub use lines::Lookup;
use lines::{Lines, SCRIPT_BYTES_MAX};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// What runs a script whose first line names no program, or this one.
const SHELL: &str = "bash";

/// Signals that go to the step at work.
const SIGNALS: [i32; 5] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// Run a job script with a volume, as its '#AZE' lines say.
///
/// They are commands of aze, at the beginning of a line, before the first command of the script:
///
///   #AZE up [OPTIONS]                    the volume; '--from' the batch system of the job, unless nodes are given or with --start
///   #AZE stage in FROM TO [OPTIONS]      input, before the script begins
///   #AZE stage out FROM TO [OPTIONS]     results: FROM is made; while the script runs it is staged out in rounds, with --before-end
///                                        if the end of the job is known, or as --every says; and once more when it has ended
///
/// $NAME and ${NAME} are variables of the environment. All lines are checked before anything starts. The script is run by the
/// program of its first line, bash if that is aze, and finds the volume in AZE_VOLUME. SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2
/// go to it; whatever ends it, results are staged out, and then the volume ends; with --stage-out or --backing, other new data are
/// staged out to that place first.
///
/// The exit code is that of the script; if that is 0, of the first stage that was not done. If the volume or the input cannot be
/// had, the script does not run.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  sbatch --nodes=4 --wrap 'aze job run.sh'
  sbatch run.sh                  if its first line is '#!/usr/bin/env -S aze job'
  aze job --check run.sh         before it is submitted
  aze job --start run.sh         what a prolog does, and what an epilog does:
  aze job --finish --within 10m run.sh"
)]
pub struct Args {
    /// Only look whether its lines are good, sources and destinations there, and the input not larger than the volume.
    #[arg(long, conflicts_with_all = ["start", "finish"])]
    check: bool,
    /// Only start the volume, which goes on, stage in, and make directories for results; print the line that names the volume.
    #[arg(long, conflicts_with = "finish")]
    start: bool,
    /// With --start: further options of 'aze up', from the site.
    #[arg(long, value_name = "WORDS", requires = "start", allow_hyphen_values = true)]
    up: Option<String>,
    /// Only stage out, and end the volume.
    #[arg(long)]
    finish: bool,
    /// With --finish: stage out for no longer, and then name what was not.
    #[arg(long, value_name = "TIME", requires = "finish", value_parser = size::parse_duration)]
    within: Option<Duration>,
    /// The job script; - for standard input with --check, --start and --finish.
    script: PathBuf,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let text = script(args)?;
    if args.check {
        // Variables of the job have no values yet.
        let lines =
            Lines::read(&args.script, &text, &|name| Ok(env::var(name).unwrap_or_else(|_| format!("${name}"))))?;
        return check::check(&args.script, &lines);
    }
    let lookup = |name: &str| env::var(name).map_err(|_| format!("the variable {name} is not set, or no text"));
    let mut lines = Lines::read(&args.script, &text, &lookup)?;
    if let Some(words) = &args.up {
        let words = launch::split(words, None).map_err(|why| Trouble::usage(format!("--up '{words}': {why}")))?;
        lines.up.extend(words);
    }
    let job = Job::new(&lines)?;
    if args.finish {
        return job.finish(args.within);
    }
    let volume = job.up(args.start)?;
    let begun = job.begin(&volume);
    if let (true, Ok(())) = (args.start, &begun) {
        outln!("export {VARIABLE}='{volume}'");
        return Ok(Exit::Done);
    }
    let code = begun.map(|()| job.work(&volume, &args.script, &args.args));
    let staged = job.down(&volume);
    let code = code?;
    aze_words::out::finish()?;
    // The script's own, if it is not 0.
    std::process::exit(if code == 0 { staged } else { code })
}

fn script(args: &Args) -> Outcome<String> {
    let path = &args.script;
    let failed = |error: &std::io::Error| Trouble::local(format!("read the job script {}", path.display()), error);
    let (mut text, is_input) = (Vec::new(), path == Path::new("-"));
    if is_input && !(args.check || args.start || args.finish) {
        return Err(Trouble::usage("a job script on standard input is for --check, --start and --finish"));
    }
    let read = match is_input {
        true => std::io::stdin().lock().take(SCRIPT_BYTES_MAX + 1).read_to_end(&mut text),
        false => {
            let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
            file.take(SCRIPT_BYTES_MAX + 1).read_to_end(&mut text)
        }
    };
    read.map_err(|error| failed(&error))?;
    if text.len() as u64 > SCRIPT_BYTES_MAX {
        return Err(Trouble::usage(format!(
            "{}: a job script has at most {}",
            path.display(),
            size::words(SCRIPT_BYTES_MAX)
        )));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A job under way.
struct Job<'a> {
    lines: &'a Lines,
    program: PathBuf,
    hand: Arc<Hand>,
}

/// The step at work, and the signals for it.
#[derive(Default)]
struct Hand {
    at_work: Mutex<Option<Process>>,
    /// The first signal so far.
    signal: AtomicI32,
}

impl Hand {
    /// Passes signals on from now on. To be called before the process starts its first thread.
    fn start() -> std::io::Result<Arc<Hand>> {
        sys::hold_signals(&SIGNALS)?;
        let hand = Arc::new(Hand::default());
        let ours = hand.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while let Ok(signal) = sys::next_signal(&SIGNALS) {
                let at_work = ours.at_work.lock();
                let _ = ours.signal.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
                at_work.iter().for_each(|process| process.signal(signal));
            }
        })?;
        Ok(hand)
    }

    fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    /// Starts a program as the step at work.
    fn spawn(&self, command: &mut Command) -> Outcome<Child> {
        // A signal that comes now waits for the lock, and then goes to the program.
        let mut at_work = self.at_work.lock();
        let child = spawn(command)?;
        *at_work = Process::of(child.id());
        Ok(child)
    }

    /// Waits for the end of the step at work; gives its exit code, and 128 and the signal's number if a signal has ended it. At the
    /// moment `until` it gets SIGTERM.
    fn wait(&self, mut child: Child, until: Option<Instant>) -> Outcome<i32> {
        let process = *self.at_work.lock();
        if let Some((process, until)) = process.zip(until)
            && !process.wait(until)
        {
            process.signal(libc::SIGTERM);
        }
        let status = child.wait().map_err(|error| Trouble::local("wait for a step of the job", &error));
        *self.at_work.lock() = None;
        Ok(code(status?))
    }
}

fn spawn(command: &mut Command) -> Outcome<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    sys::with_signals(command).spawn().map_err(|error| Trouble::local(format!("run {name}"), &error))
}

fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

impl<'a> Job<'a> {
    fn new(lines: &'a Lines) -> Outcome<Job<'a>> {
        let hand = Hand::start().map_err(|error| Trouble::local("hold signals", &error))?;
        let program = env::current_exe().map_err(|error| Trouble::local("find this program", &error))?;
        Ok(Job { lines, program, hand })
    }

    /// This program, with these words.
    fn aze<S: AsRef<OsStr>>(&self, volume: Option<&str>, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).envs(volume.map(|volume| (VARIABLE, volume)));
        command
    }

    /// Runs it as the step at work; gives its exit code.
    fn step(&self, volume: &str, words: &[&str], more: &[String], until: Option<Instant>) -> Outcome<i32> {
        let child = self.hand.spawn(self.aze(Some(volume), words).args(more).stdin(Stdio::null()))?;
        self.hand.wait(child, until)
    }

    /// Starts the volume; gives its name. Unless it `goes_on`, it ends with this process.
    fn up(&self, goes_on: bool) -> Outcome<String> {
        let mut words: Vec<String> = vec!["up".into()];
        words.extend(self.lines.up.iter().cloned());
        let has_nodes = goes_on || self.is_given(&["--from", "--hosts", "--hostfile"]);
        if let (false, Some((system, _))) = (has_nodes, aze_reach::batch_job()) {
            words.extend(["--from".into(), system.into()]);
        }
        match self.is_given(&["--pid", "--detach"]) {
            true => {}
            false if goes_on => words.push("--detach".into()),
            false => words.extend(["--pid".into(), std::process::id().to_string()]),
        }
        let mut child = self.hand.spawn(self.aze(None, &words).stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let mut said = String::new();
        let read = child.stdout.take().map(|mut output| output.read_to_string(&mut said));
        let code = self.hand.wait(child, None)?;
        let name = said.strip_prefix(&format!("export {VARIABLE}='")).and_then(|rest| rest.split_once('\''));
        match (code, name) {
            (0, Some((name, _))) if matches!(read, Some(Ok(_))) => Ok(name.to_owned()),
            _ => Err(failed(code, "start the volume: see above: the script was not run")),
        }
    }

    /// Input into the volume, and directories for results.
    fn begin(&self, volume: &str) -> Outcome<()> {
        for (_, words) in &self.lines.stage_in {
            let code = self.step(volume, &["stage", "in"], words, None)?;
            if code != 0 {
                return Err(failed(code, "stage in: see above: the script was not run"));
            }
        }
        for (_, words) in &self.lines.stage_out {
            // Without a destination the source is what came from the directory below.
            let Some((from, _)) = lines::places("out", words) else { continue };
            let code = self.step(volume, &["mkdir", "-p"], &[from], None)?;
            if code != 0 {
                return Err(failed(
                    code,
                    "make the directory that is to be staged out: see above: the script was not run",
                ));
            }
        }
        match self.hand.signal() {
            Some(signal) => Err(failed(128 + signal, "a signal has come: the script was not run")),
            None => Ok(()),
        }
    }

    /// The script, beside rounds of stages, and then the last ones; gives the exit code.
    fn work(&self, volume: &str, script: &Path, args: &[OsString]) -> i32 {
        let stagers = self.stagers(volume);
        let mut command = match self.lines.interpreter.as_deref() {
            Some([program, options @ ..]) => {
                let mut command = Command::new(program);
                command.args(options);
                command
            }
            _ => Command::new(SHELL),
        };
        command.arg(script).args(args).env(VARIABLE, volume);
        let ran = self.hand.spawn(&mut command).and_then(|child| self.hand.wait(child, None));
        for mut stager in stagers {
            Process::of(stager.id()).iter().for_each(|process| process.signal(libc::SIGTERM));
            // The last stage tells all that it could not do.
            let _ = stager.wait();
        }
        let staged = self.stage_out(volume, None);
        match ran {
            Ok(0) => staged,
            Ok(code) => code,
            Err(trouble) => told(trouble),
        }
    }

    /// Stages in rounds, which go on until they get SIGTERM.
    fn stagers(&self, volume: &str) -> Vec<Child> {
        let knows_end = batch::job_end().unwrap_or_else(|trouble| {
            errln!("aze: job: warning: {trouble}: results are staged out when the script has ended");
            None
        });
        let mut stagers = Vec::new();
        for (_, words) in &self.lines.stage_out {
            let (_, has_rounds) = lines::without_rounds(words);
            if !has_rounds && (knows_end.is_none() || !lines::allows_rounds(words)) {
                continue;
            }
            let mut command = self.aze(Some(volume), ["stage", "out"]);
            command.args(words).args((!has_rounds).then_some("--before-end")).arg("--quiet").stdin(Stdio::null());
            match spawn(&mut command) {
                Ok(child) => stagers.push(child),
                Err(trouble) => errln!("aze: job: warning: {trouble}"),
            }
        }
        stagers
    }

    /// All results, however far it comes with each; gives the first exit code that is not 0.
    fn stage_out(&self, volume: &str, until: Option<Instant>) -> i32 {
        let mut first = 0;
        for (_, words) in &self.lines.stage_out {
            let code =
                self.step(volume, &["stage", "out"], &lines::without_rounds(words).0, until).unwrap_or_else(told);
            if first == 0 {
                first = code;
            }
        }
        first
    }

    /// Stages out and ends the volume, with or without the script.
    fn finish(&self, within: Option<Duration>) -> Outcome<Exit> {
        let named = || {
            let mut words = self.lines.up.iter();
            let by_two = words.clone().zip(words.clone().skip(1)).find(|(word, _)| *word == "--name");
            let by_one = words.find_map(|word| word.strip_prefix("--name="));
            by_two.map(|(_, name)| name.clone()).or(by_one.map(str::to_owned))
        };
        let missing = || {
            let text = format!(
                "--finish: which volume? There is no batch job here, no '--name' in the script's 'up' line, and no {VARIABLE}"
            );
            Trouble::usage(text)
        };
        let volume = named().or_else(up::job_name).or_else(|| env::var(VARIABLE).ok()).ok_or_else(missing)?;
        let code = self.stage_out(&volume, within.map(|within| Instant::now() + within));
        if code != 0 {
            errln!("aze: job: not all results of volume '{volume}' were staged out; of all that it held:");
            // A volume that keeps no account says so.
            self.step(&volume, &["stage", "status"], &["aze:/".into()], None)?;
        }
        let staged = self.down(&volume);
        let code = if code == 0 { staged } else { code };
        if code == 0 { Ok(Exit::Done) } else { Err(failed(code, "stage out: see above")) }
    }

    /// Ends the volume. If it says itself where results belong, dirty files are staged out there first; gives the exit
    /// code of that. All else that no line has staged out goes with the volume.
    fn down(&self, volume: &str) -> i32 {
        let down =
            |how: &str| self.step(volume, &["down", "--force", "--name", volume, how], &[], None).unwrap_or_else(told);
        let staged = if self.is_given(&["--stage-out", "--backing"]) { Some(down("--stage-out")) } else { None };
        if staged == Some(0) {
            return 0;
        }
        down("--discard");
        staged.unwrap_or(0)
    }

    /// Whether the script's line `up` has one of these options.
    fn is_given(&self, names: &[&str]) -> bool {
        let is_one = |word: &String| names.iter().any(|name| word == name || word.starts_with(&format!("{name}=")));
        self.lines.up.iter().any(is_one)
    }
}

/// Tells of a step that could not be made; the exit code.
fn told(trouble: Trouble) -> i32 {
    errln!("aze: job: {trouble}");
    trouble.exit as i32
}

/// A step that has failed with this exit code, which is ours then.
fn failed(code: i32, text: &str) -> Trouble {
    let exit = match u8::try_from(code) {
        Ok(1) => Exit::Some,
        // A signal has ended it.
        Ok(128..) | Err(_) => Exit::Again,
        Ok(number) => Exit::of_number(number),
    };
    Trouble::new(exit, text)
}
