//! A command of the stager, as a simulated process: what `aze stage` does between its arguments and its exit code.

use super::place::Place;
use super::programs::{INSIDE, ROOT};
use super::{BELOW, Run, StagingPlan};
use crate::Cluster;
use aze_copy::Watch;
use aze_copy::stage::ledger::{self, Hold, Route, Work};
use aze_copy::stage::release::{self, release};
use aze_copy::stage::standing::{Standing, look};
use aze_copy::stage::survey::Filter;
use aze_copy::stage::{Order, Side, stage};
use aze_copy::tree::{Spot, Tree};
use aze_io::Io;
use aze_io::sync::Mutex;
use aze_io::threads::Waiter;
use aze_receipt::Key;
use aze_tree::{Connection, VolumeTree};
use aze_words::exit::{Outcome, Trouble};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Dirty objects that a look names: all.
const NAMED_MAX: usize = 100_000;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Stage,
    Release,
    Look,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Ended {
    Killed,
    Well { missing: u64, left: u64, drained: u64 },
    Looked(Box<Standing>),
    Failed(#[allow(dead_code, reason = "it is shown")] Trouble),
}

/// What a job tells of itself.
pub(super) struct Told {
    io: Io,
    is_asked: AtomicBool,
    is_dead: AtomicBool,
    failures: Mutex<Vec<String>>,
    ended: Mutex<Option<Ended>>,
}

impl Told {
    pub fn ask_to_end(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
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
        self.is_asked.load(Ordering::Relaxed) || self.is_dead.load(Ordering::Relaxed)
    }

    fn expect(&self, _: u64) {}

    fn copied(&self, _: u64) {}

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
        let pause = Duration::from_micros(self.io.random_u64() % 20_000);
        // Where it is killed, the killer has told so.
        let _ = Waiter::Simulated.block_on(self.io.sleep(pause));
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
    receipt: PathBuf,
    key: Arc<Mutex<Option<Key>>>,
    pub told: Arc<Told>,
}

impl Job {
    pub fn new(run: &Run, node: usize, what: What, number: u64) -> Job {
        let told = Told {
            io: run.cluster.client_io(node),
            is_asked: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            failures: Mutex::default(),
            ended: Mutex::default(),
        };
        Job {
            cluster: run.cluster.clone(),
            node,
            place: run.place.clone(),
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
            told: Arc::new(told),
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
            What::Stage => self.stage(from),
            What::Release => self.release(from),
            What::Look => self.look(&from),
        }
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
            nodes: None,
            state: self.state.clone(),
            ledger: Some(self.hold("in")?),
            receipt: Some((self.receipt.clone(), self.key.lock().take().expect("a job runs once"))),
            program: "aze".into(),
        };
        let watch: Arc<dyn Watch> = self.told.clone();
        let report = stage(&order, &watch)?;
        Ok(Ended::Well { missing: report.missing, left: report.left, drained: report.drained })
    }

    fn stage(&self, from: Spot) -> Outcome<Ended> {
        let outside = self.outside.clone().into_bytes();
        let filter = Filter { destination: self.plan.is_over_directory.then(|| outside.clone()), ..Filter::default() };
        let key = self.key.lock().take().expect("a job runs once");
        let order = Order {
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
            nodes: None,
            state: self.state.clone(),
            ledger: Some(self.hold("out")?),
            receipt: Some((self.receipt.clone(), key)),
            program: "aze".into(),
        };
        let watch: Arc<dyn Watch> = self.told.clone();
        let report = stage(&order, &watch)?;
        Ok(Ended::Well { missing: report.missing, left: report.left, drained: report.drained })
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
