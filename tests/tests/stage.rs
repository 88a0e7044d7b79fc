//! Staging: a receipt says the truth, also with faults while it comes about.

use aze_tests::disk::Disk;
use aze_tests::staging::{ended, names, priorities, receipts, text};
use aze_tests::{Draw, Place, Ran, leave_out, long, run, signal, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// How often an attempt is killed, short and long.
const KILLS: u32 = 20;
const KILLS_LONG: u32 = 1000;

/// All lines of a receipt.
fn lines(receipt: &Path) -> Vec<Value> {
    let text = fs::read_to_string(receipt).expect("a receipt");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The paths that a receipt has lines for.
fn paths(receipt: &Path) -> Vec<String> {
    lines(receipt).iter().filter_map(|line| Some(line.get("path")?.as_str()?.to_owned())).collect()
}

fn out(place: &Place, to: &Path, more: &[&str]) -> Ran {
    place.aze(&[&["stage", "out", "aze:/in", text(to), "--quiet"], more].concat())
}

fn verified(place: &Place, receipt: &Path) -> Ran {
    place.aze(&["receipt", "verify", text(receipt)])
}

/// A tree with one of each kind, and files of several parts and with holes. Gives the number of its objects.
fn all_kinds(root: &Path) -> usize {
    fs::create_dir_all(root.join("sub/empty")).expect("directories");
    fs::write(root.join("a"), "contents").expect("a file");
    fs::hard_link(root.join("a"), root.join("sub/also a")).expect("a link");
    fs::hard_link(root.join("a"), root.join("sub/third")).expect("a link");
    fs::write(root.join("none"), "").expect("a file");
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"b\xff\nd")), "odd").expect("a file");
    fs::set_permissions(root.join("none"), Permissions::from_mode(0o6751)).expect("a mode");
    symlink("../away", root.join("sub/link")).expect("a link");
    let large: Vec<u8> = (0..70u32 << 20).map(|at| (at % 251) as u8).collect();
    fs::write(root.join("large"), large).expect("a file");
    let sparse = File::create(root.join("sub/sparse")).expect("a file");
    sparse.set_len(300 << 20).expect("a hole");
    sparse.write_all_at(b"in the middle", (100 << 20) + 77).expect("data");
    11
}

/// From one volume to another: each file as it was at one moment, by its servers' counts, and a receipt of what the other one has.
#[test]
fn a_volume_is_staged_into_another_one() {
    let place = Place::new();
    let [one, other] = ["one", "other"].map(|name| format!("{name}-{}", std::process::id()));
    place.up(&["--servers", "2", "--name", &one]);
    place.up(&["--servers", "3", "--name", &other]);
    let (src, back) = (place.path("src"), place.path("back"));
    let count = all_kinds(&src);
    let at = |name: &str, path: &str| format!("aze://{name}{path}");
    place.aze(&["stage", "in", text(&src), &at(&one, "/run"), "--quiet"]).ok();
    let receipt = place.path("between.jsonl");
    let words = [at(&one, "/run"), at(&other, "/copy")];
    let words = ["stage", "in", &words[0], &words[1], "--receipt", text(&receipt)];
    let told = place.aze(&[&words[..], &["--json"]].concat()).ok();
    let told: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!((&told["proven"], &told["missing"]), (&Value::from(count), &Value::from(0)), "{told}");
    place.aze(&["receipt", "verify", text(&receipt)]).ok();
    assert_eq!(lines(&receipt)[0]["direction"], "in");
    place.aze(&["stage", "out", &at(&other, "/copy"), text(&back), "--quiet"]).ok();
    run(Command::new("diff").args(["-r", "--no-dereference"]).args([&src, &back]));
    let [first, second] = ["a", "sub/third"].map(|name| fs::metadata(back.join(name)).expect("a file").ino());
    assert_eq!(first, second, "names of one file stay so");
    // Unchanged files are not copied again; changed ones are.
    place.aze(&["cp", text(&src.join("none")), &at(&one, "/run/more")]).ok();
    let again = [&words[..4], &["--json"]].concat();
    let told: Value = serde_json::from_str(&place.aze(&again).ok().out).expect("JSON");
    assert_eq!((&told["proven"], &told["missing"]), (&Value::from(count + 1), &Value::from(0)), "{told}");
    assert!(told["resumed"].as_u64().is_some_and(|resumed| resumed >= 4), "{told}");
    let told = place.aze(&["stage", "status", &at(&other, "/")]).ok().out;
    assert!(told.contains("dirty   0 objects"), "{told}");
    let refused = place.aze(&["stage", "out", &at(&one, "/run"), &at(&other, "/copy")]).code(2);
    assert!(refused.err.contains("aze stage in"), "{}", refused.err);
    for name in [&one, &other] {
        place.aze(&["down", "--name", name, "--discard"]).ok();
    }
}

