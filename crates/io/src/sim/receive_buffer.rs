//! Payloads that arrive little by little.
//!
//! It alone knows that a simulated frame arrives as a whole: where a handler has its payload put into frames
//! ([`crate::Handler::receive_buffer`]), a part may come at once and the rest later, or never, as over a real network.
//! Frames that come behind it wait for it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::net::End;
use super::rng::SimRng;
use super::state::{Core, Event, State};
use crate::slab::ReceiveBuffer;
use crate::{Connection, FRAMES_PAYLOAD_BYTES_MIN, Frame, Handler};

/// How payloads arrive that go to frames of a slab: the longest pause in the middle of one, and how many of a
/// million pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPayloads {
    /// Chance of a pause, in parts per million.
    pub pause_ppm: u32,
    /// The longest one; one in eight is up to so long, the others up to a hundredth of it.
    pub pause_ns_max: u64,
}

/// A frame whose head and a part of the payload have come.
pub(super) struct Arriving {
    frame: Frame,
    receiving: ReceiveBuffer,
    /// Bytes of the payload that are in the receive buffer.
    come: usize,
    /// Tells it apart from others that arrived, or began to, at this end.
    serial: u64,
    /// The frames that have come behind it.
    behind: VecDeque<Frame>,
}

impl State {
    /// Where a payload stops for a while, and for how long.
    fn draw_pause(&mut self, bytes: usize) -> Option<(usize, u64)> {
        let (slow, rng) = self.slow_payloads.as_mut()?;
        if !rng.chance(slow.pause_ppm) {
            return None;
        }
        let most = if rng.chance(125_000) { slow.pause_ns_max } else { slow.pause_ns_max / 100 };
        Some((rng.index(bytes), rng.below(most.max(1))))
    }

    pub(super) fn set_slow_payloads(&mut self, slow: Option<SlowPayloads>) {
        let seed = self.seed();
        self.slow_payloads = slow.map(|slow| (slow, SimRng::new(seed, "slow payloads")));
    }
}

impl End {
    /// Keeps a frame back that has come behind one that is not complete.
    pub(super) fn keep_behind(&mut self, frame: Frame) -> Option<Frame> {
        match &mut self.arriving {
            Some(arriving) => {
                arriving.behind.push_back(frame);
                None
            }
            None => Some(frame),
        }
    }
}

impl Core {
    /// Gives a frame to the handler, or the first part of its payload to its receive buffer; `false` if the rest comes
    /// later.
    pub(super) fn deliver(
        &self,
        to: u64,
        handler: &Arc<dyn Handler>,
        conn: &Arc<dyn Connection>,
        mut frame: Frame,
    ) -> bool {
        let bytes = frame.payload.len();
        let receiving =
            if bytes >= FRAMES_PAYLOAD_BYTES_MIN { handler.receive_buffer(conn, &frame.head, bytes) } else { None };
        let Some(mut receiving) = receiving else {
            handler.on_frame(conn, frame);
            return true;
        };
        assert!(receiving.len() == bytes, "there is room for the payload and no more");
        let pause = {
            let mut state = self.state.lock();
            state.counters.payloads_in_frames += 1;
            state.draw_pause(bytes)
        };
        if let Some((come, ns)) = pause {
            receiving.put(&frame.payload[..come]);
            let mut state = self.state.lock();
            state.counters.payloads_paused += 1;
            let (serial, at_ns) = (state.next_serial(), state.now_ns.saturating_add(ns));
            let arriving = Arriving { frame, receiving, come, serial, behind: VecDeque::new() };
            state.schedule(at_ns, Event::Rest { to, serial });
            // Ended by its own handler: then no task waits for it.
            let _ended = match state.ends.get_mut(&to) {
                Some(end) => end.arriving.replace(arriving),
                None => Some(arriving),
            };
            drop(state);
            return false;
        }
        receiving.put(&frame.payload);
        frame.payload = Vec::new();
        frame.set_payload(receiving.finish());
        handler.on_frame(conn, frame);
        true
    }

    /// The rest of a payload comes, and then the frames that have come behind it.
    pub(super) fn rest_arrives(&self, to: u64, serial: u64) {
        let (handler, conn, arriving) = {
            let mut state = self.state.lock();
            let Some(end) = state.ends.get_mut(&to) else { return };
            let Some(arriving) = end.arriving.take_if(|arriving| arriving.serial == serial) else { return };
            if !end.is_open() {
                // Dropped without the lock.
                drop(state);
                return drop(arriving);
            }
            (end.handler(), end.conn(), arriving)
        };
        let Arriving { mut frame, mut receiving, come, mut behind, .. } = arriving;
        receiving.put(&frame.payload[come..]);
        frame.payload = Vec::new();
        frame.set_payload(receiving.finish());
        handler.on_frame(&conn, frame);
        while let Some(frame) = behind.pop_front() {
            if !self.state.lock().ends.get(&to).is_some_and(End::is_open) {
                return;
            }
            if !self.deliver(to, &handler, &conn, frame) {
                if let Some(end) = self.state.lock().ends.get_mut(&to)
                    && let Some(arriving) = &mut end.arriving
                {
                    arriving.behind = behind;
                }
                return;
            }
        }
    }
}
