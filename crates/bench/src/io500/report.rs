//! The result: the score, and how it is written: for people and for the tools that read the official
//! program's files, and as JSON.

use super::layout::{Phase, VALID_STONEWALL_S};
use crate::place::Described;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

const GIB: f64 = (1u64 << 30) as f64;

/// What one phase came to.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Which one.
    pub phase: Phase,
    /// From the first order to the last answer.
    pub took: Duration,
    /// Operations of all ranks together; entries looked at in `find`.
    pub ops: u64,
}

impl Measured {
    /// Bytes moved.
    pub fn bytes(&self) -> u64 {
        self.ops * self.phase.bytes_each()
    }

    /// What counts: GiB/s or thousands of operations a second.
    pub fn value(&self) -> f64 {
        let seconds = self.took.as_secs_f64().max(f64::MIN_POSITIVE);
        if self.phase.is_bandwidth() { self.bytes() as f64 / GIB / seconds } else { self.ops as f64 / 1000.0 / seconds }
    }

    fn unit(&self) -> &'static str {
        if self.phase.is_bandwidth() { "GiB/s" } else { "kIOPS" }
    }

    /// A writing phase must last long enough for the result to be submitted.
    fn is_too_short(&self) -> bool {
        self.phase.is_write() && self.took.as_secs_f64() < VALID_STONEWALL_S
    }
}

/// Everything that is known of one place at the end.
pub struct Report {
    /// Where it was measured.
    pub place: Described,
    /// Processes.
    pub procs: u32,
    /// Nodes that they were on.
    pub nodes: u32,
    /// When writing stopped.
    pub stonewall: Duration,
    /// Bytes written and removed before, to touch memory.
    pub warm_bytes: u64,
    /// All phases, in their order: each is the median of its turns.
    pub phases: Vec<Measured>,
    /// The value of each phase in each turn.
    turns: Vec<Vec<f64>>,
}

impl Report {
    /// Puts turns together; there is at least one.
    pub fn new(
        place: Described,
        (procs, nodes): (u32, u32),
        stonewall: Duration,
        warm_bytes: u64,
        turns: &[Vec<Measured>],
    ) -> Report {
        let median = |index: usize| {
            let all: Vec<Measured> = turns.iter().map(|turn| turn[index]).collect();
            crate::median::median(&all, Measured::value)
        };
        let phases = (0..turns[0].len()).map(median).collect();
        let values = |index: usize| turns.iter().map(|turn| turn[index].value()).collect();
        let turns = (0..turns[0].len()).map(values).collect();
        Report { place, procs, nodes, stonewall, warm_bytes, phases, turns }
    }

    /// Geometric mean of the bandwidths, in GiB/s.
    pub fn bandwidth(&self) -> f64 {
        bandwidth(&self.values())
    }

    /// Geometric mean of the rates, in thousands of operations a second.
    pub fn iops(&self) -> f64 {
        iops(&self.values())
    }

    /// The score.
    pub fn score(&self) -> f64 {
        score(&self.values())
    }

    fn values(&self) -> Vec<(Phase, f64)> {
        self.phases.iter().map(|measured| (measured.phase, measured.value())).collect()
    }

    /// The values of one turn.
    fn values_of(&self, turn: usize) -> Vec<(Phase, f64)> {
        self.phases.iter().zip(&self.turns).map(|(measured, turns)| (measured.phase, turns[turn])).collect()
    }

    fn invalid_because(&self) -> Vec<String> {
        let short = self.phases.iter().filter(|measured| measured.is_too_short());
        short
            .map(|measured| {
                let seconds = measured.took.as_secs_f64();
                format!("{} lasted {seconds:.1} s, not {VALID_STONEWALL_S} s", measured.phase)
            })
            .collect()
    }

