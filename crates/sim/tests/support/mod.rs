//! A quiet cluster with one client, for tests of single promises.

use aze_client::{Access, Client, File, NewFile};
use aze_io::sim::{Faults, Sim};
use aze_proto::{FileKind, Identity, Ino, Name};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use std::sync::Arc;

/// Root.
pub static ROOT: Identity = Identity { uid: 0, gid: 0, groups: Vec::new() };

/// Runs `test` with a cluster of `servers` servers and one client.
pub fn with_cluster<F: Future<Output = ()>>(servers: u16, test: impl FnOnce(Arc<Cluster>, Arc<Client>) -> F) {
    with_layout(Layout::of(servers), test);
}

/// The same of any layout. Gives what `test` gives.
pub fn with_layout<F: Future>(layout: Layout, test: impl FnOnce(Arc<Cluster>, Arc<Client>) -> F) -> F::Output {
    let sim = Sim::new(1, Faults::default());
    let cluster = Cluster::new(sim.clone(), layout);
    let outcome = sim.block_on(async {
        cluster.start().await.expect("a quiet cluster starts");
        let client = cluster.connect(0).await.expect("a client of a quiet cluster connects");
        test(cluster.clone(), client).await
    });
    cluster.end();
    outcome
}

/// A name.
pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("the test gives a proper name")
}

/// A regular file that is opened for reading and writing.
pub fn opened_file() -> NewFile {
    let open = Some(Access { read: true, write: true });
    NewFile {
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
        target: Vec::new(),
        exclusive: true,
        open,
        chunk_bits: 0,
        private: false,
    }
}

/// Makes and opens a file.
pub async fn create(client: &Client, dir: Ino, text: &str) -> Arc<File> {
    let made = client.create(&ROOT, dir, &name(text), &opened_file()).await.expect("a new name can be made");
    made.file.expect("an open was asked for")
}
