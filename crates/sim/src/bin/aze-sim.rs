//! Replays one seed, or runs many: `aze-sim --seed 42 [--trace]`, `aze-sim --seeds 1000 [--from N]`; with
//! `--persistent KIND` those of persistent volumes, with `--moves` those in which slots move, with `--leaving` and `--joining` those in
//! which servers leave and join, with `--looks` those in which a task looks at directories besides, with `--staging` those in which the
//! program that stages is at work: out of a volume or, with `--in`, into one; with `--rounds` in rounds, with `--nodes` by workers
//! on other nodes.

use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::persistence::{self, KINDS, PersistentPlan, PlanOf};
use aze_sim::staging::{self, Missing, StagingPlan};
use aze_sim::{Outcome, Plan, run_plan};
use std::ops::Range;
use std::process::ExitCode;

const USAGE: &str =
    "usage: aze-sim --seed N [--trace] [--moves | --leaving | --joining] [--looks] [--without PROTECTION]
       aze-sim --seeds COUNT [--from N] [--moves | --leaving | --joining] [--looks] [--without PROTECTION]
       aze-sim --persistent KIND (--seed N [--trace] | --seeds COUNT [--from N]) [--without PROTECTION]
       aze-sim --staging [--in | --rounds] [--nodes] --seed N [--trace] [--leave-out PART | --without PROTECTION]
       aze-sim --staging [--in | --rounds] [--nodes] --seeds COUNT [--from N] [--leave-out PART | --without PROTECTION]
PART, of what a stage relies on, is one of SyncOfFiles, SyncOfNames, OwnNames, ChangeTimes, ReadFromStorage, BreakingOff
KIND, of persistent volumes, is one of";

/// What these seeds can notice the absence of; others have tests of their own.
const PROTECTIONS: [Sabotage; 47] = [
    Sabotage::LeaveUncounted,
    Sabotage::ForgetFences,
    Sabotage::FenceOnce,
    Sabotage::LeaveSlotBehind,
    Sabotage::ForgetBroughtOutcomes,
    Sabotage::ForgetGivenOutcomes,
    Sabotage::KeepGivenSlot,
    Sabotage::PublishWhileTaking,
    Sabotage::TakeMapOfEarlierLife,
    Sabotage::ForgetNewHolder,
    Sabotage::KeepOpens,
    Sabotage::ForgetWriters,
    Sabotage::ForgetHeirs,
    Sabotage::SkipDrain,
    Sabotage::SkipDuplicateCheck,
    Sabotage::SkipNamespaceEpochCheck,
    Sabotage::SkipDirectoryClose,
    Sabotage::ForgetParts,
    Sabotage::SkipBornCheck,
    Sabotage::SkipTruncation,
    Sabotage::ShortReach,
    Sabotage::SkipEntryLock,
    Sabotage::SkipPublishedClear,
    Sabotage::SkipPublishedCount,
    Sabotage::SkipSync,
    Sabotage::SkipDurableAnswers,
    Sabotage::SkipDurableBefore,
    Sabotage::SkipJournalWait,
    Sabotage::SkipCheckpointWait,
    Sabotage::SkipSegmentSync,
    Sabotage::FreePlacesEarly,
    Sabotage::ListRenamesFirst,
    Sabotage::ForgetOldName,
    Sabotage::ReplayAll,
    Sabotage::ForgetTruncations,
    Sabotage::ReuseInos,
    Sabotage::SkipLinkCount,
    Sabotage::ForgetOutcomes,
    Sabotage::KeepStrays,
    Sabotage::SkipLifeFence,
    Sabotage::CommitAfterAbort,
    Sabotage::ForgetHolders,
    Sabotage::GiveUnsettled,
    Sabotage::ForgetSince,
    Sabotage::KeepOldLife,
    Sabotage::CountNoChanges,
    Sabotage::DecideGivenUp,
];

#[derive(Default)]
struct Options {
    seed: Option<u64>,
    seeds: u64,
    from: u64,
    trace: bool,
    moves: bool,
    leaving: bool,
    joining: bool,
    looks: bool,
    staging: bool,
    plan_of: Option<fn(u64) -> StagingPlan>,
    by_nodes: bool,
    left_out: Option<Missing>,
    persistence: Option<PlanOf>,
    switches: Switches,
}

fn sabotage(name: &str) -> Option<Sabotage> {
    PROTECTIONS.into_iter().find(|sabotage| format!("{sabotage:?}") == name)
}

fn parse(args: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options::default();
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seed" => options.seed = Some(args.next()?.parse().ok()?),
            "--seeds" => options.seeds = args.next()?.parse().ok()?,
            "--from" => options.from = args.next()?.parse().ok()?,
            "--trace" => options.trace = true,
            "--moves" => options.moves = true,
            "--leaving" => options.leaving = true,
            "--joining" => options.joining = true,
            "--looks" => options.looks = true,
            "--staging" => options.staging = true,
            "--in" => options.plan_of = Some(StagingPlan::inward),
            "--nodes" => options.by_nodes = true,
            "--rounds" => options.plan_of = Some(StagingPlan::in_rounds),
            "--leave-out" => {
                let name = args.next()?;
                options.left_out = Some(Missing::ALL.into_iter().find(|part| format!("{part:?}") == name)?);
            }
            "--persistent" => {
                let name = args.next()?;
                options.persistence = Some(KINDS.iter().find(|(kind, _)| *kind == name)?.1);
            }
            "--without" => options.switches = Switches::without(sabotage(&args.next()?)?),
            _ => return None,
        }
    }
    (options.seed.is_some() || options.seeds > 0).then_some(options)
}

