//! Flags of open(2).

use crate::error::{Error, Result};
use aze_client::Access;
use aze_proto::limits::{CHUNK_BITS_MAX, CHUNK_BITS_MIN};

/// Flags that change nothing here: descriptors are no descriptors of the system, all is large files, and nothing is
/// buffered but contents that come with the open.
const WITHOUT_EFFECT: i32 = libc::O_CLOEXEC | libc::O_LARGEFILE | libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_NOATIME;

/// What an open asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Reading, writing or both.
    pub access: Access,
    /// With `access` for reading only: the first call that writes opens it for that, too, by its inode. Until then
    /// reads of a small file take the contents that came with the open. No bit of open(2).
    pub writes_later: bool,
    /// `O_CREAT`.
    pub create: bool,
    /// `O_EXCL`, which counts together with `O_CREAT` only.
    pub exclusive: bool,
    /// `O_TRUNC`.
    pub truncate: bool,
    /// `O_APPEND`.
    pub append: bool,
    /// `O_SYNC` or `O_DSYNC`: a write returns when it is as durable as after fsync(2).
    pub sync: bool,
    /// `O_DIRECTORY`.
    pub directory: bool,
    /// `O_NOFOLLOW`.
    pub no_follow: bool,
    /// `O_DIRECT`: contents do not come along with the open.
    pub direct: bool,
    /// Base-2 logarithm of the chunk size in bytes of a file that is made; 0: that of its directory. No bits of open(2).
    pub chunk_bits: u8,
}

impl Flags {
    /// Takes the bits of open(2) apart.
    ///
    /// # Errors
    /// EINVAL for bits that are not supported: `O_TMPFILE`, `O_PATH`, `O_ASYNC` and unknown ones.
    pub fn parse(bits: i32) -> Result<Flags> {
        let has = |bit: i32| bits & bit == bit;
        let access = match bits & libc::O_ACCMODE {
            libc::O_RDONLY => Access { read: true, write: false },
            libc::O_WRONLY => Access { read: false, write: true },
            libc::O_RDWR => Access { read: true, write: true },
            _ => return Err(Error::new(libc::EINVAL, "an open is for reading, for writing or for both")),
        };
        let flags = Flags {
            access,
            writes_later: false,
            create: has(libc::O_CREAT),
            exclusive: has(libc::O_CREAT | libc::O_EXCL),
            truncate: has(libc::O_TRUNC),
            append: has(libc::O_APPEND),
            sync: has(libc::O_DSYNC),
            directory: has(libc::O_DIRECTORY) && !has(libc::O_TMPFILE),
            no_follow: has(libc::O_NOFOLLOW),
            direct: has(libc::O_DIRECT),
            chunk_bits: 0,
        };
        let known = libc::O_ACCMODE
            | libc::O_CREAT
            | libc::O_EXCL
            | libc::O_TRUNC
            | libc::O_APPEND
            | libc::O_SYNC
            | libc::O_DIRECTORY
            | libc::O_NOFOLLOW
            | libc::O_DIRECT
            | WITHOUT_EFFECT;
        match bits & !known {
            0 => Ok(flags),
            unknown => Err(Error::new(libc::EINVAL, format!("flags {unknown:#o} of open(2) are not supported"))),
        }
    }

    /// For reading and writing, and nothing else.
    pub fn read_write() -> Flags {
        Flags {
            access: Access { read: true, write: true },
            writes_later: false,
            create: false,
            exclusive: false,
            truncate: false,
            append: false,
            sync: false,
            directory: false,
            no_follow: false,
            direct: false,
            chunk_bits: 0,
        }
    }
}

/// The chunk size that comes nearest to so many bytes, from above, as [`Flags::chunk_bits`] has it: a power of two from
/// 64 KiB to 16 MiB. 0 for 0.
pub fn chunk_bits_of(bytes: u64) -> u8 {
    match bytes {
        0 => 0,
        _ => (bytes.next_power_of_two().ilog2() as u8).clamp(CHUNK_BITS_MIN, CHUNK_BITS_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_rounded_up() {
        let cases = [(0, 0), (1, 16), (65_536, 16), (65_537, 17), (1 << 20, 20), (3 << 20, 22), (1 << 30, 24)];
        for (bytes, bits) in cases {
            assert_eq!(chunk_bits_of(bytes), bits, "{bytes}");
        }
    }

    #[test]
    fn bits_are_those_of_open() {
        let plain = Flags::read_write();
        assert_eq!(Flags::parse(libc::O_RDWR | libc::O_CLOEXEC), Ok(plain));
        let read = Access { read: true, write: false };
        assert_eq!(Flags::parse(libc::O_RDONLY | libc::O_EXCL), Ok(Flags { access: read, ..plain }));
        let all = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND | libc::O_SYNC;
        let expected = Flags { create: true, exclusive: true, truncate: true, append: true, sync: true, ..plain };
        assert_eq!(Flags::parse(all), Ok(expected));
        for refused in [libc::O_TMPFILE | libc::O_RDWR, libc::O_PATH, libc::O_ASYNC, libc::O_ACCMODE, 1 << 30] {
            assert_eq!(Flags::parse(refused).map_err(|error| error.errno), Err(libc::EINVAL), "{refused:#o}");
        }
    }
}
