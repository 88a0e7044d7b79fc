//! `aze mkdir --private`: files made below are on one server, for commands and through a mount.

use aze_tests::{Place, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

#[test]
fn all_below_a_private_directory_is_on_one_server() {
    let mut place = Place::new();
    place.up(&["--servers", "4"]);
    let mount = place.mount();
    place.aze(&["mkdir", "-p", "--private", "aze:/runs/own"]).ok();
    place.aze(&["mkdir", "aze:/runs/spread"]).ok();
    let servers = |dir: &str| {
        let top = mount.join("runs").join(dir);
        for inner in 0..8 {
            let inner = top.join(format!("d{inner}/deep"));
            fs::create_dir_all(&inner).expect("directories");
            fs::write(inner.join("file"), vec![5; 3 << 20]).expect("a file of three chunks");
        }
        let found = place.aze(&["find", &format!("aze:/runs/{dir}")]).ok().out;
        let paths: Vec<&str> = found.lines().collect();
        assert_eq!(paths.len(), 1 + 8 * 3);
        let shown = place.aze(&[&["stat", "--json"][..], &paths].concat()).ok().out;
        let shown: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(shown.len(), paths.len());
        let mut servers = BTreeSet::new();
        for one in &shown {
            servers.insert(one["home_server"].as_u64().expect("a server"));
            let chunks = one["placement"].as_array().into_iter().flatten();
            servers.extend(chunks.map(|part| part["server"].as_u64().expect("a server")));
            if one["kind"] == "directory" {
                assert_eq!(one["private"], dir == "own", "{one}");
            }
        }
        servers.len()
    };
    assert_eq!((servers("own"), servers("spread")), (1, 4));
    let text = place.aze(&["stat", "aze:/runs/own"]).ok().out;
    assert!(text.contains("kind: private directory"), "{text}");
    // One that exists will do if it is private, and else is named.
    place.aze(&["mkdir", "-p", "--private", "aze:/runs/own"]).ok();
    let there = place.aze(&["mkdir", "-p", "--private", "aze:/runs/spread"]);
    assert!(there.code == 5 && there.err.contains("not a private one"), "{} {}", there.code, there.err);
    place.aze(&["rm", "-r", "aze:/runs"]).ok();
}

/// `aze bench iops --private` measures both kinds of directories in one run.
#[test]
fn private_directories_are_measured_beside_ordinary_ones() {
    let place = Place::new();
    place.up(&["--servers", "3"]);
    let words = ["--private", "--threads", "1", "--files", "20000", "--bytes", "1M", "--repeat", "1", "--json"];
    let mut command = place.command(&[&["bench", "iops"][..], &words].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("aze starts");
    let dir = format!("aze:/bench-{}-0-0", child.id());
    // The one after the other has this name.
    for kind in ["\"private\":false", "\"private\":true"] {
        wait_until(kind, || place.aze(&["stat", "--json", &dir]).out.contains(kind));
    }
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let told: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let titles: Vec<&str> =
        told["places"].as_array().expect("places").iter().filter_map(|at| at["place"].as_str()).collect();
    assert_eq!(titles, ["aze, no mount", "aze, private"]);
    let ratios = told["private_ratios"].as_object().expect("ratios");
    assert_eq!(ratios.len(), 5, "{told}");
    for (phase, ratio) in ratios {
        assert!(ratio.as_f64().is_some_and(|ratio| ratio > 0.0), "{phase}: {ratio}");
    }
}
