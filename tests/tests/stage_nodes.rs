//! Staging by several nodes: each is a network namespace with a mount namespace and a number of a running system of its own.
//! Needs root.

use aze_tests::nodes::Nodes;
use aze_tests::staging::{ended, names, priorities, receipts, text};
use aze_tests::{Draw, Place, Ran, long, run, set_mode, signal, wait_until};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Kills of the command or of a worker, short and long.
const KILLS: u32 = 20;
const KILLS_LONG: u32 = 1000;

/// After so many seconds of silence a worker is given up.
const SILENCE: Duration = Duration::from_secs(10);

/// A worker says so often that it is there.
const BEAT: Duration = Duration::from_secs(1);

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The ways in which the files of a receipt that are not empty were read back.
fn ways(receipt: &Path) -> Vec<String> {
    let text = fs::read_to_string(receipt).expect("a receipt");
    let lines: Vec<Value> = text.lines().map(json).collect();
    let files = lines.iter().filter(|line| line["size"].as_u64() > Some(0) && line.get("same_as").is_none());
    files.map(|line| line["read_back"].as_str().expect("a word").to_owned()).collect()
}

/// A volume over nodes, and a directory that all of them see.
struct Site {
    place: Place,
    nodes: Nodes,
    src: PathBuf,
    dst: PathBuf,
}

impl Site {
    /// With a node for each server. A node for which there is a file `down-ADDRESS` is not reached any more. As with ssh, the nice value
    /// of who starts a program there does not get there.
    fn new(tag: &str, count: u32) -> Site {
        let place = Place::new();
        let nodes = Nodes::new(tag, count);
        nodes.tell_systems_apart(&place);
        let (inner, launcher) = (nodes.launcher(&place), place.path("reach"));
        let inner = inner.replace("{host}", "\"$@\"");
        let script = format!(
            "#!/bin/sh\nif [ -e {}/down-$1 ]; then echo no route to $1 >&2; exit 255; fi\nexec nice -n -$(nice) {inner}\n",
            place.dir.display()
        );
        fs::write(&launcher, script).expect("a launcher");
        set_mode(&launcher, 0o755);
        let (src, dst) = (place.path("src"), place.path("dst"));
        fs::create_dir(&src).expect("a directory");
        fs::create_dir(&dst).expect("a directory");
        let site = Site { place, nodes, src, dst };
        site.up("v");
        site
    }

    /// Starts a volume over all nodes.
    fn up(&self, name: &str) {
        let hosts: Vec<String> = (1..=self.nodes.count).map(|at| format!("10.66.0.{at}")).collect();
        let launcher = format!("{} {{host}}", self.place.path("reach").display());
        self.aze(&["up", "--name", name, "--hosts", &hosts.join(","), "--launcher", &launcher, "--size", "1G"]).ok();
    }

    fn aze(&self, args: &[&str]) -> Ran {
        self.nodes.aze(&self.place, 1, args)
    }

    /// Stages all of `aze:/in` out, by all nodes if nothing else is said.
    fn out(&self, name: &str, nodes: &str, more: &[&str]) -> Ran {
        let to = self.dst.join(name);
        self.aze(&[&["stage", "out", "aze:/in", text(&to), "--quiet", "--nodes", nodes], more].concat())
    }

    fn start(&self, name: &str, more: &[&str]) -> Child {
        self.start_between(["out", "aze:/in", text(&self.dst.join(name))], more)
    }

    fn start_between(&self, [direction, from, to]: [&str; 3], more: &[&str]) -> Child {
        let program = aze_tests::program();
        let words = [text(&program), "stage", direction, from, to, "--quiet", "--nodes", "all"];
        let mut command = self.nodes.command(&self.place, 1, &[&words[..], more].concat());
        command.stdout(Stdio::null()).stderr(File::create(self.place.path("err")).expect("a file"));
        command.spawn().expect("nsenter runs")
    }

    fn err(&self) -> String {
        fs::read_to_string(self.place.path("err")).expect("a file")
    }

    fn verified(&self, receipt: &Path) {
        self.place.aze(&["receipt", "verify", text(receipt)]).ok();
    }

