//! `aze version`: from what this program was built, and which bytes it understands.

use crate::exit::{Exit, Outcome};
use aze_io::Transport;
use aze_proto::limits::WIRE_VERSION;
use aze_server::{FORMAT, FORMAT_SEVERAL};
use aze_words::outln;
use serde::Serialize;

/// The commit that this program was built from; `make build` and `make dist` know it.
pub const COMMIT: Option<&str> = option_env!("AZE_COMMIT");

/// The version of glibc whose symbols suffice for this program; `make dist` asks its linker for one.
const GLIBC: Option<&str> = option_env!("AZE_GLIBC");

/// Show the version, and which formats and features this build has.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze version
  aze version --json | jq .stored_formats")]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Everything that is told, under the names that `--json` gives it.
#[derive(Serialize)]
struct Build {
    version: &'static str,
    commit: Option<&'static str>,
    wire_version: u8,
    stored_formats: StoredFormats,
    features: Vec<&'static str>,
    profile: &'static str,
    target: String,
    glibc: Option<&'static str>,
}

/// The formats in which volumes are kept; this build reads and writes these and no others.
#[derive(Serialize)]
struct StoredFormats {
    directory: u32,
    several_directories: u32,
    one_file: u32,
}

/// Runs `aze version`.
pub fn run(args: &Args) -> Outcome<Exit> {
    let build = build();
    if args.json {
        outln!("{}", serde_json::to_string(&build).expect("words and numbers become JSON"));
        return Ok(Exit::Done);
    }
    let commit = build.commit.map_or(String::new(), |commit| format!(", commit {commit}"));
    let StoredFormats { directory, several_directories, one_file } = build.stored_formats;
    outln!("aze {} (wire version {}{commit})", build.version, build.wire_version);
    outln!(
        "stored formats  {directory} (a directory a server), {several_directories} (several), {one_file} (one file)"
    );
    outln!("features        {}", build.features.join(" "));
    outln!("build           {}, {}", build.profile, build.target);
    match build.glibc {
        Some(glibc) => outln!("glibc           {glibc} or newer"),
        None => outln!("glibc           that of the machine it was built on, or newer"),
    }
    Ok(Exit::Done)
}

fn build() -> Build {
    let stored_formats =
        StoredFormats { directory: FORMAT, several_directories: FORMAT_SEVERAL, one_file: aze_io::mapped::FORMAT };
    Build {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT.filter(|commit| !commit.is_empty()),
        wire_version: WIRE_VERSION,
        stored_formats,
        features: features(),
        profile: if cfg!(debug_assertions) { "dev" } else { "release" },
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        glibc: GLIBC,
    }
}

/// The ways in which data travel, the ways in which programs see a volume, and the places in which one is kept.
fn features() -> Vec<&'static str> {
    let ways = Transport::ALL.iter().filter(|(way, _)| *way != Transport::Auto).map(|(_, name)| *name);
    let tests = aze_server::sabotage::IS_POSSIBLE.then_some("sabotage");
    ways.chain(["mount", "run", "storage-dir", "storage-file"]).chain(tests).collect()
}
