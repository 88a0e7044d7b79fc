//! A change that a server may have done before it gave its shard away goes on where the shard is, under its number.

use crate::service::{Counting, ask, caller, lookup, start, target};
use aze_io::sim::{Faults, Link, Sim};
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure, Ino, MapEpoch, Refusal, Reply, Request, ServerIndex, ShardId};
use aze_rpc::{Caller, Located, Target};
use futures_util::future::join;
use std::sync::Arc;
use std::time::Duration;

const SHARD: ShardId = ShardId(5);

/// When the giver's second process began, and the map by which that one refuses.
const SECOND: MapEpoch = MapEpoch(9);
const REFUSED_BY: MapEpoch = MapEpoch(12);

/// The giver in both of its lives, and another server.
struct Servers {
    first: Arc<Counting>,
    second: Arc<Counting>,
    other: Arc<Counting>,
}

impl Servers {
    /// The shard has gone to a server, and with it what the first life has recorded.
    fn brought_to(&self, server: &Counting) {
        server.seen.lock().retries = self.first.seen.lock().retries.clone();
    }
}

fn giver() -> Target {
    target(0, "s0", &["tcp:s0:7"])
}

fn located(index: u16, since: u32, epoch: u32) -> Located {
    let server = target(index, &format!("s{index}"), &[&format!("tcp:s{index}:7")]);
    Located { server, since: MapEpoch(since), epoch: MapEpoch(epoch) }
}

fn unlink() -> Request {
    Request::Unlink { parent: Ino::ROOT, name: crate::service::name("n") }
}

fn rmdir() -> Request {
    Request::Rmdir { parent: Ino::ROOT, name: crate::service::name("n") }
}

fn by_map(epoch: u32) -> Result<Reply, Failure> {
    Err(Failure::refused(Refusal::MapStale { epoch: MapEpoch(epoch) }))
}

/// Which shard was looked for, after which server had refused by which map.
type Asked = (ShardId, ServerIndex, MapEpoch);

/// The giver has done a change, and its answer gets lost; then `happens`.
fn change(
    request: &Request,
    locate: impl Fn(&Servers) -> Located + Send + Sync + 'static,
    happens: impl AsyncFnOnce(&Sim, &Caller, &Servers),
) -> (Result<Reply, Failure>, Arc<Servers>, Vec<Asked>) {
    let sim = Sim::new(1, Faults::default());
    let [first, other] = ["s0", "s1"].map(|node| Counting::new(&sim.node(node), 0));
    let second = Counting::of_life(&sim.node("s0"), 0, SECOND);
    let _listeners = [("tcp:s0:7", "s0", &first), ("tcp:s1:7", "s1", &other)]
        .map(|(addr, node, service)| start(&sim.node(node), &addr.parse().unwrap(), service));
    for server in [&second, &other] {
        server.seen.lock().stale = Some(REFUSED_BY);
    }
    let servers = Arc::new(Servers { first, second, other });
    let caller = caller(&sim.node("c"), 1);
    let (all, asked) = (servers.clone(), Arc::new(Mutex::new(Vec::new())));
    let told = asked.clone();
    caller.locates(Box::new(move |shard, from, epoch| {
        told.lock().push((shard, from.index, epoch));
        let located = locate(&all);
        Box::pin(async move { Some(located) })
    }));
    let ended = sim.block_on(async {
        lookup(&caller, &giver(), 1, &[], 10).await.unwrap();
        sim.set_link("s0", "c", Link::Down);
        let happening = async {
            sim.sleep(Duration::from_millis(100)).await;
            happens(&sim, &caller, &servers).await;
        };
        join(ask(&caller, &giver(), SHARD.0, request, &[], 20), happening).await.0
    });
    let asked = std::mem::take(&mut *asked.lock());
    (ended.map(|answer| answer.reply), servers, asked)
}

/// The giver dies and is back.
async fn is_back(sim: &Sim, _caller: &Caller, servers: &Servers) {
    sim.kill("s0");
    sim.heal();
    // It listens until the run is over.
    std::mem::forget(start(&sim.node("s0"), &"tcp:s0:7".parse().unwrap(), &servers.second));
}

