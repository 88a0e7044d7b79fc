//! Two ways to give data and names to servers, in turns: bandwidth (figure 1 of the paper) and metadata (figure 2) of the phases
//! of IO500, and how unevenly servers are used.

use super::Args;
use crate::median::median;
use crate::plot::{self, Curve};
use crate::program::{Program, Session};
use crate::started::{Started, aze};
use aze_proto::slots::Placement;
use aze_words::errln;
use aze_words::exit::{Exit, Outcome, Trouble};
use serde_json::{Value, json};
use std::fmt::Write;

/// Memory of each volume: two are there at once.
const CAPACITY: &str = "2G";
/// Memory of it that is touched before each run.
const WARM: &str = "1G";
/// The phase whose one shared file gains most in the paper.
const HARD_WRITE: &str = "ior-hard-write";
const HARD_READ: &str = "ior-hard-read";
/// What the paper found, beside which our figures are put.
const PAPER: &str = "\
the paper (CHFS, 16, 24 and 32 nodes of 16 processes): modular has 1.6 to 1.7 times the bandwidth of consistent hashing, 2.4 to 2.5
times in ior-hard, and 1.4 to 1.5 times the rate of metadata. Where all servers share the cores of one machine, those that have
more to do get more of them: what stays there is how unevenly they are used";

/// One run of IO500's phases on one volume.
#[derive(Clone, Copy)]
struct Turn {
    /// Geometric mean of the four phases that move data, GiB/s.
    bandwidth: f64,
    /// Geometric mean of the two of them with one shared file.
    hard: f64,
    /// Geometric mean of the phases of names, 1,000 operations a second.
    names: f64,
    /// Requests of the busiest server, divided by the mean of all.
    busiest: f64,
}

/// A number of servers and a placement.
struct Row {
    servers: u16,
    placement: Placement,
    /// Slots of the server that has the most, divided by the mean of all.
    most_slots: f64,
    turns: Vec<Turn>,
}

impl Row {
    fn median(&self, of: fn(&Turn) -> f64) -> f64 {
        of(&median(&self.turns, of))
    }
}

/// All that was measured.
pub(super) struct Measured {
    rows: Vec<Row>,
    bandwidth: bool,
    names: bool,
}

/// Measures figures 1 and 2 with each number of servers.
pub(super) fn measure(args: &Args, program: &'static dyn Program) -> Outcome<Measured> {
    if args.name.is_some() {
        return Err(Trouble::usage("bench p4: figures 1 and 2 compare volumes that they start: leave --name out"));
    }
    let mut rows = Vec::new();
    for servers in &args.servers {
        errln!("bench p4: {servers} servers, modular and ring");
        let start = |placement: Placement| {
            let (word, count) = (placement.word(), servers.to_string());
            let name = format!("p4-{word}-{servers}-{}", std::process::id());
            Started::new(program, &name, &["--servers", &count, "--size", CAPACITY, "--placement", word])
        };
        let mut pair = Vec::new();
        for placement in [Placement::Modular, Placement::Ring] {
            let started = start(placement)?;
            let session = started.open()?;
            let most_slots =
                uneven((0..*servers).map(|server| {
                    session.client().map().slots.served_by(aze_proto::ServerIndex(server)).count() as f64
                }));
            pair.push((started, session, Row { servers: *servers, placement, most_slots, turns: Vec::new() }));
        }
        for turn in 0..args.repeat {
            // The two take turns at being first.
            let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
            for at in order {
                let (started, session, row) = &mut pair[at];
                row.turns.push(one_turn(args, &started.name, &**session)?);
            }
        }
        for (started, session, row) in pair {
            session.end();
            drop(started);
            rows.push(row);
        }
    }
    Ok(Measured { rows, bandwidth: args.figure.contains(&1), names: args.figure.contains(&2) })
}

/// The largest of these, divided by their mean.
fn uneven(parts: impl Iterator<Item = f64>) -> f64 {
    let parts: Vec<f64> = parts.collect();
    parts.iter().copied().fold(0.0, f64::max) * parts.len() as f64 / parts.iter().sum::<f64>()
}

fn one_turn(args: &Args, name: &str, session: &dyn Session) -> Outcome<Turn> {
    let before = requests(session)?;
    let (procs, stonewall) = (args.procs.to_string(), format!("{}ms", args.stonewall.as_millis()));
    let words = ["bench", "io500", "--name", name, "--procs", &procs, "--stonewall", &stonewall];
    let ran = aze(&[&words[..], &["--repeat", "1", "--warm", WARM, "--json"]].concat())?;
    let after = requests(session)?;
    let wrong = |what: &str| Trouble::new(Exit::Fatal, format!("bench p4: aze bench io500 has said nothing of {what}"));
    let result: Value = serde_json::from_slice(&ran.stdout).map_err(|_| wrong("itself"))?;
    let number = |value: &Value, what: &str| value.as_f64().ok_or_else(|| wrong(what));
    let phase = |name: &str| {
        let phases = result["phases"].as_array().into_iter().flatten();
        let value = phases.filter(|phase| phase["phase"] == name).map(|phase| &phase["value"]).next();
        number(value.unwrap_or(&Value::Null), name)
    };
    Ok(Turn {
        bandwidth: number(&result["bandwidth_gib_s"], "its bandwidth")?,
        hard: (phase(HARD_WRITE)? * phase(HARD_READ)?).sqrt(),
        names: number(&result["iops_k"], "its rate of metadata")?,
        busiest: uneven(after.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before) as f64)),
    })
}

