"""Azekura: a parallel file system that lives on the nodes of your job.

    import azekura

    with azekura.up(size="1G") as volume:               # a volume of this machine, gone at the end
        with volume.open("/greeting", "w") as file:
            file.write("hello")
        print(volume.listdir("/"))

`Volume` opens a volume that runs. `azekura.aio` is for asyncio, `azekura.fs` for fsspec (`aze://volume/path`),
`azekura.torch` for PyTorch.

Calls block until servers have answered, or the connection's time is over (10 s); other threads go on meanwhile. Failures are
OSError, of the subclass that belongs to errno, with the paths as `filename`. Sizes and positions are in bytes, times in
seconds since 1970, those that end in `_ns` in nanoseconds. A forked process may use a `Volume` of its parent: it connects
anew; open files of the parent give EBADF there.
"""

from ._azekura import version as __version__
from ._file import RawFile
from ._up import CommandError, StartedVolume, program, up
from ._volume import DirEntry, Volume

__all__ = ["CommandError", "DirEntry", "RawFile", "StartedVolume", "Volume", "__version__", "program", "up"]
