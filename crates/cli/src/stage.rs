//! `aze stage`: copies between volumes and other file systems with proof of each copy.
//!
//! Room `copy` does the work; this file says which source goes to which place, where receipt and state lie, and tells
//! how it goes.

mod nodes;
mod priority;
mod release;
pub(crate) mod rounds;
mod share;
mod warm;
mod worker;

use crate::account::{self, Account, Reason};
use crate::copy::Reporter;
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::{Place, VolumePath};
use crate::session::Sessions;
use crate::{key, show, size, sys, volume, when};
use aze_copy::Watch;
use aze_copy::stage::ledger::{self, Hold, Route, Work};
use aze_copy::stage::nodes::{Nodes, Share};
use aze_copy::stage::standing::{self, Standing, Why};
use aze_copy::stage::state::Known;
use aze_copy::stage::survey::Filter;
use aze_copy::stage::{Order, Report, Side};
use aze_copy::tree::Spot;
use aze_fuse::signals;
use aze_proto::ids::Time;
use aze_receipt::{Hash, Signed};
use aze_words::{errln, outln};
use clap::Subcommand;
use priority::Priority;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files and parts of files at work at the same time, if nothing is said.
const JOBS_DEFAULT: u16 = 16;

/// Most files and parts of files at work at the same time.
const JOBS_MAX: u16 = aze_copy::stage::team::worker::JOBS_MAX;

/// Bytes of a list of paths, at most.
const LIST_BYTES_MAX: u64 = 1 << 30;

/// Dirty objects that are named.
const NAMED_MAX: usize = 10;

/// Receipts of one day beside one destination, at most.
const RECEIPTS_MAX: u32 = 10_000;

/// Copy a tree out of a volume, or into one, with proof of what was copied.
///
/// Every file is read as it was at one moment, written under a temporary name, made durable, read back from
/// where it is stored and compared, and only then gets its name. A signed receipt has a line for each object
/// for which all that succeeded, and for no other. The same command goes on where it was broken off.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze stage out aze:/results /project/run7
  aze stage in /project/input aze:/input")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Out(OutArgs),
    In(InArgs),
    Release(release::Args),
    Status(StatusArgs),
    #[command(hide = true)]
    Worker(worker::Args),
}

#[derive(clap::Args)]
struct Common {
    /// Where the receipt goes; it must not exist. [out: azekura-receipt-DATE-N.jsonl beside TO; in: none]
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Sign the receipt with the key in this file, such as that of a site, which 'aze key --file' has made. [your own]
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Where the state of an unfinished attempt lies. [out: beside TO; in: in ~/.local/state/azekura]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Only the paths in this file, one a line, as they are below FROM; - for standard input.
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// With --list: of a directory in the list not what is in it.
    #[arg(long, requires = "list")]
    no_recursion: bool,
    /// Only files whose contents have changed since then: a file's time of change, or a time as in 'aze find'.
    #[arg(long, value_name = "FILE|TIME")]
    newer_than: Option<OsString>,
    /// Only what fits this shell pattern: its name, or its path below FROM if the pattern has a slash.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<OsString>,
    /// Not what fits this shell pattern, nor what is below it.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Remove from TO what FROM does not have, when all else has succeeded; the receipt names it. In the directory of
    /// 'aze up --backing' only what the volume has removed.
    #[arg(long, conflicts_with_all = ["list", "newer_than", "include", "exclude"])]
    delete: bool,
    /// Make all of it appear in one step, or nothing. What was at TO before is kept beside it, or goes with --delete.
    #[arg(long)]
    atomic: bool,
    /// Have the volume keep account of what was staged: the same command copies only what has changed since. A volume that
    /// was staged in, or started with 'aze up --stage-out', does so by itself.
    #[arg(long)]
    keep: bool,
    /// Files and parts of large files copied at the same time; with --nodes, by each node.
    /// [16; with --every or --before-end 4]
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: Option<u16>,
    /// Have nodes of the volume copy and read back: all, so many, or those of these names; from volume to volume, those of the one
    /// that gets the copies. The local side must be the same for all of them. [this node alone]
    #[arg(long, value_name = "all|N|A,B", value_parser = nodes::parse)]
    nodes: Option<nodes::Wanted>,
    /// low: programs on the same cores come first, of this node and of --nodes. same: the priority that the command was started
    /// with. [low with --when closed and in rounds, but for the last one of --before-end; else same]
    #[arg(long, value_name = "WHICH", value_parser = priority::parser())]
    priority: Option<Priority>,
    /// As JSON, without progress.
    #[arg(long)]
    json: bool,
    /// Name each file as it is done.
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// No progress and no summary.
    #[arg(short, long)]
    quiet: bool,
}

