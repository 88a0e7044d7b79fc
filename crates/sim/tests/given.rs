//! A server does a change, gives the slot to another one and ends before its answer has reached the client. The server
//! that has the slot then knows how the change ended: the client repeats it there, under its number, and it takes
//! effect once.

use crate::support::{ROOT, create, name, with_layout};
use aze_client::{Client, File};
use aze_io::sim::Link;
use aze_proto::message::Durability;
use aze_proto::{
    Code, Failure, FileKind, Ino, MapEpoch, Name, NameHash, NamespaceEpoch, Refusal, Request, ServerIndex, SlotIndex,
};
use aze_rpc::{Ask, Caller, CallerConfig, Target};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{Layout, SECRET, VOLUME, client_node, server_node};
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::time::Duration;

/// The giver. It keeps no map.
const GIVER: ServerIndex = ServerIndex(2);

/// Another one that keeps no map.
const TAKER: ServerIndex = ServerIndex(1);

/// What an append adds.
const ADDED: &[u8] = b"once";

/// Changes whose second time differs from the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Create,
    Mkdir,
    Unlink,
    Rmdir,
    Rename,
    Append,
}

const ALL: [What; 6] = [What::Create, What::Mkdir, What::Unlink, What::Rmdir, What::Rename, What::Append];

/// What does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// The request: the giver does nothing.
    Request,
    /// The answer.
    Answer,
}

/// What becomes of the giver after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It gives the slot and leaves the volume.
    Leaves,
    /// It gives the slot and dies, and its end is noted.
    DiesAndStaysAway,
    /// It gives the slot and dies; its next process comes back from its directory, or empty.
    DiesAndIsBack,
    /// It dies with the slot and comes back from its directory, gives the slot then, and dies and comes back once more.
    IsBackAndGives,
    /// It dies with the slot, and its end is noted.
    DiesWithTheSlot,
    /// It dies with the slot and comes back from its directory.
    IsBackWithTheSlot,
}

/// A change, and where it takes effect.
struct Change {
    what: What,
    from: Name,
    to: Name,
    file: Option<Arc<File>>,
    slot: SlotIndex,
}

impl Change {
    /// Makes what the change needs, in a slot of the giver.
    async fn prepare(client: &Client, what: What) -> Change {
        let map = client.map();
        let slot_of = |name: &Name| map.slots.slot_of(NameHash::of(Ino::ROOT, name).shard(map.shards()));
        let is_given = |slot: SlotIndex| map.slots.get(slot).is_some_and(|slot| slot.primary == GIVER);
        let mut names = (0..).map(|number| name(&format!("n{number}")));
        let from = names.find(|name| is_given(slot_of(name))).expect("numbers have no end");
        let mut slot = slot_of(&from);
        let to = names.find(|name| slot_of(name) == slot).expect("numbers have no end");
        let mut file = None;
        match what {
            What::Create | What::Mkdir => {}
            What::Unlink | What::Rename => {
                create(client, Ino::ROOT, &from.to_string()).await.close().await.expect("closed")
            }
            What::Rmdir => {
                let made = client.create(&ROOT, Ino::ROOT, &from, &new_file(FileKind::Directory, true)).await;
                made.expect("a new name can be made");
            }
            What::Append => {
                for name in names {
                    let made = create(client, Ino::ROOT, &name.to_string()).await;
                    slot = map.slots.slot_of(made.ino().home(map.shards()));
                    if is_given(slot) {
                        file = Some(made);
                        break;
                    }
                }
            }
        }
        // The connection stands before answers get lost.
        let _ = client.lookup(&ROOT, Ino::ROOT, &to).await;
        Change { what, from, to, file, slot }
    }

    async fn ask(&self, client: &Client) -> Result<(), Failure> {
        let new = |kind| new_file(kind, true);
        match self.what {
            What::Create => client.create(&ROOT, Ino::ROOT, &self.to, &new(FileKind::File)).await.map(drop),
            What::Mkdir => client.create(&ROOT, Ino::ROOT, &self.to, &new(FileKind::Directory)).await.map(drop),
            What::Unlink => client.unlink(&ROOT, Ino::ROOT, &self.from).await,
            What::Rmdir => client.rmdir(&ROOT, Ino::ROOT, &self.from).await,
            What::Rename => client.rename(&ROOT, Ino::ROOT, &self.from, Ino::ROOT, &self.to, true).await,
            What::Append => self.file.as_ref().expect("it is open").append(ADDED).await.map(drop),
        }
    }

    /// Whether it has taken effect, once.
    async fn is_done(&self, other: &Client) -> bool {
        let is_there = async |name: &Name| match other.lookup(&ROOT, Ino::ROOT, name).await {
            Ok(_) => true,
            Err(failure) if failure.code == Code::NotFound => false,
            Err(failure) => panic!("{:?}: {failure}", self.what),
        };
        match self.what {
            What::Create | What::Mkdir => is_there(&self.to).await,
            What::Unlink | What::Rmdir => !is_there(&self.from).await,
            What::Rename => is_there(&self.to).await && !is_there(&self.from).await,
            What::Append => {
                let ino = self.file.as_ref().expect("it is open").ino();
                other.getattr(&ROOT, ino).await.expect("the file is there").size == ADDED.len() as u64
            }
        }
    }
}

