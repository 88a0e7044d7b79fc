//! The threads that copy files, and the queue that feeds them.

use crate::Watch;
use crate::stage::prove::{Began, Proof};
use crate::tree::{Meta, Sink, Source, Spot, Xattr};
use aze_io::threads::{self, Receiver, Sender, Thread};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Bytes of a large file that one worker copies before another may go on: large enough that
/// changing over costs nothing, small enough that a few gigabytes keep all workers busy.
pub const PART_BYTES: u64 = 64 << 20;

/// Bytes read and then written at once: several chunks, so that several servers work for one thread.
const BLOCK_BYTES: usize = 4 << 20;

/// Jobs that wait in the queue; the walk waits when it is full.
const QUEUE_JOBS_MAX: usize = 1024;

/// What all threads of one copy share.
pub struct Plan {
    /// Keep owner, times, extended attributes and access control lists.
    pub preserve: bool,
    /// Read both sides again and compare.
    pub verify: bool,
    /// Hears how it goes.
    pub watch: Arc<dyn Watch>,
    /// Each copy is proven before it gets its name, and noted here.
    pub proof: Option<Arc<Proof>>,
}

/// What one worker does at a time.
pub enum Job {
    /// Copies a part of a file.
    Part {
        /// The file.
        transfer: Arc<Transfer>,
        /// Which part, counted from 0.
        part: u64,
    },
    /// Copies a symlink.
    Link {
        /// The link.
        from: Spot,
        /// Its copy.
        to: Spot,
        /// The attributes that it was found with.
        meta: Meta,
    },
}

/// The threads.
pub struct Workers {
    queue: Sender<Job>,
    threads: Vec<Thread>,
}

impl Workers {
    /// Starts `count` threads.
    pub fn start(count: usize, plan: &Arc<Plan>) -> Outcome<Workers> {
        let (queue, jobs) = threads::queue(QUEUE_JOBS_MAX);
        let jobs = Arc::new(jobs);
        let start = |_| {
            let (plan, jobs) = (plan.clone(), jobs.clone());
            threads::start("aze-copy", move || work(&plan, &jobs))
        };
        let threads = (0..count).map(start).collect::<std::io::Result<_>>();
        let threads = threads.map_err(|error| Trouble::local(format!("start {count} threads"), &error))?;
        Ok(Workers { queue, threads })
    }

    /// Queues a job; blocks while the queue is full.
    pub fn put(&self, job: Job) -> Outcome<()> {
        self.queue.send(job).map_err(|_| Trouble::new(Exit::Fatal, "the threads that copy have ended: a defect in aze"))
    }

    /// Waits until all jobs are done.
    ///
    /// # Errors
    /// A thread has panicked: no summary may follow as if nothing had happened.
    pub fn finish(self) -> Outcome<()> {
        drop(self.queue);
        let ended = self.threads.into_iter().try_for_each(Thread::join);
        ended.map_err(|_| Trouble::new(Exit::Fatal, "a thread that copies has panicked: a defect in aze"))
    }
}

fn work(plan: &Plan, jobs: &Receiver<Job>) {
    let mut blocks = Blocks::default();
    while let Some(job) = jobs.recv() {
        match job {
            Job::Part { transfer, part } => transfer.copy_part(part, plan, &mut blocks),
            Job::Link { .. } if plan.watch.is_over() => {}
            Job::Link { from, to, meta } => {
                let copied = match &plan.proof {
                    Some(proof) => proof.link(&from, &to),
                    None => copy_link(&from, &to, &meta, plan.preserve),
                };
                tell(plan, copied, &from, &to);
            }
        }
        plan.watch.turn();
    }
}

fn copy_link(from: &Spot, to: &Spot, meta: &Meta, preserve: bool) -> Outcome<()> {
    to.tree.make_link(&to.path, &from.tree.read_link(&from.path)?)?;
    if preserve { to.tree.set_link(&to.path, meta) } else { Ok(()) }
}

