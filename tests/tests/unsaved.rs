//! Objects that a volume alone holds are known, and `aze down` does not drop them.

use aze_tests::{Draw, Place, Ran, run, signal, wait_until};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// `aze down` with a lost server ends within this time: its patience with a few objects of that server, and a busy machine.
const LOST_TIME_MAX: Duration = Duration::from_secs(60);

/// Changes between two looks of the test with random changes, and its rounds.
const CHANGES: u64 = 3;
const ROUNDS: u64 = 14;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A small tree, with a file of several chunks.
fn source(place: &Place) -> PathBuf {
    let src = place.path("src");
    fs::create_dir_all(src.join("sub")).expect("directories");
    fs::write(src.join("a"), "contents").expect("a file");
    fs::write(src.join("sub/large"), vec![7; 5 << 20]).expect("a file");
    std::os::unix::fs::symlink("a", src.join("link")).expect("a link");
    src
}

fn status(place: &Place) -> Value {
    serde_json::from_str(&place.aze(&["stage", "status", "aze:/", "--json"]).ok().out).expect("JSON")
}

/// The paths of dirty objects, each with the reason.
fn dirty(place: &Place) -> Vec<String> {
    let status = status(place);
    let first = status["first"].as_array().expect("a list");
    assert_eq!(status["dirty"], first.len(), "all are named: {status}");
    let of = |named: &Value| Some(format!("{} {}", named["path"].as_str()?, named["why"].as_str()?));
    first.iter().map(|named| of(named).expect("path and reason")).collect()
}

fn refused(place: &Place, words: &[&str]) -> Ran {
    let ran = place.aze(&["down", "--force"]).code(8);
    for word in words.iter().chain(&["--discard", "--stage-out"]) {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
    place.aze(&["ls", "aze:/"]).ok();
    ran
}

fn ledgers(place: &Place) -> Vec<PathBuf> {
    let dirs = fs::read_dir(place.path("state/azekura/ledgers")).into_iter().flatten().flatten();
    let files = dirs.flat_map(|dir| fs::read_dir(dir.path()).expect("a directory")).flatten();
    files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "ledger")).collect()
}

#[test]
fn each_way_in_which_a_volume_has_what_is_nowhere_else_keeps_it_from_ending() {
    let mut place = Place::new();
    place.up(&["--servers", "3"]);
    let (src, out) = (source(&place), place.path("out"));
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    assert_eq!(dirty(&place), [""; 0]);
    let mount = place.mount();
    let large = mount.join("in/sub/large");
    let before = fs::metadata(&large).expect("a file");
    // Beyond the first chunk, and the times are set back.
    File::options().write(true).open(&large).expect("a file").write_all_at(b"x", 3 << 20).expect("room");
    run(Command::new("touch").arg("-r").arg(src.join("sub/large")).arg(&large));
    assert_eq!(fs::metadata(&large).expect("a file").mtime_nsec(), before.mtime_nsec());
    fs::set_permissions(mount.join("in/a"), Permissions::from_mode(0o600)).expect("a mode");
    fs::write(mount.join("new"), "new").expect("a file");
    fs::rename(mount.join("in/link"), mount.join("in/moved")).expect("another name");
    let found = dirty(&place);
    let expected = [
        "aze:/in attributes changed",
        "aze:/in/a attributes changed",
        "aze:/in/moved new",
        "aze:/in/sub/large changed",
        "aze:/new new",
    ];
    assert_eq!(found, expected);
    refused(&place, &["5 objects", "aze:/in/sub/large (changed)", "aze:/new (new)"]);
    // A receipt for all of it.
    let stage_out = |more: &[&str]| place.aze(&[&["stage", "out", "aze:/", text(&out), "--json"], more].concat()).ok();
    stage_out(&[]);
    assert_eq!(dirty(&place), [""; 0]);
    // Again: nothing is copied that has not changed.
    fs::write(mount.join("new"), "newer").expect("a file");
    let told: Value = serde_json::from_str(&stage_out(&[]).out).expect("JSON");
    assert_eq!((&told["proven"], &told["resumed"], &told["missing"]), (&7.into(), &3.into(), &0.into()), "{told}");
    assert_eq!(fs::read(out.join("new")).expect("a file"), b"newer");
    // A removal is not staged out before the destination has lost the name, too.
    fs::remove_file(mount.join("new")).expect("it goes");
    assert_eq!(dirty(&place), ["aze:/ attributes changed", "aze:/new removed"]);
    stage_out(&[]);
    assert_eq!(dirty(&place), ["aze:/new removed"]);
    refused(&place, &["aze:/new (removed)"]);
    stage_out(&["--delete"]);
    assert!(!out.join("new").exists());
    // Without its ledgers nothing is known, and a damaged one is not believed.
    let kept = ledgers(&place);
    assert_eq!(kept.len(), 2);
    for ledger in &kept {
        let bytes = fs::read(ledger).expect("a ledger");
        fs::write(ledger, &bytes[..bytes.len() - 12]).expect("room");
        let told = place.aze(&["down", "--force"]).code(7);
        assert!(told.err.contains("damaged"), "{}", told.err);
        fs::rename(ledger, ledger.with_extension("aside")).expect("another name");
        fs::write(ledger.with_extension("aside"), &bytes).expect("room");
    }
    assert!(refused(&place, &["aze:/in/a (new)"]).err.contains("aze:/in/moved (new)"));
    kept.iter().for_each(|ledger| fs::rename(ledger.with_extension("aside"), ledger).expect("its name"));
    // All is elsewhere: it ends, and leaves no ledgers.
    let told = place.aze(&["down", "--force"]).ok();
    assert!(told.err.contains("has ended"), "{}", told.err);
    assert_eq!(ledgers(&place), [""; 0].map(PathBuf::from));
}

