//! The client handles refusals by itself, and not for ever.

use crate::fake::{Fake, attr, attributes, name, refuse, say, who};
use aze_proto::Spread;
use aze_proto::fields::Write;
use aze_proto::{
    Code, Failure, FileKind, Generation, Ino, MapEpoch, NamespaceEpoch, Refusal, Reply, Request, Sequence,
};

fn entry(ino: u64, kind: FileKind) -> Reply {
    Reply::Entry { ino: Ino(ino), kind, attr: None, created: false }
}

#[test]
fn a_newer_map_is_fetched_and_the_request_sent_as_a_new_one() {
    let fake = Fake::new(|header, _, _| match header.map_epoch {
        MapEpoch(1) => refuse(Failure::refused(Refusal::MapStale { epoch: MapEpoch(2) })),
        _ => say(Reply::Done),
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        fake.set_map_epoch(2);
        client.unlink(&who(), Ino::ROOT, &name("f")).await.unwrap();
        assert_eq!(client.map().epoch, MapEpoch(2));
    });
    let asked = fake.asked();
    let sequences: Vec<_> = asked.iter().map(|(header, request)| (request.name(), header.sequence)).collect();
    assert_eq!(sequences, [("Unlink", Sequence(1)), ("GetMap", Sequence(0)), ("Unlink", Sequence(2))]);
    assert_eq!(asked[2].0.floor, Sequence(2), "what was refused is not wanted any more");
}

#[test]
fn refusals_without_end_are_an_error_at_the_deadline() {
    let fake = Fake::new(|_, _, _| refuse(Failure::refused(Refusal::MapStale { epoch: MapEpoch(2) })));
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let failure = client.unlink(&who(), Ino::ROOT, &name("f")).await.unwrap_err();
        assert_eq!(failure.code, Code::TimedOut);
        assert!(failure.detail.contains("Unlink: refused again and again"), "{failure}");
    });
    assert!((10_000_000_000..10_500_000_000).contains(&fake.sim.now_ns()));
    assert!(fake.names().len() < 500, "not as fast as it can");
}

#[test]
fn by_number_a_request_goes_on_under_the_new_namespace_epoch() {
    let fake = Fake::new(|header, _, _| match header.namespace_epoch {
        NamespaceEpoch(8) => say(Reply::Done),
        _ => refuse(Failure::refused(Refusal::NamespaceStale {
            epoch: NamespaceEpoch(8),
            all: false,
            changed: vec![Ino(5)],
        })),
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        client.unlink(&who(), Ino(5), &name("f")).await.unwrap();
        client.unlink(&who(), Ino(5), &name("g")).await.unwrap();
    });
    assert_eq!(fake.names(), ["Unlink", "Unlink", "Unlink"]);
}

#[test]
fn by_path_the_whole_way_is_walked_again() {
    let mut renamed = false;
    let fake = Fake::new(move |header, request, _| match (request, header.namespace_epoch) {
        (Request::Lookup { parent: Ino::ROOT, .. }, _) => say(entry(if renamed { 6 } else { 5 }, FileKind::Directory)),
        (Request::Unlink { .. }, NamespaceEpoch(0)) => {
            renamed = true;
            refuse(Failure::refused(Refusal::NamespaceStale {
                epoch: NamespaceEpoch(1),
                all: false,
                changed: vec![Ino(5)],
            }))
        }
        (Request::Unlink { parent: Ino(6), .. }, _) => say(Reply::Done),
        other => panic!("not what a client says: {other:?}"),
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        client.unlink_path(&who(), b"/a/f").await.unwrap();
        client.unlink_path(&who(), b"/a/g").await.unwrap();
    });
    assert_eq!(fake.names(), ["Lookup", "Unlink", "Lookup", "Unlink", "Unlink"]);
}

#[test]
fn a_write_to_a_file_that_was_truncated_is_done_again_as_a_whole() {
    let fake = Fake::new(|_, request, _| match request {
        Request::Open { .. } => attributes(attr(0, 0)),
        Request::GetAttr { .. } => attributes(attr(0, 1)),
        Request::Report { generation: Generation(1), spread, .. } => {
            attributes(aze_proto::Attr { spread: *spread, ..attr(0, 1) })
        }
        Request::Report { spread: Spread::ANYWHERE, .. } => {
            attributes(aze_proto::Attr { spread: Spread::ANYWHERE, ..attr(0, 0) })
        }
        Request::Write(Write { generation: Generation(1), .. }) | Request::Write(Write { chunk: 0, .. }) => {
            say(Reply::Written { attr: None })
        }
        Request::Report { .. } | Request::Write(_) => {
            refuse(Failure::refused(Refusal::GenerationStale { generation: Generation(1) }))
        }
        other => panic!("not what a client says: {other:?}"),
    });
    let data = vec![1; 2 * crate::fake::CHUNK];
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let file = fake.open(&client).await;
        file.write(0, &data).await.unwrap();
        assert_eq!((file.attr().size, file.attr().generation), (data.len() as u64, Generation(1)));
    });
    let asked = fake.asked();
    let again: Vec<_> = asked.iter().skip_while(|(_, request)| request.name() != "GetAttr").skip(1).collect();
    let chunks = again.iter().filter_map(|(_, request)| match request {
        Request::Write(Write { chunk, generation, .. }) => Some((*chunk, *generation)),
        _ => None,
    });
    let mut chunks: Vec<_> = chunks.collect();
    chunks.sort();
    assert_eq!(chunks, [(0, Generation(1)), (1, Generation(1))]);
    assert!(
        again.iter().any(
            |(_, request)| matches!(request, Request::Report { end, spread, .. } if !spread.is_wide() && *end == data.len() as u64)
        )
    );
}
