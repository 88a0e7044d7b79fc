//! The kernel's words for what the protocol says, and back.

use aze_proto::attr::{Attr, FileKind, SetTime};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Time;
use aze_proto::name::{BadName, Name};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What programs are told to read and write at once, in bytes, where the chunk is not smaller: one
/// FUSE request.
const BLOCK_SIZE_BEST: u64 = 1 << 20;

/// Attributes in the kernel's form.
pub fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        // Holes are not counted: which chunks exist is known to the data servers only.
        blocks: if attr.kind == FileKind::File { attr.size.div_ceil(512) } else { 0 },
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.chunk_bytes().min(BLOCK_SIZE_BEST) as u32,
        flags: 0,
    }
}

/// A kind of file in the kernel's form.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// A name that the kernel gave.
pub fn name(name: &OsStr) -> Result<Name, Failure> {
    Name::new(name.as_bytes()).map_err(|bad| match bad {
        BadName::TooLong => Code::NameTooLong.into(),
        BadName::Invalid => Code::Invalid.into(),
    })
}

/// A time to set. Times before 1970 and after 2554 become the nearest one that can be kept, as
/// other file systems of limited range do it (utimensat(2) knows no error for it).
pub fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            SetTime::To { time: Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)) }
        }
    }
}

/// The error number of a failure.
pub fn errno(failure: &Failure) -> Errno {
    Errno::from_i32(failure.code.errno())
}

fn system_time(time: Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(time.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_ways() {
        let time = Time(1_700_000_000_123_456_789);
        assert_eq!(set_time(TimeOrNow::SpecificTime(system_time(time))), SetTime::To { time });
        assert_eq!(set_time(TimeOrNow::Now), SetTime::Now);
        let early = UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(set_time(TimeOrNow::SpecificTime(early)), SetTime::To { time: Time(0) });
    }

    #[test]
    fn names_that_the_protocol_refuses_have_an_error_number() {
        assert_eq!(errno(&name(OsStr::new(&"x".repeat(256))).unwrap_err()).code(), libc::ENAMETOOLONG);
        assert_eq!(errno(&name(OsStr::new("..")).unwrap_err()).code(), libc::EINVAL);
        assert!(name(OsStr::from_bytes(b"\xff\n")).is_ok());
    }
}
