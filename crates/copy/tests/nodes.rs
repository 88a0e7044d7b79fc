//! Staging by nodes that are lost at any step, and that write on when they were given up: no line of a receipt is wrong.
//!
//! The nodes are of this process, and draw from a seed what happens to a task.

use aze_copy::stage::nodes::{Copied, Nodes, Part, Probe, Share, copy_part, look_for, reread_part};
use aze_copy::stage::survey::Filter;
use aze_copy::stage::verify::{Claims, verify};
use aze_copy::stage::{Order, Report, Side, stage};
use aze_copy::tree::{ReadBack, Sink, Spot, Tree, beside};
use aze_copy::{LocalTree, Watch};
use aze_receipt::line::What;
use aze_receipt::{Key, Line, Signed, Sums};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const SEEDS: u64 = 40;

/// What those that were given up write.
const GARBAGE: &[u8] = &[0xee; 5000];

fn spot(path: &[u8]) -> Spot {
    Spot { tree: Arc::new(LocalTree), path: path.to_vec() }
}

/// Hears failures.
#[derive(Default)]
struct Notes(Mutex<Vec<Trouble>>);

impl Watch for Notes {
    fn is_over(&self) -> bool {
        false
    }

    fn expect(&self, _: u64) {}

    fn copied(&self, _: u64) {}

    fn file(&self, _: &Spot, _: &Spot) {}

    fn dir(&self) {}

    fn lacks(&self, trouble: &Trouble) {
        panic!("nothing lacks: {trouble}");
    }

    fn failed(&self, trouble: &Trouble) {
        self.0.lock().expect("no panic").push(trouble.clone());
    }
}

/// A task whose node was given up in the middle: its open file, and the part with the file's name.
struct Undead {
    sink: Option<Box<dyn Sink>>,
    part: Part,
}

#[derive(Default)]
struct Drawn {
    words: u64,
    lost: Vec<bool>,
    undead: Vec<Undead>,
    /// How often sources were changed while they were copied.
    changed: BTreeMap<Vec<u8>, u32>,
    losses: u32,
}

/// Nodes; some of them are lost.
struct Crowd {
    count: usize,
    /// One task in so many loses its node, or changes its source.
    one_in: u64,
    drawn: Mutex<Drawn>,
}

impl Crowd {
    fn new(seed: u64, count: usize, one_in: u64) -> Arc<Crowd> {
        let drawn = Drawn { words: seed, lost: vec![false; count], ..Drawn::default() };
        Arc::new(Crowd { count, one_in, drawn: Mutex::new(drawn) })
    }
}

impl Drawn {
    fn below(&mut self, limit: u64) -> u64 {
        self.words = self.words.wrapping_add(1);
        let hash = aze_receipt::Hash::of(&self.words.to_le_bytes());
        u64::from_le_bytes(hash.0[..8].try_into().expect("8 bytes")) % limit
    }

    /// A node that is left; of those but `not`, if there are any.
    fn pick(&mut self, not: Option<usize>) -> Option<usize> {
        let alive: Vec<usize> = (0..self.lost.len()).filter(|at| !self.lost[*at]).collect();
        let others: Vec<usize> = alive.iter().copied().filter(|at| Some(*at) != not).collect();
        let pool = if others.is_empty() { alive } else { others };
        if pool.is_empty() {
            return None;
        }
        let at = self.below(pool.len() as u64) as usize;
        Some(pool[at])
    }

    /// All that were given up write on, through what they have open and by the names that they know.
    fn haunt(&mut self) {
        for undead in &self.undead {
            let offset = undead.part.range.start;
            if let Some(sink) = &undead.sink {
                sink.write_at(offset, GARBAGE).expect("room");
            }
            if let Ok(sink) = LocalTree.reopen_as(&undead.part.to, &undead.part.hidden) {
                sink.write_at(offset, GARBAGE).expect("room");
            }
        }
    }
}

impl Nodes for Crowd {
    fn names(&self) -> Vec<String> {
        (0..self.count).map(|at| format!("n{at}")).collect()
    }

    fn jobs(&self) -> usize {
        2 * self.count
    }

    fn start(&self, probe: &Probe, _: &Arc<dyn Watch>) -> Outcome<bool> {
        look_for(probe, &spot(&probe.from.0), &spot(&probe.to)).map(|()| true)
    }