/// Copy a file or the contents of a directory out of a volume, with a receipt.
///
/// Exit code 0: all of it is proven; 1: some is not, and the receipt says nothing of that; 5: something was in
/// the way, and nothing was copied.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze stage out aze:/results /project/run7
  aze stage out aze:/results /project/run7 --newer-than /project/last --exclude '*.tmp'
  aze stage out aze:/results /project/run7 --atomic --receipt run7.jsonl
  aze stage out                    what has changed, back to the directory of 'aze up --backing'
  aze stage out --delete           and what was removed or renamed goes there, too
  aze stage out aze:/results /project/run7 --when closed
  aze stage out aze:/results /project/run7 --every 10m &     until a signal: kill $!
  aze stage out aze:/results /project/run7 --before-end &    and once more before the job's end")]
struct OutArgs {
    /// A file or directory of a volume.
    #[arg(default_value = "aze:/")]
    from: OsString,
    /// What it becomes: the contents of a directory go into the directory of this name. If not given, its place in the
    /// directory of 'aze up --backing': what has changed is written back.
    to: Option<PathBuf>,
    /// Leave out files that a program has open for writing, and say how many; with --every they are left to later rounds,
    /// and with --before-end the last round takes them all the same.
    #[arg(long, value_name = "WHEN", conflicts_with = "atomic")]
    when: Option<When>,
    #[command(flatten)]
    rounds: rounds::Args,
    #[command(flatten)]
    common: Common,
}

/// When a file is staged.
#[derive(Clone, Copy, clap::ValueEnum)]
enum When {
    /// When no program has it open for writing.
    Closed,
}

/// Copy a file or the contents of a directory into a volume, verified; with a receipt if asked for.
///
/// What changes at the source while it is read is copied again, and named at last. Exit codes as of
/// 'aze stage out'. Of a volume over a directory ('aze up --backing') and without TO: have its servers read names and data
/// of that directory now, and not when they are used, as far as there is room for them.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze stage in /project/input aze:/input
  aze stage in aze://other/results aze:/input      from volume to volume
  aze stage in aze:/input                          what is there in the directory of 'aze up --backing'
  aze stage in --names-only                        names of all of it
  find /data -name '*.h5' -printf '%P\\n' | aze stage in /data aze:/data --list -")]
struct InArgs {
    /// A local file or directory, or one of another volume; without TO, a file or directory of a volume over a directory.
    #[arg(default_value = "aze:/")]
    from: OsString,
    /// What it becomes in a volume.
    to: Option<OsString>,
    /// Without TO: names, attributes and links, and no data.
    #[arg(long, conflicts_with = "to")]
    names_only: bool,
    #[command(flatten)]
    common: Common,
}

/// Show what an attempt that is at work, or was broken off, has done and what is left; the contents of a receipt; or
/// the objects that a volume alone holds.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze stage status /project/.azekura-stage-0123456789abcdef.state
  aze stage status aze:/")]
struct StatusArgs {
    /// A receipt, the state of an attempt, or a volume.
    of: PathBuf,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    match &args.command {
        Command::Out(args) => run_out(args),
        Command::In(args) => run_in(args),
        Command::Release(args) => release::run(args),
        Command::Status(args) => run_status(args),
        Command::Worker(args) => worker::run(args),
    }
}

