//! Making the kernel forget cached attributes, names and pages, before another client's change returns.
//!
//! *Attributes.* The kernel forgets them without waiting for a lock or a page.
//!
//! *Names.* To forget a name the kernel takes a lock, which a program may hold while it waits for this mount: two mounts
//! could wait for each other, and a killed one would never end. So the kernel keeps names. When it asks for the
//! attributes of an inode that has lost a name, this mount answers `ESTALE`, and the kernel looks the name up again.
//!
//! *Pages* of a file that another client has changed are dropped ([`crate::pages`]). The recall is confirmed earlier if a
//! program of this mount writes the file: that write may itself wait for the other client.

use crate::device::{Device, Sent};
use crate::kernel_cache::KernelCache;
use crate::pages::Pages;
use aze_io::Io;
use aze_io::sync::Mutex;
use aze_proto::ids::Ino;
use aze_proto::message::Recall;
use futures_channel::oneshot;
use futures_util::future::{join_all, select};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// How long a program may take to pick up an answer that was given to it: only then does the kernel know
/// the inode, if it has not known it before.
pub const PICK_UP_TIME: Duration = Duration::from_millis(100);
const PICK_UP_NS: u64 = PICK_UP_TIME.as_nanos() as u64;

/// The longest time for which another client's change waits until pages are dropped. A read of the file may wait for a
/// silent server.
const PAGES_TIME: Duration = Duration::from_millis(200);

/// Pause before the kernel is asked again to forget an inode that it may be about to know.
const AGAIN_PAUSE: Duration = Duration::from_millis(1);

/// Inodes share notes of when they were told; two that share one cost a moment now and then.
const ANSWERED_SLOTS: usize = 1 << 12;

/// Inodes that have lost a name; one more, and all are taken for such.
const MOVED_MAX: usize = 1 << 16;

/// The recalls of one mount.
pub struct Recalls {
    io: Io,
    device: Arc<Device>,
    kernel_cache: Arc<KernelCache>,
    pages: Arc<Pages>,
    /// How long the kernel may use a name.
    name_ns: u64,
    answered_ns: Vec<AtomicU64>,
    moved: Mutex<Moved>,
}

/// Inodes that have lost a name which the kernel may still use.
#[derive(Default)]
struct Moved {
    until_ns: BTreeMap<Ino, u64>,
    order: VecDeque<(u64, Ino)>,
    all_until_ns: u64,
}

impl Moved {
    fn note(&mut self, ino: Ino, now_ns: u64, until_ns: u64) {
        self.sweep(now_ns);
        if self.order.len() >= MOVED_MAX {
            (self.until_ns, self.order, self.all_until_ns) = Default::default();
            self.all_until_ns = until_ns;
        }
        self.until_ns.insert(ino, until_ns);
        self.order.push_back((until_ns, ino));
    }

    fn has(&mut self, ino: Ino, now_ns: u64) -> bool {
        self.sweep(now_ns);
        now_ns < self.all_until_ns || self.until_ns.contains_key(&ino)
    }

    fn sweep(&mut self, now_ns: u64) {
        while let Some((until_ns, ino)) = self.order.front().copied().filter(|(until_ns, _)| *until_ns <= now_ns) {
            self.order.pop_front();
            if self.until_ns.get(&ino) == Some(&until_ns) {
                self.until_ns.remove(&ino);
            }
        }
    }
}

impl Recalls {
    /// For the mount of `device`, whose kernel uses a name for at most `name_time`.
    pub fn new(
        io: Io,
        device: Arc<Device>,
        kernel_cache: Arc<KernelCache>,
        pages: Arc<Pages>,
        name_time: Duration,
    ) -> Recalls {
        let answered_ns = (0..ANSWERED_SLOTS).map(|_| AtomicU64::new(0)).collect();
        let name_ns = (name_time + PICK_UP_TIME).as_nanos() as u64;
        Recalls { io, device, kernel_cache, pages, name_ns, answered_ns, moved: Mutex::default() }
    }

