//! `aze receipt verify`: whether a receipt is signed, and whether its lines are still true.

use crate::copy::Reporter;
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::Place;
use crate::session::Sessions;
use crate::{show, sys};
use aze_copy::stage::verify::{Claims, verify};
use aze_fuse::signals;
use aze_receipt::{PublicKey, Signed};
use aze_words::{errln, outln};
use clap::Subcommand;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Most files read at the same time.
const JOBS_MAX: u16 = 256;

/// Check a receipt of staged files.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  aze receipt verify /project/azekura-receipt-2026-11-24-1.jsonl")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Verify(VerifyArgs),
}

/// Check the signature of a receipt, and every file that it names.
///
/// Needs the receipt and the files, and no volume. Without --key it shows that receipt and files are
/// unaltered since the owner of some key signed them; with --key, that it was this key. Each difference is
/// named. Exit code 0: all is as the receipt says; 1: something differs; 5: it is no receipt, or not signed
/// so.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze receipt verify receipt.jsonl
  aze receipt verify receipt.jsonl --key 8f1c…     the public key that 'aze key' showed the signer
  aze receipt verify receipt.jsonl --root /archive/run7    the files were copied there since")]
pub struct VerifyArgs {
    /// The receipt.
    file: PathBuf,
    /// The public key that must have signed it: 64 hexadecimal digits.
    #[arg(long, value_name = "PUBKEY", value_parser = key)]
    key: Option<PublicKey>,
    /// Where the files are now; where the receipt says if not given. Owners and times are not compared then.
    #[arg(long, value_name = "DIR")]
    root: Option<OsString>,
    /// Files read at the same time.
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: u16,
    /// As JSON, without progress.
    #[arg(long)]
    json: bool,
    /// No progress and no summary.
    #[arg(short, long)]
    quiet: bool,
}

fn key(text: &str) -> Result<PublicKey, String> {
    PublicKey::read(text)
        .ok_or_else(|| "expected the 64 hexadecimal digits of a public key, as 'aze key' shows it".into())
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let Command::Verify(args) = &args.command;
    signals::hold().map_err(|error| Trouble::local("hold signals", &error))?;
    let signed = Signed::open(&args.file, args.key.as_ref())?;
    let mut sessions = Sessions::default();
    let place = match &args.root {
        Some(root) => Place::parse(root)?,
        None => Place::parse(OsStr::from_bytes(&signed.head.destination))?,
    };
    let root = place.spot(&mut sessions)?;
    let reporter = Reporter::start("receipt verify", false, args.quiet || args.json)?;
    reporter.progress.expect(signed.end.bytes);
    let claims = Claims { owners_and_times: args.root.is_none(), jobs: args.jobs.into() };
    let good = verify(&signed, &root, claims, reporter.as_ref())?;
    reporter.progress.finish();
    if let Some(signal) = reporter.signal() {
        drop(sessions);
        sys::die_of(signal);
    }
    let (end, id, bad) = (&signed.end, signed.key.id(), reporter.tally.failed());
    if args.json {
        let told = serde_json::json!({
            "key": signed.key.to_string(), "key_id": id, "origin_checked": args.key.is_some(), "true_lines": good,
            "false_lines": bad, "missing": end.missing, "bytes": end.bytes, "tree": end.tree.to_string(),
        });
        outln!("{told}");
    } else if bad > 0 {
        errln!("aze: receipt verify: {bad} of {} lines are not true any more; signed by key {id}", good + bad);
    } else if !args.quiet {
        let lines = show::count(good, "true line");
        match &args.key {
            Some(key) => outln!("{lines}; signed by key {key} as given"),
            None => outln!("{lines}; unaltered since signed by key {}, origin not checked", signed.key),
        }
        if end.missing > 0 {
            outln!("no line: {} of the source that could not be staged", show::count(end.missing, "object"));
        }
    }
    Ok(if bad > 0 { Exit::Some } else { Exit::Done })
}