#[test]
fn a_volume_of_which_nobody_asked_for_it_ends_as_ever() {
    let place = Place::new();
    let src = source(&place);
    place.up(&["--servers", "2"]);
    place.aze(&["cp", "-r", text(&src), "aze:/"]).ok();
    place.aze(&["stage", "out", "aze:/src", text(&place.path("out")), "--quiet"]).ok();
    place.aze(&["stage", "status", "aze:/"]).code(3);
    assert_eq!(ledgers(&place), [""; 0].map(PathBuf::from));
    place.aze(&["down"]).ok();
    // With --keep a second time is cheap, and still keeps nothing from ending.
    place.up(&["--servers", "2"]);
    place.aze(&["cp", "-r", text(&src), "aze:/"]).ok();
    place.aze(&["stage", "out", "aze:/src", text(&place.path("out")), "--quiet", "--keep"]).ok();
    assert_eq!(ledgers(&place).len(), 1);
    assert_eq!(status(&place)["guarded"], false);
    place.aze(&["cp", text(&src.join("a")), "aze:/more"]).ok();
    place.aze(&["down"]).ok();
    assert_eq!(ledgers(&place), [""; 0].map(PathBuf::from));
}

/// That 'aze down' refuses was said of a volume that it ends.
#[test]
fn that_a_volume_does_not_end_is_said_only_if_it_does_not() {
    let place = Place::new();
    place.up(&["--stage-out", text(&place.path("results"))]);
    let told = || place.aze(&["stage", "status", "aze:/"]).ok().out;
    let (refuses, clean) = ("'aze down' refuses", told());
    assert!(clean.contains("dirty   0 objects") && !clean.contains(refuses), "{clean}");
    place.aze(&["cp", "/etc/os-release", "aze:/file"]).ok();
    assert!(told().contains(refuses), "{}", told());
    place.aze(&["down", "--stage-out"]).ok();
}

#[test]
fn what_is_nowhere_else_is_staged_out_before_the_end_if_asked_for() {
    let place = Place::new();
    let (src, out) = (source(&place), place.path("results"));
    let receipts = || -> Vec<PathBuf> {
        let names = fs::read_dir(&place.dir).expect("a directory").map(|entry| entry.expect("one").path());
        names.filter(|path| path.to_string_lossy().contains("azekura-receipt-")).collect()
    };
    place.up(&["--servers", "2", "--stage-out", text(&out)]);
    place.aze(&["cp", "-r", text(&src), "aze:/"]).ok();
    refused(&place, &["5.00 MiB", "aze:/src/a (new)"]);
    place.aze(&["down", "--stage-out"]).ok();
    assert_eq!(receipts().len(), 1);
    place.aze(&["receipt", "verify", text(&receipts()[0])]).ok();
    run(Command::new("diff").args(["-r", "--no-dereference"]).args([&src, &out.join("src")]));
    fs::remove_file(&receipts()[0]).expect("it goes");
    // Files that were staged in and have not changed are not copied back.
    place.up(&["--servers", "2"]);
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    place.aze(&["cp", text(&src.join("a")), "aze:/in/sub/result"]).ok();
    place.aze(&["down", "--stage-out"]).code(2);
    let other = place.path("other");
    place.aze(&["down", "--stage-out", text(&other)]).ok();
    assert_eq!(fs::read(other.join("in/sub/result")).expect("a file"), b"contents");
    assert!(!other.join("in/a").exists() && !other.join("in/sub/large").exists());
    place.aze(&["receipt", "verify", text(&receipts()[0])]).ok();
    // A destination that cannot be written.
    place.up(&["--servers", "2", "--stage-out", "/proc/none/here"]);
    place.aze(&["cp", text(&src.join("a")), "aze:/a"]).ok();
    let told = place.aze(&["down", "--stage-out"]).code(8);
    assert!(told.err.contains("could not be staged out") || told.err.contains("not all of it"), "{}", told.err);
    place.aze(&["down", "--discard"]).ok();
}

