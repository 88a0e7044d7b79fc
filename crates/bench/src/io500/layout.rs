//! The twelve phases: their order, sizes and file names, as the official program's rules have them.
//!
//! It alone knows which rank touches whose files. Where files are, and how they are reached, is left
//! to [`super::ground`].

use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

/// Bytes of one transfer of the easy bandwidth phases (`transferSize = 2m`).
pub const EASY_TRANSFER_BYTES: usize = 2 << 20;
/// Transfers of one rank at most in the easy bandwidth phases (`blockSize = 9920000m`).
pub const EASY_TRANSFERS_MAX: u64 = 9_920_000 / 2;
/// Bytes of one record of the hard bandwidth phases (`-t 47008 -b 47008`).
pub const HARD_RECORD_BYTES: usize = 47_008;
/// Records of one rank at most in the hard bandwidth phases (`segmentCount = 10000000`).
pub const HARD_RECORDS_MAX: u64 = 10_000_000;
/// Bytes of one file of the hard metadata phases (`-w 3901 -e 3901`).
pub const SMALL_FILE_BYTES: usize = 3901;
/// Files of one rank at most in the metadata phases (`n = 1000000`).
pub const FILES_MAX: u64 = 1_000_000;
/// Least time of the writing phases for a result that may be submitted, in seconds.
pub const VALID_STONEWALL_S: f64 = 300.0;
/// What names have to contain to be found (`-name '*01*'`).
pub const FOUND_PART: &[u8] = b"01";

/// The shared file of the hard bandwidth phases.
pub const HARD_FILE: &str = "ior-hard/file";
/// The file whose time everything found has to be newer than.
pub const STAMP_FILE: &str = "timestampfile";

/// One scored phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// A file for each process, in large transfers.
    IorEasyWrite,
    /// Empty files, a directory for each process.
    MdtestEasyWrite,
    /// One file for all, in small records that take turns.
    IorHardWrite,
    /// Small files in one directory.
    MdtestHardWrite,
    /// Search by name, size and time through everything.
    Find,
    /// The easy files, read by another process.
    IorEasyRead,
    /// The empty files, looked up by another process.
    MdtestEasyStat,
    /// The shared file, each record read by another process.
    IorHardRead,
    /// The small files, looked up by another process.
    MdtestHardStat,
    /// The empty files, removed by another process.
    MdtestEasyDelete,
    /// The small files, read by another process.
    MdtestHardRead,
    /// The small files, removed by another process.
    MdtestHardDelete,
}

impl Phase {
    /// All of them, in the official order.
    pub const ALL: [Phase; 12] = [
        Phase::IorEasyWrite,
        Phase::MdtestEasyWrite,
        Phase::IorHardWrite,
        Phase::MdtestHardWrite,
        Phase::Find,
        Phase::IorEasyRead,
        Phase::MdtestEasyStat,
        Phase::IorHardRead,
        Phase::MdtestHardStat,
        Phase::MdtestEasyDelete,
        Phase::MdtestHardRead,
        Phase::MdtestHardDelete,
    ];

