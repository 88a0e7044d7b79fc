//! Which way data takes within a node, on the real program.

use aze_tests::{Place, Ran};

/// How many connections a volume's one server has let in by a way, as `aze status --json` tells.
fn opened(place: &Place, way: &str) -> u64 {
    let status = place.aze(&["status", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("status is JSON");
    let requests = status["servers"][0]["requests"].as_object().expect("counters").clone();
    requests.get(way).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

const SHM: &str = "(connections through shared memory)";
const UNIX: &str = "(connections over a local socket)";
const TCP: &str = "(connections over TCP)";

/// Lists the volume with `AZE_TRANSPORT` set.
fn list_by(place: &Place, way: &str) -> Ran {
    place.command(&["ls", "aze:/"]).env("AZE_TRANSPORT", way).output().expect("aze starts").into()
}

#[test]
fn a_node_talks_to_itself_through_shared_memory() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    std::fs::write(place.path("big"), vec![9; 20 << 20]).expect("a local file");
    place.aze(&["cp", "big", "aze:/big"]).ok();
    place.aze(&["cp", "aze:/big", "back"]).ok();
    assert!(std::fs::read(place.path("back")).expect("the copy") == vec![9; 20 << 20]);
    assert!(opened(&place, SHM) >= 2);
    assert_eq!((opened(&place, UNIX), opened(&place, TCP)), (0, 0));
}

#[test]
fn another_way_is_taken_when_told_so() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    for (way, counter) in [("unix", UNIX), ("tcp", TCP), ("shm", SHM)] {
        let before = opened(&place, counter);
        list_by(&place, way).ok();
        assert!(opened(&place, counter) > before, "{way}");
    }
    let wrong = list_by(&place, "pigeon");
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.contains("expected auto, shm, unix or tcp"), "{}", wrong.err);
}

#[test]
fn a_way_that_cannot_be_had_is_an_error() {
    let place = Place::new();
    place.up(&["--servers", "1", "--transport", "tcp"]);
    place.aze(&["ls", "aze:/"]).ok();
    assert_eq!(opened(&place, SHM), 0);
    let refused = list_by(&place, "shm");
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("by transport 'shm'"), "{}", refused.err);
}

#[test]
fn a_volume_may_insist_on_a_way() {
    for way in ["shm", "unix"] {
        let place = Place::new();
        place.up(&["--servers", "2", "--transport", way]);
        place.aze(&["mkdir", "aze:/d"]).ok();
        assert!(opened(&place, if way == "shm" { SHM } else { UNIX }) > 0);
        assert_eq!(opened(&place, if way == "shm" { UNIX } else { SHM }), 0, "{way}");
    }
}
