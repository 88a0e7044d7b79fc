//! Commands on several operands: requests of many operands are under way together, and names, messages and exit codes
//! come out as if one operand had been done after the other.
//!
//! It alone knows which operands may be under way together. An operand waits for an earlier one if one of the entries that
//! they change is the same, or is one that the other's path leads through, links included; and if its path leads
//! nowhere yet, since an earlier operand may be what makes it. Messages come in the operands' order.

use crate::exit::{Outcome, Trouble};
use crate::place::VolumePath;
use crate::session::{Session, Sessions};
use aze_client::Entries;
use aze_proto::error::Failure;
use aze_proto::ids::Ino;
use aze_proto::name::Name;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

/// Operands of one command that are under way at the same time; the others wait for these. More would not be faster
/// over a line of 100 ms, and are too many for the queues of a small server.
pub const OPERANDS_AT_ONCE: usize = 256;

type Entry = (Ino, Name);

/// The operands of a command, by volume: paths of one volume that follow each other are one run.
///
/// A path that is none, and a volume that cannot be connected to, is handed to `fail` when all before it is done.
pub fn by_volume(
    paths: &[OsString],
    sessions: &mut Sessions,
    mut run: impl FnMut(&Session, &[VolumePath]) -> Outcome<()>,
    mut fail: impl FnMut(Trouble),
) -> Outcome<()> {
    let parsed: Vec<Outcome<VolumePath>> = paths.iter().map(|path| VolumePath::parse(path)).collect();
    let volume = |path: &Outcome<VolumePath>| path.as_ref().ok().map(|path| path.volume.clone());
    for same in parsed.chunk_by(|one, other| one.is_ok() && volume(one) == volume(other)) {
        let mut paths = Vec::new();
        for path in same {
            // Each tells why, as if it were alone.
            match path.clone().and_then(|path| sessions.of(&path).map(|_| path)) {
                Ok(path) => paths.push(path),
                Err(trouble) => fail(trouble),
            }
        }
        if let Some(first) = paths.first() {
            run(&*sessions.of(first)?, &paths)?;
        }
    }
    Ok(())
}

/// Asks about each path, many at the same time; answers come in the order of the paths. For questions only: no answer
/// depends on another.
pub fn ask_each<T>(
    session: &Session,
    paths: &[VolumePath],
    ask: impl AsyncFn(&VolumePath) -> Outcome<T>,
    mut take: impl FnMut(&VolumePath, Outcome<T>) -> Outcome<()>,
) -> Outcome<()> {
    if paths.len() > 1 {
        session.runtime.block_on(walk_directories(session, paths.iter().map(|path| &*path.path)));
    }
    let asked = paths.iter().map(async |path| (path, ask(path).await));
    let mut answers = std::pin::pin!(stream::iter(asked).buffered(OPERANDS_AT_ONCE));
    while let Some((path, answer)) = session.runtime.block_on(answers.next()) {
        take(path, answer)?;
    }
    Ok(())
}

/// Changes something at each operand, as many at the same time as do not depend on each other. `entries` are the paths
/// whose last components are changed, `take` gets the outcomes in the operands' order.
pub fn change_each<O, T>(
    session: &Session,
    operands: &[O],
    entries: impl Fn(&O) -> Vec<Vec<u8>>,
    change: impl AsyncFn(&O) -> T,
    mut take: impl FnMut(&O, T),
) {
    let mut rest = operands;
    let mut width = OPERANDS_AT_ONCE;
    while !rest.is_empty() {
        let candidates = &rest[..width.min(rest.len())];
        let count = if candidates.len() == 1 {
            1
        } else {
            let paths: Vec<Vec<Vec<u8>>> = candidates.iter().map(&entries).collect();
            independent(&session.runtime.block_on(ways(session, &paths)))
        };
        let (now, later) = rest.split_at(count);
        let outcomes = session.runtime.block_on(join_all(now.iter().map(async |operand| change(operand).await)));
        now.iter().zip(outcomes).for_each(|(operand, outcome)| take(operand, outcome));
        // Ways that were found in vain cost requests: not many of them where each operand waits for the one before.
        width = if count == candidates.len() { OPERANDS_AT_ONCE } else { 2 * count };
        rest = later;
    }
}

