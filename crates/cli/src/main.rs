//! The command line door: `aze`.
//!
//! It knows what a user writes and reads, and where a volume's servers run; what an operation on a
//! file means it leaves to the client. Results go to standard output, progress and advice to
//! standard error, and the exit code says how it went (see [`exit`]).

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod account;
mod batch;
mod bench;
mod cat;
mod change;
mod check;
mod check_running;
mod checksum;
mod copy;
mod cores;
mod doctor;
mod down;
#[cfg(test)]
mod examples;
mod exit;
mod find;
mod generate;
mod grow;
mod heap;
mod hold;
mod hosts;
mod job;
mod kept;
mod key;
mod launch;
mod list;
mod local_disks;
mod memory;
mod mount;
mod mount_nodes;
mod mounts;
mod namespace;
mod network;
mod operands;
mod place;
mod progress;
mod receipt;
mod remove;
mod restart;
mod run;
mod serve;
mod session;
mod show;
mod shrink;
mod stage;
mod stat;
mod status;
mod sys;
mod tally;
mod trace;
mod tree_volume;
mod up;
mod usage;
mod version;
mod when;

// Under the names that the commands use.
use aze_reach::{process, volume};
use aze_words::size;
use aze_words::{errln, out, outln};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use exit::{Exit, Outcome, Trouble};
use std::ffi::OsString;
use std::process::ExitCode;

const ABOUT: &str = "A parallel file system on the nodes of your job, started in a second.";

const EXAMPLES: &str = "\
Examples:
  eval \"$(aze up)\"              start a volume on this machine, and mean it from now on
  aze cp -r input aze:/          copy files in
  aze mount ~/vol                see it as a directory
  aze ls -l aze:/                look without a mount
  aze umount ~/vol && aze down   end it

Paths: aze:/path is in the volume that AZE_VOLUME names, or in your only one;
aze://VOLUME/path names the volume; anything else is a local path.
";

#[derive(Parser)]
#[command(name = "aze", version, about = ABOUT, disable_help_subcommand = true, max_term_width = 100)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(up::Args),
    Down(down::Args),
    Doctor(doctor::Args),
    Restart(restart::Args),
    Grow(grow::Args),
    Shrink(shrink::Args),
    Check(check::Args),
    Status(status::Args),
    Mount(mount::Args),
    Umount(mount::UmountArgs),
    Run(run::Args),
    Job(job::Args),
    Trace(trace::Args),
    Ls(list::Args),
    Stat(stat::Args),
    Cat(cat::Args),
    Cp(copy::Args),
    Mv(change::MvArgs),
    Rm(remove::Args),
    Mkdir(change::MkdirArgs),
    Rmdir(change::RmdirArgs),
    Ln(change::LnArgs),
    Touch(change::TouchArgs),
    Find(find::Args),
    Du(usage::DuArgs),
    Df(usage::DfArgs),
    Checksum(checksum::Args),
    Stage(stage::Args),
    Receipt(receipt::Args),
    Key(key::Args),
    Bench(aze_bench::Args),
    Serve(serve::Args),
    #[command(hide = true)]
    Hold(hold::Args),
    Version(version::Args),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
    /// Show help on a command, or on exit-codes.
    Help(HelpArgs),
}

#[derive(clap::Args)]
struct HelpArgs {
    /// A command, also one of several words, or exit-codes.
    topic: Vec<String>,
}

fn main() -> ExitCode {
    heap::keep_freed_memory();
    abort_on_panic();
    let words: Vec<OsString> = find::with_long_words(std::env::args_os().collect());
    // What `aze up` prints is for the shell's eval, which must fail when there is no volume to mean.
    let for_eval = words.get(1).is_some_and(|command| command == "up");
    let parsed = command().try_get_matches_from(words);
    let line = match parsed.and_then(|matches| Ok((Line::from_arg_matches(&matches)?, asks_json(&matches)))) {
        Ok((line, json)) => {
            exit::tell_as_json(json);
            line
        }
        Err(error) => {
            // The text goes to standard output if it was asked for, else to standard error.
            let _ = error.print();
            if !error.use_stderr() {
                return ExitCode::from(Exit::Done as u8);
            }
            if for_eval {
                outln!("false");
            }
            return ExitCode::from(Exit::Usage as u8);
        }
    };
    let (name, outcome) = run(line.command);
    let failed = |trouble: Trouble| {
        errln!("{}", exit::failure_line(name, &trouble));
        trouble.exit
    };
    let exit = outcome.unwrap_or_else(failed);
    if for_eval && exit != Exit::Done {
        outln!("false");
    }
    let exit = match aze_words::out::finish() {
        Err(trouble) if exit == Exit::Done => failed(trouble),
        _ => exit,
    };
    ExitCode::from(exit as u8)
}

