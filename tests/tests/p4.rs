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
    let refused = place.aze(&["bench", "p4", "--figure", "1"]).code(2);
    assert!(refused.err.contains("two ways to place data"), "{}", refused.err);
    // On a volume that runs it leaves nothing.
    let name = place.up(&["--servers", "2"]);
    let text =
        place.aze(&["bench", "p4", "--figure", "8", "--openers", "2", "--repeat", "1", "--name", &name]).ok().out;
    assert!(text.contains("own files") && !text.contains("search of all files"), "{text}");
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "");
}
