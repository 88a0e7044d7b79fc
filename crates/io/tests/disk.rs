//! Files of this machine through the interface that servers use.

use aze_io::disk::DiskError;
use aze_io::real::Runtime;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[test]
fn files_of_this_machine_grow_are_renamed_and_read_again() {
    let path = std::env::temp_dir().join(format!("aze-disk-{}", std::process::id()));
    keeps_files(&path);
    std::fs::remove_dir_all(&path).expect("the test's directory is its own");
}

#[test]
fn so_do_files_within_a_file() {
    let path = std::env::temp_dir().join(format!("aze-disk-file-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a file in the temporary directory can be made");
    file.set_len(2 << 30).expect("it can be made longer");
    keeps_files(&path);
    file.set_len(1 << 30).expect("it can be made shorter");
    let cut = refusal(&path);
    assert!(matches!(&cut, Some(DiskError::Failed(why)) if why.contains("it was cut")), "{cut:?}");
    file.set_len(1000).expect("it can be made shorter");
    let small = refusal(&path);
    assert!(matches!(&small, Some(DiskError::Unfit(why)) if why.contains("at least 1024 MiB")), "{small:?}");
    let null = refusal(Path::new("/dev/null"));
    assert!(matches!(&null, Some(DiskError::Unfit(why)) if why.contains("neither a directory")), "{null:?}");
    std::fs::remove_file(&path).expect("the test's file is its own");
}

/// A file system gives what it has before it finds that this is too little, and others cannot write meanwhile.
#[test]
fn a_file_without_room_takes_none() {
    let path = std::env::temp_dir().join(format!("aze-disk-long-{}", std::process::id()));
    let runtime = Runtime::client();
    let text = path.display().to_string();
    let free = runtime.block_on(async { runtime.io().open_dir(&text).await.unwrap().free_bytes().await.unwrap() });
    let name = path.join("long");
    let file = std::fs::File::create(&name).expect("a file in the temporary directory can be made");
    file.set_len(free + (64 << 30)).expect("it can be longer than its file system has room");
    let text = name.display().to_string();
    let refused = runtime.block_on(async { runtime.io().open_dir(&text).await.unwrap().create("a").await.err() });
    let taken = file.metadata().expect("it is open").blocks() * 512;
    std::fs::remove_dir_all(&path).expect("the test's directory is its own");
    assert!(matches!(&refused, Some(DiskError::Full(why)) if why.contains("more bytes")), "{refused:?}");
    assert!(taken < 1 << 20, "{taken} bytes were taken");
}

/// Why a directory, or a file in place of one, is not opened.
fn refusal(path: &Path) -> Option<DiskError> {
    let text = path.display().to_string();
    let runtime = Runtime::client();
    runtime.block_on(async { runtime.io().open_dir(&text).await.err() })
}

fn keeps_files(path: &Path) {
    let text = path.display().to_string();
    let runtime = Runtime::client();
    let io = runtime.io();
    runtime.block_on(async {
        let dir = io.open_dir(&text).await.expect("a directory in the temporary one can be made");
        assert!(matches!(io.open_dir(&text).await, Err(DiskError::InUse(_))), "a second server is refused");
        let file = dir.create("a.new").await.unwrap();
        file.append(b"one ".to_vec()).await.unwrap();
        file.append(b"two".to_vec()).await.unwrap();
        file.sync().await.unwrap();
        dir.rename("a.new", "a").await.unwrap();
        dir.create("b").await.unwrap();
        dir.remove("b").await.unwrap();
        dir.remove("b").await.unwrap();
        dir.sync().await.unwrap();
        assert_eq!(dir.list().await.unwrap(), ["a"]);
        let free = dir.free_bytes().await.unwrap();
        assert!(free > 0, "the temporary directory has some room");
        assert!(dir.create_fixed("c", free.saturating_mul(64)).await.is_err(), "no such room");
        let fixed = dir.create_fixed("c", 100_000).await.unwrap();
        fixed.write_at(50_000, b"there".to_vec()).await.unwrap();
        fixed.sync().await.unwrap();
        drop(fixed);
        let fixed = dir.open_fixed("c").await.unwrap();
        assert_eq!(fixed.size().await.unwrap(), 100_000);
        assert_eq!(fixed.read_at(49_999, 7).await.unwrap(), b"\0there\0");
        assert_eq!(fixed.read_at(99_999, 7).await.unwrap(), b"\0");
        drop(fixed);
        dir.remove("c").await.unwrap();
        assert_eq!(dir.list().await.unwrap(), ["a"], "what could not be had is not left behind");
        let again = dir.open("a").await.unwrap();
        assert_eq!((again.size().await.unwrap(), again.read_at(2, 100).await.unwrap()), (7, b"e two".to_vec()));
        assert!(matches!(dir.open("b").await, Err(DiskError::NotFound(_))));
        drop((dir, file, again));
        let dir = io.open_dir(&text).await.expect("the directory was let go");
        assert_eq!(dir.open("a").await.unwrap().read_at(0, 100).await.unwrap(), b"one two");
        assert_eq!(dir.list().await.unwrap(), ["a"]);
    });
}

/// A log takes on the caller's thread what fits into the room that it has, and nothing else.
#[test]
fn a_log_takes_at_once_what_it_has_room_for() {
    let path = std::env::temp_dir().join(format!("aze-log-{}", std::process::id()));
    let text = path.display().to_string();
    let runtime = Runtime::client();
    let io = runtime.io();
    runtime.block_on(async {
        let dir = io.open_dir(&text).await.expect("a directory in the temporary one can be made");
        let log = dir.create_log("log").await.unwrap();
        let record = |byte: u8| vec![byte; 40_000];
        assert_eq!(log.append_now(record(1)).unwrap_err(), record(1), "there is no room yet");
        log.append(record(1)).await.unwrap();
        let room = log.size().await.unwrap();
        let mut expected = record(1);
        for byte in 2.. {
            match log.append_now(record(byte)) {
                Ok(done) => done.unwrap(),
                Err(back) => {
                    assert_eq!(back, record(byte), "nothing is lost");
                    break;
                }
            }
            expected.extend(record(byte));
        }
        assert!(expected.len() as u64 + 40_000 > room, "only {} of {room} bytes are used", expected.len());
        assert_eq!(log.size().await.unwrap(), room, "it was not made longer");
        assert!(log.append_now(vec![7; 65_537]).is_err(), "that much is no matter of a moment");
        log.append(record(99)).await.unwrap();
        log.append_now(b"end".to_vec()).expect("there is room again").unwrap();
        expected.extend(record(99));
        expected.extend(b"end");
        log.sync().await.unwrap();
        let found = dir.open("log").await.unwrap().read_at(0, expected.len() + 10).await.unwrap();
        assert!(found.starts_with(&expected) && found.ends_with(&[0; 10]));
    });
    std::fs::remove_dir_all(&path).expect("the test's directory is its own");
}