/// Has the keeper move the slot to the taker, however often it says that something is under way.
async fn give(cluster: &Cluster, slot: SlotIndex) {
    loop {
        let keeper = cluster.newest_map().expect("a server runs").keeper;
        let moved = cluster.at_server(keeper, move |keeper| async move { keeper.move_slot(slot, TAKER).await }).await;
        match moved.expect("the keeper runs") {
            Err(failure) if failure.code == Code::Busy => cluster.sim.sleep(Duration::from_millis(20)).await,
            moved => return moved.expect("the slot can be moved"),
        }
    }
}

/// Has the giver leave, however often the keeper says that something is under way.
async fn leave(cluster: &Cluster, other: &Client) {
    while !matches!(other.leave(&[GIVER]).await, Ok((_, staying)) if staying.is_empty()) {
        cluster.sim.sleep(Duration::from_millis(20)).await;
    }
}

/// Tells the keeper that the giver's process has ended, as another process of its machine does.
async fn note_end(cluster: &Cluster) {
    let map = cluster.newest_map().expect("a server runs");
    let config = CallerConfig {
        secret: SECRET,
        volume: VOLUME.into(),
        versions: aze_proto::limits::WIRE_VERSIONS,
        session: aze_proto::SessionId(4711),
        server: false,
        job: "neighbour".into(),
        host: client_node(1),
        transport: aze_io::Transport::Tcp,
        start_time_max: Duration::ZERO,
        order: Arc::default(),
    };
    let caller = Caller::new(cluster.client_io(1), config);
    let giver = map.server(GIVER).expect("it is in the map");
    let request = Request::ServerEnded { server: GIVER, began: giver.began, incarnation: giver.incarnation };
    let ask = Ask {
        to: &Target::of(&map, map.keeper).expect("it is in the map"),
        shard: aze_proto::ShardId(0),
        map_epoch: map.epoch,
        namespace_epoch: NamespaceEpoch(u64::MAX),
        identity: &ROOT,
        request: &request,
        payload: &[],
        deadline: Duration::from_secs(5),
    };
    caller.ask(ask).await.expect("the keeper notes it");
    assert!(cluster.newest_map().is_some_and(|map| map.epoch > MapEpoch(0) && map.is_gone(GIVER)));
}

/// The giver is there again.
async fn is_back(cluster: &Arc<Cluster>) {
    let back = match cluster.layout().durability {
        Some(_) => cluster.bring_back(GIVER.0).await,
        None => cluster.start_server(GIVER.0).await,
    };
    back.expect("a server that died can start again");
}

/// Gives how the change ended for the client, and whether it has taken effect once.
fn ended(layout: Layout, what: What, lost: Lost, end: End) -> (Result<(), Code>, bool) {
    let (tell, told) = std::sync::mpsc::channel();
    with_layout(layout, move |cluster, client| async move {
        let other = cluster.connect(1).await.expect("a quiet cluster connects");
        let change = Arc::new(Change::prepare(&client, what).await);
        let (giver, asker) = (server_node(GIVER.0), client_node(0));
        match lost {
            Lost::Request => cluster.sim.set_link(&asker, &giver, Link::Down),
            Lost::Answer => cluster.sim.set_link(&giver, &asker, Link::Down),
        }
        let (asked, asking) = (client.clone(), change.clone());
        let asked = cluster.on_client(0, async move { asking.ask(&asked).await });
        cluster.sim.sleep(Duration::from_millis(200)).await;
        assert_eq!(change.is_done(&other).await, lost == Lost::Answer, "{what:?}: the client does not know");
        match end {
            End::Leaves => leave(&cluster, &other).await,
            End::DiesAndStaysAway | End::DiesAndIsBack => give(&cluster, change.slot).await,
            End::IsBackAndGives => {
                cluster.kill_server(GIVER.0, false);
                is_back(&cluster).await;
                give(&cluster, change.slot).await;
            }
            End::DiesWithTheSlot | End::IsBackWithTheSlot => {}
        }
        cluster.kill_server(GIVER.0, false);
        cluster.sim.heal();
        match end {
            End::Leaves => {}
            End::DiesAndStaysAway | End::DiesWithTheSlot => note_end(&cluster).await,
            End::DiesAndIsBack | End::IsBackWithTheSlot | End::IsBackAndGives => is_back(&cluster).await,
        }
        let ended = asked.await.expect("the client lives").map_err(|failure| {
            println!("{what:?}, {lost:?}, {end:?}: {failure}");
            failure.code
        });
        let is_known = end != End::DiesWithTheSlot;
        tell.send((ended, is_known && change.is_done(&other).await)).expect("the test waits");
    });
    told.recv().expect("the run has ended")
}

