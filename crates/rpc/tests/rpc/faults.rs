//! Under every network fault, each change takes effect once, and every answer is the right one.

use crate::service::{Counting, ask, caller, lookup, start, target, unlink};
use aze_io::sim::{Faults, Link, Sim};
use aze_proto::fields::Scan;
use aze_proto::{Code, Ino, Name, Order, Reply, Request};
use aze_rpc::Target;
use aze_rpc::lane::OnLane;
use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use std::sync::Arc;

const MS: u64 = 1_000_000;

fn sim(seed: u64) -> Sim {
    Sim::new(seed, Faults::default())
}

fn server(sim: &Sim, late_ns_max: u64) -> (Arc<Counting>, Box<dyn aze_io::Listener>, Target) {
    let io = sim.node("s0");
    let service = Counting::new(&io, late_ns_max);
    let listener = start(&io, &"tcp:s0:7".parse().unwrap(), &service);
    (service, listener, target(0, "s0", &["tcp:s0:7"]))
}

#[test]
fn every_change_takes_effect_once() {
    let mut happened = aze_io::sim::Counters::default();
    let (mut resent, mut reconnects) = (0, 0);
    for seed in 0..12 {
        let faults = Faults {
            loss_ppm: 30_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 100_000,
            flip_ppm: 5_000,
            connection_cut_ppm: 5_000,
            ..Faults::default()
        };
        let sim = Sim::new(seed, faults);
        let (service, _listener, to) = server(&sim, 20 * MS);
        let (one, two) = (caller(&sim.node("c1"), 1), caller(&sim.node("c2"), 2));
        // Changes have the session's numbers on every connection.
        (1..3).for_each(|lane| one.add_lane(lane, sim.node("c1")));
        let run = |session: u64, caller: Arc<aze_rpc::Caller>| {
            let to = &to;
            async move {
                for round in 0..10 {
                    let batch = (0..20).map(|i| {
                        let caller = &caller;
                        let both = async move {
                            let name = format!("{session}.{round}.{i}");
                            assert_eq!(unlink(caller, to, i % 3, &name, 55).await.unwrap().reply, Reply::Done);
                            let found = lookup(caller, to, session * 1000 + u64::from(i), &[], 55).await.unwrap().reply;
                            assert!(
                                matches!(found, Reply::Entry { ino, .. } if ino == Ino(session * 1000 + u64::from(i)))
                            );
                        };
                        OnLane::new(i as usize / 3 % 3, Box::pin(both))
                    });
                    join_all(batch).await;
                }
            }
        };
        sim.block_on(join(run(1, one.clone()), run(2, two.clone())));
        let seen = service.seen.lock();
        assert_eq!(seen.effects.len(), 400, "seed {seed}");
        assert!(seen.effects.values().all(|times| *times == 1), "seed {seed}: {:?}", seen.effects);
        let counters = sim.counters();
        happened.frames_lost += counters.frames_lost;
        happened.frames_duplicated += counters.frames_duplicated;
        happened.frames_reordered += counters.frames_reordered;
        happened.frames_flipped += counters.frames_flipped;
        happened.connections_cut += counters.connections_cut;
        resent += one.counters().resent + two.counters().resent;
        reconnects += one.counters().reconnects + two.counters().reconnects;
    }
    let all = [
        happened.frames_lost,
        happened.frames_duplicated,
        happened.frames_reordered,
        happened.frames_flipped,
        resent,
        reconnects,
    ];
    assert!(
        all.iter().all(|count| *count > 10),
        "the faults did happen: {happened:?}, {resent} resent, {reconnects} reconnects"
    );
}

#[test]
fn one_seed_gives_one_run() {
    let run = || {
        let faults = Faults {
            loss_ppm: 50_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 50_000,
            connection_cut_ppm: 10_000,
            ..Faults::default()
        };
        let sim = Sim::new(5, faults);
        let (_service, _listener, to) = server(&sim, 5 * MS);
        let caller = caller(&sim.node("c"), 1);
        let names: Vec<String> = (0..50).map(|i| format!("{i}")).collect();
        sim.block_on(join_all(names.iter().map(|name| unlink(&caller, &to, 1, name, 55))));
        sim.trace_hash()
    };
    assert_eq!(run(), run());
}

#[test]
fn without_faults_each_request_is_sent_once_over_one_connection() {
    let sim = sim(1);
    let (service, _listener, to) = server(&sim, 3 * MS);
    let caller = caller(&sim.node("c"), 1);
    let names: Vec<String> = (0..300).map(|i| format!("{i}")).collect();
    let answers = sim.block_on(join_all(names.iter().map(|name| unlink(&caller, &to, 1, name, 10))));
    assert!(answers.iter().all(Result::is_ok));
    let counters = caller.counters();
    assert_eq!((counters.sent, counters.resent, counters.reconnects), (300, 0, 0));
    let seen = service.seen.lock();
    assert_eq!((seen.requests, seen.opened), (300, 1));
}

