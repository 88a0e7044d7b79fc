//! How a directory becomes a mount and stops being one: mount(2) by root, fusermount3(1) by other users.

use crate::MountOptions;
use crate::device::{self, Device};
use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// The file system's type as the system's lists show it.
const TYPE: &str = "fuse.aze";

/// Mounts at `dir` and gives the device, from which nothing has been read yet.
///
/// # Errors
/// What the system or fusermount3(1) said.
pub fn mount(dir: &Path, options: &MountOptions) -> io::Result<Device> {
    // SAFETY: geteuid(2) takes nothing and always succeeds.
    if unsafe { libc::geteuid() } == 0 { mount_as_root(dir, options) } else { mount_by_helper(dir, options) }
}

fn source(options: &MountOptions) -> String {
    format!("azekura:{}", options.volume)
}

fn mount_as_root(dir: &Path, options: &MountOptions) -> io::Result<Device> {
    let device = Device::open()?;
    mount_device(&device, dir, options)?;
    Ok(device)
}

/// Mounts `device` at `dir` by mount(2), for the user of this process.
///
/// # Errors
/// What the system said.
pub fn mount_device(device: &Device, dir: &Path, options: &MountOptions) -> io::Result<()> {
    // SAFETY: geteuid(2) and getegid(2) take nothing and always succeed.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let others = if options.allow_other { ",allow_other" } else { "" };
    let data = format!(
        "fd={},rootmode={:o},user_id={user},group_id={group},default_permissions{others}",
        device.descriptor(),
        libc::S_IFDIR
    );
    let flags = libc::MS_NOSUID | libc::MS_NODEV | if options.read_only { libc::MS_RDONLY } else { 0 };
    let (source, dir) = (CString::new(source(options))?, CString::new(dir.as_os_str().as_bytes())?);
    let (kind, data) = (CString::new(TYPE)?, CString::new(data)?);
    // SAFETY: all pointers are strings that end in NUL and live until the call returns.
    let done = unsafe { libc::mount(source.as_ptr(), dir.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The helper mounts in our place and hands the device over on a socket whose number it finds in its
/// environment; here that is its standard input.
fn mount_by_helper(dir: &Path, options: &MountOptions) -> io::Result<Device> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("run fusermount3: {error}")))?;
    let received = receive_descriptor(&ours);
    let mut said = String::new();
    if let Some(mut output) = child.stderr.take() {
        // Its message matters only if it has failed, which its status tells.
        let _ = output.read_to_string(&mut said);
    }
    let status = child.wait()?;
    match received {
        Ok(Some(descriptor)) if status.success() => Ok(Device::adopt(descriptor)),
        Err(error) => Err(error),
        _ => Err(io::Error::other(match said.trim() {
            "" => format!("fusermount3 ended without a mount: {status}"),
            said => said.to_owned(),
        })),
    }
}

fn helper_options(options: &MountOptions) -> String {
    // In its list of options a comma ends one; a backslash takes that meaning from it.
    let source = source(options).replace('\\', "\\\\").replace(',', "\\,");
    let access = if options.read_only { "ro" } else { "rw" };
    let others = if options.allow_other { ",allow_other" } else { "" };
    format!("{access},nosuid,nodev,fsname={source},subtype=aze,default_permissions{others}")
}

/// Waits for the one message of the helper; `None` if it closes the socket without a descriptor.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // Room for one descriptor, aligned as the system wants it.
    let mut control = [0u64; 8];
    // SAFETY: a message header of zeros is a valid value: no name, no parts, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control);
    let count = loop {
        // SAFETY: the header points to values that live until the call returns.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
        if count >= 0 {
            break count;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    // SAFETY: the system has filled in the header.
    let first = unsafe { libc::CMSG_FIRSTHDR(&message) };
    if count == 0 || first.is_null() {
        return Ok(None);
    }
    // SAFETY: it points into `control`, which holds a whole control message.
    let (level, kind, len) = unsafe { ((*first).cmsg_level, (*first).cmsg_type, (*first).cmsg_len) };
    // SAFETY: a computation only.
    let expected = unsafe { libc::CMSG_LEN(mem::size_of::<RawFd>() as u32) } as usize;
    if (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) || len < expected {
        return Ok(None);
    }
    // SAFETY: the message holds at least one descriptor, perhaps unaligned.
    let number = unsafe { libc::CMSG_DATA(first).cast::<RawFd>().read_unaligned() };
    // SAFETY: the system has just opened it for us.
    Ok(Some(unsafe { device::own(number) }))
}

/// Unmounts `dir`. With `detach` a mount in use disappears at once and ends with its last user.
///
/// # Errors
/// `ResourceBusy` if it is in use and `detach` is not given; what the system said otherwise.
pub fn unmount(dir: &Path, detach: bool) -> io::Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if detach { libc::MNT_DETACH } else { 0 };
    // SAFETY: `path` is a string that ends in NUL and lives until the call returns.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args(detach.then_some(OsStr::new("-z"))).arg("--").arg(dir);
    let output = helper.output().map_err(|error| io::Error::new(error.kind(), format!("run fusermount3: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if text.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_end_the_helpers_option() {
        let cache_time = crate::CACHE_TIME_DEFAULT;
        let options = MountOptions {
            volume: r"a,b\c".into(),
            read_only: true,
            allow_other: true,
            threads: 1,
            cache_time,
            direct_io: false,
            fuse_io: crate::FuseIo::Auto,
        };
        let text = helper_options(&options);
        assert_eq!(text, r"ro,nosuid,nodev,fsname=azekura:a\,b\\c,subtype=aze,default_permissions,allow_other");
    }

    #[test]
    fn a_descriptor_comes_through_the_socket_or_it_is_noticed() {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        drop(theirs);
        assert!(receive_descriptor(&ours).expect("the end of a socket is no error").is_none());
    }
}