/// Whether the command, of several words perhaps, was given `--json`.
fn asks_json(matches: &ArgMatches) -> bool {
    let last = std::iter::successors(Some(matches), |matches| matches.subcommand().map(|(_, inner)| inner)).last();
    last.is_some_and(|matches| matches!(matches.try_get_one::<bool>("json"), Ok(Some(true))))
}

/// Ends the process when one of its threads panics, unless an agent catches that: a server or a mount must not go on with what
/// a panic has left half-changed.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        // In the agent of an intercepted program it may be the end of one call only.
        if !aze_agent::ends_one_call_only() {
            std::process::abort();
        }
    }));
}

fn command() -> clap::Command {
    Line::command().after_help(format!("{EXAMPLES}\n{}", exit::TABLE))
}

fn run(asked: Command) -> (&'static str, Outcome<Exit>) {
    match asked {
        Command::Up(args) => ("up", up::run(args)),
        Command::Down(args) => ("down", down::run(&args)),
        Command::Doctor(args) => ("doctor", doctor::run(&args)),
        Command::Restart(args) => ("restart", restart::run(&args)),
        Command::Grow(args) => ("grow", grow::run(&args)),
        Command::Shrink(args) => ("shrink", shrink::run(&args)),
        Command::Check(args) => ("check", check::run(&args)),
        Command::Status(args) => ("status", status::run(&args)),
        Command::Mount(args) => ("mount", mount::run(&args)),
        Command::Run(args) => ("run", run::run(&args)),
        Command::Job(args) => ("job", job::run(&args)),
        Command::Trace(args) => ("trace", trace::run(&args)),
        Command::Umount(args) => ("umount", mount::run_umount(&args)),
        Command::Ls(args) => ("ls", list::run(&args)),
        Command::Stat(args) => ("stat", stat::run(&args)),
        Command::Cat(args) => ("cat", cat::run(&args)),
        Command::Cp(args) => ("cp", copy::run(&args)),
        Command::Mv(args) => ("mv", change::run_mv(&args)),
        Command::Rm(args) => ("rm", remove::run(&args)),
        Command::Mkdir(args) => ("mkdir", change::run_mkdir(&args)),
        Command::Rmdir(args) => ("rmdir", change::run_rmdir(&args)),
        Command::Ln(args) => ("ln", change::run_ln(&args)),
        Command::Touch(args) => ("touch", change::run_touch(&args)),
        Command::Find(args) => ("find", find::run(&args)),
        Command::Du(args) => ("du", usage::run_du(&args)),
        Command::Df(args) => ("df", usage::run_df(&args)),
        Command::Checksum(args) => ("checksum", checksum::run(&args)),
        Command::Stage(args) => ("stage", stage::run(&args)),
        Command::Receipt(args) => ("receipt", receipt::run(&args)),
        Command::Key(args) => ("key", key::run(&args)),
        Command::Bench(args) => ("bench", bench::run(&args)),
        Command::Serve(args) => ("serve", serve::run(&args)),
        Command::Hold(args) => ("hold", hold::run(&args)),
        Command::Version(args) => ("version", version::run(&args)),
        Command::Completions(args) => ("completions", generate::run_completions(&args, command())),
        Command::Man(args) => ("man", generate::run_man(&args, command())),
        Command::Help(args) => ("help", help(&args.topic)),
    }
}

fn help(topic: &[String]) -> Outcome<Exit> {
    let mut all = command();
    let text = match topic {
        [] => all.render_long_help().to_string(),
        [topic] if topic == "exit-codes" => format!("{}\n", exit::TABLE),
        words => {
            all.build();
            let found = words.iter().try_fold(&mut all, |command, word| command.find_subcommand_mut(word));
            let missing =
                || exit::Trouble::usage(format!("there is no command '{}': 'aze help' lists them", words.join(" ")));
            found.ok_or_else(missing)?.render_long_help().to_string()
        }
    };
    out!("{text}");
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for sub in command().get_subcommands().filter(|sub| !sub.is_hide_set() && !matches!(sub.get_name(), "help")) {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Example"), "aze {} --help shows no example", sub.get_name());
        }
    }
}