    fn answered_ns(&self, ino: Ino) -> &AtomicU64 {
        &self.answered_ns[(ino.0 ^ ino.0 >> 48) as usize % ANSWERED_SLOTS]
    }

    /// Notes that the kernel is about to get attributes that are valid for some time.
    pub fn tell(&self, ino: Ino) {
        self.answered_ns(ino).fetch_max(self.io.mono_ns(), SeqCst);
    }

    /// Whether the kernel may use a name that leads to this inode no longer.
    pub fn has_moved(&self, ino: Ino) -> bool {
        self.moved.lock().has(ino, self.io.mono_ns())
    }

    /// Resolves when the kernel answers no program from its cache of these inodes any more.
    pub async fn let_go(&self, recalls: Vec<Recall>) {
        // A change of names changes no contents.
        let changed = recalls.iter().filter(|recall| !recall.names).map(|recall| recall.ino);
        let dropping: Vec<Ino> = changed.filter(|ino| self.kernel_cache.begin_drop(*ino)).collect();
        let now_ns = self.io.mono_ns();
        for recall in recalls.iter().filter(|recall| recall.names) {
            self.moved.lock().note(recall.ino, now_ns, now_ns + self.name_ns);
        }
        let picked_up = |recall: &Recall| self.answered_ns(recall.ino).load(SeqCst) + PICK_UP_NS;
        // From now on answers about these inodes are valid for no time.
        let mut unknown: Vec<(Ino, u64)> = recalls.iter().map(|recall| (recall.ino, picked_up(recall))).collect();
        loop {
            unknown.retain(|(ino, until_ns)| !self.forget(*ino, *until_ns));
            if unknown.is_empty() {
                break;
            }
            self.io.sleep(AGAIN_PAUSE).await;
        }
        // A later read first asks for attributes, and gets them when the pages are gone.
        join_all(dropping.into_iter().map(|ino| self.drop_pages(ino))).await;
    }

    /// Resolves when the kernel has dropped its pages of this inode; earlier while a program of this mount writes it, and
    /// after [`PAGES_TIME`].
    async fn drop_pages(&self, ino: Ino) {
        let (tell, gone) = oneshot::channel::<()>();
        let kernel_cache = self.kernel_cache.clone();
        let done = move || {
            kernel_cache.dropped(ino);
            drop(tell);
        };
        self.pages.drop_pages(ino.0, Box::new(done));
        let (written, late) = (self.pages.written(ino.0), self.io.sleep(PAGES_TIME));
        select(gone, select(Box::pin(written), Box::pin(late))).await;
    }

    /// Whether the kernel has forgotten the attributes, or has none: by `until_ns` it has processed every answer that
    /// held them.
    fn forget(&self, ino: Ino, until_ns: u64) -> bool {
        self.device.forget_attrs(ino.0) == Sent::Taken || self.io.mono_ns() >= until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_that_has_lost_a_name_is_known_for_as_long_as_the_name_may_be_used() {
        let mut moved = Moved::default();
        moved.note(Ino(5), 0, 10);
        moved.note(Ino(6), 1, 11);
        moved.note(Ino(5), 2, 12);
        assert!(moved.has(Ino(5), 11) && !moved.has(Ino(6), 11) && !moved.has(Ino(7), 11));
        assert!(!moved.has(Ino(5), 12) && moved.order.is_empty());
    }

    #[test]
    fn too_many_are_all_of_them() {
        let mut moved = Moved::default();
        for ino in 0..=MOVED_MAX as u64 {
            moved.note(Ino(ino), 0, 10);
        }
        assert!(moved.order.len() <= MOVED_MAX && moved.until_ns.len() <= MOVED_MAX);
        assert!(moved.has(Ino(1), 9) && moved.has(Ino(u64::MAX), 9) && !moved.has(Ino(1), 10));
    }
}
