//! A client shows contents that came with an open for reading and writing only while a request would bring the same.

use crate::support::{ROOT, create, name, with_layout};
use aze_client::{Access, Client, File, Room};
use aze_io::sim::{Faults, Sim, SimRng};
use aze_io::sync::Mutex;
use aze_proto::{Code, Ino};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const READ_WRITE: Access = Access { read: true, write: true };
const ROUNDS: u64 = 60;

/// What a file has been, in the order in which its changes have begun. One change is under way at a time.
struct Story {
    contents: Vec<Vec<u8>>,
    /// The last one whose change has returned, or that a client has read.
    known: usize,
}

/// The files that have had the name, and the outcomes of reads.
#[derive(Default)]
struct Board {
    stories: BTreeMap<Ino, Story>,
    reads: u64,
    wrong: Vec<String>,
}

impl Board {
    fn story(&mut self, ino: Ino) -> &mut Story {
        self.stories.entry(ino).or_insert_with(|| Story { contents: vec![Vec::new()], known: 0 })
    }

    /// A change begins, after which the file is this; its number.
    fn begin(&mut self, ino: Ino, contents: Vec<u8>) -> usize {
        let story = self.story(ino);
        story.contents.push(contents);
        story.contents.len() - 1
    }

    fn end(&mut self, ino: Ino, change: usize) {
        let story = self.story(ino);
        story.known = story.known.max(change);
    }

    /// A client has read these bytes in a call that began when this change was known.
    fn read(&mut self, who: usize, ino: Ino, known: usize, bytes: &[u8]) {
        self.reads += 1;
        let story = self.story(ino);
        match story.contents.iter().skip(known).position(|contents| contents == bytes) {
            Some(at) => story.known = story.known.max(known + at),
            None => self.wrong.push(format!("client {who} reads {bytes:?} of inode {ino} after change {known}")),
        }
    }
}

/// A client that opens the file again and again, changes it, and reads it.
struct Worker<'a> {
    who: usize,
    client: Arc<Client>,
    rng: SimRng,
    turn: &'a futures_util::lock::Mutex<()>,
    board: &'a Mutex<Board>,
}

impl Worker<'_> {
    async fn work(mut self, sim: Sim) {
        // The server lets it look names up.
        let _ = self.client.resolve(&ROOT, &b"/file"[..], true).await;
        let mut files: [Option<Arc<File>>; 2] = [None, None];
        for _ in 0..ROUNDS {
            let slot = &mut files[self.rng.below(2) as usize];
            let file = match slot.take().filter(|_| self.rng.chance(600_000)) {
                Some(file) => file,
                None => match self.client.open_path_with_contents(&ROOT, &b"/file"[..], READ_WRITE).await {
                    Ok(file) => file,
                    // Another client is about to make it anew.
                    Err(failure) if failure.code == Code::NotFound => continue,
                    Err(failure) => panic!("{failure}"),
                },
            };
            *slot = Some(file.clone());
            if self.rng.chance(500_000) {
                sim.sleep(Duration::from_micros(self.rng.below(1000))).await;
            }
            if self.rng.chance(300_000) {
                self.change(&file).await;
            }
            for _ in 0..self.rng.below(3) {
                self.read(&file).await;
            }
        }
    }

    async fn read(&mut self, file: &File) {
        let (ino, known) = (file.ino(), self.board.lock().story(file.ino()).known);
        let mut bytes = vec![0; 64];
        let count = file.read_as_opened(0, &mut bytes).await.expect("it can be read");
        self.board.lock().read(self.who, ino, known, &bytes[..count]);
    }

    async fn change(&mut self, file: &File) {
        let _turn = self.turn.lock().await;
        let (ino, value, kind) = (file.ino(), self.rng.u64() as u8, self.rng.below(8));
        if kind == 7 {
            return self.replace().await;
        }
        let (at, end) = (self.rng.below(8), self.rng.between(9, 16));
        let range = at as usize..end as usize;
        let mut after = self.board.lock().story(ino).contents.last().cloned().unwrap_or_default();
        match kind {
            0..=2 => {
                after.resize(after.len().max(range.end), 0);
                after[range.clone()].fill(value);
            }
            3 => after.resize(range.end, 0),
            _ => after.iter_mut().take(range.end).skip(range.start).for_each(|byte| *byte = 0),
        }
        let change = self.board.lock().begin(ino, after);
        let done = match kind {
            0..=2 => file.write(at, &vec![value; range.len()]).await,
            3 => self.client.truncate(&ROOT, ino, end, Some(file)).await.map(drop),
            4 => file.make_room(Room::Hole, at, end - at, true).await,
            _ => file.make_room(Room::Zeroed, at, end - at, true).await,
        };
        done.expect("nothing fails here");
        self.board.lock().end(ino, change);
    }

    /// The name goes to another file. Those who have the earlier one open go on with that.
    async fn replace(&mut self) {
        let to = name(&format!("old{}", self.rng.u64()));
        self.client.rename(&ROOT, Ino::ROOT, &name("file"), Ino::ROOT, &to, false).await.expect("renamed");
        self.make().await;
    }

    async fn make(&self) {
        let file = create(&self.client, Ino::ROOT, "file").await;
        let change = self.board.lock().begin(file.ino(), b"first".to_vec());
        file.write(0, b"first").await.expect("written");
        self.board.lock().end(file.ino(), change);
    }
}

