//! `aze check`: looks through a volume that is in use, or through the directories of one that is down.

use crate::exit::{Exit, Outcome, Trouble};
use crate::{check_running, kept, show, size};
use aze_io::real::Runtime;
use aze_server::Report;
use aze_words::{errln, outln};
use std::path::{Path, PathBuf};

/// Look through a volume in use, or the directories of one that does not run.
///
/// Says what does not fit together: names without files, files without names, link counts, data without a
/// file or with another checksum. A volume is looked through while it is used, in small steps; what looks
/// wrong is looked at a second time before it is reported. With directories it reads what their servers
/// would read at a start. All data are read, and nothing is changed without --repair. Exit code 0: nothing
/// is wrong, or it has all been repaired; 1: something was found; 2: it could not look, so that nothing can
/// be said.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze check                        the volume that is meant, while it is used
  aze check --name v1 --rate 200M  not more than 200 MiB of data in a second
  aze check /data/v1               where 'aze up --storage /data/v1' keeps it, while it does not run
  aze check /data/a /data/b        kept in two directories, or copied from two nodes
  aze check /dev/dax0.0            kept in persistent memory, or another file
  aze check --repair /data/v1      also set link counts right and drop data without a file")]
pub struct Args {
    /// The arguments of --storage, or the directories server-N themselves, or files; those of all
    /// servers. Without any, the volume that runs.
    #[arg(value_name = "DIR", conflicts_with = "name")]
    dirs: Vec<PathBuf>,
    /// Name of the volume that runs; the one that is meant if not given.
    #[arg(long)]
    name: Option<String>,
    /// Of a volume that runs: data that all its servers together may read in a second, on average.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "dirs")]
    rate: Option<u64>,
    /// Set link counts to the number of names, and drop data without a file. Anything else is only said.
    #[arg(long, requires = "dirs")]
    repair: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    if args.dirs.is_empty() {
        return check_running::run(args.name.as_deref(), args.rate, args.json);
    }
    let mut dirs = Vec::new();
    for dir in &args.dirs {
        dirs.extend(parts(dir)?);
    }
    dirs.sort();
    dirs.dedup();
    let runtime = Runtime::client();
    let io = runtime.io();
    let report = runtime
        .block_on(aze_server::check(&io, &dirs, args.repair))
        .map_err(|failure| Trouble::usage(failure.detail))?;
    if args.json {
        print_json(&report)
    } else {
        print(&report)
    }
    Ok(if report.problems.is_empty() { Exit::Done } else { Exit::Some })
}

/// The directories of servers in `dir`, or that directory or file itself.
fn parts(dir: &Path) -> Outcome<Vec<String>> {
    if kept::keeps_one(dir) {
        return Ok(vec![dir.display().to_string()]);
    }
    let failed = |error: &std::io::Error| {
        let Trouble { text, .. } = Trouble::local(format!("look into {}", dir.display()), error);
        Trouble::usage(text)
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        let is_part = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("server-"));
        if is_part && path.is_dir() {
            found.push(path.display().to_string());
        }
    }
    if dir.join("volume").exists() {
        found.push(dir.display().to_string());
    }
    if found.is_empty() {
        let text = format!("{}: neither a server's directory nor one with directories server-N in it", dir.display());
        return Err(Trouble::usage(text));
    }
    Ok(found)
}

fn print(report: &Report) {
    for problem in &report.problems {
        outln!("{}: {}", problem.kind, problem.text);
    }
    report.repaired.iter().for_each(|text| outln!("repaired: {text}"));
    report.notes.iter().for_each(|text| outln!("note: {text}"));
    let held = held(report.files, report.directories, report.bytes);
    match report.problems.len() {
        0 => errln!("{held}: all is well"),
        many => errln!("{held}: {} found", show::count(many as u64, "problem")),
    }
}

/// The extent of the check, for people.
pub fn held(files: u64, directories: u64, bytes: u64) -> String {
    let noun = if directories == 1 { "directory" } else { "directories" };
    format!("{} and {directories} {noun} with {} of data", show::count(files, "file"), size::words(bytes))
}

fn print_json(report: &Report) {
    let problems: Vec<_> = report
        .problems
        .iter()
        .map(|problem| serde_json::json!({ "kind": problem.kind, "text": problem.text }))
        .collect();
    let Report { notes, repaired, files, directories, bytes, .. } = report;
    let value = serde_json::json!({
        "problems": problems, "notes": notes, "repaired": repaired,
        "files": files, "directories": directories, "bytes": bytes,
    });
    outln!("{value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_extent_of_a_check_is_a_sentence() {
        assert_eq!(held(1, 1, 0), "1 file and 1 directory with 0 B of data");
        assert_eq!(held(2, 21, 1 << 10), "2 files and 21 directories with 1.00 KiB of data");
    }

    #[test]
    fn parts_of_servers_are_found_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("aze-check-{}", std::process::id()));
        for below in ["server-0", "server-1", "other"] {
            fs::create_dir_all(dir.join("all").join(below)).expect("a directory");
        }
        fs::write(dir.join("all/server-1/volume"), "").expect("a file");
        fs::write(dir.join("all/server-2"), "").expect("a file");
        let shown = |path: &str| dir.join(path).display().to_string();
        let mut found = parts(&dir.join("all")).expect("there are two");
        found.sort();
        let itself = parts(&dir.join("all/server-1"));
        let file = parts(&dir.join("all/server-2"));
        let (none, missing) = (parts(&dir.join("all/other")), parts(&dir.join("nothing")));
        fs::remove_dir_all(&dir).expect("it is there");
        assert_eq!(found, [shown("all/server-0"), shown("all/server-1")]);
        assert_eq!((itself, file), (Ok(vec![shown("all/server-1")]), Ok(vec![shown("all/server-2")])));
        // Code 1 would say that something was found.
        assert_eq!([none, missing].map(|refused| refused.expect_err("no part").exit), [Exit::Usage; 2]);
    }
}
