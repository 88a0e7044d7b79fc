//! `aze bench p4` on the real program: every point of both figures is there, kept and drawn, and its
//! volumes are gone afterwards. The measured values are not judged.

use aze_tests::Place;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

#[test]
fn bandwidth_by_transfer_size_is_measured_and_drawn() {
    let place = Place::new();
    let ran = place.aze(&["bench", "p4", "--bytes", "16M", "--repeat", "1", "--record", "result", "--json"]).ok();
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let points = result["points"].as_array().expect("points");
    let text = |point: &Value, name: &str| point[name].to_string();
    let mut seen = BTreeSet::new();
    for point in points {
        assert!(point["mib_per_s"].as_f64().is_some_and(|value| value > 0.0), "{point}");
        let what =
            ["transport", "direction", "chunk_bytes", "under_way", "transfer_bytes"].map(|name| text(point, name));
        assert!(seen.insert(what), "once each: {point}");
    }
    // Two transports, two chunk sizes, one or all under way, write and read, 64K to 16M.
    assert_eq!(points.len(), 2 * 2 * 2 * 2 * 9);
    let transports: BTreeSet<String> = points.iter().map(|point| text(point, "transport")).collect();
    assert!(transports.len() == 2 && transports.contains("\"tcp\""), "{transports:?}");
    let tables = fs::read_to_string(place.path("result/result.txt")).expect("tables");
    assert_eq!(tables.matches("MiB/s by bytes of a transfer").count(), 4, "{tables}");
    for name in ["write-tcp.svg", "read-tcp.svg"] {
        let picture = fs::read_to_string(place.path("result").join(name)).expect("a picture");
        assert_eq!(picture.matches("<polyline").count(), 4, "two chunk sizes, both ways");
    }
    assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0, "its volumes have ended");
}

#[test]
fn one_figure_on_a_running_volume() {
    let place = Place::new();
    let name = place.up(&["--servers", "2"]);
    let args = ["bench", "p4", "--figure", "6", "--chunks", "1M", "--bytes", "16M", "--repeat", "1", "--name", &name];
    let text = place.aze(&args).ok().out;
    assert!(text.contains("1M chunks, all at once") && !text.contains("one at a time"), "{text}");
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "");
    place.aze(&["bench", "p4", "--chunks", "100K"]).code(2);
    place.aze(&["bench", "p4", "--figure", "7"]).code(2);
}

#[test]
fn searches_and_opens_by_number_of_servers() {
    let place = Place::new();
    let args =
        ["--servers", "1,2", "--files", "1500", "--openers", "1,3", "--repeat", "1", "--record", "result", "--json"];
    let ran = place.aze(&[&["bench", "p4", "--figure", "3,8"], &args[..]].concat()).ok();
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let by_servers = &result["by_servers"];
    let rows = |name: &str| by_servers[name].as_array().expect("rows").clone();
    let of = |row: &Value, names: &[&str]| names.iter().map(|name| row[name].to_string()).collect::<Vec<_>>().join(" ");
    let finds: Vec<String> = rows("find").iter().map(|row| of(row, &["servers", "files"])).collect();
    assert_eq!(finds, ["1 1500", "2 1500"]);
    let opens: Vec<String> = rows("open").iter().map(|row| of(row, &["servers", "openers", "files"])).collect();
    let expected = ["1 1 \"one\"", "1 1 \"own\"", "1 3 \"one\"", "1 3 \"own\""];
    assert_eq!(opens[..4], expected);
    assert_eq!(opens.len(), 8);
    for row in rows("find").iter().chain(&rows("open")) {
        assert!(row["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{row}");
    }
    assert_eq!(result["points"].as_array().map(Vec::len), Some(0), "no transfer was asked for");
    for (name, curves) in [("find.svg", 1), ("open.svg", 4)] {
        let picture = fs::read_to_string(place.path("result").join(name)).expect("a picture");
        assert_eq!(picture.matches("<polyline").count(), curves, "{name}");
    }
    assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0, "its volumes have ended");
    // On a volume that runs it leaves nothing.
    let name = place.up(&["--servers", "2"]);
    let text =
        place.aze(&["bench", "p4", "--figure", "8", "--openers", "2", "--repeat", "1", "--name", &name]).ok().out;
    assert!(text.contains("own files") && !text.contains("search of all files"), "{text}");
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "");
}

