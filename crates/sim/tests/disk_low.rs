//! A file system below a volume that is nearly full: what is left is for removals.

mod support;

use aze_io::sim::DiskFault;
use aze_proto::message::Durability;
use aze_proto::{Code, Ino};
use aze_sim::cluster::Layout;
use std::time::Duration;
use support::{ROOT, create, name, opened_file, with_cluster, with_layout};

/// Longer than a server takes to look again.
const A_WHILE: Duration = Duration::from_secs(2);

#[test]
fn a_disk_that_is_nearly_full_takes_nothing_but_removals_until_there_is_room() {
    let layout = Layout { durability: Some(Durability::Fsync), ..Layout::of(1) };
    with_layout(layout, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "kept").await;
        file.write(0, b"some bytes").await.expect("it can be written");
        let gone = create(&client, Ino::ROOT, "gone").await;
        gone.close().await.expect("closed");
        // Whatever is asked first makes the server look.
        let look = || async {
            cluster.sim.sleep(A_WHILE).await;
            client.sync(&ROOT).await.expect("it can be synced");
            cluster.sim.sleep(A_WHILE).await;
        };
        cluster.sim.set_disk_fault("s0", DiskFault::Low);
        look().await;
        let made = client.create(&ROOT, Ino::ROOT, &name("new"), &opened_file()).await.map(|_| ());
        let refused = made.expect_err("there is no room");
        assert_eq!(refused.code, Code::NoSpace, "{refused}");
        assert!(refused.detail.contains("nearly full"), "{refused}");
        let refused = file.write(0, b"other bytes").await.expect_err("there is no room");
        assert_eq!(refused.code, Code::NoSpace, "{refused}");
        let mut bytes = [0; 10];
        file.read_into(0, &mut bytes).await.expect("it can be read");
        assert_eq!(&bytes, b"some bytes");
        client.unlink(&ROOT, Ino::ROOT, &name("gone")).await.expect("removals are taken");
        file.sync().await.expect("and syncs");
        cluster.sim.set_disk_fault("s0", DiskFault::None);
        look().await;
        file.write(0, b"other bytes").await.expect("there is room again");
        create(&client, Ino::ROOT, "new").await;
    });
}

#[test]
fn a_volume_in_memory_looks_at_no_disk() {
    with_cluster(1, |cluster, client| async move {
        cluster.sim.set_disk_fault("s0", DiskFault::Low);
        for text in ["before", "after"] {
            create(&client, Ino::ROOT, text).await.write(0, b"some bytes").await.expect("it can be written");
            cluster.sim.sleep(A_WHILE).await;
        }
    });
}