    /// One object.
    pub fn json(&self) -> Value {
        let phase = |(measured, turns): (&Measured, &Vec<f64>)| {
            let mut object = json!({
                "phase": measured.phase.name(),
                "value": measured.value(),
                "unit": measured.unit(),
                "seconds": measured.took.as_secs_f64(),
                "ops": measured.ops,
                "turns": turns,
            });
            if measured.phase.bytes_each() > 0 {
                object["bytes"] = measured.bytes().into();
            }
            object
        };
        let because = self.invalid_because();
        json!({
            "place": self.place.title,
            "cached": self.place.cached,
            "durable": self.place.durable,
            "close": self.place.close,
            "fsync": self.place.fsync,
            "procs": self.procs,
            "nodes": self.nodes,
            "stonewall_s": self.stonewall.as_secs_f64(),
            "warm_bytes": self.warm_bytes,
            "valid": because.is_empty(),
            "invalid_because": because,
            "score": self.score(),
            "bandwidth_gib_s": self.bandwidth(),
            "iops_k": self.iops(),
            "phases": self.phases.iter().zip(&self.turns).map(phase).collect::<Vec<_>>(),
        })
    }

    /// This place's figures divided by another's: each phase, and the score.
    pub fn ratios(&self, other: &Report) -> Vec<(&'static str, f64)> {
        let each = self.phases.iter().zip(&other.phases);
        let each = each.map(|(ours, theirs)| (ours.phase.name(), ours.value() / theirs.value()));
        each.chain([("score", self.score() / other.score())]).collect()
    }

    /// The part of this place's speed that was left in another's turns: of each phase, and of the score.
    pub fn left(&self, other: &Report) -> Vec<Left> {
        let turns = 0..self.turns[0].len();
        let turns: Vec<_> = turns.map(|turn| (self.values_of(turn), other.values_of(turn))).collect();
        let phase = |index: usize| Left {
            name: self.phases[index].phase.name(),
            pairs: turns.iter().map(|(alone, beside)| beside[index].1 / alone[index].1).collect(),
        };
        let of_score = turns.iter().map(|(alone, beside)| score(beside) / score(alone)).collect();
        (0..self.phases.len()).map(phase).chain([Left { name: "score", pairs: of_score }]).collect()
    }

    /// A table of the figures alone and beside a command, and of the part left in each pair of turns.
    pub fn table_of_left(&self, other: &Report) -> String {
        let mut text = String::new();
        put(
            &mut text,
            format_args!(
                "{:<20}{:>16}{:>16}{:>9}{:>9}{:>9}",
                "beside / alone", "alone", "beside", "median", "lowest", "highest"
            ),
        );
        for ((left, alone), beside) in self.left(other).into_iter().zip(self.words()).zip(other.words()) {
            let (name, median, lowest, highest) = (left.name, left.median(), left.lowest(), left.highest());
            put(&mut text, format_args!("{name:<20}{alone:>16}{beside:>16}{median:>9.2}{lowest:>9.2}{highest:>9.2}"));
        }
        text
    }

    /// Each phase's figure with its unit, and the score.
    fn words(&self) -> Vec<String> {
        let phases = self.phases.iter().map(|measured| format!("{:.3} {}", measured.value(), measured.unit()));
        phases.chain([format!("{:.3}", self.score())]).collect()
    }

    /// A table of this place beside another.
    pub fn beside(&self, other: &Report) -> String {
        let mut text = String::new();
        let (ours, theirs) = (&self.place.title, &other.place.title);
        put(&mut text, format_args!("{:<20}{ours:>16}{theirs:>16}{:>9}", "", "ratio"));
        for (((name, ratio), ours), theirs) in self.ratios(other).into_iter().zip(self.words()).zip(other.words()) {
            put(&mut text, format_args!("{name:<20}{ours:>16}{theirs:>16}{ratio:>9.2}"));
        }
        text
    }

