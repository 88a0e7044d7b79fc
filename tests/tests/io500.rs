//! `aze bench io500` on the real program: on a directory and on a volume. The measured values are not
//! judged, only that all of them are there and add up, and that no file is left behind.

use aze_tests::{Place, Ran, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

const PHASES: [&str; 12] = [
    "ior-easy-write",
    "mdtest-easy-write",
    "ior-hard-write",
    "mdtest-hard-write",
    "find",
    "ior-easy-read",
    "mdtest-easy-stat",
    "ior-hard-read",
    "mdtest-hard-stat",
    "mdtest-easy-delete",
    "mdtest-hard-read",
    "mdtest-hard-delete",
];

/// A run that takes seconds: what makes it long and what fills memory is small.
const TINY: [&str; 9] = ["bench", "io500", "--short", "--repeat", "1", "--stonewall", "100ms", "--warm", "16M"];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

fn assert_near(one: f64, other: f64) {
    assert!((one - other).abs() <= other.abs() * 1e-4 + 2e-6, "{one} is not {other}");
}

/// Checks a result, and that the score is what the formula makes of the phases.
fn check_json(ran: &Ran, procs: u64) -> Value {
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let phases = result["phases"].as_array().expect("phases");
    let names: Vec<&str> = phases.iter().map(|phase| phase["phase"].as_str().expect("a name")).collect();
    assert_eq!(names, PHASES);
    let (mut bandwidths, mut rates) = (Vec::new(), Vec::new());
    for phase in phases {
        let (value, seconds, ops) = (number(&phase["value"]), number(&phase["seconds"]), number(&phase["ops"]));
        assert!(value > 0.0 && seconds > 0.0 && ops > 0.0, "{phase}");
        if phase["unit"] == "GiB/s" {
            assert_near(value, number(&phase["bytes"]) / f64::from(1 << 30) / seconds);
            bandwidths.push(value);
        } else {
            assert_near(value, ops / 1000.0 / seconds);
            rates.push(value);
        }
    }
    assert_eq!((bandwidths.len(), rates.len()), (4, 8));
    assert_near(number(&result["bandwidth_gib_s"]), geometric_mean(&bandwidths));
    assert_near(number(&result["iops_k"]), geometric_mean(&rates));
    assert_near(number(&result["score"]), (geometric_mean(&bandwidths) * geometric_mean(&rates)).sqrt());
    assert_eq!(result["valid"], false, "a short run must not be submitted");
    assert_eq!(result["procs"].as_u64(), Some(procs));
    for known in ["cached", "durable", "close", "fsync", "version", "command"] {
        assert!(result[known].is_string(), "{known}: {result}");
    }
    assert!(number(&result["machine"]["cores"]) >= 1.0, "{result}");
    result
}

/// Checks the result files against the JSON of the same run.
fn check_files(dir: &Path, result: &Value) {
    let summary = fs::read_to_string(dir.join("result_summary.txt")).expect("a summary");
    let lines: Vec<Vec<&str>> = summary.lines().map(|line| line.split_whitespace().collect()).collect();
    let results: Vec<&Vec<&str>> = lines.iter().filter(|words| words[0] == "[RESULT]").collect();
    let sections = fs::read_to_string(dir.join("result.txt")).expect("a result");
    assert_eq!(results.len(), PHASES.len());
    for (words, phase) in results.iter().zip(result["phases"].as_array().expect("phases")) {
        let name = phase["phase"].as_str().expect("a name");
        assert_eq!((words[1], words[4], words[5], words[7]), (name, ":", "time", "seconds"));
        assert_eq!(Some(words[3]), phase["unit"].as_str());
        assert_near(words[2].parse().expect("a value"), number(&phase["value"]));
        let section = sections.split(&format!("\n[{name}]\n")).nth(1).expect("a section for each phase");
        let score = section.lines().find_map(|line| line.strip_prefix("score = ")).expect("a score");
        assert_near(score.parse().expect("a value"), number(&phase["value"]));
    }
    let score = lines.iter().find(|words| words[0] == "[SCORE").expect("a score");
    assert_eq!((score[2], score[4], score[6], score[8], score[10]), ("Bandwidth", "GiB/s", "IOPS", "kiops", "TOTAL"));
    assert_near(score[11].parse().expect("a total"), number(&result["score"]));
    assert_eq!(score[12], "[INVALID]");
}

fn entries(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_directory_is_measured_and_left_as_it_was() {
    let place = Place::new();
    let target = place.path("target");
    fs::create_dir(&target).expect("a directory");
    let mut args = TINY.to_vec();
    args.extend(["--procs", "3", "--target", "target", "--json", "--record", "results"]);
    let ran = place.aze(&args).ok();
    let result = check_json(&ran, 3);
    check_files(&place.path("results"), &result);
    assert_eq!(entries(&target), BTreeSet::new());
    let again = place.aze(&args).code(2);
    assert!(again.err.contains("there is something in it"), "{}", again.err);
}

#[test]
fn places_are_compared_in_turns() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    for name in ["one", "two"] {
        fs::create_dir(place.path(name)).expect("a directory");
    }
    let mut args = TINY.to_vec();
    args[4] = "3";
    args.extend(["--procs", "2", "--native", "--against", "one", "--against", "two", "--json", "--record", "results"]);
    let ran = place.aze(&args).ok();
    let result = check_json(&ran, 2);
    check_files(&place.path("results"), &result);
    let recorded = fs::read_to_string(place.path("results/result.json")).expect("the JSON");
    assert_eq!(serde_json::from_str::<Value>(&recorded).expect("one object"), result);
    let against = result["against"].as_array().expect("the others");
    assert_eq!(against.len(), 2);
    for (index, other) in against.iter().enumerate() {
        let phases =
            result["phases"].as_array().expect("phases").iter().zip(other["phases"].as_array().expect("phases"));
        for (ours, theirs) in phases {
            assert_eq!(ours["turns"].as_array().map(Vec::len), Some(3));
            let name = ours["phase"].as_str().expect("a name");
            assert_near(number(&other["ratios"][name]), number(&ours["value"]) / number(&theirs["value"]));
        }
        assert_near(number(&other["ratios"]["score"]), number(&result["score"]) / number(&other["score"]));
        assert!(place.path(&format!("results/against{}_result.txt", index + 1)).exists());
    }
    let (first, second) =
        (ran.err.find("turn 1 of 3, aze").expect("turns"), ran.err.find("turn 2 of 3, aze").expect("turns"));
    let between = &ran.err[first..second];
    assert_eq!(between.matches(": find\n").count(), 3, "each place once before the next turn: {}", ran.err);
    for name in ["one", "two"] {
        assert_eq!(entries(&place.path(name)), BTreeSet::new());
    }
}

#[test]
fn threads_of_one_process_are_measured_beside_processes() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    fs::create_dir(place.path("one")).expect("a directory");
    let mut args = TINY.to_vec();
    args.extend(["--procs", "3", "--with-threads", "--against", "one", "--json"]);
    let result = check_json(&place.aze(&args).ok(), 3);
    let titles: Vec<&str> = result["against"]
        .as_array()
        .expect("the others")
        .iter()
        .map(|other| other["place"].as_str().expect("a title"))
        .collect();
    assert_eq!((titles[0], titles.len()), ("aze, no mount, threads", 2));
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "");

    // One process does the work of all, and its end is noticed.
    let target = place.path("target");
    fs::create_dir(&target).expect("a directory");
    let long = ["bench", "io500", "--stonewall", "100ms", "--warm", "0", "--procs", "3", "--target", "target"];
    let args = [&long[..], &["--with-threads", "--repeat", "1000"]].concat();
    let child = place.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("aze starts");
    let mut rank = None;
    wait_until("threads work", || {
        rank = ranks(child.id()).first().copied().filter(|pid| threads(*pid) >= 4);
        rank.is_some() && ranks(child.id()).len() == 1 && !entries(&target).is_empty() && writes(&target)
    });
    kill(rank.expect("a process"), libc::SIGKILL);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(ran.err.contains("rank 0") && ran.err.contains("signal: 9"), "{}", ran.err);
    assert_eq!(entries(&target), BTreeSet::new());
}

