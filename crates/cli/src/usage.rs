//! `aze du` and `aze df`: used space.

use crate::exit::{Exit, Outcome, Trouble};
use crate::place::VolumePath;
use crate::session::{Session, Sessions};
use crate::tally::{Out, Tally};
use crate::{show, size};
use aze_client::UsageSum;
use aze_proto::attr::FileKind;
use aze_words::outln;
use serde_json::Map;
use std::ffi::OsString;

/// Sum up what directories hold.
///
/// The servers count; no file is asked about one by one. Sizes are lengths of files in KiB, rounded up; -h and --json show others.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  aze du -sh aze:/results
  aze du -h -d 1              how large the directories in the root are"
)]
pub struct DuArgs {
    /// Directories; the root of the volume if none is given.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// One line for each argument, not for each directory below.
    #[arg(short, long, conflicts_with = "max_depth")]
    summarize: bool,
    /// Sizes with units, such as 1.5G.
    #[arg(short, long)]
    human_readable: bool,
    /// Directories at most so many levels below the argument.
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// One JSON object for each line, sizes in bytes.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Show how much space a volume has, and how much of it is used.
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  aze df -h
  aze df --json aze://other"
)]
pub struct DfArgs {
    /// The volume, as aze://VOLUME; the one that is meant if none is given.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Sizes with units, such as 1.5G.
    #[arg(short, long)]
    human_readable: bool,
    /// One JSON object for each line, sizes in bytes.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Is told each directory's path below the root of a search, and its sum.
type EachDir<'a> = &'a mut (dyn FnMut(&[u8], &UsageSum) + Send);

/// Runs `aze du`.
pub fn run_du(args: &DuArgs) -> Outcome<Exit> {
    each("du", &args.paths, |session, path, out| {
        let reached = session.ask(path.shown(), session.client.reach(&session.who, &path.path, true))?;
        if reached.kind != FileKind::Directory {
            let attr = reached.attr.map_err(|failure| Trouble::volume(path.shown(), &failure))?;
            return du_line(args, out, path, &UsageSum { files: 1, dirs: 0, bytes: attr.size });
        }
        let depth_max = if args.summarize { Some(0) } else { args.max_depth };
        let mut lines = Vec::new();
        let mut each_dir = |below: &[u8], sum: &UsageSum| {
            let depth = below.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count();
            if depth > 0 && depth_max.is_none_or(|max| depth <= max) {
                lines.push((below.to_vec(), *sum));
            }
        };
        let each_dir: Option<EachDir<'_>> = if depth_max == Some(0) { None } else { Some(&mut each_dir) };
        let counted = session.client.usage_of_reachable(&session.who, reached.ino, each_dir);
        let (sum, missing) = session.runtime.block_on(counted);
        lines.sort_by(|a, b| a.0.cmp(&b.0));
        for (below, sum) in &lines {
            du_line(args, out, &path.join(below), sum)?;
        }
        du_line(args, out, path, &sum)?;
        // Of a part that could not be looked at the sum says nothing: that is an error beside it.
        missing.map_or(Ok(()), |failure| Err(Trouble::volume(format!("sum up {}", path.shown()), &failure)))
    })
}

/// Runs `aze df`.
pub fn run_df(args: &DfArgs) -> Outcome<Exit> {
    if !args.json {
        outln!("{:<24} {:>12} {:>12} {:>12} {:>5} {:>10}", "volume", "size", "used", "free", "use", "files");
    }
    each("df", &args.paths, |session, _, out| {
        let space = session.ask("ask for space", session.client.statfs())?;
        let (capacity, used, name) = (space.capacity_bytes, space.used_bytes, &session.volume.record.name);
        let free = capacity.saturating_sub(used);
        if args.json {
            let object = serde_json::json!({ "volume": name, "capacity_bytes": capacity, "used_bytes": used, "free_bytes": free, "inodes": space.inodes });
            return out.json(&object);
        }
        let percent = if capacity > 0 { (u128::from(used) * 100).div_ceil(u128::from(capacity)) } else { 0 };
        let shown = |bytes| amount(bytes, args.human_readable);
        out.line(format!(
            "{name:<24} {:>12} {:>12} {:>12} {percent:>4}% {:>10}",
            shown(capacity),
            shown(used),
            shown(free),
            space.inodes
        ))
    })
}

fn du_line(args: &DuArgs, out: &mut Out, path: &VolumePath, sum: &UsageSum) -> Outcome<()> {
    if args.json {
        let mut object = Map::new();
        show::put_name(&mut object, "path", &path.written());
        object.insert("bytes".into(), sum.bytes.into());
        object.insert("files".into(), sum.files.into());
        object.insert("dirs".into(), sum.dirs.into());
        return out.json(&object);
    }
    out.line([amount(sum.bytes, args.human_readable).as_bytes(), b"\t", &show::name(&path.written())].concat())
}

/// With a unit, or in KiB as du(1) and df(1) do it.
fn amount(bytes: u64, human_readable: bool) -> String {
    if human_readable { size::short(bytes) } else { bytes.div_ceil(1024).to_string() }
}

fn each(
    command: &'static str,
    paths: &[OsString],
    mut act: impl FnMut(&Session, &VolumePath, &mut Out) -> Outcome<()>,
) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let mut out = Out::new();
    let tally = Tally::new(command);
    let root = [OsString::from("aze:/")];
    for path in if paths.is_empty() { &root[..] } else { paths } {
        let done: Result<(), Trouble> = VolumePath::parse(path).and_then(|path| {
            let session = sessions.of(&path)?;
            act(&session, &path, &mut out)
        });
        out.flush()?;
        tally.note(done);
    }
    Ok(tally.exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_kib_rounded_up_or_have_a_unit() {
        assert_eq!([0, 1, 1024, 1025].map(|bytes| amount(bytes, false)), ["0", "1", "1", "2"]);
        assert_eq!([0, 1536].map(|bytes| amount(bytes, true)), ["0", "1.5K"]);
    }
}
