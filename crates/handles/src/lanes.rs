//! Which lane of a connection a thread waits in, when several wait at the same time.
//!
//! A thread that waits alone uses the first one. This file alone knows which are free; what a lane is, `rpc` knows
//! ([`aze_client::lane`]).

use aze_client::lane::LANES_MAX;
use aze_io::real::Runtime;
use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

thread_local! {
    /// The lane that this thread has used last.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// The lanes of one connection.
pub(crate) struct Lanes {
    /// What moves those behind the first one, as far as they were used.
    more: [OnceLock<Arc<Runtime>>; LANES_MAX - 1],
    /// How many may be used.
    max: AtomicUsize,
}

impl Lanes {
    /// The first one alone.
    pub(crate) fn new() -> Lanes {
        Lanes { more: Default::default(), max: AtomicUsize::new(1) }
    }

    /// From now on as many are used as this process may use processors, [`LANES_MAX`] at most.
    pub(crate) fn use_all(&self) {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        self.max.store(processors.min(LANES_MAX), Ordering::Relaxed);
    }

    /// The lane that the calling thread has used last if no thread waits there, else another one where none does; if there is none,
    /// its own. With what moves it: `first` for the first one. `begun` is told of one that is used for the first time.
    pub(crate) fn free<'a>(
        &'a self,
        first: &'a Arc<Runtime>,
        begun: impl FnOnce(usize, &Arc<Runtime>),
    ) -> (usize, &'a Arc<Runtime>) {
        let max = self.max.load(Ordering::Relaxed);
        if max <= 1 {
            return (0, first);
        }
        let runtime_of = |lane: usize| match lane.checked_sub(1) {
            None => Some(first),
            Some(at) => self.more[at].get(),
        };
        let is_free = |lane: &usize| runtime_of(*lane).is_none_or(|runtime| !runtime.is_busy());
        let own = LAST.get();
        let mut lane = [own].into_iter().chain(0..max).find(is_free).unwrap_or(own);
        if runtime_of(lane).is_none() && self.begin(lane, first, begun).is_err() {
            // The system has no room for one more: from now on those that there are have to do.
            self.max.store(lane, Ordering::Relaxed);
            lane = own;
        }
        LAST.set(lane);
        // Another connection of this process may have more lanes than this one.
        runtime_of(lane).map_or((0, first), |runtime| (lane, runtime))
    }

    fn begin(&self, lane: usize, first: &Runtime, begun: impl FnOnce(usize, &Arc<Runtime>)) -> io::Result<()> {
        let runtime = first.one_more()?;
        // Its connections are opened again without a caller, too.
        runtime.background()?;
        match self.more[lane - 1].set(runtime.clone()) {
            Ok(()) => begun(lane, &runtime),
            // Another thread was faster.
            Err(_) => runtime.shutdown(),
        }
        Ok(())
    }

    /// Ends what moves the lanes behind the first one.
    pub(crate) fn shutdown(&self) {
        self.more.iter().filter_map(OnceLock::get).for_each(|runtime| runtime.shutdown());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes on a machine of so many processors.
    fn lanes(max: usize) -> (Lanes, Arc<Runtime>) {
        let lanes = Lanes::new();
        lanes.max.store(max, Ordering::Relaxed);
        (lanes, Runtime::library())
    }

    /// The lanes that threads get which wait at the same time, each begun while those before it wait; and those that are begun.
    fn of_some_at_once(lanes: &Lanes, first: &Arc<Runtime>, threads: usize) -> (Vec<usize>, Vec<usize>) {
        if threads == 0 {
            return Default::default();
        }
        // A thread of its own, which has used no lane yet.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut begun = Vec::new();
                let (lane, runtime) = lanes.free(first, |lane, _| begun.push(lane));
                let mut inner = None;
                let io = runtime.io();
                runtime.block_on(async {
                    // Until it leads: the lane's own thread may do so at first.
                    while !runtime.is_busy() {
                        io.sleep(std::time::Duration::from_millis(1)).await;
                    }
                    inner = Some(of_some_at_once(lanes, first, threads - 1));
                });
                let (later, begun_later) = inner.expect("it has run");
                ([vec![lane], later].concat(), [begun, begun_later].concat())
            });
            waits.join().expect("it ends")
        })
    }

    #[test]
    fn threads_that_wait_at_once_have_lanes_of_their_own_as_far_as_there_are_some() {
        let (lanes, first) = lanes(3);
        assert_eq!(of_some_at_once(&lanes, &first, 1), (vec![0], vec![]));
        assert_eq!(of_some_at_once(&lanes, &first, 2), (vec![0, 1], vec![1]));
        assert_eq!(of_some_at_once(&lanes, &first, 3), (vec![0, 1, 2], vec![2]), "each is begun once");
        assert_eq!(of_some_at_once(&lanes, &first, 1), (vec![0], vec![]), "a thread alone");
        lanes.shutdown();
    }

    #[test]
    fn a_thread_stays_in_its_lane_while_no_other_one_waits_there() {
        let (lanes, first) = lanes(2);
        LAST.set(1);
        let mut begun = 0;
        let lane = |begun: &mut usize| lanes.free(&first, |lane, _| *begun = lane).0;
        assert_eq!((lane(&mut begun), lane(&mut begun)), (1, 1));
        assert_eq!(begun, 1);
        LAST.set(0);
        assert_eq!(lane(&mut begun), 0);
        lanes.shutdown();
    }

    #[test]
    fn a_connection_with_one_lane_uses_that() {
        let (lanes, first) = lanes(1);
        LAST.set(1);
        let (lane, runtime) = lanes.free(&first, |_, _| unreachable!("there is no other one"));
        assert!(lane == 0 && Arc::ptr_eq(runtime, &first));
        LAST.set(0);
    }

    const NO_ROOM: &str = "AZE_TEST_NO_ROOM";

    /// In a process of its own, whose other tests would have no descriptors either.
    #[test]
    fn without_room_for_one_more_those_that_there_are_have_to_do() {
        if std::env::var_os(NO_ROOM).is_none() {
            let name = "lanes::tests::without_room_for_one_more_those_that_there_are_have_to_do";
            let mut test = std::process::Command::new("sh");
            test.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(std::env::current_exe().expect("this program"));
            let ran = test.args(["--exact", name]).env(NO_ROOM, "1").output().expect("it runs");
            let said = String::from_utf8_lossy(&ran.stdout).into_owned();
            assert!(ran.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (lanes, first) = lanes(3);
        let all: Vec<_> = std::iter::repeat_with(|| std::fs::File::open("/dev/null")).map_while(Result::ok).collect();
        assert!(!all.is_empty());
        LAST.set(1);
        let (lane, runtime) = lanes.free(&first, |_, _| unreachable!("there is no room"));
        assert!(lane == 0 && Arc::ptr_eq(runtime, &first));
        assert_eq!(lanes.max.load(Ordering::Relaxed), 1, "it is not tried at each call");
    }
}
