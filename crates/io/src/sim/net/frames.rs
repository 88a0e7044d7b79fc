//! Frames on their way, with the faults that befall them, and the ends of connections.

use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use super::super::rng::hash_bytes;
use super::super::state::{Core, Event, State};
use super::super::timing::Flying;
use super::super::trace::Kind;
use super::{End, Phase};
use crate::shared_payload::{SharedPayload, Source};
use crate::slab;
use crate::{Frame, NetError, SEND_QUEUE_BYTES_MAX};

impl Core {
    pub(super) fn frame_arrives(&self, to: u64, from_node: u32, to_node: u32, frame: Frame) {
        let ((handler, conn), frame) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let size = frame.head.len() + frame.payload_bytes();
            if let Some(sender) = state.ends.get_mut(&(to ^ 1)) {
                sender.queued_bytes -= size;
            }
            if !state.link_is_up(from_node, to_node) {
                state.counters.frames_vanished += 1;
                return state.note(Kind::Vanish, to_node, to, size as u64);
            }
            let Some(end) = state.ends.get_mut(&to) else { return state.reset(to ^ 1, to_node, from_node) };
            if end.phase != Phase::Open {
                return;
            }
            if let Some(why) = end.limit_broken_by(&frame) {
                return state.close(to, NetError::Limit(why), "closed by the peer: a frame was too large");
            }
            let found = (end.handler(), end.conn());
            let frame = end.keep_behind(frame);
            state.counters.frames_delivered += 1;
            state.note(Kind::Deliver, to_node, to, size as u64);
            let Some(frame) = frame else { return };
            (found, frame)
        };
        self.deliver(to, &handler, &conn, frame);
    }

    /// Takes an end out of the world if it is in `phase`, and tells its handler.
    pub(super) fn end_connection(&self, id: u64, phase: Phase, why: NetError) {
        let mut end = {
            let mut state = self.state.lock();
            match state.ends.entry(id) {
                Entry::Occupied(end) if end.get().phase == phase => {
                    let mut end = end.remove();
                    end.shared.end();
                    state.note(Kind::Close, end.node, id, 0);
                    end
                }
                _ => return,
            }
        };
        drop(end.arriving.take());
        end.handler.expect("an end that can end has a handler").on_close(&end.conn, why);
    }
}

/// Sending and closing.
impl State {
    pub(super) fn send(
        &mut self,
        id: u64,
        head: &[u8],
        payload: &[&[u8]],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) -> Result<(), NetError> {
        let Some(end) = self.ends.get(&id).filter(|end| end.phase == Phase::Open) else {
            return Err(NetError::Closed("the connection has ended".into()));
        };
        let (node, peer_node, queued_bytes) = (end.node, end.peer_node, end.queued_bytes);
        let size = head.len() + payload.iter().map(|part| part.len()).sum::<usize>();
        self.note(Kind::Send, node, id, size as u64);
        self.trace.absorb(hash_bytes(head));
        if queued_bytes + size > SEND_QUEUE_BYTES_MAX {
            let why = NetError::Limit(format!("more than {SEND_QUEUE_BYTES_MAX} bytes wait to be taken by the peer"));
            self.close(id, why.clone(), "closed by the peer: it sent too much at once");
            return Err(why);
        }
        if self.net_rng.chance(self.faults.connection_cut_ppm) {
            return self.cut(node, id);
        }
        self.counters.frames_sent += 1;
        if !self.link_is_up(node, peer_node) {
            self.counters.frames_vanished += 1;
            self.note(Kind::Vanish, node, id, size as u64);
        } else if self.net_rng.chance(self.faults.loss_ppm) {
            self.counters.frames_lost += 1;
            self.note(Kind::Lose, node, id, size as u64);
        } else {
            let shared = self.share_frames(id, held, size - head.len()).map(Arc::new);
            let payload = if shared.is_some() { Vec::new() } else { payload.concat() };
            self.post_with_faults(id, Frame { head: head.to_vec(), payload, shared, in_frames: None });
        }
        Ok(())
    }

    /// Shares a payload of so many bytes instead of sending it, where that is done.
    fn share_frames(
        &mut self,
        id: u64,
        held: &[(Arc<slab::Frame>, Range<usize>)],
        payload_bytes: usize,
    ) -> Option<SharedPayload> {
        let shares = self.share_bytes_min.is_some_and(|min| payload_bytes >= min.max(1));
        let held_bytes: usize = held.iter().map(|(_, range)| range.len()).sum();
        if !shares || held_bytes != payload_bytes {
            return None;
        }
        let shared = self.ends.get_mut(&id)?.shared.share_frames(held)?;
        self.counters.payloads_shared += 1;
        Some(SharedPayload(Source::Sim(shared)))
    }

