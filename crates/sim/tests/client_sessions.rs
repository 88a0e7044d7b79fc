//! How sessions begin and end, and what becomes of what they held.

use crate::support::{ROOT, create, name, with_cluster};
use aze_client::{Access, Client, Config};
use aze_io::Addr;
use aze_proto::handshake::Secret;
use aze_proto::{Code, Ino};
use aze_sim::Cluster;
use aze_sim::cluster::{VOLUME, server_node};
use std::time::Duration;

fn config(cluster: &Cluster, seeds: &[u16], secret: u8) -> Config {
    let seed = |index: &u16| (server_node(*index), vec![Addr::Tcp(server_node(*index), 7000)]);
    Config {
        volume: VOLUME.into(),
        secret: Secret([secret; 32]),
        seeds: seeds.iter().map(seed).collect(),
        host: "elsewhere".into(),
        job: "job".into(),
        deadline: cluster.layout().deadline,
        start_time_max: Duration::ZERO,
        transport: aze_io::Transport::Auto,
        durability: aze_proto::message::Durability::None,
        lasts: false,
    }
}

fn opens(cluster: &Cluster) -> u64 {
    cluster.servers().iter().map(|server| server.status().opens).sum()
}

#[test]
fn any_seed_will_do() {
    with_cluster(3, |cluster, client| async move {
        cluster.kill_server(0, true);
        let io = cluster.sim.node("late");
        let before_ns = cluster.sim.now_ns();
        let late = Client::connect(io.clone(), config(&cluster, &[0, 1, 2], 7)).await.expect("two seeds live");
        assert_eq!(late.map().servers.len(), 3);
        assert!(cluster.sim.now_ns() - before_ns < 1_000_000_000, "it did not wait for the dead one");
        assert_ne!(late.session(), client.session());
        let none = Client::connect(io.clone(), config(&cluster, &[0], 7)).await.err().expect("the only seed is dead");
        assert_eq!(none.code, Code::Unreachable);
        assert!(none.detail.contains("volume 'sim'") && none.detail.contains("s0"), "{none}");
        let unnamed = Client::connect(io, config(&cluster, &[], 7)).await.err().expect("nobody to ask");
        assert_eq!(unnamed.code, Code::Invalid);
    });
}

#[test]
fn a_wrong_secret_leads_nowhere() {
    with_cluster(2, |cluster, _client| async move {
        let mut wrong = config(&cluster, &[0, 1], 8);
        wrong.deadline = Duration::from_secs(2);
        let failure = Client::connect(cluster.sim.node("stranger"), wrong).await.err().expect("no server answers");
        assert_eq!(failure.code, Code::Unreachable);
        assert!(failure.detail.contains("same secret"), "{failure}");
        let other = Config { volume: "other".into(), ..config(&cluster, &[0, 1], 7) };
        let failure = Client::connect(cluster.sim.node("stranger"), other).await.err().expect("another volume");
        assert_eq!(failure.code, Code::NotAuthentic);
    });
}

#[test]
fn closes_travel_together_and_soon() {
    with_cluster(1, |cluster, client| async move {
        let closes = || {
            cluster.servers()[0]
                .status()
                .requests
                .iter()
                .find(|counter| counter.name == "Close")
                .map_or(0, |counter| counter.count)
        };
        let mut files = Vec::new();
        for index in 0..100 {
            files.push(create(&client, Ino::ROOT, &format!("f{index}")).await);
        }
        assert_eq!((opens(&cluster), closes()), (100, 0));
        let kept = files.pop().expect("there are 100");
        for file in &files {
            file.close().await.expect("nothing is unreported");
        }
        drop(files);
        cluster.sim.sleep(Duration::from_millis(60)).await;
        assert_eq!((opens(&cluster), closes()), (1, 2));
        drop(kept);
        cluster.sim.sleep(Duration::from_millis(60)).await;
        assert_eq!((opens(&cluster), closes()), (0, 3));
        let refused = client.open(&ROOT, Ino::ROOT, Access { read: true, write: true }).await;
        assert_eq!(refused.err().expect("a directory").code, Code::IsDirectory);
        cluster.sim.sleep(Duration::from_millis(60)).await;
        assert_eq!(closes(), 3, "what was not opened is not closed");
    });
}

#[test]
fn the_end_of_a_session_is_told_to_everybody_it_talked_to() {
    with_cluster(2, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "f").await;
        file.write(0, &vec![1; 400_000]).await.expect("there is room");
        file.write(200_000, b"late").await.expect("there is room");
        client.unlink(&ROOT, Ino::ROOT, &name("f")).await.expect("it exists");
        client.close().await.expect("all can be reported");
        assert_eq!(opens(&cluster), 0);
        cluster.sim.sleep(Duration::from_secs(1)).await;
        assert_eq!(cluster.servers().iter().map(|server| server.status().chunks).sum::<u64>(), 0);
        assert_eq!(client.getattr(&ROOT, Ino::ROOT).await.unwrap_err().code, Code::Expired);
        assert_eq!(file.read(0, 1).await.unwrap_err().code, Code::Expired);
    });
}

#[test]
fn an_idle_client_does_nothing() {
    with_cluster(2, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "f").await;
        file.write(0, b"x").await.expect("there is room");
        cluster.sim.sleep(Duration::from_secs(30)).await;
        let before = cluster.sim.counters().frames_sent;
        cluster.sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(cluster.sim.counters().frames_sent, before);
        assert_eq!(file.read(0, 10).await.as_deref(), Ok(&b"x"[..]), "and is as good as ever");
    });
}
