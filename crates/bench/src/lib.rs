//! What a measurement means: the work done, the part of it that is timed, which turn counts, and what must be told with
//! a figure.
//!
//! It alone knows the phases of `aze bench` and how their figures come about: every place does the same work, in turns,
//! with memory that was touched before, and a figure is told with the caching and durability where it was measured. The
//! command moved here whole, arguments and tables included: each argument is a parameter of one measurement. How
//! volumes are found and reached it does not know: it is told by a [`Program`].

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod clients;
mod durability;
mod io500;
mod iops;
mod many;
mod median;
mod p4;
mod place;
mod plot;
mod program;
mod record;
mod replay;
mod stage;
mod started;
mod train;

pub use program::{Program, Session, Tell, Volume};

use aze_words::exit::{Exit, Outcome};
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  aze bench iops                                    the volume, without a mount
  aze bench iops --native --target /mnt/v --target /dev/shm --target /var/tmp
  aze bench iops --threads 4 --files 20000 --json
  aze bench iops --private                          private directories beside ordinary ones
  aze bench io500 --short                           the phases of IO500, in under a minute
  aze bench io500 --short --beside 'my-program'     and what is left of them beside a program
  aze bench p4                                      bandwidth of one process by transfer size
  aze bench durability --storage /data --target /data   what it costs that files are safe
  aze bench many                                    what names cost when there are ten million of them
  aze bench clients                                 what 10,000 clients cost servers that they hardly use
  aze bench stage --target /project                 how fast files are staged, beside cp
  aze bench train --against /var/tmp                random reads of many small files, with checkpoints";

/// Measure the volume, and directories to compare it with.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Iops(iops::Args),
    Io500(io500::Args),
    P4(p4::Args),
    Durability(durability::Args),
    Many(many::Args),
    Clients(clients::Args),
    Stage(stage::Args),
    Train(train::Args),
    /// One process of `aze bench io500`, which starts it.
    #[command(hide = true)]
    Io500Rank,
    /// One process of `aze bench clients`, which starts it.
    #[command(hide = true)]
    ClientsHolder(clients::HolderArgs),
}

/// Measures, then prints a table or JSON.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    match &args.bench {
        Bench::Iops(args) => iops::run(args, program),
        Bench::Io500(args) => io500::run(args, program),
        Bench::P4(args) => p4::run(args, program),
        Bench::Durability(args) => durability::run(args, program),
        Bench::Many(args) => many::run(args, program),
        Bench::Clients(args) => clients::run(args, program),
        Bench::Stage(args) => stage::run(args, program),
        Bench::Train(args) => train::run(args, program),
        Bench::Io500Rank => io500::run_rank(program),
        Bench::ClientsHolder(args) => clients::hold(args, program),
    }
}