#[test]
fn an_idle_caller_does_nothing() {
    let sim = sim(2);
    let (_service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        unlink(&caller, &to, 1, "a", 10).await.unwrap();
        sim.sleep(std::time::Duration::from_secs(5)).await;
        let before = sim.counters().steps;
        sim.sleep(std::time::Duration::from_secs(1000)).await;
        assert!(sim.counters().steps - before < 5, "only the test's own timer may have fired");
    });
}

#[test]
fn a_server_that_is_not_there_is_an_error_at_the_deadline() {
    let sim = sim(3);
    let _s0 = sim.node("s0");
    let caller = caller(&sim.node("c"), 1);
    let to = target(4, "s0", &["tcp:s0:7"]);
    let failure = sim.block_on(unlink(&caller, &to, 1, "a", 3)).unwrap_err();
    assert_eq!(failure.code, Code::Unreachable);
    for part in ["Unlink", "server 4 on s0", "tcp:s0:7", "3.0 s", "refused"] {
        assert!(failure.detail.contains(part), "'{}' tells of '{part}'", failure.detail);
    }
    assert!(sim.now_ns() < 3_300 * MS);
}

/// Found with one server of four killed: every look at a directory took the whole deadline again.
#[test]
fn a_server_known_to_be_down_is_given_up_sooner_and_found_when_it_is_back() {
    let sim = sim(3);
    let _s0 = sim.node("s0");
    let caller = caller(&sim.node("c"), 1);
    let to = target(0, "s0", &["tcp:s0:7"]);
    sim.block_on(async {
        assert_eq!(unlink(&caller, &to, 1, "a", 10).await.unwrap_err().code, Code::Unreachable);
        let before = sim.now_ns();
        let again = unlink(&caller, &to, 1, "a", 10).await.unwrap_err();
        assert_eq!(again.code, Code::Unreachable);
        assert!(again.detail.contains("1.0 s"), "{again}");
        assert!(sim.now_ns() - before < 1_300 * MS);
        let (_service, _listener, to) = server(&sim, 0);
        unlink(&caller, &to, 1, "a", 10).await.unwrap();
    });
}

/// Found by a seed with servers that die and come back: a change that the server had begun was given up after a second.
#[test]
fn a_server_that_is_back_has_as_long_as_any_other() {
    let sim = sim(3);
    let _s0 = sim.node("s0");
    let caller = caller(&sim.node("c"), 1);
    let to = target(0, "s0", &["tcp:s0:7"]);
    sim.block_on(async {
        assert_eq!(unlink(&caller, &to, 1, "a", 10).await.unwrap_err().code, Code::Unreachable);
        let (service, _listener, to) = server(&sim, 8_000 * MS);
        let before = sim.now_ns();
        let names: Vec<String> = (0..8).map(|number| format!("{number}")).collect();
        for done in join_all(names.iter().map(|name| unlink(&caller, &to, 1, name, 10))).await {
            assert_eq!(done.map(|answer| answer.reply), Ok(Reply::Done));
        }
        assert!(sim.now_ns() - before > 2_000 * MS, "it was slow");
        assert_eq!(service.seen.lock().effects.len(), 8);
    });
}

#[test]
fn no_usable_address_is_an_error_at_once() {
    let sim = sim(3);
    let caller = caller(&sim.node("c"), 1);
    let failure = sim.block_on(unlink(&caller, &target(4, "elsewhere", &["unix:/s"]), 1, "a", 3)).unwrap_err();
    assert_eq!(failure.code, Code::Unreachable);
    assert!(failure.detail.contains("TCP") && sim.now_ns() < MS, "{failure}");
}

#[test]
fn silence_is_an_unknown_outcome_for_changes_and_a_timeout_for_reads() {
    let sim = sim(4);
    let (service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        unlink(&caller, &to, 1, "before", 10).await.unwrap();
        sim.set_link("s0", "c", Link::Down);
        let (change, read) = join(unlink(&caller, &to, 1, "during", 5), lookup(&caller, &to, 1, &[], 5)).await;
        assert_eq!(change.unwrap_err().code, Code::UnknownOutcome);
        let read = read.unwrap_err();
        assert_eq!(read.code, Code::TimedOut);
        assert!(read.detail.contains("no answer"), "{read}");
        sim.heal();
        unlink(&caller, &to, 1, "after", 10).await.unwrap();
    });
    let seen = service.seen.lock();
    assert_eq!(seen.effects.values().copied().collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn a_change_goes_on_over_a_new_connection_when_the_old_one_is_dead() {
    let sim = sim(5);
    let (service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        unlink(&caller, &to, 1, "a", 10).await.unwrap();
        // The first copies go unanswered, so that the connection is taken for dead.
        service.seen.lock().ignore_next = 3;
        unlink(&caller, &to, 1, "b", 10).await.unwrap();
    });
    let seen = service.seen.lock();
    assert_eq!((seen.effects.len(), seen.opened, seen.requests), (2, 2, 5));
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    let sim = sim(6);
    let (_service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        unlink(&caller, &to, 1, "a", 10).await.unwrap();
        sim.kill("s0");
        let (service, _listener) = {
            sim.sleep(std::time::Duration::from_secs(3)).await;
            let (service, listener, _) = server(&sim, 0);
            (service, listener)
        };
        sim.sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(service.seen.lock().opened, 1, "the session shows that it lives without being asked to");
        unlink(&caller, &to, 1, "b", 10).await.unwrap();
        assert_eq!(service.seen.lock().effects.len(), 1);
    });
}