#[test]
fn what_goes_in_and_out_again_is_proven_on_both_ways() {
    let place = Place::new();
    place.up(&["--servers", "3"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    let count = all_kinds(&src);
    fs::create_dir(&dst).expect("a directory");
    run(Command::new("python3")
        .args(["-c", "import os, sys; os.setxattr(sys.argv[1], 'user.note', b'kept')"])
        .arg(src.join("a")));
    let first = place.path("in.jsonl");
    place.aze(&["stage", "in", text(&src), "aze:/in", "--receipt", text(&first)]).ok();
    place.aze(&["receipt", "verify", text(&first)]).ok();
    place.aze(&["receipt", "verify", text(&first), "--root", "aze:/in"]).ok();
    let told = out(&place, &dst.join("run"), &["--json"]).ok();
    let told: Value = serde_json::from_str(&told.out).expect("JSON");
    assert_eq!((&told["proven"], &told["missing"]), (&Value::from(count), &Value::from(0)), "{told}");
    let [receipt] = &receipts(&dst)[..] else { panic!("{:?}", names(&dst)) };
    assert_eq!(told["receipt"], text(receipt));
    verified(&place, receipt).ok();
    assert_eq!(paths(receipt).len(), count);
    assert_eq!(names(&dst).len(), 2, "nothing hidden is left: {:?}", names(&dst));
    let [ins, outs] = [&first, receipt].map(|receipt| lines(receipt));
    let tree = |lines: &[Value]| lines[lines.len() - 2]["tree"].clone();
    assert_eq!(tree(&ins), tree(&outs), "both receipts are of one tree");
    let ways: Vec<&Value> = outs.iter().filter_map(|line| line.get("read_back")).collect();
    assert_eq!(ways.len(), 7);
    assert!(ways.iter().all(|way| ["direct", "dropped", "memory"].contains(&way.as_str().expect("a word"))));
    run(Command::new("diff").args(["-r", "--no-dereference"]).args([&src, &dst.join("run")]));
    for path in ["a", "none", "large", "sub/sparse", "sub/empty"] {
        let [one, other] = [&src, &dst.join("run")].map(|root| fs::metadata(root.join(path)).expect("it is there"));
        assert_eq!(
            (one.mode(), one.mtime_nsec(), one.nlink()),
            (other.mode(), other.mtime_nsec(), other.nlink()),
            "{path}"
        );
    }
    let blocks = fs::metadata(dst.join("run/sub/sparse")).expect("a file").blocks();
    assert!(blocks < 1 << 10, "a hole stays a hole: {blocks} blocks");
    // A file alone, and refused commands.
    out(&place, &dst.join("run"), &["--atomic"]).ok();
    place.aze(&["stage", "out", "aze:/in/a", text(&dst.join("alone")), "--quiet"]).ok();
    assert_eq!(fs::read(dst.join("alone")).expect("a file"), b"contents");
    place.aze(&["stage", "out", "aze:/in/a", text(&dst.join("run"))]).code(5);
    place.aze(&["stage", "out", text(&src), text(&dst)]).code(2);
    place.aze(&["stage", "in", text(&src), text(&dst)]).code(2);
    place.aze(&["stage", "out", "aze:/none", text(&dst)]).code(3);
    out(&place, &dst.join("run"), &["--receipt", text(receipt)]).code(5);
}

/// A program writes one mark after the other over all chunks of a file but the first, so that its home hears of it once
/// a second only. The staged contents were there at one moment, or nothing is said of them.
#[test]
fn a_file_that_is_written_is_staged_as_of_one_moment_or_not_at_all() {
    const CHUNKS: u64 = 24;
    let mut place = Place::new();
    place.up(&["--servers", "3"]);
    let (mount, dst) = (place.mount(), place.path("dst"));
    fs::create_dir(mount.join("in")).expect("a directory");
    fs::create_dir(&dst).expect("a directory");
    fs::write(mount.join("in/quiet"), "rests").expect("a file");
    let file = File::create(mount.join("in/busy")).expect("a file");
    let mark = |number: u64| -> Vec<u8> { number.to_le_bytes().repeat(512) };
    (0..CHUNKS).for_each(|chunk| file.write_all_at(&mark(0), chunk << 20).expect("room"));
    file.sync_all().expect("it is there");
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut changed, mut whole) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                for chunk in 1..CHUNKS {
                    file.write_all_at(&mark(number), chunk << 20).expect("room");
                }
                rounds.store(number, Ordering::Relaxed);
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let _end = AtEnd(&is_over);
        for attempt in 0..8 {
            let (to, receipt) = (dst.join(format!("run{attempt}")), dst.join(format!("receipt{attempt}")));
            let ran = out(&place, &to, &["--receipt", text(&receipt)]);
            assert!(paths(&receipt).contains(&"quiet".to_owned()), "{}", ran.err);
            verified(&place, &receipt).ok();
            if ran.code == 0 {
                whole += 1;
                let copy = fs::read(to.join("busy")).expect("a file");
                let marks: Vec<u64> = (1..CHUNKS as usize)
                    .map(|chunk| u64::from_le_bytes(copy[chunk << 20..(chunk << 20) + 8].try_into().expect("eight")))
                    .collect();
                let border = marks.iter().position(|mark| *mark != marks[0]).unwrap_or(marks.len());
                assert!(marks[border..].iter().all(|mark| mark + 1 == marks[0]), "never at one moment: {marks:?}");
            } else {
                changed += 1;
                assert_eq!(ran.code, 1, "{}", ran.err);
                assert!(ran.err.contains("busy: it changed while it was copied"), "{}", ran.err);
                assert_eq!((paths(&receipt), names(&to)), (vec![String::new(), "quiet".into()], vec!["quiet".into()]));
            }
        }
    });
    assert!(changed > 0 && rounds.load(Ordering::Relaxed) > 0, "{changed} changed, {whole} whole");
    let last = dst.join("run0");
    out(&place, &last, &["--receipt", text(&dst.join("last"))]).ok();
    assert_eq!(paths(&dst.join("last")), ["", "busy", "quiet"]);
    verified(&place, &dst.join("last")).ok();
}

