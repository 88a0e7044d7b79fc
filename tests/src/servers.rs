//! The servers of a volume, as its record and `aze status` tell of them.

use crate::Place;
use std::fs;

/// Their processes.
pub fn pids(place: &Place, name: &str) -> Vec<u32> {
    let text = fs::read(place.path(&format!("run/{name}/volume.json"))).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let servers = record["servers"].as_array().expect("a list");
    servers.iter().map(|server| server["process"]["pid"].as_u64().expect("a pid") as u32).collect()
}

/// Whether a process runs.
pub fn runs(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// The states of all servers, as `aze status` tells them.
pub fn states(place: &Place) -> Vec<String> {
    let told = place.aze(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{}", told.err));
    let servers = status["servers"].as_array().expect("a list");
    servers.iter().map(|server| server["state"].as_str().expect("a word").to_owned()).collect()
}
