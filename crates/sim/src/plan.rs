//! What a seed means: how many take part, what they do, and what goes wrong.

use aze_io::sim::{SimRng, SlowPayloads};
use aze_proto::slots::Placement;
use aze_server::sabotage::Switches;

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Nothing: every error is a violation.
    Quiet,
    /// Frames are lost, doubled, held up.
    Lossy,
    /// Connections are cut and bits on the wire are flipped.
    Cuts,
    /// Links go down, one way or both, for less than a deadline or for longer.
    Partitions,
    /// Servers other than the keeper die, with or without a word, and come back empty.
    Restarts,
    /// Clients die.
    ClientDeath,
    /// Wall clocks jump.
    Clocks,
    /// The keeper dies for good: then only that no request waits for ever is checked.
    KeeperDeath,
}

impl Mix {
    const ALL: [(Mix, u64); 8] = [
        (Mix::Quiet, 18),
        (Mix::Lossy, 24),
        (Mix::Cuts, 10),
        (Mix::Partitions, 18),
        (Mix::Restarts, 14),
        (Mix::ClientDeath, 7),
        (Mix::Clocks, 6),
        (Mix::KeeperDeath, 3),
    ];

    fn draw(rng: &mut SimRng) -> Mix {
        let total = Mix::ALL.iter().map(|(_, weight)| weight).sum();
        let mut left = rng.below(total);
        for (mix, weight) in Mix::ALL {
            if left < weight {
                return mix;
            }
            left -= weight;
        }
        Mix::Quiet
    }

    /// Whether a request may fail because no server answered.
    pub fn loses_answers(self) -> bool {
        !matches!(self, Mix::Quiet | Mix::Clocks | Mix::ClientDeath)
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where all of it comes from.
    pub seed: u64,
    /// Number of servers.
    pub servers: u16,
    /// Which server gets which slot.
    pub placement: Placement,
    /// Number of clients.
    pub clients: usize,
    /// What goes wrong.
    pub mix: Mix,
    /// Tasks that fight over names, and operations of each.
    pub name_tasks: usize,
    /// Operations of each of them.
    pub name_ops: u64,
    /// Tasks that write a file of their own, which others read.
    pub file_tasks: usize,
    /// Operations of each of them.
    pub file_ops: u64,
    /// Whether one task fills and empties a directory that others list.
    pub listing: bool,
    /// Whether one task gives and takes rights while another one tries.
    pub rights: bool,
    /// Whether something moves from name to name while others look for it.
    pub moving: bool,
    /// Tasks that append to one file, each with `file_ops` records.
    pub append_tasks: usize,
    /// Tasks that lock parts of a few files, each `name_ops` times.
    pub lock_tasks: usize,
    /// Longest pause between two operations of a task, in microseconds of virtual time.
    pub think_us_max: u64,
    /// Memory of each server that clients read without a request, in bytes; 0: none.
    pub published_bytes: u64,
    /// Size from which on data that clients read are shared with them, as if they were on the server's node.
    pub share_bytes_min: Option<usize>,
    /// Whether some files have large chunks and are written to in large pieces.
    pub large_chunks: bool,
    /// How data arrive that servers receive straight into their memory for data.
    pub slow_payloads: Option<SlowPayloads>,
    /// Whether some renames are exchanges.
    pub exchanges: bool,
    /// Whether a client checks the volume while others work.
    pub checks: bool,
    /// Whether a client looks at directories while others work.
    pub looks: bool,
    /// Whether slots move between servers meanwhile.
    pub slots_move: bool,
    /// Whether servers leave meanwhile.
    pub servers_leave: bool,
    /// Whether servers join meanwhile.
    pub servers_join: bool,
    /// How many lanes each client has, as the threads of an agent use them.
    pub lanes: usize,
    /// Protections removed.
    pub switches: Switches,
}

/// In two runs of three some payloads stop in the middle, in some of them for longer than it takes to ask again.
pub fn slow_payloads(rng: &mut SimRng) -> Option<SlowPayloads> {
    let (pause_ppm, pause_ns_max) =
        (*rng.pick(&[0, 100_000, 500_000]), *rng.pick(&[1_000_000, 100_000_000, 1_500_000_000]));
    (pause_ppm > 0).then_some(SlowPayloads { pause_ppm, pause_ns_max })
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut rng = SimRng::new(seed, "plan");
        // Drawn apart, so that seeds go on meaning what they meant.
        let mut more = SimRng::new(seed, "more of the plan");
        let mix = Mix::draw(&mut rng);
        let servers_min = if matches!(mix, Mix::Restarts | Mix::KeeperDeath) { 2 } else { 1 };
        let servers = rng.between(servers_min, 5) as u16;
        let clients = rng.between(if mix == Mix::ClientDeath { 2 } else { 1 }, 4) as usize;
        Plan {
            seed,
            servers,
            placement: *SimRng::new(seed, "placement").pick(&[Placement::Modular, Placement::Ring]),
            clients,
            mix,
            name_tasks: rng.between(1, 5) as usize,
            name_ops: rng.between(8, 30),
            file_tasks: rng.between(1, 3) as usize,
            file_ops: rng.between(6, 25),
            listing: rng.chance(500_000),
            rights: rng.chance(500_000),
            moving: rng.chance(500_000),
            lock_tasks: if more.chance(400_000) { more.between(2, 5) as usize } else { 0 },
            append_tasks: if more.chance(500_000) { more.between(2, 4) as usize } else { 0 },
            think_us_max: *rng.pick(&[300, 3_000, 40_000]),
            published_bytes: *SimRng::new(seed, "slate").pick(&[0, 0, 1, 1 << 20]),
            share_bytes_min: *SimRng::new(seed, "lending").pick(&[None, Some(1), Some(10_000)]),
            large_chunks: SimRng::new(seed, "large chunks").chance(500_000),
            slow_payloads: slow_payloads(&mut SimRng::new(seed, "pauses")),
            exchanges: SimRng::new(seed, "exchanges").chance(500_000),
            checks: SimRng::new(seed, "checks").chance(400_000),
            looks: false,
            slots_move: false,
            servers_leave: false,
            servers_join: false,
            lanes: *SimRng::new(seed, "lanes").pick(&[1, 1, 2, 4]),
            switches: Switches::default(),
        }
    }

    /// The plan of a seed, with several servers, between which slots move.
    pub fn with_moves(seed: u64) -> Plan {
        let plan = Plan::of(seed);
        Plan { servers: plan.servers.max(2), slots_move: true, ..plan }
    }

    /// The plan of a seed, with several servers; some of them leave. In one run of four slots move besides.
    pub fn with_leaving(seed: u64) -> Plan {
        let (plan, mut rng) = (Plan::of(seed), SimRng::new(seed, "leaving"));
        Plan { servers: plan.servers.max(3), servers_leave: true, slots_move: rng.chance(250_000), ..plan }
    }

    /// The plan of a seed, with one server or several, which others join. In one run of three some leave afterwards; in one of four slots
    /// move besides.
    pub fn with_joining(seed: u64) -> Plan {
        let (plan, mut rng) = (Plan::of(seed), SimRng::new(seed, "joining"));
        let (servers_leave, slots_move) = (rng.chance(333_000), rng.chance(250_000));
        Plan { servers_join: true, servers_leave, slots_move, ..plan }
    }

    /// The same, with several servers, and with a client that looks at directories.
    pub fn with_looks(self) -> Plan {
        Plan { servers: self.servers.max(3), looks: true, ..self }
    }

    /// The same with protections removed.
    pub fn with(self, switches: Switches) -> Plan {
        Plan { switches, ..self }
    }
}
