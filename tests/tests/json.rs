//! What `--json` prints, held against the page that says so.

use aze_tests::{Place, Ran, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

/// The names of all fields, nested ones too, but not the keys of objects whose keys are data.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                if !["requests", "settings", "process", "program"].contains(&name.as_str()) {
                    fields(value, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

fn objects(text: &str) -> Vec<Value> {
    let read = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    let objects: Vec<Value> = text.lines().map(read).collect();
    assert!(!objects.is_empty() && objects.iter().all(Value::is_object), "{text}");
    objects
}

#[test]
fn every_field_is_on_the_page() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    place.mount();
    place.aze(&["mkdir", "aze:/d"]).ok();
    place.aze(&["cp", "/etc/os-release", "aze:/d/file"]).ok();
    place.aze(&["ln", "-s", "elsewhere", "aze:/d/link"]).ok();
    let page = fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md"))).expect("a page");
    let commands = [
        ("ls", &["aze:/d"][..]),
        ("stat", &["aze:/d", "aze:/d/file", "aze:/d/link"]),
        ("find", &["aze:/"]),
        ("du", &["aze:/"]),
        ("df", &[]),
        ("checksum", &["-r", "aze:/d"]),
        ("check", &[]),
        ("status", &[]),
        ("status", &["--watch=100ms", "--count", "2"]),
        ("version", &[]),
    ];
    for (command, args) in commands {
        let printed = place.aze(&[&[command, "--json"], args].concat()).ok().out;
        for object in objects(&printed) {
            let mut found = BTreeSet::new();
            fields(&object, &mut found);
            for field in found {
                assert!(page.contains(&format!("`{field}`")), "{command}: {field} is not on the page: {object}");
            }
            if let Some(path) = object.get("path").and_then(Value::as_str) {
                assert!(path.starts_with("aze:/"), "{command}: {path}");
            }
            for time in ["atime", "mtime", "ctime", "btime", "created"].iter().filter_map(|field| object.get(field)) {
                let time = time.as_str().expect("text");
                assert!(time.len() == 30 && time.starts_with("20") && time.ends_with('Z'), "{time}");
            }
        }
    }
    let Ran { code, out, err } = place.aze(&["stat", "--json", "aze:/none", "aze:/d"]);
    assert_eq!((code, objects(&out).len()), (1, 1));
    let error = &objects(&err)[0];
    assert_eq!((&error["command"], &error["exit"]), (&"stat".into(), &3.into()), "{error}");
    assert!(error["error"].as_str().is_some_and(|text| text.contains("aze:/none")), "{error}");
}

/// What a build tells of itself, so that people who ask for help can tell it.
#[test]
fn the_version_names_formats_features_and_build() {
    let place = Place::new();
    let told = &objects(&place.aze(&["version", "--json"]).ok().out)[0];
    let mut names: Vec<&str> = told.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    let known = ["commit", "features", "glibc", "profile", "stored_formats", "target", "version", "wire_version"];
    assert_eq!(names, known, "{told}");
    let wire = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wire.md")).expect("a page");
    assert!(wire.contains(&format!("of version {};", told["wire_version"])), "{told}");
    for (format, number) in told["stored_formats"].as_object().expect("formats") {
        assert!(number.as_u64().is_some_and(|number| number > 0), "{format}: {told}");
    }
    let features: Vec<&str> = told["features"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let all = ["shm", "unix", "tcp", "mount", "run", "storage-dir", "storage-file"];
    // The program that tests run is built beside the simulation; `make build` checks that the released program is not.
    let rest: Vec<&str> = features.into_iter().filter(|name| *name != "sabotage").collect();
    assert_eq!(rest, all);
    let text = place.aze(&["version"]).ok().out;
    assert!(text.starts_with(&format!("aze {} (wire version {}", env!("CARGO_PKG_VERSION"), told["wire_version"])));
    assert_eq!(place.aze(&["--version"]).ok().out, format!("aze {}\n", env!("CARGO_PKG_VERSION")));
}

/// A look tells what each job does, by the name that it has in a batch system.
#[test]
fn what_a_job_does_is_seen_while_it_does_it() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let watch = ["status", "--watch=1s", "--count", "1", "--json"];
    let mut watch = place.command(&watch).stdout(Stdio::piped()).spawn().expect("it starts");
    fs::write(place.path("file"), vec![7; 300_000]).expect("a file");
    while watch.try_wait().expect("it can be asked for").is_none() {
        let mut copy = place.command(&["cp", "file", "aze:/file"]);
        let copied: Ran = copy.env("SLURM_JOB_ID", "77").output().expect("it runs").into();
        copied.ok();
    }
    let output = watch.wait_with_output().expect("it has ended");
    let look = &objects(&String::from_utf8(output.stdout).expect("text"))[0];
    let jobs = look["jobs"].as_array().expect("jobs");
    let job = jobs.iter().find(|job| job["job"] == "slurm:77").unwrap_or_else(|| panic!("the job is missing: {look}"));
    assert!(job["written_bytes_per_s"].as_f64().is_some_and(|rate| rate > 100_000.0), "{look}");
    let servers = look["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 2);
    let sum: f64 = servers.iter().filter_map(|server| server["requests_per_s"].as_f64()).sum();
    assert!(sum > 1.0 && servers.iter().all(|server| server["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0)));
}

/// Programs that open a file through a mount whose kernel knows its name ask for the inode. A file that has another name by now than the one
/// with which it was made is told by its number, and how to find it.
#[test]
fn a_file_that_is_opened_through_a_mount_is_named() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let mount = place.mount();
    let dir = mount.join("a/b");
    fs::create_dir_all(&dir).expect("directories");
    let opened = |path: &Path, is_told: &dyn Fn(&serde_json::Value, &str) -> bool| {
        wait_until("the file is told", || {
            // Opens for reading of one file are answered by the mount.
            let open = |_| drop(fs::OpenOptions::new().write(true).open(path).expect("it can be opened"));
            (0..2000).for_each(open);
            let line = place.aze(&["status"]).ok().out;
            let told = objects(&place.aze(&["status", "--json"]).ok().out);
            told[0]["hot"].as_array().expect("a list").iter().any(|what| what["kind"] == "file" && is_told(what, &line))
        });
    };
    let path = dir.join("input");
    fs::write(&path, b"some").expect("written");
    opened(&path, &|what, line| what["path"] == "/a/b/input" && line.contains("opens a second are of /a/b/input"));
    // Most names are on another shard, and the inode stays where it is.
    let ino = fs::metadata(&path).expect("it is there").ino().to_string();
    let moved = dir.join("moved");
    fs::rename(&path, &moved).expect("renamed");
    let found = format!("the file with inode number {ino}; to find it: find MOUNT -inum {ino}");
    opened(&moved, &|what, line| what["ino"] == ino.as_str() && what["path"].is_null() && line.contains(&found));
}

/// What most requests are for is named within seconds, and no longer when it is over.
#[test]
fn a_directory_that_takes_most_of_the_changes_is_named() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    place.aze(&["mkdir", "-p", "aze:/a/busy"]).ok();
    let names: Vec<String> = (0..1000).map(|number| format!("aze:/a/busy/{number}")).collect();
    let all = |command| [command].into_iter().chain(names.iter().map(String::as_str)).collect::<Vec<_>>();
    let hot = || {
        let told = objects(&place.aze(&["status", "--json"]).ok().out);
        told[0]["hot"].as_array().expect("a list").clone()
    };
    assert_eq!(hot(), Vec::<serde_json::Value>::new());
    wait_until("the directory is named", || {
        place.aze(&all("touch")).ok();
        place.aze(&all("rm")).ok();
        let is_named = |what: &serde_json::Value| what["kind"] == "directory" && what["path"] == "/a/busy";
        hot().iter().any(|what| is_named(what) && what["per_s"].as_f64().is_some_and(|rate| rate >= 100.0))
    });
    wait_until("it is over", || hot().is_empty());
}
