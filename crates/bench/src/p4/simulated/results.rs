//! Tables, pictures and records of a simulation, with the numbers of the paper beside ours.

use super::super::Args;
use super::check::Check;
use super::{Row, WHAT};
use crate::plot::{self, Curve, short};
use aze_proto::slots::Placement;
use aze_sim::experiment::work::Phase;
use aze_sim::experiment::{Cost, Measured, Times};
use aze_words::exit::{Exit, Outcome, Trouble};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// What the paper found, beside which our figures are put.
pub(super) const PAPER: &str = "\
the paper (CHFS, 16, 24 and 32 nodes of 16 processes; measured): figure 1, modular has 1.6 to 1.7 times the bandwidth of consistent
hashing, 2.4 to 2.5 times in ior-hard; figure 2, 1.4 to 1.5 times the rate of metadata; figure 3, a search by one process for each
server is close to linear from 16 to 48 nodes (ours is one process that asks all servers); figures 5 and 6, with one request at a time
the bandwidth of a process depends on the size of a chunk only, with all of a transfer at once it grows with the transfer; figure 8, all
of 48 x 16 processes open one file in 1.36 s, up to 10.87 s on 24 nodes, and in 0.06 to 0.08 s by contact servers";

/// Curves of the paper, in the unit of ours: name, and the lowest and highest number of nodes with their values.
const PAPER_RATIOS: [(&str, [(u64, f64); 2]); 6] = [
    ("paper, bandwidth, least", [(16, 1.6), (32, 1.6)]),
    ("paper, bandwidth, most", [(16, 1.7), (32, 1.7)]),
    ("paper, one file, least", [(16, 2.4), (32, 2.4)]),
    ("paper, one file, most", [(16, 2.5), (32, 2.5)]),
    ("paper, names, least", [(16, 1.4), (32, 1.4)]),
    ("paper, names, most", [(16, 1.5), (32, 1.5)]),
];
const PAPER_OPENS: [(&str, [(u64, f64); 2]); 3] = [
    ("paper, one file, 16 processes", [(24, 10_870.0), (48, 1_360.0)]),
    ("paper, contact servers, least", [(24, 60.0), (48, 60.0)]),
    ("paper, contact servers, most", [(24, 80.0), (48, 80.0)]),
];

const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;

pub(super) fn times_json(times: &Times) -> Value {
    let requests = times.requests.iter();
    let requests = requests.map(|(name, cost)| (name.clone(), json!({"ns": cost.ns, "mib_ns": cost.mib_ns})));
    json!({
        "requests": requests.collect::<serde_json::Map<_, _>>(),
        "other_ns": times.other_ns,
        "answer_ns": times.answer_ns,
        "sent_mib_ns": times.sent_mib_ns,
        "received_mib_ns": times.received_mib_ns,
        "found_ns": times.found_ns,
        "received_found_ns": times.received_found_ns,
    })
}

/// The times of a record.
pub(super) fn times_of(file: &Path) -> Outcome<Times> {
    let text =
        std::fs::read_to_string(file).map_err(|error| Trouble::local(format!("read {}", file.display()), &error))?;
    let wrong = |what: &str| {
        Trouble::new(
            Exit::Usage,
            format!("--times {}: {what}: expected a result.json of aze bench p4 --simulate", file.display()),
        )
    };
    let record: Value = serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
    let times = &record["simulated"]["times"];
    let number = |value: &Value, name: &str| value[name].as_u64().ok_or_else(|| wrong(&format!("it has no {name}")));
    let requests = times["requests"].as_object().ok_or_else(|| wrong("it has no times"))?;
    let requests = requests
        .iter()
        .map(|(name, cost)| Ok((name.clone(), Cost { ns: number(cost, "ns")?, mib_ns: number(cost, "mib_ns")? })));
    Ok(Times {
        requests: requests.collect::<Outcome<_>>()?,
        other_ns: number(times, "other_ns")?,
        answer_ns: number(times, "answer_ns")?,
        sent_mib_ns: number(times, "sent_mib_ns")?,
        received_mib_ns: number(times, "received_mib_ns")?,
        found_ns: number(times, "found_ns")?,
        received_found_ns: number(times, "received_found_ns")?,
    })
}

/// Numbers of nodes, each once, in their order.
fn nodes(rows: &[Row]) -> Vec<u16> {
    let mut nodes: Vec<u16> = rows.iter().map(|row| row.nodes).collect();
    nodes.dedup();
    nodes
}

/// The geometric mean of the rates of phases; `None`: they were not asked for.
fn rate(rows: &[Row], nodes: u16, placement: Placement, phases: &[Phase]) -> Option<f64> {
    let of = |phase: &Phase| {
        let is_it = |row: &&Row| (row.nodes, row.placement, row.measured.phase) == (nodes, placement, *phase);
        rows.iter().find(is_it).map(|row| row.measured.rate())
    };
    let rates = phases.iter().map(of).collect::<Option<Vec<f64>>>()?;
    Some((rates.iter().map(|rate| rate.ln()).sum::<f64>() / rates.len() as f64).exp())
}