fn tell(plan: &Plan, copied: Outcome<()>, from: &Spot, to: &Spot) {
    match copied {
        Ok(()) => plan.watch.file(from, to),
        Err(trouble) => plan.watch.failed(&trouble),
    }
}

/// Memory of one worker.
#[derive(Default)]
pub struct Blocks {
    pub one: Vec<u8>,
    pub other: Vec<u8>,
}

/// The copy of one file, which several workers may share.
pub struct Transfer {
    pub from: Spot,
    pub to: Spot,
    meta: Meta,
    open: OnceLock<Outcome<Ends>>,
    failed: Mutex<Option<Trouble>>,
    parts_left: AtomicU64,
}

/// Both sides of a copy, open.
pub struct Ends {
    /// The file that is read.
    pub source: Box<dyn Source>,
    /// The copy that is written.
    pub sink: Box<dyn Sink>,
    /// The source at the beginning of the copy, and the sums of the bytes read since; of a copy with proof only.
    pub began: Option<Began>,
}

impl Transfer {
    /// Of the file `from`, which was found to be as `meta` says.
    pub fn new(from: Spot, to: Spot, meta: Meta) -> Transfer {
        let mut transfer =
            Transfer { from, to, meta, open: OnceLock::new(), failed: Mutex::default(), parts_left: AtomicU64::new(0) };
        *transfer.parts_left.get_mut() = transfer.parts();
        transfer
    }

    /// How many parts there are to copy; at least one.
    pub fn parts(&self) -> u64 {
        self.meta.size.div_ceil(PART_BYTES).max(1)
    }

