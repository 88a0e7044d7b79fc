//! Copying by processes on several nodes.
//!
//! It knows the two tasks of such a process, to copy a part of a file and to read a part back; that another node reads back than
//! the one that has written; and that a file begins anew when its node is lost. It does not know how processes are started and
//! spoken to: that is behind [`Nodes`].
//!
//! A process on another node opens files that exist, and makes, renames and removes none. So a lost one can do no harm: the
//! command removes the temporary name of its file, and copies the file anew under another one. Later writes of the lost process
//! go into a file without a name.

use super::prove::{Began, sums_of};
use super::survey::at;
use super::{Stage, parent};
use crate::Watch;
use crate::tree::{Meta, Print, ReadBack, Source, Spot, Xattr, beside, join};
use crate::workers::{Ends, PART_BYTES};
use aze_io::sync::Mutex;
use aze_io::threads;
use aze_proto::attr::FileKind;
use aze_receipt::{CHUNK_BYTES, Sums};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Random bytes of the file by which nodes know that they see the same destination.
const PROBE_BYTES: usize = 32;

/// A part of a file, for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The path of the source.
    pub from: Vec<u8>,
    /// What the source must be: its print, of a file of a volume its inode number alone.
    pub from_print: Print,
    /// The path that the copy shall have.
    pub to: Vec<u8>,
    /// The name that it has until then, in the same directory.
    pub hidden: Vec<u8>,
    /// The inode number of the copy.
    pub to_inode: u64,
    /// Length of the file.
    pub size: u64,
    /// Whether it may have holes.
    pub is_sparse: bool,
    /// The bytes meant. They begin at a multiple of 4 MiB.
    pub range: Range<u64>,
}

/// What a node has copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The bytes have these sums, and are durable.
    Sums(Sums),
    /// The source is another file now than it was.
    Changed,
}

/// A file that each node must see, so that none copies to another place of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The path of a file of the source, and its print; of a volume its inode number alone.
    pub from: (Vec<u8>, Print),
    /// The path of a file at the destination.
    pub to: Vec<u8>,
    /// Its inode number.
    pub inode: u64,
    /// Its contents.
    pub contents: Vec<u8>,
}

/// What a node has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Its name.
    pub node: String,
    /// Bytes that it has copied.
    pub copied_bytes: u64,
    /// Bytes that it has read back.
    pub read_back_bytes: u64,
    /// Why it was given up.
    pub lost: Option<String>,
}

/// Processes on nodes that copy and read back. Many threads give them work; each call waits until it is done, or its node is
/// lost.
pub trait Nodes: Send + Sync {
    /// Their names.
    fn names(&self) -> Vec<String>;
    /// How many parts are at work at the same time, on all nodes.
    fn jobs(&self) -> usize;
    /// Starts a process on each node, which looks at the probe. `false` if none was reached, and the caller is to copy itself.
    ///
    /// # Errors
    /// [`Exit::Caller`] if a node sees another file than the probe, or is not reached and was named.
    fn start(&self, probe: &Probe, watch: &Arc<dyn Watch>) -> Outcome<bool>;
    /// Has a part copied; by which node, and what came of it. `None` if the node that was at it is lost, or none is left.
    fn copy(&self, part: &Part) -> Outcome<Option<(usize, Copied)>>;
    /// Has a part read back, by another node than `writer` if there is one, and tells from where, and whether by another one.
    /// `None` if no node is left.
    fn read_back(&self, part: &Part, writer: usize) -> Outcome<Option<(Sums, ReadBack, bool)>>;
    /// Whether no node is left.
    fn are_gone(&self) -> bool;
    /// Ends the processes, and tells what they have done.
    fn end(&self) -> Vec<Share>;
}

/// The nodes of one attempt.
pub struct Crew {
    /// Gives them work.
    pub nodes: Arc<dyn Nodes>,
    /// Threads that may be started beside those that copy, to have large files read back.
    spare: AtomicUsize,
}

impl Crew {
    /// Of nodes that are started later.
    pub fn new(nodes: Arc<dyn Nodes>) -> Crew {
        let spare = nodes.jobs().into();
        Crew { nodes, spare }
    }

    /// Takes up to `wanted` of the threads that may be started.
    fn take(&self, wanted: usize) -> usize {
        let rest = |spare: usize| Some(spare - wanted.min(spare));
        let before = self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        before.unwrap_or_default().min(wanted)
    }