/// What the command does: it notes the last line of progress, which names the turn, the place and the phase.
const NOTE: &str = "tail -n 1 progress >> notes; sleep 0.01; exit 1";

#[test]
fn a_command_runs_beside_every_second_turn() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let mut args = TINY.to_vec();
    (args[4], args[6]) = ("2", "200ms");
    args.extend(["--procs", "2", "--json", "--record", "results", "--beside", NOTE]);
    let progress = fs::File::create(place.path("progress")).expect("a file");
    let ran: Ran = place.command(&args).stderr(progress).output().expect("aze runs").into();
    let told = fs::read_to_string(place.path("progress")).expect("progress");
    assert_eq!(ran.code, 0, "{told}");
    let result = check_json(&ran, 2);
    check_files(&place.path("results"), &result);

    let notes = fs::read_to_string(place.path("notes")).expect("notes");
    let runs = notes.lines().count();
    for turn in ["turn 1 of 2", "turn 2 of 2"] {
        let of_turn = |line: &&str| line.contains(turn);
        assert!(notes.lines().any(|line| of_turn(&line)), "it did not run in {turn}: {notes}");
        let alone = told.lines().filter(of_turn).filter(|line| !line.contains(", beside: ")).count();
        assert_eq!(alone, PHASES.len(), "each phase once without it: {told}");
    }
    for line in notes.lines() {
        assert!(line.contains("aze, no mount, beside: "), "it ran in another turn: {line}");
    }

    let beside = &result["beside"];
    assert_eq!((beside["command"].as_str(), beside["output"].as_str()), (Some(NOTE), None), "it prints nothing");
    let count = |what: &str| beside["runs"][what].as_u64().expect("a number") as usize;
    assert_eq!((count("done"), count("cut_off") <= 2), (0, true), "{beside}");
    // It also ran beside the turn that looks for equal work, which does not count.
    assert!(count("failed") > 0 && runs >= count("failed"), "{beside}");
    let left = beside["left"].as_array().expect("what is left");
    assert_eq!(left.len(), PHASES.len() + 1);
    let phases = result["phases"].as_array().expect("phases").iter().zip(beside["phases"].as_array().expect("phases"));
    for ((alone, with), left) in phases.zip(left) {
        assert_eq!(alone["phase"], left["of"]);
        let pairs: Vec<f64> = left["pairs"].as_array().expect("pairs").iter().map(number).collect();
        assert_eq!(pairs.len(), 2);
        for (turn, pair) in pairs.iter().enumerate() {
            assert_near(*pair, number(&with["turns"][turn]) / number(&alone["turns"][turn]));
        }
        let (least, most) = (pairs[0].min(pairs[1]), pairs[0].max(pairs[1]));
        assert_eq!((number(&left["lowest"]), number(&left["highest"]), number(&left["median"])), (least, most, least));
    }
    assert!(place.path("results/beside_result.txt").exists());
}