#[test]
fn lost_servers_are_told_and_not_waited_for() {
    let place = Place::new();
    place.up(&["--servers", "3"]);
    let src = place.path("src");
    fs::create_dir(&src).expect("a directory");
    (0..40).for_each(|number| fs::write(src.join(number.to_string()), "contents").expect("a file"));
    place.aze(&["stage", "in", text(&src), "aze:/in", "--quiet"]).ok();
    place.aze(&["stage", "out", "aze:/in", text(&place.path("out")), "--quiet"]).ok();
    let told: Value = serde_json::from_str(&place.aze(&["status", "--json"]).ok().out).expect("JSON");
    let pids: Vec<u32> = told["servers"]
        .as_array()
        .expect("servers")
        .iter()
        .map(|server| server["pid"].as_u64().expect("a number") as u32)
        .collect();
    assert_eq!(pids.len(), 3);
    let looked = &told["staging"];
    assert_eq!((&looked["staged"], &looked["dirty"], &looked["why"]), (&41.into(), &0.into(), &Value::Null), "{told}");
    for victim in [pids[2], pids[0]] {
        signal(victim, libc::SIGKILL);
        wait_until("the server is dead", || !Path::new(&format!("/proc/{victim}/exe")).exists());
        let started = Instant::now();
        let told = place.aze(&["down", "--force"]).code(7);
        assert!(started.elapsed() < LOST_TIME_MAX, "{:?}", started.elapsed());
        assert!(
            told.err.lines().any(|line| line.starts_with("lost  ")) && told.err.contains("--discard"),
            "{}",
            told.err
        );
        assert!(!told.err.contains("removed"), "names that a lost server has were not removed: {}", told.err);
        println!("a lost server: refused after {:?}", started.elapsed());
        let started = Instant::now();
        let told = place.aze(&["status"]).code(1);
        assert!(started.elapsed() < LOST_TIME_MAX, "{:?}", started.elapsed());
        assert!(told.out.contains("dirty: not looked at, since a server does not answer"), "{}", told.out);
    }
    place.aze(&["down", "--force", "--discard"]).ok();
}

/// Counts of changes begin anew with a server, so all data count as changed then, until the next stage has compared them.
#[test]
fn what_was_staged_is_compared_again_after_a_restart() {
    let place = Place::new();
    let (src, out) = (source(&place), place.path("out"));
    let storage = place.path("storage");
    let up = ["--servers", "2", "--storage", text(&storage), "--stage-out", text(&out)];
    place.up(&up);
    place.aze(&["cp", "-r", text(&src), "aze:/"]).ok();
    place.aze(&["stage", "out", "aze:/", text(&out), "--quiet"]).ok();
    assert_eq!(dirty(&place), [""; 0]);
    place.aze(&["down"]).ok();
    place.up(&up);
    assert_eq!(status(&place)["guarded"], true, "the volume has kept its account");
    assert_eq!(dirty(&place), ["aze:/src/a changed", "aze:/src/sub/large changed"]);
    refused(&place, &["2 objects"]);
    let inodes = || ["a", "sub/large"].map(|name| fs::metadata(out.join("src").join(name)).expect("a file").ino());
    let before = inodes();
    place.aze(&["stage", "out", "aze:/", text(&out), "--quiet"]).ok();
    assert_eq!((dirty(&place), inodes()), (vec![], before), "compared, not copied");
    place.aze(&["down"]).ok();
}