    fn give_back(&self, taken: usize) {
        self.spare.fetch_add(taken, Ordering::Relaxed);
    }
}

impl Stage<'_> {
    /// Starts the nodes, and makes sure that all of them mean the same places.
    pub(super) fn start_nodes(&mut self) -> Outcome<()> {
        let Some(crew) = self.proof.crew.clone() else { return Ok(()) };
        // The one that has rested for longest will hardly change before all nodes have looked at it.
        let files = self.survey.objects.iter().filter(|(_, meta)| meta.kind == FileKind::File);
        let Some((path, _)) = files.min_by_key(|(_, meta)| meta.ctime) else { return Ok(()) };
        let from = at(&self.order.from, path);
        let print = print_in(&from, &from.must_stat(false)?);
        let mut above = parent(&self.to.path);
        if self.to.stat(false)?.is_some_and(|meta| meta.kind == FileKind::Directory) {
            above = self.to.path.clone();
        }
        let hidden = self.proof.hidden();
        let to = Spot { tree: self.to.tree.clone(), path: join(&above, &hidden) };
        let mut contents = vec![0; PROBE_BYTES];
        threads::fill_random(&mut contents);
        // A call that fails may have made it all the same.
        self.has_left_names = true;
        let file = to.tree.create_as(&to.path, 0o600, &hidden)?;
        let started = file.write_at(0, &contents).and_then(|()| file.store()).and_then(|()| {
            let inode = to.must_stat(false)?.identity.1;
            let probe = Probe { from: (from.path.clone(), print), to: to.path.clone(), inode, contents };
            crew.nodes.start(&probe, &self.watch)
        });
        file.abandon();
        // After an attempt that has ended well no other one looks for its name, nor after one without a state.
        let is_gone = to.tree.sync_dir(&above).and_then(|()| Ok(to.tree.stat(&to.path, false)?.is_none()));
        self.has_left_names = !matches!(is_gone, Ok(true));
        is_gone?;
        if !started? && let Some(proof) = Arc::get_mut(&mut self.proof) {
            proof.crew = None;
        }
        Ok(())
    }

    /// Whether there are nodes that are to copy, and none of them is left.
    pub(super) fn are_nodes_gone(&self) -> bool {
        self.proof.crew.as_ref().is_some_and(|crew| crew.nodes.are_gone())
    }
}

/// Why a file has to be begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anew {
    /// A node that wrote it was lost.
    Lost,
    /// It is another file now than it was.
    Changed,
}

/// The copy of one file by several nodes.
pub struct Spread {
    crew: Arc<Crew>,
    /// All of the file.
    whole: Part,
    /// By the first bytes of parts, the nodes that have copied them.
    writers: Mutex<BTreeMap<u64, usize>>,
    anew: Mutex<Option<Anew>>,
}

impl Spread {
    /// Of a file of these attributes, whose copy was made under the name `hidden`.
    pub fn new(crew: &Arc<Crew>, from: &Spot, meta: &Meta, to: &Spot, hidden: &[u8]) -> Outcome<Spread> {
        let to_inode = to.tree.stat(&beside(&to.path, hidden), false)?.map_or(0, |meta| meta.identity.1);
        let whole = Part {
            from: from.path.clone(),
            from_print: print_in(from, meta),
            to: to.path.clone(),
            hidden: hidden.to_vec(),
            to_inode,
            size: meta.size,
            is_sparse: meta.is_sparse,
            range: 0..meta.size,
        };
        Ok(Spread { crew: crew.clone(), whole, writers: Mutex::default(), anew: Mutex::default() })
    }

    /// Has a range copied, as far as the file goes, and gives its sums; only some if the file is to be begun anew.
    pub fn copy(&self, range: Range<u64>) -> Outcome<Sums> {
        let (mut start, end, mut all) = (range.start, range.end.min(self.whole.size), Sums::default());
        // More than one part, if the file has become longer since it was found.
        while start < end && self.anew().is_none() {
            let range = start..end.min(start + PART_BYTES);
            match self.crew.nodes.copy(&Part { range, ..self.whole.clone() })? {
                Some((by, Copied::Sums(sums))) => {
                    self.writers.lock().insert(start, by);
                    all.chunks.extend(sums.chunks);
                }
                Some((_, Copied::Changed)) => drop(self.anew.lock().get_or_insert(Anew::Changed)),
                None => *self.anew.lock() = Some(Anew::Lost),
            }
            start += PART_BYTES;
        }
        Ok(all)
    }

