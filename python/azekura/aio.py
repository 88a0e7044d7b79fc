"""Volumes for asyncio: no call has a thread of its own.

    volume = azekura.Volume()
    data = await volume.aio.read_bytes("/file")

Requests go on in the connection's one background thread; the event loop hears of outcomes by a file descriptor. 1,024 requests of
one event loop are under way at most; further ones wait for their turn. A request that was begun goes on if its task is
cancelled: a change takes effect then, and memory that is read into may still be written to.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Any

from . import _azekura
from ._azekura import Request
from ._file import Mode
from ._volume import Path, stat_result

# Requests of an event loop that are under way.
UNDER_WAY_MAX = 1024


class _Pump:
    """The requests of one event loop."""

    def __init__(self, volume: _azekura.Volume, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = _azekura.Queue(volume)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._turns = asyncio.Semaphore(UNDER_WAY_MAX)
        # The loop keeps this from now on, and with it the descriptor, until it is closed.
        loop.add_reader(self._queue.fileno(), self._ready)

    async def ask(self, request: Request) -> Any:
        async with self._turns:
            future = asyncio.get_running_loop().create_future()
            self._waiting[self._queue.submit(request)] = future
            return await future

    def _ready(self) -> None:
        for tag, outcome in self._queue.poll():
            future = self._waiting.pop(tag)
            if future.done():  # cancelled
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class AsyncFile:
    """An open file without a position or a buffer. Several calls may be under way at a time, in no order. `async with` closes."""

    def __init__(self, volume: AsyncVolume, file: _azekura.File, path: Path, mode: Mode) -> None:
        self._volume, self._file = volume, file
        self.name, self.mode = path, mode.name

    def __repr__(self) -> str:
        return f"<azekura.aio.AsyncFile name={self.name!r} mode={self.mode!r}>"

    async def __aenter__(self) -> AsyncFile:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def pread(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset` on, fewer only at the end of the file."""
        buffer = bytearray(size)
        count = await self.preadinto(buffer, offset)
        return bytes(memoryview(buffer)[:count])

    async def preadinto(self, buffer: Any, offset: int) -> int:
        """Fills memory from `offset` on; gives how many bytes. Copies nothing."""
        return await self._volume._ask(self._file.pread_request(offset, buffer))

    async def pwrite(self, data: Any, offset: int) -> int:
        """Writes all of the data at `offset`; gives their length. The data must not be changed meanwhile."""
        return await self._volume._ask(self._file.pwrite_request(offset, data))

    async def stat(self) -> os.stat_result:
        """Its attributes."""
        return stat_result(await self._volume._ask(self._file.stat_request()))

    async def sync(self) -> None:
        """Makes it durable, as fsync(2)."""
        await self._volume._ask(self._file.sync_request())

    async def close(self) -> None:
        """Closes it; OSError with EBADF if it is closed."""
        await self._volume._ask(self._file.close_request())


class AsyncVolume:
    """A volume for asyncio: `Volume.aio`. Each method is that of `Volume` with its name. Any event loop may use it."""

    def __init__(self, volume: _azekura.Volume) -> None:
        self._volume = volume
        # With the process: an event loop that a forked process inherits is not its own.
        self._pumps: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pump] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<azekura.aio.AsyncVolume {self._volume.name!r}>"

    async def _ask(self, request: Request) -> Any:
        loop = asyncio.get_running_loop()
        pump = self._pumps.get(loop)
        if pump is None:
            pump = self._pumps[loop] = _Pump(self._volume, loop)
        return await pump.ask(request)

    async def open(self, path: Path, mode: str = "rb", *, permissions: int = 0o666, chunk_size: int = 0) -> AsyncFile:
        """Opens a file, in binary modes without "a": what is written goes to the place that each call names."""
        parsed = Mode(mode)
        if not parsed.binary or parsed.kind == "a":
            raise ValueError(f"mode {mode!r}: only binary modes without 'a' are for asyncio")
        file = await self._ask(Request.open(path, parsed.flags, permissions, chunk_size))
        return AsyncFile(self, file, path, parsed)

    async def read_bytes(self, path: Path, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of a file from `start` up to `end`, or up to its end."""
        return await self._ask(Request.read(path, start, end))

    async def readinto(self, path: Path, buffer: Any, start: int = 0) -> int:
        """Fills memory from a file; gives how many bytes."""
        return await self._ask(Request.readinto(path, start, buffer))

    async def write_bytes(self, path: Path, data: Any, *, permissions: int = 0o666, chunk_size: int = 0) -> int:
        """Makes a file of these bytes, in place of what it had."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return await self._ask(Request.write(path, data, flags, permissions, chunk_size))

    async def stat(self, path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        """As os.stat()."""
        return stat_result(await self._ask(Request.stat(path, follow_symlinks)))

    async def listdir(self, path: Path = "/") -> list[str]:
        """As os.listdir()."""
        return [name for name, *_ in await self._ask(Request.entries(path, False))]

    async def mkdir(self, path: Path, mode: int = 0o777, *, private: bool = False) -> None:
        """As os.mkdir(). All that is made below a private directory is on one server, and no other one is asked for it."""
        await self._ask(Request.mkdir_private(path, mode) if private else Request.mkdir(path, mode, False))

    async def rmdir(self, path: Path) -> None:
        """As os.rmdir()."""
        await self._ask(Request.rmdir(path))

    async def remove(self, path: Path) -> None:
        """As os.remove()."""
        await self._ask(Request.unlink(path))

    async def rename(self, src: Path, dst: Path) -> None:
        """As os.rename()."""
        await self._ask(Request.rename(src, dst, 0))

    async def truncate(self, path: Path, length: int) -> None:
        """As os.truncate()."""
        await self._ask(Request.truncate(path, length))

    async def sync(self) -> None:
        """As `Volume.sync`."""
        await self._ask(Request.sync())