/// `aze stage out` in rounds copies all changes, makes no receipt where there are none, and ends by a signal.
#[test]
fn changes_are_staged_out_while_programs_run() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let (mount, dst) = (place.mount(), place.path("dst"));
    fs::create_dir(&dst).expect("a directory");
    fs::create_dir(mount.join("out")).expect("a directory");
    fs::write(mount.join("out/first"), "first").expect("a file");
    let out = dst.join("run");
    place.aze(&["stage", "out", "aze:/out", text(&out), "--every", "0s"]).code(2);
    place.aze(&["stage", "out", "aze:/out", text(&out), "--every", "1s", "--atomic"]).code(2);
    let told = place.path("told");
    let spawn =
        |command: &mut Command| command.stdout(File::create(&told).expect("a file")).spawn().expect("aze starts");
    let mut child =
        spawn(&mut place.command(&["stage", "out", "aze:/out", text(&out), "--every", "100ms", "--delete", "--json"]));
    let has = |name: &str, contents: &str| fs::read(out.join(name)).is_ok_and(|bytes| bytes == contents.as_bytes());
    // A round is over when it has told of its receipt.
    let rounds = || fs::read_to_string(&told).expect("text").lines().count();
    wait_until("the first file is staged", || has("first", "first") && rounds() == 1);
    fs::write(mount.join("out/second"), "second").expect("a file");
    wait_until("the second file is staged", || has("second", "second"));
    fs::write(mount.join("out/first"), "other").expect("a file");
    fs::remove_file(mount.join("out/second")).expect("it goes");
    wait_until("all is as in the volume", || has("first", "other") && !out.join("second").exists());
    wait_until("nothing is dirty", || status(&place)["staged"] == 2 && status(&place)["dirty"] == 0);
    let files = || fs::read_dir(&dst).expect("a directory").flatten().filter(|entry| entry.path().is_file()).count();
    wait_until("the last round has told of its receipt", || rounds() == files());
    let before = rounds();
    assert!((2..=6).contains(&before), "{before} rounds for five changes");
    // While nothing changes, looks go on, and none makes a receipt.
    let elsewhere = place.path("elsewhere");
    let asked = || -> u64 {
        // Without the ledgers, so that this command counts no changes itself.
        let ran = place.command(&["status", "--json"]).env("XDG_STATE_HOME", &elsewhere).output().expect("aze starts");
        let status: Value = serde_json::from_str(&Ran::from(ran).ok().out).expect("JSON");
        let servers = status["servers"].as_array().expect("servers").clone();
        servers.iter().filter_map(|server| server["requests"]["CountChanges"].as_u64()).sum()
    };
    let counted = asked();
    wait_until("it has looked again", || asked() > counted + 4);
    assert_eq!(rounds(), before);
    signal(child.id(), libc::SIGTERM);
    assert_eq!(child.wait().expect("a child").code(), Some(0));
    let receipts: Vec<PathBuf> = fs::read_dir(&dst)
        .expect("a directory")
        .map(|entry| entry.expect("one").path())
        .filter(|path| path.is_file())
        .collect();
    assert_eq!(receipts.len(), before, "{receipts:?}");
    let good = receipts.iter().filter(|receipt| place.aze(&["receipt", "verify", text(receipt)]).code == 0).count();
    assert!(good >= 1, "the last receipt is true");
    place.aze(&["down", "--force"]).ok();
}

#[test]
fn a_last_round_is_over_before_the_end_of_the_job() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let (mount, out) = (place.mount(), place.path("out"));
    fs::write(mount.join("first"), "first").expect("a file");
    let words = ["stage", "out", "aze:/", text(&out), "--before-end=2s", "--quiet"];
    let told = place.aze(&words).code(2);
    assert!(told.err.contains("--until"), "{}", told.err);
    let end = std::time::SystemTime::now() + Duration::from_secs(9);
    let seconds = end.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs().to_string();
    let mut child = place.command(&words).env("SLURM_JOB_END_TIME", seconds).spawn().expect("aze starts");
    wait_until("the first round is over", || out.join("first").exists() && status(&place)["dirty"] == 0);
    fs::write(mount.join("last"), "last").expect("a file");
    assert!(child.try_wait().expect("a child").is_none(), "it waits for the end");
    assert!(child.wait().expect("a child").success());
    assert!(std::time::SystemTime::now() < end, "it was late");
    assert_eq!(fs::read(out.join("last")).expect("a file"), b"last");
    // What cannot be in time is said, and begun at once.
    fs::write(mount.join("more"), "more").expect("a file");
    let told = place.aze(&["stage", "out", "aze:/", text(&out), "--before-end", "--until", "@1", "--quiet"]).ok();
    assert!(told.err.contains("may not be staged in the 0 s"), "{}", told.err);
    assert_eq!(status(&place)["dirty"], 0);
}

