"""fsspec's interface: `aze://volume/path` wherever fsspec is understood (pandas, pyarrow, polars, dask, xarray, zarr).

    fsspec.open("aze://volume/file")          # the volume of this name
    fsspec.open("aze:///file")                # the volume that is meant: that of AZE_VOLUME, else your only one
    fs = fsspec.filesystem("aze", volume="volume")

fsspec finds it by itself where this package is installed. Bulk calls have many requests under way; the methods with `_` in
front are for event loops. A listing that fails is an OSError: nothing is left out of a result because of it.
"""

from __future__ import annotations

import datetime
import errno
import functools
import io
import os
import secrets
import stat as modes
from typing import Any, Callable, Iterable

from fsspec.asyn import AsyncFileSystem, get_loop
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import has_magic
from fsspec.utils import isfilelike, stringify_path

from ._azekura import Request
from ._file import BUFFER_BYTES, Mode, RawFile
from ._volume import AT_ONCE, Volume

# Bytes that are copied at a time.
COPY_BYTES = 4 << 20

_WRITE = os.O_WRONLY | os.O_CREAT
_SECOND_NS = 1_000_000_000

# Of open(): what fsspec's files with caches of their own are told. There is no such cache here.
_WITHOUT_EFFECT = {"cache_type", "cache_options", "size"}