/// Tells a thread to end, also if the test has failed.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts an attempt; its state lies beside `to`.
fn start(place: &Place, to: &Path, more: &[&str]) -> Child {
    let args = [&["stage", "out", "aze:/in", text(to), "--quiet"], more].concat();
    place.command(&args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("aze starts")
}

fn state_bytes(dir: &Path) -> u64 {
    let states = names(dir).into_iter().filter(|name| name.starts_with(".azekura-stage-"));
    states.filter_map(|name| Some(fs::metadata(dir.join(name)).ok()?.len())).sum()
}

/// Every name below `dir`, hidden ones too.
fn all_names(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        found.push(entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().expect("a kind").is_dir() {
            found.extend(all_names(&entry.path()));
        }
    }
    found
}

#[test]
fn an_attempt_that_is_killed_goes_on_and_no_receipt_is_ever_wrong() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    fs::create_dir_all(src.join("d")).expect("a directory");
    for number in 0..150u32 {
        let bytes = number.to_le_bytes().repeat(if number % 30 == 0 { 1 << 20 } else { 50 });
        fs::write(src.join(if number % 2 == 0 { "d" } else { "" }).join(number.to_string()), bytes).expect("a file");
    }
    fs::hard_link(src.join("1"), src.join("d/again")).expect("a link");
    fs::create_dir(&dst).expect("a directory");
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    let (mut draw, mut killed, mut completed, mut resumed) = (Draw::new(1, 18), 0, 0, 0);
    let kills = if long() { KILLS_LONG } else { KILLS };
    let is_half =
        |dst: &Path| all_names(dst).iter().any(|name| name.starts_with(".aze-stage-") && !name.contains("tree"));
    while killed < kills {
        let atomic = draw.below(2) == 0;
        let to = dst.join(if atomic { "atomic" } else { "plain" });
        let more: &[&str] = if atomic { &["--atomic", "--jobs", "2"] } else { &["--jobs", "2"] };
        let (before, further, in_a_file) = (state_bytes(&dst), draw.below(60_000), draw.below(2) == 0);
        let mut child = start(&place, &to, more);
        let mut status = None;
        wait_until("the attempt has gone on, or ended", || {
            status = child.try_wait().expect("a child");
            status.is_some() || (state_bytes(&dst) > before + further && (!in_a_file || is_half(&dst)))
        });
        if status.is_none() {
            signal(child.id(), libc::SIGKILL);
        }
        let status = ended(&mut child);
        let found = receipts(&dst);
        found.iter().for_each(|receipt| drop(verified(&place, receipt).ok()));
        if status.signal() == Some(libc::SIGKILL) {
            killed += 1;
            if long() && killed % 50 == 0 {
                eprintln!("{killed} kills so far");
            }
            continue;
        }
        assert!(status.success() && !found.is_empty(), "{status}");
        completed += 1;
        let hidden: Vec<String> = all_names(&to).into_iter().filter(|name| name.starts_with('.')).collect();
        assert_eq!(hidden, [""; 0], "left over after {killed} kills");
        // From the beginning.
        fs::remove_dir_all(to).expect("it goes");
        found.iter().for_each(|receipt| fs::remove_file(receipt).expect("it goes"));
    }
    for (to, more) in [("plain", &[][..]), ("atomic", &["--atomic"])] {
        let told = out(&place, &dst.join(to), &[more, &["--json"]].concat()).ok();
        let told: Value = serde_json::from_str(&told.out).expect("JSON");
        resumed += told["resumed"].as_u64().expect("a number");
        assert_eq!((&told["proven"], &told["missing"]), (&Value::from(153), &Value::from(0)), "{told}");
        verified(&place, receipts(&dst).last().expect("one")).ok();
        run(Command::new("diff").arg("-r").args([&src, &dst.join(to)]));
    }
    println!("{killed} kills, {completed} attempts ended before, {resumed} objects not copied again at last");
    let left: Vec<String> = all_names(&dst).into_iter().filter(|name| name.starts_with('.')).collect();
    assert_eq!(left, [""; 0], "left over");
}

#[test]
fn an_attempt_that_is_asked_to_end_leaves_no_half_file_and_keeps_others_out() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    fs::create_dir_all(&src).expect("a directory");
    (0..6).for_each(|number| fs::write(src.join(number.to_string()), vec![number; 48 << 20]).expect("a file"));
    fs::create_dir(&dst).expect("a directory");
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    let to = dst.join("run");
    let mut child = start(&place, &to, &["--jobs", "1"]);
    // Before the tree is there, the stage looks at what the file system can with files of its own beside the state.
    wait_until("a file is proven", || to.is_dir() && !names(&to).iter().all(|name| name.starts_with('.')));
    let second = out(&place, &to, &[]);
    let is_alone = second.code == 6 && second.err.contains("another 'aze stage'");
    let state = dst.join(names(&dst).into_iter().find(|name| name.starts_with('.')).expect("a state"));
    let status = place.aze(&["stage", "status", text(&state), "--json"]).ok();
    signal(child.id(), libc::SIGINT);
    assert_eq!(ended(&mut child).signal(), Some(libc::SIGINT));
    assert!(is_alone, "{}: {}", second.code, second.err);
    let status: Value = serde_json::from_str(&status.out).expect("JSON");
    assert_eq!((&status["at_work"], &status["attempts"]), (&Value::from(true), &Value::from(1)), "{status}");
    for name in names(&to) {
        assert!(!name.starts_with('.'), "{name} is left");
        assert_eq!(fs::metadata(to.join(name)).expect("a file").len(), 48 << 20);
    }
    assert_eq!(receipts(&dst), [""; 0].map(PathBuf::from));
    let status = place.aze(&["stage", "status", text(&state)]).ok();
    assert!(status.out.contains("was broken off"), "{}", status.out);
    let told: Value = serde_json::from_str(&out(&place, &to, &["--json"]).ok().out).expect("JSON");
    assert!(told["resumed"].as_u64() > Some(0) && told["proven"] == 7, "{told}");
    assert!(place.aze(&["stage", "status", text(&receipts(&dst)[0])]).ok().out.contains("6 files"));
}

