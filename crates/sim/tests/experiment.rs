//! A simulated measurement says what its parameters say: where ports are what everybody waits for, half of their bandwidth is half of
//! the data; where servers are, twice their time is half of the operations.

use aze_io::sim::Network;
use aze_proto::slots::Placement;
use aze_sim::experiment::work::{Job, Phase};
use aze_sim::experiment::{Cost, Measured, Plan, Times, run};
use std::sync::Arc;

const NETWORK: Network =
    Network { latency_ns: 2_000, local_latency_ns: 1_000, port_bytes_per_s: 1 << 30, frame_bytes: 100 };
const JOB: Job = Job { procs: 4, files: 4, bytes: 1 << 20, transfer: 1 << 20, alone: 4 << 20 };

/// Every request takes `ns`, and `mib_ns` for each MiB.
fn times(ns: u64, mib_ns: u64) -> Times {
    let cost = Cost { ns, mib_ns };
    let requests = ["Write", "Read"].map(|name| (name.to_owned(), cost)).into();
    Times { requests, other_ns: ns, answer_ns: 100, ..Times::default() }
}

fn plan(servers: u16, times: Times) -> Plan {
    Plan {
        seed: 1,
        servers,
        clients: usize::from(servers),
        together: false,
        cores: 2,
        network: NETWORK,
        placement: Placement::Modular,
        times: Arc::new(times),
        job: JOB,
    }
}

fn measured(plan: &Plan, phases: &[Phase]) -> Vec<Measured> {
    let measured = run(plan, phases).expect("a quiet cluster serves");
    assert_eq!(measured.iter().map(|one| one.phase).collect::<Vec<_>>(), phases, "each phase once");
    measured
}

fn assert_ratio(what: &str, one: f64, other: f64, expected: f64) {
    let ratio = one / other;
    assert!((ratio / expected - 1.0).abs() < 0.15, "{what}: {one} and {other}, {ratio:.2} times, not {expected}");
}

#[test]
fn half_the_bandwidth_of_ports_is_half_the_data() {
    let fast = plan(4, times(100, 0));
    let network = Network { port_bytes_per_s: NETWORK.port_bytes_per_s / 2, ..NETWORK };
    let slow = Plan { network, ..fast.clone() };
    let (fast, slow) = (measured(&fast, &Phase::DATA), measured(&slow, &Phase::DATA));
    assert_eq!((fast.len(), slow.len()), (4, 4));
    for (fast, slow) in fast.iter().zip(&slow) {
        assert_eq!(fast.amount, slow.amount, "the same work");
        assert_ratio(&fast.phase.name(), fast.rate(), slow.rate(), 2.0);
        // Four ports, and none takes more than it can; chunks on the client's own machine need none.
        assert!(fast.rate() < 4.0 * 1.5 * NETWORK.port_bytes_per_s as f64, "{fast:?}");
    }
}

#[test]
fn twice_the_time_of_a_server_is_half_the_operations() {
    let (fast, slow) = (plan(4, times(200_000, 0)), plan(4, times(400_000, 0)));
    let (fast, slow) = (measured(&fast, &Phase::NAMES), measured(&slow, &Phase::NAMES));
    assert_eq!((fast.len(), slow.len()), (6, 6));
    for (fast, slow) in fast.iter().zip(&slow) {
        assert_ratio(&fast.phase.name(), fast.rate(), slow.rate(), 2.0);
        // One request at least for each operation, and two processors of each of four machines.
        assert!(fast.rate() < 4.0 * 2.0 / 200e-6 * 1.01, "{fast:?}");
    }
}

#[test]
fn twice_the_time_of_a_byte_is_half_the_data() {
    let (fast, slow) = (plan(2, times(100, 100_000_000)), plan(2, times(100, 200_000_000)));
    let (fast, slow) = (measured(&fast, &Phase::DATA), measured(&slow, &Phase::DATA));
    assert_eq!(fast.len(), 4);
    for (fast, slow) in fast.iter().zip(&slow) {
        assert_ratio(&fast.phase.name(), fast.rate(), slow.rate(), 2.0);
    }
}

