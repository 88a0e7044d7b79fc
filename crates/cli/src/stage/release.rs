//! `aze stage release`: a volume gives up files that are staged out.

use crate::account::{self, Account};
use crate::copy::Reporter;
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::{Place, VolumePath};
use crate::session::Sessions;
use crate::{show, size};
use aze_copy::LocalTree;
use aze_copy::stage::ledger;
use aze_copy::stage::release::{Order, release};
use aze_fuse::signals;
use aze_words::{errln, outln};
use std::ffi::OsString;
use std::sync::Arc;

/// Remove files from a volume that are staged out and unchanged, to make room.
///
/// A released file IS GONE from the volume: opening it says that there is no such file. Its copy stays where 'aze stage out'
/// has put it, and 'aze stage in' brings it back. Directories and symbolic links stay. A file is released only if a receipt
/// names it, it has not changed since, no program has it open for writing, it has one name, and its copy is still there with
/// the inode, length and times that were verified; with --compare also with the bytes. Every other file is named, and stays.
///
/// Exit code 0: all of them are released; 1: some stay.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze stage release aze:/results/step1
  aze stage release aze:/results --compare")]
pub struct Args {
    /// Files and directories of a volume; of a directory all files in it.
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Read each copy, and compare it with the sums in the receipt.
    #[arg(long)]
    compare: bool,
    /// Also files whose server was started again since they were made. It does not know who had them open before: say so if no
    /// program has run on since.
    #[arg(long)]
    restarted: bool,
    /// Files at work at the same time.
    #[arg(short, long, default_value_t = super::JOBS_DEFAULT,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(super::JOBS_MAX)))]
    jobs: u16,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// No summary.
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    // Before the first thread starts, since each inherits this.
    signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
    let mut sessions = Sessions::default();
    let places = args.paths.iter().map(|text| match Place::parse(text)? {
        Place::Volume(path) => Ok(path),
        Place::Local(_) => {
            let shown = text.to_string_lossy();
            Err(Trouble::usage(format!(
                "'{shown}' is a local path: 'aze stage release' works on a volume: write aze:/…"
            )))
        }
    });
    let places: Vec<VolumePath> = places.collect::<Outcome<_>>()?;
    let session = sessions.of(&places[0])?;
    let name = &session.volume.record.name;
    for place in &places {
        if sessions.of(place)?.volume.record.name != *name {
            return Err(Trouble::usage(format!(
                "'{}' is of another volume than '{}'",
                place.shown(),
                places[0].shown()
            )));
        }
    }
    let missing = || {
        let text = format!("volume '{name}' keeps no account of staging: 'aze stage out --keep' has it keep one");
        Trouble::new(Exit::NotFound, text)
    };
    let account = Account::find(&session)?.ok_or_else(missing)?;
    let from = places.iter().map(|path| {
        let plain = VolumePath { volume: path.volume.clone(), path: account::plain_path(&path.path) };
        Place::Volume(plain).spot(&mut sessions)
    });
    let order = Order {
        from: from.collect::<Outcome<_>>()?,
        outside: Arc::new(LocalTree),
        ledgers: ledger::files_in(&account.ledgers()?)?,
        compare: args.compare,
        any_life: args.restarted,
        jobs: args.jobs.into(),
        note: &|| account.note_release(&session),
    };
    let reporter = Reporter::start("stage", false, true)?;
    let report = release(&order, reporter.as_ref())?;
    reporter.progress.finish();
    if args.json {
        outln!("{}", serde_json::json!({ "released": report.released, "bytes": report.bytes, "kept": report.kept }));
    } else if !args.quiet {
        let (released, bytes) = (show::count(report.released, "file"), size::words(report.bytes));
        errln!("released {released}, {bytes}");
    }
    Ok(if report.kept == 0 && reporter.tally.failed() == 0 { Exit::Done } else { Exit::Some })
}
