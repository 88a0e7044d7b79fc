//! A process that does the work: each rank of it is a thread that follows the coordinator's orders until
//! they end. If they end while one does something, the coordinator is gone and no rank must go on.

use super::ground::{self, Ground};
use super::layout::{self, EASY_TRANSFER_BYTES, HARD_FILE, HARD_RECORD_BYTES, Names, Phase, SMALL_FILE_BYTES};
use super::link::{self, Link, Order, Said, Setup};
use super::pattern::Pattern;
use super::volume::Crowd;
use crate::program::Program;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Share of the bytes that touch memory in small files; the rest goes through large ones.
const WARM_SMALL_SHARE: u64 = 16;
/// Length of a large file that touches memory.
const WARM_FILE_BYTES: u64 = 512 << 20;

/// One rank of this process: its orders, how many of them it has not answered yet, and its thread.
struct Worker {
    orders: Sender<String>,
    owed: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

/// Runs `aze bench io500-rank`: one rank, or several that share the process and its session. What goes
/// wrong is told to the coordinator, which tells the user.
pub fn run(program: &'static dyn Program) -> Outcome<Exit> {
    let crowd = Arc::new(Crowd::default());
    let mut workers: BTreeMap<u32, Worker> = BTreeMap::new();
    let mut next = link::lines(io::stdin());
    while let Some(line) = next() {
        let Some(rank) = link::rank_of(&line) else { continue };
        let worker = workers.entry(rank).or_insert_with(|| start(rank, program, &crowd));
        worker.owed.fetch_add(1, Ordering::SeqCst);
        // One that has failed has said so, and is still owing.
        let _ = worker.orders.send(line);
    }
    if workers.values().any(|worker| worker.owed.load(Ordering::SeqCst) > 0) {
        return Ok(Exit::Again);
    }
    let threads: Vec<JoinHandle<()>> = workers.into_values().map(|worker| worker.thread).collect();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    crowd.end();
    Ok(Exit::Done)
}

fn start(rank: u32, program: &'static dyn Program, crowd: &Arc<Crowd>) -> Worker {
    let (orders, heard) = channel();
    let owed = Arc::new(AtomicU32::new(0));
    let (owing, crowd) = (owed.clone(), crowd.clone());
    let thread = thread::spawn(move || {
        let _all = EndsAll;
        let mut link = Link::new(rank, move || heard.recv().ok(), io::stdout());
        if let Err(trouble) = follow(&mut link, program, &owing, &crowd) {
            // The coordinator must not take this for an answer.
            owing.fetch_add(1, Ordering::SeqCst);
            // A coordinator that has gone does not want to know.
            let _ = link.say(&Said::Failed { exit: trouble.exit as u8, text: trouble.text });
        }
    });
    Worker { orders, owed, thread }
}

/// A rank that panics takes the others with it, which the coordinator notices.
struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(Exit::Fatal as i32);
        }
    }
}

/// Obeys until the orders end; `owed` counts orders that have come and are not answered yet.
fn follow(link: &mut Link, program: &dyn Program, owed: &AtomicU32, crowd: &Crowd) -> Outcome<()> {
    let Some(first) = link.hear()? else { return Ok(()) };
    let Order::Setup(setup) = first else { return Err(out_of_turn(&first)) };
    let ground = ground::open_shared(program, &setup.place, &setup.base, crowd)?;
    let mut rank = Rank {
        ground: ground.as_ref(),
        easy: Pattern::new(setup.run, EASY_TRANSFER_BYTES),
        hard: Pattern::new(setup.run, HARD_RECORD_BYTES),
        small: Pattern::new(setup.run, SMALL_FILE_BYTES),
        buffer: vec![0; EASY_TRANSFER_BYTES],
        names: Names::default(),
        setup,
    };
    owed.store(0, Ordering::SeqCst);
    link.say(&Said::Done)?;
    while let Some(order) = link.hear()? {
        let said = rank.obey(order, link)?;
        // Before the answer: the coordinator may end this process when it has that.
        owed.store(0, Ordering::SeqCst);
        link.say(&said)?;
    }
    ground.end();
    Ok(())
}

fn out_of_turn(order: &Order) -> Trouble {
    Trouble::new(Exit::Fatal, format!("bench io500-rank: {order:?} was not expected: this command is started by io500"))
}

struct Rank<'a> {
    setup: Setup,
    ground: &'a dyn Ground,
    easy: Pattern,
    hard: Pattern,
    small: Pattern,
    buffer: Vec<u8>,
    names: Names,
}

