//! What the number of servers changes: a search that all of them answer, and the time until all processes have opened a
//! file, one for all or one for each.

use super::Args;
use crate::median::median;
use crate::plot::{self, Curve};
use crate::program::{Program, Session};
use crate::started::{Started, VolumeScratch};
use aze_client::{Access, NewFile};
use aze_proto::FileKind;
use aze_proto::predicate::Predicate;
use aze_proto::wire::Blob;
use aze_words::errln;
use aze_words::exit::{Exit, Outcome, Trouble};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

/// Files of a directory that is searched.
const FILES_PER_DIR: u64 = 1000;
/// Callers that make the files.
const MAKERS: u64 = 4;
/// What the paper found, beside which our figures are put.
const PAPER: &str = "\
the paper (CHFS): a search by one process for each server is close to linear from 16 to 48 nodes; all of 48 x 16
processes open one file in 1.36 s, up to 10.87 s on 24 nodes, and in 0.06 to 0.08 s where each node has a server that
remembers the answer for its processes, which this program does not have: every open is a request to the file's home";

/// Searches of a volume.
struct Find {
    servers: usize,
    found: u64,
    /// Seconds of each turn.
    turns: Vec<f64>,
}

/// Opens at one moment.
struct Open {
    servers: usize,
    openers: usize,
    /// One file for all, or one for each.
    shared: bool,
    /// Seconds of each turn, from the first that began to the last that had its file.
    turns: Vec<f64>,
}

fn middle(turns: &[f64]) -> f64 {
    median(turns, |turn| *turn)
}

/// All that was measured.
#[derive(Default)]
pub(super) struct Measured {
    finds: Vec<Find>,
    opens: Vec<Open>,
}

/// Measures the figures of these that are about numbers of servers.
pub(super) fn measure(args: &Args, program: &'static dyn Program) -> Outcome<Measured> {
    let mut measured = Measured::default();
    match &args.name {
        Some(name) => measured.over(args, program, name)?,
        None => {
            for servers in &args.servers {
                let name = format!("p4-servers-{servers}-{}", std::process::id());
                let started = Started::new(program, &name, &["--servers", &servers.to_string()])?;
                measured.over(args, program, &started.name)?;
            }
        }
    }
    Ok(measured)
}

/// The directory of a measurement in a volume.
struct Ground {
    session: Arc<dyn Session>,
    path: String,
}

impl Ground {
    fn make(&self, path: &str, kind: FileKind) -> Outcome<()> {
        let mode = if kind == FileKind::Directory { 0o700 } else { 0o600 };
        let (target, open) = (Vec::new(), None);
        let new = NewFile { kind, mode, rdev: 0, target, exclusive: true, open, chunk_bits: 0, private: false };
        let made = self.session.client().create_path(self.session.who(), path.as_bytes(), &new);
        self.session.ask(format_args!("create aze:{path}"), made).map(drop)
    }

    fn file(&self, index: u64) -> String {
        format!("{}/d{:04}/f{index:08}", self.path, index / FILES_PER_DIR)
    }

    /// Makes so many files, many at a time.
    fn fill(&self, files: u64) -> Outcome<()> {
        (0..files.div_ceil(FILES_PER_DIR))
            .try_for_each(|dir| self.make(&format!("{}/d{dir:04}", self.path), FileKind::Directory))?;
        thread::scope(|scope| {
            let makers = (0..MAKERS).map(|maker| {
                scope.spawn(move || {
                    (maker..files)
                        .step_by(MAKERS as usize)
                        .try_for_each(|index| self.make(&self.file(index), FileKind::File))
                })
            });
            let makers: Vec<_> = makers.collect();
            makers.into_iter().try_for_each(|maker| maker.join().expect("a maker does not panic"))
        })
    }
}

impl Measured {
    fn over(&mut self, args: &Args, program: &'static dyn Program, name: &str) -> Outcome<()> {
        let session = program.open(name)?;
        let path = format!("/bench-p4-{}", std::process::id());
        let scratch = VolumeScratch::new(format!("aze://{name}{path}"));
        let ground = Ground { session: session.clone(), path: path.clone() };
        ground.make(&path, FileKind::Directory)?;
        let servers = session.client().map().servers.len();
        errln!("bench p4: {servers} servers");
        if args.figure.contains(&3) {
            self.finds.push(find(args, &ground, servers)?);
        }
        if args.figure.contains(&8) {
            for openers in &args.openers {
                self.opens.extend(open(args, program, name, &ground, *openers, servers)?);
            }
        }
        let removed = session.remove_all("bench p4", path.as_bytes());
        scratch.gone();
        session.end();
        removed
    }

    pub(super) fn tables(&self) -> String {
        let mut text = String::new();
        let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
        if !self.finds.is_empty() {
            put("A search of all files, whose answers come from all servers at once".into());
            put(format!("{:>8}{:>10}{:>10}{:>12}", "servers", "files", "seconds", "files/s"));
            for find in &self.finds {
                let seconds = middle(&find.turns);
                put(format!(
                    "{:>8}{:>10}{seconds:>10.4}{:>12.0}",
                    find.servers,
                    find.found,
                    find.found as f64 / seconds
                ));
            }
            put(String::new());
        }
        if !self.opens.is_empty() {
            put("Milliseconds until all processes have opened a file".into());
            put(format!("{:>8}{:>10}{:>12}{:>12}", "servers", "openers", "one file", "own files"));
            let of = |like: &Open, shared: bool| {
                let same =
                    |open: &&Open| (open.servers, open.openers, open.shared) == (like.servers, like.openers, shared);
                self.opens.iter().find(same).map_or(f64::NAN, |open| middle(&open.turns) * 1e3)
            };
            for open in self.opens.iter().filter(|open| open.shared) {
                let (servers, openers) = (open.servers, open.openers);
                put(format!("{servers:>8}{openers:>10}{:>12.2}{:>12.2}", of(open, true), of(open, false)));
            }
            put(String::new());
        }
        if !text.is_empty() {
            text.push_str(PAPER);
            text.push('\n');
        }
        text
    }

