//! Clients of one node open files through their node's server: a file that all of them open costs its home two opens
//! for each node. The files they open are right whichever client changes them, and stay open when their server ends.

use crate::support::{ROOT, create, name, with_cluster, with_layout};
use aze_client::{Access, Client, File, NewFile, Way, WayNote};
use aze_io::sim::Link;
use aze_proto::{Change, Code, FileKind, Identity, Ino, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{Layout, client_node, server_node};
use aze_sim::work::shared::new_file;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

const READ: Access = Access { read: true, write: false };
const SERVERS: u16 = 3;
/// Clients of each node.
const NEAR: usize = 16;

fn layout() -> Layout {
    Layout { contacts: true, ..Layout::of(SERVERS) }
}

/// Clients that say that they run on the node of a server.
async fn near(cluster: &Cluster, first: usize, server: u16) -> Vec<Arc<Client>> {
    let connected = join_all((0..NEAR).map(|index| cluster.connect_near(first + index, server))).await;
    let clients: Vec<Arc<Client>> = connected.into_iter().map(|client| client.expect("a client connects")).collect();
    clients.iter().for_each(|client| client.use_contacts());
    clients
}

/// A name in a directory that is at this server.
fn name_at(client: &Client, dir: Ino, server: u16) -> String {
    let map = client.map();
    let is_there = |text: &String| {
        let shard = NameHash::of(dir, &name(text)).shard(map.shards());
        map.server_of(shard) == Some(ServerIndex(server))
    };
    (0..).map(|number| format!("n{number}")).find(is_there).expect("there are many names")
}

/// Makes a file in a directory, all at server 0.
async fn file_at_first(client: &Client, text: &[u8]) -> (Ino, String) {
    let dir_path = format!("/{}", name_at(client, Ino::ROOT, 0));
    let dir = client.mkdir_all(&ROOT, dir_path.as_bytes(), 0o755).await.expect("directories can be made").ino;
    let own = name_at(client, dir, 0);
    let made = create(client, dir, &own).await;
    made.write(0, text).await.expect("there is room");
    made.close().await.expect("it is written");
    (made.ino(), format!("{dir_path}/{own}"))
}

fn count(cluster: &Cluster, server: u16, kinds: &[&str]) -> u64 {
    let status = cluster.server(server).expect("it runs").status();
    status.requests.iter().filter(|counter| kinds.contains(&counter.name.as_str())).map(|counter| counter.count).sum()
}

async fn open_all(clients: &[Arc<Client>], path: &str) -> Vec<Arc<File>> {
    let opened = join_all(clients.iter().map(|client| client.open_path(&ROOT, path, READ))).await;
    opened.into_iter().map(|file| file.expect("it can be opened")).collect()
}

/// Opens a file as the agent of a program does, which sees the volume at a path of its own and listens for recalls.
async fn open_seen(client: &Client, path: &str) -> Result<Arc<File>, Code> {
    let note = WayNote::default();
    let way = Way::below(Ino::ROOT, path.as_bytes()).seen_at(b"/aze", &note);
    client.open_path_with_contents(&ROOT, way, READ).await.map_err(|failure| failure.code)
}

/// As [`near`], each the client of an agent.
async fn agents(cluster: &Cluster, first: usize, server: u16) -> Vec<Arc<Client>> {
    let clients = near(cluster, first, server).await;
    clients.iter().for_each(|client| client.listen(Box::new(|_| Box::pin(async {}))));
    clients
}

async fn texts(files: &[Arc<File>]) -> Vec<String> {
    let read = join_all(files.iter().map(|file| file.read(0, 64))).await;
    read.into_iter().map(|text| String::from_utf8(text.expect("it can be read")).expect("text")).collect()
}

const OPENS: [&str; 4] = ["Open", "OpenName", "OpenWith", "OpenNameWith"];

/// How often a file is open, as its home counts.
async fn opens_at_home(client: &Client, ino: Ino) -> u32 {
    let file = client.open(&ROOT, ino, READ).await.expect("it is there");
    let opens = file.count_opens().await.expect("it is open").opens;
    file.close().await.expect("nothing was written");
    opens - 1
}

#[test]
fn a_file_that_all_open_costs_its_home_two_opens_for_each_node() {
    with_layout(layout(), |cluster, writer| async move {
        let (_, path) = file_at_first(&writer, b"one").await;
        let [first, second] = [near(&cluster, 1, 1).await, near(&cluster, 1 + NEAR, 2).await];
        let before = count(&cluster, 0, &OPENS);
        let both = [first.as_slice(), second.as_slice()].concat();
        let files = open_all(&both, &path).await;
        assert_eq!(files.len(), 2 * NEAR);
        assert_eq!(count(&cluster, 0, &OPENS) - before, 4, "two of each node, at once");
        assert_eq!(texts(&files).await, vec!["one"; 2 * NEAR]);
        drop(files);
        // One after the other.
        for client in &first {
            drop(open_all(std::slice::from_ref(client), &path).await);
        }
        assert_eq!(count(&cluster, 0, &OPENS) - before, 4);
        assert!(count(&cluster, 0, &["Lookup"]) <= 4, "directories are looked up once for a node");
    });
}

/// As by `srun aze run -- program`: each process has an agent of its own.
#[test]
fn a_file_that_programs_of_many_agents_open_costs_its_home_two_opens() {
    with_layout(layout(), |cluster, writer| async move {
        let (ino, path) = file_at_first(&writer, b"one").await;
        let clients = agents(&cluster, 1, 1).await;
        let before = count(&cluster, 0, &OPENS);
        for _ in 0..3 {
            let files = join_all(clients.iter().map(|client| open_seen(client, &path))).await;
            let files: Vec<Arc<File>> = files.into_iter().map(|file| file.expect("it can be opened")).collect();
            assert_eq!(texts(&files).await, vec!["one"; NEAR]);
        }
        assert_eq!(count(&cluster, 0, &OPENS) - before, 2);
        assert_eq!(count(&cluster, 1, &["OpenNameThrough"]), 3 * NEAR as u64);
        for _ in 0..20 {
            assert_eq!(open_seen(&clients[0], &path).await.expect("it can be opened").ino(), ino);
        }
        assert_eq!(count(&cluster, 0, &OPENS) - before, 2);
        assert_eq!(count(&cluster, 1, &["OpenNameThrough"]), 3 * NEAR as u64 + 20);
        // A link leads where it leads the program.
        let dir = &path[..path.rfind('/').expect("a path")];
        for (name, target) in [("near", path.clone()), ("far", format!("/aze{path}"))] {
            let link = NewFile { target: target.into_bytes(), ..new_file(FileKind::Symlink, true) };
            writer.create_path(&ROOT, &format!("{dir}/{name}"), &link).await.expect("a link can be made");
        }
        let far = open_seen(&clients[1], &format!("{dir}/far")).await.expect("it is below the program's directory");
        assert_eq!(far.ino(), ino);
        assert_eq!(open_seen(&clients[1], &format!("{dir}/near")).await.map(|file| file.ino()), Err(Code::CrossVolume));
    });
}

/// How many agents open a file by a path that its directory has lost, which they and their server have not heard of.
fn opened_by_a_path_that_is_gone(switches: Switches) -> usize {
    with_layout(Layout { switches, ..layout() }, |cluster, writer| async move {
        let (_, path) = file_at_first(&writer, b"one").await;
        let clients = agents(&cluster, 1, 1).await;
        for client in &clients {
            client.resolve(&ROOT, &path, true).await.expect("it is there");
        }
        let dir = &path[..path.rfind('/').expect("a path")];
        writer.rename_path(&ROOT, dir, "/old", false).await.expect("it is there");
        let opened = join_all(clients.iter().map(|client| open_seen(client, &path))).await;
        assert_eq!(opened.len(), NEAR);
        assert!(count(&cluster, 1, &["OpenNameThrough"]) > 0);
        opened.iter().filter(|file| file.is_ok()).count()
    })
}

#[test]
fn a_server_that_opens_a_name_for_others_hears_of_changed_paths_to_it() {
    assert_eq!(opened_by_a_path_that_is_gone(Switches::default()), 0);
    assert_ne!(opened_by_a_path_that_is_gone(Switches::without(Sabotage::CheckPathsOnce)), 0, "it is noticed");
}

/// Files are written under another name and renamed, so that they have another server than their names.
#[test]
fn a_file_that_was_renamed_and_its_contents_are_asked_for_twice_for_each_node() {
    with_layout(layout(), |cluster, writer| async move {
        let (_, first_path) = file_at_first(&writer, b"one").await;
        let dir_path = &first_path[..first_path.rfind('/').expect("a path")];
        let dir = writer.resolve(&ROOT, dir_path, true).await.expect("it is there").ino;
        let path = format!("{dir_path}/{}", name_at(&writer, dir, 2));
        writer.rename_path(&ROOT, &first_path, &path, false).await.expect("it is there");
        let clients = near(&cluster, 1, 1).await;
        let asked = |kinds: &[&str]| (0..SERVERS).map(|server| count(&cluster, server, kinds)).sum::<u64>();
        let before = (asked(&["OpenNameWith"]), asked(&["OpenWith"]), asked(&["Read"]));
        let opening = clients.iter().map(|client| client.open_path_with_contents(&ROOT, &path, READ));
        for file in join_all(opening).await {
            let mut text = [0; 64];
            let file = file.expect("it can be opened");
            let count = file.read_as_opened(0, &mut text).await.expect("it can be read");
            assert_eq!(&text[..count], b"one");
        }
        let after = (asked(&["OpenNameWith"]), asked(&["OpenWith"]), asked(&["Read"]));
        assert_eq!((after.0 - before.0, after.1 - before.1, after.2 - before.2), (2, 2, 0));
        // The name comes to lead to another file: only its own server knows that.
        for client in &clients {
            client.open_path(&ROOT, &path, READ).await.expect("it can be opened");
        }
        writer.rename_path(&ROOT, &path, &first_path, false).await.expect("it is there");
        for client in &clients {
            let gone = client.open_path(&ROOT, &path, READ).await.map(|file| file.ino());
            assert_eq!(gone.map_err(|failure| failure.code), Err(Code::NotFound));
        }
    });
}

#[test]
fn servers_that_open_nothing_for_others_are_no_hindrance() {
    with_cluster(SERVERS, |cluster, writer| async move {
        let (_, path) = file_at_first(&writer, b"one").await;
        let clients = near(&cluster, 1, 1).await;
        assert_eq!(texts(&open_all(&clients, &path).await).await, vec!["one"; NEAR]);
    });
}

#[test]
fn what_others_have_changed_is_opened_as_it_is_now() {
    with_layout(layout(), |cluster, writer| async move {
        let (ino, path) = file_at_first(&writer, b"one").await;
        let clients = near(&cluster, 1, 1).await;
        for _ in 0..3 {
            assert_eq!(texts(&open_all(&clients, &path).await).await, vec!["one"; NEAR]);
        }
        let file = writer.open(&ROOT, ino, Access { read: false, write: true }).await.expect("it is there");
        file.write(0, b"longer").await.expect("there is room");
        file.close().await.expect("it is written");
        let files = open_all(&clients, &path).await;
        assert_eq!(files.iter().map(|file| file.attr().size).collect::<Vec<_>>(), [6; NEAR]);
        assert_eq!(texts(&files).await, vec!["longer"; NEAR]);
        // Another file comes to have the name.
        writer.rename_path(&ROOT, &path, "/away", false).await.expect("it is there");
        assert!(clients[0].open_path(&ROOT, &path, READ).await.is_err_and(|failure| failure.code == Code::NotFound));
        let (other, _) = file_at_first(&writer, b"other").await;
        let files = open_all(&clients, &path).await;
        assert_eq!(files.iter().map(|file| file.ino()).collect::<Vec<_>>(), [other; NEAR]);
        // The directory comes to have another name, and another directory its name.
        for _ in 0..2 {
            drop(open_all(&clients, &path).await);
        }
        let dir = path[..path.rfind('/').expect("a path")].to_owned();
        writer.rename_path(&ROOT, &dir, "/old", false).await.expect("it is there");
        let gone = join_all(clients.iter().map(|client| client.open_path(&ROOT, &path, READ))).await;
        assert_eq!(gone.len(), NEAR);
        assert!(gone.into_iter().all(|file| file.is_err_and(|failure| failure.code == Code::NotFound)));
        let (new, path) = file_at_first(&writer, b"new").await;
        let files = open_all(&clients, &path).await;
        assert_eq!(files.iter().map(|file| file.ino()).collect::<Vec<_>>(), [new; NEAR]);
    });
}

/// How many clients open a file by a path that its directory has lost, after they have opened it by that.
fn opened_by_an_old_path(switches: Switches) -> usize {
    with_layout(Layout { switches, ..layout() }, |cluster, writer| async move {
        let (_, path) = file_at_first(&writer, b"one").await;
        let clients = near(&cluster, 1, 1).await;
        for _ in 0..3 {
            drop(open_all(&clients, &path).await);
        }
        let dir = &path[..path.rfind('/').expect("a path")];
        writer.rename_path(&ROOT, dir, "/old", false).await.expect("it is there");
        let opened = join_all(clients.iter().map(|client| client.open_path(&ROOT, &path, READ))).await;
        opened.iter().filter(|file| file.is_ok()).count()
    })
}

#[test]
fn a_name_is_believed_where_the_server_is_told_of_paths() {
    assert_eq!(opened_by_an_old_path(Switches::default()), 0);
    assert_ne!(opened_by_an_old_path(Switches::without(Sabotage::BelieveNamesUntold)), 0, "it is noticed");
}

#[test]
fn who_may_not_search_the_directory_any_more_opens_nothing() {
    with_layout(layout(), |cluster, writer| async move {
        let (_, path) = file_at_first(&writer, b"one").await;
        let user = Identity { uid: 7, gid: 7, groups: Vec::new() };
        let clients = near(&cluster, 1, 1).await;
        for client in &clients {
            client.open_path(&user, &path, READ).await.expect("all may read it");
        }
        let dir = writer.resolve(&ROOT, &path[..path.rfind('/').expect("a path")], true).await.expect("it is there");
        let change = Change { mode: Some(0o700), ..Change::default() };
        writer.setattr(&ROOT, dir.ino, &change).await.expect("root may");
        for client in &clients {
            let refused = client.open_path(&user, &path, READ).await.map(|file| file.ino());
            assert_eq!(refused.map_err(|failure| failure.code), Err(Code::AccessDenied));
        }
        assert_eq!(texts(&open_all(&clients, &path).await).await, vec!["one"; NEAR], "root may");
    });
}

#[test]
fn a_file_that_is_open_through_a_server_lasts_without_a_name_until_all_have_closed_it() {
    with_layout(layout(), |cluster, writer| async move {
        let (ino, path) = file_at_first(&writer, b"one").await;
        let clients = near(&cluster, 1, 1).await;
        let watching = writer.open(&ROOT, ino, READ).await.expect("it is there");
        let mut files = open_all(&clients, &path).await;
        writer.unlink_path(&ROOT, &path).await.expect("it is there");
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert_eq!(texts(&files).await, vec!["one"; NEAR]);
        let server = cluster.server(1).expect("it runs");
        assert_eq!(server.opened_through(), NEAR);
        files.truncate(1);
        cluster.sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(server.opened_through(), 1);
        assert!(watching.count_opens().await.expect("it is open").opens > 1);
        drop(files);
        cluster.sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(server.opened_through(), 0);
        assert_eq!(watching.count_opens().await.expect("it is open").opens, 1, "that of the one who looks");
    });
}

#[test]
fn what_a_dead_client_had_open_is_closed() {
    with_layout(layout(), |cluster, writer| async move {
        let (ino, path) = file_at_first(&writer, b"one").await;
        let clients = near(&cluster, 1, 1).await;
        let files = open_all(&clients, &path).await;
        let server = cluster.server(1).expect("it runs");
        assert_eq!(server.opened_through(), NEAR);
        (1..=NEAR).for_each(|index| cluster.kill_client(index));
        cluster.sim.sleep(Duration::from_secs(20)).await;
        assert_eq!(server.opened_through(), 0);
        assert_eq!(opens_at_home(&writer, ino).await, 0);
        drop(files);
    });
}

#[test]
fn what_is_open_through_a_server_that_ends_is_opened_at_its_home() {
    with_layout(layout(), |cluster, writer| async move {
        let (ino, path) = file_at_first(&writer, b"one").await;
        let clients = near(&cluster, 1, 1).await;
        let files = open_all(&clients, &path).await;
        cluster.kill_server(1, false);
        cluster.sim.sleep(Duration::from_secs(5)).await;
        assert!(opens_at_home(&writer, ino).await >= NEAR as u32);
        writer.unlink_path(&ROOT, &path).await.expect("it is there");
        cluster.sim.sleep(Duration::from_secs(30)).await;
        assert_eq!(texts(&files).await, vec!["one"; NEAR]);
        // New opens go to the home.
        let (_, path) = file_at_first(&writer, b"two").await;
        assert_eq!(texts(&open_all(&clients, &path).await).await, vec!["two"; NEAR]);
    });
}

/// Programs that are idle for long do not hear of the end.
#[test]
fn what_is_open_through_a_server_that_ends_lasts_until_its_clients_hear_of_that() {
    with_layout(layout(), |cluster, writer| async move {
        cluster.sim.set_time_limit(Duration::from_secs(3 * 3600));
        let (_, path) = file_at_first(&writer, b"one").await;
        let clients = near(&cluster, 1, 1).await;
        let files = open_all(&clients, &path).await;
        cluster.kill_server(1, false);
        for (client, server) in (1..=NEAR).flat_map(|client| [(client, 0), (client, 2)]) {
            cluster.sim.set_link(&client_node(client), &server_node(server), Link::Down);
        }
        writer.unlink_path(&ROOT, &path).await.expect("it is there");
        cluster.sim.sleep(Duration::from_secs(600)).await;
        cluster.sim.heal();
        cluster.sim.sleep(Duration::from_secs(5)).await;
        assert_eq!(texts(&files).await, vec!["one"; NEAR]);
        cluster.sim.sleep(Duration::from_secs(3600)).await;
        assert_eq!(texts(&files).await, vec!["one"; NEAR], "the homes know of their opens");
    });
}

#[test]
fn files_that_nobody_else_opens_are_opened_at_their_homes() {
    with_layout(layout(), |cluster, writer| async move {
        let dir = writer.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("directories can be made").ino;
        for number in 0..200 {
            create(&writer, dir, &format!("own{number}")).await.close().await.expect("it is made");
        }
        let client = near(&cluster, 1, 1).await.swap_remove(0);
        for number in 0..200 {
            client.open_path(&ROOT, &format!("/dir/own{number}"), READ).await.expect("it is there");
        }
        let through = count(&cluster, 1, &["OpenThrough"]);
        assert_eq!(through, 8 + (200 - 8) / 64);
    });
}
