//! A server whose disk has failed promises nothing more, and says so: also to clients that come later, to
//! look at it or to end the volume.

use aze_client::{Access, NewFile};
use aze_io::sim::{DiskFault, Faults, Sim};
use aze_proto::message::Durability;
use aze_proto::{FileKind, Identity, Ino, Name};
use aze_sim::Cluster;
use aze_sim::cluster::{Layout, server_node};

static ROOT: Identity = Identity { uid: 0, gid: 0, groups: Vec::new() };

#[test]
fn clients_get_in_are_told_and_can_end_the_volume() {
    let sim = Sim::new(1, Faults::default());
    let cluster = Cluster::new(sim.clone(), Layout { durability: Some(Durability::Fsync), ..Layout::of(2) });
    sim.block_on(async {
        cluster.start().await.expect("nothing is wrong yet");
        let client = cluster.connect(0).await.expect("nothing is wrong yet");
        let (name, open) = (Name::new(b"f").expect("a name"), Some(Access { read: true, write: true }));
        let (kind, target) = (FileKind::File, Vec::new());
        let new = NewFile { kind, mode: 0o644, rdev: 0, target, exclusive: true, open, chunk_bits: 0, private: false };
        let made = client.create(&ROOT, Ino::ROOT, &name, &new).await.expect("nothing is wrong yet");
        let others: Vec<Name> = (0..16).map(|number: u8| Name::new(&[b'a' + number, b'2']).expect("a name")).collect();
        let file = made.file.expect("an open was asked for");
        let set = |fault: DiskFault| (0..2).for_each(|server| sim.set_disk_fault(&server_node(server), fault));
        set(DiskFault::Broken);
        file.write(0, b"lost").await.expect_err("no disk works");
        file.sync().await.expect_err("nothing is durable");
        for other in &others {
            // Each server has some of these names.
            assert!(client.create(&ROOT, Ino::ROOT, other, &new).await.is_err(), "no disk works");
        }
        // It does not get well by itself.
        set(DiskFault::None);
        file.sync().await.expect_err("nothing is known of what was to be synced");
        let other = cluster.connect(1).await.expect("a client gets in");
        let failure = other.lookup(&ROOT, Ino::ROOT, &name).await.expect_err("nothing is served");
        assert!(failure.to_string().contains("its storage failed"), "{failure}");
        for (_, answer) in other.shutdown_servers().await {
            answer.expect("a server can be ended");
        }
    });
    cluster.end();
}
