//! A receipt with changed bytes: a line that is read is written as a line that says the same, and a change before the signature
//! is refused, however it was made.
#![no_main]
use aze_receipt::line::What;
use aze_receipt::{Draft, Hash, Head, Key, Line, Object, Signed};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("aze-fuzz-receipt-{}-{name}", std::process::id()))
}

/// A good receipt, of a file with a chunk, a link and a directory.
fn good() -> &'static [u8] {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    GOOD.get_or_init(|| {
        let (key, _) = Key::at(&place("key")).expect("a key");
        let (path, now) = (place("good"), "2026-11-24T20:00:00.000000000Z".to_owned());
        let head = Head {
            direction: "out".into(),
            source: "aze://v/out".into(),
            destination: b"/project/run".to_vec(),
            attempt: "0123456789abcdef".into(),
            started: now.clone(),
            program: "aze 0.1.0".into(),
            key: key.public().to_string(),
            key_id: key.public().id(),
        };
        let mut draft = Draft::begin(&path, place("draft"), &head).expect("a receipt");
        let hash = Hash::of(b"contents");
        let file = What::File { size: 8, hash, chunks: None, read_back: "direct".into(), same_as: None };
        for (name, what) in [("", What::Directory), ("file", file), ("link", What::Link { target: b"file".to_vec() })] {
            let object = Object {
                path: name.into(),
                checked: now.clone(),
                mode: 0o644,
                uid: 1000,
                gid: 1000,
                mtime: now.clone(),
                xattrs: hash,
                inode: 7,
                ctime: now.clone(),
                what,
            };
            draft.add(&Line::Object(Box::new(object))).expect("room");
        }
        draft.finish(now, 0, &key).expect("a signature");
        let bytes = std::fs::read(&path).expect("a receipt");
        assert!(Signed::open(&path, None).is_ok());
        for name in ["key", "good"] {
            std::fs::remove_file(place(name)).expect("it was made");
        }
        bytes
    })
}

// Of each four bytes two choose a place, one what happens there, and one is a new byte.
fuzz_target!(|changes: &[u8]| {
    let mut bytes = good().to_vec();
    for change in changes.chunks_exact(4).take(16) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        match change[2] % 4 {
            0 => bytes[at] = change[3],
            1 => bytes.insert(at, change[3]),
            2 => drop(bytes.remove(at)),
            _ => bytes.swap(at, usize::from(change[3])),
        }
    }
    for line in String::from_utf8_lossy(&bytes).lines() {
        if let Some(read) = Line::read(line) {
            assert_eq!(Line::read(&read.write()), Some(read));
        }
    }
    let path = place("changed");
    std::fs::write(&path, &bytes).expect("room");
    let opened = Signed::open(&path, None);
    std::fs::remove_file(&path).expect("it was just written");
    let signed =
        |bytes: &[u8]| bytes[..bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap_or(0)].to_vec();
    assert!(opened.is_err() || signed(&bytes) == signed(good()), "a changed receipt is taken for a good one");
});
