//! A line of bytes between two simulated processes: what one writes the other one reads, later and in pieces.
//!
//! Either end may go, with the process that has it or for want of a network: then the reader finds an end, perhaps in the middle of a message,
//! and the writer is told. A line may be held: nothing comes through until it goes on, and neither end is told.

use aze_io::Io;
use aze_io::sync::Mutex;
use aze_io::threads::{self, Waiter};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long bytes are under way, at most, in microseconds.
const DELAY_US_MAX: u64 = 300;

/// The line. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Line(Arc<Mutex<Flow>>);

#[derive(Default)]
struct Flow {
    bytes: VecDeque<u8>,
    /// Nothing more is written.
    has_ended: bool,
    /// Nothing is read any more.
    is_unread: bool,
    is_held: bool,
    waiting: Vec<Waker>,
}

/// The end that writes.
pub(super) struct Writer(Line);

/// The end that reads.
pub(super) struct Reader {
    line: Line,
    io: Io,
}

impl Line {
    fn change(&self, change: impl FnOnce(&mut Flow)) {
        let mut flow = self.0.lock();
        change(&mut flow);
        let waiting = std::mem::take(&mut flow.waiting);
        drop(flow);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The end that writes; to be taken once.
    pub fn writer(&self) -> Writer {
        Writer(self.clone())
    }

    /// The end that reads, in a process that has this face of the world; to be taken once.
    pub fn reader(&self, io: Io) -> Reader {
        Reader { line: self.clone(), io }
    }

    /// Puts bytes in, without an end.
    pub fn put(&self, bytes: &[u8]) {
        self.change(|flow| flow.bytes.extend(bytes));
    }

    /// Cuts it: so many of the bytes under way arrive at most.
    pub fn cut(&self, arrive_max: usize) {
        self.change(|flow| {
            flow.bytes.truncate(arrive_max);
            (flow.has_ended, flow.is_unread, flow.is_held) = (true, true, false);
        });
    }

    /// Holds the bytes under way, or lets them go on.
    pub fn hold(&self, is_held: bool) {
        self.change(|flow| flow.is_held = is_held);
    }

    /// How many bytes are under way.
    pub fn len(&self) -> usize {
        self.0.lock().bytes.len()
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The words of a killed process do not arrive.
        let is_alive = Waiter::Simulated.block_on(async {}).is_some();
        let mut is_unread = false;
        self.0.change(|flow| {
            is_unread = flow.is_unread || flow.has_ended;
            if is_alive && !is_unread {
                flow.bytes.extend(bytes);
            }
        });
        if is_alive && !is_unread { Ok(bytes.len()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.change(|flow| flow.has_ended = true);
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        threads::sleep(Duration::from_micros(self.io.random_u64() % (DELAY_US_MAX + 1)));
        let draw = self.io.random_u64();
        let arrived = poll_fn(|context| {
            let mut flow = self.line.0.lock();
            if flow.is_held || flow.bytes.is_empty() && !flow.has_ended {
                flow.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            let most = flow.bytes.len().min(buffer.len());
            // All of it, or a piece.
            let count = if draw.is_multiple_of(4) { most.min(1 + (draw >> 8) as usize % 200) } else { most };
            Poll::Ready(flow.bytes.drain(..count).collect::<Vec<u8>>())
        });
        let arrived = Waiter::Simulated.block_on(arrived).unwrap_or_default();
        buffer[..arrived.len()].copy_from_slice(&arrived);
        Ok(arrived.len())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.line.change(|flow| flow.is_unread = true);
    }
}
