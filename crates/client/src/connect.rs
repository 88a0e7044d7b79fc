//! How a client begins: it asks the servers that it was told of for the map.

use crate::client::{Client, Config, Core, unexpected};
use aze_io::Io;
use aze_proto::limits::WIRE_VERSIONS;
use aze_proto::{
    Code, Failure, Identity, Incarnation, MapEpoch, NamespaceEpoch, Reply, Request, ServerIndex, SessionId, ShardId,
    ShardMap,
};
use aze_rpc::{Ask, Caller, CallerConfig, Target};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;

/// How long a seed may take before the next one is asked as well, so that in a large volume a new
/// client does not knock at every door.
const NEXT_SEED_AFTER: Duration = Duration::from_millis(200);

/// How long a session goes on with a map of an earlier one before it looks for a newer one: commands that are
/// done by then save the question.
const LOOK_FOR_MAP_AFTER: Duration = Duration::from_secs(1);

/// Servers to which a session connects in advance over a long line; of a larger volume it connects to those only that it
/// asks something, since a command needs few.
const PREPARED_MAX: usize = 16;

/// Seeds that are asked at most: if so many do not answer, the volume is not there.
const SEEDS_MAX: usize = 16;

impl Client {
    /// Starts a session: gets the map from the first seed that answers.
    ///
    /// # Errors
    /// [`Code::NotAuthentic`] or [`Code::Version`] if a seed says so and none answers;
    /// [`Code::Unreachable`] at the deadline; [`Code::Invalid`] without seeds.
    pub async fn connect(io: Io, config: Config) -> Result<Arc<Client>, Failure> {
        let map = first_map(&io, &config).await?;
        Ok(Client::with_map(io, &config, map))
    }

    /// Starts a session with a map that an earlier session of this volume has seen: nothing is asked, so that the first
    /// request is that of the first operation. A server refuses what a newer map would send elsewhere, and this client
    /// then gets that map; if the session lasts, it looks for a newer one once, for servers that are at other addresses now.
    pub fn connect_knowing(io: Io, config: Config, map: ShardMap) -> Arc<Client> {
        let client = Client::with_map(io.clone(), &config, Arc::new(map));
        client.core.prepare_if_far();
        let core = Arc::downgrade(&client.core);
        io.clone().spawn(async move {
            io.sleep(LOOK_FOR_MAP_AFTER).await;
            if core.strong_count() == 0 {
                return;
            }
            // Without an answer the known one is as good as any.
            if let (Ok(map), Some(core)) = (first_map(&io, &config).await, core.upgrade()) {
                core.adopt_map(map);
            }
        });
        client
    }

    fn with_map(io: Io, config: &Config, map: Arc<ShardMap>) -> Arc<Client> {
        let caller = Caller::new(io.clone(), caller_config(&io, config));
        let core = Core::new(io, caller, config, map);
        core.watch_neighbours();
        core.follow_servers();
        Arc::new(Client { core })
    }
}

impl Core {
    /// Over a long line, opens connections to all servers of a small volume together: an operation of several steps goes
    /// to several servers, one after the other.
    fn prepare_if_far(self: &Arc<Self>) {
        let core = Arc::downgrade(self);
        self.caller.on_far(Box::new(move || {
            let Some(core) = core.upgrade() else { return };
            let routes = core.routes.read().clone();
            if routes.map.servers.len() <= PREPARED_MAX {
                routes.targets().for_each(|target| core.caller.prepare(target));
            }
        }));
    }
}

fn caller_config(io: &Io, config: &Config) -> CallerConfig {
    let Config { volume, secret, host, job, transport, start_time_max, .. } = config.clone();
    let session = SessionId(io.random_u64());
    let (versions, order) = (WIRE_VERSIONS, Arc::default());
    CallerConfig { secret, volume, versions, session, server: false, job, host, transport, start_time_max, order }
}

/// Asks the seeds, those on this node first, one after the other but not waiting for any.
async fn first_map(io: &Io, config: &Config) -> Result<Arc<ShardMap>, Failure> {
    // A session of its own: a seed's place in the map is not known yet, and this session's end
    // there must not end the real one.
    let caller = Caller::new(io.clone(), caller_config(io, config));
    let mut seeds: Vec<_> = config.seeds.iter().collect();
    seeds.sort_by_key(|(host, _)| *host != config.host);
    let local = seeds.iter().filter(|(host, _)| *host == config.host).count();
    let rest = &mut seeds[local..];
    if !rest.is_empty() {
        rest.rotate_left((io.random_u64() % rest.len() as u64) as usize);
    }
    let mut asked: FuturesUnordered<_> = (0u16..)
        .zip(seeds.into_iter().take(SEEDS_MAX))
        .map(|(turn, (host, addresses))| {
            let (index, life) = (ServerIndex(turn), (MapEpoch(0), Incarnation(0)));
            let target = Target { index, host: host.clone(), addresses: addresses.clone(), life };
            let caller = &caller;
            async move {
                io.sleep(NEXT_SEED_AFTER * u32::from(turn)).await;
                get_map(caller, &target, config.deadline).await
            }
        })
        .collect();
    let mut failures = Vec::new();
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(map) => return Ok(map),
            Err(failure) => failures.push(failure),
        }
    }
    Err(no_map(&config.volume, failures))
}

async fn get_map(caller: &Caller, target: &Target, deadline: Duration) -> Result<Arc<ShardMap>, Failure> {
    let (identity, request) = (Identity::default(), Request::GetMap);
    let (map_epoch, namespace_epoch) = (MapEpoch(0), NamespaceEpoch(0));
    let ask = Ask {
        to: target,
        shard: ShardId(0),
        map_epoch,
        namespace_epoch,
        identity: &identity,
        request: &request,
        payload: &[],
        deadline,
    };
    match caller.ask(ask).await?.reply {
        Reply::Map { map } if map.servers.is_empty() => {
            Err(Failure::new(Code::Malformed, format!("{target} has a map without servers")))
        }
        Reply::Map { map } => Ok(map),
        other => Err(unexpected(&request, &other)),
    }
}

/// The failure that says most: one that waiting would not cure.
fn no_map(volume: &str, failures: Vec<Failure>) -> Failure {
    let telling = |failure: &&Failure| matches!(failure.code, Code::NotAuthentic | Code::Version | Code::AccessDenied);
    let told = failures.iter().find(telling).or(failures.first());
    match told {
        Some(failure) => failure.clone().during(format!("connecting to volume '{volume}'")),
        None => {
            Failure::new(Code::Invalid, format!("connecting to volume '{volume}': no server is named: is it running?"))
        }
    }
}
