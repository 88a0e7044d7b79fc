//! `aze cp`: copies in every direction between local paths and volumes.
//!
//! Room `copy` does the work; this file says which source goes to which place, and tells how it goes.

use crate::exit::{Exit, Outcome, Trouble};
use crate::place::Place;
use crate::progress::Progress;
use crate::session::Sessions;
use crate::sys;
use crate::tally::Tally;
use crate::tree_volume;
use aze_copy::tree::Spot;
use aze_copy::{Copier, How, Watch};
use aze_fuse::signals;
use aze_io::sync::{Condvar, Mutex};
use aze_proto::attr::FileKind;
use aze_words::{errln, outln};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Most worker threads.
const JOBS_MAX: u16 = 256;

/// Copy files between local paths and volumes, or within one, in parallel.
///
/// A copied file never looks done before it is: a local target gets its name last, and a partial
/// file in a volume is removed when its copy fails. Data that are read and written are checked end to end
/// by checksums; --verify reads both sides once more. A directory is not copied into itself, nor a file onto itself, also by
/// way of a mount.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze cp data.h5 aze:/                 copy a file in
  aze cp -r aze:/results .             copy a tree out
  aze cp -rp in1 in2 aze:/input/       several at once, with owners, times and the rest
  aze cp -r aze://a/x aze://b/y        from one volume to another")]
pub struct Args {
    /// What to copy, then where to: SOURCE... TARGET.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
    /// Copy directories with all that is in them; symbolic links are copied as links.
    #[arg(short = 'r', long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep owner, times, extended attributes and access control lists, too; what the target refuses is told.
    #[arg(short, long)]
    preserve: bool,
    /// Name each file as it is done.
    #[arg(short, long)]
    verbose: bool,
    /// No progress and no summary.
    #[arg(short, long)]
    quiet: bool,
    /// Read source and target again and compare them.
    #[arg(long)]
    verify: bool,
    /// Files and parts of files copied at the same time.
    #[arg(short, long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: u16,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    // Before the first thread starts, since each inherits this.
    signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
    let mut sessions = Sessions::default();
    let places: Vec<Place> = args.paths.iter().map(|path| Place::parse(path)).collect::<Outcome<_>>()?;
    let (target, sources) = places.split_last().expect("the parser demands two paths");
    let into = target.spot(&mut sessions)?;
    let is_dir = match into.stat(true)? {
        Some(meta) if target.ends_with_slash() && meta.kind != FileKind::Directory => {
            return Err(Trouble::new(Exit::Caller, format!("{}: not a directory", into.shown())));
        }
        Some(meta) => meta.kind == FileKind::Directory,
        None if sources.len() > 1 || (target.ends_with_slash() && !args.recursive) => {
            return Err(Trouble::new(
                Exit::NotFound,
                format!("{}: no such directory: make it first with 'aze mkdir' or 'mkdir'", into.shown()),
            ));
        }
        None => false,
    };
    if sources.len() > 1 && !is_dir {
        return Err(Trouble::new(
            Exit::Caller,
            format!("{}: not a directory, but several sources are to go there", into.shown()),
        ));
    }
    let reporter = Reporter::start("cp", args.verbose, args.quiet)?;
    let how = How { recursive: args.recursive, preserve: args.preserve, verify: args.verify, jobs: args.jobs.into() };
    let mut copier = Copier::start(how, reporter.clone(), tree_volume::mounted())?;
    let mut taken = BTreeSet::new();
    for source in sources {
        let copied = source.spot(&mut sessions).and_then(|from| {
            let to = match source.base_name() {
                Some(name) if is_dir => {
                    let to = into.join(&name);
                    // Directories of one name become one.
                    let is_dir =
                        || Ok(from.stat(!args.recursive)?.is_some_and(|meta| meta.kind == FileKind::Directory));
                    if !taken.insert(name) && !is_dir()? {
                        return Err(twice(&from.shown(), &to.shown()));
                    }
                    to
                }
                _ => into.clone(),
            };
            copier.copy(from, to)
        });
        if let Err(trouble) = copied {
            reporter.tally.fail(&trouble);
        }
    }
    copier.finish()?;
    let exit = finish(args, &reporter);
    if let Some(signal) = reporter.signal() {
        errln!("aze: cp: ended by a signal: what was not whole is removed, the rest is not copied");
        drop(sessions);
        // The shell is to see that it was a signal.
        sys::die_of(signal);
    }
    Ok(exit)
}