/// `aze status` of a volume that keeps account: dirty bytes, stages at work, and whether it still fits into the job.
#[test]
fn status_tells_what_is_dirty_and_whether_it_still_fits_into_the_job() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let (mount, out) = (place.mount(), place.path("out"));
    let of = |variables: &[(&str, &str)], more: &[&str]| -> Ran {
        let mut command = place.command(&[&["status"], more].concat());
        Ran::from(command.envs(variables.iter().copied()).output().expect("aze starts")).ok()
    };
    let object = |variables: &[(&str, &str)]| -> Value {
        let told: Value = serde_json::from_str(&of(variables, &["--json"]).out).expect("JSON");
        told["staging"].clone()
    };
    assert_eq!(object(&[]), Value::Null, "it keeps no account");
    fs::create_dir(mount.join("run")).expect("a directory");
    fs::write(mount.join("run/first"), vec![1; 3 << 20]).expect("a file");
    // A stage that waits for its next round is at work.
    let words = ["stage", "out", "aze:/run", text(&out), "--every", "1h", "--quiet"];
    let mut child = place.command(&words).spawn().expect("aze starts");
    wait_until("the first round is over", || object(&[])["dirty"] == 0);
    let told = object(&[]);
    assert_eq!((&told["staged"], &told["staged_bytes"], &told["fits"]), (&2.into(), &(3 << 20).into(), &Value::Null));
    let works = told["at_work"].as_array().expect("a list");
    assert_eq!(works.len(), 1, "{told}");
    let expected = (&Value::from("aze:/run"), &Value::from(text(&out)), &Value::from(child.id()));
    assert_eq!((&works[0]["from"], &works[0]["to"], &works[0]["pid"]), expected, "{told}");
    let line = format!("staging out aze:/run to {} (pid {} on ", out.display(), child.id());
    assert!(of(&[], &[]).out.contains(&line), "{}", of(&[], &[]).out);
    signal(child.id(), libc::SIGTERM);
    child.wait().expect("a child");
    assert_eq!(object(&[])["at_work"], Value::Array(vec![]));
    // The job has a million seconds left, and then none.
    fs::write(mount.join("run/second"), vec![2; 2 << 20]).expect("a file");
    let end = std::time::SystemTime::now() + Duration::from_secs(1_000_000);
    let end = end.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs().to_string();
    let (late, soon) = ([("SLURM_JOB_END_TIME", end.as_str())], [("SLURM_JOB_END_TIME", "1")]);
    let told = object(&late);
    assert_eq!(
        (&told["dirty"], &told["dirty_bytes"], &told["fits"]),
        (&2.into(), &(2 << 20).into(), &true.into()),
        "{told}"
    );
    let ran = of(&late, &[]);
    assert!(
        ran.out.contains("dirty: 2 objects, 2.00 MiB") && ran.out.contains("the job ends in 11d 13h"),
        "{}",
        ran.out
    );
    assert_eq!(ran.err, "", "there is time enough");
    let told = object(&soon);
    assert_eq!((&told["job_left_s"], &told["fits"]), (&0.0.into(), &false.into()), "{told}");
    assert!(told["needed_s"].as_f64().is_some_and(|needed| needed > 0.0) && told["speed_is_guess"] == false, "{told}");
    let ran = of(&soon, &[]);
    let warned = ran.err.lines().filter(|line| line.contains("no longer fit into what is left")).count();
    assert!(warned == 1 && ran.err.contains("2.00 MiB"), "{}", ran.err);
    let warned = of(&soon, &["--json"]).err;
    let warned: Value = serde_json::from_str(&warned).expect("an object on standard error");
    assert!(warned["warning"].is_string(), "{warned}");
    place.aze(&["stage", "out", "aze:/run", text(&out), "--quiet"]).ok();
    assert_eq!(object(&soon)["fits"], true, "nothing is dirty");
}