    fn copy(&self, part: &Part) -> Outcome<Option<(usize, Copied)>> {
        let (at, fate) = {
            let mut drawn = self.drawn.lock().expect("no panic");
            drawn.haunt();
            let Some(at) = drawn.pick(None) else { return Ok(None) };
            let fate = drawn.below(self.one_in);
            let changes = drawn.changed.entry(part.from.clone()).or_default();
            if fate == 2 && *changes < 2 {
                *changes += 1;
                let file = File::options().append(true).open(Path::new(std::ffi::OsStr::from_bytes(&part.from)));
                std::io::Write::write_all(&mut file.expect("the source"), b"more").expect("room");
            }
            if fate < 2 {
                drawn.lost[at] = true;
                drawn.losses += 1;
            }
            (at, fate)
        };
        let lost = |sink| {
            let undead = Undead { sink, part: part.clone() };
            self.drawn.lock().expect("no panic").undead.push(undead);
            Ok(None)
        };
        if fate == 0 {
            // Before it has opened anything.
            return lost(None);
        }
        let open = (fate == 1).then(|| LocalTree.reopen_as(&part.to, &part.hidden)).transpose()?;
        let done = copy_part(&spot(&part.from), &spot(&part.to), part, &Notes::default(), &mut Vec::new())?;
        if fate == 1 { lost(open) } else { Ok(Some((at, done))) }
    }

    fn read_back(&self, part: &Part, writer: usize) -> Outcome<Option<(Sums, ReadBack, bool)>> {
        let at = {
            let mut drawn = self.drawn.lock().expect("no panic");
            drawn.haunt();
            if drawn.below(self.one_in * 2) == 0
                && let Some(at) = drawn.pick(None)
            {
                drawn.lost[at] = true;
                drawn.losses += 1;
            }
            let Some(at) = drawn.pick(Some(writer)) else { return Ok(None) };
            at
        };
        let (sums, how) = reread_part(&spot(&part.to), part, &Notes::default())?;
        self.drawn.lock().expect("no panic").haunt();
        Ok(Some((sums, how, at != writer)))
    }

    fn are_gone(&self) -> bool {
        self.drawn.lock().expect("no panic").lost.iter().all(|is_lost| *is_lost)
    }

    fn end(&self) -> Vec<Share> {
        Vec::new()
    }
}

struct Setting(PathBuf);

