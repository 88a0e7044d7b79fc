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
    let (room, keep_size) = wanted(mode).ok_or(Errno(libc::EOPNOTSUPP))?;
    let file = door.file(handle)?;
    door.serve("fallocate of", header.node, file.make_room(room, offset, len, keep_size))
}

/// What a mode asks for, and whether the file keeps its length.
fn wanted(mode: i32) -> Option<(Room, bool)> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let room = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Room::Reserved,
        libc::FALLOC_FL_ZERO_RANGE => Room::Zeroed,
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Room::Hole,
        _ => return None,
    };
    Some((room, keep_size))
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

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};

    #[test]
    fn the_modes_of_fallocate_are_those_of_its_page() {
        assert_eq!(wanted(0), Some((Room::Reserved, false)));
        assert_eq!(wanted(FALLOC_FL_KEEP_SIZE), Some((Room::Reserved, true)));
        assert_eq!(wanted(FALLOC_FL_ZERO_RANGE), Some((Room::Zeroed, false)));
        assert_eq!(wanted(FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE), Some((Room::Zeroed, true)));
        assert_eq!(wanted(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), Some((Room::Hole, true)));
        for refused in [
            FALLOC_FL_PUNCH_HOLE,
            FALLOC_FL_COLLAPSE_RANGE,
            FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
        ] {
            assert_eq!(wanted(refused), None, "mode {refused:#x}");
        }
    }
}