def _not_there(error: Exception) -> None:
    """Raises what is not the absence of a directory: its contents are unknown then."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _info(path: str, fields: tuple[int, ...]) -> dict[str, Any]:
    """What fsspec calls info, of the attributes that a request gave."""
    ino, mode, links, uid, gid, _, size, _, _, _, mtime, ctime, btime = fields
    if modes.S_ISDIR(mode):
        kind, size = "directory", 0
    else:
        kind = "file" if modes.S_ISREG(mode) else "other"
    return {
        "name": path, "size": size, "type": kind, "islink": False, "mode": mode, "uid": uid, "gid": gid, "ino": ino,
        "nlink": links, "mtime": mtime / _SECOND_NS, "ctime": ctime / _SECOND_NS, "created": btime / _SECOND_NS,
    }  # fmt: skip


def _under(directory: str, name: str) -> str:
    return directory.rstrip("/") + "/" + name


class _Reader(io.BufferedReader):
    """A file that is read. It can be pickled: what is unpickled opens the file again, at the same position."""

    def __init__(self, raw: RawFile, size: int, fs: AzekuraFileSystem, path: str) -> None:
        super().__init__(raw, size)
        self.fs, self.path = fs, path

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        return self.raw._open().size()  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return _reopened, (self.fs, self.path, self.tell())


def _reopened(fs: AzekuraFileSystem, path: str, position: int) -> _Reader:
    file = fs._open(path)
    file.seek(position)
    return file


class _Writer(io.BufferedWriter):
    """A file that is written."""

    def __init__(self, raw: RawFile, size: int, fs: AzekuraFileSystem, path: str) -> None:
        super().__init__(raw, size)
        self.fs, self.path = fs, path


class _Deferred(_Writer):
    """A file of a transaction: it has a hidden name beside its own until `commit`, which is atomic."""

    def __init__(self, raw: RawFile, size: int, fs: AzekuraFileSystem, path: str, hidden: str, replace: bool) -> None:
        super().__init__(raw, size, fs, path)
        self._hidden, self._replace = hidden, replace

    def commit(self) -> None:
        """Gives the file its name; FileExistsError if it was opened with "x" and the name exists."""
        self.close()
        rename = self.fs.volume.rename if self._replace else self.fs.volume.rename_new
        rename(self._hidden, self.path)

    def discard(self) -> None:
        """Removes the file."""
        try:
            self.close()
        finally:
            self.fs.volume.remove(self._hidden)


class _Updater(io.BufferedRandom):
    """A file that is read and written."""

    def __init__(self, raw: RawFile, size: int, fs: AzekuraFileSystem, path: str) -> None:
        super().__init__(raw, size)
        self.fs, self.path = fs, path


class AzekuraFileSystem(AsyncFileSystem):
    """A volume as fsspec's file system.

    `volume` is its name; without one it is the volume that is meant. `auto_mkdir`: directories that are missing above a new
    file are made, as programs written for object stores expect it. A path that names another volume is refused with
    ValueError. Nothing is cached.
    """

    protocol = "aze"
    root_marker = "/"
    cachable = True

    def __init__(self, volume: str | None = None, auto_mkdir: bool = True, **options: Any) -> None:
        if getattr(self, "_cached", False):
            return
        super().__init__(**options)
        self._name = volume
        self.auto_mkdir = auto_mkdir
        self._opened: Volume | None = None
        self._meant: str | None = None
        # A method of the class cannot know which volume this is.
        self._strip_protocol = self._own_path  # type: ignore[method-assign]

    @property
    def volume(self) -> Volume:
        """The volume, opened at the first use. OSError as for `azekura.Volume`."""
        meant = self._name or os.environ.get("AZE_VOLUME")
        if self._opened is None or meant != self._meant:
            # fsspec keeps file systems: one without a name follows the variable.
            self._opened, self._meant = Volume(self._name), meant
        return self._opened

    @property
    def fsid(self) -> str:
        """Names the volume."""
        return f"aze:{self.volume.name}"

    @property
    def loop(self) -> Any:
        """The event loop of blocking calls; a forked process has its own."""
        pid = os.getpid()
        if self._pid != pid:
            self._pid: int = pid
            self._loop = None if self.asynchronous else get_loop()
        return self._loop

    # Paths

    @staticmethod
    def _split(path: Any) -> tuple[str | None, str]:
        """Volume and path of `aze://volume/path`, `aze:/path` or `/path`."""
        path = stringify_path(path)
        volume = None
        if path.startswith("aze://"):
            volume, _, path = path[len("aze://") :].partition("/")
        elif path.startswith("aze:"):
            path = path[len("aze:") :]
        return volume or None, "/" + path.strip("/")

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return cls._split(path)[1]

    def _own_path(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self._own_path(one) for one in path]
        volume, path = self._split(path)
        if volume is not None and volume != self._name and volume != self.volume.name:
            raise ValueError(f"aze://{volume}{path} is in another volume than this file system's, {self.volume.name}")
        return path

    @staticmethod
    def _get_kwargs_from_urls(path: Any) -> dict[str, Any]:
        volume, _ = AzekuraFileSystem._split(path)
        return {} if volume is None else {"volume": volume}

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"aze://{self.volume.name}{self._own_path(name)}"

    # One request each, waited for or in an event loop

    def _wait(self, request: Request) -> Any:
        return self.volume._volume.wait(request)

    async def _ask(self, request: Request) -> Any:
        return await self.volume.aio._ask(request)

    def _with_parents(self, path: str, act: Callable[[], Any]) -> Any:
        """Does something that makes a name; makes the directories above it if they are missing."""
        try:
            return act()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        # Another call may have made them since: it is tried again in any case.
        self.volume.makedirs(self._parent(path), exist_ok=True)
        return act()

    async def _with_parents_async(self, path: str, act: Callable[[], Any]) -> Any:
        try:
            return await act()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        await self._ask(Request.mkdir(self._parent(path), 0o777, True))
        return await act()

    # Attributes and listings

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        """As fsspec describes it, with mode, uid, gid, ino, nlink, mtime, ctime and created. A symbolic link is followed; `islink`
        and `destination` tell of it."""
        path = self._strip_protocol(path)
        fields = self._wait(Request.stat(path, False))
        if not modes.S_ISLNK(fields[1]):
            return _info(path, fields)
        destination = self._wait(Request.readlink(path))
        return {**_info(path, self._wait(Request.stat(path, True))), "islink": True, "destination": destination}

    async def _info(self, path: Any, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        fields = await self._ask(Request.stat(path, False))
        if not modes.S_ISLNK(fields[1]):
            return _info(path, fields)
        destination = await self._ask(Request.readlink(path))
        return {**_info(path, await self._ask(Request.stat(path, True))), "islink": True, "destination": destination}

    @staticmethod
    def _listed(path: str, entries: list[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The infos of a directory's entries, and those among them that are symbolic links."""
        infos = [_info(_under(path, name), fields) for name, _, _, fields in entries]
        return infos, [info for info in infos if modes.S_ISLNK(info["mode"])]

    @staticmethod
    def _add_link(info: dict[str, Any], destination: str, target: Any) -> None:
        """A link to a file is listed as a file; one to a directory is not, since walks would go round in circles."""
        info.update(islink=True, destination=destination)
        if not isinstance(target, BaseException) and modes.S_ISREG(target[1]):
            info.update(type="file", size=target[6])

    def ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        """The infos of a directory's entries, or their paths; of a file, its own."""
        path = self._strip_protocol(path)
        try:
            entries = self._wait(Request.entries(path, detail))
        except NotADirectoryError:
            info = self.info(path)
            return [info] if detail else [path]
        if not detail:
            return [_under(path, entry[0]) for entry in entries]
        infos, links = self._listed(path, entries)
        for info in links:
            target = self.volume._volume.wait_all([Request.stat(info["name"], True)], 1)
            self._add_link(info, self._wait(Request.readlink(info["name"])), target[0])
        return infos

    async def _ls(self, path: Any, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            entries = await self._ask(Request.entries(path, detail))
        except NotADirectoryError:
            info = await self._info(path)
            return [info] if detail else [path]
        if not detail:
            return [_under(path, entry[0]) for entry in entries]
        infos, links = self._listed(path, entries)
        for info in links:
            try:
                target = await self._ask(Request.stat(info["name"], True))
            except OSError as error:
                target = error
            self._add_link(info, await self._ask(Request.readlink(info["name"])), target)
        return infos

    def walk(self, path: Any, maxdepth: int | None = None, topdown: bool = True, on_error: Any = _not_there, **more: Any) -> Any:
        """As fsspec describes it, but that a directory that cannot be listed raises OSError, unless `on_error` says otherwise."""
        return super().walk(path, maxdepth=maxdepth, topdown=topdown, on_error=on_error, **more)

    async def _walk(self, path: Any, maxdepth: int | None = None, topdown: bool = True, on_error: Any = _not_there, **more: Any) -> Any:
        async for step in super()._walk(path, maxdepth=maxdepth, topdown=topdown, on_error=on_error, **more):
            yield step

    async def _mode(self, path: Any) -> int:
        try:
            return (await self._ask(Request.stat(self._strip_protocol(path), True)))[1]
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def exists(self, path: Any, **_: Any) -> bool:
        """Whether the path leads to something. OSError if that cannot be found out."""
        return self.volume.exists(self._strip_protocol(path))

    async def _exists(self, path: Any, **_: Any) -> bool:
        return await self._mode(path) != 0

    def isfile(self, path: Any) -> bool:
        """Whether the path leads to a file. OSError if that cannot be found out."""
        return self.volume.isfile(self._strip_protocol(path))

    async def _isfile(self, path: Any) -> bool:
        return modes.S_ISREG(await self._mode(path))

    def isdir(self, path: Any) -> bool:
        """Whether the path leads to a directory. OSError if that cannot be found out."""
        return self.volume.isdir(self._strip_protocol(path))

    async def _isdir(self, path: Any) -> bool:
        return modes.S_ISDIR(await self._mode(path))

    def lexists(self, path: Any, **_: Any) -> bool:
        """As `exists`, also for a symbolic link that leads to nothing."""
        return self.volume.lexists(self._strip_protocol(path))

    def islink(self, path: Any) -> bool:
        """Whether the path names a symbolic link."""
        return self.volume.islink(self._strip_protocol(path))

    def created(self, path: Any) -> datetime.datetime:
        """When the file was made."""
        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.timezone.utc)

    def modified(self, path: Any) -> datetime.datetime:
        """When its data were changed last."""
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], tz=datetime.timezone.utc)

    def chmod(self, path: Any, mode: int) -> None:
        """As os.chmod()."""
        self.volume.chmod(self._strip_protocol(path), mode)

    # Contents

    @staticmethod
    def _range(start: int | None, end: int | None, size: Callable[[], int]) -> tuple[int, int | None]:
        """Start and end as numbers from the file's beginning; negative ones count from its end."""
        start = 0 if start is None else start
        if start < 0 or (end is not None and end < 0):
            length = size()
            start = max(start + length, 0) if start < 0 else start
            end = max(end + length, 0) if end is not None and end < 0 else end
        return start, end

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file from `start` up to `end`, which count from its end if they are negative."""
        path = self._strip_protocol(path)
        return self.volume.read_bytes(path, *self._range(start, end, lambda: self.volume.getsize(path)))

    async def _cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        is_from_end = (start is not None and start < 0) or (end is not None and end < 0)
        size = (await self._ask(Request.stat(path, True)))[6] if is_from_end else 0
        return await self._ask(Request.read(path, *self._range(start, end, lambda: size)))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """The bytes of one file, or a dict of those of several, read at the same time."""
        paths = self.expand_path(path, recursive=recursive)
        read = self.volume.read_many(paths)
        if on_error == "raise":
            self._raise_first(read)
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return read[0]
        return {one: data for one, data in zip(paths, read) if on_error != "omit" or not isinstance(data, BaseException)}

    def cat_ranges(
        self, paths: list[Any], starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        """Ranges of files, read at the same time: a list with the bytes of each, or its exception."""
        if max_gap is not None:
            raise NotImplementedError("max_gap: ranges are not joined")
        if not isinstance(paths, list):
            raise TypeError("paths have to be a list")
        every = [bounds if isinstance(bounds, Iterable) else [bounds] * len(paths) for bounds in (starts, ends)]
        ranges = list(zip(*every, strict=True))
        if len(ranges) != len(paths):
            raise ValueError(f"{len(paths)} paths and {len(ranges)} ranges")
        paths = [self._strip_protocol(path) for path in paths]
        # Lengths are asked for where a range counts from the end.
        requests = []
        for path, (start, end) in zip(paths, ranges):
            requests.append(Request.read(path, *self._range(start, end, functools.partial(self.volume.getsize, path))))
        read = self.volume._volume.wait_all(requests, AT_ONCE)
        if on_error == "raise":
            self._raise_first(read)
        return read

    @staticmethod
    def _raise_first(outcomes: list[Any]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    @staticmethod
    def _flags(mode: str) -> int:
        if mode not in ("overwrite", "create"):
            raise ValueError(f"mode {mode!r}: overwrite and create are possible")
        return _WRITE | (os.O_TRUNC if mode == "overwrite" else os.O_EXCL)

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Makes a file of these bytes; FileExistsError for mode "create" if there is one."""
        path, flags = self._strip_protocol(path), self._flags(mode)
        self._with_parents(path, lambda: self._wait(Request.write(path, value, flags, 0o666, 0)))

    async def _pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **_: Any) -> None:
        path, flags = self._strip_protocol(path), self._flags(mode)
        await self._with_parents_async(path, lambda: self._ask(Request.write(path, value, flags, 0o666, 0)))

    async def _get_file(self, rpath: Any, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        rpath = self._strip_protocol(rpath)
        if not isfilelike(lpath) and await self._isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        async with await self.volume.aio.open(rpath) as file:
            buffer = memoryview(bytearray(min(COPY_BYTES, max((await file.stat()).st_size, 1))))
            to = lpath if isfilelike(lpath) else open(lpath, "wb")
            try:
                at = 0
                while count := await file.preadinto(buffer, at):
                    to.write(buffer[:count])
                    callback.relative_update(count)
                    at += count
            finally:
                if to is not lpath:
                    to.close()

    async def _put_file(self, lpath: Any, rpath: Any, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        rpath, self_flags = self._strip_protocol(rpath), self._flags(mode)
        if os.path.isdir(lpath):
            await self._makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as local:
            opened = await self._with_parents_async(rpath, lambda: self._ask(Request.open(rpath, self_flags, 0o666, 0)))
            try:
                buffer, at = memoryview(bytearray(COPY_BYTES)), 0
                while count := local.readinto(buffer):
                    await self._ask(opened.pwrite_request(at, buffer[:count]))
                    callback.relative_update(count)
                    at += count
            finally:
                await self._ask(opened.close_request())

    async def _cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if await self._isdir(path1):
            await self._makedirs(path2, exist_ok=True)
            return
        async with await self.volume.aio.open(path1) as source:
            opened = await self._with_parents_async(path2, lambda: self._ask(Request.open(path2, _WRITE | os.O_TRUNC, 0o666, 0)))
            try:
                buffer, at = memoryview(bytearray(COPY_BYTES)), 0
                while count := await source.preadinto(buffer, at):
                    await self._ask(opened.pwrite_request(at, buffer[:count]))
                    at += count
            finally:
                await self._ask(opened.close_request())

    async def _copy(self, path1: Any, path2: Any, recursive: bool = False, on_error: str | None = None, **more: Any) -> None:
        # fsspec leaves files of a tree out that it does not find, unless it is told otherwise: a copy would be short.
        await super()._copy(path1, path2, recursive=recursive, on_error=on_error or "raise", **more)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:
        """Makes an empty file; of one that exists the time of change becomes now, and with `truncate` its length 0."""
        path = self._strip_protocol(path)
        flags = _WRITE | (os.O_TRUNC if truncate else 0)
        self._with_parents(path, lambda: self._wait(Request.write(path, b"", flags, 0o666, 0)))
        self._wait(Request.utime(path, None, True))

    def _open(
        self, path: Any, mode: str = "rb", block_size: int | None = None, autocommit: bool = True, **options: Any
    ) -> Any:
        """Opens a file for fsspec's open(); `block_size` is the size of its buffer in bytes, 64 KiB if not given.

        Without `autocommit` a new file has a hidden name beside its own until it is committed.
        """
        unknown = [name for name in options if name not in _WITHOUT_EFFECT]
        if unknown:
            raise TypeError(f"options that open() does not know here: {', '.join(unknown)}")
        path, parsed = self._strip_protocol(path), Mode(mode)
        size = block_size if isinstance(block_size, int) and block_size > 0 else BUFFER_BYTES
        at, flags = path, parsed.flags
        if not autocommit and parsed.kind != "r":
            if parsed.kind == "a" or parsed.updating:
                raise ValueError(f"mode {mode!r}: in a transaction files are written as a whole")
            at, flags = _under(self._parent(path), ".aze-" + secrets.token_hex(8)), _WRITE | os.O_EXCL
        request = functools.partial(Request.open, at, flags, 0o666, 0)
        act = lambda: self._wait(request())  # noqa: E731
        file = act() if parsed.kind == "r" else self._with_parents(at, act)
        raw = RawFile(file, path, parsed, self.volume._volume)
        if at != path:
            return _Deferred(raw, size, self, path, at, replace=parsed.kind == "w")
        kind = _Updater if parsed.updating else _Writer if parsed.writable else _Reader
        return kind(raw, size, self, path)

    # Names

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        """Makes a directory, with those above it if `create_parents`; FileExistsError if there is something."""
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(self._parent(path), exist_ok=True)
        self.volume.mkdir(path)

    async def _mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            await self._ask(Request.mkdir(self._parent(path), 0o777, True))
        await self._ask(Request.mkdir(path, 0o777, False))

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Makes a directory with those above it."""
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    async def _makedirs(self, path: Any, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and await self._exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        await self._ask(Request.mkdir(path, 0o777, True))

    def rmdir(self, path: Any) -> None:
        """Removes an empty directory."""
        self.volume.rmdir(self._strip_protocol(path))

    async def _rmdir(self, path: Any) -> None:
        await self._ask(Request.rmdir(self._strip_protocol(path)))

    def rm_file(self, path: Any) -> None:
        """Removes a file, or an empty directory."""
        path = self._strip_protocol(path)
        try:
            self.volume.remove(path)
        except IsADirectoryError:
            self.volume.rmdir(path)

    async def _rm_file(self, path: Any, **_: Any) -> None:
        path = self._strip_protocol(path)
        try:
            await self._ask(Request.unlink(path))
        except IsADirectoryError:
            await self._ask(Request.rmdir(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and with `recursive` directories with all in them. IsADirectoryError for a directory without it."""
        if maxdepth is not None:
            for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                self.rm_file(one)
            return
        for one in self.expand_path(path):
            if recursive and self.isdir(one) and not self.islink(one):
                self.volume.rmtree(one)
            else:
                self.volume.remove(one)

    async def _rm(
        self, path: Any, recursive: bool = False, batch_size: int | None = None, maxdepth: int | None = None, **_: Any
    ) -> None:
        if maxdepth is not None:
            for one in reversed(await self._expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                await self._rm_file(one)
            return
        for one in await self._expand_path(path):
            fields = await self._ask(Request.stat(one, False))
            if recursive and modes.S_ISDIR(fields[1]):
                await self._rmtree(one)
            else:
                await self._ask(Request.unlink(one))

    async def _rmtree(self, path: str) -> None:
        for name, _, kind, _ in await self._ask(Request.entries(path, False)):
            if kind == "d":
                await self._rmtree(_under(path, name))
            else:
                await self._ask(Request.unlink(_under(path, name)))
        await self._ask(Request.rmdir(path))

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **more: Any) -> None:
        """Moves a file or directory by a rename, which is atomic; into a directory if `path2` is one. Patterns and lists are
        moved one by one."""
        if isinstance(path1, list) or isinstance(path2, list) or has_magic(stringify_path(path1)) or maxdepth is not None:
            return super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **more)
        into = stringify_path(path2).endswith("/")
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if into or self.isdir(path2):
            path2 = _under(path2, path1.rsplit("/", 1)[-1])
        self.volume.stat(path1, follow_symlinks=False)
        self._with_parents(path2, lambda: self.volume.rename(path1, path2))

    def mv_file(self, path1: Any, path2: Any, **_: Any) -> None:
        """Moves a file by a rename."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self.volume.stat(path1, follow_symlinks=False)
        self._with_parents(path2, lambda: self.volume.rename(path1, path2))

    async def _mv_file(self, path1: Any, path2: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        await self._ask(Request.stat(path1, False))
        await self._with_parents_async(path2, lambda: self._ask(Request.rename(path1, path2, 0)))

    def link(self, src: Any, dst: Any) -> None:
        """As os.link()."""
        self.volume.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: Any, dst: Any) -> None:
        """As os.symlink(); the target is taken as it is."""
        self.volume.symlink(src, self._strip_protocol(dst))