#[test]
fn two_placements_are_compared_in_turns() {
    let place = Place::new();
    let args =
        ["--servers", "2,4", "--procs", "1", "--stonewall", "50ms", "--repeat", "2", "--record", "result", "--json"];
    let ran = place.aze(&[&["bench", "p4", "--figure", "1,2"], &args[..]].concat()).ok();
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let rows = result["by_placement"]["rows"].as_array().expect("rows");
    let of = |row: &Value| format!("{} {}", row["servers"], row["placement"]);
    let expected = ["2 \"modular\"", "2 \"ring\"", "4 \"modular\"", "4 \"ring\""];
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected);
    for row in rows {
        let turns = row["turns"].as_array().expect("turns");
        assert_eq!(turns.len(), 2, "{row}");
        for (turn, name) in turns
            .iter()
            .flat_map(|turn| ["bandwidth_gib_s", "ior_hard_gib_s", "iops_k", "busiest_server"].map(|name| (turn, name)))
        {
            assert!(turn[name].as_f64().is_some_and(|value| value > 0.0), "{name} of {row}");
        }
        let most = row["most_slots"].as_f64().expect("a number");
        let is_ring = row["placement"] == "ring";
        assert!(if is_ring { most > 1.0 } else { most == 1.0 }, "a ring of few slots is uneven: {row}");
    }
    for name in ["placement-bandwidth.svg", "placement-metadata.svg"] {
        let picture = fs::read_to_string(place.path("result").join(name)).expect("a picture");
        assert_eq!(picture.matches("<polyline").count(), 2, "{name}");
    }
    assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0, "its volumes have ended");
    let refused = place.aze(&["bench", "p4", "--figure", "1", "--name", "some"]).code(2);
    assert!(refused.err.contains("leave --name out"), "{}", refused.err);
}

#[test]
fn more_nodes_than_are_at_hand_are_simulated() {
    let place = Place::new();
    let words = ["bench", "p4", "--simulate", "--repeat", "1", "--json"];
    let ran =
        place.aze(&[&words[..], &["--nodes", "2,4", "--figure", "1,2,3,5,6,8", "--record", "first"]].concat()).ok();
    let first: Value = serde_json::from_str(&ran.out).expect("one object");
    let simulated = &first["simulated"];
    assert_eq!(simulated["what"], "simulated: real code, modelled network, measured server times");
    assert!(first["points"].is_null(), "nothing among measured figures");
    let rows = |result: &Value| result["simulated"]["rows"].as_array().expect("rows").clone();
    let of = |row: &Value| format!("{} {} {}", row["nodes"], row["placement"], row["phase"]);
    let seen: BTreeSet<String> = rows(&first).iter().map(of).collect();
    // Four phases of data, six of names, a search, five sizes, both directions, both ways, and two of opens; of a ring data and names.
    assert_eq!((seen.len(), rows(&first).len()), (2 * (4 + 6 + 1 + 20 + 2 + 10), 2 * (4 + 6 + 1 + 20 + 2 + 10)));
    // Of each process its names and its data, and two files of all.
    let searched = rows(&first).into_iter().filter(|row| row["phase"] == "search").map(|row| row["amount"].as_u64());
    assert_eq!(searched.collect::<Vec<_>>(), [2, 4].map(|nodes| Some(nodes * 4 * (8 + 1) + 2)));
    for row in rows(&first) {
        assert!(row["rate"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
    let times = &simulated["times"];
    for request in ["Create", "Unlink", "Write", "Read"] {
        assert!(times["requests"][request]["ns"].as_u64().is_some_and(|ns| ns > 0), "{request}: {times}");
    }
    let check = simulated["check"].as_array().expect("measured beside simulated");
    assert_eq!(check.len(), 3 * (4 + 6 + 1), "1, 2 and 4 servers");
    for row in check {
        let (ratio, off) = (row["ratio"].as_f64().expect("a number"), row["off"].as_bool().expect("told"));
        assert_eq!(off, !(1.0 / 1.5..=1.5).contains(&ratio), "{row}");
    }
    let pictures = [
        ("bandwidth", 2),
        ("one-file", 2),
        ("names", 2),
        ("search", 1),
        ("placement", 3 + 6),
        ("open", 2 + 3),
        ("write", 4),
        ("read", 4),
    ];
    for (name, curves) in pictures {
        let picture = fs::read_to_string(place.path("first").join(format!("simulated-{name}.svg"))).expect("a picture");
        assert_eq!(picture.matches("<polyline").count(), curves, "{name}");
        assert!(picture.contains("(simulated)"), "{name}");
    }
    let tables = fs::read_to_string(place.path("first/result.txt")).expect("tables");
    assert!(tables.starts_with("simulated: ") && tables.contains("the paper (CHFS"), "{tables}");
    assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0, "its volumes have ended");
    // The same times and seed: the same figures, without any server.
    let again = ["--nodes", "2,4", "--figure", "1,2,3,5,6,8", "--times", "first/result.json"];
    let ran = place.aze(&[&words[..], &again].concat()).ok();
    let second: Value = serde_json::from_str(&ran.out).expect("one object");
    assert_eq!(rows(&first), rows(&second));
    assert!(second["simulated"]["check"].is_null(), "nothing was measured");
    for ignored in [["--servers", "2"], ["--name", "some"]] {
        place.aze(&[&["bench", "p4", "--simulate"], &ignored[..]].concat()).code(2);
    }
    place.aze(&["bench", "p4", "--nodes", "16"]).code(2);
}