impl Rank<'_> {
    fn obey(&mut self, order: Order, link: &mut Link) -> Outcome<Said> {
        match order {
            Order::Warm(bytes) => self.warm(bytes)?,
            Order::Write { phase, count_max, exactly } => {
                let stonewall = Duration::from_secs_f64(self.setup.stonewall_s);
                self.write(phase, count_max, if exactly { Duration::MAX } else { stonewall }, link)?;
            }
            Order::Take { phase, count } => self.take(phase, count)?,
            Order::Walk { dir, since_ns } => return Ok(Said::Walked(self.ground.walk(&dir, since_ns)?)),
            Order::Setup(_) | Order::UpTo(_) => return Err(out_of_turn(&order)),
        }
        Ok(Said::Done)
    }

    /// Writes as much as asked for, in large and in small files, and removes it.
    fn warm(&mut self, bytes: u64) -> Outcome<()> {
        let rank = self.setup.rank;
        let small = bytes / WARM_SMALL_SHARE / SMALL_FILE_BYTES as u64;
        let large = bytes.div_ceil(WARM_FILE_BYTES);
        let mut left = (bytes - bytes / WARM_SMALL_SHARE) / EASY_TRANSFER_BYTES as u64;
        for index in 0..large {
            let file = self.ground.open(self.names.warm(rank, index), true)?;
            let count = left.min(WARM_FILE_BYTES / EASY_TRANSFER_BYTES as u64);
            for transfer in 0..count {
                let offset = transfer * EASY_TRANSFER_BYTES as u64;
                file.write_at(offset, self.easy.of(rank, offset))?;
            }
            file.finish()?;
            left -= count;
        }
        for index in 0..small {
            self.ground.create(self.names.warm(rank, large + index), self.small.of(rank, index))?;
        }
        (0..large + small).try_for_each(|index| self.ground.remove(self.names.warm(rank, index)))
    }

    fn write(&mut self, phase: Phase, count_max: u64, stonewall: Duration, link: &mut Link) -> Outcome<()> {
        let (rank, procs, ground) = (self.setup.rank, self.setup.procs, self.ground);
        let (names, small) = (&mut self.names, &mut self.small);
        match phase {
            Phase::IorEasyWrite => {
                let file = ground.open(names.easy(rank), true)?;
                until_stonewall(stonewall, count_max, link, |index| {
                    let offset = index * EASY_TRANSFER_BYTES as u64;
                    file.write_at(offset, self.easy.of(rank, offset))
                })?;
                file.finish()
            }
            Phase::IorHardWrite => {
                let file = ground.open(HARD_FILE, true)?;
                until_stonewall(stonewall, count_max, link, |index| {
                    let offset = layout::hard_offset(index, rank, procs);
                    file.write_at(offset, self.hard.of(rank, offset))
                })?;
                file.finish()
            }
            Phase::MdtestEasyWrite => {
                until_stonewall(stonewall, count_max, link, |index| {
                    ground.create(names.file(phase, rank, index), &[])
                })?;
                ground.sync()
            }
            _ => {
                until_stonewall(stonewall, count_max, link, |index| {
                    ground.create(names.file(phase, rank, index), small.of(rank, index))
                })?;
                ground.sync()
            }
        }
    }

    /// Works through what another rank has written.
    fn take(&mut self, phase: Phase, count: u64) -> Outcome<()> {
        let owner = phase.owner(self.setup.rank, self.setup.procs, self.setup.procs_on_node);
        let (procs, ground) = (self.setup.procs, self.ground);
        match phase {
            Phase::IorEasyRead => {
                let path = self.names.easy(owner);
                let offsets = (0..count).map(|index| index * EASY_TRANSFER_BYTES as u64);
                read_all(ground, path, &mut self.easy, owner, &mut self.buffer, offsets)
            }
            Phase::IorHardRead => {
                let offsets = (0..count).map(|index| layout::hard_offset(index, owner, procs));
                let buffer = &mut self.buffer[..HARD_RECORD_BYTES];
                read_all(ground, HARD_FILE, &mut self.hard, owner, buffer, offsets)
            }
            Phase::MdtestHardRead => (0..count).try_for_each(|index| {
                let path = self.names.file(phase, owner, index);
                let file = ground.open(path, false)?;
                // One more than there should be, so that a file that is too long is noticed.
                let buffer = &mut self.buffer[..=SMALL_FILE_BYTES];
                let read = file.read_at(0, buffer)?;
                check(&mut self.small, (owner, index), path, 0, &buffer[..read])?;
                file.finish()
            }),
            Phase::MdtestEasyStat => self.stat(phase, owner, count, 0),
            Phase::MdtestHardStat => self.stat(phase, owner, count, SMALL_FILE_BYTES as u64),
            _ => (0..count).try_for_each(|index| ground.remove(self.names.file(phase, owner, index))),
        }
    }

    fn stat(&mut self, phase: Phase, owner: u32, count: u64, expected: u64) -> Outcome<()> {
        for index in 0..count {
            let path = self.names.file(phase, owner, index);
            let size = self.ground.stat(path)?;
            if size != expected {
                let text = format!("stat {path}: it has {size} bytes, rank {owner} has written {expected}");
                return Err(Trouble::new(Exit::Fatal, text));
            }
        }
        Ok(())
    }
}

