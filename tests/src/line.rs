//! A line between commands and a volume's servers that takes its time, as a line between two sites does.
//!
//! Commands run in a network namespace of their own, in which this process listens at the addresses of the servers, and
//! hands on what comes over TCP after half a round trip. A new connection takes one more round trip, as it would on
//! such a line. So the time that a command takes says how many round trips it waits for, one after the other.

use crate::{Place, Ran, run};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// A line of a volume. Threads of it end with the test.
pub struct Line {
    round_trip: Duration,
    namespace: File,
    volume: String,
    connections: Arc<AtomicUsize>,
}

/// What a command took over a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Took {
    /// Round trips that it waited for, rounded down.
    pub trips: u32,
    /// Connections that it opened.
    pub connections: usize,
}

impl Line {
    /// To a volume of this place. Needs root; `None` if network namespaces cannot be made.
    pub fn new(place: &Place, volume: &str, round_trip: Duration) -> Option<Line> {
        let record = std::fs::read_to_string(place.path("run").join(volume).join("volume.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
        let addresses = |server: &serde_json::Value| server["addresses"].as_array().expect("addresses").clone();
        let servers = record["servers"].as_array().expect("servers");
        let texts = servers.iter().flat_map(addresses);
        let tcp: Vec<String> =
            texts.filter_map(|text| text.as_str()?.strip_prefix("tcp:").map(str::to_string)).collect();
        assert_eq!(tcp.len(), servers.len(), "each server listens at one address");
        let (namespace, listeners) = thread::spawn(move || {
            // SAFETY: unshare(2) takes a number and touches no memory. It concerns this thread only, which ends here.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return None;
            }
            run(Command::new("ip").args(["link", "set", "lo", "up"]));
            let namespace = File::open("/proc/thread-self/ns/net").expect("the namespace of this thread");
            let listen = |address: &String| TcpListener::bind(address).expect("no other has this address here");
            Some((namespace, tcp.iter().map(|address| (address.clone(), listen(address))).collect::<Vec<_>>()))
        })
        .join()
        .expect("the thread ends")?;
        let connections = Arc::new(AtomicUsize::new(0));
        for (address, listener) in listeners {
            let connections = connections.clone();
            thread::spawn(move || {
                for accepted in listener.incoming() {
                    let near = accepted.expect("a connection");
                    connections.fetch_add(1, Ordering::SeqCst);
                    let far = TcpStream::connect(&address).expect("a server");
                    let began = Instant::now() + round_trip;
                    for (from, to, not_before) in [(&near, &far, began), (&far, &near, began)] {
                        let (from, to) = (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
                        from.set_nodelay(true).expect("an option");
                        carry(from, to, round_trip / 2, not_before);
                    }
                }
            });
        }
        Some(Line { round_trip, namespace, volume: volume.to_string(), connections })
    }

    /// Runs `aze` at the far end of the line.
    pub fn aze(&self, place: &Place, args: &[&str]) -> (Ran, Took) {
        let mut command = place.command(args);
        command.env("AZE_VOLUME", &self.volume).env("AZE_TRANSPORT", "tcp");
        let namespace = self.namespace.as_raw_fd();
        // SAFETY: setns(2) takes two numbers and touches no memory; the descriptor is open for as long as `self` is.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let connections = self.connections.load(Ordering::SeqCst);
        let began = Instant::now();
        let ran = command.output().expect("aze starts").into();
        let trips = (began.elapsed().as_secs_f64() / self.round_trip.as_secs_f64()) as u32;
        (ran, Took { trips, connections: self.connections.load(Ordering::SeqCst) - connections })
    }
}

/// Hands on what comes over a connection, each piece `delay` after it came and none before `not_before` and `delay`.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration, not_before: Instant) {
    let (pieces, coming) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let count = from.read(&mut buffer).unwrap_or(0);
            let due = Instant::now().max(not_before) + delay;
            if pieces.send((due, buffer[..count].to_vec())).is_err() || count == 0 {
                return;
            }
        }
    });
    thread::spawn(move || {
        while let Some(piece) = next_due(&coming) {
            if piece.is_empty() || to.write_all(&piece).is_err() {
                // An end that has gone needs no farewell.
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
        }
    });
}

/// The next piece, when it is due.
fn next_due(coming: &Receiver<(Instant, Vec<u8>)>) -> Option<Vec<u8>> {
    let (due, piece) = coming.recv().ok()?;
    while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        thread::park_timeout(left);
    }
    Some(piece)
}
