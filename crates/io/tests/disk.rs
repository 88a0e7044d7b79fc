//! Files of this machine through the interface that servers use.

use aze_io::disk::DiskError;
use aze_io::real::Runtime;

#[test]
fn files_of_this_machine_grow_are_renamed_and_read_again() {
    let path = std::env::temp_dir().join(format!("aze-disk-{}", std::process::id()));
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
        io.open_dir(&text).await.expect("the directory was let go");
    });
    std::fs::remove_dir_all(&path).expect("the test's directory is its own");
}
