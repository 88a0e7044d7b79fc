//! The kernel's words for what the protocol says, and back.

use crate::abi::Out;
use crate::nodes;
use crate::reply::Errno;
use aze_proto::attr::{Attr, FileKind, SetTime};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::{Ino, Time};
use aze_proto::name::{BadName, Name};
use std::time::Duration;

/// What programs are told to read and write at once, in bytes, where the chunk is not smaller: one
/// FUSE request.
const BLOCK_SIZE_BEST: u64 = 1 << 20;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// An inode number is never issued twice, so the kernel need not tell two files of one number apart.
const ONE_GENERATION: u64 = 0;

/// Writes attributes.
pub fn put_attr(out: &mut Out, attr: &Attr) {
    out.u64(attr.ino.0);
    out.u64(attr.size);
    // Holes are not counted: which chunks exist is known to the data servers only.
    out.u64(attr.blocks());
    let times = [attr.atime, attr.mtime, attr.ctime];
    for time in times {
        out.u64(time.0 / SECOND_NS);
    }
    for time in times {
        out.u32((time.0 % SECOND_NS) as u32);
    }
    out.u32(attr.kind.mode_bits() | (attr.mode & 0o7777));
    for value in [attr.links, attr.uid, attr.gid, attr.rdev] {
        out.u32(value);
    }
    out.u32(attr.chunk_bytes().min(BLOCK_SIZE_BEST) as u32);
    out.u32(0);
}

/// Writes what a `GETATTR` or `SETATTR` answers; good for as long as `left`.
pub fn put_aged(out: &mut Out, attr: &Attr, left: Duration) {
    out.u64(left.as_secs());
    out.u32(left.subsec_nanos());
    out.zeros(4);
    put_attr(out, attr);
}

/// Writes a name's inode and attributes, valid for `left`. The kernel follows a symbolic link without asking
/// for anything but its name, so that is asked for every time.
pub fn put_entry(out: &mut Out, attr: &Attr, left: Duration) {
    let name_left = if attr.kind == FileKind::Symlink { Duration::ZERO } else { left };
    put_entry_head(out, nodes::node(attr.ino.0), name_left, left);
    put_attr(out, attr);
}

fn put_entry_head(out: &mut Out, node: u64, name_left: Duration, attr_left: Duration) {
    out.u64(node);
    out.u64(ONE_GENERATION);
    out.u64(name_left.as_secs());
    out.u64(attr_left.as_secs());
    out.u32(name_left.subsec_nanos());
    out.u32(attr_left.subsec_nanos());
}

/// Writes `.` or `..` of a listing with attributes; the kernel uses number and kind only.
pub fn put_dots_entry(out: &mut Out, dir: Ino) {
    put_entry_head(out, 0, Duration::ZERO, Duration::ZERO);
    out.u64(dir.0);
    out.zeros(52);
    out.u32(FileKind::Directory.mode_bits());
    out.zeros(24);
}

/// The number by which the kernel names a kind in listings: `DT_*` of readdir(3).
pub fn listed_kind(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// A name that the kernel gave.
pub fn name(name: &[u8]) -> Result<Name, Failure> {
    Name::new(name).map_err(|bad| match bad {
        BadName::TooLong => Code::NameTooLong.into(),
        BadName::Invalid => Code::Invalid.into(),
    })
}

/// A time to set. Times before 1970 and after 2554 become the nearest one that can be kept, as
/// other file systems of limited range do it (utimensat(2) knows no error for it).
pub fn set_time(seconds: u64, nanoseconds: u32) -> SetTime {
    let time = match i64::try_from(seconds) {
        Ok(_) => seconds.saturating_mul(SECOND_NS).saturating_add(u64::from(nanoseconds)),
        // It is a negative number.
        Err(_) => 0,
    };
    SetTime::To { time: Time(time) }
}

/// The error number of a failure.
pub fn errno(failure: &Failure) -> Errno {
    Errno(failure.code.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_ways() {
        assert_eq!(set_time(1_700_000_000, 123_456_789), SetTime::To { time: Time(1_700_000_000_123_456_789) });
        assert_eq!(set_time(-5i64 as u64, 0), SetTime::To { time: Time(0) });
        assert_eq!(set_time(1 << 40, 0), SetTime::To { time: Time(u64::MAX) });
    }

    #[test]
    fn names_that_the_protocol_refuses_have_an_error_number() {
        assert_eq!(errno(&name(&[b'x'; 256]).unwrap_err()).0, libc::ENAMETOOLONG);
        assert_eq!(errno(&name(b"..").unwrap_err()).0, libc::EINVAL);
        assert!(name(b"\xff\n").is_ok());
    }

    #[test]
    fn layouts_are_as_long_as_the_kernel_takes_them() {
        let mut out = Out::new(512);
        put_dots_entry(&mut out, Ino(1));
        assert_eq!((out.len(), listed_kind(FileKind::Directory)), (128, libc::DT_DIR.into()));
    }
}
