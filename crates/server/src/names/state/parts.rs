//! What the holders of a directory have said of their parts of it, at its home.
//!
//! A holder that has said its part tells the home before it answers a change of it (`names/parts.rs`), so that a part is asked for once
//! however often the directory is looked at.

use aze_proto::{MapEpoch, ServerIndex, Time};
use std::collections::BTreeMap;

/// A holder's part of a directory: entries, subdirectories, time of the last change.
pub(crate) type Part = (u64, u64, Time);

/// The parts of one directory.
#[derive(Default)]
pub(crate) struct Parts {
    /// Entries may move with each new map: nothing is known from before it.
    epoch: MapEpoch,
    of: BTreeMap<ServerIndex, Known>,
}

enum Known {
    /// The question with this number is on its way.
    Asked(u64),
    Is(Part),
}

impl Parts {
    /// The holders' parts that are known, and those who have to be asked: by the question with this number, which no other one has.
    pub(crate) fn look(
        &mut self,
        holders: &[ServerIndex],
        epoch: MapEpoch,
        question: u64,
    ) -> (Vec<Part>, Vec<ServerIndex>) {
        self.begin(epoch);
        let (mut known, mut asked) = (Vec::new(), Vec::new());
        for holder in holders {
            if let Some(Known::Is(part)) = self.of.get(holder) {
                known.push(*part);
            } else {
                self.of.insert(*holder, Known::Asked(question));
                asked.push(*holder);
            }
        }
        (known, asked)
    }

    /// All of these holders are asked by the question with this number, whether their parts are known or not.
    pub(crate) fn ask(&mut self, holders: &[ServerIndex], epoch: MapEpoch, question: u64) {
        self.begin(epoch);
        self.of.extend(holders.iter().map(|holder| (*holder, Known::Asked(question))));
    }

    fn begin(&mut self, epoch: MapEpoch) {
        if self.epoch != epoch {
            *self = Parts { epoch, of: BTreeMap::new() };
        }
    }

    /// A holder's answer; it is of no use if the holder has told of a change since it was asked.
    pub(crate) fn learn(&mut self, holder: ServerIndex, question: u64, part: Part) {
        match self.of.get(&holder) {
            Some(Known::Asked(asked)) if *asked == question => drop(self.of.insert(holder, Known::Is(part))),
            // One of two answers is older than the holder's word that is on its way. A client that has seen the newer
            // one must not be told the older one afterwards.
            Some(Known::Is(known)) if *known != part => self.changes(holder),
            _ => {}
        }
    }

    /// The holder tells of a change of its part.
    pub(crate) fn changes(&mut self, holder: ServerIndex) {
        self.of.remove(&holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDERS: [ServerIndex; 2] = [ServerIndex(1), ServerIndex(2)];
    const MAP: MapEpoch = MapEpoch(3);

    fn part(entries: u64) -> Part {
        (entries, 0, Time(entries))
    }

    #[test]
    fn a_part_is_asked_for_once_until_it_changes() {
        let mut parts = Parts::default();
        assert_eq!(parts.look(&HOLDERS, MAP, 1), (vec![], HOLDERS.to_vec()));
        parts.learn(HOLDERS[0], 1, part(5));
        parts.learn(HOLDERS[1], 1, part(7));
        assert_eq!(parts.look(&HOLDERS, MAP, 2), (vec![part(5), part(7)], vec![]));
        parts.changes(HOLDERS[0]);
        assert_eq!(parts.look(&HOLDERS, MAP, 3), (vec![part(7)], vec![HOLDERS[0]]));
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let mut parts = Parts::default();
        parts.look(&HOLDERS, MAP, 1);
        parts.changes(HOLDERS[0]);
        parts.learn(HOLDERS[0], 1, part(5));
        assert_eq!(parts.look(&HOLDERS[..1], MAP, 2), (vec![], HOLDERS[..1].to_vec()));
        parts.learn(HOLDERS[0], 1, part(5));
        assert_eq!(parts.look(&HOLDERS[..1], MAP, 3).0, vec![], "an answer to another question");
    }

    /// The answer to the first question was overtaken by that to the second: who had seen the newer part saw the older one after it.
    #[test]
    fn of_two_answers_that_differ_none_is_kept() {
        let mut parts = Parts::default();
        parts.look(&HOLDERS[..1], MAP, 1);
        parts.look(&HOLDERS[..1], MAP, 2);
        parts.learn(HOLDERS[0], 2, part(5));
        parts.learn(HOLDERS[0], 1, part(5));
        assert_eq!(parts.look(&HOLDERS[..1], MAP, 3), (vec![part(5)], vec![]), "both say the same");
        parts.learn(HOLDERS[0], 1, part(6));
        assert_eq!(parts.look(&HOLDERS[..1], MAP, 4), (vec![], HOLDERS[..1].to_vec()));
    }

    #[test]
    fn what_is_asked_for_anew_is_not_believed_meanwhile() {
        let mut parts = Parts::default();
        parts.look(&HOLDERS, MAP, 1);
        parts.learn(HOLDERS[0], 1, part(5));
        parts.ask(&HOLDERS, MAP, 2);
        assert_eq!(parts.look(&[], MAP, 3), (vec![], vec![]));
        parts.learn(HOLDERS[0], 2, part(6));
        assert_eq!(parts.look(&HOLDERS[..1], MAP, 4), (vec![part(6)], vec![]));
    }

    #[test]
    fn nothing_is_known_from_before_a_new_map() {
        let mut parts = Parts::default();
        parts.look(&HOLDERS, MAP, 1);
        parts.learn(HOLDERS[0], 1, part(5));
        assert_eq!(parts.look(&HOLDERS, MapEpoch(4), 2), (vec![], HOLDERS.to_vec()));
        parts.learn(HOLDERS[1], 1, part(5));
        assert_eq!(parts.look(&HOLDERS, MapEpoch(4), 3).0, vec![], "an answer under the map before");
    }
}
