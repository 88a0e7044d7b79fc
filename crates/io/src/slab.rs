//! One region of memory, handed out in frames.
//!
//! It alone knows where the bytes of a frame lie, how frames are cut from larger ones and which were used last. It
//! knows nothing of their contents. The region is a memory file mapped shared, so that it can be shared with other
//! processes, which may only read it.

mod ahead;
mod pool;
mod receive_buffer;
mod region;

#[cfg(test)]
mod receive_buffer_tests;
#[cfg(test)]
mod tests;

pub use receive_buffer::{Payload, RECEIVE_BUFFERS_BYTES_MAX, ReceiveBuffer, ReceivedFrames};

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};

use ahead::Ahead;
use pool::{Place, Pool};
use receive_buffer::ReceiveBuffers;
use region::Region;

/// Size of a frame; larger ones are cut into smaller ones and merge again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameClass {
    /// 4 KiB.
    K4,
    /// 16 KiB.
    K16,
    /// 64 KiB, the base unit.
    K64,
}

/// All sizes of frames, smallest first.
pub const FRAME_CLASSES: [FrameClass; 3] = [FrameClass::K4, FrameClass::K16, FrameClass::K64];

/// The base unit, in bytes: what smaller frames are cut from.
pub const BASE_BYTES: usize = 64 << 10;

/// Largest slab, in bytes (256 TiB): its bases are counted with 32 bits.
pub const CAPACITY_BYTES_MAX: u64 = BASE_BYTES as u64 * u32::MAX as u64;

impl FrameClass {
    /// Bytes of a frame of this class.
    pub const fn bytes(self) -> usize {
        match self {
            FrameClass::K4 => 4 << 10,
            FrameClass::K16 => 16 << 10,
            FrameClass::K64 => BASE_BYTES,
        }
    }

    /// The smallest class that holds `bytes`; `None` if none does.
    pub fn for_bytes(bytes: usize) -> Option<FrameClass> {
        FRAME_CLASSES.into_iter().find(|class| class.bytes() >= bytes)
    }
}

/// Why there is no slab.
#[derive(Debug)]
pub enum SlabError {
    /// The capacity asked for, in bytes, is less than one base or more than [`CAPACITY_BYTES_MAX`].
    Capacity(u64),
    /// A system call, named first, failed.
    System(&'static str, io::Error),
}

impl fmt::Display for SlabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlabError::Capacity(bytes) => {
                write!(f, "a slab of {bytes} bytes is impossible: give {BASE_BYTES} to {CAPACITY_BYTES_MAX}")
            }
            SlabError::System(call, error) => write!(f, "cannot set memory aside: {call}: {error}"),
        }
    }
}

impl std::error::Error for SlabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SlabError::Capacity(_) => None,
            SlabError::System(_, error) => Some(error),
        }
    }
}

/// A region of memory that gives out frames. The memory becomes real only as it is touched,
/// in address order, and is then kept until the slab and all its frames are dropped.
pub struct Slab {
    region: Arc<Region>,
    bases: u32,
    pool: Pool,
    ahead: Arc<Ahead>,
    receive_buffers: ReceiveBuffers,
    /// May give back frames that are held for others, when memory is short.
    short: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Slab {
    /// Sets `capacity_bytes` of address space aside, rounded down to whole bases. Uses next to
    /// no memory before frames are allocated.
    ///
    /// # Errors
    /// [`SlabError::Capacity`] for a capacity out of range; [`SlabError::System`] if the system
    /// refuses.
    pub fn new(capacity_bytes: u64) -> Result<Arc<Slab>, SlabError> {
        Slab::over(capacity_bytes, 1)
    }

    /// As [`Slab::new`], but twice the capacity may be allocated until [`Slab::end_excess`] is called:
    /// for bringing back what once fitted, whose frames may not fit in another order.
    ///
    /// # Errors
    /// As [`Slab::new`].
    pub fn with_excess(capacity_bytes: u64) -> Result<Arc<Slab>, SlabError> {
        Slab::over(capacity_bytes, 2)
    }

    fn over(capacity_bytes: u64, times: u32) -> Result<Arc<Slab>, SlabError> {
        let out_of_range = || SlabError::Capacity(capacity_bytes);
        if capacity_bytes > CAPACITY_BYTES_MAX / u64::from(times) {
            return Err(out_of_range());
        }
        let bases = u32::try_from(capacity_bytes / BASE_BYTES as u64).map_err(|_| out_of_range())?;
        if bases == 0 {
            return Err(out_of_range());
        }
        let region = Arc::new(Region::new((bases * times) as usize * BASE_BYTES)?);
        let ahead = Arc::new(Ahead::new(region.clone(), u64::from(bases) * BASE_BYTES as u64));
        Ok(Arc::new(Slab {
            region,
            bases,
            pool: Pool::new(bases * times),
            ahead,
            receive_buffers: ReceiveBuffers::default(),
            short: OnceLock::new(),
        }))
    }

    /// From now on no more than the capacity is given out. Frames allocated beyond it stay, and are not given out again
    /// when they come back.
    pub fn end_excess(&self) {
        self.pool.limit(self.bases);
    }

    /// A frame of `class`, or `None` if the slab is full. Never blocks for long, and prefers the memory freed last. The
    /// frame holds its last owner's bytes, not zeros: the caller overwrites all it will read.
    pub fn allocate(self: &Arc<Self>, class: FrameClass) -> Option<Frame> {
        let place = self.pool.allocate(class).or_else(|| {
            self.reclaim();
            self.pool.allocate(class)
        });
        let place = place.or_else(|| {
            self.receive_buffers.move_out();
            self.pool.allocate(class)
        })?;
        Some(self.frame_at(place, class))
    }

    /// The same, but only of memory that is free already.
    fn allocate_spare(self: &Arc<Self>, class: FrameClass) -> Option<Frame> {
        let place = self.pool.allocate(class)?;
        Some(self.frame_at(place, class))
    }

    fn frame_at(self: &Arc<Self>, place: Place, class: FrameClass) -> Frame {
        if place.is_fresh {
            self.ahead.advance(u64::from(place.base + 1) * BASE_BYTES as u64);
        }
        Frame { slab: self.clone(), place, class }
    }

    /// Bytes that could be allocated altogether.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.bases) * BASE_BYTES as u64
    }

