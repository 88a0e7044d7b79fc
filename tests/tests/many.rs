//! `aze bench many`, `clients`, `train` and `stage` on the real program: every step of both layouts, and every place, is there and kept, and
//! their volumes and files are gone afterwards. The measured values are not judged.

use aze_tests::Place;
use serde_json::Value;
use std::fs;

#[test]
fn names_are_measured_as_they_become_many() {
    let place = Place::new();
    let ran = place.aze(&["bench", "many", "--files", "6400", "--probes", "50", "--record", "result", "--json"]).ok();
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let layouts = result["layouts"].as_array().expect("layouts");
    assert_eq!(layouts.len(), 2);
    for layout in layouts {
        let steps = layout["steps"].as_array().expect("steps");
        let files: Vec<u64> = steps.iter().filter_map(|step| step["files"].as_u64()).collect();
        assert_eq!(files, [100, 200, 400, 800, 1600, 3200, 6400]);
        let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
        for (step, name) in steps.iter().flat_map(|step| {
            ["creates_per_s", "stat_us_median", "create_us_median", "remove_us_median", "found_per_s"]
                .map(|name| (step, name))
        }) {
            assert!(positive(&step[name]), "{name}: {step}");
        }
        assert!(["stat", "create", "remove"].iter().all(|name| positive(&layout["last_to_first"][name])), "{layout}");
    }
    let tables = fs::read_to_string(place.path("result/result.txt")).expect("tables");
    assert_eq!(tables.matches("last to first: stat ").count(), 2, "{tables}");
    let picture = fs::read_to_string(place.path("result/operations.svg")).expect("a picture");
    assert_eq!(picture.matches("<polyline").count(), 6, "three operations, both layouts");
    assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0, "its volumes have ended");
    place.aze(&["bench", "many", "--files", "63"]).code(2);
}

#[test]
fn clients_are_counted_and_an_idle_one_asks_nothing() {
    let place = Place::new();
    let few = ["--clients", "21", "--procs", "2", "--servers", "3", "--idle", "1s"];
    let ran = place.aze(&[&["bench", "clients"], &few[..], &["--record", "result", "--json"]].concat()).ok();
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let looks = result["looks"].as_array().expect("looks");
    assert_eq!(looks.len(), 4);
    let number = |look: &Value, name: &str| look[name].as_u64().unwrap_or_else(|| panic!("{name}: {look}"));
    // Each client has asked three servers; so have these each other, and the bench itself.
    for (look, opens) in looks.iter().zip([0, 21, 0, 0]) {
        assert!((63..=75).contains(&number(look, "sessions")), "{look}");
        assert!(number(look, "connections") >= 63, "{look}");
        assert_eq!(number(look, "opens"), opens, "{look}");
    }
    assert_eq!(result["idle_requests"], 0, "{result}");
    let text = fs::read_to_string(place.path("result/result.txt")).expect("a table");
    assert!(text.contains("21 clients of 3 servers, by tcp, held by 2 processes"), "{text}");
    assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0, "its volume has ended");
    place.aze(&["bench", "clients", "--clients", "0"]).code(2);
}

#[test]
fn training_is_measured_beside_directories() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    fs::create_dir(place.path("disk")).expect("a directory");
    let quick = ["--short", "--files", "200", "--time", "600ms", "--checkpoint-every", "200ms", "--repeat", "2"];
    let against =
        ["--checkpoint-bytes", "1M", "--against", "disk", "--against", "/dev/shm", "--record", "result", "--json"];
    let ran = place.aze(&[&["bench", "train"], &quick[..], &against[..]].concat()).ok();
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let places = result["places"].as_array().expect("places");
    assert_eq!(places.len(), 3);
    assert_eq!(places[2]["place"], "tmpfs");
    for measured in places {
        for name in ["samples_per_s", "bytes_per_s", "checkpoint_s_median", "ratio"] {
            assert!(measured[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {measured}");
        }
        // At most after 100, 300 and 500 ms of both turns, and one after the other if they are slow.
        let checkpoints = measured["checkpoints"].as_u64().expect("a number");
        assert!((2..=6).contains(&checkpoints), "{measured}");
        assert_eq!(measured["turns"].as_array().map(Vec::len), Some(2));
    }
    assert_eq!(places[0]["ratio"], 1.0);
    let table = fs::read_to_string(place.path("result/result.txt")).expect("a table");
    assert!(table.contains("volume / this") && table.lines().count() >= 10, "{table}");
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "", "its files are gone");
    assert_eq!(fs::read_dir(place.path("disk")).expect("the directory").count(), 0);
    for wrong in [["--bytes", "31"], ["--files", "3"], ["--time", "0s"], ["--checkpoint-bytes", "0"], ["--files", "0"]]
    {
        place.aze(&[&["bench", "train"], &wrong[..]].concat()).code(2);
    }
}

#[test]
fn staging_is_measured_beside_cp() {
    let place = Place::new();
    fs::create_dir(place.path("disk")).expect("a directory");
    let quick = ["--target", "disk", "--sparse", "64M", "--data", "3M", "--jobs", "4", "--repeat", "2", "--json"];
    for (side, more) in [("mount", ["--files", "40", "--record", "result"].as_slice()), ("dir", &["--files", "0"])] {
        let words = [&["bench", "stage", "--cp", side], &quick[..], more].concat();
        let result: Value = serde_json::from_str(&place.aze(&words).ok().out).expect("one object");
        assert_eq!(result["cp"], side);
        let rows = result["rows"].as_array().expect("rows");
        let told: Vec<[&str; 2]> =
            rows.iter().map(|row| ["work", "direction"].map(|name| row[name].as_str().expect("a word"))).collect();
        let all = [["files", "out"], ["files", "in"], ["sparse", "out"], ["sparse", "in"]];
        assert_eq!(told, if side == "mount" { &all[..] } else { &all[2..] }, "{result}");
        for row in rows {
            let turns = row["turns"].as_array().expect("turns");
            assert_eq!(turns.len(), 2, "{row}");
            for turn in turns {
                let [cp, proven, stage] =
                    ["cp_s", "cp_proven_s", "stage_s"].map(|name| turn[name].as_f64().expect("a number"));
                assert!(0.0 < cp && cp < proven && 0.0 < stage, "{turn}");
            }
            for name in ["cp_s", "cp_proven_s", "stage_s", "ratio_to_cp", "ratio_to_cp_proven"] {
                let [lowest, median, highest] =
                    ["lowest", "median", "highest"].map(|which| row[name][which].as_f64().expect("a number"));
                assert!(0.0 < lowest && lowest <= median && median <= highest, "{name}: {row}");
            }
        }
        assert_eq!(fs::read_dir(place.path("disk")).expect("the directory").count(), 0, "its files are gone");
        assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0, "its volume has ended");
    }
    let table = fs::read_to_string(place.path("result/result.txt")).expect("a table");
    assert!(table.contains("40 files of 4.00 KiB, out") && table.contains("cp proven / stage"), "{table}");
    for wrong in [
        &["--files", "0", "--sparse", "0"][..],
        &["--bytes", "0"],
        &["--data", "0"],
        &["--data", "2M", "--sparse", "1M"],
    ] {
        place.aze(&[&["bench", "stage", "--target", "disk"], wrong].concat()).code(2);
    }
}