fn run_out(args: &OutArgs) -> Outcome<Exit> {
    let from = Place::parse(&args.from)?;
    let Place::Volume(inside) = &from else {
        let shown = args.from.to_string_lossy();
        return Err(Trouble::usage(format!("'{shown}' is a local path: 'aze stage out' reads a volume: write aze:/…")));
    };
    let to = match &args.to {
        Some(to) => to.clone(),
        None => place_in_backing(inside)?,
    };
    if let Place::Volume(_) = Place::parse(to.as_os_str())? {
        return Err(Trouble::usage(
            "'aze stage out' writes to a local path: from volume to volume it is 'aze stage in aze:/… aze://OTHER/…'",
        ));
    }
    let to = absolute(&to)?;
    let receipt = match &args.common.receipt {
        Some(receipt) => receipt.clone(),
        None => free_receipt(&to)?,
    };
    let beside = |name: String| to.with_file_name(name);
    let rounds = Some(&args.rounds).filter(|rounds| rounds.are_asked_for());
    perform(
        ("out", args.when.is_some(), args.to.is_none()),
        &args.common,
        rounds,
        &from,
        &Place::Local(to.clone()),
        Some(receipt),
        |key| Ok(beside(format!(".azekura-stage-{key}.state"))),
    )
}

fn run_in(args: &InArgs) -> Outcome<Exit> {
    let Some(to) = &args.to else { return warm::run(&args.from, args.names_only, &args.common) };
    let shown = to.to_string_lossy();
    let to = Place::parse(to)?;
    let Place::Volume(_) = to else {
        return Err(Trouble::usage(format!(
            "'{shown}' is a local path: 'aze stage in' writes to a volume: write aze:/…"
        )));
    };
    let from = match Place::parse(&args.from)? {
        Place::Local(from) => Place::Local(absolute(&from)?),
        from => from,
    };
    perform(("in", false, false), &args.common, None, &from, &to, args.common.receipt.clone(), state_of_user)
}

/// Where a path of a volume is in the directory over which the volume lies.
fn place_in_backing(inside: &VolumePath) -> Outcome<PathBuf> {
    let session = Sessions::default().of(inside)?;
    let record = &session.volume.record;
    let missing = || {
        let text = format!("name where to: volume '{}' was started without --backing DIR", record.name);
        Trouble::usage(text)
    };
    let root = record.settings.backing.as_ref().ok_or_else(missing)?;
    let path = account::plain_path(&inside.path);
    let below = path.strip_prefix(b"/").unwrap_or(&path);
    Ok(if below.is_empty() { root.path.clone() } else { root.path.join(OsStr::from_bytes(below)) })
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    let absolute = std::path::absolute(path);
    absolute.map_err(|error| Trouble::local(format!("find {}", path.display()), &error))
}

/// Where the state of an attempt lies that has no directory of the user's at its destination.
fn state_of_user(key: &str) -> Outcome<PathBuf> {
    Ok(account::state_dir()?.join(format!("stage-{key}.state")))
}

/// A name for a receipt beside `to` that is free.
fn free_receipt(to: &Path) -> Outcome<PathBuf> {
    let date = show::time(when::now());
    let date = date.split(' ').next().unwrap_or(&date);
    let name = |number| to.with_file_name(format!("azekura-receipt-{date}-{number}.jsonl"));
    let free = (1..=RECEIPTS_MAX).map(name).find(|path| path.symlink_metadata().is_err());
    free.ok_or_else(|| {
        let text =
            format!("name the receipt: {RECEIPTS_MAX} of {date} are beside {}: give --receipt FILE", to.display());
        Trouble::new(Exit::Caller, text)
    })
}