    /// Bytes in frames that are owned now; exact while no other thread allocates or frees. Frames that other processes
    /// have given back may count until [`Slab::reclaim`], unless memory is short; frames being filled by data on their
    /// way ([`ReceiveBuffer`]) do not.
    pub fn used_bytes(&self) -> u64 {
        let mut used = self.pool.used_bytes();
        if used + BASE_BYTES as u64 > self.capacity_bytes() {
            self.reclaim();
            used = self.pool.used_bytes();
        }
        // These can be had at any time.
        used.saturating_sub(self.receive_buffers.bytes())
    }

    /// Has `reclaim` called when memory is short. Only the first call counts.
    pub(crate) fn when_short(&self, reclaim: Box<dyn Fn() + Send + Sync>) {
        drop(self.short.set(reclaim));
    }

    /// Takes back the frames that were held for other processes and that those have given back.
    pub fn reclaim(&self) {
        if let Some(reclaim) = self.short.get() {
            reclaim();
        }
    }

    /// A file by which another process can read the region, and can do nothing else with it.
    pub(crate) fn reader(&self) -> io::Result<OwnedFd> {
        self.region.reader()
    }

    /// Bytes from the region's beginning that have been allocated once or faulted in ahead:
    /// about the memory that the system has given. Never falls.
    pub fn touched_bytes(&self) -> u64 {
        self.ahead.touched_bytes()
    }

    /// Keeps at least `window_bytes` beyond all memory ever allocated faulted in, as long as the
    /// capacity lasts, so that an allocation need not wait for the system to find and zero
    /// pages. Called again, it changes the window. Does not block: a thread of low priority
    /// (`aze-fault-ahead`) does the work, sleeps otherwise and ends with the slab.
    ///
    /// # Errors
    /// [`SlabError::System`] if the thread cannot be started.
    pub fn fault_ahead(&self, window_bytes: u64) -> Result<(), SlabError> {
        Ahead::start(&self.ahead, window_bytes)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        self.ahead.stop();
    }
}

/// The one owner of some bytes of a slab; dropping it gives them back.
pub struct Frame {
    slab: Arc<Slab>,
    place: Place,
    class: FrameClass,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("class", &self.class).field("offset", &self.offset()).finish_non_exhaustive()
    }
}

#[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
impl Frame {
    /// Bytes of the frame.
    pub fn len(&self) -> usize {
        self.class.bytes()
    }

    /// Its size as a class.
    pub fn class(&self) -> FrameClass {
        self.class
    }

    /// Whether it belongs to this slab.
    pub(crate) fn is_of(&self, slab: &Weak<Slab>) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.slab), slab.as_ptr())
    }

    /// Where in the slab it lies, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset_in_region() as u64
    }

    fn offset_in_region(&self) -> usize {
        self.place.base as usize * BASE_BYTES + usize::from(self.place.piece) * self.class.bytes()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.slab.region.at(self.offset_in_region(), self.len());
        // SAFETY: `at` checked that the range lies in the mapping, which `slab` keeps alive and
        // which is initialized (the kernel gives zeros). The pool gave this place to this frame
        // only, and `self` is borrowed, so that no thread writes there meanwhile.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len()) }
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.slab.region.at(self.offset_in_region(), self.len());
        // SAFETY: as in `bytes`; `self` is exclusively borrowed and the only owner of the place,
        // so that no other thread reads or writes there meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.len()) }
    }

    /// Flips bit `bit` of the frame (bit 0 is the lowest of byte 0), as failing memory would:
    /// for tests of the code that finds that.
    ///
    /// # Panics
    /// If the frame has no such bit.
    pub fn flip_bit(&mut self, bit: usize) {
        self.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.slab.pool.free(self.place, self.class);
    }
}
