//! How this process keeps memory that it has freed.
//!
//! Every part of a large read or write is a block of up to a chunk, taken and given back within
//! a millisecond. The C library would give each of them back to the system, which has to find and
//! zero new pages for the next: that takes several times as long as copying the data.

/// Freed memory that is kept for what comes next, in bytes: the parts that are under way at one
/// time. Beyond it, memory goes back to the system, but for `HEAP_STEP_BYTES` at the end of each heap.
pub const KEPT_FREE_BYTES_MAX: i32 = 32 << 20;

/// How much address space a thread's heap takes at once, in bytes: all that one may have. Otherwise
/// the C library asks the system for each further page, which waits for threads that map memory
/// elsewhere in the process. Pages that were never touched take no memory.
const HEAP_STEP_BYTES: i32 = 64 << 20;

/// Keeps freed memory from now on, for all threads. To be called once, early.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        // Blocks above the first limit would be mappings of their own, given back with each free;
        // the second is for those below.
        for (limit, bytes) in [
            (libc::M_MMAP_THRESHOLD, KEPT_FREE_BYTES_MAX),
            (libc::M_TRIM_THRESHOLD, KEPT_FREE_BYTES_MAX),
            (libc::M_TOP_PAD, HEAP_STEP_BYTES),
        ] {
            // SAFETY: takes numbers only. Where it is refused, memory is slower and nothing else.
            let _may_be_refused = unsafe { libc::mallopt(limit, bytes) };
        }
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Pages that the system had to find for this thread so far.
    fn pages_found() -> i64 {
        // SAFETY: all fields of `rusage` are numbers.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` lives until the call returns.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
        usage.ru_minflt
    }

    #[test]
    fn freed_blocks_are_used_again_without_new_pages() {
        const BLOCK_BYTES: usize = 4 << 20;
        const BLOCKS: usize = 6;
        const TURNS: usize = 20;
        keep_freed_memory();
        let turn = || drop((0..BLOCKS).map(|index| vec![index as u8 + 1; BLOCK_BYTES]).collect::<Vec<_>>());
        turn();
        let before = pages_found();
        (0..TURNS).for_each(|_| turn());
        let found = pages_found() - before;
        let all = (TURNS * BLOCKS * BLOCK_BYTES / 4096) as i64;
        assert!(found < all / 10, "{found} pages of {all} were found anew");
    }

    /// How much of the writable memory that `address` lies in is behind it.
    fn writable_behind(address: usize) -> Option<usize> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let (from, to) = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
            ((from..to).contains(&address) && rest.starts_with("rw")).then(|| to - address)
        })
    }

    #[test]
    fn a_heap_takes_its_address_space_at_once() {
        const BLOCK_BYTES: usize = 64 << 10;
        keep_freed_memory();
        // More than one heap holds, so that the last block lies in one that was begun after the call.
        let blocks = HEAP_STEP_BYTES as usize / BLOCK_BYTES * 6 / 5;
        let behind = std::thread::spawn(move || {
            let blocks: Vec<Vec<u8>> = (0..blocks).map(|_| Vec::with_capacity(BLOCK_BYTES)).collect();
            writable_behind(blocks.last().expect("there are some").as_ptr().addr())
        });
        let behind = behind.join().expect("it ends").expect("the block lies in memory");
        assert!(behind > HEAP_STEP_BYTES as usize / 2, "only {behind} bytes are ready");
    }
}
