//! A group of members under everything that a network and a machine may do to them, from one seed.
//!
//! Each proposed value is the decided one with a number at its end. So of any two decided values one must begin with the other, and a
//! number that was acknowledged is in all later ones.

use aze_keeper::{Confirmation, Fate, Group, MemberId, Proposal, Work};
use std::collections::BTreeMap;

/// Servers of which members are chosen.
const SERVERS: usize = 5;

/// Members of a group.
const MEMBERS: usize = 3;

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
    /// One that has lost its memory comes back under its old number.
    OldNumber,
    /// A leader believes itself without asking.
    ConfirmItself,
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
    asked: BTreeMap<Confirmation, usize>,
}

struct World {
    lots: Lots,
    planted: Planted,
    keeps: bool,
    servers: Vec<Server>,
    next_id: u64,
    next_number: u64,
    wire: Vec<(MemberId, MemberId, Vec<u8>)>,
    cut: Vec<(MemberId, MemberId)>,
    faulty: bool,
    longest: Vec<u64>,
    acknowledged: Vec<u64>,
    confirmed: usize,
    replaced: usize,
}

fn numbers(value: &[u8]) -> Vec<u64> {
    value.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

impl World {
    fn new(seed: u64, planted: Planted) -> World {
        let mut lots = Lots(seed);
        let keeps = lots.happens(500) || planted == Planted::TellBeforeStored;
        let keeps = keeps && planted != Planted::OldNumber;
        let founders: Vec<MemberId> = (1..=MEMBERS as u64).map(MemberId).collect();
        let servers = (0..SERVERS).map(|place| {
            let id = MemberId(place as u64 + 1);
            let group = (place < MEMBERS).then(|| Group::found(id, &founders, Vec::new()));
            Server { group, id, stored: None, late: None, mine: BTreeMap::new(), asked: BTreeMap::new() }
        });
        World {
            servers: servers.collect(),
            lots,
            planted,
            keeps,
            next_id: 100,
            next_number: 1,
            wire: Vec::new(),
            cut: Vec::new(),
            faulty: true,
            longest: Vec::new(),
            acknowledged: Vec::new(),
            confirmed: 0,
            replaced: 0,
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
            let Work { stored, messages, decided, outcomes, confirmed } = work;
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
            for question in confirmed {
                self.confirmed(place, question)?;
            }
        }
        Ok(())
    }

    fn confirmed(&mut self, place: usize, question: Confirmation) -> Result<(), String> {
        let Some(known) = self.servers[place].asked.remove(&question) else { return Ok(()) };
        self.confirmed += 1;
        let has = self.servers[place].group.as_ref().map_or(0, |group| numbers(group.value()).len());
        if has < known {
            return Err(format!("a member leads with {has} decisions, when {known} had been acknowledged"));
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
        let World { servers, planted, next_number, .. } = self;
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
            80..=94 => {
                if let Ok(question) = group.confirm() {
                    server.asked.insert(question, self.acknowledged.len());
                    if *planted == Planted::ConfirmItself {
                        self.confirmed(place, question)?;
                    }
                }
            }
            95..=97 => {
                let others: Vec<MemberId> =
                    group.members().into_iter().filter(|member| *member != group.me()).collect();
                if let Some(other) = others.first() {
                    let _ = group.hand_over(*other);
                }
            }
            _ => {}
        }
        self.work(place)
    }

    /// The group's members, by the member that leads, if there is one that all see.
    fn leading(&self) -> Option<usize> {
        let leads = |server: &Server| server.group.as_ref().is_some_and(Group::leads);
        let newest = |place: &usize| self.servers[*place].group.as_ref().map(|group| group.reached());
        (0..SERVERS).filter(|place| leads(&self.servers[*place])).max_by_key(newest)
    }

    fn kill(&mut self) {
        let victim = self.lots.below(SERVERS);
        if !self.keeps {
            // One that has forgotten everything counts as lost until it is replaced: of three, one may be.
            let Some(leader) = self.leading() else { return };
            let members = self.servers[leader].group.as_ref().expect("it leads").members();
            let lives = |member: &MemberId| self.servers.iter().any(|s| s.id == *member && s.group.is_some());
            let others_agree = self
                .servers
                .iter()
                .filter_map(|server| server.group.as_ref())
                .all(|group| !members.contains(&group.me()) || group.members() == members);
            if members.len() != MEMBERS || !members.iter().all(lives) || !others_agree {
                return;
            }
        }
        let server = &mut self.servers[victim];
        server.group = None;
        (server.late, server.mine) = (None, BTreeMap::new());
        server.asked.clear();
    }

    fn restart(&mut self) -> Result<(), String> {
        for place in 0..SERVERS {
            let server = &mut self.servers[place];
            if server.group.is_some() || place >= MEMBERS && server.stored.is_none() && self.keeps {
                continue;
            }
            if self.keeps {
                server.group = Some(match &server.stored {
                    Some(stored) => Group::restored(stored).map_err(|why| why.to_string())?,
                    None => Group::found(server.id, &[1, 2, 3].map(MemberId), Vec::new()),
                });
            } else {
                if self.planted != Planted::OldNumber {
                    server.id = MemberId(self.next_id);
                    self.next_id += 1;
                }
                server.group = Some(Group::newcomer(server.id));
            }
            self.work(place)?;
        }
        Ok(())
    }

    /// The leader takes a living server in place of a member that is gone.
    fn replace(&mut self) -> Result<(), String> {
        let Some(leader) = self.leading() else { return Ok(()) };
        let members = self.servers[leader].group.as_ref().expect("it leads").members();
        let lives = |member: &MemberId| self.servers.iter().any(|s| s.id == *member && s.group.is_some());
        let free = self.servers.iter().find(|server| server.group.is_some() && !members.contains(&server.id));
        if let (Some(gone), Some(free)) = (members.iter().find(|member| !lives(member)), free) {
            let wanted: Vec<MemberId> =
                members.iter().copied().filter(|member| member != gone).chain([free.id]).collect();
            let group = self.servers[leader].group.as_mut().expect("it leads");
            if group.change_members(&wanted).is_ok() {
                self.replaced += 1;
            }
            self.work(leader)?;
        }
        Ok(())
    }

    fn fault(&mut self) -> Result<(), String> {
        match self.lots.below(12) {
            0 => self.kill(),
            1..=3 => self.restart()?,
            4 | 5 if !self.keeps => self.replace()?,
            6 => {
                let (from, to) = (self.lots.below(SERVERS), self.lots.below(SERVERS));
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
        for place in 0..SERVERS {
            self.work(place)?;
        }
        for _ in 0..STEPS {
            match self.lots.below(10) {
                0..=5 => self.deliver()?,
                6..=8 => {
                    let place = self.lots.below(SERVERS);
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
                    let place = self.lots.below(SERVERS);
                    if let Some(group) = self.servers[place].group.as_mut() {
                        if step % 8 == 0 { group.campaign() } else { group.tick() }
                    }
                    self.work(place)?;
                }
            }
        }
        let states: Vec<String> = self.servers.iter().map(|server| format!("{:?}", server.group)).collect();
        Err(format!(
            "a group without faults has decided nothing: keeps {}, wire {} {states:#?}",
            self.keeps,
            self.wire.len()
        ))
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

/// Runs one seed; what was wrong, a panic of the library included.
fn run(seed: u64, planted: Planted) -> Result<World, String> {
    std::panic::catch_unwind(|| {
        let mut world = World::new(seed, planted);
        world.run().map(|()| world)
    })
    .unwrap_or_else(|panic| Err(format!("panic: {:?}", panic.downcast_ref::<String>())))
}

#[test]
fn what_is_decided_stays_decided() {
    let (mut acknowledged, mut confirmed, mut replaced) = (0, 0, 0);
    for seed in 0..400 {
        let world = run(seed, Planted::Nothing).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        acknowledged += world.acknowledged.len();
        confirmed += world.confirmed;
        replaced += world.replaced;
    }
    assert!(acknowledged > 4000, "{acknowledged} decisions");
    assert!(confirmed > 800, "{confirmed} confirmations");
    assert!(replaced > 50, "{replaced} replaced members");
}

/// How many of the first seeds notice that a protection is missing.
fn noticed(planted: Planted) -> usize {
    (0..400).filter(|seed| run(*seed, planted).is_err()).count()
}

#[test]
fn missing_protections_are_noticed() {
    for planted in [Planted::TellBeforeStored, Planted::OldNumber, Planted::ConfirmItself] {
        let found = noticed(planted);
        eprintln!("{planted:?}: {found}");
        assert!(found > 0, "{planted:?}");
    }
}
