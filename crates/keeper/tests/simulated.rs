//! A group of members under everything that a network and a machine may do to them, from one seed.
//!
//! Each proposed value is the decided one with a number at its end. So of any two decided values one must begin with the other, and a
//! number that was acknowledged is in all later ones.

use aze_keeper::{Fate, Group, MemberId, Proposal, Work};
use std::collections::BTreeMap;

/// Members of a group.
const MEMBERS: usize = 3;

/// All of them.
const FOUNDERS: [MemberId; MEMBERS] = [MemberId(1), MemberId(2), MemberId(3)];

/// Steps of the part with faults.
const STEPS: usize = 1500;

/// Steps within which a group without faults has to decide.
const QUIET_STEPS: usize = 4000;

/// A protection that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Messages leave, and decisions are told, before they are stored.
    TellBeforeStored,
    /// A member that has lost its store comes back under its old number.
    OldNumber,
}

/// Numbers from a seed (splitmix64, Steele, Lea, Flood 2014).
struct Lots(u64);

impl Lots {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.draw() % count as u64) as usize
    }

    fn happens(&mut self, in_1000: u64) -> bool {
        self.draw() % 1000 < in_1000
    }
}

struct Server {
    group: Option<Group>,
    id: MemberId,
    stored: Option<Vec<u8>>,
    /// Not stored yet, with [`Planted::TellBeforeStored`].
    late: Option<Vec<u8>>,
    mine: BTreeMap<Proposal, u64>,
}

struct World {
    lots: Lots,
    planted: Planted,
    servers: Vec<Server>,
    next_number: u64,
    wire: Vec<(MemberId, MemberId, Vec<u8>)>,
    cut: Vec<(MemberId, MemberId)>,
    faulty: bool,
    longest: Vec<u64>,
    acknowledged: Vec<u64>,
    restarted: usize,
}

