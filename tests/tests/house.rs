//! The house: which crate may use which, that programs called by tests and scripts come from
//! packages that are installed, and a few facts about the tree that a tired eye misses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The arrows between rooms, read from the table of ARCHITECTURE.md, the only place where they stand:
/// each room and the rooms that it may use. A new arrow is a decision: see docs/decisions.
fn arrows() -> BTreeMap<String, Vec<String>> {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page of the architecture");
    let mut arrows = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &["", room, _, may_use, ""] = cells.as_slice() else { continue };
        let Some(room) = room.split('`').nth(1) else { continue };
        let used = may_use.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(arrows.insert(room.to_owned(), used).is_none(), "ARCHITECTURE.md names {room} twice");
    }
    assert!(arrows.len() > 10, "the table of ARCHITECTURE.md has {} rows", arrows.len());
    let folders = std::fs::read_dir(root().join("crates")).expect("the folder of rooms");
    let rooms: BTreeSet<String> =
        folders.map(|folder| folder.expect("a folder").file_name().into_string().expect("a name in UTF-8")).collect();
    assert_eq!(arrows.keys().cloned().collect::<BTreeSet<_>>(), rooms, "the table of ARCHITECTURE.md names every room");
    arrows
}

/// Rooms in which nothing may come from the world but through `io`.
const PURE_ROOMS: &[&str] = &["proto", "rpc", "meta", "store", "server", "client"];

/// What those rooms must not name: the clock, threads, sockets, files, the environment, random state.
const WORLDLY: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "std::thread",
    "thread::spawn",
    "std::net",
    "std::fs",
    "std::env",
    "std::process",
    "HashMap",
    "HashSet",
    "libc::",
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn sources(room: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates").join(room).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a room has sources") {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source is text");
                found.push((path.display().to_string(), text));
            }
        }
    }
    found
}

/// The text without its unit tests, which may use what they like.
fn production(text: &str) -> &str {
    text.split("\n#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn rooms_use_only_what_the_arrows_allow() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let allowed = arrows();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        let room = name.strip_prefix("aze-").unwrap_or(name);
        let used = package["dependencies"].as_array().expect("dependencies");
        let used = used.iter().filter(|dependency| dependency["kind"].is_null());
        let ours = used.filter_map(|dependency| dependency["name"].as_str()?.strip_prefix("aze-"));
        for other in ours {
            let may_use = allowed.get(room).is_some_and(|used| used.iter().any(|used| used == other));
            assert!(may_use, "{room} uses {other}: the table of ARCHITECTURE.md has no such arrow");
        }
        seen.insert(room.to_owned());
    }
    assert!(allowed.keys().all(|room| seen.contains(room)), "the table names a room that is no package");
}

#[test]
fn the_world_enters_only_through_io() {
    for room in PURE_ROOMS {
        for (path, text) in sources(room) {
            for (number, line) in production(&text).lines().enumerate() {
                let code = line.split("//").next().unwrap_or("");
                for word in WORLDLY {
                    assert!(!code.contains(word), "{path}:{}: {word} does not belong into room {room}", number + 1);
                }
            }
        }
    }
}

/// Files that ask for the date: it decides the times of files and texts for people, and nothing else. All
/// durations are measured on a clock that cannot be set.
const ASK_FOR_THE_DATE: &[(&str, &str)] = &[
    ("server/src/clock.rs", "times of files"),
    ("fuse/src/door.rs", "times of directories that are removed"),
    ("fuse/src/journal.rs", "lines of a mount's log"),
    ("cli/src/up.rs", "when a volume was started, for people"),
    ("cli/src/doctor.rs", "how far clocks of nodes are apart, for people"),
    ("cli/src/find.rs", "ages, as find(1) counts them"),
    ("cli/src/when.rs", "the name of a receipt; how long a job has left whose end its batch system tells as a date"),
    ("bench/src/record.rs", "the name of a record"),
    ("bench/src/io500.rs", "the name of a record"),
    ("io/src/lib.rs", "the interface"),
    ("io/src/real.rs", "the clock itself"),
    ("io/src/threads.rs", "when lines of a receipt were true, for people"),
    ("io/src/sim/node.rs", "the simulated clock"),
    ("io/src/sim/state.rs", "the simulated clock"),
];