    /// The worker of a node, if one runs.
    fn worker(&self, index: u32) -> Option<u32> {
        let own = format!("AZE_RUN_DIR={}", text(&self.place.path(&format!("run-10.66.0.{index}"))));
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_worker = |pid: &u32| {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let (line, environment) = (read("cmdline"), read("environ"));
            line.ends_with(b"\0stage\0worker\0")
                && environment.split(|byte| *byte == 0).any(|word| word == own.as_bytes())
        };
        pids.into_iter().find(is_worker)
    }

    /// The nice values of all threads of the worker of a node, once it has some that copy.
    fn nice_of_worker(&self, index: u32) -> BTreeSet<i32> {
        let mut all = Vec::new();
        wait_until("a worker copies", || {
            all = self.worker(index).map(priorities).unwrap_or_default();
            all.iter().any(|(name, _)| name.starts_with("aze-stage-work"))
        });
        all.into_iter().map(|(_, nice)| nice).collect()
    }

    fn is_same(&self, name: &str) {
        run(Command::new("diff").args(["-r", "--no-dereference"]).args([&self.src, &self.dst.join(name)]));
    }

    /// Nothing hidden is left beside or below the destination.
    fn is_clean(&self) {
        let found = run(Command::new("find").arg(&self.dst).args(["-name", ".*"]));
        assert_eq!(found.out, "", "left over");
    }

    fn has_no_workers(&self) {
        wait_until("all workers have ended", || (1..=self.nodes.count).all(|index| self.worker(index).is_none()));
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.aze(&["down", "--all", "--discard"]);
    }
}