impl Setting {
    fn new(test: &str) -> Setting {
        let dir = std::env::temp_dir().join(format!("aze-stage-nodes-{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("from/sub")).expect("directories");
        for number in 0..6u8 {
            fs::write(dir.join("from/sub").join(number.to_string()), vec![number + 1; 9000]).expect("a file");
        }
        fs::write(dir.join("from/none"), "").expect("a file");
        // Of four parts.
        let large = File::create(dir.join("from/large")).expect("a file");
        large.set_len(200 << 20).expect("a hole");
        for at in [0, 64 << 20, (130 << 20) + 7, (200 << 20) - 3000] {
            large.write_all_at(&[7; 3000], at).expect("room");
        }
        Setting(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn stage(&self, nodes: &Arc<Crowd>) -> (Outcome<Report>, Vec<Trouble>) {
        let bytes = |name: &str| self.path(name).as_os_str().as_bytes().to_vec();
        let order = Order {
            direction: "out",
            source: "a test".into(),
            from: spot(&bytes("from")),
            to: spot(&bytes("to")),
            destination: bytes("to"),
            filter: Filter::default(),
            side: Side::Outside,
            delete: false,
            closed_only: false,
            atomic: false,
            jobs: 2,
            nodes: Some(nodes.clone()),
            state: self.path("state"),
            ledger: None,
            receipt: Some((self.path("receipt"), Key::at(&self.path("key")).expect("a key").0)),
            program: "a test".into(),
        };
        let notes: Arc<Notes> = Arc::default();
        let watch: Arc<dyn Watch> = notes.clone();
        let report = stage(&order, &watch);
        (report, std::mem::take(&mut *notes.0.lock().expect("no panic")))
    }

    /// Whether all lines of the receipt are true; gives the ways in which files were read back.
    fn check(&self) -> Vec<String> {
        let signed = Signed::open(&self.path("receipt"), None).expect("a receipt");
        let (claims, doubts) = (Claims { owners_and_times: true, jobs: 2 }, Notes::default());
        let there = spot(self.path("to").as_os_str().as_bytes());
        let good = verify(&signed, &there, claims, &doubts).expect("lines");
        assert!(doubts.0.lock().expect("no panic").is_empty(), "{:?}", doubts.0);
        assert_eq!(good, signed.end.files + signed.end.directories);
        let lines = signed.lines().expect("lines").map(|line| line.expect("a line"));
        let way = |line| match line {
            Line::Object(object) => match object.what {
                What::File { read_back, size: 1.., .. } => Some(read_back),
                _ => None,
            },
            _ => None,
        };
        lines.filter_map(way).collect()
    }

    fn names(&self) -> Vec<String> {
        let all = ["to", "to/sub"].map(|dir| fs::read_dir(self.path(dir)).expect("a directory"));
        all.into_iter()
            .flatten()
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_nodes_write_that_were_given_up_is_in_no_file() {
    let setting = Setting::new("lost");
    let (mut losses, mut attempts, mut gone, mut by_others, mut changed) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        if seed > 0 {
            fs::remove_dir_all(setting.path("to")).expect("it goes");
            fs::remove_file(setting.path("receipt")).expect("it goes");
        }
        let ways = loop {
            attempts += 1;
            let nodes = Crowd::new(seed * 1_000_000 + attempts * 1000, 1 + (seed % 6) as usize, 8 + seed % 20);
            let (report, failures) = setting.stage(&nodes);
            let mut drawn = nodes.drawn.lock().expect("no panic");
            drawn.haunt();
            losses += drawn.losses;
            changed += drawn.changed.values().sum::<u32>();
            match report {
                Ok(report) => {
                    assert!(failures.is_empty(), "seed {seed}: {failures:?}");
                    assert_eq!((report.missing, report.proven), (0, 10), "seed {seed}");
                    break setting.check();
                }
                Err(trouble) => {
                    gone += 1;
                    assert_eq!(trouble.exit, Exit::Again, "seed {seed}: {trouble}");
                    assert!(trouble.text.contains("no node is left"), "seed {seed}: {trouble}");
                    assert!(!setting.path("receipt").exists());
                }
            }
        };
        assert_eq!(ways.len(), 7, "seed {seed}");
        by_others += ways.iter().filter(|way| *way == "other_node").count();
        assert!(seed % 6 != 0 || !ways.contains(&"other_node".to_owned()), "seed {seed}: one node is no other");
        let names = setting.names();
        assert_eq!(names.len(), 10 - 1, "seed {seed}: {names:?}");
        assert!(!names.iter().any(|name| name.starts_with('.')), "seed {seed}: {names:?}");
    }
    println!(
        "{attempts} attempts, {losses} nodes lost, {gone} times all, {changed} changes of sources, {by_others} read by others"
    );
    assert!(losses > 60 && gone > 10 && changed > 30 && by_others > 100);
}

/// A node that sees another file than the command has made neither writes to it nor reads it.
#[test]
fn a_node_takes_no_other_file_for_the_copy() {
    let setting = Setting::new("other");
    let (from, to) = (setting.path("from/sub/1"), setting.path("to"));
    let hidden = b".aze-stage-x-0".to_vec();
    let (from, to) = (spot(from.as_os_str().as_bytes()), spot(to.as_os_str().as_bytes()));
    let meta = from.must_stat(false).expect("it is there");
    let sink = LocalTree.create_as(&to.path, 0o600, &hidden).expect("made");
    let inode = spot(&beside(&to.path, &hidden)).must_stat(false).expect("it is there").identity.1;
    let part = Part {
        from: from.path.clone(),
        from_print: meta.print(),
        to: to.path.clone(),
        hidden,
        to_inode: inode,
        size: meta.size,
        is_sparse: false,
        range: 0..meta.size,
    };
    let copy = |part: &Part| copy_part(&from, &to, part, &Notes::default(), &mut Vec::new());
    let reread = |part: &Part| reread_part(&to, part, &Notes::default());
    let Copied::Sums(sums) = copy(&part).expect("copied") else { panic!("it has not changed") };
    assert_eq!(reread(&part).expect("read").0, sums);
    let other = Part { to_inode: inode + 1, ..part.clone() };
    assert!(copy(&other).expect_err("refused").text.contains("it is another file here"));
    assert!(reread(&other).expect_err("refused").text.contains("it is another file here"));
    let other = Part { from_print: [1, 2, 3, 4], ..part.clone() };
    assert_eq!(copy(&other).expect("no error"), Copied::Changed);
    let longer = Part { size: part.size + 1, range: 0..part.size + 1, ..part.clone() };
    assert_eq!(copy(&longer).expect("no error"), Copied::Changed, "this node does not know all of it");
    sink.abandon();
    assert!(copy(&part).expect_err("refused").text.contains("its unfinished copy is missing here"));
}