/// Requests that each server has answered so far.
fn requests(session: &dyn Session) -> Outcome<Vec<u64>> {
    let answers = session.ask("look at every server", async { Ok(session.client().status().await) })?;
    let requests = |(server, answer): (_, Result<_, _>)| {
        let status: aze_proto::message::ServerStatus =
            answer.map_err(|failure| Trouble::volume(format!("look at server {server}"), &failure))?;
        Ok(status.requests.iter().map(|counter| counter.count).sum())
    };
    answers.into_iter().map(requests).collect()
}

impl Measured {
    /// Pairs of rows, of the same number of servers.
    fn pairs(&self) -> impl Iterator<Item = (&Row, &Row)> {
        self.rows.chunks_exact(2).map(|pair| (&pair[0], &pair[1]))
    }

    pub(super) fn tables(&self) -> String {
        let mut text = String::new();
        let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
        let mut table = |title: &str, of: fn(&Turn) -> f64| {
            put(title.into());
            put(format!("{:>8}{:>10}{:>10}{:>10}", "servers", "modular", "ring", "ratio"));
            for (modular, ring) in self.pairs() {
                let (one, other) = (modular.median(of), ring.median(of));
                put(format!("{:>8}{one:>10.2}{other:>10.2}{:>10.2}", modular.servers, one / other));
            }
            put(String::new());
        };
        if self.bandwidth {
            table("Bandwidth of IO500's phases, GiB/s", |turn| turn.bandwidth);
            table("The two of ior-hard, one shared file, GiB/s", |turn| turn.hard);
        }
        if self.names {
            table("Metadata of IO500's phases, 1,000 operations a second", |turn| turn.names);
        }
        put("How much the busiest server has, divided by the mean".into());
        put(format!("{:>8}{:>10}{:>10}{:>18}{:>10}", "servers", "slots", "", "requests", ""));
        put(format!("{:>8}{:>10}{:>10}{:>18}{:>10}", "", "modular", "ring", "modular", "ring"));
        for (modular, ring) in self.pairs() {
            let of = |row: &Row| row.median(|turn| turn.busiest);
            put(format!(
                "{:>8}{:>10.2}{:>10.2}{:>18.2}{:>10.2}",
                modular.servers,
                modular.most_slots,
                ring.most_slots,
                of(modular),
                of(ring)
            ));
        }
        put(String::new());
        text.push_str(PAPER);
        text.push('\n');
        text
    }

    pub(super) fn pictures(&self) -> Vec<(String, String)> {
        let curves = |of: fn(&Turn) -> f64| {
            let curve = |placement: Placement| {
                let rows = self.rows.iter().filter(|row| row.placement == placement);
                let points = rows.map(|row| (u64::from(row.servers), row.median(of))).collect();
                Curve { name: placement.word().into(), points }
            };
            [curve(Placement::Modular), curve(Placement::Ring)]
        };
        let draw =
            |title: &str, up: &str, of: fn(&Turn) -> f64| plot::draw(title, "servers", up, &curves(of), &plot::count);
        let mut pictures = Vec::new();
        if self.bandwidth {
            let title = "Bandwidth by placement";
            pictures.push(("placement-bandwidth.svg".into(), draw(title, "GiB/s", |turn| turn.bandwidth)));
        }
        if self.names {
            let title = "Metadata by placement";
            pictures.push(("placement-metadata.svg".into(), draw(title, "1,000 operations/s", |turn| turn.names)));
        }
        pictures
    }

    pub(super) fn json(&self) -> Value {
        let turn = |turn: &Turn| {
            json!({
                "bandwidth_gib_s": turn.bandwidth,
                "ior_hard_gib_s": turn.hard,
                "iops_k": turn.names,
                "busiest_server": turn.busiest,
            })
        };
        let row = |row: &Row| {
            json!({
                "servers": row.servers,
                "placement": row.placement.word(),
                "most_slots": row.most_slots,
                "turns": row.turns.iter().map(turn).collect::<Vec<_>>(),
            })
        };
        json!({ "rows": self.rows.iter().map(row).collect::<Vec<_>>(), "paper": PAPER })
    }
}
