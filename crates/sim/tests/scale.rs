//! What an operation costs does not grow with the volume: requests are counted where the servers dispatch them, of small volumes and of
//! larger ones, and have to be the same within two.

mod support;

use aze_client::{Access, Client, NewFile};
use aze_proto::Ino;
use aze_proto::limits::SERVERS_MAX;
use aze_sim::Cluster;
use aze_sim::cluster::CHUNK_BITS;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::{ROOT, create, name, opened_file, with_cluster};

/// Servers of the volumes that are compared, and of larger ones up to the largest that can be, which `AZE_TEST_LONG` adds.
const SERVERS: [u16; 3] = [4, 64, 256];
const LARGER: [u16; 2] = [1024, SERVERS_MAX];

/// Memory of one simulated server and of its part of the simulation, in bytes, at any moment of its start: as the allocator counts it, not
/// what the system gave. A map that all have alike is there once. Most of it is shards, and what servers have of each other: 190 KB on 256
/// servers, 204 KB on 1,024, 254 KB on 4,096.
fn server_bytes_max(servers: u16) -> u64 {
    if servers <= LARGER[0] { 216 << 10 } else { 272 << 10 }
}

/// Memory of this process that is in use, and the most that was, in bytes that were asked for.
static IN_USE: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() as u64;
        MOST.fetch_max(IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Names in the larger one of two directories.
const NAMES: usize = 1000;

/// Creates through a mount, one after the other.
const TURNS: u64 = 8;

/// How long before its use a path was used last.
const UNUSED: Duration = Duration::from_secs(300);

/// What some operations cost, each with its name.
type Costs = Vec<(&'static str, u64)>;

/// Requests that the servers have dispatched, but for closes: they are collected and sent many at a time, whenever that is.
fn asked(cluster: &Cluster) -> u64 {
    let counters = cluster.servers().iter().flat_map(|server| server.status().requests).collect::<Vec<_>>();
    counters.iter().filter(|counter| counter.name != "Close").map(|counter| counter.count).sum()
}

async fn cost(cluster: &Cluster, work: impl Future<Output = ()>) -> u64 {
    let before = asked(cluster);
    work.await;
    asked(cluster) - before
}

/// Creates, opens, looks at and removes a file in a directory that was used last some minutes ago.
async fn in_an_unused_directory(cluster: &Cluster, client: &Arc<Client>, dir: &str) -> [u64; 4] {
    let path = format!("{dir}/late").into_bytes();
    let rest = async || cluster.client_io(0).sleep(UNUSED).await;
    let read = Access { read: true, write: false };
    rest().await;
    let created = cost(cluster, async {
        let made = client.create_path(&ROOT, &path, &opened_file()).await.expect("a new name");
        made.file.expect("an open was asked for").close().await.expect("it is open");
    })
    .await;
    rest().await;
    let looked = cost(cluster, async {
        client.resolve(&ROOT, &path, true).await.expect("it is there");
    })
    .await;
    rest().await;
    let opened = cost(cluster, async { drop(client.open_path(&ROOT, &path, read).await.expect("it is there")) }).await;
    rest().await;
    let removed = cost(cluster, async { client.unlink_path(&ROOT, &path).await.expect("it is there") }).await;
    [created, looked, opened, removed]
}

/// Looks at a directory and creates a file in it, again and again, as programs do through a mount: its kernel has the
/// directories on the way looked at before it lets anybody do something there, and servers with entries have a part of
/// the attributes it wants.
async fn through_a_mount(cluster: &Cluster, client: &Arc<Client>, above: Ino, below: Ino) -> [u64; 3] {
    let look = async || {
        let mut entries = 0;
        for dir in [Ino::ROOT, above, below] {
            entries = client.getattr_within(&ROOT, dir, Duration::from_secs(1)).await.expect("it is there").attr.size;
        }
        entries
    };
    // Longer than a mount believes a directory's attributes.
    let rest = async || cluster.client_io(0).sleep(Duration::from_secs(20)).await;
    let make = async |text: String| {
        client.create(&ROOT, below, &name(&text), &opened_file()).await.expect("a new name");
    };
    look().await;
    rest().await;
    let looked = cost(cluster, async {
        look().await;
    })
    .await;
    rest().await;
    let created = cost(cluster, async {
        look().await;
        make("mounted".into()).await;
    })
    .await;
    let again = cost(cluster, async {
        for index in 0..TURNS {
            rest().await;
            let before = look().await;
            make(format!("mounted{index}")).await;
            let after = client.getattr(&ROOT, below).await.expect("it is there").size;
            assert_eq!(after, before + 1, "what is done shows at once");
        }
    })
    .await;
    // Each takes a look at three directories, a creation, a word to the home that the server's part has changed, a question about that
    // part, and another look.
    [looked, created, again.div_ceil(TURNS)]
}

fn costs(servers: u16) -> Costs {
    let (tell, told) = std::sync::mpsc::channel();
    let before = IN_USE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    with_cluster(servers, |cluster, client| async move {
        let mut costs = Costs::new();
        // The client, and memory taken once, are among the bytes of a small volume.
        let each = (MOST.load(Ordering::Relaxed) - before) / u64::from(servers);
        println!("{each} bytes for each of {servers} servers");
        assert!(
            servers < SERVERS[2] || each <= server_bytes_max(servers),
            "{each} bytes for each of {servers} servers"
        );
        let unopened = NewFile { open: None, ..opened_file() };
        for (dir, names) in [("/few/below", 10), ("/many/below", NAMES)] {
            let below = client.mkdir_all(&ROOT, dir.as_bytes(), 0o755).await.expect("directories can be made").ino;
            for index in 0..names {
                client.create(&ROOT, below, &name(&format!("n{index}")), &unopened).await.expect("a new name");
            }
        }
        let few = in_an_unused_directory(&cluster, &client, "/few/below").await;
        let many = in_an_unused_directory(&cluster, &client, "/many/below").await;
        let words = ["create", "stat", "open", "unlink"];
        costs.extend(words.into_iter().zip(few));
        costs.extend(words.into_iter().zip(many));
        for dir in [b"/few/below".as_slice(), b"/many/below"] {
            let (above, _) = client.resolve_parent(&ROOT, dir).await.expect("it is there");
            let below = client.resolve(&ROOT, dir, true).await.expect("it is there").ino;
            let words = ["look through a mount", "create through a mount", "each of some creates through a mount"];
            costs.extend(words.into_iter().zip(through_a_mount(&cluster, &client, above, below).await));
        }
        let dir = client.resolve_parent(&ROOT, b"/few/below/x").await.expect("it is there").0;
        let file = create(&client, dir, "two").await;
        file.write(0, &vec![1; 2 << CHUNK_BITS]).await.expect("there is room");
        let ino = client.lookup(&ROOT, dir, &name("two")).await.expect("it is there").ino;
        let cut = async {
            client.truncate(&ROOT, ino, 1, Some(&file)).await.expect("it can be cut");
        };
        costs.push(("truncate of two chunks", cost(&cluster, cut).await));
        file.write(0, &vec![1; 2 << CHUNK_BITS]).await.expect("there is room");
        file.close().await.expect("it is open");
        let unlink = async {
            client.unlink(&ROOT, dir, &name("two")).await.expect("it is there");
            cluster.client_io(0).sleep(Duration::from_secs(1)).await;
        };
        costs.push(("unlink of two chunks, with its data", cost(&cluster, unlink).await));
        tell.send(costs).expect("somebody waits");
    });
    told.recv().expect("it was told")
}

#[test]
fn an_operation_costs_the_same_on_any_number_of_servers() {
    let larger = std::env::var_os("AZE_TEST_LONG").map_or_else(Vec::new, |_| LARGER.to_vec());
    let small = costs(SERVERS[0]);
    assert_eq!(small.len(), 16);
    for servers in SERVERS.into_iter().chain(larger) {
        for ((what, count), (_, least)) in costs(servers).iter().zip(&small) {
            println!("{what} on {servers} servers: {count}, {least} on {}", SERVERS[0]);
            assert!(*count <= least + 2, "{what} on {servers} servers: {count} requests, {least} on {}", SERVERS[0]);
        }
    }
}
