//! Room for files: fallocate(2), and lseek(2) to data and holes.

use crate::abi::{Args, Header, Out};
use crate::door::Door;
use crate::reply::Errno;
use aze_client::Room;
use aze_proto::error::{Code, Failure};

/// fallocate(2). Modes that move what follows the range are not there: the kernel refuses them with
/// EOPNOTSUPP, and so does this.
pub fn fallocate(door: &Door, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
    let (handle, offset, len, mode) = (args.u64()?, args.u64()?, args.u64()?, args.u32()? as i32);
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let room = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Room::Reserved,
        libc::FALLOC_FL_ZERO_RANGE => Room::Zeroed,
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Room::Hole,
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    let file = door.file(handle)?;
    door.serve("fallocate of", header.node, file.make_room(room, offset, len, keep_size))
}

/// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`; the kernel does the rest by itself.
pub fn lseek(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
    let (handle, offset, whence) = (args.u64()?, args.u64()?, args.u32()? as i32);
    let hole = match whence {
        libc::SEEK_DATA => false,
        libc::SEEK_HOLE => true,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let file = door.file(handle)?;
    let found = door.serve("lseek in", header.node, async {
        match file.seek(offset, hole).await {
            Err(Failure { code: Code::NotFound, .. }) => Ok(None),
            found => found.map(Some),
        }
    })?;
    out.u64(found.ok_or(Errno(libc::ENXIO))?);
    Ok(())
}