    /// The lines of the official `result_summary.txt`.
    pub fn summary(&self) -> String {
        let mut text = format!("IO500 phases by aze {} (not the official program)\n", env!("CARGO_PKG_VERSION"));
        for measured in &self.phases {
            let mark = if measured.is_too_short() { " [INVALID]" } else { "" };
            let (name, value, unit) = (measured.phase.name(), measured.value(), measured.unit());
            let seconds = measured.took.as_secs_f64();
            put(&mut text, format_args!("[RESULT] {name:>20} {value:>15.6} {unit} : time {seconds:.3} seconds{mark}"));
        }
        let mark = if self.invalid_because().is_empty() { "" } else { " [INVALID]" };
        let (bandwidth, iops, score) = (self.bandwidth(), self.iops(), self.score());
        put(
            &mut text,
            format_args!("[SCORE ] Bandwidth {bandwidth:.6} GiB/s : IOPS {iops:.6} kiops : TOTAL {score:.6}{mark}"),
        );
        text
    }

    /// What a figure means nothing without.
    pub fn circumstances(&self) -> String {
        let (place, warm_mib) = (&self.place, self.warm_bytes >> 20);
        let turns = match self.turns[0].len() {
            1 => "one turn".to_string(),
            count => format!("each phase the median of {count} turns"),
        };
        let nodes = if self.nodes == 1 { String::new() } else { format!(" on {} nodes", self.nodes) };
        format!(
            "{}, {} processes{nodes}, stonewall {} s, {turns}, {warm_mib} MiB of memory touched before\n\
             cached: {}; durable: {}\nclose: {}; fsync: {}",
            place.title,
            self.procs,
            self.stonewall.as_secs_f64(),
            place.cached,
            place.durable,
            place.close,
            place.fsync
        )
    }

    /// The official `result.txt`: a section for each phase.
    pub fn sections(&self) -> String {
        let mut text = String::new();
        for line in self.circumstances().lines() {
            put(&mut text, format_args!("; {line}"));
        }
        for measured in &self.phases {
            put(&mut text, format_args!("\n[{}]", measured.phase));
            put(&mut text, format_args!("score = {:.6}", measured.value()));
            put(&mut text, format_args!("t_delta = {:.4}", measured.took.as_secs_f64()));
            put(&mut text, format_args!("ops = {}", measured.ops));
        }
        put(&mut text, format_args!("\n[SCORE]"));
        put(
            &mut text,
            format_args!("MD = {:.6}\nBW = {:.6}\nSCORE = {:.6}", self.iops(), self.bandwidth(), self.score()),
        );
        let because = self.invalid_because();
        put(&mut text, format_args!("valid = {}", if because.is_empty() { "YES" } else { "NO" }));
        because.iter().for_each(|why| put(&mut text, format_args!("; {why}")));
        text
    }
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing into a string does not fail");
}

/// The share of a phase's speed, or of the score, that was left beside a command.
pub struct Left {
    /// Of what.
    pub name: &'static str,
    /// In each pair of turns, the value beside the command divided by the value alone.
    pub pairs: Vec<f64>,
}

impl Left {
    fn median(&self) -> f64 {
        crate::median::median(&self.pairs, |ratio| *ratio)
    }

