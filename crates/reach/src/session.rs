//! A program's connection to a volume.

use crate::identity::own_identity;
use crate::volume::{self, Record, Volume};
use aze_client::{Client, Config};
use aze_io::Transport;
use aze_io::real::{self, Runtime};
use aze_proto::attr::Identity;
use aze_proto::error::Failure;
use aze_proto::limits::{DEADLINE_MS_DEFAULT, START_SECONDS_MAX};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::env;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// An open connection to one volume; any number of threads may use it.
pub struct Session {
    /// Where answers are waited for.
    pub runtime: Arc<Runtime>,
    /// What knows how to ask.
    pub client: Arc<Client>,
    /// On whose behalf.
    pub who: Identity,
    /// The volume, with the servers of the map that was known at the connection.
    pub volume: Volume,
}

impl Session {
    /// Connects, and waits for servers that are starting. Later requests do so, too.
    pub fn open(volume: Volume) -> Outcome<Arc<Session>> {
        let deadline = Duration::from_millis(DEADLINE_MS_DEFAULT.into());
        Session::open_within(Runtime::client(), volume, deadline, Duration::from_secs(START_SECONDS_MAX))
    }

    /// As [`Session::open`], for a single command: without a request if the map is known from an earlier one, so
    /// that a server that is not there is noticed by the first operation.
    pub fn open_for_command(mut volume: Volume) -> Outcome<Arc<Session>> {
        let Some(map) = volume.known_map().filter(|_| !volume.is_dead()) else {
            let session = Session::open(volume)?;
            session.volume.keep_map(&session.client.map());
            return Ok(session);
        };
        let runtime = Runtime::client();
        let deadline = Duration::from_millis(DEADLINE_MS_DEFAULT.into());
        let config = config(&volume, deadline, Duration::from_secs(START_SECONDS_MAX))?;
        volume.record.learn(&map);
        let client = Client::connect_knowing(runtime.io(), config, map);
        Ok(Arc::new(Session { runtime, client, who: own_identity(), volume }))
    }

    /// As [`Session::open`], on this runtime.
    pub fn open_on(runtime: Arc<Runtime>, volume: Volume) -> Outcome<Arc<Session>> {
        let deadline = Duration::from_millis(DEADLINE_MS_DEFAULT.into());
        Session::open_within(runtime, volume, deadline, Duration::from_secs(START_SECONDS_MAX))
    }

    /// Connects; gives up after `deadline`, as every later request does, also if the servers are starting.
    pub fn open_if_there(volume: Volume, deadline: Duration) -> Outcome<Arc<Session>> {
        Session::open_within(Runtime::client(), volume, deadline, Duration::ZERO)
    }

    fn open_within(
        runtime: Arc<Runtime>,
        mut volume: Volume,
        deadline: Duration,
        start_time_max: Duration,
    ) -> Outcome<Arc<Session>> {
        let name = volume.record.name.clone();
        if volume.is_dead() {
            return Err(Trouble::new(
                Exit::Again,
                format!(
                    "connect to volume '{name}': none of its servers runs any more: clear it away with 'aze down --name {name}'"
                ),
            ));
        }
        let config = config(&volume, deadline, start_time_max)?;
        let client = runtime
            .block_on(Client::connect(runtime.io(), config))
            .map_err(|failure| Trouble::volume(format!("connect to volume '{name}'"), &failure))?;
        volume.record.learn(&client.map());
        Ok(Arc::new(Session { runtime, client, who: own_identity(), volume }))
    }

    /// Waits for an answer; `what` names the request in an error.
    pub fn ask<T>(&self, what: impl fmt::Display, answer: impl Future<Output = Result<T, Failure>>) -> Outcome<T> {
        self.runtime.block_on(answer).map_err(|failure| Trouble::volume(what, &failure))
    }

    /// Ends the session, so that the servers need not wait whether it comes back. A failure is of no
    /// consequence: they find out by themselves.
    pub fn end(&self) {
        let map = self.client.map();
        if self.volume.known_map().is_some_and(|known| known.epoch < map.epoch) {
            self.volume.keep_map(&map);
        }
        let _ = self.runtime.block_on(self.client.close());
    }
}

/// What a client of the volume has to know.
fn config(volume: &Volume, deadline: Duration, start_time_max: Duration) -> Outcome<Config> {
    Ok(Config {
        volume: volume.record.name.clone(),
        secret: volume.secret()?,
        seeds: volume.seeds(),
        host: volume::host(),
        job: job(),
        deadline,
        start_time_max,
        transport: transport(&volume.record)?,
        durability: volume.record.settings.durability(),
        lasts: volume.record.settings.lasts(),
    })
}

/// How data travels within a node: as `AZE_TRANSPORT` says, else as the volume was made.
fn transport(record: &Record) -> Outcome<Transport> {
    let told = env::var("AZE_TRANSPORT").ok().filter(|value| !value.is_empty());
    match told {
        Some(told) => told.parse().map_err(|error| Trouble::usage(format!("AZE_TRANSPORT: {error}"))),
        None => record.settings.transport.parse().map_err(|error| {
            Trouble::new(
                Exit::Fatal,
                format!("the record of volume '{}': {error}: was it made by another version of aze?", record.name),
            )
        }),
    }
}

/// The batch job that this process belongs to: the system, and its number as the system's variable tells it.
pub fn batch_job() -> Option<(&'static str, String)> {
    let variables = [
        ("slurm", "SLURM_JOB_ID"),
        ("pbs", "PBS_JOBID"),
        ("pjm", "PJM_JOBID"),
        ("lsf", "LSB_JOBID"),
        ("flux", "FLUX_JOB_ID"),
    ];
    variables.into_iter().find_map(|(system, variable)| Some((system, set(variable)?)))
}

/// The job to which servers count the requests of this process: the batch job, else the user and the shell's job.
pub fn job() -> String {
    match batch_job() {
        Some((system, id)) => format!("{system}:{id}"),
        None => format!("{}:{}", set("USER").unwrap_or_else(|| real::user_id().to_string()), real::process_group()),
    }
}

fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}
