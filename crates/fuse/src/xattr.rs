//! The kernel's requests about extended attributes, access control lists among them.

use crate::abi::{Args, Header, Out};
use crate::door::{Door, ino};
use crate::reply::Errno;
use aze_proto::XattrHow;
use aze_proto::error::{Code, Failure};

/// Rights of a program of its own. Mounts are `nosuid`, so that it would have no effect; and the kernel
/// asks for it before writes, which must not cost a question to the servers.
const CAPABILITY: &[u8] = b"security.capability";

/// Sets one.
pub fn set(door: &Door, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
    let (size, flags) = (args.u32()?, args.u32()? as i32);
    let name = args.text()?;
    let value = args.bytes(size as usize)?;
    if name == CAPABILITY {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let how = match flags {
        0 => XattrHow::Any,
        libc::XATTR_CREATE => XattrHow::Create,
        libc::XATTR_REPLACE => XattrHow::Replace,
        _ => return Err(Errno(libc::EINVAL)),
    };
    door.came_by_name(header, header.node)?;
    let who = door.callers.who(header);
    door.serve("setxattr of", header.node, door.client.set_xattr(&who, ino(header.node), name, value, how))
}

/// Removes one.
pub fn remove(door: &Door, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
    let name = args.text()?;
    door.came_by_name(header, header.node)?;
    let who = door.callers.who(header);
    door.serve("removexattr of", header.node, door.client.remove_xattr(&who, ino(header.node), name))
}

/// Gives one.
pub fn get(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
    let size = args.u32()?;
    args.skip(4)?;
    let name = args.text()?;
    if name == CAPABILITY {
        return Err(Errno(libc::ENODATA));
    }
    door.came_by_name(header, header.node)?;
    let who = door.callers.who(header);
    let value = door.serve("getxattr of", header.node, async {
        let value = door.client.get_xattr_within(&who, ino(header.node), name, door.cache_time).await;
        unless_removed(door, header, value.map(Some), None)
    })?;
    // The kernel looks for access control lists of a directory that is removed, too.
    answer(out, size, &value.ok_or(Errno(libc::ENODATA))?)
}

/// Gives the names, each with a NUL at its end.
pub fn list(door: &Door, header: &Header, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
    let size = args.u32()?;
    door.came_by_name(header, header.node)?;
    let who = door.callers.who(header);
    let names = door.serve("listxattr of", header.node, async {
        let names = door.client.list_xattr(&who, ino(header.node)).await;
        unless_removed(door, header, names, Vec::new())
    })?;
    let list: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
    answer(out, size, &list)
}

/// The answer; `none` for a directory that was removed while a program is there.
fn unless_removed<T>(door: &Door, header: &Header, answer: Result<T, Failure>, none: T) -> Result<T, Failure> {
    match answer {
        Err(gone) if gone.code == Code::Stale && door.removed.attr(ino(header.node)).is_some() => Ok(none),
        answer => answer,
    }
}

/// Without room the caller wants to know how much it takes.
fn answer(out: &mut Out, room: u32, bytes: &[u8]) -> Result<(), Errno> {
    if room == 0 {
        out.u32(u32::try_from(bytes.len()).map_err(|_| Errno(libc::E2BIG))?);
        out.zeros(4);
        return Ok(());
    }
    if bytes.len() > room as usize {
        return Err(Errno(libc::ERANGE));
    }
    out.room(bytes.len()).ok_or(Errno(libc::E2BIG))?.copy_from_slice(bytes);
    out.filled(bytes.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_given_where_there_is_room_for_it() {
        let mut out = Out::new(16);
        assert_eq!(answer(&mut out, 5, b"value"), Ok(()));
        assert_eq!(out.written(), b"value");
        out.clear();
        assert_eq!(answer(&mut out, 4, b"value"), Err(Errno(libc::ERANGE)));
        assert_eq!(out.len(), 0);
        assert_eq!(answer(&mut out, 100, &[1; 17]), Err(Errno(libc::E2BIG)), "more than one reply holds");
        assert_eq!(answer(&mut out, 100, b""), Ok(()));
        assert_eq!(out.len(), 0, "an empty value");
    }

    #[test]
    fn without_room_only_the_length_is_told() {
        let mut out = Out::new(16);
        assert_eq!(answer(&mut out, 0, b"value"), Ok(()));
        assert_eq!(out.written(), [5u32.to_ne_bytes(), [0; 4]].concat());
    }
}