fn numbers(value: &[u8]) -> Vec<u64> {
    value.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

impl World {
    fn new(seed: u64, planted: Planted) -> World {
        let servers = FOUNDERS.map(|id| {
            let group = Some(Group::found(id, &FOUNDERS, Vec::new()));
            Server { group, id, stored: None, late: None, mine: BTreeMap::new() }
        });
        World {
            servers: servers.into(),
            lots: Lots(seed),
            planted,
            next_number: 1,
            wire: Vec::new(),
            cut: Vec::new(),
            faulty: true,
            longest: Vec::new(),
            acknowledged: Vec::new(),
            restarted: 0,
        }
    }

    /// Some decided value was seen.
    fn see(&mut self, value: &[u8]) -> Result<(), String> {
        let seen = numbers(value);
        let (short, long) =
            if seen.len() < self.longest.len() { (&seen, &self.longest) } else { (&self.longest, &seen) };
        if long[..short.len()] != short[..] {
            return Err(format!("two decisions that do not follow each other: {short:?} and {long:?}"));
        }
        if let Some(lost) =
            self.acknowledged.iter().find(|number| seen.len() > self.longest.len() && !seen.contains(number))
        {
            return Err(format!("{lost} was acknowledged, and is not in {seen:?}"));
        }
        if seen.len() > self.longest.len() {
            self.longest = seen;
        }
        Ok(())
    }

    fn work(&mut self, place: usize) -> Result<(), String> {
        while let Some(work) = self.servers[place].group.as_mut().and_then(Group::work) {
            let Work { stored, messages, decided, outcomes } = work;
            if let Some(stored) = stored {
                let server = &mut self.servers[place];
                if self.planted == Planted::TellBeforeStored {
                    server.late = Some(stored)
                } else {
                    server.stored = Some(stored)
                }
            }
            let from = self.servers[place].id;
            self.wire.extend(messages.into_iter().map(|(to, bytes)| (from, to, bytes)));
            if let Some(value) = decided {
                self.see(&value)?;
            }
            for outcome in outcomes {
                let number = self.servers[place].mine.remove(&outcome.proposal);
                if let (Fate::Decided, Some(number)) = (outcome.fate, number) {
                    self.acknowledged.push(number);
                    if !self.longest.contains(&number) {
                        return Err(format!("{number} is acknowledged, and was not decided"));
                    }
                }
            }
        }
        Ok(())
    }

    fn deliver(&mut self) -> Result<(), String> {
        if self.wire.is_empty() {
            return Ok(());
        }
        let at = self.lots.below(self.wire.len());
        let twice = self.faulty && self.lots.happens(50);
        let (from, to, bytes) = if twice { self.wire[at].clone() } else { self.wire.swap_remove(at) };
        if self.faulty && (self.cut.contains(&(from, to)) || self.lots.happens(50)) {
            if let Some(sender) =
                self.servers.iter_mut().find(|server| server.id == from).and_then(|s| s.group.as_mut())
            {
                sender.unreachable(to);
            }
            return Ok(());
        }
        let Some(place) = self.servers.iter().position(|server| server.id == to && server.group.is_some()) else {
            if let Some(sender) =
                self.servers.iter_mut().find(|server| server.id == from).and_then(|s| s.group.as_mut())
            {
                sender.unreachable(to);
            }
            return Ok(());
        };
        self.servers[place].group.as_mut().expect("it runs").receive(&bytes);
        self.work(place)
    }

    fn act(&mut self, place: usize) -> Result<(), String> {
        let choice = self.lots.below(100);
        let World { servers, next_number, .. } = self;
        let server = &mut servers[place];
        let Some(group) = server.group.as_mut() else { return Ok(()) };
        match choice {
            0..=39 => group.tick(),
            40..=44 => group.campaign(),
            45..=79 if server.mine.is_empty() => {
                let mut value = group.value().to_vec();
                value.extend_from_slice(&next_number.to_le_bytes());
                if let Ok(proposal) = group.propose(value) {
                    server.mine.insert(proposal, *next_number);
                    *next_number += 1;
                }
            }
            _ => {}
        }
        self.work(place)
    }

    /// The member that leads, if there is one that all see.
    fn leading(&self) -> Option<usize> {
        let leads = |server: &Server| server.group.as_ref().is_some_and(Group::leads);
        let newest = |place: &usize| self.servers[*place].group.as_ref().map(|group| group.reached());
        (0..MEMBERS).filter(|place| leads(&self.servers[*place])).max_by_key(newest)
    }

    fn kill(&mut self) {
        let victim = self.lots.below(MEMBERS);
        let forgets = self.planted == Planted::OldNumber;
        let server = &mut self.servers[victim];
        server.group = None;
        (server.late, server.mine) = (None, BTreeMap::new());
        if forgets {
            server.stored = None;
        }
    }

    fn restart(&mut self) -> Result<(), String> {
        for place in 0..MEMBERS {
            let server = &mut self.servers[place];
            if server.group.is_some() {
                continue;
            }
            server.group = Some(match &server.stored {
                Some(stored) => Group::restored(stored).map_err(|why| why.to_string())?,
                None => Group::found(server.id, &FOUNDERS, Vec::new()),
            });
            self.restarted += 1;
            self.work(place)?;
        }
        Ok(())
    }

    fn fault(&mut self) -> Result<(), String> {
        match self.lots.below(12) {
            0 => self.kill(),
            1..=3 => self.restart()?,
            6 => {
                let (from, to) = (self.lots.below(MEMBERS), self.lots.below(MEMBERS));
                let pair = (self.servers[from].id, self.servers[to].id);
                self.cut.push(pair);
                if self.lots.happens(500) {
                    self.cut.push((pair.1, pair.0));
                }
            }
            7 => self.cut.clear(),
            8 => {
                for server in &mut self.servers {
                    if let Some(late) = server.late.take() {
                        server.stored = Some(late);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        for place in 0..MEMBERS {
            self.work(place)?;
        }
        for _ in 0..STEPS {
            match self.lots.below(10) {
                0..=5 => self.deliver()?,
                6..=8 => {
                    let place = self.lots.below(MEMBERS);
                    self.act(place)?;
                }
                _ if self.lots.happens(150) => self.fault()?,
                _ => {}
            }
        }
        self.faulty = false;
        self.cut.clear();
        self.restart()?;
        let before = self.acknowledged.len();
        for step in 0..QUIET_STEPS {
            if self.acknowledged.len() > before {
                return self.agree();
            }
            match self.lots.below(10) {
                0..=6 => self.deliver()?,
                _ if self.leading().is_some() => {
                    let place = self.leading().expect("somebody leads");
                    self.act(place)?;
                }
                _ => {
                    let place = self.lots.below(MEMBERS);
                    if let Some(group) = self.servers[place].group.as_mut() {
                        if step % 8 == 0 { group.campaign() } else { group.tick() }
                    }
                    self.work(place)?;
                }
            }
        }
        let states: Vec<String> = self.servers.iter().map(|server| format!("{:?}", server.group)).collect();
        Err(format!("a group without faults has decided nothing: wire {} {states:#?}", self.wire.len()))
    }

    /// What every member knows at the end.
    fn agree(&mut self) -> Result<(), String> {
        let values: Vec<Vec<u8>> = self
            .servers
            .iter()
            .filter_map(|server| server.group.as_ref())
            .map(|group| group.value().to_vec())
            .collect();
        for value in &values {
            self.see(value)?;
        }
        match self.acknowledged.iter().find(|number| !self.longest.contains(number)) {
            Some(lost) => Err(format!("{lost} was acknowledged, and is not in {:?}", self.longest)),
            None => Ok(()),
        }
    }
}

/// Runs one seed; gives the error, a panic of the library included.
fn run(seed: u64, planted: Planted) -> Result<World, String> {
    std::panic::catch_unwind(|| {
        let mut world = World::new(seed, planted);
        world.run().map(|()| world)
    })
    .unwrap_or_else(|panic| Err(format!("panic: {:?}", panic.downcast_ref::<String>())))
}

#[test]
fn what_is_decided_stays_decided() {
    let (mut acknowledged, mut restarted) = (0, 0);
    for seed in 0..400 {
        let world = run(seed, Planted::Nothing).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        acknowledged += world.acknowledged.len();
        restarted += world.restarted;
    }
    assert!(acknowledged > 4000, "{acknowledged} decisions");
    assert!(restarted > 400, "{restarted} members were started again");
}

/// How many of the first seeds notice that a protection is missing.
fn noticed(planted: Planted) -> usize {
    (0..400).filter(|seed| run(*seed, planted).is_err()).count()
}

#[test]
fn missing_protections_are_noticed() {
    for planted in [Planted::TellBeforeStored, Planted::OldNumber] {
        let found = noticed(planted);
        eprintln!("{planted:?}: {found}");
        assert!(found > 0, "{planted:?}");
    }
}
