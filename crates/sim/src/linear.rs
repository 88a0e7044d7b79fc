//! Is there an order in which one operation after the other could have given these answers?
//!
//! The search of Wing and Gong (1993) with the memory of Lowe (2017): an operation may come next
//! if no other one had returned before it began; a state reached twice is looked at once. An
//! operation without an answer may come at any time after it began, or never. A path is walked
//! one step after the other, each at a time of its own within the call, as path walks are in any
//! file system. What leaves the state as it is comes as soon as it can, without a choice.

use crate::tree::{Id, Op, Ret, Tree};
use aze_proto::{Code, FileKind};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::hash::{Hash, Hasher};

/// One operation as it was seen from outside. Times count events of the run, not nanoseconds, so
/// that no two are equal.
#[derive(Clone, Debug)]
pub struct Event {
    /// Who asked, for messages.
    pub who: String,
    /// The operation.
    pub op: Op,
    /// Its answer.
    pub ret: Ret,
    /// When it was asked.
    pub invoked: u64,
    /// When the answer came; `u64::MAX` if none did.
    pub returned: u64,
}

impl Event {
    /// Whether it has no effect, wherever it comes in an order.
    fn only_reads(&self) -> bool {
        match &self.ret {
            Ret::Failed(_) => true,
            Ret::Entry { created, .. } => !created && !matches!(self.op, Op::Link { .. }),
            Ret::Done | Ret::Unknown => false,
        }
    }
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearizable,
    /// It would take longer than the budget allows.
    Undecided,
    /// There is none; the text shows how far the best order got.
    Impossible(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    done: Vec<bool>,
    /// Paths being walked: how many steps are done, and where they led.
    walks: BTreeMap<usize, (usize, Id)>,
    tree: Tree,
}

struct Search<'a> {
    events: &'a [Event],
    known: BTreeSet<Id>,
    losses: bool,
}

/// Looks for an order, through at most `budget` states. Answers that say nothing about reads are
/// left out by the caller or here. With `losses` servers have restarted empty: a rename that was never
/// confirmed may be undone, since its new name went with its server and the moved inode must keep a name.
pub fn check(base: Id, events: &[Event], budget: usize, losses: bool) -> Verdict {
    let mut events: Vec<Event> = events.iter().filter(|event| !says_nothing(event)).cloned().collect();
    events.sort_by_key(|event| event.invoked);
    for event in events.iter_mut().filter(|event| event.ret == Ret::Unknown) {
        event.returned = u64::MAX;
    }
    let known = events.iter().filter_map(|event| match event.ret {
        Ret::Entry { id, created: true, .. } => Some(id),
        _ => None,
    });
    let search = Search { events: &events, known: known.chain([base]).collect(), losses };
    search.run(State { done: vec![false; events.len()], walks: BTreeMap::new(), tree: Tree::new(base) }, budget)
}

fn says_nothing(event: &Event) -> bool {
    event.ret == Ret::Unknown && matches!(event.op, Op::Lookup { .. } | Op::Resolve { .. })
}