fn perform(
    (direction, closed_only, keep): (&'static str, bool, bool),
    common: &Common,
    rounds: Option<&rounds::Args>,
    from: &Place,
    to: &Place,
    receipt: Option<PathBuf>,
    state: impl Fn(&str) -> Outcome<PathBuf>,
) -> Outcome<Exit> {
    // Before the first thread starts, since each inherits this.
    signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
    let mut sessions = Sessions::default();
    let side = side_of(direction, from, to, &mut sessions)?;
    // Later stages must know the objects that this one puts into the directory below.
    let keep = keep || common.keep || rounds.is_some() || side != Side::Outside;
    let account = account_of(direction, keep, from, to, &mut sessions)?;
    let destination = match to {
        Place::Local(path) => path.as_os_str().as_bytes().to_vec(),
        Place::Volume(path) => path.written(),
    };
    let jobs = common.jobs.unwrap_or(if rounds.is_some() { rounds::JOBS_DEFAULT } else { JOBS_DEFAULT });
    let nodes = team(common, from, to, &mut sessions, jobs.into())?;
    let (from, mut to) = (from.spot(&mut sessions)?, to.spot(&mut sessions)?);
    if to.path.len() > 1 && to.path.ends_with(b"/") {
        to.path.pop();
    }
    let source = from.shown();
    let hash =
        Hash::of(format!("{direction}\0{}\0{source}\0{}\0{}", from.tree.id(), to.tree.id(), to.shown()).as_bytes());
    let key = &hash.to_string()[..16];
    let state = match &common.state {
        Some(state) => state.clone(),
        None => state(key)?,
    };
    if let Some((account, _)) = &account
        && account.has_released
        && (common.delete || common.atomic)
        && ledger::files_in(&account.ledgers()?)?.is_empty()
    {
        let dir = account.ledgers()?;
        let text = format!(
            "files were released from this volume, and no ledger in {} says which: --delete and --atomic could remove the only \
             copies: run it where the ledgers are, or without",
            dir.display()
        );
        return Err(Trouble::new(Exit::Caller, text));
    }
    let ledger = match account {
        Some((account, route)) => {
            let (host, pid) = (volume::host(), std::process::id());
            let work = Work { route: route.clone(), state: state.clone(), host, pid };
            Some((Hold::take(&account.ledgers()?, &key_of(&route), &work)?, route))
        }
        None => None,
    };
    let mut filter = filter(common, &mut sessions)?;
    if direction == "out" && from.tree.has_origins() {
        refuse_in_backing(common, &from, &destination, side)?;
        filter.destination = Some(destination.strip_suffix(b"/").unwrap_or(&destination).to_vec());
    }
    let receipt = match receipt {
        Some(path) => Some((absolute(&path)?, key::of(common.sign_key.as_deref())?)),
        None if common.sign_key.is_some() => {
            return Err(Trouble::usage("--sign-key signs a receipt: 'aze stage in' makes one with --receipt FILE"));
        }
        None => None,
    };
    let order = Order {
        direction,
        source,
        from,
        to,
        destination,
        filter,
        side,
        delete: common.delete,
        atomic: common.atomic,
        closed_only,
        jobs: jobs.into(),
        nodes,
        state,
        ledger,
        receipt,
        program: format!("aze {}", env!("CARGO_PKG_VERSION")),
    };
    let reporter = Reporter::start("stage", common.verbose, common.quiet || common.json || rounds.is_some())?;
    if let Some(rounds) = rounds {
        return rounds.run(common, order, &reporter);
    }
    one_round(common, &order, &reporter)
}

/// The nodes that are to copy; none if this process is to do it.
fn team(
    common: &Common,
    from: &Place,
    to: &Place,
    sessions: &mut Sessions,
    jobs: usize,
) -> Outcome<Option<Arc<dyn Nodes>>> {
    let Some(wanted) = &common.nodes else { return Ok(None) };
    let mut session = |place: &Place| match place {
        Place::Volume(path) => sessions.of(path).map(Some),
        Place::Local(_) => Ok(None),
    };
    let sides = [session(from)?, session(to)?];
    let volumes = sides.each_ref().map(|side| side.as_ref().map(|session| session.volume.record.name.clone()));
    // From volume to volume, those of the one that gets the copies.
    let Some(session) = sides.into_iter().flatten().last() else { return Ok(None) };
    let team = nodes::team(wanted, &session, volumes, jobs)?;
    Ok(team.map(|team| Arc::new(team) as Arc<dyn Nodes>))
}

/// Where a destination is, seen from the directory over which the volume of the source lies.
fn side_of(direction: &str, from: &Place, to: &Place, sessions: &mut Sessions) -> Outcome<Side> {
    let (Place::Volume(inside), Place::Local(outside), "out") = (from, to, direction) else { return Ok(Side::Outside) };
    let session = sessions.of(inside)?;
    let Some(root) = &session.volume.record.settings.backing else { return Ok(Side::Outside) };
    let path = account::plain_path(&inside.path);
    Ok(match outside.strip_prefix(&root.path) {
        Ok(below) if below.as_os_str().as_bytes() == &path[1..] => Side::Own,
        Ok(_) => Side::Inside,
        Err(_) if is_within(outside, &root.path) => {
            let (to, root) = (outside.display(), root.path.display());
            return Err(Trouble::usage(format!("'{to}' leads into {root}, over which the volume lies: write it so")));
        }
        Err(_) => Side::Outside,
    })
}

/// Whether a path leads into a directory by way of symbolic links.
fn is_within(path: &Path, dir: &Path) -> bool {
    let resolved = path.ancestors().find_map(|above| above.canonicalize().ok());
    resolved.zip(dir.canonicalize().ok()).is_some_and(|(path, dir)| path.starts_with(dir))
}

/// Refuses what would take names away from the directory over which the volume lies, but for those that the volume has removed
/// at their own places.
fn refuse_in_backing(common: &Common, from: &Spot, destination: &[u8], side: Side) -> Outcome<()> {
    let is_refused = common.atomic || common.delete && side != Side::Own;
    if !is_refused {
        return Ok(());
    }
    let root = from.tree.stat(b"/", true)?.map(|meta| from.tree.origin(&meta)).transpose()?.flatten();
    let is_in = |one: &[u8], other: &[u8]| Path::new(OsStr::from_bytes(one)).starts_with(OsStr::from_bytes(other));
    match root {
        Some(root) if is_in(destination, &root.outside) || is_in(&root.outside, destination) => {
            let text = "--atomic is not for the directory over which the volume lies, which has names that the volume has not looked \
                        at; and --delete only for the own place of what is staged: 'aze stage out --delete aze:/DIR' without \
                        a destination";
            Err(Trouble::new(Exit::Caller, text))
        }
        _ => Ok(()),
    }
}

/// Stages, and tells how it went.
fn one_round(common: &Common, order: &Order, reporter: &Arc<Reporter>) -> Outcome<Exit> {
    let failed_before = reporter.tally.failed();
    let watch: Arc<dyn Watch> = reporter.clone();
    let alone = if order.closed_only { Priority::Low } else { Priority::Same };
    let staged = priority::stage(common.priority.unwrap_or(alone), order, &watch);
    let summary = reporter.progress.finish();
    if let Some(signal) = reporter.signal().filter(|_| staged.is_err()) {
        errln!("aze: stage: ended by a signal: the same command goes on from here");
        // The shell is to see that it was a signal.
        sys::die_of(signal);
    }
    let report = staged?;
    tell(common, &report, signer(order).as_ref(), &summary);
    let is_whole = report.missing == 0 && report.left == 0 && reporter.tally.failed() == failed_before;
    Ok(if is_whole { Exit::Done } else { Exit::Some })
}

/// Where the receipt goes, the key that signs it, and the key's id.
fn signer(order: &Order) -> Option<(PathBuf, String, String)> {
    let (path, key) = order.receipt.as_ref()?;
    Some((path.clone(), key.public().to_string(), key.public().id()))
}

/// The name of the ledger of a route, however its places were written.
fn key_of(route: &Route) -> String {
    let Route { direction, inside, outside } = route;
    Hash::of(&[direction.as_bytes(), inside, outside].join(&0)).to_string()[..16].to_owned()
}

/// The account that the volume keeps, and the route that this stage has in it; `None` if it keeps none.
fn account_of(
    direction: &str,
    keep: bool,
    from: &Place,
    to: &Place,
    sessions: &mut Sessions,
) -> Outcome<Option<(Account, Route)>> {
    let (inside, outside) = match (from, to) {
        (Place::Volume(inside), Place::Local(outside)) | (Place::Local(outside), Place::Volume(inside)) => {
            (inside, outside.as_os_str().as_bytes().to_vec())
        }
        // Only the volume that gets the copies notes it.
        (Place::Volume(from), Place::Volume(inside)) => {
            let volume = Some(sessions.of(from)?.volume.record.name.clone());
            (inside, VolumePath { volume, path: account::plain_path(&from.path) }.written())
        }
        (Place::Local(_), Place::Local(_)) => return Ok(None),
    };
    let session = sessions.of(inside)?;
    let reason = match direction {
        "in" => Some(Reason::StagedIn),
        _ if keep => Some(Reason::Kept),
        _ => None,
    };
    let account = match reason {
        None => Account::find(&session)?,
        Some(reason) => match Account::open(&session, &reason) {
            Ok(account) => Some(account),
            // A guest of the volume stages all the same.
            Err(trouble) if trouble.exit == Exit::Denied && !keep => {
                errln!("aze: stage: warning: {trouble}: 'aze down' will not know what was staged");
                None
            }
            Err(trouble) => return Err(trouble),
        },
    };
    let route = |account| {
        let inside = account::plain_path(&inside.path);
        (account, Route { direction: direction.into(), inside, outside })
    };
    Ok(account.map(route))
}

fn tell(common: &Common, report: &Report, receipt: Option<&(PathBuf, String, String)>, summary: &str) {
    let path = receipt.map(|(path, ..)| path.display().to_string());
    if common.json {
        let told = serde_json::json!({
            "proven": report.proven, "resumed": report.resumed, "missing": report.missing, "removed": report.removed,
            "left": report.left, "drained": report.drained, "open": report.open, "replaced": report.replaced, "receipt": path, "key_id": receipt.map(|(_, _, id)| id),
            "bytes": report.end.as_ref().map(|end| end.bytes), "tree": report.end.as_ref().map(|end| end.tree.to_string()),
            "nodes": report.nodes.iter().map(node_as_json).collect::<Vec<_>>(),
        });
        outln!("{told}");
        return;
    }
    if report.open > 0 {
        errln!("aze: stage: {} open for writing, and left out", show::count(report.open, "file"));
    }
    if report.missing > report.open {
        let (missing, proven) = (report.missing - report.open, report.proven);
        let missing = show::count(missing, "object");
        errln!("aze: stage: {missing} could not be staged; {proven} are proven: the same command tries the rest");
    }
    if report.left > 0 {
        report.left_named.iter().for_each(|path| errln!("aze: stage: {path}: removed in the volume, and still there"));
        let left = show::count(report.left, "name");
        let how = match (common.delete, report.missing) {
            (false, _) => "aze stage out --delete removes them there",
            (true, 0) => "why is said above",
            (true, _) => "nothing is removed before all else is staged",
        };
        errln!("aze: stage: {left} that the volume has not any more left at the destination: {how}");
    }
    if common.quiet {
        return;
    }
    let resumed = if report.resumed > 0 { format!(", {} of them before", report.resumed) } else { String::new() };
    let by = match report.nodes.iter().filter(|share| share.lost.is_none()).count() {
        0 => String::new(),
        count => format!(" by {}", show::count(count as u64, "node")),
    };
    errln!("verified {summary}{by}; {} proven{resumed}", show::count(report.proven, "object"));
    if let Some(replaced) = &report.replaced {
        errln!("what was there before is {replaced}");
    }
    if let Some((path, _, id)) = receipt {
        errln!("receipt {}, signed by key {id}", path.display());
    }
}

fn node_as_json(share: &Share) -> serde_json::Value {
    let Share { node, copied_bytes, read_back_bytes, lost } = share;
    serde_json::json!({ "node": node, "copied_bytes": copied_bytes, "read_back_bytes": read_back_bytes, "lost": lost })
}

fn filter(common: &Common, sessions: &mut Sessions) -> Outcome<Filter> {
    let patterns = |texts: &[OsString]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    Ok(Filter {
        destination: None,
        include: patterns(&common.include),
        exclude: patterns(&common.exclude),
        newer_than: common.newer_than.as_deref().map(|text| newer_than(text, sessions)).transpose()?,
        list: common.list.as_deref().map(list).transpose()?,
        list_alone: common.no_recursion,
    })
}

fn newer_than(text: &OsStr, sessions: &mut Sessions) -> Outcome<Time> {
    if let Some(time) = text.to_str().and_then(|text| when::parse(text).ok()) {
        return Ok(time);
    }
    let found = Place::parse(text)?.spot(sessions)?.must_stat(true);
    Ok(found.map_err(|trouble| trouble.during("--newer-than takes a time as in 'aze find', or a file"))?.mtime)
}

fn list(file: &Path) -> Outcome<BTreeSet<Vec<u8>>> {
    let failed = |error: std::io::Error| Trouble::local(format!("read the list {}", file.display()), &error);
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).map_err(failed)?.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes)
    };
    read.map_err(failed)?;
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(Trouble::usage(format!("{}: a list has at most {}", file.display(), size::words(LIST_BYTES_MAX))));
    }
    let mut paths = BTreeSet::new();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let path = line.strip_prefix(b"./").unwrap_or(line);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        if path.starts_with(b"/") || path.split(|byte| *byte == b'/').any(|name| name == b"..") {
            let shown = String::from_utf8_lossy(line);
            return Err(Trouble::usage(format!("{}: '{shown}' is no path below the source", file.display())));
        }
        paths.insert(path.to_vec());
    }
    Ok(paths)
}

