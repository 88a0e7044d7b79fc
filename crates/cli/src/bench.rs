//! `aze bench`, which is in room `bench`: how its measurements find volumes, reach them, and know their servers.

use crate::exit::{Exit, Outcome, Trouble};
use crate::memory::{self, Memory};
use crate::place::VolumePath;
use crate::session::Session;
use crate::tally::Tally;
use crate::version::COMMIT;
use crate::volume::{Record, Volume};
use crate::{launch, remove, sys};
use aze_bench::{Program, Tell};
use aze_client::Client;
use aze_fuse::{CACHE_TIME_DEFAULT, signals};
use aze_io::real::Runtime;
use aze_proto::attr::Identity;
use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Runs the command.
pub fn run(args: &aze_bench::Args) -> Outcome<Exit> {
    aze_bench::run(args, &Aze)
}

/// This program.
struct Aze;

impl Program for Aze {
    fn commit(&self) -> Option<&'static str> {
        COMMIT
    }

    fn volume(&self, name: Option<&str>) -> Outcome<aze_bench::Volume> {
        Ok(told(&Volume::meant(name)?.record))
    }

    fn open(&self, name: &str) -> Outcome<Arc<dyn aze_bench::Session>> {
        Ok(Arc::new(Measured(Session::open(Volume::open(name)?)?)))
    }

    fn open_many(&self, name: &str, clients: usize) -> Outcome<Vec<Arc<dyn aze_bench::Session>>> {
        let runtime = Runtime::client();
        runtime.background().map_err(|error| Trouble::local("start a thread", &error))?;
        let open = |_| Session::open_on(runtime.clone(), Volume::open(name)?);
        (0..clients).map(|client| Ok(Arc::new(Measured(open(client)?)) as Arc<dyn aze_bench::Session>)).collect()
    }

    fn kill_servers(&self, name: &str) -> Outcome<()> {
        for server in Volume::open(name)?.record.servers {
            server.process.signal(libc::SIGKILL);
        }
        Ok(())
    }

    fn memory_of_servers(&self, name: &str) -> Outcome<i64> {
        let servers = Volume::open(name)?.record.servers;
        servers.iter().map(|server| memory::of_process(server.process.pid).map(|bytes| bytes as i64)).sum()
    }

    fn processor_time(&self, name: Option<&str>) -> Outcome<Duration> {
        let of = |pid: u32| {
            sys::processor_time(pid)
                .map_err(|error| Trouble::local(format!("ask for the processor time of process {pid}"), &error))
        };
        match name {
            None => of(std::process::id()),
            Some(name) => Volume::open(name)?.record.servers.iter().map(|server| of(server.process.pid)).sum(),
        }
    }

    fn connections_of_servers(&self, name: &str) -> Outcome<u64> {
        let servers = Volume::open(name)?.record.servers;
        servers.iter().map(|server| memory::connections_of_process(server.process.pid)).sum()
    }

    fn usable_memory(&self) -> Outcome<u64> {
        Ok(Memory::now()?.usable())
    }

    fn launcher(&self, template: Option<&str>) -> Outcome<Vec<String>> {
        launch::launcher(template.unwrap_or(launch::default_launcher()), "{host}")
    }

    fn cache_time(&self) -> Duration {
        CACHE_TIME_DEFAULT
    }

    fn hold_signals(&self) -> io::Result<()> {
        signals::hold()
    }

    fn wait_for_signal(&self) -> io::Result<()> {
        signals::wait().map(drop)
    }

    fn with_signals(&self, command: &mut Command) {
        sys::with_signals(command);
    }

    fn tell_group(&self, leader: u32, what: Tell) -> bool {
        let signal = match what {
            Tell::Nothing => 0,
            Tell::End => libc::SIGTERM,
            Tell::Kill => libc::SIGKILL,
        };
        sys::signal_group(leader, signal).is_ok()
    }
}

/// The connection that is measured.
struct Measured(Arc<Session>);

impl aze_bench::Session for Measured {
    fn client(&self) -> &Arc<Client> {
        &self.0.client
    }

    fn who(&self) -> &Identity {
        &self.0.who
    }

    fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    fn volume(&self) -> aze_bench::Volume {
        told(&self.0.volume.record)
    }

    fn remove_all(&self, command: &'static str, path: &[u8]) -> Outcome<()> {
        let path = VolumePath { volume: None, path: path.to_vec() };
        let tally = Tally::new(command);
        remove::remove_all(&self.0, &path, &tally)?;
        match tally.exit() {
            Exit::Done => Ok(()),
            exit => Err(Trouble::new(exit, format!("remove {}: not all of it could be removed", path.shown()))),
        }
    }

    fn end(&self) {
        self.0.end();
    }
}

fn told(record: &Record) -> aze_bench::Volume {
    let settings = record.settings.clone();
    let address = record.members().next().and_then(|server| server.addresses.first());
    let transport = match address.and_then(|address| address.split_once(':')) {
        Some((kind, _)) if settings.transport == "auto" => kind.to_string(),
        _ => settings.transport,
    };
    aze_bench::Volume {
        name: record.name.clone(),
        durability: settings.durability,
        transport,
        nodes: record.members().filter_map(|server| server.node.clone()).collect(),
        launcher: settings.launcher,
        remote_aze: settings.remote_aze,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;

    #[test]
    fn a_measurement_is_told_the_transport_that_was_chosen() {
        let mut record = examples::volume(&[Some("a"), None]).record;
        assert_eq!(told(&record).transport, "unix");
        assert_eq!(told(&record).nodes, ["a"]);
        record.settings.transport = "tcp".into();
        assert_eq!(told(&record).transport, "tcp", "what was asked for comes first");
        record.settings.transport = "auto".into();
        record.servers.clear();
        assert_eq!(told(&record).transport, "auto");
    }
}
