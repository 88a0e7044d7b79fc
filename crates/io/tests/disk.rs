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
        let again = dir.open("a").await.unwrap();
        assert_eq!((again.size().await.unwrap(), again.read_at(2, 100).await.unwrap()), (7, b"e two".to_vec()));
        assert!(matches!(dir.open("b").await, Err(DiskError::NotFound(_))));
        drop((dir, file, again));
        io.open_dir(&text).await.expect("the directory was let go");
    });
    std::fs::remove_dir_all(&path).expect("the test's directory is its own");
}