/// Only the giver's first life has done it.
fn is_done_once(servers: &Servers) -> bool {
    let effects = |server: &Counting| server.seen.lock().effects.len();
    (effects(&servers.first), effects(&servers.second), effects(&servers.other)) == (1, 0, 0)
}

#[test]
fn it_goes_on_at_another_server_that_has_the_shard_since() {
    for request in [unlink(), rmdir()] {
        let locate = |servers: &Servers| {
            servers.brought_to(&servers.other);
            located(1, 3, 12)
        };
        let (ended, servers, asked) = change(&request, locate, is_back);
        assert_eq!(ended, Ok(Reply::Done));
        assert!(is_done_once(&servers));
        assert_eq!(asked, [(SHARD, ServerIndex(0), REFUSED_BY)]);
    }
}

/// When it was refused the shard was elsewhere, and it is back before that is found out.
#[test]
fn it_is_asked_again_of_a_server_that_has_the_shard_back() {
    let locate = |servers: &Servers| {
        servers.brought_to(&servers.second);
        located(0, 3, 13)
    };
    let (ended, servers, _) = change(&unlink(), locate, is_back);
    assert_eq!(ended, Ok(Reply::Done));
    assert!(is_done_once(&servers));
}

/// A refusal counts only from a process that had the shard by then, by its own map.
#[test]
fn it_is_refused_where_the_shard_is() {
    let (ended, servers, asked) = change(&unlink(), |_| located(0, 9, 12), is_back);
    assert_eq!(ended, by_map(12));
    assert_eq!((servers.second.seen.lock().requests, asked.len()), (2, 1));
    let late = async |sim: &Sim, caller: &Caller, servers: &Servers| {
        is_back(sim, caller, servers).await;
        sim.sleep(Duration::from_secs(2)).await;
        servers.second.seen.lock().stale = Some(MapEpoch(14));
    };
    let (ended, servers, _) = change(&unlink(), |_| located(0, 9, 14), late);
    assert_eq!(ended, by_map(14), "it had not heard of the map by which it has the shard");
    assert!(servers.second.seen.lock().requests > 3);
}

/// It took several steps: a server that had the shard may have begun it and died.
#[test]
fn it_may_have_been_begun_in_a_life_that_has_ended() {
    let (ended, ..) = change(&rmdir(), |_| located(0, 9, 12), is_back);
    assert_eq!(ended.unwrap_err().code, Code::UnknownOutcome);
    let (ended, ..) = change(&rmdir(), |_| located(1, 9, 12), is_back);
    assert_eq!(ended.unwrap_err().code, Code::UnknownOutcome);
    // No life of the shard has ended since the map was made by which it was sent.
    let (ended, ..) = change(&rmdir(), |_| located(1, 1, 12), is_back);
    assert_eq!(ended, by_map(12));
}

#[test]
fn it_goes_on_elsewhere_when_its_server_has_ended() {
    for sent_wait in [false, true] {
        let locate = |servers: &Servers| {
            servers.brought_to(&servers.other);
            located(1, 3, 12)
        };
        let (ended, servers, _) = change(&unlink(), locate, async |sim: &Sim, caller: &Caller, _: &Servers| {
            sim.kill("s0");
            sim.heal();
            caller.ended(&giver(), "its process has ended", sent_wait);
        });
        assert_eq!(ended, Ok(Reply::Done));
        assert!(is_done_once(&servers));
    }
    let (ended, ..) = change(
        &unlink(),
        |_| located(0, 3, 12),
        async |sim: &Sim, caller: &Caller, _: &Servers| {
            sim.kill("s0");
            caller.ended(&giver(), "its process has ended", false);
        },
    );
    assert_eq!(ended.unwrap_err().code, Code::UnknownOutcome, "nobody else has the shard");
}

/// A question has no number: it is asked anew, by a newer map.
#[test]
fn a_question_is_refused_when_another_server_has_the_shard() {
    let question = Request::Lookup { parent: Ino::ROOT, name: crate::service::name("n") };
    for (index, code) in [(1, Code::Refused), (0, Code::Unreachable)] {
        let (ended, ..) = change(
            &question,
            move |_| located(index, 3, 12),
            async |sim: &Sim, caller: &Caller, _: &Servers| {
                sim.kill("s0");
                caller.ended(&giver(), "its process has ended", true);
            },
        );
        assert_eq!(ended.unwrap_err().code, code);
    }
}
