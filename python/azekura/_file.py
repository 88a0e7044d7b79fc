"""Open files: modes of open() as the builtin has them, and unbuffered files. Buffering and text are Python's own (io)."""

from __future__ import annotations

import io
import os
from typing import IO, Any, cast

from . import _azekura

# A small file comes with its open up to this size, so that a read of it needs one request.
BUFFER_BYTES = 64 << 10

_ACCESS = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
           "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND}  # fmt: skip


class Mode:
    """A mode such as "r", "wb" or "r+", taken apart. ValueError for what the builtin open() refuses, too."""

    def __init__(self, mode: str) -> None:
        letters = set(mode)
        if not isinstance(mode, str) or letters - set("rwxab+t") or len(letters) < len(mode):
            raise ValueError(f"invalid mode: {mode!r}")
        kinds = letters & set("rwxa")
        if len(kinds) != 1:
            raise ValueError(f"mode {mode!r}: exactly one of read, write, create and append is needed")
        if letters >= {"b", "t"}:
            raise ValueError(f"mode {mode!r}: text and binary exclude each other")
        (self.kind,) = kinds
        self.updating = "+" in letters
        self.binary = "b" in letters
        self.readable = self.kind == "r" or self.updating
        self.writable = self.kind != "r" or self.updating
        flags = _ACCESS[self.kind]
        self.flags = (flags & ~os.O_ACCMODE | os.O_RDWR) if self.updating else flags
        # As io.FileIO has it: what "w+" empties is then read and written as "r+" does it.
        kind = "r" if self.kind == "w" and self.updating else self.kind
        self.name = kind + ("b+" if self.updating else "b")
        self.given = mode


class RawFile(io.RawIOBase):
    """An open file without a buffer: each call is a request to servers, and blocks until it is done.

    Reads go straight into the memory of the caller and are short only at the end of the file; a write writes all of its
    data. A process that was forked since must not use it: its calls fail with EBADF there, and closing does nothing.
    """

    def __init__(self, file: _azekura.File, path: Any, mode: Mode, volume: _azekura.Volume) -> None:
        # The connection ends with the last object that has the volume.
        self._file, self._volume = file, volume
        self._readable, self._writable = mode.readable, mode.writable
        self.name = path
        self.mode = mode.name
        if mode.kind == "a":
            file.seek(0, io.SEEK_END)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<azekura.RawFile name={self.name!r} mode={self.mode!r}{state}>"

    def __reduce__(self) -> Any:
        raise TypeError("an open file cannot be pickled: open it where it is needed")

    def _open(self) -> _azekura.File:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._file

    def readable(self) -> bool:
        """Whether it was opened for reading."""
        self._open()
        return self._readable

    def writable(self) -> bool:
        """Whether it was opened for writing."""
        self._open()
        return self._writable

    def seekable(self) -> bool:
        """True."""
        self._open()
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills memory from the position on; gives how many bytes, fewer only at the end of the file. Copies nothing."""
        file = self._open()
        if not self._readable:
            raise io.UnsupportedOperation("the file was not opened for reading")
        return file.readinto(buffer)

    def read(self, size: int | None = -1) -> bytes:
        """`size` bytes from the position, or all up to the end of the file; fewer only there."""
        if size is None or size < 0:
            return self.readall()
        if not self._readable:
            raise io.UnsupportedOperation("the file was not opened for reading")
        return self._open().read(size)

    def readall(self) -> bytes:
        """All bytes from the position to the end of the file."""
        file = self._open()
        if not self._readable:
            raise io.UnsupportedOperation("the file was not opened for reading")
        # One more than there should be tells the end.
        parts = [file.read(max(file.size() - file.tell(), 0) + 1)]
        while len(parts[-1]) > 0 and file.tell() < file.size():
            parts.append(file.read(file.size() - file.tell()))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: Any) -> int:
        """Writes all of the data at the position, or at the end of a file opened for appending; gives their length."""
        file = self._open()
        if not self._writable:
            raise io.UnsupportedOperation("the file was not opened for writing")
        return file.write(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position; gives the new one. Also os.SEEK_DATA and os.SEEK_HOLE."""
        return self._open().seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._open().tell()

    def truncate(self, size: int | None = None) -> int:
        """Makes the file `size` bytes long, or as long as the position says; gives that size."""
        file = self._open()
        if not self._writable:
            raise io.UnsupportedOperation("the file was not opened for writing")
        size = file.tell() if size is None else size
        file.truncate(size)
        return size

    def sync(self) -> None:
        """Makes the file durable, as fsync(2). A buffer above has to be flushed before."""
        self._open().sync()

    def lock(self, *, shared: bool = False, wait: bool = True) -> None:
        """Locks the whole file, as flock(2), against all other opens of all nodes; BlockingIOError without `wait` if another has
        a lock in the way. `close` unlocks, too."""
        self._open().lock(shared, wait)

    def unlock(self) -> None:
        """Gives up the lock."""
        self._open().unlock()

    def fileno(self) -> int:
        """io.UnsupportedOperation: the file is none of the system's."""
        raise io.UnsupportedOperation("a file of a volume has no file descriptor: use a mount, or 'aze run', for that")

    def isatty(self) -> bool:
        """False."""
        self._open()
        return False

    def close(self) -> None:
        """Closes the file; again is harmless. OSError if something that was written is not there; closed all the same."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._file.close()


def wrapped(raw: RawFile, mode: Mode, buffering: int, encoding: str | None, errors: str | None, newline: str | None) -> IO[Any]:
    """The file with the buffer and the text layer that the builtin open() would give it; closes it if that fails."""
    try:
        line_buffering = False
        if buffering == 1 and not mode.binary:
            buffering, line_buffering = -1, True
        if buffering == 0:
            if not mode.binary:
                raise ValueError("text needs a buffer")
            return cast(IO[Any], raw)
        size = BUFFER_BYTES if buffering < 0 else buffering
        buffered: Any
        if mode.updating:
            buffered = io.BufferedRandom(raw, size)
        elif mode.writable:
            buffered = io.BufferedWriter(raw, size)
        else:
            buffered = io.BufferedReader(raw, size)
        if mode.binary:
            return buffered
        text: Any = io.TextIOWrapper(buffered, io.text_encoding(encoding), errors, newline, line_buffering)
        text.mode = mode.given
        return text
    except BaseException:
        raw.close()
        raise


def check(mode: Mode, buffering: int, encoding: Any, errors: Any, newline: Any) -> None:
    """ValueError for arguments that exclude each other, before a file is made."""
    if mode.binary and not encoding is errors is newline is None:
        raise ValueError("a binary file has no encoding, errors or newline")
    if buffering == 0 and not mode.binary:
        raise ValueError("text needs a buffer")