/// The ways of all operands' paths.
async fn ways(session: &Session, operands: &[Vec<Vec<u8>>]) -> Vec<Result<Vec<Entries>, Failure>> {
    walk_directories(session, operands.iter().flatten().map(|path| &**path)).await;
    let ways = operands.iter().map(async |paths| {
        let found = paths.iter().map(|path| session.client.entries_of(&session.who, path));
        join_all(found).await.into_iter().collect()
    });
    join_all(ways).await
}

/// Has the client know the directories that paths lead through, those of a level together, so that each is asked for once.
async fn walk_directories(session: &Session, paths: impl Iterator<Item = &'_ [u8]>) {
    let mut levels: BTreeMap<usize, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for path in paths {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        for depth in 1..parts.len() {
            let above: Vec<u8> = parts[..depth].iter().flat_map(|part| [b"/", *part].concat()).collect();
            levels.entry(depth).or_default().insert([&above[..], b"/x"].concat());
        }
    }
    for level in levels.values() {
        // A path that leads nowhere is told of when it is used.
        let walks = level.iter().map(async |path| drop(session.client.entries_of(&session.who, path).await));
        stream::iter(walks).buffer_unordered(OPERANDS_AT_ONCE).collect::<Vec<()>>().await;
    }
}

/// How many of the first operands may be under way together; at least one.
fn independent(operands: &[Result<Vec<Entries>, Failure>]) -> usize {
    let mut changed: BTreeSet<&Entry> = BTreeSet::new();
    let mut passed: BTreeSet<&Entry> = BTreeSet::new();
    for (index, ways) in operands.iter().enumerate() {
        let Ok(ways) = ways else { return index.max(1) };
        let depends = |way: &Entries| {
            changed.contains(&way.entry)
                || passed.contains(&way.entry)
                || way.through.iter().any(|entry| changed.contains(entry))
        };
        if ways.iter().any(depends) {
            return index;
        }
        changed.extend(ways.iter().map(|way| &way.entry));
        passed.extend(ways.iter().flat_map(|way| &way.through));
    }
    operands.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::error::Code;

    fn entry(parent: u64, name: &str) -> Entry {
        (Ino(parent), Name::new(name.as_bytes()).expect("a name"))
    }

    fn way(through: &[(u64, &str)], last: (u64, &str)) -> Entries {
        Entries { through: through.iter().map(|(dir, name)| entry(*dir, name)).collect(), entry: entry(last.0, last.1) }
    }

    #[test]
    fn operands_wait_for_those_that_they_depend_on() {
        let (a, b) = (|| Ok(vec![way(&[], (1, "a"))]), || Ok(vec![way(&[], (1, "b"))]));
        let in_a = || Ok(vec![way(&[(1, "a")], (2, "c"))]);
        let nowhere = || Err(Failure::from(Code::NotFound));
        assert_eq!(independent(&[a(), b(), Ok(vec![way(&[], (2, "a"))])]), 3);
        assert_eq!(independent(&[b(), a(), a()]), 2, "the same name twice");
        assert_eq!(independent(&[a(), in_a()]), 1, "a name in what an earlier operand changes");
        assert_eq!(independent(&[in_a(), a()]), 1, "a name that an earlier operand's path leads through");
        assert_eq!(independent(&[in_a(), Ok(vec![way(&[(1, "a")], (2, "d"))])]), 2);
        assert_eq!(independent(&[a(), nowhere(), b()]), 1);
        assert_eq!(independent(&[nowhere(), a()]), 1, "the first waits for nothing");
        let moved = |name| Ok(vec![way(&[], (1, name)), way(&[(1, "d")], (3, name))]);
        assert_eq!(independent(&[moved("a"), moved("b"), moved("d")]), 2, "the target's directory is moved");
    }
}