/// Before a first stage out has shown its speed.
#[test]
fn status_warns_by_a_guess_before_anything_was_staged_out() {
    let place = Place::new();
    place.up(&["--servers", "1", "--stage-out", text(&place.path("out"))]);
    fs::write(place.path("input"), vec![1; 3 << 20]).expect("a file");
    place.aze(&["cp", text(&place.path("input")), "aze:/input"]).ok();
    let of = |end: &str, more: &[&str]| -> Ran {
        let mut command = place.command(&[&["status"], more].concat());
        Ran::from(command.env("SLURM_JOB_END_TIME", end).output().expect("aze starts")).ok()
    };
    let told: Value = serde_json::from_str(&of("1", &["--json"]).out).expect("JSON");
    let told = &told["staging"];
    assert_eq!((&told["speed_is_guess"], &told["fits"]), (&true.into(), &false.into()), "{told}");
    let ran = of("1", &[]);
    assert!(ran.out.contains("to stage out at 20.0 MiB/s, which is a guess"), "{}", ran.out);
    assert!(ran.err.contains("no longer fit into what is left"), "{}", ran.err);
    assert!(ran.err.contains("at 20.0 MiB/s, which is a guess"), "{}", ran.err);
    assert_eq!(of("9999999999", &[]).err, "", "there is time enough");
}

/// Random changes and stages. Whenever a volume is said to have nothing of its own, the destination has the same tree.
#[test]
fn a_volume_without_anything_dirty_is_as_its_copy() {
    let mut place = Place::new();
    let (src, out) = (source(&place), place.path("out"));
    place.up(&["--servers", "3", "--stage-out", text(&out)]);
    let mount = place.mount();
    run(Command::new("cp").arg("-a").arg(src.join(".")).arg(&mount));
    let seed = 18;
    let mut draw = Draw::new(seed, 0);
    let (mut clean, mut unclean) = (0, 0);
    place.aze(&["stage", "out", "aze:/", text(&out), "--quiet"]).ok();
    for round in 0..ROUNDS {
        for _ in 0..draw.below(CHANGES) {
            change(&mount, &mut draw);
        }
        if draw.below(2) == 0 {
            place.aze(&["stage", "out", "aze:/", text(&out), "--quiet", "--delete"]).ok();
        }
        let found = dirty(&place);
        let listed = |root: &Path| {
            let find = "find . -type d -printf '%p %m\\n' -o -type l -printf '%p %l\\n' -o -printf '%p %y %m %s %T@\\n' | sort; find . -type f | sort | xargs -r -d '\\n' sha256sum";
            run(Command::new("sh").args(["-c", find]).current_dir(root)).out
        };
        if found.is_empty() {
            clean += 1;
            assert_eq!(listed(&mount), listed(&out), "seed {seed}, round {round}");
        } else {
            unclean += 1;
        }
    }
    println!("{clean} looks found nothing dirty, {unclean} something");
    assert!(clean > 2 && unclean > 2, "{clean} {unclean}");
}

/// One random change of a tree.
fn change(mount: &Path, draw: &mut Draw) {
    let names: Vec<PathBuf> = ["a", "sub/large", "link", "b", "sub/c"].iter().map(|name| mount.join(name)).collect();
    let path = &names[draw.below(names.len() as u64) as usize];
    let is_file = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    match draw.below(7) {
        0 => {
            let _ = fs::remove_file(path);
        }
        1 => {
            let to = &names[draw.below(names.len() as u64) as usize];
            let _ = fs::rename(path, to);
        }
        2 if is_file => {
            fs::set_permissions(path, Permissions::from_mode(0o600 + draw.below(64) as u32)).expect("a mode")
        }
        3 if is_file => {
            let file = File::options().write(true).open(path).expect("a file");
            let meta = file.metadata().expect("attributes");
            file.write_all_at(&[draw.below(256) as u8], draw.below(meta.len().max(1))).expect("room");
            // As if nothing had happened.
            file.set_modified(meta.modified().expect("a time")).expect("a time");
        }
        4 if is_file => {
            File::options().write(true).open(path).expect("a file").set_len(draw.below(6 << 20)).expect("a length");
        }
        _ => {
            let _ = fs::remove_file(path);
            fs::write(path, vec![draw.below(256) as u8; draw.below(3 << 20) as usize]).expect("a file");
        }
    }
}