/// The errors found, and how many reads took no request.
fn run(seed: u64, switches: Switches) -> (Vec<String>, i64) {
    let sim = Sim::new(seed, Faults { reorder_ppm: 50_000, ..Faults::default() });
    let layout = Layout { published_bytes: 1 << 20, switches, ..Layout::of(2) };
    let cluster = Cluster::new(sim.clone(), layout);
    let found = sim.block_on(async {
        cluster.start().await.expect("a quiet cluster starts");
        let (board, turn) = (Mutex::new(Board::default()), futures_util::lock::Mutex::new(()));
        let mut workers = Vec::new();
        for who in 0..3 {
            let client = cluster.connect(who).await.expect("a client connects");
            let rng = SimRng::new(seed, &format!("client {who}"));
            workers.push(Worker { who, client, rng, turn: &turn, board: &board });
        }
        workers[0].make().await;
        join_all(workers.into_iter().map(|worker| worker.work(sim.clone()))).await;
        let board = std::mem::take(&mut *board.lock());
        (board.wrong, board.reads as i64 - requests(&cluster, "Read") as i64)
    });
    cluster.end();
    found
}

/// How often servers were asked this.
fn requests(cluster: &Cluster, name: &str) -> u64 {
    let counters = cluster.servers().into_iter().flat_map(|server| server.status().requests);
    counters.filter(|counter| counter.name == name).map(|counter| counter.count).sum()
}

#[test]
fn every_read_shows_what_every_change_that_has_returned_has_left() {
    let mut without_request = 0;
    for seed in 0..200 {
        let (wrong, saved) = run(seed, Switches::default());
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
        without_request += saved;
    }
    assert!(without_request > 1000, "{without_request} reads took no request");
}

#[test]
fn records_that_stay_when_data_change_are_noticed() {
    let seeds = [0, 1, 2, 3, 4, 5];
    let noticed =
        seeds.iter().filter(|seed| !run(**seed, Switches::without(Sabotage::SkipPublishedData)).0.is_empty()).count();
    assert!(noticed > 0, "none of the seeds {seeds:?} notices it");
    println!("SkipPublishedData: noticed by {noticed} of {} seeds", seeds.len());
}

#[test]
fn an_open_for_reading_and_writing_and_a_read_of_a_small_file_are_one_request() {
    let layout = Layout { published_bytes: 1 << 20, ..Layout::of(2) };
    with_layout(layout, |cluster, client| async move {
        let other = cluster.connect(1).await.expect("a second client connects");
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("made").ino;
        for number in 0..16 {
            create(&client, dir, &format!("f{number}")).await.write(0, &[7; 3901]).await.expect("written");
        }
        let opened = |client: Arc<Client>, number: u32| async move {
            let path = format!("/dir/f{number}");
            client.open_path_with_contents(&ROOT, path.as_bytes(), READ_WRITE).await.expect("root may open it")
        };
        // Each server lets the client look names up.
        for number in 0..16 {
            other.resolve(&ROOT, format!("/dir/f{number}").as_bytes(), true).await.expect("it is there");
        }
        let before = requests(&cluster, "Read");
        for number in 0..16 {
            let file = opened(other.clone(), number).await;
            let mut bytes = vec![0; 3901];
            assert_eq!((file.read_as_opened(0, &mut bytes).await, bytes), (Ok(3901), vec![7; 3901]));
        }
        assert_eq!(requests(&cluster, "Read"), before);
        let file = opened(other.clone(), 3).await;
        let writer = client.open_path(&ROOT, b"/dir/f3", READ_WRITE).await.expect("root may open it");
        writer.write(1, b"x").await.expect("written");
        let mut bytes = [0; 3];
        assert_eq!((file.read_as_opened(0, &mut bytes).await, bytes), (Ok(3), [7, b'x', 7]));
        assert_eq!(requests(&cluster, "Read"), before + 1, "another client has changed it");
        // A file that is longer costs more to send than it may be worth.
        writer.write(4090, &[7; 7]).await.expect("written");
        let file = opened(other.clone(), 3).await;
        assert_eq!(file.read_as_opened(0, &mut bytes).await, Ok(3));
        assert_eq!(requests(&cluster, "Read"), before + 2);
    });
}