    fn lowest(&self) -> f64 {
        self.pairs.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn highest(&self) -> f64 {
        self.pairs.iter().copied().fold(0.0, f64::max)
    }

    /// One object.
    pub fn json(&self) -> Value {
        json!({
            "of": self.name,
            "median": self.median(),
            "lowest": self.lowest(),
            "highest": self.highest(),
            "pairs": self.pairs,
        })
    }
}

fn bandwidth(values: &[(Phase, f64)]) -> f64 {
    geometric_mean(values, Phase::is_bandwidth)
}

fn iops(values: &[(Phase, f64)]) -> f64 {
    geometric_mean(values, |phase| !phase.is_bandwidth())
}

fn score(values: &[(Phase, f64)]) -> f64 {
    (bandwidth(values) * iops(values)).sqrt()
}

fn geometric_mean(values: &[(Phase, f64)], counts: impl Fn(Phase) -> bool) -> f64 {
    let logs: Vec<f64> = values.iter().filter(|(phase, _)| counts(*phase)).map(|(_, value)| value.ln()).collect();
    (logs.iter().sum::<f64>() / logs.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Described {
        Described {
            title: "test".into(),
            is_mount: false,
            cached: "nothing",
            durable: "nothing",
            close: "nothing",
            fsync: "nothing",
        }
    }

    /// All phases with such a value.
    fn report(seconds: u64, gib_per_s: u64, k_per_s: u64) -> Report {
        let measured = |phase: Phase| {
            let per_s = match phase.is_bandwidth() {
                true => (gib_per_s << 30) / phase.bytes_each(),
                false => k_per_s * 1000,
            };
            Measured { phase, took: Duration::from_secs(seconds), ops: per_s * seconds }
        };
        let phases = Phase::ALL.into_iter().map(measured).collect();
        Report::new(place(), (4, 1), Duration::from_secs(seconds), 0, &[phases])
    }

    #[test]
    fn the_score_is_the_geometric_mean_of_both_means() {
        let report = report(300, 4, 100);
        assert!((report.bandwidth() - 4.0).abs() < 1e-3, "{}", report.bandwidth());
        assert!((report.iops() - 100.0).abs() < 1e-9, "{}", report.iops());
        assert!((report.score() - 20.0).abs() < 1e-2, "{}", report.score());
    }

    #[test]
    fn a_phase_is_the_median_of_its_turns() {
        let turns = [5, 1, 3].map(|gib_per_s| report(300, gib_per_s, 100).phases);
        let middle = Report::new(place(), (4, 1), Duration::from_secs(300), 0, &turns);
        assert!((middle.bandwidth() - 3.0).abs() < 1e-3, "{}", middle.bandwidth());
        assert_eq!(middle.json()["phases"][0]["turns"].as_array().map(Vec::len), Some(3));
        let ratios = middle.ratios(&report(300, 6, 50));
        assert_eq!(ratios.len(), 13);
        assert!((ratios[0].1 - 0.5).abs() < 1e-3 && (ratios[1].1 - 2.0).abs() < 1e-9, "{ratios:?}");
        assert!((ratios[12].1 - 1.0).abs() < 1e-3, "the score is the root of both: {ratios:?}");
    }

    #[test]
    fn what_is_left_is_the_ratio_of_each_pair_of_turns() {
        let turns = |values: [u64; 3]| values.map(|gib_per_s| report(300, gib_per_s, 100).phases);
        let of = |values| Report::new(place(), (4, 1), Duration::from_secs(300), 0, &turns(values));
        let left = of([10, 20, 40]).left(&of([9, 10, 30]));
        assert_eq!((left.len(), left[0].name, left[12].name), (13, "ior-easy-write", "score"));
        let near = |one: f64, other: f64| (one - other).abs() < 1e-3;
        let (first, rates, score) = (&left[0], &left[1], &left[12]);
        assert_eq!(first.pairs.len(), 3);
        assert!(near(first.pairs[0], 0.9) && near(first.pairs[1], 0.5) && near(first.pairs[2], 0.75));
        assert!(near(first.median(), 0.75) && near(first.lowest(), 0.5) && near(first.highest(), 0.9));
        assert!(near(rates.lowest(), 1.0) && near(rates.highest(), 1.0));
        assert!(near(score.lowest(), 0.5f64.sqrt()) && near(score.highest(), 0.9f64.sqrt()));
    }

    #[test]
    fn only_long_runs_are_valid() {
        let (long, short) = (report(300, 4, 100), report(299, 4, 100));
        assert_eq!(long.json()["valid"], true);
        assert!(!long.summary().contains("INVALID"));
        assert_eq!(short.json()["invalid_because"].as_array().map(Vec::len), Some(4), "the writing phases");
        assert_eq!(short.summary().matches("[INVALID]").count(), 5);
    }

    #[test]
    fn lines_are_the_official_ones() {
        let text = report(300, 4, 100).summary();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 14);
        assert!(lines[2].starts_with("[RESULT]    mdtest-easy-write"), "{}", lines[2]);
        assert!(lines[2].ends_with("100.000000 kIOPS : time 300.000 seconds"), "{}", lines[2]);
        assert!(lines[13].starts_with("[SCORE ] Bandwidth "), "{}", lines[13]);
    }
}
