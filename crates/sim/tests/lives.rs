//! Slots of a volume in memory whose server dies are begun again, empty: each time with another life, so that no inode
//! number names two files.

use crate::support::{ROOT, create, name, opened_file, with_cluster, with_layout};
use aze_client::{Client, NewFile};
use aze_io::sim::Link;
use aze_io::sync::Mutex;
use aze_proto::{Code, FileKind, Ino, Life, Name, NameHash, ServerIndex, SlotIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::cluster::{Layout, server_node};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Files made in each life.
const FILES: usize = 40;

/// Makes files in a new directory, since older ones have lost entries; gives the numbers of those that have their home at
/// server 1.
async fn numbers_of_server_1(client: &Arc<Client>, life: usize) -> Vec<Ino> {
    let new = NewFile { kind: FileKind::Directory, open: None, ..opened_file() };
    let mut dirs = (0..).map(|number| name(&format!("dir{life}-{number}")));
    let dir = loop {
        let name = dirs.next().expect("numbers have no end");
        let at = NameHash::of(Ino::ROOT, &name).shard(client.map().shards());
        if client.map().server_of(at) == Some(ServerIndex(0)) {
            break client.create(&ROOT, Ino::ROOT, &name, &new).await.expect("server 0 stays").attr.ino;
        }
    };
    let mut inos = Vec::new();
    for number in 0..FILES {
        inos.push(create(client, dir, &format!("f{number}")).await.ino());
    }
    inos.retain(|ino| client.map().home_of(*ino) == Some(ServerIndex(1)));
    inos
}

/// Lets a server die and come back empty so many times; gives the numbers that it issued, life by life.
fn issued(switches: Switches, lives: usize) -> Vec<Vec<Ino>> {
    let issued = Arc::new(Mutex::new(Vec::new()));
    let told = issued.clone();
    with_layout(Layout { switches, ..Layout::of(2) }, |cluster, client| async move {
        for life in 0..lives {
            if life > 0 {
                cluster.kill_server(1, false);
                cluster.start_server(1).await.expect("a server that died can start again");
            }
            let numbers = numbers_of_server_1(&client, life).await;
            told.lock().push(numbers);
        }
    });
    std::mem::take(&mut *issued.lock())
}

/// How many numbers a shard has issued twice, but for the place of the name, which may differ.
fn twice(issued: &[Vec<Ino>]) -> usize {
    let shards = Layout::of(2).shards;
    let all: Vec<_> = issued.iter().flatten().map(|ino| (ino.home(shards), ino.issue())).collect();
    all.len() - all.iter().collect::<BTreeSet<_>>().len()
}

#[test]
fn no_life_issues_the_numbers_of_another() {
    let issued = issued(Switches::default(), 4);
    assert_eq!(issued.len(), 4);
    for (life, inos) in issued.iter().enumerate() {
        assert!(inos.len() >= FILES / 4, "{} files at server 1 in life {life}", inos.len());
        assert!(inos.iter().all(|ino| ino.life() == Life(life as u8)), "{inos:?}");
    }
    assert_eq!(twice(&issued), 0);
}

#[test]
fn a_life_that_is_not_begun_is_noticed() {
    assert!(twice(&issued(Switches::without(Sabotage::KeepLife), 2)) > 0, "counters begin anew");
}

/// Server 2 dies and starts again. The keeper asks the group for a map that says so, which does not come to be since server 1 is not
/// reached, and server 2, a member, has no map. Meanwhile a client makes a name anew that went with the life before. Gives how that ended.
fn made_before_it_joins(switches: Switches) -> Result<Ino, Code> {
    let (tell, told) = std::sync::mpsc::channel();
    with_layout(Layout { switches, ..Layout::of(3) }, |cluster, client| async move {
        let server_of =
            |name: &Name| client.map().server_of(NameHash::of(Ino::ROOT, name).shard(client.map().shards()));
        let mut names = (0..).map(|number| name(&format!("f{number}")));
        let gone = names.find(|name| server_of(name) == Some(ServerIndex(2))).expect("numbers have no end");
        client.create(&ROOT, Ino::ROOT, &gone, &opened_file()).await.expect("a new name can be made");
        cluster.kill_server(2, false);
        cluster.sim.set_link(&server_node(0), &server_node(1), Link::Down);
        let starting = {
            let cluster = cluster.clone();
            cluster.clone().on_driver(async move { cluster.start_server(2).await })
        };
        let making = {
            let client = client.clone();
            cluster.on_client(0, async move { client.create(&ROOT, Ino::ROOT, &gone, &opened_file()).await })
        };
        cluster.sim.sleep(Duration::from_secs(1)).await;
        cluster.sim.heal();
        starting.await.expect("the driver lives").expect("a server that died can start again");
        let made = making.await.expect("the client lives");
        tell.send(made.map(|made| made.attr.ino).map_err(|failure| failure.code)).expect("somebody waits");
    });
    told.recv().expect("it was told")
}

#[test]
fn nothing_is_made_in_the_life_before() {
    assert_eq!(made_before_it_joins(Switches::default()), Err(Code::Lost));
    let made = made_before_it_joins(Switches::without(Sabotage::TakeMapOfEarlierLife));
    assert!(made.is_ok(), "the name that went is made anew: {made:?}");
}

/// The 64th life is the last: the server is told so, and the rest of the volume goes on.
#[test]
fn a_server_comes_back_empty_63_times() {
    with_cluster(2, |cluster, _| async move {
        for life in 1..64 {
            cluster.kill_server(1, false);
            cluster.start_server(1).await.expect("a server that died can start again");
            let map = cluster.server(0).expect("it runs").map();
            let lives: Vec<Life> = map.slots.iter().map(|(_, slot)| slot.life).collect();
            assert_eq!(lives.len(), 16);
            for (index, life_of) in lives.into_iter().enumerate() {
                let is_its = map.slots.get(SlotIndex(index as u32)).is_some_and(|slot| slot.primary == ServerIndex(1));
                assert_eq!(life_of, Life(if is_its { life } else { 0 }));
            }
        }
        cluster.kill_server(1, false);
        let failure = cluster.start_server(1).await.expect_err("its slots have had 64 lives");
        assert_eq!(failure.code, Code::Limit);
        assert!(failure.detail.contains("slot 1 has been made empty 63 times"), "{failure}");
        let client = cluster.connect(1).await.expect("server 0 is there");
        let made = (0..FILES).map(|number| (client.clone(), name(&format!("g{number}"))));
        let mut kept = 0;
        for (client, name) in made {
            let home = NameHash::of(Ino::ROOT, &name).shard(client.map().shards());
            if client.map().server_of(home) == Some(ServerIndex(0)) {
                client.create(&ROOT, Ino::ROOT, &name, &opened_file()).await.expect("server 0 serves");
                kept += 1;
            }
        }
        assert!(kept > 0, "some names are at server 0");
    });
}
