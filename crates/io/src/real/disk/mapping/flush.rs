//! Lines of the processor's cache, and how they get to the memory behind it.

/// How lines are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Keeps the line in the cache.
    Clwb,
    /// Drops it, beside others.
    ClflushOpt,
    /// Drops it, one after the other.
    Clflush,
}

/// What this processor has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    how: How,
    bytes: usize,
}

#[cfg(target_arch = "x86_64")]
impl Lines {
    /// `None` if nothing is known of it.
    pub(super) fn of_this_processor() -> Option<Lines> {
        use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max};
        let basic = __cpuid(1);
        let bytes = (basic.ebx >> 8 & 0xff) as usize * 8;
        if basic.edx >> 19 & 1 == 0 || !bytes.is_power_of_two() {
            return None;
        }
        let more = if __get_cpuid_max(0).0 >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let how = match (more >> 24 & 1, more >> 23 & 1) {
            (1, _) => How::Clwb,
            (0, 1) => How::ClflushOpt,
            _ => How::Clflush,
        };
        Some(Lines { how, bytes })
    }

    /// Writes back every line of a range that is mapped, and waits until that is done.
    pub(super) fn write_back(self, start: *mut u8, bytes: usize) {
        use std::arch::asm;
        use std::arch::x86_64::{_mm_clflush, _mm_sfence};
        let first = start.map_addr(|address| address & !(self.bytes - 1));
        let end = start.wrapping_add(bytes);
        let mut line = first;
        while line < end {
            // SAFETY: the line has a byte of the range, which is mapped; none of these instructions changes a byte of
            // memory, and the processor was asked whether it has them.
            unsafe {
                match self.how {
                    How::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    How::ClflushOpt => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                    How::Clflush => _mm_clflush(line),
                }
            }
            line = line.wrapping_add(self.bytes);
        }
        // SAFETY: every processor of this kind has it.
        unsafe { _mm_sfence() };
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Lines {
    /// Elsewhere the system is asked to sync.
    pub(super) fn of_this_processor() -> Option<Lines> {
        None
    }

    pub(super) fn write_back(self, _: *mut u8, _: usize) {}
}
