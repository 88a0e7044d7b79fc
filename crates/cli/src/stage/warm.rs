//! `aze stage in` without a destination: a volume over a directory reads names and data of it before they are used.

use super::{Common, JOBS_DEFAULT};
use crate::copy::Reporter;
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::Place;
use crate::session::Sessions;
use crate::{show, sys};
use aze_copy::warm::{Warmed, warm};
use aze_fuse::signals;
use aze_words::{errln, outln};
use std::ffi::OsStr;

/// Runs the command.
pub fn run(from: &OsStr, names_only: bool, common: &Common) -> Outcome<Exit> {
    refuse_options(common)?;
    let place = Place::parse(from)?;
    let Place::Volume(path) = &place else {
        return Err(Trouble::usage(format!("name where to: 'aze stage in {} aze:/…'", from.to_string_lossy())));
    };
    // Before the first thread starts, since each inherits this.
    signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
    let mut sessions = Sessions::default();
    let record = &sessions.of(path)?.volume.record.clone();
    if record.settings.backing.is_none() {
        let text = format!("name where to: volume '{}' was started without --backing DIR", record.name);
        return Err(Trouble::usage(text));
    }
    let start = place.spot(&mut sessions)?;
    let reporter = Reporter::start("stage", common.verbose, common.quiet || common.json)?;
    let jobs = common.jobs.unwrap_or(JOBS_DEFAULT);
    let warmed = warm(&start, names_only, jobs.into(), reporter.as_ref());
    let summary = reporter.progress.finish();
    if let Some(signal) = reporter.signal().filter(|_| warmed.is_err()) {
        errln!("aze: stage: ended by a signal: the same command goes on from here");
        // The shell is to see that it was a signal.
        sys::die_of(signal);
    }
    let (Warmed { directories, files, bytes }, failed) = (warmed?, reporter.tally.failed());
    if common.json {
        let told = serde_json::json!({ "directories": directories, "files": files, "bytes": bytes, "failed": failed });
        outln!("{told}");
    } else if !common.quiet {
        let names = format!("names of {directories} director{}", if directories == 1 { "y" } else { "ies" });
        let data = if names_only { String::new() } else { format!("; data of {summary}") };
        errln!("in the volume: {names}{data}");
    }
    if failed > 0 {
        errln!("aze: stage: {} failed, named above: the same command tries again", show::count(failed, "object"));
    }
    Ok(if failed == 0 { Exit::Done } else { Exit::Some })
}

/// Refuses options that mean a copy.
fn refuse_options(common: &Common) -> Outcome<()> {
    let Common {
        receipt,
        sign_key,
        state,
        list,
        no_recursion,
        newer_than,
        include,
        exclude,
        delete,
        atomic,
        keep,
        nodes,
        priority,
        ..
    } = common;
    let given = [
        ("--receipt", receipt.is_some()),
        ("--sign-key", sign_key.is_some()),
        ("--state", state.is_some()),
        ("--list", list.is_some()),
        ("--no-recursion", *no_recursion),
        ("--newer-than", newer_than.is_some()),
        ("--include", !include.is_empty()),
        ("--exclude", !exclude.is_empty()),
        ("--delete", *delete),
        ("--atomic", *atomic),
        ("--keep", *keep),
        ("--nodes", nodes.is_some()),
        ("--priority", priority.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            Err(Trouble::usage(format!("{option} needs a destination: 'aze stage in' without one copies nothing")))
        }
        None => Ok(()),
    }
}
