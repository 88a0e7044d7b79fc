"""Volumes, with functions as in the module os."""

from __future__ import annotations

import errno
import os
import stat as modes
from typing import IO, TYPE_CHECKING, Any, Iterable, Iterator, Sequence

from . import _azekura
from ._azekura import Request
from ._file import Mode, RawFile, check, wrapped

if TYPE_CHECKING:
    from .aio import AsyncVolume

Path = Any  # str, bytes or os.PathLike; a path begins at the root of the volume, with or without "/"

# Requests of one call that are under way at a time: enough to keep all servers of a small volume busy.
AT_ONCE = 64

_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2

_SECOND_NS = 1_000_000_000


def stat_result(fields: tuple[int, ...]) -> os.stat_result:
    """What os.stat() would give for the attributes that a request gave."""
    ino, mode, links, uid, gid, rdev, size, block_bytes, blocks, *times = fields
    atime, mtime, ctime = times[:3]
    more = {
        "st_atime": atime / _SECOND_NS, "st_mtime": mtime / _SECOND_NS, "st_ctime": ctime / _SECOND_NS,
        "st_atime_ns": atime, "st_mtime_ns": mtime, "st_ctime_ns": ctime,
        "st_blksize": block_bytes, "st_blocks": blocks, "st_rdev": rdev,
    }  # fmt: skip
    seconds = [time // _SECOND_NS for time in (atime, mtime, ctime)]
    return os.stat_result((mode, ino, 0, links, uid, gid, size, *seconds), more)


def join(directory: Path, name: str) -> str:
    """The path of a directory's entry."""
    return os.path.join(os.fsdecode(directory), name)


class DirEntry:
    """An entry of a directory, as os.DirEntry: what it is comes with the listing; `stat` asks servers."""

    __slots__ = ("_ino", "_kind", "_volume", "name", "path")

    def __init__(self, volume: Volume, directory: Path, name: str, ino: int, kind: str) -> None:
        self._volume, self._ino, self._kind = volume, ino, kind
        self.name = name
        self.path = join(directory, name)

    def __repr__(self) -> str:
        return f"<azekura.DirEntry {self.name!r}>"

    def __fspath__(self) -> str:
        return self.path

    def inode(self) -> int:
        """The inode's number."""
        return self._ino

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self._kind == "l"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a directory, or a symbolic link to one. Asks servers for links only."""
        if self._kind == "l" and follow_symlinks:
            return self._volume.isdir(self.path)
        return self._kind == "d"

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file, or a symbolic link to one. Asks servers for links only."""
        if self._kind == "l" and follow_symlinks:
            return self._volume.isfile(self.path)
        return self._kind == "f"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Its attributes, asked for each time."""
        return self._volume.stat(self.path, follow_symlinks=follow_symlinks)


class Scan:
    """The entries of os.scandir(), which were read at once: an iterator and a context manager."""

    def __init__(self, entries: Iterator[DirEntry]) -> None:
        self._entries = entries

    def __iter__(self) -> Scan:
        return self

    def __next__(self) -> DirEntry:
        return next(self._entries)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the entries that were not taken."""
        self._entries = iter(())


class Volume:
    """A volume that runs: that of this name, else the one that the variable AZE_VOLUME names, else your only one.

    Connects at once: FileNotFoundError if there is none, OSError with EINVAL if it is unclear which is meant, PermissionError
    without its secret, OSError with EHOSTUNREACH if its servers do not answer. Any number of threads may use it, and forked
    processes, too. It can be pickled: what is unpickled opens the volume of the same name. `with` closes it at the end.
    """

    def __init__(self, name: str | None = None) -> None:
        self._volume = _azekura.Volume(name)
        self._aio: AsyncVolume | None = None

    def __repr__(self) -> str:
        return f"<azekura.Volume {self.name!r}>"

    def __reduce__(self) -> Any:
        return Volume, (self.name,)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Its name."""
        return self._volume.name

    @property
    def servers(self) -> int:
        """How many servers it has."""
        return self._volume.servers()

    @property
    def aio(self) -> AsyncVolume:
        """The same volume for asyncio."""
        if self._aio is None:
            from .aio import AsyncVolume

            self._aio = AsyncVolume(self._volume)
        return self._aio

    def close(self) -> None:
        """Ends this process's connection: open files fail from now on, as does every call. Again is harmless."""
        self._volume.close()

    def umask(self, mask: int) -> int:
        """Sets the permission bits that new files do not get; gives those before. At first they are the process's."""
        return self._volume.umask(mask)

    # Files

    def open(
        self,
        path: Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
        chunk_size: int = 0,
    ) -> IO[Any]:
        """Opens a file as the builtin open() does: the same modes, layers and exceptions.

        `buffering` is the size of the buffer in bytes, 64 KiB if not given; 0 gives a RawFile, and is for binary modes.
        `permissions` are those of a new file before the umask. `chunk_size` is in bytes for a new file, rounded up to a power
        of two from 64 KiB to 16 MiB; 0: that of its directory.
        """
        parsed = Mode(mode)
        check(parsed, buffering, encoding, errors, newline)
        file = self._volume.wait(Request.open(path, parsed.flags, permissions, chunk_size))
        return wrapped(RawFile(file, path, parsed, self._volume), parsed, buffering, encoding, errors, newline)

    def read_bytes(self, path: Path, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of a file from `start` up to `end`, or up to its end. One request for a file of up to 64 KiB."""
        return self._volume.wait(Request.read(path, start, end))

    def readinto(self, path: Path, buffer: Any, start: int = 0) -> int:
        """Fills memory from a file; gives how many bytes, fewer only at its end."""
        return self._volume.wait(Request.readinto(path, start, buffer))

    def write_bytes(self, path: Path, data: Any, *, permissions: int = 0o666, chunk_size: int = 0) -> int:
        """Makes a file of these bytes, in place of what it had; gives their number. Readers may see a part of it meanwhile."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return self._volume.wait(Request.write(path, data, flags, permissions, chunk_size))

    def read_many(
        self, paths: Iterable[Path], ranges: Iterable[tuple[int, int | None]] | None = None, *, at_once: int = AT_ONCE
    ) -> list[bytes | OSError]:
        """Files, or ranges of them (`(start, end)` each), read at the same time, `at_once` at most: a list with the bytes of each
        or its OSError, which is not raised."""
        if ranges is None:
            requests = [Request.read(path, 0, None) for path in paths]
        else:
            requests = [Request.read(path, start, end) for path, (start, end) in zip(paths, ranges, strict=True)]
        return self._volume.wait_all(requests, at_once)

    def write_many(self, files: Iterable[tuple[Path, Any]], *, at_once: int = AT_ONCE) -> None:
        """Makes files of `(path, data)` each, `at_once` at most at the same time. The first failure is raised after all are
        done."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._all([Request.write(path, data, flags, 0o666, 0) for path, data in files], at_once)

    def _all(self, requests: Sequence[Request], at_once: int = AT_ONCE) -> list[Any]:
        done = self._volume.wait_all(requests, at_once)
        for outcome in done:
            if isinstance(outcome, OSError):
                raise outcome
        return done

    # Attributes

    def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """As os.stat(); `st_dev` is 0."""
        return stat_result(self._volume.wait(Request.stat(path, follow_symlinks)))

    def lstat(self, path: Path) -> os.stat_result:
        """As os.lstat()."""
        return self.stat(path, follow_symlinks=False)

    def _mode(self, path: Path, follow: bool = True) -> int:
        """The mode, or 0 if the path leads to nothing. Other failures are raised: they are no answer."""
        try:
            return self._volume.wait(Request.stat(path, follow))[1]
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
                return 0
            raise

    def exists(self, path: Path) -> bool:
        """Whether the path leads to something. OSError if that cannot be found out: unlike os.path.exists(), which then says
        no."""
        return self._mode(path) != 0

    def lexists(self, path: Path) -> bool:
        """As `exists`, also for a symbolic link that leads to nothing."""
        return self._mode(path, follow=False) != 0

    def isfile(self, path: Path) -> bool:
        """Whether the path leads to a regular file; OSError as for `exists`."""
        return modes.S_ISREG(self._mode(path))

    def isdir(self, path: Path) -> bool:
        """Whether the path leads to a directory; OSError as for `exists`."""
        return modes.S_ISDIR(self._mode(path))

    def islink(self, path: Path) -> bool:
        """Whether the path names a symbolic link; OSError as for `exists`."""
        return modes.S_ISLNK(self._mode(path, follow=False))

    def getsize(self, path: Path) -> int:
        """The length of a file in bytes."""
        return self._volume.wait(Request.stat(path, True))[6]

    def chmod(self, path: Path, mode: int, *, follow_symlinks: bool = True) -> None:
        """As os.chmod()."""
        self._volume.wait(Request.chmod(path, mode, follow_symlinks))

    def chown(self, path: Path, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """As os.chown(); -1 leaves user or group as it is."""
        user, group = (None if number == -1 else number for number in (uid, gid))
        self._volume.wait(Request.chown(path, user, group, follow_symlinks))

    def utime(
        self,
        path: Path,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """As os.utime(): times of access and data, in seconds or nanoseconds; now if neither is given."""
        if times is not None and ns is not None:
            raise ValueError("times are given in seconds or in nanoseconds, not in both")
        if times is not None:
            access, data = (int(time * _SECOND_NS) if isinstance(time, float) else time * _SECOND_NS for time in times)
            ns = access, data
        self._volume.wait(Request.utime(path, ns, follow_symlinks))

    def truncate(self, path: Path, length: int) -> None:
        """As os.truncate()."""
        self._volume.wait(Request.truncate(path, length))

    def getxattr(self, path: Path, attribute: str | bytes, *, follow_symlinks: bool = True) -> bytes:
        """As os.getxattr()."""
        return self._volume.wait(Request.getxattr(path, attribute, follow_symlinks))

    def listxattr(self, path: Path, *, follow_symlinks: bool = True) -> list[str]:
        """As os.listxattr()."""
        return self._volume.wait(Request.listxattr(path, follow_symlinks))

    def setxattr(
        self, path: Path, attribute: str | bytes, value: Any, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        """As os.setxattr()."""
        self._volume.wait(Request.setxattr(path, attribute, bytes(value), flags, follow_symlinks))

    def removexattr(self, path: Path, attribute: str | bytes, *, follow_symlinks: bool = True) -> None:
        """As os.removexattr()."""
        self._volume.wait(Request.removexattr(path, attribute, follow_symlinks))

    # Names

    def mkdir(self, path: Path, mode: int = 0o777, *, private: bool = False) -> None:
        """As os.mkdir(). All that is made below a private directory is on one server, and no other one is asked for it."""
        self._volume.wait(Request.mkdir_private(path, mode) if private else Request.mkdir(path, mode, False))

    def makedirs(self, path: Path, mode: int = 0o777, exist_ok: bool = False) -> None:
        """As os.makedirs(), in one request; `mode` is for all directories that are made."""
        if not exist_ok and self.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        try:
            self._volume.wait(Request.mkdir(path, mode, True))
        except OSError as error:
            # The path itself may be that of a file, or of a link to nothing or to itself.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) or not self.lexists(path):
                raise
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None

    def rmdir(self, path: Path) -> None:
        """As os.rmdir()."""
        self._volume.wait(Request.rmdir(path))

    def remove(self, path: Path) -> None:
        """As os.remove()."""
        self._volume.wait(Request.unlink(path))

    unlink = remove

    def rename(self, src: Path, dst: Path) -> None:
        """As os.rename(): atomic, replaces a file or an empty directory that has the new name."""
        self._volume.wait(Request.rename(src, dst, 0))

    replace = rename

    def rename_new(self, src: Path, dst: Path) -> None:
        """As `rename`, but FileExistsError if the new name exists (renameat2(2), RENAME_NOREPLACE)."""
        self._volume.wait(Request.rename(src, dst, _RENAME_NOREPLACE))

    def exchange(self, one: Path, other: Path) -> None:
        """Two names that both exist change places, atomically (renameat2(2), RENAME_EXCHANGE)."""
        self._volume.wait(Request.rename(one, other, _RENAME_EXCHANGE))

    def link(self, src: Path, dst: Path, *, follow_symlinks: bool = True) -> None:
        """As os.link()."""
        self._volume.wait(Request.link(src, dst, follow_symlinks))

    def symlink(self, src: Path, dst: Path) -> None:
        """As os.symlink(). An absolute target begins at the root of the volume, or of what a mount is in."""
        self._volume.wait(Request.symlink(src, dst))

    def readlink(self, path: Path) -> str:
        """As os.readlink()."""
        return self._volume.wait(Request.readlink(path))

    # Directories

    def listdir(self, path: Path = "/") -> list[str]:
        """As os.listdir(); names that are no UTF-8 as os.fsdecode() has them. All of them or OSError, never a part."""
        return [name for name, *_ in self._volume.wait(Request.entries(path, False))]

    def scandir(self, path: Path = "/") -> Scan:
        """As os.scandir(); all entries are read at once."""
        entries = self._volume.wait(Request.entries(path, False))
        return Scan(DirEntry(self, path, name, ino, kind) for name, ino, kind, _ in entries)

    def walk(
        self, top: Path = "/", topdown: bool = True, onerror: Any = None, followlinks: bool = False
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As os.walk(), but that a directory that cannot be listed raises OSError unless `onerror` takes it."""
        try:
            with self.scandir(top) as entries:
                found = list(entries)
        except OSError as error:
            if onerror is None:
                raise
            onerror(error)
            return
        dirs = [entry.name for entry in found if entry.is_dir()]
        links = {entry.name for entry in found if entry.is_symlink()}
        files = [name for name in (entry.name for entry in found) if name not in set(dirs)]
        top = os.fsdecode(top)
        if topdown:
            yield top, dirs, files
        for name in dirs:
            if followlinks or name not in links:
                yield from self.walk(join(top, name), topdown, onerror, followlinks)
        if not topdown:
            yield top, dirs, files

    def rmtree(self, path: Path) -> None:
        """Removes a directory and all in it, many names at a time. OSError at the first that cannot be removed; the rest of it
        is there then. Symbolic links are removed, not followed."""
        if self.islink(path):
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link is no tree: remove() removes it", path)
        dirs = [os.fsdecode(path)]
        for directory in dirs:
            entries = self._volume.wait(Request.entries(directory, False))
            dirs.extend(join(directory, name) for name, _, kind, _ in entries if kind == "d")
            self._all([Request.unlink(join(directory, name)) for name, _, kind, _ in entries if kind != "d"])
        for directory in reversed(dirs):
            self._volume.wait(Request.rmdir(directory))

    # The volume

    def statvfs(self) -> os.statvfs_result:
        """The space of the volume, as os.statvfs()."""
        return os.statvfs_result(self._volume.wait(Request.statvfs()))

    def sync(self) -> None:
        """Makes durable all that any program has been told is done, as far as the volume keeps anything."""
        self._volume.wait(Request.sync())