/// Waits until a stage has threads that copy; gives the nice values of these, and of the thread that waits for them.
fn priorities_of_copying(child: &mut Child) -> (Vec<i32>, i32) {
    let mut found = (Vec::new(), 0);
    wait_until("files are copied", || {
        assert!(child.try_wait().expect("a child").is_none(), "it has ended");
        let all = priorities(child.id());
        let of =
            |wanted: &str| all.iter().filter(|(name, _)| name == wanted).map(|(_, nice)| *nice).collect::<Vec<_>>();
        found = (of("aze-copy"), of("aze")[0]);
        !found.0.is_empty()
    });
    found
}

/// A file of a megabyte and more for each number.
fn many_to_stage(place: &Place) {
    let src = place.path("src");
    fs::create_dir(&src).expect("a directory");
    fs::create_dir(place.path("dst")).expect("a directory");
    for number in 0..40u32 {
        fs::write(src.join(number.to_string()), number.to_le_bytes().repeat(300_000)).expect("a file");
    }
    place.up(&["--servers", "1"]);
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
}

/// What runs beside programs has the lowest priority: rounds, and what leaves open files out. All else, and the last round before an
/// end, has the one that the command was started with. What `--priority` says comes first.
#[test]
fn a_stage_beside_programs_leaves_the_cores_to_them() {
    let place = Place::new();
    many_to_stage(&place);
    let own = priorities(std::process::id())[0].1;
    let soon = format!("--until=@{}", now_s() + 1);
    let later = format!("--until=@{}", now_s() + 3600);
    let cases: [(&[&str], bool); 10] = [
        (&[], false),
        (&["--priority", "low"], true),
        (&["--when", "closed"], true),
        (&["--when", "closed", "--priority", "same"], false),
        (&["--every", "1h"], true),
        (&["--every", "1h", "--priority", "same"], false),
        (&["--before-end=1s", &later], true),
        (&["--before-end=1s", &later, "--priority", "same"], false),
        (&["--before-end=1s", &soon], false),
        (&["--before-end=1s", &soon, "--priority", "low"], true),
    ];
    for (number, (options, is_low)) in cases.into_iter().enumerate() {
        let to = place.path(&format!("dst/{number}"));
        let mut child = start(&place, &to, &[&["--jobs", "2"], options].concat());
        let (copying, waiting) = priorities_of_copying(&mut child);
        signal(child.id(), libc::SIGKILL);
        ended(&mut child);
        let expected = if is_low { 19 } else { own };
        assert_eq!((&copying[..], waiting), (&[expected; 2][..copying.len()], own), "{options:?}");
    }
    // A destination is needed for that.
    place.aze(&["stage", "in", "aze:/in", "--priority", "low"]).code(2);
}

fn now_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().expect("a time after 1970").as_secs()
}

/// A round of low priority that programs leave nothing to is broken off when the last one is due, which goes on with the priority of the
/// command, and is in time.
#[test]
fn a_round_that_gets_no_time_does_not_hold_up_the_last_one() {
    let place = Place::new();
    many_to_stage(&place);
    let (src, dst) = (place.path("src"), place.path("dst"));
    let (to, own) = (dst.join("run"), priorities(std::process::id())[0].1);
    let end = now_s() + 12;
    let until = format!("--until=@{end}");
    let words = ["stage", "out", "aze:/in", text(&to), "--jobs", "1", "--before-end=1s", &until];
    let err = File::create(place.path("err")).expect("a file");
    let mut child = place.command(&words).stderr(err).stdout(Stdio::null()).spawn().expect("aze starts");
    let told = || fs::read_to_string(place.path("err")).expect("a file");
    wait_until("files are there", || to.is_dir() && names(&to).len() > 3);
    signal(child.id(), libc::SIGSTOP);
    assert!(priorities_of_copying(&mut child).0.iter().all(|nice| *nice == 19));
    let so_far = names(&to).len();
    // The last round is due one second and the time for 58 units before the end; it has to have the time all the same.
    wait_until("the last round is due", || now_s() >= end - 4);
    signal(child.id(), libc::SIGCONT);
    let mut seen = Vec::new();
    wait_until("it has ended", || {
        let is_last = told().contains("was broken off");
        let copying = priorities(child.id()).into_iter().filter(|(name, _)| is_last && name == "aze-copy");
        seen.extend(copying.map(|(_, nice)| nice));
        child.try_wait().expect("a child").is_some()
    });
    assert!(ended(&mut child).success(), "{}", told());
    assert!(so_far < 35 && told().contains("was broken off"), "{so_far}: {}", told());
    assert!(!seen.is_empty() && seen.iter().all(|nice| *nice == own), "{seen:?}: {}", told());
    let [receipt] = &receipts(&dst)[..] else { panic!("{:?}", names(&dst)) };
    verified(&place, receipt).ok();
    run(Command::new("diff").arg("-r").args([&src, &to]));
}

