//! `aze cp`: copies in every direction between local paths and volumes.
//!
//! One thread walks the sources, makes directories and feeds a bounded queue; worker threads copy
//! (see [`crate::copy_workers`]). Directories get their final mode and times last, when nothing is
//! put into them any more.

use crate::copy_workers::{Job, Plan, Transfer, Workers, warn};
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::Place;
use crate::progress::Progress;
use crate::session::Sessions;
use crate::sys;
use crate::tally::Tally;
use crate::tree::{Meta, Spot};
use aze_fuse::signals;
use aze_proto::attr::FileKind;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Most worker threads.
const JOBS_MAX: u16 = 256;

/// Copy files between local paths and volumes, or within one, in parallel.
///
/// A copied file never looks done before it is: a local target gets its name last, and a partial
/// file in a volume is removed when its copy fails. Data that are read and written are checked end to end
/// by checksums; --verify reads both sides once more.
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
    let into = Spot::of(target, &mut sessions)?;
    let is_dir = match into.stat(true)? {
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
    let progress = Arc::new(Progress::new(args.quiet));
    let tally = Arc::new(Tally::with_bar("cp", progress.bar()));
    let (preserve, verify, verbose, signal) = (args.preserve, args.verify, args.verbose, Arc::<AtomicI32>::default());
    let plan = Arc::new(Plan { preserve, verify, verbose, progress, tally, signal });
    note_signals(&plan)?;
    let mut walk = Walk {
        args,
        plan: plan.clone(),
        workers: Workers::start(args.jobs.into(), &plan)?,
        dirs: Vec::new(),
        made: BTreeSet::new(),
    };
    for source in sources {
        let copied = walk.source(source, &into, is_dir, &mut sessions);
        if let Err(trouble) = copied {
            plan.tally.fail(&trouble);
        }
    }
    let Walk { workers, dirs, .. } = walk;
    workers.finish();
    for Made { from, dir, meta } in dirs.iter().rev() {
        let kept = if args.preserve { keep_xattrs(from, dir, &plan) } else { Ok(()) };
        if let Err(trouble) = kept.and_then(|()| dir.tree.set_dir(&dir.path, meta, args.preserve)) {
            plan.tally.fail(&trouble);
        }
    }
    let exit = finish(args, &plan);
    let signal = plan.signal.load(Ordering::Relaxed);
    if signal != 0 {
        eprintln!("aze: cp: ended by a signal: what was not whole is removed, the rest is not copied");
        drop(sessions);
        // The shell is to see that it was a signal.
        sys::die_of(signal);
    }
    exit
}

/// The first signal that asks for an end is noted in the plan; the second one ends the process at once.
fn note_signals(plan: &Arc<Plan>) -> Outcome<()> {
    let noted = plan.signal.clone();
    let wait = move || {
        if let Ok(signal) = signals::wait() {
            noted.store(signal, Ordering::Relaxed);
        }
        if let Ok(signal) = signals::wait() {
            sys::die_of(signal);
        }
    };
    let started = std::thread::Builder::new().name("aze-signals".into()).spawn(wait);
    started.map(drop).map_err(|error| Trouble::local("start a thread", &error))
}

fn finish(args: &Args, plan: &Plan) -> Outcome<Exit> {
    let summary = plan.progress.finish();
    let failed = plan.tally.failed();
    if failed > 0 {
        eprintln!("aze: cp: {failed} failed; copied {summary}");
    } else if !args.quiet {
        eprintln!("copied {summary}");
    }
    Ok(plan.tally.exit())
}

/// Gives a directory the extended attributes of its source; one that it cannot have is told.
fn keep_xattrs(from: &Spot, to: &Spot, plan: &Plan) -> Outcome<()> {
    for xattr in from.tree.dir_xattrs(&from.path)? {
        warn(plan, &xattr, to.tree.set_dir_xattr(&to.path, &xattr));
    }
    Ok(())
}

/// A new directory, with the attributes that it is to have.
struct Made {
    from: Spot,
    dir: Spot,
    meta: Meta,
}

/// The walk over the sources.
struct Walk<'a> {
    args: &'a Args,
    plan: Arc<Plan>,
    workers: Workers,
    /// Directories made, parents before children.
    dirs: Vec<Made>,
    /// The same directories, so that a copy into itself ends.
    made: BTreeSet<(String, (u64, u64))>,
}

impl Walk<'_> {
    /// Copies one source named on the command line.
    fn source(&mut self, source: &Place, into: &Spot, is_dir: bool, sessions: &mut Sessions) -> Outcome<()> {
        let from = Spot::of(source, sessions)?;
        let meta = from.must_stat(!self.args.recursive)?;
        let to = match source.base_name() {
            Some(name) if is_dir => into.join(&name),
            _ => into.clone(),
        };
        self.visit(from, to, meta);
        Ok(())
    }

    fn visit(&mut self, from: Spot, to: Spot, meta: Meta) {
        if self.plan.is_over() {
            return;
        }
        let visited = match meta.kind {
            FileKind::File => self.file(from, to, meta),
            FileKind::Symlink => self.workers.put(Job::Link { from, to }),
            FileKind::Directory if self.args.recursive => self.dir(&from, &to, meta),
            FileKind::Directory => {
                Err(Trouble::new(Exit::Caller, format!("{}: is a directory: use -r to copy it", from.shown())))
            }
            _ => Err(Trouble::new(
                Exit::Caller,
                format!("{}: neither file, directory nor symbolic link: not copied", from.shown()),
            )),
        };
        if let Err(trouble) = visited {
            self.plan.tally.fail(&trouble);
        }
    }

    fn file(&mut self, from: Spot, to: Spot, meta: Meta) -> Outcome<()> {
        if from.tree.id() == to.tree.id() && to.stat(true)?.is_some_and(|there| there.identity == meta.identity) {
            return Err(Trouble::new(Exit::Caller, format!("{} and {} are the same file", from.shown(), to.shown())));
        }
        self.plan.progress.expect(meta.size);
        let transfer = Arc::new(Transfer::new(from, to, meta));
        for part in 0..transfer.parts() {
            self.workers.put(Job::Part { transfer: transfer.clone(), part })?;
        }
        Ok(())
    }

    fn dir(&mut self, from: &Spot, to: &Spot, meta: Meta) -> Outcome<()> {
        if self.made.contains(&(from.tree.id(), meta.identity)) {
            return Err(Trouble::new(Exit::Caller, format!("{}: not copied into itself", from.shown())));
        }
        to.tree.make_dir(&to.path)?;
        if let Some(made) = to.stat(true)? {
            self.made.insert((to.tree.id(), made.identity));
        }
        self.dirs.push(Made { from: from.clone(), dir: to.clone(), meta });
        self.plan.tally.note(Ok(()));
        let names = from.tree.list(&from.path)?;
        if let Some(trouble) = &names.trouble {
            self.plan.tally.fail(trouble);
        }
        for entry in names.entries {
            let child = from.join(&entry.name);
            match entry.meta.map_or_else(|| child.must_stat(false), Ok) {
                Ok(meta) => self.visit(child, to.join(&entry.name), meta),
                Err(trouble) => self.plan.tally.fail(&trouble),
            }
        }
        Ok(())
    }
}
