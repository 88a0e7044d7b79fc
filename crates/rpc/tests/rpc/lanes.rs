//! Lanes have connections of their own; events of a server, or of the caller, concern all lanes.

use crate::service::{Counting, caller, lookup, start, target, unlink};
use aze_io::sim::{Faults, Sim};
use aze_proto::{Code, MapEpoch, Refusal, Reply};
use aze_rpc::lane::{LANES_MAX, OnLane};
use aze_rpc::{Answer, Caller, Target};
use futures_util::future::{join, join_all};
use std::sync::Arc;
use std::time::Duration;

const LANES: usize = 3;

/// A server that answers late, and a caller with some lanes.
fn begin(late_ms_max: u64) -> (Sim, Arc<Counting>, Box<dyn aze_io::Listener>, Target, Arc<Caller>) {
    let sim = Sim::new(21, Faults::default());
    let io = sim.node("s0");
    let service = Counting::new(&io, late_ms_max * 1_000_000);
    let listener = start(&io, &"tcp:s0:7".parse().unwrap(), &service);
    let caller = caller(&sim.node("c"), 1);
    (1..LANES).for_each(|lane| caller.add_lane(lane, sim.node("c")));
    (sim, service, listener, target(0, "s0", &["tcp:s0:7"]), caller)
}

/// A change on each lane, of one shard.
async fn on_all(caller: &Caller, to: &Target, round: &str) -> Vec<Result<Answer, aze_proto::Failure>> {
    let change = |lane: usize| {
        let name = format!("{round}{lane}");
        OnLane::new(lane, Box::pin(async move { unlink(caller, to, 1, &name, 10).await }))
    };
    let answers = join_all((0..LANES).map(change)).await;
    assert_eq!(answers.len(), LANES);
    answers
}

#[test]
fn each_lane_has_a_connection_that_stays() {
    let (sim, service, _listener, to, caller) = begin(5);
    sim.block_on(async {
        for round in ["a", "b"] {
            let answers = on_all(&caller, &to, round).await;
            assert!(answers.iter().all(Result::is_ok));
        }
        // One that was never added is the first one.
        assert!(OnLane::new(LANES_MAX - 1, Box::pin(lookup(&caller, &to, 1, &[], 10))).await.is_ok());
    });
    let seen = service.seen.lock();
    assert_eq!((seen.opened, seen.requests, seen.effects.len()), (LANES as u32, 7, 6));
    assert_eq!(caller.counters().sent, 7);
}

#[test]
fn a_lane_is_that_of_the_future_that_is_polled() {
    let (sim, service, _listener, to, caller) = begin(5);
    sim.block_on(async {
        // The first lane is meant before it, beside it and after it.
        unlink(&caller, &to, 1, "before", 10).await.unwrap();
        let inner = OnLane::new(1, Box::pin(unlink(&caller, &to, 1, "inner", 10)));
        let (one, two) = join(inner, unlink(&caller, &to, 1, "beside", 10)).await;
        assert_eq!((one.unwrap().reply, two.unwrap().reply), (Reply::Done, Reply::Done));
        unlink(&caller, &to, 1, "after", 10).await.unwrap();
    });
    assert_eq!(service.seen.lock().opened, 2);
}

#[test]
fn a_server_that_has_left_is_left_by_all_lanes() {
    let (sim, service, _listener, to, caller) = begin(50);
    sim.block_on(async {
        let leave = async {
            sim.sleep(Duration::from_millis(5)).await;
            service.seen.lock().ignore_next = 100;
            caller.leave(to.index, MapEpoch(9));
        };
        let (answers, ()) = join(on_all(&caller, &to, "a"), leave).await;
        for answer in answers {
            assert_eq!(answer.unwrap_err().refusal, Some(Refusal::MapStale { epoch: MapEpoch(9) }));
        }
        sim.sleep(Duration::from_secs(1)).await;
    });
    assert_eq!(service.seen.lock().closed, LANES as u32);
}

#[test]
fn the_end_of_a_server_ends_the_calls_of_all_lanes() {
    let (sim, service, _listener, to, caller) = begin(50);
    sim.block_on(async {
        service.seen.lock().ignore_next = 100;
        let end = async {
            sim.sleep(Duration::from_millis(100)).await;
            caller.ended(&to, "its process has ended", false);
        };
        let (answers, ()) = join(on_all(&caller, &to, "a"), end).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap_err().code == Code::UnknownOutcome));
        assert!(sim.now_ns() < 1_000_000_000, "at once, and not at their deadline");
    });
}

#[test]
fn a_caller_closes_all_lanes_and_those_that_come_late() {
    let (sim, service, _listener, to, caller) = begin(50);
    sim.block_on(async {
        let close = async {
            sim.sleep(Duration::from_millis(2)).await;
            caller.close();
        };
        let (answers, ()) = join(on_all(&caller, &to, "a"), close).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap_err().code == Code::Expired));
        caller.add_lane(LANES, sim.node("c"));
        let late = OnLane::new(LANES, Box::pin(unlink(&caller, &to, 1, "late", 10))).await;
        assert_eq!(late.unwrap_err().code, Code::Expired);
        sim.sleep(Duration::from_secs(1)).await;
    });
    let seen = service.seen.lock();
    assert_eq!((seen.opened, seen.closed), (LANES as u32, LANES as u32));
}

#[test]
fn every_lane_opens_another_connection() {
    let (sim, service, _listener, to, caller) = begin(50);
    sim.block_on(async {
        let cut = async {
            sim.sleep(Duration::from_millis(2)).await;
            caller.disconnect(to.index);
        };
        let (answers, ()) = join(on_all(&caller, &to, "a"), cut).await;
        assert!(answers.iter().all(Result::is_ok));
    });
    let seen = service.seen.lock();
    assert_eq!((seen.opened, seen.effects.len()), (2 * LANES as u32, LANES));
    assert!(seen.effects.values().all(|times| *times == 1));
}
