//! `aze stage out --delete` to the directory over which a volume lies, killed at any moment: the same command goes on, nothing of
//! others goes with it, nothing of the volume is lost, and what a receipt says is true.

use aze_tests::{Draw, PATIENCE, Place, long, signal};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How often a stage is killed, short and long.
const KILLS: u32 = 20;
const KILLS_LONG: u32 = 300;
/// Names of each round that are removed, renamed, changed, and changed in the backing by another user.
const REMOVED: usize = 250;
const RENAMED: usize = 10;
const CHANGED: usize = 10;
const FOREIGN: usize = 3;
/// Files of 4 MiB that no program changes: more than the volume has room for.
const FILLERS: usize = 40;
const SIZE: &str = "132M";

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn contents(name: &str) -> Vec<u8> {
    name.as_bytes().repeat(500)
}

/// All files of a round, as the backing has them at first: directory and name.
fn files() -> Vec<String> {
    let all = [("gone", REMOVED), ("moved", RENAMED), ("changed", CHANGED), ("foreign", FOREIGN)];
    all.iter().flat_map(|(kind, count)| (0..*count).map(move |number| format!("{kind}/{number}"))).collect()
}

fn make(root: &Path) {
    for dir in ["gone", "moved", "changed", "foreign"] {
        fs::create_dir_all(root.join(dir)).expect("a directory");
    }
    for name in files() {
        fs::write(root.join(&name), contents(&name)).expect("a file");
        let made = OpenOptions::new().write(true).open(root.join(&name)).expect("a file");
        made.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).expect("a time");
    }
}

/// Removes, renames and changes unread files of a round in the volume, and puts files of others below.
fn change(mounted: &Path, below: &Path) {
    (0..REMOVED).for_each(|number| fs::remove_file(mounted.join(format!("gone/{number}"))).expect("a removal"));
    fs::create_dir(mounted.join("away")).expect("a directory");
    for number in 0..RENAMED {
        fs::rename(mounted.join(format!("moved/{number}")), mounted.join(format!("away/{number}"))).expect("a rename");
    }
    for number in 0..CHANGED {
        let file = OpenOptions::new().write(true).open(mounted.join(format!("changed/{number}"))).expect("a file");
        file.write_all_at(b"of the volume", 7).expect("a write");
    }
    for number in 0..FOREIGN {
        fs::remove_file(mounted.join(format!("foreign/{number}"))).expect("a removal");
        fs::write(below.join(format!("foreign/{number}")), "of others").expect("a change");
    }
}

fn changed(number: usize) -> Vec<u8> {
    let mut bytes = contents(&format!("changed/{number}"));
    bytes[7..20].copy_from_slice(b"of the volume");
    bytes
}

/// Has the volume read so much that all which may go has gone.
fn fill(place: &Place) {
    let fillers = (0..FILLERS).map(|number| format!("aze:/filler/{number}"));
    let words: Vec<String> = ["cat".into()].into_iter().chain(fillers).collect();
    let read = place.command(&words).stdout(Stdio::null()).status().expect("aze starts");
    assert!(read.success(), "{read}");
}

/// What must be so at any moment, also in the middle of a stage that was killed: through a client that has read nothing, of a
/// volume that has dropped all that it may.
fn assert_nothing_is_lost(place: &Place, round: &str, below: &Path) {
    for number in 0..FOREIGN {
        assert_eq!(fs::read_to_string(below.join(format!("foreign/{number}"))).expect("a file"), "of others");
    }
    fill(place);
    let copy = place.path("copy");
    place.aze(&["cp", "--recursive", &format!("aze:/{round}"), text(&copy)]).ok();
    for number in 0..RENAMED {
        let name = format!("moved/{number}");
        assert!(fs::read(copy.join(format!("away/{number}"))).expect("a file") == contents(&name), "{name}");
    }
    for number in 0..CHANGED {
        assert!(fs::read(copy.join(format!("changed/{number}"))).expect("a file") == changed(number), "{number}");
        let there = fs::read(below.join(format!("changed/{number}"))).expect("a file");
        assert!(there == changed(number) || there == contents(&format!("changed/{number}")), "{number}: a mixture");
    }
    fs::remove_dir_all(copy).expect("a removal");
}

/// Receipts of a round verify, and of the names that they say were removed none is there.
fn assert_receipts(place: &Place, round: &str, below: &Path) {
    let entries = fs::read_dir(place.path("receipts")).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    for name in names.filter(|name| name.starts_with(&format!("{round}-")) && name.ends_with(".jsonl")) {
        let receipt = place.path("receipts").join(name);
        place.aze(&["receipt", "verify", text(&receipt)]).ok();
        for line in fs::read_to_string(&receipt).expect("a receipt").lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            if let Some(removed) = line["removed"].as_str() {
                assert!(!below.join(removed).exists(), "{removed}: {}", receipt.display());
            }
        }
    }
}