#[test]
fn what_was_changed_since_is_named_and_what_was_not_signed_refused() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    fs::create_dir_all(src.join("sub")).expect("directories");
    fs::write(src.join("a"), "contents").expect("a file");
    fs::write(src.join("sub/b"), vec![5; 9 << 20]).expect("a file");
    symlink("a", src.join("l")).expect("a link");
    fs::create_dir(&dst).expect("a directory");
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    let (to, receipt) = (dst.join("run"), dst.join("receipt"));
    out(&place, &to, &["--receipt", text(&receipt)]).ok();
    let key: Value = serde_json::from_str(&place.aze(&["key", "--json"]).ok().out).expect("JSON");
    let key = key["key"].as_str().expect("a key").to_owned();
    let ran = verified(&place, &receipt).ok();
    assert!(ran.out.contains("5 true lines") && ran.out.contains("origin not checked"), "{}", ran.out);
    let ran = place.aze(&["receipt", "verify", text(&receipt), "--key", &key]).ok();
    assert!(ran.out.contains(&format!("signed by key {key} as given")), "{}", ran.out);
    // A copy elsewhere, by another program and later.
    run(Command::new("cp").args(["-r", "-P", "--preserve=mode"]).args([&to, &dst.join("copy")]));
    place.aze(&["receipt", "verify", text(&receipt), "--root", text(&dst.join("copy"))]).ok();
    let write_at = |path: &str, at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(to.join(path)).expect("a file");
        let times = fs::metadata(to.join(path)).expect("a file").modified().expect("a time");
        file.write_all_at(bytes, at).expect("room");
        file.set_modified(times).expect("the time is set back");
    };
    let changes: [(&str, Act<'_>, Act<'_>); 3] = [
        ("a: its mode is 0600", &|| mode(&to.join("a"), 0o600), &|| mode(&to.join("a"), 0o644)),
        ("l: it leads elsewhere", &|| link_to(&to.join("l"), "b"), &|| link_to(&to.join("l"), "a")),
        ("a: it is missing", &|| fs::rename(to.join("a"), to.join("x")).expect("a name"), &|| {
            fs::rename(to.join("x"), to.join("a")).expect("a name");
        }),
    ];
    for (told, change, back) in &changes {
        change();
        let ran = verified(&place, &receipt).code(1);
        assert!(ran.err.contains(told), "{}", ran.err);
        back();
        // A directory's time of change has moved, a link's is its own.
        place.aze(&["receipt", "verify", text(&receipt), "--root", text(&to)]).ok();
    }
    write_at("sub/b", (9 << 20) - 1, b"!");
    let ran = verified(&place, &receipt).code(1);
    assert!(ran.err.contains("sub/b: its bytes have changed, first in the 4 MiB from byte 8388608"), "{}", ran.err);
    // The receipt itself.
    let good = fs::read(&receipt).expect("a receipt");
    for at in (0..good.len()).step_by(good.len() / 40) {
        let mut bad = good.clone();
        bad[at] ^= 2;
        fs::write(&receipt, &bad).expect("a file");
        verified(&place, &receipt).code(5);
    }
    fs::write(&receipt, &good[..good.len() - 1]).expect("a file");
    verified(&place, &receipt).code(5);
    fs::write(&receipt, &good).expect("a file");
    fs::rename(place.path("config"), place.path("other")).expect("a name");
    let other: Value = serde_json::from_str(&place.aze(&["key", "--json"]).ok().out).expect("JSON");
    place.aze(&["receipt", "verify", text(&receipt), "--key", other["key"].as_str().expect("a key")]).code(5);
    place.aze(&["receipt", "verify", text(&place.path("no"))]).code(3);
    // The key of a site, say. It is not made by the way.
    let (site, by_site) = (place.path("site-key"), place.path("by-site.jsonl"));
    let again = place.path("dst/again");
    let signed = ["stage", "out", "aze:/in", text(&again), "--quiet", "--sign-key", text(&site)];
    let refused = place.aze(&signed).code(3);
    assert!(refused.err.contains("there is none: 'aze key --file") && !site.exists(), "{}", refused.err);
    let made: Ran = place
        .command(&["key", "--file", "site-key", "--json"])
        .current_dir(&place.dir)
        .output()
        .expect("aze runs")
        .into();
    let made: Value = serde_json::from_str(&made.ok().out).expect("JSON");
    let made = made["key"].as_str().expect("a key");
    assert_ne!(made, other["key"]);
    place.aze(&[&signed[..], &["--receipt", text(&by_site)]].concat()).ok();
    place.aze(&["receipt", "verify", text(&by_site), "--key", made]).ok();
    place.aze(&["stage", "in", text(&place.path("src")), "aze:/x", "--sign-key", text(&site)]).code(2);
    mode(&place.path("config/azekura/key"), 0o640);
    let refused = place.aze(&["key"]).code(4);
    assert!(refused.err.contains("mode 0640"), "{}", refused.err);
    out(&place, &dst.join("more"), &[]).code(4);
}

/// A change of a test, or the way back.
type Act<'a> = &'a dyn Fn();

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
}

fn link_to(path: &Path, target: &str) {
    fs::remove_file(path).expect("it was there");
    symlink(target, path).expect("a link");
}