/// A comparison of two placements: title, unit, how many of it are one, phases.
const COMPARED: [(&str, &str, f64, &[Phase]); 3] = [
    ("bandwidth", "GiB/s", GIB, &Phase::DATA),
    ("bandwidth, one file of all", "GiB/s", GIB, &[Phase::HardWrite, Phase::HardRead]),
    ("names", "1,000 operations/s", 1000.0, &Phase::NAMES),
];

fn seconds(rows: &[Row], nodes: u16, phase: Phase) -> Option<f64> {
    rows.iter().find(|row| (row.nodes, row.measured.phase) == (nodes, phase)).map(|row| row.measured.seconds)
}

fn transfers(all: bool, is_write: bool) -> impl Iterator<Item = (u64, Phase)> {
    super::TRANSFERS
        .into_iter()
        .map(move |size| (size, if is_write { Phase::Write(size, all) } else { Phase::Read(size, all) }))
}

pub(super) fn tables(args: &Args, rows: &[Row], checks: Option<&[Check]>) -> String {
    let mut text = format!("{WHAT}\n\n");
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    match (checks, &args.model.times) {
        (Some(checks), _) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            put("The model on this machine: measured and simulated rates of the same processes, in MiB/s and operations/s".into());
            put(format!(
                "(cores that worked for the measured ones, of {cores}: with less, others had them, or all waited)"
            ));
            put(format!(
                "{:>8} {:<14}{:>12}{:>12}{:>8}{:>8}",
                "servers", "phase", "measured", "simulated", "cores", "ratio"
            ));
            for check in checks {
                let unit = if check.phase.moves_data() { MIB } else { 1.0 };
                put(format!(
                    "{:>8} {:<14}{:>12.0}{:>12.0}{:>8.2}{:>8.2}{}",
                    check.servers,
                    check.phase.name(),
                    check.measured / unit,
                    check.simulated / unit,
                    check.busy,
                    check.ratio(),
                    if check.is_off() { "  off: do not believe it" } else { "" }
                ));
            }
        }
        (None, Some(file)) => put(format!("not checked on this machine: the times are those of {}", file.display())),
        (None, None) => {}
    }
    put(String::new());
    for (title, unit, one, phases) in COMPARED {
        let found = |nodes: u16, placement| rate(rows, nodes, placement, phases).map(|rate| rate / one);
        let pairs = nodes(rows)
            .into_iter()
            .filter_map(|nodes| Some((nodes, found(nodes, Placement::Modular)?, found(nodes, Placement::Ring)?)));
        let pairs: Vec<_> = pairs.collect();
        if pairs.is_empty() {
            continue;
        }
        put(format!("Simulated {title}, {unit}"));
        put(format!("{:>8}{:>12}{:>12}{:>8}", "nodes", "modular", "ring", "ratio"));
        for (nodes, modular, ring) in pairs {
            put(format!("{nodes:>8}{modular:>12.2}{ring:>12.2}{:>8.2}", modular / ring));
        }
        put(String::new());
    }
    if rows.iter().any(|row| Phase::NAMES.contains(&row.measured.phase) || row.measured.phase == Phase::Search) {
        put(format!(
            "(each process has {} files, and {} on more than {} nodes)\n",
            super::FILES,
            super::files(u16::MAX),
            super::MANY_NODES
        ));
    }
    let searches = rows.iter().filter(|row| row.measured.phase == Phase::Search);
    let searches: Vec<String> = searches
        .map(|row| {
            let Measured { amount, seconds, .. } = row.measured;
            format!("{:>8}{amount:>12}{:>12.3}{:>12.0}", row.nodes, seconds * 1e3, row.measured.rate())
        })
        .collect();
    if !searches.is_empty() {
        put("Simulated search of all files by one process, which all servers answer at once".into());
        put(format!("{:>8}{:>12}{:>12}{:>12}", "nodes", "files", "ms", "files/s"));
        put(searches.join("\n") + "\n");
    }
    for (all, is_write) in [(false, true), (false, false), (true, true), (true, false)] {
        let of = |nodes: u16| {
            let rates = transfers(all, is_write).map(|(_, phase)| rate(rows, nodes, Placement::Modular, &[phase]));
            rates.collect::<Option<Vec<f64>>>().map(|rates| (nodes, rates))
        };
        let found: Vec<_> = nodes(rows).into_iter().filter_map(of).collect();
        if found.is_empty() {
            continue;
        }
        let (direction, way) =
            (if is_write { "write" } else { "read" }, if all { "all chunks at once" } else { "one chunk at a time" });
        put(format!("Simulated {direction} of one process, {way}, chunks of 64K, MiB/s by bytes of a transfer"));
        let sizes: Vec<String> = super::TRANSFERS.iter().map(|size| format!("{:>8}", short(*size))).collect();
        put(format!("{:>8}{}", "nodes", sizes.concat()));
        for (nodes, rates) in found {
            let rates: Vec<String> = rates.iter().map(|rate| format!("{:>8.0}", rate / MIB)).collect();
            put(format!("{nodes:>8}{}", rates.concat()));
        }
        put(String::new());
    }
    let opens = nodes(rows).into_iter().filter_map(|nodes| {
        Some((nodes, seconds(rows, nodes, Phase::OpenOne)?, seconds(rows, nodes, Phase::OpenOwn)?))
    });
    let opens: Vec<_> = opens.collect();
    if !opens.is_empty() {
        put("Simulated milliseconds until all processes have opened a file".into());
        put(format!("{:>8}{:>12}{:>12}{:>12}", "nodes", "processes", "one file", "own files"));
        for (nodes, one, own) in opens {
            let processes = usize::from(nodes) * usize::from(args.model.node_procs);
            put(format!("{nodes:>8}{processes:>12}{:>12.2}{:>12.2}", one * 1e3, own * 1e3));
        }
        put(String::new());
    }
    put(PAPER.into());
    text
}