/// Repeats `step` until the stonewall, then up to the largest count that any rank has reached: so
/// all files are of the same length, and the slowest rank counts.
fn until_stonewall(
    stonewall: Duration,
    count_max: u64,
    link: &mut Link,
    mut step: impl FnMut(u64) -> Outcome<()>,
) -> Outcome<()> {
    let started = Instant::now();
    let mut count = 0;
    while count < count_max && (count == 0 || started.elapsed() < stonewall) {
        step(count)?;
        count += 1;
    }
    link.say(&Said::Reached(count))?;
    match link.hear()? {
        Some(Order::UpTo(target)) => (count..target).try_for_each(step),
        Some(order) => Err(out_of_turn(&order)),
        None => Err(Trouble::new(Exit::Again, "bench io500-rank: the coordinator has gone")),
    }
}

/// Reads transfers of the buffer's length and compares each with what the owner has written there.
fn read_all(
    ground: &dyn Ground,
    path: &str,
    pattern: &mut Pattern,
    owner: u32,
    buffer: &mut [u8],
    mut offsets: impl Iterator<Item = u64>,
) -> Outcome<()> {
    let file = ground.open(path, false)?;
    offsets.try_for_each(|offset| {
        let read = file.read_at(offset, buffer)?;
        check(pattern, (owner, offset), path, offset, &buffer[..read])
    })?;
    file.finish()
}

/// Compares data read at `offset` with the contents that the owner has written as `place`.
fn check(pattern: &mut Pattern, (owner, place): (u32, u64), path: &str, offset: u64, read: &[u8]) -> Outcome<()> {
    let Some(at) = pattern.first_difference(owner, place, read) else { return Ok(()) };
    let byte = offset + at as u64;
    let text = format!("verify {path}: byte {byte} is not what rank {owner} has written: the data are damaged");
    Err(Trouble::new(Exit::Fatal, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io500::link::Where;
    use std::os::unix::net::UnixStream;

    fn end(socket: UnixStream) -> Link {
        let input = socket.try_clone().expect("another descriptor");
        Link::new(0, link::lines(input), socket)
    }

    /// A rank alone in a directory, and the other end of its link.
    fn alone(dir: &std::path::Path, then: impl FnOnce(&mut Rank<'_>, &mut Link, &mut Link)) {
        let place = Where::Directory(dir.to_path_buf());
        let setup = Setup {
            rank: 0,
            procs: 1,
            procs_on_node: 1,
            place: place.clone(),
            base: "run".into(),
            run: 1,
            stonewall_s: 0.0,
        };
        let ground = ground::in_directory(dir, "run");
        ground.begin().expect("it is new");
        layout::directories(1).iter().for_each(|path| ground.make_dir(path).expect("it is new"));
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let mut rank = Rank {
            setup,
            ground: ground.as_ref(),
            easy: Pattern::new(1, EASY_TRANSFER_BYTES),
            hard: Pattern::new(1, HARD_RECORD_BYTES),
            small: Pattern::new(1, SMALL_FILE_BYTES),
            buffer: vec![0; EASY_TRANSFER_BYTES],
            names: Names::default(),
        };
        then(&mut rank, &mut end(one), &mut end(other));
        ground.remove_all().expect("it can be removed");
    }

    #[test]
    fn damaged_and_shortened_files_are_noticed() {
        let dir = std::env::temp_dir().join(format!("aze-io500-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        alone(&dir, |rank, link, coordinator| {
            let all = [
                (Phase::IorEasyWrite, Phase::IorEasyRead, "ior-easy/ior_file_easy.00000000"),
                (Phase::IorHardWrite, Phase::IorHardRead, HARD_FILE),
                (
                    Phase::MdtestHardWrite,
                    Phase::MdtestHardRead,
                    "mdtest-hard/test-dir.0-0/mdtest_tree.0/file.mdtest.0.1",
                ),
            ];
            for (write, read, path) in all {
                coordinator.say(&Order::UpTo(2)).expect("it is heard");
                rank.write(write, 2, Duration::ZERO, link).expect("it is written");
                rank.take(read, 2).expect("it is what was written");
                let path = dir.join("run").join(path);
                let whole = std::fs::read(&path).expect("it exists");
                let mut damaged = whole.clone();
                damaged[1000] ^= 0x10;
                std::fs::write(&path, &damaged).expect("it can be written");
                let trouble = rank.take(read, 2).expect_err("one bit is wrong");
                assert!(trouble.exit == Exit::Fatal && trouble.text.contains("byte 1000 "), "{trouble}");
                std::fs::write(&path, &whole[..whole.len() - 1]).expect("it can be written");
                assert!(rank.take(read, 2).is_err(), "the last byte is missing");
            }
        });
        std::fs::remove_dir(&dir).expect("nothing is left");
    }
}
