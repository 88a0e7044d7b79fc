//! A command of the stager, as a simulated process: what `aze stage` does between its arguments and its exit code.

use super::nodes;
use super::place::{Missing, Place};
use super::programs::{INSIDE, ROOT};
use super::rounds::{Asked, Went};
use super::{BELOW, COLD, Run, StagingPlan, Start};
use crate::Cluster;
use aze_copy::Watch;
use aze_copy::stage::ledger::{self, Hold, Route, Work};
use aze_copy::stage::nodes::Nodes;
use aze_copy::stage::release::{self, release};
use aze_copy::stage::standing::{Standing, look};
use aze_copy::stage::survey::Filter;
use aze_copy::stage::team::Team;
use aze_copy::stage::{Order, Report, Side, rounds, stage};
use aze_copy::tree::{Spot, Tree, join};
use aze_copy::warm::{Warmed, warm};
use aze_io::Io;
use aze_io::sync::Mutex;
use aze_io::threads::Waiter;
use aze_proto::attr::FileKind;
use aze_receipt::Key;
use aze_tree::{Connection, VolumeTree};
use aze_words::exit::{Outcome, Trouble};
use futures_util::future::select;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Dirty objects that a look names: all.
const NAMED_MAX: usize = 100_000;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Stage,
    /// Again and again.
    Rounds(Asked),
    Release,
    Look,
    /// Takes names over before they are used.
    Warm,
}

impl What {
    pub fn is_rounds(self) -> bool {
        matches!(self, What::Rounds(_))
    }
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Ended {
    Killed,
    Well {
        missing: u64,
        left: u64,
        drained: u64,
    },
    Rounds(rounds::Ended),
    Looked(Box<Standing>),
    /// Objects taken over, the names that the volume has then, and how often it has asked for them once more.
    Warmed {
        warmed: Warmed,
        names: BTreeSet<Vec<u8>>,
        listed: usize,
    },
    Failed(#[allow(dead_code, reason = "it is shown")] Trouble),
}

/// What a job tells of itself.
pub(super) struct Told {
    io: Io,
    is_asked: AtomicBool,
    is_dead: AtomicBool,
    failures: Mutex<Vec<String>>,
    ended: Mutex<Option<Ended>>,
    /// Where it waits that a wish to end is to wake.
    waiting: Mutex<Option<Waker>>,
    /// The round under way is to be broken off at this moment.
    pub until: Mutex<Option<Duration>>,
    /// How long programs keep a round from the cores after each part of a file, at most.
    pub starved_ms: AtomicU64,
    /// When it began to stage in rounds.
    pub began: Mutex<Option<Duration>>,
    /// Its rounds.
    pub went: Mutex<Vec<Went>>,
    /// When it has looked last how much is dirty, and whether a round had anything to do.
    pub looked: Mutex<Option<(Duration, bool)>>,
}

impl Told {
    pub fn new(io: Io) -> Told {
        Told {
            io,
            is_asked: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            failures: Mutex::default(),
            ended: Mutex::default(),
            waiting: Mutex::default(),
            until: Mutex::default(),
            starved_ms: AtomicU64::new(0),
            began: Mutex::default(),
            went: Mutex::default(),
            looked: Mutex::default(),
        }
    }

    pub fn ask_to_end(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
        if let Some(waiting) = self.waiting.lock().take() {
            waiting.wake();
        }
    }

    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed) || self.is_dead.load(Ordering::Relaxed)
    }

    /// Time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.io.mono_ns())
    }

    /// Waits for so long, or until it is asked to end.
    pub fn wait(&self, time: Duration) {
        let asked = poll_fn(|context| {
            *self.waiting.lock() = Some(context.waker().clone());
            if self.is_asked() { Poll::Ready(()) } else { Poll::Pending }
        });
        // Where it is killed, the killer has told so.
        let _ = Waiter::Simulated.block_on(select(pin!(self.io.sleep(time)), asked));
    }

    fn pause(&self, us_max: u64) {
        let pause = Duration::from_micros(self.io.random_u64() % us_max.max(1));
        let _ = Waiter::Simulated.block_on(self.io.sleep(pause));
    }

    /// Its process is killed: all that it calls fails from now on.
    pub fn die(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

    pub fn ended(&self) -> Ended {
        self.ended.lock().take().unwrap_or(Ended::Killed)
    }

    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().clone()
    }
}

