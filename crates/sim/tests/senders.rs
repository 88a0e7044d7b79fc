//! Who may send which request: servers enforce the column `sender` and the keeper's part of the column `to` of
//! `proto/src/rules.rs`.

use crate::support::{ROOT, create, name, with_cluster};
use aze_proto::message::{Reply, Request};
use aze_proto::{
    Code, Failure, Generation, Identity, Incarnation, Ino, MapEpoch, NamespaceEpoch, ServerIndex, ShardId, TxId, rules,
};
use aze_rpc::{Ask, Caller, CallerConfig, Target};
use aze_sim::Cluster;
use aze_sim::cluster::{SECRET, VOLUME, client_node};
use std::sync::Arc;
use std::time::Duration;

const STRANGER: Identity = Identity { uid: 7, gid: 7, groups: Vec::new() };

/// Asks as a client does that knows the secret and sends any request it wants.
async fn ask(cluster: &Cluster, to: ServerIndex, identity: &Identity, request: &Request) -> Result<Reply, Failure> {
    let map = cluster.server(to.0).expect("the server runs").map();
    let io = cluster.client_io(1);
    let config = CallerConfig {
        secret: SECRET,
        volume: VOLUME.into(),
        versions: aze_proto::limits::WIRE_VERSIONS,
        session: aze_proto::SessionId(io.random_u64()),
        server: false,
        job: "stranger".into(),
        host: client_node(1),
        transport: aze_io::Transport::Tcp,
        start_time_max: Duration::ZERO,
        order: Arc::default(),
    };
    let caller = Caller::new(io, config);
    let target = Target::of(&map, to).expect("the server is in the map");
    let ask = Ask {
        to: &target,
        shard: ShardId(u32::from(to.0)),
        map_epoch: map.epoch,
        namespace_epoch: NamespaceEpoch(u64::MAX),
        identity,
        request,
        payload: &[],
        deadline: Duration::from_secs(5),
    };
    caller.ask(ask).await.map(|answer| answer.reply)
}

fn from_servers() -> Vec<Request> {
    let (dir, ino, tx) = (Ino::ROOT, Ino::ROOT, TxId(5));
    let (to_parent, to_name) = (Ino::ROOT, name("x"));
    vec![
        Request::StubGet { dir, holder: ServerIndex(1), incarnation: Incarnation(0) },
        Request::StubClose { dir, round: 1 },
        Request::StubReopen { dir, round: 1 },
        Request::StubDrop { dir },
        Request::Fragment { dir },
        Request::Commit { tx, to_parent, to_name: to_name.clone() },
        Request::Abort { tx, to_parent, to_name },
        Request::TxOutcome { tx },
        Request::TxResolve { txs: vec![tx] },
        Request::SetParent { ino, parent: dir },
        Request::ParentOf { ino },
        Request::CloseDir { dir },
        Request::RaiseEpoch { dir },
        Request::EpochPush {
            epoch: NamespaceEpoch(9),
            changed: vec![dir],
            at_home: vec![dir],
            with_entries: Vec::new(),
        },
        Request::TakeToken { tx },
        Request::DropToken { tx },
        Request::TruncateData { ino, generation: Generation(1), length: 0, chunk_bits: 16 },
        Request::DeleteData { ino },
        Request::TruncateQuery { ino, have: Generation(0) },
        Request::LinkBegin { ino, tx, shard: ShardId(0) },
        Request::LinkEnd { ino, tx, kept: true },
        Request::LinkDrop { ino, tx },
        Request::LinkForget { ino, tx },
        Request::LinkOutcome { tx },
        Request::MayWrite { ino, identity: ROOT.clone() },
        Request::FenceSession { session: aze_proto::SessionId(1) },
    ]
}

#[test]
fn requests_of_servers_are_refused_to_clients() {
    with_cluster(2, |cluster, client| async move {
        create(&client, Ino::ROOT, "a").await;
        let requests = from_servers();
        assert_eq!(requests.len(), 26);
        for request in requests {
            assert_eq!(request.rules().sender, rules::Sender::Servers, "{request:?}");
            let failure = ask(&cluster, ServerIndex(0), &ROOT, &request).await.expect_err("a client is no server");
            assert_eq!(failure.code, Code::NotPermitted, "{request:?}: {failure}");
        }
        client.lookup(&ROOT, Ino::ROOT, &name("a")).await.expect("nothing has changed");
    });
}

#[test]
fn requests_of_the_owner_are_refused_to_others() {
    with_cluster(2, |cluster, client| async move {
        let watch = |begin| Request::CheckWatch { number: 1, begin };
        let requests = [Request::Shutdown, watch(Some(vec![Ino::ROOT])), watch(None)];
        for request in &requests {
            assert_eq!(request.rules().sender, rules::Sender::Owner, "{request:?}");
            let failure = ask(&cluster, ServerIndex(0), &STRANGER, request).await.expect_err("another user");
            assert_eq!(failure.code, Code::NotPermitted, "{request:?}: {failure}");
        }
        // The volume's owner may.
        assert_eq!(ask(&cluster, ServerIndex(0), &ROOT, &requests[1]).await, Ok(Reply::Done));
        create(&client, Ino::ROOT, "still served").await;
    });
}

#[test]
fn only_the_keeper_answers_what_is_meant_for_it() {
    with_cluster(2, |cluster, _client| async move {
        let request = Request::ServerEnded { server: ServerIndex(1), began: MapEpoch(9), incarnation: Incarnation(9) };
        assert_eq!(request.rules().to, rules::To::Keeper);
        let failure = ask(&cluster, ServerIndex(1), &ROOT, &request).await.expect_err("server 0 keeps the map");
        // As if the map were old: the asker may have chosen before it heard of the next keeper.
        assert_eq!(failure.code, Code::Refused, "{failure}");
        assert!(failure.detail.contains("server 0 does"), "{failure}");
        // It is about another life of that server, so that nothing follows from it.
        assert_eq!(ask(&cluster, ServerIndex(0), &ROOT, &request).await, Ok(Reply::Done));
        assert!(!cluster.server(0).expect("it runs").map().is_gone(ServerIndex(1)));
    });
}