fn digest(state: &State) -> u64 {
    // The standard hasher has fixed keys when it is made like this.
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

impl Search<'_> {
    fn run(&self, first: State, budget: usize) -> Verdict {
        let mut seen: HashSet<u64> = HashSet::new();
        let mut stack = vec![first.clone()];
        let (mut best, mut best_done) = (first, 0);
        while let Some(mut state) = stack.pop() {
            self.take_free(&mut state);
            if self.is_over(&state) {
                return Verdict::Linearizable;
            }
            let done = state.done.iter().filter(|done| **done).count();
            if done > best_done {
                (best, best_done) = (state.clone(), done);
            }
            if !seen.insert(digest(&state)) {
                continue;
            }
            if seen.len() > budget {
                return Verdict::Undecided;
            }
            stack.extend(state.tree.undone().into_iter().map(|tree| State { tree, ..state.clone() }));
            // The last one pushed is tried first: what returned earliest probably came first.
            let mut candidates = self.candidates(&state);
            candidates.sort_by_key(|index| std::cmp::Reverse(self.events[*index].returned));
            for index in candidates {
                self.push_successors(&state, index, &mut stack);
            }
        }
        Verdict::Impossible(self.explain(&best))
    }

    fn is_over(&self, state: &State) -> bool {
        self.events.iter().zip(&state.done).all(|(event, done)| *done || event.returned == u64::MAX)
    }

    /// What may come next: everything that began before the first return that is still to come.
    fn candidates(&self, state: &State) -> Vec<usize> {
        let mut first_return = u64::MAX;
        let mut begun = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            if event.invoked > first_return {
                break;
            }
            if !state.done[index] {
                first_return = first_return.min(event.returned);
                begun.push(index);
            }
        }
        begun.retain(|index| self.events[*index].invoked < first_return);
        begun
    }

    /// Takes all that changes nothing.
    fn take_free(&self, state: &mut State) {
        loop {
            let free = self.candidates(state).into_iter().find(|index| self.is_free(state, *index));
            let Some(index) = free else { return };
            state.done[index] = true;
            state.walks.remove(&index);
        }
    }

    fn is_free(&self, state: &State, index: usize) -> bool {
        let event = &self.events[index];
        match &event.op {
            // A rename may leave everything as it is here and have an effect elsewhere in the order.
            _ if !event.only_reads() => false,
            Op::Resolve { .. } => self.walk_ends(state, index).is_some_and(|tree| tree == state.tree),
            op => {
                let answers = state.tree.answer(op, &event.ret, 0, &|id| self.known.contains(&id));
                answers.len() == 1 && answers[0] == state.tree
            }
        }
    }

    fn push_successors(&self, state: &State, index: usize, stack: &mut Vec<State>) {
        let event = &self.events[index];
        if let Op::Resolve { path } = &event.op {
            return self.push_walk(state, index, path, stack);
        }
        for tree in self.with_directories_known(&state.tree, &event.op) {
            for next in
                tree.answer(&event.op, &event.ret, crate::tree::UNSEEN + index as Id, &|id| self.known.contains(&id))
            {
                let mut next = State { tree: next, ..state.clone() };
                if self.losses && event.ret == Ret::Unknown {
                    next.tree.may_be_undone(&event.op, &tree);
                }
                next.done[index] = true;
                stack.push(next);
            }
        }
    }

    /// A directory whose making no client saw may be one whose making was never answered.
    fn with_directories_known(&self, tree: &Tree, op: &Op) -> Vec<Tree> {
        let dirs = match op {
            Op::Lookup { dir, .. }
            | Op::Create { dir, .. }
            | Op::Unlink { dir, .. }
            | Op::Rmdir { dir, .. }
            | Op::Link { dir, .. } => {
                vec![*dir]
            }
            Op::Rename { dir, to_dir, .. } | Op::Exchange { dir, to_dir, .. } => vec![*dir, *to_dir],
            Op::Resolve { .. } => Vec::new(),
        };
        let mut trees = vec![tree.clone()];
        for dir in dirs.into_iter().filter(|dir| !self.known.contains(dir)) {
            let learnt: Vec<Tree> = trees
                .iter()
                .filter(|tree| !tree.dirs.contains_key(&dir))
                .flat_map(|tree| {
                    tree.unseen_dirs().into_iter().map(|unseen| {
                        let mut next = tree.clone();
                        next.learn(unseen, dir);
                        next
                    })
                })
                .collect();
            trees.extend(learnt);
        }
        trees
    }

    /// The state if the rest of a path is walked at once and gives the answer.
    fn walk_ends(&self, state: &State, index: usize) -> Option<Tree> {
        let Event { op: Op::Resolve { path }, ret, .. } = &self.events[index] else { return None };
        let (step, mut dir) = state.walks.get(&index).copied().unwrap_or((0, state.tree.base));
        for (place, name) in path.iter().enumerate().skip(step) {
            match (state.tree.step(dir, *name), ret) {
                (Err(_), Ret::Failed(Code::NotFound | Code::Stale)) => return Some(state.tree.clone()),
                (Err(_), _) => return None,
                (Ok(there), Ret::Entry { id, kind, .. }) if place + 1 == path.len() => {
                    return state.tree.recognize(there, (*id, *kind), &|id| self.known.contains(&id));
                }
                (Ok((id, FileKind::Directory)), _) => dir = id,
                (Ok(_), Ret::Failed(Code::NotDirectory | Code::NotFound)) if place + 1 < path.len() => {
                    return Some(state.tree.clone());
                }
                (Ok(_), _) => return None,
            }
        }
        None
    }

    fn push_walk(&self, state: &State, index: usize, path: &[u8], stack: &mut Vec<State>) {
        let (step, dir) = state.walks.get(&index).copied().unwrap_or((0, state.tree.base));
        if let Ok((id, FileKind::Directory)) = state.tree.step(dir, path[step])
            && step + 1 < path.len()
        {
            let mut next = state.clone();
            next.walks.insert(index, (step + 1, id));
            stack.push(next);
        }
        if let Some(tree) = self.walk_ends(state, index) {
            let mut next = State { tree, ..state.clone() };
            next.done[index] = true;
            next.walks.remove(&index);
            stack.push(next);
        }
    }

    fn explain(&self, best: &State) -> String {
        let mut text = String::from("no order explains the answers; the longest one ends with\n");
        let _infallible = writeln!(
            text,
            "  tree {:?}\n  dirs {:?}\n  and none of these can follow:",
            best.tree.entries, best.tree.dirs
        );
        for index in self.candidates(best) {
            let Event { who, op, ret, invoked, returned } = &self.events[index];
            let _infallible = writeln!(text, "  [{invoked}, {returned}] {who}: {op:?} -> {ret:?}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Id = 2;

    fn event(op: Op, ret: Ret, invoked: u64, returned: u64) -> Event {
        Event { who: "somebody".into(), op, ret, invoked, returned }
    }

    fn create(name: u8, id: Id, invoked: u64, returned: u64) -> Event {
        let op = Op::Create { dir: BASE, name, kind: FileKind::File, exclusive: true };
        event(op, Ret::Entry { id, kind: FileKind::File, created: true }, invoked, returned)
    }

    fn lookup(name: u8, id: Option<Id>, invoked: u64, returned: u64) -> Event {
        let ret = id.map_or(Ret::Failed(Code::NotFound), |id| Ret::Entry { id, kind: FileKind::File, created: false });
        event(Op::Lookup { dir: BASE, name }, ret, invoked, returned)
    }

    fn rename(ret: Ret, invoked: u64, returned: u64) -> Event {
        event(Op::Rename { dir: BASE, name: 0, to_dir: BASE, to_name: 1, no_replace: false }, ret, invoked, returned)
    }

    fn verdict(events: &[Event]) -> bool {
        verdict_with(events, false)
    }

    fn verdict_with(events: &[Event], losses: bool) -> bool {
        match check(BASE, events, 10_000, losses) {
            Verdict::Linearizable => true,
            Verdict::Impossible(_) => false,
            Verdict::Undecided => panic!("so small a history is decided"),
        }
    }

    #[test]
    fn overlapping_operations_may_come_in_either_order() {
        assert!(verdict(&[create(0, 10, 1, 5), lookup(0, None, 2, 3), lookup(0, Some(10), 4, 6)]));
        assert!(!verdict(&[create(0, 10, 1, 5), lookup(0, Some(10), 2, 3), lookup(0, None, 4, 6)]));
        assert!(!verdict(&[create(0, 10, 1, 2), lookup(0, None, 3, 4)]));
    }

    #[test]
    fn a_rename_never_shows_both_names_or_neither() {
        let begin = create(0, 10, 1, 2);
        let both = [begin.clone(), rename(Ret::Done, 3, 10), lookup(1, Some(10), 4, 5), lookup(0, Some(10), 6, 7)];
        assert!(!verdict(&both));
        let neither = [begin.clone(), rename(Ret::Done, 3, 10), lookup(0, None, 4, 5), lookup(1, None, 6, 7)];
        assert!(!verdict(&neither));
        let late = [begin, rename(Ret::Done, 3, 10), lookup(1, None, 4, 5), lookup(0, None, 6, 7)];
        assert!(verdict(&late));
    }

    /// Two names of one file: a rename of one to the other leaves both, unless the other has gone
    /// before. The search once took the first for granted where it was possible.
    #[test]
    fn a_rename_that_can_do_nothing_may_also_do_something() {
        let link = event(Op::Link { ino: 10, dir: BASE, name: 2 }, Ret::Done, 3, 4);
        let away = rename(Ret::Done, 5, 8);
        let back =
            event(Op::Rename { dir: BASE, name: 2, to_dir: BASE, to_name: 0, no_replace: false }, Ret::Done, 6, 9);
        let begin = [create(0, 10, 1, 2), link, away, back];
        let with = |last: Event| verdict(&[begin.as_slice(), &[last]].concat());
        assert!(with(lookup(2, None, 10, 11)));
        assert!(with(lookup(2, Some(10), 10, 11)));
    }

    #[test]
    fn what_was_never_answered_may_happen_later_or_never() {
        let begin = create(0, 10, 1, 2);
        assert!(verdict(&[
            begin.clone(),
            rename(Ret::Unknown, 3, 4),
            lookup(0, Some(10), 5, 6),
            lookup(1, Some(10), 7, 8)
        ]));
        assert!(verdict(&[begin.clone(), rename(Ret::Unknown, 3, 4), lookup(0, Some(10), 5, 6)]));
        assert!(!verdict(&[begin, rename(Ret::Unknown, 3, 4), lookup(1, Some(10), 5, 6), lookup(0, Some(10), 7, 8)]));
    }

    /// The new name's server restarted empty before it could confirm: the old name stays. A client that
    /// had seen the new one sees the old one again; never both, and only where servers lose things.
    #[test]
    fn a_rename_whose_new_name_was_lost_is_undone() {
        let seen = [create(0, 10, 1, 2), rename(Ret::Unknown, 3, 4), lookup(1, Some(10), 5, 6)];
        let with = |last: &[Event], losses| verdict_with(&[seen.as_slice(), last].concat(), losses);
        let back = [lookup(0, None, 7, 8), lookup(0, Some(10), 9, 10)];
        assert!(with(&back, true) && !with(&back, false));
        assert!(!with(&[lookup(0, Some(10), 7, 8), lookup(1, Some(10), 9, 10)], true), "both names");
        assert!(!with(&[lookup(0, Some(10), 7, 8), lookup(0, None, 9, 10)], true), "back and gone again");
        let confirmed = [create(0, 10, 1, 2), rename(Ret::Done, 3, 4), lookup(0, Some(10), 5, 6)];
        assert!(!verdict_with(&confirmed, true), "a confirmed rename is never undone");
    }

    #[test]
    fn a_path_through_a_directory_renamed_before_is_an_error() {
        let mkdir = Op::Create { dir: BASE, name: 0, kind: FileKind::Directory, exclusive: true };
        let made = event(mkdir, Ret::Entry { id: 20, kind: FileKind::Directory, created: true }, 1, 2);
        let file = Op::Create { dir: 20, name: 3, kind: FileKind::File, exclusive: true };
        let filled = event(file, Ret::Entry { id: 21, kind: FileKind::File, created: true }, 3, 4);
        let resolve = |path: Vec<u8>, invoked, returned| {
            event(Op::Resolve { path }, Ret::Entry { id: 21, kind: FileKind::File, created: false }, invoked, returned)
        };
        let begin = [made, filled, rename(Ret::Done, 5, 8)];
        let with = |last: Event| verdict(&[begin.as_slice(), &[last]].concat());
        assert!(with(resolve(vec![0, 3], 6, 7)));
        assert!(with(resolve(vec![0, 3], 7, 12)));
        assert!(!with(resolve(vec![0, 3], 9, 12)));
        assert!(with(resolve(vec![1, 3], 9, 12)));
    }
}