impl Watch for Told {
    fn is_over(&self) -> bool {
        self.is_asked() || self.until.lock().is_some_and(|until| self.now() >= until)
    }

    fn expect(&self, _: u64) {}

    fn copied(&self, _: u64) {
        let starved_ms = self.starved_ms.load(Ordering::Relaxed);
        if starved_ms > 0 {
            // A round that is broken off gets to know that in time.
            let left = self.until.lock().map_or(Duration::MAX, |until| until.saturating_sub(self.now()));
            self.pause(u64::try_from(left.as_micros()).unwrap_or(u64::MAX).min(starved_ms * 1000));
        }
    }

    fn file(&self, _: &Spot, _: &Spot) {}

    fn dir(&self) {}

    fn lacks(&self, trouble: &Trouble) {
        self.failures.lock().push(format!("lacks: {trouble}"));
    }

    fn failed(&self, trouble: &Trouble) {
        self.failures.lock().push(trouble.to_string());
    }

    /// Time for a kill.
    fn step(&self) {
        self.pause(20_000);
    }
}

/// A job, with all that it needs.
#[derive(Clone)]
pub(super) struct Job {
    cluster: Arc<Cluster>,
    node: usize,
    place: Place,
    plan: StagingPlan,
    what: What,
    side: Side,
    is_closed_only: bool,
    outside: String,
    state: PathBuf,
    ledgers: PathBuf,
    pub receipt: PathBuf,
    key: Arc<Mutex<Option<Key>>>,
    pub starts: Arc<Mutex<Vec<Start>>>,
    nodes: Option<Arc<Team>>,
    pub told: Arc<Told>,
}

impl Job {
    pub fn new(run: &Run, node: usize, what: What, number: u64, is_elsewhere: bool) -> Job {
        let told = Arc::new(Told::new(run.cluster.client_io(node)));
        let mut rng = run.cluster.sim.rng(&format!("team of {node}"));
        let team = || Arc::new(nodes::team(run, node, is_elsewhere, &mut rng));
        let nodes = (run.plan.nodes > 0 && nodes::has_workers(what)).then(team);
        Job {
            cluster: run.cluster.clone(),
            node,
            place: run.place.on_system(node),
            plan: run.plan.clone(),
            what,
            side: run.side(),
            // Programs that have ended in the middle have left files open.
            is_closed_only: run.plan.closed_only && !run.model.lock().is_over,
            outside: run.outside(),
            state: run.files.state(),
            ledgers: run.files.ledgers(),
            receipt: run.files.receipt(number),
            key: Arc::new(Mutex::new(Some(run.files.key()))),
            starts: run.starts.clone(),
            nodes,
            told,
        }
    }

    pub fn run(&self) {
        let ended = self.perform().unwrap_or_else(Ended::Failed);
        *self.told.ended.lock() = Some(ended);
    }

    fn perform(&self) -> Outcome<Ended> {
        let connected = Waiter::Simulated.block_on(self.cluster.connect(self.node));
        let client = match connected {
            Some(Ok(client)) => client,
            Some(Err(failure)) => return Err(Trouble::volume("connect", &failure)),
            None => return Ok(Ended::Killed),
        };
        let connection = Connection {
            client,
            who: ROOT.clone(),
            waiter: Waiter::Simulated,
            volume: "sim".into(),
            backing: self.plan.is_over_directory.then(|| BELOW.into()),
        };
        let tree: Arc<dyn Tree> = Arc::new(VolumeTree::new(connection, "aze:".into()));
        let from = Spot { tree, path: INSIDE.into() };
        match self.what {
            What::Stage if self.plan.is_inward => self.stage_in(from),
            What::Stage => self.stage(&self.order_out(from)?),
            What::Rounds(asked) => self.stage_in_rounds(asked, self.order_out(from)?),
            What::Release => self.release(from),
            What::Look => self.look(&from),
            What::Warm => self.warm(from.tree),
        }
    }

    /// Whether rounds are broken off when the last one is due.
    pub fn breaks_off(&self) -> bool {
        self.plan.without != Some(Missing::BreakingOff)
    }