    /// Whether the file has to be begun anew. To be asked when all its parts are done.
    pub fn anew(&self) -> Option<Anew> {
        *self.anew.lock()
    }

    /// Whether no node has copied any of it, as of an empty file.
    pub fn is_untouched(&self) -> bool {
        self.writers.lock().is_empty()
    }

    /// Has all of the copy read back, and tells how the weakest part of it was. `None` if no node is left.
    pub fn read_back(&self, watch: &dyn Watch) -> Outcome<Option<(Sums, ReadBack)>> {
        let parts: Vec<(u64, usize)> = self.writers.lock().iter().map(|(start, by)| (*start, *by)).collect();
        let (sums, hows) = (Mutex::new(Sums::default()), Mutex::new(Vec::new()));
        let (next, nodes) = (AtomicUsize::new(0), &self.crew.nodes);
        let read = || -> Outcome<()> {
            while let Some((start, writer)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                let range = *start..self.whole.size.min(start + PART_BYTES);
                let bytes = range.end - range.start;
                let part = Part { range, ..self.whole.clone() };
                let Some((found, how, is_other)) = nodes.read_back(&part, *writer)? else { return Ok(()) };
                sums.lock().chunks.extend(found.chunks);
                hows.lock().push(if is_other && how != ReadBack::Servers { ReadBack::OtherNode } else { how });
                watch.copied(bytes);
            }
            Ok(())
        };
        let more = self.crew.take(parts.len().saturating_sub(1));
        let failed = Mutex::new(None);
        threads::together(1 + more, || {
            if let Err(trouble) = read() {
                failed.lock().get_or_insert(trouble);
            }
        });
        self.crew.give_back(more);
        failed.into_inner().map_or(Ok(()), Err)?;
        let hows = hows.into_inner();
        if hows.len() < parts.len() {
            return Ok(None);
        }
        Ok(weakest(&hows).map(|how| (sums.into_inner(), how)))
    }
}

/// How a file was read back, of the ways of its parts.
fn weakest(hows: &[ReadBack]) -> Option<ReadBack> {
    // What no other node has read says how it was read here.
    let order = [ReadBack::Dropped, ReadBack::Direct, ReadBack::Memory, ReadBack::OtherNode, ReadBack::Servers];
    order.into_iter().find(|how| hows.contains(how))
}

/// The print of a source. Of a volume, whose clients may know times at different moments, the inode number.
pub fn print_in(from: &Spot, meta: &Meta) -> Print {
    if from.tree.is_volume() { [meta.identity.1, 0, 0, 0] } else { meta.print() }
}

/// Copies a part, on the node that is to do it.
///
/// # Errors
/// One of the files cannot be read or written, or the copy is another file there than the command has made.
pub fn copy_part(from: &Spot, to: &Spot, part: &Part, watch: &dyn Watch, memory: &mut Vec<u8>) -> Outcome<Copied> {
    let source = from.tree.open_fresh(&from.path)?;
    let mut meta = source.meta()?;
    if print_in(from, &meta) != part.from_print {
        return Ok(Copied::Changed);
    }
    refuse_other(to, part)?;
    let sink = to.tree.reopen_as(&to.path, &part.hidden)?;
    (meta.size, meta.is_sparse) = (part.size, part.is_sparse);
    let source = Arc::new(Whole { inner: source, was_short: AtomicBool::new(false) });
    let ends = Ends { source: Box::new(source.clone()), sink, began: None };
    let began = Began::of_part(meta, part.range.clone());
    began.copy(&ends, part.range.clone(), watch, memory)?;
    ends.sink.store()?;
    // The command's mark is of the file as its own client knows it.
    if source.was_short.load(Ordering::Relaxed) {
        return Ok(Copied::Changed);
    }
    Ok(Copied::Sums(began.into_sums()))
}

