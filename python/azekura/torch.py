"""PyTorch: data sets of files of a volume, read in parallel, and checkpoints.

    from torch.utils.data import DataLoader
    from azekura.torch import FileDataset, FileStream, load, save

    files = FileDataset("/train", decode=lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8))
    loader = DataLoader(files, batch_size=64, shuffle=True, num_workers=4)
    save(model.state_dict(), "/checkpoints/last.pt")

Many small files are read at the same time by one thread of each worker. Workers may be forked or spawned: each connects by
itself. A file that cannot be read is an OSError in the loop over the loader; no sample is left out.
"""

from __future__ import annotations

import collections
import os
import random
import secrets
import select
from typing import Any, Callable, Iterator, Sequence

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from . import _azekura
from ._azekura import Request
from ._file import RawFile
from ._volume import AT_ONCE, Volume

__all__ = ["FileDataset", "FileStream", "load", "save"]

# Buffer of a checkpoint's file, whose small parts are put together.
_CHECKPOINT_BUFFER_BYTES = 1 << 20


def _opened(volume: Volume | str | None) -> Volume:
    return volume if isinstance(volume, Volume) else Volume(volume)


def _files(paths: str | Sequence[str], volume: Volume) -> list[str]:
    """The paths that are given, or those of all files below a directory, in the order of their names."""
    if isinstance(paths, str):
        return sorted(os.path.join(top, name) for top, _, files in volume.walk(paths) for name in files)
    return list(paths)


def _itself(data: bytes) -> bytes:
    return data


class FileDataset(Dataset):
    """A map-style data set: sample number `index` is `decode` of the bytes of file number `index`.

    `paths` are files, or a directory with all files below it. `volume` is a Volume, a name, or None for the one that is meant. A
    batch is read at the same time, `at_once` files at most, where PyTorch asks for whole batches: from 2.0 on, or with
    `DataLoader(files, sampler=BatchSampler(…), batch_size=None)`, which asks by a list of numbers.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        volume: Volume | str | None = None,
        *,
        decode: Callable[[bytes], Any] = _itself,
        at_once: int = AT_ONCE,
    ) -> None:
        self.volume = _opened(volume)
        self.paths = _files(paths, self.volume)
        self._decode, self._at_once = decode, at_once

    def __repr__(self) -> str:
        return f"<azekura.torch.FileDataset of {len(self.paths)} files in {self.volume.name!r}>"

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (list, tuple)):
            return self.__getitems__(index)
        return self._decode(self.volume.read_bytes(self.paths[index]))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        read = self.volume.read_many([self.paths[index] for index in indices], at_once=self._at_once)
        for data in read:
            if isinstance(data, OSError):
                raise data
        return [self._decode(data) for data in read]  # type: ignore[arg-type]


class FileStream(IterableDataset):
    """An iterable data set: `decode` of the bytes of each file, once in an epoch, read ahead by `at_once` files.

    With `shuffle` the order is another one in each epoch, and the same for the same `seed` and epoch. Workers of a loader share the
    files among them, and so do `shards` programs, of which this is number `shard` (0 and 1 if PyTorch's process group is not
    set up and neither is given). Call `set_epoch` before each epoch, as for PyTorch's DistributedSampler.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        volume: Volume | str | None = None,
        *,
        decode: Callable[[bytes], Any] = _itself,
        shuffle: bool = False,
        seed: int = 0,
        shard: int | None = None,
        shards: int | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self.volume = _opened(volume)
        self.paths = _files(paths, self.volume)
        if (shard is None) != (shards is None):
            raise ValueError("shard and shards belong together")
        if shard is None or shards is None:
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            shard, shards = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
        if not 0 <= shard < shards or at_once < 1:
            raise ValueError(f"shard {shard} of {shards}, {at_once} at once: there are no such")
        self._decode, self._shuffle, self._seed, self._at_once = decode, shuffle, seed, at_once
        self._shard, self._shards, self._epoch = shard, shards, 0

    def __repr__(self) -> str:
        return f"<azekura.torch.FileStream of {len(self.paths)} files in {self.volume.name!r}, shard {self._shard} of {self._shards}>"

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        paths = self.paths
        if self._shuffle:
            paths = random.Random(f"{self._seed}:{self._epoch}").sample(paths, len(paths))
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        own = paths[self._shard * workers + number :: self._shards * workers]
        return map(self._decode, _read_ahead(self.volume, own, self._at_once))


def _read_ahead(volume: Volume, paths: Sequence[str], at_once: int) -> Iterator[bytes]:
    """The bytes of files, in their order, while the next ones are on their way."""
    queue = _azekura.Queue(volume._volume)
    todo, order = iter(paths), collections.deque[int]()
    done: dict[int, Any] = {}
    while True:
        while len(order) < at_once and (path := next(todo, None)) is not None:
            order.append(queue.submit(Request.read(path, 0, None)))
        if not order:
            return
        tag = order.popleft()
        while tag not in done:
            select.select([queue.fileno()], [], [])
            done.update(queue.poll())
        outcome = done.pop(tag)
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome


def save(obj: Any, path: str, volume: Volume | str | None = None, *, sync: bool = True, **options: Any) -> None:
    """torch.save() into a file of a volume that appears whole, by a rename, in place of an older one.

    With `sync` it is as durable as the volume promises it before it gets its name. `options` are those of torch.save(). If it fails,
    the older file is still there.
    """
    volume = _opened(volume)
    directory, name = os.path.split(path)
    hidden = os.path.join(directory, f".aze-{secrets.token_hex(8)}")
    try:
        with volume.open(hidden, "xb", _CHECKPOINT_BUFFER_BYTES) as file:
            torch.save(obj, file, **options)
            file.flush()
            raw = file.raw  # type: ignore[attr-defined]
            assert isinstance(raw, RawFile)
            if sync:
                raw.sync()
        volume.rename(hidden, os.path.join(directory, name))
    except BaseException:
        if volume.lexists(hidden):
            volume.remove(hidden)
        raise


def load(path: str, volume: Volume | str | None = None, **options: Any) -> Any:
    """torch.load() of a file of a volume. `options` are those of torch.load(), `map_location` and `weights_only` among them; there is
    no `mmap`."""
    with _opened(volume).open(path, "rb", _CHECKPOINT_BUFFER_BYTES) as file:
        return torch.load(file, **options)