#[test]
fn a_command_that_does_not_run_is_no_measurement() {
    let place = Place::new();
    fs::create_dir(place.path("target")).expect("a directory");
    let beside = |command: &str| {
        let args = ["--procs", "2", "--target", "target", "--record", "results", "--beside", command];
        let ran = place.aze(&[&TINY[..], &args].concat());
        assert_eq!(entries(&place.path("target")), BTreeSet::new());
        fs::remove_dir_all(place.path("results")).expect("the output is kept");
        (ran.code, ran.out, ran.err)
    };
    let (code, out, err) = beside("./nobody");
    assert!(code == 2 && out.is_empty() && err.contains("never ran") && err.contains("exit status: 127"), "{err}");
    let (code, out, err) = beside("echo out of luck; exit 5");
    assert!(code == 5 && out.is_empty() && err.contains("exit status: 5, where"), "{err}");
    assert!(err.contains(": out of luck (its output is in results/beside_output.txt)"), "{err}");

    // All processes it has started end with the turn, and their output is kept.
    let (code, out, err) = beside("echo begun; sleep 1001 & echo $! > background; wait");
    assert!(code == 0 && out.contains("their output: results/beside_output.txt"), "{out}{err}");
    assert!(out.contains("runs: 0 ended with exit code 0, 0 with 1, 1 with their turn"), "{out}");
    let pid = fs::read_to_string(place.path("background")).expect("its number");
    let words = fs::read(Path::new("/proc").join(pid.trim()).join("cmdline")).unwrap_or_default();
    assert!(words.is_empty(), "it runs on: {}", String::from_utf8_lossy(&words));

    let with_others = place.aze(&["bench", "io500", "--beside", "true", "--against", "target"]).code(2);
    assert!(with_others.err.contains("--beside") && with_others.err.contains("--against"), "{}", with_others.err);
}