    /// Has the volume take over the names of a directory that no program uses, and looks whether it has them then by itself.
    fn warm(&self, tree: Arc<dyn Tree>) -> Outcome<Ended> {
        let start = Spot { tree: tree.clone(), path: COLD.into() };
        let names_only = !self.node.is_multiple_of(3);
        let warmed = warm(&start, names_only, 3, self.told.as_ref())?;
        let below = format!("{BELOW}{COLD}");
        let (before, mut names) = (self.place.lists_below(below.as_bytes()), BTreeSet::new());
        let mut dirs = vec![COLD.as_bytes().to_vec()];
        while let Some(dir) = dirs.pop() {
            for entry in tree.list(&dir)?.all()? {
                let path = join(&dir, &entry.name);
                if entry.kind == FileKind::Directory {
                    dirs.push(path.clone());
                }
                names.insert(path);
            }
        }
        let listed = self.place.lists_below(below.as_bytes()) - before;
        Ok(Ended::Warmed { warmed, names, listed })
    }

    /// The ledger of a direction.
    fn hold(&self, direction: &str) -> Outcome<(Hold, Route)> {
        let outside = self.outside.clone().into_bytes();
        let route = Route { direction: direction.into(), inside: INSIDE.into(), outside };
        let work = Work { route: route.clone(), state: self.state.clone(), host: "sim".into(), pid: 1 };
        Ok((Hold::take(&self.ledgers, "0123456789abcdef", &work)?, route))
    }

    fn stage_in(&self, to: Spot) -> Outcome<Ended> {
        let from = Spot { tree: Arc::new(self.place.clone()), path: self.outside.clone().into_bytes() };
        let order = Order {
            direction: "in",
            source: from.shown(),
            from,
            destination: to.shown().into_bytes(),
            to,
            filter: Filter::default(),
            side: Side::Outside,
            delete: self.plan.delete,
            atomic: self.plan.atomic,
            closed_only: false,
            jobs: 3,
            nodes: self.team(),
            state: self.state.clone(),
            ledger: Some(self.hold("in")?),
            receipt: Some((self.receipt.clone(), self.key.lock().take().expect("a job runs once"))),
            program: "aze".into(),
        };
        self.stage(&order)
    }

    /// Stages, and notes when.
    pub fn stage_once(&self, order: &Order) -> Outcome<Report> {
        let at = self.place.now_ns();
        self.starts.lock().push(Start { at, is_closed_only: order.closed_only });
        let watch: Arc<dyn Watch> = self.told.clone();
        stage(order, &watch)
    }

    fn stage(&self, order: &Order) -> Outcome<Ended> {
        let report = self.stage_once(order)?;
        Ok(Ended::Well { missing: report.missing, left: report.left, drained: report.drained })
    }

    fn order_out(&self, from: Spot) -> Outcome<Order> {
        let outside = self.outside.clone().into_bytes();
        let filter = Filter { destination: self.plan.is_over_directory.then(|| outside.clone()), ..Filter::default() };
        let key = self.key.lock().take().expect("a job runs once");
        Ok(Order {
            direction: "out",
            source: from.shown(),
            to: Spot { tree: Arc::new(self.place.clone()), path: outside.clone() },
            from,
            destination: outside,
            filter,
            side: self.side,
            delete: self.plan.delete,
            atomic: self.plan.atomic,
            closed_only: self.is_closed_only,
            jobs: 3,
            nodes: self.team(),
            state: self.state.clone(),
            ledger: Some(self.hold("out")?),
            receipt: Some((self.receipt.clone(), key)),
            program: "aze".into(),
        })
    }

    fn team(&self) -> Option<Arc<dyn Nodes>> {
        self.nodes.clone().map(|nodes| nodes as Arc<dyn Nodes>)
    }

    fn release(&self, from: Spot) -> Outcome<Ended> {
        let order = release::Order {
            from: vec![from],
            outside: Arc::new(self.place.clone()),
            ledgers: ledger::files_in(&self.ledgers)?,
            compare: self.node.is_multiple_of(2),
            // Programs that had files open before a server was killed are known to be there still.
            any_life: false,
            jobs: 3,
            note: &|| Ok(()),
        };
        let report = release(&order, self.told.as_ref())?;
        Ok(Ended::Well { missing: report.kept, left: 0, drained: 0 })
    }

    fn look(&self, from: &Spot) -> Outcome<Ended> {
        let (ledgers, troubles) = ledger::all_in(&self.ledgers)?;
        if let Some(trouble) = troubles.into_iter().next() {
            return Err(trouble);
        }
        let standing = look(from, &ledgers, 3, NAMED_MAX, None, &|| false)?;
        Ok(Ended::Looked(Box::new(standing)))
    }
}