fn run_status(args: &StatusArgs) -> Outcome<Exit> {
    if let Place::Volume(path) = Place::parse(args.of.as_os_str())? {
        return run_status_of(args, &path);
    }
    match Known::look(&args.of) {
        Ok((known, lives)) => {
            tell_state(args, &known, lives);
            Ok(Exit::Done)
        }
        Err(trouble) if trouble.exit == Exit::Caller => {
            tell_receipt(args, &Signed::open(&args.of, None)?);
            Ok(Exit::Done)
        }
        Err(trouble) => Err(trouble),
    }
}

fn run_status_of(args: &StatusArgs, path: &VolumePath) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let session = sessions.of(path)?;
    if account::plain_path(&path.path) != b"/" {
        return Err(Trouble::usage(format!("'{}': all of a volume is looked at: write aze:/", path.shown())));
    }
    let name = &session.volume.record.name;
    let (account, standing) = match Account::find(&session)? {
        Some(account) => {
            let standing = account.standing(&session, NAMED_MAX, &|| false)?;
            (account, standing)
        }
        // What differs from the directory below is known without an account.
        None if session.volume.record.settings.backing.is_some() => {
            errln!("volume '{name}': nothing has been staged yet; compared with the directory of 'aze up --backing'");
            (Account::default(), account::standing_to(&[], &session, NAMED_MAX, None, &|| false)?)
        }
        None => {
            let text = format!(
                "volume '{name}' keeps no account of staging: 'aze up --stage-out', 'aze stage in' and 'aze stage out --keep' \
                 have it keep one"
            );
            return Err(Trouble::new(Exit::NotFound, text));
        }
    };
    let Standing { staged, dirty, without_data, named, renamed_from, lost, untold, ended_early, removed, released } =
        &standing;
    // What a stage out leaves alone: a name of several, in the directory below.
    let backing = session.volume.record.settings.backing.as_ref();
    let names_below = |path: &[u8], why: Why| {
        let below = path.strip_prefix(b"/").filter(|below| !below.is_empty())?;
        let there = backing?.path.join(OsStr::from_bytes(below)).symlink_metadata().ok()?;
        let has_several = matches!(why, Why::Data | Why::Attributes) && !there.is_dir() && there.nlink() > 1;
        has_several.then(|| there.nlink())
    };
    if args.json {
        let named: Vec<_> = named
            .iter()
            .map(|(path, why)| {
                let from = renamed_from.get(path).map(|from| account::shown(from));
                let names_below = names_below(path, *why);
                serde_json::json!({ "path": account::shown(path), "why": why.word(), "from": from, "names_below": names_below })
            })
            .collect();
        let told = serde_json::json!({
            "volume": name, "guarded": account.guards(session.volume.record.settings.is_kept()),
            "stage_out": account.stage_out, "staged": staged.objects, "staged_bytes": staged.bytes,
            "dirty": dirty.objects, "dirty_bytes": dirty.bytes, "without_data": without_data, "removed": removed, "first": named,
            "released": released.objects, "released_bytes": released.bytes,
            "lost": lost.iter().map(|trouble| trouble.text.clone()).collect::<Vec<_>>(), "untold": untold.as_ref().map(|trouble| trouble.text.clone()), "ended_early": ended_early,
        });
        outln!("{told}");
    } else {
        outln!("staged  {}, {}", show::count(staged.objects, "object"), size::words(staged.bytes));
        if released.objects > 0 {
            outln!(
                "gone    {}, {}, released from the volume",
                show::count(released.objects, "file"),
                size::words(released.bytes)
            );
        }
        outln!("dirty   {}, {}", show::count(dirty.objects, "object"), size::words(dirty.bytes));
        for (path, why) in named {
            let several = names_below(path, *why).map_or_else(String::new, |names| {
                format!("; {names} names in the directory below: it is not staged there")
            });
            outln!("        {} ({}{several})", account::shown(path), standing.why(path, *why));
        }
        lost.iter().for_each(|trouble| outln!("{:<8}{trouble}", standing::word_for(trouble)));
        untold.iter().for_each(|trouble| outln!("untold  {trouble}"));
        if dirty.objects > 0 && account.guards(session.volume.record.settings.is_kept()) {
            outln!("'aze down' refuses while anything is dirty");
        }
    }
    Ok(match lost[..] {
        [] => Exit::Done,
        _ if standing.is_closed() => Exit::Denied,
        _ => Exit::Fatal,
    })
}

