//! What a client makes of answers: damaged ones, senseless ones, and in which order it asks.

use crate::fake::{CHUNK, FILE, Fake, Said, attr, attributes, name, refuse, say, who};
use aze_client::{Client, NewFile};
use aze_proto::fields::{Read, Write};
use aze_proto::predicate::Predicate;
use aze_proto::sum::piece_sums;
use aze_proto::{Attr, Change, Code, Failure, FileKind, Ino, Reply, Request, Spread};
use std::sync::Arc;

pub fn data(bytes: &[u8]) -> Said {
    (Ok(Reply::Data { start: 0, sums: piece_sums(0, bytes), size: Some(bytes.len() as u64) }), bytes.to_vec())
}

pub fn damaged(bytes: &[u8]) -> Said {
    let (reply, mut bytes) = data(bytes);
    bytes[3] ^= 1;
    (reply, bytes)
}

#[test]
fn a_damaged_chunk_is_read_once_more() {
    let mut reads = 0;
    let fake = Fake::new(move |_, request, _| match request {
        Request::Open { .. } => attributes(attr(5, 0)),
        _ => {
            reads += 1;
            if reads == 1 { damaged(b"hello") } else { data(b"hello") }
        }
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let file = fake.open(&client).await;
        assert_eq!(file.read(0, 10).await.as_deref(), Ok(&b"hello"[..]));
    });
    assert_eq!(fake.names(), ["Read", "Read"]);
}

#[test]
fn a_chunk_that_stays_damaged_is_named() {
    let fake = Fake::new(|_, request, _| match request {
        Request::Open { .. } => attributes(attr(5, 0)),
        _ => damaged(b"hello"),
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let file = fake.open(&client).await;
        let failure = file.read(0, 10).await.unwrap_err();
        assert_eq!(failure.code, Code::Corrupt);
        assert!(failure.detail.contains("chunk 0 of inode 77 from server 0 on s0"), "{failure}");
    });
}

#[test]
fn a_write_that_was_damaged_on_the_way_is_sent_once_more() {
    let mut writes = 0;
    let fake = Fake::new(move |_, request, payload| match request {
        Request::Open { .. } => attributes(attr(0, 0)),
        Request::Write(Write { sums, .. }) => {
            assert_eq!(*sums, piece_sums(0, payload));
            writes += 1;
            if writes == 1 {
                refuse(Failure::from(Code::Corrupt))
            } else {
                say(Reply::Written { attr: Some(attr(5, 0)) })
            }
        }
        other => panic!("not what a client says: {other:?}"),
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let file = fake.open(&client).await;
        file.write(0, b"hello").await.unwrap();
        assert_eq!(file.attr().size, 5);
    });
    let sequences: Vec<_> = fake.asked().iter().map(|(header, _)| header.sequence.0).collect();
    assert!(sequences[0] < sequences[1], "a failure was the answer to the first");
}

#[test]
fn the_first_data_beyond_chunk_0_are_announced_and_only_they() {
    let fake = Fake::new(|_, request, _| match request {
        Request::Open { .. } => attributes(attr(0, 0)),
        Request::Report { .. } => attributes(Attr { spread: Spread::ANYWHERE, ..attr(0, 0) }),
        Request::Write(_) => say(Reply::Written { attr: None }),
        other => panic!("not what a client says: {other:?}"),
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let file = fake.open(&client).await;
        file.write(0, &vec![1; CHUNK]).await.unwrap();
        assert_eq!(fake.names(), ["Write"], "chunk 0 needs no announcement");
        file.write(CHUNK as u64, &vec![1; CHUNK]).await.unwrap();
        let asked = fake.asked();
        assert!(matches!(asked[0].1, Request::Report { spread: Spread::ANYWHERE, end: 0, .. }), "before any data");
        let mut rest: Vec<_> = asked[1..].iter().map(|(_, request)| request.name()).collect();
        rest.sort();
        assert_eq!(rest, ["Report", "Write"]);
        file.write(CHUNK as u64, &[2; 10]).await.unwrap();
        assert_eq!(fake.names(), ["Write"], "what does not extend the file is reported later");
        file.close().await.unwrap();
        assert!(matches!(fake.asked()[..], [(_, Request::Report { spread, end: 0, .. })] if !spread.is_wide()));
    });
}

#[test]
fn reads_within_the_known_size_ask_nobody_for_it() {
    let fake = Fake::new(|_, request, _| match request {
        Request::Open { .. } | Request::GetAttr { .. } => attributes(attr(3 * CHUNK as u64, 0)),
        // Nothing is stored: the file is a hole.
        Request::Read(Read { chunk, .. }) => {
            say(Reply::Data { start: 0, sums: Vec::new(), size: (*chunk == 0).then_some(3 * CHUNK as u64) })
        }
        other => panic!("not what a client says: {other:?}"),
    });
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let file = fake.open(&client).await;
        assert_eq!(file.read(CHUNK as u64, 2 * CHUNK).await.unwrap(), vec![0; 2 * CHUNK]);
        assert_eq!(fake.names(), ["Read", "Read"]);
        assert_eq!(file.read(2 * CHUNK as u64 + 10, CHUNK).await.unwrap(), vec![0; CHUNK - 10]);
        let mut names = fake.names();
        names.sort();
        assert_eq!(names, ["GetAttr", "Read"], "in the same breath");
        assert_eq!(file.read(3 * CHUNK as u64, CHUNK).await.unwrap(), []);
        assert_eq!(fake.names(), ["GetAttr"]);
    });
}