fn left_in(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

/// When a stage is killed.
#[derive(Clone, Copy, Debug)]
enum When {
    /// So many renamed files have arrived.
    Arrived(usize),
    /// So many names have gone.
    Gone(usize),
    Never,
}

/// Stages a round out, and kills that.
fn stage(place: &Place, round: &str, below: &Path, receipt: &Path, when: When) -> ExitStatus {
    let from = format!("aze:/{round}");
    let args = ["stage", "out", &from, "--delete", "--quiet", "--receipt", text(receipt)];
    let mut child = place.command(&args).stderr(Stdio::null()).spawn().expect("aze starts");
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        // All of it takes some milliseconds: without a pause.
        let is_due = match when {
            When::Arrived(count) => left_in(&below.join("away")) >= count,
            When::Gone(count) => left_in(&below.join("gone")) + count <= REMOVED,
            When::Never => false,
        };
        if is_due {
            signal(child.id(), libc::SIGKILL);
            return child.wait().expect("a child");
        }
        assert!(started.elapsed() < PATIENCE, "the stage does not end");
    }
}

#[test]
fn a_stage_with_removals_that_is_killed_goes_on() {
    let mut place = Place::new();
    let backing = place.path("backing");
    let kills = if long() { KILLS_LONG } else { KILLS };
    (0..kills).for_each(|round| make(&backing.join(format!("r{round}"))));
    fs::create_dir(place.path("receipts")).expect("a directory");
    fs::create_dir(backing.join("filler")).expect("a directory");
    for number in 0..FILLERS {
        fs::write(backing.join(format!("filler/{number}")), vec![b'f'; 4 << 20]).expect("a file");
    }
    let name = format!("delete-{}", std::process::id());
    place.aze(&["up", "--servers", "2", "--size", SIZE, "--name", &name, "--backing", text(&backing)]).ok();
    let mount = place.mount();
    let (mut draw, mut killed, mut amid_copies, mut amid_removals) = (Draw::new(3, 18), 0, 0, 0);
    for (rounds, round) in (0..kills).map(|round| format!("r{round}")).enumerate() {
        // On a busy machine most kills come before or after the work.
        if killed >= kills && amid_removals > 0 && amid_copies + amid_removals >= kills / 5 {
            break;
        }
        let below = backing.join(&round);
        change(&mount.join(&round), &below);
        for attempt in 0.. {
            let receipt = place.path(&format!("receipts/{round}-{attempt}.jsonl"));
            let when = match draw.below(2) {
                _ if attempt > 3 => When::Never,
                0 => When::Arrived(draw.below(RENAMED as u64) as usize),
                _ => When::Gone(1 + draw.below(REMOVED as u64 / 2) as usize),
            };
            let status = stage(&place, &round, &below, &receipt, when);
            assert_nothing_is_lost(&place, &round, &below);
            assert_receipts(&place, &round, &below);
            let (arrived, left) = (left_in(&below.join("away")), left_in(&below.join("gone")));
            if status.signal() == Some(libc::SIGKILL) {
                killed += 1;
                amid_copies += u32::from(arrived < RENAMED);
                amid_removals += u32::from(arrived == RENAMED && left > 0 && left < REMOVED);
                continue;
            }
            // What others have changed is named, and stays.
            assert_eq!(status.code(), Some(1), "{round}, attempt {attempt}");
            assert!(receipt.exists(), "{round}, attempt {attempt}");
            break;
        }
        assert!(!below.join("gone").exists() || left_in(&below.join("gone")) == 0, "{round}");
        assert_eq!((left_in(&below.join("moved")), left_in(&below.join("away"))), (0, RENAMED), "{round}");
        for number in 0..RENAMED {
            let name = format!("moved/{number}");
            assert!(fs::read(below.join(format!("away/{number}"))).expect("a file") == contents(&name), "{name}");
        }
        for number in 0..CHANGED {
            assert!(fs::read(below.join(format!("changed/{number}"))).expect("a file") == changed(number), "{number}");
        }
        let told: Value =
            serde_json::from_str(&place.aze(&["stage", "status", "--json", "aze:/"]).ok().out).expect("JSON");
        assert_eq!(told["removed"].as_u64(), Some((FOREIGN * (rounds + 1)) as u64), "{round}: {told}");
    }
    println!("{killed} kills, {amid_copies} amid copies, {amid_removals} amid removals");
    assert!(killed >= kills / 2 && amid_removals > 0, "{killed} kills, {amid_removals} amid removals");
    assert!(amid_copies + amid_removals >= kills / 5, "{amid_copies} and {amid_removals}");
    place.aze(&["check"]).ok();
}
