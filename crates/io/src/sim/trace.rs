//! What happened, as one running hash and, on demand, as text.

use std::collections::VecDeque;
use std::fmt::Write;

use super::TRACE_EVENTS_MAX;
use super::rng::{hash_bytes, mix};

/// Sorts of events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Start,
    Kill,
    Step,
    Timer,
    Dial,
    Accept,
    Connected,
    ConnectFailed,
    Send,
    Lose,
    Vanish,
    Cut,
    Deliver,
    Close,
    Link,
    Clock,
    Log,
}

struct Record {
    now_ns: u64,
    kind: Kind,
    node: u32,
    subject: u64,
    size: u64,
    text: Option<String>,
}

/// The trace of one world.
#[derive(Default)]
pub(super) struct Trace {
    hash: u64,
    kept: Option<VecDeque<Record>>,
}

impl Trace {
    pub(super) fn hash(&self) -> u64 {
        mix(self.hash)
    }

    pub(super) fn keep(&mut self) {
        self.kept.get_or_insert_default();
    }

    /// Takes in words that belong to an event but not to its text.
    pub(super) fn absorb(&mut self, word: u64) {
        // The step of FxHash: one rotation and one multiplication, since it runs for every event.
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Notes an event; `subject` is the task, connection or the like.
    pub(super) fn note(&mut self, now_ns: u64, kind: Kind, node: u32, subject: u64, size: u64) {
        self.absorb(now_ns);
        self.absorb(u64::from(node) << 8 | kind as u64);
        self.absorb(subject);
        self.absorb(size);
        if self.kept.is_some() {
            self.push(Record { now_ns, kind, node, subject, size, text: None });
        }
    }

    /// Notes an event that is described by words.
    pub(super) fn note_text(&mut self, now_ns: u64, kind: Kind, node: u32, text: String) {
        self.absorb(now_ns);
        self.absorb(u64::from(node) << 8 | kind as u64);
        self.absorb(hash_bytes(text.as_bytes()));
        if self.kept.is_some() {
            self.push(Record { now_ns, kind, node, subject: 0, size: 0, text: Some(text) });
        }
    }

    /// The events kept, one line each.
    pub(super) fn lines<'a>(&self, node_name: impl Fn(u32) -> &'a str) -> Vec<String> {
        self.kept.iter().flatten().map(|record| record.line(node_name(record.node))).collect()
    }

    fn push(&mut self, record: Record) {
        let Some(kept) = &mut self.kept else { return };
        if kept.len() == TRACE_EVENTS_MAX {
            kept.pop_front();
        }
        kept.push_back(record);
    }
}

impl Record {
    fn line(&self, node: &str) -> String {
        let mut line = format!("{:>16} {node:<10} {:<13}", self.now_ns, format!("{:?}", self.kind));
        let _infallible = match (&self.text, self.kind) {
            (Some(text), _) => write!(line, " {text}"),
            (None, Kind::Step) => write!(line, " task {}", self.subject),
            (None, Kind::Send | Kind::Deliver | Kind::Lose | Kind::Vanish) => {
                write!(line, " connection {} {} bytes", self.subject, self.size)
            }
            (None, Kind::Close | Kind::Cut | Kind::Accept | Kind::Connected) => {
                write!(line, " connection {}", self.subject)
            }
            (None, _) => write!(line, " {}", self.subject),
        };
        line
    }
}
