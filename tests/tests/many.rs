//! `aze bench many` on the real program: every step of both layouts is there, kept and drawn, and its
//! volumes are gone afterwards. The measured values are not judged.

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
