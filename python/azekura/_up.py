"""Volumes that a program starts for itself, by the program `aze` that comes with the package."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import shutil
import subprocess
from typing import Any

from ._volume import Volume


class CommandError(RuntimeError):
    """A command of `aze` failed. `returncode` is its exit code (`aze help exit-codes`), `stderr` has what it said."""

    def __init__(self, command: list[str], returncode: int, stderr: str) -> None:
        super().__init__(f"{shlex.join(command)}: exit code {returncode}: {stderr.strip()}")
        self.returncode, self.stderr = returncode, stderr


def program() -> str:
    """The path of `aze`: the one that was installed with this package, else the first on the PATH.

    FileNotFoundError if there is none.
    """
    try:
        installed = importlib.metadata.files("azekura") or []
    except importlib.metadata.PackageNotFoundError:
        installed = []
    for file in installed:
        if file.name == "aze":
            path = os.path.abspath(file.locate())
            if os.access(path, os.X_OK):
                return path
    found = shutil.which("aze")
    if found is None:
        raise FileNotFoundError("the program aze was neither installed with this package nor is it on the PATH")
    return found


def _run(*words: str) -> str:
    command = [program(), *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise CommandError(command, done.returncode, done.stderr)
    return done.stdout


class StartedVolume(Volume):
    """A volume that this process has started. `with` ends it at the end, after an exception, too; what is in it and not kept in
    directories is gone then. It also ends when this process does, however that happens."""

    def __init__(self, name: str) -> None:
        self._owner: int | None = os.getpid()
        try:
            super().__init__(name)
        except BaseException:
            _run("down", "--force", "--name", name)
            raise

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """Closes the volume and ends it; mounts are taken away. Again, or in a forked process, it only closes. CommandError."""
        self.close()
        if self._owner == os.getpid():
            self._owner = None
            _run("down", "--force", "--name", self.name)


def up(**options: Any) -> StartedVolume:
    """Starts a volume: `with azekura.up(size="1G", servers=4) as volume:`.

    Options are those of `aze up` (`aze up --help`), with `_` for `-`: a list or tuple is given with commas, True is an option
    without a value, None and False are left out. `pid` is this process if not given, so that the volume ends with it.
    Blocks until the servers are ready, 30 s at most unless `timeout` says so. CommandError.
    """
    words = []
    for key, value in {"pid": os.getpid(), **options}.items():
        if value is None or value is False:
            continue
        words.append("--" + key.replace("_", "-"))
        if isinstance(value, (list, tuple)):
            words.append(",".join(str(os.fspath(part) if isinstance(part, os.PathLike) else part) for part in value))
        elif value is not True:
            words.append(str(value))
    said = _run("up", *words)
    for word in shlex.split(said):
        if word.startswith("AZE_VOLUME="):
            return StartedVolume(word.partition("=")[2])
    raise CommandError(["aze", "up"], 0, f"it did not tell the volume's name: {said!r}")