/// Threads of a process.
fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

#[test]
fn a_volume_is_measured_and_left_as_it_was() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let mut args = TINY.to_vec();
    args.extend(["--procs", "2", "--json", "--record", "results"]);
    let result = check_json(&place.aze(&args).ok(), 2);
    check_files(&place.path("results"), &result);
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "");
    let text = place.aze(&TINY).ok().out;
    assert!(text.contains("[SCORE ] Bandwidth") && text.contains("durable: nothing"), "{text}");
}

/// A long run with this target that has begun to write.
fn started(place: &Place, target: &Path) -> Child {
    fs::create_dir(target).expect("a directory");
    let mut command =
        place.command(&["bench", "io500", "--stonewall", "60", "--warm", "0", "--procs", "2", "--target", "target"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("aze starts");
    wait_until("the ranks write", || ranks(child.id()).len() == 2 && !entries(target).is_empty() && writes(target));
    child
}

fn writes(target: &Path) -> bool {
    entries(target).iter().any(|run| !entries(&target.join(run).join("ior-easy")).is_empty())
}

/// Processes that this one has started.
fn ranks(parent: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

fn kill(pid: u32, signal: i32) {
    aze_tests::signal(pid, signal);
}

#[test]
fn a_rank_that_dies_is_named_and_nothing_is_left() {
    let place = Place::new();
    let target = place.path("target");
    let child = started(&place, &target);
    let rank = ranks(child.id())[1];
    kill(rank, libc::SIGKILL);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(ran.err.contains("rank 1") && ran.err.contains("during ior-easy-write"), "{}", ran.err);
    assert!(ran.err.contains("signal: 9"), "{}", ran.err);
    assert_eq!(entries(&target), BTreeSet::new());
}

#[test]
fn an_interrupted_run_removes_what_it_made() {
    let place = Place::new();
    let target = place.path("target");
    let child = started(&place, &target);
    let ranks = ranks(child.id());
    kill(child.id(), libc::SIGINT);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    assert_eq!(ran.code, 6, "{}", ran.err);
    assert!(ran.err.contains("interrupted"), "{}", ran.err);
    assert_eq!(entries(&target), BTreeSet::new());
    assert!(!ranks.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()), "no rank outlives the run");
}

#[test]
fn ranks_end_with_a_coordinator_that_is_killed() {
    let place = Place::new();
    let target = place.path("target");
    let mut child = started(&place, &target);
    let ranks = ranks(child.id());
    kill(child.id(), libc::SIGKILL);
    child.wait().expect("it ends");
    let runs = |pid: u32| {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    };
    wait_until("the ranks have ended", || !ranks.iter().any(|pid| runs(*pid)));
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_is_made() {
    let place = Place::new();
    place.aze(&["bench", "io500", "--procs", "0", "--target", "."]).code(2);
    place.aze(&["bench", "io500", "--name", "v", "--target", "."]).code(2);
    let none = place.aze(&["bench", "io500", "--target", "nowhere"]).code(3);
    assert!(none.err.contains("nowhere"), "{}", none.err);
    assert_eq!(place.aze(&["bench", "io500", "--name", "nobody"]).code, 3);
}