/// The trouble of a source that would replace what another source of the same command has become.
pub fn twice(from: &str, to: &str) -> Trouble {
    Trouble::new(Exit::Caller, format!("{from}: another source of this command is to be {to}: neither is replaced"))
}

/// Tells the user how the copy goes.
pub struct Reporter {
    /// Name each file that is done.
    verbose: bool,
    /// Counts the files and bytes copied.
    pub progress: Progress,
    /// Collects the failures.
    pub tally: Tally,
    /// The signal that has asked the command to end; 0 for none.
    signal: AtomicI32,
    /// The work under way is to end at this moment, as if by a signal.
    end: Mutex<Option<Instant>>,
    /// Where threads wait that a signal is to wake.
    wake: (Mutex<()>, Condvar),
}

impl Reporter {
    /// Of the command of this name. From now on the first signal that asks for an end is noted here; the second one ends
    /// the process at once. To be called when no other thread runs but those that hold signals back.
    pub fn start(command: &'static str, verbose: bool, quiet: bool) -> Outcome<Arc<Reporter>> {
        let progress = Progress::new(quiet);
        let tally = Tally::with_bar(command, progress.bar());
        let reporter = Arc::new(Reporter {
            verbose,
            progress,
            tally,
            signal: AtomicI32::default(),
            end: Mutex::default(),
            wake: Default::default(),
        });
        note_signals(&reporter)?;
        Ok(reporter)
    }

    /// Waits for so long, or until a signal asks for an end.
    pub fn wait(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut guard = self.wake.0.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.signal().is_some() {
                return;
            }
            guard = self.wake.1.wait_for(guard, left);
        }
    }

    /// The signal that has asked for an end.
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    /// The work under way is to end at this moment; with `None` when it is done.
    pub fn end_at(&self, end: Option<Instant>) {
        *self.end.lock() = end;
    }

    /// Whether the moment of [`Reporter::end_at`] has come.
    pub fn is_late(&self) -> bool {
        self.end.lock().is_some_and(|end| Instant::now() >= end)
    }
}

impl Watch for Reporter {
    fn is_over(&self) -> bool {
        self.signal().is_some() || self.is_late()
    }

    fn expect(&self, bytes: u64) {
        self.progress.expect(bytes);
    }

    fn copied(&self, bytes: u64) {
        self.progress.bytes(bytes);
    }

    fn file(&self, from: &Spot, to: &Spot) {
        self.tally.note(Ok(()));
        self.progress.file();
        if self.verbose {
            outln!("{} -> {}", from.shown(), to.shown());
        }
    }

    fn dir(&self) {
        self.tally.note(Ok(()));
    }

    fn lacks(&self, trouble: &Trouble) {
        self.tally.warn(trouble);
    }

    fn failed(&self, trouble: &Trouble) {
        self.tally.fail(trouble);
    }
}

/// The first signal that asks for an end is noted; the second one ends the process at once.
fn note_signals(reporter: &Arc<Reporter>) -> Outcome<()> {
    let reporter = reporter.clone();
    let wait = move || {
        if let Ok(signal) = signals::wait() {
            let _guard = reporter.wake.0.lock();
            reporter.signal.store(signal, Ordering::Relaxed);
            reporter.wake.1.notify_all();
        }
        if let Ok(signal) = signals::wait() {
            sys::die_of(signal);
        }
    };
    let started = std::thread::Builder::new().name("aze-signals".into()).spawn(wait);
    started.map(drop).map_err(|error| Trouble::local("start a thread", &error))
}

fn finish(args: &Args, reporter: &Reporter) -> Exit {
    let summary = reporter.progress.finish();
    let failed = reporter.tally.failed();
    if failed > 0 {
        errln!("aze: cp: {failed} failed; copied {summary}");
    } else if !args.quiet {
        errln!("copied {summary}");
    }
    reporter.tally.exit()
}