fn tell_state(args: &StatusArgs, known: &Known, lives: bool) {
    let ((objects, bytes), left) = (known.proven(), known.left());
    if args.json {
        let told = serde_json::json!({
            "order": known.order, "attempts": known.attempts.len(), "at_work": lives, "started": known.started,
            "proven": objects, "proven_bytes": bytes, "left": left.map(|left| left.0), "left_bytes": left.map(|left| left.1),
            "nodes": known.nodes,
        });
        outln!("{told}");
        return;
    }
    outln!("{}", known.order);
    let how = if lives { "is at work" } else { "was broken off: the same command goes on from there" };
    outln!("attempt {}, begun {}, {how}", known.attempts.len(), known.started);
    if !known.nodes.is_empty() {
        outln!("nodes   {}", known.nodes.join(", "));
    }
    outln!("proven  {}, {}", show::count(objects, "object"), size::words(bytes));
    match left {
        Some((objects, bytes)) => outln!("left    {}, {}", show::count(objects, "object"), size::words(bytes)),
        None => outln!("left    unknown: it still looks at the source"),
    }
}

fn tell_receipt(args: &StatusArgs, signed: &Signed) {
    let (head, end) = (&signed.head, &signed.end);
    let to = String::from_utf8_lossy(&head.destination);
    if args.json {
        let told = serde_json::json!({
            "direction": head.direction, "source": head.source, "destination": to, "started": head.started,
            "finished": end.finished, "files": end.files, "directories": end.directories, "links": end.links,
            "removed": end.removed, "missing": end.missing, "bytes": end.bytes, "tree": end.tree.to_string(),
            "key": signed.key.to_string(), "key_id": signed.key.id(),
        });
        outln!("{told}");
        return;
    }
    outln!("{} {} to {to}", head.direction, head.source);
    outln!("begun {}, finished {}", head.started, end.finished);
    let (files, dirs, links) = (end.files, end.directories, end.links);
    outln!("{files} files, {dirs} directories, {links} symbolic links, {}", size::words(end.bytes));
    outln!("{} removed; {} not staged", end.removed, end.missing);
    outln!("signed by key {}; the files are checked by 'aze receipt verify'", signed.key.id());
}
