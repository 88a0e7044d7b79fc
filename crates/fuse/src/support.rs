//! Whether this machine can send a mount's requests by queues, and if not, who can change that.

use crate::abi::init;
use crate::device::Device;
use crate::queue::{self, QUEUES_MAX, Queue};
use aze_io::real::processors;
use std::io;
use std::sync::Arc;

/// Root switches FUSE over io_uring on here, for mounts from then on.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The processors that the kernel may ever have: each needs a queue.
const PROCESSORS: &str = "/sys/devices/system/cpu/possible";

/// Those of them that are on.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Makes the queues of a mount if its kernel offers them.
///
/// # Errors
/// `Unsupported`, with the lack and the remedy.
pub fn queues(device: &Arc<Device>, offered: u64) -> io::Result<Vec<Arc<Queue>>> {
    if offered & init::OVER_IO_URING == 0 {
        return Err(not_offered());
    }
    let text = std::fs::read_to_string(PROCESSORS).unwrap_or_default();
    let Some(count) = count_from_zero(&text).filter(|count| *count <= QUEUES_MAX) else {
        let text = text.trim();
        return Err(unsupported(format!(
            "{PROCESSORS} says '{text}': queues are for processors 0 to at most {} without a gap: use /dev/fuse",
            QUEUES_MAX - 1
        )));
    };
    let online = listed(&std::fs::read_to_string(ONLINE).unwrap_or_default());
    let allowed = processors();
    if online.is_empty() || online.iter().any(|number| !allowed.contains(number)) {
        return Err(unsupported(format!(
            "this process may use {} of the machine's {} processors, and each has programs whose requests one of its threads \
             must take on that processor: use /dev/fuse, or more processors (taskset, cpuset of the job or container)",
            allowed.len(),
            online.len()
        )));
    }
    queue::make(count, device).map_err(|error| {
        unsupported(format!(
            "this process may not use io_uring (see sysctl kernel.io_uring_disabled, and what a container forbids): {error}"
        ))
    })
}

fn not_offered() -> io::Error {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    unsupported(match std::fs::read_to_string(PARAMETER) {
        Ok(_) => format!(
            "the kernel ({kernel}) has FUSE over io_uring switched off: root switches it on for further mounts by \
             'echo Y > {PARAMETER}'"
        ),
        Err(_) => format!(
            "the kernel ({kernel}) has no FUSE over io_uring, or its module 'fuse' is not loaded: it needs Linux 6.14 \
             with CONFIG_FUSE_IO_URING"
        ),
    })
}

/// The kernel has offered queues and then refused one.
pub fn refused(error: &io::Error) -> io::Error {
    unsupported(format!("the kernel offers FUSE over io_uring and then refuses a queue (see its log: dmesg): {error}"))
}

fn unsupported(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// The numbers in a list like `0-3,8` (cpuset(7)); none if it is not understood.
fn listed(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok().filter(|last| *last < 1 << 20)?)
    };
    list.trim().split(',').map(range).collect::<Option<Vec<_>>>().unwrap_or_default().into_iter().flatten().collect()
}

/// How many processors are in a list, if they are numbered from 0 on without a gap.
fn count_from_zero(list: &str) -> Option<usize> {
    let numbers = listed(list);
    (!numbers.is_empty() && numbers.iter().copied().eq(0..numbers.len())).then_some(numbers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_if_there_is_no_gap() {
        for (list, count) in [("0-1\n", Some(2)), ("0\n", Some(1)), ("0-255\n", Some(256)), ("0-1,2,3", Some(4))] {
            assert_eq!(count_from_zero(list), count, "{list}");
        }
        for list in ["", "1", "0,2-5", "0-1,3", "2-5", "0-x"] {
            assert_eq!(count_from_zero(list), None, "{list}");
        }
        assert_eq!(listed("0,2-4\n"), [0, 2, 3, 4]);
    }
}