#[test]
fn what_is_meant_removed_and_published_is_as_asked_for() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    for path in ["keep/a.h5", "keep/b.tmp", "skip/c.h5", "d.h5"] {
        fs::create_dir_all(src.join(path).parent().expect("a directory")).expect("directories");
        fs::write(src.join(path), path).expect("a file");
    }
    fs::create_dir(&dst).expect("a directory");
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    let staged = |name: &str, more: &[&str]| {
        let receipt = dst.join(format!("{name}.jsonl"));
        out(&place, &dst.join(name), &[more, &["--receipt", text(&receipt)]].concat()).ok();
        verified(&place, &receipt).ok();
        receipt
    };
    assert_eq!(paths(&staged("one", &["--include", "*.h5", "--exclude", "skip"])), ["", "d.h5", "keep", "keep/a.h5"]);
    fs::write(place.path("list"), "keep/b.tmp\nskip\n").expect("a list");
    let list = place.path("list");
    assert_eq!(paths(&staged("two", &["--list", text(&list)])), ["", "keep", "keep/b.tmp", "skip", "skip/c.h5"]);
    assert_eq!(paths(&staged("three", &["--newer-than", "2500-01-01"])), [""]);
    assert_eq!(paths(&staged("four", &["--newer-than", "@0"])).len(), 7);
    out(&place, &dst.join("no"), &["--newer-than", "nothing"]).code(3);
    out(&place, &dst.join("no"), &["--delete", "--include", "x"]).code(2);
    // Removed with --delete only, and said so.
    fs::create_dir_all(dst.join("one/old/deep")).expect("directories");
    fs::write(dst.join("one/old/deep/file"), "old").expect("a file");
    staged("one-more", &[]);
    let kept = dst.join("kept.jsonl");
    out(&place, &dst.join("one"), &["--receipt", text(&kept)]).ok();
    assert!(dst.join("one/old/deep/file").exists());
    let deleted = dst.join("deleted.jsonl");
    out(&place, &dst.join("one"), &["--delete", "--receipt", text(&deleted)]).ok();
    let removed: Vec<Value> = lines(&deleted).iter().filter_map(|line| line.get("removed").cloned()).collect();
    assert_eq!(removed, ["old/deep/file", "old/deep", "old"]);
    assert!(!dst.join("one/old").exists());
    verified(&place, &deleted).ok();
    // In one step: onto a free name, in exchange, and in exchange without the old.
    staged("tree", &["--atomic"]);
    fs::write(dst.join("tree/mine"), "mine").expect("a file");
    out(&place, &dst.join("tree"), &["--atomic", "--receipt", text(&dst.join("2.jsonl"))]).ok();
    let before: Vec<String> = names(&dst).into_iter().filter(|name| name.starts_with("tree.before-")).collect();
    assert_eq!(before.len(), 1);
    assert_eq!(fs::read(dst.join(&before[0]).join("mine")).expect("a file"), b"mine");
    assert!(!dst.join("tree/mine").exists());
    fs::write(dst.join("tree/mine"), "mine").expect("a file");
    out(&place, &dst.join("tree"), &["--atomic", "--delete", "--receipt", text(&dst.join("3.jsonl"))]).ok();
    assert!(lines(&dst.join("3.jsonl")).iter().any(|line| line.get("removed") == Some(&Value::from("mine"))));
    verified(&place, &dst.join("3.jsonl")).ok();
    assert_eq!(all_names(&dst).into_iter().filter(|name| name.starts_with('.')).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_destination_that_fails_is_named_and_no_line_is_wrong() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    fs::create_dir_all(src.join("sub")).expect("directories");
    fs::write(src.join("small"), "fits").expect("a file");
    // With a hole, so that nothing is known of the room that it takes.
    let large = File::create(src.join("sub/large")).expect("a file");
    large.write_all_at(&vec![7; 24 << 20], 0).expect("room");
    large.set_len(64 << 20).expect("a hole");
    fs::create_dir(&dst).expect("a directory");
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    // A directory where a file is to be, and the other way round.
    fs::create_dir_all(dst.join("run/small")).expect("a directory");
    fs::write(dst.join("run/sub"), "a file").expect("a file");
    let ran = out(&place, &dst.join("run"), &[]).code(5);
    for told in ["run/small: a directory is there", "run/sub: no directory is there", "2 obstacles"] {
        assert!(ran.err.contains(told), "{}", ran.err);
    }
    assert_eq!(
        (names(&dst), names(&dst.join("run"))),
        (vec!["run".to_owned()], vec!["small".to_owned(), "sub".into()])
    );
    match Disk::in_memory(&place, "full", 8 << 20) {
        Err(why) => leave_out("a_destination_that_fails_is_named_and_no_line_is_wrong", &why),
        Ok(full) => {
            // Too small as is seen before, and as turns out.
            place.aze(&["cp", "--quiet", text(&src.join("sub/large")), "aze:/solid"]).ok();
            let receipt = place.path("full.jsonl");
            let more = ["--receipt", text(&receipt)];
            let ran = out(&place, &full.dir.join("run"), &more).code(1);
            assert!(ran.err.contains("sub/large") && ran.err.contains("no space left"), "{}", ran.err);
            assert_eq!(paths(&receipt), ["", "small", "sub"]);
            assert_eq!(names(&full.dir.join("run/sub")), [""; 0]);
            verified(&place, &receipt).ok();
            fs::write(src.join("solid"), vec![3; 24 << 20]).expect("a file");
            place.aze(&["cp", "--quiet", text(&src.join("solid")), "aze:/in/solid"]).ok();
            let ran = out(&place, &full.dir.join("more"), &[]).code(5);
            assert!(ran.err.contains("there is room for"), "{}", ran.err);
            assert!(!full.dir.join("more").exists());
            // Read-only.
            run(Command::new("mount").args(["-o", "remount,ro"]).arg(&full.dir));
            let ran = out(&place, &full.dir.join("run"), &["--state", text(&place.path("state-ro"))]).code(5);
            assert!(ran.err.to_lowercase().contains("read-only"), "{}", ran.err);
            full.unmount();
        }
    }
}

