//! Frames on their way; a head that many share is kept once: when a volume starts, each of thousands of servers is sent
//! the same map, behind a header of its own, all at one moment.

use std::sync::{Arc, Weak};

use crate::Frame;

/// Heads from this length on are compared with the one before.
const LONG_BYTES_MIN: usize = 64 << 10;

/// Heads are compared by pieces of so many bytes, from their ends on.
const PIECE_BYTES: usize = 4096;

/// A frame on its way.
pub(in super::super) struct Posted {
    /// The frame, without the end of its head that another one has as well.
    frame: Frame,
    /// That end, and where it begins in there.
    end: Option<(Arc<Vec<u8>>, usize)>,
}

impl Posted {
    /// The frame as it was sent.
    pub(super) fn whole(mut self) -> Frame {
        if let Some((head, begin)) = self.end {
            self.frame.head.extend_from_slice(&head[begin..]);
        }
        self.frame
    }
}

/// The last long head that was sent, while it or a frame with its end is on its way.
#[derive(Default)]
pub(in super::super) struct LongHeads(Weak<Vec<u8>>);

impl LongHeads {
    pub(in super::super) fn post(&mut self, mut frame: Frame) -> Posted {
        if frame.head.len() < LONG_BYTES_MIN {
            return Posted { frame, end: None };
        }
        if let Some(last) = self.0.upgrade() {
            let pieces = frame.head.rchunks_exact(PIECE_BYTES).zip(last.rchunks_exact(PIECE_BYTES));
            let alike = pieces.take_while(|(piece, other)| piece == other).count() * PIECE_BYTES;
            if alike > frame.head.len() / 2 {
                frame.head.truncate(frame.head.len() - alike);
                frame.head.shrink_to_fit();
                let begin = last.len() - alike;
                return Posted { frame, end: Some((last, begin)) };
            }
        }
        let head = Arc::new(std::mem::take(&mut frame.head));
        self.0 = Arc::downgrade(&head);
        Posted { frame, end: Some((head, 0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(head: &[u8]) -> Frame {
        Frame { head: head.to_vec(), payload: b"payload".to_vec(), shared: None, in_frames: None }
    }

    #[test]
    fn a_frame_arrives_as_it_was_sent_whatever_others_have_alike() {
        let map: Vec<u8> =
            (0..LONG_BYTES_MIN as u32 + 77).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let heads = [
            [b"for 1".to_vec(), map.clone()].concat(),
            [b"for 23".to_vec(), map.clone()].concat(),
            map[..LONG_BYTES_MIN - 1].to_vec(),
            [map.clone(), vec![1]].concat(),
            map.repeat(2),
        ];
        let mut long = LongHeads::default();
        let posted: Vec<Posted> = heads.iter().map(|head| long.post(frame(head))).collect();
        assert!(posted[1].frame.head.len() < 2 * PIECE_BYTES, "the second one has the end of the first");
        for (posted, head) in posted.into_iter().zip(&heads) {
            assert_eq!(posted.whole(), frame(head));
        }
        assert!(long.0.upgrade().is_none(), "nothing is kept of frames that have arrived");
    }
}