    pub(super) fn pictures(&self) -> Vec<(String, String)> {
        let mut pictures = Vec::new();
        if !self.finds.is_empty() {
            let points = self.finds.iter().map(|find| (find.servers as u64, find.found as f64 / middle(&find.turns)));
            let curves = [Curve { name: "search".into(), points: points.collect() }];
            let drawn = plot::draw("A search of all files", "servers", "files/s", &curves, &plot::count);
            pictures.push(("find.svg".into(), drawn));
        }
        let mut curves: Vec<Curve> = Vec::new();
        for open in &self.opens {
            let name = format!("{} servers, {}", open.servers, if open.shared { "one file" } else { "own files" });
            let point = (open.openers as u64, middle(&open.turns) * 1e3);
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name, points: vec![point] }),
            }
        }
        if !curves.is_empty() {
            let drawn = plot::draw("Until all have opened", "processes", "ms", &curves, &plot::count);
            pictures.push(("open.svg".into(), drawn));
        }
        pictures
    }

    pub(super) fn json(&self) -> Value {
        let find = |find: &Find| json!({"servers": find.servers, "files": find.found, "seconds": middle(&find.turns), "turns": find.turns});
        let open = |open: &Open| {
            json!({
                "servers": open.servers,
                "openers": open.openers,
                "files": if open.shared { "one" } else { "own" },
                "seconds": middle(&open.turns),
                "turns": open.turns,
            })
        };
        json!({
            "find": self.finds.iter().map(find).collect::<Vec<_>>(),
            "open": self.opens.iter().map(open).collect::<Vec<_>>(),
            "paper": PAPER,
        })
    }
}

fn find(args: &Args, ground: &Ground, servers: usize) -> Outcome<Find> {
    let Ground { session, path } = ground;
    ground.fill(args.files)?;
    let root = session.client().resolve(session.who(), path.as_bytes(), true);
    let root = session.ask(format_args!("look at aze:{path}"), root)?.ino;
    let predicate = Predicate { name: Some(Blob(b"f*".to_vec())), ..Predicate::default() };
    let mut turns = Vec::new();
    for _ in 0..args.repeat {
        let (mut found, started) = (0, Instant::now());
        let mut each = |_| found += 1;
        let searched = session.client().find(session.who(), root, &predicate, &mut each);
        session.ask(format_args!("search aze:{path}"), searched)?;
        turns.push(started.elapsed().as_secs_f64());
        if found != args.files {
            let text = format!("search aze:{path}: {found} files are found, and {} are there", args.files);
            return Err(Trouble::new(Exit::Fatal, text));
        }
    }
    Ok(Find { servers, found: args.files, turns })
}

/// So many sessions, each of its own, open one file and then each its own, in turns.
fn open(
    args: &Args,
    program: &'static dyn Program,
    name: &str,
    ground: &Ground,
    openers: usize,
    servers: usize,
) -> Outcome<[Open; 2]> {
    let path = |opener: usize, shared: bool| {
        let dir = &ground.path;
        if shared { format!("{dir}/shared-{openers}") } else { format!("{dir}/own-{openers}-{opener}") }
    };
    ground.make(&path(0, true), FileKind::File)?;
    (0..openers).try_for_each(|opener| ground.make(&path(opener, false), FileKind::File))?;
    let sessions = (0..openers).map(|_| program.open(name)).collect::<Outcome<Vec<_>>>()?;
    let mut measured = [true, false].map(|shared| Open { servers, openers, shared, turns: Vec::new() });
    // The first turn connects everybody to the servers.
    for turn in 0..=args.repeat {
        for open in &mut measured {
            let took = open_at_once(&sessions, &|opener| path(opener, open.shared))?;
            if turn > 0 {
                open.turns.push(took);
            }
        }
    }
    sessions.iter().for_each(|session| session.end());
    Ok(measured)
}

/// Seconds from the first open that began to the end of the last.
fn open_at_once(sessions: &[Arc<dyn Session>], path: &(dyn Fn(usize) -> String + Sync)) -> Outcome<f64> {
    let barrier = Barrier::new(sessions.len());
    let times = thread::scope(|scope| {
        let openers = sessions.iter().enumerate().map(|(opener, session)| {
            let barrier = &barrier;
            scope.spawn(move || {
                let path = path(opener);
                barrier.wait();
                let began = Instant::now();
                let access = Access { read: true, write: false };
                let opened = session.client().open_path(session.who(), path.as_bytes(), access);
                let opened = session.ask(format_args!("open aze:{path}"), opened);
                let ended = Instant::now();
                session.ask(format_args!("close aze:{path}"), opened?.close())?;
                Ok((began, ended))
            })
        });
        let openers: Vec<_> = openers.collect();
        openers.into_iter().map(|opener| opener.join().expect("an opener does not panic")).collect::<Outcome<Vec<_>>>()
    })?;
    let first = times.iter().map(|(began, _)| *began).min().unwrap_or_else(Instant::now);
    Ok(times.iter().map(|(_, ended)| ended.duration_since(first).as_secs_f64()).fold(0.0, f64::max))
}
