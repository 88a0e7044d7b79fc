//! `aze bench durability` on the real program: all promises and all ways of a directory are there, memory
//! is not called durable, and nothing is left behind, also when it is interrupted. The measured values
//! are not judged.

use aze_tests::{Place, Ran, wait_until};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).expect("a directory").count()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn promises_are_measured_beside_a_directory() {
    let place = Place::new();
    for name in ["storage", "target"] {
        fs::create_dir(place.path(name)).expect("a directory");
    }
    let tiny = ["--callers", "1,3", "--time", "30ms", "--repeat", "3", "--replay", "801", "--json"];
    let mut args = vec!["bench", "durability", "--storage", "storage", "--target", "target", "--record", "results"];
    args.extend(tiny);
    let ran = place.aze(&args).ok();
    let result: Value = serde_json::from_str(&ran.out).expect("one object");
    let recorded = fs::read_to_string(place.path("results/result.json")).expect("the JSON");
    assert_eq!(serde_json::from_str::<Value>(&recorded).expect("one object"), result);

    let places = result["places"].as_array().expect("places");
    let titles: Vec<&str> = places.iter().map(|place| place["place"].as_str().expect("a title")).collect();
    assert_eq!(titles[..4], ["aze none", "aze fsync", "aze fsync, fsync", "aze close"]);
    assert_eq!((titles.len(), titles[5]), (6, format!("{}, fsync", titles[4]).as_str()));
    let through: Vec<&str> = places.iter().map(|place| place["through"].as_str().expect("a way")).collect();
    assert_eq!((through[3], through[4]), ("the client library, no mount", "the kernel"));
    let value = |title: &str, phase: &str| {
        let found = places.iter().find(|place| place["place"] == title).expect("a place");
        let phases = found["phases"].as_array().expect("phases");
        number(&phases.iter().find(|known| known["phase"] == phase).expect("a phase")["value"])
    };
    for phase in places.iter().flat_map(|place| place["phases"].as_array().expect("phases")) {
        let (value, turns) = (number(&phase["value"]), phase["turns"].as_array().expect("turns"));
        assert!((value - number(&phase["ops"]) / 1000.0 / number(&phase["seconds"])).abs() <= value * 1e-6, "{phase}");
        assert!(turns.len() == 3 && turns.contains(&phase["value"]), "the median is one of its turns: {phase}");
        assert!(number(&phase["latency_us_median"]) <= number(&phase["latency_us_p99"]), "{phase}");
    }
    // It compares places with the same promise.
    let against = result["against"].as_array().expect("ratios");
    let compared: Vec<(&str, bool)> =
        against.iter().map(|pair| (pair["place"].as_str().expect("a place"), pair["to"] == *titles[5])).collect();
    assert_eq!(compared, [("aze none", false), ("aze fsync", false), ("aze fsync, fsync", true), ("aze close", true)]);
    for pair in against {
        for (phase, ratio) in pair["ratios"].as_object().expect("ratios") {
            let (ours, theirs) = (pair["place"].as_str().expect("a place"), pair["to"].as_str().expect("a place"));
            assert!((number(ratio) - value(ours, phase) / value(theirs, phase)).abs() < 1e-9, "{pair}");
        }
    }

    let replay = &result["replay"];
    assert_eq!(replay["files"].as_u64(), Some(808), "each of the callers makes as many");
    let bytes = |start: &str, what: &str| replay[start][what].as_u64().expect("bytes");
    assert_eq!(
        bytes("journal", "checkpoint_bytes"),
        bytes("empty", "checkpoint_bytes").max(bytes("journal", "checkpoint_bytes"))
    );
    assert!(bytes("journal", "journal_bytes") > bytes("empty", "journal_bytes") + 808 * 50, "{replay}");
    assert!(bytes("checkpoint", "checkpoint_bytes") > bytes("journal", "checkpoint_bytes") + 808 * 50, "{replay}");
    assert!(bytes("checkpoint", "journal_bytes") < bytes("journal", "journal_bytes"), "{replay}");
    for known in ["version", "command"] {
        assert!(result[known].is_string(), "{known}: {result}");
    }
    let text = fs::read_to_string(place.path("results/result.txt")).expect("the text");
    assert!(text.contains("aze close") && text.contains("from a checkpoint"), "{text}");
    assert_eq!([entries(&place.path("storage")), entries(&place.path("target"))], [0, 0]);
    assert_eq!(entries(&place.path("run")), 0, "its volumes have ended");
}

#[test]
fn memory_is_not_called_durable() {
    let place = Place::new();
    let shm = Path::new("/dev/shm").join(format!("aze-test-durability-{}", std::process::id()));
    fs::create_dir(&shm).expect("a directory in memory");
    let dir = shm.display().to_string();
    let args = ["bench", "durability", "--storage", &dir, "--target", &dir, "--callers", "2", "--time", "20ms"];
    let ran = place.aze(&[&args[..], &["--repeat", "1", "--replay", "0"]].concat());
    let left = entries(&shm);
    fs::remove_dir_all(&shm).expect("it can be removed");
    let text = ran.ok().out;
    let said: Vec<&str> = text.lines().filter(|line| line.contains("durable: ")).collect();
    assert_eq!(said.len(), 6, "{text}");
    assert!(said.iter().all(|line| line.contains("durable: nothing: ") && line.contains("(tmpfs)")), "{text}");
    assert!(!text.contains("started again"), "{text}");
    assert_eq!(left, 0);
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_is_made() {
    let place = Place::new();
    let at = |more: &[&str]| place.aze(&[&["bench", "durability", "--storage", "."], more].concat());
    at(&["--callers", "0"]).code(2);
    at(&["--callers", "1025"]).code(2);
    at(&["--repeat", "0"]).code(2);
    at(&["--target", "nowhere"]).code(3);
    let none = place.aze(&["bench", "durability", "--storage", "nowhere"]).code(3);
    assert!(none.err.contains("nowhere"), "{}", none.err);
    assert_eq!(entries(&place.path("run")), 0);
    assert_eq!(entries(&place.dir), 1, "only the run directory");
}

fn interrupted(mut child: Child) -> Ran {
    aze_tests::signal(child.id(), libc::SIGTERM);
    wait_until("it has ended", || !matches!(child.try_wait(), Ok(None)));
    child.wait_with_output().expect("it ends").into()
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let place = Place::new();
    for name in ["storage", "target"] {
        fs::create_dir(place.path(name)).expect("a directory");
    }
    let args = ["bench", "durability", "--storage", "storage", "--target", "target", "--time", "100"];
    let start =
        |args: &[&str]| place.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("aze starts");
    let child = start(&args);
    wait_until("callers work", || entries(&place.path("run")) == 3 && entries(&place.path("target")) == 1);
    let ran = interrupted(child).code(6);
    assert!(ran.err.contains("interrupted"), "{}", ran.err);
    assert_eq!([entries(&place.path("storage")), entries(&place.path("target"))], [0, 0]);
    assert_eq!(entries(&place.path("run")), 0);

    let child = start(&["bench", "p4", "--repeat", "1000"]);
    wait_until("its volume runs", || entries(&place.path("run")) == 1);
    let ran = interrupted(child).code(6);
    assert!(ran.err.contains("interrupted"), "{}", ran.err);
    assert_eq!(entries(&place.path("run")), 0);
}