#[test]
fn a_connection_that_nobody_needs_is_given_up_in_the_end() {
    let sim = sim(7);
    let (_service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        unlink(&caller, &to, 1, "a", 10).await.unwrap();
        sim.kill("s0");
        sim.sleep(std::time::Duration::from_secs(20)).await;
        let before = sim.counters().steps;
        sim.sleep(std::time::Duration::from_secs(100)).await;
        assert!(sim.counters().steps - before < 5);
    });
}

#[test]
fn too_many_pending_is_asked_again() {
    let sim = sim(8);
    let (service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    service.seen.lock().refuse_next = 3;
    sim.block_on(unlink(&caller, &to, 1, "a", 10)).unwrap();
    let seen = service.seen.lock();
    assert_eq!((seen.requests, seen.effects.len()), (4, 1));
}

#[test]
fn dropped_requests_leave_nothing_behind() {
    let sim = sim(9);
    let (service, _listener, to) = server(&sim, MS);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        unlink(&caller, &to, 1, "first", 10).await.unwrap();
        for i in 0..100 {
            let name = format!("{i}");
            assert!(unlink(&caller, &to, 1, &name, 10).now_or_never().is_none());
        }
        // More than a window's worth was given up: had they kept their numbers this would wait.
        assert!(unlink(&caller, &to, 1, "last", 10).await.is_ok());
        sim.sleep(std::time::Duration::from_secs(2)).await;
    });
    assert_eq!(service.seen.lock().effects.get(&Name::new(b"last").unwrap()), Some(&1));
    assert_eq!(caller.counters().resent, 0, "nobody sends again what was given up");
}

#[test]
fn disconnecting_sends_what_is_in_flight_over_a_new_connection() {
    let sim = sim(10);
    let (service, _listener, to) = server(&sim, 50 * MS);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        let cut = async {
            sim.sleep(std::time::Duration::from_millis(2)).await;
            caller.disconnect(to.index);
        };
        join(unlink(&caller, &to, 1, "a", 10), cut).await.0.unwrap();
    });
    let seen = service.seen.lock();
    assert_eq!((seen.opened, seen.effects.len()), (2, 1));
}

#[test]
fn a_closed_caller_says_so() {
    let sim = sim(11);
    let (service, _listener, to) = server(&sim, 50 * MS);
    let caller = caller(&sim.node("c"), 1);
    sim.block_on(async {
        let close = async {
            sim.sleep(std::time::Duration::from_millis(2)).await;
            caller.close();
        };
        assert_eq!(join(unlink(&caller, &to, 1, "a", 10), close).await.0.unwrap_err().code, Code::Expired);
        assert_eq!(unlink(&caller, &to, 1, "b", 10).await.unwrap_err().code, Code::Expired);
        sim.sleep(std::time::Duration::from_secs(1)).await;
    });
    let seen = service.seen.lock();
    assert_eq!((seen.opened, seen.closed), (1, 1));
}

#[test]
fn replies_move_the_clock_and_carry_payloads() {
    let sim = sim(12);
    let (_service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    let payload = vec![5; 100_000];
    let answer = sim.block_on(lookup(&caller, &to, 1, &payload, 10)).unwrap();
    assert_eq!((answer.payload, answer.header.time), (payload, caller.seen_time()));
    let later = sim.block_on(lookup(&caller, &to, 1, &[], 10)).unwrap();
    assert!(later.header.time > answer.header.time, "the server had to go beyond what its client has seen");
    // Each reply was seven events later than its request.
    assert_eq!((answer.header.order, later.header.order), (Order(7), Order(14)));
}

#[test]
fn what_is_too_long_is_not_sent() {
    let sim = sim(13);
    let (service, _listener, to) = server(&sim, 0);
    let caller = caller(&sim.node("c"), 1);
    let long = vec![0; (aze_proto::limits::PAYLOAD_BYTES_MAX + 1) as usize];
    assert_eq!(sim.block_on(lookup(&caller, &to, 1, &long, 10)).unwrap_err().code, Code::Limit);
    let scan = Scan {
        dirs: vec![Ino::ROOT; 600_000],
        predicate: Default::default(),
        find: true,
        usage: false,
        after_dir: 0,
        after: 0,
        limit: 1,
        slots: Vec::new(),
    };
    let request = Request::Scan { scan: Box::new(scan) };
    assert_eq!(sim.block_on(ask(&caller, &to, 0, &request, &[], 10)).unwrap_err().code, Code::Limit);
    assert_eq!(service.seen.lock().requests, 0);
}