    /// Ends a connection by a fault. A sender may learn it at once or only by `on_close`.
    fn cut(&mut self, node: u32, id: u64) -> Result<(), NetError> {
        self.counters.connections_cut += 1;
        self.note(Kind::Cut, node, id, 0);
        let why = NetError::Closed("the connection was cut on the way".into());
        self.close(id, why.clone(), "cut on the way");
        if self.net_rng.chance(500_000) { Err(why) } else { Ok(()) }
    }

    fn post_with_faults(&mut self, from: u64, mut frame: Frame) {
        let copy = self.net_rng.chance(self.faults.duplicate_ppm).then(|| Frame {
            head: frame.head.clone(),
            payload: frame.payload.clone(),
            shared: frame.shared.clone(),
            in_frames: None,
        });
        if self.net_rng.chance(self.faults.flip_ppm) {
            self.flip_one_bit(&mut frame);
        }
        self.post(from, frame);
        if let Some(copy) = copy {
            self.counters.frames_duplicated += 1;
            self.post(from, copy);
        }
    }

    fn flip_one_bit(&mut self, frame: &mut Frame) {
        let (head_len, len) = (frame.head.len(), frame.head.len() + frame.payload.len());
        if len == 0 {
            return;
        }
        self.counters.frames_flipped += 1;
        let (at, bit) = (self.net_rng.index(len), self.net_rng.below(8));
        let byte = if at < head_len { &mut frame.head[at] } else { &mut frame.payload[at - head_len] };
        *byte ^= 1 << bit;
    }

    /// Puts a frame on its way.
    fn post(&mut self, from: u64, frame: Frame) {
        let mut arrival_ns = self.now_ns.saturating_add(self.delay_ns());
        let is_held_up = self.net_rng.chance(self.faults.reorder_ppm);
        if is_held_up {
            self.counters.frames_reordered += 1;
            arrival_ns = arrival_ns.saturating_add(self.net_rng.between(0, self.faults.reorder_delay_ns_max));
        }
        let Some(end) = self.ends.get_mut(&from) else { return };
        if is_held_up {
            arrival_ns = arrival_ns.max(end.closed_until_ns + 1);
        } else {
            arrival_ns = arrival_ns.max(end.last_arrival_ns + 1);
            end.last_arrival_ns = arrival_ns;
        }
        end.queued_bytes += frame.head.len() + frame.payload_bytes();
        let (from_node, to_node) = (end.node, end.peer_node);
        if let Some(flying) = self.fly(Flying { to: from ^ 1, from_node, to_node, frame }) {
            let Flying { to, from_node, to_node, frame } = flying;
            let frame = self.long_heads.post(frame);
            self.schedule(arrival_ns, Event::Frame { to, from_node, to_node, frame });
        }
    }

    /// Closes an end from its own side: its handler and, if the link is up, its peer hear of it later.
    pub(super) fn close(&mut self, id: u64, why_here: NetError, why_there: &'static str) {
        let Entry::Occupied(entry) = self.ends.entry(id) else { return };
        if entry.get().phase != Phase::Open {
            return;
        }
        let mut end = entry.remove();
        end.phase = Phase::Closing;
        self.send_fin(id, &end, why_there);
        self.ends.insert(id, end);
        self.schedule(self.now_ns, Event::LocalClose { end: id, why: why_here });
    }

    /// Sends the news that `end` is gone to its peer, behind the frames sent before.
    pub(in super::super) fn send_fin(&mut self, id: u64, end: &End, why: &'static str) {
        if self.link_is_up(end.node, end.peer_node) {
            let arrival_ns = self.now_ns.saturating_add(self.delay_ns()).max(end.last_arrival_ns + 1);
            self.schedule(arrival_ns, Event::Fin { to: id ^ 1, from_node: end.node, to_node: end.peer_node, why });
        }
    }

    /// Answers the end `to`, which has sent over a connection that `from_node` does not know.
    pub(super) fn reset(&mut self, to: u64, from_node: u32, to_node: u32) {
        let answers = self.nodes[from_node as usize].host_up && self.link_is_up(from_node, to_node);
        if answers && self.ends.contains_key(&to) {
            let arrival_ns = self.now_ns.saturating_add(self.delay_ns());
            self.schedule(
                arrival_ns,
                Event::Fin { to, from_node, to_node, why: "reset by the peer: it knows no such connection" },
            );
        }
    }
}