#[test]
fn the_date_decides_only_what_people_read() {
    let mut found = BTreeSet::new();
    for room in arrows().keys().filter(|room| *room != "sim") {
        for (path, text) in sources(room) {
            let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
            let words = ["wall_ns(", "SystemTime::now", "CLOCK_REALTIME", "libc::time("];
            if code.into_iter().any(|code| words.iter().any(|word| code.contains(word))) {
                let crates = root().join("crates");
                found.insert(path.strip_prefix(&format!("{}/", crates.display())).unwrap_or(&path).to_owned());
            }
        }
    }
    let known: BTreeSet<String> = ASK_FOR_THE_DATE.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(found, known, "a clock that is set by people, or by other machines, must not decide anything");
}

/// Rooms that call the system by themselves.
const MAY_BE_UNSAFE: &[&str] = &["io", "fuse", "cli", "cabi", "capi", "chfs", "agent", "python", "intercept"];

#[test]
fn unsafe_code_stays_in_io_and_the_doors() {
    for room in arrows().keys().filter(|room| !MAY_BE_UNSAFE.contains(&room.as_str())) {
        for (path, text) in sources(room) {
            let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
            assert!(!code.into_iter().any(|code| code.contains("unsafe ")), "{path} has unsafe code");
        }
    }
}

/// Files with functions that C calls, and how each catches a panic, which must not end a program that has loaded a library
/// of ours: see docs/decisions/0073-libraries-unwind.md.
const CALLED_BY_C: &[(&str, &str)] = &[
    ("capi/src/lib.rs", "aze_cabi::catch; aze_version gives a constant"),
    ("capi/src/volumes.rs", "aze_cabi::catch"),
    ("capi/src/files.rs", "aze_cabi::catch"),
    ("capi/src/names.rs", "aze_cabi::catch"),
    ("capi/src/dirs.rs", "aze_cabi::catch"),
    ("capi/src/queues.rs", "aze_cabi::catch"),
    ("chfs/src/connection.rs", "aze_cabi::catch; settings without effect have no body, chfs_version gives a constant"),
    ("chfs/src/files.rs", "aze_cabi::catch"),
    ("chfs/src/names.rs", "aze_cabi::catch"),
    ("chfs/src/stagein.rs", "aze_cabi::catch"),
    ("intercept/src/dispatch.rs", "release builds: defects.rs makes EIO of it; others end the program"),
    ("intercept/src/entry.rs", "instructions only, which do not panic"),
    ("intercept/src/lib.rs", "called once, by the loader: as of dispatch.rs"),
    ("intercept/src/refused.rs", "makes a system call or gives a constant, which does not panic"),
    ("intercept/src/symbols.rs", "called by dl_iterate_phdr: reads tables and stores words, which does not panic"),
    ("intercept/src/symbols/entry.rs", "as of dispatch.rs"),
    ("intercept/src/symbols/stdio.rs", "as of symbols.rs"),
    ("io/src/real/sys.rs", "a thread of tests: catch_unwind"),
];

/// The function that a line begins to define, if C can call it.
fn foreign_entry(line: &str) -> Option<&str> {
    let code = line.split("//").next().unwrap_or("");
    let (before, after) = code.split_once("extern ")?;
    let (abi, function) = after.split_once("fn ")?;
    let is_abi = abi.is_empty() || abi.starts_with('"') && abi.ends_with("\" ");
    let is_word = before.is_empty() || before.ends_with(' ');
    let name = function.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (is_abi && is_word && !name.is_empty()).then_some(name)
}