/// Reads a part of a copy back from its storage, on the node that is to do it.
///
/// # Errors
/// It cannot be read, or is another file there.
pub fn reread_part(to: &Spot, part: &Part, watch: &dyn Watch) -> Outcome<(Sums, ReadBack)> {
    refuse_other(to, part)?;
    let (stored, how) = to.tree.reread_as(&to.path, &part.hidden)?;
    let window = Window { inner: stored, start: part.range.start, len: part.range.end - part.range.start };
    let found = sums_of(&window, window.len, part.is_sparse, watch)?;
    let first = part.range.start / CHUNK_BYTES;
    let chunks = found.chunks.into_iter().map(|(chunk, hash)| (first + chunk, hash)).collect();
    Ok((Sums { chunks }, how))
}

/// Looks for the probe on a node.
///
/// # Errors
/// [`Exit::Caller`] if it has other files there.
pub fn look_for(probe: &Probe, from: &Spot, to: &Spot) -> Outcome<()> {
    let other = |what: &str, shown: String, found: &str| {
        let text = format!("{shown}: the {what} is another place here than where the command runs: {found}");
        Err(Trouble::new(Exit::Caller, text))
    };
    match to.stat(false)? {
        None => return other("destination", to.shown(), "the file is missing that the command has made there"),
        Some(meta) if meta.identity.1 != probe.inode => {
            return other("destination", to.shown(), "its file has another inode number");
        }
        Some(_) => {}
    }
    let source = to.tree.open_fresh(&to.path)?;
    let mut found = vec![0; probe.contents.len() + 1];
    let count = source.read_at(0, &mut found)?;
    if found[..count] != probe.contents[..] {
        return other("destination", to.shown(), "its file has other contents");
    }
    match from.stat(false)? {
        Some(meta) if print_in(from, &meta) == probe.from.1 => Ok(()),
        Some(_) => other("source", from.shown(), "the file has another inode number, length or time"),
        None => other("source", from.shown(), "there is no such file"),
    }
}

/// A worker writes to the file that the command has made, and to no other one of its name.
fn refuse_other(to: &Spot, part: &Part) -> Outcome<()> {
    match to.tree.stat(&beside(&to.path, &part.hidden), false)? {
        Some(meta) if meta.identity.1 == part.to_inode => Ok(()),
        found => {
            let is_there = "it is another file here than the command has made";
            let what = if found.is_some() { is_there } else { "its unfinished copy is missing here" };
            Err(Trouble::new(Exit::Again, format!("write {}: {what}", to.shown())))
        }
    }
}

/// A source that notes whether a read met the end of the file.
struct Whole {
    inner: Box<dyn Source>,
    was_short: AtomicBool,
}

impl Source for Arc<Whole> {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        self.inner.xattrs()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let count = self.inner.read_at(offset, buffer)?;
        if count < buffer.len() {
            self.was_short.store(true, Ordering::Relaxed);
        }
        Ok(count)
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        self.inner.next_data(offset)
    }

    fn next_data_between_marks(&self, offset: u64) -> Outcome<Option<u64>> {
        self.inner.next_data_between_marks(offset)
    }

    fn meta(&self) -> Outcome<Meta> {
        self.inner.meta()
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        self.inner.mark()
    }
}

/// A part of a file, as if it were a file.
struct Window {
    inner: Box<dyn Source>,
    start: u64,
    len: u64,
}

impl Window {
    /// Of a place in the file, the place in the part.
    fn inside(&self, found: Option<u64>) -> Option<u64> {
        found.map(|at| at - self.start).filter(|at| *at < self.len)
    }
}

impl Source for Window {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        self.inner.xattrs()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        self.inner.read_at(self.start + offset, buffer)
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        Ok(self.inside(self.inner.next_data(self.start + offset)?))
    }

    fn next_data_between_marks(&self, offset: u64) -> Outcome<Option<u64>> {
        Ok(self.inside(self.inner.next_data_between_marks(self.start + offset)?))
    }

    fn meta(&self) -> Outcome<Meta> {
        self.inner.meta()
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        self.inner.mark()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_back_by_another_node_if_all_of_it_is() {
        use ReadBack::{Direct, Dropped, OtherNode, Servers};
        assert_eq!(weakest(&[OtherNode, OtherNode]), Some(OtherNode));
        assert_eq!(weakest(&[OtherNode, Direct]), Some(Direct));
        assert_eq!(weakest(&[Direct, Dropped, OtherNode]), Some(Dropped));
        assert_eq!(weakest(&[Servers]), Some(Servers));
        assert_eq!(weakest(&[]), None);
    }
}