/// The line that had no room was not cut off, and the next one that had some came in the middle of it: no later attempt took the state.
#[test]
fn a_state_without_room_is_one_when_there_is_room_again() {
    let place = Place::new();
    let disk = match Disk::in_memory(&place, "small", 64 << 10) {
        Err(why) => return leave_out("a_state_without_room_is_one_when_there_is_room_again", &why),
        Ok(disk) => disk,
    };
    place.up(&["--servers", "2"]);
    let (src, to, state) = (place.path("src"), place.path("to"), disk.dir.join("state"));
    fs::create_dir(&src).expect("a directory");
    for number in 0..1500u32 {
        fs::write(src.join(number.to_string()), number.to_le_bytes()).expect("a file");
    }
    place.aze(&["cp", "-r", "--quiet", text(&src), "aze:/in"]).ok();
    let words = ["stage", "out", "aze:/in", text(&to), "--quiet", "--jobs", "4", "--state", text(&state)];
    let mut child = place.command(&words).stderr(Stdio::piped()).spawn().expect("aze starts");
    let told = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut has_room = false;
    for line in told.lines().map_while(Result::ok) {
        if !has_room && line.contains("keep the state") && line.contains("no space left") {
            run(Command::new("mount").args(["-o", "remount,size=50M"]).arg(&disk.dir));
            has_room = true;
        }
    }
    assert_eq!(ended(&mut child).code(), Some(1));
    assert!(has_room, "the state had room from the beginning");
    place.aze(&words).ok();
    assert!(!state.exists());
    disk.unmount();
}

/// The exit code said that nothing was copied.
/// An earlier build left a line that was cut short, with another one in the middle of it.
#[test]
fn a_damaged_state_says_what_to_do() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    place.aze(&["touch", "aze:/f"]).ok();
    let (state, to) = (place.path("state"), place.path("to"));
    let words = ["stage", "out", "aze:/f", text(&to), "--quiet", "--state", text(&state)];
    let first = r#"{"state":"azekura stage 1","order":"out /f"}"#;
    fs::write(&state, format!("{first}\n{{\"attempt\":\"a\",\"sta{{\"attempt\":\"b\"}}\n")).expect("a file");
    for ran in [place.aze(&words).code(7), place.aze(&["stage", "status", text(&state)]).code(7)] {
        let told = format!("{}: the state of this stage is damaged at byte {}", state.display(), first.len() + 1);
        assert!(ran.err.contains(&told) && ran.err.contains("remove the file"), "{}", ran.err);
    }
    fs::remove_file(&state).expect("it goes");
    place.aze(&words).ok();
}

#[test]
fn a_receipt_without_room_leaves_what_was_copied() {
    let place = Place::new();
    let disk = match Disk::in_memory(&place, "small", 8 << 10) {
        Err(why) => return leave_out("a_receipt_without_room_leaves_what_was_copied", &why),
        Ok(disk) => disk,
    };
    place.up(&["--servers", "2"]);
    let (src, to) = (place.path("src"), place.path("to"));
    fs::create_dir(&src).expect("a directory");
    (0..100).for_each(|number| fs::write(src.join(number.to_string()), "contents").expect("a file"));
    place.aze(&["cp", "-r", "--quiet", text(&src), "aze:/in"]).ok();
    let ran = out(&place, &to, &["--receipt", text(&disk.dir.join("receipt"))]).code(1);
    assert!(ran.err.contains("no space left on device: 101 objects are proven"), "{}", ran.err);
    assert_eq!((names(&to).len(), names(&disk.dir)), (100, Vec::new()));
    let receipt = place.path("receipt");
    out(&place, &to, &["--receipt", text(&receipt)]).ok();
    // What is in the way is found before anything is copied.
    let ran = out(&place, &place.path("other"), &["--receipt", text(&receipt)]).code(5);
    assert!(ran.err.contains("a receipt is never replaced") && ran.err.contains("nothing was copied"), "{}", ran.err);
    assert!(!place.path("other").exists());
    disk.unmount();
}

/// 0 bytes of it were proven.
#[test]
fn a_file_that_is_longer_than_its_file_system_says_is_not_proven() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    assert_eq!(fs::metadata("/proc/version").expect("a file").len(), 0);
    let receipt = place.path("receipt");
    let ran = place.aze(&["stage", "in", "/proc/version", "aze:/version", "--receipt", text(&receipt)]).code(1);
    assert!(ran.err.contains("/proc/version: more bytes can be read of it than the 0"), "{}", ran.err);
    assert_eq!(paths(&receipt), [""; 0]);
    place.aze(&["stat", "aze:/version"]).code(3);
}