#[test]
fn functions_that_c_calls_catch_panics() {
    assert_eq!(foreign_entry(r#"pub unsafe extern "C" fn aze_open(path: *const c_char) -> i32 {"#), Some("aze_open"));
    assert_eq!(foreign_entry("extern fn on_signal(number: i32) {"), Some("on_signal"));
    assert_eq!(foreign_entry(r#"    handler: extern "C" fn(i32),"#), None);
    assert_eq!(foreign_entry(r#"unsafe extern "C" { fn getpid() -> i32; }"#), None);
    let mut found = BTreeSet::new();
    for room in arrows().keys() {
        for (path, text) in sources(room) {
            if text.lines().any(|line| foreign_entry(line).is_some()) {
                let crates = root().join("crates");
                found.insert(path.strip_prefix(&format!("{}/", crates.display())).unwrap_or(&path).to_owned());
            }
        }
    }
    let known: BTreeSet<String> = CALLED_BY_C.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(found, known, "what C calls must catch panics, and be listed here with how it does");
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    for room in arrows().keys() {
        for (path, text) in sources(room) {
            assert!(text.starts_with("//!"), "{path} does not say what it is for");
        }
    }
}

#[test]
fn files_are_rooms_not_halls() {
    for room in arrows().keys() {
        for (path, text) in sources(room) {
            assert!(text.lines().count() <= 1000, "{path} has more than 1,000 lines");
        }
    }
}

/// Files of the server that are in no folder for state, but make up state all the same: they span the parts.
const STATE_OF_ALL_PARTS: &[&str] =
    &["clock.rs", "counters.rs", "sabotage.rs", "shards.rs", "shards/logged.rs", "wait.rs"];

/// The paths of a `use` or of a part of it, without braces.
fn paths_of(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let inside = inside.trim_end().strip_suffix('}').expect("braces are closed");
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in inside.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is a part").push(letter);
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| paths_of(part)).map(|path| format!("{}{path}", before.trim())).collect()
}

/// The paths that a file names: those of its `use`s, and those in the middle of its code.
fn paths_in(code: &str) -> Vec<String> {
    let words = ["crate::", "super::", "use "];
    let starts = words.iter().flat_map(|word| code.match_indices(word)).map(|(at, _)| at);
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    // The middle of a word, of a path or of a `use` is no beginning, nor is the module in which something is visible.
    let starts = starts.filter(|at| {
        !code[..*at].ends_with(is_part) && !["::", "use ", "pub(in "].iter().any(|end| code[..*at].ends_with(end))
    });
    let all = starts.flat_map(|at| match code[at..].strip_prefix("use ") {
        Some(tree) => paths_of(tree.split(';').next().unwrap_or(tree)),
        None => vec![code[at..].split(|letter| !is_part(letter) && letter != ':').next().unwrap_or("").to_owned()],
    });
    all.collect()
}

/// The file of the server that a path in `file` leads to; `None` for those of other crates.
fn file_of(path: &str, file: &str, files: &BTreeMap<String, String>) -> Option<String> {
    let own = file.strip_suffix(".rs").unwrap_or(file);
    let mut module: Vec<&str> = if own == "lib" { Vec::new() } else { own.split('/').collect() };
    let steps: Vec<&str> = path.split("::").filter(|step| !step.is_empty()).collect();
    let is_file = |module: &[&str]| files.contains_key(&(module.join("/") + ".rs"));
    let ups = steps.iter().take_while(|step| **step == "super").count();
    match *steps.first()? {
        "crate" => module = steps[1..].to_vec(),
        "self" => module.extend(&steps[1..]),
        "super" => {
            module.truncate(module.len() - ups);
            module.extend(&steps[ups..]);
        }
        first => {
            module.push(first);
            if !is_file(&module) {
                return None;
            }
            module.extend(&steps[1..]);
        }
    }
    while !module.is_empty() && !is_file(&module) {
        module.pop();
    }
    Some(if module.is_empty() { "lib.rs".to_owned() } else { module.join("/") + ".rs" })
}

/// The state of a server's parts is below the server, and the handlers of requests are above it: no arrow runs back up.
#[test]
fn state_of_the_servers_parts_does_not_know_the_server() {
    let folder = root().join("crates/server/src");
    let strip = |path: &str| path.strip_prefix(&format!("{}/", folder.display())).expect("it is there").to_owned();
    let code = |text: &str| -> String {
        production(text).lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect()
    };
    let files: BTreeMap<String, String> =
        sources("server").iter().map(|(path, text)| (strip(path), code(text))).collect();
    let uses = |file: &String| -> BTreeSet<String> {
        paths_in(&files[file]).iter().filter_map(|path| file_of(path, file, &files)).collect()
    };
    let mut reached: BTreeSet<String> = files.keys().filter(|file| file.contains("/state/")).cloned().collect();
    let mut to_look: Vec<String> = reached.iter().cloned().chain(["state.rs".to_owned()]).collect();
    let mut arrows = 0;
    while let Some(file) = to_look.pop() {
        for used in uses(&file) {
            // So it is neither the server itself nor what a request does.
            let is_state = used.contains("/state/") || STATE_OF_ALL_PARTS.contains(&used.as_str());
            assert!(is_state, "server/src/{file} keeps state and uses server/src/{used}, which is above it");
            arrows += 1;
            if reached.insert(used.clone()) {
                to_look.push(used);
            }
        }
    }
    assert!(reached.len() > 25 && arrows > 40, "{arrows} arrows between {} files: {reached:?}", reached.len());
    for known in STATE_OF_ALL_PARTS.iter().chain(&["names/state/directories.rs", "persistence/state/record.rs"]) {
        assert!(reached.contains(*known), "{known} is not reached from server/src/state.rs");
    }
}

/// Words that stand for no thing: a comment with one of them most often hides who does what.
const VAGUE: &[&str] = &[
    "whoever",
    "whomever",
    "nobody",
    "somebody",
    "what is",
    "what was",
    "what has",
    "what had",
    "what there is",
    "what it",
    "of which",
    "whatever",
];

/// Comments name who does what to which thing: at most so many of a thousand lines of a room may be vague.
const VAGUE_OF_THOUSAND_MAX: usize = 10;

#[test]
fn comments_name_who_does_what() {
    let comments = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
        lines.map(str::to_lowercase).collect()
    };
    let is_vague = |line: &String| {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let line = format!(" {} ", words.join(" "));
        VAGUE.iter().any(|vague| line.contains(&format!(" {vague} ")))
    };
    assert!(is_vague(&"/// Whoever reads it, waits.".to_lowercase()) && !is_vague(&"// Somehow.".to_owned()));
    for room in arrows().keys() {
        let lines: Vec<String> = sources(room).iter().flat_map(|(_, text)| comments(text)).collect();
        assert!(lines.len() > 15, "{room} has {} lines of comments", lines.len());
        let vague: Vec<&String> = lines.iter().filter(|line| is_vague(line)).collect();
        let most = lines.len() * VAGUE_OF_THOUSAND_MAX / 1000;
        assert!(vague.len() <= most, "{room}: {} of {} lines: {vague:#?}", vague.len(), lines.len());
    }
}

/// Programs that scripts and tests may call without a package: part of every Debian base system,
/// of bash, or built here.
const IN_THE_BASE: &[&str] = &["bash", "sh", "apt-get", "cargo", "aze", "awk", "sed", "grep"];

#[test]
fn every_program_that_tests_call_comes_from_a_listed_package() {
    let list = std::fs::read_to_string(root().join("packages.list")).expect("the list of packages");
    let listed: BTreeSet<&str> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(_, programs)| programs.split_whitespace())
        .chain(IN_THE_BASE.iter().copied())
        .collect();
    let folder = root().join("tests/tests");
    for entry in std::fs::read_dir(folder).expect("tests") {
        let path = entry.expect("a folder can be read").path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (_, after) in text.match_indices("Command::new(\"").map(|(at, start)| text.split_at(at + start.len())) {
            let program = after.split('"').next().unwrap_or("");
            assert!(
                listed.contains(program),
                "{} calls {program}, which no package of packages.list provides",
                path.display()
            );
        }
    }
}

#[test]
fn no_path_of_a_machine_and_no_unfinished_code_is_in_the_tree() {
    let listing = Command::new("git").args(["ls-files"]).current_dir(root()).output().expect("git runs");
    // Put together here, so that this file does not contain the words.
    let words =
        [["/wo", "rk/"].concat(), ["todo", "!("].concat(), ["unimplemented", "!("].concat(), ["#[ign", "ore"].concat()];
    for path in String::from_utf8(listing.stdout).expect("paths are text").lines() {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        for word in &words {
            assert!(!text.contains(word.as_str()), "{path} contains {word}");
        }
    }
}

/// Where a decision's page says whether it still holds, and what the index says of it.
fn statuses(text: &str) -> Option<String> {
    let status = text.lines().nth(2)?.strip_prefix("**Status.** ")?.strip_suffix('.')?;
    // The index names other decisions by number only: without the targets of the links.
    let mut plain = String::new();
    let mut rest = status;
    while let Some((before, after)) = rest.split_once('[') {
        let (number, target) = after.split_once("](")?;
        plain += &format!("{before}{number}");
        rest = target.split_once(')')?.1;
    }
    Some((plain + rest).to_lowercase())
}

#[test]
fn every_decision_has_a_status_and_stands_once_in_the_index() {
    let index = std::fs::read_to_string(root().join("docs/README.md")).expect("the index of the documentation");
    let mut decisions = 0;
    for page in std::fs::read_dir(root().join("docs/decisions")).expect("the decisions") {
        let name = page.expect("a page").file_name().into_string().expect("a name in UTF-8");
        let text = std::fs::read_to_string(root().join("docs/decisions").join(&name)).expect("a page is text");
        let status = statuses(&text).unwrap_or_else(|| panic!("the third line of {name} is no **Status.**"));
        let known =
            status == "in force" || status.starts_with("in force, amended by ") || status.starts_with("superseded by ");
        assert!(known, "{name} has the status {status:?}");
        let number = &name[..4];
        let rows: Vec<&str> =
            index.lines().filter(|line| line.starts_with(&format!("| [{number}](decisions/{name}) |"))).collect();
        assert_eq!(rows.len(), 1, "docs/README.md lists {name} once");
        assert!(
            rows[0].ends_with(&format!("| {status} |")),
            "docs/README.md gives {name} another status than its page"
        );
        decisions += 1;
    }
    assert!(decisions > 40, "the decisions are looked at");
}
