//! Members that run in simulated processes, and lose messages, leaders and disks.

use aze_io::Io;
use aze_io::sim::{Faults, Sim};
use aze_io::sync::Mutex;
use aze_keeper::{Driver, Group, MemberId, Outside, Undecided};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The network between members: which of them run, and how many of 100 messages get lost.
#[derive(Default)]
struct Wire {
    running: Mutex<BTreeMap<MemberId, Arc<Driver>>>,
    lost_of_100: Mutex<u64>,
    sent: Mutex<u64>,
}

struct Process {
    io: Io,
    wire: Arc<Wire>,
    disk_fails: Mutex<bool>,
    seen: Mutex<Vec<Vec<u8>>>,
    led: Mutex<u32>,
}

impl Outside for Process {
    fn send(&self, to: MemberId, message: Vec<u8>) -> BoxFuture<'static, bool> {
        *self.wire.sent.lock() += 1;
        let (io, wire) = (self.io.clone(), self.wire.clone());
        async move {
            io.sleep(Duration::from_micros(io.random_u64() % 500)).await;
            if io.random_u64() % 100 < *wire.lost_of_100.lock() {
                return io.random_u64() % 2 == 0;
            }
            let there = wire.running.lock().get(&to).cloned();
            let Some(there) = there else { return false };
            there.receive(&message).await;
            true
        }
        .boxed()
    }

    fn store(&self, _stored: Vec<u8>) -> BoxFuture<'static, bool> {
        let fails = *self.disk_fails.lock();
        async move { !fails }.boxed()
    }

    fn decided(&self, value: Vec<u8>) {
        self.seen.lock().push(value);
    }

    fn leads(&self) {
        *self.led.lock() += 1;
    }
}

struct World {
    sim: Sim,
    wire: Arc<Wire>,
    processes: Vec<Arc<Process>>,
    drivers: Vec<Arc<Driver>>,
}

fn world(seed: u64, members: u64) -> World {
    let sim = Sim::new(seed, Faults::default());
    let wire = Arc::new(Wire::default());
    let ids: Vec<MemberId> = (1..=members).map(MemberId).collect();
    let (mut processes, mut drivers) = (Vec::new(), Vec::new());
    for id in &ids {
        let io = sim.node(&format!("member {}", id.0));
        let process = Arc::new(Process {
            io: io.clone(),
            wire: wire.clone(),
            disk_fails: Mutex::default(),
            seen: Mutex::default(),
            led: Mutex::default(),
        });
        let outside: Weak<Process> = Arc::downgrade(&process);
        let driver = Driver::new(io, Group::found(*id, &ids, Vec::new()), outside);
        wire.running.lock().insert(*id, driver.clone());
        processes.push(process);
        drivers.push(driver);
    }
    World { sim, wire, processes, drivers }
}

/// Adds a byte to the decided value.
async fn add(driver: &Arc<Driver>, byte: u8) -> Result<Vec<u8>, Undecided<()>> {
    driver.decide(|value| Ok((!value.contains(&byte)).then(|| [value, &[byte]].concat()))).await
}

#[test]
fn a_member_alone_decides_at_once_and_sends_nothing() {
    let world = world(1, 1);
    world.sim.block_on(async {
        let driver = &world.drivers[0];
        assert!(driver.stand().await);
        let before = world.sim.now_ns();
        assert_eq!(add(driver, 7).await, Ok(vec![7]));
        assert_eq!(world.sim.now_ns(), before, "no time has passed");
        assert_eq!(driver.decide(|_| Err("no")).await, Err(Undecided::Unwanted("no")));
    });
    assert_eq!(*world.wire.sent.lock(), 0);
    assert_eq!(*world.processes[0].led.lock(), 1);
}

#[test]
fn another_member_goes_on_when_the_leader_is_gone() {
    for seed in 0..60 {
        let world = world(seed, 3);
        world.sim.block_on(async {
            *world.wire.lost_of_100.lock() = seed % 4 * 10;
            let [first, second, third] = [0, 1, 2].map(|place: usize| world.drivers[place].clone());
            while !first.stand().await {}
            assert_eq!(add(&first, 1).await, Ok(vec![1]), "seed {seed}");
            world.wire.running.lock().remove(&MemberId(1));
            // Both try, as they would.
            while !(futures_util::future::join(second.stand(), third.stand()).await.0 || third.leads()) {}
            let next = if second.leads() { &second } else { &third };
            assert_eq!(add(next, 2).await, Ok(vec![1, 2]), "seed {seed}");
            // It does not hear that it leads no more: it cannot do anything.
            assert_eq!(add(&first, 3).await, Err(Undecided::Silence), "seed {seed}");
            world.wire.running.lock().insert(MemberId(1), first.clone());
            let decided = add(next, 4).await;
            assert_eq!(decided, Ok(vec![1, 2, 4]), "seed {seed}");
            *world.wire.lost_of_100.lock() = 0;
            world.sim.sleep(Duration::from_secs(1)).await;
            assert!(matches!(add(&first, 5).await, Err(Undecided::NotLeading(_))), "seed {seed}");
            for (place, process) in world.processes.iter().enumerate() {
                let seen = process.seen.lock();
                assert!(!seen.iter().any(|value| value.contains(&3)), "seed {seed}: member {place} saw {seen:?}");
            }
            // Nothing is sent while nothing happens.
            world.sim.sleep(Duration::from_secs(5)).await;
            let before = *world.wire.sent.lock();
            world.sim.sleep(Duration::from_secs(600)).await;
            assert_eq!(*world.wire.sent.lock(), before, "seed {seed}");
        });
    }
}

#[test]
fn a_member_whose_disk_fails_says_nothing_more() {
    let world = world(5, 3);
    world.sim.block_on(async {
        let first = &world.drivers[0];
        assert!(first.stand().await);
        *world.processes[0].disk_fails.lock() = true;
        assert_eq!(add(first, 1).await, Err(Undecided::NotStored));
        // The others answer earlier messages.
        world.sim.sleep(Duration::from_secs(1)).await;
        let before = *world.wire.sent.lock();
        world.sim.sleep(Duration::from_secs(60)).await;
        assert_eq!(*world.wire.sent.lock(), before);
    });
}