/// Asks for everything there is; gives the codes of the failures.
async fn everything(client: &Arc<Client>) -> Vec<Code> {
    let who = who();
    let (dir, f) = (Ino::ROOT, name("f"));
    let new = NewFile {
        kind: FileKind::File,
        mode: 0,
        rdev: 0,
        target: Vec::new(),
        exclusive: false,
        open: Some(crate::fake::BOTH),
        chunk_bits: 0,
        private: false,
    };
    let results = [
        client.lookup(&who, dir, &f).await.map(drop),
        client.getattr(&who, FILE).await.map(drop),
        client.setattr(&who, FILE, &Change::default()).await.map(drop),
        client.truncate(&who, FILE, 0, None).await.map(drop),
        client.create(&who, dir, &f, &new).await.map(drop),
        client.unlink(&who, dir, &f).await,
        client.rmdir(&who, dir, &f).await,
        client.link(&who, FILE, dir, &f).await.map(drop),
        client.rename(&who, dir, &f, dir, &f, false).await,
        client.readlink(&who, FILE).await.map(drop),
        client.open(&who, FILE, crate::fake::BOTH).await.map(drop),
        client.list(&who, dir, 0, 10, false).await.map(drop),
        client.statfs().await.map(drop),
        client.find(&who, dir, &Predicate::default(), &mut |_| {}).await,
        client.usage(&who, dir, None).await.map(drop),
        client.resolve(&who, b"/a/b", true).await.map(drop),
        client.mkdir_all(&who, b"/a/b", 0).await.map(drop),
    ];
    results.into_iter().filter_map(Result::err).map(|failure| failure.code).collect()
}

#[test]
fn senseless_answers_are_failures() {
    let fake = Fake::new(|_, _, _| say(Reply::StubClosed { empty: true }));
    fake.sim.block_on(async {
        let client = fake.connect().await;
        let codes = everything(&client).await;
        assert_eq!(codes, [Code::Malformed; 17]);
    });
}

#[test]
fn pages_that_do_not_fit_the_question_are_failures() {
    use aze_proto::message::{ScanPlace, SubDir, Usage};
    let empty = || Reply::Scanned {
        found: Vec::new(),
        subdirs: Vec::new(),
        elsewhere: Vec::new(),
        usage: Vec::new(),
        next: None,
    };
    let hostile = [
        Reply::Scanned {
            found: vec![],
            subdirs: vec![SubDir { dir: 1, name: name("x"), ino: Ino(9) }],
            elsewhere: vec![],
            usage: vec![],
            next: None,
        },
        Reply::Scanned {
            found: vec![],
            subdirs: vec![],
            elsewhere: vec![],
            usage: vec![Usage { dir: 7, files: 1, bytes: 1 }],
            next: None,
        },
        Reply::Scanned {
            found: vec![],
            subdirs: vec![],
            elsewhere: vec![],
            usage: vec![],
            next: Some(ScanPlace { dir: 0, after: 0 }),
        },
        Reply::Scanned {
            found: vec![],
            subdirs: vec![],
            elsewhere: vec![],
            usage: vec![],
            next: Some(ScanPlace { dir: 5, after: 0 }),
        },
    ];
    for (page, fits) in hostile.into_iter().map(|page| (page, false)).chain([(empty(), true)]) {
        let fake = Fake::new(move |_, _, _| say(page.clone()));
        fake.sim.block_on(async {
            let client = fake.connect().await;
            assert_eq!(client.usage(&who(), Ino::ROOT, None).await.is_ok(), fits);
        });
    }
    let endless = Fake::new(|_, request, _| match request {
        Request::Holders { .. } => say(Reply::Holders { servers: vec![aze_proto::ServerIndex(0)], attr: attr(0, 0) }),
        _ => say(Reply::Listing { entries: Vec::new(), more: true }),
    });
    endless.sim.block_on(async {
        let client = endless.connect().await;
        assert_eq!(client.list(&who(), Ino::ROOT, 0, 10, false).await.unwrap_err().code, Code::Malformed);
    });
    let too_far = Fake::new(|_, request, _| match request {
        Request::Open { .. } => attributes(attr(5, 0)),
        _ => say(Reply::Data { start: 4096, sums: Vec::new(), size: Some(5) }),
    });
    too_far.sim.block_on(async {
        let client = too_far.connect().await;
        let file = too_far.open(&client).await;
        assert_eq!(file.read(0, 5).await.unwrap_err().code, Code::Corrupt);
    });
}