pub(super) fn pictures(rows: &[Row]) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    let mut draw = |name: &str, title: &str, up: &str, curves: Vec<Curve>| {
        let curves: Vec<Curve> = curves.into_iter().filter(|curve| !curve.points.is_empty()).collect();
        if !curves.is_empty() {
            let title = format!("{title} (simulated)");
            pictures.push((format!("simulated-{name}.svg"), plot::draw(&title, "nodes", up, &curves, &plot::count)));
        }
    };
    let by_nodes = |name: &str, of: &dyn Fn(u16) -> Option<f64>| {
        let points = nodes(rows).into_iter().filter_map(|nodes| Some((u64::from(nodes), of(nodes)?)));
        Curve { name: name.into(), points: points.collect() }
    };
    let paper = |name: &&str, points: &[(u64, f64)]| Curve { name: (*name).into(), points: points.to_vec() };
    for (name, (title, unit, one, phases)) in ["bandwidth", "one-file", "names"].into_iter().zip(COMPARED) {
        let curve = |placement: Placement| {
            by_nodes(placement.word(), &|nodes| rate(rows, nodes, placement, phases).map(|rate| rate / one))
        };
        draw(name, title, unit, vec![curve(Placement::Modular), curve(Placement::Ring)]);
    }
    let ratios = COMPARED.into_iter().map(|(title, _, _, phases)| {
        by_nodes(&format!("ours, {title}"), &|nodes| {
            Some(rate(rows, nodes, Placement::Modular, phases)? / rate(rows, nodes, Placement::Ring, phases)?)
        })
    });
    let ratios: Vec<Curve> = ratios.filter(|curve| !curve.points.is_empty()).collect();
    if !ratios.is_empty() {
        let all = ratios.into_iter().chain(PAPER_RATIOS.iter().map(|(name, points)| paper(name, points)));
        draw("placement", "Modular placement, divided by a ring", "ratio", all.collect());
    }
    let search = by_nodes("search", &|nodes| rate(rows, nodes, Placement::Modular, &[Phase::Search]));
    draw("search", "A search of all files", "files/s", vec![search]);
    let opens = |name: &str, phase| by_nodes(name, &|nodes| seconds(rows, nodes, phase).map(|seconds| seconds * 1e3));
    let (one, own) = (opens("ours, one file", Phase::OpenOne), opens("ours, own files", Phase::OpenOwn));
    if !one.points.is_empty() {
        let all = [one, own].into_iter().chain(PAPER_OPENS.iter().map(|(name, points)| paper(name, points)));
        draw("open", "Until all have opened", "ms", all.collect());
    }
    for is_write in [true, false] {
        let curves = nodes(rows).into_iter().flat_map(|nodes| [false, true].map(|all| (nodes, all)));
        let curves = curves.filter_map(|(nodes, all)| {
            let point = |(size, phase)| Some((size, rate(rows, nodes, Placement::Modular, &[phase])? / MIB));
            let points = transfers(all, is_write).map(point).collect::<Option<Vec<_>>>()?;
            Some(Curve {
                name: format!("{nodes} nodes, {}", if all { "all at once" } else { "one at a time" }),
                points,
            })
        });
        let curves: Vec<Curve> = curves.collect();
        if !curves.is_empty() {
            let direction = if is_write { "write" } else { "read" };
            let title = format!("One process, {direction} (simulated)");
            let drawn = plot::draw(&title, "bytes of a transfer", "MiB/s", &curves, &short);
            pictures.push((format!("simulated-{direction}.svg"), drawn));
        }
    }
    pictures
}