#[test]
fn twice_the_processors_serve_twice_as_much() {
    let one = Plan { cores: 1, ..plan(2, times(200_000, 0)) };
    let two = Plan { cores: 2, ..one.clone() };
    let many = Job { procs: 16, ..JOB };
    let phases = [Phase::EasyCreate, Phase::EasyRemove];
    let of = |plan: Plan| measured(&Plan { job: many, clients: 2, ..plan }, &phases)[0];
    let (one, two) = (of(one), of(two));
    // Both connections of a server are worked on at once, and no more.
    assert_ratio("two processors", two.rate(), one.rate(), 2.0);
}

#[test]
fn all_chunks_at_once_use_more_than_one_server() {
    let phases = [
        Phase::Write(1 << 20, false),
        Phase::Write(1 << 20, true),
        Phase::Read(1 << 20, false),
        Phase::Read(1 << 20, true),
    ];
    let network = Network { port_bytes_per_s: 16 << 30, ..NETWORK };
    let measured = measured(&Plan { network, ..plan(8, times(100_000, 0)) }, &phases);
    assert_eq!(measured.len(), 4);
    for pair in measured.chunks_exact(2) {
        assert_eq!(pair[0].amount, JOB.alone);
        assert!(pair[1].rate() > 3.0 * pair[0].rate(), "{pair:?}");
    }
}

#[test]
fn more_servers_do_more_and_a_ring_is_more_uneven() {
    let rate = |servers, placement| {
        let plan = Plan { placement, ..plan(servers, times(200_000, 0)) };
        measured(&plan, &[Phase::HardWrite])[0].rate()
    };
    let (two, sixteen) = (rate(2, Placement::Modular), rate(16, Placement::Modular));
    assert!(sixteen > 4.0 * two, "{two} and {sixteen}");
    let ring = rate(16, Placement::Ring);
    assert!(ring < sixteen, "{ring} on a ring, {sixteen}");
}

#[test]
fn a_search_takes_the_time_of_its_names_on_as_many_servers_as_there_are() {
    let of = |servers, found_ns, received_found_ns| {
        let times = Times { found_ns, received_found_ns, ..times(100, 0) };
        let plan = Plan { clients: 2, job: Job { files: 400, ..JOB }, ..plan(servers, times) };
        let measured = measured(&plan, &[Phase::EasyCreate, Phase::Search, Phase::EasyRemove]);
        assert_eq!(measured[1].amount, 2 * 4 * (400 + 1) + 2, "every file is found");
        measured[1]
    };
    let (one, two) = (of(2, 100_000, 0), of(2, 200_000, 0));
    assert_ratio("twice the time of a name at servers", two.seconds, one.seconds, 2.0);
    assert!(one.seconds > 3210.0 * 100e-6 / 4.0, "two processors of each of two servers: {one:?}");
    let four = of(4, 100_000, 0);
    assert!(four.rate() > 1.6 * one.rate(), "{one:?} and {four:?}");
    let (one, two) = (of(2, 0, 100_000), of(2, 0, 200_000));
    assert_ratio("twice the time of a name at the asker", two.seconds, one.seconds, 2.0);
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let plan = plan(4, times(20_000, 1_000_000));
    let phases = [
        Phase::EasyCreate,
        Phase::EasyStat,
        Phase::EasyOpen,
        Phase::EasyRemove,
        Phase::HardWrite,
        Phase::OpenOne,
        Phase::OpenOwn,
    ];
    let first = measured(&plan, &phases);
    assert_eq!(first.len(), 7);
    assert_eq!(first, measured(&plan, &phases));
    assert_ne!(first, measured(&Plan { seed: 2, ..plan }, &phases), "another seed");
}