    /// Its official name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::IorEasyWrite => "ior-easy-write",
            Phase::MdtestEasyWrite => "mdtest-easy-write",
            Phase::IorHardWrite => "ior-hard-write",
            Phase::MdtestHardWrite => "mdtest-hard-write",
            Phase::Find => "find",
            Phase::IorEasyRead => "ior-easy-read",
            Phase::MdtestEasyStat => "mdtest-easy-stat",
            Phase::IorHardRead => "ior-hard-read",
            Phase::MdtestHardStat => "mdtest-hard-stat",
            Phase::MdtestEasyDelete => "mdtest-easy-delete",
            Phase::MdtestHardRead => "mdtest-hard-read",
            Phase::MdtestHardDelete => "mdtest-hard-delete",
        }
    }

    /// Whether it counts in GiB/s; the others count in thousands of operations a second.
    pub fn is_bandwidth(self) -> bool {
        matches!(self, Phase::IorEasyWrite | Phase::IorHardWrite | Phase::IorEasyRead | Phase::IorHardRead)
    }

    /// Whether it writes until the stonewall; the others take the written files.
    pub fn is_write(self) -> bool {
        self.writer() == self && self != Phase::Find
    }

    /// The phase that has written what this one takes; itself if it writes or searches.
    pub fn writer(self) -> Phase {
        match self {
            Phase::IorEasyRead => Phase::IorEasyWrite,
            Phase::IorHardRead => Phase::IorHardWrite,
            Phase::MdtestEasyStat | Phase::MdtestEasyDelete => Phase::MdtestEasyWrite,
            Phase::MdtestHardStat | Phase::MdtestHardRead | Phase::MdtestHardDelete => Phase::MdtestHardWrite,
            other => other,
        }
    }

    /// Operations of one rank at most, in a phase that writes.
    pub fn count_max(self) -> u64 {
        match self.writer() {
            Phase::IorEasyWrite => EASY_TRANSFERS_MAX,
            Phase::IorHardWrite => HARD_RECORDS_MAX,
            _ => FILES_MAX,
        }
    }

    /// Bytes that one operation moves.
    pub fn bytes_each(self) -> u64 {
        let bytes = match self {
            Phase::IorEasyWrite | Phase::IorEasyRead => EASY_TRANSFER_BYTES,
            Phase::IorHardWrite | Phase::IorHardRead => HARD_RECORD_BYTES,
            Phase::MdtestHardWrite | Phase::MdtestHardRead => SMALL_FILE_BYTES,
            _ => 0,
        };
        bytes as u64
    }

    /// Whose files `rank` takes in this phase. As with mdtest's `-N 1` each further phase goes one
    /// further, and as with ior's `-C -Q 1` data are read on another node, if there is one; no rank
    /// meets its own files as long as there are others.
    pub fn owner(self, rank: u32, procs: u32, procs_on_node: u32) -> u32 {
        let step = match self {
            Phase::IorEasyRead | Phase::IorHardRead if procs_on_node < procs => procs_on_node,
            Phase::IorEasyRead | Phase::IorHardRead | Phase::MdtestEasyStat | Phase::MdtestHardStat => 1,
            Phase::MdtestHardRead => 2,
            Phase::MdtestEasyDelete | Phase::MdtestHardDelete => 3,
            _ => return rank,
        };
        if procs == 1 { rank } else { (rank + 1 + (step - 1) % (procs - 1)) % procs }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Every directory that a run needs, those above first.
pub fn directories(procs: u32) -> Vec<String> {
    let shared =
        ["ior-easy", "ior-hard", "mdtest-easy", "mdtest-easy/test-dir.0-0", "mdtest-hard", "mdtest-hard/test-dir.0-0"];
    let shared = shared.into_iter().map(String::from).chain(["mdtest-hard/test-dir.0-0/mdtest_tree.0".to_string()]);
    shared.chain((0..procs).map(|rank| format!("mdtest-easy/test-dir.0-0/mdtest_tree.{rank}.0"))).collect()
}

/// Where a rank's share of the shared file's record `index` begins: records of all ranks take turns.
pub fn hard_offset(index: u64, rank: u32, procs: u32) -> u64 {
    (index * u64::from(procs) + u64::from(rank)) * HARD_RECORD_BYTES as u64
}

/// File names, made in memory that is used again: in the metadata phases every name is used once.
#[derive(Default)]
pub struct Names {
    text: String,
}

impl Names {
    /// The file of a rank in the easy bandwidth phases.
    pub fn easy(&mut self, rank: u32) -> &str {
        self.set(format_args!("ior-easy/ior_file_easy.{rank:08}"))
    }

    /// File `index` of a rank in the metadata phases.
    pub fn file(&mut self, phase: Phase, rank: u32, index: u64) -> &str {
        match phase.writer() {
            Phase::MdtestEasyWrite => {
                self.set(format_args!("mdtest-easy/test-dir.0-0/mdtest_tree.{rank}.0/file.mdtest.{rank}.{index}"))
            }
            _ => self.set(format_args!("mdtest-hard/test-dir.0-0/mdtest_tree.0/file.mdtest.{rank}.{index}")),
        }
    }

    /// The file that a rank writes to touch memory.
    pub fn warm(&mut self, rank: u32, index: u64) -> &str {
        self.set(format_args!("mdtest-easy/test-dir.0-0/mdtest_tree.{rank}.0/warm.{index}"))
    }

    fn set(&mut self, text: fmt::Arguments<'_>) -> &str {
        self.text.clear();
        self.text.write_fmt(text).expect("writing into a string does not fail");
        &self.text
    }
}

/// How many of the small files have names that are found, if each rank has made `count`.
pub fn found_names(procs: u32, count: u64) -> u64 {
    let mut names = Names::default();
    let mut found = 0;
    for rank in 0..procs {
        for index in 0..count {
            let path = names.file(Phase::MdtestHardWrite, rank, index).as_bytes();
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
            found += u64::from(is_found(name));
        }
    }
    found
}

/// Whether a name fits the pattern of the search.
pub fn is_found(name: &[u8]) -> bool {
    name.windows(FOUND_PART.len()).any(|part| part == FOUND_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_its_own_files_and_all_files_are_taken() {
        for (procs, on_node) in (2..9).flat_map(|procs| (1..=procs).map(move |on_node| (procs, on_node))) {
            for phase in Phase::ALL.into_iter().filter(|phase| phase.writer() != *phase) {
                let mut owners: Vec<u32> = (0..procs).map(|rank| phase.owner(rank, procs, on_node)).collect();
                assert!((0..procs).zip(&owners).all(|(rank, owner)| rank != *owner), "{phase} with {procs}");
                owners.sort();
                assert_eq!(owners, (0..procs).collect::<Vec<_>>(), "{phase} with {procs}, {on_node} on a node");
            }
        }
        assert_eq!(Phase::IorEasyRead.owner(1, 8, 4), 5, "data are read on another node");
        assert_eq!(Phase::MdtestEasyStat.owner(1, 8, 4), 2);
        assert_eq!(Phase::IorEasyRead.owner(0, 1, 1), 0);
    }

    #[test]
    fn names_and_places_are_the_official_ones() {
        let mut names = Names::default();
        assert_eq!(names.easy(3), "ior-easy/ior_file_easy.00000003");
        let easy = "mdtest-easy/test-dir.0-0/mdtest_tree.2.0/file.mdtest.2.17";
        assert_eq!(names.file(Phase::MdtestEasyDelete, 2, 17), easy);
        let hard = "mdtest-hard/test-dir.0-0/mdtest_tree.0/file.mdtest.2.17";
        assert_eq!(names.file(Phase::MdtestHardRead, 2, 17), hard);
        assert_eq!(hard_offset(0, 1, 4), 47_008);
        assert_eq!(hard_offset(2, 3, 4), 47_008 * 11);
        assert_eq!(found_names(2, 102), 2, "only number 101 of each rank");
    }
}
