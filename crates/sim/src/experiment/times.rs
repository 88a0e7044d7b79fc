//! What processors need for requests, as it was measured on servers that run.

use aze_io::sim::Work;
use aze_proto::frame::{self, Kind};
use aze_proto::message::Envelope;
use aze_proto::wire::{Input, Wire};
use aze_proto::{Reply, Request};
use std::collections::BTreeMap;

/// Time of a processor for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// For a request of any size.
    pub ns: u64,
    /// And for each MiB of data that it moves.
    pub mib_ns: u64,
}

impl Cost {
    fn of(self, bytes: u64) -> u64 {
        self.ns + of_bytes(self.mib_ns, bytes)
    }
}

fn of_bytes(mib_ns: u64, bytes: u64) -> u64 {
    ((u128::from(mib_ns) * u128::from(bytes)) >> 20) as u64
}

/// Times of servers and of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// What a server needs for a request of this name, reply included.
    pub requests: BTreeMap<String, Cost>,
    /// The same of a request that is not among these.
    pub other_ns: u64,
    /// What the asker needs for an answer, request included.
    pub answer_ns: u64,
    /// And for each MiB that it sends.
    pub sent_mib_ns: u64,
    /// And for each MiB that it gets.
    pub received_mib_ns: u64,
    /// What a server needs for each name in the answer of a search.
    pub found_ns: u64,
    /// What the asker needs for each of these.
    pub received_found_ns: u64,
}

/// Names in the answer of a search; 0 for other answers.
fn names(body: &[u8]) -> u64 {
    match Reply::take(&mut Input::new(body)) {
        Ok(Reply::Scanned { found, subdirs, elsewhere, .. }) => (found.len() + subdirs.len() + elsewhere.len()) as u64,
        _ => 0,
    }
}

impl Times {
    fn request(&self, body: &[u8], payload_bytes: usize) -> u64 {
        let Ok(Envelope { request, .. }) = Envelope::take(&mut Input::new(body)) else { return self.other_ns };
        let bytes = match &request {
            Request::Read(read) => u64::from(read.len),
            _ => payload_bytes as u64,
        };
        self.requests.get(request.name()).map_or(self.other_ns, |cost| cost.of(bytes))
    }
}

fn is_driver(node: &str) -> bool {
    node == aze_io::sim::DRIVER
}

impl Work for Times {
    fn to_send(&self, node: &str, head: &[u8], payload_bytes: usize) -> u64 {
        match frame::look(head) {
            Some((Kind::Request, _)) if !is_driver(node) => of_bytes(self.sent_mib_ns, payload_bytes as u64),
            // How many they are, a server knows when it has looked.
            Some((Kind::Reply, body)) if self.found_ns > 0 => self.found_ns * names(body),
            _ => 0,
        }
    }

    fn to_receive(&self, node: &str, head: &[u8], payload_bytes: usize) -> u64 {
        match frame::look(head) {
            _ if is_driver(node) => 0,
            Some((Kind::Request, body)) => self.request(body, payload_bytes),
            Some((Kind::Reply | Kind::Failure, body)) => {
                let found_ns = if self.received_found_ns > 0 { self.received_found_ns * names(body) } else { 0 };
                self.answer_ns + of_bytes(self.received_mib_ns, payload_bytes as u64) + found_ns
            }
            Some((Kind::Handshake, _)) | None => 0,
        }
    }
}