fn report(outcome: &Outcome) {
    let Outcome { plan, violations, calls, decided, virtual_ns, steps, trace_hash, .. } = outcome;
    println!("seed {}: {:?}, {} servers, {} clients", plan.seed, plan.mix, plan.servers, plan.clients);
    println!(
        "  {calls} calls, {steps} steps, {:.1} s of virtual time, {} slots moved, {} servers joined, {} left, trace {trace_hash:016x}",
        *virtual_ns as f64 / 1e9,
        outcome.slot_moves,
        outcome.servers_joined,
        outcome.servers_left
    );
    if !decided {
        println!("  the search for an order of the shared names was given up");
    }
    for violation in violations {
        println!("  VIOLATION {violation}");
    }
}

/// Runs seeds of persistent volumes.
fn run_persistent(plan_of: PlanOf, seeds: Range<u64>, options: &Options) -> ExitCode {
    let mut failed = 0;
    for seed in seeds.clone() {
        let plan = PersistentPlan { switches: options.switches, ..plan_of(seed) };
        // A server that loses a protection may also break one of its own assertions.
        let run = || persistence::run(&plan, options.trace);
        let violations = std::panic::catch_unwind(run).unwrap_or_else(|_| vec!["a panic".into()]);
        if let Some(first) = violations.first() {
            failed += 1;
            println!("{plan:?}\n  VIOLATION {first}");
        }
    }
    println!("{} seeds, {failed} failed", seeds.end - seeds.start);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds of staging.
fn run_staging(seeds: Range<u64>, options: &Options) -> ExitCode {
    let mut failed = 0;
    for seed in seeds.clone() {
        let plan = options.plan_of.unwrap_or(StagingPlan::of)(seed);
        let plan = if options.by_nodes { plan.with_nodes() } else { plan };
        let plan = StagingPlan { switches: options.switches, without: options.left_out, ..plan };
        let run = || staging::run(&plan, options.trace);
        let found = std::panic::catch_unwind(run).map(|outcome| {
            if options.seed.is_some() {
                println!("{:?}, trace {:016x}", outcome.counts, outcome.trace_hash);
            }
            outcome.wrong
        });
        let wrong = found.unwrap_or_else(|_| vec!["a panic".into()]);
        if !wrong.is_empty() {
            failed += 1;
            println!("{plan:?}");
            wrong.iter().take(5).for_each(|wrong| println!("  VIOLATION {wrong}"));
        }
    }
    println!("{} seeds, {failed} failed", seeds.end - seeds.start);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let Some(options) = parse(std::env::args().skip(1)) else {
        let names: Vec<String> = PROTECTIONS.iter().map(|protection| format!("{protection:?}")).collect();
        let kinds = KINDS.map(|(kind, _)| kind).join(", ");
        eprintln!("{USAGE} {kinds}\nPROTECTION is one of {}", names.join(", "));
        return ExitCode::from(2);
    };
    let seeds = match options.seed {
        Some(seed) => seed..seed + 1,
        None => options.from..options.from + options.seeds,
    };
    if options.staging {
        return run_staging(seeds, &options);
    }
    if let Some(plan_of) = options.persistence {
        return run_persistent(plan_of, seeds, &options);
    }
    let (mut failed, mut undecided) = (0, 0);
    for seed in seeds.clone() {
        let plan_of = match (options.moves, options.leaving, options.joining) {
            (true, _, _) => Plan::with_moves,
            (false, true, _) => Plan::with_leaving,
            (false, false, true) => Plan::with_joining,
            (false, false, false) => Plan::of,
        };
        let plan = plan_of(seed).with(options.switches);
        let plan = if options.looks { plan.with_looks() } else { plan };
        let verbose = options.seed.is_some();
        let outcome = run_plan(plan, verbose);
        if verbose && options.trace {
            outcome.story.iter().for_each(|line| println!("{line}"));
        }
        undecided += u64::from(!outcome.decided);
        if verbose || !outcome.violations.is_empty() {
            report(&outcome);
        }
        if !outcome.violations.is_empty() {
            failed += 1;
            let kind = match (options.moves, options.leaving, options.joining) {
                (true, _, _) => " --moves",
                (false, true, _) => " --leaving",
                (false, false, true) => " --joining",
                (false, false, false) => "",
            };
            let looks = if options.looks { " --looks" } else { "" };
            println!("  again: cargo run -p aze-sim -- --seed {seed}{kind}{looks} --trace");
        }
    }
    println!("{} seeds, {failed} failed, {undecided} undecided", seeds.end - seeds.start);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
