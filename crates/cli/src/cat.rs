//! `aze cat`: files of a volume on standard output.

use crate::exit::{Exit, Outcome};
use crate::place::Place;
use crate::session::Sessions;
use crate::tally::{Out, Tally};
use aze_copy::tree::Spot;
use std::ffi::OsString;

/// Bytes read at once: several chunks, so that several servers send at the same time.
const BLOCK_BYTES: usize = 4 << 20;

/// Write files to standard output, one after the other.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze cat aze:/log
  aze cat aze:/part1 aze:/part2 > whole")]
pub struct Args {
    /// Files to write.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let mut out = Out::new();
    let mut block = vec![0; BLOCK_BYTES];
    let tally = Tally::new("cat");
    for path in &args.paths {
        let written = Place::parse(path)
            .and_then(|place| place.spot(&mut sessions))
            .and_then(|spot| cat(&spot, &mut block, &mut out));
        // The output stands before the message about the missing rest.
        out.flush()?;
        tally.note(written);
    }
    Ok(tally.exit())
}

fn cat(spot: &Spot, block: &mut [u8], out: &mut Out) -> Outcome<()> {
    let source = spot.tree.open(&spot.path)?;
    let mut offset = 0;
    loop {
        let count = source.read_at(offset, block)?;
        out.bytes(&block[..count])?;
        if count < block.len() {
            return Ok(());
        }
        offset += count as u64;
    }
}