/// Requests of a kind that the servers of the volume have answered, for each of so many files, in hundredths.
fn asked_of_each(place: &Place, files: u64) -> BTreeMap<String, u64> {
    let status: Value = serde_json::from_str(&place.aze(&["status", "--json"]).ok().out).expect("JSON");
    let servers = status["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 2);
    let mut asked = BTreeMap::new();
    for (kind, count) in servers.iter().flat_map(|server| server["requests"].as_object().expect("counters")) {
        *asked.entry(kind.clone()).or_default() += count.as_u64().expect("a count") * 100 / files;
    }
    asked
}

/// What a stage of small files takes is, beside the work of the file system, requests that wait for each other.
#[test]
fn a_small_file_is_staged_with_few_requests() {
    const FILES: u64 = 300;
    // A volume for each: once something was staged, `aze status` looks at that, with requests of its own after it has counted.
    let takes = |what: &str, before: &[&str], words: &[&str], most: &[(&str, u64)]| {
        let place = Place::new();
        place.up(&["--servers", "2"]);
        let src = place.path("src");
        fs::create_dir(&src).expect("a directory");
        for number in 0..FILES {
            fs::write(src.join(format!("f{number}")), format!("file {number}")).expect("a file");
        }
        let (src, out) = (text(&src).to_owned(), text(&place.path("out")).to_owned());
        let run = |words: &[&str]| {
            let words: Vec<&str> = words
                .iter()
                .map(|word| {
                    if *word == "SRC" {
                        &src
                    } else if *word == "OUT" {
                        &out
                    } else {
                        *word
                    }
                })
                .collect();
            place.aze(&words).ok();
        };
        if !before.is_empty() {
            run(before);
        }
        let before = asked_of_each(&place, FILES);
        run(words);
        let after = asked_of_each(&place, FILES);
        let of = |kind: &str| after.get(kind).unwrap_or(&0) - before.get(kind).unwrap_or(&0);
        // A tenth for directories, closes and requests that come once.
        let too_many = most.iter().filter(|(kind, count)| of(kind) > count * 100 + 10);
        let too_many: Vec<_> =
            too_many.map(|(kind, count)| format!("{kind}: {} instead of {count}00", of(kind))).collect();
        assert!(too_many.is_empty(), "{what}, for 100 files: {too_many:?}");
        // They are made at all, or the numbers say nothing.
        assert!((190..=210).contains(&of("CountChanges")) && of("Read") >= 90, "{what}: {after:?}");
        place.aze(&["down", "--discard"]).ok();
    };
    // Of a new file: its temporary name is on the server of its own, so that no server asks another one to rename it.
    let most = [
        ("Create", 1),
        ("Write", 1),
        ("SetAttr", 1),
        ("Open", 1),
        ("OpenName", 0),
        ("Read", 1),
        ("Rename", 1),
        ("Prepare", 0),
        ("Commit", 0),
    ];
    takes("in", &[], &["stage", "in", "SRC", "aze:/in", "--quiet"], &most);
    let most = [("Lookup", 1), ("GetAttr", 1), ("Open", 1), ("OpenName", 0), ("Read", 1), ("ListXattr", 0)];
    takes("out", &["cp", "-r", "SRC", "aze:/in"], &["stage", "out", "aze:/in", "OUT", "--quiet"], &most);
}

/// The threads that copy a file of many parts go on with one look for holes, and each server is asked only for holes it
/// has not told yet.
#[test]
fn a_file_of_many_holes_is_staged_with_one_look_for_each() {
    const PIECES: u64 = 200;
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    fs::create_dir(&src).expect("a directory");
    fs::create_dir(&dst).expect("a directory");
    let sparse = File::create(src.join("sparse")).expect("a file");
    // Pieces that are on one server each; several parts of 64 MiB have none.
    const PIECE_STEP: u64 = 101 << 20;
    sparse.set_len(PIECES * PIECE_STEP).expect("a hole");
    for piece in 0..PIECES {
        sparse.write_all_at(format!("piece {piece}").as_bytes(), piece * PIECE_STEP).expect("data");
    }
    let mut before = asked_of_each(&place, PIECES);
    for (what, words) in [
        ("in", ["stage", "in", text(&src), "aze:/in", "--quiet"]),
        ("out", ["stage", "out", "aze:/in", text(&dst.join("run")), "--quiet"]),
    ] {
        place.aze(&words).ok();
        let after = asked_of_each(&place, PIECES);
        let of = |kind: &str| after.get(kind).unwrap_or(&0) - before.get(kind).unwrap_or(&0);
        // A tenth for requests that come once.
        assert!((100..=110).contains(&of("Seek")), "{what}, for 100 pieces: {} requests", of("Seek"));
        before = after;
    }
    let copied = File::open(dst.join("run/sparse")).expect("a copy");
    for piece in 0..PIECES {
        let expected = format!("piece {piece}");
        let mut found = vec![0; expected.len()];
        copied.read_exact_at(&mut found, piece * PIECE_STEP).expect("data");
        assert_eq!(found, expected.as_bytes());
    }
    verified(&place, &receipts(&dst)[0]).ok();
    place.aze(&["down", "--discard"]).ok();
}

#[test]
fn a_file_of_a_hundred_gigabytes_of_holes_is_staged_in_seconds() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let (src, dst) = (place.path("src"), place.path("dst"));
    fs::create_dir_all(&src).expect("a directory");
    fs::create_dir_all(&dst).expect("a directory");
    let sparse = File::create(src.join("sparse")).expect("a file");
    sparse.set_len(100 << 30).expect("a hole");
    for at in [0, 1 << 30, (100 << 30) - 5] {
        sparse.write_all_at(b"data", at).expect("data");
    }
    let started = Instant::now();
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    out(&place, &dst.join("run"), &[]).ok();
    verified(&place, &receipts(&dst)[0]).ok();
    let took = started.elapsed();
    assert!(took.as_secs() < 20, "{took:?}");
    let copy = fs::metadata(dst.join("run/sparse")).expect("a file");
    assert!(copy.len() == 100 << 30 && copy.blocks() < 1 << 12, "{} blocks", copy.blocks());
    let mut data = [0; 4];
    File::open(dst.join("run/sparse")).and_then(|file| file.read_exact_at(&mut data, (100 << 30) - 5)).expect("data");
    assert_eq!(&data, b"data");
}