    /// Copies one part; the worker that copies the last one finishes the file.
    fn copy_part(&self, part: u64, plan: &Plan, blocks: &mut Blocks) {
        let has_failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if !has_failed() && !plan.watch.is_over() {
            let copied = self.ends(plan).and_then(|ends| self.copy_range(ends, part, plan, blocks));
            if let Err(trouble) = copied {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(trouble);
            }
        }
        if self.parts_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            if plan.watch.is_over() {
                if let Some(Ok(ends)) = self.open.get() {
                    ends.sink.abandon();
                }
                return;
            }
            let finished = self.finish(plan, blocks);
            if plan.watch.is_over() && finished.is_err() {
                return;
            }
            match finished {
                Ok(true) => plan.watch.file(&self.from, &self.to),
                // It has changed meanwhile, and is copied once more.
                Ok(false) => {}
                Err(trouble) => plan.watch.failed(&trouble.during(self.from.shown())),
            }
        }
    }

    fn ends(&self, plan: &Plan) -> Outcome<&Ends> {
        let open = || {
            if let Some(proof) = &plan.proof {
                return proof.open(&self.from, &self.to);
            }
            let source = self.from.tree.open(&self.from.path)?;
            let sink = self.to.tree.create(&self.to.path, self.meta.mode)?;
            if self.meta.is_sparse {
                // Holes at its end, too, and all that is not written.
                sink.set_size(self.meta.size).inspect_err(|_| sink.abandon())?;
            }
            Ok(Ends { source, sink, began: None })
        };
        self.open.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    /// The last part goes on to wherever the file ends by now.
    fn copy_range(&self, ends: &Ends, part: u64, plan: &Plan, blocks: &mut Blocks) -> Outcome<()> {
        let mut offset = part * PART_BYTES;
        let end = if part + 1 == self.parts() { u64::MAX } else { offset + PART_BYTES };
        if let Some(began) = &ends.began {
            if let Some(spread) = &began.spread {
                began.add(spread.copy(offset..end)?);
                return Ok(());
            }
            return began.copy(ends, offset..end, plan.watch.as_ref(), &mut blocks.one);
        }
        while offset < end && !plan.watch.is_over() {
            if self.meta.is_sparse {
                match ends.source.next_data(offset)?.filter(|at| *at < end) {
                    Some(at) => offset = at,
                    None => return Ok(()),
                }
            }
            let expected =
                self.meta.size.saturating_sub(offset).saturating_add(1).min(BLOCK_BYTES as u64).min(end - offset);
            let block = room(&mut blocks.one, expected as usize);
            let count = ends.source.read_at(offset, block)?;
            if count > 0 {
                ends.sink.write_at(offset, &block[..count])?;
                plan.watch.copied(count as u64);
                offset += count as u64;
            }
            if (count as u64) < expected {
                break;
            }
        }
        Ok(())
    }

    /// Gives the copy the extended attributes of its source. One that it cannot have is told, and the copy
    /// goes on.
    fn keep_xattrs(&self, ends: &Ends, plan: &Plan) -> Outcome<()> {
        for xattr in ends.source.xattrs()? {
            warn(plan, &xattr, ends.sink.set_xattr(&xattr));
        }
        Ok(())
    }

    /// `false` if the file is to be copied once more.
    fn finish(&self, plan: &Plan, blocks: &mut Blocks) -> Outcome<bool> {
        let ends = self.ends(plan)?;
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(proof), None) = (&plan.proof, &failed) {
            return proof.finish(self, ends, plan).inspect_err(|_| ends.sink.abandon());
        }
        let compared = match failed {
            Some(trouble) => Err(trouble),
            None if plan.verify => self.compare(ends, plan, blocks),
            None => Ok(()),
        };
        let kept = compared.and_then(|()| if plan.preserve { self.keep_xattrs(ends, plan) } else { Ok(()) });
        let finished = kept.and_then(|()| ends.sink.finish(&self.meta, plan.preserve));
        finished.inspect_err(|_| ends.sink.abandon()).map(|()| true)
    }

    /// Reads both sides again, before the copy gets its name.
    fn compare(&self, ends: &Ends, plan: &Plan, blocks: &mut Blocks) -> Outcome<()> {
        let copy = ends.sink.reread()?;
        let mut offset = 0;
        loop {
            if self.meta.is_sparse {
                // Where both have holes both are zeros.
                let next = [ends.source.next_data(offset)?, copy.next_data(offset)?];
                match next.into_iter().flatten().min() {
                    Some(at) => offset = at,
                    None => return Ok(()),
                }
            }
            let one = room(&mut blocks.one, BLOCK_BYTES);
            let other = room(&mut blocks.other, BLOCK_BYTES);
            let count = ends.source.read_at(offset, one)?;
            let copied = copy.read_at(offset, other)?;
            if one[..count] != other[..copied] {
                let same = one[..count].iter().zip(&other[..copied]).take_while(|(a, b)| a == b).count();
                let (place, to) = (offset + same as u64, self.to.shown());
                return Err(Trouble::new(
                    Exit::Fatal,
                    format!("verify {to}: differs from its source at byte {place}: copy it again"),
                ));
            }
            if count < BLOCK_BYTES {
                return Ok(());
            }
            if plan.watch.is_over() {
                return Err(Trouble::new(Exit::Again, "the command was asked to end"));
            }
            offset += count as u64;
        }
    }
}

/// Tells of an extended attribute that a copy has not got.
pub fn warn(plan: &Plan, (name, _): &Xattr, set: Outcome<()>) {
    if let Err(trouble) = set {
        let name = String::from_utf8_lossy(name);
        plan.watch.lacks(&trouble.during(format_args!("without extended attribute {name}")));
    }
}

/// The first `len` bytes of `memory`, which grows as needed.
pub fn room(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if memory.len() < len {
        memory.resize(len, 0);
    }
    &mut memory[..len]
}

/// Alignment of memory into which every device can read past the page cache.
pub const ALIGNED_BYTES: usize = 4096;

/// As [`room`], at an address that is aligned.
pub fn aligned_room(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    let all = room(memory, len + ALIGNED_BYTES);
    let at = all.as_ptr().align_offset(ALIGNED_BYTES).min(ALIGNED_BYTES);
    &mut all[at..at + len]
}
