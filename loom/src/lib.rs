//! The sleeping and waking of shared memory, the giving back of slots of shared payloads, and the notes of believed
//! records, through every order of their steps.
//!
//! The files under test are those that are shipped (`wake.rs` and `returns.rs` in `crates/io/src/real/shm`,
//! `note.rs` in `crates/io/src/claims`), with loom's atomics in the place of the standard library's. The kernel's parts, a futex and an
//! eventfd in an epoll instance, are modelled here. Run by `make loom`.

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[cfg_attr(not(test), expect(dead_code, reason = "the tests below are all that uses it"))]
#[path = "../../crates/io/src/real/shm/wake.rs"]
mod wake;

#[cfg_attr(not(test), expect(dead_code, reason = "the tests below are all that uses it"))]
#[path = "../../crates/io/src/real/shm/returns.rs"]
mod returns;

#[cfg_attr(not(test), expect(dead_code, reason = "the tests below are all that uses it"))]
#[path = "../../crates/io/src/claims/note.rs"]
mod note;

#[cfg(test)]
mod tests {
    use super::note::{PERIOD_AT, note, noted};
    use super::returns::{end, give_back, take_back, was_kept};
    use super::sync::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst};
    use super::wake::{Post, announce, claim, publish};
    use loom::cell::UnsafeCell;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// A futex: comparing and going to sleep are one step, as the kernel has it.
    #[derive(Default)]
    struct Futex {
        lock: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        fn wait(&self, word: &AtomicU32, seen: u32) {
            let guard = self.lock.lock().unwrap();
            if word.load(SeqCst) == seen {
                drop(self.woken.wait(guard).unwrap());
            }
        }

        fn wake(&self) {
            let _guard = self.lock.lock().unwrap();
            self.woken.notify_all();
        }
    }

    /// An eventfd in an epoll instance: an event stays until it is taken.
    #[derive(Default)]
    struct Event {
        there: Mutex<bool>,
        came: Condvar,
    }

    impl Event {
        fn wait(&self) {
            let mut there = self.there.lock().unwrap();
            while !*there {
                there = self.came.wait(there).unwrap();
            }
            *there = false;
        }

        fn wake(&self) {
            *self.there.lock().unwrap() = true;
            self.came.notify_all();
        }
    }

    struct Words {
        wakeup: AtomicU32,
        waits: AtomicU32,
        ready: AtomicU64,
        served: AtomicU64,
        futex: Futex,
    }

    impl Words {
        fn new() -> Arc<Words> {
            Arc::new(Words {
                wakeup: AtomicU32::new(0),
                waits: AtomicU32::new(0),
                ready: AtomicU64::new(0),
                served: AtomicU64::new(0),
                futex: Futex::default(),
            })
        }

        fn post(&self) -> Post<'_> {
            Post { wakeup: &self.wakeup, waits: &self.waits }
        }

        /// A worker until it has served the bits of `all`.
        fn work(&self, all: u64) {
            let mut served = 0;
            while served != all {
                let bits = self.ready.swap(0, SeqCst);
                served |= bits;
                self.served.store(served, SeqCst);
                if bits != 0 {
                    continue;
                }
                let post = self.post();
                let Some(seen) = post.before_sleep(|| self.ready.load(SeqCst) != 0) else { continue };
                self.futex.wait(&self.wakeup, seen);
                post.after_sleep();
            }
        }

        fn wake(&self, mask: u64) {
            if self.post().wake(&self.ready, mask) {
                self.futex.wake();
            }
        }
    }

    /// A lost wake-up would leave the worker asleep for ever, which loom reports as a deadlock.
    #[test]
    fn a_worker_rung_by_two_clients_serves_both() {
        loom::model(|| {
            let words = Words::new();
            let clients: Vec<_> = [1, 2]
                .map(|mask| {
                    let words = words.clone();
                    thread::spawn(move || words.wake(mask))
                })
                .into();
            words.work(3);
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }

    #[test]
    fn a_worker_that_is_roused_looks_again() {
        loom::model(|| {
            let words = Words::new();
            let stop = Arc::new(AtomicU32::new(0));
            let stopper = {
                let (words, stop) = (words.clone(), stop.clone());
                thread::spawn(move || {
                    stop.store(1, SeqCst);
                    words.post().rouse();
                    words.futex.wake();
                })
            };
            while stop.load(SeqCst) == 0 {
                let post = words.post();
                let Some(seen) = post.before_sleep(|| stop.load(SeqCst) != 0) else { continue };
                words.futex.wait(&words.wakeup, seen);
                post.after_sleep();
            }
            stopper.join().unwrap();
        });
    }

    /// The client asks once and sleeps until the reply is there, the server answers.
    #[test]
    fn a_client_that_sleeps_hears_of_its_reply() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), AtomicU32::new(0), Event::default()));
            let server = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (head, waits, event) = &*shared;
                    for position in [8, 16] {
                        publish(head, position);
                        if claim(waits) {
                            event.wake();
                        }
                    }
                })
            };
            let (head, waits, event) = &*shared;
            let mut taken = 0;
            while taken != 16 {
                taken = head.load(SeqCst);
                if taken == 16 {
                    break;
                }
                announce(waits);
                if head.load(SeqCst) == taken {
                    event.wait();
                }
            }
            server.join().unwrap();
        });
    }

    /// The producer of a ring of one place waits for room between two frames.
    #[test]
    fn room_in_a_full_ring_is_told_of() {
        loom::model(|| {
            let shared = Arc::new((
                AtomicU64::new(0),
                AtomicU64::new(0),
                AtomicU32::new(0),
                AtomicU32::new(0),
                [Event::default(), Event::default()],
            ));
            let consumer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (head, tail, room, data, [_, news]) = &*shared;
                    let mut taken = 0;
                    while taken < 2 {
                        announce(data);
                        if head.load(SeqCst) == taken {
                            news.wait();
                            continue;
                        }
                        taken += 1;
                        publish(tail, taken);
                        if claim(room) {
                            shared.4[0].wake();
                        }
                    }
                })
            };
            let (head, tail, room, data, [free, news]) = &*shared;
            for position in 1..=2 {
                while position - tail.load(SeqCst) > 1 {
                    announce(room);
                    if position - tail.load(SeqCst) > 1 {
                        free.wait();
                    }
                }
                publish(head, position);
                if claim(data) {
                    news.wake();
                }
            }
            consumer.join().unwrap();
        });
    }

    /// The memory shared in one slot. Loom tells when it is written before every read of it has happened.
    struct Slot(UnsafeCell<()>);

    // SAFETY: there is nothing in it; loom looks at who reaches for it.
    unsafe impl Sync for Slot {}

    impl Slot {
        /// A client's copy.
        fn read(&self) {
            self.0.with(|_| ());
        }

        /// The server uses the memory for something else.
        fn write(&self) {
            self.0.with_mut(|_| ());
        }
    }

    #[test]
    fn shared_data_are_left_alone_until_they_are_given_back() {
        loom::model(|| {
            let shared = Arc::new(([0, 1].map(|_| Slot(UnsafeCell::new(()))), AtomicU64::new(0)));
            let server = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (slots, returned) = &*shared;
                    for _ in 0..2 {
                        let back = take_back(returned);
                        (0..2).filter(|slot| back & 1 << slot != 0).for_each(|slot| slots[slot].write());
                    }
                })
            };
            let (slots, returned) = &*shared;
            for (slot, data) in slots.iter().enumerate() {
                data.read();
                give_back(returned, slot as u64);
            }
            server.join().unwrap();
        });
    }

    /// Shared memory, and whether it is kept.
    #[derive(Default)]
    struct SharedBytes {
        data: [AtomicU64; 2],
        ended: AtomicU64,
    }

    impl SharedBytes {
        /// The server uses the memory for something else.
        fn write(&self) {
            self.data.iter().for_each(|word| word.store(9, Relaxed));
        }

        /// A client's copy.
        fn read(&self) -> [u64; 2] {
            [0, 1].map(|at| self.data[at].load(Relaxed))
        }
    }

    /// A connection's end takes shared memory back while it is read; the reader knows.
    #[test]
    fn whoever_reads_what_is_not_kept_any_more_knows() {
        loom::model(|| {
            let shared = Arc::new(SharedBytes::default());
            let server = {
                let shared = shared.clone();
                thread::spawn(move || {
                    end(&shared.ended);
                    shared.write();
                })
            };
            let read = shared.read();
            assert!(!was_kept(&shared.ended) || read == [0; 2], "{read:?} was taken for what was shared");
            server.join().unwrap();
        });
    }

    /// The count of a record that one thread changes and another goes on believing.
    #[test]
    fn either_the_change_or_the_note_is_seen() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
            let changer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (count, word) = &*shared;
                    count.store(2, Release);
                    noted(word) >> PERIOD_AT == 7
                })
            };
            let (count, word) = &*shared;
            note(word, 7);
            let believes = count.load(Relaxed) == 0;
            let seen = changer.join().unwrap();
            assert!(seen || !believes, "the old value is believed, and nobody knows");
        });
    }
}