fn in_memory() -> Layout {
    Layout { deadline: Duration::from_secs(30), ..Layout::of(3) }
}

fn in_directories() -> Layout {
    Layout { durability: Some(Durability::Fsync), ..in_memory() }
}

/// All changes that do not end well and once, as the client hears and others see.
fn wrong(layout: &Layout, lost: Lost, ends: &[End]) -> Vec<String> {
    let mut wrong = Vec::new();
    for end in ends {
        for what in ALL {
            let ended = ended(layout.clone(), what, lost, *end);
            if ended != (Ok(()), true) {
                wrong.push(format!("{what:?}, {lost:?}, {end:?}: {ended:?}"));
            }
        }
    }
    wrong
}

#[test]
fn a_change_is_done_once_whose_server_has_given_it_away_and_left() {
    for layout in [in_memory(), in_directories()] {
        assert_eq!(wrong(&layout, Lost::Answer, &[End::Leaves]), Vec::<String>::new());
        assert_eq!(wrong(&layout, Lost::Request, &[End::Leaves]), Vec::<String>::new());
    }
}

#[test]
fn a_change_is_done_once_whose_server_has_given_it_away_and_died() {
    let ends = [End::DiesAndStaysAway, End::DiesAndIsBack];
    for lost in [Lost::Answer, Lost::Request] {
        assert_eq!(wrong(&in_memory(), lost, &ends), Vec::<String>::new());
    }
}

#[test]
fn a_change_in_directories_is_done_once_whose_server_has_given_it_away_and_died() {
    let ends = [End::DiesAndStaysAway, End::DiesAndIsBack];
    for lost in [Lost::Answer, Lost::Request] {
        assert_eq!(wrong(&in_directories(), lost, &ends), Vec::<String>::new());
    }
}

/// A change that took effect is in its journal, and so with the server that has the slot afterwards.
#[test]
fn a_change_is_done_once_whose_server_has_died_and_is_back() {
    let ends = [End::IsBackWithTheSlot, End::IsBackAndGives];
    assert_eq!(wrong(&in_directories(), Lost::Answer, &ends), Vec::<String>::new());
}

/// What takes several steps may have been done in part by a server that died: it is not begun again.
#[test]
fn how_a_change_ended_is_unknown_that_a_server_may_have_begun() {
    for end in [End::IsBackWithTheSlot, End::IsBackAndGives] {
        for what in ALL {
            let expected = match what {
                What::Rmdir | What::Rename => (Err(Code::UnknownOutcome), false),
                _ => (Ok(()), true),
            };
            assert_eq!(ended(in_directories(), what, Lost::Request, end), expected, "{what:?}, {end:?}");
        }
    }
}

/// No server knows how it ended: the retry record was in memory and is lost.
#[test]
fn how_a_change_ended_is_unknown_whose_slot_is_lost() {
    for what in ALL {
        let ended = ended(in_memory(), what, Lost::Answer, End::DiesWithTheSlot);
        assert_eq!(ended.0, Err(Code::UnknownOutcome), "{what:?}");
    }
}

#[test]
fn a_taker_that_does_not_know_how_changes_ended_is_noticed() {
    let layout = Layout { switches: Switches::without(Sabotage::ForgetBroughtOutcomes), ..in_memory() };
    let wrong = wrong(&layout, Lost::Answer, &[End::DiesAndStaysAway]);
    assert_eq!(wrong.len(), ALL.len(), "each is done twice: {wrong:?}");
}

/// Two moves under one map would have the same number: what ends one of them ended the other one, too, at one end, and the slot was lost.
#[test]
fn a_server_that_keeps_the_map_no_more_begins_no_move() {
    with_layout(Layout::of(3), |cluster, _client| async move {
        let map = cluster.newest_map().expect("servers run");
        assert!(map.keeper != TAKER && map.keeper != GIVER);
        let (slot, _) = map.slots.served_by(GIVER).next().expect("it has some");
        let moved = cluster.at_server(TAKER, move |other| async move { other.move_slot(slot, TAKER).await }).await;
        let failure = moved.expect("it runs").expect_err("it keeps no map");
        assert!(matches!(failure.refusal, Some(Refusal::MapStale { .. })), "{failure}");
        assert_eq!(asked_to_copy(&cluster), 0, "the giver has heard of no move");
        give(&cluster, slot).await;
        assert!(asked_to_copy(&cluster) > 0, "the keeper begins one");
    });
}

/// How often the giver was asked to send data of a slot.
fn asked_to_copy(cluster: &Cluster) -> u64 {
    let counts = cluster.server(GIVER.0).expect("it runs").status().requests;
    counts.iter().find(|counter| counter.name == "CopySlot").map_or(0, |counter| counter.count)
}