#[test]
fn a_volume_over_nodes_is_staged_by_all_of_them() {
    let site = Site::new("azsn", 3);
    let (src, dst) = (&site.src, &site.dst);
    fs::create_dir_all(src.join("sub/empty")).expect("directories");
    for number in 0..40u32 {
        fs::write(src.join(format!("sub/{number}")), number.to_le_bytes().repeat(3000)).expect("a file");
    }
    fs::write(src.join("none"), "").expect("a file");
    fs::hard_link(src.join("sub/1"), src.join("again")).expect("a link");
    symlink("sub/1", src.join("link")).expect("a link");
    let large: Vec<u8> = (0..150u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(src.join("large"), &large).expect("a file");
    let sparse = File::create(src.join("sparse")).expect("a file");
    sparse.set_len(200 << 20).expect("a hole");
    sparse.write_all_at(b"in the middle", (100 << 20) + 77).expect("data");
    drop(sparse);
    let receipt = site.place.path("in.jsonl");
    let told =
        site.aze(&["stage", "in", text(src), "aze:/in", "--nodes", "all", "--receipt", text(&receipt), "--json"]).ok();
    let told = json(&told.out);
    assert_eq!(
        (&told["proven"], &told["missing"], told["nodes"].as_array().map(Vec::len)),
        (&48.into(), &0.into(), Some(3)),
        "{told}"
    );
    let found = ways(&receipt);
    assert!(found.len() == 42 && found.iter().all(|way| way == "servers"), "{found:?}");
    site.aze(&["receipt", "verify", text(&receipt), "--root", "aze:/in"]).ok();

    let told = json(&site.out("run", "all", &["--json"]).ok().out);
    assert_eq!((&told["proven"], &told["missing"]), (&48.into(), &0.into()), "{told}");
    let shares = told["nodes"].as_array().expect("a list");
    let bytes = |field: &str| shares.iter().map(|share| share[field].as_u64().expect("a number")).collect::<Vec<_>>();
    let (copied, read) = (bytes("copied_bytes"), bytes("read_back_bytes"));
    let all = (350 << 20) + 40 * 12_000;
    assert!(copied.len() == 3 && copied.iter().all(|bytes| *bytes > 0), "{told}");
    assert_eq!((copied.iter().sum::<u64>(), read.iter().sum::<u64>()), (all, all), "{told}");
    let [receipt] = &receipts(dst)[..] else { panic!("{:?}", names(dst)) };
    site.verified(receipt);
    let found = ways(receipt);
    assert!(found.len() == 42 && found.iter().all(|way| way == "other_node"), "{found:?}");
    site.is_same("run");
    site.is_clean();
    site.has_no_workers();

    // One node reads back its own files; two that are one kernel are one node.
    site.out("one", "10.66.0.2", &["--receipt", text(&dst.join("one.jsonl"))]).ok();
    let own = BTreeSet::from(["direct", "dropped", "memory"].map(str::to_owned));
    assert!(ways(&dst.join("one.jsonl")).iter().all(|way| own.contains(way)));
    let id = site.place.path("boot_id-2");
    site.nodes.run(&site.place, 1, &["mount", "--bind", text(&id), "/proc/sys/kernel/random/boot_id"]).ok();
    site.out("two", "2", &["--atomic", "--receipt", text(&dst.join("two.jsonl"))]).ok();
    let found = ways(&dst.join("two.jsonl"));
    assert!(found.len() == 42 && found.iter().all(|way| own.contains(way)), "{found:?}");
    site.is_same("two");
    site.aze(&["stage", "out", "aze:/in/large", text(&dst.join("single")), "--quiet", "--nodes", "all"]).ok();
    assert!(fs::read(dst.join("single")).expect("a file") == large);
    site.out("run", "4", &[]).code(2);
    let why = site.out("run", "10.66.0.9", &[]).code(2).err;
    assert!(why.contains("'10.66.0.9' is no node of the volume: 10.66.0.1, 10.66.0.2, 10.66.0.3"), "{why}");

    // What does not reach all.
    fs::write(site.place.path("down-10.66.0.3"), "").expect("a file");
    let why = site.out("named", "10.66.0.1,10.66.0.3", &[]).code(5).err;
    assert!(why.contains("10.66.0.3: ") && why.contains("no route to 10.66.0.3"), "{why}");
    assert!(!dst.join("named").exists(), "nothing was copied");
    let ran = site.out("rest", "all", &["--json"]).ok();
    assert!(ran.err.contains("no route to 10.66.0.3") && ran.err.contains("the others copy"), "{}", ran.err);
    assert!(json(&ran.out)["nodes"][2]["lost"].as_str().is_some_and(|why| why.contains("no route")), "{}", ran.out);
    site.is_same("rest");
    (1..=3).for_each(|at| fs::write(site.place.path(&format!("down-10.66.0.{at}")), "").expect("a file"));
    let err = site.out("alone", "all", &["--receipt", text(&dst.join("alone.jsonl"))]).ok().err;
    assert_eq!(err.matches("this node copies alone").count(), 3, "{err}");
    assert!(ways(&dst.join("alone.jsonl")).iter().all(|way| own.contains(way)));
    (1..=3).for_each(|at| fs::remove_file(site.place.path(&format!("down-10.66.0.{at}"))).expect("removed"));
    let local = site.place.path("local");
    fs::create_dir(&local).expect("a directory");
    site.nodes.run(&site.place, 2, &["mount", "-t", "tmpfs", "local", text(&local)]).ok();
    for nodes in ["all", "10.66.0.1,10.66.0.2"] {
        let ran = site.aze(&["stage", "out", "aze:/in", text(&local.join("run")), "--nodes", nodes]).code(5);
        assert!(ran.err.contains("10.66.0.2: ") && ran.err.contains("another place here"), "{}", ran.err);
        assert!(!ran.err.contains("10.66.0.3"), "{}", ran.err);
    }
    let listed = site.nodes.run(&site.place, 2, &["ls", "-A", text(&local)]).ok().out;
    assert_eq!((names(&local), listed.as_str()), (Vec::new(), ""), "nothing is left anywhere");
    let ran = site.aze(&["stage", "in", text(&local), "aze:/none", "--nodes", "all"]);
    assert_eq!(ran.code, 0, "there is no file that a node could miss: {}", ran.err);
    fs::write(local.join("f"), "contents").expect("a file");
    let ran = site.aze(&["stage", "in", text(&local), "aze:/other", "--nodes", "all"]).code(5);
    assert!(ran.err.contains("10.66.0.2: ") && ran.err.contains("there is no such file"), "{}", ran.err);
    site.is_clean();
    site.has_no_workers();
}

/// A program on one node writes one mark after the other over all parts of a file, while nodes copy the parts. A copy that is proven has
/// the marks of one moment.
#[test]
fn a_volume_over_nodes_that_is_written_is_staged_as_of_one_moment_or_not_at_all() {
    staged_while_it_is_written(&Site::new("azsw", 3), None);
}

/// The same from volume to volume.
#[test]
fn a_volume_over_nodes_that_is_written_is_staged_into_another_one_as_of_one_moment_or_not_at_all() {
    let site = Site::new("azsb", 3);
    site.up("w");
    staged_while_it_is_written(&site, Some("aze://w"));
}

/// Stages again and again, into a directory or into another volume, while a program writes; then compares the copies.
fn staged_while_it_is_written(site: &Site, other: Option<&str>) {
    const MARKS: usize = 10;
    const STEP: usize = 14 << 20;
    fs::write(site.src.join("quiet"), "rests").expect("a file");
    let busy = File::create(site.src.join("busy")).expect("a file");
    busy.set_len((MARKS * STEP + 8) as u64).expect("a hole");
    (1..=MARKS).for_each(|mark| busy.write_all_at(&[0, 0, 0, 0, 0, 0, 0, 1], (mark * STEP) as u64).expect("room"));
    site.aze(&["stage", "in", text(&site.src), "aze://v/in", "--quiet", "--nodes", "all"]).ok();
    let script = format!(
        "import os, sys\nfile = os.open('/aze/in/busy', os.O_RDWR)\nfor number, _ in enumerate(sys.stdin):\n for mark in range(1, {MARKS} + 1):\n  \
         os.pwrite(file, number.to_bytes(8, 'little'), mark * {STEP})\n print(number, flush=True)\n"
    );
    let program = aze_tests::program();
    let words = [text(&program), "run", "--door", "mount", "--", "python3", "-c", &script];
    let mut writer = site.nodes.command(&site.place, 2, &words);
    let mut writer =
        writer.env("AZE_VOLUME", "v").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("nsenter runs");
    let mut orders = writer.stdin.take().expect("a pipe");
    let mut done = BufReader::new(writer.stdout.take().expect("a pipe"));
    let mut write_once = || {
        let mut line = String::new();
        orders.write_all(b"\n").and_then(|()| done.read_line(&mut line)).expect("it writes");
        assert!(line.ends_with('\n'), "the writer has ended");
    };
    write_once();
    let (mut changed, mut whole, mut rounds) = (0, 0, 0);
    for attempt in 0..8 {
        let (name, receipt) = (format!("run{attempt}"), site.place.path(&format!("receipt{attempt}")));
        let to = site.dst.join(&name);
        let inside = other.map(|volume| format!("{volume}/{name}"));
        let words = match &inside {
            None => ["out", "aze://v/in", text(&to)],
            Some(inside) => ["in", "aze://v/in", inside],
        };
        let mut child = site.start_between(words, &["--receipt", text(&receipt)]);
        // All the time, or a few times when it has begun.
        let most = if attempt % 2 == 0 { usize::MAX } else { attempt };
        let mut status = None;
        wait_until("it has begun", || {
            status = child.try_wait().expect("a child");
            let has_begun = || inside.as_ref().map_or(to.is_dir(), |inside| site.aze(&["ls", inside]).code == 0);
            status.is_some() || has_begun()
        });
        let mut count = 0;
        while status.is_none() && count < most {
            write_once();
            count += 1;
            status = child.try_wait().expect("a child");
        }
        rounds += count;
        let status = status.unwrap_or_else(|| ended(&mut child));
        site.aze(&["receipt", "verify", text(&receipt)]).ok();
        if let Some(inside) = &inside {
            site.aze(&["stage", "out", inside, text(&to), "--quiet"]).ok();
        }
        if status.success() {
            whole += 1;
            let copy = fs::read(to.join("busy")).expect("a file");
            let marks: Vec<u64> = (1..=MARKS)
                .map(|mark| u64::from_le_bytes(copy[mark * STEP..mark * STEP + 8].try_into().expect("eight")))
                .collect();
            let border = marks.iter().position(|mark| *mark != marks[0]).unwrap_or(MARKS);
            assert!(marks[border..].iter().all(|mark| mark + 1 == marks[0]), "never at one moment: {marks:?}");
        } else {
            changed += 1;
            assert_eq!(status.code(), Some(1), "{}", site.err());
            assert!(site.err().contains("busy: it changed while it was copied"), "{}", site.err());
            assert_eq!(names(&to), ["quiet"]);
        }
    }
    println!("{whole} copies, {changed} times changed, {rounds} rounds of writes meanwhile");
    assert!(whole > 0 && changed > 0);
    drop(orders);
    assert!(ended(&mut writer).success());
}

/// Nodes open both volumes. One that does not know the source's is not reached.
#[test]
fn a_volume_over_nodes_is_staged_into_another_one() {
    let site = Site::new("azsv", 3);
    site.up("w");
    let src = &site.src;
    fs::create_dir(src.join("sub")).expect("a directory");
    for number in 0..20u32 {
        fs::write(src.join(format!("sub/{number}")), number.to_le_bytes().repeat(3000)).expect("a file");
    }
    fs::hard_link(src.join("sub/1"), src.join("again")).expect("a link");
    symlink("sub/1", src.join("link")).expect("a link");
    let large: Vec<u8> = (0..150u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(src.join("large"), &large).expect("a file");
    let sparse = File::create(src.join("sparse")).expect("a file");
    sparse.set_len(200 << 20).expect("a hole");
    sparse.write_all_at(b"in the middle", (100 << 20) + 77).expect("data");
    drop(sparse);
    site.aze(&["stage", "in", text(src), "aze://v/in", "--quiet"]).ok();
    let between = |to: &str, nodes: &str, receipt: &Path| {
        site.aze(&["stage", "in", "aze://v/in", to, "--nodes", nodes, "--receipt", text(receipt), "--json"])
    };
    let receipt = site.place.path("between.jsonl");
    let told = json(&between("aze://w/copy", "all", &receipt).ok().out);
    assert_eq!((&told["proven"], &told["missing"]), (&26.into(), &0.into()), "{told}");
    let shares = told["nodes"].as_array().expect("a list");
    let bytes = |field: &str| shares.iter().map(|share| share[field].as_u64().expect("a number")).collect::<Vec<_>>();
    let (copied, read) = (bytes("copied_bytes"), bytes("read_back_bytes"));
    let all = (350 << 20) + 20 * 12_000;
    assert!(copied.len() == 3 && copied.iter().all(|bytes| *bytes > 0), "{told}");
    assert_eq!((copied.iter().sum::<u64>(), read.iter().sum::<u64>()), (all, all), "{told}");
    let found = ways(&receipt);
    assert!(found.len() == 22 && found.iter().all(|way| way == "servers"), "{found:?}");
    site.aze(&["receipt", "verify", text(&receipt)]).ok();
    site.aze(&["stage", "out", "aze://w/copy", text(&site.dst.join("run")), "--quiet", "--nodes", "all"]).ok();
    site.is_same("run");

    // Only files that have changed since are copied again.
    fs::write(src.join("none"), "more").expect("a file");
    site.aze(&["cp", text(&src.join("none")), "aze://v/in/more"]).ok();
    let told = json(&between("aze://w/copy", "2", &site.place.path("again.jsonl")).ok().out);
    assert_eq!((&told["proven"], &told["missing"], &told["resumed"]), (&27.into(), &0.into(), &23.into()), "{told}");

    // A node without the record of one of the volumes.
    let record = site.place.path("run-10.66.0.3/v");
    fs::rename(&record, site.place.path("away")).expect("a volume");
    let why = between("aze://w/named", "10.66.0.1,10.66.0.3", &site.place.path("named.jsonl")).code(5).err;
    assert!(why.contains("10.66.0.3: ") && why.contains("no volume 'v' of yours"), "{why}");
    let ran = between("aze://w/rest", "all", &site.place.path("rest.jsonl")).ok();
    assert!(ran.err.contains("no volume 'v' of yours") && ran.err.contains("the others copy"), "{}", ran.err);
    fs::rename(site.place.path("away"), &record).expect("a volume");
    site.has_no_workers();
}

/// Workers run in each round, and none between; a signal ends a stage and its workers, and the same command goes on.
#[test]
fn a_volume_over_nodes_is_staged_in_rounds_and_until_a_signal() {
    let site = Site::new("azsr", 2);
    let (src, dst) = (&site.src, &site.dst);
    for number in 0..30u32 {
        fs::write(src.join(number.to_string()), number.to_le_bytes().repeat(300_000)).expect("a file");
    }
    site.aze(&["stage", "in", text(src), "aze:/in", "--quiet"]).ok();
    let mut child = site.start("run", &["--jobs", "1"]);
    let to = dst.join("run");
    wait_until("files are there", || to.is_dir() && names(&to).len() > 3);
    let own = priorities(std::process::id())[0].1;
    assert_eq!(site.nice_of_worker(1), BTreeSet::from([own]));
    let state = dst.join(names(dst).into_iter().find(|name| name.ends_with(".state")).expect("a state"));
    let status = json(&site.place.aze(&["stage", "status", text(&state), "--json"]).ok().out);
    signal(child.id(), libc::SIGTERM);
    assert_eq!(ended(&mut child).signal(), Some(libc::SIGTERM), "{}", site.err());
    assert_eq!(status["nodes"], serde_json::json!(["10.66.0.1", "10.66.0.2"]), "{status}");
    let status = site.place.aze(&["stage", "status", text(&state)]).ok();
    assert!(status.out.contains("nodes   10.66.0.1, 10.66.0.2\n"), "{}", status.out);
    site.has_no_workers();
    assert!(names(&to).iter().all(|name| !name.starts_with('.')), "{:?}", names(&to));
    assert!(receipts(dst).is_empty());
    let told = json(&site.out("run", "all", &["--json"]).ok().out);
    assert!(told["resumed"].as_u64() > Some(0) && told["proven"] == 31, "{told}");
    site.is_same("run");

    let mut child = site.start("rounds", &["--every", "100ms"]);
    assert_eq!(site.nice_of_worker(2), BTreeSet::from([19]));
    wait_until("a round has ended", || receipts(dst).len() == 2);
    site.has_no_workers();
    fs::write(src.join("3"), "other contents").expect("a file");
    // Under its temporary name it would be staged, too.
    site.aze(&["cp", text(&src.join("3")), "aze:/new"]).ok();
    site.aze(&["mv", "aze:/new", "aze:/in/3"]).ok();
    wait_until("another one has ended", || receipts(dst).len() == 3);
    site.has_no_workers();
    signal(child.id(), libc::SIGTERM);
    assert!(ended(&mut child).success(), "{}", site.err());
    assert_eq!(fs::read(dst.join("rounds/3")).expect("a file"), b"other contents");
    for receipt in &receipts(dst)[1..] {
        assert!(ways(receipt).iter().all(|way| way == "other_node"), "{:?}", ways(receipt));
    }
    site.verified(receipts(dst).last().expect("one"));
}

/// The command or a worker is killed while files are copied and compared. Whenever a stage ends well, its receipt is true; the same
/// command goes on until it does.
#[test]
fn a_volume_over_nodes_is_staged_whatever_is_killed() {
    let mut site = Site::new("azsk", 3);
    site.place.allow(Duration::from_secs(if long() { 7200 } else { 300 }));
    let (src, dst) = (site.src.clone(), site.dst.clone());
    fs::create_dir(src.join("d")).expect("a directory");
    for number in 0..40u32 {
        let bytes = number.to_le_bytes().repeat(if number % 10 == 0 { 1 << 20 } else { 100 });
        fs::write(src.join(if number % 2 == 0 { "d" } else { "" }).join(number.to_string()), bytes).expect("a file");
    }
    let large: Vec<u8> = (0..70u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(src.join("large"), large).expect("a file");
    site.aze(&["stage", "in", text(&src), "aze:/in", "--quiet", "--nodes", "all"]).ok();
    let (mut draw, mut killed, mut finished, mut lost) = (Draw::new(3, 18), [0; 2], 0, 0);
    let kills = if long() { KILLS_LONG } else { KILLS };
    while killed.iter().sum::<u32>() < kills {
        let mut child = site.start("run", &["--jobs", "2"]);
        let (at, victims) = (draw.below(25), 1 + draw.below(2) as u32);
        let first = 1 + draw.below(3) as u32;
        let kills_command = draw.below(3) == 0;
        let mut status = None;
        wait_until("so many files are there, or the attempt has ended", || {
            status = child.try_wait().expect("a child");
            let found =
                run(Command::new("find").args([&dst, Path::new("-name"), Path::new(".aze-stage-*-*[0-9]")])).out;
            let done = site.dst.join("run/d").is_dir()
                && names(&site.dst.join("run")).len() as u64 + names(&site.dst.join("run/d")).len() as u64 > at;
            status.is_some() || (done && !found.is_empty())
        });
        if status.is_none() && kills_command {
            signal(child.id(), libc::SIGKILL);
            killed[0] += 1;
        } else if status.is_none() {
            for index in first..first + victims {
                if let Some(pid) = site.worker((index - 1) % 3 + 1) {
                    signal(pid, libc::SIGKILL);
                    killed[1] += 1;
                }
            }
        }
        let status = ended(&mut child);
        site.has_no_workers();
        if long() {
            eprintln!("{killed:?} kills of commands and workers so far");
        }
        receipts(&dst).iter().for_each(|receipt| site.verified(receipt));
        if status.signal() == Some(libc::SIGKILL) {
            continue;
        }
        lost += u32::from(site.err().contains("is lost: it has ended"));
        assert!(status.success(), "{status}: {}", site.err());
        finished += 1;
        let [receipt] = &receipts(&dst)[..] else { panic!("{:?}", names(&dst)) };
        site.is_same("run");
        site.is_clean();
        fs::remove_file(receipt).expect("it goes");
        fs::remove_dir_all(dst.join("run")).expect("it goes");
    }
    println!("{killed:?} kills of commands and workers, {finished} stages ended, {lost} with the loss of a node");
    assert!(finished > 0 && lost > 0 && killed.iter().all(|count| *count > 0));
}

/// When all workers are lost the command says so, and the same one goes on. A worker that is stopped is given up, and ended; a command
/// that was stopped goes on with all.
#[test]
fn a_volume_over_nodes_is_staged_by_those_that_are_left() {
    let site = Site::new("azsl", 3);
    let (src, dst) = (&site.src, &site.dst);
    for number in 0..40u32 {
        fs::write(src.join(number.to_string()), number.to_le_bytes().repeat(300_000)).expect("a file");
    }
    site.aze(&["stage", "in", text(src), "aze:/in", "--quiet"]).ok();
    let mut child = site.start("run", &["--jobs", "1"]);
    wait_until("files are there", || site.dst.join("run").is_dir() && names(&site.dst.join("run")).len() > 3);
    for index in 1..=3 {
        signal(site.worker(index).expect("it runs"), libc::SIGKILL);
    }
    let status = ended(&mut child);
    assert_eq!(status.code(), Some(6), "{}", site.err());
    assert!(site.err().contains("no node is left to copy: the same command goes on"), "{}", site.err());
    assert!(receipts(dst).is_empty());
    let so_far = names(&dst.join("run")).len();
    let mut child = site.start("run", &["--jobs", "1"]);
    wait_until("more files are there", || names(&dst.join("run")).len() > so_far + 3);
    let begun = Instant::now();
    signal(site.worker(2).expect("it runs"), libc::SIGSTOP);
    let status = ended(&mut child);
    assert!(status.success(), "{status}: {}", site.err());
    assert!(
        begun.elapsed() > SILENCE && site.err().contains("10.66.0.2 is lost: nothing was heard of it for 10 s"),
        "{}",
        site.err()
    );
    site.has_no_workers();
    let [receipt] = &receipts(dst)[..] else { panic!("{:?}", names(dst)) };
    site.verified(receipt);
    site.is_same("run");
    site.is_clean();
    fs::remove_dir_all(dst.join("run")).expect("it goes");
    let mut child = site.start("run", &["--jobs", "1"]);
    wait_until("files are there", || dst.join("run").is_dir() && names(&dst.join("run")).len() > 3);
    signal(child.id(), libc::SIGSTOP);
    let begun = Instant::now();
    wait_until("it was stopped for longer than a worker may be silent", || begun.elapsed() > SILENCE + BEAT);
    signal(child.id(), libc::SIGCONT);
    assert!(ended(&mut child).success() && !site.err().contains("is lost"), "{}", site.err());
    site.is_same("run");
}
